//! The engine's view of its donors: their states, their free units, and whether they can be written to now.
//!
//! Rules: a donor that is away keeps everything that is known of it, because it may come back as it was. A unit that was written
//! is erased before it is used again; one that a write may still reach from a dead connection is not used again at all.
//! Left out: how donors come and go (`membership`).

use std::collections::{HashSet, VecDeque};

use shoal_format::ram::UnitHeader;

use crate::api::DonorInfo;
use crate::planted::{Bug, is_planted};
use crate::units::{Erase, Log};

/// A donor that refused a write gets none for so long (ns), and twice as long each time.
pub(crate) const REFUSED_NS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DonorState {
    Active,
    /// Does not know yet that it belongs to the disk; takes nothing.
    Joining,
    /// It was away while the disk was opened: what it holds is being looked at; takes nothing.
    Returning,
    /// Being emptied; takes nothing new.
    Draining,
    /// Not to be reached. It may come back with all it held.
    Missing,
    /// Given up for good. The disk still refers to it.
    Forgotten,
    /// Empty, and not used any more.
    Drained,
    /// Not needed any more, or given up for good.
    Lost,
}

pub(crate) struct Donor {
    pub info: DonorInfo,
    pub units: u32,
    /// Free units that may have memory, the next one to take last.
    pub free: VecDeque<u32>,
    /// Free units whose memory was given back.
    pub blank_units: Vec<u32>,
    /// Free units that no list names yet, which a checkpoint that counts needs (`window`): with memory, and without.
    pub closed: VecDeque<u32>,
    pub closed_blank: Vec<u32>,
    /// Of the checkpoint that counts, and of the next one.
    pub logs: [Option<Log>; 2],
    /// A list is on its way.
    pub announcing: bool,
    /// Units to be erased, and those being erased.
    pub erase: VecDeque<Erase>,
    pub erasing: Vec<Erase>,
    /// Headers that list more than is known, as they are to be.
    pub cuts: VecDeque<(u32, UnitHeader)>,
    /// The unit whose header is being made shorter.
    pub cutting: Option<u32>,
    /// Units that a write may still reach from a connection that is over: not used again before the disk is opened anew.
    pub tainted: HashSet<u32>,
    /// Lowest sequence in them.
    pub tainted_sequence: u64,
    /// Units with changes in flight when the donor went away.
    pub unknown: HashSet<u32>,
    pub state: DonorState,
    /// It was to be emptied when it went away.
    pub drains: bool,
    pub born: u32,
    /// Its superblock may be anything.
    pub blank: bool,
    /// It joins, and so many donors know its birth that any later opening meets one of them.
    pub announced: bool,
    /// The epoch of the superblock it has.
    pub epoch: u64,
    /// The slot of its superblock that it has.
    pub slot: Option<usize>,
    /// It was away when the disk was opened, and nothing of what it holds was looked at since.
    pub stale: bool,
    /// Its units have been looked at.
    pub scanned: bool,
    /// Counts its returns.
    pub visit: u64,
    /// When it last answered.
    pub answered_ns: u64,
    /// It refused writes: none are sent until then.
    pub refused_until_ns: u64,
    pub refusals: u32,
    pub missing_since_ns: u64,
}

impl DonorState {
    /// Will nothing of the donor ever be back?
    pub fn is_final(self) -> bool {
        matches!(self, DonorState::Lost | DonorState::Drained | DonorState::Forgotten)
    }

    /// Is the donor there, and one of the disk's or about to be?
    pub fn is_in_use(self) -> bool {
        matches!(self, DonorState::Active | DonorState::Joining | DonorState::Returning | DonorState::Draining)
    }
}

impl Donor {
    /// Nothing can be asked of it.
    pub fn is_absent(&self) -> bool {
        !self.state.is_in_use()
    }

    /// Will nothing of it ever be back?
    pub fn is_final(&self) -> bool {
        self.state.is_final()
    }

    /// Does the disk refer to it no more? Its place is free when what it was asked is answered.
    pub fn is_over(&self) -> bool {
        matches!(self.state, DonorState::Lost | DonorState::Drained)
    }

    /// May units stay on it?
    pub fn keeps(&self) -> bool {
        matches!(self.state, DonorState::Active | DonorState::Returning)
    }

    /// Could opening look at its units, and has not?
    pub fn is_unseen(&self) -> bool {
        self.counts() && !self.is_absent() && !self.stale && !self.scanned
    }

    /// Does it hold anything of the disk?
    pub fn counts(&self) -> bool {
        use DonorState::{Active, Draining, Forgotten, Missing, Returning};
        matches!(self.state, Active | Draining | Missing | Returning | Forgotten)
    }

    /// Its units are nobody's business any more.
    pub fn release(&mut self) {
        self.free.clear();
        self.blank_units.clear();
        self.closed.clear();
        self.closed_blank.clear();
        self.logs = [None, None];
        self.erase.clear();
        self.erasing.clear();
        self.cuts.clear();
        self.tainted.clear();
        self.unknown.clear();
        self.tainted_sequence = u64::MAX;
    }

    pub fn free_units(&self) -> usize {
        self.free.len() + self.blank_units.len()
    }

    /// A free unit, rather one with memory.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop_back().or_else(|| self.blank_units.pop())
    }

    /// Lowest sequence of what its units list that are still to be erased.
    pub fn pending_sequence(&self) -> u64 {
        self.erasing_sequence().min(self.tainted_sequence)
    }

    /// The same without units that nothing but a late write could bring back.
    pub fn erasing_sequence(&self) -> u64 {
        let pending = self.erase.iter().chain(&self.erasing).map(|erase| erase.first_sequence).min();
        // What a donor that was not looked at holds is not known.
        let unseen = if self.counts() && !self.is_final() && !self.scanned { 0 } else { u64::MAX };
        pending.unwrap_or(u64::MAX).min(unseen)
    }
}

impl Donor {
    /// The logs of the checkpoint that counts, and of the one that is being made.
    pub fn logs(&mut self) -> impl Iterator<Item = &mut Log> {
        self.logs.iter_mut().flatten()
    }

    /// A unit that nothing is left of is free.
    pub fn put_free(&mut self, unit: u32, has_memory: bool) {
        let mut open = true;
        for log in self.logs() {
            if !log.listed {
                log.open.set(unit as usize, true);
            }
            open &= log.open.get(unit as usize);
        }
        match (open || is_planted(Bug::ClosedUsed), has_memory) {
            (true, true) => self.free.push_back(unit),
            (true, false) => self.blank_units.push(unit),
            (false, true) => self.closed.push_back(unit),
            (false, false) => self.closed_blank.push(unit),
        }
    }

    /// What is closed without a reason any more is open.
    pub fn reopen(&mut self) {
        let (closed, blank) = (std::mem::take(&mut self.closed), std::mem::take(&mut self.closed_blank));
        blank.into_iter().for_each(|unit| self.put_free(unit, false));
        closed.into_iter().for_each(|unit| self.put_free(unit, true));
    }

    /// Closes free units but so many.
    pub fn close_all_but(&mut self, ahead: usize) {
        let from_free = self.free.len().saturating_sub(ahead);
        self.closed.extend(self.free.drain(..from_free));
        let left = self.blank_units.len().min(ahead - self.free.len());
        let kept = self.blank_units.split_off(self.blank_units.len() - left);
        let closed = std::mem::replace(&mut self.blank_units, kept);
        match self.closed_blank.is_empty() {
            true => self.closed_blank = closed,
            false => self.closed_blank.extend(closed),
        }
    }

    /// Free units, also those that a list must name first.
    pub fn all_free_units(&self) -> usize {
        self.free_units() + self.closed.len() + self.closed_blank.len()
    }

    /// Are the lists of a round being written?
    pub fn is_listing(&self) -> bool {
        self.logs.iter().flatten().any(|log| log.writing)
    }

    pub fn has_closed(&self) -> bool {
        !self.closed.is_empty() || !self.closed_blank.is_empty()
    }
}
