//! Last resorts when a job waits for room and nothing is on its way that would make some.
//!
//! Rules: the job is asked once more first, because it may have got room. Then what waits in caches is sent; then
//! donors that were set aside are used, lists of trims are written, and abandoned groups are sent once more. Units that
//! are in quarantine are waited for. Then new groups become narrow, and drains are given up. Only then requests are told that there is no room. Left out: cleaning (`clean`).

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
    /// When a job waits for room and nothing is on its way, takes the next step that may make some. True if there is
    /// something to do now.
    pub fn unstick(&mut self, core: &Arc<Core>) -> bool {
        // A donor that is away or refuses may bring room.
        if self.is_opening_units() || self.expects() || self.takers() < self.plan.parity + 1 {
            return false;
        }
        match self.shortage.next(self.schedule.is_quiet()) {
            Wanted::Nothing => return false,
            Wanted::AskAgain => {
                self.wake();
                return true;
            }
            Wanted::Room => {}
        }
        let waiting = self.groups.memories().filter(|(_, memory)| memory.waits());
        let waiting: Vec<u32> = waiting.map(|(index, _)| index).collect();
        if waiting.is_empty() {
            self.last_resort(core);
        }
        for index in waiting {
            send(core, self, index, true);
        }
        self.wake();
        true
    }

    /// Nothing waits to be sent: the first of these that is possible.
    pub fn last_resort(&mut self, core: &Arc<Core>) {
        if self.use_those_aside() {
            return;
        }
        let has_notes = !self.notes.is_empty();
        if has_notes && self.has_room_to_clean() {
            // Groups that trims killed are freed when the trims are safe, and nobody may ever ask for a flush.
            let core = core.clone();
            self.schedule.spawn(async move { drop(write_trims(&core).await) });
            return;
        }
        if self.groups.in_memory().to_vec().into_iter().any(|index| revive(core, self, index)) {
            return;
        }
        if self.awaits_units() {
            self.shortage.wait_for_units();
        } else if !self.shortage.is_narrow() && self.width(RESERVE_UNITS) > self.plan.parity {
            self.shortage.set_narrow(true);
        } else if !give_up_drains(self) {
            self.shortage.give_up();
        }
    }
}

/// There is no room anywhere else at the moment: donors that were to be emptied stay in use, and their own room
/// helps. True if there were any.
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
