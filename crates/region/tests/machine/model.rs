//! The expected contents of the region: one state for every committed transaction.
//!
//! The roots page lists the test's objects: a counter, then a slot reference and the start of its
//! window for each object, then words whose bits are set and cleared. Every transaction writes the
//! counter, so a recovered region names the state it claims to be in. It is compared with exactly
//! that state: bytes, references, and the allocator's tables, decoded with the formats alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use shoal_format::segment::{SEGMENT_ENTRY, SegmentEntry, SegmentUse};
use shoal_format::slot::{CLASS_SIZES, class_geometry};
use shoal_format::superblock::ROOTS_AT;
use shoal_format::{Offset, SlotRef};
use shoal_region::{Region, View};

pub const OBJECTS: usize = 20;
pub const WORDS: usize = 8;

pub fn object_at(object: usize) -> Offset {
    ROOTS_AT + 8 + object as u64 * 16
}

pub fn word_at(word: usize) -> Offset {
    ROOTS_AT + 2048 + word as u64 * 8
}

/// An allocated piece, and the bytes written into a window of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    pub slot: SlotRef,
    /// Offset of the window in the piece.
    pub start: u64,
    pub bytes: Arc<Vec<u8>>,
}

impl Object {
    pub fn at(&self) -> Offset {
        self.slot.offset() + self.start
    }
}

/// The region after some number of transactions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    pub objects: [Option<Object>; OBJECTS],
    pub words: [u64; WORDS],
}

/// Returns the state that the region claims to be in.
pub fn claimed(region: &Region) -> Result<u64, String> {
    region.read_u64(ROOTS_AT).map_err(|e| format!("reading the counter: {e}"))
}

/// Compares the region with one state, byte for byte.
pub fn compare(region: &Region, state: &State) -> Result<(), String> {
    let fail = |what: &str, e: &dyn std::fmt::Display| format!("{what}: {e}");
    for (number, object) in state.objects.iter().enumerate() {
        let bits = region.read_u64(object_at(number)).map_err(|e| fail("object table", &e))?;
        let start = region.read_u64(object_at(number) + 8).map_err(|e| fail("object table", &e))?;
        let slot = object.as_ref().map_or(SlotRef::NONE, |o| o.slot);
        if (bits, start) != (slot.bits(), object.as_ref().map_or(0, |o| o.start)) {
            return Err(format!("object {number} is {bits:#x}, window at {start}; expected {slot:?}"));
        }
        let Some(object) = object else { continue };
        let bytes = &object.bytes;
        let found = region.read_vec(object.at(), bytes.len()).map_err(|e| fail("object", &e))?;
        if let Some(at) = (0..bytes.len()).find(|&i| found[i] != bytes[i]) {
            return Err(format!(
                "object {number} ({slot:?}): byte {at} is {:#x}, expected {:#x}",
                found[at], bytes[at]
            ));
        }
    }
    for (number, &word) in state.words.iter().enumerate() {
        let found = region.read_u64(word_at(number)).map_err(|e| fail("bit words", &e))?;
        if found != word {
            return Err(format!("word {number} is {found:#x}, expected {word:#x}"));
        }
    }
    let expected: BTreeSet<SlotRef> = state.objects.iter().flatten().map(|o| o.slot).collect();
    let allocated = allocated(region)?;
    if allocated != expected {
        let leaked: Vec<_> = allocated.difference(&expected).collect();
        let missing: Vec<_> = expected.difference(&allocated).collect();
        return Err(format!("allocated but unreachable: {leaked:?}; reachable but free: {missing:?}"));
    }
    Ok(())
}

/// Returns every piece that the region's tables call allocated.
fn allocated(region: &Region) -> Result<BTreeSet<SlotRef>, String> {
    let superblock = region.superblock();
    let table = region
        .read_vec(superblock.segment_table, (superblock.segment_count * SEGMENT_ENTRY) as usize)
        .map_err(|e| format!("segment table: {e}"))?;
    let mut out = BTreeSet::new();
    let mut body = 0;
    for (number, entry) in table.chunks_exact(SEGMENT_ENTRY as usize).enumerate() {
        let base = Offset::of_segment(number as u64);
        let (usage, bitmap) = SegmentEntry::decode(entry.try_into().expect("chunk size"))
            .map_err(|e| format!("segment {number}: {e}"))?;
        if (usage == SegmentUse::RunBody) != (body > 0) {
            return Err(format!("segment {number} is {usage:?} where {body} more of a run were expected"));
        }
        body -= (body > 0) as u32;
        match usage {
            SegmentUse::RunHead(segments) => {
                body = segments - 1;
                out.insert(SlotRef::run(base, segments as u64));
            }
            SegmentUse::Slots(class) => {
                let (slots, first) = class_geometry(class);
                for word in 0..slots.div_ceil(64) {
                    let bits = match slots <= 64 {
                        true => bitmap,
                        false => region.read_u64(base + word as u64 * 8).map_err(|e| format!("bitmap: {e}"))?,
                    };
                    for bit in (0..64).filter(|bit| bits >> bit & 1 == 1) {
                        let index = word * 64 + bit;
                        if index >= slots {
                            return Err(format!("segment {number} of class {class} has slot {index} of {slots}"));
                        }
                        out.insert(SlotRef::slot(base + (first + index * CLASS_SIZES[class as usize]) as u64, class));
                    }
                }
            }
            SegmentUse::Free | SegmentUse::RunBody | SegmentUse::Reserved => {}
        }
    }
    Ok(out)
}
