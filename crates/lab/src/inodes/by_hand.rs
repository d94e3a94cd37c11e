//! All-or-nothing coded by hand.
//!
//! Owns: [`ByHand`]. The thesis "manually coded all-or-nothing compressors for each of the file
//! systems", while its other codes went by tables. The code of `shoal-pack` goes by tables, too, so
//! that its speed says little of such a one. Rules: the bits are those of the thesis's table 3.2; the
//! kind of each field is the shorter one for the tree. Left out: codes longer than the record,
//! which the tests show to be rare.

use std::collections::HashMap;

use shoal_pack::Record;

const FIELDS: usize = 11;
/// Bits of mode, uid, gid, links, size, ctime, mtime, atime, flags, generation, device number.
const WIDTHS: [u32; FIELDS] = [16, 32, 32, 32, 64, 33, 33, 33, 32, 32, 32];
const S_NS: i64 = 1_000_000_000;
const EPOCH_S: i64 = 946_684_800;
/// Words of the longest code: 380 bits.
const WORDS: usize = 8;

/// What one bit says of a field: it has this value (type A), or so few bits (type B).
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    value: u64,
    bits: u32,
}

#[derive(Clone, Debug)]
pub struct ByHand {
    known: [Known; FIELDS],
}

/// Bits, the first in the lowest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    words: [u64; WORDS],
    pub len: u32,
}

impl Bits {
    #[inline]
    fn put(&mut self, value: u64, bits: u32) {
        let (word, shift) = ((self.len / 64) as usize, self.len % 64);
        self.words[word] |= value << shift;
        if shift + bits > 64 {
            self.words[word + 1] |= value >> (64 - shift);
        }
        self.len += bits;
    }

    #[inline]
    fn take(&self, at: &mut u32, bits: u32) -> u64 {
        let (word, shift) = ((*at / 64) as usize, *at % 64);
        let high = if shift == 0 { 0 } else { self.words[(word + 1) % WORDS] << (64 - shift) };
        *at += bits;
        (self.words[word] >> shift | high) & u64::MAX.unbounded_shr(64 - bits)
    }
}

fn sign_last(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63) as u64
}

fn split(record: &Record) -> [u64; FIELDS] {
    let [ctime, mtime, atime] = [record.ctime, record.mtime, record.atime].map(|time| time / S_NS);
    [
        record.mode.into(),
        record.uid.into(),
        record.gid.into(),
        record.links.into(),
        record.size,
        sign_last(ctime - EPOCH_S),
        sign_last(mtime - ctime),
        sign_last(atime - mtime),
        record.flags.into(),
        u64::from(record.generation.wrapping_sub(1)),
        record.rdev.into(),
    ]
}

impl ByHand {
    /// Chooses the shorter kind of each field for these records.
    pub fn of(records: &[Record]) -> ByHand {
        let mut values: [HashMap<u64, u64>; FIELDS] = Default::default();
        let mut lengths = [[0u64; 65]; FIELDS];
        for record in records {
            for (field, value) in split(record).into_iter().enumerate() {
                *values[field].entry(value).or_default() += 1;
                lengths[field][(64 - value.leading_zeros()) as usize] += 1;
            }
        }
        let count = records.len() as u64;
        let known = std::array::from_fn(|field| {
            let (value, users) =
                values[field].iter().max_by_key(|(value, users)| (**users, **value)).unwrap_or((&0, &0));
            let width = u64::from(WIDTHS[field]);
            let common = (count - users) * width;
            let short = |bits: u32| {
                let fits: u64 = lengths[field][..=bits as usize].iter().sum();
                fits * u64::from(bits) + (count - fits) * width
            };
            let bits = (1..WIDTHS[field]).min_by_key(|bits| short(*bits)).unwrap_or(1);
            if common <= short(bits) { Known { value: *value, bits: 0 } } else { Known { value: 0, bits } }
        });
        ByHand { known }
    }

    #[inline]
    pub fn encode(&self, record: &Record, out: &mut Bits) {
        *out = Bits::default();
        for (field, value) in split(record).into_iter().enumerate() {
            let Known { value: common, bits } = self.known[field];
            if (value ^ common).unbounded_shr(bits) == 0 {
                out.put((value ^ common) << 1, bits + 1);
            } else {
                out.put(1, 1);
                out.put(value, WIDTHS[field]);
            }
        }
    }

    fn decode(&self, bits: &Bits) -> [u64; FIELDS] {
        let mut at = 0;
        std::array::from_fn(|field| {
            let Known { value: common, bits: few } = self.known[field];
            match bits.take(&mut at, 1) {
                0 if few == 0 => common,
                0 => common ^ bits.take(&mut at, few),
                _ => bits.take(&mut at, WIDTHS[field]),
            }
        })
    }

    /// Returns whether every record's code gives its fields back.
    pub fn is_right(&self, records: &[Record]) -> bool {
        let mut bits = Bits::default();
        records.iter().all(|record| {
            self.encode(record, &mut bits);
            self.decode(&bits) == split(record)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::described::{TABLE_3_1, Without, generate};
    use super::*;

    #[test]
    fn a_code_gives_its_fields_back_also_those_of_another_tree() {
        let [one, other] = [0, 3].map(|at| generate(&TABLE_3_1[at], 0.01, Without::default(), 1).records);
        let code = ByHand::of(&one);
        assert!(code.is_right(&one) && code.is_right(&other));
        let mut bits = Bits::default();
        code.encode(&one[0], &mut bits);
        assert!(bits.len > FIELDS as u32 && bits.len < 54 * 8, "{}", bits.len);
        let mut wrong = code.clone();
        wrong.known[0].bits = 16;
        assert!(wrong.is_right(&one));
        bits.words[0] ^= 1;
        assert_ne!(code.decode(&bits), split(&one[0]));
    }
}
