//! Turning dead groups into free units: freeing, erasing, and giving memory back.
//!
//! Rules: a dead group is freed when the successors of its blocks are safe, lists of trims included.
//! Its units are then stale, or are erased before they are free (`state::units`). A group of which
//! nothing was ever safe is freed at once, and its units are erased. Stale units are erased
//! in idle gaps, and when blocks were trimmed since. The memory of free units is given back in idle gaps only.
//! Left out: which units are free (`state::units`).

use std::sync::Arc;

use crate::api::{DonorId, Purpose};
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::donors::DonorState;
use crate::state::group::Group;
use crate::state::place::Member;
use crate::state::units::{Erase, FreeUnit};
use crate::task::{Core, join};

/// Units erased at the same time on one donor: a large trim frees hundreds of thousands of units.
const ERASES_AT_ONCE: usize = 32;

/// Frees dead groups. Runs as long as the disk.
pub(crate) async fn reaper(core: Arc<Core>) {
    loop {
        let index = core
            .until(|state| {
                state.has_unprotected();
                let horizon = state.horizons().horizon();
                let groups = &state.groups;
                // They come in the order in which they died.
                let is_safe =
                    |&(killed, _): &(u64, u32)| (state.ready && killed <= horizon) || is_planted(Bug::FreeEarly);
                let is_due = |&(_, index): &(u64, u32)| !groups[index].is_held() || is_planted(Bug::FreeEarly);
                let safe = groups.dying().take_while(is_safe).find(is_due);
                // No flush covers anything in these groups, so nothing has to replace it first.
                let (killed, index) = safe.or_else(|| groups.dying_unsafe().next().filter(|_| state.ready))?;
                state.groups.reap(killed, index);
                Some(index)
            })
            .await;
        let state = &mut *core.lock();
        free(state, index);
    }
}

/// Removes a group and frees its units.
fn free(state: &mut State, index: u32) {
    let group = state.remove_group(index);
    for member in group.members.iter().copied() {
        match member.exists() && member.count > 0 {
            true => state.free_written(member, &group),
            false if member.exists() => state.give_back(member),
            false => {}
        }
    }
}

/// Erases headers of units, a bounded number at a time. Runs as long as the disk.
pub(crate) async fn eraser(core: Arc<Core>) {
    loop {
        let batch = core
            .until(|state| {
                // Before the disk is ready, a checkpoint may count that says these units are in
                // use.
                let is_ready = state.ready || !state.checkpoints.enabled;
                let (now, last_trim) = (state.now_ns, state.notes.last_trim());
                let mut batch: Vec<(DonorId, Erase)> = Vec::new();
                for (number, donor) in state.donors.iter_mut().enumerate() {
                    let there = is_ready && !donor.is_absent() && now >= donor.refused_until_ns;
                    donor.units.erase_stale(if is_planted(Bug::TrimmedKept) { 0 } else { last_trim });
                    if there {
                        let next = std::iter::from_fn(|| donor.units.next_erase(ERASES_AT_ONCE));
                        batch.extend(next.map(|erase| (number as DonorId, erase)));
                    }
                }
                (!batch.is_empty()).then_some(batch)
            })
            .await;
        let state = &mut *core.lock();
        for (number, erase) in batch {
            let op = match is_planted(Bug::NoErase) {
                true => state.shape.heads_op(erase.unit),
                false => state.shape.erase_op(erase.unit),
            };
            let op = core.op(state, number, op, Purpose::Upkeep);
            let core = core.clone();
            state.schedule.spawn(async move {
                let done = op.await.is_ok();
                core.lock().erased(number, erase.unit, done);
            });
        }
    }
}

impl State {
    /// Frees a written unit of a group that was removed. Its headers stay until those of another
    /// group replace them, if all they can say is what a newer copy outdoes.
    fn free_written(&mut self, member: Member, group: &Group) {
        let donor = &mut self.donors[member.donor as usize];
        let is_there = !donor.is_absent() && donor.scanned && !donor.stale;
        // A list of ranges would be read, and nothing outdoes it. A group that opening found
        // incomplete may have headers with entries that no opening has seen. What was never
        // safe may be outdone by a trim that is only noted.
        let is_plain = (group.lists_blocks_only() && !group.was_never_safe()) || is_planted(Bug::RangesKept);
        if !(is_there && is_plain && group.incomplete().is_none()) {
            return self.erase_later(member, group.first_sequence);
        }
        if donor.units.free_stale(member.unit, group.first_sequence) {
            self.shortage.has_unit();
        }
        self.wake();
    }

    pub fn erased(&mut self, number: DonorId, unit: u32, done: bool) {
        match self.donors[number as usize].units.erased(unit, done) {
            None => return,
            Some(true) => self.shortage.has_unit(),
            Some(false) => {}
        }
        self.wake();
    }
}

/// Gives the memory of free units back to the donors, in idle gaps only: under load the next groups
/// take these units, and the donor would have to find new pages for them. Runs as long as the disk.
pub(crate) async fn trimmer(core: Arc<Core>) {
    loop {
        let member = core.until(|state| state.next_to_trim()).await;
        let trimming = {
            let state = &mut *core.lock();
            let op = state.shape.trim_op(member.unit);
            core.op(state, member.donor, op, Purpose::Upkeep)
        };
        // Wait for the trim: carried out after the unit's next write, it would destroy what was
        // written.
        let failed = join(vec![trimming]).await;
        let state = &mut *core.lock();
        if failed {
            // The trim may still be carried out late.
            state.erase_later(member, u64::MAX);
        } else if !state.donors[member.donor as usize].is_final() {
            // Units without memory are taken last.
            state.donors[member.donor as usize].units.put_free(FreeUnit { unit: member.unit, has_memory: false });
            state.wake();
        }
    }
}

impl State {
    /// Takes a free unit with memory.
    fn next_to_trim(&mut self) -> Option<Member> {
        if !self.ready || !self.room().is_idle() {
            return None;
        }
        let there = |&number: &usize| self.roster().takes(number) || self.donors[number].state == DonorState::Draining;
        let has_memory = |&number: &usize| self.donors[number].units.can_trim();
        let donors: Vec<usize> = (0..self.donors.len()).filter(there).filter(has_memory).collect();
        for number in donors {
            let units = &mut self.donors[number].units;
            let waited = units.to_erase();
            if let Some(unit) = units.take_to_trim(ERASES_AT_ONCE) {
                return Some(Member { donor: number as u16, unit, count: 0 });
            }
            if units.to_erase() > waited {
                self.wake();
            }
        }
        None
    }
}
