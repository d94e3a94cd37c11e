//! Tests of extent maps: the list against a map of blocks, and the stored map against the list.
//!
//! The model is a `BTreeMap` from file block to bulk block; every edit goes to both, and look-ups
//! and neighbours are compared. Seeds are printed by the failing assertion.

use std::collections::BTreeMap;

use shoal_format::extent::{BulkBlock, FileBlock};
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_region::{Parts, Region};
use shoal_sim::{Random, SimMemoryKind, World};

use super::*;

/// Makes an extent from plain numbers.
fn extent(file_block: u64, blocks: u64, bulk_block: u64, flags: u32) -> Extent {
    Extent { file_block: b(file_block), blocks, bulk_block: BulkBlock::new(bulk_block), flags }
}

fn b(number: u64) -> FileBlock {
    FileBlock::new(number)
}

type Model = BTreeMap<u64, (u64, u32)>;

fn flatten(extents: &[Extent]) -> Model {
    let blocks =
        extents.iter().flat_map(|e| (0..e.blocks).map(|i| (e.file_block.get() + i, (e.bulk_block.get() + i, e.flags))));
    blocks.collect()
}

fn check(extents: &[Extent], model: &Model) {
    assert_eq!(&flatten(extents), model);
    for pair in extents.windows(2) {
        assert!(pair[0].end() <= pair[1].file_block, "{pair:?}");
        assert!(!joins(&pair[0], &pair[1]), "not joined: {pair:?}");
    }
}

#[test]
fn a_list_of_extents_behaves_like_a_map_of_blocks() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (mut extents, mut model) = (Vec::new(), Model::new());
        for step in 0..120 {
            let (start, len) = (random.below(60), 1 + random.below(12));
            let end = start + len;
            match random.below(3) {
                0 => {
                    let removed = cut(&mut extents, b(start), b(end));
                    let expected: Model = model.range(start..end).map(|(&k, &v)| (k, v)).collect();
                    assert_eq!(flatten(&removed), expected, "seed {seed} step {step}");
                    model.retain(|&b, _| b < start || b >= end);
                }
                1 => {
                    cut(&mut extents, b(start), b(end));
                    // Half of the time in line with the file's blocks, so that neighbours join.
                    let bulk = if random.below(2) == 0 { 100 + start } else { random.below(1000) };
                    let flags = random.below(3) as u32;
                    put(&mut extents, extent(start, len, bulk, flags));
                    model.extend((0..len).map(|i| (start + i, (bulk + i, flags))));
                }
                _ => {
                    let to = random.below(3) as u32;
                    reflag(&mut extents, b(start), b(end), |f| if f == 1 { to } else { f });
                    model.range_mut(start..end).filter(|(_, v)| v.1 == 1).for_each(|(_, v)| v.1 = to);
                }
            }
            check(&extents, &model);
        }
    }
}

#[test]
fn groups_fill_leaves_at_the_end_and_halve_them_elsewhere() {
    let list: Vec<Extent> = (0..300).map(|i| extent(2 * i, 1, i, 0)).collect();
    let lens = |lengths| groups(&list, lengths).map(<[Extent]>::len).collect::<Vec<_>>();
    assert_eq!(lens(LeafLengths::Full), [255, 45]);
    assert_eq!(lens(LeafLengths::Even), [150, 150]);
    assert_eq!(groups(&[], LeafLengths::Even).count(), 0);
}

#[test]
fn joined_extents_never_outgrow_their_length_field() {
    let mut extents = Vec::new();
    put(&mut extents, extent(0, u32::MAX as u64, 0, 0));
    put(&mut extents, extent(u32::MAX as u64, 1, u32::MAX as u64, 0));
    assert_eq!(extents.len(), 2);
}

const BULK_BLOCKS: u64 = 1 << 30;

fn region() -> Region {
    let region_bytes = 32 << 20;
    let memory = World::new(0).add_memory(region_bytes, SimMemoryKind::Battery);
    let geometry = Geometry {
        memory_kind: MemoryKind::Battery,
        uuid: [1; 16],
        region_bytes,
        bulk_blocks: 0,
        ring_bytes: 4 << 20,
        threshold: 0,
        hash_seed: 0,
        created_ns: 0,
    };
    Region::create(geometry, Parts { memory, log: None, images: None, boot_id: [1; 16], nonce: [1; 16] }).unwrap()
}

fn no_data() -> Inode {
    Inode {
        mode: shoal_format::inode::S_IFREG,
        layout: Layout::Empty,
        method: 0,
        threshold: Default::default(),
        flags: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        size: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        btime: 0,
        generation: 1,
        rdev: 0,
        root: SlotRef::NONE,
        xattr: SlotRef::NONE,
        allocated: 0,
        parent: shoal_format::inode::Ino::ZERO,
    }
}

/// Returns the extents of the stored map, the bytes of its pieces, and the number of leaves below
/// its index. Checks the keys of the leaves.
fn stored(region: &Region, inode: &Inode) -> (Vec<Extent>, u64, usize) {
    if inode.layout == Layout::Empty {
        assert!(inode.root.is_none());
        return (Vec::new(), 0, 0);
    }
    let node = |slot: SlotRef| decode(&region.read_vec(slot.offset(), slot.capacity() as usize).unwrap(), BULK_BLOCKS);
    let (mut all, mut bytes) = (Vec::new(), inode.root.capacity());
    match node(inode.root).unwrap() {
        ExtentNode::Extents(extents) => (extents, bytes, 0),
        ExtentNode::Index(index) => {
            for (position, &(key, leaf)) in index.iter().enumerate() {
                let ExtentNode::Extents(extents) = node(leaf).unwrap() else { panic!("nested index") };
                let next = index.get(position + 1).map_or(FileBlock::MAX, |&(next, _)| next);
                assert!(!extents.is_empty() && extents.iter().all(|e| e.file_block >= key && e.end() <= next));
                all.extend(extents);
                bytes += leaf.capacity();
            }
            (all, bytes, index.len())
        }
    }
}

fn cut_all(region: &Region, inode: &mut Inode) {
    let mut upto = b(u64::MAX >> 1);
    while upto > FileBlock::ZERO {
        let mut edit = MapEdit::load(region, inode, b(0), upto, BULK_BLOCKS).unwrap();
        cut(&mut edit.extents, edit.start, upto);
        upto = edit.start;
        let mut tx = region.begin();
        edit.store(&mut tx, inode).unwrap();
        tx.commit().unwrap();
    }
}

#[test]
fn a_stored_map_behaves_like_a_map_of_blocks_through_splits_and_removals_of_leaves() {
    let mut most_leaves = 0;
    for seed in 0..4 {
        let region = region();
        let free = region.space().free_bytes;
        let mut random = Random::new(seed);
        let (mut inode, mut model) = (no_data(), Model::new());
        let span = 60_000;
        for step in 0..2400 {
            // Grows for two thirds of the time, then shrinks.
            let remove = step > 2000 && random.below(2) == 0 || random.below(400) == 0;
            let append = !remove && random.below(3) == 0;
            let start = if append { model.keys().last().map_or(0, |&b| b + 2) } else { random.below(span) };
            let len = 1 + if remove { random.below(span / 4) } else { random.below(3) };
            // A few single blocks, no two of them adjacent: extents that never join.
            let parts: Vec<(u64, u64)> = (0..16).map(|i| (start + i * 5, random.below(BULK_BLOCKS - 3))).collect();
            let end = if remove { start + len } else { start + 16 * 5 };
            let mut upto = end;
            while upto > start {
                let mut edit = MapEdit::load(&region, &inode, b(start), b(upto), BULK_BLOCKS).unwrap();
                let from = edit.start.get();
                if remove {
                    cut(&mut edit.extents, b(from), b(upto));
                } else {
                    for &(block, bulk) in parts.iter().filter(|part| (from..upto).contains(&part.0)) {
                        let to = (block + len).min(upto);
                        cut(&mut edit.extents, b(block), b(to));
                        let flags = (bulk % 3) as u32;
                        put(&mut edit.extents, extent(block, to - block, bulk, flags));
                        model.extend((block..to).map(|b| (b, (bulk + b - block, flags))));
                    }
                }
                let mut tx = region.begin();
                edit.store(&mut tx, &mut inode).unwrap();
                tx.commit().unwrap();
                upto = from;
            }
            if remove {
                model.retain(|&b, _| b < start || b >= end);
            }
            if step % 16 != 0 {
                continue;
            }
            let (extents, bytes, leaves) = stored(&region, &inode);
            most_leaves = most_leaves.max(leaves);
            assert_eq!(inode.allocated, bytes, "seed {seed} step {step}");
            assert!(flatten(&extents) == model, "seed {seed} step {step}");
            for _ in 0..20 {
                let block = random.below(span + 100);
                let found = find(&region, inode.root, b(block), BULK_BLOCKS).unwrap();
                match (found, model.get(&block)) {
                    (Mapped::At(e), Some(&(bulk, flags))) => {
                        assert_eq!(
                            (e.bulk_block.get() + (b(block) - e.file_block), e.flags),
                            (bulk, flags),
                            "seed {seed}"
                        );
                    }
                    (Mapped::Hole { until }, None) => {
                        assert!(
                            until > b(block) && model.range(block..until.get()).next().is_none(),
                            "seed {seed} {block}"
                        );
                    }
                    other => panic!("seed {seed} step {step} block {block}: {other:?}"),
                }
            }
        }
        cut_all(&region, &mut inode);
        assert_eq!((inode.layout, inode.allocated), (Layout::Empty, 0), "seed {seed}");
        assert!(free - region.space().free_bytes < 1 << 20, "seed {seed}: slots were lost");
    }
    assert!(most_leaves > LEAVES_MAX, "only {most_leaves} leaves: one edit held them all");
}

#[test]
fn a_look_up_refuses_an_extent_that_no_writer_writes_as_an_edit_does() {
    // The top three bytes of a record: two that are zero, and the flags.
    for (odd, refused) in
        [([0, 0, 2], false), ([0, 0, 3], true), ([0, 0, 4], true), ([1, 0, 0], true), ([0, 128, 1], true)]
    {
        let region = region();
        let mut inode = no_data();
        let mut edit = MapEdit::load(&region, &inode, b(0), b(8), BULK_BLOCKS).unwrap();
        put(&mut edit.extents, extent(2, 4, 50, 0));
        let mut tx = region.begin();
        edit.store(&mut tx, &mut inode).unwrap();
        tx.write(item_at(inode.root, 0) + 13, &odd).unwrap();
        tx.commit().unwrap();
        let map = (&region, inode.root);
        // Within the extent, and in the hole before it.
        for block in [3, 0] {
            assert_eq!(find(map.0, map.1, b(block), BULK_BLOCKS).is_err(), refused, "{odd:?}, block {block}");
        }
        assert_eq!(goal_before(map.0, map.1, b(6), BULK_BLOCKS).is_err(), refused, "{odd:?}");
        assert_eq!(MapEdit::load(&region, &inode, b(0), b(8), BULK_BLOCKS).is_err(), refused, "{odd:?}");
        assert_eq!(raw(map.0, map.1).unwrap().is_empty(), refused, "{odd:?}");
    }
}
