//! Media calls that fail (testing.md, T6), and a store without room.
//!
//! Rules: an operation whose Nth media call fails, once or for good, returns an error of its
//! contract or succeeds, and never panics. The store is then opened again after a process crash and
//! after a power loss. It is sound, and in the state before the operation, after it, or between. N
//! grows until no call of the operation fails.

use shoal_fs::{Caller, Error, ROOT};
use shoal_sim::{Call, Fault, FaultPlan, Limits};

use super::explorer::guard;
use super::operation::{Actor, Operation, bytes};
use super::run::{Ground, Judge, STEP_NS};
use super::tree::Tree;
use super::{aftermath, deep};
use crate::store::{self, Boot, Store};

const CALLS: [Call; 10] = [
    Call::LogAppend,
    Call::LogSync,
    Call::LogRelease,
    Call::ImageRead,
    Call::ImageWrite,
    Call::ImageReserve,
    Call::ImageSync,
    Call::DiskRead,
    Call::DiskWrite,
    Call::DiskFlush,
];

/// Returns the faults that a call can report. Only some calls can run out of room.
fn faults(call: Call) -> &'static [Fault] {
    match call {
        Call::LogAppend | Call::ImageWrite | Call::ImageReserve | Call::DiskWrite => &[Fault::Io, Fault::NoSpace],
        _ => &[Fault::Io],
    }
}

/// Returns whether an operation on a failed medium may end like this.
fn is_clean(outcome: &Result<(), Error>) -> bool {
    matches!(outcome, Ok(()) | Err(Error::Io(_) | Error::NoSpace(_) | Error::ReadOnly | Error::Failed(_)))
}

/// Fails each media call of `operation` and of the `last` operation after it, one at a time.
/// Returns how many calls failed.
pub fn fail_each(ground: &Ground, operation: &Operation, last: &Operation) -> Result<u64, String> {
    let mut failed = 0;
    let judge = Judge::new(ground, &[operation.clone(), last.clone()])?;
    for call in CALLS {
        // Growing strides reach the late calls of a long operation.
        let mut nth = 0;
        loop {
            let mut hit = false;
            for (turn, &fault) in faults(call).iter().enumerate() {
                for for_good in [false, true] {
                    // After the first call, the usual run alternates between a passing and a
                    // lasting error.
                    if !deep() && nth > 0 && for_good != (nth as usize + turn).is_multiple_of(2) {
                        continue;
                    }
                    let plan = FaultPlan { call, nth, for_good, fault };
                    let name =
                        |e: String| format!("{}: {operation:?}; {last:?} with {plan:?}: {e}", ground.setup.kind.name());
                    hit |= guard(|| fail(ground, &judge, operation, last, plan)).map_err(name)?;
                }
            }
            if !hit {
                break;
            }
            failed += 1;
            nth += if deep() || nth < 6 { 1 } else { nth / 3 };
        }
    }
    Ok(failed)
}

/// Applies both operations with the planned fault, and judges the store afterwards. Returns true if
/// the fault was hit.
fn fail(
    ground: &Ground,
    judge: &Judge<'_>,
    operation: &Operation,
    last: &Operation,
    plan: FaultPlan,
) -> Result<bool, String> {
    let mut held = Vec::new();
    let store = ground.open()?;
    let apply = |operation: &Operation, held: &mut Vec<_>| {
        store.clock.advance(STEP_NS);
        let outcome = operation.apply(&mut Actor { fs: &store.fs, clock: &store.clock, held });
        // A file that the first operation failed to create is missing for the second.
        if is_clean(&outcome) || outcome == Err(Error::NotFound) {
            Ok(outcome)
        } else {
            Err(format!("{operation:?} returns {outcome:?}"))
        }
    };
    store.world.fail(plan);
    let outcomes = (apply(operation, &mut held)?, apply(last, &mut held)?);
    let hit = store.world.fault_hits() > 0;
    if !hit {
        return Ok(false);
    }
    // The store is still readable, as the contract says. Faults are cleared so that reads cannot
    // meet them.
    store.world.clear_faults();
    match Tree::read(&store.fs) {
        // After a failed flush, reading what it may have lost fails until the next opening.
        Err(error) if plan.call == Call::DiskFlush && error.contains("a flush failed before these bytes") => {}
        read => drop(read.map_err(|e| format!("reading the tree afterwards: {e}"))?),
    }
    let point = store.world.snapshot();
    drop(store.fs);
    let mut crashes = vec![(point.process_crash(), false)];
    crashes.extend(point.power_losses(&Limits { subset_units: 1, torn: 1, each: 0, samples: 1 }).map(|s| (s, true)));
    for (state, power) in crashes {
        let name = |e: String| format!("{outcomes:?}, {}: {e}", state.name());
        let boot = store.boot.after(power);
        let again = store::open(ground.setup, state.open(), boot).map_err(name)?;
        let tree = Tree::read(&again.fs).map_err(name)?;
        // No later process trusts the data that a failed flush was to cover.
        let data_lost = power || plan.call == Call::DiskFlush;
        judge.identify(&tree, power, data_lost, &outcomes).map_err(name)?;
        again.fs.shutdown().map_err(|e| name(format!("shutdown: {e}")))?;
        store::check(ground.setup, &again.world, false).map_err(name)?;
    }
    Ok(true)
}

/// Fails each media call of an opening after a crash. The next opening must find the same tree as
/// an opening without faults.
pub fn fail_openings(ground: &Ground) -> Result<u64, String> {
    let mut failed = 0;
    for (power, state) in ground.crashed()? {
        let boot = Boot::first(true).after(power);
        let whole = Tree::read(&store::open(ground.setup, state.open(), boot)?.fs)?;
        for call in CALLS.into_iter().chain([Call::LogRead]) {
            for nth in 0.. {
                let world = state.open();
                world.fail(FaultPlan { call, nth, for_good: false, fault: Fault::Io });
                let outcome = guard(|| Ok(store::try_open(ground.setup, &world, boot)))?;
                if world.fault_hits() == 0 {
                    break;
                }
                failed += 1;
                let name = |e: String| {
                    format!("{}, opened again after call {nth} of {call:?} failed: {e}", ground.setup.kind.name())
                };
                if let Ok(Err(error)) = outcome.map(|opened| opened.map(drop))
                    && !is_clean(&Err(error.clone()))
                {
                    return Err(name(format!("a call that failed is reported as: {error}")));
                }
                let again = world.snapshot().process_crash().open();
                let store = store::open(ground.setup, again, boot.after(false)).map_err(name)?;
                if Tree::read(&store.fs).map_err(name)? != whole {
                    return Err(name("the tree is another one".into()));
                }
                store.fs.shutdown().map_err(|e| name(e.to_string()))?;
                store::check(ground.setup, &store.world, false).map_err(name)?;
            }
        }
    }
    Ok(failed)
}

/// Fills both tiers, crashes, empties the store. Returns the states visited.
pub fn fill(ground: &Ground) -> Result<u64, String> {
    let setup = ground.setup;
    let store = ground.open()?;
    let caller = Caller::default();
    let mut full = [false; 2];
    let mut number = 0u64;
    // Large files until the bulk device is full, then small ones until the region is; the last calls are recorded.
    for (tier, len) in [(0, 200_000), (1, 20_000), (1, 700), (1, 0)] {
        full[tier] = false;
        while !full[tier] {
            number += 1;
            store.clock.advance(1_000_000);
            let name = format!("f{number}");
            let created = store.fs.mknod(&caller, ROOT, name.as_bytes(), 0o644, 0);
            let written = created.and_then(|attr| store.fs.write(attr.ino, 0, &bytes(number, len)));
            match written {
                Ok(done) if done < len => full[tier] = true,
                Ok(_) => {}
                Err(Error::NoSpace(_)) => full[tier] = true,
                Err(error) => return Err(format!("filling, file {number}: {error}")),
            }
            if number > 100_000 {
                return Err("the store is never full".into());
            }
        }
    }
    store.world.record(true);
    for last in [Operation::Sync, Operation::Checkpoint] {
        let outcome = last.apply(&mut Actor { fs: &store.fs, clock: &store.clock, held: &mut Vec::new() });
        outcome.map_err(|e| format!("full, {last:?}: {e}"))?;
    }
    store.world.record(false);
    let mut points = store.world.points();
    points.push(store.world.snapshot());
    let mut states = 0;
    let every = if deep() { 1 } else { points.len().div_ceil(20) };
    for point in points.iter().rev().step_by(every) {
        let mut crashes = vec![(point.process_crash(), false)];
        crashes
            .extend(point.power_losses(&Limits { subset_units: 2, torn: 1, each: 1, samples: 2 }).map(|s| (s, true)));
        for (state, power) in crashes {
            states += 1;
            let name = |e: String| format!("a full store, {}: {e}", state.name());
            let again = guard(|| store::open(setup, state.open(), store.boot.after(power))).map_err(name)?;
            aftermath::examine(again, &super::workload::preparation()).map_err(name)?;
        }
    }
    let Store { world, boot, .. } = store;
    // The process alone crashes, at the end.
    let again = store::open(setup, world.snapshot().process_crash().open(), boot.after(false))?;
    aftermath::examine(again, &[])?;
    Ok(states + 1)
}
