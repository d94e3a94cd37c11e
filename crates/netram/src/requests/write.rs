//! Writes, flushes and zeroing.
//!
//! Rules: a request that finds no room or too few donors waits, in the order of arrival, as long as
//! the disk's patience lasts. A flush waits until everything written before it is safe. Left out:
//! sending groups (`send`), groups that a donor did not take (`abandon`), choosing donors and
//! groups (`state`).

use std::sync::Arc;

use shoal_format::ram::{self, GroupId};

use crate::api::DiskError;
use crate::planted::{Bug, is_planted};
use crate::requests::read;
use crate::requests::send::{send, send_grown};
use crate::requests::trims::write_trims;
use crate::state::State;
use crate::state::fill::Put;
use crate::state::map::Mapped;
use crate::state::place::Location;
use crate::task::Core;

/// Returns whether the block is stored, or with `safe` covered by parity. `id`: the group's number,
/// because another group may have its place by now.
fn reached(state: &State, at: Location, id: GroupId, safe: bool) -> bool {
    let group = &state.groups[at.group];
    let Some(memory) = group.memory().filter(|_| group.id == id) else { return true };
    let count = if safe { memory.safe[at.unit] } else { memory.stored[at.unit] };
    memory.abandoned || at.row < count as usize
}

/// Puts whole blocks of a write into caches, where a write is done when it is there, until one must
/// wait. Returns how many bytes that are.
pub(crate) fn write_cached(core: &Arc<Core>, state: &mut State, at: u64, buffer: &[u8]) -> usize {
    let (block_bytes, now) = (core.shape.block_bytes, state.now_ns);
    let is_whole = at.is_multiple_of(block_bytes as u64) && buffer.len().is_multiple_of(block_bytes);
    if !(is_whole && state.plan.cached) {
        return 0;
    }
    let first = (at / block_bytes as u64) as u32;
    let (mut cache, mut done) = (None, 0);
    for (block, bytes) in (first..).zip(buffer.chunks(block_bytes)) {
        let Some(Placed::At(put)) = place(state, block, bytes, None, &mut cache, now) else { break };
        send_placed(core, state, put, &mut cache);
        done += block_bytes;
    }
    done
}

/// Writes whole blocks or parts of blocks, except for the first `done` bytes, which are written.
pub(crate) async fn write(core: Arc<Core>, ticket: u64, at: u64, buffer: Vec<u8>, done: usize, fua: bool) {
    let until = if fua { Until::Flushed } else { Until::Planned };
    let result = write_blocks(&core, at + done as u64, &buffer[done..], until).await;
    core.lock().complete(ticket, result.map(|()| buffer));
}

/// What a write waits for once its blocks have their places.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// What the disk's plan asks for: nothing, the donors' answers, or parity.
    Planned,
    /// A flush.
    Flushed,
}

/// The outcome for one block of a write.
enum Placed {
    /// The block has its place.
    At(Put),
    /// Another write changed the block meanwhile.
    Changed,
    Failed(DiskError),
}

async fn write_blocks(core: &Arc<Core>, at: u64, buffer: &[u8], until: Until) -> Result<(), DiskError> {
    let (block_bytes, begun) = (core.shape.block_bytes as u64, core.lock().now_ns);
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
        let put = loop {
            if !whole {
                // The rest of the block stays as it is: read, merge, and start again if another
                // write was faster. Boxed, because whole blocks do without this and their jobs stay
                // small.
                (merged, seen) = Box::pin(read::block(core, block)).await?;
                merged[from..to].copy_from_slice(piece);
            }
            let (bytes, seen) = if whole { (piece, None) } else { (&merged[..], Some(seen)) };
            match core.until(|state| place(state, block, bytes, seen, &mut cache, begun)).await {
                Placed::At(put) => break put,
                Placed::Changed => {}
                Placed::Failed(error) => return Err(error),
            }
        };
        {
            let state = &mut *core.lock();
            places.push((put.at, state.groups[put.at.group].id));
            send_placed(core, state, put, &mut cache);
        }
        position += (to - from) as u64;
    }
    let (cached, parity_at_once) = {
        let state = core.lock();
        (state.plan.cached, state.plan.parity_at_once)
    };
    if until == Until::Flushed {
        return flush_asked(core).await;
    }
    if !cached {
        let there = |state: &State| places.iter().all(|&(at, id)| reached(state, at, id, parity_at_once));
        return core
            .until(|state| there(state).then_some(Ok(())).or_else(|| state.roster().gives_up(begun).map(Err)))
            .await;
    }
    Ok(())
}

/// Puts a block of a write that began at `begun_ns` into a cache, or returns why it cannot. `None`:
/// it waits for room. `seen`: where the block must still be for the merged bytes to be right.
fn place(
    state: &mut State,
    block: u32,
    bytes: &[u8],
    seen: Option<Option<Mapped>>,
    cache: &mut Option<usize>,
    begun_ns: u64,
) -> Option<Placed> {
    if let Some(error) = state.roster().gives_up(begun_ns) {
        return Some(Placed::Failed(error));
    }
    if state.room().is_beyond_room(block) {
        // Room may come with a donor that returns, or with units whose quarantine ends.
        let waits = state.roster().expects() || state.roster().awaits_units();
        return (!waits).then_some(Placed::Failed(DiskError::NoSpace));
    }
    if seen.is_some_and(|seen| state.map.find(block) != seen) {
        return Some(Placed::Changed);
    }
    let chosen = *cache.get_or_insert_with(|| state.cache_for(block));
    let Some(put) = state.place(block, bytes, chosen, None) else {
        return state.shortage.is_stuck().then_some(Placed::Failed(DiskError::NoSpace));
    };
    state.open.goes_on_at(chosen, block + 1);
    state.counts.blocks_written += 1;
    Some(Placed::At(put))
}

/// Sends the group of a block that was just placed, if that is due. If the group is full, the rest
/// of the request chooses its cache again.
fn send_placed(core: &Arc<Core>, state: &mut State, Put { at, is_full }: Put, cache: &mut Option<usize>) {
    if is_full {
        let chosen = cache.take().expect("chosen before the block was placed");
        if let Some(closed) = state.filled(chosen) {
            send(core, state, closed);
        }
    }
    if is_full || state.plan.data_at_once {
        match is_full || state.plan.parity_at_once {
            true => send(core, state, at.group),
            false => send_grown(core, state, at.group),
        }
    }
}

/// Calls [`flush`] for a request. A failure is reported until a later flush has succeeded.
pub(crate) async fn flush_asked(core: &Arc<Core>) -> Result<(), DiskError> {
    let target = core.lock().next_sequence;
    let result = flush(core).await;
    let state = &mut *core.lock();
    if let (Err(why), None) = (&result, &state.failure) {
        state.unflushed.failed(target, why, state.now_ns);
        state.wake();
    }
    result
}

/// Makes all earlier writes safe.
pub(crate) async fn flush(core: &Arc<Core>) -> Result<(), DiskError> {
    let (target, begun) = {
        let mut state = core.lock();
        state.counts.flushes += 1;
        (state.next_sequence, state.now_ns)
    };
    let result = flush_to(core, target, begun).await;
    if result.is_ok() {
        core.lock().unflushed.flushed(target);
    }
    result
}

async fn flush_to(core: &Arc<Core>, target: u64, begun: u64) -> Result<(), DiskError> {
    if !is_planted(Bug::TrimForgotten) {
        write_trims(core).await?;
    }
    send_older(core, &mut core.lock(), target);
    core.until(|state| {
        let ended = flush_ended(state, target, begun);
        if ended.is_none() && state.schedule.is_quiet() {
            // Blocks that have moved since are as old as before.
            send_older(core, state, target);
        }
        ended
    })
    .await
}

/// Sends the groups with blocks from before `target` that are not safe.
fn send_older(core: &Arc<Core>, state: &mut State, target: u64) {
    for index in state.groups.in_memory().to_vec() {
        let memory = state.groups[index].memory().expect("it is in memory");
        if memory.unsafe_from < target {
            send(core, state, index);
        }
    }
}

/// Returns the outcome of a flush that began at `begun`, if there is one by now.
fn flush_ended(state: &mut State, target: u64, begun: u64) -> Option<Result<(), DiskError>> {
    match state.roster().gives_up(begun) {
        None if state.horizons().horizon() >= target && !state.has_unprotected() => Some(Ok(())),
        None if state.now_ns.saturating_sub(begun) > state.patience_ns() && state.has_unprotected() => {
            Some(Err(DiskError::NoSpace))
        }
        Some(error) => Some(Err(error)),
        None if is_planted(Bug::FailedTaken) && state.unflushed.covers(target) => Some(Ok(())),
        None if is_planted(Bug::TrimForgotten) && state.notes.origin() < target => Some(Ok(())),
        // The blocks of a lost donor's group found no other place.
        None => state.shortage.is_stuck().then_some(Err(DiskError::NoSpace)),
    }
}

/// Zeroes a range.
pub(crate) async fn zero(core: Arc<Core>, ticket: u64, at: u64, len: u64, fua: bool) {
    let result = match zero_range(&core, at, len).await {
        Ok(()) if fua => flush_asked(&core).await,
        result => result,
    };
    core.lock().complete(ticket, result.map(|()| Vec::new()));
}

/// Trims a range: what it holds becomes zeros.
pub(crate) async fn trim(core: Arc<Core>, ticket: u64, at: u64, len: u64) {
    let result = zero_range(&core, at, len).await;
    core.lock().complete(ticket, result.map(|()| Vec::new()));
}

/// Unmaps whole blocks and zeroes the rest of a range.
async fn zero_range(core: &Arc<Core>, at: u64, len: u64) -> Result<(), DiskError> {
    let block_bytes = core.shape.block_bytes as u64;
    let end = at + len;
    let (first, last) = (at.next_multiple_of(block_bytes), end / block_bytes * block_bytes);
    if first >= last {
        // The range covers parts of one block, or of two.
        write_blocks(core, at, &vec![0; len as usize], Until::Planned).await?;
    } else {
        write_blocks(core, at, &vec![0; (first - at) as usize], Until::Planned).await?;
        write_blocks(core, last, &vec![0; (end - last) as usize], Until::Planned).await?;
        let many = {
            let state = &mut *core.lock();
            state.trim((first / block_bytes) as u32, (last / block_bytes) as u32);
            state.notes.trims() >= ram::trimmed_max(state.shape.block_bytes)
        };
        if many {
            write_trims(core).await?;
        }
    }
    Ok(())
}
