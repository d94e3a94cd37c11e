//! A recorded build under the policies: sections 4.3 to 4.5 of the report.
//!
//! | module | owns |
//! |---|---|
//! | `trace` | the recording: which blocks are modified, freed and read |
//! | `kernel` | a processor, a cache and a disk that run it |
//! | `tables` | tables 4 and 5, figure 7, and the claims about them |
//!
//! Owns: the configurations ([`replay`]). Rules: the recording is `data/build.zst`, made by
//! `scripts/record-build` on ext2 with its metadata. It is stretched until it writes as often as
//! the report's build under periodic update and asynchronous writes, 40,548 times in 3280 s. Where
//! ours differs, a [`Variant`] changes the property that is to blame and nothing else.

mod kernel;
mod tables;
mod trace;

use std::collections::{BTreeMap, BTreeSet};

use shoal_sim::Random;
use shoal_writeback::{Policy, S_NS};

use self::kernel::{Machine, Outcome, Switches};
use self::trace::{Event, Recorded};
use super::Plan;
use super::layout::{BLOCK_BYTES, DiskModel};
use super::points::{AIPU, PU};
use crate::experiment::LabError;
use crate::parallel;

pub use tables::{claims, plot, tables};

const RECORDED: &[u8] = include_bytes!("../../data/build.zst");
const AIPU_30: Policy = Policy::ApproximateInterval { age_ns: 30 * S_NS, grain_ns: 30 * S_NS };
/// Processor time of the report's machine for that of the recording's.
const STRETCH: f64 = 11.8;
/// Larger files are archives, each written four times, and a program. The report links one
/// kernel (blocks).
const LARGE_BLOCKS: u64 = 32;
/// Trials of a configuration, as in the report.
const TRIALS: u64 = 3;

/// The report's figures of a configuration.
#[derive(Clone, Copy, Debug, Default)]
struct Said {
    elapsed_s: Option<f64>,
    charged: Option<u64>,
    processor_s: Option<f64>,
    scanned: Option<u64>,
    written: Option<u64>,
    modified: Option<u64>,
    waits: Option<u64>,
}

/// A change of the machine or of the build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// As in 4.2BSD, at the report's rate.
    Bsd,
    /// Dirty blocks of deleted files are dropped.
    DropsFreed,
    /// The cache knows blocks by file, so that a new file never hits a block of an old one.
    ByFile,
    /// A queued block can be modified.
    Unlocked,
    /// All metadata is delayed.
    DelaysMetadata,
    /// Archives and programs are not written.
    SmallFiles,
    /// The same, and the build is faster, so that updates write as often as the report's.
    Faster,
}

impl Variant {
    const ALL: [Variant; 7] = [
        Variant::Bsd,
        Variant::DropsFreed,
        Variant::ByFile,
        Variant::Unlocked,
        Variant::DelaysMetadata,
        Variant::SmallFiles,
        Variant::Faster,
    ];

    fn name(self) -> &'static str {
        match self {
            Variant::Bsd => "as in 4.2BSD",
            Variant::DropsFreed => "dirty blocks of deleted files are dropped",
            Variant::ByFile => "and the cache knows blocks by file",
            Variant::Unlocked => "a queued block can be modified",
            Variant::DelaysMetadata => "no metadata is synchronous",
            Variant::SmallFiles => "no file over 256 KB",
            Variant::Faster => "and twice as fast",
        }
    }

    fn switches(self) -> Switches {
        let bsd = Switches::BSD;
        match self {
            Variant::DropsFreed => Switches { keeps_freed: false, ..bsd },
            Variant::ByFile => Switches { keeps_freed: false, by_place: false, ..bsd },
            Variant::Unlocked => Switches { is_locked: false, ..bsd },
            Variant::DelaysMetadata => Switches { is_synchronous: false, ..bsd },
            Variant::Bsd | Variant::SmallFiles | Variant::Faster => bsd,
        }
    }
}

/// A configuration of the build, and what it came to.
pub struct Replayed {
    variant: Variant,
    name: &'static str,
    is_delayed: bool,
    said: Said,
    /// One for each trial.
    trials: Vec<Outcome>,
}

impl Replayed {
    fn mean(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        self.trials.iter().map(of).sum::<f64>() / self.trials.len() as f64
    }

    fn count(&self, of: impl Fn(&Outcome) -> u64) -> u64 {
        self.mean(|outcome| of(outcome) as f64).round() as u64
    }

    /// Returns the sizes of the bursts of all trials, sorted.
    fn bursts(&self) -> Vec<u64> {
        let mut bursts: Vec<u64> = self.trials.iter().flat_map(|outcome| outcome.bursts.iter().copied()).collect();
        bursts.sort_unstable();
        bursts
    }

    /// Returns the least size such that bursts up to it contain at least this share of the blocks.
    fn burst_of_share(&self, share: f64) -> u64 {
        let bursts = self.bursts();
        let all: u64 = bursts.iter().sum();
        let mut blocks = 0;
        let enough = |size: &&u64| {
            blocks += **size;
            blocks as f64 >= share * all as f64
        };
        bursts.iter().find(enough).copied().unwrap_or(0)
    }
}

/// Returns the report's configurations with its figures, and Sprite's rule.
fn configurations() -> [(&'static str, Policy, bool, Said); 7] {
    let said = |elapsed: [Option<f64>; 2], charged, [scanned, written, modified, waits]: [u64; 4]| Said {
        elapsed_s: elapsed[0],
        charged,
        processor_s: elapsed[1],
        scanned: Some(scanned),
        written: Some(written),
        modified: Some(modified),
        waits: Some(waits),
    };
    let table_5 = |s, counts| said([None, Some(s)], None, counts);
    [
        ("PU", PU, false, said([Some(3280.0), Some(4.3)], Some(40548), [9531, 9531, 391_000, 8234])),
        ("PU", PU, true, said([Some(3298.0), Some(6.0)], Some(31523), [16749, 16749, 419_000, 8274])),
        ("AIPU-1", AIPU, false, said([Some(3234.0), Some(2.0)], Some(37854), [290_214, 5375, 393_000, 7607])),
        ("AIPU-1", AIPU, true, said([Some(3206.0), Some(2.3)], Some(25966), [508_448, 10023, 426_000, 8121])),
        ("AIPU-30", AIPU_30, false, table_5(2.7, [14593, 5266, 405_000, 7496])),
        ("AIPU-30", AIPU_30, true, table_5(2.7, [25847, 9519, 426_000, 7751])),
        ("Sprite", Policy::SPRITE, true, Said::default()),
    ]
}

/// Leaves out the writes of files of more than `most` blocks.
fn small_files(recorded: &[Recorded], most: u64) -> Vec<Recorded> {
    let mut blocks: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for recorded in recorded {
        if let Event::Modified { block, file, .. } = recorded.event {
            blocks.entry(file).or_default().insert(block);
        }
    }
    let is_large = |file: u64| file != 0 && blocks[&file].len() as u64 > most;
    let kept = |recorded: &Recorded| match recorded.event {
        Event::Modified { file, .. } if is_large(file) => Recorded { ticks: recorded.ticks, event: Event::Idle },
        _ => *recorded,
    };
    recorded.iter().map(kept).collect()
}

/// Runs the build under the report's combinations, under Sprite's rule, and with each variant.
pub fn replay(plan: &Plan) -> Result<Vec<Replayed>, LabError> {
    let broken = |why: String| LabError::Broken { what: "data/build.zst".into(), why };
    let recorded = trace::events(RECORDED).map_err(broken)?;
    let disk = DiskModel::Rz58;
    let small = small_files(&recorded, LARGE_BLOCKS);
    let mut random = Random::new(plan.seed);
    let phases: Vec<u64> = (0..plan.trials.min(TRIALS)).map(|_| random.below(30 * S_NS)).collect();
    let variants = if plan.is_quick { &Variant::ALL[..1] } else { &Variant::ALL[..] };
    let mut runs = vec![];
    for &variant in variants {
        // The variants are about tables 4 and figure 7.
        let rows = configurations().into_iter().take(if variant == Variant::Bsd { 7 } else { 4 });
        for (name, policy, is_delayed, said) in rows {
            let stretch = if variant == Variant::Faster { STRETCH / 2.0 } else { STRETCH };
            let machine = |phase_ns: u64| Machine {
                drive: disk.drive(),
                buffers: disk.buffers(),
                block_bytes: BLOCK_BYTES,
                policy,
                is_delayed,
                order: plan.order,
                stretch,
                phase_ns,
                switches: variant.switches(),
            };
            runs.push((
                variant,
                name,
                is_delayed,
                said,
                phases.iter().map(|phase| machine(*phase)).collect::<Vec<_>>(),
            ));
        }
    }
    let is_small = |variant: Variant| matches!(variant, Variant::SmallFiles | Variant::Faster);
    let of = |variant: Variant| if is_small(variant) { &small } else { &recorded };
    let all: Vec<_> =
        runs.iter().flat_map(|(variant, .., machines)| machines.iter().map(|one| (*variant, one))).collect();
    let outcomes = parallel::map(&all, plan.threads, |(variant, machine)| machine.run(of(*variant)));
    let mut outcomes = outcomes.into_iter();
    let mut replayed = vec![];
    for (variant, name, is_delayed, said, machines) in runs {
        let trials = outcomes.by_ref().take(machines.len()).collect::<Result<_, String>>().map_err(broken)?;
        replayed.push(Replayed { variant, name, is_delayed, said, trials });
    }
    Ok(replayed)
}

fn find<'a>(replayed: &'a [Replayed], variant: Variant, name: &str, is_delayed: bool) -> Option<&'a Replayed> {
    replayed.iter().find(|found| found.variant == variant && found.name == name && found.is_delayed == is_delayed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(policy: Policy, is_delayed: bool, switches: Switches) -> Outcome {
        let disk = DiskModel::Rz58;
        let machine = Machine {
            drive: disk.drive(),
            buffers: disk.buffers(),
            block_bytes: BLOCK_BYTES,
            policy,
            is_delayed,
            order: shoal_sim::mechanical::Order::Fifo,
            stretch: STRETCH,
            phase_ns: S_NS,
            switches,
        };
        machine.run(&trace::events(RECORDED).unwrap()).unwrap()
    }

    #[test]
    fn the_recording_writes_as_often_as_the_reports_build() {
        let found = run(PU, false, Switches::BSD);
        let rate = found.charged as f64 / found.elapsed_s;
        assert!((rate / (40548.0 / 3280.0) - 1.0).abs() < 0.03, "{rate}");
        assert!(found.elapsed_s > found.processor_s && found.synchronous > 0 && found.filled > 0);
    }

    #[test]
    fn a_switch_changes_what_it_says() {
        let bsd = run(AIPU, true, Switches::BSD);
        let of = |switches| run(AIPU, true, switches);
        assert!(of(Switches { keeps_freed: false, ..Switches::BSD }).chosen < bsd.chosen);
        assert!(of(Switches { by_place: false, ..Switches::BSD }).charged > bsd.charged);
        let delayed = of(Switches { is_synchronous: false, ..Switches::BSD });
        assert!(delayed.synchronous == 0 && delayed.elapsed_s < bsd.elapsed_s);
        assert_eq!(bsd.bursts.iter().sum::<u64>(), bsd.chosen);
        assert_eq!(bsd.filled, 0, "all writes are delayed");
    }
}
