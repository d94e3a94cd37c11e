//! Putting a store's media together: the region's, and bulk storage.
//!
//! Rules: opening makes nothing; the error for a missing part says how to bring it back. A file of the bulk storage has
//! one user at a time, even when a copy of the store's directory names it, too.

use std::path::Path;
use std::sync::Arc;

use shoal_devices::{Device, During, Failure, Outcome, parse_uuid};
use shoal_format::superblock::Superblock;
use shoal_fs::{GivenDevice, Parts};
use shoal_host::SystemClock;
use shoal_media::BlockDevice;
use shoal_writeback::{Policy, Rule, WriteBack};
use tracing::warn;

use crate::description::{BulkPlace, Description, NumberedPlace};
use crate::host_room::HostFiles;
use crate::memory::RegionMedia;
use crate::names::{DESCRIPTION, LOG};
use crate::store::Store;
use crate::user::period;

/// A store's media, opened.
pub(crate) struct Media {
    pub parts: Parts,
    /// The first bulk device, if there is one.
    pub bulk: Option<Arc<dyn Device>>,
    /// The further ones that could be opened, by number.
    pub more: Vec<(u32, Arc<dyn Device>)>,
    /// All of the further ones, as the engine takes them.
    pub given: Vec<GivenDevice>,
    /// False for `dax` memory whose file system refuses MAP_SYNC.
    pub survives_power_loss: bool,
}

impl Store {
    /// With `degraded`, bulk devices of a store that lists several may be missing.
    pub(crate) fn open_media(&self, read_only: bool, degraded: bool, host: &HostFiles) -> Outcome<Media> {
        let region = self.description.memory.open_media(&self.resting(), read_only)?;
        let period = self.period()?;
        let degraded = degraded && self.description.has_bulk_list();
        let first = match self.open_bulk() {
            Err(failure) if degraded => {
                warn!("{failure}");
                None
            }
            opened => opened.map_err(|failure| self.hint(failure))?,
        };
        let (mut more, mut given) = (Vec::new(), Vec::new());
        for numbered in &self.description.more_bulk {
            let opened = match self.open_numbered(numbered) {
                Ok(device) => {
                    more.push((numbered.number, device.clone()));
                    Ok(through(&*device))
                }
                Err(failure) if degraded => Err(failure.to_string()),
                Err(failure) => return Err(self.hint(failure)),
            };
            given.push(GivenDevice {
                uuid: parse_uuid(&numbered.uuid).unwrap_or_default(),
                name: numbered.place.shown(&self.directory),
                on_host: numbered.place.path(&self.directory).is_some_and(|path| host.add(&self.directory, &path)),
                device: opened,
            });
        }
        Ok(Media { more, given, ..Media::assemble(region, first, period)? })
    }

    /// Says how to do without a device of several.
    fn hint(&self, failure: Failure) -> Failure {
        if !self.description.has_bulk_list() {
            return failure;
        }
        Failure::told(format!("{failure}; or mount with `-o degraded` to do without its files"))
    }

    fn open_numbered(&self, numbered: &NumberedPlace) -> Outcome<Arc<dyn Device>> {
        open_place(&self.directory, &numbered.place)
            .map_err(|failure| failure.within(&format!("bulk device {}", numbered.number)))
    }

    pub(crate) fn open_bulk(&self) -> Outcome<Option<Arc<dyn Device>>> {
        let Some(place) = self.description.bulk.as_ref().filter(|_| !self.description.first_removed) else {
            return Ok(None);
        };
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
        let device = bulk.as_ref().map(|bulk| through(&**bulk));
        let parts = Parts { region, bulk: device, clock };
        Ok(Media { parts, bulk, more: Vec::new(), given: Vec::new(), survives_power_loss })
    }
}

/// The device as the engine uses it. Write-through hands every write to it at once, so nothing is held back and no tick is
/// needed.
pub(crate) fn through(device: &dyn Device) -> Arc<dyn BlockDevice> {
    let rule = Rule::of(Policy::WriteThrough);
    Arc::new(WriteBack::new(device.block_device(), Arc::new(SystemClock::new()), rule, 0))
}

/// Opens the device at a place of the store in `directory`.
pub(crate) fn open_place(directory: &Path, place: &BulkPlace) -> Outcome<Arc<dyn Device>> {
    let file = format!("{}/{DESCRIPTION}", directory.display());
    let name = place.name(directory).map_err(|error| Failure::new(&file, error))?;
    name.open().map(Arc::from)
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
