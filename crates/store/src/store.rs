//! A store that this process has to itself: opening its file system, and closing it.
//!
//! Rules: a process that opens media holds the lock. A store that was closed is clean: the next opening has nothing to recover.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shoal_devices::{Device, During, Failure, Outcome, uuid_text};
use shoal_format::PAGE;
use shoal_format::superblock::{SUPERBLOCK_AT, Superblock};
use shoal_fs::{Fs, Options, Parts};
use shoal_host::StoreLock;
use shoal_region::Recovery;

use crate::description::Description;
use crate::memory::{self, Resting};
use crate::names::{LOG, PID};
use crate::user::{self, holder, is_ending, is_in_use, lock, period};
use crate::{host_room, place};

/// How long a reader waits for a daemon that is still writing its store after umount(8).
pub const LEAVING_PATIENCE: Duration = Duration::from_secs(10);
/// The daemon of a mounted store that looks alive for so long is.
const LIFE_SIGN: Duration = Duration::from_millis(200);

/// A store that nobody else uses while this value lives.
pub struct Store {
    pub(crate) directory: PathBuf,
    pub(crate) description: Description,
    restore: bool,
    _lock: StoreLock,
}

/// A store's file system, opened, with what is below it.
pub struct Opened {
    pub fs: Fs,
    /// What opening it had to do.
    pub recovery: Recovery,
    /// Bulk storage, if there is any.
    pub bulk: Option<Arc<dyn Device>>,
    /// False for `dax` memory whose file system refuses MAP_SYNC.
    pub survives_power_loss: bool,
}

impl Store {
    /// The description of the store at `directory`, whether or not somebody uses it.
    pub fn describe(directory: &Path) -> Outcome<Description> {
        Description::read(directory)
    }

    /// Takes the store for this process. One that is in use but not mounted (any more) is waited for; so is one whose
    /// daemon was killed and is being taken apart by the kernel, which keeps mount and lock until its memory is gone.
    pub fn acquire(directory: &Path, patience: Duration) -> Outcome<Store> {
        let description = Store::describe(directory)?;
        let directory = directory.canonicalize().during(directory.display())?;
        let begin = Instant::now();
        let mut seen_alive = None;
        loop {
            let failure = match lock(&directory) {
                Ok(lock) => return Ok(Store::assemble(directory, description, lock)),
                Err(failure) => failure,
            };
            if begin.elapsed() >= patience {
                return Err(failure);
            }
            if place::is_mounted(&directory) && !holder(&directory).is_none_or(is_ending) {
                // There are moments in which a dying process does not look like one.
                let since = *seen_alive.get_or_insert_with(Instant::now);
                if since.elapsed() >= LIFE_SIGN {
                    return Err(failure);
                }
            } else {
                seen_alive = None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Takes the store at `path`, which nobody may have mounted. One whose daemon is just leaving is waited for.
    pub fn acquire_unmounted(path: &Path) -> Outcome<Store> {
        let place = place::find(path)?;
        if let Some(mountpoint) = &place.mountpoint
            && is_in_use(&place.store).unwrap_or(true)
        {
            return Err(Failure::new(place.store.display(), format!("is mounted on {}", mountpoint.display()))
                .remedy(format!("run `shoal umount {}` first", mountpoint.display())));
        }
        Store::acquire(&place.store, LEAVING_PATIENCE)
    }

    /// Goes on from the saved image of `battery` memory although it lacks something, or the region there is no good.
    pub fn restoring(mut self, restore: bool) -> Store {
        self.restore = restore;
        self
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// What its description file says.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The store, as opening its memory's media needs to know it.
    pub(crate) fn resting(&self) -> Resting<'_> {
        Resting {
            directory: &self.directory,
            uuid: &self.description.uuid,
            restore: self.restore,
            unmounted: self.was_unmounted(),
        }
    }

    pub(crate) fn assemble(directory: PathBuf, description: Description, lock: StoreLock) -> Store {
        Store { directory, description, restore: false, _lock: lock }
    }

    /// Opens the file system in the store.
    pub fn open(&self, mut options: Options) -> Outcome<Opened> {
        let media = self.open_media(options.read_only)?;
        let name = self.directory.display().to_string();
        options.on_damage = Some(Arc::new(move |ino, finding| {
            tracing::error!("damaged inode {ino}: {finding}; unmount, then run `shoal check --repair {name}`");
        }));
        if self.description.memory.kind().properties().images || self.bulk_path().is_some() {
            let host = shoal_host::host_free_bytes(&self.directory).during(self.directory.display())?;
            options.checkpoint_log_bytes =
                options.checkpoint_log_bytes.min(shoal_host::log_bytes_max(host.total_bytes));
            options.room = Some(host_room::probe(
                &self.directory,
                &self.description.memory,
                // A block device has its room for itself; a sparse file shares its host's.
                self.bulk_path().filter(|bulk| fs::metadata(bulk).is_ok_and(|m| m.is_file())),
            ));
        }
        options.earlier_boot_id = Some(shoal_host::boot_id().during("boot id")?);
        let parts = Parts {
            region: media.parts.region.clone(),
            bulk: media.parts.bulk.clone(),
            clock: media.parts.clock.clone(),
        };
        // Before the engine opens it, which writes.
        let mut page = [0; PAGE as usize];
        media.parts.region.memory.read(SUPERBLOCK_AT, &mut page);
        let superblock = Superblock::decode(&page).map_err(|error| self.damaged(error))?;
        let uuid = uuid_text(&superblock.uuid);
        if uuid != self.description.uuid {
            let cause = format!("the region belongs to store {uuid}, the description to {}", self.description.uuid);
            return Err(Failure::new(self.directory.display(), cause).remedy("bring the files of one store together"));
        }
        let (fs, recovery) = Fs::open(parts, options).map_err(|error| self.damaged(error))?;
        Ok(Opened { fs, recovery, bulk: media.bulk, survives_power_loss: media.survives_power_loss })
    }

    pub(crate) fn damaged(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
        memory::damaged(&self.directory, error)
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.directory.join(LOG)
    }

    /// The file or block device of the bulk storage, where it is one.
    pub(crate) fn bulk_path(&self) -> Option<PathBuf> {
        self.description.bulk_path(&self.directory)
    }

    /// Size of the bulk storage where it is a file or a block device.
    pub(crate) fn bulk_file_bytes(&self) -> Outcome<Option<u64>> {
        if self.bulk_path().is_none() {
            return Ok(None);
        }
        Ok(self.open_bulk()?.map(|bulk| bulk.block_device().geometry().bytes))
    }

    /// The time in which nothing written can get lost but by a crash of this process: a boot of the machine, a mount of
    /// the file systems that hold log and bulk storage, and these very files. Everything else counts as after a power loss.
    pub(crate) fn period(&self) -> Outcome<[u8; 16]> {
        period(&[Some(self.log_path()), self.bulk_path()])
    }

    /// Notes that this process serves the store, in this boot of the machine.
    pub fn write_pid(&self) -> Outcome<()> {
        let boot = self.period()?;
        let path = self.directory.join(PID);
        match fs::write(&path, format!("{}\n{}\n", std::process::id(), uuid_text(&boot))) {
            // The file only tells the daemon's number; a store is served without it.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!("{}: {error}; make room there", path.display());
                Ok(())
            }
            written => written.during(path.display()),
        }
    }

    /// No process that served the store was cut off.
    pub(crate) fn was_unmounted(&self) -> bool {
        !self.directory.join(PID).exists()
    }

    /// The store is clean, and this process serves it no more.
    pub fn remove_pid(&self) {
        // It stays if it cannot be removed; then the next check assumes a crash, which is the safe side.
        let _ = fs::remove_file(self.directory.join(PID));
    }

    /// Did the machine, or a file system below, go down while the store was mounted?
    pub(crate) fn power_was_lost(&self) -> bool {
        user::power_was_lost(&self.directory, self.bulk_path())
    }

    /// Opens the store, does something, and closes it clean; returns the size of its bulk device.
    pub(crate) fn settle(&self, work: impl FnOnce(&Fs) -> shoal_fs::Result<()>) -> Outcome<Option<u64>> {
        let opened = self.open(Options::default())?;
        let worked = work(&opened.fs);
        opened.fs.shutdown().during(self.directory.display())?;
        worked.during(self.directory.display())?;
        self.remove_pid();
        opened.bulk.as_ref().map_or(Ok(()), |bulk| bulk.close())?;
        Ok(opened.bulk.map(|bulk| bulk.block_device().geometry().bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory;
    use crate::names::DESCRIPTION;

    #[test]
    fn a_store_in_use_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(DESCRIPTION), "{}").unwrap();
        let held = lock(dir.path()).unwrap();
        assert!(is_in_use(dir.path()).unwrap());
        fs::write(dir.path().join(DESCRIPTION), r#"{"version":1,"uuid":"","memory":{"kind":"logged"},"bulk":null}"#)
            .unwrap();
        std::thread::scope(|scope| {
            let begin = Instant::now();
            assert!(Store::acquire(dir.path(), Duration::from_millis(30)).is_err());
            assert!(begin.elapsed() >= Duration::from_millis(30));
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                drop(held);
            });
            // In use, but mounted nowhere: its user is about to leave.
            Store::acquire(dir.path(), Duration::from_secs(20)).unwrap();
        });
        let held = lock(dir.path()).unwrap();
        let error = directory::prepare(dir.path(), true).map(drop).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        assert!(dir.path().join(DESCRIPTION).exists());
        drop(held);
        assert!(!is_in_use(dir.path()).unwrap());
        assert!(is_in_use(&dir.path().join("gone")).is_err());
    }
}
