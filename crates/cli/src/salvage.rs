//! `shoal salvage`: copies everything readable out of a damaged store and names the rest.
//!
//! Exit codes: 0 everything was copied, 4 something is lost, 8 nothing could be done. Losses are
//! named on standard error as they are found; with `--json` the report contains them.

use std::process::ExitCode;

use shoal_devices::Outcome;
use shoal_devices::size::human;
use shoal_store::{Salvaged, Told};

use crate::args::SalvageArgs;
use crate::json;
use crate::progress::Bars;

const EXIT_LOST: u8 = 4;
/// Most losses printed.
const PRINTED_MAX: usize = 10_000;

pub fn run(args: &SalvageArgs) -> Outcome<ExitCode> {
    let mut printed = 0;
    let mut tell = |told: Told<'_>| match told {
        _ if args.json => {}
        Told::Lost(lost) => {
            if printed < PRINTED_MAX {
                eprintln!("shoal: lost: {lost}");
            }
            printed += 1;
        }
        Told::Note(why) => eprintln!("shoal: note: {why}"),
        Told::NotKept { path, why } => eprintln!("shoal: not kept: {path}: {why}"),
    };
    let salvaged = shoal_store::salvage(&args.store, &args.target, &Bars::new(args.json), &mut tell)?;
    if args.json {
        json::print_json(&salvaged);
    } else {
        print(&salvaged);
    }
    Ok(if salvaged.lost.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_LOST) })
}

fn print(salvaged: &Salvaged) {
    println!(
        "{}: {} files, {} directories, {} others, {} further names, {} of data in {}",
        salvaged.store,
        salvaged.files,
        salvaged.directories,
        salvaged.others,
        salvaged.links,
        human(salvaged.bytes),
        salvaged.target
    );
    match salvaged.lost.len() {
        0 => println!("nothing is lost"),
        n => println!("{n} losses, named on standard error; {} inodes without a name", salvaged.unnamed),
    }
}
