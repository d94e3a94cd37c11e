//! A group in memory: its blocks, and how far they have got.
//!
//! Owns: [`Memory`]. Rules: blocks are *sent*, then *stored* (the donor has answered), then *safe* (the group's parity covers them).

use shoal_format::ram::UnitEntry;

use crate::api::Purpose;
use crate::unit::Head;

/// A group that is being filled or sent.
pub(crate) struct Memory {
    /// Blocks of each data unit.
    pub buffers: Vec<Vec<u8>>,
    pub lists: Vec<Vec<UnitEntry>>,
    /// For each block the sequence up to which a flush waits for it.
    pub origins: Vec<Vec<u64>>,
    /// Of each unit, parity too: the header on its donor.
    pub heads: Vec<Head>,
    /// Blocks of each unit that are on their way or there.
    pub sent: Vec<u8>,
    pub stored: Vec<u8>,
    pub safe: Vec<u8>,
    /// Lowest origin of the blocks that are not safe; `u64::MAX`: none.
    pub unsafe_from: u64,
    /// Takes no more.
    pub full: bool,
    pub sending: bool,
    /// What is there is to be made safe.
    pub parity_wanted: bool,
    /// A donor did not take its part: its live blocks go into other groups.
    pub abandoned: bool,
    /// All of it is sent once more, its parity too.
    pub again: bool,
    pub purpose: Purpose,
    /// Since when something of it is not safe.
    pub unsafe_since_ns: u64,
}

impl Memory {
    /// Donors have so many blocks of each data unit; `safe`: with their parity.
    pub fn arrived(&mut self, counts: &[u8], safe: bool) {
        self.stored.copy_from_slice(counts);
        if safe {
            self.safe.copy_from_slice(counts);
            let left = self.origins.iter().zip(counts).flat_map(|(list, &count)| &list[count as usize..]);
            self.unsafe_from = left.copied().min().unwrap_or(u64::MAX);
        }
    }
}

impl Memory {
    /// A block that is not safe yet takes over an earlier origin.
    pub fn inherit(&mut self, unit: usize, row: usize, origin: u64) -> bool {
        let waits = row >= self.safe[unit] as usize;
        if waits {
            self.origins[unit][row] = self.origins[unit][row].min(origin);
            self.unsafe_from = self.unsafe_from.min(origin);
        }
        waits
    }
}
