//! A store that this process serves to the kernel, with its control socket.
//!
//! Order: first a dead mount of the same store is removed, then the store, the mount and the
//! control socket are opened. When the mount is gone, the store's life ends (`life`).
//! Left out: signals, the daemon's log and its session (the command line's).

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use shoal_devices::{During, Failure, Outcome};
use shoal_fs::{AccessTimes, Fs, Options};
use shoal_fuse::mount_table::{self, FILE_SYSTEM_TYPE};
use shoal_fuse::{RequestCounts, Session, Unmounter};
use shoal_host::Directory;
use tracing::{info, warn};

use crate::bulks::Bulks;
use crate::control::{self, Answer, Question, Who};
use crate::inspect::FileReport;
use crate::life::{Life, Recovered};
use crate::options::MountOptions;
use crate::packing;
use crate::read_only::ReadOnly;
use crate::report::StoreReport;
use crate::resize::{Sizes, resize_mounted};
use crate::status::{RequestReport, Status};
use crate::store::Store;
use crate::{own_ground, rebalance, scrub};

/// A mounted store.
pub struct Mounted {
    life: Life,
    session: Session,
}

impl Store {
    /// Removes a mount of this store that does not answer, because its daemon died or could not end
    /// it.
    pub fn clear_dead_mount(&self, mountpoint: &Path) -> Outcome<()> {
        let is_ours = is_mounted_from(self.directory.path(), mountpoint)?;
        // This process holds the store's lock, so no daemon serves this store any more. But another
        // store may have been at this path before and still be mounted.
        if is_ours && !shoal_fuse::is_served(mountpoint) {
            shoal_fuse::unmount_path(mountpoint, true).during(mountpoint.display())?;
            warn!("took away the dead mount on {}", mountpoint.display());
        }
        Ok(())
    }

    /// Mounts the store. When this returns, the mount point and the control socket answer.
    pub fn mount(self, mountpoint: &Path, options: &MountOptions) -> Outcome<Mounted> {
        self.clear_dead_mount(mountpoint)?;
        let MountOptions { fuse, store } = options;
        // Check before opening the store, so that a refused mount leaves the store as it was.
        shoal_fuse::check_mountpoint(mountpoint).map_err(Failure::of)?;
        own_ground::refuse_mountpoint(&self.directory, &self.description, store.cache_dir.as_deref(), mountpoint)?;
        let engine = Options {
            read_only: fuse.read_only,
            kernel_times: fuse.writeback,
            drops_capabilities: !fuse.xattrs,
            ..store.engine(&self.description)
        };
        let mut life = self.begin(engine, store)?;
        life.fs.set_access_times(fuse.access_times);
        let session = match shoal_fuse::mount(&life.fs, life.log.clone(), mountpoint, fuse) {
            Ok(session) => session,
            Err(error) => {
                // Leave the store clean. The first error is reported.
                let _ = life.end();
                return Err(Failure::of(error));
            }
        };
        if !life.recovered.clean {
            info!("{}", life.recovered);
        }
        info!("{} is mounted on {}", life.store.directory.display(), mountpoint.display());
        life.bulks.mounted_as(session.unmounter().device());
        let asked = Asked {
            fs: life.fs.clone(),
            directory: life.store.directory.clone(),
            bulks: life.bulks.clone(),
            mountpoint: mountpoint.to_path_buf(),
            device: session.unmounter().device().into(),
            survives_power_loss: life.survives_power_loss,
            requests: session.request_counts(),
        };
        let started = life.work(store).and_then(|()| listen(&life.store.directory, asked));
        let mounted = Mounted { life, session };
        if let Err(failure) = started {
            // A mount without its socket or its work is useless. The first error is reported.
            let _ = mounted.unmounter().unmount();
            let _ = mounted.wait();
            return Err(failure);
        }
        Ok(mounted)
    }
}

impl Mounted {
    /// The store's directory.
    pub fn directory(&self) -> &Path {
        self.life.store.directory()
    }

    /// The work of opening the store.
    pub fn recovered(&self) -> &Recovered {
        &self.life.recovered
    }

    /// Ends the mount from any thread; [`Mounted::wait`] then returns.
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }

    /// Serves until the mount is gone for any reason, and leaves the store clean.
    pub fn wait(self) -> Outcome<()> {
        let Mounted { mut life, session } = self;
        let served = session.wait();
        let ended = life.end();
        let directory = &life.store.directory;
        control::remove(directory);
        ended?;
        // An error of the connection does not matter to the store, which is clean.
        match life.is_read_only() {
            true => info!("{} is unmounted, as it was", directory.display()),
            false => info!("{} is unmounted and clean", directory.display()),
        }
        served.during(format_args!("store {}", directory.display()))
    }
}

/// True if the store in `directory` is mounted on `mountpoint`, according to the kernel's table.
/// The daemon may be dead.
pub fn is_mounted_from(directory: &Path, mountpoint: &Path) -> Outcome<bool> {
    // A dead mount point cannot be canonicalized, but its parent can.
    let parent = mountpoint.parent().and_then(|parent| parent.canonicalize().ok());
    let resolved = mountpoint.canonicalize().ok().or_else(|| Some(parent?.join(mountpoint.file_name()?)));
    let mounted = mount_table::mounted_at(resolved.as_deref().unwrap_or(mountpoint)).during("table of mounts")?;
    Ok(mounted.is_some_and(|entry| entry.file_system_type == FILE_SYSTEM_TYPE && entry.source == directory))
}

fn listen(directory: &Directory, asked: Asked) -> Outcome<()> {
    match control::serve(directory, move |question| asked.answer(question)) {
        // A full host has no inode for the socket. Serve the store without it, so that files can be
        // deleted.
        Err(error) if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::ReadOnlyFilesystem) => {
            warn!(
                "control socket: {error}; `df`, `inspect` and `status` of this mount work again once there is room and it is remounted"
            );
            Ok(())
        }
        outcome => outcome.during("control socket"),
    }
}

/// State for answers on the control socket.
struct Asked {
    fs: Arc<Fs>,
    directory: Directory,
    bulks: Arc<Bulks>,
    mountpoint: PathBuf,
    /// The mount's number.
    device: String,
    survives_power_loss: bool,
    requests: RequestCounts,
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
            Question::Who => {
                value(Who { pid: std::process::id(), mountpoint: self.mountpoint.clone(), device: self.device.clone() })
            }
            Question::Df => {
                let (of, at) = (self.bulks.description(), Some(self.mountpoint.as_path()));
                let report = StoreReport::of(fs, directory, &of, at, self.survives_power_loss);
                let report = StoreReport { troubles: self.bulks.troubles(), ..report };
                value(report.with_caches(self.bulks.cache_reports()))
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
                requests: Some(self.requests.report().into_iter().map(RequestReport::from).collect()),
            }),
            Question::Remount {
                read_only,
                access_times,
                spill_percent,
                threshold_bytes,
                update_policy,
                update_rate,
            } => {
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
