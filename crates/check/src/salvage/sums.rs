//! Comparison of bulk blocks with their checksums: data that a device has changed by itself is
//! copied, and named.
//!
//! The sums count only if region and devices were in use together. They do not count if some of the
//! image or log is missing, or in an image that a region in memory has outlived. A sum in a page
//! that is not known to be right, or in an open leaf, does not count. Left out: spilled objects,
//! which have sums of their own.

use std::ops::Range;

use shoal_format::block_sums::{BLOCK_SUM, LEAF_OPEN, LEAF_SUMS, block_sum};
use shoal_format::{BULK_BLOCK, Offset, SlotRef};

use super::Walk;
use crate::CheckError;

impl Walk<'_, '_> {
    /// Returns the ranges of bulk storage in `[at, at + bytes.len())` whose bytes do not match
    /// their checksums. `at` is the beginning of a block.
    pub(super) fn wrong_ranges(&self, at: u64, bytes: &[u8]) -> Result<Vec<Range<u64>>, CheckError> {
        let mut wrong: Vec<Range<u64>> = Vec::new();
        let device = self.devices.iter().find(|device| (device.first()..device.end()).contains(&(at / BULK_BLOCK)));
        let Some((first, sums)) = device.and_then(|device| Some((device.first() * BULK_BLOCK, device.sums?))) else {
            return Ok(wrong);
        };
        if !self.sums_count || !self.fits(sums.piece) {
            return Ok(wrong);
        }
        let unit = sums.unit_bytes();
        for (number, part) in ((at - first) / unit..sums.units()).zip(bytes.chunks_exact(unit as usize)) {
            let leaf = number / LEAF_SUMS;
            let place = SlotRef::from_bits(self.known(sums.entry_at(leaf), 8)?).filter(|place| !place.is_none());
            let Some(place) = place.filter(|&place| self.fits(place)) else { continue };
            if self.known(sums.marks_at(leaf), 8)? & LEAF_OPEN != 0 {
                continue;
            }
            let sum = self.known(place.offset() + number % LEAF_SUMS * BLOCK_SUM, BLOCK_SUM)?;
            let from = first + number * unit;
            if sum == 0 || u64::from(block_sum(from, part)) == sum {
                continue;
            }
            match wrong.last_mut() {
                Some(last) if last.end == from => last.end += unit,
                _ => wrong.push(from..from + unit),
            }
        }
        Ok(wrong)
    }

    /// Reads a number of up to 8 bytes in the region. In a page that is not known to be right, an
    /// entry reads as all ones, which is no reference, and a sum as zero, which does not count.
    fn known(&self, at: Offset, bytes: u64) -> Result<u64, CheckError> {
        if self.bad_page(at, bytes).is_some() {
            return Ok(if bytes == BLOCK_SUM { 0 } else { u64::MAX });
        }
        let mut word = [0; 8];
        self.read(at, &mut word[..bytes as usize])?;
        Ok(u64::from_le_bytes(word))
    }
}
