//! `shoal lab`: the papers' experiments.
//!
//! `list` names the experiments; `run` runs one and prints its tables, with the paper's figures
//! beside ours. Experiments and their options are in `shoal-lab`. Files are written only with
//! `--out`. A claim that the run does not show is a line of the report, not a failure of the
//! command.

use clap::{Args, Subcommand};
use shoal_devices::{Failure, Outcome};
use shoal_lab::RunArgs;

use crate::json::print_json;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab list\n  \
    shoal lab run netram --quick\n  \
    shoal lab run netram --trace week.srt --out results\n  \
    shoal lab run idle-time --out results\n  \
    shoal lab run update-policy --out results\n  \
    shoal lab run inodes --tree /usr /var\n  \
    shoal lab run small-files --tree /usr\n  \
    shoal lab run mramfs --at /mnt/shoal --scale 0.1\n  \
    shoal lab run conquest --at shoal=/mnt/shoal --at ext4=/mnt/ext4 --only small-files\n  \
    shoal lab run trees --at shoal=/mnt/shoal --at ext4=/mnt/ext4 --scale 0.1\n\n\
    Times of a model are simulated and say so.")]
pub struct LabArgs {
    #[command(subcommand)]
    pub command: LabCommand,
}

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Show which experiments there are, and whose
    List {
        /// Report as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run an experiment; print its figures beside the paper's
    Run(Box<RunArgs>),
}

pub fn run(args: &LabArgs) -> Outcome<()> {
    match &args.command {
        LabCommand::List { json } => list(*json),
        LabCommand::Run(args) => experiment(args)?,
    }
    Ok(())
}

fn list(json: bool) {
    let all = shoal_lab::list();
    if json {
        return print_json(&all);
    }
    for listed in all {
        println!("{}  {}", listed.name, listed.about);
        println!("    paper: {}", listed.paper);
        let options: Vec<String> = listed.options.iter().map(|option| format!("--{option}")).collect();
        println!("    options: {}", options.join(" "));
    }
}

fn experiment(args: &RunArgs) -> Outcome<()> {
    let (report, files) = shoal_lab::run(args).map_err(|error| Failure::new("lab", error))?;
    // Also printed on standard error, for users who read only the tables.
    for skipped in &report.skipped {
        eprintln!("shoal: lab: SKIPPED: {skipped}");
    }
    if args.common.json {
        print_json(&report.to_json());
    } else {
        print!("{}", report.to_text());
    }
    for file in files {
        eprintln!("wrote {}", file.display());
    }
    Ok(())
}
