//! Taking back the contents of a donor that was away when the disk was opened.
//!
//! Rules: a unit is taken back only where its group misses it, and only with the entries that
//! opening knew. Nobody has seen its other entries since, so they must not come back. Its header is
//! shortened, and all other units are erased, before the donor is a source again. Then the next opening
//! may do without another donor in its place: so the groups that opening found incomplete are put
//! together anew first, as long as the others can do that without this donor, and for no longer than the
//! disk's patience: some may need it. Left out: when a donor returns (`membership`).

use std::collections::HashMap;
use std::sync::Arc;

use shoal_format::ram::{GroupId, HEADER_SLOTS, UnitEntry, UnitHeader};

use crate::api::{DonorId, Purpose};
use crate::membership::epochs::new_epoch;
use crate::membership::headers::{first_said, headers};
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::donors::{DonorState, REFUSED_NS};
use crate::state::epoch::Membership;
use crate::state::group::Group;
use crate::state::place::Member;
use crate::state::retry::try_again;
use crate::task::{Core, pause};
use crate::views::Roster;

/// Scans the units of a donor that was away when the disk was opened. Takes back units that their
/// groups miss and erases all others. Then the donor is like any other.
pub(crate) async fn graft(core: Arc<Core>, number: DonorId) {
    let visit = core.lock().repairs.tries();
    core.lock().donors[number as usize].visit = visit;
    // The donor may go away and come back meanwhile. Then another `graft` handles it.
    let gone = |state: &State| {
        let donor = &state.donors[number as usize];
        donor.state != DonorState::Returning || donor.visit != visit
    };
    if !core.lock().donors[number as usize].scanned {
        let Some(found) = headers(&core, number).await else { return };
        let state = &mut *core.lock();
        if gone(state) {
            return;
        }
        let groups = state.groups.iter();
        let index_of: HashMap<GroupId, u32> = groups.map(|(index, group)| (group.id, index)).collect();
        let mut units: Vec<bool> = vec![true; state.donors[number as usize].units.count() as usize];
        for (unit, header) in found {
            let taken = match index_of.get(&header.group) {
                Some(&index) => take_back(state, number, unit, &header, index),
                None => false,
            };
            units[unit as usize] = false;
            if !taken {
                state.erase_later(Member { donor: number, unit, count: 1 }, first_said(&header));
            }
        }
        let donor = &mut state.donors[number as usize];
        donor.units.found(|unit| units[unit as usize], |_| false);
        donor.scanned = true;
        try_again(state);
    }
    while cut(&core, number, &gone).await {}
    let begun = core.lock().now_ns;
    let erased = core
        .until(|state| {
            let donor = &state.donors[number as usize];
            let long = state.now_ns.saturating_sub(begun) > state.patience_ns();
            let clean = donor.units.is_erased() && (long || !state.roster().mends_without(number));
            (gone(state) || clean).then_some(!gone(state))
        })
        .await;
    if erased {
        let state = &mut *core.lock();
        state.donors[number as usize].stale = false;
        new_epoch(state, Membership::Same);
    }
}

/// Shortens the next header that lists more than is known. Returns false if there is none, or if
/// the donor has gone.
async fn cut(core: &Arc<Core>, number: DonorId, gone: &impl Fn(&State) -> bool) -> bool {
    let (unit, header) = {
        let state = &mut *core.lock();
        let units = &state.donors[number as usize].units;
        let Some((unit, header)) = units.next_cut().filter(|_| !gone(state)).cloned() else { return false };
        let is_at = |group: &Group| {
            let member = group.members.get(header.member as usize).filter(|_| group.id == header.group);
            member.is_some_and(|member| member.donor == number && member.unit == unit)
        };
        if !state.groups.iter().any(|(_, group)| is_at(group)) {
            // The unit has been freed.
            state.donors[number as usize].units.drop_cut();
            return true;
        }
        state.donors[number as usize].units.begin_cut(unit);
        (unit, header)
    };
    let mut done = true;
    for slot in 0..HEADER_SLOTS {
        let op = {
            let state = &mut *core.lock();
            let op = state.shape.cut_op(unit, slot, &header);
            core.op(state, number, op, Purpose::Upkeep)
        };
        done = done && op.await.is_ok();
    }
    {
        let state = &mut *core.lock();
        state.donors[number as usize].units.end_cut(unit, done);
        state.wake();
    }
    if !done {
        pause(core, REFUSED_NS).await;
    }
    true
}

/// Takes a unit back if it is the one that its group misses. Only entries that opening knew count.
/// Returns whether it was taken.
fn take_back(state: &mut State, number: DonorId, unit: u32, header: &UnitHeader, index: u32) -> bool {
    let buffer = state.plan.buffer;
    let group = &mut state.groups[index];
    let place = header.member as usize;
    let rows = header.lists.iter().map(Vec::len).max().unwrap_or(0);
    let fits = group.id == header.group
        && !group.is_in_memory()
        && group.data() == header.data as usize
        && group.members.len() == group.data() + header.parity as usize
        && rows <= buffer
        && !group.members[place].exists();
    let data = group.data();
    if !fits || group.incomplete().is_none() {
        return false;
    }
    let others = group.members[data..].iter().any(Member::exists);
    let Some(found) = group.incomplete_mut() else { return false };
    if place < data {
        let known = &found.lists[place];
        // If opening knew nothing of it, everything it lists is unknown.
        if known.is_empty() || !header.lists[0].starts_with(known) {
            return false;
        }
        let known = known.clone();
        found.own[place] = known.len() as u8;
        group.members[place] = Member { donor: number, unit, count: known.len() as u8 };
        if header.lists[0].len() > known.len() {
            let header = UnitHeader { lists: vec![known], cut: header.cut + 1, ..header.clone() };
            state.cut_later(number, unit, header);
        }
    } else {
        let same = header.lists.iter().zip(&found.lists).all(|(own, known)| own.iter().zip(known).all(|(a, b)| a == b));
        // Rows with blocks that are unknown or not there are useless.
        let news = |(own, known): (&Vec<UnitEntry>, &Vec<UnitEntry>)| (own.len() > known.len()).then_some(known.len());
        let rows = header.lists.iter().zip(&found.lists).filter_map(news).min().unwrap_or(usize::MAX);
        let rows = rows.min(found.absent);
        let lists: Vec<Vec<UnitEntry>> =
            header.lists.iter().map(|list| list.iter().take(rows).copied().collect()).collect();
        let lens: Vec<u8> = lists.iter().map(|list| list.len() as u8).collect();
        let count = lens.iter().copied().max().unwrap_or(0);
        if !same || count == 0 || (others && lens != found.covered) {
            return false;
        }
        found.covered = lens;
        group.members[place] = Member { donor: number, unit, count };
        if lists != header.lists {
            let header = UnitHeader { lists, cut: header.cut + 1, ..header.clone() };
            state.cut_later(number, unit, header);
        }
    }
    true
}

impl Roster<'_> {
    /// Returns whether groups that opening found incomplete still wait to be put together anew, and the donors other
    /// than this one, all of which are there, can do that.
    fn mends_without(&self, number: DonorId) -> bool {
        let others =
            || (0..self.donors.len()).filter(|&other| other != usize::from(number) && self.donors[other].counts());
        let are_there = others().all(|other| !self.donors[other].is_absent());
        let takers = self.domains(others().filter(|&other| self.donors[other].state == DonorState::Active));
        let waits = |group: &Group| group.incomplete().is_some() && group.is_needed();
        are_there && takers > self.plan.parity && self.groups.iter().any(|(_, group)| waits(group))
    }
}

impl State {
    /// Queues a header to be shortened: a unit must lose entries that no opening has seen before
    /// its donor is a source again.
    pub fn cut_later(&mut self, number: DonorId, unit: u32, header: UnitHeader) {
        if !is_planted(Bug::NewsKept) {
            self.donors[number as usize].units.cut_later(unit, header);
        }
    }
}
