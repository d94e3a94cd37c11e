//! Tracks which files hold only bytes logged behind some position. As long as nothing at or behind
//! that position was promised, none of their bytes were promised to a caller (`shoal-region`,
//! `sync.rs`).
//!
//! A *birth* is the end of a record that wrote the first bytes of a file without data. It stays a
//! valid lower bound for as long as the file lives, and for the next file of the same number,
//! because a later birth only lies further on.
//! Rules:
//! - Every first write notes its birth, also for files that never grow. That is one store into a
//!   table of fixed size, without a lock. Files with colliding numbers replace each other's entry;
//!   a forgotten birth only costs a flush.
//! - A place is one word, so that inode number and position cannot be torn apart. It holds the part
//!   of the inode number that the place's index does not give (20 bits), and the position. The
//!   position is counted from the start of the mount in units of 16 bytes, rounded down (44 bits).
//!   Positions beyond that are not noted.
//! - An entry of a file changes only under its inode lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use shoal_format::inode::Ino;
use shoal_region::Lsn;

const PLACES: usize = 4096;
const TAG_SHIFT: u32 = 44;
/// Unit of a position: 16 bytes, less than any record takes. This allows 256 TiB of log in one
/// mount.
const UNIT_SHIFT: u32 = 4;

pub struct Births {
    /// The end of the log when the store was opened.
    base: Lsn,
    places: Box<[AtomicU64]>,
}

impl Births {
    pub fn new(base: Lsn) -> Births {
        Births { base, places: (0..PLACES).map(|_| AtomicU64::new(0)).collect() }
    }

    fn place(&self, ino: Ino) -> (&AtomicU64, u64) {
        (&self.places[ino.get() as usize % PLACES], u64::from(ino) / PLACES as u64)
    }

    /// Notes that `ino` had no data before the record that ends at `lsn`.
    #[inline]
    pub fn note(&self, ino: Ino, lsn: Lsn) {
        let (place, tag) = self.place(ino);
        let units = lsn.saturating_since(self.base) >> UNIT_SHIFT;
        let fits = units >> TAG_SHIFT == 0 && tag >> (64 - TAG_SHIFT) == 0;
        place.store(if fits { tag << TAG_SHIFT | units } else { 0 }, Relaxed);
    }

    /// Forgets the birth: everything in the file counts as promised from now on.
    pub fn forget(&self, ino: Ino) {
        if self.of(ino).is_some() {
            self.place(ino).0.store(0, Relaxed);
        }
    }

    /// Returns a position at or behind which all of the file was logged, if one is known.
    pub fn of(&self, ino: Ino) -> Option<Lsn> {
        let (place, tag) = self.place(ino);
        let word = place.load(Relaxed);
        let units = word & ((1 << TAG_SHIFT) - 1);
        (word >> TAG_SHIFT == tag && units > 0).then(|| self.base + (units << UNIT_SHIFT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_birth_is_never_later_than_it_was_and_belongs_to_its_file_alone() {
        let births = Births::new(Lsn::new(1000));
        let [file, neighbour, other] = [7, 8, 7 + PLACES as u32].map(Ino::new);
        births.note(file, Lsn::new(1000 + 5 * 16 + 3));
        assert_eq!(births.of(file), Some(Lsn::new(1000 + 5 * 16)));
        assert_eq!((births.of(other), births.of(neighbour)), (None, None));
        births.forget(other);
        assert!(births.of(file).is_some());
        births.note(other, Lsn::new(2000));
        assert_eq!((births.of(file), births.of(other)), (None, Some(Lsn::new(1992))));
        births.note(other, Lsn::new(1000 + (1 << 50)));
        assert_eq!(births.of(other), None);
        let last = Ino::MAX;
        births.note(last, Lsn::new(9000));
        assert_eq!(births.of(last), Some(Lsn::new(9000)));
        births.forget(last);
        assert_eq!(births.of(last), None);
    }
}
