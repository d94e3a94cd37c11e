//! Last resorts when a job waits for room and nothing in flight would make some.
//!
//! Rules: the job is asked once more first, because it may have room by now. Then blocks that wait
//! in caches are sent. Then donors that were set aside are used, lists of trims are written, and
//! abandoned groups are sent once more. Units in quarantine, and units with a late write, are waited
//! for. Then new groups become narrow, and drains are given up. Only after that are requests told
//! that there is no room. If too few donors take new groups, only drains are given up. Left out:
//! cleaning (`clean`).

use std::sync::Arc;

use crate::requests::abandon::revive;
use crate::requests::send::send;
use crate::requests::trims::write_trims;
use crate::state::State;
use crate::state::donors::DonorState;
use crate::state::retry::try_again;
use crate::state::room::RESERVE_UNITS;
use crate::state::shortage::Wanted;
use crate::task::Core;

impl State {
    /// Takes the next step that may make room, if a job waits for room and nothing is in flight.
    /// Returns whether there is something to do now.
    pub fn unstick(&mut self, core: &Arc<Core>) -> bool {
        // A donor that is away or refuses may bring room.
        if self.window().is_opening_units() || self.roster().expects() {
            return false;
        }
        let is_short_of_donors = self.is_short_of_donors();
        if is_short_of_donors && !self.donors.iter().any(|donor| donor.state == DonorState::Draining) {
            return false;
        }
        if self.shortage.waits_for_units() && !self.roster().awaits_units() {
            // The donor with the units is gone, or the wait ended without a unit to free.
            self.shortage.may_have_room();
        }
        match self.shortage.next(self.schedule.is_quiet()) {
            Wanted::Nothing => return false,
            Wanted::AskAgain => {
                self.wake();
                return true;
            }
            Wanted::Room if is_short_of_donors => return give_up_drains(self),
            Wanted::Room => {}
        }
        let waiting = self.groups.memories().filter(|(_, memory)| memory.waits());
        let waiting: Vec<u32> = waiting.map(|(index, _)| index).collect();
        if waiting.is_empty() {
            self.last_resort(core);
        }
        for index in waiting {
            send(core, self, index);
        }
        self.wake();
        true
    }

    /// Returns whether fewer donors take new groups than a group needs.
    pub fn is_short_of_donors(&self) -> bool {
        self.roster().takers() < self.plan.parity + 1
    }

    /// Takes the first of these steps that is possible. Nothing waits to be sent.
    pub fn last_resort(&mut self, core: &Arc<Core>) {
        if self.use_those_aside() {
            return;
        }
        let has_notes = !self.notes.is_empty();
        if has_notes && self.room().has_room_to_clean() {
            // Groups that trims killed are freed when the trims are safe, and there may never be a
            // request to flush.
            let core = core.clone();
            self.schedule.spawn(async move { drop(write_trims(&core).await) });
            return;
        }
        if self.groups.in_memory().to_vec().into_iter().any(|index| revive(core, self, index)) {
            return;
        }
        if self.roster().awaits_units() {
            self.shortage.wait_for_units();
        } else if !self.shortage.is_narrow() && self.roster().width(RESERVE_UNITS) > self.plan.parity {
            self.shortage.set_narrow(true);
        } else if !give_up_drains(self) {
            self.shortage.give_up();
        }
    }
}

/// Keeps donors in use that were being drained: there is no room elsewhere at the moment, and their
/// own room helps. Returns whether there were any.
pub(crate) fn give_up_drains(state: &mut State) -> bool {
    let mut any = false;
    for donor in &mut state.donors {
        if donor.state == DonorState::Draining {
            (donor.state, donor.drains, any) = (DonorState::Active, false, true);
        }
    }
    if any {
        state.repairs.no_drain_waits();
        state.count_donors();
        try_again(state);
        state.wake();
    }
    any
}
