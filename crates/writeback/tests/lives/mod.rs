//! Lives of a cache that outlives its process, one after the other.
//!
//! A world consists of a device that carries out requests in any order, a memory that is cut off
//! after a number of stores of eight bytes, and a model of the values written. Values are numbers
//! that only grow, so the contents of a block name the write that they are from. If the process
//! ends, the next life finds every answered write, and each unanswered write as a whole or not at
//! all, block by block. After a power loss, which destroys the cache, it finds every flushed write,
//! and every absorbed one where the owner keeps it.
//! Further faults: a failed write of the device, a failed flush (the device then loses everything
//! that no flush has covered), memory that contains garbage when it is given back, a changed byte
//! in the file, and a cache of another life.
//! Left out: the choice of lives (`outlives.rs`, `planted.rs`).

pub mod past;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use shoal_media::{
    BlockDevice, BlockGeometry, Clock, Completion, Lent, MediaError, PersistentMemory, Request, Result, WriteCache,
};
use shoal_sim::Random;
use shoal_writeback::{Cache, Lifetime, Owner, Policy, Rule, S_NS, Shape, WriteBack};

pub const BLOCK: u64 = 4096;
const BLOCKS: u64 = 96;
pub const OWNER: Owner = Owner { store: [1; 16], boot_id: [2; 16], device_bytes: BLOCKS * BLOCK };

/// The cache's memory. After `left` stores of eight bytes, no store reaches it any more.
pub struct Memory {
    pub bytes: Mutex<Vec<u8>>,
    pub left: AtomicU64,
}

impl Memory {
    fn is_cut(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

impl PersistentMemory for Memory {
    fn len(&self) -> u64 {
        self.bytes.lock().len() as u64
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes.lock()[at as usize..][..out.len()]);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let left = self.left.load(Ordering::Relaxed);
        let stores = (bytes.len() as u64).div_ceil(8).min(left);
        self.left.fetch_sub(stores, Ordering::Relaxed);
        let len = bytes.len().min(stores as usize * 8);
        self.bytes.lock()[at as usize..][..len].copy_from_slice(&bytes[..len]);
    }

    fn zero(&self, at: u64, len: u64) {
        self.write(at, &vec![0; len as usize]);
    }

    fn write_back(&self, _: u64, _: u64) {}

    fn fence(&self) {}

    fn discard(&self, at: u64, len: u64) {
        if !self.is_cut() {
            self.bytes.lock()[at as usize..][..len as usize].fill(0xdb);
        }
    }
}

#[derive(Default)]
struct Time(AtomicU64);

impl Clock for Time {
    fn now_ns(&self) -> i64 {
        self.0.load(Ordering::Relaxed).cast_signed()
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Contents {
    queue: Vec<(Request, Completion, Vec<u64>)>,
    /// The bytes of these writes stay where they are until they are carried out.
    lent: BTreeMap<u64, Lent>,
    /// It takes such writes.
    takes_lent: bool,
    now: Vec<u64>,
    durable: Vec<u64>,
    /// Requests are carried out at once.
    eager: bool,
    fails_next: bool,
    has_failed: bool,
    random: u64,
}

#[derive(Clone)]
struct Disk(Arc<Mutex<Contents>>, Arc<Memory>);

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let of = |block: &[u8]| u64::from_le_bytes(block[..8].try_into().unwrap());
    let whole = |block: &&[u8]| block.chunks_exact(8).all(|word| word == &block[..8]);
    bytes.chunks_exact(BLOCK as usize).map(|block| if whole(&block) { of(block) } else { u64::MAX }).collect()
}

fn contents(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| [number.to_le_bytes(); BLOCK as usize / 8].concat()).collect()
}

fn range_of(request: &Request) -> std::ops::Range<usize> {
    let (at, len) = request.range();
    (at / BLOCK) as usize..((at + len) / BLOCK) as usize
}

impl Disk {
    /// Fails the flushes under way. Data that no flush has covered revert to their earlier
    /// contents.
    fn fail_flush(&self) {
        let failed = {
            let mut disk = self.0.lock();
            let is_flush = |at: &usize| matches!(disk.queue[*at].0, Request::Flush);
            let flushes: Vec<usize> = (0..disk.queue.len()).rev().filter(is_flush).collect();
            flushes.into_iter().map(|at| disk.queue.swap_remove(at)).collect::<Vec<_>>()
        };
        for (_, done, _) in failed {
            done(Err(MediaError::io("disk", std::io::Error::other("the flush failed"))));
        }
        self.forget();
    }

    fn forget(&self) {
        let mut disk = self.0.lock();
        disk.now = disk.durable.clone();
    }

    /// Fails all queued requests. Nobody is left to be answered, but a thread that waits must go
    /// on.
    fn cut_off(&self) {
        let queue = std::mem::take(&mut self.0.lock().queue);
        self.0.lock().lent.clear();
        for (_, done, _) in queue {
            done(Err(MediaError::io("disk", std::io::Error::other("cut off"))));
        }
    }

    fn step(&self) -> bool {
        let mut disk = self.0.lock();
        if disk.queue.is_empty() || self.1.is_cut() {
            return false;
        }
        disk.random = disk.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let index = (disk.random >> 33) as usize % disk.queue.len();
        let (request, done, then) = disk.queue.swap_remove(index);
        let range = range_of(&request);
        let result = match request {
            Request::Read { .. } => Ok(contents(&disk.now[range])),
            Request::Write { at, .. } if std::mem::take(&mut disk.fails_next) => {
                disk.lent.remove(&at);
                disk.has_failed = true;
                Err(MediaError::io("disk", std::io::Error::other("worn out")))
            }
            Request::Write { at, mut buffer, .. } => {
                if let Some(lent) = disk.lent.remove(&at) {
                    lent.copy_to(&mut buffer);
                }
                disk.now[range].copy_from_slice(&numbers(&buffer));
                Ok(buffer)
            }
            Request::Trim { .. } | Request::WriteZeroes { .. } => Ok(vec![]),
            Request::Flush => {
                let durable = &mut disk.durable;
                durable.iter_mut().zip(then).for_each(|(durable, then)| *durable = then.max(*durable));
                Ok(vec![])
            }
        };
        drop(disk);
        done(result);
        true
    }
}

impl BlockDevice for Disk {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry { bytes: BLOCKS * BLOCK, block_bytes: 512, atomic_bytes: 512, survives_process: true }
    }

    fn takes_lent(&self) -> bool {
        self.0.lock().takes_lent
    }

    fn submit_lent(&self, at: u64, lent: Lent, done: Completion) {
        let buffer = vec![0; lent.len() as usize];
        let before = self.0.lock().lent.insert(at, lent);
        assert!(before.is_none(), "two writes at byte {at} are under way");
        self.submit(Request::Write { at, buffer, fua: false }, done);
    }

    fn submit(&self, request: Request, done: Completion) {
        let eager = {
            let mut disk = self.0.lock();
            let then = if matches!(request, Request::Flush) { disk.now.clone() } else { vec![] };
            disk.queue.push((request, done, then));
            disk.eager
        };
        while eager && self.step() {}
    }
}

type Answers = Arc<Mutex<BTreeMap<u64, Result<Vec<u8>>>>>;

/// Knowledge of the world's users, kept from life to life.
struct Known {
    /// The value of each block; `None` if it was trimmed.
    values: Vec<Option<u64>>,
    /// The minimum value after a power loss.
    promised: Vec<u64>,
    /// What the owner keeps of blocks that it absorbed, and would put back after a power loss.
    kept: BTreeMap<usize, u64>,
    number: u64,
}

struct World {
    random: Random,
    time: Arc<Time>,
    memory: Arc<Memory>,
    disk: Disk,
    filter: WriteBack,
    known: Known,
    pending: BTreeMap<u64, (Request, Vec<Option<u64>>)>,
    answers: Answers,
    /// A flush of the device has failed, so no later write counts.
    given_up: bool,
}

fn rules() -> [Rule; 4] {
    let shape = Shape { blocks_per_tick_max: 2, tick_ns: S_NS, queue_depth_max: 2, age_max_ns: 20 * S_NS };
    [
        Rule::of(Policy::aipu(5 * S_NS)),
        Rule::of(Policy::WriteThrough),
        Rule::shaped(Policy::aipu(2 * S_NS), shape),
        Rule::of(Policy::Idle { age_ns: 9 * S_NS }),
    ]
}

pub fn memory(bytes: Vec<u8>) -> Arc<Memory> {
    Arc::new(Memory { bytes: Mutex::new(bytes), left: AtomicU64::new(u64::MAX) })
}

impl World {
    fn new(seed: u64) -> World {
        let memory = memory(vec![0; Cache::memory_bytes(1 << 20) as usize]);
        let cache = Cache::create(memory.clone(), 1 << 20, &OWNER, [3; 16], Lifetime::Boot).unwrap();
        let blank = vec![0; BLOCKS as usize];
        let (now, durable, takes_lent) = (blank.clone(), blank.clone(), seed % 2 == 1);
        let disk = Contents { now, durable, random: seed, takes_lent, ..Contents::default() };
        let known = Known { values: vec![Some(0); BLOCKS as usize], promised: blank, kept: BTreeMap::new(), number: 0 };
        World::live(Random::new(seed), memory, cache, disk, known, Arc::default())
    }

    fn live(
        mut random: Random,
        memory: Arc<Memory>,
        cache: Cache,
        disk: Contents,
        known: Known,
        time: Arc<Time>,
    ) -> World {
        let disk = Disk(Arc::new(Mutex::new(disk)), memory.clone());
        let rule = rules()[random.below(4) as usize];
        let filter = WriteBack::new(Arc::new(disk.clone()), time.clone(), rule, cache);
        let (pending, answers) = (BTreeMap::new(), Answers::default());
        World { random, time, memory, disk, filter, known, pending, answers, given_up: false }
    }

    fn submit(&mut self, request: Request) {
        self.known.number += 1;
        let (number, answers, memory) = (self.known.number, self.answers.clone(), self.memory.clone());
        let twin = match &request {
            Request::Write { at, buffer, fua } => Request::Write { at: *at, buffer: buffer.clone(), fua: *fua },
            Request::Trim { at, len } => {
                self.forget(range_of(&request));
                Request::Trim { at: *at, len: *len }
            }
            Request::Read { at, buffer } => Request::Read { at: *at, buffer: buffer.clone() },
            _ => Request::Flush,
        };
        self.pending.insert(number, (twin, self.known.values.clone()));
        let answer = move |result| {
            if !memory.is_cut() {
                answers.lock().insert(number, result);
            }
        };
        self.filter.submit(request, Box::new(answer));
    }

    fn forget(&mut self, range: std::ops::Range<usize>) {
        self.known.values[range.clone()].fill(None);
        self.known.promised[range.clone()].fill(0);
        self.known.kept.retain(|block, _| !range.contains(block));
        for (_, then) in self.pending.values_mut() {
            then.iter_mut().zip(&self.known.values).for_each(|(then, now)| *then = then.filter(|_| now.is_some()));
        }
    }

    fn promise(&mut self, then: &[Option<u64>], range: std::ops::Range<usize>) {
        for block in range {
            let value = then[block].filter(|_| self.known.values[block].is_some()).unwrap_or(0);
            self.known.promised[block] = self.known.promised[block].max(value);
        }
    }

    /// Removes what flushes so far have released.
    fn release(&mut self) {
        for block in self.filter.take_released() {
            self.known.kept.remove(&(block as usize));
        }
    }

    /// Absorbs a range, if that takes no flush.
    fn absorb(&mut self) -> std::result::Result<(), String> {
        self.release();
        let range = self.random.below(BLOCKS)..BLOCKS;
        let (then, most) = (self.known.values.clone(), self.random.below(40) as usize);
        let Some(pages) = self.filter.to_absorb(&[(range.start * BLOCK, (range.end - range.start) * BLOCK)], most)
        else {
            return Ok(());
        };
        // Others go on until the owner's record has committed.
        for _ in 0..self.random.below(4) {
            self.disk.step();
        }
        for page in &pages {
            self.known.kept.insert(page.page as usize, numbers(&page.bytes[..])[0]);
        }
        let versions: Vec<(u64, u64)> = pages.iter().map(|page| (page.page, page.version)).collect();
        self.filter.absorbed(&versions);
        self.settle()?;
        self.promise(&then, range.start as usize..range.end as usize);
        Ok(())
    }

    fn settle(&mut self) -> std::result::Result<(), String> {
        // The owner tells nobody of a flush before it has removed what that released. Where the
        // process ended between the two, nobody was told.
        let is_told = !self.memory.is_cut();
        if is_told {
            self.release();
        }
        let answers = std::mem::take(&mut *self.answers.lock());
        for (number, result) in answers {
            let (request, then) = self.pending.remove(&number).expect("answered once");
            let range = range_of(&request);
            match (request, result) {
                (Request::Write { buffer, .. }, Ok(_)) if !self.given_up => {
                    for (block, value) in range.zip(numbers(&buffer)) {
                        self.known.values[block] = Some(value);
                    }
                }
                (Request::Read { .. }, Ok(buffer)) => {
                    for (block, found) in range.zip(numbers(&buffer)) {
                        if self.known.values[block].is_some_and(|value| value != found) {
                            return Err(format!("block {block} reads {found}, not {:?}", self.known.values[block]));
                        }
                    }
                }
                // The writer was told at once, and no longer knows what the blocks contain. The
                // same holds for a write that ends after a failed flush.
                (Request::Write { .. }, _) => {
                    self.disk.0.lock().has_failed = false;
                    self.forget(range);
                }
                (Request::Flush, Ok(_)) if is_told => self.promise(&then, 0..BLOCKS as usize),
                _ => {}
            }
        }
        let disk = self.disk.0.lock();
        for block in 0..BLOCKS as usize {
            let found = self.known.kept.get(&block).copied().unwrap_or(disk.durable[block]);
            let promised = self.known.promised[block];
            if found < promised && self.known.values[block].is_some() {
                return Err(format!("after a power loss block {block} has {found}, promised was {promised}"));
            }
        }
        Ok(())
    }

    /// Returns blocks that nothing under way touches.
    fn range(&mut self) -> Option<std::ops::Range<u64>> {
        let first = self.random.below(BLOCKS);
        let range = first..first + 1 + self.random.below((BLOCKS - first).min(9));
        let free = !self.pending.values().any(|(request, _)| {
            let other = range_of(request);
            (range.start as usize) < other.end && other.start < range.end as usize
        });
        free.then_some(range)
    }

    /// Fails a flush of the device, after which its owner asks which blocks are in doubt. All
    /// others are held, or were covered by an earlier flush.
    fn give_up(&mut self) {
        self.disk.fail_flush();
        self.filter.give_up();
        let in_doubt: Vec<u64> = (0..BLOCKS).filter(|block| self.filter.may_have_lost(block * BLOCK, BLOCK)).collect();
        in_doubt.into_iter().for_each(|block| self.forget(block as usize..block as usize + 1));
        self.given_up = true;
    }

    fn act(&mut self) -> std::result::Result<(), String> {
        match self.random.below(22) {
            // All changes are refused, so none is requested.
            0..8 | 11 | 12 if self.given_up => drop(self.disk.step()),
            16 if !self.given_up && self.random.below(50) == 0 => {
                self.settle()?;
                self.give_up();
            }
            0..8 => {
                if let Some(range) = self.range() {
                    let base = (self.known.number + 1) * 1000;
                    let values: Vec<u64> = range.clone().map(|block| base + block).collect();
                    let at = range.start * BLOCK;
                    self.submit(Request::Write { at, buffer: contents(&values), fua: false });
                }
            }
            8 | 9 => {
                if let Some(range) = self.range() {
                    let buffer = vec![0; ((range.end - range.start) * BLOCK) as usize];
                    self.submit(Request::Read { at: range.start * BLOCK, buffer });
                }
            }
            10 => self.submit(Request::Flush),
            11 => {
                let range = self.range().unwrap_or(0..BLOCKS);
                let then = self.known.values.clone();
                // A write elsewhere may fail when the flush has ended but the thread has not.
                let had_failed = self.disk.0.lock().has_failed;
                let (filter, at, len) = (&self.filter, range.start * BLOCK, (range.end - range.start) * BLOCK);
                let outcome = std::thread::scope(|scope| {
                    let flush = scope.spawn(|| filter.flush_ranges(&[(at, len)]));
                    while !flush.is_finished() {
                        if self.memory.is_cut() {
                            self.disk.cut_off();
                        } else {
                            self.disk.step();
                        }
                        std::thread::yield_now();
                    }
                    flush.join().unwrap()
                });
                if outcome.is_ok() && !self.memory.is_cut() {
                    self.settle()?;
                    if had_failed {
                        return Err("a flush after a failed write reports nothing".into());
                    }
                    self.settle()?;
                    self.promise(&then, range.start as usize..range.end as usize);
                }
            }
            12 if self.random.below(3) == 0 => {
                if let Some(range) = self.range() {
                    let len = (range.end - range.start) * BLOCK;
                    self.submit(Request::Trim { at: range.start * BLOCK, len });
                }
            }
            13 => {
                self.time.0.fetch_add(self.random.below(3 * S_NS), Ordering::Relaxed);
                self.filter.tick();
            }
            14 if self.random.below(8) == 0 => self.filter.set_rule(rules()[self.random.below(4) as usize]),
            16 if self.random.below(8) == 0 => {
                let most = self.filter.memory_bytes_max();
                self.filter.set_memory(most * self.random.below(2));
            }
            15 if self.random.below(40) == 0 => self.disk.0.lock().fails_next = true,
            17 | 18 if !self.memory.is_cut() => self.absorb()?,
            _ => drop(self.disk.step()),
        }
        self.settle()
    }

    /// Ends the process after `stores` more stores, or a number of steps.
    fn end(&mut self, stores: u64) -> std::result::Result<(), String> {
        self.memory.left.store(stores, Ordering::Relaxed);
        for _ in 0..150 {
            if self.memory.is_cut() {
                break;
            }
            self.act()?;
        }
        self.memory.left.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Begins the next life: of this store or, with `other`, of a store that the cache does not
    /// belong to.
    fn next(self, other: bool) -> std::result::Result<World, String> {
        let World { random, time, memory: before, disk, known, pending, given_up, .. } = self;
        if given_up {
            // No flush has covered anything that reached the device since, either.
            disk.forget();
        }
        let memory = memory(before.bytes.lock().clone());
        let contents_now = {
            let mut disk = disk.0.lock();
            Contents {
                queue: vec![],
                lent: BTreeMap::new(),
                fails_next: false,
                has_failed: false,
                eager: false,
                ..std::mem::take(&mut *disk)
            }
        };
        let cache = Cache::open(memory.clone(), &OWNER).map_err(|error| format!("the cache is not whole: {error}"))?;
        let on_disk = contents_now.now.clone();
        let mut world = World::live(random, memory, cache, contents_now, known, time);
        world.filter.adopt(!other);
        world.disk.0.lock().eager = true;
        let mut out = vec![0; (BLOCKS * BLOCK) as usize];
        world.filter.read_into(0, &mut out).unwrap();
        for (block, found) in numbers(&out).into_iter().enumerate() {
            let at = block as u64;
            let written = |request: &Request| match request {
                Request::Write { buffer, .. } if range_of(request).contains(&block) => {
                    Some(numbers(buffer)[block - range_of(request).start])
                }
                _ => None,
            };
            let mut allowed = pending.values().filter_map(|(request, _)| written(request));
            let value = world.known.values[block];
            let fits = value.is_none_or(|value| value == found) || allowed.any(|value| value == found);
            if other && found != on_disk[block] {
                return Err(format!("block {at} shows another life's {found}"));
            }
            if !other && !fits {
                return Err(format!("block {at} has {found} in the next life, {value:?} was written"));
            }
            world.known.values[block] = Some(found);
        }
        // Flushed data stay flushed, and everything found can be written.
        world.filter.submit(Request::Flush, Box::new(|result| drop(result.unwrap())));
        world.disk.0.lock().eager = false;
        if world.disk.0.lock().now != numbers(&out) || world.filter.held_bytes() > 0 {
            return Err("what was found was not written".into());
        }
        world.known.promised.clone_from(&world.disk.0.lock().durable);
        world.known.kept.clear();
        Ok(world)
    }
}

/// Writes blocks twice. The process ends at each store of the last writes, which make the new
/// contents count.
pub fn rewritten(cut: u64) -> std::result::Result<(), String> {
    let mut world = World::new(1);
    world.filter.set_rule(rules()[0]);
    for round in 0..2u64 {
        if round == 1 {
            world.memory.left.store(2 * BLOCK / 8 + cut, Ordering::Relaxed);
        }
        world.submit(Request::Write { at: 3 * BLOCK, buffer: contents(&[10 + round, 20 + round]), fua: false });
        world.settle()?;
    }
    world.memory.left.store(0, Ordering::Relaxed);
    world.next(false).map(drop)
}

pub fn lives(seed: u64) -> std::result::Result<(), String> {
    let mut world = World::new(seed);
    for _ in 0..4 {
        for _ in 0..world.random.below(150) {
            world.act()?;
        }
        let stores = [1 + world.random.below(40), 1 + world.random.below(9000)][world.random.below(2) as usize];
        world.end(stores)?;
        let bytes = world.memory.bytes.lock().clone();
        changed_byte(&world, &bytes)?;
        let other = world.random.below(6) == 0;
        world = world.next(other)?;
    }
    Ok(())
}

/// Checks that a changed byte of the file is noticed, or that nothing depends on it.
fn changed_byte(world: &World, bytes: &[u8]) -> std::result::Result<(), String> {
    let mut random = Random::new(world.known.number);
    let whole = found(bytes).map_err(|error| format!("the cache is not whole: {error}"))?;
    for _ in 0..6 {
        let mut bytes = bytes.to_vec();
        // Choose from the header, the table, the entries and the first slots, where most of the
        // data is.
        let at = random.below(8192 + 12288 + 8 * 4096) as usize;
        bytes[at] = [0, 0xff, bytes[at] ^ 1 << random.below(8)][random.below(3) as usize];
        if found(&bytes).is_ok_and(|found| found != whole) {
            return Err(format!("a changed byte at {at} is believed"));
        }
    }
    Ok(())
}

/// Returns the contents of a device of zeros behind this cache.
fn found(bytes: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let memory = memory(bytes.to_vec());
    let cache = Cache::open(memory.clone(), &OWNER).map_err(|error| error.to_string())?;
    let blank = vec![0; BLOCKS as usize];
    let disk = Contents { now: blank.clone(), durable: blank, eager: true, ..Contents::default() };
    let disk = Disk(Arc::new(Mutex::new(disk)), memory);
    let filter = WriteBack::new(Arc::new(disk), Arc::new(Time::default()), Rule::default(), cache);
    filter.adopt(true);
    let mut out = vec![0; (BLOCKS * BLOCK) as usize];
    filter.read_into(0, &mut out).map_err(|error| error.to_string())?;
    Ok(out)
}
