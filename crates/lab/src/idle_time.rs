//! `shoal lab run idle-time`: section 5.5 of the virtual-log paper, the value of idle time to each
//! system.
//!
//! | module | owns |
//! |---|---|
//! | `system` | a system to compare, and the world in which it runs |
//! | `in_place`, `lfs`, `eager` | UFS, LFS with NVRAM, eager writing with and without NVRAM |
//! | `vlog` | the virtual log inside a simulated drive |
//! | `points` | the systems and disks to run, the workload, and a run |
//! | `figures` | the paper's figures and claims from the runs |
//!
//! Owns: the experiment's options. Disks and file systems are models; the virtual log is the one
//! that serves users. All times are from the simulated clock. Rules: every system gets the same
//! updates. A point without room for a system is left empty, and the report says so.

pub mod eager;
mod figures;
pub mod in_place;
pub mod lfs;
pub mod points;
pub mod system;
pub mod vlog;

use clap::Args;

use crate::experiment::{Common, LabError, Run};
use crate::parallel;
use crate::report::Report;
use figures::{Curve, Measured};
use lfs::First;
use points::{DiskKind, Kind, Point, Setup, measure};
use system::{BLOCK_BYTES, ModelError};

/// Utilisation of the disks of figures 10 and 11 (percent).
const UTILISATION: u32 = 80;
/// Burst size of the runs without idle time (KB).
const FULL_SPEED_BURST_KB: u32 = 512;
const QUICK_BURSTS_KB: [u32; 3] = [128, 512, 2048];
const QUICK_IDLE_MS: [u32; 4] = [0, 200, 1000, 3000];
const QUICK_UTILISATION: [u32; 3] = [40, 80, 95];

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run idle-time --quick\n  \
    shoal lab run idle-time --out results\n  \
    shoal lab run idle-time --disk zoned --bursts-kb 128,1024 --seeds 1")]
pub struct Options {
    /// Disks to simulate
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',',
        default_values_t = [DiskKind::Hp97560, DiskKind::St19101])]
    pub disk: Vec<DiskKind>,
    /// Size of a burst of updates (KB)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [128, 256, 512, 1024, 2048, 5120],
        value_parser = clap::value_parser!(u32).range(4..=65536))]
    pub bursts_kb: Vec<u32>,
    /// Pauses between bursts (ms, simulated); 0 is always included
    #[arg(long, value_name = "LIST", value_delimiter = ',',
        default_values_t = [0, 5, 10, 20, 30, 40, 50, 75, 100, 150, 200, 300, 400, 500, 600, 800, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 10_000],
        value_parser = clap::value_parser!(u32).range(0..=600_000))]
    pub idle_ms: Vec<u32>,
    /// How full the disk is in the runs without idle time (percent of its blocks)
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [5, 10, 20, 30, 40, 50, 60, 70, 80, 85, 90, 95],
        value_parser = clap::value_parser!(u32).range(1..=100))]
    pub utilisation: Vec<u32>,
    /// Size of the write buffer of LFS, of VLFS and of delayed writes (KB)
    #[arg(long, value_name = "KB", default_value_t = 6246, value_parser = clap::value_parser!(u32).range(1024..=1_048_576))]
    pub buffer_kb: u32,
    /// Time in which the host accepts an update, at memory speed (microseconds, simulated)
    #[arg(long, value_name = "US", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub accept_us: u32,
    /// What LFS does first in an idle gap
    #[arg(long, value_enum, default_value_t = First::Write)]
    pub lfs_first: First,
    /// Least number of updates measured at each point
    #[arg(long, value_name = "N", default_value_t = 6000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    pub updates: u64,
    /// First seed for the updates
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of runs at each point, with consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub seeds: u64,
    /// Number of runs at the same time [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

fn sorted<T: Ord + Copy>(values: &[T], also: &[T]) -> Vec<T> {
    let mut values = [values, also].concat();
    values.sort_unstable();
    values.dedup();
    values
}

/// The plan of runs.
struct Plan {
    bursts_kb: Vec<u32>,
    idle_ms: Vec<u32>,
    utilisation: Vec<u32>,
    seeds: Vec<u64>,
    setup: Setup,
}

impl Options {
    fn plan(&self, quick: bool) -> Plan {
        let (seeds, updates) = if quick { (1, self.updates.min(3000)) } else { (self.seeds, self.updates) };
        let or_quick = |all: &[u32], few: &[u32]| if quick { few.to_vec() } else { all.to_vec() };
        Plan {
            bursts_kb: sorted(&or_quick(&self.bursts_kb, &QUICK_BURSTS_KB), &[]),
            idle_ms: sorted(&or_quick(&self.idle_ms, &QUICK_IDLE_MS), &[0]),
            utilisation: sorted(&or_quick(&self.utilisation, &QUICK_UTILISATION), &[UTILISATION]),
            seeds: (self.seed..self.seed.saturating_add(seeds)).collect(),
            setup: Setup {
                buffer_bytes: u64::from(self.buffer_kb) << 10,
                accept_ns: u64::from(self.accept_us) * 1000,
                first: self.lfs_first,
                // About twice the live blocks at 80% utilisation.
                warm_up: if quick { 5000 } else { 10_000 },
                measured: updates,
            },
        }
    }

    /// Returns the command that repeats the figures.
    fn command(&self, common: &Common) -> String {
        let list = |values: &[u32]| values.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let mut command = "shoal lab run idle-time".to_string();
        let mut add = |text: String| command += &format!(" {text}");
        if common.quick {
            add("--quick".into());
        }
        let disks: Vec<&str> = self.disk.iter().map(|disk| disk.name()).collect();
        add(format!("--disk {}", disks.join(",")));
        if !common.quick {
            add(format!("--bursts-kb {}", list(&self.bursts_kb)));
            add(format!("--idle-ms {}", list(&self.idle_ms)));
            add(format!("--utilisation {}", list(&self.utilisation)));
        }
        add(format!("--buffer-kb {} --accept-us {}", self.buffer_kb, self.accept_us));
        if self.lfs_first == First::Clean {
            add("--lfs-first clean".into());
        }
        add(format!("--updates {} --seed {} --seeds {}", self.updates, self.seed, self.seeds));
        command
    }
}

/// Returns the points of one figure without their seeds, in the order of the curves.
fn curves(plan: &Plan, disk: DiskKind) -> Vec<Point> {
    let point = |kind, utilisation, burst_kb: u32, idle_ms: u32| Point {
        kind,
        disk,
        utilisation,
        burst: u64::from(burst_kb) * 1024 / BLOCK_BYTES,
        idle_ns: u64::from(idle_ms) * 1_000_000,
        foresees: true,
        seed: 0,
    };
    let mut points = vec![];
    for kind in Kind::ALL {
        for &burst_kb in &plan.bursts_kb {
            points.extend(plan.idle_ms.iter().map(|&idle_ms| point(kind, UTILISATION, burst_kb, idle_ms)));
        }
        points.extend(plan.utilisation.iter().map(|&percent| point(kind, percent, FULL_SPEED_BURST_KB, 0)));
    }
    for kind in figures::UNFORESEEN {
        for burst_kb in plan.bursts_kb.iter().copied().filter(|burst| figures::UNFORESEEN_BURSTS_KB.contains(burst)) {
            let at = plan.idle_ms.iter().map(|&idle_ms| point(kind, UTILISATION, burst_kb, idle_ms));
            points.extend(at.map(|point| Point { foresees: false, ..point }));
        }
    }
    points
}

impl Run for Options {
    const PAPER: &'static str = "Wang, Anderson, Patterson: Virtual Log Based File Systems for a Programmable Disk (OSDI 1999), section 5.5: figures 10 and 11";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let plan = self.plan(common.quick);
        let disks = sorted(&self.disk, &[]);
        let unseeded: Vec<Point> = disks.iter().flat_map(|&disk| curves(&plan, disk)).collect();
        let mut distinct: Vec<Point> = vec![];
        for point in unseeded {
            if !distinct.contains(&point) {
                distinct.push(point);
            }
        }
        let points: Vec<Point> =
            distinct.iter().flat_map(|point| plan.seeds.iter().map(|&seed| Point { seed, ..*point })).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let outcomes = parallel::map(&points, self.threads.unwrap_or(cores), |point| measure(&plan.setup, point));
        let mut skipped = vec![];
        let mut measured = vec![];
        for (of_seeds, outcomes) in points.chunks(plan.seeds.len()).zip(outcomes.chunks(plan.seeds.len())) {
            let of = || of_seeds[0].to_string();
            let mut latencies = vec![];
            for outcome in outcomes {
                match outcome {
                    Ok(figures) => latencies.push(figures.latency_ms),
                    Err(ModelError::NoRoom(_)) => {}
                    Err(why) => return Err(LabError::Broken { what: of(), why: why.to_string() }),
                }
            }
            if latencies.len() == plan.seeds.len() {
                measured.push(Measured::new(&of_seeds[0], &latencies));
            } else {
                skipped.push(format!("{}: no room", of()));
            }
        }
        if common.quick {
            skipped.insert(0, "--quick: few points, one seed, short runs; figures are not to be quoted".into());
        }
        let curve =
            Curve { disks: &disks, bursts_kb: &plan.bursts_kb, idle_ms: &plan.idle_ms, utilisation: &plan.utilisation };
        Ok(Report {
            experiment: "idle-time".into(),
            command: self.command(common),
            seed: Some(self.seed),
            skipped,
            notes: figures::notes(&plan.setup, plan.seeds.len()),
            tables: figures::tables(&curve, &plan.setup, &measured),
            plots: figures::plots(&curve, &measured),
        })
    }
}
