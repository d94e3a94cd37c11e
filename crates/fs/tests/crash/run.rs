//! Runs: a store before any workload, a workload run on it with recorded crash points, and the
//! promises of each point.
//!
//! `tree` has the rules of what a state may hold. The allowed states follow from the point's mark,
//! which gives the promises at that time. After a process crash, everything that returned is there.
//! After a power loss, `logged` memory has what the last fsync, sync, tick or checkpoint covered,
//! and other memory has everything that returned. Data of large files is as of the last fsync of
//! the file, sync or tick. The operation in flight may be there, or not, or be cut off as it says.
//! Left out: which states are visited, and what is done with them (`explorer`, `faults`).

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_format::superblock::MemoryKind;
use shoal_fs::Ino;
use shoal_sim::{CrashPoint, Limits, WorldState};

use super::mix;
use super::operation::{Actor, Operation};
use super::tree::{State, Tree, identify};
use crate::store::{self, Boot, Setup, Store};

/// What came before the operations that are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// The prepared tree was unmounted cleanly.
    Mounted,
    /// Nothing of the prepared tree was ever synced.
    Young,
    /// Like `Young`, and then synced. The next two add a checkpoint or a tick instead.
    Synced,
    Sealed,
    Aged,
}

impl Before {
    fn operation(self) -> Option<Operation> {
        match self {
            Before::Mounted | Before::Young => None,
            Before::Synced => Some(Operation::Sync),
            Before::Sealed => Some(Operation::Checkpoint),
            Before::Aged => Some(Operation::Tick),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Workload {
    pub before: Before,
    pub operations: Vec<Operation>,
    /// Whether each of them must succeed.
    pub must_succeed: bool,
}

impl Workload {
    pub fn name(&self) -> String {
        let operations: Vec<String> = self.operations.iter().map(|operation| format!("{operation:?}")).collect();
        format!("{:?}; {}", self.before, operations.join("; "))
    }
}

/// A store before any workload.
pub struct Ground {
    pub setup: Setup,
    pub seed: u64,
    pub preparation: Vec<Operation>,
    empty: WorldState,
    /// The prepared tree after a clean unmount. `history` has the states on the way there, with the
    /// end of each operation.
    mounted: WorldState,
    history: History,
}

/// States that a run went through, in order, including those between.
#[derive(Clone, Default)]
pub struct History {
    pub states: Vec<State>,
    /// Index of the state each operation led to; the first is the beginning.
    pub ends: Vec<usize>,
}

/// Promises at a moment, as indices of states.
#[derive(Clone, Default)]
pub struct Promise {
    /// The state that has everything returned.
    returned: usize,
    /// The end of the log that survives a power loss.
    pub log: usize,
    /// The states that the data of large files is promised from: of all files, and of single ones.
    data: usize,
    file_data: BTreeMap<Ino, usize>,
    /// The operation whose effect may be there already.
    last: usize,
}

impl Promise {
    fn data_low(&self, ino: Ino) -> usize {
        self.data.max(self.file_data.get(&ino).copied().unwrap_or(0))
    }
}

/// What one state may hold.
#[derive(Clone)]
pub struct Allowed {
    pub low: usize,
    pub high: usize,
    pub power: bool,
    pub promise: Promise,
    pub boot: Boot,
}

/// A workload that has been run.
pub struct Run<'a> {
    pub ground: &'a Ground,
    pub name: String,
    history: History,
    promises: Vec<Promise>,
    pub points: Vec<CrashPoint>,
    boot: Boot,
}

impl Ground {
    pub fn new(setup: Setup, seed: u64, preparation: Vec<Operation>) -> Result<Ground, String> {
        let empty = store::format(setup, seed).snapshot().process_crash();
        let mut ground =
            Ground { setup, seed, preparation, mounted: empty.clone(), empty, history: History::default() };
        let boot = Boot::first(true);
        let store = store::open(setup, ground.empty.open(), boot)?;
        let mut history = History { states: vec![Arc::new(Tree::read(&store.fs)?)], ends: vec![0] };
        for operation in &ground.preparation {
            step(&store, operation, &mut Vec::new(), &mut history)?
                .map_err(|e| format!("preparing, {operation:?}: {e}"))?;
        }
        ground.history = history;
        store.fs.shutdown().map_err(|e| format!("preparing: {e}"))?;
        store::check(setup, &store.world, false)?;
        ground.mounted = store.world.snapshot().process_crash();
        Ok(ground)
    }

    /// Opens the store that a workload begins with. Returns it with the states before the workload.
    fn begin(&self, before: Before, boot: Boot) -> Result<(Store, History), String> {
        let last = self.history.states.last().expect("there is a first state").clone();
        if before == Before::Mounted {
            let store = store::open(self.setup, self.mounted.open(), boot.after(false))?;
            return Ok((store, History { states: vec![last], ends: vec![0] }));
        }
        let store = store::open(self.setup, self.empty.open(), boot)?;
        for operation in &self.preparation {
            // Advance the clock as when the states were read, so that times are the same.
            store.clock.advance(STEP_NS);
            let mut actor = Actor { fs: &store.fs, clock: &store.clock, held: &mut Vec::new() };
            operation.apply(&mut actor).map_err(|e| format!("preparing, {operation:?}: {e}"))?;
        }
        if Tree::read(&store.fs)? != *last {
            return Err("the preparation led to another tree than the first time".into());
        }
        Ok((store, self.history.clone()))
    }
}

pub const STEP_NS: u64 = 1_000_000;

/// Applies one operation and notes the states it led to. The outer error is a violation that the
/// harness found.
fn step(
    store: &Store,
    operation: &Operation,
    held: &mut Vec<Ino>,
    history: &mut History,
) -> Result<Result<(), shoal_fs::Error>, String> {
    store.clock.advance(STEP_NS);
    let outcome = operation.apply(&mut Actor { fs: &store.fs, clock: &store.clock, held });
    let before = history.states.last().expect("there is a first state").clone();
    let after = Arc::new(Tree::read(&store.fs)?);
    if outcome.is_err() && after != before {
        return Err(format!("{operation:?} failed ({outcome:?}) and changed the tree"));
    }
    history.states.extend(operation.between(&before, &after).into_iter().map(Arc::new));
    history.states.push(after);
    history.ends.push(history.states.len() - 1);
    Ok(outcome)
}

impl Ground {
    /// Opens the prepared store after a clean unmount.
    pub fn open(&self) -> Result<Store, String> {
        Ok(self.begin(Before::Mounted, Boot::first(true))?.0)
    }

    /// Returns the states that a crash leaves of a store that was never synced, and of one that was
    /// sealed. The flag is true after a power loss.
    pub fn crashed(&self) -> Result<Vec<(bool, WorldState)>, String> {
        let mut states = Vec::new();
        for before in [Before::Young, Before::Sealed] {
            let (store, mut history) = self.begin(before, Boot::first(true))?;
            // So many writes make the store give up the log before the newest image. The older
            // image is then useless.
            let rounds = if before == Before::Sealed { 60 } else { 0 };
            let rewritten = (0..rounds).map(|round| Operation::Write("foo", 0, 3000, 1000 + round));
            for operation in rewritten.chain(before.operation()).chain([Operation::Create("after")]) {
                step(&store, &operation, &mut Vec::new(), &mut history)?.map_err(|e| format!("{operation:?}: {e}"))?;
            }
            let point = store.world.snapshot();
            states.push((false, point.process_crash()));
            states.extend(
                point.power_losses(&Limits { subset_units: 1, torn: 1, each: 0, samples: 1 }).map(|s| (true, s)),
            );
        }
        Ok(states)
    }
}

/// Judges a store on which two operations were tried while media failed.
pub struct Judge<'a> {
    ground: &'a Ground,
    history: History,
    /// Promise of the second operation about data.
    data: Option<Promise>,
}

impl<'a> Judge<'a> {
    pub fn new(ground: &'a Ground, operations: &[Operation; 2]) -> Result<Judge<'a>, String> {
        let (store, mut history) = ground.begin(Before::Mounted, Boot::first(true))?;
        let mut held = Vec::new();
        for operation in operations {
            step(&store, operation, &mut held, &mut history)?.map_err(|e| format!("{operation:?}: {e}"))?;
        }
        let now = history.states.len() - 1;
        let data = match &operations[1] {
            Operation::Sync | Operation::Tick => Some(Promise { data: now, ..Promise::default() }),
            Operation::Fsync(path) => {
                let file_data = history.states[now].ino(path).map(|ino| (ino, now)).into_iter().collect();
                Some(Promise { file_data, ..Promise::default() })
            }
            _ => None,
        };
        Ok(Judge { ground, history, data })
    }

    /// Returns which state allowed after a crash the tree is in, given how the operations ended.
    pub fn identify<E>(
        &self,
        tree: &Tree,
        power: bool,
        data_lost: bool,
        outcomes: &(Result<(), E>, Result<(), E>),
    ) -> Result<usize, String> {
        let ends = &self.history.ends;
        let promised = outcomes.0.is_ok() && outcomes.1.is_ok();
        let returned = if outcomes.0.is_ok() { ends[1] } else { 0 };
        let lossy = power && self.ground.setup.kind == MemoryKind::Logged;
        let low = if promised || !lossy { returned } else { 0 };
        let data_low = |ino| match &self.data {
            _ if !data_lost => low,
            Some(promise) if promised => promise.data_low(ino),
            _ => 0,
        };
        identify(tree, &self.history.states, low, ends[2], &data_low)
    }
}

impl<'a> Run<'a> {
    pub fn new(ground: &'a Ground, workload: &Workload) -> Result<Run<'a>, String> {
        let name = workload.name();
        let keeps_trimmed = mix(&[ground.seed, name.len() as u64]).is_multiple_of(2);
        let boot = Boot::first(keeps_trimmed);
        let (store, history) = ground.begin(workload.before, boot)?;
        let mut run = Run { ground, name, history, promises: Vec::new(), points: Vec::new(), boot: store.boot };
        let mut promise = Promise { returned: run.history.states.len() - 1, ..Promise::default() };
        let mut held = Vec::new();
        if let Some(operation) = workload.before.operation() {
            run.perform(&store, &operation, &mut promise, &mut held, true)?;
        }
        store.world.record(true);
        store.world.record_stores(true);
        for operation in &workload.operations {
            run.perform(&store, operation, &mut promise, &mut held, workload.must_succeed)?;
        }
        store.world.record(false);
        run.points = store.world.points();
        run.points.push(store.world.snapshot());
        Ok(run)
    }

    fn perform(
        &mut self,
        store: &Store,
        operation: &Operation,
        promise: &mut Promise,
        held: &mut Vec<Ino>,
        must_succeed: bool,
    ) -> Result<(), String> {
        promise.last = self.history.ends.len();
        self.promise(store, promise);
        let fail = |e: String| format!("{}, running {operation:?}: {e}", self.name);
        let outcome = step(store, operation, held, &mut self.history).map_err(fail)?;
        let now = self.history.states.len() - 1;
        promise.returned = now;
        match (operation, &outcome) {
            (_, Err(error)) if must_succeed => return Err(fail(error.to_string())),
            (_, Err(_)) => {}
            (Operation::Fsync(path), _) => {
                promise.log = now;
                promise.file_data.extend(self.history.states[now].ino(path).map(|ino| (ino, now)));
            }
            // Behind a cache, a tick promises no data: the policy may hold data for a while unless
            // somebody asks for it.
            (Operation::Tick, _) if self.ground.setup.cached => promise.log = now,
            (Operation::Sync | Operation::Tick, _) => (promise.log, promise.data) = (now, now),
            (Operation::Checkpoint, _) => promise.log = now,
            _ => {}
        }
        promise.last = self.history.ends.len() - 1;
        self.promise(store, promise);
        Ok(())
    }

    fn promise(&mut self, store: &Store, promise: &Promise) {
        store.world.set_mark(self.promises.len() as u64);
        self.promises.push(promise.clone());
    }

    pub fn allowed(&self, point: &CrashPoint, power: bool) -> Allowed {
        let promise = self.promises[point.mark() as usize].clone();
        let low = if power && self.ground.setup.kind == MemoryKind::Logged { promise.log } else { promise.returned };
        Allowed { low, high: self.history.ends[promise.last], power, promise, boot: self.boot.after(power) }
    }

    /// Returns which state a recovered store is in.
    pub fn identify(&self, tree: &Tree, allowed: &Allowed) -> Result<usize, String> {
        let data_low = |ino| if allowed.power { allowed.promise.data_low(ino) } else { allowed.promise.returned };
        identify(tree, &self.history.states, allowed.low, allowed.high, &data_low)
    }
}
