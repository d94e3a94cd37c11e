//! A set of a device's blocks, kept like its bitmaps: by words of 64.
//!
//! Left out: what a set is for ([`super::unit`]).

use std::collections::HashMap;

/// A set of blocks, by words of 64.
#[derive(Default)]
pub(super) struct BlockSet(HashMap<u64, u64>);

/// A word of a bitmap, and some of its bits.
#[derive(Clone, Copy)]
pub(super) struct Word {
    pub number: u64,
    pub bits: u64,
}

/// Returns the words that `[first, end)` touches, each with the bits in the range.
pub(super) fn words(first: u64, end: u64) -> impl Iterator<Item = Word> {
    let behind = if first < end { end.div_ceil(64) } else { first / 64 };
    (first / 64..behind).map(move |number| {
        let from = first.max(number * 64) - number * 64;
        let len = end.min(number * 64 + 64) - number * 64 - from;
        Word { number, bits: (u64::MAX >> (64 - len)) << from }
    })
}

impl BlockSet {
    pub fn insert(&mut self, first: u64, end: u64) {
        words(first, end).for_each(|word| *self.0.entry(word.number).or_default() |= word.bits);
    }

    pub fn remove(&mut self, first: u64, end: u64) {
        for word in words(first, end) {
            if let Some(bits) = self.0.get_mut(&word.number) {
                *bits &= !word.bits;
                if *bits == 0 {
                    self.0.remove(&word.number);
                }
            }
        }
    }

    /// Moves the blocks within `[first, end)` to another set.
    pub fn give(&mut self, first: u64, end: u64, other: &mut BlockSet) {
        if self.is_empty() {
            return;
        }
        for word in words(first, end) {
            let bits = self.0.get(&word.number).map_or(0, |bits| bits & word.bits);
            if bits != 0 {
                *other.0.entry(word.number).or_default() |= bits;
            }
        }
        self.remove(first, end);
    }

    pub fn meets(&self, first: u64, end: u64) -> bool {
        !self.0.is_empty()
            && words(first, end).any(|word| self.0.get(&word.number).is_some_and(|bits| bits & word.bits != 0))
    }

    pub fn set_word(&mut self, word: u64, bits: u64) {
        if bits != 0 {
            self.0.insert(word, bits);
        }
    }

    pub fn add(&mut self, other: &BlockSet) {
        other.0.iter().for_each(|(&word, &bits)| *self.0.entry(word).or_default() |= bits);
    }

    pub fn words(&self) -> Vec<Word> {
        self.0.iter().map(|(&number, &bits)| Word { number, bits }).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn blocks(&self) -> Vec<u64> {
        let of = |(&word, &bits): (&u64, &u64)| {
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        };
        self.0.iter().flat_map(of).collect()
    }

    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        self.blocks().into_iter().filter(|&block| !keep(block)).for_each(|block| self.remove(block, block + 1));
    }
}
