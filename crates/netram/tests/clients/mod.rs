//! Clients that compete for one disk, on donors that know no clients, under a model of time.
//!
//! Donors keep leases. Requests and answers take a while, or long. Clients stop and go on, lose
//! their way to donors, and meet another donor at an address. Donors hang, refuse writes, and
//! forget. Clocks run at different rates, and jump when a machine sleeps. Every client acknowledges
//! something every few milliseconds if it may. Rule: when a client has entered, no former client
//! acknowledges anything any more. The rules of leases are those of the live disk
//! (`shoal_netram::ownership`).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use shoal_format::ram::{LEASES, Lease, LeaseClaim};
use shoal_netram::ownership::{
    Domains, Entry, Look, Looks, Outcome, Quorum, RENEW_NS, Refusal, Renewal, Step, Tenure, place_of,
};
use shoal_sim::Random;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
/// Time between two acknowledgements (ns).
const TICK: u64 = 20 * MS;
/// How long a client that enters waits for an answer (ns).
const PATIENCE: u64 = 2 * SECOND;
const DISK: [u8; 16] = [7; 16];

type Leases = [Option<Lease>; LEASES];

#[derive(Clone, Default)]
struct Donor {
    leases: Leases,
    hangs_until: u64,
    refuses_until: u64,
}

#[derive(Clone, Copy)]
enum For {
    /// A step of entering. Steps are numbered, so that late answers are recognised.
    Entry(u32),
    Renewal {
        from_ns: u64,
        asked: bool,
    },
}

#[derive(Clone)]
enum Event {
    Tick(usize),
    Comes {
        client: usize,
        takeover: bool,
    },
    Read {
        client: usize,
        address: usize,
        donor: usize,
        what: For,
    },
    Shown {
        client: usize,
        address: usize,
        leases: Box<Leases>,
        what: For,
    },
    Write {
        client: usize,
        address: usize,
        donor: usize,
        place: usize,
        lease: Box<Lease>,
        what: For,
    },
    Taken {
        client: usize,
        address: usize,
        ok: bool,
        what: For,
    },
    /// The patience or the wait of a step is over.
    Over {
        client: usize,
        step: u32,
    },
}

enum State {
    Away,
    Entering(Box<Entering>),
    Owns(Tenure),
    Refused(Refusal),
    Ended,
}

struct Entering {
    entry: Entry,
    number: u32,
    step: Step,
    looks: Looks,
    taken: Vec<bool>,
    places: Vec<Option<usize>>,
    answers: usize,
    /// When the last read began, by the client's clock (ns).
    from_ns: u64,
}

struct Client {
    id: [u8; 16],
    state: State,
    stopped_until: u64,
    /// Its clock: rate in thousandths of real time, and the time it is ahead (ns).
    rate: u64,
    jumped: u64,
    renewals: u64,
    renewed_at: u64,
    /// The donor that each address leads to.
    way: Vec<usize>,
    /// The donor that each address led to at the last read: writes go to that connection.
    connected: Vec<usize>,
    lost_until: Vec<u64>,
    /// How much longer its writes to each address take (ns).
    lags: Vec<u64>,
    /// Donors that it no longer uses.
    dismissed: Vec<bool>,
}

pub struct World {
    now: u64,
    random: Random,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    waiting: std::collections::HashMap<u64, Event>,
    next: u64,
    donors: Vec<Donor>,
    clients: Vec<Client>,
    quorum: Quorum,
    latency: u64,
    /// The highest epoch with which a client has entered, and that client.
    newest: (u64, usize),
    pub acknowledged: Vec<u64>,
    pub broken: Option<String>,
}

impl World {
    pub fn new(seed: u64, donors: usize, parity: usize, clients: usize) -> World {
        let mut random = Random::new(seed);
        let client = |number: usize, random: &mut Random| {
            let mut id = [0; 16];
            random.fill(&mut id);
            id[0] = number as u8;
            let way: Vec<usize> = (0..donors).collect();
            let (connected, lost_until, dismissed) = (way.clone(), vec![0; donors], vec![false; donors]);
            let lags = vec![0; donors];
            let rate = 960 + random.below(80);
            let (stopped_until, jumped, renewals, renewed_at) = (0, random.below(1 << 40), 1, 0);
            let state = State::Away;
            Client {
                id,
                state,
                stopped_until,
                rate,
                jumped,
                renewals,
                renewed_at,
                way,
                connected,
                lost_until,
                lags,
                dismissed,
            }
        };
        let all = (0..clients).map(|number| client(number, &mut random)).collect();
        let latency = MS << random.below(7);
        World {
            now: 0,
            random,
            events: BinaryHeap::new(),
            waiting: std::collections::HashMap::new(),
            next: 0,
            donors: vec![Donor::default(); donors],
            clients: all,
            quorum: Quorum { counting: donors, parity },
            latency,
            newest: (0, 0),
            acknowledged: vec![0; clients],
            broken: None,
        }
    }

    fn at(&mut self, when: u64, event: Event) {
        self.next += 1;
        self.waiting.insert(self.next, event);
        self.events.push(Reverse((when, self.next)));
    }

    pub fn comes(&mut self, when: u64, client: usize, takeover: bool) {
        self.at(when, Event::Comes { client, takeover });
    }

    pub fn stops(&mut self, client: usize, until: u64) {
        self.clients[client].stopped_until = until;
    }

    /// Cuts this client off from an address.
    pub fn loses(&mut self, client: usize, address: usize, until: u64) {
        self.clients[client].lost_until[address] = until;
    }

    /// Delays a client's writes to an address by this much longer.
    pub fn lags(&mut self, client: usize, address: usize, by: u64) {
        self.clients[client].lags[address] = by;
    }

    /// Lets an address lead to another donor.
    pub fn leads(&mut self, client: usize, address: usize, donor: usize) {
        self.clients[client].way[address] = donor;
    }

    pub fn hangs(&mut self, donor: usize, until: u64) {
        self.donors[donor].hangs_until = until;
    }

    pub fn now(&self) -> u64 {
        self.now
    }

    pub fn owns(&self, client: usize) -> bool {
        matches!(self.clients[client].state, State::Owns(_))
    }

    pub fn refused(&self, client: usize) -> Option<Refusal> {
        match self.clients[client].state {
            State::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }

    fn clock(&self, client: usize) -> u64 {
        let Client { rate, jumped, .. } = self.clients[client];
        self.now / 1000 * rate + jumped
    }

    fn delay(&mut self) -> u64 {
        let long = self.random.below(200) == 0;
        self.random.below(if long { 5 * SECOND } else { self.latency }) + 1
    }

    /// Lets time pass.
    pub fn run_until(&mut self, until: u64) {
        while let Some(&Reverse((when, number))) = self.events.peek().filter(|Reverse((when, _))| *when <= until) {
            self.events.pop();
            self.now = when;
            if let Some(event) = self.waiting.remove(&number) {
                self.happens(event);
            }
        }
        self.now = until;
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Read { donor, .. } | Event::Write { donor, .. } if self.donors[donor].hangs_until > self.now => {
                let when = self.donors[donor].hangs_until + 1;
                self.at(when, event);
            }
            Event::Read { client, address, donor, what } => {
                let leases = Box::new(self.donors[donor].leases);
                let when = self.now + self.delay();
                self.at(when, Event::Shown { client, address, leases, what });
            }
            Event::Write { client, address, donor, place, lease, what } => {
                let ok = self.donors[donor].refuses_until <= self.now;
                if ok {
                    self.donors[donor].leases[place] = Some(*lease);
                }
                let when = self.now + self.delay();
                self.at(when, Event::Taken { client, address, ok, what });
            }
            Event::Tick(client) | Event::Comes { client, .. } | Event::Over { client, .. } => self.awake(client, event),
            Event::Shown { client, .. } | Event::Taken { client, .. } => self.awake(client, event),
        }
    }

    /// Handles an event of a client, later if the client stands still.
    fn awake(&mut self, client: usize, event: Event) {
        let stopped_until = self.clients[client].stopped_until;
        if stopped_until > self.now {
            return self.at(stopped_until, event);
        }
        match event {
            Event::Comes { takeover, .. } => {
                let donors = self.donors.len();
                let marks: Vec<u64> = (1..=donors as u64).collect();
                let domains = Domains::own(donors);
                let entry = Entry::new(self.clients[client].id, takeover, self.quorum, domains, marks);
                let entering = Entering {
                    entry,
                    number: 0,
                    step: Step::Read,
                    looks: vec![None; donors],
                    taken: vec![false; donors],
                    places: vec![None; donors],
                    answers: 0,
                    from_ns: 0,
                };
                self.clients[client].state = State::Entering(Box::new(entering));
                self.goes_on(client, Outcome::Began);
            }
            Event::Over { step, .. } => self.step_is_over(client, step),
            Event::Tick(_) => self.tick(client),
            Event::Shown { address, leases, what, .. } => self.shown(client, address, &leases, what),
            Event::Taken { address, ok, what, .. } => self.taken(client, address, ok, what),
            Event::Read { .. } | Event::Write { .. } => unreachable!("those are the donors'"),
        }
    }

    fn is_lost(&self, client: usize, address: usize) -> bool {
        self.clients[client].lost_until[address] > self.now
    }

    fn read(&mut self, client: usize, address: usize, what: For) {
        if !self.is_lost(client, address) {
            let (donor, when) = (self.clients[client].way[address], self.now + self.delay());
            self.clients[client].connected[address] = donor;
            self.at(when, Event::Read { client, address, donor, what });
        }
    }

    fn write(&mut self, client: usize, address: usize, place: usize, lease: Lease, what: For) {
        if !self.is_lost(client, address) {
            let lag = self.clients[client].lags[address];
            let (donor, when) = (self.clients[client].connected[address], self.now + lag + self.delay());
            self.at(when, Event::Write { client, address, donor, place, lease: Box::new(lease), what });
        }
    }

    fn lease(&mut self, client: usize, address: usize, epoch: u64, claim: LeaseClaim, released: bool) -> Lease {
        let own = &mut self.clients[client];
        own.renewals += 1;
        let mark = address as u64 + 1;
        Lease { uuid: DISK, client: own.id, renewed: own.renewals, released, claim, epoch, mark, bytes: 0 }
    }

    fn goes_on(&mut self, client: usize, outcome: Outcome) {
        let clock = self.clock(client);
        let now = self.now;
        let State::Entering(entering) = &mut self.clients[client].state else { return };
        let step = entering.entry.next(outcome);
        (entering.step, entering.number, entering.answers) = (step, entering.number + 1, 0);
        let number = entering.number;
        let donors = self.donors.len();
        match step {
            Step::Read => {
                (entering.from_ns, entering.looks) = (clock, vec![None; donors]);
                entering.places = vec![None; donors];
                (0..donors).for_each(|address| self.read(client, address, For::Entry(number)));
                self.at(now + PATIENCE, Event::Over { client, step: number });
            }
            // As on the live disk: the read is too old to say anything.
            Step::Write { released: false, .. } if clock - entering.from_ns > 2 * PATIENCE => {
                self.clients[client].state = State::Ended;
            }
            Step::Write { claim, epoch, released } => {
                entering.taken = vec![false; donors];
                let places = entering.places.clone();
                for (address, place) in places.into_iter().enumerate() {
                    let Some(place) = place else { continue };
                    let lease = self.lease(client, address, epoch, claim, released);
                    self.write(client, address, place, lease, For::Entry(number));
                }
                self.at(now + PATIENCE, Event::Over { client, step: number });
            }
            Step::Wait { ns } => {
                let real = ns / self.clients[client].rate * 1000;
                self.at(now + real, Event::Over { client, step: number });
            }
            Step::Entered { epoch } => {
                let mut tenure = Tenure::new(self.clients[client].id, epoch, self.quorum);
                let State::Entering(entering) = &self.clients[client].state else { return };
                let taken = |(address, taken): &(usize, &bool)| **taken && entering.entry.was_shown(*address);
                for (address, _) in entering.taken.iter().enumerate().filter(taken) {
                    tenure.takes_in(address as u64 + 1, entering.from_ns);
                }
                self.clients[client].state = State::Owns(tenure);
                // A client that stood still while it entered may come after a newer one. Then it
                // may do nothing.
                self.newest = self.newest.max((epoch, client));
                self.at(now, Event::Tick(client));
            }
            Step::Refused(refusal) => self.clients[client].state = State::Refused(refusal),
        }
    }

    /// Ends a step: all have answered, or the patience is over.
    fn step_is_over(&mut self, client: usize, number: u32) {
        let State::Entering(entering) = &mut self.clients[client].state else { return };
        if entering.number != number {
            return;
        }
        let outcome = match entering.step {
            Step::Read => Outcome::Read(entering.looks.clone()),
            Step::Write { .. } => Outcome::Written(entering.taken.clone()),
            Step::Wait { .. } => Outcome::Waited,
            Step::Entered { .. } | Step::Refused(_) => return,
        };
        self.goes_on(client, outcome);
    }

    fn shown(&mut self, client: usize, address: usize, leases: &Leases, what: For) {
        let donors = self.donors.len();
        let own = &mut self.clients[client];
        match (&mut own.state, what) {
            (State::Entering(entering), For::Entry(number)) if number == entering.number => {
                entering.looks[address] = Some(Look { leases: *leases, fenced: false });
                entering.places[address] = Some(place_of(leases, &own.id));
                entering.answers += 1;
                if entering.answers == donors {
                    self.step_is_over(client, number);
                }
            }
            (State::Owns(tenure), For::Renewal { from_ns, .. }) => match tenure.seen(address as u64 + 1, leases) {
                Renewal::Write { place, asked } => {
                    let epoch = tenure.epoch;
                    let lease = self.lease(client, address, epoch, LeaseClaim::Owns, false);
                    self.write(client, address, place, lease, For::Renewal { from_ns, asked });
                }
                Renewal::Superseded => {}
                Renewal::Stranger => {
                    tenure.lets_go(address as u64 + 1);
                    own.dismissed[address] = true;
                }
            },
            _ => {}
        }
    }

    fn taken(&mut self, client: usize, address: usize, ok: bool, what: For) {
        let clock = self.clock(client);
        let donors = self.donors.len();
        match (&mut self.clients[client].state, what) {
            (State::Entering(entering), For::Entry(number)) if number == entering.number => {
                entering.taken[address] = ok;
                entering.answers += 1;
                if entering.answers == donors {
                    self.step_is_over(client, number);
                }
            }
            (State::Owns(tenure), For::Renewal { from_ns, asked }) if ok => {
                tenure.renewed(address as u64 + 1, from_ns, asked, clock);
            }
            _ => {}
        }
    }

    /// Renews leases, and acknowledges something if the client may.
    fn tick(&mut self, client: usize) {
        let clock = self.clock(client);
        let State::Owns(tenure) = &self.clients[client].state else { return };
        if tenure.may_change(clock) {
            self.acknowledged[client] = self.now;
            let (_, last) = self.newest;
            if last != client && self.broken.is_none() {
                self.broken =
                    Some(format!("client {client} acknowledges at {} ms beside client {last}", self.now / MS));
            }
        }
        if tenure.is_over() {
            self.clients[client].state = State::Ended;
            return;
        }
        if clock >= self.clients[client].renewed_at + RENEW_NS {
            self.clients[client].renewed_at = clock;
            let address = |address: &usize| !self.clients[client].dismissed[*address];
            let addresses: Vec<usize> = (0..self.donors.len()).filter(address).collect();
            for address in addresses {
                self.read(client, address, For::Renewal { from_ns: clock, asked: false });
            }
        }
        let when = self.now + TICK;
        self.at(when, Event::Tick(client));
    }

    /// Injects one random trouble.
    fn trouble(&mut self) {
        let until = self.now + self.random.below(8 * SECOND);
        let (client, donor) = (self.random.index(self.clients.len()), self.random.index(self.donors.len()));
        match self.random.below(9) {
            0..=2 => self.stops(client, until),
            3 => self.hangs(donor, until),
            4 => self.donors[donor].refuses_until = until,
            5 => self.loses(client, donor, until),
            6 => (0..self.donors.len()).filter(|&other| other != donor).for_each(|other| {
                // The client loses all addresses but one.
                self.clients[client].lost_until[other] = until;
            }),
            7 => self.clients[client].jumped += self.random.below(20 * SECOND),
            _ => {
                let other = self.random.index(self.donors.len());
                match self.random.below(2) {
                    // Two addresses are exchanged, or both lead to one donor.
                    0 => self.clients[client].way.swap(donor, other),
                    _ => self.clients[client].way[donor] = self.clients[client].way[other],
                }
            }
        }
    }
}

/// Runs a life of clients that come, stop and go on. An error says which rule was broken.
pub fn life(seed: u64) -> Result<u64, String> {
    let mut random = Random::new(seed ^ 0x5eed);
    let (donors, parity) = [(2, 1), (3, 1), (4, 1), (5, 1), (5, 2), (3, 0)][random.index(6)];
    let clients = 2 + random.index(2);
    let mut world = World::new(seed, donors, parity, clients);
    for client in 0..clients {
        let takeover = client > 0 && random.below(3) == 0;
        world.comes(client as u64 * random.below(6 * SECOND), client, takeover);
    }
    for _ in 0..12 + random.below(20) {
        let now = world.now();
        world.run_until(now + random.below(2 * SECOND));
        world.trouble();
    }
    let now = world.now();
    world.run_until(now + 12 * SECOND);
    world.broken.take().map_or(Ok(world.acknowledged.iter().filter(|at| **at > 0).count() as u64), Err)
}

type Scene = (&'static str, fn() -> Result<(), String>);

/// Named lives that each show one rule.
pub const SCENES: [Scene; 8] = [
    ("a client that takes over waits for the former one's term", taken_over),
    ("a client that stood still acknowledges nothing when it goes on", stood_still),
    ("a live client is seen although a donor hangs", a_donor_hangs),
    ("a client that reaches too few donors does not enter", reaches_few),
    ("two addresses of one donor do not count as two", two_addresses),
    ("a renewal counts from its beginning", answered_late),
    ("a client that was late does not go on where another one asks", late_and_asked),
    ("a donor that takes a lease late does not count", taken_late),
];

fn verdict(world: &mut World) -> Result<(), String> {
    world.broken.take().map_or(Ok(()), Err)
}

fn demand(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.into()) }
}

fn taken_over() -> Result<(), String> {
    let mut world = World::new(1, 3, 1, 2);
    world.comes(0, 0, false);
    world.run_until(5 * SECOND);
    demand(world.owns(0), "the first client has no disk")?;
    // The first client does not learn of the other one soon.
    world.loses(0, 0, 60 * SECOND);
    world.loses(0, 1, 60 * SECOND);
    world.comes(5 * SECOND, 1, true);
    world.run_until(20 * SECOND);
    demand(world.owns(1), "the second client has no disk")?;
    verdict(&mut world)
}

fn stood_still() -> Result<(), String> {
    let mut world = World::new(2, 3, 1, 2);
    world.comes(0, 0, false);
    world.run_until(5 * SECOND);
    world.stops(0, 20 * SECOND);
    world.comes(6 * SECOND, 1, false);
    world.run_until(40 * SECOND);
    demand(world.owns(1), "the second client has no disk")?;
    demand(!world.owns(0), "the first client has not ended")?;
    verdict(&mut world)
}

fn a_donor_hangs() -> Result<(), String> {
    let mut world = World::new(3, 4, 1, 2);
    world.comes(0, 0, false);
    world.run_until(5 * SECOND);
    world.hangs(3, 60 * SECOND);
    world.comes(8 * SECOND, 1, false);
    world.run_until(30 * SECOND);
    demand(world.owns(0), "the first client has ended")?;
    demand(matches!(world.refused(1), Some(Refusal::Held { .. })), "the second client was not refused")?;
    demand(world.acknowledged[0] > 29 * SECOND, "the first client stands still")?;
    verdict(&mut world)
}

fn reaches_few() -> Result<(), String> {
    let mut world = World::new(4, 3, 1, 2);
    world.comes(0, 0, false);
    world.run_until(5 * SECOND);
    world.loses(0, 0, 60 * SECOND);
    world.loses(1, 1, 60 * SECOND);
    world.loses(1, 2, 60 * SECOND);
    world.comes(6 * SECOND, 1, true);
    world.run_until(30 * SECOND);
    demand(world.owns(0), "the first client has ended")?;
    demand(matches!(world.refused(1), Some(Refusal::TooFew { .. })), "the second client was not refused")?;
    verdict(&mut world)
}

fn two_addresses() -> Result<(), String> {
    let mut world = World::new(6, 3, 1, 2);
    world.comes(0, 0, false);
    world.run_until(5 * SECOND);
    world.leads(0, 0, 1);
    world.loses(0, 2, 60 * SECOND);
    world.loses(1, 1, 60 * SECOND);
    world.comes(6 * SECOND, 1, true);
    world.run_until(30 * SECOND);
    demand(world.owns(1), &format!("the second client has no disk: {:?}", world.refused(1)))?;
    verdict(&mut world)
}

/// The first client stops with a renewal in flight, and gets the answer after another client has
/// entered.
fn answered_late() -> Result<(), String> {
    for moment in 0..50 {
        let mut world = World::new(11, 3, 1, 2);
        world.latency = 64 * MS;
        world.comes(0, 0, false);
        world.run_until(5 * SECOND + moment * 10 * MS);
        demand(world.owns(0), "the first client has no disk")?;
        world.stops(0, 20 * SECOND);
        world.comes(6 * SECOND, 1, false);
        world.run_until(40 * SECOND);
        demand(world.owns(1), "the second client has no disk")?;
        verdict(&mut world)?;
    }
    Ok(())
}

/// The first client goes on at about the moment when another client, which has waited for its end,
/// reads the leases for the last time.
fn late_and_asked() -> Result<(), String> {
    for moment in 0..100 {
        let mut world = World::new(8, 3, 1, 2);
        world.latency = 64 * MS;
        world.comes(0, 0, false);
        world.run_until(5 * SECOND);
        demand(world.owns(0), "the first client has no disk")?;
        world.stops(0, 10 * SECOND + moment * 20 * MS);
        world.comes(5 * SECOND, 1, false);
        world.run_until(30 * SECOND);
        verdict(&mut world)?;
    }
    Ok(())
}

/// One donor takes the second client's lease at the end of the wait. The two leases taken before
/// went to one donor at two addresses.
fn taken_late() -> Result<(), String> {
    for moment in 0..50 {
        let mut world = World::new(9, 3, 1, 2);
        world.latency = MS;
        world.comes(0, 0, false);
        world.run_until(5 * SECOND);
        demand(world.owns(0), "the first client has no disk")?;
        world.leads(1, 1, 0);
        world.lags(1, 2, 4 * SECOND + moment * 20 * MS);
        world.comes(6 * SECOND, 1, true);
        world.run_until(7 * SECOND);
        world.lags(1, 2, 0);
        world.run_until(30 * SECOND);
        verdict(&mut world)?;
    }
    Ok(())
}
