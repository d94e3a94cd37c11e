//! The file of a write-back cache: a header, a table of groups, and the groups, each with slots and
//! an entry for each slot.
//!
//! Rules: each word has one writer. Everything that decides carries a tag or a sum, so that a
//! changed byte is detected and never believed. A word is either exactly zero or complete with its
//! tag. An entry's first word is stored last and makes the entry count. Left out: when each part is
//! stored (`shoal-writeback`), and where the file is (`shoal-store`).

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{FormatError, PAGE, index, seal};

/// First bytes of the file: "SHLCACHE".
pub const CACHE_MAGIC: u64 = u64::from_le_bytes(*b"SHLCACHE");
pub const CACHE_VERSION: u32 = 1;
/// Bytes of a slot: one block of the cache.
pub const CACHE_SLOT: u64 = 4096;
/// Slots of a group.
pub const CACHE_GROUP_SLOTS: u64 = 256;
/// Bytes of an entry.
pub const CACHE_ENTRY: u64 = 40;
/// Bytes of a group's entries, in whole pages.
pub const CACHE_GROUP_INDEX: u64 = 3 * PAGE;
/// Bytes of a group.
pub const CACHE_GROUP: u64 = CACHE_GROUP_INDEX + CACHE_GROUP_SLOTS * CACHE_SLOT;
/// Maximum number of groups of a file: 64 GiB of slots.
pub const CACHE_GROUPS_MAX: u64 = 65536;

/// Set in the word of a group that has memory, together with its number.
const GROUP_TAG: u64 = 0x4750_0000_0000_0000;
/// Set in the first word of a valid entry, together with its block.
const ENTRY_TAG: u64 = 0x4245_0000_0000_0000;
const NUMBER: u64 = (1 << 48) - 1;

/// The first bytes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CacheHeader {
    /// CRC32C of the bytes after it.
    pub crc: U32,
    pub version: U32,
    pub magic: U64,
    /// The store whose blocks the file holds.
    pub store: [u8; 16],
    /// Random. Distinguishes this file from every other.
    pub identity: [u8; 16],
    /// The boot of the machine in which the file was made.
    pub boot_id: [u8; 16],
    /// Groups the file has room for.
    pub groups: U64,
    /// Bytes of the device whose blocks the file holds.
    pub device_bytes: U64,
}

const _: () = assert!(size_of::<CacheHeader>() == 80);
const _: () = assert!(std::mem::offset_of!(CacheHeader, store) == 16);
const _: () = assert!(std::mem::offset_of!(CacheHeader, groups) == 64);
const _: () = assert!(CACHE_GROUP_SLOTS * CACHE_ENTRY <= CACHE_GROUP_INDEX);

impl CacheHeader {
    /// Bytes of the header.
    pub const BYTES: usize = size_of::<CacheHeader>();

    pub fn new(store: [u8; 16], identity: [u8; 16], boot_id: [u8; 16], groups: u64, device_bytes: u64) -> CacheHeader {
        CacheHeader {
            crc: 0.into(),
            version: CACHE_VERSION.into(),
            magic: CACHE_MAGIC.into(),
            store,
            identity,
            boot_id,
            groups: groups.into(),
            device_bytes: device_bytes.into(),
        }
    }

    pub fn encode(&self) -> [u8; CacheHeader::BYTES] {
        let mut bytes = [0; CacheHeader::BYTES];
        bytes.copy_from_slice(self.as_bytes());
        seal(0, &mut bytes);
        bytes
    }

    /// Decodes the header of a file of `file_bytes`.
    pub fn decode(bytes: &[u8], file_bytes: u64) -> Result<CacheHeader, FormatError> {
        let what = "write-back cache";
        let short = FormatError::Short { what, expected: CacheHeader::BYTES, found: bytes.len() };
        let (header, _) = CacheHeader::read_from_prefix(bytes).map_err(|_| short)?;
        if header.magic.get() != CACHE_MAGIC {
            return Err(FormatError::Magic { what, expected: CACHE_MAGIC, found: header.magic.get() });
        }
        let crc = crate::checksum(0, &bytes[4..CacheHeader::BYTES]);
        if crc != header.crc.get() {
            return Err(FormatError::Checksum { what, expected: header.crc.get(), found: crc });
        }
        if header.version.get() != CACHE_VERSION {
            return Err(FormatError::Version { what, expected: CACHE_VERSION, found: header.version.get() });
        }
        let groups = header.groups.get();
        if groups == 0 || groups > CACHE_GROUPS_MAX {
            return Err(FormatError::Range { what, field: "groups", found: groups });
        }
        if cache_bytes(groups) > file_bytes {
            return Err(FormatError::Short { what, expected: index(cache_bytes(groups)), found: index(file_bytes) });
        }
        Ok(header)
    }
}

/// Returns the offset of the word of group `group`.
pub const fn group_word_at(group: u64) -> u64 {
    PAGE + group * 8
}

/// Returns the offset of group 0 in a file of `groups` groups.
pub const fn first_group_at(groups: u64) -> u64 {
    (PAGE + groups * 8).next_multiple_of(PAGE)
}

/// Returns the offset of a group.
pub const fn group_at(groups: u64, group: u64) -> u64 {
    first_group_at(groups) + group * CACHE_GROUP
}

/// Returns the offset of the entry of a slot.
pub const fn entry_at(groups: u64, slot: u64) -> u64 {
    group_at(groups, slot / CACHE_GROUP_SLOTS) + slot % CACHE_GROUP_SLOTS * CACHE_ENTRY
}

/// Returns the offset of the bytes of a slot.
pub const fn slot_at(groups: u64, slot: u64) -> u64 {
    group_at(groups, slot / CACHE_GROUP_SLOTS) + CACHE_GROUP_INDEX + slot % CACHE_GROUP_SLOTS * CACHE_SLOT
}

/// Returns the size of a file of `groups` groups (bytes).
pub const fn cache_bytes(groups: u64) -> u64 {
    group_at(groups, groups)
}

/// Returns the word of a group that has memory. The word of a group without memory is 0.
pub const fn group_word(group: u64) -> u64 {
    GROUP_TAG | (group & NUMBER)
}

/// Returns whether the group has memory.
pub fn decode_group_word(group: u64, word: u64) -> Result<bool, FormatError> {
    match word {
        0 => Ok(false),
        word if word == group_word(group) => Ok(true),
        found => Err(FormatError::Range { what: "write-back cache", field: "group word", found }),
    }
}

/// An entry, which describes the contents of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct CacheEntry {
    /// 0: the slot is free. Otherwise a tag and the number of the block. Stored last.
    pub block: U64,
    /// Of two entries of one block, the one with the higher version counts.
    pub version: U64,
    /// When the block was first dirtied (ns since 1970).
    pub since_ns: U64,
    /// XXH3-64 of the slot's bytes.
    pub sum: U64,
    /// XXH3-64 of the bytes before it, seeded with the slot's number and the file's identity.
    pub check: U64,
}

const _: () = assert!(size_of::<CacheEntry>() == index(CACHE_ENTRY));

impl CacheEntry {
    /// Makes the entry of slot `slot` in the file with this identity. `sum` is the sum of the
    /// slot's bytes ([`CacheEntry::sum_of`]).
    pub fn new(identity: &[u8; 16], slot: u64, block: u64, version: u64, since_ns: u64, sum: u64) -> CacheEntry {
        let mut entry = CacheEntry {
            block: (ENTRY_TAG | (block & NUMBER)).into(),
            version: version.into(),
            since_ns: since_ns.into(),
            sum: sum.into(),
            check: 0.into(),
        };
        entry.check = entry.expected(identity, slot).into();
        entry
    }

    /// Decodes an entry and returns its block, or `None` if the slot is free.
    pub fn decode(identity: &[u8; 16], slot: u64, bytes: &[u8]) -> Result<Option<(u64, CacheEntry)>, FormatError> {
        let what = "write-back cache";
        let short = FormatError::Short { what, expected: index(CACHE_ENTRY), found: bytes.len() };
        let (entry, _) = CacheEntry::read_from_prefix(bytes).map_err(|_| short)?;
        let word = entry.block.get();
        if word == 0 {
            return Ok(None);
        }
        if entry.check.get() != entry.expected(identity, slot) || word & !NUMBER != ENTRY_TAG {
            return Err(FormatError::Range { what, field: "entry of slot", found: slot });
        }
        Ok(Some((word & NUMBER, entry)))
    }

    /// Returns the sum of a slot's bytes.
    pub fn sum_of(bytes: &[u8]) -> u64 {
        xxh3_64(bytes)
    }

    /// Returns whether the entry describes these bytes.
    pub fn fits(&self, bytes: &[u8]) -> bool {
        self.sum.get() == CacheEntry::sum_of(bytes)
    }

    fn expected(&self, identity: &[u8; 16], slot: u64) -> u64 {
        let seed = u64::from_le_bytes(identity[..8].try_into().expect("eight bytes")) ^ slot;
        xxh3_64_with_seed(&self.as_bytes()[..index(CACHE_ENTRY) - 8], seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: [u8; 16] = [7; 16];

    #[test]
    fn a_header_is_what_it_was_and_no_changed_byte_is_believed() {
        let header = CacheHeader::new([1; 16], IDENTITY, [3; 16], 5, 1 << 30);
        let bytes = header.encode();
        let back = CacheHeader::decode(&bytes, cache_bytes(5)).unwrap();
        assert_eq!((back.store, back.identity, back.groups.get()), (header.store, header.identity, 5));
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut other = bytes;
                other[at] ^= 1 << bit;
                assert!(CacheHeader::decode(&other, cache_bytes(5)).is_err(), "byte {at}, bit {bit}");
            }
        }
        assert!(matches!(CacheHeader::decode(&bytes, cache_bytes(5) - 1), Err(FormatError::Short { .. })));
        assert!(matches!(CacheHeader::decode(&bytes[..79], 0), Err(FormatError::Short { .. })));
        let refused = |groups: u64| CacheHeader::new([1; 16], IDENTITY, [3; 16], groups, 1).encode();
        for groups in [0, CACHE_GROUPS_MAX + 1, u64::MAX] {
            assert!(matches!(CacheHeader::decode(&refused(groups), u64::MAX), Err(FormatError::Range { .. })));
        }
    }

    #[test]
    fn an_entry_is_of_its_slot_and_file_alone_and_no_changed_byte_is_believed() {
        let data = [9; 4096];
        let entry = CacheEntry::new(&IDENTITY, 300, 77, 5, 6, CacheEntry::sum_of(&data));
        let bytes: Vec<u8> = entry.as_bytes().to_vec();
        assert_eq!(CacheEntry::decode(&IDENTITY, 300, &bytes).unwrap(), Some((77, entry)));
        assert!(entry.fits(&data) && !entry.fits(&[8; 4096]));
        assert!(CacheEntry::decode(&IDENTITY, 301, &bytes).is_err());
        assert!(CacheEntry::decode(&[6; 16], 300, &bytes).is_err());
        for at in 0..bytes.len() {
            for value in [0, 0xff, bytes[at] ^ 1] {
                let mut other = bytes.clone();
                other[at] = value;
                let is_same = value == bytes[at];
                assert_eq!(CacheEntry::decode(&IDENTITY, 300, &other).is_ok(), is_same, "byte {at} {value}");
            }
        }
        assert_eq!(CacheEntry::decode(&IDENTITY, 300, &[0; 40]).unwrap(), None);
    }

    #[test]
    fn places_follow_each_other_and_group_words_say_which_group() {
        assert_eq!(
            (group_word_at(0), first_group_at(1), first_group_at(512), first_group_at(513)),
            (4096, 8192, 8192, 12288)
        );
        assert_eq!(slot_at(1, 0), 8192 + 12288);
        assert_eq!((entry_at(2, 256) - entry_at(2, 0), slot_at(2, 256) - slot_at(2, 0)), (CACHE_GROUP, CACHE_GROUP));
        assert_eq!(cache_bytes(3), first_group_at(3) + 3 * CACHE_GROUP);
        assert_eq!((decode_group_word(4, 0), decode_group_word(4, group_word(4))), (Ok(false), Ok(true)));
        assert!(decode_group_word(4, group_word(5)).is_err() && decode_group_word(4, 4).is_err());
    }
}
