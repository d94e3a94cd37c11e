//! Crashes at every point of a run, and examines every state.
//!
//! The further tests take turns: recovery twice, crashes during recovery to depth two, the offline
//! checker, the aftermath. Turns and samples are functions of seed, workload, point and state, so a
//! rerun makes the same choices. A state visited by its number gets all tests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shoal_format::superblock::MemoryKind;
use shoal_sim::{Budget, Limits, WorldState};

use super::run::{Allowed, Run};
use super::tree::Tree;
use super::{aftermath, deep, mix};
use crate::store::{self, Store};

fn state_limits() -> Limits {
    if deep() {
        Limits { subset_units: 6, torn: 8, each: 16, samples: 24 }
    } else {
        Limits { subset_units: 4, torn: 3, each: 5, samples: 6 }
    }
}

fn shallow() -> Limits {
    Limits { subset_units: 1, torn: 1, each: 1, samples: 2 }
}

/// Which states of a run are visited.
#[derive(Clone, Copy)]
pub struct Sampling {
    /// Visits one in this many states.
    pub every: u64,
    /// Only this point, and this state of it.
    pub point: Option<u64>,
    pub state: Option<u64>,
}

impl Sampling {
    /// Visits one in `every` states, at all points.
    pub fn one_of(every: u64) -> Sampling {
        Sampling { every, point: None, state: None }
    }
}

/// Visits the states of a run; returns how many, or the first failure.
pub fn explore(run: &Run<'_>, sampling: Sampling) -> Result<u64, String> {
    explore_within(run, sampling, None)
}

/// Like [`explore`], within a budget. A limited run begins at a point that depends on seed and
/// workload, so that not all runs see the same points first. It ends when the budget is spent.
pub fn explore_within(run: &Run<'_>, sampling: Sampling, budget: Option<&Budget>) -> Result<u64, String> {
    let mut visitor = Visitor { run, visited: 0, forced: sampling.state.is_some() };
    let name = run.name.bytes().fold(0, |sum, byte| mix(&[sum, byte as u64]));
    let limited = budget.filter(|budget| budget.is_limited());
    let first = limited.map_or(0, |_| mix(&[run.ground.seed, name]) as usize % run.points.len());
    let points = run.points.iter().enumerate();
    for (number, point) in points.clone().skip(first).chain(points.take(first)) {
        if visitor.visited > 0 && limited.is_some_and(Budget::is_spent) {
            break;
        }
        if sampling.point.is_some_and(|only| only != number as u64) {
            continue;
        }
        let limits = state_limits();
        let losses = point.power_losses(&limits).size_hint().0;
        for state in 0..=losses as u64 {
            let turn = mix(&[run.ground.seed, name, number as u64, state]);
            let wanted = match sampling.state {
                Some(only) => only == state,
                // At the last point every operation has returned. The first power loss there keeps
                // nothing that was not promised, so a broken promise shows.
                None if number + 1 == run.points.len() && state < 2 => true,
                None => sampling.point.is_some() || turn.is_multiple_of(sampling.every),
            };
            if !wanted {
                continue;
            }
            let power = state > 0;
            let crash = match state {
                0 => point.process_crash(),
                n => point.power_loss_number(&limits, n as usize - 1).expect("there are as many as were counted"),
            };
            let examined = guard(|| visitor.examine(&crash, &run.allowed(point, power), turn / sampling.every));
            if let Err(failure) = examined {
                let (kind, seed) = (run.ground.setup.kind.name(), run.ground.seed);
                return Err(format!(
                    "{kind}, workload \"{}\", point {number}, state {state}, seed {seed}\n  {}\n  {failure}\n\
                     run it again: SHOAL_KIND={kind} SHOAL_SEED={seed} SHOAL_WORKLOAD='{}' SHOAL_POINT={number} \
                     SHOAL_STATE={state} cargo test --release -p shoal-fs --test all enumeration::single -- --nocapture",
                    run.name,
                    crash.name(),
                    run.name,
                ));
            }
        }
    }
    Ok(visitor.visited)
}

/// Turns a panic into a failure like any other.
pub fn guard<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast::<String>().map(|text| *text);
        Err(format!("panic: {}", text.unwrap_or_else(|panic| panic.downcast::<&str>().map_or("?", |s| *s).to_string())))
    })
}

struct Visitor<'a> {
    run: &'a Run<'a>,
    visited: u64,
    /// Runs every further test on every state.
    forced: bool,
}

impl Visitor<'_> {
    fn turn(&self, turn: u64, every: u64, rest: u64) -> bool {
        self.forced || deep() && every < 100 && turn % 4 == rest % 4 || turn % every == rest
    }

    fn examine(&mut self, state: &WorldState, allowed: &Allowed, turn: u64) -> Result<(), String> {
        self.visited += 1;
        let setup = self.run.ground.setup;
        let nested = self.turn(turn, 53, 3);
        let world = state.open();
        if self.turn(turn, 17, 6) {
            store::check(setup, &world, allowed.power).map_err(|e| format!("before recovery: {e}"))?;
        }
        if nested {
            world.record(true);
            world.record_stores(true);
        }
        let store = store::open(setup, world, allowed.boot)?;
        store.world.record(false);
        if store.recovery.power_lost != allowed.power {
            return Err(format!("power lost: {}, recovery says {}", allowed.power, store.recovery.power_lost));
        }
        let tree = Tree::read(&store.fs)?;
        self.run.identify(&tree, allowed)?;
        if nested {
            self.crash_again(&store, allowed, Some(&tree), turn, 1)?;
        }
        if self.turn(turn, 11, 1) {
            let again = store::open(setup, store.world.snapshot().process_crash().open(), allowed.boot.after(false))?;
            if Tree::read(&again.fs)? != tree {
                return Err("recovered twice, the tree is another than recovered once".into());
            }
        }
        if self.turn(turn, 7, 2) {
            check_at_rest(&store)?;
        }
        if self.turn(turn, 23, 4) {
            let again = if setup.bulk_blocks > 0 { &self.run.ground.preparation[..] } else { &[] };
            return aftermath::examine(store, again);
        }
        if self.turn(turn, 13, 5) {
            store.fs.shutdown().map_err(|e| format!("shutdown: {e}"))?;
            drop(store.fs);
            store::check(setup, &store.world, false).map_err(|e| format!("after recovery and shutdown: {e}"))?;
        }
        Ok(())
    }

    /// Crashes at points of a recorded recovery. `once` is the tree after the whole recovery, if a
    /// crash in its middle must lead to the same tree.
    fn crash_again(
        &mut self,
        store: &Store,
        before: &Allowed,
        once: Option<&Tree>,
        turn: u64,
        depth: u32,
    ) -> Result<(), String> {
        let mut points = store.world.points();
        points.push(store.world.snapshot());
        let every = points.len().div_ceil(if deep() { 40 } else { 12 });
        for (number, point) in
            points.iter().enumerate().filter(|(number, _)| (number + turn as usize).is_multiple_of(every))
        {
            let name = |e: String| format!("crash at point {number} of recovery {depth}, {}: {e}", point.name());
            // Data stored by another process of the same boot is there, but a power loss may still
            // take it.
            let again = Allowed { boot: before.boot.after(false), ..before.clone() };
            self.reopen(&point.process_crash(), &again, once, turn, depth).map_err(name)?;
            let low = if self.run.ground.setup.kind == MemoryKind::Logged { before.promise.log } else { before.low };
            let again = Allowed { boot: before.boot.after(true), power: true, low, ..before.clone() };
            for state in point.power_losses(&shallow()) {
                self.reopen(&state, &again, None, turn, depth).map_err(|e| name(format!("{}: {e}", state.name())))?;
            }
        }
        Ok(())
    }

    fn reopen(
        &mut self,
        state: &WorldState,
        allowed: &Allowed,
        once: Option<&Tree>,
        turn: u64,
        depth: u32,
    ) -> Result<(), String> {
        self.visited += 1;
        let setup = self.run.ground.setup;
        let world = state.open();
        let nested = depth < 2 && mix(&[turn, self.visited]).is_multiple_of(19);
        if nested {
            world.record(true);
            world.record_stores(true);
        }
        let store = store::open(setup, world, allowed.boot)?;
        store.world.record(false);
        let tree = Tree::read(&store.fs)?;
        self.run.identify(&tree, allowed)?;
        if once.is_some_and(|once| *once != tree) {
            return Err("the tree is another than after an undisturbed recovery".into());
        }
        if nested {
            self.crash_again(&store, allowed, once, turn, depth + 1)?;
        }
        if self.turn(turn, 3, 0) {
            check_at_rest(&store)?;
        }
        Ok(())
    }
}

/// Checks that a store just recovered is sound without a clean end and has no orphans.
fn check_at_rest(store: &Store) -> Result<(), String> {
    let at_rest = store.world.snapshot().process_crash().open();
    let report = store::check(store.setup, &at_rest, false).map_err(|e| format!("after recovery: {e}"))?;
    match report.counts.orphans {
        0 => Ok(()),
        orphans => Err(format!("{orphans} orphans are left after recovery")),
    }
}
