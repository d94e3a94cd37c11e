//! A store that this process serves to the kernel, with its control socket.
//!
//! Order: first a dead mount of the same store is removed, then the store, the mount and the
//! control socket are opened. When the mount is gone, the store is shut down and its bulk device
//! closed. Left out: signals, the daemon's log and its session (the command line's).

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};
use shoal_fs::{AccessTimes, Fs, Options};
use shoal_fuse::mount_table::{self, FILE_SYSTEM_TYPE};
use shoal_fuse::{MountOptions, RequestCounts, Session, Unmounter};
use shoal_host::{Directory, Ticker};
use shoal_writeback::Rule;
use tracing::{error, info, warn};

use crate::bulks::Bulks;
use crate::cache::{CacheOptions, rule_of};
use crate::control::{self, Answer, Question, Who};
use crate::inspect::FileReport;
use crate::packing;
use crate::read_only::ReadOnly;
use crate::report::StoreReport;
use crate::resize::{Sizes, resize_mounted};
use crate::status::{RequestReport, Status};
use crate::store::{Opened, Store};
use crate::{own_ground, rebalance, scrub};

/// The work of opening a store for a mount.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recovered {
    /// The store was unmounted cleanly, so there was nothing to recover.
    pub clean: bool,
    pub power_lost: bool,
    /// Bulk devices found in another place than before the crash. Their hosts may have lost writes
    /// that no flush had covered.
    #[serde(default)]
    pub bulk_moved: Vec<u32>,
    pub records: u64,
    pub log_bytes: u64,
    pub open_ms: f64,
}

impl fmt::Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = if self.power_lost { "a power loss" } else { "a crash" };
        let bytes = human(self.log_bytes);
        write!(f, "recovered after {after}: {} records ({bytes}) replayed in {:.0} ms", self.records, self.open_ms)?;
        self.bulk_moved
            .iter()
            .try_for_each(|number| write!(f, "; bulk device {number} is in another place than before"))
    }
}

/// A mounted store.
pub struct Mounted {
    store: Store,
    session: Session,
    bulks: Arc<Bulks>,
    /// Scrubs in idle time.
    scrubber: Option<Ticker>,
    read_only: bool,
    recovered: Recovered,
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
        // Check before opening the store, so that a refused mount leaves the store as it was.
        shoal_fuse::check_mountpoint(mountpoint).map_err(Failure::of)?;
        own_ground::refuse_mountpoint(&self.directory, &self.description, options.cache_dir.as_deref(), mountpoint)?;
        let begin = Instant::now();
        let engine = Options {
            read_only: options.read_only,
            kernel_times: options.writeback,
            drops_capabilities: !options.xattrs,
            pack_age: Some(options.pack_age),
            pack_load: options.pack_load,
            spill_percent: options.spill_percent,
            threshold: options.threshold,
            pack_inodes: options.pack_inodes,
            degraded: options.degraded,
            sums: options.sums,
            method: options.compress.unwrap_or(self.description.compress),
            ..Options::default()
        };
        let rule = rule_of(options.update_policy.as_deref(), options.update_rate, &Rule::default());
        let wanted = CacheOptions {
            bytes: options.cache_bytes,
            directory: options.cache_dir.clone(),
            rule: rule.map_err(|error| Failure::new("update policy", error).misuse())?,
        };
        let Opened { fs, recovery, devices, survives_power_loss } = self.open_with(engine, Some(&wanted))?;
        let recovered = Recovered {
            clean: recovery.clean,
            power_lost: recovery.power_lost,
            bulk_moved: fs.bulk_states().iter().filter(|state| state.moved).map(|state| state.number).collect(),
            records: recovery.records,
            log_bytes: recovery.bytes,
            open_ms: begin.elapsed().as_secs_f64() * 1e3,
        };
        fs.set_access_times(options.access_times);
        let fs = Arc::new(fs);
        if !options.read_only {
            self.write_pid()?;
        }
        let session = shoal_fuse::mount(fs.clone(), mountpoint, options).map_err(|error| {
            // The mount failed, so leave the store clean.
            if !options.read_only && fs.shutdown().is_ok() {
                self.remove_pid();
            }
            Failure::of(error)
        })?;
        if !recovered.clean {
            info!("{recovered}");
        }
        info!("{} is mounted on {}", self.directory.display(), mountpoint.display());
        let bulks = Bulks::new(fs.clone(), &self.directory, &self.description, devices);
        let bulks = Arc::new(bulks.mounted_as(session.unmounter().device()));
        let taken_up = if options.read_only { Ok(()) } else { bulks.take_up() };
        let asked_fs = fs.clone();
        let asked = Asked {
            fs,
            directory: self.directory.clone(),
            bulks: bulks.clone(),
            mountpoint: mountpoint.to_path_buf(),
            device: session.unmounter().device().into(),
            survives_power_loss,
            requests: session.request_counts(),
        };
        let listening = taken_up.and_then(|()| listen(&self.directory, asked));
        let scrubbing = options.scrub_every.filter(|_| !options.read_only);
        let scrubbing = scrubbing.map(|every| scrub::start(asked_fs, self.directory.clone(), every)).transpose();
        let (scrubber, scrubbing) = match scrubbing {
            Ok(scrubber) => (scrubber, Ok(())),
            Err(failure) => (None, Err(failure)),
        };
        let mounted = Mounted { store: self, session, bulks, scrubber, read_only: options.read_only, recovered };
        if let Err(failure) = listening.and(scrubbing) {
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
        self.store.directory()
    }

    /// The work of opening the store.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Ends the mount from any thread; [`Mounted::wait`] then returns.
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }

    /// Serves until the mount is gone for any reason, and leaves the store clean.
    pub fn wait(self) -> Outcome<()> {
        let store = &self.store;
        let name = store.directory.display();
        let (bulks, scrubber) = (self.bulks.clone(), self.scrubber);
        let outcome = self.session.wait_and(move || {
            scrubber.iter().for_each(Ticker::stop);
            bulks.stop();
        });
        control::remove(&store.directory);
        let is_clean = matches!(&outcome, Ok(()) | Err(shoal_fuse::Error::Connection(_)));
        let undelivered = if is_clean && !self.read_only { self.bulks.undelivered() } else { Vec::new() };
        undelivered.iter().for_each(|writes| if writes.is_lost() { error!("{writes}") } else { warn!("{writes}") });
        if let Some(lost) = undelivered.iter().find(|writes| writes.is_lost()) {
            // The process's note stays, as after a crash: the next mount treats writes not known to
            // be durable as lost.
            self.bulks.close(false);
            return Err(Failure::new(format_args!("store {name}"), lost.to_string())
                .remedy("mount it again; files that lost writes have zeros or older contents in their place"));
        }
        self.bulks.close(is_clean && !self.read_only);
        match &outcome {
            // An error of the connection no longer matters, since the store is clean.
            Ok(()) | Err(shoal_fuse::Error::Connection(_)) => {
                if self.read_only {
                    info!("{name} is unmounted, as it was");
                } else {
                    store.remove_pid();
                    info!("{name} is unmounted and clean");
                }
            }
            Err(_) => {}
        }
        outcome.during(format_args!("store {name}"))
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
                    fs.set_spill_percent(percent);
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
    fn a_recovery_says_after_what_and_how_much() {
        let recovered =
            Recovered { clean: false, power_lost: true, bulk_moved: vec![], records: 3, log_bytes: 2048, open_ms: 1.6 };
        assert_eq!(recovered.to_string(), "recovered after a power loss: 3 records (2 KiB) replayed in 2 ms");
        let moved = Recovered { power_lost: false, bulk_moved: vec![1], ..recovered }.to_string();
        assert!(
            moved.starts_with("recovered after a crash")
                && moved.ends_with("; bulk device 1 is in another place than before")
        );
    }

    #[test]
    fn each_rule_for_access_times_has_a_name_of_its_own() {
        for rule in [AccessTimes::Relative, AccessTimes::Always, AccessTimes::Never] {
            let name = access_times_name(rule);
            assert_eq!(ACCESS_TIMES.iter().filter(|(known, _)| *known == name).count(), 1, "{rule:?}");
        }
    }
}
