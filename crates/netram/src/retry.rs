//! What repair has to do, and when it is tried again.

use crate::place::Member;
use crate::state::State;

/// What could not be repaired is tried again after so long (ns), and twice as long each time.
const RETRY_NS: u64 = 1_000_000_000;

const RETRY_MAX_NS: u64 = 64_000_000_000;

/// Something has changed for the better: what could not be done is tried again.
pub(crate) fn try_again(state: &mut State) {
    state.may_have_room();
    state.retry_delay_ns = RETRY_NS;
    retry(state);
}

pub(crate) fn retry(state: &mut State) {
    state.level_at_ns = 0;
    state.returns += 1;
    state.retry_at_ns = None;
    for index in 0..state.groups.len() as u32 {
        if std::mem::take(&mut state.groups[index as usize].hopeless) {
            let group = &state.groups[index as usize];
            if group.id != 0 && group.memory.is_none() && !group.busy {
                state.file(index);
            }
        }
    }
    requeue(state);
}

/// Does the group miss a unit, or is one where it is not to stay?
pub(crate) fn needs_repair(state: &State, index: usize) -> bool {
    let group = &state.groups[index];
    let leaves = |member: &Member| member.exists() && !state.donors[member.donor as usize].keeps();
    group.id != 0 && group.memory.is_none() && (group.incomplete().is_some() || group.members.iter().any(leaves))
}

/// All groups that need it wait for repair.
pub(crate) fn requeue(state: &mut State) {
    if !state.ready {
        // The map is not there; all of it is looked at then.
        return;
    }
    if state.repair_done + state.repair_queue.len() as u64 == state.repair_total {
        (state.repair_done, state.repair_total, state.repair_began_ns) = (0, 0, state.now_ns);
    } else {
        state.repair_total -= state.repair_queue.len() as u64;
    }
    state.repair_queue.clear();
    // What is not safe first: it keeps other groups from being free.
    for incomplete in [true, false] {
        for index in 0..state.groups.len() {
            if state.groups[index].incomplete().is_some() == incomplete && needs_repair(state, index) {
                state.repair_queue.push_back((index as u32, state.groups[index].id));
            }
        }
    }
    state.repair_total += state.repair_queue.len() as u64;
    state.repair_moves();
    state.wake();
}

/// Repair could not do everything: once more later.
pub(crate) fn retry_later(state: &mut State) {
    if state.retry_at_ns.is_none() {
        state.retry_at_ns = Some(state.now_ns + state.retry_delay_ns);
        state.retry_delay_ns = (2 * state.retry_delay_ns).min(RETRY_MAX_NS);
    }
}
