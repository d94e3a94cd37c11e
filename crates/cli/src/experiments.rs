//! `shoal lab`: the papers' experiments.
//!
//! `list` names the experiments, and the papers' figures and tables with what the kept runs say of
//! each; `run` runs one and prints its tables, with the paper's figures
//! beside ours. Experiments and their options are in `shoal-lab`. Files are written only with
//! `--out`. A claim that the run does not show is a line of the report, not a failure of the
//! command.

use shoal_devices::{Failure, Outcome};
use shoal_lab::exhibits::{Exhibit, Paper, State};
use shoal_lab::{RunArgs, kept};

use crate::json::print_json;
use crate::unshared;

pub fn list(json: bool) {
    let (experiments, exhibits) = (shoal_lab::list(), kept::list());
    if json {
        return print_json(&serde_json::json!({ "experiments": experiments, "exhibits": exhibits }));
    }
    for listed in experiments {
        println!("{}  {}", listed.name, listed.about);
        println!("    paper: {}", listed.paper);
        let options: Vec<String> = listed.options.iter().map(|option| format!("--{option}")).collect();
        println!("    options: {}", options.join(" "));
    }
    for paper in Paper::ALL {
        println!("\n{}", paper.title());
        for listed in exhibits.iter().filter(|listed| listed.exhibit.paper == paper) {
            let Exhibit { label, shows, experiment, .. } = listed.exhibit;
            println!("  {label:11}{:10}{experiment:15}{shows}", listed.state.name());
        }
    }
    let with = |state: State| exhibits.iter().filter(|listed| listed.state == state).count();
    let counts = State::ALL.map(|state| format!("{} {}", with(state), state.name()));
    println!("\nBy the kept full runs, of {} figures and tables: {}", exhibits.len(), counts.join(", "));
}

pub fn run(args: &RunArgs) -> Outcome<()> {
    if args.experiment.makes_mounts() {
        unshared::go_on_alone();
    }
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
