//! The block table: where each block of the disk is.
//!
//! Owns: [`BlockMap`]. Rules: a block is at one place at most; it is mapped, lost, or holds nothing, and a block that
//! is mapped is not lost. Left out: the blocks of a group that are still in use (`group`).

use std::collections::HashSet;

use crate::state::bits::Bits;
use crate::state::place::Location;

/// Places of blocks, 8 bytes for each block.
pub(crate) struct BlockMap {
    /// For each block its location + 1 in the low half, its checksum in the high half; 0: reads as zeros.
    table: Vec<u64>,
    /// Blocks of a full group, and of each of its units.
    slots: usize,
    rows: usize,
    mapped: u64,
    /// Blocks whose data is lost: reads of them fail.
    lost: HashSet<u32>,
}

impl BlockMap {
    /// A map of a disk whose size is not known yet; groups have `units` data units of `rows` blocks.
    pub fn new(units: usize, rows: usize) -> BlockMap {
        BlockMap { table: Vec::new(), slots: units * rows, rows, mapped: 0, lost: HashSet::new() }
    }

    /// Forgets everything. The disk has `blocks` blocks.
    pub fn reset(&mut self, blocks: u64) {
        self.table = vec![0; blocks as usize];
        self.mapped = 0;
        self.lost.clear();
    }

    /// Blocks of the disk.
    pub fn blocks(&self) -> u64 {
        self.table.len() as u64
    }

    /// Blocks that hold something.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Blocks of a full group.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The table as checkpoints have it.
    pub fn entries(&self) -> &[u64] {
        &self.table
    }

    fn pack(&self, at: Location, sum: u32) -> u64 {
        let slot = at.group as u64 * self.slots as u64 + (at.unit * self.rows + at.row) as u64;
        debug_assert!(slot < u32::MAX as u64);
        (sum as u64) << 32 | (slot + 1)
    }

    /// Where a block is, and its checksum.
    pub fn find(&self, block: u32) -> Option<(Location, u32)> {
        let entry = self.table[block as usize];
        if entry == 0 {
            return None;
        }
        let slot = (entry as u32 - 1) as usize;
        let (group, slot) = (slot / self.slots, slot % self.slots);
        let at = Location { group: group as u32, unit: slot / self.rows, row: slot % self.rows };
        Some((at, (entry >> 32) as u32))
    }

    pub fn is_at(&self, block: u32, at: Location) -> bool {
        self.find(block).is_some_and(|(found, _)| found == at)
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

    /// The bytes of a block change where it is.
    pub fn renew(&mut self, block: u32, at: Location, sum: u32) {
        debug_assert!(self.is_at(block, at));
        self.table[block as usize] = self.pack(at, sum);
    }

    /// Unmaps a block. Where it was, and its checksum.
    pub fn remove(&mut self, block: u32) -> Option<(Location, u32)> {
        let found = self.find(block)?;
        self.table[block as usize] = 0;
        self.mapped -= 1;
        Some(found)
    }

    pub fn is_lost(&self, block: u32) -> bool {
        !self.lost.is_empty() && self.lost.contains(&block)
    }

    /// The data of a block is lost; it may be mapped until that is noted.
    pub fn lose(&mut self, block: u32) {
        self.lost.insert(block);
    }

    /// The block reads as zeros again. True if it was lost.
    pub fn unlose(&mut self, block: u32) -> bool {
        self.lost.remove(&block)
    }

    /// Opening has found these to be lost, and no others.
    pub fn set_lost(&mut self, lost: impl Iterator<Item = u32>) {
        self.lost = lost.collect();
    }

    /// All lost blocks in order.
    pub fn lost(&self) -> Vec<u32> {
        let mut lost: Vec<u32> = self.lost.iter().copied().collect();
        lost.sort_unstable();
        lost
    }

    pub fn lost_count(&self) -> u64 {
        self.lost.len() as u64
    }

    /// Entries as they are in a page of a checkpoint; an empty body stands for blocks that hold nothing. `None`: they
    /// do not fit. They count when [`BlockMap::settle`] has seen them.
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

    /// Ends the entering of pages. Returns the blocks that are in no group of `there` and have to be looked for, and
    /// how many blocks of each group live. `looks`: whether they are to be looked for at all.
    pub fn settle(&mut self, there: &[bool], looks: bool) -> (Bits, Vec<u16>) {
        let mut wanted = Bits::new(self.table.len(), false);
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
