//! A block device in this process's memory, for examples and tests.
//!
//! Requests are carried out in `submit`. The memory is divided into shards with a lock each, so
//! that connections do not wait for one another. A request over several shards is not atomic, as
//! the contract allows. Nothing survives.

use parking_lot::RwLock;
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request, Result, WriteCache};

const SHARD_BYTES: usize = 1 << 20;

pub struct MemoryDevice {
    geometry: BlockGeometry,
    shards: Vec<RwLock<Vec<u8>>>,
}

impl MemoryDevice {
    /// Zeroed memory of `bytes`, in blocks of `block_bytes`.
    pub fn new(bytes: u64, block_bytes: u32) -> MemoryDevice {
        let shards = bytes.div_ceil(SHARD_BYTES as u64);
        MemoryDevice {
            geometry: BlockGeometry { bytes, block_bytes, atomic_bytes: block_bytes, survives_process: false },
            // The memory is allocated zeroed, so pages that are never touched cost nothing.
            shards: (0..shards).map(|_| RwLock::new(vec![0; SHARD_BYTES])).collect(),
        }
    }

    /// Calls `part` for the piece in each shard: shard, offset in it, range of the request.
    fn parts(at: u64, len: usize, mut part: impl FnMut(usize, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let position = at as usize + done;
            let (shard, offset) = (position / SHARD_BYTES, position % SHARD_BYTES);
            let step = (SHARD_BYTES - offset).min(len - done);
            part(shard, offset, done..done + step);
            done += step;
        }
    }

    fn carry_out(&self, request: Request) -> Result<Vec<u8>> {
        let (at, len) = request.range();
        let block = u64::from(self.geometry.block_bytes);
        let aligned = at.is_multiple_of(block) && len.is_multiple_of(block);
        if !aligned || at.checked_add(len).is_none_or(|end| end > self.geometry.bytes) {
            return Err(MediaError::OutOfRange { what: "memory device".into(), at, len });
        }
        match request {
            Request::Read { at, mut buffer } => {
                let len = buffer.len();
                Self::parts(at, len, |shard, offset, range| {
                    let out = &mut buffer[range];
                    out.copy_from_slice(&self.shards[shard].read()[offset..offset + out.len()]);
                });
                Ok(buffer)
            }
            Request::Write { at, buffer, .. } => {
                Self::parts(at, buffer.len(), |shard, offset, range| {
                    let part = &buffer[range];
                    self.shards[shard].write()[offset..offset + part.len()].copy_from_slice(part);
                });
                Ok(buffer)
            }
            Request::Trim { at, len } | Request::WriteZeroes { at, len, .. } => {
                Self::parts(at, len as usize, |shard, offset, range| {
                    self.shards[shard].write()[offset..offset + range.len()].fill(0);
                });
                Ok(vec![])
            }
            Request::Flush => Ok(vec![]),
        }
    }
}

impl BlockDevice for MemoryDevice {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.geometry
    }

    fn submit(&self, request: Request, done: Completion) {
        done(self.carry_out(request));
    }
}
