//! Progress reports of long work.
//!
//! Rules: calls come from the working thread, and an observer returns at once. `()` ignores all
//! calls.

/// An observer of long work.
pub trait Progress {
    /// A step begins. `total` is its number of units of work, or 0 if unknown.
    fn begin(&self, _step: &str, _total: u64) {}

    /// Reports the number of units of the step that are done.
    fn at(&self, _done: u64) {}

    /// The last step has ended.
    fn end(&self) {}
}

impl Progress for () {}
