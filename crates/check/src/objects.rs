//! Packed objects as specified in docs/spec/region.md, section 7: finding, assembling and verifying
//! them.
//!
//! Rules: nothing here comes from the engine; the codecs are those of their libraries. Bytes come
//! through the caller's reader, which does not keep them. Damage is returned as a sentence; only
//! errors of the medium are errors.

use shoal_format::inode::CHUNK;
use shoal_format::object::{Codec, OBJECT_HEAD, Object, SpillPlace};
use shoal_format::{Offset, SlotRef};

use crate::CheckError;
use crate::dictionaries::Dictionaries;

/// Reads bytes of one piece.
pub(crate) type Reader<'a> = dyn Fn(Offset, &mut [u8]) -> Result<(), CheckError> + 'a;

/// An object and the pieces after its first one.
pub(crate) struct Found {
    pub object: Object,
    pub pieces: Vec<SlotRef>,
    /// Location of the payload, for a spilled object.
    pub place: Option<SpillPlace>,
}

/// Finds an object's pieces. The caller must decide whether they lie inside the region and are
/// allocated.
pub(crate) fn find(read: &Reader<'_>, slot: SlotRef) -> Result<Result<Found, String>, CheckError> {
    if slot.is_run() || slot.capacity() < OBJECT_HEAD as u64 {
        return Ok(Err(format!("a packed object in a piece of {} bytes", slot.capacity())));
    }
    let mut head = [0; OBJECT_HEAD];
    read(slot.offset(), &mut head)?;
    let object = match Object::decode(&head) {
        Ok(object) => object,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let mut references = vec![0; object.payload_at() - OBJECT_HEAD];
    if object.payload_at() as u64 > slot.capacity() {
        return Ok(Err("a packed object's references do not fit in its first piece".into()));
    }
    read(slot.offset() + OBJECT_HEAD as u64, &mut references)?;
    let mut pieces = Vec::new();
    if object.spilled {
        let place = SpillPlace::decode(&object, references.try_into().expect("eight bytes"));
        return Ok(place.map(|place| Found { object, pieces, place: Some(place) }).map_err(|error| error.to_string()));
    }
    for bits in references.chunks_exact(8) {
        let bits = u64::from_le_bytes(bits.try_into().expect("eight bytes"));
        match SlotRef::from_bits(bits).filter(|piece| !piece.is_none() && !piece.is_run()) {
            Some(piece) => pieces.push(piece),
            None => return Ok(Err(format!("a packed object refers to {bits:#x}"))),
        }
    }
    Ok(Ok(Found { object, pieces, place: None }))
}

/// Returns the bytes of an object, as far as they are readable, and what is wrong with them.
pub(crate) fn bytes(
    read: &Reader<'_>,
    slot: SlotRef,
    found: &Found,
    dictionaries: &Dictionaries,
) -> Result<(Option<Vec<u8>>, Option<String>), CheckError> {
    let Found { object, pieces, .. } = found;
    let mut payload = Vec::new();
    if object.codec == Codec::InPlace {
        payload.resize(object.bytes as usize, 0);
        for (chunk, piece) in payload.chunks_mut(CHUNK as usize).zip(pieces) {
            let stored = chunk.len().min(piece.capacity() as usize);
            read(piece.offset(), &mut chunk[..stored])?;
        }
    } else {
        let head = object.payload_at() as u64;
        let first = (slot.offset() + head, slot.capacity() - head);
        let places = [first].into_iter().chain(pieces.iter().map(|piece| (piece.offset(), piece.capacity())));
        let mut left = object.payload as usize;
        for (at, room) in places {
            let mut part = vec![0; left.min(room as usize)];
            read(at, &mut part)?;
            left -= part.len();
            payload.extend(part);
        }
        if left > 0 {
            return Ok((None, Some("a packed object's pieces are too short".into())));
        }
    }
    Ok(unpacked(object, payload, dictionaries))
}

/// Decodes a payload. Returns its contents and what is wrong with them.
pub(crate) fn unpacked(
    object: &Object,
    payload: Vec<u8>,
    dictionaries: &Dictionaries,
) -> (Option<Vec<u8>>, Option<String>) {
    let sum = object.sum_of(&payload);
    let wrong_sum =
        (sum != object.sum).then(|| format!("a packed object's checksum is {sum:#x}, expected {:#x}", object.sum));
    let size = object.bytes as usize;
    let mut out = vec![0; size];
    let fits = match object.codec {
        Codec::InPlace | Codec::Stored => {
            out = payload;
            out.len() == size
        }
        Codec::Lz4 => lz4_flex::block::decompress_into(&payload, &mut out).is_ok_and(|len| len == size),
        Codec::Zstd => dictionaries.decompress(object.dictionary, &payload, &mut out),
    };
    let why = || match dictionaries.knows(object.dictionary) {
        true => "a packed object does not decompress".to_string(),
        false => format!("a packed object names dictionary {}, which cannot be read", object.dictionary),
    };
    let wrong = wrong_sum.or_else(|| (!fits).then(why));
    (fits.then_some(out), wrong)
}
