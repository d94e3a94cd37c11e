//! Reads under way on the device: how many, and when the last one began.
//!
//! Reads are counted without the filter's lock, since most rules do not depend on them. Left out:
//! held blocks, for which a read takes the lock (`filter`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) struct Readers {
    waiting: AtomicU64,
    /// When the last read began (ns).
    last_ns: AtomicU64,
    /// A read has begun since this was last taken.
    woke: AtomicBool,
    /// The rule may want another look at the held blocks when a read begins or ends.
    minded: AtomicBool,
}

impl Readers {
    pub fn new() -> Readers {
        Readers {
            waiting: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
            woke: AtomicBool::new(false),
            minded: AtomicBool::new(false),
        }
    }

    /// Records that a read goes to the device.
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
