//! The first pages of a region: superblock (page 0), anchors (page 1), roots (page 2).
//!
//! The superblock is written by `format`; later only features are added to it. The anchor says from
//! where the log must be replayed. Two slots of 512 bytes alternate by generation, so that a torn
//! write leaves the other one. The roots are ordinary region bytes, changed only through
//! transactions.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use crate::memory::MemoryKind;
use crate::segment::SEGMENT_ENTRY;
use crate::{FormatError, Lsn, Offset, PAGE, REGION_BYTES_MAX, SEGMENT, Sums, checksum};

pub const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"SHOALRGN");
pub const ANCHOR_MAGIC: u64 = u64::from_le_bytes(*b"SHOALANC");
/// The format version this crate reads and writes.
pub const VERSION: u32 = 1;
/// Incompatible feature: region and images agree on an incarnation, and an image says whether it
/// lacks anything. A program that does not keep these up to date must not open the region.
pub const FEATURE_INCARNATION: u64 = 1;
/// Incompatible feature: payloads of the log and pages of images have non-linear sums ([`Sums`]). A
/// store has it from its creation or never.
pub const FEATURE_SUMS: u64 = 2;
/// Incompatible feature: inode blocks and files may be packed. New stores have it. An older store
/// gets it before its first packed piece. In persistent memory the bit and the checksum change one
/// after the other, so a crash may leave only one of them. The checksum decides whether the store
/// has the feature.
pub const FEATURE_PACKED: u64 = 4;
/// Incompatible feature: inode records may have methods. A store gets it before its first method,
/// in the same way as [`FEATURE_PACKED`].
pub const FEATURE_METHODS: u64 = 8;
/// Incompatible feature: short packed files may have dictionaries. New stores have it. An older
/// store gets it before its first dictionary, in the same way as [`FEATURE_PACKED`].
pub const FEATURE_DICTIONARIES: u64 = 16;
/// Incompatible feature: directory buckets may be packed. New stores have it. An older store gets
/// it before its first packed bucket, in the same way as [`FEATURE_PACKED`].
pub const FEATURE_BUCKETS: u64 = 32;
/// Incompatible feature: payloads of packed objects may be in the spill file. A store gets it
/// before its first spilled payload, in the same way as [`FEATURE_PACKED`].
pub const FEATURE_SPILLED: u64 = 64;
/// Incompatible feature: there may be a list of bulk devices. A store gets it before its second
/// device, in the same way as [`FEATURE_PACKED`].
pub const FEATURE_DEVICES: u64 = 128;
/// Incompatible feature: records of files and directories may have thresholds. A store gets it
/// before its first threshold, in the same way as [`FEATURE_PACKED`].
pub const FEATURE_THRESHOLDS: u64 = 256;
/// Incompatible feature: the list of bulk devices may name tables of checksums. A store gets it
/// before its first table, in the same way as [`FEATURE_PACKED`].
pub const FEATURE_BLOCK_SUMS: u64 = 512;
/// Incompatible feature: the list of bulk devices may name areas of absorbed pages. New stores with
/// bulk storage have it. An older store gets it before its first area, in the same way as
/// [`FEATURE_PACKED`].
pub const FEATURE_ABSORBED: u64 = 1024;
/// Incompatible features this crate understands.
pub const FEATURES_INCOMPAT: u64 = FEATURE_INCARNATION
    | FEATURE_SUMS
    | FEATURE_PACKED
    | FEATURE_METHODS
    | FEATURE_DICTIONARIES
    | FEATURE_BUCKETS
    | FEATURE_SPILLED
    | FEATURE_DEVICES
    | FEATURE_THRESHOLDS
    | FEATURE_BLOCK_SUMS
    | FEATURE_ABSORBED;
/// Features that can be added to an existing store.
const FEATURES_ADDED: [u64; 9] = [
    FEATURE_PACKED,
    FEATURE_METHODS,
    FEATURE_DICTIONARIES,
    FEATURE_BUCKETS,
    FEATURE_SPILLED,
    FEATURE_DEVICES,
    FEATURE_THRESHOLDS,
    FEATURE_BLOCK_SUMS,
    FEATURE_ABSORBED,
];

pub const SUPERBLOCK_AT: u64 = 0;
/// Offsets of the two anchor slots.
pub const ANCHOR_AT: [u64; 2] = [PAGE, PAGE + 512];
pub const ROOTS_AT: Offset = Offset::new(2 * PAGE);
/// Offset of the segment table. Bulk bitmap and ring follow it.
pub const SEGMENT_TABLE_AT: Offset = Offset::new(4 * PAGE);

/// The superblock as it lies in page 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SuperblockRecord {
    pub magic: U64,
    pub version: U32,
    pub memory_kind: U32,
    pub features_compat: U64,
    pub features_incompat: U64,
    pub uuid: [u8; 16],
    pub region_bytes: U64,
    pub segment_table: U64,
    pub segment_count: U64,
    pub bulk_bitmap: U64,
    pub bulk_blocks: U64,
    pub ring: U64,
    pub ring_bytes: U64,
    pub threshold: U64,
    pub hash_seed: U64,
    pub created_ns: U64,
    pub reserved: [u8; 12],
    pub crc: U32,
}

const _: () = assert!(size_of::<SuperblockRecord>() == 144);
const _: () = assert!(std::mem::offset_of!(SuperblockRecord, crc) == 140);

/// The superblock, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub memory_kind: MemoryKind,
    /// Incompatible features the region has, all of them known.
    pub features: u64,
    pub uuid: [u8; 16],
    /// Bytes of the region's address space: the limit, not what is in use.
    pub region_bytes: u64,
    pub segment_table: Offset,
    pub segment_count: u64,
    /// Offset of the bulk bitmap, which has a bit for every bulk block (1 = in use). 0 if there is
    /// no bulk device.
    pub bulk_bitmap: Offset,
    pub bulk_blocks: u64,
    /// Log ring, or 0 for `logged` memory.
    pub ring: Offset,
    pub ring_bytes: u64,
    /// Files longer than this live on the bulk device (bytes).
    pub threshold: u64,
    /// Key of the directory hash.
    pub hash_seed: u64,
    /// When the store was formatted (ns since 1970).
    pub created_ns: u64,
}

/// Parameters of `format`; [`Superblock::layout`] derives the offsets.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    pub memory_kind: MemoryKind,
    pub uuid: [u8; 16],
    pub region_bytes: u64,
    pub bulk_blocks: u64,
    pub ring_bytes: u64,
    pub threshold: u64,
    pub hash_seed: u64,
    pub created_ns: u64,
}

impl Superblock {
    /// Lays out the fixed areas: segment table, bulk bitmap, ring. Each begins on a page.
    pub fn layout(geometry: Geometry) -> Result<Superblock, FormatError> {
        let region_bytes = geometry.region_bytes / SEGMENT * SEGMENT;
        let segment_count = region_bytes / SEGMENT;
        let table_end = SEGMENT_TABLE_AT + (segment_count * SEGMENT_ENTRY).next_multiple_of(PAGE);
        let bitmap_bytes = geometry.bulk_blocks.div_ceil(64) * 8;
        let bitmap_end = table_end + bitmap_bytes.next_multiple_of(PAGE);
        let ring_bytes = if geometry.memory_kind.has_ring() { geometry.ring_bytes / PAGE * PAGE } else { 0 };
        let superblock = Superblock {
            memory_kind: geometry.memory_kind,
            features: FEATURE_SUMS
                | FEATURE_PACKED
                | FEATURE_DICTIONARIES
                | FEATURE_BUCKETS
                | if geometry.bulk_blocks > 0 { FEATURE_ABSORBED } else { 0 }
                | if geometry.memory_kind.has_incarnations() { FEATURE_INCARNATION } else { 0 },
            uuid: geometry.uuid,
            region_bytes,
            segment_table: SEGMENT_TABLE_AT,
            segment_count,
            bulk_bitmap: if geometry.bulk_blocks == 0 { Offset::ZERO } else { table_end },
            bulk_blocks: geometry.bulk_blocks,
            ring: if ring_bytes == 0 { Offset::ZERO } else { bitmap_end },
            ring_bytes,
            threshold: geometry.threshold,
            hash_seed: geometry.hash_seed,
            created_ns: geometry.created_ns,
        };
        superblock.validate()?;
        Ok(superblock)
    }

    /// Returns the kind of sums in its log and images.
    pub fn sums(&self) -> Sums {
        Sums::of_bit(self.features & FEATURE_SUMS != 0)
    }

    /// Returns the number of segments taken by the fixed areas, from segment 0.
    pub fn reserved_segments(&self) -> u64 {
        self.fixed_end().get().div_ceil(SEGMENT)
    }

    fn fixed_end(&self) -> Offset {
        let table_end = SEGMENT_TABLE_AT + (self.segment_count * SEGMENT_ENTRY).next_multiple_of(PAGE);
        let bitmap_end = table_end + (self.bulk_blocks.div_ceil(64) * 8).next_multiple_of(PAGE);
        bitmap_end + self.ring_bytes
    }

    fn validate(&self) -> Result<(), FormatError> {
        let what = "superblock";
        let range = |field, found| Err(FormatError::Range { what, field, found });
        if self.region_bytes > REGION_BYTES_MAX || !self.region_bytes.is_multiple_of(SEGMENT) {
            return range("region size", self.region_bytes);
        }
        if self.segment_count != self.region_bytes / SEGMENT || self.segment_table != SEGMENT_TABLE_AT {
            return range("segment table", self.segment_count);
        }
        if self.bulk_blocks > 1 << 40 {
            return range("bulk blocks", self.bulk_blocks);
        }
        let table_end = SEGMENT_TABLE_AT + (self.segment_count * SEGMENT_ENTRY).next_multiple_of(PAGE);
        if self.bulk_bitmap != if self.bulk_blocks == 0 { Offset::ZERO } else { table_end } {
            return range("bulk bitmap", self.bulk_bitmap.get());
        }
        if self.memory_kind.has_ring() != (self.ring_bytes != 0)
            || self.ring_bytes > REGION_BYTES_MAX
            || !self.ring_bytes.is_multiple_of(PAGE)
            || (self.ring_bytes != 0 && self.ring.get() != self.fixed_end().get() - self.ring_bytes)
        {
            return range("ring", self.ring_bytes);
        }
        if self.reserved_segments() + 4 > self.segment_count {
            return range("region size", self.region_bytes);
        }
        Ok(())
    }

    pub fn encode(&self) -> [u8; 144] {
        let mut record = SuperblockRecord {
            magic: SUPERBLOCK_MAGIC.into(),
            version: VERSION.into(),
            memory_kind: self.memory_kind.properties().code.into(),
            features_compat: 0.into(),
            features_incompat: self.features.into(),
            uuid: self.uuid,
            region_bytes: self.region_bytes.into(),
            segment_table: self.segment_table.get().into(),
            segment_count: self.segment_count.into(),
            bulk_bitmap: self.bulk_bitmap.get().into(),
            bulk_blocks: self.bulk_blocks.into(),
            ring: self.ring.get().into(),
            ring_bytes: self.ring_bytes.into(),
            threshold: self.threshold.into(),
            hash_seed: self.hash_seed.into(),
            created_ns: self.created_ns.into(),
            reserved: [0; 12],
            crc: 0.into(),
        };
        record.crc = checksum(0, &record.as_bytes()[..140]).into();
        record.as_bytes().try_into().expect("size is asserted")
    }

    /// Decodes and validates. The order (magic, version, checksum, fields) gives the most useful
    /// error.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, FormatError> {
        let what = "superblock";
        let Ok((mut record, _)) = SuperblockRecord::read_from_prefix(bytes) else {
            return Err(FormatError::Short { what, expected: 144, found: bytes.len() });
        };
        if record.magic.get() != SUPERBLOCK_MAGIC {
            return Err(FormatError::Magic { what, expected: SUPERBLOCK_MAGIC, found: record.magic.get() });
        }
        if record.version.get() != VERSION {
            return Err(FormatError::Version { what, expected: VERSION, found: record.version.get() });
        }
        let found = checksum(0, &record.as_bytes()[..140]);
        if record.crc.get() != found {
            let features = record.features_incompat.get();
            let fits = |added: &u64| {
                record.features_incompat = (features ^ added).into();
                record.crc.get() == checksum(0, &record.as_bytes()[..140])
            };
            if !FEATURES_ADDED.iter().any(fits) {
                return Err(FormatError::Checksum { what, expected: record.crc.get(), found });
            }
        }
        let unknown = record.features_incompat.get() & !FEATURES_INCOMPAT;
        if unknown != 0 {
            return Err(FormatError::Features { what, bits: unknown });
        }
        let code = record.memory_kind.get();
        let Some(memory_kind) = MemoryKind::of_code(code) else {
            return Err(FormatError::Range { what, field: "memory kind", found: u64::from(code) });
        };
        let superblock = Superblock {
            memory_kind,
            features: record.features_incompat.get(),
            uuid: record.uuid,
            region_bytes: record.region_bytes.get(),
            segment_table: Offset::new(record.segment_table.get()),
            segment_count: record.segment_count.get(),
            bulk_bitmap: Offset::new(record.bulk_bitmap.get()),
            bulk_blocks: record.bulk_blocks.get(),
            ring: Offset::new(record.ring.get()),
            ring_bytes: record.ring_bytes.get(),
            threshold: record.threshold.get(),
            hash_seed: record.hash_seed.get(),
            created_ns: record.created_ns.get(),
        };
        superblock.validate()?;
        Ok(superblock)
    }
}

/// Says from where the log must be replayed over the bytes that contain this anchor.
///
/// In an image, the anchor is written last, when pages and log are durable ("sealed"). In a region
/// with a ring, it holds the ring's head, which moves when every record before it has been applied
/// and written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AnchorRecord {
    pub magic: U64,
    /// Grows with every anchor written; the highest valid one counts.
    pub generation: U64,
    pub uuid: [u8; 16],
    /// First log position to replay.
    pub replay_lsn: U64,
    /// Position up to which the log was durable when the anchor was written.
    pub sealed_lsn: U64,
    /// Chain value the record at `replay_lsn` must carry.
    pub replay_salt: U32,
    /// Bit 0: written by a clean unmount.
    pub flags: U32,
    /// Boot of the machine that wrote it: tells a process crash from a power loss.
    pub boot_id: [u8; 16],
    /// Bytes of the region that carry data. All bytes after them are zero.
    pub used_bytes: U64,
    /// Number of times the region was restored from an image. Region and images of one store have
    /// the same value.
    pub incarnation: U64,
    pub reserved: [u8; 36],
    pub crc: U32,
}

const _: () = assert!(size_of::<AnchorRecord>() == 128);
const _: () = assert!(std::mem::offset_of!(AnchorRecord, crc) == 124);

/// Flag of an anchor written by a clean unmount.
pub const ANCHOR_CLEAN: u32 = 1;

impl AnchorRecord {
    /// Sets magic and checksum.
    pub fn sealed(mut self) -> AnchorRecord {
        self.magic = ANCHOR_MAGIC.into();
        self.crc = checksum(0, &self.as_bytes()[..124]).into();
        self
    }

    /// Returns the first log position to replay.
    pub fn replay_from(&self) -> Lsn {
        Lsn::new(self.replay_lsn.get())
    }

    /// Returns the position up to which the log was durable when the anchor was written.
    pub fn sealed_to(&self) -> Lsn {
        Lsn::new(self.sealed_lsn.get())
    }

    /// Decodes one slot. A slot that never held an anchor is an error of kind `Magic`.
    pub fn decode(bytes: &[u8]) -> Result<AnchorRecord, FormatError> {
        let what = "anchor";
        let Ok((record, _)) = AnchorRecord::read_from_prefix(bytes) else {
            return Err(FormatError::Short { what, expected: 128, found: bytes.len() });
        };
        if record.magic.get() != ANCHOR_MAGIC {
            return Err(FormatError::Magic { what, expected: ANCHOR_MAGIC, found: record.magic.get() });
        }
        let found = checksum(0, &record.as_bytes()[..124]);
        if record.crc.get() != found {
            return Err(FormatError::Checksum { what, expected: record.crc.get(), found });
        }
        if record.sealed_lsn.get() < record.replay_lsn.get() {
            return Err(FormatError::Range { what, field: "sealed lsn", found: record.sealed_lsn.get() });
        }
        Ok(record)
    }

    /// Returns the newest valid anchor of page 1 (`page` begins at [`PAGE`]).
    pub fn newest(page: &[u8]) -> Result<AnchorRecord, FormatError> {
        let slots = [Self::decode(&page[..512]), Self::decode(&page[512..1024])];
        match slots {
            [Ok(a), Ok(b)] => Ok(if a.generation.get() > b.generation.get() { a } else { b }),
            [Ok(a), Err(_)] | [Err(_), Ok(a)] => Ok(a),
            [Err(a), Err(b)] => Err(if matches!(a, FormatError::Magic { .. }) { b } else { a }),
        }
    }
}

/// The roots: where the file system finds its tables. Changed only through transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Roots {
    /// Root node of the inode table (a [`crate::SlotRef`]).
    pub inode_root: U64,
    /// Levels of the inode table above the inode blocks.
    pub inode_height: U32,
    /// Upper bound of the inode generations in blocks that were given back.
    pub generation_floor: U32,
    /// Every inode block has a number below this. Empty blocks below it may be absent.
    pub inode_blocks: U64,
    /// Inodes in use when the store was last unmounted cleanly. Recovery counts them anew.
    pub inodes: U64,
    /// Directories among them.
    pub directories: U64,
    /// Files whose data are on the bulk device.
    pub large_files: U64,
    /// Free segments that are kept back: a limit below that of the layout.
    pub withheld_segments: U64,
    /// Free bulk blocks that are kept back.
    pub withheld_blocks: U64,
    /// Two copies of the tables for decoding packed inodes, or 0 ([`crate::SlotRef`]s).
    pub inode_tables: [U64; 2],
    /// Two copies of the list of dictionaries for decoding packed files, or 0
    /// ([`crate::SlotRef`]s).
    pub dictionaries: [U64; 2],
    /// Inode number of the spill file, or 0.
    pub spill_file: U32,
    /// Generation of the spill file. If the file was lost, its inode number may have another user.
    pub spill_generation: U32,
}

const _: () = assert!(size_of::<Roots>() == 104);

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry() -> Geometry {
        Geometry {
            memory_kind: MemoryKind::Battery,
            uuid: [7; 16],
            region_bytes: 64 << 20,
            bulk_blocks: 1000,
            ring_bytes: 4 << 20,
            threshold: 1 << 20,
            hash_seed: 9,
            created_ns: 1,
        }
    }

    #[test]
    fn a_superblock_round_trips_and_every_flipped_bit_is_seen() {
        let superblock = Superblock::layout(geometry()).unwrap();
        let bytes = superblock.encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            // The checksum decides about these bits.
            let first = std::mem::offset_of!(SuperblockRecord, features_incompat) * 8;
            let is_added = FEATURES_ADDED.iter().any(|added| bit == first + added.ilog2() as usize);
            let expected = is_added.then_some(superblock);
            assert_eq!(Superblock::decode(&flipped).ok(), expected, "bit {bit}");
        }
        assert!(Superblock::decode(&bytes[..100]).is_err());
    }

    #[test]
    fn a_feature_added_in_place_is_there_from_its_checksum_on() {
        let layout = Superblock::layout(geometry()).unwrap();
        for added in FEATURES_ADDED {
            let with = Superblock { features: layout.features | added, ..layout };
            let without = Superblock { features: layout.features & !added, ..layout };
            let mut bytes = without.encode();
            bytes[24..32].copy_from_slice(&with.encode()[24..32]);
            assert_eq!(Superblock::decode(&bytes), Ok(without));
            bytes[136..].copy_from_slice(&with.encode()[136..]);
            assert_eq!(Superblock::decode(&bytes), Ok(with));
        }
    }

    #[test]
    fn a_region_too_small_for_its_tables_is_refused() {
        let small = Geometry { region_bytes: 4 << 20, ..geometry() };
        assert!(matches!(Superblock::layout(small), Err(FormatError::Range { field: "region size", .. })));
    }

    #[test]
    fn the_newest_valid_anchor_counts() {
        let anchor = |generation: u64| {
            let mut a = AnchorRecord::new_zeroed_for_tests();
            a.generation = generation.into();
            a.sealed()
        };
        let mut page = [0u8; 4096];
        assert!(AnchorRecord::newest(&page).is_err());
        page[..128].copy_from_slice(anchor(4).as_bytes());
        assert_eq!(AnchorRecord::newest(&page).unwrap().generation.get(), 4);
        page[512..640].copy_from_slice(anchor(5).as_bytes());
        assert_eq!(AnchorRecord::newest(&page).unwrap().generation.get(), 5);
        page[600] ^= 1;
        assert_eq!(AnchorRecord::newest(&page).unwrap().generation.get(), 4);
    }

    impl AnchorRecord {
        fn new_zeroed_for_tests() -> AnchorRecord {
            AnchorRecord::read_from_bytes(&[0; 128]).unwrap()
        }
    }
}
