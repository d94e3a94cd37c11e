//! Turning a batch into records and data on the device.
//!
//! Segments: as many changes as fit into the open segment become a *chunk*, records first and the
//! data they list after them, in one write. Anywhere: each data block goes to the block that the
//! head reaches first, followed by the record that lists them.
//! Rules: the map names the place of data before the data is there, so a reader looks into the
//! batch being written first. After a failed write nothing may be written any more. Callers hold
//! the log.

use std::ops::Range;
use std::sync::Arc;

use shoal_format::vlog::{BLOCK, Entry, LOG_AT, PIECE_BLOCKS, PIECES_MAX, Record};
use shoal_media::{Head, MediaError, Result, block};

use crate::disk::{Change, Log, VirtualLog};
use crate::planted::{Bug, is_planted};
use crate::space::Room;
use crate::state::{Changed, State};

/// Maximum number of blocks written between two flushes of the device below. Recovery searches as
/// many.
const UNFLUSHED_BLOCKS: u32 = 4096;

/// A change of one logical block.
pub(crate) struct Item {
    pub logical: u32,
    pub change: Change,
    /// Set for a move of the compactor, which applies only if the block still has this entry.
    /// Comparing the place alone would not be enough, because it may have been reused.
    pub from: Option<Entry>,
}

impl Item {
    fn still_wanted(&self, state: &State) -> bool {
        self.from.is_none_or(|from| is_unchanged(state, self.logical, from))
    }

    fn data(&self) -> Option<&Arc<[u8]>> {
        match &self.change {
            Change::Data(data) => Some(data),
            Change::Nowhere => None,
        }
    }
}

/// Returns whether nobody has written the block since it had this entry.
pub(crate) fn is_unchanged(state: &State, logical: u32, from: Entry) -> bool {
    let now = state.map.get(logical);
    is_planted(Bug::MoveStale) || now == from || is_planted(Bug::MoveByPlace) && now.at == from.at
}

/// The writer. It determines how much of the segment reserve may be used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    Request,
    Compactor,
}

/// Blocks for one write, assembled with the state locked.
struct Chunk {
    at: u32,
    bytes: Vec<u8>,
    records: u32,
    last: u64,
    /// Number up to which its records call records durable.
    says: u64,
}

impl VirtualLog {
    /// Writes changes, in ascending order of their blocks, and rewrites the pieces `rewritten`.
    pub(crate) fn write_items(&self, log: &mut Log, items: &[Item], rewritten: &[u32], by: By) -> Result<()> {
        if items.is_empty() && rewritten.is_empty() {
            return Ok(());
        }
        match self.options.head.clone() {
            Some(head) => self.write_anywhere(log, items, rewritten, &*head, &|_| true),
            None => self.write_segments(log, items, rewritten, by),
        }
    }

    /// Writes a record without changes, for its header. The compactor's record goes to a hole
    /// outside the blocks `but`.
    pub(crate) fn write_bare_record(&self, log: &mut Log, by: By, but: &Range<u32>) -> Result<()> {
        let Some(head) = self.options.head.clone() else {
            return self.write_segments(log, &[], &[], by);
        };
        let holes = (by == By::Compactor).then(|| self.partly_filled(&log.tracks, but));
        let also = |at: u32| holes.as_ref().is_none_or(|holes| holes[at as usize]);
        self.write_record_anywhere(log, &mut vec![], &mut vec![], &*head, &also)
    }

    /// Writes changes and pieces into segments; a bare record if there are none.
    fn write_segments(&self, log: &mut Log, mut items: &[Item], mut rewritten: &[u32], by: By) -> Result<()> {
        loop {
            self.prepare_opening(log)?;
            let chunk = {
                let mut state = self.state.write();
                let seq = state.next_seq;
                let room = state.space.room(by, seq).ok_or_else(|| self.no_space())?;
                let (chunk, done, anew) = fill(&mut state, room, items, rewritten);
                (items, rewritten) = (&items[done..], &rewritten[anew..]);
                chunk
            };
            self.write_chunk(log, chunk)?;
            if items.is_empty() && rewritten.is_empty() {
                return Ok(());
            }
        }
    }

    fn write_chunk(&self, log: &mut Log, chunk: Chunk) -> Result<()> {
        if chunk.bytes.is_empty() {
            return Ok(());
        }
        self.write_blocks(chunk.at, &chunk.bytes)?;
        self.wrote(log, chunk.last, chunk.says, (chunk.bytes.len() / BLOCK) as u32, chunk.records)
    }

    /// Bounds the blocks that recovery would search, and the records it would write again.
    fn wrote(&self, log: &mut Log, last: u64, says: u64, blocks: u32, records: u32) -> Result<()> {
        (log.written, log.says) = (last, says);
        log.unflushed_blocks += blocks;
        log.unflushed_records += records;
        let too_many = log.unflushed_blocks > UNFLUSHED_BLOCKS || log.unflushed_records > self.records_max();
        if too_many { self.flush_device(log) } else { Ok(()) }
    }

    /// Maximum number of records in a chunk, and of unflushed records before another chunk.
    /// Recovery writes as many again into one segment.
    fn records_max(&self) -> u32 {
        match self.superblock.segment_blocks {
            0 => UNFLUSHED_BLOCKS,
            blocks => blocks / 4,
        }
    }

    pub(crate) fn write_blocks(&self, at: u32, bytes: &[u8]) -> Result<()> {
        self.counts.written(bytes.len() / BLOCK);
        block::write(&*self.device, at as u64 * BLOCK as u64, bytes).inspect_err(|error| self.poison(error))
    }

    /// Writes to blocks near the head, preferring those that `also` allows.
    pub(crate) fn write_anywhere(
        &self,
        log: &mut Log,
        items: &[Item],
        rewritten: &[u32],
        head: &dyn Head,
        also: &dyn Fn(u32) -> bool,
    ) -> Result<()> {
        let mut placed: Vec<(u32, Entry)> = Vec::new();
        let mut changed: Vec<Changed> = Vec::new();
        for item in items {
            if !item.still_wanted(&self.state.read()) {
                continue;
            }
            let piece = item.logical / PIECE_BLOCKS;
            if changed.len() == PIECES_MAX && changed.last().is_some_and(|last| last.index != piece) {
                self.write_record_anywhere(log, &mut placed, &mut changed, head, also)?;
            }
            let entry = match item.data() {
                None => Entry::default(),
                Some(data) => {
                    let at = self.take_nearest(log, head, also)?;
                    self.write_blocks(at, data)?;
                    self.superblock.entry(at, data)
                }
            };
            placed.push((item.logical, entry));
            Changed::mark(&mut changed, item.logical);
        }
        for &index in rewritten {
            if changed.len() == PIECES_MAX {
                self.write_record_anywhere(log, &mut placed, &mut changed, head, also)?;
            }
            Changed::mark_unchanged(&mut changed, index);
        }
        if changed.is_empty() {
            return Ok(());
        }
        self.write_record_anywhere(log, &mut placed, &mut changed, head, also)
    }

    /// Writes the record that lists data in its new places. Empties both lists.
    pub(crate) fn write_record_anywhere(
        &self,
        log: &mut Log,
        placed: &mut Vec<(u32, Entry)>,
        changed: &mut Vec<Changed>,
        head: &dyn Head,
        also: &dyn Fn(u32) -> bool,
    ) -> Result<()> {
        let at = self.take_nearest(log, head, also)?;
        let (record, bytes) = {
            let mut state = self.state.write();
            let last = state.last_of(1);
            placed.iter().for_each(|&(logical, entry)| state.put(logical, entry, last));
            let record = state.record(at, 0, changed);
            let bytes = record.encode(&self.superblock);
            (record, bytes)
        };
        let blocks = placed.len() as u32 + 1;
        placed.clear();
        changed.clear();
        self.write_blocks(at, &bytes)?;
        self.wrote(log, record.seq, record.durable, blocks, 1)
    }

    /// Takes the nearest free block that `also` allows, or any free block if there is none.
    fn take_nearest(&self, log: &mut Log, head: &dyn Head, also: &dyn Fn(u32) -> bool) -> Result<u32> {
        let found = self.take_free(head, also).or_else(|| self.take_free(head, &|_| true));
        if let Some(at) = found {
            return Ok(at);
        }
        // Reclaim the blocks left since the last flush, and those that the compactor holds.
        self.give_up(log);
        self.flush_device(log)?;
        self.take_free(head, &|_| true).ok_or_else(|| self.no_space())
    }

    /// Takes the nearest free block that `also` allows.
    pub(crate) fn take_free(&self, head: &dyn Head, also: &dyn Fn(u32) -> bool) -> Option<u32> {
        let mut state = self.state.write();
        let blocks = state.space.blocks();
        let is_free =
            |block: u64| u32::try_from(block).is_ok_and(|b| blocks.contains(&b) && also(b) && !state.space.is_used(b));
        let found = head.nearest(&is_free)? as u32;
        state.space.take(found);
        Some(found)
    }

    pub(crate) fn no_space(&self) -> MediaError {
        MediaError::NoSpace { what: "virtual-log disk".into() }
    }
}

/// Makes a chunk of as many changes as fit. Returns how many changes and rewritten pieces it
/// covers.
fn fill(
    state: &mut State,
    Room { at, blocks: room }: Room,
    items: &[Item],
    rewritten: &[u32],
) -> (Chunk, usize, usize) {
    debug_assert!(at >= LOG_AT && room >= 2);
    let most = state.superblock.segment_blocks / 4;
    let records_for = |pieces: usize| pieces.div_ceil(PIECES_MAX) as u32;
    let (mut changed, mut data, mut done, mut anew): (Vec<Changed>, u32, usize, usize) = (vec![], 0, 0, 0);
    let mut wanted = Vec::with_capacity(items.len());
    for item in items {
        if item.still_wanted(state) {
            let more = changed.last().is_none_or(|last: &Changed| last.index != item.logical / PIECE_BLOCKS);
            let blocks = data + item.data().is_some() as u32;
            let records = records_for(changed.len() + more as usize);
            if records + blocks > room || records > most {
                break;
            }
            Changed::mark(&mut changed, item.logical);
            data = blocks;
            wanted.push(item);
        }
        done += 1;
    }
    if done == items.len() {
        for &index in rewritten {
            let records = records_for(changed.len() + 1);
            if records + data > room || records > most {
                break;
            }
            Changed::mark_unchanged(&mut changed, index);
            anew += 1;
        }
    }
    let bare = items.is_empty() && rewritten.is_empty();
    let records = records_for(changed.len()).max(bare as u32);
    let last = state.last_of(records);
    (at..at + records + data).for_each(|block| state.space.take(block));
    let mut next = at + records;
    for item in &wanted {
        let entry = item.data().map_or(Entry::default(), |data| {
            next += 1;
            state.superblock.entry(next - 1, data)
        });
        state.put(item.logical, entry, last);
    }
    let mut bytes = Vec::with_capacity((records + data) as usize * BLOCK);
    let mut says = 0;
    for n in 0..records {
        let skip = if n + 1 == records { 1 + data } else { 1 };
        let from = n as usize * PIECES_MAX;
        let pieces = &changed[from.min(changed.len())..changed.len().min(from + PIECES_MAX)];
        let record: Record = state.record(at + n, skip as u16, pieces);
        says = record.durable;
        bytes.extend_from_slice(&record.encode(&state.superblock));
    }
    wanted.iter().filter_map(|item| item.data()).for_each(|data| bytes.extend_from_slice(data));
    state.space.advance(records + data);
    (Chunk { at, bytes, records, last, says }, done, anew)
}
