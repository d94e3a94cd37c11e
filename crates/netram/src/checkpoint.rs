//! Checkpoints of the map: what most units hold, written down so that opening need not look at each
//! of them.
//!
//! A checkpoint only makes opening faster. It counts if the superblocks of all donors name it and
//! all its pieces are there. If anything about it is in doubt, opening looks at all units, as if
//! there were no checkpoint. Rules:
//! - A round goes through groups, then through the block table, a page at a time, while writes
//!   continue. A page is true at the moment it is made. A block that is in no group of the pages is
//!   marked: opening must *look* for it.
//! - Groups of the pages were sealed, complete and safe when the round began. Units in none of
//!   these groups are named in the logs (`window`), unless nothing is written to them. Opening
//!   finds entries written since the round began there, and these are newer than the pages.
//! - Superblocks name a checkpoint only when everything that its pages may describe is safe. Then
//!   opening finds what the pages leave out.
//! - Lists of trims written since the round began are kept as long as the checkpoint counts,
//!   because the pages may contain what they hide.
//! - The former checkpoint counts until superblocks name the next one, which uses the other half.
//!   Units are named in both logs until one of the two is known to count.
//! - A change of membership, a piece that cannot be written, or a loss ends a checkpoint. Units
//!   that were closed for it are opened once the donors know that.
//!
//! Left out: opening from a checkpoint (`load`), the bytes on donors
//! (`shoal_format::ram_checkpoint`).

pub(crate) mod ending;
pub(crate) mod pages;
pub(crate) mod window;

use std::sync::Arc;

use shoal_format::ram_checkpoint::{Kind, Root, encode};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::checkpoint::pages::{Written, write_pages};
use crate::membership::epochs::new_epoch;
use crate::planted::{Bug, is_planted};
use crate::requests::write::flush;
use crate::state::State;
use crate::state::bits::Bits;
use crate::state::checkpoints::{NEXT, Round, VALID, Valid};
use crate::state::donors::{Donor, DonorState};
use crate::state::epoch::Membership;
use crate::state::units::Log;
use crate::task::{Core, Op, join};
use crate::views::Window;

/// Share of a donor's units, at least `NAMED_MIN` units, that must have been named since the last
/// round before the next one begins. In an idle gap the smaller share is enough.
const NAMED_SHARE: u32 = 16;
const NAMED_IDLE_SHARE: u32 = 128;
const NAMED_MIN: u32 = 1024;
impl State {
    /// Begins a round if one is due. Returns its number.
    fn begin_round(&mut self) -> Option<u64> {
        if !self.window().is_due() || !self.window().is_calm() {
            return None;
        }
        let valid = self.checkpoints.valid.map(|valid| valid.number);
        let mut number = self.checkpoints.last.max(self.epoch.number() << 16).max(valid.unwrap_or(0)) + 1;
        // Use the half that the counting checkpoint does not use.
        number += valid.is_some_and(|valid| valid % 2 == number % 2) as u64;
        self.checkpoints.last = number;
        for donor in self.donors.iter_mut().filter(|donor| donor.counts()) {
            let open = Bits::all(donor.units.count() as usize);
            donor.units.set_log(NEXT, Log { number, open, ..Log::default() });
        }
        let excluded = self.groups.in_memory().iter().map(|&index| self.groups[index].id).collect();
        self.checkpoints.round = Some(Round {
            number,
            sequence: self.next_sequence,
            first_group: self.groups.next_number(),
            excluded,
            vouched: Bits::new(self.groups.places() as usize),
            named: false,
        });
        Some(number)
    }
}

impl Window<'_> {
    /// Returns whether a checkpoint can be made: every counting donor is fit for it, the epoch is
    /// stored, and nothing that opening found is unsettled.
    pub fn is_calm(&self) -> bool {
        let fit = |number: usize, donor: &Donor| {
            let is_used = donor.state == DonorState::Active && !donor.stale && donor.scanned && donor.refusals == 0;
            is_used && donor.units.is_sure_behind() && self.layout(number).pages > 2
        };
        let joins = |donor: &Donor| donor.state == DonorState::Joining;
        self.ready
            && self.failure.is_none()
            && self.epoch.is_stored()
            && self.found.doubts.is_empty()
            && self.found.groups.is_empty()
            && self.found.torn_notes.is_empty()
            && self.opening.strays.is_empty()
            && !self.donors.iter().any(joins)
            && self.donors.iter().enumerate().filter(|(_, donor)| donor.counts()).all(|(n, donor)| fit(n, donor))
    }

    fn is_due(&self) -> bool {
        let checkpoints = &self.checkpoints;
        if !checkpoints.enabled
            || !self.config.checkpoints
            || checkpoints.round.is_some()
            || self.now_ns < checkpoints.retry_at_ns
        {
            return false;
        }
        let Some(valid) = checkpoints.valid else { return checkpoints.named == 0 };
        let full = |number: usize, donor: &Donor| {
            let Some(log) = donor.units.log(VALID) else { return false };
            let most = match (self.config.window_units, self.room().is_idle()) {
                (0, false) => (donor.units.count() / NAMED_SHARE).max(NAMED_MIN),
                (0, true) => (donor.units.count() / NAMED_IDLE_SHARE).max(NAMED_MIN),
                (units, _) => 4 * units,
            };
            log.named >= most || log.used >= self.layout(number).records / 2
        };
        checkpoints.named == valid.number && self.donors.iter().enumerate().any(|(n, donor)| full(n, donor))
    }

    pub fn is_in_round(&self, number: u64) -> bool {
        let round = self.checkpoints.round.as_ref();
        round.is_some_and(|round| round.number == number) && self.failure.is_none()
    }
}

/// Makes checkpoints. Runs as long as the disk.
pub(crate) async fn keeper(core: Arc<Core>) {
    loop {
        let number = core.until(State::begin_round).await;
        let done = round(&core, number).await.is_some();
        let state = &mut *core.lock();
        if done {
            state.counts.checkpoints += 1;
            state.checkpoints.retry_delay_ns = 0;
        } else if state.window().is_in_round(number)
            && !state.checkpoints.round.as_ref().is_some_and(|round| round.named)
        {
            // The former checkpoint keeps counting.
            state.checkpoints.round = None;
            state.retry_round_later();
            state.end_logs(&[NEXT]);
        }
        state.wake();
    }
}

/// Runs one round. `None`: it did not complete.
async fn round(core: &Arc<Core>, number: u64) -> Option<()> {
    let donors: Vec<usize> = {
        let state = core.lock();
        (0..state.donors.len()).filter(|&n| state.donors[n].units.log(NEXT).is_some()).collect()
    };
    let pages = write_pages(core, number, &donors).await?;
    // Blocks that the pages leave to be looked for, or newer copies of them, must be on the donors.
    let reached = core.lock().next_sequence;
    if !is_planted(Bug::CheckpointEarly) {
        flush(core).await.ok()?;
    }
    {
        let state = &mut *core.lock();
        let safe = state.horizons().sure_horizon() >= reached || is_planted(Bug::CheckpointEarly);
        if !safe || !state.window().is_in_round(number) {
            return None;
        }
    }
    write_lists(core, number, &donors).await?;
    write_roots(core, number, &donors, &pages).await?;
    name(core, number).await
}

async fn write_roots(core: &Arc<Core>, number: u64, donors: &[usize], pages: &Written) -> Option<()> {
    let ops: Vec<Op> = {
        let state = &mut *core.lock();
        if !state.window().is_in_round(number) {
            return None;
        }
        let round = state.checkpoints.round.as_ref()?;
        let root = Root {
            sequence: round.sequence,
            horizon: state.horizons().sure_horizon().min(if is_planted(Bug::CheckpointEarly) {
                round.sequence
            } else {
                u64::MAX
            }),
            next_sequence: state.next_sequence,
            next_group: state.groups.next_number(),
            first_group: round.first_group,
            groups: pages.groups,
            blocks: state.map.blocks() as u32,
            pages: 0,
        };
        let mut ask = |(&donor, &pages): (&usize, &u32)| {
            let root = Root { pages, ..root }.encode();
            let bytes = encode(&state.window().stamp(donor, number), Kind::Root, 0, &root);
            let at = state.window().layout(donor).root_at(number % 2);
            core.op(state, donor as DonorId, DonorOp::Write { at, bytes }, Purpose::Upkeep)
        };
        donors.iter().zip(&pages.written).map(&mut ask).collect()
    };
    (!join(ops).await).then_some(())
}

/// Lets the superblocks name the checkpoint. It counts when enough donors have them.
async fn name(core: &Arc<Core>, number: u64) -> Option<()> {
    {
        let state = &mut *core.lock();
        if !state.window().is_in_round(number) || !state.window().is_calm() {
            return None;
        }
        state.checkpoints.round.as_mut()?.named = true;
        state.checkpoints.named = number;
        new_epoch(state, Membership::Same);
    }
    let named = core
        .until(|state| match state.checkpoints.named == number && state.window().is_in_round(number) {
            true => state.epoch.is_stored().then_some(true),
            false => Some(false),
        })
        .await;
    let state = &mut *core.lock();
    if !named || !state.window().is_in_round(number) {
        return None;
    }
    let round = state.checkpoints.round.take()?;
    state.checkpoints.valid = Some(Valid { number, sequence: round.sequence });
    for donor in &mut state.donors {
        donor.units.log_counts();
    }
    state.wake();
    Some(())
}

/// Names the units that opening must look at: all that no page describes, except free units that
/// stay closed.
async fn write_lists(core: &Arc<Core>, number: u64, donors: &[usize]) -> Option<()> {
    let mut lists: Vec<Vec<u32>> = Vec::new();
    {
        let state = &mut *core.lock();
        for &n in donors {
            let (ahead, is_first) = (state.window().ahead(n), state.checkpoints.valid.is_none());
            let donor = &mut state.donors[n];
            if is_first {
                donor.units.close_all_but(ahead);
            }
            lists.push(donor.units.begin_lists()?);
        }
    }
    let mut done = vec![0; donors.len()];
    let mut index = 0;
    let mut is_over = false;
    while !is_over {
        let mut ops = Vec::new();
        {
            let state = &mut *core.lock();
            if !state.window().is_in_round(number) {
                return None;
            }
            is_over = true;
            for (place, &donor) in donors.iter().enumerate() {
                let some = (lists[place].len() - done[place]).min(state.window().layout(donor).names());
                if some == 0 && index > 0 {
                    continue;
                }
                let op = state.window().list_op(number, donor, index, &lists[place][done[place]..][..some])?;
                done[place] += some;
                state.donors[donor].units.log_mut(NEXT)?.used = index + 1;
                is_over &= done[place] == lists[place].len();
                ops.push(core.op(state, donor as DonorId, op, Purpose::Upkeep));
            }
            index += 1;
        }
        if join(ops).await {
            return None;
        }
    }
    let state = &mut *core.lock();
    for &donor in donors {
        state.donors[donor].units.log_mut(NEXT)?.writing = false;
    }
    state.wake();
    Some(())
}
