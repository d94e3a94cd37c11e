//! Restoring redundancy: units of donors that are not there are rebuilt on others, and a donor that is to leave is emptied.
//!
//! Rules: a unit that is not where it is to stay is computed anew, or copied, and put on a donor that holds nothing of its
//! group; where there is none, the group's live blocks go into narrower groups. What cannot be had at the moment stays as it is,
//! and is tried again. Two units of a group never share a donor. What is rebuilt was compared with its checksums.
//! Left out: who is there (`membership`), stale donors at opening (`scan`).

use std::sync::Arc;

use shoal_format::ram::{SLOTS_BYTES, UnitEntry, UnitHeader};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::clean::empty;
use crate::donors::DonorState;
use crate::membership::{needs_repair, new_epoch, requeue, retry_later, try_again};
use crate::parity;
use crate::planted::{Bug, is_planted};
use crate::state::{Member, NOTE_UNITS, RESERVE_UNITS, State};
use crate::task::{Core, Op};
use crate::unit::Head;
use crate::write::{join, send};

/// A drain that waits for room looks again after so long (ns).
const ROOM_NS: u64 = 100_000_000;
/// Groups repaired at the same time.
const AT_ONCE: usize = 8;

/// Puts right what opening found: stray units, groups that miss units, donors that are not there.
pub(crate) fn after_scan(state: &mut State) {
    for (member, first_sequence) in std::mem::take(&mut state.strays) {
        state.erase_later(member, first_sequence);
    }
}

/// Repair is over only when what it moved is safe. Runs as long as the disk.
pub(crate) async fn guardian(core: Arc<Core>) {
    let done = |state: &State| state.repair_queue.is_empty() && state.repair_done == state.repair_total;
    loop {
        core.until(|state| {
            let due = !state.repair_safe && done(state) && !state.stuck && state.failure.is_none();
            due.then(|| state.repair_moved = false)
        })
        .await;
        if crate::write::flush(&core).await.is_ok() {
            let state = &mut *core.lock();
            state.repair_safe = done(state) && !state.repair_moved;
            if state.repair_safe && state.doubts.is_empty() {
                state.let_go_of_doubted();
            }
            state.wake();
        }
    }
}

/// Works through the queue. Runs as long as the disk.
pub(crate) async fn repairer(core: Arc<Core>) {
    loop {
        let repairing = core.clone();
        core.until(|state| {
            if state.repairing == AT_ONCE {
                return None;
            }
            let (index, id) = state.repair_queue.pop_front()?;
            state.repairing += 1;
            let core = repairing.clone();
            state.schedule.spawn(async move { repair_queued(&core, index, id).await });
            Some(())
        })
        .await;
    }
}

async fn repair_queued(core: &Arc<Core>, index: u32, id: u64) {
    // Claimed, or freed meanwhile.
    let ours = core
        .until(|state| {
            let group = &state.groups[index as usize];
            if group.id != id {
                return Some(false);
            }
            if group.busy || group.memory.is_some() {
                return None;
            }
            state.claim(index);
            Some(true)
        })
        .await;
    if ours {
        repair(core, index, None).await;
        core.lock().release(index);
    }
    let state = &mut *core.lock();
    let group = &state.groups[index as usize];
    if ours && group.id == id && group.live > 0 && needs_repair(state, index as usize) {
        retry_later(state);
    }
    state.repairing -= 1;
    state.repair_done += 1;
    state.wake();
}

/// Moves the unit of a claimed group that is on a donor to another one. False if there was no room, or it could not be had.
pub(crate) async fn move_off(core: &Arc<Core>, index: u32, from: DonorId) -> bool {
    repair(core, index, Some(from)).await;
    let state = core.lock();
    !state.groups[index as usize].is_on(from)
}

/// Brings a claimed group's units onto donors that count. `from`: it is to leave this one, too, if another has room.
async fn repair(core: &Arc<Core>, index: u32, from: Option<DonorId>) {
    loop {
        let (incomplete, dead) = {
            let group = &core.lock().groups[index as usize];
            (group.incomplete().is_some(), group.live == 0)
        };
        if dead {
            return;
        }
        if incomplete {
            empty(core, index).await;
            return;
        }
        let (place, member, draining, target) = {
            let state = &mut *core.lock();
            let group = &state.groups[index as usize];
            let leaves = |member: &Member| {
                let stays = state.donors[member.donor as usize].keeps() && from != Some(member.donor);
                member.exists() && !stays
            };
            let Some(place) = group.members.iter().position(leaves) else { return };
            let member = group.members[place];
            if member.count == 0 {
                state.groups[index as usize].members[place] = Member::NONE;
                state.give_back(member);
                continue;
            }
            let mut members = group.members.to_vec();
            if is_planted(Bug::SharedDonor) {
                members.clear();
            } else if from != Some(member.donor) {
                members.remove(place);
            }
            // Nothing is lost while a drain waits: it leaves what cleaning needs.
            let draining = state.donors[member.donor as usize].state == DonorState::Draining;
            let reserve = if draining { RESERVE_UNITS } else { NOTE_UNITS };
            (place, member, draining, state.take_unit_beside(&members, reserve))
        };
        let moves = from == Some(member.donor);
        let Some(target) = target else {
            match (moves, draining) {
                (true, _) => {}
                (false, true) => empty_in_turn(core, index).await,
                (false, false) => empty(core, index).await,
            }
            return;
        };
        let copy = if draining || moves { copy(core, index, place).await } else { None };
        let unit = match copy {
            Some(unit) => Some(unit),
            None => rebuild(core, index, place).await,
        };
        let Some((header, blocks)) = unit else {
            // Beyond what parity can give back: what is live elsewhere in the group is saved.
            core.lock().give_back(target);
            if moves {
                return;
            }
            empty(core, index).await;
            return;
        };
        let heads;
        let write = {
            let state = &mut *core.lock();
            // The header names the donor it is on.
            let born = state.donors[target.donor as usize].born;
            let header = UnitHeader { donor: target.donor, born, ..header };
            let version = state.version(target.unit, &Head::default(), &header, &blocks);
            // Its blocks first: where the former unit is still there, too, opening must not take this one if it is there in part.
            let DonorOp::Write { at, mut bytes } = version.op else { unreachable!("a version is a write") };
            let blocks = bytes.split_off(state.heads_bytes());
            let blocks = DonorOp::Write { at: at + bytes.len() as u64, bytes: blocks };
            heads = DonorOp::Write { at, bytes };
            core.op(state, target.donor, blocks, Purpose::Repair)
        };
        let mut failed = join(vec![write]).await;
        if !failed {
            let write = core.op(&mut core.lock(), target.donor, heads, Purpose::Repair);
            failed = join(vec![write]).await;
        }
        let state = &mut *core.lock();
        let first_sequence = state.groups[index as usize].first_sequence;
        if failed {
            state.erase_later(target, first_sequence);
        } else {
            state.groups[index as usize].members[place] = Member { count: member.count, ..target };
            state.erase_later(member, first_sequence);
        }
    }
}

/// Empties a group of a donor that is to leave, if there is room for what it holds beside others that are emptied; else later.
async fn empty_in_turn(core: &Arc<Core>, index: u32) {
    {
        let state = &mut *core.lock();
        // Its units are free only when its blocks are safe elsewhere, in two narrower groups at most.
        let room = if state.emptied == 0 { 1 } else { 2 * (state.emptied + 1) };
        if !state.has_room(room) {
            let at = state.now_ns + ROOM_NS;
            state.retry_at_ns = Some(state.retry_at_ns.map_or(at, |other| other.min(at)));
            if !std::mem::replace(&mut state.drain_waits, true) {
                // Evening out may make room now that units have moved.
                state.level_at_ns = 0;
            }
            state.wake();
            return;
        }
        state.emptied += 1;
    }
    empty(core, index).await;
    core.lock().emptied -= 1;
}

/// A data unit as it is, if it is as it was written. Of a parity unit nothing says what its blocks must be.
async fn copy(core: &Arc<Core>, index: u32, place: usize) -> Option<(UnitHeader, Vec<u8>)> {
    let (id, data, members, op) = {
        let state = &mut *core.lock();
        let group = &state.groups[index as usize];
        let (id, data, members) = (group.id, group.data(), group.members.clone());
        let op = whole_unit(state, members[place]);
        (id, data, members, core.op(state, op.0, op.1, Purpose::Repair))
    };
    let bytes = op.await.ok()?;
    let state = core.lock();
    let header = state.sealed_header(&bytes, id, &members, place).filter(|_| place < data)?;
    let blocks = &bytes[state.heads_bytes()..];
    are_right(&header.lists[0], blocks, state.block_bytes).then(|| (header, blocks.to_vec()))
}

/// Are these the blocks that the list says?
fn are_right(list: &[UnitEntry], blocks: &[u8], block_bytes: usize) -> bool {
    let right = |(entry, block): (&UnitEntry, &[u8])| shoal_format::checksum(0, block) == entry.crc;
    list.iter().zip(blocks.chunks_exact(block_bytes)).all(right)
}

/// Reads both headers and all blocks.
fn whole_unit(state: &State, member: Member) -> (DonorId, DonorOp) {
    let len = (state.heads_bytes() + member.count as usize * state.block_bytes) as u32;
    (member.donor, DonorOp::Read { at: state.unit_at(member.unit), len })
}

/// Computes a lost unit from the others of its group.
async fn rebuild(core: &Arc<Core>, index: u32, place: usize) -> Option<(UnitHeader, Vec<u8>)> {
    let (data, members, block_bytes, heads_bytes, uuid, id) = {
        let state = core.lock();
        let group = &state.groups[index as usize];
        (group.data(), group.members.clone(), state.block_bytes, state.heads_bytes(), state.config.uuid, group.id)
    };
    // Whole units of all that is left, at the same time.
    let ops: Vec<Option<Op>> = {
        let state = &mut *core.lock();
        let mut ask = |(other, member): (usize, &Member)| {
            let there = other != place && member.exists() && member.count > 0;
            let there = there && !state.donors[member.donor as usize].is_absent();
            there.then(|| {
                let (donor, op) = whole_unit(state, *member);
                core.op(state, donor, op, Purpose::Repair)
            })
        };
        members.iter().enumerate().map(&mut ask).collect()
    };
    let mut units: Vec<Option<Vec<u8>>> = Vec::new();
    for op in ops {
        units.push(match op {
            Some(op) => op.await.ok(),
            None => None,
        });
    }
    let headers: Vec<Option<UnitHeader>> = units
        .iter()
        .enumerate()
        .map(|(other, unit)| core.lock().sealed_header(unit.as_ref()?, id, &members, other))
        .collect();
    let block = |unit: usize, row: usize| -> Option<&[u8]> {
        let header = headers[unit].as_ref()?;
        let bytes = units[unit].as_ref()?.get(heads_bytes + row * block_bytes..)?.get(..block_bytes)?;
        let right = |entry: &UnitEntry| shoal_format::checksum(0, bytes) == entry.crc;
        (unit >= data || header.lists[0].get(row).is_some_and(right)).then_some(bytes)
    };
    let parities = members.len() - data;
    let rows = members[place].count as usize;
    // Another parity unit knows what a missing data unit held.
    let known = || headers[data..].iter().flatten().next().map(|header| header.lists.clone());
    let lists: Vec<Vec<UnitEntry>> = if place < data {
        vec![known()?.get(place)?.clone()]
    } else {
        let own = |unit: usize| match members[unit].count {
            0 => Some(Vec::new()),
            _ => headers[unit].as_ref()?.lists.first().cloned(),
        };
        let all: Option<Vec<_>> = (0..data).map(own).collect();
        all.or_else(known)?
    };
    let mut blocks = Vec::new();
    for row in 0..rows {
        let here = |unit: usize| match row < members[unit].count as usize {
            true => block(unit, row).map(<[u8]>::to_vec),
            false => Some(vec![0; block_bytes]),
        };
        let mut data_row: Vec<Option<Vec<u8>>> =
            (0..data).map(|unit| if unit == place { None } else { here(unit) }).collect();
        let parity_row: Vec<Option<Vec<u8>>> = (data..members.len())
            .map(|unit| if unit == place { None } else { block(unit, row).map(<[u8]>::to_vec) })
            .collect();
        for unit in (0..data).filter(|&unit| unit != place) {
            if data_row[unit].is_none() {
                data_row[unit] = Some(parity::decode(unit, &data_row, &parity_row)?);
            }
        }
        if place < data {
            blocks.extend_from_slice(&parity::decode(place, &data_row, &parity_row)?);
        } else {
            let whole: Vec<Option<&[u8]>> = data_row.iter().map(|block| block.as_deref()).collect();
            blocks.extend_from_slice(&parity::encode(&whole, parities, block_bytes)[place - data]);
        }
    }
    let header = UnitHeader {
        uuid,
        group: id,
        donor: 0,
        born: 0,
        horizon: 0,
        cut: 0,
        member: place as u8,
        data: data as u8,
        parity: parities as u8,
        lists,
    };
    // What parity gives back is compared with what was written.
    if place < data {
        let list = &header.lists[0];
        if list.len() != rows || !are_right(list, &blocks, block_bytes) {
            return None;
        }
    }
    core.lock().counts.reconstructed += rows as u64;
    Some((header, blocks))
}

/// There is no room anywhere else at the moment: donors that were to be emptied stay in use, and their own room helps. True if
/// there were any.
pub(crate) fn give_up_drains(state: &mut State) -> bool {
    let mut any = false;
    for donor in &mut state.donors {
        if donor.state == DonorState::Draining {
            (donor.state, donor.drains, any) = (DonorState::Active, false, true);
        }
    }
    if any {
        state.drain_waits = false;
        state.count_donors();
        try_again(state);
        state.wake();
    }
    any
}

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
        if crate::write::flush(&core).await.is_err() {
            crate::scan::pause(&core, 1_000_000_000).await;
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
