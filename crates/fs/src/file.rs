//! File data as callers see it: write, truncate, fallocate, seek, copy, fsync. Chooses the
//! tier and drives `small` and `large`.
//!
//! Rules:
//! - Without a bulk device everything is in the region. With one, a file whose size would exceed
//!   its threshold (`threshold`) moves to it once; one truncated below half of the threshold, and
//!   short enough for one record, moves back.
//! - A call takes the file's locks (`data_lock`), works in transactions of bounded size and stops
//!   at the first that fails; what was written before counts. After an error the inode in memory is
//!   stale and must not be stored.
//! - A truncation that needs several transactions sets the new size and `INODE_TRUNCATING` in the
//!   first. Any operation that meets the flag finishes the truncation before it does anything else.
//!
//! Left out: reads (`reading`), names, attributes other than times and size, and clearing set-id bits (the adapter's
//! part).
//!
//! One file of over 500 lines: the operations on a regular file side by side, each with its two tiers.

use shoal_format::extent::FileBlock;
use shoal_format::inode::{CHUNK, INODE_APPEND_ONLY, INODE_IMMUTABLE, INODE_TRUNCATING, Inode, Layout, THRESHOLD_MAX};
use shoal_format::object::{ChunkRef, GROUP, GROUP_CHUNKS};
use shoal_region::{Lsn, Tx};

use crate::cold::objects::Placed;
use crate::cold::packer::Purpose;
use crate::data_lock::FileLock;
use crate::large::{MOVE_BACK_BYTES, read_spans};
use crate::planted::{Bug, is_planted};
use crate::rooms::Data;
use crate::{Error, Fs, Ino, Manner, Patience, PlacedRange, Result, flags, small};

/// Longest file (bytes): an extent map counts blocks with 32 bits.
pub const FILE_BYTES_MAX: u64 = FileBlock::END.byte();
/// A file moves to the bulk device in one transaction, which frees its chunks. No threshold may
/// exceed what one transaction can free.
const _: () = assert!(THRESHOLD_MAX as u64 <= small::CHUNKS_PER_STEP * CHUNK);
/// Bytes copied at a time.
const COPY_BYTES: u64 = 128 << 10;

const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;

/// A part of a file that is data throughout, or a hole.
pub(crate) struct Stretch {
    pub is_data: bool,
    /// The byte up to which that holds at least. May lie behind the file's end.
    pub until: u64,
}

/// The outcome of one step of a write.
struct Written {
    bytes: usize,
    /// The file is append-only.
    append_only: bool,
}

/// Target of [`Fs::seek`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// What an fsync has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// The file is durable when the log is, up to here.
    Log(Lsn),
    /// The bulk device has to be flushed first; [`Data::fsync_many`] does it for all waiting
    /// callers.
    Bulk,
}

/// Who writes data. What the flags of chattr(1) allow depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writer {
    Program,
    /// Pages that a kernel with a write-back cache writes: a page with appended bytes may begin
    /// before the end of the file.
    Pages,
    /// Pages that may have been written to before the file had its flags.
    EarlierPages,
}

impl Fs {
    /// Writes at byte `at`. Fewer bytes than given are written only when space runs out in between.
    pub fn write(&self, ino: Ino, at: u64, bytes: &[u8]) -> Result<usize> {
        self.write_of(Manner::default(), Writer::Program, ino, at, bytes)
    }

    /// Writes for `writer`. Pages from a kernel's cache may begin before the bytes that are new.
    pub fn write_of(&self, manner: Manner, writer: Writer, ino: Ino, at: u64, bytes: &[u8]) -> Result<usize> {
        self.writable()?;
        let once = |done: usize| {
            let write = |manner: Manner| self.data().write_once(manner, writer, ino, at + done as u64, &bytes[done..]);
            match self.with_room_by(manner.patience, || write(manner)) {
                Err(Error::NoSpace(_)) if self.given_back.knows(ino) => self.take_again(manner, write),
                outcome => outcome,
            }
        };
        let Written { bytes: mut done, append_only } = once(0)?;
        // Continue a short write: there may be more room after compaction.
        while done < bytes.len() {
            match once(done) {
                Ok(Written { bytes: len @ 1.., .. }) => done += len,
                // The caller repeats the whole write where it may wait. That is harmless, because
                // it stores the same bytes at the same place again. But a program cannot rewrite
                // bytes of an append-only file.
                Err(Error::WouldFlush) if !append_only || writer != Writer::Program => return Err(Error::WouldFlush),
                _ => break,
            }
        }
        Ok(done)
    }

    /// Writes what a cut of the file gave back: from the reserve, or else once what was freed is durable and may be
    /// used.
    #[cold]
    fn take_again(&self, manner: Manner, write: impl Fn(Manner) -> Result<Written>) -> Result<Written> {
        let with_room = |manner: Manner| self.with_room_by(manner.patience, || write(manner));
        let again = Manner { takes_again: true, ..manner };
        match with_room(again) {
            Err(Error::NoSpace(_)) if manner.patience == Patience::Refuses => Err(Error::WouldFlush),
            Err(Error::NoSpace(_)) => {
                self.region.sync_to(self.region.last_lsn())?;
                with_room(manner).or_else(|error| match error {
                    Error::NoSpace(_) => with_room(again),
                    error => Err(error),
                })
            }
            outcome => outcome,
        }
    }

    /// Fails if `fallocate(2)` cannot do this for any file. The adapter asks before it clears
    /// set-id bits, so that such a request changes nothing.
    pub fn check_fallocate(mode: i32, at: u64, len: u64) -> Result<()> {
        allocation_end(mode, at, len).map(drop)
    }

    /// Does what `fallocate(2)` does: allocates, punches a hole or zeroes a range. The other modes
    /// are not supported.
    pub fn fallocate(&self, ino: Ino, mode: i32, at: u64, len: u64) -> Result<()> {
        self.fallocate_by(Manner::default(), ino, mode, at, len)
    }

    pub fn fallocate_by(&self, manner: Manner, ino: Ino, mode: i32, at: u64, len: u64) -> Result<()> {
        self.writable()?;
        let end = allocation_end(mode, at, len)?;
        self.with_room_by(manner.patience, || self.data().try_fallocate(manner, ino, mode, at, end))
    }

    /// Finds the next data or hole at or behind `at`; fails with `NoDevice` if there is none before
    /// the file's end.
    pub fn seek(&self, ino: Ino, at: u64, what: Seek) -> Result<u64> {
        let _lock = self.locks.read(ino);
        let inode = self.data().load_file(ino)?;
        let mut position = at;
        while position < inode.size {
            let Stretch { is_data, until } = match inode.layout {
                Layout::Extents => self.large().large_segment_at(&inode, position)?,
                _ => small::segment_at(&self.region, &inode, position)?,
            };
            if is_data == (what == Seek::Data) {
                return Ok(position);
            }
            position = until;
        }
        if what == Seek::Hole && at < inode.size { Ok(inode.size) } else { Err(Error::NoDevice) }
    }

    /// Copies up to `len` bytes between two places that do not overlap; returns how many, fewer at
    /// the source's end.
    pub fn copy_range(&self, from: Ino, from_at: u64, to: Ino, to_at: u64, len: u64) -> Result<u64> {
        self.copy_range_by(Manner::default(), (from, from_at), (to, to_at), len)
    }

    pub fn copy_range_by(
        &self,
        manner: Manner,
        (from, from_at): (Ino, u64),
        (to, to_at): (Ino, u64),
        len: u64,
    ) -> Result<u64> {
        self.writable()?;
        from_at.checked_add(len).ok_or(Error::Invalid)?;
        to_at.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Error::FileTooBig)?;
        if from == to && from_at < to_at + len && to_at < from_at + len {
            return Err(Error::Invalid);
        }
        let mut buffer = vec![0; len.min(COPY_BYTES) as usize];
        let mut done = 0;
        let mut source = None;
        while done < len {
            let want = (len - done).min(COPY_BYTES) as usize;
            let outcome = self.with_room_by(manner.patience, || {
                let (found, inode) = self.data().read_data(from, from_at + done, &mut buffer[..want])?;
                source = Some(inode);
                Ok(self.data().write_once(manner, Writer::Program, to, to_at + done, &buffer[..found])?.bytes)
            });
            match outcome {
                Ok(0) => break,
                Ok(written) => {
                    done += written as u64;
                    if written < want {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if let Some(inode) = source.filter(|_| done > 0) {
            self.data().touch_atime(from, &inode);
        }
        Ok(done)
    }

    /// Makes the file durable. Data and attributes are in the same log, so there is no fsync of the
    /// data alone.
    pub fn fsync(&self, ino: Ino) -> Result<()> {
        let lsn = self.data().fsync_prepare(ino)?;
        Ok(self.region.sync_to(lsn)?)
    }
}

impl<'a> Data<'a> {
    /// Loads a regular file.
    pub(crate) fn load_file(self, ino: Ino) -> Result<Inode> {
        let inode = self.fs.load(ino)?;
        self.refuse_nobodys(ino, &inode)?;
        regular(&inode)?;
        Ok(inode)
    }

    /// Fails for an inode without a link or a user, such as the copy of a file that is being moved:
    /// no caller can know it.
    pub(crate) fn refuse_nobodys(self, ino: Ino, inode: &Inode) -> Result<()> {
        if inode.nlink == 0 && !self.fs.refs.is_held(ino) { Err(Error::Stale) } else { Ok(()) }
    }

    /// Locks a regular file for a change that reaches up to byte `end`. Finishes a truncation that
    /// an error interrupted.
    #[inline]
    fn lock_to_change(self, manner: Manner, ino: Ino, end: u64) -> Result<(FileLock<'a>, Inode)> {
        self.note_use(ino);
        let (mut file, mut inode) =
            self.lock_data(ino, |inode| end.max(inode.size) > self.fs.tree().threshold_of(inode))?;
        file.manner = manner;
        self.refuse_nobodys(ino, &inode)?;
        regular(&inode)?;
        if inode.flags & INODE_TRUNCATING != 0 {
            let size = inode.size;
            self.cut_off(&mut file, &mut inode, size)?;
        }
        Ok((file, inode))
    }

    /// Writes what there is room for now.
    #[inline]
    fn write_once(self, manner: Manner, writer: Writer, ino: Ino, at: u64, bytes: &[u8]) -> Result<Written> {
        let end = at.saturating_add(bytes.len() as u64);
        let (mut file, mut inode) = self.lock_to_change(manner, ino, end)?;
        let append_only = inode.flags & INODE_APPEND_ONLY != 0;
        let (mut kept, end_before) = (0, inode.size);
        if writer == Writer::Pages && append_only && inode.flags & INODE_IMMUTABLE == 0 && at < inode.size {
            let found = self.fs.met(ino, self.has_already(&mut file, &mut inode, at, bytes))?;
            kept = found.ok_or(Error::NotPermitted)?;
        } else if writer != Writer::EarlierPages {
            flags::check_write(&inode, at)?;
        }
        if kept > 0 && kept == bytes.len() {
            return Ok(Written { bytes: kept, append_only });
        }
        self.fs.tree().drop_capabilities(ino, &mut inode)?;
        let written = self.write_locked(&mut file, &mut inode, at + kept as u64, &bytes[kept..]);
        let done = kept + self.fs.met(ino, written)?;
        if writer == Writer::Pages && append_only {
            self.fs.gaps.filled(ino, at, at + done as u64);
            self.fs.gaps.add(ino, end_before, at);
        }
        Ok(Written { bytes: done, append_only })
    }

    /// Returns how many of the bytes, which begin before the end of an append-only file, are
    /// already there, so that only the others are written; `None` if the write would change bytes
    /// that somebody has written.
    #[cold]
    fn has_already(self, file: &mut FileLock<'_>, inode: &mut Inode, at: u64, bytes: &[u8]) -> Result<Option<usize>> {
        let len = (bytes.len() as u64).min(inode.size - at) as usize;
        let mut there = vec![0; len];
        if inode.layout == Layout::Extents {
            let spans = self.fs.large().spans(inode, at, len)?;
            file.device(inode, |_| read_spans(self.fs, &spans, &mut there))?;
        } else {
            // Unpack as much as the write that follows needs.
            self.fs.cooling().unpack_data(file.ino, inode, at, at + bytes.len() as u64, Purpose::Write)?;
            let (_, spilled) = self.read_in_region(inode, at, &mut there)?;
            debug_assert!(spilled.is_empty(), "inode {}: unpacked", file.ino);
        }
        let gaps = self.fs.gaps.within(file.ino, at, at + len as u64);
        let mut kept = len;
        for (from, to) in gaps.iter().map(|&(from, to)| ((from - at) as usize, (to - at) as usize)) {
            there[from..to].copy_from_slice(&bytes[from..to]);
            kept = kept.min(from);
        }
        Ok((there == bytes[..len]).then_some(kept))
    }

    fn write_locked(self, file: &mut FileLock<'_>, inode: &mut Inode, at: u64, bytes: &[u8]) -> Result<usize> {
        let end = at.checked_add(bytes.len() as u64).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Error::FileTooBig)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        self.stamp(file, inode);
        if end.max(inode.size) > self.fs.tree().threshold_of(inode) {
            self.fs.large().move_to_bulk(file, inode)?;
            return in_steps(bytes, |done| self.fs.large().write_large(file, inode, at + done as u64, &bytes[done..]));
        }
        if inode.layout == Layout::Extents {
            return in_steps(bytes, |done| self.fs.large().write_large(file, inode, at + done as u64, &bytes[done..]));
        }
        self.fs.cooling().unpack_data(file.ino, inode, at.min(inode.size), end, Purpose::Write)?;
        in_steps(bytes, |done| self.write_small(file, inode, at + done as u64, &bytes[done..]))
    }

    /// Sets the times of a file whose data changes now.
    #[inline]
    fn stamp(self, file: &FileLock<'_>, inode: &mut Inode) {
        if !file.manner.keeps_times {
            let now = self.fs.now();
            (inode.mtime, inode.ctime) = (now, now);
        }
    }

    /// Writes a prefix of `bytes` into the region, up to the next multiple of a step.
    #[inline]
    fn write_small(self, file: &FileLock<'_>, inode: &mut Inode, at: u64, bytes: &[u8]) -> Result<usize> {
        let (ino, region) = (file.ino, &self.fs.region);
        let len = (bytes.len() as u64).min(small::STEP_BYTES - at % small::STEP_BYTES) as usize;
        let first = inode.layout == Layout::Empty && inode.size == 0;
        let had = inode.allocated;
        let takes_again = file.manner.takes_again && region.has_half_reserve();
        let mut tx = if takes_again { region.begin_reclaim() } else { region.begin() };
        small::write(&mut tx, inode, at, &bytes[..len])?;
        if takes_again && !self.fs.given_back.take(ino, inode.generation, inode.allocated.saturating_sub(had)) {
            return Err(Error::NO_SPACE);
        }
        self.fs.store(&mut tx, ino, inode)?;
        let lsn = tx.commit()?;
        if let (true, Some(bulk)) = (first, &self.fs.bulk) {
            bulk.births.note(ino, lsn);
        }
        Ok(len)
    }

    /// Locks an inode to set its size.
    pub(crate) fn lock_to_resize(self, manner: Manner, ino: Ino, size: u64) -> Result<(FileLock<'a>, Inode)> {
        let (mut file, inode) =
            self.lock_data(ino, |inode| inode.is_file() && size > self.fs.tree().threshold_of(inode))?;
        file.manner = manner;
        Ok((file, inode))
    }

    /// Sets the size and the times. The caller has checked that it is a file.
    pub(crate) fn truncate_locked(self, file: &mut FileLock<'_>, inode: &mut Inode, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(Error::FileTooBig);
        }
        if inode.flags & INODE_TRUNCATING != 0 {
            let now = inode.size;
            self.cut_off(file, inode, now)?;
        }
        self.stamp(file, inode);
        if size < inode.size {
            // With a ring the truncation is durable at once, and nothing can become durable before
            // it.
            if let (0, Some(bulk), false) = (size, &self.fs.bulk, self.fs.region.superblock().memory_kind.has_ring()) {
                bulk.fresh.replaced.cut(file.ino, self.fs.clock.monotonic_ns());
            }
            return self.cut_off(file, inode, size);
        }
        self.make_room(file, inode, size)?;
        let mut tx = self.fs.region.begin();
        self.extend(&mut tx, inode, size)?;
        self.fs.store(&mut tx, file.ino, inode)?;
        tx.commit()?;
        Ok(())
    }

    /// Prepares for moving the end to `size`: moves the file to the tier for that length, and
    /// zeroes what lies behind its end there.
    fn make_room(self, file: &mut FileLock<'_>, inode: &mut Inode, size: u64) -> Result<()> {
        if size > self.fs.tree().threshold_of(inode) {
            self.fs.large().move_to_bulk(file, inode)?;
        }
        self.fs.cooling().unpack_data(file.ino, inode, inode.size, size, Purpose::Use)?;
        self.fs.large().zero_tail(file, inode, size)
    }

    /// Moves the end to `size` if that is behind it. [`Data::make_room`] must have prepared the
    /// file.
    fn extend(self, tx: &mut Tx<'_>, inode: &mut Inode, size: u64) -> Result<()> {
        if inode.layout == Layout::Extents {
            inode.size = inode.size.max(size);
            return Ok(());
        }
        small::extend(tx, inode, size)
    }

    /// Frees what lies behind `size` and sets the size, in as many transactions as that takes.
    fn cut_off(self, file: &mut FileLock<'_>, inode: &mut Inode, size: u64) -> Result<()> {
        if inode.layout == Layout::Extents {
            self.fs.large().truncate_large(file.ino, inode, size)?;
            if size < self.fs.tree().threshold_of(inode) / 2 && size <= MOVE_BACK_BYTES {
                self.fs.large().move_to_region(file, inode)?;
            }
            return Ok(());
        }
        let keep = size.div_ceil(CHUNK);
        let had = inode.allocated;
        let mut upto = small::chunk_count(inode);
        loop {
            let mut tx = self.fs.region.begin_reclaim();
            upto = small::drop_chunks(&mut tx, inode, keep, upto)?;
            inode.size = size;
            inode.flags &= !INODE_TRUNCATING;
            if upto > keep {
                inode.flags |= INODE_TRUNCATING;
            } else {
                small::settle(&mut tx, inode)?;
            }
            self.fs.store(&mut tx, file.ino, inode)?;
            tx.commit()?;
            if upto <= keep {
                if had > inode.allocated {
                    self.fs.given_back.note(file.ino, inode.generation, had - inode.allocated);
                }
                return Ok(());
            }
        }
    }

    /// Finishes a truncation that a crash interrupted. For recovery.
    pub(crate) fn finish_truncate(self, ino: Ino) -> Result<()> {
        self.lock_to_change(Manner::default(), ino, 0).map(drop)
    }

    /// Frees the data of an inode that is going away, within the transaction that frees its record.
    /// Returns false, and changes nothing, if that is too much for one transaction: then
    /// [`Data::free_data`] must come first.
    pub(crate) fn free_data_in(self, tx: &mut Tx<'_>, inode: &mut Inode) -> Result<bool> {
        small::free_all(tx, inode)
    }

    /// Frees all data of a file without links, in transactions of its own, and leaves an empty
    /// orphan.
    pub(crate) fn free_data(self, file: &mut FileLock<'_>, inode: &mut Inode) -> Result<()> {
        if inode.layout == Layout::Empty {
            return Ok(());
        }
        self.cut_off(file, inode, 0)
    }

    fn try_fallocate(self, manner: Manner, ino: Ino, mode: i32, at: u64, end: u64) -> Result<()> {
        let room = if mode & PUNCH_HOLE != 0 { 0 } else { end };
        let (mut file, mut inode) = self.lock_to_change(manner, ino, room)?;
        // An append-only file may be preallocated, even while it is empty, but not changed
        // otherwise.
        if mode & !KEEP_SIZE == 0 { flags::check_write(&inode, u64::MAX) } else { flags::check_change(&inode) }?;
        self.fs.tree().drop_capabilities(ino, &mut inode)?;
        self.stamp(&file, &mut inode);
        if mode == PUNCH_HOLE | KEEP_SIZE {
            return self.punch(&mut file, &mut inode, at, end);
        }
        let size = if mode & KEEP_SIZE != 0 { inode.size } else { inode.size.max(end) };
        let before = inode.size;
        self.allocate(&mut file, &mut inode, (at, end), mode & ZERO_RANGE != 0, size)?;
        if manner.keeps_times && inode.flags & INODE_APPEND_ONLY != 0 {
            // Bytes that were appended before may still be written back.
            self.fs.gaps.add(ino, before, size);
        }
        Ok(())
    }

    fn allocate(
        self,
        file: &mut FileLock<'_>,
        inode: &mut Inode,
        (at, end): (u64, u64),
        erase: bool,
        size: u64,
    ) -> Result<()> {
        // The range decides the tier, even if it does not change the size.
        if end.max(size) > self.fs.tree().threshold_of(inode) {
            self.fs.large().move_to_bulk(file, inode)?;
        }
        let large = inode.layout == Layout::Extents || end.max(size) > self.fs.tree().threshold_of(inode);
        if large {
            self.fs.large().allocate_large(file, inode, at, end, erase)?;
            self.fs.large().zero_tail(file, inode, size)?;
        } else {
            self.fs.cooling().unpack_data(file.ino, inode, at.min(inode.size), end.max(size), Purpose::Use)?;
        }
        let mut from = at;
        loop {
            let step = (from / CHUNK + small::CHUNKS_PER_STEP) * CHUNK;
            let to = if large { end } else { end.min(step) };
            let mut tx = self.fs.region.begin();
            if !large {
                small::allocate(&mut tx, inode, from, to, erase, size)?;
            }
            if to == end {
                self.extend(&mut tx, inode, size)?;
            }
            self.fs.store(&mut tx, file.ino, inode)?;
            tx.commit()?;
            if to == end {
                return Ok(());
            }
            from = to;
        }
    }

    fn punch(self, file: &mut FileLock<'_>, inode: &mut Inode, at: u64, end: u64) -> Result<()> {
        if inode.layout == Layout::Extents {
            return self.fs.large().punch_large(file, inode, at, end);
        }
        // Only the groups at the edges are unpacked. A group that is punched whole is freed as it
        // is.
        for edge in [Some(at), Some(end).filter(|&end| end < inode.size)].into_iter().flatten() {
            if !edge.is_multiple_of(GROUP) {
                self.fs.cooling().unpack_data(file.ino, inode, edge / GROUP * GROUP, edge, Purpose::Free)?;
            }
        }
        let last = end.min(small::chunk_count(inode) * CHUNK);
        let mut from = at;
        loop {
            let to = last.min((from / CHUNK + small::CHUNKS_PER_STEP) * CHUNK);
            let mut tx = self.fs.region.begin_reclaim();
            if from < to {
                small::punch(&mut tx, inode, from, to.max(if to == last { end } else { 0 }))?;
            }
            self.fs.store(&mut tx, file.ino, inode)?;
            tx.commit()?;
            from = to;
            if to >= last {
                return Ok(());
            }
        }
    }

    /// Does the bulk device's part of an fsync. The file is durable once the log is durable up to
    /// the position returned.
    ///
    /// Order: the flush covers the data; then a record clears NEW; then the log up to this record
    /// is made durable. A record that clears NEW before the flush completes could outlive the data.
    pub fn fsync_prepare(self, ino: Ino) -> Result<Lsn> {
        match self.fsync_begin(ino)? {
            Fsync::Log(lsn) => Ok(lsn),
            Fsync::Bulk => self.fsync_many(&[ino]).pop().expect("an outcome for each file"),
        }
    }

    /// Returns what an fsync of the file has to wait for, without waiting for the bulk device.
    /// Fails once the store has failed, although the file's data may be durable: a caller learns of
    /// a failure by its next fsync.
    ///
    /// The promise comes before the check of the tier: a file that the check finds in the region
    /// does not leave it unflushed.
    pub fn fsync_begin(self, ino: Ino) -> Result<Fsync> {
        if self.fs.region.is_read_only() {
            return Ok(Fsync::Log(self.fsync_position()));
        }
        self.fs.writable()?;
        if let Some(bulk) = self.fs.bulk.as_ref() {
            self.fs.region.promise();
            if self.has_replaced() {
                return Ok(Fsync::Bulk);
            }
            let is_large = {
                let _lock = self.fs.locks.read(ino);
                self.fs.load(ino)?.layout == Layout::Extents
            };
            if is_large && !is_planted(Bug::FsyncSettle) {
                match bulk.file_flushed(ino) {
                    Some(flushed) => self.clear_new(ino, &flushed)?,
                    None if self.absorb_file(ino)? => {}
                    None => return Ok(Fsync::Bulk),
                }
                self.refuse_doubtful(ino)?;
            }
        }
        Ok(Fsync::Log(self.fsync_position()))
    }

    /// Does the bulk devices' part of many fsyncs, with one flush of each device. Returns for each
    /// file the log position at which it is durable. A device that fails affects its own files
    /// alone.
    pub fn fsync_many(self, inos: &[Ino]) -> Vec<Result<Lsn>> {
        let flush = || {
            self.settle_replaced()?;
            // On a device that holds writes back, the blocks of other files stay where they are.
            self.flush_files(inos)
        };
        let finish = |ino, flushed| {
            self.settle_flushed(ino, flushed)?;
            self.refuse_doubtful(ino)?;
            Ok(self.fsync_position())
        };
        match flush() {
            Ok(flushed) => {
                let outcomes = inos.iter().map(|&ino| finish(ino, &flushed)).collect();
                // For the next time. A failure of the region reaches the next caller.
                let _ = self.fs.bulk().and_then(|bulk| Ok(bulk.provide_area_at_once(&self.fs.region)?));
                outcomes
            }
            Err(error) => vec![Err(error); inos.len()],
        }
    }

    /// Returns the end of the log, for which an fsync has to wait once the bulk device has done its
    /// part.
    fn fsync_position(self) -> Lsn {
        if is_planted(Bug::FsyncPosition) { self.fs.region.durable_lsn() } else { self.fs.region.last_lsn() }
    }

    /// Returns where the file's data lies: slots of the region, extents of the bulk device, in file
    /// order.
    pub(crate) fn pieces(self, inode: &Inode) -> Result<Vec<PlacedRange>> {
        if inode.layout == Layout::Extents {
            return self.fs.large().large_pieces(inode);
        }
        let mut pieces = Vec::new();
        for chunk in 0..small::chunk_count(inode) {
            let file_at = chunk * CHUNK;
            let mut spilled = false;
            let (slot, len, stored) = match small::chunk_ref(&self.fs.region, inode, chunk)? {
                ChunkRef::Slot(slot) => (slot, slot.capacity(), slot.capacity()),
                ChunkRef::Packed(head) if chunk.is_multiple_of(GROUP_CHUNKS) => {
                    let placed = Placed::load(&self.fs.region, head)?;
                    spilled = placed.place.is_some();
                    let stored = placed.capacity() + placed.object.spilled_bytes();
                    (head, u64::from(placed.object.bytes), stored)
                }
                ChunkRef::Packed(_) => continue,
            };
            if !slot.is_none() {
                pieces.push(PlacedRange {
                    file_at,
                    len,
                    at: slot.offset().get(),
                    stored,
                    spilled,
                    ..PlacedRange::default()
                });
            }
        }
        Ok(pieces)
    }
}

/// Returns where the range of an allocation ends; fails if there can be no such allocation.
fn allocation_end(mode: i32, at: u64, len: u64) -> Result<u64> {
    if len == 0 {
        return Err(Error::Invalid);
    }
    let end = at.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX).ok_or(Error::FileTooBig)?;
    let punch = mode == PUNCH_HOLE | KEEP_SIZE;
    if punch || mode & !(KEEP_SIZE | ZERO_RANGE) == 0 { Ok(end) } else { Err(Error::NotSupported) }
}

fn regular(inode: &Inode) -> Result<()> {
    match inode.is_file() {
        true => Ok(()),
        false if inode.is_dir() => Err(Error::IsDirectory),
        false => Err(Error::Invalid),
    }
}

/// Calls `step` with the number of bytes done so far until all are done. An error after the first
/// step ends the call short.
#[inline]
fn in_steps(bytes: &[u8], mut step: impl FnMut(usize) -> Result<usize>) -> Result<usize> {
    let mut done = 0;
    while done < bytes.len() {
        match step(done) {
            Ok(len) => done += len,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}
