//! The list of a store's bulk devices, and the mark on each device (docs/spec/region.md, section
//! 7).
//!
//! The list fills page 3 of the region. A page of zeros is no list: the store has only the device
//! that its superblock describes. A device's number determines the numbers of its blocks. The mark
//! lies after the last block of the device. It distinguishes the device from others and from an
//! older copy of itself.

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::absorbed::{AREA_SEGMENTS_MIN, AbsorbedArea};
use crate::block_sums::BlockSums;
use crate::extent::BulkBlock;
use crate::superblock::Superblock;
use crate::{BULK_BLOCK, FormatError, Offset, PAGE, SEGMENT, SlotRef, checksum};

pub const BULK_LIST_MAGIC: u64 = u64::from_le_bytes(*b"SHBULKLS");
pub const BULK_MARK_MAGIC: u64 = u64::from_le_bytes(*b"SHBULKMK");
pub const BULK_MARK_VERSION: u32 = 1;
/// Offset of the list: page 3.
pub const BULK_LIST_AT: Offset = Offset::new(3 * PAGE);
/// Maximum number of devices of a store.
pub const BULK_DEVICES_MAX: usize = 16;
/// Shift of a device's number within block numbers: device `n` begins at block `n << 32`.
pub const BULK_NUMBER_SHIFT: u32 = 32;
/// Maximum number of blocks of one of several devices.
pub const BULK_DEVICE_BLOCKS_MAX: u64 = 1 << BULK_NUMBER_SHIFT;
/// Flag: no new blocks are allocated on the device, because it is being emptied.
pub const BULK_LEAVING: u32 = 1;
/// Flag: the store was used without the device, or closed while the device took no writes. Extents
/// marked NEW may remain from that time.
pub const BULK_UNSETTLED: u32 = 2;
/// Flag: the region was restored from an image since the device got its mark. The mark may be of
/// any later epoch.
pub const BULK_RESTORED: u32 = 4;
/// Bits of the flags that hold the size of a checksum unit, as a power of two.
pub const BULK_SUM_SHIFT: std::ops::Range<u32> = 8..12;
/// Offset of the places of the devices within the page of the list.
pub const BULK_PLACES_AT: usize = 2048;
/// Offset of the areas of absorbed pages within the page of the list.
pub const BULK_AREAS_AT: usize = 3072;
/// Smallest piece that holds a bitmap (bytes). It is a run, which compaction never moves.
const BITMAP_BYTES_MIN: u64 = 64 << 10;

const LIST: &str = "list of bulk devices";
const MARK: &str = "mark of a bulk device";

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BulkListHeader {
    pub magic: U64,
    pub count: U32,
    /// Low half of XXH3 of the entries.
    pub sum: U32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BulkEntry {
    pub uuid: [u8; 16],
    pub blocks: U64,
    pub bitmap: U64,
    pub suspects: U64,
    pub epoch: U64,
    pub number: U32,
    pub flags: U32,
    pub sums: U64,
}

/// A word for each device, by number. All zeros: nothing is known of any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BulkWords {
    /// Low half of XXH3 of the words.
    pub sum: U32,
    pub reserved: [u8; 4],
    pub words: [U64; 16],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BulkMark {
    pub magic: U64,
    pub version: U32,
    /// CRC32C of the fields after it.
    pub crc: U32,
    pub store: [u8; 16],
    pub device: [u8; 16],
    pub epoch: U64,
    pub number: U32,
    pub reserved: [u8; 4],
}

pub const BULK_MARK: usize = size_of::<BulkMark>();
const HEADER: usize = size_of::<BulkListHeader>();
const ENTRY: usize = size_of::<BulkEntry>();
const _: () = assert!(HEADER == 16 && ENTRY == 64 && BULK_MARK == 64);
const WORDS: usize = size_of::<BulkWords>();
const _: () = assert!(WORDS == 8 + 8 * BULK_DEVICES_MAX);
const LIST_BYTES: usize = BULK_AREAS_AT + WORDS;
const _: () = assert!(HEADER + BULK_DEVICES_MAX * ENTRY <= BULK_PLACES_AT && LIST_BYTES as u64 <= PAGE);
const _: () = assert!(BULK_PLACES_AT + WORDS <= BULK_AREAS_AT);

/// One device of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkDeviceEntry {
    /// Zero: the device has no mark.
    pub uuid: [u8; 16],
    pub number: u32,
    pub blocks: u64,
    /// The run that holds its bitmap. `NONE` for device 0, whose bitmap is in the fixed area.
    pub bitmap: SlotRef,
    /// The run that holds a bit for each block whose contents are uncertain. `NONE`: all contents
    /// are certain.
    pub suspects: SlotRef,
    /// Epoch of the last mark written.
    pub epoch: u64,
    pub leaving: bool,
    pub unsettled: bool,
    pub restored: bool,
    /// The host's number for the device's place when the store was last opened for writing with it.
    /// 0: unknown, or on no host.
    pub place: u64,
    /// Checksums of its contents, if they are kept.
    pub sums: Option<BlockSums>,
    /// Pages of it that the region holds, if there is an area for them.
    pub absorbed: Option<AbsorbedArea>,
}

impl BulkDeviceEntry {
    /// Returns the number of the device's first block.
    pub fn first(&self) -> u64 {
        u64::from(self.number) << BULK_NUMBER_SHIFT
    }

    /// Returns the number after the device's last block.
    pub fn end(&self) -> u64 {
        self.first() + self.blocks
    }

    pub fn has_mark(&self) -> bool {
        self.uuid != [0; 16]
    }

    /// Returns the size of a piece that holds one bit for each of `blocks` blocks (bytes).
    pub fn bitmap_bytes(blocks: u64) -> u64 {
        (blocks.div_ceil(64) * 8).max(BITMAP_BYTES_MIN)
    }

    /// Returns the offset of the device's bitmap.
    pub fn bitmap_at(&self, superblock: &Superblock) -> Offset {
        if self.bitmap.is_none() { superblock.bulk_bitmap } else { self.bitmap.offset() }
    }
}

/// Returns the first device as the superblock describes it, or `None` if the store was made without
/// bulk storage.
pub fn first_device(superblock: &Superblock) -> Option<BulkDeviceEntry> {
    (superblock.bulk_blocks > 0).then_some(BulkDeviceEntry {
        uuid: [0; 16],
        number: 0,
        blocks: superblock.bulk_blocks,
        bitmap: SlotRef::NONE,
        suspects: SlotRef::NONE,
        epoch: 0,
        leaving: false,
        unsettled: false,
        restored: false,
        place: 0,
        sums: None,
        absorbed: None,
    })
}

/// Returns the number after the last block of all these devices, which bounds all extents.
pub fn blocks_end(devices: &[BulkDeviceEntry]) -> u64 {
    devices.iter().map(BulkDeviceEntry::end).max().unwrap_or(0)
}

/// Returns the device that holds all of a run of blocks.
pub fn device_of(devices: &[BulkDeviceEntry], first: BulkBlock, blocks: u64) -> Option<&BulkDeviceEntry> {
    let first = first.get();
    devices.iter().find(|device| device.first() <= first && first.saturating_add(blocks) <= device.end())
}

impl BulkWords {
    const NONE: BulkWords = BulkWords { sum: U32::ZERO, reserved: [0; 4], words: [U64::ZERO; 16] };

    fn of(devices: &[BulkDeviceEntry], word_of: impl Fn(&BulkDeviceEntry) -> u64) -> BulkWords {
        let mut words = BulkWords::NONE.words;
        for device in devices {
            if let Some(word) = words.get_mut(device.number as usize) {
                *word = word_of(device).into();
            }
        }
        match words == BulkWords::NONE.words {
            true => BulkWords::NONE,
            false => BulkWords { sum: sum_of(words.as_bytes()).into(), words, ..BulkWords::NONE },
        }
    }

    /// Decodes the words at `at` in the page of a list.
    fn decode(page: &[u8], at: usize) -> Result<BulkWords, FormatError> {
        let bytes = page.get(at..at + WORDS);
        let bytes = bytes.ok_or(FormatError::Short { what: LIST, expected: at + WORDS, found: page.len() })?;
        let words = BulkWords::read_from_bytes(bytes).expect("size is exact");
        let (expected, found) = (sum_of(words.words.as_bytes()), words.sum.get());
        match words == BulkWords::NONE || found == expected && words.reserved == [0; 4] {
            true => Ok(words),
            false => Err(FormatError::Checksum { what: LIST, expected, found }),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is kept")]
fn sum_of(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

/// Encodes a list of these devices, which ascend by number and are at most [`BULK_DEVICES_MAX`].
pub fn encode_list(devices: &[BulkDeviceEntry]) -> Vec<u8> {
    assert!((1..=BULK_DEVICES_MAX).contains(&devices.len()));
    let mut bytes = vec![0; HEADER];
    for device in devices {
        let leaving = if device.leaving { BULK_LEAVING } else { 0 };
        let unsettled = if device.unsettled { BULK_UNSETTLED } else { 0 };
        let restored = if device.restored { BULK_RESTORED } else { 0 };
        let shift = device.sums.map_or(0, |sums| sums.shift << BULK_SUM_SHIFT.start);
        let entry = BulkEntry {
            uuid: device.uuid,
            blocks: device.blocks.into(),
            bitmap: device.bitmap.bits().into(),
            suspects: device.suspects.bits().into(),
            epoch: device.epoch.into(),
            number: device.number.into(),
            flags: (leaving | unsettled | restored | shift).into(),
            sums: device.sums.map_or(SlotRef::NONE, |sums| sums.piece).bits().into(),
        };
        bytes.extend_from_slice(entry.as_bytes());
    }
    let count = u32::try_from(devices.len()).expect("asserted").into();
    let sum = sum_of(&bytes[HEADER..]).into();
    let header = BulkListHeader { magic: BULK_LIST_MAGIC.into(), count, sum };
    bytes[..HEADER].copy_from_slice(header.as_bytes());
    bytes.resize(BULK_PLACES_AT, 0);
    bytes.extend_from_slice(BulkWords::of(devices, |device| device.place).as_bytes());
    bytes.resize(BULK_AREAS_AT, 0);
    let area = |device: &BulkDeviceEntry| device.absorbed.map_or(SlotRef::NONE, |area| area.piece).bits();
    bytes.extend_from_slice(BulkWords::of(devices, area).as_bytes());
    bytes
}

/// Decodes the bulk devices of the store of `superblock`, whose list is in `page`. A store that no
/// program with lists has had for writing has the one that the superblock names.
pub fn decode_devices(page: &[u8], superblock: &Superblock) -> Result<Vec<BulkDeviceEntry>, FormatError> {
    let listed = decode_list(page, superblock)?;
    Ok(listed.unwrap_or_else(|| first_device(superblock).into_iter().collect()))
}

/// Decodes the devices of the list in `page`, which belongs to the store of `superblock`. Returns
/// `None` if there is no list.
pub fn decode_list(page: &[u8], superblock: &Superblock) -> Result<Option<Vec<BulkDeviceEntry>>, FormatError> {
    let Ok((header, rest)) = BulkListHeader::read_from_prefix(page) else {
        return Err(FormatError::Short { what: LIST, expected: HEADER, found: page.len() });
    };
    if header.as_bytes() == [0; HEADER] {
        return Ok(None);
    }
    if header.magic.get() != BULK_LIST_MAGIC {
        return Err(FormatError::Magic { what: LIST, expected: BULK_LIST_MAGIC, found: header.magic.get() });
    }
    let range = |field, found| FormatError::Range { what: LIST, field, found };
    let count = header.count.get() as usize;
    if !(1..=BULK_DEVICES_MAX).contains(&count) {
        return Err(range("count", count as u64));
    }
    let bytes = rest.get(..count * ENTRY).ok_or(FormatError::Short {
        what: LIST,
        expected: HEADER + count * ENTRY,
        found: page.len(),
    })?;
    let found = sum_of(bytes);
    if found != header.sum.get() {
        return Err(FormatError::Checksum { what: LIST, expected: header.sum.get(), found });
    }
    let (places, areas) = (BulkWords::decode(page, BULK_PLACES_AT)?, BulkWords::decode(page, BULK_AREAS_AT)?);
    let mut devices: Vec<BulkDeviceEntry> = Vec::new();
    for bytes in bytes.chunks_exact(ENTRY) {
        let entry = BulkEntry::read_from_bytes(bytes).expect("size is exact");
        let number = entry.number.get();
        if number as usize >= BULK_DEVICES_MAX || devices.last().is_some_and(|before| before.number >= number) {
            return Err(range("number", number.into()));
        }
        let blocks = entry.blocks.get();
        let fits = if number == 0 { blocks == superblock.bulk_blocks } else { true };
        if blocks == 0 || blocks > BULK_DEVICE_BLOCKS_MAX || !fits {
            return Err(range("blocks", blocks));
        }
        let run = |field, bits: u64, least| {
            let slot = SlotRef::from_bits(bits).ok_or_else(|| range(field, bits))?;
            let holds = slot.is_none()
                || slot.is_run()
                    && slot.capacity() >= least
                    && slot.offset().get().saturating_add(slot.capacity()) <= superblock.region_bytes;
            if holds { Ok(slot) } else { Err(range(field, bits)) }
        };
        let piece = |field, bits| run(field, bits, BulkDeviceEntry::bitmap_bytes(blocks));
        let bitmap = piece("bitmap", entry.bitmap.get())?;
        if bitmap.is_none() != (number == 0) {
            return Err(range("bitmap", entry.bitmap.get()));
        } else if number != 0 && entry.uuid == [0; 16] {
            return Err(range("uuid", 0));
        }
        let shift = entry.flags.get() >> BULK_SUM_SHIFT.start & 0xf;
        let known = BULK_LEAVING | BULK_UNSETTLED | BULK_RESTORED | shift << BULK_SUM_SHIFT.start;
        if entry.flags.get() & !known != 0 {
            return Err(range("flags", entry.flags.get().into()));
        }
        let sums_piece = run("sums", entry.sums.get(), 0)?;
        let sums = (!sums_piece.is_none()).then_some(BlockSums { piece: sums_piece, shift });
        if !sums.map_or(shift == 0, |sums| sums.is_valid()) {
            return Err(range("sums", entry.sums.get()));
        }
        let area = run("absorbed", areas.words[number as usize].get(), AREA_SEGMENTS_MIN * SEGMENT)?;
        devices.push(BulkDeviceEntry {
            uuid: entry.uuid,
            number,
            blocks,
            bitmap,
            suspects: piece("suspects", entry.suspects.get())?,
            epoch: entry.epoch.get(),
            leaving: entry.flags.get() & BULK_LEAVING != 0,
            unsettled: entry.flags.get() & BULK_UNSETTLED != 0,
            restored: entry.flags.get() & BULK_RESTORED != 0,
            place: places.words[number as usize].get(),
            sums,
            absorbed: (!area.is_none()).then_some(AbsorbedArea { piece: area }),
        });
    }
    Ok(Some(devices))
}

/// The contents of a device's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub store: [u8; 16],
    pub device: [u8; 16],
    pub number: u32,
    pub epoch: u64,
}

impl Mark {
    /// Returns the offset of the mark on a device with this many blocks.
    pub fn at(blocks: u64) -> u64 {
        blocks * BULK_BLOCK
    }

    pub fn encode(&self) -> [u8; BULK_MARK] {
        let mut mark = BulkMark {
            magic: BULK_MARK_MAGIC.into(),
            version: BULK_MARK_VERSION.into(),
            crc: 0.into(),
            store: self.store,
            device: self.device,
            epoch: self.epoch.into(),
            number: self.number.into(),
            reserved: [0; 4],
        };
        mark.crc = checksum(0, &mark.as_bytes()[16..]).into();
        mark.as_bytes().try_into().expect("size is asserted")
    }

    pub fn decode(bytes: &[u8]) -> Result<Mark, FormatError> {
        let Ok((mark, _)) = BulkMark::read_from_prefix(bytes) else {
            return Err(FormatError::Short { what: MARK, expected: BULK_MARK, found: bytes.len() });
        };
        if mark.magic.get() != BULK_MARK_MAGIC {
            return Err(FormatError::Magic { what: MARK, expected: BULK_MARK_MAGIC, found: mark.magic.get() });
        }
        if mark.version.get() != BULK_MARK_VERSION {
            return Err(FormatError::Version { what: MARK, expected: BULK_MARK_VERSION, found: mark.version.get() });
        }
        let found = checksum(0, &mark.as_bytes()[16..]);
        if mark.crc.get() != found {
            return Err(FormatError::Checksum { what: MARK, expected: mark.crc.get(), found });
        }
        let (store, device) = (mark.store, mark.device);
        Ok(Mark { store, device, number: mark.number.get(), epoch: mark.epoch.get() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::{Geometry, MemoryKind};

    fn superblock() -> Superblock {
        Superblock::layout(Geometry {
            memory_kind: MemoryKind::Logged,
            uuid: [7; 16],
            region_bytes: 64 << 20,
            bulk_blocks: 1000,
            ring_bytes: 0,
            threshold: 1 << 20,
            hash_seed: 9,
            created_ns: 1,
        })
        .unwrap()
    }

    fn devices() -> Vec<BulkDeviceEntry> {
        let first = first_device(&superblock()).unwrap();
        let run = |segment: u64| SlotRef::run(Offset::of_segment(segment), 1);
        let second = BulkDeviceEntry {
            uuid: [9; 16],
            number: 3,
            blocks: 77,
            bitmap: run(20),
            suspects: run(21),
            epoch: 4,
            leaving: true,
            unsettled: true,
            restored: true,
            place: 0x0123_4567_89ab_cdef,
            sums: Some(BlockSums { piece: run(22), shift: 12 }),
            absorbed: Some(AbsorbedArea { piece: SlotRef::run(Offset::of_segment(23), 2) }),
        };
        vec![first, second]
    }

    #[test]
    fn a_list_round_trips_and_every_flipped_bit_is_refused() {
        let bytes = encode_list(&devices());
        assert_eq!(decode_list(&bytes, &superblock()), Ok(Some(devices())));
        assert_eq!(decode_list(&[0; 4096], &superblock()), Ok(None));
        let gaps = [HEADER + 2 * ENTRY..BULK_PLACES_AT, BULK_PLACES_AT + WORDS..BULK_AREAS_AT];
        for bit in (0..bytes.len() * 8).filter(|bit| !gaps.iter().any(|gap| gap.contains(&(bit / 8)))) {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_list(&flipped, &superblock()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn values_that_no_writer_makes_are_refused() {
        type Change = fn(&mut Vec<BulkDeviceEntry>);
        let changes: [Change; 14] = [
            |list| list[1].number = 0,
            |list| list[1].number = 16,
            |list| list[0].blocks = 999,
            |list| list[1].blocks = 0,
            |list| list[1].blocks = BULK_DEVICE_BLOCKS_MAX + 1,
            |list| list[1].blocks = (64 << 13) + 1,
            |list| list[1].bitmap = SlotRef::NONE,
            |list| list[1].suspects = SlotRef::run(Offset::of_segment(1024), 1),
            |list| list[1].uuid = [0; 16],
            |list| list[1].sums.as_mut().unwrap().shift = 16,
            |list| list[1].sums.as_mut().unwrap().shift = 11,
            |list| list[1].sums.as_mut().unwrap().piece = SlotRef::run(Offset::of_segment(1024), 1),
            |list| list[1].absorbed.as_mut().unwrap().piece = SlotRef::run(Offset::of_segment(23), 1),
            |list| list[1].absorbed.as_mut().unwrap().piece = SlotRef::run(Offset::of_segment(1023), 2),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut list = devices();
            change(&mut list);
            let found = decode_list(&encode_list(&list), &superblock());
            assert!(matches!(found, Err(FormatError::Range { .. })), "change {at}: {found:?}");
        }
    }

    #[test]
    fn a_mark_round_trips_and_every_flipped_bit_is_refused() {
        let mark = Mark { store: [1; 16], device: [2; 16], number: 3, epoch: 9 };
        let bytes = mark.encode();
        assert_eq!(Mark::decode(&bytes), Ok(mark));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Mark::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_run_of_blocks_belongs_to_the_device_that_holds_all_of_it() {
        let list = devices();
        let number = |first, blocks| device_of(&list, BulkBlock::new(first), blocks).map(|device| device.number);
        assert_eq!(number(0, 1000), Some(0));
        assert_eq!(number(999, 2), None);
        assert_eq!((number(3 << 32, 77), number((3 << 32) + 76, 2), number(1 << 32, 1)), (Some(3), None, None));
        assert_eq!(blocks_end(&list), (3 << 32) + 77);
    }
}
