//! A flush that failed, until one that came later has ended.
//!
//! Owns: [`Unflushed`]. A disk that drops what it could not write must refuse everything after a failed flush: a later
//! one would end well without it. Here nothing is dropped: what is not safe stays in memory, and a flush waits for all
//! of it, so one that ends later covers what the failed one was to cover. Rules: only a flush that somebody asked for
//! counts; the first failure is told until a flush with a target as high has ended. Left out: trying again (`reflush`).

use crate::api::DiskError;
use crate::planted::{Bug, is_planted};

/// Between two tries (ns).
const AGAIN_NS: u64 = 1_000_000_000;

/// The first of the flushes that failed and were not made good since.
#[derive(Clone, Debug)]
struct Failed {
    since_ns: u64,
    why: DiskError,
    /// Below this sequence everything was to be safe.
    target: u64,
    again_ns: u64,
}

#[derive(Default)]
pub(crate) struct Unflushed(Option<Failed>);

impl Unflushed {
    /// A flush that somebody asked for has failed.
    pub fn failed(&mut self, target: u64, why: &DiskError, now_ns: u64) {
        let first = || Failed { since_ns: now_ns, why: why.clone(), target, again_ns: 0 };
        let failed = self.0.get_or_insert_with(first);
        failed.target = failed.target.max(target);
        failed.again_ns = now_ns + AGAIN_NS;
    }

    /// A flush has ended: everything below this sequence is safe.
    pub fn flushed(&mut self, target: u64) {
        self.0.take_if(|failed| failed.target <= target);
    }

    /// Was a failed flush to cover as much?
    pub fn covers(&self, target: u64) -> bool {
        self.0.as_ref().is_some_and(|failed| target <= failed.target)
    }

    /// A try has ended, however.
    pub fn tried(&mut self, now_ns: u64) {
        self.0.take_if(|_| is_planted(Bug::TriedTold));
        self.0.iter_mut().for_each(|failed| failed.again_ns = now_ns + AGAIN_NS);
    }

    pub fn is_due(&self, now_ns: u64) -> bool {
        self.0.as_ref().is_some_and(|failed| now_ns >= failed.again_ns)
    }

    /// Since when, and why.
    pub fn first(&self) -> Option<(u64, &DiskError)> {
        self.0.as_ref().map(|failed| (failed.since_ns, &failed.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_flush_is_told_until_one_has_ended_that_covers_as_much() {
        let mut unflushed = Unflushed::default();
        unflushed.failed(10, &DiskError::NoSpace, 5);
        unflushed.failed(20, &DiskError::NotOpen, 7);
        unflushed.flushed(19);
        assert_eq!(unflushed.first(), Some((5, &DiskError::NoSpace)));
        assert!(!unflushed.is_due(7) && unflushed.is_due(7 + AGAIN_NS));
        unflushed.flushed(20);
        assert_eq!(unflushed.first(), None);
    }
}
