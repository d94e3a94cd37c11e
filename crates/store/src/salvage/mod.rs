//! Copies everything readable out of a damaged store, and names the rest.
//!
//! `shoal_check::salvage` does the reading. This module opens the store's files only for reading
//! and without touching its lock (`media`), and makes the copy (`copy`). `report` tells what was
//! saved and what was lost. Left out: bulk storage that cannot be opened without writing (network
//! RAM disks, virtual-log disks); its files are named as lost.

mod copy;
mod media;
mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shoal_check::{BulkData, FoundDevice, ImageSource, NotOpened, OpenedDevice, SalvageSource, Salvaged as Found};
use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome, parse_uuid};
use shoal_format::PAGE;
use shoal_format::bulk_list::BulkDeviceEntry;
use shoal_format::superblock::{ANCHOR_AT, AnchorRecord, SUPERBLOCK_AT, Superblock};
use shoal_host::{Directory, StoreLock};
use shoal_media::{ImageFile, LogDevice, PersistentMemory};
use shoal_region::Error::LogGap;

use crate::cache::{self, Left, StoreCache};
use crate::description::{BulkPlace, Description, NumberedPlace};
use crate::directory;
use crate::names::{BULK, DESCRIPTION, IMAGES, LOG};
use crate::progress::Progress;
use crate::{holder, place, user};

pub use report::{Lost, Salvaged, Told};

/// Copies everything readable in the store in `directory` into `target`, which must be empty or not
/// exist yet. The store stays as it is.
pub fn salvage(
    store: &Path,
    target: &Path,
    watched: &dyn Progress,
    told: &mut dyn FnMut(Told<'_>),
) -> Outcome<Salvaged> {
    let directory = Directory::open(&store.canonicalize().during(store.display())?).map_err(Failure::of)?;
    // A store in use changes while it is read. The lock is examined but not taken, because taking
    // it would write to it.
    if StoreLock::is_held(&directory).unwrap_or(false) {
        return Err(holder::in_use(directory.path()));
    }
    if place::is_mounted(directory.path()) {
        return Err(Failure::new(directory.display(), "is in use").remedy("unmount it first"));
    }
    let description = describe(&directory)?;
    let target = prepare(target, directory.path())?;
    // Look for lost caches before the files are opened, because a cache has one user at a time.
    let went_down = user::what_went_down(&directory, description.bulk_path(&directory));
    let loss_boots = cache::loss_boots(&directory, &description);
    let (power_lost, first_moved) =
        (went_down.machine || cache::is_lost(&directory, &description), went_down.bulk_moved);
    let files = Files::open(&directory, &description);
    watched.begin("looking for files", 0);
    let mut copy = copy::Copy::new(target.clone(), told);
    files.faults(&directory).into_iter().for_each(|why| copy.tell(Lost { path: None, from: None, to: None, why }));
    let mut run = |image| {
        let log = files.log.as_ref().map(|log| log as &dyn LogDevice);
        let source =
            SalvageSource { image, log, bulk: files.bulk.as_deref(), power_lost, loss_boots: &loss_boots, first_moved };
        let mut show = |found: &Found| {
            if (found.files + found.directories).is_multiple_of(256) {
                watched.begin(&format!("{} files, {}", found.files, human(found.bytes)), 0);
            }
        };
        shoal_check::salvage(source, &mut copy, &mut show).during(directory.display())
    };
    let images = || ImageSource::Images([&files.images[0], &files.images[1]]);
    // If the memory is gone or is no longer a region, the saved images are read.
    let found = match &files.memory {
        Some(memory) => match run(ImageSource::Memory(memory as &dyn PersistentMemory))? {
            Some(found) => Some(found),
            None => run(images())?,
        },
        None => run(images())?,
    };
    watched.end();
    let Some(found) = found else {
        return Err(Failure::new(directory.display(), "no image of it has a superblock: nothing can be read")
            .remedy("restore it from a backup"));
    };
    let (lost, notes) = copy.finish();
    Ok(Salvaged {
        store: directory.display().to_string(),
        target: target.display().to_string(),
        directories: found.directories,
        files: found.files,
        others: found.others,
        links: found.links,
        bytes: found.bytes,
        unnamed: found.unnamed,
        lost,
        notes,
    })
}

/// A store's files, opened for reading. A file that cannot be opened is absent.
struct Files {
    images: [media::ReadImage; 2],
    log: Option<media::ReadLog>,
    memory: Option<media::ReadMemory>,
    bulk: Option<Box<dyn BulkData>>,
    /// Why bulk devices of the store could not be opened.
    no_bulk: Vec<String>,
}

impl Files {
    fn open(directory: &Directory, description: &Description) -> Files {
        let memory = description.memory.path().and_then(|path| media::ReadMemory::open(path));
        let (bulk, faults) = bulk_data(directory, description);
        let no_bulk = faults.iter().map(|fault| format!("{fault}; the data of large files there is lost")).collect();
        let log = media::ReadLog::open(directory, LOG);
        Files { images: store_images(directory), log, memory, bulk, no_bulk }
    }

    /// Faults of the files themselves, in words.
    fn faults(&self, directory: &Directory) -> Vec<String> {
        let mut faults = self.log.as_ref().map(media::ReadLog::faults).unwrap_or_default();
        let older = self.memory.clone().and_then(|memory| {
            let [first, second] = store_images(directory);
            disagreement(Arc::new(memory), [Arc::new(first), Arc::new(second)])
        });
        faults.extend(older);
        faults.extend(self.no_bulk.clone());
        faults
    }
}

/// Returns the reason why the region does not belong to its saved images. `None` if it does.
fn disagreement(memory: Arc<dyn PersistentMemory>, images: [Arc<dyn ImageFile>; 2]) -> Option<String> {
    if memory.len() < 4 * PAGE {
        return None;
    }
    let mut page = [0; PAGE as usize];
    memory.read(SUPERBLOCK_AT, &mut page);
    let superblock = Superblock::decode(&page).ok().filter(|superblock| memory.len() >= superblock.region_bytes)?;
    memory.read(ANCHOR_AT[0], &mut page);
    let anchor = AnchorRecord::newest(&page).ok()?;
    let end = match shoal_region::ring_end(&memory, &superblock, &anchor) {
        Err(LogGap { next, .. }) => next,
        end => end.ok()?,
    };
    let error = shoal_region::compare(&images, &superblock, &anchor, end).err()?;
    Some(format!("{error}; large files may have the bytes of others, and changes may be missing"))
}

/// Reads the description. If it is gone, returns the one that `format` would have written.
fn describe(directory: &Directory) -> Outcome<Description> {
    Description::read(directory).or_else(|failure| {
        if !IMAGES.iter().any(|name| directory.has(name)) {
            return Err(failure);
        }
        let bulk = directory.has(BULK).then(|| BulkPlace::File(BULK.into()));
        Ok(Description::guess(bulk))
    })
}

fn store_images(directory: &Directory) -> [media::ReadImage; 2] {
    IMAGES.map(|name| media::ReadImage::open(directory, name))
}

/// Prepares the target directory, which must be new or empty and not lie within the store.
fn prepare(target: &Path, store: &Path) -> Outcome<PathBuf> {
    let absolute = std::path::absolute(target).during(target.display())?;
    if directory::is_within(&absolute, store) {
        return Err(Failure::new(target.display(), "is within the store").remedy("name a directory elsewhere"));
    }
    match std::fs::create_dir(&absolute) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        outcome => outcome.during(target.display())?,
    }
    let canonical = absolute.canonicalize().during(target.display())?;
    directory::refuse_filled(&canonical, target, &[])?;
    Ok(canonical)
}

/// Returns the writes that a killed process held back from a bulk device.
fn held(directory: &Directory, description: &Description, number: u32) -> Option<StoreCache> {
    let period = user::period(directory, description.bulk_path(directory)).ok()?;
    let (_, uuid) = description.cache_owners().into_iter().find(|(known, _)| *known == number)?;
    let owner = cache::owner(directory, &uuid, u64::MAX).ok()?;
    match StoreCache::left(directory, number, &owner, &period, true) {
        Left::Cache(left) => Some(left),
        Left::Nothing | Left::Other | Left::Lost => None,
    }
}

pub(crate) type Bulk = Box<dyn BulkData>;

/// Joins the bulk devices that can be opened. Also returns why others cannot.
pub(crate) fn bulk_data(directory: &Directory, description: &Description) -> (Option<Bulk>, Vec<String>) {
    let (mut parts, mut faults) = (Vec::new(), Vec::new());
    for NumberedPlace { number, place, .. } in description.devices() {
        let number = *number;
        match part(directory, description, place) {
            Ok(below) => parts.push((number, with_held(below.data, directory, description, number))),
            Err(why) if number == 0 => faults.push(format!("bulk storage: {why}")),
            Err(why) => faults.push(format!("bulk device {number}: {why}")),
        }
    }
    let bulk: Option<Bulk> = if parts.is_empty() { None } else { Some(Box::new(media::Joined(parts))) };
    (bulk, faults)
}

/// Returns the bulk device that a mount would use for this entry of the list.
pub(crate) fn bulk_device(directory: &Directory, description: &Description, entry: &BulkDeviceEntry) -> FoundDevice {
    let is_it = |place: &&NumberedPlace| match entry.number {
        0 => place.number == 0,
        _ => place.number != 0 && entry.has_mark() && parse_uuid(&place.uuid) == Some(entry.uuid),
    };
    let named = description.devices().find(is_it);
    let Some(&NumberedPlace { number, ref place, .. }) = named else {
        let why = "the store's description does not name it".into();
        return FoundDevice { name: String::new(), opened: Err(NotOpened::Nowhere(why)) };
    };
    let opened = match place.name(directory) {
        Err(why) => Err(NotOpened::Nowhere(why)),
        Ok(name) if name.kind().opening_writes => {
            Err(NotOpened::Away("opening it would write to it; a mount compares it".into()))
        }
        Ok(_) => part(directory, description, place).map_err(NotOpened::Away),
    };
    let with_held =
        |device: OpenedDevice| OpenedDevice { data: with_held(device.data, directory, description, number), ..device };
    FoundDevice { name: place.shown(directory.path()), opened: opened.map(with_held) }
}

/// Adds to a device the writes that a killed process held back from it.
fn with_held(below: Bulk, directory: &Directory, description: &Description, number: u32) -> Bulk {
    match held(directory, description, number) {
        Some(cache) => Box::new(media::HeldBulk { below, cache }),
        None => below,
    }
}

fn part(directory: &Directory, description: &Description, place: &BulkPlace) -> Result<OpenedDevice, String> {
    match place {
        BulkPlace::File(_) => {
            let path = place.path(directory).unwrap_or_default();
            let bulk = media::ReadBulk::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            description.refuse_foreign(path.display(), bulk.owner()).map_err(|failure| failure.to_string())?;
            Ok(OpenedDevice { bytes: bulk.bytes(), block_bytes: media::FILE_BLOCK_BYTES, data: Box::new(bulk) })
        }
        BulkPlace::Device(text) => {
            let device: shoal_devices::DeviceName = text.parse()?;
            if device.kind().opening_writes {
                let name = device.without_secrets();
                return Err(format!(
                    "opening {name} would write to it; export it with `shoal serve --read-only`, and name that as `bulk` in a copy of {DESCRIPTION}"
                ));
            }
            let device =
                device.open_as(description.foreign_owner()).map_err(|failure| failure.to_string())?.block_device();
            let geometry = device.geometry();
            let (bytes, block_bytes) = (geometry.bytes, u64::from(geometry.block_bytes));
            Ok(OpenedDevice { bytes, block_bytes, data: Box::new(media::BlockBulk(device)) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_opened_is_named_without_its_secret() {
        for (text, shown) in [
            ("netram:nbd://donor/memory:hush,other:7000", "netram:nbd://donor:10809/memory:***,other:7000?"),
            ("vlog:disk", "vlog:disk would"),
        ] {
            let why = part(
                &Directory::open(Path::new("/")).unwrap(),
                &Description::guess(None),
                &BulkPlace::Device(text.into()),
            )
            .map(drop)
            .unwrap_err();
            assert!(why.starts_with(&format!("opening {shown}")) && !why.contains("hush"), "{why}");
        }
    }
}
