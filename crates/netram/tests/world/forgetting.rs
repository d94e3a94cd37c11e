//! Lives in which donors are given up for good: what only they held is lost, and told as lost.
//!
//! Owns: [`forgetting`]. Rules: a lost block fails to be read, also after restarts, until it is
//! written or trimmed again; then it never fails again. Left out: donors that may come back
//! (`unkind`).

use std::collections::BTreeSet;

use shoal_netram::{DiskError, DonorState, Policy};
use shoal_sim::Random;

use super::{SECTOR, World, random_config};

/// Kills and forgets more donors than parity covers. Losses must be reported, also after restarts.
/// Returns the number of failed reads.
pub fn forgetting(seed: u64) -> Result<u64, DiskError> {
    let (mut world, block) = forgotten(seed)?;
    if world.random.below(2) == 0 {
        // Some lost blocks are written or trimmed again before the list of losses is sent.
        world.replace_some(block, 4)?;
    }
    world.flush()?;
    world.rest()?;
    let lost = world.lost_blocks(block)?;
    let mut failed = lost.len() as u64;
    let still = |donor: &shoal_netram::DonorStatus| donor.state == DonorState::Forgotten;
    if world.engine().status().donors.iter().any(still) {
        // Without them there is no room to rebuild everything else.
        return Ok(failed);
    }
    world.replace_many(block, &lost)?;
    for _ in 0..2 {
        let before = world.lost_blocks(block)?;
        // The lists are moved like everything that is live.
        world.rest()?;
        if world.engine().status().unflushed.is_some() {
            // The disk is full, and refused the last flush.
            return Ok(failed);
        }
        world.client_dies();
        let given: Vec<usize> = (0..world.donors.len()).filter(|&n| world.donors[n].alive).collect();
        world.open(&given)?;
        world.pin()?;
        let now_lost = world.lost_blocks(block)?;
        if let Some(again) = now_lost.difference(&before).next() {
            return Err(World::fault(format!("block {again} is lost after a restart, and was not before")));
        }
        failed += now_lost.len() as u64;
    }
    Ok(failed)
}

/// Returns a disk, and the sectors of a block, after more donors than parity covers were killed and
/// forgotten.
fn forgotten(seed: u64) -> Result<(World, usize), DiskError> {
    let mut random = Random::new(seed ^ 0xf043e7);
    let (mut config, donors) = random_config(&mut random);
    while !config.policy.is_redundant() {
        config.policy = Policy::ALL[random.below(7) as usize];
    }
    config.patience_ms = 1000;
    let parity = config.parity as usize;
    let block = config.block_bytes as usize / SECTOR;
    let mut world = World::new(seed, config, donors.max(parity + 1) + parity + 1, 132_000)?;
    world.unkind.is_on = true;
    // Write no more than the remaining donors can hold.
    for _ in 0..60 {
        world.random_request(block)?;
        while world.in_flight() > 6 && world.step()? {}
    }
    world.flush()?;
    world.rest()?;
    let victims: Vec<_> = world.counting().into_iter().take(parity + 1).collect();
    for &victim in &victims {
        world.kill(victim);
        let now = world.now;
        world.engine().lost(victim, now);
        world.collect()?;
    }
    for _ in 0..40 {
        while world.step()? {}
        world.tick(50_000_000)?;
    }
    for &victim in &victims {
        let now = world.now;
        world.engine().forget(victim, now)?;
        world.collect()?;
    }
    Ok((world, block))
}

impl World {
    /// Writes and trims blocks again, among them all that are left in one of two lives. What is lost
    /// from the first half of the disk and not met stays so.
    fn replace_many(&mut self, block: usize, lost: &BTreeSet<u64>) -> Result<(), DiskError> {
        let half = self.sectors() / 2 / block * block;
        if self.random.below(2) == 0 {
            // No group from before stays, so that lists of trims have nothing left to hide.
            for at in (half..self.sectors() / block * block).step_by(block) {
                self.trim(at, block, true)?;
            }
            self.flush()?;
            self.settle()?;
            for at in (0..half).step_by(block).filter(|&at| !lost.contains(&((at / block) as u64))) {
                self.write(at, block, false)?;
                self.settle()?;
            }
        }
        for _ in 0..self.random.below(6) {
            self.replace_some(block, 8)?;
            self.flush()?;
            self.settle()?;
            if self.random.below(3) == 0 {
                self.rest()?;
            }
        }
        Ok(())
    }

    /// Writes or trims about one of `one_of` blocks of the first half of the disk.
    fn replace_some(&mut self, block: usize, one_of: u64) -> Result<(), DiskError> {
        for at in (0..self.sectors() / 2 / block * block).step_by(block) {
            match self.random.below(2 * one_of) {
                0 => self.write(at, block, false)?,
                1 => self.trim(at, block, true)?,
                _ => continue,
            }
            self.settle()?;
        }
        Ok(())
    }
}
