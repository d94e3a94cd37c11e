//! Writing: into a cache, from there to donors; flushes, trims, and what happens to a group whose donor is lost meanwhile.
//!
//! Rules: a request that finds no room, or too few donors, waits, in the order of arrival, for as long as the disk's patience
//! lasts; a group that never was on the donors is sent with its parity at once, one that grows sends data first. When an
//! operation fails, the group's live blocks go into other groups: they are still in memory. Left out: which donors and groups (`state`).

use std::sync::Arc;

use shoal_format::ram;

use crate::api::{Action, DiskError, DonorId, Purpose};
use crate::parity;
use crate::planted::{Bug, is_planted};
use crate::read;
use crate::state::{Location, Member, Memory, State};
use crate::task::{Core, Op};
use crate::unit::{Head, Version};

impl State {
    pub fn complete(&mut self, ticket: u64, result: Result<Vec<u8>, DiskError>) {
        self.actions.push(Action::Complete { ticket, result });
    }
}

impl Memory {
    /// Donors have so many blocks of each data unit; `safe`: with their parity.
    fn arrived(&mut self, counts: &[u8], safe: bool) {
        self.stored.copy_from_slice(counts);
        if safe {
            self.safe.copy_from_slice(counts);
            let left = self.origins.iter().zip(counts).flat_map(|(list, &count)| &list[count as usize..]);
            self.unsafe_from = left.copied().min().unwrap_or(u64::MAX);
        }
    }
}

impl Memory {
    /// A block that is not safe yet takes over an earlier origin.
    fn inherit(&mut self, unit: usize, row: usize, origin: u64) -> bool {
        let waits = row >= self.safe[unit] as usize;
        if waits {
            self.origins[unit][row] = self.origins[unit][row].min(origin);
            self.unsafe_from = self.unsafe_from.min(origin);
        }
        waits
    }
}

/// Is what is wanted of a group's blocks done? `id`: the group's, for its place may be another's by now.
fn reached(state: &State, at: Location, id: u64, safe: bool) -> bool {
    let group = &state.groups[at.group as usize];
    let Some(memory) = group.memory.as_ref().filter(|_| group.id == id) else { return true };
    let count = if safe { memory.safe[at.unit] } else { memory.stored[at.unit] };
    memory.abandoned || at.row < count as usize
}

/// Starts sending what a group holds; with `parity`, until all of it is safe.
pub(crate) fn send(core: &Arc<Core>, state: &mut State, index: u32, with_parity: bool) {
    let redundant = state.plan.parity > 0;
    let Some(memory) = &mut state.groups[index as usize].memory else { return };
    memory.parity_wanted |= with_parity || !redundant || memory.full;
    let several = state.plan.parity > 1 && memory.parity_wanted && !memory.full && !memory.abandoned;
    if several {
        // Several parity units cannot grow together at once: what is there is a group of its own.
        for cache in &mut state.caches {
            if cache.group == Some(index) {
                cache.group = None;
            }
        }
        state.close(index);
    }
    let Some(memory) = &mut state.groups[index as usize].memory else { return };
    if memory.sending || memory.abandoned {
        return;
    }
    memory.sending = true;
    let core = core.clone();
    state.schedule.spawn(async move { send_all(&core, index).await });
}

async fn send_all(core: &Arc<Core>, index: u32) {
    loop {
        let Some((data, fresh_parity)) = send_data(core, index) else { return };
        let counts: Vec<u8> = data.1;
        let mut failed = arrive(core, index, data.0).await;
        if is_planted(Bug::FlushEarly) {
            let state = &mut *core.lock();
            if let Some(memory) = &mut state.groups[index as usize].memory {
                memory.arrived(&counts, true);
            }
            state.wake();
        }
        let parity = match fresh_parity {
            Some(ops) => Some(ops),
            // Stored data first, then the parity that covers it.
            None if !failed => send_parity(core, index, &counts),
            None => None,
        };
        let with_parity = parity.is_some();
        failed |= arrive(core, index, parity.unwrap_or_default()).await;
        let mut state = core.lock();
        let state = &mut *state;
        if failed {
            abandon(core, state, index);
        }
        let redundant = state.plan.parity > 0;
        let memory = state.groups[index as usize].memory.as_mut().expect("it is being sent");
        if memory.abandoned {
            memory.sending = false;
            state.wake();
            return;
        }
        memory.arrived(&counts, with_parity || !redundant);
        memory.again &= !with_parity && redundant;
        state.wake();
        let memory = state.groups[index as usize].memory.as_mut().expect("it is being sent");
        let lens: Vec<u8> = memory.lists.iter().map(|list| list.len() as u8).collect();
        let all_safe = memory.safe == lens;
        if all_safe {
            memory.parity_wanted = false;
        }
        if memory.full && all_safe {
            seal(state, index);
            return;
        }
        let goes_on = memory.sent != lens || (memory.parity_wanted && !all_safe) || memory.full;
        let wanted = memory.parity_wanted || memory.full || !state.plan.cached;
        let memory = state.groups[index as usize].memory.as_mut().expect("it is being sent");
        if !(goes_on && wanted) {
            memory.sending = false;
            return;
        }
    }
}

/// Data units that have grown; with their parity, if nothing of the group is on the donors yet.
type Sending = ((Vec<Sent>, Vec<u8>), Option<Vec<Sent>>);

/// A unit on its way, its place in the group, and its head when it has arrived.
type Sent = (Op, usize, Head);

/// Waits for all; true if any failed.
async fn arrive(core: &Arc<Core>, index: u32, sent: Vec<Sent>) -> bool {
    let mut failed = false;
    for (op, place, head) in sent {
        let stored = op.await.is_ok();
        failed |= !stored;
        if let (true, Some(memory)) = (stored, &mut core.lock().groups[index as usize].memory) {
            memory.heads[place] = head;
        }
    }
    failed
}

fn send_data(core: &Arc<Core>, index: u32) -> Option<Sending> {
    let mut state = core.lock();
    let state = &mut *state;
    let group = &state.groups[index as usize];
    let memory = group.memory.as_ref()?;
    let fresh = memory.sent.iter().chain(&memory.safe).all(|&count| count == 0);
    let (purpose, wanted) = (memory.purpose, memory.parity_wanted);
    let counts: Vec<u8> = memory.lists.iter().map(|list| list.len() as u8).collect();
    let grown: Vec<usize> = (0..group.data()).filter(|&unit| counts[unit] > memory.sent[unit]).collect();
    let writes: Vec<_> =
        grown.iter().map(|&unit| (unit, group.members[unit].donor, state.data_version(group, memory, unit))).collect();
    let blocks: u64 = grown.iter().map(|&unit| (counts[unit] - memory.sent[unit]) as u64).sum();
    let sent = if purpose == Purpose::Clean { &mut state.counts.cleaned_data } else { &mut state.counts.sent_data };
    *sent += blocks;
    state.groups[index as usize].memory.as_mut().expect("looked at above").sent.copy_from_slice(&counts);
    let ops: Vec<Sent> = writes
        .into_iter()
        .map(|(place, donor, version)| (core.op(state, donor, version.op, purpose), place, version.head))
        .collect();
    let parity = ((fresh || is_planted(Bug::ParityFirst)) && wanted && state.plan.parity > 0)
        .then(|| parity_ops(core, state, index, &counts));
    Some(((ops, counts), parity))
}

/// Parity of all that is stored, if it is wanted and covers less so far.
fn send_parity(core: &Arc<Core>, index: u32, counts: &[u8]) -> Option<Vec<Sent>> {
    let mut state = core.lock();
    let state = &mut *state;
    let memory = state.groups[index as usize].memory.as_ref()?;
    if !memory.parity_wanted || state.plan.parity == 0 || (memory.safe == counts && !memory.again) {
        return None;
    }
    Some(parity_ops(core, state, index, counts))
}

fn parity_ops(core: &Arc<Core>, state: &mut State, index: u32, counts: &[u8]) -> Vec<Sent> {
    let block_bytes = state.block_bytes;
    let group = &state.groups[index as usize];
    let memory = group.memory.as_ref().expect("it is being sent");
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
        let version = state.version(group.members[place].unit, &memory.heads[place], &header, &blocks);
        writes.push((place, group.members[place].donor, version));
    }
    let sent = if purpose == Purpose::Clean { &mut state.counts.cleaned_parity } else { &mut state.counts.sent_parity };
    *sent += (parity * (rows - covered.min(rows)).max(1)) as u64;
    for place in data..data + parity {
        state.groups[index as usize].members[place].count = rows as u8;
    }
    let op = |(place, donor, version): (usize, DonorId, Version)| {
        (core.op(state, donor, version.op, purpose), place, version.head)
    };
    writes.into_iter().map(op).collect()
}

/// Waits for all; true if any failed.
pub(crate) async fn join(ops: Vec<Op>) -> bool {
    let mut failed = false;
    for op in ops {
        failed |= op.await.is_err();
    }
    failed
}

/// Everything of the group is safe: donors have it, the memory goes.
fn seal(state: &mut State, index: u32) {
    let group = &mut state.groups[index as usize];
    group.memory = None;
    state.in_memory.retain(|&other| other != index);
    state.file(index);
}

/// Moves the live blocks of a group in memory into others, because one of its donors did not take them.
pub(crate) fn abandon(core: &Arc<Core>, state: &mut State, index: u32) {
    for cache in &mut state.caches {
        if cache.group == Some(index) {
            cache.group = None;
        }
    }
    let Some(memory) = &mut state.groups[index as usize].memory else { return };
    if memory.abandoned {
        return;
    }
    (memory.abandoned, memory.full) = (true, true);
    state.wake();
    let core = core.clone();
    state.schedule.spawn(async move {
        // What is on its way must arrive before the units can be another group's.
        core.until(|state| {
            let memory = state.groups[index as usize].memory.as_ref();
            memory.is_some_and(|memory| !memory.sending || is_planted(Bug::AbandonEarly)).then_some(())
        })
        .await;
        let entries: Vec<_> = {
            let state = core.lock();
            if !state.groups[index as usize].is_abandoned() {
                return;
            }
            let memory = state.groups[index as usize].memory.as_ref().expect("an abandoned group keeps its memory");
            let unit = |(unit, list): (usize, &Vec<ram::UnitEntry>)| {
                list.iter().enumerate().map(move |(row, entry)| (unit, row, *entry)).collect::<Vec<_>>()
            };
            memory.lists.iter().enumerate().flat_map(unit).collect()
        };
        for (unit, row, entry) in entries {
            let at = Location { group: index, unit, row };
            let heir = core.clone();
            let mut noted = false;
            let full = core
                .until(|state| {
                    if !state.groups[index as usize].is_abandoned() {
                        return Some(Err(()));
                    }
                    let is_note = ram::is_note(entry.block);
                    let memory = state.groups[index as usize].memory.as_ref()?;
                    let (origin, safe) = (memory.origins[unit][row], row < memory.safe[unit] as usize);
                    if is_note && !safe && !noted {
                        let id = state.groups[index as usize].id;
                        state.found.torn_notes.push((index, id, entry.sequence));
                        noted = true;
                    }
                    if !state.lives(entry.block, at) {
                        if !safe && !is_planted(Bug::DropDead) {
                            state.inherit(&heir, entry.block, origin);
                        }
                        return Some(Ok(None));
                    }
                    let bytes = state.in_memory(at)?.to_vec();
                    let cleaning = state.cleaning();
                    // Without room it waits, and stays readable here; flushes say so meanwhile.
                    let (placed, full) = state.place(entry.block, &bytes, cleaning, Some(origin))?;
                    if is_note {
                        state.kill_note(at);
                    }
                    Some(Ok(full.then_some(placed.group)))
                })
                .await;
            match full {
                Ok(Some(full)) => send(&core, &mut core.lock(), full, true),
                Ok(None) => {}
                // It is sent once more as it is.
                Err(()) => return,
            }
        }
        let state = &mut *core.lock();
        if state.groups[index as usize].live == 0 {
            seal(state, index);
        }
        send_cleaned(&core, state);
        state.wake();
    });
}

/// Sends an abandoned group once more as it is, if its donors take it now: there is no room to move its blocks to. A unit that a
/// late write may reach is left for another one. True if it is on its way.
pub(crate) fn revive(core: &Arc<Core>, state: &mut State, index: u32) -> bool {
    let group = &state.groups[index as usize];
    if !group.is_abandoned() || group.memory.as_ref().is_some_and(|memory| memory.sending) {
        return false;
    }
    let members: Vec<_> = group.members.iter().copied().enumerate().filter(|(_, member)| member.exists()).collect();
    if !members.iter().all(|(_, member)| state.takes(member.donor as usize)) {
        return false;
    }
    let tainted = |state: &State, member: &Member| {
        let donor = &state.donors[member.donor as usize];
        donor.tainted.contains(&member.unit)
    };
    let left: Vec<_> = members.into_iter().filter(|(_, member)| tainted(state, member)).collect();
    let mut taken = Vec::new();
    for &(place, member) in &left {
        let Some(unit) = state.donors[member.donor as usize].take() else {
            taken.into_iter().for_each(|(_, member)| state.give_back(member));
            return false;
        };
        taken.push((place, Member { unit, ..member }));
    }
    let group = &mut state.groups[index as usize];
    let (id, first_sequence) = (group.id, group.first_sequence);
    state.found.torn_notes.retain(|&(_, other, _)| other != id);
    let memory = group.memory.as_mut().expect("an abandoned group keeps its memory");
    for (place, member) in taken {
        group.members[place] = member;
        memory.heads[place] = Head::default();
    }
    (memory.abandoned, memory.again) = (false, true);
    memory.sent.fill(0);
    memory.stored.fill(0);
    for (_, member) in left {
        state.erase_later(member, first_sequence);
    }
    send(core, state, index, true);
    state.wake();
    true
}

/// Moved blocks may be waited for by flushes: they must not wait for the cleaner's cache to fill.
fn send_cleaned(core: &Arc<Core>, state: &mut State) {
    if let Some(open) = state.caches[state.cleaning()].group {
        send(core, state, open, true);
    }
}

/// A write of whole blocks, or of parts of them.
pub(crate) async fn write(core: Arc<Core>, ticket: u64, at: u64, buffer: Vec<u8>, fua: bool) {
    let result = write_blocks(&core, at, &buffer, fua).await;
    core.lock().complete(ticket, result.map(|()| buffer));
}

/// What a write needs next.
enum Placed {
    At(Location, bool),
    Failed(DiskError),
}

async fn write_blocks(core: &Arc<Core>, at: u64, buffer: &[u8], fua: bool) -> Result<(), DiskError> {
    let (block_bytes, begun) = {
        let state = core.lock();
        (state.block_bytes as u64, state.now_ns)
    };
    let end = at + buffer.len() as u64;
    let mut places = Vec::new();
    let mut cache = None;
    let mut position = at;
    while position < end {
        let block = (position / block_bytes) as u32;
        let (from, to) =
            ((position % block_bytes) as usize, (end - block as u64 * block_bytes).min(block_bytes) as usize);
        let piece = &buffer[(position - at) as usize..][..to - from];
        let whole = piece.len() == block_bytes as usize;
        let (mut merged, mut seen) = (Vec::new(), None);
        loop {
            if !whole {
                // The rest of the block stays as it is: read, merge, and begin again if somebody else was faster.
                // On the heap: whole blocks do without, and their jobs are small.
                (merged, seen) = Box::pin(read::block(core, block)).await?;
                merged[from..to].copy_from_slice(piece);
            }
            let bytes = if whole { piece } else { &merged };
            let placed = core
                .until(|state| {
                    if let Some(error) = state.gives_up(begun) {
                        return Some(Some(Placed::Failed(error)));
                    }
                    if state.is_beyond_room(block) {
                        // A donor that may come back may bring room.
                        return (!state.expects()).then_some(Some(Placed::Failed(DiskError::NoSpace)));
                    }
                    if !whole && state.find(block) != seen {
                        return Some(None);
                    }
                    let chosen = *cache.get_or_insert_with(|| state.choose_cache(block));
                    match state.place(block, bytes, chosen, None) {
                        Some((location, full)) => {
                            state.caches[chosen].next = block + 1;
                            state.counts.blocks_written += 1;
                            Some(Some(Placed::At(location, full)))
                        }
                        None if state.stuck => Some(Some(Placed::Failed(DiskError::NoSpace))),
                        None => None,
                    }
                })
                .await;
            match placed {
                None => continue,
                Some(Placed::Failed(error)) => {
                    return Err(error);
                }
                Some(Placed::At(location, full)) => {
                    let state = &mut *core.lock();
                    let chosen = cache.expect("chosen before the block was placed");
                    if full {
                        for closed in state.filled(chosen) {
                            send(core, state, closed, true);
                        }
                        // The rest of the request, if any, chooses anew.
                        cache = None;
                    }
                    let at_once = state.plan.data_at_once;
                    if full || at_once {
                        send(core, state, location.group, full || state.plan.parity_at_once);
                    }
                    places.push((location, state.groups[location.group as usize].id));
                    break;
                }
            }
        }
        position += (to - from) as u64;
    }
    let (cached, parity_at_once) = {
        let state = core.lock();
        (state.plan.cached, state.plan.parity_at_once)
    };
    if fua {
        return flush(core).await;
    }
    if !cached {
        let there = |state: &State| places.iter().all(|&(at, id)| reached(state, at, id, parity_at_once));
        return core.until(|state| there(state).then_some(Ok(())).or_else(|| state.gives_up(begun).map(Err))).await;
    }
    Ok(())
}

/// Makes everything written before safe.
pub(crate) async fn flush(core: &Arc<Core>) -> Result<(), DiskError> {
    let (target, begun) = {
        let mut state = core.lock();
        state.counts.flushes += 1;
        (state.next_sequence, state.now_ns)
    };
    if !is_planted(Bug::TrimForgotten) {
        write_trims(core).await?;
    }
    {
        let state = &mut *core.lock();
        for index in state.in_memory.clone() {
            let memory = state.groups[index as usize].memory.as_ref().expect("it is in memory");
            if memory.unsafe_from < target {
                send(core, state, index, true);
            }
        }
    }
    core.until(|state| match state.gives_up(begun) {
        None if state.horizon() >= target && !state.has_unprotected() => Some(Ok(())),
        None if state.now_ns.saturating_sub(begun) > state.patience_ns() && state.has_unprotected() => {
            Some(Err(DiskError::NoSpace))
        }
        Some(error) => Some(Err(error)),
        None if is_planted(Bug::TrimForgotten) && state.trims_origin < target => Some(Ok(())),
        // Blocks of a lost donor's group found no other place.
        None => state.stuck.then_some(Err(DiskError::NoSpace)),
    })
    .await
}

/// Unmaps whole blocks and zeroes the rest of a range.
pub(crate) async fn zero(core: Arc<Core>, ticket: u64, at: u64, len: u64, fua: bool) {
    let result = zero_range(&core, at, len, fua).await;
    core.lock().complete(ticket, result.map(|()| Vec::new()));
}

async fn zero_range(core: &Arc<Core>, at: u64, len: u64, fua: bool) -> Result<(), DiskError> {
    let block_bytes = core.lock().block_bytes as u64;
    let end = at + len;
    let (first, last) = (at.next_multiple_of(block_bytes), end / block_bytes * block_bytes);
    if first >= last {
        // Parts of one block, or of two.
        write_blocks(core, at, &vec![0; len as usize], false).await?;
    } else {
        write_blocks(core, at, &vec![0; (first - at) as usize], false).await?;
        write_blocks(core, last, &vec![0; (end - last) as usize], false).await?;
        let many = {
            let state = &mut *core.lock();
            state.trim((first / block_bytes) as u32, (last / block_bytes) as u32);
            state.trims.len() >= ram::trimmed_max(state.block_bytes)
        };
        if many {
            write_trims(core).await?;
        }
    }
    if fua { flush(core).await } else { Ok(()) }
}

impl State {
    /// An entry for `block` was dead before it was safe, and will never be sent. What it replaced may be freed only when what
    /// replaced it is safe: that takes over the origin, and is sent, because a flush may wait for it.
    pub fn inherit(&mut self, core: &Arc<Core>, block: u32, origin: u64) {
        let heirs: Vec<(u32, usize, usize)> = match (block < ram::LOST).then(|| self.find(block)).flatten() {
            Some((at, _)) => vec![(at.group, at.unit, at.row)],
            None => {
                // A trim replaced it, noted or on its way with a list.
                if !self.trims.is_empty() || !self.losses.is_empty() {
                    self.trims_origin = self.trims_origin.min(origin);
                    let core = core.clone();
                    self.schedule.spawn(async move {
                        let _ = write_trims(&core).await;
                        send_cleaned(&core, &mut core.lock());
                    });
                }
                let notes = |&index: &u32| {
                    self.groups[index as usize].notes().iter().map(move |&(unit, row)| (index, unit, row))
                };
                self.in_memory.iter().flat_map(notes).collect()
            }
        };
        for (index, unit, row) in heirs {
            let memory = self.groups[index as usize].memory.as_mut();
            if memory.is_some_and(|memory| memory.inherit(unit, row, origin)) {
                send(core, self, index, true);
            }
        }
    }

    /// Unmaps blocks and notes it for the donors.
    pub fn trim(&mut self, first: u32, end: u32) {
        // Before the blocks are dead: who frees them waits for the note, too.
        let origin = self.next_sequence;
        self.next_sequence += 1;
        let mut run: Option<ram::TrimmedRange> = None;
        for block in first..end {
            if self.unmap(block) | self.lost_blocks.remove(&block) {
                // There may be something to clean now.
                self.may_have_room();
                run = match run {
                    Some(run) if run.first + run.count == block => {
                        Some(ram::TrimmedRange { count: run.count + 1, ..run })
                    }
                    other => {
                        self.trims.extend(other);
                        Some(ram::TrimmedRange { first: block, count: 1, sequence: origin })
                    }
                };
            }
        }
        if let Some(run) = run {
            self.trims.push(run);
            self.trims_origin = self.trims_origin.min(origin);
            self.wake();
        }
    }
}

impl State {
    /// Everything that holds nothing is noted as trimmed.
    pub fn trim_unmapped(&mut self) {
        let origin = self.next_sequence;
        self.next_sequence += 1;
        let mut first = None;
        for block in 0..self.blocks as u32 + 1 {
            let holds_nothing =
                (block as u64) < self.blocks && self.find(block).is_none() && !self.lost_blocks.contains(&block);
            match (first, holds_nothing) {
                (None, true) => first = Some(block),
                (Some(begin), false) => {
                    let range = ram::TrimmedRange { first: begin, count: block - begin, sequence: origin };
                    self.trims.push(range);
                    first = None;
                }
                _ => {}
            }
        }
        self.trims_origin = self.trims_origin.min(origin);
        self.wake();
    }
}

/// Writes the noted trims and losses into blocks of their own.
pub(crate) async fn write_trims(core: &Arc<Core>) -> Result<(), DiskError> {
    let begun = core.lock().now_ns;
    loop {
        let full = core
            .until(|state| {
                let kind = if state.losses.is_empty() { ram::TRIMMED } else { ram::LOST };
                let noted = if kind == ram::LOST { &state.losses } else { &state.trims };
                if noted.is_empty() {
                    return Some(Ok(None));
                }
                if let Some(error) = state.gives_up(begun) {
                    return Some(Err(error));
                }
                let count = noted.len().min(ram::trimmed_max(state.block_bytes));
                let mut bytes = vec![0; state.block_bytes];
                ram::encode_trimmed(&noted[..count], &mut bytes);
                let (cache, origin) = (state.cleaning(), state.trims_origin);
                let Some((at, full)) = state.place(kind, &bytes, cache, Some(origin)) else {
                    return state.stuck.then_some(Err(DiskError::NoSpace));
                };
                let noted = if kind == ram::LOST { &mut state.losses } else { &mut state.trims };
                noted.drain(..count);
                if state.trims.is_empty() && state.losses.is_empty() {
                    state.trims_origin = u64::MAX;
                    state.wake();
                }
                Some(Ok(Some((at.group, full))))
            })
            .await?;
        let Some((group, full)) = full else { return Ok(()) };
        if full {
            send(core, &mut core.lock(), group, true);
        }
    }
}
