//! A mount reads the bitmaps of segments when it needs them, and then knows them as well as one that reads all.
//!
//! The region's memory counts which segments are touched. Slots are freed and allocated in an order that a seed gives,
//! over mounts that were ended cleanly and others that were cut off, with transactions abandoned on the way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use shoal_format::slot::class_geometry;
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_format::{PAGE, SEGMENT, SlotRef};
use shoal_media::{ImageFile, PersistentMemory};
use shoal_region::{Parts, Region, newest_image};
use shoal_sim::{Random, SimMemory, World};

const SEGMENTS: u64 = 96;

/// Memory that notes the segments whose first page is read.
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
}

fn images(world: &World) -> [Arc<dyn ImageFile>; 2] {
    [world.image(0), world.image(1)]
}

/// `hints`: the image may say how many slots are in use.
fn open(world: &World, boot: u8, hints: bool) -> (Region, Arc<Noted>) {
    let (newest, superblock, anchor) = newest_image(&images(world)).unwrap();
    if !hints {
        // Behind sums and stale map of a region of so many pages.
        let pages = superblock.region_bytes / PAGE;
        let stale = (superblock.region_bytes + pages * 4).next_multiple_of(PAGE);
        world.image(newest).write((stale + 16 + pages.div_ceil(64) * 8).next_multiple_of(PAGE), &[0; 8]).unwrap();
    }
    let used = anchor.used_bytes.get().next_multiple_of(PAGE);
    let inner = SimMemory::volatile(SEGMENTS * SEGMENT, Some((world.image(newest), used)));
    let memory = Arc::new(Noted { inner, read: Mutex::default() });
    let parts = Parts {
        memory: memory.clone(),
        log: Some(world.log(0)),
        images: Some(images(world)),
        boot_id: [boot; 16],
        nonce: [boot; 16],
    };
    (Region::open(parts, false).unwrap().0, memory)
}

fn new_world() -> World {
    let world = World::new(1);
    world.add_log();
    world.add_image();
    world.add_image();
    let geometry = Geometry {
        memory_kind: MemoryKind::Logged,
        uuid: [7; 16],
        region_bytes: SEGMENTS * SEGMENT,
        bulk_blocks: 0,
        ring_bytes: 4096,
        threshold: 1 << 20,
        hash_seed: 1,
        created_ns: 1,
    };
    let parts = Parts {
        memory: SimMemory::volatile(SEGMENTS * SEGMENT, None),
        log: Some(world.log(0)),
        images: Some(images(&world)),
        boot_id: [1; 16],
        nonce: [1; 16],
    };
    Region::create(geometry, parts).unwrap().shutdown().unwrap();
    world
}

fn allocate(region: &Region, len: u64) -> SlotRef {
    let mut tx = region.begin();
    let slot = tx.alloc(len).unwrap();
    tx.write(slot.offset(), &[len as u8; 16]).unwrap();
    tx.commit().unwrap();
    slot
}

#[test]
fn a_mount_reads_no_bitmap_that_nothing_asks_for() {
    let world = new_world();
    let (region, _) = open(&world, 2, true);
    let slots: Vec<SlotRef> = (0..4000).map(|_| allocate(&region, 200)).collect();
    let space = region.space();
    region.shutdown().unwrap();
    drop(region);
    let of_class = |read: &BTreeSet<u64>| slots.iter().filter(|s| read.contains(&s.segment())).count();
    let (region, memory) = open(&world, 3, true);
    assert_eq!(of_class(&memory.read.lock().unwrap()), 0, "bitmaps read by the mount");
    assert_eq!(region.space(), space);
    let mut tx = region.begin();
    tx.free(slots[0]).unwrap();
    tx.commit().unwrap();
    let read: BTreeSet<u64> = memory.read.lock().unwrap().clone();
    assert!(slots.iter().all(|s| read.contains(&s.segment()) == (s.segment() == slots[0].segment())));
    drop(region);
    // Cut off: what replay touches is read, the rest is not.
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

#[test]
fn what_is_left_unread_is_allocated_and_freed_as_if_it_were_read() {
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
                        // Abandoned, and counted as in use by a checkpoint that ends meanwhile.
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
                // Whole segments become empty, and serve another class.
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
            let places: BTreeSet<u64> = held.iter().map(|slot| slot.offset()).collect();
            assert_eq!(places.len(), held.len(), "seed {seed} boot {boot}: a slot given to two");
        }
        // Every slot that is free by the bitmaps can be had, and no other.
        let all_read = open(&world, 20, false).0.space();
        let (region, _) = open(&world, 21, true);
        let mut taken: BTreeSet<u64> = held.iter().map(|slot| slot.offset()).collect();
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
