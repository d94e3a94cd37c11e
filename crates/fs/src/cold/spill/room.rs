//! Blocks of the spill file: creates the file, adds blocks and unmaps them.
//!
//! Rules: blocks are added whole, in a hole of the file, and are durable before the caller refers
//! to them. They are unmapped only under the worker's lock, so that nobody is about to refer to
//! one. The file has one link and no name, and only this module writes to it.
//! Left out: what is in use (`map`).

use std::sync::atomic::Ordering::Relaxed;

use shoal_format::BULK_BLOCK;
use shoal_format::extent::FileBlock;
use shoal_format::inode::{Inode, Layout, S_IFREG};
use shoal_format::object::{ChunkRef, GROUP, GROUP_CHUNKS, SpillPlace};
use shoal_format::superblock::{FEATURE_PACKED, FEATURE_SPILLED, ROOTS_AT};
use shoal_region::LetGo;
use zerocopy::IntoBytes;

use super::{Worker, named};
use crate::cold::objects::Placed;
use crate::data_lock::FileLock;
use crate::extents::Mapped;
use crate::inode::load_roots;
use crate::namespace::blank_dir;
use crate::planted::{Bug, is_planted};
use crate::rooms::Spilling;
use crate::{Error, Ino, Result, small};

impl<'a> Spilling<'a> {
    /// Returns the spill file, and creates it if there is none.
    fn spill_file(self) -> Result<Ino> {
        if let Some(ino) = self.fs.spill.file() {
            return Ok(ino);
        }
        // The features are durable before the first record that needs them.
        self.fs.region.add_feature(FEATURE_PACKED)?;
        self.fs.region.add_feature(FEATURE_SPILLED)?;
        // Even if memory is full to the last inode, this one is taken, because it makes room.
        let new = self.fs.table.take_reserved(&self.fs.region)?;
        let (ino, now) = (new.ino, self.fs.now());
        let times = Inode { atime: now, mtime: now, ctime: now, btime: now, ..blank_dir() };
        let inode = Inode {
            mode: S_IFREG,
            layout: Layout::Empty,
            nlink: 1,
            parent: Ino::ZERO,
            size: 0,
            generation: new.generation(),
            ..times
        };
        {
            let _lock = self.fs.locks.write(ino);
            self.fs.table.while_roots_stay(|| {
                let mut tx = self.fs.region.begin_reclaim();
                let mut roots = load_roots(&tx)?;
                roots.spill_file = ino.get().into();
                roots.spill_generation = inode.generation.into();
                tx.write(ROOTS_AT, roots.as_bytes())?;
                self.fs.store(&mut tx, ino, &inode)?;
                tx.commit().map_err(Error::from)
            })?;
        }
        new.keep();
        self.fs.tree().count(&inode, 1);
        self.fs.spill.file.store(named(ino.get(), inode.generation), Relaxed);
        Ok(ino)
    }

    fn lock_spill_file(self, ino: Ino) -> Result<(FileLock<'a>, Inode)> {
        let (file, _) = self.fs.data().lock_data(ino, |_| true)?;
        let inode = self.load_spill_file(ino)?;
        Ok((file, inode))
    }

    /// Writes whole blocks into a hole of the spill file, durably; returns where they begin (bytes).
    pub(super) fn write_spilled(self, worker: &mut Worker, bytes: &[u8]) -> Result<u64> {
        let ino = self.spill_file()?;
        let (mut file, mut inode) = self.lock_spill_file(ino)?;
        let first = self.hole(worker, &inode, bytes.len() as u64 / BULK_BLOCK)?;
        let mut done = 0;
        while done < bytes.len() {
            match self.fs.large().write_large(&mut file, &mut inode, first.byte() + done as u64, &bytes[done..]) {
                Ok(len) => done += len,
                Err(error) => {
                    self.fs.spill.map.mapped(first.get(), first.get() + done as u64 / BULK_BLOCK);
                    return Err(error);
                }
            }
        }
        drop(file);
        worker.next = Some(FileBlock::ceil(first.byte() + done as u64));
        if !is_planted(Bug::SpillUnflushed) {
            // The flush covers the blocks, and the record behind it clears NEW; the heads' records
            // follow both.
            let end = first + bytes.len() as u64 / BULK_BLOCK;
            let settled = self.settle_spilled(ino, first, end);
            settled.inspect_err(|_| self.fs.spill.map.mapped(first.get(), first.get() + done as u64 / BULK_BLOCK))?;
        }
        Ok(first.byte())
    }

    /// Makes blocks of the spill file durable. Losses of the file on other devices do not affect
    /// them.
    fn settle_spilled(self, ino: Ino, first: FileBlock, end: FileBlock) -> Result<()> {
        let flushed = self.fs.data().flush_files(&[ino])?;
        self.fs.data().settle_flushed(ino, &flushed)?;
        if is_planted(Bug::SpillDoubtful) { Ok(()) } else { self.fs.data().refuse_doubtful_in(ino, first, end) }
    }

    /// Finds a hole of `blocks` blocks behind the last one written, wrapping around at the end of
    /// the file.
    fn hole(self, worker: &Worker, inode: &Inode, blocks: u64) -> Result<FileBlock> {
        let mut first = worker.next.unwrap_or(FileBlock::ceil(inode.size));
        let mut turns = 0;
        loop {
            if first.get() + blocks > FileBlock::END.get() {
                (first, turns) = (FileBlock::ZERO, turns + 1);
                if turns > 1 {
                    return Err(Error::NO_SPACE);
                }
            }
            let (mut block, end) = (first, first + blocks);
            loop {
                match self.fs.large().mapped(inode, block)? {
                    Mapped::At(extent) => {
                        first = extent.end();
                        break;
                    }
                    Mapped::Hole { until } if until >= end => return Ok(first),
                    Mapped::Hole { until } => block = until,
                }
            }
        }
    }

    /// Unmaps the blocks of the spill file that nothing refers to; returns how many. The caller has the worker's lock.
    pub(super) fn sweep(self) -> Result<u64> {
        let Some(ino) = self.fs.spill.file().filter(|_| self.fs.spill.map.emptied() > 0) else { return Ok(0) };
        let mut blocks = 0;
        for (from, to) in self.fs.spill.map.take_emptied() {
            let outcome = self.unmap_spilled(ino, FileBlock::new(from), FileBlock::new(to));
            blocks += outcome.inspect_err(|_| self.fs.spill.map.mapped(from, to))?;
        }
        Ok(blocks)
    }

    fn unmap_spilled(self, ino: Ino, from: FileBlock, to: FileBlock) -> Result<u64> {
        let (_file, mut inode) = self.lock_spill_file(ino)?;
        let (mut upto, mut blocks) = (to, 0);
        while upto > from && inode.layout == Layout::Extents {
            let before = inode.layout;
            let mut tx = self.fs.region.begin_reclaim();
            let (runs, left) = self.fs.large().unmap(&mut tx, &mut inode, from, upto)?;
            let lsn = self.fs.large().commit_large(tx, ino, before, &inode)?;
            self.fs.large().unmapped(ino, &inode, lsn, &runs, left, upto)?;
            blocks += runs.iter().map(|run| run.blocks).sum::<u64>();
            upto = left;
        }
        Ok(blocks)
    }

    /// Notes the ranges that a file has in the spill file.
    pub(super) fn note_spilled(self, ino: Ino) -> Result<()> {
        let mut group = 0;
        loop {
            // Takes the lock for each group anew: a long file must not keep others waiting.
            let _lock = self.fs.locks.read(ino);
            let inode = match self.fs.load(ino) {
                Err(Error::Stale) => return Ok(()),
                loaded => loaded?,
            };
            let is_long = inode.layout == Layout::Chunked;
            if !(is_long || inode.layout == Layout::Packed) || group * GROUP >= inode.size {
                return Ok(());
            }
            if let ChunkRef::Packed(slot) = small::chunk_ref(&self.fs.region, &inode, group * GROUP_CHUNKS)? {
                let placed = Placed::load(&self.fs.region, slot);
                if let Ok(Placed { place: Some(SpillPlace(at)), object, .. }) = placed {
                    let bytes = object.spilled_bytes();
                    if !is_planted(Bug::SpilledNotNoted) {
                        self.fs.spill.map.add(&LetGo { at, bytes, stood_for: object.bytes.into() });
                    }
                }
            }
            group += 1;
        }
    }

    /// Notes, after the scan of all inodes, the blocks of the spill file that no inode refers to.
    pub(super) fn note_unused(self) -> Result<()> {
        let Some(ino) = self.fs.spill.file() else { return Ok(()) };
        let mut block = FileBlock::ZERO;
        while block < FileBlock::END {
            let _lock = self.fs.locks.read(ino);
            // A lost spill file has no blocks to free.
            let Ok(inode) = self.load_spill_file(ino) else { return Ok(()) };
            match self.fs.large().mapped(&inode, block)? {
                Mapped::Hole { until } => block = until,
                Mapped::At(extent) => {
                    self.fs.spill.map.mapped(extent.file_block.get(), extent.end().get());
                    block = extent.end();
                }
            }
        }
        Ok(())
    }
}
