//! Many runs on several processors.
//!
//! Rules: results are in the order of the points, whichever thread made them. A run that panics
//! ends all. Left out: the number of threads, which the user may choose.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Measures each point, using `threads` threads.
pub fn map<P: Sync, R: Send>(points: &[P], threads: usize, measure: impl Fn(&P) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let index = next.fetch_add(1, Ordering::Relaxed);
        points.get(index).map(|point| (index, measure(point)))
    };
    let work = || std::iter::from_fn(take).collect::<Vec<_>>();
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads.clamp(1, points.len().max(1))).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    results.sort_unstable_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_whatever_the_threads() {
        let points: Vec<u64> = (0..1000).collect();
        for threads in [0, 1, 2, 7, 2000] {
            assert_eq!(map(&points, threads, |n| n * n), points.iter().map(|n| n * n).collect::<Vec<_>>());
        }
        assert_eq!(map(&[] as &[u64], 2, |n| *n), [] as [u64; 0]);
    }
}
