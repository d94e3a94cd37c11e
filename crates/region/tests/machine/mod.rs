//! Region crash enumeration: run, crash everywhere, recover, compare.
//!
//! | file | owns |
//! |---|---|
//! | `model` | the expected states of the region |
//! | `store` | a region on simulated media, and the steps of a run |
//! | `media` | wrappers that break one ordering rule, and call back during a checkpoint |
//! | here | crash points, states, the oracle of T3, crashes during recovery |
//!
//! A failure names seed, event and state. `SHOAL_SEED=<seed>` repeats that run.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod media;
pub mod model;
pub mod store;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use media::Plant;
use model::State;
use shoal_format::Offset;
use shoal_format::superblock::MemoryKind;
use shoal_region::Error;
use shoal_sim::{Budget, CrashPoint, Limits, Random, WorldState};
use store::{Boot, Store};

/// Parameters of a run.
#[derive(Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub kind: MemoryKind,
    pub plant: Plant,
    pub steps: usize,
    pub limits: Limits,
    /// Also crash before every store to recorded memory.
    pub stores: bool,
}

/// The number of states visited, and the first failure.
pub struct Outcome {
    pub states: u64,
    pub failure: Option<String>,
}

/// Bounds on the transactions found after a crash.
#[derive(Clone, Copy)]
struct Promise {
    /// The least transaction present after a power loss, and the least after a process crash.
    power: u64,
    process: u64,
    high: u64,
    boot: Boot,
}

struct Explorer<'a> {
    plan: &'a Plan,
    states: Vec<Arc<State>>,
    visited: u64,
}

/// Limits for each state in a long run.
pub fn limits() -> Limits {
    Limits { subset_units: 4, torn: 4, each: 6, samples: 8 }
}

fn shallow() -> Limits {
    Limits { subset_units: 2, torn: 1, each: 1, samples: 2 }
}

/// Runs a plan, crashes at every point, and examines every state.
pub fn explore(plan: &Plan) -> Outcome {
    let mut explorer = Explorer { plan, states: Vec::new(), visited: 0 };
    let run = catch_unwind(AssertUnwindSafe(|| explorer.run()));
    let failure = match run {
        Ok(Ok(())) => None,
        Ok(Err(failure)) => Some(failure),
        Err(panic) => Some(match panic.downcast::<String>() {
            Ok(message) => format!("panic: {message}"),
            Err(panic) => format!("panic: {}", panic.downcast::<&str>().map_or("?", |message| *message)),
        }),
    };
    let failure = failure.map(|f| format!("{:?}, seed {}: {f}", plan.kind, plan.seed));
    Outcome { states: explorer.visited, failure }
}

impl Explorer<'_> {
    fn run(&mut self) -> Result<(), String> {
        let plan = *self.plan;
        let mut store = Store::create(plan.seed, plan.kind, plan.plant)?;
        store.world.record(true);
        store.world.record_stores(plan.stores);
        for _ in 0..plan.steps {
            store.step()?;
        }
        store.world.record(false);
        let mut points = store.world.points();
        points.push(store.world.snapshot());
        self.states = store.writer.lock().unwrap().states.clone();
        let total = self.states.len() as u64 - 1;
        for point in points {
            let (returned, durable) = (point.mark() >> 32, point.mark() & 0xffff_ffff);
            let boot = Boot { boot: 1, opening: 1000 };
            // One transaction may be in flight when the machine stops.
            let promise = Promise { power: durable, process: returned, high: (returned + 1).min(total), boot };
            self.crash(&point, promise, &plan.limits, 0, false)?;
        }
        Ok(())
    }

    /// Examines every state of one crash point.
    fn crash(
        &mut self,
        point: &CrashPoint,
        promise: Promise,
        limits: &Limits,
        depth: u32,
        power_before: bool,
    ) -> Result<(), String> {
        self.examine(&point.process_crash(), promise, depth, false, power_before)?;
        for state in point.power_losses(limits) {
            self.examine(&state, promise, depth, true, true)?;
        }
        Ok(())
    }

    /// Examines one state. `power`: this crash is a power loss. `lost`: a power loss occurred now
    /// or earlier since the store was last open.
    fn examine(
        &mut self,
        state: &WorldState,
        promise: Promise,
        depth: u32,
        power: bool,
        lost: bool,
    ) -> Result<(), String> {
        self.visited += 1;
        let name = |e: String| format!("{} (depth {depth}): {e}", state.name());
        let low = if power { promise.power } else { promise.process };
        let boot = Boot { boot: promise.boot.boot + power as u8, opening: promise.boot.opening + 1 };
        // Only some states get further tests, because each costs many times as much as opening.
        let turn = self.visited;
        let nested = depth < 2 && (turn.is_multiple_of([101, 61][depth as usize]) || turn < 3);
        let random = || Random::new(turn);
        let world = state.open();
        if nested {
            world.record(true);
            world.record_stores(true);
            world.set_mark(turn);
        }
        let open = |world| Store::open(world, self.plan.kind, self.plan.plant, boot, random(), self.states.clone());
        let mut store = open(world).map_err(name)?;
        let found = store.verify(low, promise.high).map_err(name)?;
        if lost != store.recovery.power_lost {
            return Err(name(format!("power lost: {}, recovery says {}", lost, store.recovery.power_lost)));
        }
        // If reopened in the same boot, a later power loss may still take what was not durable at
        // this crash.
        let power_low = if power { found } else { promise.power.min(found) };
        let after = Promise { power: power_low, process: found, high: found, boot };
        if turn.is_multiple_of(13) {
            let again = open(store.world.snapshot().process_crash().open()).map_err(name)?;
            again.verify(found, found).map_err(|e| name(format!("recovered twice: {e}")))?;
        }
        if nested {
            store.world.record(false);
            let points = store.world.points();
            let every = points.len().div_ceil(40).max(1);
            for point in points.iter().step_by(every) {
                self.crash_again(point, Promise { high: promise.high, ..after }, depth + 1).map_err(name)?;
            }
            self.crash_again(&store.world.snapshot(), after, depth + 1).map_err(name)?;
        }
        if turn.is_multiple_of(31) {
            self.go_on(&mut store, found, after).map_err(name)?;
        }
        if turn.is_multiple_of(43) {
            fill(&store).map_err(name)?;
        }
        Ok(())
    }

    /// Crashes during the recovery from a crash. Before the opening returns, nobody can have seen
    /// what it found. So a torn record may still become whole when the new epoch record overwrites
    /// parts of it.
    fn crash_again(&mut self, point: &CrashPoint, promise: Promise, depth: u32) -> Result<(), String> {
        self.reopen(&point.process_crash(), promise, depth, false)?;
        for state in point.power_losses(&shallow()) {
            self.reopen(&state, promise, depth, true)?;
        }
        Ok(())
    }

    fn reopen(&mut self, state: &WorldState, promise: Promise, depth: u32, power: bool) -> Result<(), String> {
        self.visited += 1;
        let name = |e: String| format!("{} (depth {depth}): {e}", state.name());
        let low = if power { promise.power } else { promise.process };
        let boot = Boot { boot: promise.boot.boot + power as u8, opening: promise.boot.opening + 1 };
        let world = state.open();
        let nested = depth < 2 && self.visited.is_multiple_of(53);
        if nested {
            world.record(true);
            world.record_stores(true);
        }
        let random = Random::new(self.visited);
        let store =
            Store::open(world, self.plan.kind, self.plan.plant, boot, random, self.states.clone()).map_err(name)?;
        let found = store.verify(low, promise.high).map_err(name)?;
        if nested {
            store.world.record(false);
            let power_low = if power { found } else { promise.power.min(found) };
            let after = Promise { power: power_low, process: found, high: promise.high, boot };
            let points = store.world.points();
            let every = points.len().div_ceil(10).max(1);
            for point in points.iter().step_by(every) {
                self.crash_again(point, after, depth + 1).map_err(name)?;
            }
        }
        Ok(())
    }

    /// Runs new transactions after a recovery, and crashes again.
    fn go_on(&mut self, store: &mut Store, found: u64, before: Promise) -> Result<(), String> {
        store.settle(found);
        for step in 0..12 {
            // The first checkpoint after a recovery trusts what the mount found about the other
            // image.
            let outcome = if step == 2 { store.checkpoint() } else { store.step() };
            outcome.map_err(|e| format!("after recovery: {e}"))?;
        }
        let point = store.world.snapshot();
        let states = store.writer.lock().unwrap().states.clone();
        let (returned, durable) = (point.mark() >> 32, point.mark() & 0xffff_ffff);
        // What recovery found is durable only as far as it was promised before.
        let durable = if durable <= found { before.power.min(durable) } else { durable };
        let crashes = std::iter::once((point.process_crash(), false));
        for (state, power) in crashes.chain(point.power_losses(&shallow()).map(|s| (s, true))) {
            self.visited += 1;
            let boot = Boot { boot: before.boot.boot + power as u8, opening: 5000 };
            let random = Random::new(self.visited);
            let store = Store::open(state.open(), self.plan.kind, self.plan.plant, boot, random, states.clone());
            let low = if power { durable } else { returned };
            store.and_then(|s| s.verify(low, returned)).map_err(|e| format!("second crash, {}: {e}", state.name()))?;
        }
        Ok(())
    }
}

/// Allocates until nothing is left. Nothing in use may be handed out, and everything free must be.
fn fill(store: &Store) -> Result<(), String> {
    use std::collections::BTreeSet;
    let writer = store.writer.lock().unwrap();
    let state = &writer.states[model::claimed(&store.region)? as usize];
    let mut used: BTreeSet<(Offset, Offset)> = BTreeSet::new();
    let taken = |slot: shoal_format::SlotRef| (slot.offset(), slot.offset() + slot.capacity());
    used.extend(state.objects.iter().flatten().map(|o| taken(o.slot)));
    let mut tx = store.region.begin_reclaim();
    for len in [65536, 32768, 4096, 1024, 100, 16] {
        loop {
            match tx.alloc(len) {
                Ok(slot) => used.insert(taken(slot)),
                Err(Error::NoSpace(_)) => break,
                Err(Error::TooLarge) => return Ok(()),
                Err(error) => return Err(format!("filling the region: {error}")),
            };
        }
    }
    let ends: Vec<_> = used.iter().collect();
    if let Some(pair) = ends.windows(2).find(|pair| pair[0].1 > pair[1].0) {
        return Err(format!("filling the region: pieces {:x?} and {:x?} overlap", pair[0], pair[1]));
    }
    drop(tx);
    compare_again(store, state)
}

fn compare_again(store: &Store, state: &State) -> Result<(), String> {
    model::compare(&store.region, state).map_err(|e| format!("after an aborted transaction that took everything: {e}"))
}

/// Returns the factor on the amount of work, raised by `SHOAL_DEEP=1`.
pub fn deep() -> u64 {
    if std::env::var_os("SHOAL_DEEP").is_some() { 20 } else { 1 }
}

/// Returns the seeds of a run: `count` from `first`, or the one in `SHOAL_SEED`.
pub fn seeds(first: u64, count: u64) -> impl Iterator<Item = u64> {
    let seeds = match std::env::var("SHOAL_SEED") {
        Ok(seed) => {
            let seed = seed.parse().expect("SHOAL_SEED is a number");
            seed..seed + 1
        }
        Err(_) => first..first + count * deep(),
    };
    Budget::of_a_search().within(seeds)
}
