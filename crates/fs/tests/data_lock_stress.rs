//! Threads on a few files whose numbers come and go, over a bulk device that is slow, nearly full,
//! and fails now and then.
//!
//! Every byte tells its file and generation. Threads that hold a reference write it, and threads
//! that know only a number write zeros. So the bytes of a number's earlier user are foreign, too.
//! When all names are gone, no block may be in use, so a reservation that an error or a removal
//! left behind shows. The scheduler decides the order: a seed fixes what is tried, not when.
//! `crowd` does the same without errors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::data_store::Store;
use crate::data_store::gate::{delays, each_seed};
use crate::store::{Moment, Setup, check};
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Attr, Caller, Error, Fs, Ino, Patience, ROOT, RenameMode, SetAttr, Writer, XattrMode};
use shoal_sim::{Call, Fault, FaultPlan, Limits, Random};

const THREADS: u64 = 7;
const STEPS: u64 = 250;
const NAMES: u64 = 6;
const SIZE_MAX: u64 = 300_000;
const MODES: [i32; 4] = [0, 1, 3, 16];

fn tag(attr: &Attr) -> u8 {
    ((u64::from(attr.ino) * 31 + attr.generation as u64 * 7) % 251) as u8 + 1
}

fn name(number: u64) -> Vec<u8> {
    format!("file{number}").into_bytes()
}

fn allowed<T>(outcome: Result<T, Error>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(Error::NoSpace(_) | Error::Stale | Error::NotFound | Error::Exists | Error::WouldFlush | Error::Io(_)) => {
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

fn resize(fs: &Fs, ino: Ino, size: u64) -> Result<Attr, Error> {
    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() })
}

/// Writes without waiting for a flush.
fn write_now(fs: &Fs, ino: Ino, at: u64, bytes: &[u8]) -> Result<usize, Error> {
    fs.write_of(Patience::Refuses.into(), Writer::Program, ino, at, bytes)
}

fn look(fs: &Fs, attr: &Attr, at: u64, len: u64) {
    let mut bytes = vec![0; len as usize];
    let read = allowed(fs.read(attr.ino, at, &mut bytes)).unwrap_or(0);
    let foreign = bytes[..read].iter().find(|&&byte| byte != 0 && byte != tag(attr));
    assert_eq!(foreign, None, "inode {} generation {}: a byte of another file", attr.ino, attr.generation);
}

/// Changes a file that is held.
fn change(fs: &Fs, random: &mut Random, attr: &Attr) {
    let (ino, at, len) = (attr.ino, random.below(SIZE_MAX), 1 + random.below(120_000));
    match random.below(14) {
        0..3 => look(fs, attr, at, len),
        3..7 => drop(allowed(fs.write(ino, at, &vec![tag(attr); len as usize]))),
        7 => drop(allowed(write_now(fs, ino, at, &vec![tag(attr); len as usize]))),
        8 => drop(allowed(resize(fs, ino, [0, 1000, at, 90_000][random.below(4) as usize]))),
        9 => drop(allowed(fs.fallocate(ino, MODES[random.below(4) as usize], at, len))),
        10 => drop(allowed(fs.copy_range(ino, 0, ino, 150_000, len))),
        11 => drop(allowed(fs.setxattr(ino, b"user.a", &[1; 300][..len as usize % 300], XattrMode::Any))),
        12 => drop(allowed(fs.link(ino, ROOT, &name(random.below(NAMES))))),
        _ => drop(allowed(fs.fsync(ino))),
    }
}

/// Changes a number that may be another file's by now.
fn change_unheld(fs: &Fs, random: &mut Random, ino: Ino) {
    let (at, len) = (random.below(SIZE_MAX), 1 + random.below(120_000));
    match random.below(8) {
        0..3 => drop(allowed(fs.write(ino, at, &vec![0; len as usize]))),
        3 => drop(allowed(write_now(fs, ino, at, &vec![0; len as usize]))),
        4 | 5 => drop(allowed(resize(fs, ino, [0, 500, at][random.below(3) as usize]))),
        6 => drop(allowed(fs.fallocate(ino, MODES[random.below(4) as usize], at, len))),
        _ => drop(allowed(fs.setattr(ino, &SetAttr { mode: Some(0o640), ..SetAttr::default() }))),
    }
}

fn step(fs: &Fs, random: &mut Random) {
    let (one, other) = (name(random.below(NAMES)), name(random.below(NAMES)));
    match random.below(14) {
        0 | 1 => drop(allowed(fs.unlink(ROOT, &one))),
        2 => drop(allowed(fs.rename(ROOT, &one, ROOT, &other, RenameMode::Replace))),
        3 => drop(allowed(fs.rename(ROOT, &one, ROOT, &other, RenameMode::Exchange))),
        4..7 => drop(allowed(fs.mknod(&Caller::default(), ROOT, &one, 0o644, 0))),
        choice => {
            let hold = choice < 11;
            let looked_up = if hold { fs.lookup_held(ROOT, &one) } else { fs.lookup(ROOT, &one) };
            let Some(attr) = allowed(looked_up) else { return };
            for _ in 0..1 + random.below(3) {
                if hold { change(fs, random, &attr) } else { change_unheld(fs, random, attr.ino) }
            }
            if hold {
                fs.forget(attr.ino, 1);
            }
        }
    }
}

fn background(store: &Store, going: &AtomicBool, seed: u64, faulty: bool) {
    let (fs, mut random) = (&store.fs, Random::new(seed));
    while going.load(Ordering::Relaxed) {
        match random.below(8) {
            0 => drop(allowed(fs.data().gather_bulk(random.below(24), &mut |_| {}))),
            1 | 2 => drop(allowed(fs.compacting().compact())),
            3 => drop(allowed(fs.checkpoint())),
            4 => drop(allowed(fs.sync())),
            5 if faulty => {
                let call = [Call::DiskRead, Call::DiskWrite][random.below(2) as usize];
                store.world.fail(FaultPlan { call, nth: random.below(4), for_good: false, fault: Fault::Io });
            }
            _ => drop(allowed(fs.upkeep().tick())),
        }
        std::thread::sleep(Duration::from_micros(random.below(400)));
    }
    store.world.clear_faults();
}

fn stress(kind: MemoryKind, seed: u64, delay_us: u64, faulty: bool) {
    let setup = Setup { kind, threshold: 80 << 10, bulk_blocks: 20, region_bytes: 200 << 16, ..Setup::default() };
    let moments = &[Moment::Read, Moment::Write, Moment::Flush, Moment::LogSync];
    let store = Store::new(setup).hooked(delays(seed << 32, delay_us, moments));
    let kept = store.create(b"kept");
    let bytes = vec![77; 150_000];
    store.fs.write(kept, 0, &bytes).unwrap();
    store.fs.fsync(kept).unwrap();
    let going = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let (store, going) = (&store, &going);
        let workers: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn(move || {
                    let mut random = Random::new(seed << 8 | number);
                    (0..STEPS).for_each(|_| step(&store.fs, &mut random));
                })
            })
            .collect();
        let behind = scope.spawn(move || background(store, going, seed, faulty));
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        going.store(false, Ordering::Relaxed);
        behind.join().expect("the background's own message is above");
        done.into_iter().for_each(|worker| worker.expect("a worker's own message is above"));
    });
    let point = store.world.snapshot();
    let states = point.power_losses(&Limits::few()).map(|state| (state, true));
    for (state, power_lost) in states.chain([(point.process_crash(), false)]) {
        let context = format!("seed {seed}, {}", state.name());
        check(setup, &state.open(), power_lost).unwrap_or_else(|e| panic!("{context}, before it is opened: {e}"));
        let after = store.reopened(&state, power_lost);
        let mut read = vec![0; bytes.len() + 1];
        assert_eq!(after.fs.read(kept, 0, &mut read), Ok(bytes.len()), "{context}");
        assert!(read[..bytes.len()] == bytes, "{context}: an fsync is lost");
        for number in 0..NAMES {
            let Some(attr) = allowed(after.fs.lookup(ROOT, &name(number))) else { continue };
            look(&after.fs, &attr, 0, 2 * SIZE_MAX);
            after.check_allocated(attr.ino, &context);
        }
        after.fs.sync().unwrap();
        check(setup, &after.world, false).unwrap_or_else(|e| panic!("{context}: {e}"));
    }
    for number in 0..NAMES {
        allowed(store.fs.unlink(ROOT, &name(number)));
    }
    store.fs.unlink(ROOT, b"kept").unwrap();
    store.fs.sync().unwrap();
    store.fs.checkpoint().unwrap();
    store.fs.sync().unwrap();
    assert_eq!(store.fs.usage().bulk_used, 0, "seed {seed}: blocks that nobody has are in use");
}

#[test]
fn files_that_come_and_go_over_a_failing_device_leave_no_byte_and_no_block() {
    each_seed(6, |kind, seed| stress(kind, seed, [200, 0, 800, 50, 30][(seed % 5) as usize], seed % 3 > 0));
}
