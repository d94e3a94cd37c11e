//! The process that serves a mount: opens the store, mounts it, answers requests until the mount is
//! gone, and shuts the store down.
//!
//! Order: signals are blocked before the first thread starts (a dedicated thread waits for them);
//! then come lock, mount with its control socket, and the ready message. The process ends when the
//! mount does. SIGTERM, SIGINT, SIGHUP and SIGPWR unmount even if the mount is in use, because a
//! clean store matters more than its last users.
//!
//! A detached daemon inherits nothing from its environment except the descriptors that the starter
//! gave it: signals and limits have their defaults, and its working directory is `/`. A foreground
//! daemon belongs to a supervisor: it keeps its descriptors and lifts limits that would end it, as
//! far as it may. If the ready message cannot be delivered, the mount is undone, because the
//! starter has ended by then.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};
use shoal_devices::{During, Failure, Outcome};
use shoal_fuse::{Unmounted, Unmounter};
use shoal_store::{MountOptions, Recovered, Store};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

/// Time to wait for an earlier daemon, which may still be writing the store after umount(8).
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(60);
/// Signals that end a serving process.
const ENDING_SIGNALS: [Signal; 4] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPWR];

/// The daemon's report when it is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    pub store: String,
    pub mountpoint: String,
    pub pid: u32,
    pub recovery: Recovered,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    Ready(Ready),
    Error(String),
}

/// Serves in a new session and reports to the process that started it. A failure is logged once,
/// and the exit code shows it to others.
pub fn serve_detached(directory: &Path, mountpoint: &Path, options: &MountOptions, restore: bool) -> Outcome<ExitCode> {
    shoal_host::leave_starter();
    // This fails only for the leader of a process group. A new child is not one.
    nix::unistd::setsid().during("new session")?;
    let outcome = serve(directory, mountpoint, options, restore, &mut |ready| {
        let told = tell(&Message::Ready(ready.clone()));
        told.map_err(|error| {
            Failure::new("the process that asked for the mount has ended", error).remedy("mount it again")
        })?;
        release_terminal()
    });
    let Err(failure) = outcome else { return Ok(ExitCode::SUCCESS) };
    error!("{failure}");
    // The starter stops listening once the mount is ready, or when the starter has ended.
    let _ = tell(&Message::Error(failure.to_string()));
    Ok(ExitCode::FAILURE)
}

fn tell(message: &Message) -> std::io::Result<()> {
    use std::io::Write;
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    let mut out = std::io::stdout();
    out.write_all(line.as_bytes()).and_then(|()| out.flush())
}

/// Blocks the signals that end a serving process, in this thread and in those it starts, and
/// returns them: one thread waits for them. SIGHUP does not end a process that was told to ignore
/// it (`nohup`).
pub fn ending_signals() -> Outcome<SigSet> {
    let ignored = |signal: &Signal| *signal == Signal::SIGHUP && shoal_host::is_ignored(*signal as i32);
    let signals: SigSet = ENDING_SIGNALS.into_iter().filter(|signal| !ignored(signal)).collect();
    signals.thread_block().during("signals")?;
    Ok(signals)
}

/// Releases the starter's pipe and the starter's working directory.
fn release_terminal() -> Outcome<()> {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").during("/dev/null")?;
    nix::unistd::dup2_stdout(&null).during("standard output")?;
    std::env::set_current_dir("/").during("/")
}

/// Makes a panic in any thread end the process, with its message in the log.
///
/// A server that lost a thread would continue with fewer threads, while requests wait for locks
/// that the lost thread held. The store survives the end of the process, so ending it is safe.
pub fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tracing::error!("internal error, the process ends (everything durable is there at the next start): {info}");
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
    let signals = ending_signals()?;
    shoal_host::lift_limits();
    shoal_host::keep_heap_small();
    let store = Store::acquire(directory, PREDECESSOR_PATIENCE)?.restoring(restore);
    let mounted = store.mount(mountpoint, options)?;
    let report = Ready {
        store: mounted.directory().display().to_string(),
        mountpoint: mountpoint.display().to_string(),
        pid: std::process::id(),
        recovery: mounted.recovered().clone(),
    };
    let accompanied = wait_for_signals(signals, mounted.unmounter()).and_then(|()| ready(&report));
    if accompanied.is_err() {
        // Give up the mount; the error is reported below.
        let _ = mounted.unmounter().unmount();
    }
    let outcome = mounted.wait();
    accompanied?;
    outcome
}

pub fn start_log() {
    let filter = EnvFilter::try_from_env("SHOAL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // A line is lost if the log has no room for it. Reporting that on the same full host would end
    // the daemon.
    let log = log.log_internal_errors(false);
    // Keep a log that was started before.
    let _ = log.try_init();
}

fn wait_for_signals(signals: SigSet, unmounter: Unmounter) -> Outcome<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_daemon_tells_is_understood() {
        let ready = Ready {
            store: "/s".into(),
            mountpoint: "/m".into(),
            pid: 7,
            recovery: Recovered {
                clean: false,
                power_lost: true,
                bulk_moved: vec![],
                records: 3,
                log_bytes: 2048,
                open_ms: 1.6,
            },
        };
        let line = serde_json::to_string(&Message::Ready(ready.clone())).unwrap();
        assert!(!line.contains('\n'));
        assert!(matches!(serde_json::from_str(&line).unwrap(), Message::Ready(back) if back == ready));
    }
}
