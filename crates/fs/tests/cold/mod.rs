//! Stores whose inodes grow cold, and threads that use a store while it is packed, for the tests of
//! packed inodes.
//!
//! The clock begins in 2023 and goes on from one opening to the next. Left out: what packed stores must hold (`packed`,
//! `crash`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shoal_format::PAGE;
use shoal_format::superblock::{MemoryKind, SUPERBLOCK_AT, Superblock};
use shoal_fs::{Caller, Fs, Ino, InodePacking, Options, ROOT, SetAttr};
use shoal_media::PersistentMemory;
use shoal_sim::{Random, SimClock, World};

use crate::store::{self, Boot, Setup, Watch};

pub const AGE: Duration = Duration::from_secs(30);

pub fn setup() -> Setup {
    Setup { kind: MemoryKind::Battery, region_bytes: 16 << 20, ring_bytes: 1 << 20, bulk_blocks: 0, ..Setup::default() }
}

pub fn options(pack_age: Option<Duration>) -> Options {
    Options { no_atime: true, pack_age, ..Options::default() }
}

pub struct Store {
    pub setup: Setup,
    pub world: World,
    pub clock: Arc<SimClock>,
    opening: u64,
}

impl Store {
    pub fn new(setup: Setup) -> Store {
        let clock = Arc::new(SimClock::new(1_700_000_000_000_000_000));
        Store { setup, world: store::format(setup, 5), clock, opening: 0 }
    }

    pub fn open_as(&mut self, pack_age: Option<Duration>) -> Fs {
        self.open_with(options(pack_age))
    }

    pub fn open_with(&mut self, options: Options) -> Fs {
        self.opening += 1;
        let boot = Boot { boot: 1, opening: self.opening, keeps_trimmed: true };
        let opened = store::open_with(self.setup, &self.world, boot, &Watch::default(), options, &self.clock);
        opened.unwrap().unwrap().0
    }

    pub fn open(&mut self) -> Fs {
        self.open_as(Some(AGE))
    }

    /// Ends the process cleanly; the checker finds nothing.
    pub fn close(&self, fs: Fs) {
        fs.shutdown().unwrap();
        drop(fs);
        self.check();
    }

    /// Makes the store look like one written by a program that did not know the feature.
    pub fn without_feature(&self, feature: u64) {
        let memory = self.world.memory(0);
        let mut page = [0; PAGE as usize];
        memory.read(SUPERBLOCK_AT, &mut page);
        let superblock = Superblock::decode(&page).unwrap();
        let older = Superblock { features: superblock.features & !feature, ..superblock };
        memory.write_through(SUPERBLOCK_AT, &older.encode());
    }

    pub fn check(&self) {
        store::check(self.setup, &self.world, false).unwrap();
    }
}

/// Advances the clock until everything is cold, then packs until a round is over.
pub fn cool(fs: &Fs, clock: &SimClock) -> InodePacking {
    clock.advance(2 * AGE.as_nanos() as u64);
    let mut all = InodePacking::default();
    loop {
        let done = fs.compacting().pack_inodes_step(7).unwrap();
        all.blocks += done.blocks;
        all.inodes += done.inodes;
        all.bytes_before += done.bytes_before;
        all.bytes_after += done.bytes_after;
        if !done.more {
            return all;
        }
    }
}

pub fn caller() -> Caller {
    Caller { uid: 10, gid: 20, umask: 0o022, hold: false }
}

pub fn create(fs: &Fs, name: &str) -> Ino {
    fs.mknod(&caller(), ROOT, name.as_bytes(), 0o644, 0).unwrap().ino
}

pub fn files(fs: &Fs, clock: &SimClock, count: u64) -> Vec<Ino> {
    (0..count)
        .map(|number| {
            clock.advance(1_000_003);
            create(fs, &format!("file{number}"))
        })
        .collect()
}

/// Runs threads that read, change, create and remove files while another packs blocks without
/// pause. The attributes of every file must be right.
pub fn crowd(seed: u64, steps: u64) {
    let mut store = Store::new(setup());
    let fs = store.open_as(Some(Duration::ZERO));
    let dir = fs.mkdir(&caller(), ROOT, b"dir", 0o755).unwrap().ino;
    let make = |number: u64| {
        let name = format!("kept{number}");
        // Each file has its own owner, so that a record read for another file shows.
        let who = Caller { uid: 1000 + number as u32, ..caller() };
        (fs.mknod(&who, ROOT, name.as_bytes(), 0o644, 0).unwrap().ino, 1000 + number as u32)
    };
    let kept: Vec<(Ino, u32)> = (0..96).map(make).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs.compacting().pack_inodes_step(64).unwrap();
                fs.compacting().compact_step().unwrap();
            }
        });
        let workers: Vec<_> = (0..4u64)
            .map(|thread| {
                let (fs, kept) = (&fs, &kept);
                scope.spawn(move || {
                    let mut random = Random::new(seed * 10 + thread);
                    for step in 0..steps {
                        let (ino, uid) = kept[random.below(kept.len() as u64) as usize];
                        if thread < 2 {
                            let attr = fs.getattr(ino).unwrap();
                            assert_eq!((attr.ino, attr.uid, attr.nlink), (ino, uid, 1));
                        } else if thread == 2 {
                            let mode = Some(0o600 + random.below(64) as u32);
                            let attr = fs.setattr(ino, &SetAttr { mode, ..Default::default() }).unwrap();
                            assert_eq!(attr.uid, uid);
                        } else {
                            let (name, uid) = (format!("passing{step}"), 5000 + step as u32 % 7);
                            let who = Caller { uid, ..caller() };
                            let made = fs.mknod(&who, dir, name.as_bytes(), 0o644, 0).unwrap();
                            assert_eq!(fs.getattr(made.ino).map(|attr| attr.uid), Ok(uid));
                            if step >= 20 {
                                fs.unlink(dir, format!("passing{}", step - 20).as_bytes()).unwrap();
                            }
                        }
                    }
                })
            })
            .collect();
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::Relaxed);
        outcomes.into_iter().for_each(|outcome| outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    fs.shutdown().unwrap();
    drop(fs);
    store.check();
}
