//! Who owns a disk: what a client reads and writes on the donors before and while it owns the disk.
//!
//! Owns: [`Entry`], how a client enters; [`Tenure`], the time in which a client may acknowledge;
//! [`Quorum`], how many donors decide. Why it is right: docs/design/netram.md ("One client").
//! Rules:
//! - A client writes to one place on each donor, and other clients choose other places: a late
//!   write hides no other lease. If two clients choose one place at the same moment, the client
//!   whose lease is overwritten stops renewing.
//! - A client enters with a lease on all donors but those of as many failure domains as there is
//!   parity. It acknowledges while leases in one domain more than there is parity are younger than
//!   [`TERM_NS`]. A donor without a domain is one of its own. A set of
//!   donors that suffices to enter and one that suffices to acknowledge have a donor in common.
//! - After writing its lease, an entering client waits for a term, unless all donors are fenced. A
//!   former client that may still acknowledge after this wait has renewed meanwhile, and is seen.
//! - A client reads before it renews, and a renewal counts from the moment its read began. The
//!   caller supplies the time, which includes the time the machine slept.
//! - A donor that knows its clients (*fenced*) has closed the former client's connections: no other
//!   client writes there.
//!
//! Left out: reading and writing (the caller), donors of ours that grant or refuse (`shoal_nbd::Claim`).

use std::collections::BTreeMap;

use shoal_format::ram::{LEASES, Lease, LeaseClaim, Leases};

use crate::planted::{Bug, is_planted};

/// Time between two renewals.
pub const RENEW_NS: u64 = 500_000_000;
/// How long a renewal holds.
pub const TERM_NS: u64 = 2_000_000_000;
/// How long an entering client waits for the former client's term to end. The extra quarter allows
/// for clocks of different rates.
pub const WAIT_NS: u64 = TERM_NS + TERM_NS / 4;

/// How many failure domains decide; each donor is one, unless domains are in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Domains of donors that belong to the disk.
    pub counting: usize,
    /// How many of them may be lost.
    pub parity: usize,
}

impl Quorum {
    /// Domains that a client needs as a whole to enter.
    pub fn enters(self) -> usize {
        let all_but_parity = self.counting.saturating_sub(self.parity);
        (all_but_parity - usize::from(is_planted(Bug::QuorumSmall) && all_but_parity > 1)).max(1)
    }

    /// Domains that a client needs to go on.
    pub fn holds(self) -> usize {
        (self.parity + 1).min(self.counting).max(1)
    }
}

/// The failure domains of the donors that a client found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    /// Stands for the domain of each donor, in their order; `None`: it does not belong to the disk.
    pub of: Vec<Option<u32>>,
    /// Number of donors of each domain that belong to the disk, found or not.
    pub sizes: BTreeMap<u32, usize>,
}

impl Domains {
    /// Each of these donors is a domain of its own.
    pub fn own(donors: usize) -> Domains {
        let of = 0..donors as u32;
        Domains { of: of.clone().map(Some).collect(), sizes: of.map(|domain| (domain, 1)).collect() }
    }

    /// Number of domains of which all donors have a property.
    pub fn whole(&self, has: impl Fn(usize) -> bool) -> usize {
        let mut left = self.sizes.clone();
        for domain in (0..self.of.len()).filter(|&donor| has(donor)).filter_map(|donor| self.of[donor]) {
            left.entry(domain).and_modify(|left| *left = left.saturating_sub(1));
        }
        left.values().filter(|&&left| left == 0 || is_planted(Bug::DomainHalf)).count()
    }

    /// Leaves out donors.
    #[must_use]
    pub fn of_these(&self, donors: &[usize]) -> Domains {
        Domains { of: donors.iter().map(|&donor| self.of[donor]).collect(), sizes: self.sizes.clone() }
    }
}

/// The leases on one donor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    pub leases: Leases,
    pub fenced: bool,
}

/// The leases on each donor; `None`: it could not be read.
pub type Looks = Vec<Option<Look>>;

/// Chooses the place of a client's lease on a donor. Different clients begin their search at
/// different places.
pub fn place_of(leases: &Leases, client: &[u8; 16]) -> usize {
    let first = usize::from(client[15]) % LEASES;
    let rank = |place: &usize| {
        let (kind, epoch) = match &leases[*place] {
            Some(lease) if lease.client == *client => (0, 0),
            None => (1, 0),
            Some(lease) if lease.released => (2, lease.epoch),
            Some(lease) => (3, lease.epoch),
        };
        (kind, epoch, (place + LEASES - first) % LEASES)
    };
    (0..LEASES).min_by_key(rank).expect("there are places")
}

/// Returns the length of a donor when it was last in use (bytes); 0: not known.
pub fn bytes_of(leases: &Leases) -> u64 {
    let newest = leases.iter().flatten().filter(|lease| lease.bytes > 0).max_by_key(|lease| lease.epoch);
    newest.map_or(0, |lease| lease.bytes)
}

fn order(lease: &Lease) -> (u64, [u8; 16]) {
    (lease.epoch, lease.client)
}

/// The next step of a client that is entering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read the leases on all donors.
    Read,
    /// Write the client's own lease to all of them.
    Write {
        claim: LeaseClaim,
        epoch: u64,
        released: bool,
    },
    Wait {
        ns: u64,
    },
    /// The client owns the disk with this epoch. Its term began with the last read.
    Entered {
        epoch: u64,
    },
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another client is alive, as this donor shows.
    Held { donor: usize },
    /// This donor shows a lease with the last epoch there is, which no client can have reached.
    Invented { donor: usize },
    /// Too few donors took or showed the lease.
    TooFew { have: usize, need: usize },
}

/// The outcome of a step.
#[derive(Clone, Debug)]
pub enum Outcome {
    Began,
    Read(Looks),
    /// Which donors took the lease.
    Written(Vec<bool>),
    Waited,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Looks,
    Watches,
    /// Waits for the former client's term.
    Claims,
    Enters,
    GivesUp(Refusal),
}

/// The protocol by which a client enters.
#[derive(Debug)]
pub struct Entry {
    client: [u8; 16],
    takeover: bool,
    quorum: Quorum,
    domains: Domains,
    /// The client's mark for each donor, stored in its leases: two addresses of one donor show one
    /// mark.
    marks: Vec<u64>,
    phase: Phase,
    epoch: u64,
    /// What the donors showed before. A lease that changes belongs to a live client.
    before: Looks,
    /// At least one donor does not know its clients, so the client must wait.
    waits: bool,
    /// Donors that took this client's lease before the wait and showed it afterwards.
    shown: Vec<bool>,
}

impl Entry {
    pub fn new(client: [u8; 16], takeover: bool, quorum: Quorum, domains: Domains, marks: Vec<u64>) -> Entry {
        Entry {
            client,
            takeover,
            quorum,
            domains,
            marks,
            phase: Phase::Looks,
            epoch: 0,
            before: Vec::new(),
            waits: false,
            shown: Vec::new(),
        }
    }

    /// Returns whether a donor showed this client's lease before it entered. Of two addresses of
    /// one donor, only one did.
    pub fn was_shown(&self, donor: usize) -> bool {
        self.shown.get(donor).is_some_and(|shown| *shown)
    }

    pub fn next(&mut self, outcome: Outcome) -> Step {
        match (self.phase, outcome) {
            (Phase::Looks, Outcome::Read(looks)) => self.looked(looks),
            (Phase::Watches, Outcome::Read(looks)) => match self.alive(&looks) {
                Some(donor) => self.give_up(Refusal::Held { donor }),
                None => {
                    self.before = looks;
                    self.claim()
                }
            },
            (Phase::Claims, Outcome::Written(taken)) => {
                let missing = self.missing(&taken);
                self.shown = taken;
                match missing {
                    Some(refusal) => self.give_up(refusal),
                    None if self.waits => Step::Wait { ns: wait_ns() },
                    None => Step::Read,
                }
            }
            (Phase::Claims, Outcome::Read(looks)) => self.claimed(&looks),
            (Phase::Enters, Outcome::Written(taken)) => match self.missing(&taken) {
                Some(refusal) => self.give_up(refusal),
                None => Step::Entered { epoch: self.epoch },
            },
            (Phase::GivesUp(refusal), Outcome::Written(_)) => Step::Refused(refusal),
            _ => Step::Read,
        }
    }

    fn looked(&mut self, looks: Looks) -> Step {
        let have = self.domains.whole(|donor| looks[donor].is_some());
        let need = self.quorum.enters();
        if have < need {
            return Step::Refused(Refusal::TooFew { have, need });
        }
        let leases = || looks.iter().flatten().flat_map(|look| look.leases.iter().flatten());
        let last = |look: &Option<Look>| {
            let leases = look.iter().flat_map(|look| look.leases.iter().flatten());
            leases.map(|lease| lease.epoch).max().unwrap_or(0)
        };
        let (highest, donor) = looks.iter().map(last).zip(0..).max().unwrap_or_default();
        let Some(epoch) = highest.checked_add(1) else { return Step::Refused(Refusal::Invented { donor }) };
        self.epoch = epoch;
        // A client that owned the disk after this one has already waited for its end.
        let owns = |lease: &&Lease| lease.claim == LeaseClaim::Owns;
        let owned = leases().filter(owns).map(|lease| lease.epoch).max().unwrap_or(0);
        let rival = |look: &Look| !look.fenced && self.rivals(look).any(|lease| lease.epoch >= owned);
        let rivals = looks.iter().flatten().any(rival);
        self.waits = looks.iter().flatten().any(|look| !look.fenced);
        self.before = looks;
        if rivals && !self.takeover {
            self.phase = Phase::Watches;
            return Step::Wait { ns: WAIT_NS };
        }
        self.claim()
    }

    fn claim(&mut self) -> Step {
        self.phase = Phase::Claims;
        let claim = if self.takeover { LeaseClaim::Seizes } else { LeaseClaim::Asks };
        Step::Write { claim, epoch: self.epoch, released: false }
    }

    /// Continues after the claim: this client's lease is on the donors, and the term of every
    /// client that has not renewed since is over.
    fn claimed(&mut self, looks: &Looks) -> Step {
        let own = |lease: &Lease, mark: u64| {
            (lease.client, lease.epoch) == (self.client, self.epoch)
                && (lease.mark == mark || is_planted(Bug::DonorUnnumbered))
        };
        let shows = |(look, mark): (&Option<Look>, &u64)| {
            look.as_ref().is_some_and(|look| look.leases.iter().flatten().any(|lease| own(lease, *mark)))
        };
        // A donor that took the lease later was not waited for.
        let counts = |(is, was): (bool, &bool)| is && (*was || is_planted(Bug::TakenLate));
        self.shown = looks.iter().zip(&self.marks).map(shows).zip(&self.shown).map(counts).collect();
        if let Some(refusal) = self.missing(&self.shown) {
            return self.give_up(refusal);
        }
        if let Some(donor) = self.alive(looks) {
            return self.give_up(Refusal::Held { donor });
        }
        self.phase = Phase::Enters;
        Step::Write { claim: LeaseClaim::Owns, epoch: self.epoch, released: false }
    }

    /// Returns leases of clients that may be alive. Those with the same lock as this client are
    /// dead.
    fn rivals<'a>(&'a self, look: &'a Look) -> impl Iterator<Item = &'a Lease> {
        look.leases.iter().flatten().filter(|lease| !lease.released && lease.client[..8] != self.client[..8])
    }

    /// Finds a donor on which another client is alive or has got ahead.
    fn alive(&self, looks: &Looks) -> Option<usize> {
        if is_planted(Bug::LeaseUnchecked) {
            return None;
        }
        let own = (self.epoch, self.client);
        // This client's lease is on the donors, so clients behind it have seen it.
        let claimed = self.phase == Phase::Claims;
        let shows = |(place, look): (usize, &Option<Look>)| {
            let look = look.as_ref().filter(|look| !look.fenced)?;
            let before = self.before.get(place).and_then(Option::as_ref);
            let was =
                |lease: &Lease| before.is_some_and(|before| before.leases.iter().flatten().any(|old| old == lease));
            // Nothing can be said of a donor that was not read before.
            let moves = |lease: &&Lease| before.is_some() && !was(lease);
            let gives_way = |lease: &Lease| order(lease) < own && (self.takeover || lease.claim != LeaseClaim::Owns);
            let lives = self.rivals(look).filter(moves).any(|lease| !(claimed && gives_way(lease)));
            let ahead = |lease: &&Lease| order(lease) > own && lease.client[..8] != own.1[..8];
            let waits_ahead = self.rivals(look).filter(ahead).any(|lease| lease.claim != LeaseClaim::Owns);
            let owns_ahead = look.leases.iter().flatten().filter(ahead).any(|lease| lease.claim == LeaseClaim::Owns);
            (lives || waits_ahead || owns_ahead).then_some(place)
        };
        looks.iter().enumerate().find_map(shows)
    }

    fn missing(&self, taken: &[bool]) -> Option<Refusal> {
        let (have, need) = (self.domains.whole(|donor| taken[donor]), self.quorum.enters());
        (have < need).then_some(Refusal::TooFew { have, need })
    }

    /// Releases the claim, so that the next client need not wait for this one.
    fn give_up(&mut self, refusal: Refusal) -> Step {
        if self.phase == Phase::Watches {
            return Step::Refused(refusal);
        }
        self.phase = Phase::GivesUp(refusal);
        let claim = if self.takeover { LeaseClaim::Seizes } else { LeaseClaim::Asks };
        Step::Write { claim, epoch: self.epoch, released: true }
    }
}

fn wait_ns() -> u64 {
    if is_planted(Bug::TakeoverAtOnce) { 0 } else { WAIT_NS }
}

/// The decision after reading a donor's leases, before the client renews its own there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Write the lease to this place. `asked`: another client waits for this client's end.
    Write { place: usize, asked: bool },
    /// As far as this donor shows, another client owns the disk.
    Superseded,
    /// The donor is not the one that answered before.
    Stranger,
}

#[derive(Clone, Copy, Debug, Default)]
struct Kept {
    /// When the newest renewal that counts began.
    from_ns: Option<u64>,
    superseded: bool,
}

/// The time in which a client owns the disk.
#[derive(Debug)]
pub struct Tenure {
    client: [u8; 16],
    pub epoch: u64,
    holds: usize,
    /// By mark.
    donors: BTreeMap<u64, Kept>,
    /// Stands for the failure domain of a donor, by mark. A donor that is not there is a domain of its own.
    domains: BTreeMap<u64, u32>,
}

impl Tenure {
    pub fn new(client: [u8; 16], epoch: u64, quorum: Quorum) -> Tenure {
        Tenure { client, epoch, holds: quorum.holds(), donors: BTreeMap::new(), domains: BTreeMap::new() }
    }

    /// Sets the failure domains of the donors, by mark.
    pub fn set_domains(&mut self, domains: BTreeMap<u64, u32>) {
        self.domains = domains;
    }

    /// The failure domains of some donors, each with the newest of these numbers.
    fn by_domain(&self, donors: impl Iterator<Item = (u64, u64)>) -> BTreeMap<(bool, u64), u64> {
        let mut newest = BTreeMap::new();
        for (mark, number) in donors {
            let domain = self.domains.get(&mark).map_or((false, mark), |&domain| (true, domain.into()));
            let known: &mut u64 = newest.entry(domain).or_default();
            *known = number.max(*known);
        }
        newest
    }

    /// Adds a donor that has this client's lease, written after a read that began at `from_ns`.
    pub fn takes_in(&mut self, mark: u64, from_ns: u64) {
        self.donors.insert(mark, Kept { from_ns: Some(from_ns), superseded: false });
    }

    /// Records that a donor reports another client as its owner.
    pub fn lost_to_another(&mut self, mark: u64) {
        self.donors.entry(mark).or_default().superseded = true;
    }

    /// Removes a donor that no longer belongs to the disk.
    pub fn lets_go(&mut self, mark: u64) {
        self.donors.remove(&mark);
    }

    /// Decides what to do about the leases found on a donor.
    pub fn seen(&mut self, mark: u64, leases: &Leases) -> Renewal {
        let place = place_of(leases, &self.client);
        let own = leases[place].filter(|lease| lease.client == self.client);
        let is_new = self.donors.get(&mark).is_none_or(|kept| kept.from_ns.is_none());
        // Before the first renewal through a connection, its donor has no lease of this client, or
        // the one left by a former connection. A donor that forgot this client's lease may have
        // forgotten other clients' leases, too.
        let is_it = match own {
            Some(own) => own.mark == mark || is_new && !self.donors.contains_key(&own.mark),
            None => is_new,
        };
        if !is_it && !is_planted(Bug::DonorUnnumbered) {
            return Renewal::Stranger;
        }
        let superseded = self.is_superseded(leases) && !is_planted(Bug::LeaseUnchecked);
        self.donors.entry(mark).or_default().superseded = superseded;
        if superseded {
            return Renewal::Superseded;
        }
        let asked = |lease: &Lease| {
            order(lease) > (self.epoch, self.client) && lease.claim == LeaseClaim::Asks && !lease.released
        };
        Renewal::Write { place, asked: leases.iter().flatten().any(asked) }
    }

    /// Returns whether these leases say that another client owns the disk or is taking it.
    pub fn is_superseded(&self, leases: &Leases) -> bool {
        let ahead = |lease: &&Lease| order(lease) > (self.epoch, self.client);
        leases.iter().flatten().filter(ahead).any(|lease| match lease.claim {
            LeaseClaim::Owns => true,
            LeaseClaim::Seizes => !lease.released,
            LeaseClaim::Asks => false,
        })
    }

    /// Records a renewal whose read began at `from_ns`. A late client's renewal does not count if
    /// another client waits for its end, because that client may have found it ended.
    pub fn renewed(&mut self, mark: u64, from_ns: u64, asked: bool, now_ns: u64) {
        let late = asked && !self.may_change(now_ns) && !is_planted(Bug::LateRenewed);
        let from_ns = if is_planted(Bug::RenewedAtEnd) { now_ns } else { from_ns };
        let kept = self.donors.entry(mark).or_default();
        kept.superseded |= late;
        if !late {
            kept.from_ns = kept.from_ns.max(Some(from_ns));
        }
    }

    /// Until when the newest renewals in this many domains hold (ns).
    fn until_ns(&self, domains: usize) -> u64 {
        let kept = self.donors.iter().filter(|(_, kept)| !kept.superseded);
        let kept = kept.filter_map(|(mark, kept)| Some((*mark, kept.from_ns?)));
        let mut from: Vec<u64> = self.by_domain(kept).into_values().collect();
        from.sort_unstable_by(|a, b| b.cmp(a));
        let term_ns = if is_planted(Bug::LeaseNotRenewed) { u64::MAX / 2 } else { TERM_NS };
        from.get(domains - 1).map_or(0, |from| from + term_ns)
    }

    /// Until when this client may acknowledge changes (ns).
    pub fn changes_until_ns(&self) -> u64 {
        self.until_ns(self.holds)
    }

    /// Until when this client may answer reads (ns). Donors that are gone cannot report another
    /// owner.
    pub fn reads_until_ns(&self) -> u64 {
        self.until_ns(1)
    }

    pub fn may_change(&self, now_ns: u64) -> bool {
        now_ns < self.changes_until_ns()
    }

    /// Returns whether another client owns the disk.
    pub fn is_over(&self) -> bool {
        let left = self.donors.iter().filter(|(_, kept)| !kept.superseded);
        let left = self.by_domain(left.map(|(mark, _)| (*mark, 0))).len();
        self.donors.values().any(|kept| kept.superseded) && left < self.holds
    }
}
