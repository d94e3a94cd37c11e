//! Programs run as child processes.
//!
//! Owns: [`Programs`]: where they are found, in what environment they run, and how long they may
//! take. Rules: the time is from the start of a child to its end, taken when it ends instead of at
//! the next poll. A child that takes too long is killed. A failure includes what the program said.
//! The user's settings of git and tar do not reach them, so a command makes the same calls
//! everywhere.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::experiment::LabError;

/// User variables that change what the programs do.
const SETTINGS: [&str; 7] = [
    "TAR_OPTIONS",
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_TEMPLATE_DIR",
    "GIT_OPTIONAL_LOCKS",
];
const ENVIRONMENT: [(&str, &str); 9] = [
    ("LC_ALL", "C"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_AUTHOR_NAME", "lab"),
    ("GIT_AUTHOR_EMAIL", "lab@localhost"),
    ("GIT_COMMITTER_NAME", "lab"),
    ("GIT_COMMITTER_EMAIL", "lab@localhost"),
    ("GIT_AUTHOR_DATE", "1600000000 +0000"),
    ("GIT_COMMITTER_DATE", "1600000000 +0000"),
];
/// Maximum number of characters of a program's output that an error shows, from the end.
const COMPLAINT_MAX: usize = 500;

#[derive(Debug)]
pub struct Programs {
    /// Directories, in the form of the environment's `PATH`.
    pub path: OsString,
    pub timeout: Duration,
    /// Directory that keeps the output of a program until the next one runs.
    pub scratch: PathBuf,
}

/// The result of a program.
#[derive(Debug)]
pub struct Ran {
    pub took_s: f64,
    pub output: String,
}

impl Programs {
    fn find(&self, name: &str) -> Option<PathBuf> {
        let is_program =
            |path: &PathBuf| fs::metadata(path).is_ok_and(|of| of.is_file() && of.permissions().mode() & 0o111 != 0);
        std::env::split_paths(&self.path).map(|directory| directory.join(name)).find(is_program)
    }

    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Loads a program into memory, so that no place waits for the disk of the program.
    pub fn load(&self, name: &str) {
        // A program that does not know the option is loaded as well.
        let _ = self.run(name, &[&"--version"], &self.scratch);
    }

    fn command(&self, program: &Path, words: &[&dyn AsRef<OsStr>], directory: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(words.iter().map(AsRef::as_ref)).current_dir(directory).stdin(Stdio::null());
        command.envs(ENVIRONMENT).env("PATH", &self.path);
        for name in SETTINGS {
            command.env_remove(name);
        }
        command
    }

    /// Runs a program to its end, which must be successful.
    pub fn run(&self, name: &str, words: &[&dyn AsRef<OsStr>], directory: &Path) -> Result<Ran, LabError> {
        let broken = |why: String| LabError::Broken { what: format!("{name}, in {}", directory.display()), why };
        let program = self.find(name).ok_or_else(|| broken("not in PATH; install it".into()))?;
        // Use files instead of pipes, which somebody would have to empty during the measurement.
        let [output, complaint] = ["output", "complaint"].map(|name| self.scratch.join(name));
        let create = |path| File::create(path).map_err(|error| broken(format!("{}: {error}", self.scratch.display())));
        let mut command = self.command(&program, words, directory);
        command.stdout(create(&output)?).stderr(create(&complaint)?);
        let clock = Instant::now();
        let mut child = command.spawn().map_err(|error| broken(error.to_string()))?;
        let has_ended = self.wait(&child);
        if !matches!(has_ended, Ok(true)) {
            // The child may have ended in the meantime.
            let _ = child.kill();
        }
        let status = child.wait().map_err(|error| broken(error.to_string()))?;
        let took_s = clock.elapsed().as_secs_f64();
        if !has_ended.map_err(|error| broken(error.to_string()))? {
            let limit_s = self.timeout.as_secs_f64();
            return Err(broken(format!("not done after {limit_s} s; give it more time with --timeout")));
        }
        let read = |path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).trim().to_string());
        if !status.success() {
            let said = read(&complaint).unwrap_or_default();
            let from = said.char_indices().rev().take(COMPLAINT_MAX).last().map_or(0, |(at, _)| at);
            return Err(broken(format!("{status}: {}", &said[from..])));
        }
        Ok(Ran { took_s, output: read(&output).map_err(|error| broken(error.to_string()))? })
    }

    /// Waits for the child. Returns false if it has not ended in time.
    fn wait(&self, child: &Child) -> Result<bool, Errno> {
        let ends = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        let deadline = Instant::now() + self.timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&left)) {
                Err(Errno::INTR) => {}
                other => return Ok(other? > 0),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(scratch: &Path) -> Programs {
        let path = std::env::var_os("PATH").unwrap();
        Programs { path, timeout: Duration::from_secs(60), scratch: scratch.into() }
    }

    #[test]
    fn a_program_is_waited_for_and_heard() {
        let scratch = tempfile::tempdir().unwrap();
        let programs = programs(scratch.path());
        let ran = programs.run("sh", &[&"-c", &"pwd; sleep 0.1"], Path::new("/")).unwrap();
        assert_eq!(ran.output, "/");
        assert!(ran.took_s >= 0.1, "{} s", ran.took_s);
        let error = programs.run("sh", &[&"-c", &"echo no room >&2; exit 3"], Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("sh, in /") && error.contains("exit status: 3: no room"), "{error}");
    }

    #[test]
    fn the_users_settings_do_not_reach_a_program() {
        let programs = programs(Path::new("/"));
        let command = programs.command(Path::new("git"), &[], Path::new("/"));
        let of = |name: &str| command.get_envs().find(|(key, _)| *key == name).map(|(_, value)| value);
        assert_eq!(of("GIT_DIR"), Some(None), "taken away");
        assert_eq!(of("GIT_CONFIG_GLOBAL"), Some(Some(OsStr::new("/dev/null"))));
        assert_eq!(of("HOME"), None, "as it is");
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let scratch = tempfile::tempdir().unwrap();
        let programs = Programs { timeout: Duration::from_millis(50), ..programs(scratch.path()) };
        let clock = Instant::now();
        let error = programs.run("sleep", &[&"50"], Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("sleep") && error.contains("0.05 s") && error.contains("--timeout"), "{error}");
        assert!(clock.elapsed() < Duration::from_secs(40));
    }

    #[test]
    fn what_is_no_program_is_not_found() {
        let scratch = tempfile::tempdir().unwrap();
        fs::write(scratch.path().join("git"), "not to be run").unwrap();
        let programs = Programs { path: scratch.path().into(), ..programs(scratch.path()) };
        assert!(!programs.has("git"));
        let error = programs.run("git", &[], Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("git, in /: not in PATH; install it"), "{error}");
    }
}
