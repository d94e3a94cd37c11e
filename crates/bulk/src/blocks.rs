//! Free blocks of the bulk device: the bitmap in memory, which decides what is given out.
//!
//! A run is searched for behind a file's last extent, else behind a roving cursor that leaves a
//! gap, so that files growing side by side stay contiguous.
//! Left out: the bitmap in the region, and when a freed block may be reused ([`super::Bulk`]).

use shoal_format::extent::BulkBlock;
use shoal_region::Lsn;

use crate::planted::{Bug, is_planted};

/// Blocks that lie side by side on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    pub first: BulkBlock,
    pub blocks: u64,
}

impl Run {
    /// Returns the block behind the last one.
    pub fn end(&self) -> BulkBlock {
        self.first + self.blocks
    }
}

/// Bitmap words of one group; a group without free blocks is skipped as a whole.
const GROUP_WORDS: usize = 512;
/// Free runs examined before the longest one so far is taken.
const RUNS_LOOKED_AT: usize = 4096;

/// A change of a run's bits in a bitmap.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bits {
    Set,
    Cleared,
}

pub(super) struct Blocks {
    words: Vec<u64>,
    group_free: Vec<u32>,
    count: u64,
    pub free: u64,
    /// Freed blocks that must not be reused yet: pending or held.
    pub pending_blocks: u64,
    cursor: u64,
    pub pending: Vec<(Lsn, Run)>,
    /// The bitmap in the newest saved image; empty: there is none.
    pub saved: Vec<u64>,
    /// Runs whose freeing is durable, but which the saved image maps.
    pub held: Vec<Run>,
    pub held_blocks: u64,
    /// Free blocks that are not given out, to keep a limit below the layout's.
    pub withheld: u64,
}

impl Blocks {
    /// Returns which blocks of a word of 64 are not free.
    pub fn used_of(&self, word: u64) -> u64 {
        self.words.get(word as usize).copied().unwrap_or(0)
    }

    /// Returns the number of blocks that are not free.
    pub fn taken(&self) -> u64 {
        self.count - self.free
    }

    pub fn new(mut words: Vec<u64>, count: u64) -> Blocks {
        if !count.is_multiple_of(64) {
            // Bits behind the last block are never free.
            *words.last_mut().expect("there is a last word") |= u64::MAX << (count % 64);
        }
        let group_free: Vec<u32> =
            words.chunks(GROUP_WORDS).map(|group| group.iter().map(|w| w.count_zeros()).sum()).collect();
        let free = group_free.iter().map(|&n| n as u64).sum();
        Blocks {
            words,
            group_free,
            count,
            free,
            pending_blocks: 0,
            cursor: 0,
            pending: Vec::new(),
            saved: Vec::new(),
            held: Vec::new(),
            held_blocks: 0,
            withheld: 0,
        }
    }

    /// Holds the blocks that the saved image maps and the region does not: they were freed in an
    /// earlier life.
    pub fn hold_saved(&mut self) {
        for word in 0..self.saved.len() {
            let mut mask = self.saved[word] & !self.words[word];
            while mask != 0 {
                let bit = mask.trailing_zeros() as u64;
                let blocks = (mask >> bit).trailing_ones() as u64;
                mask &= !(u64::MAX >> (64 - blocks) << bit);
                let run = Run { first: BulkBlock::new(word as u64 * 64 + bit), blocks };
                self.mark(run, Bits::Set);
                self.pending_blocks += blocks;
                self.held_blocks += blocks;
                self.held.push(run);
            }
        }
    }

    /// Holds the blocks of a freed run that the saved image maps; returns the others.
    pub fn hold(&mut self, freed: Run) -> Vec<Run> {
        if self.saved.is_empty() || is_planted(Bug::ReuseSaved) {
            return vec![freed];
        }
        let mut rest = Vec::new();
        let (mut first, behind) = (freed.first.get(), freed.end().get());
        while first < behind {
            let mapped = |block: u64| self.saved[block as usize / 64] >> (block % 64) & 1 == 1;
            let holds = mapped(first);
            let end = (first..behind).find(|&block| mapped(block) != holds).unwrap_or(behind);
            let run = Run { first: BulkBlock::new(first), blocks: end - first };
            if holds {
                self.held_blocks += run.blocks;
                self.held.push(run);
            } else {
                rest.push(run);
            }
            first = end;
        }
        rest
    }

    fn is_free(&self, block: u64) -> bool {
        block < self.count && self.words[block as usize / 64] >> (block % 64) & 1 == 0
    }

    /// Returns the first free block at or behind `from`.
    fn next_free(&self, from: u64) -> Option<u64> {
        let mut block = from;
        while block < self.count {
            let word = block as usize / 64;
            if self.group_free[word / GROUP_WORDS] == 0 {
                block = ((word / GROUP_WORDS + 1) * GROUP_WORDS) as u64 * 64;
                continue;
            }
            let free = !self.words[word] >> (block % 64);
            if free != 0 {
                return Some(block + free.trailing_zeros() as u64);
            }
            block = (word as u64 + 1) * 64;
        }
        None
    }

    /// Returns how many blocks from `block` on are free, counted up to `most`.
    fn free_len(&self, block: u64, most: u64) -> u64 {
        let mut len = 0;
        while len < most && block + len < self.count {
            let at = block + len;
            let used = self.words[at as usize / 64] >> (at % 64);
            if used != 0 {
                len += used.trailing_zeros() as u64;
                break;
            }
            len += 64 - at % 64;
        }
        len.min(most).min(self.count - block)
    }

    /// Marks the blocks of a run as used or free.
    pub fn mark(&mut self, run: Run, bits: Bits) {
        let is_used = bits == Bits::Set;
        let (mut block, end) = (run.first.get(), run.end().get());
        while block < end {
            let word = block as usize / 64;
            let bits = (64 - block % 64).min(end - block);
            let mask = (u64::MAX >> (64 - bits)) << (block % 64);
            let group = &mut self.group_free[word / GROUP_WORDS];
            if is_used {
                debug_assert_eq!(self.words[word] & mask, 0, "block {block} is used twice");
                self.words[word] |= mask;
                *group -= bits as u32;
            } else {
                debug_assert_eq!(self.words[word] & mask, mask, "block {block} is freed twice");
                self.words[word] &= !mask;
                *group += bits as u32;
            }
            block += bits;
        }
        self.free = if is_used { self.free - run.blocks } else { self.free + run.blocks };
    }

    pub fn take_before(&mut self, limit: BulkBlock, want: u64) -> Option<Run> {
        let mut best: Option<Run> = None;
        let mut from = 0;
        while let Some(first) = self.next_free(from).filter(|&first| first < limit.get()) {
            let blocks = self.free_len(first, want.min(limit.get() - first));
            let run = Run { first: BulkBlock::new(first), blocks };
            if best.is_none_or(|best| best.blocks < run.blocks) {
                best = Some(run);
            }
            if run.blocks == want {
                break;
            }
            from = run.end().get();
        }
        self.mark(best?, Bits::Set);
        best
    }

    pub fn take(&mut self, goal: Option<BulkBlock>, want: u64, ahead: u64) -> Option<Run> {
        let want = want.min(self.free.saturating_sub(self.withheld));
        if want == 0 {
            return None;
        }
        if let Some(goal) = goal.filter(|goal| self.is_free(goal.get())) {
            let run = Run { first: goal, blocks: self.free_len(goal.get(), want) };
            self.mark(run, Bits::Set);
            return Some(run);
        }
        let mut best: Option<Run> = None;
        let mut looked_at = 0;
        // From the cursor to the end, then from the start to the cursor.
        let mut from = self.cursor.min(self.count);
        let mut wrapped = false;
        while looked_at < RUNS_LOOKED_AT {
            match self.next_free(from) {
                Some(first) if !wrapped || first < self.cursor => {
                    let run = Run { first: BulkBlock::new(first), blocks: self.free_len(first, want) };
                    if best.is_none_or(|best| best.blocks < run.blocks) {
                        best = Some(run);
                    }
                    if run.blocks == want {
                        break;
                    }
                    looked_at += 1;
                    from = run.end().get();
                }
                _ if wrapped => break,
                _ => (from, wrapped) = (0, true),
            }
        }
        let run = best?;
        self.mark(run, Bits::Set);
        self.cursor = (run.end() + ahead).get() % self.count;
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(count: u64) -> Blocks {
        Blocks::new(vec![0; count.div_ceil(64) as usize], count)
    }

    fn run(first: u64, blocks: u64) -> Run {
        Run { first: BulkBlock::new(first), blocks }
    }

    #[test]
    fn files_growing_side_by_side_stay_contiguous() {
        let mut blocks = blocks(1000);
        let mut ends = [None; 2];
        let mut runs = 0;
        for _ in 0..32 {
            for end in &mut ends {
                let got = blocks.take(*end, 1, 32).unwrap();
                runs += (*end != Some(got.first)) as u32;
                *end = Some(got.end());
            }
        }
        assert_eq!(runs, 2);
    }

    #[test]
    fn every_block_is_given_out_once_and_the_last_bits_never() {
        let mut blocks = blocks(100_003);
        let mut seen = vec![false; 100_003];
        let mut total = 0;
        while let Some(got) = blocks.take(None, 1 + total % 700, 16) {
            (got.first.get()..got.end().get()).for_each(|b| assert!(!std::mem::replace(&mut seen[b as usize], true)));
            total += got.blocks;
        }
        assert_eq!((total, blocks.free), (100_003, 0));
        blocks.mark(run(40_000, 3), Bits::Cleared);
        assert_eq!(blocks.take(None, 8, 0), Some(run(40_000, 3)));
    }

    #[test]
    fn a_run_that_is_long_enough_is_preferred_to_the_nearest_one() {
        let mut blocks = blocks(640);
        blocks.mark(run(2, 100), Bits::Set);
        assert_eq!(blocks.take(None, 8, 0), Some(run(102, 8)));
        assert_eq!(blocks.take(Some(BulkBlock::new(0)), 8, 0), Some(run(0, 2)));
    }
}
