//! Zeros that the kernel may hold in its page cache, noted so that no page that a program has
//! stored to is called a hole.
//!
//! When a program stores through a shared map, it changes a page in the kernel's cache. The change
//! becomes a WRITE when the kernel writes the page back, but the kernel sends LSEEK without writing
//! back. The page was filled by an earlier READ or WRITE. If Shoal has a hole there, at that time
//! or later, the page then held zeros. So each unit of zeros that crosses in either direction is
//! noted until the kernel forgets the inode, and counts as data.
//! Rules: the note comes before the answer. A unit counts as zeros if the part of it that crosses
//! is zeros. Only some bytes are examined, so a unit with data may be taken for zeros, but never
//! the other way round. A unit with any data is data as a whole. Memory is bounded: if an inode has
//! too many ranges, some are joined, and if there are too many inodes, the rest have no holes.
//! Rejected: writing the pages back from here (FUSE_NOTIFY_INVAL_INODE). The thread would wait in
//! the kernel for a WRITE to this process. If the process is killed meanwhile, neither the thread
//! nor the connection ever ends.
//! Left out: the kernel's write-back cache, where pages of holes are made without a request. LSEEK
//! is then not served at all.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use shoal_fs::{Error, Ino, Result, Seek};

/// Smallest page of any kernel, and block of the store (bytes).
const UNIT: u64 = 4096;
/// One byte in this many is examined in a long part of a unit. Not a power of two, since zero bytes
/// have regular places in records.
const STRIDE: usize = 257;
const RANGES_MAX: usize = 32;
const SHARDS: usize = 16;
/// Maximum inodes of one shard.
const INODES_MAX: usize = 16 << 10;
/// Range of a whole file.
const ALL: (u64, u64) = (0, u64::MAX);

#[derive(Default)]
struct Shard {
    /// Ranges in bytes, in their order, with gaps between them.
    ranges: HashMap<Ino, Vec<(u64, u64)>>,
    /// There were too many inodes. Nothing is known about those not listed.
    is_full: bool,
}

#[derive(Default)]
pub(crate) struct Zeros {
    shards: [Mutex<Shard>; SHARDS],
    inodes: AtomicUsize,
}

impl Zeros {
    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.get() as usize % SHARDS]
    }

    /// Notes a read of `asked` bytes at `at` that found `bytes`.
    pub fn read(&self, ino: Ino, at: u64, asked: usize, bytes: &[u8]) {
        self.crossed(ino, at, bytes);
        // The kernel fills the rest with zeros. The unit in which `bytes` end is judged by its
        // bytes alone.
        let (end, asked) = ((at + bytes.len() as u64).next_multiple_of(UNIT), at.saturating_add(asked as u64));
        if end < asked {
            self.note(ino, end, asked);
        }
    }

    /// Notes bytes that are written, or were read, at `at`.
    pub fn crossed(&self, ino: Ino, at: u64, bytes: &[u8]) {
        let (mut from, mut zeros) = (0, None);
        while from < bytes.len() {
            let place = at.saturating_add(from as u64);
            let len = ((UNIT - place % UNIT) as usize).min(bytes.len() - from);
            if may_be_zeros(&bytes[from..from + len]) {
                zeros.get_or_insert(place);
            } else if let Some(begin) = zeros.take() {
                self.note(ino, begin, place);
            }
            from += len;
        }
        if let Some(begin) = zeros {
            self.note(ino, begin, at.saturating_add(bytes.len() as u64));
        }
    }

    /// Notes that the unit around `at` may have become zeros, in the cache as in the store.
    pub fn cut(&self, ino: Ino, at: u64) {
        if !at.is_multiple_of(UNIT) {
            self.note(ino, at, at.saturating_add(1));
        }
    }

    fn note(&self, ino: Ino, begin: u64, end: u64) {
        let range = (begin / UNIT * UNIT, end.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX));
        let mut shard = self.shard(ino).lock();
        if let Some(ranges) = shard.ranges.get_mut(&ino) {
            insert(ranges, range);
        } else if shard.ranges.len() < INODES_MAX {
            shard.ranges.insert(ino, vec![range]);
            self.inodes.fetch_add(1, Ordering::Relaxed);
        } else {
            shard.is_full = true;
        }
    }

    /// Forgets an inode if the kernel has given back all references. `is_held` tells whether it has
    /// any.
    pub fn forget(&self, ino: Ino, is_held: impl FnOnce() -> bool) {
        if self.inodes.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut shard = self.shard(ino).lock();
        // Check under the lock: a later reference notes its zeros after this.
        if shard.ranges.contains_key(&ino) && !is_held() {
            shard.ranges.remove(&ino);
            self.inodes.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the next data or hole at or after `at` in a file of `size` bytes. `store` answers
    /// the same question for the store alone.
    pub fn seek(
        &self,
        ino: Ino,
        at: u64,
        what: Seek,
        size: u64,
        store: impl Fn(u64, Seek) -> Result<u64>,
    ) -> Result<u64> {
        // Read the notes before asking the store: at least one of the two knows a page that is
        // written back in between.
        let noted = {
            let shard = self.shard(ino).lock();
            let unknown = || if shard.is_full { vec![ALL] } else { Vec::new() };
            shard.ranges.get(&ino).cloned().unwrap_or_else(unknown)
        };
        if at >= size {
            return Err(Error::NoDevice);
        }
        let store = |at, what| match store(at, what) {
            // Round up, so that it stays at or beyond the end when it is rounded down.
            Err(Error::NoDevice) => Ok(size.next_multiple_of(UNIT)),
            outcome => outcome,
        };
        let mut from = at / UNIT * UNIT;
        while from < size {
            let stored = store(from, Seek::Data)?;
            let noted = noted.iter().find(|range| range.1 > from).copied();
            let data = (stored / UNIT * UNIT).min(noted.map_or(size, |range| range.0)).max(from).min(size);
            match what {
                Seek::Data if data < size => return Ok(data.max(at)),
                Seek::Data => break,
                Seek::Hole if data > from => return Ok(from.max(at)),
                Seek::Hole => {}
            }
            from = match noted {
                Some((begin, end)) if begin <= from => end,
                _ => store(stored, Seek::Hole)?.checked_next_multiple_of(UNIT).unwrap_or(u64::MAX),
            };
        }
        if what == Seek::Hole { Ok(size) } else { Err(Error::NoDevice) }
    }
}

/// Returns whether the examined bytes are zeros.
fn may_be_zeros(bytes: &[u8]) -> bool {
    let stride = if bytes.len() <= STRIDE { 1 } else { STRIDE };
    bytes.iter().step_by(stride).all(|&byte| byte == 0)
}

/// Adds a range to others. If there are too many, the two with the smallest gap are joined.
fn insert(ranges: &mut Vec<(u64, u64)>, (begin, end): (u64, u64)) {
    let first = ranges.partition_point(|range| range.1 < begin);
    let behind = ranges.partition_point(|range| range.0 <= end);
    if first < behind {
        let joined = (begin.min(ranges[first].0), end.max(ranges[behind - 1].1));
        ranges[first] = joined;
        ranges.drain(first + 1..behind);
        return;
    }
    ranges.insert(first, (begin, end));
    if ranges.len() > RANGES_MAX {
        let gaps = ranges.windows(2).map(|pair| pair[1].0 - pair[0].1);
        let (nearest, _) = gaps.enumerate().min_by_key(|(_, gap)| *gap).expect("several ranges");
        ranges[nearest].1 = ranges.remove(nearest + 1).1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_sim::Random;

    const FILE: Ino = Ino::new(5);

    /// A file in units: the data in the store, and possible pages of zeros in the kernel's cache.
    struct Model {
        data: Vec<bool>,
        cached: Vec<bool>,
        size: u64,
    }

    impl Model {
        fn store(&self, at: u64, what: Seek) -> Result<u64> {
            let is_data = |at: u64| self.data[(at / UNIT) as usize];
            let found = (at..self.size).find(|&at| is_data(at) == (what == Seek::Data));
            match (found, what) {
                (Some(found), _) => Ok(found),
                (None, Seek::Hole) if at < self.size => Ok(self.size),
                _ => Err(Error::NoDevice),
            }
        }

        fn expected(&self, at: u64, what: Seek) -> Option<u64> {
            let is_data = |at: u64| self.data[(at / UNIT) as usize] || self.cached[(at / UNIT) as usize];
            let found = (at..self.size).find(|&at| is_data(at) == (what == Seek::Data));
            found.or((what == Seek::Hole && at < self.size).then_some(self.size))
        }
    }

    #[test]
    fn what_the_kernel_may_have_stored_to_is_data_and_the_rest_is_as_the_store_says() {
        let mut random = Random::new(7);
        for round in 0..200 {
            let units = 1 + random.below(12);
            let size = units * UNIT - random.below(UNIT);
            let zeros = Zeros::default();
            let mut model = Model {
                data: (0..units).map(|_| random.below(2) == 0).collect(),
                cached: vec![false; units as usize],
                size,
            };
            for _ in 0..random.below(4) {
                let (first, count) = (random.below(units), 1 + random.below(3));
                let behind = (first + count).min(units);
                // Read whole units, as the kernel does, with a nonzero byte in those that have
                // data.
                let len = (behind * UNIT).min(size) - first * UNIT;
                let bytes: Vec<u8> = (0..len).map(|at| u8::from(model.data[(first + at / UNIT) as usize])).collect();
                zeros.read(FILE, first * UNIT, ((behind - first) * UNIT) as usize, &bytes);
                (first..behind).for_each(|unit| model.cached[unit as usize] = true);
            }
            for _ in 0..20 {
                let at = random.below(size + 10);
                for what in [Seek::Data, Seek::Hole] {
                    let told = zeros.seek(FILE, at, what, size, |at, what| model.store(at, what));
                    assert_eq!(told.ok(), model.expected(at, what), "round {round}: {what:?} at {at} of {size}");
                }
            }
            zeros.forget(FILE, || true);
            assert_eq!(
                zeros.seek(FILE, 0, Seek::Data, size, |at, what| model.store(at, what)).ok(),
                model.expected(0, Seek::Data)
            );
            zeros.forget(FILE, || false);
            let told = zeros.seek(FILE, 0, Seek::Data, size, |at, what| model.store(at, what));
            assert_eq!(told.ok(), model.store(0, Seek::Data).ok(), "forgotten");
        }
    }

    #[test]
    fn parts_of_a_unit_count_for_all_of_it_and_bytes_that_are_not_zeros_for_nothing() {
        let hole = |_, what| if what == Seek::Hole { Ok(0) } else { Err(Error::NoDevice) };
        let (zeros, size) = (Zeros::default(), 100 * UNIT);
        let next = |at| zeros.seek(FILE, at, Seek::Data, size, hole).ok();
        zeros.crossed(FILE, 5, b"text");
        zeros.crossed(FILE, 3 * UNIT - 1, &[1, 2]);
        zeros.crossed(FILE, 0, &[9; 3 * UNIT as usize]);
        zeros.cut(FILE, 7 * UNIT);
        assert_eq!(next(0), None);
        zeros.crossed(FILE, 9 * UNIT + 5, &[0; 3]);
        assert_eq!((next(0), next(9 * UNIT + 7), next(10 * UNIT)), (Some(9 * UNIT), Some(9 * UNIT + 7), None));
        zeros.cut(FILE, 20 * UNIT - 1);
        assert_eq!(next(10 * UNIT), Some(19 * UNIT));
        // A short answer: the unit in which it ends has data, and those after it are the kernel's
        // own zeros.
        zeros.read(FILE, 30 * UNIT, 4 * UNIT as usize, &[1; 10]);
        assert_eq!(next(20 * UNIT), Some(31 * UNIT));
        assert_eq!(zeros.seek(FILE, 31 * UNIT, Seek::Hole, size, hole), Ok(34 * UNIT));
        zeros.crossed(FILE, u64::MAX - 3, &[0; 3]);
    }

    #[test]
    fn memory_is_bounded_and_what_does_not_fit_is_data() {
        let zeros = Zeros::default();
        for step in 0..1000 {
            zeros.crossed(FILE, step * 10 * UNIT, &[0; 1]);
        }
        let ranges = zeros.shard(FILE).lock().ranges[&FILE].clone();
        assert_eq!(ranges.len(), RANGES_MAX);
        assert!(ranges.is_sorted() && ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
        assert!((0..1000).all(|step| ranges.iter().any(|range| (range.0..range.1).contains(&(step * 10 * UNIT)))));
        let none = |_, _| Err(Error::NoDevice);
        let ino = |number: usize| Ino::new((SHARDS * number + 5) as u32);
        (1..INODES_MAX + 10).for_each(|number| zeros.cut(ino(number), 1));
        assert_eq!(zeros.inodes.load(Ordering::Relaxed), INODES_MAX);
        let hole = |number| zeros.seek(ino(number), 0, Seek::Hole, 10 * UNIT, none).unwrap();
        assert_eq!((hole(3), hole(INODES_MAX + 9), hole(INODES_MAX + 99)), (UNIT, 10 * UNIT, 10 * UNIT));
    }
}
