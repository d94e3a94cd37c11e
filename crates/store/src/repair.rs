//! Carries out the remedies the checker offers, through the engine.
//!
//! Check, list, change, check again, until nothing is left that has a remedy: what does not decode goes first, and only a check
//! that could read everything says what nothing references. Each pass opens the store as a mount does, and closes it
//! clean; so what recovery settles is settled, and a crash in the middle leaves a store that opens. As with `fsck -p`
//! nothing is asked. What has no remedy is left and named; a salvage saves the files of such a store.

use shoal_check::{FindingKind, Remedy, Report};
use shoal_devices::{Failure, Outcome};
use shoal_fs::{Fs, Options};

use crate::progress::Progress;
use crate::store::{Opened, Store};

/// Passes until what one remedy brings to light is settled as well.
const PASSES_MAX: usize = 8;

/// What a repair did.
pub struct Repaired {
    pub changes: Vec<String>,
    /// Why it stopped before nothing was left to do.
    pub obstacle: Option<String>,
    /// What is left.
    pub report: Report,
}

impl Store {
    /// Makes the changes that are safe, beginning with what `report` found. Each is told before it is made.
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
        // With counts to correct recovery waits: it would reclaim a file whose count says 0 though it has a name.
        let options = Options { recover: remedies.is_empty(), ..Options::default() };
        if remedies.is_empty() {
            note("count inodes anew, and finish what is half-done".into());
        }
        for remedy in remedies {
            note(remedy.to_string());
        }
        let Opened { fs, bulk, .. } = self.open(options)?;
        self.write_pid()?;
        for remedy in remedies {
            if let Err(error) = apply(&fs, remedy) {
                note(format!("(could not {remedy}: {error})"));
            }
        }
        fs.shutdown().map_err(|error| Failure::new(self.directory.display(), error))?;
        drop(fs);
        if let Some(bulk) = bulk {
            bulk.close()?;
        }
        self.remove_pid();
        Ok(())
    }
}

/// What recovery does, when it looks through all inodes.
fn is_settled_by_opening(kind: FindingKind) -> bool {
    use FindingKind::{NewData, Orphan, RootCounts, Truncation};
    matches!(kind, NewData | Orphan | RootCounts | Truncation)
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
