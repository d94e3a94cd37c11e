//! A store with several bulk devices on simulated media: crashes around adding, emptying and
//! removing one, devices that lose data that no flush covered (`doubt`), and devices that are
//! missing, older or exchanged (`away`).
//!
//! Every file is filled with its own byte. After a crash, in every state that log and disks may be
//! left in, the store opens, the checker finds nothing wrong, a synced file is whole, and no file
//! holds other bytes than its own and zeros.
//! Left out: what one device alone can do (`crash`, `device_errors`).

#[macro_use]
mod plain_cache;

pub mod away;
pub mod doubt;
mod forgetful;
pub mod retries;
pub use forgetful::{Failing, Forgetful};

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use shoal_check::{FindingKind, FoundDevice, NotOpened};
use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::BulkDeviceEntry;
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Caller, Error, Fs, GivenDevice, Ino, Leaving, Options, ROOT, RenameMode, SetAttr};
use shoal_media::{
    BlockDevice, BlockGeometry, Completion, ImageFile, MediaError, PersistentMemory, Request, WriteCache,
};
use shoal_region::Recovery;
use shoal_sim::{Limits, Random, SimClock, SimDisk, World, WorldState};

use crate::store::{
    Boot, FOREIGN, Setup, Watch, add_cache_memory, behind_cache, check, disk_of, format, found, open_with, report_with,
};

/// Blocks of each device.
pub const BLOCKS: u64 = 12;
/// Devices beside the first.
pub const MORE: usize = 2;

pub fn setup(kind: MemoryKind) -> Setup {
    Setup {
        kind,
        saved: false,
        region_bytes: 80 << 16,
        ring_bytes: 512 << 10,
        bulk_blocks: BLOCKS,
        threshold: 64 << 10,
        cached: false,
    }
}

pub fn uuid(number: usize) -> [u8; 16] {
    [number as u8; 16]
}

pub fn given(number: usize, device: Arc<dyn BlockDevice>) -> GivenDevice {
    GivenDevice { uuid: uuid(number), name: format!("disk {number}"), on_host: false, place: 0, device: Ok(device) }
}

/// Returns a new store, with more disks that it does not know of yet.
pub fn new_world(kind: MemoryKind) -> World {
    new_world_of(setup(kind))
}

pub fn new_world_of(setup: Setup) -> World {
    with_more(setup, format(setup, 1))
}

/// Adds the disks that the store does not know of yet.
pub fn with_more(setup: Setup, world: World) -> World {
    for _ in 0..MORE {
        world.add_used_disk((BLOCKS + 1) * BULK_BLOCK, FOREIGN);
        if setup.cached {
            add_cache_memory(&world);
        }
    }
    world
}

/// Returns all disks of the world but the first, behind caches if the first has one.
fn all_given_of(setup: Setup, world: &World, boot: Boot) -> Vec<GivenDevice> {
    if !setup.cached {
        return all_given(world);
    }
    let first = usize::from(setup.kind.has_ring());
    (1..=MORE).map(|number| given(number, behind_cache(world, boot, world.disk(number), first + number))).collect()
}

/// Returns all disks of the world but the first.
pub fn all_given(world: &World) -> Vec<GivenDevice> {
    (1..=MORE).map(|number| given(number, world.disk(number))).collect()
}

pub fn try_open(
    world: &World,
    kind: MemoryKind,
    boot: Boot,
    given: Vec<GivenDevice>,
    degraded: bool,
) -> Result<Fs, Error> {
    try_open_of(setup(kind), world, boot, given, degraded)
}

pub fn try_open_of(
    setup: Setup,
    world: &World,
    boot: Boot,
    given: Vec<GivenDevice>,
    degraded: bool,
) -> Result<Fs, Error> {
    open_telling(setup, world, boot, given, degraded).map(|(fs, _)| fs)
}

/// Like [`try_open_of`], but also returns what recovery found.
fn open_telling(
    setup: Setup,
    world: &World,
    boot: Boot,
    given: Vec<GivenDevice>,
    degraded: bool,
) -> Result<(Fs, Recovery), Error> {
    let clock = Arc::new(SimClock::new(boot.opening as i64 * 3_600_000_000_000));
    let options = Options {
        commit_age_ms: 0,
        pack_age: None,
        no_atime: true,
        bulk_devices: given,
        degraded,
        ..Options::default()
    };
    open_with(setup, world, boot, &Watch::default(), options, &clock).expect("one image is valid")
}

pub fn create(fs: &Fs, name: &[u8]) -> Ino {
    fs.mknod(&Caller::default(), ROOT, name, 0o644, 0).expect("created").ino
}

fn name(id: u8) -> Vec<u8> {
    format!("file{id}").into_bytes()
}

/// The promises at a moment.
#[derive(Clone, Default)]
struct Promised {
    /// Lengths of the files that must be whole.
    files: BTreeMap<u8, usize>,
    /// Devices that the store does without: removed ones, and those that it never had.
    absent: BTreeSet<usize>,
}

impl Promised {
    /// Returns the promises that `after` has not taken back.
    fn within(&self, after: &Promised) -> Promised {
        let files = self.files.iter().filter(|(id, _)| after.files.contains_key(id));
        let absent = self.absent.intersection(&after.absent);
        Promised { files: files.map(|(&id, &len)| (id, len)).collect(), absent: absent.copied().collect() }
    }
}

/// One life of a store, in random steps with crash points between all calls of its media.
struct Life {
    setup: Setup,
    world: World,
    fs: Fs,
    boot: Boot,
    /// The disks beside the first, as this opening uses them.
    given: Vec<GivenDevice>,
    random: Random,
    files: BTreeMap<u8, (Ino, usize)>,
    promised: Promised,
    last_id: u8,
    history: Vec<Promised>,
}

impl Life {
    fn mark(&mut self) {
        self.history.push(self.promised.clone());
        self.world.set_mark(self.history.len() as u64);
    }

    fn any(&mut self) -> Option<u8> {
        let at = self.random.below(self.files.len().max(1) as u64) as usize;
        self.files.keys().nth(at).copied()
    }

    fn step(&mut self) {
        self.mark();
        match self.random.below(24) {
            0..6 => self.write_new(),
            6..9 => {
                if let Some(id) = self.any() {
                    // From here on the file is not promised.
                    self.promised.files.remove(&id);
                    let (ino, _) = self.files.remove(&id).unwrap();
                    self.fs.unlink(ROOT, &name(id)).unwrap();
                    self.fs.forget(ino, u64::MAX);
                }
            }
            9..13 => {
                if let Some(id) = self.any() {
                    let (ino, len) = self.files[&id];
                    self.fs.fsync(ino).unwrap();
                    self.promised.files.insert(id, len);
                }
            }
            13..16 => {
                let numbers = self.fs.devices().states().iter().map(|state| state.number as usize).collect::<Vec<_>>();
                let free = (1..=MORE).find(|number| !numbers.contains(number));
                if let Some(number) = free {
                    self.promised.absent.remove(&number);
                    let added = self.fs.devices().add(&self.given[number - 1], Some(BLOCKS));
                    assert_eq!(added, Ok(number as u32));
                }
            }
            16..18 => {
                let states = self.fs.devices().states();
                let at = self.random.below(states.len() as u64) as usize;
                let left = self.fs.devices().leave(states[at].number).unwrap();
                assert!(matches!(left, Leaving::Now | Leaving::Last | Leaving::NoRoom { .. }));
            }
            18..21 => {
                for state in self.fs.devices().states().into_iter().filter(|state| state.state.is_leaving()) {
                    let steps = self.random.below(3);
                    let mut done = 0;
                    let mut goes_on = |_| {
                        done += 1;
                        done <= steps
                    };
                    let drained = self.fs.devices().drain(state.number, &mut goes_on).unwrap();
                    assert_eq!(drained.stuck, []);
                }
            }
            21..23 => {
                for state in self.fs.devices().states().into_iter().filter(|state| state.state.is_leaving()) {
                    match self.random.below(5) {
                        0 => self.fs.devices().stay(state.number).unwrap(),
                        _ if self.fs.devices().remove(state.number).unwrap() => {
                            // From here on the device's file may be gone.
                            self.promised.absent.insert(state.number as usize);
                        }
                        _ => {}
                    }
                }
            }
            _ => self.fs.upkeep().tick().unwrap(),
        }
    }

    fn write_new(&mut self) {
        self.last_id += 1;
        let ino = create(&self.fs, &name(self.last_id));
        let len = (2 + self.random.below(4)) * BULK_BLOCK - 1000;
        match self.fs.write(ino, 0, &vec![self.last_id; len as usize]) {
            Ok(written) => drop(self.files.insert(self.last_id, (ino, written))),
            Err(Error::NoSpace(_)) => drop(self.files.insert(self.last_id, (ino, 0))),
            Err(error) => panic!("{error}"),
        }
    }

    fn open(&self, world: &World, boot: Boot, given: &[GivenDevice], context: &str) -> Fs {
        let opened = try_open_of(self.setup, world, boot, given.to_vec(), false);
        opened.unwrap_or_else(|error| panic!("{context}: {error}"))
    }

    fn check(&self, state: &WorldState, promised: &Promised, power: bool, context: &str) {
        let world = state.open();
        check(self.setup, &world, power).unwrap_or_else(|error| panic!("{context}: {error}"));
        let boot = self.boot.after(power);
        let given = all_given_of(self.setup, &world, boot).into_iter().zip(1..);
        let given: Vec<_> =
            given.filter(|(_, number)| !promised.absent.contains(number)).map(|(given, _)| given).collect();
        let fs = self.open(&world, boot, &given, context);
        for id in 1..=self.last_id {
            let Ok(attr) = fs.lookup(ROOT, &name(id)) else {
                assert!(!promised.files.contains_key(&id), "{context}: file {id} was synced, and is gone");
                continue;
            };
            let mut bytes = vec![0; attr.size as usize];
            let read = fs.read(attr.ino, 0, &mut bytes);
            assert_eq!(read, Ok(bytes.len()), "{context}: file {id}");
            let foreign = bytes.iter().position(|&byte| byte != id && byte != 0);
            assert_eq!(foreign, None, "{context}: file {id} has byte {:#x} of another", bytes[foreign.unwrap_or(0)]);
            if let Some(&len) = promised.files.get(&id) {
                let whole = bytes.len() >= len && bytes[..len].iter().all(|&byte| byte == id);
                assert!(whole, "{context}: file {id} was synced with {len} bytes, and some of it is lost");
            }
            fs.unlink(ROOT, &name(id)).unwrap();
        }
        // Nothing is left in use, and the store can be filled.
        fs.sync().unwrap();
        fs.upkeep().tick().unwrap();
        let states = fs.devices().states();
        let left: Vec<u64> = states.iter().map(|state| state.used + state.pending).collect();
        assert!(left.iter().all(|&used| used == 0), "{context}: blocks in use for nobody: {left:?}");
        let room: u64 = states.iter().filter(|state| !state.state.is_leaving()).map(|state| state.free).sum();
        let (ino, all) = (create(&fs, b"all"), vec![7; room as usize]);
        assert_eq!(fs.write(ino, 0, &all), Ok(all.len()), "{context}: room");
        assert_eq!(fs.fsync(ino), Ok(()), "{context}");
        fs.shutdown().unwrap();
        drop(fs);
        check(self.setup, &world, false).unwrap_or_else(|error| panic!("{context}: at the end: {error}"));
    }
}

/// Crashes one random life. Returns the number of states visited.
pub fn explore(setup: Setup, seed: u64, rounds: u32) -> u64 {
    let world = new_world_of(setup);
    let boot = Boot::first(true);
    let given = all_given_of(setup, &world, boot);
    let fs = try_open_of(setup, &world, boot, given.clone(), false).expect("the store opens");
    let mut life = Life {
        setup,
        world,
        fs,
        boot,
        given,
        random: Random::new(seed),
        files: BTreeMap::new(),
        promised: Promised { absent: (1..=MORE).collect(), ..Promised::default() },
        last_id: 0,
        history: Vec::new(),
    };
    let mut states = 0;
    for round in 0..rounds {
        life.world.record(true);
        if round > 0 {
            // Open the store again, so that the marks of another opening are in the crash points,
            // too.
            life.mark();
            life.fs.sync().unwrap();
            life.promised.files = life.files.iter().map(|(&id, &(_, len))| (id, len)).collect();
            life.fs.shutdown().unwrap();
            life.boot = life.boot.after(false);
            life.mark();
            life.given = all_given_of(setup, &life.world, life.boot);
            life.fs = life.open(&life.world, life.boot, &life.given, "reopening");
        }
        (0..14).for_each(|_| life.step());
        life.mark();
        life.world.record(false);
        let points = life.world.points();
        let step = (points.len() / 30).max(1);
        for point in points.iter().skip(seed as usize % step).step_by(step) {
            let at = point.mark() as usize;
            // Take the promises made before the step under way and not taken back in it.
            let after = life.history.get(at).unwrap_or(&life.promised);
            let before = &life.history[at - 1];
            let promised = before.within(after);
            let context =
                |state: &WorldState| format!("{setup:?} seed {seed} round {round}: {}: {}", point.name(), state.name());
            let crash = point.process_crash();
            life.check(&crash, &promised, false, &context(&crash));
            for state in point.power_losses(&Limits::few()).take(5) {
                life.check(&state, &promised, true, &context(&state));
                states += 1;
            }
            states += 1;
        }
    }
    states
}

/// A store on its first disk and on one that loses what a failed flush did not cover.
pub struct Pair {
    pub kind: MemoryKind,
    pub world: World,
    pub fs: Fs,
    pub second: Arc<Forgetful>,
    pub boot: Boot,
}

impl Pair {
    pub fn new(kind: MemoryKind) -> Pair {
        let (world, boot) = (new_world(kind), Boot::first(true));
        let second = Forgetful::new(world.disk(1));
        let fs = try_open(&world, kind, boot, Vec::new(), false).expect("the store opens");
        assert_eq!(fs.devices().add(&given(1, second.clone()), Some(BLOCKS)), Ok(1));
        Pair { kind, world, fs, second, boot }
    }

    /// Makes a file of `blocks` blocks on the device with this number, filled with `byte`.
    pub fn file_on(&self, number: u32, name: &[u8], byte: u8, blocks: u64) -> Ino {
        let others: Vec<u32> =
            self.fs.devices().states().iter().map(|state| state.number).filter(|n| *n != number).collect();
        // The other devices are leaving meanwhile, so new data goes to this one.
        others.iter().for_each(|&other| assert_eq!(self.fs.devices().leave(other), Ok(Leaving::Now)));
        let ino = filled(&self.fs, name, byte, blocks);
        others.iter().for_each(|&other| self.fs.devices().stay(other).unwrap());
        ino
    }

    /// Opens the store in another process, after a crash of the process or of the machine, with
    /// these devices.
    pub fn again(
        &self,
        power: bool,
        degraded: bool,
        with: impl Fn(&World) -> Vec<GivenDevice>,
    ) -> Result<(World, Fs), Error> {
        let world = self.world.snapshot().process_crash().open();
        let fs = try_open(&world, self.kind, self.boot.after(power), with(&world), degraded)?;
        Ok((world, fs))
    }
}

pub fn read(fs: &Fs, ino: Ino, at: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; len];
    fs.read(ino, at, &mut bytes).map(|_| bytes)
}

/// Makes a file of `blocks` blocks, filled with `byte`.
pub fn filled(fs: &Fs, name: &[u8], byte: u8, blocks: u64) -> Ino {
    let ino = create(fs, name);
    let bytes = vec![byte; (blocks * BULK_BLOCK) as usize];
    assert_eq!(fs.write(ino, 0, &bytes), Ok(bytes.len()));
    ino
}

/// Tests two devices, of which one holds writes back. Each fsync flushes the blocks of its own
/// file, and a failed flush costs only data that no flush has covered.
pub fn failed_flush_of_ranges(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let Pair { fs, second, .. } = &pair;
    second.holds.store(true, Ordering::Relaxed);
    let block = BULK_BLOCK as usize;
    let other = pair.file_on(0, b"other", 3, 2);
    let covered = pair.file_on(1, b"covered", 1, 2);
    let held = pair.file_on(1, b"held", 2, 3);
    assert_eq!(fs.fsync(covered), Ok(()));
    let unflushed = second.unflushed.lock().unwrap().len() as u64 * 512;
    assert_eq!(unflushed, 3 * BULK_BLOCK, "the other file's blocks stay where they are");
    assert_eq!(fs.fsync(covered), Ok(()), "nothing is left to flush");
    // In place, and covered by a second flush of ranges.
    assert_eq!(fs.write(covered, 0, &vec![4; block]), Ok(block));
    assert_eq!(fs.fsync(covered), Ok(()));
    second.fails.store(true, Ordering::Relaxed);
    assert_eq!(fs.fsync(other), Ok(()), "a file on the other device");
    assert!(matches!(fs.fsync(held), Err(Error::Io(_))), "the flush failed");
    assert!(fs.region().failure().is_none(), "one device of two does not end the store");
    let state = &fs.devices().states()[1];
    assert!(state.state.cause().is_some() && state.suspect == 3 * BULK_BLOCK, "{state:?}");
    let see = |fs: &Fs, when: &str, new_is_zero: bool| {
        assert_eq!(read(fs, covered, 0, block), Ok(vec![4; block]), "{when}: what was covered");
        assert_eq!(read(fs, covered, BULK_BLOCK, block), Ok(vec![1; block]), "{when}: what was covered");
        assert_eq!(read(fs, other, 0, block), Ok(vec![3; block]), "{when}: the other device");
        match read(fs, held, 0, block) {
            Err(Error::Io(_)) => {}
            outcome => assert!(new_is_zero && outcome == Ok(vec![0; block]), "{when}: bytes in doubt are read"),
        }
    };
    see(fs, "at once", false);
    for power in [false, true] {
        let (world, back) = pair.again(power, false, |world| vec![given(1, world.disk(1))]).unwrap();
        see(&back, if power { "after a power loss" } else { "after a process crash" }, power);
        back.shutdown().unwrap();
        drop(back);
        check(setup(kind), &world, false).unwrap();
    }
}

/// Tests small files spilled to two devices. A missing device costs the files on it, and they move
/// when it leaves.
pub fn spilled(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let Pair { fs, second, .. } = &pair;
    let spill = |away: u32, name: &[u8], seed: u64| {
        let ino = create(fs, name);
        let mut bytes = vec![0; 40_000];
        Random::new(seed).fill(&mut bytes);
        assert_eq!(fs.write(ino, 0, &bytes), Ok(bytes.len()));
        assert_eq!(fs.devices().leave(away), Ok(Leaving::Now));
        assert!(fs.spilling().spill_all().unwrap() > 0);
        fs.devices().stay(away).unwrap();
        assert!(fs.placement(ino).unwrap().pieces.iter().all(|piece| piece.spilled));
        (ino, bytes)
    };
    let (lost, lost_bytes) = spill(0, b"lost", 1);
    let (kept, kept_bytes) = spill(1, b"kept", 2);
    assert!(fs.devices().states().iter().all(|state| state.used == BULK_BLOCK), "{:?}", fs.devices().states());
    second.is_dead.store(true, Ordering::Relaxed);
    let away = |fs: &Fs| {
        let found = read(fs, lost, 0, 40_000);
        assert!(matches!(&found, Err(Error::Io(why)) if why.contains(&format!("inode {lost} "))), "{found:?}");
        assert!(read(fs, kept, 0, 40_000).as_ref() == Ok(&kept_bytes), "the other device");
    };
    away(fs);
    // Spilling goes on, on the other device.
    let ino = create(fs, b"later");
    assert_eq!(fs.write(ino, 0, &kept_bytes), Ok(40_000));
    assert!(fs.spilling().spill_all().unwrap() > 0);
    assert!(read(fs, ino, 0, 40_000).as_ref() == Ok(&kept_bytes));
    let (_, degraded) = pair.again(true, true, |_| Vec::new()).unwrap();
    away(&degraded);
    drop(degraded);
    // The device is back and leaves, so the spilled data moves.
    second.is_dead.store(false, Ordering::Relaxed);
    let flushed = fs.devices().retry(1, || Ok((second.clone(), 0)));
    flushed.unwrap();
    assert!(read(fs, lost, 0, 40_000).as_ref() == Ok(&lost_bytes), "it is back");
    assert_eq!(fs.devices().leave(1), Ok(Leaving::Now));
    assert_eq!(fs.devices().drain(1, &mut |_| true).unwrap().stuck, []);
    assert_eq!(fs.devices().remove(1), Ok(true));
    assert!(read(fs, lost, 0, 40_000).as_ref() == Ok(&lost_bytes), "it moved");
    fs.shutdown().unwrap();
    let world = pair.world.snapshot().process_crash().open();
    check(setup(kind), &world, false).unwrap();
    let fs = try_open(&world, kind, pair.boot.after(false), Vec::new(), false).unwrap();
    assert!(read(&fs, lost, 0, 40_000).as_ref() == Ok(&lost_bytes), "in the next life");
}

/// Tests that bytes which nobody has synced are durable after they move off a leaving device. The
/// move has flushed them, so an fsync that flushed their old place may return.
pub fn new_bytes_move(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let fs = &pair.fs;
    let block = BULK_BLOCK as usize;
    let (first, second) = (pair.file_on(1, b"first", 1, 2), pair.file_on(1, b"second", 2, 2));
    fs.sync().unwrap();
    assert_eq!(fs.devices().leave(1), Ok(Leaving::Now));
    let mut appended = false;
    let mut goes_on = |_| {
        if !appended {
            // After the flush that begins a pass, and before the pass reaches the file.
            fs.devices().stay(1).unwrap();
            assert_eq!(fs.devices().leave(0), Ok(Leaving::Now));
            assert_eq!(fs.write(second, 2 * BULK_BLOCK, &vec![2; 2 * block]), Ok(2 * block));
            fs.devices().stay(0).unwrap();
            assert_eq!(fs.devices().leave(1), Ok(Leaving::Now));
            appended = true;
        }
        true
    };
    assert_eq!(fs.devices().drain(1, &mut goes_on).unwrap().moved, 6);
    let (_, back) = pair.again(true, false, |world| vec![given(1, world.disk(1))]).unwrap();
    assert!(read(&back, first, 0, 2 * block) == Ok(vec![1; 2 * block]));
    assert!(read(&back, second, 0, 4 * block) == Ok(vec![2; 4 * block]), "they were flushed where they are now");
}

/// Tests that bytes left unsynced by a crashed process are durable once the next process has synced
/// their file.
pub fn settled_in_the_next_life(kind: MemoryKind) {
    for devices in [1, 2] {
        let (world, boot) = (new_world(kind), Boot::first(true));
        let given = |world: &World| if devices == 2 { vec![given(1, world.disk(1))] } else { Vec::new() };
        let fs = try_open(&world, kind, boot, Vec::new(), false).expect("the store opens");
        for one in given(&world) {
            assert_eq!(fs.devices().add(&one, Some(BLOCKS)), Ok(1));
        }
        let len = 3 * BULK_BLOCK as usize;
        for (name, byte) in [(b"first", 1), (b"other", 2)] {
            filled(&fs, name, byte, 3);
        }
        let world = world.snapshot().process_crash().open();
        let fs = try_open(&world, kind, boot.after(false), given(&world), false).expect("after a crash");
        let ino = fs.lookup(ROOT, b"first").unwrap().ino;
        assert_eq!(fs.fsync(ino), Ok(()));
        for state in world.snapshot().power_losses(&Limits::few()).take(8) {
            let world = state.open();
            let fs = try_open(&world, kind, boot.after(false).after(true), given(&world), false).expect("it opens");
            assert!(read(&fs, ino, 0, len) == Ok(vec![1; len]), "{kind:?}, {devices} devices: {}", state.name());
        }
    }
}

type Work = fn(&Pair, Ino) -> Result<(), Error>;

/// Length of a small file that was promised in memory. It is never lost, wherever it is moved and
/// whatever fails on the way.
const KEPT: usize = 40_000;

fn kept_bytes() -> Vec<u8> {
    let mut bytes = vec![0; KEPT];
    Random::new(7).fill(&mut bytes);
    bytes
}

/// Runs `work` on the small file while new blocks come from the second device.
fn with_kept(pair: &Pair, work: impl FnOnce(&Fs, Ino) -> Result<(), Error>) -> Result<(), Error> {
    let kept = pair.fs.lookup(ROOT, b"kept")?.ino;
    pair.fs.devices().leave(0)?;
    let outcome = work(&pair.fs, kept);
    pair.fs.devices().stay(0)?;
    outcome
}

/// Returns operations on a file of four blocks of ones on the second device, which put only ones or
/// zeros there. The flag says whether promised bytes may go.
fn works() -> Vec<(&'static str, bool, Work)> {
    fn resize(pair: &Pair, ino: Ino, size: u64) -> Result<(), Error> {
        pair.fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
    }
    vec![
        ("read", false, |pair, ino| pair.fs.read(ino, 70_000, &mut [0; 9000]).map(drop)),
        ("in place", false, |pair, ino| pair.fs.write(ino, 5, &[1; 100_000]).map(drop)),
        ("whole blocks", false, |pair, ino| pair.fs.write(ino, BULK_BLOCK, &[1; 131_072]).map(drop)),
        ("append", false, |pair, ino| pair.fs.write(ino, 4 * BULK_BLOCK - 9, &[1; 100_000]).map(drop)),
        ("cut and grow", true, |pair, ino| resize(pair, ino, 200_000).and_then(|()| resize(pair, ino, 280_000))),
        ("cut to nothing", true, |pair, ino| resize(pair, ino, 0)),
        ("punch", true, |pair, ino| pair.fs.fallocate(ino, 3, 1000, 150_000)),
        ("zero", true, |pair, ino| pair.fs.fallocate(ino, 16, 1000, 250_000)),
        ("new file", false, |pair, _| {
            let new = create(&pair.fs, b"new");
            pair.fs.write(new, 0, &[1; 200_000])?;
            pair.fs.fsync(new)
        }),
        ("fsync", false, |pair, ino| {
            pair.fs.write(ino, 0, &[1; 10])?;
            pair.fs.fsync(ino)
        }),
        ("rename over", false, |pair, ino| {
            pair.fs.write(ino, 0, &[1; 10])?;
            pair.fs.rename(ROOT, b"large", ROOT, b"other name", RenameMode::Replace)
        }),
        ("drain", false, |pair, _| {
            if pair.fs.devices().leave(1)? == Leaving::Now {
                pair.fs.devices().drain(1, &mut |_| true)?;
                pair.fs.devices().remove(1)?;
            }
            Ok(())
        }),
        ("spill", false, |pair, _| with_kept(pair, |fs, _| fs.spilling().spill_all().map(drop))),
        ("spill and bring back", false, |pair, _| {
            with_kept(pair, |fs, _| {
                fs.spilling().spill_all()?;
                fs.spilling().bring_all_back().map(drop)
            })
        }),
        ("spill and clean", false, |pair, _| {
            with_kept(pair, |fs, _| {
                fs.spilling().spill_all()?;
                fs.spilling().clean_spilled()
            })
        }),
        ("grow out of memory", false, |pair, _| {
            with_kept(pair, |fs, kept| fs.write(kept, BULK_BLOCK, &[1; 70_000]).map(drop))
        }),
        ("move out of memory", false, |pair, _| {
            with_kept(pair, |fs, kept| match fs.large().misplaced(kept, 8192)? {
                Some(found) => fs.large().rebalance(kept, found.generation, 8192).map(drop),
                None => Ok(()),
            })
        }),
        ("sync", false, |pair, ino| {
            pair.fs.write(ino, 0, &[1; 10])?;
            pair.fs.sync()?;
            pair.fs.upkeep().tick()
        }),
    ]
}

/// Checks that each byte of the file is right or an error. Reads block by block, because an error
/// costs a whole block.
fn check_ones(fs: &Fs, ino: Ino, may_go: bool, context: &str) {
    let size = fs.getattr(ino).unwrap().size;
    for at in (0..size).step_by(BULK_BLOCK as usize) {
        let len = (size - at).min(BULK_BLOCK) as usize;
        match read(fs, ino, at, len) {
            Err(Error::Io(_)) => {}
            Err(error) => panic!("{context}: {error}"),
            Ok(bytes) => {
                let foreign = bytes.iter().find(|&&byte| byte > 1);
                assert_eq!(foreign, None, "{context}: a foreign byte at {at}");
                let promised = (4 * BULK_BLOCK - 9).saturating_sub(at).min(len as u64) as usize;
                assert!(may_go || bytes[..promised].iter().all(|&byte| byte == 1), "{context}: a byte is lost at {at}");
            }
        }
    }
}

/// Fails one call of the second device, once or for good, in one operation. Returns false if the
/// operation makes fewer calls.
fn one_failure(kind: MemoryKind, call: Failing, nth: u64, for_good: bool, work: &(&str, bool, Work)) -> bool {
    let context = format!("{kind:?}, {}, {call:?} {nth} fails{}", work.0, if for_good { " for good" } else { "" });
    let pair = Pair::new(kind);
    let fs = &pair.fs;
    let other = pair.file_on(0, b"other", 3, 2);
    let ino = pair.file_on(1, b"large", 1, 4);
    fs.setattr(ino, &SetAttr { size: Some(4 * BULK_BLOCK - 9), ..SetAttr::default() }).unwrap();
    create(fs, b"other name");
    let kept = create(fs, b"kept");
    assert_eq!(fs.write(kept, 0, &kept_bytes()), Ok(KEPT));
    fs.sync().unwrap();
    fs.upkeep().tick().unwrap();
    *pair.second.plan.lock().unwrap() = Some((call, nth, for_good));
    let outcome = (work.2)(&pair, ino);
    let failed = pair.second.failed.load(Ordering::Relaxed) > 0;
    let is_fine = match outcome {
        Ok(()) => true,
        Err(Error::Io(_)) => failed,
        Err(_) => false,
    };
    assert!(is_fine, "{context}: {outcome:?}");
    // Nothing else notices.
    assert_eq!(fs.write(other, 10, &[3; 100_000]), Ok(100_000), "{context}");
    assert_eq!(fs.fsync(other), Ok(()), "{context}");
    let small = create(fs, b"small");
    assert_eq!(fs.write(small, 0, b"x").and_then(|_| fs.fsync(small)), Ok(()), "{context}");
    assert!(fs.sync().is_ok() && fs.upkeep().tick().is_ok() && fs.region().failure().is_none(), "{context}");
    assert_eq!(read(fs, other, 0, 131_072), Ok(vec![3; 131_072]), "{context}");
    check_ones(fs, ino, work.1, &context);
    match read(fs, kept, 0, KEPT) {
        Err(Error::Io(_)) if call == Failing::Read => {}
        found => assert!(found == Ok(kept_bytes()), "{context}: the small file is lost"),
    }
    // Open in other processes, after a process crash and after a power loss. The device has lost
    // what no flush covered.
    for power in [false, true] {
        let (world, again) = pair
            .again(power, false, |world| vec![given(1, world.disk(1))])
            .unwrap_or_else(|e| panic!("{context}: {e}"));
        let context = format!("{context}, power lost: {power}");
        check_ones(&again, ino, work.1, &context);
        assert_eq!(read(&again, other, 0, 131_072), Ok(vec![3; 131_072]), "{context}");
        assert!(read(&again, kept, 0, KEPT) == Ok(kept_bytes()), "{context}: the small file is lost");
        for name in [&b"large"[..], b"other name", b"other", b"new", b"small", b"kept"] {
            assert!(matches!(again.unlink(ROOT, name), Ok(()) | Err(Error::NotFound)), "{context}");
        }
        // The first tick looks for spilled data in use, and the next frees the rest.
        (0..2).for_each(|_| again.spilling().spill_tick().unwrap());
        again.sync().unwrap();
        again.upkeep().tick().unwrap();
        assert_eq!(again.usage().bulk_used, 0, "{context}: blocks that nobody has are in use");
        again.shutdown().unwrap();
        drop(again);
        check(setup(kind), &world, false).unwrap_or_else(|error| panic!("{context}: {error}"));
    }
    failed
}

/// Fails every call of one device of two, once and for good, in every operation. Returns how many
/// failed.
pub fn every_failure(kind: MemoryKind) -> u64 {
    let mut failed = 0;
    for work in works() {
        for (call, for_good) in
            [Failing::Read, Failing::Write, Failing::Flush].into_iter().flat_map(|c| [(c, false), (c, true)])
        {
            failed += (0..).take_while(|&nth| one_failure(kind, call, nth, for_good, &work)).count() as u64;
        }
    }
    failed
}

/// Tests lost battery memory: the list comes back with the image that was saved last, and so do the
/// files that the image knows.
pub fn restored_lists() {
    let setup = Setup { saved: true, ..setup(MemoryKind::Battery) };
    let (world, boot) = (new_world_of(setup), Boot::first(true));
    let restored = |world: &World| {
        let world = world.snapshot().process_crash().open();
        let images: [Arc<dyn ImageFile>; 2] = [world.image(0), world.image(1)];
        let memory = world.memory(0);
        memory.zero(0, memory.len());
        shoal_region::restore(&images, memory.as_ref(), 0, 7, shoal_region::DevicesBeside::Later).expect("restored");
        let fs = try_open_of(setup, &world, boot.after(false), all_given(&world), false);
        (world.clone(), fs.unwrap_or_else(|error| panic!("{error}")))
    };
    let fs = try_open_of(setup, &world, boot, all_given(&world), false).unwrap();
    let block = BULK_BLOCK as usize;
    let first = create(&fs, b"first");
    assert_eq!(fs.write(first, 0, &vec![1; 3 * block]), Ok(3 * block));
    fs.checkpoint().unwrap();
    assert_eq!(fs.devices().add(&given(1, world.disk(1)), Some(BLOCKS)), Ok(1));
    // The earlier image knows nothing of the device.
    let (_, back) = restored(&world);
    assert_eq!(back.devices().states().len(), 1);
    assert_eq!(read(&back, first, 0, 3 * block), Ok(vec![1; 3 * block]));
    drop(back);
    // Make a file on the device that the image still maps when the store does not.
    fs.devices().leave(0).unwrap();
    let second = create(&fs, b"second");
    assert_eq!(fs.write(second, 0, &vec![2; 4 * block]), Ok(4 * block));
    fs.devices().stay(0).unwrap();
    fs.checkpoint().unwrap();
    fs.unlink(ROOT, b"second").unwrap();
    fs.forget(second, u64::MAX);
    fs.sync().unwrap();
    fs.upkeep().tick().unwrap();
    let third = create(&fs, b"third");
    assert_eq!(fs.write(third, 0, &vec![3; 8 * block]), Ok(8 * block));
    fs.sync().unwrap();
    assert_eq!(fs.devices().states()[1].pending, 4 * BULK_BLOCK, "held for the image");
    let (_, back) = restored(&world);
    assert_eq!(back.devices().states().len(), 2);
    assert_eq!(read(&back, second, 0, 4 * block), Ok(vec![2; 4 * block]), "the image's file has lost its data");
    drop(back);
    // No image that is left has a removed device.
    assert_eq!(fs.devices().leave(1), Ok(Leaving::Now));
    while fs.devices().drain(1, &mut |_| true).unwrap().moved > 0 {}
    assert_eq!(fs.devices().remove(1), Ok(true));
    let (world, back) = restored(&world);
    assert_eq!(back.devices().states().len(), 1);
    assert_eq!(read(&back, third, 0, 8 * block), Ok(vec![3; 8 * block]));
    back.shutdown().unwrap();
    drop(back);
    check(setup, &world, false).unwrap();
}
