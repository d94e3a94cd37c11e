//! The segment table: one entry of 16 bytes for every 64 KiB of the region.
//!
//! An entry gives the segment's use. For classes of at most 64 slots it also holds the slot bitmap.
//! The smaller classes keep theirs at the start of the segment.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::slot::{CLASSES, RUN_SEGMENTS_MAX, class_geometry};
use crate::{FormatError, index};

/// Bytes of one entry of the segment table.
pub const SEGMENT_ENTRY: u64 = 16;
/// Offset of the bitmap word within an entry.
pub const SEGMENT_ENTRY_BITMAP: u64 = 8;

/// One entry as it lies in the region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct SegmentEntry {
    /// 0 free, 1 slots, 2 first of a run, 3 rest of a run, 4 reserved for fixed structures.
    pub kind: u8,
    /// Size class when `kind` is 1.
    pub class: u8,
    pub reserved: U16,
    /// Segments of the run when `kind` is 2.
    pub run: U32,
    /// Allocation bits (1 = in use) when the class has at most 64 slots.
    pub bitmap: U64,
}

const _: () = assert!(size_of::<SegmentEntry>() == index(SEGMENT_ENTRY));
const _: () = assert!(std::mem::offset_of!(SegmentEntry, bitmap) == index(SEGMENT_ENTRY_BITMAP));

/// Use of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentUse {
    Free,
    /// Cut into slots of this class.
    Slots(u8),
    /// First of a run of this many segments.
    RunHead(u32),
    RunBody,
    /// Superblock, tables, ring.
    Reserved,
}

impl SegmentEntry {
    pub fn new(usage: SegmentUse) -> SegmentEntry {
        let mut entry = SegmentEntry::default();
        match usage {
            SegmentUse::Free => {}
            SegmentUse::Slots(class) => (entry.kind, entry.class) = (1, class),
            SegmentUse::RunHead(segments) => {
                entry.kind = 2;
                entry.run = segments.into();
            }
            SegmentUse::RunBody => entry.kind = 3,
            SegmentUse::Reserved => entry.kind = 4,
        }
        entry
    }

    /// Decodes and validates 16 bytes.
    pub fn decode(bytes: &[u8; 16]) -> Result<(SegmentUse, u64), FormatError> {
        let what = "segment table entry";
        let entry = SegmentEntry::read_from_bytes(bytes).expect("sixteen bytes");
        let bitmap = entry.bitmap.get();
        let usage = match entry.kind {
            0 => SegmentUse::Free,
            1 => {
                if entry.class as usize >= CLASSES {
                    return Err(FormatError::Range { what, field: "class", found: u64::from(entry.class) });
                }
                let (slots, _) = class_geometry(entry.class);
                if slots > 64 && bitmap != 0 || slots < 64 && bitmap >> slots != 0 {
                    return Err(FormatError::Range { what, field: "bitmap", found: bitmap });
                }
                return Ok((SegmentUse::Slots(entry.class), bitmap));
            }
            2 => {
                let run = entry.run.get();
                if run == 0 || u64::from(run) > RUN_SEGMENTS_MAX {
                    return Err(FormatError::Range { what, field: "run length", found: u64::from(run) });
                }
                SegmentUse::RunHead(run)
            }
            3 => SegmentUse::RunBody,
            4 => SegmentUse::Reserved,
            kind => return Err(FormatError::Range { what, field: "kind", found: u64::from(kind) }),
        };
        if bitmap != 0 {
            return Err(FormatError::Range { what, field: "bitmap", found: bitmap });
        }
        Ok((usage, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_nonsense_is_refused() {
        for usage in
            [SegmentUse::Free, SegmentUse::Slots(20), SegmentUse::RunHead(7), SegmentUse::RunBody, SegmentUse::Reserved]
        {
            let bytes: [u8; 16] = SegmentEntry::new(usage).as_bytes().try_into().unwrap();
            assert_eq!(SegmentEntry::decode(&bytes), Ok((usage, 0)));
        }
        for kind in 5..=255u8 {
            let mut bytes = [0; 16];
            bytes[0] = kind;
            assert!(SegmentEntry::decode(&bytes).is_err());
        }
        let mut too_many = [0; 16];
        too_many[..2].copy_from_slice(&[1, 32]);
        too_many[8] = 0b100;
        assert!(SegmentEntry::decode(&too_many).is_err(), "a 32 KiB class has two slots");
    }
}
