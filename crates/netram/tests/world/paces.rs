//! Slow donors, and donors that leave writes unanswered for seconds but carry them out in the end.
//!
//! The writes are done elsewhere meanwhile. Their units are used again only when nothing can reach
//! them any more. Left out: donors that cannot be reached (`unkind`).

use shoal_netram::{Aside, Config, DiskError, DonorOp, DonorState, Status};

use super::{FRONT, Flight, World, truth};

/// How late a withheld answer comes at most (ns).
const LATE_NS: u64 = 8_000_000_000;

/// How late a request of a broken connection is carried out at most (ns).
const LATEST_NS: u64 = 25_000_000_000;
const AWAY_NS: u64 = 8_000_000_000;

impl World {
    fn some_more(&mut self) -> Result<(), DiskError> {
        for _ in 0..100 {
            self.random_request(1)?;
            self.settle()?;
        }
        Ok(())
    }

    /// Writes in a small part of the disk.
    fn some_writes(&mut self, count: usize) -> Result<(), DiskError> {
        for _ in 0..count {
            let (at, sectors) = (self.random.below(60) as usize, 1 + self.random.below(8) as usize);
            if !self.is_busy(at, sectors) {
                self.write(at, sectors, false)?;
            }
        }
        self.flush()
    }

    /// Returns how many requests found no room since the last call.
    fn without_room(&mut self) -> usize {
        self.errors.extract_if(.., |error| *error == DiskError::NoSpace).count()
    }

    /// Writes the whole disk in order, with few requests at a time.
    pub(super) fn fill(&mut self) -> Result<(), DiskError> {
        let total = self.sectors();
        for at in (0..total).step_by(8) {
            self.write(at, (total - at).min(8), false)?;
            while self.in_flight() > 6 && self.step()? {}
        }
        Ok(())
    }

    /// Lets time pass.
    fn quiet(&mut self, for_ns: u64) -> Result<(), DiskError> {
        let until = self.now + for_ns;
        while self.now < until {
            let tick = self.now + 50_000_000;
            let flight = |world: &World| world.flights.first_key_value().map(|(&(due, _), _)| due);
            while flight(self).into_iter().chain(self.unkind.next_due()).any(|due| due < tick) {
                self.step()?;
            }
            self.tick(tick.saturating_sub(self.now))?;
        }
        Ok(())
    }

    /// Returns how much later than usual this operation arrives (ns).
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

/// Results of a life in which connections break.
#[derive(Clone, Copy, Debug)]
pub struct Broken {
    /// Changes that were in flight when a connection broke.
    pub uncertain: u64,
    /// Requests, of 10,000, that found no room.
    pub refused: usize,
    /// A minute after the last break there was still no room.
    pub is_stuck: bool,
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
        // The client dies while answers are still to come.
        if round == 1 {
            world.reopen()?;
        }
        met.unanswered += world.engine().status().donors.iter().map(|donor| donor.unanswered).sum::<u64>();
        world.donors.iter_mut().for_each(|donor| donor.trouble.silent_of = 0);
        world.heal()?;
        world.errors.clear();
        world.check_all()?;
        // A check alone is not enough: parity would restore blocks that a late write overwrote.
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

/// Breaks connections to servers that are not ours with writes in flight, one every five seconds,
/// until each unit has met that several times. Operations in flight are carried out up to
/// `LATEST_NS` later. Now and then a donor is away long enough to be given up and to join again.
pub fn breaks(seed: u64) -> Result<Broken, DiskError> {
    with_breaks(seed, false)
}

/// Runs the life of [`breaks`], and lets the client die now and then.
pub fn breaks_and_dies(seed: u64) -> Result<Broken, DiskError> {
    with_breaks(seed, true)
}

/// Makes a disk on servers that are not ours.
fn breakable(seed: u64, donors: usize) -> Result<World, DiskError> {
    let config = Config { block_bytes: 512, buffer_blocks: 2, uuid: [7; 16], ..Config::default() };
    let mut world = World::new(seed, config, donors, 180_000)?;
    world.unkind.is_on = true;
    world.unkind.late_ns = LATEST_NS;
    world.donors.iter_mut().for_each(|donor| donor.trouble.fenced = false);
    Ok(world)
}

/// Donors leave writes unanswered for seconds on a full disk. Returns how many requests found
/// no room, and how many writes were late.
pub fn unanswered(seed: u64) -> Result<(usize, u64), DiskError> {
    let mut world = breakable(seed, 4)?;
    world.fill()?;
    world.settle()?;
    world.donors.iter_mut().for_each(|donor| donor.trouble.silent_of = 3);
    for _ in 0..200 {
        world.random_request(1)?;
        world.quiet(50_000_000)?;
    }
    let late = world.engine().status().donors.iter().map(|donor| donor.unanswered).sum();
    world.donors.iter_mut().for_each(|donor| donor.trouble.silent_of = 0);
    world.heal()?;
    let refused = world.without_room();
    world.check_all()?;
    Ok((refused, late))
}

fn with_breaks(seed: u64, dies: bool) -> Result<Broken, DiskError> {
    let mut world = breakable(seed, 4)?;
    let (mut uncertain, mut refused) = (0, 0);
    for round in 1..=500 {
        if dies && round % 100 == 0 {
            world.heal()?;
            // An opening waits for a shorter time than the quarantine.
            world.quiet(LATEST_NS)?;
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
        match round % 20 {
            0 => world.stop(donor, AWAY_NS),
            _ => world.sever(donor)?,
        }
        world.quiet(5_000_000_000)?;
        refused += world.without_room();
    }
    world.heal()?;
    world.quiet(60_000_000_000)?;
    refused += world.without_room();
    // When no more connections break, there is room again, or more donors bring some: lists of
    // trims need units on two donors.
    world.some_more()?;
    let is_stuck = world.without_room() > 0;
    if is_stuck {
        world.join(180_000);
        world.join(180_000);
        world.quiet(60_000_000_000)?;
        world.without_room();
        world.some_more()?;
    }
    if let Some(error) = world.errors.pop() {
        return Err(error);
    }
    world.check_all()?;
    world.scrub(false)?;
    match world.engine().status() {
        status if status.damage.found > 0 => Err(gone_over(&status)),
        _ => Ok(Broken { uncertain, refused, is_stuck }),
    }
}

/// Breaks a connection, empties the donor, sends it away, and adds it again at once. Late writes
/// must not overwrite new blocks.
pub fn breaks_and_leaves(seed: u64) -> Result<(), DiskError> {
    let mut world = breakable(seed, 5)?;
    for _ in 0..20 {
        world.some_writes(30)?;
        for _ in 0..world.random.below(8) {
            world.step()?;
        }
        let donor = world.any_donor();
        world.sever(donor)?;
        let Some(number) = world.number_of(donor) else { continue };
        let now = world.now;
        world.engine().drain(number, now);
        world.collect()?;
        // It becomes empty, or a disk without room keeps using it.
        let is_draining =
            |world: &mut World| world.engine().status().donors[number as usize].state == DonorState::Draining;
        while is_draining(&mut world) {
            world.quiet(50_000_000)?;
        }
        if world.number_of(donor).is_some() {
            continue;
        }
        world.joins_again(donor)?;
        for _ in 0..20 {
            world.some_writes(10)?;
            world.quiet(1_000_000_000)?;
        }
        world.quiet(LATEST_NS)?;
        world.scrub(false)?;
        let status = world.engine().status();
        if status.damage.found > 0 {
            return Err(gone_over(&status));
        }
    }
    world.without_room();
    world.check_all()
}

fn gone_over(status: &Status) -> DiskError {
    World::fault(format!("a late write has gone over something: {status:?}"))
}
