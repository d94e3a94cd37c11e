//! Times as differences from other times, in the largest unit that divides them.
//!
//! Owns: which reference and which unit a time is coded with, and the times a block offers as references. A time refers to a base of
//! its block or to a time of the same inode coded before it. Units are a second (what archives keep), 4 ms and 1 ms (the
//! ticks with which kernels stamp files, whose phase is the same for all files of an hour), and a nanosecond. What was
//! chosen is a *class*, a small number; the classes of all four times are coded as one symbol, since programs leave few patterns:
//! a file just written, one unpacked from an archive, one whose mode was changed.
//!
//! Rules: choosing is deterministic but not part of the format: any class that is allowed decodes.

use shoal_format::FormatError;

use crate::codec::BASES_MAX;
use crate::paper::{S_NS, unzigzag, zigzag};
use crate::record::{Record, TIMES};

pub(crate) const UNITS: usize = 4;
/// Units in nanoseconds.
const UNIT_NS: [i64; UNITS] = [S_NS, 4_000_000, 1_000_000, 1];
/// Classes of one reference: equal, or one of the units.
const OF_REFERENCE: usize = 1 + UNITS;
/// Bits of a class.
pub(crate) const CLASS_BITS: u32 = 5;

/// A time, and its part below a second.
#[derive(Clone, Copy, Debug, Default)]
struct Split {
    time: i64,
    below_s: u32,
}

impl Split {
    #[inline]
    fn new(time: i64) -> Split {
        Split { time, below_s: time.rem_euclid(S_NS) as u32 }
    }

    /// The largest unit that divides the difference from another time.
    #[inline]
    fn unit(self, from: Split, difference: i64) -> usize {
        let apart = self.below_s.abs_diff(from.below_s);
        if apart == 0 {
            // A difference that overflowed is the difference of other times.
            if difference % S_NS == 0 { 0 } else { 3 }
        } else if apart % 1_000_000 != 0 || difference % 1_000_000 != 0 {
            3
        } else if apart % 4_000_000 == 0 && difference % 4_000_000 == 0 {
            1
        } else {
            2
        }
    }

    /// About how many bits the difference from another time takes; a unit saves its own, rounded.
    #[inline]
    fn bits(self, from: Split) -> u32 {
        let difference = self.time.wrapping_sub(from.time);
        if difference == 0 {
            return 0;
        }
        let apart = self.below_s.abs_diff(from.below_s);
        let saved = if apart == 0 {
            30
        } else if apart % 4_000_000 == 0 {
            22
        } else if apart % 1_000_000 == 0 {
            20
        } else {
            0
        };
        (65 - difference.unsigned_abs().leading_zeros()).saturating_sub(saved).max(1)
    }
}

/// How the times of a record are coded.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chosen {
    /// By the order of coding.
    pub classes: [u8; TIMES],
    pub differences: [u64; TIMES],
}

/// The unit of a class; none when the time is equal to its reference.
#[inline]
pub(crate) fn unit_of(class: u8) -> Option<usize> {
    (usize::from(class) % OF_REFERENCE).checked_sub(1)
}

#[inline]
pub(crate) fn choose(record: &Record, bases: &[i64; BASES_MAX]) -> Chosen {
    let mut references = [Split::default(); BASES_MAX + TIMES];
    for (reference, base) in references.iter_mut().zip(bases) {
        *reference = Split::new(*base);
    }
    let mut chosen = Chosen::default();
    for (at, time) in record.times().into_iter().enumerate() {
        let time = Split::new(time);
        let mut best = (u32::MAX, 0);
        // Times of the same inode first: an equal one is the more regular pattern.
        for reference in (BASES_MAX..BASES_MAX + at).chain(0..BASES_MAX) {
            let bits = time.bits(references[reference]);
            if bits < best.0 {
                best = (bits, reference);
            }
            if bits == 0 {
                break;
            }
        }
        let reference = best.1;
        let difference = time.time.wrapping_sub(references[reference].time);
        let class = if difference == 0 {
            0
        } else {
            let unit = time.unit(references[reference], difference);
            let difference = match unit {
                0 => difference / UNIT_NS[0],
                1 => difference / UNIT_NS[1],
                2 => difference / UNIT_NS[2],
                _ => difference,
            };
            chosen.differences[at] = zigzag(difference);
            1 + unit
        };
        chosen.classes[at] = (reference * OF_REFERENCE + class) as u8;
        references[BASES_MAX + at] = time;
    }
    chosen
}

/// The opposite of `choose`.
#[inline]
pub(crate) fn restore(chosen: &Chosen, bases: &[i64; BASES_MAX]) -> Result<[i64; TIMES], FormatError> {
    let mut references = [0; BASES_MAX + TIMES];
    references[..BASES_MAX].copy_from_slice(bases);
    for at in 0..TIMES {
        let class = usize::from(chosen.classes[at]);
        let (reference, unit) = (class / OF_REFERENCE, unit_of(chosen.classes[at]));
        if reference >= BASES_MAX + at {
            return Err(FormatError::Range { what: "inode code", field: "time", found: class as u64 });
        }
        let difference = unit.map_or(0, |unit| unzigzag(chosen.differences[at]).wrapping_mul(UNIT_NS[unit]));
        references[BASES_MAX + at] = references[reference].wrapping_add(difference);
    }
    let mut times = [0; TIMES];
    times.copy_from_slice(&references[BASES_MAX..]);
    Ok(times)
}

/// Bits a further base must save in its block: those it takes, and some for what it costs to choose among more.
const GAIN_MIN: u32 = 80;
/// Records of a block.
const RECORDS: usize = 16;
/// Candidates for bases: two of each kind of time.
const CANDIDATES: usize = 2 * TIMES;

/// The bases of a block of at most 16 records, and how many there are: those of a few candidates that save the most.
/// Candidates are the medians and the most frequent values of ctime, btime, mtime and atime; to try all times would take
/// longer than the coding.
pub fn bases(records: &[Record]) -> ([i64; BASES_MAX], usize) {
    let records = &records[..records.len().min(RECORDS)];
    let mut times = [Split::default(); RECORDS * TIMES];
    // What each time costs by the references there are: at first those within its inode.
    let mut costs = [64u8; RECORDS * TIMES];
    let places = times.chunks_exact_mut(TIMES).zip(costs.chunks_exact_mut(TIMES));
    for (record, (times, costs)) in records.iter().zip(places) {
        for (at, time) in record.times().into_iter().enumerate() {
            times[at] = Split::new(time);
            for earlier in 0..at {
                costs[at] = costs[at].min(times[at].bits(times[earlier]) as u8);
            }
        }
    }
    let (times, costs) = (&times[..records.len() * TIMES], &mut costs[..records.len() * TIMES]);
    let (candidates, candidate_count) = candidates(times);
    let mut with = [[0u8; RECORDS * TIMES]; CANDIDATES];
    for (with, candidate) in with.iter_mut().zip(&candidates[..candidate_count]) {
        for (with, time) in with.iter_mut().zip(times) {
            *with = time.bits(*candidate) as u8;
        }
    }
    let (mut chosen, mut count) = ([0; BASES_MAX], 0);
    while count < BASES_MAX {
        let gain = |with: &[u8]| {
            with.iter().zip(&*costs).map(|(with, cost)| u32::from(cost.saturating_sub(*with))).sum::<u32>()
        };
        let gains = with[..candidate_count].iter().map(|with| gain(&with[..times.len()]));
        let Some((gain, best)) = gains.zip(0usize..).max_by_key(|(gain, at)| (*gain, usize::MAX - at)) else { break };
        if gain < GAIN_MIN && count > 0 {
            break;
        }
        chosen[count] = candidates[best].time;
        count += 1;
        for (cost, with) in costs.iter_mut().zip(&with[best]) {
            *cost = (*cost).min(*with);
        }
    }
    (chosen, count)
}

/// The median and the most frequent time of each kind, each once.
fn candidates(times: &[Split]) -> ([Split; CANDIDATES], usize) {
    let (mut candidates, mut count) = ([Split::default(); CANDIDATES], 0);
    let mut add = |candidate: Split| {
        if candidates[..count].iter().all(|known: &Split| known.time != candidate.time) {
            candidates[count] = candidate;
            count += 1;
        }
    };
    for kind in 0..TIMES {
        let mut sorted = [Split::default(); RECORDS];
        let records = times.len() / TIMES;
        let sorted = &mut sorted[..records];
        for (place, time) in sorted.iter_mut().zip(times.iter().skip(kind).step_by(TIMES)) {
            *place = *time;
        }
        sorted.sort_unstable_by_key(|split| split.time);
        let Some(median) = sorted.get(records / 2) else { continue };
        add(*median);
        let longest = sorted.chunk_by(|a, b| a.time == b.time).max_by_key(|run| run.len());
        if let Some(run) = longest.filter(|run| run.len() > 2) {
            add(run[0]);
        }
    }
    (candidates, count)
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
            let bases = if round % 3 == 0 { [i64::MIN, i64::MAX, -1] } else { [1_000_000_000, 5, 0] };
            let chosen = choose(&record, &bases);
            assert_eq!(restore(&chosen, &bases), Ok(record.times()), "{record:?}");
            for at in 0..TIMES {
                assert_eq!(unit_of(chosen.classes[at]).is_none(), chosen.differences[at] == 0);
            }
        }
    }

    #[test]
    fn a_difference_is_told_in_the_largest_unit_that_divides_it() {
        let of = |difference: i64| {
            let record = Record { ctime: 5 + difference, ..Record::default() };
            let chosen = choose(&record, &[5; 3]);
            (chosen.classes[0], chosen.differences[0])
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
            chosen.classes[at] = ((BASES_MAX + at) * OF_REFERENCE) as u8;
            assert!(restore(&chosen, &[0; BASES_MAX]).is_err());
        }
    }

    #[test]
    fn a_block_gets_a_base_for_each_cluster_of_its_times() {
        // Unpacked now, from an archive of long ago.
        let (now, then) = (1_700_000_000_123_456_789, 1_500_000_000 * S_NS);
        let unpacked = |at: i64| {
            let mut record = Record::default();
            record.set_times([now + at * 1000, now + at * 1000 - 300, then, now + at * 1000]);
            record
        };
        let records: Vec<Record> = (0..16).map(unpacked).collect();
        let (found, count) = bases(&records);
        assert_eq!(count, 2, "{found:?}");
        assert!(found[..2].contains(&then) && found[..2].iter().any(|base| (base - now).abs() < 20_000), "{found:?}");
        assert_eq!(bases(&[]).1, 0);
        assert_eq!(bases(&tree(1, 1)).1, 1);
    }
}
