//! A log record of a virtual-log disk: pieces of the map, links to older records.
//!
//! A record is one block, with three arrays at fixed places for its contents. Decoding checks that
//! every piece occurs once, and that entries and links point into the log. Left out: which records
//! count (`shoal_vlog`).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    BLOCK, BlockHeader, Entry, EntryRecord, LOG_AT, Link, PIECE_BLOCKS, SEQ_MAX, Superblock, VERSION, opened_salted,
    sealed_salted,
};
use crate::FormatError;

/// Maximum number of pieces in a record.
pub const PIECES_MAX: usize = 52;
/// Maximum number of links in a record.
pub const LINKS_MAX: usize = 20;
const RECORD_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVRc");

/// A log record: the whole block.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LogRecord {
    header: BlockHeader,
    seq: U64,
    durable: U64,
    at: U32,
    skip: U16,
    piece_count: u8,
    link_count: u8,
    mapped: U32,
    reserved: [u8; 4],
    pieces: [PieceRecord; 52],
    links: [LinkRecord; 20],
    reserved_end: [u8; 220],
    entries: [[EntryRecord; 8]; 52],
}

const _: () = assert!(size_of::<LogRecord>() == BLOCK);
const _: () = assert!(std::mem::offset_of!(LogRecord, links) == 308);
const _: () = assert!(std::mem::offset_of!(LogRecord, reserved_end) == 308 + LINKS_MAX * 12);
const _: () = assert!(std::mem::offset_of!(LogRecord, entries) == 768);
const _: () = assert!(768 + PIECES_MAX * 64 == BLOCK);

/// A piece of a log record. Its entries are elsewhere in the block.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PieceRecord {
    index: U32,
    changed: u8,
}

const _: () = assert!(size_of::<PieceRecord>() == 5);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LinkRecord {
    at: U32,
    seq: U64,
}

const _: () = assert!(size_of::<LinkRecord>() == 12);

/// The map of [`PIECE_BLOCKS`] logical blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedPiece {
    /// The first logical block is this times [`PIECE_BLOCKS`].
    pub index: u32,
    /// Bit *n*: the record changed entry *n*.
    pub changed: u8,
    pub entries: [Entry; PIECE_BLOCKS as usize],
}

/// A block of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The record's own block.
    pub at: u32,
    /// Higher than the number of every earlier record.
    pub seq: u64,
    /// Records up to this number, and everything they refer to, were durable when this record was
    /// written.
    pub durable: u64,
    /// Distance to the next record of its segment (blocks); 0 if there is none.
    pub skip: u16,
    /// Number of pieces that existed when it was written. It never decreases.
    pub mapped: u32,
    pub pieces: Vec<LoggedPiece>,
    pub links: Vec<Link>,
}

impl Record {
    pub fn encode(&self, superblock: &Superblock) -> Vec<u8> {
        let few = "at most `PIECES_MAX` pieces and `LINKS_MAX` links";
        assert!(self.pieces.len() <= PIECES_MAX && self.links.len() <= LINKS_MAX, "{few}");
        let mut record = LogRecord::new_zeroed();
        record.header = BlockHeader::new(RECORD_MAGIC, VERSION);
        record.seq = self.seq.into();
        record.durable = self.durable.into();
        record.at = self.at.into();
        record.skip = self.skip.into();
        record.piece_count = self.pieces.len().try_into().expect(few);
        record.link_count = self.links.len().try_into().expect(few);
        record.mapped = self.mapped.into();
        for (n, piece) in self.pieces.iter().enumerate() {
            record.pieces[n] = PieceRecord { index: piece.index.into(), changed: piece.changed };
            record.entries[n] = piece.entries.map(EntryRecord::from);
        }
        for (place, link) in record.links.iter_mut().zip(&self.links) {
            *place = LinkRecord { at: link.at.into(), seq: link.seq.into() };
        }
        sealed_salted(&record, superblock)
    }

    /// Decodes a record. `at` is the block it was read from.
    pub fn decode(block: &[u8], at: u32, superblock: &Superblock) -> Result<Record, FormatError> {
        let what = "log record";
        let found: &LogRecord = opened_salted(what, RECORD_MAGIC, block, superblock)?;
        let bad = |field, found: u64| Err(FormatError::Range { what, field, found });
        let (seq, durable) = (found.seq.get(), found.durable.get());
        if found.at != at {
            return bad("place", found.at.into());
        }
        if seq == 0 || seq > SEQ_MAX || durable >= seq {
            return bad("number", seq);
        }
        let (pieces, links) = (usize::from(found.piece_count), usize::from(found.link_count));
        if pieces > PIECES_MAX || links > LINKS_MAX {
            return bad("counts", u16::from_le_bytes([found.piece_count, found.link_count]).into());
        }
        let mut record = Record {
            at,
            seq,
            durable,
            skip: found.skip.get(),
            mapped: found.mapped.get(),
            pieces: Vec::with_capacity(pieces),
            links: Vec::with_capacity(links),
        };
        let log = LOG_AT..superblock.log_end();
        for (head, entries) in found.pieces[..pieces].iter().zip(&found.entries) {
            let piece =
                LoggedPiece { index: head.index.get(), changed: head.changed, entries: entries.map(Entry::from) };
            let twice = record.pieces.iter().any(|other: &LoggedPiece| other.index == piece.index);
            if twice || piece.index >= superblock.pieces() {
                return bad("piece", piece.index.into());
            }
            if let Some(entry) = piece.entries.iter().find(|entry| entry.at != 0 && !log.contains(&entry.at)) {
                return bad("entry", entry.at.into());
            }
            record.pieces.push(piece);
        }
        for link in &found.links[..links] {
            let link = Link { at: link.at.get(), seq: link.seq.get() };
            if !log.contains(&link.at) || link.seq >= seq {
                return bad("link", link.at.into());
            }
            record.links.push(link);
        }
        Ok(record)
    }
}
