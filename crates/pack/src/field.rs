//! Codes of one field: a number of up to 64 bits.
//!
//! Owns: [`FieldCode`], the paper's three ways to code a field, and their construction from the
//! [`Counts`] of a tree. Rules: every number of the field's width has a code under every table; a
//! number that a table does not know follows its OTHER symbol in full. `best` takes the shortest
//! code for the tree: that is the hybrid the paper leaves to future work.

use std::collections::HashMap;

use shoal_format::FormatError;

use crate::bits::{BitReader, BitWriter};
use crate::gamma::Gamma;
use crate::huffman::Huffman;

/// Maximum number of values in a table of values, in addition to OTHER.
pub(crate) const VALUES_MAX: usize = 511;
/// Values below this share of all values are coded as OTHER: 0.1%, as in the paper.
const SHARE_MIN: f64 = 0.001;
/// The symbol for lengths that a table does not know.
const OTHER_LENGTH: usize = 65;

/// How often each value of a field occurs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    counts: HashMap<u64, u64>,
}

impl Counts {
    pub fn add(&mut self, value: u64) {
        *self.counts.entry(value).or_default() += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns whether there are values and none is below `least`.
    pub fn are_all_from(&self, least: u64) -> bool {
        !self.counts.is_empty() && self.counts.keys().all(|value| *value >= least)
    }

    /// Returns values and counts, the most frequent first, ties by value.
    pub fn sorted(&self) -> Vec<(u64, u64)> {
        let mut sorted: Vec<(u64, u64)> = self.counts.iter().map(|(value, count)| (*value, *count)).collect();
        sorted.sort_unstable_by_key(|(value, count)| (u64::MAX - count, *value));
        sorted
    }
}

/// Values that have codes of their own.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub values: Vec<u64>,
    pub huffman: Huffman,
    /// Code of the numbers that follow OTHER.
    pub other: Box<FieldCode>,
    /// Hash table of symbol + 1; 0 marks an empty place.
    places: Vec<u16>,
}

impl Values {
    pub fn new(values: Vec<u64>, huffman: Huffman, other: FieldCode) -> Values {
        let bits = (values.len() * 2).next_power_of_two().trailing_zeros().max(1);
        let mut places = vec![0; 1 << bits];
        for (symbol, value) in values.iter().enumerate() {
            let mut place = place(*value, bits);
            while places[place] != 0 {
                place = (place + 1) % places.len();
            }
            places[place] = symbol as u16 + 1;
        }
        Values { values, huffman, other: Box::new(other), places }
    }

    /// Returns the symbol of a value, or OTHER.
    #[inline]
    fn symbol(&self, value: u64) -> usize {
        let mut at = place(value, self.places.len().trailing_zeros());
        loop {
            match self.places[at] {
                0 => return self.values.len(),
                symbol if self.values[usize::from(symbol) - 1] == value => return usize::from(symbol) - 1,
                _ => at = (at + 1) % self.places.len(),
            }
        }
    }
}

#[inline]
fn place(value: u64, bits: u32) -> usize {
    ((value ^ value >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
}

#[derive(Clone, Debug)]
pub(crate) enum FieldCode {
    /// The whole field.
    Raw { width: u8 },
    /// All-or-nothing, type A: a bit, then the whole field unless it has the common value.
    Common { value: u64, width: u8 },
    /// All-or-nothing, type B: a bit, then a few bits or the whole field.
    Short { bits: u8, width: u8 },
    /// A Huffman code for each frequent value.
    Values(Values),
    /// A Huffman code for the length of the value, then its bits below the highest. OTHER is
    /// followed by the whole field.
    Lengths { huffman: Huffman, width: u8 },
    /// A gamma code with a table made for the field.
    Gamma(Gamma),
}

#[inline]
fn length_of(value: u64) -> u32 {
    64 - value.leading_zeros()
}

impl FieldCode {
    /// Returns a code for a field without statistics: the shorter the number, the shorter its code.
    pub fn unknown(width: u8) -> FieldCode {
        let buckets: Vec<u8> = [4, 8, 12, 16, 24, 32, 48].into_iter().filter(|bits| *bits < width).collect();
        FieldCode::Gamma(Gamma::new(&buckets, width).expect("few buckets"))
    }

    /// Returns the shorter of the two all-or-nothing codes. The paper's were chosen by hand.
    pub fn all_or_nothing(counts: &Counts, width: u8) -> FieldCode {
        let sorted = counts.sorted();
        let common = FieldCode::Common { value: sorted.first().map_or(0, |(value, _)| *value), width };
        let short = (0..width.min(63)).map(|bits| FieldCode::Short { bits, width });
        shortest(std::iter::once(common).chain(short), &sorted)
    }

    /// Builds Huffman codes of the frequent values. All others follow OTHER in the code `other`.
    pub fn values(counts: &Counts, other: FieldCode) -> FieldCode {
        let total: u64 = counts.counts.values().sum();
        FieldCode::frequent_values(counts, (total as f64 * SHARE_MIN).ceil() as u64, other)
    }

    /// Builds Huffman codes of the values that occur at least `least` times.
    pub fn frequent_values(counts: &Counts, least: u64, other: FieldCode) -> FieldCode {
        let sorted = counts.sorted();
        let kept: Vec<(u64, u64)> =
            sorted.iter().copied().take_while(|(_, count)| *count >= least).take(VALUES_MAX).collect();
        let mut weights: Vec<u64> = kept.iter().map(|(_, count)| *count).collect();
        // OTHER starts with the least frequency, then inherits the counts of the values left out.
        weights.push(1 + sorted[kept.len()..].iter().map(|(_, count)| count).sum::<u64>());
        let values = kept.into_iter().map(|(value, _)| value).collect();
        FieldCode::Values(Values::new(values, Huffman::from_counts(&weights), other))
    }

    /// Builds Huffman codes of the frequent lengths.
    pub fn lengths(counts: &Counts, width: u8) -> FieldCode {
        let mut by_length = [0u64; 65];
        for (value, count) in counts.sorted() {
            by_length[length_of(value) as usize] += count;
        }
        let total: u64 = by_length.iter().sum();
        let mut weights: Vec<u64> = by_length.to_vec();
        weights.push(1);
        for weight in &mut weights[..OTHER_LENGTH] {
            if (*weight as f64) < total as f64 * SHARE_MIN {
                *weight = 0;
            }
        }
        weights[OTHER_LENGTH] += total - weights[..OTHER_LENGTH].iter().sum::<u64>();
        // Lengths that do not occur still get codes, the longest ones: a known length is shorter
        // than OTHER.
        FieldCode::Lengths { huffman: Huffman::from_counts(&weights), width }
    }

    pub fn gamma(counts: &Counts, width: u8) -> FieldCode {
        FieldCode::Gamma(Gamma::best(&counts.sorted(), width))
    }

    /// Returns the shortest code for these counts.
    pub fn best(counts: &Counts, width: u8) -> FieldCode {
        if counts.is_empty() {
            return FieldCode::unknown(width);
        }
        let sorted = counts.sorted();
        let general = shortest([FieldCode::gamma(counts, width), FieldCode::lengths(counts, width)], &sorted);
        let values = FieldCode::values(counts, general.clone());
        shortest([general, values, FieldCode::all_or_nothing(counts, width)], &sorted)
    }

    /// Returns the length of a value's code (bits).
    #[inline]
    pub fn cost(&self, value: u64) -> u32 {
        match self {
            FieldCode::Raw { width } => (*width).into(),
            FieldCode::Common { value: common, .. } if value == *common => 1,
            FieldCode::Short { bits, .. } if value >> bits == 0 => 1 + u32::from(*bits),
            FieldCode::Common { width, .. } | FieldCode::Short { width, .. } => 1 + u32::from(*width),
            FieldCode::Values(values) => {
                let symbol = values.symbol(value);
                let other = if symbol == values.values.len() { values.other.cost(value) } else { 0 };
                values.huffman.cost(symbol) + other
            }
            FieldCode::Lengths { huffman, width } => {
                let length = length_of(value);
                let known = huffman.cost(length as usize) + length.saturating_sub(1);
                known.min(huffman.cost(OTHER_LENGTH) + u32::from(*width))
            }
            FieldCode::Gamma(gamma) => gamma.cost(value),
        }
    }

    #[inline]
    pub fn put(&self, out: &mut BitWriter, value: u64) {
        match self {
            FieldCode::Raw { width } => out.put_wide(value, (*width).into()),
            FieldCode::Common { value: common, .. } if value == *common => out.put(0, 1),
            FieldCode::Short { bits, .. } if value >> bits == 0 => {
                out.put(0, 1);
                out.put_wide(value, (*bits).into());
            }
            FieldCode::Common { width, .. } | FieldCode::Short { width, .. } => {
                out.put(1, 1);
                out.put_wide(value, (*width).into());
            }
            FieldCode::Values(values) => {
                let symbol = values.symbol(value);
                values.huffman.put(out, symbol);
                if symbol == values.values.len() {
                    values.other.put(out, value);
                }
            }
            FieldCode::Lengths { huffman, width } => {
                let length = length_of(value);
                let below = length.saturating_sub(1);
                if huffman.cost(length as usize) + below > huffman.cost(OTHER_LENGTH) + u32::from(*width) {
                    huffman.put(out, OTHER_LENGTH);
                    out.put_wide(value, (*width).into());
                } else if below <= 44 {
                    huffman.put_with(out, length as usize, value & ((1 << below) - 1), below);
                } else {
                    huffman.put(out, length as usize);
                    out.put_wide(value & ((1 << below) - 1), below);
                }
            }
            FieldCode::Gamma(gamma) => gamma.put(out, value),
        }
    }

    #[inline]
    pub fn take(&self, code: &mut BitReader) -> Result<u64, FormatError> {
        Ok(match self {
            FieldCode::Lengths { huffman, width } => match huffman.take(code) as u32 {
                0 => 0,
                length if length as usize == OTHER_LENGTH => code.take_wide((*width).into()),
                length => code.take_wide(length - 1) | 1 << (length - 1),
            },
            FieldCode::Values(values) => {
                let symbol = values.huffman.take(code);
                match values.values.get(symbol) {
                    Some(value) => *value,
                    None => values.other.take(code)?,
                }
            }
            FieldCode::Gamma(gamma) => gamma.take(code)?,
            FieldCode::Raw { width } => code.take_wide((*width).into()),
            FieldCode::Common { value, width } => {
                if code.take(1) == 0 {
                    *value
                } else {
                    code.take_wide((*width).into())
                }
            }
            FieldCode::Short { bits, width } => {
                let whole = code.take(1) == 1;
                code.take_wide(if whole { *width } else { *bits }.into())
            }
        })
    }
}

fn shortest(codes: impl IntoIterator<Item = FieldCode>, counts: &[(u64, u64)]) -> FieldCode {
    let bits = |code: &FieldCode| counts.iter().map(|(value, count)| u64::from(code.cost(*value)) * count).sum::<u64>();
    codes.into_iter().min_by_key(bits).expect("there is a code")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::STRIPPED;
    use shoal_sim::Random;

    fn counts(random: &mut Random, width: u8) -> Counts {
        let mut counts = Counts::default();
        for _ in 0..1 + random.below(3000) {
            let value = random.next_u64() >> (64 - u32::from(width)) >> random.below(width.into());
            counts.add(if random.below(3) == 0 { value } else { value % 7 });
        }
        counts
    }

    fn all(counts: &Counts, width: u8) -> Vec<FieldCode> {
        vec![
            FieldCode::Raw { width },
            FieldCode::unknown(width),
            FieldCode::all_or_nothing(counts, width),
            FieldCode::values(counts, FieldCode::Raw { width }),
            FieldCode::lengths(counts, width),
            FieldCode::gamma(counts, width),
            FieldCode::best(counts, width),
        ]
    }

    #[test]
    fn every_value_comes_back_under_every_code_also_one_the_tree_did_not_have() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let width = [16, 33, 64][seed as usize % 3];
            let counts = counts(&mut random, width);
            for code in all(&counts, width) {
                for _ in 0..50 {
                    let value = random.next_u64() >> (64 - u32::from(width)) >> random.below(width.into());
                    let mut writer = BitWriter::new();
                    code.put(&mut writer, value);
                    assert_eq!(writer.len() as u32, code.cost(value), "seed {seed} {code:?}");
                    let mut reader = BitReader::new(writer.code(STRIPPED).unwrap(), writer.len().div_ceil(8));
                    assert_eq!(code.take(&mut reader), Ok(value), "seed {seed} {code:?}");
                    assert_eq!(reader.end(), Ok(()), "seed {seed} {code:?}");
                }
            }
        }
    }

    #[test]
    fn the_best_code_is_no_longer_than_any_of_the_papers() {
        for seed in 0..30 {
            let mut random = Random::new(seed);
            let counts = counts(&mut random, 32);
            let sorted = counts.sorted();
            let bits = |code: &FieldCode| sorted.iter().map(|(v, n)| u64::from(code.cost(*v)) * n).sum::<u64>();
            let best = bits(&FieldCode::best(&counts, 32));
            for code in [
                FieldCode::all_or_nothing(&counts, 32),
                FieldCode::lengths(&counts, 32),
                FieldCode::gamma(&counts, 32),
                FieldCode::values(&counts, FieldCode::Raw { width: 32 }),
            ] {
                assert!(best <= bits(&code), "seed {seed} {code:?}");
            }
        }
    }

    #[test]
    fn the_papers_all_or_nothing_rules_hold() {
        // Table 3.2: the common value takes one bit, any other one bit and the field. A short value
        // takes one bit and its few bits.
        let common = FieldCode::Common { value: 0, width: 32 };
        assert_eq!((common.cost(0), common.cost(1000)), (1, 33));
        let short = FieldCode::Short { bits: 16, width: 64 };
        assert_eq!((short.cost(0), short.cost(65535), short.cost(65536)), (17, 17, 65));
    }

    #[test]
    fn each_frequent_value_finds_its_own_code() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut counts = Counts::default();
            for _ in 0..400 {
                let value = random.next_u64() >> random.below(60);
                (0..50).for_each(|_| counts.add(value));
            }
            let FieldCode::Values(values) = FieldCode::values(&counts, FieldCode::Raw { width: 64 }) else { panic!() };
            assert!(values.values.len() > 100, "seed {seed}");
            for (symbol, value) in values.values.iter().enumerate() {
                assert_eq!(values.symbol(*value), symbol, "seed {seed}");
            }
        }
    }

    #[test]
    fn a_value_below_a_thousandth_has_no_code_of_its_own() {
        let mut counts = Counts::default();
        (0..9_995).for_each(|_| counts.add(1));
        (0..5).for_each(|_| counts.add(2));
        let FieldCode::Values(values) = FieldCode::values(&counts, FieldCode::Raw { width: 32 }) else { panic!() };
        assert_eq!(values.values, [1]);
    }
}
