//! `shoal umount`: ends a mount and waits until its daemon has shut the store down.
//!
//! Also takes away what a daemon that died left behind ("transport endpoint is not connected"). The table of
//! mounts says whether a path is a mounted store; the store's lock says when its daemon is done.

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use shoal_devices::{Failure, Outcome};
use shoal_store::place::{self, Place};

use crate::args::UmountArgs;
use crate::json;
use crate::{failure, progress};

/// A store with much to write may take a while; a daemon that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(600);
/// A lazy unmount of an idle mount is over soon; for a busy one nobody waits.
const LAZY_PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    mountpoint: String,
    /// The daemon was gone before.
    was_dead: bool,
    /// The store is shut down: nothing will have to be recovered.
    clean: bool,
}

pub fn run(args: &UmountArgs) -> Outcome<()> {
    let Place { store, mountpoint } = place::mounted_at(&args.mountpoint)?;
    let mountpoint = mountpoint.unwrap_or_else(|| args.mountpoint.clone());
    let was_dead = is_dead(&store, &mountpoint);
    // A daemon that serves for reading leaves the marks of an earlier crash as they are: they are not its own.
    let writer = shoal_store::writer(&store).filter(|pid| shoal_store::holder(&store) == Some(*pid));
    shoal_fuse::unmount_path(&mountpoint, args.lazy || was_dead).map_err(|error| {
        failure::of_mountpoint(&mountpoint, error, |users| {
            format!("end the programs that use it ({users} lists them), or add --lazy")
        })
    })?;
    let clean = !was_dead && wait_until_free(&store, writer, args)?;
    let report =
        Report { store: store.display().to_string(), mountpoint: mountpoint.display().to_string(), was_dead, clean };
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

/// Is there nobody behind the mount? The store's lock tells without asking a daemon that may hang.
fn is_dead(store: &Path, mountpoint: &Path) -> bool {
    match shoal_store::is_in_use(store) {
        Ok(in_use) => !in_use,
        // The store is gone, or not for us to look into.
        Err(_) => nix::sys::statfs::statfs(mountpoint).is_err_and(|error| error == nix::errno::Errno::ENOTCONN),
    }
}

/// True once the daemon has let go of the store, clean.
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
    // By now somebody else may have mounted it again: that is another writer.
    let left_open = writer.is_some() && shoal_store::writer(store) == writer;
    if left_open {
        return Err(Failure::new(store.display(), "was not shut down cleanly; the next mount recovers it")
            .remedy(format!("{} tells why", store.join(shoal_store::DAEMON_LOG).display())));
    }
    Ok(shoal_store::writer(store).is_none())
}
