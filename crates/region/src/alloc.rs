//! The allocator: 64 KiB segments, cut into slots of one size class each, or joined to runs.
//!
//! State exists twice: the persistent copy (segment table and bitmaps, changed only by log records)
//! and the volatile copy here, which decides. An allocation takes a slot from the volatile state at
//! once and sets its persistent bit when the transaction commits; an abort gives it back. A free
//! clears the persistent bit with the transaction's record and returns the slot to the volatile
//! state afterwards, still under the commit lock. A segment is given to a class by a record of its
//! own, which is harmless if the transaction that wanted it aborts.
//! A bitmap inside its segment is read when the segment is first needed, provided the image said
//! how many of its slots are in use. Otherwise a mount would read every segment. Every change of a
//! bitmap reads it first ([`Region::check_allocated`]). So does emptying a segment or taking it
//! from its class.
//! The last 1/32 of the segments serve only transactions that free space in the end. So do the last
//! segments that have room on the host (`room`). `drain` empties sparse segments and gives the
//! memory of free segments back to the machine.
//!
//! One file of over 500 lines: every function maintains the same private counts of segments and
//! slots.

use std::sync::Arc;

use shoal_format::record::{Entry, RECORD_HEADER, RecordKind};
use shoal_format::segment::{SEGMENT_ENTRY, SEGMENT_ENTRY_BITMAP, SegmentEntry, SegmentUse};
use shoal_format::slot::{CLASS_SIZES, CLASSES, RUN_SEGMENTS_MAX, class_for, class_geometry};
use shoal_format::superblock::Superblock;
use shoal_format::{Offset, SEGMENT, SlotRef};
use shoal_media::PersistentMemory;
use zerocopy::IntoBytes;

use crate::drain::{Drain, Rest};
use crate::planted::{Bug, is_planted};
use crate::room::HELD_BACK;
use crate::{CommitState, Error, Lack, Region, Reserve, Result, Tx};

/// How full a region is, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// The region's limit.
    pub region_bytes: u64,
    /// Superblock, tables and ring.
    pub fixed_bytes: u64,
    /// Free segments and free slots, the reserve included.
    pub free_bytes: u64,
    /// The part of `free_bytes`, without the reserve, that can hold pieces of any size once sparse
    /// segments are compacted.
    pub usable_bytes: u64,
    /// The part of `usable_bytes` that needs no more room on the host.
    pub backed_usable_bytes: u64,
    /// The part of `free_bytes` only unlink and truncate may use.
    pub reserve_bytes: u64,
    /// Bytes up to the last segment ever used: what an image holds.
    pub touched_bytes: u64,
    /// The part of `free_bytes` that ordinary transactions can use without more room on the host.
    pub backed_bytes: u64,
    /// The part of the region that has room reserved on the host.
    pub reserved_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    Free,
    /// Taken for a class whose record is not in the log yet. The allocator's lock is not held
    /// meanwhile.
    Assigning,
    Slots(u8),
    Run,
    Reserved,
}

pub(crate) struct Segment {
    pub usage: Usage,
    /// In the list of segments of its class that have free slots.
    pub listed: bool,
    /// Being emptied (`drain`): nothing is allocated here.
    pub draining: bool,
    /// Was drained without success, and no slot was freed here since.
    pub stuck: bool,
    /// Whether its memory was given back (`drain`).
    pub rest: Rest,
    /// Free here, but the table still assigns it to a class. The next opening needs the zeroed
    /// bitmap at its start.
    pub has_bitmap: bool,
    /// Free slots.
    pub free: u16,
    /// No word of the bitmap before this index has a free slot.
    hint: u16,
    /// Bits in use, for classes of at most 64 slots.
    word: u64,
    /// Bits in use, for larger classes; `None` until the bitmap is read.
    words: Option<Box<[u64]>>,
    /// `free` comes from the image; the bitmap has not been read from the region's memory.
    unread: bool,
}

impl Segment {
    pub fn new(usage: Usage) -> Segment {
        Segment {
            usage,
            listed: false,
            draining: false,
            stuck: false,
            rest: Rest::Touched,
            has_bitmap: false,
            free: 0,
            hint: 0,
            word: 0,
            words: None,
            unread: false,
        }
    }
}

/// Slots in use per segment, for classes whose bitmap lies in the segment. [`UNKNOWN`] means: read
/// the bitmap.
pub(crate) type UsedSlots = Vec<u16>;
pub(crate) const UNKNOWN: u16 = u16::MAX;

pub(crate) struct Allocator {
    memory: Arc<dyn PersistentMemory>,
    pub segments: Vec<Segment>,
    pub partial: [Vec<u32>; CLASSES],
    pub free_segments: u64,
    /// Segments of some class with no slot in use.
    pub empty_segments: u64,
    free_slot_bytes: u64,
    /// Segments of each class, and slots in use in them.
    pub class_segments: [u64; CLASSES],
    pub class_used: [u64; CLASSES],
    pub drain: Drain,
    pub reserve: u64,
    /// Free segments, in addition to the reserve, that ordinary transactions must leave. Lowers the
    /// limit below that of the layout.
    pub withheld: u64,
    pub cursor: usize,
    pub high: u64,
    fixed: u64,
    /// Segments with room on the host, counted from the region's start.
    pub backed: u64,
}

/// The reserve as a fraction of the region's segments, and its minimum. Only transactions that free
/// space may take it.
const RESERVE_PART: u64 = 32;
const RESERVE_MIN: u64 = 2;

fn entry_at(superblock: &Superblock, segment: u64) -> Offset {
    superblock.segment_table + segment * SEGMENT_ENTRY
}

/// Returns the location of a slot's bit: the offset of its word, and the mask.
fn bit_of(superblock: &Superblock, slot: SlotRef) -> (Offset, u64) {
    let (slots, _) = class_geometry(slot.class());
    let index = slot.index() as u64;
    let at = if slots <= 64 {
        entry_at(superblock, slot.segment()) + SEGMENT_ENTRY_BITMAP
    } else {
        Offset::of_segment(slot.segment()) + index / 64 * 8
    };
    (at, 1 << (index % 64))
}

fn bitmap_of(memory: &dyn PersistentMemory, segment: usize, slots: u32) -> Box<[u64]> {
    (0..slots.div_ceil(64) as u64).map(|word| memory.read_u64(segment as u64 * SEGMENT + word * 8)).collect()
}

/// Returns whether bits past the last slot are set. No writer sets them.
fn has_spare_bits(words: &[u64], slots: u32) -> bool {
    let spare = slots % 64;
    spare != 0 && words[words.len() - 1] >> spare != 0
}

/// Marks the segments of the fixed areas in a new region's table.
pub(crate) fn reserve_fixed(memory: &dyn PersistentMemory, superblock: &Superblock) {
    for segment in 0..superblock.reserved_segments() {
        memory.write(entry_at(superblock, segment).get(), SegmentEntry::new(SegmentUse::Reserved).as_bytes());
    }
}

impl Allocator {
    /// Builds the volatile state from the table, and from bitmaps where `used` gives no count.
    pub fn load(memory: &Arc<dyn PersistentMemory>, superblock: &Superblock, used: &[u16]) -> Result<Allocator> {
        let fixed = superblock.reserved_segments();
        let mut table = vec![0; (superblock.segment_count * SEGMENT_ENTRY) as usize];
        memory.read(superblock.segment_table.get(), &mut table);
        let mut alloc = Allocator {
            memory: memory.clone(),
            segments: Vec::with_capacity(superblock.segment_count as usize),
            partial: [const { Vec::new() }; CLASSES],
            free_segments: 0,
            empty_segments: 0,
            free_slot_bytes: 0,
            class_segments: [0; CLASSES],
            class_used: [0; CLASSES],
            drain: Drain::default(),
            reserve: ((superblock.segment_count - fixed) / RESERVE_PART).max(RESERVE_MIN),
            withheld: 0,
            cursor: fixed as usize,
            high: fixed,
            fixed,
            backed: 0,
        };
        let mut body_left = 0u32;
        for (number, bytes) in table.chunks_exact(SEGMENT_ENTRY as usize).enumerate() {
            let (usage, bitmap) = SegmentEntry::decode(bytes.try_into().expect("chunk size"))?;
            let damaged = |what| Err(Error::corrupt(what, entry_at(superblock, number as u64).get(), bytes[0] as u64));
            if (usage == SegmentUse::RunBody) != (body_left > 0) {
                return damaged("run of segments");
            }
            if (usage == SegmentUse::Reserved) != ((number as u64) < fixed) {
                return damaged("reserved segment");
            }
            body_left = body_left.saturating_sub(1);
            let mut segment = Segment { word: bitmap, ..Segment::new(Usage::Free) };
            match usage {
                SegmentUse::Free => {
                    // Only replay can have written to it since the opening.
                    segment.rest = Rest::Given;
                    alloc.free_segments += 1;
                }
                SegmentUse::Reserved => segment.usage = Usage::Reserved,
                SegmentUse::RunBody => segment.usage = Usage::Run,
                SegmentUse::RunHead(run) => {
                    segment.usage = Usage::Run;
                    body_left = run - 1;
                }
                SegmentUse::Slots(class) => {
                    segment.usage = Usage::Slots(class);
                    if !alloc.load_slots(&mut segment, number, class, used.get(number).copied()) {
                        return damaged("slot bitmap");
                    }
                }
            }
            if segment.usage != Usage::Free {
                alloc.high = number as u64 + 1;
            }
            alloc.segments.push(segment);
        }
        if body_left > 0 {
            return Err(Error::corrupt("run of segments", superblock.segment_table.get(), body_left as u64));
        }
        Ok(alloc)
    }

    /// Adds a segment of slots. `said` is the number of slots in use according to an image. Returns
    /// false if the bitmap is damaged.
    fn load_slots(&mut self, segment: &mut Segment, number: usize, class: u8, said: Option<u16>) -> bool {
        let (slots, _) = class_geometry(class);
        let used = match said.map(u32::from).filter(|&used| used <= slots) {
            _ if slots <= 64 => segment.word.count_ones(),
            Some(used) => {
                segment.unread = true;
                used
            }
            None => {
                let words = bitmap_of(self.memory.as_ref(), number, slots);
                if has_spare_bits(&words, slots) {
                    return false;
                }
                let used = words.iter().map(|w| w.count_ones()).sum();
                segment.words = Some(words);
                used
            }
        };
        segment.free = (slots - used) as u16;
        self.free_slot_bytes += segment.free as u64 * CLASS_SIZES[class as usize] as u64;
        self.empty_segments += (used == 0) as u64;
        self.class_segments[class as usize] += 1;
        self.class_used[class as usize] += used as u64;
        if segment.free > 0 {
            segment.listed = true;
            self.partial[class as usize].push(number as u32);
        }
        true
    }

    pub fn used_bytes(&self) -> u64 {
        self.high * SEGMENT
    }

    /// Returns the slots in use for each of `segments`, committed or not, in the form that `load`
    /// takes later.
    pub fn used_slots(&self, segments: std::ops::Range<usize>) -> impl Iterator<Item = u16> {
        let end = segments.end.min(self.high as usize);
        self.segments[segments.start.min(end)..end].iter().map(|segment| match segment.usage {
            Usage::Slots(class) => class_geometry(class).0 as u16 - segment.free,
            _ => 0,
        })
    }

    /// Reads the bitmap of a segment that has slots, unless it was read before.
    ///
    /// No transaction that changes the bitmap is under way: it would have read the bitmap first.
    /// The image's count may include slots of transactions that never committed. Those slots become
    /// free here.
    pub fn read_bitmap(&mut self, number: usize) {
        let segment = &mut self.segments[number];
        let Usage::Slots(class) = segment.usage else { return };
        if !std::mem::take(&mut segment.unread) {
            return;
        }
        let (slots, _) = class_geometry(class);
        let mut words = bitmap_of(self.memory.as_ref(), number, slots);
        if has_spare_bits(&words, slots) {
            // A damaged bitmap: allocate nothing from this segment.
            words.fill(u64::MAX);
        }
        let used: u32 = words.iter().map(|w| w.count_ones()).sum();
        let (before, free) = (segment.free, slots.saturating_sub(used) as u16);
        (segment.words, segment.free) = (Some(words), free);
        let size = CLASS_SIZES[class as usize] as u64;
        self.free_slot_bytes = self.free_slot_bytes - before as u64 * size + free as u64 * size;
        self.empty_segments = self.empty_segments + (free as u32 == slots) as u64 - (before as u32 == slots) as u64;
        let class_used = &mut self.class_used[class as usize];
        *class_used = *class_used + before as u64 - free as u64;
        if free > 0 && !segment.listed && !segment.draining {
            segment.listed = true;
            self.partial[class as usize].push(number as u32);
        }
    }

    pub fn take_slot(&mut self, class: u8) -> Option<SlotRef> {
        let (slots, first) = class_geometry(class);
        let size = CLASS_SIZES[class as usize];
        loop {
            let number = *self.partial[class as usize].last()?;
            let segment = &mut self.segments[number as usize];
            // The list may still name segments that were given to another class or are being
            // drained.
            if segment.usage != Usage::Slots(class) || segment.free == 0 || segment.draining {
                if segment.usage == Usage::Slots(class) {
                    segment.listed = false;
                }
                self.partial[class as usize].pop();
                continue;
            }
            if segment.unread {
                self.read_bitmap(number as usize);
                continue;
            }
            let index = match &mut segment.words {
                None => {
                    let index = segment.word.trailing_ones();
                    segment.word |= 1 << index;
                    index
                }
                Some(words) => {
                    let mut word = segment.hint as usize;
                    while words[word] == u64::MAX {
                        word += 1;
                    }
                    segment.hint = word as u16;
                    let bit = words[word].trailing_ones();
                    words[word] |= 1 << bit;
                    word as u32 * 64 + bit
                }
            };
            debug_assert!(index < slots);
            self.empty_segments -= (segment.free as u32 == slots) as u64;
            segment.free -= 1;
            self.free_slot_bytes -= size as u64;
            self.class_used[class as usize] += 1;
            return Some(SlotRef::slot(Offset::of_segment(number as u64) + (first + index * size) as u64, class));
        }
    }

    fn give_back(&mut self, slot: SlotRef) {
        let number = slot.segment() as usize;
        if slot.is_run() {
            for segment in &mut self.segments[number..number + slot.run_segments() as usize] {
                // If the run's transaction did not commit, the table still assigns the segment to
                // its former class.
                *segment = Segment { has_bitmap: segment.has_bitmap, ..Segment::new(Usage::Free) };
            }
            self.free_segments += slot.run_segments();
            self.drain.touched += slot.run_segments();
            self.cursor = self.cursor.min(number);
            return;
        }
        let (slots, _) = class_geometry(slot.class());
        self.read_bitmap(number);
        let (index, segment) = (slot.index(), &mut self.segments[number]);
        let (word, bit) = (index as usize / 64, 1u64 << (index % 64));
        let bits = match &mut segment.words {
            None => &mut segment.word,
            Some(words) => &mut words[word],
        };
        assert!(*bits & bit != 0, "slot {slot:?} freed while free");
        *bits &= !bit;
        segment.hint = segment.hint.min(word as u16);
        segment.free += 1;
        segment.stuck = false;
        self.free_slot_bytes += slot.capacity();
        self.class_used[slot.class() as usize] -= 1;
        let emptied = segment.free as u32 == slots;
        self.empty_segments += emptied as u64;
        if segment.draining {
            if emptied {
                self.drained(number);
            }
        } else if !segment.listed {
            segment.listed = true;
            self.partial[slot.class() as usize].push(number as u32);
        }
    }

    /// Returns the number of segments that only transactions that free space in the end may take.
    pub fn kept(&self) -> u64 {
        self.reserve + self.withheld
    }

    pub fn may_take(&self, segments: u64, reserve: Reserve) -> bool {
        let free = self.free_segments + self.empty_segments;
        free >= segments + if reserve.is_open() || is_planted(Bug::ReserveForAll) { 0 } else { self.kept() }
    }

    /// Returns the end of the segments that a transaction may take because the host has room for
    /// them.
    pub fn limit(&self, reserve: Reserve) -> u64 {
        let count = self.segments.len() as u64;
        // If the whole region is backed, its own reserve is the tighter limit.
        match self.backed >= count || reserve.is_open() {
            true => self.backed.min(count),
            false => self.backed.saturating_sub(HELD_BACK),
        }
    }

    /// Takes the next free segment with room on the host, lowest first from the cursor.
    fn take_segment(&mut self, reserve: Reserve) -> Option<usize> {
        let limit = self.limit(reserve) as usize;
        if self.free_segments == 0 {
            return None;
        }
        let free = |s: &usize| self.is_free(*s);
        let found = (self.cursor..limit).find(free).or_else(|| (0..self.cursor.min(limit)).find(free))?;
        self.cursor = found + 1;
        self.free_segments -= 1;
        self.leave_rest(found);
        self.segments[found].usage = Usage::Assigning;
        Some(found)
    }

    /// Returns the first free segment, with or without room on the host.
    fn first_free(&self) -> Option<u64> {
        (self.free_segments > 0)
            .then(|| (0..self.segments.len()).find(|&number| self.is_free(number)))
            .flatten()
            .map(|found| found as u64)
    }

    /// Takes an empty segment from its class, to be given to another class.
    fn take_empty(&mut self) -> Option<usize> {
        if self.empty_segments == 0 {
            return None;
        }
        let found = (0..self.segments.len()).find(|&s| !self.drain.holds(s) && self.is_empty_slots(s))?;
        self.strip(found);
        self.leave_rest(found);
        self.segments[found].usage = Usage::Assigning;
        Some(found)
    }

    /// Returns whether the segment has a class and no slot in use.
    pub fn is_empty_slots(&mut self, number: usize) -> bool {
        let segment = &self.segments[number];
        let empty = |segment: &Segment| matches!(segment.usage, Usage::Slots(class) if segment.free as u32 == class_geometry(class).0);
        if empty(segment) && segment.unread {
            self.read_bitmap(number);
        }
        empty(&self.segments[number])
    }

    /// Takes an empty segment from its class.
    pub fn strip(&mut self, number: usize) {
        let Usage::Slots(class) = self.segments[number].usage else { unreachable!("an empty segment has a class") };
        self.empty_segments -= 1;
        self.class_segments[class as usize] -= 1;
        self.free_slot_bytes -= class_geometry(class).0 as u64 * CLASS_SIZES[class as usize] as u64;
        self.drain.touched += 1;
        let has_bitmap = class_geometry(class).1 > 0;
        let free = Segment { has_bitmap, ..Segment::new(Usage::Free) };
        if std::mem::replace(&mut self.segments[number], free).listed {
            self.partial[class as usize].retain(|&s| s as usize != number);
        }
    }

    pub fn find_run(&self, segments: u64) -> Option<usize> {
        let mut len = 0;
        for number in 0..self.segments.len() {
            len = if self.is_free(number) { len + 1 } else { 0 };
            if len == segments {
                return Some(number + 1 - segments as usize);
            }
        }
        None
    }
}

/// Returns the error for a caller that was refused `segments` after the region tried to grow.
fn refused(grown: Result<()>, segments: u64) -> Error {
    match grown {
        Ok(()) | Err(Error::NoSpace(_)) => Error::NoSpace(Lack { segments }),
        Err(error) => error,
    }
}

impl Region {
    /// Returns how full the region is.
    pub fn space(&self) -> Space {
        let alloc = self.alloc.lock();
        // Withheld segments do not count as part of the region, except those already in use.
        let withheld = alloc.withheld.min(alloc.free_segments) * SEGMENT;
        Space {
            region_bytes: self.superblock.region_bytes - withheld,
            fixed_bytes: alloc.fixed * SEGMENT,
            free_bytes: alloc.free_segments * SEGMENT + alloc.free_slot_bytes - withheld,
            usable_bytes: alloc.usable_segments() * SEGMENT,
            backed_usable_bytes: alloc.backed_usable_segments() * SEGMENT,
            reserve_bytes: alloc.reserve * SEGMENT,
            touched_bytes: alloc.used_bytes(),
            backed_bytes: (alloc.free_segments * SEGMENT + alloc.free_slot_bytes)
                .saturating_sub((alloc.segments.len() as u64 - alloc.limit(Reserve::Kept).max(alloc.high)) * SEGMENT)
                .saturating_sub(alloc.high.saturating_sub(alloc.limit(Reserve::Kept)).min(HELD_BACK) * SEGMENT),
            reserved_bytes: alloc.backed.min(alloc.segments.len() as u64) * SEGMENT,
        }
    }

    /// Returns whether more than half of the reserve is free or empty.
    pub fn has_half_reserve(&self) -> bool {
        let alloc = self.alloc.lock();
        alloc.free_segments + alloc.empty_segments > alloc.reserve / 2
    }

    /// Keeps this many more free segments for transactions that free space.
    pub fn withhold(&self, segments: u64) {
        self.alloc.lock().withheld = segments;
    }

    /// Sizes the reserve for a region without the withheld segments.
    pub fn reserve_for_less(&self) {
        let mut alloc = self.alloc.lock();
        let count = alloc.segments.len() as u64 - alloc.fixed;
        alloc.reserve = (count.saturating_sub(alloc.withheld) / RESERVE_PART).max(RESERVE_MIN);
    }

    /// Returns how many segments could be withheld now: free segments and those that compaction
    /// could free, without the reserve.
    pub fn spare_segments(&self) -> u64 {
        let alloc = self.alloc.lock();
        (alloc.free_segments + alloc.empty_segments + alloc.gainable()).saturating_sub(alloc.reserve)
    }

    pub(crate) fn allocate(&self, len: u64, reserve: Reserve) -> Result<SlotRef> {
        let Some(class) = class_for(len.max(1)) else {
            return self.allocate_run(len.div_ceil(SEGMENT), reserve);
        };
        if let Some(slot) = self.alloc.lock().take_slot(class) {
            return Ok(slot);
        }
        self.with_log_room(reserve, || self.allocate_in_new_segment(class, reserve))
    }

    fn allocate_in_new_segment(&self, class: u8, reserve: Reserve) -> Result<SlotRef> {
        let mut grown = Ok(());
        let (mut state, number) = loop {
            // Lock order: commit before allocator.
            let state = self.commit.lock();
            let mut alloc = self.alloc.lock();
            if let Some(slot) = alloc.take_slot(class) {
                return Ok(slot);
            }
            if alloc.may_take(1, reserve) {
                if let Some(number) = alloc.take_segment(reserve) {
                    break (state, number);
                }
                // Try to get more room first, then what other classes have left over.
                if let Some(unbacked) = alloc.first_free().filter(|_| grown.is_ok()) {
                    drop(alloc);
                    drop(state);
                    grown = self.grow(unbacked + 1, reserve);
                    continue;
                }
                if let Some(number) = alloc.take_empty() {
                    break (state, number);
                }
            }
            // Draining must not deny the last slots of a class to a transaction that frees space.
            // Other transactions retry when the segment is empty.
            if reserve.is_open() {
                alloc.undrain(class);
            }
            return alloc.take_slot(class).ok_or_else(|| refused(grown, 1));
        };
        // No other thread takes this segment: it is neither free nor listed.
        let assigned = self.log_assignment(&mut state, number as u64, class, reserve);
        let mut alloc = self.alloc.lock();
        if let Err(error) = assigned {
            // The table is unchanged, so `has_bitmap` stays.
            alloc.segments[number].usage = Usage::Free;
            alloc.drain.touched += 1;
            alloc.cursor = alloc.cursor.min(number);
            alloc.free_segments += 1;
            return Err(error);
        }
        let (slots, _) = class_geometry(class);
        alloc.high = alloc.high.max(number as u64 + 1);
        alloc.empty_segments += 1;
        alloc.class_segments[class as usize] += 1;
        alloc.free_slot_bytes += slots as u64 * CLASS_SIZES[class as usize] as u64;
        let segment = &mut alloc.segments[number];
        *segment = Segment {
            listed: true,
            free: slots as u16,
            words: (slots > 64).then(|| vec![0; slots.div_ceil(64) as usize].into()),
            ..Segment::new(Usage::Slots(class))
        };
        if slots % 64 != 0 {
            // Bits past the last slot are never free.
            let used = u64::MAX << (slots % 64);
            match &mut segment.words {
                None => {}
                Some(words) => words[slots as usize / 64] = used,
            }
        }
        alloc.partial[class as usize].push(number as u32);
        alloc.take_slot(class).ok_or(Error::NoSpace(Lack::OTHER))
    }

    /// Logs that a segment belongs to a class from now on and that its bitmap is empty.
    fn log_assignment(&self, state: &mut CommitState, number: u64, class: u8, reserve: Reserve) -> Result<()> {
        let mut record = vec![0; RECORD_HEADER];
        let entry = SegmentEntry::new(SegmentUse::Slots(class));
        Entry::Write { at: entry_at(&self.superblock, number), bytes: entry.as_bytes() }.encode(&mut record);
        let (_, header) = class_geometry(class);
        if header > 0 && !is_planted(Bug::BitmapZero) {
            Entry::Zero { at: Offset::of_segment(number), len: header as u64 }.encode(&mut record);
        }
        let payload = self.end_payload(RecordKind::Tx, &mut record);
        self.commit_record(state, RecordKind::Tx, &mut record, payload, reserve).map(drop)
    }

    fn allocate_run(&self, segments: u64, reserve: Reserve) -> Result<SlotRef> {
        if segments > RUN_SEGMENTS_MAX {
            return Err(Error::TooLarge);
        }
        let mut grown = Ok(());
        let (mut alloc, start) = loop {
            let mut alloc = self.alloc.lock();
            if !alloc.may_take(segments, reserve) {
                return Err(refused(grown, segments));
            }
            let limit = alloc.limit(reserve);
            let mut found = alloc.find_run(segments);
            if found.is_none_or(|start| start as u64 + segments > limit && grown.is_err()) {
                alloc.strip_empty();
                found = alloc.find_run(segments);
            }
            let Some(start) = found else { return Err(refused(grown, segments)) };
            let end = start as u64 + segments;
            if end <= limit {
                break (alloc, start);
            }
            if grown.is_err() {
                return Err(refused(grown, segments));
            }
            drop(alloc);
            grown = self.grow(end, reserve);
        };
        for number in start..start + segments as usize {
            alloc.leave_rest(number);
            alloc.segments[number].usage = Usage::Run;
        }
        alloc.free_segments -= segments;
        alloc.high = alloc.high.max(start as u64 + segments);
        Ok(SlotRef::run(Offset::of_segment(start as u64), segments))
    }

    /// Returns pieces to the volatile state, after the commit that freed them or when their
    /// transaction aborts.
    pub(crate) fn release(&self, slots: &[SlotRef]) {
        let mut alloc = self.alloc.lock();
        slots.iter().for_each(|&slot| alloc.give_back(slot));
    }

    /// Checks that a reference about to be freed names an allocated piece.
    pub(crate) fn check_allocated(&self, slot: SlotRef) -> Result<()> {
        let number = slot.segment();
        let wrong = || Error::corrupt("slot reference", slot.offset().get(), slot.bits());
        let mut alloc = self.alloc.lock();
        let last = if slot.is_run() { number + slot.run_segments() } else { number + 1 };
        if last > alloc.segments.len() as u64 {
            return Err(wrong());
        }
        if !slot.is_run() {
            alloc.read_bitmap(number as usize);
        }
        let segment = &alloc.segments[number as usize];
        let ok = match (segment.usage, slot.is_run()) {
            (Usage::Run, true) => alloc.segments[number as usize..last as usize].iter().all(|s| s.usage == Usage::Run),
            (Usage::Slots(class), false) if class == slot.class() => {
                let index = slot.index();
                let word = segment.words.as_ref().map_or(segment.word, |words| words[index as usize / 64]);
                word >> (index % 64) & 1 == 1
            }
            _ => false,
        };
        if ok { Ok(()) } else { Err(wrong()) }
    }
}

/// Logs the persistent side of an allocation.
pub(crate) fn log_allocate(tx: &mut Tx<'_>, slot: SlotRef) -> Result<()> {
    let superblock = *tx.superblock();
    if !slot.is_run() {
        let (at, mask) = bit_of(&superblock, slot);
        return tx.set_bits(at, mask);
    }
    let mut entries = Vec::with_capacity((slot.run_segments() * SEGMENT_ENTRY) as usize);
    entries.extend_from_slice(SegmentEntry::new(SegmentUse::RunHead(slot.run_segments() as u32)).as_bytes());
    for _ in 1..slot.run_segments() {
        entries.extend_from_slice(SegmentEntry::new(SegmentUse::RunBody).as_bytes());
    }
    tx.write(entry_at(&superblock, slot.segment()), &entries)
}

/// Logs the persistent side of a free.
pub(crate) fn log_free(tx: &mut Tx<'_>, slot: SlotRef) -> Result<()> {
    let superblock = *tx.superblock();
    if !slot.is_run() {
        let (at, mask) = bit_of(&superblock, slot);
        return tx.clear_bits(at, mask);
    }
    tx.zero(entry_at(&superblock, slot.segment()), slot.run_segments() * SEGMENT_ENTRY)
}
