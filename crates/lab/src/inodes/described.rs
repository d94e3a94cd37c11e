//! Trees that are generated from the thesis's table 3.1.
//!
//! Owns: [`Description`], a row of the table; [`TABLE_3_1`]; [`generate`], the inodes of such a tree
//! as a function of a seed; [`Without`], what a tree can do without, to show what each property
//! costs. Rules: the number of inodes and triplets, the share of system files, the owners and the
//! most frequent size are the table's. On the root file systems, 70% of the inodes share a triplet
//! (section 3.2). The rest is ours: how the other triplets fall off, and when files were made,
//! written and read. How alike neighbours' times are was set so that gzip's bytes of the first tree's
//! stripped inodes are about the thesis's; codes of single inodes do not gain from neighbours.
//! Inodes of ext2 have a generation, which Linux 2.4 took from a counter of events since the machine
//! started.
//! Left out: names, and data except for its place on the disk.

use std::ops::Range;

use shoal_pack::{Record, Triplet};
use shoal_sim::Random;

use crate::tree::{RAW, Tree};

const S_NS: i64 = 1_000_000_000;
/// Seconds since 1970 of 1 January 2003 and 2011, when the trees were scanned.
const YEAR_2003: i64 = 1_041_379_200;
const YEAR_2011: i64 = 1_293_840_000;
const DAY: i64 = 86_400;

/// The use of a tree. Times of its files depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Files of packages, installed together.
    System,
    /// Files that users made one by one.
    Users,
}

/// A row of table 3.1.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    pub name: &'static str,
    pub inodes: u32,
    pub triplets: u32,
    /// Files of root, adm and bin (percent). The table leaves three out, for which this is ours.
    pub system_percent: f64,
    /// Owners of at least 0.1% of the files. The table leaves three out, for which this is ours.
    pub owners: u32,
    /// Whether the table has the two above.
    pub has_owners: bool,
    /// Bits of the most frequent sizes: 13 for 4 to 8 KB.
    pub size_bits: u32,
    pub uses: Use,
    pub is_ext2: bool,
    /// Whether it is one of the seven trees of figures 3.2 to 3.4.
    pub is_studied: bool,
    scanned_s: i64,
}

const fn row(
    name: &'static str,
    inodes: u32,
    triplets: u32,
    system: Option<(f64, u32)>,
    size_bits: u32,
) -> Description {
    let (system_percent, owners) = match system {
        Some(system) => system,
        None => (2.0, 150),
    };
    Description {
        name,
        inodes,
        triplets,
        system_percent,
        owners,
        has_owners: system.is_some(),
        size_bits,
        uses: Use::Users,
        is_ext2: false,
        is_studied: true,
        scanned_s: YEAR_2003,
    }
}

/// Table 3.1. The text of the thesis gives the workstation of 2010 19 owners of 0.1% each and 98.9%
/// of system files, which contradict each other; with the table's rule read as a digit, it has 9.
pub const TABLE_3_1: [Description; 10] = [
    Description { uses: Use::System, is_ext2: true, ..row("Redhat 8 root (2002)", 213_569, 119, Some((98.8, 5)), 13) },
    Description {
        uses: Use::System,
        is_ext2: true,
        ..row("Linux server root (2002)", 431_615, 165, Some((59.5, 4)), 11)
    },
    Description { is_ext2: true, ..row("Linux server /home (2002)", 378_842, 78, Some((4.5, 4)), 17) },
    Description { uses: Use::System, ..row("UNIX server (all files)", 1_618_855, 10_417, Some((28.8, 158)), 10) },
    row("Faculty directories", 1_048_577, 2299, None, 12),
    row("Grads directories", 1_141_004, 7554, None, 8),
    row("SSRC shared dirs", 789_376, 1229, None, 11),
    Description {
        uses: Use::System,
        is_ext2: true,
        is_studied: false,
        scanned_s: YEAR_2011,
        ..row("Workstation root (2010)", 614_848, 154, Some((98.9, 9)), 13)
    },
    Description {
        uses: Use::System,
        is_ext2: true,
        is_studied: false,
        scanned_s: YEAR_2011,
        ..row("Linux server root (2010)", 1_897_649, 325, Some((91.1, 45)), 13)
    },
    Description {
        is_ext2: true,
        is_studied: false,
        scanned_s: YEAR_2011,
        ..row("Linux server /home (2010)", 1_444_090, 160, Some((1.3, 12)), 13)
    },
];

/// Properties that are left out of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Without {
    /// All inodes have the same owner and permissions.
    pub owners: bool,
    pub generations: bool,
    /// Every time is that of the tree's making.
    pub times: bool,
}

/// Share of the system's inodes with the most frequent triplet.
const SYSTEM_FIRST: f64 = 0.72;
/// Share of a user's inodes with the user's most frequent triplet.
const USER_FIRST: f64 = 0.6;
/// The n-th triplet after an owner's first is as frequent as the n-th power of a half, and of
/// 1/n squared at least.
const FALL_OFF: f64 = 0.5;

/// Modes of an owner's inodes, the most frequent first.
const MODES: [u16; 24] = [
    0o100_644, 0o100_755, 0o040_755, 0o120_777, 0o100_600, 0o040_700, 0o100_664, 0o100_444, 0o100_640, 0o040_775,
    0o100_700, 0o100_555, 0o100_400, 0o040_750, 0o100_666, 0o104_755, 0o040_777, 0o102_755, 0o100_660, 0o100_775,
    0o041_777, 0o042_775, 0o100_440, 0o100_711,
];
/// Ids of root, bin and adm.
const SYSTEM_IDS: [u32; 3] = [0, 1, 3];
const USER_ID: u32 = 500;
/// Maximum number of inodes that a directory's worth of files has.
const GROUP_MAX: usize = 40;
/// Number of installations of a system.
const INSTALLATIONS: u64 = 24;

/// Owners, each with the triplets and how many inodes have each.
struct Owner {
    is_system: bool,
    triplets: Vec<(Triplet, usize)>,
}

/// Divides `count` in proportion to the weights, with at least `least` for each.
fn divide(count: usize, weights: &[f64], least: usize) -> Vec<usize> {
    let total: f64 = weights.iter().sum();
    let spare = count.saturating_sub(least * weights.len());
    let mut parts: Vec<usize> =
        weights.iter().map(|weight| least + (spare as f64 * weight / total).floor() as usize).collect();
    if let Some(first) = parts.first_mut() {
        *first = 0;
    }
    let rest: usize = parts.iter().sum();
    if let Some(first) = parts.first_mut() {
        *first = count.saturating_sub(rest);
    }
    parts
}

fn triplet(uid: u32, number: usize) -> Triplet {
    let (mode, group) = (MODES[number % MODES.len()], (number / MODES.len()) as u32);
    Triplet { uid, gid: if group == 0 { uid } else { 1000 + group }, mode }
}

fn owners(of: &Description, inodes: usize) -> Vec<Owner> {
    let system_inodes = (inodes as f64 * of.system_percent / 100.0).round() as usize;
    // A few system files are all root's.
    let ids = if of.system_percent > 10.0 { &SYSTEM_IDS[..] } else { &SYSTEM_IDS[..1] };
    let users = of.owners as usize - ids.len();
    let least = inodes.div_ceil(1000) + 1;
    let mut counts = divide(system_inodes, &[0.95, 0.035, 0.015][..ids.len()], 0);
    let weights: Vec<f64> = (0..users).map(|user| 1.0 / (user as f64 + 3.0)).collect();
    counts.extend(divide(inodes - system_inodes, &weights, least.min((inodes - system_inodes) / users.max(1))));
    let uids = ids.iter().copied().chain((0..users as u32).map(|user| USER_ID + user));
    // An owner of more files has more triplets, too.
    let kinds = divide(of.triplets as usize, &counts.iter().map(|count| (*count as f64).sqrt()).collect::<Vec<_>>(), 2);
    uids.zip(counts)
        .zip(kinds)
        .map(|((uid, count), kinds)| {
            let is_system = SYSTEM_IDS.contains(&uid);
            let first = if is_system { SYSTEM_FIRST } else { USER_FIRST };
            let rest = (1..kinds.max(1)).map(|n| FALL_OFF.powi(n as i32).max(0.1 / (n as f64).powi(2)));
            let rest: Vec<f64> = rest.collect();
            let scale = (1.0 - first) / rest.iter().sum::<f64>().max(f64::MIN_POSITIVE);
            let weights: Vec<f64> = std::iter::once(first).chain(rest.iter().map(|weight| weight * scale)).collect();
            let triplets = divide(count, &weights, 1).into_iter().enumerate();
            Owner { is_system, triplets: triplets.map(|(number, count)| (triplet(uid, number), count)).collect() }
        })
        .collect()
}

/// Returns a number between 1 and `most` whose logarithm is spread evenly.
fn log_uniform(random: &mut Random, most: i64) -> i64 {
    let unit = random.below(1 << 53) as f64 / (1u64 << 53) as f64;
    (most as f64).powf(unit) as i64
}

/// Draws the number of bits of a file's size: the frequent one, and others the less the farther.
fn size(random: &mut Random, bits: u32) -> u64 {
    let mut away = 0;
    while random.below(100) < 68 && away < 12 {
        away += 1;
    }
    let bits = if random.below(2) == 0 { bits + away } else { bits.saturating_sub(away) }.min(28);
    if bits == 0 { 0 } else { (1 << (bits - 1)) + random.below(1 << (bits - 1)) }
}

/// When the files of a group were made, written and read (seconds since 1970).
struct Times {
    made: i64,
    /// What a package's files have in common: when they were written, and read.
    package: Option<[i64; 2]>,
    now: i64,
}

impl Times {
    fn draw(random: &mut Random, of: &Description, is_system: bool) -> Times {
        let now = of.scanned_s;
        if !is_system || of.uses != Use::System {
            return Times { made: now - random.below(1000 * DAY as u64) as i64, package: None, now };
        }
        // Most packages came with the system, the others later.
        let installation = if random.below(100) < 85 { INSTALLATIONS } else { random.below(INSTALLATIONS) } as i64;
        let made = now - (1 + installation * installation) * 2 * DAY + random.below(1800) as i64;
        let written = made - 30 * DAY - random.below(500 * DAY as u64) as i64;
        // All files of one package in four were read after its installation.
        let read = if random.below(4) == 0 { made + log_uniform(random, now - made) } else { 0 };
        Times { made, package: Some([written, read]), now }
    }

    /// Returns ctime, mtime and atime of the next file (seconds).
    fn next(&mut self, random: &mut Random) -> [i64; 3] {
        let Some([written, read]) = &mut self.package else { return self.next_of_user(random) };
        // An installation writes some tens of files a second, a build takes minutes.
        self.made = (self.made + i64::from(random.below(20) == 0)).min(self.now);
        *written += if random.below(4) == 0 { random.below(60) as i64 } else { 0 };
        let is_used = random.below(20) == 0;
        let own = if is_used { self.made + log_uniform(random, self.now - self.made + 2) } else { self.made };
        [self.made, (*written).min(self.made), own.max(*read).min(self.now)]
    }

    fn next_of_user(&mut self, random: &mut Random) -> [i64; 3] {
        self.made = (self.made + log_uniform(random, 10_000)).min(self.now);
        // Half of a user's files came from elsewhere with the time that they had there, or were
        // renamed, or got other permissions since.
        let written = if random.below(2) == 0 { self.made } else { self.made - log_uniform(random, 800 * DAY) };
        // Half of the files were never read since.
        let read =
            if random.below(2) == 0 { self.made } else { self.made + log_uniform(random, self.now - self.made + 2) };
        [self.made, written, read.min(self.now)]
    }
}

fn records(of: &Description, inodes: usize, without: Without, seed: u64) -> Vec<Record> {
    let mut random = Random::new(seed);
    let mut groups: Vec<(bool, Vec<Triplet>)> = vec![];
    for owner in owners(of, inodes) {
        let all = owner.triplets.iter().flat_map(|(triplet, count)| std::iter::repeat_n(*triplet, *count));
        let all = random.shuffled(all);
        let mut rest = &all[..];
        while !rest.is_empty() {
            let (group, after) = rest.split_at(rest.len().min(1 + random.index(GROUP_MAX)));
            groups.push((owner.is_system, group.to_vec()));
            rest = after;
        }
    }
    let groups = random.shuffled(groups);
    let mut records = Vec::with_capacity(inodes);
    let mut events = 1u32;
    for (is_system, group) in groups {
        let mut times = Times::draw(&mut random, of, is_system);
        if random.below(200) == 0 {
            // The machine starts again.
            events = 1 + random.below(1 << 16) as u32;
        }
        for triplet in group {
            // Making an inode is one event. Changes of names in directories are the others.
            events += 1 + random.below(4) as u32;
            let [ctime, mtime, atime] =
                if without.times { [of.scanned_s; 3] } else { times.next(&mut random) }.map(|s| s * S_NS);
            let kind = triplet.mode & 0o170_000;
            let (links, len) = match kind {
                0o040_000 => (2 + log_uniform(&mut random, 16) as u32, 4096),
                0o120_000 => (1, 5 + random.below(30)),
                _ => (if random.below(200) == 0 { 2 } else { 1 }, size(&mut random, of.size_bits)),
            };
            let Triplet { uid, gid, mode } = if without.owners { triplet_of_all() } else { triplet };
            let generation = if of.is_ext2 && !without.generations { events } else { 1 };
            let plain = Record { mode, links, uid, gid, size: len, ctime, mtime, atime, ..Record::default() };
            records.push(Record { btime: ctime, generation, ..plain });
        }
    }
    records
}

fn triplet_of_all() -> Triplet {
    triplet(0, 0)
}

/// Returns the inodes as ext2 has them, with files one behind the other on the disk.
pub fn raw(records: &[Record]) -> Vec<[u8; RAW]> {
    const BLOCK: u64 = 4096;
    let mut next = 1000u64;
    let place = |record: &Record| {
        let mut raw = super::controls::ext2(record);
        raw[100..104].copy_from_slice(&record.generation.to_le_bytes());
        let blocks = record.size.div_ceil(BLOCK);
        let mut put =
            |pointer: u64, at: usize| raw[40 + at * 4..44 + at * 4].copy_from_slice(&(pointer as u32).to_le_bytes());
        // A short symbolic link is in the inode, in the place of the pointers.
        if record.mode & 0o170_000 != 0o120_000 {
            (0..blocks.min(12)).for_each(|block| put(next + block, block as usize));
            // Behind the first twelve blocks there is an indirect block, and behind its 1024 a doubly indirect one.
            for (at, behind) in [(12, 12), (13, 12 + 1024)].into_iter().filter(|(_, behind)| blocks > *behind) {
                put(next + behind, at);
            }
            next += blocks + blocks / 1024 + u64::from(blocks > 12);
        }
        raw
    };
    records.iter().map(place).collect()
}

/// Generates a tree with a share of the description's inodes, but enough for its triplets.
pub fn generate(of: &Description, share: f64, without: Without, seed: u64) -> Tree {
    let range: Range<usize> = (of.triplets as usize * 4).max(4000)..of.inodes as usize;
    let inodes = ((f64::from(of.inodes) * share) as usize).clamp(range.start.min(range.end), range.end);
    Tree { name: of.name.into(), records: records(of, inodes, without, seed), raw: None, unread: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inodes::shape::Shape;

    #[test]
    fn a_tree_has_the_properties_of_its_description() {
        for of in &TABLE_3_1 {
            let tree = generate(of, 0.1, Without::default(), 1);
            let shape = Shape::of(&tree);
            assert_eq!(shape.triplets, u64::from(of.triplets), "{}", of.name);
            assert!((shape.system_percent - of.system_percent).abs() < 0.1, "{}: {shape:?}", of.name);
            assert_eq!(shape.owners, u64::from(of.owners), "{}", of.name);
            assert_eq!(shape.size_bits, of.size_bits, "{}", of.name);
        }
        let one = |seed| generate(&TABLE_3_1[0], 0.1, Without::default(), seed).records;
        assert_eq!(one(1), one(1));
        assert_ne!(one(1), one(2));
    }

    #[test]
    fn a_tree_can_do_without_owners_generations_and_times() {
        let without = Without { owners: true, generations: true, times: true };
        let tree = generate(&TABLE_3_1[1], 0.01, without, 1);
        let first = tree.records[0];
        let same =
            |record: &Record| (record.triplet(), record.generation, record.ctime) == (first.triplet(), 1, first.ctime);
        assert!(tree.records.iter().all(same));
    }

    #[test]
    fn every_time_is_before_the_scan() {
        for of in &TABLE_3_1[..7] {
            let tree = generate(of, 0.01, Without::default(), 1);
            assert!(tree.records.iter().all(|record| record.ctime.max(record.atime) <= of.scanned_s * S_NS));
            assert!(tree.records.iter().all(|record| record.mtime <= record.ctime));
        }
    }
}
