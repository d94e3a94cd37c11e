//! Lives with deaths: donors die, come back with old memory, are drained and added; the client dies
//! at any step.
//!
//! Rules: a donor dies only while everything is protected against one more loss, so nothing flushed
//! may be lost. A full disk may report `NoSpace`. Every other error is a failure. Left out: what
//! the disk must hold (the world's model).

use shoal_netram::{DiskError, Policy};
use shoal_sim::Random;

use super::{Meanwhile, SECTOR, World, random_config};

/// Runs a life with deaths. Returns how many there were.
pub fn stormy(seed: u64) -> Result<u64, DiskError> {
    let mut random = Random::new(seed ^ 0x5eed);
    let (mut config, donors) = random_config(&mut random);
    while !config.policy.is_redundant() {
        config.policy = Policy::ALL[random.below(7) as usize];
    }
    let block = config.block_bytes as usize / SECTOR;
    let parity = config.parity as usize;
    let spare = random.below(3) as usize;
    let mut world = World::new(seed, config, donors, 132_000)?;
    let need = world.counting().len().min(parity + 1) + 1;
    let mut deaths = 0;
    for step in 0..400 {
        world.random_request(block)?;
        while world.in_flight() > 6 && world.step()? {}
        if world.random.below(8) == 0 {
            world.tick(30_000_000)?;
        }
        deaths += disturb(&mut world, need, spare, step)?;
        // A full disk with too few donors may say so. Nothing else may fail.
        world.errors.retain(|error| *error != DiskError::NoSpace);
        if !world.errors.is_empty() {
            return Err(DiskError::Config(format!("step {step}: {}", world.errors.remove(0))));
        }
    }
    world.settle()?;
    world.errors.retain(|error| *error != DiskError::NoSpace);
    world.check_all()?;
    Ok(deaths)
}

/// Injects a random event on donors or client, if any. Returns the number of deaths. With `need`
/// donors, everything can be restored when one dies; `spare` more stay.
fn disturb(world: &mut World, need: usize, spare: usize, step: u64) -> Result<u64, DiskError> {
    let mut deaths = 0;
    match world.random.below(120) {
        0..4 => {
            // A donor dies, if its contents can be restored from the others.
            let counting = world.counting();
            if world.is_healthy() && counting.len() > need.max(2) {
                let victim = counting[world.random.below(counting.len() as u64) as usize];
                world.kill(victim);
                deaths += 1;
                if world.random.below(2) == 0 {
                    let now = world.now;
                    world.engine().lost(victim, now);
                    world.collect()?;
                }
            }
        }
        4..6 => {
            world.join(132_000);
            world.collect()?;
        }
        6..8 => {
            let counting = world.counting();
            if world.is_healthy() && counting.len() > need + spare {
                let (donor, now) = (counting[world.random.below(counting.len() as u64) as usize], world.now);
                world.engine().drain(donor, now);
                world.collect()?;
            }
        }
        8..12 => {
            // A partition ends before anybody declares the donor lost.
            let donor = world.random.below(world.donors.len() as u64) as usize;
            world.donors[donor].silent_until = world.now + world.random.below(2_000_000_000);
        }
        12..16 => {
            // The client dies. Donors that are gone or were given up are offered again with what
            // they hold.
            let healthy = world.is_healthy();
            let counting = world.counting();
            let mut given: Vec<usize> = (0..world.donors.len()).collect();
            if healthy && counting.len() > need.max(2) && world.random.below(3) == 0 {
                let victim = world.numbers[counting[0] as usize];
                given.retain(|&donor| donor != victim);
            } else if healthy && counting.len() > need + spare {
                world.meanwhile = match world.random.below(6) {
                    0 => Some(Meanwhile::Drain),
                    1 => Some(Meanwhile::Lose),
                    2 => Some(Meanwhile::Join),
                    _ => None,
                };
            }
            deaths += 1;
            world.restart(&given).map_err(|error| DiskError::Config(format!("step {step}: restart: {error}")))?;
        }
        16..20 => world.settle()?,
        20..22 => world.rest()?,
        _ => {}
    }
    Ok(deaths)
}

/// Runs a life of one restart after another. A donor is away at one restart and back at the next,
/// before anything has settled.
pub fn restless(seed: u64) -> Result<u64, DiskError> {
    let mut random = Random::new(seed ^ 0xca11);
    let (mut config, donors) = random_config(&mut random);
    while !config.policy.is_redundant() {
        config.policy = Policy::ALL[random.below(7) as usize];
    }
    let block = config.block_bytes as usize / SECTOR;
    let need = config.parity as usize + 1;
    let mut world = World::new(seed, config, donors + 1, 132_000)?;
    world.slow_writes = true;
    let mut restarts = 0;
    for _ in 0..12 {
        for _ in 0..10 {
            world.random_request(block)?;
            while world.in_flight() > 6 && world.step()? {}
        }
        if world.random.below(2) == 0 {
            world.rest()?;
        }
        let counting = world.counting();
        let all: Vec<usize> = (0..world.donors.len()).collect();
        if world.is_healthy() && counting.len() > need {
            let away = world.numbers[counting[world.random.below(counting.len() as u64) as usize] as usize];
            let given: Vec<usize> = all.iter().copied().filter(|&donor| donor != away).collect();
            world.restart(&given)?;
            for _ in 0..world.random.below(3) {
                world.random_request(block)?;
                world.step()?;
            }
        }
        world.restart(&all)?;
        restarts += 1;
        world.errors.retain(|error| *error != DiskError::NoSpace);
        if !world.errors.is_empty() {
            return Err(world.errors.remove(0));
        }
    }
    world.settle()?;
    world.errors.retain(|error| *error != DiskError::NoSpace);
    world.check_all()?;
    Ok(restarts)
}
