//! Sums of bytes that users or the file system wrote: log payloads, pages of images, blocks of block devices.
//!
//! CRC32C is linear. Bytes that end with their own CRC32C, as an inode record does, contribute the
//! same to the CRC32C of a whole regardless of their contents. Such a sum therefore accepts an old
//! inode record in place of a new one. Reused log space and lost writes leave old bytes in just
//! such places. XXH3 has no such blind spot.
//! Older media keep CRC32C: regions without [`FEATURE_SUMS`](crate::superblock::FEATURE_SUMS),
//! virtual-log disks of versions 1 and 2, network RAM disks of versions 2 and 3.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::checksum;

/// The kind of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    Crc32c,
    /// The low half of XXH3-64, for a page seeded with its number.
    Xxh3,
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is kept")]
const fn low(hash: u64) -> u32 {
    hash as u32
}

impl Sums {
    /// Returns the kind for a bit of a version or of features.
    pub(crate) fn of_bit(is_set: bool) -> Sums {
        if is_set { Sums::Xxh3 } else { Sums::Crc32c }
    }

    pub(crate) fn bit(self) -> bool {
        self == Sums::Xxh3
    }

    /// Returns the sum of bytes whose place does not matter.
    pub fn of(self, bytes: &[u8]) -> u32 {
        match self {
            Sums::Crc32c => checksum(0, bytes),
            Sums::Xxh3 => low(xxh3_64(bytes)),
        }
    }

    /// Returns the sum of the page with this number.
    pub fn of_page(self, number: u64, page: &[u8]) -> u32 {
        match self {
            Sums::Crc32c => checksum(0, page),
            Sums::Xxh3 => low(xxh3_64_with_seed(page, number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns bytes with a part in the middle that ends with its CRC32C.
    fn with_sealed(value: u8) -> Vec<u8> {
        let sealed = [value; 92];
        [&[7; 144][..], &sealed, &checksum(0, &sealed).to_le_bytes(), &[9; 40]].concat()
    }

    #[test]
    fn a_sealed_record_in_the_place_of_another_changes_the_sum() {
        let (one, other) = (with_sealed(1), with_sealed(2));
        assert_eq!(Sums::Crc32c.of(&one), Sums::Crc32c.of(&other), "what XXH3 is there for");
        assert_ne!(Sums::Xxh3.of(&one), Sums::Xxh3.of(&other));
        assert_ne!(Sums::Xxh3.of_page(3, &one), Sums::Xxh3.of_page(3, &other));
        assert_ne!(Sums::Xxh3.of_page(3, &one), Sums::Xxh3.of_page(4, &one), "a page at another's place");
    }
}
