//! What the network RAM disk writes to its donors: the superblock and the headers of units.
//!
//! A donor begins with [`SUPERBLOCK_BYTES`]: two slots of 2048 bytes, written by turns, of which the valid one with the higher epoch
//! counts; then the lease of the client that has the disk open. Behind them lie *units* of one size: two slots for a header, and
//! `buffer` blocks. A header says what the unit is: group, place in the group, and for each block its number, its write
//! sequence and its CRC32C. A unit that grows gets its next header in the other slot; the valid one that lists more counts, unless
//! one was cut. A
//! data unit lists its own blocks, a parity unit those of all data units, so that any one missing unit is described by another.
//! The block with the highest write sequence counts. A unit none of whose headers decodes is free.

use crate::{FormatError, checksum};

/// What units begin behind (bytes).
pub const SUPERBLOCK_BYTES: usize = 8192;
const SLOT_BYTES: usize = 2048;
/// Both slots (bytes).
pub const SLOTS_BYTES: usize = 2 * SLOT_BYTES;
/// Where the lease is, and its length (bytes).
pub const LEASE_AT: usize = SLOTS_BYTES;
pub const LEASE_BYTES: usize = 512;
const LEASE_MAGIC: u64 = u64::from_le_bytes(*b"ShoalLse");
const SUPERBLOCK_MAGIC: u64 = u64::from_le_bytes(*b"ShoalRam");
const UNIT_MAGIC: u64 = u64::from_le_bytes(*b"ShoalUnt");
const VERSION: u32 = 2;
/// Superblocks of disks with room for checkpoints.
const CHECKPOINT_VERSION: u32 = 3;
/// Fixed part of a unit's header.
const UNIT_HEADER: usize = 64;
/// Headers a unit has room for.
pub const HEADER_SLOTS: usize = 2;
/// Bytes of one entry.
const ENTRY_BYTES: usize = 16;
/// Donors of a disk at the same time. The place of one that is gone is used again, under another birth.
pub const DONORS_MAX: usize = 256;
/// Bytes of a donor's place in a superblock.
const PLACE_BYTES: usize = 5;
/// The block number of an entry whose block lists trimmed ranges.
pub const TRIMMED: u32 = u32::MAX;
/// The block number of an entry whose block lists ranges whose data is lost for good.
pub const LOST: u32 = u32::MAX - 1;

/// Does an entry with this block number list ranges, and is no block of the disk?
pub fn is_note(block: u32) -> bool {
    matches!(block, TRIMMED | LOST)
}

/// What a superblock says about one donor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DonorPlace {
    pub standing: Standing,
    /// Counts the donors the disk ever had: units written under another birth are not this donor's.
    pub born: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It does not belong to the disk, or no more.
    #[default]
    Gone,
    Counts,
    /// It belongs to the disk and was away when the disk was opened: what only it knows was not there then, and does not
    /// count any more.
    Away,
    /// It will belong to the disk as soon as it knows so.
    Joins,
}

/// Which donors count: kept on every donor, changed with the epoch.
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
    /// The checkpoint that counts if all donors name it; 0: none. `None`: the donors have no room for checkpoints.
    pub checkpoint: Option<u64>,
    pub donors: Vec<DonorPlace>,
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (head, rest) = self.0.split_at(N);
        self.0 = rest;
        head.try_into().expect("N bytes")
    }

    fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

impl DiskSuperblock {
    /// One slot.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.extend_from_slice(&SUPERBLOCK_MAGIC.to_le_bytes());
        let version = if self.checkpoint.is_some() { CHECKPOINT_VERSION } else { VERSION };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.donor.to_le_bytes());
        out.extend_from_slice(&[self.policy, self.data, self.parity, self.streams, self.flags, 0]);
        out.extend_from_slice(&self.buffer_blocks.to_le_bytes());
        out.extend_from_slice(&(self.donors.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.block_bytes.to_le_bytes());
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend(self.checkpoint.iter().flat_map(|checkpoint| checkpoint.to_le_bytes()));
        for place in &self.donors {
            out.push(place.standing as u8);
            out.extend_from_slice(&place.born.to_le_bytes());
        }
        assert!(out.len() <= SLOT_BYTES, "there are at most {DONORS_MAX} donors");
        out.resize(SLOT_BYTES, 0);
        let crc = checksum(0, &out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    fn decode_slot(bytes: &[u8]) -> Result<DiskSuperblock, FormatError> {
        let what = "superblock of a network RAM disk";
        let mut reader = Reader(bytes);
        let crc = reader.u32();
        let magic = reader.u64();
        if magic != SUPERBLOCK_MAGIC {
            return Err(FormatError::Magic { what, expected: SUPERBLOCK_MAGIC, found: magic });
        }
        let found = checksum(0, &bytes[4..]);
        if crc != found {
            return Err(FormatError::Checksum { what, expected: crc, found });
        }
        let version = reader.u32();
        if !matches!(version, VERSION | CHECKPOINT_VERSION) {
            return Err(FormatError::Version { what, expected: CHECKPOINT_VERSION, found: version });
        }
        let (uuid, epoch, donor) = (reader.take(), reader.u64(), reader.u16());
        let (policy, data, parity, streams, flags, _) =
            (reader.u8(), reader.u8(), reader.u8(), reader.u8(), reader.u8(), reader.u8());
        let (buffer_blocks, count, block_bytes, blocks) = (reader.u16(), reader.u16(), reader.u32(), reader.u64());
        if count as usize > DONORS_MAX || donor >= count {
            return Err(FormatError::Range { what, field: "donors", found: count.into() });
        }
        let checkpoint = (version == CHECKPOINT_VERSION).then(|| reader.u64());
        let mut donors = Vec::with_capacity(count as usize);
        for place in reader.0[..count as usize * PLACE_BYTES].chunks_exact(PLACE_BYTES) {
            let mut place = Reader(place);
            let standing = match place.u8() {
                0 => Standing::Gone,
                1 => Standing::Counts,
                2 => Standing::Away,
                3 => Standing::Joins,
                other => return Err(FormatError::Range { what, field: "standing", found: other.into() }),
            };
            donors.push(DonorPlace { standing, born: place.u32() });
        }
        let superblock = DiskSuperblock {
            uuid,
            epoch,
            donor,
            policy,
            data,
            parity,
            streams,
            buffer_blocks,
            flags,
            block_bytes,
            blocks,
            checkpoint,
            donors,
        };
        superblock.check()?;
        Ok(superblock)
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
        if self.blocks >= LOST as u64 {
            return bad("blocks", self.blocks);
        }
        Ok(())
    }

    /// The newest valid slot of a donor's first [`SUPERBLOCK_BYTES`].
    pub fn decode(bytes: &[u8]) -> Result<DiskSuperblock, FormatError> {
        Self::newest(bytes).map(|(_, superblock)| superblock)
    }

    /// The same, and which slot it is.
    pub fn newest(bytes: &[u8]) -> Result<(usize, DiskSuperblock), FormatError> {
        if bytes.len() < SLOTS_BYTES {
            let (expected, found) = (SLOTS_BYTES, bytes.len());
            return Err(FormatError::Short { what: "superblock of a network RAM disk", expected, found });
        }
        let slots = [Self::decode_slot(&bytes[..SLOT_BYTES]), Self::decode_slot(&bytes[SLOT_BYTES..SLOTS_BYTES])];
        match slots {
            [Ok(a), Ok(b)] => Ok(if a.epoch > b.epoch { (0, a) } else { (1, b) }),
            [Ok(a), Err(_)] => Ok((0, a)),
            [Err(_), Ok(b)] => Ok((1, b)),
            [Err(a), Err(b)] => Err(if matches!(a, FormatError::Magic { .. }) { b } else { a }),
        }
    }
}

/// A block of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnitEntry {
    /// Number of the block on the disk, or [`TRIMMED`].
    pub block: u32,
    /// CRC32C of its bytes.
    pub crc: u32,
    /// Grows with every write; the highest counts.
    pub sequence: u64,
}

/// What a unit is and holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitHeader {
    pub uuid: [u8; 16],
    pub group: u64,
    /// The donor it was written to. A donor that comes back after it was given up is a new one, and its old units count no more.
    pub donor: u16,
    /// The donor's birth: its number may have been another's before.
    pub born: u32,
    /// Every entry with a lower sequence, of whatever group, was safe when this was written.
    pub horizon: u64,
    /// How often the lists were made shorter since.
    pub cut: u32,
    /// Place in the group: data units first, then parity.
    pub member: u8,
    pub data: u8,
    pub parity: u8,
    /// Entries of each data unit that is listed: of a data unit its own alone, of a parity unit all.
    pub lists: Vec<Vec<UnitEntry>>,
}

impl UnitHeader {
    /// Bytes to reserve for any header of a disk, a multiple of 512.
    pub fn bytes(data: usize, buffer_blocks: usize) -> usize {
        (UNIT_HEADER + data + data * buffer_blocks * ENTRY_BYTES).next_multiple_of(512)
    }

    /// The header of a unit that counts, from all its slots of `room` bytes each: of those that are `ours` the one that was cut more
    /// often, else the one that lists more.
    pub fn newest(slots: &[u8], room: usize, ours: impl Fn(&UnitHeader) -> bool) -> Option<UnitHeader> {
        // A new unit has its header in both slots.
        let count = if slots.get(..room) == slots.get(room..2 * room) { 1 } else { HEADER_SLOTS };
        let valid = slots.chunks_exact(room).take(count).filter_map(|slot| UnitHeader::decode(slot).ok());
        valid.filter(ours).max_by_key(|header| (header.group, header.cut, header.listed()))
    }

    /// Blocks in all lists.
    pub fn listed(&self) -> usize {
        self.lists.iter().map(Vec::len).sum()
    }

    pub fn is_parity(&self) -> bool {
        self.member >= self.data
    }

    /// Appends the header, padded to `bytes`.
    pub fn encode(&self, bytes: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&UNIT_MAGIC.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.group.to_le_bytes());
        out.extend_from_slice(&[self.member, self.data, self.parity, self.lists.len() as u8]);
        out.extend_from_slice(&self.donor.to_le_bytes());
        out.extend_from_slice(&self.born.to_le_bytes());
        out.extend_from_slice(&self.horizon.to_le_bytes());
        out.extend_from_slice(&self.cut.to_le_bytes());
        out.resize(start + UNIT_HEADER, 0);
        out.extend(self.lists.iter().map(|list| list.len() as u8));
        for entry in self.lists.iter().flatten() {
            out.extend_from_slice(&entry.block.to_le_bytes());
            out.extend_from_slice(&entry.crc.to_le_bytes());
            out.extend_from_slice(&entry.sequence.to_le_bytes());
        }
        out.resize(start + bytes, 0);
        let crc = checksum(0, &out[start + 4..]);
        out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// `bytes` is the whole room for the header.
    pub fn decode(bytes: &[u8]) -> Result<UnitHeader, FormatError> {
        let what = "unit header";
        if bytes.len() < UNIT_HEADER {
            return Err(FormatError::Short { what, expected: UNIT_HEADER, found: bytes.len() });
        }
        let mut reader = Reader(bytes);
        let (crc, version, magic) = (reader.u32(), reader.u32(), reader.u64());
        if magic != UNIT_MAGIC {
            return Err(FormatError::Magic { what, expected: UNIT_MAGIC, found: magic });
        }
        let found = checksum(0, &bytes[4..]);
        if crc != found {
            return Err(FormatError::Checksum { what, expected: crc, found });
        }
        if version != VERSION {
            return Err(FormatError::Version { what, expected: VERSION, found: version });
        }
        let (uuid, group) = (reader.take(), reader.u64());
        let (member, data, parity, count) = (reader.u8(), reader.u8(), reader.u8(), reader.u8());
        let (donor, born, horizon, cut) = (reader.u16(), reader.u32(), reader.u64(), reader.u32());
        let expected = if member < data { 1 } else { data };
        if count != expected || member >= data.saturating_add(parity) {
            return Err(FormatError::Range { what, field: "member", found: member.into() });
        }
        let counts = bytes.get(UNIT_HEADER..UNIT_HEADER + count as usize);
        let entries = counts.map_or(usize::MAX, |counts| counts.iter().map(|&n| n as usize).sum());
        let body = bytes.len().saturating_sub(UNIT_HEADER + count as usize);
        let Some(counts) = counts.filter(|_| entries <= body / ENTRY_BYTES) else {
            return Err(FormatError::Range { what, field: "entries", found: entries as u64 });
        };
        let mut reader = Reader(&bytes[UNIT_HEADER + count as usize..]);
        let mut entry = || UnitEntry { block: reader.u32(), crc: reader.u32(), sequence: reader.u64() };
        let lists = counts.iter().map(|&count| (0..count).map(|_| entry()).collect()).collect();
        Ok(UnitHeader { uuid, group, donor, born, horizon, cut, member, data, parity, lists })
    }
}

/// Who has a disk open, on donors that know no clients of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub uuid: [u8; 16],
    pub client: [u8; 16],
    /// Grows with every renewal.
    pub renewed: u64,
    /// Its client has closed the disk.
    pub released: bool,
}

impl Lease {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 4];
        out.extend_from_slice(&LEASE_MAGIC.to_le_bytes());
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.client);
        out.extend_from_slice(&self.renewed.to_le_bytes());
        out.push(self.released as u8);
        out.resize(LEASE_BYTES, 0);
        let crc = checksum(0, &out[4..]);
        out[..4].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Nothing where there is no lease.
    pub fn decode(bytes: &[u8]) -> Option<Lease> {
        let bytes = bytes.get(..LEASE_BYTES)?;
        let mut reader = Reader(bytes);
        let (crc, magic, version) = (reader.u32(), reader.u64(), reader.u32());
        if magic != LEASE_MAGIC || version != VERSION || crc != checksum(0, &bytes[4..]) {
            return None;
        }
        Some(Lease { uuid: reader.take(), client: reader.take(), renewed: reader.u64(), released: reader.u8() != 0 })
    }
}

/// Blocks that were trimmed: copies with a lower sequence do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimmedRange {
    pub first: u32,
    pub count: u32,
    pub sequence: u64,
}

/// The block of kind [`TRIMMED`] that lists the ranges.
pub fn encode_trimmed(ranges: &[TrimmedRange], out: &mut [u8]) {
    out.fill(0);
    out[..4].copy_from_slice(&(ranges.len() as u32).to_le_bytes());
    for (place, range) in out[16..].chunks_exact_mut(16).zip(ranges) {
        place[..4].copy_from_slice(&range.first.to_le_bytes());
        place[4..8].copy_from_slice(&range.count.to_le_bytes());
        place[8..].copy_from_slice(&range.sequence.to_le_bytes());
    }
}

/// How many ranges fit into a block.
pub fn trimmed_max(block_bytes: usize) -> usize {
    block_bytes / 16 - 1
}

pub fn decode_trimmed(bytes: &[u8]) -> Result<Vec<TrimmedRange>, FormatError> {
    let what = "list of trimmed ranges";
    if bytes.len() < 32 {
        return Err(FormatError::Short { what, expected: 32, found: bytes.len() });
    }
    let count = Reader(bytes).u32() as usize;
    if count > trimmed_max(bytes.len()) {
        return Err(FormatError::Range { what, field: "ranges", found: count as u64 });
    }
    let mut reader = Reader(&bytes[16..]);
    Ok((0..count).map(|_| TrimmedRange { first: reader.u32(), count: reader.u32(), sequence: reader.u64() }).collect())
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
            donors: [1, 0, 2, 1].map(place).to_vec(),
        }
    }

    fn place(standing: u8) -> DonorPlace {
        let standing = [Standing::Gone, Standing::Counts, Standing::Away][standing as usize];
        DonorPlace { standing, born: standing as u32 * 1000 }
    }

    fn header(member: u8) -> UnitHeader {
        let entry = |n: u32| UnitEntry { block: n, crc: n * 7, sequence: n as u64 + 100 };
        let lists = if member < 3 {
            vec![(0..5).map(entry).collect()]
        } else {
            vec![(0..8).map(entry).collect(), vec![], (20..23).map(entry).collect()]
        };
        UnitHeader {
            uuid: [1; 16],
            group: 99,
            donor: 5,
            born: 70_000,
            horizon: 1 << 40,
            cut: 0,
            member,
            data: 3,
            parity: 1,
            lists,
        }
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
    fn unit_headers_come_back_and_no_bit_may_flip() {
        let room = UnitHeader::bytes(3, 8);
        assert_eq!(room, 512);
        for member in [0, 3] {
            let mut bytes = vec![];
            header(member).encode(room, &mut bytes);
            assert_eq!(bytes.len(), room);
            assert_eq!(UnitHeader::decode(&bytes).unwrap(), header(member));
            for bit in 0..room * 8 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(UnitHeader::decode(&bytes).is_err(), "bit {bit}");
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for len in 0..room {
                assert!(UnitHeader::decode(&bytes[..len]).is_err(), "{len} bytes");
            }
        }
    }

    #[test]
    fn of_two_headers_the_one_that_lists_more_counts_and_a_torn_one_does_not() {
        let room = UnitHeader::bytes(3, 8);
        let longer = header(0);
        let mut shorter = header(0);
        shorter.lists[0].pop();
        let slots = |first: &UnitHeader, second: &UnitHeader| {
            let mut bytes = vec![];
            first.encode(room, &mut bytes);
            second.encode(room, &mut bytes);
            bytes
        };
        for mut bytes in [slots(&longer, &shorter), slots(&shorter, &longer)] {
            let newest = |bytes: &[u8]| UnitHeader::newest(bytes, room, |header| header.born == 70_000);
            assert_eq!(newest(&bytes), Some(longer.clone()));
            let torn = if UnitHeader::decode(&bytes[..room]).unwrap() == longer { 0 } else { room };
            bytes[torn + room - 1] ^= 1;
            assert_eq!(newest(&bytes), Some(shorter.clone()));
            bytes[room - torn] ^= 1;
            assert_eq!(newest(&bytes), None);
        }
        let cut = UnitHeader { cut: 1, ..shorter.clone() };
        assert_eq!(UnitHeader::newest(&slots(&longer, &cut), room, |_| true), Some(cut));
        // One of a former birth is as none.
        let former = UnitHeader { born: 1, ..longer };
        let bytes = slots(&former, &shorter);
        assert_eq!(UnitHeader::newest(&bytes, room, |header| header.born == 70_000), Some(shorter));
    }

    #[test]
    fn forged_lengths_are_errors() {
        let room = UnitHeader::bytes(3, 8);
        for (at, value) in [(40, 9), (41, 200), (43, 7), (64, 255)] {
            let mut bytes = vec![];
            header(3).encode(room, &mut bytes);
            bytes[at] = value;
            let crc = checksum(0, &bytes[4..]);
            bytes[..4].copy_from_slice(&crc.to_le_bytes());
            assert!(UnitHeader::decode(&bytes).is_err(), "byte {at}");
        }
    }

    #[test]
    fn leases_come_back_and_no_bit_may_flip() {
        let lease = Lease { uuid: [1; 16], client: [2; 16], renewed: 1 << 40, released: true };
        let mut bytes = lease.encode();
        assert_eq!((bytes.len(), Lease::decode(&bytes)), (LEASE_BYTES, Some(lease)));
        for bit in 0..LEASE_BYTES * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Lease::decode(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!((Lease::decode(&bytes[1..]), Lease::decode(&[0; LEASE_BYTES])), (None, None));
    }

    #[test]
    fn trimmed_ranges_come_back() {
        let mut block = vec![9; 512];
        let range = |n: u32| TrimmedRange { first: n * 10, count: n + 1, sequence: n as u64 + 7 };
        let ranges: Vec<TrimmedRange> = (0..trimmed_max(512) as u32).map(range).collect();
        encode_trimmed(&ranges, &mut block);
        assert_eq!(decode_trimmed(&block).unwrap(), ranges);
        block[..4].copy_from_slice(&1000u32.to_le_bytes());
        assert!(decode_trimmed(&block).is_err());
    }
}
