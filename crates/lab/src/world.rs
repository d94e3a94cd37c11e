//! Everything that the experiment makes on this machine, and its removal.
//!
//! Owns: [`World`]: a scratch directory, and the list of what was made: processes, mounts, loop
//! devices, network namespaces. Rules: what was made last is removed first, also after a failure. A
//! process is ended by its id while it is our child, so that the id cannot be another's. Every
//! program has a time-out. Work on a mount has one, too: when it is over, the processes behind the
//! mounts are killed, which ends calls that wait for them. Left out: a SIGKILL of the experiment,
//! after which the namespaces of the command line end everything.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use shoal_nbd::Server;

use crate::experiment::LabError;
use crate::trees::programs::Programs;

const READY_WITHIN: Duration = Duration::from_secs(30);
const ENDS_WITHIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);
/// Maximum number of lines of a log that an error shows, from the end.
const LOG_LINES: usize = 5;

/// Where programs for root are, which not every PATH names.
const SYSTEM_PATH: &str = ":/usr/sbin:/sbin";

/// Something on this machine that must be removed.
enum Made {
    /// A child, and the signal that ends it.
    Process {
        name: String,
        child: Child,
        ends_by: Signal,
    },
    Mount(PathBuf),
    /// A mount of a FUSE file system, which ends its daemon.
    Fuse(PathBuf),
    /// A loop device that ends when nobody has it open, and the handle that keeps it.
    Loop(File),
    Namespace(String),
    /// A pair of veth devices, by its end outside of the namespace.
    Link(String),
    /// A server in this process.
    Served(Box<Server>),
}

pub struct World {
    programs: Programs,
    /// A number that no other run on this machine has.
    pub tag: u32,
    made: Vec<Made>,
    /// The directory that was made, and the tmpfs in it.
    directory: PathBuf,
    scratch: PathBuf,
}

/// Returns an error about something that could not be made or measured.
pub fn broken(what: impl ToString, why: impl ToString) -> LabError {
    LabError::Broken { what: what.to_string(), why: why.to_string() }
}

/// Finds programs as the experiment does. Returns those that are missing.
pub fn missing(names: &[&'static str]) -> Vec<&'static str> {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(SYSTEM_PATH);
    let programs = Programs { path, timeout: Duration::ZERO, scratch: PathBuf::new() };
    names.iter().copied().filter(|name| !programs.has(name)).collect()
}

/// Returns whether there is a mount at this path.
pub fn is_mounted(path: &Path) -> bool {
    // Paths of the experiment have no characters that this file escapes.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path))
}

fn has_ended(child: &mut Child, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL),
            Ok(None) => return false,
            Ok(Some(_)) | Err(_) => return true,
        }
    }
}

/// Ends a child: by its signal, then by SIGKILL.
fn end(child: &mut Child, by: Signal) {
    if !has_ended(child, Duration::ZERO) {
        let _ = kill_process(Pid::from_child(child), by);
    }
    if !has_ended(child, ENDS_WITHIN) {
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl World {
    /// Makes the scratch directory below the directory for temporary files. It is on a tmpfs of its
    /// own, so that its contents end with its mount, whatever ends that.
    pub fn new(timeout: Duration) -> Result<World, LabError> {
        // Process ids do not tell runs apart that are in process namespaces of their own.
        let tag = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u32);
        let directory = std::env::temp_dir().join(format!("shoal-lab-{tag:08x}"));
        let scratch = directory.join("memory");
        fs::create_dir(&directory).map_err(|error| broken(directory.display(), error))?;
        let mut path = std::env::var_os("PATH").unwrap_or_default();
        path.push(SYSTEM_PATH);
        let programs = Programs { path, timeout, scratch: directory.clone() };
        let mut world = World { programs, tag, made: vec![], directory, scratch };
        fs::create_dir(&world.scratch).map_err(|error| broken(world.scratch.display(), error))?;
        world.programs.run("mount", &[&"-t", &"tmpfs", &"lab", &world.scratch], &world.directory)?;
        world.made.push(Made::Mount(world.scratch.clone()));
        // From now on, also what programs say is on the tmpfs.
        world.programs.scratch = world.scratch.clone();
        for entry in fs::read_dir(&world.directory).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
        Ok(world)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    pub fn make_directory(&self, name: &str) -> Result<PathBuf, LabError> {
        let path = self.path(name);
        fs::create_dir(&path).map_err(|error| broken(path.display(), error))?;
        Ok(path)
    }

    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Runs a program to its end. Returns its output.
    pub fn run(&self, name: &str, words: &[&dyn AsRef<OsStr>]) -> Result<String, LabError> {
        Ok(self.programs.run(name, words, &self.directory)?.output)
    }

    /// Runs a command of `shoal` to its end.
    pub fn run_shoal(&self, shoal: &Path, words: &[&dyn AsRef<OsStr>]) -> Result<(), LabError> {
        let broken_path = || broken(shoal.display(), "not a path of a program; name another with --shoal");
        // The program is found by its whole path.
        let path = shoal.to_str().ok_or_else(broken_path)?;
        self.run(path, words).map(drop)
    }

    fn log(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.log"))
    }

    /// Returns the last lines of a process's log.
    fn said(&self, name: &str) -> String {
        let log = fs::read_to_string(self.log(name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join(" / ")
    }

    /// Starts a process that runs until the end, and waits until it is ready.
    pub fn start(
        &mut self,
        name: &str,
        ends_by: Signal,
        words: &[&dyn AsRef<OsStr>],
        is_ready: impl Fn() -> bool,
    ) -> Result<(), LabError> {
        let log = File::create(self.log(name)).map_err(|error| broken(name, error))?;
        let complaints = log.try_clone().map_err(|error| broken(name, error))?;
        let mut command = Command::new(words[0].as_ref());
        command.args(words[1..].iter().map(AsRef::as_ref)).current_dir(&self.directory);
        command.env("PATH", &self.programs.path).stdin(Stdio::null()).stdout(log).stderr(complaints);
        let child = command.spawn().map_err(|error| broken(name, error))?;
        self.made.push(Made::Process { name: name.into(), child, ends_by });
        let deadline = Instant::now() + READY_WITHIN;
        while !is_ready() {
            let Some(Made::Process { child, .. }) = self.made.last_mut() else { unreachable!("just pushed") };
            if has_ended(child, POLL) {
                return Err(broken(name, format!("ended before it was ready: {}", self.said(name))));
            }
            if Instant::now() > deadline {
                let limit_s = READY_WITHIN.as_secs();
                return Err(broken(name, format!("not ready after {limit_s} s: {}", self.said(name))));
            }
        }
        Ok(())
    }

    /// Runs work that uses the mounts. If it takes too long, the processes behind them are killed.
    pub fn guarded<T>(&self, what: &str, work: impl FnOnce() -> Result<T, LabError>) -> Result<T, LabError> {
        let timeout = self.programs.timeout;
        let children = self.made.iter().filter_map(|made| match made {
            Made::Process { child, .. } => Some(Pid::from_child(child)),
            _ => None,
        });
        let children: Vec<Pid> = children.collect();
        let is_late = AtomicBool::new(false);
        let (at_work, done) = mpsc::channel::<()>();
        let result = std::thread::scope(|scope| {
            let (is_late, children) = (&is_late, &children);
            scope.spawn(move || {
                if done.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
                    is_late.store(true, Ordering::Relaxed);
                    // None of them has been waited for, so no id has been used again.
                    for pid in children {
                        let _ = kill_process(*pid, Signal::KILL);
                    }
                }
            });
            let result = work();
            drop(at_work);
            result
        });
        if is_late.load(Ordering::Relaxed) {
            let limit_s = timeout.as_secs_f64();
            return Err(broken(what, format!("not done after {limit_s} s; give it more time with --timeout")));
        }
        result
    }

    pub fn add_namespace(&mut self, name: &str) -> Result<(), LabError> {
        self.run("ip", &[&"netns", &"add", &name])?;
        self.made.push(Made::Namespace(name.into()));
        Ok(())
    }

    /// Makes a pair of veth devices, with the end `eth0` in a namespace.
    pub fn add_link(&mut self, name: &str, namespace: &str) -> Result<(), LabError> {
        let words: [&dyn AsRef<OsStr>; 10] =
            [&"link", &"add", &name, &"type", &"veth", &"peer", &"name", &"eth0", &"netns", &namespace];
        self.run("ip", &words)?;
        self.made.push(Made::Link(name.into()));
        Ok(())
    }

    /// Says that a FUSE mount of a started process is at this path.
    pub fn has_fuse(&mut self, path: &Path) {
        self.made.push(Made::Fuse(path.into()));
    }

    /// Keeps a server of this process until what uses it is removed.
    pub fn serves(&mut self, server: Server) {
        self.made.push(Made::Served(Box::new(server)));
    }

    /// Attaches a loop device to a file, without a cache of its own. Returns the device.
    pub fn attach(&mut self, file: &Path) -> Result<PathBuf, LabError> {
        let device = PathBuf::from(self.run("losetup", &[&"--find", &"--show", &"--direct-io=on", &file])?);
        let handle = File::open(&device).map_err(|error| broken(device.display(), error));
        // The device is open. So it goes when its last user closes it, even if that user is killed.
        self.run("losetup", &[&"--detach", &device])?;
        self.made.push(Made::Loop(handle?));
        Ok(device)
    }

    /// Attaches a loop device to a sparse file of the host's, which ends with the device.
    pub fn attach_new(&mut self, name: &str, bytes: u64) -> Result<PathBuf, LabError> {
        let path = self.directory.join(name);
        let made = File::create_new(&path).and_then(|file| file.set_len(bytes));
        made.map_err(|error| broken(path.display(), error))?;
        let device = self.attach(&path);
        fs::remove_file(&path).map_err(|error| broken(path.display(), error))?;
        device
    }

    pub fn mount(&mut self, kind: &str, device: &Path, at: &Path, options: &str) -> Result<(), LabError> {
        self.run("mount", &[&"-t", &kind, &"-o", &options, &device, &at])?;
        self.made.push(Made::Mount(at.into()));
        Ok(())
    }

    /// Unmounts a file system that [`World::mount`] mounted.
    pub fn unmount(&mut self, at: &Path) -> Result<(), LabError> {
        self.run("umount", &[&at])?;
        self.made.retain(|made| !matches!(made, Made::Mount(path) if path == at));
        Ok(())
    }

    /// Unmounts a FUSE file system and waits for its daemon.
    pub fn unmount_fuse(&mut self, daemon: &str, at: &Path) -> Result<(), LabError> {
        self.run("umount", &[&at])?;
        self.made.retain(|made| !matches!(made, Made::Fuse(path) if path == at));
        let is_daemon = |made: &Made| matches!(made, Made::Process { name, .. } if name == daemon);
        let Some(number) = self.made.iter().position(is_daemon) else { return Ok(()) };
        let Made::Process { child, .. } = &mut self.made[number] else { unreachable!("just found") };
        if !has_ended(child, READY_WITHIN) {
            let limit_s = READY_WITHIN.as_secs();
            return Err(broken(daemon, format!("still runs {limit_s} s after its unmount: {}", self.said(daemon))));
        }
        self.made.remove(number);
        Ok(())
    }

    /// Removes one thing. Returns the reason why it is still there, if it is.
    fn remove(&self, made: Made) -> Option<String> {
        let done = match made {
            Made::Process { mut child, ends_by, .. } => {
                end(&mut child, ends_by);
                return None;
            }
            // A lazy unmount takes a mount out of the tree even if it is busy or does not answer.
            Made::Mount(path) | Made::Fuse(path) if is_mounted(&path) => {
                self.run("umount", &[&path]).or_else(|_| self.run("umount", &[&"-l", &path]))
            }
            Made::Mount(_) | Made::Fuse(_) => return None,
            Made::Loop(handle) => {
                drop(handle);
                return None;
            }
            Made::Served(server) => {
                drop(server);
                return None;
            }
            Made::Link(name) => self.run("ip", &[&"link", &"del", &name]),
            Made::Namespace(name) => self.run("ip", &[&"netns", &"del", &name]),
        };
        done.err().map(|error| error.to_string())
    }

    /// Removes everything. Returns what could not be removed.
    pub fn close(&mut self) -> Vec<String> {
        let mut left = vec![];
        // The tmpfs must not be in use when its turn comes.
        self.programs.scratch = self.directory.clone();
        while let Some(made) = self.made.pop() {
            left.extend(self.remove(made));
        }
        // A mount that is still below this directory is not entered.
        if left.is_empty() && self.directory.exists() {
            let removed = fs::remove_dir_all(&self.directory);
            left.extend(removed.err().map(|error| format!("{}: {error}", self.directory.display())));
        }
        left
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // After a failure, which is reported itself. What is left is said here, or nowhere.
        for left in self.close() {
            eprintln!("shoal: lab: left behind: {left}; remove it by hand");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a world, which takes root.
    fn world(timeout: Duration) -> Option<World> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: mounting a tmpfs takes root");
            return None;
        }
        Some(World::new(timeout).unwrap())
    }

    #[test]
    fn what_was_started_ends_with_the_world() {
        let Some(mut world) = world(Duration::from_secs(20)) else { return };
        let scratch = world.directory.clone();
        world.start("sleeper", Signal::TERM, &[&"sleep", &"600"], || true).unwrap();
        let Some(Made::Process { child, .. }) = world.made.last() else { panic!("no process") };
        let process = PathBuf::from(format!("/proc/{}", child.id()));
        assert!(process.exists() && scratch.exists());
        drop(world);
        assert!(!process.exists() && !scratch.exists());
    }

    #[test]
    fn a_process_that_ends_early_is_told_with_its_last_words() {
        let Some(mut world) = world(Duration::from_secs(20)) else { return };
        let said = world.start("sayer", Signal::TERM, &[&"sh", &"-c", &"echo no room; exit 1"], || false);
        let said = said.unwrap_err().to_string();
        assert!(said.contains("sayer: ended before it was ready: no room"), "{said}");
    }

    #[test]
    fn work_that_takes_too_long_loses_its_processes_and_says_so() {
        let Some(mut world) = world(Duration::from_secs(20)) else { return };
        world.programs.timeout = Duration::from_millis(50);
        world.start("sleeper", Signal::TERM, &[&"sleep", &"600"], || true).unwrap();
        let Some(Made::Process { child, .. }) = world.made.last_mut() else { panic!("no process") };
        let status = format!("/proc/{}/status", child.id());
        let waits = || {
            let is_there = || fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ"));
            while is_there() {
                std::thread::sleep(POLL);
            }
            Ok(())
        };
        let said = world.guarded("tar at disk", waits).unwrap_err().to_string();
        assert!(said.contains("tar at disk: not done after 0.05 s") && said.contains("--timeout"), "{said}");
        world.programs.timeout = Duration::from_secs(20);
        assert!(world.guarded("quick", || Ok(7)).is_ok_and(|seven| seven == 7));
    }
}
