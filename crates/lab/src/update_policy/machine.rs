//! A machine with a buffer cache, an update policy and one disk, local or on a server, in simulated
//! time.
//!
//! Owns: [`Machine`], which lets a writer, a reader and the policy act on the disk's queue; the
//! loads they can make; the measurements ([`Trial`]). Rules: the policy is the one that serves
//! users (`shoal-writeback`). Events while the disk is busy are handled in time order, before the
//! disk's next request is chosen. Reads bypass the cache. The file system's metadata is a separate
//! dirty set under periodic update, as in the report's system under either policy.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use shoal_media::Clock;
use shoal_sim::mechanical::{DiskQueue, Order};
use shoal_sim::{MechanicalDisk, Random, SimClock};
use shoal_writeback::{BlockId, Counts, DirtySet, FileId, Load as DiskLoad, Policy, Rule, S_NS};

use super::layout::{BLOCK_BYTES, DiskModel, Layout};
use super::remote::{Event, Remote, Request, Server};
use crate::experiment::LabError;

/// How the generator's writes reach the disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Writes {
    /// All modified blocks wait in the cache for the policy.
    Delayed,
    /// A filled block is written at once. This share of the modifications fills no block and waits
    /// (0 to 1).
    Asynchronous { partial: f64 },
}

/// The writer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Writer {
    /// Modifies half the cache in 30 s, evenly, and never a block twice a minute.
    HalfTheCache,
    /// Modifies this share of the cache in 30 s, evenly.
    Share { percent: u64 },
    /// Modifies the whole cache within a second, once every `every_s` seconds.
    Burst { every_s: u64 },
    /// Makes independent writes to random blocks. A share of them modifies a block that is already
    /// dirty (0 to 1).
    Independent { per_s: f64, hits: f64 },
}

/// The reader, which reads blocks of a file, in random order unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reader {
    /// Issues the next read `think_ns` after the end of the previous one (ns).
    Closed { think_ns: u64 },
    /// Like `Closed`, but reads block after block and starts again at the end.
    InOrder { think_ns: u64 },
    /// Makes independent reads.
    Independent { per_s: f64 },
}

/// Blocks that something else modifies now and then, none of which it fills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Other {
    pub blocks: u64,
    pub every_s: u64,
}

/// A rule that goes by the load, after Hac: above `least_percent` of dirty blocks the oldest leaves
/// whenever the disk has nothing else to do, and above `most_percent` also beside reads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    pub least_percent: u64,
    pub most_percent: u64,
}

/// What a machine does that the report's measurements do without.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extra {
    /// A read takes a buffer, and waits while all are dirty. So does a modification.
    pub needs_buffer: bool,
    /// The reader reads blocks of the file that is written. One that is queued for the disk keeps
    /// it waiting.
    pub reads_written: bool,
    /// Consecutive blocks of a file lie together in runs of this length. 0: none do.
    pub run: u64,
    /// Most blocks in a request. 0: one.
    pub cluster: u64,
    pub other: Option<Other>,
    pub adaptive: Option<Adaptive>,
}

/// A machine under load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    pub disk: DiskModel,
    /// Blocks of the cache.
    pub buffers: u64,
    /// The server that has the disk. None: the disk is local.
    pub remote: Option<Remote>,
    pub rule: Rule,
    pub writes: Writes,
    pub writer: Writer,
    pub reader: Reader,
    pub order: Order,
    pub extra: Extra,
    /// Number of measured reads.
    pub reads: u64,
    /// Time before the first measured read (ns).
    pub warm_up_ns: u64,
    pub seed: u64,
}

/// The measurements after the warm-up.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Response time of each read (us).
    pub responses_us: Vec<u32>,
    pub elapsed_s: f64,
    pub writes: u64,
    /// Mean time of a write at the disk, without queueing (ms).
    pub write_ms: f64,
    /// Greatest time between the first modification of a block and the end of its write (s).
    pub age_max_s: f64,
    /// Figures of the whole run.
    pub counts: Counts,
}

/// Metadata blocks that the two processes keep dirty: superblock, two inodes, a cylinder group's
/// map.
const METADATA_BLOCKS: u64 = 4;
const METADATA_NS: u64 = 30 * S_NS;
const WRITTEN: FileId = FileId(1);
/// First number of something else's blocks.
const OTHER: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Tag {
    Read { at_ns: u64 },
    Write(BlockId),
    Metadata(BlockId),
    Direct(BlockId),
}

struct Machine {
    setup: Setup,
    clock: Arc<SimClock>,
    queue: DiskQueue<Request<Tag>>,
    server: Option<Server<Tag>>,
    load: DiskLoad,
    set: DirtySet,
    /// Time at which to look at the set again (ns). None: at the next event.
    look_ns: Option<u64>,
    metadata: DirtySet,
    metadata_at: Vec<u64>,
    layout: Layout,
    read_at: Vec<u64>,
    /// Places of written blocks by number. Grows if writes are independent.
    write_at: Vec<u64>,
    /// Writes of the generator so far.
    modified: u64,
    next_write_ns: u64,
    /// The generator waits for a clean buffer.
    is_blocked: bool,
    next_other_ns: u64,
    /// Reads that wait for a clean buffer: place, and when they came (ns).
    starved: VecDeque<(u64, u64)>,
    /// Places of something else's blocks.
    other_at: Vec<u64>,
    /// Writes at the disk's queue by block, with the reads that wait for their end (ns).
    queued: HashMap<BlockId, Vec<u64>>,
    /// The blocks of each request by its first.
    clusters: HashMap<BlockId, Vec<BlockId>>,
    /// None while the reader waits for an answer.
    next_read_ns: Option<u64>,
    /// Reads issued so far.
    reads: u64,
    random: Random,
    measured: Trial,
    write_ns: u64,
}

/// Runs one machine until its reads are measured.
pub fn run(setup: &Setup) -> Result<Trial, LabError> {
    Machine::new(*setup).run()
}

/// Draws the time to the next of independent events (ns).
fn gap_ns(per_s: f64, random: &mut Random) -> u64 {
    let unit = (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    (-(1.0 - unit).ln() / per_s * 1e9) as u64
}

impl Machine {
    fn new(setup: Setup) -> Machine {
        let clock = Arc::new(SimClock::new(0));
        let disk = MechanicalDisk::new(setup.disk.drive(), clock.clone());
        let layout = Layout::new(disk.layout()).in_runs(setup.extra.run);
        let mut random = Random::new(setup.seed);
        let read_at = layout.file(setup.disk.read_blocks(), &mut random);
        let write_at = match setup.writer {
            Writer::Independent { .. } => vec![],
            Writer::Share { percent } => layout.file(setup.buffers * percent * 9 / 400, &mut random),
            // More blocks than become dirty in a minute.
            _ => layout.file(setup.buffers * 9 / 8, &mut random),
        };
        let metadata_at = (0..METADATA_BLOCKS).map(|_| layout.anywhere(&mut random)).collect();
        // The policy's ticks and the generator do not start together.
        let phase_ns = random.below(30 * S_NS);
        Machine {
            setup,
            clock,
            queue: DiskQueue::new(disk, setup.order, BLOCK_BYTES),
            server: setup.remote.map(|remote| Server::new(remote, BLOCK_BYTES)),
            load: DiskLoad::default(),
            set: DirtySet::new(setup.rule),
            look_ns: None,
            metadata: DirtySet::new(Rule::of(Policy::Periodic { interval_ns: METADATA_NS })),
            metadata_at,
            layout,
            read_at,
            write_at,
            modified: 0,
            next_write_ns: phase_ns,
            is_blocked: false,
            next_other_ns: setup.extra.other.map_or(u64::MAX, |other| random.below(other.every_s * S_NS)),
            starved: VecDeque::new(),
            other_at: vec![],
            queued: HashMap::new(),
            clusters: HashMap::new(),
            next_read_ns: Some(phase_ns),
            reads: 0,
            random,
            measured: Trial {
                responses_us: vec![],
                elapsed_s: 0.0,
                writes: 0,
                write_ms: 0.0,
                age_max_s: 0.0,
                counts: Counts::default(),
            },
            write_ns: 0,
        }
    }

    fn run(mut self) -> Result<Trial, LabError> {
        let mut last_ns = self.setup.warm_up_ns;
        while (self.measured.responses_us.len() as u64) < self.setup.reads {
            let now_ns = self.clock.monotonic_ns();
            let Some(served) = self.queue.serve() else {
                // The disk has nothing else to do.
                if let Some(request) = self.server.as_mut().and_then(Server::leave) {
                    self.queue.push(request.at, false, request);
                    continue;
                }
                let at_ns = self.next_ns(now_ns);
                self.clock.advance(at_ns.saturating_sub(now_ns));
                self.act_until(now_ns, at_ns);
                continue;
            };
            let served =
                served.map_err(|why| LabError::Broken { what: format!("{:?}", self.setup), why: why.to_string() })?;
            let end_ns = self.clock.monotonic_ns();
            self.act_until(now_ns, end_ns);
            if end_ns >= self.setup.warm_up_ns && !served.is_read {
                self.measured.writes += 1;
                self.write_ns += served.service_ns;
            }
            match (&mut self.server, served.tag.tag) {
                (Some(server), _) => server.served(served.tag, end_ns),
                (None, Some(tag)) => self.complete(tag, end_ns),
                (None, None) => {}
            }
            self.choose(end_ns);
            last_ns = end_ns;
        }
        let measured = &mut self.measured;
        measured.elapsed_s = (last_ns - self.setup.warm_up_ns) as f64 / 1e9;
        measured.write_ms = self.write_ns as f64 / measured.writes.max(1) as f64 / 1e6;
        measured.counts = self.set.counts();
        Ok(self.measured)
    }

    /// Returns the time of the next event after those at `now_ns` (ns).
    fn next_ns(&self, now_ns: u64) -> u64 {
        let message_ns = self.server.as_ref().and_then(Server::next_ns);
        let policy_ns = [self.set.next_ns(now_ns), self.metadata.next_ns(now_ns)];
        let times = policy_ns.into_iter().chain([self.next_read_ns, Some(self.next_write_ns), message_ns]);
        let times = times.chain([Some(self.next_other_ns)]);
        times.into_iter().flatten().min().unwrap_or(u64::MAX).max(now_ns)
    }

    /// Lets writer, reader and policy act up to `end_ns`.
    fn act_until(&mut self, now_ns: u64, end_ns: u64) {
        let mut at_ns = self.next_ns(now_ns);
        while at_ns <= end_ns {
            while let Some(event) = self.server.as_mut().and_then(|server| server.next(at_ns)) {
                match event {
                    Event::Disk(request) => self.queue.push(request.at, request.is_read, request),
                    Event::Answer(tag) => self.complete(tag, at_ns),
                }
            }
            if self.next_read_ns.is_some_and(|next_ns| next_ns <= at_ns) {
                self.read(at_ns);
            }
            while self.next_write_ns <= at_ns {
                self.write(at_ns);
            }
            if self.next_other_ns <= at_ns {
                self.modify_other(at_ns);
            }
            self.choose(at_ns);
            at_ns = self.next_ns(at_ns);
        }
    }

    fn read(&mut self, now_ns: u64) {
        let blocks = self.read_at.len() as u64;
        let block = match self.setup.reader {
            Reader::InOrder { .. } => self.reads % blocks,
            _ => self.random.below(blocks),
        };
        self.reads += 1;
        let written = BlockId(block % self.write_at.len().max(1) as u64);
        match self.queued.get_mut(&written) {
            Some(readers) if self.setup.extra.reads_written => readers.push(now_ns),
            _ => {
                self.starved.push_back((self.read_at[block as usize], now_ns));
                self.feed(now_ns);
            }
        }
        self.next_read_ns = match self.setup.reader {
            Reader::Closed { .. } | Reader::InOrder { .. } => None,
            Reader::Independent { per_s } => Some(now_ns + 1 + gap_ns(per_s, &mut self.random)),
        };
    }

    /// Whether no buffer is clean, where one is needed.
    fn is_full(&self) -> bool {
        let dirty = self.set.len() + self.queued.len();
        self.setup.extra.needs_buffer && dirty as u64 >= self.setup.buffers
    }

    /// Issues the reads that have a buffer. Those without are not at the disk, so no write yields
    /// to them.
    fn feed(&mut self, now_ns: u64) {
        while !self.is_full()
            && let Some((place, at_ns)) = self.starved.pop_front()
        {
            self.load.reads_waiting += 1;
            self.ask(place, true, Tag::Read { at_ns }, now_ns);
        }
    }

    /// Modifies the blocks of something else, which lie anywhere.
    fn modify_other(&mut self, now_ns: u64) {
        let Some(other) = self.setup.extra.other else { return };
        for _ in 0..other.blocks {
            let place = self.layout.anywhere(&mut self.random);
            self.other_at.push(place);
            let block = BlockId(OTHER + self.other_at.len() as u64 - 1);
            self.set.dirtied(block, WRITTEN, now_ns);
        }
        self.next_other_ns = now_ns + other.every_s * S_NS;
    }

    /// Returns where a block of the set lies.
    fn place(&self, block: BlockId) -> u64 {
        match block.0.checked_sub(OTHER) {
            Some(index) => self.other_at[index as usize],
            None => self.write_at[block.0 as usize],
        }
    }

    /// Makes one modification of the generator.
    fn write(&mut self, now_ns: u64) {
        if self.is_full() {
            (self.is_blocked, self.next_write_ns) = (true, u64::MAX);
            return;
        }
        let buffers = self.setup.buffers;
        let block = match self.setup.writer {
            Writer::HalfTheCache => {
                self.next_write_ns += 60 * S_NS / buffers;
                self.modified % self.write_at.len() as u64
            }
            Writer::Share { percent } => {
                self.next_write_ns += 3000 * S_NS / (buffers * percent);
                self.modified % self.write_at.len() as u64
            }
            Writer::Burst { every_s } => {
                let last = (self.modified + 1).is_multiple_of(buffers);
                self.next_write_ns += if last { (every_s - 1) * S_NS } else { 0 } + S_NS / buffers;
                self.modified % self.write_at.len() as u64
            }
            Writer::Independent { per_s, hits } => {
                self.next_write_ns += 1 + gap_ns(per_s, &mut self.random);
                // Writing through does not benefit from a hit.
                let is_hit = (self.random.below(1 << 32) as f64) < hits * (1u64 << 32) as f64;
                if is_hit && self.setup.rule.policy != Policy::WriteThrough {
                    return;
                }
                let place = self.layout.anywhere(&mut self.random);
                self.write_at.push(place);
                self.write_at.len() as u64 - 1
            }
        };
        self.modified += 1;
        (0..METADATA_BLOCKS).for_each(|block| {
            self.metadata.dirtied(BlockId(block), FileId(0), now_ns);
        });
        let is_delayed = match self.setup.writes {
            Writes::Delayed => true,
            Writes::Asynchronous { partial } => (self.random.below(1 << 32) as f64) < partial * (1u64 << 32) as f64,
        };
        if is_delayed {
            self.set.dirtied(BlockId(block), WRITTEN, now_ns);
        } else {
            self.queued.entry(BlockId(block)).or_default();
            self.push(self.write_at[block as usize], 1, Tag::Direct(BlockId(block)), now_ns);
        }
    }

    fn push(&mut self, at: u64, blocks: u64, tag: Tag, now_ns: u64) {
        match blocks {
            1 => self.ask(at, false, tag, now_ns),
            _ => self.queue.push_bytes(at, blocks * BLOCK_BYTES, false, Request { at, is_read: false, tag: Some(tag) }),
        }
        self.load.writes_queued += 1;
    }

    /// Passes blocks to the disk, adjacent ones in one request as far as the machine clusters.
    fn push_all(&mut self, chosen: Vec<BlockId>, now_ns: u64) {
        let most = self.setup.extra.cluster.max(1) as usize;
        let mut chosen = chosen;
        if most > 1 {
            chosen.sort_by_key(|block| self.place(*block));
        }
        let mut runs: Vec<Vec<BlockId>> = vec![];
        for block in chosen {
            let at = self.place(block);
            self.queued.entry(block).or_default();
            match runs.last_mut() {
                Some(run) if run.len() < most && self.place(run[0]) + run.len() as u64 * BLOCK_BYTES == at => {
                    run.push(block)
                }
                _ => runs.push(vec![block]),
            }
        }
        for run in runs {
            self.push(self.place(run[0]), run.len() as u64, Tag::Write(run[0]), now_ns);
            if run.len() > 1 {
                self.clusters.insert(run[0], run);
            }
        }
    }

    /// Passes a request to the disk, or to the server that has it.
    fn ask(&mut self, at: u64, is_read: bool, tag: Tag, now_ns: u64) {
        match &mut self.server {
            Some(server) => server.send(at, is_read, tag, now_ns),
            None => self.queue.push(at, is_read, Request { at, is_read, tag: Some(tag) }),
        }
    }

    /// Passes the blocks chosen by the policies to the disk.
    fn choose(&mut self, now_ns: u64) {
        for block in self.metadata.choose(now_ns, &self.load) {
            self.push(self.metadata_at[block.0 as usize], 1, Tag::Metadata(block), now_ns);
        }
        let is_early = self.look_ns.is_some_and(|look_ns| look_ns > now_ns);
        if !is_early || self.setup.rule.goes_by_load() {
            let chosen = self.set.choose(now_ns, &self.load);
            self.push_all(chosen, now_ns);
            self.look_ns = self.set.next_ns(now_ns);
        }
        if let Some(adaptive) = self.setup.extra.adaptive {
            self.adapt(adaptive, now_ns);
        }
    }

    /// Lets the oldest block leave if the load asks for it.
    fn adapt(&mut self, adaptive: Adaptive, now_ns: u64) {
        let percent = self.set.len() as u64 * 100 / self.setup.buffers;
        let is_idle = self.load.reads_waiting == 0;
        let leaves = percent >= adaptive.most_percent || percent >= adaptive.least_percent && is_idle;
        if leaves && self.load.writes_queued == 0 {
            let oldest = self.set.take_oldest(now_ns);
            self.push_all(oldest.into_iter().collect(), now_ns);
        }
    }

    /// Completes a request that the machine has the answer to.
    fn complete(&mut self, tag: Tag, now_ns: u64) {
        if let Tag::Read { at_ns } = tag {
            self.load.reads_waiting -= 1;
            self.answered(at_ns, now_ns);
            return;
        }
        self.load.writes_queued -= 1;
        match tag {
            Tag::Write(first) => {
                for block in self.clusters.remove(&first).unwrap_or_else(|| vec![first]) {
                    let since_ns = self.set.since_ns(block).unwrap_or(now_ns);
                    self.measured.age_max_s = self.measured.age_max_s.max((now_ns - since_ns) as f64 / 1e9);
                    if self.set.cleaned(block, now_ns) {
                        self.look_ns = None;
                    }
                    self.written(block, now_ns);
                }
            }
            Tag::Direct(block) => self.written(block, now_ns),
            Tag::Metadata(block) => {
                self.metadata.cleaned(block, now_ns);
            }
            Tag::Read { .. } => {}
        }
    }

    /// Takes the answer to a read.
    fn answered(&mut self, at_ns: u64, now_ns: u64) {
        if let Reader::Closed { think_ns } | Reader::InOrder { think_ns } = self.setup.reader {
            self.next_read_ns = Some(now_ns + think_ns);
        }
        if at_ns >= self.setup.warm_up_ns {
            self.measured.responses_us.push(((now_ns - at_ns) / 1000) as u32);
        }
    }

    /// Lets those go on that waited for a block or for a clean buffer.
    fn written(&mut self, block: BlockId, now_ns: u64) {
        for at_ns in self.queued.remove(&block).into_iter().flatten() {
            self.answered(at_ns, now_ns);
        }
        self.feed(now_ns);
        if self.is_blocked && !self.is_full() {
            (self.is_blocked, self.next_write_ns) = (false, now_ns);
        }
    }
}

/// Returns the time that a disk needs to write a whole cache of blocks, all queued at once (s).
pub fn drain_s(disk: DiskModel, order: Order, places: &Places, seed: u64) -> Result<f64, LabError> {
    let clock = Arc::new(SimClock::new(0));
    let mechanical = MechanicalDisk::new(disk.drive(), clock.clone());
    let (layout, mut random) = (Layout::new(mechanical.layout()), Random::new(seed));
    let blocks = disk.buffers();
    let places: Vec<u64> = match places {
        Places::Anywhere => (0..blocks).map(|_| layout.anywhere(&mut random)).collect(),
        Places::File => layout.file(blocks, &mut random),
        Places::InARow => (0..blocks).map(|block| block * BLOCK_BYTES).collect(),
    };
    let at_once = match places.as_slice() {
        // Merge them into one request, like a driver that sorts and clusters.
        [0, second, ..] if *second == BLOCK_BYTES => blocks,
        _ => 1,
    };
    let mut queue = DiskQueue::new(mechanical, order, at_once * BLOCK_BYTES);
    places.iter().step_by(at_once as usize).for_each(|place| queue.push(*place, false, ()));
    while let Some(served) = queue.serve() {
        served.map_err(|why| LabError::Broken { what: "drain".into(), why: why.to_string() })?;
    }
    Ok(clock.monotonic_ns() as f64 / 1e9)
}

/// The location of the blocks of a drained cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    Anywhere,
    /// Places that the layout gives a file.
    File,
    /// Contiguous places.
    InARow,
}
