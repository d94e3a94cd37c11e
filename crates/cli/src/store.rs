//! The store: a directory, what is in it, and how its media are put together.
//!
//! | file | what |
//! |---|---|
//! | `shoal.json` | the description: version, uuid, kind of memory, where the bulk storage is; written last by `format` |
//! | `image.0`, `image.1` | the region at rest (of `logged` and `battery` memory) |
//! | `log/` | the log of `logged` memory |
//! | `bulk` | data of large files, unless it is kept elsewhere |
//! | `lock`, `pid`, `control`, `shoal.log` | one user at a time; the daemon, its socket and its log |
//!
//! Rules: whoever opens media holds the lock. Everything is readable by the owner only. A directory without a
//! description is not a store, so a `format` that was interrupted leaves none.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shoal_devices::{Device, During, Failure, Outcome, uuid_text};
use shoal_format::PAGE;
use shoal_format::superblock::{SUPERBLOCK_AT, Superblock};
use shoal_fs::{Fs, Options, Parts};
use shoal_host::{HostImage, PrivateMap, SEGMENT_BYTES, SegmentLog, SharedKind, SharedMap, StoreLock, SystemClock};
use shoal_media::{ImageFile, LogDevice, PersistentMemory};
use shoal_region::Recovery;

use crate::battery;
use crate::host_room;
use crate::memory::MemoryChoice;
use crate::place;

pub const DESCRIPTION: &str = "shoal.json";
/// After umount(8) a daemon takes a moment to write its store; whoever only wants to look waits so long.
pub const LEAVING_PATIENCE: Duration = Duration::from_secs(10);
/// The daemon of a mounted store that looks alive for so long is.
const LIFE_SIGN: Duration = Duration::from_millis(200);
/// The description while it is being written.
pub const DESCRIPTION_NEW: &str = "shoal.json.new";
const DESCRIPTION_VERSION: u32 = 1;
pub const IMAGES: [&str; 2] = ["image.0", "image.1"];
pub const LOG: &str = "log";
pub const BULK: &str = "bulk";
pub const DAEMON_LOG: &str = "shoal.log";
const PID: &str = "pid";
/// Everything a store's directory may hold.
const OWN_NAMES: [&str; 11] =
    [DESCRIPTION, DESCRIPTION_NEW, IMAGES[0], IMAGES[1], LOG, BULK, DAEMON_LOG, "shoal.log.1", PID, "lock", "control"];

/// The store's description file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub version: u32,
    pub uuid: String,
    pub memory: MemoryChoice,
    pub bulk: Option<BulkPlace>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BulkPlace {
    /// A file or a block device; relative to the store's directory.
    File(PathBuf),
    /// An NBD server or a network RAM disk, as `--bulk` had it.
    Device(String),
}

/// A store that nobody else uses while this value lives.
pub struct Store {
    pub directory: PathBuf,
    pub description: Description,
    /// `battery` memory: go on from the saved image although it lacks something, or the region there is no good.
    pub restore: bool,
    _lock: StoreLock,
}

/// A description that cannot be read, while the files of the store may be whole.
fn unreadable(directory: &Path, error: Box<dyn std::error::Error + Send + Sync>) -> Failure {
    let store = directory.display();
    Failure::new(directory.join(DESCRIPTION).display(), error)
        .remedy(format!("correct it or bring it back; `shoal salvage {store} DIR` copies out what can be read"))
}

/// A store's media, opened.
pub struct Media {
    pub parts: Parts,
    /// Bulk storage, if there is any.
    pub bulk: Option<Arc<dyn Device>>,
    /// `dax` memory whose file system refuses MAP_SYNC.
    pub survives_power_loss: bool,
}

impl Store {
    /// The description of the store at `directory`, whether or not somebody uses it.
    pub fn describe(directory: &Path) -> Outcome<Description> {
        let path = directory.join(DESCRIPTION);
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                Failure::new(directory.display(), "not a store").remedy("make one with `shoal format`")
            }
            _ => unreadable(directory, error.into()),
        })?;
        let description: Description =
            serde_json::from_str(&text).map_err(|error| unreadable(directory, error.into()))?;
        if description.version != DESCRIPTION_VERSION {
            let cause = format!("version {}, this program knows version {DESCRIPTION_VERSION}", description.version);
            return Err(Failure::new(path.display(), cause).remedy("use a newer shoal"));
        }
        Ok(description)
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

    pub(crate) fn assemble(directory: PathBuf, description: Description, lock: StoreLock) -> Store {
        Store { directory, description, restore: false, _lock: lock }
    }

    /// Opens the file system in the store.
    pub fn open(&self, mut options: Options) -> Outcome<(Fs, Recovery, Media)> {
        let media = self.open_media(options.read_only)?;
        let name = self.directory.display().to_string();
        options.on_damage = Some(Arc::new(move |ino, finding| {
            tracing::error!("damaged inode {ino}: {finding}; unmount, then run `shoal check --repair {name}`");
        }));
        if !matches!(self.description.memory, MemoryChoice::Dax(_)) || self.bulk_path().is_some() {
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
        Ok((fs, recovery, media))
    }

    fn damaged(&self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
        let store = self.directory.display();
        let remedy =
            format!("`shoal check {store}` tells more, `shoal salvage {store} DIR` copies out what can be read");
        Failure::new(format_args!("store {}", self.directory.display()), error).remedy(remedy)
    }

    fn open_media(&self, read_only: bool) -> Outcome<Media> {
        let mut survives_power_loss = true;
        let (memory, log, images): (Arc<dyn PersistentMemory>, Option<Arc<dyn LogDevice>>, _) =
            match &self.description.memory {
                MemoryChoice::Logged => {
                    let images = self.open_images()?;
                    let (index, superblock, anchor) =
                        shoal_region::newest_image(&shared(&images)).map_err(|error| self.damaged(error))?;
                    let image = Some((images[index].file(), anchor.used_bytes.get().next_multiple_of(PAGE)));
                    let memory =
                        PrivateMap::new(superblock.region_bytes, image).map_err(|error| self.damaged(error))?;
                    let log = SegmentLog::open(&self.log_path(), SEGMENT_BYTES).map_err(|error| self.damaged(error))?;
                    (Arc::new(memory), Some(Arc::new(log)), Some(shared(&images)))
                }
                MemoryChoice::Battery(path) => {
                    let images = self.open_images()?;
                    let wish = battery::Wish {
                        read_only,
                        restore: self.restore,
                        uuid: &self.description.uuid,
                        unmounted: self.was_unmounted(),
                    };
                    (battery::open(path, &images, &wish)?, None, Some(shared(&images)))
                }
                MemoryChoice::Dax(path) => {
                    let open = if read_only { SharedMap::open_aside } else { SharedMap::open };
                    let memory = open(path, SharedKind::Dax).during("memory")?;
                    survives_power_loss = memory.synchronous();
                    (Arc::new(memory), None, None)
                }
            };
        let region = region_parts(memory, log, images, self.period()?)?;
        let bulk = self.open_bulk()?;
        let device = bulk.as_ref().map(|bulk| bulk.block_device());
        let parts = Parts { region, bulk: device, clock: Arc::new(SystemClock::new()) };
        Ok(Media { parts, bulk, survives_power_loss })
    }

    pub fn open_images(&self) -> Outcome<[Arc<HostImage>; 2]> {
        let store = self.directory.display();
        let open = |name| {
            HostImage::open(&self.directory.join(name)).map(Arc::new).map_err(|error| {
                Failure::new("image", error)
                    .remedy(format!("bring it back; `shoal salvage {store} DIR` copies out what the other image holds"))
            })
        };
        Ok([open(IMAGES[0])?, open(IMAGES[1])?])
    }

    pub fn log_path(&self) -> PathBuf {
        self.directory.join(LOG)
    }

    /// The file or block device of the bulk storage, where it is one.
    pub fn bulk_path(&self) -> Option<PathBuf> {
        match &self.description.bulk {
            Some(BulkPlace::File(file)) => Some(self.directory.join(file)),
            Some(BulkPlace::Device(_)) | None => None,
        }
    }

    /// Size of the bulk storage where it is a file or a block device.
    pub fn bulk_file_bytes(&self) -> Outcome<Option<u64>> {
        if self.bulk_path().is_none() {
            return Ok(None);
        }
        Ok(self.open_bulk()?.map(|bulk| bulk.block_device().geometry().bytes))
    }

    fn open_bulk(&self) -> Outcome<Option<Arc<dyn Device>>> {
        let Some(place) = &self.description.bulk else { return Ok(None) };
        let file = format!("{}/{DESCRIPTION}", self.directory.display());
        let (description, remedy) = match place {
            BulkPlace::File(_) => {
                let path = self.bulk_path().unwrap_or_default();
                (shoal_devices::file(path), format!("bring it back, or correct `bulk` in {file}"))
            }
            BulkPlace::Device(text) => {
                let parsed = text.parse().map_err(|error: String| Failure::new(&file, error))?;
                (parsed, format!("start its server again, or correct `bulk` in {file}"))
            }
        };
        let opened = description.open();
        opened.map(|device| Some(Arc::from(device))).map_err(|failure| {
            let failure = failure.within("bulk storage");
            if failure.is_in_use() { failure } else { failure.remedy(remedy) }
        })
    }

    /// The time in which nothing written can get lost but by a crash of this process: a boot of the machine, a mount of
    /// the file systems that hold log and bulk storage, and these very files. Everything else counts as after a power loss.
    pub fn period(&self) -> Outcome<[u8; 16]> {
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
    pub fn was_unmounted(&self) -> bool {
        !self.directory.join(PID).exists()
    }

    pub fn remove_pid(&self) {
        // It stays if it cannot be removed; then the next check assumes a crash, which is the safe side.
        let _ = fs::remove_file(self.directory.join(PID));
    }

    /// Did the machine, or a file system below, go down while the store was mounted?
    pub fn power_was_lost(&self) -> bool {
        power_was_lost(&self.directory, self.bulk_path())
    }
}

/// The same for the store in `directory`, whose bulk storage may be the file `bulk`.
pub fn power_was_lost(directory: &Path, bulk: Option<PathBuf>) -> bool {
    let Ok(text) = fs::read_to_string(directory.join(PID)) else { return false };
    let now = period(&[Some(directory.join(LOG)), bulk]).map(|id| uuid_text(&id)).unwrap_or_default();
    // An earlier program named the boot alone.
    let earlier = shoal_host::boot_id().map(|id| uuid_text(&id)).unwrap_or_default();
    text.lines().nth(1).is_some_and(|boot| boot != now && boot != earlier)
}

/// Takes the lock of a store's directory.
pub fn lock(directory: &Path) -> Outcome<StoreLock> {
    StoreLock::acquire(directory).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Failure::told(error),
        _ => Failure::new(format_args!("store {}", directory.display()), error),
    })
}

/// Does another process use the store? An error where that cannot be known.
pub fn is_in_use(directory: &Path) -> io::Result<bool> {
    match StoreLock::acquire(directory) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

/// The process that serves the store for writing, or died doing so.
pub fn writer(directory: &Path) -> Option<u32> {
    first_number(&directory.join(PID))
}

/// The process that holds the store's lock, or was the last to hold it.
pub fn holder(directory: &Path) -> Option<u32> {
    let lock = directory.join("lock");
    // On a full host the file may be empty; the kernel knows all the same.
    lock_owner(&lock).or_else(|| first_number(&lock))
}

/// The process that the kernel lists as the lock's owner.
fn lock_owner(lock: &Path) -> Option<u32> {
    let inode = fs::metadata(lock).ok()?.ino();
    let locks = fs::read_to_string("/proc/locks").ok()?;
    owners(&locks, inode).into_iter().find(|pid| {
        // The device number may be another one than stat(2) tells (btrfs): the open file decides.
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.into_iter().any(|link| fs::read_link(link.path()).is_ok_and(|path| path == lock))
    })
}

/// Processes that hold a whole-file lock of an inode of this number, from the text of /proc/locks.
fn owners(locks: &str, inode: u64) -> Vec<u32> {
    let owner = |line: &str| -> Option<u32> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = words.get(5)?.rsplit(':').next()?.parse::<u64>().ok()?;
        (words.get(1) == Some(&"FLOCK") && number == inode).then(|| words[4].parse().ok()).flatten()
    };
    locks.lines().filter_map(owner).collect()
}

/// Is the process gone, or on its way: killed, or giving back what it had?
pub fn is_ending(pid: u32) -> bool {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    looks_ending(&read("stat"), &read("status"))
}

fn looks_ending(stat: &str, status: &str) -> bool {
    const EXITING: u64 = 4;
    const KILL_PENDING: u64 = 1 << 8;
    // The name, in parentheses, may hold anything.
    let Some((_, fields)) = stat.rsplit_once(')') else { return true };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let flags = fields.get(6).and_then(|flags| flags.parse().ok()).unwrap_or(0u64);
    let pending = status.lines().filter_map(|line| line.split_once(':')).any(|(name, signals)| {
        matches!(name, "SigPnd" | "ShdPnd")
            && u64::from_str_radix(signals.trim(), 16).is_ok_and(|signals| signals & KILL_PENDING != 0)
    });
    matches!(fields.first(), None | Some(&"Z" | &"X")) || flags & EXITING != 0 || pending
}

fn first_number(path: &Path) -> Option<u32> {
    fs::read_to_string(path).ok()?.lines().next()?.parse().ok()
}

pub fn shared(images: &[Arc<HostImage>; 2]) -> [Arc<dyn ImageFile>; 2] {
    [images[0].clone(), images[1].clone()]
}

/// The boot's number, and in each half of it that of one of the places: for two periods of one boot, and for a store and a
/// snapshot or copy of it, they differ.
fn period(places: &[Option<PathBuf>; 2]) -> Outcome<[u8; 16]> {
    let mut period = shoal_host::boot_id().during("boot id")?;
    for (half, place) in period.chunks_exact_mut(8).zip(places) {
        let Some(place) = place.as_ref().filter(|place| place.exists()) else { continue };
        let number = shoal_host::place_id(place).during("bulk storage or log")?;
        half.iter_mut().zip(number.to_le_bytes()).for_each(|(byte, number)| *byte ^= number);
    }
    Ok(period)
}

fn region_parts(
    memory: Arc<dyn PersistentMemory>,
    log: Option<Arc<dyn LogDevice>>,
    images: Option<[Arc<dyn ImageFile>; 2]>,
    boot_id: [u8; 16],
) -> Outcome<shoal_region::Parts> {
    let nonce = shoal_host::random_bytes().during("random numbers")?;
    Ok(shoal_region::Parts { memory, log, images, boot_id, nonce })
}

/// Makes the media of a new store in an empty directory. The description is written by [`write_description`].
pub fn create_media(
    directory: &Path,
    description: &Description,
    superblock: &Superblock,
    bulk: Option<Arc<dyn Device>>,
) -> Outcome<Media> {
    let region_bytes = superblock.region_bytes;
    let mut survives_power_loss = true;
    let images = || -> Outcome<[Arc<HostImage>; 2]> {
        let create = |name| HostImage::create(&directory.join(name)).map(Arc::new).during("image");
        Ok([create(IMAGES[0])?, create(IMAGES[1])?])
    };
    let (memory, log, images): (Arc<dyn PersistentMemory>, Option<Arc<dyn LogDevice>>, _) = match &description.memory {
        MemoryChoice::Logged => {
            let memory = PrivateMap::new(region_bytes, None).during("memory")?;
            let log = SegmentLog::create(&directory.join(LOG), SEGMENT_BYTES).during("log")?;
            (Arc::new(memory), Some(Arc::new(log)), Some(shared(&images()?)))
        }
        MemoryChoice::Battery(path) => {
            let memory = SharedMap::create(path, region_bytes, SharedKind::Battery).during("memory")?;
            (Arc::new(memory), None, Some(shared(&images()?)))
        }
        MemoryChoice::Dax(path) => {
            let memory = SharedMap::create(path, region_bytes, SharedKind::Dax).during("memory")?;
            survives_power_loss = memory.synchronous();
            (Arc::new(memory), None, None)
        }
    };
    let device = bulk.as_ref().map(|bulk| bulk.block_device());
    let file = match &description.bulk {
        Some(BulkPlace::File(file)) => Some(directory.join(file)),
        _ => None,
    };
    let region = region_parts(memory, log, images, period(&[Some(directory.join(LOG)), file])?)?;
    let parts = Parts { region, bulk: device, clock: Arc::new(SystemClock::new()) };
    Ok(Media { parts, bulk, survives_power_loss })
}

/// Makes the directory a store, at once or not at all.
pub fn write_description(directory: &Path, description: &Description) -> Outcome<()> {
    let (new, path) = (directory.join(DESCRIPTION_NEW), directory.join(DESCRIPTION));
    let mut text = serde_json::to_string_pretty(description).during(path.display())?;
    text.push('\n');
    let write = || -> io::Result<()> {
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(text.as_bytes())?;
        // The contents before the name: a store with an empty description would be none.
        file.sync_all()?;
        fs::rename(&new, &path)?;
        fs::File::open(directory)?.sync_all()
    };
    write().during(path.display())
}

/// Makes the directory, or empties it of an earlier store; refuses one that holds anything else.
pub fn prepare_directory(directory: &Path, force: bool) -> Outcome<(PathBuf, StoreLock)> {
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(Failure::new(directory.display(), "is not a directory")
                .remedy("name a directory that is empty or does not exist yet"));
        }
        outcome => outcome.during(directory.display())?,
    }
    let directory = directory.canonicalize().during(directory.display())?;
    let entries: Vec<_> = fs::read_dir(&directory)
        .and_then(|entries| entries.map(|e| Ok(e?.file_name())).collect::<io::Result<_>>())
        .during(directory.display())?;
    if let Some(foreign) = entries.iter().find(|name| !OWN_NAMES.iter().any(|own| *name == own)) {
        let cause = format!("holds `{}`, which is no part of a store", foreign.to_string_lossy());
        return Err(Failure::new(directory.display(), cause).remedy("name an empty or a new directory"));
    }
    if !force && entries.iter().any(|name| name != "lock") {
        return Err(Failure::new(directory.display(), "holds a store, or a part of one")
            .remedy("add --force to replace it; everything in it is lost"));
    }
    let lock = lock(&directory)?;
    // The description first: from here on there is no store.
    let old = Store::describe(&directory).ok();
    remove(&directory.join(DESCRIPTION))?;
    if let Some(path) = old.as_ref().and_then(|old| old.memory.path()) {
        remove(path)?;
    }
    for name in OWN_NAMES.iter().filter(|name| **name != "lock") {
        remove(&directory.join(name))?;
    }
    Ok((directory, lock))
}

fn remove(path: &Path) -> Outcome<()> {
    let outcome = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.during(path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_names_the_owner_of_a_lock() {
        let locks = "1: FLOCK  ADVISORY  WRITE 6239 00:2f:257 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 77 00:2f:257 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 5 08:01:257 0 EOF\n3: FLOCK ADVISORY READ 9 00:2f:25 0 EOF\n";
        assert_eq!(owners(locks, 257), [6239]);
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().canonicalize().unwrap();
        let held = StoreLock::acquire(&directory).unwrap();
        fs::write(directory.join("lock"), "").unwrap();
        assert_eq!(holder(&directory), Some(std::process::id()), "the file is empty, as on a full host");
        drop(held);
        assert_eq!(holder(&directory), None);
    }

    #[test]
    fn a_uuid_is_written_in_five_groups() {
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert_eq!(uuid_text(&uuid), "00010203-0405-0607-0809-0a0b0c0d0eff");
    }

    #[test]
    fn the_description_is_what_it_was_and_refuses_other_versions() {
        let dir = tempfile::tempdir().unwrap();
        let mut description = Description {
            version: DESCRIPTION_VERSION,
            uuid: uuid_text(&[7; 16]),
            memory: MemoryChoice::Dax("/pmem/r".into()),
            bulk: Some(BulkPlace::File(BULK.into())),
        };
        write_description(dir.path(), &description).unwrap();
        assert_eq!(Store::describe(dir.path()).unwrap(), description);
        description.version = 2;
        write_description(dir.path(), &description).unwrap();
        assert!(Store::describe(dir.path()).unwrap_err().to_string().contains("version 2"));
        let missing = Store::describe(&dir.path().join("x")).unwrap_err().to_string();
        assert!(missing.contains("not a store; make one with"), "{missing}");
    }

    #[test]
    fn only_an_empty_directory_becomes_a_store_unless_forced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        drop(prepare_directory(&path, false).unwrap());
        drop(prepare_directory(&path, false).unwrap());
        fs::write(path.join(DESCRIPTION), "{}").unwrap();
        assert!(prepare_directory(&path, false).map(drop).unwrap_err().to_string().contains("--force"));
        fs::create_dir(path.join(LOG)).unwrap();
        drop(prepare_directory(&path, true).unwrap());
        let left: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
        fs::write(path.join("thesis.tex"), "").unwrap();
        assert!(prepare_directory(&path, true).map(drop).unwrap_err().to_string().contains("thesis.tex"));
    }

    #[test]
    fn a_process_that_is_killed_or_gone_counts_as_ending() {
        assert!(!is_ending(std::process::id()));
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        assert!(!is_ending(child.id()));
        child.kill().unwrap();
        // Not waited for: from the kill on it must look so, first dying, then as a zombie.
        assert!(is_ending(child.id()) || (0..100).any(|_| is_ending(child.id())));
        child.wait().unwrap();
        assert!(is_ending(child.id()));
        let stat = |state: &str, flags: u32| format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0");
        let status = |pending: &str| format!("Name:\tx\nSigPnd:\t{pending}\nShdPnd:\t0000000000000000\n");
        assert!(!looks_ending(&stat("S", 0x400000), &status("0000000000004000")));
        assert!(looks_ending(&stat("R", 0x400004), &status("0000000000000000")));
        assert!(looks_ending(&stat("D", 0x400000), &status("0000000000000100")));
        assert!(looks_ending(&stat("Z", 0x400000), ""));
    }

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
        let error = prepare_directory(dir.path(), true).map(drop).unwrap_err().to_string();
        assert!(error.contains(&std::process::id().to_string()), "{error}");
        assert!(dir.path().join(DESCRIPTION).exists());
        drop(held);
        assert!(!is_in_use(dir.path()).unwrap());
        assert!(is_in_use(&dir.path().join("gone")).is_err());
    }
}
