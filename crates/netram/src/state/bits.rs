//! A set of small numbers: one bit for each.
//!
//! Owns: [`Bits`], for units of a donor and blocks of a disk. A number behind the last word is
//! never in the set. Left out: the bits in pages of the virtual log, which are bytes of a format
//! (`shoal_format::vlog`).

/// A set of numbers, one bit each.
#[derive(Clone, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    /// The empty set, with room for numbers below `count`.
    pub fn new(count: usize) -> Bits {
        Bits(vec![0; count.div_ceil(64)])
    }

    /// The set of all numbers below `count`, and of those that share the last word with them.
    pub fn all(count: usize) -> Bits {
        Bits(vec![u64::MAX; count.div_ceil(64)])
    }

    pub fn get(&self, n: usize) -> bool {
        self.0.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// Sets one bit. Bits behind the last word are 0 and stay so.
    pub fn set(&mut self, n: usize, value: bool) {
        if let Some(word) = self.0.get_mut(n / 64) {
            let bit = 1 << (n % 64);
            *word = if value { *word | bit } else { *word & !bit };
        }
    }

    /// Returns the numbers in the set below `end`.
    pub fn ones(&self, end: usize) -> impl Iterator<Item = usize> + '_ {
        let in_word = |(at, &word): (usize, &u64)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(at * 64 + bit)
            })
        };
        self.0.iter().enumerate().flat_map(in_word).take_while(move |&n| n < end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_over_words_and_none_is_behind_the_end() {
        let mut bits = Bits::new(130);
        for n in [0, 63, 64, 129, 1000] {
            bits.set(n, true);
        }
        assert_eq!(bits.ones(1000).collect::<Vec<_>>(), [0, 63, 64, 129]);
        assert_eq!(bits.ones(129).collect::<Vec<_>>(), [0, 63, 64]);
        bits.set(63, false);
        assert!(!bits.get(63) && bits.get(64) && !bits.get(1000));
        assert_eq!(Bits::all(3).ones(3).count(), 3);
    }
}
