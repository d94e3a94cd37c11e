//! Levelling: moving units from a full donor to an empty one.
//!
//! Rules: one unit at a time moves from the fullest donor to the emptiest, and only when room is
//! short. A unit that could not be moved is left for a while. Left out: moving a unit (`repair`),
//! how much room there is (`state::room`).

use std::sync::Arc;

use crate::api::DonorId;
use crate::state::State;
use crate::state::donors::Donor;
use crate::state::retry::needs_repair;
use crate::state::room::GROUPS_AHEAD;
use crate::task::Core;
use crate::upkeep::repair;

/// Donors whose free units differ by less than this are level.
const UNEVEN_UNITS: usize = 16;

/// Donors whose free units differ by less than this are level even when a job waits for room. With
/// a smaller difference one more move would only reverse it.
const UNEVEN_MIN: usize = 2;

/// Delay before the next search if no unit could be moved (ns).
const LOOK_AGAIN_NS: u64 = 1_000_000_000;

/// Delay after a failed move (ns).
const FAILED_NS: u64 = 50_000_000;

impl State {
    /// Chooses the group with the unit to move, and the donor that the unit leaves.
    fn next_to_level(&mut self) -> Option<(u32, DonorId)> {
        if !self.ready || !self.leveling.is_due(self.now_ns) || self.room().has_room(GROUPS_AHEAD) {
            return None;
        }
        // Units being erased will be free soon.
        let room = |donor: &Donor| donor.units.free_soon();
        let there = || (0..self.donors.len()).filter(|&number| self.roster().takes(number));
        let full = there().min_by_key(|&number| room(&self.donors[number]))?;
        let empty = there().max_by_key(|&number| self.donors[number].units.free())?;
        let is_urgent = (self.repairs.drain_waits() || self.shortage.is_stuck()) && !self.room().has_room(1);
        let uneven = if is_urgent { UNEVEN_MIN } else { UNEVEN_UNITS };
        if self.donors[empty].units.free() < room(&self.donors[full]) + uneven {
            return None;
        }
        let moves = |index: &u32| {
            let group = &self.groups[*index];
            let rests = group.exists()
                && group.live() > 0
                && !group.is_in_memory()
                && !group.is_busy()
                && !needs_repair(self, *index);
            rests && group.is_on(full as DonorId) && !group.is_on(empty as DonorId)
        };
        // Begin where the last search ended: the groups before it have been moved.
        let groups = self.groups.places();
        let begin = self.leveling.from().min(groups);
        let found = (begin..groups).chain(0..begin).find(moves);
        let Some(index) = found else {
            self.leveling.wait_until(self.now_ns + LOOK_AGAIN_NS);
            return None;
        };
        self.leveling.moves(index);
        Some((index, full as DonorId))
    }
}

/// Levels donors, one unit after the other. Runs as long as the disk.
pub(crate) async fn leveler(core: Arc<Core>) {
    loop {
        let (index, from) = core
            .until(|state| {
                let found = state.next_to_level()?;
                state.groups.claim(found.0);
                Some(found)
            })
            .await;
        let moved = repair::move_off(&core, index, from).await;
        let state = &mut *core.lock();
        state.release(index);
        if !moved {
            state.leveling.wait_until(state.now_ns + FAILED_NS);
        }
    }
}
