//! Room and data that an operation lacks, and the one place that provides them.
//!
//! An operation takes what it needs as it goes. If something is missing, it fails with the need as
//! its error, and has changed nothing: [`Error::NoSpace`] says how much room it lacked, and
//! [`Error::Spilled`] names the object that must be back in the region. [`Fs::with_room`] then
//! provides that without any lock held, and runs the operation again. [`Error::WouldFlush`] goes to
//! the caller, who has the threads that may wait.
//!
//! Room is looked for where it costs least: in files whose removal is not finished, in sparse
//! segments (`compact`), in plain files that can be packed, in packed ones that can be spilled. The
//! store is full only if none of these gains anything.
//!
//! Reserving all room before an operation begins would need no second run. But every operation
//! would pay for it, and only one on a nearly full store needs it.

use std::sync::Arc;

use parking_lot::Mutex;
use shoal_region::Lack;

use crate::compact::{Outcome, SPARE_SEGMENTS};
use crate::rooms::Compacting;
use crate::{Error, Fs, Patience, Result};

/// How often room is made for an operation.
const ROUNDS: u32 = 12;
/// Most groups that one operation brings back from bulk storage: more than a file in the region
/// has.
const RETURNS_MAX: u32 = 4096;

type Waits = dyn Fn() + Send + Sync;

/// The function that waits until the adapter has passed on the removals that it knows of.
#[derive(Default)]
pub(crate) struct Removals(Mutex<Option<Arc<Waits>>>);

/// The attempts made so far to provide what an operation lacks.
struct Tried {
    patience: Patience,
    rounds: u32,
    returns: u32,
    removals: bool,
    /// The segments that were asked for when compaction gained only slots; the operation was run
    /// again after that.
    slots_for: Option<u64>,
}

impl Fs {
    /// Sets the function that waits until removed files are freed, for an adapter that answers
    /// removals before that. An operation that finds no room calls it once and runs again.
    pub fn await_removals_by(&self, wait: impl Fn() + Send + Sync + 'static) {
        *self.removals.0.lock() = Some(Arc::new(wait));
    }

    /// Runs `operation`, provides what it needs, and runs it again. The caller holds no locks.
    #[inline]
    pub(crate) fn with_room<T>(&self, operation: impl FnMut() -> Result<T>) -> Result<T> {
        self.with_room_by(Patience::Waits, operation)
    }

    /// Does the same for an operation that may not be able to wait while files are spilled.
    #[inline]
    pub(crate) fn with_room_by<T>(&self, patience: Patience, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
        match operation() {
            Err(need @ (Error::NoSpace(_) | Error::Spilled { .. })) => {
                self.compacting().provide(patience, need, &mut operation)
            }
            outcome => outcome,
        }
    }
}

impl<'a> Compacting<'a> {
    #[cold]
    fn provide<T>(self, patience: Patience, first: Error, operation: &mut dyn FnMut() -> Result<T>) -> Result<T> {
        let mut tried = Tried { patience, rounds: 0, returns: 0, removals: false, slots_for: None };
        let mut need = first;
        loop {
            match need {
                Error::NoSpace(lack) => {
                    self.find_room(&mut tried, lack)?;
                    tried.returns = 0;
                }
                Error::Spilled { ino, group } if tried.returns < RETURNS_MAX => {
                    self.fs.spilling().bring_back(ino, group)?;
                    tried.returns += 1;
                }
                Error::Spilled { .. } => return Err(Error::NO_SPACE),
                error => return Err(error),
            }
            match operation() {
                Err(error) => need = error,
                done => return done,
            }
        }
    }

    /// Makes room, as far as it was not tried before. Fails if there is none to be made.
    fn find_room(self, tried: &mut Tried, Lack { segments }: Lack) -> Result<()> {
        if !std::mem::replace(&mut tried.removals, true) {
            let wait = self.fs.removals.0.lock().clone();
            if let Some(wait) = wait {
                wait();
                return Ok(());
            }
        }
        let may_retry = |gained: bool| if gained { Ok(()) } else { Err(Error::NO_SPACE) };
        if let Some(segments) = tried.slots_for.take() {
            return may_retry(self.move_for_room(segments, tried.patience)?);
        }
        let round = tried.rounds;
        tried.rounds += 1;
        if round == ROUNDS {
            return Err(Error::NO_SPACE);
        }
        if segments == Lack::OTHER.segments {
            return may_retry(round == 0 && self.fs.spilling().release_spilled()?);
        }
        // An operation that is refused again needs several segments at once: it gave back those it
        // got before.
        let spare = u64::from(round).min(SPARE_SEGMENTS);
        match self.compact_for(segments, spare)? {
            Outcome::Room if self.fs.region.free_segments() >= segments + spare => {}
            Outcome::Room => {
                self.move_for_room(segments, tried.patience)?;
            }
            Outcome::Slots => tried.slots_for = Some(segments),
            Outcome::Nothing => return may_retry(self.move_for_room(segments, tried.patience)?),
        }
        Ok(())
    }

    /// Packs plain files, or else spills packed ones; returns true if that gained room.
    fn move_for_room(self, segments: u64, patience: Patience) -> Result<bool> {
        Ok(self.fs.cooling().pack_for_room(segments)? || self.fs.spilling().spill_for_room(segments, patience)?)
    }
}
