//! Inode locks: reader-writer locks in a striped table.
//!
//! An operation names every inode it needs before it touches any, and takes the stripes in
//! ascending order, so two operations cannot wait for each other. An operation that learns of
//! another inode while it holds locks only *tries* its lock, and starts over if that fails. In
//! debug builds a thread that waits while it holds inode locks panics.

use std::ops::Range;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use shoal_bulk::held::Held;
use shoal_format::inode::INODES_PER_BLOCK;

use crate::Ino;

/// Number of locks in a table.
pub(crate) const STRIPES: usize = 4096;
const _: () =
    assert!(STRIPES.is_multiple_of(INODES_PER_BLOCK as usize), "the inodes of a block have neighbouring locks");

pub(crate) struct LockTable {
    stripes: Box<[RwLock<()>]>,
}

/// Exclusive locks on a few inodes.
pub(crate) struct WriteGuard<'a> {
    held: [Option<(usize, RwLockWriteGuard<'a, ()>)>; 4],
    _held: Held,
}

/// An exclusive lock on one inode, to which no other is added.
pub(crate) struct LoneGuard<'a> {
    _guard: RwLockWriteGuard<'a, ()>,
    _held: Held,
}

/// A shared lock on one inode.
pub(crate) struct ReadGuard<'a> {
    _guard: RwLockReadGuard<'a, ()>,
    _held: Held,
}

/// Exclusive locks on many inodes.
pub(crate) struct RangeGuard<'a> {
    _guards: Vec<RwLockWriteGuard<'a, ()>>,
    _held: Option<Held>,
}

/// Inode locks that the caller holds when it tries more of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum OtherLocks {
    None,
    /// The caller may hold locks of other inodes.
    Held,
}

pub(crate) fn stripe(ino: Ino) -> usize {
    // Neighbouring numbers, such as those of one directory's files, go to different stripes.
    ino.get() as usize % STRIPES
}

impl LockTable {
    pub fn new() -> LockTable {
        LockTable { stripes: (0..STRIPES).map(|_| RwLock::new(())).collect() }
    }

    pub fn read(&self, ino: Ino) -> ReadGuard<'_> {
        let held = Held::begin();
        ReadGuard { _guard: self.stripes[stripe(ino)].read(), _held: held }
    }

    pub fn write(&self, ino: Ino) -> WriteGuard<'_> {
        let held = Held::begin();
        let number = stripe(ino);
        WriteGuard { held: [Some((number, self.stripes[number].write())), None, None, None], _held: held }
    }

    #[inline]
    pub fn write_lone(&self, ino: Ino) -> LoneGuard<'_> {
        let held = Held::begin();
        LoneGuard { _guard: self.stripes[stripe(ino)].write(), _held: held }
    }

    /// Takes the exclusive lock of one inode, unless somebody else has it.
    pub fn try_write(&self, ino: Ino) -> Option<WriteGuard<'_>> {
        let held = Held::begin();
        let number = stripe(ino);
        let guard = self.stripes[number].try_write()?;
        Some(WriteGuard { held: [Some((number, guard)), None, None, None], _held: held })
    }

    /// Takes the exclusive locks of the inodes of one block of the table, unless somebody has one
    /// of them.
    pub fn try_write_block(&self, block: u64, others: OtherLocks) -> Option<RangeGuard<'_>> {
        let first = stripe(Ino::in_block(block, 0)?);
        self.try_write_stripes(first..first + INODES_PER_BLOCK as usize, others)
    }

    fn try_write_stripes(&self, stripes: Range<usize>, others: OtherLocks) -> Option<RangeGuard<'_>> {
        // Locks that are only tried cannot make threads wait for each other.
        let held = (others == OtherLocks::None).then(Held::begin);
        let guards = self.stripes[stripes].iter().map(RwLock::try_write).collect::<Option<_>>()?;
        Some(RangeGuard { _guards: guards, _held: held })
    }

    /// Takes the exclusive locks of all inodes, unless somebody else has one. No operation is under
    /// way then.
    pub fn try_write_all(&self) -> Option<RangeGuard<'_>> {
        self.try_write_stripes(0..STRIPES, OtherLocks::None)
    }

    /// Locks up to four inodes.
    pub fn write_many(&self, inos: &[Ino]) -> WriteGuard<'_> {
        let held = Held::begin();
        let mut stripes = [usize::MAX; 4];
        assert!(inos.len() <= stripes.len());
        stripes.iter_mut().zip(inos).for_each(|(stripe_of, &ino)| *stripe_of = stripe(ino));
        stripes.sort_unstable();
        let mut guard = WriteGuard { held: [const { None }; 4], _held: held };
        let mut last = usize::MAX;
        for (place, number) in stripes.into_iter().enumerate() {
            if number != usize::MAX && number != last {
                guard.held[place] = Some((number, self.stripes[number].write()));
                last = number;
            }
        }
        guard
    }

    /// Adds one more inode without waiting; returns `false` if somebody else has it.
    pub fn try_extend<'a>(&'a self, guard: &mut WriteGuard<'a>, ino: Ino) -> bool {
        let number = stripe(ino);
        if guard.held.iter().flatten().any(|(have, _)| *have == number) {
            return true;
        }
        let Some(place) = guard.held.iter_mut().find(|place| place.is_none()) else { return false };
        let Some(lock) = self.stripes[number].try_write() else { return false };
        *place = Some((number, lock));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_that_share_a_stripe_are_locked_once() {
        let table = LockTable::new();
        let mut guard = table.write_many(&[5, 5 + STRIPES as u32, 1].map(Ino::new));
        assert_eq!(guard.held.iter().flatten().count(), 2);
        assert!(table.try_extend(&mut guard, Ino::new(1)));
        assert!(table.try_extend(&mut guard, Ino::new(9)));
        assert_eq!(guard.held.iter().flatten().count(), 3);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut other = table.write(Ino::new(7));
                assert!(!table.try_extend(&mut other, Ino::new(9)));
            });
        });
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "while others are held")]
    fn waiting_with_locks_held_is_caught() {
        let table = LockTable::new();
        let _one = table.write(Ino::new(1));
        let _two = table.read(Ino::new(2));
    }
}
