//! Verifying a store that is not in use.
//!
//! The checker itself is `shoal-check`, which shares no code with the engine; this module opens the
//! media for it and holds the store's lock during the check. Left out: remedies (`repair`).

use shoal_check::{BulkDevices, BulkOpener, Finding, FindingKind, Report, Source, Stage};
use shoal_devices::{During, Failure, Outcome};
use shoal_format::bulk_list::BulkDeviceEntry;

use crate::cache;
use crate::progress::Progress;
use crate::salvage::{bulk_data, bulk_device};
use crate::store::Store;

/// How much of a store is verified.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// References and counts, without checksums of contents.
    Structure,
    /// Also the checksums of its pages.
    Sums,
    /// Also those of spilled files.
    Payloads,
}

impl Store {
    /// Verifies the store. With `sums` this includes the checksums of its pages and of spilled
    /// files.
    pub fn check(&self, sums: bool, watched: &dyn Progress) -> Outcome<Report> {
        self.verify(if sums { Depth::Payloads } else { Depth::Structure }, watched)
    }

    fn verify(&self, depth: Depth, watched: &dyn Progress) -> Outcome<Report> {
        // The size of bulk storage on a server is not queried, so that a store can be checked while
        // the server is away. If the store lists several devices, each may be missing; a note then
        // says so.
        let bulk_bytes = match self.bulk_file_bytes() {
            Err(_) if self.description.has_bulk_list() => None,
            found => found?,
        };
        let mut stage = None;
        let mut show = |progress: shoal_check::Progress| {
            if stage != Some(progress.stage) {
                stage = Some(progress.stage);
                watched.begin(stage_name(progress.stage), progress.total);
            }
            watched.at(progress.done);
        };
        let region = self.description.memory.media_at_rest(&self.resting())?;
        let image = region.image().ok_or_else(|| Failure::new("memory", "has neither region nor images"))?;
        let power_lost = self.power_was_lost();
        let loss_boots = cache::loss_boots(&self.directory, &self.description);
        let open = || {
            let (bulk, faults) = bulk_data(&self.directory, &self.description);
            match faults.is_empty() {
                true => bulk.ok_or_else(|| "the store has no bulk storage".to_owned()),
                false => Err(faults.join("; ")),
            }
        };
        let bulk: Option<&BulkOpener<'_>> = if depth == Depth::Payloads { Some(&open) } else { None };
        // Devices are compared in any case: a mount refuses a store whose parts are of different
        // times.
        let find = |entry: &BulkDeviceEntry| bulk_device(&self.directory, &self.description, entry);
        let devices = Some(BulkDevices { find: &find, restored: region.restored });
        let source = Source {
            image,
            log: region.log.as_deref(),
            bulk_bytes,
            power_lost,
            loss_boots: &loss_boots,
            sums: depth != Depth::Structure,
            bulk,
            devices,
        };
        let mut report = shoal_check::check(source, &mut show).during(self.directory.display())?;
        if let Some(failure) = &region.refused {
            let (kind, sentence) = (FindingKind::RegionGone, failure.to_string());
            report.errors.push(Finding { kind, inode: None, path: None, offset: None, sentence });
        }
        watched.end();
        Ok(report)
    }

    /// Refuses a damaged store. Called before operations that write a store's bytes again: a
    /// reference that cannot be read cannot be moved, and new sums over bytes that do not match the
    /// old ones would hide the damage.
    pub(crate) fn refuse_damaged(&self, watched: &dyn Progress) -> Outcome<()> {
        // Data on bulk storage stays there, or is read and verified when it is copied.
        let report = self.verify(Depth::Sums, watched)?;
        let Some(error) = report.errors.first() else { return Ok(()) };
        let (name, count) = (self.directory.display(), report.errors.len());
        let cause = match count {
            1 => format!("is damaged: {error}"),
            _ => format!("is damaged: {error} (and {} more errors)", count - 1),
        };
        let remedy =
            format!("run `shoal check --repair {name}` first, or copy the files with `shoal salvage {name} DIR`");
        Err(Failure::new(&name, cause).remedy(remedy))
    }
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Sums => "checksums",
        Stage::Replay => "log",
        Stage::Segments => "segments",
        Stage::Inodes => "inodes",
        Stage::Directories => "directories",
        Stage::Links => "links",
        Stage::Allocation => "allocation",
        Stage::Spilled => "spilled files",
    }
}
