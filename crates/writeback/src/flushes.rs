//! Flushes of the device below that overlap.
//!
//! When several flushes are in flight, a failing device may report the failure to only one of them.
//! The writes that it lost may be covered by another flush, which then seems to succeed.
//! Owns: when a flush is answered. It succeeds only if every flush that was in flight beside it has
//! succeeded, too. Left out: which writes a flush covers (`state`).

use shoal_media::{Completion, MediaError, Result};

/// Flushes in flight, and flushes that wait for them.
#[derive(Default)]
pub(crate) struct Flushes {
    in_flight: usize,
    /// Flushes that have ended while others are still in flight.
    ended: Vec<Completion>,
    /// The highest number of changes that a flush in `ended` covers.
    covered: u64,
    /// Flushes requested while `ended` is not empty. A single later flush serves them all.
    queued: Vec<Completion>,
    /// The first failure of a flush. Every later flush is refused with it.
    failure: Option<MediaError>,
}

/// What to do about a flush.
pub(crate) enum Flush {
    Submit(Completion),
    Refuse(Completion, MediaError),
    Wait,
}

/// Flushes that ended together.
pub(crate) struct Ended {
    pub done: Vec<Completion>,
    /// The number of changes that are durable now.
    pub covered: Result<u64>,
    pub queued: Vec<Completion>,
}

impl Flushes {
    pub fn begin(&mut self, done: Completion) -> Flush {
        if let Some(failure) = &self.failure {
            return Flush::Refuse(done, failure.clone());
        }
        if !self.ended.is_empty() {
            self.queued.push(done);
            return Flush::Wait;
        }
        self.in_flight += 1;
        Flush::Submit(done)
    }

    /// Ends a flush that covers `covered` changes. Returns those that end with it: none while others
    /// are in flight.
    pub fn end(&mut self, covered: u64, result: Result<()>, done: Completion) -> Option<Ended> {
        self.in_flight -= 1;
        self.covered = self.covered.max(covered);
        self.ended.push(done);
        if let Err(error) = result {
            self.failure.get_or_insert(error);
        }
        if self.in_flight > 0 {
            return None;
        }
        let covered = self.failure.clone().map_or(Ok(self.covered), Err);
        Some(Ended { done: std::mem::take(&mut self.ended), covered, queued: std::mem::take(&mut self.queued) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn counted(count: &Arc<AtomicU64>, result: &Result<Vec<u8>>) {
        count.fetch_add(if result.is_ok() { 1 } else { 100 }, Ordering::Relaxed);
    }

    fn begin(flushes: &mut Flushes, count: &Arc<AtomicU64>) -> Option<Completion> {
        let count = count.clone();
        match flushes.begin(Box::new(move |result| counted(&count, &result))) {
            Flush::Submit(done) => Some(done),
            Flush::Refuse(done, failure) => {
                done(Err(failure));
                None
            }
            Flush::Wait => None,
        }
    }

    fn tell(ended: Option<Ended>) -> Option<(Option<u64>, usize)> {
        let Ended { done, covered, queued } = ended?;
        done.into_iter().for_each(|done| done(covered.clone().map(|_| Vec::new())));
        Some((covered.ok(), queued.len()))
    }

    #[test]
    fn a_flush_succeeds_only_if_all_beside_it_do() {
        for fails in [false, true] {
            let (mut flushes, count) = (Flushes::default(), Arc::default());
            let first = begin(&mut flushes, &count).expect("it is submitted");
            let second = begin(&mut flushes, &count).expect("it is submitted beside the first");
            assert_eq!(tell(flushes.end(3, Ok(()), first)), None);
            assert!(begin(&mut flushes, &count).is_none(), "it waits for those that ended");
            assert_eq!(count.load(Ordering::Relaxed), 0, "nothing is told yet");
            let result = if fails { Err(MediaError::io("disk", std::io::Error::from_raw_os_error(5))) } else { Ok(()) };
            assert_eq!(tell(flushes.end(4, result, second)), Some(((!fails).then_some(4), 1)));
            assert_eq!(count.load(Ordering::Relaxed), if fails { 200 } else { 2 });
            assert_eq!(begin(&mut flushes, &count).is_some(), !fails, "no later flush is believed");
        }
    }
}
