//! A clock that stands still until it is told to move.
//!
//! Wall time and monotonic time move together, so a test controls every age and interval. Left out:
//! time zones, leap seconds, drift.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use shoal_media::Clock;

pub struct SimClock {
    now_ns: AtomicI64,
    monotonic_ns: AtomicU64,
}

impl SimClock {
    /// Creates a clock at wall-clock time `now_ns`. The monotonic clock starts at 0.
    pub fn new(now_ns: i64) -> SimClock {
        SimClock { now_ns: AtomicI64::new(now_ns), monotonic_ns: AtomicU64::new(0) }
    }

    /// Advances both clocks.
    pub fn advance(&self, by_ns: u64) {
        self.now_ns.fetch_add(by_ns as i64, Ordering::AcqRel);
        self.monotonic_ns.fetch_add(by_ns, Ordering::AcqRel);
    }

    /// Steps the wall clock forward or back. The monotonic clock does not change.
    pub fn set_now(&self, now_ns: i64) {
        self.now_ns.store(now_ns, Ordering::Release);
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> i64 {
        self.now_ns.load(Ordering::Acquire)
    }

    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_wall_clock_leaves_the_monotonic_one_alone() {
        let clock = SimClock::new(1_000);
        clock.advance(5);
        assert_eq!((clock.now_ns(), clock.monotonic_ns()), (1_005, 5));
        clock.set_now(-7);
        clock.advance(1);
        assert_eq!((clock.now_ns(), clock.monotonic_ns()), (-6, 6));
    }
}
