//! Verifying a store that nobody uses.
//!
//! The checker itself is `shoal-check`, which shares no code with the engine; here its media are opened. The store's lock is held
//! meanwhile. Left out: remedies (`repair`).

use std::sync::Arc;

use shoal_check::{Finding, FindingKind, ImageSource, Report, Source, Stage};
use shoal_devices::{During, Failure, Outcome};
use shoal_host::{SEGMENT_BYTES, SegmentLog, SharedKind, SharedMap};
use shoal_media::LogDevice;

use crate::battery;
use crate::images;
use crate::memory::MemoryChoice;
use crate::progress::Progress;
use crate::store::Store;

impl Store {
    /// Verifies the store, with the checksums of its pages or without.
    pub fn check(&self, sums: bool, watched: &dyn Progress) -> Outcome<Report> {
        // Of bulk storage elsewhere the size is not asked: a store can be checked while its server is away.
        let bulk_bytes = self.bulk_file_bytes()?;
        let mut stage = None;
        let mut show = |progress: shoal_check::Progress| {
            if stage != Some(progress.stage) {
                stage = Some(progress.stage);
                watched.begin(stage_name(progress.stage), progress.total);
            }
            watched.at(progress.done);
        };
        let mut run = |image, log| {
            let power_lost = self.power_was_lost();
            shoal_check::check(Source { image, log, bulk_bytes, power_lost, sums }, &mut show)
                .during(self.directory.display())
        };
        let report = match &self.description.memory {
            MemoryChoice::Logged => {
                let images = images::open(&self.directory)?;
                let log: Arc<dyn LogDevice> =
                    Arc::new(SegmentLog::open(&self.log_path(), SEGMENT_BYTES).during("log")?);
                run(ImageSource::Images([images[0].as_ref(), images[1].as_ref()]), Some(log.as_ref()))?
            }
            MemoryChoice::Battery(path) => {
                // What a mount would refuse is not the store, sound as it may be in itself.
                let wish = battery::Wish {
                    read_only: true,
                    restore: false,
                    uuid: &self.description.uuid,
                    unmounted: self.was_unmounted(),
                };
                let images = images::open(&self.directory)?;
                if path.exists() {
                    let memory = battery::open(path, &images, &wish)?;
                    run(ImageSource::Memory(memory.as_ref()), None)?
                } else {
                    let mut report = run(ImageSource::Images([images[0].as_ref(), images[1].as_ref()]), None)?;
                    if let Err(failure) = battery::image_in_place_of(path, &images, &wish) {
                        let sentence = failure.to_string();
                        let gone = FindingKind::RegionGone;
                        report.errors.push(Finding { kind: gone, inode: None, path: None, offset: None, sentence });
                    }
                    report
                }
            }
            MemoryChoice::Dax(path) => {
                let memory = SharedMap::open(path, SharedKind::Dax).during("memory")?;
                run(ImageSource::Memory(&memory), None)?
            }
        };
        watched.end();
        Ok(report)
    }

    /// For who writes a store's bytes anew: a reference that cannot be read cannot be moved, and new sums over bytes that do not fit
    /// the old ones would hide the damage.
    pub(crate) fn refuse_damaged(&self, watched: &dyn Progress) -> Outcome<()> {
        let report = self.check(true, watched)?;
        let Some(error) = report.errors.first() else { return Ok(()) };
        let (name, count) = (self.directory.display(), report.errors.len());
        let cause = match count {
            1 => format!("is damaged: {error}"),
            _ => format!("is damaged: {error} (and {} more errors)", count - 1),
        };
        let remedy =
            format!("run `shoal check --repair {name}` first; what that leaves, `shoal salvage {name} DIR` copies out");
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
    }
}
