//! Losing, draining and adding donors: redundancy is restored on the donors that are left.
//!
//! Rules: a donor that failed once is lost for good; the others learn so by a new epoch before anything is freed, so that a stale
//! donor that comes back is known for what it is. A unit of a lost donor is computed anew and put on a donor that
//! holds nothing of its group; where there is none, the group's live blocks go into narrower groups. Two units of a group
//! never share a donor. Left out: finding donors again (who carries out operations), stale ones at opening (`scan`).

use std::sync::Arc;

use shoal_format::ram::{DiskSuperblock, SUPERBLOCK_BYTES, UnitEntry, UnitHeader};

use crate::api::{DiskError, DonorId, DonorOp, Purpose};
use crate::clean::{empty, erase};
use crate::parity;
use crate::planted::{Bug, is_planted};
use crate::state::{Donor, DonorState, Member, State};
use crate::task::{Core, Op};
use crate::write::{abandon, join, send};

/// Groups repaired at the same time.
pub(crate) const REPAIRERS: usize = 8;

/// A donor failed: from now on it holds nothing.
pub(crate) fn donor_lost(core: &Arc<Core>, donor: DonorId) {
    lose(core, &mut core.lock(), donor);
}

pub(crate) fn lose(core: &Arc<Core>, state: &mut State, donor: DonorId) {
    let Some(lost) = state.donors.get_mut(donor as usize) else { return };
    if !lost.counts() {
        lost.state = DonorState::Lost;
        lost.free.clear();
        return;
    }
    lost.state = DonorState::Lost;
    lost.free.clear();
    lost.untrimmed.clear();
    for index in state.in_memory.clone() {
        let group = &state.groups[index as usize];
        if group.members.iter().any(|member| member.exists() && member.donor == donor) {
            abandon(core, state, index);
        }
    }
    let need = state.plan.parity + 1;
    let have = state.active_donors();
    if have < need && state.ready {
        state.failure = Some(DiskError::TooFewDonors { have, need });
    }
    new_epoch(state);
    queue(state, donor);
}

/// Groups with a unit on this donor wait for repair.
pub(crate) fn queue(state: &mut State, donor: DonorId) {
    if state.repair_done == state.repair_total {
        (state.repair_done, state.repair_total, state.repair_began_ns) = (0, 0, state.now_ns);
    }
    state.repair_safe = false;
    for (index, group) in state.groups.iter().enumerate() {
        let there = group.members.iter().any(|member| member.exists() && member.donor == donor);
        if group.id != 0 && group.memory.is_none() && there {
            state.repair_queue.push_back((index as u32, group.id));
            state.repair_total += 1;
        }
    }
    state.wake();
}

/// Every donor is to learn which ones count.
pub(crate) fn new_epoch(state: &mut State) {
    state.epoch += 1;
    state.epoch_stored = false;
    state.wake();
}

/// Writes superblocks: one epoch after the other, because a late write must not undo a newer one. Runs as long as the disk.
pub(crate) async fn herald(core: Arc<Core>) {
    loop {
        let (epoch, joining, targets) = core
            .until(|state| {
                if state.epoch_stored {
                    return None;
                }
                // Whoever joins must know its number before the others count it.
                let with = |wanted: &dyn Fn(&Donor) -> bool| -> Vec<usize> {
                    (0..state.donors.len()).filter(|&n| wanted(&state.donors[n])).collect()
                };
                let joining = with(&|donor| donor.state == DonorState::Joining);
                match joining.is_empty() {
                    true => Some((state.epoch, false, with(&Donor::counts))),
                    false => Some((state.epoch, true, joining)),
                }
            })
            .await;
        let ops: Vec<Op> = {
            let state = &mut *core.lock();
            let mut ops = Vec::new();
            for &donor in &targets {
                let slot = state.superblock(donor).encode();
                let at = DiskSuperblock::slot_at(epoch);
                let op = match state.donors[donor].blank {
                    // Also over whatever the other slot holds.
                    true => {
                        let mut bytes = vec![0; SUPERBLOCK_BYTES];
                        bytes[at..at + slot.len()].copy_from_slice(&slot);
                        DonorOp::Write { at: 0, bytes }
                    }
                    false => DonorOp::Write { at: at as u64, bytes: slot },
                };
                ops.push(core.op(state, donor as DonorId, op, Purpose::Upkeep));
            }
            ops
        };
        // A failure here is a further loss, with an epoch of its own.
        join(&core, ops).await;
        let state = &mut *core.lock();
        for donor in targets {
            let donor = &mut state.donors[donor];
            donor.blank = false;
            if donor.state == DonorState::Joining {
                donor.state = DonorState::Active;
            }
        }
        if joining {
            state.epoch += 1;
        }
        state.epoch_stored = state.epoch == epoch;
        state.wake();
    }
}

impl State {
    /// Requests are served when the donors know the present epoch: before, a disk could not be found again, or a donor that
    /// is missing now could come back after the client's next death with what nobody has seen.
    pub fn serve_when_known(&mut self, core: &Arc<Core>) {
        let core = core.clone();
        self.schedule.spawn(async move {
            core.until(|state| (state.epoch_stored || is_planted(Bug::ServeEarly)).then_some(())).await;
            let state = &mut *core.lock();
            state.ready = true;
            state.wake();
        });
    }
}

/// Puts right what opening found: stray units, groups that miss units, donors that are not there.
pub(crate) fn after_scan(core: &Arc<Core>, state: &mut State) {
    let strays = std::mem::take(&mut state.strays);
    let erasing: Vec<(Member, Op)> = strays.into_iter().map(|member| (member, erase(core, state, member))).collect();
    for (member, _) in &erasing {
        state.donors[member.donor as usize].free.retain(|&unit| unit != member.unit);
    }
    let core_of_job = core.clone();
    state.schedule.spawn(async move {
        for (member, op) in erasing {
            if !join(&core_of_job, vec![op]).await {
                core_of_job.lock().give_back(member);
            }
        }
    });
    for lost in 0..state.donors.len() {
        if state.donors[lost].is_lost() {
            queue(state, lost as DonorId);
        }
    }
    let incomplete = state.groups.iter().enumerate().filter(|(_, group)| group.incomplete.is_some());
    let incomplete: Vec<(u32, u64)> = incomplete.map(|(index, group)| (index as u32, group.id)).collect();
    state.repair_total += incomplete.len() as u64;
    state.repair_began_ns = state.now_ns;
    state.repair_queue.extend(incomplete);
    state.repair_safe = false;
    new_epoch(state);
    state.wake();
}

/// Repair is over only when what it moved is safe. Runs as long as the disk.
pub(crate) async fn guardian(core: Arc<Core>) {
    let done = |state: &State| state.repair_queue.is_empty() && state.repair_done == state.repair_total;
    loop {
        core.until(|state| {
            (!state.repair_safe && done(state) && !state.stuck && state.failure.is_none()).then_some(())
        })
        .await;
        if crate::write::flush(&core).await.is_ok() {
            let state = &mut *core.lock();
            state.repair_safe = done(state);
            state.wake();
        }
    }
}

/// One of several that work through the queue. Runs as long as the disk.
pub(crate) async fn repairer(core: Arc<Core>) {
    loop {
        let (index, id) = core.until(|state| state.repair_queue.pop_front()).await;
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
            repair(&core, index).await;
            core.lock().release(index);
        }
        let state = &mut *core.lock();
        state.repair_done += 1;
        state.wake();
    }
}

/// Brings a claimed group's units onto donors that count.
async fn repair(core: &Arc<Core>, index: u32) {
    loop {
        let (incomplete, dead) = {
            let group = &core.lock().groups[index as usize];
            (group.incomplete.is_some(), group.live == 0)
        };
        if dead {
            return;
        }
        if incomplete {
            empty(core, index).await;
            return;
        }
        let (place, member, target) = {
            let state = &mut *core.lock();
            let group = &state.groups[index as usize];
            let leaves =
                |member: &Member| member.exists() && state.donors[member.donor as usize].state != DonorState::Active;
            let Some(place) = group.members.iter().position(leaves) else { return };
            let member = group.members[place];
            if member.count == 0 {
                state.groups[index as usize].members[place] = Member::NONE;
                state.give_back(member);
                continue;
            }
            let mut members = group.members.clone();
            if is_planted(Bug::SharedDonor) {
                members.clear();
            } else {
                members.remove(place);
            }
            (place, member, state.take_unit_beside(&members))
        };
        let Some(target) = target else {
            empty(core, index).await;
            return;
        };
        let draining = core.lock().donors[member.donor as usize].state == DonorState::Draining;
        let copy = if draining { copy(core, member).await } else { None };
        let bytes = match copy {
            Some(bytes) => Some(bytes),
            None => rebuild(core, index, place).await,
        };
        // The header names the donor it is on.
        let bytes = bytes.and_then(|mut bytes| {
            let header_bytes = core.lock().header_bytes;
            let header = UnitHeader::decode(bytes.get(..header_bytes)?).ok()?;
            let mut head = Vec::with_capacity(header_bytes);
            UnitHeader { donor: target.donor, ..header }.encode(header_bytes, &mut head);
            bytes[..header_bytes].copy_from_slice(&head);
            Some(bytes)
        });
        let Some(bytes) = bytes else {
            // Beyond what parity can give back: what is live elsewhere in the group is saved.
            core.lock().give_back(target);
            empty(core, index).await;
            return;
        };
        let write = {
            let state = &mut *core.lock();
            let op = DonorOp::Write { at: state.unit_at(target.unit), bytes };
            core.op(state, target.donor, op, Purpose::Repair)
        };
        if join(core, vec![write]).await {
            continue;
        }
        let erasing = {
            let state = &mut *core.lock();
            state.groups[index as usize].members[place] = Member { count: member.count, ..target };
            let there = !state.donors[member.donor as usize].is_lost();
            there.then(|| erase(core, state, member))
        };
        join(core, erasing.into_iter().collect()).await;
    }
}

/// A whole unit as it is.
async fn copy(core: &Arc<Core>, member: Member) -> Option<Vec<u8>> {
    let op = {
        let state = &mut *core.lock();
        let len = state.header_bytes + member.count as usize * state.block_bytes;
        let op = DonorOp::Read { at: state.unit_at(member.unit), len: len as u32 };
        core.op(state, member.donor, op, Purpose::Repair)
    };
    let donor = op.donor;
    match op.await {
        Ok(bytes) => Some(bytes),
        Err(_) => {
            donor_lost(core, donor);
            None
        }
    }
}

/// Computes a lost unit from the others of its group.
async fn rebuild(core: &Arc<Core>, index: u32, place: usize) -> Option<Vec<u8>> {
    let (data, members, block_bytes, header_bytes, uuid, id) = {
        let state = core.lock();
        let group = &state.groups[index as usize];
        (group.data, group.members.clone(), state.block_bytes, state.header_bytes, state.config.uuid, group.id)
    };
    // Whole units of all that is left, at the same time.
    let ops: Vec<Option<Op>> = {
        let state = &mut *core.lock();
        let mut ask = |(other, member): (usize, &Member)| {
            let there = other != place && member.exists() && member.count > 0;
            let there = there && !state.donors[member.donor as usize].is_lost();
            there.then(|| {
                let len = (header_bytes + member.count as usize * block_bytes) as u32;
                let op = DonorOp::Read { at: state.unit_at(member.unit), len };
                core.op(state, member.donor, op, Purpose::Repair)
            })
        };
        members.iter().enumerate().map(&mut ask).collect()
    };
    let mut units: Vec<Option<Vec<u8>>> = Vec::new();
    for op in ops {
        units.push(match op {
            Some(op) => {
                let donor = op.donor;
                let answer = op.await;
                if answer.is_err() {
                    donor_lost(core, donor);
                }
                answer.ok()
            }
            None => None,
        });
    }
    let headers: Vec<Option<UnitHeader>> = units
        .iter()
        .enumerate()
        .map(|(other, unit)| {
            let header = UnitHeader::decode(unit.as_ref()?.get(..header_bytes)?).ok()?;
            (header.group == id && header.member as usize == other).then_some(header)
        })
        .collect();
    let block = |unit: usize, row: usize| -> Option<&[u8]> {
        headers[unit].as_ref()?;
        units[unit].as_ref()?.get(header_bytes + row * block_bytes..)?.get(..block_bytes)
    };
    let parities = members.len() - data;
    let rows = members[place].count as usize;
    let mut out = Vec::new();
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
    let header =
        UnitHeader { uuid, group: id, donor: 0, member: place as u8, data: data as u8, parity: parities as u8, lists };
    // What parity gives back is compared with what was written.
    if place < data {
        let right = |(entry, block): (&UnitEntry, &[u8])| shoal_format::checksum(0, block) == entry.crc;
        if header.lists[0].len() != rows || !header.lists[0].iter().zip(blocks.chunks_exact(block_bytes)).all(right) {
            return None;
        }
    }
    header.encode(header_bytes, &mut out);
    out.extend_from_slice(&blocks);
    core.lock().counts.reconstructed += rows as u64;
    Some(out)
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
        let on_it = |state: &State, index: u32| {
            state.groups[index as usize].members.iter().any(|member| member.exists() && member.donor == donor)
        };
        for index in state.in_memory.clone() {
            if on_it(state, index) {
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
    loop {
        let left = {
            let state = &mut *core.lock();
            queue(state, donor);
            state.groups.iter().any(|group| {
                group.id != 0 && group.members.iter().any(|member| member.exists() && member.donor == donor)
            })
        };
        if !left || core.lock().donors[donor as usize].is_lost() {
            break;
        }
        // Until what was queued is through; then what was on its way at the time is sealed, too.
        core.until(|state| {
            let settled = state.repair_queue.is_empty() && state.repair_done == state.repair_total;
            (settled || state.donors[donor as usize].is_lost()).then_some(())
        })
        .await;
        let blocked = core.lock().stuck;
        if blocked {
            // No room anywhere else: it stays in use as it is.
            let state = &mut *core.lock();
            state.donors[donor as usize].state = DonorState::Active;
            state.wake();
            return;
        }
        // Emptied groups become free when their blocks are safe elsewhere.
        let _ = crate::write::flush(&core).await;
        core.until(|state| {
            let on_its_way = state.groups.iter().any(|group| {
                let there = group.members.iter().any(|member| member.exists() && member.donor == donor);
                group.id != 0 && there && (group.memory.is_some() || group.busy || group.live == 0)
            });
            (!on_its_way || state.stuck || state.donors[donor as usize].is_lost()).then_some(())
        })
        .await;
    }
    let erasing = {
        let state = &mut *core.lock();
        if state.donors[donor as usize].is_lost() {
            return;
        }
        state.donors[donor as usize].state = DonorState::Drained;
        state.donors[donor as usize].free.clear();
        new_epoch(state);
        let op = DonorOp::Write { at: 0, bytes: vec![0; SUPERBLOCK_BYTES] };
        core.op(state, donor, op, Purpose::Upkeep)
    };
    // It is empty already; a failure changes nothing.
    let _ = erasing.await;
}
