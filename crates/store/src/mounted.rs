//! A store that this process serves to the kernel.
//!
//! Order: first a dead mount of the same store is removed, then the store, the mount and the
//! control socket are opened. When the mount is gone, the store's life ends (`life`).
//! Left out: answers on the control socket (`answers`), signals, the daemon's log and its session
//! (the command line's).

use std::path::Path;

use shoal_devices::{During, Failure, Outcome};
use shoal_fs::Options;
use shoal_fuse::mount_table::{self, FILE_SYSTEM_TYPE};
use shoal_fuse::{Session, Unmounter};
use tracing::{info, warn};

use crate::answers::Shown;
use crate::life::{Life, Recovered};
use crate::options::MountOptions;
use crate::own_ground;
use crate::store::Store;

/// A mounted store.
pub struct Mounted {
    life: Life,
    session: Session,
}

impl Store {
    /// Removes a mount of this store that does not answer, because its daemon died or could not end
    /// it.
    pub fn clear_dead_mount(&self, mountpoint: &Path) -> Outcome<()> {
        let is_ours = is_mounted_from(self.directory.path(), mountpoint)?;
        // This process holds the store's lock, so no daemon serves this store any more. But another
        // store may have been at this path before and still be mounted.
        if is_ours && !shoal_fuse::is_served(mountpoint) {
            shoal_fuse::unmount_path(mountpoint, shoal_fuse::InUse::Detached).during(mountpoint.display())?;
            warn!("took away the dead mount on {}", mountpoint.display());
        }
        Ok(())
    }

    /// Mounts the store. When this returns, the mount point and the control socket answer.
    pub fn mount(self, mountpoint: &Path, options: &MountOptions) -> Outcome<Mounted> {
        self.clear_dead_mount(mountpoint)?;
        let MountOptions { fuse, store } = options;
        // Check before opening the store, so that a refused mount leaves the store as it was.
        shoal_fuse::check_mountpoint(mountpoint).map_err(Failure::of)?;
        own_ground::refuse_mountpoint(&self.directory, &self.description, store.cache_dir.as_deref(), mountpoint)?;
        let engine = Options {
            read_only: fuse.read_only,
            kernel_times: fuse.writeback,
            drops_capabilities: !fuse.xattrs,
            ..store.engine(&self.description)
        };
        let mut life = self.begin(engine, store)?;
        life.fs.set_access_times(fuse.access_times);
        let session = match shoal_fuse::mount(&life.fs, life.log.clone(), mountpoint, fuse) {
            Ok(session) => session,
            Err(error) => {
                // Leave the store clean. The first error is reported.
                let _ = life.end();
                return Err(Failure::of(error));
            }
        };
        if !life.recovered.clean {
            info!("{}", life.recovered);
        }
        info!("{} is mounted on {}", life.store.directory.display(), mountpoint.display());
        life.bulks.mounted_as(session.unmounter().device());
        let shown = Shown {
            mountpoint: mountpoint.to_path_buf(),
            device: session.unmounter().device().into(),
            requests: session.request_counts(),
        };
        let started = life.work(store).and_then(|()| life.answer(Some(shown)));
        let mounted = Mounted { life, session };
        if let Err(failure) = started {
            // A mount without its control socket or its background work is useless. The first error
            // is reported.
            let _ = mounted.unmounter().unmount();
            let _ = mounted.wait();
            return Err(failure);
        }
        Ok(mounted)
    }
}

impl Mounted {
    /// Returns the store's directory.
    pub fn directory(&self) -> &Path {
        self.life.store.directory()
    }

    /// Returns the work of opening the store.
    pub fn recovered(&self) -> &Recovered {
        &self.life.recovered
    }

    /// Ends the mount from any thread; [`Mounted::wait`] then returns.
    pub fn unmounter(&self) -> Unmounter {
        self.session.unmounter()
    }

    /// Serves until the mount is gone for any reason, and leaves the store clean.
    pub fn wait(self) -> Outcome<()> {
        let Mounted { mut life, session } = self;
        let served = session.wait();
        let ended = life.end();
        let directory = &life.store.directory;
        ended?;
        // An error of the connection does not matter to the store, which is clean.
        match life.is_read_only() {
            true => info!("{} is unmounted, as it was", directory.display()),
            false => info!("{} is unmounted and clean", directory.display()),
        }
        served.during(format_args!("store {}", directory.display()))
    }
}

/// Returns true if the store in `directory` is mounted on `mountpoint`, according to the kernel's
/// table. The daemon may be dead.
pub fn is_mounted_from(directory: &Path, mountpoint: &Path) -> Outcome<bool> {
    // A dead mount point cannot be canonicalized, but its parent can.
    let parent = mountpoint.parent().and_then(|parent| parent.canonicalize().ok());
    let resolved = mountpoint.canonicalize().ok().or_else(|| Some(parent?.join(mountpoint.file_name()?)));
    let mounted = mount_table::mounted_at(resolved.as_deref().unwrap_or(mountpoint)).during("table of mounts")?;
    Ok(mounted.is_some_and(|entry| entry.file_system_type == FILE_SYSTEM_TYPE && entry.source == directory))
}
