//! Kills a daemon, as a crash of its process would.
//!
//! Left out: the mount it leaves behind, which each test removes in its own way.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Sends SIGKILL to the daemon of the store in `directory` and waits until it is gone. The dead
/// mount stays.
pub fn kill_daemon(directory: &Path) {
    let text = fs::read_to_string(directory.join("pid")).unwrap();
    let pid = Pid::from_raw(text.lines().next().unwrap().parse().unwrap());
    kill(pid, Signal::SIGKILL).unwrap();
    let begin = Instant::now();
    // The daemon is not a child of this process, so only its absence shows that it has ended.
    while kill(pid, None).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(30), "the daemon does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}
