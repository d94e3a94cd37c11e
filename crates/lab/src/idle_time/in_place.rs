//! Update in place, as in the Unix file system: a block never moves.
//!
//! Owns: [`InPlace`], which is synchronous and accepts an update when it is on the disk, and
//! [`Delayed`], which accepts it when it is in memory. The file is contiguous from the disk's first
//! block on. Memory is volatile, so a power loss may lose updates that `Delayed` has accepted; its
//! figures are shown but not compared with anything.

use shoal_media::block;

use super::system::{BLOCK_BYTES, Buffer, Result, System, World};

pub struct InPlace {
    world: World,
}

impl InPlace {
    pub fn new(world: World) -> InPlace {
        InPlace { world }
    }
}

impl System for InPlace {
    fn update(&mut self, block: u64) -> Result<()> {
        self.world.accept();
        Ok(block::write(&self.world.disk, block * BLOCK_BYTES, &[1; BLOCK_BYTES as usize])?)
    }

    fn idle(&mut self, _until_ns: u64) -> Result<()> {
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Writes back in order of place, with neighbours in one request: everything when memory is full,
/// as much as fits in a gap.
pub struct Delayed {
    world: World,
    buffer: Buffer,
    /// Longest time of a write of one run so far (ns).
    longest_ns: u64,
}

impl Delayed {
    pub fn new(world: World) -> Delayed {
        Delayed { buffer: Buffer::new(&world), world, longest_ns: 0 }
    }

    /// Writes all blocks, or as many runs of neighbours as fit before `until_ns`.
    fn write_back(&mut self, until_ns: Option<u64>) -> Result<()> {
        let mut blocks = self.buffer.take(self.buffer.len());
        blocks.sort_unstable();
        let mut rest = &blocks[..];
        while !rest.is_empty() {
            if until_ns.is_some_and(|until_ns| self.world.room_ns(until_ns) < self.longest_ns.max(1)) {
                break;
            }
            let run = (1..rest.len()).take_while(|&at| rest[at] == rest[0] + at as u64).count() + 1;
            let bytes = vec![1; run * BLOCK_BYTES as usize];
            let (first, world) = (rest[0], &self.world);
            let (_, took_ns) = world.timed(|| Ok(block::write(&world.disk, first * BLOCK_BYTES, &bytes)?))?;
            self.longest_ns = self.longest_ns.max(took_ns);
            rest = &rest[run..];
        }
        rest.iter().for_each(|block| assert!(self.buffer.put(*block)));
        Ok(())
    }
}

impl System for Delayed {
    fn update(&mut self, block: u64) -> Result<()> {
        self.world.accept();
        if self.buffer.is_full() && !self.buffer.holds(block) {
            self.write_back(None)?;
        }
        self.buffer.put(block);
        Ok(())
    }

    fn idle(&mut self, until_ns: u64) -> Result<()> {
        self.write_back(Some(until_ns))
    }

    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}
