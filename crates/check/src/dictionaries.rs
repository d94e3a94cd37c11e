//! The dictionaries of short packed files, read from the specification alone (docs/spec/region.md,
//! section 7).
//!
//! Owns: [`Dictionaries`], which both the walk over inodes and the salvage use. Rules: each list
//! and each dictionary comes from its first undamaged copy; damage is named. Left out: which files
//! name which dictionary (`files`).

use std::cell::RefCell;

use shoal_format::SlotRef;
use shoal_format::dictionary::{DictionaryHead, DictionaryList, Listed};
use shoal_format::superblock::{ROOTS_AT, Roots};
use zstd::bulk::Decompressor;

use crate::CheckError;
use crate::packed::Defect;

/// Reads a piece, which messages call by the given name. Returns `None` if there is no such piece.
pub(crate) type Pieces<'a> = dyn FnMut(SlotRef, &str) -> Result<Option<Vec<u8>>, CheckError> + 'a;

/// The readable dictionaries of a store.
#[derive(Default)]
pub(crate) struct Dictionaries {
    /// The decompressor for frames made without a dictionary.
    none: RefCell<Decompressor<'static>>,
    numbered: Vec<(u16, RefCell<Decompressor<'static>>)>,
}

impl Dictionaries {
    /// Reads the dictionaries that the roots lead to.
    pub fn read(roots: &Roots, pieces: &mut Pieces<'_>, defects: &mut Vec<Defect>) -> Result<Dictionaries, CheckError> {
        let bits = roots.dictionaries.map(|bits| bits.get());
        if bits == [0, 0] {
            return Ok(Dictionaries::default());
        }
        let mut lists: Vec<Vec<Listed>> = Vec::new();
        for bits in bits {
            let defect = |sentence| Defect { at: ROOTS_AT.get(), sentence };
            let Some(slot) = SlotRef::from_bits(bits).filter(|slot| !slot.is_none() && !slot.is_run()) else {
                defects.push(defect(format!("a copy of the list of dictionaries has no place: {bits:#x}")));
                continue;
            };
            let Some(bytes) = pieces(slot, "list of dictionaries")? else { continue };
            match DictionaryList::decode(&bytes) {
                Ok(list) => lists.push(list),
                Err(why) => defects.push(Defect { at: slot.offset().get(), sentence: format!("a copy: {why}") }),
            }
        }
        if lists.windows(2).any(|pair| pair[0] != pair[1]) {
            let sentence = "the copies of the list of dictionaries differ".to_string();
            defects.push(Defect { at: ROOTS_AT.get(), sentence });
        }
        let mut numbered = Vec::new();
        for Listed { number, copies } in lists.into_iter().next().unwrap_or_default() {
            let mut found: Option<Vec<u8>> = None;
            for slot in copies {
                let at = slot.offset().get();
                let mut defect = |why: String| {
                    defects.push(Defect { at, sentence: format!("a copy of dictionary {number}: {why}") });
                };
                let Some(stored) = pieces(slot, "dictionary")? else { continue };
                match DictionaryHead::decode(&stored) {
                    Err(why) => defect(why.to_string()),
                    Ok((other, _)) if other != number => defect(format!("its number is {other}")),
                    Ok((_, bytes)) if found.as_deref().is_some_and(|found| found != bytes) => {
                        defect("it differs from the other one".into());
                    }
                    Ok((_, bytes)) => found = Some(bytes.to_vec()),
                }
            }
            match found.map(|bytes| Decompressor::with_dictionary(&bytes)) {
                Some(Ok(decompressor)) => numbered.push((number, RefCell::new(decompressor))),
                Some(Err(why)) => {
                    defects
                        .push(Defect { at: copies[0].offset().get(), sentence: format!("dictionary {number}: {why}") });
                }
                None => {}
            }
        }
        Ok(Dictionaries { numbered, ..Dictionaries::default() })
    }

    /// Fills `out` from a zstd frame that was made with dictionary `number`, or without one if it
    /// is 0. Returns false if the frame does not hold exactly this many bytes.
    pub fn decompress(&self, number: u16, payload: &[u8], out: &mut [u8]) -> bool {
        self.decompressor(number).is_some_and(|decompressor| {
            decompressor.borrow_mut().decompress_to_buffer(payload, out).is_ok_and(|len| len == out.len())
        })
    }

    pub fn knows(&self, number: u16) -> bool {
        self.decompressor(number).is_some()
    }

    fn decompressor(&self, number: u16) -> Option<&RefCell<Decompressor<'static>>> {
        match number {
            0 => Some(&self.none),
            _ => self.numbered.iter().find(|(known, _)| *known == number).map(|(_, found)| found),
        }
    }
}
