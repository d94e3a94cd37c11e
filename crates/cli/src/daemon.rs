//! The process that serves a mount: opens the store, mounts it, answers until the mount is gone, shuts the store down.
//!
//! Order: signals blocked before the first thread (they are waited for in one of their own), lock, a dead mount of the
//! same store cleared away, store opened, mount, control socket, ready. It ends when the mount does; SIGTERM, SIGINT,
//! SIGHUP and SIGPWR unmount, cutting off users if there are any, because a clean store is worth more than they are.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use shoal_devices::{Device, During, Failure, Outcome};
use shoal_fs::{Fs, Options};
use shoal_fuse::mount_table::{self, FILE_SYSTEM_TYPE};
use shoal_fuse::{MountOptions, RequestCounts, Session, Unmounted};
use shoal_store::{BulkPlace, Description, FileReport, Opened, ReadOnly, Sizes, Store, StoreReport, resize_mounted};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

use crate::control::{self, Answer, Question};
use crate::kernel_requests::RequestReport;
use crate::mount::{Message, Ready, Recovered};
use crate::remount;
use crate::status::Report;

/// After umount(8) the daemon before this one may still be writing; a store with much to write takes a while.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(60);
const ENDING_SIGNALS: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPWR];

/// Serves in a session of its own and reports to the process that started it.
pub fn serve_detached(directory: &Path, mountpoint: &Path, options: &MountOptions, restore: bool) -> Outcome<()> {
    // Fails only for the leader of a process group, which a child just started is not.
    nix::unistd::setsid().during("new session")?;
    let outcome = serve(directory, mountpoint, options, restore, &mut |ready| {
        tell(&Message::Ready(ready.clone()));
        release_terminal()
    });
    if let Err(failure) = &outcome {
        error!("{failure}");
        // If the mount had been ready, nobody listens any more.
        tell(&Message::Error(failure.to_string()));
    }
    outcome
}

fn tell(message: &Message) {
    use std::io::Write;
    let Ok(mut line) = serde_json::to_string(message) else { return };
    line.push('\n');
    let mut out = std::io::stdout();
    // Whoever started the mount may be gone; the mount is served all the same.
    let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// Lets go of the starter's pipe, and of the directory it was started in.
fn release_terminal() -> Outcome<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").during("/dev/null")?;
    nix::unistd::dup2_stdout(&null).during("standard output")?;
    std::env::set_current_dir("/").during("/")
}

/// From now on a panic in any thread ends the process, with its message in the log.
///
/// A server that lost a thread would go on with fewer and fewer of them, while requests wait for what that one held. What
/// it serves survives the end of the process, so that is the safe answer.
pub fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!(
            "internal error, ending the process (what was made durable is there at the next start): {info}"
        );
        print(info);
        std::process::abort();
    }));
}

pub fn serve(
    directory: &Path,
    mountpoint: &Path,
    options: &MountOptions,
    restore: bool,
    ready: &mut dyn FnMut(&Ready) -> Outcome<()>,
) -> Outcome<()> {
    start_log();
    abort_on_panic();
    let signals: SigSet = ENDING_SIGNALS.into_iter().collect();
    signals.thread_block().during("signals")?;
    let store = Store::acquire(directory, PREDECESSOR_PATIENCE)?.restoring(restore);
    clear_dead_mount(store.directory(), mountpoint)?;
    // Before the store is opened: a mount refused must leave it as it was.
    shoal_fuse::check_mountpoint(mountpoint).map_err(Failure::told)?;
    let begin = Instant::now();
    let engine = Options { read_only: options.read_only, ..Options::default() };
    let Opened { fs, recovery, bulk, survives_power_loss } = store.open(engine)?;
    let recovered = Recovered {
        clean: recovery.clean,
        power_lost: recovery.power_lost,
        records: recovery.records,
        log_bytes: recovery.bytes,
        open_ms: begin.elapsed().as_secs_f64() * 1e3,
    };
    fs.set_access_times(options.access_times);
    let fs = Arc::new(fs);
    if !options.read_only {
        store.write_pid()?;
    }
    let session = shoal_fuse::mount(fs.clone(), mountpoint, options).map_err(|error| {
        // The store was opened for nothing: leave it as clean as it was found.
        if !options.read_only && fs.shutdown().is_ok() {
            store.remove_pid();
        }
        Failure::told(error)
    })?;
    if !recovered.clean {
        info!("{recovered}");
    }
    info!("{} is mounted on {}", store.directory().display(), mountpoint.display());
    let asked = Asked {
        fs,
        directory: store.directory().to_path_buf(),
        description: store.description().clone(),
        mountpoint: mountpoint.to_path_buf(),
        survives_power_loss,
        bulk: bulk.clone(),
        requests: session.request_counts(),
    };
    let report = Ready {
        store: store.directory().display().to_string(),
        mountpoint: mountpoint.display().to_string(),
        pid: std::process::id(),
        recovery: recovered,
    };
    let listening = match control::serve(store.directory(), move |question| asked.answer(question)) {
        // A full host has no inode for the socket, and its store must be served all the more.
        Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
            warn!(
                "control socket: {error}; `df`, `inspect` and `status` of this mount work again once there is room and it is remounted"
            );
            Ok(())
        }
        outcome => outcome.during("control socket"),
    };
    let accompanied = listening.and_then(|()| wait_for_signals(signals, &session)).and_then(|()| ready(&report));
    if accompanied.is_err() {
        // Nobody will use this mount; what went wrong is told below.
        let _ = session.unmounter().unmount();
    }
    let outcome = session.wait();
    control::remove(store.directory());
    if let Some(Err(failure)) = bulk.as_ref().map(|bulk| bulk.close()) {
        // The store is what it is; its bulk device takes longer to open next time.
        warn!("{failure}");
    }
    match &outcome {
        // The connection may fail as it likes: the store is clean.
        Ok(()) | Err(shoal_fuse::Error::Connection(_)) => {
            if options.read_only {
                info!("{} is unmounted, as it was", store.directory().display());
            } else {
                store.remove_pid();
                info!("{} is unmounted and clean", store.directory().display());
            }
        }
        Err(_) => {}
    }
    accompanied?;
    outcome.during(format_args!("store {}", store.directory().display()))
}

/// What the control socket answers from.
struct Asked {
    fs: Arc<Fs>,
    directory: PathBuf,
    description: Description,
    mountpoint: PathBuf,
    survives_power_loss: bool,
    bulk: Option<Arc<dyn Device>>,
    requests: RequestCounts,
}

impl Asked {
    fn answer(&self, question: Question) -> Answer {
        let answered = match question {
            Question::Df => {
                let report = StoreReport::of(
                    &self.fs,
                    &self.directory,
                    &self.description,
                    Some(&self.mountpoint),
                    self.survives_power_loss,
                );
                serde_json::to_value(report).during("report")
            }
            Question::Inspect { path } => FileReport::of(&self.fs, Path::new(OsStr::from_bytes(&path)))
                .and_then(|report| serde_json::to_value(report).during("report")),
            Question::Status => {
                let store = Some(self.directory.display().to_string());
                let device = self.bulk.as_ref().map(|bulk| bulk.report());
                let failure = ReadOnly::of(&self.fs);
                let requests = Some(self.requests.report().into_iter().map(RequestReport::from).collect());
                serde_json::to_value(Report { export: None, store, failure, device, requests }).during("report")
            }
            Question::Remount { read_only, access_times } => {
                remount::answer(&self.fs, &self.directory, read_only, &access_times).map(|()| true.into())
            }
            Question::Resize { memory_bytes, bulk_bytes } => {
                resize_mounted(&self.fs, &self.directory, &Sizes { memory_bytes, bulk_bytes })
                    .and_then(|report| serde_json::to_value(report).during("report"))
            }
            Question::Donor { change, donor } => match &self.bulk {
                Some(bulk) => bulk.change(change, &donor).and_then(|done| {
                    // The next mount needs the new donor, too.
                    let place = Some(BulkPlace::Device(bulk.description().to_string()));
                    let description = Description { bulk: place, ..self.description.clone() };
                    description.write(&self.directory).map(|()| done.into())
                }),
                None => Err(Failure::new(self.directory.display(), "has no bulk storage")),
            },
        };
        match answered {
            Ok(value) => Answer::Ok(value),
            Err(failure) => Answer::Error(failure.to_string()),
        }
    }
}

pub fn start_log() {
    let filter = EnvFilter::try_from_env("SHOAL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // A line the log has no room for is lost; complaining about it on the same full host would end the daemon.
    let log = log.log_internal_errors(false);
    // A log that is there already is as good.
    let _ = log.try_init();
}

/// After a crash of its daemon a mount stays and answers nothing: it is taken away when its own store is mounted again.
fn clear_dead_mount(directory: &Path, mountpoint: &Path) -> Outcome<()> {
    let mounted = mount_table::mounted_at(mountpoint).during("table of mounts")?;
    // The lock is ours, so no daemon serves that mount any more.
    if mounted.is_some_and(|entry| entry.file_system_type == FILE_SYSTEM_TYPE && entry.source == directory) {
        shoal_fuse::unmount_path(mountpoint, true).during(mountpoint.display())?;
        warn!("took away the dead mount on {}", mountpoint.display());
    }
    Ok(())
}

fn wait_for_signals(signals: SigSet, session: &Session) -> Outcome<()> {
    let unmounter = session.unmounter();
    let wait = move || {
        while let Ok(signal) = signals.wait() {
            info!("{signal}: unmounting");
            match unmounter.unmount() {
                Ok(Unmounted::Busy) => warn!("the mount was in use and has been cut off"),
                Ok(Unmounted::Idle | Unmounted::Gone) => {}
                Err(error) => error!("{error}"),
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop).during("signal thread")
}
