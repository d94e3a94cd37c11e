//! `shoal doctor`: looks at this machine, and says what keeps Shoal from running, or from running fast.
//!
//! Each check looks at one thing as this user in this container sees it, and changes nothing. Left out: a store
//! (`check`), and a mount (`df`, `status`).

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;
use shoal_devices::size::human;
use shoal_devices::{Failure, Outcome};
use shoal_fuse::KernelUring;
use shoal_host::host_free_bytes;

use crate::args::DoctorArgs;
use crate::json;

/// Free room below which a store soon is full (bytes).
const ROOM_BYTES: u64 = 1 << 30;
/// Memory below which a store has little (bytes).
const MEMORY_BYTES: u64 = 256 << 20;
/// Free room on the tmpfs below which held writes have little (bytes).
const HELD_BYTES: u64 = 64 << 20;
/// Descriptors below which a store with many bulk devices may have too few.
const DESCRIPTORS: u64 = 256;
const MOUNT_HELPERS: [&str; 2] = ["/sbin/mount.fuse.shoal", "/usr/sbin/mount.fuse.shoal"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Fine,
    /// Shoal runs, but slower or with less than it could.
    Better,
    /// No store can be mounted.
    Wrong,
}

#[derive(Debug, Serialize)]
struct Check {
    about: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    checks: Vec<Check>,
}

impl Check {
    fn fine(about: &'static str, found: impl Into<String>) -> Check {
        Check { about, verdict: Verdict::Fine, found: found.into(), remedy: None }
    }

    fn better(about: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { about, verdict: Verdict::Better, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn wrong(about: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { verdict: Verdict::Wrong, ..Check::better(about, found, remedy) }
    }
}

pub fn run(args: &DoctorArgs) -> Outcome<ExitCode> {
    let is_root = nix::unistd::geteuid().is_root();
    let mut checks = vec![device()];
    if !is_root {
        checks.extend([helper(std::env::var_os("PATH").unwrap_or_default().as_os_str()), others()]);
    }
    checks.extend([uring(is_root), memory(), held(), descriptors(), fstab()]);
    checks.push(room(&args.directory)?);
    let is_wrong = checks.iter().any(|check| check.verdict == Verdict::Wrong);
    let report = Report { checks };
    if args.json {
        json::print_json(&report);
    } else {
        report.checks.iter().for_each(print);
    }
    Ok(if is_wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(check: &Check) {
    let verdict = match check.verdict {
        Verdict::Fine => "fine",
        Verdict::Better => "better",
        Verdict::Wrong => "WRONG",
    };
    println!("{verdict:<7} {:<18} {}", check.about, check.found);
    if let Some(remedy) = &check.remedy {
        println!("{:26} {remedy}", "");
    }
}

fn device() -> Check {
    let about = "/dev/fuse";
    match OpenOptions::new().read(true).write(true).open(about) {
        Ok(_) => Check::fine(about, "can be opened"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Check::wrong(
            about,
            error.to_string(),
            "`chmod 666 /dev/fuse` as root, as most distributions do; in a container, the device must be allowed",
        ),
        Err(error) => Check::wrong(
            about,
            error.to_string(),
            "`modprobe fuse` as root; in a container, pass the device in (`--device /dev/fuse`)",
        ),
    }
}

/// Looks for the program that mounts for users without root's rights.
fn helper(path: &std::ffi::OsStr) -> Check {
    let about = "fusermount3";
    let found = std::env::split_paths(path).map(|directory| directory.join(about)).find(|path| path.is_file());
    let Some(found) = found else {
        return Check::wrong(about, "is not in the PATH", "install the package fuse3, or mount as root");
    };
    let is_set_uid = fs::metadata(&found).is_ok_and(|found| found.permissions().mode() & 0o4000 != 0);
    match is_set_uid {
        true => Check::fine(about, found.display().to_string()),
        false => Check::wrong(
            about,
            format!("{} does not run as root", found.display()),
            format!("`chmod u+s {}` as root, or mount as root", found.display()),
        ),
    }
}

fn others() -> Check {
    let about = "allow_other";
    let allows = |text: String| text.lines().any(|line| line.trim() == "user_allow_other");
    match fs::read_to_string("/etc/fuse.conf").is_ok_and(allows) {
        true => Check::fine(about, "mounts of yours may admit other users"),
        false => Check::better(
            about,
            "mounts of yours cannot admit other users, not even root",
            "if they should, root adds the line `user_allow_other` to /etc/fuse.conf",
        ),
    }
}

fn uring(is_root: bool) -> Check {
    let about = "FUSE over io_uring";
    let slower = "many operations take two to four times as long";
    match KernelUring::now() {
        KernelUring::On => match shoal_fuse::try_ring() {
            Ok(()) => Check::fine(about, "is on"),
            Err(error) => Check::better(
                about,
                format!("is on, but this process gets no ring ({error}): {slower}"),
                "`sysctl kernel.io_uring_disabled=0` as root; in a container, its seccomp profile must allow io_uring",
            ),
        },
        KernelUring::Off => Check::better(
            about,
            format!("is switched off in the kernel: {slower}"),
            match is_root {
                true => {
                    "`shoal mount --enable-uring` switches it on until the next boot, \
                         `options fuse enable_uring=Y` in /etc/modprobe.d/fuse.conf at each boot"
                }
                false => "root switches it on: `echo Y >/sys/module/fuse/parameters/enable_uring`",
            },
        ),
        KernelUring::Absent => {
            let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
            Check::better(about, format!("Linux {} has none: {slower}", release.trim()), "Linux 6.14 and later have it")
        }
    }
}

fn memory() -> Check {
    let about = "memory";
    let bytes = shoal_host::memory_total_bytes();
    let found = match shoal_host::memory_limit_bytes() {
        Some(limit) => format!("{} may be used, a limit below the machine's memory", human(limit)),
        None => format!("{} may be used, all of the machine's", human(bytes)),
    };
    match bytes < MEMORY_BYTES {
        true => Check::better(about, found, "raise the limit, or make stores with a small `--memory-size`"),
        false => Check::fine(about, found),
    }
}

/// Looks at the place of writes to large files that wait for their age.
fn held() -> Check {
    let about = "/dev/shm";
    let remedy =
        "mount a tmpfs there; without it a store writes large files at once (`-o update_policy=write-through`)";
    let directory = match File::open(about) {
        Ok(directory) => directory,
        Err(error) => return Check::better(about, error.to_string(), remedy),
    };
    if !shoal_host::is_tmpfs(&directory).unwrap_or(false) {
        return Check::better(about, "is not on tmpfs", remedy);
    }
    match host_free_bytes(Path::new(about)).map(|space| space.available_bytes) {
        Ok(bytes) if bytes < HELD_BYTES => Check::better(
            about,
            format!("{} free for writes that wait", human(bytes)),
            "make it larger: `mount -o remount,size=SIZE /dev/shm`; in a container, `--shm-size`",
        ),
        Ok(bytes) => Check::fine(about, format!("{} free for writes that wait", human(bytes))),
        Err(error) => Check::better(about, error.to_string(), remedy),
    }
}

fn descriptors() -> Check {
    let about = "open files";
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    match hard_limit(&limits, "Max open files") {
        Some(most) if most < DESCRIPTORS => {
            Check::better(about, format!("at most {most} for a process"), "raise the hard limit (`ulimit -Hn 4096`)")
        }
        Some(u64::MAX) | None => Check::fine(about, "no limit for a process"),
        Some(most) => Check::fine(about, format!("at most {most} for a process")),
    }
}

/// Returns the hard limit of this name in the text of /proc/PID/limits; `u64::MAX`: unlimited.
fn hard_limit(limits: &str, name: &str) -> Option<u64> {
    let hard = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().nth(1)?;
    if hard == "unlimited" { Some(u64::MAX) } else { hard.parse().ok() }
}

fn fstab() -> Check {
    let about = "mount(8), fstab";
    match MOUNT_HELPERS.iter().find(|path| Path::new(path).exists()) {
        Some(path) => Check::fine(about, format!("{path} is there")),
        None => Check::better(
            about,
            "mount(8) does not find Shoal",
            format!("`make install`, or link {} to this program", MOUNT_HELPERS[0]),
        ),
    }
}

fn room(directory: &Path) -> Outcome<Check> {
    let bytes = host_free_bytes(directory).map_err(Failure::of)?.available_bytes;
    let found = format!("{} free in {}", human(bytes), directory.display());
    let about = "room";
    Ok(match bytes < ROOM_BYTES {
        true => Check::better(about, found, "make stores elsewhere, or with a small `--bulk-size`"),
        false => Check::fine(about, found),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 524288               files\n\
                    Max locked memory         8388608              unlimited            bytes\n";
        assert_eq!(hard_limit(text, "Max open files"), Some(524_288));
        assert_eq!(hard_limit(text, "Max locked memory"), Some(u64::MAX));
        assert_eq!(hard_limit(text, "Max processes"), None);
    }

    #[test]
    fn a_helper_without_roots_rights_is_no_help() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(helper(place.path().as_os_str()).verdict, Verdict::Wrong);
        let path = place.path().join("fusermount3");
        fs::write(&path, "").unwrap();
        for (mode, verdict) in [(0o755, Verdict::Wrong), (0o4755, Verdict::Fine)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(helper(place.path().as_os_str()).verdict, verdict);
        }
    }
}
