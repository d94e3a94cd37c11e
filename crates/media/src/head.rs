//! The head of a mechanical disk, for writers that may choose where to write.
//!
//! Owns: the trait [`Head`]. Eager writing puts a block where the disk can take it soonest, and
//! compaction empties whole tracks. Both need to know where the head is and where tracks end, which
//! a block address hides. Only a disk that knows its own geometry can answer. Left out: reading,
//! and devices without a head.

use std::ops::Range;

/// Tells where a device could write soonest. Blocks are 4 KiB, counted from the device's start. No
/// block lies on two tracks.
pub trait Head: Send + Sync {
    /// The free block on which a write could begin soonest if it were submitted now. The head
    /// sweeps the cylinders in one direction, then wraps. `None` if no block is free.
    fn nearest(&self, is_free: &dyn Fn(u64) -> bool) -> Option<u64>;

    /// Ranges of blocks that lie on one track each, in order. Together they cover the device.
    fn tracks(&self) -> Vec<Range<u64>>;
}
