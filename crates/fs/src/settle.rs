//! Settling: makes the data of large files durable and clears NEW from what a flush has covered.
//!
//! Rules:
//! - NEW is cleared only by a record that commits after a flush covering the block's last write completed.
//! - A caller that vouches for files calls [`Region::promise`](shoal_region::Region::promise)
//!   first, then settles, then makes the log durable.
//! - Where the device holds writes back, a file is settled by a flush of its own ranges: those its
//!   map named, and those that were NEW, when the flush began. Data that is old enough is settled
//!   in this way without an fsync.
//! - A file whose old contents were truncated to nothing is settled before the log is flushed, also
//!   for a checkpoint, so that the record of the truncation is not durable before the contents that
//!   followed it. The exception is an append or a full device that needs the log at once.
//! - After a power loss NEW becomes unwritten, before anybody reads.
//!
//! Left out: which blocks are NEW, and since which write (`bulk/fresh`); the map (`large`,
//! `extents`).

use std::collections::HashMap;

use shoal_bulk::{Flushed, Run, Stamp};
use shoal_format::extent::{BulkBlock, EXTENT_NEW, EXTENT_UNWRITTEN, Extent, FileBlock};
use shoal_format::inode::{INODE_HAS_NEW, Inode, Layout};
use shoal_media::BlockDevice;

use crate::damage::NewData;
use crate::extents::{Mapped, clip};
use crate::planted::{Bug, is_planted};
use crate::rooms::Data;
use crate::{Error, Ino, Result};

/// Blocks of a file, ascending.
type Ranges = Vec<(FileBlock, FileBlock)>;

/// What a flush has covered of some files.
pub(crate) struct FlushedFiles {
    flushed: Flushed,
    /// For each file the writes that the flush covers, and the ranges that were NEW. `None` unless
    /// a device holds writes back.
    ranges: Option<HashMap<Ino, (Flushed, Ranges)>>,
}

fn unwritten(flags: u32) -> u32 {
    if flags & EXTENT_NEW != 0 { EXTENT_UNWRITTEN } else { flags }
}

impl<'a> Data<'a> {
    /// Flushes each bulk device once and clears NEW from everything written before that flush. Then
    /// frees blocks whose freeing is durable. Files on a closed device stay as they are, and hold
    /// up nobody.
    pub(crate) fn settle_new(self) -> Result<()> {
        let Some(bulk) = &self.fs.bulk else { return Ok(()) };
        let now = self.fs.clock.monotonic_ns();
        let flushed = bulk.flush(&self.fs.region)?;
        for ino in bulk.fresh.files() {
            self.clear_new(ino, &flushed)?;
        }
        bulk.fresh.replaced.flushed(now);
        Ok(bulk.reclaim(&self.fs.region)?)
    }

    /// Flushes one device alone, because the others may be slow, and clears NEW likewise.
    pub(crate) fn settle_device(self, number: u32) -> Result<()> {
        let Some(bulk) = &self.fs.bulk else { return Ok(()) };
        let now = self.fs.clock.monotonic_ns();
        let flushed = bulk.flush_on(&self.fs.region, number)?;
        for ino in bulk.fresh.files() {
            self.clear_new(ino, &flushed)?;
        }
        if !bulk.needs_flush() {
            // The listed files may have data on any device.
            bulk.fresh.replaced.flushed(now);
        }
        Ok(())
    }

    /// Settles files whose contents replaced truncated ones. To be called before the log is flushed
    /// for another file's sake: these contents must not be missing when the truncation becomes
    /// durable.
    pub(crate) fn settle_replaced(self) -> Result<()> {
        let Some(bulk) = self.fs.bulk.as_ref().filter(|_| !is_planted(Bug::ReplacedUnsettled)) else { return Ok(()) };
        let now = self.fs.clock.monotonic_ns();
        let replaced = bulk.fresh.pending(|ino| bulk.is_flushed(ino));
        self.settle_files(&replaced)?;
        bulk.fresh.replaced.flushed(now);
        Ok(())
    }

    /// Like [`Data::settle_replaced`], for files with data on one device that holds writes back.
    /// Returns whether there were any.
    pub(crate) fn settle_replaced_on(self, number: u32) -> Result<bool> {
        let bulk = self.fs.bulk()?;
        let mut replaced = bulk.fresh.pending(|ino| bulk.is_flushed(ino));
        replaced.retain(|&ino| bulk.waits_for(ino, number));
        self.settle_files(&replaced)?;
        Ok(!replaced.is_empty())
    }

    fn settle_files(self, inos: &[Ino]) -> Result<()> {
        if inos.is_empty() {
            return Ok(());
        }
        let flushed = self.flush_files(inos)?;
        inos.iter().try_for_each(|&ino| self.settle_flushed(ino, &flushed))
    }

    /// Returns whether there are files whose contents replaced truncated ones and are not durable
    /// yet.
    pub(crate) fn has_replaced(self) -> bool {
        let Some(bulk) = self.fs.bulk.as_ref().filter(|_| !is_planted(Bug::ReplacedUnsettled)) else { return false };
        !bulk.fresh.pending(|ino| bulk.is_flushed(ino)).is_empty()
    }

    /// Returns whether a flush has covered all of a large file's data, and none of it is NEW or in
    /// doubt. The caller holds its lock.
    pub(crate) fn is_settled(self, ino: Ino, inode: &Inode) -> bool {
        let Some(bulk) = &self.fs.bulk else { return true };
        inode.layout != Layout::Extents
            || bulk.fresh.is_settled(ino)
                && bulk.is_flushed(ino)
                && (bulk.is_whole() || self.refuse_doubtful_of(inode, FileBlock::ZERO, FileBlock::END).is_ok())
    }

    /// Flushes the data of large files: everything that was written to their devices or, where a
    /// device holds writes back, what their maps name there. The caller holds no locks, and calls
    /// [`Data::settle_flushed`] for each file afterwards.
    pub(crate) fn flush_files(self, inos: &[Ino]) -> Result<FlushedFiles> {
        let bulk = self.fs.bulk()?;
        if !inos.iter().any(|&ino| bulk.waits_held(ino)) {
            let flushed = bulk.flush_files(&self.fs.region, inos)?;
            return Ok(FlushedFiles { flushed, ranges: None });
        }
        let (mut places, mut files) = (Vec::new(), HashMap::new());
        for &ino in inos {
            let Some(found) = self.ranges_to_settle(ino, None, &mut places)? else {
                // If a map cannot be read, the file's blocks are not known: flush all that was
                // written to its devices.
                let flushed = bulk.flush_files(&self.fs.region, inos)?;
                return Ok(FlushedFiles { flushed, ranges: None });
            };
            files.insert(ino, found);
        }
        let flushed = bulk.flush_places(&self.fs.region, inos, &places)?;
        files.values_mut().for_each(|(noted, _)| *noted = flushed.of(noted));
        Ok(FlushedFiles { flushed: bulk.last_flushed(), ranges: Some(files) })
    }

    /// Makes a large file's data durable with the log, without a flush, if its device has only few
    /// pages that are not durable. Returns false if it takes a flush.
    ///
    /// Order: the record with the pages; then the record that clears NEW from their blocks. Both
    /// are durable with the log, in this order.
    pub(crate) fn absorb_file(self, ino: Ino) -> Result<bool> {
        let bulk = self.fs.bulk()?;
        let (flushed, new) = {
            // Held until the record has committed: the places stay the file's.
            let _lock = self.fs.locks.read(ino);
            let mut places = Vec::new();
            let Some((noted, new)) = self.ranges_to_settle_locked(ino, None, &mut places)? else { return Ok(false) };
            if is_planted(Bug::ClearedFirst) {
                self.fs.large().change_flags(ino, &mut self.fs.load(ino)?, &new, |flags| flags & !EXTENT_NEW)?;
            }
            let absorbed = match bulk.absorb(&self.fs.region, ino, &places) {
                // A flush needs less room in the log.
                Err(shoal_bulk::Error::NoSpace(_)) => None,
                outcome => outcome?,
            };
            let Some(absorbed) = absorbed else { return Ok(false) };
            (absorbed.of(&noted), new)
        };
        let files = FlushedFiles { flushed: bulk.last_flushed(), ranges: Some(HashMap::from([(ino, (flushed, new))])) };
        self.settle_flushed(ino, &files)?;
        Ok(true)
    }

    /// Clears NEW from what a flush has covered of a file.
    pub(crate) fn settle_flushed(self, ino: Ino, files: &FlushedFiles) -> Result<()> {
        match &files.ranges {
            None => self.clear_new(ino, &files.flushed),
            Some(ranges) => {
                let Some((flushed, new)) = ranges.get(&ino) else { return Ok(()) };
                self.clear_new_of(ino, flushed, Some(new))?;
                self.fs.bulk()?.cover(ino, flushed);
                Ok(())
            }
        }
    }

    /// Settles what was written to a device up to write `aged`, which the device no longer holds
    /// back, and makes everything durable that has left it. Returns whether anything was settled.
    pub(crate) fn settle_aged(self, number: u32, aged: u64) -> Result<bool> {
        let bulk = self.fs.bulk()?;
        let (mut places, mut files) = (Vec::new(), Vec::new());
        let aged = Flushed::on(Stamp { device: number, write: aged });
        for ino in bulk.fresh.files() {
            if let Some((_, new)) = self.ranges_to_settle(ino, Some(&aged), &mut places)? {
                files.push((ino, new));
            }
        }
        if !bulk.flush_places_on(&self.fs.region, number, &places)? {
            return Ok(false);
        }
        let any = !files.is_empty();
        for (ino, new) in files {
            self.clear_new_of(ino, &aged, Some(&new))?;
        }
        Ok(any)
    }

    /// Returns the NEW ranges of a file that writes up to `aged` have filled, and these writes;
    /// without `aged`, all writes so far. Adds to `places` where these ranges lie on the devices;
    /// without `aged`, where all of the file's data lies. Returns `None` if there is nothing to
    /// settle, or the map is damaged.
    ///
    /// The write numbers are taken under the file's lock: what is listed later has a later number,
    /// or a range of its own.
    fn ranges_to_settle(
        self,
        ino: Ino,
        aged: Option<&Flushed>,
        places: &mut Vec<(u64, u64)>,
    ) -> Result<Option<(Flushed, Ranges)>> {
        let _lock = self.fs.locks.read(ino);
        self.ranges_to_settle_locked(ino, aged, places)
    }

    /// Does it for a caller that holds the file's lock.
    fn ranges_to_settle_locked(
        self,
        ino: Ino,
        aged: Option<&Flushed>,
        places: &mut Vec<(u64, u64)>,
    ) -> Result<Option<(Flushed, Ranges)>> {
        let bulk = self.fs.bulk()?;
        let write = aged.copied().unwrap_or_else(|| bulk.note_writes());
        let new = bulk.fresh.settled(ino, &write);
        let unmapped = aged.is_none() || new.is_some();
        let new = new.unwrap_or_default();
        let inode = match self.fs.load(ino) {
            // `clear_new` forgets the file, and there is nothing to flush.
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
            // When files are settled by age, damage in a map affects its file alone.
            if self.fs.past_damage(ino, self.fs.large().data_ranges(&inode, from, to, places))?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some((write, new)))
    }

    /// Makes a large file's data durable and clears NEW. The caller holds no locks.
    pub(crate) fn settle_file(self, ino: Ino) -> Result<()> {
        let flushed = self.flush_files(&[ino])?;
        self.settle_flushed(ino, &flushed)?;
        self.refuse_doubtful(ino)
    }

    /// Fails if some of a large file cannot be proven to be durable because its bulk device was
    /// closed or lost.
    pub(crate) fn refuse_doubtful(self, ino: Ino) -> Result<()> {
        self.refuse_doubtful_in(ino, FileBlock::ZERO, FileBlock::END)
    }

    /// Does the same for blocks `[from, to)`.
    pub(crate) fn refuse_doubtful_in(self, ino: Ino, from: FileBlock, to: FileBlock) -> Result<()> {
        if self.fs.bulk()?.is_whole() {
            return Ok(());
        }
        let _lock = self.fs.locks.read(ino);
        let inode = self.fs.load(ino)?;
        self.refuse_doubtful_of(&inode, from, to)
    }

    fn refuse_doubtful_of(self, inode: &Inode, from: FileBlock, to: FileBlock) -> Result<()> {
        let bulk = self.fs.bulk()?;
        let mut block = from;
        while inode.layout == Layout::Extents && block < to {
            match self.fs.large().mapped(inode, block)? {
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) => {
                    bulk.refuse_doubtful(&clip(extent, block, to))?;
                    block = extent.end();
                }
            }
        }
        Ok(())
    }

    /// Clears NEW from the file's extents that completed flushes cover. Under the file's lock the
    /// list of these ranges cannot change: blocks written after the flush was submitted carry later
    /// numbers and stay NEW.
    pub(crate) fn clear_new(self, ino: Ino, flushed: &Flushed) -> Result<()> {
        self.clear_new_of(ino, flushed, None)
    }

    /// Like [`Data::clear_new`], but only within `covered` (ascending), for a flush of ranges.
    fn clear_new_of(self, ino: Ino, flushed: &Flushed, covered: Option<&[(FileBlock, FileBlock)]>) -> Result<()> {
        let _lock = self.fs.locks.write(ino);
        let bulk = self.fs.bulk()?;
        let Some(mut ranges) = bulk.fresh.settled(ino, flushed) else { return Ok(()) };
        if let Some(covered) = covered {
            ranges = common(&ranges, covered);
        }
        let mut inode = match self.fs.load(ino) {
            // A record that does not decode tells nothing, and its map cannot be changed.
            Err(Error::Stale | Error::Corrupt(_)) => {
                bulk.fresh.forget(ino);
                return Ok(());
            }
            other => other?,
        };
        if inode.layout == Layout::Extents {
            let cleared = self.fs.large().change_flags(ino, &mut inode, &ranges, |flags| flags & !EXTENT_NEW);
            if self.fs.past_damage(ino, cleared)?.is_none() {
                self.settle_in_place(&inode, &ranges, NewData::Durable)?;
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

    fn clear_has_new(self, ino: Ino, inode: &mut Inode) -> Result<()> {
        if inode.flags & INODE_HAS_NEW == 0 {
            return Ok(());
        }
        inode.flags &= !INODE_HAS_NEW;
        let mut tx = self.fs.region.begin_reclaim();
        self.fs.store(&mut tx, ino, inode)?;
        tx.commit()?;
        Ok(())
    }

    /// Recovers an inode with `INODE_HAS_NEW`. After a power loss its NEW blocks may hold anything
    /// and become unwritten. After a crash of the process alone their data is with the device, and
    /// the next flush settles them.
    pub(crate) fn recover_new(self, ino: Ino) -> Result<()> {
        let _lock = self.fs.locks.write(ino);
        let mut inode = self.fs.load(ino)?;
        if inode.flags & INODE_HAS_NEW == 0 {
            return Ok(());
        }
        let bulk = self.fs.bulk()?;
        if !self.fs.power_lost || is_planted(Bug::NewIsData) {
            if inode.layout == Layout::Extents && bulk.devices().has_unsettled() {
                let distrusted = self.distrust_new(ino, &mut inode);
                self.fs.past_damage(ino, distrusted)?;
            }
            if is_planted(Bug::NewNotListed) {
                return Ok(());
            }
            return self.fs.past_damage(ino, self.list_new(ino, &inode)).map(drop);
        }
        if inode.layout == Layout::Extents {
            let changed =
                self.fs.large().change_flags(ino, &mut inode, &[(FileBlock::ZERO, FileBlock::END)], unwritten);
            if self.fs.past_damage(ino, changed)?.is_none() {
                self.settle_in_place(&inode, &[(FileBlock::ZERO, FileBlock::MAX)], NewData::Lost)?;
            }
        }
        self.clear_has_new(ino, &mut inode)
    }

    /// Makes NEW blocks on a device that was away unwritten, as after a power loss. The caller
    /// holds the file's lock.
    fn distrust_new(self, ino: Ino, inode: &mut Inode) -> Result<()> {
        let bulk = self.fs.bulk()?;
        let all = [(FileBlock::ZERO, FileBlock::END)];
        let ranges = self.new_blocks(inode, &all, |extent| bulk.devices().untrusted(extent))?;
        self.fs.large().change_flags(ino, inode, &ranges, unwritten)
    }

    /// Makes the NEW blocks of all files on a device unwritten, before a device that was away is
    /// used again. Leaves out the blocks that its cache has held all the time.
    pub(crate) fn distrust_device(self, number: u32, device: &dyn BlockDevice) -> Result<()> {
        let bulk = self.fs.bulk()?;
        for ino in bulk.fresh.files() {
            let _lock = self.fs.locks.write(ino);
            let ranges = bulk.fresh.on_device(ino, number);
            let mut inode = match self.fs.load(ino) {
                Err(Error::Stale | Error::Corrupt(_)) => continue,
                other => other?,
            };
            if inode.layout == Layout::Extents {
                let changed = self
                    .new_blocks(&inode, &ranges, |extent| bulk.devices().untrusted_on(number, device, extent))
                    .and_then(|ranges| self.fs.large().change_flags(ino, &mut inode, &ranges, unwritten));
                self.fs.past_damage(ino, changed)?;
            }
        }
        Ok(())
    }

    /// Returns the blocks of NEW extents within some ranges that `which` chooses. The caller holds
    /// the file's lock.
    fn new_blocks(
        self,
        inode: &Inode,
        within: &[(FileBlock, FileBlock)],
        which: impl Fn(&Extent) -> Vec<Run>,
    ) -> Result<Ranges> {
        let mut ranges = Vec::new();
        for &(from, to) in within {
            let mut block = from;
            while block < to {
                match self.fs.large().mapped(inode, block)? {
                    Mapped::Hole { until } => block = until,
                    Mapped::At(extent) => {
                        let extent = clip(extent, block, to);
                        if extent.flags & EXTENT_NEW != 0 {
                            let place = |block: BulkBlock| extent.file_block + (block.get() - extent.bulk_block.get());
                            ranges.extend(which(&extent).into_iter().map(|run| (place(run.first), place(run.end()))));
                        }
                        block = extent.end();
                    }
                }
            }
        }
        Ok(ranges)
    }

    /// Lists the NEW ranges of a file that an earlier process wrote.
    fn list_new(self, ino: Ino, inode: &Inode) -> Result<()> {
        let bulk = self.fs.bulk()?;
        bulk.fresh.list(ino);
        if let Some(stamp) = bulk.note_earlier_on_only() {
            bulk.list_new(ino, FileBlock::ZERO, FileBlock::END, stamp);
            return Ok(());
        }
        let mut block = FileBlock::ZERO;
        while inode.layout == Layout::Extents && block < FileBlock::END {
            match self.fs.large().mapped(inode, block)? {
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) => {
                    if extent.flags & EXTENT_NEW != 0 {
                        let stamp = bulk.note_earlier_write(extent.bulk_block)?;
                        bulk.list_new(ino, extent.file_block, extent.end(), stamp);
                    }
                    block = extent.end();
                }
            }
        }
        Ok(())
    }
}

/// Returns what two ascending lists of ranges have in common.
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
