//! The inode table: from a number to a record of 96 bytes, and the numbers not in use.
//!
//! Records are plain now; everything that knows how they lie in the region is in this file. Growing the table is a
//! transaction of its own, so that operations only ever write their own inodes' records. Which numbers are
//! free is volatile knowledge, gathered from the records a few blocks at a time.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_format::inode::{
    INO_MAX, INODE_BLOCK, INODE_RECORD, INODES_PER_BLOCK, Inode, InodeSlot, TABLE_FANOUT, TABLE_NODE,
};
use shoal_format::superblock::{ROOTS_AT, Roots};
use shoal_format::{FormatError, Offset, SlotRef};
use shoal_region::{Region, Tx, View};
use zerocopy::{FromBytes, IntoBytes};

use crate::damage::{Damage, OnDamage};
use crate::{Error, Fs, Ino, Result};

/// Blocks looked through for free records before the table grows instead.
const SCAN_BLOCKS: u64 = 64;

pub(crate) struct InodeTable {
    /// Root reference (56 bits) and height (8 bits), so that both are read at once.
    root: AtomicU64,
    blocks: AtomicU64,
    free: Mutex<FreeNumbers>,
    pub damage: Damage,
}

#[derive(Default)]
struct FreeNumbers {
    /// Free numbers and the generation of their last user.
    known: Vec<(u32, u32)>,
    /// First block not yet looked through.
    scanned: u64,
    /// Claimed numbers of blocks not yet looked through: their records must not be believed.
    claimed: HashSet<u32>,
}

const HEIGHT_SHIFT: u32 = 56;

/// A number whose record its holder is about to fill or to free. Until it is dropped the table gives it to nobody else,
/// whatever the record says: a commit and what follows from it are two moments.
pub(crate) struct Claim<'a> {
    table: &'a InodeTable,
    pub ino: Ino,
    /// Generation of the last user.
    last: u32,
    /// The number is free when the claim ends.
    free: bool,
    listed: bool,
}

impl Claim<'_> {
    /// The generation of a new user.
    pub fn generation(&self) -> u32 {
        self.last.wrapping_add(1).max(1)
    }

    /// The record was committed as in use.
    pub fn keep(mut self) {
        self.free = false;
    }

    /// The record was committed as free.
    pub fn give_back(mut self) {
        self.free = true;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.free || self.listed {
            let mut free = self.table.free.lock();
            free.claimed.remove(&(self.ino as u32));
            if self.free {
                free.known.push((self.ino as u32, self.last));
            }
        }
    }
}

pub(crate) fn load_roots(view: &impl View) -> Result<Roots> {
    let mut bytes = [0; size_of::<Roots>()];
    view.read(ROOTS_AT, &mut bytes)?;
    Ok(Roots::read_from_bytes(&bytes).expect("size is exact"))
}

impl InodeTable {
    pub fn load(region: &Region, on_damage: Option<OnDamage>) -> Result<InodeTable> {
        let roots = load_roots(region)?;
        let bits = roots.inode_root.get();
        let height = roots.inode_height.get();
        let root = SlotRef::from_bits(bits).filter(|r| r.is_none() || r.capacity() == TABLE_NODE);
        if root.is_none()
            || height > 4
            || (bits == 0) != (height == 0)
            || roots.inode_blocks.get() > INO_MAX / INODES_PER_BLOCK
        {
            return Err(Error::Corrupt("roots of the inode table; run `shoal check`".into()));
        }
        Ok(InodeTable {
            root: AtomicU64::new(bits | (height as u64) << HEIGHT_SHIFT),
            blocks: AtomicU64::new(roots.inode_blocks.get()),
            free: Mutex::default(),
            damage: Damage::new(on_damage),
        })
    }

    /// Inode blocks that exist.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn block_at(&self, view: &impl View, block: u64) -> Result<Offset> {
        let packed = self.root.load(Ordering::Acquire);
        let mut at = SlotRef::from_bits(packed & ((1 << HEIGHT_SHIFT) - 1)).unwrap_or_default().offset();
        for level in (0..packed >> HEIGHT_SHIFT).rev() {
            let index = block / TABLE_FANOUT.pow(level as u32) % TABLE_FANOUT;
            let bits = view.read_u64(at + index * 8)?;
            // A piece of another size is none of the table's: what lies there must not be taken for records.
            let bytes = if level == 0 { INODE_BLOCK } else { TABLE_NODE };
            let slot = SlotRef::from_bits(bits).filter(|slot| slot.capacity() == bytes);
            let damaged =
                || Error::Corrupt(format!("block {block} of the inode table has no place; run `shoal check`"));
            at = slot.ok_or_else(damaged)?.offset();
        }
        Ok(at)
    }

    /// Where the record of `ino` lies.
    pub fn record_at(&self, view: &impl View, ino: Ino) -> Result<Offset> {
        let block = ino / INODES_PER_BLOCK;
        if ino == 0 || block >= self.blocks() {
            return Err(Error::Stale);
        }
        Ok(self.block_at(view, block)? + ino % INODES_PER_BLOCK * INODE_RECORD as u64)
    }

    pub fn read(&self, view: &impl View, ino: Ino) -> Result<InodeSlot> {
        let mut bytes = [0; INODE_RECORD];
        view.read(self.record_at(view, ino)?, &mut bytes)?;
        Inode::decode(&bytes).map_err(|error| undecodable(ino, error))
    }

    /// Calls `each` for every record of one block, as they are between two transactions: their locks are not held.
    /// What does not decode is noted and left out; a caller in search of free records finds none there.
    pub fn for_block(&self, region: &Region, block: u64, each: &mut dyn FnMut(Ino, InodeSlot)) -> Result<()> {
        let mut bytes = [0; INODE_BLOCK as usize];
        let read = self.block_at(region, block).and_then(|at| Ok(region.while_still(|| region.read(at, &mut bytes))?));
        match read {
            Err(error @ Error::Corrupt(_)) => {
                self.damage.note_block(block, &error);
                return Ok(());
            }
            other => other?,
        }
        for (index, record) in bytes.chunks_exact(INODE_RECORD).enumerate() {
            let ino = block * INODES_PER_BLOCK + index as u64;
            match Inode::decode(record.try_into().expect("chunk size")) {
                Ok(slot) => each(ino, slot),
                Err(error) => self.damage.note(ino, &undecodable(ino, error)),
            }
        }
        Ok(())
    }

    /// Takes a free number; it returns to the table unless kept. Its record may be written by the taker only.
    pub fn take(&self, region: &Region) -> Result<Claim<'_>> {
        let mut free = self.free.lock();
        if free.known.is_empty() {
            self.scan(region, &mut free)?;
        }
        if free.known.is_empty() {
            self.grow(region, &mut free)?;
        }
        let (ino, last) = free.known.pop().ok_or(Error::NoSpace)?;
        Ok(self.claim(&mut free, ino as Ino, last, true))
    }

    /// To be called before the commit that frees the record of `ino`.
    pub fn freeing(&self, ino: Ino, generation: u32) -> Claim<'_> {
        self.claim(&mut self.free.lock(), ino, generation, false)
    }

    fn claim(&self, numbers: &mut FreeNumbers, ino: Ino, last: u32, free: bool) -> Claim<'_> {
        let listed = ino / INODES_PER_BLOCK >= numbers.scanned;
        if listed {
            numbers.claimed.insert(ino as u32);
        }
        Claim { table: self, ino, last, free, listed }
    }

    fn scan(&self, region: &Region, free: &mut FreeNumbers) -> Result<()> {
        let last = self.blocks().min(free.scanned + SCAN_BLOCKS);
        while free.scanned < last && free.known.is_empty() {
            let FreeNumbers { known, claimed, scanned } = &mut *free;
            self.for_block(region, *scanned, &mut |ino, slot| {
                if let InodeSlot::Free { generation } = slot
                    && ino != 0
                    && !claimed.contains(&(ino as u32))
                {
                    known.push((ino as u32, generation));
                }
            })?;
            known.reverse();
            *scanned += 1;
        }
        Ok(())
    }

    /// Adds one block of 16 records.
    fn grow(&self, region: &Region, free: &mut FreeNumbers) -> Result<()> {
        let block = self.blocks();
        if (block + 1) * INODES_PER_BLOCK > INO_MAX {
            return Err(Error::NoSpace);
        }
        let packed = self.root.load(Ordering::Acquire);
        let mut root = SlotRef::from_bits(packed & ((1 << HEIGHT_SHIFT) - 1)).unwrap_or_default();
        let mut height = (packed >> HEIGHT_SHIFT) as u32;
        let mut tx = region.begin();
        while height == 0 || block >= TABLE_FANOUT.pow(height) {
            let node = new_node(&mut tx)?;
            if !root.is_none() {
                tx.write(node.offset(), &root.bits().to_le_bytes())?;
            }
            (root, height) = (node, height + 1);
        }
        let mut at = root.offset();
        for level in (1..height).rev() {
            let place = at + block / TABLE_FANOUT.pow(level) % TABLE_FANOUT * 8;
            let mut child = SlotRef::from_bits(tx.read_u64(place)?).ok_or(Error::Corrupt("inode table".into()))?;
            if child.is_none() {
                child = new_node(&mut tx)?;
                tx.write(place, &child.bits().to_le_bytes())?;
            }
            at = child.offset();
        }
        let records = tx.alloc(INODE_BLOCK)?;
        tx.zero(records.offset(), INODE_BLOCK)?;
        tx.write(at + block % TABLE_FANOUT * 8, &records.bits().to_le_bytes())?;
        let mut roots = load_roots(&tx)?;
        roots.inode_root = root.bits().into();
        roots.inode_height = height.into();
        roots.inode_blocks = (block + 1).into();
        tx.write(ROOTS_AT, roots.as_bytes())?;
        tx.commit()?;
        self.root.store(root.bits() | (height as u64) << HEIGHT_SHIFT, Ordering::Release);
        self.blocks.store(block + 1, Ordering::Release);
        if free.scanned == block {
            free.scanned = block + 1;
        }
        let first = (block * INODES_PER_BLOCK).max(1);
        free.known.extend((first..(block + 1) * INODES_PER_BLOCK).rev().map(|ino| (ino as u32, 0)));
        Ok(())
    }
}

fn undecodable(ino: Ino, error: FormatError) -> Error {
    Error::Corrupt(format!("inode {ino}: {error}; run `shoal check`"))
}

fn new_node(tx: &mut Tx<'_>) -> Result<SlotRef> {
    let node = tx.alloc(TABLE_NODE)?;
    tx.zero(node.offset(), TABLE_NODE)?;
    Ok(node)
}

impl Fs {
    /// The inode `ino`; `Stale` when it is not in use.
    #[inline]
    pub(crate) fn load(&self, ino: Ino) -> Result<Inode> {
        self.load_in(&self.region, ino)
    }

    pub(crate) fn load_in(&self, view: &impl View, ino: Ino) -> Result<Inode> {
        match self.met(ino, self.table.read(view, ino))? {
            InodeSlot::Used(inode) => Ok(inode),
            InodeSlot::Free { .. } => Err(Error::Stale),
        }
    }

    /// Writes the record of `ino`, whose exclusive lock the caller holds.
    pub(crate) fn store(&self, tx: &mut Tx<'_>, ino: Ino, inode: &Inode) -> Result<()> {
        let at = self.table.record_at(&self.region, ino)?;
        Ok(tx.write(at, &inode.encode())?)
    }

    /// Marks the record of `ino` free. The number returns to the table with [`Claim::give_back`] after commit.
    pub(crate) fn store_free(&self, tx: &mut Tx<'_>, ino: Ino, generation: u32) -> Result<()> {
        let at = self.table.record_at(&self.region, ino)?;
        Ok(tx.write(at, &Inode::encode_free(generation))?)
    }
}

#[cfg(test)]
#[path = "inode_tests.rs"]
mod tests;
