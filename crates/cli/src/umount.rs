//! `shoal umount`: ends a mount and waits until its daemon has shut the store down.
//!
//! Also removes the mount of a daemon that died ("transport endpoint is not connected"). The table of mounts says
//! whether a path is a mounted store; the store's lock says when its daemon is done.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use shoal_devices::size::human;
use shoal_devices::{Failure, Outcome};
use shoal_store::place::{self, Place};

use crate::args::UmountArgs;
use crate::json;
use crate::{failure, progress};

/// How long to wait for the daemon, which may have much to write.
const PATIENCE: Duration = Duration::from_secs(600);
/// How long to wait after a lazy unmount; a busy mount is not waited for any longer.
const LAZY_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    mountpoint: String,
    /// The daemon had died before.
    was_dead: bool,
    /// The store is shut down, so the next mount has nothing to recover.
    clean: bool,
}

pub fn run(args: &UmountArgs) -> Outcome<()> {
    let Place { store, mountpoint } = place::mounted_at(&args.mountpoint)?;
    let mountpoint = mountpoint.unwrap_or_else(|| args.mountpoint.clone());
    let was_dead = is_dead(&store, &mountpoint);
    // A daemon that serves a store read-only leaves the note of a crashed daemon in place, so the note counts only if
    // its process holds the lock.
    let writer = shoal_store::writer(&store).filter(|pid| shoal_store::holder(&store) == Some(*pid));
    shoal_fuse::unmount_path(&mountpoint, args.lazy || was_dead).map_err(|error| {
        failure::of_mountpoint(&mountpoint, error, |users| {
            format!("end the programs that use it ({users} lists them), or add --lazy")
        })
    })?;
    let clean = !was_dead && wait_until_free(&store, writer, args)?;
    let report =
        Report { store: store.display().to_string(), mountpoint: mountpoint.display().to_string(), was_dead, clean };
    if report.clean {
        for (device, bytes, cache) in shoal_store::kept_writes(&store) {
            eprintln!(
                "shoal: bulk device {device} did not get {} of writes: {} keeps them until the machine goes down; mount the store with the \
                 device, and they are written",
                human(bytes),
                cache.display()
            );
        }
    }
    if args.json {
        json::print_json(&report);
    } else if was_dead {
        println!(
            "{} was left behind by a daemon that died, and is taken away; the next mount recovers {}",
            report.mountpoint, report.store
        );
    } else if !report.clean {
        println!("{} is detached; its store is clean once the last user is gone", report.mountpoint);
    }
    Ok(())
}

/// Is the mount without a daemon? The store's lock says so without asking a daemon that may hang.
fn is_dead(store: &Path, mountpoint: &Path) -> bool {
    match shoal_store::is_in_use(store) {
        Ok(in_use) => !in_use,
        // The store is gone, or may not be read by this user.
        Err(_) => nix::sys::statfs::statfs(mountpoint).is_err_and(|error| error == nix::errno::Errno::ENOTCONN),
    }
}

/// Waits until the daemon has released the store; returns whether it is clean.
fn wait_until_free(store: &Path, writer: Option<u32>, args: &UmountArgs) -> Outcome<bool> {
    let begin = Instant::now();
    let bar = progress::waiting("waiting until the store is clean", args.json);
    let patience = if args.lazy { LAZY_PATIENCE } else { PATIENCE };
    while shoal_store::is_in_use(store).unwrap_or(false) {
        if begin.elapsed() > patience {
            if args.lazy {
                return Ok(false);
            }
            return Err(Failure::new(store.display(), "its daemon has not finished")
                .remedy(format!("{} tells more", store.join(shoal_store::DAEMON_LOG).display())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bar.finish_and_clear();
    // The store may have been mounted again by now; then the writer is another one.
    let left_open = writer.is_some() && shoal_store::writer(store) == writer;
    if left_open {
        return Err(Failure::new(store.display(), "was not shut down cleanly; the next mount recovers it")
            .remedy(format!("{} tells why", store.join(shoal_store::DAEMON_LOG).display())));
    }
    Ok(shoal_store::writer(store).is_none())
}
