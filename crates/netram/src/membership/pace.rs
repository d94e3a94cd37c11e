//! Donors that answer late or not at all although they can be reached.
//!
//! Rules:
//! - A write of a unit that is not answered within `UNANSWERED_NS`, while its donor answers others,
//!   is done elsewhere. Its unit is not used again before the answer comes.
//! - A donor that is slow or silent (`state::pace`) is set aside: it gets no new units, and reads
//!   of what it holds are computed from the others at once. It keeps what it holds, is sent small
//!   reads from time to time, and is used again when it is fast.
//! - A donor is not set aside while its room or its number is needed.
//!
//! Left out: donors that cannot be reached (`absence`) or that refuse.

use std::sync::Arc;

use crate::api::{DonorError, DonorId, DonorOp, Purpose, Trouble};
use crate::engine::SECTOR_BYTES;
use crate::requests::send::send;
use crate::state::State;
use crate::state::donors::DonorState;
use crate::task::Core;
use crate::views::Roster;

/// How long a write waits for a donor that answers others (ns).
const UNANSWERED_NS: u64 = 1_000_000_000;
/// Time between two small reads of a donor that is set aside (ns).
const ASK_NS: u64 = 200_000_000;

/// Checks the pace of all donors. Called with each tick.
pub(crate) fn look(core: &Arc<Core>, state: &mut State) {
    expire(state);
    let now = state.now_ns;
    for number in 0..state.donors.len() {
        let others_ns = state.roster().latency_of_others(number);
        let donor = &mut state.donors[number];
        if donor.state != DonorState::Active {
            continue;
        }
        let is = donor.pace.aside().map(|(why, _)| why);
        let wish = donor.pace.wish(others_ns, now);
        if wish == is || (is.is_none() && !state.roster().can_do_without(number)) {
            continue;
        }
        state.donors[number].pace.set(wish, now);
        if wish.is_some() {
            leave_open_groups(core, state, number as DonorId);
        }
        state.wake();
    }
    if state.roster().takers() < state.plan.parity + 1 {
        state.use_those_aside();
    }
}

/// Fails writes that were not answered in time, so that they are done elsewhere.
fn expire(state: &mut State) {
    let now = state.now_ns;
    let Some(before) = now.checked_sub(UNANSWERED_NS) else { return };
    for (ticket, asked) in state.schedule.overdue(before) {
        let donor = &mut state.donors[asked.donor as usize];
        // A donor that answers nothing at all is left to its connection.
        if donor.is_absent() || donor.answered_ns < asked.asked_ns + UNANSWERED_NS / 2 {
            continue;
        }
        if let Some(unit) = asked.unit {
            donor.units.is_late(unit);
        }
        donor.pace.left_unanswered(now);
        state.schedule.expire(ticket);
        let error = DonorError::new(Trouble::Uncertain, "no answer, although others are answered");
        state.schedule.answer(ticket, Err(error));
        state.wake();
    }
}

/// Sends open groups on a donor as they are, so that nothing more goes there.
fn leave_open_groups(core: &Arc<Core>, state: &mut State, number: DonorId) {
    for index in state.groups.in_memory().to_vec() {
        if state.groups[index].is_on(number) && state.groups[index].memory().is_some_and(|memory| !memory.full) {
            state.open.leave(index);
            state.close(index);
            send(core, state, index);
        }
    }
}

impl State {
    /// Takes donors that were set aside into normal use again. Returns whether there were any.
    pub fn use_those_aside(&mut self) -> bool {
        let now = self.now_ns;
        let mut any = false;
        for donor in self.donors.iter_mut().filter(|donor| donor.pace.aside().is_some()) {
            donor.pace.is_needed(now);
            any = true;
        }
        if any {
            self.wake();
        }
        any
    }
}

impl Roster<'_> {
    /// Median latency of the other donors (ns).
    fn latency_of_others(&self, number: usize) -> u64 {
        let others = self.donors.iter().enumerate().filter(|&(other, donor)| other != number && !donor.is_absent());
        let mut others: Vec<u64> = others.map(|(_, donor)| donor.pace.latency_ns()).collect();
        others.sort_unstable();
        others.get(others.len() / 2).copied().unwrap_or(u64::MAX / 8)
    }

    /// Returns whether room and donors suffice without this donor and those set aside.
    fn can_do_without(&self, number: usize) -> bool {
        let takers = self.domains((0..self.donors.len()).filter(|&other| other != number && self.takes(other)));
        let is_left_out = |other: usize| other == number || self.donors[other].pace.aside().is_some();
        self.ready && takers > self.plan.parity && self.map.mapped() < self.room().room_beside(is_left_out)
    }
}

/// Reads a sector from donors that are set aside, to measure their speed. Does the same with donors
/// that owe the answer to a write, or that a broken connection may still be writing to, to see
/// whether they answer at all. Runs as long as the disk.
pub(crate) async fn prober(core: Arc<Core>) {
    let mut last_ns = 0;
    loop {
        let asked = core
            .until(|state| {
                if state.now_ns < last_ns + ASK_NS || state.failure.is_some() {
                    return None;
                }
                let late = state.now_ns.saturating_sub(UNANSWERED_NS / 2);
                let late: Vec<DonorId> = state.schedule.overdue(late).iter().map(|(_, asked)| asked.donor).collect();
                let is_asked = |&number: &usize| {
                    let donor = &state.donors[number];
                    let is_aside = donor.state == DonorState::Active && donor.pace.aside().is_some();
                    let owes = late.contains(&(number as DonorId)) || donor.units.is_quarantined();
                    !donor.is_probed && (is_aside || (!donor.is_absent() && owes))
                };
                let asked: Vec<usize> = (0..state.donors.len()).filter(is_asked).collect();
                (!asked.is_empty()).then_some(asked)
            })
            .await;
        let ops: Vec<_> = {
            let state = &mut *core.lock();
            last_ns = state.now_ns;
            let mut ask = |number: usize| {
                // One such read at a time for each donor: more would make a slow one slower.
                state.donors[number].is_probed = true;
                let op = DonorOp::Read { at: 0, len: SECTOR_BYTES };
                (number, core.op(state, number as DonorId, op, Purpose::Upkeep))
            };
            asked.into_iter().map(&mut ask).collect()
        };
        for (number, op) in ops {
            let state = core.clone();
            core.lock().schedule.spawn(async move {
                drop(op.await);
                state.lock().donors[number].is_probed = false;
            });
        }
    }
}
