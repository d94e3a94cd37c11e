//! Processor time of the thread that asks.
//!
//! Owns: [`ProcessorTime`]. Studies of speed take it instead of the clock on the wall, so that what other programs do in
//! the meantime does not count; that they share caches remains.

use rustix::time::{ClockId, clock_gettime};

#[derive(Clone, Copy, Debug)]
pub struct ProcessorTime(f64);

impl ProcessorTime {
    pub fn now() -> ProcessorTime {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        ProcessorTime(now.tv_sec as f64 + now.tv_nsec as f64 / 1e9)
    }

    /// Seconds since then, more than 0.
    pub fn elapsed_s(self) -> f64 {
        (ProcessorTime::now().0 - self.0).max(1e-9)
    }
}
