//! Crash enumeration of the file system (docs/design/testing.md, T1 to T6).
//!
//! Every single operation of the workload, alone and followed by fsync or sync, on the three kinds of memory with a bulk
//! device that loses writes on its own; `SHOAL_DEEP=1` adds all pairs. Also random sequences, calls of the media that
//! fail, and full stores. A failure names memory, operations, event and state, which are the same in every run:
//! `SHOAL_OP="rename over a file" cargo test --release -p shoal-fs --test crash -- --nocapture`.

mod crash_states;
mod sim_store;

use crash_states::workload::{OPERATIONS, Operation};
use crash_states::{Explorer, Sync};
use shoal_format::superblock::MemoryKind;
use shoal_sim::{Budget, Limits, Random};

fn deep() -> bool {
    std::env::var_os("SHOAL_DEEP").is_some()
}

/// Which of all the deep run comes to first.
fn seed() -> u64 {
    std::env::var("SHOAL_SEED").map_or(1, |seed| seed.parse().expect("SHOAL_SEED is a number"))
}

fn limits() -> Limits {
    if deep() { Limits::default() } else { Limits { subset_units: 2, torn: 1, each: 3, samples: 3 } }
}

/// All operations, or the one asked for.
fn operations() -> Vec<&'static Operation> {
    let only = std::env::var("SHOAL_OP").ok();
    OPERATIONS.iter().filter(|op| only.as_ref().is_none_or(|only| only == op.name)).collect()
}

fn report(what: &str, kind: MemoryKind, explorer: &Explorer, start: std::time::Instant) {
    println!("{what}, {}: {} states in {:.1} s", kind.name(), explorer.states, start.elapsed().as_secs_f64());
}

fn singles(kind: MemoryKind, points: usize) {
    let start = std::time::Instant::now();
    let mut explorer = Explorer::new(kind, limits(), if deep() { usize::MAX } else { points });
    let budget = Budget::of_a_search();
    let mut turns: Vec<_> = operations().into_iter().enumerate().collect();
    if deep() {
        turns = Random::new(seed()).shuffled(turns);
    }
    for (turn, operation) in budget.within(turns) {
        for (number, sync) in [Sync::None, Sync::File, Sync::All].into_iter().enumerate() {
            // The usual run takes turns: one way to sync for each operation. `enumeration` has a share of all of them, too.
            if !deep() && std::env::var_os("SHOAL_OP").is_none() && !(turn + number + kind as usize).is_multiple_of(3) {
                continue;
            }
            if let Err(error) = explorer.explore(&[operation], sync) {
                panic!("{error}\nagain with SHOAL_OP={:?}", operation.name);
            }
        }
    }
    report("single operations", kind, &explorer, start);
    if !deep() {
        return;
    }
    let pairs = operations().into_iter().flat_map(|first| OPERATIONS.iter().map(move |second| [first, second]));
    for pair in Budget::of_a_search().within(Random::new(seed()).shuffled(pairs)) {
        explorer.points = 20;
        explorer.explore(&pair, Sync::All).unwrap_or_else(|error| panic!("{error}"));
    }
    report("and pairs", kind, &explorer, start);
}

#[test]
fn single_operations_on_logged_memory_survive_every_crash() {
    singles(MemoryKind::Logged, 6);
}

#[test]
fn single_operations_on_dax_memory_survive_every_crash() {
    singles(MemoryKind::Dax, 4);
}

#[test]
fn single_operations_on_battery_memory_survive_every_crash() {
    singles(MemoryKind::Battery, 4);
}

#[test]
fn random_sequences_survive_every_crash() {
    for kind in [MemoryKind::Logged, MemoryKind::Dax, MemoryKind::Battery] {
        let start = std::time::Instant::now();
        let mut explorer = Explorer::new(kind, limits(), if deep() { usize::MAX } else { 6 });
        for seed in Budget::of_a_search().within(0..if deep() { 2000 } else { 8 }) {
            let mut random = Random::new(seed);
            let sequence: Vec<&Operation> =
                (0..6).map(|_| &OPERATIONS[random.below(OPERATIONS.len() as u64) as usize]).collect();
            let sync = [Sync::None, Sync::File, Sync::All][random.below(3) as usize];
            explorer.explore(&sequence, sync).unwrap_or_else(|error| panic!("sequence {seed}: {error}"));
        }
        report("sequences of six", kind, &explorer, start);
    }
}
