//! A world for the engine: donors, a network and time, all from one seed, and a model of what the disk must hold.
//!
//! The model knows for each sector every value that was ever written to it, in order, and up to
//! where a flush or a read has promised one. A value is a number, and a sector is filled with it.
//! Rules: with a running client a read returns the last acknowledged value, or one in flight at the
//! same time. After the client's restart a sector holds the last promised value or a later one, and
//! keeps it. (That takes more donors than parity covers: otherwise the client cannot write, so it
//! cannot record what it has not seen.) A sector never holds a value of another sector.

#![allow(dead_code, reason = "each test file uses its part")]

pub mod brief;
pub mod domains;
pub mod forgetting;
pub mod ghost;
pub mod lists;
pub mod losing;
pub mod oracle;
pub mod paces;
pub mod reopening;
pub mod scenes;
pub mod storm;
pub mod truth;
pub mod unkind;

use std::collections::{BTreeMap, HashMap};

use shoal_format::checksum;
use shoal_format::ram::{HEADER_SLOTS, UnitHeader};
use shoal_media::Request;
use shoal_netram::{
    Action, Config, DiskError, DonorError, DonorId, DonorInfo, DonorOp, DonorState, Engine, Past, Plan, Policy,
};
use shoal_sim::Random;

pub const SECTOR: usize = 512;
/// Bytes at the front of a donor, before the units.
pub const FRONT: usize = shoal_netram::SUPERBLOCK_BYTES;
/// A request hangs if it has no answer after this simulated time (ns).
const HANG_NS: u64 = 120_000_000_000;
/// The longest time without a tick.
const TICK_MAX_NS: u64 = 1_000_000_000;
/// Maximum operations on donors in one life: thirty times the usual number.
const FLIGHTS_MAX: u64 = 1_000_000;

/// A donor's memory, under a name that is never used twice.
#[derive(Clone)]
pub struct Donor {
    pub name: String,
    pub bytes: Vec<u8>,
    pub alive: bool,
    /// The donor answers only from this time on (partition, ns).
    pub silent_until: u64,
    /// Its failure domain; 0: its own.
    pub domain: u16,
    /// Its troubles in the unkind world.
    pub trouble: unkind::Trouble,
}

impl Donor {
    pub fn is_there(&self) -> bool {
        self.alive && !self.trouble.stopped && !self.trouble.away
    }
}

struct Flight {
    ticket: u64,
    donor: usize,
    op: DonorOp,
}

/// The values that a sector may hold.
#[derive(Clone, Default)]
struct Sector {
    /// Values in the order of their writes, 0 for zeros. The first is known to be there.
    values: Vec<u64>,
    /// How many of `values` are acknowledged. Later ones are in flight.
    acknowledged: usize,
    /// Index of the value that a flush made safe.
    promised: usize,
    /// Newer values that a client did not find. It had too few donors to record that they do not
    /// count.
    later: Vec<u64>,
}

enum Pending {
    Write {
        at: usize,
        sectors: usize,
    },
    Read {
        at: usize,
        before: Vec<usize>,
    },
    Flush {
        target: Vec<usize>,
    },
    /// A read by a new client. The values that it finds count from then on.
    Pin {
        at: usize,
        sectors: usize,
    },
}

pub struct World {
    pub config: Config,
    plan: Plan,
    pub random: Random,
    pub now: u64,
    pub engine: Option<Engine>,
    pub donors: Vec<Donor>,
    /// The donor behind each of the engine's numbers.
    pub numbers: Vec<usize>,
    flights: BTreeMap<(u64, u64), Flight>,
    pending: HashMap<u64, (u64, Pending)>,
    sectors: Vec<Sector>,
    next_value: u64,
    next_ticket: u64,
    next_flight: u64,
    pub latency_ns: u64,
    pub reads_checked: u64,
    pub errors: Vec<DiskError>,
    /// Start of the next sequential write of each stream.
    streams: Vec<usize>,
    /// After a restart, writes arrive long after reads.
    pub slow_writes: bool,
    /// What happens during the next restart.
    pub meanwhile: Option<Meanwhile>,
    pub unkind: unkind::Unkind,
    /// Former clients that stand still.
    ghosts: Vec<ghost::Ghost>,
    /// The largest size that was asked for (bytes).
    pub asked_bytes: u64,
    /// Some sectors may have `later` values.
    unsettled: bool,
    /// The last failed flush and what it had to make safe, until a later flush succeeds.
    failed_flush: Option<(u64, Vec<usize>)>,
}

/// An event while a new client is still opening the disk.
#[derive(Clone, Copy, Debug)]
pub enum Meanwhile {
    Drain,
    Lose,
    Join,
}

/// Returns a sector that ends with its own CRC32C, as program data often does. The CRC32C of the
/// whole sector is then the same for all values.
fn fill(value: u64) -> [u8; SECTOR] {
    let mut out = [0; SECTOR];
    out.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    if value != 0 {
        let (front, end) = out.split_at_mut(SECTOR - 4);
        end.copy_from_slice(&checksum(0, front).to_le_bytes());
    }
    out
}

impl World {
    pub fn new(seed: u64, config: Config, donors: usize, donor_bytes: u64) -> Result<World, DiskError> {
        World::in_domains(seed, config, &vec![0; donors], donor_bytes)
    }

    /// Makes a world with a donor in each of these failure domains.
    pub fn in_domains(seed: u64, config: Config, domains: &[u16], donor_bytes: u64) -> Result<World, DiskError> {
        let donors = domains.len();
        let mut world = World {
            plan: config.plan(donors)?,
            config: oracle::with_checkpoints(config, seed),
            random: Random::new(seed),
            now: 1,
            engine: None,
            donors: Vec::new(),
            numbers: Vec::new(),
            flights: BTreeMap::new(),
            pending: HashMap::new(),
            sectors: Vec::new(),
            next_value: 1,
            next_ticket: 1,
            next_flight: 1,
            latency_ns: 1_000_000,
            reads_checked: 0,
            errors: Vec::new(),
            streams: vec![0; 3],
            slow_writes: false,
            meanwhile: None,
            unkind: unkind::Unkind::default(),
            ghosts: Vec::new(),
            asked_bytes: 0,
            unsettled: false,
            failed_flush: None,
        };
        for &domain in domains {
            let donor = world.new_donor(donor_bytes);
            world.donors[donor].domain = domain;
        }
        let infos = (0..donors).map(|n| world.info(n)).collect();
        let engine = Engine::create(&world.config, infos, world.now)?;
        world.numbers = (0..donors).collect();
        world.sectors =
            vec![Sector { values: vec![0], acknowledged: 1, ..Sector::default() }; engine.bytes() as usize / SECTOR];
        world.engine = Some(engine);
        world.collect()?;
        world.settle()?;
        Ok(world)
    }

    pub fn new_donor(&mut self, bytes: u64) -> usize {
        let name = format!("donor{}", self.donors.len());
        // The former contents of its memory must not matter.
        let mut memory = vec![0; self.with_room_for_checkpoints(bytes) as usize];
        self.random.fill(&mut memory);
        self.donors.push(Donor {
            name,
            bytes: memory,
            alive: true,
            silent_until: 0,
            domain: 0,
            trouble: unkind::Trouble::default(),
        });
        self.donors.len() - 1
    }

    pub fn info(&self, donor: usize) -> DonorInfo {
        let Donor { name, bytes, domain, .. } = &self.donors[donor];
        DonorInfo { name: name.clone(), bytes: bytes.len() as u64, domain: *domain }
    }

    pub fn engine(&mut self) -> &mut Engine {
        self.engine.as_mut().expect("a client runs")
    }

    pub fn sectors(&self) -> usize {
        self.sectors.len()
    }

    fn fault(text: String) -> DiskError {
        DiskError::Config(text)
    }

    /// Takes and handles the engine's actions.
    pub fn collect(&mut self) -> Result<(), DiskError> {
        loop {
            let actions = self.engine().actions();
            if actions.is_empty() {
                return Ok(());
            }
            for action in actions {
                match action {
                    Action::Donor { ticket, donor, op, .. } => {
                        let donor = self.numbers[donor as usize];
                        let slow = self.slow_writes && matches!(op, DonorOp::Write { .. }) && self.is_pinning();
                        let late = self.random.below(self.latency_ns * self.donors[donor].trouble.slow()) + 1;
                        let late = late + if slow { 100 * self.latency_ns } else { 0 };
                        let late = late + self.held_up(donor, &op);
                        let due = (self.now + late).max(self.donors[donor].silent_until);
                        self.flights.insert((due, self.next_flight), Flight { ticket, donor, op });
                        self.next_flight += 1;
                        if self.next_flight > FLIGHTS_MAX {
                            let status = self.engine().status();
                            let text = format!("{FLIGHTS_MAX} operations in one life: work without end: {status:?}");
                            return Err(Self::fault(text));
                        }
                    }
                    Action::Complete { ticket, result } => self.complete(ticket, result)?,
                }
            }
        }
    }

    fn complete(&mut self, ticket: u64, result: Result<Vec<u8>, DiskError>) -> Result<(), DiskError> {
        let Some((_, pending)) = self.pending.remove(&ticket) else {
            return Err(Self::fault(format!("ticket {ticket} was completed twice")));
        };
        let buffer = match result {
            Ok(buffer) => buffer,
            Err(error) => {
                if let Pending::Pin { at, sectors } = pending {
                    // The sector holds one of those values.
                    for sector in &mut self.sectors[at..at + sectors] {
                        let mut values = sector.values.split_off(sector.promised);
                        values.append(&mut sector.later);
                        *sector = Sector { values, acknowledged: 1, ..Sector::default() };
                    }
                    return if self.unkind.is_on { Ok(()) } else { Err(error) };
                }
                if let Pending::Flush { target } = pending {
                    self.failed_flush = Some((ticket, target));
                }
                self.errors.push(error);
                return Ok(());
            }
        };
        match pending {
            Pending::Pin { at, .. } => {
                let is_known = self.is_known();
                self.unsettled |= !is_known;
                for (n, bytes) in buffer.chunks_exact(SECTOR).enumerate() {
                    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                    let sector = &mut self.sectors[at + n];
                    let mut allowed = sector.values.split_off(sector.promised);
                    allowed.append(&mut sector.later);
                    // Take the last match: zeros may be there twice, and nobody can tell which they
                    // are.
                    let Some(place) = allowed.iter().rposition(|&one| bytes == fill(value) && one == value) else {
                        let text = format!("sector {} holds {value} after the restart, allowed {allowed:?}", at + n);
                        return Err(Self::fault(text));
                    };
                    // Unflushed values may disappear until they are flushed, as from a disk's own
                    // cache. No newer value may appear.
                    let mut later = allowed.split_off(place + 1);
                    if is_known {
                        later.clear();
                    }
                    let first = if self.unkind.is_on { 0 } else { place };
                    let values = allowed.split_off(first);
                    *sector = Sector { acknowledged: values.len(), values, promised: 0, later };
                }
            }
            Pending::Write { at, sectors } => {
                for sector in &mut self.sectors[at..at + sectors] {
                    sector.acknowledged = sector.values.len();
                }
            }
            Pending::Read { at, before } => {
                for (n, bytes) in buffer.chunks_exact(SECTOR).enumerate() {
                    self.reads_checked += 1;
                    let value = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
                    if bytes != fill(value) {
                        return Err(Self::fault(format!("sector {} is torn", at + n)));
                    }
                    let sector = &mut self.sectors[at + n];
                    // Allowed: the last value acknowledged when the read began, or any later one.
                    let allowed = &sector.values[before[n] - 1..];
                    if !allowed.contains(&value) {
                        let text = format!("sector {} holds {value}, allowed {allowed:?}", at + n);
                        return Err(Self::fault(text));
                    }
                }
            }
            Pending::Flush { target } => {
                // The disk may have grown since.
                for (sector, target) in self.sectors.iter_mut().zip(target) {
                    sector.promised = sector.promised.max(target);
                }
                self.failed_flush.take_if(|(failed, _)| *failed < ticket);
            }
        }
        Ok(())
    }

    pub fn write(&mut self, at: usize, sectors: usize, fua: bool) -> Result<(), DiskError> {
        let mut buffer = Vec::with_capacity(sectors * SECTOR);
        for sector in at..at + sectors {
            let value = self.next_value;
            self.next_value += 1;
            buffer.extend_from_slice(&fill(value));
            self.sectors[sector].values.push(value);
        }
        let request = Request::Write { at: (at * SECTOR) as u64, buffer, fua };
        self.submit(request, Pending::Write { at, sectors })
    }

    pub fn trim(&mut self, at: usize, sectors: usize, zeroes: bool) -> Result<(), DiskError> {
        for sector in &mut self.sectors[at..at + sectors] {
            sector.values.push(0);
        }
        let (from, len) = ((at * SECTOR) as u64, (sectors * SECTOR) as u64);
        let request = match zeroes {
            true => Request::WriteZeroes { at: from, len, fua: false },
            false => Request::Trim { at: from, len },
        };
        self.submit(request, Pending::Write { at, sectors })
    }

    pub fn read(&mut self, at: usize, sectors: usize) -> Result<(), DiskError> {
        let before = self.sectors[at..at + sectors].iter().map(|sector| sector.acknowledged).collect();
        let request = Request::Read { at: (at * SECTOR) as u64, buffer: vec![0; sectors * SECTOR] };
        self.submit(request, Pending::Read { at, before })
    }

    pub fn flush(&mut self) -> Result<(), DiskError> {
        let target = self.sectors.iter().map(|sector| sector.acknowledged - 1).collect();
        self.submit(Request::Flush, Pending::Flush { target })
    }

    fn submit(&mut self, request: Request, pending: Pending) -> Result<(), DiskError> {
        let (ticket, now) = (self.next_ticket, self.now);
        self.next_ticket += 1;
        self.pending.insert(ticket, (now, pending));
        self.engine().submit(ticket, request, now);
        self.collect()
    }

    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether a write to these sectors is in flight. Two writes at the same time have no
    /// order, which the model does not handle.
    pub fn is_busy(&self, at: usize, sectors: usize) -> bool {
        self.pending.values().any(|(_, pending)| match pending {
            Pending::Write { at: other, sectors: len } => at < other + len && *other < at + sectors,
            _ => false,
        })
    }

    /// Runs the next event. Returns false if nothing is in flight.
    pub fn step(&mut self) -> Result<bool, DiskError> {
        let next = self.flights.first_key_value().map(|(&key, _)| key);
        if self.unkind.next_due().is_some_and(|due| next.is_none_or(|(flight, _)| due <= flight)) {
            return self.trouble_step().map(|()| true);
        }
        let Some((due, number)) = next else { return Ok(false) };
        let flight = self.flights.remove(&(due, number)).expect("it is the first");
        self.now = self.now.max(due);
        let result = self.answer(flight.donor, flight.op);
        let now = self.now;
        self.engine().done(flight.ticket, result, now);
        self.collect()?;
        Ok(true)
    }

    /// Runs events, but not for ever without a tick, because a donor may try to come back again and
    /// again.
    fn some_steps(&mut self) -> Result<(), DiskError> {
        for _ in 0..1000 {
            if !self.step()? {
                break;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, donor: usize, op: DonorOp) -> Result<Vec<u8>, DonorError> {
        let donor = &mut self.donors[donor];
        if !donor.alive {
            return Err(DonorError::new(shoal_netram::Trouble::Away, format!("{} is gone", donor.name)));
        }
        match op {
            DonorOp::Read { at, len } => match donor.bytes.get(at as usize..at as usize + len as usize) {
                Some(bytes) => Ok(bytes.to_vec()),
                None => panic!("read of {at}+{len} behind the end of {}", donor.name),
            },
            DonorOp::Write { at, bytes } => {
                donor.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
                Ok(Vec::new())
            }
            DonorOp::Trim { at, len } => {
                donor.bytes[at as usize..(at + len) as usize].fill(0xdd);
                Ok(Vec::new())
            }
        }
    }

    pub fn tick(&mut self, by_ns: u64) -> Result<(), DiskError> {
        self.now += by_ns;
        let now = self.now;
        self.engine().tick(now);
        self.audit()?;
        self.follow_size()?;
        if self.unsettled && self.is_known() {
            self.unsettled = false;
            self.sectors.iter_mut().for_each(|sector| sector.later.clear());
        }
        self.collect()
    }

    /// Grows the model with the disk, which is never smaller than it was.
    fn follow_size(&mut self) -> Result<(), DiskError> {
        let (bytes, before) = (self.engine().bytes(), self.sectors.len());
        if (bytes as usize) < before * SECTOR || bytes > self.asked_bytes.max((before * SECTOR) as u64) {
            let asked = self.asked_bytes;
            return Err(Self::fault(format!("{bytes} bytes, {before} sectors before, {asked} bytes asked for")));
        }
        self.sectors.resize(bytes as usize / SECTOR, Sector { values: vec![0], acknowledged: 1, ..Sector::default() });
        Ok(())
    }

    /// Returns whether enough donors know who was away when this client opened the disk. With only
    /// as many donors as there is parity the disk can be read, but the next client may find other
    /// values.
    fn is_known(&mut self) -> bool {
        let quorum = self.config.parity as usize + 1;
        let enough = self.counting().len() >= quorum || !self.config.policy.is_redundant();
        enough && self.engine().status().epoch_stored
    }

    /// Runs until nothing is in flight and every request is answered.
    pub fn settle(&mut self) -> Result<(), DiskError> {
        let begin = self.now;
        loop {
            self.some_steps()?;
            if self.pending.is_empty() && self.engine().is_ready() {
                return Ok(());
            }
            if self.now - begin > HANG_NS {
                self.unkind.over |= self.cannot_open();
                let status = self.engine().status();
                return Err(Self::fault(format!("{} requests hang: {status:?}", self.pending.len())));
            }
            self.tick(50_000_000)?;
        }
    }

    /// Settles like [`World::settle`], and lets background work finish.
    pub fn rest(&mut self) -> Result<(), DiskError> {
        self.settle()?;
        for _ in 0..200 {
            while self.step()? {}
            let status = self.engine().status();
            if status.repair.is_none() && status.groups_degraded == 0 {
                return Ok(());
            }
            self.tick(50_000_000)?;
        }
        Ok(())
    }

    /// Returns whether this byte of a donor is part of a unit's header.
    pub fn is_in_header(&self, at: usize) -> bool {
        let headers = HEADER_SLOTS * UnitHeader::bytes(self.plan.data, self.plan.buffer);
        at >= FRONT && (at - FRONT) % (headers + self.plan.buffer * self.config.block_bytes as usize) < headers
    }

    pub fn is_healthy(&mut self) -> bool {
        let status = self.engine().status();
        let unnoticed = self.counting().iter().any(|&number| !self.donors[self.numbers[number as usize]].alive);
        let away = |donor: &shoal_netram::DonorStatus| {
            matches!(donor.state, DonorState::Missing | DonorState::Returning | DonorState::Forgotten)
        };
        let unnoticed = unnoticed || status.donors.iter().any(away);
        status.repair.is_none() && status.groups_degraded == 0 && status.ready && status.epoch_stored && !unnoticed
    }

    /// Returns the engine's donors that count.
    pub fn counting(&mut self) -> Vec<DonorId> {
        let status = self.engine().status();
        let counts = |state: DonorState| matches!(state, DonorState::Active | DonorState::Draining);
        (0..status.donors.len()).filter(|&n| counts(status.donors[n].state)).map(|n| n as DonorId).collect()
    }

    /// Adds an empty donor.
    pub fn join(&mut self, bytes: u64) {
        let donor = self.new_donor(bytes);
        self.add(donor, Past::Over).expect("there are not many donors");
    }

    /// Adds an empty donor that was made before.
    pub fn enter(&mut self, donor: usize) -> Result<(), DiskError> {
        self.add(donor, Past::Over)?;
        self.collect()
    }

    /// Adds a donor to the disk, under a number of its own.
    fn add(&mut self, donor: usize, past: Past) -> Result<(), DiskError> {
        let (info, now) = (self.info(donor), self.now);
        let number = self.engine().add(info, past, now)? as usize;
        self.numbers.resize(self.numbers.len().max(number + 1), usize::MAX);
        self.numbers[number] = donor;
        Ok(())
    }

    /// Kills a donor's machine: its memory is gone. Operations in flight to it fail sooner or
    /// later.
    pub fn kill(&mut self, number: DonorId) {
        let donor = self.numbers[number as usize];
        self.donors[donor].alive = false;
    }

    /// Lets the client die. Any part of its operations in flight is carried out.
    fn client_dies(&mut self) {
        self.engine = None;
        let flights = std::mem::take(&mut self.flights);
        self.pending.clear();
        if self.unkind.is_on {
            return self.leave_behind(flights.into_values().collect());
        }
        for (_, flight) in flights {
            if self.random.below(2) == 0 {
                // The dead client does not hear the answer.
                let _ = self.carry_out(flight.donor, flight.op);
            }
        }
    }

    /// Lets the client die and opens the disk again on the given donors.
    pub fn restart(&mut self, given: &[usize]) -> Result<(), DiskError> {
        self.client_dies();
        self.open(given)?;
        self.pin()
    }

    /// Opens the disk on the given donors.
    fn open(&mut self, given: &[usize]) -> Result<(), DiskError> {
        let donors = given.iter().map(|&n| {
            let donor = &self.donors[n];
            (self.info(n), donor.is_there().then(|| donor.bytes[..FRONT].to_vec()))
        });
        let donors: Vec<_> = donors.collect();
        self.compare_openings(given)?;
        let engine = Engine::open(&self.config, donors, self.now)?;
        let status = engine.status();
        // Match donors by name, because the engine has its own order.
        let place = |name: &str| self.donors.iter().position(|donor| donor.name == name).unwrap_or(usize::MAX);
        self.numbers = status.donors.iter().map(|donor| place(&donor.name)).collect();
        self.engine = Some(engine);
        self.follow_size()?;
        let (counting, now) = (self.counting(), self.now);
        let donor = counting[self.random.below(counting.len() as u64) as usize];
        match self.meanwhile.take() {
            Some(Meanwhile::Drain) => self.engine().drain(donor, now),
            Some(Meanwhile::Lose) => {
                self.kill(donor);
                self.engine().lost(donor, now);
            }
            Some(Meanwhile::Join) => self.join(132_000),
            None => {}
        }
        self.collect()
    }

    /// Reads everything: from now on, what the restart left is what counts.
    fn pin(&mut self) -> Result<(), DiskError> {
        self.ask_for_all()?;
        let begin = self.now;
        let mut ticked = begin;
        while self.is_pinning() {
            if self.now - begin > HANG_NS {
                let status = self.engine().status();
                return Err(Self::fault(format!("a read after the restart hangs: {status:?}")));
            }
            // A donor may try to come back again and again, and time goes on meanwhile.
            if self.now - ticked > TICK_MAX_NS || !self.step()? {
                self.tick(50_000_000)?;
                ticked = self.now;
            }
        }
        Ok(())
    }

    /// Begins to read everything.
    fn ask_for_all(&mut self) -> Result<(), DiskError> {
        for at in (0..self.sectors.len()).step_by(64) {
            let sectors = (self.sectors.len() - at).min(64);
            let request = Request::Read { at: (at * SECTOR) as u64, buffer: vec![0; sectors * SECTOR] };
            self.submit(request, Pending::Pin { at, sectors })?;
        }
        Ok(())
    }

    fn is_pinning(&self) -> bool {
        self.pending.values().any(|(_, pending)| matches!(pending, Pending::Pin { .. }))
    }

    /// Reads all sectors and compares them with the model.
    pub fn check_all(&mut self) -> Result<(), DiskError> {
        for at in (0..self.sectors.len()).step_by(64) {
            self.read(at, (self.sectors.len() - at).min(64))?;
        }
        self.settle()?;
        match self.errors.pop() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Submits a random request. `block`: sectors of a block.
    pub fn random_request(&mut self, block: usize) -> Result<(), DiskError> {
        let total = self.sectors.len();
        let choice = self.random.below(100);
        let aligned = block == 1 || self.random.below(4) > 0;
        let unit = if aligned { block } else { 1 };
        let sectors = ((1 + self.random.below(12)) as usize * unit).min(total);
        let at = match self.random.below(3) {
            0 => {
                let stream = self.random.below(3) as usize;
                let at = self.streams[stream] / unit * unit;
                let at = if at + sectors > total { 0 } else { at };
                self.streams[stream] = at + sectors;
                at
            }
            // Either a hot spot or anywhere.
            1 => self.random.below((total - sectors).min(40) as u64 + 1) as usize / unit * unit,
            _ => self.random.below((total - sectors) as u64 + 1) as usize / unit * unit,
        };
        match choice {
            0..60 if !self.is_busy(at, sectors) => self.write(at, sectors, choice < 3),
            60..85 => self.read(at, sectors),
            85..92 => self.flush(),
            92..100 if !self.is_busy(at, sectors) => self.trim(at, sectors, choice < 96),
            _ => Ok(()),
        }
    }
}

/// Chooses a random configuration and number of donors.
pub fn random_config(random: &mut Random) -> (Config, usize) {
    let policy = Policy::ALL[random.below(7) as usize];
    let parity = if random.below(4) == 0 { 2 } else { 1 };
    let donors = (parity as usize + 1) + random.below(4) as usize;
    let config = Config {
        policy,
        uuid: [7; 16],
        block_bytes: if random.below(2) == 0 { 512 } else { 1024 },
        buffer_blocks: 1 + random.below(8) as u16,
        parity,
        streams: 1 + random.below(3) as u8,
        dedicated_parity: random.below(4) == 0,
        spare_percent: 10 + random.below(40) as u32,
        idle_cleaning: random.below(2) == 0,
        timeout_ms: if random.below(2) == 0 { 0 } else { 200 },
        ..Config::default()
    };
    (config, donors)
}
