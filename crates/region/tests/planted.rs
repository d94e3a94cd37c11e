//! Planted bugs (docs/design/testing.md, T7): each ordering rule and check of the region is broken
//! in turn, and the crash enumeration must notice.
//!
//! `cargo test --release -p shoal-region --features planted --test planted -- --nocapture` prints the table.
//! A bug that stays unnoticed within the budget fails the test. Exceptions are listed as needless,
//! with the reason why nothing can go wrong without them under the media's contracts.

mod logged;
mod machine;
mod promise;
#[allow(dead_code, reason = "the other tests use the rest")]
mod slots;
mod witness;

use machine::media::Plant;
use machine::{Plan, explore, limits};
use shoal_format::superblock::MemoryKind;
use shoal_region::planted::{Bug, plant};

/// Runs before a bug counts as unnoticed.
const RUNS: u64 = 40;

/// Rules whose absence breaks no state, and why they are kept.
const NEEDLESS: [(Bug, &str); 2] = [
    (Bug::Detach, "a page still read from an image is only ever overwritten with its own bytes"),
    (Bug::Unverified, "only damage between two mounts tells, which no crash makes; `shoal` has tests with damage"),
];
/// Runs for each needless rule.
const NEEDLESS_RUNS: u64 = 1;

/// First run for bugs that only about one run in a dozen notices.
const FIRST_RUNS: [(Bug, u64); 2] = [(Bug::EpochSync, 32), (Bug::Salt, 12)];

struct Catch {
    by: String,
    run: u64,
    states: u64,
}

/// Returns the failure of a test, if it fails.
fn found(test: fn()) -> Option<String> {
    std::panic::catch_unwind(test).err().map(|_| "a failed assertion".to_owned())
}

fn hunt(kind: MemoryKind, bug: Option<Bug>, media: Plant, runs: u64) -> Result<Catch, u64> {
    // Comparing pages also finds torn pages under an old anchor. Disable the comparison to see
    // whether the rule itself is tested.
    plant(bug.or((media == Plant::InvalidationSync).then_some(Bug::Unverified)));
    let mut states = 0;
    let mut caught = None;
    let first = FIRST_RUNS.iter().find(|(rare, _)| Some(*rare) == bug).map_or(0, |(_, first)| *first);
    let mut last = first;
    for run in first..first + runs {
        last = run;
        // Battery memory loses nothing, so only a crash between two stores can reveal the bug.
        let stores = kind == MemoryKind::Battery;
        let plan = Plan { seed: 77_000 + run, kind, plant: media, steps: 120, limits: limits(), stores };
        if bug == Some(Bug::LatePromise) {
            // This bug needs two operations at once, and no crash.
            caught = promise::a_flush_under_way_is_a_promise().err();
            break;
        }
        if bug == Some(Bug::Vouching) {
            // This bug needs a disk that lies, because no crash loses flushed data.
            caught = witness::lost_appends_are_found().err();
            break;
        }
        if bug == Some(Bug::TouchedCounted) {
            // The counts are wrong, but no piece is given out twice. Only a look at the counts
            // shows it.
            caught = found(slots::a_mount_reads_no_bitmap_that_nothing_asks_for);
            break;
        }
        if bug == Some(Bug::ReserveForAll) {
            caught = found(slots::a_full_region_has_room_for_what_frees_some);
            break;
        }
        let outcome = explore(&plan);
        states += outcome.states;
        if let Some(failure) = outcome.failure {
            caught = Some(failure);
            break;
        }
    }
    plant(None);
    match caught {
        Some(by) => Ok(Catch { by, run: last, states }),
        None => Err(states),
    }
}

#[test]
fn every_planted_bug_is_caught() {
    use MemoryKind::{Battery, Dax, Logged};
    let media: [(&str, MemoryKind, Plant); 7] = [
        ("no fence after a record's append", Dax, Plant::AppendFence),
        ("no fence after applying, before the anchor moves", Dax, Plant::ApplyFence),
        ("no fence after the ring's anchor", Dax, Plant::AnchorFence),
        ("pages not synced before the seal", Logged, Plant::ImageSyncBeforeSeal),
        ("log not synced before the seal (invariant 4)", Logged, Plant::LogSyncBeforeSeal),
        ("old anchor's removal not synced", Logged, Plant::InvalidationSync),
        ("seal not synced before the log is released", Logged, Plant::SealSync),
    ];
    let kind_of = |bug| match bug {
        Bug::ApplyFirst => Battery,
        Bug::ReplayFence | Bug::RingFull => Dax,
        _ => Logged,
    };
    let hook = std::panic::take_hook();
    // A broken rule may end in a failed assertion. That counts as a catch, and its trace is
    // useless.
    std::panic::set_hook(Box::new(|_| {}));
    println!("{:<52} | {:<8} | {:>3} | {:>9} | caught by", "bug", "memory", "run", "states");
    let mut unnoticed = Vec::new();
    // Print results one by one, so that a time-out shows which one was slow.
    let mut tell = |name: String, kind: MemoryKind, outcome: Result<Catch, u64>, needless: Option<&str>| match outcome {
        Ok(Catch { by, run, states }) => {
            // Print only the innermost reason. The text before it says where and how the crash
            // occurred.
            let reason: String = by.rsplit("): ").next().unwrap_or(&by).chars().take(100).collect();
            println!("{name:<52} | {:<8} | {run:>3} | {states:>9} | {reason}", kind.name());
        }
        Err(states) => match needless {
            Some(why) => println!("{name:<52} | {:<8} |   - | {states:>9} | needless: {why}", kind.name()),
            None => {
                println!("{name:<52} | {:<8} |   - | {states:>9} | NOT CAUGHT", kind.name());
                unnoticed.push(name);
            }
        },
    };
    for (name, kind, planted) in media {
        tell(name.to_owned(), kind, hunt(kind, None, planted, RUNS), None);
    }
    for bug in Bug::chosen() {
        let needless = NEEDLESS.iter().find(|(needless, _)| *needless == bug).map(|(_, why)| *why);
        let runs = if needless.is_some() { NEEDLESS_RUNS } else { RUNS };
        tell(format!("{bug:?}"), kind_of(bug), hunt(kind_of(bug), Some(bug), Plant::None, runs), needless);
    }
    std::panic::set_hook(hook);
    assert!(unnoticed.is_empty(), "not caught: {unnoticed:?}");
}
