//! Comparison of allocated and referenced pieces.
//!
//! Owns: the decoded segment table; for every segment, the allocation bits and a "referenced" bit
//! per slot.
//! Rules: every reference passes through [`Allocation::claim`] once. A caller must not follow a
//! refused reference; this keeps walks over damaged structures finite.
//! Left out: the bulk device's blocks (`bulk`).

use shoal_format::inode::Ino;
use shoal_format::segment::{SEGMENT_ENTRY, SegmentEntry, SegmentUse};
use shoal_format::slot::class_geometry;
use shoal_format::superblock::Superblock;
use shoal_format::{Offset, SEGMENT, SlotRef};

use crate::region::Region;
use crate::remedy::Remedy;
use crate::report::{FindingKind, Report};
use crate::{CheckError, Progress, Stage};

const ENTRIES_PER_SEGMENT: u64 = SEGMENT / SEGMENT_ENTRY;

#[derive(Clone, Copy)]
struct Segment {
    usage: SegmentUse,
    /// Allocation bits of a class with at most 64 slots.
    allocated: u64,
    /// Referenced slots of such a class. A run uses bit 0.
    claimed: u64,
    /// For classes with more slots: index of their first word in `wide`.
    wide: usize,
}

const FREE: Segment = Segment { usage: SegmentUse::Free, allocated: 0, claimed: 0, wide: 0 };

pub(crate) struct Allocation {
    /// The segments up to the last one in use.
    segments: Vec<Segment>,
    /// For each segment of a class with more than 64 slots: allocation words, then as many words of
    /// claimed bits.
    wide: Vec<u64>,
    segment_count: u64,
}

/// Returns the words of the bitmap in front of a segment's slots, or zero if the bitmap is in the
/// segment table.
fn wide_words(class: u8) -> usize {
    let (slots, _) = class_geometry(class);
    if slots <= 64 { 0 } else { slots.div_ceil(64) as usize }
}

impl Allocation {
    pub(crate) fn read(
        region: &Region<'_>,
        superblock: &Superblock,
        report: &mut Report,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Allocation, CheckError> {
        let mut this = Allocation { segments: Vec::new(), wide: Vec::new(), segment_count: superblock.segment_count };
        let mut index = 0;
        while index < superblock.segment_count {
            let at = superblock.segment_table + index * SEGMENT_ENTRY;
            let count = ((SEGMENT - u64::from(at.in_segment())) / SEGMENT_ENTRY).min(superblock.segment_count - index);
            debug_assert!(count <= ENTRIES_PER_SEGMENT);
            if region.segment(at.segment())?.is_some() {
                let bytes = region.bytes(at, count * SEGMENT_ENTRY)?;
                for (i, entry) in bytes.chunks_exact(SEGMENT_ENTRY as usize).enumerate() {
                    let entry = entry.try_into().expect("sixteen bytes");
                    this.add(region, index + i as u64, entry, (at + i as u64 * SEGMENT_ENTRY).get(), report)?;
                }
            }
            index += count;
            progress(Progress { stage: Stage::Segments, done: index, total: superblock.segment_count });
        }
        this.verify_shape(superblock.reserved_segments(), report);
        report.counts.segments_used =
            this.segments.iter().filter(|segment| segment.usage != SegmentUse::Free).count() as u64;
        report.counts.region_bytes_used = report.counts.segments_used * SEGMENT;
        Ok(this)
    }

    fn add(
        &mut self,
        region: &Region<'_>,
        index: u64,
        entry: &[u8; 16],
        entry_at: u64,
        report: &mut Report,
    ) -> Result<(), CheckError> {
        let (usage, allocated) = match SegmentEntry::decode(entry) {
            Ok((SegmentUse::Free, _)) => return Ok(()),
            Ok(decoded) => decoded,
            Err(e) => {
                report.error(FindingKind::SegmentEntry, None, Some(entry_at), format!("segment {index}: {e}"));
                return Ok(());
            }
        };
        let wide = self.wide.len();
        if let SegmentUse::Slots(class) = usage {
            let words = wide_words(class);
            if words > 0 {
                let mut bytes = [0; 512];
                region.peek(Offset::of_segment(index), &mut bytes[..words * 8])?;
                let (slots, _) = class_geometry(class);
                for (i, word) in bytes[..words * 8].chunks_exact(8).enumerate() {
                    let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
                    let valid = u64::MAX >> (64 - (slots as usize - i * 64).min(64));
                    if word & !valid != 0 {
                        let (at, sentence) =
                            (Offset::of_segment(index) + i as u64 * 8, "bits past its last slot are set");
                        report.error(
                            FindingKind::SegmentEntry,
                            None,
                            Some(at.get()),
                            format!("segment {index}: {sentence}"),
                        );
                    }
                    self.wide.push(word & valid);
                }
                self.wide.resize(wide + 2 * words, 0);
            }
        }
        self.segments.resize(index as usize, FREE);
        self.segments.push(Segment { usage, allocated, claimed: 0, wide });
        Ok(())
    }

    /// Verifies that exactly the fixed areas are reserved, and that every run has its head and its
    /// whole body.
    fn verify_shape(&self, reserved: u64, report: &mut Report) {
        let mut body_until = 0;
        for index in 0..self.segments.len().max(reserved as usize) as u64 {
            let usage = self.usage(index);
            if (usage == SegmentUse::Reserved) != (index < reserved) {
                let sentence = if index < reserved {
                    format!("segment {index} holds fixed areas but is not marked reserved")
                } else {
                    format!("segment {index} is marked reserved but holds no fixed area")
                };
                report.error(FindingKind::SegmentReserved, None, Some(index * SEGMENT), sentence);
            }
            let in_body = index < body_until;
            if in_body != (usage == SegmentUse::RunBody) {
                let sentence = if in_body {
                    format!("segment {index} breaks off the run it should belong to")
                } else {
                    format!("segment {index} continues a run that does not reach it")
                };
                report.error(FindingKind::SegmentRun, None, Some(index * SEGMENT), sentence);
                body_until = index;
            }
            if let SegmentUse::RunHead(segments) = usage {
                body_until = index + segments as u64;
            }
        }
        if body_until > self.segments.len() as u64 {
            let sentence = format!("a run ends at segment {body_until}, behind the last segment in use");
            report.error(FindingKind::SegmentRun, None, Some(self.segments.len() as u64 * SEGMENT), sentence);
        }
    }

    fn usage(&self, index: u64) -> SegmentUse {
        self.segments.get(index as usize).map_or(SegmentUse::Free, |segment| segment.usage)
    }

    /// Marks a piece as referenced. Returns false if the reference must not be followed. The report
    /// says why. It also names a piece that is marked free, but a reference to such a piece may be
    /// followed.
    pub(crate) fn claim(&mut self, slot: SlotRef, inode: Option<Ino>, what: &str, report: &mut Report) -> bool {
        let at = slot.offset();
        let mut error = |kind, why: &str| report.error(kind, inode, Some(at.get()), format!("{what} {slot:?} {why}"));
        let end = slot.segment() + slot.run_segments().max(1);
        if end > self.segment_count {
            error(FindingKind::Reference, "lies behind the region's end");
            return false;
        }
        let expected = if slot.is_run() {
            SegmentUse::RunHead(slot.run_segments() as u32)
        } else {
            SegmentUse::Slots(slot.class())
        };
        let usage = self.usage(slot.segment());
        if usage != expected {
            if usage == SegmentUse::Free {
                error(FindingKind::NotAllocated, "is referenced but its segment is free");
            } else {
                error(FindingKind::WrongClass, &format!("lies in a segment used for {usage:?}"));
            }
            return false;
        }
        let segment = &mut self.segments[slot.segment() as usize];
        let index = slot.index() as usize;
        let bit = 1u64 << (index % 64);
        let words = if slot.is_run() { 0 } else { wide_words(slot.class()) };
        let (allocated, claimed) = if words == 0 {
            (slot.is_run() || segment.allocated & bit != 0, &mut segment.claimed)
        } else {
            let word = segment.wide + index / 64;
            (self.wide[word] & bit != 0, &mut self.wide[word + words])
        };
        if *claimed & bit != 0 {
            error(FindingKind::DoubleUse, "is referenced twice");
            return false;
        }
        *claimed |= bit;
        if !allocated {
            error(FindingKind::NotAllocated, "is referenced but marked free");
        }
        report.counts.slots += 1;
        true
    }

    /// Reports pieces that are allocated but were never claimed, with one finding per segment.
    pub(crate) fn find_leaks(&self, report: &mut Report, progress: &mut dyn FnMut(Progress)) {
        for (index, segment) in self.segments.iter().enumerate() {
            let at = index as u64 * SEGMENT;
            match segment.usage {
                SegmentUse::RunHead(segments) if segment.claimed == 0 => {
                    let sentence = format!("a run of {segments} segments is allocated but nothing references it");
                    report.error(FindingKind::Leak, None, Some(at), sentence);
                    report.offer(Remedy::FreePieces { pieces: vec![SlotRef::run(Offset::new(at), segments as u64)] });
                }
                SegmentUse::Slots(class) => {
                    let words = wide_words(class);
                    let leaked = |i: usize| match words {
                        0 => segment.allocated & !segment.claimed,
                        _ => self.wide[segment.wide + i] & !self.wide[segment.wide + words + i],
                    };
                    let count: u32 = (0..words.max(1)).map(|i| leaked(i).count_ones()).sum();
                    if let Some(word) = (0..words.max(1)).find(|&i| leaked(i) != 0) {
                        let (_, first) = class_geometry(class);
                        let size = shoal_format::slot::CLASS_SIZES[class as usize];
                        let slot = word as u32 * 64 + leaked(word).trailing_zeros();
                        let sentence = format!(
                            "{count} slots of {size} bytes in segment {index} are allocated but nothing references them; \
                             the first is slot {slot}"
                        );
                        report.error(FindingKind::Leak, None, Some(at + (first + slot * size) as u64), sentence);
                        let set = |word: usize| (0..64).filter(move |bit| leaked(word) >> bit & 1 == 1);
                        let slots = (0..words.max(1)).flat_map(|word| set(word).map(move |bit| word as u32 * 64 + bit));
                        let piece = |slot: u32| SlotRef::slot(Offset::new(at) + (first + slot * size) as u64, class);
                        report.offer(Remedy::FreePieces { pieces: slots.map(piece).collect() });
                    }
                }
                _ => {}
            }
        }
        let total = self.segments.len() as u64;
        progress(Progress { stage: Stage::Allocation, done: total, total });
    }
}
