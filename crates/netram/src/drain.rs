//! Moving everything off a donor.

use std::sync::Arc;

use shoal_format::ram::SLOTS_BYTES;

use crate::api::{DonorId, DonorOp, Purpose};
use crate::donors::DonorState;
use crate::epochs::new_epoch;
use crate::retry::requeue;
use crate::send::send;
use crate::state::State;
use crate::stuck::give_up_drains;
use crate::task::{Core, pause};
use crate::write::flush;

/// A drain that waits for room looks again after so long (ns).
pub(crate) const ROOM_NS: u64 = 100_000_000;

/// Moves everything off a donor; it is not used any more afterwards.
pub(crate) async fn drain(core: Arc<Core>, donor: DonorId) {
    // Until the map is there, nothing is known to be on it.
    core.until(|state| state.ready.then_some(())).await;
    {
        let state = &mut *core.lock();
        if state.donors[donor as usize].state != DonorState::Active {
            return;
        }
        state.donors[donor as usize].state = DonorState::Draining;
        state.count_donors();
        for index in state.in_memory.clone() {
            if state.groups[index as usize].is_on(donor) {
                for cache in &mut state.caches {
                    if cache.group == Some(index) {
                        cache.group = None;
                    }
                }
                state.close(index);
                send(&core, state, index, true);
            }
        }
    }
    // Gone for good, or in use again because there was no room anywhere else.
    let over = move |state: &State| {
        let donor = &state.donors[donor as usize];
        donor.is_final() || donor.state == DonorState::Active
    };
    loop {
        let left = {
            let state = &mut *core.lock();
            state.drain_waits = false;
            requeue(state);
            state.groups.iter().any(|group| group.id != 0 && group.is_on(donor))
        };
        if !left || over(&core.lock()) {
            // One that went away meanwhile is excluded by itself, unless it is back before that.
            let there = core.until(|state| match state.donors[donor as usize].state {
                DonorState::Draining => Some(true),
                DonorState::Missing | DonorState::Returning => None,
                _ => Some(false),
            });
            if !there.await {
                return;
            }
            if !core.lock().groups.iter().any(|group| group.id != 0 && group.is_on(donor)) {
                break;
            }
            continue;
        }
        // Until what was queued is through; then what was on its way at the time is sealed, too.
        core.until(|state| {
            let settled = state.repair_queue.is_empty() && state.repair_done == state.repair_total;
            (settled || over(state)).then_some(())
        })
        .await;
        if core.lock().stuck {
            // It was full when the drain began.
            give_up_drains(&mut core.lock());
            return;
        }
        // Emptied groups become free when their blocks are safe elsewhere.
        let safe_from = core.lock().next_sequence;
        if flush(&core).await.is_err() {
            pause(&core, 1_000_000_000).await;
            continue;
        }
        let retries = core.lock().returns;
        core.until(|state| {
            let on_its_way = state.groups.iter().any(|group| {
                // What died since waits for a flush that nobody else may ask for.
                let dies = group.live == 0 && group.killed <= safe_from;
                let moves = group.memory.is_some() || group.busy || dies;
                group.id != 0 && moves && group.is_on(donor)
            });
            // While one waits for room, more may have to be done for it.
            state.room_wanted |= state.drain_waits && !state.has_room(1);
            // What could not be moved waits for the next try.
            let waits = on_its_way || (state.retry_at_ns.is_some() && state.returns == retries);
            (!waits || state.stuck || over(state)).then_some(())
        })
        .await;
    }
    let erasing = {
        let state = &mut *core.lock();
        let op = DonorOp::Write { at: 0, bytes: vec![0; SLOTS_BYTES] };
        let op = core.op(state, donor, op, Purpose::Upkeep);
        state.donors[donor as usize].state = DonorState::Drained;
        state.donors[donor as usize].release();
        new_epoch(state, true);
        state.count_donors();
        op
    };
    // It is empty already; a failure changes nothing.
    let _ = erasing.await;
}
