//! The blocks a write-back cache holds, the writes on their way to the device, and the requests
//! that wait for them.
//!
//! Owns: [`State`], guarded by the filter's lock; no I/O. The cache holds blocks of 4 KiB. They are
//! dirtied, chosen and written in *lines* of sixteen (one block of bulk storage), so the dirty set
//! has one entry for each line. Rules:
//! - A line is waiting, going (chosen) or leaving (being written). No two writes of a line are
//!   under way.
//! - A request that waits for a line waits for the versions its blocks had when the request came.
//!   The *oldest* version of a block that no device is known to hold decides.
//! - Only a few writes are under way at a time, so a read waits behind no more than these.
//!
//! Left out: copying, submitting and completing (`filter`).

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use shoal_format::cache::CACHE_SLOT;
use shoal_media::{Completion, MediaError, Request, Result};

use crate::absorbed::Absorbed;
use crate::dirty_set::DirtySet;
use crate::flushes::Flushes;
use crate::planted::{Bug, is_planted};
use crate::policy::{Load, Policy, Rule};
use crate::readers::Readers;
use crate::slots::{Found, Slots};
use crate::{BlockId, FileId, S_NS};

/// The file of lines of which nobody said whose they are: all that an earlier process held, and all
/// writes under a rule that does not go by files.
const UNKNOWN: FileId = FileId(0);
/// Lines whose files may be noted without a held block, beside as many as there are held lines.
const FILES_SPARE: usize = 1024;
/// Blocks of a line.
pub(crate) const LINE_BLOCKS: u64 = 16;
/// Longest write into which neighbours are joined (blocks): 1 MiB.
const JOINED_BLOCKS_MAX: usize = 256;
/// Maximum writes under way at a time, and their bytes.
const WRITES_MAX: u64 = 16;
const WRITES_BYTES_MAX: u64 = 4 << 20;
/// Maximum writes under way that no request waits for, and their bytes, while the device has
/// readers. It counts as having readers for `READERS_NS` after a read (ns).
const ASIDE_WRITES_MAX: u64 = 2;
const ASIDE_BYTES_MAX: u64 = 256 << 10;
const READERS_NS: u64 = S_NS;
/// Lines taken at a time when memory is short.
const PRESSURE_LINES: usize = 64;

/// Index of a block within its line.
fn within(block: u64) -> usize {
    (block % LINE_BLOCKS) as usize
}

/// Returns whether a rule may want another look when a read begins or ends.
fn minds_reads(rule: &Rule) -> bool {
    rule.goes_by_load() || matches!(rule.policy, Policy::Idle { .. })
}

/// The time of a change, on both clocks.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    /// On the clock that only goes forward.
    pub ns: u64,
    /// On the clock that outlives the process; it may be set.
    pub wall_ns: i64,
}

/// A block that no device is known to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub slot: u64,
    /// Number of the modification that made these contents.
    pub version: u64,
    /// The first modification that no device is known to hold.
    oldest: u64,
}

#[derive(Clone, Default)]
struct Line {
    blocks: [Option<Held>; LINE_BLOCKS as usize],
    /// It is among the lines with blocks that may not be absorbed.
    is_fresh: bool,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.blocks.iter().all(Option::is_none)
    }

    /// Returns whether some block has a version up to `version` that no device is known to hold.
    fn lacks(&self, version: u64) -> bool {
        self.blocks.iter().flatten().any(|held| held.oldest <= version)
    }
}

/// Action when the awaited lines are on the device.
pub(crate) enum Then {
    /// The request has completed; its buffer goes back.
    Complete(Completion, Vec<u8>),
    /// The request goes to the device.
    Submit(Request, Completion),
}

struct Waiter {
    /// Lines still awaited.
    left: usize,
    then: Then,
}

/// Blocks that leave together.
pub(crate) struct Run {
    pub first: u64,
    pub blocks: Vec<Held>,
}

impl Run {
    pub fn slots(&self) -> impl Iterator<Item = u64> {
        self.blocks.iter().map(|held| held.slot)
    }

    fn lines(&self) -> std::ops::Range<u64> {
        self.first / LINE_BLOCKS..(self.first + self.blocks.len() as u64).div_ceil(LINE_BLOCKS)
    }
}

/// Work to be done after the lock has been released.
pub(crate) enum Step {
    Submit(Request, Completion),
    Complete(Completion, Result<Vec<u8>>),
    Write(Run),
    /// A write that waited for memory.
    Again(Request, Completion),
}

/// A line that is being written.
struct Leaving {
    runs: usize,
    failed: bool,
}

pub(crate) struct State {
    pub dirty: DirtySet,
    pub slots: Slots,
    lines: BTreeMap<u64, Line>,
    /// Lines with held blocks that may not be absorbed.
    fresh: BTreeSet<u64>,
    /// Blocks whose owner keeps a version of them.
    pub absorbed: Absorbed,
    /// The files of lines, as the writer says before it writes. Empty unless the rule goes by files.
    files: HashMap<u64, FileId>,
    held: u64,
    /// Lines handed out but not yet being written: those that a request waits for, and the others.
    urgent: VecDeque<u64>,
    going: VecDeque<u64>,
    leaving: HashMap<u64, Leaving>,
    /// Writes of leaving lines that are not sent yet.
    outgoing: VecDeque<Run>,
    waiters: HashMap<u64, Waiter>,
    /// Waiters of a line, with the version each needs.
    wanted: BTreeMap<u64, Vec<(u64, u64)>>,
    ready: Vec<Then>,
    next_waiter: u64,
    /// Writes that wait for memory, in order of arrival.
    pub blocked: VecDeque<(Request, Completion)>,
    pub version: u64,
    /// Writes whose bytes are being copied into slots.
    pub storing: u64,
    pub readers: Arc<Readers>,
    writes: u64,
    writes_bytes: u64,
    /// Changes that reached the device, and how many of them a completed flush covers.
    pub changes: u64,
    pub flushed: u64,
    /// The last change of which it is not known what it changed.
    pub unknown: u64,
    /// Lines that reached the device and that no completed flush has covered, with the last change of each.
    uncovered: HashMap<u64, u64>,
    /// Blocks that an earlier process held, until [`State::adopt`] decides about them.
    pub found: Vec<Found>,
    /// A write failed.
    pub failure: Option<MediaError>,
    pub flushes: Flushes,
    /// A thread is carrying out steps. It looks again if `look_again` is set.
    pub is_running: bool,
    pub look_again: bool,
}

impl State {
    pub fn new(rule: Rule, slots: Slots, found: Vec<Found>) -> State {
        let state = State {
            dirty: DirtySet::new(rule),
            slots,
            lines: BTreeMap::new(),
            fresh: BTreeSet::new(),
            absorbed: Absorbed::default(),
            files: HashMap::new(),
            held: 0,
            urgent: VecDeque::new(),
            going: VecDeque::new(),
            leaving: HashMap::new(),
            outgoing: VecDeque::new(),
            waiters: HashMap::new(),
            wanted: BTreeMap::new(),
            ready: Vec::new(),
            next_waiter: 0,
            blocked: VecDeque::new(),
            version: 0,
            storing: 0,
            readers: Arc::new(Readers::new()),
            writes: 0,
            writes_bytes: 0,
            changes: 1,
            flushed: 0,
            // An earlier process may have written anything.
            unknown: 1,
            uncovered: HashMap::new(),
            found,
            failure: None,
            flushes: Flushes::default(),
            is_running: false,
            look_again: false,
        };
        state.readers.set_minded(minds_reads(&rule));
        state
    }

    pub fn refuse(&self) -> Result<()> {
        match &self.failure {
            Some(failure) => {
                Err(MediaError::Poisoned { what: "write-back cache".into(), cause: failure.to_string().into() })
            }
            None => Ok(()),
        }
    }

    /// Records that some of a range of blocks changed on the device, or may have.
    pub fn changed(&mut self, range: std::ops::Range<u64>) {
        self.changes += 1;
        let lines = range.start / LINE_BLOCKS..range.end.div_ceil(LINE_BLOCKS);
        self.uncovered.extend(lines.clone().map(|line| (line, self.changes)));
        self.absorbed.changed(lines, self.changes);
    }

    /// Records a completed flush that covers the changes up to this one.
    pub fn covered(&mut self, changes: u64) {
        self.flushed = self.flushed.max(changes);
        self.uncovered.retain(|_, last| *last > changes);
        self.absorbed.covered(changes);
    }

    /// Returns whether the device has a change in a range of blocks that no completed flush covers.
    pub fn is_uncovered(&self, range: std::ops::Range<u64>) -> bool {
        let mut lines = range.start / LINE_BLOCKS..range.end.div_ceil(LINE_BLOCKS);
        !is_planted(Bug::DoubtForgotten) && lines.any(|line| self.uncovered.contains_key(&line))
    }

    pub fn held_blocks(&self) -> u64 {
        self.held
    }

    /// Returns the held blocks of some ranges that are not absorbed. `None` if there are more than
    /// `most`, or if something else of these ranges is not durable.
    pub fn to_absorb(
        &self,
        ranges: impl Iterator<Item = std::ops::Range<u64>>,
        most: usize,
    ) -> Option<Vec<(u64, Held)>> {
        let mut found = Vec::new();
        if self.failure.is_some() || !self.found.is_empty() || self.flushed < self.unknown {
            return None;
        }
        for range in ranges {
            let lines = range.start / LINE_BLOCKS..range.end.div_ceil(LINE_BLOCKS);
            if self.absorbed.lacks_flush(lines.clone()) {
                return None;
            }
            for &number in self.fresh.range(lines) {
                for (block, held) in self.held_in(number * LINE_BLOCKS..(number + 1) * LINE_BLOCKS) {
                    if range.contains(&block) && !self.absorbed.has(block, held.version) {
                        found.push((block, held));
                    }
                }
                if found.len() > most {
                    return None;
                }
            }
        }
        Some(found)
    }

    /// Notes that the owner keeps a version of a block.
    pub fn absorbed(&mut self, block: u64, version: u64) {
        let number = block / LINE_BLOCKS;
        let held = self.lines.get(&number).and_then(|line| line.blocks[within(block)]);
        if held.is_some_and(|held| held.oldest <= version) {
            self.absorbed.keep(block, version);
        } else {
            // It left meanwhile. The device has it, perhaps without a flush.
            self.absorbed.keep_written(block, version, self.uncovered.get(&number).copied());
        }
        let absorbed = &self.absorbed;
        if let Some(line) = self.lines.get_mut(&number) {
            let mut blocks = (number * LINE_BLOCKS..).zip(&line.blocks);
            if blocks.all(|(block, held)| held.is_none_or(|held| absorbed.has(block, held.version))) {
                line.is_fresh = false;
                self.fresh.remove(&number);
            }
        }
    }

    /// Puts a line that got new contents among those that are not absorbed.
    fn refresh(&mut self, number: u64) {
        let line = self.lines.entry(number).or_default();
        if !std::mem::replace(&mut line.is_fresh, true) {
            self.fresh.insert(number);
        }
    }

    /// Forgets a line that holds nothing any more.
    fn drop_line(&mut self, number: u64) {
        self.lines.remove(&number);
        self.fresh.remove(&number);
        self.files.remove(&number);
    }

    /// Returns whether nothing is held, on its way or awaited.
    pub fn is_idle(&self) -> bool {
        let queued = self.urgent.is_empty() && self.going.is_empty() && self.leaving.is_empty();
        self.held == 0
            && self.storing == 0
            && queued
            && self.waiters.is_empty()
            && self.blocked.is_empty()
            && self.found.is_empty()
    }

    /// Returns whether [`State::plan`] should run soon because memory is short: writes are blocked,
    /// the cache must shrink, or it is 7/8 full.
    pub fn is_pressed(&self, now_ns: u64) -> bool {
        !self.blocked.is_empty() || self.slots.is_crowded() || self.held * 8 >= self.slots.capacity(now_ns) * 7
    }

    fn load(&self) -> Load {
        let queued = (self.urgent.len() + self.going.len() + self.leaving.len()) as u64;
        Load { reads_waiting: self.readers.waiting(), writes_queued: queued }
    }

    /// Notes to which file a range of blocks belongs, if the rule goes by files.
    pub fn belongs(&mut self, range: std::ops::Range<u64>, file: FileId) {
        if matches!(self.dirty.rule().policy, Policy::Sprite { .. }) {
            if self.files.len() > 2 * self.lines.len() + FILES_SPARE {
                // Announced writes that never came: they failed, or went past the cache.
                let lines = &self.lines;
                self.files.retain(|line, _| lines.contains_key(line));
            }
            let lines = range.start / LINE_BLOCKS..range.end.div_ceil(LINE_BLOCKS);
            self.files.extend(lines.map(|line| (line, file)));
        }
    }

    fn file(&self, line: u64) -> FileId {
        self.files.get(&line).copied().unwrap_or(UNKNOWN)
    }

    /// Takes the new contents of a block, which lie in `slot`. The old version's slot is freed once
    /// the new version counts.
    pub fn hold(&mut self, block: u64, slot: u64, sum: u64, now: Now) {
        self.version += 1;
        let (version, line) = (self.version, block / LINE_BLOCKS);
        self.dirty.dirtied(BlockId(line), self.file(line), now.ns);
        let age_ns = now.ns - self.dirty.since_ns(BlockId(line)).unwrap_or(now.ns).min(now.ns);
        let since_ns = now.wall_ns.saturating_sub_unsigned(age_ns).max(0).cast_unsigned();
        let place = &mut self.lines.entry(line).or_default().blocks[within(block)];
        let before = place.replace(Held { slot, version, oldest: version });
        if let Some(before) = before {
            place.as_mut().expect("just put").oldest = before.oldest;
        } else {
            self.held += 1;
        }
        if let Some(before) = before.filter(|_| is_planted(Bug::OldGoesFirst)) {
            self.slots.free(before.slot);
        }
        self.refresh(line);
        self.slots.publish(slot, block, version, since_ns, sum);
        if let Some(before) = before.filter(|_| !is_planted(Bug::OldGoesFirst)) {
            self.slots.free(before.slot);
        }
    }

    /// Slot of a held block.
    pub fn slot_of(&self, block: u64) -> Option<u64> {
        self.lines.get(&(block / LINE_BLOCKS))?.blocks[within(block)].map(|held| held.slot)
    }

    /// Takes a block that was found in the cache.
    fn take_found(&mut self, found: Found, now: Now) {
        let age_ns = now.wall_ns.saturating_sub_unsigned(found.since_ns).max(0).cast_unsigned();
        let line = found.block / LINE_BLOCKS;
        self.dirty.dirtied(BlockId(line), UNKNOWN, now.ns.saturating_sub(age_ns));
        let held = Held { slot: found.slot, version: found.version, oldest: found.version };
        self.lines.entry(line).or_default().blocks[within(found.block)] = Some(held);
        self.refresh(line);
        self.held += 1;
        self.version = self.version.max(found.version);
    }

    /// Holds the found blocks from now on if `continues`, and frees their slots otherwise.
    pub fn adopt(&mut self, continues: bool, now: Now) {
        let mut found = std::mem::take(&mut self.found);
        // The oldest first: a line has the age of its oldest block.
        found.sort_by_key(|found| found.since_ns);
        for found in found {
            match continues || is_planted(Bug::AdoptAny) {
                true => self.take_found(found, now),
                false => self.slots.free(found.slot),
            }
        }
    }

    /// The held blocks of a range, in order.
    pub fn held_in(&self, range: std::ops::Range<u64>) -> impl Iterator<Item = (u64, Held)> {
        let lines = self.lines.range(range.start / LINE_BLOCKS..range.end.div_ceil(LINE_BLOCKS));
        let blocks = lines.flat_map(|(line, held)| {
            held.blocks
                .iter()
                .enumerate()
                .filter_map(move |(at, held)| Some((line * LINE_BLOCKS + at as u64, (*held)?)))
        });
        blocks.filter(move |(block, _)| range.contains(block))
    }

    /// Drops the held blocks of a range.
    pub fn discard(&mut self, range: std::ops::Range<u64>, now_ns: u64) {
        self.absorbed.forget(range.clone());
        let dropped: Vec<(u64, Held)> = self.held_in(range).collect();
        for (block, held) in dropped {
            self.release(block, held.slot, now_ns);
        }
    }

    /// Stops holding a block, and frees its slot.
    fn release(&mut self, block: u64, slot: u64, now_ns: u64) {
        let number = block / LINE_BLOCKS;
        let Some(line) = self.lines.get_mut(&number) else { return };
        line.blocks[within(block)] = None;
        let is_empty = line.is_empty();
        self.held -= 1;
        self.slots.free(slot);
        if is_empty {
            self.drop_line(number);
            self.dirty.discarded(BlockId(number), now_ns);
        }
        if !self.leaving.contains_key(&number) {
            self.answer(number);
        }
    }

    pub fn set_rule(&mut self, rule: Rule, now_ns: u64) {
        self.dirty.set_rule(rule, now_ns);
        self.files.clear();
        self.readers.set_minded(minds_reads(&rule));
    }

    /// Returns whether the rule wants another look now that a read has begun or ended.
    pub fn minds_reads(&self) -> bool {
        self.dirty.rule().goes_by_load() || minds_reads(self.dirty.rule()) && self.held > 0
    }

    /// Lines of a range that hold something or are being written; all such lines if there is no
    /// range.
    pub fn lines_in(&self, range: Option<std::ops::Range<u64>>) -> BTreeSet<u64> {
        let (from, to) =
            range.map_or((0, u64::MAX), |range| (range.start / LINE_BLOCKS, range.end.div_ceil(LINE_BLOCKS)));
        let leaving = self.leaving.keys().filter(|line| (from..to).contains(line));
        self.lines.range(from..to).map(|(line, _)| *line).chain(leaving.copied()).collect()
    }

    /// Makes a request wait until the device has the present versions of these lines.
    pub fn wait_for(&mut self, lines: BTreeSet<u64>, then: Then, now_ns: u64) {
        let (id, version) = (self.next_waiter, self.version);
        self.next_waiter += 1;
        let mut left = 0;
        for line in lines {
            let lacks = self.lines.get(&line).is_some_and(|held| held.lacks(version));
            let is_leaving = self.leaving.contains_key(&line);
            if !lacks && !is_leaving || is_leaving && is_planted(Bug::FlushSkipsLeaving) {
                continue;
            }
            left += 1;
            self.wanted.entry(line).or_default().push((id, version));
            self.hurry(line, now_ns);
        }
        match left {
            0 => self.ready.push(then),
            left => drop(self.waiters.insert(id, Waiter { left, then })),
        }
    }

    /// Moves a line that a request waits for ahead of those that are only due.
    fn hurry(&mut self, line: u64, now_ns: u64) {
        if self.dirty.take(BlockId(line), now_ns) {
            self.urgent.push_back(line);
        }
    }

    /// Releases the waiters of a line whose versions are on the device. The line is not being
    /// written.
    fn answer(&mut self, number: u64) {
        let Some(mut wanted) = self.wanted.remove(&number) else { return };
        wanted.retain(|&(id, version)| {
            let lacks = self.lines.get(&number).is_some_and(|line| line.lacks(version));
            if !lacks && let Some(waiter) = self.waiters.get_mut(&id) {
                waiter.left -= 1;
                if waiter.left == 0
                    && let Some(waiter) = self.waiters.remove(&id)
                {
                    self.ready.push(waiter.then);
                }
            }
            lacks
        });
        if !wanted.is_empty() {
            self.wanted.insert(number, wanted);
        }
    }

    /// Returns the steps that can be made now.
    pub fn plan(&mut self, now_ns: u64) -> Vec<Step> {
        let mut steps = Vec::new();
        for then in std::mem::take(&mut self.ready) {
            steps.push(match then {
                Then::Complete(done, buffer) => Step::Complete(done, Ok(buffer)),
                Then::Submit(request, done) => Step::Submit(request, done),
            });
        }
        if let Some(failure) = self.failure.clone() {
            // No write is carried out any more. Held blocks stay, and can be read.
            for Waiter { then: Then::Complete(done, _) | Then::Submit(_, done), .. } in
                std::mem::take(&mut self.waiters).into_values()
            {
                steps.push(Step::Complete(done, Err(failure.clone())));
            }
            for (_, done) in std::mem::take(&mut self.blocked) {
                steps.push(Step::Complete(done, Err(failure.clone())));
            }
            self.wanted.clear();
            // These writes were never sent. Their lines are held again, as if the writes had
            // failed.
            for run in std::mem::take(&mut self.outgoing) {
                self.slots.copied(run.blocks.iter().map(|held| held.slot));
                self.sent(&run);
                self.written(&run, Err(failure.clone()), now_ns);
            }
            return steps;
        }
        self.choose(now_ns);
        while self.may_write(now_ns) {
            if let Some(run) = self.outgoing.pop_front() {
                self.sent(&run);
                steps.push(Step::Write(run));
            } else if let Some(lines) = self.next_lines(now_ns) {
                self.leave(&lines, now_ns);
            } else {
                break;
            }
        }
        let (mut available, capacity) = (self.slots.available(now_ns), self.slots.capacity(now_ns));
        while let Some((request, _)) = self.blocked.front() {
            let blocks = request.range().1 / CACHE_SLOT;
            if blocks > available && blocks <= capacity {
                break;
            }
            available = available.saturating_sub(blocks);
            let (request, done) = self.blocked.pop_front().expect("seen above");
            steps.push(Step::Again(request, done));
        }
        steps
    }

    /// Hands out the lines that are due and, if memory is short, the oldest lines.
    fn choose(&mut self, now_ns: u64) {
        let load = self.load();
        let mut chosen: Vec<u64> = self.dirty.choose(now_ns, &load).into_iter().map(|BlockId(line)| line).collect();
        let wakes = matches!(self.dirty.rule().policy, Policy::Idle { .. }) && self.readers.take_woke();
        if wakes {
            chosen.extend(std::iter::from_fn(|| self.dirty.take_oldest(now_ns)).map(|BlockId(line)| line));
        }
        while self.is_pressed(now_ns)
            && self.urgent.len() + self.going.len() + chosen.len() < PRESSURE_LINES
            && let Some(BlockId(line)) = self.dirty.take_oldest(now_ns)
        {
            chosen.push(line);
        }
        chosen.sort_unstable();
        self.going.extend(chosen);
    }

    /// Returns whether lines leave in small steps: the device has readers, no request waits for the
    /// lines, and memory is not short.
    fn is_aside(&self, now_ns: u64) -> bool {
        let has_readers = self.readers.waiting() > 0 || now_ns < self.readers.last_ns() + READERS_NS;
        let is_wanted = |run: &Run| run.lines().any(|line| self.wanted.contains_key(&line));
        has_readers && self.urgent.is_empty() && !self.is_pressed(now_ns) && !self.outgoing.iter().any(is_wanted)
    }

    /// Returns whether another write may be sent.
    fn may_write(&self, now_ns: u64) -> bool {
        match self.is_aside(now_ns) {
            true => self.writes < ASIDE_WRITES_MAX && self.writes_bytes < ASIDE_BYTES_MAX,
            false => self.writes < WRITES_MAX && self.writes_bytes < WRITES_BYTES_MAX,
        }
    }

    /// Takes the neighbouring lines to be written next.
    fn next_lines(&mut self, now_ns: u64) -> Option<Vec<u64>> {
        let bytes = if self.is_aside(now_ns) { ASIDE_BYTES_MAX } else { JOINED_BLOCKS_MAX as u64 * CACHE_SLOT };
        let most = (bytes / CACHE_SLOT / LINE_BLOCKS) as usize;
        let queue = if self.urgent.is_empty() { &mut self.going } else { &mut self.urgent };
        let mut lines = vec![queue.pop_front()?];
        while lines.len() < most && queue.front() == lines.last().map(|line| line + 1).as_ref() {
            lines.extend(queue.pop_front());
        }
        Some(lines)
    }

    /// Starts to write lines. Each stretch of held blocks becomes one write.
    fn leave(&mut self, lines: &[u64], now_ns: u64) {
        let mut runs: Vec<Run> = Vec::new();
        for &line in lines {
            let Some(held) = self.lines.get(&line) else {
                // Its blocks were dropped after it was chosen.
                self.dirty.cleaned(BlockId(line), now_ns);
                self.answer(line);
                continue;
            };
            let mut leaving = Leaving { runs: 0, failed: false };
            for (at, held) in held.blocks.iter().enumerate() {
                let Some(held) = held else { continue };
                let block = line * LINE_BLOCKS + at as u64;
                let joins =
                    |run: &Run| run.first + run.blocks.len() as u64 == block && run.blocks.len() < JOINED_BLOCKS_MAX;
                match runs.last_mut().filter(|run| joins(run)) {
                    Some(run) => {
                        leaving.runs += usize::from(run.first / LINE_BLOCKS != line && at == 0);
                        run.blocks.push(*held);
                    }
                    None => {
                        leaving.runs += 1;
                        runs.push(Run { first: block, blocks: vec![*held] });
                    }
                }
                self.slots.copying(held.slot);
            }
            self.leaving.insert(line, leaving);
        }
        self.outgoing.extend(runs);
    }

    /// Records that a write of blocks is under way.
    fn sent(&mut self, run: &Run) {
        self.writes += 1;
        self.writes_bytes += run.blocks.len() as u64 * CACHE_SLOT;
        if is_planted(Bug::FreeBeforeWritten) {
            run.blocks.iter().for_each(|held| self.slots.free(held.slot));
        }
    }

    /// Records that a write of blocks has ended.
    pub fn written(&mut self, run: &Run, result: Result<()>, now_ns: u64) {
        self.writes -= 1;
        self.writes_bytes -= run.blocks.len() as u64 * CACHE_SLOT;
        // Blocks being written when a flush failed stay held: no flush of the device will cover
        // them.
        let failed = result.is_err() || self.failure.is_some() && !is_planted(Bug::DroppedInDoubt);
        self.changes += 1;
        if !failed {
            self.uncovered.extend(run.lines().map(|line| (line, self.changes)));
            let versions = run.blocks.iter().map(|held| held.version);
            self.absorbed.written(|block| block / LINE_BLOCKS, (run.first..).zip(versions), self.changes);
        }
        for (block, written) in (run.first..).zip(&run.blocks) {
            let place = self.lines.get_mut(&(block / LINE_BLOCKS)).map(|line| &mut line.blocks[within(block)]);
            let Some(place) = place.filter(|_| !failed) else { continue };
            match place {
                Some(held) if held.version == written.version => {
                    *place = None;
                    self.held -= 1;
                    if !is_planted(Bug::FreeBeforeWritten) {
                        self.slots.free(written.slot);
                    }
                }
                // The block was modified while it was being written. The device has none of the
                // later versions.
                Some(held) => held.oldest = held.oldest.max(written.version + 1),
                None => {}
            }
        }
        for line in run.lines() {
            self.line_written(line, failed, now_ns);
        }
        if let Err(error) = result
            && !is_planted(Bug::FailureForgotten)
        {
            self.failure.get_or_insert(error);
        }
    }

    fn line_written(&mut self, line: u64, failed: bool, now_ns: u64) {
        let Some(leaving) = self.leaving.get_mut(&line) else { return };
        leaving.runs -= 1;
        leaving.failed |= failed;
        if leaving.runs > 0 {
            return;
        }
        let failed = leaving.failed;
        self.leaving.remove(&line);
        match failed {
            true => self.dirty.failed(BlockId(line), now_ns),
            false => drop(self.dirty.cleaned(BlockId(line), now_ns)),
        }
        if self.lines.get(&line).is_none_or(Line::is_empty) {
            self.drop_line(line);
            self.dirty.discarded(BlockId(line), now_ns);
        } else if !failed && self.dirty.since_ns(BlockId(line)).is_none() {
            // This should never happen: the line holds blocks, but the dirty set calls it clean.
            // Mark it dirty so that no held block is forgotten.
            self.dirty.dirtied(BlockId(line), self.file(line), now_ns);
        }
        self.answer(line);
        if self.wanted.contains_key(&line) {
            self.hurry(line, now_ns);
        }
    }
}
