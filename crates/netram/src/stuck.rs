//! Nothing goes on for want of room.

use std::sync::Arc;

use crate::abandon::revive;
use crate::donors::DonorState;
use crate::retry::try_again;
use crate::room::RESERVE_UNITS;
use crate::send::send;
use crate::state::State;
use crate::task::Core;
use crate::trims::write_trims;

impl State {
    /// Somebody waits for room and nothing is on its way: whether anything more can be done, sends what waits in caches, else
    /// says that there is no room. True if there is something to do now.
    pub fn unstick(&mut self, core: &Arc<Core>) -> bool {
        // Who is away or refuses may make room.
        if self.is_opening_units() || self.expects() || self.takers() < self.plan.parity + 1 {
            return false;
        }
        let asked = std::mem::take(&mut self.asked);
        if !self.room_wanted || self.stuck || !self.schedule.is_quiet() {
            return false;
        }
        self.room_wanted = false;
        if !asked {
            // Who wanted room may have got it since: a request that still waits says so again.
            self.asked = true;
            self.wake();
            return true;
        }
        let waiting = |index: &u32| {
            let memory = self.groups[*index as usize].memory.as_ref();
            memory.is_some_and(|memory| memory.unsafe_from != u64::MAX && !memory.abandoned && !memory.sending)
        };
        let waiting: Vec<u32> = self.in_memory.iter().copied().filter(waiting).collect();
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
        let has_notes = !(self.trims.is_empty() && self.losses.is_empty());
        if has_notes && self.has_room_to_clean() {
            // Groups that trims killed are freed when the trims are safe, and nobody may ever ask for a flush.
            let core = core.clone();
            self.schedule.spawn(async move { drop(write_trims(&core).await) });
            return;
        }
        if self.in_memory.clone().into_iter().any(|index| revive(core, self, index)) {
            return;
        }
        if !self.narrow && self.width(RESERVE_UNITS) > self.plan.parity {
            self.narrow = true;
        } else if !give_up_drains(self) {
            self.stuck = true;
        }
    }
}

/// There is no room anywhere else at the moment: donors that were to be emptied stay in use, and their own room helps. True if
/// there were any.
pub(crate) fn give_up_drains(state: &mut State) -> bool {
    let mut any = false;
    for donor in &mut state.donors {
        if donor.state == DonorState::Draining {
            (donor.state, donor.drains, any) = (DonorState::Active, false, true);
        }
    }
    if any {
        state.drain_waits = false;
        state.count_donors();
        try_again(state);
        state.wake();
    }
    any
}
