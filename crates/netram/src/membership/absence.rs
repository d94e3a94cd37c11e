//! Donors that go away: their in-memory groups are saved, and their other groups wait for repair.
//!
//! Rules: a donor that cannot be reached still belongs to the disk, with all it holds. Only a donor
//! that had not joined yet is dropped. Left out: coming back and being forgotten (`membership`).

use std::sync::Arc;

use crate::api::DonorId;
use crate::membership::epochs::{check_epoch, new_epoch};
use crate::requests::abandon::abandon;
use crate::state::State;
use crate::state::donors::DonorState;
use crate::state::epoch::Membership;
use crate::state::retry::requeue;
use crate::task::Core;

/// Marks a donor that cannot be reached as missing.
pub(crate) fn miss(core: &Arc<Core>, state: &mut State, number: DonorId) {
    let now = state.now_ns;
    let Some(donor) = state.donors.get_mut(number as usize) else { return };
    match donor.state {
        DonorState::Joining => return discard(state, number),
        DonorState::Active | DonorState::Draining | DonorState::Returning => {
            donor.drains = donor.state == DonorState::Draining;
            donor.state = DonorState::Missing;
            donor.missing_since_ns = now;
        }
        DonorState::Missing | DonorState::Forgotten | DonorState::Drained | DonorState::Lost => return,
    }
    leave(core, state, number);
    check_epoch(state);
}

/// Moves groups elsewhere that were on a donor that is no longer there.
pub(crate) fn leave(core: &Arc<Core>, state: &mut State, number: DonorId) {
    for index in state.groups.in_memory().to_vec() {
        let group = &state.groups[index];
        if group.is_on(number) {
            abandon(core, state, index);
        }
    }
    state.count_donors();
    requeue(state);
}

/// Drops a donor that nothing of the disk refers to.
pub(crate) fn discard(state: &mut State, number: DonorId) {
    let donor = &mut state.donors[number as usize];
    donor.state = DonorState::Lost;
    donor.units.release();
    new_epoch(state, Membership::Changed);
}
