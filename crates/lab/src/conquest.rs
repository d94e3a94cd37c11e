//! `shoal lab run conquest`: section 5 of the Conquest paper, on live file systems side by side.
//!
//! | module | owns |
//! |---|---|
//! | `large` | the Sprite LFS large-file benchmark |
//! | `measure` | the benchmarks on all places in turn: rates, run by run |
//! | `figures` | tables, plots, and the paper's figures beside ours |
//!
//! Owns: the experiment's options. Rules: the places take turns within each round, in changing
//! order, so that disturbances of the machine affect all of them. The same seed makes the same
//! calls at each place. Left out: making the mounts, which needs privileges
//! (`scripts/bench-conquest` does it).

mod figures;
mod large;
mod measure;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::experiment::{Common, LabError, Run};
use crate::places::Labelled;
use crate::plan;
use crate::report::Report;

/// A benchmark of the paper's section 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Part {
    /// 5.1.1: 10,000 files of 1 KB created, read, unlinked
    SmallFiles,
    /// 5.1.2: files of 1 MB, 1.01 MB and 100 MB written and read
    LargeFiles,
    /// 5.2: PostMark with 5,000 to 30,000 files
    Postmark,
    /// 5.3: PostMark with 0 to 10% of large files
    Mixed,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run conquest --at shoal=/mnt/shoal --at ext4=/mnt/ext4 --at tmpfs=/dev/shm --out results\n  \
    shoal lab run conquest --only small-files --fsync --at shoal=/mnt/shoal --at ext4=/mnt/ext4\n\n\
    The results for files of 100 MB and for mixed PostMark mean little if all the files fit in memory: limit the memory for them.")]
pub struct Options {
    /// Run in a new directory below DIR, called LABEL in the report; may be repeated
    #[arg(long, value_name = "LABEL=DIR")]
    pub at: Vec<Labelled>,
    /// Run only in the directories of --at, not on the engine in this process
    #[arg(long, requires = "at")]
    pub no_engine: bool,
    /// Transactions of PostMark with large files, which move hundreds of gigabytes in the paper's number
    #[arg(long, value_name = "N", default_value_t = measure::TRANSACTIONS, value_parser = clap::value_parser!(u32).range(1..))]
    pub mixed_transactions: u32,
    /// Keep large files of the engine in this process in DIR, in a store with battery memory on /dev/shm
    #[arg(long, value_name = "DIR", conflicts_with = "no_engine")]
    pub disk: Option<PathBuf>,
    /// Run only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Also run small files and PostMark with an fsync of each written file
    #[arg(long)]
    pub fsync: bool,
    /// Seed for the files, transactions and random records
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of rounds; medians with 90% intervals are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Share of the paper's files and transactions; above 0, at most 1
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = crate::plan::scale)]
    pub scale: f64,
}

/// The plan of runs, after `--quick` is applied.
#[derive(Clone, Debug)]
struct Plan {
    at: Vec<Labelled>,
    has_engine: bool,
    mixed_transactions: u32,
    disk: Option<PathBuf>,
    parts: Vec<Part>,
    has_fsync: bool,
    seed: u64,
    runs: u32,
    scale: f64,
}

impl Plan {
    /// Scales a number of the paper.
    fn scaled(&self, count: u32) -> u32 {
        plan::scaled(count, self.scale)
    }
}

impl Options {
    fn plan(&self, is_quick: bool) -> Plan {
        let (runs, scale) = plan::amount(is_quick, self.runs, self.scale);
        let parts = plan::parts(&self.only);
        let (at, has_engine, has_fsync) = (self.at.clone(), !self.no_engine, self.fsync);
        Plan {
            at,
            has_engine,
            mixed_transactions: self.mixed_transactions,
            disk: self.disk.clone(),
            parts,
            has_fsync,
            seed: self.seed,
            runs,
            scale,
        }
    }

    /// Returns the command that repeats the runs.
    fn command(&self, common: &Common) -> String {
        let quick = if common.quick { " --quick" } else { "" };
        let at: String = self.at.iter().map(|place| format!(" --at {place}")).collect();
        let engine = if self.no_engine { " --no-engine" } else { "" };
        let disk = self.disk.as_ref().map(|disk| format!(" --disk {}", disk.display())).unwrap_or_default();
        let mixed = match self.mixed_transactions {
            measure::TRANSACTIONS => String::new(),
            fewer => format!(" --mixed-transactions {fewer}"),
        };
        let only = plan::only(&self.only);
        let fsync = if self.fsync { " --fsync" } else { "" };
        let Options { seed, runs, scale, .. } = self;
        format!(
            "shoal lab run conquest{quick}{at}{engine}{disk}{mixed}{only}{fsync} --seed {seed} --runs {runs} --scale {scale}"
        )
    }
}

impl Run for Options {
    const PAPER: &'static str = "Wang, Reiher, Popek, Kuenning: Conquest: Better Performance Through a Disk/Persistent-RAM Hybrid File System (USENIX 2002), section 5: figures 5.1 to 5.6";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let plan = self.plan(common.quick);
        let mut found = measure::measure(&plan)?;
        let mut skipped = std::mem::take(&mut found.skipped);
        if common.quick {
            skipped.insert(0, "--quick: a hundredth of the work, two rounds; figures are not to be quoted".into());
        }
        Ok(Report {
            experiment: "conquest".into(),
            command: self.command(common),
            seed: Some(self.seed),
            skipped,
            notes: figures::notes(&plan),
            tables: figures::tables(&found),
            plots: figures::plots(&found),
        })
    }
}
