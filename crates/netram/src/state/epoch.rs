//! The disk's epoch: a number that grows whenever the donors must be told which of them belong to
//! the disk.
//!
//! Owns: [`Epoch`], and births, which are never reused. Left out: writing superblocks (`epochs`).

use shoal_format::ram::DiskSuperblock;

/// No disk lives to see as many epochs or births: who tells of more was not told so by a client.
pub(crate) const EPOCHS_MAX: u64 = u64::MAX / 2;
pub(crate) const BIRTHS_MAX: u32 = u32::MAX / 2;

/// Which donors belong to the disk in a new epoch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Membership {
    /// Those of the epoch before.
    Same,
    /// Others than in the epoch before.
    Changed,
}

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

    /// Returns whether enough donors have the present epoch: every set of donors that suffices to
    /// open the disk includes one that has it.
    pub fn is_stored(&self) -> bool {
        self.stored
    }

    /// Returns whether the present epoch changes the membership and is not stored yet.
    pub fn changes(&self) -> bool {
        self.changes
    }

    /// Begins an epoch.
    pub fn begin(&mut self, membership: Membership) {
        self.number += 1;
        self.stored = false;
        self.changes |= membership == Membership::Changed;
    }

    /// Records that enough donors have the epoch.
    pub fn store(&mut self) {
        (self.stored, self.changes) = (true, false);
    }

    /// Takes note of a superblock's epoch: a former client may have died when no other donor knew
    /// it.
    pub fn meets(&mut self, number: u64) {
        self.number = self.number.max(number);
    }

    /// Takes the birth for a joining donor. `None`: there is none left.
    pub fn next_birth(&mut self) -> Option<u32> {
        let born = self.next_born;
        self.next_born = born.checked_add(1)?;
        Some(born)
    }

    /// Takes note of the births in a superblock, because a birth is never reused.
    pub fn knows_births(&mut self, superblock: &DiskSuperblock) {
        let last = superblock.donors.iter().map(|place| place.born).max().unwrap_or(0);
        self.next_born = self.next_born.max(last.saturating_add(1));
    }
}
