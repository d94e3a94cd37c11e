//! Sixteen inodes in a block, each decodable by itself.
//!
//! Owns: [`pack`] and [`Block`]. A block begins with a checksum, the number of its profile in the
//! store, its bases and 16 length bytes; the codes follow. The sum of the preceding lengths is a
//! code's place, so no search is needed. A free number keeps the generation of its last user. Of
//! several profiles, packing takes the one that makes the block smallest. One item may be replaced;
//! the others then keep their codes. The table of the layout is in `docs/spec/pack.md`.

use shoal_format::{FormatError, checksum};

use crate::bits::{BitReader, BitWriter};
use crate::codec::{BASES_MAX, Code, Context};
use crate::hybrid::Hybrid;
use crate::record::{Record, STRIPPED, TIMES, VERBATIM_MAX};
use crate::times::{self, Bases, Split};
use crate::triplet::Triplets;

/// Inodes of a block.
pub const BLOCK_INODES: usize = 16;
/// Bytes before the bases.
const HEAD: usize = 6;
/// Longest block.
pub const BLOCK_MAX: usize = HEAD + BASES_MAX * 8 + BLOCK_INODES + BLOCK_INODES * VERBATIM_MAX;
/// Marks the length byte of a free number whose generation follows.
const FREE: u8 = 0x80;

/// The state of one inode number of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Not in use. Keeps the generation of its last user.
    Free {
        generation: u32,
    },
    Used(Record),
}

/// Buffer for a packed block.
#[derive(Clone, Debug)]
pub struct BlockBytes {
    bytes: [u8; BLOCK_MAX],
    len: usize,
}

impl Default for BlockBytes {
    fn default() -> BlockBytes {
        BlockBytes { bytes: [0; BLOCK_MAX], len: 0 }
    }
}

impl BlockBytes {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Begins a block. Returns the place of its length bytes.
    fn begin(&mut self, number: u8, bases: &Bases) -> usize {
        self.len = 4;
        let bases = bases.times();
        self.push(&[number, bases.len() as u8]);
        for base in bases {
            self.push(&base.to_le_bytes());
        }
        let lengths = self.len;
        self.push(&[0; BLOCK_INODES]);
        lengths
    }

    /// Appends the last generation of a free number. Returns its length byte.
    fn push_free(&mut self, generation: u32) -> u8 {
        let bytes = (32 - generation.leading_zeros()).div_ceil(8) as usize;
        self.push(&generation.to_le_bytes()[..bytes]);
        if bytes == 0 { 0 } else { FREE | bytes as u8 }
    }

    /// Appends a record's code under the profile and returns its length byte, or `None` if the
    /// record has no code.
    fn push_code(
        &mut self,
        record: &Record,
        times: &[Split; TIMES],
        profile: &Hybrid,
        context: &Context,
        writer: &mut BitWriter,
    ) -> Option<u8> {
        writer.clear();
        if !profile.write(record, times, context, writer) {
            return None;
        }
        let (bytes, len) = writer.whole()?;
        // The copy includes the bytes after the code, which the next code overwrites: a copy of
        // constant length compiles to a plain move.
        self.bytes[self.len..self.len + STRIPPED].copy_from_slice(bytes);
        self.len += len;
        Some(len as u8)
    }

    fn push_verbatim(&mut self, record: &Record) -> u8 {
        let mut code = Code::default();
        code.set(record, None);
        self.push(code.bytes());
        code.bytes().len() as u8
    }

    fn seal(&mut self) {
        let sum = checksum(0, &self.bytes[4..self.len]);
        self.bytes[..4].copy_from_slice(&sum.to_le_bytes());
    }

    fn fill(&mut self, block: &Unpacked, number: u8, profile: Option<&Hybrid>, context: &Context) {
        let lengths = self.begin(number, &context.bases);
        let mut writer = BitWriter::new();
        let mut used = block.times.iter();
        for (at, item) in block.items.iter().enumerate() {
            self.bytes[lengths + at] = match item {
                Item::Free { generation } => self.push_free(*generation),
                Item::Used(record) => {
                    let code = match (profile, used.next()) {
                        (Some(profile), Some(times)) => self.push_code(record, times, profile, context, &mut writer),
                        _ => None,
                    };
                    code.unwrap_or_else(|| self.push_verbatim(record))
                }
            };
        }
        self.seal();
    }
}

/// A block to pack, with the times of its inodes in use.
struct Unpacked<'a> {
    items: &'a [Item; BLOCK_INODES],
    times: &'a [[Split; TIMES]],
}

/// Packs a block under the profile that makes it smallest. A profile's number is its index. Without
/// profiles, all records are written verbatim.
pub fn pack(items: &[Item; BLOCK_INODES], profiles: &[Hybrid], triplets: &Triplets, out: &mut BlockBytes) {
    let mut times = [[Split::default(); TIMES]; BLOCK_INODES];
    let mut used = 0;
    for item in items {
        if let Item::Used(record) = item {
            times[used] = times::split(record);
            used += 1;
        }
    }
    let times = &times[..used];
    let (block, context) = (Unpacked { items, times }, Context { triplets, bases: Bases::of_times(times) });
    out.fill(&block, 0, profiles.first(), &context);
    if profiles.len() > 1 {
        let mut other = BlockBytes::default();
        for (number, profile) in profiles.iter().enumerate().skip(1).take(usize::from(u8::MAX)) {
            other.fill(&block, number as u8, Some(profile), &context);
            if other.len < out.len {
                out.len = 0;
                out.push(other.bytes());
            }
        }
    }
}

/// A packed block, opened.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    profile: u8,
    bases: Bases,
    lengths: &'a [u8; BLOCK_INODES],
    starts: [u16; BLOCK_INODES],
    codes: &'a [u8],
    overhead: usize,
}

impl<'a> Block<'a> {
    /// Opens a block. Checks its checksum and that its lengths add up.
    pub fn open(bytes: &'a [u8]) -> Result<Block<'a>, FormatError> {
        let what = "packed inodes";
        let short = |expected: usize| FormatError::Short { what, expected, found: bytes.len() };
        let (sum, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| short(HEAD))?;
        let (expected, found) = (u32::from_le_bytes(*sum), checksum(0, rest));
        if expected != found {
            return Err(FormatError::Checksum { what, expected, found });
        }
        let (&[profile, count], mut rest) = rest.split_first_chunk::<2>().ok_or_else(|| short(HEAD))?;
        if usize::from(count) > BASES_MAX {
            return Err(FormatError::Range { what, field: "bases", found: count.into() });
        }
        let mut times = [0; BASES_MAX];
        for time in &mut times[..count.into()] {
            let (bytes, after) = rest.split_first_chunk::<8>().ok_or_else(|| short(HEAD + 8))?;
            (*time, rest) = (i64::from_le_bytes(*bytes), after);
        }
        let bases = Bases::new(&times[..count.into()]);
        let (lengths, codes) = rest.split_first_chunk::<BLOCK_INODES>().ok_or_else(|| short(HEAD + BLOCK_INODES))?;
        let mut starts = [0; BLOCK_INODES];
        let mut at = 0u16;
        for (start, &length) in starts.iter_mut().zip(lengths) {
            let bytes = if length & FREE == 0 { length } else { length & !FREE };
            let is_known =
                if length & FREE == 0 { usize::from(length) <= VERBATIM_MAX } else { (1..=4).contains(&bytes) };
            if !is_known {
                return Err(FormatError::Range { what, field: "length", found: length.into() });
            }
            *start = at;
            at += u16::from(bytes);
        }
        if usize::from(at) != codes.len() {
            return Err(FormatError::Short { what, expected: at.into(), found: codes.len() });
        }
        Ok(Block { profile, bases, lengths, starts, codes, overhead: bytes.len() - codes.len() })
    }

    /// Opens the block at the beginning of `slot`. Bytes after the block are ignored.
    pub fn open_in(slot: &'a [u8]) -> Result<Block<'a>, FormatError> {
        let lengths_at = HEAD + usize::from(slot.get(HEAD - 1).copied().unwrap_or(0)) * 8;
        let lengths = slot.get(lengths_at..lengths_at + BLOCK_INODES).unwrap_or_default();
        let codes: usize = lengths.iter().map(|length| usize::from(length & !FREE)).sum();
        // A wrong end leads to a wrong checksum.
        Block::open(slot.get(..lengths_at + BLOCK_INODES + codes).unwrap_or(slot))
    }

    /// Returns the size of the block (bytes).
    pub fn total(&self) -> usize {
        self.overhead + self.codes.len()
    }

    /// Returns whether the inode at a place has a code under the profile, that is, whether it is in
    /// use and not verbatim.
    pub fn has_code(&self, place: usize) -> bool {
        self.lengths.get(place).is_some_and(|length| (1..=STRIPPED).contains(&usize::from(*length)))
    }

    /// Counts the inodes in use.
    pub fn used(&self) -> usize {
        self.lengths.iter().filter(|length| (1..FREE).contains(*length)).count()
    }

    /// Returns the number of the profile that decodes the block.
    pub fn profile(&self) -> u8 {
        self.profile
    }

    /// Returns the number of bytes other than codes.
    pub fn overhead(&self) -> usize {
        self.overhead
    }

    /// Returns the maximum number of bytes by which [`Block::replace`] lengthens the block while
    /// the item at `place` stays in use.
    pub fn growth_max(&self, place: usize) -> usize {
        let longest = if self.has_code(place) { STRIPPED } else { VERBATIM_MAX };
        longest - usize::from(self.lengths[place] & !FREE)
    }

    /// Writes the block with another item at a place and all others unchanged. Returns false if the
    /// item cannot keep the form of the previous one: a record in use stays a code or stays
    /// verbatim, so that the users of triplets do not change. A number that becomes free lengthens
    /// the block only if its generation is longer than the code.
    pub fn replace(
        &self,
        place: usize,
        item: &Item,
        profiles: &[Hybrid],
        triplets: &Triplets,
        out: &mut BlockBytes,
    ) -> bool {
        let lengths = out.begin(self.profile, &self.bases);
        for (at, (&length, &start)) in self.lengths.iter().zip(&self.starts).enumerate() {
            out.bytes[lengths + at] = match item {
                _ if at != place => {
                    let start = usize::from(start);
                    out.push(&self.codes[start..start + usize::from(length & !FREE)]);
                    length
                }
                Item::Free { generation } => out.push_free(*generation),
                Item::Used(record) if self.has_code(place) => {
                    let context = Context { triplets, bases: self.bases };
                    let code = profiles.get(usize::from(self.profile)).and_then(|profile| {
                        out.push_code(record, &times::split(record), profile, &context, &mut BitWriter::new())
                    });
                    let Some(length) = code else { return false };
                    length
                }
                Item::Used(record) => out.push_verbatim(record),
            };
        }
        out.seal();
        true
    }

    /// Returns the inode at a place below [`BLOCK_INODES`].
    #[inline]
    pub fn get(&self, place: usize, profiles: &[Hybrid], triplets: &Triplets) -> Result<Item, FormatError> {
        let what = "packed inodes";
        let range = FormatError::Range { what, field: "place", found: place as u64 };
        let (Some(&length), Some(&start)) = (self.lengths.get(place), self.starts.get(place)) else {
            return Err(range);
        };
        let start = usize::from(start);
        if length == 0 {
            return Ok(Item::Free { generation: 0 });
        }
        if length & FREE != 0 {
            let bytes = usize::from(length & !FREE);
            let mut wide = [0; 4];
            wide[..bytes].copy_from_slice(&self.codes[start..start + bytes]);
            return Ok(Item::Free { generation: u32::from_le_bytes(wide) });
        }
        let length = usize::from(length);
        let record = match profiles.get(usize::from(self.profile)) {
            Some(profile) if length <= STRIPPED => {
                let context = Context { triplets, bases: self.bases };
                // Loading whole words reads into the next codes.
                profile.read(BitReader::new(&self.codes[start..], length), &context)?
            }
            // Verbatim records need no profile. A code that needs one is refused.
            _ => Record::read_verbatim(&self.codes[start..start + length])?,
        };
        Ok(Item::Used(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HybridCounts;
    use crate::samples::{arbitrary, context_of, tree};
    use shoal_sim::Random;

    fn profile(seed: u64) -> Hybrid {
        let mut counts = HybridCounts::default();
        for block in tree(seed, 400).chunks(16) {
            let bases = Bases::of(block);
            block.iter().for_each(|record| counts.add(record, &bases));
        }
        counts.codec()
    }

    fn items(random: &mut Random, seed: u64) -> [Item; BLOCK_INODES] {
        let tree = tree(seed, BLOCK_INODES);
        std::array::from_fn(|at| match random.below(8) {
            0 => Item::Free { generation: 0 },
            1 => Item::Free { generation: (random.next_u64() >> 32 >> random.below(32)) as u32 },
            2 => Item::Used(arbitrary(random)),
            _ => Item::Used(tree[at]),
        })
    }

    fn triplets_of(items: &[Item]) -> Triplets {
        let records: Vec<Record> =
            items.iter().filter_map(|item| if let Item::Used(record) = item { Some(*record) } else { None }).collect();
        context_of(records.iter())
    }

    #[test]
    fn every_inode_of_a_block_comes_back_by_itself() {
        let profiles: Vec<Hybrid> = (0..3).map(profile).collect();
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let items = items(&mut random, seed);
            let triplets = triplets_of(&items);
            let profiles = &profiles[..seed as usize % 4];
            let mut out = BlockBytes::default();
            pack(&items, profiles, &triplets, &mut out);
            let mut slot = out.bytes().to_vec();
            slot.resize(out.bytes().len() + random.below(100) as usize, 0x5a);
            let block = Block::open_in(&slot).unwrap();
            assert_eq!(block.total(), out.bytes().len());
            assert_eq!(block.used(), items.iter().filter(|item| matches!(item, Item::Used(_))).count());
            for at in random.shuffled(0..BLOCK_INODES) {
                assert_eq!(block.get(at, profiles, &triplets), Ok(items[at]), "seed {seed}");
            }
            assert!(block.get(BLOCK_INODES, profiles, &triplets).is_err());
        }
    }

    #[test]
    fn an_item_is_replaced_and_the_others_stay() {
        let profiles: Vec<Hybrid> = (0..3).map(profile).collect();
        let (mut replaced, mut longer) = (0, 0);
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let items = items(&mut random, seed);
            let profiles = &profiles[..seed as usize % 4];
            let place = random.index(BLOCK_INODES);
            let item = match (items[place], seed % 2) {
                (Item::Used(mut record), 0) => {
                    record.links = record.links.saturating_sub(1).max(1);
                    record.size = random.next_u64() >> random.below(64);
                    record.ctime = record.ctime.wrapping_add(random.below(1 << 40) as i64);
                    Item::Used(record)
                }
                _ => Item::Free { generation: (random.next_u64() >> 32 >> random.below(32)) as u32 },
            };
            let triplets = triplets_of(&items);
            let (mut before, mut out) = (BlockBytes::default(), BlockBytes::default());
            pack(&items, profiles, &triplets, &mut before);
            let block = Block::open(before.bytes()).unwrap();
            if !block.replace(place, &item, profiles, &triplets, &mut out) {
                assert!(matches!(item, Item::Used(_)), "a number can always become free");
                continue;
            }
            replaced += 1;
            let after = Block::open(out.bytes()).unwrap();
            for (at, before) in items.iter().enumerate() {
                let expected = if at == place { item } else { *before };
                assert_eq!(after.get(at, profiles, &triplets), Ok(expected), "seed {seed}");
                assert_eq!(after.has_code(at), block.has_code(at) && matches!(expected, Item::Used(_)), "seed {seed}");
            }
            let growth = out.bytes().len().saturating_sub(before.bytes().len());
            if matches!(item, Item::Used(_)) {
                assert!(growth <= block.growth_max(place), "seed {seed}: {growth}");
            }
            longer += u32::from(growth > 0);
        }
        assert!(replaced > 1500 && longer > 10, "{replaced} replaced, {longer} longer");
    }

    #[test]
    fn the_smallest_of_several_profiles_wins() {
        let profiles: Vec<Hybrid> = (0..3).map(profile).collect();
        let mut won = [0; 3];
        for seed in 0..300 {
            let items: [Item; BLOCK_INODES] =
                tree(seed, 16).into_iter().map(Item::Used).collect::<Vec<_>>().try_into().unwrap();
            let triplets = triplets_of(&items);
            let len = |profiles: &[Hybrid]| {
                let mut out = BlockBytes::default();
                pack(&items, profiles, &triplets, &mut out);
                (out.bytes().len(), Block::open(out.bytes()).unwrap().profile())
            };
            let (best, number) = len(&profiles);
            assert_eq!(Some(best), profiles.iter().map(|profile| len(std::slice::from_ref(profile)).0).min());
            won[usize::from(number)] += 1;
        }
        assert!(won.iter().filter(|times| **times > 0).count() > 1, "{won:?}");
    }

    #[test]
    fn a_block_with_a_flipped_bit_is_refused_and_one_that_was_sealed_again_does_no_harm() {
        let profiles: Vec<Hybrid> = (0..2).map(profile).collect();
        let mut random = Random::new(9);
        for seed in 0..200 {
            let items = items(&mut random, seed);
            let triplets = triplets_of(&items);
            let mut out = BlockBytes::default();
            pack(&items, &profiles, &triplets, &mut out);
            for _ in 0..100 {
                let mut bytes = out.bytes().to_vec();
                let bit = random.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(matches!(Block::open(&bytes), Err(FormatError::Checksum { .. })), "seed {seed}, bit {bit}");
                if random.below(2) == 0 {
                    bytes.truncate(random.below(bytes.len() as u64) as usize);
                }
                if bytes.len() < 4 {
                    assert!(Block::open(&bytes).is_err());
                    continue;
                }
                let sum = checksum(0, &bytes[4..]);
                bytes[..4].copy_from_slice(&sum.to_le_bytes());
                if let Ok(block) = Block::open(&bytes) {
                    for at in 0..BLOCK_INODES {
                        let _ = block.get(at, &profiles, &triplets);
                    }
                }
            }
        }
    }
}
