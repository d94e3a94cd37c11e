//! Adds an incompatible feature to a store that was made without it.
//!
//! Older programs must refuse the store from before the first record that needs the feature. They
//! read memory with a ring first, so its superblock changes in place: first the bit, then the
//! checksum, which decides ([`FEATURE_PACKED`]). `logged` memory is built from an image, so a
//! checkpoint writes and seals the new superblock. The older image cannot be replayed any more
//! then, because the log before the newer one is released.
//!
//! [`FEATURE_PACKED`]: shoal_format::superblock::FEATURE_PACKED

use std::mem::offset_of;
use std::sync::atomic::Ordering;

use shoal_format::superblock::{SUPERBLOCK_AT, Superblock, SuperblockRecord};
use shoal_format::{Offset, PAGE};

use crate::{Region, Result};

/// Offsets of the superblock's words that change: the features, and the word with the checksum.
const FEATURES: usize = offset_of!(SuperblockRecord, features_incompat);
const CHECKSUM: usize = offset_of!(SuperblockRecord, crc) / 8 * 8;

impl Region {
    pub fn has_feature(&self, feature: u64) -> bool {
        self.features.load(Ordering::Acquire) & feature == feature
    }

    /// Adds an incompatible feature, durable on return. Does nothing if the store has it already.
    pub fn add_feature(&self, feature: u64) -> Result<()> {
        // Check without the lock, which a checkpoint holds while it writes an image.
        if self.has_feature(feature) {
            return Ok(());
        }
        self.writable()?;
        let mut state = self.checkpoint.lock();
        if self.has_feature(feature) {
            return Ok(());
        }
        let features = self.features.load(Ordering::Acquire) | feature;
        let record = Superblock { features, ..self.superblock }.encode();
        for word in [FEATURES, CHECKSUM] {
            self.memory.write_through(SUPERBLOCK_AT + word as u64, &record[word..word + 8]);
            self.memory.fence();
        }
        self.mark_dirty(Offset::ZERO, PAGE);
        if let (Some(images), false) = (&self.images, self.superblock.memory_kind.has_ring()) {
            self.write_image_locked(images, &mut state, false)?;
        }
        self.features.store(features, Ordering::Release);
        Ok(())
    }
}
