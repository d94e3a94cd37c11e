//! Tracks which ranges of the spill file are in use. Volatile: rebuilt after a mount by a
//! background scan of all heads.
//!
//! There is a bit for each 512 bytes, kept only for blocks with a bit set. Setting and clearing a
//! range are idempotent and happen under the lock of the inode that owns the range. So the scan
//! sees the current ranges of an inode, however the inode changes before or after. Until all inodes
//! were scanned nothing is known to be unused, and blocks are only added.
//! Rejected: the same bits in the region. They would cost log records, space in images, and a lock
//! against compaction for each removal; and what a crash leaves without a user would still have to
//! be found.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use shoal_format::BULK_BLOCK;
use shoal_format::object::SPILL_UNIT;
use shoal_region::LetGo;

use super::Spilled;

/// Bits of a block.
type Bits = u128;
const _: () = assert!(BULK_BLOCK / SPILL_UNIT == Bits::BITS as u64);

pub(crate) struct SpillMap(Mutex<Ranges>);

#[derive(Default)]
struct Ranges {
    blocks: BTreeMap<u64, Bits>,
    /// Blocks without bits that may still be mapped.
    emptied: BTreeSet<u64>,
    spilled: Spilled,
}

/// Returns the blocks and bits of `[at, at + bytes)`; both ends are multiples of a unit.
fn parts(at: u64, bytes: u64) -> impl Iterator<Item = (u64, Bits)> {
    let end = at + bytes;
    (at / BULK_BLOCK..end.div_ceil(BULK_BLOCK)).map(move |block| {
        let base = block * BULK_BLOCK;
        let unit = |byte: u64| ((byte.clamp(base, base + BULK_BLOCK) - base) / SPILL_UNIT) as u32;
        let (from, to) = (unit(at), unit(end));
        (block, (Bits::MAX >> (Bits::BITS - (to - from))) << from)
    })
}

impl SpillMap {
    /// Makes a map without ranges. With `whole`, nothing is spilled and no scan is needed.
    pub fn new(whole: bool) -> SpillMap {
        let spilled = Spilled { counting: !whole, ..Spilled::default() };
        SpillMap(Mutex::new(Ranges { spilled, ..Ranges::default() }))
    }

    /// Adds a range that a head refers to, or will refer to when a transaction commits.
    pub fn add(&self, gone: &LetGo) {
        if gone.bytes == 0 {
            return;
        }
        let mut ranges = self.0.lock();
        let mut is_new = None;
        for (block, bits) in parts(gone.at, gone.bytes) {
            let known = ranges.blocks.entry(block).or_default();
            is_new.get_or_insert(*known & bits == 0);
            *known |= bits;
            ranges.emptied.remove(&block);
        }
        if is_new == Some(true) {
            ranges.spilled.groups += 1;
            ranges.spilled.bytes += gone.stood_for;
            ranges.spilled.stored += gone.bytes;
        }
    }

    /// Removes a range after the last head that referred to it is gone.
    pub fn remove(&self, gone: &LetGo) {
        if gone.bytes == 0 {
            return;
        }
        let mut ranges = self.0.lock();
        let mut was_known = None;
        for (block, bits) in parts(gone.at, gone.bytes) {
            let Some(known) = ranges.blocks.get_mut(&block) else {
                was_known.get_or_insert(false);
                continue;
            };
            was_known.get_or_insert(*known & bits == bits);
            *known &= !bits;
            if *known == 0 {
                ranges.blocks.remove(&block);
                ranges.emptied.insert(block);
            }
        }
        if was_known == Some(true) {
            let spilled = &mut ranges.spilled;
            spilled.groups = spilled.groups.saturating_sub(1);
            spilled.bytes = spilled.bytes.saturating_sub(gone.stood_for);
            spilled.stored = spilled.stored.saturating_sub(gone.bytes);
        }
    }

    /// Notes mapped blocks: those that nothing refers to can be unmapped.
    pub fn mapped(&self, from: u64, to: u64) {
        let mut ranges = self.0.lock();
        let Ranges { blocks, emptied, .. } = &mut *ranges;
        emptied.extend((from..to).filter(|block| !blocks.contains_key(block)));
    }

    /// Returns the emptiest blocks, up to `most`, if rewriting their ranges in use gains `gain`
    /// blocks.
    pub fn sparse(&self, most: usize, gain: u64) -> Option<BTreeSet<u64>> {
        let ranges = self.0.lock();
        if ranges.spilled.counting {
            return None;
        }
        let half = Bits::BITS / 2;
        let mut sparse: Vec<(u32, u64)> = ranges
            .blocks
            .iter()
            .filter_map(|(&block, bits)| (bits.count_ones() <= half).then_some((bits.count_ones(), block)))
            .collect();
        sparse.sort_unstable();
        sparse.truncate(most);
        let used: u64 = sparse.iter().map(|&(units, _)| u64::from(units)).sum();
        let needed = used.div_ceil(Bits::BITS.into()) + gain;
        (sparse.len() as u64 >= needed).then(|| sparse.into_iter().map(|(_, block)| block).collect())
    }

    /// Returns whether all inodes have been scanned.
    pub fn is_whole(&self) -> bool {
        !self.0.lock().spilled.counting
    }

    pub fn set_whole(&self) {
        self.0.lock().spilled.counting = false;
    }

    /// Returns the number of blocks that can be unmapped.
    pub fn emptied(&self) -> u64 {
        let ranges = self.0.lock();
        if ranges.spilled.counting { 0 } else { ranges.emptied.len() as u64 }
    }

    /// Takes the emptied blocks, as ascending runs `(first, end)`.
    pub fn take_emptied(&self) -> Vec<(u64, u64)> {
        let mut ranges = self.0.lock();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        if ranges.spilled.counting {
            return runs;
        }
        for block in std::mem::take(&mut ranges.emptied) {
            match runs.last_mut() {
                Some((_, end)) if *end == block => *end += 1,
                _ => runs.push((block, block + 1)),
            }
        }
        runs
    }

    pub fn spilled(&self) -> Spilled {
        self.0.lock().spilled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(at: u64, bytes: u64) -> LetGo {
        LetGo { at, bytes, stood_for: 3 * bytes }
    }

    #[test]
    fn a_block_is_emptied_by_its_last_range_and_counts_do_not_depend_on_repetition() {
        let map = SpillMap::new(true);
        let (one, two, across) = (range(512, 1024), range(2048, 512), range(65024, 66048));
        for _ in 0..2 {
            [one, two, across].iter().for_each(|range| map.add(range));
        }
        let spilled = map.spilled();
        assert_eq!((spilled.groups, spilled.stored, spilled.bytes), (3, 1024 + 512 + 66048, 3 * (1024 + 512 + 66048)));
        map.remove(&one);
        map.remove(&one);
        map.remove(&across);
        assert_eq!(map.take_emptied(), [(1, 2)], "two lies in block 0");
        map.remove(&two);
        assert_eq!(map.take_emptied(), [(0, 1)]);
        assert_eq!(map.spilled(), Spilled::default());
        map.add(&one);
        map.mapped(0, 4);
        assert_eq!(map.take_emptied(), [(1, 4)]);
    }

    #[test]
    fn the_emptiest_blocks_are_cleaned_if_that_gains_any() {
        let map = SpillMap::new(true);
        for block in 0..20 {
            map.add(&range(block * BULK_BLOCK, if block % 2 == 0 { BULK_BLOCK } else { 512 * (1 + block) }));
        }
        assert_eq!(map.sparse(3, 2), Some([1, 3, 5].into()));
        assert_eq!(map.sparse(100, 9), Some([1, 3, 5, 7, 9, 11, 13, 15, 17, 19].into()));
        assert_eq!(map.sparse(100, 10), None);
    }

    #[test]
    fn nothing_is_unused_until_all_is_known() {
        let map = SpillMap::new(false);
        map.remove(&range(0, 512));
        map.add(&range(65536, 512));
        map.mapped(0, 3);
        assert_eq!((map.emptied(), map.take_emptied()), (0, vec![]));
        map.set_whole();
        assert_eq!(map.take_emptied(), [(0, 1), (2, 3)]);
        // The range is taken again before its block was unmapped.
        map.remove(&range(65536, 512));
        map.add(&range(65536, 512));
        assert_eq!(map.take_emptied(), []);
    }
}
