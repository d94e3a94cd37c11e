//! A bulk device that fails behind a write-back cache: the cache's contents are certain, and
//! outlive the failure.
//!
//! Owns: reads of held data while the device is closed, which data is in doubt and which is not,
//! and both ways to go on: a retry in the same process, and a clean end with another process after
//! it. Left out: devices without a cache (`devices`), and the cache itself (`shoal-writeback`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shoal_format::BULK_BLOCK;
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Fs, Ino, Leaving};
use shoal_sim::World;

use crate::devices::{BLOCKS, Forgetful, filled, given, new_world, read, setup, try_open};
use crate::store::{Boot, add_cache_memory, behind_cache, check};

const BLOCK: usize = BULK_BLOCK as usize;

/// A store of two devices, with a cache in front of the second, which gets all new data.
struct Store {
    kind: MemoryKind,
    world: World,
    boot: Boot,
    fs: Fs,
    second: Arc<Forgetful>,
    /// A synced file. A page of its first block was written over since.
    durable: Ino,
    /// A file that was never synced.
    held: Ino,
    /// A file whose fsync meets the failure.
    synced: Ino,
}

/// Returns the number of the world's memory that the cache is in.
fn memory(kind: MemoryKind) -> usize {
    usize::from(kind.has_ring())
}

impl Store {
    fn new(kind: MemoryKind) -> Store {
        let (world, boot) = (new_world(kind), Boot::first(true));
        add_cache_memory(&world);
        let second = Forgetful::new(world.disk(1));
        let fs = try_open(&world, kind, boot, Vec::new(), false).expect("the store opens");
        let front = behind_cache(&world, boot, second.clone(), memory(kind));
        assert_eq!(fs.devices().add(&given(1, front), Some(BLOCKS)), Ok(1));
        assert_eq!(fs.devices().leave(0), Ok(Leaving::Now));
        let durable = filled(&fs, b"durable", 1, 2);
        assert_eq!(fs.fsync(durable), Ok(()));
        assert_eq!(fs.write(durable, 4096, &[4; 4096]), Ok(4096));
        let (held, synced) = (filled(&fs, b"held", 5, 2), filled(&fs, b"synced", 2, 2));
        Store { kind, world, boot, fs, second, durable, held, synced }
    }

    fn fail(&self) {
        assert!(matches!(self.fs.fsync(self.synced), Err(Error::Io(_))), "the flush failed");
        assert!(self.fs.region().failure().is_none(), "one device of two does not end the store");
        for ino in [self.synced, self.held, self.durable] {
            assert!(matches!(self.fs.fsync(ino), Err(Error::Io(_))), "held, and not durable");
        }
    }

    fn in_doubt(&self) -> u64 {
        self.fs.devices().states()[1].suspect / BULK_BLOCK
    }

    /// Checks what a reader sees, except for the file whose fsync failed.
    fn see(&self, fs: &Fs, when: &str) {
        let mut bytes = vec![1; 2 * BLOCK];
        bytes[4096..8192].fill(4);
        assert!(read(fs, self.durable, 0, 2 * BLOCK) == Ok(bytes), "{when}: what is durable, and what is held of it");
        assert!(read(fs, self.held, 0, 2 * BLOCK) == Ok(vec![5; 2 * BLOCK]), "{when}: what is held");
    }

    /// Opens the store in a later process, of this boot or the next, with the device and its cache.
    fn next(&self, power: bool) -> (World, Fs) {
        let world = self.world.snapshot().process_crash().open();
        let boot = self.boot.after(power);
        let front = behind_cache(&world, boot, world.disk(1), memory(self.kind));
        let fs = try_open(&world, self.kind, boot, vec![given(1, front)], false).expect("it opens");
        (world, fs)
    }
}

fn kinds(each: impl Fn(&Store)) {
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        each(&Store::new(kind));
    }
}

#[test]
fn what_is_held_is_read_after_a_failed_flush_and_what_has_left_is_in_doubt() {
    kinds(|store| {
        store.second.fails.store(true, Ordering::Relaxed);
        store.fail();
        store.see(&store.fs, "at once");
        assert!(matches!(read(&store.fs, store.synced, 0, BLOCK), Err(Error::Io(_))), "it has left the cache");
        assert_eq!(store.in_doubt(), 2);
    });
}

#[test]
fn what_a_device_did_not_take_is_read_though_it_is_dead() {
    kinds(|store| {
        store.second.is_dead.store(true, Ordering::Relaxed);
        store.fail();
        assert_eq!(store.in_doubt(), 0, "nothing has left the cache");
        assert!(read(&store.fs, store.held, 0, 2 * BLOCK) == Ok(vec![5; 2 * BLOCK]));
        assert!(read(&store.fs, store.synced, 0, 2 * BLOCK) == Ok(vec![2; 2 * BLOCK]));
        assert!(read(&store.fs, store.durable, 4096, 4096) == Ok(vec![4; 4096]));
        assert!(matches!(read(&store.fs, store.durable, 0, 4096), Err(Error::Io(_))), "the device alone has that");
    });
}

#[test]
fn a_retry_writes_what_was_held_and_leaves_in_doubt_what_was_not() {
    for dies in [false, true] {
        kinds(|store| {
            let broken = if dies { &store.second.is_dead } else { &store.second.fails };
            broken.store(true, Ordering::Relaxed);
            store.fail();
            broken.store(false, Ordering::Relaxed);
            let front = behind_cache(&store.world, store.boot, store.second.clone(), memory(store.kind));
            front.adopt(true);
            store.fs.devices().retry(1, || Ok((front, 0))).unwrap();
            store.see(&store.fs, "after the retry");
            store.fs.sync().unwrap();
            let synced = read(&store.fs, store.synced, 0, BLOCK);
            assert!(if dies { synced == Ok(vec![2; BLOCK]) } else { matches!(synced, Err(Error::Io(_))) });
            assert_eq!(store.in_doubt(), if dies { 0 } else { 2 });
            // A power loss clears the cache, too.
            let (_, fs) = store.next(true);
            store.see(&fs, "after a power loss");
        });
    }
}

#[test]
fn what_a_cache_has_of_an_earlier_process_is_in_doubt_when_its_flush_fails() {
    kinds(|store| {
        for ino in [store.durable, store.held] {
            let world = store.world.snapshot().process_crash().open();
            let (second, boot) = (Forgetful::new(world.disk(1)), store.boot.after(false));
            second.survives_process.store(true, Ordering::Relaxed);
            let front = behind_cache(&world, boot, second.clone(), memory(store.kind));
            let fs = try_open(&world, store.kind, boot, vec![given(1, front)], false).expect("it opens");
            store.see(&fs, "in the next process");
            second.fails.store(true, Ordering::Relaxed);
            assert!(matches!(fs.fsync(ino), Err(Error::Io(_))), "the flush failed and lost it");
            assert!(fs.devices().states()[1].suspect > 0);
            assert!(matches!(read(&fs, ino, 4096, 4096), Err(Error::Io(_))), "bytes in doubt are read");
        }
    });
}

#[test]
fn an_fsync_does_not_vouch_for_data_on_a_device_that_a_retry_did_not_find() {
    kinds(|store| {
        store.second.is_dead.store(true, Ordering::Relaxed);
        store.fail();
        assert!(store.fs.devices().retry(1, || Err("it is gone".into())).is_err());
        for ino in [store.synced, store.held, store.durable] {
            assert!(matches!(store.fs.fsync(ino), Err(Error::Io(_))), "held, and not durable");
        }
        store.second.is_dead.store(false, Ordering::Relaxed);
        let front = behind_cache(&store.world, store.boot, store.second.clone(), memory(store.kind));
        front.adopt(true);
        store.fs.devices().retry(1, || Ok((front, 0))).unwrap();
        for ino in [store.synced, store.held, store.durable] {
            assert_eq!(store.fs.fsync(ino), Ok(()));
        }
        store.see(&store.fs, "after the retry");
    });
}

#[test]
fn a_clean_end_keeps_what_is_held_for_a_device_that_failed() {
    for dies in [false, true] {
        kinds(|store| {
            let broken = if dies { &store.second.is_dead } else { &store.second.fails };
            broken.store(true, Ordering::Relaxed);
            store.fail();
            store.fs.shutdown().unwrap();
            let (world, fs) = store.next(false);
            store.see(&fs, "in the next process");
            let synced = read(&fs, store.synced, 0, BLOCK);
            assert!(if dies { synced == Ok(vec![2; BLOCK]) } else { matches!(synced, Err(Error::Io(_))) });
            fs.shutdown().unwrap();
            drop(fs);
            check(setup(store.kind), &world, false).unwrap();
            let boot = store.boot.after(false).after(true);
            let fs = try_open(&world, store.kind, boot, vec![given(1, world.disk(1))], false).unwrap();
            store.see(&fs, "without a cache after that");
        });
    }
}
