//! Size classes of the region's allocator, and the reference to an allocated piece.
//!
//! A segment of 64 KiB belongs to one class and is cut into equal slots. Pieces above 32 KiB are
//! runs of whole segments. Classes of at most 64 slots keep their bitmap in the segment table, the
//! smaller ones in the first bytes of the segment itself, so that 1 KiB slots fill a segment
//! exactly.

use crate::{Offset, REGION_BYTES_MAX, SEGMENT};

/// Slot sizes in bytes, ascending. A class is an index into this table.
pub const CLASS_SIZES: [u32; 33] = [
    16, 32, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560,
    3072, 4096, 5120, 6144, 8192, 10240, 12288, 16384, 21824, 32768,
];
/// Number of classes.
pub const CLASSES: usize = CLASS_SIZES.len();
/// Largest slot. Longer pieces are runs of segments.
pub const SLOT_MAX: u64 = 32768;
/// The class number that marks a run of whole segments in a [`SlotRef`].
pub const CLASS_RUN: u8 = 63;
/// Longest run, in segments (16 MiB).
pub const RUN_SEGMENTS_MAX: u64 = 256;

/// Slots in a segment of `class`, and where in the segment the first one begins (bytes).
#[inline]
pub const fn class_geometry(class: u8) -> (u32, u32) {
    GEOMETRY[class as usize]
}

const GEOMETRY: [(u32, u32); CLASSES] = {
    let mut table = [(0, 0); CLASSES];
    let mut class = 0;
    while class < CLASSES {
        table[class] = geometry(CLASS_SIZES[class]);
        class += 1;
    }
    table
};

/// [`SEGMENT`] as a `u32`, the type of offsets within a segment.
const SEGMENT_BYTES: u32 = 1 << 16;
const _: () = assert!(SEGMENT_BYTES as u64 == SEGMENT);

const fn geometry(size: u32) -> (u32, u32) {
    let most = SEGMENT_BYTES / size;
    if most <= 64 {
        return (most, 0);
    }
    let header = most.div_ceil(8).next_multiple_of(64);
    ((SEGMENT_BYTES - header) / size, header)
}

/// Returns the smallest class whose slots hold `len` bytes, or `None` above [`SLOT_MAX`].
pub const fn class_for(len: u64) -> Option<u8> {
    if len > SLOT_MAX {
        return None;
    }
    let mut class = 0;
    while (CLASS_SIZES[class as usize] as u64) < len {
        class += 1;
    }
    Some(class)
}

/// A reference to an allocated piece: offset (40 bits), class (6 bits), run length in segments (9 bits).
/// Zero is "none".
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct SlotRef(u64);

impl SlotRef {
    pub const NONE: SlotRef = SlotRef(0);

    pub fn slot(offset: Offset, class: u8) -> SlotRef {
        debug_assert!(offset != Offset::ZERO && offset.get() < REGION_BYTES_MAX && (class as usize) < CLASSES);
        SlotRef(offset.get() | u64::from(class) << 40)
    }

    pub fn run(offset: Offset, segments: u64) -> SlotRef {
        debug_assert!(offset.in_segment() == 0 && segments <= RUN_SEGMENTS_MAX);
        SlotRef(offset.get() | u64::from(CLASS_RUN) << 40 | segments << 46)
    }

    /// Decodes stored bits. Returns `None` if no writer could have written them. Zero decodes to
    /// [`SlotRef::NONE`].
    #[inline]
    pub fn from_bits(bits: u64) -> Option<SlotRef> {
        let reference = SlotRef(bits);
        if bits == 0 {
            return Some(reference);
        }
        let within = reference.offset().in_segment();
        // A reference to a slot has no bits above its class.
        let ok = match CLASS_SIZES.get((bits >> 40) as usize) {
            Some(&size) => {
                let (slots, first) = class_geometry(reference.class());
                let behind = within.wrapping_sub(first);
                behind / size < slots && behind % size == 0
            }
            None => {
                let segments = bits >> 46;
                reference.is_run() && within == 0 && (1..=RUN_SEGMENTS_MAX).contains(&segments)
            }
        };
        (ok && reference.offset().segment() > 0).then_some(reference)
    }

    /// Like [`SlotRef::from_bits`], but accepts only this class. Faster, because the divisor is
    /// known.
    #[inline]
    pub fn from_bits_of<const CLASS: u8>(bits: u64) -> Option<SlotRef> {
        let (slots, first) = const { class_geometry(CLASS) };
        let size = const { CLASS_SIZES[CLASS as usize] };
        let reference = SlotRef(bits);
        let behind = reference.offset().in_segment().wrapping_sub(first);
        let ok = bits >> 40 == u64::from(CLASS)
            && behind / size < slots
            && behind.is_multiple_of(size)
            && reference.offset().segment() > 0;
        (ok || bits == 0).then_some(reference)
    }

    #[inline]
    pub fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub fn offset(self) -> Offset {
        Offset::new(self.0 & (REGION_BYTES_MAX - 1))
    }

    #[inline]
    pub fn class(self) -> u8 {
        (self.0 >> 40 & 63) as u8
    }

    #[inline]
    pub fn is_run(self) -> bool {
        self.class() == CLASS_RUN
    }

    /// Returns the number of segments of a run; zero for a slot.
    #[inline]
    pub fn run_segments(self) -> u64 {
        self.0 >> 46
    }

    /// Returns the number of bytes the piece can hold; zero for [`SlotRef::NONE`].
    #[inline]
    pub fn capacity(self) -> u64 {
        if self.is_none() {
            0
        } else if self.is_run() {
            self.run_segments() * SEGMENT
        } else {
            u64::from(CLASS_SIZES[self.class() as usize])
        }
    }

    /// Returns the number of the segment the piece begins in.
    pub fn segment(self) -> u64 {
        self.offset().segment()
    }

    /// Returns the index of the slot within its segment; zero for a run.
    pub fn index(self) -> u32 {
        if self.is_run() {
            return 0;
        }
        let (_, first) = class_geometry(self.class());
        (self.offset().in_segment() - first) / CLASS_SIZES[self.class() as usize]
    }
}

impl std::fmt::Debug for SlotRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        write!(f, "{:#x}+{}", self.offset().get(), self.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_fills_its_segment_without_overlap() {
        for class in 0..CLASSES as u8 {
            let (slots, first) = class_geometry(class);
            let size = CLASS_SIZES[class as usize];
            assert!(first + slots * size <= SEGMENT as u32, "class {class}");
            assert!(slots <= 64 || first * 8 >= slots, "class {class}: bitmap does not fit its header");
            assert!(slots > 64 || first == 0);
            assert_eq!(class_for(size as u64), Some(class));
        }
        assert_eq!(class_geometry(17), (64, 0));
        assert_eq!(class_for(SLOT_MAX + 1), None);
    }

    #[test]
    fn references_survive_their_bits_and_odd_bits_are_refused() {
        for class in 0..CLASSES as u8 {
            let (slots, first) = class_geometry(class);
            let at = 3 * SEGMENT + (first + (slots - 1) * CLASS_SIZES[class as usize]) as u64;
            let r = SlotRef::slot(crate::Offset::new(at), class);
            assert_eq!(SlotRef::from_bits(r.bits()), Some(r));
            assert_eq!(r.index(), slots - 1);
            assert_eq!(SlotRef::from_bits(r.bits() + 1), None);
        }
        for bits in (0..1 << 17).flat_map(|at| (0..64).map(move |class| at | class << 40)).chain([1 << 46, u64::MAX]) {
            let of = |class| SlotRef::from_bits(bits).filter(|r| r.is_none() || r.class() == class);
            assert_eq!(SlotRef::from_bits_of::<0>(bits), of(0), "{bits:#x}");
            assert_eq!(SlotRef::from_bits_of::<19>(bits), of(19), "{bits:#x}");
            assert_eq!(SlotRef::from_bits_of::<24>(bits), of(24), "{bits:#x}");
            assert_eq!(SlotRef::from_bits_of::<32>(bits), of(32), "{bits:#x}");
        }
        let run = SlotRef::run(crate::Offset::of_segment(2), 5);
        assert_eq!(SlotRef::from_bits(run.bits()), Some(run));
        assert_eq!(run.capacity(), 5 * SEGMENT);
        assert_eq!(SlotRef::from_bits(run.bits() & !(0x1ff << 46)), None);
        assert_eq!(SlotRef::from_bits(u64::MAX), None);
    }
}
