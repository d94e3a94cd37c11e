//! A store in memory with a bulk device and a log that are as slow as a test wants, for the tests
//! of threads over a store.
//!
//! `shoal-fuse` includes this file in its own tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_format::BULK_BLOCK;
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_fs::{FormatOptions, Fs, Options, Parts};
use shoal_media::{BlockDevice, BlockGeometry, Clock, Completion, ImageFile, LogDevice, Request, WriteCache};
use shoal_sim::{SimDisk, SimLog, SimMemory, World};

const REGION: u64 = 32 << 20;
const BULK_BLOCKS: u64 = 512;
pub const THRESHOLD: u64 = 128 << 10;
struct RealClock(Instant);

impl Clock for RealClock {
    fn now_ns(&self) -> i64 {
        1_700_000_000_000_000_000 + self.monotonic_ns() as i64
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// A disk whose flush takes some milliseconds.
struct SlowDisk {
    disk: Arc<SimDisk>,
    flush_ms: Arc<AtomicU64>,
    flushes: Arc<AtomicU64>,
}

impl BlockDevice for SlowDisk {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.disk.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        if matches!(request, Request::Flush) {
            self.flushes.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(self.flush_ms.load(Ordering::Relaxed)));
        }
        self.disk.submit(request, done);
    }
}

/// A log whose sync takes some milliseconds.
struct SlowLog {
    log: Arc<SimLog>,
    sync_ms: Arc<AtomicU64>,
}

impl LogDevice for SlowLog {
    fn append(&self, position: u64, bytes: &[u8]) -> shoal_media::Result<()> {
        self.log.append(position, bytes)
    }

    fn sync(&self) -> shoal_media::Result<()> {
        std::thread::sleep(Duration::from_millis(self.sync_ms.load(Ordering::Relaxed)));
        self.log.sync()
    }

    fn read(&self, position: u64, out: &mut [u8]) -> shoal_media::Result<usize> {
        self.log.read(position, out)
    }

    fn release(&self, position: u64) -> shoal_media::Result<()> {
        self.log.release(position)
    }
}

pub struct Store {
    pub world: World,
    pub fs: Arc<Fs>,
    pub flush_ms: Arc<AtomicU64>,
    pub flushes: Arc<AtomicU64>,
    pub sync_ms: Arc<AtomicU64>,
}

/// Makes a new `logged` store with a bulk device, both as fast as memory.
pub fn store(commit_age_ms: u64) -> Store {
    let world = World::new(1);
    world.add_log();
    world.add_image();
    world.add_image();
    world.add_disk(BULK_BLOCKS * BULK_BLOCK);
    let (flush_ms, sync_ms, flushes) = (Arc::default(), Arc::default(), Arc::default());
    let parts = |nonce: u8, fresh: bool| {
        let images: [Arc<dyn ImageFile>; 2] = [world.image(0), world.image(1)];
        let memory = if fresh {
            SimMemory::volatile(REGION, None)
        } else {
            let (index, _, anchor) = shoal_region::newest_image(&images).expect("one image is valid");
            let used = anchor.used_bytes.get().next_multiple_of(4096);
            SimMemory::volatile(REGION, Some((world.image(index), used)))
        };
        let log = Arc::new(SlowLog { log: world.log(0), sync_ms: Arc::clone(&sync_ms) });
        Parts {
            region: shoal_region::Parts {
                memory,
                log: Some(log),
                images: Some(images),
                boot_id: [1; 16],
                nonce: [nonce; 16],
            },
            bulk: Some(Arc::new(SlowDisk {
                disk: world.disk(0),
                flush_ms: Arc::clone(&flush_ms),
                flushes: Arc::clone(&flushes),
            })),
            clock: Arc::new(RealClock(Instant::now())),
        }
    };
    let geometry = Geometry {
        uuid: [7; 16],
        hash_seed: 7,
        region_bytes: REGION,
        bulk_blocks: BULK_BLOCKS,
        ring_bytes: 0,
        threshold: THRESHOLD,
        memory_kind: MemoryKind::Logged,
        created_ns: 0,
    };
    let root = FormatOptions { geometry, sums: true, root_mode: 0o777, root_uid: 0, root_gid: 0 };
    Fs::format(parts(1, true), &root).expect("the store is made");
    let options = Options { commit_age_ms, ..Options::default() };
    let (fs, _) = Fs::open(parts(2, false), options).expect("the store opens");
    Store { world, fs: Arc::new(fs), flush_ms, flushes, sync_ms }
}
