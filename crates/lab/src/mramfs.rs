//! `shoal lab run mramfs`: mramfs' benchmarks of the file system, chapter 5 of the thesis.
//!
//! | module | owns |
//! |---|---|
//! | `variants` | the ways in which the engine can keep the files, and the store in this process for each |
//! | `measure` | the workloads on all places in turn: times, and the contents of the region |
//! | `build` | a build of a generated program |
//! | `figures` | tables and plots |
//! | `claims` | the thesis's figures beside ours |
//!
//! Owns: the experiment's options. The workloads are PostMark, the creation and unlinking of empty
//! files, and a build. Rules: places take turns within each run, so that disturbances of the machine
//! affect all of them. All runs have the same seed, so their spread is the machine's. Left out:
//! mounts of other file systems, which the user makes (`scripts/bench-mramfs` does).

mod build;
mod claims;
mod figures;
mod measure;
pub(crate) mod variants;

use clap::Args;
use shoal_fs::Method;
use variants::Packing;

use crate::experiment::{Common, LabError, Run};
use crate::places::Labelled;
use crate::plan;
use crate::report::Report;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run mramfs --out results\n  \
    shoal lab run mramfs --at shoal=/mnt/shoal --at tmpfs=/dev/shm --at ext2=/mnt/ext2 --out results\n\n\
    Shoal's engine runs in this process, in ordinary memory. At full scale, a run through a mount takes about an hour, most of it for \
    empty files (--rounds).")]
pub struct Options {
    /// Also run in a new directory below DIR, called LABEL in the report; may be repeated. The thesis's figures stand beside those of the labels shoal, tmpfs, ext2 and xfs
    #[arg(long, value_name = "LABEL=DIR")]
    pub at: Vec<Labelled>,
    /// Run only in the directories of --at, not on the engine in this process
    #[arg(long, requires = "at")]
    pub no_engine: bool,
    /// Number of rounds of empty files at full scale; 0: none [default: 4000, as in the thesis]
    #[arg(long, value_name = "N", default_value_t = 4000, hide_default_value = true)]
    pub rounds: u32,
    /// As --rounds, in the directories of --at
    #[arg(long, value_name = "N", default_value_t = 4000, hide_default_value = true)]
    pub rounds_at: u32,
    /// Number of C files of the build at full scale; 0: no build
    #[arg(long, value_name = "N", default_value_t = 684)]
    pub build_files: u32,
    /// Seed for the files and transactions
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of runs of each workload at each place; the median is shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Share of the thesis's files, transactions and rounds; above 0, at most 1
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = plan::scale)]
    pub scale: f64,
    /// Share of a processor that packing may use beside the workload (percent); 0: only idle time
    #[arg(long, value_name = "PERCENT", default_value_t = shoal_fs::PACK_LOAD, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub load: u32,
    /// How to compress packed data: auto, lz4, zstd, zstd:LEVEL or off
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    pub compress: Method,
}

/// The plan of runs, after `--quick` is applied.
#[derive(Clone, Debug)]
struct Plan {
    at: Vec<Labelled>,
    has_engine: bool,
    /// Rounds of empty files at full scale, on the engine and in directories.
    rounds: [u32; 2],
    build_files: u32,
    seed: u64,
    runs: u32,
    scale: f64,
    packing: Packing,
}

impl Options {
    fn plan(&self, is_quick: bool) -> Plan {
        let (runs, scale) = plan::amount(is_quick, self.runs, self.scale);
        let packing = Packing { method: self.compress, load: self.load };
        let (has_engine, rounds, build_files) = (!self.no_engine, [self.rounds, self.rounds_at], self.build_files);
        Plan { at: self.at.clone(), has_engine, rounds, build_files, seed: self.seed, runs, scale, packing }
    }

    /// Returns the command that repeats the runs.
    fn command(&self, common: &Common) -> String {
        let quick = if common.quick { " --quick" } else { "" };
        let at: String = self.at.iter().map(|path| format!(" --at {path}")).collect();
        let Options { rounds, rounds_at, build_files, seed, runs, scale, load, compress, .. } = self;
        let engine = if self.no_engine { " --no-engine" } else { "" };
        format!(
            "shoal lab run mramfs{quick}{at}{engine} --rounds {rounds} --rounds-at {rounds_at} --build-files {build_files} --seed {seed} --runs {runs} --scale {scale} --load {load} --compress {compress}"
        )
    }
}

impl Run for Options {
    const PAPER: &'static str = "Edel: MRAMFS, a compressing file system for byte-addressable non-volatile RAM (thesis, UCSC), chapter 5: figures 5.3 to 5.5, appendix C";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let plan = self.plan(common.quick);
        let found = measure::measure(&plan)?;
        let mut skipped = vec![];
        if self.at.is_empty() {
            skipped.push("figures 5.3 to 5.5 in comparison: --at names no mounts".into());
        }
        if !found.builds.missing.is_empty() {
            skipped.push(format!("the build: {} not in PATH; install them", found.builds.missing.join(" and ")));
        }
        if common.quick {
            skipped.insert(0, "--quick: a hundredth of the work, two runs; figures are not to be quoted".into());
        }
        Ok(Report {
            experiment: "mramfs".into(),
            command: self.command(common),
            seed: Some(self.seed),
            skipped,
            notes: figures::notes(&plan, &found),
            tables: figures::tables(&plan, &found),
            plots: figures::plots(&plan, &found),
        })
    }
}
