//! The memory of held blocks: slots in groups, which take memory when they are needed and give it back.
//!
//! Owns: [`Cache`], memory newly made or found; [`Slots`], which of its slots are free. Rules,
//! which ensure that a process that ends at any instruction leaves the old or the new version of
//! each block:
//! - The bytes of a block are stored in a free slot before the entry that names the slot. The
//!   entry's first word is stored last.
//! - The entry of the older version is cleared after that of the newer one is stored. If a block
//!   has two entries, the higher version counts.
//! - An entry is cleared when the device has completed the write of its block. Only then is its
//!   slot reused.
//! - A group's word is set after the group has its memory, and cleared before the memory is given
//!   back.
//!
//! A found cache is verified as a whole before any of it counts: one changed byte makes all of it
//! count as lost. Left out: which blocks are held, and when they leave (`state`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shoal_format::cache::{
    CACHE_ENTRY, CACHE_GROUP, CACHE_GROUP_INDEX, CACHE_GROUP_SLOTS, CACHE_GROUPS_MAX, CACHE_SLOT, CacheEntry,
    CacheHeader, cache_bytes, decode_group_word, entry_at, first_group_at, group_at, group_word, group_word_at,
    slot_at,
};
use shoal_media::{Lent, MediaError, PersistentMemory, Result};
use zerocopy::IntoBytes;

use crate::planted::{Bug, is_planted};

/// A block that was found in a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub block: u64,
    pub version: u64,
    /// When the block was first dirtied (ns since 1970).
    pub since_ns: u64,
    pub slot: u64,
}

/// Why a found cache is not this store's, or not whole.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CacheError {
    #[error("{0}")]
    Format(#[from] shoal_format::FormatError),
    #[error("it belongs to {0}")]
    Other(&'static str),
    #[error("the bytes of block {0} are not those that were stored")]
    Sum(u64),
    #[error(transparent)]
    Memory(#[from] MediaError),
}

/// Memory for held blocks, made new or found as an earlier process left it.
pub struct Cache {
    memory: Arc<dyn PersistentMemory>,
    identity: [u8; 16],
    groups: u64,
    found: Vec<Found>,
    /// Groups with memory.
    present: BTreeSet<u64>,
    survives_process: bool,
    /// Made by this process: no group had memory before.
    is_new: bool,
}

/// How long the memory of a cache lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until the process ends.
    Process,
    /// Until the machine is shut down: another process finds what this one left.
    Boot,
}

/// The store, the boot of the machine and the device that a cache belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub store: [u8; 16],
    pub boot_id: [u8; 16],
    pub device_bytes: u64,
}

impl Cache {
    /// Bytes of the memory for `held_bytes` of blocks.
    pub fn memory_bytes(held_bytes: u64) -> u64 {
        cache_bytes(Cache::groups_for(held_bytes))
    }

    fn groups_for(held_bytes: u64) -> u64 {
        (held_bytes / (CACHE_GROUP_SLOTS * CACHE_SLOT)).clamp(1, CACHE_GROUPS_MAX)
    }

    /// Makes a cache in memory of [`Cache::memory_bytes`] that reads as zeros. The header is stored
    /// last.
    pub fn create(
        memory: Arc<dyn PersistentMemory>,
        held_bytes: u64,
        owner: &Owner,
        identity: [u8; 16],
        lifetime: Lifetime,
    ) -> Result<Cache> {
        let groups = Cache::groups_for(held_bytes);
        memory.reserve(0, first_group_at(groups))?;
        let header = CacheHeader::new(owner.store, identity, owner.boot_id, groups, owner.device_bytes);
        memory.write(0, &header.encode());
        Ok(Cache {
            memory,
            identity,
            groups,
            found: Vec::new(),
            present: BTreeSet::new(),
            survives_process: lifetime == Lifetime::Boot,
            is_new: true,
        })
    }

    /// Opens and verifies the cache of `owner` that an earlier process left in `memory`.
    pub fn open(memory: Arc<dyn PersistentMemory>, owner: &Owner) -> std::result::Result<Cache, CacheError> {
        let mut bytes = [0; CacheHeader::BYTES];
        if memory.len() < bytes.len() as u64 {
            return Err(shoal_format::FormatError::Short {
                what: "write-back cache",
                expected: bytes.len(),
                found: memory.len() as usize,
            }
            .into());
        }
        memory.read(0, &mut bytes);
        let header = CacheHeader::decode(&bytes, memory.len())?;
        if header.store != owner.store {
            return Err(CacheError::Other("another store"));
        }
        if header.boot_id != owner.boot_id {
            return Err(CacheError::Other("an earlier boot of the machine"));
        }
        if header.device_bytes.get() > owner.device_bytes {
            return Err(CacheError::Other("a larger device"));
        }
        let groups = header.groups.get();
        let mut cache = Cache {
            memory,
            identity: header.identity,
            groups,
            found: Vec::new(),
            present: BTreeSet::new(),
            survives_process: true,
            is_new: false,
        };
        // The device of this name may have been smaller when the cache was made.
        cache.load(header.device_bytes.get().max(owner.device_bytes) / CACHE_SLOT)?;
        Ok(cache)
    }

    fn load(&mut self, blocks: u64) -> std::result::Result<(), CacheError> {
        let mut newest: BTreeMap<u64, Found> = BTreeMap::new();
        let mut index = vec![0; (CACHE_GROUP_SLOTS * CACHE_ENTRY) as usize];
        for group in 0..self.groups {
            if !decode_group_word(group, self.memory.read_u64(group_word_at(group)))? {
                continue;
            }
            // Reserve the group, so that no page of it is missing at the first access.
            self.memory.reserve(group_at(self.groups, group), CACHE_GROUP)?;
            self.present.insert(group);
            self.memory.read(group_at(self.groups, group), &mut index);
            for (at, bytes) in index.chunks_exact(CACHE_ENTRY as usize).enumerate() {
                let slot = group * CACHE_GROUP_SLOTS + at as u64;
                let Some((block, entry)) = CacheEntry::decode(&self.identity, slot, bytes)? else { continue };
                if block >= blocks {
                    return Err(CacheError::Other("a larger device"));
                }
                let found = Found { block, version: entry.version.get(), since_ns: entry.since_ns.get(), slot };
                let mut data = [0; CACHE_SLOT as usize];
                self.memory.read(slot_at(self.groups, slot), &mut data);
                if !entry.fits(&data) && !is_planted(Bug::SumsUnread) {
                    return Err(CacheError::Sum(block));
                }
                newest
                    .entry(block)
                    .and_modify(|other| {
                        if other.version < found.version {
                            *other = found;
                        }
                    })
                    .or_insert(found);
            }
        }
        self.found = newest.into_values().collect();
        Ok(())
    }

    /// Random number that tells this cache from every other.
    pub fn identity(&self) -> &[u8; 16] {
        &self.identity
    }

    /// Bytes of the found blocks.
    pub fn found_bytes(&self) -> u64 {
        self.found.len() as u64 * CACHE_SLOT
    }

    /// Bytes of a range of the device that were found in the cache.
    pub fn found_in(&self, at: u64, len: u64) -> u64 {
        let end = at + len;
        let first = self.found.partition_point(|found| (found.block + 1) * CACHE_SLOT <= at);
        let found = self.found[first..].iter().map(|found| found.block * CACHE_SLOT);
        let within = found.take_while(|&start| start < end);
        within.map(|start| (start + CACHE_SLOT).min(end) - start.max(at)).sum()
    }

    /// Lays the found blocks over bytes read from the device at `at`, for a caller that only reads.
    pub fn lay_over(&self, at: u64, out: &mut [u8]) {
        let end = at + out.len() as u64;
        let first = self.found.partition_point(|found| (found.block + 1) * CACHE_SLOT <= at);
        for found in self.found[first..].iter().take_while(|found| found.block * CACHE_SLOT < end) {
            let mut bytes = [0; CACHE_SLOT as usize];
            self.memory.read(slot_at(self.groups, found.slot), &mut bytes);
            let start = found.block * CACHE_SLOT;
            let (from, to) = (start.max(at), (start + CACHE_SLOT).min(end));
            out[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
    }

    pub(crate) fn survives_process(&self) -> bool {
        self.survives_process
    }

    pub(crate) fn into_slots(self) -> (Slots, Vec<Found>) {
        let Cache { memory, identity, groups, found, present, is_new, .. } = self;
        let taken: BTreeSet<u64> = found.iter().map(|found| found.slot).collect();
        let absent: BTreeSet<u64> = (0..groups).filter(|group| !present.contains(group)).collect();
        if !is_new {
            // Memory being taken or given back when the process ended belongs to no group. Nothing
            // else would give it back.
            absent.iter().for_each(|group| memory.discard(group_at(groups, *group), CACHE_GROUP));
        }
        let mut slots = Slots {
            memory,
            identity,
            groups,
            free: BTreeMap::new(),
            absent,
            free_count: 0,
            empty: 0,
            idle: 0,
            looked_ns: 0,
            taken: 0,
            most_taken: (0, 0),
            lacks_until_ns: 0,
            most: groups,
            copying: BTreeSet::new(),
            left: Vec::new(),
        };
        for group in present {
            let all = group * CACHE_GROUP_SLOTS..(group + 1) * CACHE_GROUP_SLOTS;
            for slot in all.rev().filter(|slot| !taken.contains(slot)) {
                // The slot may have the entry of an older version that a newer one has replaced.
                slots.clear(slot);
                slots.put_back(slot);
            }
        }
        (slots, found)
    }
}

/// Which slots are free.
pub(crate) struct Slots {
    memory: Arc<dyn PersistentMemory>,
    identity: [u8; 16],
    groups: u64,
    /// Free slots by group, of groups that have memory and a free slot.
    free: BTreeMap<u64, Vec<u64>>,
    /// Groups without memory.
    absent: BTreeSet<u64>,
    free_count: u64,
    /// Groups with memory and no taken slot, and the fewest of these since the look at `looked_ns`.
    empty: u64,
    idle: u64,
    looked_ns: u64,
    /// Slots taken since the last count, and the highest counts: between the last two looks, and
    /// since the last look.
    taken: u64,
    most_taken: (u64, u64),
    /// When a host that had no memory is asked again (ns).
    lacks_until_ns: u64,
    /// Maximum groups with memory: fewer than all if the host has little left for this process.
    most: u64,
    /// Slots whose bytes are being copied without the lock, and those of them that were freed meanwhile.
    copying: BTreeSet<u64>,
    left: Vec<u64>,
}

/// How long a host that had no memory is not asked again (ns).
const LACK_NS: u64 = 1_000_000_000;
/// Maximum slots that get memory ahead of demand.
const AHEAD_MAX: u64 = 8 * CACHE_GROUP_SLOTS;
/// How long unneeded memory is kept (ns).
const IDLE_NS: u64 = 1_000_000_000;
/// Bytes given back in one call, which occupies a processor and the file's lock for 0.05 ms.
const PIECE_BYTES: u64 = 64 << 10;

impl Slots {
    /// Groups that have memory.
    fn present(&self) -> u64 {
        self.groups - self.absent.len() as u64
    }

    /// Bytes of the groups that have memory.
    pub fn memory_bytes(&self) -> u64 {
        self.present() * CACHE_GROUP
    }

    /// Bytes of all groups, if all had memory.
    pub fn memory_bytes_max(&self) -> u64 {
        self.groups * CACHE_GROUP
    }

    /// Limits the memory of all groups together to `bytes`.
    pub fn set_memory(&mut self, bytes: u64) {
        self.most = (bytes / CACHE_GROUP).min(self.groups);
    }

    /// Groups with memory beyond the limit.
    pub fn excess(&self) -> u64 {
        self.present().saturating_sub(self.most)
    }

    /// Returns whether held blocks must leave before all excess memory can be given back.
    pub fn is_crowded(&self) -> bool {
        self.excess() > self.empty
    }

    /// The first of the groups to be emptied. Only the groups before it are still used.
    fn end(&self) -> u64 {
        match self.excess() {
            0 => self.groups,
            _ => (0..self.groups).filter(|group| !self.absent.contains(group)).nth(self.most as usize).unwrap_or(0),
        }
    }

    /// Slots that exist, or could be given memory.
    pub fn capacity(&self, now_ns: u64) -> u64 {
        match now_ns < self.lacks_until_ns {
            true => self.present().min(self.most) * CACHE_GROUP_SLOTS,
            false => self.most * CACHE_GROUP_SLOTS,
        }
    }

    /// Slots that can be taken now.
    pub fn available(&self, now_ns: u64) -> u64 {
        if self.excess() > 0 {
            return self.free.range(..self.end()).map(|(_, slots)| slots.len() as u64).sum();
        }
        let absent = if now_ns < self.lacks_until_ns { 0 } else { self.most - self.present() };
        self.free_count + absent * CACHE_GROUP_SLOTS
    }

    /// Takes `count` free slots, or none.
    pub fn take(&mut self, count: u64, now_ns: u64) -> Option<Vec<u64>> {
        if self.available(now_ns) < count {
            return None;
        }
        while self.free_count < count {
            if !self.grow(now_ns) {
                return None;
            }
        }
        let mut taken = Vec::with_capacity(count as usize);
        while (taken.len() as u64) < count {
            let mut group = self.free.first_entry().expect("as many are free");
            let slots = group.get_mut();
            self.empty -= u64::from(slots.len() as u64 == CACHE_GROUP_SLOTS);
            while (taken.len() as u64) < count
                && let Some(slot) = slots.pop()
            {
                taken.push(slot);
            }
            if slots.is_empty() {
                group.remove();
            }
        }
        self.free_count -= count;
        self.taken += count;
        self.idle = self.idle.min(self.empty);
        // Sort them, so that adjacent slots are written as one piece.
        taken.sort_unstable();
        Some(taken)
    }

    /// Takes memory for one more group.
    fn grow(&mut self, now_ns: u64) -> bool {
        let Some(group) = self.absent.pop_first() else { return false };
        let taken = self.bytes().take_memory(group);
        self.grown(group, taken, now_ns)
    }

    /// Counts the slots taken since the last call, since the next writes may need as many. Called
    /// many times a second.
    pub fn count_taken(&mut self) {
        self.most_taken.1 = self.most_taken.1.max(std::mem::take(&mut self.taken));
    }

    /// Slots to keep free ahead of demand: twice the highest recent count.
    fn ahead(&self) -> u64 {
        (2 * self.most_taken.0.max(self.most_taken.1)).min(AHEAD_MAX)
    }

    /// Takes a group that is to get memory ahead of demand ([`SlotBytes::take_memory`], then
    /// [`Slots::grown`]).
    pub fn next_ahead(&mut self, now_ns: u64) -> Option<u64> {
        let may = self.present() < self.most && now_ns >= self.lacks_until_ns;
        let is_due = self.free_count < self.ahead() && may;
        is_due.then(|| self.absent.pop_first()).flatten()
    }

    /// Records whether a group got memory (`taken`) or the host had none for it.
    pub fn grown(&mut self, group: u64, taken: bool, now_ns: u64) -> bool {
        if taken {
            self.memory.write_u64(group_word_at(group), group_word(group));
            for slot in (group * CACHE_GROUP_SLOTS..(group + 1) * CACHE_GROUP_SLOTS).rev() {
                self.put_back(slot);
            }
        } else {
            self.absent.insert(group);
            self.lacks_until_ns = now_ns + LACK_NS;
        }
        taken
    }

    fn put_back(&mut self, slot: u64) {
        let slots = self.free.entry(slot / CACHE_GROUP_SLOTS).or_default();
        slots.push(slot);
        self.empty += u64::from(slots.len() as u64 == CACHE_GROUP_SLOTS);
        self.free_count += 1;
    }

    /// Returns how many groups beyond `keep` have memory that was not needed for [`IDLE_NS`], or
    /// `None` until it is time for a look. Memory that is needed again and again stays: taking
    /// memory costs more than copying into it.
    pub fn idle_groups(&mut self, now_ns: u64, keep: u64) -> Option<u64> {
        if self.excess() > 0 {
            return Some(self.excess().min(self.empty));
        }
        if now_ns < self.looked_ns + IDLE_NS {
            return None;
        }
        let idle = std::mem::replace(&mut self.idle, self.empty);
        self.looked_ns = now_ns;
        self.most_taken = (self.most_taken.1, 0);
        Some(idle.saturating_sub(keep.max(self.ahead().div_ceil(CACHE_GROUP_SLOTS))))
    }

    /// Takes a group out of use, so that its memory can be given back ([`SlotBytes::discard`] to
    /// its end, then [`Slots::given_back`]).
    pub fn take_empty(&mut self) -> Option<u64> {
        let is_empty = |(group, slots): (&u64, &Vec<u64>)| (slots.len() as u64 == CACHE_GROUP_SLOTS).then_some(*group);
        // The first groups are the next to be used.
        let group = self.free.iter().rev().find_map(is_empty)?;
        self.free.remove(&group);
        self.free_count -= CACHE_GROUP_SLOTS;
        self.empty -= 1;
        self.idle = self.idle.min(self.empty);
        self.memory.write_u64(group_word_at(group), 0);
        Some(group)
    }

    /// Records that a group no longer has memory.
    pub fn given_back(&mut self, group: u64) {
        self.absent.insert(group);
    }

    /// Returns access to the slots' bytes, to store into taken slots and read held ones without the
    /// lock.
    pub fn bytes(&self) -> SlotBytes {
        SlotBytes { memory: self.memory.clone(), groups: self.groups }
    }

    /// Stores the entry of a slot whose bytes are stored. From now on the slot counts.
    pub fn publish(&self, slot: u64, block: u64, version: u64, since_ns: u64, sum: u64) {
        let entry = CacheEntry::new(&self.identity, slot, block, version, since_ns, sum);
        let at = entry_at(self.groups, slot);
        self.memory.write(at + 8, &entry.as_bytes()[8..]);
        // This store of one word comes last: it makes the entry count.
        self.memory.write_u64(at, entry.block.get());
    }

    fn clear(&self, slot: u64) {
        self.memory.write_u64(entry_at(self.groups, slot), 0);
    }

    /// Frees a slot whose block is on the device, or has a newer version in another slot.
    pub fn free(&mut self, slot: u64) {
        self.clear(slot);
        self.reuse(slot);
    }

    /// Gives back a taken slot that has no entry.
    pub fn reuse(&mut self, slot: u64) {
        match self.copying.contains(&slot) {
            true => self.left.push(slot),
            false => self.put_back(slot),
        }
    }

    /// Marks a slot whose bytes are copied or written without the lock, until [`Slots::copied`].
    pub fn copying(&mut self, slot: u64) {
        self.copying.insert(slot);
    }

    pub fn copied(&mut self, slots: impl IntoIterator<Item = u64>) {
        for slot in slots {
            self.copying.remove(&slot);
        }
        let (left, still): (Vec<u64>, Vec<u64>) =
            std::mem::take(&mut self.left).into_iter().partition(|slot| !self.copying.contains(slot));
        self.left = still;
        left.into_iter().for_each(|slot| self.put_back(slot));
    }
}

/// The bytes of slots.
#[derive(Clone)]
pub(crate) struct SlotBytes {
    memory: Arc<dyn PersistentMemory>,
    groups: u64,
}

impl SlotBytes {
    pub fn write(&self, slot: u64, bytes: &[u8]) {
        self.memory.write(slot_at(self.groups, slot), bytes);
    }

    /// Stores the bytes of several blocks. Adjacent slots are written as one piece.
    pub fn write_all(&self, slots: &[u64], bytes: &[u8]) {
        let lie_together = |a: &u64, b: &u64| slot_at(self.groups, *b) == slot_at(self.groups, *a) + CACHE_SLOT;
        let mut rest = bytes;
        for run in slots.chunk_by(lie_together) {
            let (piece, behind) = rest.split_at(run.len() * CACHE_SLOT as usize);
            self.write(run[0], piece);
            rest = behind;
        }
    }

    /// Takes memory for a group that is out of use. Returns false if the host has none. This is
    /// slow, so it is done without the lock where possible.
    pub fn take_memory(&self, group: u64) -> bool {
        let at = group_at(self.groups, group);
        if !self.memory.may_take(CACHE_GROUP) || self.memory.reserve(at, CACHE_GROUP).is_err() {
            return false;
        }
        if !is_planted(Bug::StaleGroup) {
            // Entries of an earlier use would count if the memory was not really given back.
            self.memory.zero(at, CACHE_GROUP_INDEX);
        }
        true
    }

    /// Gives back the next piece of the memory of a group that is out of use, after `done` bytes of
    /// it. Returns how many bytes are then given back, or `None` after the last piece. This is
    /// slow, so it is done without the lock.
    pub fn discard(&self, group: u64, done: u64) -> Option<u64> {
        let len = PIECE_BYTES.min(CACHE_GROUP - done);
        self.memory.discard(group_at(self.groups, group) + done, len);
        Some(done + len).filter(|&done| done < CACHE_GROUP)
    }

    /// Lends the bytes of slots, which stay as they are until [`Slots::copied`].
    pub fn lend(&self, slots: impl Iterator<Item = u64>) -> Lent {
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        for slot in slots {
            let at = slot_at(self.groups, slot);
            match pieces.last_mut().filter(|(from, len)| from + len == at) {
                Some((_, len)) => *len += CACHE_SLOT,
                None => pieces.push((at, CACHE_SLOT)),
            }
        }
        Lent { memory: self.memory.clone(), pieces }
    }

    pub fn read(&self, slot: u64, out: &mut [u8]) {
        self.memory.read(slot_at(self.groups, slot), out);
    }
}
