//! A group in memory: its blocks, and how far they have been sent.
//!
//! Owns: [`Memory`]. Rules: blocks are *sent*, then *stored* (the donor has answered), then *safe* (the group's
//! parity covers them). Blocks that were sent do not change. Left out: the group itself (`group`).

use shoal_format::ram::UnitEntry;

use crate::api::Purpose;
use crate::state::place::Spot;
use crate::state::unit::Head;

/// A group that is being filled or sent.
pub(crate) struct Memory {
    /// Blocks of each data unit.
    pub buffers: Vec<Vec<u8>>,
    pub lists: Vec<Vec<UnitEntry>>,
    /// For each block, the sequence up to which a flush waits for it.
    pub origins: Vec<Vec<u64>>,
    /// The header of each unit on its donor, including parity.
    pub heads: Vec<Head>,
    /// Blocks of each data unit that are in flight or stored.
    pub sent: Vec<u8>,
    pub stored: Vec<u8>,
    pub safe: Vec<u8>,
    /// Lowest origin of blocks that are not safe; `u64::MAX`: all are safe.
    pub unsafe_from: u64,
    /// The group takes no more blocks.
    pub full: bool,
    pub sending: bool,
    /// All its blocks must be made safe.
    pub parity_wanted: bool,
    /// A donor did not take its part: the live blocks move to other groups.
    pub abandoned: bool,
    /// Everything is sent once more, including parity.
    pub again: bool,
    pub purpose: Purpose,
    /// Since when some of its blocks have not been safe.
    pub unsafe_since_ns: u64,
}

impl Memory {
    /// Makes an empty group of `data` data units of `bytes` each, on `width` donors.
    pub fn new(data: usize, width: usize, bytes: usize, purpose: Purpose, now_ns: u64) -> Memory {
        Memory {
            // A cloned vector has no capacity to spare.
            buffers: (0..data).map(|_| Vec::with_capacity(bytes)).collect(),
            lists: vec![Vec::new(); data],
            origins: vec![Vec::new(); data],
            heads: vec![Head::default(); width],
            sent: vec![0; data],
            stored: vec![0; data],
            safe: vec![0; data],
            unsafe_from: u64::MAX,
            full: false,
            sending: false,
            parity_wanted: false,
            abandoned: false,
            again: false,
            purpose,
            unsafe_since_ns: now_ns,
        }
    }

    /// Number of its blocks that are not safe.
    pub fn blocks_not_safe(&self) -> usize {
        self.lists.iter().zip(&self.safe).map(|(list, &safe)| list.len() - usize::from(safe)).sum()
    }

    /// Number of blocks of each data unit.
    pub fn counts(&self) -> Vec<u8> {
        self.lists.iter().map(|list| list.len() as u8).collect()
    }

    /// Returns whether some of its blocks are not safe and nothing is being done about that.
    pub fn waits(&self) -> bool {
        self.unsafe_from != u64::MAX && !self.abandoned && !self.sending
    }

    /// Returns whether some of its blocks have not been safe for `timeout_ns`.
    pub fn is_overdue(&self, now_ns: u64, timeout_ns: u64) -> bool {
        self.unsafe_from != u64::MAX && now_ns.saturating_sub(self.unsafe_since_ns) >= timeout_ns
    }

    /// Adds a block to the first data unit that has fewer than `rows` blocks.
    pub fn push(&mut self, bytes: &[u8], entry: UnitEntry, origin: u64, rows: usize, now_ns: u64) -> Spot {
        let unit = self.lists.iter().position(|list| list.len() < rows).expect("an open group has room");
        let row = self.lists[unit].len();
        self.buffers[unit].extend_from_slice(bytes);
        self.lists[unit].push(entry);
        self.origins[unit].push(origin);
        if self.unsafe_from == u64::MAX {
            self.unsafe_since_ns = now_ns;
        }
        self.unsafe_from = self.unsafe_from.min(origin);
        self.full |= unit + 1 == self.lists.len() && row + 1 == rows;
        Spot { unit, row }
    }

    /// Returns the bytes of a block.
    pub fn block(&self, unit: usize, row: usize, block_bytes: usize) -> &[u8] {
        &self.buffers[unit][row * block_bytes..][..block_bytes]
    }

    /// Overwrites a block that is not in flight yet. Returns false if it is.
    pub fn overwrite(&mut self, unit: usize, row: usize, bytes: &[u8], entry: UnitEntry) -> bool {
        if row < self.sent[unit] as usize || self.abandoned {
            return false;
        }
        self.buffers[unit][row * bytes.len()..][..bytes.len()].copy_from_slice(bytes);
        self.lists[unit][row] = entry;
        true
    }

    /// Records that donors have `counts` blocks of the data units.
    pub fn arrived(&mut self, counts: &[u8]) {
        self.stored.copy_from_slice(counts);
    }

    /// Records that donors have `counts` blocks of the data units with their parity.
    pub fn made_safe(&mut self, counts: &[u8]) {
        self.safe.copy_from_slice(counts);
        let left = self.origins.iter().zip(counts).flat_map(|(list, &count)| &list[count as usize..]);
        self.unsafe_from = left.copied().min().unwrap_or(u64::MAX);
    }

    /// Gives a block that is not safe yet an earlier origin. Returns false if the block is safe.
    pub fn inherit(&mut self, unit: usize, row: usize, origin: u64) -> bool {
        let waits = row >= self.safe[unit] as usize;
        if waits {
            self.origins[unit][row] = self.origins[unit][row].min(origin);
            self.unsafe_from = self.unsafe_from.min(origin);
        }
        waits
    }

    /// Prepares to send everything once more, as it is.
    pub fn revive(&mut self) {
        (self.abandoned, self.again) = (false, true);
        self.sent.fill(0);
        self.stored.fill(0);
    }
}
