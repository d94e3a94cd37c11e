//! `shoal lab`: the papers' experiments.
//!
//! `list` names the experiments; `run` runs one and prints its tables, with the paper's figures
//! beside ours. Experiments and their options are in `shoal-lab`. Files are written only with
//! `--out`. A claim that the run does not show is a line of the report, not a failure of the
//! command.

use shoal_devices::{Failure, Outcome};
use shoal_lab::RunArgs;

use crate::json::print_json;
use crate::unshared;

pub fn list(json: bool) {
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
