//! How warm files are: a clock over inode numbers. Volatile.
//!
//! There is a byte for each inode, in parts that are allocated when the first of their files is
//! used. It holds whether the file was read or changed since the hand passed, and a grade. The
//! grade rises with each turn in which the file was used, and falls with each turn in which it was
//! not. A file is cold at grade 0: one that was written once after two turns, one that is read all
//! the time after more. The times of relatime would not do: they change once a day, and with
//! `noatime` never.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use zerocopy::FromZeros as _;

use crate::Ino;

/// Inodes of a part.
const PART: usize = 1 << 20;
const PARTS: usize = 1 << 12;
const _: () = assert!(PART as u64 * PARTS as u64 == 1 << 32, "every number has its byte");

const USED: u8 = 0x80;
const GRADE_MAX: u8 = 3;

pub(crate) struct Warm(Box<[OnceLock<Box<[AtomicU8]>>]>);

impl Warm {
    pub fn new() -> Warm {
        Warm((0..PARTS).map(|_| OnceLock::new()).collect())
    }

    /// Notes that the file is in use. Returns whether it had already been used since the hand
    /// passed.
    #[inline]
    pub fn touch(&self, ino: Ino) -> bool {
        let number = ino.get() as usize;
        let part = self.0[number / PART].get_or_init(zeros);
        let state = &part[number % PART];
        // Usually the bit is already set, and nothing is written.
        state.load(Relaxed) & USED != 0 || state.fetch_or(USED, Relaxed) & USED != 0
    }

    /// Passes the hand over a file. Returns whether the file is warm.
    pub fn pass(&self, ino: Ino) -> bool {
        let number = ino.get() as usize;
        let Some(part) = self.0[number / PART].get() else { return false };
        let state = &part[number % PART];
        let now = state.load(Relaxed);
        if now == 0 {
            return false;
        }
        let grade = now & !USED;
        // A use between load and store is forgotten; a file in use is used again.
        state.store(if now & USED == 0 { grade - 1 } else { (grade + 1).min(GRADE_MAX) }, Relaxed);
        true
    }
}

/// Returns memory that the kernel zeroes: only what is used takes room.
fn zeros() -> Box<[AtomicU8]> {
    <[AtomicU8]>::new_box_zeroed_with_elems(PART).expect("there is memory for a megabyte")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_warm_for_as_many_turns_as_it_was_in_use() {
        let warm = Warm::new();
        for ino in [1, 63, 64, PART as u32, u32::MAX].map(Ino::new) {
            assert!(!warm.pass(ino));
            assert!(!warm.touch(ino) && warm.touch(ino));
            assert_eq!([(); 4].map(|()| warm.pass(ino)), [true, true, false, false], "{ino}");
            for _ in 0..10 {
                warm.touch(ino);
                assert!(warm.pass(ino));
            }
            assert_eq!([(); 4].map(|()| warm.pass(ino)), [true, true, true, false], "{ino}");
        }
        assert!(!warm.pass(Ino::new(2)));
    }
}
