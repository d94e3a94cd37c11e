//! Makes a new, empty store.
//!
//! Sizes are limits, not allocations: memory is taken as files arrive, and the bulk file is sparse.
//! Rules: wrong arguments are refused before anything is made. The description is written after
//! everything else is in place.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use shoal_devices::size::human;
use shoal_devices::{
    Device, During, Failure, Outcome, is_block_device, new_uuid, refuse_if_in_use, refuse_if_not_empty,
};
use shoal_format::superblock::{Geometry, MemoryKind, Superblock};
use shoal_format::{BULK_BLOCK, PAGE, REGION_BYTES_MAX, SEGMENT};
use shoal_fs::{Fs, Method, ProfileFile};
use shoal_host::{Directory, FileDevice, StoreLock};
use shoal_media::BlockDevice;

use crate::description::{BulkChoice, BulkPlace, Description};
use crate::directory::{self, Prepared};
use crate::media::create_media;
use crate::memory::MemoryChoice;
use crate::names::BULK;
use crate::profiles::{self, InodeProfiles};
use crate::store::Store;

pub(crate) const MEMORY_BYTES_MIN: u64 = 8 << 20;
const THRESHOLD_BYTES_MAX: u64 = 64 << 20;
/// A log ring holds at least a few of the largest records.
const RING_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=64 << 20;

/// How to make a store.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// The memory for metadata and small files.
    pub memory: MemoryChoice,
    /// Limit of metadata and small files. `None`: half of the memory that this process may use.
    pub memory_bytes: Option<u64>,
    /// Where the data of large files goes. `None`: into a file in the store.
    pub bulk: Option<BulkChoice>,
    /// Limit of the bulk storage. `None`: the size of its file system or device.
    pub bulk_bytes: Option<u64>,
    /// Files longer than this are large.
    pub threshold_bytes: u64,
    /// How cold small files are compressed.
    pub compress: Method,
    /// Files of `shoal profile`, used for packing cold inodes. If empty, the built-in profiles are
    /// used.
    pub profiles: Vec<PathBuf>,
    /// Keep checksums of the data on bulk storage.
    pub sums: bool,
    /// Replace an existing store, and overwrite a device that holds data.
    pub force: bool,
}

impl Default for FormatOptions {
    fn default() -> FormatOptions {
        FormatOptions {
            memory: MemoryChoice::LOGGED,
            memory_bytes: None,
            bulk: None,
            bulk_bytes: None,
            threshold_bytes: 1 << 20,
            compress: Method::default(),
            profiles: Vec::new(),
            sums: true,
            force: false,
        }
    }
}

/// A store that was made.
#[derive(Debug, Serialize)]
pub struct Formatted {
    pub store: String,
    pub uuid: String,
    pub memory: &'static str,
    pub memory_bytes: u64,
    pub bulk: Option<String>,
    pub bulk_bytes: u64,
    pub threshold_bytes: u64,
    pub inode_profiles: InodeProfiles,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

impl Store {
    /// Makes a store in this directory, which must be empty or not exist.
    pub fn format(directory: &Path, options: &FormatOptions) -> Outcome<Formatted> {
        let memory_bytes = memory_bytes(options.memory_bytes)?;
        refuse_misuse(options)?;
        let profiles = profiles::read(&options.profiles)?;
        let memory = memory_place(&options.memory)?;
        refuse_bulk_place(directory, options)?;
        let device = match &options.bulk {
            Some(BulkChoice::Device(name)) => Some(open_empty(name, options)?),
            _ => None,
        };
        let Prepared { directory, lock, left } =
            directory::prepare(directory, memory.path().map(PathBuf::as_path), options.force)?;
        let (bulk, bulk_bytes) = match &device {
            Some(device) => elsewhere(&**device, options)?,
            None => prepare_bulk(&directory, options)?,
        };
        let uuid = new_uuid();
        let geometry = geometry(memory.kind(), uuid, memory_bytes, bulk_bytes, options)?;
        let description = Description::new(&uuid, memory, bulk, options.compress).made_in(&directory)?;
        let made = make(&directory, lock, description, (geometry, options.sums), device, profiles.as_ref())?;
        let warning = [left, made.warning].into_iter().flatten().reduce(|first, second| format!("{first}; {second}"));
        Ok(Formatted { warning, ..made })
    }
}

/// Makes the media and the file system on them, and the description last.
fn make(
    directory: &Directory,
    _lock: StoreLock,
    description: Description,
    (geometry, sums): (Geometry, bool),
    device: Option<Arc<dyn Device>>,
    profiles: Option<&ProfileFile>,
) -> Outcome<Formatted> {
    let device = match (device, description.bulk_path(directory)) {
        (None, Some(path)) => {
            let opened = shoal_devices::file(path).open();
            Some(Arc::from(opened.map_err(|failure| failure.within("bulk storage"))?))
        }
        (device, _) => device,
    };
    let superblock = Superblock::layout(geometry)
        .map_err(|error| Failure::new("layout", error).remedy("raise --memory-size or lower --bulk-size"))?;
    let media = create_media(directory, &description, &superblock, device)?;
    let options = shoal_fs::FormatOptions {
        geometry,
        sums,
        root_mode: 0o755,
        root_uid: rustix::process::geteuid().as_raw(),
        root_gid: rustix::process::getegid().as_raw(),
    };
    let made = Fs::format_with_profiles(media.parts, &options, profiles);
    made.during(format_args!("store {}", directory.display()))?;
    description.write(directory)?;
    let warning = (!media.survives_power_loss).then(|| {
        "the file system of the memory refuses MAP_SYNC: operations survive a process crash, not a power loss".into()
    });
    Ok(Formatted {
        bulk: description.place_of(0).map(|bulk| bulk.text(directory.path())),
        store: directory.display().to_string(),
        uuid: description.uuid,
        memory: description.memory.kind().name(),
        memory_bytes: superblock.region_bytes,
        bulk_bytes: geometry.bulk_blocks * BULK_BLOCK,
        threshold_bytes: geometry.threshold,
        inode_profiles: InodeProfiles::new(profiles),
        warning,
    })
}

/// Refuses options that contradict each other or are out of range.
fn refuse_misuse(options: &FormatOptions) -> Outcome<()> {
    let threshold = options.threshold_bytes;
    if threshold > THRESHOLD_BYTES_MAX {
        return Err(Failure::new("--threshold", format!("{} is more than 64 MiB", human(threshold))).misuse());
    }
    if options.bulk == Some(BulkChoice::None) && options.bulk_bytes.is_some() {
        return Err(Failure::new("--bulk-size", "there is no bulk storage with --bulk none").misuse());
    }
    Ok(())
}

/// Returns the requested memory, with an absolute path. The directory of its file must exist.
fn memory_place(wanted: &MemoryChoice) -> Outcome<MemoryChoice> {
    let memory = wanted.absolute().during("memory")?;
    if let Some((path, parent)) = memory.path().and_then(|path| Some((path, path.parent()?))) {
        fs::metadata(parent).during(format_args!("memory {}", path.display()))?;
    }
    Ok(memory)
}

/// Refuses a path where bulk storage cannot be. Called before the store's directory is made, so
/// that a refused format leaves nothing behind.
fn refuse_bulk_place(directory: &Path, options: &FormatOptions) -> Outcome<()> {
    let Some(BulkChoice::File(path)) = &options.bulk else { return Ok(()) };
    let path = std::path::absolute(path).during(path.display())?;
    let store = std::path::absolute(directory).during(directory.display())?;
    if let Some(parent) = path.parent().filter(|parent| !parent.starts_with(&store)) {
        fs::metadata(parent).during(format_args!("bulk storage {}", path.display()))?;
    }
    Ok(())
}

fn geometry(
    memory_kind: MemoryKind,
    uuid: [u8; 16],
    memory_bytes: u64,
    bulk_bytes: u64,
    options: &FormatOptions,
) -> Outcome<Geometry> {
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    Ok(Geometry {
        memory_kind,
        uuid,
        region_bytes: memory_bytes,
        bulk_blocks: bulk_bytes / BULK_BLOCK,
        ring_bytes: (memory_bytes / 8).clamp(*RING_BYTES.start(), *RING_BYTES.end()) / PAGE * PAGE,
        threshold: options.threshold_bytes,
        hash_seed: u64::from_le_bytes(shoal_host::random_bytes().during("random numbers")?),
        created_ns: created,
    })
}

/// Returns the size of a region: the requested one, or else the default.
pub(crate) fn memory_bytes(wanted: Option<u64>) -> Outcome<u64> {
    let bytes = wanted.unwrap_or_else(|| (shoal_host::memory_total_bytes() / 2).max(MEMORY_BYTES_MIN));
    if !(MEMORY_BYTES_MIN..=REGION_BYTES_MAX).contains(&bytes) {
        let cause = format!("{} is outside the range allowed", human(bytes));
        return Err(Failure::new("--memory-size", cause).remedy("give 8M to 1T").misuse());
    }
    Ok(bytes / SEGMENT * SEGMENT)
}

/// Makes or opens the bulk storage. Returns its place for the description, and its usable size.
fn prepare_bulk(held: &Directory, options: &FormatOptions) -> Outcome<(Option<BulkPlace>, u64)> {
    let directory = held.path();
    let file = match &options.bulk {
        Some(BulkChoice::None | BulkChoice::Device(_)) => return Ok((None, 0)),
        None => PathBuf::from(BULK),
        Some(BulkChoice::File(path)) => {
            let path = std::path::absolute(path).during(path.display())?;
            path.strip_prefix(directory).map(Path::to_path_buf).unwrap_or(path)
        }
    };
    let path = directory.join(&file);
    let bytes = if is_block_device(&path) {
        refuse_if_in_use(&path)?;
        let device = FileDevice::open(&path).during("bulk storage")?;
        refuse_if_not_empty(&device, path.display(), options.force)?;
        let found = device.geometry().bytes;
        let wanted = options.bulk_bytes.unwrap_or(found);
        if wanted > found {
            let cause = format!("{} is more than {} has ({})", human(wanted), path.display(), human(found));
            return Err(Failure::new("--bulk-size", cause).misuse());
        }
        wanted
    } else {
        let parent = path.parent().unwrap_or(directory);
        let bytes = match options.bulk_bytes {
            Some(bytes) => bytes,
            None => {
                shoal_host::host_free_bytes(parent).during(format_args!("bulk storage {}", path.display()))?.total_bytes
            }
        } / BULK_BLOCK
            * BULK_BLOCK;
        // Include room for the mark that the first of several devices has behind its last block.
        FileDevice::create(&path, bytes + BULK_BLOCK).during("bulk storage")?;
        bytes
    };
    let bytes = bytes / BULK_BLOCK * BULK_BLOCK;
    if bytes == 0 {
        return Err(Failure::new("--bulk-size", "smaller than one block of 64 KiB").remedy("use --bulk none").misuse());
    }
    Ok((Some(BulkPlace::File(file)), bytes))
}

/// Opens a device that is not a file of the store. A device that holds data is refused without `force`.
fn open_empty(name: &shoal_devices::DeviceName, options: &FormatOptions) -> Outcome<Arc<dyn Device>> {
    let name = name.absolute().during("--bulk")?;
    let opened = name.open();
    let device: Arc<dyn Device> = opened.map(Arc::from).map_err(|failure| failure.within("bulk storage"))?;
    let block_device = device.block_device();
    refuse_if_not_empty(&*block_device, name, options.force)?;
    // This is a hint to the device, so that old data takes no space any more.
    let _ = shoal_media::trim(&*block_device, 0, block_device.geometry().bytes);
    Ok(device)
}

/// Returns place and usable size of a device that is not a file of the store.
fn elsewhere(device: &dyn Device, options: &FormatOptions) -> Outcome<(Option<BulkPlace>, u64)> {
    let found = device.block_device().geometry().bytes;
    let wanted = options.bulk_bytes.unwrap_or(found);
    if wanted > found {
        let cause =
            format!("{} is more than {} has ({})", human(wanted), device.name().without_secrets(), human(found));
        return Err(Failure::new("--bulk-size", cause).misuse());
    }
    let bytes = wanted / BULK_BLOCK * BULK_BLOCK;
    if bytes == 0 {
        return Err(Failure::new("bulk storage", "smaller than one block of 64 KiB")
            .remedy("use --bulk none")
            .misuse());
    }
    Ok((Some(BulkPlace::Device(device.name().to_string())), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::user::writer;

    #[test]
    fn a_formatted_store_opens_clean_and_empty_with_each_kind_of_memory() {
        let dir = tempfile::tempdir().unwrap();
        for kind in ["logged", "battery", "dax"] {
            let path = dir.path().join(kind);
            let memory = match kind {
                "logged" => kind.into(),
                _ => format!("{kind}={}", dir.path().join(format!("{kind}.region")).display()),
            };
            let options = FormatOptions {
                memory: memory.parse().unwrap(),
                memory_bytes: Some(64 << 20),
                bulk_bytes: Some(16 << 20),
                threshold_bytes: 64 << 10,
                ..FormatOptions::default()
            };
            Store::format(&path, &options).unwrap();
            assert!(Store::format(&path, &options).unwrap_err().to_string().contains("--force"));
            Store::format(&path, &FormatOptions { force: true, ..options }).unwrap();
            let store = Store::acquire(&path, std::time::Duration::ZERO).unwrap();
            assert_eq!(writer(&path), None, "{kind}");
            let opened = store.open(shoal_fs::Options::default()).unwrap();
            let fs = opened.fs;
            assert!(opened.recovery.clean, "{kind}");
            assert_eq!(fs.usage().inodes, 1, "{kind}");
            assert_eq!(fs.usage().bulk_bytes, 16 << 20, "{kind}");
            assert_eq!(fs.region().superblock().threshold, 64 << 10);
            store.write_pid().unwrap();
            assert_eq!(writer(&path), Some(std::process::id()));
            assert!(!store.power_was_lost());
            for note in ["7\n6ba7b810-9dad-11d1-80b4-00c04fd430c8\n", "7\nanother boot\n", "7\n", "", "\0\0\0"] {
                std::fs::write(path.join("pid"), note).unwrap();
                assert!(store.power_was_lost(), "{kind}: {note:?}");
            }
            store.remove_pid();
            fs.shutdown().unwrap();
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let usual = FormatOptions::default;
        for options in [
            FormatOptions { memory_bytes: Some(7 << 20), ..usual() },
            FormatOptions { memory_bytes: Some(2 << 40), ..usual() },
            FormatOptions { threshold_bytes: 65 << 20, ..usual() },
            FormatOptions { bulk: Some(BulkChoice::None), bulk_bytes: Some(1 << 30), ..usual() },
        ] {
            assert!(Store::format(&path, &options).unwrap_err().is_misuse(), "{options:?}");
            assert!(!path.exists());
        }
        Store::format(&path, &FormatOptions { bulk_bytes: Some(1 << 10), ..usual() }).unwrap_err();
        assert!(Store::describe(&path).is_err(), "a format that failed leaves no store");
        let none = FormatOptions { bulk: Some(BulkChoice::None), memory_bytes: Some(8 << 20), force: true, ..usual() };
        Store::format(&path, &none).unwrap();
    }
}
