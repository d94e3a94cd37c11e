//! Emptying sparse segments, and giving the memory of free ones back.
//!
//! A segment belongs to one size class, and is free for others only when its last slot is. Random deletions leave a few slots
//! in each: much is free, and nothing can be had. So segments with few slots in use are chosen ([`Region::drain`]), nothing is
//! allocated in them any more, and the caller, who knows what lies in them, moves it into other segments of the class
//! ([`Tx::relocate`]). A segment is free when its last slot is.
//! Rules:
//! - Draining is volatile, and only a preference about new allocations: forgetting it costs nothing, and a transaction that
//!   frees space ends it for a class it finds no slot of.
//! - Segments are chosen only if the class's free slots elsewhere suffice. Moving takes no free segment, and ends by itself:
//!   a class without surplus has nothing to choose.
//! - Bytes of free segments are undefined. No reader relies on them, so their memory may go ([`Region::discard_free`]); but
//!   for the bitmap of a segment that is free only in the volatile state, and of a class for whoever opens the region next.
//! - What the image said of an unread segment may name too many slots in use, never too few. That is good enough for choosing;
//!   the bitmap is read before a segment is drained.
//! - A segment that is emptied behind the room on the host stays with its class: it may be taken from there, but as a free one
//!   not before there is more room.
//!
//! Left out: finding what lies in a segment, and when it is worth the work (the engine above).

use std::cell::Cell;

use shoal_format::slot::{CLASS_SIZES, CLASSES, class_geometry};
use shoal_format::{PAGE, SEGMENT, SlotRef};

use crate::alloc::{Allocator, Segment, Usage, log_allocate};
use crate::{Error, Region, Result, Tx, View};

/// Segments looked at under one hold of the allocator's lock.
const SLICE: usize = 16 << 10;
/// Segments that begin to drain under one hold of that lock: the bitmap of each may have to be read from a disk.
const BEGIN_SLICE: usize = 32;
/// Segments whose memory is given back under one hold of the allocator's lock (2 MiB).
const DISCARD_SLICE: usize = 32;

thread_local! {
    static DENIED: Cell<u64> = const { Cell::new(0) };
}

/// Notes that this thread was refused `segments`, and returns the error for it.
pub(crate) fn denied(segments: u64) -> Error {
    DENIED.set(segments);
    Error::NoSpace
}

/// The segments this thread was last refused, 0 if none since the last call: tells a caller with [`Error::NoSpace`] whether
/// and how much compaction may help.
pub fn take_denied() -> u64 {
    DENIED.replace(0)
}

/// State of a free segment's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Used since its memory was given back.
    Touched,
    /// The same, and free at an earlier look.
    Resting,
    /// Given back.
    Given,
}

/// The allocator's state about all this.
#[derive(Default)]
pub(crate) struct Drain {
    /// Segments being emptied.
    draining: u64,
    /// Free segments with [`Rest`] other than given.
    pub touched: u64,
    /// Neighbours being freed for a run: nothing else is to take them.
    window: Option<(usize, usize)>,
}

impl Drain {
    pub fn holds(&self, segment: usize) -> bool {
        self.window.is_some_and(|(from, to)| (from..to).contains(&segment))
    }
}

/// Segments chosen to be emptied.
#[derive(Default)]
pub struct Victims {
    words: Vec<u64>,
    count: u64,
}

impl Victims {
    fn add(&mut self, segment: usize) {
        if self.words.len() <= segment / 64 {
            self.words.resize(segment / 64 + 1, 0);
        }
        self.words[segment / 64] |= 1 << (segment % 64);
        self.count += 1;
    }

    fn each(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.words.len() * 64).filter(|&s| self.words[s / 64] >> (s % 64) & 1 == 1)
    }

    /// Does the slot lie in one of them?
    #[inline]
    pub fn contains(&self, slot: SlotRef) -> bool {
        let segment = slot.segment() as usize;
        self.words.get(segment / 64).is_some_and(|word| word >> (segment % 64) & 1 == 1) && !slot.is_run()
    }

    pub fn len(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// A segment that could be emptied.
struct Candidate {
    class: u8,
    used: u32,
    number: usize,
}

impl Candidate {
    fn bytes(&self) -> u64 {
        self.used as u64 * CLASS_SIZES[self.class as usize] as u64
    }
}

impl Allocator {
    /// Free, and not kept for a run in the making.
    pub fn is_free(&self, number: usize) -> bool {
        self.segments[number].usage == Usage::Free && !self.drain.holds(number)
    }

    /// A free segment is about to be used.
    pub fn leave_rest(&mut self, number: usize) {
        if self.segments[number].rest != Rest::Given {
            self.drain.touched -= 1;
        }
        self.segments[number].rest = Rest::Touched;
    }

    /// Takes the empty segments away from their classes.
    pub fn strip_empty(&mut self) {
        for number in 0..self.limit(true) as usize {
            if self.is_empty_slots(number) {
                self.strip(number);
                self.free_segments += 1;
            }
        }
    }

    /// The last slot of a draining segment was freed.
    pub fn drained(&mut self, number: usize) {
        if number as u64 >= self.limit(true) {
            return self.undrain_one(number, false);
        }
        self.drain.draining -= 1;
        self.strip(number);
        self.free_segments += 1;
        self.cursor = self.cursor.min(number);
    }

    fn undrain_one(&mut self, number: usize, stuck: bool) {
        let segment = &mut self.segments[number];
        let Usage::Slots(class) = segment.usage else { return };
        if !std::mem::take(&mut segment.draining) {
            return;
        }
        segment.stuck |= stuck;
        self.drain.draining -= 1;
        if segment.free > 0 && !segment.listed {
            segment.listed = true;
            self.partial[class as usize].push(number as u32);
        }
    }

    /// Lets allocations of `class` have the slots of its draining segments again.
    pub fn undrain(&mut self, class: u8) {
        if self.drain.draining == 0 {
            return;
        }
        for number in 0..self.segments.len() {
            if self.segments[number].usage == Usage::Slots(class) {
                self.undrain_one(number, false);
            }
        }
    }

    /// Begins to empty a segment, if it still is what the candidate says.
    fn begin(&mut self, candidate: &Candidate) -> bool {
        if self.segments[candidate.number].usage != Usage::Slots(candidate.class) {
            return false;
        }
        self.read_bitmap(candidate.number);
        let segment = &mut self.segments[candidate.number];
        // Empty ones, as a bitmap may show only when it is read, are there to be taken.
        if segment.draining || segment.free as u32 == class_geometry(candidate.class).0 {
            return false;
        }
        // The list still names it; `take_slot` passes over it. `listed` stays true as long as it does.
        segment.draining = true;
        self.drain.draining += 1;
        true
    }

    /// Segments that compaction could free at most.
    pub fn gainable(&self) -> u64 {
        let gain = |class: usize| {
            let needed = self.class_used[class].div_ceil(class_geometry(class as u8).0 as u64);
            self.class_segments[class].saturating_sub(needed)
        };
        // Empty ones are counted already.
        (0..CLASSES).map(gain).sum::<u64>().saturating_sub(self.empty_segments)
    }

    /// Segments that could be had for pieces of any size, the reserve left out.
    pub fn usable_segments(&self) -> u64 {
        (self.free_segments + self.empty_segments + self.gainable()).saturating_sub(self.kept())
    }

    /// Free segments with room on the host for an ordinary transaction.
    fn free_within_limit(&self) -> u64 {
        let (limit, count) = (self.limit(false), self.segments.len() as u64);
        if limit >= count {
            return self.free_segments;
        }
        // Behind the last one ever used all are free.
        let used_to = self.high.max(limit).min(count);
        let between = (limit..used_to).filter(|&s| self.segments[s as usize].usage == Usage::Free).count() as u64;
        self.free_segments.saturating_sub(between + count - used_to)
    }

    /// Segments an ordinary transaction could have now, without more room on the host.
    fn available(&self) -> u64 {
        (self.free_segments + self.empty_segments)
            .saturating_sub(self.kept())
            .min(self.free_within_limit() + self.empty_segments)
    }

    /// Those of [`Allocator::usable_segments`] that need no more room on the host.
    pub fn backed_usable_segments(&self) -> u64 {
        self.usable_segments().min(self.free_within_limit() + self.empty_segments + self.gainable())
    }

    fn has_run(&mut self, segments: u64) -> bool {
        let limit = self.limit(false);
        let fits = |start: usize| start as u64 + segments <= limit;
        if !self.find_run(segments).is_some_and(fits) {
            self.strip_empty();
        }
        self.find_run(segments).is_some_and(fits)
    }
}

/// Number of candidates of a class, in ascending order of their used slots, that can be emptied into the others.
fn feasible(candidates: &[Candidate], class: u8, free: u64) -> usize {
    let slots = class_geometry(class).0 as u64;
    let (mut room, mut moved) = (free, 0);
    for (count, candidate) in candidates.iter().enumerate() {
        moved += candidate.used as u64;
        room -= slots - candidate.used as u64;
        if moved > room {
            return count;
        }
    }
    candidates.len()
}

impl Region {
    /// Segments that compaction could free at most, free ones not counted; and segments free now, the reserve left out.
    pub fn gainable_segments(&self) -> (u64, u64) {
        let alloc = self.alloc.lock();
        (alloc.gainable(), (alloc.free_segments + alloc.empty_segments).saturating_sub(alloc.kept()))
    }

    /// Could an ordinary transaction have `segments` now, as a run if more than one, without more room on the host?
    pub fn has_room(&self, segments: u64) -> bool {
        let mut alloc = self.alloc.lock();
        alloc.available() >= segments && (segments <= 1 || alloc.has_run(segments))
    }

    /// Free and empty segments that an ordinary transaction may take without more room on the host.
    pub fn free_segments(&self) -> u64 {
        self.alloc.lock().available()
    }

    /// Segments chosen and not yet empty.
    pub fn draining_segments(&self) -> u64 {
        self.alloc.lock().drain.draining
    }

    /// Chooses up to `want` segments with the fewest bytes in use, at most `bytes` of them together, and stops allocating
    /// there. `stuck`: also those that were drained in vain before.
    pub fn drain(&self, want: u64, bytes: u64, stuck: bool) -> Victims {
        let mut candidates: [Vec<Candidate>; CLASSES] = [const { Vec::new() }; CLASSES];
        let mut free = [0u64; CLASSES];
        self.slices(|number, segment| {
            let Usage::Slots(class) = segment.usage else { return };
            let slots = class_geometry(class).0;
            let used = slots - segment.free as u32;
            if segment.draining || used == 0 {
                return;
            }
            free[class as usize] += segment.free as u64;
            if segment.free > 0 && (stuck || !segment.stuck) {
                candidates[class as usize].push(Candidate { class, used, number });
            }
        });
        let mut chosen: Vec<Candidate> = Vec::new();
        for (class, mut list) in candidates.into_iter().enumerate() {
            list.sort_unstable_by_key(|c| (c.used, c.number));
            list.truncate(feasible(&list, class as u8, free[class]));
            chosen.extend(list);
        }
        // The cheapest of all classes: of each class they are the first of its list, so they stay feasible.
        chosen.sort_unstable_by_key(|c| (c.bytes(), c.number));
        let mut sum = 0;
        let within = |c: &Candidate| {
            sum += c.bytes();
            sum <= bytes
        };
        let chosen: Vec<Candidate> = chosen.into_iter().take(want as usize).take_while(within).collect();
        self.begin_drain(&chosen)
    }

    /// Chooses `segments` neighbours that can be emptied with the fewest bytes moved, and keeps them for whoever calls
    /// [`Region::end_drain`] and allocates a run then.
    pub fn drain_run(&self, segments: u64) -> Option<Victims> {
        // No run is free, so fewer segments than a run's lie behind the last one used: they may be part of the best place.
        let _ = self.grow(self.superblock.segment_count, false);
        let mut alloc = self.alloc.lock();
        alloc.strip_empty();
        let (len, limit) = (segments as usize, alloc.limit(false) as usize);
        let mut free = [0u64; CLASSES];
        for segment in &alloc.segments {
            if let Usage::Slots(class) = segment.usage {
                free[class as usize] += segment.free as u64;
            }
        }
        let candidate = |number: usize| match alloc.segments[number].usage {
            Usage::Free => Some(None),
            Usage::Slots(class) => {
                let used = class_geometry(class).0 - alloc.segments[number].free as u32;
                Some(Some(Candidate { class, used, number }))
            }
            _ => None,
        };
        let cost = |number: usize| candidate(number).map(|c| c.map_or(0, |c| c.bytes()));
        let fits = |start: usize| {
            let (mut moved, mut room) = ([0u64; CLASSES], free);
            for c in (start..start + len).filter_map(candidate).flatten() {
                moved[c.class as usize] += c.used as u64;
                room[c.class as usize] -= alloc.segments[c.number].free as u64;
            }
            (0..CLASSES).all(|class| moved[class] <= room[class])
        };
        let (mut best, mut sum, mut fixed) = (None::<(u64, usize)>, 0, 0);
        for end in 0..limit {
            match cost(end) {
                Some(bytes) => sum += bytes,
                None => fixed += 1,
            }
            if end + 1 < len {
                continue;
            }
            let start = end + 1 - len;
            if fixed == 0 && best.is_none_or(|(least, _)| sum < least) && fits(start) {
                best = Some((sum, start));
            }
            match cost(start) {
                Some(bytes) => sum -= bytes,
                None => fixed -= 1,
            }
        }
        let (_, start) = best?;
        let chosen: Vec<Candidate> = (start..start + len).filter_map(candidate).flatten().collect();
        alloc.drain.window = Some((start, start + len));
        drop(alloc);
        Some(self.begin_drain(&chosen))
    }

    fn begin_drain(&self, chosen: &[Candidate]) -> Victims {
        let mut victims = Victims::default();
        for part in chosen.chunks(BEGIN_SLICE) {
            let mut alloc = self.alloc.lock();
            part.iter().filter(|candidate| alloc.begin(candidate)).for_each(|candidate| victims.add(candidate.number));
        }
        victims
    }

    /// Ends what [`Region::drain`] began: what is not empty now is used again. Returns how many segments that are.
    pub fn end_drain(&self, victims: &Victims) -> u64 {
        let mut alloc = self.alloc.lock();
        let before = alloc.drain.draining;
        victims.each().for_each(|number| alloc.undrain_one(number, true));
        alloc.drain.window = None;
        before - alloc.drain.draining
    }

    /// Calls `look` for each segment, some under each hold of the lock.
    fn slices(&self, mut look: impl FnMut(usize, &Segment)) {
        let mut from = 0;
        loop {
            let alloc = self.alloc.lock();
            let to = (from + SLICE).min(alloc.segments.len());
            (from..to).for_each(|number| look(number, &alloc.segments[number]));
            if to == alloc.segments.len() {
                return;
            }
            from = to;
        }
    }

    /// Gives back the memory of segments that were free at the last call already; returns how many bytes. Empty segments
    /// leave their class in the same way.
    pub fn discard_free(&self) -> u64 {
        let (mut from, mut bytes) = (0, 0);
        loop {
            let mut alloc = self.alloc.lock();
            if from == 0 && alloc.drain.touched == 0 && alloc.empty_segments == 0 {
                return 0;
            }
            let (end, mut left, backed) = (alloc.segments.len().min(from + SLICE), DISCARD_SLICE, alloc.limit(true));
            while from < end && left > 0 {
                if alloc.segments[from].rest == Rest::Resting && alloc.is_free(from) {
                    alloc.segments[from].rest = Rest::Given;
                    alloc.drain.touched -= 1;
                    let kept = if alloc.segments[from].has_bitmap { PAGE } else { 0 };
                    // Under the lock, so that nobody gets it meanwhile.
                    self.memory.discard(from as u64 * SEGMENT + kept, SEGMENT - kept);
                    (bytes, left) = (bytes + SEGMENT - kept, left - 1);
                } else if alloc.segments[from].rest == Rest::Touched {
                    if (from as u64) < backed && !alloc.drain.holds(from) && alloc.is_empty_slots(from) {
                        alloc.strip(from);
                        alloc.free_segments += 1;
                    }
                    if alloc.is_free(from) {
                        alloc.segments[from].rest = Rest::Resting;
                    }
                }
                from += 1;
            }
            if from == alloc.segments.len() {
                return bytes;
            }
        }
    }

    /// Lets empty segments leave their classes: an ordinary transaction takes slots of its class from an empty segment even where
    /// only the reserve is left.
    pub fn strip_empty(&self) {
        self.alloc.lock().strip_empty();
    }

    /// A slot of `class` outside of draining segments, without taking a free segment.
    fn allocate_beside(&self, old: SlotRef) -> Option<SlotRef> {
        let mut alloc = self.alloc.lock();
        if !alloc.segments.get(old.segment() as usize)?.draining {
            return None;
        }
        alloc.take_slot(old.class())
    }
}

impl Tx<'_> {
    /// Moves a slot out of a draining segment: allocates one of the same class elsewhere, copies, frees the old one. The
    /// caller stores the new reference. `None`, and nothing done: the segment is not draining, or there is no slot.
    pub fn relocate(&mut self, old: SlotRef) -> Result<Option<SlotRef>> {
        let bytes = self.read_vec(old.offset(), old.capacity() as usize)?;
        let Some(new) = self.region().allocate_beside(old) else { return Ok(None) };
        self.allocated(new);
        log_allocate(self, new)?;
        self.write(new.offset(), &bytes)?;
        self.free(old)?;
        Ok(Some(new))
    }
}
