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
use shoal_writeback::{Policy, Rule};
use tracing::warn;

use crate::cache::{self, CacheOptions, InFront, StoreCache};
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
    /// The write-back cache in front of it, if there is one. Further devices have none.
    pub cache: Option<InFront>,
    /// The period without the cache.
    pub period: [u8; 16],
    /// The identity of a cache that is left though the first device is not there.
    pub left: Option<[u8; 16]>,
    /// The further ones that could be opened, by number.
    pub more: Vec<(u32, Arc<dyn Device>)>,
    /// All of the further ones, as the engine takes them.
    pub given: Vec<GivenDevice>,
    /// False for `dax` memory whose file system refuses MAP_SYNC.
    pub survives_power_loss: bool,
}

impl Store {
    /// With `degraded`, bulk devices of a store that lists several may be missing.
    pub(crate) fn open_media(
        &self,
        read_only: bool,
        degraded: bool,
        host: &HostFiles,
        wanted: Option<&CacheOptions>,
    ) -> Outcome<Media> {
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
        let (cache, left) = match &first {
            Some(bulk) => (self.cache(&*bulk.block_device(), &period, read_only, wanted)?, None),
            None => (None, cache::identity(&self.directory, &self.description.uuid, &period)),
        };
        let (mut more, mut given) = (Vec::new(), Vec::new());
        for numbered in &self.description.more_bulk {
            let opened = match self.open_numbered(numbered) {
                Ok(device) => {
                    more.push((numbered.number, device.clone()));
                    Ok(device.block_device())
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
        Ok(Media { left, more, given, ..Media::assemble(region, first, period, cache)? })
    }

    /// The cache that is left, or a new one if one is wanted, and its rule.
    fn cache(
        &self,
        bulk: &dyn BlockDevice,
        period: &[u8; 16],
        read_only: bool,
        wanted: Option<&CacheOptions>,
    ) -> Outcome<Option<(StoreCache, Rule)>> {
        let owner = cache::owner(&self.description.uuid, bulk)?;
        let rule = wanted
            .filter(|wanted| wanted.bytes != Some(0))
            .map_or(Rule::of(Policy::WriteThrough), |wanted| wanted.rule);
        if let Some(left) = StoreCache::left(&self.directory, &owner, period, read_only) {
            return Ok(Some((left, rule)));
        }
        let Some(wanted) = wanted.filter(|wanted| !read_only && wanted.bytes != Some(0)) else { return Ok(None) };
        if u64::from(bulk.geometry().block_bytes) > shoal_format::cache::CACHE_SLOT {
            warn!("bulk storage has blocks of more than 4 KiB; large files are written without a write-back cache");
            return Ok(None);
        }
        cache::remove(&self.directory, period);
        match StoreCache::make(&self.directory, &owner, period, wanted) {
            Ok(made) => Ok(Some((made, rule))),
            // A folder that was named must do; of the usual one nothing was promised.
            Err(failure) if wanted.directory.is_some() => Err(failure.within("write-back cache")),
            Err(failure) => {
                warn!("no write-back cache, large files are written at once: {failure}");
                Ok(None)
            }
        }
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
    fn assemble(
        region: RegionMedia,
        bulk: Option<Arc<dyn Device>>,
        period: [u8; 16],
        cache: Option<(StoreCache, Rule)>,
    ) -> Outcome<Media> {
        let RegionMedia { memory, log, images, survives_power_loss } = region;
        let nonce = shoal_host::random_bytes().during("random numbers")?;
        let boot_id = cache.as_ref().map_or(period, |(cache, _)| cache::period_with(period, &cache.identity));
        let region = shoal_region::Parts { memory, log, images, boot_id, nonce };
        let clock = Arc::new(SystemClock::new());
        let cache = match (&bulk, cache) {
            (Some(bulk), Some((cache, rule))) => Some(cache.in_front(bulk, clock.clone(), rule)),
            _ => None,
        };
        // Without a cache every write goes to the device at once, and the bulk tier's cache is the host's.
        let device = match &cache {
            Some(cache) => Some(Arc::new(cache.filter.clone()) as Arc<dyn BlockDevice>),
            None => bulk.as_ref().map(|bulk| bulk.block_device()),
        };
        let parts = Parts { region, bulk: device, clock };
        let (left, more, given) = (None, Vec::new(), Vec::new());
        Ok(Media { parts, bulk, cache, period, left, more, given, survives_power_loss })
    }
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
    Media::assemble(region, bulk, period(&places)?, None)
}
