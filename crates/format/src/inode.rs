//! Inode records and the table that finds them.
//!
//! An inode number is an index: block = number / 16, place in the block = number % 16. Blocks of 16
//! records are found through a radix tree of nodes with 512 slot references each. A record with
//! mode 0 is free. A record with a mode and no links is an orphan, which recovery reclaims.

use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::number::number;
use crate::object::GROUP;
use crate::{FormatError, SlotRef, checksum, index};

/// Bytes of one record.
pub const INODE_RECORD: usize = 96;
/// Records in a block.
pub const INODES_PER_BLOCK: u64 = 16;
/// Bytes of a block of records.
pub const INODE_BLOCK: u64 = INODE_RECORD as u64 * INODES_PER_BLOCK;
/// References in a node of the table.
pub const TABLE_FANOUT: u64 = 512;
/// Bytes of a node of the table.
pub const TABLE_NODE: u64 = TABLE_FANOUT * 8;

number! {
    /// An inode number: a place in the inode table. 0 belongs to no inode.
    Ino(u32)
}

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);

    /// Returns the inode at a place of a block of the table, or `None` past the last number.
    pub fn in_block(block: u64, place: usize) -> Option<Ino> {
        debug_assert!(place < index(INODES_PER_BLOCK));
        Some(Ino(u32::try_from(block.checked_mul(INODES_PER_BLOCK)? + place as u64).ok()?))
    }

    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns the block of the table that holds its record.
    pub const fn block(self) -> u64 {
        self.0 as u64 / INODES_PER_BLOCK
    }

    /// Returns the place of its record in the block.
    pub const fn place(self) -> usize {
        self.0 as usize % index(INODES_PER_BLOCK)
    }
}

impl From<Ino> for u64 {
    fn from(ino: Ino) -> u64 {
        ino.0.into()
    }
}

/// Converts a number from outside, such as the kernel's. Fails if it is too large for an inode
/// number.
impl TryFrom<u64> for Ino {
    type Error = std::num::TryFromIntError;

    fn try_from(number: u64) -> Result<Ino, Self::Error> {
        u32::try_from(number).map(Ino)
    }
}

pub const S_IFMT: u16 = 0o170000;
pub const S_IFSOCK: u16 = 0o140000;
pub const S_IFLNK: u16 = 0o120000;
pub const S_IFREG: u16 = 0o100000;
pub const S_IFBLK: u16 = 0o060000;
pub const S_IFDIR: u16 = 0o040000;
pub const S_IFCHR: u16 = 0o020000;
pub const S_IFIFO: u16 = 0o010000;

/// Meaning of an inode's `root`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// No data: an empty file, a device, or a file that is one hole.
    Empty = 0,
    /// One piece holds all data (file up to 32 KiB, or the target of a symbolic link).
    Direct = 1,
    /// The piece is an array of slot references, one for each 32 KiB of the file; 0 is a hole.
    Chunked = 2,
    /// The piece is the root of an extent map; the data are on the bulk device.
    Extents = 3,
    /// A directory in one bucket.
    DirPacked = 4,
    /// A directory under a hash node.
    DirHashed = 5,
    /// The piece is the head of a packed object that holds all data (file up to 128 KiB).
    Packed = 6,
}

/// Bytes of a file that one reference of [`Layout::Chunked`] covers.
pub const CHUNK: u64 = 32768;

/// Set while a truncation removes data beyond `size` step by step; recovery finishes it.
pub const INODE_TRUNCATING: u8 = 1;
/// Set when some extent is marked NEW: its data may not be durable.
pub const INODE_HAS_NEW: u8 = 2;
/// Set by chattr(1): nothing about the inode may change except this flag.
pub const INODE_IMMUTABLE: u8 = 4;
/// Set by chattr(1): a file only grows, a directory only gains entries.
pub const INODE_APPEND_ONLY: u8 = 8;
/// Set by chattr(1), for dump(8): leave the inode out of backups.
pub const INODE_NO_DUMP: u8 = 16;
/// Set by chattr(1): reads do not change the access time.
pub const INODE_NO_ATIME: u8 = 32;

/// Set when the file, of layout [`Layout::Direct`], has not changed for a while. `rdev` holds the
/// sum of its bytes ([`crate::object::sum_in_slot`]).
pub const INODE_SUMMED: u8 = 64;

/// Number of low bits of `layout` that hold the [`Layout`]. The method is in the bits above them.
const LAYOUT_BITS: u32 = 3;
/// Largest code of a method: 0 means the store's method, 1 off, 2 auto, 3 lz4; a level of zstd from
/// 1 to 19 has the code level + 3.
pub const METHOD_MAX: u8 = 22;

/// Smallest threshold of a file or directory (bytes).
pub const THRESHOLD_MIN: u32 = 4096;
/// Largest threshold: a file of this length moves between the tiers in one record (bytes).
pub const THRESHOLD_MAX: u32 = 64 << 20;
/// Set in the stored form of a threshold that came from the directory.
const THRESHOLD_INHERITED: u32 = 1 << 31;

/// The size above which a file is large. In a directory, the threshold of new files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Threshold {
    /// 0: the store's threshold. Otherwise from [`THRESHOLD_MIN`] to [`THRESHOLD_MAX`].
    pub bytes: u32,
    /// It came from the directory, not from a user.
    pub inherited: bool,
}

impl Threshold {
    /// The store's threshold.
    pub const NONE: Threshold = Threshold { bytes: 0, inherited: false };

    /// Returns the threshold of something new in a directory with this threshold.
    pub fn handed_down(self) -> Threshold {
        Threshold { inherited: self.bytes != 0, ..self }
    }

    fn encode(self) -> u32 {
        self.bytes | if self.inherited { THRESHOLD_INHERITED } else { 0 }
    }

    fn decode(bits: u32) -> Option<Threshold> {
        let threshold = Threshold { bytes: bits & !THRESHOLD_INHERITED, inherited: bits & THRESHOLD_INHERITED != 0 };
        (bits == 0 || (THRESHOLD_MIN..=THRESHOLD_MAX).contains(&threshold.bytes)).then_some(threshold)
    }
}

/// The record as it lies in an inode block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct InodeRecord {
    /// File type and permissions; 0 marks a free record.
    pub mode: U16,
    /// A [`Layout`], and above its three bits the method.
    pub layout: u8,
    pub flags: u8,
    pub nlink: U32,
    pub uid: U32,
    pub gid: U32,
    /// Bytes of a file or link target; entries of a directory.
    pub size: U64,
    /// Times in nanoseconds since 1970.
    pub atime: I64,
    pub mtime: I64,
    pub ctime: I64,
    pub btime: I64,
    /// Grows when the number is reused.
    pub generation: U32,
    /// Device number. With [`INODE_SUMMED`]: the sum of the file's bytes. Directory: its
    /// [`Threshold`].
    pub rdev: U32,
    /// A [`SlotRef`]; its meaning depends on `layout`.
    pub root: U64,
    /// A [`SlotRef`] to the extended attributes, or 0.
    pub xattr: U64,
    /// Bytes allocated in the region and on the bulk device for data, maps and attributes.
    pub allocated: U64,
    /// Directory: its parent. File: its [`Threshold`].
    pub parent: U32,
    pub crc: U32,
}

const _: () = assert!(size_of::<InodeRecord>() == INODE_RECORD);
const _: () = assert!(std::mem::offset_of!(InodeRecord, root) == 64);
const _: () = assert!(std::mem::offset_of!(InodeRecord, crc) == 92);

/// An inode in memory, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    pub mode: u16,
    pub layout: Layout,
    /// Packing method of a file, or of new files in a directory: a code up to [`METHOD_MAX`].
    pub method: u8,
    /// Only for files and directories.
    pub threshold: Threshold,
    pub flags: u8,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub atime: i64,
    pub mtime: i64,
    pub ctime: i64,
    pub btime: i64,
    pub generation: u32,
    pub rdev: u32,
    pub root: SlotRef,
    pub xattr: SlotRef,
    pub allocated: u64,
    pub parent: Ino,
}

/// Contents of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeSlot {
    /// Not in use. Holds the generation of its last user.
    Free {
        generation: u32,
    },
    Used(Inode),
}

impl Inode {
    pub fn kind(&self) -> u16 {
        self.mode & S_IFMT
    }

    pub fn is_dir(&self) -> bool {
        self.kind() == S_IFDIR
    }

    pub fn is_file(&self) -> bool {
        self.kind() == S_IFREG
    }

    pub fn encode(&self) -> [u8; INODE_RECORD] {
        let threshold = self.threshold.encode();
        let record = InodeRecord {
            mode: self.mode.into(),
            layout: self.layout as u8 | self.method << LAYOUT_BITS,
            flags: self.flags,
            nlink: self.nlink.into(),
            uid: self.uid.into(),
            gid: self.gid.into(),
            size: self.size.into(),
            atime: self.atime.into(),
            mtime: self.mtime.into(),
            ctime: self.ctime.into(),
            btime: self.btime.into(),
            generation: self.generation.into(),
            rdev: if self.is_dir() { threshold } else { self.rdev }.into(),
            root: self.root.bits().into(),
            xattr: self.xattr.bits().into(),
            allocated: self.allocated.into(),
            parent: if self.is_file() { threshold } else { self.parent.get() }.into(),
            crc: 0.into(),
        };
        seal(record)
    }

    /// Returns the bytes of a free record. A record of zeros is free too.
    pub fn encode_free(generation: u32) -> [u8; INODE_RECORD] {
        let mut record = InodeRecord::read_from_bytes(&[0; INODE_RECORD]).expect("size is asserted");
        record.generation = generation.into();
        seal(record)
    }

    /// Checks that the fields fit each other.
    fn validate(&self) -> Result<(), FormatError> {
        let (what, layout) = ("inode", self.layout);
        let layout_fits = match self.kind() {
            S_IFDIR => matches!(layout, Layout::Empty | Layout::DirPacked | Layout::DirHashed),
            S_IFREG => !matches!(layout, Layout::DirPacked | Layout::DirHashed),
            S_IFLNK => layout == Layout::Direct,
            S_IFSOCK | S_IFBLK | S_IFCHR | S_IFIFO => layout == Layout::Empty,
            found => return Err(FormatError::Range { what, field: "mode", found: u64::from(found) }),
        };
        let summed_fits = self.flags & INODE_SUMMED == 0 || self.is_file() && layout == Layout::Direct;
        let method_fits = self.method == 0 || self.method <= METHOD_MAX && (self.is_file() || self.is_dir());
        if !method_fits {
            return Err(FormatError::Range { what, field: "method", found: u64::from(self.method) });
        }
        if !summed_fits {
            return Err(FormatError::Range { what, field: "flags", found: u64::from(self.flags) });
        }
        if !layout_fits || (layout == Layout::Empty) != self.root.is_none() {
            return Err(FormatError::Range { what, field: "layout", found: layout as u64 });
        }
        let size_fits = layout != Layout::Packed || (1..=GROUP).contains(&self.size);
        if !size_fits || self.size > i64::MAX as u64 {
            return Err(FormatError::Range { what, field: "size", found: self.size });
        }
        Ok(())
    }

    /// Decodes and validates one record.
    pub fn decode(bytes: &[u8; INODE_RECORD]) -> Result<InodeSlot, FormatError> {
        let what = "inode";
        let record = InodeRecord::read_from_bytes(bytes).expect("size is asserted");
        if record.mode.get() == 0 && bytes.iter().all(|&b| b == 0) {
            return Ok(InodeSlot::Free { generation: 0 });
        }
        let found = checksum(0, &bytes[..92]);
        if found != record.crc.get() {
            return Err(FormatError::Checksum { what, expected: record.crc.get(), found });
        }
        if record.mode.get() == 0 {
            return Ok(InodeSlot::Free { generation: record.generation.get() });
        }
        let slot = |field, bits: U64| {
            SlotRef::from_bits(bits.get()).ok_or(FormatError::Range { what, field, found: bits.get() })
        };
        let layout = match record.layout & ((1 << LAYOUT_BITS) - 1) {
            0 => Layout::Empty,
            1 => Layout::Direct,
            2 => Layout::Chunked,
            3 => Layout::Extents,
            4 => Layout::DirPacked,
            5 => Layout::DirHashed,
            6 => Layout::Packed,
            _ => return Err(FormatError::Range { what, field: "layout", found: u64::from(record.layout) }),
        };
        let (kind, rdev, parent) = (record.mode.get() & S_IFMT, record.rdev.get(), record.parent.get());
        let (threshold, rdev, parent) = match kind {
            S_IFREG => (parent, rdev, 0),
            S_IFDIR => (rdev, 0, parent),
            _ => (0, rdev, parent),
        };
        let threshold = Threshold::decode(threshold).ok_or(FormatError::Range {
            what,
            field: "threshold",
            found: u64::from(threshold),
        })?;
        let inode = Inode {
            mode: record.mode.get(),
            layout,
            method: record.layout >> LAYOUT_BITS,
            threshold,
            flags: record.flags,
            nlink: record.nlink.get(),
            uid: record.uid.get(),
            gid: record.gid.get(),
            size: record.size.get(),
            atime: record.atime.get(),
            mtime: record.mtime.get(),
            ctime: record.ctime.get(),
            btime: record.btime.get(),
            generation: record.generation.get(),
            rdev,
            root: slot("root", record.root)?,
            xattr: slot("xattr", record.xattr)?,
            allocated: record.allocated.get(),
            parent: Ino(parent),
        };
        inode.validate()?;
        Ok(InodeSlot::Used(inode))
    }
}

fn seal(mut record: InodeRecord) -> [u8; INODE_RECORD] {
    record.crc = checksum(0, &record.as_bytes()[..92]).into();
    record.as_bytes().try_into().expect("size is asserted")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Inode {
        Inode {
            mode: S_IFREG | 0o644,
            layout: Layout::Direct,
            method: 0,
            threshold: Threshold::NONE,
            flags: 0,
            nlink: 1,
            uid: 1000,
            gid: 100,
            size: 5,
            atime: -1,
            mtime: 2,
            ctime: 3,
            btime: 4,
            generation: 9,
            rdev: 0,
            root: SlotRef::slot(crate::Offset::new(65536), 17),
            xattr: SlotRef::NONE,
            allocated: 1024,
            parent: Ino::ZERO,
        }
    }

    #[test]
    fn an_inode_round_trips_and_every_flipped_bit_is_seen() {
        let bytes = sample().encode();
        assert_eq!(Inode::decode(&bytes), Ok(InodeSlot::Used(sample())));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Inode::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_method_goes_with_files_and_directories_of_every_layout_and_others_are_refused() {
        let dir = Inode { mode: S_IFDIR | 0o755, layout: Layout::DirHashed, ..sample() };
        let packed = Inode { layout: Layout::Packed, ..sample() };
        let link = Inode { mode: S_IFLNK | 0o777, ..sample() };
        for method in 0..32 {
            for inode in [sample(), dir, packed] {
                let inode = Inode { method, ..inode };
                let expected = if method <= METHOD_MAX { Some(InodeSlot::Used(inode)) } else { None };
                assert_eq!(Inode::decode(&inode.encode()).ok(), expected, "method {method}");
            }
            assert_eq!(Inode::decode(&Inode { method, ..link }.encode()).is_ok(), method == 0, "method {method}");
        }
    }

    #[test]
    fn a_threshold_goes_with_files_and_directories_and_others_are_refused() {
        let dir = Inode { mode: S_IFDIR | 0o755, layout: Layout::DirHashed, parent: Ino(7), rdev: 0, ..sample() };
        for bytes in [0, 1, THRESHOLD_MIN - 1, THRESHOLD_MIN, 1 << 20, THRESHOLD_MAX, THRESHOLD_MAX + 1] {
            for inherited in [false, true] {
                for inode in [sample(), Inode { rdev: 9, ..sample() }, dir] {
                    let inode = Inode { threshold: Threshold { bytes, inherited }, ..inode };
                    let fits = bytes == 0 && !inherited || (THRESHOLD_MIN..=THRESHOLD_MAX).contains(&bytes);
                    let expected = fits.then_some(InodeSlot::Used(inode));
                    assert_eq!(Inode::decode(&inode.encode()).ok(), expected, "{bytes} {inherited}");
                }
            }
        }
        // The fields of other kinds are unchanged.
        let device =
            Inode { mode: S_IFBLK, layout: Layout::Empty, root: SlotRef::NONE, rdev: 5, parent: Ino(3), ..sample() };
        assert_eq!(Inode::decode(&device.encode()), Ok(InodeSlot::Used(device)));
    }

    #[test]
    fn zeros_and_freed_records_are_free() {
        assert_eq!(Inode::decode(&[0; INODE_RECORD]), Ok(InodeSlot::Free { generation: 0 }));
        assert_eq!(Inode::decode(&Inode::encode_free(3)), Ok(InodeSlot::Free { generation: 3 }));
    }

    #[test]
    fn a_layout_that_does_not_fit_the_type_is_refused() {
        let dir = Inode { mode: S_IFDIR | 0o755, ..sample() };
        assert!(Inode::decode(&dir.encode()).is_err());
        let empty = Inode { layout: Layout::Empty, ..sample() };
        assert!(Inode::decode(&empty.encode()).is_err());
    }
}
