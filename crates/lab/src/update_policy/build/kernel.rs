//! A machine that runs a recorded build: a processor, a buffer cache under a policy, and a disk.
//!
//! Owns: [`Machine`] and what it counts ([`Outcome`]). Rules, as in 4.2BSD: a filled block goes to
//! the disk at once, unless all writes are delayed; directories, and inodes that are created or
//! unlinked, are written while the process waits; all other metadata is delayed. Whoever wants to
//! modify a block that is queued for the disk waits for it. The build computes for the recorded
//! time, stretched, and waits for the disk as often as it must, so elapsed time is a result.
//! Left out: the processor time of the kernel itself, and reads of what today's cache still held.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use shoal_media::Clock;
use shoal_sim::mechanical::{DiskQueue, Drive, Order};
use shoal_sim::{MechanicalDisk, SimClock};
use shoal_writeback::{BlockId, Counts, DirtySet, FileId, Load, Policy, Rule};

use super::trace::{Event, Holds, Recorded, TICK_NS};

/// Properties that the report does not tell, each of which a run can change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switches {
    /// Dirty blocks of deleted files are still written.
    pub keeps_freed: bool,
    /// The cache knows blocks by their place, so that a new file may hit a dirty block of an old one.
    pub by_place: bool,
    /// A block that is queued for the disk cannot be modified.
    pub is_locked: bool,
    /// Directories and created or unlinked inodes are written while the process waits.
    pub is_synchronous: bool,
}

impl Switches {
    /// As 4.2BSD has them: its cache asks for a place on a device, and deleting a file leaves it alone.
    pub const BSD: Switches = Switches { keeps_freed: true, by_place: true, is_locked: true, is_synchronous: true };
}

#[derive(Clone, Debug)]
pub struct Machine {
    pub drive: Drive,
    /// Blocks of the cache.
    pub buffers: u64,
    pub block_bytes: u64,
    pub policy: Policy,
    pub is_delayed: bool,
    pub order: Order,
    /// Processor time for each of the recording.
    pub stretch: f64,
    /// When in the policy's interval the build begins (ns).
    pub phase_ns: u64,
    pub switches: Switches,
}

/// What a build came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub elapsed_s: f64,
    pub processor_s: f64,
    /// Writes as the report's kernel counts them: one when a clean block is modified.
    pub charged: u64,
    /// Modifications of dirty blocks.
    pub modified: u64,
    /// Writes that the process waited for.
    pub synchronous: u64,
    /// Filled blocks written at once.
    pub filled: u64,
    /// Blocks written because the cache was full of dirty ones.
    pub evicted: u64,
    /// Blocks written by the policy.
    pub chosen: u64,
    /// Times that the process waited for the disk.
    pub waits: u64,
    pub counts: Counts,
    /// Sizes of the policy's bursts (blocks).
    pub bursts: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Tag {
    number: u64,
    block: Option<BlockId>,
}

struct Running<'a> {
    machine: &'a Machine,
    clock: Arc<SimClock>,
    queue: DiskQueue<Tag>,
    /// The request at the disk, and when it ends (ns).
    served: Option<(Tag, u64)>,
    set: DirtySet,
    /// Places of blocks (blocks).
    slots: HashMap<BlockId, u64>,
    /// Blocks queued or at the disk.
    queued: HashSet<BlockId>,
    now_ns: u64,
    number: u64,
    outcome: Outcome,
}

impl Running<'_> {
    fn push(&mut self, slot: u64, is_read: bool, block: Option<BlockId>) -> Result<u64, String> {
        self.number += 1;
        let tag = Tag { number: self.number, block };
        self.queue.push(slot * self.machine.block_bytes, is_read, tag);
        self.queued.extend(block);
        self.start()?;
        Ok(tag.number)
    }

    /// Gives the disk its next request.
    fn start(&mut self) -> Result<(), String> {
        if self.served.is_none() && !self.queue.is_empty() {
            let idle_ns = self.now_ns.saturating_sub(self.clock.monotonic_ns());
            self.clock.advance(idle_ns);
            if let Some(served) = self.queue.serve() {
                let tag = served.map_err(|error| error.to_string())?.tag;
                self.served = Some((tag, self.clock.monotonic_ns()));
            }
        }
        Ok(())
    }

    /// Lets disk and policy take their next step up to `end_ns`. Returns the number of the request
    /// that ended, or none if there is no step.
    fn step(&mut self, end_ns: u64) -> Result<Option<u64>, String> {
        let done_ns = self.served.map_or(u64::MAX, |(_, at_ns)| at_ns);
        let policy_ns = self.set.next_ns(self.now_ns).unwrap_or(u64::MAX);
        if done_ns.min(policy_ns) > end_ns {
            return Ok(None);
        }
        if policy_ns < done_ns {
            self.now_ns = policy_ns;
            let chosen = self.set.choose(policy_ns, &Load::default());
            self.outcome.chosen += chosen.len() as u64;
            if !chosen.is_empty() {
                self.outcome.bursts.push(chosen.len() as u64);
            }
            for block in chosen {
                self.push(self.slots[&block], false, Some(block))?;
            }
            return Ok(Some(0));
        }
        self.now_ns = done_ns;
        let Some((tag, _)) = self.served.take() else { return Ok(None) };
        if let Some(block) = tag.block {
            self.queued.remove(&block);
            self.set.cleaned(block, done_ns);
        }
        self.start()?;
        Ok(Some(tag.number))
    }

    fn compute(&mut self, ns: u64) -> Result<(), String> {
        let end_ns = self.now_ns + ns;
        while self.step(end_ns)?.is_some() {}
        self.now_ns = end_ns;
        Ok(())
    }

    /// Lets the process wait until a condition holds.
    fn wait(&mut self, is_over: impl Fn(&Self, u64) -> bool) -> Result<(), String> {
        self.outcome.waits += 1;
        while let Some(number) = self.step(u64::MAX)? {
            if is_over(self, number) {
                return Ok(());
            }
        }
        Err("the process waits for nothing".into())
    }

    fn wait_for(&mut self, number: u64) -> Result<(), String> {
        self.wait(|_, ended| ended == number)
    }

    fn is_dirty(&self, block: BlockId) -> bool {
        self.set.since_ns(block).is_some() && !self.queued.contains(&block)
    }

    fn modified(&mut self, block: BlockId, file: FileId, slot: u64, count: u64) -> Result<(), String> {
        let before = self.set.counts();
        (0..count).for_each(|_| {
            self.set.dirtied(block, file, self.now_ns);
        });
        let counts = self.set.counts();
        self.outcome.charged += counts.dirtied - before.dirtied;
        self.outcome.modified += counts.modified - before.modified;
        self.slots.insert(block, slot);
        // No clean buffer is left.
        while self.set.len() as u64 + self.queued.len() as u64 > self.machine.buffers {
            if let Some(oldest) = self.set.take_oldest(self.now_ns) {
                self.outcome.evicted += 1;
                self.push(self.slots[&oldest], false, Some(oldest))?;
            }
            if self.queued.len() as u64 >= self.machine.buffers {
                self.wait(|running, _| (running.queued.len() as u64) < running.machine.buffers)?;
            }
            if self.set.len() as u64 + self.queued.len() as u64 > self.machine.buffers {
                let before = self.queued.len();
                self.wait(|running, _| running.queued.len() < before)?;
            }
        }
        Ok(())
    }

    /// Writes a block at once, with what was delayed of it.
    fn at_once(&mut self, block: BlockId, slot: u64, count: u64) -> Result<u64, String> {
        let is_dirty = self.is_dirty(block);
        self.outcome.charged += u64::from(!is_dirty);
        self.outcome.modified += count - u64::from(!is_dirty);
        self.set.discarded(block, self.now_ns);
        self.push(slot, false, Some(block))
    }

    fn take(&mut self, event: &Event) -> Result<(), String> {
        let switches = self.machine.switches;
        let id = |block: u64, slot: u64| BlockId(if switches.by_place { slot } else { block });
        match *event {
            Event::Read { slot } => {
                let number = self.push(slot, true, None)?;
                self.wait_for(number)?;
            }
            Event::Freed { block } if !switches.keeps_freed => {
                if let Some(slot) = self.slots.get(&BlockId(block)).copied() {
                    self.set.discarded(id(block, slot), self.now_ns);
                }
            }
            Event::Freed { .. } | Event::Idle => {}
            Event::Modified { block, slot, file, holds, count, is_filled } => {
                let known = id(block, slot);
                if switches.is_locked && self.queued.contains(&known) {
                    self.wait(|running, _| !running.queued.contains(&known))?;
                }
                match holds {
                    Holds::Directory | Holds::Links if switches.is_synchronous => {
                        for _ in 0..count {
                            self.outcome.synchronous += 1;
                            let number = self.at_once(known, slot, 1)?;
                            self.wait_for(number)?;
                        }
                    }
                    Holds::Data if is_filled && !self.machine.is_delayed => {
                        self.outcome.filled += 1;
                        self.at_once(known, slot, count)?;
                    }
                    _ => self.modified(known, FileId(file), slot, count)?,
                }
                self.slots.insert(BlockId(block), slot);
            }
        }
        Ok(())
    }
}

impl Machine {
    /// Runs the build to its end.
    pub fn run(&self, recorded: &[Recorded]) -> Result<Outcome, String> {
        let clock = Arc::new(SimClock::new(0));
        let disk = MechanicalDisk::new(self.drive.clone(), clock.clone());
        let mut running = Running {
            machine: self,
            clock,
            queue: DiskQueue::new(disk, self.order, self.block_bytes),
            served: None,
            set: DirtySet::new(Rule::of(self.policy)),
            slots: HashMap::new(),
            queued: HashSet::new(),
            now_ns: self.phase_ns,
            number: 0,
            outcome: Outcome::default(),
        };
        for recorded in recorded {
            let ns = (recorded.ticks * TICK_NS) as f64 * self.stretch;
            running.outcome.processor_s += ns / 1e9;
            running.compute(ns as u64)?;
            running.take(&recorded.event)?;
        }
        let Running { mut outcome, set, now_ns, .. } = running;
        outcome.elapsed_s = (now_ns - self.phase_ns) as f64 / 1e9;
        outcome.counts = set.counts();
        outcome.bursts.sort_unstable();
        Ok(outcome)
    }
}
