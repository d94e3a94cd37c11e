//! Moving a file's data between the region and the bulk device, in one transaction.
//!
//! Rules: size and contents stay. Data that may have been promised durable are flushed on the bulk
//! device before the record that frees the region's copy.
//! Left out: when a file changes its tier (`file`).

use shoal_bulk::{Stamp, Tail};
use shoal_format::extent::{EXTENT_NEW, EXTENT_UNWRITTEN, FileBlock};
use shoal_format::inode::{CHUNK, INODE_HAS_NEW, Inode, Layout};
use shoal_format::object::{ChunkRef, GROUP};
use shoal_format::{BULK_BLOCK, SlotRef};
use shoal_region::Lsn;

use super::{MOVE_BACK_BYTES, Mapping, WRITE_BLOCKS, read_spans, run_of};
use crate::cold::owner::object_of;
use crate::data_lock::FileLock;
use crate::planted::{Bug, is_planted};
use crate::rooms::Large;
use crate::{Error, Ino, Result, small};

const CHUNKS_PER_BLOCK: u64 = BULK_BLOCK / CHUNK;

impl<'a> Large<'a> {
    /// Moves a file's data from the region to the bulk device; size and contents stay.
    ///
    /// Bytes in the region may have been promised durable, so the blocks are flushed before the
    /// record that frees the slots. The flush is left out, and the blocks are NEW, only if nothing
    /// of the file can have been promised yet, as in the middle of a copy. The commit lock decides
    /// that finally: if a promise was made while the blocks were written, the record is refused and
    /// the flush is done after all.
    pub(crate) fn move_to_bulk(self, file: &mut FileLock<'_>, inode: &mut Inode) -> Result<()> {
        if matches!(inode.layout, Layout::Empty | Layout::Extents) {
            return Ok(());
        }
        let (bulk, ino, patience) = (self.fs.bulk()?, file.ino, file.manner.patience);
        for group in 0..inode.size.div_ceil(GROUP) {
            if object_of(&self.fs.region, inode, group)?.is_some_and(|object| object.place.is_some()) {
                return Err(Error::Spilled { ino, group });
            }
        }
        let by_durable = is_planted(Bug::BirthByDurable);
        let promised = if by_durable { self.fs.region.durable_lsn() } else { self.fs.region.promised_lsn() };
        let mut birth = bulk.births.of(ino).filter(|&birth| birth > promised || is_planted(Bug::NeverPromised));
        if by_durable || is_planted(Bug::NeverPromised) {
            // With the planted bug, the comparison under the commit lock must not see the promise
            // either.
            birth = birth.map(|_| Lsn::MAX);
        }
        let data_flags = if birth.is_some() { EXTENT_NEW } else { 0 };
        if birth.is_none() {
            // Checked before the blocks are written, because a flush will follow.
            patience.may_flush()?;
        }
        let mut mapping = Mapping::new(bulk);
        let write = self.copy_to_bulk(file, inode, &mut mapping, data_flags)?;
        birth = birth.filter(|_| write.is_some());
        loop {
            if birth.is_some() && bulk.births.of(ino).is_none() && !is_planted(Bug::NameMeanwhile) {
                // The file took a name while the device worked.
                birth = None;
                mapping.extents.iter_mut().for_each(|extent| extent.flags &= !EXTENT_NEW);
            }
            if birth.is_none() && write.is_some() && !is_planted(Bug::MoveFlush) {
                let runs: Vec<_> = mapping.extents.iter().map(run_of).collect();
                file.device(inode, |bulk| Ok(bulk.flush_runs(&self.fs.region, runs, patience)?))?;
            }
            let before = *inode;
            let mut tx = self.fs.region.begin_reclaim();
            if !small::free_all(&mut tx, inode)? {
                return Err(Error::FileTooBig);
            }
            mapping.store(&mut tx, inode)?;
            let Some(lsn) = birth else {
                self.commit_large(tx, ino, before.layout, inode)?;
                break;
            };
            inode.flags |= INODE_HAS_NEW;
            bulk.fresh.list(ino);
            self.fs.store(&mut tx, ino, inode)?;
            if tx.commit_unpromised(lsn)?.is_some() {
                self.count_large(before.layout, inode);
                break;
            }
            *inode = before;
            birth = None;
            mapping.extents.iter_mut().for_each(|extent| extent.flags &= !EXTENT_NEW);
        }
        mapping.committed(ino)?;
        if let Some(write) = write {
            bulk.wrote(ino, write);
        }
        bulk.fresh.set_tail(ino, Tail::Clean);
        Ok(())
    }

    /// Copies a file's data from the region to blocks that `mapping` reserves. Returns the last
    /// write, if any.
    fn copy_to_bulk(
        self,
        file: &mut FileLock<'_>,
        inode: &mut Inode,
        mapping: &mut Mapping<'_>,
        data_flags: u32,
    ) -> Result<Option<Stamp>> {
        let end = FileBlock::new(small::chunk_count(inode).div_ceil(CHUNKS_PER_BLOCK));
        let mut buffer = Vec::new();
        let mut write = None;
        let mut block = FileBlock::ZERO;
        while block < end {
            let Some(flags) = self.flags_on_bulk(inode, block, data_flags)? else {
                block += 1;
                continue;
            };
            let mut until = block + 1;
            while until < end
                && until < block + WRITE_BLOCKS
                && self.flags_on_bulk(inode, until, data_flags)? == Some(flags)
            {
                until += 1;
            }
            let extent = mapping.reserve(file, inode, block, until - block, flags)?;
            if flags != EXTENT_UNWRITTEN {
                let at = block.byte();
                buffer.clear();
                buffer.resize((extent.blocks * BULK_BLOCK) as usize, 0);
                let readable = (inode.size - at).min(buffer.len() as u64) as usize;
                small::read(&self.fs.region, &self.fs.objects, inode, at, &mut buffer[..readable])?;
                self.fs.bulk()?.belongs(file.ino, extent.bulk_block.byte(), buffer.len() as u64);
                let done =
                    match file.device(inode, |bulk| Ok(bulk.fill(&self.fs.region, extent.bulk_block, &buffer)?)) {
                        Err(Error::Io(_)) if mapping.give_back(&extent) => continue,
                        done => done?,
                    };
                self.fs.bulk()?.wrote(file.ino, done);
                write = Some(done);
            }
            block = extent.end();
        }
        Ok(write)
    }

    /// Returns the flags that a block of a file in the region gets on the device; `None` for a
    /// hole.
    fn flags_on_bulk(self, inode: &Inode, block: FileBlock, data_flags: u32) -> Result<Option<u32>> {
        let first = block.get() * CHUNKS_PER_BLOCK;
        for chunk in first..first + CHUNKS_PER_BLOCK {
            if small::chunk_ref(&self.fs.region, inode, chunk)? != ChunkRef::Slot(SlotRef::NONE) {
                let behind = block.byte() >= inode.size;
                return Ok(Some(if behind { EXTENT_UNWRITTEN } else { data_flags }));
            }
        }
        Ok(None)
    }

    /// Moves a file of at most [`MOVE_BACK_BYTES`], without blocks behind its end, into the region.
    /// If the region is full, the file stays where it is without an error.
    pub(crate) fn move_to_region(self, file: &mut FileLock<'_>, inode: &mut Inode) -> Result<()> {
        if inode.layout != Layout::Extents || inode.size > MOVE_BACK_BYTES {
            return Ok(());
        }
        match self.move_back(file, inode) {
            Err(Error::NoSpace(_)) => Ok(()),
            outcome => outcome,
        }
    }

    /// Does the same, but a full region is an error. Then the file is unchanged.
    pub(crate) fn move_back(self, file: &mut FileLock<'_>, inode: &mut Inode) -> Result<()> {
        let mut data = Vec::new();
        for at in (0..inode.size).step_by(BULK_BLOCK as usize) {
            if self.data_at(inode, FileBlock::of(at))?.is_ok() {
                let mut bytes = vec![0; (inode.size - at).min(BULK_BLOCK) as usize];
                let spans = self.spans(inode, at, bytes.len())?;
                file.device(inode, |_| read_spans(self.fs, &spans, &mut bytes))?;
                data.push((at, bytes));
            }
        }
        let mut moved = *inode;
        self.try_move_to_region(file.ino, &mut moved, &data)?;
        *inode = moved;
        Ok(())
    }

    fn try_move_to_region(self, ino: Ino, inode: &mut Inode, data: &[(u64, Vec<u8>)]) -> Result<()> {
        let before = *inode;
        let mut tx = self.fs.region.begin();
        let (runs, _) = self.unmap(&mut tx, inode, FileBlock::ZERO, FileBlock::END)?;
        if inode.layout != Layout::Empty {
            return Err(Error::Corrupt(format!("inode {ino}: blocks behind the end of the file")));
        }
        for (at, bytes) in data {
            small::write(&mut tx, inode, *at, bytes)?;
        }
        let lsn = self.commit_large(tx, ino, before.layout, inode)?;
        self.unmapped(ino, &Inode { layout: Layout::Empty, ..*inode }, lsn, &runs, FileBlock::ZERO, FileBlock::END)
    }
}
