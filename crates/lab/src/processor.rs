//! Processor time of the calling thread.
//!
//! Owns: [`ProcessorTime`]. Studies of speed use it instead of wall-clock time, so that the work of other programs does
//! not count; shared caches still do.

use rustix::time::{ClockId, clock_gettime};

#[derive(Clone, Copy, Debug)]
pub struct ProcessorTime(f64);

impl ProcessorTime {
    pub fn now() -> ProcessorTime {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        ProcessorTime(now.tv_sec as f64 + now.tv_nsec as f64 / 1e9)
    }

    /// Returns the seconds since then, more than 0.
    pub fn elapsed_s(self) -> f64 {
        (ProcessorTime::now().0 - self.0).max(1e-9)
    }
}
