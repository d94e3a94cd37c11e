//! Memory that is shared by files kept whole and by a cache of blocks for all others.
//!
//! Owns: [`fixed`], [`adapts`] and [`knows`], which replay a recording; [`Missed`], what reached the
//! bulk device. Rules: consecutive blocks of one opening that the cache lacks are one request. A
//! threshold that sets itself looks back at a period only. It compares what the openings cost that
//! missed and would not have, with those that hit and would have missed. Left out: devices (`threshold`).

use std::collections::{BTreeMap, HashMap};

use super::record::{Opening, Recorded};

/// Blocks of the cache, and what a smaller file takes (bytes).
const BLOCK: u64 = 64 << 10;
const PAGE: u64 = 4 << 10;
/// Openings between two looks at the threshold, and how much better a change must be.
const PERIOD: usize = 2000;
const BETTER: f64 = 1.1;
/// The smallest and the largest threshold that is tried (powers of two), and the first.
const LEVELS: [u32; 2] = [12, 26];
const FIRST: u32 = 20;
/// Share of the memory that the cache always has (percent).
const CACHE_LEAST: u64 = 2;
/// Shares of the memory that are tried for kept files (percent).
const KEPT: [u64; 6] = [0, 20, 40, 60, 80, 95];

/// What reached the bulk device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missed {
    pub requests: u64,
    pub bytes: u64,
    /// The threshold at the end, how often it changed, and the bytes of files that moved (bytes).
    pub threshold: u64,
    pub changes: u64,
    pub moved: u64,
}

/// Sums over a growing sequence of weights.
struct Sums(Vec<u64>);

impl Sums {
    fn add(&mut self, at: usize, weight: i64) {
        let mut at = at + 1;
        while at < self.0.len() {
            self.0[at] = self.0[at].wrapping_add_signed(weight);
            at += at & at.wrapping_neg();
        }
    }

    /// Sum of the weights before `end`.
    fn before(&self, end: usize) -> u64 {
        let (mut sum, mut at) = (0u64, end);
        while at > 0 {
            sum = sum.wrapping_add(self.0[at]);
            at -= at & at.wrapping_neg();
        }
        sum
    }
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    touched: usize,
    weight: u64,
    is_cached: bool,
}

/// A cache that drops the block that was not read for the longest time.
struct Cache {
    capacity: u64,
    used: u64,
    touches: usize,
    seen: HashMap<(usize, u64), Seen>,
    by_age: BTreeMap<usize, (usize, u64)>,
    sums: Sums,
}

/// What an opening met in the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Met {
    requests: u64,
    bytes: u64,
    /// What it would cost if nothing of it were there.
    cost: f64,
    /// Size that the cache must have so that none of the opening's blocks is missing;
    /// `u64::MAX`: one of them was never there.
    needs: u64,
}

/// Cost of reading so many bytes from the bulk device, in requests. On a disk, a request takes as long
/// as a megabyte.
fn cost(bytes: u64) -> f64 {
    1.0 + bytes as f64 / 1e6
}

/// Blocks of an opening, with their weights.
fn blocks(size: u64, read: u64) -> impl Iterator<Item = (u64, u64)> {
    let weight = move |block: u64| (size - block * BLOCK).min(BLOCK).next_multiple_of(PAGE);
    (0..read.div_ceil(BLOCK)).map(move |block| (block, weight(block)))
}

impl Cache {
    fn new(recorded: &Recorded, capacity: u64) -> Cache {
        let touches: u64 = recorded.openings.iter().map(|opening| opening.read.div_ceil(BLOCK)).sum();
        let sums = Sums(vec![0; touches as usize + 1]);
        Cache { capacity, used: 0, touches: 0, seen: HashMap::new(), by_age: BTreeMap::new(), sums }
    }

    fn read(&mut self, opening: Opening, size: u64) -> Met {
        let (mut met, mut follows) = (Met { cost: cost(opening.read), ..Met::default() }, false);
        for (block, weight) in blocks(size, opening.read) {
            let key = (opening.file, block);
            let before = self.seen.get(&key).copied();
            let depth = before.map(|seen| self.sums.before(self.touches) - self.sums.before(seen.touched + 1));
            met.needs = met.needs.max(depth.map_or(u64::MAX, |depth| depth + weight));
            if let Some(seen) = before {
                self.sums.add(seen.touched, -(seen.weight as i64));
                self.by_age.remove(&seen.touched);
            }
            let hits = before.is_some_and(|seen| seen.is_cached);
            if !hits {
                self.used += weight;
                met.bytes += weight;
                met.requests += u64::from(!follows);
            }
            follows = !hits;
            self.sums.add(self.touches, weight as i64);
            self.by_age.insert(self.touches, key);
            self.seen.insert(key, Seen { touched: self.touches, weight, is_cached: true });
            self.touches += 1;
            self.shrink();
        }
        met
    }

    fn set_capacity(&mut self, capacity: u64) {
        self.capacity = capacity;
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.used > self.capacity {
            let Some((_, key)) = self.by_age.pop_first() else { return };
            let seen = self.seen.get_mut(&key).expect("every block of the cache was seen");
            seen.is_cached = false;
            self.used -= seen.weight;
        }
    }

    /// Drops the blocks of files that are kept whole from now on.
    fn leave(&mut self, is_kept: impl Fn(usize) -> bool) {
        let gone: Vec<(usize, u64)> = self.seen.keys().copied().filter(|&(file, _)| is_kept(file)).collect();
        for key in gone {
            let Some(seen) = self.seen.remove(&key) else { continue };
            self.sums.add(seen.touched, -(seen.weight as i64));
            self.by_age.remove(&seen.touched);
            self.used -= if seen.is_cached { seen.weight } else { 0 };
        }
    }
}

/// Memory for files in the store.
fn takes(bytes: u64, kept: u64) -> u64 {
    bytes * kept / 100
}

fn replay(recorded: &Recorded, cache: &mut Cache, is_kept: impl Fn(usize) -> bool) -> Missed {
    let mut missed = Missed::default();
    for &opening in recorded.openings.iter().filter(|opening| !is_kept(opening.file)) {
        let met = cache.read(opening, recorded.sizes[opening.file]);
        missed.requests += met.requests;
        missed.bytes += met.bytes;
    }
    missed
}

/// Keeps files up to a threshold. `None`: they do not fit.
pub fn fixed(recorded: &Recorded, memory: u64, kept: u64, threshold: u64) -> Option<Missed> {
    let left = memory.checked_sub(takes(recorded.up_to(threshold).bytes, kept))?;
    let missed = replay(recorded, &mut Cache::new(recorded, left), |file| recorded.sizes[file] <= threshold);
    Some(Missed { threshold, ..missed })
}

/// Keeps the files with the most openings for each byte, known beforehand, as many as serve best.
pub fn knows(recorded: &Recorded, memory: u64, kept: u64) -> Missed {
    let mut openings = vec![0u64; recorded.sizes.len()];
    recorded.openings.iter().for_each(|opening| openings[opening.file] += 1);
    let mut order: Vec<usize> = (0..openings.len()).collect();
    let density = |file: usize| openings[file] as f64 / recorded.sizes[file].max(1) as f64;
    order.sort_by(|&one, &other| density(other).total_cmp(&density(one)));
    let tried = KEPT.iter().map(|percent| {
        let (mut room, mut is_kept) = (memory * percent / 100, vec![false; openings.len()]);
        for &file in &order {
            let size = takes(recorded.sizes[file], kept);
            (is_kept[file], room) = if size <= room { (true, room - size) } else { (false, room) };
        }
        let used = memory * percent / 100 - room;
        replay(recorded, &mut Cache::new(recorded, memory - used), |file| is_kept[file])
    });
    tried.min_by_key(|missed| missed.requests).unwrap_or_default()
}

/// The openings of a period: the size of each file, and what it met; nothing if the file was kept.
type Period = Vec<(u64, Option<Met>)>;

/// A threshold that sets itself.
struct Adapting<'a> {
    recorded: &'a Recorded,
    memory: u64,
    kept: u64,
    /// The threshold is two to the power of this; one below the smallest: nothing is kept.
    level: u32,
    cache: Cache,
}

fn threshold(level: u32) -> u64 {
    if level < LEVELS[0] { 0 } else { 1 << level }
}

impl Adapting<'_> {
    fn stored(&self, level: u32) -> u64 {
        takes(self.recorded.up_to(threshold(level)).bytes, self.kept)
    }

    fn fits(&self, level: u32) -> bool {
        self.stored(level) + self.memory * CACHE_LEAST / 100 <= self.memory
    }

    fn set(&mut self, level: u32) -> u64 {
        let moved = self.stored(level).abs_diff(self.stored(self.level));
        self.level = level;
        let (recorded, threshold) = (self.recorded, threshold(level));
        self.cache.leave(|file| recorded.sizes[file] <= threshold);
        self.cache.set_capacity(self.memory - self.stored(level));
        moved
    }

    /// Returns by how much another level would have paid: what it saves for all that it costs.
    fn pays(&self, period: &Period, level: u32) -> f64 {
        let (left, limit) = (self.memory - self.stored(level), threshold(level));
        let (mut saved, mut lost) = (0.0, 1.0);
        for &(size, met) in period {
            match met {
                // It was kept, and would not be.
                None if size > limit => lost += cost(size),
                None => {}
                Some(met) if met.requests > 0 && (size <= limit || met.needs <= left) => saved += met.cost,
                Some(met) if met.requests == 0 && size > limit && met.needs > left => lost += met.cost,
                Some(_) => {}
            }
        }
        saved / lost
    }

    /// Returns the level that would have paid most.
    fn next(&self, period: &Period) -> Option<u32> {
        let levels = (LEVELS[0] - 1..=LEVELS[1]).filter(|&level| level != self.level && self.fits(level));
        let paying = levels.map(|level| (self.pays(period, level), level)).filter(|&(pays, _)| pays > BETTER);
        paying.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, level)| level)
    }
}

/// Lets the threshold set itself by what the last period shows.
pub fn adapts(recorded: &Recorded, memory: u64, kept: u64) -> Missed {
    let cache = Cache::new(recorded, memory);
    let mut adapting = Adapting { recorded, memory, kept, level: LEVELS[0] - 1, cache };
    let first = (LEVELS[0] - 1..=FIRST).rev().find(|&level| adapting.fits(level)).unwrap_or(LEVELS[0] - 1);
    adapting.set(first);
    let mut missed = Missed::default();
    for openings in recorded.openings.chunks(PERIOD) {
        let mut period = Period::with_capacity(openings.len());
        for &opening in openings {
            let size = recorded.sizes[opening.file];
            let met = (size > threshold(adapting.level)).then(|| adapting.cache.read(opening, size));
            missed.requests += met.map_or(0, |met| met.requests);
            missed.bytes += met.map_or(0, |met| met.bytes);
            period.push((size, met));
        }
        if let Some(level) = adapting.next(&period) {
            missed.changes += 1;
            missed.moved += adapting.set(level);
        }
    }
    Missed { threshold: threshold(adapting.level), ..missed }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads files of these sizes as a whole, in this order.
    fn recorded(sizes: &[u64], order: &[usize]) -> Recorded {
        let openings = order.iter().map(|&file| Opening { file, read: sizes[file] }).collect();
        Recorded { sizes: sizes.to_vec(), openings, others: vec![] }
    }

    #[test]
    fn a_run_of_missing_blocks_is_one_request() {
        let recorded = recorded(&[3 * BLOCK, BLOCK], &[0, 1, 0, 1]);
        let all = fixed(&recorded, 4 * BLOCK, 100, 0).unwrap();
        assert_eq!((all.requests, all.bytes), (2, 4 * BLOCK), "both fit");
        let few = fixed(&recorded, 2 * BLOCK, 100, 0).unwrap();
        assert_eq!((few.requests, few.bytes), (4, 8 * BLOCK), "the large file pushes everything out");
    }

    #[test]
    fn what_is_kept_is_never_read_and_takes_memory_from_the_cache() {
        let recorded = recorded(&[PAGE, BLOCK], &[0, 1, 0, 1]);
        let kept = fixed(&recorded, BLOCK + PAGE, 100, PAGE).unwrap();
        assert_eq!((kept.requests, kept.bytes), (1, BLOCK));
        assert_eq!(fixed(&recorded, BLOCK, 100, PAGE).unwrap().requests, 2, "the block never fits");
        assert_eq!(fixed(&recorded, PAGE - 1, 100, PAGE), None);
        assert!(fixed(&recorded, PAGE - 1, 50, PAGE).is_some(), "compressed");
    }

    #[test]
    fn depths_say_which_size_of_cache_would_have_sufficed() {
        let recorded = recorded(&[BLOCK; 4], &[0, 1, 2, 0, 0]);
        for capacity in 1..=4 {
            let mut cache = Cache::new(&recorded, capacity * BLOCK);
            let met: Vec<Met> = recorded.openings.iter().map(|&opening| cache.read(opening, BLOCK)).collect();
            assert_eq!(met[..3].iter().map(|met| met.needs).collect::<Vec<_>>(), [u64::MAX; 3]);
            assert_eq!((met[3].needs, met[3].requests), (3 * BLOCK, u64::from(capacity < 3)));
            assert_eq!((met[4].needs, met[4].requests), (BLOCK, 0));
        }
    }

    #[test]
    fn a_threshold_falls_where_files_are_kept_for_nothing_and_rises_where_they_are_missed() {
        // Two large files in turn; the small ones are read once, and take the memory of a large one.
        let large = 4u64 << 20;
        let mut sizes = vec![large, large];
        sizes.extend(vec![512 << 10; 8]);
        let order: Vec<usize> = (2..10).chain((0..20_000).map(|n| n % 2)).collect();
        let wasted = recorded(&sizes, &order);
        let (memory, none) = (2 * large + (200 << 10), 0);
        let missed = adapts(&wasted, memory, 100);
        assert!(missed.threshold < 512 << 10 && missed.changes > 0, "{missed:?}");
        let kept = fixed(&wasted, memory, 100, 1 << 20).unwrap();
        assert!(missed.requests < kept.requests / 2, "{missed:?} {kept:?}");
        assert!(missed.requests >= fixed(&wasted, memory, 100, none).unwrap().requests);
        // Many files of 2 MiB, each read again after all others: a cache never has them, memory would.
        let sizes = vec![2 << 20; 20];
        let order: Vec<usize> = (0..20_000).map(|n| n % 20).collect();
        let rises = recorded(&sizes, &order);
        let missed = adapts(&rises, 44 << 20, 100);
        assert!(missed.threshold >= 1 << 20, "{missed:?}");
    }

    #[test]
    fn whoever_knows_all_misses_no_more_than_the_best_cache_alone() {
        let recorded = recorded(&[BLOCK, 8 * BLOCK, PAGE], &[0, 1, 2, 0, 1, 2, 0, 1, 2]);
        for memory in [PAGE, BLOCK, 8 * BLOCK, 20 * BLOCK] {
            let alone = fixed(&recorded, memory, 100, 0).unwrap();
            assert!(knows(&recorded, memory, 100).requests <= alone.requests, "{memory}");
        }
    }
}
