//! Extent maps of large files.
//!
//! A map is a sorted list of extents. Its root is a piece with a header of 16 bytes and either the extents themselves
//! (kind 0) or an index of leaves (kind 1); a leaf has the same header and holds extents. Leaves are 4 KiB.

use std::ops::Range;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::number::position;
use crate::{BULK_BLOCK, FormatError, SlotRef, index};

/// Bytes of the header of a root or leaf.
pub const EXTENT_HEADER: usize = 16;
/// Bytes of an extent or of an index entry.
pub const EXTENT_BYTES: usize = 16;
/// Bytes of a leaf.
pub const LEAF_BYTES: u64 = 4096;
/// Extents in a leaf.
pub const LEAF_EXTENTS: usize = (index(LEAF_BYTES) - EXTENT_HEADER) / EXTENT_BYTES;

/// Written, but perhaps not durable. Reads as zeros after a power loss.
pub const EXTENT_NEW: u32 = 1;
/// Allocated, never written: reads as zeros.
pub const EXTENT_UNWRITTEN: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtentHeader {
    /// 0: extents follow; 1: index entries follow.
    pub kind: U32,
    pub count: U32,
    pub reserved: U64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ExtentRecord {
    /// First block of the file (64 KiB units).
    pub file_block: U32,
    /// Blocks.
    pub blocks: U32,
    /// First block on the bulk device, 40 bits; flags in the top byte.
    pub bulk_and_flags: U64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct IndexRecord {
    /// First file block the leaf is responsible for.
    pub file_block: U32,
    pub reserved: U32,
    /// A [`SlotRef`].
    pub leaf: U64,
}

const _: () = assert!(size_of::<ExtentHeader>() == EXTENT_HEADER);
const _: () = assert!(size_of::<ExtentRecord>() == EXTENT_BYTES);
const _: () = assert!(size_of::<IndexRecord>() == EXTENT_BYTES);
const _: () = assert!(LEAF_EXTENTS == 255);

position! {
    /// The number of a block on the bulk device.
    BulkBlock
}

impl BulkBlock {
    /// Returns the block's first byte on the device.
    pub const fn byte(self) -> u64 {
        self.0 * BULK_BLOCK
    }
}

position! {
    /// The number of a block of a file. [`FileBlock::MAX`] lies after the end of every file.
    FileBlock
}

impl FileBlock {
    /// The block after the last one that a file may have: extents hold 32 bits.
    pub const END: FileBlock = FileBlock(1 << 32);

    /// Returns the block that holds this byte of the file.
    pub const fn of(byte: u64) -> FileBlock {
        FileBlock(byte / BULK_BLOCK)
    }

    /// Returns the first block that begins at or after this byte of the file.
    pub const fn ceil(byte: u64) -> FileBlock {
        FileBlock(byte.div_ceil(BULK_BLOCK))
    }

    /// Returns the block's first byte in the file, saturating at the largest number.
    pub const fn byte(self) -> u64 {
        self.0.saturating_mul(BULK_BLOCK)
    }
}

/// An extent in memory, validated: `blocks` blocks of the file lie at `bulk_block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub file_block: FileBlock,
    pub blocks: u64,
    pub bulk_block: BulkBlock,
    /// [`EXTENT_NEW`], [`EXTENT_UNWRITTEN`].
    pub flags: u32,
}

impl Extent {
    /// Returns the first block of the file after the extent.
    pub fn end(&self) -> FileBlock {
        self.file_block + self.blocks
    }
}

const WHAT: &str = "extent map";
/// Bits of a block number on the bulk device.
const BULK_BITS: u32 = 40;
const FLAGS_SHIFT: u32 = 56;

const fn range(field: &'static str, found: u64) -> FormatError {
    FormatError::Range { what: WHAT, field, found }
}

/// Converts a block of a file, or a number of blocks.
fn block(number: u64) -> U32 {
    u32::try_from(number).expect("a file ends at block 2^32").into()
}

impl ExtentRecord {
    fn new(extent: &Extent) -> ExtentRecord {
        ExtentRecord {
            file_block: block(extent.file_block.get()),
            blocks: block(extent.blocks),
            bulk_and_flags: (extent.bulk_block.get() | u64::from(extent.flags) << FLAGS_SHIFT).into(),
        }
    }

    /// Returns the blocks of the file that the record maps, even if it does not decode.
    pub fn file_blocks(&self) -> Range<FileBlock> {
        let first = FileBlock(self.file_block.get().into());
        first..first + u64::from(self.blocks.get())
    }

    /// Decodes and validates an extent, which must lie within the device's `bulk_blocks`.
    #[inline]
    pub fn decode(&self, bulk_blocks: u64) -> Result<Extent, FormatError> {
        let word = self.bulk_and_flags.get();
        let extent = Extent {
            file_block: self.file_blocks().start,
            blocks: self.blocks.get().into(),
            bulk_block: BulkBlock(word & ((1 << BULK_BITS) - 1)),
            flags: (word >> FLAGS_SHIFT) as u32,
        };
        if extent.blocks == 0 {
            return Err(range("blocks", 0));
        }
        if (extent.bulk_block + extent.blocks).get() > bulk_blocks || extent.end() > FileBlock::END {
            return Err(range("bulk block", extent.bulk_block.get()));
        }
        if word >> BULK_BITS & 0xffff != 0 || extent.flags > EXTENT_UNWRITTEN {
            return Err(range("flags", word >> BULK_BITS));
        }
        Ok(extent)
    }
}

impl IndexRecord {
    fn new(first: FileBlock, leaf: SlotRef) -> IndexRecord {
        IndexRecord { file_block: block(first.get()), reserved: 0.into(), leaf: leaf.bits().into() }
    }

    /// Returns the first file block.
    pub fn first(&self) -> FileBlock {
        FileBlock(self.file_block.get().into())
    }

    /// Returns the first file block and the leaf.
    #[inline]
    pub fn decode(&self) -> Result<(FileBlock, SlotRef), FormatError> {
        let leaf = SlotRef::from_bits(self.leaf.get()).filter(|leaf| leaf.capacity() == LEAF_BYTES);
        Ok((self.first(), leaf.ok_or(range("leaf", self.leaf.get()))?))
    }
}

/// A decoded root or leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtentNode {
    Extents(Vec<Extent>),
    /// First file block and leaf, ascending.
    Index(Vec<(FileBlock, SlotRef)>),
}

/// Encodes a root or leaf.
pub fn encode(node: &ExtentNode) -> Vec<u8> {
    let (kind, count) = match node {
        ExtentNode::Extents(extents) => (0, extents.len()),
        ExtentNode::Index(index) => (1, index.len()),
    };
    let mut out = Vec::with_capacity(EXTENT_HEADER + count * EXTENT_BYTES);
    let header = ExtentHeader {
        kind: kind.into(),
        count: u32::try_from(count).expect("a node is a piece").into(),
        reserved: 0.into(),
    };
    out.extend_from_slice(header.as_bytes());
    match node {
        ExtentNode::Extents(extents) => {
            extents.iter().for_each(|extent| out.extend_from_slice(ExtentRecord::new(extent).as_bytes()));
        }
        ExtentNode::Index(index) => {
            index.iter().for_each(|&(first, leaf)| out.extend_from_slice(IndexRecord::new(first, leaf).as_bytes()));
        }
    }
    out
}

/// Decodes a root or leaf. `bulk_blocks` bounds every extent. Extents must ascend without overlap.
pub fn decode(bytes: &[u8], bulk_blocks: u64) -> Result<ExtentNode, FormatError> {
    let Ok((header, body)) = ExtentHeader::ref_from_prefix(bytes) else {
        return Err(FormatError::Short { what: WHAT, expected: EXTENT_HEADER, found: bytes.len() });
    };
    let count = header.count.get() as usize;
    if body.len() / EXTENT_BYTES < count {
        return Err(range("count", header.count.into()));
    }
    let items = body.chunks_exact(EXTENT_BYTES).take(count);
    match header.kind.get() {
        0 => {
            let mut extents: Vec<Extent> = Vec::with_capacity(count);
            for item in items {
                let extent = ExtentRecord::ref_from_bytes(item).expect("size is asserted").decode(bulk_blocks)?;
                if extents.last().is_some_and(|last| last.end() > extent.file_block) {
                    return Err(range("file block", extent.file_block.get()));
                }
                extents.push(extent);
            }
            Ok(ExtentNode::Extents(extents))
        }
        1 => {
            let mut index: Vec<(FileBlock, SlotRef)> = Vec::with_capacity(count);
            for item in items {
                let (first, leaf) = IndexRecord::ref_from_bytes(item).expect("size is asserted").decode()?;
                if index.last().is_some_and(|&(last, _)| last >= first) {
                    return Err(range("file block", first.get()));
                }
                index.push((first, leaf));
            }
            Ok(ExtentNode::Index(index))
        }
        kind => Err(range("kind", kind.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_writer_writes_is_refused() {
        let good = ExtentRecord::new(&Extent {
            file_block: FileBlock(7),
            blocks: 2,
            bulk_block: BulkBlock(10),
            flags: EXTENT_UNWRITTEN,
        });
        assert!(good.decode(12).is_ok());
        let with = |change: fn(&mut ExtentRecord)| {
            let mut record = good;
            change(&mut record);
            match record.decode(12) {
                Err(FormatError::Range { field, .. }) => field,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(with(|record| record.blocks = 0.into()), "blocks");
        assert_eq!(with(|record| record.blocks = 3.into()), "bulk block");
        assert_eq!(with(|record| record.file_block = u32::MAX.into()), "bulk block");
        for flags in [3, 4, 128] {
            let record = ExtentRecord { bulk_and_flags: (10 | flags << FLAGS_SHIFT).into(), ..good };
            assert!(record.decode(12).is_err(), "flags {flags}");
        }
        assert_eq!(with(|record| record.bulk_and_flags = (10 | 1 << 40).into()), "flags");
    }

    #[test]
    fn maps_round_trip_and_overlaps_are_refused() {
        let a = Extent { file_block: FileBlock(0), blocks: 4, bulk_block: BulkBlock(10), flags: 0 };
        let b = Extent { file_block: FileBlock(4), blocks: 1, bulk_block: BulkBlock(99), flags: EXTENT_NEW };
        let node = ExtentNode::Extents(vec![a, b]);
        assert_eq!(decode(&encode(&node), 100), Ok(node.clone()));
        assert!(decode(&encode(&node), 99).is_err(), "beyond the device");
        let swapped = ExtentNode::Extents(vec![b, a]);
        assert!(decode(&encode(&swapped), 100).is_err());
        let leaf = SlotRef::slot(crate::Offset::new(65536), crate::slot::class_for(LEAF_BYTES).unwrap());
        let index = ExtentNode::Index(vec![(FileBlock(0), leaf), (FileBlock(7), leaf)]);
        assert_eq!(decode(&encode(&index), 100), Ok(index));
        assert!(decode(&[0xff; 64], 100).is_err());
    }
}
