//! Inode blocks of a damaged store, plain and packed: their records, and blocks that the table does
//! not reach.
//!
//! Rules: a record that decodes counts, whatever surrounds it. A stray block must look like an
//! inode block: most records of a plain block decode; a packed block has the right checksum and all
//! of its records decode.

use std::collections::HashSet;

use shoal_format::inode::{INODE_BLOCK, INODE_RECORD, INODES_PER_BLOCK, Ino, Inode, InodeSlot};
use shoal_format::segment::{SEGMENT_ENTRY, SegmentEntry, SegmentUse};
use shoal_format::slot::{CLASS_SIZES, class_for, class_geometry};
use shoal_format::superblock::Roots;
use shoal_format::{Offset, SEGMENT, SlotRef};

use super::Walk;
use crate::CheckError;
use crate::dictionaries::Dictionaries;
use crate::packed::{self, Tables};

/// The class of plain blocks. Packed blocks have lower classes.
const BLOCK_CLASS: u8 = match class_for(INODE_BLOCK) {
    Some(class) => class,
    None => panic!("blocks are slots"),
};

/// Location of a record.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Plain(Offset),
    /// A record's place in a packed block.
    Packed(SlotRef, usize),
}

/// Returns the location of a record of a block.
pub(super) fn place_in(block: SlotRef, place: usize) -> Place {
    match block.capacity() {
        INODE_BLOCK => Place::Plain(block.offset() + (place * INODE_RECORD) as u64),
        _ => Place::Packed(block, place),
    }
}

impl Walk<'_, '_> {
    /// Reads the tables of packed blocks and the dictionaries, each from whichever copies have
    /// them.
    pub(super) fn read_tables(&mut self, roots: &Roots) -> Result<(), CheckError> {
        let slots = packed::copies(roots).into_iter().flatten().filter(|slot| self.fits(*slot));
        let (mut found, mut defects) = (Vec::new(), Vec::new());
        for slot in slots {
            found.push((slot.offset().get(), self.piece(slot)?));
        }
        let has_tables = !found.is_empty();
        self.tables = Tables::read(found, &mut defects);
        if has_tables && self.tables.is_empty() {
            self.lost(None, None, "neither copy of the tables of packed inodes can be read".into());
        }
        let mut piece = |slot: SlotRef, _: &str| if self.fits(slot) { self.piece(slot).map(Some) } else { Ok(None) };
        // Each file whose dictionary is lost is named later.
        self.dictionaries = Dictionaries::read(roots, &mut piece, &mut Vec::new())?;
        Ok(())
    }

    /// Returns the inode whose record lies at `place`, if it is in use and decodes.
    pub(super) fn inode(&self, place: Place) -> Result<Option<Inode>, CheckError> {
        let slot = match place {
            Place::Plain(at) => {
                let mut record = [0; INODE_RECORD];
                self.read(at, &mut record)?;
                Inode::decode(&record).ok()
            }
            Place::Packed(slot, at) => {
                let records = self.tables.block(&self.piece(slot)?).ok();
                records.and_then(|records| records.into_iter().nth(at)?.ok()).map(|record| record.slot)
            }
        };
        Ok(slot.and_then(|slot| if let InodeSlot::Used(inode) = slot { Some(inode) } else { None }))
    }

    /// Reads the records of a block in either form. A record that does not decode is `None`.
    fn records_of(&self, slot: SlotRef) -> Result<Vec<Option<InodeSlot>>, CheckError> {
        let bytes = self.piece(slot)?;
        if slot.capacity() == INODE_BLOCK {
            let records = bytes.chunks_exact(INODE_RECORD).map(|record| record.try_into().expect("size is given"));
            return Ok(records.map(|record| Inode::decode(record).ok()).collect());
        }
        Ok(match self.tables.block(&bytes) {
            Ok(records) => records.into_iter().map(|record| record.ok().map(|record| record.slot)).collect(),
            Err(_) => vec![None; INODES_PER_BLOCK as usize],
        })
    }

    /// Collects the records of a block.
    pub(super) fn block(&mut self, number: u64, slot: SlotRef) -> Result<(), CheckError> {
        for (place, record) in self.records_of(slot)?.into_iter().enumerate() {
            let Some(ino) = Ino::in_block(number, place) else { break };
            match record {
                Some(InodeSlot::Used(_)) if !ino.is_none() => drop(self.records.insert(ino, place_in(slot, place))),
                Some(_) => {}
                None => drop(self.damaged.insert(ino)),
            }
        }
        Ok(())
    }

    /// Finds allocated pieces that look like inode blocks and are not part of the table.
    pub(super) fn stray_blocks(&self, reached: &HashSet<Offset>) -> Result<Vec<SlotRef>, CheckError> {
        let mut strays = Vec::new();
        for segment in self.superblock.reserved_segments()..self.superblock.segment_count {
            let mut entry = [0; SEGMENT_ENTRY as usize];
            self.read(self.superblock.segment_table + segment * SEGMENT_ENTRY, &mut entry)?;
            // A table entry that does not decode may belong to any class. Search it for plain
            // blocks.
            let (class, bits) = match SegmentEntry::decode(&entry) {
                Ok((SegmentUse::Slots(class), bits)) if class <= BLOCK_CLASS => (class, bits),
                Ok(_) => continue,
                Err(_) => (BLOCK_CLASS, u64::MAX),
            };
            let (slots, first) = class_geometry(class);
            let mut words = vec![bits];
            if slots > 64 {
                let mut bitmap = vec![0; slots.div_ceil(64) as usize * 8];
                self.read(Offset::new(segment * SEGMENT), &mut bitmap)?;
                words =
                    bitmap.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes"))).collect();
            }
            let is_set = |slot: &u32| words[*slot as usize / 64] >> (slot % 64) & 1 == 1;
            for slot in (0..slots).filter(is_set) {
                let at = Offset::new(segment * SEGMENT) + u64::from(first + slot * CLASS_SIZES[usize::from(class)]);
                let slot = SlotRef::slot(at, class);
                let records = self.records_of(slot)?;
                let used = records.iter().any(|record| matches!(record, Some(InodeSlot::Used(_))));
                let damaged = records.iter().filter(|record| record.is_none()).count();
                let damaged_max = if class == BLOCK_CLASS { 7 } else { 0 };
                if used && damaged <= damaged_max && !reached.contains(&at) {
                    strays.push(slot);
                }
            }
        }
        Ok(strays)
    }
}
