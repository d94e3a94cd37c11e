//! Bulk blocks moved together: data of large files go to free blocks before a limit, so that the device can end there.
//!
//! One step copies a part of an extent, flushes it, and commits the record that maps the copy and frees the original, under the
//! file's data lock: what was durable stays durable, and a crash leaves a tree like any other. Contents, sizes and times do not
//! change. A block finds room wherever a single one is free, so it ends only when the free blocks do.
//! Left out: what the device's size is then (`resize`).

use shoal_format::BULK_BLOCK;
use shoal_format::extent::{BulkBlock, EXTENT_UNWRITTEN, Extent, FileBlock};
use shoal_format::inode::Layout;

use crate::bulk::{Bulk, Run};
use crate::extents::{MapEdit, Mapped, cut, put};
use crate::{Error, Fs, Ino, Result};

/// Blocks of one step (16 MiB).
const STEP_BLOCKS: u64 = 256;
/// Blocks copied at a time (1 MiB).
const COPY_BLOCKS: u64 = 16;

impl Fs {
    /// Moves data of large files that lie at block `limit` or behind it to blocks before it, as long as there are free ones;
    /// returns how many blocks moved. `progress` is told of each step's.
    pub fn gather_bulk(&self, limit: u64, progress: &mut dyn FnMut(u64)) -> Result<u64> {
        self.writable()?;
        let (bulk, limit) = (self.bulk()?, BulkBlock::new(limit));
        self.settle_new()?;
        let mut files = Vec::new();
        self.for_each_inode(&mut |ino, inode| {
            if inode.layout == Layout::Extents {
                files.push(ino);
            }
        })?;
        let mut moved = 0;
        for ino in files {
            let mut block = FileBlock::ZERO;
            while let Some((run, next)) = self.gather_step(bulk, ino, block, limit)? {
                (block, moved) = (next, moved + run);
                progress(run);
            }
        }
        self.region.sync()?;
        bulk.reclaim(&self.region)?;
        Ok(moved)
    }

    /// One step in a file, from its block `from` on: the blocks moved, and where to go on. `None` when nothing is left there.
    fn gather_step(
        &self,
        bulk: &Bulk,
        ino: Ino,
        from: FileBlock,
        limit: BulkBlock,
    ) -> Result<Option<(u64, FileBlock)>> {
        let (mut file, mut inode) = match self.lock_data(ino, |_| false) {
            Err(Error::Stale) => return Ok(None),
            locked => locked?,
        };
        if inode.layout != Layout::Extents {
            return Ok(None);
        }
        let mut block = from;
        let old = loop {
            match self.mapped(&inode, block)? {
                Mapped::Hole { until: FileBlock::MAX } => return Ok(None),
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) if extent.bulk_block + extent.blocks <= limit => block = extent.end(),
                Mapped::At(extent) => {
                    let skip = limit.get().saturating_sub(extent.bulk_block.get());
                    let blocks = (extent.blocks - skip).min(STEP_BLOCKS);
                    let (file_block, bulk_block) = (extent.file_block + skip, extent.bulk_block + skip);
                    break Extent { file_block, blocks, bulk_block, ..extent };
                }
            }
        };
        let mut run = None;
        let looked = file.device_aside(&mut inode, |bulk| {
            run = bulk.reserve_before(&self.region, limit, old.blocks)?;
            Ok(())
        });
        let Some(run) = run else { return looked.map(|()| None) };
        let old = Extent { blocks: run.blocks, ..old };
        let outcome = (|| {
            looked?;
            if old.flags & EXTENT_UNWRITTEN == 0 {
                file.device_aside(&mut inode, |bulk| {
                    let mut bytes = vec![0; (COPY_BLOCKS * BULK_BLOCK) as usize];
                    for done in (0..run.blocks).step_by(COPY_BLOCKS as usize) {
                        let bytes = &mut bytes[..(COPY_BLOCKS.min(run.blocks - done) * BULK_BLOCK) as usize];
                        bulk.read((old.bulk_block + done).byte(), bytes)?;
                        bulk.write((run.first + done).byte(), bytes)?;
                    }
                    bulk.flush(&self.region)
                })?;
            }
            let mut edit = MapEdit::load(&self.region, &inode, old.file_block, old.end(), bulk.blocks())?;
            // Their flags are those of now: NEW may have been cleared, and the extent split, while the device worked.
            for part in cut(&mut edit.extents, old.file_block, old.end()) {
                put(&mut edit.extents, Extent { bulk_block: run.first + (part.bulk_block - old.bulk_block), ..part });
            }
            let mut tx = self.region.begin_reclaim();
            edit.store(&mut tx, &mut inode)?;
            bulk.mark_used(&mut tx, run)?;
            bulk.mark_free(&mut tx, Run { first: old.bulk_block, blocks: run.blocks })?;
            self.store(&mut tx, ino, &inode)?;
            Ok(tx.commit()?)
        })();
        match outcome {
            Ok(lsn) => {
                bulk.freed(lsn, &[Run { first: old.bulk_block, blocks: run.blocks }]);
                Ok(Some((run.blocks, old.end())))
            }
            Err(error) => {
                bulk.cancel(run);
                Err(error)
            }
        }
    }
}
