//! Gaining room, a block at a time.
//!
//! Owns: which segment or track is emptied, and how far that is. What is in use there is written elsewhere, with the pieces of the map that
//! lie there; when the records that say so are announced, it is free.
//! Rules: one step does one read or one write, so that a request never waits for more; a block that was written in the meantime is
//! not moved; a block whose checksum is wrong stays where it is, for whoever may want to read it. A request that finds too little
//! room runs the steps itself (invariant 4).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use shoal_format::checksum;
use shoal_format::vlog::{BLOCK, Entry, LOG_AT, PIECE_BLOCKS, PIECES_MAX, Record};
use shoal_media::{Head, Result, block};

use crate::Choice;
use crate::disk::{Change, Log, VirtualLog, is_intact};
use crate::planted::{Bug, is_planted};
use crate::state::Changed;
use crate::write::{By, Item};

/// Requests gain room themselves when no more segments are free.
const FREE_SEGMENTS_MIN: usize = 4;
/// The same without segments (blocks).
const FREE_BLOCKS_MIN: u32 = 64;
/// Blocks gathered before they are written.
const MOVES: usize = 64;
/// In a gap a segment is worth its work if at most so much of it is in use (percent).
const WORTH_PERCENT: u32 = 70;

/// A segment or track that is being emptied.
pub(crate) struct Emptying {
    blocks: Range<u32>,
    /// Logical blocks that were in it, and where.
    todo: VecDeque<(u32, Entry)>,
    /// The segment's bytes, or those of the track from block `image_at` on.
    image: Vec<u8>,
    image_at: u32,
    moves: Vec<Item>,
    /// Of a track: where its blocks go, tracks with something on them and room for more, in order.
    fill: Vec<Range<u32>>,
    /// On a track: moved, not yet in a record.
    placed: Vec<(u32, Entry, Entry)>,
    /// Something in it cannot be moved.
    damaged: bool,
}

impl VirtualLog {
    /// One step in a gap; false when nothing is worth doing.
    pub fn compact_step(&self) -> Result<bool> {
        self.writable()?;
        let mut log = self.log.lock();
        match self.options.head.clone() {
            Some(head) => self.step_anywhere(&mut log, &*head),
            None => self.step_segment(&mut log, false),
        }
    }

    /// Before a request writes: enough room for it, whatever that takes.
    pub(crate) fn make_room(&self, log: &mut Log) -> Result<()> {
        if self.options.head.is_some() {
            if self.state.read().space.free_blocks() < FREE_BLOCKS_MIN && self.state.read().space.left_blocks() > 0 {
                self.announce(log, By::Request)?;
            }
            return Ok(());
        }
        let mut rounds = self.superblock.segments();
        let few = |disk: &VirtualLog| disk.state.read().space.free_segments() <= FREE_SEGMENTS_MIN;
        if few(self) && self.state.read().space.left_blocks() > self.superblock.segment_blocks {
            self.announce(log, By::Compactor)?;
        }
        while few(self) {
            if !self.step_segment(log, true)? {
                return Ok(());
            }
            if log.emptying.is_none() {
                if few(self) {
                    self.announce(log, By::Compactor)?;
                }
                rounds -= 1;
                if rounds == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn step_segment(&self, log: &mut Log, needed: bool) -> Result<bool> {
        let Some(mut emptying) = log.emptying.take() else {
            return self.begin_segment(log, needed);
        };
        while let Some((logical, entry)) = emptying.todo.pop_front() {
            if self.state.read().map[logical as usize] != entry {
                continue;
            }
            let from = (entry.at - emptying.blocks.start) as usize * BLOCK;
            let data = &emptying.image[from..from + BLOCK];
            if !is_intact(data, &entry) {
                self.counts.damaged.fetch_add(1, Ordering::Relaxed);
                emptying.damaged = true;
                continue;
            }
            emptying.moves.push(Item { logical, change: Change::Data(data.into()), from: Some(entry) });
            if emptying.moves.len() == MOVES {
                break;
            }
        }
        let finished = emptying.todo.is_empty();
        emptying.moves.sort_by_key(|item| item.logical);
        self.write_items(log, &emptying.moves, &[], By::Compactor)?;
        self.counts.moved.fetch_add(emptying.moves.len() as u64, Ordering::Relaxed);
        emptying.moves.clear();
        if finished {
            self.finish(log, emptying)?;
        } else {
            log.emptying = Some(emptying);
        }
        Ok(true)
    }

    fn finish(&self, log: &mut Log, emptying: Emptying) -> Result<()> {
        if emptying.damaged {
            // Not tried again and again.
            log.stuck.insert(emptying.blocks.start);
        }
        self.rewrite_pieces(log, emptying.blocks)?;
        self.counts.emptied.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The records in a range do not count any more afterwards.
    fn rewrite_pieces(&self, log: &mut Log, blocks: Range<u32>) -> Result<()> {
        let pieces = {
            let state = self.state.read();
            let records = state.records_within(blocks.clone());
            let mut pieces: Vec<u32> = state.pieces_within(&records).collect();
            pieces.sort_unstable();
            pieces
        };
        match self.options.head.clone() {
            Some(head) => self.write_anywhere(log, &[], &pieces, &*head, &|at| !blocks.contains(&at))?,
            None => self.write_items(log, &[], &pieces, By::Compactor)?,
        }
        let state = self.state.read();
        let bare = state.records_within(blocks).into_iter().any(|at| state.is_bare(at));
        drop(state);
        if bare { self.write_bare_record(log, By::Compactor) } else { Ok(()) }
    }

    fn begin_segment(&self, log: &mut Log, needed: bool) -> Result<bool> {
        let size = self.superblock.segment_blocks;
        let victim = {
            let state = self.state.read();
            if !needed && state.space.free_segments() >= self.enough_segments() {
                return Ok(false);
            }
            let now = state.next_seq;
            let candidates = state.space.candidates();
            let candidates = candidates.filter(|candidate| !log.stuck.contains(&(LOG_AT + candidate.segment * size)));
            if needed || self.options.choice == Choice::Greedy {
                candidates.min_by_key(|candidate| candidate.used)
            } else {
                let worth = |used: u32, closed_at: u64| {
                    let (u, age) = (used as f64 / size as f64, (now - closed_at + 1) as f64);
                    (1.0 - u) * age / (1.0 + u)
                };
                candidates
                    .filter(|candidate| candidate.used * 100 <= size * WORTH_PERCENT)
                    .max_by(|a, b| worth(a.used, a.closed_at).total_cmp(&worth(b.used, b.closed_at)))
            }
        };
        let Some(victim) = victim.filter(|victim| needed || victim.used * 100 <= size * WORTH_PERCENT) else {
            return Ok(false);
        };
        let (left, free) = {
            let state = self.state.read();
            (state.space.left_blocks(), state.space.free_segments())
        };
        if !needed && (left > 4 * size || left > 0 && free <= FREE_SEGMENTS_MIN + 1) {
            // What was emptied before is free only then.
            self.announce(log, By::Compactor)?;
            return Ok(true);
        }
        let start = LOG_AT + victim.segment * size;
        let mut image = vec![0; size as usize * BLOCK];
        block::read(&*self.device, start as u64 * BLOCK as u64, &mut image)?;
        let todo = self.data_in(start..start + size, &image);
        let blocks = start..start + size;
        log.emptying = Some(Emptying {
            blocks,
            todo,
            image,
            image_at: 0,
            fill: vec![],
            moves: vec![],
            placed: vec![],
            damaged: false,
        });
        Ok(true)
    }

    /// Enough free segments for a burst: a quarter of what the spare part leaves. More would be bought with moves of data that
    /// may be overwritten anyway.
    fn enough_segments(&self) -> usize {
        let segments = self.superblock.segments() as usize;
        let full = (self.superblock.logical_blocks / self.superblock.segment_blocks) as usize;
        (segments.saturating_sub(full) / 4).max(FREE_SEGMENTS_MIN + 2)
    }

    /// Logical blocks that are in a segment now: its own records list them.
    fn data_in(&self, blocks: Range<u32>, image: &[u8]) -> VecDeque<(u32, Entry)> {
        let state = self.state.read();
        let mut found = VecDeque::new();
        let (mut at, mut last) = (blocks.start, 0);
        while at < blocks.end {
            let from = (at - blocks.start) as usize * BLOCK;
            let Ok(record) = Record::decode(&image[from..from + BLOCK], at, &self.superblock) else { break };
            if record.seq <= last || record.skip == 0 {
                break;
            }
            for piece in &record.pieces {
                for (n, entry) in piece.entries.iter().enumerate() {
                    let logical = piece.index * PIECE_BLOCKS + n as u32;
                    let listed = piece.changed >> n & 1 == 1 && blocks.contains(&entry.at);
                    if listed && state.map.get(logical as usize).is_some_and(|now| now == entry) {
                        found.push_back((logical, *entry));
                    }
                }
            }
            last = record.seq;
            at += record.skip as u32;
        }
        let records = state.records_within(blocks.clone()).len();
        let used = blocks.clone().filter(|&block| state.space.is_used(block)).count();
        // What was left is in use, too: more than that is missing only if a record cannot be read.
        if found.len() + records < used {
            let in_range = |(_, entry): &(usize, &Entry)| blocks.contains(&entry.at);
            let all = state.map.iter().enumerate().filter(in_range).map(|(logical, entry)| (logical as u32, *entry));
            let all: VecDeque<_> = all.collect();
            if all.len() > found.len() {
                return all;
            }
        }
        found
    }

    // On tracks.

    fn step_anywhere(&self, log: &mut Log, head: &dyn Head) -> Result<bool> {
        let Some(mut emptying) = log.emptying.take() else {
            return self.begin_track(log, head);
        };
        if emptying.moves.is_empty() && emptying.placed.is_empty() && emptying.todo.is_empty() {
            self.finish(log, emptying)?;
            return Ok(true);
        }
        let gathered = emptying.moves.len() + emptying.placed.len();
        if emptying.placed.is_empty() && gathered < PIECES_MAX && !emptying.todo.is_empty() {
            self.read_one(&mut emptying)?;
        } else if let Some(item) = emptying.moves.pop() {
            self.place_one(log, head, &mut emptying, item)?;
        } else {
            self.record_placed(log, head, &mut emptying)?;
        }
        log.emptying = Some(emptying);
        Ok(true)
    }

    /// Reads the part of the track that is to be moved, at once; then takes over as many blocks as fit into a record.
    fn read_one(&self, emptying: &mut Emptying) -> Result<()> {
        let places = emptying.todo.iter().map(|(_, entry)| entry.at);
        if emptying.image.is_empty()
            && let (Some(first), Some(last)) = (places.clone().min(), places.max())
        {
            emptying.image_at = first;
            emptying.image = vec![0; (last + 1 - first) as usize * BLOCK];
            return block::read(&*self.device, first as u64 * BLOCK as u64, &mut emptying.image);
        }
        while emptying.moves.len() < PIECES_MAX
            && let Some((logical, entry)) = emptying.todo.pop_front()
        {
            if self.state.read().map[logical as usize] != entry {
                continue;
            }
            let from = (entry.at - emptying.image_at) as usize * BLOCK;
            let data = &emptying.image[from..from + BLOCK];
            if is_intact(data, &entry) {
                emptying.moves.push(Item { logical, change: Change::Data(data.into()), from: Some(entry) });
            } else {
                self.counts.damaged.fetch_add(1, Ordering::Relaxed);
                emptying.damaged = true;
            }
        }
        Ok(())
    }

    fn place_one(&self, log: &mut Log, head: &dyn Head, emptying: &mut Emptying, item: Item) -> Result<()> {
        let (Change::Data(data), Some(from)) = (&item.change, item.from) else { return Ok(()) };
        let data: &Arc<[u8]> = data;
        if self.state.read().map[item.logical as usize] != from {
            return Ok(());
        }
        if !emptying.fill.iter().any(|track| self.has_room(track)) {
            emptying.fill = self.partly_filled(head, &emptying.blocks);
        }
        let fill = &emptying.fill;
        let is_in = |block: u32| {
            fill.get(fill.partition_point(|track| track.end <= block)).is_some_and(|track| track.contains(&block))
        };
        let at = self.take_nearest(log, head, &is_in)?;
        self.write_blocks(at, data)?;
        emptying.placed.push((item.logical, from, Entry { at, crc: checksum(0, data) }));
        Ok(())
    }

    fn record_placed(&self, log: &mut Log, head: &dyn Head, emptying: &mut Emptying) -> Result<()> {
        let mut placed = std::mem::take(&mut emptying.placed);
        placed.sort_by_key(|&(logical, ..)| logical);
        let mut changed: Vec<Changed> = Vec::new();
        let mut wanted = Vec::with_capacity(placed.len());
        for (logical, from, entry) in placed {
            let mut state = self.state.write();
            if state.map[logical as usize] != from && !is_planted(Bug::MoveStale) {
                // Written in the meantime.
                state.space.free(entry.at);
                continue;
            }
            let (index, mask) = (logical / PIECE_BLOCKS, 1 << (logical % PIECE_BLOCKS));
            match changed.last_mut().filter(|last| last.index == index) {
                Some(last) => last.mask |= mask,
                None => changed.push(Changed { index, mask }),
            }
            wanted.push((logical, entry));
        }
        if wanted.is_empty() {
            return Ok(());
        }
        self.counts.moved.fetch_add(wanted.len() as u64, Ordering::Relaxed);
        let blocks = emptying.blocks.clone();
        self.write_record_anywhere(log, wanted, &changed, head, &|at| !blocks.contains(&at))
    }

    fn has_room(&self, track: &Range<u32>) -> bool {
        let state = self.state.read();
        track.clone().any(|block| !state.space.is_used(block))
    }

    /// Tracks with something on them and room for more, except one; in order.
    fn partly_filled(&self, head: &dyn Head, but: &Range<u32>) -> Vec<Range<u32>> {
        let state = self.state.read();
        let mut partly = Vec::new();
        let mut others = Vec::new();
        for track in log_tracks(head, &state.space.blocks()) {
            let used = track.clone().filter(|&block| state.space.is_used(block)).count();
            if track == *but || used == track.len() {
                continue;
            }
            if used > 0 { partly.push(track) } else { others.push(track) }
        }
        if partly.is_empty() { others } else { partly }
    }

    fn begin_track(&self, log: &mut Log, head: &dyn Head) -> Result<bool> {
        if self.state.read().space.left_blocks() > FREE_BLOCKS_MIN {
            self.announce(log, By::Compactor)?;
            return Ok(true);
        }
        let state = self.state.read();
        let tracks = log_tracks(head, &state.space.blocks());
        let mut has_data = vec![false; tracks.len()];
        for entry in state.map.iter().filter(|entry| entry.at != 0) {
            has_data[tracks.partition_point(|track| track.end <= entry.at)] = true;
        }
        // What was only left there goes by itself.
        let is_worth = |track: &Range<u32>, has_data: bool| has_data || !state.records_within(track.clone()).is_empty();
        let counted = tracks.into_iter().zip(has_data).map(|(track, has_data)| {
            let used = track.clone().filter(|&block| state.space.is_used(block)).count();
            let is_worth = is_worth(&track, has_data) && !log.stuck.contains(&track.start);
            (track, used, is_worth)
        });
        let partly: Vec<_> = counted.filter(|(track, used, _)| *used > 0 && *used < track.len()).collect();
        let holes: usize = partly.iter().map(|(track, used, _)| track.len() - used).sum();
        let best = partly.into_iter().filter(|(.., is_worth)| *is_worth).min_by_key(|(_, used, _)| *used);
        let Some((track, used, _)) = best else { return Ok(false) };
        // Elsewhere there must be room for it, and for the records.
        if holes - (track.len() - used) < used + used / PIECES_MAX + 2 {
            return Ok(false);
        }
        let in_track = |(_, entry): &(usize, &Entry)| track.contains(&entry.at);
        let todo: VecDeque<_> =
            state.map.iter().enumerate().filter(in_track).map(|(logical, entry)| (logical as u32, *entry)).collect();
        drop(state);
        log.emptying = Some(Emptying {
            blocks: track,
            todo,
            image: vec![],
            image_at: 0,
            fill: vec![],
            moves: vec![],
            placed: vec![],
            damaged: false,
        });
        Ok(true)
    }
}

/// The tracks of the log.
fn log_tracks(head: &dyn Head, log: &Range<u32>) -> Vec<Range<u32>> {
    let tracks = head.tracks().into_iter().map(|track| {
        let at = |block: u64| block.clamp(log.start as u64, log.end as u64) as u32;
        at(track.start)..at(track.end)
    });
    tracks.filter(|track| !track.is_empty()).collect()
}
