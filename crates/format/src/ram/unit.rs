//! Units of the network RAM disk: their headers, and the lists of ranges in some blocks.
//!
//! A unit consists of two header slots and `buffer` blocks. A header gives the group, the place in
//! the group, and for each block its number, its write sequence and its sum. A unit that grows gets
//! its next header in the other slot. Of two valid headers, the one that lists more counts, unless
//! one was cut. A data unit lists its own blocks, a parity unit those of all data units, so that
//! other units describe any missing one. The block with the highest write sequence counts. A unit
//! without a valid header is free.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{GroupId, VERSION};
use crate::{FormatError, checksum, seal};

const UNIT_MAGIC: u64 = u64::from_le_bytes(*b"ShoalUnt");
/// Fixed part of a unit's header (bytes).
const UNIT_HEADER: usize = 64;
/// Number of header slots in a unit.
pub const HEADER_SLOTS: usize = 2;
/// Bytes of one entry.
const ENTRY_BYTES: usize = 16;
/// Block number of an entry whose block lists trimmed ranges.
pub const TRIMMED: u32 = u32::MAX;
/// Block number of an entry whose block lists ranges whose data is lost for good.
pub const LOST: u32 = u32::MAX - 1;

/// The fixed part of a header. The number of entries of each list (1 byte each) follows, then the
/// entries.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct UnitHeaderRecord {
    crc: U32,
    version: U32,
    magic: U64,
    uuid: [u8; 16],
    group: U64,
    member: u8,
    data: u8,
    parity: u8,
    lists: u8,
    donor: U16,
    born: U32,
    horizon: U64,
    cut: U32,
    reserved: [u8; 2],
}

const _: () = assert!(size_of::<UnitHeaderRecord>() == UNIT_HEADER);
const _: () = assert!(std::mem::offset_of!(UnitHeaderRecord, cut) == 58);

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct UnitEntryRecord {
    block: U32,
    sum: U32,
    sequence: U64,
}

const _: () = assert!(size_of::<UnitEntryRecord>() == ENTRY_BYTES);

/// Header of a list of ranges.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RangeListHeader {
    count: U32,
    reserved: [u8; 12],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RangeRecord {
    first: U32,
    count: U32,
    sequence: U64,
}

const _: () = assert!(size_of::<RangeListHeader>() == 16);
const _: () = assert!(size_of::<RangeRecord>() == 16);

/// Returns whether an entry with this block number lists ranges and is no block of the disk.
pub fn is_note(block: u32) -> bool {
    matches!(block, TRIMMED | LOST)
}

/// A block of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitEntry {
    /// Number of the block on the disk, or [`TRIMMED`] or [`LOST`].
    pub block: u32,
    /// Sum of its bytes, of the kind that the superblock names.
    pub sum: u32,
    /// Grows with every write. The highest counts.
    pub sequence: u64,
}

/// Identity and contents of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitHeader {
    pub uuid: [u8; 16],
    pub group: GroupId,
    /// The donor it was written to. A donor that returns after it was given up is a new one, and
    /// its old units no longer count.
    pub donor: u16,
    /// The donor's birth. The donor's number may have belonged to another one before.
    pub born: u32,
    /// Every entry with a lower sequence, in any group, was safe when this was written.
    pub horizon: u64,
    /// Number of times the lists were shortened.
    pub cut: u32,
    /// Place in the group: data units first, then parity.
    pub member: u8,
    pub data: u8,
    pub parity: u8,
    /// Entries of each listed data unit: a data unit lists only its own, a parity unit all.
    pub lists: Vec<Vec<UnitEntry>>,
}

impl UnitHeader {
    /// Returns the size that fits any header of a disk, a multiple of 512.
    pub fn bytes(data: usize, buffer_blocks: usize) -> usize {
        (UNIT_HEADER + data + data * buffer_blocks * ENTRY_BYTES).next_multiple_of(512)
    }

    /// Returns the header that counts, from all slots of a unit, of `room` bytes each. Of the valid
    /// headers that are `ours`, the one of the newest group counts, then the one that was cut more
    /// often, then the one that lists more.
    pub fn newest(slots: &[u8], room: usize, ours: impl Fn(&UnitHeader) -> bool) -> Option<UnitHeader> {
        // A new unit has the same header in both slots.
        let count = if slots.get(..room) == slots.get(room..2 * room) { 1 } else { HEADER_SLOTS };
        let valid = slots.chunks_exact(room).take(count).filter_map(|slot| UnitHeader::decode(slot).ok());
        valid.filter(ours).max_by_key(|header| (header.group, header.cut, header.listed()))
    }

    /// Returns the number of blocks in all lists.
    pub fn listed(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }

    pub fn is_parity(&self) -> bool {
        self.member >= self.data
    }

    /// Appends the header, padded to `bytes`.
    pub fn encode(&self, bytes: usize, out: &mut Vec<u8>) {
        let start = out.len();
        let record = UnitHeaderRecord {
            crc: 0.into(),
            version: VERSION.into(),
            magic: UNIT_MAGIC.into(),
            uuid: self.uuid,
            group: self.group.get().into(),
            member: self.member,
            data: self.data,
            parity: self.parity,
            lists: byte(self.lists.len()),
            donor: self.donor.into(),
            born: self.born.into(),
            horizon: self.horizon.into(),
            cut: self.cut.into(),
            reserved: [0; 2],
        };
        out.extend_from_slice(record.as_bytes());
        out.extend(self.lists.iter().map(|list| byte(list.len())));
        for &UnitEntry { block, sum, sequence } in self.lists.iter().flatten() {
            let record = UnitEntryRecord { block: block.into(), sum: sum.into(), sequence: sequence.into() };
            out.extend_from_slice(record.as_bytes());
        }
        out.resize(start + bytes, 0);
        seal(0, &mut out[start..]);
    }

    /// Decodes a header. `bytes` is the whole slot.
    pub fn decode(bytes: &[u8]) -> Result<UnitHeader, FormatError> {
        let what = "unit header";
        let Ok((record, body)) = UnitHeaderRecord::read_from_prefix(bytes) else {
            return Err(FormatError::Short { what, expected: UNIT_HEADER, found: bytes.len() });
        };
        if record.magic != UNIT_MAGIC {
            return Err(FormatError::Magic { what, expected: UNIT_MAGIC, found: record.magic.get() });
        }
        let found = checksum(0, &bytes[4..]);
        if record.crc != found {
            return Err(FormatError::Checksum { what, expected: record.crc.get(), found });
        }
        if record.version != VERSION {
            return Err(FormatError::Version { what, expected: VERSION, found: record.version.get() });
        }
        let UnitHeaderRecord { member, data, parity, .. } = record;
        let expected = if member < data { 1 } else { data };
        if record.lists != expected || member >= data.saturating_add(parity) {
            return Err(FormatError::Range { what, field: "member", found: member.into() });
        }
        let entries = |found| FormatError::Range { what, field: "entries", found };
        let Some((counts, body)) = body.split_at_checked(usize::from(record.lists)) else {
            return Err(entries(u64::MAX));
        };
        let listed: usize = counts.iter().map(|&count| usize::from(count)).sum();
        let Ok((mut rest, _)) = <[UnitEntryRecord]>::ref_from_prefix_with_elems(body, listed) else {
            return Err(entries(listed as u64));
        };
        let mut take = |count: u8| {
            let (list, behind) = rest.split_at(usize::from(count));
            rest = behind;
            list.iter().map(UnitEntryRecord::get).collect()
        };
        Ok(UnitHeader {
            uuid: record.uuid,
            group: GroupId::new(record.group.get()),
            donor: record.donor.get(),
            born: record.born.get(),
            horizon: record.horizon.get(),
            cut: record.cut.get(),
            member,
            data,
            parity,
            lists: counts.iter().map(|&count| take(count)).collect(),
        })
    }
}

/// Converts a number of lists or entries. A disk has few of both, see [`super::DiskSuperblock`].
fn byte(count: usize) -> u8 {
    count.try_into().expect("at most 16 lists, and 64 entries in each")
}

impl UnitEntryRecord {
    fn get(&self) -> UnitEntry {
        UnitEntry { block: self.block.get(), sum: self.sum.get(), sequence: self.sequence.get() }
    }
}

/// A range of trimmed blocks. Copies with a lower sequence do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimmedRange {
    pub first: u32,
    pub count: u32,
    pub sequence: u64,
}

/// Fills a block of kind [`TRIMMED`] that lists the ranges.
pub fn encode_trimmed(ranges: &[TrimmedRange], out: &mut [u8]) {
    out.fill(0);
    let count = u32::try_from(ranges.len()).expect("at most `trimmed_max`");
    let (header, places) = out.split_at_mut(size_of::<RangeListHeader>());
    header.copy_from_slice(RangeListHeader { count: count.into(), reserved: [0; 12] }.as_bytes());
    for (place, range) in places.chunks_exact_mut(size_of::<RangeRecord>()).zip(ranges) {
        let &TrimmedRange { first, count, sequence } = range;
        let record = RangeRecord { first: first.into(), count: count.into(), sequence: sequence.into() };
        place.copy_from_slice(record.as_bytes());
    }
}

/// Returns the number of ranges that fit into a block.
pub fn trimmed_max(block_bytes: usize) -> usize {
    (block_bytes - size_of::<RangeListHeader>()) / size_of::<RangeRecord>()
}

pub fn decode_trimmed(bytes: &[u8]) -> Result<Vec<TrimmedRange>, FormatError> {
    let what = "list of trimmed ranges";
    let least = size_of::<RangeListHeader>() + size_of::<RangeRecord>();
    let short = FormatError::Short { what, expected: least, found: bytes.len() };
    let (header, body) = RangeListHeader::read_from_prefix(bytes).map_err(|_| short.clone())?;
    if bytes.len() < least {
        return Err(short);
    }
    let count = header.count.get();
    let Ok((ranges, _)) = <[RangeRecord]>::ref_from_prefix_with_elems(body, count as usize) else {
        return Err(FormatError::Range { what, field: "ranges", found: count.into() });
    };
    let range = |range: &RangeRecord| TrimmedRange {
        first: range.first.get(),
        count: range.count.get(),
        sequence: range.sequence.get(),
    };
    Ok(ranges.iter().map(range).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(member: u8) -> UnitHeader {
        let entry = |n: u32| UnitEntry { block: n, sum: n * 7, sequence: n as u64 + 100 };
        let lists = if member < 3 {
            vec![(0..5).map(entry).collect()]
        } else {
            vec![(0..8).map(entry).collect(), vec![], (20..23).map(entry).collect()]
        };
        UnitHeader {
            uuid: [1; 16],
            group: GroupId::new(99),
            donor: 5,
            born: 70_000,
            horizon: 1 << 40,
            cut: 0,
            member,
            data: 3,
            parity: 1,
            lists,
        }
    }

    #[test]
    fn unit_headers_come_back_and_no_bit_may_flip() {
        let room = UnitHeader::bytes(3, 8);
        assert_eq!(room, 512);
        for member in [0, 3] {
            let mut bytes = vec![];
            header(member).encode(room, &mut bytes);
            assert_eq!(bytes.len(), room);
            assert_eq!(UnitHeader::decode(&bytes).unwrap(), header(member));
            for bit in 0..room * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(UnitHeader::decode(&bytes).is_err(), "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for len in 0..room {
                assert!(UnitHeader::decode(&bytes[..len]).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn of_two_headers_the_one_that_lists_more_counts_and_a_torn_one_does_not() {
        let room = UnitHeader::bytes(3, 8);
        let longer = header(0);
        let mut shorter = header(0);
        shorter.lists[0].pop();
        let slots = |first: &UnitHeader, second: &UnitHeader| {
            let mut bytes = vec![];
            first.encode(room, &mut bytes);
            second.encode(room, &mut bytes);
            bytes
        };
        for mut bytes in [slots(&longer, &shorter), slots(&shorter, &longer)] {
            let newest = |bytes: &[u8]| UnitHeader::newest(bytes, room, |header| header.born == 70_000);
            assert_eq!(newest(&bytes), Some(longer.clone()));
            let torn = if UnitHeader::decode(&bytes[..room]).unwrap() == longer { 0 } else { room };
            bytes[torn + room - 1] ^= 1;
            assert_eq!(newest(&bytes), Some(shorter.clone()));
            bytes[room - torn] ^= 1;
            assert_eq!(newest(&bytes), None);
        }
        let cut = UnitHeader { cut: 1, ..shorter.clone() };
        assert_eq!(UnitHeader::newest(&slots(&longer, &cut), room, |_| true), Some(cut));
        // A header of a former birth is ignored.
        let former = UnitHeader { born: 1, ..longer };
        let bytes = slots(&former, &shorter);
        assert_eq!(UnitHeader::newest(&bytes, room, |header| header.born == 70_000), Some(shorter));
    }

    #[test]
    fn forged_lengths_are_errors() {
        let room = UnitHeader::bytes(3, 8);
        for (at, value) in [(40, 9), (41, 200), (43, 7), (64, 255)] {
            let mut bytes = vec![];
            header(3).encode(room, &mut bytes);
            bytes[at] = value;
            let crc = checksum(0, &bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            assert!(UnitHeader::decode(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn trimmed_ranges_come_back() {
        let mut block = vec![9; 512];
        let range = |n: u32| TrimmedRange { first: n * 10, count: n + 1, sequence: n as u64 + 7 };
        let ranges: Vec<TrimmedRange> = (0..trimmed_max(512) as u32).map(range).collect();
        encode_trimmed(&ranges, &mut block);
        assert_eq!(decode_trimmed(&block).unwrap(), ranges);
        block[..4].copy_from_slice(&1000u32.to_le_bytes());
        assert!(decode_trimmed(&block).is_err());
    }
}
