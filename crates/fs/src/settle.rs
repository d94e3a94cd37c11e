//! Settling: makes the data of large files durable and clears NEW from what a flush has covered.
//!
//! Rules:
//! - NEW is cleared only by a record that commits after a flush covering the block's last write completed.
//! - A caller that vouches for files calls [`Region::promise`](shoal_region::Region::promise) first, then settles, then makes the log
//!   durable.
//! - Where the device holds writes back, a file is settled by a flush of its own ranges: of what its map named, and what was
//!   NEW, when the flush began. What is old enough is settled so without an fsync.
//! - A file whose old contents were cut off whole is settled before the log is flushed for whatever reason, so that the
//!   record of the cut is not durable before the contents that followed it.
//! - After a power loss NEW becomes unwritten, before anybody reads.
//!
//! Left out: what is NEW, and since which write (`bulk/fresh`); the map (`large`, `extents`).

use shoal_format::extent::{EXTENT_NEW, EXTENT_UNWRITTEN, FileBlock};
use shoal_format::inode::{INODE_HAS_NEW, Inode, Layout};

use crate::planted::{Bug, is_planted};
use crate::{Error, Fs, Ino, Result};

/// Blocks of a file, ascending.
type Ranges = Vec<(FileBlock, FileBlock)>;

impl Fs {
    /// Is there work for [`Fs::settle_new`]?
    pub(crate) fn has_new(&self) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| bulk.needs_flush() || !bulk.fresh.is_empty())
    }

    /// Flushes the bulk device once and clears NEW from everything written before that flush; then makes blocks free
    /// whose freeing is durable.
    pub(crate) fn settle_new(&self) -> Result<()> {
        let Some(bulk) = &self.bulk else { return Ok(()) };
        let now = self.clock.monotonic_ns();
        let flushed = bulk.flush(&self.region)?;
        for ino in bulk.fresh.files() {
            self.clear_new(ino, flushed)?;
        }
        bulk.fresh.replaced.flushed(now);
        bulk.reclaim(&self.region)
    }

    /// Before the log is flushed for another file's sake: contents that took the place of those cut off must not be
    /// missing when the cut becomes durable.
    pub(crate) fn settle_replaced(&self) -> Result<()> {
        let Some(bulk) = &self.bulk else { return Ok(()) };
        let now = self.clock.monotonic_ns();
        let replaced = bulk.fresh.pending(bulk.last_flushed());
        if !replaced.is_empty() && bulk.holds_back() {
            self.settle_files(&replaced)?;
        } else if !replaced.is_empty() {
            let flushed = bulk.flush(&self.region)?;
            for ino in replaced {
                self.clear_new(ino, flushed)?;
            }
        }
        bulk.fresh.replaced.flushed(now);
        Ok(())
    }

    /// Are there files whose contents took the place of those cut off and are not durable yet?
    pub(crate) fn has_replaced(&self) -> bool {
        let Some(bulk) = &self.bulk else { return false };
        !bulk.fresh.pending(bulk.last_flushed()).is_empty()
    }

    /// Has a flush covered all of a large file's data, and is none of it NEW? The caller holds its lock.
    pub(crate) fn is_settled(&self, ino: Ino, inode: &Inode) -> bool {
        let Some(bulk) = &self.bulk else { return true };
        inode.layout != Layout::Extents || bulk.is_covered(ino)
    }

    /// Makes large files' data durable by a flush of what their maps name, and clears NEW. The caller holds no locks.
    pub(crate) fn settle_files(&self, inos: &[Ino]) -> Result<()> {
        let bulk = self.bulk()?;
        let (mut device, mut files, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
        for &ino in inos {
            match self.ranges_to_settle(ino, None, &mut device)? {
                Some((covered, new)) => files.push((ino, covered, new)),
                None => damaged.push(ino),
            }
        }
        if damaged.is_empty() {
            bulk.flush_ranges(&self.region, &device)?;
        } else {
            // Where a map cannot be read nobody knows the file's blocks: all there are.
            let flushed = bulk.flush(&self.region)?;
            for ino in damaged {
                self.clear_new(ino, flushed)?;
            }
        }
        for (ino, covered, new) in files {
            self.clear_new_of(ino, covered, Some(&new))?;
            bulk.fresh.cover(ino, covered);
        }
        Ok(())
    }

    /// Settles what was written up to write `aged`, which the device holds back no longer, and makes all durable that has left
    /// it. Returns whether anything was settled.
    pub(crate) fn settle_aged(&self, aged: u64) -> Result<bool> {
        let bulk = self.bulk()?;
        let (mut device, mut files) = (Vec::new(), Vec::new());
        for ino in bulk.fresh.files() {
            if let Some((_, new)) = self.ranges_to_settle(ino, Some(aged), &mut device)? {
                files.push((ino, new));
            }
        }
        bulk.flush_ranges(&self.region, &device)?;
        let any = !files.is_empty();
        for (ino, new) in files {
            self.clear_new_of(ino, aged, Some(&new))?;
        }
        Ok(any)
    }

    /// What of a file is NEW and was filled by writes up to number `aged`, or up to now; adds to `device` where that is, or, up to
    /// now, where all of the file's data are. Also the number. `None`: there is nothing to settle; up to now: the map is damaged.
    ///
    /// The number is taken under the file's lock: what is listed later has a later number, or a range of its own.
    fn ranges_to_settle(
        &self,
        ino: Ino,
        aged: Option<u64>,
        device: &mut Vec<(u64, u64)>,
    ) -> Result<Option<(u64, Ranges)>> {
        let bulk = self.bulk()?;
        let _lock = self.locks.read(ino);
        let write = aged.unwrap_or_else(|| bulk.note_writes());
        let new = bulk.fresh.settled(ino, write);
        let unmapped = aged.is_none() || new.is_some();
        let new = new.unwrap_or_default();
        let inode = match self.load(ino) {
            // `clear_new` forgets it, and nothing is to be flushed.
            Err(Error::Stale | Error::Corrupt(_)) => return Ok(unmapped.then_some((write, new))),
            other => other?,
        };
        if inode.layout != Layout::Extents {
            return Ok(unmapped.then_some((write, new)));
        }
        if aged.is_some() && new.is_empty() && !bulk.fresh.is_settled(ino) {
            return Ok(None);
        }
        let wanted = if aged.is_none() { vec![(FileBlock::ZERO, FileBlock::END)] } else { new.clone() };
        for (from, to) in wanted {
            // Damage in the map costs this file alone, by age.
            if self.past_damage(ino, self.data_ranges(&inode, from, to, device))?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some((write, new)))
    }

    /// Makes a large file's data durable and clears NEW. The caller holds no locks.
    pub(crate) fn settle_file(&self, ino: Ino) -> Result<()> {
        if self.bulk()?.holds_back() {
            return self.settle_files(&[ino]);
        }
        let flushed = self.bulk()?.flush(&self.region)?;
        self.clear_new(ino, flushed)
    }

    /// Clears NEW from the file's extents that a flush up to write `flushed` covers. Under the file's lock the list of such
    /// ranges cannot change: blocks written after the flush was submitted carry later numbers and stay NEW.
    pub(crate) fn clear_new(&self, ino: Ino, flushed: u64) -> Result<()> {
        self.clear_new_of(ino, flushed, None)
    }

    /// The same, but only within `covered`, ascending, where the flush was one of ranges.
    fn clear_new_of(&self, ino: Ino, flushed: u64, covered: Option<&[(FileBlock, FileBlock)]>) -> Result<()> {
        let _lock = self.locks.write(ino);
        let bulk = self.bulk()?;
        let Some(mut ranges) = bulk.fresh.settled(ino, flushed) else { return Ok(()) };
        if let Some(covered) = covered {
            ranges = common(&ranges, covered);
        }
        let mut inode = match self.load(ino) {
            // Of a record that does not decode nothing can be said, and nothing done to its map.
            Err(Error::Stale | Error::Corrupt(_)) => {
                bulk.fresh.forget(ino);
                return Ok(());
            }
            other => other?,
        };
        if inode.layout == Layout::Extents {
            let cleared = self.change_flags(ino, &mut inode, &ranges, |flags| flags & !EXTENT_NEW);
            if self.past_damage(ino, cleared)?.is_none() {
                self.settle_in_place(&inode, &ranges, false)?;
                ranges.iter().for_each(|&(from, to)| bulk.fresh.remove(ino, from, to));
            }
        } else {
            bulk.fresh.forget(ino);
        }
        if bulk.fresh.is_settled(ino) {
            self.clear_has_new(ino, &mut inode)?;
            bulk.fresh.unlist(ino);
        }
        Ok(())
    }

    fn clear_has_new(&self, ino: Ino, inode: &mut Inode) -> Result<()> {
        if inode.flags & INODE_HAS_NEW == 0 {
            return Ok(());
        }
        inode.flags &= !INODE_HAS_NEW;
        let mut tx = self.region.begin_reclaim();
        self.store(&mut tx, ino, inode)?;
        tx.commit()?;
        Ok(())
    }

    /// At recovery, for an inode with `INODE_HAS_NEW`: after a power loss its NEW blocks may hold anything and become
    /// unwritten; after a crash of the process alone their data are with the device, and the next flush settles them.
    pub(crate) fn recover_new(&self, ino: Ino) -> Result<()> {
        let _lock = self.locks.write(ino);
        let mut inode = self.load(ino)?;
        if inode.flags & INODE_HAS_NEW == 0 {
            return Ok(());
        }
        let bulk = self.bulk()?;
        if !self.power_lost || is_planted(Bug::NewIsData) {
            let write = bulk.note_earlier_write();
            bulk.fresh.add(ino, FileBlock::ZERO, FileBlock::END, write, || bulk.last_noted());
            return Ok(());
        }
        if inode.layout == Layout::Extents {
            let unwritten = |flags| if flags & EXTENT_NEW != 0 { EXTENT_UNWRITTEN } else { flags };
            let changed = self.change_flags(ino, &mut inode, &[(FileBlock::ZERO, FileBlock::END)], unwritten);
            if self.past_damage(ino, changed)?.is_none() {
                self.settle_in_place(&inode, &[(FileBlock::ZERO, FileBlock::MAX)], true)?;
            }
        }
        self.clear_has_new(ino, &mut inode)
    }
}

/// What two ascending lists of ranges have in common.
fn common(one: &[(FileBlock, FileBlock)], other: &[(FileBlock, FileBlock)]) -> Vec<(FileBlock, FileBlock)> {
    let (mut found, mut first, mut second) = (Vec::new(), 0, 0);
    while let (Some(&(from, to)), Some(&(least, most))) = (one.get(first), other.get(second)) {
        let (start, end) = (from.max(least), to.min(most));
        if start < end {
            found.push((start, end));
        }
        if to < most { first += 1 } else { second += 1 }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_in_common_what_both_name() {
        let of = |ranges: &[(u64, u64)]| -> Vec<(FileBlock, FileBlock)> {
            ranges.iter().map(|&(from, to)| (FileBlock::new(from), FileBlock::new(to))).collect()
        };
        assert_eq!(
            common(&of(&[(0, 10), (12, 20)]), &of(&[(2, 4), (8, 13), (19, 30)])),
            of(&[(2, 4), (8, 10), (12, 13), (19, 20)])
        );
        assert_eq!(common(&of(&[(0, 10)]), &of(&[])), of(&[]));
    }
}
