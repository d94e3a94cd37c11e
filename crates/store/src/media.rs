//! Putting a store's media together: the region's, and bulk storage.
//!
//! Rules: opening makes nothing; the error for a missing part says how to bring it back. A file of the bulk storage has
//! one user at a time, even when a copy of the store's directory names it, too.

use std::path::Path;
use std::sync::Arc;

use shoal_devices::{Device, During, Failure, Outcome};
use shoal_format::superblock::Superblock;
use shoal_fs::Parts;
use shoal_host::SystemClock;
use shoal_media::BlockDevice;
use shoal_writeback::{Policy, Rule, WriteBack};

use crate::description::{BulkPlace, Description};
use crate::memory::RegionMedia;
use crate::names::{DESCRIPTION, LOG};
use crate::store::Store;
use crate::user::period;

/// A store's media, opened.
pub(crate) struct Media {
    pub parts: Parts,
    /// Bulk storage, if there is any.
    pub bulk: Option<Arc<dyn Device>>,
    /// False for `dax` memory whose file system refuses MAP_SYNC.
    pub survives_power_loss: bool,
}

impl Store {
    pub(crate) fn open_media(&self, read_only: bool) -> Outcome<Media> {
        let region = self.description.memory.open_media(&self.resting(), read_only)?;
        let period = self.period()?;
        Media::assemble(region, self.open_bulk()?, period)
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

impl Media {
    fn assemble(region: RegionMedia, bulk: Option<Arc<dyn Device>>, period: [u8; 16]) -> Outcome<Media> {
        let RegionMedia { memory, log, images, survives_power_loss } = region;
        let nonce = shoal_host::random_bytes().during("random numbers")?;
        let region = shoal_region::Parts { memory, log, images, boot_id: period, nonce };
        let clock = Arc::new(SystemClock::new());
        // Write-through hands every write to the device at once, so nothing is held back and no tick is needed.
        let rule = Rule::of(Policy::WriteThrough);
        let device = bulk.as_ref().map(|bulk| {
            let filter = WriteBack::new(bulk.block_device(), clock.clone(), rule, 0);
            Arc::new(filter) as Arc<dyn BlockDevice>
        });
        let parts = Parts { region, bulk: device, clock };
        Ok(Media { parts, bulk, survives_power_loss })
    }
}

/// Makes the media of a new store in an empty directory.
pub(crate) fn create_media(
    directory: &Path,
    description: &Description,
    superblock: &Superblock,
    bulk: Option<Arc<dyn Device>>,
) -> Outcome<Media> {
    let region = description.memory.make_media(directory, superblock.region_bytes)?;
    let places = [Some(directory.join(LOG)), description.bulk_path(directory)];
    Media::assemble(region, bulk, period(&places)?)
}
