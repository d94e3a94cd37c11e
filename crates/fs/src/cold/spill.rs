//! Spilling: payloads of small files that have not been used for a while move to bulk storage when
//! memory fills up, and come back when they are used and there is room.
//!
//! A spilled object keeps its head in the region. Its payload lies in the *spill file*, a large
//! file without a name that packs many payloads into a block (docs/spec/region.md, section 7).
//! Parts: `map` tracks which ranges of the spill file are in use, `warm` tracks how warm files are,
//! `room` writes and unmaps its blocks, `write` moves payloads out, and `read` reads them and
//! brings them back.
//! Rules, in the order in which things must be durable:
//! - Payloads are written to blocks that nothing refers to and flushed, and a record clears NEW.
//!   Only then come the records that make heads refer to them: one for each object, under its
//!   inode's lock, if its bytes are still the same. A crash in between leaves blocks without users,
//!   which are unmapped after the next mount.
//! - A block of the spill file is written once, as a whole, and unmapped when the last range in it
//!   is no longer in use. So what a record frees is never overwritten, and invariant 5 concerns
//!   only the bulk device.
//! - No device I/O happens under an inode lock. A payload is read without locks, and its sum tells
//!   whether it is the right one. If not, the head is looked up again. A payload that fails twice
//!   in one place is damaged.
//! - An operation that changes a spilled group has it brought back first ([`Error::Spilled`],
//!   `compact`). An operation that removes or truncates it reads nothing.
//!
//! Locks: the worker's, above all others; the spill file's data lock and inode lock, as for any
//! large file; the map's, below all.
//! Left out: compression and what gets packed (`packer`), blocks and their order (`large`, `bulk`).

mod clean;
mod lost;
mod map;
mod read;
mod room;
mod warm;
mod write;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use shoal_bulk::{Backoff, Patience};
use shoal_format::SEGMENT;
use shoal_format::extent::{FileBlock, LEAF_BYTES};
use shoal_format::inode::{Ino, Inode, InodeSlot, Layout};
use shoal_region::Region;

use crate::cold::packer::Packer;
use crate::cold::share::{Load, share_percent};
use crate::extents::leaf_count;
use crate::inode::load_roots;
use crate::rooms::Spilling;
use crate::{Error, Result};
use map::SpillMap;
use read::Fetched;
pub(crate) use read::Wrong;
use warm::Warm;

/// Small files spill when this much of the memory is in use, unless an option says otherwise
/// (percent).
pub const SPILL_PERCENT: u8 = 85;
/// Spilling stops this far below the limit, and files come back only this far below it (percent).
const SLACK: u64 = 2;
const BACK_BELOW: u64 = 5;
/// Files queued to be brought back at most.
const RETURNS_MAX: usize = 1 << 16;
/// Time a tick may spend on bringing files back, and blocks of the inode table that it searches for
/// spilled ranges.
const TICK_RETURNS_NS: u64 = 30_000_000;
const TICK_BLOCKS: u64 = 2048;
/// Blocks without users are unmapped when there are this many, or when there is nothing else to do.
const SWEEP_BLOCKS: u64 = 64;
/// Bytes of memory to gain at once for an operation that found no room.
const PRESSED_BYTES: u64 = 1 << 20;
/// Turns of the hand for such an operation at most.
const TURNS: u64 = 5;

/// How full memory is (bytes).
struct MemoryUse {
    used: u64,
    size: u64,
}

/// Which files the clock hand takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Files that were not used since the hand last passed.
    Cold,
    All,
}

/// How much is spilled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    /// Files, or for longer files groups of 128 KiB.
    pub groups: u64,
    /// Bytes of these groups.
    pub bytes: u64,
    /// Bytes of bulk storage in use for these groups.
    pub stored: u64,
    /// Bytes of the spill file's blocks.
    pub blocks: u64,
    /// The scan of all inodes after a mount is not finished: there may be more.
    pub counting: bool,
}

/// An open store's state of spilling.
pub(crate) struct Spill {
    pub map: Arc<SpillMap>,
    pub warm: Warm,
    /// The spill file's inode number, with its generation in the upper half; 0: there is none.
    file: AtomicU64,
    percent: AtomicU8,
    /// Spilling gained nothing for the last operation that found no room.
    is_stuck: AtomicBool,
    returns: Mutex<Returns>,
    fetched: Mutex<VecDeque<Fetched>>,
    worker: Mutex<Worker>,
}

/// Files that were read while they were spilled.
#[derive(Default)]
struct Returns {
    /// Files that had already been used since the hand passed: cold files make room for them.
    again: VecDeque<Ino>,
    /// Files that come back if there is room.
    once: VecDeque<Ino>,
}

/// State of the only thread that spills at any time.
#[derive(Default)]
pub(super) struct Worker {
    packer: Packer,
    load: Load,
    /// The next block of inodes: to search for spilled ranges after a mount (`seen`), and to search
    /// for files to spill (`hand`).
    seen: u64,
    hand: u64,
    /// The next block of the spill file to write; `None`: its end.
    next: Option<FileBlock>,
    /// The cleaning pass in progress, and when the next one may begin (monotonic, ns).
    cleaning: Option<clean::Cleaning>,
    cleaned_ns: u64,
    backoff: Backoff,
    error: Option<Error>,
}

fn named(ino: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(ino)
}

impl Spill {
    pub fn load(region: &Region, percent: u8) -> Result<Spill> {
        let roots = load_roots(region)?;
        let file = named(roots.spill_file.get(), roots.spill_generation.get());
        let map = Arc::new(SpillMap::new(file == 0));
        let told = map.clone();
        region.set_on_let_go(Box::new(move |what| what.iter().for_each(|gone| told.remove(gone))));
        Ok(Spill {
            map,
            warm: Warm::new(),
            file: AtomicU64::new(file),
            percent: AtomicU8::new(percent),
            is_stuck: AtomicBool::new(false),
            returns: Mutex::default(),
            fetched: Mutex::default(),
            worker: Mutex::default(),
        })
    }

    pub fn file(&self) -> Option<Ino> {
        Some(Ino::new(self.file.load(Relaxed) as u32)).filter(|ino| !ino.is_none())
    }

    /// Returns whether the inode with this number is still the spill file. If the spill file was
    /// lost, another file may have its number.
    fn is_file(&self, ino: Ino, inode: &Inode) -> bool {
        let is_it =
            named(ino.get(), inode.generation) == self.file.load(Relaxed) && inode.is_file() && inode.nlink == 1;
        is_it && matches!(inode.layout, Layout::Empty | Layout::Extents)
    }

    /// Queues a file that was read while it was spilled.
    fn wants_back(&self, ino: Ino, again: bool) {
        let mut returns = self.returns.lock();
        let queue = if again { &mut returns.again } else { &mut returns.once };
        if queue.len() < RETURNS_MAX && queue.back() != Some(&ino) {
            queue.push_back(ino);
        }
    }
}

impl<'a> Spilling<'a> {
    /// Sets the memory use from which small files spill (percent); 0: none do.
    pub fn set_spill_percent(self, percent: u8) {
        self.fs.spill.percent.store(percent.min(100), Relaxed);
    }

    pub fn spill_percent(self) -> u8 {
        self.fs.spill.percent.load(Relaxed)
    }

    /// Returns whether small files can go to bulk storage.
    pub(crate) fn spills(self) -> bool {
        self.fs.bulk.is_some() && self.spill_percent() > 0 && self.fs.options.pack_age.is_some()
    }

    /// Returns whether a full memory still takes files, because others spill.
    pub(crate) fn makes_room(self) -> bool {
        self.spills() && !self.fs.spill.is_stuck.load(Relaxed)
    }

    /// Loads the inode of the spill file, whose lock the caller holds.
    pub(crate) fn load_spill_file(self, ino: Ino) -> Result<Inode> {
        match self.fs.load(ino) {
            Ok(inode) if self.fs.spill.is_file(ino, &inode) => Ok(inode),
            Ok(_) | Err(Error::Stale) => Err(Error::Corrupt("the spill file is lost; run `shoal check`".into())),
            Err(error) => Err(error),
        }
    }

    /// Returns the layout of the spill file, if there is one.
    pub(crate) fn spill_file_layout(self) -> Option<Layout> {
        let ino = self.fs.spill.file()?;
        let _lock = self.fs.locks.read(ino);
        self.load_spill_file(ino).ok().map(|inode| inode.layout)
    }

    /// Returns how much is spilled, as far as it is known ([`Spilled::counting`]).
    pub fn spilled(self) -> Spilled {
        let spilled = self.fs.spill.map.spilled();
        let blocks = self.fs.spill.file().map_or(0, |ino| {
            let _lock = self.fs.locks.read(ino);
            self.load_spill_file(ino).and_then(|inode| self.spill_file_bytes(&inode)).unwrap_or_default()
        });
        Spilled { blocks, ..spilled }
    }

    /// Like [`Spilling::spilled`], after scanning all inodes.
    pub fn count_spilled(self) -> Result<Spilled> {
        self.look_for_spilled(&mut self.fs.spill.worker.lock(), u64::MAX)?;
        Ok(self.spilled())
    }

    /// Returns the bytes of the spill file's blocks.
    fn spill_file_bytes(self, inode: &Inode) -> Result<u64> {
        if inode.layout != Layout::Extents {
            return Ok(0);
        }
        let map = inode.root.capacity() + leaf_count(&self.fs.region, inode.root)? * LEAF_BYTES;
        Ok(inode.allocated.saturating_sub(map))
    }

    fn memory(self) -> MemoryUse {
        let space = self.fs.region.space();
        let size = space.region_bytes - space.fixed_bytes;
        MemoryUse { used: size.saturating_sub(space.free_bytes), size }
    }

    /// Returns the bytes in use beyond `percent`.
    fn memory_above(self, percent: u64) -> u64 {
        let MemoryUse { used, size } = self.memory();
        used.saturating_sub((u128::from(size) * u128::from(percent) / 100) as u64)
    }

    /// Returns whether memory stays within the spilling limit with `bytes` more. With spilling off,
    /// the default limit applies.
    pub(crate) fn has_memory_for(self, bytes: u64) -> bool {
        let percent = if self.spill_percent() == 0 { SPILL_PERCENT } else { self.spill_percent() };
        let MemoryUse { used, size } = self.memory();
        u128::from(used + bytes) * 100 <= u128::from(size) * u128::from(percent)
    }

    /// Does a bounded amount of background work; meant to be called ten times a second. An error
    /// says why spilling has stopped; it is tried again later.
    pub fn spill_tick(self) -> Result<()> {
        if self.fs.bulk.is_none() || self.fs.writable().is_err() || self.fs.region.is_log_short() {
            return Ok(());
        }
        let Some(mut worker) = self.fs.spill.worker.try_lock() else { return Ok(()) };
        let begun = self.fs.packing.spilling_log_bytes();
        let outcome = self.spill_step(&mut worker);
        // Counted as the store's own work, so that the store can still count as idle.
        self.fs.idle.lock().own_bytes(self.fs.packing.spilling_log_bytes() - begun);
        outcome
    }

    fn spill_step(self, worker: &mut Worker) -> Result<()> {
        self.look_for_spilled(worker, TICK_BLOCKS)?;
        if self.fs.spill.map.emptied() >= SWEEP_BLOCKS {
            self.sweep()?;
        }
        let now = self.fs.clock.monotonic_ns();
        // Cleaning cannot proceed without room for what it writes. Spilling reports that.
        match self.clean_some(worker, now, TICK_BLOCKS) {
            Ok(()) | Err(Error::NoSpace(_)) => {}
            Err(error) => return Err(error),
        }
        let percent = u64::from(self.spill_percent());
        // With spilling off, spilled files still come back.
        let back = u64::saturating_sub(if percent == 0 { SPILL_PERCENT.into() } else { percent }, BACK_BELOW);
        let (is_full, is_short) = (self.memory_above(percent) > 0, self.memory_above(back) > 0);
        let is_wanted = is_short && !self.fs.spill.returns.lock().again.is_empty();
        if !self.spills() || !is_full && !is_wanted {
            worker.backoff.reset();
            worker.error = None;
            self.fs.spill.is_stuck.store(false, Relaxed);
            self.bring_some_back(back)?;
            self.sweep()?;
            return Ok(());
        }
        if worker.backoff.waits(now) {
            // Waiting for the next attempt is not success.
            return worker.error.clone().map_or(Ok(()), Err);
        }
        let to = if is_wanted { back } else { percent };
        let outcome = self.spill_some(worker, to.saturating_sub(SLACK), now);
        self.note_outcome(worker, outcome.map(drop))?;
        self.bring_some_back(back)
    }

    /// Delays the next attempts after a failed one.
    fn note_outcome(self, worker: &mut Worker, outcome: Result<()>) -> Result<()> {
        worker.backoff.note(outcome.is_err(), self.fs.clock.monotonic_ns());
        worker.error = outcome.clone().err();
        outcome
    }

    /// Spills until memory is below `percent`, within spilling's share of a processor.
    fn spill_some(self, worker: &mut Worker, percent: u64, now: u64) -> Result<u64> {
        let MemoryUse { used, size } = self.memory();
        let share = share_percent(self.fs.options.pack_load.max(1), used, size);
        let granted = worker.load.earn(now, share, self.fs.region.last_lsn(), 0);
        if granted.ns == 0 {
            return Ok(0);
        }
        let until_ns = now + granted.ns;
        let (mut gained, mut blocks) = (0, 0);
        let outcome = loop {
            let above = self.memory_above(percent);
            // At most one turn of the hand: files that are not cold yet can be used until the next
            // tick.
            if above == 0 || blocks >= self.fs.table.blocks() || self.fs.clock.monotonic_ns() >= until_ns {
                break Ok(gained);
            }
            match self.spill_batch(worker, above, TICK_BLOCKS, Which::Cold) {
                Ok(done) => (gained, blocks) = (gained + done.gained, blocks + done.blocks.max(1)),
                Err(error) => break Err(error),
            }
        };
        worker.load.spend(self.fs.clock.monotonic_ns().saturating_sub(now));
        outcome
    }

    /// Spills for an operation that found no room. Returns whether that gained any.
    pub(crate) fn spill_for_room(self, segments: u64, patience: Patience) -> Result<bool> {
        if !self.spills() {
            return Ok(false);
        }
        patience.may_flush()?;
        let mut worker = self.fs.spill.worker.lock();
        if worker.backoff.waits(self.fs.clock.monotonic_ns()) {
            return Ok(false);
        }
        let want = (segments * SEGMENT + PRESSED_BYTES).max(self.memory().size / 32);
        let (mut gained, mut blocks) = (0, 0);
        // Enough turns for the warmest file to become cold.
        while gained < want && blocks <= TURNS * self.fs.table.blocks() {
            match self.spill_batch(&mut worker, want - gained, u64::MAX, Which::Cold) {
                Ok(done) => (gained, blocks) = (gained + done.gained, blocks + done.blocks.max(1)),
                // A device error is not the caller's error: the caller reports lack of room.
                Err(error) => {
                    drop(self.note_outcome(&mut worker, Err(error)));
                    break;
                }
            }
        }
        self.fs.region.strip_empty();
        self.fs.spill.is_stuck.store(gained == 0, Relaxed);
        Ok(gained > 0)
    }

    /// Spills everything that may be spilled, however warm. Returns the bytes of memory gained.
    pub fn spill_all(self) -> Result<u64> {
        self.fs.writable()?;
        if self.fs.bulk.is_none() {
            return Ok(0);
        }
        let mut worker = self.fs.spill.worker.lock();
        let (mut gained, mut blocks) = (0, 0);
        worker.hand = 0;
        while blocks < self.fs.table.blocks() {
            let done = self.spill_batch(&mut worker, u64::MAX, self.fs.table.blocks() - blocks, Which::All)?;
            (gained, blocks) = (gained + done.gained, blocks + done.blocks.max(1));
        }
        Ok(gained)
    }

    /// Consolidates payloads from sparsely used blocks, and unmaps the blocks that become unused.
    pub fn clean_spilled(self) -> Result<()> {
        self.fs.writable()?;
        if self.fs.spill.file().is_none() {
            return Ok(());
        }
        let mut worker = self.fs.spill.worker.lock();
        self.look_for_spilled(&mut worker, u64::MAX)?;
        worker.cleaning = None;
        self.clean(&mut worker, u64::MAX, 0)?;
        self.sweep().map(drop)
    }

    /// Brings everything spilled back into memory, as far as there is room. Returns how many groups
    /// are left.
    pub fn bring_all_back(self) -> Result<u64> {
        self.fs.writable()?;
        for block in 0..self.fs.table.blocks() {
            let mut files = Vec::new();
            self.fs.table.for_block(&self.fs.region, block, &mut |ino, slot| {
                if let InodeSlot::Used(Inode { layout: Layout::Packed | Layout::Chunked, .. }) = slot {
                    files.push(ino);
                }
            })?;
            for ino in files {
                match self.fs.past_damage(ino, self.bring_file_back(ino)) {
                    Err(Error::NoSpace(_)) => return Ok(self.spilled().groups),
                    outcome => drop(outcome?),
                }
            }
        }
        Ok(self.spilled().groups)
    }

    /// Unmaps blocks of the spill file for an operation that found no bulk storage. Returns whether
    /// there were any.
    pub(crate) fn release_spilled(self) -> Result<bool> {
        if self.fs.spill.file().is_none() {
            return Ok(false);
        }
        let mut worker = self.fs.spill.worker.lock();
        self.look_for_spilled(&mut worker, u64::MAX)?;
        if self.sweep()? > 0 {
            return Ok(true);
        }
        match self.clean(&mut worker, u64::MAX, 1) {
            Ok(()) | Err(Error::NoSpace(_) | Error::Io(_) | Error::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(self.sweep()? > 0)
    }

    /// Continues, after a mount, the scan of all inodes for ranges of the spill file in use, at up
    /// to `most` blocks of the table.
    fn look_for_spilled(self, worker: &mut Worker, most: u64) -> Result<()> {
        if self.fs.spill.map.is_whole() {
            return Ok(());
        }
        let mut left = most;
        while worker.seen < self.fs.table.blocks() {
            if left == 0 {
                return Ok(());
            }
            let mut files = Vec::new();
            self.fs.table.for_block(&self.fs.region, worker.seen, &mut |ino, slot| {
                if let InodeSlot::Used(Inode { layout: Layout::Packed | Layout::Chunked, .. }) = slot {
                    files.push(ino);
                }
            })?;
            for ino in files {
                self.fs.past_damage(ino, self.note_spilled(ino))?;
            }
            worker.seen += 1;
            left -= 1;
        }
        self.fs.spill.map.set_whole();
        self.note_unused()
    }
}
