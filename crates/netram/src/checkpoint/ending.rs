//! Ending a checkpoint, and opening the units that were closed for it.
//!
//! Rules: superblocks stop naming the checkpoint first. Units stay closed until the donors know
//! that. A round that no superblock names yet ends at once. Left out: what ends a checkpoint
//! (`membership`, `window`).

use std::sync::Arc;

use crate::membership::epochs::new_epoch;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::checkpoints::{NEXT, VALID};
use crate::state::epoch::Membership;
use crate::task::Core;
use crate::views::Window;

/// Delay after a round that did not complete (ns).
const RETRY_NS: u64 = 1_000_000_000;

const RETRY_MAX_NS: u64 = 64_000_000_000;

impl State {
    /// Ends the checkpoint that counts and the one being made.
    pub fn drop_checkpoint(&mut self) {
        if !self.checkpoints.enabled {
            return;
        }
        if is_planted(Bug::CheckpointKept) {
            (self.checkpoints.valid, self.checkpoints.round) = (None, None);
            self.end_logs(&[VALID, NEXT]);
            return;
        }
        self.retry_round_later();
        if self.checkpoints.round.as_ref().is_some_and(|round| !round.named) {
            self.checkpoints.round = None;
            self.end_logs(&[NEXT]);
        }
        if std::mem::take(&mut self.checkpoints.named) != 0 {
            new_epoch(self, Membership::Same);
        }
        self.wake();
    }

    pub fn retry_round_later(&mut self) {
        let delay = (2 * self.checkpoints.retry_delay_ns).clamp(RETRY_NS, RETRY_MAX_NS);
        (self.checkpoints.retry_delay_ns, self.checkpoints.retry_at_ns) = (delay, self.now_ns + delay);
    }

    pub fn end_logs(&mut self, which: &[usize]) {
        for donor in &mut self.donors {
            which.iter().for_each(|&log| donor.units.end_log(log));
            donor.units.reopen();
        }
        self.wake();
    }
}

impl Window<'_> {
    /// Returns whether donors may still know a checkpoint that no longer counts.
    pub fn ends_checkpoint(&self) -> bool {
        let checkpoints = &self.checkpoints;
        let kept = checkpoints.valid.is_some() || checkpoints.round.as_ref().is_some_and(|round| round.named);
        kept && checkpoints.named == 0
    }
}

/// Opens units that were closed for a checkpoint once the donors know that it has ended. Runs as
/// long as the disk.
pub(crate) async fn ender(core: Arc<Core>) {
    loop {
        core.until(|state| (state.window().ends_checkpoint() && state.epoch.is_stored()).then_some(())).await;
        let state = &mut *core.lock();
        (state.checkpoints.valid, state.checkpoints.round) = (None, None);
        state.end_logs(&[VALID, NEXT]);
    }
}
