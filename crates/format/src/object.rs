//! A packed object: the bytes of a file, or of a 128 KiB group of its chunks, that have not changed
//! for a while.
//!
//! Objects are written once. The first piece holds the head, references to the other pieces, and
//! the start of the payload, which continues in the other pieces from their first byte. The sum
//! covers the object's description and the payload, but not the number of users or the references,
//! which change. The payload of a spilled object lies in the store's spill file; a [`SpillPlace`]
//! after the head says where.

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::dictionary::DICTIONARY_FILE;
use crate::extent::FileBlock;
use crate::inode::CHUNK;
use crate::slot::{CLASS_SIZES, SLOT_MAX, class_for};
use crate::{FormatError, SlotRef};

/// Maximum number of chunks of a file in one object.
pub const GROUP_CHUNKS: u64 = 4;
/// Maximum number of bytes of a file in one object.
pub const GROUP: u64 = GROUP_CHUNKS * CHUNK;
/// Maximum number of pieces after the first one.
pub const PIECES_MAX: usize = 7;
/// Set in a reference of a chunk map: an object holds the group of this chunk.
const PACKED: u64 = 1 << 63;

/// Encoding of the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    /// There is no payload: the pieces after the first one are the unchanged chunks.
    InPlace = 0,
    /// The bytes unchanged.
    Stored = 1,
    /// An LZ4 block.
    Lz4 = 2,
    /// A zstd frame.
    Zstd = 3,
}

/// The head as it lies in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ObjectRecord {
    /// Number of files, or groups of files, that use the object.
    pub users: U32,
    /// Sum of `about` and the payload.
    pub sum: U32,
    /// Bits 0-17: bytes of the file; 18-35: bytes of the payload; 36-39: codec; 40-42: pieces after
    /// the first one; 43: spilled; 48-63: the dictionary, or 0.
    pub about: U64,
}

/// Bytes of the head.
pub const OBJECT_HEAD: usize = 16;
const _: () = assert!(size_of::<ObjectRecord>() == OBJECT_HEAD);
const _: () = assert!(std::mem::offset_of!(ObjectRecord, about) == 8);

const WHAT: &str = "packed object";

/// The head, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    pub users: u32,
    pub sum: u32,
    pub codec: Codec,
    /// Bytes of the file.
    pub bytes: u32,
    /// Bytes of the payload.
    pub payload: u32,
    /// Pieces after the first one.
    pub pieces: u8,
    /// The payload is in the spill file.
    pub spilled: bool,
    /// Number of the dictionary, or 0.
    pub dictionary: u16,
}

impl Object {
    fn about(&self) -> u64 {
        u64::from(self.bytes)
            | u64::from(self.payload) << 18
            | (self.codec as u64) << 36
            | u64::from(self.pieces) << 40
            | u64::from(self.spilled) << 43
            | u64::from(self.dictionary) << 48
    }

    /// Returns the sum of an object with this description. For [`Codec::InPlace`], `payload` is the
    /// contents of the chunks.
    pub fn sum_of(&self, payload: &[u8]) -> u32 {
        seeded(payload, self.about())
    }

    pub fn encode(&self) -> [u8; OBJECT_HEAD] {
        let record = ObjectRecord { users: self.users.into(), sum: self.sum.into(), about: self.about().into() };
        record.as_bytes().try_into().expect("size is asserted")
    }

    /// Decodes and validates a head. The caller, who has the payload, checks the sum.
    pub fn decode(bytes: &[u8; OBJECT_HEAD]) -> Result<Object, FormatError> {
        let record = ObjectRecord::read_from_bytes(bytes).expect("size is asserted");
        let about = record.about.get();
        let range = |field, found| Err(FormatError::Range { what: WHAT, field, found });
        let bits = |at: u32, count: u32| about >> at & ((1 << count) - 1);
        let codec = match bits(36, 4) {
            0 => Codec::InPlace,
            1 => Codec::Stored,
            2 => Codec::Lz4,
            3 => Codec::Zstd,
            found => return range("codec", found),
        };
        let [bytes, payload, pieces, dictionary] = [bits(0, 18), bits(18, 18), bits(40, 3), bits(48, 16)];
        #[expect(clippy::cast_possible_truncation, reason = "masked")]
        let object = Object {
            users: record.users.get(),
            sum: record.sum.get(),
            codec,
            bytes: bytes as u32,
            payload: payload as u32,
            pieces: pieces as u8,
            spilled: bits(43, 1) == 1,
            dictionary: dictionary as u16,
        };
        if object.about() != about {
            return range("unused bits", about);
        }
        if object.users == 0 {
            return range("users", 0);
        }
        if bytes == 0 || bytes > GROUP {
            return range("bytes", bytes);
        }
        let payload_fits = match codec {
            Codec::InPlace => payload == 0 && pieces == bytes.div_ceil(CHUNK),
            Codec::Stored => payload == bytes,
            Codec::Lz4 | Codec::Zstd => payload > 0 && payload < bytes,
        };
        if !payload_fits {
            return range("payload", payload);
        }
        if object.spilled && (codec == Codec::InPlace || pieces != 0) {
            return range("pieces of a spilled one", pieces);
        }
        if dictionary != 0 && (codec != Codec::Zstd || bytes > u64::from(DICTIONARY_FILE)) {
            return range("dictionary", dictionary);
        }
        Ok(object)
    }

    /// Returns the number of bytes before the payload: the head, and the references or the place
    /// after it.
    pub fn payload_at(&self) -> usize {
        OBJECT_HEAD + if self.spilled { SPILL_PLACE } else { usize::from(self.pieces) * 8 }
    }

    /// Returns the number of bytes that the payload takes in the spill file.
    pub fn spilled_bytes(&self) -> u64 {
        if self.spilled { u64::from(self.payload).next_multiple_of(SPILL_UNIT) } else { 0 }
    }
}

/// Bytes of a [`SpillPlace`].
pub const SPILL_PLACE: usize = 8;
/// Payloads begin at multiples of this in the spill file and take multiples of it (bytes).
pub const SPILL_UNIT: u64 = 512;
const PLACE_BITS: u32 = 40;

/// Offset of a spilled object's payload in the spill file (bytes).
///
/// The word after the head holds the position in units in bits 0-39, and a sum of head and position
/// in bits 40-63. A removal gives the range back without reading it, so a place is believed only
/// with its sum: a flipped bit must not free another file's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpillPlace(pub u64);

impl SpillPlace {
    fn word(self, object: &Object) -> u64 {
        let units = self.0 / SPILL_UNIT;
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&object.sum.to_le_bytes());
        bytes[4..12].copy_from_slice(&object.about().to_le_bytes());
        bytes[12..].copy_from_slice(&units.to_le_bytes());
        units | xxh3_64_with_seed(&bytes, 0) << PLACE_BITS
    }

    pub fn encode(self, object: &Object) -> [u8; SPILL_PLACE] {
        debug_assert!(self.0.is_multiple_of(SPILL_UNIT) && self.0 / SPILL_UNIT < 1 << PLACE_BITS);
        self.word(object).to_le_bytes()
    }

    /// Decodes the word after the head of a spilled object.
    pub fn decode(object: &Object, bytes: [u8; SPILL_PLACE]) -> Result<SpillPlace, FormatError> {
        let found = u64::from_le_bytes(bytes);
        let place = SpillPlace((found & ((1 << PLACE_BITS) - 1)) * SPILL_UNIT);
        if place.word(object) != found {
            return Err(FormatError::Checksum { what: "place of a spilled object", expected: 0, found: 0 });
        }
        if place.0 + object.spilled_bytes() > FileBlock::END.byte() {
            return Err(FormatError::Range { what: WHAT, field: "place in the spill file", found: place.0 });
        }
        Ok(place)
    }
}

/// Returns the sum of a short file that is stored unchanged in its slot: INODE_SUMMED.
pub fn sum_in_slot(bytes: &[u8]) -> u32 {
    seeded(bytes, bytes.len() as u64)
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is kept")]
fn seeded(bytes: &[u8], seed: u64) -> u32 {
    xxh3_64_with_seed(bytes, seed) as u32
}

/// A chunk map's reference for one chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkRef {
    /// The chunk's slot; `SlotRef::NONE` for a hole.
    Slot(SlotRef),
    /// The object of the chunk's group. Every chunk of the group that holds a part of the file has
    /// this reference.
    Packed(SlotRef),
}

impl ChunkRef {
    /// Decodes stored bits; `None` if no writer could have written them.
    #[inline]
    pub fn decode(bits: u64) -> Option<ChunkRef> {
        let slot = SlotRef::from_bits(bits & !PACKED).filter(|slot| !slot.is_run())?;
        match bits & PACKED == 0 {
            true => Some(ChunkRef::Slot(slot)),
            false => (!slot.is_none()).then_some(ChunkRef::Packed(slot)),
        }
    }

    #[inline]
    pub fn bits(self) -> u64 {
        match self {
            ChunkRef::Slot(slot) => slot.bits(),
            ChunkRef::Packed(slot) => slot.bits() | PACKED,
        }
    }
}

/// Returns the sizes of the pieces that hold this many bytes of head, references and payload with
/// the least total size. Each piece after the first one adds a reference.
pub fn piece_sizes(head_and_payload: u64) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut left = head_and_payload;
    while left > SLOT_MAX {
        sizes.push(SLOT_MAX);
        left -= SLOT_MAX - REFERENCE;
    }
    let one = slot_for(left);
    if sizes.len() + 2 <= PIECES_MAX
        && let Some((first, second)) = two_pieces(left)
        // An additional piece needs another slot, so it must save something.
        && (first + second + one / 16 < one || one - left > left / 8 && first + second < one)
    {
        sizes.extend([first, second]);
        return sizes;
    }
    sizes.push(one);
    sizes
}

const REFERENCE: u64 = 8;

fn slot_for(len: u64) -> u64 {
    class_for(len).map_or(0, |class| u64::from(CLASS_SIZES[usize::from(class)]))
}

/// Returns the two smallest slots that together hold `len` bytes and a reference.
fn two_pieces(len: u64) -> Option<(u64, u64)> {
    let shorter =
        CLASS_SIZES.iter().map(|&size| u64::from(size)).filter(|&size| size < len && size > 2 * REFERENCE * 2);
    shorter
        .map(|first| (first, slot_for(len + REFERENCE - first)))
        .filter(|pair| pair.0 >= pair.1)
        .min_by_key(|pair| pair.0 + pair.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(codec: Codec) -> Object {
        let (payload, pieces) = match codec {
            Codec::InPlace => (0, 2),
            Codec::Stored => (40_000, 1),
            _ => (700, 0),
        };
        Object { users: 1, sum: 77, codec, bytes: 40_000, payload, pieces, spilled: false, dictionary: 0 }
    }

    fn with_dictionary() -> Object {
        Object { bytes: 4096, dictionary: 9, ..sample(Codec::Zstd) }
    }

    #[test]
    fn heads_survive_their_bytes_and_odd_ones_are_refused() {
        for codec in [Codec::InPlace, Codec::Stored, Codec::Lz4, Codec::Zstd] {
            let object = sample(codec);
            assert_eq!(Object::decode(&object.encode()), Ok(object));
        }
        assert_eq!(Object::decode(&with_dictionary().encode()), Ok(with_dictionary()));
        let lz4 = sample(Codec::Lz4);
        for odd in [
            Object { users: 0, ..lz4 },
            Object { bytes: 0, ..lz4 },
            Object { bytes: GROUP as u32 + 1, ..lz4 },
            Object { payload: 40_000, ..lz4 },
            Object { payload: 0, ..lz4 },
            Object { codec: Codec::Lz4, ..with_dictionary() },
            Object { bytes: 4097, ..with_dictionary() },
            Object { payload: 39_999, ..sample(Codec::Stored) },
            Object { pieces: 1, ..sample(Codec::InPlace) },
        ] {
            assert!(Object::decode(&odd.encode()).is_err(), "{odd:?}");
        }
        let mut bytes = lz4.encode();
        bytes[13] |= 0x80;
        assert!(Object::decode(&bytes).is_err(), "unused bits");
    }

    #[test]
    fn the_sum_covers_what_the_object_says_and_not_its_users() {
        let object = Object { bytes: 40_000, ..with_dictionary() };
        let sum = object.sum_of(b"payload");
        assert_eq!(Object { users: 5, sum: 1, ..object }.sum_of(b"payload"), sum);
        assert_ne!(Object { dictionary: 8, ..object }.sum_of(b"payload"), sum);
        assert_ne!(Object { bytes: 39_999, ..object }.sum_of(b"payload"), sum);
        assert_ne!(object.sum_of(b"Payload"), sum);
    }

    #[test]
    fn a_spilled_object_has_a_place_that_no_flipped_bit_changes() {
        let spilled = Object { spilled: true, pieces: 0, ..sample(Codec::Zstd) };
        assert_eq!(Object::decode(&spilled.encode()), Ok(spilled));
        assert_eq!((spilled.payload_at(), spilled.spilled_bytes()), (24, 1024));
        assert_ne!(spilled.sum_of(b"payload"), Object { spilled: false, ..spilled }.sum_of(b"payload"));
        for odd in [Object { pieces: 1, ..spilled }, Object { spilled: true, ..sample(Codec::InPlace) }] {
            assert!(Object::decode(&odd.encode()).is_err(), "{odd:?}");
        }
        for place in [0, 512, 77 << 30, FileBlock::END.byte() - 1024].map(SpillPlace) {
            let word = place.encode(&spilled);
            assert_eq!(SpillPlace::decode(&spilled, word), Ok(place));
            assert!(SpillPlace::decode(&Object { sum: 78, ..spilled }, word).is_err());
            for bit in 0..64 {
                let flipped = u64::from_le_bytes(word) ^ 1 << bit;
                assert!(SpillPlace::decode(&spilled, flipped.to_le_bytes()).is_err(), "bit {bit}");
            }
        }
        let behind = SpillPlace(FileBlock::END.byte() - 512);
        assert!(SpillPlace::decode(&spilled, behind.encode(&spilled)).is_err());
    }

    #[test]
    fn a_chunk_map_names_slots_holes_and_objects() {
        let slot = SlotRef::slot(crate::Offset::new(65536), 17);
        for of_chunk in [ChunkRef::Slot(SlotRef::NONE), ChunkRef::Slot(slot), ChunkRef::Packed(slot)] {
            assert_eq!(ChunkRef::decode(of_chunk.bits()), Some(of_chunk));
        }
        assert_eq!(ChunkRef::decode(PACKED), None);
        assert_eq!(ChunkRef::decode(SlotRef::run(crate::Offset::new(65536), 1).bits()), None);
    }

    #[test]
    fn pieces_hold_what_they_must_and_waste_little() {
        for len in 17..=GROUP + 64 {
            let sizes = piece_sizes(len);
            let (all, needed) = (sizes.iter().sum::<u64>(), len + (sizes.len() as u64 - 1) * REFERENCE);
            assert!(sizes.len() <= PIECES_MAX && all >= needed, "{len}");
            assert!(sizes[0] >= (OBJECT_HEAD + (sizes.len() - 1) * 8) as u64, "{len}: {sizes:?}");
            assert!(len < 200 || all - len <= len / 8, "{len}: {sizes:?}");
        }
    }
}
