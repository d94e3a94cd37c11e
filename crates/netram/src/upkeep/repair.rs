//! Restoring redundancy: rebuilding units of absent donors on others, and emptying a donor that
//! must leave.
//!
//! Rules: a damaged unit is computed again. A unit that must leave its donor is computed, too, or
//! copied. It goes to a donor that holds nothing else of its group. If there is none, the group's
//! live blocks go into narrower groups. What cannot be read at the moment stays as it is and is
//! tried again. Two units of a group never share a donor. Rebuilt blocks are compared with their
//! checksums. Left out: which donors are there (`membership`), stale donors at opening
//! (`opening::scan`).

use std::sync::Arc;

use shoal_format::ram::{GroupId, UnitHeader};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::planted::{Bug, is_planted};
use crate::requests::write::flush;
use crate::state::State;
use crate::state::donors::DonorState;
use crate::state::place::Member;
use crate::state::retry::needs_repair;
use crate::state::room::{CLEANING_UNITS, RESERVE_UNITS};
use crate::state::unit::Head;
use crate::task::{Core, pause};
use crate::upkeep::empty::empty;
use crate::upkeep::rebuild::{copy, look_at_damaged, rebuild};

/// Delay before a drain that waits for room looks again (ns).
const ROOM_NS: u64 = 100_000_000;
/// Delay before a failed flush is tried again (ns).
pub(crate) const FLUSH_AGAIN_NS: u64 = 1_000_000_000;

/// Flushes when the queue has been worked through: repair is over only when the moved blocks are
/// safe. Runs as long as the disk.
pub(crate) async fn guardian(core: Arc<Core>) {
    loop {
        core.until(|state| {
            let due = state.repairs.wants_flush() && !state.shortage.is_stuck() && state.failure.is_none();
            due.then(|| state.repairs.flush_begins())
        })
        .await;
        let begun = core.lock().now_ns;
        if flush(&core).await.is_ok() {
            let state = &mut *core.lock();
            if state.repairs.flush_ended() && state.found.doubts.is_empty() {
                state.let_go_of_doubted();
            }
            state.wake();
        } else if core.lock().now_ns == begun {
            // With too few donors for long, a flush fails at once. Without a pause this loop would
            // never return to the engine.
            pause(&core, FLUSH_AGAIN_NS).await;
        }
    }
}

/// Repairs the queued groups. Runs as long as the disk.
pub(crate) async fn repairer(core: Arc<Core>) {
    loop {
        let repairing = core.clone();
        core.until(|state| {
            let (index, id) = state.repairs.next()?;
            let core = repairing.clone();
            state.schedule.spawn(async move { repair_queued(&core, index, id).await });
            Some(())
        })
        .await;
    }
}

async fn repair_queued(core: &Arc<Core>, index: u32, id: GroupId) {
    // Claim the group, unless it was freed meanwhile.
    let ours = core
        .until(|state| {
            let group = &state.groups[index];
            if group.id != id {
                return Some(false);
            }
            if group.is_busy() || group.is_in_memory() {
                return None;
            }
            state.groups.claim(index);
            Some(true)
        })
        .await;
    if ours {
        repair(core, index, None).await;
        core.lock().release(index);
    }
    let state = &mut *core.lock();
    let group = &state.groups[index];
    if ours && group.id == id && group.live() > 0 && needs_repair(state, index) {
        state.retry_later();
    }
    state.repairs.ended();
    state.wake();
}

/// A unit's way from one donor to another. `to`: `None`, any donor that may have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Move {
    pub from: DonorId,
    pub to: Option<DonorId>,
}

/// Moves a claimed group's unit from one donor to another. Returns false if there was no room, or
/// if the unit could not be read.
pub(crate) async fn move_off(core: &Arc<Core>, index: u32, Move { from, to }: Move) -> bool {
    repair(core, index, Some(Move { from, to })).await;
    let state = core.lock();
    !state.groups[index].is_on(from)
}

/// A unit that must leave its donor.
struct Leaving {
    place: usize,
    member: Member,
    /// A unit for it on another donor, if there is room.
    target: Option<Member>,
    /// The donor is being drained.
    draining: bool,
    /// The donor stays in use, and only this unit leaves it.
    moves: bool,
}

/// Moves a claimed group's units to donors that keep them. `asked`: this unit moves, too, if there is room for it.
async fn repair(core: &Arc<Core>, index: u32, asked: Option<Move>) {
    loop {
        let (incomplete, dead) = {
            let group = &core.lock().groups[index];
            (group.incomplete().is_some(), group.live() == 0)
        };
        if dead {
            return;
        }
        if incomplete {
            return empty_beside(core, index).await;
        }
        let Some(leaving) = next_to_leave(&mut core.lock(), index, asked) else { return };
        let Leaving { place, draining, moves, .. } = leaving;
        let Some(target) = leaving.target else {
            return match (moves, draining) {
                (true, _) => {}
                (false, true) => empty_in_turn(core, index).await,
                (false, false) => empty_beside(core, index).await,
            };
        };
        let copy = if draining || moves { copy(core, index, place).await } else { None };
        let unit = match copy {
            Some(unit) => Some(unit),
            None => rebuild(core, index, place).await,
        };
        let Some((header, blocks)) = unit else {
            core.lock().give_back(target);
            if !moves {
                // Parity cannot restore the unit: save the live blocks of the other units.
                empty_beside(core, index).await;
            }
            return;
        };
        if core.lock().groups[index].is_damaged_at(place) {
            // Check the whole unit, not only the blocks that were read.
            look_at_damaged(core, index, place, &header).await;
        }
        let stored = store(core, target, header, &blocks).await;
        let state = &mut *core.lock();
        let first_sequence = state.groups[index].first_sequence;
        if stored {
            let member = leaving.member;
            state.donors[target.donor as usize].units.is_replaced(target.unit);
            state.groups[index].members[place] = Member { count: member.count, ..target };
            state.groups[index].mend(place);
            state.erase_later(member, first_sequence);
        } else {
            if is_planted(Bug::MendedUnstored) {
                state.groups[index].mend(place);
            }
            state.erase_later(target, first_sequence);
        }
    }
}

/// Returns the first unit of a group that must leave its donor. Gives back units that were never
/// used.
fn next_to_leave(state: &mut State, index: u32, asked: Option<Move>) -> Option<Leaving> {
    let from = asked.map(|asked| asked.from);
    loop {
        let group = &state.groups[index];
        let leaves = |member: &Member| {
            let stays = state.donors[member.donor as usize].keeps() && from != Some(member.donor);
            member.exists() && !stays
        };
        let damaged = |&place: &usize| group.is_damaged_at(place);
        let damaged = (0..group.members.len()).find(damaged);
        let place = group.members.iter().position(leaves).or(damaged)?;
        let member = group.members[place];
        if member.count == 0 {
            state.groups[index].members[place] = Member::NONE;
            state.give_back(member);
            continue;
        }
        let moves = from == Some(member.donor);
        let mut members = group.members.to_vec();
        match is_planted(Bug::SharedDonor) {
            true => members.clear(),
            false => drop(members.remove(place)),
        }
        let to = asked.and_then(|asked| asked.to).filter(|_| moves);
        let may_have = |donor: DonorId| !(moves && donor == member.donor) && to.is_none_or(|to| to == donor);
        // Nothing is lost while a drain waits, so it leaves what cleaning needs.
        let draining = state.donors[member.donor as usize].state == DonorState::Draining;
        let reserve = if draining { RESERVE_UNITS } else { CLEANING_UNITS };
        let target = state.take_unit_beside(&members, reserve, may_have);
        return Some(Leaving { place, member, target, draining, moves });
    }
}

/// Writes a unit to its new place: blocks first, then the header. While the former unit still
/// exists, opening must not choose a new one that is only there in part. Returns false if the donor
/// did not take it.
pub(crate) async fn store(core: &Arc<Core>, target: Member, header: UnitHeader, blocks: &[u8]) -> bool {
    let heads;
    let write = {
        let state = &mut *core.lock();
        // The header names the donor it is on.
        let born = state.donors[target.donor as usize].born;
        let header = UnitHeader { donor: target.donor, born, ..header };
        let version = state.shape.version(target.unit, &Head::default(), &header, blocks);
        let DonorOp::Write { at, mut bytes } = version.op else { unreachable!("a version is a write") };
        let blocks = bytes.split_off(state.shape.heads_bytes());
        let blocks = DonorOp::Write { at: at + bytes.len() as u64, bytes: blocks };
        heads = DonorOp::Write { at, bytes };
        core.op(state, target.donor, blocks, Purpose::Repair)
    };
    if write.await.is_err() {
        return false;
    }
    let write = core.op(&mut core.lock(), target.donor, heads, Purpose::Repair);
    write.await.is_ok()
}

/// Empties a group when there is room for its blocks in addition to those of other groups that are being emptied. Groups
/// that are emptied in part free nothing, and several of them could take all the room.
async fn empty_beside(core: &Arc<Core>, index: u32) {
    core.until(|state| {
        let live = state.groups[index].live();
        state.room().empties_beside_victims(live).then(|| state.shortage.empties(index))
    })
    .await;
    empty(core, index).await;
    let state = &mut *core.lock();
    state.shortage.cleaned(index);
    state.wake();
}

/// Empties a group of a donor that must leave, if there is room for its blocks in addition to those
/// of other groups that are being emptied. Otherwise the group waits.
async fn empty_in_turn(core: &Arc<Core>, index: u32) {
    {
        let state = &mut *core.lock();
        // Its units are free only when its blocks are safe elsewhere, in at most two narrower
        // groups.
        let room = match state.repairs.emptied() {
            0 => 1,
            others => 2 * (others + 1),
        };
        if !state.room().has_room(room) {
            let at = state.now_ns + ROOM_NS;
            state.repairs.retry_by(at);
            if state.repairs.drain_wants_room() {
                // Levelling may make room now that units have moved.
                state.leveling.try_now();
            }
            state.wake();
            return;
        }
        state.repairs.emptying_begins();
    }
    empty(core, index).await;
    core.lock().repairs.emptying_ended();
}
