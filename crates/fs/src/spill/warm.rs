//! Which files were read or changed since the hand passed: a clock over inode numbers. Volatile.
//!
//! A bit for each inode, in parts that are made when the first of their files is used. relatime's times would not do: they change once
//! a day, and with `noatime` never.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Ino;

/// Inodes of a part.
const PART: usize = 1 << 20;
const PARTS: usize = 1 << 12;
const _: () = assert!(PART as u64 * PARTS as u64 == 1 << 32, "every number has its bit");

pub(crate) struct Warm(Box<[OnceLock<Box<[AtomicU64]>>]>);

impl Warm {
    pub fn new() -> Warm {
        Warm((0..PARTS).map(|_| OnceLock::new()).collect())
    }

    /// The file is in use.
    #[inline]
    pub fn touch(&self, ino: Ino) {
        let number = ino.get() as usize;
        let part = self.0[number / PART].get_or_init(|| (0..PART / 64).map(|_| AtomicU64::new(0)).collect());
        let (word, bit) = (&part[number % PART / 64], 1 << (number % 64));
        // Mostly it is set already: nothing is written then.
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// The hand passes: was the file in use since it passed last?
    pub fn pass(&self, ino: Ino) -> bool {
        let number = ino.get() as usize;
        let Some(part) = self.0[number / PART].get() else { return false };
        part[number % PART / 64].fetch_and(!(1 << (number % 64)), Relaxed) >> (number % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_warm_until_the_hand_has_passed_it() {
        let warm = Warm::new();
        for ino in [1, 63, 64, PART as u32, u32::MAX].map(Ino::new) {
            assert!(!warm.pass(ino));
            warm.touch(ino);
            warm.touch(ino);
            assert!(warm.pass(ino) && !warm.pass(ino), "{ino}");
        }
        assert!(!warm.pass(Ino::new(2)));
    }
}
