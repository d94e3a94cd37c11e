//! `logged` memory: a region in DRAM, its log and its images in the store's directory.
//!
//! The region is built from the newest image; the engine replays the log over it.

use std::path::Path;
use std::sync::Arc;

use shoal_devices::{During, Outcome};
use shoal_format::PAGE;
use shoal_host::{Access, Directory, PrivateMap, SEGMENT_BYTES, SegmentLog};

use super::{Loss, Means, RegionMedia, Resting, RestingMedia, damaged};
use crate::images::{self, shared};
use crate::names::LOG;

pub(super) static MEANS: Means =
    Means { make, open, rest, loss: |_| Loss { power_loss: "at most the last second", after_fsync: "nothing" } };

fn make(directory: &Directory, _: &Path, bytes: u64) -> Outcome<RegionMedia> {
    fits_files(directory, bytes)?;
    let memory = PrivateMap::new(bytes, None).during("memory")?;
    let log = Arc::new(SegmentLog::create_in(directory, LOG, SEGMENT_BYTES).during("log")?);
    let images = Some(shared(&images::create(directory)?));
    Ok(RegionMedia { memory: Arc::new(memory), log: Some(log), images, survives_power_loss: true })
}

/// Refuses a region that a limit on file lengths does not allow. An image is as long as its region,
/// and a log segment has its own length. A checkpoint or record that the limit stopped in the
/// middle would end the store's service.
fn fits_files(directory: &Directory, region_bytes: u64) -> Outcome<()> {
    shoal_host::refuse_beyond_limit(region_bytes.max(SEGMENT_BYTES)).during(directory.display())
}

fn open(store: &Resting<'_>, _: &Path, access: Access) -> Outcome<RegionMedia> {
    let name = store.directory.path();
    let images = images::open(store.directory, access)?;
    let (index, superblock, anchor) =
        shoal_region::newest_image(&shared(&images)).map_err(|error| damaged(name, error))?;
    if access == Access::Write {
        fits_files(store.directory, superblock.region_bytes)?;
    }
    let image = Some((images[index].file(), anchor.used_bytes.get().next_multiple_of(PAGE)));
    let memory = PrivateMap::new(superblock.region_bytes, image).map_err(|error| damaged(name, error))?;
    let memory = memory.with_images([images[0].file(), images[1].file()]).map_err(|error| damaged(name, error))?;
    let log = SegmentLog::open_in(store.directory, LOG, SEGMENT_BYTES, access).map_err(|error| damaged(name, error))?;
    Ok(RegionMedia {
        memory: Arc::new(memory),
        log: Some(Arc::new(log)),
        images: Some(shared(&images)),
        survives_power_loss: true,
    })
}

fn rest(store: &Resting<'_>, _: &Path) -> Outcome<RestingMedia> {
    let images = Some(shared(&images::open(store.directory, Access::Read)?));
    let log = Arc::new(SegmentLog::open_in(store.directory, LOG, SEGMENT_BYTES, Access::Read).during("log")?);
    Ok(RestingMedia { memory: None, log: Some(log), images, refused: None, restored: false })
}
