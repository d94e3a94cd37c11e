//! A failed flush, until a later one has succeeded.
//!
//! Owns: [`Unflushed`]. A disk that drops what it could not write must refuse everything after a
//! failed flush, because a later flush would succeed without it. Here nothing is dropped: what is
//! not safe stays in memory, and a flush waits for all of it. So a later flush that succeeds covers
//! what the failed one had to cover. Rules: only requested flushes count. The first failure is
//! reported until a flush with a target as high has succeeded. Left out: trying again (`reflush`).

use crate::api::DiskError;
use crate::planted::{Bug, is_planted};

/// Time between two attempts (ns).
const AGAIN_NS: u64 = 1_000_000_000;

/// The first failed flush that has not been made good since.
#[derive(Clone, Debug)]
struct Failed {
    since_ns: u64,
    why: DiskError,
    /// Everything below this sequence had to be safe.
    target: u64,
    again_ns: u64,
}

#[derive(Default)]
pub(crate) struct Unflushed(Option<Failed>);

impl Unflushed {
    /// Records that a requested flush failed.
    pub fn failed(&mut self, target: u64, why: &DiskError, now_ns: u64) {
        let first = || Failed { since_ns: now_ns, why: why.clone(), target, again_ns: 0 };
        let failed = self.0.get_or_insert_with(first);
        failed.target = failed.target.max(target);
        failed.again_ns = now_ns + AGAIN_NS;
    }

    /// Records a successful flush: everything below this sequence is safe.
    pub fn flushed(&mut self, target: u64) {
        self.0.take_if(|failed| failed.target <= target);
    }

    /// Returns whether a failed flush had to cover as much.
    pub fn covers(&self, target: u64) -> bool {
        self.0.as_ref().is_some_and(|failed| target <= failed.target)
    }

    /// Ends an attempt, whatever its outcome.
    pub fn tried(&mut self, now_ns: u64) {
        self.0.take_if(|_| is_planted(Bug::TriedTold));
        self.0.iter_mut().for_each(|failed| failed.again_ns = now_ns + AGAIN_NS);
    }

    pub fn is_due(&self, now_ns: u64) -> bool {
        self.0.as_ref().is_some_and(|failed| now_ns >= failed.again_ns)
    }

    /// Since when a flush has failed (ns), and why.
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
