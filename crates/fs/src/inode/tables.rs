//! The tables that packed blocks are decoded with: profiles, and the triplets that codes name by an index.
//!
//! Owns: the two copies in the region ([`shoal_format::packed`]), what is read from them when the
//! store is opened, and the counts of users. Rules: profiles never change while a block is packed;
//! a count changes in the transaction that packs or unpacks the block, in both copies; an index
//! gets its triplet before the block that names it can be read, and loses it after that block is
//! gone. Lock order: `changing` before the region's commit lock; `decoder` under either, and never
//! across a commit, because a reader may hold the commit lock ([`Region::while_still`]).
//! A part that is damaged in one copy is taken from the other. Damaged copies are rewritten before
//! the next block is packed.

use std::collections::HashMap;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use shoal_format::packed::{InodeTables, TRIPLET_RECORD, TRIPLETS_MAX, TripletRecord};
use shoal_format::superblock::{ROOTS_AT, Roots};
use shoal_format::{Offset, SlotRef};
use shoal_pack::{Hybrid, ProfileFile, Triplet, Triplets};
use shoal_region::{Region, Tx, Victims, View};
use zerocopy::IntoBytes;

use super::load_roots;
use crate::planted::{Bug, is_planted};
use crate::{Error, Result};

/// Triplets that the first tables have room for.
const TRIPLETS_FIRST: u32 = 64;
/// Room for the triplets of one block, which may all be new.
const TRIPLETS_OF_BLOCK: u32 = 16;
/// Tables longer than this (bytes) do not grow: both copies go into one record.
const TABLES_MAX: u64 = 256 << 10;

/// What decoding depends on besides the block.
#[derive(Default)]
pub(crate) struct Decoder {
    pub profiles: Vec<Hybrid>,
    pub triplets: Triplets,
}

/// Where the tables are.
struct Stored {
    copies: [SlotRef; 2],
    profile: Vec<u8>,
    /// Triplets there is room for.
    capacity: u32,
    /// A copy differs from what was read: both must be rewritten.
    is_damaged: bool,
}

impl Stored {
    fn entry_at(&self, copy: SlotRef, index: u16) -> Offset {
        copy.offset() + InodeTables::triplets_at(self.profile.len() as u64) + u64::from(index) * TRIPLET_RECORD as u64
    }

    /// Returns the bytes of a copy with room for `capacity` triplets.
    fn bytes(&self, capacity: u32, triplets: &Triplets) -> Result<Vec<u8>> {
        let mut bytes = InodeTables::new(&self.profile, capacity)?.as_bytes().to_vec();
        bytes.extend(&self.profile);
        let first = InodeTables::triplets_at(self.profile.len() as u64) as usize;
        bytes.resize(InodeTables::total(self.profile.len() as u64, capacity) as usize, 0);
        for (index, triplet, users) in triplets.entries() {
            let at = first + usize::from(index) * TRIPLET_RECORD;
            bytes[at..at + TRIPLET_RECORD].copy_from_slice(&record(triplet, users));
        }
        Ok(bytes)
    }
}

fn record(triplet: Triplet, users: u64) -> [u8; TRIPLET_RECORD] {
    if users == 0 {
        return [0; TRIPLET_RECORD];
    }
    TripletRecord::encode(triplet.uid, triplet.gid, triplet.mode, users)
}

#[derive(Default)]
pub(crate) struct PackedTables {
    changing: Mutex<Option<Stored>>,
    decoder: RwLock<Decoder>,
    /// No copy can be read: no other tables may be made beside them.
    is_lost: bool,
}

/// A copy, as far as it can be read.
struct Copy {
    profile: Vec<u8>,
    profiles: Vec<Hybrid>,
    /// By index: a triplet and its users, or none. Damage is an error.
    entries: Vec<std::result::Result<Option<(Triplet, u64)>, shoal_format::FormatError>>,
}

impl Copy {
    fn read(view: &impl View, bits: u64) -> Result<(SlotRef, Copy)> {
        let damaged = |what: &str| Error::Corrupt(what.to_string());
        let slot = SlotRef::from_bits(bits).filter(|slot| !slot.is_none()).ok_or_else(|| damaged("its reference"))?;
        let bytes = view.read_vec(slot.offset(), slot.capacity() as usize)?;
        let (_, profile, triplets) = InodeTables::decode(&bytes)?;
        let profiles = ProfileFile::from_bytes(profile)?.into_hybrids().filter(|all| !all.is_empty());
        let profiles = profiles.ok_or_else(|| damaged("profiles of another kind"))?;
        let entries = triplets.chunks_exact(TRIPLET_RECORD).map(|bytes| {
            let found = TripletRecord::decode(bytes.try_into().expect("chunk size"))?;
            Ok(found.map(|r| (Triplet { uid: r.uid.get(), gid: r.gid.get(), mode: r.mode.get() }, r.users.get())))
        });
        Ok((slot, Copy { profile: profile.to_vec(), profiles, entries: entries.collect() }))
    }
}

impl PackedTables {
    /// Reads the tables and reports damage to `tell`. What is in neither copy is missing, and the
    /// blocks that need it do not decode.
    pub fn load(view: &impl View, roots: &Roots, tell: &dyn Fn(&str)) -> PackedTables {
        let bits = roots.inode_tables.map(|bits| bits.get());
        if bits == [0, 0] {
            return PackedTables::default();
        }
        let mut copies = Vec::new();
        for (number, bits) in bits.into_iter().enumerate() {
            match Copy::read(view, bits) {
                Ok((slot, copy)) => copies.push((slot, copy)),
                Err(error) => {
                    tell(&format!("copy {number} of the tables of packed inodes: {error}; run `shoal check`"))
                }
            }
        }
        let is_whole = copies.len() == 2;
        let Some((first, copy)) = copies.first() else {
            return PackedTables { is_lost: true, ..PackedTables::default() };
        };
        let mut is_damaged = !is_whole;
        let mut entries = Vec::new();
        for (index, entry) in copy.entries.iter().enumerate() {
            let other = copies.get(1).and_then(|(_, other)| other.entries.get(index));
            let found = match (entry, other) {
                (Ok(entry), None | Some(Ok(_))) => entry,
                (Ok(entry), Some(Err(_))) | (Err(_), Some(Ok(entry))) => {
                    is_damaged = true;
                    tell(&format!("triplet {index} in one copy of the tables of packed inodes; run `shoal check`"));
                    entry
                }
                (Err(error), _) => {
                    is_damaged = true;
                    tell(&format!("triplet {index} of the tables of packed inodes: {error}; run `shoal check`"));
                    &None
                }
            };
            entries.extend(found.map(|(triplet, users)| (index as u16, triplet, users)));
        }
        let triplets = Triplets::restore(entries).unwrap_or_else(|| {
            tell("the triplets of packed inodes contradict each other; run `shoal check`");
            is_damaged = true;
            Triplets::new()
        });
        // A damaged copy keeps its slot until both are rewritten, unless its reference is what is
        // damaged.
        let fits = |bits| SlotRef::from_bits(bits).filter(|slot| slot.capacity() == first.capacity());
        let stored = Stored {
            copies: bits.map(|bits| fits(bits).unwrap_or_default()),
            profile: copy.profile.clone(),
            capacity: copy.entries.len() as u32,
            is_damaged,
        };
        PackedTables {
            changing: Mutex::new(Some(stored)),
            decoder: RwLock::new(Decoder { profiles: copy.profiles.clone(), triplets }),
            is_lost: false,
        }
    }

    /// Returns whether there are tables, readable or not.
    pub fn exist(&self) -> bool {
        self.is_lost || self.changing.lock().is_some()
    }

    /// Returns the profiles as they are stored.
    pub fn profiles(&self) -> Option<ProfileFile> {
        ProfileFile::from_bytes(&self.changing.lock().as_ref()?.profile).ok()
    }

    /// Returns what to decode with. Blocks must not change their form under a reader that uses it
    /// (see `packed`).
    pub fn decoder(&self) -> RwLockReadGuard<'_, Decoder> {
        self.decoder.read()
    }

    /// Makes the tables ready for one more block: they exist, are whole and have room. Returns
    /// false if that is impossible. The caller holds the lock under which roots change. `profile`
    /// is stored if there are no tables yet.
    pub fn prepare(&self, region: &Region, profile: impl FnOnce() -> ProfileFile) -> Result<bool> {
        if self.is_lost {
            return Ok(false);
        }
        let mut changing = self.changing.lock();
        let old = match &mut *changing {
            Some(stored) => {
                let free = stored.capacity - self.decoder.read().triplets.len() as u32;
                let capacity = (stored.capacity * 2).min(TRIPLETS_MAX);
                let is_small = InodeTables::total(stored.profile.len() as u64, capacity) * 2 <= TABLES_MAX;
                let grows = free < TRIPLETS_OF_BLOCK && capacity > stored.capacity && is_small;
                if !grows && !stored.is_damaged {
                    return Ok(true);
                }
                let capacity = if grows { capacity } else { stored.capacity };
                let copies = stored.copies;
                stored.capacity = capacity;
                copies
            }
            None => {
                let file = profile();
                let profile = file.to_bytes();
                let Some(profiles) = file.into_hybrids().filter(|all| !all.is_empty()) else {
                    return Ok(false);
                };
                *self.decoder.write() = Decoder { profiles, triplets: Triplets::new() };
                let copies = [SlotRef::NONE; 2];
                *changing = Some(Stored { copies, profile, capacity: TRIPLETS_FIRST, is_damaged: false });
                copies
            }
        };
        let stored = changing.as_mut().expect("there are tables");
        let mut outcome = self.write_anew(region.begin(), stored, old);
        if matches!(outcome, Err(Error::NoSpace(_))) && region.has_half_reserve() {
            outcome = self.write_anew(region.begin_reclaim(), stored, old);
        }
        if outcome.is_err() {
            if old == [SlotRef::NONE; 2] {
                *changing = None;
            } else if let Some(stored) = &mut *changing {
                // Fall back to the room that there is.
                stored.capacity = self.capacity_of(stored);
            }
        }
        outcome.map(|()| true)
    }

    /// Rewrites both copies with these users. The caller holds the lock under which roots change,
    /// and nobody else uses the store.
    pub fn rewrite(&self, region: &Region, users: &[Triplet]) -> Result<()> {
        {
            let mut changing = self.changing.lock();
            let Some(stored) = changing.as_mut() else { return Ok(()) };
            stored.is_damaged = true;
            let mut decoder = self.decoder.write();
            let mut counts: HashMap<Triplet, u64> = HashMap::new();
            users.iter().for_each(|triplet| *counts.entry(*triplet).or_default() += 1);
            let entries = decoder.triplets.entries();
            let counted: Vec<_> =
                entries.filter_map(|(index, triplet, _)| Some((index, triplet, *counts.get(&triplet)?))).collect();
            decoder.triplets = Triplets::restore(counted).unwrap_or_default();
        }
        self.prepare(region, ProfileFile::built_in).map(drop)
    }

    fn capacity_of(&self, stored: &Stored) -> u32 {
        let bytes = stored.copies[0].capacity().saturating_sub(InodeTables::triplets_at(stored.profile.len() as u64));
        let least = self.decoder.read().triplets.entries().map(|(index, ..)| u32::from(index) + 1).max().unwrap_or(0);
        ((bytes / TRIPLET_RECORD as u64) as u32 / 2).max(least).min(stored.capacity)
    }

    fn write_anew(&self, mut tx: Tx<'_>, stored: &mut Stored, old: [SlotRef; 2]) -> Result<()> {
        let bytes = stored.bytes(stored.capacity, &self.decoder.read().triplets)?;
        let mut copies = [SlotRef::NONE; 2];
        for copy in &mut copies {
            *copy = tx.alloc(bytes.len() as u64)?;
            tx.write(copy.offset(), &bytes)?;
        }
        for slot in old {
            tx.free(slot)?;
        }
        let mut roots = load_roots(&tx)?;
        roots.inode_tables = copies.map(|copy| copy.bits().into());
        tx.write(ROOTS_AT, roots.as_bytes())?;
        tx.commit()?;
        (stored.copies, stored.is_damaged) = (copies, false);
        Ok(())
    }

    /// Moves the copies out of draining segments; returns whether one was moved. The caller holds
    /// the lock under which roots change.
    pub fn move_copies(&self, region: &Region, victims: &Victims) -> Result<bool> {
        let mut changing = self.changing.lock();
        let Some(stored) = changing.as_mut().filter(|s| s.copies.iter().any(|copy| victims.contains(*copy))) else {
            return Ok(false);
        };
        let mut tx = region.begin_reclaim();
        let mut copies = stored.copies;
        for copy in copies.iter_mut().filter(|copy| victims.contains(**copy)) {
            let Some(new) = tx.relocate(*copy)? else { return Ok(false) };
            *copy = new;
        }
        let mut roots = load_roots(&tx)?;
        roots.inode_tables = copies.map(|copy| copy.bits().into());
        tx.write(ROOTS_AT, roots.as_bytes())?;
        tx.commit()?;
        stored.copies = copies;
        Ok(true)
    }

    /// Begins a change of counts; others wait until it is dropped.
    pub fn change(&self) -> Change<'_> {
        Change { stored: self.changing.lock(), tables: self, taken: Vec::new(), leaving: Vec::new() }
    }
}

/// A change of counts, to be written within the transaction that packs or unpacks a block. Dropping
/// it without [`Change::committed`] undoes it.
pub(crate) struct Change<'a> {
    stored: MutexGuard<'a, Option<Stored>>,
    tables: &'a PackedTables,
    /// Triplets that got a user, and those that are to lose one, each as often as that happens.
    taken: Vec<Triplet>,
    leaving: Vec<Triplet>,
}

impl Change<'_> {
    /// Returns whether there are tables that counts can be written to.
    pub fn has_tables(&self) -> bool {
        self.stored.is_some()
    }

    /// Adds a user to a triplet, which has an index from now on unless the table is full.
    pub fn acquire(&mut self, triplet: Triplet) {
        let Some(stored) = &*self.stored else { return };
        let mut decoder = self.tables.decoder.write();
        match decoder.triplets.acquire(triplet) {
            Some(index) if u32::from(index) < stored.capacity => self.taken.push(triplet),
            Some(_) => drop(decoder.triplets.release(triplet)),
            None => {}
        }
    }

    /// Takes back all added users except these.
    pub fn keep(&mut self, mut used: Vec<Triplet>) {
        let mut decoder = self.tables.decoder.write();
        self.taken.retain(|triplet| {
            if let Some(place) = used.iter().position(|kept| kept == triplet) {
                used.swap_remove(place);
                return true;
            }
            decoder.triplets.release(*triplet);
            false
        });
    }

    /// Takes a user from a triplet once the change is committed.
    pub fn release(&mut self, triplet: Triplet) {
        if !is_planted(Bug::TripletsStay) {
            self.leaving.push(triplet);
        }
    }

    /// Writes the counts as they will be after the commit.
    pub fn write(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(stored) = &*self.stored else { return Ok(()) };
        let mut touched: Vec<Triplet> = self.taken.iter().chain(&self.leaving).copied().collect();
        touched.sort_unstable();
        touched.dedup();
        let decoder = self.tables.decoder.read();
        for triplet in touched {
            let Some(index) = decoder.triplets.find(triplet) else { continue };
            let leaving = self.leaving.iter().filter(|left| **left == triplet).count() as u64;
            let record = record(triplet, decoder.triplets.users(triplet).saturating_sub(leaving));
            for copy in stored.copies.iter().filter(|copy| !copy.is_none()) {
                tx.write(stored.entry_at(*copy, index), &record)?;
            }
        }
        Ok(())
    }

    /// Ends the change after its transaction was committed.
    pub fn committed(mut self) {
        self.taken.clear();
        let mut decoder = self.tables.decoder.write();
        for triplet in self.leaving.drain(..) {
            decoder.triplets.release(triplet);
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if !self.taken.is_empty() {
            let mut decoder = self.tables.decoder.write();
            for triplet in self.taken.drain(..) {
                decoder.triplets.release(triplet);
            }
        }
    }
}
