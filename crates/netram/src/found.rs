//! What opening found and is not safe yet: blocks that no parity covers, or that nobody knew to be safe when the former client died.
//!
//! Such blocks are read at opening, and count if they can be had. They may be there thanks to a unit or a row that is there only in
//! part, so they are written anew, in other groups. Rules, until that is safe:
//! - A flush does not end: it covers what its reader may have seen.
//! - Groups with older copies of these blocks are kept: when the client dies again, the newer copies may not be had any more.
//!   They are let go of group by group, because a full disk has no room to write everything anew first.
//! - No header says that anything more is safe than opening knew, and as long as a block is doubted: the next opening reads these
//!   entries again, whether they were there or not. The same for a list of trims that was never safe, until it is erased.
//!
//! Left out: what opening finds (`scan`), writing it anew (`repair`), what it could not tell (`doubt`).

use crate::donors::Donor;
use crate::group::Group;
use crate::planted::{Bug, is_planted};
use crate::state::State;

/// A group with such blocks.
pub(crate) struct Unprotected {
    /// Its place and its number.
    pub index: u32,
    pub id: u64,
    /// Nobody knew some of them to be safe.
    pub is_unsure: bool,
    /// Groups (place and number) with copies of them, older ones and its own.
    pub holds: Vec<(u32, u64)>,
}

#[derive(Default)]
pub(crate) struct FoundUnsafe {
    pub groups: Vec<Unprotected>,
    /// Groups kept for blocks that are doubted.
    pub held_by_doubts: Vec<(u32, u64)>,
    /// Lists of ranges that were never safe and are not needed: their groups (place and number), and their sequences. Of a block a
    /// newer copy says so; of a list nothing does, and the next opening would wait for one that it took for safe.
    pub torn_notes: Vec<(u32, u64, u64)>,
    /// What opening knew to be safe: all entries with a lower sequence.
    pub horizon: u64,
}

impl Unprotected {
    /// Is something of it not safe elsewhere yet?
    fn remains(&self, groups: &[Group], horizon: u64) -> bool {
        let group = &groups[self.index as usize];
        group.id == self.id && (group.live > 0 || group.killed > horizon)
    }
}

impl State {
    /// Is anything of what opening found still not safe? Lets go of what was kept for the rest.
    pub fn has_unprotected(&mut self) -> bool {
        if self.torn_note() == u64::MAX {
            self.found.torn_notes.clear();
        }
        if self.found.groups.is_empty() {
            return false;
        }
        let horizon = self.horizon();
        let groups = &self.groups;
        let done: Vec<_> = self.found.groups.extract_if(.., |found| !found.remains(groups, horizon)).collect();
        for held in done.into_iter().flat_map(|found| found.holds) {
            self.let_go(held);
        }
        !self.found.groups.is_empty() && !is_planted(Bug::FoundUnprotected)
    }

    /// One reason less to keep a group.
    fn let_go(&mut self, (index, id): (u32, u64)) {
        let group = &mut self.groups[index as usize];
        if group.id == id {
            group.let_go();
        }
    }

    /// Nothing is doubted any more, and what was written anew is safe.
    pub fn let_go_of_doubted(&mut self) {
        for held in std::mem::take(&mut self.found.held_by_doubts) {
            self.let_go(held);
        }
    }

    /// The lowest sequence of a list that was never safe and that the next opening may find.
    fn torn_note(&self) -> u64 {
        if self.found.torn_notes.is_empty() {
            return u64::MAX;
        }
        let pending = self.donors.iter().map(Donor::erasing_sequence).min().unwrap_or(u64::MAX);
        let is_there =
            |&&(index, id, sequence): &&(u32, u64, u64)| self.groups[index as usize].id == id || pending <= sequence;
        self.found.torn_notes.iter().filter(is_there).map(|&(_, _, sequence)| sequence).min().unwrap_or(u64::MAX)
    }

    /// What a header may say: every entry with a lower sequence was safe, or does not count.
    pub fn sure_horizon(&self) -> u64 {
        let horizon = self.horizon();
        let unsure = |found: &Unprotected| found.is_unsure && found.remains(&self.groups, horizon);
        let is_sure = self.doubts.is_empty() && !self.found.groups.iter().any(unsure);
        let found = if is_sure { u64::MAX } else { self.found.horizon };
        let found = if is_planted(Bug::DoubtForgotten) { u64::MAX } else { found.min(self.torn_note()) };
        horizon.min(self.next_sequence).min(found)
    }
}
