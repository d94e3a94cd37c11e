//! Times as differences from other times, in the largest unit that divides them.
//!
//! Owns: the choice of reference and unit for each time, and the times that a block offers as
//! references. A time refers to a base of its block or to a time of the same inode that is coded
//! before it. Units are a second (the precision of archives), 4 ms and 1 ms (the ticks with which
//! kernels stamp files, whose phase is the same for all files of an hour), and a nanosecond. The
//! choice is a *relation*, a small number. The relations of all four times are coded as one symbol,
//! because programs leave few patterns: a file just written, one unpacked from an archive, one
//! whose mode was changed.
//!
//! Rules: choosing is deterministic but not part of the format: every allowed relation decodes.

use shoal_format::FormatError;

use crate::codec::BASES_MAX;
use crate::paper::{S_NS, unzigzag, zigzag};
use crate::record::{Record, TIMES};

pub(crate) const UNITS: usize = 4;
/// Units in nanoseconds.
const UNIT_NS: [i64; UNITS] = [S_NS, 4_000_000, 1_000_000, 1];
/// Bits that each unit saves, rounded.
const UNIT_BITS: [u32; UNITS] = [30, 22, 20, 0];
/// Relations per reference: equal, or one of the units.
const OF_REFERENCE: usize = 1 + UNITS;
/// Bits of a relation.
pub(crate) const RELATION_BITS: u32 = 5;

/// A time and its remainders below the larger units.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Split {
    time: i64,
    below_s: u32,
    below_4ms: u32,
    below_1ms: u32,
}

impl Split {
    #[inline]
    fn new(time: i64) -> Split {
        let below_s = time.rem_euclid(S_NS) as u32;
        Split { time, below_s, below_4ms: below_s % 4_000_000, below_1ms: below_s % 1_000_000 }
    }

    /// Returns the largest unit that divides the difference from another time.
    #[inline]
    fn unit(self, from: Split) -> usize {
        // Sums avoid branches: each unit divides the previous one.
        3 - usize::from(self.below_1ms == from.below_1ms)
            - usize::from(self.below_4ms == from.below_4ms)
            - usize::from(self.below_s == from.below_s)
    }

    /// Estimates the bits of the difference from another time, which must not be equal.
    #[inline]
    fn bits(self, from: Split) -> u32 {
        let difference = self.time.wrapping_sub(from.time);
        let length = 65 - difference.unsigned_abs().leading_zeros();
        length.saturating_sub(UNIT_BITS[self.unit(from)]).max(1)
    }
}

/// Returns the times of a record in the order in which they are coded.
#[inline]
pub(crate) fn split(record: &Record) -> [Split; TIMES] {
    record.times().map(Split::new)
}

/// The times that a block offers as references.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bases {
    splits: [Split; BASES_MAX],
    count: usize,
}

impl Bases {
    /// Creates bases from these times, at most [`BASES_MAX`] of them.
    pub fn new(times: &[i64]) -> Bases {
        let mut bases = Bases::default();
        for time in times.iter().take(BASES_MAX) {
            bases.push(Split::new(*time));
        }
        bases
    }

    fn push(&mut self, split: Split) {
        self.splits[self.count] = split;
        self.count += 1;
    }

    pub fn times(&self) -> impl ExactSizeIterator<Item = i64> {
        self.splits[..self.count].iter().map(|split| split.time)
    }
}

/// The coded form of the times of a record.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chosen {
    /// In the order of coding.
    pub relations: [u8; TIMES],
    pub differences: [u64; TIMES],
}

/// Returns the unit of a relation, or `None` if the time equals its reference.
#[inline]
pub(crate) fn unit_of(relation: u8) -> Option<usize> {
    (usize::from(relation) % OF_REFERENCE).checked_sub(1)
}

#[inline]
pub(crate) fn choose(times: &[Split; TIMES], bases: &Bases) -> Chosen {
    let mut references = [Split::default(); BASES_MAX + TIMES];
    references[..BASES_MAX].copy_from_slice(&bases.splits);
    references[BASES_MAX..].copy_from_slice(times);
    let mut chosen = Chosen::default();
    for (at, time) in times.iter().enumerate() {
        // Take the first of equal references. Times of the same inode come first, because they are
        // the more regular pattern.
        let bases = 0..bases.count.max(1);
        let mut all = (BASES_MAX..BASES_MAX + at).chain(bases.clone());
        if let Some(reference) = all.find(|reference| references[*reference].time == time.time) {
            chosen.relations[at] = (reference * OF_REFERENCE) as u8;
            continue;
        }
        // No branches here: which of the different references is nearest is unpredictable.
        let mut best = u32::MAX;
        for (earlier, reference) in times[..at].iter().zip(0u32..) {
            best = best.min(time.bits(*earlier) << 4 | reference);
        }
        for reference in bases {
            best = best.min(time.bits(references[reference]) << 4 | (TIMES + reference) as u32);
        }
        // Here the inode's own times are numbered before the bases; among `references` they follow
        // the bases.
        let place = best as usize & 15;
        let reference = if place < TIMES { place + BASES_MAX } else { place - TIMES };
        let difference = time.time.wrapping_sub(references[reference].time);
        let mut unit = time.unit(references[reference]);
        let mut quotient = difference / UNIT_NS[unit];
        if quotient.wrapping_mul(UNIT_NS[unit]) != difference {
            // The difference of two times that lie far apart has overflowed.
            (unit, quotient) = (3, difference);
        }
        chosen.differences[at] = zigzag(quotient);
        chosen.relations[at] = (reference * OF_REFERENCE + 1 + unit) as u8;
    }
    chosen
}

/// Restores the times, as the inverse of `choose`.
#[inline]
pub(crate) fn restore(chosen: &Chosen, bases: &Bases) -> Result<[i64; TIMES], FormatError> {
    let mut references = [0; BASES_MAX + TIMES];
    for (reference, split) in references.iter_mut().zip(&bases.splits) {
        *reference = split.time;
    }
    for at in 0..TIMES {
        let relation = usize::from(chosen.relations[at]);
        let (reference, unit) = (relation / OF_REFERENCE, unit_of(chosen.relations[at]));
        if reference >= BASES_MAX + at {
            return Err(FormatError::Range { what: "inode code", field: "time", found: relation as u64 });
        }
        let difference = unit.map_or(0, |unit| unzigzag(chosen.differences[at]).wrapping_mul(UNIT_NS[unit]));
        references[BASES_MAX + at] = references[reference].wrapping_add(difference);
    }
    let mut times = [0; TIMES];
    times.copy_from_slice(&references[BASES_MAX..]);
    Ok(times)
}

/// Bits that one more base must save in its block: its own bits, and some for the cost of choosing
/// among more bases.
const GAIN_MIN: u32 = 80;
/// Records of a block.
const RECORDS: usize = 16;

impl Bases {
    /// Chooses the bases of a block of at most 16 records: those of a few candidates that save the
    /// most. Candidates are the most frequent ctime, btime, mtime and atime, or an arbitrary one
    /// where all differ. Trying all times would take longer than the coding.
    pub fn of(records: &[Record]) -> Bases {
        let mut splits = [[Split::default(); TIMES]; RECORDS];
        let count = records.len().min(RECORDS);
        for (splits, record) in splits.iter_mut().zip(records) {
            *splits = split(record);
        }
        Bases::of_times(&splits[..count])
    }

    /// Like [`Bases::of`], for the times of at most 16 records.
    pub(crate) fn of_times(records: &[[Split; TIMES]]) -> Bases {
        let origin = records.first().map_or(0, |times| times[0].time);
        let mut columns = [Column::default(); TIMES];
        let mut frequent = [Frequent::default(); TIMES];
        for (row, times) in records.iter().enumerate().take(RECORDS) {
            for (at, time) in times.iter().enumerate() {
                columns[at].set(row, *time, origin);
                frequent[at].add(*time);
            }
        }
        // Cost of each time with the references so far. At first these are the earlier times of the
        // inode.
        let mut costs = [[0u32; RECORDS]; TIMES];
        costs[0][..records.len().min(RECORDS)].fill(64);
        for at in 1..TIMES {
            let mut least = columns[at].costs(|row| columns[0].at(row));
            for earlier in &columns[1..at] {
                let other = columns[at].costs(|row| earlier.at(row));
                least.iter_mut().zip(other).for_each(|(least, other)| *least = (*least).min(other));
            }
            // Rows without a record stay at 0 and so gain nothing.
            costs[at][..records.len().min(RECORDS)].copy_from_slice(&least[..records.len().min(RECORDS)]);
        }
        let (mut candidates, mut count) = ([Split::default(); TIMES], 0);
        for frequent in frequent.iter().filter(|frequent| frequent.most > 0) {
            if candidates[..count].iter().all(|known| known.time != frequent.best.time) {
                candidates[count] = frequent.best;
                count += 1;
            }
        }
        let mut with = [[[0u32; RECORDS]; TIMES]; TIMES];
        for (with, candidate) in with.iter_mut().zip(&candidates[..count]) {
            let place = Place::new(*candidate, origin);
            for (with, column) in with.iter_mut().zip(&columns) {
                *with = column.costs(|_| place);
            }
        }
        let mut bases = Bases::default();
        while bases.count < BASES_MAX {
            let gain = |with: &[[u32; RECORDS]; TIMES]| {
                let pairs = costs.as_flattened().iter().zip(with.as_flattened());
                pairs.map(|(cost, with)| cost - cost.min(with)).sum::<u32>()
            };
            let gains = with[..count].iter().map(gain).zip(0usize..);
            let Some((gain, best)) = gains.max_by_key(|(gain, at)| (*gain, usize::MAX - at)) else { break };
            if gain < GAIN_MIN && bases.count > 0 {
                break;
            }
            bases.push(candidates[best]);
            let pairs = costs.as_flattened_mut().iter_mut().zip(with[best].as_flattened());
            pairs.for_each(|(cost, with)| *cost = (*cost).min(*with));
        }
        bases
    }
}

/// A time with just enough precision to judge distances: units of 2^30 ns from an origin, and the
/// remainders below the larger units.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    coarse: i32,
    below_s: u32,
    below_4ms: u32,
    below_1ms: u32,
}

impl Place {
    #[inline]
    fn new(split: Split, origin: i64) -> Place {
        // 2^29 units are eighteen years. Anything farther away only counts as far.
        let coarse = (split.time.wrapping_sub(origin) >> 30).clamp(-(1 << 29), 1 << 29) as i32;
        Place { coarse, below_s: split.below_s, below_4ms: split.below_4ms, below_1ms: split.below_1ms }
    }
}

/// One of the four times of each record in a block, in arrays that the compiler can vectorize.
#[derive(Clone, Copy, Debug, Default)]
struct Column {
    coarse: [i32; RECORDS],
    below_s: [u32; RECORDS],
    below_4ms: [u32; RECORDS],
    below_1ms: [u32; RECORDS],
}

impl Column {
    #[inline]
    fn set(&mut self, row: usize, split: Split, origin: i64) {
        let place = Place::new(split, origin);
        self.coarse[row] = place.coarse;
        self.below_s[row] = place.below_s;
        self.below_4ms[row] = place.below_4ms;
        self.below_1ms[row] = place.below_1ms;
    }

    #[inline]
    fn at(&self, row: usize) -> Place {
        Place {
            coarse: self.coarse[row],
            below_s: self.below_s[row],
            below_4ms: self.below_4ms[row],
            below_1ms: self.below_1ms[row],
        }
    }

    /// Estimates the bits that each time takes as a difference from a reference.
    #[inline]
    fn costs(&self, from: impl Fn(usize) -> Place) -> [u32; RECORDS] {
        let mut costs = [0; RECORDS];
        for (row, cost) in costs.iter_mut().enumerate() {
            let from = from(row);
            let apart = (self.coarse[row] - from.coarse).abs();
            // The exponent of a float gives the length of the number: 127 stands for 1. The length
            // of 0 is 0.
            let length = ((apart as f32).to_bits() >> 23).saturating_sub(126);
            let saved = u32::from(self.below_1ms[row] == from.below_1ms) * 20
                + u32::from(self.below_4ms[row] == from.below_4ms) * 2
                + u32::from(self.below_s[row] == from.below_s) * 8;
            *cost = length + 30 - saved;
        }
        costs
    }
}

/// Finds a frequent time among those shown to it. It counts by a hash, so two times may count as
/// one; the only cost is a worse candidate.
#[derive(Clone, Copy, Debug, Default)]
struct Frequent {
    counts: [u8; RECORDS],
    most: u8,
    best: Split,
}

impl Frequent {
    #[inline]
    fn add(&mut self, time: Split) {
        let count = &mut self.counts[(time.time as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 60];
        *count += 1;
        if *count > self.most {
            self.most = *count;
            self.best = time;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{arbitrary, tree};
    use shoal_sim::Random;

    #[test]
    fn all_times_come_back_from_any_bases() {
        let mut random = Random::new(7);
        for round in 0..20_000 {
            let mut record = arbitrary(&mut random);
            if round % 2 == 0 {
                let near = |random: &mut Random| {
                    let unit = UNIT_NS[random.below(4) as usize];
                    1_000_000_000 + (random.below(9) as i64 - 4) * unit
                };
                record.set_times([0; 4].map(|_| near(&mut random)));
            }
            let bases = Bases::new(if round % 3 == 0 { &[i64::MIN, i64::MAX, -1] } else { &[1_000_000_000, 5] });
            let chosen = choose(&split(&record), &bases);
            assert_eq!(restore(&chosen, &bases), Ok(record.times()), "{record:?}");
            for at in 0..TIMES {
                assert_eq!(unit_of(chosen.relations[at]).is_none(), chosen.differences[at] == 0);
            }
        }
    }

    #[test]
    fn a_difference_is_told_in_the_largest_unit_that_divides_it() {
        let of = |difference: i64| {
            let record = Record { ctime: 5 + difference, ..Record::default() };
            let chosen = choose(&split(&record), &Bases::new(&[5]));
            (chosen.relations[0], chosen.differences[0])
        };
        assert_eq!(of(0), (0, 0));
        assert_eq!(of(3 * S_NS), (1, 6));
        assert_eq!(of(-S_NS), (1, 1));
        assert_eq!(of(8_000_000), (2, 4));
        assert_eq!(of(5_000_000), (3, 10));
        assert_eq!(of(-7), (4, 13));
    }

    #[test]
    fn a_reference_that_is_not_there_yet_is_refused() {
        for at in 0..TIMES {
            let mut chosen = Chosen::default();
            chosen.relations[at] = ((BASES_MAX + at) * OF_REFERENCE) as u8;
            assert!(restore(&chosen, &Bases::default()).is_err());
        }
    }

    #[test]
    fn a_block_gets_a_base_for_each_cluster_of_its_times() {
        // Unpacked now, from an old archive.
        let (now, then) = (1_700_000_000_123_456_789, 1_500_000_000 * S_NS);
        let unpacked = |at: i64| {
            let mut record = Record::default();
            record.set_times([now + at * 1000, now + at * 1000 - 300, then, now + at * 1000]);
            record
        };
        let records: Vec<Record> = (0..16).map(unpacked).collect();
        let found: Vec<i64> = Bases::of(&records).times().collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.contains(&then) && found.iter().any(|base| (base - now).abs() < 20_000), "{found:?}");
        assert_eq!(Bases::of(&[]).times().len(), 0);
        assert_eq!(Bases::of(&tree(1, 1)).times().len(), 1);
    }
}
