//! The filter in front of a device that completes requests in any order, against an array of the values written last.
//!
//! The device carries out one queued request at a time, chosen at random, and remembers the data
//! that certainly survive a power loss: the writes that had completed when the last completed flush
//! was submitted. Requests never overlap a change that is under way, so each read has one right
//! answer. Values are numbered, so the contents of a block name the write that they are from.

mod memory;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shoal_media::PersistentMemory;
use shoal_media::{BlockDevice, BlockGeometry, Clock, Completion, MediaError, Request, Result, WriteCache};
use shoal_sim::{Random, SimMemory};
use shoal_writeback::{Cache, Lifetime, Owner, Policy, Rule, S_NS, Shape, WriteBack};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 320;

/// Memory that the host may refuse, and is slow to take back.
struct Scarce(Arc<SimMemory>, Mutex<(Random, u64)>, Arc<Taking>);

/// A host that takes memory back or gives it. While it is slow, a call waits until `let_go` is set,
/// or for `PATIENCE`.
#[derive(Default)]
struct Taking {
    is_slow: AtomicBool,
    begun: AtomicBool,
    let_go: AtomicBool,
    /// Bytes of each call.
    taken: Mutex<Vec<u64>>,
    /// The host is slow to give memory, too.
    gives_slowly: AtomicBool,
}

/// Longer than any wait here takes, and shorter than a test may run.
const PATIENCE: Duration = Duration::from_secs(5);

impl Taking {
    fn take(&self, len: u64) {
        self.taken.lock().push(len);
        self.wait();
    }

    fn wait(&self) {
        self.begun.store(true, Ordering::SeqCst);
        let begun = Instant::now();
        while self.is_slow.load(Ordering::SeqCst) && !self.let_go.load(Ordering::SeqCst) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl PersistentMemory for Scarce {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.0.read(at, out);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write(at, bytes);
    }

    fn zero(&self, at: u64, len: u64) {
        self.0.zero(at, len);
    }

    fn write_back(&self, _: u64, _: u64) {}

    fn fence(&self) {}

    fn discard(&self, _: u64, len: u64) {
        self.2.take(len);
    }

    fn reserve(&self, at: u64, _: u64) -> Result<bool> {
        if self.2.gives_slowly.load(Ordering::SeqCst) {
            self.2.wait();
        }
        let (random, percent) = &mut *self.1.lock();
        match at > 0 && random.below(100) < *percent {
            true => Err(MediaError::NoSpace { what: "tmpfs".into() }),
            false => Ok(true),
        }
    }
}

/// Makes a cache of `groups` groups of 256 blocks. The host refuses memory in `refused_percent` of
/// all cases.
fn cache(groups: u64, seed: u64, refused_percent: u64) -> Cache {
    cache_on(groups, seed, refused_percent, Arc::default())
}

fn cache_on(groups: u64, seed: u64, refused_percent: u64, taking: Arc<Taking>) -> Cache {
    let memory = SimMemory::volatile(Cache::memory_bytes(groups << 20), None);
    let memory = Arc::new(Scarce(memory, Mutex::new((Random::new(seed), refused_percent)), taking));
    let owner = Owner { store: [1; 16], boot_id: [2; 16], device_bytes: BLOCKS * BLOCK };
    Cache::create(memory, groups << 20, &owner, [3; 16], Lifetime::Process).unwrap()
}

#[derive(Default)]
struct Time(AtomicU64);

impl Clock for Time {
    fn now_ns(&self) -> i64 {
        0
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

struct Disk {
    queue: Vec<(Request, Completion, u64, Vec<u64>)>,
    submitted: u64,
    now: Vec<u64>,
    durable: Vec<u64>,
    /// The flush that made each block durable.
    durable_at: Vec<u64>,
    writes: u64,
    fails: bool,
}

impl Disk {
    fn keep(&mut self, first: usize, values: &[u64], submitted: u64) {
        for (block, &value) in (first..).zip(values) {
            if submitted > self.durable_at[block] {
                (self.durable[block], self.durable_at[block]) = (value, submitted);
            }
        }
    }
}

/// The device under the filter.
#[derive(Clone)]
struct Slow(Arc<Mutex<Disk>>);

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(BLOCK as usize).map(|block| u64::from_le_bytes(block[..8].try_into().unwrap())).collect()
}

fn contents(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| [number.to_le_bytes(); BLOCK as usize / 8].concat()).collect()
}

impl Slow {
    fn new() -> Slow {
        let blank = vec![0; BLOCKS as usize];
        let (now, durable) = (blank.clone(), blank);
        let disk = Disk {
            queue: vec![],
            submitted: 0,
            now,
            durable,
            durable_at: vec![0; BLOCKS as usize],
            writes: 0,
            fails: false,
        };
        Slow(Arc::new(Mutex::new(disk)))
    }

    /// Carries out one request. Returns false if there is none.
    fn step(&self, random: &mut Random) -> bool {
        let mut disk = self.0.lock();
        if disk.queue.is_empty() {
            return false;
        }
        let index = random.below(disk.queue.len() as u64) as usize;
        let (request, done, submitted, then) = disk.queue.swap_remove(index);
        let (at, len) = request.range();
        let range = (at / BLOCK) as usize..((at + len) / BLOCK) as usize;
        let result = match request {
            Request::Read { .. } => Ok(contents(&disk.now[range])),
            Request::Write { buffer, fua, .. } => {
                disk.writes += 1;
                if disk.fails {
                    Err(MediaError::io("disk", std::io::Error::other("worn out")))
                } else {
                    disk.now[range.clone()].copy_from_slice(&numbers(&buffer));
                    if fua {
                        disk.submitted += 1;
                        let submitted = disk.submitted;
                        disk.keep(range.start, &numbers(&buffer), submitted);
                    }
                    Ok(buffer)
                }
            }
            Request::Trim { .. } | Request::WriteZeroes { .. } => {
                disk.now[range].fill(0);
                Ok(vec![])
            }
            Request::Flush => {
                // Keep the contents at submission, unless a later flush has kept newer ones.
                disk.keep(0, &then, submitted);
                Ok(vec![])
            }
        };
        drop(disk);
        done(result);
        true
    }
}

impl BlockDevice for Slow {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry {
            bytes: BLOCKS * BLOCK,
            block_bytes: BLOCK as u32,
            atomic_bytes: BLOCK as u32,
            survives_process: true,
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        let mut disk = self.0.lock();
        let then = if matches!(request, Request::Flush) { disk.now.clone() } else { vec![] };
        disk.submitted += 1;
        let submitted = disk.submitted;
        disk.queue.push((request, done, submitted, then));
    }
}

type Answers = Arc<Mutex<BTreeMap<u64, Result<Vec<u8>>>>>;

struct World {
    random: Random,
    time: Arc<Time>,
    disk: Slow,
    filter: WriteBack,
    /// The value that a read of each block must return.
    model: Vec<u64>,
    /// The oldest value that each block may have after a power loss.
    promised: Vec<u64>,
    /// The last trim or zeroing of each block.
    cleared: Vec<u64>,
    /// Requests under way. A flush comes with the model at the time it was submitted.
    pending: BTreeMap<u64, (Request, Vec<u64>)>,
    answers: Answers,
    number: u64,
}

fn rules() -> [Rule; 7] {
    let shape = Shape { blocks_per_tick_max: 3, tick_ns: S_NS, queue_depth_max: 2, age_max_ns: 20 * S_NS };
    [
        Rule::of(Policy::WriteThrough),
        Rule::of(Policy::aipu(5 * S_NS)),
        Rule::of(Policy::Periodic { interval_ns: 7 * S_NS }),
        Rule::of(Policy::PeriodicReadPriority { interval_ns: 4 * S_NS, age_max_ns: 30 * S_NS }),
        Rule::shaped(Policy::aipu(2 * S_NS), shape),
        Rule::of(Policy::SPRITE),
        Rule::of(Policy::Idle { age_ns: 9 * S_NS }),
    ]
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let (time, disk) = (Arc::new(Time::default()), Slow::new());
        let rule = rules()[random.below(7) as usize];
        let (groups, refused) = (1 + random.below(2), [0, 0, 50, 100][random.below(4) as usize]);
        let filter = WriteBack::new(Arc::new(disk.clone()), time.clone(), rule, cache(groups, seed, refused));
        let blank = vec![0; BLOCKS as usize];
        let (model, promised, cleared) = (blank.clone(), blank.clone(), blank);
        World {
            random,
            time,
            disk,
            filter,
            model,
            promised,
            cleared,
            pending: BTreeMap::new(),
            answers: Answers::default(),
            number: 0,
        }
    }

    /// Returns a range that no change under way touches; for a change, no read either.
    fn range(&mut self, changes: bool) -> Option<(u64, u64)> {
        let first = self.random.below(BLOCKS);
        let most = if self.random.below(8) == 0 { 200 } else { 6 };
        let len = 1 + self.random.below((BLOCKS - first).min(most));
        let (at, bytes) = (first * BLOCK, len * BLOCK);
        let meets = |request: &Request| {
            let (other, length) = request.range();
            let is_read = matches!(request, Request::Read { .. });
            (changes || !is_read) && at < other + length && other < at + bytes
        };
        (!self.pending.values().any(|(request, _)| meets(request))).then_some((at, bytes))
    }

    fn submit(&mut self, request: Request) {
        self.number += 1;
        let (number, answers) = (self.number, self.answers.clone());
        let twin = match &request {
            Request::Read { at, buffer } => Request::Read { at: *at, buffer: buffer.clone() },
            Request::Write { at, buffer, fua } => Request::Write { at: *at, buffer: buffer.clone(), fua: *fua },
            Request::Flush => Request::Flush,
            Request::Trim { at, len } => Request::Trim { at: *at, len: *len },
            Request::WriteZeroes { at, len, fua } => Request::WriteZeroes { at: *at, len: *len, fua: *fua },
        };
        if let Request::Trim { at, len } = twin {
            let range = (at / BLOCK) as usize..((at + len) / BLOCK) as usize;
            self.promised[range.clone()].fill(0);
            self.cleared[range].fill(number);
        }
        self.pending.insert(number, (twin, self.model.clone()));
        self.filter.submit(request, Box::new(move |result| drop(answers.lock().insert(number, result))));
        self.settle();
    }

    fn settle(&mut self) {
        for (number, result) in std::mem::take(&mut *self.answers.lock()) {
            let (request, found) = self.pending.remove(&number).expect("completed once");
            let (at, len) = request.range();
            let range = (at / BLOCK) as usize..((at + len) / BLOCK) as usize;
            match (request, result) {
                (Request::Read { .. }, Ok(buffer)) => assert_eq!(numbers(&buffer), self.model[range], "a read at {at}"),
                (Request::Write { buffer, fua, .. }, Ok(back)) => {
                    assert_eq!(back, buffer, "the buffer of a write at {at} goes back");
                    let values = numbers(&buffer);
                    self.model[range.clone()].copy_from_slice(&values);
                    if fua {
                        self.promised[range].copy_from_slice(&values);
                    }
                }
                (Request::Trim { .. } | Request::WriteZeroes { .. }, Ok(_)) => {
                    self.model[range.clone()].fill(0);
                    self.promised[range.clone()].fill(0);
                    self.cleared[range].fill(self.number);
                }
                (Request::Flush, Ok(_)) => {
                    for (block, found) in found.into_iter().enumerate() {
                        if !self.is_cleared(block, number) {
                            self.promised[block] = self.promised[block].max(found);
                        }
                    }
                }
                (request, Err(error)) => panic!("{request:?} failed: {error}"),
            }
        }
    }

    fn act(&mut self) {
        match self.random.below(16) {
            0..6 => {
                if let Some((at, bytes)) = self.range(true) {
                    let values: Vec<u64> = (0..bytes / BLOCK).map(|i| (self.number + 1) * 1000 + i).collect();
                    let fua = self.random.below(12) == 0;
                    self.submit(Request::Write { at, buffer: contents(&values), fua });
                }
            }
            6..9 => {
                if let Some((at, bytes)) = self.range(false) {
                    self.submit(Request::Read { at, buffer: vec![0; bytes as usize] });
                }
            }
            9 => {
                if let Some((at, len)) = self.range(true) {
                    let zeroes = self.random.below(2) == 0;
                    self.submit(if zeroes {
                        Request::WriteZeroes { at, len, fua: false }
                    } else {
                        Request::Trim { at, len }
                    });
                }
            }
            10 => self.submit(Request::Flush),
            11 => {
                self.time.0.fetch_add(self.random.below(3 * S_NS), Ordering::Relaxed);
                self.filter.tick();
            }
            12 if self.random.below(8) == 0 => {
                let rule = rules()[self.random.below(7) as usize];
                self.filter.set_rule(rule);
            }
            13 if self.random.below(6) == 0 => {
                let most = self.filter.memory_bytes_max();
                self.filter.set_memory(most / 2 * self.random.below(3));
            }
            _ => drop(self.disk.clone().step(&mut self.random)),
        }
        self.settle();
    }

    /// Returns whether a block was trimmed or zeroed since a request, or may yet be trimmed.
    fn is_cleared(&self, block: usize, number: u64) -> bool {
        let at = block as u64 * BLOCK;
        let clears = |request: &Request| match *request {
            Request::Trim { at: first, len } => first <= at && at < first + len,
            _ => false,
        };
        self.cleared[block] >= number || self.pending.values().any(|(request, _)| clears(request))
    }

    /// Asserts that a power loss now would leave every promised value or a newer one.
    fn judge(&self) {
        let disk = self.disk.0.lock();
        for block in 0..BLOCKS as usize {
            let promise = self.promised[block];
            let found = disk.durable[block];
            assert!(found >= promise, "block {block} has {found} after a power loss, {promise} was promised");
        }
    }
}

#[test]
fn reads_see_what_was_written_last_and_flushes_keep_it() {
    for seed in 0..120 {
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.act();
            world.judge();
        }
        // Only the second flush covers a write that waited for memory.
        for _ in 0..2 {
            world.submit(Request::Flush);
            for _ in 0..100_000 {
                if world.pending.is_empty() {
                    break;
                }
                world.disk.clone().step(&mut world.random);
                // Memory being given back is unusable until a tick has given it back.
                world.filter.tick();
                world.settle();
            }
            assert!(world.pending.is_empty(), "seed {seed}: {:?} never completes", world.pending.keys());
        }
        world.judge();
        assert_eq!(world.disk.0.lock().now, world.model, "seed {seed}");
        assert_eq!(world.filter.held_bytes(), 0, "seed {seed}");
    }
}

fn fixture(rule: Rule) -> (Slow, WriteBack, Arc<Time>) {
    let (disk, time) = (Slow::new(), Arc::new(Time::default()));
    let filter = WriteBack::new(Arc::new(disk.clone()), time.clone(), rule, cache(4, 1, 0));
    (disk, filter, time)
}

fn write(filter: &WriteBack, first: u64, value: u64) -> Arc<Mutex<Option<Result<Vec<u8>>>>> {
    ask(filter, Request::Write { at: first * BLOCK, buffer: contents(&[value]), fua: false })
}

fn ask(filter: &WriteBack, request: Request) -> Arc<Mutex<Option<Result<Vec<u8>>>>> {
    let answer = Arc::new(Mutex::new(None));
    let told = answer.clone();
    filter.submit(request, Box::new(move |result| *told.lock() = Some(result)));
    answer
}

#[test]
fn write_through_is_the_device_itself() {
    let (disk, filter, _) = fixture(Rule::of(Policy::WriteThrough));
    assert!(filter.geometry().survives_process);
    let done = write(&filter, 3, 7);
    assert!(done.lock().is_none(), "it completes when the device has it");
    assert!(disk.step(&mut Random::new(1)));
    assert!(done.lock().as_ref().unwrap().is_ok());
    assert_eq!((disk.0.lock().now[3], filter.held_bytes(), filter.next_ns()), (7, 0, None));
}

#[test]
fn blocks_leave_at_their_age_and_neighbours_as_one_write() {
    let (disk, filter, time) = fixture(Rule::of(Policy::aipu(30 * S_NS)));
    assert!(!filter.geometry().survives_process);
    for (second, block) in [(0, 5), (0, 3), (0, 4), (9, 20), (20, 4)] {
        time.0.store(second * S_NS, Ordering::Relaxed);
        assert!(write(&filter, block, second + 1).lock().is_some(), "nothing to wait for");
    }
    assert_eq!(filter.next_ns(), Some(30 * S_NS));
    time.0.store(30 * S_NS, Ordering::Relaxed);
    filter.tick();
    let mut random = Random::new(1);
    while disk.step(&mut random) {}
    assert_eq!((disk.0.lock().writes, filter.held_bytes()), (1, BLOCK), "one write of three blocks");
    assert_eq!(disk.0.lock().now[3..6], [1, 21, 1]);
    assert_eq!(filter.next_ns(), Some(39 * S_NS));
}

/// Returns how many writes the device has queued.
fn writes_under_way(disk: &Slow) -> usize {
    let disk = disk.0.lock();
    disk.queue.iter().filter(|(request, ..)| matches!(request, Request::Write { .. })).count()
}

/// Writes separate blocks, so that each is a write of its own. They are due, and the device has
/// just had a reader.
fn scattered_beside_a_reader() -> (Slow, WriteBack, Random) {
    let (disk, filter, time) = fixture(Rule::of(Policy::aipu(30 * S_NS)));
    for block in (0..32).step_by(2) {
        write(&filter, block, block + 1);
    }
    time.0.store(31 * S_NS, Ordering::Relaxed);
    let mut random = Random::new(1);
    let read = ask(&filter, Request::Read { at: BLOCK, buffer: vec![0; BLOCK as usize] });
    disk.step(&mut random);
    assert!(read.lock().is_some());
    filter.tick();
    (disk, filter, random)
}

#[test]
fn beside_readers_scattered_blocks_leave_two_at_a_time() {
    let (disk, filter, mut random) = scattered_beside_a_reader();
    let mut left = 0;
    while writes_under_way(&disk) > 0 {
        assert!(writes_under_way(&disk) <= 2, "{}", writes_under_way(&disk));
        left += u64::from(disk.step(&mut random));
    }
    assert_eq!((left, filter.held_bytes()), (16, 0));
}

#[test]
fn beside_readers_what_a_flush_waits_for_is_not_held_up() {
    let (disk, filter, mut random) = scattered_beside_a_reader();
    assert_eq!(writes_under_way(&disk), 2);
    let flush = ask(&filter, Request::Flush);
    assert!(writes_under_way(&disk) > 8, "{}", writes_under_way(&disk));
    while disk.step(&mut random) {}
    assert!(flush.lock().as_ref().unwrap().is_ok());
    assert_eq!(disk.0.lock().durable[..4], [1, 0, 3, 0]);
}

#[test]
fn writes_that_were_to_follow_one_that_failed_are_not_sent() {
    let (disk, filter, mut random) = scattered_beside_a_reader();
    disk.0.lock().fails = true;
    while disk.step(&mut random) {}
    assert_eq!((disk.0.lock().writes, filter.held_bytes()), (2, 16 * BLOCK), "what was not written stays");
    assert!(ask(&filter, Request::Flush).lock().as_ref().unwrap().is_err());
    let read = ask(&filter, Request::Read { at: 30 * BLOCK, buffer: vec![0; BLOCK as usize] });
    assert_eq!(numbers(read.lock().as_ref().unwrap().as_ref().unwrap()), [31]);
}

#[test]
fn a_write_that_failed_fails_the_flush_and_everything_later_but_reads() {
    let (disk, filter, _) = fixture(Rule::of(Policy::aipu(30 * S_NS)));
    let mut random = Random::new(1);
    write(&filter, 3, 7);
    disk.0.lock().fails = true;
    let flush = ask(&filter, Request::Flush);
    while disk.step(&mut random) {}
    assert!(matches!(flush.lock().take(), Some(Err(MediaError::Io { .. }))));
    // The device works again, but the filter must go on refusing changes.
    disk.0.lock().fails = false;
    for request in [Request::Flush, Request::Trim { at: 0, len: BLOCK }] {
        assert!(matches!(ask(&filter, request).lock().take(), Some(Err(MediaError::Poisoned { .. }))));
    }
    assert!(matches!(write(&filter, 4, 8).lock().take(), Some(Err(MediaError::Poisoned { .. }))));
    let read = ask(&filter, Request::Read { at: 3 * BLOCK, buffer: vec![0; BLOCK as usize] });
    while disk.step(&mut random) {}
    assert_eq!(numbers(read.lock().as_ref().unwrap().as_ref().unwrap()), [7]);
}

#[test]
fn a_write_beyond_the_bound_waits_for_the_device() {
    let (disk, time) = (Slow::new(), Arc::new(Time::default()));
    let filter = WriteBack::new(Arc::new(disk.clone()), time, Rule::of(Policy::aipu(30 * S_NS)), cache(1, 1, 0));
    for first in (0..200).step_by(10) {
        let request = Request::Write { at: first * BLOCK, buffer: contents(&[7; 10]), fua: false };
        assert!(ask(&filter, request).lock().is_some());
    }
    let last = ask(&filter, Request::Write { at: 200 * BLOCK, buffer: contents(&[8; 100]), fua: false });
    assert!(last.lock().is_none());
    while disk.step(&mut Random::new(1)) {}
    assert!(last.lock().is_some());
    assert!(filter.held_bytes() >= 100 * BLOCK, "it is held now");
}

#[test]
fn a_flush_of_ranges_leaves_other_blocks_alone_and_a_device_without_news_too() {
    let (disk, filter, _) = fixture(Rule::of(Policy::aipu(30 * S_NS)));
    let stepping = disk.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let seen = stop.clone();
    let device = std::thread::spawn(move || {
        let mut random = Random::new(1);
        while !seen.load(Ordering::Relaxed) {
            stepping.step(&mut random);
        }
    });
    write(&filter, 3, 7);
    write(&filter, 100, 8);
    filter.flush_ranges(&[(0, 16 * BLOCK)]).unwrap();
    let durable = |block: usize| disk.0.lock().durable[block];
    assert_eq!((durable(3), durable(100)), (7, 0));
    assert_eq!(filter.held_bytes(), BLOCK);
    let flushes = filter.report().flushes;
    filter.flush_ranges(&[(0, 16 * BLOCK)]).unwrap();
    assert_eq!(filter.report().flushes, flushes, "it has nothing new");
    filter.flush_ranges(&[(0, BLOCKS * BLOCK)]).unwrap();
    assert_eq!((durable(100), filter.held_bytes()), (8, 0));
    stop.store(true, Ordering::Relaxed);
    device.join().unwrap();
}

#[test]
fn under_hold_a_device_stands_still_until_a_read_wakes_it() {
    let (disk, filter, time) = fixture(Rule::of(Policy::Idle { age_ns: 600 * S_NS }));
    for second in 0..599 {
        time.0.store(second * S_NS, Ordering::Relaxed);
        write(&filter, second % 300, second + 1);
        let read = ask(&filter, Request::Read { at: second % 300 * BLOCK, buffer: vec![0; BLOCK as usize] });
        filter.tick();
        assert!(disk.0.lock().queue.is_empty() && read.lock().is_some(), "second {second}");
    }
    assert_eq!((filter.report().reads, filter.report().writes, filter.report().flushes), (0, 0, 0));
    ask(&filter, Request::Read { at: 310 * BLOCK, buffer: vec![0; BLOCK as usize] });
    while disk.step(&mut Random::new(1)) {}
    assert_eq!((filter.held_bytes(), filter.report().reads), (0, 1), "everything goes while the disk turns");
    write(&filter, 5, 1);
    time.0.store(1300 * S_NS, Ordering::Relaxed);
    filter.tick();
    while disk.step(&mut Random::new(1)) {}
    assert_eq!(filter.held_bytes(), 0, "and at the deadline");
}

#[test]
fn under_sprites_rule_a_file_leaves_with_its_oldest_block_and_other_files_stay() {
    const LINE: u64 = 16;
    let (disk, time) = (Slow::new(), Arc::new(Time::default()));
    let filter = WriteBack::new(Arc::new(disk.clone()), time.clone(), Rule::of(Policy::SPRITE), cache(4, 1, 0));
    for (line, file, at_s) in [(0, 7, 1), (1, 8, 30), (2, 7, 32)] {
        time.0.store(at_s * S_NS, Ordering::Relaxed);
        filter.belongs(line * LINE * BLOCK, BLOCK, file);
        write(&filter, line * LINE, line + 1);
    }
    let held = |line: u64| filter.held_in(line * LINE * BLOCK, LINE * BLOCK);
    assert_eq!([0, 1, 2].map(held), [BLOCK; 3]);
    time.0.store(35 * S_NS, Ordering::Relaxed);
    filter.tick();
    while disk.step(&mut Random::new(1)) {}
    assert_eq!([0, 1, 2].map(held), [0, BLOCK, 0]);
}
