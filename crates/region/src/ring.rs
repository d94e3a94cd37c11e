//! The log of regions in persistent memory: a ring inside the region.
//!
//! Position `p` lies at `ring + p % ring_bytes`; a record may wrap around the end. `append` returns with the record
//! fenced, so a commit is durable before it is applied. The region moves the head before the ring overflows.

use std::sync::Arc;

use shoal_format::superblock::Superblock;
use shoal_media::{LogDevice, PersistentMemory, Result};

pub(crate) struct RingLog {
    memory: Arc<dyn PersistentMemory>,
    start: u64,
    bytes: u64,
}

impl RingLog {
    pub fn new(memory: Arc<dyn PersistentMemory>, superblock: &Superblock) -> RingLog {
        RingLog { memory, start: superblock.ring.get(), bytes: superblock.ring_bytes }
    }

    /// Returns the offset of a position, and how many of `len` bytes fit before the ring's end. The
    /// rest goes to its start.
    fn split(&self, position: u64, len: usize) -> (u64, usize) {
        let at = position % self.bytes;
        (self.start + at, len.min((self.bytes - at) as usize))
    }
}

impl LogDevice for RingLog {
    fn append(&self, position: u64, bytes: &[u8]) -> Result<()> {
        let (at, first) = self.split(position, bytes.len());
        self.memory.write_through(at, &bytes[..first]);
        self.memory.write_through(self.start, &bytes[first..]);
        // The record must be durable before any byte it covers changes.
        self.memory.fence();
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize> {
        let len = out.len().min(self.bytes as usize);
        let (at, first) = self.split(position, len);
        self.memory.read(at, &mut out[..first]);
        self.memory.read(self.start, &mut out[first..len]);
        Ok(len)
    }

    fn release(&self, _position: u64) -> Result<()> {
        Ok(())
    }
}
