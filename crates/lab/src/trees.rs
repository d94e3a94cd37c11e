//! `shoal lab run trees`: everyday work on a source tree, on live file systems side by side.
//!
//! | module | owns |
//! |---|---|
//! | `shape` | a source tree made from a seed, and its tar file |
//! | `source` | the input for all places: the tar file and the git repository, made once |
//! | `programs` | tar, cp, git and rm as child processes, with a time limit |
//! | `measure` | the work on all places in turn: seconds and rates, run by run |
//! | `figures` | tables, the plot, and what readers must know about them |
//!
//! Owns: the experiment's options. Rules: real programs do the work on trees. The places take turns
//! within each round, in changing order. A missing program leaves its part out, and the report says
//! so. Left out: making the mounts, which needs privileges (`scripts/bench-trees` does it).

mod figures;
mod measure;
pub(crate) mod programs;
pub(crate) mod shape;
mod source;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::experiment::{Common, LabError, Run};
use crate::places::Labelled;
use crate::plan;
use crate::report::Report;

/// A part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Part {
    /// Untar a source tree, copy it with cp -r, remove all trees with rm -rf
    Tree,
    /// git clone the tree, then git status twice: after the kernel's caches are dropped, and again
    Git,
    /// PostMark with 20,000 files and 100,000 transactions
    Postmark,
    /// 1,000 files of 1 KB, each with an fsync
    Fsync,
    /// 20,000 appends of 40 bytes, each a write of its own
    Appends,
    /// 10,000 files of 1 KB by 1, by 2 and by 4 threads
    Threads,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run trees --at shoal=/mnt/shoal --at ext4=/mnt/ext4 --at tmpfs=/dev/shm --out results\n  \
    shoal lab run trees --tree linux-6.6.tar --only tree,git --at old=/mnt/old --at new=/mnt/new\n\n\
    At full scale, the files in one place take up to 1.2 GB. Run it as root: only root can drop the kernel's caches.")]
pub struct Options {
    /// Work in a new directory below DIR, called LABEL in the report; may be repeated
    #[arg(long, value_name = "LABEL=DIR", required = true)]
    pub at: Vec<Labelled>,
    /// Source tree: a directory or a tar file [default: a generated tree, shaped like a kernel's sources]
    #[arg(long, value_name = "DIR|FILE.tar")]
    pub tree: Option<PathBuf>,
    /// Where to make the tar file and the git repository, outside of all places [default: the directory for temporary
    /// files]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Run only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    pub only: Vec<Part>,
    /// Do not drop the kernel's caches before the first git status
    #[arg(long)]
    pub keep_caches: bool,
    /// Seed for the generated tree, the transactions and the order of the places
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of rounds; medians with 90% intervals are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Share of all files, transactions and appends; above 0, at most 1. A tree named with --tree is used whole
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = crate::plan::scale)]
    pub scale: f64,
    /// Most time for each program (seconds)
    #[arg(long, value_name = "N", default_value_t = 900, value_parser = clap::value_parser!(u32).range(1..))]
    pub timeout: u32,
}

/// The plan of runs, after `--quick` is applied.
#[derive(Clone, Debug)]
struct Plan {
    at: Vec<Labelled>,
    tree: Option<PathBuf>,
    scratch: PathBuf,
    parts: Vec<Part>,
    keeps_caches: bool,
    seed: u64,
    runs: u32,
    scale: f64,
    timeout: Duration,
    /// Directories to search for programs, in the form of the environment's `PATH`.
    path: OsString,
}

impl Plan {
    /// Scales a number of files or calls.
    fn scaled(&self, count: u32) -> u32 {
        plan::scaled(count, self.scale)
    }

    fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
}

impl Options {
    fn plan(&self, is_quick: bool) -> Result<Plan, LabError> {
        for (number, place) in self.at.iter().enumerate() {
            // The labels are columns of one table, so they must differ.
            if place.label == figures::OPERATION || self.at[..number].iter().any(|other| other.label == place.label) {
                let why = format!("{} names two columns; give each place a label of its own", place.label);
                return Err(LabError::Option { what: "--at", why });
            }
        }
        let (runs, scale) = plan::amount(is_quick, self.runs, self.scale);
        let parts = plan::parts(&self.only);
        Ok(Plan {
            at: self.at.clone(),
            tree: self.tree.clone(),
            scratch: self.scratch.clone().unwrap_or_else(std::env::temp_dir),
            parts,
            keeps_caches: self.keep_caches,
            seed: self.seed,
            runs,
            scale,
            timeout: Duration::from_secs(self.timeout.into()),
            path: std::env::var_os("PATH").unwrap_or_default(),
        })
    }

    /// Returns the command that repeats the runs.
    fn command(&self, common: &Common) -> String {
        let quick = if common.quick { " --quick" } else { "" };
        let at: String = self.at.iter().map(|place| format!(" --at {place}")).collect();
        let path = |option, path: &Option<PathBuf>| {
            path.as_ref().map_or(String::new(), |path| format!(" --{option} {}", path.display()))
        };
        let (tree, scratch) = (path("tree", &self.tree), path("scratch", &self.scratch));
        let only = plan::only(&self.only);
        let caches = if self.keep_caches { " --keep-caches" } else { "" };
        let Options { seed, runs, scale, timeout, .. } = self;
        format!(
            "shoal lab run trees{quick}{at}{tree}{scratch}{only}{caches} --seed {seed} --runs {runs} --scale {scale} --timeout {timeout}"
        )
    }
}

impl Run for Options {
    const PAPER: &'static str = "none as a whole: daily work on a source tree; PostMark after Katcher: PostMark, A New File System Benchmark (NetApp TR3022, 1997)";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let plan = self.plan(common.quick)?;
        let mut found = measure::measure(&plan)?;
        let mut skipped = std::mem::take(&mut found.skipped);
        if common.quick {
            skipped.insert(0, "--quick: a hundredth of the work, two rounds; figures are not to be quoted".into());
        }
        Ok(Report {
            experiment: "trees".into(),
            command: self.command(common),
            seed: Some(self.seed),
            skipped,
            notes: figures::notes(&plan, &found),
            tables: figures::tables(&found),
            plots: figures::plots(&found),
        })
    }
}
