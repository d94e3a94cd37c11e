//! Which groups need repair, and trying failed work again.
//!
//! Rules: groups that opening found incomplete come first, because they keep other groups from
//! being freed. Everything is tried again when a donor comes back, joins or is forgotten, and from
//! time to time. Left out: the repair itself (`repair`).

use std::cmp::Reverse;
use std::collections::HashSet;

use shoal_format::ram::GroupId;

use crate::state::State;
use crate::state::place::Member;

/// Tries failed work again, because something has improved.
pub(crate) fn try_again(state: &mut State) {
    state.shortage.may_have_room();
    state.repairs.hope();
    retry(state);
}

pub(crate) fn retry(state: &mut State) {
    state.leveling.try_now();
    state.repairs.try_again();
    if state.groups.try_again() {
        state.wake();
    }
    requeue(state);
}

/// Returns whether the group misses a unit, or has a unit that is damaged or must leave its donor.
pub(crate) fn needs_repair(state: &State, index: u32) -> bool {
    let group = &state.groups[index];
    let leaves = |member: &Member| member.exists() && !state.donors[member.donor as usize].keeps();
    let is_short = group.incomplete().is_some() || group.is_damaged() || group.members.iter().any(leaves);
    group.exists() && !group.is_in_memory() && is_short
}

/// Queues all groups that need repair.
pub(crate) fn requeue(state: &mut State) {
    if !state.ready {
        // The map is incomplete. Opening queues everything when it is done.
        return;
    }
    let mut queue = Vec::new();
    // Groups that are not safe come first: they keep other groups from being freed.
    for incomplete in [true, false] {
        let of_these = state.groups.iter().filter(|(_, group)| group.incomplete().is_some() == incomplete);
        let needy = of_these.filter(|&(index, _)| needs_repair(state, index));
        queue.extend(needy.map(|(index, group)| (index, group.id)));
        if incomplete {
            // Groups that keep others from being freed come first. The newest of them is the first: no
            // group keeps it, so it is freed as soon as it is empty.
            let keeps: HashSet<GroupId> = state.found.groups.iter().map(|found| found.id).collect();
            queue.sort_unstable_by_key(|&(_, id)| (!keeps.contains(&id), Reverse(id)));
        }
    }
    state.repairs.queue(queue.into_iter(), state.now_ns);
    state.wake();
}
