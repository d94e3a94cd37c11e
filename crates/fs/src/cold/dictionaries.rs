//! The dictionaries of short packed files: kept, given out, replaced and forgotten (docs/spec/region.md, section 7).
//!
//! Owns: the list and the dictionaries in the region, two copies of each, and the bytes in memory.
//! Rules: a dictionary never changes, and its number is never given again; only the newest one gets
//! new users, so an old one without users in a search of all files stays without users; what is
//! damaged in one copy is rewritten from the other. A dictionary that is lost in both copies stays
//! in the list, because files name it. A lost list is not replaced.
//! Lock order: the lock under which roots change, `stored`, the commit lock. Left out: when a
//! dictionary is trained (`training`).

use std::mem::offset_of;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use shoal_format::dictionary::{
    DICTIONARIES_MAX, DICTIONARY_BYTES_MAX, DICTIONARY_LIST, DICTIONARY_LIST_MAGIC, DictionaryHead, DictionaryList,
    Listed,
};
use shoal_format::superblock::{FEATURE_DICTIONARIES, ROOTS_AT, Roots};
use shoal_format::{Offset, SlotRef};
use shoal_pack::Dictionary;
use shoal_region::{Region, Tx, Victims, View};

use crate::rooms::Cooling;
use crate::{Error, Result};

/// Where the references to the lists are.
const LISTS_AT: Offset = Offset::new(ROOTS_AT.get() + offset_of!(Roots, dictionaries) as u64);

#[derive(Default)]
pub(crate) struct Dictionaries {
    stored: Mutex<Stored>,
    /// Dictionaries that can be read, the newest first.
    known: RwLock<Vec<Arc<Dictionary>>>,
}

#[derive(Default)]
struct Stored {
    lists: [SlotRef; 2],
    listed: Vec<Listed>,
    /// Copies that differ from what was read.
    damaged: Vec<Damaged>,
    /// Neither list can be read: no other may be made beside them.
    is_lost: bool,
}

enum Damaged {
    /// Which list, and its slot if something like a list lies there.
    List(usize, Option<SlotRef>),
    /// A copy of a dictionary: its number, and which copy.
    Copy(u16, usize),
}

fn read_list(view: &impl View, bits: u64) -> Result<(SlotRef, Vec<Listed>)> {
    let slot = SlotRef::from_bits(bits).filter(|slot| !slot.is_none() && !slot.is_run());
    let slot = slot.ok_or_else(|| Error::Corrupt("its reference".into()))?;
    let bytes = view.read_vec(slot.offset(), (slot.capacity() as usize).min(DICTIONARY_LIST))?;
    Ok((slot, DictionaryList::decode(&bytes)?))
}

/// Returns whether something like a list lies there. Then the reference is not what is damaged.
fn is_list(view: &impl View, slot: SlotRef) -> bool {
    !slot.is_none() && !slot.is_run() && view.read_u64(slot.offset()).is_ok_and(|magic| magic == DICTIONARY_LIST_MAGIC)
}

fn read_dictionary(view: &impl View, slot: SlotRef, number: u16) -> Result<Vec<u8>> {
    let stored = view.read_vec(slot.offset(), slot.capacity() as usize)?;
    match DictionaryHead::decode(&stored)? {
        (found, bytes) if found == number => Ok(bytes.to_vec()),
        (found, _) => Err(Error::Corrupt(format!("its number is {found}"))),
    }
}

impl Dictionaries {
    /// Reads the dictionaries and reports damage to `tell`. Files whose dictionary is in neither
    /// copy cannot be read.
    pub fn load(view: &impl View, roots: &Roots, tell: &dyn Fn(&str)) -> Dictionaries {
        let bits = roots.dictionaries.map(|bits| bits.get());
        if bits == [0, 0] {
            return Dictionaries::default();
        }
        let mut stored = Stored::default();
        let mut found: Option<Vec<Listed>> = None;
        for (copy, bits) in bits.into_iter().enumerate() {
            match read_list(view, bits) {
                Ok((slot, listed)) => {
                    stored.lists[copy] = slot;
                    found.get_or_insert(listed);
                }
                Err(error) => {
                    tell(&format!("copy {copy} of the list of dictionaries: {error}; run `shoal check`"));
                    stored
                        .damaged
                        .push(Damaged::List(copy, SlotRef::from_bits(bits).filter(|slot| is_list(view, *slot))));
                }
            }
        }
        stored.is_lost = found.is_none();
        stored.listed = found.unwrap_or_default();
        let mut known = Vec::new();
        for listed in &stored.listed {
            let mut bytes = None;
            for (copy, slot) in listed.copies.into_iter().enumerate() {
                match read_dictionary(view, slot, listed.number) {
                    Ok(found) => drop(bytes.get_or_insert(found)),
                    Err(error) => {
                        tell(&format!("copy {copy} of dictionary {}: {error}; run `shoal check`", listed.number));
                        stored.damaged.push(Damaged::Copy(listed.number, copy));
                    }
                }
            }
            known.extend(bytes.map(|bytes| Arc::new(Dictionary { number: listed.number, bytes })));
        }
        Dictionaries { stored: Mutex::new(stored), known: RwLock::new(known) }
    }

    /// Returns the dictionary with this number, if it is there and can be read.
    pub fn find(&self, number: u16) -> Option<Arc<Dictionary>> {
        self.known.read().iter().find(|known| known.number == number).cloned()
    }

    /// Returns the dictionary that new objects get.
    pub fn newest(&self) -> Option<Arc<Dictionary>> {
        let newest = self.stored.lock().listed.first()?.number;
        self.find(newest)
    }

    /// Returns the numbers of all dictionaries but the newest.
    pub fn old(&self) -> Vec<u16> {
        self.stored.lock().listed.iter().skip(1).map(|listed| listed.number).collect()
    }

    /// Returns how many dictionaries there are, and the bytes of the region that they and their
    /// lists take.
    pub fn stored(&self) -> (u64, u64) {
        let stored = self.stored.lock();
        let slots = stored.listed.iter().flat_map(|listed| listed.copies).chain(stored.lists);
        (stored.listed.len() as u64, slots.map(SlotRef::capacity).sum())
    }

    /// Returns whether another dictionary may be added.
    pub fn has_place(&self) -> bool {
        self.stored.lock().has_place()
    }

    /// Rewrites what is damaged in one copy from the other. The caller holds the lock under which
    /// roots change.
    fn mend(&self, region: &Region) -> Result<()> {
        let mut stored = self.stored.lock();
        if stored.is_lost || stored.damaged.is_empty() {
            return Ok(());
        }
        let mut left = Vec::new();
        for damaged in std::mem::take(&mut stored.damaged) {
            let mut tx = region.begin_reclaim();
            match damaged {
                Damaged::List(copy, place) => {
                    stored.lists[copy] = place.unwrap_or_default();
                    let lists = write_lists(&mut tx, stored.lists, &stored.listed)?;
                    tx.commit()?;
                    stored.lists = lists;
                }
                Damaged::Copy(number, copy) => {
                    let listed = stored.listed.iter().find(|listed| listed.number == number);
                    match (listed, self.find(number)) {
                        (Some(listed), Some(dictionary)) => {
                            let bytes = DictionaryHead::encode(number, &dictionary.bytes);
                            tx.write(listed.copies[copy].offset(), &bytes)?;
                            tx.commit()?;
                        }
                        _ => left.push(Damaged::Copy(number, copy)),
                    }
                }
            }
        }
        stored.damaged = left;
        Ok(())
    }

    /// Adds a dictionary, which is the newest from now on. The caller holds the lock under which roots change.
    fn add(&self, region: &Region, bytes: Vec<u8>) -> Result<()> {
        let mut stored = self.stored.lock();
        let number = stored.next_number().filter(|_| stored.has_place()).ok_or(Error::NO_SPACE)?;
        let whole = DictionaryHead::encode(number, &bytes);
        let mut tx = region.begin();
        let mut copies = [SlotRef::NONE; 2];
        for copy in &mut copies {
            *copy = tx.alloc(whole.len() as u64)?;
            tx.write(copy.offset(), &whole)?;
        }
        let mut listed = vec![Listed { number, copies }];
        listed.extend(&stored.listed);
        let lists = write_lists(&mut tx, stored.lists, &listed)?;
        tx.commit()?;
        (stored.lists, stored.listed) = (lists, listed);
        self.known.write().insert(0, Arc::new(Dictionary { number, bytes }));
        Ok(())
    }

    /// Forgets old dictionaries that no file names. The caller holds the lock under which roots
    /// change.
    fn forget(&self, region: &Region, idle: &[u16]) -> Result<()> {
        let mut stored = self.stored.lock();
        let (gone, listed): (Vec<Listed>, Vec<Listed>) =
            stored.listed.iter().partition(|listed| idle.contains(&listed.number));
        let mut tx = region.begin_reclaim();
        for slot in gone.iter().flat_map(|listed| listed.copies) {
            tx.free(slot)?;
        }
        let lists = write_lists(&mut tx, stored.lists, &listed)?;
        tx.commit()?;
        self.known.write().retain(|known| !idle.contains(&known.number));
        (stored.lists, stored.listed) = (lists, listed);
        Ok(())
    }

    /// Moves what lies in draining segments; returns whether anything moved. The caller holds the
    /// lock under which roots change.
    fn move_copies(&self, region: &Region, victims: &Victims) -> Result<bool> {
        let mut stored = self.stored.lock();
        let (mut lists, mut listed) = (stored.lists, stored.listed.clone());
        let mut tx = region.begin_reclaim();
        let mut moved = false;
        let slots = listed.iter_mut().flat_map(|listed| &mut listed.copies).chain(&mut lists);
        for slot in slots.filter(|slot| victims.contains(**slot)) {
            if let Some(new) = tx.relocate(*slot)? {
                (*slot, moved) = (new, true);
            }
        }
        if moved {
            for list in lists.iter().filter(|list| !list.is_none()) {
                tx.write(list.offset(), &DictionaryList::encode(&listed))?;
            }
            refer_to(&mut tx, &lists)?;
            tx.commit()?;
            (stored.lists, stored.listed) = (lists, listed);
        }
        Ok(moved)
    }
}

impl Stored {
    fn has_place(&self) -> bool {
        !self.is_lost && self.listed.len() < DICTIONARIES_MAX && self.next_number().is_some()
    }

    fn next_number(&self) -> Option<u16> {
        self.listed.first().map_or(Some(1), |newest| newest.number.checked_add(1))
    }
}

/// Writes both lists, each in its place if it has one.
fn write_lists(tx: &mut Tx<'_>, mut lists: [SlotRef; 2], listed: &[Listed]) -> Result<[SlotRef; 2]> {
    for list in &mut lists {
        if list.is_none() {
            *list = tx.alloc(DICTIONARY_LIST as u64)?;
        }
        tx.write(list.offset(), &DictionaryList::encode(listed))?;
    }
    refer_to(tx, &lists)?;
    Ok(lists)
}

/// Writes the references to the lists. Those of lists that could not be read stay as they are.
fn refer_to(tx: &mut Tx<'_>, lists: &[SlotRef; 2]) -> Result<()> {
    for (copy, list) in lists.iter().enumerate().filter(|(_, list)| !list.is_none()) {
        tx.write(LISTS_AT + copy as u64 * 8, &list.bits().to_le_bytes())?;
    }
    Ok(())
}

impl<'a> Cooling<'a> {
    /// Adds a dictionary, bytes that zstd takes for one, for short files that are packed from now
    /// on. Fails with [`Error::Invalid`] if it is empty or longer than [`DICTIONARY_BYTES_MAX`],
    /// and with [`Error::NoSpace`] if there are as many as a store may have.
    pub fn add_dictionary(self, bytes: Vec<u8>) -> Result<()> {
        self.fs.writable()?;
        if bytes.is_empty() || bytes.len() > DICTIONARY_BYTES_MAX {
            return Err(Error::Invalid);
        }
        self.repair_dictionaries()?;
        if !self.fs.objects.dictionaries.has_place() {
            return Err(Error::NO_SPACE);
        }
        // No locks are held: on an older store this writes an image.
        self.fs.region.add_feature(FEATURE_DICTIONARIES)?;
        self.fs.table.while_roots_stay(|| self.fs.objects.dictionaries.add(&self.fs.region, bytes))
    }

    /// Forgets old dictionaries that no file names.
    pub(crate) fn forget_dictionaries(self, idle: &[u16]) -> Result<()> {
        self.repair_dictionaries()?;
        self.fs.table.while_roots_stay(|| self.fs.objects.dictionaries.forget(&self.fs.region, idle))
    }

    pub(crate) fn move_dictionaries(self, victims: &Victims) -> Result<bool> {
        self.fs.table.while_roots_stay(|| self.fs.objects.dictionaries.move_copies(&self.fs.region, victims))
    }

    /// Rewrites the lists and dictionaries that are damaged in one copy.
    pub fn repair_dictionaries(self) -> Result<()> {
        self.fs.table.while_roots_stay(|| self.fs.objects.dictionaries.mend(&self.fs.region))
    }
}
