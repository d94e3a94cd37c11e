//! Sending groups in memory to their donors.
//!
//! Rules: a group that was never on the donors is sent together with its parity. A group that grows
//! sends data first, and the parity that covers the data once it is stored. A job that sends ends
//! with [`DonorLost`] if a donor did not take its part. Left out: what happens to the group then
//! (`abandon`).

use std::sync::Arc;

use shoal_format::ram::{UnitEntry, UnitHeader};

use crate::api::{DonorId, Purpose};
use crate::parity;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::group::Group;
use crate::state::memory::Memory;
use crate::state::place::Member;
use crate::state::schedule::DonorLost;
use crate::state::unit::{Head, Version};
use crate::task::{Core, Op};

/// Starts sending a group until all its blocks are safe.
pub(crate) fn send(core: &Arc<Core>, state: &mut State, index: u32) {
    let Some(memory) = state.groups[index].memory_mut() else { return };
    memory.parity_wanted = true;
    send_grown(core, state, index);
}

/// Starts sending what a group has gained. Parity waits unless it is wanted already.
pub(crate) fn send_grown(core: &Arc<Core>, state: &mut State, index: u32) {
    let redundant = state.plan.parity > 0;
    let Some(memory) = state.groups[index].memory_mut() else { return };
    memory.parity_wanted |= !redundant || memory.full;
    let several = state.plan.parity > 1 && memory.parity_wanted && !memory.full && !memory.abandoned;
    if several {
        // Several parity units cannot grow at the same moment: the group is closed as it is.
        state.open.leave(index);
        state.close(index);
    }
    let Some(memory) = state.groups[index].memory_mut() else { return };
    if memory.sending || memory.abandoned {
        return;
    }
    memory.sending = true;
    let core = core.clone();
    state.schedule.spawn_send(async move { send_all(&core, index).await });
}

async fn send_all(core: &Arc<Core>, index: u32) -> Result<(), DonorLost> {
    loop {
        let Some((data, fresh_parity)) = send_data(core, index) else { return Ok(()) };
        let counts: Vec<u8> = data.1;
        let mut failed = arrive(core, index, data.0).await;
        if is_planted(Bug::FlushEarly) {
            let state = &mut *core.lock();
            if let Some(memory) = state.groups[index].memory_mut() {
                memory.arrived(&counts);
                memory.made_safe(&counts);
            }
            state.wake();
        }
        let parity = match fresh_parity {
            Some(ops) => Some(ops),
            // Send parity only after the data it covers is stored.
            None if !failed => send_parity(core, index, &counts),
            None => None,
        };
        let with_parity = parity.is_some();
        failed |= arrive(core, index, parity.unwrap_or_default()).await;
        let mut state = core.lock();
        let state = &mut *state;
        let redundant = state.plan.parity > 0;
        let memory = state.groups[index].memory_mut().expect("it is being sent");
        if failed || memory.abandoned {
            memory.sending = false;
            state.wake();
            return if failed { Err(DonorLost { group: index }) } else { Ok(()) };
        }
        memory.arrived(&counts);
        if with_parity || !redundant {
            memory.made_safe(&counts);
        }
        memory.again &= !with_parity && redundant;
        state.wake();
        let memory = state.groups[index].memory_mut().expect("it is being sent");
        let lens: Vec<u8> = memory.counts();
        let all_safe = memory.safe == lens;
        if all_safe {
            memory.parity_wanted = false;
        }
        if memory.full && all_safe {
            seal(state, index);
            return Ok(());
        }
        let goes_on = memory.sent != lens || (memory.parity_wanted && !all_safe) || memory.full;
        let wanted = memory.parity_wanted || memory.full || !state.plan.cached;
        let memory = state.groups[index].memory_mut().expect("it is being sent");
        if !(goes_on && wanted) {
            memory.sending = false;
            return Ok(());
        }
    }
}

/// Data units that have grown, with parity if nothing of the group is on the donors yet.
type Sending = ((Vec<Sent>, Vec<u8>), Option<Vec<Sent>>);

/// What a unit is once its version is stored.
struct Stored {
    donor: DonorId,
    unit: u32,
    head: Head,
}

/// A unit in flight, its place in the group, and its head once it is stored.
type Sent = (Op, usize, Stored);

/// Waits for all units. Returns whether any failed.
async fn arrive(core: &Arc<Core>, index: u32, sent: Vec<Sent>) -> bool {
    let mut failed = false;
    for (op, place, version) in sent {
        let stored = op.await.is_ok();
        failed |= !stored;
        if stored {
            core.lock().is_stored(index, place, version);
        }
    }
    failed
}

fn send_data(core: &Arc<Core>, index: u32) -> Option<Sending> {
    let mut state = core.lock();
    let state = &mut *state;
    let group = &state.groups[index];
    let memory = group.memory()?;
    let fresh = memory.sent.iter().chain(&memory.safe).all(|&count| count == 0);
    let (purpose, wanted) = (memory.purpose, memory.parity_wanted);
    let counts: Vec<u8> = memory.counts();
    let grown: Vec<usize> = (0..group.data()).filter(|&unit| counts[unit] > memory.sent[unit]).collect();
    let writes: Vec<_> =
        grown.iter().map(|&unit| (unit, group.members[unit], state.data_version(group, memory, unit))).collect();
    let blocks: u64 = grown.iter().map(|&unit| (counts[unit] - memory.sent[unit]) as u64).sum();
    let sent = if purpose == Purpose::Clean { &mut state.counts.cleaned_data } else { &mut state.counts.sent_data };
    *sent += blocks;
    state.groups[index].memory_mut().expect("looked at above").sent.copy_from_slice(&counts);
    let ops: Vec<Sent> = writes.into_iter().map(|write| sent_op(core, state, write, purpose)).collect();
    let parity = ((fresh || is_planted(Bug::ParityFirst)) && wanted && state.plan.parity > 0)
        .then(|| parity_ops(core, state, index, &counts));
    Some(((ops, counts), parity))
}

/// Sends a version of the unit at a place of a group.
fn sent_op(
    core: &Arc<Core>,
    state: &mut State,
    (place, member, version): (usize, Member, Version),
    purpose: Purpose,
) -> Sent {
    let stored = Stored { donor: member.donor, unit: member.unit, head: version.head };
    (core.op(state, member.donor, version.op, purpose), place, stored)
}

/// Sends parity for everything stored, if it is wanted and covers less so far.
fn send_parity(core: &Arc<Core>, index: u32, counts: &[u8]) -> Option<Vec<Sent>> {
    let mut state = core.lock();
    let state = &mut *state;
    let memory = state.groups[index].memory()?;
    if !memory.parity_wanted || state.plan.parity == 0 || (memory.safe == counts && !memory.again) {
        return None;
    }
    Some(parity_ops(core, state, index, counts))
}

fn parity_ops(core: &Arc<Core>, state: &mut State, index: u32, counts: &[u8]) -> Vec<Sent> {
    let block_bytes = state.shape.block_bytes;
    let group = &state.groups[index];
    let memory = group.memory().expect("it is being sent");
    let parity = group.members.len() - group.data();
    let rows = counts.iter().copied().max().unwrap_or(0) as usize;
    let mut blocks: Vec<Vec<u8>> = vec![Vec::with_capacity(rows * block_bytes); parity];
    for row in 0..rows {
        let here = |unit: usize| {
            let has = row < counts[unit] as usize;
            has.then(|| &memory.buffers[unit][row * block_bytes..][..block_bytes])
        };
        let units: Vec<Option<&[u8]>> = (0..group.data()).map(here).collect();
        for (all, one) in blocks.iter_mut().zip(parity::encode(&units, parity, block_bytes)) {
            all.extend_from_slice(&one);
        }
    }
    let lists: Vec<_> = memory.lists.iter().zip(counts).map(|(list, &count)| list[..count as usize].to_vec()).collect();
    let (data, purpose) = (group.data(), memory.purpose);
    let covered = memory.safe.iter().copied().max().unwrap_or(0) as usize;
    let mut writes = Vec::new();
    for (place, blocks) in blocks.into_iter().enumerate() {
        let place = data + place;
        let header = state.header(group, place, lists.clone());
        let version = state.shape.version(group.members[place].unit, &memory.heads[place], &header, &blocks);
        writes.push((place, group.members[place], version));
    }
    let sent = if purpose == Purpose::Clean { &mut state.counts.cleaned_parity } else { &mut state.counts.sent_parity };
    *sent += (parity * (rows - covered.min(rows)).max(1)) as u64;
    for place in data..data + parity {
        state.groups[index].members[place].count = rows as u8;
    }
    writes.into_iter().map(|write| sent_op(core, state, write, purpose)).collect()
}

/// Drops a group's memory, because everything in it is safe on donors.
pub(crate) fn seal(state: &mut State, index: u32) {
    state.groups.seal(index);
    state.wake();
}

impl State {
    /// Records that a donor has stored a version of a unit of a group in memory.
    fn is_stored(&mut self, index: u32, place: usize, Stored { donor, unit, head }: Stored) {
        let group = &mut self.groups[index];
        // Meanwhile the place may have got another unit.
        let is_there = group.members[place].is_on(donor) && group.members[place].unit == unit;
        if let Some(memory) = group.memory_mut() {
            memory.heads[place] = head;
        }
        if is_there {
            self.donors[donor as usize].units.is_replaced(unit);
        }
    }

    /// Builds the version of a data unit of a group in memory as it is now.
    pub fn data_version(&self, group: &Group, memory: &Memory, place: usize) -> Version {
        let header = self.header(group, place, vec![memory.lists[place].clone()]);
        self.shape.version(group.members[place].unit, &memory.heads[place], &header, &memory.buffers[place])
    }

    pub fn header(&self, group: &Group, place: usize, lists: Vec<Vec<UnitEntry>>) -> UnitHeader {
        UnitHeader {
            uuid: self.config.uuid,
            group: group.id,
            donor: group.members[place].donor,
            born: self.donors[group.members[place].donor as usize].born,
            horizon: self.horizons().sure_horizon(),
            cut: 0,
            member: place as u8,
            data: group.data() as u8,
            parity: (group.members.len() - group.data()) as u8,
            lists,
        }
    }
}
