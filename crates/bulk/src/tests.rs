//! Tests of a flush concurrent with a writer, between two steps in memory.
//!
//! The actors of the crash tests switch only at calls to the media, so they never reach these
//! states.

use std::time::Duration;

use parking_lot::Mutex;
use shoal_format::extent::FileBlock;
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_media::{BlockGeometry, Completion, Request};
use shoal_region::{Parts, Recovery};
use shoal_sim::{SimMemoryKind, World};

use super::*;

const FILE: Ino = Ino::new(7);
/// Time for a thread to get as far as it can.
const WHILE: Duration = Duration::from_millis(50);

fn bulk() -> (Region, Bulk) {
    bulk_on(|disk| disk)
}

fn bulk_on(over: impl FnOnce(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>) -> (Region, Bulk) {
    let world = World::new(0);
    let region_bytes = 32 << 20;
    let memory = world.add_memory(region_bytes, SimMemoryKind::Battery);
    let geometry = Geometry {
        memory_kind: MemoryKind::Battery,
        uuid: [1; 16],
        region_bytes,
        bulk_blocks: 8,
        ring_bytes: 4 << 20,
        threshold: 0,
        hash_seed: 0,
        created_ns: 0,
    };
    let parts = Parts { memory, log: None, images: None, boot_id: [1; 16], nonce: [1; 16] };
    let region = Region::create(geometry, parts).unwrap();
    let bulk = Bulk::load(&region).unwrap();
    bulk.devices()
        .attach(&region, &[], (Some(over(world.add_disk(8 * BULK_BLOCK))), 0), false, &Recovery::default())
        .unwrap();
    (region, bulk)
}

/// A disk that runs a callback when a write has reached it, before the writer continues.
struct Told {
    below: Arc<dyn BlockDevice>,
    written: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl BlockDevice for Told {
    fn write_cache(&self) -> Option<&dyn shoal_media::WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.below.submit(request, done);
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> shoal_media::Result<()> {
        self.below.write_from(at, bytes)?;
        let told = self.written.lock().take();
        told.into_iter().for_each(|tell| tell());
        Ok(())
    }
}

#[test]
fn who_still_reads_a_block_while_it_is_filled_for_another_file_finds_no_damage() {
    let mut told = None;
    let (region, bulk) = bulk_on(|below| {
        let disk = Arc::new(Told { below, written: Mutex::default() });
        told = Some(disk.clone());
        disk
    });
    bulk.arrange_sums(&region, Some(true), |_| true).unwrap();
    let (told, both) = (told.unwrap(), Arc::new((region, bulk)));
    let (region, bulk) = &*both;
    bulk.fill(region, BulkBlock::new(1), &vec![1; BULK_BLOCK as usize]).unwrap();
    let reader = both.clone();
    let (answer, answered) = std::sync::mpsc::channel();
    *told.written.lock() = Some(Box::new(move || {
        answer.send(reader.1.read(&reader.0, BULK_BLOCK, &mut vec![0; BULK_BLOCK as usize])).unwrap();
    }));
    bulk.fill(region, BulkBlock::new(1), &vec![2; BULK_BLOCK as usize]).unwrap();
    assert_eq!(answered.try_recv().unwrap(), Ok(()));
    assert_eq!(bulk.devices().states()[0].damaged, 0);
}

#[test]
fn a_flush_takes_note_of_what_it_covers_while_nothing_is_listed() {
    let (region, bulk) = bulk();
    bulk.write(&region, 0, &[1; 512], Behind::Owned, Patience::Waits).unwrap();
    std::thread::scope(|scope| {
        let (flush, late) = bulk.fresh.note(|| {
            let flush = scope.spawn(|| bulk.flush(&region));
            std::thread::sleep(WHILE);
            (flush, bulk.write(&region, 512, &[2; 512], Behind::Owned, Patience::Waits).unwrap())
        });
        // The write completed before the flush could take note of anything.
        assert!(flush.join().unwrap().unwrap().covers(late));
    });
}

#[test]
fn what_is_listed_beside_a_note_takes_no_range_along_that_the_flush_covers() {
    let (region, bulk) = bulk();
    let [one, two, three] = [1, 2, 3].map(FileBlock::new);
    let covered = bulk.write(&region, 0, &[1; 512], Behind::Owned, Patience::Waits).unwrap();
    bulk.list_new(FILE, one, two, covered);
    std::thread::scope(|scope| {
        bulk.fresh.note(|| {
            // Like a flush: reads the number, another write completes, then it stores the number.
            let unit = bulk.unit(0).unwrap();
            let seen = unit.written.load(Ordering::Acquire);
            let later = bulk.write(&region, 512, &[2; 512], Behind::Owned, Patience::Waits).unwrap();
            let bulk = &bulk;
            scope.spawn(move || bulk.list_new(FILE, two, three, later));
            std::thread::sleep(WHILE);
            unit.submitted.store(seen, Ordering::Release);
        });
    });
    let settled = bulk.fresh.settled(FILE, &Flushed::on(covered));
    assert_eq!(settled, Some(vec![(one, two)]), "an fsync would return with it NEW");
}

#[test]
fn checksums_that_are_dropped_give_their_memory_back_and_begin_anew() {
    let (region, bulk) = bulk();
    let free = |region: &Region| region.space().free_bytes;
    let (all, block, mut out) = (|_| true, vec![1; BULK_BLOCK as usize], vec![0; BULK_BLOCK as usize]);
    let before = free(&region);
    for _ in 0..3 {
        bulk.arrange_sums(&region, Some(true), all).unwrap();
        bulk.fill(&region, BulkBlock::new(1), &block).unwrap();
        assert_eq!(bulk.scrub(&region, BULK_BLOCK, &mut out), Ok(Covered::default()), "filled blocks have checksums");
        assert_eq!(before - free(&region), bulk.sums_bytes());
        bulk.arrange_sums(&region, Some(false), all).unwrap();
        assert_eq!((bulk.sums_bytes(), free(&region)), (0, before));
        bulk.write(&region, BULK_BLOCK, &[2; 512], Behind::Owned, Patience::Waits).unwrap();
    }
    bulk.arrange_sums(&region, Some(true), all).unwrap();
    assert_eq!(
        bulk.scrub(&region, BULK_BLOCK, &mut out),
        Ok(Covered { bytes: BULK_BLOCK, without: 0 }),
        "none is left of before"
    );
}
