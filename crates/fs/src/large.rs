//! Data of large files: 64 KiB blocks on the bulk device, under an extent map in the region.
//!
//! Rules, in the order in which things must be durable:
//! - A block that gets its first data is written whole (data with zeros around it), and that write
//!   has completed before the record that maps it commits. The extent is NEW: if the record
//!   survives a power loss and the data do not, the block reads as zeros, never as another file's
//!   old data (invariant 8).
//! - NEW is cleared only by a record that commits after a flush has covered the block's last write.
//! - Data that may have been promised durable in the region are flushed on the bulk device before
//!   the commit of the record that frees the region's copy. The promises at the moment of the
//!   commit count (`shoal-region`, `sync.rs`).
//! - Bytes behind the file's end in its last block are durably zero before a record moves the end
//!   over them. This holds even if the write that moves the end overwrites them, because the record
//!   may survive without the write.
//! - A file is listed as having NEW blocks before the record that maps them commits, so that a settling behind that
//!   record finds it.
//! - Blocks unmapped by a record go to [`crate::bulk`] with its LSN, and are reused when that is
//!   durable.
//!
//! Blocks are written in place; the map changes only when blocks are added, removed or reflagged.
//! Work over many blocks proceeds in steps from the end of the range, each in its own transaction.
//! Left out: the decision which tier a file belongs to (`file`), free blocks (`bulk`), the map's
//! bytes (`extents`), and when NEW is cleared (`settle`).
//!
//! One file of over 500 lines, because a write, a cut and a punch share the rules above and the
//! same private steps.

mod tiers;

use std::sync::atomic::Ordering;

use shoal_bulk::{Behind, Bulk, Run, Stamp, Tail};
use shoal_format::BULK_BLOCK;
use shoal_format::extent::{BulkBlock, EXTENT_NEW, EXTENT_UNWRITTEN, Extent, FileBlock};
use shoal_format::inode::{INODE_HAS_NEW, INODE_TRUNCATING, Inode, Layout};
use shoal_format::slot::SlotRef;
use shoal_region::{Lsn, Tx};

use crate::data_lock::FileLock;
use crate::extents::{MapEdit, Mapped, clip, cut, find, goal_before, put, reflag};
use crate::file::Stretch;
use crate::planted::{Bug, is_planted};
use crate::rooms::Large;
use crate::{Error, Fs, Ino, PlacedRange, Result};

/// Blocks one write step maps at most (1 MiB).
const WRITE_BLOCKS: u64 = 16;
/// Blocks one transaction maps or unmaps at most: their bits must fit in its record.
const STEP_BLOCKS: u64 = 1 << 20;
/// Extents one transaction adds at most: each may rewrite most of a leaf.
const STEP_EXTENTS: usize = 128;
/// Longest file that moves back into the region (bytes), because one record carries it.
pub(crate) const MOVE_BACK_BYTES: u64 = 512 << 10;

/// Returns how many blocks are kept free behind a growing file: as many as it has, within limits.
fn ahead(size: u64) -> u64 {
    (size / BULK_BLOCK).clamp(16, 1024)
}

fn run_of(extent: &Extent) -> Run {
    Run { first: extent.bulk_block, blocks: extent.blocks }
}

/// Fresh blocks of a step: the extents to map and the runs reserved for them. Drop releases the
/// reservation.
struct Mapping<'a> {
    bulk: &'a Bulk,
    extents: Vec<Extent>,
    reserved: Vec<Run>,
}

impl<'a> Mapping<'a> {
    fn new(bulk: &'a Bulk) -> Mapping<'a> {
        Mapping { bulk, extents: Vec::new(), reserved: Vec::new() }
    }

    /// Reserves up to `blocks` for a hole at `file_block`, contiguous with the preceding data if
    /// possible.
    fn reserve(
        &mut self,
        file: &mut FileLock<'_>,
        inode: &mut Inode,
        file_block: FileBlock,
        blocks: u64,
        flags: u32,
    ) -> Result<Extent> {
        let fs = file.fs;
        let goal = match self.extents.last() {
            Some(last) if last.end() == file_block => Some(last.bulk_block + last.blocks),
            _ => goal_before(&fs.region, map_root(inode), file_block, self.bulk.blocks())?,
        };
        let ahead = ahead(inode.size);
        let mut keep = |run| {
            self.reserved.push(run);
            run
        };
        let run = match self.bulk.take(&fs.region, goal, blocks, ahead) {
            Some(run) => keep(run),
            // Kept at once: the file may be gone when the device has finished.
            None => file.device(inode, |bulk| Ok(keep(bulk.reserve(&fs.region, goal, blocks, ahead)?)))?,
        };
        let flags = if is_planted(Bug::FreshNotNew) { flags & !EXTENT_NEW } else { flags };
        let extent = Extent { file_block, blocks: run.blocks, bulk_block: run.first, flags };
        self.extents.push(extent);
        Ok(extent)
    }

    /// Gives back the last reservation after its device failed the write, so that another device
    /// can take its place. Returns false if no other device might take it.
    fn give_back(&mut self, failed: &Extent) -> bool {
        let bulk = self.bulk;
        let is_last = self.reserved.last().is_some_and(|run| *run == run_of(failed));
        if !is_last || self.extents.last() != Some(failed) || !bulk.ails(failed.bulk_block) || !bulk.takes_blocks() {
            return false;
        }
        self.extents.pop();
        self.reserved.pop().into_iter().for_each(|run| bulk.cancel(run));
        true
    }

    /// Puts the extents into the map and marks the reserved blocks used.
    fn store(&self, tx: &mut Tx<'_>, inode: &mut Inode) -> Result<()> {
        let (Some(first), Some(last)) = (self.extents.first(), self.extents.last()) else { return Ok(()) };
        let mut upto = last.end();
        while upto > first.file_block {
            let mut edit = MapEdit::load(tx, inode, first.file_block, upto, self.bulk.blocks())?;
            let start = edit.start;
            for extent in self.extents.iter().filter(|e| e.end() > start && e.file_block < upto) {
                let part = clip(*extent, start, upto);
                cut(&mut edit.extents, part.file_block, part.end());
                put(&mut edit.extents, part);
            }
            edit.store(tx, inode)?;
            upto = start;
        }
        for &run in &self.reserved {
            self.bulk.mark_used(tx, run)?;
            inode.allocated += run.blocks * BULK_BLOCK;
        }
        Ok(())
    }

    /// Lists the NEW blocks after the transaction has committed. The data writes came before it.
    fn committed(mut self, ino: Ino) -> Result<()> {
        self.reserved.clear();
        for extent in self.extents.iter().filter(|e| e.flags & EXTENT_NEW != 0) {
            let stamp = self.bulk.stamp_at(extent.bulk_block)?;
            self.bulk.list_new(ino, extent.file_block, extent.end(), stamp);
        }
        Ok(())
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        self.reserved.iter().for_each(|&run| self.bulk.cancel(run));
    }
}

/// Returns the byte of the device where byte `position` of the file is.
fn byte_of(extent: &Extent, position: u64) -> u64 {
    extent.bulk_block.byte() + (position - extent.file_block.byte())
}

/// Bytes of a file that are contiguous on the device, or zeros.
#[derive(PartialEq, Eq)]
pub(crate) struct Span {
    len: usize,
    at: Option<u64>,
}

impl Span {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its place on the device; none for zeros.
    pub fn at(&self) -> Option<u64> {
        self.at
    }
}

/// Fills `out` from spans of the same total length.
pub(crate) fn read_spans(fs: &Fs, spans: &[Span], mut out: &mut [u8]) -> Result<()> {
    let bulk = fs.bulk()?;
    for span in spans {
        let (part, rest) = out.split_at_mut(span.len);
        match span.at {
            Some(at) => bulk.read(&fs.region, at, part)?,
            None => part.fill(0),
        }
        out = rest;
    }
    Ok(())
}

fn map_root(inode: &Inode) -> SlotRef {
    if inode.layout == Layout::Extents { inode.root } else { SlotRef::NONE }
}

impl Fs {
    pub(crate) fn bulk(&self) -> Result<&Bulk> {
        self.bulk.as_ref().ok_or_else(|| Error::Io("the bulk device is not attached; mount with it".into()))
    }
}

impl<'a> Large<'a> {
    pub(crate) fn mapped(self, inode: &Inode, block: FileBlock) -> Result<Mapped> {
        find(&self.fs.region, map_root(inode), block, self.fs.bulk()?.blocks())
    }

    /// Returns the extent with the bytes of `block`, or, for a block without data, the next block
    /// to look at.
    fn data_at(self, inode: &Inode, block: FileBlock) -> Result<std::result::Result<Extent, FileBlock>> {
        Ok(match self.mapped(inode, block)? {
            Mapped::At(extent) if extent.flags & EXTENT_UNWRITTEN == 0 => self.trusted(extent, block)?,
            Mapped::At(extent) => Err(extent.end()),
            Mapped::Hole { until } => Err(until),
        })
    }

    /// Returns what a reader may read of an extent with data, from `block` on. In a read-only
    /// store, recovery could not turn NEW blocks that cannot be trusted into unwritten ones. In a
    /// failed store the next recovery does.
    pub(crate) fn trusted(self, extent: Extent, block: FileBlock) -> Result<std::result::Result<Extent, FileBlock>> {
        if extent.flags & EXTENT_NEW == 0 {
            return Ok(Ok(extent));
        }
        let rest = clip(extent, block, extent.end());
        if !self.fs.region.is_read_only() {
            if self.fs.region.failure().is_none() {
                return Ok(Ok(extent));
            }
            let readable = self.fs.bulk()?.devices().left_by_failure(&rest)?;
            return Ok(Ok(clip(extent, extent.file_block, block + readable)));
        }
        if self.fs.power_lost {
            return Ok(Err(extent.end()));
        }
        let place = |bulk_block: BulkBlock| rest.file_block + (bulk_block.get() - rest.bulk_block.get());
        Ok(match self.fs.bulk()?.devices().untrusted(&rest).first() {
            Some(run) if run.first == rest.bulk_block => Err(place(run.end())),
            Some(run) => Ok(clip(extent, extent.file_block, place(run.first))),
            None => Ok(extent),
        })
    }

    /// Stores the inode, commits, and updates the number of large files.
    pub(crate) fn commit_large(self, mut tx: Tx<'_>, ino: Ino, before: Layout, inode: &Inode) -> Result<Lsn> {
        self.fs.store(&mut tx, ino, inode)?;
        let lsn = tx.commit()?;
        self.count_large(before, inode);
        Ok(lsn)
    }

    fn count_large(self, before: Layout, inode: &Inode) {
        match (before == Layout::Extents, inode.layout == Layout::Extents) {
            (false, true) => drop(self.fs.counts.large_files.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.fs.counts.large_files.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// Returns where `len` bytes from `at` on are, in order. The caller has clipped them to the
    /// file's size.
    pub(crate) fn spans(self, inode: &Inode, at: u64, len: usize) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        let mut done = 0;
        while done < len {
            let position = at + done as u64;
            let found = self.data_at(inode, FileBlock::of(position))?;
            let until = found.map_or_else(|until| until, |extent| extent.end()).byte();
            let span = Span {
                len: (until - position).min((len - done) as u64) as usize,
                at: found.ok().map(|extent| byte_of(&extent, position)),
            };
            done += span.len;
            spans.push(span);
        }
        Ok(spans)
    }

    /// Returns what the file's bytes from `at` on are.
    pub(crate) fn large_segment_at(self, inode: &Inode, at: u64) -> Result<Stretch> {
        Ok(match self.data_at(inode, FileBlock::of(at))? {
            Ok(extent) => Stretch { is_data: true, until: extent.end().byte() },
            Err(until) => Stretch { is_data: false, until: until.byte() },
        })
    }

    /// Adds to `device` the byte ranges where the data of blocks `[from, to)` are.
    pub(crate) fn data_ranges(
        self,
        inode: &Inode,
        from: FileBlock,
        to: FileBlock,
        device: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        let mut block = from;
        while block < to {
            match self.mapped(inode, block)? {
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) => {
                    let part = clip(extent, block, to);
                    block = extent.end();
                    if extent.flags & EXTENT_UNWRITTEN == 0 {
                        device.push((part.bulk_block.byte(), part.blocks * BULK_BLOCK));
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn large_pieces(self, inode: &Inode) -> Result<Vec<PlacedRange>> {
        let mut pieces = Vec::new();
        let mut block = FileBlock::ZERO;
        while block < FileBlock::END {
            match self.mapped(inode, block)? {
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) => {
                    pieces.push(PlacedRange {
                        file_at: extent.file_block.byte(),
                        len: extent.blocks * BULK_BLOCK,
                        at: extent.bulk_block.byte(),
                        stored: extent.blocks * BULK_BLOCK,
                        bulk: true,
                        new: extent.flags & EXTENT_NEW != 0,
                        unwritten: extent.flags & EXTENT_UNWRITTEN != 0,
                        spilled: false,
                    });
                    block = extent.end();
                }
            }
        }
        Ok(pieces)
    }

    /// Writes a prefix of `bytes` (at most 1 MiB) at byte `at` and returns its length. The caller has set the times.
    pub(crate) fn write_large(
        self,
        file: &mut FileLock<'_>,
        inode: &mut Inode,
        at: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        let reaches_behind = at + bytes.len() as u64 > inode.size;
        let outcome = self.write_blocks(file, inode, at, bytes);
        if outcome.is_err() && reaches_behind && !is_planted(Bug::CleanTail) {
            // Part of it may have reached the last block behind the end, where nobody owns the
            // data.
            self.fs.bulk()?.fresh.set_tail(file.ino, Tail::Ragged);
        }
        outcome
    }

    fn write_blocks(self, file: &mut FileLock<'_>, inode: &mut Inode, at: u64, bytes: &[u8]) -> Result<usize> {
        let (bulk, region, ino, patience) = (self.fs.bulk()?, &self.fs.region, file.ino, file.manner.patience);
        let first = FileBlock::of(at);
        let mut end = (at + bytes.len() as u64).min((first + WRITE_BLOCKS).byte());
        let last = FileBlock::ceil(end);
        self.zero_tail(file, inode, end)?;
        let mut mapping = Mapping::new(bulk);
        let mut fresh_tail = false;
        // Everything before this byte went to blocks that already held data.
        let mut kept = at;
        let mut block = first;
        while block < last {
            let (extent, in_place) = match self.mapped(inode, block)? {
                // Existing data are overwritten only once what comes before is in the map.
                Mapped::At(extent) if extent.flags & EXTENT_UNWRITTEN == 0 && !mapping.extents.is_empty() => {
                    end = block.byte();
                    break;
                }
                Mapped::At(extent) if extent.flags & EXTENT_UNWRITTEN == 0 => (clip(extent, block, last), true),
                Mapped::At(extent) => {
                    let extent = Extent { flags: EXTENT_NEW, ..clip(extent, block, last) };
                    mapping.extents.push(extent);
                    (extent, false)
                }
                Mapped::Hole { until } => {
                    match mapping.reserve(file, inode, block, until.min(last) - block, EXTENT_NEW) {
                        Ok(extent) => (extent, false),
                        // The bytes before it can still be kept.
                        Err(Error::NoSpace(_)) if block > first => {
                            end = block.byte();
                            break;
                        }
                        Err(error) => return Err(error),
                    }
                }
            };
            let (from, to, size) = (at.max(extent.file_block.byte()), end.min(extent.end().byte()), inode.size);
            let part = &bytes[(from - at) as usize..(to - at) as usize];
            let place = byte_of(&extent, from);
            bulk.belongs(ino, place, part.len() as u64);
            let written = file.device(inode, |bulk| match in_place || is_planted(Bug::PartialBlock) {
                true => Ok(bulk.write(region, place, part, Behind::of(to, size), patience)?),
                false => self.write_whole(bulk, &extent, place, part),
            });
            let write = match written {
                Err(Error::Io(_)) if !in_place && mapping.give_back(&extent) => continue,
                written => written?,
            };
            bulk.wrote(ino, write);
            fresh_tail = !in_place;
            kept = if in_place { to } else { kept };
            block = extent.end();
        }
        let before = *inode;
        // The data writes have completed; the record that maps their blocks follows. Spilling makes
        // room, so it may use the reserve.
        let mut tx = if self.fs.spill.file() == Some(ino) { region.begin_reclaim() } else { region.begin() };
        match mapping.store(&mut tx, inode) {
            Err(Error::NoSpace(_)) if kept > at => {
                // The map has no room, but the front is written, in blocks that the file had.
                drop(tx);
                *inode = Inode { size: before.size.max(kept), ..before };
                self.commit_large(region.begin_reclaim(), ino, before.layout, inode)?;
                bulk.fresh.set_tail(ino, Tail::Ragged);
                return Ok((kept - at) as usize);
            }
            outcome => outcome?,
        }
        if !mapping.extents.is_empty() && !is_planted(Bug::HasNewFlag) {
            inode.flags |= INODE_HAS_NEW;
            bulk.fresh.list(ino);
        }
        inode.size = inode.size.max(end);
        self.commit_large(tx, ino, before.layout, inode)?;
        mapping.committed(ino)?;
        if fresh_tail && inode.size == end {
            bulk.fresh.set_tail(ino, Tail::Clean);
        }
        Ok((end - at) as usize)
    }

    /// Makes the rest of the last block zero before the end moves to `to`. The flush makes the
    /// zeros durable before the record that moves the end: bytes cut off earlier must not come
    /// back. A file whose last block this process filled needs neither. If the zeros were already
    /// there when the store was opened, only a flush that covers the writes of earlier processes is
    /// needed.
    pub(crate) fn zero_tail(self, file: &mut FileLock<'_>, inode: &mut Inode, to: u64) -> Result<()> {
        let within = inode.size % BULK_BLOCK;
        if inode.layout != Layout::Extents || to <= inode.size || within == 0 {
            return Ok(());
        }
        let (bulk, ino, patience) = (self.fs.bulk()?, file.ino, file.manner.patience);
        let tail = bulk.fresh.tail(ino);
        if tail == Tail::Clean || is_planted(Bug::ZeroTail) {
            return Ok(());
        }
        if let Ok(extent) = self.data_at(inode, FileBlock::of(inode.size))? {
            let (at, end) = (byte_of(&extent, inode.size), FileBlock::of(inode.size));
            let last = run_of(&clip(extent, end, end + 1));
            let is_flushed = file.device(inode, |bulk| {
                let mut rest = vec![0; (BULK_BLOCK - within) as usize];
                let is_zero = tail == Tail::Untouched
                    && bulk.read(&self.fs.region, at, &mut rest).is_ok()
                    && rest.iter().all(|&byte| byte == 0);
                if !is_zero {
                    // Set before the write: if it fails, the next read may find zeros that are not
                    // durable.
                    bulk.fresh.set_tail(ino, Tail::Ragged);
                    rest.fill(0);
                    bulk.belongs(ino, at, rest.len() as u64);
                    bulk.write(&self.fs.region, at, &rest, Behind::Owned, patience)?;
                }
                let must_flush = !is_zero || !bulk.has_flushed(extent.bulk_block);
                if must_flush && !is_planted(Bug::ZeroTailFlush) {
                    bulk.flush_runs(&self.fs.region, [last], patience)?;
                }
                Ok(must_flush)
            })?;
            if is_flushed && extent.flags & EXTENT_NEW != 0 {
                // Nothing of the block is held back, and all of it is durable. If it stayed NEW, it
                // would read as zeros if its device is in doubt after a crash.
                let (mtime, ctime) = (inode.mtime, inode.ctime);
                *inode = self.fs.load(ino)?;
                self.change_flags(ino, inode, &[(end, end + 1)], |flags| flags & !EXTENT_NEW)?;
                (inode.mtime, inode.ctime) = (mtime, ctime);
            }
        }
        bulk.fresh.set_tail(ino, Tail::Clean);
        Ok(())
    }

    /// Zeroes bytes of one block, if it holds data.
    fn zero_in_place(self, file: &mut FileLock<'_>, inode: &mut Inode, from: u64, to: u64) -> Result<()> {
        if from < to
            && let Ok(extent) = self.data_at(inode, FileBlock::of(from))?
        {
            debug_assert_eq!(FileBlock::of(from), FileBlock::of(to - 1));
            let zeros = vec![0; (to - from) as usize];
            let (place, behind, patience) = (byte_of(&extent, from), Behind::of(to, inode.size), file.manner.patience);
            self.fs.bulk()?.belongs(file.ino, place, to - from);
            let write =
                file.device(inode, |bulk| Ok(bulk.write(&self.fs.region, place, &zeros, behind, patience)?))?;
            self.fs.bulk()?.wrote(file.ino, write);
        }
        Ok(())
    }

    /// Unmaps blocks of `[start, end)`, the last ones first. Returns them, and the block from which
    /// on nothing is mapped now.
    pub(crate) fn unmap(
        self,
        tx: &mut Tx<'_>,
        inode: &mut Inode,
        start: FileBlock,
        end: FileBlock,
    ) -> Result<(Vec<Run>, FileBlock)> {
        let bulk = self.fs.bulk()?;
        let mut edit = MapEdit::load(&self.fs.region, inode, start, end, bulk.blocks())?;
        let mut from = edit.start;
        let mut blocks = 0;
        for extent in edit.extents.iter().rev().filter(|e| e.file_block < end && e.end() > from) {
            let part = clip(*extent, from, end);
            if blocks + part.blocks > STEP_BLOCKS {
                from = part.file_block + (blocks + part.blocks - STEP_BLOCKS);
                break;
            }
            blocks += part.blocks;
        }
        let runs: Vec<Run> = cut(&mut edit.extents, from, end).iter().map(run_of).collect();
        for &run in &runs {
            bulk.mark_free(tx, run)?;
            inode.allocated = inode.allocated.saturating_sub(run.blocks * BULK_BLOCK);
        }
        edit.store(tx, inode)?;
        if inode.layout == Layout::Empty {
            inode.flags &= !INODE_HAS_NEW;
        }
        Ok((runs, from))
    }

    /// Notes the blocks freed by an [`Large::unmap`], after its commit.
    pub(crate) fn unmapped(
        self,
        ino: Ino,
        inode: &Inode,
        lsn: Lsn,
        runs: &[Run],
        from: FileBlock,
        to: FileBlock,
    ) -> Result<()> {
        let bulk = self.fs.bulk()?;
        bulk.freed(lsn, runs);
        if inode.layout == Layout::Empty {
            bulk.fresh.forget(ino);
        } else {
            bulk.fresh.remove(ino, from, to);
        }
        Ok(())
    }

    /// Cuts the file off at `size`, in steps; recovery continues them after a crash.
    pub(crate) fn truncate_large(self, ino: Ino, inode: &mut Inode, size: u64) -> Result<()> {
        let keep = FileBlock::ceil(size);
        let mut upto = FileBlock::END;
        self.fs.bulk()?.fresh.set_tail(ino, Tail::Ragged);
        loop {
            let before = inode.layout;
            let mut tx = self.fs.region.begin_reclaim();
            let (runs, from) = self.unmap(&mut tx, inode, keep, upto)?;
            inode.size = size;
            inode.flags = inode.flags & !INODE_TRUNCATING | if from > keep { INODE_TRUNCATING } else { 0 };
            let lsn = self.commit_large(tx, ino, before, inode)?;
            self.unmapped(ino, inode, lsn, &runs, from, upto)?;
            upto = from;
            if upto <= keep {
                return Ok(());
            }
        }
    }

    /// Turns whole blocks into a hole and zeroes the parts at both ends.
    pub(crate) fn punch_large(self, file: &mut FileLock<'_>, inode: &mut Inode, at: u64, mut end: u64) -> Result<()> {
        let ino = file.ino;
        if end >= inode.size {
            // Nobody owns the part of the last block behind the end.
            end = end.next_multiple_of(BULK_BLOCK);
        }
        let (first, last) = (FileBlock::ceil(at), FileBlock::of(end));
        self.zero_ends(file, inode, at, end)?;
        let mut upto = last;
        loop {
            let before = inode.layout;
            let mut tx = self.fs.region.begin_reclaim();
            let mut done = (Vec::new(), first);
            if upto > first {
                done = self.unmap(&mut tx, inode, first, upto)?;
            }
            let (runs, from) = done;
            let lsn = self.commit_large(tx, ino, before, inode)?;
            self.unmapped(ino, inode, lsn, &runs, from, upto.max(from))?;
            upto = from;
            if upto <= first {
                return Ok(());
            }
        }
    }

    /// Zeroes the parts of `[at, end)` that do not fill whole blocks.
    fn zero_ends(self, file: &mut FileLock<'_>, inode: &mut Inode, at: u64, end: u64) -> Result<()> {
        let fresh = &self.fs.bulk()?.fresh;
        if end > inode.size && fresh.tail(file.ino) != Tail::Clean {
            // Zeros behind the end that no flush covers must not count as earlier device contents.
            fresh.set_tail(file.ino, Tail::Ragged);
        }
        let (first, last) = (FileBlock::ceil(at), FileBlock::of(end));
        if is_planted(Bug::PunchEnds) {
            return Ok(());
        }
        if first > last {
            return self.zero_in_place(file, inode, at, end);
        }
        self.zero_in_place(file, inode, at, first.byte())?;
        self.zero_in_place(file, inode, last.byte(), end)
    }

    /// Backs the holes in `[at, end)` with blocks that read as zeros. With `erase` everything in
    /// the range reads as zeros afterwards. The caller stores size and times.
    pub(crate) fn allocate_large(
        self,
        file: &mut FileLock<'_>,
        inode: &mut Inode,
        at: u64,
        end: u64,
        erase: bool,
    ) -> Result<()> {
        let (bulk, ino) = (self.fs.bulk()?, file.ino);
        let (first, last) = (FileBlock::of(at), FileBlock::ceil(end));
        let mut missing = 0;
        let mut block = first;
        while block < last {
            match self.mapped(inode, block)? {
                Mapped::At(extent) => block = extent.end(),
                Mapped::Hole { until } => {
                    missing += until.min(last) - block;
                    block = until;
                }
            }
        }
        if missing > bulk.free_blocks() + bulk.pending_blocks() {
            return Err(Error::NO_SPACE);
        }
        if erase && inode.layout == Layout::Extents {
            self.zero_ends(file, inode, at, end)?;
            let (from, to) = (FileBlock::ceil(at), FileBlock::of(end));
            self.change_flags(ino, inode, &[(from, to)], |_| EXTENT_UNWRITTEN)?;
        }
        block = first;
        while block < last {
            let mut mapping = Mapping::new(bulk);
            let mut blocks = 0;
            while block < last && blocks < STEP_BLOCKS && mapping.extents.len() < STEP_EXTENTS {
                match self.mapped(inode, block)? {
                    Mapped::At(extent) => block = extent.end(),
                    Mapped::Hole { until } => {
                        let want = (until.min(last) - block).min(STEP_BLOCKS - blocks);
                        let extent = mapping.reserve(file, inode, block, want, EXTENT_UNWRITTEN)?;
                        block = extent.end();
                        blocks += extent.blocks;
                    }
                }
            }
            if !mapping.extents.is_empty() {
                let before = inode.layout;
                let mut tx = self.fs.region.begin();
                mapping.store(&mut tx, inode)?;
                self.commit_large(tx, ino, before, inode)?;
                mapping.committed(ino)?;
            }
        }
        Ok(())
    }

    /// Changes the flags of the extents within `ranges` (ascending), in steps from the end, and
    /// removes the ranges from the list of NEW blocks.
    pub(crate) fn change_flags(
        self,
        ino: Ino,
        inode: &mut Inode,
        ranges: &[(FileBlock, FileBlock)],
        change: impl Fn(u32) -> u32,
    ) -> Result<()> {
        let (Some(&(low, _)), Some(&(_, mut upto))) = (ranges.first(), ranges.last()) else { return Ok(()) };
        let bulk = self.fs.bulk()?;
        while upto > low {
            let mut edit = MapEdit::load(&self.fs.region, inode, low, upto, bulk.blocks())?;
            let start = edit.start;
            for &(from, to) in ranges {
                reflag(&mut edit.extents, from.max(start), to.min(upto), &change);
            }
            // Splitting and joining may need a leaf; a full store must still be able to settle.
            let mut tx = self.fs.region.begin_reclaim();
            edit.store(&mut tx, inode)?;
            if tx.payload_bytes() > 0 {
                self.fs.store(&mut tx, ino, inode)?;
                tx.commit()?;
            }
            for &(from, to) in ranges {
                bulk.fresh.remove(ino, from.max(start), to.min(upto));
            }
            upto = start;
        }
        Ok(())
    }

    /// Writes all blocks of a fresh extent: `bytes` at byte `place` of the device, zeros before and behind them.
    fn write_whole(self, bulk: &Bulk, extent: &Extent, place: u64, bytes: &[u8]) -> Result<Stamp> {
        let (start, stop) = (extent.bulk_block.byte(), (extent.bulk_block + extent.blocks).byte());
        let end = place + bytes.len() as u64;
        let body = (place.next_multiple_of(BULK_BLOCK), end / BULK_BLOCK * BULK_BLOCK);
        let block_of = |at: u64, part: &[u8]| {
            let mut block = vec![0; BULK_BLOCK as usize];
            let within = (at % BULK_BLOCK) as usize;
            block[within..within + part.len()].copy_from_slice(part);
            bulk.fill(&self.fs.region, BulkBlock::new(at / BULK_BLOCK), &block)
        };
        debug_assert!(place - start < BULK_BLOCK && stop - end < BULK_BLOCK, "every block gets some of the bytes");
        if body.0 > body.1 {
            return Ok(block_of(place, bytes)?);
        }
        let (head, rest) = bytes.split_at((body.0 - place) as usize);
        let (middle, tail) = rest.split_at((body.1 - body.0) as usize);
        let mut write = None;
        if !head.is_empty() {
            write = Some(block_of(place, head)?);
        }
        if !tail.is_empty() {
            write = Some(block_of(body.1, tail)?);
        }
        if !middle.is_empty() {
            write = Some(bulk.fill(&self.fs.region, BulkBlock::new(body.0 / BULK_BLOCK), middle)?);
        }
        Ok(write.expect("every block gets some of the bytes"))
    }
}

#[cfg(test)]
#[path = "large/files_tests.rs"]
mod files_tests;
