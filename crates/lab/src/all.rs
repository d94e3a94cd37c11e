//! All experiments of the papers, one after the other.
//!
//! | module | owns |
//! |---|---|
//! | `peers` | the file systems that the live experiments compare, made for this run |
//!
//! Owns: the list of experiments with their options; a report that says of each of the papers'
//! figures and tables what these runs show. Rules: an experiment that fails is named, and the others
//! go on. Each writes its own report as soon as it is done.

mod peers;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde_json::Value;

use crate::exhibits::{EXHIBITS, Paper, State};
use crate::experiment::{Common, LabError, Run, RunArgs, parse};
use crate::places::Labelled;
use crate::report::{Cell, Report, Table};
use peers::Peers;

const EXPERIMENTS: [&str; 8] =
    ["netram", "ramdisk", "idle-time", "update-policy", "inodes", "small-files", "mramfs", "conquest"];

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run all --quick --out results\n  \
    shoal lab run all --trace week.srt --tree /usr --out results\n\n\
    As root, ramfs, ext2 and a store of Shoal are mounted for the experiments on live file systems, unless --at names places. \
    With --quick it takes some minutes, else hours.")]
pub struct Options {
    /// Run only these experiments
    #[arg(long, value_name = "EXPERIMENT", value_delimiter = ',', value_parser = EXPERIMENTS)]
    pub only: Vec<String>,
    /// The disk trace for `netram`, in DiskSim's SRT format; a synthetic workload without it
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Trees for `inodes` and `small-files`
    #[arg(long, value_name = "DIR", num_args = 1.., default_value = "/usr")]
    pub tree: Vec<PathBuf>,
    /// Run `mramfs` and `conquest` in a new directory below DIR, called LABEL in the report; may be repeated
    #[arg(long, value_name = "LABEL=DIR")]
    pub at: Vec<Labelled>,
}

/// An experiment, and the directory for its files below that of `--out`.
struct Step {
    words: Vec<String>,
    below: &'static str,
}

/// What became of a step.
struct Done {
    command: String,
    seconds: f64,
    /// Its report as JSON, or why there is none.
    report: Result<Value, String>,
}

impl Options {
    /// `disk`: a directory on a disk for the large files of the engine in this process.
    fn steps(&self, peers: &[Labelled], disk: Option<&Path>) -> Vec<Step> {
        let step = |name: &str, words: Vec<String>| Step {
            words: std::iter::once(name.to_string()).chain(words).collect(),
            below: "",
        };
        let paths = |option: &str, paths: &[PathBuf]| -> Vec<String> {
            std::iter::once(option.into()).chain(paths.iter().map(|path| path.display().to_string())).collect()
        };
        let load = || match &self.trace {
            Some(trace) => paths("--trace", std::slice::from_ref(trace)),
            None => vec!["--synthetic".into()],
        };
        let at = if self.at.is_empty() { peers } else { &self.at };
        let labelled = at.iter().flat_map(|at| ["--at".into(), at.to_string()]).collect::<Vec<String>>();
        let disk = disk.map(|disk| paths("--disk", &[disk.to_path_buf()]));
        let empty = load().into_iter().chain(["--empty".into()]).collect();
        let mut steps = vec![
            step("netram", empty),
            Step { below: "filled", ..step("netram", load()) },
            step("ramdisk", vec![]),
            step("idle-time", vec![]),
            step("update-policy", vec![]),
            step("inodes", paths("--tree", &self.tree)),
            step("small-files", paths("--tree", &self.tree)),
            step("mramfs", labelled.clone()),
            step("conquest", labelled.into_iter().chain(disk.unwrap_or_default()).collect()),
        ];
        steps.retain(|step| self.only.is_empty() || self.only.contains(&step.words[0]));
        steps
    }
}

fn carry_out(step: &Step, common: &Common) -> Done {
    let command = format!("shoal lab run {}{}", step.words.join(" "), if common.quick { " --quick" } else { "" });
    eprintln!("{command}");
    let began = Instant::now();
    let one = Common { out: common.out.as_ref().map(|out| out.join(step.below)), ..common.clone() };
    let report = parse(step.words.iter().map(String::as_str))
        .and_then(|experiment| crate::experiment::run(&RunArgs { experiment, common: one }))
        .map(|(report, _)| {
            for skipped in &report.skipped {
                eprintln!("  SKIPPED: {skipped}");
            }
            report.to_json()
        })
        .map_err(|error| error.to_string());
    let seconds = began.elapsed().as_secs_f64();
    match &report {
        Ok(_) => eprintln!("  {seconds:.0} s"),
        Err(why) => eprintln!("  failed after {seconds:.0} s: {why}"),
    }
    Done { command, seconds, report }
}

/// Returns what the runs show of an exhibit. The first report of an experiment counts.
fn state(done: &[Done], experiment: &str, of: impl Fn(&Value) -> State) -> State {
    let reports = done.iter().filter_map(|done| done.report.as_ref().ok());
    reports.filter(|report| report["experiment"] == experiment).map(of).next().unwrap_or(State::NotRun)
}

fn tables(done: &[Done]) -> Vec<Table> {
    let mut exhibits = Table::new(
        "exhibits",
        "The figures and tables of the papers: what these runs show",
        &["paper", "of", "experiment", "state", "shows"],
    );
    let mut counts = State::ALL.map(|state| (state, 0u64));
    for paper in Paper::ALL {
        for exhibit in EXHIBITS.iter().filter(|exhibit| exhibit.paper == paper) {
            let found = state(done, exhibit.experiment, |report| exhibit.state(report));
            counts.iter_mut().filter(|(state, _)| *state == found).for_each(|(_, count)| *count += 1);
            let cells = [paper.name(), exhibit.label, exhibit.experiment, found.name(), exhibit.shows];
            exhibits.push(cells.map(Cell::from).into());
        }
    }
    let mut states = Table::new("states", "How many of the papers' figures and tables", &["state", "count"]);
    for (state, count) in counts {
        states.push(vec![state.name().into(), count.into()]);
    }
    let mut runs = Table::new("runs", "The runs (wall time)", &["command", "seconds", "result"]);
    for done in done {
        let result = done.report.as_ref().map_or_else(|why| format!("failed: {why}"), |_| "done".into());
        runs.push(vec![done.command.as_str().into(), Cell::Number(done.seconds, 0), result.into()]);
    }
    vec![exhibits, states, runs]
}

impl Run for Options {
    const PAPER: &'static str = "all five: `shoal lab list` names their figures and tables";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let mut skipped = vec![];
        let peers = match self.at.is_empty() {
            true => {
                Peers::make(common.quick).map_err(|error| skipped.push(format!("other file systems: {error}"))).ok()
            }
            false => None,
        };
        let places = peers.as_ref().map_or(&[][..], Peers::places);
        let steps = self.steps(places, peers.as_ref().map(Peers::host));
        let done: Vec<Done> = steps.iter().map(|step| carry_out(step, common)).collect();
        let failed = done.iter().filter_map(|done| Some((&done.command, done.report.as_ref().err()?)));
        skipped.extend(failed.map(|(command, why)| format!("{command}: {why}")));
        if let Some(peers) = peers {
            skipped.extend(peers.close().into_iter().map(|left| format!("left behind: {left}; remove it by hand")));
        }
        Ok(Report {
            experiment: "all".into(),
            command: format!("shoal lab run all{}", if common.quick { " --quick" } else { "" }),
            seed: None,
            skipped,
            notes: vec![],
            tables: tables(&done),
            plots: vec![],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_are_command_lines_that_name_every_experiment_of_an_exhibit() {
        let options = Options { only: vec![], trace: None, tree: vec!["/usr".into(), "/etc".into()], at: vec![] };
        let steps = options.steps(&["ext2=/mnt".parse().unwrap()], Some(Path::new("/disk")));
        for step in &steps {
            parse(step.words.iter().map(String::as_str)).unwrap();
        }
        for exhibit in EXHIBITS {
            assert!(steps.iter().any(|step| step.words[0] == exhibit.experiment), "{exhibit:?}");
            assert!(EXPERIMENTS.contains(&exhibit.experiment), "{exhibit:?}");
        }
        let only = Options { only: vec!["netram".into()], ..options };
        assert_eq!(only.steps(&[], None).len(), 2, "from an empty and from a filled disk");
    }

    #[test]
    fn an_experiment_that_fails_leaves_its_exhibits_not_run() {
        let done = [
            Done { command: "a".into(), seconds: 1.0, report: Err("no disk".into()) },
            Done { command: "b".into(), seconds: 1.0, report: Ok(serde_json::json!({"experiment": "netram"})) },
        ];
        assert_eq!(state(&done, "ramdisk", |_| State::Shown), State::NotRun);
        assert_eq!(state(&done, "netram", |_| State::Shown), State::Shown);
        let all = tables(&done);
        assert_eq!(all[0].rows().len(), EXHIBITS.len());
        assert!(all[2].to_text().contains("failed: no disk"));
    }
}
