//! Carries out the remedies that the checker offers, through the engine.
//!
//! A pass checks the store, lists the changes and makes them. Passes follow until no finding with a
//! remedy is left. Records that do not decode are freed first, because only a check that could read
//! everything knows what is unreferenced. Each pass opens the store as a mount does, which runs
//! recovery, and closes it clean. So a crash in the middle leaves a store that opens. As with `fsck
//! -p` there are no questions. Findings without a remedy are left and named; `salvage` saves the
//! files of such a store.

use shoal_check::{FindingKind, Remedy, Report};
use shoal_devices::{Failure, Outcome};
use shoal_fs::{Fs, Options};

use crate::progress::Progress;
use crate::store::Store;

/// Maximum number of passes. A remedy may reveal further findings.
const PASSES_MAX: usize = 8;

/// Result of a repair.
pub struct Repaired {
    pub changes: Vec<String>,
    /// Why the repair stopped early.
    pub obstacle: Option<String>,
    /// The findings that are left.
    pub report: Report,
}

impl Store {
    /// Makes the changes that are safe, beginning with the findings of `report`. Each change is
    /// reported before it is made.
    pub fn repair(
        &self,
        mut report: Report,
        sums: bool,
        watched: &dyn Progress,
        told: &mut dyn FnMut(&str),
    ) -> Outcome<Repaired> {
        let mut changes: Vec<String> = Vec::new();
        let mut note = |change: String| {
            told(&change);
            changes.push(change);
        };
        let mut obstacle = None;
        for _ in 0..PASSES_MAX {
            let settles = report.errors.iter().any(|finding| is_settled_by_opening(finding.kind));
            if report.remedies.is_empty() && !settles {
                break;
            }
            // A pass would be refused as a mount is, so it must not report changes first.
            if let Some(finding) = report.errors.iter().find(|finding| finding.kind.refuses_mounts()) {
                obstacle = Some(finding.to_string());
                break;
            }
            let before = (report.remedies.clone(), report.errors.len());
            if let Err(error) = self.pass(&report.remedies, &mut note) {
                obstacle = Some(error.to_string());
                break;
            }
            report = self.check(sums, watched)?;
            if before == (report.remedies.clone(), report.errors.len()) {
                break;
            }
        }
        Ok(Repaired { changes, obstacle, report })
    }

    fn pass(&self, remedies: &[Remedy], note: &mut dyn FnMut(String)) -> Outcome<()> {
        // Recovery must wait until link counts are corrected. It would reclaim a file that has a
        // name but a wrong count of 0.
        let options = Options { recover: remedies.is_empty(), ..Options::default() };
        if remedies.is_empty() {
            note("count inodes again, and finish interrupted operations".into());
        }
        for remedy in remedies {
            note(remedy.to_string());
        }
        let opened = self.open(options)?;
        let fs = &opened.fs;
        self.write_pid()?;
        for remedy in remedies {
            if let Err(error) = apply(fs, remedy) {
                note(format!("(could not {remedy}: {error})"));
            }
        }
        fs.shutdown().map_err(|error| Failure::new(self.directory.display(), error))?;
        opened.devices.close()?;
        self.remove_pid();
        Ok(())
    }
}

/// Returns true if recovery settles this finding by examining all inodes.
fn is_settled_by_opening(kind: FindingKind) -> bool {
    use FindingKind::{NewData, Orphan, RootCounts, Truncation};
    matches!(kind, NewData | Orphan | RootCounts | Truncation)
}

fn apply(fs: &Fs, remedy: &Remedy) -> shoal_fs::Result<()> {
    match remedy {
        Remedy::RemoveEntry { directory, name, ino } => fs.repair().entry(*directory, name, *ino),
        Remedy::FreeRecord { ino } => fs.repair().free_record(*ino),
        Remedy::Attach { ino } => fs.repair().attach(*ino),
        Remedy::LinkCount { ino, nlink } => fs.repair().link_count(*ino, *nlink),
        Remedy::Allocated { ino, bytes } => fs.repair().allocated(*ino, *bytes),
        Remedy::Entries { directory, entries } => fs.repair().entries(*directory, *entries),
        Remedy::PackedTables => fs.repair().packed_tables(),
        Remedy::Dictionaries => fs.cooling().repair_dictionaries(),
        Remedy::FreePieces { pieces } => fs.repair().pieces(pieces),
        Remedy::FreeBlocks { first, blocks } => fs.repair().blocks(*first, *blocks),
    }
}
