//! The compared file systems, reduced to their use of the disk for block updates and in idle time.
//!
//! Owns: [`System`], the world in which it runs ([`World`]), and the write buffer that several
//! systems have ([`Buffer`]). Rules: all time is from the simulated clock, and passes only in the
//! disk's requests and in [`World::accept`]. A system works in a gap as long as the next step fits,
//! or, without foresight, until the next burst comes; if it overruns, that burst waits for it. Left out: reads by programs, metadata, and
//! everything else that a burst of updates of one file does not need.

use std::collections::VecDeque;
use std::sync::Arc;

use shoal_media::{BlockDevice, Clock, MediaError};
use shoal_sim::{MechanicalDisk, SimClock};

/// The unit of updates and of all file systems here (bytes).
pub const BLOCK_BYTES: u64 = 4096;

/// The reason why a run has no figure.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The disk is too full for this system: a result, not a fault.
    #[error("no room: {0}")]
    NoRoom(String),
    #[error("{0}")]
    Media(#[from] MediaError),
    /// The run lost or mixed up a block.
    #[error("block {block} holds {found} instead of {expected}")]
    WrongBytes { block: u64, expected: String, found: String },
    #[error("{0}")]
    Broken(String),
}

/// Longer than any step (ns): a day.
const FOREVER_NS: u64 = 86_400_000_000_000;

pub type Result<T> = std::result::Result<T, ModelError>;

/// A file system under a stream of updates of 4 KiB blocks.
pub trait System {
    /// Updates a block of the file. Returns when the update is accepted.
    fn update(&mut self, block: u64) -> Result<()>;

    /// Uses a gap that lasts until `until_ns` of the clock: works in the background, or returns
    /// early.
    fn idle(&mut self, until_ns: u64) -> Result<()>;

    /// Compares the system's blocks with the ones written.
    fn check(&mut self) -> Result<()>;
}

/// A disk, its clock, and other properties that all systems share.
#[derive(Clone)]
pub struct World {
    pub clock: Arc<SimClock>,
    pub disk: MechanicalDisk,
    /// Blocks of the file, all of them live.
    pub live: u64,
    /// Capacity of a write buffer (blocks).
    pub buffer: usize,
    /// Host time for each update: system call and copy (ns).
    pub accept_ns: u64,
    /// Whether systems know when a gap ends.
    pub foresees: bool,
}

impl World {
    pub fn now_ns(&self) -> u64 {
        self.clock.monotonic_ns()
    }

    /// Lets the time pass in which the host accepts an update.
    pub fn accept(&self) {
        self.clock.advance(self.accept_ns);
    }

    /// Returns the number of blocks of the disk.
    pub fn capacity(&self) -> u64 {
        self.disk.geometry().bytes / BLOCK_BYTES
    }

    /// Returns the time from now to `until_ns`, or 0 if that has passed (ns).
    pub fn left_ns(&self, until_ns: u64) -> u64 {
        until_ns.saturating_sub(self.now_ns())
    }

    /// Returns the time that a step in a gap may take (ns). Without foresight a step takes as long as
    /// it takes, and the next burst waits for it.
    pub fn room_ns(&self, until_ns: u64) -> u64 {
        match self.left_ns(until_ns) {
            0 => 0,
            left_ns => {
                if self.foresees {
                    left_ns
                } else {
                    FOREVER_NS
                }
            }
        }
    }

    /// Runs `what` and also returns its time (ns).
    pub fn timed<T>(&self, what: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
        let began_ns = self.now_ns();
        let value = what()?;
        Ok((value, self.now_ns() - began_ns))
    }
}

/// Accepted blocks that are not yet on the disk, in the order in which they first became dirty.
pub struct Buffer {
    capacity: usize,
    order: VecDeque<u64>,
    is_held: Vec<bool>,
}

impl Buffer {
    pub fn new(world: &World) -> Buffer {
        Buffer { capacity: world.buffer, order: VecDeque::new(), is_held: vec![false; world.live as usize] }
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.order.len() >= self.capacity
    }

    pub fn holds(&self, block: u64) -> bool {
        self.is_held[block as usize]
    }

    /// Adds a block. Returns false if it replaces older contents of the same block.
    pub fn put(&mut self, block: u64) -> bool {
        if self.holds(block) {
            return false;
        }
        assert!(!self.is_full(), "a full buffer is emptied first");
        self.is_held[block as usize] = true;
        self.order.push_back(block);
        true
    }

    /// Removes and returns up to `count` blocks, the oldest first.
    pub fn take(&mut self, count: usize) -> Vec<u64> {
        let taken: Vec<u64> = self.order.drain(..count.min(self.order.len())).collect();
        taken.iter().for_each(|block| self.is_held[*block as usize] = false);
        taken
    }

    /// Removes and returns up to `count` blocks in file order from `from` on, wrapping around at
    /// the end of the file.
    pub fn take_in_order(&mut self, from: u64, count: usize) -> Vec<u64> {
        let places = self.is_held.len() as u64;
        let order = (0..places).map(|step| (from + step) % places);
        let taken: Vec<u64> = order.filter(|block| self.holds(*block)).take(count).collect();
        taken.iter().for_each(|block| self.is_held[*block as usize] = false);
        self.order.retain(|block| self.is_held[*block as usize]);
        taken
    }

    /// Returns the block that became dirty first.
    pub fn oldest(&self) -> Option<u64> {
        self.order.front().copied()
    }
}
