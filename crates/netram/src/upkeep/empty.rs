//! Moving the live blocks of a claimed group to other groups.
//!
//! Rules: every block is compared with its checksum, and computed from parity if it does not match.
//! A block that cannot be read stays where it is. Lists of ranges are not copied: ranges that still
//! count are noted again. Left out: which group is emptied (`clean`, `repair`).

use std::ops::Range;
use std::sync::Arc;

use shoal_format::ram;
use shoal_format::ram::{UnitEntry, UnitHeader};

use crate::api::Purpose;
use crate::planted::{Bug, is_planted};
use crate::requests::read;
use crate::requests::send::send;
use crate::requests::trims::Lists;
use crate::state::place::Location;
use crate::state::unit::Shape;
use crate::task::{Core, Op};

/// Moves the live blocks of a claimed group into the cleaner's cache. Blocks that cannot be read
/// stay where they are.
pub(crate) async fn empty(core: &Arc<Core>, index: u32) {
    let before = core.lock().groups[index].live();
    let lists = entries(core, index).await;
    // Read all live blocks at once.
    let reads: Vec<(usize, Range<usize>, Op)> = {
        let state = &mut *core.lock();
        let mut runs = Vec::new();
        for (unit, list) in lists.iter().enumerate() {
            let lives = |&row: &usize| state.lives(list[row].block, Location { group: index, unit, row });
            let mut row = 0;
            while let Some(first) = (row..list.len()).find(lives) {
                row = (first..list.len()).find(|row| !lives(row)).unwrap_or(list.len());
                runs.push((unit, first..row));
            }
        }
        let read = |(unit, rows): (usize, Range<usize>)| {
            let member = state.groups[index].members[unit];
            state.counts.cleaned_read += rows.len() as u64;
            (unit, rows.clone(), core.read(state, member, rows, Purpose::Clean))
        };
        runs.into_iter().map(read).collect()
    };
    let Shape { block_bytes, block_sums, .. } = core.shape;
    for (unit, rows, op) in reads {
        let bytes = op.await.unwrap_or_default();
        for (n, row) in rows.enumerate() {
            let found = bytes.get(n * block_bytes..(n + 1) * block_bytes);
            let at = Location { group: index, unit, row };
            let entry: UnitEntry = lists[unit][row];
            let right = |found: &&[u8]| block_sums.of(found) == entry.sum || is_planted(Bug::CleanUnchecked);
            let block = match found.filter(right) {
                Some(found) => read::Fetched::Good(found.to_vec()),
                None => read::fetch(core, at, entry.sum, Purpose::Clean).await,
            };
            if let read::Fetched::Good(bytes) = block {
                place(core, at, entry, &bytes).await;
                continue;
            }
            if !ram::is_note(entry.block) && is_planted(Bug::LossAtOnce) {
                core.lock().note_lost(&[(entry.block, at)], Lists::Kept);
            }
        }
    }
    let state = &mut *core.lock();
    state.counts.groups_cleaned += 1;
    let is_full = state.shortage.is_stuck();
    if !state.groups.moved(index, before, is_full) {
        state.retry_later();
    }
}

async fn place(core: &Arc<Core>, at: Location, entry: UnitEntry, bytes: &[u8]) {
    if entry.block == ram::LOST {
        let state = &mut *core.lock();
        if state.lives(entry.block, at) {
            let ranges = ram::decode_trimmed(bytes).unwrap_or_default();
            let blocks = ranges.iter().flat_map(|range| range.first..range.first.saturating_add(range.count));
            let blocks: Vec<u32> = blocks.collect();
            state.note_losses(&blocks);
            state.kill_note(at);
        }
        return;
    }
    if entry.block == ram::TRIMMED {
        let state = &mut *core.lock();
        if !state.lives(entry.block, at) {
            return;
        }
        // A list that cannot be decoded says nothing. A range older than every copy has nothing
        // left to hide.
        let mut ranges = ram::decode_trimmed(bytes).unwrap_or_default();
        let oldest = if is_planted(Bug::TrimDropped) { u64::MAX } else { state.horizons().oldest_sequence() };
        ranges.retain(|range| oldest < range.sequence);
        if !ranges.is_empty() {
            let sequence = state.take_sequence();
            state.notes.waits_from(sequence);
            ranges.into_iter().for_each(|range| state.notes.trim(range));
        }
        state.kill_note(at);
        return;
    }
    let full = core
        .until(|state| {
            if !state.map.is_at(entry.block, at) {
                return Some(None);
            }
            let cache = state.open.cleaning();
            let placed = state.place(entry.block, bytes, cache, None);
            placed.map(|put| put.is_full.then_some(put.at.group)).or(state.shortage.is_stuck().then_some(None))
        })
        .await;
    if let Some(group) = full {
        send(core, &mut core.lock(), group);
    }
}

/// Returns the entries of a group's data units as its headers list them.
pub(crate) async fn entries(core: &Arc<Core>, index: u32) -> Vec<Vec<UnitEntry>> {
    let (data, members) = {
        let state = core.lock();
        let group = &state.groups[index];
        if let Some(found) = group.incomplete() {
            return found.lists.clone();
        }
        (group.data(), group.members.clone())
    };
    for place in data..members.len() {
        if let Some(header) = header(core, index, place).await {
            return header.lists;
        }
    }
    let mut lists = Vec::new();
    for (place, member) in members.iter().enumerate().take(data) {
        let own = if member.count > 0 { header(core, index, place).await } else { None };
        lists.push(own.and_then(|header| header.lists.into_iter().next()).unwrap_or_default());
    }
    lists
}

async fn header(core: &Arc<Core>, index: u32, place: usize) -> Option<UnitHeader> {
    let (id, members, op) = {
        let state = &mut *core.lock();
        let group = &state.groups[index];
        let (id, members, member) = (group.id, group.members.clone(), group.members[place]);
        if !member.exists() {
            return None;
        }
        let op = state.shape.heads_op(member.unit);
        (id, members, core.op(state, member.donor, op, Purpose::Upkeep))
    };
    let bytes = op.await.ok()?;
    core.shape.sealed_header(&bytes, id, &members, place)
}
