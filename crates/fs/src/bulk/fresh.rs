//! Large files' data that may not be durable yet. Volatile; rebuilt at recovery.
//!
//! - Ranges of file blocks whose extents are marked NEW, each with the number of the last write that filled it. A flush
//!   that covers this number lets the mark be cleared. A range never joins one that a flush already submitted covers:
//!   a file written without pause would otherwise never be settled.
//! - What is known of the bytes behind a file's end in its last block ([`Tail`]).
//! - The last write into a file, of fresh blocks or in place. Files share the places where it is kept, so it may be later
//!   than it was, never earlier.
//! - The last write into a file that a flush of this file alone covers. Forgotten, it only costs a flush.
//! - Files whose old contents were cut off whole, and whose new ones are not settled yet ([`Replaced`]).
//!
//! Entries of a file change only under its inode lock, tails under its data lock, too. A forgotten tail only costs a flush.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_format::extent::FileBlock;

use super::replaced::Replaced;
use crate::Ino;
use crate::planted::{Bug, is_planted};

/// Ranges of one file kept apart at most, beside those that wait for a flush under way.
const RANGES_MAX: usize = 8192;
/// That many more ranges before they are joined anew: it takes a look at all of them.
const RANGES_STEP: usize = 1024;
/// Tails remembered at most.
const TAILS_MAX: usize = 1 << 16;
/// Files remembered at most whose own flush covers them.
const COVERED_MAX: usize = 1 << 16;
/// Places for the last writes of files.
const WRITES: usize = 1024;

/// Start of a range to its end and the number of the last write into it.
type Ranges = BTreeMap<FileBlock, (FileBlock, u64)>;

/// Contents of a file's last block behind the file's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Zeros, or nothing readable after a power loss: the block is NEW, and a flush comes before that is cleared.
    Clean,
    /// Perhaps other bytes, or zeros that are not durable: this process cut the file, or a write failed.
    Ragged,
    /// Unchanged since the store was opened: this process put nothing there.
    Untouched,
    Unknown,
}

#[derive(Default)]
struct Tails {
    /// True: the file's tail is clean; false: it is ragged.
    known: HashMap<Ino, bool>,
    /// Some were forgotten: a file that is not listed may have been touched.
    overflowed: bool,
}

pub(crate) struct Fresh {
    files: Mutex<HashMap<Ino, Ranges>>,
    tails: Mutex<Tails>,
    writes: Box<[AtomicU64]>,
    covered: Mutex<HashMap<Ino, u64>>,
    pub replaced: Replaced,
}

impl Default for Fresh {
    fn default() -> Fresh {
        Fresh {
            files: Mutex::default(),
            tails: Mutex::default(),
            // Number 1 stands for what an earlier process wrote ([`super::Bulk`]).
            writes: (0..WRITES).map(|_| AtomicU64::new(1)).collect(),
            covered: Mutex::default(),
            replaced: Replaced::default(),
        }
    }
}

/// Removes `[start, end)` from the ranges.
fn cut(ranges: &mut Ranges, start: FileBlock, end: FileBlock) {
    if start >= end {
        return;
    }
    if let Some((&from, &(to, write))) = ranges.range(..start).next_back()
        && to > start
    {
        ranges.insert(from, (start, write));
        if to > end {
            ranges.insert(end, (to, write));
        }
    }
    while let Some((&from, &(to, write))) = ranges.range(start..end).next() {
        ranges.remove(&from);
        if to > end {
            ranges.insert(end, (to, write));
        }
    }
}

/// Fewer ranges: those of later writes than `noted` that follow each other become one, with what lies between them. The others
/// stay apart for the flush that covers them.
fn joined(ranges: &Ranges, noted: u64) -> Ranges {
    let mut joined = Ranges::new();
    for (&start, &(end, write)) in ranges {
        match joined.last_entry() {
            Some(mut last) if last.get().1 > noted && write > noted => {
                let latest = last.get().1.max(write);
                last.insert((end, latest));
            }
            _ => drop(joined.insert(start, (end, write))),
        }
    }
    joined
}

impl Fresh {
    /// Takes note of the last write that a flush is to cover. What is listed from then on joins no range of such writes; without the
    /// lock blocks listed between the look at the number and the note of it would take a range along that the flush covers.
    pub fn note<T>(&self, note: impl FnOnce() -> T) -> T {
        let _files = self.files.lock();
        note()
    }

    /// Blocks `[start, end)` of `ino` are mapped NEW, filled by writes up to number `write`. `noted` tells the last write that was
    /// noted for a flush so far.
    pub fn add(&self, ino: Ino, start: FileBlock, end: FileBlock, write: u64, noted: impl FnOnce() -> u64) {
        let mut files = self.files.lock();
        let noted = noted();
        let ranges = files.entry(ino).or_default();
        cut(ranges, start, end);
        let before = ranges.range(..start).next_back().map(|(&from, &range)| (from, range));
        match before {
            Some((from, (to, old))) if to == start && is_planted(Bug::JoinSubmitted) => {
                ranges.insert(from, (end, old));
            }
            Some((from, (to, old))) if to == start && old > noted => {
                ranges.insert(from, (end, write.max(old)));
            }
            _ => {
                ranges.insert(start, (end, write));
            }
        }
        if ranges.len() > RANGES_MAX && ranges.len().is_multiple_of(RANGES_STEP) {
            *ranges = joined(ranges, noted);
        }
    }

    /// The file is about to get NEW blocks. Before the record that maps them commits: a thread that settles all files behind
    /// that record must find this one, and then waits for its lock.
    pub fn list(&self, ino: Ino) {
        self.files.lock().entry(ino).or_default();
    }

    /// Write `number` went into the file.
    pub fn wrote(&self, ino: Ino, number: u64) {
        self.writes[ino.get() as usize % WRITES].fetch_max(number, Ordering::AcqRel);
        self.replaced.wrote(ino);
    }

    /// The number of the last write into the file, or a later one.
    pub fn last_write(&self, ino: Ino) -> u64 {
        self.writes[ino.get() as usize % WRITES].load(Ordering::Acquire)
    }

    /// A flush of the file's ranges, which were looked up after write `number`, covers its writes up to there. Blocks that were
    /// not in its map then are NEW, and listed.
    pub fn cover(&self, ino: Ino, number: u64) {
        let mut covered = self.covered.lock();
        if covered.len() >= COVERED_MAX && !covered.contains_key(&ino) {
            covered.clear();
        }
        let known = covered.entry(ino).or_default();
        *known = number.max(*known);
    }

    /// The last write into the file that a flush of it covers; 0: none is known.
    pub fn covered(&self, ino: Ino) -> u64 {
        self.covered.lock().get(&ino).copied().unwrap_or(0)
    }

    /// Files whose new contents are to be durable before the record that cut off the old ones is. Asked by every fsync.
    pub fn pending(&self, flushed: u64) -> Vec<Ino> {
        self.replaced.pending(|ino| self.is_settled(ino) && self.last_write(ino) <= flushed.max(self.covered(ino)))
    }

    /// Blocks `[start, end)` are not NEW any more: unmapped or turned unwritten. The file stays listed, so that its
    /// flag is looked after.
    pub fn remove(&self, ino: Ino, start: FileBlock, end: FileBlock) {
        if let Some(ranges) = self.files.lock().get_mut(&ino) {
            cut(ranges, start, end);
        }
    }

    /// The ranges a flush up to write `flushed` covers, ascending; `None` when the file is not listed.
    pub fn settled(&self, ino: Ino, flushed: u64) -> Option<Vec<(FileBlock, FileBlock)>> {
        let files = self.files.lock();
        let settled = |(&start, &(end, write)): (&FileBlock, &(FileBlock, u64))| {
            (write <= flushed || is_planted(Bug::ClearUnflushed)).then_some((start, end))
        };
        files.get(&ino).map(|ranges| ranges.iter().filter_map(settled).collect())
    }

    /// Is nothing of the file NEW?
    pub fn is_settled(&self, ino: Ino) -> bool {
        self.files.lock().get(&ino).is_none_or(BTreeMap::is_empty)
    }

    /// Takes a file off the list if nothing of it is left.
    pub fn unlist(&self, ino: Ino) {
        let mut files = self.files.lock();
        if files.get(&ino).is_some_and(BTreeMap::is_empty) {
            files.remove(&ino);
        }
    }

    /// Forgets all about a file.
    pub fn forget(&self, ino: Ino) {
        self.files.lock().remove(&ino);
        self.tails.lock().known.remove(&ino);
        self.covered.lock().remove(&ino);
    }

    pub fn is_empty(&self) -> bool {
        self.files.lock().is_empty()
    }

    /// Files with NEW extents.
    pub fn files(&self) -> Vec<Ino> {
        self.files.lock().keys().copied().collect()
    }

    /// The file's tail is clean now, or ragged.
    pub fn set_tail(&self, ino: Ino, clean: bool) {
        let mut tails = self.tails.lock();
        if tails.known.len() >= TAILS_MAX && !tails.known.contains_key(&ino) {
            tails.known.clear();
            tails.overflowed = true;
        }
        tails.known.insert(ino, clean);
    }

    pub fn tail(&self, ino: Ino) -> Tail {
        let tails = self.tails.lock();
        match tails.known.get(&ino) {
            Some(true) => Tail::Clean,
            Some(false) => Tail::Ragged,
            None if tails.overflowed => Tail::Unknown,
            None => Tail::Untouched,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Ino = Ino::new(7);

    fn b(number: u64) -> FileBlock {
        FileBlock::new(number)
    }

    #[test]
    fn a_write_after_the_submission_of_a_flush_is_not_settled_by_it() {
        let fresh = Fresh::default();
        fresh.add(FILE, b(0), b(4), 10, || 0);
        fresh.add(FILE, b(4), b(6), 11, || 10);
        assert_eq!(fresh.settled(FILE, 10), Some(vec![(b(0), b(4))]));
        assert!(!fresh.is_settled(FILE));
        // The same blocks, mapped again after a truncation.
        fresh.remove(FILE, b(0), b(6));
        fresh.add(FILE, b(2), b(3), 12, || 11);
        assert_eq!(fresh.settled(FILE, 11), Some(vec![]));
        fresh.add(FILE, b(2), b(3), 12, || 11);
        assert_eq!(fresh.settled(FILE, 12), Some(vec![(b(2), b(3))]));
    }

    #[test]
    fn a_stream_joins_its_ranges_only_until_a_flush_is_submitted() {
        let fresh = Fresh::default();
        (0..10).for_each(|i| fresh.add(FILE, b(i), b(i + 1), i + 1, || 0));
        (10..20).for_each(|i| fresh.add(FILE, b(i), b(i + 1), i + 1, || 10));
        assert_eq!(fresh.settled(FILE, 100), Some(vec![(b(0), b(10)), (b(10), b(20))]));
        assert_eq!(fresh.settled(FILE, 15), Some(vec![(b(0), b(10))]));
    }

    #[test]
    fn cutting_keeps_what_lies_on_both_sides() {
        let fresh = Fresh::default();
        fresh.add(FILE, b(0), b(10), 1, || 0);
        fresh.remove(FILE, b(3), b(5));
        assert_eq!(fresh.settled(FILE, 1), Some(vec![(b(0), b(3)), (b(5), b(10))]));
        fresh.remove(FILE, b(0), b(100));
        fresh.unlist(FILE);
        assert_eq!(fresh.settled(FILE, 1), None);
    }

    #[test]
    fn too_many_ranges_become_one_that_waits_for_the_last_write() {
        let fresh = Fresh::default();
        let count = (RANGES_MAX + RANGES_STEP) as u64;
        (0..count).for_each(|i| fresh.add(FILE, b(2 * i), b(2 * i + 1), i + 1, || 0));
        assert_eq!(fresh.settled(FILE, count - 1), Some(vec![]));
        assert_eq!(fresh.settled(FILE, count), Some(vec![(b(0), b(2 * count - 1))]));
    }

    #[test]
    fn too_many_ranges_take_none_along_that_a_flush_covers() {
        let fresh = Fresh::default();
        // 10 writes at places of their own, then a flush, and beside it more writes than are kept apart.
        (0..10).for_each(|i| fresh.add(FILE, b(1000 * i), b(1000 * i + 1), i + 1, || 0));
        let count = 2 * (RANGES_MAX + RANGES_STEP) as u64;
        (0..count).for_each(|i| fresh.add(FILE, b(10_000 + 2 * i), b(10_001 + 2 * i), i + 11, || 10));
        let covered: Vec<_> = (0..10).map(|i| (b(1000 * i), b(1000 * i + 1))).collect();
        assert_eq!(fresh.settled(FILE, 10), Some(covered));
        assert!(fresh.files.lock()[&FILE].len() <= RANGES_MAX + RANGES_STEP);
        assert_eq!(fresh.settled(FILE, count + 10).unwrap().last().unwrap().1, b(10_000 + 2 * count - 1));
    }
}
