//! Emptying sparse segments and giving back the memory of free ones.
//!
//! A segment belongs to one size class, and is free for others only when its last slot is free.
//! Random deletions leave a few slots in each segment: much space is free, and none of it is usable
//! for another class. So [`Region::drain`] chooses segments with few slots in use. Nothing is
//! allocated in them any more, and the caller, who knows their contents, moves these into other
//! segments of the class ([`Tx::relocate`]). A segment is free when its last slot is.
//! Rules:
//! - Draining is volatile, and only a preference about new allocations. Forgetting it costs
//!   nothing. A transaction that frees space ends it for a class in which it finds no slot.
//! - Segments are chosen only if the class's free slots elsewhere suffice. Moving takes no free
//!   segment, and ends by itself: a class without surplus has nothing to choose.
//! - Bytes of free segments are undefined. No reader relies on them, so their memory may be
//!   discarded ([`Region::discard_free`]). The exception is the bitmap of a segment that is free
//!   only in the volatile state: the table still assigns it to a class, and the next opening reads
//!   the bitmap.
//! - The image's count for an unread segment may be too high, never too low. That is good enough
//!   for choosing. The bitmap is read before a segment is drained.
//! - A segment emptied beyond the room on the host stays with its class. It can be taken for
//!   another class, but it becomes a free segment only when there is more room.
//!
//! Left out: finding the contents of a segment, and deciding when draining is worth the work (the
//! engine above).

use shoal_format::slot::{CLASS_SIZES, CLASSES, class_geometry};
use shoal_format::{PAGE, SEGMENT, SlotRef};

use crate::alloc::{Allocator, Segment, Usage, log_allocate};
use crate::{Region, Reserve, Result, Tx, View};

/// Segments looked at under one hold of the allocator's lock.
const SLICE: usize = 16 << 10;
/// Segments that begin to drain under one hold of that lock. The bitmap of each may have to be read
/// from a disk.
const BEGIN_SLICE: usize = 32;
/// Segments whose memory is given back under one hold of the allocator's lock (2 MiB).
const DISCARD_SLICE: usize = 32;

/// State of a free segment's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Used since its memory was given back.
    Touched,
    /// Used since then, and found free by one call of [`Region::discard_free`].
    Resting,
    /// Given back.
    Given,
}

/// The allocator's state for draining and discarding.
#[derive(Default)]
pub(crate) struct Drain {
    /// Segments being emptied.
    draining: u64,
    /// Free segments with [`Rest`] other than given.
    pub touched: u64,
    /// Neighbours being freed for a run: nothing else may take them.
    window: Option<(usize, usize)>,
}

impl Drain {
    pub fn holds(&self, segment: usize) -> bool {
        self.window.is_some_and(|(from, to)| (from..to).contains(&segment))
    }
}

/// What happens to segments that were drained without success before, when others are chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum StuckSegments {
    /// They are not chosen again.
    Left,
    /// They may be chosen like all others.
    Included,
}

/// Segments that compaction could free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gainable {
    /// An upper bound, without those that are free now.
    pub most: u64,
    /// Segments free now, without the reserve.
    pub free: u64,
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

    /// Returns whether the slot lies in one of the chosen segments.
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
    /// Returns whether the segment is free and not kept for a run being assembled.
    pub fn is_free(&self, number: usize) -> bool {
        self.segments[number].usage == Usage::Free && !self.drain.holds(number)
    }

    /// Marks the memory of a free segment as used again.
    pub fn leave_rest(&mut self, number: usize) {
        if self.segments[number].rest != Rest::Given {
            self.drain.touched -= 1;
        }
        self.segments[number].rest = Rest::Touched;
    }

    /// Takes a slot of the same class outside draining segments, without taking a free segment.
    /// Returns `None` if the segment of `old` is not draining.
    fn take_beside(&mut self, old: SlotRef) -> Option<SlotRef> {
        if !self.segments.get(old.segment() as usize)?.draining {
            return None;
        }
        self.take_slot(old.class())
    }

    /// Takes empty segments that have room on the host away from their classes.
    pub fn strip_empty(&mut self) {
        for number in 0..self.limit(Reserve::Open) as usize {
            if self.is_empty_slots(number) {
                self.strip(number);
                self.free_segments += 1;
            }
        }
    }

    /// Frees a draining segment whose last slot was freed.
    pub fn drained(&mut self, number: usize) {
        if number as u64 >= self.limit(Reserve::Open) {
            self.undrain_one(number);
            return;
        }
        self.drain.draining -= 1;
        self.strip(number);
        self.free_segments += 1;
        self.cursor = self.cursor.min(number);
    }

    /// Lets a segment be allocated from again; returns false if it was not draining.
    fn undrain_one(&mut self, number: usize) -> bool {
        let segment = &mut self.segments[number];
        let Usage::Slots(class) = segment.usage else { return false };
        if !std::mem::take(&mut segment.draining) {
            return false;
        }
        self.drain.draining -= 1;
        if segment.free > 0 && !segment.listed {
            segment.listed = true;
            self.partial[class as usize].push(number as u32);
        }
        true
    }

    /// Does the same for a segment that could not be emptied.
    fn undrain_stuck(&mut self, number: usize) {
        if self.undrain_one(number) {
            self.segments[number].stuck = true;
        }
    }

    /// Makes the slots in draining segments of `class` available to allocations again.
    pub fn undrain(&mut self, class: u8) {
        if self.drain.draining == 0 {
            return;
        }
        for number in 0..self.segments.len() {
            if self.segments[number].usage == Usage::Slots(class) {
                self.undrain_one(number);
            }
        }
    }

    /// Begins to drain a segment if it still matches the candidate.
    fn begin(&mut self, candidate: &Candidate) -> bool {
        if self.segments[candidate.number].usage != Usage::Slots(candidate.class) {
            return false;
        }
        self.read_bitmap(candidate.number);
        let segment = &mut self.segments[candidate.number];
        // Skip empty segments, which can be taken at once. Reading the bitmap may have shown one to
        // be empty.
        if segment.draining || segment.free as u32 == class_geometry(candidate.class).0 {
            return false;
        }
        // The list still names the segment, and `take_slot` skips it. `listed` stays true as long
        // as the list names it.
        segment.draining = true;
        self.drain.draining += 1;
        true
    }

    /// Returns an upper bound of the segments that compaction could free.
    pub fn gainable(&self) -> u64 {
        let gain = |class: usize| {
            let needed = self.class_used[class].div_ceil(class_geometry(class as u8).0 as u64);
            self.class_segments[class].saturating_sub(needed)
        };
        // Callers count empty segments separately.
        (0..CLASSES).map(gain).sum::<u64>().saturating_sub(self.empty_segments)
    }

    /// Returns the number of segments usable for pieces of any size, without the reserve.
    pub fn usable_segments(&self) -> u64 {
        (self.free_segments + self.empty_segments + self.gainable()).saturating_sub(self.kept())
    }

    /// Returns the number of free segments with room on the host for an ordinary transaction.
    fn free_within_limit(&self) -> u64 {
        let (limit, count) = (self.limit(Reserve::Kept), self.segments.len() as u64);
        if limit >= count {
            return self.free_segments;
        }
        // All segments past the last one ever used are free.
        let used_to = self.high.max(limit).min(count);
        let between = (limit..used_to).filter(|&s| self.segments[s as usize].usage == Usage::Free).count() as u64;
        self.free_segments.saturating_sub(between + count - used_to)
    }

    /// Returns the number of segments that an ordinary transaction could take now, without more
    /// room on the host.
    fn available(&self) -> u64 {
        (self.free_segments + self.empty_segments)
            .saturating_sub(self.kept())
            .min(self.free_within_limit() + self.empty_segments)
    }

    /// Returns the part of [`Allocator::usable_segments`] that needs no more room on the host.
    pub fn backed_usable_segments(&self) -> u64 {
        self.usable_segments().min(self.free_within_limit() + self.empty_segments + self.gainable())
    }

    fn has_run(&mut self, segments: u64) -> bool {
        let limit = self.limit(Reserve::Kept);
        let fits = |start: usize| start as u64 + segments <= limit;
        if !self.find_run(segments).is_some_and(fits) {
            self.strip_empty();
        }
        self.find_run(segments).is_some_and(fits)
    }
}

/// Returns how many of a class's candidates, in ascending order of their used slots, can be emptied
/// into the remaining segments.
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
    /// Returns what compaction could gain.
    pub fn gainable_segments(&self) -> Gainable {
        let alloc = self.alloc.lock();
        let free = (alloc.free_segments + alloc.empty_segments).saturating_sub(alloc.kept());
        Gainable { most: alloc.gainable(), free }
    }

    /// Returns whether an ordinary transaction could take `segments` now, as a run if more than
    /// one, without more room on the host.
    pub fn has_room(&self, segments: u64) -> bool {
        let mut alloc = self.alloc.lock();
        alloc.available() >= segments && (segments <= 1 || alloc.has_run(segments))
    }

    /// Returns the number of free and empty segments that an ordinary transaction may take without
    /// more room on the host.
    pub fn free_segments(&self) -> u64 {
        self.alloc.lock().available()
    }

    /// Returns the number of segments that were chosen to be emptied and are not empty yet.
    pub fn draining_segments(&self) -> u64 {
        self.alloc.lock().drain.draining
    }

    /// Chooses up to `want` segments with the fewest bytes in use, at most `bytes` in total, and
    /// stops allocating there.
    pub fn drain(&self, want: u64, bytes: u64, stuck: StuckSegments) -> Victims {
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
            if segment.free > 0 && (stuck == StuckSegments::Included || !segment.stuck) {
                candidates[class as usize].push(Candidate { class, used, number });
            }
        });
        let mut chosen: Vec<Candidate> = Vec::new();
        for (class, mut list) in candidates.into_iter().enumerate() {
            list.sort_unstable_by_key(|c| (c.used, c.number));
            list.truncate(feasible(&list, class as u8, free[class]));
            chosen.extend(list);
        }
        // Take the cheapest of all classes. They come first in the list of their class, so they
        // stay feasible.
        chosen.sort_unstable_by_key(|c| (c.bytes(), c.number));
        let mut sum = 0;
        let within = |c: &Candidate| {
            sum += c.bytes();
            sum <= bytes
        };
        let chosen: Vec<Candidate> = chosen.into_iter().take(want as usize).take_while(within).collect();
        self.begin_drain(&chosen)
    }

    /// Chooses `segments` neighbours that can be emptied with the fewest bytes moved. They are kept
    /// until [`Region::end_drain`], so that the caller can allocate a run then.
    pub fn drain_run(&self, segments: u64) -> Option<Victims> {
        // No run is free, so fewer segments than the run needs lie past the last used one. They may
        // be part of the best place, so try to get room for them.
        let _ = self.grow(self.superblock.segment_count, Reserve::Kept);
        let mut alloc = self.alloc.lock();
        alloc.strip_empty();
        let (len, limit) = (segments as usize, alloc.limit(Reserve::Kept) as usize);
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

    /// Ends what [`Region::drain`] began: segments that are not empty by now are used again.
    /// Returns the number of those segments.
    pub fn end_drain(&self, victims: &Victims) -> u64 {
        let mut alloc = self.alloc.lock();
        let before = alloc.drain.draining;
        victims.each().for_each(|number| alloc.undrain_stuck(number));
        alloc.drain.window = None;
        before - alloc.drain.draining
    }

    /// Calls `look` for each segment, a slice of them under each hold of the lock.
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

    /// Gives back the memory of segments that were already free at the last call, and returns the
    /// number of bytes. Empty segments leave their class in the same way.
    pub fn discard_free(&self) -> u64 {
        let (mut from, mut bytes) = (0, 0);
        loop {
            let mut alloc = self.alloc.lock();
            if from == 0 && alloc.drain.touched == 0 && alloc.empty_segments == 0 {
                return 0;
            }
            let (end, mut left, backed) =
                (alloc.segments.len().min(from + SLICE), DISCARD_SLICE, alloc.limit(Reserve::Open));
            while from < end && left > 0 {
                if alloc.segments[from].rest == Rest::Resting && alloc.is_free(from) {
                    alloc.segments[from].rest = Rest::Given;
                    alloc.drain.touched -= 1;
                    let kept = if alloc.segments[from].has_bitmap { PAGE } else { 0 };
                    // Hold the lock, so that no thread takes the segment meanwhile.
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

    /// Takes empty segments away from their classes. Otherwise an ordinary transaction takes slots
    /// from an empty segment of its class even when only the reserve is left.
    pub fn strip_empty(&self) {
        self.alloc.lock().strip_empty();
    }
}

impl Tx<'_> {
    /// Moves a slot out of a draining segment: allocates a slot of the same class elsewhere, copies
    /// the bytes and frees the old slot. The caller stores the new reference. Returns `None` and
    /// does nothing if the segment is not draining or no slot is available.
    pub fn relocate(&mut self, old: SlotRef) -> Result<Option<SlotRef>> {
        let bytes = self.read_vec(old.offset(), old.capacity() as usize)?;
        let Some(new) = self.region().alloc.lock().take_beside(old) else { return Ok(None) };
        self.allocated(new);
        log_allocate(self, new)?;
        self.write(new.offset(), &bytes)?;
        self.free(old)?;
        Ok(Some(new))
    }
}
