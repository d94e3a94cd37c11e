//! Several bulk devices: a sound list, and faults in other lists and devices.
//!
//! Rules: each store is sound before it is damaged, and each finding is demanded by kind. The
//! checker reads only the marks of the devices.

use crate::store::Store;
use crate::store::sample::*;
use shoal_check::{BulkData, BulkDevices, FindingKind as K, FoundDevice, NotOpened, OpenedDevice, Report};
use shoal_format::SlotRef;
use shoal_format::block_sums::BlockSums;
use shoal_format::bulk_list::{BULK_LIST_AT, BULK_MARK, BulkDeviceEntry, Mark, encode_list, first_device};
use shoal_format::extent::{BulkBlock, Extent, ExtentNode, FileBlock, encode};
use shoal_format::superblock::{FEATURE_BLOCK_SUMS, FEATURE_DEVICES, MemoryKind};
use shoal_format::{BULK_BLOCK, Offset, PAGE};

/// Blocks of the second device.
const BLOCKS: u64 = 90;

fn list(s: &mut Store, devices: &[BulkDeviceEntry]) {
    let mut page = encode_list(devices);
    page.resize(PAGE as usize, 0);
    s.write(BULK_LIST_AT, &page);
}

pub fn map(s: &mut Store, first: u64, flags: u32) {
    let leaf = SlotRef::from_bits(s.word(s.inodes[&LARGE].root.offset() + 24)).unwrap();
    let moved = Extent { file_block: FileBlock::ZERO, blocks: 3, bulk_block: BulkBlock::new(first), flags };
    s.write(leaf.offset(), &encode(&ExtentNode::Extents(vec![moved])));
}

pub fn mark(s: &mut Store, bitmap: SlotRef, blocks: std::ops::Range<u64>) {
    for block in blocks {
        let at = (bitmap.offset() + block / 8).get() as usize;
        s.bytes[at] |= 1 << (block % 8);
    }
}

/// Builds a sound store with a device 3 beside the first one. It holds three blocks of the large
/// file, from its block 5 on.
pub fn two_devices(kind: MemoryKind) -> (Store, Vec<BulkDeviceEntry>) {
    let mut s = Store::sample(kind);
    s.superblock.features |= FEATURE_DEVICES | FEATURE_BLOCK_SUMS;
    s.write(Offset::ZERO, &s.superblock.encode());
    let [bitmap, suspects, piece, leaf] = [(); 4].map(|()| s.allocate(64 << 10));
    let sums = BlockSums { piece, shift: 12 };
    s.write(sums.entry_at(2), &leaf.bits().to_le_bytes());
    let second = BulkDeviceEntry {
        uuid: [9; 16],
        number: 3,
        blocks: BLOCKS,
        bitmap,
        suspects,
        epoch: 2,
        leaving: true,
        unsettled: true,
        restored: false,
        place: 0,
        sums: Some(sums),
        absorbed: None,
    };
    let devices = vec![first_device(&s.superblock).unwrap(), second];
    list(&mut s, &devices);
    map(&mut s, (3 << 32) + 5, 0);
    (60..63).for_each(|block| s.mark_bulk(block, false));
    mark(&mut s, bitmap, 5..8);
    (s, devices)
}

fn kinds(s: &Store) -> Vec<K> {
    let mut kinds: Vec<K> = s.check().errors.iter().map(|finding| finding.kind).collect();
    kinds.dedup();
    kinds
}

#[test]
fn files_on_two_devices_are_sound_and_counted() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Dax] {
        let (s, _) = two_devices(kind);
        let report = s.check();
        assert_eq!(report.errors, [], "{kind:?}");
        assert_eq!(report.notes, []);
        assert_eq!(report.counts.bulk_blocks_used, 7);
    }
}

#[test]
fn blocks_of_each_device_are_compared_with_its_own_bitmap() {
    let (mut s, devices) = two_devices(MemoryKind::Logged);
    mark(&mut s, devices[1].bitmap, 70..71);
    let report = s.check();
    assert_eq!(kinds(&s), [K::BulkLeak]);
    assert_eq!(report.errors[0].offset, Some((3 << 32) + 70));
    let (mut s, _) = two_devices(MemoryKind::Logged);
    map(&mut s, (3 << 32) + 6, 0);
    assert_eq!(kinds(&s), [K::BulkLeak, K::BulkNotAllocated]);
    for first in [1 << 32, (3 << 32) + BLOCKS - 1, 199, (3 << 32) - 1] {
        let (mut s, _) = two_devices(MemoryKind::Logged);
        map(&mut s, first, 0);
        let found = kinds(&s);
        assert!(found.contains(&K::ExtentMap), "an extent from block {first:#x} on: {found:?}");
    }
}

#[test]
fn a_first_device_that_is_gone_has_no_blocks() {
    let (mut s, devices) = two_devices(MemoryKind::Logged);
    list(&mut s, &devices[1..]);
    let found = kinds(&s);
    assert!(found.contains(&K::ExtentMap) && found.contains(&K::BulkLeak), "{found:?}");
}

#[test]
fn a_damaged_list_is_found() {
    let (mut s, _) = two_devices(MemoryKind::Logged);
    for at in [0u64, 8, 12, 16 + 64, 16 + 64 + 24] {
        s.bytes[(BULK_LIST_AT + at).get() as usize] ^= 1;
        assert!(kinds(&s).contains(&K::BulkDevices), "byte {at}");
        s.bytes[(BULK_LIST_AT + at).get() as usize] ^= 1;
    }
    assert_eq!(kinds(&s), []);
    s.superblock.features &= !FEATURE_BLOCK_SUMS;
    s.write(Offset::ZERO, &s.superblock.encode());
    assert_eq!(kinds(&s), [K::BulkDevices], "without the checksums' feature");
    s.superblock.features = s.superblock.features & !FEATURE_DEVICES | FEATURE_BLOCK_SUMS;
    s.write(Offset::ZERO, &s.superblock.encode());
    assert_eq!(kinds(&s), [K::BulkDevices], "without the feature");
    // Pieces of a device are claimed like others, and so are the leaves of its checksums.
    let (mut s, devices) = two_devices(MemoryKind::Logged);
    let entry = devices[1].sums.unwrap().entry_at(2);
    s.write(entry, &[0; 8]);
    assert_eq!(kinds(&s), [K::Leak]);
    s.write(entry, &devices[1].bitmap.bits().to_le_bytes());
    assert!(kinds(&s).contains(&K::DoubleUse));
    s.write(entry, &[0xff; 8]);
    assert!(kinds(&s).contains(&K::BulkDevices));
    let (mut s, _) = two_devices(MemoryKind::Logged);
    let twice = BulkDeviceEntry { suspects: devices[1].bitmap, ..devices[1] };
    list(&mut s, &[devices[0], twice]);
    assert!(kinds(&s).contains(&K::DoubleUse) && kinds(&s).contains(&K::Leak), "{:?}", kinds(&s));
}

#[test]
fn files_in_doubt_are_named() {
    let (mut s, devices) = two_devices(MemoryKind::Logged);
    // A free block belongs to nobody, in doubt or not.
    mark(&mut s, devices[1].suspects, 40..42);
    assert_eq!(s.check().notes, []);
    mark(&mut s, devices[1].suspects, 7..8);
    let report = s.check();
    assert_eq!(report.errors, []);
    let notes: Vec<_> = report.notes.iter().map(|note| (note.kind, note.path.as_deref())).collect();
    assert_eq!(notes, [(K::BulkSuspect, Some("/large"))]);
}

#[test]
fn no_bit_of_the_list_makes_the_checker_panic() {
    let (mut s, _) = two_devices(MemoryKind::Logged);
    for bit in 0..(16 + 2 * 64) * 8 {
        let at = (BULK_LIST_AT + bit / 8).get() as usize;
        s.bytes[at] ^= 1 << (bit % 8);
        assert!(kinds(&s).contains(&K::BulkDevices), "bit {bit}");
        s.bytes[at] ^= 1 << (bit % 8);
    }
}

/// A device that holds only a mark.
#[derive(Clone)]
struct Marked {
    bytes: u64,
    block_bytes: u64,
    mark: Result<(u64, [u8; BULK_MARK]), String>,
}

impl BulkData for Marked {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), String> {
        let (place, mark) = self.mark.clone()?;
        assert_eq!((at, out.len()), (place, BULK_MARK), "nothing but the mark is read");
        out.copy_from_slice(&mark);
        Ok(())
    }
}

impl Marked {
    fn new(blocks: u64, mark: Mark) -> Marked {
        let block_bytes = 512;
        Marked { bytes: blocks * BULK_BLOCK + 512, block_bytes, mark: Ok((blocks * BULK_BLOCK, mark.encode())) }
    }

    fn found(&self) -> FoundDevice {
        let Marked { bytes, block_bytes, .. } = *self;
        let opened = OpenedDevice { bytes, block_bytes, data: Box::new(self.clone()) };
        FoundDevice { name: "a disk".into(), opened: Ok(opened) }
    }
}

const STORE: [u8; 16] = [7; 16];

fn right_mark() -> Mark {
    Mark { store: STORE, device: [9; 16], number: 3, epoch: 12 }
}

/// Builds a store whose device 3 was found in its sixth mount.
fn marked_store(kind: MemoryKind) -> Store {
    let (mut s, mut devices) = two_devices(kind);
    assert_eq!(s.superblock.uuid, STORE);
    devices[1].epoch = 12;
    list(&mut s, &devices);
    s
}

/// Checks a store with this device 3 and a first device with exactly enough room for its blocks.
fn with_third(s: &Store, restored: bool, third: &dyn Fn() -> FoundDevice) -> Report {
    let first =
        Marked { bytes: s.superblock.bulk_blocks * BULK_BLOCK, block_bytes: 512, mark: Err("not asked".into()) };
    let find = |entry: &BulkDeviceEntry| if entry.number == 0 { first.found() } else { third() };
    s.check_with(BulkDevices { find: &find, restored })
}

#[test]
fn marks_that_a_crash_leaves_are_sound() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Dax] {
        let s = marked_store(kind);
        for epoch in 11..=13 {
            let device = Marked::new(BLOCKS, Mark { epoch, ..right_mark() });
            let report = with_third(&s, false, &|| device.found());
            assert_eq!((report.errors, report.notes), (vec![], vec![]), "{kind:?}, epoch {epoch}");
        }
    }
}

#[test]
fn each_difference_of_a_mark_is_found_and_says_what_to_do() {
    let s = marked_store(MemoryKind::Logged);
    let right = Marked::new(BLOCKS, right_mark());
    let marked = |change: fn(&mut Mark)| {
        let mut mark = right_mark();
        change(&mut mark);
        Marked::new(BLOCKS, mark)
    };
    let [flipped, blank] = [1, 0xff].map(|bits| {
        let mut mark = right_mark().encode();
        mark[48] ^= bits;
        Marked { mark: Ok((BLOCKS * BULK_BLOCK, if bits == 1 { mark } else { [0; BULK_MARK] })), ..right.clone() }
    });
    for (device, kind, says) in [
        (marked(|mark| mark.store[15] ^= 1), K::BulkOtherStore, "belongs to another store"),
        (marked(|mark| mark.device[0] ^= 1), K::BulkSwapped, "is another device of the store"),
        (marked(|mark| mark.number = 2), K::BulkSwapped, "is another device of the store"),
        (
            marked(|mark| mark.epoch = 10),
            K::BulkOlder,
            "older copy (of mount 5, the store was mounted with it 6 times)",
        ),
        (marked(|mark| mark.epoch = 0), K::BulkOlder, "of mount 0"),
        (
            marked(|mark| mark.epoch = 14),
            K::BulkNewer,
            "was in use in mount 7, and the store's memory, images and log know of 6",
        ),
        (marked(|mark| mark.epoch = u64::MAX), K::BulkNewer, "they are an older copy"),
        (flipped, K::BulkMark, "does not carry the store's mark"),
        (blank, K::BulkMark, "`shoal salvage` reads them all the same"),
        (Marked { mark: Err("a bad sector".into()), ..right.clone() }, K::BulkMark, "cannot be read: a bad sector"),
        (Marked { bytes: right.bytes - 512, ..right.clone() }, K::BulkMark, "ends before its mark"),
        (Marked { block_bytes: 4096, ..right.clone() }, K::BulkMark, "ends before its mark"),
        (Marked { bytes: BLOCKS * BULK_BLOCK - 1, ..right.clone() }, K::BulkSize, "the store needs 5898240"),
        (Marked { block_bytes: 3 << 10, ..right.clone() }, K::BulkSize, "in units of 3072"),
    ] {
        let report = with_third(&s, false, &|| device.found());
        let [error] = &report.errors[..] else { panic!("{says}: {:?}", report.errors) };
        assert_eq!((error.kind, error.inode, error.offset), (kind, None, Some((3 << 32) + BLOCKS)), "{error}");
        let sentence = &error.sentence;
        assert!(sentence.starts_with("bulk device 3 (a disk): it ") || kind == K::BulkMark, "{sentence}");
        assert!(sentence.contains(says) && sentence.contains("; bring together"), "{sentence}");
        assert!(sentence.contains("`-o degraded`"), "{sentence}");
        assert_eq!((report.exit_code(), report.notes), (4, vec![]), "{says}");
        let json = serde_json::to_string(&with_third(&s, false, &|| device.found())).unwrap();
        assert!(json.contains(&format!("\"kind\":\"{kind:?}\"")), "{json}");
        // A region restored from an image may be older than the device, but nothing else may
        // differ.
        let restored = with_third(&s, true, &|| device.found()).errors;
        assert_eq!(restored.is_empty(), kind == K::BulkNewer, "{restored:?}");
    }
}

#[test]
fn a_device_that_is_not_named_is_an_error_and_one_that_is_away_a_note() {
    let s = marked_store(MemoryKind::Logged);
    let found = |opened| FoundDevice { name: String::new(), opened: Err(opened) };
    let report = with_third(&s, false, &|| found(NotOpened::Nowhere("nothing names it".into())));
    let [error] = &report.errors[..] else { panic!("{:?}", report.errors) };
    assert_eq!(error.kind, K::BulkNowhere);
    assert!(error.sentence.starts_with("bulk device 3: nothing names it; bring together"), "{error}");
    let report = with_third(&s, false, &|| found(NotOpened::Away("the server is away".into())));
    assert_eq!(report.errors, []);
    let [note] = &report.notes[..] else { panic!("{:?}", report.notes) };
    assert_eq!(note.kind, K::BulkMark);
    assert!(note.sentence.contains("was not compared: the server is away"), "{note}");
}

#[test]
fn a_device_without_a_mark_is_known_by_its_size_alone() {
    for kind in [MemoryKind::Logged, MemoryKind::Dax] {
        // A store of earlier programs, without a list.
        let s = Store::sample(kind);
        let bytes = s.superblock.bulk_blocks * BULK_BLOCK;
        let report = |bytes| {
            let device = Marked { bytes, block_bytes: 4096, mark: Err("not asked".into()) };
            s.check_with(BulkDevices { find: &|_| device.found(), restored: false })
        };
        assert_eq!((report(bytes).errors, report(bytes).notes), (vec![], vec![]));
        assert!(matches!(&report(bytes - 1).errors[..], [error] if error.kind == K::BulkSize));
        let away =
            |_: &BulkDeviceEntry| FoundDevice { name: String::new(), opened: Err(NotOpened::Away("away".into())) };
        let report = s.check_with(BulkDevices { find: &away, restored: false });
        assert_eq!((report.errors, report.notes), (vec![], vec![]), "nothing is there to be compared");
    }
}
