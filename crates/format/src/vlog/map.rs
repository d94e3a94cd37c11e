//! The map area of a virtual-log disk: the layout and contents of checkpoints of the map.
//!
//! Owns: the places of map blocks, directories and lists ([`Area`]), and the format of these three
//! kinds of blocks. A map block holds the entries of some pieces and names the record that holds
//! each piece. It has two places, written alternately. A directory names for every map block the
//! place that counts and its checksum, so that an older version is never taken for the newer one. A
//! list names the segments that may have been opened since a checkpoint began. Left out: when they
//! are written, and what is durable before what (`shoal_vlog`).

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{
    BLOCK, BlockHeader, Entry, EntryRecord, LOG_AT, PIECE_BLOCKS, Superblock, VERSION, opened_salted, sealed_salted,
};
use crate::FormatError;

const MAP_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVMp");
const DIRECTORY_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVDr");
const LIST_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVLs");
/// Maximum number of pieces in a map block.
pub const MAP_PIECES_MAX: u32 = 59;
/// Number of map blocks that a directory block describes.
pub const DIRECTORY_ENTRIES: u32 = 944;
/// Maximum number of segments in a list block.
pub const LIST_SEGMENTS_MAX: usize = 1000;

/// A map block.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MapRecord {
    header: BlockHeader,
    number: U64,
    index: U32,
    reserved: [u8; 36],
    pieces: [MapPieceRecord; 59],
    reserved_end: [u8; 20],
}

const _: () = assert!(size_of::<MapRecord>() == BLOCK);
const _: () = assert!(std::mem::offset_of!(MapRecord, pieces) == 64);
const _: () = assert!(std::mem::offset_of!(MapRecord, reserved_end) == 64 + MAP_PIECES_MAX as usize * 68);

/// A piece of a map block.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MapPieceRecord {
    record: U32,
    entries: [EntryRecord; 8],
}

const _: () = assert!(size_of::<MapPieceRecord>() == 68);

/// A block of a directory.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DirectoryRecord {
    header: BlockHeader,
    number: U64,
    index: U32,
    reserved: [u8; 4],
    slots: [u8; 118],
    reserved_slots: [u8; 2],
    present: [u8; 118],
    reserved_present: [u8; 2],
    sums: [U32; 944],
    reserved_end: [u8; 48],
}

const _: () = assert!(size_of::<DirectoryRecord>() == BLOCK);
const _: () = assert!(std::mem::offset_of!(DirectoryRecord, present) == 152);
const _: () = assert!(std::mem::offset_of!(DirectoryRecord, sums) == 272);
const _: () = assert!(std::mem::offset_of!(DirectoryRecord, reserved_end) == 272 + DIRECTORY_ENTRIES as usize * 4);

/// A block of a list.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct ListRecord {
    header: BlockHeader,
    number: U64,
    after: U64,
    index: U32,
    count: U32,
    reserved: [u8; 24],
    segments: [U32; 1000],
    reserved_end: [u8; 32],
}

const _: () = assert!(size_of::<ListRecord>() == BLOCK);
const _: () = assert!(std::mem::offset_of!(ListRecord, segments) == 64);
const _: () = assert!(std::mem::offset_of!(ListRecord, reserved_end) == 64 + LIST_SEGMENTS_MAX * 4);

/// Position and division of the map area.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Its first block.
    pub at: u32,
    /// Number of pieces in a map block.
    pub map_pieces: u32,
    /// Number of blocks of a list.
    pub list_blocks: u32,
}

/// A piece in a map block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapPiece {
    /// The block of the record that holds the piece. 0: no record ever held it.
    pub record: u32,
    pub entries: [Entry; PIECE_BLOCKS as usize],
}

/// A block of a directory. Bit *n* of the bitmaps and checksum *n* belong to its map block *n*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Number of its checkpoint.
    pub number: u64,
    /// Index of the block within the directory.
    pub index: u32,
    /// For each map block, which of its two places counts.
    pub slots: [u8; DIRECTORY_ENTRIES as usize / 8],
    /// Clear if none of the map block's pieces exists, so that nothing was written.
    pub present: [u8; DIRECTORY_ENTRIES as usize / 8],
    pub sums: Vec<u32>,
}

/// A block of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Number of the checkpoint that began with this list.
    pub number: u64,
    /// Number of the complete checkpoint when this list began. 0: there was none.
    pub after: u64,
    /// Index of the block within the list.
    pub index: u32,
    pub segments: Vec<u32>,
}

impl Superblock {
    /// Returns the number of blocks of the whole map; 0 for a disk without an area.
    pub fn map_blocks(&self) -> u32 {
        self.area.map_or(0, |area| self.pieces().div_ceil(area.map_pieces.max(1)))
    }

    /// Returns the number of blocks of a directory.
    pub fn directory_blocks(&self) -> u32 {
        self.map_blocks().div_ceil(DIRECTORY_ENTRIES)
    }

    /// Returns the block of version `slot` of a map block.
    pub fn map_at(&self, slot: u8, index: u32) -> u32 {
        self.area_at() + u32::from(slot) * self.map_blocks() + index
    }

    pub fn directory_at(&self, side: u8, index: u32) -> u32 {
        self.area_at() + 2 * self.map_blocks() + u32::from(side) * self.directory_blocks() + index
    }

    pub fn list_at(&self, side: u8, copy: u8, index: u32) -> u32 {
        let lists = self.area_at() + 2 * (self.map_blocks() + self.directory_blocks());
        lists + (2 * u32::from(side) + u32::from(copy)) * self.list_blocks() + index
    }

    pub fn list_blocks(&self) -> u32 {
        self.area.map_or(0, |area| area.list_blocks)
    }

    fn area_at(&self) -> u32 {
        self.area.map_or(0, |area| area.at)
    }

    /// Returns the number of blocks in the area of a disk with this many logical blocks.
    pub fn area_blocks(logical_blocks: u32, map_pieces: u32, list_blocks: u32) -> u64 {
        let map = logical_blocks.div_ceil(PIECE_BLOCKS).div_ceil(map_pieces);
        2 * (u64::from(map) + u64::from(map.div_ceil(DIRECTORY_ENTRIES))) + 4 * u64::from(list_blocks)
    }

    pub(super) fn check_area(&self, what: &'static str) -> Result<(), FormatError> {
        let Some(area) = self.area else { return Ok(()) };
        let bad = |field, found: u32| Err(FormatError::Range { what, field, found: found.into() });
        if !(1..=MAP_PIECES_MAX).contains(&area.map_pieces) {
            return bad("pieces of a map block", area.map_pieces);
        }
        if area.list_blocks == 0 {
            return bad("blocks of a list", area.list_blocks);
        }
        let blocks = Superblock::area_blocks(self.logical_blocks, area.map_pieces, area.list_blocks);
        let fits = area.at > LOG_AT && u64::from(area.at) + blocks <= u64::from(self.physical_blocks);
        if !fits || self.segment_blocks == 0 || self.logical_blocks >= area.at - LOG_AT {
            return bad("map area", area.at);
        }
        Ok(())
    }
}

/// Encodes map block `index` with its pieces. Returns the block and its checksum.
pub fn encode_map(superblock: &Superblock, number: u64, index: u32, pieces: &[MapPiece]) -> (Vec<u8>, u32) {
    let mut record = MapRecord::new_zeroed();
    record.header = BlockHeader::new(MAP_MAGIC, VERSION);
    record.number = number.into();
    record.index = index.into();
    for (n, piece) in pieces.iter().enumerate() {
        let entries = piece.entries.map(EntryRecord::from);
        record.pieces[n] = MapPieceRecord { record: piece.record.into(), entries };
    }
    let block = sealed_salted(&record, superblock);
    let (header, _) = BlockHeader::ref_from_prefix(&block).expect("a block has room for it");
    let sum = header.crc.get();
    (block, sum)
}

/// Passes the pieces of map block `index` to `take`, if the block is the version with checksum
/// `sum`.
pub fn decode_map(
    superblock: &Superblock,
    block: &[u8],
    index: u32,
    sum: u32,
    mut take: impl FnMut(u32, MapPiece),
) -> Result<(), FormatError> {
    let what = "map block";
    let found: &MapRecord = opened_salted(what, MAP_MAGIC, block, superblock)?;
    if found.header.crc != sum {
        return Err(FormatError::Checksum { what, expected: sum, found: found.header.crc.get() });
    }
    let bad = |field, found: u32| Err(FormatError::Range { what, field, found: found.into() });
    if found.index != index {
        return bad("index", found.index.get());
    }
    let log = LOG_AT..superblock.log_end();
    let each = superblock.area.map_or(1, |area| area.map_pieces);
    let first = index * each;
    for (index, piece) in (first..superblock.pieces().min(first + each)).zip(&found.pieces) {
        let piece = MapPiece { record: piece.record.get(), entries: piece.entries.map(Entry::from) };
        let wrong = |entry: &&Entry| entry.at != 0 && (!log.contains(&entry.at) || piece.record == 0);
        if let Some(entry) = piece.entries.iter().find(wrong) {
            return bad("entry", entry.at);
        }
        if piece.record != 0 && !log.contains(&piece.record) {
            return bad("record", piece.record);
        }
        take(index, piece);
    }
    Ok(())
}

impl Directory {
    pub fn new(number: u64, index: u32) -> Directory {
        let bits = [0; DIRECTORY_ENTRIES as usize / 8];
        Directory { number, index, slots: bits, present: bits, sums: vec![0; DIRECTORY_ENTRIES as usize] }
    }

    /// Returns the place and checksum of its map block *n*.
    pub fn get(&self, n: usize) -> Option<(u8, u32)> {
        let bit = |bits: &[u8]| bits[n / 8] >> (n % 8) & 1;
        (bit(&self.present) == 1).then(|| (bit(&self.slots), self.sums[n]))
    }

    pub fn set(&mut self, n: usize, slot: u8, sum: u32) {
        self.present[n / 8] |= 1 << (n % 8);
        self.slots[n / 8] |= slot << (n % 8);
        self.sums[n] = sum;
    }

    pub fn encode(&self, superblock: &Superblock) -> Vec<u8> {
        let mut record = DirectoryRecord::new_zeroed();
        record.header = BlockHeader::new(DIRECTORY_MAGIC, VERSION);
        record.number = self.number.into();
        record.index = self.index.into();
        record.slots = self.slots;
        record.present = self.present;
        record.sums.iter_mut().zip(&self.sums).for_each(|(place, &sum)| *place = sum.into());
        sealed_salted(&record, superblock)
    }

    pub fn decode(block: &[u8], superblock: &Superblock) -> Result<Directory, FormatError> {
        let record: &DirectoryRecord = opened_salted("directory of the map", DIRECTORY_MAGIC, block, superblock)?;
        Ok(Directory {
            number: record.number.get(),
            index: record.index.get(),
            slots: record.slots,
            present: record.present,
            sums: record.sums.iter().map(|sum| sum.get()).collect(),
        })
    }
}

impl List {
    pub fn encode(&self, superblock: &Superblock) -> Vec<u8> {
        assert!(self.segments.len() <= LIST_SEGMENTS_MAX, "{} segments in a list block", self.segments.len());
        let mut record = ListRecord::new_zeroed();
        record.header = BlockHeader::new(LIST_MAGIC, VERSION);
        record.number = self.number.into();
        record.after = self.after.into();
        record.index = self.index.into();
        record.count = u32::try_from(self.segments.len()).expect("at most `LIST_SEGMENTS_MAX`").into();
        record.segments.iter_mut().zip(&self.segments).for_each(|(place, &segment)| *place = segment.into());
        sealed_salted(&record, superblock)
    }

    pub fn decode(block: &[u8], superblock: &Superblock) -> Result<List, FormatError> {
        let what = "list of segments";
        let record: &ListRecord = opened_salted(what, LIST_MAGIC, block, superblock)?;
        let count = record.count.get();
        let Some(segments) = record.segments.get(..count as usize) else {
            return Err(FormatError::Range { what, field: "count", found: count.into() });
        };
        let segments: Vec<u32> = segments.iter().map(|segment| segment.get()).collect();
        if let Some(&segment) = segments.iter().find(|&&segment| segment >= superblock.segments()) {
            return Err(FormatError::Range { what, field: "segment", found: segment.into() });
        }
        let (number, after, index) = (record.number.get(), record.after.get(), record.index.get());
        Ok(List { number, after, index, segments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        let area = Area { at: 1300, map_pieces: 40, list_blocks: 9 };
        Superblock { area: Some(area), ..crate::vlog::tests::superblock() }
    }

    fn pieces(count: u32) -> Vec<MapPiece> {
        let mut piece = MapPiece { record: 5, ..MapPiece::default() };
        piece.entries[3] = Entry { at: 1299, sum: 77 };
        vec![piece; count as usize]
    }

    #[test]
    fn what_an_area_holds_comes_back_and_no_bit_may_flip() {
        let disk = superblock();
        assert_eq!(Superblock::decode(&disk.encode()).unwrap(), disk);
        assert_eq!((disk.segments(), disk.map_blocks(), disk.directory_blocks()), (20, 4, 1));
        assert_eq!(disk.list_at(1, 1, 8), 1300 + 8 + 2 + 35);
        assert_eq!(Superblock::area_blocks(1000, 40, 9), 46);
        let (block, sum) = encode_map(&disk, 12, 3, &pieces(5));
        let decode = |block: &[u8]| {
            let mut found = vec![];
            decode_map(&disk, block, 3, sum, |piece, entry| found.push((piece, entry))).map(|()| found)
        };
        let expected: Vec<_> = (120..125).zip(pieces(5)).collect();
        assert_eq!(decode(&block).unwrap(), expected);
        let mut directory = Directory::new(12, 0);
        directory.set(943, 1, sum);
        directory.set(0, 0, 4);
        assert_eq!((directory.get(943), directory.get(0), directory.get(1)), (Some((1, sum)), Some((0, 4)), None));
        assert_eq!(Directory::decode(&directory.encode(&disk), &disk).unwrap(), directory);
        let list = List { number: 12, after: 9, index: 3, segments: (0..20).collect() };
        assert_eq!(List::decode(&list.encode(&disk), &disk).unwrap(), list);
        for n in 0..3 {
            let mut bytes = [block.clone(), directory.encode(&disk), list.encode(&disk)][n].clone();
            for bit in 0..BLOCK * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                let refused = [
                    decode(&bytes).is_err(),
                    Directory::decode(&bytes, &disk).is_err(),
                    List::decode(&bytes, &disk).is_err(),
                ];
                assert!(refused[n], "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn another_version_or_place_and_forged_fields_are_refused() {
        let disk = superblock();
        let refused = |number, index, pieces: &[MapPiece], field: &str| {
            let (block, sum) = encode_map(&disk, number, index, pieces);
            match decode_map(&disk, &block, 3, sum, |_, _| ()) {
                Err(FormatError::Range { field: found, .. }) => assert_eq!(found, field),
                other => panic!("{field}: {other:?}"),
            }
        };
        let (_, sum) = encode_map(&disk, 11, 3, &pieces(5));
        let (newer, _) = encode_map(&disk, 12, 3, &pieces(5));
        assert!(matches!(decode_map(&disk, &newer, 3, sum, |_, _| ()), Err(FormatError::Checksum { .. })));
        refused(12, 2, &pieces(5), "index");
        let forged = |change: fn(&mut MapPiece)| {
            let mut pieces = pieces(5);
            change(&mut pieces[4]);
            pieces
        };
        refused(12, 3, &forged(|piece| piece.entries[7].at = 1300), "entry");
        refused(12, 3, &forged(|piece| piece.record = 0), "entry");
        refused(12, 3, &forged(|piece| piece.record = 3), "record");
        let list = List { number: 12, after: 9, index: 3, segments: vec![20] };
        assert!(List::decode(&list.encode(&disk), &disk).is_err());
        for (at, map_pieces, list_blocks) in [(4, 40, 9), (1460, 40, 9), (1300, 0, 9), (1300, 60, 9), (1300, 40, 0)] {
            let forged = Superblock { area: Some(Area { at, map_pieces, list_blocks }), ..disk };
            assert!(Superblock::decode(&forged.encode()).is_err(), "{forged:?}");
        }
    }
}
