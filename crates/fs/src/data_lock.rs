//! Locks on files' data, above the inode locks: the bulk device never works while an inode lock is held.
//!
//! Rules:
//! - A thread takes a data lock while it holds no inode lock, and the inode lock after it. Two data
//!   locks are taken together, in the order of their stripes.
//! - A reader of a large file shares its data lock: the blocks that it found in the map stay the
//!   file's until it is done.
//! - Changing a large file's map, blocks or size, moving a file between the tiers, and freeing a
//!   large file take the data lock exclusively. The inode lock is dropped for each access to the
//!   device, and the record is read again afterwards: attributes, names and the places of pieces in
//!   the region may have changed; contents, size and tier cannot have.
//! - A file in the region needs no data lock to be changed there, unless somebody holds it: then
//!   its contents are on their way to the device. The holder took the inode lock after the data
//!   lock, so a thread that has the inode lock sees it.
//! - Clearing NEW needs only the inode lock: it changes neither where blocks are nor what they hold.

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use shoal_bulk::Bulk;
use shoal_bulk::held::assert_none_held;
use shoal_format::inode::{Inode, Layout};

use crate::locks::{LoneGuard, STRIPES, stripe};
use crate::planted::{Bug, is_planted};
use crate::rooms::Data;
use crate::{Error, Fs, Ino, Manner, Result};

/// Each lock counts how often it was taken exclusively: blocks that a reader found in the map are
/// still the file's when it comes back if the count is the same.
pub(crate) struct DataLocks {
    stripes: Box<[RwLock<u64>]>,
}

fn exclusive(stripe: &RwLock<u64>) -> RwLockWriteGuard<'_, u64> {
    let mut changes = stripe.write();
    *changes += 1;
    changes
}

impl DataLocks {
    pub fn new() -> DataLocks {
        DataLocks { stripes: (0..STRIPES).map(|_| RwLock::new(0)).collect() }
    }

    pub fn read(&self, ino: Ino) -> RwLockReadGuard<'_, u64> {
        assert_none_held();
        self.stripes[stripe(ino)].read()
    }

    /// Does the same without waiting: `None` if somebody holds or awaits the lock exclusively.
    pub fn try_read(&self, ino: Ino) -> Option<RwLockReadGuard<'_, u64>> {
        self.stripes[stripe(ino)].try_read()
    }

    fn write(&self, ino: Ino) -> RwLockWriteGuard<'_, u64> {
        assert_none_held();
        exclusive(&self.stripes[stripe(ino)])
    }

    /// Takes the exclusive locks of up to two files.
    pub fn write_both(&self, inos: [Option<Ino>; 2]) -> [Option<RwLockWriteGuard<'_, u64>>; 2] {
        assert_none_held();
        let mut stripes = inos.map(|ino| ino.map(stripe));
        stripes.sort_unstable();
        if stripes[0] == stripes[1] {
            stripes[1] = None;
        }
        stripes.map(|number| number.map(|number| exclusive(&self.stripes[number])))
    }

    /// Returns whether a thread holds or awaits the file's exclusive lock. The answer holds while
    /// the caller has the inode lock.
    pub fn is_taken(&self, ino: Ino) -> bool {
        self.stripes[stripe(ino)].is_locked_exclusive()
    }
}

/// The exclusive inode lock of a file whose data is to change, and its data lock if the change
/// needs one.
pub(crate) struct FileLock<'a> {
    pub fs: &'a Fs,
    pub ino: Ino,
    /// `None` only while the device works.
    inode: Option<LoneGuard<'a>>,
    data: Option<RwLockWriteGuard<'a, u64>>,
    /// The caller sets no times: those of the record stay.
    aside: bool,
    pub manner: Manner,
}

impl<'a> FileLock<'a> {
    /// Runs `work` on the bulk device without the inode lock. Afterwards `inode` is the record as
    /// it is then, with the times that the caller has set. The caller holds no transaction.
    pub fn device<T>(&mut self, inode: &mut Inode, work: impl FnOnce(&'a Bulk) -> Result<T>) -> Result<T> {
        if self.aside && !is_planted(Bug::MoveSetsTimes) {
            return self.device_aside(inode, work);
        }
        let (mtime, ctime) = (inode.mtime, inode.ctime);
        let outcome = self.device_aside(inode, work);
        (inode.mtime, inode.ctime) = (mtime, inode.ctime.max(ctime));
        outcome
    }

    /// Does the same for a caller that sets no times: those of the record stay.
    pub fn device_aside<T>(&mut self, inode: &mut Inode, work: impl FnOnce(&'a Bulk) -> Result<T>) -> Result<T> {
        let bulk = self.fs.bulk()?;
        debug_assert!(self.data.is_some(), "inode {}: the device is used without the data lock", self.ino);
        self.inode = None;
        let outcome = work(bulk);
        self.inode = Some(self.fs.locks.write_lone(self.ino));
        match self.fs.load(self.ino) {
            Ok(now) if now.generation == inode.generation => {
                debug_assert_eq!((now.layout, now.size), (inode.layout, inode.size), "inode {}", self.ino);
                *inode = now;
                outcome
            }
            // Returned whatever the device said: a caller that copes with `NoSpace` would store the
            // record of a file that is gone.
            Ok(_) => Err(Error::Stale),
            Err(error) => Err(error),
        }
    }
}

impl FileLock<'_> {
    /// Runs `work`, as the last thing, with the inode locks of this file and of `other`. Both
    /// records have to be read again. The data lock is kept until then.
    pub fn with_other<T>(mut self, other: Ino, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.inode = None;
        let _both = self.fs.locks.write_many(&[self.ino, other]);
        work()
    }
}

impl<'a> Data<'a> {
    /// Locks an inode whose data stays as it is.
    #[inline]
    pub(crate) fn lock_inode(self, ino: Ino) -> Result<(FileLock<'a>, Inode)> {
        let lock = self.fs.locks.write_lone(ino);
        let inode = self.fs.load(ino)?;
        Ok((
            FileLock { fs: self.fs, ino, inode: Some(lock), data: None, aside: false, manner: Manner::default() },
            inode,
        ))
    }

    /// Locks an inode to change or free its data. `to_bulk` tells whether a file in the region will
    /// leave it.
    #[inline]
    pub(crate) fn lock_data(self, ino: Ino, to_bulk: impl Fn(&Inode) -> bool) -> Result<(FileLock<'a>, Inode)> {
        let (file, inode) = self.lock_inode(ino)?;
        let is_large = inode.layout == Layout::Extents || to_bulk(&inode);
        if self.fs.bulk.is_none() || !is_large && !self.fs.data_locks.is_taken(ino) {
            return Ok((file, inode));
        }
        drop(file);
        self.lock_large(ino)
    }

    #[cold]
    fn lock_large(self, ino: Ino) -> Result<(FileLock<'a>, Inode)> {
        let data = self.fs.data_locks.write(ino);
        let (file, inode) = self.lock_inode(ino)?;
        Ok((FileLock { data: Some(data), ..file }, inode))
    }

    /// Locks a file to move its data to the other tier. Nothing else of the file changes.
    pub(crate) fn lock_to_move(self, ino: Ino) -> Result<(FileLock<'a>, Inode)> {
        let (file, inode) = self.lock_large(ino)?;
        Ok((FileLock { aside: true, ..file }, inode))
    }
}

#[cfg(test)]
#[path = "data_lock_tests.rs"]
mod tests;
