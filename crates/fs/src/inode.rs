//! The inode table: from a number to a record of 96 bytes, and the numbers not in use.
//!
//! Operations see one record at a time; how records lie in a block is in `block`. Blocks that have
//! cooled are packed (`packer`), and unpacked before a change (`packed`, `record`, `tables`).
//! Growing the table and unpacking are transactions of their own, so that operations only write the
//! records of their own inodes. Which numbers are free is kept in memory only, and gathered from
//! the records a few blocks at a time. The lowest known free number is given out first, so that
//! blocks become empty. `tidy` gives back empty blocks, and moves blocks out of sparse segments.

pub(crate) mod block;
pub(crate) mod changed;
pub(crate) mod packed;
pub(crate) mod packer;
pub(crate) mod record;
pub(crate) mod removal;
pub(crate) mod tables;
mod tidy;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_format::inode::{INODE_BLOCK, INODES_PER_BLOCK, Inode, InodeSlot, TABLE_FANOUT, TABLE_NODE};
use shoal_format::slot::{CLASS_SIZES, class_for};
use shoal_format::superblock::{ROOTS_AT, Roots};
use shoal_format::{Offset, SlotRef};
use shoal_region::{Region, Tx, View};
use zerocopy::{FromBytes, IntoBytes};

use crate::damage::{Damage, OnDamage};
use crate::{Error, Fs, Ino, Result};

/// Blocks searched for free records before the table grows instead.
const SCAN_BLOCKS: u64 = 64;

pub(crate) struct InodeTable {
    /// Root reference (56 bits) and height (8 bits), so that both are read at once.
    root: AtomicU64,
    blocks: AtomicU64,
    free: Mutex<FreeNumbers>,
    /// Number of open claims. A claim may hold the place of a record without holding its inode's lock.
    claims: AtomicU64,
    pub damage: Damage,
    packed: packed::Packed,
}

/// A block as it was between two transactions.
enum Whole {
    Absent,
    Plain(block::Bytes),
    Packed([packed::Decoded; INODES_PER_BLOCK as usize]),
}

/// The free numbers of one block, and the generations of their last users.
struct FreeOfBlock {
    mask: u16,
    last: [u32; INODES_PER_BLOCK as usize],
}

#[derive(Default)]
struct FreeNumbers {
    /// The known free numbers, by block.
    known: BTreeMap<u32, FreeOfBlock>,
    /// Blocks below the table's end that do not exist, as far as known.
    absent: BTreeSet<u32>,
    /// Blocks that lost their last inode, to be given back if they are still empty.
    emptied: BTreeSet<u32>,
    /// A number in a new block may have had users before, with generations up to this.
    floor: u32,
    /// First block not yet looked through.
    scanned: u64,
    /// Claimed numbers of blocks not yet looked through. Their records must not be believed.
    claimed: HashSet<Ino>,
}

const BLOCK_CLASS: u8 = class_of(INODE_BLOCK);
const NODE_CLASS: u8 = class_of(TABLE_NODE);

/// Returns the class of slots of exactly this length.
const fn class_of(bytes: u64) -> u8 {
    let Some(class) = class_for(bytes) else { panic!("no slot is so long") };
    assert!(CLASS_SIZES[class as usize] as u64 == bytes);
    class
}

const HEIGHT_SHIFT: u32 = 56;
const ROOT_MASK: u64 = (1 << HEIGHT_SHIFT) - 1;

impl FreeNumbers {
    fn add(&mut self, ino: Ino, last: u32) {
        let block = ino.block() as u32;
        let last = if last == 0 { self.floor } else { last };
        let known = self.known.entry(block).or_insert(FreeOfBlock { mask: 0, last: [0; INODES_PER_BLOCK as usize] });
        known.mask |= 1 << ino.place();
        known.last[ino.place()] = last;
        if known.mask == u16::MAX {
            self.emptied.insert(block);
        }
    }

    /// Takes the lowest known free number; returns it and the generation of its last user.
    fn take(&mut self) -> Option<(Ino, u32)> {
        let mut entry = self.known.first_entry()?;
        let (block, known) = (u64::from(*entry.key()), entry.get_mut());
        let place = known.mask.trailing_zeros() as usize;
        let last = known.last[place];
        known.mask &= !(1 << place);
        if known.mask == 0 {
            entry.remove();
        }
        Some((Ino::in_block(block, place)?, last))
    }
}

/// A number whose record its holder is about to fill or to free. Until the claim is dropped the
/// table gives the number to nobody else, whatever the record says, because a commit and what
/// follows from it are two moments.
pub(crate) struct Claim<'a> {
    table: &'a InodeTable,
    pub ino: Ino,
    /// Generation of the last user.
    last: u32,
    ends: ClaimEnds,
    listed: bool,
}

/// State of an inode number once its claim has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClaimEnds {
    Free,
    Used,
}

impl Claim<'_> {
    /// Returns the generation for a new user.
    pub fn generation(&self) -> u32 {
        self.last.wrapping_add(1).max(1)
    }

    /// Ends the claim after the record was committed as in use.
    pub fn keep(mut self) {
        self.ends = ClaimEnds::Used;
    }

    /// Ends the claim after the record was committed as free.
    pub fn give_back(mut self) {
        self.ends = ClaimEnds::Free;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.ends == ClaimEnds::Free || self.listed {
            let mut free = self.table.free.lock();
            if self.listed {
                free.claimed.remove(&self.ino);
            }
            if self.ends == ClaimEnds::Free {
                free.add(self.ino, self.last);
            }
        }
        self.table.claims.fetch_sub(1, Ordering::Release);
    }
}

pub(crate) fn load_roots(view: &impl View) -> Result<Roots> {
    let mut bytes = [0; size_of::<Roots>()];
    view.read(ROOTS_AT, &mut bytes)?;
    Ok(Roots::read_from_bytes(&bytes).expect("size is exact"))
}

impl InodeTable {
    /// Changes the roots in a transaction of its own. The table's growth, which writes them too, waits meanwhile.
    pub fn change_roots(&self, region: &Region, change: impl FnOnce(&mut Roots)) -> Result<()> {
        let _growth = self.free.lock();
        let mut tx = region.begin_reclaim();
        let mut roots = load_roots(&tx)?;
        change(&mut roots);
        tx.write(ROOTS_AT, roots.as_bytes())?;
        tx.commit()?;
        Ok(())
    }

    pub fn load(region: &Region, on_damage: Option<OnDamage>) -> Result<InodeTable> {
        let roots = load_roots(region)?;
        let bits = roots.inode_root.get();
        let height = roots.inode_height.get();
        let root = SlotRef::from_bits(bits).filter(|r| r.is_none() || r.capacity() == TABLE_NODE);
        if root.is_none() || height > 4 || (bits == 0) != (height == 0) || roots.inode_blocks.get() > Ino::MAX.block() {
            return Err(Error::Corrupt("roots of the inode table; run `shoal check`".into()));
        }
        let damage = Damage::new(on_damage);
        let packed = packed::Packed::load(region, &roots, &|finding| damage.tell_of_tables(finding));
        Ok(InodeTable {
            root: AtomicU64::new(bits | (height as u64) << HEIGHT_SHIFT),
            blocks: AtomicU64::new(roots.inode_blocks.get()),
            free: Mutex::new(FreeNumbers { floor: roots.generation_floor.get(), ..FreeNumbers::default() }),
            claims: AtomicU64::new(0),
            damage,
            packed,
        })
    }

    /// Returns the end of the table in blocks. Blocks before it may have been given back.
    pub fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    /// Returns the root node, and the number of node levels.
    fn root(&self) -> (SlotRef, u32) {
        let packed = self.root.load(Ordering::Acquire);
        let root = SlotRef::from_bits_of::<NODE_CLASS>(packed & ROOT_MASK);
        (root.unwrap_or_default(), (packed >> HEIGHT_SHIFT) as u32)
    }

    /// Returns the bits that refer to a block; 0 if the block does not exist.
    #[inline]
    fn block_bits(&self, view: &impl View, block: u64) -> Result<u64> {
        let (mut slot, height) = self.root();
        for level in (1..height).rev() {
            if slot.is_none() {
                break;
            }
            slot =
                child_at(view, slot.offset() + index_at(block, level) * 8, level)?.ok_or_else(|| misplaced(block))?;
        }
        if slot.is_none() {
            return Ok(0);
        }
        Ok(view.read_u64(slot.offset() + index_at(block, 0) * 8)?)
    }

    /// Returns the slot of a block in either form; none if the block does not exist.
    fn block_slot(&self, view: &impl View, block: u64) -> Result<SlotRef> {
        let bits = self.block_bits(view, block)?;
        block_reference(bits).ok_or_else(|| misplaced(block))
    }

    /// Returns the bits that refer to the block with the record of `ino`.
    #[inline]
    fn bits_of(&self, view: &impl View, ino: Ino) -> Result<u64> {
        let block = ino.block();
        if ino.is_none() || block >= self.blocks() {
            return Err(Error::Stale);
        }
        self.block_bits(view, block)
    }

    /// Returns the block with the record of `ino`, in either form.
    fn block_of(&self, view: &impl View, ino: Ino) -> Result<SlotRef> {
        let slot = block_reference(self.bits_of(view, ino)?).ok_or_else(|| misplaced(ino.block()))?;
        if slot.is_none() { Err(Error::Stale) } else { Ok(slot) }
    }

    /// Returns where the record of `ino` begins, or where its block begins if that is packed.
    pub fn record_at(&self, view: &impl View, ino: Ino) -> Result<Offset> {
        let slot = self.block_of(view, ino)?;
        Ok(if packed::is_packed(slot) { slot.offset() } else { block::record_at(slot, ino.place()) })
    }

    #[inline(always)]
    pub fn read(&self, view: &impl View, ino: Ino) -> Result<InodeSlot> {
        let bits = self.bits_of(view, ino)?;
        match plain_reference(bits) {
            Some(slot) => block::get(view, slot, ino),
            None => self.read_packed(view, bits, ino),
        }
    }

    fn has_tables(&self) -> bool {
        self.packed.tables.exist()
    }

    /// Makes the tables for decoding packed blocks ready for one more block.
    fn prepare_tables(&self, region: &Region, profile: impl FnOnce() -> shoal_pack::ProfileFile) -> Result<bool> {
        self.while_roots_stay(|| self.packed.tables.prepare(region, profile))
    }

    /// Calls `each` for every record of one block, as it is between two transactions; no locks are
    /// held. Returns false if there is no such block. Records that do not decode are noted and left
    /// out, so that a search for free records finds none there. A block that cannot be reached
    /// counts as existing, with nothing free in it.
    pub fn for_block(&self, region: &Region, block: u64, each: &mut dyn FnMut(Ino, InodeSlot)) -> Result<bool> {
        let read = region.while_still(|| -> Result<Whole> {
            let slot = self.block_slot(region, block)?;
            Ok(match slot {
                _ if slot.is_none() => Whole::Absent,
                _ if packed::is_packed(slot) => Whole::Packed(self.decode_all(region, slot)?),
                _ => Whole::Plain(block::read(region, slot)?),
            })
        });
        let whole = match read {
            Ok(Whole::Absent) => return Ok(false),
            Ok(whole) => whole,
            Err(error @ Error::Corrupt(_)) => {
                self.damage.note_block(block, &error);
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let mut each = |(place, record): (usize, packed::Decoded)| {
            let Some(ino) = Ino::in_block(block, place) else { return };
            match record {
                Ok(slot) => each(ino, slot),
                Err(error) => self.damage.note(ino, &block::undecodable(ino, error)),
            }
        };
        match whole {
            Whole::Absent => {}
            Whole::Plain(bytes) => block::records(&bytes).enumerate().for_each(each),
            Whole::Packed(records) => records.into_iter().enumerate().for_each(&mut each),
        }
        Ok(true)
    }

    /// Takes a free number, which returns to the table unless kept. Only the taker may write its
    /// record.
    pub fn take(&self, region: &Region) -> Result<Claim<'_>> {
        self.take_by(region, Region::begin)
    }

    /// Does the same for an inode that makes room: the table may grow into the reserve for it.
    pub fn take_reserved(&self, region: &Region) -> Result<Claim<'_>> {
        self.take_by(region, Region::begin_reclaim)
    }

    fn take_by(&self, region: &Region, begin: fn(&Region) -> Tx<'_>) -> Result<Claim<'_>> {
        let mut free = self.free.lock();
        if free.known.is_empty() {
            self.scan(region, &mut free)?;
        }
        if free.known.is_empty() {
            self.grow(region, &mut free, begin)?;
        }
        let (ino, last) = free.take().ok_or(Error::NO_SPACE)?;
        Ok(self.claim(&mut free, ino, last, ClaimEnds::Free))
    }

    /// Claims a number that becomes free. To be called before the commit that frees the record of
    /// `ino`.
    pub fn freeing(&self, ino: Ino, generation: u32) -> Claim<'_> {
        self.claim(&mut self.free.lock(), ino, generation, ClaimEnds::Used)
    }

    fn claim(&self, numbers: &mut FreeNumbers, ino: Ino, last: u32, ends: ClaimEnds) -> Claim<'_> {
        let listed = ino.block() >= numbers.scanned;
        if listed {
            numbers.claimed.insert(ino);
        }
        self.claims.fetch_add(1, Ordering::Relaxed);
        Claim { table: self, ino, last, ends, listed }
    }

    fn scan(&self, region: &Region, free: &mut FreeNumbers) -> Result<()> {
        let last = self.blocks().min(free.scanned + SCAN_BLOCKS);
        while free.scanned < last && free.known.is_empty() {
            self.scan_next(region, free)?;
        }
        Ok(())
    }

    /// Looks through the next block for free numbers.
    fn scan_next(&self, region: &Region, free: &mut FreeNumbers) -> Result<()> {
        let block = free.scanned;
        let exists = self.for_block(region, block, &mut |ino, slot| {
            if let InodeSlot::Free { generation } = slot
                && !ino.is_none()
                && !free.claimed.contains(&ino)
            {
                free.add(ino, generation);
            }
        })?;
        if !exists {
            free.absent.insert(block as u32);
        }
        free.scanned += 1;
        Ok(())
    }

    /// Looks through up to `most` more blocks, to find those that lost their last inode in an
    /// earlier life. Returns false when all blocks have been looked through.
    pub fn look_for_emptied(&self, region: &Region, most: usize) -> Result<bool> {
        let mut free = self.free.lock();
        let last = self.blocks().min(free.scanned.saturating_add(most as u64));
        while free.scanned < last {
            self.scan_next(region, &mut free)?;
        }
        Ok(free.scanned < self.blocks())
    }

    /// Adds one block of 16 records: in the place of one that was given back, or at the end.
    fn grow(&self, region: &Region, free: &mut FreeNumbers, begin: fn(&Region) -> Tx<'_>) -> Result<()> {
        let blocks = self.blocks();
        let block = free.absent.first().map_or(blocks, |&block| block as u64);
        if block >= Ino::MAX.block() {
            return Err(Error::NO_SPACE);
        }
        let (mut root, mut height) = self.root();
        let mut tx = begin(region);
        while height == 0 || block >= TABLE_FANOUT.pow(height) {
            let node = new_node(&mut tx)?;
            if !root.is_none() {
                tx.write(node.offset(), &root.bits().to_le_bytes())?;
            }
            (root, height) = (node, height + 1);
        }
        let mut at = root.offset();
        for level in (1..height).rev() {
            let place = at + index_at(block, level) * 8;
            let child = child_at(&tx, place, level)?;
            let mut child = child.ok_or_else(|| Error::Corrupt("node of the inode table; run `shoal check`".into()))?;
            if child.is_none() {
                child = new_node(&mut tx)?;
                tx.write(place, &child.bits().to_le_bytes())?;
            }
            at = child.offset();
        }
        let records = block::make(&mut tx)?;
        tx.write(at + block % TABLE_FANOUT * 8, &records.bits().to_le_bytes())?;
        let mut roots = load_roots(&tx)?;
        roots.inode_root = root.bits().into();
        roots.inode_height = height.into();
        roots.inode_blocks = blocks.max(block + 1).into();
        tx.write(ROOTS_AT, roots.as_bytes())?;
        tx.commit()?;
        self.root.store(root.bits() | (height as u64) << HEIGHT_SHIFT, Ordering::Release);
        self.blocks.store(blocks.max(block + 1), Ordering::Release);
        free.absent.remove(&(block as u32));
        if free.scanned == block {
            free.scanned = block + 1;
        }
        // Number 0 is nobody's.
        let mask = if block == 0 { u16::MAX - 1 } else { u16::MAX };
        let last = [free.floor; INODES_PER_BLOCK as usize];
        free.known.insert(block as u32, FreeOfBlock { mask, last });
        Ok(())
    }
}

/// Returns the index in a node of this level on the way to a block.
fn index_at(block: u64, level: u32) -> u64 {
    // A power of two: a shift instead of a division on the way to every record.
    (block >> (TABLE_FANOUT.ilog2() * level)) % TABLE_FANOUT
}

/// Returns the reference at `place`, in a node of this level; none if the place is empty, `None` if
/// it holds no reference of the table.
#[inline]
fn child_at(view: &impl View, place: Offset, level: u32) -> Result<Option<SlotRef>> {
    // A piece of another size does not belong to the table: what lies there must not be taken for
    // records.
    let bits = view.read_u64(place)?;
    Ok(if level == 0 { block_reference(bits) } else { SlotRef::from_bits_of::<NODE_CLASS>(bits) })
}

/// Returns the plain block that these bits refer to, if they do.
#[inline]
fn plain_reference(bits: u64) -> Option<SlotRef> {
    SlotRef::from_bits_of::<BLOCK_CLASS>(bits).filter(|slot| !slot.is_none())
}

/// Returns the block in either form, or none, that these bits refer to; `None` if they are no such
/// reference.
fn block_reference(bits: u64) -> Option<SlotRef> {
    SlotRef::from_bits_of::<BLOCK_CLASS>(bits).or_else(|| packed::reference(bits))
}

#[cold]
fn misplaced(block: u64) -> Error {
    Error::Corrupt(format!("block {block} of the inode table has no place; run `shoal check`"))
}

fn new_node(tx: &mut Tx<'_>) -> Result<SlotRef> {
    let node = tx.alloc(TABLE_NODE)?;
    tx.zero(node.offset(), TABLE_NODE)?;
    Ok(node)
}

impl Fs {
    /// Loads the inode `ino`; fails with `Stale` if it is not in use.
    #[inline]
    pub(crate) fn load(&self, ino: Ino) -> Result<Inode> {
        self.load_in(&self.region, ino)
    }

    #[inline(always)]
    pub(crate) fn load_in(&self, view: &impl View, ino: Ino) -> Result<Inode> {
        match self.met(ino, self.table.read(view, ino))? {
            InodeSlot::Used(inode) => Ok(inode),
            InodeSlot::Free { .. } => Err(Error::Stale),
        }
    }

    /// Does the same while no transaction applies ([`Region::while_still`]).
    pub(crate) fn load_still(&self, ino: Ino) -> Result<Inode> {
        match self.met(ino, self.table.read_still(&self.region, ino))? {
            InodeSlot::Used(inode) => Ok(inode),
            InodeSlot::Free { .. } => Err(Error::Stale),
        }
    }

    /// Writes the record of `ino`, whose exclusive lock the caller holds.
    pub(crate) fn store(&self, tx: &mut Tx<'_>, ino: Ino, inode: &Inode) -> Result<()> {
        block::put(tx, self.compacting().plain_block(tx, ino)?, ino, inode)
    }
}

#[cfg(test)]
#[path = "inode_tests.rs"]
mod tests;
