//! `shoal check`: verifies a store that is not in use, and repairs it with `--repair`.
//!
//! Owns the text of the findings and the exit codes, which are those of fsck(8). As with `fsck -p`,
//! there are no questions.

use std::process::ExitCode;

use shoal_check::{Finding, FindingKind, Report};
use shoal_devices::Outcome;
use shoal_devices::size::human;
use shoal_store::Store;

use crate::args::CheckArgs;
use crate::json::print_json;
use crate::progress::Bars;

/// Most findings printed as text. JSON has all of them.
const FINDINGS_PRINTED_MAX: usize = 100;
const EXIT_CORRECTED: u8 = 1;

pub fn run(args: &CheckArgs) -> Outcome<ExitCode> {
    let store = Store::acquire_unmounted(&args.store)?;
    let report = store.check(!args.no_sums, &Bars::new(args.json))?;
    if args.repair {
        return repair(&store, report, args);
    }
    if args.json {
        print_json(&report);
    } else {
        print(&report, args);
    }
    Ok(ExitCode::from(report.exit_code()))
}

fn repair(store: &Store, report: Report, args: &CheckArgs) -> Outcome<ExitCode> {
    if !args.json {
        print(&report, args);
    }
    let mut told = |change: &str| {
        if !args.json {
            println!("repair: {change}");
        }
    };
    let repaired = store.repair(report, !args.no_sums, &Bars::new(args.json), &mut told)?;
    let (changes, obstacle, report) = (repaired.changes, repaired.obstacle, repaired.report);
    if args.json {
        print_json(&serde_json::json!({ "changes": changes, "obstacle": obstacle, "left": report }));
    } else {
        if !changes.is_empty() {
            print(&report, args);
        }
        if let Some(obstacle) = &obstacle {
            eprintln!("shoal: not repaired: {obstacle}");
        }
        if !report.is_sound() {
            println!("the remaining errors have no safe repair; `shoal salvage` copies out everything readable");
        }
    }
    let corrected = if changes.is_empty() { 0 } else { EXIT_CORRECTED };
    Ok(ExitCode::from(report.exit_code() | corrected))
}

fn print(report: &Report, args: &CheckArgs) {
    let list = |title: &str, findings: &[Finding]| {
        for finding in findings.iter().take(FINDINGS_PRINTED_MAX) {
            println!("{title}: {finding}");
        }
        if findings.len() > FINDINGS_PRINTED_MAX {
            println!("{title}: and {} more (--json lists them)", findings.len() - FINDINGS_PRINTED_MAX);
        }
    };
    list("error", &report.errors);
    list("note", &report.notes);
    let c = &report.counts;
    println!(
        "{}: {} inodes ({} directories, {} files, {} symbolic links, {} others), {} small and {} large data",
        args.store.display(),
        c.inodes,
        c.directories,
        c.files,
        c.symlinks,
        c.others,
        human(c.small_bytes),
        human(c.large_bytes)
    );
    let gone = report.errors.iter().any(|finding| finding.kind == FindingKind::RegionGone);
    let state = match (report.clean, gone) {
        (true, _) => "unmounted cleanly",
        (false, true) => "not unmounted cleanly",
        (false, false) => "not unmounted cleanly; the next mount recovers it",
    };
    match report.errors.len() {
        0 => println!("no errors; {state}"),
        1 => println!("1 error; {state}"),
        n => println!("{n} errors; {state}"),
    }
}
