//! `shoal lab run update-policy`: the measurements of Mogul's report, and the questions it left open, with simulated
//! disks.
//!
//! | module | owns |
//! |---|---|
//! | `layout` | the report's disks with their caches, and the placement of files on them |
//! | `machine` | a cache, a policy, a writer, a reader and a disk in simulated time |
//! | `remote` | a disk behind a network, on a server that may have non-volatile memory |
//! | `points` | the machines to run |
//! | `open` | what the report leaves open: machines, tables and answers |
//! | `build` | a recorded build under the policies: elapsed time, counts and bursts |
//! | `figures` | the report's figures and tables from the runs |
//! | `claims` | the report's claims beside our results |
//!
//! Owns: the experiment's options. The policies are those that serve users (`shoal-writeback`);
//! caches, disks and programs are models. All times are from the simulated clock. Rules: every
//! figure comes from a run, and every run from one seed.

mod build;
mod claims;
mod figures;
pub mod layout;
pub mod machine;
mod open;
mod points;
mod remote;

use clap::{Args, ValueEnum};
use shoal_sim::mechanical::Order;
use shoal_writeback::S_NS;

use crate::experiment::{Common, LabError, Run};
use crate::report::Report;
use layout::DiskModel;

/// The order in which the disk takes its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Queue {
    /// In the order of arrival, as in the report
    Fifo,
    /// In the order of rising addresses
    Elevator,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run update-policy --quick\n  \
    shoal lab run update-policy --out results\n  \
    shoal lab run update-policy --disk rz58 --queue elevator --trials 2")]
pub struct Options {
    /// Disks to simulate
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',', default_values_t = [DiskModel::Rz58, DiskModel::Rz57])]
    pub disk: Vec<DiskModel>,
    /// The order in which a disk serves its requests
    #[arg(long, value_enum, default_value_t = Queue::Fifo)]
    pub queue: Queue,
    /// Number of trials of each configuration, with consecutive seeds
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub trials: u64,
    /// Number of reads in a trial
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub reads: u64,
    /// Pause of the reader between two reads (microseconds, simulated)
    #[arg(long, value_name = "US", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub think_us: u32,
    /// Age from which neither read priority nor shaping holds a block back (seconds)
    #[arg(long, value_name = "S", default_value_t = 90, value_parser = clap::value_parser!(u32).range(30..=3600))]
    pub age_max_s: u32,
    /// Shaping: most writes at the disk at the same time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub depth: u32,
    /// Shaping: most writes in a second
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub writes_per_s: u32,
    /// First seed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of runs at the same time [default: one per processor]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

/// The plan of runs, after `--quick` is applied.
#[derive(Clone, Debug)]
struct Plan {
    disks: Vec<DiskModel>,
    order: Order,
    trials: u64,
    reads: u64,
    think_ns: u64,
    age_max_ns: u64,
    depth: u64,
    writes_per_s: u64,
    seed: u64,
    threads: usize,
    is_quick: bool,
}

impl Options {
    fn plan(&self, is_quick: bool) -> Plan {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let mut disks = self.disk.clone();
        disks.sort_unstable();
        disks.dedup();
        Plan {
            disks,
            order: match self.queue {
                Queue::Fifo => Order::Fifo,
                Queue::Elevator => Order::Elevator,
            },
            trials: if is_quick { 1 } else { self.trials },
            reads: if is_quick { self.reads.min(3000) } else { self.reads },
            think_ns: u64::from(self.think_us) * 1000,
            age_max_ns: u64::from(self.age_max_s) * S_NS,
            depth: self.depth.into(),
            writes_per_s: self.writes_per_s.into(),
            seed: self.seed,
            threads: self.threads.unwrap_or(cores),
            is_quick,
        }
    }

    /// Returns the command that repeats the figures.
    fn command(&self, common: &Common) -> String {
        let disks: Vec<&str> = self.disk.iter().map(|disk| disk.name()).collect();
        let queue = if self.queue == Queue::Fifo { "fifo" } else { "elevator" };
        format!(
            "shoal lab run update-policy{} --disk {} --queue {queue} --trials {} --reads {} --think-us {} --age-max-s {} \
             --depth {} --writes-per-s {} --seed {}",
            if common.quick { " --quick" } else { "" },
            disks.join(",").to_lowercase(),
            self.trials,
            self.reads,
            self.think_us,
            self.age_max_s,
            self.depth,
            self.writes_per_s,
            self.seed,
        )
    }
}

impl Run for Options {
    const PAPER: &'static str = "Mogul: A Better Update Policy (WRL Research Report 94/4), sections 2 and 4: figures 1 to 7, tables 1, 2, 4 and 5";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let plan = self.plan(common.quick);
        let found = points::measure(&plan)?;
        let skipped = if common.quick {
            vec!["--quick: one trial, few reads and points; figures are not to be quoted".into()]
        } else {
            vec![]
        };
        Ok(Report {
            experiment: "update-policy".into(),
            command: self.command(common),
            seed: Some(self.seed),
            skipped,
            notes: figures::notes(&plan),
            tables: figures::tables(&plan, &found),
            plots: figures::plots(&plan, &found),
        })
    }
}
