//! Media between the region and the simulation. They call back in the middle of a checkpoint, and
//! omit one step of an ordering rule when a bug is planted.
//!
//! Rules: without a plant, every call goes through unchanged. A plant drops only the calls it
//! names, recognized by what was written since the last call of their kind, so that each rule of
//! `docs/spec/region.md` can be broken alone. Left out: lies about every call of a kind
//! (`shoal_sim::Fault::Lie`), and bugs inside the region (`planted`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use shoal_format::PAGE;
use shoal_format::superblock::{ANCHOR_AT, Superblock};
use shoal_media::{ImageFile, LogDevice, PersistentMemory, Result};

/// A deliberately broken rule for using the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    None,
    /// The ring's record is not fenced before it is applied.
    AppendFence,
    /// Applied bytes are not fenced before the anchor releases their record.
    ApplyFence,
    /// The ring's anchor is not fenced before its records are overwritten.
    AnchorFence,
    /// Pages are not synced before the anchor seals them.
    ImageSyncBeforeSeal,
    /// The log is not synced past the end of the copy before the anchor seals it (invariant 4).
    LogSyncBeforeSeal,
    /// The removal of the target's old anchor is not synced before its pages are overwritten.
    InvalidationSync,
    /// The seal is not synced before the log before it is released.
    SealSync,
}

/// Called now and then while a checkpoint copies.
pub trait DuringCopy: Send + Sync {
    fn page_written(&self);
}

/// State shared by the wrappers of one store.
#[derive(Default)]
pub struct Stage {
    /// Pages of an image are synced, but its anchor is not written yet.
    sealing: AtomicBool,
}

/// Kinds of bytes stored since the last fence.
#[derive(Default)]
struct Stored {
    ring: AtomicBool,
    anchor: AtomicBool,
}

pub struct PlantedMemory {
    pub inner: Arc<dyn PersistentMemory>,
    pub plant: Plant,
    ring: std::ops::Range<u64>,
    stored: Stored,
}

impl PlantedMemory {
    pub fn new(inner: Arc<dyn PersistentMemory>, plant: Plant, superblock: &Superblock) -> PlantedMemory {
        let ring = superblock.ring.get()..(superblock.ring + superblock.ring_bytes).get();
        PlantedMemory { inner, plant, ring, stored: Stored::default() }
    }

    fn note(&self, at: u64) {
        if self.ring.contains(&at) {
            self.stored.ring.store(true, Ordering::Relaxed);
        } else if (ANCHOR_AT[0]..ANCHOR_AT[0] + PAGE).contains(&at) {
            self.stored.anchor.store(true, Ordering::Relaxed);
        }
    }
}

impl PersistentMemory for PlantedMemory {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.inner.read(at, out);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.note(at);
        self.inner.write(at, bytes);
    }

    fn zero(&self, at: u64, len: u64) {
        self.note(at);
        self.inner.zero(at, len);
    }

    fn write_back(&self, at: u64, len: u64) {
        self.inner.write_back(at, len);
    }

    fn fence(&self) {
        let ring = self.stored.ring.swap(false, Ordering::Relaxed);
        let anchor = self.stored.anchor.swap(false, Ordering::Relaxed);
        let planted = match self.plant {
            Plant::AppendFence => ring,
            Plant::AnchorFence => anchor,
            Plant::ApplyFence => !ring && !anchor,
            _ => false,
        };
        if !planted {
            self.inner.fence();
        }
    }

    fn detach(&self, bytes: u64) {
        self.inner.detach(bytes);
    }
}

pub struct PlantedImage {
    pub inner: Arc<dyn ImageFile>,
    pub plant: Plant,
    pub stage: Arc<Stage>,
    pub during: Arc<dyn DuringCopy>,
    /// Whether something other than an anchor was written since the last sync, and whether the last
    /// anchor written is a seal.
    pages: AtomicBool,
    sealed: AtomicBool,
}

impl PlantedImage {
    pub fn new(
        inner: Arc<dyn ImageFile>,
        plant: Plant,
        stage: Arc<Stage>,
        during: Arc<dyn DuringCopy>,
    ) -> PlantedImage {
        PlantedImage { inner, plant, stage, during, pages: AtomicBool::new(false), sealed: AtomicBool::new(false) }
    }
}

impl ImageFile for PlantedImage {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.inner.read(at, out)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.inner.write(at, bytes)?;
        if at == ANCHOR_AT[0] {
            self.sealed.store(bytes.iter().any(|&b| b != 0), Ordering::Relaxed);
            self.stage.sealing.store(false, Ordering::Relaxed);
        } else {
            self.pages.store(true, Ordering::Relaxed);
            self.during.page_written();
        }
        Ok(())
    }

    fn truncate(&self, bytes: u64) -> Result<()> {
        self.inner.truncate(bytes)
    }

    fn sync(&self) -> Result<()> {
        let pages = self.pages.swap(false, Ordering::Relaxed);
        let sealed = self.sealed.load(Ordering::Relaxed);
        if pages {
            self.stage.sealing.store(true, Ordering::Relaxed);
        }
        let planted = match self.plant {
            Plant::ImageSyncBeforeSeal => pages,
            Plant::InvalidationSync => !pages && !sealed,
            Plant::SealSync => !pages && sealed,
            _ => false,
        };
        if planted { Ok(()) } else { self.inner.sync() }
    }
}

pub struct PlantedLog {
    pub inner: Arc<dyn LogDevice>,
    pub plant: Plant,
    pub stage: Arc<Stage>,
}

impl LogDevice for PlantedLog {
    fn append(&self, position: u64, bytes: &[u8]) -> Result<()> {
        self.inner.append(position, bytes)
    }

    fn sync(&self) -> Result<()> {
        if self.plant == Plant::LogSyncBeforeSeal && self.stage.sealing.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.inner.sync()
    }

    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize> {
        self.inner.read(position, out)
    }

    fn release(&self, position: u64) -> Result<()> {
        self.inner.release(position)
    }
}
