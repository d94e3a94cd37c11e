//! Emptying a donor that must leave the disk.
//!
//! Rules: the donor takes nothing new, and its groups are repaired as if it were gone, except that
//! its units can be copied. It leaves when no group has a unit on it and everything that moved is
//! safe. If there is no room, or too few donors are left, the drain is given up and the donor stays
//! in use. Left out: moving units (`repair`).

use std::sync::Arc;

use shoal_format::ram::SLOTS_BYTES;

use crate::api::{DonorId, DonorOp, Purpose};
use crate::membership::epochs::new_epoch;
use crate::requests::send::send;
use crate::requests::write::flush;
use crate::state::State;
use crate::state::donors::DonorState;
use crate::state::epoch::Membership;
use crate::state::retry::requeue;
use crate::task::{Core, pause};
use crate::upkeep::repair::FLUSH_AGAIN_NS;
use crate::upkeep::stuck::give_up_drains;

/// Moves everything off a donor, which is not used any more afterwards.
pub(crate) async fn drain(core: Arc<Core>, donor: DonorId) {
    // Until the map is complete, nothing is known to be on the donor.
    core.until(|state| state.ready.then_some(())).await;
    if !begin(&core, &mut core.lock(), donor) {
        return;
    }
    loop {
        let left = {
            let state = &mut *core.lock();
            state.repairs.no_drain_waits();
            requeue(state);
            state.groups.are_on(donor)
        };
        if !left || is_over(&core.lock(), donor) {
            // A donor that went away meanwhile is excluded by the excluder, unless it comes back
            // first.
            let there = core.until(|state| match state.donors[donor as usize].state {
                DonorState::Draining => Some(true),
                DonorState::Missing | DonorState::Returning => None,
                _ => Some(false),
            });
            if !there.await {
                return;
            }
            if !core.lock().groups.are_on(donor) {
                break;
            }
            continue;
        }
        // Wait until the queue has been worked through. By then the groups that were in memory are
        // sealed, too.
        core.until(|state| (state.repairs.is_through() || is_over(state, donor)).then_some(())).await;
        if core.lock().shortage.is_stuck() {
            // The disk was full when the drain began.
            give_up_drains(&mut core.lock());
            return;
        }
        // Emptied groups become free when their blocks are safe elsewhere.
        let safe_from = core.lock().next_sequence;
        if flush(&core).await.is_err() {
            {
                let state = &mut *core.lock();
                if state.is_short_of_donors() && !state.roster().expects() {
                    // No flush succeeds while so many donors are drained.
                    give_up_drains(state);
                    return;
                }
            }
            pause(&core, FLUSH_AGAIN_NS).await;
            continue;
        }
        wait_for_moves(&core, donor, safe_from).await;
    }
    let erasing = {
        let state = &mut *core.lock();
        let op = DonorOp::Write { at: 0, bytes: vec![0; SLOTS_BYTES] };
        let op = core.op(state, donor, op, Purpose::Upkeep);
        state.donors[donor as usize].state = DonorState::Drained;
        state.donors[donor as usize].units.release();
        new_epoch(state, Membership::Changed);
        state.count_donors();
        op
    };
    // The donor is already empty, so a failure changes nothing.
    let _ = erasing.await;
}

/// Begins a drain: the donor takes nothing new, and open groups on it are sent as they are. Returns
/// false if the donor is not in use.
fn begin(core: &Arc<Core>, state: &mut State, donor: DonorId) -> bool {
    if state.donors[donor as usize].state != DonorState::Active {
        return false;
    }
    state.donors[donor as usize].state = DonorState::Draining;
    state.count_donors();
    for index in state.groups.in_memory().to_vec() {
        if state.groups[index].is_on(donor) {
            state.open.leave(index);
            state.close(index);
            send(core, state, index);
        }
    }
    true
}

/// Returns whether the donor is gone for good, or is in use again because there was no room
/// elsewhere.
fn is_over(state: &State, donor: DonorId) -> bool {
    let donor = &state.donors[donor as usize];
    donor.is_final() || donor.state == DonorState::Active
}

/// Waits until no group that may leave the donor is in progress. `safe_from`: the flush covered
/// blocks that died before this sequence.
async fn wait_for_moves(core: &Arc<Core>, donor: DonorId, safe_from: u64) {
    let retries = core.lock().repairs.tries();
    core.until(|state| {
        let on_its_way = state.groups.iter().any(|(_, group)| {
            // A group that died since then waits for another flush, which may have no other reason
            // to come.
            let dies = group.live() == 0 && group.killed() <= safe_from;
            let moves = group.is_in_memory() || group.is_busy() || dies;
            moves && group.is_on(donor)
        });
        // While a group waits for room, more may have to be done to make some.
        if state.repairs.drain_waits() && !state.room().has_room(1) {
            state.shortage.want();
        }
        // A unit that could not be moved waits for the next try.
        let waits = on_its_way || state.repairs.waits_for_retry(retries);
        (!waits || state.shortage.is_stuck() || is_over(state, donor)).then_some(())
    })
    .await;
}
