//! Checkpoints of the map: they save the next opening from reading most of the log.
//!
//! Owns: the round that writes the map blocks changed since the round before, each to its unused
//! place; the directory that makes them count; the list of segments that may have been opened since
//! a round began. The layout is in `shoal_format::vlog::map`, reading in `load`. The lock of the
//! log covers all of it.
//! Rules: (1) no block of a segment is written before a list that names the segment is durable; (2)
//! a checkpoint counts by the tail record alone, which is written when all it refers to, and every
//! record it may reflect, is durable; (3) no map block, directory or list of a complete checkpoint
//! is overwritten before a durable tail record names its successor; (4) every map block changed
//! since a round began is dirty for the next one.

use std::sync::atomic::Ordering;

use shoal_format::vlog::map::{
    DIRECTORY_ENTRIES, Directory, LIST_SEGMENTS_MAX, List, MAP_PIECES_MAX, MapPiece, encode_map,
};
use shoal_format::vlog::{Checkpoint as Complete, Superblock};
use shoal_media::Result;

use crate::disk::{Log, VirtualLog};
use crate::planted::{Bug, is_planted};
use crate::space::Naming;
use crate::state::State;

/// Pieces of a map block, unless a test wants fewer.
pub(crate) const MAP_PIECES: u32 = MAP_PIECES_MAX;
/// Maximum number of map blocks in one write.
const RUN_BLOCKS: usize = 64;
/// Minimum number of map blocks written for each segment opened during a round.
const QUOTA_MIN: u32 = 8;
/// Minimum distance of rounds (segments): a smaller part of the log is searched quickly.
const SEGMENTS_MIN: u32 = 1024;

/// Segments opened between two rounds: a sixteenth of the log, within bounds. Recovery searches at
/// most half as many more. If the whole map changes in between, rounds add 3% to the blocks
/// written.
pub(crate) fn segments_between(segments: u32) -> u32 {
    (segments / 16).max(SEGMENTS_MIN).min(segments / 4).max(1)
}

/// Blocks of a list: enough even though a full disk names its segments a few at a time.
pub(crate) fn list_blocks(segments: u32) -> u32 {
    segments_between(segments) / 2 + 8
}

/// A set of numbers, one bit each.
#[derive(Clone, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub fn new(count: u32) -> Bits {
        Bits(vec![0; count.div_ceil(64) as usize])
    }

    pub fn get(&self, n: u32) -> bool {
        self.0[n as usize / 64] >> (n % 64) & 1 == 1
    }

    pub fn set(&mut self, n: u32, value: bool) {
        let (word, bit) = (&mut self.0[n as usize / 64], 1 << (n % 64));
        *word = if value { *word | bit } else { *word & !bit };
    }

    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The first set bit from `from` on.
    pub fn next(&self, from: u32) -> Option<u32> {
        let mut word = from as usize / 64;
        let mut bits = self.0.get(word)? & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            bits = *self.0.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    pub fn bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }
}

/// A list of segments.
pub(crate) struct Listing {
    /// Number of the checkpoint that was complete, or will be complete, with this list.
    pub number: u64,
    pub after: u64,
    pub side: u8,
    /// Number of its blocks already written.
    pub used: u32,
    /// Segments opened since it began.
    pub opened: u32,
}

pub(crate) struct Round {
    /// Map blocks to write.
    pub pending: Bits,
    /// Map blocks to write for each segment opened.
    pub quota: u32,
}

/// The checkpoints of a disk with a map area.
pub(crate) struct Checkpoints {
    /// `None`: no checkpoint is complete, and no round has begun since.
    pub listing: Option<Listing>,
    pub round: Option<Round>,
    /// For each map block: its checksum, its place, and whether it was ever written.
    pub sums: Vec<u32>,
    pub slots: Bits,
    pub present: Bits,
}

impl Checkpoints {
    /// The checkpoints of a disk that has none yet.
    pub fn new(superblock: &Superblock) -> Checkpoints {
        let blocks = superblock.map_blocks();
        Checkpoints {
            listing: None,
            round: None,
            sums: vec![0; blocks as usize],
            slots: Bits::new(blocks),
            present: Bits::new(blocks),
        }
    }

    fn is_due(&self, superblock: &Superblock, share: u32) -> bool {
        self.listing.as_ref().is_none_or(|listing| {
            listing.opened >= segments_between(superblock.segments()).div_ceil(share)
                || listing.used >= superblock.list_blocks() / 2
        })
    }
}

pub(crate) fn quota(superblock: &Superblock, pending: u32) -> u32 {
    pending.div_ceil((segments_between(superblock.segments()) / 2).max(1)).max(QUOTA_MIN)
}

fn piece_of(state: &State, index: u32) -> MapPiece {
    MapPiece { record: state.record_of(index), entries: state.map.piece(index) }
}

impl VirtualLog {
    /// Continues the round and names the segment durably, before a block is written that may open a
    /// segment.
    pub(crate) fn prepare_opening(&self, log: &mut Log) -> Result<()> {
        if log.checkpoints.is_none() || !self.state.read().space.opens_next() {
            return Ok(());
        }
        self.with_checkpoints(log, |log, checkpoints| {
            if let Some(listing) = &mut checkpoints.listing {
                listing.opened += 1;
            }
            match &checkpoints.round {
                Some(round) => {
                    let quota = round.quota;
                    self.go_on(log, checkpoints, quota)?;
                }
                None if checkpoints.is_due(&self.superblock, 1) => self.begin_round(log, checkpoints)?,
                None => {}
            }
            self.name_next(log, checkpoints)
        })
    }

    /// Does one step in a gap. Returns false if there is nothing to do.
    pub(crate) fn checkpoint_step(&self, log: &mut Log) -> Result<bool> {
        self.with_checkpoints(log, |log, checkpoints| {
            if checkpoints.round.is_some() {
                self.go_on(log, checkpoints, RUN_BLOCKS as u32)?;
                return Ok(true);
            }
            if !checkpoints.is_due(&self.superblock, 2) {
                return Ok(false);
            }
            self.begin_round(log, checkpoints)?;
            Ok(checkpoints.round.is_some())
        })
    }

    pub(crate) fn with_checkpoints<T: Default>(
        &self,
        log: &mut Log,
        work: impl FnOnce(&mut Log, &mut Checkpoints) -> Result<T>,
    ) -> Result<T> {
        let Some(mut checkpoints) = log.checkpoints.take() else { return Ok(T::default()) };
        let done = work(log, &mut checkpoints);
        log.checkpoints = Some(checkpoints);
        done
    }

    /// Begins a round. Later changes are left to the next round, and segments are named in this
    /// round's list.
    fn begin_round(&self, log: &mut Log, checkpoints: &mut Checkpoints) -> Result<()> {
        let number = log.written;
        let last = checkpoints.listing.as_ref().map_or(0, |listing| listing.number);
        if number <= last.max(log.complete.map_or(0, |complete| complete.number)) {
            return Ok(());
        }
        let (pending, names) = {
            let mut state = self.state.write();
            let pending = state.take_dirty();
            (pending, state.space.begin_list(LIST_SEGMENTS_MAX))
        };
        let quota = quota(&self.superblock, pending.count());
        checkpoints.round = Some(Round { pending, quota });
        checkpoints.listing = Some(Listing {
            number,
            after: log.complete.map_or(0, |complete| complete.number),
            side: log.complete.map_or(0, |complete| 1 - complete.side),
            used: 0,
            opened: 0,
        });
        self.append_names(checkpoints, names)?;
        if is_planted(Bug::NamesUnflushed) { Ok(()) } else { self.flush_device(log) }
    }

    fn go_on(&self, log: &mut Log, checkpoints: &mut Checkpoints, blocks: u32) -> Result<()> {
        if self.write_map(checkpoints, blocks)? { Ok(()) } else { self.complete_round(log, checkpoints) }
    }

    /// Writes up to `blocks` map blocks. Returns false if none is left.
    fn write_map(&self, checkpoints: &mut Checkpoints, blocks: u32) -> Result<bool> {
        let Checkpoints { listing: Some(listing), round: Some(round), sums, slots, present } = checkpoints else {
            return Ok(false);
        };
        let each = self.superblock.area.map_or(1, |area| area.map_pieces);
        let (mut next, mut done) = (round.pending.next(0), 0);
        let mut run: Vec<u8> = Vec::new();
        let mut run_at = 0;
        while let Some(index) = next.filter(|_| done < blocks) {
            let pieces: Vec<MapPiece> = {
                let state = self.state.read();
                let first = index * each;
                (first..self.superblock.pieces().min(first + each)).map(|index| piece_of(&state, index)).collect()
            };
            if pieces.iter().any(|piece| piece.record != 0) {
                let was = slots.get(index);
                let slot = if is_planted(Bug::MapInPlace) { was } else { present.get(index) && !was };
                let at = self.superblock.map_at(slot.into(), index);
                let (block, sum) = encode_map(&self.superblock, listing.number, index, &pieces);
                if !run.is_empty() && run_at + (run.len() / block.len()) as u32 != at
                    || run.len() >= RUN_BLOCKS * block.len()
                {
                    self.write_blocks(run_at, &std::mem::take(&mut run))?;
                }
                if run.is_empty() {
                    run_at = at;
                }
                run.extend_from_slice(&block);
                sums[index as usize] = sum;
                slots.set(index, slot);
                present.set(index, true);
                done += 1;
            }
            round.pending.set(index, false);
            next = round.pending.next(index);
        }
        if !run.is_empty() {
            self.write_blocks(run_at, &run)?;
        }
        Ok(next.is_some())
    }

    fn complete_round(&self, log: &mut Log, checkpoints: &mut Checkpoints) -> Result<()> {
        let Some(listing) = &checkpoints.listing else { return Ok(()) };
        let (number, side) = (listing.number, listing.side);
        let mut run = Vec::new();
        let blocks = self.superblock.directory_blocks();
        for index in 0..blocks {
            let mut directory = Directory::new(number, index);
            let first = index * DIRECTORY_ENTRIES;
            for block in (first..self.superblock.map_blocks().min(first + DIRECTORY_ENTRIES))
                .filter(|&block| checkpoints.present.get(block))
            {
                let (slot, sum) = (checkpoints.slots.get(block), checkpoints.sums[block as usize]);
                directory.set((block - first) as usize, slot.into(), sum);
            }
            run.extend_from_slice(&directory.encode(&self.superblock));
            let written = index + 1;
            if written == blocks || written % RUN_BLOCKS as u32 == 0 {
                let from = index / RUN_BLOCKS as u32 * RUN_BLOCKS as u32;
                self.write_blocks(self.superblock.directory_at(side, from), &std::mem::take(&mut run))?;
            }
        }
        // Makes durable the map blocks, the directory, the list, and all records that the map may
        // reflect.
        if !is_planted(Bug::CheckpointUnflushed) {
            self.flush_device(log)?;
        }
        log.complete = Some(Complete { number, side });
        self.write_tails(log)?;
        checkpoints.round = None;
        self.counts.checkpoints.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Names the segment opened next in a list, durably on return.
    fn name_next(&self, log: &mut Log, checkpoints: &mut Checkpoints) -> Result<()> {
        if checkpoints.listing.is_none() {
            return Ok(());
        }
        let naming = self.state.read().space.naming();
        if naming == Naming::Done {
            return Ok(());
        }
        let names = self.state.write().space.unnamed(LIST_SEGMENTS_MAX);
        if !names.is_empty() {
            let is_full = |checkpoints: &Checkpoints| {
                checkpoints.listing.as_ref().is_some_and(|listing| listing.used == self.superblock.list_blocks())
            };
            if is_full(checkpoints) {
                // Completing a round needs no list space, and the next round begins with an empty
                // list.
                while checkpoints.round.is_some() {
                    self.go_on(log, checkpoints, u32::MAX)?;
                }
                self.begin_round(log, checkpoints)?;
            }
            let names = self.state.write().space.unnamed(LIST_SEGMENTS_MAX);
            if !names.is_empty() {
                if is_full(checkpoints) {
                    return self.forget_checkpoint(log, checkpoints);
                }
                self.append_names(checkpoints, names)?;
            }
        }
        // Names that only later openings need become durable with a later flush.
        if self.state.read().space.naming() == Naming::Now && !is_planted(Bug::NamesUnflushed) {
            self.flush_device(log)?;
        }
        Ok(())
    }

    /// Adds segments to the list. They are durable after the next flush.
    pub(crate) fn append_names(&self, checkpoints: &mut Checkpoints, names: Vec<u32>) -> Result<()> {
        let Some(listing) = &mut checkpoints.listing else { return Ok(()) };
        self.state.write().space.named(&names);
        let segments = if is_planted(Bug::SegmentUnnamed) && listing.used > 0 { vec![] } else { names };
        let list = List { number: listing.number, after: listing.after, index: listing.used, segments };
        let block = list.encode(&self.superblock);
        for copy in 0..2 {
            self.write_blocks(self.superblock.list_at(listing.side, copy, listing.used), &block)?;
        }
        listing.used += 1;
        Ok(())
    }

    /// Gives the checkpoint up. Until a round is complete, recovery from a crash searches the whole
    /// log.
    pub(crate) fn forget_checkpoint(&self, log: &mut Log, checkpoints: &mut Checkpoints) -> Result<()> {
        log.complete = None;
        self.write_tails(log)?;
        (checkpoints.listing, checkpoints.round) = (None, None);
        let mut state = self.state.write();
        state.all_dirty();
        state.space.name_nothing();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_over_words() {
        let mut bits = Bits::new(200);
        for n in [0, 63, 64, 199] {
            bits.set(n, true);
        }
        let mut found = vec![];
        let mut next = bits.next(0);
        while let Some(n) = next {
            found.push(n);
            bits.set(n, false);
            next = bits.next(n);
        }
        assert_eq!((found, bits.count(), bits.next(199)), (vec![0, 63, 64, 199], 0, None));
        assert_eq!(Bits::new(0).next(0), None);
    }

    #[test]
    fn rounds_are_as_far_apart_as_the_log_is_large() {
        let between: Vec<u32> = [12, 1024, 8192, 1 << 20].map(segments_between).into();
        assert_eq!(between, [3, 256, 1024, 65536]);
    }
}
