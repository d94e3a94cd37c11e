//! The registry of experiments, and the options they share.
//!
//! Owns: [`Experiment`], one variant for each, with its options; [`RunArgs`], the options of all. A
//! new experiment is a module with a type that derives `clap::Args` and implements [`Run`], and its
//! line in [`Experiment`] and in `Experiment::run_of`. Help, completions and manual pages follow
//! from that.

use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand};
use serde::Serialize;

use crate::report::{Report, ReportError};
use crate::target::Failed as TargetError;
use crate::trace::TraceError;
use crate::tree::TreeError;
use crate::{all, conquest, idle_time, inodes, mramfs, netram, ramdisk, small_files, threshold, trees, update_policy};

/// The reason why an experiment could not be run.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("trace: {0}")]
    Trace(#[from] TraceError),
    #[error("tree: {0}")]
    Tree(#[from] TreeError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("report: {0}")]
    Report(#[from] ReportError),
    #[error("{what}: {why}")]
    Option { what: &'static str, why: String },
    /// A figure could not be measured. (A figure that disagrees with the paper is not an error.)
    #[error("{what}: {why}")]
    Broken { what: String, why: String },
}

/// An experiment with its options.
pub trait Run {
    /// The paper whose claims the experiment tests.
    const PAPER: &'static str;

    fn run(&self, common: &Common) -> Result<Report, LabError>;
}

/// Options of every experiment.
#[derive(Clone, Debug, Default, Args)]
pub struct Common {
    /// Measure fewer points with less work, in some seconds; do not quote the figures
    #[arg(long, global = true)]
    pub quick: bool,
    /// Write the tables as CSV, the plots as SVG and the whole report as JSON into DIR
    #[arg(long, value_name = "DIR", global = true)]
    pub out: Option<PathBuf>,
    /// Report as JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// `shoal lab run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    #[command(subcommand)]
    pub experiment: Experiment,
    #[command(flatten)]
    pub common: Common,
}

#[derive(Clone, Debug, Subcommand)]
pub enum Experiment {
    /// All experiments of the papers, one after the other, with a table of all figures; as root also beside other file systems
    All(all::Options),
    /// Network RAM disk: execution and cleaning times of the reliability policies, on a disk trace
    Netram(netram::Options),
    /// Network RAM disk, live: files on it, on a disk as slow as the paper's beside its network, and on Shoal; needs root
    Ramdisk(ramdisk::Options),
    /// Virtual-log disk: how much update in place, LFS and eager writing gain from idle time, on simulated disks
    IdleTime(idle_time::Options),
    /// Update policies: how long reads wait while dirty blocks are written, on simulations of the report's two disks
    UpdatePolicy(update_policy::Options),
    /// Inodes: compressed size and speed of mramfs' compressors and of Shoal's, on real trees
    Inodes(inodes::Options),
    /// Small files: savings and speed of compressors by file size, on real trees
    SmallFiles(small_files::Options),
    /// mramfs: PostMark, and creating and unlinking files, on Shoal's engine in this process and in any directories
    Mramfs(mramfs::Options),
    /// Conquest: small files, large files and PostMark, on several file systems and on Shoal's engine in this process
    Conquest(conquest::Options),
    /// Threshold: which files should be kept in memory? Conquest's open question, on a recorded build, simulated
    Threshold(threshold::Options),
    /// Source trees: everyday work with tar, cp, git, rm and small files, on several file systems
    Trees(trees::Options),
}

impl Experiment {
    fn run_of(&self, common: &Common) -> Result<Report, LabError> {
        match self {
            Experiment::All(options) => options.run(common),
            Experiment::Netram(options) => options.run(common),
            Experiment::Ramdisk(options) => options.run(common),
            Experiment::IdleTime(options) => options.run(common),
            Experiment::UpdatePolicy(options) => options.run(common),
            Experiment::Inodes(options) => options.run(common),
            Experiment::SmallFiles(options) => options.run(common),
            Experiment::Mramfs(options) => options.run(common),
            Experiment::Conquest(options) => options.run(common),
            Experiment::Threshold(options) => options.run(common),
            Experiment::Trees(options) => options.run(common),
        }
    }

    /// Returns whether the experiment mounts file systems and starts servers, which must not outlive
    /// it.
    pub fn makes_mounts(&self) -> bool {
        matches!(self, Experiment::All(_) | Experiment::Ramdisk(_))
    }

    fn paper(name: &str) -> &'static str {
        match name {
            "all" => <all::Options as Run>::PAPER,
            "netram" => <netram::Options as Run>::PAPER,
            "ramdisk" => <ramdisk::Options as Run>::PAPER,
            "idle-time" => <idle_time::Options as Run>::PAPER,
            "update-policy" => <update_policy::Options as Run>::PAPER,
            "inodes" => <inodes::Options as Run>::PAPER,
            "small-files" => <small_files::Options as Run>::PAPER,
            "mramfs" => <mramfs::Options as Run>::PAPER,
            "conquest" => <conquest::Options as Run>::PAPER,
            "threshold" => <threshold::Options as Run>::PAPER,
            "trees" => <trees::Options as Run>::PAPER,
            _ => "",
        }
    }
}

/// An experiment as listed by `shoal lab list`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub name: String,
    pub about: String,
    pub paper: &'static str,
    /// Long names of its own options, without those that all experiments share.
    pub options: Vec<String>,
}

/// A command line that consists of an experiment and its options.
#[derive(Debug, Parser)]
#[command(name = "run", disable_help_subcommand = true)]
struct Line {
    #[command(subcommand)]
    experiment: Experiment,
}

/// Parses the words of an experiment, which begin with its name.
pub(crate) fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Experiment, LabError> {
    let line = Line::try_parse_from(["run"].into_iter().chain(words));
    line.map(|line| line.experiment).map_err(|error| LabError::Option { what: "all", why: error.to_string() })
}

/// Lists all experiments.
pub fn list() -> Vec<Listed> {
    let listed = |command: &clap::Command| Listed {
        name: command.get_name().into(),
        about: command.get_about().map(ToString::to_string).unwrap_or_default(),
        paper: Experiment::paper(command.get_name()),
        options: command
            .get_arguments()
            .filter_map(|option| option.get_long())
            .filter(|name| *name != "help")
            .map(Into::into)
            .collect(),
    };
    Line::command().get_subcommands().map(listed).collect()
}

/// Runs an experiment and writes its files if asked to. Returns the report and the files.
pub fn run(args: &RunArgs) -> Result<(Report, Vec<PathBuf>), LabError> {
    let report = args.experiment.run_of(&args.common)?;
    let files = args.common.out.as_deref().map_or(Ok(vec![]), |directory| report.write(directory))?;
    Ok((report, files))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_says_what_it_is_and_whose() {
        let all = list();
        assert!(all.iter().any(|listed| listed.name == "netram"));
        for listed in all {
            assert!(!listed.about.is_empty() && !listed.paper.is_empty(), "{}", listed.name);
        }
        Line::command().debug_assert();
    }
}
