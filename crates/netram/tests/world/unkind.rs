//! An unkind network and machines: late and repeated delivery, donors that stop and go on, passing
//! errors, passing losses beyond parity, slow donors, flipped bits, and crashes while opening.
//!
//! TCP and processes are simulated as seen by the code that carries operations out (`nbd_link`). A
//! broken connection leaves its requests in a socket buffer: each is carried out at once, up to 300
//! ms later, or never. A donor of ours settles that before a newer connection transmits (`fenced`).
//! A donor that is stopped longer than the client's patience is away for it, and comes back with
//! all it held.
//!
//! Rule: a flushed block is read back as written, or its read fails. It never reads as zeros or as
//! older data. When everything has healed, every read succeeds.

use std::collections::BTreeMap;

use shoal_netram::{DiskError, DonorError, DonorId, DonorOp, DonorState, NotBack, Past, Policy, Trouble as Why};
use shoal_sim::Random;

use super::brief::Fate;
use super::{FRONT, Flight, SECTOR, World, random_config};

/// How long a client waits for a donor before the donor is away (ns).
const PATIENCE_NS: u64 = 500_000_000;
/// Everything must be in order again within this time (ns).
const HEAL_NS: u64 = 400_000_000_000;
/// How late a request of a dead connection is carried out at most, unless a life sets more (ns).
const LATE_NS: u64 = 300_000_000;

/// The troubles of one donor.
#[derive(Clone, Default)]
pub struct Trouble {
    /// A donor of ours: it settles requests of older connections before a newer one transmits.
    pub fenced: bool,
    pub stopped: bool,
    /// The client has given up waiting.
    pub away: bool,
    refuses_writes_until: u64,
    /// Which of the refused writes it may have done in part.
    pub tears: Tears,
    refuses_reads_until: u64,
    pub slow: u64,
    /// The donor leaves one in this many writes of units unanswered for some seconds; 0: none.
    pub silent_of: u64,
    /// Requests in the buffers of closed connections.
    buffered: Vec<DonorOp>,
}

impl Trouble {
    pub fn slow(&self) -> u64 {
        self.slow.max(1)
    }
}

/// Which refused writes a donor may have done in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tears {
    #[default]
    Anywhere,
    /// Only the beginning of each write: a header or two.
    InHeads,
    /// Only superblocks.
    InSuperblocks,
    Nowhere,
}

enum Event {
    /// A request of a dead connection.
    Late(usize, DonorOp),
    /// The client's patience with a stopped donor is over.
    GivenUp(usize, u64),
    /// A stopped donor goes on.
    GoesOn(usize, u64),
    /// All requests of dead connections have arrived at a donor that knows no clients.
    Settled(usize),
}

#[derive(Default)]
pub struct Unkind {
    pub is_on: bool,
    events: BTreeMap<(u64, u64), Event>,
    next: u64,
    /// How late a request of a dead connection may be carried out, if later than usual (ns).
    pub late_ns: u64,
    /// Bits have flipped: reads may fail for good.
    pub damaged: bool,
    /// The disk is gone: more donors are dead or not caught up than there is parity.
    pub over: bool,
    /// A client may still be alive when another one opens the disk.
    pub ghosts: bool,
    /// How often each fault was injected, to prove that some were.
    pub faults: BTreeMap<&'static str, u64>,
}

impl Unkind {
    pub fn next_due(&self) -> Option<u64> {
        self.events.first_key_value().map(|(&(due, _), _)| due)
    }

    fn at(&mut self, due: u64, event: Event) {
        self.next += 1;
        self.events.insert((due, self.next), event);
    }
}

impl World {
    /// Carries out an operation in the donor's present state.
    pub(super) fn answer(&mut self, donor: usize, op: DonorOp) -> Result<Vec<u8>, DonorError> {
        let now = self.now;
        let trouble = &self.donors[donor].trouble;
        if trouble.away || !self.donors[donor].alive {
            return Err(DonorError::new(Why::Away, "not to be reached"));
        }
        let refused = |why: &str| Err(DonorError::new(Why::Refused, why));
        match op {
            DonorOp::Read { .. } if now < trouble.refuses_reads_until => refused("Input/output error"),
            DonorOp::Write { at, .. }
                if now < trouble.refuses_writes_until
                    && (trouble.tears == Tears::Nowhere
                        || (trouble.tears == Tears::InSuperblocks && at as usize >= FRONT)) =>
            {
                refused("No space left on device")
            }
            DonorOp::Write { at, bytes } if now < trouble.refuses_writes_until && trouble.tears == Tears::InHeads => {
                let some = self.random.below(1100.min(bytes.len() as u64)) as usize;
                let part = DonorOp::Write { at, bytes: bytes[..some].to_vec() };
                let _ = self.carry_out(donor, part);
                refused("No space left on device")
            }
            DonorOp::Write { at, bytes } if now < trouble.refuses_writes_until => {
                self.tear(donor, at, &bytes);
                refused("No space left on device")
            }
            op => self.carry_out(donor, op),
        }
    }

    /// Does some of a write: nothing, the bytes up to a random one, or a random set of its sectors.
    fn tear(&mut self, donor: usize, at: u64, bytes: &[u8]) {
        let mut put = |from: usize, to: usize| {
            let memory = &mut self.donors[donor].bytes[at as usize..][..bytes.len()];
            memory[from..to].copy_from_slice(&bytes[from..to]);
        };
        match self.random.below(4) {
            0 => {}
            1 | 2 => put(0, self.random.below(bytes.len() as u64 + 1) as usize),
            _ => {
                for from in (0..bytes.len()).step_by(SECTOR) {
                    if self.random.below(2) == 0 {
                        put(from, (from + SECTOR).min(bytes.len()));
                    }
                }
            }
        }
    }

    /// Decides the fate of requests in the buffers of closed connections.
    fn settle_buffers(&mut self, donor: usize, ops: Vec<DonorOp>) {
        let mut ops = ops;
        while !ops.is_empty() {
            let op = ops.swap_remove(self.random.below(ops.len() as u64) as usize);
            let late = self.random.below(3);
            if late == 0 || (late == 1 && self.donors[donor].trouble.fenced) {
                let _ = self.carry_out(donor, op);
            } else if late == 1 {
                let due = self.now + 1 + self.random.below(self.unkind.late_ns.max(LATE_NS));
                self.unkind.at(due, Event::Late(donor, op));
            }
        }
    }

    fn take_flights(&mut self, donor: usize) -> Vec<Flight> {
        let keys: Vec<_> =
            self.flights.iter().filter(|(_, flight)| flight.donor == donor).map(|(&key, _)| key).collect();
        keys.into_iter().filter_map(|key| self.flights.remove(&key)).collect()
    }

    /// Breaks a donor's connection and makes a new one at once. Repeats operations where that is
    /// safe.
    pub fn sever(&mut self, donor: usize) -> Result<(), DiskError> {
        if self.donors[donor].trouble.stopped {
            return Ok(());
        }
        let flights = self.take_flights(donor);
        self.settle_buffers(donor, flights.iter().map(|flight| flight.op.clone()).collect());
        let fenced = self.donors[donor].trouble.fenced;
        let now = self.now;
        let (repeated, uncertain): (Vec<_>, Vec<_>) =
            flights.into_iter().partition(|flight| fenced || matches!(flight.op, DonorOp::Read { .. }));
        for flight in uncertain {
            let error = DonorError::new(Why::Uncertain, "the connection broke");
            self.engine().done(flight.ticket, Err(error), now);
        }
        for flight in repeated {
            let due = self.now + 1_000_000 + self.random.below(self.latency_ns);
            self.flights.insert((due, self.next_flight), flight);
            self.next_flight += 1;
        }
        self.collect()
    }

    /// Stops the donor's process for a while.
    pub fn stop(&mut self, donor: usize, for_ns: u64) {
        if self.donors[donor].trouble.stopped {
            return;
        }
        self.donors[donor].trouble.stopped = true;
        let until = self.now + for_ns;
        self.donors[donor].silent_until = until;
        for flight in self.take_flights(donor) {
            self.flights.insert((until + 1 + self.random.below(self.latency_ns), self.next_flight), flight);
            self.next_flight += 1;
        }
        if for_ns > PATIENCE_NS {
            self.unkind.at(self.now + PATIENCE_NS, Event::GivenUp(donor, until));
        }
        self.unkind.at(until, Event::GoesOn(donor, until));
    }

    pub(super) fn trouble_step(&mut self) -> Result<(), DiskError> {
        let ((due, _), event) = self.unkind.events.pop_first().expect("asked before");
        self.now = self.now.max(due);
        match event {
            Event::Late(donor, op) => {
                let _ = self.carry_out(donor, op);
            }
            Event::GivenUp(donor, _) => self.go_away(donor)?,
            Event::GoesOn(donor, _) => {
                let ops = std::mem::take(&mut self.donors[donor].trouble.buffered);
                self.settle_buffers(donor, ops);
                self.donors[donor].trouble.stopped = false;
                if self.donors[donor].trouble.away {
                    match self.donors[donor].trouble.fenced {
                        true => self.come_back(donor)?,
                        // Its units are not used before the requests have settled.
                        false => self.unkind.at(self.now + LATE_NS + 1, Event::Settled(donor)),
                    }
                }
            }
            Event::Settled(donor) if self.donors[donor].trouble.stopped => {}
            Event::Settled(donor) => self.come_back(donor)?,
        }
        Ok(())
    }

    /// The client's patience with a donor is over: it is away.
    pub(super) fn go_away(&mut self, donor: usize) -> Result<(), DiskError> {
        self.donors[donor].trouble.away = true;
        let flights = self.take_flights(donor);
        let now = self.now;
        for flight in flights {
            self.donors[donor].trouble.buffered.push(flight.op);
            if let Some(engine) = &mut self.engine {
                engine.done(flight.ticket, Err(DonorError::new(Why::Away, "no answer")), now);
            }
        }
        if self.engine.is_some() {
            if let Some(number) = self.number_of(donor) {
                self.engine().lost(number, now);
            }
            self.collect()?;
        }
        Ok(())
    }

    /// Returns the number under which the disk uses this donor. A donor that came back as another
    /// also had an older number, which may be reused.
    pub(super) fn number_of(&mut self, donor: usize) -> Option<DonorId> {
        let status = self.engine().status();
        let used =
            |number: &usize| status.donors[*number].state.is_in_use() && self.numbers.get(*number) == Some(&donor);
        (0..status.donors.len()).find(used).map(|number| number as DonorId)
    }

    /// Lets the client reach a donor again that was away.
    pub(super) fn come_back(&mut self, donor: usize) -> Result<(), DiskError> {
        let was_away = std::mem::take(&mut self.donors[donor].trouble.away);
        if !was_away || !self.donors[donor].alive {
            return Ok(());
        }
        let (info, now) = (self.info(donor), self.now);
        let fenced = self.donors[donor].trouble.fenced;
        let front = self.donors[donor].bytes[..FRONT].to_vec();
        let Some(engine) = &mut self.engine else { return Ok(()) };
        match engine.back(info.clone(), &front, fenced, now) {
            Ok(number) => self.numbers[number as usize] = donor,
            Err(NotBack::Later) => {
                self.donors[donor].trouble.away = true;
                self.unkind.at(self.now + LATE_NS, Event::Settled(donor));
            }
            Err(NotBack::Stranger) => {
                // The disk has excluded it meanwhile.
                self.joins_again(donor)?;
            }
        }
        self.collect()
    }

    /// Wipes a donor and lets it join as another.
    pub(super) fn joins_again(&mut self, donor: usize) -> Result<(), DiskError> {
        self.donors[donor].bytes[..FRONT].fill(0);
        self.add(donor, if self.donors[donor].trouble.fenced { Past::Over } else { Past::MayWrite })?;
        self.collect()
    }

    /// Leaves a dead client's operations in flight in buffers.
    pub(super) fn leave_behind(&mut self, flights: Vec<Flight>) {
        for donor in 0..self.donors.len() {
            let ops = flights.iter().filter(|flight| flight.donor == donor).map(|flight| flight.op.clone()).collect();
            if self.donors[donor].trouble.stopped {
                self.donors[donor].trouble.buffered.extend::<Vec<_>>(ops);
                self.donors[donor].trouble.away = true;
            } else {
                self.settle_buffers(donor, ops);
            }
        }
    }

    pub(super) fn count(&mut self, fault: &'static str) {
        *self.unkind.faults.entry(fault).or_default() += 1;
    }

    /// Lets the client die and decides the fate of its operations in flight.
    pub(super) fn client_leaves(&mut self, fate: Fate) {
        self.engine = None;
        let flights = std::mem::take(&mut self.flights);
        self.pending.clear();
        let done = match fate {
            Fate::Late => return self.leave_behind(flights.into_values().collect()),
            Fate::Nothing => 0,
            Fate::Each => 1,
            Fate::Everything => 2,
        };
        for (_, flight) in flights {
            if done > self.random.below(2) && self.donors[flight.donor].is_there() {
                let _ = self.answer(flight.donor, flight.op);
            }
        }
        self.leave_behind(Vec::new());
    }

    /// Makes a donor refuse writes for a moment.
    pub(super) fn refuse_writes(&mut self, donor: usize) {
        self.donors[donor].trouble.refuses_writes_until = self.now + self.random.below(300_000_000);
    }

    /// Makes a donor refuse writes for this time, and do nothing of them.
    pub(super) fn refuse_all_of_writes(&mut self, donor: usize, for_ns: u64) {
        let trouble = &mut self.donors[donor].trouble;
        (trouble.refuses_writes_until, trouble.tears) = (self.now + for_ns, Tears::Nowhere);
    }

    /// Makes a donor refuse reads for a moment.
    pub(super) fn refuse_reads(&mut self, donor: usize) {
        self.donors[donor].trouble.refuses_reads_until = self.now + self.random.below(300_000_000);
    }

    /// Lets the client die and another one open the disk when possible. It may die while opening.
    pub fn reopen(&mut self) -> Result<(), DiskError> {
        if self.unkind.ghosts && self.random.below(2) == 0 {
            self.count("client stands still");
            self.stands_still();
        } else {
            self.count("client dies");
            self.client_dies();
        }
        loop {
            if !self.open_when_possible()? {
                return Ok(());
            }
            if self.random.below(4) > 0 {
                return self.pin();
            }
            self.count("dies while opening");
            for _ in 0..self.random.below(60) {
                if !self.step()? {
                    self.tick(50_000_000)?;
                }
            }
            self.client_dies();
        }
    }

    /// Opens the disk once that is possible. Returns false if it never will be.
    pub(super) fn open_when_possible(&mut self) -> Result<bool, DiskError> {
        loop {
            if self.donors.iter().any(|donor| !donor.trouble.fenced) {
                // When the dead client's lease ends, its requests to donors that know no clients
                // have arrived.
                let until = self.now + LATE_NS + 1;
                while self.unkind.next_due().is_some_and(|due| due <= until) {
                    self.trouble_step()?;
                }
                self.now = self.now.max(until);
            }
            let given: Vec<usize> = (0..self.donors.len()).filter(|&n| self.donors[n].alive).collect();
            match self.open(&given) {
                Ok(()) => return Ok(true),
                Err(DiskError::TooFewDonors { .. }) => {
                    self.count("too few donors to open");
                    // None of them is dead: try again.
                    match self.unkind.next_due() {
                        Some(_) => self.trouble_step()?,
                        None => {
                            // One donor is dead, and another was not taken back completely before
                            // the client died.
                            self.unkind.over = true;
                            return Ok(false);
                        }
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Brings everything back that may come back, and waits until all is in order.
    pub fn heal(&mut self) -> Result<(), DiskError> {
        for donor in &mut self.donors {
            donor.trouble.refuses_reads_until = 0;
            donor.trouble.refuses_writes_until = 0;
            donor.trouble.slow = 1;
        }
        let begin = self.now;
        loop {
            self.some_steps()?;
            let status = self.engine().status();
            let away = |state| !matches!(state, DonorState::Active | DonorState::Lost | DonorState::Drained);
            let away = (0..status.donors.len()).filter(|&n| away(status.donors[n].state));
            // A dead donor stays away if there is no room to rebuild its contents.
            let is_dead = |number: &usize| {
                self.numbers.get(*number).is_none_or(|&n| !self.donors.get(n).is_some_and(|d| d.alive))
            };
            let (dead, away): (Vec<usize>, Vec<usize>) = away.partition(is_dead);
            let expected = dead.iter().any(|&number| status.donors[number].state == DonorState::Missing);
            let full = self.unkind.damaged || status.groups_degraded == 0 || (status.full && !expected);
            if away.is_empty() && status.ready && full {
                return self.settle();
            }
            if away.is_empty() && status.ready && expected && self.now - begin > HEAL_NS / 2 {
                // Its late writes may have arrived: only an administrator can say that they have
                // not.
                self.count("dead donor is forgotten");
                for number in dead {
                    let now = self.now;
                    self.engine().forget(number as u16, now)?;
                    self.collect()?;
                }
            }
            if self.now - begin > HEAL_NS {
                return Err(Self::fault(format!("not in order again: {status:?}")));
            }
            self.tick(50_000_000)?;
        }
    }

    /// Returns whether opening may wait for a list of trims lost to a flipped bit and a dead donor.
    pub(super) fn cannot_open(&mut self) -> bool {
        let is_dead = self.donors.iter().any(|donor| !donor.alive);
        is_dead && self.unkind.damaged && !self.engine().status().ready
    }

    pub(super) fn any_donor(&mut self) -> usize {
        let alive: Vec<usize> = (0..self.donors.len()).filter(|&n| self.donors[n].alive).collect();
        alive[self.random.below(alive.len() as u64) as usize]
    }

    /// Injects a random trouble.
    pub(super) fn trouble(&mut self, kinds: Kinds) -> Result<(), DiskError> {
        let several = 1 + self.random.below(3);
        match self.random.below(100) {
            0..24 if kinds.late => {
                let donor = self.any_donor();
                self.count("connection breaks");
                self.sever(donor)?;
            }
            24..36 if kinds.late => self.reopen()?,
            36..56 if kinds.hiccups => {
                for _ in 0..several {
                    let donor = self.any_donor();
                    let until = self.now + self.random.below(300_000_000);
                    let trouble = &mut self.donors[donor].trouble;
                    match self.random.below(2) {
                        0 => trouble.refuses_writes_until = until,
                        _ => trouble.refuses_reads_until = until,
                    }
                    self.count("donor refuses");
                }
            }
            56..72 if kinds.hiccups => {
                for _ in 0..several {
                    let donor = self.any_donor();
                    let for_ns = self.random.below(4 * PATIENCE_NS);
                    self.count(if for_ns > PATIENCE_NS { "donor goes away" } else { "donor stops" });
                    self.stop(donor, for_ns);
                }
            }
            72..80 if kinds.hiccups => {
                let donor = self.any_donor();
                self.donors[donor].trouble.slow = 1 + self.random.below(20);
                self.count("donor is slow");
            }
            80..84 if kinds.flips => {
                let donor = self.any_donor();
                let (at, bit) = (self.random.below(self.donors[donor].bytes.len() as u64), self.random.below(8));
                // A damaged header looks like one of a write that was never answered. So with one
                // parity no donor may be missing beside it.
                if self.config.parity > 1 || !self.is_in_header(at as usize) {
                    self.donors[donor].bytes[at as usize] ^= 1 << bit;
                    self.unkind.damaged = true;
                    self.count("bit flips");
                }
            }
            84..88 if kinds.changes => {
                let healthy = self.is_healthy();
                let counting = self.counting();
                if healthy && counting.len() > self.config.parity as usize + 2 {
                    let donor = counting[self.random.below(counting.len() as u64) as usize];
                    let now = self.now;
                    self.count("donor is drained");
                    self.engine().drain(donor, now);
                    self.collect()?;
                }
            }
            88..91 if kinds.changes => {
                self.join(132_000);
                let fenced = self.random.below(2) == 0;
                self.donors.last_mut().expect("just joined").trouble.fenced = fenced;
                self.count("donor joins");
                self.collect()?;
            }
            91..94 if kinds.changes => {
                // It dies for good. Its contents can be rebuilt from the others.
                let counting = self.counting();
                if self.is_healthy() && counting.len() > self.config.parity as usize + 2 {
                    let victim = counting[self.random.below(counting.len() as u64) as usize];
                    self.count("donor dies");
                    self.kill(victim);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The kinds of trouble in a life.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kinds {
    pub(super) late: bool,
    pub(super) hiccups: bool,
    pub(super) flips: bool,
    pub(super) changes: bool,
    pub(super) clients: bool,
}

/// A life with late and repeated delivery only, after reconnections and deaths of the client.
pub fn late(seed: u64) -> Result<u64, DiskError> {
    life(seed ^ 0x1a7e, Kinds { late: true, ..Kinds::default() }).map(|faults| faults.values().sum())
}

/// A life with passing troubles only: refusals, and stopped donors, more at once than parity
/// covers.
pub fn hiccups(seed: u64) -> Result<u64, DiskError> {
    life(seed ^ 0x41cc, Kinds { hiccups: true, ..Kinds::default() }).map(|faults| faults.values().sum())
}

/// A life with faults of every kind except clients.
pub fn everything(seed: u64) -> Result<BTreeMap<&'static str, u64>, DiskError> {
    let flips = seed.is_multiple_of(4);
    life(seed ^ 0xa11, Kinds { late: true, hiccups: true, flips, changes: !seed.is_multiple_of(3), clients: false })
}

/// A life with late answers and hiccups, and with clients that stand still while others own the
/// disk.
pub fn clients(seed: u64) -> Result<BTreeMap<&'static str, u64>, DiskError> {
    let kinds = Kinds { late: true, hiccups: true, changes: seed.is_multiple_of(2), clients: true, flips: false };
    life(seed ^ 0x2c11e, kinds)
}

/// Drains a donor while others refuse for a moment, stop, and lose connections. Returns how often
/// the drain was begun before it ended; 0: there was no room for it.
pub fn drained(seed: u64) -> Result<u64, DiskError> {
    let mut random = Random::new(seed ^ 0xd7a1);
    let parity = 1 + random.below(2) as u8;
    let donors = parity as usize + 2 + random.below(3) as usize;
    let bytes = 200_000 + 4096 * random.below(8);
    let config = shoal_netram::Config {
        policy: [Policy::Adaptive, Policy::Caching, Policy::Logging][random.below(3) as usize],
        uuid: [7; 16],
        block_bytes: 512,
        buffer_blocks: 1 + random.below(8) as u16,
        parity,
        width: (donors - 1) as u8,
        // About half of what the donors can hold without one of them.
        bytes: Some(bytes * (donors - 1 - parity as usize) as u64 * (30 + random.below(35)) / 100 / 512 * 512),
        timeout_ms: 200,
        ..shoal_netram::Config::default()
    };
    // Small units need more room for headers.
    let Ok(mut world) = World::new(seed, config, donors, bytes) else { return Ok(0) };
    world.unkind.is_on = true;
    for donor in &mut world.donors {
        donor.trouble.fenced = random.below(3) > 0;
    }
    world.fill()?;
    world.flush()?;
    world.rest()?;
    let number = random.below(donors as u64) as DonorId;
    if !world.engine().drain_room(number).fits() {
        return Ok(0);
    }
    let now = world.now;
    world.engine().drain(number, now);
    world.collect()?;
    for _ in 0..200 {
        world.random_request(1)?;
        for _ in 0..1000 {
            if world.in_flight() <= 6 || !world.step()? {
                break;
            }
        }
        if world.random.below(8) == 0 {
            world.tick(30_000_000)?;
        }
        if world.random.below(20) == 0 {
            let donor = world.any_donor();
            match world.random.below(3) {
                0 => world.refuse_writes(donor),
                1 => world.sever(donor)?,
                _ => world.stop(donor, PATIENCE_NS / 2),
            }
        }
    }
    world.heal()?;
    // Begin a drain again that found no room, as its keeper does.
    for tries in 1..=5 {
        let status = world.engine().status();
        match status.donors[number as usize].state {
            DonorState::Drained => return Ok(tries),
            DonorState::Active if world.engine().drain_room(number).fits() => {
                let now = world.now;
                world.engine().drain(number, now);
                world.collect()?;
                world.heal()?;
            }
            // Units that broken connections may still write to are unused: there is less room now.
            DonorState::Active => return Ok(0),
            _ => return Err(World::fault(format!("the drain does not end: {status:?}"))),
        }
    }
    let room = world.engine().drain_room(number);
    Err(World::fault(format!("the drain is given up again and again: {room:?} {:?}", world.engine().status())))
}

fn life(seed: u64, kinds: Kinds) -> Result<BTreeMap<&'static str, u64>, DiskError> {
    let mut random = Random::new(seed);
    let (mut config, donors) = random_config(&mut random);
    while !config.policy.is_redundant() {
        config.policy = Policy::ALL[random.below(7) as usize];
    }
    config.patience_ms = 3000;
    let block = config.block_bytes as usize / SECTOR;
    let mut world = World::new(seed, config, donors, 132_000)?;
    (world.unkind.is_on, world.unkind.ghosts) = (true, kinds.clients);
    let ours = random.below(3);
    for donor in &mut world.donors {
        donor.trouble.fenced = ours == 0 || (ours == 1 && random.below(2) == 0);
    }
    let lived = live(&mut world, kinds, block);
    if !world.unkind.over {
        lived?;
    } else {
        world.count("life over");
    }
    Ok(std::mem::take(&mut world.unkind.faults))
}

/// Runs a life, which ends early when the disk cannot be opened any more.
fn live(world: &mut World, kinds: Kinds, block: usize) -> Result<(), DiskError> {
    for step in 0..300 {
        let at = |error: DiskError| DiskError::Config(format!("step {step}: {error}"));
        world.random_request(block)?;
        for _ in 0..1000 {
            if world.in_flight() <= 6 || !world.step().map_err(at)? {
                break;
            }
        }
        if world.random.below(8) == 0 {
            world.tick(30_000_000).map_err(at)?;
        }
        if world.random.below(12) == 0 {
            world.trouble(kinds).map_err(at)?;
            if world.unkind.over {
                return Ok(());
            }
        }
        match world.random.below(60) {
            0 => world.settle().map_err(at)?,
            1 => world.rest().map_err(at)?,
            2 if !world.unkind.damaged => world.heal().map_err(at)?,
            3 => world.ghosts_go_on().map_err(at)?,
            _ => {}
        }
        world.errors.retain(|error| {
            use DiskError::{NoSpace, NotOpen, TooFewDonors, Unavailable};
            !matches!(error, NoSpace | NotOpen | TooFewDonors { .. } | Unavailable { .. })
        });
        if !world.errors.is_empty() {
            return Err(at(world.errors.remove(0)));
        }
    }
    let damaged = world.unkind.damaged;
    world.heal()?;
    world.errors.clear();
    let check = |result: Result<(), DiskError>| match result {
        Err(DiskError::Unavailable { .. }) if damaged => Ok(()),
        other => other,
    };
    check(world.check_all())?;
    world.errors.clear();
    world.reopen()?;
    if world.unkind.over {
        return Ok(());
    }
    world.ghosts_go_on()?;
    world.heal()?;
    world.errors.clear();
    check(world.check_all())?;
    world.report_is_true()
}
