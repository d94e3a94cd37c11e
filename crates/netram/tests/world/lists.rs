//! Disks with many lists of trims, opened while the donor that was away is back and another one is dead.
//!
//! Rule: all donors but one are there, so the disk is opened, and everything flushed is there. The donor that was away
//! still names lists of groups that were freed meanwhile. Left out: bits that flip (`unkind`), lists of losses
//! (`forgetting`).

use shoal_netram::{Config, DiskError, Policy};

use super::World;
use super::reopening::TICK_NS;

impl World {
    /// Writes, trims and flushes at random, one request after the other.
    fn writes_and_trims(&mut self, count: usize) -> Result<(), DiskError> {
        let mut ticked = self.now;
        for _ in 0..count {
            let sectors = 1 + self.random.below(6) as usize;
            let at = self.random.below((self.sectors() * 2 / 5) as u64) as usize;
            match self.random.below(8) {
                0 => self.flush()?,
                1 | 2 => self.trim(at, sectors, true)?,
                _ => self.write(at, sectors, false)?,
            }
            self.answers(&mut ticked)?;
            if self.random.below(8) == 0 {
                self.tick(TICK_NS)?;
            }
        }
        Ok(())
    }
}

/// Lets a donor go away, the client die, the donor come back and another one die. Returns how many requests found no
/// room.
pub fn lists(seed: u64) -> Result<usize, DiskError> {
    let policies = [Policy::Basic, Policy::Logging, Policy::Caching, Policy::Adaptive, Policy::Mirrored];
    let donor_bytes = 100_000 + 20_000 * (seed / 5 % 4);
    let config = Config {
        policy: policies[seed as usize % 5],
        block_bytes: 512,
        buffer_blocks: 1 + (seed / 20 % 4) as u16,
        uuid: [7; 16],
        ..Config::default()
    };
    let mut world = World::new(seed, config, 4, donor_bytes)?;
    world.unkind.is_on = true;
    world.donors.iter_mut().for_each(|donor| donor.trouble.fenced = true);
    let count = 300 + world.random.below(300) as usize;
    world.writes_and_trims(count)?;
    let (away, dead) = (world.random.below(4) as usize, world.random.below(4) as usize);
    if away != dead {
        world.go_away(away)?;
    }
    let count = 1 + world.random.below(30) as usize;
    world.writes_and_trims(count)?;
    world.client_dies();
    world.donors[away].trouble.away = false;
    world.donors[dead].alive = false;
    if !world.open_when_possible()? {
        return Err(World::fault("too few donors".into()));
    }
    world.pin()?;
    world.heal()?;
    let refused = world.errors.extract_if(.., |error| *error == DiskError::NoSpace).count();
    world.check_all()?;
    Ok(refused)
}
