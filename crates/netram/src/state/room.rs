//! Room: whether the disk can do without a donor, and moving units from full donors to empty ones.
//!
//! Rules:
//! - While the present donors cannot hold the whole disk, writes to blocks that hold nothing are
//!   refused before the room runs out. The rest is for cleaning, so that existing blocks can still
//!   be overwritten and trimmed.
//! - A donor is emptied only when what is stored fits on the others, not counting what is kept for
//!   open groups and cleaning, and with some room to work in. A drain that does not fit would fill
//!   the others completely, and nothing could be written any more.
//! - Two units of a group never share a donor, nor a failure domain, so room on one donor alone is useless. When room is
//!   short and one donor has much more of it than another, units move from the fullest to the
//!   emptiest. This happens after a donor has joined, and after a drain was given up.
//!
//! Left out: moving a unit (`repair`), cleaning.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::DonorId;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::donors::{Donor, DonorState};
use crate::state::place::Member;
use crate::views::Room;

/// Share of the room that may hold data while the donors cannot hold the whole disk (percent). With
/// less room left, cleaning would gain nothing in the end.
const TIGHT_PERCENT: u64 = 95;

/// How much data must fit on the other donors when one leaves, and how much room they have (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainRoom {
    pub stored_bytes: u64,
    pub room_bytes: u64,
}

impl DrainRoom {
    pub fn fits(&self) -> bool {
        self.stored_bytes <= self.room_bytes
    }
}

/// Units of each donor that only cleaning and repair may take.
pub(crate) const RESERVE_UNITS: usize = 4;

/// Units of the reserve that repair leaves: without cleaning it would have no room in the end.
pub(crate) const CLEANING_UNITS: usize = RESERVE_UNITS - 1;

/// Units of the reserve that only lists of ranges may take: dead groups are freed once the lists
/// are written.
pub(crate) const NOTE_UNITS: usize = 1;

/// Groups that should be free to open before a writer has to wait.
pub(crate) const GROUPS_AHEAD: usize = 4;

impl State {
    /// Takes a unit in each of the `count` emptiest domains, leaving `reserve` free units on each donor.
    pub fn take_units(&mut self, count: usize, reserve: usize) -> Option<Vec<Member>> {
        let turn = self.groups.next_number().get() as usize;
        let donors = self.donors.len();
        let mut order: Vec<usize> = (0..donors).filter(|&n| self.roster().is_roomy(n, reserve)).collect();
        let free = self.free_by_domain(&order);
        let emptiest = |&n: &usize| (usize::MAX - self.donors[n].units.free(), (n + turn) % donors);
        order.sort_by_key(emptiest);
        // Of each domain its emptiest donor, and the domains with most room first.
        let mut taken = BTreeSet::new();
        order.retain(|&n| taken.insert(self.roster().domain(n)));
        if order.len() < count {
            return None;
        }
        order.sort_by_key(|n| (usize::MAX - free[&self.roster().domain(*n)], emptiest(n)));
        order.truncate(count);
        // The last members are parity.
        order.sort_unstable();
        if !self.config.dedicated_parity {
            order.rotate_left(turn % count);
        }
        let take = |n: usize| {
            let unit = self.donors[n].units.take().expect("there is a free unit");
            Member { donor: n as DonorId, unit, count: 0 }
        };
        Some(order.into_iter().map(take).collect())
    }

    /// Takes a unit in a domain that has none of the group's, leaving `reserve` free units there.
    /// `may_have`: whether a donor may have it.
    pub fn take_unit_beside(
        &mut self,
        members: &[Member],
        reserve: usize,
        may_have: impl Fn(DonorId) -> bool,
    ) -> Option<Member> {
        let domain = |n: usize| self.roster().domain(n);
        let shares = |member: &Member, n: usize| match is_planted(Bug::DomainShared) {
            true => member.is_on(n as DonorId),
            false => member.exists() && domain(member.donor.into()) == domain(n),
        };
        let taken = |n: usize| members.iter().any(|member| shares(member, n));
        let candidates = (0..self.donors.len())
            .filter(|&n| self.roster().is_roomy(n, reserve) && !taken(n) && may_have(n as DonorId));
        let donor = candidates.max_by_key(|&n| self.donors[n].units.free())?;
        let unit = self.donors[donor].units.take().expect("there is a free unit");
        Some(Member { donor: donor as DonorId, unit, count: 0 })
    }

    /// Number of free units in each domain of these donors.
    fn free_by_domain(&self, donors: &[usize]) -> BTreeMap<u32, usize> {
        let mut free = BTreeMap::new();
        for &n in donors {
            *free.entry(self.roster().domain(n)).or_default() += self.donors[n].units.free();
        }
        free
    }

    /// Measures how many blocks the present donors can hold.
    pub fn measure_room(&mut self) {
        let blocks = self.room().room_without(None);
        self.shortage.set_room(blocks);
    }
}

impl Room<'_> {
    /// Number of groups of full width that the donors could hold together.
    pub fn groups_max(&self) -> u64 {
        let width = self.plan.data + self.plan.parity;
        let units = self.units_by_domain((0..self.donors.len()).map(|n| (n, self.donors[n].units.count().into())));
        groups_of(&units, width)
    }

    /// Number of blocks that a disk over the present donors may have: what they can hold, less the spare share. A disk
    /// without that share may refuse to overwrite its last blocks.
    pub fn largest_disk(&self) -> u64 {
        let usable = self.groups_beside(|_| false) * self.map.slots() as u64;
        (usable * 100 / (100 + u64::from(self.config.spare_percent))).min(u64::from(shoal_format::ram::LOST) - 1)
    }

    /// Number of groups that are not available for data: open ones, and room to clean in.
    pub fn groups_kept(&self) -> u64 {
        self.open.caches() as u64 + RESERVE_UNITS as u64 + 2
    }

    /// Returns whether writers can open `groups` groups.
    pub fn has_room(&self, groups: usize) -> bool {
        let width = (self.plan.data + self.plan.parity).min(self.roster().takers());
        let reserve = self.writers_reserve() + groups - 1;
        let roomy = (0..self.donors.len()).filter(|&n| self.roster().is_roomy(n, reserve));
        self.roster().domains(roomy) >= width
    }

    /// Number of groups that the blocks that are not safe yet would fill if a donor were lost now. No dead group is
    /// freed before these blocks are safe, so their room must be free already.
    fn exposed(&self) -> usize {
        let blocks: usize = self.groups.memories().map(|(_, memory)| memory.blocks_not_safe()).sum();
        let width = (self.plan.data + self.plan.parity).min(self.roster().takers().saturating_sub(1));
        let data = width.saturating_sub(self.plan.parity).max(1);
        // The cleaner may be filling one more group.
        blocks.div_ceil(data * self.plan.buffer) + 1
    }

    /// Units of each donor that writers leave free: for cleaning, and for what the loss of a donor would move.
    pub fn writers_reserve(&self) -> usize {
        RESERVE_UNITS + self.exposed()
    }

    /// Returns whether the cleaner can go on.
    pub fn has_room_to_clean(&self) -> bool {
        self.open.cleaners().is_some() || self.roster().width(0) > self.plan.parity
    }

    /// Returns whether the stored data would fit without this donor.
    pub fn drain_room(&self, leaving: DonorId) -> DrainRoom {
        let bytes = |blocks: u64| blocks * self.shape.block_bytes as u64;
        DrainRoom { stored_bytes: bytes(self.map.mapped()), room_bytes: bytes(self.room_without(Some(leaving))) }
    }

    /// Returns whether there is no room for this block, which holds nothing so far.
    pub fn is_beyond_room(&self, block: u32) -> bool {
        self.map.mapped() >= self.shortage.room_blocks() && self.map.find(block).is_none()
    }

    /// Number of blocks that fit on the donors that stay.
    pub fn room_without(&self, leaving: Option<DonorId>) -> u64 {
        match leaving {
            Some(leaving) => self.room_beside(|number| number == usize::from(leaving)),
            None if self.blocks_beside(|_| false) >= self.map.blocks() => self.map.blocks(),
            None => self.room_beside(|_| false),
        }
    }

    /// Number of blocks that fit on the donors that stay if several leave. Those that stay keep
    /// room to work in, even if the disk is small.
    pub fn room_beside(&self, leaves: impl Fn(usize) -> bool) -> u64 {
        self.map.blocks().min(self.blocks_beside(leaves) * TIGHT_PERCENT / 100)
    }

    /// Adds up the units of the donors of each domain: a group has one unit there.
    fn units_by_domain(&self, units: impl Iterator<Item = (usize, u64)>) -> Vec<u64> {
        let mut domains: BTreeMap<u32, u64> = BTreeMap::new();
        units.for_each(|(number, units)| *domains.entry(self.roster().domain(number)).or_default() += units);
        domains.into_values().collect()
    }

    /// Number of blocks for which the donors that stay have units.
    fn blocks_beside(&self, leaves: impl Fn(usize) -> bool) -> u64 {
        let (groups, width) = self.groups_and_width(leaves);
        groups * (width.saturating_sub(self.plan.parity) * self.plan.buffer) as u64
    }

    /// Number of groups of full width for which the donors that stay have units; 0 if a group would be narrower.
    pub fn groups_beside(&self, leaves: impl Fn(usize) -> bool) -> u64 {
        let (groups, width) = self.groups_and_width(leaves);
        if width == self.plan.data + self.plan.parity { groups } else { 0 }
    }

    /// Number of groups that the donors that stay can hold, beside those kept for cleaning, and their width.
    fn groups_and_width(&self, leaves: impl Fn(usize) -> bool) -> (u64, usize) {
        let stays = |&(number, donor): &(usize, &Donor)| {
            !leaves(number) && matches!(donor.state, DonorState::Active | DonorState::Joining)
        };
        // Units that a broken connection may still write to are not used.
        let usable = |donor: &Donor| (donor.units.count() as u64).saturating_sub(donor.units.tainted());
        let there = self.donors.iter().enumerate().filter(stays);
        let units = self.units_by_domain(there.map(|(number, donor)| (number, usable(donor))));
        let width = (self.plan.data + self.plan.parity).min(units.len());
        let groups = match width > self.plan.parity {
            true => groups_of(&units, width).saturating_sub(self.groups_kept()),
            false => 0,
        };
        (groups, width)
    }
}

/// Returns how many groups of this width fit in domains with these numbers of units.
pub(crate) fn groups_of(units: &[u64], width: usize) -> u64 {
    let width = width as u64;
    let fits = |groups: u64| units.iter().map(|&units| units.min(groups)).sum::<u64>() >= groups * width;
    let (mut low, mut high) = (0, units.iter().sum::<u64>() / width);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::{DonorInfo, Policy};

    fn state(donors: &[u64], parity: u8) -> State {
        let config = Config { policy: Policy::Adaptive, parity, ..Config::default() };
        let mut state = State::new(&config, config.plan(donors.len()).unwrap(), 0);
        for (number, mib) in donors.iter().enumerate() {
            let info = DonorInfo { name: format!("donor{number}"), bytes: mib << 20, domain: 0 };
            state.add_donor(info).unwrap();
        }
        state.map.reset((donors.iter().sum::<u64>() << 20) / 2 / 4096);
        state
    }

    #[test]
    fn a_drain_fits_while_the_others_have_room_beside_what_is_kept() {
        let mut state = state(&[64, 64, 64, 64], 1);
        let room = state.room().drain_room(0).room_bytes;
        // Two data units of three, less headers and what is kept.
        assert!(room > 114 << 20 && room < 122 << 20, "{room}");
        state.map.pretend_mapped(room / state.shape.block_bytes as u64);
        assert!(state.room().drain_room(0).fits());
        state.map.pretend_mapped(state.map.mapped() + 1);
        assert!(!state.room().drain_room(0).fits());
    }

    #[test]
    fn blocks_that_hold_nothing_are_refused_only_while_the_donors_cannot_hold_the_disk() {
        let mut state = state(&[64, 64, 64, 64], 1);
        state.map.pretend_mapped(state.map.blocks() - 1);
        state.measure_room();
        assert!(!state.room().is_beyond_room(0));
        state.donors[3].state = DonorState::Missing;
        state.measure_room();
        assert!(state.room().is_beyond_room(0));
        state.map.pretend_mapped(state.shortage.room_blocks() - 1);
        assert!(!state.room().is_beyond_room(0));
        state.donors[3].state = DonorState::Active;
        state.measure_room();
        assert_eq!(state.shortage.room_blocks(), state.map.blocks());
    }

    #[test]
    fn too_few_donors_have_no_room_however_large_they_are() {
        let mut state = state(&[64, 64], 1);
        assert_eq!(state.room().drain_room(1).room_bytes, 0);
        assert!(state.room().drain_room(1).fits(), "nothing is stored");
        state.map.pretend_mapped(1);
        assert!(!state.room().drain_room(1).fits());
        let three = self::state(&[64, 64, 1024], 1);
        assert!(three.room().drain_room(2).room_bytes < 64 << 20, "a copy of each block is on both");
        assert_eq!(three.room().drain_room(0).room_bytes, three.room().drain_room(1).room_bytes);
    }
}
