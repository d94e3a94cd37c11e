//! `shoal mount` as seen from the terminal: checks, starts the daemon, waits until it is ready.
//!
//! The daemon is this program again, in a session of its own (`daemon`). It reports on its standard
//! output, in one JSON line, that the mount answers, or why not. Its standard error is the store's
//! log. `--foreground` does the daemon's work in this process. `mount.fuse.shoal` is the same
//! command as called by mount(8). The daemon gets exactly three descriptors. If it ends before it
//! is ready, for whatever reason, its mount is removed.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use shoal_devices::{During, Failure, Outcome};
use shoal_fuse::{KernelUring, Transport};
use shoal_host::Directory;
use shoal_store::{DAEMON_LOG, Store, holder, is_mounted_from, place};

use crate::args::{MountArgs, MountHelper};
use crate::daemon::{Message, Ready};
use crate::json;
use crate::{bulk, daemon, mount_options, remount};

/// Size above which a log is replaced by a new one when the store is mounted (bytes).
const LOG_BYTES_MAX: u64 = 1 << 20;
/// Time that the kernel may need to tear down a daemon that has ended.
const DYING_PATIENCE: Duration = Duration::from_secs(5);
/// Silence after which a daemon may be waiting for an earlier one.
const QUIET: Duration = Duration::from_secs(2);

pub fn run(args: &MountArgs) -> Outcome<ExitCode> {
    // Report a missing store and wrong options before starting anything.
    let (directory, mountpoint) = places(&args.store, &args.mountpoint)?;
    let is_root = nix::unistd::geteuid().is_root();
    let mut lists = args.options.clone();
    lists.extend(args.restore.then(|| mount_options::RESTORE.to_string()));
    let options =
        mount_options::parse(&lists, &directory, is_root).map_err(|error| Failure::new("-o", error).misuse())?;
    let restore = mount_options::wants_restore(&lists);
    if mount_options::is_remount(&args.options) {
        let done = remount::run(&directory, &mountpoint, &args.options)?;
        if args.json {
            json::print_json(&done);
        } else {
            let how = if done.read_only { "read-only, and everything in it is durable" } else { "read-write" };
            println!("{} on {} is {how}", done.store, done.mountpoint);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.report_ready {
        return daemon::serve_detached(&directory, &mountpoint, &options, restore);
    }
    if args.enable_uring {
        enable_uring(args.json)?;
    }
    place::refuse_silent_at(&mountpoint)?;
    if args.foreground {
        let json = args.json;
        daemon::serve(&directory, &mountpoint, &options, restore, &mut |ready| {
            print(ready, json);
            Ok(())
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    let ready = start(&directory, &mountpoint, &lists)?;
    print(&ready, args.json);
    let is_told = is_root && !args.json && std::io::stdout().is_terminal();
    if is_told && options.fuse.transport == Transport::Auto && KernelUring::now() == KernelUring::Off {
        println!("FUSE over io_uring is off in this kernel; `shoal mount --enable-uring` is two to four times as fast");
    }
    Ok(ExitCode::SUCCESS)
}

/// Switches FUSE over io_uring on.
fn enable_uring(is_quiet: bool) -> Outcome<()> {
    let about = "--enable-uring";
    match KernelUring::now() {
        KernelUring::On => Ok(()),
        KernelUring::Absent => Err(Failure::new(about, "this kernel has no FUSE over io_uring")
            .remedy("Linux 6.14 and later have it; mount without the option")),
        KernelUring::Off => {
            KernelUring::switch_on()
                .map_err(|error| Failure::new(about, error).remedy("only root can switch it on"))?;
            if !is_quiet {
                println!("FUSE over io_uring is on until the next boot (`shoal doctor` says how to keep it)");
            }
            Ok(())
        }
    }
}

/// Returns the store's directory and the mount point as absolute paths. Touches nothing behind a
/// daemon that does not answer.
fn places(store: &Path, mountpoint: &Path) -> Outcome<(PathBuf, PathBuf)> {
    place::passable(store)?;
    Store::describe(store)?;
    let directory = store.canonicalize().during(store.display())?;
    Ok((directory, std::path::absolute(mountpoint).during(mountpoint.display())?))
}

/// Mounts quietly for `mount.fuse.shoal`, as mount(8) expects.
pub fn run_helper(args: &MountHelper) -> Outcome<()> {
    let (directory, mountpoint) = places(&args.store, &args.mountpoint)?;
    let mut lists = args.options.clone();
    if args.sloppy {
        let words = args.options.iter().flat_map(|list| list.split(','));
        lists = words
            .filter(|w| mount_options::parse(&[w.to_string()], &directory, true).is_ok())
            .map(String::from)
            .collect();
    }
    if mount_options::is_remount(&lists) && !args.fake {
        return remount::run(&directory, &mountpoint, &lists).map(drop);
    }
    mount_options::parse(&lists, &directory, true).map_err(|error| Failure::new("-o", error))?;
    if args.fake {
        return Ok(());
    }
    place::refuse_silent_at(&mountpoint)?;
    let ready = start(&directory, &mountpoint, &lists)?;
    if args.verbose {
        print(&ready, false);
    }
    Ok(())
}

fn start(directory: &Path, mountpoint: &Path, options: &[String]) -> Outcome<Ready> {
    let program = std::env::current_exe().during("own program")?;
    let mut command = Command::new(program);
    command.arg("mount").arg("--report-ready");
    // Skip empty lists: after `-o` without a list the next word would be taken for one.
    for list in options.iter().filter(|list| !list.is_empty()) {
        // Pass option and list as one word, because a list may begin with a dash.
        command.arg(format!("-o{list}"));
    }
    command.arg("--").arg(directory).arg(mountpoint);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(open_log(directory)?);
    shoal_host::keep_descriptors();
    let mut child = command.spawn().during("daemon")?;
    let line = match child.stdout.take() {
        Some(stdout) => first_line(stdout, || tell_of_wait(directory, child.id())).during("daemon")?,
        None => String::new(),
    };
    match serde_json::from_str(&line) {
        Ok(Message::Ready(ready)) => {
            bulk::warn_of_lost(directory);
            Ok(ready)
        }
        Ok(Message::Error(error)) => {
            // The child is about to end. Wait for it, so that an immediate second mount does not
            // find the store locked.
            let _ = child.wait();
            take_away(directory, mountpoint);
            Err(Failure::told(error))
        }
        Err(_) => {
            let status = child.wait().during("daemon")?;
            take_away(directory, mountpoint);
            let log = directory.join(DAEMON_LOG);
            Err(Failure::new("daemon", format!("ended before the mount was ready ({status})"))
                .remedy(format!("{} tells more", log.display())))
        }
    }
}

/// Returns the daemon's first line. Calls `late` if the line takes a while.
fn first_line(stdout: ChildStdout, late: impl FnOnce()) -> io::Result<String> {
    let (sender, receiver) = mpsc::channel();
    let read = move || {
        let mut line = String::new();
        let outcome = BufReader::new(stdout).read_line(&mut line).map(|_| line);
        // The receiver waits for the line, so this cannot fail.
        let _ = sender.send(outcome);
    };
    std::thread::Builder::new().name("daemon-line".into()).spawn(read)?;
    let ended = || io::Error::from(io::ErrorKind::BrokenPipe);
    match receiver.recv_timeout(QUIET) {
        Err(mpsc::RecvTimeoutError::Timeout) => {
            late();
            receiver.recv().map_err(|_| ended())?
        }
        outcome => outcome.map_err(|_| ended())?,
    }
}

/// Reports which process the daemon waits for, if any.
fn tell_of_wait(directory: &Path, daemon: u32) {
    if let Some(pid) = holder::of(directory).filter(|pid| *pid != daemon) {
        eprintln!("shoal: waiting until {} has released {}", holder::words(pid), directory.display());
    }
}

/// Removes the mount of a daemon that could not remove it itself.
fn take_away(directory: &Path, mountpoint: &Path) {
    if !is_mounted_from(directory, mountpoint).unwrap_or(false) {
        return;
    }
    // A store in use has another daemon, and the mount may belong to it.
    let Ok(store) = Store::acquire(directory, DYING_PATIENCE) else { return };
    if let Err(failure) = store.clear_dead_mount(mountpoint) {
        eprintln!("shoal: {failure}");
    }
}

/// Opens the daemon's log. On a read-only host its output is discarded.
fn open_log(directory: &Path) -> Outcome<File> {
    let held = Directory::open(directory).map_err(Failure::of)?;
    let opened = || {
        if held.file_bytes(DAEMON_LOG).is_some_and(|bytes| bytes > LOG_BYTES_MAX) {
            held.rename(DAEMON_LOG, &format!("{DAEMON_LOG}.1"))?;
        }
        held.open_to_append(DAEMON_LOG)
    };
    match opened() {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            OpenOptions::new().write(true).open("/dev/null").during("/dev/null")
        }
        opened => opened.map_err(Failure::of),
    }
}

fn print(ready: &Ready, json: bool) {
    if json {
        return json::print_json(ready);
    }
    println!("{} is mounted on {} (process {})", ready.store, ready.mountpoint, ready.pid);
    if !ready.recovery.clean {
        println!("{}", ready.recovery);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_long_log_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(DAEMON_LOG);
        fs::write(&path, "short").unwrap();
        open_log(dir.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"short");
        fs::write(&path, vec![b'x'; LOG_BYTES_MAX as usize + 1]).unwrap();
        open_log(dir.path()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }
}
