//! Which blocks of the log are free, and when a block that was left becomes free again.
//!
//! Owns: one bit for each block, a count for each segment, the list of free segments, the queue of
//! blocks that were left. A block is *left* when its contents have a successor.
//! Rules: a block that was left stays in use until its successor is announced durable (invariant 1
//! of the crate). A segment is written once, from its start, and becomes free when nothing in it is
//! in use. Left out: the contents of the blocks.

use std::collections::VecDeque;

use shoal_format::vlog::{LOG_AT, Superblock};

use crate::planted::{Bug, is_planted};
use crate::write::By;

/// Segments that only recovery and the compactor may open.
const RESERVED_SEGMENTS: usize = 2;

/// The free rest of the open segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// The next block to write.
    pub at: u32,
    pub blocks: u32,
}

/// How full a range of blocks is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count {
    /// Blocks in use, or left and not free yet.
    pub used: usize,
    /// Those of them that were not left.
    pub counting: usize,
}

pub(crate) struct Space {
    used: Vec<u64>,
    /// Bits of the blocks in `left`.
    left_bits: Vec<u64>,
    used_blocks: u32,
    /// Blocks that were left, with the number of the last record of the change that left them.
    /// Numbers ascend.
    left: VecDeque<(u64, u32)>,
    segments: Option<Segments>,
    blocks: std::ops::Range<u32>,
}

struct Segments {
    blocks: u32,
    /// Blocks in use, or left and not free yet.
    used: Vec<u32>,
    /// Blocks left and not free yet.
    left: Vec<u32>,
    /// Number of the newest record when the segment was closed, to tell its age.
    closed_at: Vec<u64>,
    /// In the order in which they became free, to level wear.
    free: VecDeque<u32>,
    /// Number of segments that wait for an announcement.
    waiting: usize,
    open: Option<Open>,
    /// Whether a list names each segment. Empty if no segment needs a name.
    named: Vec<Named>,
    /// Segments named since the last flush.
    unflushed: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    No,
    /// The list is written, but not flushed.
    Written,
    Durable,
}

/// Whether a durable list names the segment that is opened next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    Done,
    /// The segment is named, but the one after it is not.
    Soon,
    Now,
}

#[derive(Clone, Copy)]
struct Open {
    segment: u32,
    /// Blocks written.
    written: u32,
}

/// A segment as the compactor sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub segment: u32,
    /// Blocks that would have to be moved.
    pub used: u32,
    pub closed_at: u64,
}

impl Space {
    /// A log whose blocks are all free.
    pub fn new(superblock: &Superblock) -> Space {
        let count = superblock.segments();
        let segments = (count > 0).then(|| Segments {
            blocks: superblock.segment_blocks,
            used: vec![0; count as usize],
            left: vec![0; count as usize],
            closed_at: vec![0; count as usize],
            free: (0..count).collect(),
            waiting: 0,
            open: None,
            named: Vec::new(),
            unflushed: Vec::new(),
        });
        let end = if count > 0 { LOG_AT + count * superblock.segment_blocks } else { superblock.physical_blocks };
        Space {
            used: vec![0; (superblock.physical_blocks as usize).div_ceil(64)],
            left_bits: vec![0; (superblock.physical_blocks as usize).div_ceil(64)],
            used_blocks: 0,
            left: VecDeque::new(),
            segments,
            blocks: LOG_AT..end,
        }
    }

    /// Blocks of the log.
    pub fn blocks(&self) -> std::ops::Range<u32> {
        self.blocks.clone()
    }

    pub fn is_used(&self, block: u32) -> bool {
        self.used[block as usize / 64] >> (block % 64) & 1 == 1
    }

    pub fn count(&self, blocks: &std::ops::Range<u32>) -> Count {
        let (mut used, mut counting, mut at) = (0, 0, blocks.start);
        while at < blocks.end {
            let (word, first) = (at as usize / 64, at % 64);
            let len = (64 - first).min(blocks.end - at);
            let mask = (u64::MAX >> (64 - len)) << first;
            used += (self.used[word] & mask).count_ones();
            counting += (self.used[word] & !self.left_bits[word] & mask).count_ones();
            at += len;
        }
        Count { used: used as usize, counting: counting as usize }
    }

    /// Blocks in use, or left and not free yet.
    pub fn used_blocks(&self) -> u32 {
        self.used_blocks
    }

    pub fn left_blocks(&self) -> u32 {
        self.left.len() as u32
    }

    pub fn free_blocks(&self) -> u32 {
        self.blocks.len() as u32 - self.used_blocks
    }

    pub fn free_segments(&self) -> usize {
        self.segments.as_ref().map_or(0, |segments| segments.free.len())
    }

    /// Number of segments that an announcement frees, because everything in use there was left.
    pub fn waiting_segments(&self) -> usize {
        self.segments.as_ref().map_or(0, |segments| segments.waiting)
    }

    /// Takes a block. While a disk is opened, a block may be taken more than once.
    pub fn take(&mut self, block: u32) {
        if self.is_used(block) {
            return;
        }
        self.used[block as usize / 64] |= 1 << (block % 64);
        self.used_blocks += 1;
        if let Some(segments) = &mut self.segments {
            segments.adjust(block, |used, _| *used += 1);
        }
    }

    /// While a disk is opened, before any block is left: takes a block. Returns false if it was
    /// taken already.
    pub fn take_found(&mut self, block: u32) -> bool {
        let (word, bit) = (&mut self.used[block as usize / 64], 1 << (block % 64));
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.used_blocks += 1;
        if let Some(segments) = &mut self.segments {
            segments.used[((block - LOG_AT) / segments.blocks) as usize] += 1;
        }
        true
    }

    /// Leaves a block: it ceases to count once record `seq` does.
    pub fn leave(&mut self, block: u32, seq: u64) {
        debug_assert!(self.is_used(block), "block {block} left while free");
        if is_planted(Bug::FreeAtOnce) {
            return self.free(block);
        }
        self.left.push_back((seq, block));
        self.left_bits[block as usize / 64] |= 1 << (block % 64);
        if let Some(segments) = &mut self.segments {
            segments.adjust(block, |_, left| *left += 1);
        }
    }

    /// Frees a block that was taken but not written.
    pub fn free(&mut self, block: u32) {
        debug_assert!(self.is_used(block), "block {block} freed while free");
        self.used[block as usize / 64] &= !(1 << (block % 64));
        self.used_blocks -= 1;
        if let Some(segments) = &mut self.segments {
            let number = segments.adjust(block, |used, _| *used -= 1);
            segments.free_if_empty(number);
        }
    }

    /// Frees the blocks left up to record `seq`, which is announced durable.
    pub fn announced(&mut self, seq: u64) {
        while let Some(&(left, block)) = self.left.front()
            && left <= seq
        {
            self.left.pop_front();
            self.left_bits[block as usize / 64] &= !(1 << (block % 64));
            if let Some(segments) = &mut self.segments {
                segments.adjust(block, |_, left| *left -= 1);
            }
            self.free(block);
        }
    }

    /// Lists the segments with no block in use, after all blocks in use were taken.
    pub fn list_free_segments(&mut self) {
        if let Some(segments) = &mut self.segments {
            segments.shut();
            segments.free = (0..segments.used.len() as u32).filter(|&n| segments.used[n as usize] == 0).collect();
        }
    }

    /// Returns what remains of the open segment. Opens another segment if fewer than two blocks
    /// remain, since a record and data need two. Returns `None` if no segment may be opened.
    pub fn room(&mut self, by: By, seq: u64) -> Option<Room> {
        let segments = self.segments.as_mut().expect("a disk with segments");
        if segments.opens_next() {
            let keep = if by == By::Compactor { RESERVED_SEGMENTS - 1 } else { RESERVED_SEGMENTS };
            if segments.free.len() <= keep {
                return None;
            }
            segments.close(seq);
            segments.assert_named();
            segments.open = segments.free.pop_front().map(|segment| Open { segment, written: 0 });
        }
        let open = segments.open?;
        let at = LOG_AT + open.segment * segments.blocks + open.written;
        Some(Room { at, blocks: segments.blocks - open.written })
    }

    /// For recovery: opens a segment, even from the reserve.
    pub fn open_any(&mut self) -> bool {
        let Some(segments) = &mut self.segments else { return false };
        segments.shut();
        segments.assert_named();
        segments.open = segments.free.pop_front().map(|segment| Open { segment, written: 0 });
        segments.open.is_some()
    }

    // Naming of segments in a list.

    /// Returns whether the next chunk opens a segment.
    pub fn opens_next(&self) -> bool {
        self.segments.as_ref().is_some_and(Segments::opens_next)
    }

    pub fn naming(&self) -> Naming {
        let Some(segments) = self.segments.as_ref().filter(|segments| !segments.named.is_empty()) else {
            return Naming::Done;
        };
        let mut first = segments.free.iter().map(|&segment| segments.named[segment as usize]);
        match (first.next(), first.next()) {
            (Some(Named::No | Named::Written), _) => Naming::Now,
            (_, Some(Named::No)) => Naming::Soon,
            _ => Naming::Done,
        }
    }

    /// Returns free segments that no list names.
    pub fn unnamed(&self, most: usize) -> Vec<u32> {
        let Some(segments) = &self.segments else { return vec![] };
        let unnamed = segments.free.iter().filter(|&&segment| segments.named.get(segment as usize) == Some(&Named::No));
        unnamed.copied().take(most).collect()
    }

    /// Begins a new list, and returns the segments that it must name first.
    pub fn begin_list(&mut self, most: usize) -> Vec<u32> {
        let Some(segments) = &mut self.segments else { return vec![] };
        segments.named = vec![Named::No; segments.used.len()];
        segments.unflushed.clear();
        let open = segments.open.map(|open| open.segment).filter(|_| !is_planted(Bug::OpenUnnamed));
        open.into_iter().chain(segments.free.iter().copied()).take(most).collect()
    }

    pub fn named(&mut self, names: &[u32]) {
        let Some(segments) = &mut self.segments else { return };
        for &name in names {
            if let Some(named) = segments.named.get_mut(name as usize) {
                *named = Named::Written;
                segments.unflushed.push(name);
            }
        }
    }

    pub fn names_flushed(&mut self) {
        let Some(segments) = &mut self.segments else { return };
        for name in segments.unflushed.drain(..) {
            segments.named[name as usize] = Named::Durable;
        }
    }

    /// Ends naming: no segment needs a name any more.
    pub fn name_nothing(&mut self) {
        if let Some(segments) = &mut self.segments {
            (segments.named, segments.unflushed) = (Vec::new(), Vec::new());
        }
    }

    /// For recovery: moves the first free segment that is named durably to the front, so that it is
    /// opened next. Returns false if there is none.
    pub fn named_first(&mut self) -> bool {
        let Some(segments) = &mut self.segments else { return true };
        if segments.named.is_empty() {
            return true;
        }
        let is_named = |&segment: &u32| segments.named[segment as usize] == Named::Durable;
        let Some(place) = segments.free.iter().position(is_named) else { return false };
        let first = segments.free.remove(place);
        segments.free.extend(first);
        segments.free.rotate_right(1);
        true
    }

    /// Advances over blocks of the open segment, which is written in order.
    pub fn advance(&mut self, blocks: u32) {
        if let Some(open) = self.segments.as_mut().and_then(|segments| segments.open.as_mut()) {
            open.written += blocks;
        }
    }

    /// Returns the segments that could be emptied, except those that become free anyway.
    pub fn candidates(&self) -> impl Iterator<Item = Candidate> + '_ {
        let segments = self.segments.as_ref();
        let open = segments.and_then(|segments| segments.open).map(|open| open.segment);
        segments.into_iter().flat_map(move |segments| {
            let used = segments.used.iter().zip(&segments.left).map(|(used, left)| used - left);
            let each = used.zip(&segments.closed_at).enumerate();
            each.map(|(n, (used, &closed_at))| Candidate { segment: n as u32, used, closed_at })
                .filter(move |candidate| candidate.used > 0 && Some(candidate.segment) != open)
        })
    }
}

impl Segments {
    fn opens_next(&self) -> bool {
        self.open.is_none_or(|open| open.written + 2 > self.blocks)
    }

    /// Checks that recovery would search the segment opened next. Other segments must not be
    /// written.
    fn assert_named(&self) {
        if let Some(&first) = self.free.front()
            && let Some(&named) = self.named.get(first as usize)
        {
            assert!(named == Named::Durable || is_planted(Bug::NamesUnflushed), "segment {first} is {named:?}");
        }
    }

    fn is_waiting(&self, number: u32) -> bool {
        let (used, left) = (self.used[number as usize], self.left[number as usize]);
        used > 0 && used == left && self.open.is_none_or(|open| open.segment != number)
    }

    /// Changes the counts of used and left blocks in a block's segment, and returns the segment.
    fn adjust(&mut self, block: u32, change: impl FnOnce(&mut u32, &mut u32)) -> u32 {
        let number = (block - LOG_AT) / self.blocks;
        self.waiting -= usize::from(self.is_waiting(number));
        change(&mut self.used[number as usize], &mut self.left[number as usize]);
        self.waiting += usize::from(self.is_waiting(number));
        number
    }

    /// Closes the open segment.
    fn shut(&mut self) -> Option<Open> {
        let open = self.open.take()?;
        self.waiting += usize::from(self.is_waiting(open.segment));
        Some(open)
    }

    fn close(&mut self, seq: u64) {
        if let Some(open) = self.shut() {
            self.closed_at[open.segment as usize] = seq;
            self.free_if_empty(open.segment);
        }
    }

    fn free_if_empty(&mut self, number: u32) {
        if self.used[number as usize] == 0 && self.open.is_none_or(|open| open.segment != number) {
            self.free.push_back(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(segment_blocks: u32) -> Superblock {
        Superblock {
            uuid: [0; 16],
            salt: 0,
            logical_blocks: 40,
            physical_blocks: LOG_AT + 100,
            segment_blocks,
            area: None,
            sums: shoal_format::Sums::Xxh3,
        }
    }

    #[test]
    fn a_segment_is_free_again_when_all_its_blocks_are_announced() {
        let mut space = Space::new(&superblock(16));
        assert_eq!((space.free_segments(), space.blocks()), (6, LOG_AT..LOG_AT + 96));
        assert_eq!(space.room(By::Request, 0), Some(Room { at: LOG_AT, blocks: 16 }));
        (LOG_AT..LOG_AT + 15).for_each(|block| space.take(block));
        space.advance(15);
        assert_eq!(space.room(By::Request, 9), Some(Room { at: LOG_AT + 16, blocks: 16 }), "one block is too little");
        (LOG_AT..LOG_AT + 15).for_each(|block| space.leave(block, block as u64));
        space.announced(LOG_AT as u64 + 13);
        assert_eq!((space.free_segments(), space.used_blocks(), space.left_blocks()), (4, 1, 1));
        assert_eq!(space.waiting_segments(), 1);
        space.announced(LOG_AT as u64 + 14);
        assert_eq!((space.free_segments(), space.free_blocks(), space.waiting_segments()), (5, 96, 0));
    }

    #[test]
    fn segments_that_wait_are_counted_whatever_happens() {
        let mut space = Space::new(&superblock(16));
        let (mut seed, mut seq, mut taken) = (1u64, 0, vec![]);
        let mut most = 0;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match seed >> 60 {
                0..5 => {
                    if let Some(Room { at, .. }) = space.room(By::Compactor, seq) {
                        space.take(at);
                        space.advance(1);
                        taken.push(at);
                    }
                }
                5..15 if !taken.is_empty() => {
                    seq += 1;
                    space.leave(taken.swap_remove((seed >> 20) as usize % taken.len()), seq);
                }
                _ if seed >> 56 & 7 == 0 => space.announced(seq - seq.min(2)),
                _ => {}
            }
            let segments = space.segments.as_ref().unwrap();
            let waiting = (0..segments.used.len() as u32).filter(|&number| segments.is_waiting(number)).count();
            assert_eq!(space.waiting_segments(), waiting);
            most = most.max(waiting);
        }
        assert!(most > 1, "{most}");
    }

    #[test]
    fn the_last_segments_are_not_for_requests() {
        let mut space = Space::new(&superblock(16));
        let mut opened = 0;
        while let Some(Room { at, blocks: room }) = space.room(By::Request, 0) {
            (at..at + room).for_each(|block| space.take(block));
            space.advance(room);
            opened += 1;
        }
        assert_eq!((opened, space.free_segments()), (4, 2));
        assert!(space.room(By::Compactor, 0).is_some());
        assert_eq!(space.free_segments(), 1);
        assert!(space.open_any() && !space.open_any());
    }

    #[test]
    fn ranges_are_counted_over_words() {
        let mut space = Space::new(&superblock(0));
        (LOG_AT..LOG_AT + 100).step_by(3).for_each(|block| space.take(block));
        (LOG_AT..LOG_AT + 100).step_by(6).for_each(|block| space.leave(block, 1));
        for (start, end) in [(4, 104), (4, 5), (60, 70), (63, 64), (64, 104), (50, 50)] {
            let used = (start..end).filter(|block| (block - LOG_AT).is_multiple_of(3)).count();
            let left = (start..end).filter(|block| (block - LOG_AT).is_multiple_of(6)).count();
            assert_eq!(space.count(&(start..end)), Count { used, counting: used - left }, "{start}..{end}");
        }
    }

    #[test]
    fn segments_that_could_be_emptied_are_listed_without_the_open_one() {
        let mut space = Space::new(&superblock(16));
        for seq in [5, 6, 7] {
            let Room { at, blocks: room } = space.room(By::Request, seq).unwrap();
            (at..at + 3).for_each(|block| space.take(block));
            space.advance(room);
        }
        let found: Vec<_> = space.candidates().map(|c| (c.segment, c.used, c.closed_at)).collect();
        assert_eq!(found, [(0, 3, 6), (1, 3, 7)]);
        let free = Space::new(&superblock(0));
        assert_eq!((free.candidates().count(), free.free_blocks()), (0, 100));
    }
}
