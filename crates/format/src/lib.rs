//! Every layout that Shoal puts on media, defined once: constants, typed records, encoding,
//! decoding.
//!
//! Owns: the bytes. `docs/spec/` states each layout as a table. The structures here assert their
//! sizes and offsets at compile time, `cargo xtask check` compares the two, and `tests/golden.rs`
//! holds the bytes themselves.
//! Rules: all integers are little-endian; decoding validates before it computes, never panics on
//! hostile bytes, and says what was expected and what was found.
//! Left out: I/O, allocation policy, locking, anything that needs a clock.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::cast_lossless, clippy::cast_possible_truncation))]

pub mod absorbed;
pub mod block_sums;
pub mod bulk_list;
pub mod cache;
pub mod dictionary;
pub mod dir;
pub mod extent;
pub mod gap;
pub mod inode;
mod lsn;
pub mod memory;
mod number;
pub mod object;
pub mod packed;
pub mod ram;
pub mod ram_checkpoint;
pub mod record;
pub mod segment;
pub mod slot;
mod sums;
pub mod superblock;
pub mod vlog;
pub mod vouch;
pub mod xattr;

pub use lsn::Lsn;
pub use slot::SlotRef;
pub use sums::Sums;

use number::position;

position! {
    /// The offset of a byte in a region, and of the same byte in an image of it.
    Offset
}

impl Offset {
    /// Returns the first byte of the segment with this number.
    pub const fn of_segment(segment: u64) -> Offset {
        Offset(segment * SEGMENT)
    }

    /// Returns the segment that holds this byte.
    pub const fn segment(self) -> u64 {
        self.0 / SEGMENT
    }

    /// Returns the number of bytes before this one in its segment.
    pub const fn in_segment(self) -> u32 {
        (self.0 % SEGMENT) as u32
    }

    /// Returns the page that holds this byte.
    pub const fn page(self) -> u64 {
        self.0 / PAGE
    }
}

/// Bytes of a page: the unit of dirty tracking, of image checksums and of the superblock area.
pub const PAGE: u64 = 4096;
/// Bytes of a segment: the unit the allocator hands to a size class.
pub const SEGMENT: u64 = 65536;
/// Bytes of a bulk block: the unit of large-file data on the bulk device.
pub const BULK_BLOCK: u64 = 65536;
/// Offsets have 40 bits: a region is at most 1 TiB.
pub const REGION_BYTES_MAX: u64 = 1 << 40;

/// The reason why bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes do not begin with the structure's magic. Something else is stored here.
    #[error("{what}: magic is {found:#x}, expected {expected:#x}")]
    Magic { what: &'static str, expected: u64, found: u64 },
    /// Written by another, incompatible version.
    #[error("{what}: format version is {found}, this program reads version {expected}")]
    Version { what: &'static str, expected: u32, found: u32 },
    /// A feature this program does not know must be understood to read the store.
    #[error("{what}: unknown incompatible features {bits:#x}")]
    Features { what: &'static str, bits: u64 },
    /// Checksum mismatch: the bytes changed after they were written.
    #[error("{what}: checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum { what: &'static str, expected: u32, found: u32 },
    /// A field holds a value that no writer writes.
    #[error("{what}: {field} is {found}, which is out of range")]
    Range { what: &'static str, field: &'static str, found: u64 },
    /// Fewer bytes than the structure needs.
    #[error("{what}: {found} bytes, needs {expected}")]
    Short { what: &'static str, expected: usize, found: usize },
}

/// Returns the CRC32C of `bytes`, continued from `seed`.
pub fn checksum(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// Converts a number of bytes or items to an index. Addresses have 64 bits.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, which is asserted")]
pub(crate) const fn index(value: u64) -> usize {
    const { assert!(usize::BITS == u64::BITS) };
    value as usize
}

/// Stores the CRC32C of all bytes after the first four, continued from `seed`, in the first four.
pub(crate) fn seal(seed: u32, bytes: &mut [u8]) {
    let crc = checksum(seed, &bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
}

#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}
