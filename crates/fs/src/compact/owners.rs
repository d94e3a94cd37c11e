//! The pieces an inode owns, and moving one out of a segment that is being emptied.
//!
//! Each piece is moved by one transaction, which allocates a slot of the same class, copies all
//! bytes, changes the one reference, and frees the old slot. Contents, sizes and times do not
//! change, so nobody can see a move except by the space it makes. Positions in large owners
//! (chunks, leaves, hashes) let a long look end after a bounded time and continue later.

use shoal_format::SlotRef;
use shoal_format::inode::{Inode, Layout};
use shoal_region::{Tx, Victims};

use super::Budget;
use crate::planted::{Bug, is_planted};
use crate::rooms::Compacting;
use crate::{Error, Ino, Result, dir, extents, small};

/// Returns whether the inode may own something in these segments. Only a look at its pieces tells
/// for certain.
///
/// Most files of a full store are one object in one piece, which the record names. There are
/// hundreds of thousands of them, and a pass looks at all.
pub(super) fn may_own(inode: &Inode, victims: &Victims) -> bool {
    let has_others = match inode.layout {
        Layout::Chunked | Layout::Extents | Layout::DirHashed => true,
        Layout::Packed => inode.allocated != inode.root.capacity() + inode.xattr.capacity(),
        _ => false,
    };
    has_others || victims.contains(inode.root) || victims.contains(inode.xattr)
}

/// Commits `tx` if it moved something.
fn commit_moved(tx: Tx<'_>, moved: bool, bytes: u64, budget: &mut Budget) -> Result<()> {
    if moved {
        tx.commit()?;
        budget.moved(bytes);
    }
    Ok(())
}

impl<'a> Compacting<'a> {
    /// Moves pieces of `ino` that lie in `victims`, from `position` on (0: the beginning). Returns
    /// where to continue when the budget is spent, `None` when the inode is done with. An inode
    /// that is in use, or gone, counts as done with.
    pub(super) fn move_pieces(
        self,
        ino: Ino,
        position: u64,
        victims: &Victims,
        budget: &mut Budget,
    ) -> Result<Option<u64>> {
        let lock = self.fs.locks.try_write(ino);
        if lock.is_none() && !is_planted(Bug::CompactInUse) {
            return Ok(None);
        }
        let mut inode = match self.fs.load(ino) {
            Err(Error::Stale) => return Ok(None),
            loaded => loaded?,
        };
        if position == 0 {
            self.move_piece(ino, &mut inode, victims, budget, |inode| &mut inode.xattr)?;
            self.move_piece(ino, &mut inode, victims, budget, |inode| &mut inode.root)?;
        }
        match inode.layout {
            Layout::Chunked | Layout::Packed => self.move_chunks(&mut inode, position, victims, budget),
            Layout::Extents => self.move_leaves(&inode, position, victims, budget),
            Layout::DirHashed => self.move_buckets(ino, &mut inode, position, victims, budget),
            _ => Ok(None),
        }
    }

    fn move_piece(
        self,
        ino: Ino,
        inode: &mut Inode,
        victims: &Victims,
        budget: &mut Budget,
        piece: impl Fn(&mut Inode) -> &mut SlotRef,
    ) -> Result<()> {
        let slot = piece(inode);
        if slot.is_none() || !victims.contains(*slot) {
            return Ok(());
        }
        let mut tx = self.fs.region.begin_reclaim();
        if let Some(new) = tx.relocate(*slot)? {
            *slot = new;
            self.fs.store(&mut tx, ino, inode)?;
            tx.commit()?;
            budget.moved(new.capacity());
        }
        Ok(())
    }

    fn move_chunks(
        self,
        inode: &mut Inode,
        mut chunk: u64,
        victims: &Victims,
        budget: &mut Budget,
    ) -> Result<Option<u64>> {
        while chunk < small::chunk_count(inode) {
            let mut tx = self.fs.region.begin_reclaim();
            let bytes = small::relocate_chunk(&mut tx, inode, chunk, |slot| victims.contains(slot))?;
            commit_moved(tx, bytes > 0, bytes, budget)?;
            chunk += 1;
            if !budget.look() {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }

    fn move_leaves(self, inode: &Inode, mut leaf: u64, victims: &Victims, budget: &mut Budget) -> Result<Option<u64>> {
        let count = extents::leaf_count(&self.fs.region, inode.root)?;
        while leaf < count {
            let mut tx = self.fs.region.begin_reclaim();
            let moved = extents::relocate_leaf(&mut tx, inode.root, leaf, |slot| victims.contains(slot))?;
            commit_moved(tx, moved, shoal_format::extent::LEAF_BYTES, budget)?;
            leaf += 1;
            if !budget.look() {
                return Ok(Some(leaf));
            }
        }
        Ok(None)
    }

    fn move_buckets(
        self,
        ino: Ino,
        inode: &mut Inode,
        mut hash: u64,
        victims: &Victims,
        budget: &mut Budget,
    ) -> Result<Option<u64>> {
        loop {
            let (root, mut tx) = (inode.root, self.fs.region.begin_reclaim());
            let (moved, next) = dir::relocate_along(&mut tx, inode, hash, |slot| victims.contains(slot))?;
            if inode.root != root {
                self.fs.store(&mut tx, ino, inode)?;
            }
            let bytes = tx.payload_bytes() as u64;
            commit_moved(tx, moved, bytes, budget)?;
            match next {
                None => return Ok(None),
                Some(next) => hash = next,
            }
            if !budget.look() {
                return Ok(Some(hash));
            }
        }
    }
}
