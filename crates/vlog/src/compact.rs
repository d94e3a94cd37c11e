//! Reclaiming space, a block at a time.
//!
//! Owns: which segment is emptied, and how far that has come; tracks are in `tracks`. Blocks in use
//! are written elsewhere, with the pieces of the map that lie there. The segment is free when the
//! records that say so are announced. Rules: one step does one read or one write, so that a request
//! never waits longer (except for a bad place). A block written in the meantime is not moved. A
//! block that cannot be read, or whose checksum is wrong, stays in place. A request that finds too
//! little space runs the steps itself (invariant 4).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use shoal_format::vlog::{BLOCK, Entry, LOG_AT, PIECE_BLOCKS, PIECES_MAX, Record, Superblock};
use shoal_media::{Result, block};

use crate::Choice;
use crate::disk::{Change, Log, VirtualLog};
use crate::write::{By, Item};

/// Requests empty segments themselves if at most this many are free or waiting for an announcement.
const FREE_SEGMENTS_MIN: usize = 5;
/// With at most this many free segments, requests announce the waiting ones instead of leaving that
/// to a flush.
const FREE_SEGMENTS_LEAST: usize = 3;
/// On a disk without segments, requests announce the blocks left when fewer than this are free.
const FREE_BLOCKS_MIN: u32 = 64;
/// Segments emptied in a gap before they are freed together, as long as enough are free.
const WAITING_SEGMENTS: usize = 4;
/// Blocks gathered before they are written: enough to fill records.
const MOVES: usize = 2 * PIECES_MAX;
/// Maximum used part (percent) of a segment worth emptying in a gap.
const WORTH_PERCENT: u32 = 70;

/// A segment or track that is being emptied.
#[derive(Default)]
pub(crate) struct Emptying {
    pub blocks: Range<u32>,
    /// Logical blocks that were in it, and their entries.
    pub todo: VecDeque<(u32, Entry)>,
    /// Bytes of the segment or track, from block `image_at` on.
    pub image: Vec<u8>,
    pub image_at: u32,
    pub moves: Vec<Item>,
    /// For a track: whether each block may take one of the track's blocks.
    pub holes: Vec<bool>,
    /// For a track: blocks moved but not yet in a record.
    pub placed: Vec<(u32, Entry, Entry)>,
    /// Something in it cannot be moved.
    pub damaged: bool,
}

/// Number of free segments that is enough for a burst: a quarter of what full data would leave.
/// More would cost moves of data that may be overwritten anyway.
fn enough_segments(superblock: &Superblock) -> usize {
    let segments = superblock.segments() as usize;
    let full = (superblock.logical_blocks / superblock.segment_blocks) as usize;
    (segments.saturating_sub(full) / 4).max(FREE_SEGMENTS_MIN + 2)
}

/// Why a segment is emptied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// There is time for it, so it must be worth its cost.
    Gap,
    /// A request needs room.
    Room,
}

/// Numbers of segments.
struct Segments {
    free: usize,
    /// Those that an announcement makes free.
    waiting: usize,
}

impl VirtualLog {
    /// Does one step in a gap. Returns false if nothing is worth doing.
    pub fn compact_step(&self) -> Result<bool> {
        self.writable()?;
        let mut log = self.lock();
        match self.options.head.clone() {
            Some(head) => self.step_anywhere(&mut log, &*head),
            None => Ok(self.checkpoint_step(&mut log)? || self.step_segment(&mut log, Need::Gap)?),
        }
    }

    /// Makes enough space before a request writes, whatever the cost.
    pub(crate) fn make_room(&self, log: &mut Log) -> Result<()> {
        if self.options.head.is_some() {
            let (free, left) = {
                let state = self.state.read();
                (state.space.free_blocks(), state.space.left_blocks())
            };
            // An announcement itself leaves one block, that of the previous announcement.
            if free < FREE_BLOCKS_MIN && left > 1 {
                self.announce(log, By::Request)?;
            }
            return Ok(());
        }
        let mut rounds = self.superblock.segments();
        while rounds > 0 {
            let Segments { free, waiting } = self.segments();
            if free <= FREE_SEGMENTS_LEAST && waiting > 0 {
                // Flushes by requests would do the same, but too late.
                self.announce(log, By::Compactor)?;
            } else if free + waiting > FREE_SEGMENTS_MIN || !self.step_segment(log, Need::Room)? {
                return Ok(());
            }
            rounds -= log.emptying.is_none() as u32;
        }
        Ok(())
    }

    fn segments(&self) -> Segments {
        let state = self.state.read();
        Segments { free: state.space.free_segments(), waiting: state.space.waiting_segments() }
    }

    fn step_segment(&self, log: &mut Log, need: Need) -> Result<bool> {
        let Some(mut emptying) = log.emptying.take() else {
            return self.begin_segment(log, need);
        };
        self.gather(&mut emptying, MOVES);
        let finished = emptying.todo.is_empty();
        emptying.moves.sort_by_key(|item| item.logical);
        let held = self.hold(&emptying.moves);
        // After an error the moves stay in memory, so that reads still find them.
        self.write_items(log, &emptying.moves, &[], By::Compactor)?;
        self.release(&held);
        self.counts.moved.fetch_add(emptying.moves.len() as u64, Ordering::Relaxed);
        emptying.moves.clear();
        if finished {
            self.finish(log, emptying)?;
        } else {
            log.emptying = Some(emptying);
        }
        Ok(true)
    }

    /// Turns blocks that are still in place and intact into moves, up to `most`.
    pub(crate) fn gather(&self, emptying: &mut Emptying, most: usize) {
        while emptying.moves.len() < most
            && let Some((logical, entry)) = emptying.todo.pop_front()
        {
            if self.state.read().map.get(logical) != entry {
                continue;
            }
            let from = (entry.at - emptying.image_at) as usize * BLOCK;
            let data = &emptying.image[from..from + BLOCK];
            if self.is_intact(data, &entry) {
                emptying.moves.push(Item { logical, change: Change::Data(data.into()), from: Some(entry) });
            } else {
                self.counts.damaged.fetch_add(1, Ordering::Relaxed);
                emptying.damaged = true;
            }
        }
    }

    pub(crate) fn finish(&self, log: &mut Log, emptying: Emptying) -> Result<()> {
        if emptying.damaged {
            // Do not try it again and again.
            log.stuck.insert(emptying.blocks.start);
        }
        self.rewrite_pieces(log, emptying.blocks)?;
        self.counts.emptied.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Writes the pieces of the records in a range again, so that those records cease to count.
    fn rewrite_pieces(&self, log: &mut Log, blocks: Range<u32>) -> Result<()> {
        let pieces = {
            let state = self.state.read();
            let records = state.records_within(blocks.clone());
            let mut pieces: Vec<u32> = state.pieces_within(&records).collect();
            pieces.sort_unstable();
            pieces
        };
        match self.options.head.clone() {
            Some(head) => {
                let holes = self.partly_filled(&log.tracks, &blocks);
                self.write_anywhere(log, &[], &pieces, &*head, &|at| holes[at as usize])?;
            }
            None => self.write_items(log, &[], &pieces, By::Compactor)?,
        }
        let state = self.state.read();
        let bare = state.records_within(blocks.clone()).into_iter().any(|at| state.is_bare(at));
        drop(state);
        if bare { self.write_bare_record(log, By::Compactor, &blocks) } else { Ok(()) }
    }

    fn begin_segment(&self, log: &mut Log, need: Need) -> Result<bool> {
        let size = self.superblock.segment_blocks;
        if need == Need::Gap {
            let Segments { free, waiting } = self.segments();
            if free >= enough_segments(&self.superblock) {
                return Ok(false);
            }
            if waiting >= if free > FREE_SEGMENTS_MIN + 1 { WAITING_SEGMENTS } else { 1 } {
                self.announce(log, By::Compactor)?;
                return Ok(true);
            }
        }
        let victim = {
            let state = self.state.read();
            let now = state.next_seq;
            let candidates = state.space.candidates().filter(|candidate| {
                let is_worth_it = need == Need::Room || candidate.used * 100 <= size * WORTH_PERCENT;
                is_worth_it && !log.stuck.contains(&(LOG_AT + candidate.segment * size))
            });
            if need == Need::Room || self.options.choice == Choice::Greedy {
                candidates.min_by_key(|candidate| candidate.used)
            } else {
                let worth = |used: u32, closed_at: u64| {
                    let (u, age) = (used as f64 / size as f64, (now - closed_at + 1) as f64);
                    (1.0 - u) * age / (1.0 + u)
                };
                candidates.max_by(|a, b| worth(a.used, a.closed_at).total_cmp(&worth(b.used, b.closed_at)))
            }
        };
        let Some(victim) = victim else { return Ok(false) };
        let start = LOG_AT + victim.segment * size;
        let blocks = start..start + size;
        let image = match self.read_image(blocks.clone()) {
            Ok(image) => image,
            Err(error) => {
                log.stuck.insert(start);
                // A request continues with the next segment. Work in a gap ends.
                return match need {
                    Need::Room => Ok(true),
                    Need::Gap => Err(error),
                };
            }
        };
        let todo = self.data_in(blocks.clone(), &image);
        log.emptying = Some(Emptying { blocks, todo, image, image_at: start, ..Emptying::default() });
        Ok(true)
    }

    /// Reads blocks that are to be moved. On a device with bad places, the readable blocks are
    /// read; the others become zeros, which fail the checksum unless they were zeros. Returns an
    /// error only if nothing can be read.
    pub(crate) fn read_image(&self, blocks: Range<u32>) -> Result<Vec<u8>> {
        let mut image = vec![0; blocks.len() * BLOCK];
        let Err(error) = block::read(&*self.device, blocks.start as u64 * BLOCK as u64, &mut image) else {
            return Ok(image);
        };
        let mut found = false;
        for (at, out) in blocks.zip(image.chunks_exact_mut(BLOCK)) {
            match block::read(&*self.device, at as u64 * BLOCK as u64, out) {
                Ok(()) => found = true,
                Err(_) => out.fill(0),
            }
        }
        if found { Ok(image) } else { Err(error) }
    }

    /// Returns the logical blocks that are in a segment now, from the segment's own records.
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
                    if listed && state.map.find(logical).is_some_and(|now| now == *entry) {
                        found.push_back((logical, *entry));
                    }
                }
            }
            last = record.seq;
            at += record.skip as u32;
        }
        let records = state.records_within(blocks.clone()).len();
        let counting = state.space.count(&blocks).counting;
        // Blocks are missing only if a record cannot be read. Search the whole map then.
        if found.len() + records < counting {
            return state.map.iter().filter(|(_, entry)| blocks.contains(&entry.at)).collect();
        }
        found
    }
}
