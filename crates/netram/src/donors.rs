//! The engine's view of its donors: their states, their free units, and whether they can be written to now.
//!
//! Rules: a donor that is away keeps everything that is known of it, because it may come back as it was. A unit that was written
//! is erased before it is used again; one that a write may still reach from a dead connection is not used again at all.
//! Left out: how donors come and go (`membership`).

use std::collections::{HashSet, VecDeque};

use shoal_format::ram::{DONORS_MAX, DiskSuperblock, SUPERBLOCK_BYTES, UnitHeader};
use shoal_format::ram_checkpoint;

use crate::api::{DiskError, DonorId, DonorInfo};
use crate::state::{Member, State};
use crate::window::Log;

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

/// A unit whose header is to be erased before the unit is used again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Erase {
    pub unit: u32,
    /// Lowest sequence of what the header may list.
    pub first_sequence: u64,
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
    fn pending_sequence(&self) -> u64 {
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

impl State {
    /// Units a donor of this size has.
    pub fn units_of(&self, info: &DonorInfo) -> u32 {
        let (front, unit_bytes) = (SUPERBLOCK_BYTES as u64, self.unit_bytes());
        if self.checkpoints.enabled {
            return ram_checkpoint::units(info.bytes, front, unit_bytes, self.plan.buffer);
        }
        let room = info.bytes.saturating_sub(front) / unit_bytes as u64;
        room.min(u32::MAX as u64 - 1) as u32
    }

    /// Enters a donor that holds nothing, at the place of one that is gone or behind the others. `None`: there are too many.
    pub fn add_donor(&mut self, info: DonorInfo) -> Option<DonorId> {
        let born = self.next_born;
        self.next_born += 1;
        let donor = self.new_donor(info, born);
        let place = (0..self.donors.len()).find(|&place| self.is_vacant(place));
        match place {
            Some(place) => self.donors[place] = donor,
            None if self.donors.len() < DONORS_MAX => self.donors.push(donor),
            None => return None,
        }
        Some(place.unwrap_or(self.donors.len() - 1) as DonorId)
    }

    /// A birth is never used again.
    pub fn knows_births(&mut self, superblock: &DiskSuperblock) {
        let last = superblock.donors.iter().map(|place| place.born).max().unwrap_or(0);
        self.next_born = self.next_born.max(last + 1);
    }

    pub fn new_donor(&self, info: DonorInfo, born: u32) -> Donor {
        let units = self.units_of(&info);
        Donor {
            units,
            info,
            free: VecDeque::new(),
            blank_units: (0..units).rev().collect(),
            closed: VecDeque::new(),
            closed_blank: Vec::new(),
            logs: [None, None],
            announcing: false,
            erase: VecDeque::new(),
            erasing: Vec::new(),
            cuts: VecDeque::new(),
            cutting: None,
            tainted: HashSet::new(),
            tainted_sequence: u64::MAX,
            unknown: HashSet::new(),
            state: DonorState::Active,
            drains: false,
            born,
            blank: true,
            announced: false,
            epoch: 0,
            slot: None,
            stale: false,
            scanned: true,
            visit: 0,
            answered_ns: 0,
            refused_until_ns: 0,
            refusals: 0,
            missing_since_ns: 0,
        }
    }

    /// May another donor take this place? Nothing speaks of the last one any more.
    fn is_vacant(&self, place: usize) -> bool {
        let number = place as DonorId;
        self.donors[place].is_over()
            && self.epoch_stored
            && !self.schedule.is_asked(number)
            && !self.groups.iter().any(|group| group.is_on(number))
    }

    /// Can new units be put on it now?
    pub fn takes(&self, donor: usize) -> bool {
        let donor = &self.donors[donor];
        donor.state == DonorState::Active && self.now_ns >= donor.refused_until_ns
    }

    pub fn takers(&self) -> usize {
        (0..self.donors.len()).filter(|&donor| self.takes(donor)).count()
    }

    /// Can a unit be put on it now that leaves `reserve` free ones?
    pub fn is_roomy(&self, donor: usize, reserve: usize) -> bool {
        self.takes(donor) && self.donors[donor].free_units() > reserve
    }

    /// Donors a group could spread over now that leaves `reserve` free units on each.
    pub fn width(&self, reserve: usize) -> usize {
        let roomy = (0..self.donors.len()).filter(|&n| self.is_roomy(n, reserve)).count();
        (self.plan.data + self.plan.parity).min(roomy)
    }

    /// Donors that store what they are sent.
    pub fn healthy_donors(&self) -> usize {
        self.donors.iter().filter(|donor| donor.state == DonorState::Active && donor.refusals == 0).count()
    }

    pub fn patience_ns(&self) -> u64 {
        self.config.patience_ms as u64 * 1_000_000
    }

    /// Is a donor away that is expected back?
    pub fn awaits(&self) -> bool {
        self.donors.iter().any(|donor| match donor.state {
            DonorState::Missing => self.now_ns.saturating_sub(donor.missing_since_ns) < self.patience_ns(),
            DonorState::Returning => !donor.scanned,
            _ => false,
        })
    }

    /// The same, or does one refuse writes for the moment?
    pub fn expects(&self) -> bool {
        use DonorState::{Active, Draining, Joining};
        let refuses = |donor: &Donor| donor.refusals > 0 && self.now_ns < donor.refused_until_ns;
        let is_here = |donor: &Donor| matches!(donor.state, Active | Draining | Joining);
        self.awaits() || self.donors.iter().any(|donor| is_here(donor) && refuses(donor))
    }

    /// Why a write that has waited since `begun_ns` waits no longer.
    pub fn gives_up(&self, begun_ns: u64) -> Option<DiskError> {
        if let Some(error) = &self.failure {
            return Some(error.clone());
        }
        let (need, have) = (self.plan.parity + 1, self.healthy_donors());
        let long = |since: u64| self.now_ns.saturating_sub(since) > self.patience_ns();
        let over = (have < need && long(begun_ns)) || self.few_since_ns.is_some_and(long);
        over.then_some(DiskError::TooFewDonors { have, need })
    }

    /// Looks whether enough donors are there at all.
    pub fn count_donors(&mut self) {
        self.measure_room();
        let there = self.donors.iter().filter(|donor| donor.state == DonorState::Active).count();
        self.few_since_ns = match there < self.plan.parity + 1 {
            true => Some(self.few_since_ns.unwrap_or(self.now_ns)),
            false => None,
        };
    }

    /// No copy of a block that is still to be found anywhere has a lower sequence.
    pub fn oldest_sequence(&self) -> u64 {
        if self.epoch_changes {
            // A donor that was excluded may still be one of the disk's after the client's death.
            return 0;
        }
        let groups = self.groups.iter().filter(|group| group.id != 0).map(|group| group.first_sequence).min();
        let pending = self.donors.iter().map(Donor::pending_sequence).min();
        groups.unwrap_or(u64::MAX).min(pending.unwrap_or(u64::MAX)).min(self.trims_kept_from())
    }

    /// A unit nothing was sent to is free again.
    pub fn give_back(&mut self, member: Member) {
        let donor = &mut self.donors[member.donor as usize];
        if member.exists() && !donor.is_final() {
            donor.put_free(member.unit, false);
            self.stuck = false;
        }
        self.wake();
    }

    /// A unit that may have a header is erased, when its donor is there, and free then.
    pub fn erase_later(&mut self, member: Member, first_sequence: u64) {
        let donor = &mut self.donors[member.donor as usize];
        if member.exists() && !donor.is_final() {
            donor.erase.push_back(Erase { unit: member.unit, first_sequence });
        }
        self.wake();
    }
}
