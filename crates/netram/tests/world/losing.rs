//! Half-full disks that lose a donor for good while they are written to.
//!
//! All units are in use, mostly by dead blocks: room comes from cleaning alone. Rule: all of the data fits on the donors
//! that stay, in groups of full width, so requests find room, and redundancy is restored. Left out: donors that come
//! back (`reopening`, `unkind`).

use shoal_netram::{Config, DiskError};

use super::World;
use super::reopening::TICK_NS;

/// How long repair may take under load (ns).
const REPAIR_NS: u64 = 60_000_000_000;

impl World {
    /// Writes at random, one request after the other, with a flush now and then.
    fn writes_and_flushes(&mut self, part: usize, count: usize) -> Result<(), DiskError> {
        let mut ticked = self.now;
        for turn in 1..=count {
            let sectors = [1, 1, 4, 16][self.random.below(4) as usize];
            let at = self.random.below((part - sectors) as u64) as usize;
            match turn % 64 {
                0 => self.flush()?,
                _ => self.write(at, sectors, false)?,
            }
            self.answers(&mut ticked)?;
        }
        Ok(())
    }
}

/// Lets one donor die under load. Returns how many requests found no room.
pub fn loses_one_half_full(seed: u64) -> Result<usize, DiskError> {
    let buffer_blocks = 1 + (seed % 8) as u16;
    let donor_bytes = 120_000 + 40_000 * (seed % 7);
    let (donors, width) = [(4, 3), (5, 3), (5, 4), (4, 2)][seed as usize / 8 % 4];
    let config = Config { block_bytes: 512, buffer_blocks, width, uuid: [7; 16], ..Config::default() };
    let mut world = World::new(seed, config, donors, donor_bytes)?;
    let part = world.sectors() * [8, 10, 12][seed as usize / 32 % 3] / 20;
    world.writes_and_flushes(part, 2 * part)?;
    let donor = world.random.below(donors as u64) as u16;
    world.kill(donor);
    let now = world.now;
    world.engine().lost(donor, now);
    world.collect()?;
    world.writes_and_flushes(part, part)?;
    let begin = world.now;
    while world.engine().status().groups_degraded > 0 {
        world.writes_and_flushes(part, 8)?;
        world.tick(TICK_NS)?;
        if world.now - begin > REPAIR_NS {
            return Err(World::fault(format!("redundancy is not restored: {:?}", world.engine().status())));
        }
    }
    let refused = world.errors.extract_if(.., |error| *error == DiskError::NoSpace).count();
    world.check_all()?;
    Ok(refused)
}
