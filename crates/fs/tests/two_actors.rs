//! Two operations at once at crash points (docs/design/testing.md, T11).
//!
//! Pairs of operations run on stores with a past, on the three kinds of memory, in every schedule
//! with few preemptions. At every media call the machine stops, and every state is opened and
//! compared with the results of both orders and with the promises. The usual run takes a share of
//! the pairs of changes, chosen by `SHOAL_SEED` and `SHOAL_TURN`, which `make test` counts up with
//! each commit. `SHOAL_DEEP=1` takes all pairs, pasts, more
//! preemptions and more states. A failure prints the line that runs one state again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::actors::pairs::{Field, Past, absorbing, general, packing, rebalancing, syncing};
use crate::actors::run::{Count, Extent, Ground, Only};
use crate::actors::schedule::{Bound, Deed, Trace, Watcher, choices, search};
use crate::crash::operation::Operation;
use crate::crash::{deep, mix, number};
use shoal_format::superblock::MemoryKind;
use shoal_fs::RenameMode;
use shoal_sim::{Budget, Limits, Random};

const SEED: u64 = 20_261;
const KINDS: [MemoryKind; 3] = [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Dax];
/// Failures after which no further pair is tried.
const FAILURES_MAX: u64 = 8;

fn extent(budget: Budget) -> Extent {
    if deep() {
        let limits = Limits { subset_units: 5, torn: 6, each: 10, samples: 16 };
        let bound = Bound { preemptions: 3, schedules: 400, budget };
        return Extent { bound, limits, check_every: 5, stores: true };
    }
    let limits = Limits { subset_units: 3, torn: 1, each: 2, samples: 3 };
    Extent { bound: Bound { preemptions: 2, schedules: 24, budget }, limits, check_every: 16, stores: false }
}

fn name(pair: &[Operation; 2]) -> String {
    format!("{:?}; {:?}", pair[0], pair[1])
}

/// Visits the pairs that `wanted` picks, for one kind of memory.
fn visit(
    kind: MemoryKind,
    field: &Field,
    wanted: &dyn Fn(usize, &Past, &[Operation; 2]) -> bool,
    only: &Only,
) -> (Count, Vec<String>) {
    let start = Instant::now();
    let (mut count, mut failures, mut tried) = (Count::default(), Vec::new(), 0);
    let Field { pairs, pasts, .. } = field;
    let seed = number("SHOAL_SEED").unwrap_or(SEED);
    for (turn, past) in pasts.iter().enumerate() {
        let keeps_trimmed = mix(&[seed, turn as u64]).is_multiple_of(2);
        let ground = Ground::new((field.setup)(kind), seed, keeps_trimmed, past)
            .unwrap_or_else(|e| panic!("{}: {e}", past.name));
        let mut chosen: Vec<_> = pairs.iter().enumerate().filter(|(index, pair)| wanted(*index, past, pair)).collect();
        if deep() {
            chosen = Random::new(seed).shuffled(chosen);
        }
        // Each past has its part of the time.
        let budget = Budget::of_a_part(pasts.len() as u32);
        for (_, pair) in budget.within(chosen) {
            if failures.len() as u64 >= number("SHOAL_FAILURES").unwrap_or(FAILURES_MAX) {
                continue;
            }
            tried += 1;
            match ground.explore(pair, &extent(budget), only) {
                Ok(visited) => count += visited,
                Err(failure) => failures.push(failure),
            }
        }
    }
    println!(
        "{}: {} two-actor states ({} of power losses) at {} points of {} schedules of {tried} pairs in {:.1} s",
        kind.name(),
        count.states,
        count.power_losses,
        count.points,
        count.schedules,
        start.elapsed().as_secs_f64(),
    );
    (count, failures)
}

fn explore(kind: MemoryKind, field: &Field, share: u64) {
    let seed = number("SHOAL_SEED").unwrap_or(SEED);
    let share = number("SHOAL_SHARE").unwrap_or(if deep() { 1 } else { share });
    let commit = number("SHOAL_TURN").unwrap_or(0);
    let wanted = |index: usize, past: &Past, pair: &[Operation; 2]| {
        let turn = mix(&[seed, kind as u64, past.operations.len() as u64, index as u64]);
        // Pairs with a syncing operation are where promises are made, so more of them are visited.
        let share = if share == 1 || syncing().contains(&pair[0]) { share } else { 4 * share };
        let often = if pair[0] == Operation::Fsync("G") && past.name == "young" { share.min(3) } else { share };
        turn % often == commit % often
    };
    let (count, failures) = visit(kind, field, &wanted, &Only::default());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    // A commit's share may hold no pair. Each point has its own state at least.
    let Count { states, points, schedules, .. } = count;
    assert!(states >= points && points >= schedules, "{states} states at {points} points of {schedules} schedules");
}

#[test]
fn two_operations_at_once_on_logged_memory_survive_every_crash() {
    explore(MemoryKind::Logged, &general(), 432);
}

#[test]
fn two_operations_at_once_on_battery_memory_survive_every_crash() {
    explore(MemoryKind::Battery, &general(), 64);
}

#[test]
fn two_operations_at_once_on_dax_memory_survive_every_crash() {
    explore(MemoryKind::Dax, &general(), 768);
}

#[test]
fn a_file_that_changes_its_tier_beside_another_operation_survives_every_crash_on_logged_memory() {
    explore(MemoryKind::Logged, &rebalancing(), 216);
}

#[test]
fn a_file_that_changes_its_tier_beside_another_operation_survives_every_crash_on_battery_memory() {
    explore(MemoryKind::Battery, &rebalancing(), 8);
}

#[test]
fn an_absorbed_write_beside_another_operation_survives_every_crash_on_logged_memory() {
    explore(MemoryKind::Logged, &absorbing(), 12);
}

#[test]
fn an_absorbed_write_beside_another_operation_survives_every_crash_on_battery_memory() {
    explore(MemoryKind::Battery, &absorbing(), 6);
}

#[test]
fn packing_beside_another_operation_survives_every_crash_on_logged_memory() {
    explore(MemoryKind::Logged, &packing(), 144);
}

#[test]
fn packing_beside_another_operation_survives_every_crash_on_battery_memory() {
    explore(MemoryKind::Battery, &packing(), 4);
}

#[test]
fn packing_beside_another_operation_survives_every_crash_on_dax_memory() {
    explore(MemoryKind::Dax, &packing(), 192);
}

fn one_pair(kind: MemoryKind, field: &Field, past: &str, pair: [Operation; 2]) {
    let pasts = field.pasts.iter().filter(|at| at.name == past).cloned().collect();
    let alone = Field { setup: field.setup, pasts, pairs: vec![pair] };
    let (count, failures) = visit(kind, &alone, &|_, _, _| true, &Only::default());
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    // A limited search may end before that.
    assert!(Budget::of_a_search().is_limited() || count.schedules > 2, "only {} schedules", count.schedules);
}

/// The sync that is under way when the file moves promises its bytes in the region.
#[test]
fn a_file_that_moves_to_the_bulk_device_beside_an_fsync_of_another_keeps_what_that_promised() {
    for kind in KINDS {
        one_pair(kind, &general(), "young", [Operation::Fsync("G"), Operation::Write("F", 66_000, 30_000, 10)]);
    }
}

/// Programs replace a file by another one without an fsync: a power loss leaves the old contents or the new ones.
#[test]
fn a_file_that_takes_a_name_while_it_moves_or_before_keeps_its_bytes() {
    use Operation::{Fsync, Rebalance, Rename, Write};
    let over = || Rename("N", "L", RenameMode::Replace);
    for kind in KINDS {
        one_pair(kind, &general(), "replaced", [Write("N", 66_000, 30_000, 10), over()]);
        one_pair(kind, &rebalancing(), "replaced", [Rebalance("N", 8192), over()]);
    }
    one_pair(MemoryKind::Logged, &general(), "replaced", [Fsync("G"), Write("F", 66_000, 30_000, 10)]);
}

/// Other programs truncate the file and write it anew. The cut must not be durable before the
/// contents that follow it.
#[test]
fn contents_that_follow_those_cut_off_are_durable_with_the_cut() {
    use Operation::{Checkpoint, Fsync, Sync, Tick, Write};
    for sync in [Fsync("G"), Sync, Tick, Checkpoint] {
        one_pair(MemoryKind::Logged, &general(), "replaced", [sync, Write("F", 100, 300, 13)]);
    }
}

#[test]
fn bytes_cut_off_do_not_come_back_where_the_file_is_appended_to_at_the_cut() {
    for kind in KINDS {
        one_pair(kind, &general(), "cut", [Operation::Sync, Operation::Write("L", 140_000, 3000, 15)]);
    }
}

#[test]
fn a_change_beside_the_packing_of_its_file_is_kept() {
    use Operation::*;
    let changes = [Write("P", 100, 300, 20), Truncate("P", 100_000), Copy("R", 0, "P", 150_000, 20_000)];
    for change in changes {
        for past in ["plain", "half packed"] {
            one_pair(MemoryKind::Logged, &packing(), past, [Pack("P"), change.clone()]);
        }
    }
}

/// Ignores the events of a schedule.
struct Blind;

impl Watcher for Blind {
    fn begins(&mut self, _: usize) {}

    fn returned(&mut self, _: usize, _: bool) {}

    fn position(&self) -> u64 {
        0
    }
}

/// On a busy machine a thread waits for more than the other's locks. That does not end its turn.
#[test]
fn an_actor_that_sleeps_before_the_other_begins_keeps_the_turn() {
    let bound = Bound { preemptions: 2, schedules: 24, budget: Budget::default() };
    let order = Arc::new(Mutex::new(Vec::new()));
    let start = || {
        let first = Arc::new(AtomicBool::new(true));
        let deed = |actor: usize| -> Deed {
            let (order, first) = (order.clone(), first.clone());
            Box::new(move || {
                if first.swap(false, Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(20));
                }
                order.lock().unwrap().push(actor);
                true
            })
        };
        Ok(([deed(0), deed(1)], Blind))
    };
    let done = |_: Blind, trace: &Trace, _: u64| {
        let order = std::mem::take(&mut *order.lock().unwrap());
        assert_eq!(order, choices(&trace.name), "{}", trace.name);
        Ok(())
    };
    assert_eq!(search(bound, start, done), Ok(2));
}

/// Runs the state that a failure's line names again. Without one, runs the first pair.
#[test]
fn single_states_can_be_visited_by_their_names() {
    let variable = |name: &str| std::env::var(name).ok();
    let (kind, past, pair) = (variable("SHOAL_KIND"), variable("SHOAL_PAST"), variable("SHOAL_PAIR"));
    let only =
        Only { schedule: variable("SHOAL_SCHEDULE"), event: number("SHOAL_EVENT"), state: number("SHOAL_STATE") };
    let mut states = 0;
    for memory in KINDS.into_iter().filter(|memory| kind.as_ref().is_none_or(|kind| kind == memory.name())) {
        let wanted = |index: usize, at: &Past, this: &[Operation; 2]| {
            past.as_deref().unwrap_or("synced") == at.name
                && pair.as_ref().map_or(index == 0, |pair| *pair == name(this))
        };
        for field in [general(), packing()] {
            let (count, failures) = visit(memory, &field, &wanted, &only);
            assert!(failures.is_empty(), "{}", failures.join("\n\n"));
            states += count.states;
        }
    }
    assert!(states > 0, "no such kind, past, pair, schedule, event or state");
}
