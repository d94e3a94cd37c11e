//! The dictionaries for decoding short packed files, as stored (docs/spec/region.md, section 7).
//!
//! A list names up to [`DICTIONARIES_MAX`] dictionaries by number, with the places of both copies
//! of each. The list itself has two identical copies. A dictionary is a piece of its own: a head,
//! then the bytes that zstd takes. Dictionaries are written once, and a store uses each number only
//! once.

use xxhash_rust::xxh3::xxh3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::slot::SLOT_MAX;
use crate::{FormatError, SlotRef};

pub const DICTIONARY_LIST_MAGIC: u64 = u64::from_le_bytes(*b"SHDICTLS");
pub const DICTIONARY_MAGIC: u64 = u64::from_le_bytes(*b"SHDICTNR");
pub const DICTIONARY_VERSION: u32 = 1;
/// Maximum number of dictionaries of a store: one in use, and older ones that files still need.
pub const DICTIONARIES_MAX: usize = 8;
/// Bytes of the longest file whose object may have a dictionary.
pub const DICTIONARY_FILE: u32 = 4096;

/// An entry of the list of dictionaries. All zeros: no dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DictionaryEntry {
    /// The number that objects use; 0: no dictionary.
    pub number: U16,
    pub reserved: [u8; 6],
    /// Slot references of both copies.
    pub copies: [U64; 2],
}

/// A list as it lies in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DictionaryList {
    pub magic: U64,
    pub version: U32,
    /// Low half of XXH3 of the entries.
    pub sum: U32,
    /// Newest first. The newest is in use.
    pub entries: [DictionaryEntry; 8],
}

/// The head of a dictionary, before its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DictionaryHead {
    pub magic: U64,
    pub version: U32,
    /// Low half of XXH3 of the fields after it and of the bytes.
    pub sum: U32,
    pub number: U16,
    pub reserved: [u8; 2],
    /// Bytes after the head.
    pub bytes: U32,
}

pub const DICTIONARY_LIST: usize = size_of::<DictionaryList>();
pub const DICTIONARY_HEAD: usize = size_of::<DictionaryHead>();
/// Longest dictionary (bytes): one fills a slot.
pub const DICTIONARY_BYTES_MAX: usize = 32_768 - DICTIONARY_HEAD;
const _: () = assert!((DICTIONARY_BYTES_MAX + DICTIONARY_HEAD) as u64 == SLOT_MAX);
const _: () = assert!(size_of::<DictionaryEntry>() == 24);
const _: () = assert!(DICTIONARY_LIST == 16 + DICTIONARIES_MAX * size_of::<DictionaryEntry>());
const _: () = assert!(DICTIONARY_HEAD == 24);

const LIST: &str = "list of dictionaries";
const WHAT: &str = "dictionary";

/// A dictionary and the places of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub number: u16,
    pub copies: [SlotRef; 2],
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is kept")]
fn sum_of(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

impl DictionaryList {
    /// Encodes a list of these, newest first. The caller passes at most [`DICTIONARIES_MAX`].
    pub fn encode(listed: &[Listed]) -> [u8; DICTIONARY_LIST] {
        assert!(listed.len() <= DICTIONARIES_MAX);
        let mut list = DictionaryList::read_from_bytes(&[0; DICTIONARY_LIST]).expect("size is asserted");
        (list.magic, list.version) = (DICTIONARY_LIST_MAGIC.into(), DICTIONARY_VERSION.into());
        for (entry, listed) in list.entries.iter_mut().zip(listed) {
            entry.number = listed.number.into();
            entry.copies = listed.copies.map(|copy| copy.bits().into());
        }
        list.sum = sum_of(list.entries.as_bytes()).into();
        list.as_bytes().try_into().expect("size is asserted")
    }

    /// Decodes the dictionaries of the list at the start of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Vec<Listed>, FormatError> {
        let short = || FormatError::Short { what: LIST, expected: DICTIONARY_LIST, found: bytes.len() };
        let (list, _) = DictionaryList::read_from_prefix(bytes).map_err(|_| short())?;
        head(LIST, DICTIONARY_LIST_MAGIC, list.magic.get(), list.version.get())?;
        let found = sum_of(list.entries.as_bytes());
        if found != list.sum.get() {
            return Err(FormatError::Checksum { what: LIST, expected: list.sum.get(), found });
        }
        let range = |field, found| FormatError::Range { what: LIST, field, found };
        let mut listed: Vec<Listed> = Vec::new();
        for entry in list.entries {
            let number = entry.number.get();
            if number == 0 {
                continue;
            }
            if listed.last().is_some_and(|newer| newer.number <= number) {
                return Err(range("number", number.into()));
            }
            let copy = |bits: U64| {
                let slot = SlotRef::from_bits(bits.get()).filter(|slot| !slot.is_none() && !slot.is_run());
                slot.ok_or_else(|| range("copy", bits.get()))
            };
            listed.push(Listed { number, copies: [copy(entry.copies[0])?, copy(entry.copies[1])?] });
        }
        Ok(listed)
    }
}

impl DictionaryHead {
    /// Encodes a dictionary for storage. It has at most [`DICTIONARY_BYTES_MAX`] bytes.
    pub fn encode(number: u16, bytes: &[u8]) -> Vec<u8> {
        assert!(bytes.len() <= DICTIONARY_BYTES_MAX);
        let mut head = DictionaryHead {
            magic: DICTIONARY_MAGIC.into(),
            version: DICTIONARY_VERSION.into(),
            sum: 0.into(),
            number: number.into(),
            reserved: [0; 2],
            bytes: u32::try_from(bytes.len()).expect("asserted").into(),
        };
        let mut stored = [head.as_bytes(), bytes].concat();
        head.sum = sum_of(&stored[16..]).into();
        stored[..DICTIONARY_HEAD].copy_from_slice(head.as_bytes());
        stored
    }

    /// Returns the number and the bytes of the dictionary at the start of `stored`.
    pub fn decode(stored: &[u8]) -> Result<(u16, &[u8]), FormatError> {
        let short = |expected| FormatError::Short { what: WHAT, expected, found: stored.len() };
        let (found, rest) = DictionaryHead::read_from_prefix(stored).map_err(|_| short(DICTIONARY_HEAD))?;
        head(WHAT, DICTIONARY_MAGIC, found.magic.get(), found.version.get())?;
        let len = found.bytes.get() as usize;
        let bytes = rest.get(..len).ok_or_else(|| short(DICTIONARY_HEAD.saturating_add(len)))?;
        let sum = sum_of(&stored[16..DICTIONARY_HEAD + len]);
        if sum != found.sum.get() {
            return Err(FormatError::Checksum { what: WHAT, expected: found.sum.get(), found: sum });
        }
        if found.number.get() == 0 {
            return Err(FormatError::Range { what: WHAT, field: "number", found: 0 });
        }
        Ok((found.number.get(), bytes))
    }
}

fn head(what: &'static str, expected: u64, found: u64, version: u32) -> Result<(), FormatError> {
    if found != expected {
        return Err(FormatError::Magic { what, expected, found });
    }
    if version != DICTIONARY_VERSION {
        return Err(FormatError::Version { what, expected: DICTIONARY_VERSION, found: version });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Offset;

    fn slot(at: u64) -> SlotRef {
        SlotRef::slot(Offset::new(at), 32)
    }

    #[test]
    fn lists_survive_their_bytes_and_every_flipped_bit_is_seen() {
        let two = [
            Listed { number: 9, copies: [slot(65536), slot(131_072)] },
            Listed { number: 4, copies: [slot(196_608), slot(262_144)] },
        ];
        let bytes = DictionaryList::encode(&two);
        assert_eq!(DictionaryList::decode(&[&bytes[..], &[1; 48]].concat()).unwrap(), two);
        assert_eq!(DictionaryList::decode(&DictionaryList::encode(&[])).unwrap(), []);
        for bit in 0..DICTIONARY_LIST * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(DictionaryList::decode(&flipped).is_err(), "bit {bit}");
        }
        assert!(DictionaryList::decode(&bytes[..DICTIONARY_LIST - 1]).is_err());
        let (newer, older) = (two[0], two[1]);
        for odd in [vec![older, newer], vec![newer, newer], vec![Listed { copies: [SlotRef::NONE; 2], ..newer }]] {
            assert!(DictionaryList::decode(&DictionaryList::encode(&odd)).is_err(), "{odd:?}");
        }
    }

    #[test]
    fn dictionaries_survive_their_bytes_and_every_flipped_bit_is_seen() {
        let stored = DictionaryHead::encode(7, b"words of a dictionary");
        assert_eq!(DictionaryHead::decode(&stored), Ok((7, &b"words of a dictionary"[..])));
        assert_eq!(DictionaryHead::decode(&[&stored[..], &[1; 99]].concat()), Ok((7, &b"words of a dictionary"[..])));
        for bit in 0..stored.len() * 8 {
            let mut flipped = stored.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(DictionaryHead::decode(&flipped).is_err(), "bit {bit}");
        }
        assert!(DictionaryHead::decode(&stored[..stored.len() - 1]).is_err());
        assert!(DictionaryHead::decode(&[]).is_err());
        assert!(DictionaryHead::decode(&DictionaryHead::encode(0, b"x")).is_err());
    }
}
