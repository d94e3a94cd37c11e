//! Encryption of what donors hold, with a key that only the disk's clients have.
//!
//! A sector of 512 bytes is stored as 528: AES-256-GCM-SIV (RFC 8452). The nonce is the sector's
//! place on the donor, with the donor's number and birth. Superblocks and leases stay readable, because
//! donors and other clients must read them, but they are signed (HMAC-SHA-256, 16 bytes).
//!
//! Owns: the keys of a disk, sealing and opening of sectors, where a sealed sector lies, and which
//! superblocks and leases count. Rules:
//! - The same bytes at the same place give the same sealed bytes. So a write may repeat what is
//!   there, and what such a write leaves undone changes nothing. AES-GCM-SIV allows that: a nonce
//!   that is used again reveals only whether a sector's bytes are the same as before.
//! - A sector that was never written reads as zeros, as on the donor. So does one that cannot be
//!   opened: it was torn, or another client, another donor or nobody of ours wrote it. Sums of
//!   headers and blocks decide whether it counts.
//! - A superblock or a lease that the disk's key did not sign does not count: what belongs to the disk, how
//!   its groups are laid out, who is gone, and who has it open, no donor can invent.
//!
//! Left out: where the key comes from (the caller), and which requests are sent (`disk`).

use std::fmt;

use aes_gcm_siv::aead::AeadInOut;
use aes_gcm_siv::{Aes256GcmSiv, KeyInit, Nonce, Tag};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use shoal_format::ram::{self, DiskSuperblock, OwnPlace, SEALED_SECTOR_BYTES, SUPERBLOCK_BYTES, Signature};
use zeroize::Zeroizing;

/// The unit that donors are read and written in (bytes).
const SECTOR: usize = SEALED_SECTOR_BYTES - size_of::<Tag>();

/// Donors of an encrypted disk must take requests aligned to this (bytes).
pub const SEALED_ALIGNMENT: u32 = 16;
const _: () = assert!(SEALED_SECTOR_BYTES.is_multiple_of(SEALED_ALIGNMENT as usize));
const _: () = assert!(SUPERBLOCK_BYTES.is_multiple_of(SEALED_ALIGNMENT as usize));

/// The key of one disk.
#[derive(Clone, PartialEq, Eq)]
pub struct SealKey {
    sectors: Zeroizing<[u8; 32]>,
    front: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

impl SealKey {
    /// Derives the key of the disk with this uuid from its owner's key.
    pub fn derive(owner: &[u8; 32], uuid: &[u8; 16]) -> SealKey {
        let derived = Hkdf::<Sha256>::new(Some(uuid), owner);
        let key = |purpose: &str| {
            let mut key = Zeroizing::new([0; 32]);
            derived.expand(purpose.as_bytes(), &mut *key).expect("HKDF gives up to 8160 bytes");
            key
        };
        SealKey { sectors: key("shoal network RAM disk: sectors"), front: key("shoal network RAM disk: front") }
    }

    fn mac(&self, bytes: &[u8]) -> Hmac<Sha256> {
        let mac = <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(&*self.front);
        mac.expect("HMAC takes keys of any length").chain_update(bytes)
    }

    /// Signs an encoded superblock or lease.
    pub fn sign(&self, encoded: &mut [u8]) {
        ram::sign(encoded, |bytes| {
            let whole = self.mac(bytes).finalize().into_bytes();
            *whole.first_chunk::<{ size_of::<Signature>() }>().expect("the signature is a part of the MAC")
        });
    }

    /// Returns whether this superblock or lease has the signature of [`SealKey::sign`].
    pub fn has_signed(&self, encoded: &[u8]) -> bool {
        let (bytes, signature) = ram::signed(encoded);
        self.mac(bytes).verify_truncated_left(signature).is_ok()
    }
}

/// Decodes the newest superblock in a donor's first bytes, and returns its slot, too. With a key only
/// those that it signed count.
pub fn superblock(front: &[u8], key: Option<&SealKey>) -> Option<(usize, DiskSuperblock)> {
    let counts = |found: &DiskSuperblock, slot: &[u8]| match key {
        Some(key) => found.sealed && key.has_signed(slot),
        None => true,
    };
    DiskSuperblock::newest_where(front, counts).ok()
}

/// Returns how many bytes of an encrypted disk a donor of this size holds.
pub fn bytes_inside(donor: u64) -> u64 {
    let front = SUPERBLOCK_BYTES as u64;
    let sectors = donor.saturating_sub(front) / SEALED_SECTOR_BYTES as u64;
    donor.min(front + sectors * SECTOR as u64)
}

/// Where something lies on a donor (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub at: u64,
    pub len: u64,
}

/// Seals and opens sectors.
pub struct Sealer(Aes256GcmSiv);

impl Sealer {
    pub fn new(key: &SealKey) -> Sealer {
        Sealer(Aes256GcmSiv::new((&*key.sectors).into()))
    }

    /// Returns where the sectors of a range lie on the donor.
    pub fn place(at: u64, len: u64) -> Stored {
        let front = SUPERBLOCK_BYTES as u64;
        if at < front {
            debug_assert!(at + len <= front, "the start of a donor is read and written apart from its units");
            return Stored { at, len };
        }
        let sealed = |bytes: u64| bytes / SECTOR as u64 * SEALED_SECTOR_BYTES as u64;
        debug_assert!(at.is_multiple_of(SECTOR as u64) && len.is_multiple_of(SECTOR as u64));
        Stored { at: front + sealed(at - front), len: sealed(len) }
    }

    /// Seals bytes that are to be written from `at` on.
    pub fn seal(&self, donor: OwnPlace, at: u64, bytes: Vec<u8>) -> Vec<u8> {
        if at < SUPERBLOCK_BYTES as u64 {
            return bytes;
        }
        let mut sealed = Vec::with_capacity(bytes.len() / SECTOR * SEALED_SECTOR_BYTES);
        for (sector, number) in bytes.chunks_exact(SECTOR).zip(at / SECTOR as u64..) {
            let begin = sealed.len();
            sealed.extend_from_slice(sector);
            let tag = self.0.encrypt_inout_detached(&nonce(donor, number), &[], (&mut sealed[begin..]).into());
            sealed.extend_from_slice(&tag.expect("a sector is not too long"));
        }
        sealed
    }

    /// Opens what was read from `at` on.
    pub fn open(&self, donor: OwnPlace, at: u64, mut sealed: Vec<u8>) -> Vec<u8> {
        if at < SUPERBLOCK_BYTES as u64 {
            return sealed;
        }
        let sectors = sealed.len() / SEALED_SECTOR_BYTES;
        for (sector, number) in (0..sectors).zip(at / SECTOR as u64..) {
            let begin = sector * SEALED_SECTOR_BYTES;
            let (bytes, tag) = sealed[begin..begin + SEALED_SECTOR_BYTES].split_at_mut(SECTOR);
            let tag = Tag::try_from(&*tag).expect("the rest of a sealed sector is its tag");
            let is_blank = tag.iter().all(|&byte| byte == 0) && bytes.iter().all(|&byte| byte == 0);
            if !is_blank
                && self.0.decrypt_inout_detached(&nonce(donor, number), &[], (&mut *bytes).into(), &tag).is_err()
            {
                bytes.fill(0);
            }
            sealed.copy_within(begin..begin + SECTOR, sector * SECTOR);
        }
        sealed.truncate(sectors * SECTOR);
        sealed
    }
}

impl Sealer {
    /// Returns whether one of these sectors, read from `at` on, was sealed for its place on this donor.
    pub fn knows(&self, donor: OwnPlace, at: u64, sealed: &[u8]) -> bool {
        let mut sectors = sealed.chunks_exact(SEALED_SECTOR_BYTES).zip(at / SECTOR as u64..);
        sectors.any(|(sector, number)| {
            let (mut bytes, tag) = (sector[..SECTOR].to_vec(), Tag::try_from(&sector[SECTOR..]));
            let tag = tag.expect("the rest of a sealed sector is its tag");
            self.0.decrypt_inout_detached(&nonce(donor, number), &[], (&mut *bytes).into(), &tag).is_ok()
        })
    }
}

/// No other sector of the disk, of a donor that is or was, has the same nonce.
fn nonce(donor: OwnPlace, sector: u64) -> Nonce {
    debug_assert!(sector < 1 << 48, "2^48 sectors are 128 PiB");
    let mut nonce = Nonce::default();
    nonce[..4].copy_from_slice(&donor.born.to_le_bytes());
    nonce[4..6].copy_from_slice(&donor.number.to_le_bytes());
    nonce[6..].copy_from_slice(&sector.to_le_bytes()[..6]);
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: u64 = SUPERBLOCK_BYTES as u64;
    const DONOR: OwnPlace = OwnPlace { number: 3, born: 70_000 };

    fn sealer(owner: u8, disk: u8) -> Sealer {
        Sealer::new(&SealKey::derive(&[owner; 32], &[disk; 16]))
    }

    fn bytes(sectors: usize) -> Vec<u8> {
        (0..sectors * SECTOR).map(|n| (n / 7) as u8 | 1).collect()
    }

    #[test]
    fn sectors_come_back_and_look_like_nothing() {
        let (sealer, at) = (sealer(1, 1), UNITS + 5 * SECTOR as u64);
        let sealed = sealer.seal(DONOR, at, bytes(4));
        assert_eq!(sealed.len(), 4 * SEALED_SECTOR_BYTES);
        assert!(!sealed.windows(16).any(|window| bytes(4).windows(16).any(|plain| plain == window)));
        assert_eq!(sealer.open(DONOR, at, sealed.clone()), bytes(4));
        assert_eq!(sealer.seal(DONOR, at, bytes(4)), sealed, "a write may repeat what is there");
        // A part that begins within the range opens alone.
        let second = Sealer::place(at + SECTOR as u64, SECTOR as u64);
        assert_eq!(second, Stored { at: Sealer::place(at, 0).at + SEALED_SECTOR_BYTES as u64, len: 528 });
        let part = sealed[SEALED_SECTOR_BYTES..2 * SEALED_SECTOR_BYTES].to_vec();
        assert_eq!(sealer.open(DONOR, at + SECTOR as u64, part), bytes(4)[SECTOR..2 * SECTOR]);
    }

    #[test]
    fn what_was_not_sealed_for_this_place_reads_as_zeros() {
        let at = UNITS + 9 * SECTOR as u64;
        let sealed = sealer(1, 1).seal(DONOR, at, bytes(1));
        let none = vec![0; SECTOR];
        for (what, sealer, donor, at) in [
            ("another key", sealer(2, 1), DONOR, at),
            ("another disk", sealer(1, 2), DONOR, at),
            ("another donor", sealer(1, 1), OwnPlace { number: 4, ..DONOR }, at),
            ("a former donor", sealer(1, 1), OwnPlace { born: 69_999, ..DONOR }, at),
            ("another place", sealer(1, 1), DONOR, at + SECTOR as u64),
        ] {
            assert_eq!(sealer.open(donor, at, sealed.clone()), none, "{what}");
        }
        for bit in (0..SEALED_SECTOR_BYTES * 8).step_by(11) {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(sealer(1, 1).open(DONOR, at, damaged), none, "bit {bit}");
        }
    }

    #[test]
    fn a_torn_sector_costs_no_other_and_a_blank_donor_reads_as_zeros() {
        let (sealer, at) = (sealer(1, 1), UNITS);
        let mut sealed = sealer.seal(DONOR, at, bytes(3));
        sealed[SEALED_SECTOR_BYTES + 300..2 * SEALED_SECTOR_BYTES].fill(0);
        let mut expected = bytes(3);
        expected[SECTOR..2 * SECTOR].fill(0);
        assert_eq!(sealer.open(DONOR, at, sealed), expected);
        assert_eq!(sealer.open(DONOR, at, vec![0; 2 * SEALED_SECTOR_BYTES]), vec![0; 2 * SECTOR]);
        let later = [vec![0; 3 * SEALED_SECTOR_BYTES], sealer.seal(DONOR, at + 3 * SECTOR as u64, bytes(1))].concat();
        assert!(sealer.knows(DONOR, at, &later) && !sealer.knows(OwnPlace { number: 4, ..DONOR }, at, &later));
        assert!(!sealer.knows(DONOR, at, &vec![0; 2 * SEALED_SECTOR_BYTES]));
    }

    #[test]
    fn the_start_of_a_donor_stays_as_it_is() {
        let (sealer, front) = (sealer(1, 1), vec![7; SUPERBLOCK_BYTES]);
        assert_eq!(sealer.seal(DONOR, 0, front.clone()), front);
        assert_eq!(sealer.open(DONOR, 0, front.clone()), front);
        assert_eq!(Sealer::place(4096, 512), Stored { at: 4096, len: 512 });
    }

    #[test]
    fn all_that_fits_lies_on_the_donor() {
        for donor in [0, 100, UNITS, UNITS + 527, UNITS + 528, UNITS + 1056, 1 << 30] {
            let inside = bytes_inside(donor);
            let room = inside.saturating_sub(UNITS);
            let end = Sealer::place(UNITS, room / SECTOR as u64 * SECTOR as u64);
            assert!(inside <= donor && (donor < UNITS || end.at + end.len <= donor), "{donor}: {inside}");
            assert!(donor < UNITS || donor - (end.at + end.len) < SEALED_SECTOR_BYTES as u64, "{donor}: {inside}");
        }
    }

    #[test]
    fn each_disk_and_each_owner_has_a_key_of_its_own() {
        let key = |owner, disk| SealKey::derive(&[owner; 32], &[disk; 16]);
        assert_eq!(key(1, 1), key(1, 1));
        assert!(key(1, 1) != key(2, 1) && key(1, 1) != key(1, 2));
        assert!(key(1, 1).sectors != key(1, 1).front);
        assert_eq!(format!("{:?}", key(1, 1)), "SealKey");
    }

    #[test]
    fn a_superblock_counts_if_the_disk_s_key_signed_every_bit_of_it() {
        let place = ram::DonorPlace { standing: ram::Standing::Counts, born: 1, domain: 0 };
        let at = |epoch: u64, sealed: bool| DiskSuperblock {
            uuid: [1; 16],
            epoch,
            donor: 0,
            policy: 6,
            data: 1,
            parity: 1,
            streams: 2,
            buffer_blocks: 8,
            flags: 0,
            block_bytes: 4096,
            blocks: 100,
            checkpoint: Some(0),
            sums: shoal_format::Sums::Xxh3,
            sealed,
            donors: vec![place; 2],
        };
        let key = SealKey::derive(&[1; 32], &[1; 16]);
        let signed = |epoch| {
            let mut slot = at(epoch, true).encode();
            key.sign(&mut slot);
            slot
        };
        let found = |slots: [&[u8]; 2], key| superblock(&slots.concat(), key).map(|(slot, found)| (slot, found.epoch));
        let (former, newest) = (signed(7), signed(8));
        let other = SealKey::derive(&[2; 32], &[1; 16]);
        assert_eq!(found([&former, &newest], Some(&key)), Some((1, 8)));
        assert_eq!(found([&former, &newest], Some(&other)), None);
        let (unsigned, plain) = (at(9, true).encode(), at(9, false).encode());
        assert_eq!(found([&former, &unsigned], Some(&key)), Some((0, 7)), "not signed");
        assert_eq!(found([&former, &plain], Some(&key)), Some((0, 7)), "of a disk without a key");
        assert_eq!(found([&former, &unsigned], None), Some((1, 9)), "read without the key");
        for bit in (32..newest.len() * 8).step_by(3) {
            let mut changed = newest.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let sum = shoal_format::checksum(0, &changed[4..]);
            changed[..4].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(found([&former, &changed], Some(&key)), Some((0, 7)), "bit {bit}");
        }
    }
}
