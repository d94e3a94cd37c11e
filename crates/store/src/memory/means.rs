//! The operations of a kind of memory: making, opening and checking the media of a region, and their possible losses.
//!
//! Owns the shape, [`Means`], and the media it hands out. A module for each kind fills it in.

use std::path::Path;
use std::sync::Arc;

use shoal_check::ImageSource;
use shoal_devices::{Failure, Outcome};
use shoal_media::{ImageFile, LogDevice, PersistentMemory};

use crate::store::Store;

/// The media of a region, opened or made.
pub(crate) struct RegionMedia {
    pub memory: Arc<dyn PersistentMemory>,
    /// The log's files, for memory without a ring.
    pub log: Option<Arc<dyn LogDevice>>,
    pub images: Option<[Arc<dyn ImageFile>; 2]>,
    /// False: the store survives only a crash of the process, although memory of this kind promises more.
    pub survives_power_loss: bool,
}

/// The media of a region as a checker takes them.
pub(crate) struct RestingMedia {
    /// The region itself; `None` where there are only images and a log.
    pub memory: Option<Arc<dyn PersistentMemory>>,
    pub log: Option<Arc<dyn LogDevice>>,
    pub images: Option<[Arc<dyn ImageFile>; 2]>,
    /// Why a mount would not go on from these images.
    pub refused: Option<Failure>,
}

impl RestingMedia {
    /// What to check: the region if there is one, else the images.
    pub fn image(&self) -> Option<ImageSource<'_>> {
        match (&self.memory, &self.images) {
            (Some(memory), _) => Some(ImageSource::Memory(memory.as_ref())),
            (None, Some([first, second])) => Some(ImageSource::Images([first.as_ref(), second.as_ref()])),
            (None, None) => None,
        }
    }
}

pub(super) struct Loss {
    pub power_loss: &'static str,
    pub after_fsync: &'static str,
}

/// How the media of one kind of memory are handled. `path` is the region's file, for memory that has one.
pub(super) struct Means {
    /// Makes the media of a new store in `directory`, with a region of `bytes` that is all zeros.
    pub make: fn(directory: &Path, path: &Path, bytes: u64) -> Outcome<RegionMedia>,
    /// Opens the media. With `read_only` nothing is changed.
    pub open: fn(store: &Store, path: &Path, read_only: bool) -> Outcome<RegionMedia>,
    /// Opens the media for the checker.
    pub rest: fn(store: &Store, path: &Path) -> Outcome<RestingMedia>,
    /// What may be lost; its argument is [`RegionMedia::survives_power_loss`].
    pub loss: fn(survives_power_loss: bool) -> Loss,
}
