//! Each kind of damage, one at a time: a sound store, one change, and the expected finding.
//!
//! Rules: every sample is checked to be sound before it is damaged; every `FindingKind` appears
//! here.
//! Left out: random damage (`hostile`).

use crate::store::media::{Image, Log, Memory};
use crate::store::sample::*;
use crate::store::{FIRST_LSN, Store, check_images, check_memory, empty_inode};
use shoal_check::{BulkData, BulkOpener, CheckError, FindingKind as K, ImageSource, Report, Source, check};
use shoal_format::dir::{BUCKET_HEADER, NODE_BYTES, NodeRef, bucket_header};
use shoal_format::extent::{BulkBlock, EXTENT_NEW, Extent, ExtentNode, FileBlock, encode};
use shoal_format::inode::{INODE_HAS_NEW, INODE_TRUNCATING, Ino, Layout, S_IFDIR, S_IFREG};
use shoal_format::object::{Codec, Object, SpillPlace};
use shoal_format::record::{Entry, RecordKind};
use shoal_format::segment::{SEGMENT_ENTRY, SegmentEntry, SegmentUse};
use shoal_format::slot::class_geometry;
use shoal_format::superblock::{FEATURE_BUCKETS, FEATURE_SPILLED, MemoryKind, ROOTS_AT};
use shoal_format::{Offset, PAGE, SEGMENT, SlotRef};

fn has(report: &Report, kind: K) -> bool {
    report.errors.iter().any(|finding| finding.kind == kind)
}

/// Damages a sound sample and demands the finding.
#[track_caller]
fn gives(kind: K, damage: impl FnOnce(&mut Store)) -> Report {
    let mut store = Store::sample(MemoryKind::Logged);
    damage(&mut store);
    let report = store.check();
    assert!(has(&report, kind), "expected {kind:?}, got {:#?}", report.errors);
    report
}

/// Like [`gives`], and demands that nothing else is reported.
#[track_caller]
fn gives_only(kind: K, damage: impl FnOnce(&mut Store)) -> Report {
    let report = gives(kind, damage);
    assert!(report.errors.iter().all(|finding| finding.kind == kind), "{:#?}", report.errors);
    report
}

#[test]
fn a_sound_store_gives_counts_and_no_findings() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Dax] {
        let report = Store::sample(kind).check();
        assert_eq!(report.errors, [], "{kind:?}");
        assert_eq!(report.notes, []);
        assert_eq!(report.exit_code(), 0);
        let c = report.counts;
        assert_eq!((c.inodes, c.directories, c.files, c.symlinks, c.others, c.orphans), (109, 3, 104, 1, 1, 0));
        assert_eq!((c.bulk_blocks_used, c.large_bytes), (7, 7 * 65536));
        assert_eq!(c.small_bytes, 16 + 100 * 32 + 16 + 32768 + 5120);
        assert_eq!(report.replayed_records, 0);
        assert!(!report.clean);
    }
}

#[test]
fn what_cannot_be_opened_is_said() {
    let store = Store::sample(MemoryKind::Logged);
    let (log, nothing) = (store.log_device(), Image(Vec::new()));
    assert!(has(&check_images([&nothing, &nothing], &log), K::NoAnchor));
    let mut image = store.image();
    image[0] ^= 1;
    assert!(has(&check_images([&Image(image), &nothing], &log), K::Superblock));
    gives_only(K::Anchor, |s| s.anchor.uuid = [8; 16]);
    let memory = Store::sample(MemoryKind::Battery).memory();
    assert!(has(&check_memory(&Memory(memory.0[..1 << 20].to_vec())), K::Superblock), "cut memory");
    assert!(has(&check_memory(&Memory(Vec::new())), K::Superblock), "no memory");
    let image = Image(store.image());
    let image = ImageSource::Images([&image, &nothing]);
    let source = Source { sums: false, ..Source::of(image, None) };
    assert!(matches!(check(source, &mut |_| {}), Err(CheckError::LogMissing)));
}

#[test]
fn the_newest_image_counts_and_one_being_written_does_not() {
    let mut store = Store::sample(MemoryKind::Logged);
    let old = Image(store.image());
    store.anchor.generation = 4.into();
    store.edit(SMALL, |inode| inode.nlink = 5);
    let mut new = Image(store.image());
    let log = store.log_device();
    assert!(has(&check_images([&old, &new], &log), K::LinkCount));
    assert!(has(&check_images([&new, &old], &log), K::LinkCount));
    new.0[PAGE as usize + 20] ^= 1;
    let report = check_images([&new, &old], &log);
    assert!(report.is_sound(), "{:?}", report.errors);
    assert!(report.notes.iter().any(|note| note.kind == K::NoAnchor));
}

#[test]
fn a_page_that_changed_after_it_was_written_is_found() {
    let store = Store::sample(MemoryKind::Logged);
    let mut image = store.image();
    image[store.inodes[&SMALL].root.offset().get() as usize] ^= 1;
    let report = check_images([&Image(image), &Image(Vec::new())], &store.log_device());
    assert_eq!(report.errors.iter().map(|finding| finding.kind).collect::<Vec<_>>(), [K::PageSum]);
}

#[test]
fn a_page_never_written_to_the_image_needs_no_sum() {
    let store = Store::sample(MemoryKind::Logged);
    let mut image = store.image();
    let blank = image.chunks(PAGE as usize).position(|page| page.iter().all(|&b| b == 0)).unwrap();
    let sum = store.superblock.region_bytes as usize + blank * 4;
    assert_ne!(image[sum..sum + 4], [0; 4]);
    image[sum..sum + 4].fill(0);
    // Page 1 has no sum, so these bytes do not matter.
    image[store.superblock.region_bytes as usize + 4] = 9;
    let log = store.log_device();
    assert_eq!(check_images([&Image(image.clone()), &Image(Vec::new())], &log).errors, []);
    image[blank * PAGE as usize] = 1;
    assert!(has(&check_images([&Image(image), &Image(Vec::new())], &log), K::PageSum));
}

#[test]
fn the_log_is_replayed_and_may_not_end_before_the_seal() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        let mut s = Store::sample(kind);
        s.set_clean();
        // The position is just before the ring's end, so that the record wraps within its header.
        s.anchor.replay_lsn = (FIRST_LSN - 16).into();
        s.anchor.sealed_lsn = s.anchor.replay_lsn;
        if kind == MemoryKind::Logged {
            s.anchor.replay_lsn = FIRST_LSN.into();
            s.anchor.sealed_lsn = FIRST_LSN.into();
        }
        // The log holds the repair of a damaged inode. Bits are set twice to show that replay takes
        // absolute values.
        let at = s.inode_at(SMALL);
        let good = s.bytes[at.get() as usize..][..96].to_vec();
        s.write(at, &[0xff; 96]);
        let word = s.superblock.bulk_bitmap;
        s.mark_bulk(64, true);
        let entries = [
            Entry::Zero { at, len: 96 },
            Entry::Write { at, bytes: &good },
            Entry::ClearBits { at: word + 8, mask: 1 },
            Entry::SetBits { at: word, mask: s.word(word) },
        ];
        let lsn = s.anchor.replay_lsn.get();
        append_at(&mut s, lsn, &entries);
        let report = s.check();
        assert_eq!(report.errors, [], "{kind:?}");
        assert_eq!((report.replayed_records, report.log_bytes), (2, s.log.len() as u64));
        assert!(!report.clean, "a change was replayed");
        s.anchor.sealed_lsn = (lsn + s.log.len() as u64).into();
        assert_eq!(s.check().errors, []);
        s.anchor.sealed_lsn = (lsn + s.log.len() as u64 + 8).into();
        assert!(has(&s.check(), K::LogCut));
    }
}

/// Appends an epoch record and then a transaction, chained from `lsn`.
fn append_at(s: &mut Store, lsn: u64, entries: &[Entry<'_>]) {
    use shoal_format::record::RecordHeader;
    use zerocopy::IntoBytes;
    let mut payload = Vec::new();
    for entry in entries {
        entry.encode(&mut payload);
    }
    for (kind, payload) in [(RecordKind::Epoch, vec![9; 32]), (RecordKind::Tx, payload)] {
        let at = lsn + s.log.len() as u64;
        let header = RecordHeader::new(
            kind,
            shoal_format::Lsn::new(at),
            s.salt,
            payload.len(),
            s.superblock.sums().of(&payload),
        );
        s.salt = header.crc.get();
        s.log.extend_from_slice(header.as_bytes());
        s.log.extend_from_slice(&payload);
        s.log.resize(s.log.len().next_multiple_of(8), 0);
    }
}

#[test]
fn a_stale_record_behind_the_log_does_not_count() {
    let mut s = Store::sample(MemoryKind::Logged);
    s.append(RecordKind::Epoch, &[1; 32]);
    s.salt ^= 1;
    let roots = ROOTS_AT;
    s.append_entries(&[Entry::Zero { at: roots, len: 24 }]);
    let report = s.check();
    assert_eq!((report.errors.len(), report.replayed_records), (0, 1));
    let (cut, start) = (s.log.len() - 8, FIRST_LSN);
    let log = Log { start, bytes: s.log[..cut].to_vec() };
    assert_eq!(check_images([&Image(s.image()), &Image(Vec::new())], &log).replayed_records, 1);
}

#[test]
fn an_entry_no_writer_writes_is_found() {
    gives_only(K::LogEntry, |s| _ = s.append_entries(&[Entry::Zero { at: Offset::new(PAGE), len: 8 }]));
    gives_only(K::LogEntry, |s| {
        _ = s.append_entries(&[Entry::Zero { at: Offset::new(s.superblock.region_bytes - 8), len: 16 }])
    });
    gives_only(K::LogEntry, |s| _ = s.append(RecordKind::Tx, &[1, 2, 3]));
    let mut s = Store::sample(MemoryKind::Dax);
    let ring = s.superblock.ring;
    s.append_entries(&[Entry::Write { at: ring, bytes: &[1] }]);
    assert!(has(&s.check(), K::LogEntry));
}

#[test]
fn roots_and_table_nodes_out_of_range_are_found() {
    let roots = |s: &Store| (s.word(ROOTS_AT), s.word(ROOTS_AT + 16));
    gives(K::Roots, |s| s.set_roots(1, 1, roots(s).1));
    gives(K::Roots, |s| s.set_roots(0, 1, roots(s).1));
    gives(K::Roots, |s| s.set_roots(roots(s).0, 9, roots(s).1));
    gives(K::Roots, |s| s.set_roots(roots(s).0, 1, 513));
    gives(K::InodeTable, |s| s.set_roots(roots(s).0, 1, 3));
    gives(K::InodeTable, |s| {
        let table = SlotRef::from_bits(roots(s).0).unwrap();
        s.write(table.offset() + 3 * 8, &table.bits().to_le_bytes());
    });
}

#[test]
fn more_space_withheld_than_there_is_is_found() {
    let (segments, blocks) = (ROOTS_AT + 48, ROOTS_AT + 56);
    let fits = |s: &mut Store| {
        s.write(segments, &s.superblock.segment_count.to_le_bytes());
        s.write(blocks, &s.superblock.bulk_blocks.to_le_bytes());
    };
    let mut store = Store::sample(MemoryKind::Logged);
    fits(&mut store);
    assert_eq!(store.check().errors, [], "all of it may be withheld");
    for at in [segments, blocks] {
        for more in [1, u64::MAX / 2] {
            let report = gives(K::Roots, |s| {
                fits(s);
                s.write(at, &(s.word(at) + more).to_le_bytes());
            });
            let roots = report.errors.iter().find(|finding| finding.kind == K::Roots).unwrap().to_string();
            assert!(roots.contains("are withheld, more than there are"), "{roots}");
        }
    }
}

#[test]
fn a_damaged_segment_table_is_found() {
    let attributes = |s: &Store| s.inodes[&SMALL].xattr.segment();
    gives(K::SegmentEntry, |s| s.write(s.superblock.segment_table + 16 * 40, &[9]));
    gives_only(K::SegmentEntry, |s| {
        // The kind and the class of a segment, then the number of slots.
        let slots = |segment| match s.word(s.superblock.segment_table + segment * SEGMENT_ENTRY).to_le_bytes() {
            [1, class, ..] => class_geometry(class).0,
            _ => 0,
        };
        let is_wide = |segment: &u64| slots(*segment) > 64 && slots(*segment) % 64 > 0;
        let segment = (0..s.superblock.segment_count).find(is_wide).unwrap();
        let last = Offset::of_segment(segment) + u64::from(slots(segment) / 64) * 8;
        s.write(last, &(s.word(last) | 1 << 63).to_le_bytes());
    });
    gives_only(K::SegmentRun, |s| s.set_segment(63, SegmentEntry::new(SegmentUse::RunBody)));
    gives(K::SegmentRun, |s| s.set_segment(attributes(s), SegmentEntry::new(SegmentUse::RunHead(2))));
    gives(K::SegmentRun, |s| s.set_segment(63, SegmentEntry::new(SegmentUse::RunHead(2))));
    gives_only(K::SegmentReserved, |s| s.set_segment(60, SegmentEntry::new(SegmentUse::Reserved)));
    gives_only(K::SegmentReserved, |s| s.set_segment(0, SegmentEntry::new(SegmentUse::Free)));
}

#[test]
fn tables_of_several_levels_and_with_gaps_are_walked() {
    let mut s = Store::new(MemoryKind::Logged, 64);
    // The last number needs all four levels. The gaps make inode numbers and positions differ.
    for ino in [20, 9000, 5_000_000, u32::MAX - 1] {
        s.add_data(1, format!("file-{ino}").as_bytes(), ino, b"data");
    }
    s.finish();
    let report = s.check();
    assert_eq!((report.errors.len(), report.counts.files), (0, 4), "{:?}", report.errors);
    s.edit(5_000_000, |inode| inode.nlink = 2);
    let report = s.check();
    assert_eq!(report.errors[0].path.as_deref(), Some("/file-5000000"));
    s.edit(9000, |inode| inode.mode = 0o644);
    assert!(has(&s.check(), K::InodeRecord));
}

#[test]
fn wrong_counts_matter_only_after_a_clean_unmount() {
    let count = |s: &mut Store, at| s.write(ROOTS_AT + at, &[99]);
    for at in [24, 32, 40] {
        let mut s = Store::sample(MemoryKind::Logged);
        count(&mut s, at);
        assert_eq!(s.check().errors, []);
        gives_only(K::RootCounts, |s| {
            s.set_clean();
            count(s, at);
        });
    }
}

#[test]
fn damaged_inodes_are_found() {
    let report = gives(K::InodeRecord, |s| s.write(s.inode_at(SMALL) + 20, &[0xee]));
    let finding = report.errors.iter().find(|finding| finding.kind == K::InodeRecord).unwrap();
    assert_eq!((finding.inode, finding.path.as_deref()), (Some(SMALL), Some("/hard")));
    gives(K::InodeZero, |s| s.edit(0, |inode| *inode = empty_inode(S_IFREG)));
    gives(K::RootDirectory, |s| s.edit(1, |inode| inode.parent = Ino::new(2)));
    gives(K::RootDirectory, |s| s.edit(1, |inode| *inode = empty_inode(0)));
    gives_only(K::Allocated, |s| s.edit(SMALL, |inode| inode.allocated += 1));
    gives_only(K::Allocated, |s| s.edit(HASHED, |inode| inode.allocated -= 1));
}

#[test]
fn references_and_allocation_must_agree() {
    let map = |s: &Store| s.inodes[&CHUNKED].root.offset();
    gives(K::Reference, |s| s.write(map(s) + 8, &1u64.to_le_bytes()));
    gives(K::Reference, |s| s.write(map(s) + 8, &SlotRef::slot(Offset::of_segment(64), 0).bits().to_le_bytes()));
    gives(K::WrongClass, |s| {
        s.write(map(s) + 8, &SlotRef::slot(Offset::new(s.word(map(s)) & ((1 << 40) - 1)), 31).bits().to_le_bytes())
    });
    gives(K::NotAllocated, |s| s.write(map(s) + 8, &SlotRef::slot(Offset::of_segment(63), 32).bits().to_le_bytes()));
    gives_only(K::NotAllocated, |s| s.mark(SlotRef::from_bits(s.word(map(s))).unwrap(), false));
    gives_only(K::NotAllocated, |s| s.mark(s.inodes[&FIRST_OF_HASHED].root, false));
    gives(K::DoubleUse, |s| s.write(map(s) + 8, &s.word(map(s)).to_le_bytes()));
    gives(K::DoubleUse, |s| s.edit(FIRST_OF_HASHED, |inode| inode.root = SlotRef::slot(inode.root.offset() + 32, 1)));
    gives(K::DoubleUse, |s| {
        let run = s.inodes[&SMALL].xattr;
        s.edit(SYMLINK, |inode| inode.xattr = run);
    });
    for len in [16, 100, 1024, 32768, 200_000] {
        let report = gives_only(K::Leak, |s| _ = s.allocate(len));
        assert_eq!(report.errors.len(), 1);
    }
    gives_only(K::Leak, |s| {
        let (slot, allocated) = (s.inodes[&SMALL].xattr, s.inodes[&SMALL].xattr.capacity());
        s.edit(SMALL, |inode| (inode.xattr, inode.allocated) = (SlotRef::NONE, inode.allocated - allocated));
        assert!(slot.is_run());
    });
}

#[test]
fn damaged_files_links_and_attributes_are_found() {
    gives_only(K::SymbolicLink, |s| s.edit(SYMLINK, |inode| inode.size = 0));
    gives_only(K::SymbolicLink, |s| s.edit(SYMLINK, |inode| inode.size = 17));
    gives_only(K::SymbolicLink, |s| s.write(s.inodes[&SYMLINK].root.offset() + 3, &[0]));
    gives_only(K::Chunk, |s| {
        let run = s.inodes[&SMALL].xattr.bits().to_le_bytes();
        s.write(s.inodes[&CHUNKED].root.offset() + 8, &run);
    });
    gives_only(K::ExtendedAttributes, |s| s.write(s.inodes[&SMALL].xattr.offset(), &[0xff; 4]));
    gives_only(K::ExtendedAttributes, |s| {
        let second = s.inodes[&SMALL].xattr.offset() + 8 + 8 + 6 + 40_000 + 8;
        s.write(second, b"user.a");
    });
}

#[test]
fn damaged_extent_maps_are_found() {
    let root = |s: &Store| s.inodes[&LARGE].root.offset();
    let leaf = |s: &Store, i: u64| SlotRef::from_bits(s.word(root(s) + 16 + i * 16 + 8)).unwrap().offset();
    let extents = |list: &[Extent]| encode(&ExtentNode::Extents(list.to_vec()));
    gives(K::ExtentMap, |s| s.write(root(s), &[7]));
    gives(K::ExtentMap, |s| s.write(leaf(s, 0), &[1]));
    let extent =
        |first, flags| Extent { file_block: FileBlock::new(first), blocks: 3, bulk_block: BulkBlock::new(60), flags };
    // Flags that no writer writes: both at once, and an unknown one.
    for flags in [3, 4] {
        gives(K::ExtentMap, |s| s.write(leaf(s, 0), &extents(&[extent(0, flags)])));
    }
    gives_only(K::ExtentMap, |s| s.write(leaf(s, 0), &extents(&[extent(3, 0)])));
    gives_only(K::ExtentMap, |s| {
        let below = Extent { file_block: FileBlock::new(4), blocks: 4, bulk_block: BulkBlock::new(100), flags: 0 };
        s.write(leaf(s, 1), &extents(&[below]));
    });
    gives_only(K::NewUnflagged, |s| s.write(leaf(s, 0), &extents(&[extent(0, EXTENT_NEW)])));
    let mut s = Store::sample(MemoryKind::Logged);
    let at = leaf(&s, 0);
    s.write(at, &extents(&[extent(0, EXTENT_NEW)]));
    s.edit(LARGE, |inode| inode.flags = INODE_HAS_NEW);
    note_or_error(&mut s, K::NewData);
}

#[test]
fn bulk_blocks_must_be_mapped_once_and_marked() {
    gives_only(K::BulkLeak, |s| s.mark_bulk(63, true));
    gives_only(K::BulkLeak, |s| s.mark_bulk(0, true));
    gives_only(K::BulkLeak, |s| s.mark_bulk(250, true));
    gives_only(K::BulkNotAllocated, |s| (60..200).for_each(|block| s.mark_bulk(block, false)));
    let report = gives_only(K::BulkNotAllocated, |s| s.mark_bulk(101, false));
    assert_eq!(report.errors[0].path.as_deref(), Some("/large"));
    assert_eq!(report.errors[0].offset, Some(101));
    gives(K::BulkDoubleUse, |s| {
        let leaf = SlotRef::from_bits(s.word(s.inodes[&LARGE].root.offset() + 24)).unwrap();
        let moved = Extent { file_block: FileBlock::ZERO, blocks: 3, bulk_block: BulkBlock::new(99), flags: 0 };
        s.write(leaf.offset(), &encode(&ExtentNode::Extents(vec![moved])));
    });
    let s = Store::sample(MemoryKind::Logged);
    let (image, nothing, log) = (Image(s.image()), Image(Vec::new()), s.log_device());
    let image = ImageSource::Images([&image, &nothing]);
    let source = Source { bulk_bytes: Some(199 * 65536), ..Source::of(image, Some(&log)) };
    assert!(has(&check(source, &mut |_| {}).unwrap(), K::BulkSize));
}

#[test]
fn damaged_nodes_and_buckets_are_found() {
    let node = |s: &Store| s.inodes[&HASHED].root.offset();
    gives(K::DirectoryNode, |s| s.write(node(s), &u64::MAX.to_le_bytes()));
    gives(K::DirectoryNode, |s| s.write(node(s) + 8, &0u64.to_le_bytes()));
    gives(K::DirectoryNode, |s| s.edit(HASHED, |inode| inode.root = SlotRef::slot(inode.root.offset(), 20)));
    gives(K::DoubleUse, |s| {
        let (root, node) = (s.inodes[&HASHED].root, node(s));
        s.write(node, &NodeRef::Node(root).encode().to_le_bytes());
    });
    let report = gives(K::DirectoryNode, |s| {
        // A chain of nodes that is deeper than the hash has bits.
        let mut at = node(s);
        for _ in 0..7 {
            let next = s.allocate(NODE_BYTES);
            s.write(at, &NodeRef::Node(next).encode().to_le_bytes());
            at = next.offset();
        }
    });
    assert!(report.errors.iter().any(|finding| finding.sentence.contains("no hash bits are left")));
    // Down to the level at which the hash ends, the directory is sound.
    let mut s = Store::sample(MemoryKind::Logged);
    let bucket = SlotRef::from_bits(s.word(node(&s)) & ((1 << 56) - 1)).unwrap();
    s.write(node(&s), &NodeRef::Null.encode().to_le_bytes().repeat(32));
    let lost =
        shoal_format::dir::Bucket::new(&s.bytes[bucket.offset().get() as usize..][..1024]).unwrap().live() as u64;
    let mut at = node(&s);
    for _ in 0..6 {
        let next = s.allocate(NODE_BYTES);
        s.write(at, &NodeRef::Node(next).encode().to_le_bytes());
        at = next.offset();
    }
    s.edit(HASHED, |inode| {
        inode.size -= lost;
        inode.allocated += 6 * NODE_BYTES - 1024;
    });
    let report = s.check();
    let after = [K::LinkCount, K::Leak];
    assert!(report.errors.iter().all(|finding| after.contains(&finding.kind)), "{:#?}", report.errors);
    let packed = |s: &Store| s.inodes[&DIRECTORY].root.offset();
    gives(K::DirectoryBucket, |s| s.write(packed(s), &[255, 255]));
    gives(K::DirectoryBucket, |s| s.edit_entry(DIRECTORY, |entry| entry[13] += 1));
    gives(K::DirectoryBucket, |s| {
        s.edit(DIRECTORY, |inode| inode.root = SlotRef::slot(Offset::new(inode.root.offset().segment() * SEGMENT), 22))
    });
    gives_only(K::EntryCount, |s| s.edit(DIRECTORY, |inode| inode.size = 2));
    gives_only(K::EntryCount, |s| s.write(packed(s), &bucket_header(BUCKET_HEADER + 14 + 5, 0)));
}

#[test]
fn damaged_entries_are_found() {
    gives_only(K::EntryName, |s| s.edit_entry(DIRECTORY, |entry| entry[16] = b'/'));
    gives_only(K::EntryHash, |s| s.edit_entry(DIRECTORY, |entry| entry[0] ^= 1));
    gives_only(K::EntryHash, |s| s.edit_entry(DIRECTORY, |entry| entry[16] = b'x'));
    gives_only(K::EntryPlace, |s| {
        // Two adjacent buckets change places.
        let node = s.inodes[&HASHED].root.offset();
        let (a, b) = (s.word(node), s.word(node + 32 * 8));
        (0..32).for_each(|i| s.write(node + i * 8, &b.to_le_bytes()));
        (32..64).for_each(|i| s.write(node + i * 8, &a.to_le_bytes()));
    });
    gives_only(K::EntryType, |s| s.edit_entry(DIRECTORY, |entry| entry[12] = 1));
    gives(K::EntryDangling, |s| s.edit_entry(DIRECTORY, |entry| entry[8] = 15));
    gives(K::EntryDangling, |s| s.edit_entry(DIRECTORY, |entry| entry[8..12].fill(0xff)));
    let mut s = Store::new(MemoryKind::Logged, 64);
    s.add_data(1, b"twice", 2, b"data");
    s.link(1, b"twice", 2);
    s.finish();
    assert!(has(&s.check(), K::EntryTwice));
}

#[test]
fn damaged_packed_buckets_are_found() {
    let mut s = Store::sample(MemoryKind::Logged);
    let used = [s.pack_bucket(1), s.pack_bucket(DIRECTORY)];
    let report = s.check();
    assert_eq!(report.errors, []);
    assert_eq!(report.counts, Store::sample(MemoryKind::Logged).check().counts);
    // Names also come from packed buckets.
    s.edit(SMALL, |inode| inode.nlink = 1);
    assert_eq!(s.check().errors[0].path.as_deref(), Some("/hard"));
    let packed = |s: &mut Store| {
        s.pack_bucket(DIRECTORY);
        s.inodes[&DIRECTORY].root.offset()
    };
    for bit in [0, 9, 35, 66, used[1] * 8 - 1] {
        gives(K::DirectoryBucket, |s| {
            let at = packed(s).get() as usize;
            s.bytes[at + bit / 8] ^= 1 << (bit % 8);
        });
    }
    gives_only(K::DirectoryBucket, |s| {
        packed(s);
        s.superblock.features &= !FEATURE_BUCKETS;
        s.write(Offset::ZERO, &s.superblock.encode());
    });
    gives_only(K::DirectoryBucket, |s| {
        // A number takes one byte more than needed, under the right checksum.
        let at = packed(s).get() as usize;
        let end = at + used[1];
        s.bytes.copy_within(at + 10..end, at + 11);
        (s.bytes[at], s.bytes[at + 9], s.bytes[at + 10]) = (used[1] as u8 + 1, s.bytes[at + 9] | 0x80, 0);
        let seed = u32::from_le_bytes(s.bytes[at..at + 4].try_into().unwrap());
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&s.bytes[at + BUCKET_HEADER..end + 1], seed.into());
        s.write(Offset::new(at as u64 + 4), &(sum as u32 | 1 << 31).to_le_bytes());
    });
    gives(K::DirectoryBucket, |s| {
        // A plain bucket under a node, in a piece of half the length.
        let half = s.allocate(512);
        let node = s.inodes[&HASHED].root.offset();
        s.write(half.offset(), &bucket_header(BUCKET_HEADER, 0));
        let bits = NodeRef::Bucket { slot: half, depth: 3 }.encode().to_le_bytes();
        (0..32).for_each(|i| s.write(node + i * 8, &bits));
    });
}

/// Returns the payload of the spilled file.
fn payload() -> Vec<u8> {
    (0..1000u32).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// Spills the file `SMALL` to the file `LARGE`, which loses its name.
fn spill(s: &mut Store, place: u64) {
    s.superblock.features |= FEATURE_SPILLED;
    s.write(Offset::ZERO, &s.superblock.encode());
    let bucket = s.inodes[&1].root;
    let entries = &mut s.bytes[bucket.offset().get() as usize..][..bucket.capacity() as usize];
    let at = entries.windows(5).position(|part| part == b"large").expect("it has a name");
    // A removed entry keeps its length.
    entries[at - 6..at - 2].fill(0);
    entries[2] -= 1;
    s.edit(1, |root| root.size -= 1);
    s.write(ROOTS_AT + 96, &(u64::from(s.inodes[&LARGE].generation) << 32 | u64::from(LARGE)).to_le_bytes());
    let object = Object {
        users: 1,
        sum: 0,
        codec: Codec::Stored,
        bytes: 1000,
        payload: 1000,
        pieces: 0,
        spilled: true,
        dictionary: 0,
    };
    let object = Object { sum: object.sum_of(&payload()), ..object };
    let mut bytes = object.encode().to_vec();
    bytes.extend(SpillPlace(place).encode(&object));
    let head = s.allocate_with(&bytes);
    s.mark(s.inodes[&SMALL].root, false);
    s.edit(SMALL, |inode| {
        (inode.layout, inode.root, inode.size) = (Layout::Packed, head, 1000);
        inode.allocated = head.capacity() + 1024 + inode.xattr.capacity();
    });
}

/// A bulk device with the payload in the second sector of block 60, the first block of `LARGE`.
/// Nothing after it can be read.
struct Bulk(Vec<u8>);

impl BulkData for Bulk {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), String> {
        let from = (at - 60 * 65536 - 512) as usize;
        out.copy_from_slice(self.0.get(from..from + out.len()).ok_or("a bad sector")?);
        Ok(())
    }
}

#[test]
fn payloads_of_spilled_objects_have_their_sums() {
    let mut s = Store::sample(MemoryKind::Logged);
    spill(&mut s, 512);
    let (image, nothing, log) = (Image(s.image()), Image(Vec::new()), s.log_device());
    let report = |image: &Image, open: &BulkOpener<'_>| {
        let image = ImageSource::Images([image, &nothing]);
        let source = Source { bulk: Some(open), ..Source::of(image, Some(&log)) };
        check(source, &mut |_| {}).unwrap()
    };
    let with = |bytes: Vec<u8>| report(&image, &|| Ok(Box::new(Bulk(bytes.clone()))));
    assert_eq!(with(payload()).errors, []);
    for (bytes, says) in [
        (payload().into_iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 999)).collect(), "checksum"),
        (payload()[..999].to_vec(), "a bad sector"),
    ] {
        let errors = with(bytes).errors;
        let [error] = &errors[..] else { panic!("{errors:?}") };
        assert_eq!((error.kind, error.inode, error.offset), (K::SpilledData, Some(SMALL), Some(60 * 65536 + 512)));
        assert!(error.path.is_some(), "{error}");
        assert!(error.sentence.contains(says), "{error}");
    }
    let away = report(&image, &|| Err("the server is away".into()));
    assert_eq!(away.errors, []);
    assert!(away.notes.iter().any(|note| note.kind == K::SpilledData && note.sentence.contains("the server is away")));
    // A range outside the spill file is reported once.
    let mut s = Store::sample(MemoryKind::Logged);
    spill(&mut s, 70 << 30);
    let none = || -> Result<Box<dyn BulkData>, String> { panic!("nothing is to be read") };
    let kinds: Vec<K> = report(&Image(s.image()), &none).errors.iter().map(|error| error.kind).collect();
    assert_eq!(kinds, [K::SpilledNowhere]);
}

#[test]
fn spilled_objects_lie_in_the_spill_file_each_by_itself() {
    // The place is in the first block of the file, see
    // `bulk_blocks_must_be_mapped_once_and_marked`.
    let sound = |s: &mut Store| spill(s, 512);
    let mut s = Store::sample(MemoryKind::Logged);
    sound(&mut s);
    let report = s.check();
    assert_eq!(report.errors, []);
    assert_eq!((report.counts.large_files, report.counts.spilled_bytes), (0, 1024));
    gives_only(K::SpilledNowhere, |s| spill(s, 70 << 30));
    gives_only(K::Allocated, |s| {
        sound(s);
        s.edit(SMALL, |inode| inode.allocated -= 512);
    });
    gives(K::SpillFile, |s| {
        sound(s);
        s.superblock.features &= !FEATURE_SPILLED;
        s.write(Offset::ZERO, &s.superblock.encode());
    });
    gives(K::SpillFile, |s| {
        sound(s);
        s.edit(LARGE, |inode| inode.nlink = 2);
    });
    gives(K::SpillFile, |s| {
        sound(s);
        s.write(ROOTS_AT + 96, &4000u32.to_le_bytes());
    });
    gives(K::SpillFile, |s| {
        sound(s);
        s.write(ROOTS_AT + 100, &77u32.to_le_bytes());
    });
    // A bit is flipped in the spill place.
    gives(K::PackedObject, |s| {
        sound(s);
        let at = s.inodes[&SMALL].root.offset().get() as usize + 16;
        s.bytes[at] ^= 2;
    });
    gives_only(K::SpilledDoubleUse, |s| {
        sound(s);
        let head = s.inodes[&SMALL].root;
        let bytes = s.bytes[head.offset().get() as usize..][..24].to_vec();
        let other = s.allocate_with(&bytes);
        s.edit(EMPTY, |inode| {
            (inode.layout, inode.root, inode.size) = (Layout::Packed, other, 1000);
            inode.allocated = other.capacity() + 1024;
        });
    });
}

#[test]
fn wrong_link_counts_and_trees_are_found() {
    let report = gives_only(K::LinkCount, |s| s.edit(SMALL, |inode| inode.nlink = 1));
    assert_eq!(report.errors[0].to_string(), "inode 3 (/hard): link count is 1, directories name it 2 times");
    gives_only(K::LinkCount, |s| s.edit(HASHED, |inode| inode.nlink = 3));
    gives_only(K::LinkCount, |s| s.edit_entry(DIRECTORY, |entry| (entry[8], entry[12]) = (EMPTY as u8, 8)));
    gives(K::LinkCount, |s| s.edit(15, |inode| (*inode, inode.nlink) = (empty_inode(S_IFDIR), 2)));
    gives_only(K::Parent, |s| s.edit(DIRECTORY, |inode| inode.parent = Ino::new(HASHED)));

    let mut s = Store::new(MemoryKind::Logged, 64);
    s.add(1, b"a", 2, empty_inode(S_IFDIR));
    s.link(1, b"b", 2);
    s.finish();
    assert!(has(&s.check(), K::DirectoryLinks));

    let mut s = Store::new(MemoryKind::Logged, 64);
    s.add(1, b"a", 2, empty_inode(S_IFDIR));
    s.add(2, b"b", 3, empty_inode(S_IFDIR));
    s.add(3, b"c", 4, empty_inode(S_IFDIR));
    s.finish();
    assert_eq!(s.check().errors, []);
    // The root's entry goes to the innermost directory, which takes the outermost: a cycle
    // unreachable from the root.
    let (root, inner) = (s.inodes[&1], s.inodes[&2]);
    s.edit(4, |inode| {
        (inode.layout, inode.root, inode.size, inode.allocated) = (root.layout, root.root, 1, root.allocated);
        inode.nlink = 3;
    });
    s.edit(2, |inode| inode.parent = Ino::new(4));
    s.edit(1, |inode| {
        (inode.layout, inode.root, inode.size, inode.allocated) = (Layout::Empty, SlotRef::NONE, 0, 0);
        inode.nlink = 2;
    });
    assert_eq!(inner.nlink, 3);
    let report = s.check();
    assert_eq!(report.errors.iter().map(|finding| finding.kind).collect::<Vec<_>>(), [K::DirectoryCycle]);
}

/// Expects a note after a crash, an error after a clean unmount, and nothing else in either case.
#[track_caller]
fn note_or_error(s: &mut Store, kind: K) {
    let report = s.check();
    assert_eq!(report.errors, []);
    assert!(report.notes.iter().all(|note| note.kind == kind) && !report.notes.is_empty(), "{:?}", report.notes);
    s.set_clean();
    let report = s.check();
    assert!(report.clean);
    assert!(report.errors.iter().all(|error| error.kind == kind) && !report.errors.is_empty(), "{:?}", report.errors);
    assert_eq!(report.exit_code(), 4);
}

#[test]
fn what_a_crash_may_leave_is_a_note_and_after_a_clean_unmount_an_error() {
    let mut s = Store::sample(MemoryKind::Logged);
    s.edit(15, |inode| *inode = empty_inode(S_IFREG));
    s.edit(14, |inode| *inode = empty_inode(S_IFDIR));
    note_or_error(&mut s, K::Orphan);
    let mut s = Store::sample(MemoryKind::Logged);
    s.edit(SMALL, |inode| inode.flags = INODE_TRUNCATING);
    note_or_error(&mut s, K::Truncation);
}

#[test]
fn a_removed_directory_with_entries_is_found() {
    let mut s = Store::new(MemoryKind::Logged, 64);
    s.add(1, b"file", 3, empty_inode(S_IFREG));
    s.finish();
    let data = s.inodes[&1];
    s.edit(1, |inode| (inode.layout, inode.root, inode.size, inode.allocated) = (Layout::Empty, SlotRef::NONE, 0, 0));
    s.edit(2, |inode| (*inode, inode.nlink) = (data, 0));
    let report = s.check();
    assert_eq!(report.errors.iter().map(|finding| finding.kind).collect::<Vec<_>>(), [K::OrphanEntries]);
}

#[test]
fn preallocation_behind_the_end_is_only_a_note() {
    for (ino, size) in [(LARGE, 100), (CHUNKED, 100)] {
        let mut s = Store::sample(MemoryKind::Logged);
        s.edit(ino, |inode| inode.size = size);
        let report = s.check();
        assert_eq!(report.errors, []);
        assert_eq!(report.notes.iter().map(|note| (note.kind, note.inode)).collect::<Vec<_>>(), [(K::BeyondEnd, None)]);
        assert_eq!(report.counts.preallocated, 1);
    }
    // All of them share one line.
    let mut s = Store::sample(MemoryKind::Logged);
    for ino in [LARGE, CHUNKED] {
        s.edit(ino, |inode| inode.size = 100);
    }
    let report = s.check();
    assert_eq!((report.notes.len(), report.counts.preallocated), (1, 2));
    assert!(report.notes[0].sentence.starts_with("2 files"), "{}", report.notes[0]);
}
