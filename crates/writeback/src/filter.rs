//! A block device that holds writes back for as long as an update policy says.
//!
//! The filter stands between a writer and a device. Written blocks are kept in memory until [`DirtySet::choose`] hands
//! them out; neighbours leave as one write. Under write-through, with nothing held, requests go straight to the device.
//! Rules:
//! - A write completes at once if the policy lets it wait and there is room for it; otherwise when its blocks are on
//!   the device.
//! - A flush waits until everything completed before it is on the device, and flushes that.
//! - No two writes of a block are under way at the same time, so none overtakes another; a zeroing or trim waits for those
//!   under way in its range.
//! - Reads see the data written last, whether memory or the device holds it.
//! - A failed write fails the requests that wait for it, and poisons the device for further changes; held blocks stay
//!   readable.
//!
//! Left out: time. The owner of the filter calls [`WriteBack::tick`] when [`WriteBack::next_ns`] says so. Held blocks
//! are lost with the process, which [`BlockGeometry::survives_process`] reports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use shoal_media::{BlockDevice, BlockGeometry, Clock, Completion, MediaError, Request, Result, block};

use crate::dirty_set::DirtySet;
use crate::policy::{Load, Policy, Rule};
use crate::{BlockId, FileId};

/// All blocks count as one file's, since files are not known below the file system.
const FILE: FileId = FileId(0);

/// Longest write into which neighbours are joined (bytes).
const JOINED_BYTES_MAX: u64 = 1 << 20;

/// The contents of a block that no device is known to hold.
struct Held {
    bytes: Box<[u8]>,
    /// Number of the modification that the contents are from.
    version: u64,
}

/// Action when the awaited blocks are on the device.
enum Then {
    /// The request has completed; its buffer goes back.
    Complete(Completion, Vec<u8>),
    /// The request goes to the device.
    Submit(Request, Completion),
}

struct Waiter {
    /// Blocks and the least versions that the device must have; never empty.
    blocks: BTreeMap<u64, u64>,
    then: Then,
}

/// Work to be done after the lock has been released.
enum Step {
    Submit(Request, Completion),
    Complete(Completion, Result<Vec<u8>>),
    /// Blocks that leave together, with their versions.
    Write {
        first: u64,
        versions: Vec<u64>,
        buffer: Vec<u8>,
    },
}

struct State {
    dirty: DirtySet,
    held: BTreeMap<u64, Held>,
    /// Versions under way, by block.
    leaving: BTreeMap<u64, u64>,
    waiters: Vec<Waiter>,
    version: u64,
    load: Load,
    /// A write failed.
    failure: Option<MediaError>,
    /// A thread is carrying out steps, and looks again when it is asked to.
    is_running: bool,
    look_again: bool,
}

struct Inner {
    below: Arc<dyn BlockDevice>,
    clock: Arc<dyn Clock>,
    bytes: u64,
    block_bytes: u64,
    /// Most blocks held.
    blocks_max: usize,
    /// Write-through, and nothing is held: requests need not be looked at.
    passes: AtomicBool,
    state: Mutex<State>,
}

/// A device with an update policy in front of it.
#[derive(Clone)]
pub struct WriteBack(Arc<Inner>);

impl WriteBack {
    /// Most bytes held back: `held_bytes_max`. Writes beyond it wait for the device.
    pub fn new(below: Arc<dyn BlockDevice>, clock: Arc<dyn Clock>, rule: Rule, held_bytes_max: u64) -> WriteBack {
        let geometry = below.geometry();
        let block_bytes = u64::from(geometry.block_bytes.max(1));
        WriteBack(Arc::new(Inner {
            below,
            clock,
            bytes: geometry.bytes,
            block_bytes,
            blocks_max: (held_bytes_max / block_bytes) as usize,
            passes: AtomicBool::new(rule.policy == Policy::WriteThrough),
            state: Mutex::new(State {
                dirty: DirtySet::new(rule),
                held: BTreeMap::new(),
                leaving: BTreeMap::new(),
                waiters: Vec::new(),
                version: 0,
                load: Load::default(),
                failure: None,
                is_running: false,
                look_again: false,
            }),
        }))
    }

    /// Changes the rule for held blocks and for writes to come.
    pub fn set_rule(&self, rule: Rule) {
        let mut state = self.0.state.lock();
        state.dirty.set_rule(rule, self.0.clock.monotonic_ns());
        self.0.note_passage(&state);
        self.0.go_on(state);
    }

    /// Writes the blocks that are due.
    pub fn tick(&self) {
        self.0.go_on(self.0.state.lock());
    }

    /// When to call [`WriteBack::tick`] next (ns of the clock); `None`: when something is written.
    pub fn next_ns(&self) -> Option<u64> {
        self.0.state.lock().dirty.next_ns(self.0.clock.monotonic_ns())
    }

    /// Bytes that no device is known to hold.
    pub fn held_bytes(&self) -> u64 {
        self.0.state.lock().held.len() as u64 * self.0.block_bytes
    }
}

impl BlockDevice for WriteBack {
    fn geometry(&self) -> BlockGeometry {
        let below = self.0.below.geometry();
        let passes = self.0.passes.load(Ordering::Acquire);
        BlockGeometry { survives_process: below.survives_process && passes, ..below }
    }

    fn submit(&self, request: Request, done: Completion) {
        match self.0.passes.load(Ordering::Acquire) {
            true => self.0.below.submit(request, done),
            false => self.0.take(request, done),
        }
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        if self.0.passes.load(Ordering::Acquire) {
            return self.0.below.read_into(at, out);
        }
        let newer = self.0.newer(at, out.len() as u64);
        self.0.below.read_into(at, out)?;
        newer.lay_over(at, out);
        Ok(())
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        if self.0.passes.load(Ordering::Acquire) {
            return self.0.below.write_from(at, bytes);
        }
        block::wait(self, Request::Write { at, buffer: bytes.to_vec(), fua: false }).map(drop)
    }
}

/// The held blocks of a range, as they were at one moment.
struct Newer(Vec<(u64, Box<[u8]>)>);

impl Newer {
    fn lay_over(&self, at: u64, out: &mut [u8]) {
        for (block_at, bytes) in &self.0 {
            out[(block_at - at) as usize..][..bytes.len()].copy_from_slice(bytes);
        }
    }
}

impl State {
    fn refuse(&self) -> Result<()> {
        match &self.failure {
            Some(failure) => {
                Err(MediaError::Poisoned { what: "write-back cache".into(), cause: failure.to_string().into() })
            }
            None => Ok(()),
        }
    }

    /// Takes the new contents of a block; returns their version.
    fn hold(&mut self, block: u64, bytes: &[u8], now_ns: u64) -> u64 {
        self.version += 1;
        self.held.insert(block, Held { bytes: bytes.into(), version: self.version });
        self.dirty.dirtied(BlockId(block), FILE, now_ns);
        self.version
    }

    /// Drops the contents of a block. Returns the version of them that is being written, if any.
    fn discard(&mut self, block: u64, now_ns: u64) -> Option<u64> {
        self.dirty.discarded(BlockId(block), now_ns);
        self.held.remove(&block);
        let leaving = self.leaving.get(&block).copied();
        for waiter in &mut self.waiters {
            if waiter.blocks.get(&block).is_some_and(|&version| leaving.is_none_or(|leaving| version > leaving)) {
                waiter.blocks.remove(&block);
            }
        }
        leaving
    }

    /// The steps that can be made now.
    fn plan(&mut self, now_ns: u64, block_bytes: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        let mut waiting = Vec::new();
        for waiter in std::mem::take(&mut self.waiters) {
            match (&self.failure, waiter.blocks.is_empty(), waiter.then) {
                (Some(failure), _, Then::Complete(done, _) | Then::Submit(_, done)) => {
                    steps.push(Step::Complete(done, Err(failure.clone())));
                }
                (None, true, Then::Complete(done, buffer)) => steps.push(Step::Complete(done, Ok(buffer))),
                (None, true, Then::Submit(request, done)) => steps.push(Step::Submit(request, done)),
                (None, false, then) => waiting.push(Waiter { blocks: waiter.blocks, then }),
            }
        }
        self.waiters = waiting;
        if self.failure.is_some() {
            return steps;
        }
        let mut leave: Vec<u64> =
            self.dirty.choose(now_ns, &self.load).into_iter().map(|BlockId(block)| block).collect();
        for block in self.waiters.iter().flat_map(|waiter| waiter.blocks.keys()) {
            if self.dirty.take(BlockId(*block), now_ns) {
                leave.push(*block);
            }
        }
        leave.sort_unstable();
        let most = (JOINED_BYTES_MAX / block_bytes).max(1) as usize;
        for run in leave.chunk_by(|a, b| a + 1 == *b).flat_map(|run| run.chunks(most)) {
            let mut buffer = Vec::with_capacity(run.len() * block_bytes as usize);
            let mut versions = Vec::with_capacity(run.len());
            for block in run {
                let held = &self.held[block];
                buffer.extend_from_slice(&held.bytes);
                versions.push(held.version);
                self.leaving.insert(*block, held.version);
            }
            self.load.writes_queued += 1;
            steps.push(Step::Write { first: run[0], versions, buffer });
        }
        steps
    }

    /// A write of blocks has ended.
    fn written(&mut self, first: u64, versions: &[u64], result: Result<()>, now_ns: u64) {
        self.load.writes_queued -= 1;
        for (block, &version) in (first..).zip(versions) {
            self.leaving.remove(&block);
            if result.is_err() {
                self.dirty.failed(BlockId(block), now_ns);
                continue;
            }
            self.dirty.cleaned(BlockId(block), now_ns);
            if self.held.get(&block).is_some_and(|held| held.version == version) {
                self.held.remove(&block);
            }
            for waiter in &mut self.waiters {
                if waiter.blocks.get(&block).is_some_and(|&wanted| wanted <= version) {
                    waiter.blocks.remove(&block);
                }
            }
        }
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
    }
}

impl Inner {
    fn note_passage(&self, state: &State) {
        // Every waiting request waits for a block that is held or being written.
        let passes = state.dirty.rule().policy == Policy::WriteThrough
            && state.held.is_empty()
            && state.leaving.is_empty()
            && state.failure.is_none();
        self.passes.store(passes, Ordering::Release);
    }

    /// The blocks of a range, which must consist of whole blocks.
    fn blocks(&self, at: u64, len: u64) -> Result<std::ops::Range<u64>> {
        let is_whole = at.is_multiple_of(self.block_bytes) && len.is_multiple_of(self.block_bytes);
        if !is_whole || at > self.bytes || len > self.bytes - at {
            return Err(MediaError::OutOfRange { what: "write-back cache".into(), at, len });
        }
        Ok(at / self.block_bytes..(at + len) / self.block_bytes)
    }

    fn newer(&self, at: u64, len: u64) -> Newer {
        let Ok(blocks) = self.blocks(at, len) else { return Newer(Vec::new()) };
        let state = self.state.lock();
        let held = state.held.range(blocks);
        Newer(held.map(|(block, held)| (block * self.block_bytes, held.bytes.clone())).collect())
    }

    fn take(self: &Arc<Inner>, request: Request, done: Completion) {
        if let Request::Read { at, buffer } = request {
            let newer = self.newer(at, buffer.len() as u64);
            self.state.lock().load.reads_waiting += 1;
            let inner = self.clone();
            let read = move |result: Result<Vec<u8>>| {
                let mut state = inner.state.lock();
                state.load.reads_waiting -= 1;
                let goes_by_load = state.dirty.rule().goes_by_load();
                if goes_by_load {
                    inner.go_on(state)
                } else {
                    drop(state)
                }
                done(result.map(|mut buffer| {
                    newer.lay_over(at, &mut buffer);
                    buffer
                }));
            };
            return self.below.submit(Request::Read { at, buffer }, Box::new(read));
        }
        let now_ns = self.clock.monotonic_ns();
        let mut state = self.state.lock();
        match self.note(&mut state, request, done, now_ns) {
            Some((done, result)) => {
                self.go_on(state);
                done(result);
            }
            None => self.go_on(state),
        }
    }

    /// Notes what a request changes; returns it if it has completed.
    fn note(
        &self,
        state: &mut State,
        request: Request,
        done: Completion,
        now_ns: u64,
    ) -> Option<(Completion, Result<Vec<u8>>)> {
        let (at, len) = request.range();
        let range = match state.refuse().and_then(|()| self.blocks(at, len)) {
            Ok(range) => range,
            Err(error) => return Some((done, Err(error))),
        };
        let mut blocks = BTreeMap::new();
        let then = match request {
            Request::Write { buffer, fua, .. } => {
                for (block, bytes) in range.zip(buffer.chunks_exact(self.block_bytes as usize)) {
                    blocks.insert(block, state.hold(block, bytes, now_ns));
                }
                let may_wait = state.dirty.rule().policy != Policy::WriteThrough && state.held.len() <= self.blocks_max;
                match fua {
                    true => Then::Submit(Request::Flush, Box::new(|flushed| done(flushed.map(|_| buffer)))),
                    false if may_wait || blocks.is_empty() => return Some((done, Ok(buffer))),
                    false => Then::Complete(done, buffer),
                }
            }
            // A trimmed block may show any of its former contents until it is written again.
            Request::Trim { .. } => {
                for block in range {
                    blocks.extend(state.discard(block, now_ns).map(|version| (block, version)));
                }
                Then::Submit(request, done)
            }
            Request::WriteZeroes { .. } => {
                blocks = state.held.range(range).map(|(&block, held)| (block, held.version)).collect();
                Then::Submit(request, done)
            }
            Request::Flush => {
                blocks = state.held.iter().map(|(&block, held)| (block, held.version)).collect();
                Then::Submit(request, done)
            }
            Request::Read { .. } => unreachable!("reads change nothing"),
        };
        state.waiters.push(Waiter { blocks, then });
        None
    }

    /// Carries out the steps that can be made now. If another thread is doing so, that thread looks again.
    fn go_on(self: &Arc<Inner>, mut state: MutexGuard<'_, State>) {
        state.look_again = true;
        if std::mem::replace(&mut state.is_running, true) {
            return;
        }
        while std::mem::take(&mut state.look_again) {
            let steps = state.plan(self.clock.monotonic_ns(), self.block_bytes);
            self.note_passage(&state);
            MutexGuard::unlocked(&mut state, || steps.into_iter().for_each(|step| self.carry_out(step)));
        }
        state.is_running = false;
    }

    fn carry_out(self: &Arc<Inner>, step: Step) {
        match step {
            Step::Submit(request, done) => self.below.submit(request, done),
            Step::Complete(done, result) => done(result),
            Step::Write { first, versions, buffer } => {
                let inner = self.clone();
                let written = move |result: Result<Vec<u8>>| {
                    let mut state = inner.state.lock();
                    state.written(first, &versions, result.map(drop), inner.clock.monotonic_ns());
                    inner.go_on(state);
                };
                let at = first * self.block_bytes;
                self.below.submit(Request::Write { at, buffer, fua: false }, Box::new(written));
            }
        }
    }
}
