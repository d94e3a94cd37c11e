//! Horizons: the sequence below which everything is safe, and what must be kept for entries that
//! are not.
//!
//! Rules: a header names a horizon below which every entry was safe when the header was written.
//! The horizon never exceeds what opening knew until everything that opening found is safe or known
//! not to be there. Lists of trims are kept while an older copy may be found. Left out: what
//! opening found (`found`).

use shoal_format::ram::GroupId;

use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::donors::Donor;
use crate::state::found::Unprotected;
use crate::views::Horizons;

impl State {
    /// Returns whether anything that opening found is still not safe. Lets go of groups that were
    /// kept for the rest.
    pub fn has_unprotected(&mut self) -> bool {
        if self.horizons().torn_note() == u64::MAX {
            self.found.torn_notes.clear();
        }
        if self.found.groups.is_empty() {
            return false;
        }
        let horizon = self.horizons().horizon();
        let groups = &self.groups;
        let done: Vec<_> = self.found.groups.extract_if(.., |found| !found.remains(groups, horizon)).collect();
        for held in done.into_iter().flat_map(|found| found.holds) {
            self.let_go(held);
        }
        !self.found.groups.is_empty() && !is_planted(Bug::FoundUnprotected)
    }

    /// Removes one reason to keep a group.
    pub fn let_go(&mut self, (index, id): (u32, GroupId)) {
        let group = &mut self.groups[index];
        if group.id == id {
            group.let_go();
        }
    }

    /// Lets go of groups kept for doubts. Called when nothing is doubted any more and the blocks
    /// that were written again are safe.
    pub fn let_go_of_doubted(&mut self) {
        for held in std::mem::take(&mut self.found.held_by_doubts) {
            self.let_go(held);
        }
    }
}

impl Horizons<'_> {
    /// Returns a sequence such that everything with a lower origin is safe.
    pub fn horizon(&self) -> u64 {
        let memories = self.groups.memories().map(|(_, memory)| memory.unsafe_from);
        memories.min().unwrap_or(u64::MAX).min(self.notes.origin())
    }

    /// Returns a lower bound of the sequences of all copies of blocks that may still be found
    /// anywhere.
    pub fn oldest_sequence(&self) -> u64 {
        if self.epoch.changes() {
            // An excluded donor may still belong to the disk after the client's death.
            return 0;
        }
        let groups = self.groups.iter().map(|(_, group)| group.first_sequence).min();
        let pending = self.donors.iter().map(Donor::pending_sequence).min();
        groups.unwrap_or(u64::MAX).min(pending.unwrap_or(u64::MAX)).min(self.trims_kept_from())
    }

    /// Returns a sequence just below the start of the checkpoint; `u64::MAX`: there is no
    /// checkpoint. Lists of trims with higher sequences are kept, because they may hide blocks that
    /// the pages contain.
    pub fn trims_kept_from(&self) -> u64 {
        let valid = self.checkpoints.valid.map(|valid| valid.sequence);
        let first = valid.or(self.checkpoints.round.as_ref().map(|round| round.sequence));
        first.filter(|_| !is_planted(Bug::CheckpointTrimDropped)).map_or(u64::MAX, |sequence| sequence - 1)
    }

    /// Lowest sequence of a list that was never safe and that the next opening may find;
    /// `u64::MAX`: none.
    pub fn torn_note(&self) -> u64 {
        if self.found.torn_notes.is_empty() {
            return u64::MAX;
        }
        let pending = self.donors.iter().map(Donor::erasing_sequence).min().unwrap_or(u64::MAX);
        let is_there =
            |&&(index, id, sequence): &&(u32, GroupId, u64)| self.groups[index].id == id || pending <= sequence;
        self.found.torn_notes.iter().filter(is_there).map(|&(_, _, sequence)| sequence).min().unwrap_or(u64::MAX)
    }

    /// The horizon that a header may name: every entry with a lower sequence is safe or does not
    /// count.
    pub fn sure_horizon(&self) -> u64 {
        let horizon = self.horizon();
        let unsure = |found: &Unprotected| found.is_unsure && found.remains(&self.groups, horizon);
        let is_sure = self.found.doubts.is_empty() && !self.found.groups.iter().any(unsure);
        let found = if is_sure { u64::MAX } else { self.found.horizon };
        let found = if is_planted(Bug::DoubtForgotten) { u64::MAX } else { found.min(self.torn_note()) };
        horizon.min(self.next_sequence).min(found)
    }
}
