//! Pages of a bulk device that the region holds, because an fsync promised them and the device may
//! not have them durably yet (docs/spec/region.md, section 7).
//!
//! An area is one run: a segment with entries, then a place for a page for each entry.

use crate::{FormatError, Offset, PAGE, SEGMENT, SlotRef};

/// Segments of an area: one for the entries, and at least one for pages.
pub const AREA_SEGMENTS_MIN: u64 = 2;
/// Bit of an entry: the page consists of zeros, and its place means nothing.
const ZEROS: u64 = 1 << 63;

/// The run that holds pages of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsorbedArea {
    pub piece: SlotRef,
}

/// An absorbed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbsorbedPage {
    /// The page of the device, counted from its beginning.
    pub page: u64,
    /// All of it is zeros.
    pub zeros: bool,
}

impl AbsorbedArea {
    /// Returns the number of pages that the area can hold.
    pub fn places(&self) -> u64 {
        (self.piece.capacity() / SEGMENT - 1) * (SEGMENT / PAGE)
    }

    /// Returns the offset of an entry.
    pub fn entry_at(&self, place: u64) -> Offset {
        self.piece.offset() + place * 8
    }

    /// Returns the offset of the bytes of an entry's page.
    pub fn page_at(&self, place: u64) -> Offset {
        self.piece.offset() + SEGMENT + place * PAGE
    }
}

impl AbsorbedPage {
    pub fn encode(self) -> u64 {
        (self.page + 1) | if self.zeros { ZEROS } else { 0 }
    }

    /// Decodes an entry of a device with this many pages; `None` if it is empty.
    pub fn decode(bits: u64, pages: u64) -> Result<Option<AbsorbedPage>, FormatError> {
        match bits & !ZEROS {
            0 if bits == 0 => Ok(None),
            number @ 1.. if number <= pages => Ok(Some(AbsorbedPage { page: number - 1, zeros: bits & ZEROS != 0 })),
            _ => Err(FormatError::Range { what: "absorbed page", field: "page", found: bits }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip_and_pages_behind_the_device_are_refused() {
        for (page, zeros) in [(0, false), (0, true), (99, false)] {
            let entry = AbsorbedPage { page, zeros };
            assert_eq!(AbsorbedPage::decode(entry.encode(), 100), Ok(Some(entry)));
        }
        assert_eq!(AbsorbedPage::decode(0, 100), Ok(None));
        for wrong in [101, ZEROS, u64::MAX] {
            assert!(AbsorbedPage::decode(wrong, 100).is_err(), "{wrong:#x}");
        }
    }

    #[test]
    fn entries_and_pages_of_the_longest_area_do_not_meet() {
        let area = AbsorbedArea { piece: SlotRef::run(Offset::of_segment(7), crate::slot::RUN_SEGMENTS_MAX) };
        assert_eq!(area.places(), 4080);
        assert!(area.entry_at(4080) <= area.page_at(0));
        assert_eq!(area.page_at(4080), area.piece.offset() + area.piece.capacity());
    }
}
