//! Copies of blocks that opening found listed and that may not be there.
//!
//! Owns: [`Doubt`]. Such a copy was on its way when the former client died. Where nobody can tell at the moment, it
//! counts, because it may have been flushed; the copy it replaced is kept, and counts again if it turns out not to be
//! there. Left out: finding out (`opening::settle`).

use crate::state::place::Location;

/// A copy of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub sequence: u64,
    pub at: Location,
    pub sum: u32,
    pub is_doubted: bool,
}

/// A block of which a copy may not be there.
#[derive(Default)]
pub(crate) struct Doubt {
    /// Lowest and highest sequence of entries that are not there, or perhaps not.
    pub from: u64,
    pub to: u64,
    /// The copy that counts, if nobody could tell whether it is there.
    pub present: Option<Copied>,
    /// Copies that count when it is not there, the newest last.
    pub older: Vec<Copied>,
    /// Before these, its data was lost.
    pub was_lost: bool,
    /// The number of returns when it was last tried.
    pub tried: Option<u64>,
}

impl Doubt {
    /// There is an entry that is not there, or perhaps not. Entries come in the order of their sequences.
    pub fn meets(&mut self, sequence: u64) {
        self.from = if self.from == 0 { sequence } else { self.from.min(sequence) };
        self.to = self.to.max(sequence);
    }

    /// Copies with a lower sequence do not count. True if nothing is left that is not sure.
    pub fn ends_before(&mut self, sequence: u64) -> bool {
        self.older.retain(|copy| copy.sequence > sequence);
        self.to < sequence
    }
}
