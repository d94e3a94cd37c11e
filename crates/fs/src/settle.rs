//! Settling: makes the data of large files durable and clears NEW from what a flush has covered.
//!
//! Rules:
//! - NEW is cleared only by a record that commits after a flush covering the block's last write completed.
//! - A caller that vouches for files calls [`Region::promise`](shoal_region::Region::promise) first, then settles, then makes the log
//!   durable.
//! - A file whose old contents were cut off whole is settled before the log is flushed for whatever reason, so that the
//!   record of the cut is not durable before the contents that followed it.
//! - After a power loss NEW becomes unwritten, before anybody reads.
//!
//! Left out: what is NEW, and since which write (`bulk/fresh`); the map (`large`, `extents`).

use shoal_format::extent::{EXTENT_NEW, EXTENT_UNWRITTEN, FileBlock};
use shoal_format::inode::{INODE_HAS_NEW, Inode, Layout};

use crate::bulk::Flushed;
use crate::extents::Mapped;
use crate::planted::{Bug, is_planted};
use crate::{Error, Fs, Ino, Result};

fn unwritten(flags: u32) -> u32 {
    if flags & EXTENT_NEW != 0 { EXTENT_UNWRITTEN } else { flags }
}

impl Fs {
    /// Flushes each bulk device once and clears NEW from everything written before that flush; then makes blocks free
    /// whose freeing is durable. Files on a device that is closed stay as they are, and hold up nobody.
    pub(crate) fn settle_new(&self) -> Result<()> {
        let Some(bulk) = &self.bulk else { return Ok(()) };
        let now = self.clock.monotonic_ns();
        let flushed = bulk.flush(&self.region)?;
        for ino in bulk.fresh.files() {
            self.clear_new(ino, &flushed)?;
        }
        bulk.fresh.replaced.flushed(now);
        bulk.reclaim(&self.region)
    }

    /// The same for one device alone: the others may be slow.
    pub(crate) fn settle_device(&self, number: u32) -> Result<()> {
        let Some(bulk) = &self.bulk else { return Ok(()) };
        let now = self.clock.monotonic_ns();
        let flushed = bulk.flush_on(&self.region, number)?;
        for ino in bulk.fresh.files() {
            self.clear_new(ino, &flushed)?;
        }
        if !bulk.needs_flush() {
            // Listed files may have data on any device.
            bulk.fresh.replaced.flushed(now);
        }
        Ok(())
    }

    /// Before the log is flushed for another file's sake: contents that took the place of those cut off must not be
    /// missing when the cut becomes durable.
    pub(crate) fn settle_replaced(&self) -> Result<()> {
        let Some(bulk) = &self.bulk else { return Ok(()) };
        let now = self.clock.monotonic_ns();
        let replaced = bulk.fresh.pending(|ino| bulk.is_flushed(ino));
        if !replaced.is_empty() {
            let flushed = bulk.flush_files(&self.region, &replaced)?;
            for ino in replaced {
                self.clear_new(ino, &flushed)?;
            }
        }
        bulk.fresh.replaced.flushed(now);
        Ok(())
    }

    /// Are there files whose contents took the place of those cut off and are not durable yet?
    pub(crate) fn has_replaced(&self) -> bool {
        let Some(bulk) = &self.bulk else { return false };
        !bulk.fresh.pending(|ino| bulk.is_flushed(ino)).is_empty()
    }

    /// Has a flush covered all of a large file's data, and is none of it NEW? The caller holds its lock.
    pub(crate) fn is_settled(&self, ino: Ino, inode: &Inode) -> bool {
        let Some(bulk) = &self.bulk else { return true };
        inode.layout != Layout::Extents || bulk.fresh.is_settled(ino) && bulk.is_flushed(ino)
    }

    /// Makes a large file's data durable and clears NEW. The caller holds no locks.
    pub(crate) fn settle_file(&self, ino: Ino) -> Result<()> {
        let flushed = self.bulk()?.flush_files(&self.region, &[ino])?;
        self.clear_new(ino, &flushed)?;
        self.refuse_doubtful(ino)
    }

    /// Fails if some of a large file cannot be proven to be durable, because its bulk device was closed or lost.
    pub(crate) fn refuse_doubtful(&self, ino: Ino) -> Result<()> {
        let bulk = self.bulk()?;
        if bulk.is_whole() {
            return Ok(());
        }
        let _lock = self.locks.read(ino);
        let inode = self.load(ino)?;
        let mut block = FileBlock::ZERO;
        while inode.layout == Layout::Extents && block < FileBlock::END {
            match self.mapped(&inode, block)? {
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) => {
                    bulk.refuse_doubtful(&extent)?;
                    block = extent.end();
                }
            }
        }
        Ok(())
    }

    /// Clears NEW from the file's extents that completed flushes cover. Under the file's lock the list of such
    /// ranges cannot change: blocks written after the flush was submitted carry later numbers and stay NEW.
    pub(crate) fn clear_new(&self, ino: Ino, flushed: &Flushed) -> Result<()> {
        let _lock = self.locks.write(ino);
        let bulk = self.bulk()?;
        let Some(ranges) = bulk.fresh.settled(ino, flushed) else { return Ok(()) };
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
            if inode.layout == Layout::Extents && bulk.has_unsettled() {
                let distrusted = self.distrust_new(ino, &mut inode);
                self.past_damage(ino, distrusted)?;
            }
            return self.past_damage(ino, self.list_new(ino, &inode)).map(drop);
        }
        if inode.layout == Layout::Extents {
            let changed = self.change_flags(ino, &mut inode, &[(FileBlock::ZERO, FileBlock::END)], unwritten);
            if self.past_damage(ino, changed)?.is_none() {
                self.settle_in_place(&inode, &[(FileBlock::ZERO, FileBlock::MAX)], true)?;
            }
        }
        self.clear_has_new(ino, &mut inode)
    }

    /// What is NEW on a device that was away meanwhile becomes unwritten, as after a power loss. The caller holds the file's lock.
    fn distrust_new(&self, ino: Ino, inode: &mut Inode) -> Result<()> {
        let bulk = self.bulk()?;
        let mut ranges = Vec::new();
        let mut block = FileBlock::ZERO;
        while block < FileBlock::END {
            match self.mapped(inode, block)? {
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) => {
                    if extent.flags & EXTENT_NEW != 0 && bulk.is_untrusted(&extent) {
                        ranges.push((extent.file_block, extent.end()));
                    }
                    block = extent.end();
                }
            }
        }
        self.change_flags(ino, inode, &ranges, unwritten)
    }

    /// Before a device that was away is used again: what of any file is NEW there becomes unwritten.
    pub(crate) fn distrust_device(&self, number: u32) -> Result<()> {
        let bulk = self.bulk()?;
        for ino in bulk.fresh.files() {
            let _lock = self.locks.write(ino);
            let ranges = bulk.fresh.on_device(ino, number);
            let mut inode = match self.load(ino) {
                Err(Error::Stale | Error::Corrupt(_)) => continue,
                other => other?,
            };
            if inode.layout == Layout::Extents {
                let changed = self.change_flags(ino, &mut inode, &ranges, unwritten);
                self.past_damage(ino, changed)?;
            }
        }
        Ok(())
    }

    /// Lists what of a file is NEW since an earlier process wrote it.
    fn list_new(&self, ino: Ino, inode: &Inode) -> Result<()> {
        let bulk = self.bulk()?;
        bulk.fresh.list(ino);
        if let Some((stamp, submitted)) = bulk.note_earlier_on_only() {
            bulk.fresh.add(ino, FileBlock::ZERO, FileBlock::END, stamp, submitted);
            return Ok(());
        }
        let mut block = FileBlock::ZERO;
        while inode.layout == Layout::Extents && block < FileBlock::END {
            match self.mapped(inode, block)? {
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) => {
                    if extent.flags & EXTENT_NEW != 0 {
                        let (stamp, submitted) = bulk.note_earlier_write(extent.bulk_block)?;
                        bulk.fresh.add(ino, extent.file_block, extent.end(), stamp, submitted);
                    }
                    block = extent.end();
                }
            }
        }
        Ok(())
    }
}
