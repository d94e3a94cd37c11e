//! Packed blocks: reads the records in them, and puts a plain block in the place of a packed one
//! before its first change.
//!
//! The class of a reference at level 0 of the table tells the form: the class of 1536 bytes is a
//! plain block, a smaller one is packed. Records of a packed block share bytes, and its slot is
//! freed when it is unpacked. So there is a lock for packed blocks below the inode locks, striped
//! by block number. A reader that finds a packed reference takes the lock shared and reads the
//! reference again. A writer takes it exclusively, puts a plain block in place in a transaction of
//! its own, and continues with that. Plain blocks need no such lock: a block is packed under the
//! locks of all its inodes ([`super::packer`]).
//! A removal changes a packed block in place ([`super::removal`]).
//! Lock order: inode locks, the lock of a packed block, free numbers, changing counts (`tables`),
//! the region's commit lock. A reader that holds the commit lock ([`Region::while_still`]) takes
//! none of the locks before it: no block changes its form meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, RwLock};
use shoal_format::inode::{INODE_BLOCK, INODE_RECORD, INODES_PER_BLOCK, InodeSlot};
use shoal_format::superblock::Roots;
use shoal_format::{FormatError, SlotRef};
use shoal_pack::{BLOCK_MAX, Block, Item};
use shoal_region::{Lack, Region, Tx, View};

use super::block::{self, undecodable};
use super::changed::Changed;
use super::tables::{Decoder, PackedTables};
use super::{BLOCK_CLASS, InodeTable, record};
use crate::cold::counts::Counters;
use crate::planted::{Bug, is_planted};
use crate::rooms::Compacting;
use crate::{Error, Ino, Result};

/// Number of locks for packed blocks.
pub(super) const STRIPES: usize = 256;
/// The longest packed block.
pub(super) const PACKED_MAX: usize = 1280;
const _: () = assert!(PACKED_MAX < BLOCK_MAX && (PACKED_MAX as u64) < INODE_BLOCK);
/// Most blocks remembered as unpacked.
const UNPACKED_MAX: usize = 1 << 14;
/// How often room for a plain block is looked for.
const TRIES: u32 = 4;
const PER_BLOCK: usize = INODES_PER_BLOCK as usize;

/// A record of a block, or why it does not decode.
pub(super) type Decoded = std::result::Result<InodeSlot, FormatError>;

pub(super) struct Packed {
    locks: Box<[RwLock<()>]>,
    pub tables: PackedTables,
    /// Blocks that changed since the packer of inodes looked, and since the packer of data did.
    pub changed: Changed,
    pub plain_changed: Changed,
    pub counters: Arc<Counters>,
    /// Blocks unpacked last. A full store packs them again first, because the slot that each came
    /// from is free.
    pub unpacked: Mutex<VecDeque<u32>>,
    /// Where the search for other blocks continues.
    pub search: AtomicU64,
    /// Held by a removal that holds the lock of one packed block and waits for another's.
    pub removals: Mutex<()>,
}

/// Packed blocks of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedInodes {
    pub blocks: u64,
    /// Inodes in use in them.
    pub inodes: u64,
    /// Bytes of their slots.
    pub bytes: u64,
}

impl Packed {
    pub fn load(view: &impl View, roots: &Roots, tell: &dyn Fn(&str)) -> Packed {
        Packed {
            locks: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            tables: PackedTables::load(view, roots, tell),
            changed: Changed::all(),
            plain_changed: Changed::all(),
            counters: Arc::default(),
            unpacked: Mutex::default(),
            search: AtomicU64::new(0),
            removals: Mutex::default(),
        }
    }

    pub fn lock(&self, block: u64) -> &RwLock<()> {
        &self.locks[block as usize % STRIPES]
    }
}

/// Returns these bits as a reference to a packed block; `None` if they are not one.
#[cold]
pub(super) fn reference(bits: u64) -> Option<SlotRef> {
    SlotRef::from_bits(bits).filter(|slot| slot.class() < BLOCK_CLASS)
}

pub(crate) fn is_packed(slot: SlotRef) -> bool {
    !slot.is_none() && slot.class() != BLOCK_CLASS
}

/// Bytes of a packed block, and of the rest of its slot.
pub(super) struct SlotBytes {
    bytes: [u8; PACKED_MAX],
    len: usize,
}

impl SlotBytes {
    pub fn read(view: &impl View, slot: SlotRef) -> Result<SlotBytes> {
        let mut read = SlotBytes { bytes: [0; PACKED_MAX], len: slot.capacity() as usize };
        view.read(slot.offset(), &mut read.bytes[..read.len])?;
        Ok(read)
    }

    pub fn open(&self) -> std::result::Result<Block<'_>, FormatError> {
        Block::open_in(&self.bytes[..self.len])
    }
}

fn get(block: &Block<'_>, place: usize, decoder: &Decoder) -> Decoded {
    record::decoded(&block.get(place, &decoder.profiles, &decoder.triplets)?)
}

impl InodeTable {
    /// Returns the counters of packing.
    pub fn packing(&self) -> &Arc<Counters> {
        &self.packed.counters
    }

    /// Returns the blocks that changed since the packer of data looked.
    pub fn plain_changed(&self) -> &Changed {
        &self.packed.plain_changed
    }

    /// Reads a record of a block that is packed or does not exist, by `bits`, a reference that was
    /// read without the block's lock.
    #[cold]
    #[inline(never)]
    pub(super) fn read_packed(&self, view: &impl View, bits: u64, ino: Ino) -> Result<InodeSlot> {
        if is_planted(Bug::PackedOneLook) {
            // As if the thread were preempted here.
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        let _form = self.packed.lock(ino.block()).read();
        let slot = match super::block_reference(bits) {
            Some(slot) if is_planted(Bug::PackedOneLook) => slot,
            _ => self.block_slot(view, ino.block())?,
        };
        if slot.is_none() {
            return Err(Error::Stale);
        }
        if is_packed(slot) { self.decode_one(view, slot, ino) } else { block::get(view, slot, ino) }
    }

    /// Reads a record while no transaction applies ([`Region::while_still`]).
    pub fn read_still(&self, region: &Region, ino: Ino) -> Result<InodeSlot> {
        let slot = self.block_of(region, ino)?;
        if is_packed(slot) { self.decode_one(region, slot, ino) } else { block::get(region, slot, ino) }
    }

    /// Decodes a record of a packed block, which must keep its form meanwhile.
    pub(super) fn decode_one(&self, view: &impl View, slot: SlotRef, ino: Ino) -> Result<InodeSlot> {
        let bytes = SlotBytes::read(view, slot)?;
        let block = bytes.open().map_err(|error| undecodable(ino, error))?;
        let record = get(&block, ino.place(), &self.packed.tables.decoder());
        record.map_err(|error| undecodable(ino, error))
    }

    /// Decodes all records of a packed block, which must keep its form meanwhile. Fails if the
    /// block as a whole does not decode.
    pub(super) fn decode_all(&self, view: &impl View, slot: SlotRef) -> Result<[Decoded; PER_BLOCK]> {
        let bytes = SlotBytes::read(view, slot)?;
        let block = bytes.open().map_err(|error| Error::Corrupt(format!("{error}; run `shoal check`")))?;
        let decoder = self.packed.tables.decoder();
        Ok(std::array::from_fn(|place| get(&block, place, &decoder)))
    }

    /// Puts a plain block in the place of a packed one, in a transaction that `begin` makes. The
    /// caller has the lock of one of its inodes, or a claim to one. Returns the plain block; none
    /// if there is no such block.
    fn unpack<'r>(
        &self,
        region: &'r Region,
        begin: &dyn Fn() -> Tx<'r>,
        block: u64,
        undecodable: Undecodable,
    ) -> Result<SlotRef> {
        let _form = self.packed.lock(block).write();
        let Some(link) = self.block_link(region, block)? else { return Ok(SlotRef::NONE) };
        if !is_packed(link.slot) {
            return Ok(link.slot);
        }
        let mut change = self.packed.tables.change();
        let mut tx = begin();
        let bytes = SlotBytes::read(region, link.slot)?;
        let mut plain = [0; INODE_BLOCK as usize];
        let (mut indexed, mut used) = (Vec::new(), 0);
        match bytes.open() {
            Ok(packed) => {
                used = packed.used() as u64;
                let decoder = self.packed.tables.decoder();
                for (place, out) in plain.chunks_exact_mut(INODE_RECORD).enumerate() {
                    let item = packed.get(place, &decoder.profiles, &decoder.triplets);
                    match item.and_then(|item| Ok((item, record::bytes(&item)?))) {
                        Ok((item, bytes)) => {
                            out.copy_from_slice(&bytes);
                            indexed.extend(indexed_triplet(&packed, place, &item, &decoder));
                        }
                        Err(_) if undecodable == Undecodable::Kept => out.fill(UNDECODABLE),
                        Err(error) => return Err(Error::Corrupt(format!("{error}; run `shoal check`"))),
                    }
                }
            }
            Err(_) if undecodable == Undecodable::Kept => plain.fill(UNDECODABLE),
            Err(error) => return Err(Error::Corrupt(format!("{error}; run `shoal check`"))),
        }
        indexed.into_iter().for_each(|triplet| change.release(triplet));
        let new = tx.alloc(INODE_BLOCK)?;
        tx.write(new.offset(), &plain)?;
        if !is_planted(Bug::PackedNotFreed) {
            tx.free(link.slot)?;
        }
        change.write(&mut tx)?;
        tx.write(link.place, &new.bits().to_le_bytes())?;
        self.packed.counters.commit_unpacked(tx, 0, used)?;
        change.committed();
        let mut unpacked = self.packed.unpacked.lock();
        if unpacked.len() == UNPACKED_MAX {
            unpacked.pop_front();
        }
        unpacked.push_back(block as u32);
        Ok(new)
    }

    /// Recounts the users of triplets, and rewrites both copies of the tables.
    pub fn repair_tables(&self, region: &Region) -> Result<()> {
        let mut users = Vec::new();
        for block in 0..self.blocks() {
            let slot = self.block_slot(region, block)?;
            if !is_packed(slot) {
                continue;
            }
            let bytes = SlotBytes::read(region, slot)?;
            let Ok(packed) = bytes.open() else { continue };
            let decoder = self.packed.tables.decoder();
            for place in 0..PER_BLOCK {
                let Ok(item) = packed.get(place, &decoder.profiles, &decoder.triplets) else { continue };
                users.extend(indexed_triplet(&packed, place, &item, &decoder));
            }
        }
        let _growth = self.free.lock();
        self.packed.tables.rewrite(region, &users)
    }

    /// Counts packed blocks; looks at every block.
    pub fn count_packed(&self, region: &Region) -> Result<PackedInodes> {
        let mut counts = PackedInodes::default();
        for block in 0..self.blocks() {
            let used = region.while_still(|| -> Result<Option<(usize, SlotRef)>> {
                let slot = self.block_slot(region, block)?;
                if !is_packed(slot) {
                    return Ok(None);
                }
                let bytes = SlotBytes::read(region, slot)?;
                Ok(Some((bytes.open().map_or(0, |packed| packed.used()), slot)))
            });
            if let Ok(Some((used, slot))) = used {
                counts.blocks += 1;
                counts.inodes += used as u64;
                counts.bytes += slot.capacity();
            }
        }
        Ok(counts)
    }
}

/// Fills a record of which nothing was left: its checksum is wrong.
const UNDECODABLE: u8 = 0xff;

/// Returns the triplet that the code in a place names by its index, if it does.
pub(crate) fn indexed_triplet(
    block: &Block<'_>,
    place: usize,
    item: &Item,
    decoder: &Decoder,
) -> Option<shoal_pack::Triplet> {
    let Item::Used(record) = item else { return None };
    let profile = decoder.profiles.get(usize::from(block.profile()))?;
    (block.has_code(place) && !profile.knows(record.triplet())).then(|| record.triplet())
}

/// What becomes of records that do not decode when their block is unpacked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Undecodable {
    /// The block stays packed: an error.
    Refused,
    /// They stay undecodable in the plain block.
    Kept,
}

/// What a block is unpacked for. Decides how much of a full store's reserve may be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Uses none of it.
    Ordinary,
    /// Uses half of it, for a change that takes no room in a plain block. Otherwise changes of
    /// attributes could use up what removals need.
    Change,
    /// Uses all of it.
    Removal,
}

impl Need {
    /// Returns the need of a change within `tx` that removes nothing.
    fn of(tx: &Tx<'_>) -> Need {
        if tx.is_reclaim() { Need::Change } else { Need::Ordinary }
    }
}

fn found(slot: SlotRef) -> Result<SlotRef> {
    if slot.is_none() { Err(Error::Stale) } else { Ok(slot) }
}

impl<'a> Compacting<'a> {
    /// Returns the plain block with the record of `ino`, for a change within `tx`. Unpacks the
    /// block if it is packed.
    #[inline]
    pub(super) fn plain_block(self, tx: &Tx<'_>, ino: Ino) -> Result<SlotRef> {
        self.plain_block_or(ino, || self.unpack(Need::of(tx), ino, Undecodable::Refused))
    }

    /// Does the same for a removal.
    #[inline]
    pub(super) fn plain_block_for_removal(self, ino: Ino) -> Result<SlotRef> {
        self.plain_block_or(ino, || self.unpack(Need::Removal, ino, Undecodable::Refused))
    }

    /// Does the same if there is room without packing another block and without the reserve;
    /// otherwise fails with [`Error::NoSpace`].
    pub(super) fn plain_block_at_once(self, ino: Ino) -> Result<SlotRef> {
        self.plain_block_or(ino, || found(self.unpack_in(ino, &|| self.fs.region.begin(), Undecodable::Refused)?))
    }

    #[inline]
    fn plain_block_or(self, ino: Ino, unpack: impl FnOnce() -> Result<SlotRef>) -> Result<SlotRef> {
        let bits = self.fs.table.bits_of(&self.fs.region, ino)?;
        self.fs.table.packed.changed.set(ino.block());
        self.fs.table.packed.plain_changed.set(ino.block());
        super::plain_reference(bits).map_or_else(unpack, Ok)
    }

    /// Unpacks a block. On a full store another block is packed for it, so that removing files
    /// takes no more room than there is.
    #[cold]
    #[inline(never)]
    fn unpack(self, need: Need, ino: Ino, undecodable: Undecodable) -> Result<SlotRef> {
        let mut lack = Lack::OTHER;
        for _ in 0..TRIES {
            match self.unpack_in(ino, &|| self.fs.region.begin(), undecodable) {
                Err(Error::NoSpace(now)) => lack = now,
                outcome => return found(outcome?),
            }
            if !self.pack_another(ino.block())? {
                break;
            }
        }
        if need == Need::Ordinary || need == Need::Change && !self.fs.region.has_half_reserve() {
            return Err(Error::NoSpace(lack));
        }
        found(self.unpack_in(ino, &|| self.fs.region.begin_reclaim(), undecodable)?)
    }

    fn unpack_in<'r>(&'r self, ino: Ino, begin: &dyn Fn() -> Tx<'r>, undecodable: Undecodable) -> Result<SlotRef> {
        self.fs.table.unpack(&self.fs.region, begin, ino.block(), undecodable)
    }

    /// Unpacks a block whose records partly or wholly do not decode, so that each of them can be
    /// repaired.
    pub(crate) fn unpack_damaged(self, ino: Ino) -> Result<()> {
        self.unpack(Need::Removal, ino, Undecodable::Kept).map(drop)
    }

    /// Counts packed inodes; looks at every block of the inode table.
    pub fn packed_inodes(self) -> Result<PackedInodes> {
        self.fs.table.count_packed(&self.fs.region)
    }
}
