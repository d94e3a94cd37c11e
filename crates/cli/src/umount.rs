//! `shoal umount`: ends a mount and waits until its daemon has shut the store down.
//!
//! Also removes the mount of a daemon that died ("transport endpoint is not connected"). The
//! process that serves a mount is recognized by what it holds ([`holder`]): another process may
//! serve the same store elsewhere, and the command does not wait for that one. Rules: wait only for
//! a daemon that is working. A stopped daemon, or one whose mount remains in another mount
//! namespace, is reported at once.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use shoal_devices::size::human;
use shoal_devices::{Failure, Outcome};
use shoal_fuse::InUse;
use shoal_fuse::mount_table::MountEntry;
use shoal_store::holder::{self, Seen, Server};
use shoal_store::place;

use crate::args::UmountArgs;
use crate::json;
use crate::{failure, progress};

/// Time to wait for the daemon, which may have much to write.
const PATIENCE: Duration = Duration::from_secs(600);
/// Time to wait after a lazy unmount. A busy mount is not waited for any longer.
const LAZY_PATIENCE: Duration = Duration::from_secs(2);
/// Time after which a mount that remains in another namespace is assumed to stay there.
const LINGERING: Duration = Duration::from_secs(5);
/// Time to wait for a daemon that cannot be seen. It may not even be ending: its mount may remain
/// where it runs.
const UNSEEN_PATIENCE: Duration = Duration::from_secs(60);
/// Delay and interval of the checks whether the mount remains elsewhere.
const LOOK: Duration = Duration::from_secs(1);
/// Time after which the wait is reported if there is no terminal.
const TELL: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    mountpoint: String,
    /// Whether the daemon was already dead.
    was_dead: bool,
    /// Whether the store is shut down, so that the next mount has nothing to recover.
    clean: bool,
    /// The process that serves another mount of the store, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    served_by: Option<u32>,
    /// Places where the store, or this mount in other namespaces, is still mounted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    still_mounted: Vec<Seen>,
}

/// The result of waiting for a daemon.
enum Wait {
    Free,
    /// The last user of a lazily detached mount has not gone.
    InUse,
    /// The mount remains in these places.
    Elsewhere(Vec<Seen>),
}

pub fn run(args: &UmountArgs) -> Outcome<()> {
    let entry = place::mount_at(&args.mountpoint)?;
    // A lazy unmount asks no daemon.
    let store = if args.lazy { entry.source.clone() } else { of_mount(&entry)? };
    let mountpoint = entry.mountpoint.clone();
    place::passable(&store)?;
    let server = match holder::server(&store, &entry.device) {
        Err(_) if args.lazy => Server::Unknown,
        server => server?,
    };
    let was_dead = matches!(server, Server::Nobody | Server::Elsewhere(_));
    // A daemon that serves a store read-only leaves the note of a crashed daemon in place, so the
    // note counts only if its process holds the lock.
    let writer = shoal_store::writer(&store).filter(|pid| shoal_store::holder(&store) == Some(*pid));
    let lazily = args.lazy || server == Server::Nobody;
    if let Server::Process(pid) = server
        && holder::is_stopped(pid)
        && !lazily
    {
        return Err(holder::stopped(mountpoint.display().to_string(), pid));
    }
    let logged = fs::metadata(log(&store)).map_or(0, |file| file.len());
    let in_use = if lazily { InUse::Detached } else { InUse::Refused };
    shoal_fuse::unmount_path(&mountpoint, in_use).map_err(|error| {
        failure::of_mountpoint(&mountpoint, error, |users| {
            format!("end the programs that use it ({users} lists them), or add --lazy")
        })
    })?;
    let mut report = Report {
        store: store.display().to_string(),
        mountpoint: mountpoint.display().to_string(),
        was_dead,
        clean: false,
        served_by: None,
        still_mounted: Vec::new(),
    };
    if let Server::Elsewhere(pid) = server {
        report.served_by = Some(pid);
        report.still_mounted = holder::mounts_by(pid, &store);
    } else if !was_dead {
        let pid = if let Server::Process(pid) = server { Some(pid) } else { holder::of(&store) };
        match wait_until_free(&store, pid, &entry, args)? {
            Wait::Free => report.clean = is_clean(&store, writer)?,
            Wait::InUse => {}
            Wait::Elsewhere(places) if args.lazy => report.still_mounted = places,
            Wait::Elsewhere(places) => return Err(lives_on(&mountpoint, pid, &places)),
        }
    }
    if report.clean {
        errors_since(&store, logged).iter().for_each(|error| eprintln!("shoal: {error}"));
        for (device, bytes, cache) in shoal_store::kept_writes(&store) {
            eprintln!(
                "shoal: bulk device {device} did not get {} of writes: {} keeps them until the machine goes down; mount the store with the \
                 device to write them",
                human(bytes),
                cache.display()
            );
        }
    }
    if args.json {
        json::print_json(&report);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

/// Returns the store of a mount. The store of a dead mount may be gone, or served elsewhere by now.
fn of_mount(entry: &MountEntry) -> Outcome<PathBuf> {
    match holder::store_of(entry) {
        Err(_) if !shoal_fuse::is_served(&entry.mountpoint) => Ok(entry.source.clone()),
        store => store,
    }
}

fn text(report: &Report) -> String {
    let Report { mountpoint, store, .. } = report;
    let places = report.still_mounted.iter().map(Seen::text).collect::<Vec<_>>().join(", ");
    match report.served_by {
        Some(pid) => {
            let place = if places.is_empty() { String::new() } else { format!(" on {places}") };
            format!(
                "{mountpoint} was the mount of a daemon that died, and has been removed; {store} stays mounted{place}, by {}\n",
                holder::words(pid)
            )
        }
        None if report.was_dead => {
            format!(
                "{mountpoint} was the mount of a daemon that died, and has been removed; the next mount recovers {store}\n"
            )
        }
        None if !places.is_empty() => format!("{mountpoint} is detached; it is still mounted on {places}\n"),
        None if !report.clean => format!("{mountpoint} is detached; its store is clean once the last user is gone\n"),
        None => String::new(),
    }
}

/// Describes an unmount that left the mount in other mount namespaces.
fn lives_on(mountpoint: &Path, pid: Option<u32>, places: &[Seen]) -> Failure {
    let process = pid.map_or("its daemon".into(), holder::words);
    let at = places.iter().map(Seen::text).collect::<Vec<_>>().join(", ");
    let everywhere = pid.map_or(String::new(), |pid| format!(", or `kill {pid}`, which unmounts it everywhere"));
    let there = places.first().map_or(String::new(), Seen::unmounting);
    let cause = format!("is unmounted here, but {process} still serves the mount on {at}");
    Failure::new(mountpoint.display(), cause).remedy(format!("run {there}{everywhere}"))
}

/// Waits until the daemon has released the store.
fn wait_until_free(store: &Path, pid: Option<u32>, mount: &MountEntry, args: &UmountArgs) -> Outcome<Wait> {
    let begin = Instant::now();
    let process = pid.map_or("its daemon".into(), holder::words);
    let bar = progress::waiting(&format!("waiting until the store is clean ({process})"), args.json);
    let patience = match (args.lazy, pid) {
        (true, _) => LAZY_PATIENCE,
        (false, Some(_)) => PATIENCE,
        (false, None) => UNSEEN_PATIENCE,
    };
    let (mut look, mut told, mut elsewhere) = (LOOK, false, None);
    // Another process may have taken the store by now. The kernel's list of locks may lack entries
    // while locks are taken and released, so a missing owner proves nothing.
    let is_others = |pid: u32| holder::of(store).is_some_and(|holder| holder != pid);
    let has_it = |pid: u32| Path::new(&format!("/proc/{pid}")).exists() && !is_others(pid);
    while shoal_store::is_in_use(store).unwrap_or(false) && pid.is_none_or(has_it) {
        if begin.elapsed() > patience {
            if args.lazy {
                return Ok(Wait::InUse);
            }
            if pid.is_none() {
                let cause =
                    "its daemon has not finished, and cannot be seen from here (it is in another process namespace)";
                return Err(Failure::new(store.display(), cause).remedy("unmount it where the daemon runs"));
            }
            return Err(Failure::new(store.display(), format!("{process} has not finished"))
                .remedy(format!("{} tells more", log(store).display())));
        }
        if begin.elapsed() > look {
            look = begin.elapsed() + LOOK;
            let places = holder::mounts_of(mount);
            // A namespace that is being created or destroyed has the mount for a moment.
            elsewhere = if places.is_empty() { None } else { elsewhere.or(Some(Instant::now())) };
            if elsewhere.is_some_and(|since: Instant| since.elapsed() >= LINGERING) {
                return Ok(Wait::Elsewhere(places));
            }
            if let Some(pid) = pid.filter(|pid| holder::is_stopped(*pid)) {
                return Err(holder::stopped(store.display().to_string(), pid));
            }
        }
        if begin.elapsed() > TELL && !told && bar.is_hidden() {
            told = true;
            eprintln!("shoal: waiting until {process} has written everything to {}", store.display());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bar.finish_and_clear();
    Ok(Wait::Free)
}

/// Returns whether the store is clean after its daemon released it.
fn is_clean(store: &Path, writer: Option<u32>) -> Outcome<bool> {
    // The store may have been mounted again; then it has another writer.
    let left_open = writer.is_some() && shoal_store::writer(store) == writer;
    if left_open {
        return Err(Failure::new(store.display(), "was not shut down cleanly; the next mount recovers it")
            .remedy(format!("{} tells why", log(store).display())));
    }
    Ok(shoal_store::writer(store).is_none())
}

/// Returns what the daemon's log calls an error, from this byte on. A log that cannot be read or was
/// replaced tells nothing.
fn errors_since(store: &Path, from: u64) -> Vec<String> {
    let text = fs::read(log(store)).unwrap_or_default();
    let text = String::from_utf8_lossy(text.get(from as usize..).unwrap_or_default()).into_owned();
    // A line has a time, a level, and the module that speaks.
    let error = |line: &str| Some(line.split_once(" ERROR ")?.1.split_once(": ")?.1.to_string());
    text.lines().filter_map(error).collect()
}

fn log(store: &Path) -> PathBuf {
    store.join(shoal_store::DAEMON_LOG)
}
