//! The tables for decoding packed inode blocks, as stored.
//!
//! A piece begins with [`InodeTables`], followed by the profile file and the triplets. Each triplet
//! has its own checksum, because its count changes in place whenever a block with it is packed or
//! unpacked. `docs/spec/pack.md` describes the blocks and the profile file.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{FormatError, checksum};

pub const INODE_TABLES_MAGIC: u64 = u64::from_le_bytes(*b"SHINOTAB");
pub const INODE_TABLES_VERSION: u32 = 1;
/// Bytes of the header.
pub const INODE_TABLES_HEADER: usize = 32;
/// Bytes of a triplet.
pub const TRIPLET_RECORD: usize = 24;
/// Maximum number of triplets of a store: an index has 14 bits.
pub const TRIPLETS_MAX: u32 = 1 << 14;

/// The beginning of a copy of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct InodeTables {
    pub magic: U64,
    pub version: U32,
    /// Checksum of the rest of the header and of the profile file.
    pub crc: U32,
    pub profile_bytes: U32,
    /// Number of triplets that fit.
    pub triplets: U32,
    pub reserved: [u8; 8],
}

const _: () = assert!(size_of::<InodeTables>() == INODE_TABLES_HEADER);

/// Owner, group and mode. Codes name the record by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct TripletRecord {
    pub uid: U32,
    pub gid: U32,
    pub mode: U16,
    pub reserved: [u8; 2],
    /// Number of codes that name it.
    pub users: U64,
    pub crc: U32,
}

const _: () = assert!(size_of::<TripletRecord>() == TRIPLET_RECORD);

impl InodeTables {
    /// Returns the number of bytes from the beginning of a copy to its triplets.
    pub const fn triplets_at(profile_bytes: u64) -> u64 {
        INODE_TABLES_HEADER as u64 + profile_bytes.next_multiple_of(8)
    }

    /// Returns the size of a copy (bytes).
    pub const fn total(profile_bytes: u64, triplets: u32) -> u64 {
        Self::triplets_at(profile_bytes) + triplets as u64 * TRIPLET_RECORD as u64
    }

    /// Makes the header of tables with this profile file and room for this many triplets.
    pub fn new(profile: &[u8], triplets: u32) -> Result<InodeTables, FormatError> {
        let what = "inode tables";
        let profile_bytes = u32::try_from(profile.len()).map_err(|_| FormatError::Range {
            what,
            field: "profile",
            found: profile.len() as u64,
        })?;
        let mut header = InodeTables {
            magic: INODE_TABLES_MAGIC.into(),
            version: INODE_TABLES_VERSION.into(),
            crc: 0.into(),
            profile_bytes: profile_bytes.into(),
            triplets: triplets.into(),
            reserved: [0; 8],
        };
        header.crc = header.sum(profile).into();
        Ok(header)
    }

    fn sum(&self, profile: &[u8]) -> u32 {
        checksum(checksum(0, &self.as_bytes()[16..]), profile)
    }

    /// Returns the header of a copy, the bytes of its profile file, and those of its triplets.
    pub fn decode(bytes: &[u8]) -> Result<(InodeTables, &[u8], &[u8]), FormatError> {
        let what = "inode tables";
        let short = |expected: usize| FormatError::Short { what, expected, found: bytes.len() };
        let (header, rest) = InodeTables::read_from_prefix(bytes).map_err(|_| short(INODE_TABLES_HEADER))?;
        if header.magic.get() != INODE_TABLES_MAGIC {
            return Err(FormatError::Magic { what, expected: INODE_TABLES_MAGIC, found: header.magic.get() });
        }
        if header.version.get() != INODE_TABLES_VERSION {
            let found = header.version.get();
            return Err(FormatError::Version { what, expected: INODE_TABLES_VERSION, found });
        }
        let (len, count) = (header.profile_bytes.get(), header.triplets.get());
        if count > TRIPLETS_MAX {
            return Err(FormatError::Range { what, field: "triplets", found: count.into() });
        }
        let total = usize::try_from(Self::total(len.into(), count)).unwrap_or(usize::MAX);
        let all = bytes.get(..total).ok_or_else(|| short(total))?;
        let profile = rest.get(..len as usize).ok_or_else(|| short(len as usize))?;
        let found = header.sum(profile);
        if found != header.crc.get() {
            return Err(FormatError::Checksum { what, expected: header.crc.get(), found });
        }
        let triplets = &all[all.len() - count as usize * TRIPLET_RECORD..];
        Ok((header, profile, triplets))
    }
}

impl TripletRecord {
    pub fn encode(uid: u32, gid: u32, mode: u16, users: u64) -> [u8; TRIPLET_RECORD] {
        let mut record = TripletRecord {
            uid: uid.into(),
            gid: gid.into(),
            mode: mode.into(),
            reserved: [0; 2],
            users: users.into(),
            crc: 0.into(),
        };
        record.crc = checksum(0, &record.as_bytes()[..20]).into();
        record.as_bytes().try_into().expect("size is asserted")
    }

    /// Decodes a triplet. Returns `None` if there is none, which is all zeros.
    pub fn decode(bytes: &[u8; TRIPLET_RECORD]) -> Result<Option<TripletRecord>, FormatError> {
        let what = "triplet";
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let record = TripletRecord::read_from_bytes(bytes).expect("size is asserted");
        let found = checksum(0, &bytes[..20]);
        if found != record.crc.get() {
            return Err(FormatError::Checksum { what, expected: record.crc.get(), found });
        }
        if record.users.get() == 0 {
            return Err(FormatError::Range { what, field: "users", found: 0 });
        }
        Ok(Some(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_round_trip_and_every_flipped_bit_is_seen() {
        let profile = b"a profile";
        let mut bytes = InodeTables::new(profile, 2).unwrap().as_bytes().to_vec();
        bytes.extend(profile);
        bytes.resize(InodeTables::triplets_at(9) as usize, 0);
        bytes.extend(TripletRecord::encode(1, 2, 0o100644, 3));
        bytes.resize(bytes.len() + TRIPLET_RECORD + 10, 0);
        let (header, found, triplets) = InodeTables::decode(&bytes).unwrap();
        assert_eq!((header.triplets.get(), found, triplets.len()), (2, &profile[..], 48));
        let one = TripletRecord::decode(triplets[..24].try_into().unwrap()).unwrap().unwrap();
        assert_eq!((one.uid.get(), one.gid.get(), one.mode.get(), one.users.get()), (1, 2, 0o100644, 3));
        assert_eq!(TripletRecord::decode(triplets[24..].try_into().unwrap()), Ok(None));
        for bit in 0..(32 + 9) * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(InodeTables::decode(&flipped).is_err(), "bit {bit}");
        }
        for bit in 0..24 * 8 {
            let mut flipped = TripletRecord::encode(1, 2, 0o100644, 3);
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(TripletRecord::decode(&flipped).is_err(), "bit {bit}");
        }
        assert!(InodeTables::decode(&bytes[..bytes.len() - 11]).is_err());
        assert!(InodeTables::decode(&[]).is_err());
    }
}
