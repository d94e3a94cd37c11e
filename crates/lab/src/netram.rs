//! `shoal lab run netram`: the simulation of section 2.3.4 of the Network RamDisk paper.
//!
//! | module | owns |
//! |---|---|
//! | `model` | the engine under a network in simulated time |
//! | `points` | the disks to run, and the size of their donors |
//! | `figures` | the paper's figures and table from the runs |
//!
//! Owns: the experiment's options, and the choice of requests. The paper's trace (12 days of the
//! busiest disk of a traced machine) is not public in that form; a week of one workstation's main
//! disk is. A disk sized to what the trace touches is full, so that cleaning happens. Rules:
//! without a trace a synthetic workload replaces it, and the report says so first.

mod figures;
pub mod model;
pub mod points;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::experiment::{Common, LabError, Run};
use crate::network::Network;
use crate::report::Report;
use crate::trace::shape::{Footprint, Summary, replicate};
use crate::trace::synthetic::Workload;
use crate::trace::{self, Kind, Request};
use model::{ModelError, Pace};
use points::{Figures, Room, Setup, Variant, measure_all};

/// Location of the trace beside a checkout.
const TRACE_BESIDE: &str = "../shared/data/ajw.1week.srt";
/// Requests of a quick run.
const QUICK_REQUESTS: usize = 12_000;
const QUICK_EXTRA: [u32; 4] = [10, 20, 50, 100];
/// Extra space at which the paper makes its claims (percent).
const CLAIMED_AT: u32 = 20;
const BLOCK_BYTES: u32 = 1024;
const BUFFER_BLOCKS: u16 = 8;

/// Size of the simulated disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiskSize {
    /// All blocks the trace reads or writes
    Touched,
    /// The blocks the trace writes; reads of other blocks are left out
    Written,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run netram --quick\n  \
    shoal lab run netram --trace ajw.1week.srt --out results\n  \
    shoal lab run netram --trace mine.csv --copies 4 --latency-us 50 --mbit 10000")]
pub struct Options {
    /// Trace to replay, in DiskSim's SRT format; or, in a file named *.csv, lines of
    /// `seconds,read|write,offset_bytes,length_bytes` [default: ../shared/data/ajw.1week.srt if it is there, else a
    /// synthetic workload]
    #[arg(long, value_name = "FILE", conflicts_with = "synthetic")]
    pub trace: Option<PathBuf>,
    /// Run the synthetic workload even if there is a trace
    #[arg(long)]
    pub synthetic: bool,
    /// Device number of the disk in the trace, such as 0x8000008 [default: the busiest disk]
    #[arg(long, value_name = "DEVICE", value_parser = device)]
    pub device: Option<u32>,
    /// Size of the simulated disk
    #[arg(long, value_enum, default_value = "touched")]
    pub disk: DiskSize,
    /// Start with an empty disk; otherwise every block is written once before the measurement
    #[arg(long)]
    pub empty: bool,
    /// Replay the trace N times side by side on a disk N times as large
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub copies: u32,
    /// Delay of each copy after the previous one (seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
    pub copy_shift_s: u32,
    /// Extra space of the storage donors, in percent of the disk; 20 is always included
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [5, 10, 15, 20, 30, 50, 75, 100],
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub extra: Vec<u32>,
    /// Number of storage donors; one more donor holds the parity
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(2..=15))]
    pub donors: u8,
    /// Latency of a message (microseconds, simulated)
    #[arg(long, value_name = "US", default_value_t = Network::ATM.latency_us, value_parser = not_negative)]
    pub latency_us: f64,
    /// Bandwidth of the client's link (Mbit/s)
    #[arg(long, value_name = "MBIT", default_value_t = Network::ATM.mbit, value_parser = positive)]
    pub mbit: f64,
    /// When requests arrive
    #[arg(long, value_enum, default_value = "back-to-back")]
    pub pace: Pace,
    /// Send a cache whose blocks have waited this long (milliseconds, simulated); 0: send only full caches, as in the
    /// paper
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub timeout_ms: u32,
    /// Seed for the synthetic workload
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of requests in the synthetic workload
    #[arg(long, value_name = "N", default_value_t = 40_000)]
    pub requests: usize,
    /// Number of runs at the same time [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

fn device(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "write a number, such as 0x8000008".into())
}

fn not_negative(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|value: &f64| (0.0..=1e9).contains(value)).ok_or("write a number from 0 to 1e9".into())
}

fn positive(text: &str) -> Result<f64, String> {
    not_negative(text).ok().filter(|value| *value >= 1e-3).ok_or("write a number from 0.001 to 1e9".into())
}

/// The requests, and their origin.
struct Load {
    source: String,
    device: Option<u32>,
    seed: Option<u64>,
    requests: Vec<Request>,
    blocks: u64,
    extents: usize,
    skipped: Vec<String>,
}

impl Options {
    fn load(&self, quick: bool) -> Result<Load, LabError> {
        let beside = Path::new(TRACE_BESIDE);
        let path = self.trace.as_deref().or((!self.synthetic && beside.exists()).then_some(beside));
        let mut skipped = vec![];
        let (source, device, seed, mut requests) = match path {
            Some(path) => {
                let (device, requests) = trace::of_device(&trace::open(path)?, self.device)?;
                (path.display().to_string(), Some(device), None, requests)
            }
            None => {
                if !self.synthetic {
                    skipped.push(format!(
                        "no trace at {TRACE_BESIDE}: a synthetic workload is run instead, and the paper's figures are not \
                         comparable; name a trace with --trace"
                    ));
                }
                let workload = Workload { seed: self.seed, requests: self.requests, ..Workload::default() };
                (format!("synthetic workload, seed {}", self.seed), None, Some(self.seed), workload.requests())
            }
        };
        if quick && requests.len() > QUICK_REQUESTS {
            skipped.push(format!("--quick: {} of {} requests are run", QUICK_REQUESTS, requests.len()));
            requests.truncate(QUICK_REQUESTS);
        }
        let writes = requests.iter().filter(|request| request.kind == Kind::Write);
        let footprint = match self.disk {
            DiskSize::Touched => Footprint::of(&requests, BLOCK_BYTES),
            DiskSize::Written => Footprint::of(writes, BLOCK_BYTES),
        };
        let dense = footprint.compact(&requests);
        if dense.len() < requests.len() {
            skipped.push(format!("{} reads of blocks that are never written", requests.len() - dense.len()));
        }
        let bytes = footprint.blocks() * u64::from(BLOCK_BYTES);
        if dense.is_empty() {
            return Err(trace::TraceError::Empty.into());
        }
        Ok(Load {
            source,
            device,
            seed,
            requests: replicate(&dense, bytes, self.copies, u64::from(self.copy_shift_s) * 1_000_000_000),
            blocks: footprint.blocks() * u64::from(self.copies),
            extents: footprint.extents(),
            skipped,
        })
    }

    /// Returns the command that repeats the figures.
    fn command(&self, common: &Common) -> String {
        let mut command = "shoal lab run netram".to_string();
        let mut add = |text: String| command += &format!(" {text}");
        if common.quick {
            add("--quick".into());
        }
        if let Some(trace) = &self.trace {
            add(format!("--trace {}", trace.display()));
        }
        if self.synthetic {
            add("--synthetic".into());
        }
        if let Some(device) = self.device {
            add(format!("--device {device:#x}"));
        }
        if self.disk == DiskSize::Written {
            add("--disk written".into());
        }
        if self.empty {
            add("--empty".into());
        }
        if self.copies > 1 {
            add(format!("--copies {} --copy-shift-s {}", self.copies, self.copy_shift_s));
        }
        let network = Network { latency_us: self.latency_us, mbit: self.mbit };
        if network != Network::ATM {
            add(format!("--latency-us {} --mbit {}", self.latency_us, self.mbit));
        }
        if self.donors != 8 {
            add(format!("--donors {}", self.donors));
        }
        if self.pace == Pace::Trace {
            add("--pace trace".into());
        }
        if self.timeout_ms > 0 {
            add(format!("--timeout-ms {}", self.timeout_ms));
        }
        if self.extra != [5, 10, 15, 20, 30, 50, 75, 100] {
            add(format!("--extra {}", self.extra.iter().map(u32::to_string).collect::<Vec<_>>().join(",")));
        }
        if self.trace.is_none() && (self.seed, self.requests) != (1, 40_000) {
            add(format!("--seed {} --requests {}", self.seed, self.requests));
        }
        command
    }

    fn extra(&self, quick: bool) -> Vec<u32> {
        let mut extra = if quick { QUICK_EXTRA.to_vec() } else { self.extra.clone() };
        extra.push(CLAIMED_AT);
        extra.sort_unstable();
        extra.dedup();
        extra
    }
}

impl Run for Options {
    const PAPER: &'static str = "Flouris, Markatos: Network RamDisk (1998), section 2.3.4: figures 6 and 7, table 1";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let load = self.load(common.quick)?;
        let setup = Setup {
            requests: &load.requests,
            blocks: load.blocks,
            block_bytes: BLOCK_BYTES,
            buffer_blocks: BUFFER_BLOCKS,
            donors: self.donors.into(),
            network: Network { latency_us: self.latency_us, mbit: self.mbit },
            pace: self.pace,
            timeout_ms: self.timeout_ms,
            fill: !self.empty,
        };
        let extra = self.extra(common.quick);
        let fixed = [Variant::NONE, Variant::CACHED, Variant::CACHED_HOT, Variant::MIRRORED];
        let fixed = fixed.map(|variant| (variant, Room::Plenty));
        let causes = figures::CAUSES.map(|variant| (variant, Room::Extra(CLAIMED_AT)));
        // Start the fullest disks first, because they take longest.
        let striped = |&extra: &u32| figures::FIGURE_7.map(|variant| (variant, Room::Extra(extra)));
        let points: Vec<(Variant, Room)> = extra.iter().flat_map(striped).chain(causes).chain(fixed).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let outcomes = measure_all(&setup, &points, self.threads.unwrap_or(cores));
        let mut skipped = load.skipped;
        let mut runs: Vec<Figures> = vec![];
        for (variant, room, outcome) in outcomes {
            let of = || match room {
                Room::Extra(extra) => format!("{} at {extra}% extra space", variant.name()),
                Room::Plenty => variant.name(),
            };
            match outcome {
                Ok(figures) => runs.push(figures),
                // Too little room for this policy is a result. Anything else is a fault.
                Err(
                    why @ (ModelError::Refused(_) | ModelError::Failed { why: shoal_netram::DiskError::NoSpace, .. }),
                ) => {
                    skipped.push(format!("{}: {why}", of()));
                }
                Err(why) => return Err(LabError::Broken { what: of(), why: why.to_string() }),
            }
        }
        let world = figures::World {
            source: &load.source,
            device: load.device,
            summary: Summary::of(&load.requests, BLOCK_BYTES),
            extents: load.extents,
            setup: &setup,
            extra: &extra,
            claimed_at: CLAIMED_AT,
        };
        Ok(Report {
            experiment: "netram".into(),
            command: self.command(common),
            seed: load.seed,
            skipped,
            notes: figures::notes(&world),
            tables: figures::tables(&world, &runs),
            plots: figures::plots(&world, &runs),
        })
    }
}
