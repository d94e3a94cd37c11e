//! A store held by this process alone: opening its file system, and closing it.
//!
//! Rules: a process that opens media holds the lock. A store that was closed is clean, so the next
//! opening has nothing to recover.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use shoal_devices::size::human;
use shoal_devices::{Device, During, Failure, Outcome, uuid_text};
use shoal_format::PAGE;
use shoal_format::superblock::{SUPERBLOCK_AT, Superblock};
use shoal_fs::{Fs, Options, Parts};
use shoal_host::{Directory, StoreLock};
use shoal_media::{BlockDevice, WriteCache};
use shoal_region::Recovery;

use crate::cache::{self, CacheOptions, HeldOnHost, HeldWrites, InFront};
use crate::description::{Description, no_store};
use crate::host_room::HostFiles;
use crate::media::Media;
use crate::memory::{self, Resting, Restore};
use crate::names::PID;
use crate::user::{self, is_in_use, lock, period};
use crate::{holder, host_room, place};

/// How long a reader waits for a daemon that is still writing its store after umount(8).
pub const LEAVING_PATIENCE: Duration = Duration::from_secs(10);

/// A store that no other process uses while this value lives.
pub struct Store {
    pub(crate) directory: Directory,
    pub(crate) description: Description,
    restore: Restore,
    lock: StoreLock,
}

/// A store's file system, opened, with its bulk storage.
pub struct Opened {
    pub fs: Fs,
    /// What recovery had to do.
    pub recovery: Recovery,
    pub devices: Devices,
    /// False for `dax` memory whose file system refuses MAP_SYNC.
    pub survives_power_loss: bool,
}

/// An open store's bulk devices.
pub struct Devices {
    /// Those that are present, by number.
    pub devices: Vec<(u32, Arc<dyn Device>)>,
    /// The write-back caches in front of devices. Their threads end with these values.
    pub caches: Vec<HeldWrites>,
    /// All of them as the engine uses them, behind their write-back caches.
    pub(crate) engine: Vec<(u32, Arc<dyn BlockDevice>)>,
    pub(crate) host_files: HostFiles,
    pub(crate) held: HeldOnHost,
}

impl Devices {
    fn first(&self) -> Option<&Arc<dyn Device>> {
        self.devices.iter().find(|(number, _)| *number == 0).map(|(_, device)| device)
    }

    /// Closes the devices, after the file system was shut down.
    pub(crate) fn close(&self) -> Outcome<()> {
        self.devices.iter().try_for_each(|(_, device)| device.close())
    }
}

impl Store {
    /// Reads the description of the store at `directory`, which may be in use.
    pub fn describe(directory: &Path) -> Outcome<Description> {
        match Directory::open(directory) {
            Ok(held) => Description::read(&held),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Err(no_store(directory))
            }
            Err(error) => Err(Failure::of(error)),
        }
    }

    /// Takes the store for this process. Waits, for at most `patience`, if the store is in use but
    /// not mounted (any more), or if its daemon was killed and the kernel is still tearing it down:
    /// mount and lock last until the daemon's memory is freed.
    pub fn acquire(directory: &Path, patience: Duration) -> Outcome<Store> {
        Store::describe(directory)?;
        let path = directory.canonicalize().during(directory.display())?;
        let directory = Directory::open(&path).map_err(Failure::of)?;
        let begin = Instant::now();
        let mut watch = holder::Watch::new(&path);
        loop {
            match lock(&directory) {
                // Read under the lock: the last user may have changed it.
                Ok(lock) => return Ok(Store::assemble(directory.clone(), Description::read(&directory)?, lock)),
                Err(failure) if !failure.is_in_use() => return Err(failure),
                Err(_) if begin.elapsed() >= patience || watch.will_stay() => return Err(holder::in_use(&path)),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Takes the store at `path`, which must not be mounted. Waits for a daemon that is just ending.
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

    /// With `restore`, opening uses the saved image of `battery` memory even if the image is
    /// incomplete or the region is damaged.
    pub fn restoring(mut self, restore: bool) -> Store {
        self.restore = if restore { Restore::Asked } else { Restore::No };
        self
    }

    /// Makes opening use the image of a copy that is being made.
    pub(crate) fn copied(mut self) -> Store {
        self.restore = Restore::Copied;
        self
    }

    /// Returns the store's directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the contents of the store's description file.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Returns the facts about the store that opening its memory's media needs.
    pub(crate) fn resting(&self) -> Resting<'_> {
        Resting {
            directory: &self.directory,
            uuid: &self.description.uuid,
            restore: self.restore,
            unmounted: self.was_unmounted(),
            description: &self.description,
        }
    }

    pub(crate) fn assemble(directory: Directory, description: Description, lock: StoreLock) -> Store {
        Store { directory, description, restore: Restore::No, lock }
    }

    /// Opens the file system in the store. A write-back cache that an earlier process left is used,
    /// and its contents are written at once.
    pub fn open(&self, options: Options) -> Outcome<Opened> {
        self.open_with(options, None)
    }

    /// Opens the file system like [`Store::open`], with write-back caches in front of the bulk
    /// devices if they are wanted and can be made.
    pub fn open_with(&self, mut options: Options, wanted: Option<&CacheOptions>) -> Outcome<Opened> {
        let host_files = HostFiles::default();
        let first = self.description.devices().find(|device| device.number == 0);
        host_files.first(first.and_then(|first| first.place.path(&self.directory)));
        options.bulk_on_host = !host_files.is_empty();
        options.bulk_place = first.map_or(0, |first| first.place.on_host(&self.directory));
        let read_only = options.read_only;
        if !read_only && !self.lock.takes_writes() {
            return Err(Failure::new(self.directory.display(), "lies on a read-only file system")
                .remedy("mount the store with `-o ro`, or copy it to where it can be written"));
        }
        let mut media = self.open_media(read_only, options.degraded, &host_files, wanted)?;
        let (caches, held) = (std::mem::take(&mut media.caches), HeldOnHost::default());
        for front in &caches {
            let is_on_host = match front.device {
                0 => options.bulk_on_host,
                number => self
                    .description
                    .place_of(number)
                    .and_then(|place| place.path(&self.directory))
                    .is_some_and(|path| host_files.has(&path)),
            };
            if is_on_host {
                held.note(front.device, &front.filter);
            }
        }
        let opened = self.open_engine(&media, &caches, &held, &host_files, options);
        let (fs, recovery) = opened.inspect_err(|_| caches.iter().for_each(|it| it.withdraw(&self.directory)))?;
        self.tell_of_limit(&fs);
        // Nothing is written to a device that is missing or is not the expected one.
        let states = fs.devices().states();
        let is_there = |number| states.iter().any(|device| device.number == number && !device.state.is_lost());
        caches.iter().filter(|front| !read_only && is_there(front.device)).for_each(InFront::write_excess);
        let driven = caches.into_iter().filter(|_| !read_only).map(|front| {
            let is_there = is_there(front.device);
            front.drive(is_there)
        });
        let caches = driven.collect::<Outcome<Vec<_>>>()?;
        Ok(Opened {
            fs,
            recovery,
            devices: Devices { devices: media.devices, caches, engine: media.engine, host_files, held },
            survives_power_loss: media.survives_power_loss,
        })
    }

    /// Logs a limit that leaves this process less memory than the store's layout has.
    fn tell_of_limit(&self, fs: &Fs) {
        let Some(most) = self.description.memory.bytes_within_limit() else { return };
        let (used, whole) = (fs.usage().region_used, fs.region().superblock().region_bytes);
        if used > most {
            tracing::warn!(
                "memory: {} are in use, and a limit leaves this process {} for them; raise the limit (of the control group, or `ulimit -v`), or it may be killed",
                human(used),
                human(most)
            );
        } else if whole > most {
            tracing::info!("memory: a limit leaves this process {} of the store's {}", human(most), human(whole));
        }
    }

    fn open_engine(
        &self,
        media: &Media,
        caches: &[InFront],
        held: &HeldOnHost,
        host_files: &HostFiles,
        mut options: Options,
    ) -> Outcome<(Fs, Recovery)> {
        options.bulk_devices = media.given.clone();
        options.region_bytes_max = self.description.memory.bytes_within_limit();
        options.region_restored = self.restore != Restore::No;
        options.on_bulk_failure = Some(Arc::new(|sentence: &str| tracing::error!("{sentence}")));
        let name = self.directory.display().to_string();
        options.on_damage = Some(Arc::new(move |ino, finding| {
            tracing::error!("damaged inode {ino}: {finding}; unmount, then run `shoal check --repair {name}`");
        }));
        if self.description.memory.kind().properties().images || !host_files.is_empty() {
            let host = shoal_host::held_host_bytes(&self.directory, self.directory.path()).map_err(Failure::of)?;
            options.checkpoint_log_bytes =
                options.checkpoint_log_bytes.min(shoal_host::log_bytes_max(host.total_bytes));
            let probe = host_room::probe(&self.directory, &self.description.memory, host_files);
            let held = held.clone();
            // Held data takes its room on the host only when it is written, so it is subtracted
            // here.
            options.room = Some(Arc::new(move || {
                let mut room = probe();
                room.region = room.region.saturating_sub(if room.shared { held.bytes() } else { 0 });
                room
            }));
        }
        // A log that names the period without some cache was last written when that cache held
        // nothing. A missing device is no power loss either.
        let earlier: Vec<_> = media.left.iter().copied().chain(media.emptied).collect();
        options.earlier_boot_ids = cache::periods(media.period, &earlier);
        options.earlier_boot_ids.push(shoal_host::boot_id().during("boot id")?);
        let filters: Vec<_> = caches.iter().map(|front| (front.filter.clone(), front.identity)).collect();
        let period = media.period;
        options.on_period = Some(Arc::new(move |named| {
            let in_use = named.map_or(Vec::new(), |named| cache::in_use(period, &earlier, named));
            filters.iter().for_each(|(filter, identity)| filter.adopt(in_use.contains(identity)));
        }));
        let parts = Parts {
            region: media.parts.region.clone(),
            bulk: media.parts.bulk.clone(),
            clock: media.parts.clock.clone(),
        };
        // Read before the engine opens the store, because opening writes.
        let mut page = [0; PAGE as usize];
        media.parts.region.memory.read(SUPERBLOCK_AT, &mut page);
        let superblock = Superblock::decode(&page).map_err(|error| self.damaged(error))?;
        let uuid = uuid_text(&superblock.uuid);
        if uuid != self.description.uuid {
            let cause = format!("the region belongs to store {uuid}, the description to {}", self.description.uuid);
            return Err(Failure::new(self.directory.display(), cause).remedy("bring the files of one store together"));
        }
        Fs::open(parts, options).map_err(|error| self.damaged(error))
    }

    pub(crate) fn damaged(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
        memory::damaged(self.directory.path(), error)
    }

    /// Returns the path of the bulk storage, if it is a file or a block device.
    pub(crate) fn bulk_path(&self) -> Option<PathBuf> {
        self.description.bulk_path(&self.directory)
    }

    /// Returns the size of the bulk storage, if it is a file or a block device.
    pub(crate) fn bulk_file_bytes(&self) -> Outcome<Option<u64>> {
        if self.bulk_path().is_none() {
            return Ok(None);
        }
        Ok(self.open_bulk()?.map(|bulk| bulk.block_device().geometry().bytes))
    }

    /// Identifies the period in which only a crash of this process can lose data: this boot, these
    /// mounts of the file systems that hold log and bulk storage, and these files. A store last
    /// used in another period is treated as after a power loss.
    pub(crate) fn period(&self) -> Outcome<[u8; 16]> {
        period(&self.directory, self.bulk_path())
    }

    /// Notes that this process serves the store in the current period.
    pub fn write_pid(&self) -> Outcome<()> {
        let boot = self.period()?;
        let note = format!("{}\n{}\n", std::process::id(), uuid_text(&boot));
        match self.directory.write_note(PID, note.as_bytes()) {
            // The file only names the daemon, so the store is served without it.
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                tracing::warn!("{error}; make room there");
                Ok(())
            }
            written => written.map_err(Failure::of),
        }
    }

    /// Returns true if the last process that served the store closed it.
    pub(crate) fn was_unmounted(&self) -> bool {
        !self.directory.has(PID)
    }

    /// Notes that the store is clean and no longer served by this process.
    pub fn remove_pid(&self) {
        // If the file cannot be removed, the next check assumes a crash, which is safe.
        let _ = self.directory.remove(PID);
        if let Ok(period) = self.period() {
            // Devices may have been removed since this process read the description.
            let now = Description::read(&self.directory);
            cache::remove(&self.directory, now.as_ref().unwrap_or(&self.description), &period);
        }
    }

    /// Returns true if the machine, or a file system below, went down while the store was mounted.
    pub(crate) fn power_was_lost(&self) -> bool {
        user::power_was_lost(&self.directory, self.bulk_path()) || cache::is_lost(&self.directory, &self.description)
    }

    /// Opens the store in `directory` as a mount would, calls `work`, and closes the store clean.
    /// The store must not be mounted.
    pub(crate) fn at_rest<T>(directory: &Path, work: impl FnOnce(&Fs) -> Outcome<T>) -> Outcome<T> {
        let store = Store::acquire(directory, LEAVING_PATIENCE)?;
        let opened = store.open(Options { method: store.description.compress, ..Options::default() })?;
        let outcome = work(&opened.fs);
        opened.fs.shutdown().during(directory.display())?;
        opened.devices.close()?;
        outcome
    }

    /// Opens the store, calls `work`, and closes the store clean. Returns the size of its bulk
    /// device.
    pub(crate) fn open_and_close(&self, work: impl FnOnce(&Fs) -> shoal_fs::Result<()>) -> Outcome<Option<u64>> {
        let opened = self.open(Options::default())?;
        let worked = work(&opened.fs);
        opened.fs.shutdown().during(self.directory.display())?;
        worked.during(self.directory.display())?;
        self.remove_pid();
        opened.devices.close()?;
        Ok(opened.devices.first().map(|bulk| bulk.block_device().geometry().bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory;
    use crate::names::DESCRIPTION;
    use std::fs;

    #[test]
    fn a_store_in_use_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(DESCRIPTION), "{}").unwrap();
        let held = lock(&Directory::open(dir.path()).unwrap()).unwrap();
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
            // The store is in use but not mounted, so its user is about to end.
            Store::acquire(dir.path(), Duration::from_secs(20)).unwrap();
        });
        let held = lock(&Directory::open(dir.path()).unwrap()).unwrap();
        let error = directory::prepare(dir.path(), None, true).map(drop).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        assert!(dir.path().join(DESCRIPTION).exists());
        drop(held);
        assert!(!is_in_use(dir.path()).unwrap());
        assert!(is_in_use(&dir.path().join("gone")).is_err());
    }
}
