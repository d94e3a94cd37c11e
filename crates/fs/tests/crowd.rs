//! Many threads on few files, over a slow device: no byte of another file, no lost attribute, no
//! lost fsync.
//!
//! Files cross the threshold all the time, give up blocks that others get at once, and lose their
//! names and numbers beside reads, writes and moves of the same file. Compaction and gathering run
//! beside them. Every byte written tells its inode's number. Each thread also has a file whose
//! attributes it alone changes, though all write to it, and a file that only it writes. The
//! scheduler decides the order: a seed fixes what is tried, not when.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::data_store::Store;
use crate::data_store::gate::{delays, each_seed};
use crate::store::{Moment, Setup, check};
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Caller, Error, Fs, Ino, ROOT, RenameMode, SetAttr, XattrMode};
use shoal_sim::{Limits, Random};

const THREADS: u64 = 6;
const STEPS: u64 = 250;
const NAMES: u64 = 5;
const SIZE_MAX: u64 = 640_000;
const PUNCH: i32 = 3;
const ZERO_RANGE: i32 = 16;

fn tag(ino: Ino) -> u8 {
    (ino.get() % 251) as u8 + 1
}

fn name(number: u64) -> Vec<u8> {
    format!("file{number}").into_bytes()
}

/// Takes the outcome of an operation on a file that others remove, on a store that may be full.
/// Panics on an error that this does not explain.
fn allowed<T>(outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(Error::NoSpace(_) | Error::Stale | Error::NotFound | Error::Exists) => None,
        Err(error) => panic!("{error:?}"),
    }
}

struct Member<'a> {
    fs: &'a Fs,
    random: Random,
    number: u64,
    /// The file whose attributes this thread alone changes, and those of all threads.
    mine: Ino,
    common: &'a [Ino],
    /// The file that this thread alone writes, and its contents.
    private: Ino,
    contents: Vec<u8>,
}

impl Member<'_> {
    fn step(&mut self) {
        let fs = self.fs;
        if self.random.below(6) == 0 {
            return self.change_attributes();
        }
        if self.random.below(8) == 0 {
            return self.change_private();
        }
        if self.random.below(4) == 0 {
            let ino = self.common[self.random.below(THREADS) as usize];
            return self.change_data(ino);
        }
        let (one, other) = (name(self.random.below(NAMES)), name(self.random.below(NAMES)));
        match self.random.below(12) {
            0 => drop(allowed(fs.unlink(ROOT, &one))),
            1 => drop(allowed(fs.rename(ROOT, &one, ROOT, &other, RenameMode::Replace))),
            2 | 3 => drop(allowed(fs.mknod(&Caller::default(), ROOT, &one, 0o644, 0))),
            _ => {
                // As the kernel does it, or as a program that keeps a number and no reference.
                let hold = self.random.below(2) == 0;
                let looked_up = if hold { fs.lookup_held(ROOT, &one) } else { fs.lookup(ROOT, &one) };
                let Some(found) = allowed(looked_up) else { return };
                for _ in 0..1 + self.random.below(3) {
                    self.change_data(found.ino);
                }
                if hold {
                    fs.forget(found.ino, 1);
                }
            }
        }
    }

    fn change_data(&mut self, ino: Ino) {
        let (fs, random) = (self.fs, &mut self.random);
        let (at, len) = (random.below(SIZE_MAX), 1 + random.below(90_000));
        let at = if random.below(3) == 0 { random.below(90_000) } else { at };
        match random.below(16) {
            0..5 => {
                let mut bytes = vec![0; len as usize];
                let read = allowed(fs.read(ino, at, &mut bytes)).unwrap_or(0);
                let foreign = bytes[..read].iter().find(|&&byte| byte != 0 && byte != tag(ino));
                assert_eq!(foreign, None, "inode {ino}, tag {}: a byte of another file", tag(ino));
            }
            5..10 => drop(allowed(fs.write(ino, at, &vec![tag(ino); len as usize]))),
            10 | 11 => {
                let size = [0, 1000, 30_000, at][random.below(4) as usize];
                allowed(fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }));
            }
            12 => drop(allowed(fs.fallocate(ino, [PUNCH, ZERO_RANGE, 0][random.below(3) as usize], at, len))),
            // To the other tier, or out and back in again.
            14 => {
                let given = [8192, 1 << 20, 0][random.below(3) as usize];
                if let Some(found) = allowed(fs.large().misplaced(ino, given)).flatten() {
                    allowed(fs.large().rebalance(ino, found.generation, given));
                }
            }
            13 => drop(allowed(fs.copy_range(ino, 0, ino, 200_000, len))),
            _ => drop(allowed(fs.fsync(ino))),
        }
    }

    fn change_attributes(&mut self) {
        let (fs, value) = (self.fs, self.random.below(0o777) as u32);
        allowed(fs.setattr(self.mine, &SetAttr { mode: Some(value), uid: Some(value), ..SetAttr::default() }));
        let after = fs.getattr(self.mine).unwrap();
        assert_eq!((after.mode & 0o7777, after.uid), (value, value), "thread {}: an attribute is lost", self.number);
        if allowed(fs.setxattr(self.mine, b"user.a", &value.to_le_bytes(), XattrMode::Any)).is_some() {
            assert_eq!(fs.getxattr(self.mine, b"user.a").unwrap(), value.to_le_bytes(), "an attribute is lost");
        }
    }

    fn change_private(&mut self) {
        let fs = self.fs;
        if self.random.below(3) == 0 {
            let size = self.random.below(SIZE_MAX) as usize;
            if allowed(fs.setattr(self.private, &SetAttr { size: Some(size as u64), ..SetAttr::default() })).is_some() {
                self.contents.resize(size, 0);
            }
        } else {
            let (at, byte) = (self.random.below(SIZE_MAX) as usize, 1 + self.random.below(255) as u8);
            let bytes = vec![byte; 1 + self.random.below(60_000) as usize];
            if let Some(written) = allowed(fs.write(self.private, at as u64, &bytes)) {
                self.contents.resize(self.contents.len().max(at + written), 0);
                self.contents[at..at + written].fill(byte);
            }
        }
        self.compare(fs);
        allowed(fs.fsync(self.private));
    }

    fn compare(&self, fs: &Fs) {
        let mut bytes = vec![0; self.contents.len() + 1];
        assert_eq!(fs.read(self.private, 0, &mut bytes), Ok(self.contents.len()), "thread {}", self.number);
        let wrong = bytes.iter().zip(&self.contents).position(|(have, want)| have != want);
        assert_eq!(wrong, None, "thread {}: its own file differs", self.number);
    }
}

/// Returns a store whose bulk device takes up to `delay_us` for a call.
fn slow(kind: MemoryKind, seed: u64, delay_us: u64) -> Store {
    let setup = Setup { kind, threshold: 80 << 10, bulk_blocks: 96, region_bytes: 300 << 16, ..Setup::default() };
    Store::new(setup).hooked(delays(seed, delay_us, &[Moment::Read, Moment::Write, Moment::Flush]))
}

/// Runs gathering, compaction, checkpoints, syncs and ticks beside the others until `going` is
/// false.
fn background(fs: &Fs, going: &AtomicBool, seed: u64) {
    let mut random = Random::new(seed);
    while going.load(Ordering::Relaxed) {
        match random.below(6) {
            0 => drop(allowed(fs.data().gather_bulk(random.below(64), &mut |_| {}))),
            1 => drop(allowed(fs.compacting().compact())),
            2 => drop(allowed(fs.checkpoint())),
            3 => drop(allowed(fs.sync())),
            _ => drop(allowed(fs.upkeep().tick())),
        }
        std::thread::sleep(Duration::from_micros(random.below(500)));
    }
}

fn crowd(kind: MemoryKind, seed: u64, delay_us: u64) {
    let store = slow(kind, seed, delay_us);
    let common: Vec<Ino> = (0..THREADS).map(|number| store.create(format!("common{number}").as_bytes())).collect();
    let private: Vec<Ino> = (0..THREADS).map(|number| store.create(format!("private{number}").as_bytes())).collect();
    store.fs.sync().unwrap();
    let going = AtomicBool::new(true);
    let members: Vec<(u64, Vec<u8>)> = std::thread::scope(|scope| {
        let (fs, common, private) = (&store.fs, &common, &private);
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn(move || {
                    let random = Random::new(seed << 8 | number);
                    let (mine, private) = (common[number as usize], private[number as usize]);
                    let mut member = Member { fs, random, number, mine, common, private, contents: Vec::new() };
                    (0..STEPS).for_each(|_| member.step());
                    member.compare(fs);
                    fs.fsync(private).expect("an fsync needs no room");
                    (number, member.contents)
                })
            })
            .collect();
        let behind = scope.spawn(|| background(fs, &going, seed));
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        going.store(false, Ordering::Relaxed);
        behind.join().unwrap();
        done.into_iter().map(|member| member.expect("a member's own message is above")).collect()
    });
    let point = store.world.snapshot();
    let states = point.power_losses(&Limits::few()).map(|state| (state, true));
    for (state, power_lost) in states.chain([(point.process_crash(), false)]) {
        let after = store.reopened(&state, power_lost);
        for (number, contents) in &members {
            let ino = after.fs.lookup(ROOT, format!("private{number}").as_bytes()).unwrap().ino;
            after.check_allocated(ino, state.name());
            let mut bytes = vec![0; contents.len() + 1];
            assert_eq!(after.fs.read(ino, 0, &mut bytes), Ok(contents.len()), "seed {seed}, {}", state.name());
            assert!(bytes[..contents.len()] == contents[..], "seed {seed}, {}: an fsync is lost", state.name());
        }
        after.fs.sync().unwrap();
        check(after.setup, &after.world, false).unwrap_or_else(|e| panic!("seed {seed}, {}: {e}", state.name()));
    }
}

#[test]
fn a_crowd_on_few_files_neither_loses_nor_mixes_anything() {
    each_seed(8, |kind, seed| crowd(kind, seed, [200, 0, 1000, 50, 30][(seed % 5) as usize]));
}
