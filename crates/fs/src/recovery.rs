//! After a crash: one pass over the inodes finishes interrupted work.
//!
//! - inodes without links (deleted while open, or deleted in steps) are reclaimed;
//! - truncations in progress are finished;
//! - after a power loss, extents whose data may not have reached the bulk device become unwritten, so that they read as
//!   zeros and never as somebody else's bytes;
//! - inodes are counted anew.
//!
//! Damage affects the inode it is in, never the mount (see `damage`): an orphan stays, a truncation
//! is tried again before the file is changed, and what is NEW in the map is settled in place.
//!
//! Each step is a transaction, so a crash during recovery is recovered from in the same way.

use std::sync::atomic::Ordering::Relaxed;

use shoal_format::inode::{INODE_HAS_NEW, INODE_TRUNCATING, Layout};

use crate::planted::{Bug, is_planted};
use crate::rooms::Upkeep;
use crate::{Error, Ino, Result};

impl<'a> Upkeep<'a> {
    pub(crate) fn recover(self) -> Result<()> {
        let (mut inodes, mut directories, mut large) = (0u64, 0u64, 0u64);
        let mut unfinished = Vec::new();
        self.fs.for_each_inode(&mut |ino, inode| {
            inodes += 1;
            directories += inode.is_dir() as u64;
            large += (inode.layout == Layout::Extents) as u64;
            if inode.nlink == 0 || inode.flags & (INODE_TRUNCATING | INODE_HAS_NEW) != 0 {
                unfinished.push((ino, inode));
            }
        })?;
        self.fs.counts.inodes.store(inodes, Relaxed);
        self.fs.counts.directories.store(directories, Relaxed);
        self.fs.counts.large_files.store(large, Relaxed);
        if self.fs.region.is_read_only() {
            return Ok(());
        }
        for (ino, inode) in unfinished {
            if inode.flags & INODE_HAS_NEW != 0 {
                self.fs.past_damage(ino, self.fs.data().recover_new(ino))?;
            }
            // An inode without links is reclaimed as a whole; it cannot be changed.
            if inode.flags & INODE_TRUNCATING != 0 && inode.nlink > 0 {
                self.fs.past_damage(ino, self.fs.data().finish_truncate(ino))?;
            }
            if inode.nlink == 0 && !is_planted(Bug::OrphansStay) {
                self.fs.past_damage(ino, self.reclaim_orphan(ino))?;
            }
        }
        Ok(())
    }

    /// Reclaims every inode without links that nobody holds, and continues if one fails. A damaged
    /// one stays an orphan; any other error is returned.
    pub(crate) fn reclaim_orphans(self) -> Result<()> {
        let orphans: Vec<Ino> = self.fs.orphans.lock().iter().copied().collect();
        let reclaim = |ino| self.fs.past_damage(ino, self.reclaim_orphan(ino)).map(drop);
        orphans.into_iter().map(reclaim).fold(Ok(()), Result::and)
    }

    fn reclaim_orphan(self, ino: Ino) -> Result<()> {
        match self.fs.data().lock_data(ino, |_| false) {
            Ok((file, inode)) if inode.nlink == 0 && !self.fs.refs.is_held(ino) => self.fs.tree().reclaim(file, inode),
            Ok(_) | Err(Error::Stale) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
