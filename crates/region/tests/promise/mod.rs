//! Promises during a flush, and commits that are allowed only while their bytes are unpromised.
//!
//! The log calls back in the middle of its flush. Used by the test of promises and by the search
//! for planted bugs.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::{Arc, Mutex, OnceLock};

use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_format::{Offset, SEGMENT};
use shoal_media::{ImageFile, LogDevice, Result};
use shoal_region::{Lsn, Parts, Region, Tx};
use shoal_sim::{SimLog, SimMemory, World};

const REGION_BYTES: u64 = 64 * SEGMENT;

type Hook = Box<dyn FnMut() + Send>;

/// A log that calls a hook when its flush begins.
struct HookedLog {
    inner: Arc<SimLog>,
    on_sync: Mutex<Option<Hook>>,
}

impl LogDevice for HookedLog {
    fn append(&self, position: u64, bytes: &[u8]) -> Result<()> {
        self.inner.append(position, bytes)
    }

    fn sync(&self) -> Result<()> {
        if let Some(mut hook) = self.on_sync.lock().unwrap().take() {
            hook();
        }
        self.inner.sync()
    }

    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize> {
        self.inner.read(position, out)
    }

    fn release(&self, position: u64) -> Result<()> {
        self.inner.release(position)
    }
}

fn region() -> (Arc<Region>, Arc<HookedLog>) {
    let world = World::new(3);
    let log = Arc::new(HookedLog { inner: world.add_log(), on_sync: Mutex::new(None) });
    let images: [Arc<dyn ImageFile>; 2] = [world.add_image(), world.add_image()];
    let region_bytes = REGION_BYTES;
    let geometry = Geometry {
        memory_kind: MemoryKind::Logged,
        uuid: [5; 16],
        region_bytes,
        bulk_blocks: 0,
        ring_bytes: 0,
        threshold: 0,
        hash_seed: 1,
        created_ns: 0,
    };
    let parts = Parts {
        memory: SimMemory::volatile(region_bytes, None),
        log: Some(log.clone()),
        images: Some(images),
        boot_id: [1; 16],
        nonce: [2; 16],
    };
    (Arc::new(Region::create(geometry, parts).expect("the region is made")), log)
}

fn changing(region: &Region) -> Tx<'_> {
    let mut tx = region.begin();
    tx.write(Offset::new(REGION_BYTES - SEGMENT), b"change").expect("it fits");
    tx
}

fn commit(region: &Region) -> Lsn {
    changing(region).commit().expect("committed")
}

fn refused(region: &Region, birth: Lsn) -> bool {
    changing(region).commit_unpromised(birth).expect("no error").is_none()
}

fn demand(holds: bool, what: &str) -> std::result::Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

type Flush = (&'static str, fn(&Region));

/// The code paths that flush the log.
const FLUSHES: [Flush; 3] = [
    ("sync", |region| region.sync().expect("synced")),
    ("callback", |region| {
        if region.sync_later(region.last_lsn(), Box::new(|outcome| outcome.expect("synced"))) {
            region.sync_waiting().expect("synced");
        }
    }),
    ("checkpoint", |region| region.checkpoint().expect("written")),
];

/// Checks that a commit that needs its bytes unpromised is refused as soon as a flush promises
/// them.
pub fn a_flush_under_way_is_a_promise() -> std::result::Result<(), String> {
    for (name, flush) in FLUSHES {
        let (region, log) = region();
        let birth = commit(&region);
        demand(!refused(&region, birth), &format!("{name}: refused though nothing was promised"))?;
        let during = Arc::new(OnceLock::new());
        let (seen, inside) = (during.clone(), region.clone());
        *log.on_sync.lock().unwrap() = Some(Box::new(move || {
            let old = refused(&inside, birth);
            let young = commit(&inside);
            seen.set((old, refused(&inside, young))).expect("once");
        }));
        flush(&region);
        let &(old, young) = during.get().ok_or(format!("{name}: no flush"))?;
        demand(old, &format!("{name}: bytes a flush under way promises were let go of"))?;
        demand(!young, &format!("{name}: what came after the flush began is not promised by it"))?;
        demand(refused(&region, birth), &format!("{name}: promised bytes were let go of"))?;
    }
    Ok(())
}

/// Checks that a promise made without a flush keeps its bytes, too.
pub fn a_promise_needs_no_flush() -> std::result::Result<(), String> {
    let (region, _) = region();
    let birth = commit(&region);
    demand(region.promise() >= birth, "the promise ends before what was committed")?;
    demand(refused(&region, birth), "promised bytes were let go of")?;
    let before = region.last_lsn();
    demand(refused(&region, birth) && region.last_lsn() == before, "a refused record was appended")?;
    let young = commit(&region);
    demand(!refused(&region, young), "refused though nothing of it was promised")
}
