//! Large files' data that may not be durable yet. Volatile; rebuilt at recovery.
//!
//! - Ranges of file blocks whose extents are marked NEW, each with its device and the number of the
//!   last write there that filled it. A flush that covers this number allows the mark to be
//!   cleared. A range never joins one that an already submitted flush covers: otherwise a file
//!   written without pause would never be settled.
//! - What is known of the bytes behind a file's end in its last block ([`Tail`]).
//! - For each device, the last write into a file that a flush of this file alone covers. Forgetting
//!   it only costs a flush.
//! - Files whose old contents were cut off entirely, and whose new contents are not settled yet
//!   ([`Replaced`]).
//!
//! Entries of a file change only under its inode lock, and tails also under its data lock.
//! Forgetting a tail only costs a flush.

use parking_lot::Mutex;
use shoal_format::extent::FileBlock;
use shoal_format::inode::Ino;
use std::collections::{BTreeMap, HashMap};

use super::replaced::Replaced;
use super::{Flushed, Stamp};
use crate::planted::{Bug, is_planted};
/// Ranges of one file kept apart at most, besides those that wait for a flush in progress.
const RANGES_MAX: usize = 8192;
/// Further ranges before another join, which has to look at all ranges.
const RANGES_STEP: usize = 1024;
/// Tails remembered at most.
const TAILS_MAX: usize = 1 << 16;
/// Files whose own flush covers writes, remembered at most.
const COVERED_MAX: usize = 1 << 16;
/// Maps the start of a range to its end and the last write into it.
type Ranges = BTreeMap<FileBlock, (FileBlock, Stamp)>;

/// Contents of a file's last block behind the file's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Zeros, or unreadable after a power loss: the block is NEW, and NEW is cleared only after a
    /// flush.
    Clean,
    /// Perhaps other bytes, or zeros that are not durable: this process cut the file, or a write failed.
    Ragged,
    /// Unchanged since the store was opened: this process put nothing there.
    Untouched,
    Unknown,
}

#[derive(Default)]
struct Tails {
    known: HashMap<Ino, Tail>,
    /// Some entries were forgotten: a file that is not listed may have been touched.
    overflowed: bool,
}

#[derive(Default)]
pub struct Fresh {
    files: Mutex<HashMap<Ino, Ranges>>,
    tails: Mutex<Tails>,
    /// The last covered write on each device.
    covered: Mutex<HashMap<Ino, Vec<Stamp>>>,
    pub replaced: Replaced,
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

/// Joins consecutive ranges of one device that were written after `noted`, including what lies
/// between them. The others stay apart for the flush that covers them.
fn joined(ranges: &Ranges, noted: impl Fn(u32) -> u64) -> Ranges {
    let mut joined = Ranges::new();
    for (&start, &(end, stamp)) in ranges {
        let noted = noted(stamp.device);
        match joined.last_entry() {
            Some(mut last)
                if last.get().1.device == stamp.device && last.get().1.write > noted && stamp.write > noted =>
            {
                let write = stamp.write.max(last.get().1.write);
                last.insert((end, Stamp { write, ..stamp }));
            }
            _ => drop(joined.insert(start, (end, stamp))),
        }
    }
    joined
}

impl Fresh {
    /// Runs `note`, which notes the last write that a flush is to cover. What is listed afterwards
    /// joins no range of such writes. The lock is needed because blocks listed between reading the
    /// number and noting it could join a range that the flush covers.
    pub fn note<T>(&self, note: impl FnOnce() -> T) -> T {
        let _files = self.files.lock();
        note()
    }

    /// Lists blocks `[start, end)` of `ino` as NEW, filled by writes up to `stamp`. `noted` returns
    /// the last write to a device noted for a flush so far.
    pub fn add(&self, ino: Ino, start: FileBlock, end: FileBlock, stamp: Stamp, noted: impl Fn(u32) -> u64) {
        let mut files = self.files.lock();
        let ranges = files.entry(ino).or_default();
        cut(ranges, start, end);
        let before = ranges.range(..start).next_back().map(|(&from, &range)| (from, range));
        match before.filter(|(_, (to, old))| *to == start && old.device == stamp.device) {
            Some((from, (_, old))) if is_planted(Bug::JoinSubmitted) => {
                ranges.insert(from, (end, old));
            }
            Some((from, (_, old))) if old.write > noted(stamp.device) => {
                ranges.insert(from, (end, Stamp { write: stamp.write.max(old.write), ..stamp }));
            }
            _ => {
                ranges.insert(start, (end, stamp));
            }
        }
        if ranges.len() > RANGES_MAX && ranges.len().is_multiple_of(RANGES_STEP) {
            *ranges = joined(ranges, noted);
        }
    }

    /// Lists a file that is about to get NEW blocks. Comes before the commit of the record that
    /// maps them: a thread that settles all files behind that record must find this file, and then
    /// waits for its lock.
    pub fn list(&self, ino: Ino) {
        self.files.lock().entry(ino).or_default();
    }

    /// Notes that a flush of the file's ranges on a device covers the file's writes there up to
    /// `stamp`. The ranges were looked up after that write. Blocks that were not in the map then
    /// are NEW and listed.
    pub fn cover(&self, ino: Ino, stamp: Stamp) {
        let mut covered = self.covered.lock();
        if covered.len() >= COVERED_MAX && !covered.contains_key(&ino) {
            covered.clear();
        }
        let known = covered.entry(ino).or_default();
        match known.iter_mut().find(|old| old.device == stamp.device) {
            Some(old) => old.write = old.write.max(stamp.write),
            None => known.push(stamp),
        }
    }

    /// Returns the last write into the file on a device that a flush of the file covers; 0: none is
    /// known.
    pub fn covered(&self, ino: Ino, device: u32) -> u64 {
        let covered = self.covered.lock();
        let known = covered.get(&ino).and_then(|known| known.iter().find(|stamp| stamp.device == device));
        known.map_or(0, |stamp| stamp.write)
    }

    /// Returns the files whose new contents must be durable before the record that cut off the old
    /// ones is. Every fsync asks this. `flushed` returns whether a flush has covered the last write
    /// into a file.
    pub fn pending(&self, flushed: impl Fn(Ino) -> bool) -> Vec<Ino> {
        self.replaced.pending(|ino| self.is_settled(ino) && flushed(ino))
    }

    /// Notes that blocks `[start, end)` are no longer NEW, because they were unmapped or became
    /// unwritten. The file stays listed, so that its flag is cleared later.
    pub fn remove(&self, ino: Ino, start: FileBlock, end: FileBlock) {
        if let Some(ranges) = self.files.lock().get_mut(&ino) {
            cut(ranges, start, end);
        }
    }

    /// Returns the ranges that completed flushes cover, ascending; `None` when the file is not
    /// listed.
    pub fn settled(&self, ino: Ino, flushed: &Flushed) -> Option<Vec<(FileBlock, FileBlock)>> {
        let files = self.files.lock();
        let settled = |(&start, &(end, stamp)): (&FileBlock, &(FileBlock, Stamp))| {
            (flushed.covers(stamp) || is_planted(Bug::ClearUnflushed)).then_some((start, end))
        };
        files.get(&ino).map(|ranges| ranges.iter().filter_map(settled).collect())
    }

    /// Returns whether anything of the file on this device is NEW and not covered by completed
    /// flushes.
    pub fn waits_for(&self, ino: Ino, device: u32, flushed: &Flushed) -> bool {
        let files = self.files.lock();
        let waits = |(_, stamp): &(FileBlock, Stamp)| stamp.device == device && !flushed.covers(*stamp);
        files.get(&ino).is_some_and(|ranges| ranges.values().any(waits))
    }

    /// Returns the ranges of a file that are NEW on a device, ascending.
    pub fn on_device(&self, ino: Ino, device: u32) -> Vec<(FileBlock, FileBlock)> {
        let files = self.files.lock();
        let ranges = files.get(&ino).into_iter().flatten().filter(|(_, (_, stamp))| stamp.device == device);
        ranges.map(|(&start, &(end, _))| (start, end)).collect()
    }

    /// Returns whether anything on one of these devices is NEW, or a file without NEW ranges is
    /// listed.
    pub fn has_any_on(&self, is_open: impl Fn(u32) -> bool) -> bool {
        let files = self.files.lock();
        files.values().any(|ranges| ranges.is_empty() || ranges.values().any(|(_, stamp)| is_open(stamp.device)))
    }

    /// Returns whether nothing of the file is NEW.
    pub fn is_settled(&self, ino: Ino) -> bool {
        self.files.lock().get(&ino).is_none_or(BTreeMap::is_empty)
    }

    /// Takes a file off the list if it has no ranges left.
    pub fn unlist(&self, ino: Ino) {
        let mut files = self.files.lock();
        if files.get(&ino).is_some_and(BTreeMap::is_empty) {
            files.remove(&ino);
        }
    }

    /// Forgets everything about a file.
    pub fn forget(&self, ino: Ino) {
        self.files.lock().remove(&ino);
        self.tails.lock().known.remove(&ino);
        self.covered.lock().remove(&ino);
    }

    /// Returns the files with NEW extents.
    pub fn files(&self) -> Vec<Ino> {
        self.files.lock().keys().copied().collect()
    }

    /// Notes how the file's tail is now.
    pub fn set_tail(&self, ino: Ino, tail: Tail) {
        let mut tails = self.tails.lock();
        if tails.known.len() >= TAILS_MAX && !tails.known.contains_key(&ino) {
            tails.known.clear();
            tails.overflowed = true;
        }
        tails.known.insert(ino, tail);
    }

    pub fn tail(&self, ino: Ino) -> Tail {
        let tails = self.tails.lock();
        let others = if tails.overflowed { Tail::Unknown } else { Tail::Untouched };
        tails.known.get(&ino).copied().unwrap_or(others)
    }
}

#[cfg(test)]
mod tests {
    use shoal_format::bulk_list::BULK_DEVICES_MAX;

    use super::*;

    const FILE: Ino = Ino::new(7);

    fn b(number: u64) -> FileBlock {
        FileBlock::new(number)
    }

    fn w(write: u64) -> Stamp {
        Stamp { device: 0, write }
    }

    fn upto(write: u64) -> Flushed {
        let mut flushed = [0; BULK_DEVICES_MAX];
        flushed[0] = write;
        Flushed(flushed)
    }

    #[test]
    fn a_write_after_the_submission_of_a_flush_is_not_settled_by_it() {
        let fresh = Fresh::default();
        fresh.add(FILE, b(0), b(4), w(10), |_| 0);
        fresh.add(FILE, b(4), b(6), w(11), |_| 10);
        assert_eq!(fresh.settled(FILE, &upto(10)), Some(vec![(b(0), b(4))]));
        assert!(!fresh.is_settled(FILE));
        // Map the same blocks again after a truncation.
        fresh.remove(FILE, b(0), b(6));
        fresh.add(FILE, b(2), b(3), w(12), |_| 11);
        assert_eq!(fresh.settled(FILE, &upto(11)), Some(vec![]));
        fresh.add(FILE, b(2), b(3), w(12), |_| 11);
        assert_eq!(fresh.settled(FILE, &upto(12)), Some(vec![(b(2), b(3))]));
    }

    #[test]
    fn a_stream_joins_its_ranges_only_until_a_flush_is_submitted() {
        let fresh = Fresh::default();
        (0..10).for_each(|i| fresh.add(FILE, b(i), b(i + 1), w(i + 1), |_| 0));
        (10..20).for_each(|i| fresh.add(FILE, b(i), b(i + 1), w(i + 1), |_| 10));
        assert_eq!(fresh.settled(FILE, &upto(100)), Some(vec![(b(0), b(10)), (b(10), b(20))]));
        assert_eq!(fresh.settled(FILE, &upto(15)), Some(vec![(b(0), b(10))]));
    }

    #[test]
    fn cutting_keeps_what_lies_on_both_sides() {
        let fresh = Fresh::default();
        fresh.add(FILE, b(0), b(10), w(1), |_| 0);
        fresh.remove(FILE, b(3), b(5));
        assert_eq!(fresh.settled(FILE, &upto(1)), Some(vec![(b(0), b(3)), (b(5), b(10))]));
        fresh.remove(FILE, b(0), b(100));
        fresh.unlist(FILE);
        assert_eq!(fresh.settled(FILE, &upto(1)), None);
    }

    #[test]
    fn too_many_ranges_become_one_that_waits_for_the_last_write() {
        let fresh = Fresh::default();
        let count = (RANGES_MAX + RANGES_STEP) as u64;
        (0..count).for_each(|i| fresh.add(FILE, b(2 * i), b(2 * i + 1), w(i + 1), |_| 0));
        assert_eq!(fresh.settled(FILE, &upto(count - 1)), Some(vec![]));
        assert_eq!(fresh.settled(FILE, &upto(count)), Some(vec![(b(0), b(2 * count - 1))]));
    }

    #[test]
    fn too_many_ranges_take_none_along_that_a_flush_covers() {
        let fresh = Fresh::default();
        // Ten separate writes, then a flush, and more writes meanwhile than are kept apart.
        (0..10).for_each(|i| fresh.add(FILE, b(1000 * i), b(1000 * i + 1), w(i + 1), |_| 0));
        let count = 2 * (RANGES_MAX + RANGES_STEP) as u64;
        (0..count).for_each(|i| fresh.add(FILE, b(10_000 + 2 * i), b(10_001 + 2 * i), w(i + 11), |_| 10));
        let covered: Vec<_> = (0..10).map(|i| (b(1000 * i), b(1000 * i + 1))).collect();
        assert_eq!(fresh.settled(FILE, &upto(10)), Some(covered));
        assert!(fresh.files.lock()[&FILE].len() <= RANGES_MAX + RANGES_STEP);
        assert_eq!(fresh.settled(FILE, &upto(count + 10)).unwrap().last().unwrap().1, b(10_000 + 2 * count - 1));
    }
}
