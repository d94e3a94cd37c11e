//! Eager writing: the Unix file system on a virtual-log disk, and a virtual-log file system with NVRAM.
//!
//! Owns: [`EagerDevice`], the operations required of a virtual log; [`OnVirtualLog`], synchronous
//! updates of an unchanged file system, each of which is one command to the drive; [`Buffered`],
//! the file system about which the paper's authors only speculated: a write buffer in persistent
//! memory over the virtual log.
//! Rules of [`Buffered`]: an update is accepted when it is in the buffer, and replaces an older
//! update of the same block there. Blocks go to the log in batches: in gaps, when a block is older
//! than the flush age, and when the buffer is full. A batch consists of neighbours in the file,
//! because neighbours share records of the map. Batches go round the file, so that no block waits
//! forever. The compactor gets the rest of a gap. Every block is read and compared at the end.

use super::system::{BLOCK_BYTES, Buffer, ModelError, Result, System, World};

/// A virtual log as the models use it. Block numbers are logical.
pub trait EagerDevice: Send {
    /// Takes a block, which may stay in memory until the next flush.
    fn write(&mut self, block: u64, bytes: &[u8]) -> Result<()>;

    /// Writes everything, including the map, to the disk.
    fn flush(&mut self) -> Result<()>;

    fn read(&mut self, block: u64, out: &mut [u8]) -> Result<()>;

    /// Does one step of compaction. Returns false if nothing is worth doing.
    fn compact_step(&mut self) -> Result<bool>;
}

/// The version that each block should hold.
struct Versions(Vec<u32>);

impl Versions {
    /// Returns the contents of a block after one more update.
    fn next(&mut self, block: u64) -> [u8; BLOCK_BYTES as usize] {
        self.0[block as usize] += 1;
        self.bytes(block)
    }

    fn bytes(&self, block: u64) -> [u8; BLOCK_BYTES as usize] {
        let mut bytes = [0; BLOCK_BYTES as usize];
        bytes[..8].copy_from_slice(&block.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.0[block as usize].to_le_bytes());
        bytes
    }

    fn check(&self, device: &mut dyn EagerDevice, is_elsewhere: impl Fn(u64) -> bool) -> Result<()> {
        let mut found = vec![0; BLOCK_BYTES as usize];
        for block in (0..self.0.len() as u64).filter(|block| !is_elsewhere(*block)) {
            device.read(block, &mut found)?;
            if found != self.bytes(block) {
                let say = |bytes: &[u8]| format!("{:?}", &bytes[..12]);
                return Err(ModelError::WrongBytes { block, expected: say(&self.bytes(block)), found: say(&found) });
            }
        }
        Ok(())
    }
}

/// Writes the whole file once, in order.
fn fill(device: &mut dyn EagerDevice, versions: &mut Versions) -> Result<()> {
    for block in 0..versions.0.len() as u64 {
        let bytes = versions.next(block);
        device.write(block, &bytes)?;
    }
    device.flush()
}

/// Updates in place by the host over a drive that puts each block where its head is.
pub struct OnVirtualLog {
    world: World,
    device: Box<dyn EagerDevice>,
    versions: Versions,
    /// Time of a compactor step, as a moving average (ns).
    step_ns: u64,
}

impl OnVirtualLog {
    pub fn new(world: World, mut device: Box<dyn EagerDevice>) -> Result<OnVirtualLog> {
        let mut versions = Versions(vec![0; world.live as usize]);
        fill(&mut *device, &mut versions)?;
        Ok(OnVirtualLog { world, device, versions, step_ns: 0 })
    }
}

/// Runs the compactor while a step of average length still fits.
fn compact(world: &World, device: &mut dyn EagerDevice, step_ns: &mut u64, until_ns: u64) -> Result<()> {
    while world.room_ns(until_ns) > *step_ns {
        let (goes_on, took_ns) = world.timed(|| device.compact_step())?;
        if !goes_on {
            break;
        }
        *step_ns = *step_ns - *step_ns / 8 + took_ns / 8;
    }
    Ok(())
}

impl System for OnVirtualLog {
    fn update(&mut self, block: u64) -> Result<()> {
        self.world.accept();
        self.world.disk.command();
        let bytes = self.versions.next(block);
        self.device.write(block, &bytes)?;
        self.device.flush()
    }

    fn idle(&mut self, until_ns: u64) -> Result<()> {
        compact(&self.world, &mut *self.device, &mut self.step_ns, until_ns)
    }

    fn check(&mut self) -> Result<()> {
        self.versions.check(&mut *self.device, |_| false)
    }
}

/// How a buffered file system empties its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Maximum number of blocks written as one command.
    pub batch: usize,
    /// Age from which a block is always written (ns).
    pub age_ns: u64,
    /// Length from which a pause is a gap (ns).
    pub gap_ns: u64,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { batch: 64, age_ns: 30_000_000_000, gap_ns: 2_000_000 }
    }
}

/// A virtual-log file system with NVRAM.
pub struct Buffered {
    world: World,
    device: Box<dyn EagerDevice>,
    versions: Versions,
    buffer: Buffer,
    policy: Policy,
    /// End of the last batch in the file.
    cursor: u64,
    /// Time at which each block first became dirty (ns).
    since_ns: Vec<u64>,
    /// Time assumed for a batch of one block, and the longest time so far of each further block
    /// (ns).
    first_ns: u64,
    further_ns: u64,
    step_ns: u64,
}

impl Buffered {
    pub fn new(world: World, mut device: Box<dyn EagerDevice>, policy: Policy) -> Result<Buffered> {
        let mut versions = Versions(vec![0; world.live as usize]);
        fill(&mut *device, &mut versions)?;
        let drive = world.disk.drive();
        // Estimates before any measurement: two turns for a block and its record, half a turn for
        // each further block.
        let (first_ns, further_ns) = (drive.overhead_ns + 2 * drive.revolution_ns, drive.revolution_ns / 2);
        Ok(Buffered {
            buffer: Buffer::new(&world),
            cursor: 0,
            since_ns: vec![0; world.live as usize],
            world,
            device,
            versions,
            policy,
            first_ns,
            further_ns,
            step_ns: 0,
        })
    }

    /// Writes up to `count` blocks from the cursor on, as one command.
    fn write_batch(&mut self, count: usize) -> Result<()> {
        let blocks = self.buffer.take_in_order(self.cursor, count);
        self.cursor = blocks.last().map_or(self.cursor, |last| last + 1);
        let (world, device, versions) = (&self.world, &mut self.device, &self.versions);
        let (_, took_ns) = world.timed(|| {
            world.disk.command();
            for &block in &blocks {
                device.write(block, &versions.bytes(block))?;
            }
            device.flush()
        })?;
        if blocks.len() > 1 {
            let each_ns = took_ns.saturating_sub(self.first_ns) / (blocks.len() as u64 - 1);
            self.further_ns = self.further_ns.max(each_ns);
        }
        Ok(())
    }

    /// Returns how many blocks can be written in `left_ns`, judging by the times so far.
    fn fit(&self, left_ns: u64) -> usize {
        match left_ns.checked_sub(self.first_ns) {
            Some(spare_ns) => 1 + (spare_ns / self.further_ns.max(1)) as usize,
            None => 0,
        }
    }

    /// Returns the oldest block if it has waited too long.
    fn overdue(&self) -> Option<u64> {
        let is_overdue = |block: &u64| self.world.now_ns() - self.since_ns[*block as usize] > self.policy.age_ns;
        self.buffer.oldest().filter(is_overdue)
    }
}

impl System for Buffered {
    fn update(&mut self, block: u64) -> Result<()> {
        self.world.accept();
        self.versions.next(block);
        if self.buffer.holds(block) {
            return Ok(());
        }
        if let Some(overdue) = self.overdue() {
            self.cursor = overdue;
            self.write_batch(self.policy.batch)?;
        } else if self.buffer.is_full() {
            self.write_batch(self.policy.batch)?;
        }
        self.since_ns[block as usize] = self.world.now_ns();
        self.buffer.put(block);
        Ok(())
    }

    fn idle(&mut self, until_ns: u64) -> Result<()> {
        if self.world.left_ns(until_ns) <= self.policy.gap_ns {
            return Ok(());
        }
        self.world.clock.advance(self.policy.gap_ns);
        while !self.buffer.is_empty() {
            let count = self.fit(self.world.room_ns(until_ns)).min(self.policy.batch);
            if count == 0 {
                return Ok(());
            }
            self.write_batch(count)?;
        }
        let until_ns = if self.world.foresees { until_ns.saturating_sub(self.first_ns) } else { until_ns };
        compact(&self.world, &mut *self.device, &mut self.step_ns, until_ns)
    }

    fn check(&mut self) -> Result<()> {
        self.versions.check(&mut *self.device, |block| self.buffer.holds(block))
    }
}

#[cfg(test)]
mod tests {
    use shoal_sim::Random;

    use super::super::points::{DiskKind, world};
    use super::super::vlog::InDrive;
    use super::*;

    fn small() -> World {
        World { live: 1000, buffer: 100, ..world(DiskKind::St19101, 50, 6 << 20, 1000) }
    }

    fn buffered(policy: Policy) -> (World, Buffered) {
        let world = small();
        let device = Box::new(InDrive::new(&world).unwrap());
        (world.clone(), Buffered::new(world, device, policy).unwrap())
    }

    /// A device that forgets an occasional write.
    struct Forgetful(InDrive, u64);

    impl EagerDevice for Forgetful {
        fn write(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
            self.1 += 1;
            if self.1 == 1500 { Ok(()) } else { self.0.write(block, bytes) }
        }

        fn flush(&mut self) -> Result<()> {
            self.0.flush()
        }

        fn read(&mut self, block: u64, out: &mut [u8]) -> Result<()> {
            self.0.read(block, out)
        }

        fn compact_step(&mut self) -> Result<bool> {
            self.0.compact_step()
        }
    }

    #[test]
    fn a_lost_update_is_noticed() {
        let run = |device: Box<dyn EagerDevice>, world: World| {
            let mut system = OnVirtualLog::new(world, device).unwrap();
            (0..1000).for_each(|block| system.update(block * 7 % 1000).unwrap());
            system.check()
        };
        let world = small();
        run(Box::new(InDrive::new(&world).unwrap()), world.clone()).unwrap();
        let world = small();
        let lost = run(Box::new(Forgetful(InDrive::new(&world).unwrap(), 0)), world.clone());
        assert!(matches!(lost, Err(ModelError::WrongBytes { block: 493, .. })), "{lost:?}");
    }

    #[test]
    fn an_update_of_a_buffered_block_reaches_no_disk() {
        let (world, mut system) = buffered(Policy::default());
        let before = world.disk.spent();
        (0..10_000).for_each(|n| system.update(n % 100).unwrap());
        assert_eq!(world.disk.spent(), before);
        system.update(500).unwrap();
        assert!(world.disk.spent().requests > before.requests, "the buffer was full");
        system.check().unwrap();
    }

    #[test]
    fn a_gap_empties_the_buffer_and_is_not_run_over() {
        let (world, mut system) = buffered(Policy::default());
        let mut random = Random::new(1);
        for round in 0..200 {
            (0..60).for_each(|_| system.update(random.below(1000)).unwrap());
            let until_ns = world.now_ns() + random.below(60_000_000);
            system.idle(until_ns).unwrap();
            assert!(world.now_ns() <= until_ns, "round {round}");
        }
        let until_ns = world.now_ns() + 1_000_000_000;
        system.idle(until_ns).unwrap();
        assert!(system.buffer.is_empty() && world.now_ns() < until_ns);
        system.check().unwrap();
    }

    #[test]
    fn a_block_does_not_wait_longer_than_the_flush_age() {
        let (world, mut system) = buffered(Policy { age_ns: 1_000_000_000, ..Policy::default() });
        system.update(7).unwrap();
        world.clock.advance(900_000_000);
        system.update(8).unwrap();
        assert!(system.buffer.holds(7));
        world.clock.advance(200_000_000);
        system.update(9).unwrap();
        assert!(!system.buffer.holds(7), "and there was no gap");
        system.check().unwrap();
    }
}
