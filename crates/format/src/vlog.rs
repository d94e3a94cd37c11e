//! What a virtual-log disk writes to the device below it: superblock, tail record, log records; the checkpoint of the map is in [`map`].
//!
//! The device is counted in blocks of 4096 bytes. Blocks 0 and 1 hold the superblock twice, blocks 2 and 3 the tail record by turns;
//! behind them is the log, and behind the log the map area, if there is one. A log record is one block that holds *pieces* of the map, each the whole state of
//! 8 logical blocks, and says which of their entries it changed. It names its own place, so that a copy of it elsewhere
//! is no record, and links to older records, so that all that count are reached from the newest.

pub mod map;

use crate::{FormatError, checksum, u16_at, u32_at, u64_at};
use map::Area;

/// Bytes of a block, logical or physical.
pub const BLOCK: usize = 4096;
/// Where the two copies of the superblock are (blocks).
pub const SUPERBLOCK_AT: [u32; 2] = [0, 1];
/// Where the tail record of an even and of an odd generation is (blocks).
pub const TAIL_AT: [u32; 2] = [2, 3];
/// The first block of the log.
pub const LOG_AT: u32 = 4;
/// Logical blocks of a piece.
pub const PIECE_BLOCKS: u32 = 8;
/// Pieces of a record at most.
pub const PIECES_MAX: usize = 52;
/// No record has a higher number.
const SEQ_MAX: u64 = 1 << 62;
/// Links of a record at most.
pub const LINKS_MAX: usize = 20;

const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVLg");
const TAIL_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVTl");
const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVRc");
const VERSION: u32 = 1;
/// Version of the superblock of a disk with a map area; an older program refuses it.
const VERSION_MAP: u32 = 2;
const PIECES_AT: usize = 48;
const PIECE_HEAD: usize = 5;
const LINKS_AT: usize = PIECES_AT + PIECES_MAX * PIECE_HEAD;
const LINK_BYTES: usize = 12;
const ENTRIES_AT: usize = 768;
const ENTRY_BYTES: usize = 8;
const PIECE_BYTES: usize = PIECE_BLOCKS as usize * ENTRY_BYTES;

const _: () = assert!(LINKS_AT + LINKS_MAX * LINK_BYTES <= ENTRIES_AT);
const _: () = assert!(ENTRIES_AT + PIECES_MAX * PIECE_BYTES == BLOCK);

/// Written once, by `format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub uuid: [u8; 16],
    /// Random and unknown to whoever writes data, so that no data can be made to look like a record.
    pub salt: u64,
    /// Size of the disk on offer (blocks).
    pub logical_blocks: u32,
    /// Blocks of the device that are used, those before the log included.
    pub physical_blocks: u32,
    /// Blocks of a segment; 0: data and records are written to any free block.
    pub segment_blocks: u32,
    /// Where checkpoints of the map are; none on a disk without segments, or made by an earlier version.
    pub area: Option<Area>,
}

/// What is known of the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The higher one of the two counts.
    pub generation: u64,
    /// The newest record when the disk was closed; `None` while it is open.
    pub root: Option<Link>,
    /// Records up to this number are durable, and blocks they left may have been used again.
    pub durable: u64,
    /// The newest checkpoint that is complete.
    pub checkpoint: Option<Checkpoint>,
}

/// A checkpoint of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// It holds what all records up to this number say, and may hold what later ones say.
    pub number: u64,
    /// Which directory and which list are its own: 0 or 1.
    pub side: u8,
}

/// A reference to a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Link {
    /// Its block.
    pub at: u32,
    /// Its number. Another one there: the record meant did not count any more, and its block was used again.
    pub seq: u64,
}

/// Where a logical block is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// 0: nowhere, it reads as zeros.
    pub at: u32,
    /// CRC32C of its bytes; 0 when it is nowhere.
    pub crc: u32,
}

/// The map of [`PIECE_BLOCKS`] logical blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first logical block is this times [`PIECE_BLOCKS`].
    pub index: u32,
    /// Bit *n*: the record changed entry *n*.
    pub changed: u8,
    pub entries: [Entry; PIECE_BLOCKS as usize],
}

/// A block of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its own block.
    pub at: u32,
    /// Higher than that of every record before it.
    pub seq: u64,
    /// Records up to this number, and all that they refer to, were durable when it was written.
    pub durable: u64,
    /// The next record of its segment, if there is one, lies so many blocks behind it.
    pub skip: u16,
    /// Pieces that existed when it was written: never fewer again.
    pub mapped: u32,
    pub pieces: Vec<Piece>,
    pub links: Vec<Link>,
}

/// `start`: what the checksum goes on from, 0 or a salt's.
fn sealed(mut block: Vec<u8>, start: u32) -> Vec<u8> {
    block.resize(BLOCK, 0);
    let crc = checksum(start, &block[4..]);
    block[..4].copy_from_slice(&crc.to_le_bytes());
    block
}

/// Checks a block; returns its version, which is at most `newest`.
fn opened(what: &'static str, magic: u64, newest: u32, block: &[u8], start: u32) -> Result<u32, FormatError> {
    if block.len() < BLOCK {
        return Err(FormatError::Short { what, expected: BLOCK, found: block.len() });
    }
    let found = u64_at(block, 8);
    if found != magic {
        return Err(FormatError::Magic { what, expected: magic, found });
    }
    let (expected, found) = (u32_at(block, 0), checksum(start, &block[4..BLOCK]));
    if expected != found {
        return Err(FormatError::Checksum { what, expected, found });
    }
    let found = u32_at(block, 4);
    if !(1..=newest).contains(&found) {
        return Err(FormatError::Version { what, expected: newest, found });
    }
    Ok(found)
}

fn opened_salted(what: &'static str, magic: u64, block: &[u8], superblock: &Superblock) -> Result<(), FormatError> {
    opened(what, magic, VERSION, block, salted(superblock)).map(|_| ())
}

fn sealed_salted(block: Vec<u8>, superblock: &Superblock) -> Vec<u8> {
    sealed(block, salted(superblock))
}

/// The salt is not stored: checksums go on from its own, so that a block gives it away to nobody.
fn salted(superblock: &Superblock) -> u32 {
    checksum(0, &superblock.salt.to_le_bytes())
}

fn head(magic: u64, version: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(BLOCK);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&magic.to_le_bytes());
    out
}

impl Superblock {
    pub fn encode(&self) -> Vec<u8> {
        let version = if self.area.is_some() { VERSION_MAP } else { VERSION };
        let mut out = head(SUPERBLOCK_MAGIC, version);
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.salt.to_le_bytes());
        for value in [self.logical_blocks, self.physical_blocks, self.segment_blocks] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        if let Some(area) = &self.area {
            for value in [area.at, area.map_pieces, area.list_blocks] {
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        sealed(out, 0)
    }

    pub fn decode(block: &[u8]) -> Result<Superblock, FormatError> {
        let what = "superblock of a virtual-log disk";
        let version = opened(what, SUPERBLOCK_MAGIC, VERSION_MAP, block, 0)?;
        let area = Area { at: u32_at(block, 52), map_pieces: u32_at(block, 56), list_blocks: u32_at(block, 60) };
        let superblock = Superblock {
            uuid: block[16..32].try_into().expect("sixteen bytes"),
            salt: u64_at(block, 32),
            logical_blocks: u32_at(block, 40),
            physical_blocks: u32_at(block, 44),
            segment_blocks: u32_at(block, 48),
            area: (version == VERSION_MAP).then_some(area),
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

    /// Whole segments of the log.
    pub fn segments(&self) -> u32 {
        (self.log_end() - LOG_AT).checked_div(self.segment_blocks).unwrap_or(0)
    }

    /// The log ends before this block.
    pub fn log_end(&self) -> u32 {
        self.area.as_ref().map_or(self.physical_blocks, |area| area.at)
    }

    /// Pieces of the map.
    pub fn pieces(&self) -> u32 {
        self.logical_blocks.div_ceil(PIECE_BLOCKS)
    }
}

impl Tail {
    pub fn encode(&self, superblock: &Superblock) -> Vec<u8> {
        let mut out = head(TAIL_MAGIC, VERSION);
        out.extend_from_slice(&superblock.salt.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        let root = self.root.unwrap_or_default();
        out.extend_from_slice(&root.seq.to_le_bytes());
        out.extend_from_slice(&root.at.to_le_bytes());
        out.extend_from_slice(&self.durable.to_le_bytes());
        let checkpoint = self.checkpoint.unwrap_or(Checkpoint { number: 0, side: 0 });
        out.extend_from_slice(&checkpoint.number.to_le_bytes());
        out.push(checkpoint.side);
        sealed(out, 0)
    }

    pub fn decode(block: &[u8], superblock: &Superblock) -> Result<Tail, FormatError> {
        let what = "tail record of a virtual-log disk";
        opened(what, TAIL_MAGIC, VERSION, block, 0)?;
        if u64_at(block, 16) != superblock.salt {
            return Err(FormatError::Range { what, field: "disk", found: u64_at(block, 16) });
        }
        let root = Link { seq: u64_at(block, 32), at: u32_at(block, 40) };
        let durable = u64_at(block, 44);
        if durable > SEQ_MAX || root.seq > SEQ_MAX {
            return Err(FormatError::Range { what, field: "number", found: durable.max(root.seq) });
        }
        let root = (root.at != 0).then_some(root);
        let (number, side) = (u64_at(block, 52), block[60]);
        if number > durable || side > 1 || (number > 0 && superblock.area.is_none()) {
            return Err(FormatError::Range { what, field: "checkpoint", found: number });
        }
        let checkpoint = (number > 0).then_some(Checkpoint { number, side });
        Ok(Tail { generation: u64_at(block, 24), root, durable, checkpoint })
    }
}

impl Record {
    pub fn encode(&self, superblock: &Superblock) -> Vec<u8> {
        debug_assert!(self.pieces.len() <= PIECES_MAX && self.links.len() <= LINKS_MAX);
        let mut out = head(RECORD_MAGIC, VERSION);
        out.extend_from_slice(&self.seq.to_le_bytes());
        out.extend_from_slice(&self.durable.to_le_bytes());
        out.extend_from_slice(&self.at.to_le_bytes());
        out.extend_from_slice(&self.skip.to_le_bytes());
        out.extend_from_slice(&[self.pieces.len() as u8, self.links.len() as u8]);
        out.extend_from_slice(&self.mapped.to_le_bytes());
        out.resize(PIECES_AT, 0);
        for piece in &self.pieces {
            out.extend_from_slice(&piece.index.to_le_bytes());
            out.push(piece.changed);
        }
        out.resize(LINKS_AT, 0);
        for link in &self.links {
            out.extend_from_slice(&link.at.to_le_bytes());
            out.extend_from_slice(&link.seq.to_le_bytes());
        }
        out.resize(ENTRIES_AT, 0);
        for entry in self.pieces.iter().flat_map(|piece| &piece.entries) {
            out.extend_from_slice(&entry.at.to_le_bytes());
            out.extend_from_slice(&entry.crc.to_le_bytes());
        }
        sealed_salted(out, superblock)
    }

    /// `at` is the block it was read from.
    pub fn decode(block: &[u8], at: u32, superblock: &Superblock) -> Result<Record, FormatError> {
        let what = "log record";
        opened_salted(what, RECORD_MAGIC, block, superblock)?;
        let bad = |field, found: u64| Err(FormatError::Range { what, field, found });
        let (seq, durable) = (u64_at(block, 16), u64_at(block, 24));
        if u32_at(block, 32) != at {
            return bad("place", u32_at(block, 32).into());
        }
        if seq == 0 || seq > SEQ_MAX || durable >= seq {
            return bad("number", seq);
        }
        let (pieces, links) = (block[38] as usize, block[39] as usize);
        if pieces > PIECES_MAX || links > LINKS_MAX {
            return bad("counts", u16_at(block, 38).into());
        }
        let mut record = Record {
            at,
            seq,
            durable,
            skip: u16_at(block, 36),
            mapped: u32_at(block, 40),
            pieces: Vec::with_capacity(pieces),
            links: Vec::with_capacity(links),
        };
        for n in 0..pieces {
            let head = PIECES_AT + n * PIECE_HEAD;
            let mut piece = Piece {
                index: u32_at(block, head),
                changed: block[head + 4],
                entries: [Entry::default(); PIECE_BLOCKS as usize],
            };
            let twice = record.pieces.iter().any(|other: &Piece| other.index == piece.index);
            if twice || piece.index >= superblock.pieces() {
                return bad("piece", piece.index.into());
            }
            let first = ENTRIES_AT + n * PIECE_BYTES;
            for (entry, at) in piece.entries.iter_mut().zip((first..).step_by(ENTRY_BYTES)) {
                *entry = Entry { at: u32_at(block, at), crc: u32_at(block, at + 4) };
                if entry.at != 0 && !(LOG_AT..superblock.log_end()).contains(&entry.at) {
                    return bad("entry", entry.at.into());
                }
            }
            record.pieces.push(piece);
        }
        for n in 0..links {
            let at = LINKS_AT + n * LINK_BYTES;
            let link = Link { at: u32_at(block, at), seq: u64_at(block, at + 4) };
            if !(LOG_AT..superblock.log_end()).contains(&link.at) || link.seq >= seq {
                return bad("link", link.at.into());
            }
            record.links.push(link);
        }
        Ok(record)
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
        }
    }

    fn record() -> Record {
        let mut entries = [Entry::default(); PIECE_BLOCKS as usize];
        entries[3] = Entry { at: 77, crc: 1234 };
        let piece = |index| Piece { index, changed: index as u8, entries };
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

    /// After every single-bit change it must be an error.
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
