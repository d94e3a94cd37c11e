//! The real log, images and bulk file under crashes: every call that they make is recorded, and
//! every state that a host may be in after a prefix of these calls is opened by the real code again
//! (docs/design/testing.md, T12).
//!
//! The simulated media stand for the real ones in every other crash test, so only this test finds a
//! mistake in the real ones. `every_planted_bug_of_the_host_is_caught` breaks one of their rules at
//! a time. Random operations of the workload run on a store in a scratch directory (on tmpfs where
//! there is one). The promises of an fsync, sync or checkpoint go into the recording as marks. Run
//! with `cargo test -p shoal-fs --features recorded --test recorded -- --nocapture`.
//! `SHOAL_SEED=<n>` runs one seed alone, `SHOAL_DEEP=1` many more.

#[path = "recorded/disk.rs"]
mod disk;
// The enumeration of crashes uses these, too.
#[path = "crash/operation.rs"]
#[allow(dead_code, reason = "some are for the enumeration alone")]
mod operation;
#[path = "crash/tree.rs"]
mod tree;
#[path = "crash/workload.rs"]
#[allow(dead_code, reason = "its longer workloads are for the enumeration alone")]
mod workload;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use disk::{Disk, Loss};
use operation::{Actor, Operation};
use parking_lot::Mutex;
use shoal_check::{ImageSource, Source};
use shoal_format::BULK_BLOCK;
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_fs::{FormatOptions, Fs, Ino, Options, Parts};
use shoal_host::planted::{Bug, plant};
use shoal_host::recorder::{self, Event};
use shoal_host::{FileDevice, HostImage, PrivateMap, SegmentLog};
use shoal_media::{BlockDevice, ImageFile};
use shoal_sim::{Budget, Random, SimClock};
use tempfile::TempDir;
use tree::{State, Tree, identify};

const REGION_BYTES: u64 = 56 << 16;
const BULK_BLOCKS: u64 = 48;
const THRESHOLD: u64 = 80 << 10;
/// Bytes of a log segment: few, so that segments are named, recycled and crossed often.
const SEGMENT: u64 = 16 << 10;
const OPERATIONS: usize = 24;
/// Recordings of the usual run, and the most for one planted bug.
const SEEDS: u64 = 2;
const HUNT_SEEDS: u64 = 12;
/// The first seed tried with a bug that only some recordings show.
const FIRST_SEEDS: [(Bug, u64); 1] = [(Bug::ReopenedClean, 4)];

/// Lets one test run at a time, because the process has only one recorder.
static ALONE: Mutex<()> = Mutex::new(());

fn deep() -> bool {
    std::env::var_os("SHOAL_DEEP").is_some()
}

fn scratch() -> TempDir {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.expect("a scratch directory")
}

struct Store {
    fs: Fs,
    clock: Arc<SimClock>,
}

fn images(dir: &Path) -> Result<[Arc<HostImage>; 2], String> {
    let open = |name: &str| HostImage::open(&dir.join(name)).map(Arc::new).map_err(|e| e.to_string());
    Ok([open("image.0")?, open("image.1")?])
}

fn format(dir: &Path) {
    let image = |name: &str| Arc::new(HostImage::create(&dir.join(name)).unwrap()) as Arc<dyn ImageFile>;
    let region = shoal_region::Parts {
        memory: Arc::new(PrivateMap::new(REGION_BYTES, None).unwrap()),
        log: Some(Arc::new(SegmentLog::create(&dir.join("log"), SEGMENT).unwrap())),
        images: Some([image("image.0"), image("image.1")]),
        boot_id: [1; 16],
        nonce: [1; 16],
    };
    let bulk = FileDevice::create(&dir.join("bulk"), BULK_BLOCKS * BULK_BLOCK).unwrap();
    let geometry = Geometry {
        memory_kind: MemoryKind::Logged,
        uuid: [5; 16],
        region_bytes: REGION_BYTES,
        bulk_blocks: BULK_BLOCKS,
        ring_bytes: 0,
        threshold: THRESHOLD,
        hash_seed: 1,
        created_ns: 0,
    };
    let parts = Parts { region, bulk: Some(Arc::new(bulk)), clock: Arc::new(SimClock::new(1)) };
    Fs::format(parts, &FormatOptions { geometry, sums: true, root_mode: 0o755, root_uid: 0, root_gid: 0 }).unwrap();
}

/// Opens a store as a mount does: `opening` counts, `boot` changes with a power loss.
fn open(dir: &Path, boot: u8, opening: u64) -> Result<Store, String> {
    let images = images(dir)?;
    let shared: [Arc<dyn ImageFile>; 2] = [images[0].clone(), images[1].clone()];
    let (newest, superblock, anchor) = shoal_region::newest_image(&shared).map_err(|e| format!("images: {e}"))?;
    let image = Some((images[newest].file(), anchor.used_bytes.get().next_multiple_of(4096)));
    let memory = PrivateMap::new(superblock.region_bytes, image).map_err(|e| format!("memory: {e}"))?;
    let log = SegmentLog::open(&dir.join("log"), SEGMENT).map_err(|e| format!("log: {e}"))?;
    let bulk = FileDevice::open(&dir.join("bulk")).map_err(|e| format!("bulk: {e}"))?;
    let mut nonce = [0; 16];
    Random::new(opening << 8 | boot as u64).fill(&mut nonce);
    let region = shoal_region::Parts {
        memory: Arc::new(memory),
        log: Some(Arc::new(log)),
        images: Some(shared),
        boot_id: [boot; 16],
        nonce,
    };
    let bulk: Arc<dyn BlockDevice> = Arc::new(bulk);
    let clock = Arc::new(SimClock::new(opening as i64 * 3_600_000_000_000));
    let parts = Parts { region, bulk: Some(bulk), clock: clock.clone() };
    let options = Options { no_atime: true, ..Options::default() };
    let (fs, _) = Fs::open(parts, options).map_err(|e| format!("opening: {e}"))?;
    Ok(Store { fs, clock })
}

fn check(dir: &Path) -> Result<(), String> {
    let images = images(dir)?;
    let log = SegmentLog::open(&dir.join("log"), SEGMENT).map_err(|e| e.to_string())?;
    let source = Source {
        bulk_bytes: Some(BULK_BLOCKS * BULK_BLOCK),
        ..Source::of(ImageSource::Images([&*images[0], &*images[1]]), Some(&log))
    };
    let report = shoal_check::check(source, &mut |_| ()).map_err(|e| format!("check: {e}"))?;
    report.errors.first().map_or(Ok(()), |first| Err(format!("check: {first}")))
}

/// Promises at a mark, as indices of states.
#[derive(Clone, Default)]
struct Promise {
    returned: usize,
    log: usize,
    data: usize,
    file_data: BTreeMap<Ino, usize>,
    high: usize,
}

struct Recording {
    events: Vec<Event>,
    states: Vec<State>,
    promises: Vec<Promise>,
    before: Disk,
}

/// Runs random operations on the store in `dir` and records what they did to its files.
fn record(dir: &Path, seed: u64) -> Result<Recording, String> {
    let mut random = Random::new(seed);
    let steps = workload::operations();
    let before = Disk::at_rest(dir);
    recorder::start();
    let outcome: Result<_, String> = (|| {
        let mut store = open(dir, 1, 2)?;
        let mut states = vec![Arc::new(Tree::read(&store.fs)?)];
        let mut promises = Vec::new();
        let mut promise = Promise::default();
        let mut held = Vec::new();
        for number in 0..OPERATIONS {
            if random.below(8) == 0 {
                // The process dies, and the next one goes on. It must sync what the first left in
                // the page cache.
                held.clear();
                drop(store);
                store = open(dir, 1, 3 + number as u64)?;
                if Tree::read(&store.fs)?.names != states.last().expect("there is a first state").names {
                    return Err("the death of a process lost something".into());
                }
            }
            let step = &steps[random.below(steps.len() as u64) as usize];
            let behind = match random.below(6) {
                0 => vec![Operation::Fsync(step.file)],
                1 => vec![Operation::Sync],
                2 => vec![Operation::Tick],
                3 => vec![Operation::Checkpoint],
                _ => vec![],
            };
            // When much was appended since the last sync, the log stores through its maps.
            let burst =
                [Operation::Write("foo", 0, 70_000, 500 + number as u64), Operation::Write("bar", 0, 5_000, 600)];
            let burst = if random.below(5) == 0 { &burst[..] } else { &[] };
            for operation in burst.iter().chain(std::iter::once(&step.operation)).chain(&behind) {
                // The operation in flight may be there. The states that it may leave are known only
                // afterwards, so the promise of this mark is completed then.
                recorder::mark(promises.len() as u64);
                store.clock.advance(1_000_000);
                let outcome = operation.apply(&mut Actor { fs: &store.fs, clock: &store.clock, held: &mut held });
                let old = states.last().expect("there is a first state").clone();
                let new = Arc::new(Tree::read(&store.fs)?);
                states.extend(operation.between(&old, &new).into_iter().map(Arc::new));
                states.push(new);
                let now = states.len() - 1;
                promises.push(Promise { high: now, ..promise.clone() });
                promise.returned = now;
                match (operation, &outcome) {
                    (_, Err(_)) => {}
                    (Operation::Fsync(path), _) => {
                        promise.log = now;
                        promise.file_data.extend(states[now].ino(path).map(|ino| (ino, now)));
                    }
                    (Operation::Sync | Operation::Tick, _) => (promise.log, promise.data) = (now, now),
                    (Operation::Checkpoint, _) => promise.log = now,
                    _ => {}
                }
            }
        }
        recorder::mark(promises.len() as u64);
        promises.push(Promise { high: states.len() - 1, ..promise });
        Ok((states, promises))
    })();
    let events = recorder::take();
    let (states, promises) = outcome?;
    Ok(Recording { events, states, promises, before })
}

#[derive(Default)]
struct Counts {
    events: u64,
    states: u64,
}

/// Opens the states that may be left at every `every`-th event, and around every sync, rename and
/// mark.
fn replay(dir: &Path, recording: &Recording, seed: u64, every: usize, counts: &mut Counts) -> Result<(), String> {
    let mut disk = recording.before.clone();
    let mut mark = None;
    let mut changed = true;
    for (index, event) in recording.events.iter().enumerate() {
        let boundary = matches!(event, Event::SyncEnded { .. } | Event::Renamed { .. } | Event::Mark(_));
        if let (true, Some(mark)) = (changed && (boundary || index % every == 0), mark) {
            visit(dir, recording, &disk, mark, index, seed, counts)?;
            changed = false;
        }
        disk.apply(event);
        changed |= !matches!(event, Event::Mark(_) | Event::SyncBegun { .. });
        if let Event::Mark(number) = event {
            mark = Some(*number as usize);
            // The promises of the last operation hold from here on.
            changed = true;
        }
        counts.events += 1;
    }
    visit(dir, recording, &disk, recording.promises.len() - 1, recording.events.len(), seed, counts)
}

fn visit(
    dir: &Path,
    recording: &Recording,
    disk: &Disk,
    mark: usize,
    index: usize,
    seed: u64,
    counts: &mut Counts,
) -> Result<(), String> {
    let mut losses = vec![Loss::Nothing];
    if !disk.is_settled() {
        losses.extend([Loss::Both, Loss::Names, Loss::Data]);
        losses.extend((0..if deep() { 8 } else { 2 }).map(|i| Loss::Some(seed << 32 | (index as u64) << 8 | i)));
    }
    for loss in losses {
        counts.states += 1;
        let promise = &recording.promises[mark];
        let power = loss != Loss::Nothing;
        let scratch = scratch();
        std::fs::create_dir(scratch.path().join("log")).unwrap();
        disk.leave(loss, dir, scratch.path());
        let name = |e: String| format!("seed {seed}, event {index}, {loss:?}: {e}");
        let store = open(scratch.path(), 1 + power as u8, 100).map_err(name)?;
        let tree = Tree::read(&store.fs).map_err(name)?;
        let low = if power { promise.log } else { promise.returned };
        let data_low = |ino: Ino| match power {
            true => promise.data.max(promise.file_data.get(&ino).copied().unwrap_or(0)),
            false => promise.returned,
        };
        identify(&tree, &recording.states, low, promise.high, &data_low).map_err(name)?;
        if counts.states.is_multiple_of(7) {
            store.fs.shutdown().map_err(|e| name(format!("shutdown: {e}")))?;
            drop(store);
            check(scratch.path()).map_err(name)?;
            let again = open(scratch.path(), 1 + power as u8, 101).map_err(name)?;
            let after = Tree::read(&again.fs).map_err(name)?;
            if after.names != tree.names {
                return Err(name("another tree after a clean shutdown".into()));
            }
        }
    }
    Ok(())
}

fn run(seed: u64, every: usize, counts: &mut Counts) -> Result<(), String> {
    let dir = scratch();
    format(dir.path());
    let prepared = open(dir.path(), 1, 1)?;
    for operation in workload::preparation() {
        prepared.clock.advance(1_000_000);
        let mut actor = Actor { fs: &prepared.fs, clock: &prepared.clock, held: &mut Vec::new() };
        operation.apply(&mut actor).map_err(|e| format!("preparing, {operation:?}: {e}"))?;
    }
    prepared.fs.shutdown().map_err(|e| format!("preparing: {e}"))?;
    drop(prepared);
    let recording = record(dir.path(), seed)?;
    replay(dir.path(), &recording, seed, every, counts)
}

#[test]
fn every_prefix_of_what_the_real_media_do_is_recovered() {
    let _alone = ALONE.lock();
    plant(None);
    let start = std::time::Instant::now();
    let mut counts = Counts::default();
    let only = std::env::var("SHOAL_SEED").ok().map(|seed| seed.parse().expect("SHOAL_SEED is a number"));
    let (seeds, every) = if deep() { (200, 1) } else { (SEEDS, usize::MAX) };
    for seed in Budget::of_a_search().within(only.map_or(0..seeds, |only| only..only + 1)) {
        run(seed, every, &mut counts).unwrap_or_else(|e| panic!("{e}\nagain with SHOAL_SEED={seed}"));
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("real media: {} events, {} states in {seconds:.1} s", counts.events, counts.states);
}

#[test]
fn every_planted_bug_of_the_host_is_caught() {
    let _alone = ALONE.lock();
    let hook = std::panic::take_hook();
    // A broken rule may end in a failed assertion. That counts as a catch, and its trace is of no
    // use.
    std::panic::set_hook(Box::new(|_| {}));
    let mut rows = Vec::new();
    for bug in Bug::ALL {
        let mut counts = Counts::default();
        let mut caught = None;
        let first = FIRST_SEEDS.iter().find(|(rare, _)| *rare == bug).map_or(0, |(_, first)| *first);
        for seed in first..first + HUNT_SEEDS {
            plant(Some(bug));
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, usize::MAX, &mut counts)));
            plant(None);
            match outcome {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => caught = Some(error),
                Err(_) => caught = Some("an assertion".into()),
            }
            break;
        }
        rows.push((bug, counts.states, caught));
    }
    std::panic::set_hook(hook);
    println!("{:<24} | {:>8} | caught by", "bug", "states");
    for (bug, states, caught) in &rows {
        let by: String = caught.as_deref().unwrap_or("NOT CAUGHT").chars().take(110).collect();
        println!("{:<24} | {states:>8} | {by}", format!("{bug:?}"));
    }
    let missed: Vec<_> = rows.iter().filter(|(.., caught)| caught.is_none()).map(|(bug, ..)| bug).collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}
