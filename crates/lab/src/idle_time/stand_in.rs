//! A virtual log reduced to where it writes, for tests of the models over it.
//!
//! Owns: a map, blocks on the nearest free place, one record for each flush. Left out: everything else, above all recovery
//! and the compactor; `shoal_vlog` is what the experiment is about.

use std::collections::VecDeque;

use shoal_media::{Head, block};
use shoal_sim::MechanicalDisk;

use super::eager::EagerDevice;
use super::system::{BLOCK_BYTES, ModelError, Result, World};

/// Records that count, at any time.
const RECORDS: usize = 64;

pub(super) struct StandIn {
    disk: MechanicalDisk,
    map: Vec<Option<u64>>,
    is_used: Vec<bool>,
    waiting: Vec<(u64, Vec<u8>)>,
    records: VecDeque<u64>,
}

impl StandIn {
    pub fn new(world: &World) -> StandIn {
        StandIn {
            disk: world.disk.internal(),
            map: vec![None; world.live as usize],
            is_used: vec![false; world.capacity() as usize],
            waiting: vec![],
            records: VecDeque::new(),
        }
    }

    fn place(&mut self, bytes: &[u8]) -> Result<u64> {
        let is_used = &self.is_used;
        let full = || ModelError::NoRoom("no block is free".into());
        let at = self.disk.nearest(&|block| !is_used[block as usize]).ok_or_else(full)?;
        self.is_used[at as usize] = true;
        block::write(&self.disk, at * BLOCK_BYTES, bytes)?;
        Ok(at)
    }
}

impl EagerDevice for StandIn {
    fn write(&mut self, block: u64, bytes: &[u8]) -> Result<()> {
        self.waiting.push((block, bytes.to_vec()));
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        for (block, bytes) in std::mem::take(&mut self.waiting) {
            let at = self.place(&bytes)?;
            if let Some(old) = self.map[block as usize].replace(at) {
                self.is_used[old as usize] = false;
            }
        }
        let record = self.place(&[0; BLOCK_BYTES as usize])?;
        self.records.push_back(record);
        if self.records.len() > RECORDS {
            let old = self.records.pop_front().expect("there are some");
            self.is_used[old as usize] = false;
        }
        Ok(())
    }

    fn read(&mut self, block: u64, out: &mut [u8]) -> Result<()> {
        match self.map[block as usize] {
            Some(at) => Ok(block::read(&self.disk, at * BLOCK_BYTES, out)?),
            None => {
                out.fill(0);
                Ok(())
            }
        }
    }

    fn compact_step(&mut self) -> Result<bool> {
        Ok(false)
    }
}
