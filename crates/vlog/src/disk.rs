//! The device: requests, batches, flushes.
//!
//! Owns: the batch that gathers written blocks until it is full, flushed, or old; the lock order
//! (log, then batch or state, never both); counters. A write completes when it is in the batch. The
//! thread that fills the batch, or flushes, writes it out, while others fill the next one. One
//! flush of the device below serves all waiting threads. Rules: a read looks into the batch first,
//! then at the map, and compares the bytes with their checksum. A block that fails is looked up
//! again while no thread writes. After a failed write or flush, nothing is written any more.

mod lookup;

use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};
use shoal_format::vlog::{BLOCK, Checkpoint, PIECES_MAX, Superblock};
use shoal_media::{
    BlockDevice, BlockGeometry, Clock, Completion, MediaError, Poison, Request, Result, WriteCache, block,
};

use crate::Options;
use crate::checkpoint::Checkpoints;
use crate::compact::Emptying;
use crate::idle::Arrivals;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::write::{By, Item};

/// Requests need to be aligned only to this (bytes), not to blocks.
const SECTOR: u64 = 512;
/// Maximum number of blocks gathered before they are written.
const BATCH_BLOCKS: usize = 256;
const STRIPES: usize = 64;

#[derive(Clone)]
pub(crate) enum Change {
    Data(Arc<[u8]>),
    /// Reads as zeros, takes no space.
    Nowhere,
}

type Batch = BTreeMap<u32, Change>;

#[derive(Default)]
struct Front {
    open: Batch,
    /// The batch being written. The map refers to it already.
    writing: Batch,
    /// Number of changes ever put into a batch.
    tickets: u64,
    /// When the first change of the open batch arrived (ns).
    since_ns: u64,
}

/// State of the writing thread.
#[derive(Default)]
pub(crate) struct Log {
    /// Number of the last record written.
    pub written: u64,
    /// Number up to which that record calls records durable.
    pub says: u64,
    /// Blocks written since the last flush of the device below.
    pub unflushed_blocks: u32,
    pub unflushed_records: u32,
    pub flushed_tickets: u64,
    pub emptying: Option<Emptying>,
    /// First blocks of the segments and tracks that cannot be emptied.
    pub stuck: HashSet<u32>,
    pub tail_generation: u64,
    /// The complete checkpoint, as the tail record names it.
    pub complete: Option<Checkpoint>,
    /// Present on a disk with a map area.
    pub checkpoints: Option<Checkpoints>,
    /// Tracks of a disk with a head, filled when first needed.
    pub tracks: Vec<Range<u32>>,
}

#[derive(Default)]
pub(crate) struct Counts {
    host_blocks: AtomicU64,
    device_blocks: AtomicU64,
    pub moved: AtomicU64,
    pub emptied: AtomicU64,
    pub damaged: AtomicU64,
    pub checkpoints: AtomicU64,
    flushes: AtomicU64,
}

impl Counts {
    pub fn written(&self, blocks: usize) {
        self.device_blocks.fetch_add(blocks as u64, Ordering::Relaxed);
    }
}

/// A snapshot of the disk's state. Counts are since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Status {
    pub logical_bytes: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes in use, or left and not free yet.
    pub used_bytes: u64,
    /// Bytes left, which become free after the next flush.
    pub left_bytes: u64,
    pub segments: u32,
    pub free_segments: u32,
    pub live_records: u64,
    /// Memory of the map (bytes).
    pub map_bytes: u64,
    /// Memory of everything else kept for blocks, pieces and records (bytes).
    pub beside_bytes: u64,
    /// Blocks the disk was asked to write.
    pub host_blocks: u64,
    /// Blocks it wrote to the device below.
    pub device_blocks: u64,
    /// Blocks the compactor moved.
    pub moved_blocks: u64,
    /// Segments or tracks it emptied.
    pub emptied: u64,
    /// Blocks it could not move because they were unreadable or had a wrong checksum.
    pub damaged_blocks: u64,
    /// Flushes of the device below.
    pub flushes: u64,
    /// Checkpoints completed.
    pub checkpoints: u64,
    /// False on a disk that has no room for checkpoints.
    pub has_checkpoints: bool,
}

impl Status {
    /// Ratio of blocks written to the device below to blocks written to the disk.
    pub fn write_amplification(&self) -> f64 {
        self.device_blocks as f64 / (self.host_blocks as f64).max(1.0)
    }
}

/// What becomes of a block of which a range covers only a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Partial {
    /// The part is overwritten with zeros.
    Zero,
    /// The block is left alone.
    Keep,
}

/// An open virtual-log disk. It has no thread of its own: [`crate::VirtualLogDisk`] runs the work
/// for gaps.
pub struct VirtualLog {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    pub(crate) superblock: Superblock,
    pub(crate) state: RwLock<State>,
    pub(crate) log: Mutex<Log>,
    pub(crate) counts: Counts,
    front: Mutex<Front>,
    /// A partial write reads, changes and puts back its block while it holds the block's stripe.
    stripes: Box<[Mutex<()>]>,
    arrivals: Arrivals,
    poison: Poison,
}

impl VirtualLog {
    pub(crate) fn assemble(
        device: Arc<dyn BlockDevice>,
        clock: Arc<dyn Clock>,
        options: Options,
        state: State,
        log: Log,
    ) -> VirtualLog {
        VirtualLog {
            device,
            clock,
            options,
            superblock: state.superblock,
            state: RwLock::new(state),
            log: Mutex::new(log),
            counts: Counts::default(),
            front: Mutex::default(),
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            arrivals: Arrivals::default(),
            poison: Poison::default(),
        }
    }

    pub fn uuid(&self) -> [u8; 16] {
        self.superblock.uuid
    }

    pub fn status(&self) -> Status {
        let state = self.state.read();
        let (map_bytes, beside_bytes) = state.memory();
        let bytes = |blocks: u32| blocks as u64 * BLOCK as u64;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Status {
            logical_bytes: bytes(self.superblock.logical_blocks),
            log_bytes: bytes(state.space.blocks().len() as u32),
            used_bytes: bytes(state.space.used_blocks()),
            left_bytes: bytes(state.space.left_blocks()),
            segments: self.superblock.segments(),
            free_segments: state.space.free_segments() as u32,
            live_records: state.live_records() as u64,
            map_bytes,
            beside_bytes,
            host_blocks: count(&self.counts.host_blocks),
            device_blocks: count(&self.counts.device_blocks),
            moved_blocks: count(&self.counts.moved),
            emptied: count(&self.counts.emptied),
            damaged_blocks: count(&self.counts.damaged),
            flushes: count(&self.counts.flushes),
            checkpoints: count(&self.counts.checkpoints),
            has_checkpoints: self.superblock.area.is_some(),
        }
    }

    fn name(&self) -> String {
        "virtual-log disk".into()
    }

    pub(crate) fn poison(&self, cause: impl std::fmt::Display) {
        self.poison.set(cause);
    }

    pub(crate) fn writable(&self) -> Result<()> {
        if self.poison.is_set() { self.poison.refuse(&self.name()) } else { Ok(()) }
    }

    /// Returns the number of changes for which the space kept free is enough.
    pub(crate) fn items_at_once(&self) -> usize {
        match self.superblock.segment_blocks {
            0 => ((self.superblock.physical_blocks - self.superblock.logical_blocks) as usize / 4).clamp(4, PIECES_MAX),
            blocks => blocks as usize / 2,
        }
    }

    fn check(&self, at: u64, len: u64) -> Result<()> {
        let bytes = self.superblock.logical_blocks as u64 * BLOCK as u64;
        if !at.is_multiple_of(SECTOR) || !len.is_multiple_of(SECTOR) || at > bytes || len > bytes - at {
            return Err(MediaError::OutOfRange { what: self.name(), at, len });
        }
        Ok(())
    }

    /// Records when a request comes and goes.
    fn attend<T>(&self, request: impl FnOnce() -> T) -> T {
        self.arrivals.came(self.clock.monotonic_ns());
        let answer = request();
        self.arrivals.went(self.clock.monotonic_ns());
        answer
    }

    fn carry_out(&self, request: Request) -> Result<Vec<u8>> {
        match request {
            Request::Read { at, mut buffer } => self.read_bytes(at, &mut buffer).map(|()| buffer),
            Request::Write { at, buffer, fua } => {
                let written = self.put_bytes(at, &buffer);
                written.and_then(|()| if fua { self.flush_all() } else { self.write_if_full() }).map(|()| buffer)
            }
            Request::Flush => self.flush_all().map(|()| vec![]),
            Request::Trim { at, len } => self.drop_range(at, len, Partial::Keep).map(|()| vec![]),
            Request::WriteZeroes { at, len, fua } => {
                let dropped = self.drop_range(at, len, Partial::Zero);
                dropped.and_then(|()| if fua { self.flush_all() } else { Ok(()) }).map(|()| vec![])
            }
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    fn stripe(&self, logical: u32) -> MutexGuard<'_, ()> {
        lock(&self.stripes[logical as usize % STRIPES])
    }

    fn put(&self, logical: u32, change: Change) {
        let mut front = self.front.lock();
        if front.open.is_empty() {
            front.since_ns = self.clock.monotonic_ns();
        }
        front.tickets += 1;
        front.open.insert(logical, change);
    }

    /// Puts bytes into the open batch. The caller writes the batch if it is due.
    fn put_bytes(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.writable()?;
        self.check(at, bytes.len() as u64)?;
        let mut done = 0;
        while done < bytes.len() {
            let (logical, within) = place(at + done as u64);
            let len = (BLOCK - within).min(bytes.len() - done);
            self.write_part(logical, within, &bytes[done..done + len])?;
            done += len;
        }
        self.counts.host_blocks.fetch_add(bytes.len().div_ceil(BLOCK) as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Writes bytes within one block.
    fn write_part(&self, logical: u32, within: usize, bytes: &[u8]) -> Result<()> {
        let _stripe = self.stripe(logical);
        if bytes.len() == BLOCK {
            self.put(logical, Change::Data(bytes.into()));
            return Ok(());
        }
        let mut block = vec![0; BLOCK];
        self.read_blocks(logical, &mut block)?;
        block[within..within + bytes.len()].copy_from_slice(bytes);
        self.put(logical, Change::Data(block.into()));
        Ok(())
    }

    /// Makes blocks read as zeros.
    fn drop_range(&self, at: u64, len: u64, partial: Partial) -> Result<()> {
        self.writable()?;
        self.check(at, len)?;
        let end = at + len;
        let mut from = at;
        while from < end {
            let (logical, within) = place(from);
            let part = ((BLOCK - within) as u64).min(end - from);
            if part == BLOCK as u64 {
                let _stripe = self.stripe(logical);
                if self.held(logical).is_some() || self.state.read().map.get(logical).at != 0 {
                    self.put(logical, Change::Nowhere);
                }
            } else if partial == Partial::Zero {
                self.write_part(logical, within, &[0; BLOCK][..part as usize])?;
            }
            from += part;
            if logical.is_multiple_of(1024) {
                self.write_if_full()?;
            }
        }
        self.write_if_full()
    }

    fn write_if_full(&self) -> Result<()> {
        if self.front.lock().open.len() < BATCH_BLOCKS {
            return Ok(());
        }
        let mut log = self.lock();
        // Another thread may have written the batch first.
        if self.front.lock().open.len() < BATCH_BLOCKS {
            return Ok(());
        }
        self.write_batch(&mut log).map(drop)
    }

    /// Keeps the compactor's moves in memory while they are written, like a batch. Returns those
    /// that were not there yet.
    pub(crate) fn hold(&self, moves: &[Item]) -> Vec<u32> {
        let mut front = self.front.lock();
        let mut held = Vec::with_capacity(moves.len());
        for item in moves {
            // A block that a request is about to write is newer.
            if let Slot::Vacant(slot) = front.writing.entry(item.logical) {
                slot.insert(item.change.clone());
                held.push(item.logical);
            }
        }
        held
    }

    pub(crate) fn release(&self, held: &[u32]) {
        let mut front = self.front.lock();
        held.iter().for_each(|logical| drop(front.writing.remove(logical)));
    }

    /// How long the oldest change has waited in memory (ns).
    pub(crate) fn waits_for(&self) -> u64 {
        let front = self.front.lock();
        if front.open.is_empty() { 0 } else { self.clock.monotonic_ns().saturating_sub(front.since_ns) }
    }

    /// When the last request came or went.
    pub(crate) fn last_request_ns(&self) -> u64 {
        self.arrivals.last_ns()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.arrivals.is_gap(self.clock.monotonic_ns())
    }

    /// Writes the changes that wait in memory, without a flush.
    pub fn write_waiting(&self) -> Result<()> {
        self.write_batch(&mut self.lock()).map(drop)
    }

    /// Writes the batch and returns the number of the last change in it.
    fn write_batch(&self, log: &mut Log) -> Result<u64> {
        self.writable()?;
        let (items, tickets) = {
            let mut front = self.front.lock();
            front.writing = std::mem::take(&mut front.open);
            let item = |(&logical, change): (&u32, &Change)| Item { logical, change: change.clone(), from: None };
            (front.writing.iter().map(item).collect::<Vec<_>>(), front.tickets)
        };
        if !items.is_empty() {
            for some in items.chunks(self.items_at_once()) {
                let written = self.make_room(log).and_then(|()| self.write_items(log, some, &[], By::Request));
                // After an error the batch stays in place, so that reads still find it.
                written.inspect_err(|error| self.poison(error))?;
            }
            self.front.lock().writing.clear();
        }
        Ok(tickets)
    }

    /// Makes every change durable that was put into a batch before the call.
    fn flush_all(&self) -> Result<()> {
        self.writable()?;
        let wanted = self.front.lock().tickets;
        let mut log = self.lock();
        if log.flushed_tickets >= wanted {
            // A flush that began since then covers it, unless that flush failed.
            return self.writable();
        }
        let tickets = self.write_batch(&mut log)?;
        self.flush_device(&mut log)?;
        log.flushed_tickets = tickets;
        Ok(())
    }

    /// Flushes the device below. Every record written is durable afterwards.
    pub(crate) fn flush_device(&self, log: &mut Log) -> Result<()> {
        self.writable()?;
        if !is_planted(Bug::FlushEarly) {
            block::flush(&*self.device).inspect_err(|error| self.poison(error))?;
        }
        self.counts.flushes.fetch_add(1, Ordering::Relaxed);
        (log.unflushed_blocks, log.unflushed_records) = (0, 0);
        let mut state = self.state.write();
        state.durable = log.written;
        state.announced = if is_planted(Bug::FreeUnannounced) { log.written } else { log.says };
        let announced = state.announced;
        state.space.announced(announced);
        state.space.names_flushed();
        Ok(())
    }

    /// Makes the blocks that were left free again, if there are any.
    pub(crate) fn announce(&self, log: &mut Log, by: By) -> Result<()> {
        self.flush_device(log)?;
        if self.state.read().space.left_blocks() > 0 {
            self.write_bare_record(log, by, &(0..0))?;
            self.flush_device(log)?;
        }
        Ok(())
    }

    /// Flushes, and records where the log ends. No request may follow.
    pub fn close(&self) -> Result<()> {
        self.flush_all()?;
        let mut log = self.lock();
        let log = &mut *log;
        log.emptying = None;
        let mut root = self.state.write().root();
        while root.is_none() {
            self.write_bare_record(log, By::Compactor, &(0..0))?;
            root = self.state.write().root();
        }
        self.flush_device(log)?;
        self.write_tail(log, root)?;
        self.poison("closed");
        Ok(())
    }
}

/// Takes a lock that may be held during waits for the device below. Such a wait may depend on work
/// that this thread has put off.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.try_lock().unwrap_or_else(|| {
        block::about_to_wait();
        mutex.lock()
    })
}

/// Returns the logical block, and the byte within it.
fn place(at: u64) -> (u32, usize) {
    ((at / BLOCK as u64) as u32, (at % BLOCK as u64) as usize)
}

impl BlockDevice for VirtualLog {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry {
            bytes: self.superblock.logical_blocks as u64 * BLOCK as u64,
            block_bytes: SECTOR as u32,
            atomic_bytes: BLOCK as u32,
            // The batch lives in this process.
            survives_process: false,
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        done(self.attend(|| self.carry_out(request)));
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.attend(|| self.read_bytes(at, out))
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.attend(|| self.put_bytes(at, bytes).and_then(|()| self.write_if_full()))
    }
}
