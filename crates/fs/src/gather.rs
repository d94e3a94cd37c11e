//! Moves bulk blocks: data of large files goes to free blocks before a limit, so that the first
//! device can end there, or to the other devices, so that one can be removed.
//!
//! One step copies a part of an extent, flushes the copy, and commits the record that maps the copy
//! and frees the original, under the file's data lock. What was durable stays durable, and a crash
//! leaves a tree like any other. Contents, sizes and times do not change. A block finds room
//! wherever a single one is free, so gathering ends only when the free blocks do.
//! Left out: the size of the device afterwards (`resize`).

use shoal_bulk::{Bulk, Patience, Run};
use shoal_format::BULK_BLOCK;
use shoal_format::extent::{BulkBlock, EXTENT_NEW, EXTENT_UNWRITTEN, Extent, FileBlock};
use shoal_format::inode::Layout;

use crate::extents::{MapEdit, Mapped, cut, put};
use crate::planted::{Bug, is_planted};
use crate::rooms::Data;
use crate::{Error, Fs, Ino, Result};

/// Blocks of one step (16 MiB).
const STEP_BLOCKS: u64 = 256;
/// Blocks copied at a time (1 MiB).
const COPY_BLOCKS: u64 = 16;

/// Which blocks are to move.
#[derive(Clone, Copy)]
pub(crate) enum Away {
    /// Blocks of the first device at this block or behind it, to blocks before it.
    Behind(BulkBlock),
    /// Blocks of a device that is leaving, to the other devices.
    From(u32),
}

/// The outcome of one step of gathering in a file.
pub(crate) struct Gathered {
    /// Blocks moved.
    pub blocks: u64,
    /// Where to continue.
    pub next: FileBlock,
}

impl Away {
    /// Returns from which of its blocks on an extent is to move; `None` if it stays.
    fn part(self, bulk: &Bulk, extent: &Extent) -> Option<u64> {
        let (first, end) = (extent.bulk_block, extent.bulk_block + extent.blocks);
        match self {
            Away::Behind(limit) if end <= limit || !bulk.devices().is_on(0, first) => None,
            Away::Behind(limit) => Some(limit.get().saturating_sub(first.get())),
            Away::From(number) => bulk.devices().is_on(number, first).then_some(0),
        }
    }

    fn reserve(self, bulk: &Bulk, fs: &Fs, want: u64) -> Result<Option<Run>> {
        match self {
            Away::Behind(limit) => Ok(bulk.reserve_before(&fs.region, limit, want)?),
            Away::From(_) => match bulk.reserve(&fs.region, None, want, 0) {
                Err(shoal_bulk::Error::NoSpace(_)) => Ok(None),
                run => Ok(Some(run?)),
            },
        }
    }
}

impl<'a> Data<'a> {
    /// Moves data of large files at block `limit` or behind it to blocks before it, as long as
    /// there are free ones. Returns how many blocks moved. Calls `progress` with the blocks of each
    /// step.
    pub fn gather_bulk(self, limit: u64, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        self.fs.writable()?;
        let (bulk, limit) = (self.fs.bulk()?, Away::Behind(BulkBlock::new(limit)));
        self.settle_new()?;
        let mut moved = 0;
        for ino in self.large_files()? {
            let mut block = FileBlock::ZERO;
            while let Some(Gathered { blocks, next }) = self.gather_step(bulk, ino, block, limit)? {
                (block, moved) = (next, moved + blocks);
                progress(blocks);
            }
        }
        self.fs.region.sync()?;
        bulk.reclaim(&self.fs.region)?;
        Ok(moved)
    }

    pub(crate) fn large_files(self) -> Result<Vec<Ino>> {
        let mut files = Vec::new();
        self.fs.for_each_inode(&mut |ino, inode| {
            if inode.layout == Layout::Extents {
                files.push(ino);
            }
        })?;
        Ok(files)
    }

    /// Does one step in a file, from its block `from` on. Returns `None` when nothing is left
    /// there.
    pub(crate) fn gather_step(self, bulk: &Bulk, ino: Ino, from: FileBlock, away: Away) -> Result<Option<Gathered>> {
        let (mut file, mut inode) = match self.lock_data(ino, |_| false) {
            Err(Error::Stale) => return Ok(None),
            locked => locked?,
        };
        if inode.layout != Layout::Extents {
            return Ok(None);
        }
        let mut block = from;
        let old = loop {
            match self.fs.large().mapped(&inode, block)? {
                Mapped::Hole { until: FileBlock::MAX } => return Ok(None),
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) => {
                    let Some(skip) = away.part(bulk, &extent) else {
                        block = extent.end();
                        continue;
                    };
                    let blocks = (extent.blocks - skip).min(STEP_BLOCKS);
                    let (file_block, bulk_block) = (extent.file_block + skip, extent.bulk_block + skip);
                    break Extent { file_block, blocks, bulk_block, ..extent };
                }
            }
        };
        let mut run = None;
        let looked = file.device_aside(&mut inode, |bulk| {
            run = away.reserve(bulk, self.fs, old.blocks)?;
            Ok(())
        });
        let Some(run) = run else { return looked.map(|()| None) };
        let old = Extent { blocks: run.blocks, ..old };
        let outcome = (|| {
            looked?;
            if old.flags & EXTENT_UNWRITTEN == 0 {
                file.device_aside(&mut inode, |bulk| self.copy_run(bulk, ino, &old, run))?;
            }
            let mut edit = MapEdit::load(&self.fs.region, &inode, old.file_block, old.end(), bulk.blocks())?;
            // The parts have their present flags: NEW may have been cleared, and the extent split,
            // while the device worked.
            for part in cut(&mut edit.extents, old.file_block, old.end()) {
                // The copy is flushed, so this record may clear NEW. It must clear NEW: an fsync
                // that has flushed the old place would leave NEW on blocks that are now on another
                // device or need a later flush, and would return.
                let bulk_block = run.first + (part.bulk_block - old.bulk_block);
                let flags = if is_planted(Bug::MovedStaysNew) { part.flags } else { part.flags & !EXTENT_NEW };
                put(&mut edit.extents, Extent { bulk_block, flags, ..part });
            }
            let mut tx = self.fs.region.begin_reclaim();
            edit.store(&mut tx, &mut inode)?;
            bulk.mark_used(&mut tx, run)?;
            bulk.mark_free(&mut tx, Run { first: old.bulk_block, blocks: run.blocks })?;
            self.fs.store(&mut tx, ino, &inode)?;
            Ok(tx.commit()?)
        })();
        match outcome {
            Ok(lsn) => {
                // The file stays listed, so that its flag is cleared later.
                bulk.fresh.remove(ino, old.file_block, old.end());
                bulk.freed(lsn, &[Run { first: old.bulk_block, blocks: run.blocks }]);
                Ok(Some(Gathered { blocks: run.blocks, next: old.end() }))
            }
            Err(error) => {
                bulk.cancel(run);
                Err(error)
            }
        }
    }

    /// Copies an extent's data, durably, to a run of the same length.
    fn copy_run(self, bulk: &Bulk, ino: Ino, old: &Extent, run: Run) -> Result<()> {
        let mut bytes = vec![0; (COPY_BLOCKS * BULK_BLOCK) as usize];
        for done in (0..run.blocks).step_by(COPY_BLOCKS as usize) {
            let bytes = &mut bytes[..(COPY_BLOCKS.min(run.blocks - done) * BULK_BLOCK) as usize];
            bulk.read(&self.fs.region, (old.bulk_block + done).byte(), bytes)?;
            bulk.belongs(ino, (run.first + done).byte(), bytes.len() as u64);
            bulk.fill(&self.fs.region, run.first + done, bytes)?;
        }
        // What was durable must be durable where the record says it is.
        if is_planted(Bug::DrainUnflushed) {
            Ok(())
        } else {
            Ok(bulk.flush_runs(&self.fs.region, [run], Patience::Waits)?)
        }
    }
}
