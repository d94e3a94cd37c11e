//! The process that serves a mount: opens the store, mounts it, answers until the mount is gone, shuts the store down.
//!
//! Order: signals are blocked before the first thread starts (a thread of their own waits for them); then come lock,
//! mount with its control socket, and the ready message. The process ends when the mount does. SIGTERM, SIGINT, SIGHUP
//! and SIGPWR unmount even if the mount is in use, because a clean store is worth more than its last users.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use serde::{Deserialize, Serialize};
use shoal_devices::{During, Outcome};
use shoal_fuse::{MountOptions, Unmounted, Unmounter};
use shoal_store::{Recovered, Store};
use tracing::{error, info, warn};
use tracing_subscriber::EnvFilter;

/// How long to wait for an earlier daemon, which may still be writing the store after umount(8).
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(60);
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

/// Serves in a session of its own and reports to the process that started it. A failure is in the log then, once, and the exit code says
/// so to others.
pub fn serve_detached(directory: &Path, mountpoint: &Path, options: &MountOptions, restore: bool) -> Outcome<ExitCode> {
    // Fails only for the leader of a process group, and a new child is none.
    nix::unistd::setsid().during("new session")?;
    let outcome = serve(directory, mountpoint, options, restore, &mut |ready| {
        tell(&Message::Ready(ready.clone()));
        release_terminal()
    });
    let Err(failure) = outcome else { return Ok(ExitCode::SUCCESS) };
    error!("{failure}");
    // Once the mount was ready, the starter does not listen any more.
    tell(&Message::Error(failure.to_string()));
    Ok(ExitCode::FAILURE)
}

fn tell(message: &Message) {
    use std::io::Write;
    let Ok(mut line) = serde_json::to_string(message) else { return };
    line.push('\n');
    let mut out = std::io::stdout();
    // The starter may be gone; the mount is served all the same.
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
/// A server that lost a thread would go on with fewer of them, while requests wait for locks that it held. The store
/// survives the end of the process, so ending it is safe.
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
    let mounted = store.mount(mountpoint, options)?;
    let report = Ready {
        store: mounted.directory().display().to_string(),
        mountpoint: mountpoint.display().to_string(),
        pid: std::process::id(),
        recovery: mounted.recovered().clone(),
    };
    let accompanied = wait_for_signals(signals, mounted.unmounter()).and_then(|()| ready(&report));
    if accompanied.is_err() {
        // The mount is given up; the error is reported below.
        let _ = mounted.unmounter().unmount();
    }
    let outcome = mounted.wait();
    accompanied?;
    outcome
}

pub fn start_log() {
    let filter = EnvFilter::try_from_env("SHOAL_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // A line that the log has no room for is lost. Reporting that on the same full host would end the daemon.
    let log = log.log_internal_errors(false);
    // A log that was started before is kept.
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
