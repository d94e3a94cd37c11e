//! Bits of each field of PostMark's inodes, as in the thesis's appendix C.
//!
//! Owns: [`Fields`]: inodes as PostMark leaves them, under gamma tables of described trees; the
//! [`APPENDIX_C`] beside which they stand; [`Table`], gamma's tables made in a simple way, and what
//! whole codes have with them. Rules: the tables come from another tree than the inodes, as they did
//! in mramfs; whose, the thesis does not tell, so that the tables of all seven are tried. It built
//! them by "a very simple method", which it does not tell either; four buckets as in its table 3.3,
//! cut at the quarters of the lengths that occur, are such a method.

use shoal_pack::{Field, Precision, Profile, Record, Triplets};
use shoal_sim::Random;

use super::measure::Subject;
use crate::tree::Tree;

/// A field's bits in the thesis: mean, least and most. Its uncompressed inode had 291.
pub const APPENDIX_C: [(Field, [f64; 3]); 7] = [
    (Field::Triplet, [5.0, 5.0, 5.0]),
    (Field::Size, [11.0, 2.0, 34.0]),
    (Field::Ctime, [31.0, 31.0, 31.0]),
    (Field::Mtime, [18.0, 18.0, 18.0]),
    (Field::Atime, [18.0, 18.0, 18.0]),
    (Field::Links, [2.0, 2.0, 6.0]),
    // "Vers.", the generation; ours has flags and device numbers with it.
    (Field::Optional, [2.0, 2.0, 2.0]),
];

const INODES: u64 = 5000;
const S_NS: i64 = 1_000_000_000;
/// Seconds since 1970 of 1 January 2003, when the trees of the tables were scanned. The later
/// PostMark runs, the more bits its times have.
const STARTED_S: i64 = 1_041_379_200;
/// Of six codes of a file's inode, two are of the empty one: mramfs codes an inode when it is
/// created, and again when it is written, appended to, or read.
const EMPTY_OF_SIX: u64 = 2;
/// Duration of its PostMark (seconds).
const TOOK_S: u64 = 50;

/// Bits of each of the fields of appendix C.
#[derive(Default)]
pub struct Fields {
    /// For each tree's tables, the best that are found: mean, least and greatest of each field.
    pub best: Vec<[[f64; 3]; 7]>,
    /// As `best`, of tables that are made in a simple way.
    pub simple: Vec<[[f64; 3]; 7]>,
    /// Bytes of gamma codes with simple tables: of each tree with its own, and with the worst others.
    pub whole: Vec<[f64; 2]>,
}

impl Fields {
    /// Returns the least and the greatest mean of a field over the trees' tables.
    pub fn means(of: &[[[f64; 3]; 7]], field: usize) -> [f64; 2] {
        let means = of.iter().map(|fields| fields[field][0]);
        [means.clone().fold(f64::INFINITY, f64::min), means.fold(0.0, f64::max)]
    }
}

/// A table of gamma's with its buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Table {
    /// Bits within each bucket, and its first value.
    buckets: Vec<(u32, u64)>,
}

fn length(value: u64) -> u32 {
    64 - value.leading_zeros()
}

impl Table {
    /// Cuts the lengths of values at their quarters; the last bucket has the field's width.
    fn simple(values: &[u64], width: u32) -> Table {
        let mut lengths: Vec<u32> = values.iter().map(|value| length(*value)).collect();
        lengths.sort_unstable();
        let mut bits: Vec<u32> =
            (1..4).filter_map(|quarter| lengths.get(lengths.len() * quarter / 4).copied()).collect();
        bits.push(width);
        bits.dedup();
        let mut first = 0u64;
        let bucket = |bits: u32| {
            let begin = first;
            first = first.saturating_add(1u64.checked_shl(bits).unwrap_or(u64::MAX));
            (bits, begin)
        };
        Table { buckets: bits.into_iter().map(bucket).collect() }
    }

    fn cost(&self, value: u64) -> u32 {
        let bucket = self.buckets.iter().rposition(|(_, first)| *first <= value).unwrap_or(0);
        bucket as u32 + 1 + self.buckets[bucket].0
    }
}

fn postmark(seed: u64) -> Tree {
    let mut random = Random::new(seed);
    let record = |_| {
        let ctime = (STARTED_S + random.below(TOOK_S) as i64) * S_NS;
        // Half of the files were read again, some seconds after their creation.
        let atime = if random.below(2) == 0 { ctime } else { ctime + random.below(TOOK_S) as i64 * S_NS };
        let size = if random.below(6) < EMPTY_OF_SIX { 0 } else { 1 + random.below(4095) };
        Record {
            mode: 0o100_644,
            links: 1,
            size,
            ctime,
            mtime: ctime,
            atime,
            btime: ctime,
            generation: 1,
            ..Record::default()
        }
    };
    Tree { name: "PostMark".into(), records: (0..INODES).map(record).collect(), raw: None, unread: 0 }
}

/// Moves the sign of a difference into its lowest bit.
fn unsigned(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63) as u64
}

/// Returns the number that a code of a field holds, and the field's width.
fn number(record: &Record, field: Field, triplets: &Triplets) -> (u64, u32) {
    const EPOCH_S: i64 = 946_684_800;
    match field {
        Field::Triplet => (triplets.find(record.triplet()).map_or(u64::from(u16::MAX) >> 2, u64::from), 14),
        Field::Size => (record.size, 64),
        Field::Ctime => (unsigned(record.ctime / S_NS - EPOCH_S), 33),
        Field::Mtime => (unsigned((record.mtime - record.ctime) / S_NS), 33),
        Field::Atime => (unsigned((record.atime - record.mtime) / S_NS), 33),
        Field::Links => (record.links.into(), 32),
        _ => (u64::from(record.generation.wrapping_sub(1)), 32),
    }
}

fn spread(bits: impl Iterator<Item = u32>) -> [f64; 3] {
    let bits: Vec<u32> = bits.collect();
    let (count, bits) = (bits.len().max(1), bits.into_iter());
    let mean = bits.clone().map(f64::from).sum::<f64>() / count as f64;
    [mean, bits.clone().min().unwrap_or(0).into(), bits.max().unwrap_or(0).into()]
}

/// The fields of a code, which has one bit each for flags and device numbers of 0 besides.
const FIELDS: [Field; 7] =
    [Field::Triplet, Field::Size, Field::Ctime, Field::Mtime, Field::Atime, Field::Links, Field::Optional];
const OTHER_BITS: u32 = 2;

fn numbers(records: &[Record], field: Field, triplets: &Triplets) -> Vec<u64> {
    records.iter().map(|record| number(record, field, triplets).0).collect()
}

fn simple_tables(tree: &Tree, triplets: &Triplets) -> [Table; 7] {
    FIELDS.map(|field| {
        Table::simple(&numbers(&tree.records, field, triplets), number(&tree.records[0], field, triplets).1)
    })
}

/// Returns the mean length of a tree's codes, padded to whole bytes.
fn mean_bytes(tree: &Tree, triplets: &Triplets, tables: &[Table; 7]) -> f64 {
    let bits = |record: &Record| {
        let fields = FIELDS.iter().zip(tables).map(|(field, table)| table.cost(number(record, *field, triplets).0));
        fields.sum::<u32>() + OTHER_BITS
    };
    // A code that is longer than the record gives way to it.
    let bytes = |record: &Record| (bits(record).div_ceil(8) as usize).min(record.verbatim_len());
    tree.records.iter().map(bytes).sum::<usize>() as f64 / tree.records.len() as f64
}

/// Measures PostMark's inodes under the tables of other trees, and these under simple tables.
pub fn measure(trees: &[Tree], triplets: &[Triplets], profiles: &[Vec<Profile>], seed: u64) -> Fields {
    let tree = postmark(seed);
    let mut fields = Fields::default();
    for (triplets, profiles) in triplets.iter().zip(profiles) {
        let gamma = profiles.iter().find(|own| own.name() == "gamma" && own.precision == Precision::Seconds);
        let subject = Subject::new(&tree, Precision::Seconds, triplets);
        let sizes = gamma.and_then(|profile| subject.sizes(profile).ok()).filter(|sizes| sizes.inodes > sizes.verbatim);
        let Some(sizes) = sizes else { continue };
        fields.best.push(APPENDIX_C.map(|(field, _)| {
            let place = Field::ALL.iter().position(|other| *other == field).unwrap_or(0);
            let (sum, least, most) = sizes.fields[place];
            [sum as f64 / (sizes.inodes - sizes.verbatim) as f64, least.into(), most.into()]
        }));
    }
    let tables: Vec<[Table; 7]> =
        trees.iter().zip(triplets).map(|(tree, triplets)| simple_tables(tree, triplets)).collect();
    for ((at, of), triplets) in trees.iter().enumerate().zip(triplets) {
        let mut table = tables[at].iter();
        fields.simple.push(APPENDIX_C.map(|(field, _)| {
            let table = table.next();
            spread(numbers(&tree.records, field, triplets).iter().filter_map(|value| Some(table?.cost(*value))))
        }));
        let others = (0..trees.len()).filter(|other| *other != at);
        let worst = others.map(|other| mean_bytes(of, triplets, &tables[other])).fold(0.0, f64::max);
        fields.whole.push([mean_bytes(of, triplets, &tables[at]), worst]);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simple_table_has_a_bucket_for_each_quarter_of_the_lengths() {
        let values: Vec<u64> = (0..400)
            .map(|n| {
                if n < 100 {
                    1
                } else if n < 200 {
                    5
                } else if n < 300 {
                    100
                } else {
                    3000
                }
            })
            .collect();
        let table = Table::simple(&values, 32);
        // As table 3.3's: 0 in the first bucket, then 2, and so on.
        assert_eq!(table.buckets, [(3, 0), (7, 8), (12, 136), (32, 4232)]);
        assert_eq!([0, 7, 8, 135, 136, 4231, 4232].map(|value| table.cost(value)), [4, 4, 9, 9, 15, 15, 36]);
        let same = Table::simple(&[0; 8], 33);
        assert_eq!((same.cost(0), same.cost(1)), (1, 35));
    }
}
