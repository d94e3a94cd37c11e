//! Checksums of what is on a bulk device (docs/spec/region.md, section 7).
//!
//! A device has a table: a run of the region with an entry for each *leaf*, which is a run of one segment with the sums of
//! [`LEAF_SUMS`] *units* of the device in a row. A leaf is there from its first sum on. Zero stands for a unit whose sum is not known. The
//! entry's mark is set, durably, before the first write over data in its units, and taken off when none is on its way any more:
//! after a crash while it is set, its sums mean nothing. Which of the units are in use the extents say; sums of others are left over.

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{BULK_BLOCK, Offset, SEGMENT, SlotRef};

/// Bytes of one sum.
pub const BLOCK_SUM: u64 = 4;
/// Sums of one leaf.
pub const LEAF_SUMS: u64 = SEGMENT / BLOCK_SUM;
/// The mark of a leaf whose sums are not right at every moment.
pub const LEAF_OPEN: u64 = 1;
/// Smallest and largest unit, as powers of two: a block has at least two, so that no two blocks' sums share a word.
pub const SUM_SHIFT_MIN: u32 = 12;
pub const SUM_SHIFT_MAX: u32 = 15;
/// All leaves of a new table take at most this part of the region.
const PART_OF_REGION: u64 = 50;

/// An entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct LeafEntry {
    pub leaf: U64,
    pub marks: U64,
}

pub const LEAF_ENTRY: u64 = size_of::<LeafEntry>() as u64;
const _: () = assert!(LEAF_ENTRY == 16);

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

impl LeafEntry {
    /// The reference to the leaf; `None` if no writer could have made it.
    pub fn leaf(&self) -> Option<SlotRef> {
        SlotRef::from_bits(self.leaf.get()).filter(|leaf| leaf.is_none() || leaf.is_run() && leaf.run_segments() == 1)
    }

    pub fn is_open(&self) -> bool {
        self.marks.get() & LEAF_OPEN != 0
    }
}

impl BlockSums {
    /// How a new table for `blocks` blocks is made in a region of `region_bytes`: the shift of its units, and the bytes of its
    /// piece. `None`: any would take too much of the region.
    pub fn plan(blocks: u64, region_bytes: u64) -> Option<(u32, u64)> {
        (SUM_SHIFT_MIN..=SUM_SHIFT_MAX).find_map(|shift| {
            let leaves = (blocks * (BULK_BLOCK >> shift)).div_ceil(LEAF_SUMS);
            let bytes = (leaves * LEAF_ENTRY).max(SEGMENT);
            (leaves * SEGMENT + bytes <= (region_bytes / PART_OF_REGION).max(2 * SEGMENT)).then_some((shift, bytes))
        })
    }

    pub fn unit_bytes(&self) -> u64 {
        1 << self.shift
    }

    /// Leaves that the table has an entry for.
    pub fn leaves(&self) -> u64 {
        self.piece.capacity() / LEAF_ENTRY
    }

    /// Units that have a place for a sum.
    pub fn units(&self) -> u64 {
        self.leaves() * LEAF_SUMS
    }

    /// Where the entry of a leaf is: the reference, and the marks behind it.
    pub fn entry_at(&self, leaf: u64) -> Offset {
        self.piece.offset() + leaf * LEAF_ENTRY
    }

    pub fn marks_at(&self, leaf: u64) -> Offset {
        self.entry_at(leaf) + 8
    }

    /// Could a writer have made it?
    pub fn is_valid(&self) -> bool {
        (SUM_SHIFT_MIN..=SUM_SHIFT_MAX).contains(&self.shift) && self.piece.is_run()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_planned_table_has_a_place_for_every_unit_and_takes_a_fiftieth_at_most() {
        for (blocks, region) in
            [(1, 32 << 20), (1000, 64 << 20), (1 << 14, 1 << 30), (1 << 20, 1 << 30), (1 << 22, 12 << 30)]
        {
            let (shift, bytes) = BlockSums::plan(blocks, region).unwrap();
            let sums = BlockSums { piece: SlotRef::run(Offset::of_segment(9), bytes.div_ceil(SEGMENT)), shift };
            let units = blocks * (BULK_BLOCK >> shift);
            assert!(sums.is_valid() && sums.units() >= units, "{blocks} in {region}");
            let used = units.div_ceil(LEAF_SUMS) * SEGMENT + bytes;
            assert!(used <= (region / PART_OF_REGION).max(2 * SEGMENT), "{used} of {region}");
            assert!(sums.marks_at(sums.leaves() - 1) + 8 <= sums.piece.offset() + sums.piece.capacity());
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
