//! Data of files in the region: one slot ([`Layout::Direct`]) or a map of 32 KiB chunks ([`Layout::Chunked`]).
//!
//! Functions here build one transaction and change the inode in memory. The caller stores the inode
//! and commits. After an error the caller drops both.
//! Rules:
//! - `inode.allocated` follows every piece taken or given.
//! - A piece's bytes behind the file's end are undefined within the chunk that holds the end;
//!   pieces of chunks wholly behind it (preallocated) hold zeros. So an operation that moves the
//!   end zeroes the rest of one chunk only.
//! - A chunk's slot is as long as what was written into it, and grows by half when that is exceeded, so that a file
//!   written byte by byte is not copied at every byte. A first write gets the class that fits it.
//! - A map grows by half, too; above 512 KiB it takes the longest run at once, because a record
//!   could not carry the copy.
//!
//! Left out: locks, times, steps of long operations (`file`), the move to the bulk device (`large`).

use std::ops::Range;

use shoal_format::inode::{CHUNK, INODE_SUMMED, Inode, Layout};
use shoal_format::object::{ChunkRef, Codec, GROUP, GROUP_CHUNKS, sum_in_slot};
use shoal_format::slot::RUN_SEGMENTS_MAX;
use shoal_format::{Offset, SEGMENT, SlotRef};
use shoal_region::{Tx, View};

use crate::cold::objects::{self, Objects, Placed};
use crate::cold::owner::Group;
use crate::extents::{give, take};
use crate::file::Stretch;
use crate::planted::{Bug, is_planted};
use crate::{Error, Result};

/// Most chunks that one transaction frees or allocates.
pub(crate) const CHUNKS_PER_STEP: u64 = 2048;
/// Most bytes of data that one transaction writes. A multiple of [`CHUNK`].
pub(crate) const STEP_BYTES: u64 = 256 << 10;
/// Most entries of a map: one run.
const MAP_ENTRIES_MAX: u64 = RUN_SEGMENTS_MAX * SEGMENT / 8;
const HOLE: ChunkRef = ChunkRef::Slot(SlotRef::NONE);
/// Longest map that is still copied (bytes).
const MAP_COPY_MAX: u64 = 512 << 10;
/// Longest range one entry of a record zeroes (bytes).
const ZERO_BYTES: u64 = 2 << 20;

fn zero(tx: &mut Tx<'_>, mut at: Offset, mut len: u64) -> Result<()> {
    while len > 0 {
        let step = len.min(ZERO_BYTES);
        tx.zero(at, step)?;
        (at, len) = (at + step, len - step);
    }
    Ok(())
}

/// Returns how many chunks the file's pieces can hold: entries of the map, or the one slot.
pub(crate) fn chunk_count(inode: &Inode) -> u64 {
    match inode.layout {
        Layout::Direct => 1,
        Layout::Chunked => inode.root.capacity() / 8,
        Layout::Packed => inode.size.div_ceil(CHUNK),
        _ => 0,
    }
}

/// Returns what holds a chunk.
pub(crate) fn chunk_ref(view: &impl View, inode: &Inode, chunk: u64) -> Result<ChunkRef> {
    if chunk >= chunk_count(inode) {
        return Ok(ChunkRef::Slot(SlotRef::NONE));
    }
    match inode.layout {
        Layout::Direct => Ok(ChunkRef::Slot(inode.root)),
        Layout::Packed => Ok(ChunkRef::Packed(inode.root)),
        _ => decode(view.read_u64(inode.root.offset() + chunk * 8)?),
    }
}

/// Does what [`chunk_ref`] does, for a caller that follows the reference to an object. A map has no
/// sum, but all chunks of a packed group that hold a part of the file have the same entry.
/// Otherwise the map is damaged, and the object may belong to another file.
pub(crate) fn sure_ref(view: &impl View, inode: &Inode, chunk: u64) -> Result<ChunkRef> {
    let first = chunk / GROUP_CHUNKS * GROUP_CHUNKS;
    let end = inode.size.div_ceil(CHUNK).min(chunk_count(inode)).min(first + GROUP_CHUNKS);
    if inode.layout != Layout::Chunked || chunk >= end {
        return chunk_ref(view, inode, chunk);
    }
    let mut bytes = [0; GROUP_CHUNKS as usize * 8];
    let entries = &mut bytes[..(end - first) as usize * 8];
    view.read(inode.root.offset() + first * 8, entries)?;
    let found = decode(entry_at(entries, chunk - first))?;
    if !is_group(entries) && !is_planted(Bug::MapBelieved) {
        return Err(several_objects(first));
    }
    Ok(found)
}

fn several_objects(chunk: u64) -> Error {
    Error::Corrupt(format!("chunk map gives chunk {chunk} and those behind it several objects; run `shoal check`"))
}

fn entry_at(entries: &[u8], number: u64) -> u64 {
    u64::from_le_bytes(entries[number as usize * 8..][..8].try_into().expect("eight bytes"))
}

/// Returns whether a group's chunks are what they may be: slots and holes, or all the same object.
fn is_group(entries: &[u8]) -> bool {
    let is_packed = entries.chunks_exact(8).any(|entry| entry[7] & 0x80 != 0);
    !is_packed || entries.chunks_exact(8).all(|entry| *entry == entries[..8])
}

/// Returns the slot of a chunk that is not packed; none for a hole.
pub(crate) fn chunk_slot(view: &impl View, inode: &Inode, chunk: u64) -> Result<SlotRef> {
    plain(chunk_ref(view, inode, chunk)?)
}

fn decode(bits: u64) -> Result<ChunkRef> {
    ChunkRef::decode(bits).ok_or_else(|| Error::Corrupt(format!("chunk map holds {bits:#x}; run `shoal check`")))
}

/// Returns the slot of a chunk that is about to change, and was therefore unpacked.
fn plain(of_chunk: ChunkRef) -> Result<SlotRef> {
    match of_chunk {
        ChunkRef::Slot(slot) => Ok(slot),
        ChunkRef::Packed(slot) => Err(Error::Corrupt(format!("chunk is packed in {slot:?}; run `shoal check`"))),
    }
}

fn set_chunk(tx: &mut Tx<'_>, inode: &mut Inode, chunk: u64, of_chunk: ChunkRef) -> Result<()> {
    if inode.layout != Layout::Direct {
        return Ok(tx.write(inode.root.offset() + chunk * 8, &of_chunk.bits().to_le_bytes())?);
    }
    inode.root = plain(of_chunk)?;
    if inode.root.is_none() {
        inode.layout = Layout::Empty;
    }
    Ok(())
}

/// Moves the `wanted` pieces of a chunk out of draining segments: its slot, or the object of a
/// group that begins with it. Returns how many bytes it moved. The inode does not change: the
/// caller moves the root.
pub(crate) fn relocate_chunk(
    tx: &mut Tx<'_>,
    inode: &mut Inode,
    chunk: u64,
    wanted: impl Fn(SlotRef) -> bool,
) -> Result<u64> {
    let (slot, is_object) = match sure_ref(tx, inode, chunk)? {
        ChunkRef::Slot(slot) => (slot, false),
        ChunkRef::Packed(head) if chunk.is_multiple_of(GROUP_CHUNKS) => (head, true),
        ChunkRef::Packed(_) => return Ok(0),
    };
    let mut moved = if is_object { objects::relocate_pieces(tx, slot, &wanted)? } else { 0 };
    if inode.layout != Layout::Chunked || slot.is_none() || !wanted(slot) {
        return Ok(moved);
    }
    let Some(new) = tx.relocate(slot)? else { return Ok(moved) };
    moved += new.capacity();
    if is_object {
        replace_object(tx, inode, chunk / GROUP_CHUNKS, slot, new)?;
    } else {
        set_chunk(tx, inode, chunk, ChunkRef::Slot(new))?;
    }
    Ok(moved)
}

/// Puts the bytes `raw` of a packed group back into chunks. The last chunk has room up to byte
/// `room` of the group.
pub(crate) fn unpack_group(tx: &mut Tx<'_>, inode: &mut Inode, group: u64, raw: &[u8], room: u64) -> Result<()> {
    let first = group * GROUP_CHUNKS;
    let ChunkRef::Packed(object) = chunk_ref(tx, inode, first)? else { return Ok(()) };
    let placed = Placed::load(tx, object)?;
    let mut slots = Vec::with_capacity(GROUP_CHUNKS as usize);
    if placed.object.codec == Codec::InPlace {
        slots.extend(placed.pieces());
        give(tx, inode, object)?;
        // Free the pieces behind the end of a file that was truncated.
        for slot in slots.drain(raw.len().div_ceil(CHUNK as usize)..) {
            give(tx, inode, slot)?;
        }
    } else {
        for (bytes, at) in raw.chunks(CHUNK as usize).zip((0..).step_by(CHUNK as usize)) {
            let slot = take(tx, inode, room.saturating_sub(at).clamp(bytes.len() as u64, CHUNK))?;
            tx.write(slot.offset(), bytes)?;
            slots.push(slot);
        }
        placed.give(tx, &mut Group { inode: &mut *inode, number: group })?;
    }
    put_chunks(tx, inode, first, &slots)
}

/// Puts another object in the place of a packed group's object.
pub(crate) fn replace_object(tx: &mut Tx<'_>, inode: &mut Inode, group: u64, old: SlotRef, new: SlotRef) -> Result<()> {
    if inode.layout == Layout::Packed {
        inode.root = new;
        return Ok(());
    }
    for chunk in (group * GROUP_CHUNKS..chunk_count(inode)).take(GROUP_CHUNKS as usize) {
        if chunk_ref(tx, inode, chunk)? == ChunkRef::Packed(old) {
            set_chunk(tx, inode, chunk, ChunkRef::Packed(new))?;
        }
    }
    Ok(())
}

/// Puts these chunks in the place of a packed group's object.
fn put_chunks(tx: &mut Tx<'_>, inode: &mut Inode, first: u64, slots: &[SlotRef]) -> Result<()> {
    if let (Layout::Packed, &[slot]) = (inode.layout, slots) {
        (inode.layout, inode.root) = (Layout::Direct, slot);
        return Ok(());
    }
    if inode.layout == Layout::Packed {
        (inode.layout, inode.root) = (Layout::Empty, SlotRef::NONE);
        ensure_map(tx, inode, slots.len() as u64)?;
    }
    write_refs(tx, inode, first, slots.iter().map(|&slot| ChunkRef::Slot(slot)))
}

fn write_refs(tx: &mut Tx<'_>, inode: &Inode, first: u64, refs: impl Iterator<Item = ChunkRef>) -> Result<()> {
    let bytes: Vec<u8> = refs.flat_map(|of_chunk| of_chunk.bits().to_le_bytes()).collect();
    Ok(tx.write(inode.root.offset() + first * 8, &bytes)?)
}

/// Returns the chunks of a group if they can be packed; `None` if one is a hole, or already packed.
pub(crate) fn plain_group(view: &impl View, inode: &Inode, group: u64) -> Result<Option<Vec<SlotRef>>> {
    let first = group * GROUP_CHUNKS;
    let chunks = inode.size.div_ceil(CHUNK).min(first + GROUP_CHUNKS);
    let mut slots = Vec::with_capacity(GROUP_CHUNKS as usize);
    for chunk in first..chunks {
        match chunk_ref(view, inode, chunk)? {
            ChunkRef::Slot(slot) if !slot.is_none() => slots.push(slot),
            _ => return Ok(None),
        }
    }
    Ok((!slots.is_empty()).then_some(slots))
}

/// What becomes of a group's chunks when an object takes their place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaced {
    Freed,
    /// They are the object's pieces.
    Kept,
}

/// Puts an object in the place of a group's chunks.
pub(crate) fn pack_group(
    tx: &mut Tx<'_>,
    inode: &mut Inode,
    group: u64,
    chunks: &[SlotRef],
    object: SlotRef,
    replaced: Replaced,
) -> Result<()> {
    if replaced == Replaced::Freed {
        for &slot in chunks {
            give(tx, inode, slot)?;
        }
    }
    if inode.size <= GROUP {
        if inode.layout == Layout::Chunked {
            give(tx, inode, inode.root)?;
        }
        (inode.layout, inode.root) = (Layout::Packed, object);
        return Ok(());
    }
    let refs = std::iter::repeat_n(ChunkRef::Packed(object), chunks.len());
    write_refs(tx, inode, group * GROUP_CHUNKS, refs)
}

/// Bytes of a read that are in the spill file.
pub(crate) struct Spilled {
    /// Where the bytes go.
    pub out: Range<usize>,
    /// The byte of the group that they begin with.
    pub within: u64,
    pub placed: Placed,
}

impl Spilled {
    /// Copies the part of the group's `bytes` to its place in what is read.
    pub fn fill(&self, bytes: &[u8], out: &mut [u8]) {
        let out = &mut out[self.out.clone()];
        let from = bytes.len().min(self.within as usize);
        let stored = (bytes.len() - from).min(out.len());
        out[..stored].copy_from_slice(&bytes[from..from + stored]);
        out[stored..].fill(0);
    }
}

/// Fills `out` from byte `at` of a file that has nothing in the spill file. The caller has clipped
/// `out` to the file's size.
pub(crate) fn read(view: &impl View, objects: &Objects, inode: &Inode, at: u64, out: &mut [u8]) -> Result<()> {
    match read_parts(view, objects, inode, at, out)?.is_empty() {
        true => Ok(()),
        false => Err(Error::Io("a part of the file is in the spill file".into())),
    }
}

/// Fills `out` from byte `at`, and returns the parts that are in the spill file.
pub(crate) fn read_parts(
    view: &impl View,
    objects: &Objects,
    inode: &Inode,
    at: u64,
    out: &mut [u8],
) -> Result<Vec<Spilled>> {
    let mut spilled = Vec::new();
    if inode.flags & INODE_SUMMED != 0 && !out.is_empty() {
        return read_summed(view, inode, at, out).map(|()| spilled);
    }
    let mut done = 0;
    while done < out.len() {
        let position = at + done as u64;
        let slot = match sure_ref(view, inode, position / CHUNK)? {
            ChunkRef::Slot(slot) => slot,
            ChunkRef::Packed(slot) => {
                let within = position % GROUP;
                let len = (GROUP - within).min((out.len() - done) as u64) as usize;
                let placed = Placed::load(view, slot)?;
                if placed.place.is_some() {
                    spilled.push(Spilled { out: done..done + len, within, placed });
                } else {
                    objects.read(view, &placed, within, &mut out[done..done + len])?;
                }
                done += len;
                continue;
            }
        };
        let within = position % CHUNK;
        let len = (CHUNK - within).min((out.len() - done) as u64);
        let part = &mut out[done..done + len as usize];
        let (stored, rest) = part.split_at_mut(slot.capacity().saturating_sub(within).min(len) as usize);
        if !stored.is_empty() {
            view.read(slot.offset() + within, stored)?;
        }
        rest.fill(0);
        done += len as usize;
    }
    Ok(spilled)
}

/// Reads from a file that has a sum, and verifies all of it.
fn read_summed(view: &impl View, inode: &Inode, at: u64, out: &mut [u8]) -> Result<()> {
    let size = inode.size as usize;
    let mut all = Vec::new();
    let bytes = if at == 0 && out.len() == size {
        &mut *out
    } else {
        all.resize(size, 0);
        &mut all[..]
    };
    let (stored, behind) = bytes.split_at_mut(size.min(inode.root.capacity() as usize));
    view.read(inode.root.offset(), stored)?;
    behind.fill(0);
    let found = sum_in_slot(bytes);
    if found != inode.rdev {
        let (at, expected) = (inode.root.offset().get(), inode.rdev);
        return Err(Error::Corrupt(format!(
            "data at {at:#x}: checksum is {found:#x}, expected {expected:#x}; run `shoal check`"
        )));
    }
    if !all.is_empty() {
        out.copy_from_slice(&all[at as usize..][..out.len()]);
    }
    Ok(())
}

/// Drops the sum of a file whose bytes are about to change.
pub(crate) fn forget_sum(inode: &mut Inode) {
    if inode.flags & INODE_SUMMED != 0 {
        inode.flags &= !INODE_SUMMED;
        inode.rdev = 0;
    }
}

/// Returns what the file's bytes from `at` on are. Ignores the file's size.
pub(crate) fn segment_at(view: &impl View, inode: &Inode, at: u64) -> Result<Stretch> {
    let chunk = at / CHUNK;
    if chunk >= chunk_count(inode) {
        return Ok(Stretch { is_data: false, until: u64::MAX });
    }
    let end = match chunk_ref(view, inode, chunk)? {
        ChunkRef::Slot(slot) => chunk * CHUNK + slot.capacity(),
        ChunkRef::Packed(_) => (chunk / GROUP_CHUNKS + 1) * GROUP,
    };
    let is_data = at < end;
    Ok(Stretch { is_data, until: if is_data { end } else { (chunk + 1) * CHUNK } })
}

/// Zeroes what is stored behind the file's end, up to `to`.
fn zero_gap(tx: &mut Tx<'_>, inode: &Inode, to: u64) -> Result<()> {
    let within = inode.size % CHUNK;
    if within == 0 || to <= inode.size {
        return Ok(());
    }
    let slot = chunk_slot(tx, inode, inode.size / CHUNK)?;
    let end = slot.capacity().min(within + (to - inode.size));
    if end > within {
        tx.zero(slot.offset() + within, end - within)?;
    }
    Ok(())
}

/// Gives the file a map that can hold `chunks` entries.
fn ensure_map(tx: &mut Tx<'_>, inode: &mut Inode, chunks: u64) -> Result<()> {
    if inode.layout == Layout::Chunked && chunk_count(inode) >= chunks {
        return Ok(());
    }
    if chunks > MAP_ENTRIES_MAX {
        return Err(Error::FileTooBig);
    }
    let mut bytes = (chunks + chunks / 2).max(4) * 8;
    if bytes > MAP_COPY_MAX {
        bytes = MAP_ENTRIES_MAX * 8;
    }
    replace_map(tx, inode, bytes)
}

/// Moves the map to a piece of `bytes`, or makes one. A slot that held the file becomes its first
/// chunk.
fn replace_map(tx: &mut Tx<'_>, inode: &mut Inode, bytes: u64) -> Result<()> {
    let map = take(tx, inode, bytes)?;
    let mut kept = 0;
    match inode.layout {
        Layout::Direct => {
            tx.write(map.offset(), &inode.root.bits().to_le_bytes())?;
            kept = 8;
        }
        Layout::Chunked => {
            kept = inode.root.capacity().min(map.capacity());
            let entries = tx.read_vec(inode.root.offset(), kept as usize)?;
            tx.write(map.offset(), &entries)?;
            give(tx, inode, inode.root)?;
        }
        _ => {}
    }
    zero(tx, map.offset() + kept, map.capacity() - kept)?;
    inode.root = map;
    inode.layout = Layout::Chunked;
    Ok(())
}

/// Allocates a slot that takes over from `old` (or none). Copies the first `valid` bytes except
/// `[from, to)`, which the caller writes, and zeroes all other bytes of the first `readable`. Frees
/// `old`.
fn replace_slot(
    tx: &mut Tx<'_>,
    inode: &mut Inode,
    old: SlotRef,
    len: u64,
    valid: u64,
    (from, to): (u64, u64),
    readable: u64,
) -> Result<SlotRef> {
    let slot = take(tx, inode, len)?;
    let valid = valid.min(old.capacity());
    let readable = readable.min(slot.capacity());
    for (start, end) in [(0, from), (to, readable)] {
        let copied = valid.min(end).max(start);
        if copied > start {
            let bytes = tx.read_vec(old.offset() + start, (copied - start) as usize)?;
            tx.write(slot.offset() + start, &bytes)?;
        }
        if end > copied {
            tx.zero(slot.offset() + copied, end - copied)?;
        }
    }
    if !old.is_none() {
        give(tx, inode, old)?;
    }
    Ok(slot)
}

/// Writes `bytes`, at most [`STEP_BYTES`], at byte `at`; the size follows.
#[inline]
pub(crate) fn write(tx: &mut Tx<'_>, inode: &mut Inode, at: u64, bytes: &[u8]) -> Result<()> {
    forget_sum(inode);
    let end = at + bytes.len() as u64;
    let size = inode.size.max(end);
    zero_gap(tx, inode, at)?;
    if size <= CHUNK && inode.layout != Layout::Chunked {
        inode.root = write_slot(tx, inode, inode.root, 0, at, bytes, size)?;
        inode.layout = Layout::Direct;
    } else {
        ensure_map(tx, inode, end.div_ceil(CHUNK))?;
        let (first, last) = (at / CHUNK, (end - 1) / CHUNK);
        let place = inode.root.offset() + first * 8;
        let mut entries = [[0; 8]; (STEP_BYTES / CHUNK) as usize + 1];
        let entries = &mut entries[..(last - first + 1) as usize];
        tx.read(place, entries.as_flattened_mut())?;
        let mut changed = false;
        for (chunk, entry) in (first..).zip(entries.iter_mut()) {
            let base = chunk * CHUNK;
            let (from, to) = (at.max(base), end.min(base + CHUNK));
            let part = &bytes[(from - at) as usize..(to - at) as usize];
            let old = plain(decode(u64::from_le_bytes(*entry))?)?;
            let slot = write_slot(tx, inode, old, base, from - base, part, size)?;
            changed |= slot != old;
            *entry = slot.bits().to_le_bytes();
        }
        if changed {
            tx.write(place, entries.as_flattened())?;
        }
    }
    inode.size = size;
    Ok(())
}

/// Writes within the chunk that begins at `base`; returns its slot, a new one if the old one was
/// too short.
#[inline]
fn write_slot(
    tx: &mut Tx<'_>,
    inode: &mut Inode,
    old: SlotRef,
    base: u64,
    at: u64,
    bytes: &[u8],
    size: u64,
) -> Result<SlotRef> {
    let end = at + bytes.len() as u64;
    let mut slot = old;
    if end > old.capacity() {
        let len = end.max(old.capacity() + old.capacity() / 2).min(CHUNK);
        let valid = inode.size.saturating_sub(base);
        slot = replace_slot(tx, inode, old, len, valid, (at, end), size - base)?;
    }
    tx.write(slot.offset() + at, bytes)?;
    Ok(slot)
}

/// Moves the file's end forward to `size`.
pub(crate) fn extend(tx: &mut Tx<'_>, inode: &mut Inode, size: u64) -> Result<()> {
    forget_sum(inode);
    zero_gap(tx, inode, size)?;
    if size > CHUNK && inode.layout == Layout::Direct {
        ensure_map(tx, inode, 1)?;
    }
    inode.size = inode.size.max(size);
    Ok(())
}

/// Frees at most [`CHUNKS_PER_STEP`] of the chunks `[keep, upto)`, the last ones first. Returns the
/// `upto` for the next call, or `keep` when all are free. `settle` must follow in the last
/// transaction.
pub(crate) fn drop_chunks(tx: &mut Tx<'_>, inode: &mut Inode, keep: u64, upto: u64) -> Result<u64> {
    if inode.layout != Layout::Chunked {
        if keep == 0 {
            free_all(tx, inode)?;
        }
        return Ok(keep);
    }
    let upto = upto.min(chunk_count(inode));
    let (mut freed, mut is_used) = (0, false);
    let mut from = upto;
    let mut bytes = [0; 4096];
    while from > keep && freed < CHUNKS_PER_STEP {
        let first = keep.max(from.saturating_sub(512)).max(from - (CHUNKS_PER_STEP - freed).min(from));
        let entries = &mut bytes[..(from - first) as usize * 8];
        tx.read(inode.root.offset() + first * 8, entries)?;
        // The rest of a group whose beginning stays frees nothing, but its entries have to be
        // zeroed, too.
        is_used |= entries.iter().any(|&byte| byte != 0);
        freed += free_entries(tx, inode, first, entries)?;
        from = first;
    }
    if is_used {
        zero(tx, inode.root.offset() + from * 8, (upto - from) * 8)?;
    }
    Ok(from.max(keep))
}

/// Brings pieces down to the size that is left, after the chunks behind the end were freed.
pub(crate) fn settle(tx: &mut Tx<'_>, inode: &mut Inode) -> Result<()> {
    forget_sum(inode);
    if inode.layout == Layout::Chunked {
        let chunks = inode.size.div_ceil(CHUNK);
        let first = chunk_ref(tx, inode, 0)?;
        if let (ChunkRef::Packed(object), 1..=GROUP_CHUNKS) = (first, chunks) {
            give(tx, inode, inode.root)?;
            (inode.layout, inode.root) = (Layout::Packed, object);
        } else if chunks <= 1 {
            let slot = if chunks == 0 { SlotRef::NONE } else { chunk_slot(tx, inode, 0)? };
            give(tx, inode, inode.root)?;
            inode.root = slot;
            inode.layout = if slot.is_none() { Layout::Empty } else { Layout::Direct };
        } else if chunks * 8 * 4 < inode.root.capacity() && chunks * 8 <= MAP_COPY_MAX {
            unless_full(replace_map(tx, inode, (chunks * 8).max(32)))?;
        }
    }
    if inode.layout == Layout::Direct && inode.size * 2 <= inode.root.capacity() && inode.root.capacity() > 64 {
        let (old, size) = (inode.root, inode.size);
        if let Some(slot) = unless_full(replace_slot(tx, inode, old, size, size, (size, size), size))? {
            inode.root = slot;
        }
    }
    Ok(())
}

/// Turns a lack of room into `None`: a piece that stays longer than necessary is no reason to fail.
/// Replacing a piece begins with the allocation, so nothing has changed when that fails.
fn unless_full<T>(outcome: Result<T>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Error::NoSpace(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Frees what the entries of a chunk map from number `first` on refer to; returns how many pieces
/// and objects it freed. The first chunk of a group frees the group's object.
fn free_entries(tx: &mut Tx<'_>, inode: &mut Inode, first: u64, entries: &[u8]) -> Result<u64> {
    let mut freed = 0;
    for (chunk, rest) in (first..).zip((0..entries.len()).step_by(8).map(|at| &entries[at..])) {
        match decode(entry_at(rest, 0))? {
            ChunkRef::Slot(slot) if slot.is_none() => continue,
            ChunkRef::Slot(slot) => give(tx, inode, slot)?,
            ChunkRef::Packed(slot) if chunk.is_multiple_of(GROUP_CHUNKS) => {
                let mut behind = rest.chunks_exact(8).take(GROUP_CHUNKS as usize);
                // The end of the group may be gone already.
                if !is_planted(Bug::MapBelieved) && !behind.all(|entry| *entry == rest[..8] || *entry == [0; 8]) {
                    return Err(several_objects(chunk));
                }
                give_object(tx, inode, chunk / GROUP_CHUNKS, slot)?;
            }
            ChunkRef::Packed(_) => continue,
        }
        freed += 1;
    }
    Ok(freed)
}

fn give_object(tx: &mut Tx<'_>, inode: &mut Inode, group: u64, slot: SlotRef) -> Result<()> {
    objects::give_back(tx, &mut Group { inode, number: group }, slot)
}

/// Frees everything at once. Returns false, and changes nothing, if that is too much for one
/// transaction.
pub(crate) fn free_all(tx: &mut Tx<'_>, inode: &mut Inode) -> Result<bool> {
    forget_sum(inode);
    match inode.layout {
        Layout::Empty => return Ok(true),
        Layout::Direct => give(tx, inode, inode.root)?,
        Layout::Packed => give_object(tx, inode, 0, inode.root)?,
        Layout::Chunked => {
            let chunks = chunk_count(inode);
            if chunks > CHUNKS_PER_STEP {
                return Ok(false);
            }
            let entries = tx.read_vec(inode.root.offset(), chunks as usize * 8)?;
            free_entries(tx, inode, 0, &entries)?;
            give(tx, inode, inode.root)?;
        }
        _ => return Ok(false),
    }
    inode.root = SlotRef::NONE;
    inode.layout = Layout::Empty;
    Ok(true)
}

/// Backs `[at, end)`, at most [`CHUNKS_PER_STEP`] chunks, with slots. With `erase` the range reads
/// as zeros afterwards. `size` is the file's size after the change.
pub(crate) fn allocate(tx: &mut Tx<'_>, inode: &mut Inode, at: u64, end: u64, erase: bool, size: u64) -> Result<()> {
    forget_sum(inode);
    if end.max(size) > CHUNK {
        ensure_map(tx, inode, end.div_ceil(CHUNK))?;
    } else if inode.layout == Layout::Empty {
        inode.root = replace_slot(tx, inode, SlotRef::NONE, end, 0, (0, 0), CHUNK)?;
        inode.layout = Layout::Direct;
    }
    for chunk in at / CHUNK..end.div_ceil(CHUNK) {
        let base = chunk * CHUNK;
        let (from, to) = (at.max(base) - base, (end - base).min(CHUNK));
        let old = chunk_slot(tx, inode, chunk)?;
        if to > old.capacity() {
            let valid = inode.size.saturating_sub(base);
            let range = if erase { (from, to) } else { (0, 0) };
            let slot = replace_slot(tx, inode, old, to, valid, range, CHUNK)?;
            set_chunk(tx, inode, chunk, ChunkRef::Slot(slot))?;
            if erase {
                tx.zero(slot.offset() + from, to - from)?;
            }
        } else if erase {
            tx.zero(old.offset() + from, to - from)?;
        }
    }
    Ok(())
}

/// Turns `[at, end)`, at most [`CHUNKS_PER_STEP`] chunks, into a hole: frees whole slots and
/// objects, zeroes parts. A packed group lies wholly within the range.
pub(crate) fn punch(tx: &mut Tx<'_>, inode: &mut Inode, at: u64, end: u64) -> Result<()> {
    forget_sum(inode);
    for chunk in at / CHUNK..end.div_ceil(CHUNK).min(chunk_count(inode)) {
        let base = chunk * CHUNK;
        let (from, to) = (at.max(base) - base, (end - base).min(CHUNK));
        // Only the first chunk of a group is compared with the others: it is a hole by the time
        // they follow.
        let of_chunk = if chunk.is_multiple_of(GROUP_CHUNKS) { sure_ref } else { chunk_ref }(tx, inode, chunk)?;
        let slot = match of_chunk {
            ChunkRef::Slot(slot) => slot,
            ChunkRef::Packed(_) if inode.layout == Layout::Packed => return free_all(tx, inode).map(drop),
            ChunkRef::Packed(slot) => {
                if chunk.is_multiple_of(GROUP_CHUNKS) {
                    give_object(tx, inode, chunk / GROUP_CHUNKS, slot)?;
                }
                set_chunk(tx, inode, chunk, HOLE)?;
                continue;
            }
        };
        if slot.is_none() || from >= slot.capacity() {
            continue;
        }
        if from == 0 && (to >= slot.capacity() || base + to >= inode.size) {
            give(tx, inode, slot)?;
            set_chunk(tx, inode, chunk, HOLE)?;
        } else {
            tx.zero(slot.offset() + from, to.min(slot.capacity()) - from)?;
        }
    }
    Ok(())
}
