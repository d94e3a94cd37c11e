//! Operations at every alignment around the end of file, compared with a plain vector of bytes.
//!
//! A file begins in one of [`STARTS`]. One operation follows, with every start and end around the
//! file's boundaries. Then the file is read, grown, and read again after a process crash, after
//! power losses and after a remount.
//! Rules: without a power loss, every byte equals the vector's, and growth adds zeros. After a
//! power loss, the file is as long as after some operation since the last sync. Each byte is one
//! that the file held there since the sync and since it was last cut off below, or a zero that no
//! sync covers. A failed write leaves old or new bytes before the end, and nothing past it.

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Fs, Ino, ROOT, SetAttr};
use shoal_sim::{Call, Fault, FaultPlan, Limits, is_due};

use crate::actors::pairs;
use crate::actors::view::{Candidate, unexplained};
use crate::crash::operation::Operation::{self, *};
use crate::crash::operation::{Actor, bytes};
use crate::crash::{deep, mix};
use crate::store::{self, Boot, Setup, Store};

pub const KEEP_SIZE: i32 = 1;
pub const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;
const CHUNK: u64 = 32 << 10;
const BLOCK: u64 = 64 << 10;
/// Bytes that a file grows by at the end: past the next block at least.
const GROWTH: u64 = 70_000;

/// How a file begins.
pub struct Start {
    pub name: &'static str,
    /// Distance between the boundaries of pieces in its tier (bytes).
    unit: u64,
    operations: &'static [Operation],
}

/// The threshold is 80 KiB.
pub const STARTS: &[Start] = &[
    Start { name: "nothing", unit: BLOCK, operations: &[] },
    Start { name: "a slot", unit: CHUNK, operations: &[Write("f", 0, 3000, 1)] },
    Start { name: "chunks", unit: CHUNK, operations: &[Write("f", 0, 40_000, 1)] },
    Start {
        name: "a hole between chunks",
        unit: CHUNK,
        operations: &[Write("f", 5, 100, 1), Write("f", 70_000, 300, 2)],
    },
    Start {
        name: "chunks with room behind the end",
        unit: CHUNK,
        operations: &[Write("f", 0, 40_000, 1), Fallocate("f", KEEP_SIZE, 0, 78_000)],
    },
    Start { name: "cut within a chunk", unit: CHUNK, operations: &[Write("f", 0, 70_000, 1), Truncate("f", 40_000)] },
    Start { name: "as long as the threshold", unit: BLOCK, operations: &[Write("f", 0, 81_920, 1)] },
    Start { name: "blocks", unit: BLOCK, operations: &[Write("f", 0, 150_001, 1)] },
    Start {
        name: "a hole before the last block",
        unit: BLOCK,
        operations: &[Write("f", 0, 70_000, 1), Write("f", 200_000, 10_000, 2)],
    },
    Start { name: "a hole at the end", unit: BLOCK, operations: &[Write("f", 0, 150_001, 1), Truncate("f", 240_000)] },
    Start {
        name: "blocks with room behind the end",
        unit: BLOCK,
        operations: &[Write("f", 0, 150_001, 1), Fallocate("f", KEEP_SIZE, 150_001, 100_000)],
    },
    Start { name: "cut within a block", unit: BLOCK, operations: &[Write("f", 0, 150_001, 1), Truncate("f", 140_000)] },
    Start { name: "cut to a block", unit: BLOCK, operations: &[Write("f", 0, 150_001, 1), Truncate("f", 131_072)] },
];

/// Returns the places tried, in ascending order.
fn places(eof: u64, unit: u64) -> Vec<u64> {
    let below = eof.saturating_sub(1) / unit * unit;
    let mut places = vec![0, 1, eof, eof + 1, eof.saturating_sub(1)];
    for boundary in [below, below + unit] {
        places.extend([boundary.saturating_sub(1), boundary, boundary + 1]);
    }
    places.sort_unstable();
    places.dedup();
    places
}

/// Returns every operation at every place.
fn operations(eof: u64, unit: u64) -> Vec<Operation> {
    let places = places(eof, unit);
    let mut operations: Vec<Operation> = places.iter().map(|&at| Truncate("f", at)).collect();
    for (number, &at) in places.iter().enumerate() {
        for &end in &places[number + 1..] {
            let len = end - at;
            operations.push(Write("f", at, len as usize, 7));
            operations.push(Copy("other", 1, "f", at, len));
            for mode in [0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE] {
                operations.push(Fallocate("f", mode, at, len));
            }
        }
    }
    operations
}

const OTHER_BYTES: usize = 270_000;

/// Does to a vector what the operation does to a file.
fn imitate(file: &mut Vec<u8>, operation: &Operation) {
    let put = |file: &mut Vec<u8>, at: u64, part: &[u8]| {
        let (at, end) = (at as usize, at as usize + part.len());
        file.resize(file.len().max(end), 0);
        file[at..end].copy_from_slice(part);
    };
    match *operation {
        Write(_, at, len, tag) => put(file, at, &bytes(tag, len)),
        Copy(_, from, _, at, len) => put(file, at, &bytes(9, OTHER_BYTES)[from as usize..(from + len) as usize]),
        Truncate(_, size) => file.resize(size as usize, 0),
        Fallocate(_, mode, at, len) => {
            let end = (at + len) as usize;
            if mode & KEEP_SIZE == 0 {
                file.resize(file.len().max(end), 0);
            }
            if mode & (PUNCH_HOLE | ZERO_RANGE) != 0 {
                let last = end.min(file.len());
                file[(at as usize).min(last)..last].fill(0);
            }
        }
        _ => {}
    }
}

fn apply(store: &Store, operation: &Operation) -> Result<(), Error> {
    operation.apply(&mut Actor { fs: &store.fs, clock: &store.clock, held: &mut Vec::new() })
}

fn ino(fs: &Fs) -> Result<Ino, String> {
    fs.lookup(ROOT, b"f").map(|attr| attr.ino).map_err(|e| format!("the file: {e}"))
}

fn read(fs: &Fs) -> Result<Vec<u8>, String> {
    let ino = ino(fs)?;
    let size = fs.getattr(ino).map_err(|e| format!("the file's size: {e}"))?.size;
    let mut bytes = vec![0; size as usize];
    let got = fs.read(ino, 0, &mut bytes).map_err(|e| format!("reading: {e}"))?;
    if got < bytes.len() { Err(format!("{got} bytes of {size} can be read")) } else { Ok(bytes) }
}

fn equal(found: &[u8], wanted: &[u8]) -> Result<(), String> {
    if found.len() != wanted.len() {
        return Err(format!("{} bytes instead of {}", found.len(), wanted.len()));
    }
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        Some(at) => Err(format!("byte {at} of {} is {:#04x} instead of {:#04x}", found.len(), found[at], wanted[at])),
        None => Ok(()),
    }
}

/// Grows the file. The added bytes must be zeros.
fn grow(fs: &Fs, file: &mut Vec<u8>) -> Result<(), String> {
    let size = file.len() as u64 + GROWTH;
    let change = SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(ino(fs)?, &change).map_err(|e| format!("growing: {e}"))?;
    file.resize(size as usize, 0);
    equal(&read(fs)?, file).map_err(|e| format!("grown: {e}"))
}

/// Returns an error if `found` is not allowed after a power loss. The file was `versions[0]` at the
/// last promise, and the others since.
fn judge_loss(found: &[u8], versions: &[Vec<u8>]) -> Result<(), String> {
    let covered = versions.iter().map(Vec::len).min().unwrap_or(0);
    let mut reason = "no operation left it".to_owned();
    for (now, _) in versions.iter().enumerate().filter(|(_, version)| version.len() == found.len()) {
        let candidates: Vec<Candidate<'_>> = versions
            .iter()
            .enumerate()
            .map(|(then, bytes)| {
                // An earlier version counts only up to the shortest length since then.
                let since = versions.get(then..=now).unwrap_or(&[]).iter().map(Vec::len).min();
                Candidate { bytes, limit: since.unwrap_or(usize::MAX) }
            })
            .collect();
        match unexplained(found, &candidates, covered) {
            None => return Ok(()),
            Some(at) => reason = format!("byte {at} is {:#04x}", found[at]),
        }
    }
    Err(format!("{} bytes, allowed {:?}: {reason}", found.len(), versions.iter().map(Vec::len).collect::<Vec<_>>()))
}

fn limits() -> Limits {
    if deep() { Limits::few() } else { Limits { subset_units: 1, torn: 0, each: 1, samples: 2 } }
}

/// Runs cases on one kind of memory.
pub struct Edges {
    setup: Setup,
    /// A store with an empty file, and another file to copy from.
    ready: shoal_sim::WorldState,
    pub cases: u64,
    pub states: u64,
}

impl Edges {
    pub fn new(kind: MemoryKind) -> Edges {
        let setup = pairs::setup(kind);
        let store = store::open(setup, store::format(setup, 1), Boot::first(true)).expect("a new store opens");
        for operation in [Create("other"), Write("other", 0, OTHER_BYTES, 9), Create("f")] {
            apply(&store, &operation).unwrap_or_else(|e| panic!("{operation:?}: {e}"));
        }
        store.fs.shutdown().expect("a clean end");
        Edges { setup, ready: store.world.snapshot().process_crash(), cases: 0, states: 0 }
    }

    /// Returns a store with the file as it begins, and the file's versions since the last promise.
    /// The turn decides whether the file is just written, synced, or mounted anew.
    fn begin(&self, start: &Start, turn: u64) -> Result<(Store, Vec<Vec<u8>>), String> {
        let boot = Boot::first(!turn.is_multiple_of(2)).after(false);
        let mut store = store::open(self.setup, self.ready.open(), boot)?;
        let mut versions = vec![Vec::new()];
        for operation in start.operations {
            apply(&store, operation).map_err(|e| format!("{operation:?}: {e}"))?;
            let mut next = versions[versions.len() - 1].clone();
            imitate(&mut next, operation);
            versions.push(next);
        }
        match turn % 4 {
            // The empty file was there after a clean end: it is the first version.
            0 => return Ok((store, versions)),
            1 => store.fs.sync().map_err(|e| format!("sync: {e}"))?,
            2 => store.fs.fsync(ino(&store.fs)?).map_err(|e| format!("fsync: {e}"))?,
            _ => {
                store.fs.shutdown().map_err(|e| format!("shutdown: {e}"))?;
                let Store { setup, world, boot, .. } = store;
                store = store::open(setup, world, boot.after(false))?;
            }
        }
        versions.drain(..versions.len() - 1);
        Ok((store, versions))
    }

    /// Tries one operation on one start.
    pub fn case(&mut self, start: &Start, operation: &Operation, turn: u64) -> Result<(), String> {
        self.cases += 1;
        let (store, mut versions) = self.begin(start, turn)?;
        let mut file = versions[versions.len() - 1].clone();
        equal(&read(&store.fs)?, &file).map_err(|e| format!("at first: {e}"))?;
        apply(&store, operation).map_err(|e| format!("fails: {e}"))?;
        imitate(&mut file, operation);
        equal(&read(&store.fs)?, &file)?;
        if let Copy(from, from_at, to, at, len) = *operation {
            // A copy goes in steps, and a power loss may leave any of them as the last one.
            let before = versions[versions.len() - 1].clone();
            for done in (128 << 10..len).step_by(128 << 10) {
                let mut part = before.clone();
                imitate(&mut part, &Copy(from, from_at, to, at, done));
                versions.push(part);
            }
        }
        versions.push(file.clone());
        if turn / 4 % 2 == 1 {
            // Growing must not show what a power loss could bring back.
            grow(&store.fs, &mut file)?;
            versions.push(file.clone());
            // An fsync leaves only the last version.
            if turn / 8 % 2 == 1 {
                store.fs.fsync(ino(&store.fs)?).map_err(|e| format!("fsync: {e}"))?;
                versions.drain(..versions.len() - 1);
            }
        }
        let point = store.world.snapshot();
        let again = store::open(self.setup, point.process_crash().open(), store.boot.after(false))?;
        equal(&read(&again.fs)?, &file).map_err(|e| format!("after a process crash: {e}"))?;
        self.states += 1;
        for state in point.power_losses(&limits()) {
            self.states += 1;
            let name = |e: String| format!("{}: {e}", state.name());
            let lost = store::open(self.setup, state.open(), store.boot.after(true)).map_err(name)?;
            let mut found = read(&lost.fs).map_err(name)?;
            judge_loss(&found, &versions).map_err(name)?;
            grow(&lost.fs, &mut found).map_err(name)?;
        }
        grow(&store.fs, &mut file)?;
        store.fs.shutdown().map_err(|e| format!("shutdown: {e}"))?;
        let Store { setup, world, boot, .. } = store;
        store::check(setup, &world, false)?;
        let again = store::open(setup, world, boot.after(false))?;
        equal(&read(&again.fs)?, &file).map_err(|e| format!("after a remount: {e}"))
    }

    /// Tries all operations on a start, or one in `every`. Returns the failures.
    pub fn explore(&mut self, start: &Start, every: u64) -> Vec<String> {
        let mut file = Vec::new();
        start.operations.iter().for_each(|operation| imitate(&mut file, operation));
        let kind = self.setup.kind;
        let mut failures = Vec::new();
        for (number, operation) in operations(file.len() as u64, start.unit).iter().enumerate() {
            let turn = mix(&[kind as u64, start.name.len() as u64, number as u64]);
            if !is_due(turn, every) {
                continue;
            }
            let turn = turn / every;
            if let Err(failure) = crate::crash::explorer::guard(|| self.case(start, operation, turn)) {
                failures.push(format!("{}: {}, {operation:?}, turn {}: {failure}", kind.name(), start.name, turn % 16));
            }
        }
        failures
    }

    /// Tries writes and copies at and over the end of a file that was cut off within a block.
    pub fn appends_at_the_cut(&mut self) -> Result<(), String> {
        let start = STARTS.iter().find(|start| start.name == "cut within a block").expect("there is one");
        for (at, len) in [(140_000, 3000), (139_000, 2000), (140_000, 60_000), (131_072, 65_536)] {
            for operation in [Write("f", at, len, 7), Copy("other", 1, "f", at, len as u64)] {
                (0..8).try_for_each(|turn| {
                    self.case(start, &operation, turn).map_err(|e| format!("{operation:?}, turn {turn}: {e}"))
                })?;
            }
        }
        Ok(())
    }

    /// Tries a write that fails midway because the device does. Nothing of it may be seen past the
    /// end.
    pub fn failing_device(&mut self, nth: u64, at: u64, len: usize) -> Result<(), String> {
        self.cases += 1;
        let start = STARTS.iter().find(|start| start.name == "blocks").expect("there is one");
        let (store, versions) = self.begin(start, 0)?;
        let old = versions[versions.len() - 1].clone();
        store.world.fail(FaultPlan { call: Call::DiskWrite, nth, for_good: false, fault: Fault::Io });
        let outcome = apply(&store, &Write("f", at, len, 7));
        store.world.clear_faults();
        self.after_a_failure(&store, old, &Write("f", at, len, 7), outcome)
    }

    /// Tries a write whose map finds no room in the full region. Returns whether it failed.
    pub fn full_region(&mut self, start: &Start, at: u64, len: usize, turn: u64) -> Result<bool, String> {
        self.cases += 1;
        let (store, versions) = self.begin(start, turn)?;
        let old = versions[versions.len() - 1].clone();
        fill(&store)?;
        let outcome = apply(&store, &Write("f", at, len, 7));
        let failed = outcome.is_err();
        self.after_a_failure(&store, old, &Write("f", at, len, 7), outcome).map(|()| failed)
    }

    fn after_a_failure(
        &mut self,
        store: &Store,
        old: Vec<u8>,
        operation: &Operation,
        outcome: Result<(), Error>,
    ) -> Result<(), String> {
        let mut new = old.clone();
        imitate(&mut new, operation);
        let mut file = read(&store.fs)?;
        match outcome {
            Ok(()) => equal(&file, &new)?,
            Err(error) => {
                let end = file.len();
                let byte = |bytes: &[u8], at: usize| bytes.get(at).copied();
                let strange = (0..end).find(|&at| file[at] != new[at] && byte(&old, at) != Some(file[at]));
                if end < old.len() || end > new.len() || strange.is_some() {
                    return Err(format!("after {error}: {end} bytes, of which {strange:?} is neither old nor new"));
                }
            }
        }
        // Make room again, so that growing cannot fail for lack of it.
        store.fs.unlink(ROOT, b"filler 0").ok();
        store.fs.sync().map_err(|e| format!("sync: {e}"))?;
        grow(&store.fs, &mut file)?;
        let point = store.world.snapshot();
        let again = store::open(self.setup, point.process_crash().open(), store.boot.after(false))?;
        equal(&read(&again.fs)?, &file).map_err(|e| format!("after a process crash: {e}"))?;
        store.fs.sync().map_err(|e| format!("sync: {e}"))?;
        for state in store.world.snapshot().power_losses(&limits()) {
            self.states += 1;
            let lost = store::open(self.setup, state.open(), store.boot.after(true))?;
            equal(&read(&lost.fs)?, &file).map_err(|e| format!("synced, and after a power loss: {e}"))?;
        }
        Ok(())
    }
}

/// Fills the region with files of every class of pieces, so that no map can grow.
fn fill(store: &Store) -> Result<(), String> {
    let caller = shoal_fs::Caller { uid: 1, gid: 1, umask: 0, hold: false };
    for number in 0..100_000u64 {
        let Ok(attr) = store.fs.mknod(&caller, ROOT, format!("filler {number}").as_bytes(), 0o644, 0) else { break };
        // Write long files first, and at last whatever small piece still fits.
        let full = [70_000, 20_000, 6000, 2000, 700, 200, 100, 60, 1]
            .into_iter()
            .find(|&len| store.fs.write(attr.ino, 0, &bytes(number, len)).is_ok_and(|written| written == len));
        if full.is_none() {
            break;
        }
    }
    Ok(())
}
