//! Memory of a whole server: the limit on the buffers of all connections together.
//!
//! A connection takes from the pool what it takes from its own budget, and waits while the pool is
//! empty. A client that neither reads its replies nor finishes its request could keep the others
//! waiting forever. So a request that has waited for [`PATIENCE`] ends one of the connections whose
//! client makes no progress: the one that holds most. Buffers kept for later requests count
//! separately; when there are too many, no more are kept.

use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::outbox::Outbox;

/// How long a request waits for memory before it ends a stalled client.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two checks for stalled clients.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) struct Pool {
    limit: usize,
    used: AtomicUsize,
    spare: AtomicUsize,
    /// Number of threads waiting for `freed`.
    waiting: Mutex<usize>,
    freed: Condvar,
    members: Mutex<Vec<Weak<Outbox>>>,
}

impl Pool {
    pub(crate) fn new(limit: usize) -> Pool {
        Pool {
            limit,
            used: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            waiting: Mutex::default(),
            freed: Condvar::new(),
            members: Mutex::default(),
        }
    }

    /// Adds a connection that may be ended for the sake of the others.
    pub(crate) fn join(&self, outbox: Weak<Outbox>) {
        let mut members = self.members.lock();
        members.retain(|member| member.strong_count() > 0);
        members.push(outbox);
    }

    /// Takes `bytes` if they are free. An unused pool gives any number.
    pub(crate) fn try_take(&self, bytes: usize) -> bool {
        let fits = |used: usize| (used == 0 || used + bytes <= self.limit).then_some(used + bytes);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    pub(crate) fn give(&self, bytes: usize) {
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        // A waiting thread found the pool full, or checks again soon.
        if before >= self.limit / 2 && *self.waiting.lock() > 0 {
            self.freed.notify_all();
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Waits briefly for bytes to be given back. `begun` is when the caller began to wait.
    pub(crate) fn wait(&self, begun: Instant) {
        if begun.elapsed() >= PATIENCE {
            self.end_stalled();
        }
        let mut waiting = self.waiting.lock();
        *waiting += 1;
        self.freed.wait_for(&mut waiting, LOOK);
        *waiting -= 1;
    }

    fn end_stalled(&self) {
        let members: Vec<_> = self.members.lock().iter().filter_map(Weak::upgrade).collect();
        let held = members.iter().filter(|member| member.is_stalled()).map(|member| (member.used(), member));
        if let Some((_, worst)) = held.filter(|(used, _)| *used > 0).max_by_key(|(used, _)| *used) {
            worst.end_stalled();
        }
    }

    /// Returns whether a buffer of `bytes` may be kept for later, and counts it if so.
    pub(crate) fn keep(&self, bytes: usize) -> bool {
        let fits = |spare: usize| (spare + bytes <= self.limit / 4).then_some(spare + bytes);
        self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    pub(crate) fn unkeep(&self, bytes: usize) {
        self.spare.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_gives_what_it_has_and_one_request_of_any_size() {
        let pool = Pool::new(100);
        assert!(pool.try_take(150), "no other connection has any");
        assert!(!pool.try_take(1));
        pool.give(150);
        assert!(pool.try_take(60) && !pool.try_take(41) && pool.try_take(40));
        assert!(pool.keep(25) && !pool.keep(1));
        pool.unkeep(25);
        assert!(pool.keep(10));
    }
}
