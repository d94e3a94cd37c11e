//! Finds the process that has a store, by what it holds, and the places where the store is mounted.
//!
//! Only the kernel's lists count: the owner of the lock (/proc/locks), its open files, and the
//! mount tables of all visible processes, since a mount may live on in the mount namespace of a
//! container. Rules: nothing here touches a mount point. A daemon is asked only with a time limit,
//! because it may be stopped. Left out: taking the lock (`user`).

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;
use shoal_devices::{Failure, Outcome};
use shoal_fuse::mount_table::{self, FILE_SYSTEM_TYPE, MountEntry};
use shoal_host::Directory;

use crate::control::{self, Said};
use crate::names::{DAEMON_LOG, LOCK};
use crate::{calendar, place, user};

/// A daemon that looks alive for this long is taken to be alive.
const LIFE_SIGN: Duration = Duration::from_millis(200);
/// How long to wait for a process that cannot be seen, since it may be ending.
const UNSEEN: Duration = Duration::from_secs(3);
/// Pause between two searches of all processes.
const BETWEEN_SEARCHES: Duration = Duration::from_millis(500);
/// Ticks per second in /proc/PID/stat, on every machine.
const TICKS: u64 = 100;

/// A place where a store is mounted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Seen {
    pub mountpoint: PathBuf,
    /// The number of the mount namespace and a process in it. `None` for this process's own
    /// namespace.
    pub namespace: Option<(u64, u32)>,
}

impl Seen {
    /// Returns the place in words.
    pub fn text(&self) -> String {
        let at = self.mountpoint.display();
        match self.namespace {
            None => at.to_string(),
            Some((number, pid)) => format!("{at} in mount namespace {number} (of process {pid}, `{}`)", command(pid)),
        }
    }

    /// Returns the command that unmounts the store there.
    pub fn unmounting(&self) -> String {
        let at = self.mountpoint.display();
        match self.namespace {
            None => format!("`shoal umount {at}`"),
            Some((_, pid)) => format!("`nsenter -t {pid} -m umount {at}`"),
        }
    }
}

/// Returns the process that has the store's lock, if it is visible from here.
pub fn of(directory: &Path) -> Option<u32> {
    user::lock_owner(&Directory::open(directory).ok()?)
}

/// Returns true if the process is stopped, by SIGSTOP or a debugger.
pub fn is_stopped(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("State:").is_some_and(|state| state.trim().starts_with(['T', 't'])))
}

/// Returns the process, its command and its start time, in words.
pub fn words(pid: u32) -> String {
    let since = since(pid).map_or(String::new(), |since| format!(", since {since}"));
    format!("process {pid} (`{}`{since})", command(pid))
}

/// Returns the program of a process, followed by its command if the program is `shoal`.
fn command(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default().to_string();
    match words.next().filter(|word| program == "shoal" && !word.is_empty() && !word.starts_with('-')) {
        Some(word) => format!("{program} {word}"),
        None => program,
    }
}

fn since(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Some(calendar::text(UNIX_EPOCH + Duration::from_secs(boot + ticks / TICKS)))
}

/// Returns the places of a mount, in the mount namespaces of all visible processes. Once the last
/// place is gone, the kernel may give the mount's number to another mount, so the sources are
/// compared, too.
pub fn mounts_of(mount: &MountEntry) -> Vec<Seen> {
    mounts_where(|entry| entry.device == mount.device && entry.source == mount.source)
}

fn mounts_where(is_it: impl Fn(&MountEntry) -> bool) -> Vec<Seen> {
    let namespace = |pid: &str| -> Option<u64> {
        let link = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?;
        link.to_str()?.strip_prefix("mnt:[")?.strip_suffix(']')?.parse().ok()
    };
    let own = namespace("self");
    let mut known = HashSet::new();
    let mut found = Vec::new();
    let mut look = |number: Option<u64>, entries: Vec<MountEntry>, pid: u32| {
        let entries = entries.into_iter().filter(|entry| entry.file_system_type == FILE_SYSTEM_TYPE && is_it(entry));
        let namespace = number.filter(|_| number != own).map(|number| (number, pid));
        found.extend(entries.map(|entry| Seen { mountpoint: entry.mountpoint, namespace }));
    };
    known.extend(own);
    look(own, mount_table::mounts().unwrap_or_default(), 0);
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Some(number) = namespace(&pid.to_string()).filter(|number| known.insert(*number)) else { continue };
        look(Some(number), mount_table::mounts_of(pid).unwrap_or_default(), pid);
    }
    found
}

/// The mounts that a process serves.
struct Served {
    /// Numbers of the mounts, where the kernel reports them (since Linux 6.17).
    devices: Vec<String>,
    /// The process serves a mount whose number the kernel does not report.
    unnamed: bool,
}

fn served_by(pid: u32) -> Served {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let is_connection = |link: &PathBuf| fs::read_link(link).is_ok_and(|path| path == Path::new("/dev/fuse"));
    let number = |link: PathBuf| -> Option<String> {
        let information = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", link.file_name()?.to_str()?)).ok()?;
        let number = information.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
        // FUSE mounts are on devices whose major number is 0.
        Some(format!("0:{}", number.trim()))
    };
    let found: Vec<_> = open.map(|link| link.path()).filter(is_connection).map(number).collect();
    Served { unnamed: found.contains(&None), devices: found.into_iter().flatten().collect() }
}

/// Returns the directory of the store that a mount shows. This is the mount's source, unless the
/// store was moved since and its daemon is found at the new place.
pub fn store_of(entry: &MountEntry) -> Outcome<PathBuf> {
    let source = entry.source.clone();
    place::passable(&source)?;
    // Any user may mount something that claims to be another user's store.
    let mounter = entry.super_options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok());
    let owner = fs::metadata(&source).ok().map(|found| found.uid());
    if mounter.is_some_and(|mounter: u32| mounter != 0 && owner.is_some_and(|owner| owner != mounter)) {
        let cause = format!("was mounted by user {}, whose store {} is not", mounter.unwrap_or(0), source.display());
        return Err(Failure::new(entry.mountpoint.display(), cause).remedy("name the store's own directory"));
    }
    let is_there = |directory: &Path| matches!(control::said(directory), Said::Who(who) if who.serves(&entry.device));
    let is_its = |pid: u32, directory: &Path| served_by(pid).devices.contains(&entry.device) || is_there(directory);
    match control::said(&source) {
        Said::Who(who) if who.serves(&entry.device) => Ok(source),
        // Another store's daemon answers there.
        Said::Who(_) => moved(is_its).ok_or_else(|| {
            let cause = format!("is not served by the daemon of {}", source.display());
            Failure::new(entry.mountpoint.display(), cause).remedy("name the store's own directory")
        }),
        Said::Nobody => Ok(moved(is_its).unwrap_or(source)),
        Said::Other | Said::Nothing(_) => Ok(source),
    }
}

/// Returns the directory of a store that a suitable daemon has locked, by the current path of its
/// lock file.
fn moved(is_it: impl Fn(u32, &Path) -> bool) -> Option<PathBuf> {
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let links: Vec<_> = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().collect();
        let open = || links.iter().filter_map(|link| fs::read_link(link.path()).ok());
        // Skip processes that serve no mount.
        open().find(|path| path == Path::new("/dev/fuse"))?;
        let lock = open().find(|path| path.file_name().is_some_and(|name| name == LOCK))?;
        let directory = lock.parent()?.to_path_buf();
        (of(&directory) == Some(pid) && is_it(pid, &directory)).then_some(directory)
    })
    .next()
}

/// The process that serves a mount.
#[derive(Debug, PartialEq, Eq)]
pub enum Server {
    /// This process serves it, or did a moment ago.
    Process(u32),
    /// The mount is dead.
    Nobody,
    /// The mount is dead. This process has the store and serves another mount of it.
    Elsewhere(u32),
    /// A process that is not visible from here, or does not say.
    Unknown,
}

/// Finds the process that serves the mount with this number, of the store in `directory`.
pub fn server(directory: &Path, device: &str) -> Outcome<Server> {
    let Some(pid) = of(directory) else {
        // The store is locked by an invisible process, or free; or the store is gone, or belongs to
        // another user.
        return Ok(match user::is_in_use(directory) {
            Ok(false) => Server::Nobody,
            Ok(true) | Err(_) => Server::Unknown,
        });
    };
    let served = served_by(pid);
    if served.devices.iter().any(|number| number == device) {
        return Ok(Server::Process(pid));
    }
    Ok(match control::who(directory)? {
        Some(who) if who.serves(device) => Server::Process(pid),
        Some(_) => Server::Elsewhere(pid),
        None if served.unnamed => Server::Unknown,
        None => Server::Elsewhere(pid),
    })
}

/// Returns the places where this process has the store in `directory` mounted, as far as they are
/// visible.
pub fn mounts_by(pid: u32, directory: &Path) -> Vec<Seen> {
    let mut served = served_by(pid);
    if served.unnamed
        && let Ok(Some(who)) = control::who(directory)
    {
        served.devices.extend(who.device);
        served.unnamed = false;
    }
    mounts_where(|entry| match served.unnamed {
        // Only the source's name is left to compare.
        true => entry.source == directory,
        false => served.devices.contains(&entry.device),
    })
}

/// Returns the failure of a command that needs a store which another process has. It tells which
/// process, since when, where, and what to do.
pub fn in_use(directory: &Path) -> Failure {
    let what = format!("store {}", directory.display());
    let Some(pid) = of(directory) else {
        return Failure::new(
            what,
            "is in use by a process that cannot be seen from here (of another user or process namespace)",
        )
        .remedy("unmount it, or stop that process, where it runs");
    };
    let process = words(pid);
    if is_stopped(pid) {
        return stopped(what, pid);
    }
    let seen = mounts_by(pid, directory);
    match seen.iter().find(|place| place.namespace.is_none()).or(seen.first()) {
        Some(place @ Seen { namespace: None, .. }) => {
            Failure::new(what, format!("is in use by {process}, mounted on {}", place.text()))
                .remedy(format!("run {} first", place.unmounting()))
        }
        Some(place) => Failure::new(what, format!("is in use by {process}, mounted on {}", place.text()))
            .remedy(format!("run {}, or `kill {pid}`, which unmounts it everywhere", place.unmounting())),
        None => Failure::new(what, format!("is in use by {process}, and mounted nowhere"))
            .remedy(format!("wait until it is done, or stop it (`kill {pid}`)")),
    }
}

/// Returns the failure of a question that a store's daemon has not answered in time.
pub(crate) fn silent(directory: &Path, waited: Duration) -> Failure {
    let what = format!("daemon of {}", directory.display());
    match of(directory) {
        Some(pid) if is_stopped(pid) => stopped(what, pid),
        Some(pid) => Failure::new(what, format!("{} has not answered for {} s", words(pid), waited.as_secs()))
            .remedy(format!("try again when it is less busy; {} may tell more", directory.join(DAEMON_LOG).display())),
        None => Failure::new(what, format!("has not answered for {} s", waited.as_secs()))
            .remedy("see whether its process is stopped"),
    }
}

/// Returns the failure of an operation that needs a stopped process.
pub fn stopped(what: String, pid: u32) -> Failure {
    Failure::new(what, format!("{} does not answer: it is stopped", words(pid)))
        .remedy(format!("run `kill -CONT {pid}` to let it go on"))
}

/// Fails if the daemon of a mount does not answer. The mount itself is not touched.
pub(crate) fn refuse_silent(entry: &MountEntry) -> Outcome<()> {
    place::passable(&entry.source)?;
    match control::said(&entry.source) {
        Said::Who(_) | Said::Other | Said::Nobody => Ok(()),
        Said::Nothing(waited) => Err(silent(&entry.source, waited)),
    }
}

/// Watches a store's user on behalf of a process that waits for the store.
pub(crate) struct Watch<'a> {
    directory: &'a Path,
    begin: Instant,
    unseen: Option<Instant>,
    seen_alive: Option<Instant>,
    searched: Option<Instant>,
}

impl<'a> Watch<'a> {
    pub fn new(directory: &'a Path) -> Watch<'a> {
        Watch { directory, begin: Instant::now(), unseen: None, seen_alive: None, searched: None }
    }

    /// Returns true if waiting is useless: the user is stopped, or has the store mounted and is not
    /// ending.
    pub fn will_stay(&mut self) -> bool {
        if place::is_mounted(self.directory) && !user::holder(self.directory).is_none_or(user::is_ending) {
            // A dying process may look alive for a moment.
            let since = *self.seen_alive.get_or_insert_with(Instant::now);
            return since.elapsed() >= LIFE_SIGN;
        }
        self.seen_alive = None;
        let is_due = self.searched.unwrap_or(self.begin).elapsed() >= BETWEEN_SEARCHES;
        if !is_due {
            return false;
        }
        self.searched = Some(Instant::now());
        let Some(pid) = of(self.directory) else {
            return self.unseen.get_or_insert_with(Instant::now).elapsed() >= UNSEEN;
        };
        self.unseen = None;
        !user::is_ending(pid) && (is_stopped(pid) || !mounts_by(pid, self.directory).is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_named_with_its_command_and_beginning() {
        let text = words(std::process::id());
        assert!(text.starts_with(&format!("process {} (`", std::process::id())), "{text}");
        assert!(text.contains(", since 20") && text.ends_with(" UTC)"), "{text}");
        assert!(!is_stopped(std::process::id()));
    }

    #[test]
    fn a_store_that_a_process_has_without_a_mount_is_said_to_be_mounted_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().canonicalize().unwrap();
        let held = user::lock(&Directory::open(&directory).unwrap()).unwrap();
        let text = in_use(&directory).to_string();
        assert!(
            text.contains(&format!("process {} ", std::process::id())) && text.contains("mounted nowhere"),
            "{text}"
        );
        assert_eq!(of(&directory), Some(std::process::id()));
        fs::remove_file(directory.join(crate::names::LOCK)).unwrap();
        assert_eq!(of(&directory), Some(std::process::id()), "the directory is locked, too");
        drop(held);
        assert_eq!(of(&directory), None);
    }

    #[test]
    fn the_root_is_mounted_here_and_elsewhere_is_named_with_a_process() {
        let place = Seen { mountpoint: "/m".into(), namespace: Some((7, std::process::id())) };
        assert!(place.text().starts_with("/m in mount namespace 7 (of process "), "{}", place.text());
        assert_eq!(place.unmounting(), format!("`nsenter -t {} -m umount /m`", std::process::id()));
    }
}
