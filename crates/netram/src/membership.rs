//! Donors that refuse, go away, come back, and are given up.
//!
//! | module | owns |
//! |---|---|
//! | `pace` | donors that answer late or not at all |
//! | `absence` | donors that cannot be reached |
//! | `growth` | larger disks |
//! | `epochs` | telling the donors which of them belong to the disk |
//! | `headers` | reads repeated until the donor answers or is given up; headers of units |
//! | `graft` | taking back the contents of a donor that was away when the disk was opened |
//!
//! Rules:
//! - A donor that cannot be reached is *missing*. It still belongs to the disk: its contents are
//!   rebuilt elsewhere where the other donors suffice, and it is taken back as it was when it
//!   returns. An epoch excludes it only when nothing of the disk refers to it any more. So no epoch
//!   ever commits a loss. Only [`forget`], at an administrator's request, does.
//! - A write that a donor refuses is done elsewhere. For a moment the donor gets nothing new, but
//!   it is still read.
//! - A donor that was away while the disk was opened is *stale*: entries that only this donor has
//!   do not exist for the client. Its units are scanned when it returns (`graft`). Until then the
//!   superblocks of the others say that it is no source.
//!
//! Left out: restoring redundancy (`upkeep`), detecting absence and return (the engine's caller).

pub(crate) mod absence;
pub(crate) mod epochs;
pub(crate) mod graft;
pub(crate) mod growth;
pub(crate) mod headers;
pub(crate) mod pace;

use std::sync::Arc;

use crate::api::{DonorId, DonorInfo, ForgetCost, NotBack, Trouble};
use crate::membership::absence::{discard, miss};
use crate::membership::epochs::{can_store_without, check_epoch, new_epoch};
use crate::membership::graft::graft;
use crate::planted::{Bug, is_planted};
use crate::requests::trims::Lists;
use crate::sealed;
use crate::state::State;
use crate::state::domains::Turn;
use crate::state::donors::{Donor, DonorState, REFUSED_NS};
use crate::state::epoch::{EPOCHS_MAX, Membership};
use crate::state::group::Group;
use crate::state::place::Location;
use crate::state::retry::{requeue, retry, try_again};
use crate::state::schedule::{Answer, Asked};
use crate::task::Core;
use crate::views::Roster;

const REFUSED_DOUBLED_MAX: u32 = 6;
/// Handles a donor's answer.
pub(crate) fn answered(core: &Arc<Core>, state: &mut State, asked: Asked, result: &Answer) {
    let now = state.now_ns;
    let donor = &mut state.donors[asked.donor as usize];
    let answered_ns = std::mem::replace(&mut donor.answered_ns, now);
    let is_there = !matches!(result, Err(error) if error.trouble != Trouble::Refused);
    if is_there && donor.units.answers(now.saturating_sub(answered_ns)) {
        state.measure_room();
        state.shortage.may_have_room();
        state.wake();
    }
    let donor = &mut state.donors[asked.donor as usize];
    if result.is_ok() {
        donor.pace.answered(now.saturating_sub(asked.asked_ns));
    }
    if let (true, Some(unit)) = (asked.expired, asked.unit) {
        donor.units.late_answer(unit);
        state.wake();
    }
    let donor = &mut state.donors[asked.donor as usize];
    let Err(error) = result else {
        if asked.writes && donor.refusals > 0 && now >= donor.refused_until_ns {
            donor.refusals = 0;
            state.wake();
        }
        return;
    };
    match error.trouble {
        Trouble::Refused if asked.writes && now >= donor.refused_until_ns => {
            donor.refused_until_ns = now + (REFUSED_NS << donor.refusals.min(REFUSED_DOUBLED_MAX));
            donor.refusals += 1;
            donor.pace.refused += 1;
            state.wake();
        }
        Trouble::Refused => {}
        Trouble::Uncertain => {
            if !is_planted(Bug::TaintedReused) {
                donor.units.taint(asked.unit);
            }
        }
        Trouble::Away => {
            donor.units.loses_sight(asked.unit);
            miss(core, state, asked.donor);
        }
    }
}

/// Takes back a donor that can be reached again. See [`crate::Engine::back`].
pub(crate) fn back(
    core: &Arc<Core>,
    state: &mut State,
    info: DonorInfo,
    superblock: &[u8],
    fenced: bool,
) -> Result<DonorId, NotBack> {
    let own = sealed::superblock(superblock, state.config.key.as_ref());
    let own = own.filter(|(_, own)| own.uuid == state.config.uuid);
    let own = own.filter(|(_, own)| own.epoch <= EPOCHS_MAX);
    let (slot, own) = own.ok_or(NotBack::Stranger)?;
    let number = own.donor;
    let units = state.roster().units_of(&info);
    let is_asked = state.schedule.is_asked(number);
    let donor = state.donors.get_mut(number as usize).ok_or(NotBack::Stranger)?;
    let born = own.donors.get(number as usize).map(|place| place.born);
    if born != Some(donor.born) || donor.is_final() {
        return Err(NotBack::Stranger);
    }
    if donor.state != DonorState::Missing || is_asked || (donor.scanned && donor.units.count() != units) {
        return Err(NotBack::Later);
    }
    (donor.wanted_domain, donor.info) = (info.domain, info);
    (donor.epoch, donor.slot) = (own.epoch, Some(slot));
    donor.units.set_count(units);
    (donor.refusals, donor.refused_until_ns) = (0, 0);
    // A former client may have died when no other donor knew that epoch.
    state.epoch.meets(own.epoch);
    state.epoch.knows_births(&own);
    let donor = &mut state.donors[number as usize];
    donor.units.is_back(!fenced && !is_planted(Bug::TaintedReused));
    donor.state = match (donor.scanned || !state.ready, donor.stale) {
        (false, _) | (_, true) => DonorState::Returning,
        (true, false) if donor.drains => DonorState::Draining,
        (true, false) => DonorState::Active,
    };
    let returns = donor.state == DonorState::Returning && state.ready;
    state.count_donors();
    try_again(state);
    if returns {
        state.schedule.spawn(graft(core.clone(), number));
    }
    // The donor may have missed some epochs.
    new_epoch(state, Membership::Same);
    Ok(number)
}

/// Gives a donor up for good. Epochs keep counting it until lists on the donors record the losses.
pub(crate) fn forget(core: &Arc<Core>, state: &mut State, number: DonorId) {
    miss(core, state, number);
    let Some(donor) = state.donors.get_mut(number as usize) else { return };
    if donor.state == DonorState::Missing {
        donor.state = DonorState::Forgotten;
        donor.units.release();
        state.drop_checkpoint();
        lose_what_is_gone(state);
        try_again(state);
    }
}

/// Declares blocks lost that no donor can return any more. Only donors given up for good matter:
/// others may come back.
fn lose_what_is_gone(state: &mut State) {
    let mut lost: Vec<(u32, Location)> = Vec::new();
    for block in 0..state.map.blocks() as u32 {
        let gone = |&at: &Location| state.roster().is_beyond_parity(at) && !state.is_doubted(block, at);
        if let Some(at) = state.map.find(block).map(|found| found.at).filter(gone) {
            lost.push((block, at));
        }
    }
    let mut notes = Vec::new();
    for (index, group) in state.groups.iter() {
        let places = group.notes().iter().map(|spot| spot.within(index));
        notes.extend(places.filter(|&at| state.roster().is_beyond_parity(at)));
    }
    state.note_lost(&lost, if notes.is_empty() { Lists::Kept } else { Lists::Lost });
    for at in notes {
        state.kill_note(at);
    }
}

impl Roster<'_> {
    /// Returns whether donors given up for good hold more of this block's row than parity could
    /// restore.
    fn is_beyond_parity(&self, at: Location) -> bool {
        let missing = |at: Location, unit: usize| {
            let member = self.groups[at.group].members[unit];
            member.exists() && self.donors[member.donor as usize].state == DonorState::Missing
        };
        self.exceeds_parity(at, |unit| {
            self.is_gone(at, unit) || (is_planted(Bug::MissingForgotten) && missing(at, unit))
        })
    }

    /// Returns whether the block is gone and more of its row is gone than parity could restore.
    /// `is_gone`: whether a unit is gone.
    fn exceeds_parity(&self, at: Location, is_gone: impl Fn(usize) -> bool) -> bool {
        let group = &self.groups[at.group];
        if group.is_in_memory() || !is_gone(at.unit) {
            return false;
        }
        let filled = |&unit: &usize| at.row < group.covered(unit) as usize;
        let missing = (0..group.data()).filter(filled).filter(|&unit| is_gone(unit)).count().max(1);
        let parity = (group.data()..group.members.len()).filter(|&unit| !is_gone(unit)).count();
        missing > parity
    }

    /// Returns what giving up this donor would cost now.
    pub fn forget_cost(&self, number: DonorId) -> ForgetCost {
        let mut cost = ForgetCost { lost: 0, waiting: 0, away: Vec::new() };
        for block in 0..self.map.blocks() as u32 {
            let found = self.map.find(block).map(|found| found.at);
            let Some(at) = found.filter(|&at| !self.is_doubted(block, at)) else { continue };
            let member = |unit: usize| self.groups[at.group].members[unit];
            let gone = |unit: usize| self.is_gone(at, unit) || member(unit).is_on(number);
            let away = |unit: usize| {
                gone(unit)
                    || (!is_planted(Bug::WaitingUntold)
                        && member(unit).exists()
                        && self.donors[member(unit).donor as usize].is_absent())
            };
            cost.lost += u64::from(self.exceeds_parity(at, gone));
            cost.waiting += u64::from(!self.exceeds_parity(at, gone) && self.exceeds_parity(at, away));
        }
        let others = self.donors.iter().enumerate().filter(|(other, _)| *other != number as usize);
        let others = others.filter(|(_, donor)| donor.state == DonorState::Missing);
        cost.away = others.map(|(_, donor)| donor.info.name.clone()).collect();
        cost
    }
}

/// Takes the next step towards the failure domains that the caller wants.
fn turn_domains(state: &mut State) {
    match state.next_turn() {
        None => {}
        Some(Turn::Adopt) => state.adopt_domains(),
        Some(turn) => {
            state.domains.in_force = turn == Turn::Enter;
            new_epoch(state, Membership::Changed);
        }
    }
}

/// Runs the steps that depend on time alone.
pub(crate) fn tick(core: &Arc<Core>, state: &mut State) {
    pace::look(core, state);
    state.count_donors();
    check_epoch(state);
    turn_domains(state);
    if state.repairs.is_retry_due(state.now_ns) {
        retry(state);
    }
}

impl State {
    /// Serves requests once the donors know the present epoch. Earlier, a disk might not be found
    /// again, or a donor that is missing now could return after the client's next death with
    /// entries that nobody has seen.
    pub fn serve_when_known(&mut self, core: &Arc<Core>) {
        let core = core.clone();
        self.schedule.spawn(async move {
            core.until(|state| (state.epoch.is_stored() || is_planted(Bug::ServeEarly)).then_some(())).await;
            let state = &mut *core.lock();
            state.ready = true;
            if !state.domains.in_force {
                state.adopt_domains();
            }
            for number in 0..state.donors.len() {
                if state.donors[number].state == DonorState::Returning {
                    state.schedule.spawn(graft(core.clone(), number as DonorId));
                }
            }
            requeue(state);
            state.wake();
        });
    }
}

/// Excludes absent donors that nothing refers to any more. Runs as long as the disk.
pub(crate) async fn excluder(core: Arc<Core>) {
    loop {
        let number = core.until(to_exclude).await;
        let state = &mut *core.lock();
        discard(state, number);
    }
}

fn to_exclude(state: &mut State) -> Option<DonorId> {
    if !(state.ready && state.repairs.is_over() && state.epoch.is_stored()) {
        return None;
    }
    let gone = |donor: &Donor| matches!(donor.state, DonorState::Missing | DonorState::Forgotten);
    let is_free = |number: usize| {
        let scanned = state.donors[number].scanned;
        let named = |group: &Group| group.is_on(number as DonorId) || (!scanned && group.incomplete().is_some());
        !state.groups.iter().any(|(_, group)| named(group))
    };
    (0..state.donors.len())
        .find(|&number| gone(&state.donors[number]) && is_free(number) && can_store_without(state, number))
        .map(|number| number as DonorId)
}

impl State {}
