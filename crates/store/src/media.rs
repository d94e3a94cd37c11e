//! Putting a store's media together: the region's, and bulk storage.
//!
//! Rules: opening creates nothing; the error for a missing part says how to bring it back. A file
//! of the bulk storage has one user at a time, even if a copy of the store's directory also names
//! it.

use std::sync::Arc;

use shoal_devices::{Device, During, Failure, Outcome, parse_uuid};
use shoal_format::superblock::Superblock;
use shoal_fs::{GivenDevice, Parts};
use shoal_host::{Directory, SystemClock};
use shoal_media::BlockDevice;
use shoal_writeback::{Owner, Policy, Rule};
use tracing::warn;

use crate::cache::{self, CacheOptions, InFront, Left, StoreCache};
use crate::description::{BulkPlace, Description, NumberedPlace};
use crate::host_room::HostFiles;
use crate::memory::RegionMedia;
use crate::names::DESCRIPTION;
use crate::store::Store;
use crate::user::period;

/// A store's media, opened.
pub(crate) struct Media {
    pub parts: Parts,
    /// The bulk devices that could be opened, by number.
    pub devices: Vec<(u32, Arc<dyn Device>)>,
    /// The write-back caches in front of the devices that are present.
    pub caches: Vec<InFront>,
    /// The period without caches.
    pub period: [u8; 16],
    /// The identities of caches that an earlier process left.
    pub left: Vec<[u8; 16]>,
    /// The mixed identities of further caches that the earlier process emptied and removed.
    pub emptied: Option<[u8; 16]>,
    /// All devices as the engine uses them, behind their write-back caches.
    pub engine: Vec<(u32, Arc<dyn BlockDevice>)>,
    /// All further devices in the form that the engine takes.
    pub given: Vec<GivenDevice>,
    /// False for `dax` memory whose file system refuses MAP_SYNC.
    pub survives_power_loss: bool,
}

impl Store {
    /// Opens the store's media. With `degraded`, bulk devices may be missing if the store lists
    /// several.
    pub(crate) fn open_media(
        &self,
        read_only: bool,
        degraded: bool,
        host: &HostFiles,
        wanted: Option<&CacheOptions>,
    ) -> Outcome<Media> {
        let region = self.description.memory.open_media(&self.resting(), read_only)?;
        let degraded = degraded && self.description.has_bulk_list();
        let (mut devices, mut lost) = (Vec::new(), Vec::new());
        for named in self.description.devices() {
            match self.open_device(named) {
                Ok(device) => devices.push((named.number, device)),
                Err(failure) if degraded => lost.push((named.number, failure.to_string())),
                Err(failure) => return Err(self.hint(failure)),
            }
        }
        lost.iter().filter(|(number, _)| *number == 0).for_each(|(_, why)| warn!("{why}"));
        let mut media = Media::assemble(region, devices, self.period()?)?;
        self.put_caches_in_front(&mut media, read_only, wanted)?;
        media.given = self.given(&media, &lost, host);
        Ok(media)
    }

    /// Returns the further devices in the form that the engine takes.
    fn given(&self, media: &Media, lost: &[(u32, String)], host: &HostFiles) -> Vec<GivenDevice> {
        let given = |numbered: &NumberedPlace| {
            let number = numbered.number;
            let found = media.engine.iter().find(|(known, _)| *known == number).map(|(_, device)| device.clone());
            let why = || lost.iter().find(|(known, _)| *known == number).map(|(_, why)| why.clone());
            GivenDevice {
                uuid: parse_uuid(&numbered.uuid).unwrap_or_default(),
                name: numbered.place.shown(self.directory.path()),
                on_host: numbered.place.path(&self.directory).is_some_and(|path| host.add(&self.directory, &path)),
                place: numbered.place.on_host(&self.directory),
                device: found.ok_or_else(|| why().unwrap_or_default()),
            }
        };
        self.description.devices().filter(|device| device.number != 0).map(given).collect()
    }

    /// Opens the caches that were left for the present devices, or makes new ones if they are
    /// wanted, and adds their identities to the period.
    fn put_caches_in_front(&self, media: &mut Media, read_only: bool, wanted: Option<&CacheOptions>) -> Outcome<()> {
        let mut identities = cache::identities(&self.directory, &media.period);
        let devices = media.devices.clone();
        let mut made = Vec::new();
        for (number, device) in &devices {
            let opened = self.cache(*number, devices.len(), &*device.block_device(), &media.period, read_only, wanted);
            // On a refusal, remove the caches made before.
            let (cache, is_lost) =
                opened.inspect_err(|_| made.iter().for_each(|it: &InFront| it.withdraw(&self.directory)))?;
            if is_lost {
                identities.retain(|(known, _)| known != number);
            }
            let engine = match cache {
                // Without a cache every write goes to the device at once, and only the host caches the bulk tier.
                None => device.block_device(),
                Some((cache, rule)) => {
                    let front = cache.in_front(device, media.parts.clock.clone(), rule);
                    let filter = Arc::new(front.filter.clone());
                    made.push(front);
                    filter
                }
            };
            media.engine.push((*number, engine));
        }
        media.parts.bulk = media.engine.iter().find(|(number, _)| *number == 0).map(|(_, device)| device.clone());
        media.left = identities.iter().map(|(_, identity)| *identity).collect();
        media.emptied = cache::emptied(&self.directory, &media.period);
        // Caches of missing devices still count, since the devices may come back.
        let new = made.iter().filter(|front| !media.left.contains(&front.identity)).map(|front| &front.identity);
        media.parts.region.boot_id = cache::period_with(media.period, media.left.iter().chain(new));
        media.caches = made;
        Ok(())
    }

    /// Returns the cache that was left for a device, or a new one if one is wanted, with its rule.
    /// Also returns whether a cache was lost.
    fn cache(
        &self,
        number: u32,
        devices: usize,
        bulk: &dyn BlockDevice,
        period: &[u8; 16],
        read_only: bool,
        wanted: Option<&CacheOptions>,
    ) -> Outcome<(Option<(StoreCache, Rule)>, bool)> {
        let rule = wanted
            .filter(|wanted| wanted.bytes != Some(0))
            .map_or(Rule::of(Policy::WriteThrough), |wanted| wanted.rule);
        let owner = self.cache_owner(number, bulk)?;
        let is_lost = match StoreCache::left(&self.directory, number, &owner, period, read_only) {
            Left::Cache(left) => return Ok((Some((left, rule)), false)),
            Left::Lost => true,
            // The log may name the cache that is there, so it stays until the store has been
            // closed. If a new cache replaced it, and this process ended before the log named the
            // new one, the old one would count as lost.
            Left::Other => return Ok((None, false)),
            Left::Nothing => false,
        };
        let Some(wanted) = wanted.filter(|wanted| !read_only && wanted.bytes != Some(0)) else {
            return Ok((None, is_lost));
        };
        if u64::from(bulk.geometry().block_bytes) > shoal_format::cache::CACHE_SLOT {
            warn!(
                "bulk device {number} has blocks of more than 4 KiB; its large files are written without a write-back cache"
            );
            return Ok((None, is_lost));
        }
        cache::remove_one(&self.directory, number, period);
        match StoreCache::make(&self.directory, number, devices, &owner, period, wanted) {
            Ok(made) => Ok((Some((made, rule)), is_lost)),
            // A folder that the user named must work; the usual folder was not promised.
            Err(failure) if wanted.directory.is_some() => Err(failure.within("write-back cache")),
            Err(failure) => {
                warn!("no write-back cache, large files are written at once: {failure}");
                Ok((None, is_lost))
            }
        }
    }

    fn cache_owner(&self, number: u32, bulk: &dyn BlockDevice) -> Outcome<Owner> {
        let owners = self.description.cache_owners();
        let uuid = owners.into_iter().find(|(known, _)| *known == number).map(|(_, uuid)| uuid);
        cache::owner(&self.directory, &uuid.unwrap_or_default(), bulk.geometry().bytes)
    }

    /// Adds to the failure how to mount without one of several devices.
    fn hint(&self, failure: Failure) -> Failure {
        if !self.description.has_bulk_list() {
            return failure;
        }
        Failure::told(format!("{failure}; or mount with `-o degraded` to do without its files"))
    }

    /// Opens the first bulk device, if the store has it.
    pub(crate) fn open_bulk(&self) -> Outcome<Option<Arc<dyn Device>>> {
        self.description.devices().find(|device| device.number == 0).map(|first| self.open_device(first)).transpose()
    }

    fn open_device(&self, named: &NumberedPlace) -> Outcome<Arc<dyn Device>> {
        let opened = open_place(&self.directory, &self.description, &named.place);
        if named.number != 0 {
            return opened.map_err(|failure| failure.within(&format!("bulk device {}", named.number)));
        }
        let file = format!("{}/{DESCRIPTION}", self.directory.display());
        let remedy = match &named.place {
            BulkPlace::File(_) => format!("bring it back, or correct `bulk` in {file}"),
            BulkPlace::Device(_) => format!("start its server again, or correct `bulk` in {file}"),
        };
        opened.map_err(|failure| {
            let failure = failure.within("bulk storage");
            if failure.is_in_use() { failure } else { failure.remedy(remedy) }
        })
    }
}

impl Media {
    /// Puts the media together, without caches.
    fn assemble(region: RegionMedia, devices: Vec<(u32, Arc<dyn Device>)>, period: [u8; 16]) -> Outcome<Media> {
        let RegionMedia { memory, log, images, survives_power_loss } = region;
        let nonce = shoal_host::random_bytes().during("random numbers")?;
        let region = shoal_region::Parts { memory, log, images, boot_id: period, nonce };
        let first = devices.iter().find(|(number, _)| *number == 0).map(|(_, device)| device.block_device());
        let parts = Parts { region, bulk: first, clock: Arc::new(SystemClock::new()) };
        let (caches, left, engine, given) = Default::default();
        Ok(Media { parts, devices, caches, period, left, emptied: None, engine, given, survives_power_loss })
    }
}

/// Opens the device at a place that the store's description names.
pub(crate) fn open_place(
    directory: &Directory,
    description: &Description,
    place: &BulkPlace,
) -> Outcome<Arc<dyn Device>> {
    let file = format!("{}/{DESCRIPTION}", directory.display());
    let name = place.name(directory).map_err(|error| Failure::new(&file, error))?;
    let device = name.open_as(description.foreign_owner())?;
    Ok(Arc::from(device))
}

/// Creates the media of a new store in an empty directory.
pub(crate) fn create_media(
    directory: &Directory,
    description: &Description,
    superblock: &Superblock,
    bulk: Option<Arc<dyn Device>>,
) -> Outcome<Media> {
    let region = description.memory.make_media(directory, superblock.region_bytes)?;
    let devices = bulk.into_iter().map(|bulk| (0, bulk)).collect();
    Media::assemble(region, devices, period(directory, description.bulk_path(directory))?)
}
