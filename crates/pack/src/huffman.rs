//! Canonical Huffman codes of limited length.
//!
//! Owns: [`Huffman`], made from frequencies or from the lengths of its codes, which determine the
//! codes. Lengths come from the package-merge algorithm, so they are optimal under the limit.
//! Rules: lengths that do not form a complete code are refused, so every bit string decodes to some
//! symbol, and one look-up of [`LEN_MAX`] bits finds it. An alphabet of one symbol has a code of no
//! bits.

use shoal_format::FormatError;

use crate::bits::{BitReader, BitWriter};

/// Length of the longest code (bits).
pub(crate) const LEN_MAX: u32 = 12;
/// Length of the longest code of a small alphabet. Its table then stays in the fastest cache.
const LEN_MAX_SMALL: u32 = 9;
/// Maximum number of symbols of a small alphabet.
const SMALL: usize = 80;
/// Maximum number of symbols of an alphabet.
pub(crate) const SYMBOLS_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub(crate) struct Huffman {
    /// Code and length by symbol. The first bit of a code is its lowest.
    codes: Vec<(u16, u8)>,
    /// Symbol, and its length in the low four bits, indexed by the next `look` bits.
    table: Vec<u16>,
    look: u32,
}

impl Huffman {
    /// Builds the best code for symbols with these counts. A count of 0 is taken as 1.
    pub fn from_counts(counts: &[u64]) -> Huffman {
        assert!((1..=SYMBOLS_MAX).contains(&counts.len()), "an alphabet has 1 to {SYMBOLS_MAX} symbols");
        Huffman::from_lengths(&lengths(counts)).expect("package-merge gives complete codes")
    }

    pub fn from_lengths(lengths: &[u8]) -> Result<Huffman, FormatError> {
        let refuse = |found: u64| FormatError::Range { what: "profile", field: "code lengths", found };
        if lengths.is_empty() || lengths.len() > SYMBOLS_MAX {
            return Err(refuse(lengths.len() as u64));
        }
        if lengths.len() == 1 {
            if lengths[0] != 0 {
                return Err(refuse(lengths[0].into()));
            }
            return Ok(Huffman { codes: vec![(0, 0)], table: vec![0], look: 0 });
        }
        let mut filled = 0u32;
        for &length in lengths {
            if length == 0 || u32::from(length) > LEN_MAX {
                return Err(refuse(length.into()));
            }
            filled += 1 << (LEN_MAX - u32::from(length));
        }
        if filled != 1 << LEN_MAX {
            return Err(refuse(filled.into()));
        }
        let look = lengths.iter().copied().max().unwrap_or(0);
        let mut codes = vec![(0, 0); lengths.len()];
        let mut table = vec![0; 1 << look];
        let mut next = 0u16;
        for length in 1..=look {
            next <<= 1;
            for (symbol, _) in lengths.iter().enumerate().filter(|(_, of)| **of == length) {
                let code = next.reverse_bits() >> (16 - length);
                codes[symbol] = (code, length);
                for place in (usize::from(code)..table.len()).step_by(1 << length) {
                    table[place] = (symbol as u16) << 4 | u16::from(length);
                }
                next += 1;
            }
        }
        Ok(Huffman { codes, table, look: look.into() })
    }

    pub fn lengths(&self) -> impl Iterator<Item = u8> {
        self.codes.iter().map(|(_, length)| *length)
    }

    /// Returns the length of a symbol's code (bits).
    #[inline]
    pub fn cost(&self, symbol: usize) -> u32 {
        self.codes[symbol].1.into()
    }

    #[inline]
    pub fn put(&self, out: &mut BitWriter, symbol: usize) {
        let (code, length) = self.codes[symbol];
        out.put(code.into(), length.into());
    }

    /// Appends a symbol's code and more bits after it in one step, at most 56 bits together.
    #[inline]
    pub fn put_with(&self, out: &mut BitWriter, symbol: usize, value: u64, bits: u32) {
        let (code, length) = self.codes[symbol];
        out.put(u64::from(code) | value << length, u32::from(length) + bits);
    }

    #[inline]
    pub fn take(&self, code: &mut BitReader) -> usize {
        let entry = self.table[(code.peek() & ((1 << self.look) - 1)) as usize];
        code.skip(u32::from(entry) & 15);
        usize::from(entry >> 4)
    }
}

/// Computes code lengths from counts by package-merge. There are as many rounds as a code may have
/// bits. Each round merges the sorted symbols with pairs of the previous round. The length of a
/// symbol is the number of times it is among the items chosen last.
fn lengths(counts: &[u64]) -> Vec<u8> {
    if counts.len() == 1 {
        return vec![0];
    }
    let mut symbols: Vec<(u64, usize)> = counts.iter().enumerate().map(|(s, &count)| (count.max(1), s)).collect();
    symbols.sort_unstable();
    // An item of a round: a symbol, or a pair of items of the previous round.
    #[derive(Clone, Copy)]
    enum Item {
        Symbol(usize),
        Pair(usize),
    }
    let mut rounds: Vec<Vec<(u64, Item)>> = vec![];
    for _ in 0..if counts.len() <= SMALL { LEN_MAX_SMALL } else { LEN_MAX } {
        let pairs: Vec<u64> =
            rounds.last().map_or(vec![], |last| last.chunks_exact(2).map(|pair| pair[0].0 + pair[1].0).collect());
        let mut merged: Vec<(u64, Item)> =
            symbols.iter().map(|(count, symbol)| (*count, Item::Symbol(*symbol))).collect();
        merged.extend(pairs.into_iter().enumerate().map(|(at, weight)| (weight, Item::Pair(at))));
        merged.sort_by_key(|(weight, _)| *weight);
        rounds.push(merged);
    }
    let mut lengths = vec![0; counts.len()];
    let mut chosen = 2 * counts.len() - 2;
    for round in rounds.iter().rev() {
        // The chosen items of a round are its first ones. The pairs among them are therefore the
        // first pairs of the previous round.
        let mut pairs = 0;
        for (_, item) in &round[..chosen] {
            match item {
                Item::Symbol(symbol) => lengths[*symbol] += 1,
                Item::Pair(at) => pairs = pairs.max(at + 1),
            }
        }
        chosen = pairs * 2;
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::STRIPPED;
    use shoal_sim::Random;

    /// Returns the bits of the best code without a limit: the sum of all merges.
    fn unlimited(counts: &[u64]) -> u64 {
        let mut heap: Vec<u64> = counts.to_vec();
        let mut bits = 0;
        while heap.len() > 1 {
            heap.sort_unstable_by(|a, b| b.cmp(a));
            let merged = heap.pop().unwrap() + heap.pop().unwrap();
            bits += merged;
            heap.push(merged);
        }
        bits
    }

    #[test]
    fn codes_are_as_short_as_huffmans_where_the_limit_does_not_bind() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let counts: Vec<u64> = (0..1 + random.below(20)).map(|_| 1 + random.below(8)).collect();
            let code = Huffman::from_counts(&counts);
            let bits: u64 = counts.iter().enumerate().map(|(symbol, count)| count * u64::from(code.cost(symbol))).sum();
            assert_eq!(bits, unlimited(&counts), "seed {seed}");
        }
        // Without the limit, Fibonacci numbers would give codes of 40 bits.
        let mut counts = vec![1u64, 1];
        while counts.len() < 40 {
            counts.push(counts[counts.len() - 1] + counts[counts.len() - 2]);
        }
        let code = Huffman::from_counts(&counts);
        assert_eq!(code.lengths().max(), Some(LEN_MAX_SMALL as u8));
    }

    #[test]
    fn every_symbol_comes_back() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let symbols = 1 + random.below(if seed % 10 == 0 { SYMBOLS_MAX as u64 } else { 30 });
            let counts: Vec<u64> =
                (0..symbols).map(|_| random.next_u64() >> random.below(63)).map(|c| c >> 20).collect();
            let code = Huffman::from_counts(&counts);
            let again = Huffman::from_lengths(&code.lengths().collect::<Vec<_>>()).unwrap();
            let mut writer = BitWriter::new();
            let mut put = vec![];
            while writer.len() < 400 && put.len() < 100 {
                let symbol = random.below(symbols) as usize;
                code.put(&mut writer, symbol);
                put.push(symbol);
            }
            let mut reader = BitReader::new(writer.code(STRIPPED).unwrap(), writer.len().div_ceil(8));
            for symbol in put {
                assert_eq!(again.take(&mut reader), symbol, "seed {seed}");
            }
            assert_eq!(reader.end(), Ok(()), "seed {seed}");
        }
    }

    #[test]
    fn lengths_that_are_no_complete_code_are_refused() {
        for bad in [&[] as &[u8], &[1], &[1, 2], &[1, 1, 1], &[0, 1], &[13, 1], &[2, 2, 2]] {
            assert!(Huffman::from_lengths(bad).is_err(), "{bad:?}");
        }
        assert!(Huffman::from_lengths(&[1, 2, 2]).is_ok());
    }
}
