//! Keeps the inode table small: gives back empty blocks and nodes, and moves both out of sparse
//! segments.
//!
//! Readers find a record under its inode's lock, without a lock for the table. So a block changes
//! its place, or goes, under the locks of all its sixteen inodes; a node under the locks of all
//! inodes there are. These locks are only tried: if a thread has one, the work waits for a better
//! moment. A claim's holder has a record's place without its lock, so blocks stay while there is a
//! claim.
//! A stale handle (number and generation) must not fit a new inode: the records of a block that
//! comes back begin behind the highest generation of any block that was given back
//! ([`Roots::generation_floor`]).

use shoal_format::inode::{InodeSlot, TABLE_FANOUT, TABLE_NODE};
use shoal_format::superblock::{ROOTS_AT, Roots};
use shoal_format::{Offset, SlotRef};
use shoal_region::{Region, Tx, Victims, View};
use std::sync::atomic::Ordering;
use zerocopy::IntoBytes;

use super::{FreeNumbers, HEIGHT_SHIFT, InodeTable, block, child_at, load_roots, packed};
use crate::Result;
use crate::locks::{LockTable, OtherLocks};
use crate::planted::{Bug, is_planted};

/// A block with a higher generation stays, so that the floor never comes near wrapping around.
const GENERATION_MAX: u32 = 1 << 31;
/// How often a claim is waited for.
const PATIENCE: u32 = 64;

/// A reference to a node or block, and where it is.
pub(super) struct Link {
    pub slot: SlotRef,
    /// 0: the reference is in the roots.
    pub place: Offset,
}

impl InodeTable {
    /// Returns the nodes on the way to `block`, the root first, and last the block itself if it
    /// exists.
    fn way(&self, view: &impl View, block: u64) -> Result<Vec<Link>> {
        let (slot, height) = self.root();
        let mut way = vec![Link { slot, place: Offset::ZERO }];
        for level in (0..height).rev() {
            let at = way[way.len() - 1].slot.offset();
            let place = at + block / TABLE_FANOUT.pow(level) % TABLE_FANOUT * 8;
            // Damaged nodes stay as they are.
            let slot = child_at(view, place, level)?.unwrap_or_default();
            if slot.is_none() {
                break;
            }
            way.push(Link { slot, place });
        }
        Ok(way)
    }

    pub(super) fn block_link(&self, view: &impl View, block: u64) -> Result<Option<Link>> {
        let mut way = self.way(view, block)?;
        Ok(if way.len() > self.root().1 as usize { way.pop() } else { None })
    }

    /// Runs `change` on an existing block while nobody else can look at its records.
    fn alone<'r>(
        &self,
        region: &'r Region,
        locks: &LockTable,
        block: u64,
        change: impl FnOnce(&mut FreeNumbers, Tx<'r>, Link) -> Result<bool>,
    ) -> Result<bool> {
        self.alone_as(region, locks, block, OtherLocks::None, |free, link| change(free, region.begin_reclaim(), link))
    }

    /// Does the same without a transaction.
    pub(super) fn alone_as(
        &self,
        region: &Region,
        locks: &LockTable,
        block: u64,
        others: OtherLocks,
        change: impl FnOnce(&mut FreeNumbers, Link) -> Result<bool>,
    ) -> Result<bool> {
        let Some(_locks) = locks.try_write_block(block, others) else {
            return Ok(false);
        };
        for _ in 0..if others == OtherLocks::Held { 1 } else { PATIENCE } {
            let mut free = self.free.lock();
            if self.claims.load(Ordering::Acquire) == 0 || is_planted(Bug::PackClaimed) {
                return match self.block_link(region, block)? {
                    Some(link) => change(&mut free, link),
                    None => Ok(false),
                };
            }
            drop(free);
            std::thread::yield_now();
        }
        Ok(false)
    }

    /// Gives a block back if none of its records is in use.
    pub fn give_back(&self, region: &Region, locks: &LockTable, block: u64) -> Result<bool> {
        self.give_back_as(region, locks, block, OtherLocks::None)
    }

    /// Does the same for a caller that may hold locks of other inodes.
    pub fn give_back_as(&self, region: &Region, locks: &LockTable, block: u64, others: OtherLocks) -> Result<bool> {
        self.alone_as(region, locks, block, others, |free, Link { slot, place }| {
            let mut tx = region.begin_reclaim();
            let mut highest = free.floor;
            let records = match packed::is_packed(slot) {
                true => match self.decode_all(&tx, slot) {
                    Ok(records) => records.to_vec(),
                    Err(_) => return Ok(false),
                },
                false => block::records(&block::read(&tx, slot)?).collect(),
            };
            for record in records {
                match record {
                    Ok(InodeSlot::Free { generation }) => highest = highest.max(generation),
                    // A record that cannot be read may be in use.
                    _ => return Ok(false),
                }
            }
            if highest >= GENERATION_MAX || block == 0 {
                return Ok(false);
            }
            tx.free(slot)?;
            tx.write(place, &[0; 8])?;
            if highest > free.floor {
                let mut roots: Roots = load_roots(&tx)?;
                roots.generation_floor = highest.into();
                tx.write(ROOTS_AT, roots.as_bytes())?;
            }
            tx.commit()?;
            free.floor = highest;
            free.known.remove(&(block as u32));
            free.emptied.remove(&(block as u32));
            free.absent.insert(block as u32);
            Ok(true)
        })
    }

    /// Moves a block out of a draining segment.
    pub fn move_block(&self, region: &Region, locks: &LockTable, block: u64, victims: &Victims) -> Result<bool> {
        // Its inodes are locked, so a packed block keeps its form: only a change of one of them
        // would unpack it.
        self.alone(region, locks, block, |_, mut tx, Link { slot, place }| {
            if !victims.contains(slot) {
                return Ok(false);
            }
            let Some(new) = tx.relocate(slot)? else { return Ok(false) };
            tx.write(place, &new.bits().to_le_bytes())?;
            tx.commit()?;
            Ok(true)
        })
    }

    /// Moves the tables of packed blocks out of draining segments.
    pub fn move_tables(&self, region: &Region, victims: &Victims) -> Result<bool> {
        self.while_roots_stay(|| self.packed.tables.move_copies(region, victims))
    }

    /// Calls `change` while nobody else changes roots.
    pub fn while_roots_stay<T>(&self, change: impl FnOnce() -> T) -> T {
        let _growth = self.free.lock();
        change()
    }

    /// Returns the slot of a block, or none, as it was a moment ago.
    pub fn slot_of(&self, region: &Region, block: u64) -> Result<SlotRef> {
        region.while_still(|| self.block_slot(region, block))
    }

    /// Moves the nodes above `block` out of draining segments, and gives back nodes that lead
    /// nowhere.
    pub fn tidy_nodes(&self, region: &Region, locks: &LockTable, block: u64, victims: &Victims) -> Result<bool> {
        let leads_nowhere = |view: &Tx<'_>, link: &Link| -> Result<bool> {
            let bytes = view.read_vec(link.slot.offset(), TABLE_NODE as usize)?;
            Ok(link.place != Offset::ZERO && bytes.iter().all(|&byte| byte == 0))
        };
        let nodes = |view: &Tx<'_>| -> Result<Vec<Link>> {
            let mut way = self.way(view, block)?;
            way.truncate(self.root().1 as usize);
            Ok(way)
        };
        // First a look that disturbs nobody: only this function moves nodes, and new ones are made
        // under this lock.
        {
            let _free = self.free.lock();
            let tx = region.begin_reclaim();
            let way = region.while_still(|| nodes(&tx))?;
            let mut due = way.iter().any(|link| victims.contains(link.slot));
            for link in &way {
                due |= region.while_still(|| leads_nowhere(&tx, link))?;
            }
            if !due {
                return Ok(false);
            }
        }
        let Some(_locks) = locks.try_write_all() else { return Ok(false) };
        let _free = self.free.lock();
        if self.claims.load(Ordering::Acquire) != 0 {
            return Ok(false);
        }
        let mut tx = region.begin_reclaim();
        let (mut root, height) = self.root();
        for link in nodes(&tx)?.iter().rev() {
            if leads_nowhere(&tx, link)? {
                tx.free(link.slot)?;
                tx.write(link.place, &[0; 8])?;
            } else if victims.contains(link.slot) {
                let Some(new) = tx.relocate(link.slot)? else { continue };
                if link.place != Offset::ZERO {
                    tx.write(link.place, &new.bits().to_le_bytes())?;
                    continue;
                }
                let mut roots = load_roots(&tx)?;
                roots.inode_root = new.bits().into();
                tx.write(ROOTS_AT, roots.as_bytes())?;
                root = new;
            }
        }
        tx.commit()?;
        self.root.store(root.bits() | (height as u64) << HEIGHT_SHIFT, Ordering::Release);
        Ok(true)
    }

    /// Takes up to `most` blocks off the list of those that lost their last inode.
    pub fn take_emptied(&self, most: usize) -> Vec<u64> {
        let mut free = self.free.lock();
        let mut blocks = Vec::new();
        while blocks.len() < most
            && let Some(block) = free.emptied.pop_first()
        {
            blocks.push(block as u64);
        }
        blocks
    }

    /// Puts a block back on that list, if it is still empty as far as is known.
    pub fn still_emptied(&self, block: u64) {
        let mut free = self.free.lock();
        if free.known.get(&(block as u32)).is_some_and(|known| known.mask == u16::MAX) {
            free.emptied.insert(block as u32);
        }
    }

    pub fn has_emptied(&self) -> bool {
        !self.free.lock().emptied.is_empty()
    }
}
