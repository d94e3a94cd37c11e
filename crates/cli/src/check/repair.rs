//! `shoal check --repair`: carries out the remedies the checker offers, through the engine.
//!
//! Check, list, change, check again, until nothing is left that has a remedy: what does not decode goes first, and only a check
//! that could read everything says what nothing references. Each pass opens the store as a mount does, and closes it
//! clean; so what recovery settles is settled, and a crash in the middle leaves a store that opens. As with `fsck -p`
//! nothing is asked. What has no remedy is left and named; `shoal salvage` saves the files of such a store.

use std::process::ExitCode;

use shoal_check::{FindingKind, Remedy};
use shoal_devices::Outcome;
use shoal_fs::{Fs, Options};

use crate::args::CheckArgs;
use crate::store::Store;

/// Passes until what one remedy brings to light is settled as well.
const PASSES_MAX: usize = 8;
const EXIT_CORRECTED: u8 = 1;

pub fn run(store: &Store, args: &CheckArgs) -> Outcome<ExitCode> {
    let mut changes: Vec<String> = Vec::new();
    let mut report = super::examine(store, !args.no_sums, args.json)?;
    if !args.json {
        super::print(&report, args);
    }
    let mut obstacle = None;
    for _ in 0..PASSES_MAX {
        let settles = report.errors.iter().any(|finding| is_settled_by_opening(finding.kind));
        if report.remedies.is_empty() && !settles {
            break;
        }
        let before = (report.remedies.clone(), report.errors.len());
        if let Err(error) = pass(store, args, &report.remedies, &mut changes) {
            obstacle = Some(error.to_string());
            break;
        }
        report = super::examine(store, !args.no_sums, args.json)?;
        if before == (report.remedies.clone(), report.errors.len()) {
            break;
        }
    }
    if args.json {
        let changes = serde_json::to_string(&changes).unwrap_or_default();
        let obstacle = serde_json::to_string(&obstacle).unwrap_or_default();
        println!("{{\"changes\":{changes},\"obstacle\":{obstacle},\"left\":{}}}", report.to_json());
    } else {
        if !changes.is_empty() {
            super::print(&report, args);
        }
        if let Some(obstacle) = &obstacle {
            eprintln!("shoal: not repaired: {obstacle}");
        }
        if !report.is_sound() {
            println!("what is left has no safe remedy; `shoal salvage` copies out what can be read");
        }
    }
    let corrected = if changes.is_empty() { 0 } else { EXIT_CORRECTED };
    Ok(ExitCode::from(report.exit_code() | corrected))
}

/// What recovery does, when it looks through all inodes.
fn is_settled_by_opening(kind: FindingKind) -> bool {
    use FindingKind::{NewData, Orphan, RootCounts, Truncation};
    matches!(kind, NewData | Orphan | RootCounts | Truncation)
}

fn pass(store: &Store, args: &CheckArgs, remedies: &[Remedy], changes: &mut Vec<String>) -> Outcome<()> {
    // With counts to correct recovery waits: it would reclaim a file whose count says 0 though it has a name.
    let options = Options { recover: remedies.is_empty(), ..Options::default() };
    if remedies.is_empty() {
        note(args, changes, "count inodes anew, and finish what is half-done".into());
    }
    for remedy in remedies {
        note(args, changes, remedy.to_string());
    }
    let (fs, _, media) = store.open(options)?;
    store.write_pid()?;
    for remedy in remedies {
        if let Err(error) = apply(&fs, remedy) {
            note(args, changes, format!("(could not {remedy}: {error})"));
        }
    }
    fs.shutdown().map_err(|error| shoal_devices::Failure::new(store.directory.display(), error))?;
    drop(fs);
    if let Some(bulk) = media.bulk.as_ref() {
        bulk.close()?;
    }
    store.remove_pid();
    Ok(())
}

fn note(args: &CheckArgs, changes: &mut Vec<String>, change: String) {
    if !args.json {
        println!("repair: {change}");
    }
    changes.push(change);
}

fn apply(fs: &Fs, remedy: &Remedy) -> shoal_fs::Result<()> {
    match remedy {
        Remedy::RemoveEntry { directory, name, ino } => fs.repair_entry((*directory).into(), name, (*ino).into()),
        Remedy::FreeRecord { ino } => fs.repair_free_record((*ino).into()),
        Remedy::Attach { ino } => fs.repair_attach((*ino).into()),
        Remedy::LinkCount { ino, nlink } => fs.repair_link_count((*ino).into(), *nlink),
        Remedy::Allocated { ino, bytes } => fs.repair_allocated((*ino).into(), *bytes),
        Remedy::Entries { directory, entries } => fs.repair_entries((*directory).into(), *entries),
        Remedy::FreePieces { pieces } => fs.repair_pieces(pieces),
        Remedy::FreeBlocks { first, blocks } => fs.repair_blocks(*first, *blocks),
    }
}
