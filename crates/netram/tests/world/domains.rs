//! Failure domains in the world: domains that are lost as a whole, and clients that open the disk with other domains.
//!
//! Rules: in the end every block is where the loss of as many domains as there is parity loses none, also when the
//! client dies at the same moment. The report says when that is so. Left out: single donors (`unkind`).

use std::collections::{BTreeMap, BTreeSet};

use shoal_netram::{DiskError, DonorState, Policy};
use shoal_sim::Random;

use super::unkind::Kinds;
use super::{SECTOR, World, random_config};

/// How long donors of one domain stop together at most (ns).
const STOP_NS: u64 = 2_000_000_000;
/// Time in which the wanted domains must be in force (ticks of 50 ms).
const TICKS: usize = 4000;

/// What lives met.
#[derive(Default, Debug)]
pub struct Met {
    pub domains_lost: u64,
    pub in_force: u64,
    pub reconfigured: u64,
    pub grown: u64,
    /// Disks whose donors were filled evenly by a rebalance.
    pub even: u64,
}

impl World {
    /// Donors of each domain that are alive.
    fn by_domain(&self) -> BTreeMap<(u16, usize), Vec<usize>> {
        let mut domains: BTreeMap<(u16, usize), Vec<usize>> = BTreeMap::new();
        for number in (0..self.donors.len()).filter(|&number| self.donors[number].alive) {
            let domain = self.donors[number].domain;
            domains.entry((domain, if domain == 0 { number } else { 0 })).or_default().push(number);
        }
        domains
    }

    fn any_domain(&mut self) -> Vec<usize> {
        let domains: Vec<Vec<usize>> = self.by_domain().into_values().collect();
        domains[self.random.below(domains.len() as u64) as usize].clone()
    }

    /// Gives the donors other domains, enough for a group.
    fn redomain(&mut self, need: usize) {
        let (many, before) = (need as u64 + self.random.below(3), self.by_domain());
        let former: Vec<u16> = self.donors.iter().map(|donor| donor.domain).collect();
        let kind = self.random.below(4);
        for donor in &mut self.donors {
            donor.domain = if kind == 0 { 0 } else { 1 + self.random.below(many) as u16 };
        }
        if self.by_domain().len() < need {
            self.donors.iter_mut().zip(former).for_each(|(donor, domain)| donor.domain = domain);
        }
        let changed = before != self.by_domain();
        if changed {
            self.count("other domains");
        }
    }

    /// Kills all donors of a domain, if the disk can do without. Returns whether it did.
    pub(super) fn kill_domain(&mut self) -> Result<bool, DiskError> {
        let parity = self.config.parity as usize;
        let status = self.engine().status();
        let ready = status.domains.is_none_or(|domains| domains.in_force);
        if !ready || !self.is_healthy() || self.by_domain().len() <= parity + 2 {
            return Ok(false);
        }
        let victims = self.any_domain();
        // One that is not taken back yet would be beside the lost domain.
        if (0..self.donors.len()).any(|n| self.donors[n].alive && !self.donors[n].is_there()) {
            return Ok(false);
        }
        self.count("domain dies");
        for donor in victims {
            self.donors[donor].alive = false;
        }
        Ok(true)
    }

    fn domain_trouble(&mut self) -> Result<(), DiskError> {
        match self.random.below(10) {
            4 | 5 => {
                let (now, bytes) = (self.now, self.engine().bytes() + 1024 * self.random.below(24));
                if self.engine().grow(bytes, now).is_ok() {
                    self.asked_bytes = self.asked_bytes.max(bytes);
                    self.count("disk grows");
                }
                self.collect()?;
                if self.random.below(3) == 0 {
                    self.reopen()?;
                }
            }
            6 | 7 => {
                let now = self.now;
                self.engine().rebalance(now);
                self.count("rebalance");
                self.collect()?;
            }
            8 => {
                self.engine().stop_rebalance();
                let donor = self.new_donor(100_000);
                self.donors[donor].domain = self.random.below(6) as u16;
                self.donors[donor].trouble.fenced = true;
                self.enter(donor)?;
            }
            0 => {
                let for_ns = self.random.below(STOP_NS);
                let donors = self.any_domain();
                self.count("domain stops");
                donors.into_iter().for_each(|donor| self.stop(donor, for_ns));
            }
            1 => {
                let need = self.config.parity as usize + 1;
                self.redomain(need);
                self.reopen()?;
            }
            2 => {
                self.kill_domain()?;
            }
            3 if self.kill_domain()? => self.reopen()?,
            _ => {}
        }
        Ok(())
    }

    /// Waits until a rebalance has ended.
    fn becomes_even(&mut self, met: &mut Met) -> Result<(), DiskError> {
        let now = self.now;
        let before = self.engine().status().balance.completed;
        self.engine().rebalance(now);
        self.collect()?;
        for _ in 0..TICKS {
            let balance = self.engine().status().balance;
            if balance.completed > before {
                met.even += u64::from(balance.fullest_percent - balance.emptiest_percent < 5.0);
                return Ok(());
            }
            for _ in 0..1000 {
                if !self.step()? {
                    break;
                }
            }
            self.tick(50_000_000)?;
        }
        let status = self.engine().status();
        match status.repair {
            // It waits for repair, which may have no room.
            Some(_) => Ok(()),
            None => Err(World::fault(format!("the rebalance does not end: {status:?}"))),
        }
    }

    /// Waits until the report says that the wanted domains are in force. Returns false if they cannot be.
    fn comes_into_force(&mut self) -> Result<bool, DiskError> {
        for _ in 0..TICKS {
            let status = self.engine().status();
            let in_force = status.domains.is_none_or(|domains| domains.in_force);
            if in_force && status.repair.is_none() && status.groups_degraded == 0 && status.ready {
                let shared = self.engine().sharing_groups();
                return match shared {
                    0 => Ok(true),
                    _ => Err(World::fault(format!("{shared} groups have two units in a domain in force: {status:?}"))),
                };
            }
            for _ in 0..1000 {
                if !self.step()? {
                    break;
                }
            }
            self.tick(50_000_000)?;
        }
        Ok(false)
    }
}

pub fn domains(seed: u64) -> Result<Met, DiskError> {
    let mut random = Random::new(seed ^ 0xd0a1);
    let (mut config, _) = random_config(&mut random);
    while !config.policy.is_redundant() {
        config.policy = Policy::ALL[random.below(7) as usize];
    }
    config.patience_ms = 3000;
    let parity = config.parity as usize;
    let many = parity + 2 + random.below(3) as usize;
    let mut domains: Vec<u16> = Vec::new();
    for domain in 1..=many as u16 {
        let own = random.below(5) == 0;
        domains.extend((0..1 + random.below(3)).map(|_| if own { 0 } else { domain }));
    }
    let width = many - 1;
    if config.policy != Policy::Mirrored {
        config.width = width as u8;
    }
    let bytes = 100_000;
    let data = if config.policy == Policy::Mirrored {
        1.0 / (parity + 1) as f64
    } else {
        (width - parity) as f64 / width as f64
    };
    // Little enough for the domains that are left when some are lost.
    config.bytes = Some((bytes as f64 * many as f64 * data * 0.25) as u64 / 1024 * 1024);
    let block = config.block_bytes as usize / SECTOR;
    let Ok(mut world) = World::in_domains(seed, config, &domains, bytes) else { return Ok(Met::default()) };
    world.unkind.is_on = true;
    let ours = random.below(3);
    for donor in &mut world.donors {
        donor.trouble.fenced = ours == 0 || (ours == 1 && random.below(2) == 0);
    }
    let mut met = Met::default();
    let lived = live(&mut world, seed, block, &mut met);
    if !world.unkind.over {
        lived?;
    }
    let count = |fault| world.unkind.faults.get(fault).copied().unwrap_or(0);
    met.domains_lost += count("domain dies");
    met.reconfigured = count("other domains");
    met.grown = count("disk grows");
    Ok(met)
}

fn live(world: &mut World, seed: u64, block: usize, met: &mut Met) -> Result<(), DiskError> {
    let kinds = Kinds { late: true, hiccups: true, changes: !seed.is_multiple_of(3), ..Kinds::default() };
    for step in 0..250 {
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
        match world.random.below(24) {
            0 => world.trouble(kinds).map_err(at)?,
            1 => world.domain_trouble().map_err(at)?,
            _ => {}
        }
        if world.unkind.over {
            return Ok(());
        }
        match world.random.below(60) {
            0 => world.settle().map_err(at)?,
            1 => world.rest().map_err(at)?,
            2 => world.heal().map_err(at)?,
            3 => drop(world.comes_into_force().map_err(at)?),
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
    world.heal()?;
    world.errors.clear();
    world.check_all()?;
    ends(world, met)
}

/// Loses as many domains as there is parity, and the client, at the same moment.
fn ends(world: &mut World, met: &mut Met) -> Result<(), DiskError> {
    world.becomes_even(met)?;
    if !world.comes_into_force()? {
        return Ok(());
    }
    world.flush()?;
    world.settle()?;
    let all_there = (0..world.donors.len()).all(|n| !world.donors[n].alive || world.donors[n].is_there());
    let counts = |state| matches!(state, DonorState::Active | DonorState::Lost | DonorState::Drained);
    let status = world.engine().status();
    if !world.errors.is_empty()
        || !world.is_healthy()
        || !all_there
        || !status.donors.iter().all(|donor| counts(donor.state))
    {
        return Ok(());
    }
    met.in_force += 1;
    let mut lost = BTreeSet::new();
    for _ in 0..world.config.parity {
        for donor in world.any_domain() {
            world.donors[donor].alive = false;
            lost.insert(donor);
        }
        met.domains_lost += 1;
    }
    if world.random.below(2) == 0 {
        let given: Vec<usize> = (0..world.donors.len()).filter(|&n| world.donors[n].alive).collect();
        world.restart(&given)?;
    } else {
        let now = world.now;
        for number in world.counting() {
            if lost.contains(&world.numbers[number as usize]) {
                world.engine().lost(number, now);
                world.collect()?;
            }
        }
    }
    world.settle()?;
    world.errors.clear();
    world.check_all()
}
