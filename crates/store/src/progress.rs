//! How long work reports its progress.
//!
//! Rules: calls come from the working thread, and an observer returns at once. `()` ignores everything.

/// An observer of long work.
pub trait Progress {
    /// A step begins; `total`: its units of work, 0 where they are not known.
    fn begin(&self, _step: &str, _total: u64) {}

    /// Number of units of the step that are done.
    fn at(&self, _done: u64) {}

    /// The last step has ended.
    fn end(&self) {}
}

impl Progress for () {}
