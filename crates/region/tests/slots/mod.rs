//! A mount that reads the bitmaps of segments on demand knows them as well as a mount that reads
//! all of them.
//!
//! The region's memory records which segments are touched. Slots are freed and allocated in seeded
//! order, over mounts that ended cleanly or were cut off, with transactions abandoned on the way.
//! Left out: the tests themselves (`used_slots`). The search for planted bugs uses these cases too.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::logged::{images, parts};
use shoal_format::slot::class_geometry;
use shoal_format::{Offset, PAGE, SEGMENT, SlotRef};
use shoal_media::{ImageFile, PersistentMemory};
use shoal_region::{Region, Space, StuckSegments, View, newest_image};
use shoal_sim::{Random, SimMemory, World};

const SEGMENTS: u64 = 96;

/// Memory that records the segments whose first page is read.
struct Noted {
    inner: Arc<dyn PersistentMemory>,
    read: Mutex<BTreeSet<u64>>,
}

impl Noted {
    fn note(&self, at: u64) {
        if at % SEGMENT < PAGE {
            self.read.lock().unwrap().insert(at / SEGMENT);
        }
    }
}

impl PersistentMemory for Noted {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read(&self, at: u64, out: &mut [u8]) {
        self.note(at);
        self.inner.read(at, out);
    }
    fn write(&self, at: u64, bytes: &[u8]) {
        self.inner.write(at, bytes);
    }
    fn zero(&self, at: u64, len: u64) {
        self.inner.zero(at, len);
    }
    fn write_back(&self, _at: u64, _len: u64) {}
    fn fence(&self) {}
    fn detach(&self, bytes: u64) {
        self.inner.detach(bytes);
    }
    fn discard(&self, at: u64, len: u64) {
        self.inner.discard(at, len);
    }
}

/// Opens the newest image. Without `hints`, its counts of used slots are erased.
fn open(world: &World, boot: u8, hints: bool) -> (Region, Arc<Noted>) {
    let (newest, superblock, anchor) = newest_image(&images(world)).unwrap();
    if !hints {
        // The counts lie after the sums and the stale map of a region with this many pages.
        let pages = superblock.region_bytes / PAGE;
        let stale = (superblock.region_bytes + pages * 4).next_multiple_of(PAGE);
        world.image(newest).write((stale + 16 + pages.div_ceil(64) * 8).next_multiple_of(PAGE), &[0; 8]).unwrap();
    }
    let used = anchor.used_bytes.get().next_multiple_of(PAGE);
    let inner = SimMemory::volatile(SEGMENTS * SEGMENT, Some((world.image(newest), used)));
    let memory = Arc::new(Noted { inner, read: Mutex::default() });
    let parts = parts(world, memory.clone(), boot);
    (Region::open(parts, false).unwrap().0, memory)
}

fn new_world() -> World {
    let world = crate::logged::world();
    let parts = parts(&world, SimMemory::volatile(SEGMENTS * SEGMENT, None), 1);
    Region::create(crate::logged::geometry(SEGMENTS * SEGMENT, 4096), parts).unwrap().shutdown().unwrap();
    world
}

fn allocate(region: &Region, len: u64) -> SlotRef {
    let mut tx = region.begin();
    let slot = tx.alloc(len).unwrap();
    tx.write(slot.offset(), &[len as u8; 16]).unwrap();
    tx.commit().unwrap();
    slot
}

pub fn a_mount_reads_no_bitmap_that_nothing_asks_for() {
    let world = new_world();
    let (region, _) = open(&world, 2, true);
    let slots: Vec<SlotRef> = (0..4000).map(|_| allocate(&region, 200)).collect();
    let space = region.space();
    region.shutdown().unwrap();
    drop(region);
    let of_class = |read: &BTreeSet<u64>| slots.iter().filter(|s| read.contains(&s.segment())).count();
    let (region, memory) = open(&world, 3, true);
    assert_eq!(of_class(&memory.read.lock().unwrap()), 0, "bitmaps read by the mount");
    // The space reserved ahead on the host differs from mount to mount.
    let Space { backed_bytes, backed_usable_bytes, reserved_bytes, .. } = space;
    assert_eq!(Space { backed_bytes, backed_usable_bytes, reserved_bytes, ..region.space() }, space);
    let mut tx = region.begin();
    tx.free(slots[0]).unwrap();
    tx.commit().unwrap();
    let read: BTreeSet<u64> = memory.read.lock().unwrap().clone();
    assert!(slots.iter().all(|s| read.contains(&s.segment()) == (s.segment() == slots[0].segment())));
    drop(region);
    // After a cut-off mount, the segments that replay touches are read, others are not.
    let (region, memory) = open(&world, 4, true);
    let read: BTreeSet<u64> = memory.read.lock().unwrap().clone();
    assert!(slots.iter().all(|s| read.contains(&s.segment()) == (s.segment() == slots[0].segment())));
    assert_eq!(region.space().free_bytes, space.free_bytes + slots[0].capacity());
    region.shutdown().unwrap();
    drop(region);
    let (region, memory) = open(&world, 5, false);
    assert!(of_class(&memory.read.lock().unwrap()) == slots.len(), "without the hint all are read");
    assert_eq!(region.space().free_bytes, space.free_bytes + slots[0].capacity());
}

pub fn what_is_left_unread_is_allocated_and_freed_as_if_it_were_read() {
    let seeds = if std::env::var_os("SHOAL_DEEP").is_some() { 0..200 } else { 0..12 };
    for seed in seeds {
        let world = new_world();
        let mut random = Random::new(seed);
        let mut held: Vec<SlotRef> = Vec::new();
        for boot in 2..14 {
            let (region, _) = open(&world, boot, true);
            for step in 0..300 {
                match random.below(20) {
                    0..11 => held.push(allocate(&region, [20, 90, 200, 500, 900][random.below(5) as usize])),
                    11..18 if !held.is_empty() => {
                        let mut tx = region.begin();
                        for _ in 0..1 + random.below(4).min(held.len() as u64 - 1) {
                            tx.free(held.swap_remove(random.below(held.len() as u64) as usize)).unwrap();
                        }
                        tx.commit().unwrap();
                    }
                    18 => {
                        // This transaction is abandoned, but a checkpoint that ends meanwhile
                        // counts its slot as in use.
                        let mut tx = region.begin();
                        tx.alloc(200).unwrap();
                        if step % 3 == 0 {
                            region.checkpoint().unwrap();
                        }
                    }
                    _ => {}
                }
            }
            if boot == 8 {
                // Whole segments become empty and go to another class.
                held.drain(..).for_each(|slot| {
                    let mut tx = region.begin_reclaim();
                    tx.free(slot).unwrap();
                    tx.commit().unwrap();
                });
            }
            match random.below(3) {
                0 => region.shutdown().unwrap(),
                1 => region.checkpoint().unwrap(),
                _ => region.sync().unwrap(),
            }
            drop(region);
            let places: BTreeSet<Offset> = held.iter().map(|slot| slot.offset()).collect();
            assert_eq!(places.len(), held.len(), "seed {seed} boot {boot}: a slot given to two");
        }
        // Every slot that is free by the bitmaps can be allocated, and no other.
        let all_read = open(&world, 20, false).0.space();
        let (region, _) = open(&world, 21, true);
        let mut taken: BTreeSet<Offset> = held.iter().map(|slot| slot.offset()).collect();
        loop {
            let mut tx = region.begin();
            let Ok(slot) = tx.alloc(200) else { break };
            assert!(taken.insert(slot.offset()), "seed {seed}: {slot:?} given to two");
            tx.commit().unwrap();
        }
        let left = region.space();
        assert!(left.free_bytes <= all_read.free_bytes);
        let whole = class_geometry(9).0 as u64 * 256;
        assert!(
            left.free_bytes < left.reserve_bytes + 5 * SEGMENT + whole,
            "seed {seed}: {left:?}, before {all_read:?}"
        );
    }
}

/// Moves the held slots out of all segments that can be drained. Returns how many segments that
/// freed.
fn compact(region: &Region, held: &mut [SlotRef]) -> u64 {
    let before = region.free_segments();
    let victims = region.drain(u64::MAX, u64::MAX, StuckSegments::Left);
    for slot in held.iter_mut().filter(|slot| victims.contains(**slot)) {
        let mut tx = region.begin_reclaim();
        if let Some(new) = tx.relocate(*slot).unwrap() {
            tx.commit().unwrap();
            *slot = new;
        }
    }
    region.end_drain(&victims);
    assert_eq!(region.draining_segments(), 0);
    region.free_segments() - before
}

pub fn segments_whose_bitmaps_are_unread_are_emptied_as_if_they_were_read() {
    for seed in 0..8 {
        let world = new_world();
        let mut random = Random::new(seed);
        let mut held: Vec<SlotRef> = Vec::new();
        {
            let (region, _) = open(&world, 2, true);
            let sizes = [90, 200, 500, 900];
            held.extend((0..6000).map(|_| allocate(&region, sizes[random.below(4) as usize])));
            held.retain(|&slot| {
                let kept = random.below(10) == 0;
                if !kept {
                    let mut tx = region.begin();
                    tx.free(slot).unwrap();
                    tx.commit().unwrap();
                }
                kept
            });
            // This transaction is abandoned, but the checkpoint counts its slots as in use.
            let mut tx = region.begin();
            (0..40).for_each(|_| assert!(!tx.alloc(200).unwrap().is_none()));
            region.checkpoint().unwrap();
            drop(tx);
        }
        let (region, _) = open(&world, 3, true);
        assert!(compact(&region, &mut held) > 10, "seed {seed}: little was freed");
        // A bitmap may show fewer slots in use than the image said, so that there is more to gain.
        assert!((0..3).any(|_| compact(&region, &mut held) == 0), "seed {seed}: it does not come to an end");
        let places: BTreeSet<Offset> = held.iter().map(|slot| slot.offset()).collect();
        assert_eq!(places.len(), held.len(), "seed {seed}: a slot given to two");
        for slot in &held {
            let mut bytes = [0; 16];
            region.read(slot.offset(), &mut bytes).unwrap();
            assert!([90, 200, 500u64 as u8, 900u64 as u8].contains(&bytes[0]) && bytes == [bytes[0]; 16], "{slot:?}");
        }
        for _ in 0..3 {
            region.discard_free();
        }
        let known = region.space();
        region.shutdown().unwrap();
        drop(region);
        let [unread, read] = [(4, true), (5, false)].map(|(boot, hints)| open(&world, boot, hints).0.space());
        assert_eq!((unread.free_bytes, unread.usable_bytes), (read.free_bytes, known.usable_bytes), "seed {seed}");
        let (region, _) = open(&world, 6, true);
        for slot in held {
            let mut tx = region.begin_reclaim();
            tx.free(slot).unwrap();
            tx.commit().unwrap();
        }
    }
}

pub fn an_abandoned_run_leaves_the_bitmaps_of_the_segments_it_was_to_take() {
    let world = new_world();
    let (region, _) = open(&world, 2, true);
    let slots: Vec<SlotRef> = (0..18_000).map(|_| allocate(&region, 200)).collect();
    for slots in slots.chunks(50) {
        let mut tx = region.begin_reclaim();
        slots.iter().for_each(|&slot| tx.free(slot).unwrap());
        tx.commit().unwrap();
    }
    let rest = || (0..3).map(|_| region.discard_free()).sum::<u64>();
    assert!(rest() > 60 * (SEGMENT - PAGE));
    // The table still assigns these segments to a class. They are free only in the volatile state.
    {
        let mut tx = region.begin();
        let run = tx.alloc(40 * SEGMENT).unwrap();
        assert!(slots.iter().any(|slot| slot.segment() == run.segment() + 3));
    }
    rest();
    let usable = region.space().usable_bytes;
    region.checkpoint().unwrap();
    drop(region);
    let (region, _) = open(&world, 3, false);
    assert_eq!(region.space().usable_bytes, usable);
}

/// Checks that ordinary transactions leave segments for transactions that free some, so that a full
/// store can always be emptied.
pub fn a_full_region_has_room_for_what_frees_some() {
    for len in [200, 900, 30_000, SEGMENT, 3 * SEGMENT] {
        let world = new_world();
        let (region, _) = open(&world, 2, true);
        let mut made = 0;
        loop {
            let mut tx = region.begin();
            if tx.alloc(len).is_err() {
                break;
            }
            tx.commit().unwrap();
            made += 1;
        }
        let reserve = region.space().reserve_bytes / SEGMENT;
        assert!(made > 0 && reserve >= 2, "{len}");
        for number in 0..reserve {
            let mut tx = region.begin_reclaim();
            tx.alloc(SEGMENT).unwrap_or_else(|error| panic!("{len}: {number} of {reserve}: {error}"));
            tx.commit().unwrap();
        }
    }
}
