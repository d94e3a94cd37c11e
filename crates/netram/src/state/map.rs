//! The block table: where each block of the disk is.
//!
//! Owns: [`BlockMap`]. Rules: a block is at one place at most. It is mapped, lost, or holds
//! nothing, and a mapped block is not lost. Left out: which blocks of a group are still in use
//! (`group`).

use std::collections::HashSet;

use crate::state::bits::Bits;
use crate::state::place::Location;

/// A mapped block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub at: Location,
    /// Its checksum.
    pub sum: u32,
}

/// The place of each block, in 8 bytes.
pub(crate) struct BlockMap {
    /// For each block its location + 1 in the low half, its checksum in the high half; 0: reads as zeros.
    table: Vec<u64>,
    /// Blocks of a full group.
    slots: usize,
    rows: usize,
    mapped: u64,
    /// Blocks whose data is lost: reads of them fail.
    lost: HashSet<u32>,
}

impl BlockMap {
    /// Makes a map of a disk whose size is not known yet. Groups have `units` data units of `rows`
    /// blocks.
    pub fn new(units: usize, rows: usize) -> BlockMap {
        BlockMap { table: Vec::new(), slots: units * rows, rows, mapped: 0, lost: HashSet::new() }
    }

    /// Forgets everything and sets the number of blocks.
    pub fn reset(&mut self, blocks: u64) {
        self.table = vec![0; blocks as usize];
        self.mapped = 0;
        self.lost.clear();
    }

    /// Adds blocks that hold nothing.
    pub fn grow(&mut self, blocks: u64) {
        self.table.resize(self.table.len().max(blocks as usize), 0);
    }

    /// Number of blocks of the disk.
    pub fn blocks(&self) -> u64 {
        self.table.len() as u64
    }

    /// Number of blocks that hold something.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Number of blocks of a full group.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the table as checkpoints store it.
    pub fn entries(&self) -> &[u64] {
        &self.table
    }

    fn pack(&self, at: Location, sum: u32) -> u64 {
        let slot = at.group as u64 * self.slots as u64 + (at.unit * self.rows + at.row) as u64;
        debug_assert!(slot < u32::MAX as u64);
        (sum as u64) << 32 | (slot + 1)
    }

    pub fn find(&self, block: u32) -> Option<Mapped> {
        let entry = self.table[block as usize];
        if entry == 0 {
            return None;
        }
        let slot = (entry as u32 - 1) as usize;
        let (group, slot) = (slot / self.slots, slot % self.slots);
        let at = Location { group: group as u32, unit: slot / self.rows, row: slot % self.rows };
        Some(Mapped { at, sum: (entry >> 32) as u32 })
    }

    pub fn is_at(&self, block: u32, at: Location) -> bool {
        self.find(block).is_some_and(|found| found.at == at)
    }

    /// Maps a block that is not mapped.
    pub fn insert(&mut self, block: u32, at: Location, sum: u32) {
        debug_assert_eq!(self.table[block as usize], 0);
        self.table[block as usize] = self.pack(at, sum);
        self.mapped += 1;
        if !self.lost.is_empty() {
            self.lost.remove(&block);
        }
    }

    /// Changes the checksum of a block that was overwritten in place.
    pub fn renew(&mut self, block: u32, at: Location, sum: u32) {
        debug_assert!(self.is_at(block, at));
        self.table[block as usize] = self.pack(at, sum);
    }

    /// Unmaps a block. Returns where it was.
    pub fn remove(&mut self, block: u32) -> Option<Mapped> {
        let found = self.find(block)?;
        self.table[block as usize] = 0;
        self.mapped -= 1;
        Some(found)
    }

    /// Returns whether the block reads as zeros.
    pub fn is_hole(&self, block: u32) -> bool {
        self.table[block as usize] == 0 && !self.is_lost(block)
    }

    pub fn is_lost(&self, block: u32) -> bool {
        !self.lost.is_empty() && self.lost.contains(&block)
    }

    /// Marks the data of a block as lost. It may stay mapped until the loss is noted.
    pub fn lose(&mut self, block: u32) {
        self.lost.insert(block);
    }

    /// Lets a block read as zeros again. Returns whether it was lost.
    pub fn unlose(&mut self, block: u32) -> bool {
        self.lost.remove(&block)
    }

    /// Enters the lost blocks that opening found, and no others.
    pub fn set_lost(&mut self, lost: impl Iterator<Item = u32>) {
        self.lost = lost.collect();
    }

    /// Lists all lost blocks in order.
    pub fn lost(&self) -> Vec<u32> {
        let mut lost: Vec<u32> = self.lost.iter().copied().collect();
        lost.sort_unstable();
        lost
    }

    pub fn lost_count(&self) -> u64 {
        self.lost.len() as u64
    }

    /// Enters a page of a checkpoint; an empty body stands for blocks that hold nothing. `None`:
    /// the page does not fit. Entries count only after [`BlockMap::settle`].
    pub fn enter_page(&mut self, first: u32, count: u32, body: &[u8]) -> Option<()> {
        let places = self.table.get_mut(first as usize..first as usize + count as usize)?;
        if body.is_empty() {
            return Some(());
        }
        let (entries, []) = body.as_chunks::<8>() else { return None };
        if entries.len() != places.len() {
            return None;
        }
        for (place, entry) in places.iter_mut().zip(entries) {
            *place = u64::from_le_bytes(*entry);
        }
        Some(())
    }

    /// Ends the entering of pages. Returns the blocks that are in no group of `there` and must be
    /// looked for, and how many blocks of each group are live. `looks`: whether blocks must be
    /// looked for at all.
    pub fn end_entering(&mut self, there: &[bool], looks: bool) -> (Bits, Vec<u16>) {
        let mut wanted = Bits::new(self.table.len());
        let slots = self.slots as u32;
        let mut live = vec![0u16; there.len()];
        let mut mapped = 0;
        for (block, entry) in self.table.iter_mut().enumerate() {
            let place = *entry as u32;
            if place == 0 {
                continue;
            }
            let group = ((place - 1) / slots) as usize;
            if place != shoal_format::ram_checkpoint::LOOK && there.get(group).copied().unwrap_or(false) {
                live[group] += 1;
                mapped += 1;
            } else {
                *entry = 0;
                wanted.set(block, looks);
            }
        }
        self.mapped = mapped;
        (wanted, live)
    }

    #[cfg(test)]
    pub fn pretend_mapped(&mut self, mapped: u64) {
        self.mapped = mapped;
    }
}
