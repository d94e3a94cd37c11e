//! Blocks of which the owner of the cache keeps a version by itself, so that they are durable
//! although the device has no flush behind them.
//!
//! Owns: which version is kept of each block, and which lines a flush alone makes durable. Rules:
//! - A kept block is released when the device has the kept version, or a newer one, and a completed
//!   flush covers it. It is released once, and not if it was kept anew meanwhile.
//! - A line that reached the device with contents that are not kept waits for a flush.
//!
//! Left out: what is held (`state`), and where the versions are kept (the owner).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::planted::{Bug, is_planted};

/// A version that the owner keeps.
#[derive(Clone, Copy)]
struct Kept {
    version: u64,
    /// The change by which the device got this version or a newer one.
    written: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Absorbed {
    blocks: BTreeMap<u64, Kept>,
    /// Lines that reached the device with contents that are neither kept nor covered by a flush,
    /// with the last change of each.
    unkept: BTreeMap<u64, u64>,
    released: BTreeSet<u64>,
}

impl Absorbed {
    /// Returns whether exactly this version of a block is kept.
    pub fn has(&self, block: u64, version: u64) -> bool {
        self.blocks.get(&block).is_some_and(|kept| kept.version == version)
    }

    /// Returns whether some of these lines are durable only after a flush.
    pub fn lacks_flush(&self, lines: Range<u64>) -> bool {
        !is_planted(Bug::AbsorbsAfterWrite) && self.unkept.range(lines).next().is_some()
    }

    /// Notes a kept version of a block that the device does not have.
    pub fn keep(&mut self, block: u64, version: u64) {
        self.put(block, Kept { version, written: None });
    }

    /// Notes a kept version of a block that the device got by the change `written`, or, if that is
    /// none, has durably.
    pub fn keep_written(&mut self, block: u64, version: u64, written: Option<u64>) {
        self.put(block, Kept { version, written });
        if written.is_none() {
            self.blocks.remove(&block);
            self.released.insert(block);
        }
    }

    fn put(&mut self, block: u64, kept: Kept) {
        self.blocks.insert(block, kept);
        self.released.remove(&block);
    }

    /// Notes versions of blocks that the device got by change `change`.
    pub fn written(&mut self, line_of: impl Fn(u64) -> u64, blocks: impl Iterator<Item = (u64, u64)>, change: u64) {
        for (block, version) in blocks {
            match self.blocks.get_mut(&block) {
                Some(kept) if version >= kept.version => {
                    kept.written.get_or_insert(change);
                    if version > kept.version {
                        self.unkept.insert(line_of(block), change);
                    }
                }
                // A version older than the kept one: nobody needs it.
                Some(kept) => {
                    if is_planted(Bug::ReleasedByOlder) {
                        kept.written.get_or_insert(change);
                    }
                }
                None => drop(self.unkept.insert(line_of(block), change)),
            }
        }
    }

    /// Notes that the device got other contents for some lines.
    pub fn changed(&mut self, lines: Range<u64>, change: u64) {
        self.unkept.extend(lines.map(|line| (line, change)));
    }

    /// Notes that the contents of a range of blocks are not needed any more.
    pub fn forget(&mut self, blocks: Range<u64>) {
        while let Some((&block, _)) = self.blocks.range(blocks.clone()).next() {
            self.blocks.remove(&block);
        }
        self.released.retain(|block| !blocks.contains(block));
    }

    /// Notes a completed flush that covers the changes up to this one.
    pub fn covered(&mut self, changes: u64) {
        self.unkept.retain(|_, last| *last > changes);
        let is_durable = |kept: &Kept| match kept.written {
            Some(change) => change <= changes,
            None => is_planted(Bug::ReleasedUnwritten),
        };
        let Absorbed { blocks, released, .. } = self;
        blocks.retain(|block, kept| {
            let stays = !is_durable(kept);
            if !stays {
                released.insert(*block);
            }
            stays
        });
        if is_planted(Bug::ReleasedUnflushed) {
            let written: Vec<u64> =
                self.blocks.iter().filter(|(_, kept)| kept.written.is_some()).map(|(block, _)| *block).collect();
            self.released.extend(written);
        }
    }

    pub fn take_released(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.released).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(absorbed: &mut Absorbed, block: u64, version: u64, change: u64) {
        absorbed.written(|block| block / 16, [(block, version)].into_iter(), change);
    }

    #[test]
    fn a_block_is_released_when_a_flush_covers_its_version() {
        let mut absorbed = Absorbed::default();
        absorbed.keep(5, 3);
        written(&mut absorbed, 5, 2, 1);
        absorbed.covered(1);
        assert!(absorbed.take_released().is_empty() && absorbed.has(5, 3) && !absorbed.has(5, 2));
        written(&mut absorbed, 5, 3, 2);
        assert!(!absorbed.lacks_flush(0..10), "what left is kept");
        absorbed.covered(1);
        assert!(absorbed.take_released().is_empty());
        absorbed.covered(2);
        assert_eq!((absorbed.take_released(), absorbed.has(5, 3)), (vec![5], false));
        assert!(absorbed.take_released().is_empty());
    }

    #[test]
    fn newer_contents_that_left_wait_for_a_flush_and_release_the_older_ones() {
        let mut absorbed = Absorbed::default();
        absorbed.keep(5, 3);
        written(&mut absorbed, 5, 4, 7);
        written(&mut absorbed, 40, 5, 8);
        assert!(absorbed.lacks_flush(0..1) && absorbed.lacks_flush(2..3) && !absorbed.lacks_flush(1..2));
        absorbed.covered(7);
        assert!(!absorbed.lacks_flush(0..1) && absorbed.lacks_flush(0..3));
        assert_eq!(absorbed.take_released(), [5]);
    }

    #[test]
    fn a_block_kept_anew_is_not_released() {
        let mut absorbed = Absorbed::default();
        absorbed.keep_written(5, 3, Some(1));
        absorbed.covered(1);
        absorbed.keep(5, 4);
        assert!(absorbed.take_released().is_empty());
        absorbed.keep_written(6, 9, None);
        assert_eq!(absorbed.take_released(), [6]);
        absorbed.keep_written(7, 9, None);
        absorbed.forget(0..100);
        absorbed.covered(10);
        assert!(absorbed.take_released().is_empty());
    }
}
