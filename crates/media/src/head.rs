//! The head of a mechanical disk, for writers that may choose the place.
//!
//! Owns: the trait [`Head`]. Eager writing puts a block where the disk can take it soonest, and compaction empties whole
//! tracks: both need to know what a block address hides, where the head is and where tracks end. Only a disk that
//! knows its own geometry can answer. Left out: reading, and devices without a head.

use std::ops::Range;

/// Where a device could write soonest. Blocks are 4 KiB, counted from the device's start; none lies on two tracks.
pub trait Head: Send + Sync {
    /// The free block on which a write could begin soonest, if the request were given now; cylinders are swept one way,
    /// then wrap. `None` if no block is free.
    fn nearest(&self, is_free: &dyn Fn(u64) -> bool) -> Option<u64>;

    /// Ranges of blocks that lie on one track, in order; together they are the device.
    fn tracks(&self) -> Vec<Range<u64>>;
}
