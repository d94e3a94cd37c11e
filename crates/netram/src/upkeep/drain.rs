//! Emptying a donor that is to leave the disk.
//!
//! Rules: the donor takes nothing new, and its groups are repaired as if it were gone, but with copies. It leaves
//! when no group has a unit on it and all that moved is safe. Where there is no room the drain is given up, and the
//! donor stays in use. Left out: moving units (`repair`).

use std::sync::Arc;

use shoal_format::ram::SLOTS_BYTES;

use crate::api::{DonorId, DonorOp, Purpose};
use crate::membership::epochs::new_epoch;
use crate::requests::send::send;
use crate::requests::write::flush;
use crate::state::State;
use crate::state::donors::DonorState;
use crate::state::retry::requeue;
use crate::task::{Core, pause};
use crate::upkeep::repair::FLUSH_AGAIN_NS;
use crate::upkeep::stuck::give_up_drains;

/// Moves everything off a donor; it is not used any more afterwards.
pub(crate) async fn drain(core: Arc<Core>, donor: DonorId) {
    // Until the map is there, nothing is known to be on it.
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
            // One that went away meanwhile is excluded by itself, unless it is back before that.
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
        // Waits until the queue is through; by then the groups that were in memory are sealed, too.
        core.until(|state| (state.repairs.is_through() || is_over(state, donor)).then_some(())).await;
        if core.lock().shortage.is_stuck() {
            // It was full when the drain began.
            give_up_drains(&mut core.lock());
            return;
        }
        // Emptied groups become free when their blocks are safe elsewhere.
        let safe_from = core.lock().next_sequence;
        if flush(&core).await.is_err() {
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
        new_epoch(state, true);
        state.count_donors();
        op
    };
    // It is empty already; a failure changes nothing.
    let _ = erasing.await;
}

/// From now on the donor takes nothing new; open groups on it are sent as they are. False if it is not in use.
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
            send(core, state, index, true);
        }
    }
    true
}

/// Is the donor gone for good, or in use again because there was no room anywhere else?
fn is_over(state: &State, donor: DonorId) -> bool {
    let donor = &state.donors[donor as usize];
    donor.is_final() || donor.state == DonorState::Active
}

/// Waits until nothing that may leave the donor is on its way. `safe_from`: blocks that died before this sequence
/// were flushed.
async fn wait_for_moves(core: &Arc<Core>, donor: DonorId, safe_from: u64) {
    let retries = core.lock().repairs.tries();
    core.until(|state| {
        let on_its_way = state.groups.iter().any(|(_, group)| {
            // A group that died since then waits for another flush, and there may be no other reason for one.
            let dies = group.live() == 0 && group.killed() <= safe_from;
            let moves = group.is_in_memory() || group.is_busy() || dies;
            moves && group.is_on(donor)
        });
        // While one waits for room, more may have to be done for it.
        if state.repairs.drain_waits() && !state.has_room(1) {
            state.shortage.want();
        }
        // What could not be moved waits for the next try.
        let waits = on_its_way || state.repairs.waits_for_retry(retries);
        (!waits || state.shortage.is_stuck() || is_over(state, donor)).then_some(())
    })
    .await;
}
