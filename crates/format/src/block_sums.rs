//! Checksums of what is on a bulk device (docs/spec/region.md, section 7).
//!
//! A device's table is a run of the region: a bit for each of its *leaves*, then a sum for each *unit* of the device, in their
//! order. A leaf is the units of [`LEAF_SUMS`] sums in a row. Zero stands for a unit whose sum is not known. The bit of a leaf is
//! set, durably, before the first write over data in its units, and cleared when none is on its way any more: after a crash
//! while it is set, its sums mean nothing. Which of the units are in use the extents say; sums of others are left over.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{BULK_BLOCK, Offset, PAGE, SEGMENT, SlotRef};

/// Bytes of one sum.
pub const BLOCK_SUM: u64 = 4;
/// Sums of one leaf.
pub const LEAF_SUMS: u64 = 16384;
/// Smallest and largest unit, as powers of two: a block has at least two, so that no two blocks' sums share a word.
pub const SUM_SHIFT_MIN: u32 = 12;
pub const SUM_SHIFT_MAX: u32 = 15;
/// A new table takes at most this part of the region.
const PART_OF_REGION: u64 = 50;
/// Bytes of a leaf's sums.
const LEAF_BYTES: u64 = LEAF_SUMS * BLOCK_SUM;

/// The table of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSums {
    pub piece: SlotRef,
    /// Bytes of a unit, as a power of two.
    pub shift: u32,
}

/// The sum of a unit that begins at byte `at` of the store's bulk storage; never 0.
pub fn block_sum(at: u64, unit: &[u8]) -> u32 {
    let hash = xxh3_64_with_seed(unit, at);
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is kept")]
    let sum = hash as u32;
    sum.max(1)
}

/// Bytes of the bits in front of the sums, in a piece of `capacity` bytes.
fn bits_bytes(capacity: u64) -> u64 {
    (capacity.div_ceil(LEAF_BYTES).div_ceil(64) * 8).next_multiple_of(PAGE)
}

impl BlockSums {
    /// How a new table for `blocks` blocks is made in a region of `region_bytes`: the shift of its units, and the bytes of its
    /// piece. `None`: any would take too much of the region.
    pub fn plan(blocks: u64, region_bytes: u64) -> Option<(u32, u64)> {
        (SUM_SHIFT_MIN..=SUM_SHIFT_MAX).find_map(|shift| {
            let sums = blocks * (BULK_BLOCK >> shift) * BLOCK_SUM;
            // Capacities are whole segments, so the bits may be more than the bytes need.
            let bytes = (sums + bits_bytes(sums + sums / PAGE + 2 * SEGMENT)).max(SEGMENT);
            (bytes <= (region_bytes / PART_OF_REGION).max(2 * SEGMENT)).then_some((shift, bytes))
        })
    }

    pub fn unit_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// Units that have a place for a sum.
    pub fn units(&self) -> u64 {
        let capacity = self.piece.capacity();
        let per_block = BULK_BLOCK >> self.shift;
        (capacity - bits_bytes(capacity)) / BLOCK_SUM / per_block * per_block
    }

    /// Where the sum of a unit is; units are numbered from the device's first byte on.
    pub fn sum_at(&self, unit: u64) -> Offset {
        self.piece.offset() + bits_bytes(self.piece.capacity()) + unit * BLOCK_SUM
    }

    /// The word that holds the bit of a leaf, and the bit.
    pub fn bit_of(&self, leaf: u64) -> (Offset, u64) {
        (self.piece.offset() + leaf / 64 * 8, 1 << (leaf % 64))
    }

    pub fn leaves(&self) -> u64 {
        self.units().div_ceil(LEAF_SUMS)
    }

    /// Could a writer have made it?
    pub fn is_valid(&self) -> bool {
        (SUM_SHIFT_MIN..=SUM_SHIFT_MAX).contains(&self.shift)
            && self.piece.is_run()
            && self.piece.capacity() > bits_bytes(self.piece.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(blocks: u64, region_bytes: u64) -> BlockSums {
        let (shift, bytes) = BlockSums::plan(blocks, region_bytes).unwrap();
        BlockSums { piece: SlotRef::run(Offset::of_segment(9), bytes.div_ceil(SEGMENT)), shift }
    }

    #[test]
    fn a_planned_table_has_a_place_for_every_unit_and_takes_a_fiftieth_at_most() {
        for (blocks, region) in
            [(1, 32 << 20), (1000, 64 << 20), (1 << 14, 1 << 30), (1 << 20, 1 << 30), (5 << 18, 1 << 30)]
        {
            let sums = planned(blocks, region);
            let units = blocks * (BULK_BLOCK >> sums.shift);
            assert!(sums.is_valid() && sums.units() >= units, "{blocks} in {region}");
            let end = sums.sum_at(units).get();
            assert!(end <= sums.piece.offset().get() + sums.piece.capacity());
            assert!(sums.piece.capacity() <= (region / PART_OF_REGION).next_multiple_of(SEGMENT).max(2 * SEGMENT));
            let (last_word, _) = sums.bit_of(sums.leaves() - 1);
            assert!(last_word + 8 <= sums.sum_at(0), "bits and sums do not meet");
        }
        assert_eq!(BlockSums::plan(1 << 14, 1 << 30).unwrap().0, SUM_SHIFT_MIN);
        assert_eq!(BlockSums::plan(1 << 24, 1 << 30), None, "one TiB beside one GiB of memory");
    }

    #[test]
    fn a_sum_tells_a_unit_from_the_same_bytes_elsewhere_and_is_never_unknown() {
        let unit = [7; 4096];
        assert_ne!(block_sum(0, &unit), block_sum(4096, &unit));
        assert_ne!(block_sum(0, &unit), block_sum(0, &[8; 4096]));
        assert!((0..10_000u64).all(|at| block_sum(at, &at.to_le_bytes()) != 0));
    }
}
