//! Failure domains: donors that may be lost together.
//!
//! Owns: [`Domains`], and all counting of domains. Rules:
//! - A donor without a domain is one of its own. No group has two units in one domain: new units go beside those of
//!   other domains only.
//! - Wherever parity says how many donors may be lost, so many *domains* may be lost.
//! - Domains are the client's configuration, and a disk may be opened with others. Superblocks name a domain only
//!   while no group has two units in it (*in force*). An opening trusts those names alone: it may do without a domain
//!   that was in force, but only without as many donors otherwise.
//! - From one set of domains to another the way leads through none: superblocks name no domains, then the new ones
//!   decide where units go, then units that share one move apart (`level`), and then superblocks name them.
//!
//! Left out: the names of domains (the engine's caller), choosing units (`room`), writing superblocks (`epochs`).

use std::collections::BTreeSet;

use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::donors::Donor;
use crate::state::place::Member;
use crate::views::Roster;

/// Time between two searches for groups with two units in one domain (ns).
const LOOK_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub(crate) struct Domains {
    /// Superblocks name the domains.
    pub in_force: bool,
    looked_ns: u64,
    /// A group with two units in one domain was found by the last search.
    pub shared: bool,
    /// When the next unit may be moved out of a shared domain (ns).
    due_ns: u64,
}

impl Domains {
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Lets other moves go first: a unit could not be moved.
    pub fn wait(&mut self, now_ns: u64) {
        self.due_ns = now_ns + LOOK_NS;
    }
}

/// What is to be done about the domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Superblocks must name no domains any more.
    Leave,
    /// The wanted domains decide where units go from now on.
    Adopt,
    /// Superblocks may name the domains.
    Enter,
}

/// Number of different domains of some donors, by the number of each donor and its domain.
pub(crate) fn count(donors: impl Iterator<Item = (usize, u16)>) -> usize {
    donors.map(|(number, domain)| key(number, domain)).collect::<BTreeSet<u32>>().len()
}

/// Stands for a donor's domain. A donor without one has its own.
pub(crate) fn key(number: usize, domain: u16) -> u32 {
    if domain == 0 { u32::from(u16::MAX) + 1 + number as u32 } else { domain.into() }
}

impl State {
    /// Lets the wanted domains decide where units go.
    pub fn adopt_domains(&mut self) {
        self.donors.iter_mut().for_each(|donor| donor.domain = donor.wanted_domain);
        self.domains.looked_ns = 0;
        self.count_donors();
        self.leveling.try_now();
    }

    /// Returns the next step towards the wanted domains, if it can be taken now.
    pub fn next_turn(&mut self) -> Option<Turn> {
        if !self.ready || !self.epoch.is_stored() {
            return None;
        }
        let differs = |donor: &Donor| !donor.is_final() && donor.domain != donor.wanted_domain;
        let differ = self.donors.iter().any(differs);
        let any = self.donors.iter().any(|donor| !donor.is_final() && donor.domain != 0);
        match self.domains.in_force {
            true => differ.then_some(Turn::Leave),
            false if differ => Some(Turn::Adopt),
            false => (any && self.are_apart()).then_some(Turn::Enter),
        }
    }

    /// Searches for groups with two units in one domain, once a second. Returns whether there are none and everything
    /// is safe where it is.
    fn are_apart(&mut self) -> bool {
        if self.now_ns < self.domains.looked_ns + LOOK_NS {
            return false;
        }
        self.domains.looked_ns = self.now_ns;
        let shared = self.groups.iter().any(|(_, group)| self.roster().sharing(&group.members).is_some());
        self.domains.shared = shared;
        let is_unseen = |donor: &Donor| donor.counts() && !donor.is_final() && (donor.stale || !donor.scanned);
        let settled = self.repairs.is_over() && self.found.doubts.is_empty() && !self.has_unprotected();
        (!shared || is_planted(Bug::DomainsEarly)) && settled && !self.donors.iter().any(is_unseen)
    }
}

impl Roster<'_> {
    /// Stands for the donor's domain.
    pub fn domain(&self, donor: usize) -> u32 {
        key(donor, self.donors[donor].domain)
    }

    /// Number of different domains of these donors, each of which occurs once. Every write asks for it, so nothing is
    /// allocated.
    pub fn domains(&self, donors: impl Iterator<Item = usize> + Clone) -> usize {
        let domains = donors.map(|number| self.donors[number].domain);
        let is_first = |&(place, domain): &(usize, u16)| {
            domain == 0 || !domains.clone().take(place).any(|earlier| earlier == domain)
        };
        domains.clone().enumerate().filter(is_first).count()
    }

    /// Number of different domains of the donors with a property.
    pub fn domains_with(&self, has: impl Fn(&Donor) -> bool) -> usize {
        self.domains((0..self.donors.len()).filter(|&number| has(&self.donors[number])))
    }

    /// Returns a unit of a group that is in the domain of another one.
    pub fn sharing(&self, members: &[Member]) -> Option<Member> {
        let domain = |member: &Member| self.domain(member.donor.into());
        let mut there = members.iter().enumerate().filter(|(_, member)| member.exists());
        let shares = |&(place, member): &(usize, &Member)| {
            let before = members[..place].iter().filter(|other| other.exists());
            before.into_iter().any(|other| domain(other) == domain(member))
        };
        there.find(shares).map(|(_, member)| *member)
    }

    /// Number of groups with two units in one domain.
    pub fn sharing_groups(&self) -> u64 {
        self.groups.iter().filter(|(_, group)| self.sharing(&group.members).is_some()).count() as u64
    }
}
