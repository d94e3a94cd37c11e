//! Packed buckets: the entries of a bucket that has cooled, front-coded in name order.
//!
//! The header is that of a plain bucket, with a checksum in its last four bytes. The top bit of the
//! checksum is set; in a plain bucket all four bytes are zero. An entry says how much of its name
//! it shares with the previous name, and stores its inode number as the difference to the previous
//! one. Hashes are computed from the names. Rules: a packed bucket holds nothing that a plain
//! bucket of [`BUCKET_BYTES`] could not hold. Removing an entry never makes it longer. Left out:
//! when buckets are packed (`fs/src/dir/pack.rs`).

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{BUCKET_BYTES, BUCKET_HEADER, Bucket, Dirent, ENTRY_HEADER, NAME_MAX, bucket_header, name_hash};
use crate::inode::Ino;
use crate::{FormatError, u16_at, u32_at};

const WHAT: &str = "packed directory bucket";
/// Set in the checksum of a packed bucket.
const IS_PACKED: u32 = 1 << 31;
/// Minimum bytes of an entry: its lengths, the number, and a byte of its name.
const ENTRY_MIN: usize = 3;
/// Value of one half of the lengths byte. It means that the rest of that length follows in a
/// separate byte.
const LONG: usize = 15;

/// Returns whether this is the header of a packed bucket.
#[inline]
pub fn is_packed_bucket(header: &[u8; BUCKET_HEADER]) -> bool {
    u32_at(header, 4) & IS_PACKED != 0
}

/// Returns used bytes and entries of a packed bucket in a slot of `capacity` bytes.
pub(super) fn counts(header: &[u8; BUCKET_HEADER], capacity: usize) -> Result<(usize, usize), FormatError> {
    let (used, live) = (u16_at(header, 0) as usize, u16_at(header, 2) as usize);
    if used < BUCKET_HEADER || used > capacity {
        return Err(FormatError::Range { what: WHAT, field: "used bytes", found: used as u64 });
    }
    if live == 0 || live > (used - BUCKET_HEADER) / ENTRY_MIN {
        return Err(FormatError::Range { what: WHAT, field: "entries", found: live as u64 });
    }
    Ok((used, live))
}

/// Returns the sum of the counts and of everything after the header. It is not linear, because
/// names may hold any bytes.
fn sum(bytes: &[u8]) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "31 bits are kept")]
    let low = xxh3_64_with_seed(&bytes[BUCKET_HEADER..], u64::from(u32_at(bytes, 0))) as u32;
    low | IS_PACKED
}

/// Encodes a packed bucket with these entries, which must be in name order and unique.
pub fn pack_bucket(entries: &[Dirent<'_>]) -> Vec<u8> {
    let mut out = vec![0; BUCKET_HEADER];
    let (mut name, mut ino, mut kind): (&[u8], u32, u8) = (&[], 0, 0);
    for entry in entries {
        let shared = name.iter().zip(entry.name).take_while(|(one, other)| one == other).count();
        let rest = &entry.name[shared..];
        put_lengths(&mut out, shared, rest.len());
        let number = entry.ino.get();
        let difference = i64::from(number) - i64::from(ino);
        let zigzag = (difference << 1 ^ difference >> 63).cast_unsigned();
        put_number(&mut out, zigzag << 1 | u64::from(entry.kind != kind));
        if entry.kind != kind {
            out.push(entry.kind);
        }
        out.extend_from_slice(rest);
        (name, ino, kind) = (entry.name, number, entry.kind);
    }
    let header = bucket_header(out.len(), entries.len());
    out[..BUCKET_HEADER].copy_from_slice(&header);
    let sum = sum(&out);
    out[4..BUCKET_HEADER].copy_from_slice(&sum.to_le_bytes());
    out
}

fn put_lengths(out: &mut Vec<u8>, shared: usize, rest: usize) {
    let byte = |value: usize| u8::try_from(value).expect("a name has `NAME_MAX` bytes at most");
    out.push(byte(shared.min(LONG)) << 4 | byte(rest.min(LONG)));
    for value in [shared, rest] {
        if value >= LONG {
            out.push(byte(value - LONG));
        }
    }
}

fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push((value & 0x7f) as u8);
}

/// An entry of a packed bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedEntry<'a> {
    pub ino: Ino,
    pub kind: u8,
    pub name: &'a [u8],
}

/// Iterator over the entries of a packed bucket.
pub struct PackedEntries<'a> {
    rest: &'a [u8],
    left: usize,
    name: [u8; NAME_MAX],
    len: usize,
    ino: u32,
    kind: u8,
}

impl<'a> PackedEntries<'a> {
    /// Starts at the first entry. `bytes` is the whole slot. Verifies the checksum.
    pub fn new(bytes: &'a [u8]) -> Result<PackedEntries<'a>, FormatError> {
        let Some(header) = bytes.first_chunk() else {
            return Err(FormatError::Short { what: WHAT, expected: BUCKET_HEADER, found: bytes.len() });
        };
        let (used, left) = counts(header, bytes.len())?;
        let (expected, found) = (u32_at(bytes, 4), sum(&bytes[..used]));
        if expected != found {
            return Err(FormatError::Checksum { what: WHAT, expected, found });
        }
        Ok(PackedEntries { rest: &bytes[BUCKET_HEADER..used], left, name: [0; NAME_MAX], len: 0, ino: 0, kind: 0 })
    }

    /// Advances to the next entry.
    #[inline]
    pub fn step(&mut self) -> Result<Option<PackedEntry<'_>>, FormatError> {
        if self.left == 0 {
            if !self.rest.is_empty() {
                return Err(range("bytes behind the last entry", self.rest.len()));
            }
            return Ok(None);
        }
        let lengths = self.byte()? as usize;
        let (mut shared, mut more) = (lengths >> 4, lengths & 15);
        if shared == LONG {
            shared += self.byte()? as usize;
        }
        if more == LONG {
            more += self.byte()? as usize;
        }
        if shared > self.len || more == 0 || shared + more > NAME_MAX {
            return Err(range("length of a name", shared + more));
        }
        let number = self.number()?;
        if number & 1 != 0 {
            self.kind = self.byte()?;
        }
        let zigzag = number >> 1;
        let difference = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
        let ino = i64::from(self.ino).checked_add(difference).and_then(|ino| u32::try_from(ino).ok());
        self.ino = ino.filter(|&ino| ino != 0).ok_or_else(|| range("inode number", self.left))?;
        let Some((rest, behind)) = self.rest.split_at_checked(more) else {
            return Err(FormatError::Short { what: WHAT, expected: more, found: self.rest.len() });
        };
        // In ascending order, the first byte that differs is greater.
        if shared < self.len && rest[0] <= self.name[shared] {
            return Err(range("order of names, entries left", self.left));
        }
        self.name[shared..shared + more].copy_from_slice(rest);
        (self.rest, self.len, self.left) = (behind, shared + more, self.left - 1);
        Ok(Some(PackedEntry { ino: Ino::new(self.ino), kind: self.kind, name: &self.name[..self.len] }))
    }

    fn byte(&mut self) -> Result<u8, FormatError> {
        let (&byte, rest) = self.rest.split_first().ok_or(FormatError::Short { what: WHAT, expected: 1, found: 0 })?;
        self.rest = rest;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, FormatError> {
        let mut value = 0;
        // 34 bits: the difference of two 32-bit numbers, its sign, and the bit for the kind.
        for shift in (0..35).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(range("length of a number", 6))
    }
}

fn range(field: &'static str, found: usize) -> FormatError {
    FormatError::Range { what: WHAT, field, found: found as u64 }
}

/// Returns a bucket of either form as a plain one. `seed` is the key of the names' hashes, `room`
/// receives unpacked entries.
pub fn open_bucket<'a>(
    bytes: &'a [u8],
    seed: u64,
    room: &'a mut [u8; BUCKET_BYTES],
) -> Result<Bucket<'a>, FormatError> {
    if !bytes.first_chunk().is_some_and(is_packed_bucket) {
        return Bucket::new(bytes);
    }
    let mut entries = PackedEntries::new(bytes)?;
    let (mut used, mut live) = (BUCKET_HEADER, 0);
    while let Some(PackedEntry { ino, kind, name }) = entries.step()? {
        let entry = Dirent { hash: name_hash(seed, name), ino, kind, name };
        let end = used + entry.encoded_len();
        let Some(out) = room.get_mut(used..end) else {
            return Err(range("bytes of the entries", end));
        };
        let (head, out_name) = out.split_at_mut(ENTRY_HEADER);
        head.copy_from_slice(&entry.head());
        out_name.copy_from_slice(name);
        (used, live) = (end, live + 1);
    }
    room[..BUCKET_HEADER].copy_from_slice(&bucket_header(used, live));
    Bucket::new(&room[..used])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small random number generator (splitmix64).
    struct Rng(u64);

    impl Rng {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ z >> 31) % bound
        }
    }

    type Owned = (Vec<u8>, u32, u8);

    /// Returns up to 69 entries sorted by name, at most as many as a plain bucket holds. Their
    /// names share long or short prefixes.
    fn some(rng: &mut Rng) -> Vec<Owned> {
        let mut all: Vec<Owned> = Vec::new();
        let (letters, longest) = (1 + rng.below(4), [3, 20, 255][rng.below(3) as usize]);
        let mut bytes = BUCKET_HEADER;
        for _ in 0..rng.below(70) {
            let mut name: Vec<u8> = all.last().map_or(Vec::new(), |last| last.0.clone());
            name.truncate(rng.below(name.len() as u64 + 1) as usize);
            let more = 1 + rng.below(longest) as usize;
            name.extend((0..more).map(|_| b'a' + rng.below(letters) as u8));
            name.truncate(255);
            bytes += ENTRY_HEADER + name.len();
            if bytes > BUCKET_BYTES {
                break;
            }
            let ino = match rng.below(4) {
                0 => u32::MAX - rng.below(3) as u32,
                1 => 1 + rng.below(u32::MAX.into()) as u32,
                _ => 1000 + rng.below(100) as u32,
            };
            all.push((name, ino, [8, 8, 8, 4, 10][rng.below(5) as usize]));
        }
        all.sort();
        all.dedup_by(|one, other| one.0 == other.0);
        all
    }

    fn dirents(all: &[Owned]) -> Vec<Dirent<'_>> {
        fn dirent((name, ino, kind): &Owned) -> Dirent<'_> {
            Dirent { hash: name_hash(7, name), ino: Ino::new(*ino), kind: *kind, name }
        }
        all.iter().map(dirent).collect()
    }

    fn some_packed(rng: &mut Rng) -> Vec<u8> {
        pack_bucket(&dirents(&some(rng)))
    }

    #[test]
    fn packed_buckets_come_back_and_shrink_with_every_entry_that_goes() {
        let mut rng = Rng(1);
        let mut shorter = 0;
        for _ in 0..2000 {
            let all = some(&mut rng);
            if all.is_empty() {
                continue;
            }
            let (entries, mut room) = (dirents(&all), [0xee; BUCKET_BYTES]);
            let packed = pack_bucket(&entries);
            assert!(is_packed_bucket(packed.first_chunk().unwrap()));
            let plain: usize = entries.iter().map(Dirent::encoded_len).sum();
            shorter += usize::from(packed.len() < BUCKET_HEADER + plain);
            let bucket = open_bucket(&packed, 7, &mut room).unwrap();
            assert_eq!(bucket.entries().map(|e| e.unwrap().1).collect::<Vec<_>>(), entries);
            assert_eq!((bucket.live(), bucket.used()), (entries.len(), BUCKET_HEADER + plain));
            for gone in 0..entries.len() {
                let mut left = entries.clone();
                left.remove(gone);
                assert!(pack_bucket(&left).len() <= packed.len(), "{entries:?} without {gone}");
            }
        }
        assert!(shorter > 1900);
    }

    #[test]
    fn every_changed_bit_is_seen() {
        let mut rng = Rng(2);
        for _ in 0..20 {
            let mut packed = some_packed(&mut rng);
            packed.resize(packed.len() + 24, 0xee);
            for bit in 0..(packed.len() - 24) * 8 {
                packed[bit / 8] ^= 1 << (bit % 8);
                let mut room = [0; BUCKET_BYTES];
                assert!(open_bucket(&packed, 7, &mut room).is_err(), "bit {bit} of {packed:?}");
                packed[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn bytes_that_nobody_wrote_are_refused_and_nothing_is_read_behind_them() {
        let mut rng = Rng(3);
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut bytes = some_packed(&mut rng);
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.below(256) as u8;
            }
            // Fix the sum, so that everything depends on the decoder.
            let used = (u16_at(&bytes, 0) as usize).clamp(BUCKET_HEADER, bytes.len());
            let sum = sum(&bytes[..used]);
            bytes[4..BUCKET_HEADER].copy_from_slice(&sum.to_le_bytes());
            let mut room = [0; BUCKET_BYTES];
            match open_bucket(&bytes, 7, &mut room) {
                Err(_) => refused += 1,
                Ok(bucket) => {
                    let names: Vec<_> = bucket.entries().map(|e| e.unwrap().1).collect();
                    assert!(names.is_sorted_by(|one, other| one.name < other.name), "{names:?}");
                    assert!(names.iter().all(|e| !e.ino.is_none() && !e.name.is_empty()));
                }
            }
        }
        assert!(refused > 5000, "{refused}");
    }
}
