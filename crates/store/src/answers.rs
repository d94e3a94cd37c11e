//! Answers of a store's user on its control socket: of a daemon, or of a program with a volume.
//!
//! The socket is answered from the moment the mount or the volume is open until the store is shut
//! down. Changes are refused before the store is shut down. When it is shut down, no answer is under
//! way any more. Left out: the socket (`control`), and the server of an exported device (the command
//! line's).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use shoal_devices::{During, Failure, Outcome};
use shoal_fs::{AccessTimes, Fs};
use shoal_fuse::RequestCounts;
use shoal_host::Directory;
use tracing::warn;

use crate::bulks::Bulks;
use crate::control::{self, Answer, Control, Question, Who};
use crate::inspect::FileReport;
use crate::life::Life;
use crate::packing;
use crate::read_only::ReadOnly;
use crate::report::StoreReport;
use crate::resize::{Sizes, resize_mounted};
use crate::status::{RequestReport, Status};
use crate::user_memory::UserMemory;
use crate::{rebalance, scrub};

/// Where a mounted store is seen.
pub(crate) struct Shown {
    pub mountpoint: PathBuf,
    /// The mount's number.
    pub device: String,
    pub requests: RequestCounts,
}

/// State for answers.
struct Asked {
    fs: Arc<Fs>,
    directory: Directory,
    bulks: Arc<Bulks>,
    survives_power_loss: bool,
    /// `None`: a program has the store open.
    shown: Option<Shown>,
}

/// Opens the control socket of a store.
pub(crate) fn start(life: &Life, shown: Option<Shown>) -> Outcome<Option<Control>> {
    let asked = Asked {
        fs: life.fs.clone(),
        directory: life.store.directory.clone(),
        bulks: life.bulks.clone(),
        survives_power_loss: life.survives_power_loss,
        shown,
    };
    let is_mounted = asked.shown.is_some();
    match control::serve(&life.store.directory, move |question| asked.answer(question)) {
        // A full host has no inode for the socket. Serve the store without it, so that files can be
        // deleted. A program may read a store in a directory where it cannot write.
        Err(error) if !is_mounted || is_full(&error) => {
            warn!(
                "control socket: {error}; `df`, `inspect` and `status` of this store work again once there is room and it is opened again"
            );
            Ok(None)
        }
        outcome => outcome.map(Some).during("control socket"),
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::ReadOnlyFilesystem)
}

impl Asked {
    fn answer(&self, question: Question) -> Answer {
        match self.answered(question) {
            Ok(value) => Answer::Ok(value),
            Err(failure) => Answer::Error(failure.to_string()),
        }
    }

    fn answered(&self, question: Question) -> Outcome<serde_json::Value> {
        let (fs, directory) = (&self.fs, &self.directory);
        match question {
            Question::Who => value(Who {
                pid: std::process::id(),
                mountpoint: self.shown.as_ref().map(|shown| shown.mountpoint.clone()),
                device: self.shown.as_ref().map(|shown| shown.device.clone()),
            }),
            Question::Df => {
                let (of, at) = (self.bulks.description(), self.shown.as_ref().map(|shown| shown.mountpoint.as_path()));
                let report = StoreReport::of(fs, directory, &of, at, self.survives_power_loss);
                let caches = self.bulks.cache_reports();
                let place = directory.place();
                let process_memory = UserMemory::now(place.as_path(), of.memory.path().map(PathBuf::as_path), &caches);
                let report = StoreReport { troubles: self.bulks.troubles(), process_memory, ..report };
                value(report.with_caches(caches))
            }
            Question::Inspect { path } => value(FileReport::of(fs, Path::new(OsStr::from_bytes(&path)))?),
            Question::Files { path } => value(packing::below(fs, Path::new(OsStr::from_bytes(&path)))?),
            Question::Pack { files } => value(packing::pack(fs, &files)?),
            Question::Misplaced { path } => value(rebalance::misplaced(fs, Path::new(OsStr::from_bytes(&path)))?),
            Question::Rebalance { items } => value(rebalance::rebalance(fs, &items)?),
            Question::Scrub { inode, byte } => value(scrub::step(fs, scrub::Place { inode, byte })?),
            Question::Status => value(Status {
                export: None,
                store: Some(directory.display().to_string()),
                failure: ReadOnly::of(fs),
                device: self.bulks.first().map(|bulk| bulk.report()),
                caches: self.bulks.cache_reports(),
                more_devices: self.bulks.more_reports(),
                bulks: self.bulks.reports(),
                requests: self
                    .shown
                    .as_ref()
                    .map(|shown| shown.requests.report().into_iter().map(RequestReport::from).collect()),
            }),
            Question::Remount {
                read_only,
                access_times,
                spill_percent,
                threshold_bytes,
                update_policy,
                update_rate,
            } => {
                if self.shown.is_none() {
                    return Err(Failure::new(directory.display(), "is not mounted: a program has it open")
                        .remedy("end that program, and mount the store"));
                }
                if update_policy.is_some() || update_rate.is_some() {
                    self.bulks.set_policy(update_policy.as_deref(), update_rate)?;
                }
                let remounted = remount(fs, directory.path(), read_only, &access_times);
                if let (Ok(()), Some(percent)) = (&remounted, spill_percent) {
                    fs.spilling().set_spill_percent(percent);
                }
                if remounted.is_ok() && threshold_bytes.is_some() {
                    fs.set_threshold(threshold_bytes);
                }
                remounted.map(|()| true.into())
            }
            Question::Resize { memory_bytes, bulk_bytes } => {
                value(resize_mounted(fs, directory, &Sizes { memory_bytes, bulk_bytes })?)
            }
            Question::Donor { change, donor } => self.bulks.change_donors(change, &donor).map(serde_json::Value::from),
            Question::Bulk { change } => self.bulks.carry_out(&change).map(serde_json::Value::from),
            Question::Bulks => value(self.bulks.reports()),
            Question::BulkFiles { device } => value(self.bulks.files(&device)?),
        }
    }
}

fn value(report: impl Serialize) -> Outcome<serde_json::Value> {
    serde_json::to_value(report).during("report")
}

const ACCESS_TIMES: [(&str, AccessTimes); 3] =
    [("relative", AccessTimes::Relative), ("always", AccessTimes::Always), ("never", AccessTimes::Never)];

/// The name of a rule for access times in [`Question::Remount`].
pub fn access_times_name(rule: AccessTimes) -> &'static str {
    ACCESS_TIMES.iter().find(|(_, known)| *known == rule).map_or("", |(name, _)| name)
}

/// Carries out [`Question::Remount`] in the daemon.
fn remount(fs: &Fs, directory: &Path, read_only: bool, access_times: &str) -> Outcome<()> {
    let rule = ACCESS_TIMES.iter().find(|(name, _)| *name == access_times).map(|(_, rule)| *rule);
    let rule = rule.ok_or_else(|| Failure::new("remount", format!("no rule `{access_times}` for access times")))?;
    if fs.region().is_read_only() && !read_only {
        return Err(Failure::new(directory.display(), "the store was opened for reading")
            .remedy("unmount it, and mount it without `ro`"));
    }
    // The kernel refuses writes by programs, but the engine writes access times, so it must stop.
    fs.set_access_times(if read_only { AccessTimes::Never } else { rule });
    if read_only { fs.sync().during(directory.display()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_for_access_times_has_a_name_of_its_own() {
        for rule in [AccessTimes::Relative, AccessTimes::Always, AccessTimes::Never] {
            let name = access_times_name(rule);
            assert_eq!(ACCESS_TIMES.iter().filter(|(known, _)| *known == name).count(), 1, "{rule:?}");
        }
    }
}
