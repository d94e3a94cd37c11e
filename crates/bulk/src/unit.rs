//! One bulk device of a store: its free blocks, its requests, its flushes, and which of its blocks are in doubt.
//!
//! Rules:
//! - Each device counts its own writes and flushes alone: a slow or missing device delays only its
//!   own files.
//! - A device that failed a flush takes no more writes ([`Unit::close`]). What no flush had covered
//!   is *suspect*: it may or may not be on the device. Reading a suspect block is an error until
//!   the block is written whole or unmapped. Data still in a write-back cache is certain and is
//!   read there. A block is not in doubt if none of it has left the cache.
//! - A suspect block that was written whole can be read at once, but stays suspect on media until a
//!   flush has covered the write: it may still have another file's bytes. A block that no file had
//!   is certain at once.
//! - Data that a cache holds when its device is attached counts as just written.
//!
//! Block numbers are the store's; free blocks are kept by the device's own numbers, from 0.
//! Left out: which device gets new blocks, and what a failure means for the store
//! ([`super::Bulk`]).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};
use shoal_format::bulk_list::BulkDeviceEntry;
use shoal_format::extent::BulkBlock;
use shoal_format::inode::Ino;
use shoal_format::{BULK_BLOCK, Offset};
use shoal_media::{BlockDevice, MediaError, block};
use shoal_region::Region;

use super::block_set::{BlockSet, Word};
use super::blocks::{Blocks, Run};
use super::sums::Table;
use super::suspects::{clear_suspects, listed_suspects};
use crate::absorbed::Absorbed;
use crate::aligned::{read_aligned, write_aligned};
use crate::attached::{Attached, UseState};
use crate::planted::{Bug, is_planted};
use crate::{Error, Patience, Result};

/// Slots for the last writes of files.
const WRITES: usize = 1024;
/// Damaged places remembered at most.
const DAMAGED_MAX: usize = 4096;

/// Blocks in doubt, and those that would be after a failed flush.
#[derive(Default)]
struct Doubt {
    /// Written since the last flush was submitted.
    dirty: BlockSet,
    /// Written before the last flush was submitted, and not known to be durable yet.
    in_flush: BlockSet,
    suspects: BlockSet,
    /// Suspects that are certain once a flush has covered them: it clears their bits on media.
    rewritten: BlockSet,
    rewritten_in_flush: BlockSet,
    /// The piece with the suspects' bits, if there is one.
    piece: Option<Offset>,
}

/// When the doubt about a block that is written whole ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DoubtEnds {
    /// When the write returns: no file has the block, and the record that maps it says that it is
    /// NEW.
    AtOnce,
    WithFlush,
}

/// What lies behind the written bytes in their block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Behind {
    /// Bytes of the file.
    Owned,
    /// Bytes behind the file's end, which nobody owns.
    Nobodys,
}

impl Behind {
    /// Returns what lies behind bytes that end at `end`, in a file of `size` bytes.
    pub fn of(end: u64, size: u64) -> Behind {
        if end >= size { Behind::Nobodys } else { Behind::Owned }
    }
}

/// The number of a write, and the device it went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub device: u32,
    pub write: u64,
}

pub(super) struct Unit {
    pub number: u32,
    pub uuid: [u8; 16],
    /// The number of its first block.
    pub first: u64,
    pub count: u64,
    pub bitmap: Offset,
    pub name: RwLock<Arc<str>>,
    attached: RwLock<Attached>,
    /// The device takes its room from the host that [`crate::Room`] asks.
    pub on_host: AtomicBool,
    /// The host's number for where the device is.
    pub place: AtomicU64,
    /// The device is in another place than at the crash before this opening.
    pub moved: AtomicBool,
    /// What no flush covered when the store was used last may be gone, and is not settled yet.
    pub may_lack: AtomicBool,
    /// The last write failed: new data go elsewhere until a write or a flush succeeds.
    ails: AtomicBool,
    /// The device was attached in this process.
    pub was_there: AtomicBool,
    /// If the device is missing: it may lack earlier writes that no flush has covered.
    pub owes: AtomicBool,
    pub leaving: AtomicBool,
    pub state: Mutex<Blocks>,
    /// Number of the last completed write.
    pub written: AtomicU64,
    /// The last write covered by the flush submitted last.
    pub submitted: AtomicU64,
    /// The last write that a flush of ranges may have to distinguish from later ones.
    noted: AtomicU64,
    /// The last write covered by a completed flush.
    pub flushed: AtomicU64,
    /// Held during a flush.
    pub flushing: Mutex<()>,
    /// Held from taking pending runs until they count as free: a caller that finds no space waits
    /// for it.
    pub releasing: Mutex<()>,
    writes: Box<[AtomicU64]>,
    /// Writes are remembered by block: a failed flush does not end the store.
    pub tracks: AtomicBool,
    has_suspects: AtomicBool,
    /// How often a device was attached. A write that began before the last attachment is not
    /// covered by what is noted since.
    life: AtomicU64,
    /// Held while the region's list of suspects changes, from what decides it to the record.
    pub doubting: Mutex<()>,
    doubt: Mutex<Doubt>,
    sums: RwLock<Option<Arc<Table>>>,
    /// Pages that the region holds.
    pub absorbed: Absorbed,
    /// Readers get these pages from the region.
    pub overlays: AtomicBool,
    /// Device bytes where data did not match its checksum.
    damaged: Mutex<BTreeSet<u64>>,
}

impl Unit {
    pub fn new(entry: &BulkDeviceEntry, bitmap: Offset, blocks: Blocks) -> Unit {
        Unit {
            number: entry.number,
            uuid: entry.uuid,
            first: entry.first(),
            count: entry.blocks,
            bitmap,
            name: RwLock::new(format!("bulk device {}", entry.number).into()),
            attached: RwLock::new(Attached::Lost("it was not given".into())),
            on_host: AtomicBool::new(false),
            place: AtomicU64::new(0),
            moved: AtomicBool::new(false),
            may_lack: AtomicBool::new(false),
            ails: AtomicBool::new(false),
            was_there: AtomicBool::new(false),
            owes: AtomicBool::new(false),
            leaving: AtomicBool::new(entry.leaving),
            state: Mutex::new(blocks),
            // One more than flushed: an earlier process's writes may not be durable either.
            written: AtomicU64::new(1),
            submitted: AtomicU64::new(0),
            noted: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            flushing: Mutex::new(()),
            releasing: Mutex::new(()),
            // Number 1 stands for the writes of an earlier process.
            writes: (0..WRITES).map(|_| AtomicU64::new(1)).collect(),
            tracks: AtomicBool::new(false),
            has_suspects: AtomicBool::new(false),
            life: AtomicU64::new(0),
            doubting: Mutex::new(()),
            doubt: Mutex::default(),
            sums: RwLock::default(),
            absorbed: Absorbed::default(),
            overlays: AtomicBool::new(false),
            damaged: Mutex::default(),
        }
    }

    /// Returns the device's label for messages: its number, and its name if it has one.
    pub fn called(&self) -> String {
        let (number, name) = (format!("bulk device {}", self.number), self.name.read());
        if **name == *number { number } else { format!("{number} ({name})") }
    }

    /// Attaches the device; it takes writes from now on.
    pub fn attach(&self, device: Arc<dyn BlockDevice>) {
        {
            let mut doubt = self.doubt.lock();
            let doubt = &mut *doubt;
            for block in doubt.suspects.blocks().into_iter().filter(|&block| is_held(&*device, block)) {
                doubt.suspects.remove(block, block + 1);
                doubt.rewritten.insert(block, block + 1);
            }
            // Data in the cache can still leave the cache and be lost by a flush that fails.
            if self.tracks.load(Ordering::Acquire) {
                let held = held_blocks(&*device, 0, self.count);
                held.into_iter().for_each(|block| doubt.dirty.insert(block, block + 1));
            }
            if !doubt.dirty.is_empty() || !doubt.rewritten.is_empty() {
                // The next flush must not be skipped for lack of new writes.
                self.written.fetch_add(1, Ordering::AcqRel);
            }
            self.life.fetch_add(1, Ordering::AcqRel);
        }
        *self.attached.write() = Attached::Open(device);
        self.was_there.store(true, Ordering::Release);
    }

    /// Marks the device as missing.
    pub fn lose(&self, cause: &str) {
        *self.attached.write() = Attached::Lost(cause.into());
    }

    pub fn device(&self) -> Result<Arc<dyn BlockDevice>> {
        let device = self.attached.read().device().cloned();
        device.ok_or_else(|| self.refusal())
    }

    /// Returns the device, if it takes writes.
    pub fn open_device(&self) -> Result<Arc<dyn BlockDevice>> {
        self.opened().ok_or_else(|| self.refusal())
    }

    fn opened(&self) -> Option<Arc<dyn BlockDevice>> {
        self.attached.read().open().cloned()
    }

    /// Returns whether the device is there and takes writes.
    pub fn is_open(&self) -> bool {
        self.attached.read().open().is_some()
    }

    pub fn use_state(&self) -> UseState {
        self.attached.read().use_state(self.leaving.load(Ordering::Acquire))
    }

    /// Returns whether new blocks may be given out on the device.
    pub fn takes_blocks(&self) -> bool {
        self.is_open() && !self.leaving.load(Ordering::Acquire) && !self.ails()
    }

    pub fn ails(&self) -> bool {
        self.ails.load(Ordering::Acquire)
    }

    fn refusal(&self) -> Error {
        let words = self.attached.read().refusal();
        Error::Io(format!("{} {words}; `shoal bulk retry` when it is back", self.name.read()))
    }

    /// Turns a device's answer into the store's: poisoning of one of several devices does not make
    /// the store read-only.
    fn answer<T>(&self, outcome: shoal_media::Result<T>) -> Result<T> {
        match outcome {
            Err(error @ MediaError::Poisoned { .. }) if self.tracks.load(Ordering::Acquire) => {
                Err(Error::Io(error.to_string()))
            }
            other => Ok(other?),
        }
    }

    pub fn holds(&self, block: u64) -> bool {
        (self.first..self.first + self.count).contains(&block)
    }

    /// Converts a run that lies within the device to the device's own numbers.
    pub fn own(&self, run: Run) -> Run {
        Run { first: BulkBlock::new(run.first.get() - self.first), ..run }
    }

    pub fn as_store(&self, own: Run) -> Run {
        Run { first: BulkBlock::new(own.first.get() + self.first), ..own }
    }

    /// Returns the number of blocks that are not free.
    pub fn taken(&self) -> u64 {
        self.state.lock().taken()
    }

    /// Returns the number of blocks that may be given out.
    pub fn room(&self) -> u64 {
        let blocks = self.state.lock();
        blocks.free.saturating_sub(blocks.withheld)
    }

    /// Notes that write `number` went into the file.
    pub fn wrote(&self, ino: Ino, number: u64) {
        self.writes[ino.get() as usize % WRITES].fetch_max(number, Ordering::AcqRel);
    }

    /// Returns the number of the last write into the file, or a later one.
    pub fn last_write(&self, ino: Ino) -> u64 {
        self.writes[ino.get() as usize % WRITES].load(Ordering::Acquire)
    }

    /// Tells the device's write cache that these bytes are about to be written for a file.
    pub fn belongs(&self, ino: Ino, at: u64, len: u64) {
        if let (Ok(own), Some(device)) = (self.place(at, len as usize), self.opened()) {
            device.belongs(own, len, ino.get().into());
        }
    }

    /// Returns for how long the device holds writes back (ns), if it does so and takes writes.
    pub fn held_ns(&self) -> Option<u64> {
        Some(self.opened()?.held_for_ns()).filter(|&held| held > 0)
    }

    pub fn needs_flush(&self) -> bool {
        self.is_open() && self.written.load(Ordering::Acquire) > self.submitted.load(Ordering::Acquire)
    }

    pub fn stamp(&self) -> Stamp {
        Stamp { device: self.number, write: self.written.load(Ordering::Acquire) }
    }

    /// Returns the last completed write, and notes it for a flush of ranges to distinguish from
    /// later ones. The caller is within [`Fresh::note`](super::Fresh::note).
    pub fn note_writes(&self) -> u64 {
        let written = self.written.load(Ordering::Acquire);
        self.noted.fetch_max(written, Ordering::AcqRel);
        written
    }

    /// Returns the last write whose range must not be joined by a later write's range.
    pub fn last_noted(&self) -> u64 {
        let noted = if is_planted(Bug::JoinNoted) { 0 } else { self.noted.load(Ordering::Acquire) };
        self.submitted.load(Ordering::Acquire).max(noted)
    }

    /// Takes a write number for data that an earlier process wrote.
    pub fn note_earlier_write(&self) -> Stamp {
        Stamp { device: self.number, write: self.written.fetch_add(1, Ordering::AcqRel) + 1 }
    }

    /// Converts `at`, the store's number of a byte, to the device's own.
    fn place(&self, at: u64, len: usize) -> Result<u64> {
        let own = at.checked_sub(self.first * BULK_BLOCK).filter(|own| own + len as u64 <= self.count * BULK_BLOCK);
        own.ok_or_else(|| {
            Error::Corrupt(format!("an extent leaves {} at byte {at}; run `shoal check`", self.name.read()))
        })
    }

    /// Reads without comparing checksums.
    pub fn read_as_it_is(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let own = self.place(at, out.len())?;
        self.refuse_suspects(own, out.len())?;
        let device = self.device()?;
        let align = device.geometry().block_bytes.max(1) as u64;
        self.answer(read_aligned(&*device, align, own, out))
    }

    fn refuse_suspects(&self, own: u64, len: usize) -> Result<()> {
        if self.has_suspects.load(Ordering::Acquire) && !is_planted(Bug::SuspectsRead) {
            let end = own + len as u64;
            let is_suspect = |block| self.doubt.lock().suspects.meets(block, block + 1);
            for block in (own / BULK_BLOCK..end.div_ceil(BULK_BLOCK)).filter(|&block| is_suspect(block)) {
                let (from, to) = (own.max(block * BULK_BLOCK), end.min((block + 1) * BULK_BLOCK));
                if self.device()?.held_in(from, to - from) < to - from {
                    return Err(self.doubtful());
                }
            }
        }
        Ok(())
    }

    pub fn read(&self, region: &Region, at: u64, out: &mut [u8], tell: impl Fn(&str)) -> Result<()> {
        let own = self.place(at, out.len())?;
        let mut read = || {
            self.refuse_suspects(own, out.len())?;
            let device = self.device()?;
            let align = device.geometry().block_bytes.max(1) as u64;
            let read = |at, out: &mut [u8]| self.answer(read_aligned(&*device, align, at, out));
            let Some(table) = self.sums() else { return read(own, out).map(|()| None) };
            table.read(region, own, out, &read)
        };
        let mut wrong = read()?;
        if wrong.is_some() && !is_planted(Bug::SumsOneLook) {
            // A failing flush loses bytes before its failure is known: look again while no flush is
            // under way.
            let _no_flush = self.await_flush();
            wrong = read()?;
        }
        if wrong.is_some() && self.may_lack.load(Ordering::Acquire) && region.failure().is_some() {
            return Err(self.unread());
        }
        match wrong {
            None => self.lay_absorbed_over(region, own, out),
            Some(byte) => {
                let error = Error::Damaged { device: self.name.read().to_string(), byte };
                let mut damaged = self.damaged.lock();
                if damaged.len() < DAMAGED_MAX && damaged.insert(byte) {
                    drop(damaged);
                    tell(&error.to_string());
                }
                Err(error)
            }
        }
    }

    /// Waits for the flush under way and keeps others from beginning, as long as the device takes
    /// writes. When this returns, the blocks that a failed flush put in doubt are known. A thread
    /// that flushes waits for no reader's lock, so there is no deadlock.
    fn await_flush(&self) -> Option<MutexGuard<'_, ()>> {
        while self.is_open() {
            let lock = self.flushing.try_lock_for(Duration::from_millis(1));
            if lock.is_some() {
                return lock;
            }
        }
        // A failed flush closes the device before it puts blocks in doubt, both under this lock.
        drop(self.doubt.lock());
        None
    }

    /// Gives the bytes on the device new checksums: the caller knows that they are right.
    pub fn accept(&self, region: &Region, at: u64, bytes: &[u8]) -> Result<()> {
        let own = self.place(at, bytes.len())?;
        if let Some(table) = self.sums().filter(|_| !region.is_read_only()) {
            table.wrote(region, own, bytes)?;
        }
        self.forget_damage(own, own + bytes.len() as u64);
        Ok(())
    }

    pub fn sums(&self) -> Option<Arc<Table>> {
        self.sums.read().clone()
    }

    pub fn set_sums(&self, table: Option<Table>) {
        *self.sums.write() = table.map(Arc::new);
    }

    /// Returns the number of places where damage was found and nothing was written since.
    pub fn damaged_places(&self) -> u64 {
        self.damaged.lock().len() as u64
    }

    /// Forgets damage in bytes that were written or freed.
    fn forget_damage(&self, from: u64, to: u64) {
        let mut damaged = self.damaged.lock();
        if !damaged.is_empty() {
            damaged.retain(|byte| !(from..to).contains(byte));
        }
    }

    /// Returns the error of a read after a flush of the only device failed.
    pub fn unread(&self) -> Error {
        Error::Io(format!(
            "{}: a flush failed before these bytes were durable; unmount the store and mount it again to read what is left",
            self.name.read()
        ))
    }

    fn doubtful(&self) -> Error {
        Error::Io(format!(
            "{}: a flush failed after these bytes were written, so they may be old; write them again or remove the file",
            self.name.read()
        ))
    }

    /// Overwrites data.
    pub fn write(
        &self,
        region: &Region,
        at: u64,
        bytes: &[u8],
        behind: Behind,
        patience: Patience,
        tell: impl Fn(&str),
    ) -> Result<Stamp> {
        let ends = DoubtEnds::WithFlush;
        let Some(table) = self.sums() else { return self.write_plain(region, at, bytes, ends) };
        let own = self.place(at, bytes.len())?;
        let end = own + bytes.len() as u64;
        let mut mixed = Vec::new();
        for number in table.parts(region, own, end)? {
            let from = number * table.sums.unit_bytes();
            let mut unit = vec![0; table.sums.unit_bytes() as usize];
            match self.read(region, self.first * BULK_BLOCK + from, &mut unit, &tell) {
                Ok(()) => {
                    let (first, last) = (own.max(from), end.min(from + unit.len() as u64));
                    unit[(first - from) as usize..(last - from) as usize]
                        .copy_from_slice(&bytes[(first - own) as usize..(last - own) as usize]);
                    mixed.push((from, unit));
                }
                Err(error @ Error::Damaged { .. }) => {
                    let leaves_some = from < own || behind == Behind::Owned;
                    if leaves_some && !is_planted(Bug::PartsUnread) {
                        return Err(error);
                    }
                }
                // An unreadable unit may be overwritten: that hides no damage.
                Err(_) => {}
            }
        }
        let last_write = || self.written.load(Ordering::Acquire);
        let _writing = table.write_over(region, own, end, patience, &last_write)?;
        let stamp = self.write_with(&table, region, at, bytes, ends)?;
        mixed.iter().try_for_each(|(from, unit)| table.wrote(region, *from, unit))?;
        Ok(stamp)
    }

    /// Fills blocks that no file maps yet and that no new reader can find before the caller's
    /// record is there. A reader that found them for another file, and holds no lock of it, may
    /// still be reading. So the sum is removed first here, too.
    pub fn fill(&self, region: &Region, at: u64, bytes: &[u8]) -> Result<Stamp> {
        let Some(table) = self.sums() else { return self.write_plain(region, at, bytes, DoubtEnds::AtOnce) };
        let own = self.place(at, bytes.len())?;
        table.take_away(region, own, own + bytes.len() as u64)?;
        self.write_with(&table, region, at, bytes, DoubtEnds::AtOnce)
    }

    fn write_with(&self, table: &Table, region: &Region, at: u64, bytes: &[u8], ends: DoubtEnds) -> Result<Stamp> {
        let own = self.place(at, bytes.len())?;
        let stamp = self.write_plain(region, at, bytes, ends)?;
        table.wrote(region, own, bytes)?;
        self.forget_damage(own, own + bytes.len() as u64);
        Ok(stamp)
    }

    fn write_plain(&self, region: &Region, at: u64, bytes: &[u8], ends: DoubtEnds) -> Result<Stamp> {
        let own = self.place(at, bytes.len())?;
        let end = own + bytes.len() as u64;
        let (first, last) = (own / BULK_BLOCK, end.div_ceil(BULK_BLOCK));
        let mut life = self.life.load(Ordering::Acquire);
        if self.tracks.load(Ordering::Acquire) {
            let mut doubt = self.doubt.lock();
            // Checked under the lock: a write that finds the device open is in `dirty` when it
            // closes.
            if !self.is_open() {
                return Err(self.refusal());
            }
            let whole = (own.div_ceil(BULK_BLOCK), end / BULK_BLOCK);
            let partly =
                doubt.suspects.meets(first, whole.0.min(last)) || doubt.suspects.meets(whole.1.max(first), last);
            if partly && !is_planted(Bug::SuspectsRead) {
                return Err(self.doubtful());
            }
            doubt.dirty.insert(first, last);
            life = self.life.load(Ordering::Acquire);
        }
        let device = self.device()?;
        let align = device.geometry().block_bytes.max(1) as u64;
        let outcome = write_aligned(&*device, align, own, bytes);
        // A failed write counts too: some of it may have reached the device.
        let write = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        // Checked again: a second device may have been added meanwhile.
        if self.tracks.load(Ordering::Acquire) {
            self.ails.store(outcome.as_ref().is_err_and(|error| !error.is_lack()), Ordering::Release);
            let mut doubt = self.doubt.lock();
            let is_other = self.life.load(Ordering::Acquire) != life && !is_planted(Bug::AcrossRetry);
            if !self.is_open() || is_other {
                // A flush failed meanwhile and does not cover this write, so the write fails, too;
                // also if the device was opened again since.
                return Err(self.refusal());
            }
            // Inserted again: a flush submitted during the write has not covered it.
            doubt.dirty.insert(first, last);
            // Only whole blocks are suspect here.
            if let Some(piece) = doubt.piece.filter(|_| outcome.is_ok()) {
                if ends == DoubtEnds::WithFlush && !is_planted(Bug::WrittenEndsAtOnce) {
                    if doubt.suspects.meets(first, last) {
                        doubt.suspects.remove(first, last);
                        doubt.rewritten.insert(first, last);
                    }
                } else {
                    drop(doubt);
                    self.end_doubt(region, piece, (own.div_ceil(BULK_BLOCK), end / BULK_BLOCK), life)?;
                }
            }
        }
        self.answer(outcome).map(|()| Stamp { device: self.number, write })
    }

    /// Begins the flush of everything written so far.
    pub fn begin_flush(&self) {
        let mut doubt = self.doubt.lock();
        let doubt = &mut *doubt;
        let (dirty, rewritten) = (std::mem::take(&mut doubt.dirty), std::mem::take(&mut doubt.rewritten));
        doubt.in_flush.add(&dirty);
        doubt.rewritten_in_flush.add(&rewritten);
    }

    /// Begins the flush of these blocks alone, given by the device's own numbers.
    pub fn begin_flush_of(&self, ranges: &[(u64, u64)]) {
        let mut doubt = self.doubt.lock();
        let doubt = &mut *doubt;
        for &(first, end) in ranges {
            doubt.dirty.give(first, end, &mut doubt.in_flush);
            doubt.rewritten.give(first, end, &mut doubt.rewritten_in_flush);
        }
    }

    /// Completes the flush. Returns the words of the blocks that are no longer suspect.
    pub fn end_flush(&self) -> Vec<Word> {
        self.ails.store(false, Ordering::Release);
        let mut doubt = self.doubt.lock();
        doubt.in_flush = BlockSet::default();
        std::mem::take(&mut doubt.rewritten_in_flush).words()
    }

    /// Closes the device after a failed flush: everything that no flush covered is in doubt.
    /// Returns the words of those blocks. The caller holds `doubting`.
    pub fn close(&self, cause: &str) -> Vec<Word> {
        let mut doubt = self.doubt.lock();
        let device = self.attached.write().close(cause);
        let doubt = &mut *doubt;
        let mut lost = std::mem::take(&mut doubt.dirty);
        lost.add(&std::mem::take(&mut doubt.in_flush));
        if let Some(device) = device {
            device.give_up();
            lost.retain(|block| device.may_have_lost(block * BULK_BLOCK, BULK_BLOCK));
        }
        // Blocks that the cache still holds wait for another flush.
        doubt.rewritten.add(&std::mem::take(&mut doubt.rewritten_in_flush));
        lost.blocks().into_iter().for_each(|block| doubt.rewritten.remove(block, block + 1));
        doubt.suspects.add(&lost);
        self.has_suspects.store(!doubt.suspects.is_empty(), Ordering::Release);
        lost.words()
    }

    /// Ends the doubt about blocks that were written whole. The region may list one that is no
    /// suspect: it was freed while a flush failed.
    fn end_doubt(&self, region: &Region, piece: Offset, (first, end): (u64, u64), life: u64) -> Result<()> {
        if listed_suspects(region, piece, first, end)?.is_empty() {
            return Ok(());
        }
        let _one_at_a_time = self.doubting.lock();
        if !self.is_open() || self.life.load(Ordering::Acquire) != life {
            // A flush failed meanwhile: they are in doubt again.
            return Err(self.refusal());
        }
        if !is_planted(Bug::WrittenStaysInDoubt) {
            clear_suspects(region, piece, &listed_suspects(region, piece, first, end)?)?;
        }
        self.doubt.lock().suspects.remove(first, end);
        Ok(())
    }

    /// Takes over the suspects that an earlier process left.
    pub fn set_suspects(&self, piece: Offset, suspects: BlockSet) {
        let mut doubt = self.doubt.lock();
        self.has_suspects.store(!suspects.is_empty(), Ordering::Release);
        (doubt.piece, doubt.suspects) = (Some(piece), suspects);
    }

    pub fn suspects_piece(&self) -> Option<Offset> {
        self.doubt.lock().piece
    }

    pub fn set_suspects_piece(&self, piece: Offset) {
        self.doubt.lock().piece = Some(piece);
    }

    pub fn has_suspects(&self) -> bool {
        self.has_suspects.load(Ordering::Acquire) && !self.doubt.lock().suspects.is_empty()
    }

    /// Returns the number of used blocks that are in doubt.
    pub fn suspect_blocks(&self) -> u64 {
        if !self.has_suspects() {
            return 0;
        }
        let suspects = self.doubt.lock().suspects.words();
        let blocks = self.state.lock();
        suspects.into_iter().map(|word| u64::from((word.bits & blocks.used_of(word.number)).count_ones())).sum()
    }

    /// Returns whether any block of a run is in doubt.
    pub fn is_suspect(&self, run: Run) -> bool {
        let own = self.own(run);
        self.doubt.lock().suspects.meets(own.first.get(), own.end().get())
    }

    /// Returns the parts of a run that are neither in doubt nor held whole in front of `device`:
    /// only the device itself has their contents.
    pub fn left_to(&self, device: &dyn BlockDevice, run: Run) -> Vec<Run> {
        let mut found: Vec<Run> = Vec::new();
        for block in (0..run.blocks).map(|ahead| run.first + ahead) {
            let one = Run { first: block, blocks: 1 };
            if self.is_suspect(one) || is_held(device, self.own(one).first.get()) {
                continue;
            }
            match found.last_mut().filter(|last| last.end() == block) {
                Some(last) => last.blocks += 1,
                None => found.push(one),
            }
        }
        found
    }

    /// Fails if part of a run of data is in doubt, or waits for a flush that the device cannot
    /// make. With `is_new`, all of the run waits for one.
    pub fn refuse_doubtful(&self, run: Run, is_new: bool) -> Result<()> {
        // A closed device receives no more writes, so data still held in front of it is not
        // durable.
        let lacks = |device: Arc<dyn BlockDevice>| {
            let own = self.own(run);
            device.held_in(own.first.byte(), own.blocks * BULK_BLOCK) > 0
        };
        // A missing device cannot be queried.
        let may_lack = || self.device().map_or_else(|_| self.owes.load(Ordering::Acquire), lacks);
        if !self.is_open() && (is_new || may_lack()) {
            return Err(self.refusal());
        }
        if self.is_suspect(run) { Err(self.doubtful()) } else { Ok(()) }
    }

    /// Forgets what is noted of a run that no file has any more: its contents are no longer needed.
    pub fn forget(&self, run: Run) {
        let own = self.own(run);
        self.forget_damage(own.first.byte(), own.end().byte());
        if !self.tracks.load(Ordering::Acquire) && !self.has_suspects.load(Ordering::Acquire) {
            return;
        }
        let (first, end) = (own.first.get(), own.end().get());
        let mut doubt = self.doubt.lock();
        let doubt = &mut *doubt;
        // Unflushed writes are forgotten, too: else a failed flush would put the block in doubt for
        // its next file.
        let written = [&mut doubt.dirty, &mut doubt.in_flush];
        let suspects = [&mut doubt.suspects, &mut doubt.rewritten, &mut doubt.rewritten_in_flush];
        for set in written.into_iter().chain(suspects) {
            set.remove(first, end);
        }
    }

    /// Trims a run. A failed trim only costs space on the device: a fresh block is written whole.
    pub fn trim(&self, own: Run) {
        if let Some(device) = self.opened() {
            let _ = block::trim(&*device, own.first.byte(), own.blocks * BULK_BLOCK);
        }
    }
}

/// Returns the device's own blocks in `[first, end)` of which something is held back in front of it.
fn held_blocks(device: &dyn BlockDevice, first: u64, end: u64) -> Vec<u64> {
    match end - first {
        _ if device.held_in(first * BULK_BLOCK, (end - first) * BULK_BLOCK) == 0 => Vec::new(),
        1 => vec![first],
        blocks => {
            let middle = first + blocks / 2;
            let mut held = held_blocks(device, first, middle);
            held.extend(held_blocks(device, middle, end));
            held
        }
    }
}

/// Returns whether one of the device's own blocks is held back whole in front of it.
fn is_held(device: &dyn BlockDevice, block: u64) -> bool {
    device.held_in(block * BULK_BLOCK, BULK_BLOCK) == BULK_BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_the_blocks_that_were_put_in_and_not_taken_out() {
        let mut set = BlockSet::default();
        set.insert(60, 130);
        set.remove(64, 65);
        let holds: Vec<u64> = (0..200).filter(|&block| set.meets(block, block + 1)).collect();
        assert_eq!(holds, (60..130).filter(|&block| block != 64).collect::<Vec<_>>());
        for none in [0, 61, 64, 100, 128, 129] {
            assert!(!set.meets(none, none), "nothing lies in an empty range");
        }
        assert!(!set.meets(0, 60) && !set.meets(64, 65) && !set.meets(130, 1000));
        let mut other = BlockSet::default();
        set.give(63, 66, &mut other);
        assert!(other.meets(63, 64) && other.meets(65, 66) && !other.meets(64, 65) && !other.meets(66, 1000));
        assert!(!set.meets(63, 66) && set.meets(62, 63) && set.meets(66, 67));
        set.insert(61, 61);
        set.remove(0, 1000);
        assert!(set.is_empty());
    }
}
