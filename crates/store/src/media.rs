//! Putting a store's media together: memory, log, images and bulk storage.
//!
//! Rules: what is missing is named with what brings it back; nothing is made when a store is opened. A file of the bulk storage has
//! one user at a time, also where a copy of the store's directory names it.

use std::path::Path;
use std::sync::Arc;

use shoal_devices::{Device, During, Failure, Outcome};
use shoal_format::PAGE;
use shoal_format::superblock::Superblock;
use shoal_fs::Parts;
use shoal_host::{PrivateMap, SEGMENT_BYTES, SegmentLog, SharedKind, SharedMap, SystemClock};
use shoal_media::{ImageFile, LogDevice, PersistentMemory};

use crate::battery;
use crate::description::{BulkPlace, Description};
use crate::images::{self, shared};
use crate::memory::MemoryChoice;
use crate::names::{DESCRIPTION, LOG};
use crate::store::Store;
use crate::user::period;

/// A store's media, opened.
pub(crate) struct Media {
    pub parts: Parts,
    /// Bulk storage, if there is any.
    pub bulk: Option<Arc<dyn Device>>,
    /// `dax` memory whose file system refuses MAP_SYNC.
    pub survives_power_loss: bool,
}

impl Store {
    pub(crate) fn open_media(&self, read_only: bool) -> Outcome<Media> {
        let mut survives_power_loss = true;
        let (memory, log, images): (Arc<dyn PersistentMemory>, Option<Arc<dyn LogDevice>>, _) =
            match &self.description.memory {
                MemoryChoice::Logged => {
                    let images = images::open(&self.directory)?;
                    let (index, superblock, anchor) =
                        shoal_region::newest_image(&shared(&images)).map_err(|error| self.damaged(error))?;
                    let image = Some((images[index].file(), anchor.used_bytes.get().next_multiple_of(PAGE)));
                    let memory =
                        PrivateMap::new(superblock.region_bytes, image).map_err(|error| self.damaged(error))?;
                    let log = SegmentLog::open(&self.log_path(), SEGMENT_BYTES).map_err(|error| self.damaged(error))?;
                    (Arc::new(memory), Some(Arc::new(log)), Some(shared(&images)))
                }
                MemoryChoice::Battery(path) => {
                    let images = images::open(&self.directory)?;
                    let wish = battery::Wish {
                        read_only,
                        restore: self.restores(),
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

    pub(crate) fn open_bulk(&self) -> Outcome<Option<Arc<dyn Device>>> {
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

/// Makes the media of a new store in an empty directory.
pub(crate) fn create_media(
    directory: &Path,
    description: &Description,
    superblock: &Superblock,
    bulk: Option<Arc<dyn Device>>,
) -> Outcome<Media> {
    let region_bytes = superblock.region_bytes;
    let mut survives_power_loss = true;
    let (memory, log, images): (Arc<dyn PersistentMemory>, Option<Arc<dyn LogDevice>>, _) = match &description.memory {
        MemoryChoice::Logged => {
            let memory = PrivateMap::new(region_bytes, None).during("memory")?;
            let log = SegmentLog::create(&directory.join(LOG), SEGMENT_BYTES).during("log")?;
            (Arc::new(memory), Some(Arc::new(log)), Some(shared(&images::create(directory)?)))
        }
        MemoryChoice::Battery(path) => {
            let memory = SharedMap::create(path, region_bytes, SharedKind::Battery).during("memory")?;
            (Arc::new(memory), None, Some(shared(&images::create(directory)?)))
        }
        MemoryChoice::Dax(path) => {
            let memory = SharedMap::create(path, region_bytes, SharedKind::Dax).during("memory")?;
            survives_power_loss = memory.synchronous();
            (Arc::new(memory), None, None)
        }
    };
    let device = bulk.as_ref().map(|bulk| bulk.block_device());
    let places = [Some(directory.join(LOG)), description.bulk_path(directory)];
    let region = region_parts(memory, log, images, period(&places)?)?;
    let parts = Parts { region, bulk: device, clock: Arc::new(SystemClock::new()) };
    Ok(Media { parts, bulk, survives_power_loss })
}
