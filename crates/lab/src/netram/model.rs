//! The network RAM disk's engine under a model of a network.
//!
//! Owns: an event loop that carries out the engine's requests in simulated time. Donors are arrays
//! of bytes, every message goes over the client's one [`Link`], and its cost is counted under its
//! purpose.
//! Rules: the engine is the one that serves users and knows nothing of the simulation. Every read
//! is compared with the last write, so a run that lost data gives no figure. The same requests make
//! the same run.
//! Left out: donors that fail (tests of the engine), and the choice of runs (`points`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use shoal_media::Request as DeviceRequest;
use shoal_netram::{Action, Config, Counts, DiskError, DonorError, DonorId, DonorInfo, DonorOp, Engine, Purpose};

use crate::network::{Link, Network};
use crate::trace::{Kind, Request};

/// Interval at which the engine is called (ns).
const TICK_NS: u64 = 50_000_000;
/// Maximum number of ticks that an engine with nothing in flight may take to answer.
const TICKS_MAX: usize = 2000;
/// Maximum number of ticks run in a gap between two requests (10 s). Time-outs of the engine are
/// far below that.
const TICKS_OF_A_GAP: u64 = 200;
/// Longest request of the initial filling (bytes).
const FILL_BYTES: u64 = 8192;

/// Arrival of the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pace {
    /// When all work for the previous request is done
    BackToBack,
    /// At the request's time in the trace
    Trace,
}

/// The reason why a run has no figure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The engine refuses to create such a disk.
    #[error("{0}")]
    Refused(DiskError),
    #[error("request {index} failed: {why}")]
    Failed { index: u64, why: DiskError },
    #[error("request {index} read {found} bytes instead of {expected}")]
    Short { index: u64, found: usize, expected: u32 },
    #[error("request {index} was not answered although nothing is in flight")]
    Stalled { index: u64 },
    #[error("request {index} read block {block} wrong: version {found} instead of {expected}")]
    WrongBytes { index: u64, block: u64, found: String, expected: u32 },
    #[error("an operation at byte {at}, {len} bytes, is outside donor {donor} of {bytes} bytes")]
    OutsideDonor { donor: DonorId, at: u64, len: u64, bytes: u64 },
}

/// The cost of a run, in simulated time and in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time during which the client's link was transferring, by [`Purpose`] (ns, simulated).
    pub busy_ns: [u64; 5],
    pub messages: u64,
    pub counts: Counts,
}

impl Cost {
    pub fn of(&self, purpose: Purpose) -> u64 {
        self.busy_ns[purpose as usize]
    }

    pub fn total_ns(&self) -> u64 {
        self.busy_ns.iter().sum()
    }
}

/// An answer on its way to the engine. Ordered by time, then by the order of sending.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at_ns: u64,
    sent: u64,
    ticket: u64,
    donor: DonorId,
    what: What,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Read { at: u64, len: u64 },
    Write { at: u64, bytes: Vec<u8> },
    Trim,
}

pub struct Model {
    engine: Engine,
    donors: Vec<Vec<u8>>,
    link: Link,
    events: BinaryHeap<Reverse<Event>>,
    sent: u64,
    now_ns: u64,
    next_tick_ns: u64,
    block_bytes: u64,
    /// Number of writes of each block.
    versions: Vec<u32>,
    next_request: u64,
    /// Requests in flight: ticket, request, and the versions of its blocks at submission.
    waiting: Vec<(u64, Request, Vec<u32>)>,
    busy_ns: [u64; 5],
}

impl Model {
    /// Creates a disk on donors of the given sizes (bytes).
    pub fn new(config: &Config, donors: &[u64], network: Network) -> Result<Model, ModelError> {
        let infos = donors
            .iter()
            .enumerate()
            .map(|(index, &bytes)| DonorInfo { name: format!("donor {index}"), bytes, domain: 0 })
            .collect();
        let engine = Engine::create(config, infos, 0).map_err(ModelError::Refused)?;
        let block_bytes = u64::from(config.block_bytes);
        let mut model = Model {
            versions: vec![0; (engine.bytes() / block_bytes) as usize],
            engine,
            donors: donors.iter().map(|&bytes| vec![0; bytes as usize]).collect(),
            link: Link::new(network),
            events: BinaryHeap::new(),
            sent: 0,
            now_ns: 0,
            next_tick_ns: TICK_NS,
            block_bytes,
            next_request: 0,
            waiting: vec![],
            busy_ns: [0; 5],
        };
        model.carry_out()?;
        model.run_until_idle()?;
        Ok(model)
    }

    pub fn bytes(&self) -> u64 {
        self.engine.bytes()
    }

    /// Returns the cost since the disk was created.
    pub fn cost(&self) -> Cost {
        Cost { busy_ns: self.busy_ns, messages: self.link.messages(), counts: self.engine.status().counts }
    }

    /// Writes every block once, from the first to the last.
    pub fn fill(&mut self) -> Result<(), ModelError> {
        let mut at = 0;
        while at < self.bytes() {
            let len = FILL_BYTES.min(self.bytes() - at);
            let request = Request { time_ns: 0, kind: Kind::Write, at, len: len as u32, device: 0 };
            self.submit(&request)?;
            self.run_until_idle()?;
            at += len;
        }
        self.flush()
    }

    /// Runs requests of whole blocks.
    pub fn run(&mut self, requests: &[Request], pace: Pace) -> Result<(), ModelError> {
        let began_ns = self.now_ns;
        let first_ns = requests.first().map_or(0, |request| request.time_ns);
        for request in requests {
            match pace {
                Pace::BackToBack => self.run_until_idle()?,
                Pace::Trace => self.wait_until(began_ns + request.time_ns - first_ns)?,
            }
            self.submit(request)?;
        }
        self.run_until_idle()
    }

    pub fn flush(&mut self) -> Result<(), ModelError> {
        let ticket = self.ticket();
        let nothing = Request { time_ns: 0, kind: Kind::Write, at: 0, len: 0, device: 0 };
        self.waiting.push((ticket, nothing, vec![]));
        self.engine.submit(ticket, DeviceRequest::Flush, self.now_ns);
        self.carry_out()?;
        self.run_until_idle()
    }

    fn ticket(&mut self) -> u64 {
        self.next_request += 1;
        self.next_request
    }

    fn submit(&mut self, request: &Request) -> Result<(), ModelError> {
        let ticket = self.ticket();
        let len = request.len as usize;
        let blocks = request.at / self.block_bytes..(request.at + u64::from(request.len)) / self.block_bytes;
        if blocks.end > self.versions.len() as u64 {
            let why = DiskError::OutOfRange { at: request.at, len: request.len.into() };
            return Err(ModelError::Failed { index: ticket, why });
        }
        let versions = &mut self.versions[blocks.start as usize..blocks.end as usize];
        let device_request = match request.kind {
            Kind::Read => DeviceRequest::Read { at: request.at, buffer: vec![0; len] },
            Kind::Write => {
                let mut buffer = Vec::with_capacity(len);
                for (block, version) in blocks.zip(versions.iter_mut()) {
                    *version += 1;
                    stamp(block, *version, self.block_bytes, &mut buffer);
                }
                DeviceRequest::Write { at: request.at, buffer, fua: false }
            }
        };
        self.waiting.push((ticket, *request, versions.to_vec()));
        self.engine.submit(ticket, device_request, self.now_ns);
        self.carry_out()
    }

    /// Runs until the link is idle and every request is answered.
    fn run_until_idle(&mut self) -> Result<(), ModelError> {
        let mut ticks = 0;
        loop {
            if self.step()? {
                ticks = 0;
            } else if let Some((index, ..)) = self.waiting.first() {
                if ticks == TICKS_MAX {
                    return Err(ModelError::Stalled { index: *index });
                }
                ticks += 1;
                self.advance(self.next_tick_ns)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Runs until `at_ns`. In a long idle gap only the beginning has ticks.
    fn wait_until(&mut self, at_ns: u64) -> Result<(), ModelError> {
        let mut ticks = 0;
        loop {
            let event_ns = self.events.peek().map(|Reverse(event)| event.at_ns);
            let next_ns = event_ns.map_or(self.next_tick_ns, |event_ns| event_ns.min(self.next_tick_ns));
            if next_ns > at_ns || (event_ns.is_none() && ticks == TICKS_OF_A_GAP) {
                self.now_ns = self.now_ns.max(at_ns);
                self.next_tick_ns = self.next_tick_ns.max(self.now_ns);
                return Ok(());
            }
            if event_ns == Some(next_ns) {
                self.step()?;
            } else {
                ticks += 1;
                self.advance(next_ns)?;
            }
        }
    }

    /// Delivers the next answer, preceded by the ticks before it. Returns false if nothing is in
    /// flight.
    fn step(&mut self) -> Result<bool, ModelError> {
        let Some(Reverse(event)) = self.events.pop() else { return Ok(false) };
        self.advance(event.at_ns)?;
        let donor = &mut self.donors[event.donor as usize];
        let answer: Result<Vec<u8>, DonorError> = match event.what {
            What::Read { at, len } => Ok(donor[at as usize..(at + len) as usize].to_vec()),
            What::Write { at, bytes } => {
                donor[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                Ok(vec![])
            }
            What::Trim => Ok(vec![]),
        };
        self.engine.done(event.ticket, answer, self.now_ns);
        self.carry_out()?;
        Ok(true)
    }

    /// Advances the clock and runs the ticks that fall due.
    fn advance(&mut self, to_ns: u64) -> Result<(), ModelError> {
        while self.next_tick_ns <= to_ns {
            self.now_ns = self.now_ns.max(self.next_tick_ns);
            self.next_tick_ns += TICK_NS;
            self.engine.tick(self.now_ns);
            self.carry_out()?;
        }
        self.now_ns = self.now_ns.max(to_ns);
        Ok(())
    }

    /// Puts the engine's requests on the link and collects its completions.
    fn carry_out(&mut self) -> Result<(), ModelError> {
        for action in self.engine.actions() {
            match action {
                Action::Donor { ticket, donor, op, purpose } => self.send(ticket, donor, op, purpose)?,
                Action::Complete { ticket, result } => {
                    let index = self.waiting.iter().position(|(waiting, ..)| *waiting == ticket);
                    let (_, request, versions) = self.waiting.remove(index.expect("answered once"));
                    let bytes = result.map_err(|why| ModelError::Failed { index: ticket, why })?;
                    self.compare(ticket, &request, &versions, &bytes)?;
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, ticket: u64, donor: DonorId, op: DonorOp, purpose: Purpose) -> Result<(), ModelError> {
        let (at, len, what) = match op {
            DonorOp::Read { at, len } => (at, u64::from(len), What::Read { at, len: len.into() }),
            DonorOp::Write { at, bytes } => (at, bytes.len() as u64, What::Write { at, bytes }),
            DonorOp::Trim { at, len } => (at, len, What::Trim),
        };
        let bytes = self.donors[donor as usize].len() as u64;
        if at.checked_add(len).is_none_or(|end| end > bytes) {
            return Err(ModelError::OutsideDonor { donor, at, len, bytes });
        }
        // A trim is a hint without data, and no caller waits for it, so it travels with other
        // messages.
        let at_ns = if what == What::Trim {
            self.link.idle_at(self.now_ns)
        } else {
            let (at_ns, cost_ns) = self.link.send(len, self.now_ns);
            self.busy_ns[purpose as usize] += cost_ns;
            at_ns
        };
        self.sent += 1;
        self.events.push(Reverse(Event { at_ns, sent: self.sent, ticket, donor, what }));
        Ok(())
    }

    /// Verifies that a read found the versions that were current when it was submitted, or newer
    /// ones.
    fn compare(&self, index: u64, request: &Request, versions: &[u32], bytes: &[u8]) -> Result<(), ModelError> {
        if request.kind == Kind::Write {
            return Ok(());
        }
        let first = request.at / self.block_bytes;
        let found = bytes.chunks(self.block_bytes as usize);
        if bytes.len() != request.len as usize {
            return Err(ModelError::Short { index, found: bytes.len(), expected: request.len });
        }
        for ((block, found), &expected) in (first..).zip(found).zip(versions) {
            let is = |version: u32| {
                let mut bytes = Vec::with_capacity(found.len());
                stamp(block, version, self.block_bytes, &mut bytes);
                bytes == found
            };
            if !(expected..=self.versions[block as usize]).any(is) {
                let version = u32::from_le_bytes([found[8], found[9], found[10], found[11]]);
                let found = if is(version) { version.to_string() } else { "of another block".into() };
                return Err(ModelError::WrongBytes { index, block, found, expected });
            }
        }
        Ok(())
    }
}

/// Appends the contents of `block` in its `version`. Version 0 was never written.
fn stamp(block: u64, version: u32, block_bytes: u64, out: &mut Vec<u8>) {
    let end = out.len() + block_bytes as usize;
    if version > 0 {
        let word = (block << 32 | u64::from(version)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        out.extend_from_slice(&block.to_le_bytes());
        out.extend_from_slice(&u64::from(version).to_le_bytes());
        while out.len() < end {
            out.extend_from_slice(&word);
        }
    }
    out.resize(end, 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_netram::Policy;

    fn model() -> Model {
        let config = Config {
            policy: Policy::Adaptive,
            block_bytes: 1024,
            bytes: Some(1 << 20),
            idle_cleaning: false,
            timeout_ms: 0,
            ..Config::default()
        };
        Model::new(&config, &[512 << 10; 5], Network::ATM).unwrap()
    }

    fn request(kind: Kind, at: u64, len: u32) -> Request {
        Request { time_ns: 0, kind, at, len, device: 0 }
    }

    #[test]
    fn a_lost_write_and_a_misplaced_block_are_noticed() {
        let mut model = model();
        model.run(&[request(Kind::Write, 4096, 2048), request(Kind::Read, 0, 16384)], Pace::BackToBack).unwrap();
        // Pretend that block 4 was written once more and the write was lost.
        model.versions[4] += 1;
        let error = model.run(&[request(Kind::Read, 4096, 1024)], Pace::BackToBack).unwrap_err();
        assert!(matches!(error, ModelError::WrongBytes { block: 4, expected: 2, .. }), "{error}");
        let (mut right, mut other) = (vec![], vec![]);
        stamp(4, 2, 1024, &mut right);
        stamp(5, 2, 1024, &mut other);
        assert_eq!(model.compare(1, &request(Kind::Read, 4096, 1024), &[2], &right), Ok(()));
        assert!(model.compare(1, &request(Kind::Read, 4096, 1024), &[2], &other).is_err());
        assert!(model.compare(1, &request(Kind::Read, 4096, 1024), &[2], &right[1..]).is_err());
    }

    #[test]
    fn what_the_engine_counts_is_what_went_over_the_link() {
        let mut model = model();
        model.fill().unwrap();
        let mut random = shoal_sim::Random::new(3);
        let requests: Vec<Request> = (0..3000)
            .map(|n| {
                let len = 1024 * (1 + random.below(8));
                let at = random.below((1 << 20) / 1024 - 8) * 1024;
                request(if n % 4 == 0 { Kind::Read } else { Kind::Write }, at, len as u32)
            })
            .collect();
        model.run(&requests, Pace::BackToBack).unwrap();
        let cost = model.cost();
        assert!(cost.counts.groups_cleaned > 0);
        let mut messages = 0;
        for purpose in [Purpose::Read, Purpose::Write, Purpose::Clean, Purpose::Repair, Purpose::Upkeep] {
            let traffic = cost.counts.traffic(purpose);
            let bytes = traffic.read_bytes + traffic.written_bytes;
            let expected = traffic.operations as f64 * 1e6 + bytes as f64 * 8000.0 / Network::ATM.mbit;
            // Every message is rounded to a nanosecond.
            let off = (cost.of(purpose) as f64 - expected).abs();
            assert!(off <= traffic.operations as f64, "{purpose:?}: off by {off} ns");
            messages += traffic.operations;
        }
        assert_eq!(cost.messages, messages);
    }

    #[test]
    fn the_pace_of_the_trace_changes_times_of_arrival_and_not_what_is_read() {
        let mut requests: Vec<Request> = (0..200).map(|n| request(Kind::Write, n % 50 * 8192, 8192)).collect();
        requests.extend((0..50).map(|n| request(Kind::Read, n * 8192, 8192)));
        for (n, request) in requests.iter_mut().enumerate() {
            // Gaps from nothing to more than an hour.
            request.time_ns = n as u64 * n as u64 * 300_000_000;
        }
        let mut model = model();
        model.run(&requests, Pace::Trace).unwrap();
        assert!(model.now_ns >= requests.last().unwrap().time_ns);
        assert!(model.cost().total_ns() < 10_000_000_000);
    }
}
