//! Crash enumeration of the file system with a past and a future (docs/design/testing.md, T2 to T6).
//!
//! Every operation of `workload` runs alone, after a clean mount, an unsynced past, a sync, a
//! checkpoint or a tick, and followed by nothing, an fsync, a sync, a checkpoint or a tick. At
//! every event the machine stops, and every state that the media may be left in is recovered and
//! compared with the states that the run went through. The same goes for each operation of
//! `layouts`, and for random sequences of six. Media calls that fail and a full store are tried,
//! too.
//! `SHOAL_SEED=<n>` starts from another seed. `SHOAL_EVERY=1` leaves no workload out (about 95,000
//! states). `SHOAL_DEEP=1` leaves no state out and runs all pairs of operations. A failure prints
//! the line that runs one state again.

use std::time::Instant;

use crate::crash::explorer::{Sampling, explore, explore_within, guard};
use crate::crash::operation::Operation::{
    Checkpoint, Forget, Fsync, PackInodes, Rename, SpillAll, SpillTick, Sync, Tick, TruncateHeld, Unlink, UnlinkHeld,
};
use crate::crash::run::{Before, Ground, Run, Workload};
use crate::crash::{deep, faults, full_host, layouts, mix, number, workload};
use crate::store::Setup;
use shoal_format::superblock::MemoryKind;
use shoal_fs::RenameMode::Replace;
use shoal_sim::{Budget, Random, due, is_due};

const SEED: u64 = 20_260;
const KINDS: [MemoryKind; 3] = [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Dax];
/// Stores of one kind of memory, each with its workloads; they share the time of a search.
const GROUNDS: usize = 6;
/// Failures after which a search stops.
const FAILURES_MAX: usize = 5;

fn seed() -> u64 {
    number("SHOAL_SEED").unwrap_or(SEED)
}

/// Returns each operation alone, with what may come before and after it.
fn singles(steps: &[workload::Step], with_past: bool) -> Vec<Workload> {
    let mut workloads = Vec::new();
    for step in steps {
        let mut add = |before, operations| workloads.push(Workload { before, operations, must_succeed: true });
        let operation = || step.operation.clone();
        let mut behind = vec![Fsync(step.file), Sync, Checkpoint, Tick];
        if let UnlinkHeld(_) = step.operation {
            behind.push(Forget);
        }
        for before in if with_past { &[Before::Mounted, Before::Young][..] } else { &[Before::Mounted] } {
            add(*before, vec![operation()]);
            for last in &behind {
                add(*before, vec![operation(), last.clone()]);
            }
        }
        for before in if with_past { &[Before::Synced, Before::Sealed, Before::Aged][..] } else { &[] } {
            add(*before, vec![operation()]);
        }
    }
    workloads
}

/// Returns removals of files that take several transactions.
fn removals() -> Vec<Workload> {
    let all = [
        vec![Unlink("many")],
        vec![UnlinkHeld("many"), TruncateHeld(5), Forget],
        vec![Rename("foo", "many", Replace), Tick],
    ];
    all.map(|operations| Workload { before: Before::Mounted, operations, must_succeed: true }).to_vec()
}

fn sequences() -> Vec<Workload> {
    let mut workloads = Vec::new();
    for operations in workload::sequences().into_iter().chain(workload::dictionaries()) {
        for before in [Before::Mounted, Before::Young, Before::Synced, Before::Aged] {
            for last in [None, Some(Sync)] {
                let operations = operations.iter().cloned().chain(last).collect();
                workloads.push(Workload { before, operations, must_succeed: true });
            }
        }
    }
    workloads
}

fn packed_files(steps: &[workload::Step], befores: &[Before]) -> Vec<Workload> {
    let with = |operations: Vec<_>| {
        let all = move |&before: &_| Workload { before, operations: operations.clone(), must_succeed: true };
        befores.iter().map(all).collect::<Vec<_>>()
    };
    let all = workload::packed(steps).into_iter().flat_map(with).enumerate();
    all.filter(|(number, _)| is_due(mix(&[seed(), *number as u64]), 8)).map(|(_, workload)| workload).collect()
}

fn spilled_files(steps: &[workload::Step], befores: &[Before]) -> Vec<Workload> {
    let with = |operations: Vec<_>| {
        let all = move |&before: &_| Workload { before, operations: operations.clone(), must_succeed: false };
        befores.iter().map(all).collect::<Vec<_>>()
    };
    let all = workload::spilled(steps).into_iter().flat_map(with).enumerate();
    all.filter(|(number, _)| is_due(mix(&[seed(), 7, *number as u64]), 8)).map(|(_, workload)| workload).collect()
}

/// Returns each operation on packed inodes, with packing after it.
fn packed(steps: &[workload::Step]) -> Vec<Workload> {
    let mut workloads = Vec::new();
    let mut add = |before, operations| workloads.push(Workload { before, operations, must_succeed: true });
    for before in [Before::Mounted, Before::Young, Before::Synced, Before::Sealed, Before::Aged] {
        add(before, vec![PackInodes]);
    }
    for last in [Sync, Checkpoint, Tick, PackInodes] {
        add(Before::Mounted, vec![PackInodes, last]);
    }
    for step in steps {
        let operation = || step.operation.clone();
        add(Before::Mounted, vec![PackInodes, operation()]);
        add(Before::Young, vec![PackInodes, Sync, operation(), Fsync(step.file)]);
        add(Before::Mounted, vec![PackInodes, operation(), PackInodes]);
    }
    workloads
}

fn pairs(steps: &[workload::Step]) -> Vec<Workload> {
    let mut workloads = Vec::new();
    for first in steps {
        for second in steps {
            let operations = vec![first.operation.clone(), second.operation.clone()];
            workloads.push(Workload { before: Before::Mounted, operations, must_succeed: false });
            let synced = vec![first.operation.clone(), Fsync(first.file), second.operation.clone()];
            workloads.push(Workload { before: Before::Young, operations: synced, must_succeed: false });
        }
    }
    workloads
}

/// Returns operations on every layout: each alone, each followed by its fsync or a sync, and random
/// sequences of six.
fn layouts() -> Vec<Workload> {
    let steps = layouts::operations();
    let mut workloads = singles(&steps, deep());
    if deep() {
        workloads.extend(pairs(&steps));
    } else {
        workloads.retain(|workload| !matches!(workload.operations.last(), Some(Checkpoint | Tick | Forget)));
    }
    workloads.extend(packed_files(&steps, &[Before::Mounted]));
    workloads.extend(spilled_files(&steps, &[Before::Mounted]));
    for seed in 0..if deep() { 2000 } else { 8 } {
        let mut random = Random::new(seed);
        let six: Vec<_> = (0..6).map(|_| &steps[random.below(steps.len() as u64) as usize]).collect();
        let last = [None, Some(Fsync(six[5].file)), Some(Sync)][random.below(3) as usize].clone();
        let operations = six.iter().map(|step| step.operation.clone()).chain(last).collect();
        workloads.push(Workload { before: Before::Mounted, operations, must_succeed: false });
    }
    workloads
}

/// Which workloads and states the run of a kind of memory visits: one in this many.
#[derive(Clone, Copy)]
struct Share {
    workloads: u64,
    states: u64,
    /// Operations on every layout: one state in this many.
    layouts: u64,
}

fn visit(ground: &Ground, workloads: &[Workload], share: Share) -> u64 {
    let start = Instant::now();
    let (mut states, mut failures) = (0, Vec::new());
    let mut visited = 0;
    let mut order: Vec<usize> = (0..workloads.len()).collect();
    if deep() {
        order = Random::new(ground.seed).shuffled(order);
    }
    let budget = Budget::of_a_part(GROUNDS as u32);
    for index in order {
        if visited > 0 && budget.is_spent() {
            break;
        }
        let workload = &workloads[index];
        // The seed decides, too, so that another seed visits other workloads.
        if !is_due(mix(&[ground.seed, index as u64]), share.workloads) {
            continue;
        }
        visited += 1;
        // A run with a time limit leaves some states out, so that it sees more points of a
        // workload.
        let every = match (deep(), budget.is_limited()) {
            (true, false) => 1,
            (true, true) => share.states.div_ceil(8),
            (false, _) => share.states,
        };
        let run = guard(|| Run::new(ground, workload));
        match run.and_then(|run| explore_within(&run, Sampling::one_of(every), Some(&budget))) {
            Ok(visited) => states += visited,
            Err(failure) => failures.push(failure),
        }
        if failures.len() >= FAILURES_MAX {
            break;
        }
    }
    let (kind, seconds) = (ground.setup.kind.name(), start.elapsed().as_secs_f64());
    println!("{kind}, seed {}: {states} states of {visited} workloads in {seconds:.1} s", ground.seed);
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    states
}

fn ground(setup: Setup) -> Ground {
    let preparation = match setup {
        _ if setup == Setup::layouts(setup.kind) => layouts::preparation(),
        Setup { bulk_blocks: 0, .. } => workload::long_preparation(),
        _ => workload::preparation(),
    };
    Ground::new(setup, seed(), preparation).expect("the store is prepared")
}

/// Returns stores, the workloads for each, and the share of them that is visited. `share` is that
/// of the first.
fn grounds(kind: MemoryKind, share: Share) -> [(Ground, Vec<Workload>, Share); GROUNDS] {
    let steps = workload::operations();
    let mut workloads = singles(&steps, true);
    workloads.extend(packed_files(&steps, &[Before::Mounted, Before::Young]));
    if deep() {
        workloads.extend(pairs(&steps));
    }
    let mut long = singles(&workload::long_operations(), false);
    long.extend(removals());
    long.extend(packed_files(&workload::long_operations(), &[Before::Mounted]));
    [
        (ground(Setup::two_tiers(kind)), workloads, share),
        // There are few of these.
        (ground(Setup::tight(kind)), sequences(), Share { workloads: 6, ..share }),
        (ground(Setup::layouts(kind)), layouts(), Share { workloads: 10, states: share.layouts, ..share }),
        (ground(Setup::two_tiers(kind)), packed(&steps), Share { workloads: share.workloads.div_ceil(2), ..share }),
        (
            ground(Setup::two_tiers(kind)),
            spilled_files(&steps, &[Before::Mounted, Before::Young]),
            Share { workloads: 16, ..share },
        ),
        // Trees with a file of thousands of chunks take longest to read.
        (ground(Setup::region_only(kind)), long, Share { states: share.states * 8, ..share }),
    ]
}

fn enumerate(kind: MemoryKind, share: Share) {
    let share = Share { workloads: number("SHOAL_EVERY").unwrap_or(share.workloads), ..share };
    let grounds = grounds(kind, share);
    let states: u64 = grounds.iter().map(|(ground, workloads, share)| visit(ground, workloads, *share)).sum();
    assert_visited(states, 100);
}

#[test]
fn every_operation_on_logged_memory_survives_every_crash() {
    enumerate(MemoryKind::Logged, Share { workloads: 240, states: 20, layouts: 12 });
}

#[test]
fn every_operation_on_battery_memory_survives_every_crash() {
    enumerate(MemoryKind::Battery, Share { workloads: 192, states: 24, layouts: 6 });
}

#[test]
fn every_operation_on_dax_memory_survives_every_crash() {
    // Recording every store costs more than recovering: fewer workloads, more states of each.
    enumerate(MemoryKind::Dax, Share { workloads: 576, states: 160, layouts: 288 });
}

/// Files moved to the other tier by their thresholds, also ones too long for one record.
#[test]
fn every_file_that_changes_its_tier_by_its_threshold_survives_every_crash() {
    let mut workloads = Vec::new();
    for operations in workload::rebalanced() {
        for before in [Before::Mounted, Before::Young] {
            workloads.push(Workload { before, operations: operations.clone(), must_succeed: true });
        }
    }
    let mut states = 0;
    let kinds = [
        (MemoryKind::Logged, false),
        (MemoryKind::Battery, false),
        (MemoryKind::Logged, true),
        (MemoryKind::Dax, false),
    ];
    for (kind, cached) in due(kinds, 2) {
        let setup = Setup { cached, ..Setup::two_tiers(kind) };
        let setup = Setup { region_bytes: 96 << 16, ring_bytes: 512 << 10, bulk_blocks: 30, ..setup };
        let every = if kind == MemoryKind::Dax { 600 } else { 120 };
        states += visit(&ground(setup), &workloads, Share { workloads: 4, states: every, layouts: 1 });
    }
    assert_visited(states, 20);
}

/// Checks that more than `least` states were visited, unless a time limit cut the search short.
fn assert_visited(states: u64, least: u64) {
    assert!(states > least || Budget::of_a_search().is_limited(), "only {states} states were visited");
}

/// A crash between two of the transactions leaves an inode without links whose truncation is unfinished.
#[test]
fn every_removal_in_several_transactions_survives_every_crash() {
    for (kind, every) in [(MemoryKind::Logged, 1), (MemoryKind::Battery, 40), (MemoryKind::Dax, 400)] {
        let states =
            visit(&ground(Setup::region_only(kind)), &removals(), Share { workloads: 1, states: every, layouts: 1 });
        assert_visited(states, 30);
    }
}

/// Log, cache and device lose data independently. A process crash leaves the cache as it was at any
/// store, a power loss clears it, and the device keeps any part of the data that no flush covered.
#[test]
fn every_operation_behind_a_cache_survives_every_crash() {
    let steps = workload::operations();
    let mut workloads = singles(&steps, true);
    workloads.extend(sequences());
    let mut states = 0;
    for kind in due([MemoryKind::Logged, MemoryKind::Battery], 2) {
        let ground = ground(Setup { cached: true, ..Setup::two_tiers(kind) });
        let every = number("SHOAL_EVERY").unwrap_or(80);
        states += visit(&ground, &workloads, Share { workloads: every, states: 24, layouts: 1 });
    }
    assert_visited(states, 50);
}

/// Returns a prepared store behind a cache, with an area for absorbed pages.
fn absorbing_ground(setup: Setup) -> Ground {
    let preparation = workload::preparation().into_iter().chain([Fsync("A/foo")]).collect();
    Ground::new(Setup { cached: true, ..setup }, seed(), preparation).expect("the store is prepared")
}

/// Small writes that an fsync puts into the log: the cache, the device and the log each lose data,
/// and older contents come back over newer ones only if nobody was promised these.
#[test]
fn every_absorbed_write_survives_every_crash() {
    let mut workloads = Vec::new();
    let sequences = workload::absorbed().into_iter();
    let count = number("SHOAL_SEQUENCES").unwrap_or(if deep() { 2000 } else { 16 });
    let random = (0..count).map(|number| workload::absorbed_at_random(&mut Random::new(mix(&[seed(), number]))));
    for operations in sequences.chain(random) {
        for before in [Before::Mounted, Before::Young, Before::Synced, Before::Aged] {
            workloads.push(Workload { before, operations: operations.clone(), must_succeed: false });
        }
    }
    let mut states = 0;
    for (kind, every) in [(MemoryKind::Logged, 12), (MemoryKind::Battery, 48)] {
        let every = number("SHOAL_EVERY").unwrap_or(every);
        // In the tight one, blocks that were freed get another user at once.
        for setup in [Setup::two_tiers(kind), Setup::tight(kind)] {
            states += visit(&absorbing_ground(setup), &workloads, Share { workloads: every, states: 24, layouts: 1 });
        }
    }
    assert_visited(states, 100);
}

/// Runs the state that a failure's line names again. Without one, runs a state of the first
/// workload for each kind.
#[test]
fn single_states_can_be_visited_by_their_numbers() {
    let variable = |name: &str| std::env::var(name).ok();
    let (kind, name) = (variable("SHOAL_KIND"), variable("SHOAL_WORKLOAD"));
    let mut states = 0;
    for memory in KINDS.into_iter().filter(|memory| kind.as_ref().is_none_or(|kind| kind == memory.name())) {
        for (ground, mut workloads, _) in grounds(memory, Share { workloads: 1, states: 1, layouts: 1 }) {
            if name.is_some() && !deep() {
                workloads.extend(pairs(&workload::operations()));
            }
            let workload = match &name {
                Some(name) => workloads.iter().find(|workload| workload.name() == *name),
                None => workloads.first(),
            };
            let Some(workload) = workload else { continue };
            let (point, state) = (number("SHOAL_POINT").or(Some(0)), number("SHOAL_STATE").or(Some(0)));
            let explored = guard(|| Run::new(&ground, workload));
            let explored = explored.and_then(|run| explore(&run, Sampling { every: 1, point, state }));
            states += explored.unwrap_or_else(|failure| panic!("{failure}"));
        }
    }
    assert!(states > 0, "no such kind or workload");
}

#[test]
fn every_call_of_the_media_may_fail_in_every_operation() {
    for kind in due(KINDS, 3) {
        let start = Instant::now();
        let (ground, mut failed) = (ground(Setup::two_tiers(kind)), 0);
        let is_part = Budget::of_a_search().is_limited();
        for (index, step) in Budget::of_a_search().within(workload::operations().iter().enumerate()) {
            // A log has many calls.
            if !is_due(index as u64, if kind == MemoryKind::Logged { 4 } else { 2 }) {
                continue;
            }
            let behind = [Fsync(step.file), Checkpoint, Tick];
            for (_, last) in behind.into_iter().enumerate().filter(|(turn, _)| deep() || index % 3 == *turn) {
                failed += faults::fail_each(&ground, &step.operation, &last).unwrap_or_else(|e| panic!("{e}"));
            }
        }
        for last in [Sync, Checkpoint, PackInodes] {
            failed += faults::fail_each(&ground, &PackInodes, &last).unwrap_or_else(|e| panic!("{e}"));
        }
        for last in [Sync, Fsync("bar"), SpillTick] {
            failed += faults::fail_each(&ground, &SpillAll, &last).unwrap_or_else(|e| panic!("{e}"));
        }
        failed += faults::fail_openings(&ground).unwrap_or_else(|e| panic!("{e}"));
        println!("{}: {failed} failing calls in {:.1} s", kind.name(), start.elapsed().as_secs_f64());
        // How far a search with a time limit gets depends on the machine.
        assert!(failed > if is_part { 0 } else { 100 }, "only {failed} calls were made to fail");
    }
}

#[test]
fn a_store_on_a_full_host_can_be_emptied_and_ends_clean() {
    for setup in due([Setup::two_tiers(MemoryKind::Logged), Setup::region_only(MemoryKind::Logged)], 2) {
        let start = Instant::now();
        let (hosts, files) = full_host::fill_hosts(&ground(setup)).unwrap_or_else(|e| panic!("{e}"));
        println!("{hosts} full hosts, {files} files in {:.1} s", start.elapsed().as_secs_f64());
        assert!(hosts >= 20 && files > 1000, "only {hosts} hosts and {files} files");
    }
}

#[test]
fn a_full_store_can_be_emptied_also_after_a_crash() {
    for kind in KINDS {
        let states = faults::fill(&ground(Setup::two_tiers(kind))).unwrap_or_else(|e| panic!("{}: {e}", kind.name()));
        println!("{}: {states} states of a full store", kind.name());
        assert_visited(states, 5);
    }
}
