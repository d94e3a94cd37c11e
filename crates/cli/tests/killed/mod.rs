//! The end of a daemon as a crash of its process.
//!
//! Left out: the mount it leaves behind, which each test clears its own way.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Waits until no log segment is being made. What is half made is removed by the next opening, whatever that is for; a test that
/// looks for changes must not find this one.
#[allow(dead_code, reason = "for tests that look for changes")]
pub fn wait_for_log(directory: &Path) {
    let half_made = || {
        let names = fs::read_dir(directory.join("log")).into_iter().flatten();
        names.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("new-"))
    };
    let begin = Instant::now();
    while half_made() {
        assert!(begin.elapsed() < Duration::from_secs(30), "a log segment is not finished");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends SIGKILL to the daemon of the store in `directory`, and waits until it is gone. The dead mount stays.
pub fn kill_daemon(directory: &Path) {
    let text = fs::read_to_string(directory.join("pid")).unwrap();
    let pid = Pid::from_raw(text.lines().next().unwrap().parse().unwrap());
    kill(pid, Signal::SIGKILL).unwrap();
    let begin = Instant::now();
    // It is no child of this process: its end is seen by its absence.
    while kill(pid, None).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(30), "the daemon does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}
