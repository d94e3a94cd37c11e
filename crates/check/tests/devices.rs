//! Several bulk devices: a sound list of them, and what is wrong with others.
//!
//! Rules: each store is sound before it is damaged, and each finding is demanded by kind. Left out: the devices themselves, which the
//! checker does not read.

use crate::store::Store;
use crate::store::sample::*;
use shoal_check::FindingKind as K;
use shoal_format::SlotRef;
use shoal_format::block_sums::BlockSums;
use shoal_format::bulk_list::{BULK_LIST_AT, BulkDeviceEntry, encode_list, only_device};
use shoal_format::extent::{BulkBlock, Extent, ExtentNode, FileBlock, encode};
use shoal_format::superblock::{FEATURE_BLOCK_SUMS, FEATURE_DEVICES, MemoryKind};
use shoal_format::{Offset, PAGE};

/// Blocks of the second device.
const BLOCKS: u64 = 90;

fn list(s: &mut Store, devices: &[BulkDeviceEntry]) {
    let mut page = encode_list(devices);
    page.resize(PAGE as usize, 0);
    s.write(BULK_LIST_AT, &page);
}

fn map(s: &mut Store, first: u64) {
    let leaf = SlotRef::from_bits(s.word(s.inodes[&LARGE].root.offset() + 24)).unwrap();
    let moved = Extent { file_block: FileBlock::ZERO, blocks: 3, bulk_block: BulkBlock::new(first), flags: 0 };
    s.write(leaf.offset(), &encode(&ExtentNode::Extents(vec![moved])));
}

fn mark(s: &mut Store, bitmap: SlotRef, blocks: std::ops::Range<u64>) {
    for block in blocks {
        let at = (bitmap.offset() + block / 8).get() as usize;
        s.bytes[at] |= 1 << (block % 8);
    }
}

/// A sound store with a device 3 beside the first, which has three blocks of the large file from its block 5 on.
fn two_devices(kind: MemoryKind) -> (Store, Vec<BulkDeviceEntry>) {
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
        sums: Some(sums),
    };
    let devices = vec![only_device(&s.superblock).unwrap(), second];
    list(&mut s, &devices);
    map(&mut s, (3 << 32) + 5);
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
    map(&mut s, (3 << 32) + 6);
    assert_eq!(kinds(&s), [K::BulkLeak, K::BulkNotAllocated]);
    for first in [1 << 32, (3 << 32) + BLOCKS - 1, 199, (3 << 32) - 1] {
        let (mut s, _) = two_devices(MemoryKind::Logged);
        map(&mut s, first);
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
    // Its pieces are claimed like others, and so are the leaves of its checksums.
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
    // A free block is nobody's, in doubt or not.
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
