//! `logged` memory: a region in DRAM, its log and its images in the store's directory.
//!
//! The region is built from the newest image; the engine replays the log over it.

use std::path::Path;
use std::sync::Arc;

use shoal_devices::{During, Outcome};
use shoal_format::PAGE;
use shoal_host::{PrivateMap, SEGMENT_BYTES, SegmentLog};

use super::{Loss, Means, RegionMedia, Resting, RestingMedia, damaged};
use crate::images::{self, shared};
use crate::names::LOG;

pub(super) static MEANS: Means =
    Means { make, open, rest, loss: |_| Loss { power_loss: "at most the last second", after_fsync: "nothing" } };

fn make(directory: &Path, _: &Path, bytes: u64) -> Outcome<RegionMedia> {
    fits_files(directory, bytes)?;
    let memory = Arc::new(PrivateMap::new(bytes, None).during("memory")?);
    let log = Arc::new(SegmentLog::create(&directory.join(LOG), SEGMENT_BYTES).during("log")?);
    let images = Some(shared(&images::create(directory)?));
    Ok(RegionMedia { memory, log: Some(log), images, survives_power_loss: true })
}

/// An image is as long as its region, and a segment of the log has its length: a checkpoint or a record that a limit stops in its middle
/// would end the store's service.
fn fits_files(directory: &Path, region_bytes: u64) -> Outcome<()> {
    shoal_host::refuse_beyond_limit(region_bytes.max(SEGMENT_BYTES)).during(directory.display())
}

fn open(store: &Resting<'_>, _: &Path, read_only: bool) -> Outcome<RegionMedia> {
    let images = images::open(store.directory)?;
    let (index, superblock, anchor) =
        shoal_region::newest_image(&shared(&images)).map_err(|error| damaged(store.directory, error))?;
    if !read_only {
        fits_files(store.directory, superblock.region_bytes)?;
    }
    let image = Some((images[index].file(), anchor.used_bytes.get().next_multiple_of(PAGE)));
    let memory = PrivateMap::new(superblock.region_bytes, image).map_err(|error| damaged(store.directory, error))?;
    let log =
        SegmentLog::open(&store.directory.join(LOG), SEGMENT_BYTES).map_err(|error| damaged(store.directory, error))?;
    Ok(RegionMedia {
        memory: Arc::new(memory),
        log: Some(Arc::new(log)),
        images: Some(shared(&images)),
        survives_power_loss: true,
    })
}

fn rest(store: &Resting<'_>, _: &Path) -> Outcome<RestingMedia> {
    let images = Some(shared(&images::open(store.directory)?));
    let log = Arc::new(SegmentLog::open(&store.directory.join(LOG), SEGMENT_BYTES).during("log")?);
    Ok(RestingMedia { memory: None, log: Some(log), images, refused: None, restored: false })
}
