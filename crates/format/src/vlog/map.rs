//! The map area of a virtual-log disk: where checkpoints of the map are, and what they are made of.
//!
//! Owns: the places of map blocks, directories and lists ([`Area`]), and the three kinds of blocks. A map block holds the entries of
//! some pieces and says which record holds each piece; there are two places for it, written by turns. A directory names for every
//! map block which place counts, and its checksum: an older version is never taken for the newer one. A list names the segments that
//! may have been opened since a checkpoint began. Left out: when they are written, and what is durable before what (`shoal_vlog`).

use super::{BLOCK, Entry, LOG_AT, PIECE_BLOCKS, Superblock, VERSION, head, opened_salted, sealed_salted};
use crate::{FormatError, u32_at, u64_at};

const MAP_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVMp");
const DIRECTORY_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVDr");
const LIST_MAGIC: u64 = u64::from_le_bytes(*b"ShoalVLs");
/// Pieces of a map block at most.
pub const MAP_PIECES_MAX: u32 = 59;
/// Map blocks of a directory block.
pub const DIRECTORY_ENTRIES: u32 = 944;
/// Segments of a list block at most.
pub const LIST_SEGMENTS_MAX: usize = 1000;
const PIECES_AT: usize = 64;
const PIECE_BYTES: usize = 4 + PIECE_BLOCKS as usize * 8;
const SLOTS_AT: usize = 32;
const PRESENT_AT: usize = 152;
const SUMS_AT: usize = 272;
const SEGMENTS_AT: usize = 64;

const _: () = assert!(PIECES_AT + MAP_PIECES_MAX as usize * PIECE_BYTES <= BLOCK);
const _: () = assert!(SLOTS_AT + DIRECTORY_ENTRIES as usize / 8 <= PRESENT_AT);
const _: () = assert!(PRESENT_AT + DIRECTORY_ENTRIES as usize / 8 <= SUMS_AT);
const _: () = assert!(SUMS_AT + DIRECTORY_ENTRIES as usize * 4 <= BLOCK);
const _: () = assert!(SEGMENTS_AT + LIST_SEGMENTS_MAX * 4 <= BLOCK);

/// Where the map area is and how it is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Its first block.
    pub at: u32,
    /// Pieces of a map block.
    pub map_pieces: u32,
    /// Blocks of a list.
    pub list_blocks: u32,
}

/// A piece as a map block has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapPiece {
    /// The block of the record that holds it; 0: no record ever held it.
    pub record: u32,
    pub entries: [Entry; PIECE_BLOCKS as usize],
}

/// A block of a directory. Bit *n* of the bit maps and checksum *n* are of its map block *n*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// That of its checkpoint.
    pub number: u64,
    /// Which block of the directory it is.
    pub index: u32,
    /// Which of the two places counts.
    pub slots: [u8; DIRECTORY_ENTRIES as usize / 8],
    /// Clear: none of its pieces exists, nothing was written.
    pub present: [u8; DIRECTORY_ENTRIES as usize / 8],
    pub sums: Vec<u32>,
}

/// A block of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// That of the checkpoint that began with this list.
    pub number: u64,
    /// That of the complete checkpoint when it began; 0: there was none.
    pub after: u64,
    /// Which block of the list it is.
    pub index: u32,
    pub segments: Vec<u32>,
}

impl Superblock {
    /// Blocks of the whole map; of a disk without an area none.
    pub fn map_blocks(&self) -> u32 {
        self.area.map_or(0, |area| self.pieces().div_ceil(area.map_pieces.max(1)))
    }

    /// Blocks of a directory.
    pub fn directory_blocks(&self) -> u32 {
        self.map_blocks().div_ceil(DIRECTORY_ENTRIES)
    }

    /// Where version `slot` of a map block is.
    pub fn map_at(&self, slot: u8, index: u32) -> u32 {
        self.area_at() + slot as u32 * self.map_blocks() + index
    }

    pub fn directory_at(&self, side: u8, index: u32) -> u32 {
        self.area_at() + 2 * self.map_blocks() + side as u32 * self.directory_blocks() + index
    }

    pub fn list_at(&self, side: u8, copy: u8, index: u32) -> u32 {
        let lists = self.area_at() + 2 * (self.map_blocks() + self.directory_blocks());
        lists + (2 * side as u32 + copy as u32) * self.list_blocks() + index
    }

    pub fn list_blocks(&self) -> u32 {
        self.area.map_or(0, |area| area.list_blocks)
    }

    fn area_at(&self) -> u32 {
        self.area.map_or(0, |area| area.at)
    }

    /// Blocks an area takes on a disk of so many logical blocks.
    pub fn area_blocks(logical_blocks: u32, map_pieces: u32, list_blocks: u32) -> u64 {
        let map = logical_blocks.div_ceil(PIECE_BLOCKS).div_ceil(map_pieces);
        2 * (map as u64 + map.div_ceil(DIRECTORY_ENTRIES) as u64) + 4 * list_blocks as u64
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
        let fits = area.at > LOG_AT && area.at as u64 + blocks <= self.physical_blocks as u64;
        if !fits || self.segment_blocks == 0 || self.logical_blocks >= area.at - LOG_AT {
            return bad("map area", area.at);
        }
        Ok(())
    }
}

/// A map block: `pieces` from piece `index` times the pieces of a map block on. Returns it with its checksum.
pub fn encode_map(superblock: &Superblock, number: u64, index: u32, pieces: &[MapPiece]) -> (Vec<u8>, u32) {
    let mut out = head(MAP_MAGIC, VERSION);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&index.to_le_bytes());
    out.resize(PIECES_AT, 0);
    for piece in pieces {
        out.extend_from_slice(&piece.record.to_le_bytes());
        for entry in &piece.entries {
            out.extend_from_slice(&(entry.at as u64 | (entry.crc as u64) << 32).to_le_bytes());
        }
    }
    let out = sealed_salted(out, superblock);
    let sum = u32_at(&out, 0);
    (out, sum)
}

/// The pieces of map block `index`, one after the other, if it is the version with checksum `sum`.
pub fn decode_map(
    superblock: &Superblock,
    block: &[u8],
    index: u32,
    sum: u32,
    mut take: impl FnMut(u32, MapPiece),
) -> Result<(), FormatError> {
    let what = "map block";
    opened_salted(what, MAP_MAGIC, block, superblock)?;
    let found = u32_at(block, 0);
    if found != sum {
        return Err(FormatError::Checksum { what, expected: sum, found });
    }
    let bad = |field, found: u32| Err(FormatError::Range { what, field, found: found.into() });
    if u32_at(block, 24) != index {
        return bad("index", u32_at(block, 24));
    }
    let log = LOG_AT..superblock.log_end();
    let each = superblock.area.map_or(1, |area| area.map_pieces);
    let first = index * each;
    for (n, piece) in (first..superblock.pieces().min(first + each)).enumerate() {
        let at = PIECES_AT + n * PIECE_BYTES;
        let mut found = MapPiece { record: u32_at(block, at), ..MapPiece::default() };
        for (entry, at) in found.entries.iter_mut().zip((at + 4..).step_by(8)) {
            *entry = Entry { at: u32_at(block, at), crc: u32_at(block, at + 4) };
            if entry.at != 0 && (!log.contains(&entry.at) || found.record == 0) {
                return bad("entry", entry.at);
            }
        }
        if found.record != 0 && !log.contains(&found.record) {
            return bad("record", found.record);
        }
        take(piece, found);
    }
    Ok(())
}

impl Directory {
    pub fn new(number: u64, index: u32) -> Directory {
        let bits = [0; DIRECTORY_ENTRIES as usize / 8];
        Directory { number, index, slots: bits, present: bits, sums: vec![0; DIRECTORY_ENTRIES as usize] }
    }

    /// Place and checksum of its map block *n*.
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
        let mut out = head(DIRECTORY_MAGIC, VERSION);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.index.to_le_bytes());
        out.resize(SLOTS_AT, 0);
        out.extend_from_slice(&self.slots);
        out.resize(PRESENT_AT, 0);
        out.extend_from_slice(&self.present);
        out.resize(SUMS_AT, 0);
        self.sums.iter().for_each(|sum| out.extend_from_slice(&sum.to_le_bytes()));
        sealed_salted(out, superblock)
    }

    pub fn decode(block: &[u8], superblock: &Superblock) -> Result<Directory, FormatError> {
        opened_salted("directory of the map", DIRECTORY_MAGIC, block, superblock)?;
        let mut directory = Directory::new(u64_at(block, 16), u32_at(block, 24));
        let bytes = directory.slots.len();
        directory.slots.copy_from_slice(&block[SLOTS_AT..SLOTS_AT + bytes]);
        directory.present.copy_from_slice(&block[PRESENT_AT..PRESENT_AT + bytes]);
        directory.sums.iter_mut().zip((SUMS_AT..).step_by(4)).for_each(|(sum, at)| *sum = u32_at(block, at));
        Ok(directory)
    }
}

impl List {
    pub fn encode(&self, superblock: &Superblock) -> Vec<u8> {
        debug_assert!(self.segments.len() <= LIST_SEGMENTS_MAX);
        let mut out = head(LIST_MAGIC, VERSION);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.after.to_le_bytes());
        out.extend_from_slice(&self.index.to_le_bytes());
        out.extend_from_slice(&(self.segments.len() as u32).to_le_bytes());
        out.resize(SEGMENTS_AT, 0);
        self.segments.iter().for_each(|segment| out.extend_from_slice(&segment.to_le_bytes()));
        sealed_salted(out, superblock)
    }

    pub fn decode(block: &[u8], superblock: &Superblock) -> Result<List, FormatError> {
        let what = "list of segments";
        opened_salted(what, LIST_MAGIC, block, superblock)?;
        let (index, count) = (u32_at(block, 32), u32_at(block, 36));
        if count as usize > LIST_SEGMENTS_MAX {
            return Err(FormatError::Range { what, field: "count", found: count.into() });
        }
        let segments: Vec<u32> = (0..count as usize).map(|n| u32_at(block, SEGMENTS_AT + n * 4)).collect();
        if let Some(&segment) = segments.iter().find(|&&segment| segment >= superblock.segments()) {
            return Err(FormatError::Range { what, field: "segment", found: segment.into() });
        }
        Ok(List { number: u64_at(block, 16), after: u64_at(block, 24), index, segments })
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
        piece.entries[3] = Entry { at: 1299, crc: 77 };
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
