//! Brief lives: a few writes, the client's death at any step, and what the next client finds, two
//! or three times.
//!
//! The other lives are long, and only meet by chance a state that needs several things at once.
//! Brief lives put these things side by side: a group that grows; a write that a donor does in
//! part; a client that dies with any part of its operations in flight done; a donor that is dead or
//! away at the next opening and may return meanwhile. Rules: in some lives donors die, no more than
//! parity covers, and then only superblocks may be written in part. In the others all donors come
//! back, and anything may be written in part. At the end everything that was flushed can be read.

use shoal_netram::{DiskError, Policy};
use shoal_sim::Random;

use super::unkind::Tears;
use super::{SECTOR, World, random_config};

/// Minimum bytes of a donor.
const DONOR_BYTES: u64 = 80_000;

/// The fate of operations in flight when the client dies.
#[derive(Clone, Copy)]
pub(super) enum Fate {
    Nothing,
    Everything,
    Each,
    /// As broken connections leave them: possibly carried out late.
    Late,
}

/// The theme of a brief life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Theme {
    Anything,
    /// A unit that grows is written in part.
    Growth,
    /// A returning donor knows something that the present client does not.
    News,
    /// Operations that were in flight are found and flushed before anything is written.
    Found,
}

/// What may happen in a life, and what has happened.
struct Life {
    theme: Theme,
    tears: Tears,
    /// Sectors of a block, and number of blocks that are written.
    block: usize,
    blocks: usize,
    /// How many donors may still die.
    mortal: usize,
    /// No donor was away while a client opened the disk.
    all_there: bool,
}

/// Runs a brief life. Returns the number of deaths of the client.
pub fn brief(seed: u64) -> Result<u64, DiskError> {
    let mut random = Random::new(seed ^ 0xb41ef);
    let (mut config, donors) = random_config(&mut random);
    while !config.policy.is_redundant() {
        config.policy = Policy::ALL[random.below(7) as usize];
    }
    let theme = [Theme::Anything, Theme::Growth, Theme::News, Theme::Found][random.below(4) as usize];
    if theme != Theme::Anything {
        // Groups grow with each flush.
        config.policy = if random.below(3) > 0 { Policy::Caching } else { Policy::Adaptive };
        config.parity = 1;
    }
    config.buffer_blocks = 1 + random.below(4) as u16;
    config.patience_ms = 1000;
    let block = config.block_bytes as usize / SECTOR;
    let parity = config.parity as usize;
    let mortal = if matches!(theme, Theme::Anything | Theme::Found) && random.below(2) == 0 { parity } else { 0 };
    let tears = match (mortal > 0, theme, random.below(3)) {
        (false, Theme::Growth, _) => Tears::InHeads,
        (false, _, 0) => Tears::Anywhere,
        (false, _, 1) => Tears::InHeads,
        (_, _, 0) => Tears::Nowhere,
        _ => Tears::InSuperblocks,
    };
    // The remaining donors can take over what the dead ones held.
    let mut world = World::new(seed, config, donors + mortal, DONOR_BYTES + 4096 * random.below(8))?;
    world.unkind.is_on = true;
    let ours = random.below(3) > 0;
    world.donors.iter_mut().for_each(|donor| donor.trouble.fenced = ours);
    let blocks = (world.sectors() / block).min(4 + random.below(20) as usize);
    let mut life = Life { theme, tears, block, blocks, mortal, all_there: true };
    for at in 0..blocks {
        if world.random.below(3) > 0 {
            world.write(at * block, block, false)?;
        }
    }
    world.flush()?;
    world.settle()?;
    let deaths = 2 + random.below(2);
    for death in 0..deaths {
        world.work(&life, death == 0)?;
        world.errors.retain(|error| {
            use DiskError::{NoSpace, NotOpen, TooFewDonors, Unavailable};
            !matches!(error, NoSpace | NotOpen | TooFewDonors { .. } | Unavailable { .. })
        });
        if !world.errors.is_empty() {
            return Err(world.errors.remove(0));
        }
        if !world.succeed(&mut life)? {
            // One donor is dead, and another was away at an opening.
            return match life.all_there {
                true => {
                    Err(World::fault("the disk is not found again, with no more donors dead than parity covers".into()))
                }
                false => Ok(deaths),
            };
        }
        world.pin()?;
    }
    world.heal()?;
    world.errors.clear();
    world.check_all()?;
    Ok(deaths)
}

impl World {
    /// Submits some requests while a donor may refuse. Ends at any step of them.
    fn work(&mut self, life: &Life, first: bool) -> Result<(), DiskError> {
        let (block, blocks) = (life.block, life.blocks);
        if life.theme == Theme::Found && !first {
            self.flush()?;
            return match self.random.below(3) {
                0 => self.steps(60),
                _ => self.settle(),
            };
        }
        if life.theme == Theme::News && !first && self.random.below(2) == 0 {
            return self.steps(120);
        }
        if life.theme == Theme::Growth || self.random.below(2) == 0 {
            for _ in 0..self.random.below(4) {
                let at = self.random.below(blocks as u64) as usize * block;
                self.write(at, block, true)?;
                self.settle()?;
            }
        }
        let rounds = if life.theme == Theme::Anything { self.random.below(4) } else { 1 };
        for round in 0..rounds {
            let refuses = match life.theme {
                Theme::Anything => self.random.below(3) == 0,
                Theme::Growth => true,
                Theme::News | Theme::Found => false,
            };
            if refuses {
                let donor = self.any_donor();
                self.donors[donor].trouble.tears = life.tears;
                self.refuse_writes(donor);
            }
            for _ in 0..self.random.below(5) {
                let sectors = block * (1 + self.random.below(3) as usize).min(blocks);
                let at = self.random.below((blocks * block - sectors) as u64 + 1) as usize / block * block;
                if self.is_busy(at, sectors) {
                    continue;
                }
                match self.random.below(6) {
                    0 => self.trim(at, sectors, true)?,
                    _ => self.write(at, sectors, false)?,
                }
            }
            if self.random.below(3) > 0 {
                self.flush()?;
            }
            if self.random.below(8) == 0 {
                let fenced = self.donors[0].trouble.fenced;
                self.join(DONOR_BYTES);
                self.donors.last_mut().expect("just joined").trouble.fenced = fenced;
                self.collect()?;
            }
            match (round + 1 == rounds, life.theme) {
                (true, Theme::Anything) => self.steps(60)?,
                (true, _) => self.steps(12)?,
                (false, _) => self.settle()?,
            }
        }
        Ok(())
    }

    /// Runs fewer than `most` steps.
    fn steps(&mut self, most: u64) -> Result<(), DiskError> {
        for _ in 0..self.random.below(most) {
            if !self.step()? {
                self.tick(50_000_000)?;
            }
        }
        Ok(())
    }

    /// Lets the client die and another one open the disk. Returns false if that will never be
    /// possible.
    fn succeed(&mut self, life: &mut Life) -> Result<bool, DiskError> {
        let fate = match self.random.below(4) {
            0 => Fate::Nothing,
            1 => Fate::Everything,
            2 => Fate::Each,
            _ => Fate::Late,
        };
        let dies = life.mortal > 0 && self.random.below(2) == 0;
        self.client_leaves(fate);
        if dies {
            life.mortal -= 1;
            let victim = self.any_donor();
            self.donors[victim].alive = false;
        } else if life.mortal == 0 {
            for _ in 0..self.random.below(self.config.parity as u64 + 2) {
                let donor = self.any_donor();
                let most = [2_000_000, 30_000_000, 4_000_000_000][self.random.below(3) as usize];
                let for_ns = self.random.below(most);
                self.stop(donor, for_ns);
                self.donors[donor].trouble.away = true;
                life.all_there = false;
            }
        }
        if !self.open_when_possible()? {
            return Ok(false);
        }
        if !dies && life.mortal == 0 && self.random.below(3) == 0 {
            let donor = self.any_donor();
            let for_ns = self.random.below(1_000_000_000);
            self.stop(donor, for_ns);
            life.all_there = false;
        }
        if self.random.below(4) == 0 {
            // The client dies while it opens the disk.
            self.steps(60)?;
            self.client_leaves(Fate::Late);
            return self.open_when_possible();
        }
        Ok(true)
    }
}
