//! The region of a `battery` store: in place, or restored from the last saved image.
//!
//! The memory may be lost (the battery did not hold), or merely absent (its file system is not
//! mounted). The two cannot be told apart, so only a complete image is restored without being asked
//! for; any other choice is the operator's (`--restore`). A region that an image replaces is kept
//! under another name. `shoal_region::compare` decides whether the region or the image is the
//! store. Opening without writing (`-o ro`, `df`) neither creates nor changes a region.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use shoal_devices::{During, Failure, Outcome, uuid_text};
use shoal_format::PAGE;
use shoal_format::superblock::{ANCHOR_AT, ANCHOR_CLEAN, AnchorRecord, SUPERBLOCK_AT, Superblock};
use shoal_host::{Access, Directory, HostImage, PrivateMap, SharedKind, SharedMap};
use shoal_media::{ImageFile, PersistentMemory};
use shoal_region::DevicesBeside;

use super::{LATER, Loss, Means, OwnRegion, RegionMedia, Resting, RestingMedia, Restore, aside, beside, is_later};
use crate::calendar;
use crate::images::{self, shared};

pub(super) static MEANS: Means = Means {
    make,
    open: |store, path, access| {
        let images = images::open(store.directory, access)?;
        let memory = open(path, &images, store, access)?;
        Ok(RegionMedia { memory, log: None, images: Some(shared(&images)), survives_power_loss: true })
    },
    rest,
    loss: |_| Loss {
        power_loss: "while the battery holds, at most the last second of large files, otherwise everything since the last saved image",
        after_fsync: "nothing while the battery holds",
    },
};

fn make(directory: &Directory, path: &Path, bytes: u64) -> Outcome<RegionMedia> {
    let memory = Arc::new(SharedMap::create(path, bytes, SharedKind::Battery).during("memory")?);
    Ok(RegionMedia { memory, log: None, images: Some(shared(&images::create(directory)?)), survives_power_loss: true })
}

/// Opens the media for a check. A region that a mount would refuse is not the store, even if it is
/// sound.
fn rest(store: &Resting<'_>, path: &Path) -> Outcome<RestingMedia> {
    let store = &Resting { restore: Restore::No, ..*store };
    let images = images::open(store.directory, Access::Read)?;
    let images_at_rest = Some(shared(&images));
    let mut found = RestingMedia { memory: None, log: None, images: images_at_rest, refused: None, restored: false };
    if path.exists() {
        found.memory = Some(open(path, &images, store, Access::Read)?);
    } else {
        found.refused = image_in_place_of(path, &images, store).err();
        // An operator who asks for a restore accepts devices of a later time.
        found.restored = found.refused.is_some();
    }
    Ok(found)
}

/// The file found at the region's path.
enum Found {
    Nothing,
    Region(Arc<dyn PersistentMemory>),
    /// A restored region that no mount has used yet. It holds nothing but the image.
    Unused(Arc<dyn PersistentMemory>),
    /// A region that is damaged, or is not the one the images were saved from, with its
    /// incarnation.
    Refused(Failure, u64),
}

fn open(
    path: &Path,
    images: &[Arc<HostImage>; 2],
    store: &Resting<'_>,
    access: Access,
) -> Outcome<Arc<dyn PersistentMemory>> {
    let files = shared(images);
    let refused = match (find(path, &files, store, access)?, store.restore != Restore::No) {
        (Found::Region(memory) | Found::Unused(memory), false) => return Ok(memory),
        (Found::Refused(failure, _), false) => return Err(failure),
        (Found::Region(_), true) => {
            return Err(Failure::new(path.display(), "the region is there, and it is newer than the saved image")
                .remedy("mount without --restore; to go on from the image all the same, move the region away first"));
        }
        // The operator may ask for a restore because of the bulk devices, although an earlier mount
        // has already restored the region unasked.
        (Found::Nothing, _) | (Found::Unused(_), true) => None,
        (Found::Refused(_, incarnation), true) => Some(incarnation),
    };
    let (newest, superblock, anchor) = image_in_place_of(path, images, store)?;
    if access == Access::Read {
        let image = Some((images[newest].file(), anchor.used_bytes.get().next_multiple_of(PAGE)));
        let memory = PrivateMap::new(superblock.region_bytes, image).during("memory")?;
        shoal_region::place_anchor(&anchor, &memory);
        return Ok(Arc::new(memory));
    }
    // The region gets its name only when it is complete, so that an interrupted restore starts
    // over.
    let new = beside(path, "new");
    match OwnRegion::with_uuid(&new, store.uuid) {
        Ok(earlier) => earlier.map_or(Ok(()), OwnRegion::remove)?,
        // An attempt was interrupted before it wrote a superblock.
        Err(_) if shoal_host::is_blank(&new) => fs::remove_file(&new).during(new.display())?,
        Err(failure) => return Err(failure.remedy("move it away; the region is restored under this name first")),
    }
    let memory = SharedMap::create(&new, superblock.region_bytes, SharedKind::Battery).during("memory")?;
    if let Some(writer) = store.description.foreign_owner() {
        memory.give_to(writer).during(new.display())?;
    }
    let random = u32::from_le_bytes(shoal_host::random_bytes().during("random numbers")?);
    let devices = match store.restore {
        Restore::Copied => DevicesBeside::SameMoment,
        Restore::No | Restore::Asked => DevicesBeside::Later,
    };
    shoal_region::restore(&files, &memory, refused.unwrap_or(0), random, devices)
        .map_err(|error| no_image(path, error))?;
    if store.restore != Restore::No {
        shoal_region::let_devices_be_later(&memory).during(path.display())?;
    }
    if refused.is_some() {
        let kept = aside(path)?;
        tracing::warn!("{}: the region that was there is kept as {}", path.display(), kept.display());
    }
    if refused.is_none()
        && let Some(unused) = OwnRegion::with_uuid(path, store.uuid)?
    {
        // The replaced region holds nothing but the image.
        unused.remove()?;
    }
    shoal_host::rename_to_new(&new, path).map_err(Failure::of)?;
    tracing::warn!("{}: restored from the image saved last", path.display());
    Ok(Arc::new(memory))
}

fn no_image(path: &Path, cause: shoal_region::Error) -> Failure {
    Failure::new(path.display(), format!("the region is gone, and there is no saved image: {cause}"))
        .remedy("if its file system is not mounted, mount it first")
}

/// Returns the image from which a missing region may be restored: its index, superblock and anchor.
fn image_in_place_of(
    path: &Path,
    images: &[Arc<HostImage>; 2],
    store: &Resting<'_>,
) -> Outcome<(usize, Superblock, AnchorRecord)> {
    let (newest, superblock, anchor) =
        shoal_region::newest_image(&shared(images)).map_err(|error| no_image(path, error))?;
    if store.restore == Restore::No && anchor.flags.get() & ANCHOR_CLEAN == 0 {
        let since = images[newest].file().metadata().and_then(|m| m.modified()).map(calendar::text).unwrap_or_default();
        let cause = format!("the region is gone, and the saved image lacks everything since {since}");
        return Err(Failure::new(path.display(), cause).remedy(
            "bring the memory's file system back (is it mounted?), or mount with --restore to go on from the image",
        ));
    }
    if store.restore == Restore::No && !store.unmounted {
        let cause = "the region is gone, and the saved image is older than the store's last mount, which had no end";
        return Err(Failure::new(path.display(), cause).remedy(
            "bring the memory's file system and the newest images back, or mount with --restore to go on from this image",
        ));
    }
    Ok((newest, superblock, anchor))
}

fn find(path: &Path, images: &[Arc<dyn ImageFile>; 2], store: &Resting<'_>, access: Access) -> Outcome<Found> {
    let uuid = store.uuid;
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Err(Failure::new(path.display(), "is a directory, not a region")),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(Failure::new(path.display(), error)),
    }
    let restore = "mount with --restore to go on from the saved image (this region is kept beside it)";
    let damaged = |cause: Box<dyn std::error::Error + Send + Sync>| {
        Ok(Found::Refused(Failure::new(path.display(), cause).remedy(restore), 0))
    };
    // A reader replays the log in private memory.
    let open = if access == Access::Read { SharedMap::open_aside } else { SharedMap::open };
    let memory = match open(path, SharedKind::Battery) {
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return damaged(error.into()),
        memory => memory.during("memory")?,
    };
    store.description.refuse_foreign(path.display(), memory.owner())?;
    let mut page = [0; PAGE as usize];
    if memory.len() < 4 * PAGE {
        return damaged(format!("{} bytes are no region", memory.len()).into());
    }
    memory.read(SUPERBLOCK_AT, &mut page);
    let superblock = match Superblock::decode(&page) {
        Ok(superblock) => superblock,
        // Do not fall back to an older image.
        Err(error) if is_later(&error) => return Err(Failure::new(path.display(), error).remedy(LATER)),
        Err(error) => return damaged(error.into()),
    };
    if uuid_text(&superblock.uuid) != uuid {
        let cause = format!("the region belongs to store {}, the description to {uuid}", uuid_text(&superblock.uuid));
        return Err(Failure::new(path.display(), cause).remedy("bring the files of one store together"));
    }
    if memory.len() < superblock.region_bytes {
        let cause = format!("the region has {} of its {} bytes", memory.len(), superblock.region_bytes);
        return damaged(cause.into());
    }
    memory.read(ANCHOR_AT[0], &mut page);
    let anchor = match AnchorRecord::newest(&page) {
        Ok(anchor) => anchor,
        Err(error) => return damaged(error.into()),
    };
    let memory: Arc<dyn PersistentMemory> = Arc::new(memory);
    // Replaying old records over newer bytes would give a state that never existed.
    let end = match shoal_region::ring_end(&memory, &superblock, &anchor) {
        Ok(end) => end,
        Err(error) => {
            let salvage = "copy out nearly everything with `shoal salvage`";
            let failure = Failure::new(path.display(), error).remedy(format!("{salvage}, or {restore}"));
            return Ok(Found::Refused(failure, anchor.incarnation.get()));
        }
    };
    use shoal_region::Error::{ImageBehind, ImageOlder, RegionBehind, RegionOlder};
    Ok(match shoal_region::compare(images, &superblock, &anchor, end) {
        Ok(()) if shoal_region::is_unused(&memory, &superblock, &anchor).during(path.display())? => {
            Found::Unused(memory)
        }
        Ok(()) => Found::Region(memory),
        Err(error @ (RegionOlder { .. } | ImageOlder { .. } | RegionBehind { .. } | ImageBehind { .. })) => {
            let missing = if matches!(error, RegionOlder { .. } | RegionBehind { .. }) {
                "bring the newer region back (did its file system cover it?)"
            } else {
                "put the newer images back"
            };
            let failure = Failure::new(path.display(), error).remedy(format!("{missing}, or {restore}"));
            Found::Refused(failure, anchor.incarnation.get())
        }
        Err(error) => return Err(Failure::new("saved images", error)),
    })
}
