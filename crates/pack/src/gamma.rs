//! The paper's gamma code: a unary prefix chooses a bucket, and a table gives the bits of the place
//! within the bucket.
//!
//! Owns: [`Gamma`]. Bucket k begins where bucket k-1 ends, so no value has two codes. The last
//! bucket takes all remaining values in as many bits as the field has, so each value has a code.
//! The paper built its tables by "a very simple method" and asks whether there is an algorithm for
//! the best one. Here `best` finds the best sequence of buckets that end at powers of two by
//! dynamic programming, then improves it step by step under the true costs.

use shoal_format::FormatError;

use crate::bits::{BitReader, BitWriter};

/// Maximum number of buckets of a table.
pub(crate) const BUCKETS_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gamma {
    /// Bits within each bucket.
    bits: Vec<u8>,
    /// First value of each bucket.
    first: Vec<u64>,
}

impl Gamma {
    /// Creates a table of these buckets and a last one for values of `width` bits.
    pub fn new(buckets: &[u8], width: u8) -> Result<Gamma, FormatError> {
        let refuse = |found: u64| FormatError::Range { what: "profile", field: "gamma table", found };
        if buckets.len() >= BUCKETS_MAX || width > 64 {
            return Err(refuse(buckets.len() as u64));
        }
        let mut bits = buckets.to_vec();
        bits.push(width);
        let mut first = vec![0u64];
        for &bucket in buckets {
            if bucket >= 64 {
                return Err(refuse(bucket.into()));
            }
            let next = first[first.len() - 1].checked_add(1 << bucket).ok_or_else(|| refuse(bucket.into()))?;
            first.push(next);
        }
        Ok(Gamma { bits, first })
    }

    /// Returns the best table found for values with these counts.
    pub fn best(counts: &[(u64, u64)], width: u8) -> Gamma {
        let mut by_length = [0u64; 65];
        for (value, count) in counts {
            by_length[(64 - value.leading_zeros()) as usize] += count;
        }
        let make = |buckets: &[u8]| Gamma::new(buckets, width).ok();
        let bits = |gamma: &Gamma| counts.iter().map(|(value, count)| gamma.cost(*value) as u64 * count).sum::<u64>();
        let mut buckets = powers_of_two(&by_length, width);
        let mut best = make(&buckets).map_or(u64::MAX, |gamma| bits(&gamma));
        // Each bucket shifts those after it, so under the true costs other bits than the powers of
        // two may be better.
        loop {
            let mut better = None;
            for at in 0..buckets.len() {
                let mut others = vec![];
                for changed in [buckets[at].wrapping_sub(1), buckets[at] + 1] {
                    let mut other = buckets.clone();
                    other[at] = changed;
                    others.push(other);
                }
                let mut without = buckets.clone();
                without.remove(at);
                others.push(without);
                for other in others {
                    if let Some(gamma) = make(&other)
                        && bits(&gamma) < best
                    {
                        best = bits(&gamma);
                        better = Some(other);
                    }
                }
            }
            match better {
                Some(other) => buckets = other,
                None => break,
            }
        }
        make(&buckets).or_else(|| make(&[])).expect("a table of one bucket")
    }

    /// Returns the bits within each bucket but the last, and the field's width.
    pub fn table(&self) -> (&[u8], u8) {
        let (width, buckets) = self.bits.split_last().expect("there is a last bucket");
        (buckets, *width)
    }

    /// Returns the first value of each bucket.
    pub fn firsts(&self) -> &[u64] {
        &self.first
    }

    #[inline]
    fn bucket_of(&self, value: u64) -> usize {
        self.first.iter().rposition(|first| *first <= value).unwrap_or(0)
    }

    #[inline]
    pub fn cost(&self, value: u64) -> u32 {
        let bucket = self.bucket_of(value);
        bucket as u32 + 1 + u32::from(self.bits[bucket])
    }

    /// Appends a value of the field's width.
    #[inline]
    pub fn put(&self, out: &mut BitWriter, value: u64) {
        let bucket = self.bucket_of(value);
        out.put((1 << bucket) - 1, bucket as u32 + 1);
        out.put_wide(value - self.first[bucket], self.bits[bucket].into());
    }

    #[inline]
    pub fn take(&self, code: &mut BitReader) -> Result<u64, FormatError> {
        let refuse = |found: u64| FormatError::Range { what: "inode code", field: "gamma code", found };
        let bucket = code.peek().trailing_ones() as usize;
        let (Some(&bits), Some(&first)) = (self.bits.get(bucket), self.first.get(bucket)) else {
            return Err(refuse(bucket as u64));
        };
        code.skip(bucket as u32 + 1);
        let value = code.take_wide(bits.into());
        first.checked_add(value).ok_or_else(|| refuse(value))
    }
}

/// Returns the best buckets if bucket k holds the values of some successive lengths, in as many
/// bits as the longest has.
fn powers_of_two(by_length: &[u64; 65], width: u8) -> Vec<u8> {
    let width = usize::from(width);
    // cost[k][l]: bits of all values shorter than l bits in k buckets, and where the last bucket
    // begins.
    let mut cost = vec![[(u64::MAX, 0usize); 66]; BUCKETS_MAX];
    cost[0][0] = (0, 0);
    for k in 1..BUCKETS_MAX {
        for end in 1..=width.min(63) + 1 {
            for begin in 0..end {
                let before = cost[k - 1][begin].0;
                let values: u64 = by_length[begin..end].iter().sum();
                let total = before.saturating_add(values.saturating_mul((k + end - 1) as u64));
                if before != u64::MAX && total < cost[k][end].0 {
                    cost[k][end] = (total, begin);
                }
            }
        }
    }
    let mut best = (u64::MAX, 0, 0);
    for (k, row) in cost.iter().enumerate() {
        for (end, (before, _)) in row.iter().enumerate().take(width + 2) {
            let rest: u64 = by_length[end.min(65)..].iter().sum();
            let total = before.saturating_add(rest.saturating_mul((k + 1 + width) as u64));
            if total < best.0 {
                best = (total, k, end);
            }
        }
    }
    let (_, mut k, mut end) = best;
    let mut buckets = vec![];
    while k > 0 {
        buckets.push((end - 1) as u8);
        end = cost[k][end].1;
        k -= 1;
    }
    buckets.reverse();
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::STRIPPED;
    use shoal_sim::Random;

    #[test]
    fn the_papers_table_has_the_papers_buckets() {
        // Table 3.3: buckets of 1, 3, 7 and 12 bits begin at 0, 2, 10 and 138; the fourth ends at
        // 4233.
        let gamma = Gamma::new(&[1, 3, 7, 12], 32).unwrap();
        assert_eq!(gamma.first, [0, 2, 10, 138, 4234]);
        let costs = [(0, 2), (1, 2), (2, 5), (9, 5), (10, 10), (137, 10), (138, 16), (4233, 16), (4234, 37)];
        for (value, bits) in costs {
            assert_eq!(gamma.cost(value), bits, "{value}");
        }
    }

    #[test]
    fn every_value_comes_back_under_any_table() {
        for seed in 0..500 {
            let mut random = Random::new(seed);
            let buckets: Vec<u8> = (0..random.below(BUCKETS_MAX as u64)).map(|_| random.below(60) as u8).collect();
            let width = random.below(65) as u8;
            let gamma = Gamma::new(&buckets, width).unwrap();
            let value = if width == 0 { 0 } else { random.next_u64() >> (64 - width) >> random.below(width.into()) };
            let mut writer = BitWriter::new();
            gamma.put(&mut writer, value);
            assert_eq!(writer.len() as u32, gamma.cost(value));
            let mut reader = BitReader::new(writer.code(STRIPPED).unwrap(), writer.len().div_ceil(8));
            assert_eq!(gamma.take(&mut reader), Ok(value), "seed {seed}");
            assert_eq!(reader.end(), Ok(()), "seed {seed}");
        }
    }

    #[test]
    fn the_best_table_beats_fixed_ones_and_a_code_beyond_it_is_refused() {
        let mut random = Random::new(5);
        let counts: Vec<(u64, u64)> = (0..2000).map(|_| (random.next_u64() >> (40 + random.below(20)), 1)).collect();
        let bits = |gamma: &Gamma| counts.iter().map(|(value, _)| u64::from(gamma.cost(*value))).sum::<u64>();
        let best = Gamma::best(&counts, 32);
        for other in [&[1, 3, 7, 12][..], &[8, 16, 24], &[4, 8, 12, 16, 20, 24], &[24], &[]] {
            assert!(bits(&best) <= bits(&Gamma::new(other, 32).unwrap()), "{other:?}");
        }
        let mut reader = BitReader::new(&[0xff; 8], 8);
        assert!(best.take(&mut reader).is_err());
        assert!(Gamma::new(&[63, 63, 63], 64).is_err());
        assert!(Gamma::new(&[1; BUCKETS_MAX], 64).is_err());
    }
}
