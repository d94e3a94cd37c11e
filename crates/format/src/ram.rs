//! Format of a network RAM disk on its donors: the superblock and the lease. Headers of units are
//! in [`mod@unit`].
//!
//! A donor begins with [`SUPERBLOCK_BYTES`]. They hold two superblock slots of 2048 bytes, and then
//! the leases of clients that had, have, or want the disk open. The slots are written alternately;
//! the valid one with the higher epoch counts. *Units* of one size follow. The structs are the
//! tables of `docs/spec/netram.md`. The types used in memory are beside them.

mod unit;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use unit::{
    HEADER_SLOTS, LOST, TRIMMED, TrimmedRange, UnitEntry, UnitHeader, decode_trimmed, encode_trimmed, is_note,
    trimmed_max,
};

use crate::number::number;
use crate::{FormatError, Sums, checksum, seal};

/// Bytes before the units.
pub const SUPERBLOCK_BYTES: usize = 8192;
/// Size of a slot of the superblock (bytes).
pub const SLOT_BYTES: usize = 2048;
/// Size of both slots together (bytes).
pub const SLOTS_BYTES: usize = 2 * SLOT_BYTES;
/// Offset of the leases, the length of one (bytes), and the number that fit.
pub const LEASE_AT: usize = SLOTS_BYTES;
pub const LEASE_BYTES: usize = 512;
pub const LEASES: usize = (SUPERBLOCK_BYTES - LEASE_AT) / LEASE_BYTES;
const LEASE_MAGIC: u64 = u64::from_le_bytes(*b"ShoalLse");
const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"ShoalRam");
const VERSION: u32 = 2;
/// Added to the version of a superblock: for a disk with room for checkpoints, for a disk whose
/// blocks have [`Sums::Xxh3`], and for one whose groups keep apart what is in one failure domain.
const VERSION_CHECKPOINT: u32 = 1;
const VERSION_SUMS: u32 = 2;
const VERSION_DOMAINS: u32 = 4;
/// Added for a disk whose units are encrypted and whose superblocks are signed. 8 is not used: it was
/// encrypted disks without signatures, which no release made.
const VERSION_SEALED: u32 = 16;
/// A sector of 512 bytes as an encrypted disk stores it: its bytes, and a tag.
pub const SEALED_SECTOR_BYTES: usize = 512 + 16;
/// Shows that a superblock or a lease was written with the key of its encrypted disk: its last bytes.
pub type Signature = [u8; 16];
number! {
    /// The number of a group, never reused on its disk. 0 means no group.
    GroupId(u64)
}

impl GroupId {
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub const fn next(self) -> GroupId {
        GroupId(self.0 + 1)
    }
}

/// Maximum number of donors of a disk at a time. The place of a former donor is reused under
/// another birth.
pub const DONORS_MAX: usize = 256;

/// The fixed part of a superblock. With room for checkpoints, the number of the valid one (`U64`)
/// follows. Then come the places of donors; with failure domains, the domain of each (`U16`). The last
/// bytes of the slot are the [`Signature`] on an encrypted disk.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DiskSuperblockRecord {
    crc: U32,
    magic: U64,
    version: U32,
    uuid: [u8; 16],
    epoch: U64,
    donor: U16,
    policy: u8,
    data: u8,
    parity: u8,
    streams: u8,
    flags: u8,
    reserved: u8,
    buffer_blocks: U16,
    donors: U16,
    block_bytes: U32,
    blocks: U64,
}

const _: () = assert!(size_of::<DiskSuperblockRecord>() == 64);
const _: () = assert!(std::mem::offset_of!(DiskSuperblockRecord, blocks) == 56);

/// A donor's place in a superblock.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct DonorPlaceRecord {
    /// A [`Standing`].
    standing: u8,
    born: U32,
}

const _: () = assert!(size_of::<DonorPlaceRecord>() == 5);
const _: () = assert!(
    size_of::<DiskSuperblockRecord>()
        + size_of::<U64>()
        + DONORS_MAX * (size_of::<DonorPlaceRecord>() + size_of::<U16>())
        + size_of::<Signature>()
        <= SLOT_BYTES
);

/// A lease, with all of its bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LeaseRecord {
    crc: U32,
    magic: U64,
    version: U32,
    uuid: [u8; 16],
    client: [u8; 16],
    renewed: U64,
    released: u8,
    claim: u8,
    epoch: U64,
    mark: U64,
    bytes: U64,
    reserved: [u8; 414],
    /// The [`Signature`] on an encrypted disk; on others, zeros.
    signature: [u8; 16],
}

const _: () = assert!(size_of::<LeaseRecord>() == LEASE_BYTES);
const _: () = assert!(std::mem::offset_of!(LeaseRecord, released) == 56);

/// A superblock's entry for one donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DonorPlace {
    pub standing: Standing,
    /// Counts all donors the disk ever had. Units written under another birth do not belong to this
    /// donor.
    pub born: u32,
    /// Donors with the same number other than 0 may be lost together, and no group has two units on
    /// them.
    pub domain: u16,
}

/// The place of the donor that has the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnPlace {
    /// The donor's number on the disk.
    pub number: u16,
    /// Its birth; see [`DonorPlace::born`].
    pub born: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// The donor does not belong to the disk, or no longer does.
    #[default]
    Gone,
    Counts,
    /// The donor belongs to the disk but was away when the disk was opened. Anything that only it
    /// knows was missing then and does not count any more.
    Away,
    /// The donor will belong to the disk as soon as it has recorded that.
    Joins,
}

/// The set of donors that count: kept on every donor, changed with the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSuperblock {
    pub uuid: [u8; 16],
    /// Grows with each change of the set of donors.
    pub epoch: u64,
    /// Place of this donor in `donors`.
    pub donor: u16,
    /// Index into the list of policies.
    pub policy: u8,
    /// Data units of a full group.
    pub data: u8,
    pub parity: u8,
    pub streams: u8,
    pub buffer_blocks: u16,
    pub flags: u8,
    pub block_bytes: u32,
    /// Size of the disk in blocks.
    pub blocks: u64,
    /// The checkpoint that counts if all donors name it; 0 means none. `None`: the donors have no
    /// room for checkpoints.
    pub checkpoint: Option<u64>,
    /// The kind of sums of its blocks.
    pub sums: Sums,
    /// Units are encrypted, and a superblock without the right [`Signature`] does not count.
    pub sealed: bool,
    pub donors: Vec<DonorPlace>,
}

impl Standing {
    fn of(byte: u8) -> Option<Standing> {
        [Standing::Gone, Standing::Counts, Standing::Away, Standing::Joins].get(usize::from(byte)).copied()
    }
}

impl DiskSuperblock {
    /// Encodes one slot, without its [`Signature`] ([`sign`]).
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.donors.len() <= DONORS_MAX, "there are at most {DONORS_MAX} donors");
        let version = VERSION
            + u32::from(self.checkpoint.is_some()) * VERSION_CHECKPOINT
            + u32::from(self.sums.bit()) * VERSION_SUMS
            + u32::from(self.has_domains()) * VERSION_DOMAINS
            + u32::from(self.sealed) * VERSION_SEALED;
        let record = DiskSuperblockRecord {
            crc: 0.into(),
            magic: SUPERBLOCK_MAGIC.into(),
            version: version.into(),
            uuid: self.uuid,
            epoch: self.epoch.into(),
            donor: self.donor.into(),
            policy: self.policy,
            data: self.data,
            parity: self.parity,
            streams: self.streams,
            flags: self.flags,
            reserved: 0,
            buffer_blocks: self.buffer_blocks.into(),
            donors: u16::try_from(self.donors.len()).expect("asserted above").into(),
            block_bytes: self.block_bytes.into(),
            blocks: self.blocks.into(),
        };
        let mut out = Vec::with_capacity(SLOT_BYTES);
        out.extend_from_slice(record.as_bytes());
        out.extend(self.checkpoint.iter().flat_map(|checkpoint| checkpoint.to_le_bytes()));
        for place in &self.donors {
            let record = DonorPlaceRecord { standing: place.standing as u8, born: place.born.into() };
            out.extend_from_slice(record.as_bytes());
        }
        let domains = self.donors.iter().filter(|_| self.has_domains());
        out.extend(domains.flat_map(|place| place.domain.to_le_bytes()));
        out.resize(SLOT_BYTES, 0);
        seal(0, &mut out);
        out
    }

    fn decode_slot(bytes: &[u8; SLOT_BYTES]) -> Result<DiskSuperblock, FormatError> {
        let what = "superblock of a network RAM disk";
        let room = "a slot has room for it, which is asserted";
        let (record, rest) = DiskSuperblockRecord::ref_from_prefix(bytes).expect(room);
        if record.magic != SUPERBLOCK_MAGIC {
            return Err(FormatError::Magic { what, expected: SUPERBLOCK_MAGIC, found: record.magic.get() });
        }
        let found = checksum(0, &bytes[4..]);
        if record.crc != found {
            return Err(FormatError::Checksum { what, expected: record.crc.get(), found });
        }
        let version = record.version.get();
        let newest = VERSION + VERSION_CHECKPOINT + VERSION_SUMS + VERSION_DOMAINS + VERSION_SEALED;
        let more = version.wrapping_sub(VERSION);
        if more & !(newest - VERSION) != 0 {
            return Err(FormatError::Version { what, expected: newest, found: version });
        }
        let count = usize::from(record.donors.get());
        if count > DONORS_MAX || record.donor.get() >= record.donors.get() {
            return Err(FormatError::Range { what, field: "donors", found: record.donors.into() });
        }
        let (number, behind) = U64::read_from_prefix(rest).expect(room);
        let has_checkpoints = more & VERSION_CHECKPOINT != 0;
        let (checkpoint, rest) = if has_checkpoints { (Some(number.get()), behind) } else { (None, rest) };
        let (places, rest) = <[DonorPlaceRecord]>::ref_from_prefix_with_elems(rest, count).expect(room);
        let (domains, _) = <[U16]>::ref_from_prefix_with_elems(rest, count).expect(room);
        let has_domains = more & VERSION_DOMAINS != 0;
        let mut donors = Vec::with_capacity(count);
        for (place, domain) in places.iter().zip(domains) {
            let Some(standing) = Standing::of(place.standing) else {
                return Err(FormatError::Range { what, field: "standing", found: place.standing.into() });
            };
            let domain = if has_domains { domain.get() } else { 0 };
            donors.push(DonorPlace { standing, born: place.born.get(), domain });
        }
        let superblock = DiskSuperblock {
            uuid: record.uuid,
            epoch: record.epoch.get(),
            donor: record.donor.get(),
            policy: record.policy,
            data: record.data,
            parity: record.parity,
            streams: record.streams,
            buffer_blocks: record.buffer_blocks.get(),
            flags: record.flags,
            block_bytes: record.block_bytes.get(),
            blocks: record.blocks.get(),
            checkpoint,
            sums: Sums::of_bit(more & VERSION_SUMS != 0),
            sealed: more & VERSION_SEALED != 0,
            donors,
        };
        superblock.check()?;
        Ok(superblock)
    }

    /// Returns whether some donors may be lost together.
    fn has_domains(&self) -> bool {
        self.donors.iter().any(|place| place.domain != 0)
    }

    fn check(&self) -> Result<(), FormatError> {
        let what = "superblock of a network RAM disk";
        let bad = |field, found: u64| Err(FormatError::Range { what, field, found });
        if !self.block_bytes.is_power_of_two() || !(512..=65536).contains(&self.block_bytes) {
            return bad("block size", self.block_bytes.into());
        }
        if !(1..=64).contains(&self.buffer_blocks) {
            return bad("blocks of a buffer", self.buffer_blocks.into());
        }
        if !(1..=16).contains(&self.data) || self.parity > 4 || self.policy > 6 || !(1..=8).contains(&self.streams) {
            return bad("plan", u32::from_le_bytes([self.policy, self.data, self.parity, self.streams]).into());
        }
        if self.blocks >= u64::from(LOST) {
            return bad("blocks", self.blocks);
        }
        Ok(())
    }

    /// Returns the donor's own place. Decoding has checked that its number has one.
    pub fn place(&self) -> OwnPlace {
        OwnPlace { number: self.donor, born: self.donors[usize::from(self.donor)].born }
    }

    /// Decodes the newest valid slot of a donor's first [`SUPERBLOCK_BYTES`].
    pub fn decode(bytes: &[u8]) -> Result<DiskSuperblock, FormatError> {
        Self::newest(bytes).map(|(_, superblock)| superblock)
    }

    /// Decodes the newest valid slot, and returns its index too.
    pub fn newest(bytes: &[u8]) -> Result<(usize, DiskSuperblock), FormatError> {
        Self::newest_where(bytes, |_, _| true)
    }

    /// Like [`DiskSuperblock::newest`], but leaves out superblocks that do not count; the slot's bytes are given, too.
    pub fn newest_where(
        bytes: &[u8],
        counts: impl Fn(&DiskSuperblock, &[u8]) -> bool,
    ) -> Result<(usize, DiskSuperblock), FormatError> {
        let what = "superblock of a network RAM disk";
        let [first, second, ..] = bytes.as_chunks().0 else {
            let (expected, found) = (SLOTS_BYTES, bytes.len());
            return Err(FormatError::Short { what, expected, found });
        };
        let decode = |slot| match Self::decode_slot(slot) {
            Ok(found) if !counts(&found, slot) => Err(FormatError::Range { what, field: "signature", found: 0 }),
            decoded => decoded,
        };
        let slots = [decode(first), decode(second)];
        match slots {
            [Ok(a), Ok(b)] => Ok(if a.epoch > b.epoch { (0, a) } else { (1, b) }),
            [Ok(a), Err(_)] => Ok((0, a)),
            [Err(_), Ok(b)] => Ok((1, b)),
            [Err(a), Err(b)] => Err(if matches!(a, FormatError::Magic { .. }) { b } else { a }),
        }
    }
}

/// Signs an encoded superblock or lease. `signature`: makes the signature of these bytes.
pub fn sign(encoded: &mut [u8], signature: impl FnOnce(&[u8]) -> Signature) {
    let (signed, place) = encoded.split_at_mut(encoded.len() - size_of::<Signature>());
    place.copy_from_slice(&signature(&signed[size_of::<U32>()..]));
    seal(0, encoded);
}

/// Returns which bytes of an encoded superblock or lease are signed, and what it has as their signature.
pub fn signed(encoded: &[u8]) -> (&[u8], &[u8]) {
    let (signed, signature) = encoded.split_at(encoded.len() - size_of::<Signature>());
    (&signed[size_of::<U32>()..], signature)
}

/// A client's claim to the disk, as stated in its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaseClaim {
    /// It has the disk.
    #[default]
    Owns,
    /// It wants the disk if nobody has it.
    Asks,
    /// It takes the disk from any client that has it.
    Seizes,
}

/// A client that has a disk open, had it, or wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub uuid: [u8; 16],
    pub client: [u8; 16],
    /// Grows with every renewal.
    pub renewed: u64,
    /// The client has closed the disk, or given up.
    pub released: bool,
    pub claim: LeaseClaim,
    /// Grows with every client. 0: written by a program without epochs.
    pub epoch: u64,
    /// The mark of this donor, for as long as the client has it.
    pub mark: u64,
    /// Length of this donor (bytes). 0: unknown.
    pub bytes: u64,
}

/// The leases on a donor, one for each place.
pub type Leases = [Option<Lease>; LEASES];

impl Lease {
    pub fn encode(&self) -> Vec<u8> {
        let mut record = LeaseRecord {
            crc: 0.into(),
            magic: LEASE_MAGIC.into(),
            version: VERSION.into(),
            uuid: self.uuid,
            client: self.client,
            renewed: self.renewed.into(),
            released: self.released.into(),
            claim: self.claim as u8,
            epoch: self.epoch.into(),
            mark: self.mark.into(),
            bytes: self.bytes.into(),
            reserved: [0; 414],
            signature: Signature::default(),
        };
        seal(0, record.as_mut_bytes());
        record.as_bytes().to_vec()
    }

    /// Decodes a lease, or returns `None` if there is none.
    pub fn decode(bytes: &[u8]) -> Option<Lease> {
        let (record, _) = LeaseRecord::ref_from_prefix(bytes).ok()?;
        let valid = record.magic == LEASE_MAGIC && record.version == VERSION;
        if !valid || record.crc != checksum(0, &record.as_bytes()[4..]) {
            return None;
        }
        let claim = [LeaseClaim::Owns, LeaseClaim::Asks, LeaseClaim::Seizes].get(usize::from(record.claim)).copied()?;
        Some(Lease {
            uuid: record.uuid,
            client: record.client,
            renewed: record.renewed.get(),
            released: record.released != 0,
            claim,
            epoch: record.epoch.get(),
            mark: record.mark.get(),
            bytes: record.bytes.get(),
        })
    }

    /// Returns the leases on a donor, of any disk. `bytes` begin at [`LEASE_AT`].
    pub fn of_any(bytes: &[u8]) -> Leases {
        let mut chunks = bytes.chunks_exact(LEASE_BYTES);
        std::array::from_fn(|_| chunks.next().and_then(Lease::decode))
    }

    /// Returns the leases on a donor, of one disk. `bytes` begin at [`LEASE_AT`].
    pub fn all(bytes: &[u8], disk: &[u8; 16]) -> Leases {
        Lease::of_any(bytes).map(|lease| lease.filter(|lease| lease.uuid == *disk))
    }

    /// Like [`Lease::all`], but leaves out leases that do not count. Their bytes are given.
    pub fn all_where(bytes: &[u8], disk: &[u8; 16], counts: impl Fn(&[u8]) -> bool) -> Leases {
        let mut chunks = bytes.chunks_exact(LEASE_BYTES);
        Lease::all(bytes, disk)
            .map(|lease| lease.zip(chunks.next()).filter(|(_, bytes)| counts(bytes)).map(|(lease, _)| lease))
    }

    /// Returns the leases of one disk in `front`, the first bytes of a donor.
    pub fn of_front(front: &[u8], disk: &[u8; 16]) -> Leases {
        Lease::all(front.get(LEASE_AT..).unwrap_or_default(), disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock() -> DiskSuperblock {
        DiskSuperblock {
            uuid: [3; 16],
            epoch: 7,
            donor: 2,
            policy: 6,
            data: 3,
            parity: 1,
            streams: 2,
            buffer_blocks: 8,
            flags: 0,
            block_bytes: 4096,
            blocks: 1000,
            checkpoint: None,
            sums: Sums::Xxh3,
            sealed: false,
            donors: [1, 0, 2, 1].map(place).to_vec(),
        }
    }

    fn place(standing: u8) -> DonorPlace {
        let standing = [Standing::Gone, Standing::Counts, Standing::Away][standing as usize];
        DonorPlace { standing, born: standing as u32 * 1000, domain: 0 }
    }

    #[test]
    fn a_number_without_a_place_is_refused() {
        assert_eq!(superblock().place(), OwnPlace { number: 2, born: 2000 });
        let mut bytes = DiskSuperblock { donor: 4, ..superblock() }.encode();
        bytes.resize(SUPERBLOCK_BYTES, 0);
        assert!(matches!(DiskSuperblock::decode(&bytes), Err(FormatError::Range { field: "donors", .. })));
    }

    #[test]
    fn the_superblock_with_the_higher_epoch_counts_and_no_bit_may_flip() {
        let (old, new) =
            (superblock(), DiskSuperblock { epoch: 8, donors: vec![place(1); DONORS_MAX], ..superblock() });
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        assert!(matches!(DiskSuperblock::decode(&bytes), Err(FormatError::Magic { .. })));
        for (slot, one) in [&new, &old].into_iter().enumerate() {
            let at = slot * SLOT_BYTES;
            bytes[at..at + SLOT_BYTES].copy_from_slice(&one.encode());
        }
        assert_eq!(DiskSuperblock::newest(&bytes).unwrap(), (0, new));
        let at = 0;
        for bit in 0..SLOT_BYTES * 8 {
            bytes[at + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(DiskSuperblock::decode(&bytes).unwrap(), old, "bit {bit}");
            bytes[at + bit / 8] ^= 1 << (bit % 8);
        }
        assert!(DiskSuperblock::decode(&bytes[..100]).is_err());
    }

    #[test]
    fn an_encrypted_disk_has_signed_superblocks_and_a_version_of_its_own() {
        let largest = DiskSuperblock {
            checkpoint: Some(9),
            sealed: true,
            donors: vec![DonorPlace { domain: 7, ..place(1) }; DONORS_MAX],
            ..superblock()
        };
        for superblock in [DiskSuperblock { sealed: true, ..superblock() }, largest] {
            let plain = DiskSuperblock { sealed: false, ..superblock.clone() }.encode();
            let mut bytes = superblock.encode();
            assert_eq!(bytes[12], plain[12] + 16);
            sign(&mut bytes, |signed| {
                assert_eq!(signed.len(), SLOT_BYTES - 4 - 16);
                [0xab; 16]
            });
            assert_eq!((signed(&bytes).0, signed(&bytes).1), (&bytes[4..SLOT_BYTES - 16], &[0xab; 16][..]));
            let mut without = bytes.clone();
            bytes.resize(SUPERBLOCK_BYTES, 0);
            assert_eq!(DiskSuperblock::decode(&bytes), Ok(superblock));
            assert!(DiskSuperblock::newest_where(&bytes, |_, slot| signed(slot).1 == [0xac; 16]).is_err());
            // A disk that was encrypted before superblocks were signed.
            without[12] -= 8;
            seal(0, &mut without);
            without.resize(SUPERBLOCK_BYTES, 0);
            assert!(matches!(DiskSuperblock::decode(&without), Err(FormatError::Version { .. })));
        }
    }

    #[test]
    fn leases_come_back_and_no_bit_may_flip() {
        let lease = Lease {
            uuid: [1; 16],
            client: [2; 16],
            renewed: 1 << 40,
            released: true,
            claim: LeaseClaim::Seizes,
            epoch: 7,
            mark: 1 << 50,
            bytes: 1 << 30,
        };
        let mut bytes = lease.encode();
        assert_eq!((bytes.len(), Lease::decode(&bytes)), (LEASE_BYTES, Some(lease)));
        for bit in 0..LEASE_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Lease::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!((Lease::decode(&bytes[1..]), Lease::decode(&[0; LEASE_BYTES])), (None, None));
        let two = [vec![0; LEASE_BYTES], bytes].concat();
        assert_eq!(Lease::all(&two, &[1; 16]).iter().position(Option::is_some), Some(1));
        assert_eq!(Lease::all(&two, &[9; 16]).iter().position(Option::is_some), None);
        assert_eq!(Lease::of_any(&two).iter().position(Option::is_some), Some(1));
        let front = [vec![0; LEASE_AT], two].concat();
        assert_eq!(Lease::of_front(&front, &[1; 16]).iter().position(Option::is_some), Some(1));
        assert_eq!(Lease::of_front(&[], &[1; 16]), [None; LEASES]);
    }
}
