//! Levelling: moving units between donors: apart from others of their failure domain, and from a full donor to an
//! empty one.
//!
//! Rules: one unit at a time moves. Units that share a domain come first. Then units go from the fullest donor to the
//! emptiest, when room is short, or when a rebalance was asked for (`state::balance`). A unit that could not be moved
//! is left for a while. Left out: moving a unit (`repair`), how much room there is (`state::room`).

use std::sync::Arc;

use crate::api::DonorId;
use crate::state::State;
use crate::state::donors::Donor;
use crate::state::place::Member;
use crate::state::retry::needs_repair;
use crate::state::room::{GROUPS_AHEAD, RESERVE_UNITS};
use crate::task::{Core, pause};
use crate::upkeep::empty::empty;
use crate::upkeep::repair::{self, Move};

/// Donors whose free units differ by less than this are level.
const UNEVEN_UNITS: usize = 16;

/// Donors whose free units differ by less than this are level even when a job waits for room. With
/// a smaller difference one more move would only reverse it.
const UNEVEN_MIN: usize = 2;

/// Delay before the next search if no unit could be moved (ns).
const LOOK_AGAIN_NS: u64 = 1_000_000_000;

/// A disk that had a request within this time is busy (ns).
const BUSY_NS: u64 = 50_000_000;

/// Delay after a failed move (ns).
const FAILED_NS: u64 = 50_000_000;

impl State {
    /// Chooses the group with the unit to move, and where the unit goes.
    fn next_to_level(&mut self) -> Option<(u32, Move)> {
        if !self.ready || !self.leveling.is_due(self.now_ns) {
            return None;
        }
        if let Some(found) = self.next_to_part() {
            return Some(found);
        }
        if self.room().has_room(GROUPS_AHEAD) {
            return self.next_to_balance();
        }
        // Units being erased will be free soon.
        let room = |donor: &Donor| donor.units.free_soon();
        let there = || (0..self.donors.len()).filter(|&number| self.roster().takes(number));
        let full = there().min_by_key(|&number| room(&self.donors[number]))?;
        let empty = there().max_by_key(|&number| self.donors[number].units.free())?;
        let is_urgent = (self.repairs.drain_waits() || self.shortage.is_stuck()) && !self.room().has_room(1);
        let uneven = if is_urgent { UNEVEN_MIN } else { UNEVEN_UNITS };
        if self.donors[empty].units.free() < room(&self.donors[full]) + uneven {
            return self.next_to_balance();
        }
        let found = self.find_to_move(|index| self.fits_between(index, full as DonorId, empty as DonorId));
        match found.is_none() && self.balance.is_running() {
            true => self.next_to_balance(),
            false => self.moves_next(found),
        }
    }

    /// Returns the way of a group's unit from one donor to another, if it has one there and may have it here.
    fn fits_between(&self, index: u32, from: DonorId, to: DonorId) -> Option<Move> {
        let members = &self.groups[index].members;
        let beside = |member: &Member| {
            let same = self.roster().domain(member.donor.into()) == self.roster().domain(to.into());
            member.exists() && !member.is_on(from) && same
        };
        let leaves = members.iter().any(|member| member.is_on(from) && member.count > 0);
        let fits = !members.iter().any(|member| beside(member) || member.is_on(to));
        (leaves && fits).then_some(Move { from, to: Some(to) })
    }

    /// Chooses the next unit of a rebalance. It waits while groups are repaired, and ends when no unit is left to
    /// move.
    fn next_to_balance(&mut self) -> Option<(u32, Move)> {
        if !self.balance.is_running() || self.repairs.is_running() {
            return None;
        }
        for (full, empty) in self.uneven_pairs() {
            let roomy = self.roster().is_roomy(empty.into(), RESERVE_UNITS + GROUPS_AHEAD);
            let found = self.find_to_move(|index| self.fits_between(index, full, empty).filter(|_| roomy));
            if found.is_some() {
                return self.moves_next(found);
            }
        }
        self.balance.end();
        None
    }

    /// Chooses a group with two units in one domain, and the donor that one of them leaves.
    fn next_to_part(&mut self) -> Option<(u32, Move)> {
        if !self.domains.shared || self.domains.in_force || !self.domains.is_due(self.now_ns) {
            return None;
        }
        let found = self.find_to_move(|index| {
            let members = &self.groups[index].members;
            self.roster().sharing(members).map(|member| Move { from: member.donor, to: None })
        });
        match found {
            Some((index, _)) => self.leveling.moves(index),
            None => self.domains.wait(self.now_ns),
        }
        found
    }

    /// Finds a group with a unit to move that rests, from where the last search ended: the groups before it have been
    /// moved. `leaves`: the way of a unit of the group.
    fn find_to_move(&self, leaves: impl Fn(u32) -> Option<Move>) -> Option<(u32, Move)> {
        let rests = |&index: &u32| {
            let group = &self.groups[index];
            let is_sealed = group.exists() && group.live() > 0 && !group.is_in_memory() && !group.is_busy();
            is_sealed && !needs_repair(self, index)
        };
        let groups = self.groups.places();
        let begin = self.leveling.from().min(groups);
        (begin..groups).chain(0..begin).filter(rests).find_map(|index| Some((index, leaves(index)?)))
    }

    /// Returns whether a group has more units than there are domains, and there is room for its blocks elsewhere.
    fn must_narrow(&self, index: u32) -> bool {
        let members = &self.groups[index].members;
        let units = members.iter().filter(|member| member.exists()).count();
        self.roster().sharing(members).is_some() && units > self.roster().takers() && self.room().has_room(2)
    }

    /// Records what a search found.
    fn moves_next(&mut self, found: Option<(u32, Move)>) -> Option<(u32, Move)> {
        match found {
            Some((index, _)) => self.leveling.moves(index),
            None => self.leveling.wait_until(self.now_ns + LOOK_AGAIN_NS),
        }
        found
    }
}

/// Levels donors, one unit after the other. Runs as long as the disk.
pub(crate) async fn leveler(core: Arc<Core>) {
    loop {
        let (index, way) = core
            .until(|state| {
                let found = state.next_to_level()?;
                state.groups.claim(found.0);
                Some(found)
            })
            .await;
        let begun = core.lock().now_ns;
        let mut moved = repair::move_off(&core, index, way).await;
        if !moved && core.lock().must_narrow(index) {
            // There are fewer domains than it has units. Its blocks go into narrower groups.
            empty(&core, index).await;
            moved = core.lock().groups[index].live() == 0;
        }
        let rest = {
            let state = &mut *core.lock();
            state.release(index);
            if moved {
                state.balance.moved();
            } else {
                state.leveling.wait_until(state.now_ns + FAILED_NS);
                if way.to.is_none() {
                    state.domains.wait(state.now_ns);
                }
            }
            // Beside requests, a rebalance works half of the time.
            let is_busy = state.now_ns.saturating_sub(state.last_request_ns) < BUSY_NS;
            let has_time = state.balance.is_running() && is_busy && state.room().has_room(GROUPS_AHEAD);
            if has_time { state.now_ns - begun } else { 0 }
        };
        if rest > 0 {
            pause(&core, rest).await;
        }
    }
}
