//! Half-full disks whose units are all in use, mostly by dead blocks, and that are opened and written to at once.
//!
//! Donors answer late, stop for some seconds, or lose their connection meanwhile; one may come only after the opening.
//! Rule: all of the data fits on any three of the four donors, so requests find room. Left out: full disks (`scenes`),
//! connections that break all the time (`paces`).

use shoal_netram::{Config, DiskError};

use super::World;

/// Time between two ticks of the client (ns).
pub(super) const TICK_NS: u64 = 50_000_000;

impl World {
    /// Runs until all requests are answered, with a tick whenever one is due. `ticked`: when the last one was (ns).
    pub(super) fn answers(&mut self, ticked: &mut u64) -> Result<(), DiskError> {
        while self.in_flight() > 0 {
            if self.now - *ticked > TICK_NS || !self.step()? {
                self.tick(TICK_NS)?;
                *ticked = self.now;
            }
        }
        Ok(())
    }

    /// Writes one random sector of the first `part` after the other.
    fn writes_at_depth_one(&mut self, part: usize, count: usize) -> Result<(), DiskError> {
        let mut ticked = self.now;
        for _ in 0..count {
            let at = self.random.below(part as u64) as usize;
            self.write(at, 1, false)?;
            self.answers(&mut ticked)?;
        }
        Ok(())
    }

    /// Something happens to a donor that it recovers from.
    fn hinder(&mut self) -> Result<(), DiskError> {
        let donor = self.any_donor();
        match self.random.below(4) {
            // The loss of two donors at once would be more than parity covers.
            0 if self.donors.iter().all(|donor| donor.is_there()) => {
                let for_ns = self.random.below(9_000_000_000);
                self.stop(donor, for_ns);
            }
            1 if self.engine.is_some() => self.sever(donor)?,
            2 => self.donors[donor].trouble.slow = 2 + self.random.below(500),
            _ => self.donors[donor].trouble.silent_of = 2 + self.random.below(30),
        }
        Ok(())
    }
}

/// Lets clients write, die, and open the disk again. Returns how many requests found no room.
pub fn opens_half_full(seed: u64) -> Result<usize, DiskError> {
    let buffer_blocks = 1 + (seed % 8) as u16;
    let config = Config { block_bytes: 512, buffer_blocks, uuid: [7; 16], ..Config::default() };
    let mut world = World::new(seed, config, 4, 180_000)?;
    world.unkind.is_on = true;
    let part = world.sectors() * 2 / 5;
    world.writes_at_depth_one(part, 4 * part)?;
    for _ in 0..3 {
        if world.random.below(2) == 0 {
            world.flush()?;
            world.settle()?;
        }
        world.client_dies();
        if world.random.below(2) == 0 {
            world.hinder()?;
        }
        if !world.open_when_possible()? {
            return Err(World::fault("not opened".into()));
        }
        world.pin()?;
        for _ in 0..4 {
            world.writes_at_depth_one(part, part / 4)?;
            world.hinder()?;
        }
        world.writes_at_depth_one(part, 2 * part)?;
        world.donors.iter_mut().for_each(|donor| donor.trouble.silent_of = 0);
        world.heal()?;
    }
    let refused = world.errors.extract_if(.., |error| *error == DiskError::NoSpace).count();
    world.check_all()?;
    Ok(refused)
}
