//! `shoal lab run ramdisk`: section 4 of the Network RamDisk paper, live.
//!
//! | module | owns |
//! |---|---|
//! | `world` | processes, mounts, loop devices and network namespaces, and their removal |
//! | `donors` | the donors, on loopback or each behind a shaped link |
//! | `places` | the file systems to compare: on a throttled disk, on network RAM disks, Shoal |
//! | `disk` | a disk of memory, throttled to the paper's ratio of disk to network |
//! | `probe` | the speed of a block device |
//! | `work` | the paper's benchmarks in a directory |
//! | `measure` | the benchmarks at all places in turn: seconds and rates, run by run |
//! | `claims` | the paper's figures beside ours, with verdicts and causes |
//! | `figures` | tables, plots, and what readers must know about them |
//!
//! Owns: the experiment's options. Rules: all times are wall time of real processes. The disk's
//! throttle follows from the measured speed of the unreliable network RAM disk and the paper's own
//! figures, and is set before any benchmark runs. The places take turns within each round, in
//! changing order. Everything made is removed at the end and after a failure; the command line runs
//! the experiment in namespaces of its own, so that nothing outlives it when it is killed. Left
//! out: the paper's machines, of which only the ratio of disk to network is imitated.

mod claims;
mod disk;
mod donors;
mod figures;
mod measure;
mod places;
mod probe;
mod work;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::experiment::{Common, LabError, Run};
use crate::plan;
use crate::report::Report;

/// Share of the work, and number of rounds, under `--quick`.
const QUICK: f64 = 0.05;
const QUICK_RUNS: u32 = 2;
/// How fast DEC's disks of the time turned, the RZ57 of Mogul's report among them.
const RPM: u32 = 3600;

/// A benchmark of the paper's section 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Part {
    /// Tables 2 and 3: a tree of 28 MB in 1,075 files, unpacked with tar, searched with find and grep
    Tree,
    /// Table 4: reads and rewrites of 4 sets of 99 files
    Iostone,
    /// Figures 8 and 9: 2,000 files of 1, 4 and 16 KB created and deleted
    Sizes,
    /// Figure 10: a file written and read sequentially
    Sequential,
    /// Figures 11 and 12: 1,024 to 16,384 files of 2 KB created and deleted
    Counts,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run ramdisk --quick\n  \
    shoal lab run ramdisk --namespaces --only sizes,counts --out results\n\n\
    Needs root, and the programs nbdfuse, fusermount3, losetup, mke2fs, mount and umount; with --namespaces also ip and tc. \
    Donors lend up to 2 GiB of this machine's memory.")]
pub struct Options {
    /// Run only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Put each donor into a network namespace of its own, behind a link of --link
    #[arg(long)]
    pub namespaces: bool,
    /// Rate of each link with --namespaces (Mbit/s)
    #[arg(long, value_name = "N", default_value_t = 155, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub link: u32,
    /// The program that lends memory, serves disks and mounts stores [default: `shoal` beside this program]
    #[arg(long, value_name = "FILE")]
    pub shoal: Option<PathBuf>,
    /// Turns of the disk a minute; 0: it does not turn
    #[arg(long, value_name = "N", default_value_t = RPM, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub rpm: u32,
    /// Seed for the tree, the contents, the order of deletions, and the order of the places
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of rounds; medians with 90% intervals are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Share of the paper's files; above 0, at most 1
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = crate::plan::scale)]
    pub scale: f64,
    /// Most time for each program and each benchmark (seconds)
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: u32,
}

/// The plan of runs, after `--quick` is applied.
#[derive(Clone, Debug)]
struct Plan {
    parts: Vec<Part>,
    /// The rate of each donor's link (Mbit/s); none: all donors on loopback.
    link: Option<u32>,
    shoal: PathBuf,
    rpm: u32,
    seed: u64,
    runs: u32,
    scale: f64,
    timeout: Duration,
}

impl Plan {
    /// Scales a number of files, to at least four.
    fn scaled(&self, count: u32) -> u32 {
        plan::scaled(count, self.scale).max(4)
    }
}

impl Options {
    fn plan(&self, is_quick: bool) -> Result<Plan, LabError> {
        let shoal = match &self.shoal {
            Some(path) => path.clone(),
            None => std::env::current_exe()
                .map_err(|error| LabError::Option { what: "--shoal", why: format!("{error}; name the program") })?
                .with_file_name("shoal"),
        };
        // Children run in another directory.
        let shoal = std::fs::canonicalize(&shoal).map_err(|error| {
            let why = format!("{}: {error}; build it, or name another with --shoal", shoal.display());
            LabError::Option { what: "--shoal", why }
        })?;
        let (runs, scale) = match is_quick {
            true => (self.runs.min(QUICK_RUNS), self.scale.min(QUICK)),
            false => (self.runs, self.scale),
        };
        Ok(Plan {
            parts: plan::parts(&self.only),
            link: self.namespaces.then_some(self.link),
            shoal,
            rpm: self.rpm,
            seed: self.seed,
            runs,
            scale,
            timeout: Duration::from_secs(self.timeout.into()),
        })
    }

    /// Returns the command that repeats the runs.
    fn command(&self, common: &Common) -> String {
        let quick = if common.quick { " --quick" } else { "" };
        let only = plan::only(&self.only);
        let link = if self.namespaces { format!(" --namespaces --link {}", self.link) } else { String::new() };
        let shoal = self.shoal.as_ref().map_or(String::new(), |path| format!(" --shoal {}", path.display()));
        let Options { rpm, seed, runs, scale, timeout, .. } = self;
        format!(
            "shoal lab run ramdisk{quick}{only}{link}{shoal} --rpm {rpm} --seed {seed} --runs {runs} --scale {scale} --timeout {timeout}"
        )
    }
}

impl Run for Options {
    const PAPER: &'static str = "Flouris, Markatos: The Network RamDisk: Using Remote Memory on Heterogeneous NOWs (1998), section 4: tables 2 to 4, figures 8 to 12";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let mut report = Report {
            experiment: "ramdisk".into(),
            command: self.command(common),
            seed: Some(self.seed),
            skipped: measure::missing(self.namespaces),
            notes: vec![],
            tables: vec![],
            plots: vec![],
        };
        if !report.skipped.is_empty() {
            return Ok(report);
        }
        let plan = self.plan(common.quick)?;
        if common.quick {
            let what = format!("--quick: {QUICK} of the files, {} rounds; figures are not to be quoted", plan.runs);
            report.skipped.push(what);
        }
        let mut found = measure::measure(&plan)?;
        report.skipped.append(&mut found.skipped);
        report.notes = figures::notes(&plan, &found);
        report.tables = figures::tables(&plan, &found);
        report.plots = figures::plots(&found);
        Ok(report)
    }
}
