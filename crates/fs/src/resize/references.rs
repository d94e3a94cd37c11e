//! Every reference to a piece of a region at rest gets the piece's new place.
//!
//! Works on a copy of the region in memory that nobody else uses; pieces keep their place within their segment, inodes their
//! numbers, and hashes, extents and contents stay as they are. References are found as in `docs/spec/region.md`, sections 5 to 8:
//! inode table, inodes, chunk arrays, index records of extents, nodes of directories. Whatever does not decode is an error,
//! because what it refers to would be lost. Left out: moving the bytes.

use shoal_format::dir::{NODE_FANOUT, NodeRef};
use shoal_format::extent::{EXTENT_BYTES, EXTENT_HEADER};
use shoal_format::inode::{INODE_RECORD, INODES_PER_BLOCK, Inode, InodeSlot, Layout, TABLE_FANOUT};
use shoal_format::superblock::ROOTS_AT;
use shoal_format::{Offset, SlotRef};
use shoal_media::PersistentMemory;

use crate::inode::block;
use crate::{Error, Result};

/// Levels of nodes an inode table has at most.
const HEIGHT_MAX: u32 = 4;

/// Rewrites all references of the region in `memory`; `places` has the new segment of each old one, 0 where none is in use.
/// `progress` is told how many of the inode table's nodes below the root are done, and of how many.
pub(super) fn move_all(
    memory: &dyn PersistentMemory,
    places: &[u64],
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let walk = Walk { memory, places };
    let height = memory.read_u64((ROOTS_AT + 8).get()) as u32;
    if !(1..=HEIGHT_MAX).contains(&height) {
        return Err(walk.damaged("roots", ROOTS_AT));
    }
    let root = walk.reference(ROOTS_AT)?;
    if root.is_none() {
        return Err(walk.damaged("roots", ROOTS_AT));
    }
    (0..TABLE_FANOUT).try_for_each(|entry| {
        progress(entry, TABLE_FANOUT);
        walk.table(root.offset() + entry * 8, height - 1)
    })
}

struct Walk<'a> {
    memory: &'a dyn PersistentMemory,
    places: &'a [u64],
}

impl Walk<'_> {
    fn damaged(&self, what: &str, at: Offset) -> Error {
        Error::Corrupt(format!("{what} at {:#x}; run `shoal check`", at.get()))
    }

    fn moved(&self, slot: SlotRef, at: Offset) -> Result<SlotRef> {
        if slot.is_none() {
            return Ok(slot);
        }
        let place = self.places.get(slot.segment() as usize).copied().unwrap_or(0);
        if place == 0 {
            return Err(self.damaged("reference to a segment that is not in use", at));
        }
        let offset = Offset::of_segment(place) + u64::from(slot.offset().in_segment());
        Ok(if slot.is_run() { SlotRef::run(offset, slot.run_segments()) } else { SlotRef::slot(offset, slot.class()) })
    }

    /// Moves the reference at `at`; where the piece lies before the move.
    fn reference(&self, at: Offset) -> Result<SlotRef> {
        let slot =
            SlotRef::from_bits(self.memory.read_u64(at.get())).ok_or_else(|| self.damaged("slot reference", at))?;
        self.memory.write_u64(at.get(), self.moved(slot, at)?.bits());
        Ok(slot)
    }

    /// The inode table below the reference at `at`; level 0 is an inode block. Blocks given back are absent.
    fn table(&self, at: Offset, level: u32) -> Result<()> {
        let piece = self.reference(at)?;
        if piece.is_none() {
            return Ok(());
        }
        if level > 0 {
            return (0..TABLE_FANOUT).try_for_each(|entry| self.table(piece.offset() + entry * 8, level - 1));
        }
        (0..INODES_PER_BLOCK as usize).try_for_each(|place| self.inode(block::record_at(piece, place)))
    }

    fn inode(&self, at: Offset) -> Result<()> {
        let mut record = [0; INODE_RECORD];
        self.memory.read(at.get(), &mut record);
        let InodeSlot::Used(inode) = Inode::decode(&record)? else { return Ok(()) };
        let root = inode.root.offset();
        match inode.layout {
            Layout::Empty | Layout::Direct | Layout::DirPacked => {}
            Layout::Chunked => {
                (0..inode.root.capacity() / 8).try_for_each(|entry| self.reference(root + entry * 8).map(drop))?;
            }
            Layout::Extents => {
                let header = self.memory.read_u64(root.get());
                let (kind, count) = (header as u32, header >> 32);
                if EXTENT_HEADER as u64 + count * EXTENT_BYTES as u64 > inode.root.capacity() {
                    return Err(self.damaged("extent map", root));
                }
                if kind == 1 {
                    let leaf_at = |index: u64| root + EXTENT_HEADER as u64 + index * EXTENT_BYTES as u64 + 8;
                    (0..count).try_for_each(|index| self.reference(leaf_at(index)).map(drop))?;
                }
            }
            Layout::DirHashed => self.directory(root, 0)?,
        }
        let (root, xattr) = (self.moved(inode.root, at)?, self.moved(inode.xattr, at)?);
        self.memory.write(at.get(), &Inode { root, xattr, ..inode }.encode());
        Ok(())
    }

    fn directory(&self, node: Offset, level: u32) -> Result<()> {
        if level >= shoal_format::dir::LEVELS_MAX {
            return Err(self.damaged("directory node", node));
        }
        for entry in 0..NODE_FANOUT as u64 {
            let at = node + entry * 8;
            let moved = match NodeRef::decode(self.memory.read_u64(at.get()))? {
                NodeRef::Null => continue,
                NodeRef::Node(slot) => {
                    self.directory(slot.offset(), level + 1)?;
                    NodeRef::Node(self.moved(slot, at)?)
                }
                NodeRef::Bucket { slot, depth } => NodeRef::Bucket { slot: self.moved(slot, at)?, depth },
            };
            self.memory.write_u64(at.get(), moved.encode());
        }
        Ok(())
    }
}
