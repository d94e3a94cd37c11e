//! Status compared with the truth: what the report says of redundancy and damage must be so.
//!
//! The truth is observed, not asked for: for each donor a client opens a copy of all the others and
//! reads every block. While the report says that everything is protected, all blocks must have the
//! flushed value. Injected damage must be in the report after a scrub, and must be repaired when
//! the report says so. Left out: what happens to a disk (the lives).

use std::collections::BTreeSet;

use shoal_media::Request;
use shoal_netram::{
    Action, Config, DiskError, DonorError, DonorId, DonorOp, DonorState, DonorStatus, Engine, Policy, Trouble as Why,
};
use shoal_sim::Random;

use super::unkind::Tears;
use super::{FRONT, SECTOR, World, fill, random_config};

impl World {
    /// Reads every sector on a copy of the donors without one of them. Returns how many fail or are
    /// older than the value at the index in `from`. Stopped donors go on when the client dies.
    fn missing_without(&self, without: usize, from: &[usize]) -> Result<usize, DiskError> {
        let mut memories: Vec<Vec<u8>> = self.donors.iter().map(|donor| donor.bytes.clone()).collect();
        let is_there = |n: usize| n != without && self.donors[n].alive;
        let given = (0..self.donors.len()).filter(|&n| self.donors[n].alive);
        let given = given.map(|n| (self.info(n), is_there(n).then(|| memories[n][..FRONT].to_vec())));
        let config = Config { patience_ms: 60_000, ..self.config.clone() };
        let mut now = self.now;
        let mut engine = Engine::open(&config, given.collect(), now)?;
        let place = |name: &str| self.donors.iter().position(|donor| donor.name == name);
        let numbers: Vec<Option<usize>> = engine.status().donors.iter().map(|donor| place(&donor.name)).collect();
        for at in 0..self.sectors.len() {
            let request = Request::Read { at: (at * SECTOR) as u64, buffer: vec![0; SECTOR] };
            engine.submit(at as u64 + 1, request, now);
        }
        let (mut left, mut wrong) = (self.sectors.len(), 0);
        for _ in 0..4000 {
            loop {
                let actions = engine.actions();
                if actions.is_empty() {
                    break;
                }
                for action in actions {
                    match action {
                        Action::Complete { ticket, result } => {
                            left -= 1;
                            let number = ticket as usize - 1;
                            // A failed write may have been done.
                            let allowed = &self.sectors[number].values[from[number]..];
                            let is_right = |found: Vec<u8>| allowed.iter().any(|&value| found == fill(value));
                            wrong += usize::from(!result.is_ok_and(is_right));
                        }
                        Action::Donor { ticket, donor, op, .. } => {
                            let there = numbers[donor as usize].filter(|&n| is_there(n));
                            let answer = there.map(|n| carry(&mut memories[n], op));
                            let away = || Err(DonorError::new(Why::Away, "not there"));
                            engine.done(ticket, answer.map_or_else(away, Ok), now);
                        }
                    }
                }
            }
            if left == 0 {
                return Ok(wrong);
            }
            now += 50_000_000;
            engine.tick(now);
        }
        Err(World::fault(format!("{left} reads hang on a copy without donor {without}: {:?}", engine.status())))
    }

    /// Checks the report of a resting disk on which everything was flushed. Returns false if the
    /// report does not claim that all is well.
    fn compare_with_truth(&mut self) -> Result<bool, DiskError> {
        let status = self.engine().status();
        let says_all_is_well = status.groups_degraded == 0
            && status.damage.unrepaired == 0
            && status.blocks_unprotected == 0
            && status.repair.is_none();
        if !says_all_is_well || status.parity_units == 0 {
            return Ok(false);
        }
        let from: Vec<usize> = self.sectors.iter().map(|sector| sector.acknowledged - 1).collect();
        self.can_do_without_any(&from)?;
        Ok(true)
    }

    /// Checks at any moment that everything flushed would survive if the client died now and one
    /// donor did not come back. Returns false if the report does not claim that all is well.
    fn compare_at_once(&mut self) -> Result<bool, DiskError> {
        // A partly done write together with a lost donor may be more than parity can restore.
        if self.donors.iter().any(|donor| donor.trouble.tears == Tears::Anywhere) {
            return Ok(false);
        }
        let status = self.engine().status();
        let is_there =
            |donor: &DonorStatus| matches!(donor.state, DonorState::Active | DonorState::Lost | DonorState::Drained);
        let says_all_is_well = status.ready
            && status.epoch_stored
            && status.groups_degraded == 0
            && status.damage.unrepaired == 0
            && status.blocks_unprotected == 0
            && status.repair.is_none()
            && status.donors.iter().all(is_there);
        if !says_all_is_well || status.parity_units == 0 {
            return Ok(false);
        }
        let from: Vec<usize> = self.sectors.iter().map(|sector| sector.promised).collect();
        self.can_do_without_any(&from)?;
        Ok(true)
    }

    fn can_do_without_any(&mut self, from: &[usize]) -> Result<(), DiskError> {
        for number in self.counting() {
            let donor = self.numbers[number as usize];
            let wrong = self.missing_without(donor, from)?;
            if wrong > 0 {
                let status = self.engine().status();
                let text = format!(
                    "{wrong} sectors would be lost with donor {donor}, of which the report says nothing: {status:?}"
                );
                return Err(World::fault(text));
            }
        }
        Ok(())
    }

    /// Flushes everything at the end of a life, and checks the report.
    pub(super) fn report_is_true(&mut self) -> Result<(), DiskError> {
        if self.unkind.damaged {
            return Ok(());
        }
        self.comes_to_rest()?;
        let is_flushed = self.errors.is_empty();
        self.errors.clear();
        if is_flushed && self.compare_with_truth()? {
            *self.unkind.faults.entry("report compared").or_default() += 1;
        }
        Ok(())
    }

    /// Checks the report after a failed flush: it must count everything that is in memory alone,
    /// and may say nothing only when all of it is safe.
    fn compare_unflushed(&mut self) -> Result<bool, DiskError> {
        let status = self.engine().status();
        let (counting, block) = (self.counting(), self.config.block_bytes as usize / SECTOR);
        match (&status.unflushed, &self.failed_flush) {
            (None, None) => Ok(false),
            (Some(_), None) => {
                Err(World::fault(format!("a failed flush is told after one that came later has ended: {status:?}")))
            }
            (None, Some((_, target))) => match self.missing_without(usize::MAX, target)? {
                0 => Ok(false),
                wrong => {
                    Err(World::fault(format!("{wrong} sectors of a failed flush are in memory alone: {status:?}")))
                }
            },
            (Some(told), Some(_)) => {
                let from: Vec<usize> = self.sectors.iter().map(|sector| sector.acknowledged - 1).collect();
                let most = told.blocks as usize * block;
                for number in counting {
                    let donor = self.numbers[number as usize];
                    let wrong = self.missing_without(donor, &from)?;
                    if wrong > most {
                        let text = format!("{wrong} sectors are not safe without donor {donor}: {status:?}");
                        return Err(World::fault(text));
                    }
                }
                Ok(true)
            }
        }
    }

    /// Drains a donor during writes. When it no longer belongs to the disk, everything flushed must
    /// be on the others.
    fn leaves_when_safe(&mut self, number: DonorId) -> Result<(), DiskError> {
        let block = self.config.block_bytes as usize / SECTOR;
        for step in 0..20_000 {
            if step < 3000 && self.in_flight() < 4 && self.random.below(4) == 0 {
                let at = self.random.below(self.sectors() as u64) as usize / block * block;
                if at + block <= self.sectors() && !self.is_busy(at, block) {
                    self.write(at, block, false)?;
                }
            }
            match self.engine().status().donors[number as usize].state {
                DonorState::Draining if self.step()? => {}
                DonorState::Draining => self.tick(20_000_000)?,
                _ => break,
            }
        }
        if self.engine().status().donors[number as usize].state == DonorState::Drained {
            let from: Vec<usize> = self.sectors.iter().map(|sector| sector.promised).collect();
            let wrong = self.missing_without(self.numbers[number as usize], &from)?;
            if wrong > 0 {
                return Err(World::fault(format!("{wrong} sectors have left with donor {number}")));
            }
        }
        // Blocks that held nothing may have found no room meanwhile.
        self.settle()?;
        self.errors.retain(|error| *error != DiskError::NoSpace);
        Ok(())
    }

    /// Runs every event that is due within this time.
    fn passes(&mut self, ns: u64) -> Result<(), DiskError> {
        let until = self.now + ns;
        loop {
            let next = self.flights.first_key_value().map(|(&(due, _), _)| due);
            let next = [next, self.unkind.next_due()].into_iter().flatten().min();
            if next.is_none_or(|due| due > until) {
                break;
            }
            self.step()?;
        }
        let left = until.saturating_sub(self.now);
        self.tick(left)
    }

    /// Reads each block of `block` sectors and returns the numbers of those that are lost. Reads of
    /// lost blocks fail, and all others must be right.
    pub(super) fn lost_blocks(&mut self, block: usize) -> Result<BTreeSet<u64>, DiskError> {
        for at in (0..self.sectors() / block * block).step_by(block) {
            self.read(at, block)?;
        }
        self.settle()?;
        let mut lost = BTreeSet::new();
        for error in std::mem::take(&mut self.errors) {
            match error {
                DiskError::Lost { block } => drop(lost.insert(block)),
                // Earlier writes may have found no room.
                DiskError::NoSpace => {}
                error => return Err(error),
            }
        }
        Ok(lost)
    }

    /// Scrubs, and waits for the repair of what was found. `refusals`: donors refuse for moments
    /// meanwhile.
    pub(super) fn scrub(&mut self, refusals: bool) -> Result<(), DiskError> {
        let (before, begin) = (self.engine().status().scrub.completed, self.now);
        let now = self.now;
        self.engine().scrub(now);
        self.collect()?;
        while self.engine().status().scrub.completed == before {
            if refusals && self.random.below(3) == 0 {
                let donor = self.any_donor();
                match self.random.below(2) {
                    0 => self.refuse_writes(donor),
                    _ => self.refuse_reads(donor),
                }
            }
            self.some_steps()?;
            self.tick(50_000_000)?;
            if self.now - begin > super::HANG_NS {
                return Err(World::fault(format!("a scrub does not end: {:?}", self.engine().status())));
            }
        }
        self.heal()
    }
}

fn carry(memory: &mut [u8], op: DonorOp) -> Vec<u8> {
    match op {
        DonorOp::Read { at, len } => memory[at as usize..][..len as usize].to_vec(),
        DonorOp::Write { at, bytes } => {
            memory[at as usize..][..bytes.len()].copy_from_slice(&bytes);
            Vec::new()
        }
        DonorOp::Trim { .. } => Vec::new(),
    }
}

/// What a life has compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Compared {
    /// How often the report said that all was well, and was right.
    pub well: u64,
    pub damaged: u64,
}

/// Makes a disk with parity and at least one donor more than it needs.
pub(super) fn redundant(seed: u64) -> Result<(World, Random), DiskError> {
    let mut random = Random::new(seed ^ 0x701d);
    let (mut config, donors) = random_config(&mut random);
    while !config.policy.is_redundant() {
        config.policy = Policy::ALL[random.below(7) as usize];
    }
    config.patience_ms = 3000;
    let least = config.parity as usize + 2;
    let mut world = World::new(seed, config, donors.max(least), 132_000)?;
    world.unkind.is_on = true;
    world.donors.iter_mut().for_each(|donor| donor.trouble.fenced = true);
    Ok((world, random))
}

impl World {
    /// Runs requests while donors stop, refuse and lose connections. Then everything is flushed,
    /// and pending units are erased. Returns false if there was no room.
    fn works(&mut self, requests: usize, troubles: bool) -> Result<bool, DiskError> {
        let block = self.config.block_bytes as usize / SECTOR;
        for _ in 0..requests {
            self.random_request(block)?;
            while self.in_flight() > 6 && self.step()? {}
            if troubles && self.random.below(10) == 0 {
                self.compare_at_once()?;
            }
            if troubles && self.random.below(12) == 0 {
                let donor = self.any_donor();
                match self.random.below(3) {
                    0 => self.refuse_writes(donor),
                    1 => self.sever(donor)?,
                    _ => self.stop(donor, 700_000_000),
                }
            }
        }
        self.heal()?;
        self.errors.clear();
        self.comes_to_rest()?;
        Ok(self.errors.is_empty())
    }

    fn comes_to_rest(&mut self) -> Result<(), DiskError> {
        self.flush()?;
        self.settle()?;
        for _ in 0..100 {
            self.some_steps()?;
            self.tick(50_000_000)?;
        }
        Ok(())
    }

    /// Flips bits of one donor, and reads some blocks. With more donors, rows could lack more than
    /// parity can restore.
    fn flips(&mut self, donor: usize) -> Result<(), DiskError> {
        let block = self.config.block_bytes as usize / SECTOR;
        for _ in 0..self.random.below(40) {
            let (from, to) = (FRONT as u64, self.donors[donor].bytes.len() as u64);
            let (at, bit) = (from + self.random.below(to - from), self.random.below(8));
            self.donors[donor].bytes[at as usize] ^= 1 << bit;
        }
        for _ in 0..self.random.below(20) {
            let at = self.random.below(self.sectors() as u64) as usize / block * block;
            self.read(at, block.min(self.sectors() - at))?;
        }
        self.settle()
    }
}

/// A life with writes, donors that stop and refuse, and flipped bits on one donor. The report must
/// be true after a scrub, and after that donor was drained.
pub fn told(seed: u64) -> Result<Compared, DiskError> {
    let (mut world, mut random) = redundant(seed)?;
    if random.below(3) > 0 {
        world.donors.iter_mut().for_each(|donor| donor.trouble.tears = Tears::InSuperblocks);
    }
    let (mut compared, mut flipped) = (Compared::default(), Vec::new());
    for round in 0..4 {
        if !world.works(40, true)? {
            return Ok(compared);
        }
        compared.well += u64::from(world.compare_with_truth()?);
        let counting = world.counting();
        let number = counting[world.random.below(counting.len() as u64) as usize];
        let donor = world.numbers[number as usize];
        world.flips(donor)?;
        flipped.push(donor);
        let can_leave = counting.len() > world.config.parity as usize + 1 && world.engine().drain_room(number).fits();
        if round == 3 && can_leave {
            // The drain verifies everything that it moves.
            let now = world.now;
            world.engine().drain(number, now);
            world.collect()?;
            world.leaves_when_safe(number)?;
            world.heal()?;
            if world.engine().status().donors[number as usize].state != DonorState::Drained {
                return Ok(compared);
            }
        } else {
            let refusals = world.random.below(2) == 0;
            world.scrub(refusals)?;
        }
        world.comes_to_rest()?;
        compared.damaged += world.engine().status().damage.found;
        let status = world.engine().status();
        let name = |n: usize| world.donors[world.numbers[n]].name.clone();
        let is_sound = |n: usize| !flipped.contains(&world.numbers[n]);
        if let Some(other) = (0..status.donors.len()).find(|&n| status.donors[n].damaged > 0 && is_sound(n)) {
            return Err(World::fault(format!("{} is said to be damaged, and is not", name(other))));
        }
        if status.damage.unrepaired == 0 {
            compared.well += u64::from(world.compare_with_truth()?);
        }
        world.check_all()?;
    }
    Ok(compared)
}

/// A life in which bits of one donor flip and another donor dies. What the report says of the rest
/// must be true.
pub fn worse(seed: u64) -> Result<Compared, DiskError> {
    let (mut world, _) = redundant(seed ^ 0x3057)?;
    let mut compared = Compared::default();
    if !world.works(60, false)? {
        return Ok(compared);
    }
    world.unkind.damaged = true;
    let counting = world.counting();
    let (flipped, dies) = (world.numbers[counting[0] as usize], counting[1]);
    world.flips(flipped)?;
    world.kill(dies);
    let now = world.now;
    world.engine().lost(dies, now);
    world.collect()?;
    for _ in 0..100 {
        world.some_steps()?;
        world.tick(50_000_000)?;
    }
    let now = world.now;
    world.engine().scrub(now);
    world.collect()?;
    world.comes_to_rest()?;
    world.errors.clear();
    let status = world.engine().status();
    compared.damaged += status.damage.found;
    if status.groups_degraded == 0 && status.repair.is_none() {
        // The report claims that nothing is wrong: everything can be read.
        world.check_all()?;
        compared.well += 1;
    }
    Ok(compared)
}

/// Forgets one of two donors that are away. The other comes back, with everything that it covers.
/// The cost must be what was announced.
pub fn half_forgotten(seed: u64) -> Result<u64, DiskError> {
    let (mut world, _) = redundant(seed ^ 0xa1f)?;
    if world.config.parity != 1 || !world.works(60, false)? {
        return Ok(0);
    }
    let counting = world.counting();
    let (dead, stopped) = (counting[0], counting[1]);
    let donor = world.numbers[stopped as usize];
    world.donors[donor].trouble.away = true;
    world.kill(dead);
    for number in [stopped, dead] {
        let now = world.now;
        world.engine().lost(number, now);
        world.collect()?;
    }
    for _ in 0..40 {
        world.some_steps()?;
        world.tick(50_000_000)?;
    }
    let cost = world.engine().forget_cost(dead)?;
    let now = world.now;
    world.engine().forget(dead, now)?;
    world.collect()?;
    let lost = world.engine().status().blocks_lost;
    if lost != cost.lost {
        return Err(World::fault(format!("{lost} blocks are lost, {cost:?} was said")));
    }
    let waiting = world.count_unavailable()?;
    let told = world.engine().status().blocks_unprotected;
    if told < waiting {
        return Err(World::fault(format!("{waiting} blocks cannot be had, {told} are said to be unprotected")));
    }
    // Repair may be working on some of them.
    if waiting > cost.waiting {
        return Err(World::fault(format!("{waiting} blocks wait for the other donor, {cost:?} was said")));
    }
    world.come_back(donor)?;
    world.heal()?;
    world.errors.clear();
    world.check_all()?;
    Ok(cost.waiting)
}

/// Donors go away, so that flushes fail, and come back. What the report says of it must be true,
/// and no second request may be needed. Returns how often that was compared.
pub fn unflushed(seed: u64) -> Result<u64, DiskError> {
    let (mut world, mut random) = redundant(seed ^ 0xf1a5)?;
    if !world.works(30, false)? {
        return Ok(0);
    }
    let block = world.config.block_bytes as usize / SECTOR;
    let blocks = world.sectors() / block;
    let mut compared = 0;
    for _ in 0..2 {
        for _ in 0..1 + random.below(12) {
            let many = (1 + random.below(4) as usize).min(blocks);
            let at = random.below((blocks - many) as u64 + 1) as usize;
            if !world.is_busy(at * block, many * block) {
                world.write(at * block, many * block, false)?;
            }
            world.passes(random.below(2_000_000))?;
        }
        let counting = world.counting();
        let first = random.below(counting.len() as u64) as usize;
        let go = (0..counting.len() - world.config.parity as usize).map(|n| counting[(first + n) % counting.len()]);
        for number in go.collect::<Vec<_>>() {
            let donor = world.numbers[number as usize];
            world.stop(donor, 4_000_000_000 + random.below(6_000_000_000));
            world.passes(random.below(3_000_000))?;
        }
        world.flush()?;
        for _ in 0..500 {
            world.passes(50_000_000)?;
            if random.below(12) == 0 {
                compared += u64::from(world.compare_unflushed()?);
            }
        }
        let status = world.engine().status();
        if status.unflushed.is_some() && !status.full {
            return Err(World::fault(format!("a failed flush is not made good: {status:?}")));
        }
        world.heal()?;
        world.comes_to_rest()?;
        world.errors.clear();
        compared += u64::from(world.compare_unflushed()?);
        world.check_all()?;
    }
    Ok(compared)
}

impl World {
    /// Reads each block and returns how many cannot be read at the moment. Lost blocks are reported
    /// as lost.
    fn count_unavailable(&mut self) -> Result<u64, DiskError> {
        let block = self.config.block_bytes as usize / SECTOR;
        for at in (0..self.sectors() / block * block).step_by(block) {
            self.read(at, block)?;
        }
        self.settle()?;
        let errors = std::mem::take(&mut self.errors);
        Ok(errors.iter().filter(|error| matches!(error, DiskError::Unavailable { .. })).count() as u64)
    }
}
