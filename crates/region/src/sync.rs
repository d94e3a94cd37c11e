//! Group commit: one flush of the log makes everything appended before it durable, for all waiters.
//!
//! A caller that finds no flush running becomes the leader and flushes. The others block until a
//! flush covers them, or leave a callback that the leader runs. A failed flush poisons the region
//! and fails all waiters.
//!
//! **Promises.** Bytes in the region may be dropped in favour of an unflushed copy on another
//! device, as long as they were promised to nobody. The durable position cannot show that: a flush
//! under way will make everything before its target durable, and a whole flush may fit between
//! reading the position and a commit. So the region tracks what was promised:
//! - Before a flush begins, its target becomes promised, under the commit lock
//!   ([`Region::promise`]). Every flush goes through `lead`: for [`Region::sync_to`], for
//!   callbacks, by age, for a checkpoint, at shutdown.
//! - A caller that promises more than the log's flush, such as an fsync that also flushes a second
//!   device, calls [`Region::promise`] before it looks for data to flush.
//! - With a ring, a record is durable at its commit, so it is promised there.
//! - Everything that a mount finds counts as promised.
//!
//! [`crate::Tx::commit_unpromised`] compares under the commit lock. If it comes before a promise,
//! the promising caller finds the new state and flushes what that state needs. If it comes after
//! the promise, it is refused.

use std::sync::atomic::Ordering;

use crate::planted::{Bug, is_planted};
use crate::{Error, Lsn, Region, Result};

/// Called with the outcome once the log is durable up to the position asked for.
pub type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// How often the leader of a group commit flushes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flushes {
    /// Until no callback is left.
    WhileAwaited,
    Once,
}

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
            if let Some(failure) = self.failure() {
                return Err(Error::Poisoned(failure));
            }
            if state.flushing {
                self.synced.wait(&mut state);
                continue;
            }
            state.flushing = true;
            drop(state);
            self.lead(Flushes::WhileAwaited)?;
        }
    }

    /// Leaves `done` for the next flush of the log, or calls it at once if nothing has to be
    /// flushed. Returns true if nobody is flushing. The caller must then make sure that somebody
    /// calls [`Region::sync_waiting`].
    ///
    /// Use this in threads that must not become the leader. A leader flushes as long as callbacks
    /// come in, which may never end under load.
    pub fn sync_later(&self, lsn: Lsn, done: Done) -> bool {
        let mut state = self.sync.lock();
        if self.durable_lsn() >= lsn {
            drop(state);
            done(Ok(()));
            return false;
        }
        if let Some(failure) = self.failure() {
            drop(state);
            done(Err(Error::Poisoned(failure)));
            return false;
        }
        state.waiting.push((lsn, done));
        !state.flushing
    }

    /// Flushes for the waiting callbacks, unless somebody is flushing already.
    pub fn sync_waiting(&self) -> Result<()> {
        let mut state = self.sync.lock();
        if state.flushing || state.waiting.is_empty() {
            return Ok(());
        }
        state.flushing = true;
        drop(state);
        self.lead(Flushes::WhileAwaited).map(drop)
    }

    /// Flushes once for the waiting callbacks, unless somebody is flushing already. Returns true if
    /// more callbacks arrived meanwhile and nobody flushes for them, as in [`Region::sync_later`].
    pub fn sync_once(&self) -> bool {
        let mut state = self.sync.lock();
        if state.flushing || state.waiting.is_empty() {
            return false;
        }
        state.flushing = true;
        drop(state);
        // A failure reaches every waiter through its callback.
        self.lead(Flushes::Once).unwrap_or(false)
    }

    /// Makes everything committed before the call durable.
    pub fn sync(&self) -> Result<()> {
        self.sync_to(self.last_lsn())
    }

    /// Promises everything committed before the call: no [`crate::Tx::commit_unpromised`] may drop
    /// any of it from now on. Returns the end of the log.
    pub fn promise(&self) -> Lsn {
        let mut state = self.commit.lock();
        state.promised = state.end;
        state.end
    }

    /// Returns the position up to which everything has been promised to callers. Only a hint: the
    /// next promise may come at once.
    pub fn promised_lsn(&self) -> Lsn {
        self.commit.lock().promised
    }

    /// Flushes. Returns true if callbacks are left. The caller has set `flushing`.
    fn lead(&self, flushes: Flushes) -> Result<bool> {
        loop {
            let target = if is_planted(Bug::LatePromise) { self.last_lsn() } else { self.promise() };
            let outcome = self.log.sync();
            match &outcome {
                Ok(()) => drop(self.durable.fetch_max(target.get(), Ordering::AcqRel)),
                Err(error) => self.poison("the sync of the log", error),
            }
            let outcome = outcome.map_err(Error::from);
            if is_planted(Bug::LatePromise) {
                let mut state = self.commit.lock();
                state.promised = state.promised.max(self.durable_lsn());
            }
            let durable = self.durable_lsn();
            let mut state = self.sync.lock();
            let all = std::mem::take(&mut state.waiting);
            let (ready, rest): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|(lsn, _)| *lsn <= durable || outcome.is_err());
            state.waiting = rest;
            let finished = state.waiting.is_empty();
            if finished || flushes == Flushes::Once {
                state.flushing = false;
            }
            drop(state);
            self.synced.notify_all();
            for (_, done) in ready {
                done(outcome.clone());
            }
            if finished || flushes == Flushes::Once {
                return outcome.map(|()| !finished);
            }
        }
    }
}
