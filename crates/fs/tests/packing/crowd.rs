//! Threads that write and read a few files while others pack, unpack, compact and save without pause.
//!
//! Only one thread at a time changes a file. It notes the contents before it begins and when it is
//! done. A read is one step. It returns contents that the file had between the last change that was
//! done when the read began and the last one that had begun when the read ended. The scheduler
//! decides the order: a seed fixes what is tried, not when.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Fs, ROOT, RenameMode, SetAttr, XattrMode};
use shoal_sim::{Limits, Random};

use super::{PUNCH, read, truncate};
use crate::cold::{caller, create};
use crate::data_store::Store;
use crate::store::{Setup, check};

const FILES: u64 = 6;
const THREADS: u64 = 4;
/// Longest file (bytes). One step of a write ends there, and a longer write is not seen all at
/// once.
const SIZE_MAX: usize = 256 << 10;
const KEEP_SIZE: i32 = 1;
const ZERO_RANGE: i32 = 16;
/// Versions of a file that are remembered. A read that takes longer than this many changes is not
/// judged.
const REMEMBERED: usize = 32;

/// Contents of a file. None if there is no such name.
type Contents = Option<Arc<Vec<u8>>>;

#[derive(Default)]
struct File {
    name: String,
    /// Held during a change.
    turn: Mutex<()>,
    /// Contents by number of the change.
    states: Mutex<VecDeque<(u64, Contents)>>,
    begun: AtomicU64,
    done: AtomicU64,
}

impl File {
    fn now(&self) -> Contents {
        self.states.lock().unwrap().back().expect("there is a first state").1.clone()
    }

    /// Runs `work`, which makes the contents `new` or, without room, leaves them.
    fn change(&self, new: Contents, work: impl FnOnce() -> Result<(), Error>) {
        let old = self.now();
        self.begin(new);
        match work() {
            Ok(()) => {}
            Err(Error::NoSpace(_)) => self.begin(old),
            Err(error) => panic!("{}: {error:?}", self.name),
        }
        self.done.store(self.begun.load(SeqCst), SeqCst);
    }

    fn begin(&self, new: Contents) {
        let number = self.begun.load(SeqCst) + 1;
        let mut states = self.states.lock().unwrap();
        states.push_back((number, new));
        if states.len() > REMEMBERED {
            states.pop_front();
        }
        self.begun.store(number, SeqCst);
    }

    /// Returns the contents that the file may have had since change number `from` was done. None if
    /// that is forgotten.
    fn since(&self, from: u64) -> Option<Vec<Contents>> {
        let states = self.states.lock().unwrap();
        let known = states.front().is_some_and(|(number, _)| *number <= from);
        known.then(|| states.iter().filter(|(number, _)| *number >= from).map(|(_, state)| state.clone()).collect())
    }
}

struct Crowd<'a> {
    store: &'a Store,
    files: &'a [File],
    judged: &'a AtomicU64,
    seed: u64,
}

/// Returns bytes that packing shrinks to a half or so, or not at all.
fn noise(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    if random.below(4) > 0 {
        let run = 2 + random.index(30);
        bytes.chunks_mut(run).for_each(|line| line.fill(line[0]));
    }
    bytes
}

impl Crowd<'_> {
    fn fs(&self) -> &Fs {
        &self.store.fs
    }

    /// Reads a part of a file, a page or all of it, and compares.
    fn look(&self, random: &mut Random) {
        let file = &self.files[random.index(self.files.len())];
        let from = file.done.load(SeqCst);
        let (at, len) = match random.below(4) {
            0 => (0, SIZE_MAX * 2),
            1 => (random.index(SIZE_MAX / 4096) * 4096, 4096),
            _ => (random.index(SIZE_MAX), 1 + random.index(50_000)),
        };
        let found = match self.fs().lookup_held(ROOT, file.name.as_bytes()) {
            Err(Error::NotFound) => None,
            Err(error) => panic!("{}: {error:?}", file.name),
            Ok(attr) => {
                let found = read(self.fs(), attr.ino, at as u64, len);
                self.fs().forget(attr.ino, 1);
                Some(found.unwrap_or_else(|error| panic!("{}: {error:?}", file.name)))
            }
        };
        let Some(states) = file.since(from) else { return };
        let part = |bytes: &Vec<u8>| bytes[at.min(bytes.len())..(at + len).min(bytes.len())].to_vec();
        let explains = |state: &Contents| state.as_ref().map(|bytes| part(bytes)) == found;
        let context = || format!("seed {}, {} at {at}: {:?} bytes", self.seed, file.name, found.as_ref().map(Vec::len));
        assert!(states.iter().any(explains), "{}: none of {} states explains them", context(), states.len());
        self.judged.fetch_add(1, SeqCst);
    }

    fn change(&self, random: &mut Random, thread: u64) {
        let fs = self.fs();
        let file = &self.files[random.index(self.files.len())];
        let _turn = file.turn.lock().unwrap();
        let Some(old) = file.now() else {
            let made = || fs.mknod(&caller(), ROOT, file.name.as_bytes(), 0o644, 0).map(drop);
            return file.change(Some(Arc::default()), made);
        };
        let ino = fs.lookup(ROOT, file.name.as_bytes()).expect("it is there").ino;
        let with = |at: usize, bytes: &[u8]| {
            let mut new = old.to_vec();
            new.resize(new.len().max(at + bytes.len()), 0);
            new[at..at + bytes.len()].copy_from_slice(bytes);
            Some(Arc::new(new))
        };
        let resized = |size: usize| {
            let mut new = old.to_vec();
            new.resize(size, 0);
            Some(Arc::new(new))
        };
        let write = |at: usize, bytes: &[u8]| {
            file.change(with(at, bytes), || {
                let written = fs.write(ino, at as u64, bytes)?;
                assert_eq!(written, bytes.len(), "one step is all or nothing");
                Ok(())
            });
        };
        let at = random.index(SIZE_MAX - 60_000);
        match random.below(20) {
            0..6 => write(at.min(old.len().saturating_sub(1)), &noise(random, 4000)),
            6 | 7 => write(at, &noise(random, 60_000)),
            8..10 if old.len() < SIZE_MAX - 60_000 => write(old.len(), &noise(random, 5000)),
            10 => write(0, &noise(random, SIZE_MAX)),
            11 => {
                let size = [0, 1000, at, SIZE_MAX, old.len() / 2][random.index(5)];
                file.change(resized(size), || truncate(fs, ino, size as u64));
            }
            12 | 13 => {
                let (from, len) = (at.min(old.len()), random.index(60_000) + 1);
                let to = (from + len).min(old.len());
                let new = with(from, &vec![0; to - from]);
                let mode = [PUNCH, ZERO_RANGE | KEEP_SIZE][random.index(2)];
                file.change(new, || fs.fallocate(ino, mode, from as u64, len as u64));
            }
            14 => {
                let at = if random.below(2) == 0 { at } else { old.len() };
                file.change(Some(old), || fs.fallocate(ino, KEEP_SIZE, at as u64, 60_000));
            }
            15 => {
                let len = (old.len() / 2).min(100_000);
                let to = old.len() - len;
                let new = with(to, &old[..len]);
                // A copy goes in pieces. One of at most 128 KiB is seen all at once.
                file.change(new, || fs.copy_range(ino, 0, ino, to as u64, len as u64).map(drop));
            }
            16 => {
                let (name, bytes) = (format!("new{thread}"), noise(random, 1 + at));
                file.change(Some(Arc::new(bytes.clone())), || {
                    let new = create(fs, &name);
                    let outcome = fs.write(new, 0, &bytes);
                    if !outcome.is_ok_and(|written| written == bytes.len()) {
                        fs.unlink(ROOT, name.as_bytes())?;
                        return Err(Error::NO_SPACE);
                    }
                    fs.rename(ROOT, name.as_bytes(), ROOT, file.name.as_bytes(), RenameMode::Replace)
                });
            }
            17 => file.change(None, || fs.unlink(ROOT, file.name.as_bytes())),
            18 => {
                let mode = Some(random.below(0o777) as u32);
                fs.setattr(ino, &SetAttr { mode, ..SetAttr::default() }).expect("of a file that is there");
                assert!(matches!(
                    fs.setxattr(ino, b"user.a", &[1; 300], XattrMode::Any),
                    Ok(()) | Err(Error::NoSpace(_))
                ));
            }
            _ => fs.fsync(ino).expect("an fsync needs no room"),
        }
    }

    /// Packs without pause until `going` is false.
    fn pack(&self, going: &AtomicBool, random: &mut Random) {
        let fs = self.fs();
        let allowed = |outcome: Result<(), Error>| match outcome {
            Ok(()) | Err(Error::NoSpace(_)) => {}
            Err(error) => panic!("seed {}: {error:?}", self.seed),
        };
        while going.load(SeqCst) {
            let file = &self.files[random.index(self.files.len())];
            match random.below(12) {
                0 => allowed(fs.compacting().compact().map(drop)),
                1 => allowed(fs.compacting().pack_inodes_step(64).map(drop)),
                2 => allowed(fs.checkpoint()),
                3 => allowed(fs.upkeep().tick()),
                4 => {
                    self.store.clock.advance(100_000_000);
                    allowed(fs.cooling().pack_tick());
                }
                5 => allowed(fs.cooling().pack_all(&mut |_, _| {}).map(drop)),
                6 => allowed(fs.spilling().spill_all().map(drop)),
                7 => allowed(fs.spilling().bring_all_back().map(drop)),
                8 => allowed(fs.spilling().spill_tick().and_then(|()| fs.spilling().clean_spilled())),
                _ => {
                    if let Ok(attr) = fs.lookup_held(ROOT, file.name.as_bytes()) {
                        allowed(fs.cooling().pack_now(attr.ino).map(drop));
                        fs.forget(attr.ino, 1);
                    }
                }
            }
        }
    }

    /// Checks that the files of a store at rest are as their last changes left them.
    fn compare(&self, store: &Store, context: &str) {
        for file in self.files {
            let found = store.fs.lookup(ROOT, file.name.as_bytes()).ok();
            let found = found.map(|attr| (attr.ino, read(&store.fs, attr.ino, 0, 2 * SIZE_MAX).unwrap()));
            if let Some((ino, _)) = found {
                store.check_allocated(ino, context);
            }
            assert!(found.map(|(_, bytes)| bytes) == file.now().as_deref().cloned(), "{context}: {}", file.name);
        }
    }
}

/// Runs the threads once. Returns how many reads were judged.
pub fn crowd(kind: MemoryKind, bulk: bool, seed: u64, steps: u64) -> u64 {
    let (bulk_blocks, threshold) = if bulk { (64, 160 << 10) } else { (0, 1 << 20) };
    let setup = Setup { kind, threshold, bulk_blocks, region_bytes: 160 << 16, ..Setup::default() };
    let store = Store::packing(setup);
    let file = |number: u64| {
        let states = Mutex::new([(0, None)].into());
        File { name: format!("file{number}"), states, ..File::default() }
    };
    let files: Vec<File> = (0..FILES).map(file).collect();
    let (judged, going) = (AtomicU64::new(0), AtomicBool::new(true));
    let crowd = Crowd { store: &store, files: &files, judged: &judged, seed };
    std::thread::scope(|scope| {
        let (crowd, going) = (&crowd, &going);
        let spawn = |number: u64| {
            scope.spawn(move || {
                let mut random = Random::new(seed << 8 | number);
                for _ in 0..steps {
                    if random.below(3) > 0 { crowd.look(&mut random) } else { crowd.change(&mut random, number) }
                }
            })
        };
        let workers: Vec<_> = (0..THREADS).map(spawn).collect();
        let packers =
            [200, 201].map(|number| scope.spawn(move || crowd.pack(going, &mut Random::new(seed << 8 | number))));
        let done: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        going.store(false, SeqCst);
        let packed = packers.map(|packer| packer.join());
        done.into_iter().chain(packed).for_each(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
    });
    crowd.compare(&store, &format!("seed {seed}, at the end"));
    store.fs.sync().unwrap();
    let point = store.world.snapshot();
    let states = point.power_losses(&Limits::few()).map(|state| (state, true));
    for (state, power_lost) in states.chain([(point.process_crash(), false)]) {
        let context = format!("seed {seed}, {}", state.name());
        check(setup, &state.open(), power_lost).unwrap_or_else(|error| panic!("{context}: {error}"));
        let after = store.reopened(&state, power_lost);
        crowd.compare(&after, &context);
        after.fs.sync().unwrap();
        check(setup, &after.world, false).unwrap_or_else(|error| panic!("{context}, opened: {error}"));
    }
    judged.into_inner()
}
