//! A run must not get a segment that is being assigned to a class.
//!
//! The allocator's lock is free between the choice of the segment and the end of the record that
//! assigns it. A log whose append waits at a gate holds the assignment there while another thread
//! asks for a run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shoal_format::SEGMENT;
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_media::{LogDevice, PersistentMemory, Result};
use shoal_region::{Parts, Region};
use shoal_sim::{SimMemory, World};

/// A log that stops once, in the middle of an append.
struct Gate {
    inner: Arc<dyn LogDevice>,
    armed: AtomicBool,
    entered: Mutex<Sender<()>>,
    go_on: Mutex<Receiver<()>>,
}

impl LogDevice for Gate {
    fn append(&self, position: u64, bytes: &[u8]) -> Result<()> {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.entered.lock().unwrap().send(()).unwrap();
            // If the run waits for the commit lock, nobody opens the gate. That is a correct
            // outcome too.
            let _ = self.go_on.lock().unwrap().recv_timeout(Duration::from_secs(1));
        }
        self.inner.append(position, bytes)
    }
    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize> {
        self.inner.read(position, out)
    }
    fn release(&self, position: u64) -> Result<()> {
        self.inner.release(position)
    }
}

#[test]
fn a_segment_on_its_way_to_a_class_is_not_given_to_a_run() {
    let world = World::new(1);
    world.add_log();
    world.add_image();
    world.add_image();
    let (entered, has_entered) = channel();
    let (open, go_on) = channel();
    let gate = Arc::new(Gate {
        inner: world.log(0),
        armed: AtomicBool::new(false),
        entered: Mutex::new(entered),
        go_on: Mutex::new(go_on),
    });
    let memory: Arc<dyn PersistentMemory> = SimMemory::volatile(64 * SEGMENT, None);
    let geometry = Geometry {
        memory_kind: MemoryKind::Logged,
        uuid: [7; 16],
        region_bytes: 64 * SEGMENT,
        bulk_blocks: 0,
        ring_bytes: 4096,
        threshold: 1 << 20,
        hash_seed: 1,
        created_ns: 1,
    };
    let parts = Parts {
        memory,
        log: Some(gate.clone()),
        images: Some([world.image(0), world.image(1)]),
        boot_id: [1; 16],
        nonce: [1; 16],
    };
    let region = Region::create(geometry, parts).unwrap();
    gate.armed.store(true, Ordering::SeqCst);
    let (slot, run) = std::thread::scope(|scope| {
        let small = scope.spawn(|| {
            let mut tx = region.begin();
            let slot = tx.alloc(4096).unwrap();
            tx.write(slot.offset(), &[1; 4096]).unwrap();
            tx.commit().unwrap();
            slot
        });
        has_entered.recv().unwrap();
        let mut tx = region.begin();
        let run = tx.alloc(40_000).unwrap();
        let _ = open.send(());
        tx.write(run.offset(), &[2; 40_000]).unwrap();
        tx.commit().unwrap();
        (small.join().unwrap(), run)
    });
    let mut tx = region.begin();
    let freed = tx.free(run);
    assert!(slot.segment() != run.segment(), "{slot:?} lies in {run:?}; freeing the run: {freed:?}");
    freed.unwrap();
}
