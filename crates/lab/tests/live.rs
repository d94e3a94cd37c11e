//! The simulator and the live disk agree: the same requests cause the same transfers.
//!
//! Owns: one list of requests, run through the engine under the model of a network and through
//! `shoal_netram::Disk` over donors in memory, one request at a time. All counters of the engine
//! must be equal, and the bytes at the end must be right. Donors answer in the order of the
//! requests on both sides, because the groups that the cleaner finds depend on the order of
//! answers. Time-outs and idle cleaning are off, because they depend on the clock, and the two
//! clocks differ by design.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shoal_lab::netram::model::{Model, Pace};
use shoal_lab::netram::points::{Room, Rules, Setup, Variant};
use shoal_lab::network::Network;
use shoal_lab::trace::shape::Footprint;
use shoal_lab::trace::synthetic::Workload;
use shoal_lab::trace::{Kind, Request};
use shoal_media::{BlockDevice, BlockGeometry, Clock, Completion, MediaError, Request as DeviceRequest, WriteCache};
use shoal_netram::{Counts, Disk, DonorInfo};

const DEADLINE: Duration = Duration::from_secs(30);

struct Stopwatch(Instant);

impl Clock for Stopwatch {
    fn now_ns(&self) -> i64 {
        self.monotonic_ns() as i64
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}

/// Counts the requests that threads other than the test's carry out, because the disk's ticker may
/// take over its work.
struct Foreign {
    test: ThreadId,
    count: AtomicU64,
}

impl Foreign {
    fn note(&self) {
        if thread::current().id() != self.test {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A request on its way to a donor.
type Asked = (Arc<Mutex<Vec<u8>>>, DeviceRequest, Completion);

/// The network. Answers come in the order of the requests.
type Queue = Arc<Mutex<VecDeque<Asked>>>;

struct Donor {
    memory: Arc<Mutex<Vec<u8>>>,
    queue: Queue,
    foreign: Arc<Foreign>,
}

impl BlockDevice for Donor {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        let bytes = self.memory.lock().len() as u64;
        BlockGeometry { bytes, block_bytes: 512, atomic_bytes: 512, survives_process: false }
    }

    fn submit(&self, request: DeviceRequest, done: Completion) {
        self.queue.lock().push_back((self.memory.clone(), request, done));
        self.foreign.note();
    }
}

fn carry_out(memory: &mut [u8], request: DeviceRequest) -> Result<Vec<u8>, MediaError> {
    match request {
        DeviceRequest::Read { at, mut buffer } => {
            let len = buffer.len();
            buffer.copy_from_slice(&memory[at as usize..][..len]);
            Ok(buffer)
        }
        DeviceRequest::Write { at, buffer, .. } => {
            memory[at as usize..at as usize + buffer.len()].copy_from_slice(&buffer);
            Ok(vec![])
        }
        DeviceRequest::Trim { .. } | DeviceRequest::Flush => Ok(vec![]),
        DeviceRequest::WriteZeroes { .. } => {
            Err(MediaError::Poisoned { what: "disk".into(), cause: "not asked for".into() })
        }
    }
}

struct Live {
    disk: Disk,
    queue: Queue,
    foreign: Arc<Foreign>,
}

impl Live {
    fn noted(&self) -> u64 {
        self.foreign.count.load(Ordering::SeqCst)
    }

    /// Lets donors answer until nothing is in flight. `seen` is the count of foreign work when it
    /// began.
    fn settle(&self, mut seen: u64) {
        loop {
            // The guard must not have a name: the lock would be held while the donor answers.
            while let Some((memory, request, done)) = { self.queue.lock().pop_front() } {
                let result = carry_out(&mut memory.lock(), request);
                done(result);
            }
            // This thread asks donors before it returns. If the ticker did some of the work, it may
            // still be running.
            let now = self.noted();
            if now == seen && self.queue.lock().is_empty() {
                return;
            }
            if now != seen {
                seen = now;
                thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Submits a request, and waits for the answer and until nothing is in flight.
    fn ask(&self, request: DeviceRequest) -> Vec<u8> {
        let before = self.noted();
        let (sender, receiver) = mpsc::channel();
        let foreign = self.foreign.clone();
        let done = move |result| {
            foreign.note();
            let _ = sender.send(result);
        };
        self.disk.submit(request, Box::new(done));
        let begun = Instant::now();
        loop {
            self.settle(before);
            match receiver.try_recv() {
                Ok(result) => {
                    self.settle(before);
                    return result.unwrap();
                }
                Err(_) => assert!(begun.elapsed() < DEADLINE, "the disk answers"),
            }
            thread::yield_now();
        }
    }
}

fn live(setup: &Setup, variant: Variant, room: Room) -> Counts {
    let (config, donors) = setup.disk(variant, room).unwrap();
    let foreign = Arc::new(Foreign { test: thread::current().id(), count: AtomicU64::new(0) });
    let queue = Queue::default();
    let devices = donors
        .iter()
        .enumerate()
        .map(|(index, &bytes)| {
            let memory = Arc::new(Mutex::new(vec![0; bytes as usize]));
            let donor = Donor { memory, queue: queue.clone(), foreign: foreign.clone() };
            let device: Arc<dyn BlockDevice> = Arc::new(donor);
            (DonorInfo { name: format!("donor {index}"), bytes, domain: 0 }, device)
        })
        .collect();
    let disk = Disk::create(&config, devices, Arc::new(Stopwatch(Instant::now()))).unwrap();
    let live = Live { disk, queue, foreign };
    live.settle(0);
    let bytes = live.disk.geometry().bytes;
    let mut expected = vec![0; bytes as usize];
    let mut write = |at: u64, len: usize, byte: u8| {
        expected[at as usize..][..len].fill(byte);
        live.ask(DeviceRequest::Write { at, buffer: vec![byte; len], fua: false });
    };
    for at in (0..bytes).step_by(8192) {
        write(at, 8192.min(bytes - at) as usize, 1);
    }
    live.ask(DeviceRequest::Flush);
    for (index, request) in setup.requests.iter().enumerate() {
        match request.kind {
            Kind::Write => write(request.at, request.len as usize, index as u8),
            Kind::Read => drop(live.ask(DeviceRequest::Read { at: request.at, buffer: vec![0; request.len as usize] })),
        }
    }
    live.ask(DeviceRequest::Flush);
    let counts = live.disk.status().counts;
    for at in (0..bytes).step_by(1 << 16) {
        let len = (1 << 16).min(bytes - at) as usize;
        let found = live.ask(DeviceRequest::Read { at, buffer: vec![0; len] });
        assert!(found == expected[at as usize..][..len], "{} at {room:?}: bytes from {at} on", variant.name());
    }
    counts
}

fn simulated(setup: &Setup, variant: Variant, room: Room) -> Counts {
    let (config, donors) = setup.disk(variant, room).unwrap();
    let mut model = Model::new(&config, &donors, setup.network).unwrap();
    model.fill().unwrap();
    model.run(setup.requests, setup.pace).unwrap();
    model.flush().unwrap();
    model.cost().counts
}

#[test]
fn live_transfer_counts_equal_the_simulators_on_the_same_requests() {
    let requests = Workload { requests: 6000, bytes: 4 << 20, ..Workload::default() }.requests();
    let footprint = Footprint::of(&requests, 1024);
    let requests: Vec<Request> = footprint.compact(&requests);
    let setup = Setup {
        requests: &requests,
        blocks: footprint.blocks(),
        block_bytes: 1024,
        buffer_blocks: 8,
        donors: 8,
        network: Network::ATM,
        pace: Pace::BackToBack,
        timeout_ms: 0,
        fill: true,
    };
    let ours = |streams| Variant::adaptive(streams, Rules::Shoal);
    for (variant, room) in [
        (Variant::NONE, Room::Plenty),
        (Variant::CACHED, Room::Plenty),
        (Variant::MIRRORED, Room::Plenty),
        (Variant::CACHING, Room::Extra(40)),
        (Variant::CACHING, Room::Extra(100)),
        (Variant::CACHED_HOT, Room::Plenty),
        (Variant::adaptive(2, Rules::Paper), Room::Extra(40)),
        (ours(2), Room::Extra(40)),
        (ours(3), Room::Extra(60)),
    ] {
        let (simulated, live) = (simulated(&setup, variant, room), live(&setup, variant, room));
        assert_eq!(simulated, live, "{} at {room:?}: simulated and live", variant.name());
        let short_of_room = matches!(room, Room::Extra(..=60));
        assert!(simulated.groups_cleaned > 0 || !short_of_room, "{} at {room:?} has to clean", variant.name());
    }
}
