//! What long work tells while it goes on.
//!
//! Rules: work calls from its own thread, and an observer returns at once. `()` is an observer that looks away.

/// Who watches long work.
pub trait Progress {
    /// A step begins; `total`: its units of work, 0 where they are not known.
    fn begin(&self, _step: &str, _total: u64) {}

    /// So many units of the step are done.
    fn at(&self, _done: u64) {}

    /// No step is under way any more.
    fn end(&self) {}
}

impl Progress for () {}
