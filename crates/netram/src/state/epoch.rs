//! The disk's epoch: a number that grows whenever the donors are to be told which of them belong to the disk.
//!
//! Owns: [`Epoch`], and births, which are never used again. Left out: writing superblocks (`epochs`).

use shoal_format::ram::DiskSuperblock;

pub(crate) struct Epoch {
    number: u64,
    stored: bool,
    changes: bool,
    next_born: u32,
}

impl Default for Epoch {
    fn default() -> Epoch {
        Epoch { number: 1, stored: false, changes: false, next_born: 1 }
    }
}

impl Epoch {
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Enough donors have the present epoch: no set of donors that can be opened without them knows an older one alone.
    pub fn is_stored(&self) -> bool {
        self.stored
    }

    /// The present epoch changes the membership, and is not stored yet.
    pub fn changes(&self) -> bool {
        self.changes
    }

    /// Begins an epoch. `members`: the membership has changed.
    pub fn begin(&mut self, members: bool) {
        self.number += 1;
        self.stored = false;
        self.changes |= members;
    }

    /// Enough donors have it.
    pub fn store(&mut self) {
        (self.stored, self.changes) = (true, false);
    }

    /// A superblock has this epoch: a former client may have died when no other donor knew it.
    pub fn meets(&mut self, number: u64) {
        self.number = self.number.max(number);
    }

    /// The birth of a donor that joins.
    pub fn next_birth(&mut self) -> u32 {
        self.next_born += 1;
        self.next_born - 1
    }

    /// A birth is never used again.
    pub fn knows_births(&mut self, superblock: &DiskSuperblock) {
        let last = superblock.donors.iter().map(|place| place.born).max().unwrap_or(0);
        self.next_born = self.next_born.max(last + 1);
    }
}
