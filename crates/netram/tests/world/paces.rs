//! Donors that are slow, and donors that leave writes unanswered for seconds and carry them out in the end.
//!
//! The writes are done elsewhere meanwhile, and their units are used again only when nothing can reach them any more. Left out:
//! donors that cannot be reached (`unkind`).

use shoal_netram::{Aside, Config, DiskError, DonorOp, Status};

use super::{FRONT, Flight, World, truth};

/// How late the answer is that was left out (ns), at most.
const LATE_NS: u64 = 8_000_000_000;

impl World {
    /// How much later this operation arrives than it should.
    pub(super) fn held_up(&mut self, donor: usize, op: &DonorOp) -> u64 {
        let of = self.donors[donor].trouble.silent_of;
        let is_of_unit = matches!(op, DonorOp::Write { at, .. } if *at as usize >= FRONT);
        if of == 0 || !is_of_unit || self.random.below(of) > 0 {
            return 0;
        }
        self.random.below(LATE_NS)
    }
}

/// What a life has met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    pub unanswered: u64,
    pub slow: bool,
}

pub fn paces(seed: u64) -> Result<Met, DiskError> {
    let (mut world, mut random) = truth::redundant(seed ^ 0x9ace)?;
    let block = world.config.block_bytes as usize / super::SECTOR;
    let mut met = Met::default();
    for round in 0..3 {
        let donor = world.any_donor();
        match random.below(2) {
            0 => world.donors[donor].trouble.silent_of = 2 + random.below(20),
            _ => world.donors[donor].trouble.slow = 300 + random.below(300),
        }
        for _ in 0..100 {
            world.random_request(block)?;
            while world.in_flight() > 4 {
                if !world.step()? {
                    world.tick(50_000_000)?;
                }
            }
            if random.below(3) == 0 {
                world.tick(50_000_000)?;
                let status = world.engine().status();
                met.slow |= status.donors.iter().any(|donor| donor.aside == Some(Aside::Slow));
            }
        }
        // The client dies with answers still to come.
        if round == 1 {
            world.reopen()?;
        }
        met.unanswered += world.engine().status().donors.iter().map(|donor| donor.unanswered).sum::<u64>();
        world.donors.iter_mut().for_each(|donor| donor.trouble.silent_of = 0);
        world.heal()?;
        world.errors.clear();
        world.check_all()?;
        // Parity would give back what a late write went over.
        world.scrub(false)?;
        let status = world.engine().status();
        if status.damage.found > 0 {
            return Err(gone_over(&status));
        }
    }
    world.reopen()?;
    world.heal()?;
    world.errors.clear();
    world.check_all()?;
    Ok(met)
}

/// Connections to servers that are not ours break with writes in flight, one every five seconds, until each unit has met that several times.
/// The client dies now and then. Returns how many changes were in flight, and how many requests of 10,000 found no room.
pub fn breaks(seed: u64) -> Result<(u64, usize), DiskError> {
    let config = Config { block_bytes: 512, buffer_blocks: 2, uuid: [7; 16], ..Config::default() };
    let mut world = World::new(seed, config, 4, 180_000)?;
    world.unkind.is_on = true;
    world.donors.iter_mut().for_each(|donor| donor.trouble.fenced = false);
    let (mut uncertain, mut refused) = (0, 0);
    for round in 1..=500 {
        if round % 100 == 0 {
            world.heal()?;
            world.reopen()?;
        }
        for _ in 0..20 {
            world.random_request(1)?;
        }
        for _ in 0..world.random.below(20) {
            world.step()?;
        }
        let donor = world.any_donor();
        let is_change = |flight: &&Flight| flight.donor == donor && !matches!(flight.op, DonorOp::Read { .. });
        uncertain += world.flights.values().filter(is_change).count() as u64;
        world.sever(donor)?;
        for _ in 0..100 {
            world.some_steps()?;
            world.tick(50_000_000)?;
        }
        refused += world.errors.extract_if(.., |error| *error == DiskError::NoSpace).count();
    }
    world.heal()?;
    if let Some(error) = world.errors.pop() {
        return Err(error);
    }
    world.check_all()?;
    world.scrub(false)?;
    match world.engine().status() {
        status if status.damage.found > 0 => Err(gone_over(&status)),
        _ => Ok((uncertain, refused)),
    }
}

fn gone_over(status: &Status) -> DiskError {
    World::fault(format!("a late write has gone over something: {status:?}"))
}
