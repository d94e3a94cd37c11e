//! Media format of a virtual-log disk: superblock and tail record. Log records ([`Record`]) and the
//! checkpoint of the map ([`map`]) are in their own files. The structs are the tables of
//! `docs/spec/vlog.md`.
//!
//! The device is divided into blocks of 4096 bytes. Blocks 0 and 1 hold two copies of the
//! superblock, blocks 2 and 3 alternately the tail record. The log follows, and then the map area,
//! if there is one. A log record is one block that holds *pieces* of the map, each the whole state
//! of 8 logical blocks, and says which of their entries it changed. It names its own place, so that
//! a copy elsewhere is not taken for a record. It links to older records, so that all records that
//! count can be reached from the newest.

pub mod map;
mod record;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{FormatError, Sums, checksum, seal};
use map::Area;
pub use record::{LINKS_MAX, LoggedPiece, PIECES_MAX, Record};

/// Bytes of a block, logical or physical.
pub const BLOCK: usize = 4096;
/// Blocks of the two copies of the superblock.
pub const SUPERBLOCK_AT: [u32; 2] = [0, 1];
/// Blocks of the tail records with even and odd generations.
pub const TAIL_AT: [u32; 2] = [2, 3];
/// The first block of the log.
pub const LOG_AT: u32 = 4;
/// Number of logical blocks in a piece.
pub const PIECE_BLOCKS: u32 = 8;
/// Largest number of a record.
const SEQ_MAX: u64 = 1 << 62;
const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVLg");
const TAIL_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVTl");
const VERSION: u32 = 1;
/// Added to the version of a superblock: for a disk with a map area, and for a disk whose blocks
/// have [`Sums::Xxh3`]. An older program refuses both.
const VERSION_MAP: u32 = 1;
const VERSION_SUMS: u32 = 2;

/// Header of every block that the log itself writes.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct BlockHeader {
    crc: U32,
    version: U32,
    magic: U64,
}

const _: () = assert!(size_of::<BlockHeader>() == 16);

/// The superblock, without the zeros after it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct VlogSuperblockRecord {
    header: BlockHeader,
    uuid: [u8; 16],
    salt: U64,
    logical_blocks: U32,
    physical_blocks: U32,
    segment_blocks: U32,
    area_at: U32,
    map_pieces: U32,
    list_blocks: U32,
}

const _: () = assert!(size_of::<VlogSuperblockRecord>() == 64);
const _: () = assert!(std::mem::offset_of!(VlogSuperblockRecord, list_blocks) == 60);

/// The tail record, without the zeros after it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct TailRecord {
    header: BlockHeader,
    salt: U64,
    generation: U64,
    root_seq: U64,
    root_at: U32,
    durable: U64,
    checkpoint: U64,
    side: u8,
}

const _: () = assert!(size_of::<TailRecord>() == 61);
const _: () = assert!(std::mem::offset_of!(TailRecord, checkpoint) == 52);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct EntryRecord {
    at: U32,
    sum: U32,
}

const _: () = assert!(size_of::<EntryRecord>() == 8);

/// The superblock, written once by `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub uuid: [u8; 16],
    /// Random and unknown to writers of data, so that no data can be made to look like a record.
    pub salt: u64,
    /// Size of the disk that is offered (blocks).
    pub logical_blocks: u32,
    /// Number of blocks used on the device, including those before the log.
    pub physical_blocks: u32,
    /// Blocks of a segment. 0: data and records are written to any free block.
    pub segment_blocks: u32,
    /// The area for checkpoints of the map. `None` on a disk without segments, or made by an
    /// earlier version.
    pub area: Option<Area>,
    /// The kind of sums of its blocks.
    pub sums: Sums,
}

/// The tail record: what is known of the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Of two tail records, the one with the higher generation counts.
    pub generation: u64,
    /// The newest record at the time the disk was closed; `None` while it is open.
    pub root: Option<Link>,
    /// Records up to this number are durable, and blocks they left may have been reused.
    pub durable: u64,
    /// The newest complete checkpoint.
    pub checkpoint: Option<Checkpoint>,
}

/// A checkpoint of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The checkpoint covers all records up to this number, and may include changes of later ones.
    pub number: u64,
    /// Selects its directory and its list: 0 or 1.
    pub side: u8,
}

/// A reference to a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Link {
    /// The block of the record.
    pub at: u32,
    /// The number of the record. If the block holds a different one, the record no longer counted
    /// and its block was reused.
    pub seq: u64,
}

/// The place of a logical block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The block on the device. 0: unmapped, reads as zeros.
    pub at: u32,
    /// The sum of its bytes; 0 if it is unmapped.
    pub sum: u32,
}

/// Makes a block that begins with `record`. The checksum continues from `start`: 0, or the checksum
/// of a salt.
fn sealed<T: IntoBytes + Immutable>(record: &T, start: u32) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK);
    block.extend_from_slice(record.as_bytes());
    block.resize(BLOCK, 0);
    seal(start, &mut block);
    block
}

/// Checks a block, whose version may be at most `newest`, and returns the struct at its start.
fn opened<'a, T: FromBytes + KnownLayout + Immutable + Unaligned>(
    what: &'static str,
    magic: u64,
    newest: u32,
    block: &'a [u8],
    start: u32,
) -> Result<&'a T, FormatError> {
    let Some(block) = block.get(..BLOCK) else {
        return Err(FormatError::Short { what, expected: BLOCK, found: block.len() });
    };
    let (header, _) = BlockHeader::ref_from_prefix(block).expect("a block has room for it");
    if header.magic != magic {
        return Err(FormatError::Magic { what, expected: magic, found: header.magic.get() });
    }
    let found = checksum(start, &block[4..]);
    if header.crc != found {
        return Err(FormatError::Checksum { what, expected: header.crc.get(), found });
    }
    let found = header.version.get();
    if !(1..=newest).contains(&found) {
        return Err(FormatError::Version { what, expected: newest, found });
    }
    let (record, _) = T::ref_from_prefix(block).expect("no struct is longer than a block");
    Ok(record)
}

fn opened_salted<'a, T: FromBytes + KnownLayout + Immutable + Unaligned>(
    what: &'static str,
    magic: u64,
    block: &'a [u8],
    superblock: &Superblock,
) -> Result<&'a T, FormatError> {
    opened(what, magic, VERSION, block, salted(superblock))
}

fn sealed_salted<T: IntoBytes + Immutable>(record: &T, superblock: &Superblock) -> Vec<u8> {
    sealed(record, salted(superblock))
}

/// Returns the checksum of the salt. Checksums continue from it, so that the salt is in no block
/// that uses it.
fn salted(superblock: &Superblock) -> u32 {
    checksum(0, &superblock.salt.to_le_bytes())
}

impl BlockHeader {
    /// Makes a header. `sealed` sets its checksum.
    fn new(magic: u64, version: u32) -> BlockHeader {
        BlockHeader { crc: 0.into(), version: version.into(), magic: magic.into() }
    }
}

impl From<Entry> for EntryRecord {
    fn from(entry: Entry) -> EntryRecord {
        EntryRecord { at: entry.at.into(), sum: entry.sum.into() }
    }
}

impl From<EntryRecord> for Entry {
    fn from(record: EntryRecord) -> Entry {
        Entry { at: record.at.get(), sum: record.sum.get() }
    }
}

impl Superblock {
    pub fn encode(&self) -> Vec<u8> {
        let version =
            VERSION + u32::from(self.area.is_some()) * VERSION_MAP + u32::from(self.sums.bit()) * VERSION_SUMS;
        let area = self.area.unwrap_or_default();
        let record = VlogSuperblockRecord {
            header: BlockHeader::new(SUPERBLOCK_MAGIC, version),
            uuid: self.uuid,
            salt: self.salt.into(),
            logical_blocks: self.logical_blocks.into(),
            physical_blocks: self.physical_blocks.into(),
            segment_blocks: self.segment_blocks.into(),
            area_at: area.at.into(),
            map_pieces: area.map_pieces.into(),
            list_blocks: area.list_blocks.into(),
        };
        sealed(&record, 0)
    }

    pub fn decode(block: &[u8]) -> Result<Superblock, FormatError> {
        let what = "superblock of a virtual-log disk";
        let record: &VlogSuperblockRecord =
            opened(what, SUPERBLOCK_MAGIC, VERSION + VERSION_MAP + VERSION_SUMS, block, 0)?;
        let more = record.header.version.get() - VERSION;
        let area = Area {
            at: record.area_at.get(),
            map_pieces: record.map_pieces.get(),
            list_blocks: record.list_blocks.get(),
        };
        let superblock = Superblock {
            uuid: record.uuid,
            salt: record.salt.get(),
            logical_blocks: record.logical_blocks.get(),
            physical_blocks: record.physical_blocks.get(),
            segment_blocks: record.segment_blocks.get(),
            area: (more & VERSION_MAP != 0).then_some(area),
            sums: Sums::of_bit(more & VERSION_SUMS != 0),
        };
        let Superblock { logical_blocks, physical_blocks, segment_blocks, .. } = superblock;
        if physical_blocks <= LOG_AT || logical_blocks == 0 || logical_blocks >= physical_blocks - LOG_AT {
            return Err(FormatError::Range { what, field: "blocks", found: logical_blocks.into() });
        }
        superblock.check_area(what)?;
        if segment_blocks != 0 && (!(32..=32768).contains(&segment_blocks) || superblock.segments() < 2) {
            return Err(FormatError::Range { what, field: "segment", found: segment_blocks.into() });
        }
        Ok(superblock)
    }

    /// Returns the number of whole segments in the log.
    pub fn segments(&self) -> u32 {
        (self.log_end() - LOG_AT).checked_div(self.segment_blocks).unwrap_or(0)
    }

    /// Returns the block after the last one of the log.
    pub fn log_end(&self) -> u32 {
        self.area.as_ref().map_or(self.physical_blocks, |area| area.at)
    }

    /// Returns the entry for a block with these bytes in this place.
    pub fn entry(&self, at: u32, block: &[u8]) -> Entry {
        Entry { at, sum: self.sums.of(block) }
    }

    /// Returns the number of pieces of the map.
    pub fn pieces(&self) -> u32 {
        self.logical_blocks.div_ceil(PIECE_BLOCKS)
    }
}

impl Tail {
    pub fn encode(&self, superblock: &Superblock) -> Vec<u8> {
        let root = self.root.unwrap_or_default();
        let checkpoint = self.checkpoint.unwrap_or(Checkpoint { number: 0, side: 0 });
        let record = TailRecord {
            header: BlockHeader::new(TAIL_MAGIC, VERSION),
            salt: superblock.salt.into(),
            generation: self.generation.into(),
            root_seq: root.seq.into(),
            root_at: root.at.into(),
            durable: self.durable.into(),
            checkpoint: checkpoint.number.into(),
            side: checkpoint.side,
        };
        sealed(&record, 0)
    }

    pub fn decode(block: &[u8], superblock: &Superblock) -> Result<Tail, FormatError> {
        let what = "tail record of a virtual-log disk";
        let record: &TailRecord = opened(what, TAIL_MAGIC, VERSION, block, 0)?;
        if record.salt != superblock.salt {
            return Err(FormatError::Range { what, field: "disk", found: record.salt.get() });
        }
        let root = Link { seq: record.root_seq.get(), at: record.root_at.get() };
        let durable = record.durable.get();
        if durable > SEQ_MAX || root.seq > SEQ_MAX {
            return Err(FormatError::Range { what, field: "number", found: durable.max(root.seq) });
        }
        let root = (root.at != 0).then_some(root);
        let (number, side) = (record.checkpoint.get(), record.side);
        if number > durable || side > 1 || (number > 0 && superblock.area.is_none()) {
            return Err(FormatError::Range { what, field: "checkpoint", found: number });
        }
        let checkpoint = (number > 0).then_some(Checkpoint { number, side });
        Ok(Tail { generation: record.generation.get(), root, durable, checkpoint })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn superblock() -> Superblock {
        Superblock {
            uuid: [7; 16],
            salt: 99,
            logical_blocks: 1000,
            physical_blocks: 1500,
            segment_blocks: 64,
            area: None,
            sums: Sums::Xxh3,
        }
    }

    fn record() -> Record {
        let mut entries = [Entry::default(); PIECE_BLOCKS as usize];
        entries[3] = Entry { at: 77, sum: 1234 };
        let piece = |index| LoggedPiece { index, changed: index as u8, entries };
        let link = |n: u32| Link { at: LOG_AT + n, seq: n as u64 };
        Record {
            at: 500,
            seq: 90,
            durable: 70,
            skip: 9,
            mapped: 11,
            pieces: (0..PIECES_MAX as u32).map(piece).collect(),
            links: (0..LINKS_MAX as u32).map(link).collect(),
        }
    }

    /// Checks that every single-bit change is an error.
    fn no_bit_may_flip<T>(mut bytes: Vec<u8>, decode: impl Fn(&[u8]) -> Result<T, FormatError>) {
        assert!(decode(&bytes).is_ok());
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in [0, 1, 40, BLOCK - 1] {
            assert!(decode(&bytes[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn everything_comes_back_and_no_bit_may_flip() {
        let disk = superblock();
        assert_eq!(Superblock::decode(&disk.encode()).unwrap(), disk);
        assert_eq!((disk.segments(), disk.pieces()), (23, 125));
        assert_eq!(Record::decode(&record().encode(&disk), 500, &disk).unwrap(), record());
        for root in [None, Some(Link { at: 44, seq: 3 })] {
            let tail = Tail { generation: 8, root, durable: 3, checkpoint: None };
            assert_eq!(Tail::decode(&tail.encode(&disk), &disk).unwrap(), tail);
            no_bit_may_flip(tail.encode(&disk), |bytes| Tail::decode(bytes, &disk));
        }
        no_bit_may_flip(disk.encode(), Superblock::decode);
        no_bit_may_flip(record().encode(&disk), |bytes| Record::decode(bytes, 500, &disk));
    }

    #[test]
    fn what_belongs_elsewhere_is_refused() {
        let (disk, other) = (superblock(), Superblock { salt: 98, ..superblock() });
        let bytes = record().encode(&disk);
        assert!(matches!(Record::decode(&bytes, 501, &disk), Err(FormatError::Range { field: "place", .. })));
        assert!(matches!(Record::decode(&bytes, 500, &other), Err(FormatError::Checksum { .. })));
        assert!(
            Tail::decode(&Tail { generation: 1, root: None, durable: 0, checkpoint: None }.encode(&disk), &other)
                .is_err()
        );
    }

    #[test]
    fn forged_fields_are_errors() {
        let disk = superblock();
        type Change = fn(&mut Record);
        let changes: [(&str, Change); 6] = [
            ("entry", |r| r.pieces[0].entries[5].at = 1500),
            ("entry", |r| r.pieces[51].entries[7].at = 3),
            ("piece", |r| r.pieces[2].index = 125),
            ("piece", |r| r.pieces[2].index = 1),
            ("link", |r| r.links[19].seq = 90),
            ("number", |r| r.durable = 90),
        ];
        for (expected, change) in changes {
            let mut forged = record();
            change(&mut forged);
            match Record::decode(&forged.encode(&disk), 500, &disk) {
                Err(FormatError::Range { field, .. }) => assert_eq!(field, expected),
                other => panic!("{expected}: {other:?}"),
            }
        }
        for (logical, physical, segment) in [(0, 100, 0), (96, 100, 0), (10, 3, 0), (50, 100, 64), (50, 100, 8)] {
            let forged = Superblock {
                logical_blocks: logical,
                physical_blocks: physical,
                segment_blocks: segment,
                ..superblock()
            };
            assert!(Superblock::decode(&forged.encode()).is_err(), "{forged:?}");
        }
    }
}
