//! Planted bugs (docs/design/testing.md, T7): rules of the file system are broken one at a time,
//! and the crash tests must notice.
//!
//! `cargo test --release -p shoal-fs --features planted --test planted -- --nocapture` prints the
//! table. Each bug has a hunt, the part of a crash test that is aimed at its rule. The test fails
//! if a hunt finds something without a bug, or if a bug stays unnoticed.

#[allow(dead_code, reason = "a part of it is enough")]
mod absorbed;
#[allow(dead_code, reason = "a part of the pairs is enough")]
mod actors;
#[allow(dead_code, reason = "a part of it is enough")]
mod cold;
mod compacted;
#[allow(dead_code, reason = "the other harness uses the rest")]
mod crash;
#[allow(dead_code, reason = "a part of it is enough")]
mod data_store;
#[allow(dead_code, reason = "a part of it is enough")]
mod devices;
#[allow(dead_code, reason = "tests of their own, run here for what they find")]
mod edges;
#[allow(dead_code, reason = "a part of it is enough")]
mod packing;
#[allow(dead_code, reason = "tests of their own, run here for what they find")]
mod reading;
#[allow(dead_code, reason = "a part of it is enough")]
mod saved;
#[allow(dead_code, reason = "a part of it is enough")]
mod spilling;
#[allow(dead_code, reason = "a part of it is enough")]
mod store;
#[allow(dead_code, reason = "a part of it is enough")]
mod summed;

use std::collections::BTreeMap;

use actors::pairs::pasts;
use actors::run::{Extent, Ground, Only};
use actors::schedule::Bound;
use crash::explorer::{Sampling, explore, guard};
use crash::operation::Operation::{self, *};
use crash::run::{Before, Run, Workload};
use edges::{Edges, KEEP_SIZE, PUNCH_HOLE, STARTS};
use shoal_bulk::planted::Bug as BulkBug;
use shoal_format::superblock::MemoryKind::{self, Logged};
use shoal_fs::RenameMode::Replace;
use shoal_fs::planted::{Bug, plant};
use shoal_sim::{Budget, Limits};
use store::Setup;

const SEED: u64 = 20_261;
/// Runs of [`Hunt::Crowd`], and the steps of each.
const CROWDS: u64 = 12;
const CROWD_STEPS: u64 = 3000;

/// Runs of [`Hunt::Compacted`].
const COMPACTED: u64 = 3;

/// The part of a test in which a bug is looked for. Each reports how many states it visited, or the
/// first failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Hunt {
    /// Two actors: the past, the operations by number, the blocks of the bulk device.
    Pair(&'static str, usize, u64),
    /// Two actors behind a write-back cache: the past, the operations by number.
    CachedPair(&'static str, usize),
    /// A sequence of operations, by number.
    Sequence(usize),
    /// Operations around the end of a file, by how the file begins.
    Edges(&'static str),
    SavedImage,
    /// Threads on inodes that are packed all the time.
    Crowd,
    /// Threads on files whose pieces are moved all the time.
    Compacted,
    /// Bytes that are written in place while their file is packed.
    WrittenMeanwhile,
    /// Objects with the same head in the same slot, one after the other.
    Alike,
    /// Room that is allocated past the end of a file while it is packed.
    RoomMeanwhile,
    /// Packing beside a move to the bulk device.
    BesideMove,
    /// Attributes that change while a file is moved by its threshold.
    AttributesBesideMove,
    /// Random damage to packed files.
    Damage,
    /// Damaged references of objects.
    StrayReferences,
    /// A flipped bit in a spilled payload.
    SpilledDamage,
    /// A spilled payload that is freed while it is read.
    ReadMeanwhile,
    /// A large file that changes between the two steps of a read.
    ReadInSteps,
    /// Bytes that are written while their file is spilled.
    SpilledMeanwhile,
    /// Blocks of the spill file that are freed, in this process and the next.
    Swept,
    /// Crashes while bulk devices are added, emptied and removed.
    Devices,
    /// One bulk device of two, which loses what a failed flush did not cover.
    FailedFlush,
    /// Blocks of a write that failed before a flush did, and the next file that has them.
    GivenBack,
    /// Blocks that were NEW when a flush lost them, written again.
    NewAndLost,
    /// A write that a failed flush and a retry overtake.
    AcrossRetry,
    /// Every call of one bulk device of two fails in every operation.
    EveryFailure,
    /// Memory that is restored from a saved image, beside changes of the list of devices.
    RestoredLists,
    /// Bytes that a process left unsynced when it crashed, and the next one syncs.
    SettledLater,
    /// One bulk device of two, which is missing or older.
    AwayOrOlder,
    /// Another device behind the cache of one that went away.
    Covered,
    InAnotherPlace,
    PushedOut,
    /// A device that holds writes back, and fails a flush of ranges.
    FailedRanges,
    /// Bytes that nobody has synced, on a device that is emptied.
    NewMoves,
    /// Checksums of bulk storage beside crashes.
    Sums,
    /// The same checksums behind a write-back cache.
    SumsBehindCache,
    /// A write over data on a bulk device that fails midway.
    FailedWrite,
    /// A flipped bit on a bulk device.
    Flipped,
    /// A flipped bit beside bytes that are written.
    WrittenInPart,
    /// A flipped bit in a spilled payload beside others.
    Neighbours,
    /// Crashes around small writes that an fsync puts into the log.
    Absorbed,
}

fn pair(number: usize) -> [Operation; 2] {
    match number {
        0 => [Fsync("G"), Write("L", 200_000, 1000, 17)],
        1 => [Fsync("L"), Write("L", 200_000, 1000, 17)],
        2 => [Fsync("G"), Write("F", 66_000, 30_000, 10)],
        3 => [Fsync("G"), Unlink("L")],
        4 => [Sync, Create("new")],
        5 => [Fsync("L"), Create("new")],
        7 => [Write("N", 66_000, 30_000, 10), Rename("N", "L", Replace)],
        8 => [Rename("L", "F", Replace), Create("new")],
        9 => [Fsync("G"), Write("F", 100, 300, 13)],
        10 => [Tick, Write("F", 66_000, 30_000, 10)],
        11 => [Sync, Write("F", 66_000, 30_000, 10)],
        _ => [Tick, Write("L", 65_536, 60_000, 18)],
    }
}

fn sequence(number: usize) -> Vec<Operation> {
    match number {
        0 => vec![Unlink("A/foo"), Write("A/C/foo", 0, 300_000, 140)],
        2 => vec![PackInodes, Chmod("foo", 0o600)],
        3 => vec![PackAll, Write("bar", 30_000, 9000, 111)],
        // More operations follow, because the few states after a removal might all go unchecked.
        4 => vec![PackAll, Unlink("B/foo"), Write("A/bar", 0, 3000, 140), Sync],
        6 => vec![PackAll, SpillAll, Sync],
        7 => vec![Rebalance("A/foo", 1 << 20)],
        5 => vec![Write("foo", 0, 3000, 170), AddDictionary(160), PackAll, AddDictionary(162), PackAll],
        8 => vec![UnlinkHeld("bar"), TruncateHeld(100)],
        _ => vec![Link("foo", "new")],
    }
}

/// A bug of the file system or of its bulk storage.
#[derive(Clone, Copy, Debug)]
enum Planted {
    Fs(Bug),
    Bulk(BulkBug),
}

impl Planted {
    fn chosen() -> Vec<Planted> {
        let fs = Bug::chosen().into_iter().map(Planted::Fs);
        fs.chain(BulkBug::chosen().into_iter().map(Planted::Bulk)).collect()
    }

    fn plant(self) {
        match self {
            Planted::Fs(bug) => plant(Some(bug)),
            Planted::Bulk(bug) => shoal_bulk::planted::plant(Some(bug)),
        }
    }

    fn remove_all() {
        plant(None);
        shoal_bulk::planted::plant(None);
    }

    fn hunt(self) -> Hunt {
        match self {
            Planted::Fs(bug) => hunt_of(bug),
            Planted::Bulk(bug) => hunt_of_bulk(bug),
        }
    }
}

impl std::fmt::Display for Planted {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Planted::Fs(bug) => write!(to, "{bug:?}"),
            Planted::Bulk(bug) => write!(to, "{bug:?}"),
        }
    }
}

fn hunt_of(bug: Bug) -> Hunt {
    match bug {
        Bug::FreshNotNew | Bug::HasNewFlag | Bug::NewIsData => Hunt::Pair("young", 0, 16),
        Bug::MoveFlush | Bug::NeverPromised => Hunt::Pair("synced", 2, 16),
        Bug::BirthByDurable => Hunt::Pair("young", 2, 16),
        Bug::ZeroTailFlush => Hunt::Pair("cut", 0, 16),
        Bug::OrphansStay => Hunt::Pair("synced", 3, 16),
        Bug::SettleLast => Hunt::Pair("young", 4, 16),
        Bug::FsyncSettle | Bug::FsyncPosition => Hunt::Pair("young", 5, 16),
        Bug::LinkCount => Hunt::Sequence(1),
        Bug::ZeroTail => Hunt::Edges("cut within a block"),
        Bug::PartialBlock => Hunt::Edges("a hole before the last block"),
        Bug::PunchEnds => Hunt::Edges("blocks"),
        Bug::CleanTail => Hunt::Edges("a device that fails"),
        Bug::PackedNotFreed | Bug::TripletsStay => Hunt::Sequence(2),
        Bug::UnpackStoresChange => Hunt::Sequence(3),
        Bug::ObjectPiecesStay | Bug::BucketStays => Hunt::Sequence(4),
        Bug::DictionaryNotNoted => Hunt::Sequence(5),
        Bug::PackedOneLook | Bug::PackClaimed => Hunt::Crowd,
        Bug::CompactInUse => Hunt::Compacted,
        Bug::PackedUnseen => Hunt::WrittenMeanwhile,
        Bug::PackedWithRoom => Hunt::RoomMeanwhile,
        Bug::KeptByHead => Hunt::Alike,
        Bug::PackedBesideMove => Hunt::BesideMove,
        Bug::MapBelieved => Hunt::Damage,
        Bug::ReferencesBelieved => Hunt::StrayReferences,
        Bug::MoveBackSplit => Hunt::Sequence(7),
        Bug::MoveSetsTimes => Hunt::AttributesBesideMove,
        Bug::SpillUnflushed => Hunt::Sequence(6),
        Bug::SpilledUnverified => Hunt::SpilledDamage,
        Bug::SpilledOneLook => Hunt::ReadMeanwhile,
        Bug::PlanOutlived => Hunt::ReadInSteps,
        Bug::SpilledUnseen => Hunt::SpilledMeanwhile,
        Bug::SpilledNotCounted | Bug::SpilledNotNoted => Hunt::Swept,
        Bug::DrainUnflushed => Hunt::Devices,
        Bug::MovedStaysNew => Hunt::NewMoves,
        Bug::NeighboursLost => Hunt::Neighbours,
        Bug::SpillDoubtful => Hunt::EveryFailure,
        Bug::NameMeanwhile => Hunt::Pair("replaced", 7, 16),
        Bug::NameKeepsBirth => Hunt::Pair("replaced", 2, 16),
        Bug::RenameUnsettled => Hunt::Pair("replaced", 8, 16),
        Bug::ReplacedUnsettled => Hunt::Pair("replaced", 9, 16),
        Bug::TickUnpromised => Hunt::Pair("young", 10, 16),
        Bug::SyncUnpromised => Hunt::Pair("young", 11, 16),
        Bug::NewNotListed => Hunt::SettledLater,
        Bug::HeldReclaimed => Hunt::Sequence(8),
        Bug::ClearedFirst => Hunt::Absorbed,
    }
}

fn hunt_of_bulk(bug: BulkBug) -> Hunt {
    match bug {
        BulkBug::ClearUnflushed | BulkBug::FlushCoversLater | BulkBug::JoinSubmitted => Hunt::Pair("young", 1, 16),
        BulkBug::JoinNoted => Hunt::CachedPair("young", 1),
        BulkBug::LateTrim => Hunt::Pair("freed", 6, 6),
        BulkBug::ReuseAtOnce => Hunt::Sequence(0),
        BulkBug::ReuseSaved => Hunt::SavedImage,
        BulkBug::SumsOneLook => Hunt::ReadMeanwhile,
        BulkBug::MarkUnflushed | BulkBug::RemoveInUse => Hunt::Devices,
        BulkBug::SuspectsRead | BulkBug::SuspectsForgotten => Hunt::FailedFlush,
        BulkBug::WrittenStaysInDoubt => Hunt::GivenBack,
        BulkBug::WrittenEndsAtOnce => Hunt::NewAndLost,
        BulkBug::AcrossRetry => Hunt::AcrossRetry,
        BulkBug::EpochIgnored => Hunt::AwayOrOlder,
        BulkBug::HeldMarkBelieved => Hunt::Covered,
        BulkBug::PlaceIgnored => Hunt::InAnotherPlace,
        BulkBug::PlaceNotedLate => Hunt::PushedOut,
        BulkBug::RangesTakeAll => Hunt::FailedRanges,
        BulkBug::SumsUnread => Hunt::Flipped,
        BulkBug::PartsUnread => Hunt::WrittenInPart,
        BulkBug::SumsStay => Hunt::FailedWrite,
        BulkBug::LeavesUnmarked | BulkBug::LeavesUnsynced | BulkBug::OpenLeavesKept => Hunt::Sums,
        BulkBug::LeavesUnflushed => Hunt::SumsBehindCache,
        BulkBug::RemoveUnsynced => Hunt::Devices,
        BulkBug::RemoveUnsaved => Hunt::RestoredLists,
        BulkBug::AbsorbedNotRestored
        | BulkBug::RestoredOverHeld
        | BulkBug::RestoredAlways
        | BulkBug::RestoredUnflushed
        | BulkBug::ZerosNotAbsorbed
        | BulkBug::ReleasedNever
        | BulkBug::AbsorbedOfFreed => Hunt::Absorbed,
    }
}

/// Explores two actors on a store with the past of this name.
fn go_pair(past: &str, number: usize, blocks: u64, cached: bool) -> Result<u64, String> {
    let limits = Limits { subset_units: 3, torn: 1, each: 2, samples: 4 };
    let bound = Bound { preemptions: 2, schedules: 40, budget: Budget::default() };
    let extent = Extent { bound, limits, check_every: 1, stores: false };
    let past = pasts().into_iter().find(|other| other.name == past).expect("there is such a past");
    let setup = Setup { bulk_blocks: blocks, cached, ..actors::pairs::setup(MemoryKind::Logged) };
    // Trims are carried out, so a late one shows.
    let ground = Ground::new(setup, SEED, false, &past)?;
    ground.explore(&pair(number), &extent, &Only::default()).map(|count| count.states)
}

/// Runs a search that panics if it finds something. It counts as one state.
fn one(search: impl FnOnce()) -> Result<u64, String> {
    search();
    Ok(1)
}

/// Runs the hunt. Returns how many states it visited, or the failure.
fn go(hunt: Hunt) -> Result<u64, String> {
    guard(|| match hunt {
        Hunt::Pair(past, number, blocks) => go_pair(past, number, blocks, false),
        Hunt::CachedPair(past, number) => go_pair(past, number, 16, true),
        Hunt::Sequence(number) => {
            let ground = crash::run::Ground::new(Setup::tight(Logged), SEED, crash::workload::preparation())?;
            let workload = Workload { before: Before::Mounted, operations: sequence(number), must_succeed: true };
            explore(&Run::new(&ground, &workload)?, Sampling::one_of(1))
        }
        Hunt::Edges(start) => hunt_edges(start),
        Hunt::SavedImage => Ok(saved::explore(0)),
        Hunt::Compacted => one(|| (0..COMPACTED).for_each(|seed| compacted::beside_writers(seed, 2000))),
        Hunt::Crowd => {
            (0..CROWDS).for_each(|seed| cold::crowd(seed, CROWD_STEPS));
            Ok(CROWDS * CROWD_STEPS)
        }
        Hunt::WrittenMeanwhile => one(packing::written_meanwhile),
        Hunt::Alike => one(packing::alike),
        Hunt::RoomMeanwhile => one(packing::room_meanwhile),
        Hunt::BesideMove => one(packing::beside_a_move),
        Hunt::AttributesBesideMove => one(packing::attributes_beside_a_move),
        Hunt::SpilledDamage => one(spilling::damaged),
        Hunt::ReadMeanwhile => one(spilling::read_meanwhile),
        Hunt::ReadInSteps => one(reading::changed_between),
        Hunt::SpilledMeanwhile => one(spilling::written_meanwhile),
        Hunt::Swept => one(spilling::swept),
        Hunt::Devices => Ok((0..3).map(|seed| devices::explore(devices::setup(Logged), seed, 3)).sum()),
        Hunt::FailedFlush => one(|| devices::doubt::failed_flush(Logged)),
        Hunt::NewAndLost => one(|| devices::doubt::new_and_lost(Logged)),
        Hunt::AcrossRetry => one(|| devices::doubt::across_a_retry(Logged)),
        Hunt::GivenBack => one(|| devices::doubt::given_back(Logged)),
        Hunt::EveryFailure => Ok(devices::every_failure(Logged)),
        Hunt::RestoredLists => one(devices::restored_lists),
        Hunt::SettledLater => one(|| devices::settled_in_the_next_life(Logged)),
        Hunt::AwayOrOlder => one(|| devices::away::away_or_older(Logged)),
        Hunt::Covered => one(|| devices::away::behind_another_ones_cache(Logged)),
        Hunt::InAnotherPlace => one(|| devices::away::in_another_place(Logged)),
        Hunt::PushedOut => one(|| devices::away::pushed_out_by_a_mark(Logged)),
        Hunt::Sums => Ok(summed::lives(summed::setup(Logged))),
        Hunt::SumsBehindCache => Ok(summed::lives(Setup { cached: true, ..summed::setup(Logged) })),
        Hunt::Flipped => Ok(summed::flipped()),
        Hunt::FailedWrite => Ok(summed::failed_write()),
        Hunt::WrittenInPart => Ok(summed::written_in_part()),
        Hunt::Neighbours => Ok(summed::neighbours()),
        Hunt::NewMoves => one(|| devices::new_bytes_move(Logged)),
        Hunt::FailedRanges => one(|| devices::failed_flush_of_ranges(Logged)),
        Hunt::Absorbed => hunt_absorbed(),
        Hunt::Damage => Ok(packing::damage::damages(0, 60).1),
        Hunt::StrayReferences => {
            let works = packing::WORKS.into_iter();
            Ok(works.map(|(what, work)| packing::stray_references(what, work)).sum())
        }
    })
}

/// Explores sequences with absorbed writes.
fn hunt_absorbed() -> Result<u64, String> {
    [absorbed::absorbed, absorbed::freed, absorbed::newer_is_held, absorbed::full_area]
        .iter()
        .for_each(|scene| scene(Logged));
    let mut states = 0;
    let setup = Setup { cached: true, ..Setup::two_tiers(Logged) };
    let preparation = crash::workload::preparation().into_iter().chain([Fsync("A/foo")]).collect();
    let ground = crash::run::Ground::new(setup, SEED, preparation)?;
    for operations in crash::workload::absorbed() {
        for before in [Before::Mounted, Before::Young] {
            let workload = Workload { before, operations: operations.clone(), must_succeed: false };
            states += explore(&Run::new(&ground, &workload)?, Sampling::one_of(16))?;
        }
    }
    Ok(states)
}

/// Tries operations around the end of a file that begins as `name` says. Returns how many cases
/// there were, or the first failure.
fn hunt_edges(name: &str) -> Result<u64, String> {
    let mut edges = Edges::new(MemoryKind::Logged);
    if name == "a device that fails" {
        for nth in 0..4 {
            edges.failing_device(nth, 150_001, 3000)?;
        }
        return Ok(edges.cases);
    }
    let start = STARTS.iter().find(|start| start.name == name).ok_or_else(|| format!("no start {name}"))?;
    // Past the end, and not at the cut.
    let after =
        [Write("f", 215_000, 1000, 7), Truncate("f", 250_000), Fallocate("f", PUNCH_HOLE | KEEP_SIZE, 100, 200)];
    for operation in &after {
        (0..8).try_for_each(|turn| edges.case(start, operation, turn))?;
    }
    Ok(edges.cases)
}

#[test]
fn every_planted_bug_is_caught() {
    let hook = std::panic::take_hook();
    // A broken rule may end in a failed assertion. That counts as a catch, and its trace is of no
    // use.
    std::panic::set_hook(Box::new(|_| {}));
    println!("{:<18} | {:<42} | {:>7} | caught by", "bug", "hunt", "states");
    let mut hunts: BTreeMap<Hunt, Result<u64, String>> = BTreeMap::new();
    let mut wrong = Vec::new();
    for bug in Planted::chosen() {
        let hunt = bug.hunt();
        let sound = hunts.entry(hunt).or_insert_with(|| go(hunt)).clone();
        bug.plant();
        let found = go(hunt);
        Planted::remove_all();
        let (states, by) = match (sound, found) {
            (Err(failure), _) => {
                wrong.push(format!("{hunt:?} fails without a bug: {failure}"));
                ("-".to_owned(), "FAILS WITHOUT IT".to_owned())
            }
            (Ok(states), Ok(_)) => {
                wrong.push(format!("{bug} is not caught"));
                (states.to_string(), "NOT CAUGHT".to_owned())
            }
            (Ok(states), Err(failure)) => {
                // A difference in the bytes says more than one in the names.
                let mut lines = failure.lines().filter(|line| !line.contains("run it again")).map(str::trim);
                let last = lines.clone().next_back().unwrap_or_default();
                let reason = lines.find(|line| line.contains(" byte ")).unwrap_or(last);
                (states.to_string(), reason.chars().take(110).collect())
            }
        };
        println!("{:<18} | {:<42} | {states:>7} | {by}", bug.to_string(), format!("{hunt:?}"));
    }
    std::panic::set_hook(hook);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
