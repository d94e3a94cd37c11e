//! A block device that holds writes back for as long as an update policy says.
//!
//! The filter stands between a writer and a device. Written blocks are kept in a [`Cache`] until
//! the dirty set hands them out; neighbours leave as one write. Under write-through, with nothing
//! held, requests go straight to the device. Rules:
//! - A write that may wait under the policy completes once it is in memory. If memory is full, it
//!   first waits until other blocks have left. Any other write completes when its blocks are on the
//!   device. Room on the device is reserved first, so a write for which there is none fails at
//!   once.
//! - A flush waits until every write completed before it is on the device, then flushes the device.
//!   A flush of ranges waits only for these ranges. A device with nothing new since its last flush
//!   is not flushed.
//! - No two writes of a block are under way at the same time, so none overtakes another. A zeroing
//!   or trim waits for the writes under way in its range.
//! - Reads see the data written last, whether memory or the device holds them.
//! - A failed write fails the requests that wait for it, and poisons the device for further
//!   changes. Held blocks stay in the cache and remain readable.
//! - When the cache's memory limit is lowered, the excess is given back once its blocks have left.
//! - Blocks found in the cache count only after [`BlockDevice::adopt`], if at all.
//!
//! Left out: time. The owner of the filter calls [`WriteBack::tick`] often, or when
//! [`WriteBack::next_ns`] says so.

mod write_cache;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use shoal_format::cache::{CACHE_SLOT, CacheEntry};
use shoal_media::{BlockDevice, BlockGeometry, Clock, Completion, MediaError, Request, Result, WriteCache, block};

use crate::S_NS;
use crate::flushes::{Ended, Flush};
use crate::planted::{Bug, is_planted};
use crate::policy::{Policy, Rule};
use crate::readers::Readers;
use crate::slots::{Cache, SlotBytes};
use crate::state::{LINE_BLOCKS, Now, Run, State, Step, Then};

/// Added to the clock's time (ns). The filter's time begins 30 days earlier, so that blocks held by
/// an earlier process keep their age.
const BEFORE_NS: u64 = 30 * 24 * 3600 * S_NS;
const BLOCK: usize = CACHE_SLOT as usize;
/// Maximum write buffers kept for reuse.
const BUFFERS_MAX: usize = 8;
/// Empty groups of slots kept for the next writes.
const GROUPS_KEPT: u64 = 8;

/// Requests sent to the device below.
#[derive(Default)]
struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
}

struct Inner {
    below: Arc<dyn BlockDevice>,
    clock: Arc<dyn Clock>,
    bytes: u64,
    slots: SlotBytes,
    readers: Arc<Readers>,
    survives: bool,
    /// The rule is write-through and nothing is held, so requests bypass the cache.
    passes: AtomicBool,
    counts: Counts,
    state: Mutex<State>,
    bell: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    /// Buffers of completed writes, kept because new memory costs a page fault for each of its
    /// pages.
    buffers: Mutex<Vec<Vec<u8>>>,
    /// Locked while memory is taken ahead or given back. Locked before `state`, and never by a
    /// request.
    memory: Mutex<Giving>,
}

/// Memory being given back to the host.
#[derive(Default)]
struct Giving {
    begun: Option<Begun>,
    /// Further groups to give back.
    groups: u64,
}

/// The group being given back.
#[derive(Clone, Copy)]
struct Begun {
    group: u64,
    /// Bytes of it that already are.
    done: u64,
}

/// A device with an update policy in front of it.
#[derive(Clone)]
pub struct WriteBack(Arc<Inner>);

/// State of a filter.
#[derive(Clone, Debug)]
pub struct Report {
    pub rule: Rule,
    /// Bytes that no device is known to hold, and the most that the cache can hold.
    pub held_bytes: u64,
    pub capacity_bytes: u64,
    /// How long the oldest of these bytes have been held (ns).
    pub oldest_ns: Option<u64>,
    /// Requests that reached the device below.
    pub reads: u64,
    pub writes: u64,
    pub written_bytes: u64,
    pub flushes: u64,
    pub failure: Option<String>,
}

impl WriteBack {
    /// Puts a cache in front of a device whose blocks are at most 4 KiB.
    pub fn new(below: Arc<dyn BlockDevice>, clock: Arc<dyn Clock>, rule: Rule, cache: Cache) -> WriteBack {
        let bytes = below.geometry().bytes / CACHE_SLOT * CACHE_SLOT;
        let survives = cache.survives_process();
        let (slots, found) = cache.into_slots();
        let passes = rule.policy == Policy::WriteThrough && found.is_empty();
        let bytes_of = slots.bytes();
        let state = State::new(rule, slots, found);
        WriteBack(Arc::new(Inner {
            below,
            clock,
            bytes,
            slots: bytes_of,
            readers: state.readers.clone(),
            survives,
            passes: AtomicBool::new(passes),
            counts: Counts::default(),
            state: Mutex::new(state),
            bell: Mutex::new(None),
            buffers: Mutex::default(),
            memory: Mutex::default(),
        }))
    }

    /// Changes the rule for held blocks and for writes to come.
    pub fn set_rule(&self, rule: Rule) {
        let mut state = self.0.state.lock();
        state.set_rule(rule, self.0.now_ns());
        // Changes may have bypassed the cache, so the next flush must reach the device.
        state.changes += 1;
        state.unknown = state.changes;
        self.0.note_passage(&state);
        self.0.ring_or_go_on(state);
    }

    /// Sets the callback for work that no request waits for. When `ring` is called, the owner calls
    /// [`WriteBack::tick`] in a thread of its own. Without a bell, the thread of the request that
    /// caused the work does it.
    pub fn set_bell(&self, ring: Arc<dyn Fn() + Send + Sync>) {
        *self.0.bell.lock() = Some(ring);
    }

    /// Writes the blocks that are due, takes memory for writes to come, and gives back a piece of
    /// unneeded memory. Returns true if there is more to give back at the next call, a moment
    /// later. Giving all of it back at once would occupy a processor that readers wait for.
    pub fn tick(&self) -> bool {
        let mut memory = self.0.memory.lock();
        self.0.take_ahead();
        let is_giving = self.0.give_back(&mut memory);
        self.0.go_on(self.0.state.lock());
        is_giving
    }

    /// Bytes of memory that the cache has now.
    pub fn memory_bytes(&self) -> u64 {
        self.0.state.lock().slots.memory_bytes()
    }

    /// Bytes of memory that the cache has when it is full.
    pub fn memory_bytes_max(&self) -> u64 {
        self.0.state.lock().slots.memory_bytes_max()
    }

    /// Limits the cache to `bytes` of memory. If it has more, held blocks leave, the oldest first,
    /// and each following [`WriteBack::tick`] gives memory back. Nothing new is held in the excess
    /// meanwhile.
    pub fn set_memory(&self, bytes: u64) {
        self.0.state.lock().slots.set_memory(bytes);
    }

    /// Returns whether the cache has more memory than its limit.
    pub fn has_excess(&self) -> bool {
        self.0.state.lock().slots.excess() > 0
    }

    /// Returns when to call [`WriteBack::tick`] next (ns of the clock), or `None` if not before the
    /// next write.
    pub fn next_ns(&self) -> Option<u64> {
        let next_ns = self.0.state.lock().dirty.next_ns(self.0.now_ns());
        next_ns.map(|next_ns| next_ns.saturating_sub(BEFORE_NS))
    }

    /// Bytes that no device is known to hold.
    pub fn held_bytes(&self) -> u64 {
        self.0.state.lock().held_blocks() * CACHE_SLOT
    }

    pub fn report(&self) -> Report {
        let state = self.0.state.lock();
        let (now, counts) = (self.0.now_ns(), &self.0.counts);
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Report {
            rule: *state.dirty.rule(),
            held_bytes: state.held_blocks() * CACHE_SLOT,
            capacity_bytes: state.slots.capacity(now) * CACHE_SLOT,
            oldest_ns: state.dirty.oldest_ns().map(|since| now.saturating_sub(since)),
            reads: count(&counts.reads),
            writes: count(&counts.writes),
            written_bytes: count(&counts.written_bytes),
            flushes: count(&counts.flushes),
            failure: state.failure.as_ref().map(ToString::to_string),
        }
    }
}

impl BlockDevice for WriteBack {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        Some(self)
    }

    fn geometry(&self) -> BlockGeometry {
        let below = self.0.below.geometry();
        let survives_process = below.survives_process && (self.0.survives || self.0.passes.load(Ordering::Acquire));
        BlockGeometry { bytes: self.0.bytes, block_bytes: CACHE_SLOT as u32, survives_process, ..below }
    }

    fn submit(&self, request: Request, done: Completion) {
        match self.0.passes.load(Ordering::Acquire) {
            true if matches!(request, Request::Read { .. }) => self.0.pass(request, done),
            true if matches!(request, Request::Flush) => self.0.flush_below(done),
            true => self.0.change_below(request, done),
            false => self.0.take(request, done),
        }
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let inner = &self.0;
        inner.counts.reads.fetch_add(1, Ordering::Relaxed);
        if inner.passes.load(Ordering::Acquire) {
            return inner.below.read_into(at, out);
        }
        let Newer::Some(newer) = inner.newer(at, out.len() as u64) else {
            return inner.below.read_into(at, out);
        };
        if newer.len() == out.len() / BLOCK {
            lay_over(&newer, at, out);
            inner.counts.reads.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        inner.read_begins();
        let outcome = inner.below.read_into(at, out);
        inner.read_ends();
        lay_over(&newer, at, out);
        outcome
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        if self.0.passes.load(Ordering::Acquire) {
            return self.0.write_past(at, bytes);
        }
        match self.0.hold_all(at, bytes) {
            Some(outcome) => outcome,
            None if self.0.may_go_past(at, bytes.len() as u64) => self.0.write_past(at, bytes),
            None => {
                let mut buffer = self.0.take_buffer();
                buffer.clear();
                buffer.extend_from_slice(bytes);
                block::wait(self, Request::Write { at, buffer, fua: false }).map(|buffer| self.0.keep_buffer(buffer))
            }
        }
    }
}

/// Whether a write has waited for memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It has just come, and goes behind those that wait.
    New,
    /// It has waited, and goes before those that came later.
    Again,
}

/// The held blocks of a range, as they were at one moment.
enum Newer {
    /// The range does not consist of whole blocks. The device reports the error.
    Wrong,
    Some(Vec<(u64, Box<[u8]>)>),
}

fn lay_over(newer: &[(u64, Box<[u8]>)], at: u64, out: &mut [u8]) {
    for (block, bytes) in newer {
        out[(block * CACHE_SLOT - at) as usize..][..BLOCK].copy_from_slice(bytes);
    }
}

impl Inner {
    fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns() + BEFORE_NS
    }

    fn now(&self) -> Now {
        Now { ns: self.now_ns(), wall_ns: self.clock.now_ns() }
    }

    /// Takes as much memory ahead as recent writes needed between two calls. The host is slow to
    /// provide it, and a write that took it itself would make all others wait.
    fn take_ahead(&self) {
        let mut state = self.state.lock();
        state.slots.count_taken();
        while let Some(group) = state.slots.next_ahead(self.now_ns()) {
            let taken = MutexGuard::unlocked(&mut state, || self.slots.take_memory(group));
            state.slots.grown(group, taken, self.now_ns());
        }
    }

    /// Gives a piece of memory back. Returns true if there is more.
    fn give_back(&self, giving: &mut Giving) -> bool {
        let mut state = self.state.lock();
        let keep = (state.held_blocks() / 256).min(GROUPS_KEPT);
        if let Some(groups) = state.slots.idle_groups(self.now_ns(), keep) {
            giving.groups = groups;
        }
        if giving.begun.is_none() && giving.groups > 0 {
            giving.begun = state.slots.take_empty().map(|group| Begun { group, done: 0 });
            giving.groups -= 1;
        }
        let Some(Begun { group, done }) = giving.begun else { return false };
        let done = MutexGuard::unlocked(&mut state, || self.slots.discard(group, done));
        giving.begun = done.map(|done| Begun { group, done });
        if giving.begun.is_none() {
            state.slots.given_back(group);
        }
        giving.begun.is_some() || giving.groups > 0
    }

    fn note_passage(&self, state: &State) {
        let is_through = state.dirty.rule().policy == Policy::WriteThrough;
        self.passes.store(is_through && state.is_idle() && state.failure.is_none(), Ordering::Release);
    }

    fn count_write(&self, bytes: u64) {
        self.counts.writes.fetch_add(1, Ordering::Relaxed);
        self.counts.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sends a request to the device as it is.
    fn pass(&self, request: Request, done: Completion) {
        match &request {
            Request::Read { .. } => drop(self.counts.reads.fetch_add(1, Ordering::Relaxed)),
            Request::Write { buffer, .. } => self.count_write(buffer.len() as u64),
            Request::Flush => drop(self.counts.flushes.fetch_add(1, Ordering::Relaxed)),
            Request::Trim { .. } | Request::WriteZeroes { .. } => {}
        }
        self.below.submit(request, done);
    }

    /// The blocks of a range, which must consist of whole blocks.
    fn blocks(&self, at: u64, len: u64) -> Result<std::ops::Range<u64>> {
        let is_whole = at.is_multiple_of(CACHE_SLOT) && len.is_multiple_of(CACHE_SLOT);
        if !is_whole || at > self.bytes || len > self.bytes - at {
            return Err(MediaError::OutOfRange { what: "write-back cache".into(), at, len });
        }
        Ok(at / CACHE_SLOT..(at + len) / CACHE_SLOT)
    }

    /// Returns the held blocks of a range. The caller reads the device afterwards: blocks not held
    /// at this moment are already there.
    fn newer(&self, at: u64, len: u64) -> Newer {
        let Ok(blocks) = self.blocks(at, len) else { return Newer::Wrong };
        let state = self.state.lock();
        let held = state.held_in(blocks).map(|(block, held)| {
            let mut bytes = vec![0; BLOCK].into_boxed_slice();
            self.slots.read(held.slot, &mut bytes);
            (block, bytes)
        });
        Newer::Some(held.collect())
    }

    fn read_begins(self: &Arc<Inner>) {
        self.readers.begin(self.now_ns());
        self.mind_reads();
    }

    fn read_ends(self: &Arc<Inner>) {
        self.readers.end();
        self.mind_reads();
    }

    /// Looks at the held blocks again after a read has begun or ended, if the rule depends on
    /// reads.
    fn mind_reads(self: &Arc<Inner>) {
        if self.readers.are_minded() {
            let state = self.state.lock();
            if state.minds_reads() {
                self.ring_or_go_on(state);
            }
        }
    }

    fn take(self: &Arc<Inner>, request: Request, done: Completion) {
        match request {
            Request::Read { at, buffer } => self.take_read(at, buffer, done),
            Request::Write { at, buffer, fua } => self.take_write(at, buffer, fua, done, Turn::New),
            Request::Flush => self.flush(None, done),
            Request::Trim { at, len } | Request::WriteZeroes { at, len, .. } => {
                let now_ns = self.now_ns();
                let mut state = self.state.lock();
                let range = match state.refuse().and_then(|()| self.blocks(at, len)) {
                    Ok(range) => range,
                    Err(error) => {
                        drop(state);
                        return done(Err(error));
                    }
                };
                if matches!(request, Request::Trim { .. }) {
                    // A trimmed block may show any of its former contents until it is written again.
                    state.discard(range.clone(), now_ns);
                }
                let lines = state.lines_in(Some(range));
                state.wait_for(lines, Then::Submit(request, done), now_ns);
                self.go_on(state);
            }
        }
    }

    fn take_read(self: &Arc<Inner>, at: u64, mut buffer: Vec<u8>, done: Completion) {
        let newer = match self.newer(at, buffer.len() as u64) {
            Newer::Wrong => Vec::new(),
            Newer::Some(newer) => newer,
        };
        if !buffer.is_empty() && newer.len() == buffer.len() / BLOCK {
            lay_over(&newer, at, &mut buffer);
            return done(Ok(buffer));
        }
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        self.read_begins();
        let inner = self.clone();
        let read = move |result: Result<Vec<u8>>| {
            inner.read_ends();
            done(result.map(|mut buffer| {
                lay_over(&newer, at, &mut buffer);
                buffer
            }));
        };
        self.below.submit(Request::Read { at, buffer }, Box::new(read));
    }

    /// Waits until the present versions in `ranges`, or of all blocks, are on the device, then
    /// flushes it.
    fn flush(self: &Arc<Inner>, ranges: Option<&[(u64, u64)]>, done: Completion) {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        let lines = state.refuse().and_then(|()| match ranges {
            None => Ok(state.lines_in(None)),
            Some(ranges) => {
                let blocks = ranges.iter().map(|&(at, len)| self.blocks(at, len));
                Ok(blocks
                    .collect::<Result<Vec<_>>>()?
                    .into_iter()
                    .flat_map(|range| state.lines_in(Some(range)))
                    .collect())
            }
        });
        match lines {
            Ok(lines) if is_planted(Bug::RangeNoFlush) && ranges.is_some() => {
                state.wait_for(lines, Then::Complete(done, vec![]), now_ns);
                self.go_on(state);
            }
            Ok(lines) => {
                state.wait_for(lines, Then::Submit(Request::Flush, done), now_ns);
                self.go_on(state);
            }
            Err(error) => {
                drop(state);
                done(Err(error));
            }
        }
    }

    /// Stores a write's blocks, if they may wait and there is memory for them.
    fn hold_all(self: &Arc<Inner>, at: u64, bytes: &[u8]) -> Option<Result<()>> {
        let slots = {
            let mut state = self.state.lock();
            if let Err(error) = state.refuse() {
                return Some(Err(error));
            }
            let may_wait = state.dirty.rule().policy != Policy::WriteThrough && state.blocked.is_empty();
            let range = self.blocks(at, bytes.len() as u64).ok().filter(|_| may_wait)?;
            let slots = state.slots.take(range.end - range.start, self.now_ns())?;
            state.storing += 1;
            slots
        };
        if let Err(error) = self.below.reserve(at, bytes.len() as u64) {
            self.give_up(slots);
            return Some(Err(error));
        }
        let state = self.store(at, bytes, &slots);
        self.ring_or_go_on(state);
        Some(Ok(()))
    }

    /// Returns whether a write for which there are no slots may go straight to the device, past the
    /// held blocks. A long write costs the device no more that way, need not wait for a write-back
    /// to free slots, and is not copied in and out of the cache. A write may not go past if the
    /// rule goes by the load, or if older contents of its blocks are held.
    fn may_go_past(&self, at: u64, len: u64) -> bool {
        let state = self.state.lock();
        let Ok(range) = self.blocks(at, len) else { return false };
        let has_older = || !state.lines_in(Some(range)).is_empty() && !is_planted(Bug::PastOlder);
        len >= LINE_BLOCKS * CACHE_SLOT
            && state.failure.is_none()
            && state.found.is_empty()
            && !state.dirty.rule().goes_by_load()
            && !has_older()
    }

    fn write_past(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.count_write(bytes.len() as u64);
        let outcome = self.below.write_from(at, bytes);
        // Count a failed write too: some of it may have reached the device.
        self.state.lock().changed(at / CACHE_SLOT..(at + bytes.len() as u64).div_ceil(CACHE_SLOT));
        outcome
    }

    /// Gives back slots into which nothing was stored.
    fn give_up(self: &Arc<Inner>, slots: Vec<u64>) {
        let mut state = self.state.lock();
        state.storing -= 1;
        slots.into_iter().for_each(|slot| state.slots.reuse(slot));
        self.note_passage(&state);
        self.go_on(state);
    }

    /// Copies bytes into taken slots, then publishes them.
    fn store(&self, at: u64, bytes: &[u8], slots: &[u64]) -> MutexGuard<'_, State> {
        let first = at / CACHE_SLOT;
        let blocks = || (first..).zip(slots).zip(bytes.chunks_exact(BLOCK));
        if is_planted(Bug::InPlace) {
            let state = self.state.lock();
            for ((block, slot), bytes) in blocks() {
                self.slots.write(state.slot_of(block).unwrap_or(*slot), bytes);
            }
        }
        if !is_planted(Bug::EntryFirst) {
            self.slots.write_all(slots, bytes);
        }
        let sums: Vec<u64> = bytes.chunks_exact(BLOCK).map(CacheEntry::sum_of).collect();
        let mut state = self.state.lock();
        state.storing -= 1;
        let now = self.now();
        for (((block, slot), bytes), sum) in blocks().zip(sums) {
            state.hold(block, *slot, sum, now);
            if is_planted(Bug::EntryFirst) {
                self.slots.write(*slot, bytes);
            }
        }
        state
    }

    fn take_write(self: &Arc<Inner>, at: u64, buffer: Vec<u8>, fua: bool, done: Completion, turn: Turn) {
        let now_ns = self.now_ns();
        let mut state = self.state.lock();
        let range = match state.refuse().and_then(|()| self.blocks(at, buffer.len() as u64)) {
            Ok(range) => range,
            Err(error) => {
                drop(state);
                return done(Err(error));
            }
        };
        let count = range.end - range.start;
        let waits = !state.blocked.is_empty() && turn == Turn::New;
        let Some(slots) = (!waits).then(|| state.slots.take(count, now_ns)).flatten() else {
            let request = Request::Write { at, buffer, fua };
            if count > state.slots.capacity(now_ns) {
                // The cache is too small for this write. It goes straight to the device once the
                // held blocks of its range have been written.
                let lines = state.lines_in(Some(range));
                state.wait_for(lines, Then::Submit(request, done), now_ns);
            } else if turn == Turn::Again {
                state.blocked.push_front((request, done));
            } else {
                state.blocked.push_back((request, done));
            }
            return self.go_on(state);
        };
        state.storing += 1;
        drop(state);
        if let Err(error) = self.below.reserve(at, buffer.len() as u64) {
            self.give_up(slots);
            return done(Err(error));
        }
        let mut state = self.store(at, &buffer, &slots);
        if fua {
            let lines = state.lines_in(Some(range));
            let flushed: Completion = Box::new(|flushed| done(flushed.map(|_| buffer)));
            state.wait_for(lines, Then::Submit(Request::Flush, flushed), now_ns);
            return self.go_on(state);
        }
        if state.dirty.rule().policy == Policy::WriteThrough && count > 0 {
            let lines = state.lines_in(Some(range));
            state.wait_for(lines, Then::Complete(done, buffer), now_ns);
            return self.go_on(state);
        }
        self.ring_or_go_on(state);
        done(Ok(buffer));
    }

    /// Leaves work that no request waits for to the owner's thread. Without a bell, does it here.
    fn ring_or_go_on(self: &Arc<Inner>, state: MutexGuard<'_, State>) {
        let bell = self.bell.lock().clone();
        let Some(ring) = bell else { return self.go_on(state) };
        let is_pressed = state.is_pressed(self.now_ns()) || state.minds_reads();
        drop(state);
        if is_pressed {
            ring();
        }
    }

    /// Carries out the steps that can be made now. If another thread is doing so, that thread looks again.
    fn go_on(self: &Arc<Inner>, mut state: MutexGuard<'_, State>) {
        state.look_again = true;
        if std::mem::replace(&mut state.is_running, true) {
            return;
        }
        while std::mem::take(&mut state.look_again) {
            let steps = state.plan(self.now_ns());
            self.note_passage(&state);
            MutexGuard::unlocked(&mut state, || steps.into_iter().for_each(|step| self.carry_out(step)));
        }
        state.is_running = false;
    }

    fn carry_out(self: &Arc<Inner>, step: Step) {
        match step {
            Step::Complete(done, result) => done(result),
            Step::Again(Request::Write { at, buffer, fua }, done) => {
                self.take_write(at, buffer, fua, done, Turn::Again)
            }
            Step::Again(request, done) => self.take(request, done),
            Step::Submit(Request::Flush, done) => self.flush_below(done),
            Step::Submit(request, done) => self.change_below(request, done),
            Step::Write(run) => self.write_run(run),
        }
    }

    /// Sends a change to the device as it is.
    fn change_below(self: &Arc<Inner>, request: Request, done: Completion) {
        let inner = self.clone();
        // The contents of a trimmed range are not needed, so none of its lines becomes uncovered.
        let (at, len) = if matches!(request, Request::Trim { .. }) { (0, 0) } else { request.range() };
        let changed = move |result| {
            inner.state.lock().changed(at / CACHE_SLOT..(at + len).div_ceil(CACHE_SLOT));
            done(result);
        };
        self.pass(request, Box::new(changed));
    }

    /// Flushes the device if it has anything new.
    fn flush_below(self: &Arc<Inner>, done: Completion) {
        let mut state = self.state.lock();
        if state.flushed >= state.changes {
            drop(state);
            return done(Ok(vec![]));
        }
        let covered = state.changes;
        let begun = state.flushes.begin(done);
        drop(state);
        match begun {
            Flush::Wait => {}
            Flush::Refuse(done, failure) => done(Err(failure)),
            Flush::Submit(done) => {
                let inner = self.clone();
                self.pass(Request::Flush, Box::new(move |result| inner.flushed(covered, result.map(drop), done)));
            }
        }
    }

    fn flushed(self: &Arc<Inner>, covered: u64, result: Result<()>, done: Completion) {
        let mut state = self.state.lock();
        let Some(Ended { done, covered, queued }) = state.flushes.end(covered, result, done) else { return };
        if let Ok(covered) = &covered {
            let covered = if is_planted(Bug::CoversLater) { state.changes } else { *covered };
            state.covered(covered);
        }
        drop(state);
        for done in done {
            done(covered.clone().map(|_| vec![]));
        }
        if !queued.is_empty() {
            let all = move |result: Result<Vec<u8>>| queued.into_iter().for_each(|done| done(result.clone()));
            self.flush_below(Box::new(all));
        }
    }

    /// Returns a kept buffer with its old contents, or an empty one.
    fn take_buffer(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_default()
    }

    fn keep_buffer(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < BUFFERS_MAX {
            buffers.push(buffer);
        }
    }

    fn write_run(self: &Arc<Inner>, run: Run) {
        let (inner, at) = (self.clone(), run.first * CACHE_SLOT);
        let lent = self.slots.lend(run.slots());
        self.count_write(lent.len());
        if self.below.takes_lent() {
            if is_planted(Bug::LentReused) {
                self.state.lock().slots.copied(run.slots());
            }
            let written = move |result: Result<Vec<u8>>| {
                let mut state = inner.state.lock();
                state.slots.copied(run.slots());
                inner.run_ended(state, &run, result.map(drop));
            };
            return self.below.submit_lent(at, lent, Box::new(written));
        }
        let mut buffer = self.take_buffer();
        lent.copy_to(&mut buffer);
        self.state.lock().slots.copied(run.slots());
        let written = move |result: Result<Vec<u8>>| {
            let result = result.map(|buffer| inner.keep_buffer(buffer));
            inner.run_ended(inner.state.lock(), &run, result);
        };
        self.below.submit(Request::Write { at, buffer, fua: false }, Box::new(written));
    }

    fn run_ended(self: &Arc<Inner>, mut state: MutexGuard<'_, State>, run: &Run, result: Result<()>) {
        state.written(run, result, self.now_ns());
        self.go_on(state);
    }
}
