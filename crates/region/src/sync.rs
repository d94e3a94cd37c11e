//! Group commit: one flush of the log makes everything appended before it durable, for all who wait.
//!
//! Whoever finds no flush running becomes the leader and flushes; the others either block until a flush covers them or
//! leave a callback that the leader runs. A failed flush poisons the region and fails all who wait.

use std::sync::atomic::Ordering;

use crate::{Error, Lsn, Region, Result};

/// Called with the outcome once the log is durable up to the position asked for.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Default)]
pub(crate) struct SyncState {
    flushing: bool,
    waiting: Vec<(Lsn, Done)>,
}

impl Region {
    /// Blocks until everything before `lsn` is durable.
    pub fn sync_to(&self, lsn: Lsn) -> Result<()> {
        loop {
            let mut state = self.sync.lock();
            if self.durable_lsn() >= lsn {
                return Ok(());
            }
            if self.is_poisoned() {
                return Err(Error::Poisoned);
            }
            if state.flushing {
                self.synced.wait(&mut state);
                continue;
            }
            state.flushing = true;
            drop(state);
            self.lead()?;
        }
    }

    /// Calls `done` once everything before `lsn` is durable: at once, from this thread after a flush, or from the
    /// thread that is flushing now.
    pub fn sync_with(&self, lsn: Lsn, done: Done) {
        let mut state = self.sync.lock();
        if self.durable_lsn() >= lsn {
            drop(state);
            return done(Ok(()));
        }
        if self.is_poisoned() {
            drop(state);
            return done(Err(Error::Poisoned));
        }
        state.waiting.push((lsn, done));
        if state.flushing {
            return;
        }
        state.flushing = true;
        drop(state);
        // The outcome reaches every waiter, this one included, through its callback.
        let _ = self.lead();
    }

    /// Makes everything committed before the call durable.
    pub fn sync(&self) -> Result<()> {
        self.sync_to(self.last_lsn())
    }

    /// Flushes until no callback is left. The caller has set `flushing`.
    fn lead(&self) -> Result<()> {
        loop {
            let target = self.last_lsn();
            let outcome = self.log.sync().map_err(Error::from);
            if outcome.is_err() {
                self.poison();
            } else {
                self.durable.fetch_max(target, Ordering::AcqRel);
            }
            let durable = self.durable_lsn();
            let mut state = self.sync.lock();
            let all = std::mem::take(&mut state.waiting);
            let (ready, rest): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|(lsn, _)| *lsn <= durable || outcome.is_err());
            state.waiting = rest;
            let finished = state.waiting.is_empty();
            if finished {
                state.flushing = false;
            }
            drop(state);
            self.synced.notify_all();
            for (_, done) in ready {
                done(outcome.clone());
            }
            if finished {
                return outcome;
            }
        }
    }
}
