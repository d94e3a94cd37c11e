//! Copies of blocks that opening found listed and that may not be there.
//!
//! Owns: [`Doubt`]. Such a copy was being written when the former client died. If nobody can decide
//! at the moment, it counts, because it may have been flushed. The copy it replaced is kept, and
//! counts again if the newer one turns out not to be there. Left out: finding out
//! (`opening::settle`).

use crate::state::place::Location;

/// A copy of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub sequence: u64,
    pub at: Location,
    pub sum: u32,
    pub is_doubted: bool,
}

/// A block with a copy that may not be there.
#[derive(Default)]
pub(crate) struct Doubt {
    /// Lowest and highest sequence of entries that are not there, or may not be.
    pub from: u64,
    pub to: u64,
    /// The copy that counts, if nobody could decide whether it is there.
    pub present: Option<Copied>,
    /// Copies that count if `present` is not there, the newest last.
    pub older: Vec<Copied>,
    /// The block's data was lost before these copies.
    pub was_lost: bool,
    /// Value of `Repairs::tries` when it was last tried.
    pub tried: Option<u64>,
}

impl Doubt {
    /// Adds an entry that is not there, or may not be. Entries come in the order of their
    /// sequences.
    pub fn meets(&mut self, sequence: u64) {
        self.from = if self.from == 0 { sequence } else { self.from.min(sequence) };
        self.to = self.to.max(sequence);
    }

    /// Drops copies with a lower sequence. Returns whether nothing is left that is doubtful.
    pub fn ends_before(&mut self, sequence: u64) -> bool {
        self.older.retain(|copy| copy.sequence > sequence);
        self.to < sequence
    }
}
