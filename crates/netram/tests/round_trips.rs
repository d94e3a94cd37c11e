//! How many round trips follow each other: on a full disk, for a read without a donor, and with a
//! donor that stands still.
//!
//! Each donor operation is answered one millisecond after the request, however many are in flight.
//! Processors and bandwidth cost nothing. So the figures, in simulated time, are the same on every
//! machine. Left out: faults (`network`), and what a real network carries (`tests/nbd/ramdisk`).

use std::collections::BTreeMap;

use shoal_media::Request;
use shoal_netram::{Action, Config, DonorInfo, DonorOp, Engine, Policy};
use shoal_sim::Random;

const LATENCY_NS: u64 = 1_000_000;
const DEPTH: usize = 32;
const BLOCK: usize = 4096;
const TICK_NS: u64 = 50_000_000;

struct Bench {
    engine: Engine,
    donors: Vec<Vec<u8>>,
    now: u64,
    /// Operations in flight, by the time of the answer.
    flights: BTreeMap<(u64, u64), (u64, usize, DonorOp)>,
    next: u64,
    next_tick: u64,
    in_flight: usize,
    /// The result of the last read.
    read: Vec<u8>,
    /// A donor that answers only from this time on (ns).
    still: Option<(usize, u64)>,
}

impl Bench {
    fn new(donors: usize, donor_bytes: usize) -> Bench {
        let config = Config { policy: Policy::Adaptive, uuid: [7; 16], ..Config::default() };
        let info = |number| DonorInfo { name: format!("donor{number}"), bytes: donor_bytes as u64, domain: 0 };
        let engine = Engine::create(&config, (0..donors).map(info).collect(), 1).expect("a disk");
        let donors = vec![vec![0; donor_bytes]; donors];
        let mut bench = Bench {
            engine,
            donors,
            now: 1,
            flights: BTreeMap::new(),
            next: 0,
            next_tick: TICK_NS,
            in_flight: 0,
            read: Vec::new(),
            still: None,
        };
        bench.collect();
        while !bench.engine.is_ready() {
            bench.step();
        }
        bench
    }

    fn collect(&mut self) {
        for action in self.engine.actions() {
            match action {
                Action::Donor { ticket, donor, op, .. } => {
                    let still =
                        self.still.filter(|&(number, _)| number == donor as usize).map_or(0, |(_, until)| until);
                    let due = (self.now + LATENCY_NS).max(still);
                    self.flights.insert((due, self.next), (ticket, donor as usize, op));
                    self.next += 1;
                }
                Action::Complete { result, .. } => {
                    self.read = result.expect("no request fails");
                    self.in_flight -= 1;
                }
            }
        }
    }

    /// Runs the next answer or tick.
    fn step(&mut self) {
        let due = self.flights.first_key_value().map_or(u64::MAX, |(&(due, _), _)| due);
        match (due <= self.next_tick).then(|| self.flights.pop_first()).flatten() {
            Some((_, (ticket, donor, op))) => {
                self.now = due;
                let memory = &mut self.donors[donor];
                let answer = match op {
                    DonorOp::Read { at, len } => memory[at as usize..][..len as usize].to_vec(),
                    DonorOp::Write { at, bytes } => {
                        memory[at as usize..][..bytes.len()].copy_from_slice(&bytes);
                        Vec::new()
                    }
                    DonorOp::Trim { .. } => Vec::new(),
                };
                self.engine.done(ticket, Ok(answer), self.now);
            }
            None => {
                self.now = self.next_tick;
                self.next_tick += TICK_NS;
                self.engine.tick(self.now);
            }
        }
        self.collect();
    }

    fn write(&mut self, block: u64) {
        while self.in_flight >= DEPTH {
            self.step();
        }
        self.next += 1;
        self.in_flight += 1;
        let buffer = vec![self.next as u8; BLOCK];
        self.engine.submit(self.next, Request::Write { at: block * BLOCK as u64, buffer, fua: false }, self.now);
        self.collect();
    }

    /// Reads blocks that are each filled with their number. Returns how long that took (ns).
    fn read_ns(&mut self, first: usize, count: usize) -> u64 {
        let begun = self.now;
        self.next += 1;
        self.in_flight += 1;
        let request = Request::Read { at: (first * BLOCK) as u64, buffer: vec![0; count * BLOCK] };
        self.engine.submit(self.next, request, self.now);
        self.collect();
        while self.in_flight > 0 {
            self.step();
        }
        for (n, block) in self.read.chunks_exact(BLOCK).enumerate() {
            assert!(block.iter().all(|&byte| byte == (first + n) as u8), "block {}", first + n);
        }
        self.now - begun
    }

    /// Makes a disk with some blocks that hold their numbers, safe on the donors.
    fn filled(blocks: usize) -> Bench {
        let mut bench = Bench::new(4, 16 << 20);
        for block in 0..blocks {
            let buffer = vec![block as u8; BLOCK];
            bench.engine.submit(
                block as u64,
                Request::Write { at: (block * BLOCK) as u64, buffer, fua: false },
                bench.now,
            );
            bench.in_flight += 1;
            bench.collect();
        }
        bench.next = blocks as u64;
        bench.engine.submit(bench.next, Request::Flush, bench.now);
        bench.in_flight += 1;
        bench.collect();
        while bench.in_flight > 0 {
            bench.step();
        }
        bench
    }

    /// Measures writes to random blocks per simulated second.
    fn writes_a_second(&mut self, random: &mut Random, blocks: u64, count: u64) -> u64 {
        let begun = self.now;
        for _ in 0..count {
            self.write(random.below(blocks));
        }
        while self.in_flight > 0 {
            self.step();
        }
        count * 1_000_000_000 / (self.now - begun)
    }
}

#[test]
fn a_full_disk_over_a_millisecond_takes_5000_writes_a_second() {
    let mut bench = Bench::new(4, 64 << 20);
    let blocks = bench.engine.bytes() / BLOCK as u64;
    let mut random = Random::new(1);
    let half = bench.writes_a_second(&mut random, blocks / 4, blocks / 4);
    (0..blocks).for_each(|block| bench.write(block));
    // The first round finds whole groups dead, which are free to clean.
    bench.writes_a_second(&mut random, blocks, blocks / 2);
    let full = bench.writes_a_second(&mut random, blocks, blocks);
    println!("{blocks} blocks: {half} writes a second where there is room, {full} on the full disk");
    assert!(full >= 5000, "{full} writes a second on a full disk");
}

#[test]
fn a_mebibyte_without_one_of_its_donors_takes_a_few_round_trips() {
    let mut bench = Bench::filled(1024);
    let all = bench.read_ns(256, 256);
    bench.engine.lost(1, bench.now);
    let degraded = bench.read_ns(512, 256);
    println!("1 MiB in {all} ns, without a donor in {degraded} ns");
    assert!(bench.engine.status().counts.reconstructed > 50);
    assert!(degraded <= 8 * LATENCY_NS, "{degraded} ns");
}

#[test]
fn a_donor_that_stands_still_does_not_keep_readers_waiting() {
    let mut bench = Bench::filled(1024);
    for (donor, first) in [(0, 0), (1, 256), (2, 512), (3, 700)] {
        bench.still = Some((donor, bench.now + 3_000_000_000));
        let took = bench.read_ns(first, 100);
        println!("while donor {donor} stands still: {took} ns");
        assert!(took < 200_000_000, "{took} ns");
        // The donor goes on, and nobody needs its answers any more.
        bench.still = None;
        while !bench.flights.is_empty() {
            bench.step();
        }
        assert!(bench.read_ns(first, 100) < 8 * LATENCY_NS);
    }
}
