//! The packer: puts packed blocks in the place of plain ones whose inodes have not changed for a
//! while.
//!
//! It goes round the blocks in number order, in steps of bounded work. It looks only at blocks that
//! were changed since its last look, or were too young then. A block is packed under the locks of
//! all its inodes and while there is no claim, like a block that is moved (`tidy`). Locks are only
//! tried, never waited for. One transaction allocates the packed block, swings the reference, frees
//! the plain block, and counts the triplets, so that a crash leaves one form or the other.
//! Left out: when it runs (`compact`), and unpacking (`packed`).

use std::sync::atomic::Ordering;
use std::time::Duration;

use shoal_format::inode::{
    INODE_BLOCK, INODE_HAS_NEW, INODE_RECORD, INODE_TRUNCATING, INODES_PER_BLOCK, Inode, InodeSlot, S_IFDIR, S_IFMT,
};
use shoal_format::slot::{CLASS_SIZES, class_for};
use shoal_format::superblock::FEATURE_PACKED;
use shoal_format::{Offset, SlotRef};
use shoal_pack::{Block, BlockBytes, Item, Method, PROFILES_MAX, ProfileFile, pack};
use shoal_region::{Lack, Region, Tx};

use super::changed::next_in;
use super::packed::{PACKED_MAX, indexed_triplet, is_packed};
use super::{InodeTable, block, record};
use crate::cold::cooled::{has_buckets, may_be_packed};
use crate::locks::{LockTable, OtherLocks};
use crate::method;
use crate::rooms::Compacting;
use crate::{Error, Result};

/// Blocks packed in a step of background work.
pub(crate) const STEP_PACKED: u32 = 128;
/// Blocks packed in a step while others commit.
const LOAD_BLOCKS: u32 = 8;
const BESIDE_ROUND: Duration = Duration::from_secs(1);
/// Blocks looked at for each that may be packed.
const LOOKS: u32 = 8;
/// Blocks looked at in search of one to pack on a full store.
const SEARCH_BLOCKS: u64 = 4096;
/// Blocks tried in that search that cannot be packed at the moment.
const SEARCH_TRIES: u32 = 32;
const PER_BLOCK: usize = INODES_PER_BLOCK as usize;
/// Longest file of a store's profiles (bytes): both copies of the tables go into one record, each
/// with room for triplets behind the file.
pub const STORE_PROFILES_BYTES: usize = 112 << 10;

/// Result of a step of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodePacking {
    /// Blocks packed, and the inodes in use in them.
    pub blocks: u64,
    pub inodes: u64,
    /// Bytes of their slots before and after.
    pub bytes_before: u64,
    pub bytes_after: u64,
    /// The round is not over.
    pub more: bool,
}

/// State of the packer, between steps.
#[derive(Default)]
pub(crate) struct Packer {
    /// Blocks to look at in this round; empty between rounds.
    due: Vec<u64>,
    block: u64,
    /// No round begins before this moment (monotonic, ns).
    rests_until_ns: u64,
}

/// Outcome of a look at a block.
enum Look {
    Packed {
        /// Bytes of the packed block's slot.
        bytes: u64,
        /// Inodes in use.
        inodes: u64,
    },
    /// Perhaps later: the block is too young, or a thread is in the way.
    Later,
    /// Nothing to do until the block changes.
    Nothing,
}

/// The present (ns since 1970), and the least age of a cold inode's times.
#[derive(Clone, Copy)]
pub(super) struct Cold {
    now_ns: i64,
    age_ns: u64,
    /// How file data is packed before its inode, unless the file says otherwise.
    method: Method,
}

impl Cold {
    fn new(now_ns: i64, age: Duration, method: Method) -> Cold {
        let age_ns = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        Cold { now_ns, age_ns, method }
    }

    /// Returns whether an inode is too young. Times far in the future are not young: a user has set
    /// them, or the clock went back.
    fn is_young(self, inode: &Inode) -> bool {
        let waits =
            has_buckets(inode) || may_be_packed(inode) && method::own(inode).unwrap_or(self.method) != Method::Off;
        let age_ns = if waits { self.age_ns.saturating_mul(2) } else { self.age_ns };
        [inode.ctime, inode.atime].iter().any(|time| time.abs_diff(self.now_ns) < age_ns)
    }

    /// Returns what these records call for, or `None` if the block may be packed.
    fn look<E>(self, records: impl Iterator<Item = std::result::Result<InodeSlot, E>>) -> Option<Look> {
        let mut used = 0;
        for record in records {
            match record {
                Ok(InodeSlot::Used(inode)) => {
                    used += 1;
                    let unfinished = inode.nlink == 0 || inode.flags & (INODE_TRUNCATING | INODE_HAS_NEW) != 0;
                    if unfinished || self.is_young(&inode) {
                        return Some(Look::Later);
                    }
                }
                Ok(InodeSlot::Free { .. }) => {}
                // A damaged record stays for the checker to see.
                Err(_) => return Some(Look::Nothing),
            }
        }
        // An empty block is given back instead.
        (used == 0).then_some(Look::Nothing)
    }
}

impl InodeTable {
    /// Packs a block, if it is worth it. Without `cold` the age of its inodes does not matter, and
    /// the caller may hold inode locks. `prepare` makes the tables ready; if it cannot, nothing is
    /// packed.
    fn pack_block(
        &self,
        region: &Region,
        locks: &LockTable,
        block: u64,
        cold: Option<Cold>,
        prepare: impl FnOnce() -> Result<bool>,
    ) -> Result<Look> {
        let first = region.while_still(|| -> Result<Option<block::Bytes>> {
            let slot = self.block_slot(region, block)?;
            if slot.is_none() || is_packed(slot) { Ok(None) } else { block::read(region, slot).map(Some) }
        });
        let Ok(Some(bytes)) = first else { return Ok(Look::Nothing) };
        let others = if cold.is_none() { OtherLocks::Held } else { OtherLocks::None };
        let cold = cold.unwrap_or(Cold { now_ns: 0, age_ns: 0, method: Method::Off });
        if let Some(look) = cold.look(block::records(&bytes)) {
            return Ok(look);
        }
        if !prepare()? {
            return Ok(Look::Nothing);
        }
        let mut look = Look::Later;
        self.alone_as(region, locks, block, others, |_, link| {
            look = if is_packed(link.slot) {
                Look::Nothing
            } else {
                self.pack_alone(region, link.slot, link.place, cold)?
            };
            Ok(true)
        })?;
        Ok(look)
    }

    /// Packs the plain block in `slot`, to which `place` refers, while nobody else can look at it.
    fn pack_alone(&self, region: &Region, slot: SlotRef, place: Offset, cold: Cold) -> Result<Look> {
        let plain = block::read(region, slot)?;
        if let Some(look) = cold.look(block::records(&plain)) {
            return Ok(look);
        }
        let mut items = [Item::Free { generation: 0 }; PER_BLOCK];
        for (item, bytes) in items.iter_mut().zip(plain.chunks_exact(INODE_RECORD)) {
            *item = record::item(bytes.try_into().expect("chunk size"))?;
        }
        let tables = &self.packed.tables;
        let mut change = tables.change();
        if !change.has_tables() {
            return Ok(Look::Later);
        }
        let used = items.iter().filter_map(|item| if let Item::Used(record) = item { Some(record) } else { None });
        for triplet in used.clone().map(|record| record.triplet()) {
            let is_known = tables.decoder().profiles.iter().all(|profile| profile.knows(triplet));
            if !is_known {
                change.acquire(triplet);
            }
        }
        let mut out = BlockBytes::default();
        let (mut indexed, mut spare) = (Vec::new(), 0);
        {
            let decoder = tables.decoder();
            pack(&items, &decoder.profiles, &decoder.triplets, &mut out);
            let packed = Block::open(out.bytes())?;
            for (at, (item, bytes)) in items.iter().zip(plain.chunks_exact(INODE_RECORD)).enumerate() {
                let read = packed.get(at, &decoder.profiles, &decoder.triplets).and_then(|item| record::decoded(&item));
                if read != Inode::decode(bytes.try_into().expect("chunk size")) {
                    // Only a block whose records come back as they were may be packed.
                    return Ok(Look::Nothing);
                }
                indexed.extend(indexed_triplet(&packed, at, item, &decoder));
                if may_outlive_a_removal(item) {
                    spare += packed.growth_max(at);
                }
            }
        }
        change.keep(indexed);
        if out.bytes().len() > PACKED_MAX {
            return Ok(Look::Nothing);
        }
        let (mut tx, new) = match alloc(region, (out.bytes().len() + spare).min(PACKED_MAX) as u64) {
            Err(Error::NoSpace(_)) => return Ok(Look::Later),
            allocated => allocated?,
        };
        tx.write(new.offset(), out.bytes())?;
        tx.free(slot)?;
        change.write(&mut tx)?;
        tx.write(place, &new.bits().to_le_bytes())?;
        let used = used.count() as u64;
        self.packed.counters.commit_packed(tx, 0, used)?;
        change.committed();
        Ok(Look::Packed { bytes: new.capacity(), inodes: used })
    }
}

/// Returns whether a removal may change this record and leave it in use. On a full store a removal
/// writes the record in place (`removal`), and needs room for that.
fn may_outlive_a_removal(item: &Item) -> bool {
    matches!(item, Item::Used(record) if record.mode & S_IFMT == S_IFDIR || record.links > 1)
}

/// Allocates a slot for a packed block, and returns it with its transaction. The slot has the class
/// that fits; on a full store it comes from the reserve, or has a larger class with a free slot.
/// Packing gives back more than it takes, though later. Until then removals may need the other half
/// of the reserve.
fn alloc(region: &Region, len: u64) -> Result<(Tx<'_>, SlotRef)> {
    let first = class_for(len).map_or(CLASS_SIZES.len(), usize::from);
    let larger = CLASS_SIZES.iter().skip(first).map(|&bytes| u64::from(bytes));
    let larger = larger.take_while(|&bytes| bytes <= PACKED_MAX as u64);
    let (ways, mut lack) = ([(false, len), (true, len)].into_iter(), Lack::OTHER);
    for (is_reclaim, bytes) in ways.chain(larger.map(|bytes| (false, bytes))) {
        if is_reclaim && !region.has_half_reserve() {
            continue;
        }
        let mut tx = if is_reclaim { region.begin_reclaim() } else { region.begin() };
        match tx.alloc(bytes) {
            Err(shoal_region::Error::NoSpace(now)) => lack = now,
            slot => return slot.map(|slot| (tx, slot)).map_err(Error::from),
        }
    }
    Err(Error::NoSpace(lack))
}

impl<'a> Compacting<'a> {
    /// Does one step of packing: packs at most `budget` blocks, or none if the store's options do
    /// not ask for it.
    pub fn pack_inodes_step(self, budget: u32) -> Result<InodePacking> {
        match self.fs.options.pack_age {
            Some(age) => self.pack_inodes_of(age, budget, Duration::ZERO),
            None => Ok(InodePacking::default()),
        }
    }

    /// Packs all inodes now, whatever their age.
    pub fn pack_inodes_now(self) -> Result<InodePacking> {
        {
            let mut packer = self.fs.inode_packer.lock();
            let changed = self.fs.table.packed.changed.take();
            packer.due.resize(changed.len(), 0);
            packer.due.iter_mut().zip(changed).for_each(|(due, changed)| *due |= changed);
            packer.block = 0;
        }
        let mut all = InodePacking::default();
        loop {
            let done = self.pack_inodes_of(Duration::ZERO, STEP_PACKED, Duration::ZERO)?;
            all.blocks += done.blocks;
            all.inodes += done.inodes;
            all.bytes_before += done.bytes_before;
            all.bytes_after += done.bytes_after;
            if !done.more {
                return Ok(all);
            }
        }
    }

    /// Does a small step while others commit. Blocks that were changed since the round began are
    /// left alone, and rounds are a second apart: inodes that change again and again would be
    /// unpacked again and again.
    pub(crate) fn pack_inodes_beside(self) -> Result<InodePacking> {
        match self.fs.options.pack_age {
            Some(age) => self.pack_inodes_of(age, LOAD_BLOCKS, BESIDE_ROUND),
            None => Ok(InodePacking::default()),
        }
    }

    fn pack_inodes_of(self, age: Duration, budget: u32, rest: Duration) -> Result<InodePacking> {
        self.fs.writable()?;
        let mut done = InodePacking::default();
        if !self.fs.options.pack_inodes {
            return Ok(done);
        }
        let mut packer = self.fs.inode_packer.lock();
        let now_ns = self.fs.clock.monotonic_ns();
        if packer.due.is_empty() {
            if now_ns < packer.rests_until_ns || !self.fs.table.packed.changed.any() {
                return Ok(done);
            }
            (packer.due, packer.block) = (self.fs.table.packed.changed.take(), 0);
        }
        let cold = Cold::new(self.fs.now(), age, self.fs.options.method);
        let (mut packs, mut looks) = (budget, budget.saturating_mul(LOOKS));
        while packer.block < self.fs.table.blocks() && packs > 0 && looks > 0 {
            packer.block = next_in(&packer.due, packer.block);
            let block = packer.block;
            if block >= self.fs.table.blocks() {
                break;
            }
            looks -= 1;
            if !rest.is_zero() && self.fs.table.packed.changed.has(block) {
                packer.block += 1;
                continue;
            }
            let prepare = || self.prepare_packing(|| ProfileFile::built_in().of_store());
            match self.fs.table.pack_block(&self.fs.region, &self.fs.locks, block, Some(cold), prepare) {
                Ok(Look::Packed { bytes, inodes }) => {
                    packs -= 1;
                    done.blocks += 1;
                    done.inodes += inodes;
                    done.bytes_before += INODE_BLOCK;
                    done.bytes_after += bytes;
                }
                Ok(Look::Later) => self.fs.table.packed.changed.set(block),
                Ok(Look::Nothing) => {}
                Err(error) => {
                    self.fs.table.packed.changed.set(block);
                    match error {
                        // There is no room for the log or the tables, or the block is damaged;
                        // nothing is lost by waiting.
                        Error::NoSpace(_) | Error::Corrupt(_) => {}
                        error => return Err(error),
                    }
                }
            }
            packer.block += 1;
        }
        done.more = packer.block < self.fs.table.blocks();
        if !done.more {
            packer.due.clear();
            packer.rests_until_ns =
                now_ns.saturating_add(u64::try_from((age / 2).max(rest).as_nanos()).unwrap_or(u64::MAX));
        }
        Ok(done)
    }

    /// Makes the store ready for a packed block: adds the feature, and sees that there are tables
    /// with room. The first tables get `profile`. The caller holds no locks.
    fn prepare_packing(self, profile: impl FnOnce() -> ProfileFile) -> Result<bool> {
        self.fs.region.add_feature(FEATURE_PACKED)?;
        self.fs.table.prepare_tables(&self.fs.region, profile)
    }

    /// Sets the profiles that the store's inodes are packed with, instead of the built-in ones.
    /// Only possible before the first block is packed. Returns false if the store has profiles
    /// already, or if `file` has none of Shoal's own compressor, or more than a store takes.
    pub fn set_inode_profiles(self, file: &ProfileFile) -> Result<bool> {
        self.fs.writable()?;
        let file = file.of_store();
        let fits = (1..=PROFILES_MAX).contains(&file.profiles.len()) && file.to_bytes().len() <= STORE_PROFILES_BYTES;
        if self.fs.table.has_tables() || !fits {
            return Ok(false);
        }
        self.prepare_packing(|| file)
    }

    /// Returns the profiles that the store has. It has none before a first block is packed with the
    /// built-in ones, or if they cannot be read.
    pub fn inode_profiles(self) -> Option<ProfileFile> {
        self.fs.table.packed.tables.profiles()
    }

    /// Packs some block other than `not`, whatever its age, or gives an empty one back, so that its
    /// slot is free. The caller may hold inode locks.
    #[cold]
    pub(super) fn pack_another(self, not: u64) -> Result<bool> {
        // Any claim keeps every block from being packed, and the caller may hold one itself.
        if self.fs.table.claims.load(Ordering::Acquire) != 0 {
            return Ok(false);
        }
        // A block that was packed before may be packed again, whatever the options say: the slot of
        // its plain form is what is missing.
        let searches = self.fs.options.pack_age.is_some() && self.fs.options.pack_inodes;
        // A block without inodes need not be packed.
        for block in self.fs.table.take_emptied(1) {
            if self.fs.table.give_back_as(&self.fs.region, &self.fs.locks, block, OtherLocks::Held)? {
                return Ok(true);
            }
            self.fs.table.still_emptied(block);
        }
        let (blocks, packed) = (self.fs.table.blocks(), &self.fs.table.packed);
        let (mut kept, mut found, mut tries) = (Vec::new(), false, 0);
        for _ in 0..blocks.min(SEARCH_BLOCKS) {
            if tries == SEARCH_TRIES {
                break;
            }
            let known = packed.unpacked.lock().pop_back().map(u64::from);
            if known.is_none() && !searches {
                break;
            }
            let block = known.unwrap_or_else(|| packed.search.fetch_add(1, Ordering::Relaxed) % blocks);
            let look = match block == not {
                true => Ok(Look::Later),
                false => self.fs.table.pack_block(&self.fs.region, &self.fs.locks, block, None, || Ok(true)),
            };
            match look {
                Ok(Look::Packed { .. }) => {
                    found = true;
                    break;
                }
                Ok(Look::Later) => {
                    tries += 1;
                    kept.extend(known);
                }
                Ok(Look::Nothing) | Err(Error::Corrupt(_)) => {}
                Err(Error::NoSpace(_)) => break,
                Err(error) => return Err(error),
            }
        }
        let mut unpacked = packed.unpacked.lock();
        kept.into_iter().for_each(|block| unpacked.push_front(block as u32));
        Ok(found)
    }
}
