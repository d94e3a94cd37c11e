//! Packed objects: the data of files that have cooled, read, made and given back (docs/spec/region.md, section 7).
//!
//! Rules:
//! - An object never changes, except for the number of its users and, by compaction, the places of
//!   its pieces.
//! - Nothing in an object is believed before its sum is compared. So a flipped bit is an error and
//!   never other data, and pieces that the object refers to by mistake are neither moved nor given
//!   back.
//! - Every piece is taken and given through the object's owner (`owner`), which counts it.
//!
//! Readers hold the file's inode lock, so an object cannot go while it is read. Left out: which
//! files are packed and when (`packer`), and the change of a packed file (`small`, which puts plain
//! chunks in its place first).

use parking_lot::Mutex;
use shoal_format::SlotRef;
use shoal_format::inode::CHUNK;
use shoal_format::object::{Codec, GROUP, OBJECT_HEAD, Object, PIECES_MAX, SPILL_PLACE, SpillPlace, piece_sizes};
use shoal_pack::Decompressor;
use shoal_region::{LetGo, Tx, View};

use crate::cold::dictionaries::Dictionaries;
use crate::cold::owner::Owner;
use crate::planted::{Bug, is_planted};
use crate::{Error, Result};

/// Decompressed objects that are kept for readers of parts.
const KEPT: usize = 8;

/// What reading objects needs besides the region.
pub(crate) struct Objects {
    pub dictionaries: Dictionaries,
    /// Decompressors not in use, each with the number of its dictionary or 0.
    decompressors: Mutex<Vec<(u16, Decompressor)>>,
    /// The last used one comes first.
    kept: Mutex<Vec<Kept>>,
}

struct Kept {
    object: Object,
    payload: Vec<u8>,
    bytes: Vec<u8>,
}

/// An object as it lies in the region.
pub(crate) struct Placed {
    pub slot: SlotRef,
    pub object: Object,
    /// The pieces behind the first one; of an object in place, its chunks.
    pub pieces: [SlotRef; PIECES_MAX],
    /// Where the payload of a spilled object is.
    pub place: Option<SpillPlace>,
}

fn damaged(slot: SlotRef, what: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("packed object at {:#x}: {what}; run `shoal check`", slot.offset().get()))
}

impl Placed {
    pub fn load(view: &impl View, slot: SlotRef) -> Result<Placed> {
        if slot.is_run() || slot.capacity() < OBJECT_HEAD as u64 {
            return Err(damaged(slot, "its piece is too short"));
        }
        let mut head = [0; OBJECT_HEAD];
        view.read(slot.offset(), &mut head)?;
        let object = Object::decode(&head).map_err(|error| damaged(slot, error))?;
        if (object.payload_at() as u64) > slot.capacity() {
            return Err(damaged(slot, "its references do not fit"));
        }
        let mut placed = Placed { slot, object, pieces: [SlotRef::NONE; PIECES_MAX], place: None };
        if object.spilled {
            let mut word = [0; SPILL_PLACE];
            view.read(placed.reference_at(0), &mut word)?;
            placed.place = Some(SpillPlace::decode(&object, word).map_err(|error| damaged(slot, error))?);
            return Ok(placed);
        }
        for number in 0..usize::from(object.pieces) {
            let bits = view.read_u64(placed.reference_at(number))?;
            let piece = SlotRef::from_bits(bits).filter(|piece| !piece.is_none() && !piece.is_run());
            placed.pieces[number] = piece.ok_or_else(|| damaged(slot, format_args!("it refers to {bits:#x}")))?;
        }
        let room: u64 = placed.pieces().iter().map(|piece| piece.capacity()).sum();
        let payload = u64::from(object.payload) + object.payload_at() as u64;
        if object.codec != Codec::InPlace && payload > slot.capacity() + room {
            return Err(damaged(slot, "its pieces are too short"));
        }
        Ok(placed)
    }

    /// Returns where the reference to a piece lies.
    pub fn reference_at(&self, number: usize) -> shoal_format::Offset {
        self.slot.offset() + (OBJECT_HEAD + number * 8) as u64
    }

    pub fn pieces(&self) -> &[SlotRef] {
        &self.pieces[..usize::from(self.object.pieces)]
    }

    /// Returns whether the summed bytes are those of the file.
    fn is_raw(&self) -> bool {
        matches!(self.object.codec, Codec::InPlace | Codec::Stored)
    }

    /// Returns the bytes of the region that the object takes.
    pub fn capacity(&self) -> u64 {
        self.slot.capacity() + self.pieces().iter().map(|piece| piece.capacity()).sum::<u64>()
    }

    /// Verifies that the pieces are the object's own, by what they hold.
    fn verify_references(&self, view: &impl View) -> Result<()> {
        let is_believed = self.object.pieces == 0 || is_planted(Bug::ReferencesBelieved);
        if is_believed { Ok(()) } else { self.payload(view).map(drop) }
    }

    /// Gives the object back; the caller has verified it.
    pub fn give(&self, tx: &mut Tx<'_>, owner: &mut impl Owner) -> Result<()> {
        if let Some(SpillPlace(at)) = self.place {
            let bytes = self.object.spilled_bytes();
            tx.let_go(LetGo { at, bytes, stood_for: self.object.bytes.into() });
            owner.give_spilled(bytes);
        }
        let pieces = if is_planted(Bug::ObjectPiecesStay) { &[] } else { self.pieces() };
        for &piece in pieces {
            owner.give(tx, piece)?;
        }
        owner.give(tx, self.slot)
    }

    /// Reads and verifies the payload, or the bytes of the chunks that an object in place stands
    /// for. It must be in the region.
    pub fn payload(&self, view: &impl View) -> Result<Vec<u8>> {
        debug_assert!(self.place.is_none(), "the payload of a spilled object is read without locks (`spill`)");
        let mut bytes = Vec::new();
        if self.object.codec == Codec::InPlace {
            bytes.resize(self.object.bytes as usize, 0);
            // A slot may be shorter than its chunk, which continues with zeros.
            for (chunk, piece) in bytes.chunks_mut(CHUNK as usize).zip(self.pieces()) {
                let stored = chunk.len().min(piece.capacity() as usize);
                view.read(piece.offset(), &mut chunk[..stored])?;
            }
        } else {
            bytes.resize(self.object.payload as usize, 0);
            let head = self.object.payload_at() as u64;
            let first = (self.slot.offset() + head, self.slot.capacity() - head);
            let behind = self.pieces().iter().map(|piece| (piece.offset(), piece.capacity()));
            let mut left = &mut bytes[..];
            for (at, len) in std::iter::once(first).chain(behind) {
                let (part, rest) = left.split_at_mut((len as usize).min(left.len()));
                view.read(at, part)?;
                left = rest;
            }
        }
        let found = self.object.sum_of(&bytes);
        if found != self.object.sum {
            return Err(damaged(self.slot, format_args!("checksum is {found:#x}, expected {:#x}", self.object.sum)));
        }
        Ok(bytes)
    }
}

impl Objects {
    pub fn new(dictionaries: Dictionaries) -> Objects {
        Objects { dictionaries, decompressors: Mutex::default(), kept: Mutex::default() }
    }

    /// Returns all bytes of the file that the object holds.
    pub fn unpack(&self, view: &impl View, placed: &Placed) -> Result<Vec<u8>> {
        let payload = placed.payload(view)?;
        self.bytes_of(placed, payload)
    }

    /// Returns what the verified payload of an object stands for.
    pub fn bytes_of(&self, placed: &Placed, payload: Vec<u8>) -> Result<Vec<u8>> {
        if placed.is_raw() {
            return Ok(payload);
        }
        let mut bytes = vec![0; placed.object.bytes as usize];
        self.decompress(placed, &payload, &mut bytes)?;
        Ok(bytes)
    }

    fn decompress(&self, placed: &Placed, payload: &[u8], out: &mut [u8]) -> Result<()> {
        let number = placed.object.dictionary;
        let free = {
            let mut all = self.decompressors.lock();
            all.iter().position(|(with, _)| *with == number).map(|place| all.swap_remove(place).1)
        };
        let mut decompressor = match free {
            Some(decompressor) => decompressor,
            None => self.decompressor(number, placed.slot)?,
        };
        let done = decompressor.decompress(placed.object.codec, payload, out);
        self.decompressors.lock().push((number, decompressor));
        if done { Ok(()) } else { Err(damaged(placed.slot, "it does not decompress")) }
    }

    #[cold]
    fn decompressor(&self, number: u16, slot: SlotRef) -> Result<Decompressor> {
        let made = match number {
            0 => Decompressor::new(),
            _ => match self.dictionaries.find(number) {
                Some(dictionary) => Decompressor::with_dictionary(&dictionary.bytes),
                None => return Err(damaged(slot, format_args!("its dictionary {number} is lost"))),
            },
        };
        made.map_err(|error| damaged(slot, error))
    }

    /// Fills `out` from byte `at` of the group. Bytes behind the object's end are zeros.
    pub fn read(&self, view: &impl View, placed: &Placed, at: u64, out: &mut [u8]) -> Result<()> {
        let all = u64::from(placed.object.bytes);
        let (stored, behind) = out.split_at_mut(all.saturating_sub(at).min(out.len() as u64) as usize);
        behind.fill(0);
        if stored.is_empty() {
            return Ok(());
        }
        let payload = placed.payload(view)?;
        if placed.is_raw() {
            stored.copy_from_slice(&payload[at as usize..][..stored.len()]);
            return Ok(());
        }
        if stored.len() as u64 == all {
            return self.decompress(placed, &payload, stored);
        }
        // A reader of parts comes again. The payload tells whether the object is the same, because
        // its slot may have held another one.
        let mut kept = self.kept.lock();
        let is_same = |kept: &Kept| kept.payload == payload || is_planted(Bug::KeptByHead);
        if let Some(number) = kept.iter().position(|kept| kept.object == placed.object && is_same(kept)) {
            stored.copy_from_slice(&kept[number].bytes[at as usize..][..stored.len()]);
            kept[..=number].rotate_right(1);
            return Ok(());
        }
        drop(kept);
        let mut bytes = vec![0; all as usize];
        self.decompress(placed, &payload, &mut bytes)?;
        stored.copy_from_slice(&bytes[at as usize..][..stored.len()]);
        kept = self.kept.lock();
        kept.truncate(KEPT - 1);
        kept.insert(0, Kept { object: placed.object, payload, bytes });
        Ok(())
    }
}

/// Makes an object of a payload; returns the slot of its head.
pub(crate) fn make(
    tx: &mut Tx<'_>,
    owner: &mut impl Owner,
    (codec, dictionary): (Codec, u16),
    bytes: u64,
    payload: &[u8],
) -> Result<SlotRef> {
    let sizes = piece_sizes((OBJECT_HEAD + payload.len()) as u64);
    let mut slots = Vec::with_capacity(sizes.len());
    for len in sizes {
        slots.push(owner.take(tx, len)?);
    }
    let object = head((codec, dictionary), bytes, payload.len(), slots.len() - 1, payload);
    let mut first = object.encode().to_vec();
    slots[1..].iter().for_each(|piece| first.extend(piece.bits().to_le_bytes()));
    let mut left = payload;
    for (number, slot) in slots.iter().enumerate() {
        let room = slot.capacity() as usize - if number == 0 { first.len() } else { 0 };
        let (part, rest) = left.split_at(room.min(left.len()));
        if number == 0 {
            first.extend(part);
            tx.write(slot.offset(), &first)?;
        } else {
            tx.write(slot.offset(), part)?;
        }
        left = rest;
    }
    debug_assert!(left.is_empty());
    Ok(slots[0])
}

/// Makes an object of chunks that stay where they are; `raw` is what they hold of the file.
pub(crate) fn make_in_place(
    tx: &mut Tx<'_>,
    owner: &mut impl Owner,
    chunks: &[SlotRef],
    raw: &[u8],
) -> Result<SlotRef> {
    let slot = owner.take(tx, (OBJECT_HEAD + chunks.len() * 8) as u64)?;
    let mut bytes = head((Codec::InPlace, 0), raw.len() as u64, 0, chunks.len(), raw).encode().to_vec();
    chunks.iter().for_each(|chunk| bytes.extend(chunk.bits().to_le_bytes()));
    tx.write(slot.offset(), &bytes)?;
    Ok(slot)
}

fn head((codec, dictionary): (Codec, u16), bytes: u64, payload: usize, pieces: usize, summed: &[u8]) -> Object {
    debug_assert!(bytes <= GROUP && pieces <= PIECES_MAX);
    let (bytes, payload, pieces) = (bytes as u32, payload as u32, pieces as u8);
    let object = Object { users: 1, sum: 0, codec, bytes, payload, pieces, spilled: false, dictionary };
    Object { sum: object.sum_of(summed), ..object }
}

/// Returns the head of an object whose payload is in the spill file.
pub(crate) fn spilled_head((codec, dictionary): (Codec, u16), bytes: u64, payload: &[u8]) -> Object {
    let object = Object { spilled: true, ..head((codec, dictionary), bytes, payload.len(), 0, &[]) };
    Object { sum: object.sum_of(payload), ..object }
}

/// Makes a spilled object whose payload is durable at `place`; returns its slot.
pub(crate) fn make_spilled(
    tx: &mut Tx<'_>,
    owner: &mut impl Owner,
    object: &Object,
    place: SpillPlace,
) -> Result<SlotRef> {
    let slot = owner.take(tx, object.payload_at() as u64)?;
    owner.take_spilled(object.spilled_bytes());
    let mut bytes = object.encode().to_vec();
    bytes.extend(place.encode(object));
    tx.write(slot.offset(), &bytes)?;
    Ok(slot)
}

/// Gives back an object with its pieces. The pieces of a damaged object may belong to another file:
/// they stay allocated, and `shoal check --repair` frees what nothing refers to.
pub(crate) fn give_back(tx: &mut Tx<'_>, owner: &mut impl Owner, slot: SlotRef) -> Result<()> {
    match Placed::load(tx, slot).and_then(|placed| placed.verify_references(tx).map(|()| placed)) {
        Ok(placed) => placed.give(tx, owner),
        Err(Error::Corrupt(_)) => owner.give(tx, slot),
        Err(error) => Err(error),
    }
}

/// Moves the pieces behind an object's first one that are `wanted`; returns their bytes.
pub(crate) fn relocate_pieces(tx: &mut Tx<'_>, slot: SlotRef, wanted: impl Fn(SlotRef) -> bool) -> Result<u64> {
    let placed = Placed::load(tx, slot)?;
    if !placed.pieces().iter().any(|&piece| wanted(piece)) {
        return Ok(0);
    }
    placed.verify_references(tx)?;
    let mut moved = 0;
    for (number, &piece) in placed.pieces().iter().enumerate() {
        if wanted(piece)
            && let Some(new) = tx.relocate(piece)?
        {
            tx.write(placed.reference_at(number), &new.bits().to_le_bytes())?;
            moved += new.capacity();
        }
    }
    Ok(moved)
}
