//! Real threads on the filter, over a slow device, life after life.
//!
//! Each writer has blocks of its own, and knows the number that it last wrote to each. Some lines
//! of a writer lie 65,536 apart, and some lines belong to all writers. Readers look at any block,
//! the rule changes, and memory is refused now and then, taken ahead and given back. A life ends at
//! any store of any thread: from then on neither the memory nor the device takes anything, and no
//! answer counts. Rules:
//! - A read finds the data of writes answered before it began, or something newer, whether memory
//!   or the device has it.
//! - After a flush the device has the data of all writes answered before it. No two writes of a
//!   block are under way at the device.
//! - The next life finds the data of all writes that the last one answered. Of a write under way it
//!   finds the old or the new data, block by block.
//! - Every request is answered in the end.
//!
//! Left out: power losses and failures of the device (`filter.rs`, `lives`). A longer run: `SHOAL_THREADS_S=300`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use shoal_media::{
    BlockDevice, BlockGeometry, Clock, Completion, Lent, MediaError, PersistentMemory, Request, Result, WriteCache,
    block,
};
use shoal_sim::Random;
use shoal_writeback::{Cache, Lifetime, Owner, Policy, Rule, S_NS, Shape, WriteBack};

const BLOCK: u64 = 4096;
const LINE: u64 = 16;
/// Lines this far apart are counted together.
const APART: u64 = 65_536;
const WRITERS: u64 = 3;
const READERS: u64 = 2;
const OWNER: Owner = Owner { store: [1; 16], boot_id: [2; 16], device_bytes: 4 * APART * LINE * BLOCK };
/// Speed-up of the filter's time: one of its seconds is a few milliseconds of real time.
const HASTE: u64 = 200;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// Flag in the least number that a read must find: the block was zeroed after that.
const ZEROED: u64 = 1 << 63;

/// The end of a life, which every store and every answer checks first.
#[derive(Default)]
struct End(AtomicBool);

impl End {
    fn is_over(&self) -> bool {
        self.0.load(SeqCst)
    }
}

fn over() -> MediaError {
    MediaError::io("device", std::io::Error::other("the life is over"))
}

struct Memory {
    words: Arc<[AtomicU64]>,
    end: Arc<End>,
    random: Mutex<Random>,
    refused_percent: AtomicU64,
}

impl Memory {
    fn store(&self, at: u64, words: impl Iterator<Item = u64>) {
        for (place, word) in self.words[(at / 8) as usize..].iter().zip(words) {
            if self.end.is_over() {
                return;
            }
            place.store(word, std::sync::atomic::Ordering::Release);
        }
    }
}

impl PersistentMemory for Memory {
    fn len(&self) -> u64 {
        self.words.len() as u64 * 8
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        for (out, word) in out.chunks_mut(8).zip(&self.words[(at / 8) as usize..]) {
            out.copy_from_slice(&word.load(std::sync::atomic::Ordering::Acquire).to_le_bytes()[..out.len()]);
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at.is_multiple_of(8) && bytes.len().is_multiple_of(8), "{at}, {} bytes", bytes.len());
        self.store(at, bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())));
    }

    fn zero(&self, at: u64, len: u64) {
        self.store(at, (0..len / 8).map(|_| 0));
    }

    fn write_back(&self, _: u64, _: u64) {}

    fn fence(&self) {}

    fn discard(&self, at: u64, len: u64) {
        self.store(at, (0..len / 8).map(|_| 0xdbdb_dbdb_dbdb_dbdb));
    }

    fn reserve(&self, at: u64, _: u64) -> Result<bool> {
        match at > 0 && self.random.lock().below(100) < self.refused_percent.load(SeqCst) {
            true => Err(MediaError::NoSpace { what: "tmpfs".into() }),
            false => Ok(true),
        }
    }
}

struct Time(Instant);

impl Clock for Time {
    fn now_ns(&self) -> i64 {
        self.monotonic_ns().cast_signed()
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64 * HASTE
    }
}

/// A block of the device, and its owner's knowledge of it.
#[derive(Default)]
struct Place {
    /// The number that the device has.
    number: AtomicU64,
    /// Writes of the block under way at the device.
    under_way: AtomicU64,
    /// The number that was written last, answered or not; the least number that a read must find;
    /// and how often the block was trimmed or zeroed.
    begun: AtomicU64,
    least: AtomicU64,
    cleared: AtomicU64,
}

impl Place {
    /// Returns the least number that must be found from now on, and the state of the block for
    /// which that holds. While the owner clears the block, nothing is promised: until the owner has
    /// recorded the change, `least` is the number written before.
    fn promise(&self) -> (u64, u64) {
        let cleared = self.cleared.load(SeqCst);
        let least = if cleared.is_multiple_of(2) { self.least.load(SeqCst) } else { 0 };
        (least, cleared)
    }

    /// Returns whether this number, found after the promise, breaks it.
    fn breaks(&self, promise: (u64, u64), found: u64) -> bool {
        let least = promise.0 & !ZEROED;
        let is_old = if promise.0 & ZEROED > 0 { found > 0 && found <= least } else { found < least };
        (is_old || found > self.begun.load(SeqCst)) && self.cleared.load(SeqCst) == promise.1
    }
}

type Places = Arc<HashMap<u64, Place>>;

/// The number that fills a block.
fn number_of(block: &[u8]) -> u64 {
    assert!(block.chunks_exact(8).all(|word| word == &block[..8]), "a block is torn: {:?} ...", &block[..16]);
    u64::from_le_bytes(block[..8].try_into().unwrap())
}

fn contents(number: u64, blocks: u64) -> Vec<u8> {
    number.to_le_bytes().repeat((blocks * BLOCK / 8) as usize)
}

struct Disk {
    places: Places,
    end: Arc<End>,
    queue: Mutex<Vec<(Request, Option<Lent>, Completion)>>,
    takes_lent: bool,
    came: Condvar,
    random: Mutex<Random>,
    /// Maximum duration of a request (µs).
    slow_us: u64,
    closed: AtomicBool,
}

impl Disk {
    fn takes_its_time(&self) {
        let us = {
            let mut random = self.random.lock();
            if random.below(3) == 0 { random.below(self.slow_us + 1) } else { 0 }
        };
        match us {
            0 => {}
            1..20 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(us)),
        }
    }

    fn places(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, &Place)> {
        (at / BLOCK..(at + len) / BLOCK).map(|block| (block, &self.places[&block]))
    }

    fn write_begins(&self, at: u64, len: u64) {
        for (block, place) in self.places(at, len) {
            assert_eq!(place.under_way.fetch_add(1, SeqCst), 0, "two writes of block {block} are under way");
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.takes_its_time();
        for ((_, place), bytes) in self.places(at, bytes.len() as u64).zip(bytes.chunks_exact(BLOCK as usize)) {
            let number = if self.end.is_over() { return Err(over()) } else { number_of(bytes) };
            place.number.store(number, SeqCst);
        }
        self.takes_its_time();
        Ok(())
    }

    fn write_ends(&self, at: u64, len: u64) {
        self.places(at, len).for_each(|(_, place)| _ = place.under_way.fetch_sub(1, SeqCst));
    }

    fn carry_out(&self, request: Request, lent: Option<Lent>, done: Completion) {
        let (at, len) = request.range();
        let result = match request {
            Request::Read { mut buffer, .. } => self.read_into(at, &mut buffer).map(|()| buffer),
            Request::Write { mut buffer, .. } => {
                if let Some(lent) = lent {
                    self.takes_its_time();
                    lent.copy_to(&mut buffer);
                }
                let written = self.write(at, &buffer);
                self.write_ends(at, len);
                written.map(|()| buffer)
            }
            Request::WriteZeroes { .. } | Request::Trim { .. } => {
                let keeps = matches!(request, Request::Trim { .. }) && self.random.lock().below(2) == 0;
                self.takes_its_time();
                for (_, place) in self.places(at, len).filter(|_| !keeps && !self.end.is_over()) {
                    place.number.store(0, SeqCst);
                }
                Ok(vec![])
            }
            Request::Flush => Ok(vec![]),
        };
        done(if self.end.is_over() { Err(over()) } else { result });
    }

    /// Carries requests out, in any order, until it is closed.
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            if queue.is_empty() {
                if self.closed.load(SeqCst) {
                    return;
                }
                self.came.wait_for(&mut queue, Duration::from_millis(1));
                continue;
            }
            let index = self.random.lock().below(queue.len() as u64) as usize;
            let (request, lent, done) = queue.swap_remove(index);
            parking_lot::MutexGuard::unlocked(&mut queue, || self.carry_out(request, lent, done));
        }
    }
}

impl BlockDevice for Disk {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry { bytes: OWNER.device_bytes, block_bytes: 4096, atomic_bytes: 4096, survives_process: true }
    }

    fn takes_lent(&self) -> bool {
        self.takes_lent
    }

    fn submit_lent(&self, at: u64, lent: Lent, done: Completion) {
        let buffer = vec![0; lent.len() as usize];
        self.write_begins(at, lent.len());
        self.queue.lock().push((Request::Write { at, buffer, fua: false }, Some(lent), done));
        self.came.notify_one();
    }

    fn submit(&self, request: Request, done: Completion) {
        if let Request::Write { at, buffer, .. } = &request {
            self.write_begins(*at, buffer.len() as u64);
        }
        self.queue.lock().push((request, None, done));
        self.came.notify_one();
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.takes_its_time();
        for ((_, place), out) in self.places(at, out.len() as u64).zip(out.chunks_exact_mut(BLOCK as usize)) {
            out.copy_from_slice(&contents(place.number.load(SeqCst), 1));
        }
        self.takes_its_time();
        Ok(())
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.write_begins(at, bytes.len() as u64);
        let written = self.write(at, bytes);
        self.write_ends(at, bytes.len() as u64);
        written
    }
}

/// Returns stretches of blocks, each with its writer.
fn stretches() -> Vec<(u64, u64, u64)> {
    // Each writer has some blocks of these lines.
    let shared = [0, APART, 2 * APART].into_iter().flat_map(|line| line * LINE..(line + 1) * LINE);
    let mut all: Vec<_> = shared.map(|block| (block, 1, block % WRITERS)).collect();
    for writer in 0..WRITERS {
        all.extend([0, APART].map(|apart| ((apart + 8 * (writer + 1)) * LINE, 4 * LINE, writer)));
    }
    all
}

fn rule(random: &mut Random) -> Rule {
    let shape = Shape { blocks_per_tick_max: 3, tick_ns: S_NS / 10, queue_depth_max: 2, age_max_ns: 2 * S_NS };
    let rules = [
        Rule::of(Policy::WriteThrough),
        Rule::of(Policy::aipu(30 * S_NS)),
        Rule::of(Policy::Interval { age_ns: S_NS / 20 }),
        Rule::of(Policy::Interval { age_ns: S_NS / 5 }),
        Rule::of(Policy::PeriodicReadPriority { interval_ns: S_NS / 2, age_max_ns: 3 * S_NS }),
        Rule::shaped(Policy::Interval { age_ns: S_NS / 10 }, shape),
        Rule::of(Policy::Idle { age_ns: 2 * S_NS }),
    ];
    rules[random.below(rules.len() as u64) as usize]
}

/// State shared by all threads of a life.
struct Life {
    filter: WriteBack,
    places: Places,
    end: Arc<End>,
    /// Writers rest.
    is_quiet: AtomicBool,
    is_giving: AtomicBool,
    /// Set when the filter's bell rings.
    rung: Arc<(Mutex<bool>, Condvar)>,
}

impl Life {
    /// Compares a read with the promises from before it began. Returns false if the life was over
    /// before the read ended, so that it may show anything.
    fn look(&self, first: u64, blocks: u64, is_lent: bool) -> bool {
        let promised: Vec<_> = (first..first + blocks).map(|block| self.places[&block].promise()).collect();
        let mut bytes = contents(u64::MAX, blocks);
        let read = match is_lent {
            true => self.filter.read_into(first * BLOCK, &mut bytes),
            false => block::wait(&self.filter, Request::Read { at: first * BLOCK, buffer: bytes.clone() })
                .map(|read| bytes.copy_from_slice(&read)),
        };
        if self.end.is_over() {
            return false;
        }
        read.expect("a read");
        for ((block, promise), bytes) in (first..).zip(promised).zip(bytes.chunks_exact(BLOCK as usize)) {
            let (place, found) = (&self.places[&block], number_of(bytes));
            assert!(
                !place.breaks(promise, found),
                "a read of block {block} found {found}, promised was {:x?}, the device has {:?}",
                promise,
                place.number
            );
        }
        true
    }

    fn write(&self, writer: u64, random: &mut Random, numbers: &AtomicU64) {
        let own: Vec<_> = stretches().into_iter().filter(|stretch| stretch.2 == writer).collect();
        let (mut first, most, _) = own[random.below(own.len() as u64) as usize];
        let blocks = if random.below(4) == 0 { most } else { 1 + random.below(most.min(6)) };
        first += random.below(most - blocks + 1);
        let (at, len) = (first * BLOCK, blocks * BLOCK);
        let places = || (first..first + blocks).map(|block| &self.places[&block]);
        let kind = random.below(20);
        if kind < 2 {
            places().for_each(|place| _ = place.cleared.fetch_add(1, SeqCst));
            places().for_each(|place| place.least.store(0, SeqCst));
            let cleared = match kind {
                0 => block::trim(&self.filter, at, len),
                _ => block::write_zeroes(&self.filter, at, len),
            };
            if !self.end.is_over() {
                cleared.expect("a trim or zeroing");
                let last = if kind == 0 { 0 } else { numbers.load(SeqCst) | ZEROED };
                places().for_each(|place| place.least.store(last, SeqCst));
                places().for_each(|place| _ = place.cleared.fetch_add(1, SeqCst));
            }
            return;
        }
        let number = numbers.fetch_add(1, SeqCst) + 1;
        places().for_each(|place| place.begun.store(number, SeqCst));
        let bytes = contents(number, blocks);
        let written = match kind {
            2 => block::wait(&self.filter, Request::Write { at, buffer: bytes, fua: true }).map(drop),
            3..6 => block::wait(&self.filter, Request::Write { at, buffer: bytes, fua: false }).map(drop),
            _ => self.filter.write_from(at, &bytes),
        };
        // No answer after the end counts.
        if self.end.is_over() {
            return;
        }
        written.expect("a write");
        places().for_each(|place| place.least.store(number, SeqCst));
        if random.below(4) == 0 {
            self.look(first, blocks, true);
        }
    }

    /// Flushes, and checks that the device then has the data of all writes answered before.
    fn flush(&self, range: Option<(u64, u64)>) {
        let (first, blocks) = range.unwrap_or((0, u64::MAX));
        let covered = self.places.iter().filter(|(block, _)| (first..).contains(block) && *block - first < blocks);
        let promised: Vec<_> = covered.map(|(block, place)| (block, place, place.promise())).collect();
        let flushed = match range {
            Some((first, blocks)) => self.filter.flush_ranges(&[(first * BLOCK, blocks * BLOCK)]),
            None => block::flush(&self.filter),
        };
        let found: Vec<_> = promised.iter().map(|(_, place, _)| place.number.load(SeqCst)).collect();
        if self.end.is_over() {
            return;
        }
        flushed.expect("a flush");
        for ((block, place, promise), found) in promised.into_iter().zip(found) {
            assert!(!place.breaks(promise, found), "block {block} is {found} after a flush, promised was {promise:x?}");
        }
    }

    /// Rests until memory is given back. Sometimes writers start again meanwhile.
    fn rest(&self, random: &mut Random) {
        self.is_quiet.store(true, SeqCst);
        self.flush(None);
        let begun = Instant::now();
        while !self.is_giving.load(SeqCst) && begun.elapsed() < Duration::from_millis(30) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(random.below(1500)));
        if random.below(2) == 0 {
            self.is_quiet.store(false, SeqCst);
            std::thread::sleep(Duration::from_micros(random.below(3000)));
        }
    }

    /// Drives the filter, as its owner does.
    fn tick(&self, period: Duration) {
        while self.filter.tick() {
            self.is_giving.store(true, SeqCst);
            std::thread::sleep(Duration::from_micros(50));
        }
        self.is_giving.store(false, SeqCst);
        let mut rung = self.rung.0.lock();
        if !std::mem::take(&mut *rung) {
            self.rung.1.wait_for(&mut rung, period);
            *rung = false;
        }
    }
}

/// State that is kept from life to life.
struct World {
    groups: u64,
    words: Arc<[AtomicU64]>,
    places: Places,
    /// The last number of each writer.
    numbers: Arc<[AtomicU64]>,
}

impl World {
    fn new(groups: u64) -> World {
        let zeros = |count: u64| (0..count).map(|_| AtomicU64::new(0)).collect();
        let blocks = stretches().into_iter().flat_map(|(first, blocks, _)| first..first + blocks);
        let places = Arc::new(blocks.map(|block| (block, Place::default())).collect());
        World { groups, words: zeros(Cache::memory_bytes(groups << 20) / 8), places, numbers: zeros(WRITERS) }
    }

    /// Makes the filter and its device at the beginning of a life.
    fn begin(&self, random: &mut Random, is_first: bool) -> (Arc<Life>, Arc<Disk>) {
        let end = Arc::new(End::default());
        let memory = Arc::new(Memory {
            words: self.words.clone(),
            end: end.clone(),
            random: Mutex::new(Random::new(random.below(1 << 32))),
            refused_percent: AtomicU64::new(0),
        });
        let disk = Arc::new(Disk {
            places: self.places.clone(),
            end: end.clone(),
            queue: Mutex::default(),
            takes_lent: random.below(2) == 0,
            came: Condvar::new(),
            random: Mutex::new(Random::new(random.below(1 << 32))),
            slow_us: [0, 50, 400][random.below(3) as usize],
            closed: AtomicBool::new(false),
        });
        let cache = match is_first {
            true => Cache::create(memory.clone(), self.groups << 20, &OWNER, [3; 16], Lifetime::Boot).expect("memory"),
            false => Cache::open(memory.clone(), &OWNER).expect("the cache as the last life left it"),
        };
        // Memory that exists already is not refused.
        memory.refused_percent.store([0, 0, 30, 100][random.below(4) as usize], SeqCst);
        let filter = WriteBack::new(disk.clone(), Arc::new(Time(Instant::now())), rule(random), cache);
        let rung = Arc::<(Mutex<bool>, Condvar)>::default();
        if random.below(3) > 0 {
            let bell = rung.clone();
            filter.set_bell(Arc::new(move || {
                *bell.0.lock() = true;
                bell.1.notify_all();
            }));
        }
        filter.adopt(true);
        let flags = || AtomicBool::new(false);
        let life = Life { filter, places: self.places.clone(), end, is_quiet: flags(), is_giving: flags(), rung };
        (Arc::new(life), disk)
    }

    /// Checks that the data of all writes answered in the last life are there, and records that
    /// they never become older.
    fn inherit(&self, life: &Life) {
        for (&block, place) in self.places.iter() {
            assert!(life.look(block, 1, true));
            let (least, cleared) = place.promise();
            if cleared % 2 == 1 {
                place.cleared.fetch_add(1, SeqCst);
            } else if least > 0 {
                let mut bytes = contents(0, 1);
                life.filter.read_into(block * BLOCK, &mut bytes).expect("a read");
                place.least.store(if number_of(&bytes) > 0 { number_of(&bytes) } else { least }, SeqCst);
            }
        }
    }

    fn start_workers(&self, life: &Arc<Life>, seed: u64) -> Vec<JoinHandle<()>> {
        let mut workers = Vec::new();
        for writer in 0..WRITERS {
            let numbers = self.numbers.clone();
            let act = move |life: &Life, random: &mut Random| match life.is_quiet.load(SeqCst) {
                true => std::thread::sleep(Duration::from_micros(100)),
                false => life.write(writer, random, &numbers[writer as usize]),
            };
            workers.push(repeat(life, "writer", seed + writer, act));
        }
        let all = Arc::new(stretches());
        for reader in 0..READERS {
            let all = all.clone();
            let act = move |life: &Life, random: &mut Random| {
                let (first, blocks, _) = all[random.below(all.len() as u64) as usize];
                let from = random.below(blocks);
                let blocks = if blocks == 1 { LINE - first % LINE } else { blocks - from };
                life.look(first + from, 1 + random.below(blocks), random.below(2) == 0);
            };
            workers.push(repeat(life, "reader", seed + WRITERS + reader, act));
        }
        let act = move |life: &Life, random: &mut Random| {
            std::thread::sleep(Duration::from_micros(random.below(3000)));
            let (first, blocks, _) = all[random.below(all.len() as u64) as usize];
            match random.below(4) {
                0 => life.filter.set_rule(rule(random)),
                1 => life.flush(None),
                2 => life.flush(Some((first, blocks))),
                _ => _ = (life.filter.report(), life.filter.next_ns(), life.filter.held_in(first * BLOCK, BLOCK)),
            }
        };
        workers.push(repeat(life, "rules", seed + WRITERS + READERS, act));
        workers
    }

    /// Runs one life. Unless `is_first`, it continues the life before it.
    fn live(&self, seed: u64, is_first: bool) {
        let mut random = Random::new(seed);
        let (life, disk) = self.begin(&mut random, is_first);
        let work = || disk.clone();
        let devices = [work(), work()].map(|disk| start("device", move || disk.work())).into();
        self.inherit(&life);
        let period = Duration::from_micros([20, 500, 3000][random.below(3) as usize]);
        let (ticked, driven) = (life.clone(), Arc::new(AtomicBool::new(true)));
        let drives = driven.clone();
        let ticker = start("ticker", move || {
            while drives.load(SeqCst) {
                ticked.tick(period);
            }
        });
        let workers = self.start_workers(&life, seed * 100);
        std::thread::sleep(Duration::from_micros(2000 + random.below(40_000)));
        if random.below(2) == 0 {
            life.rest(&mut random);
        }
        life.end.0.store(true, SeqCst);
        finish(workers, "a request is never answered");
        // Stop the device last: the ticker may have sent it something.
        driven.store(false, SeqCst);
        finish(vec![ticker], "the ticker never ends");
        disk.closed.store(true, SeqCst);
        finish(devices, "the device never ends");
        assert!(self.places.values().all(|place| place.under_way.load(SeqCst) == 0), "a write never ended");
    }
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.into()).spawn(work).expect("a thread")
}

/// Does something again and again, until the end of the life.
fn repeat(
    life: &Arc<Life>,
    name: &str,
    seed: u64,
    mut act: impl FnMut(&Life, &mut Random) + Send + 'static,
) -> JoinHandle<()> {
    let (life, mut random) = (life.clone(), Random::new(seed));
    start(name, move || {
        while !life.end.is_over() {
            act(&life, &mut random);
        }
    })
}

fn finish(threads: Vec<JoinHandle<()>>, hangs: &str) {
    let begun = Instant::now();
    for thread in threads {
        while !thread.is_finished() {
            assert!(begun.elapsed() < PATIENCE, "{hangs}: {:?}", thread.thread().name());
            std::thread::sleep(Duration::from_micros(100));
        }
        assert!(thread.join().is_ok(), "see above");
    }
}

#[test]
fn threads_see_what_was_answered_before_life_after_life() {
    let seconds = std::env::var("SHOAL_THREADS_S").ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let (begun, mut lives) = (Instant::now(), 0);
    // Threads make each run different, whatever the seed.
    let mut seed = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    while begun.elapsed() < Duration::from_secs(seconds) {
        seed += 1;
        let world = World::new(1 + seed % 3);
        for life in 0..10 {
            world.live(seed * 16 + life, life == 0);
            lives += 1;
        }
    }
    println!("{lives} lives, {:?}", begun.elapsed());
}
