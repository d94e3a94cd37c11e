//! Checksums of a bulk device's contents (docs/spec/region.md, section 7).
//!
//! A device has a table: a run of the region with an entry for each *leaf*. A leaf is a run of one
//! segment with the sums of [`LEAF_SUMS`] consecutive *units* of the device. A leaf exists from its
//! first sum on. Zero means that a unit's sum is unknown. The entry's mark is set, durably, before
//! the first write over data in its units, and cleared when no such write is under way. After a
//! crash while the mark is set, the leaf's sums mean nothing. The extents say which units are in
//! use; sums of other units are leftovers.

use xxhash_rust::xxh3::xxh3_64_with_seed;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{BULK_BLOCK, Offset, SEGMENT, SlotRef};

/// Bytes of one sum.
pub const BLOCK_SUM: u64 = 4;
/// Number of sums in one leaf.
pub const LEAF_SUMS: u64 = SEGMENT / BLOCK_SUM;
/// The mark of a leaf whose sums may be wrong for the moment.
pub const LEAF_OPEN: u64 = 1;
/// Smallest and largest unit, as powers of two. A block has at least two units, so that the sums of
/// two blocks never share a word.
pub const SUM_SHIFT_MIN: u32 = 12;
pub const SUM_SHIFT_MAX: u32 = 15;
/// Divisor of the region's size that limits all leaves of a new table.
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

/// Returns the sum of a unit that begins at byte `at` of the store's bulk storage. Never 0.
pub fn block_sum(at: u64, unit: &[u8]) -> u32 {
    let hash = xxh3_64_with_seed(unit, at);
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is kept")]
    let sum = hash as u32;
    sum.max(1)
}

impl LeafEntry {
    /// Returns the reference to the leaf, or `None` if no writer could have made it.
    pub fn leaf(&self) -> Option<SlotRef> {
        SlotRef::from_bits(self.leaf.get()).filter(|leaf| leaf.is_none() || leaf.is_run() && leaf.run_segments() == 1)
    }

    pub fn is_open(&self) -> bool {
        self.marks.get() & LEAF_OPEN != 0
    }
}

impl BlockSums {
    /// Plans a new table for `blocks` blocks in a region of `region_bytes`. Returns the shift of
    /// its units and the bytes of its piece, or `None` if any table would take too much of the
    /// region.
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

    /// Returns the number of leaves that the table has entries for.
    pub fn leaves(&self) -> u64 {
        self.piece.capacity() / LEAF_ENTRY
    }

    /// Returns the number of units that have a place for a sum.
    pub fn units(&self) -> u64 {
        self.leaves() * LEAF_SUMS
    }

    /// Returns the offset of the entry of a leaf: the reference, followed by the marks.
    pub fn entry_at(&self, leaf: u64) -> Offset {
        self.piece.offset() + leaf * LEAF_ENTRY
    }

    pub fn marks_at(&self, leaf: u64) -> Offset {
        self.entry_at(leaf) + 8
    }

    /// Returns whether a writer could have made this table.
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
