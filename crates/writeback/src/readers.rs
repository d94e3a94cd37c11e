//! What a read needs to know of the filter, without its lock.
//!
//! The kernel may take the processor away from a thread that holds the lock, for some milliseconds, and everybody who needs the lock
//! waits as long. A read of blocks that are not held needs nothing but to know that; so it is told here. Rules:
//! - A line is counted before the write that it holds is answered, and until the device has it. A read that does not find it counted may
//!   read the device.
//! - Lines share counters, so a line may look held that is not: then the lock tells.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::planted::{Bug, is_planted};
use crate::state::LINE_BLOCKS;

/// As many as the lines of a full cache of 4 GiB, so that few of those that lie together share one.
const COUNTERS: u64 = 1 << 16;

pub(crate) struct Readers {
    /// Held lines, by their number.
    lines: Box<[AtomicU32]>,
    waiting: AtomicU64,
    /// When the device last had a read.
    last_ns: AtomicU64,
    /// The device had a read since this was last taken.
    woke: AtomicBool,
    /// The rule may ask for another look when a read begins or ends.
    minded: AtomicBool,
}

impl Readers {
    pub fn new() -> Readers {
        Readers {
            lines: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
            waiting: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            woke: AtomicBool::new(false),
            minded: AtomicBool::new(false),
        }
    }

    /// A line holds something from now on.
    pub fn held(&self, line: u64) {
        if !is_planted(Bug::LineUncounted) {
            self.lines[(line % COUNTERS) as usize].fetch_add(1, Ordering::Release);
        }
    }

    /// A line that was held holds nothing more.
    pub fn gone(&self, line: u64) {
        if !is_planted(Bug::LineUncounted) {
            self.lines[(line % COUNTERS) as usize].fetch_sub(1, Ordering::Release);
        }
    }

    /// May a block of the range be held at this moment? If not, the device has all of them.
    pub fn may_be_held(&self, blocks: &Range<u64>) -> bool {
        let mut lines = blocks.start / LINE_BLOCKS..blocks.end.div_ceil(LINE_BLOCKS);
        lines.any(|line| self.lines[(line % COUNTERS) as usize].load(Ordering::Acquire) > 0)
    }

    /// A read goes to the device.
    pub fn begin(&self, now_ns: u64) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.last_ns.store(now_ns, Ordering::Relaxed);
        self.woke.store(true, Ordering::Relaxed);
    }

    pub fn end(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub fn last_ns(&self) -> u64 {
        self.last_ns.load(Ordering::Relaxed)
    }

    pub fn take_woke(&self) -> bool {
        self.woke.swap(false, Ordering::Relaxed)
    }

    pub fn set_minded(&self, minded: bool) {
        self.minded.store(minded, Ordering::Relaxed);
    }

    pub fn are_minded(&self) -> bool {
        self.minded.load(Ordering::Relaxed)
    }
}
