//! Fragmented memory: what `statfs` says is free can be used, and what is deleted is given back.
//!
//! Stores are filled with small files, random ones are deleted, and files of another size are
//! written until there is no room, with or without background compaction before. The checker must
//! find nothing wrong each time.

use std::sync::Arc;
use std::time::Instant;

use crate::compacted::beside_writers;
use crate::store::{CALLER, Setup, check, format, open_at};
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Fs, Ino, ROOT};
use shoal_sim::{Random, SimClock, World, due};

fn setup(kind: MemoryKind, region_segments: u64) -> Setup {
    Setup {
        kind,
        saved: false,
        region_bytes: region_segments << 16,
        ring_bytes: 512 << 10,
        bulk_blocks: 0,
        threshold: 1 << 20,
        cached: false,
    }
}

struct Store {
    setup: Setup,
    world: World,
    clock: Arc<SimClock>,
    fs: Fs,
    dir: Ino,
    next: u64,
}

/// Returns the contents of file `number`.
fn contents(number: u64, len: usize) -> Vec<u8> {
    (0..len).map(|i| (number * 31 + i as u64 * 7) as u8).collect()
}

impl Store {
    fn new(kind: MemoryKind, region_segments: u64) -> Store {
        let setup = setup(kind, region_segments);
        let world = format(setup, 7);
        let clock = Arc::new(SimClock::new(1_000_000_000));
        let (fs, _) = open_at(setup, &world, 1, 1, &clock).expect("a new store opens");
        let dir = fs.mkdir(&CALLER, ROOT, b"dir", 0o755).expect("there is room").ino;
        Store { setup, world, clock, fs, dir, next: 0 }
    }

    fn create(&mut self, len: usize) -> Result<u64, Error> {
        let number = self.next;
        let name = format!("f{number:07}");
        let file = self.fs.mknod(&CALLER, self.dir, name.as_bytes(), 0o644, 0)?.ino;
        match self.fs.write(file, 0, &contents(number, len)) {
            Ok(written) if written == len => {}
            short => {
                self.fs.unlink(self.dir, name.as_bytes()).expect("removing a file always works");
                return Err(short.err().unwrap_or(Error::NO_SPACE));
            }
        }
        self.next += 1;
        Ok(number)
    }

    /// Creates files until there is no room. Also returns how long the slowest creation took (ms).
    fn fill(&mut self, len: impl Fn(u64) -> usize) -> (Vec<(u64, usize)>, f64) {
        let (mut files, mut worst) = (Vec::new(), 0.0f64);
        loop {
            let (len, start) = (len(self.next), Instant::now());
            match self.create(len) {
                Ok(number) => files.push((number, len)),
                Err(Error::NoSpace(_)) => return (files, worst),
                Err(error) => panic!("{error}"),
            }
            worst = worst.max(start.elapsed().as_secs_f64() * 1e3);
        }
    }

    /// Deletes each file with a probability of `percent`. Returns the others.
    fn delete(&mut self, files: Vec<(u64, usize)>, percent: u64, random: &mut Random) -> Vec<(u64, usize)> {
        let mut kept = Vec::new();
        for (number, len) in files {
            if random.below(100) < percent {
                self.fs.unlink(self.dir, format!("f{number:07}").as_bytes()).expect("the file is there");
            } else {
                kept.push((number, len));
            }
        }
        kept
    }

    fn verify(&self, files: &[(u64, usize)]) {
        for &(number, len) in files {
            let file = self.fs.lookup(self.dir, format!("f{number:07}").as_bytes()).expect("the file is there");
            let mut bytes = vec![0; len + 1];
            assert_eq!(self.fs.read(file.ino, 0, &mut bytes).expect("it can be read"), len);
            assert!(bytes[..len] == contents(number, len)[..], "file {number} has its bytes");
        }
    }

    fn available(&self) -> u64 {
        let stat = self.fs.statfs();
        stat.available * stat.block_bytes as u64
    }

    fn check(&self) {
        check(self.setup, &self.world, false).expect("the checker finds nothing");
    }

    /// Lets an idle store compact until it has nothing to do. Returns the ticks that this took.
    fn idle(&self) -> u32 {
        let mut last = (self.fs.region().last_lsn(), 0);
        for tick in 1..100_000 {
            self.clock.advance(100_000_000);
            self.fs.compacting().compact_tick().expect("background work");
            let now = self.fs.region().last_lsn();
            if now != last.0 {
                last = (now, tick);
            } else if tick - last.1 > 200 {
                return last.1;
            }
        }
        panic!("compaction does not come to an end");
    }

    fn used(&self) -> u64 {
        let usage = self.fs.usage();
        usage.region_bytes - usage.region_fixed - usage.region_free
    }
}

fn mixed(number: u64) -> usize {
    [100, 700, 1000, 3000, 9000, 20_000][((number * 2_654_435_761) >> 7) as usize % 6]
}

/// Fills a store, deletes files, and writes files of 4,000 bytes. Returns how much could be
/// written, as a share of the space that was said to be available.
fn refill(segments: u64, percent: u64, first: impl Fn(u64) -> usize, idle: bool) -> f64 {
    let mut store = Store::new(MemoryKind::Battery, segments);
    let mut random = Random::new(percent);
    let (files, _) = store.fill(first);
    let kept = store.delete(files, percent, &mut random);
    let ticks = if idle { store.idle() } else { 0 };
    let said = store.available();
    let (written, worst) = store.fill(|_| 4000);
    let stored: u64 = written.iter().map(|&(_, len)| len as u64).sum();
    let share = stored as f64 / said as f64;
    println!(
        "{segments} segments, {percent}% deleted, idle {idle} ({ticks} ticks): {said} bytes available, {stored} stored \
         ({:.1}%), the longest creation took {worst:.1} ms",
        share * 100.0
    );
    store.verify(&kept);
    store.verify(&written);
    store.check();
    share
}

#[test]
fn what_is_said_to_be_available_can_be_used_after_random_deletions() {
    // The time grows faster than the size: 16,384 segments take an hour.
    let segments = if std::env::var_os("SHOAL_DEEP").is_some() { 4 << 10 } else { 256 };
    for percent in due([50, 80, 95], 3) {
        for idle in [false, true] {
            let share = refill(segments, percent, |_| 1000, idle);
            assert!(share >= 0.95, "{percent}% deleted: {share}");
        }
        let share = refill(segments, percent, mixed, percent == 80);
        assert!(share >= 0.95, "{percent}% of mixed sizes deleted: {share}");
    }
}

#[test]
fn an_empty_store_takes_what_it_says_is_available() {
    let mut store = Store::new(MemoryKind::Battery, 512);
    let said = store.available();
    let (written, _) = store.fill(|_| 4000);
    assert!(written.len() as u64 * 4000 * 100 >= said * 95, "{} files of {said} bytes", written.len());
    store.check();
}

#[test]
fn a_run_of_segments_is_found_between_sparse_ones() {
    let mut store = Store::new(MemoryKind::Battery, 512);
    let mut random = Random::new(3);
    let (files, _) = store.fill(|_| 1000);
    let kept = store.delete(files, 90, &mut random);
    // Four neighbouring segments: the value's piece is a run.
    for number in 0..4 {
        let name = format!("user.{number}");
        let value = vec![number; 60_000];
        store.fs.setxattr(store.dir, name.as_bytes(), &value, shoal_fs::XattrMode::Any).map_or_else(
            |error| assert!(number >= 2, "attribute {number}: {error}"),
            |()| assert_eq!(store.fs.getxattr(store.dir, name.as_bytes()), Ok(value.clone())),
        );
    }
    store.verify(&kept);
    store.check();
}

#[test]
fn an_emptied_store_uses_as_little_as_a_new_one() {
    for kind in [MemoryKind::Battery, MemoryKind::Logged] {
        let mut store = Store::new(kind, 600);
        let new = store.used();
        for number in 0..20_000 {
            store.create(200).unwrap_or_else(|e| panic!("file {number}: {e}"));
        }
        let full = store.used();
        let files = (0..20_000).map(|number| (number, 200)).collect();
        assert!(store.delete(files, 100, &mut Random::new(1)).is_empty());
        store.idle();
        let left = store.used();
        println!("{}: {new} bytes used by a new store, {full} full, {left} emptied", kind.name());
        assert!(left <= new + (64 << 10), "{left} bytes stay used of {full}, a new store uses {new}");
        store.check();
        // The numbers come back, with generations their last users never had.
        let again = store.fs.mknod(&CALLER, store.dir, b"again", 0o644, 0).expect("there is room");
        assert!(again.generation > 1 || again.ino < Ino::new(32), "{again:?}");
    }
}

#[test]
fn a_directory_shrinks_with_its_entries() {
    let store = Store::new(MemoryKind::Battery, 600);
    let before = store.fs.getattr(store.dir).expect("it is there").blocks;
    let numbers: Vec<u64> = (0..30_000).collect();
    for number in &numbers {
        store.fs.mknod(&CALLER, store.dir, format!("{number}").as_bytes(), 0o644, 0).expect("there is room");
    }
    let full = store.fs.getattr(store.dir).expect("it is there").blocks;
    let mut random = Random::new(5);
    let mut left: Vec<u64> = Vec::new();
    for number in numbers {
        if random.below(3000) == 0 {
            left.push(number);
        } else {
            store.fs.unlink(store.dir, format!("{number}").as_bytes()).expect("it is there");
        }
    }
    let shrunk = store.fs.getattr(store.dir).expect("it is there").blocks;
    println!("{} entries left: {before}, {full}, {shrunk} blocks", left.len());
    assert!(shrunk <= 8, "{shrunk} blocks for {} entries, {full} when full", left.len());
    for number in &left {
        store.fs.lookup(store.dir, format!("{number}").as_bytes()).expect("it is still there");
    }
    let mut listed = 0;
    store
        .fs
        .readdir(store.dir, 0, &mut |_| {
            listed += 1;
            true
        })
        .expect("it can be listed");
    assert_eq!(listed, left.len() + 2);
    store.check();
}

#[test]
fn an_idle_store_with_nothing_to_gain_is_left_alone() {
    let mut store = Store::new(MemoryKind::Battery, 400);
    let mut random = Random::new(9);
    let (files, _) = store.fill(|_| 1000);
    let kept = store.delete(files, 80, &mut random);
    store.idle();
    // Inodes that have cooled are packed, once.
    for _ in 0..1000 {
        store.clock.advance(100_000_000);
        store.fs.compacting().compact_tick().expect("background work");
    }
    let end = store.fs.region().last_lsn();
    for _ in 0..1000 {
        store.clock.advance(100_000_000);
        store.fs.compacting().compact_tick().expect("background work");
    }
    assert_eq!(store.fs.region().last_lsn(), end, "records without a reason");
    let step = store.fs.compacting().compact_step().expect("nothing to do");
    assert!(!step.more && step.moved == 0, "{step:?}");
    store.verify(&kept);
}

/// The host gives room for only an eighth of the region. Space of deleted files there can be used
/// by files of another size.
#[test]
fn on_a_full_host_sparse_segments_are_compacted_before_a_creation_fails() {
    for (percent, idle) in [(95, false), (95, true), (60, false)] {
        let mut store = Store::new(MemoryKind::Logged, 2048);
        store.world.fill_host(24, 4096);
        let mut random = Random::new(percent);
        let (files, _) = store.fill(|_| 1000);
        assert!(store.fs.region().space().touched_bytes < 1024 << 16, "the host is full before the region is");
        let kept = store.delete(files.clone(), percent, &mut random);
        if idle {
            store.idle();
        }
        let (written, _) = store.fill(|_| 4000);
        let (first, stored) = (files.len() as u64 * 1000, written.len() as u64 * 4000);
        let freed = (files.len() - kept.len()) as u64 * 1000;
        let share = stored as f64 / freed as f64;
        println!("{percent}% of {first} bytes deleted, idle {idle}: {stored} stored ({:.1}%)", share * 100.0);
        assert!(share > 0.9, "{percent}%, idle {idle}: {stored} of {freed} bytes");
        store.verify(&kept);
        store.verify(&written);
        store.delete(kept, 100, &mut random);
        store.delete(written, 100, &mut random);
        store.fs.shutdown().expect("a full host keeps nobody from ending");
        store.check();
    }
}

#[test]
fn what_threads_write_beside_compaction_is_what_they_read() {
    (0..2).for_each(|seed| beside_writers(seed, 500));
}
