//! Reclaiming space where the head position is known: tracks.
//!
//! A track is emptied into the holes of other, partly filled tracks, so that the head finds empty
//! tracks and can write there without searching. Owns the steps: read the blocks to be moved at
//! once, write them block by block, then write the record. Rules: those of `compact`. A move that
//! finds no hole is given up, since nothing depends on it.

use std::ops::Range;
use std::sync::atomic::Ordering;

use shoal_format::vlog::PIECES_MAX;
use shoal_media::{Head, Result};

use crate::compact::Emptying;
use crate::disk::{Change, Log, VirtualLog};
use crate::space::Count;
use crate::state::Changed;
use crate::write::{By, Item, is_unchanged};

/// Maximum number of blocks left before their release is requested.
const LEFT_MAX: u32 = 64;
/// Nothing is moved with fewer free blocks than this, in addition to those of a request.
const MOVES_FREE_MIN: usize = 8;
/// Blocks that the record of moves may need: one for itself, and one for a bare record.
const RECORD_BLOCKS: u32 = 2;

impl VirtualLog {
    pub(crate) fn step_anywhere(&self, log: &mut Log, head: &dyn Head) -> Result<bool> {
        self.make_room(log)?;
        if self.state.read().space.free_blocks() < RECORD_BLOCKS {
            self.give_up(log);
            return Ok(false);
        }
        let Some(mut emptying) = log.emptying.take() else {
            return if self.has_room_to_move() { self.begin_track(log, head) } else { Ok(false) };
        };
        if emptying.moves.is_empty() && emptying.placed.is_empty() && emptying.todo.is_empty() {
            self.finish(log, emptying)?;
            return Ok(true);
        }
        if emptying.placed.is_empty() && emptying.moves.is_empty() {
            self.read_track(&mut emptying).inspect_err(|_| {
                log.stuck.insert(emptying.blocks.start);
            })?;
        } else if let Some(item) = emptying.moves.pop() {
            self.place_one(log, head, &mut emptying, item)?;
        } else {
            self.record_placed(log, head, &mut emptying)?;
        }
        log.emptying = Some(emptying);
        Ok(true)
    }

    fn has_room_to_move(&self) -> bool {
        self.state.read().space.free_blocks() as usize > self.items_at_once() + MOVES_FREE_MIN
    }

    /// Gives up moves that no record lists yet. Each move holds two blocks, the old and the new.
    /// The new one becomes free at once.
    pub(crate) fn give_up(&self, log: &mut Log) {
        let placed = log.emptying.take().map_or(vec![], |emptying| emptying.placed);
        let mut state = self.state.write();
        placed.iter().for_each(|(_, _, entry)| state.space.free(entry.at));
    }

    /// Reads the part of the track that is to be moved, at once. Then prepares moves of as many
    /// blocks as fit into a record.
    fn read_track(&self, emptying: &mut Emptying) -> Result<()> {
        let places = emptying.todo.iter().map(|(_, entry)| entry.at);
        if emptying.image.is_empty()
            && let (Some(first), Some(last)) = (places.clone().min(), places.max())
        {
            emptying.image_at = first;
            emptying.image = self.read_image(first..last + 1)?;
            return Ok(());
        }
        self.gather(emptying, PIECES_MAX);
        Ok(())
    }

    fn place_one(&self, log: &Log, head: &dyn Head, emptying: &mut Emptying, item: Item) -> Result<()> {
        let (Change::Data(data), Some(from)) = (&item.change, item.from) else { return Ok(()) };
        if !is_unchanged(&self.state.read(), item.logical, from) {
            return Ok(());
        }
        let tries = if self.has_room_to_move() { 2 } else { 0 };
        for _ in 0..tries {
            if emptying.holes.is_empty() {
                emptying.holes = self.partly_filled(&log.tracks, &emptying.blocks);
            }
            if let Some(at) = self.take_free(head, &|block| emptying.holes[block as usize]) {
                self.write_blocks(at, data)?;
                emptying.placed.push((item.logical, from, self.superblock.entry(at, data)));
                return Ok(());
            }
            emptying.holes.clear();
        }
        emptying.todo.clear();
        emptying.moves.clear();
        Ok(())
    }

    fn record_placed(&self, log: &mut Log, head: &dyn Head, emptying: &mut Emptying) -> Result<()> {
        let mut placed = std::mem::take(&mut emptying.placed);
        placed.sort_by_key(|&(logical, ..)| logical);
        let mut changed: Vec<Changed> = Vec::new();
        let mut wanted = Vec::with_capacity(placed.len());
        for (logical, from, entry) in placed {
            let mut state = self.state.write();
            if !is_unchanged(&state, logical, from) {
                // The block was written in the meantime.
                state.space.free(entry.at);
                continue;
            }
            Changed::mark(&mut changed, logical);
            wanted.push((logical, entry));
        }
        if wanted.is_empty() {
            return Ok(());
        }
        self.counts.moved.fetch_add(wanted.len() as u64, Ordering::Relaxed);
        let holes = self.partly_filled(&log.tracks, &emptying.blocks);
        self.write_record_anywhere(log, &mut wanted, &mut changed, head, &|at| holes[at as usize])
    }

    /// Returns, for each block, whether it lies on a track, other than `but`, that is partly filled
    /// with blocks that count. The compactor writes only there: if it began new tracks while
    /// emptying others, it would never finish.
    pub(crate) fn partly_filled(&self, tracks: &[Range<u32>], but: &Range<u32>) -> Vec<bool> {
        let state = self.state.read();
        let mut allowed = vec![false; state.space.blocks().end as usize];
        for track in tracks.iter().filter(|track| *track != but) {
            let Count { used, counting } = state.space.count(track);
            if counting > 0 && used < track.len() {
                allowed[track.start as usize..track.end as usize].fill(true);
            }
        }
        allowed
    }

    fn begin_track(&self, log: &mut Log, head: &dyn Head) -> Result<bool> {
        if log.tracks.is_empty() {
            log.tracks = log_tracks(head, &self.state.read().space.blocks());
        }
        if self.state.read().space.left_blocks() > LEFT_MAX {
            self.announce(log, By::Compactor)?;
            return Ok(true);
        }
        let state = self.state.read();
        let counted = log.tracks.iter().map(|track| (track, state.space.count(track)));
        // Tracks whose blocks were all left become free by themselves.
        let partly = counted.filter(|(track, count)| count.counting > 0 && count.used < track.len());
        let partly: Vec<_> = partly.map(|(track, count)| (track, count.used)).collect();
        let holes: usize = partly.iter().map(|(track, used)| track.len() - used).sum();
        let worth = partly.into_iter().filter(|(track, _)| !log.stuck.contains(&track.start));
        let Some((track, used)) = worth.min_by_key(|(_, used)| *used) else { return Ok(false) };
        // The other tracks must have room for the blocks and for the records.
        if holes - (track.len() - used) < used + used / PIECES_MAX + 2 {
            return Ok(false);
        }
        let todo = state.map.iter().filter(|(_, entry)| track.contains(&entry.at)).collect();
        log.emptying = Some(Emptying { blocks: track.clone(), todo, ..Emptying::default() });
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
