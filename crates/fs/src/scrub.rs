//! Scrubbing: reads every byte of large and spilled files and compares it with its checksum; data
//! without a checksum get one.
//!
//! Damage that nobody reads stays unnoticed until the other copy is gone, too. A scrub finds it
//! while there may still be one. It goes in steps of bounded length through a file and from file to
//! file, so that a caller may stop, rest, or show progress. A file's data lock is shared during a
//! step: readers continue, and a writer waits for one read of the device.
//! Left out: who calls it, and when.

use std::collections::BTreeSet;

use shoal_bulk::Covered;
use shoal_format::BULK_BLOCK;
use shoal_format::extent::{EXTENT_UNWRITTEN, Extent, FileBlock};
use shoal_format::inode::{INODES_PER_BLOCK, Inode, InodeSlot, Layout};

use crate::extents::{Mapped, clip};
use crate::rooms::Upkeep;
use crate::{Error, Ino, Result};

/// Blocks that are read at once.
const READ_BLOCKS: u64 = 16;

/// Where a scrub continues: a file, and a byte in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubPlace {
    pub ino: u64,
    pub byte: u64,
}

/// A block of a file that is damaged or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubFinding {
    pub ino: Ino,
    /// Where in the file the block begins.
    pub byte: u64,
    /// True if the checksum is wrong; false if the device reports an error.
    pub damaged: bool,
    pub cause: String,
}

/// What a step of a scrub did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes read and compared, or found without a checksum.
    pub bytes: u64,
    /// Bytes of these that had no checksum and have one now.
    pub covered: u64,
    /// Bytes of these without a checksum: their device has no table for them.
    pub without: u64,
    pub findings: Vec<ScrubFinding>,
    /// `None`: the scrub is over.
    pub next: Option<ScrubPlace>,
}

/// A device that holds writes back for longer than this is meant to stand still (ns).
const STANDS_STILL_NS: u64 = 120_000_000_000;

impl<'a> Upkeep<'a> {
    /// Does [`Upkeep::scrub_step`] in idle time: `None` if others are at work, or a device is meant
    /// to stand still.
    pub fn scrub_tick(self, from: ScrubPlace, bytes: u64) -> Result<Option<Scrubbed>> {
        let Some(bulk) = &self.fs.bulk else { return Ok(Some(Scrubbed::default())) };
        let stands_still = |number| bulk.held_ns(number).is_some_and(|held| held > STANDS_STILL_NS);
        let now = self.fs.clock.monotonic_ns();
        if self.fs.writable().is_err()
            || bulk.numbers().into_iter().any(stands_still)
            || !self.fs.idle.lock().is_idle(&self.fs.region, now)
        {
            return Ok(None);
        }
        let begun = self.fs.region.last_lsn();
        let done = self.scrub_step(from, bytes)?;
        self.fs.idle.lock().own_bytes(self.fs.region.last_lsn().saturating_since(begun));
        Ok(Some(done))
    }

    /// Scrubs about `bytes` bytes from a place on, in the order of inode numbers.
    pub fn scrub_step(self, from: ScrubPlace, bytes: u64) -> Result<Scrubbed> {
        let mut done = Scrubbed::default();
        let mut at = from;
        loop {
            let Some(ino) = self.large_file_from(at.ino)? else { return Ok(done) };
            if u64::from(ino) != at.ino {
                at = ScrubPlace { ino: u64::from(ino), byte: 0 };
            }
            match self.scrub_some(ino, FileBlock::of(at.byte), &mut done)? {
                Some(block) => at.byte = block.byte(),
                None => at = ScrubPlace { ino: u64::from(ino) + 1, byte: 0 },
            }
            if done.bytes >= bytes {
                done.next = Some(at);
                return Ok(done);
            }
        }
    }

    /// Returns the first large file with this number or a higher one.
    fn large_file_from(self, number: u64) -> Result<Option<Ino>> {
        let first = number / INODES_PER_BLOCK;
        for block in first..self.fs.table.blocks() {
            let mut found = None;
            self.fs.table.for_block(&self.fs.region, block, &mut |ino, slot| {
                let is_large = matches!(slot, InodeSlot::Used(inode) if inode.layout == Layout::Extents);
                if is_large && u64::from(ino) >= number && found.is_none_or(|found| ino < found) {
                    found = Some(ino);
                }
            })?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Scrubs up to [`READ_BLOCKS`] blocks of a file from `block` on; returns where to continue in
    /// it.
    fn scrub_some(self, ino: Ino, block: FileBlock, done: &mut Scrubbed) -> Result<Option<FileBlock>> {
        let _data = self.fs.data_locks.read(ino);
        let found = {
            let _lock = self.fs.locks.read(ino);
            match self.fs.load(ino) {
                Ok(inode) if inode.layout == Layout::Extents => self.written_from(&inode, block),
                // The file is gone, or small now.
                Ok(_) | Err(Error::Stale | Error::NotFound) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let part = match found {
            Ok(Some(extent)) => clip(extent, extent.file_block.max(block), extent.file_block.max(block) + READ_BLOCKS),
            Ok(None) => return Ok(None),
            Err(Error::Corrupt(cause)) => {
                done.findings.push(ScrubFinding { ino, byte: block.byte(), damaged: false, cause });
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let bulk = self.fs.bulk()?;
        let mut bytes = vec![0; (part.blocks * BULK_BLOCK) as usize];
        let scrubbed = match bulk.scrub(&self.fs.region, part.bulk_block.byte(), &mut bytes).map_err(Error::from) {
            Err(Error::Damaged { .. } | Error::Io(_)) => self.scrub_each(ino, &part, &mut bytes, done),
            outcome => outcome,
        };
        let Covered { bytes: covered, without } = scrubbed?;
        if self.fs.devices().is_spill_file(ino) {
            self.name_spilled(&part, done)?;
        }
        done.bytes += bytes.len() as u64;
        done.covered += covered;
        done.without += without;
        Ok(Some(part.end()))
    }

    /// Scrubs block by block, to find out which blocks are wrong.
    fn scrub_each(self, ino: Ino, part: &Extent, bytes: &mut [u8], done: &mut Scrubbed) -> Result<Covered> {
        let bulk = self.fs.bulk()?;
        let mut all = Covered::default();
        for (number, block) in (0..).zip(bytes.chunks_exact_mut(BULK_BLOCK as usize)) {
            match bulk.scrub(&self.fs.region, (part.bulk_block + number).byte(), block).map_err(Error::from) {
                Ok(Covered { bytes, without }) => {
                    all.bytes += bytes;
                    all.without += without;
                }
                Err(error @ (Error::Damaged { .. } | Error::Io(_))) => done.findings.push(ScrubFinding {
                    ino,
                    byte: (part.file_block + number).byte(),
                    damaged: matches!(error, Error::Damaged { .. }),
                    cause: cause_of(&error),
                }),
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Replaces findings in the spill file by the small files that they concern. If every payload
    /// in a damaged block is right by its own sum, the block gets checksums of its present
    /// contents. The caller has the spill file's data lock.
    fn name_spilled(self, part: &Extent, done: &mut Scrubbed) -> Result<()> {
        let is_here = |finding: &ScrubFinding| {
            self.fs.devices().is_spill_file(finding.ino) && finding.byte >= part.file_block.byte()
        };
        let (found, others): (Vec<_>, Vec<_>) = std::mem::take(&mut done.findings).into_iter().partition(is_here);
        done.findings = others;
        if found.is_empty() {
            return Ok(());
        }
        let blocks: BTreeSet<u64> = found.iter().map(|finding| finding.byte / BULK_BLOCK).collect();
        let mut concerned = BTreeSet::new();
        for lost in self.fs.spilling().lost_in_spilled(&blocks)? {
            concerned.extend(lost.blocks);
            let (ino, byte, cause) = (lost.ino, lost.byte, lost.cause);
            done.findings.push(ScrubFinding { ino, byte, damaged: lost.damaged, cause });
        }
        for finding in found.into_iter().filter(|finding| !concerned.contains(&(finding.byte / BULK_BLOCK))) {
            let block = part.bulk_block + (FileBlock::of(finding.byte) - part.file_block);
            if finding.damaged {
                self.fs.bulk()?.accept(&self.fs.region, block.byte())?;
            } else {
                done.findings.push(finding);
            }
        }
        Ok(())
    }

    /// Returns the first extent with data that ends behind `block`.
    fn written_from(self, inode: &Inode, mut block: FileBlock) -> Result<Option<Extent>> {
        loop {
            match self.fs.large().mapped(inode, block)? {
                Mapped::Hole { until: FileBlock::MAX } => return Ok(None),
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) if extent.flags & EXTENT_UNWRITTEN != 0 => block = extent.end(),
                Mapped::At(extent) => match self.fs.large().trusted(extent, block)? {
                    Ok(extent) => return Ok(Some(extent)),
                    Err(until) => block = until,
                },
            }
        }
    }
}

/// Returns what is wrong, without the advice to run a scrub.
fn cause_of(error: &Error) -> String {
    match error {
        Error::Damaged { device, byte } => format!("{device}: the bytes from {byte} on are not what was written"),
        other => other.to_string(),
    }
}
