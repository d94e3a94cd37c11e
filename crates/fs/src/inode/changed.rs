//! Which blocks of inodes may have changed since a packer looked at them.
//!
//! Rules: one bit stands for a block, and in a large table for several, so that a block may be
//! looked at without need and none is missed. Left out: who looks (`packer` here and in `cold`).

use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the table of changed blocks: 32 KiB, for 4 million inodes before two blocks share a bit.
const WORDS: usize = 4096;

/// Blocks that may have changed since the packer looked at them: a bit for each. Blocks of a large
/// table share bits.
pub(crate) struct Changed(Box<[AtomicU64]>);

impl Changed {
    pub fn all() -> Changed {
        Changed((0..WORDS).map(|_| AtomicU64::new(u64::MAX)).collect())
    }

    fn place(block: u64) -> (usize, u64) {
        ((block / 64) as usize % WORDS, 1 << (block % 64))
    }

    /// Marks a block as changed. To be called under the lock that protects the change, before its
    /// commit.
    #[inline]
    pub fn set(&self, block: u64) {
        let (word, bit) = Changed::place(block);
        if self.0[word].load(Ordering::Relaxed) & bit == 0 {
            self.0[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    pub fn has(&self, block: u64) -> bool {
        let (word, bit) = Changed::place(block);
        self.0[word].load(Ordering::Relaxed) & bit != 0
    }

    pub fn any(&self) -> bool {
        self.0.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Returns the blocks that have changed; from here on they count as looked at.
    pub fn take(&self) -> Vec<u64> {
        self.0.iter().map(|word| word.swap(0, Ordering::Relaxed)).collect()
    }
}

/// Returns the first block from `block` on that is among those taken.
pub(crate) fn next_in(due: &[u64], block: u64) -> u64 {
    let (mut block, mut passed) = (block, 0);
    // Behind all words the search wraps to the first one, because a table may have more blocks than
    // there are bits.
    while passed <= WORDS {
        let (word, bit) = Changed::place(block);
        if due[word] & bit != 0 {
            return block;
        }
        // On an idle store most of a round skips whole words.
        let (step, words) = if due[word] == 0 { (64 - block % 64, 1) } else { (1, usize::from(block % 64 == 63)) };
        block += step;
        passed += words;
    }
    u64::MAX
}
