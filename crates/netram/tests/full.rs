//! How fast a full disk takes overwrites over a network of one millisecond, in simulated time.
//!
//! Each operation on a donor is answered one millisecond after it was asked for, however many are on their way; processors and
//! bandwidth cost nothing. So the figure says how many round trips wait for each other, and is the same on every machine.
//! Left out: faults (`network`), and what a real network carries (`tests/nbd/ramdisk`).

use std::collections::BTreeMap;

use shoal_media::Request;
use shoal_netram::{Action, Config, DonorInfo, DonorOp, Engine, Policy};
use shoal_sim::Random;

const LATENCY_NS: u64 = 1_000_000;
const DEPTH: usize = 32;
const BLOCK: usize = 4096;

struct Bench {
    engine: Engine,
    donors: Vec<Vec<u8>>,
    now: u64,
    /// By the time of the answer.
    flights: BTreeMap<(u64, u64), (u64, usize, DonorOp)>,
    next: u64,
    in_flight: usize,
}

impl Bench {
    fn new(donors: usize, donor_bytes: usize) -> Bench {
        let config = Config { policy: Policy::Adaptive, uuid: [7; 16], ..Config::default() };
        let info = |number| DonorInfo { name: format!("donor{number}"), bytes: donor_bytes as u64 };
        let engine = Engine::create(&config, (0..donors).map(info).collect(), 1).expect("a disk");
        let donors = vec![vec![0; donor_bytes]; donors];
        let mut bench = Bench { engine, donors, now: 1, flights: BTreeMap::new(), next: 0, in_flight: 0 };
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
                    self.flights.insert((self.now + LATENCY_NS, self.next), (ticket, donor as usize, op));
                    self.next += 1;
                }
                Action::Complete { result, .. } => {
                    result.expect("no request fails");
                    self.in_flight -= 1;
                }
            }
        }
    }

    /// The next answer, or 10 ms without one.
    fn step(&mut self) {
        match self.flights.pop_first() {
            Some(((due, _), (ticket, donor, op))) => {
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
                self.now += 10_000_000;
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

    /// Writes to random blocks a simulated second.
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
    // The first round finds whole groups dead, which costs nothing.
    bench.writes_a_second(&mut random, blocks, blocks / 2);
    let full = bench.writes_a_second(&mut random, blocks, blocks);
    println!("{blocks} blocks: {half} writes a second where there is room, {full} on the full disk");
    println!("{:?}", bench.engine.status());
    assert!(full >= 5000, "{full} writes a second on a full disk");
}
