//! Counters of what a disk has done and moved.
//!
//! Owns: [`Counts`]. Rules: all counters except `mapped` start when the disk is opened; `mapped` is
//! the present value. Left out: the snapshot of one moment (`status`).

use crate::api::Purpose;

/// Traffic with donors for one purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub operations: u64,
    pub read_bytes: u64,
    pub written_bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks that hold something.
    pub mapped: u64,
    pub reads: u64,
    pub writes: u64,
    pub flushes: u64,
    pub blocks_read: u64,
    pub blocks_written: u64,
    /// Blocks overwritten in a cache before they were sent.
    pub absorbed: u64,
    /// Blocks written that held nothing before.
    pub unmapped_written: u64,
    /// Blocks sent to donors: written blocks, parity, and blocks that the cleaner moved (with their
    /// parity).
    pub sent_data: u64,
    pub sent_parity: u64,
    pub cleaned_data: u64,
    pub cleaned_parity: u64,
    /// Blocks the cleaner read.
    pub cleaned_read: u64,
    pub groups_cleaned: u64,
    /// Blocks computed from parity.
    pub reconstructed: u64,
    /// Completed checkpoints of the map, and whether the disk was opened from one.
    pub checkpoints: u64,
    pub opened_by_checkpoint: bool,
    /// Indexed by [`Purpose`].
    pub traffic: [Traffic; 5],
}

impl Counts {
    pub fn traffic(&self, purpose: Purpose) -> Traffic {
        self.traffic[purpose as usize]
    }
}
