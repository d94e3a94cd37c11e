//! Checkpoints of the map of a network RAM disk, as stored on its donors.
//!
//! After its units, a donor has two *halves*, which successive checkpoints use alternately. A half
//! consists of a *root*, a *log* of lists of units, and *pages* of the map. Each piece names the
//! disk, the checkpoint, its donor and its place, and has a checksum, so that it is never taken for
//! a piece of another checkpoint. Owns: the layout and the pieces. Left out: the guarantees of a
//! checkpoint (`crates/netram`, docs/design/netram.md).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ram::GroupId;
use crate::{checksum, seal};

const MAGIC: u64 = u64::from_le_bytes(*b"ShoalRCp");
/// Bytes of each piece's header.
pub const PIECE_HEADER: usize = 56;
/// Bytes of a unit number.
const NAME: usize = size_of::<U32>();
/// Pieces are written in multiples of this (bytes).
const STEP: usize = 512;
const ROOT_BYTES: usize = STEP;
/// Table entry of a block that must be searched for in the units that are read.
pub const LOOK: u32 = u32::MAX;

/// The header of a piece. The checksum covers the bytes after it, up to `len`.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CheckpointHeader {
    crc: U32,
    /// Bytes of the piece, without padding.
    len: U32,
    magic: U64,
    uuid: [u8; 16],
    number: U64,
    donor: U16,
    /// A [`Kind`].
    kind: u8,
    reserved: u8,
    born: U32,
    index: U32,
    reserved_end: [u8; 4],
}

const _: () = assert!(size_of::<CheckpointHeader>() == PIECE_HEADER);
const _: () = assert!(std::mem::offset_of!(CheckpointHeader, index) == 48);

/// The body of a root.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct CheckpointRootRecord {
    sequence: U64,
    horizon: U64,
    next_sequence: U64,
    next_group: U64,
    first_group: U64,
    groups: U32,
    blocks: U32,
    pages: U32,
}

const _: () = assert!(size_of::<CheckpointRootRecord>() == 52);

/// Header of a page of the table or of groups.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PageRange {
    first: U32,
    count: U32,
}

const _: () = assert!(size_of::<PageRange>() == 8);

/// A group that has units. Its members follow. For an empty place only the first byte is stored.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct GroupHeader {
    width: u8,
    data: u8,
    id: U64,
    first_sequence: U64,
}

const _: () = assert!(size_of::<GroupHeader>() == 18);

/// A unit of a group.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct MemberRecord {
    donor: U16,
    unit: U32,
    blocks: u8,
}

const _: () = assert!(size_of::<MemberRecord>() == 7);

/// Layout of the checkpoints on a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// First byte of the first half.
    pub at: u64,
    /// Bytes of a piece of the log, and the number of pieces.
    pub record_bytes: usize,
    pub records: u32,
    /// Bytes of a page, and the number of pages.
    pub page_bytes: usize,
    pub pages: u32,
}

impl Layout {
    /// Returns the layout of a donor whose units begin at `front`.
    pub fn new(front: u64, units: u32, unit_bytes: usize, buffer: usize) -> Layout {
        let (record_bytes, page_bytes) = match units {
            0..1024 => (512, 512),
            1024..65536 => (4096, 4096),
            _ => (4096, 65536),
        };
        let names = u32::try_from((record_bytes - PIECE_HEADER) / NAME).expect("a record has 4 KiB at most");
        // 8 bytes for each block and 32 for each unit. The last record may not fit into a page.
        let bytes = u64::from(units) * (8 * buffer as u64 + 32);
        Layout {
            at: front + u64::from(units) * unit_bytes as u64,
            record_bytes,
            records: 16 + 2 * units.div_ceil(names),
            page_bytes,
            pages: u32::try_from(bytes.div_ceil(page_bytes as u64 - 256)).expect("fewer than 2^32 pages") + 2,
        }
    }

    fn half_bytes(&self) -> u64 {
        let log = u64::from(self.records) * self.record_bytes as u64;
        ROOT_BYTES as u64 + log + u64::from(self.pages) * self.page_bytes as u64
    }

    /// Returns the size of both halves (bytes).
    pub fn bytes(&self) -> u64 {
        2 * self.half_bytes()
    }

    pub fn root_at(&self, half: u64) -> u64 {
        self.at + half * self.half_bytes()
    }

    pub fn record_at(&self, half: u64, index: u32) -> u64 {
        self.root_at(half) + ROOT_BYTES as u64 + u64::from(index) * self.record_bytes as u64
    }

    pub fn page_at(&self, half: u64, index: u32) -> u64 {
        self.record_at(half, self.records) + u64::from(index) * self.page_bytes as u64
    }

    /// Returns the maximum number of units that a list names.
    pub fn names(&self) -> usize {
        (self.record_bytes - PIECE_HEADER) / NAME
    }
}

/// Returns the number of units for which a donor has room, together with the checkpoints after
/// them.
pub fn units(bytes: u64, front: u64, unit_bytes: usize, buffer: usize) -> u32 {
    let fits = |units: u32| {
        let layout = Layout::new(front, units, unit_bytes, buffer);
        layout.at + layout.bytes() <= bytes
    };
    let most = bytes.saturating_sub(front) / unit_bytes as u64;
    let (mut low, mut high) = (0, u32::try_from(most).unwrap_or(u32::MAX).min(u32::MAX - 2));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Identity of a piece of a checkpoint on a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub uuid: [u8; 16],
    /// Number of the checkpoint, never reused.
    pub number: u64,
    pub donor: u16,
    pub born: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Root = 1,
    /// Numbers of units.
    List = 2,
    /// Marks the end of the lists.
    End = 3,
    /// Places of blocks.
    Table = 4,
    Groups = 5,
    /// Blocks whose data is lost.
    Lost = 6,
}

/// Encodes a piece, padded to a multiple of 512 bytes. `index` is its place in the log, or among
/// the pages.
pub fn encode(stamp: &Stamp, kind: Kind, index: u32, payload: &[u8]) -> Vec<u8> {
    let len = PIECE_HEADER + payload.len();
    let header = CheckpointHeader {
        crc: 0.into(),
        len: u32::try_from(len).expect("a page has 64 KiB at most").into(),
        magic: MAGIC.into(),
        uuid: stamp.uuid,
        number: stamp.number.into(),
        donor: stamp.donor.into(),
        kind: kind as u8,
        reserved: 0,
        born: stamp.born.into(),
        index: index.into(),
        reserved_end: [0; 4],
    };
    let mut out = Vec::with_capacity(len.next_multiple_of(STEP));
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(payload);
    seal(0, &mut out);
    out.resize(len.next_multiple_of(STEP), 0);
    out
}

/// Returns the kind and the payload of the piece at the start of `bytes`, if it belongs to this
/// checkpoint and place.
pub fn decode<'a>(bytes: &'a [u8], stamp: &Stamp, index: u32) -> Option<(Kind, &'a [u8])> {
    let (header, _) = CheckpointHeader::ref_from_prefix(bytes).ok()?;
    if header.magic != MAGIC || header.uuid != stamp.uuid {
        return None;
    }
    let piece = bytes.get(..header.len.get() as usize).filter(|piece| piece.len() >= PIECE_HEADER)?;
    if header.crc != checksum(0, &piece[4..]) {
        return None;
    }
    let its_own = header.number == stamp.number
        && (header.donor.get(), header.born.get()) == (stamp.donor, stamp.born)
        && header.index == index;
    let kinds = [Kind::Root, Kind::List, Kind::End, Kind::Table, Kind::Groups, Kind::Lost];
    let kind = kinds.into_iter().find(|&kind| kind as u8 == header.kind)?;
    its_own.then_some((kind, &piece[PIECE_HEADER..]))
}

/// Data about the whole checkpoint, stored on each donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// Entries with a lower sequence count only if the table says so.
    pub sequence: u64,
    /// Every entry with a lower sequence was safe, or does not count.
    pub horizon: u64,
    /// Greater than all sequences and group numbers that the pages may mention.
    pub next_sequence: u64,
    pub next_group: GroupId,
    /// Groups from this number on are not in the pages.
    pub first_group: GroupId,
    /// Places of groups.
    pub groups: u32,
    /// Blocks of the disk.
    pub blocks: u32,
    /// Pages on this donor.
    pub pages: u32,
}

impl Root {
    pub fn encode(&self) -> Vec<u8> {
        let record = CheckpointRootRecord {
            sequence: self.sequence.into(),
            horizon: self.horizon.into(),
            next_sequence: self.next_sequence.into(),
            next_group: self.next_group.get().into(),
            first_group: self.first_group.get().into(),
            groups: self.groups.into(),
            blocks: self.blocks.into(),
            pages: self.pages.into(),
        };
        record.as_bytes().to_vec()
    }

    pub fn decode(payload: &[u8]) -> Option<Root> {
        let record = CheckpointRootRecord::ref_from_bytes(payload).ok()?;
        Some(Root {
            sequence: record.sequence.get(),
            horizon: record.horizon.get(),
            next_sequence: record.next_sequence.get(),
            next_group: GroupId::new(record.next_group.get()),
            first_group: GroupId::new(record.first_group.get()),
            groups: record.groups.get(),
            blocks: record.blocks.get(),
            pages: record.pages.get(),
        })
    }
}

pub fn encode_list(units: &[u32]) -> Vec<u8> {
    units.iter().flat_map(|unit| unit.to_le_bytes()).collect()
}

pub fn decode_list(payload: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let (units, _) = payload.as_chunks();
    units.iter().map(|&unit| u32::from_le_bytes(unit))
}

/// Encodes the range of a page of the table or of groups: the first block or place, and the count.
/// Its contents follow, or nothing if all of them are empty.
pub fn encode_range(first: u32, count: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(PageRange { first: first.into(), count: count.into() }.as_bytes());
}

/// Decodes the range, and returns it with the bytes that follow.
pub fn decode_range(payload: &[u8]) -> Option<(u32, u32, &[u8])> {
    let (range, rest) = PageRange::ref_from_prefix(payload).ok()?;
    Some((range.first.get(), range.count.get(), rest))
}

/// A group in a page.
#[derive(Clone, Copy, Debug)]
pub struct GroupRecord<'a> {
    pub id: GroupId,
    pub first_sequence: u64,
    pub data: u8,
    members: &'a [MemberRecord],
}

/// Returns the size of the record of a group with this many units.
pub fn group_bytes(width: usize) -> usize {
    if width == 0 { 1 } else { size_of::<GroupHeader>() + width * size_of::<MemberRecord>() }
}

/// Encodes a group with its units: donor, place on the donor, blocks. A group without units is an
/// empty place.
pub fn encode_group(
    id: GroupId,
    first_sequence: u64,
    data: u8,
    members: impl ExactSizeIterator<Item = (u16, u32, u8)>,
    out: &mut Vec<u8>,
) {
    let width = u8::try_from(members.len()).expect("a group has 20 units at most");
    if width == 0 {
        out.push(width);
        return;
    }
    let header = GroupHeader { width, data, id: id.get().into(), first_sequence: first_sequence.into() };
    out.extend_from_slice(header.as_bytes());
    for (donor, unit, blocks) in members {
        out.extend_from_slice(MemberRecord { donor: donor.into(), unit: unit.into(), blocks }.as_bytes());
    }
}

impl<'a> GroupRecord<'a> {
    /// Takes the next record from a page. Returns `Some(None)` for an empty place.
    pub fn take(bytes: &mut &'a [u8]) -> Option<Option<GroupRecord<'a>>> {
        let width = usize::from(*bytes.first()?);
        if width == 0 {
            *bytes = &bytes[1..];
            return Some(None);
        }
        let (header, rest) = GroupHeader::ref_from_prefix(bytes).ok()?;
        let (members, rest) = <[MemberRecord]>::ref_from_prefix_with_elems(rest, width).ok()?;
        *bytes = rest;
        let (id, first_sequence) = (GroupId::new(header.id.get()), header.first_sequence.get());
        Some(Some(GroupRecord { id, first_sequence, data: header.data, members }))
    }

    /// Returns the donor, the place on the donor and the blocks of each unit.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (u16, u32, u8)> + 'a {
        self.members.iter().map(|member| (member.donor.get(), member.unit.get(), member.blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: Stamp = Stamp { uuid: [7; 16], number: 9, donor: 2, born: 3 };

    #[test]
    fn a_piece_is_found_again_and_no_other_is_taken_for_it() {
        let piece = encode(&STAMP, Kind::List, 4, &encode_list(&[1, 2, 3]));
        assert_eq!(piece.len(), 512);
        let (kind, payload) = decode(&piece, &STAMP, 4).unwrap();
        assert_eq!((kind, decode_list(payload).collect::<Vec<_>>()), (Kind::List, vec![1, 2, 3]));
        assert!(decode(&piece, &STAMP, 5).is_none());
        for other in [
            Stamp { uuid: [8; 16], ..STAMP },
            Stamp { number: 8, ..STAMP },
            Stamp { donor: 1, ..STAMP },
            Stamp { born: 4, ..STAMP },
        ] {
            assert!(decode(&piece, &other, 4).is_none(), "{other:?}");
        }
        for bit in 0..8 * (PIECE_HEADER + 12) {
            let mut piece = piece.clone();
            piece[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&piece, &STAMP, 4).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn roots_and_groups_are_what_was_written() {
        let root = Root {
            sequence: 1,
            horizon: 2,
            next_sequence: 3,
            next_group: GroupId::new(4),
            first_group: GroupId::new(5),
            groups: 6,
            blocks: 7,
            pages: 8,
        };
        assert_eq!(Root::decode(&root.encode()), Some(root));
        let members = [(1, 2, 3), (4, u32::MAX, 0), (65535, 6, 64)];
        let mut page = Vec::new();
        encode_group(GroupId::new(77), 88, 2, members.into_iter(), &mut page);
        encode_group(GroupId::ZERO, 0, 0, [].into_iter(), &mut page);
        assert_eq!(page.len(), group_bytes(3) + group_bytes(0));
        let mut rest = &page[..];
        let group = GroupRecord::take(&mut rest).unwrap().unwrap();
        assert_eq!((group.id, group.first_sequence, group.data), (GroupId::new(77), 88, 2));
        assert_eq!(group.members().collect::<Vec<_>>(), members);
        assert!(GroupRecord::take(&mut rest).unwrap().is_none() && GroupRecord::take(&mut rest).is_none());
    }

    #[test]
    fn units_and_checkpoints_fit_on_a_donor_and_little_is_left() {
        for (bytes, unit_bytes, buffer) in
            [(80_000, 1536, 1), (132_000, 9216, 8), (1 << 30, 33_792, 8), (1 << 39, 33_792, 8), (9000, 33_792, 8)]
        {
            let found = units(bytes, 8192, unit_bytes, buffer);
            let layout = Layout::new(8192, found, unit_bytes, buffer);
            assert!(found == 0 || layout.at + layout.bytes() <= bytes);
            let more = Layout::new(8192, found + 1, unit_bytes, buffer);
            assert!(more.at + more.bytes() > bytes, "{bytes}");
            if bytes >= 1 << 30 {
                assert!(layout.bytes() * 100 < bytes, "{} of {bytes}", layout.bytes());
            }
        }
    }
}
