//! `dax` memory: a region in persistent memory that the processor addresses, mapped in place.
//!
//! There is no image, because the region itself is durable. On a file system that refuses MAP_SYNC
//! a store survives only a process crash; every report on possible losses says so.

use std::path::Path;
use std::sync::Arc;

use shoal_devices::{During, Outcome};
use shoal_host::{Access, Directory, SharedKind, SharedMap};

use super::{Loss, Means, RegionMedia, Resting, RestingMedia};

pub(super) static MEANS: Means = Means { make, open, rest, loss };

fn loss(survives_power_loss: bool) -> Loss {
    if survives_power_loss {
        let power_loss = "nothing of metadata and small files, at most the last second of large files";
        return Loss { power_loss, after_fsync: "nothing" };
    }
    Loss {
        power_loss: "everything: the memory's file system refuses MAP_SYNC",
        after_fsync: "nothing but by a power loss",
    }
}

fn media(memory: SharedMap) -> RegionMedia {
    let survives_power_loss = memory.synchronous();
    RegionMedia { memory: Arc::new(memory), log: None, images: None, survives_power_loss }
}

fn make(_: &Directory, path: &Path, bytes: u64) -> Outcome<RegionMedia> {
    Ok(media(SharedMap::create(path, bytes, SharedKind::Dax).during("memory")?))
}

fn open(store: &Resting<'_>, path: &Path, access: Access) -> Outcome<RegionMedia> {
    let open = if access == Access::Read { SharedMap::open_aside } else { SharedMap::open };
    let memory = open(path, SharedKind::Dax).during("memory")?;
    store.description.refuse_foreign(path.display(), memory.owner())?;
    Ok(media(memory))
}

fn rest(store: &Resting<'_>, path: &Path) -> Outcome<RestingMedia> {
    let memory = SharedMap::open_aside(path, SharedKind::Dax).during("memory")?;
    store.description.refuse_foreign(path.display(), memory.owner())?;
    Ok(RestingMedia { memory: Some(Arc::new(memory)), log: None, images: None, refused: None, restored: false })
}
