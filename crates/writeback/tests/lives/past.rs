//! Long writes on a full cache, in front of a device that carries out submitted requests when told
//! to, and direct writes at once.
//!
//! Left out: everything about the memory of the cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_media::{BlockDevice, BlockGeometry, Clock, Completion, Request, Result, WriteCache};
use shoal_sim::SimMemory;
use shoal_writeback::{Cache, Lifetime, Owner, Policy, Rule, S_NS, WriteBack};

use super::BLOCK;

const BLOCKS: u64 = 320;
const LINE: u64 = 16;

#[derive(Default)]
struct Disk {
    bytes: Mutex<Vec<u8>>,
    queue: Mutex<Vec<(Request, Completion)>>,
    /// The first blocks of direct writes.
    direct: Mutex<Vec<u64>>,
}

impl Disk {
    fn put(&self, at: u64, bytes: &[u8]) {
        self.bytes.lock()[at as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Carries out the queued requests, the last first.
    fn step(&self) {
        while let Some((request, done)) = { self.queue.lock().pop() } {
            done(Ok(match request {
                Request::Write { at, buffer, .. } => {
                    self.put(at, &buffer);
                    buffer
                }
                Request::Read { at, mut buffer } => {
                    let len = buffer.len();
                    buffer.copy_from_slice(&self.bytes.lock()[at as usize..][..len]);
                    buffer
                }
                _ => vec![],
            }));
        }
    }
}

impl BlockDevice for Disk {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry { bytes: BLOCKS * BLOCK, block_bytes: 512, atomic_bytes: 512, survives_process: true }
    }

    fn submit(&self, request: Request, done: Completion) {
        self.queue.lock().push((request, done));
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.direct.lock().push(at / BLOCK);
        self.put(at, bytes);
        Ok(())
    }
}

struct Still;

impl Clock for Still {
    fn now_ns(&self) -> i64 {
        0
    }

    fn monotonic_ns(&self) -> u64 {
        0
    }
}

/// Fills a cache, then makes long writes. A write of blocks that are not held must go past the
/// cache. A write of held blocks must reach the device after their held contents.
pub fn overwritten() -> std::result::Result<(), String> {
    let disk = Arc::new(Disk { bytes: Mutex::new(vec![0; (BLOCKS * BLOCK) as usize]), ..Disk::default() });
    let owner = Owner { store: [1; 16], boot_id: [2; 16], device_bytes: BLOCKS * BLOCK };
    let memory = SimMemory::volatile(Cache::memory_bytes(1 << 20), None);
    let cache =
        Cache::create(memory, 1 << 20, &owner, [3; 16], Lifetime::Process).map_err(|error| error.to_string())?;
    let filter = WriteBack::new(disk.clone(), Arc::new(Still), Rule::of(Policy::aipu(30 * S_NS)), cache);
    let line = |value: u8| vec![value; (LINE * BLOCK) as usize];
    for block in (0..256).step_by(LINE as usize) {
        filter.write_from(block * BLOCK, &line(1)).map_err(|error| error.to_string())?;
    }
    filter.write_from(256 * BLOCK, &line(2)).map_err(|error| error.to_string())?;
    if *disk.direct.lock() != [256] {
        return Err(format!("direct writes: {:?}", disk.direct.lock()));
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for block in [0, 240] {
                filter.write_from(block * BLOCK, &line(3)).unwrap();
            }
            filter.flush_ranges(&[(0, BLOCKS * BLOCK)]).unwrap();
            ended.store(true, Ordering::Release);
        });
        // The first of these writes finds no slot.
        std::thread::sleep(Duration::from_millis(30));
        while !ended.load(Ordering::Acquire) {
            disk.step();
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    let bytes = disk.bytes.lock();
    for (block, value) in [(0, 3), (16, 1), (240, 3), (256, 2), (272, 0)] {
        let found = &bytes[(block * BLOCK) as usize..][..(LINE * BLOCK) as usize];
        if found != line(value) {
            return Err(format!("block {block} is {} on the device instead of {value}", found[0]));
        }
    }
    Ok(())
}
