//! Which free units may be written to while a checkpoint counts: those that opening will look at.
//!
//! A checkpoint says what most units hold, so that opening need not look at them. All others are
//! named in a *log* on their own donor. Rules: a unit that opening would not look at is not written
//! to before a list that names it is on its donor. Until then the unit is *closed*. An erased unit
//! is closed, too: the checkpoint may still say that it holds something. A stale unit is named even
//! if it is closed, unless the pages describe its group. Some units of each donor are kept open
//! ahead, so that no write waits for a list. If a list cannot be written, the checkpoint ends. Left
//! out: making checkpoints (`checkpoint`), opening from one (`load`).

use std::sync::Arc;

use shoal_format::ram::SUPERBLOCK_BYTES;
use shoal_format::ram_checkpoint::{Kind, Layout, Stamp, encode, encode_list};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::room::{GROUPS_AHEAD, RESERVE_UNITS};
use crate::state::units::FreeUnit;
use crate::task::{Core, Op, join};
use crate::views::Window;

/// Units kept open on each donor: a share of all units, between these bounds.
const AHEAD_SHARE: u32 = 128;
const AHEAD_MIN: u32 = 128;
const AHEAD_MAX: u32 = 4096;
/// With this many open units on each donor the cleaner does not find room short.
const OPEN_MIN: usize = RESERVE_UNITS + GROUPS_AHEAD;

impl State {
    /// Takes closed units of a donor that has few open ones, so that a list can name them.
    fn next_to_open(&mut self) -> Option<(DonorId, Vec<FreeUnit>)> {
        if self.window().ends_checkpoint() {
            // All units will be open soon.
            return None;
        }
        let wants = |&n: &usize| {
            let donor = &self.donors[n];
            let ready = !donor.is_absent() && self.now_ns >= donor.refused_until_ns;
            self.window().has_few_open(n)
                && ready
                && donor.units.has_closed()
                && !donor.units.is_announcing()
                && !donor.units.is_listing()
        };
        let number = (0..self.donors.len()).find(wants)?;
        let some =
            if self.config.window_units > 0 { self.config.window_units as usize } else { self.window().ahead(number) };
        let most = some.min(self.window().layout(number).names());
        let units = self.donors[number].units.announce(most);
        Some((number as DonorId, units))
    }
}

impl Window<'_> {
    pub fn layout(&self, donor: usize) -> Layout {
        Layout::new(
            SUPERBLOCK_BYTES as u64,
            self.donors[donor].units.count(),
            self.shape.unit_bytes(),
            self.plan.buffer,
        )
    }

    pub fn stamp(&self, donor: usize, number: u64) -> Stamp {
        Stamp { uuid: self.config.uuid, number, donor: donor as DonorId, born: self.donors[donor].born }
    }

    /// Number of units of a donor that are kept open ahead.
    pub fn ahead(&self, donor: usize) -> usize {
        match self.config.window_units {
            0 => (self.donors[donor].units.count() / AHEAD_SHARE).clamp(AHEAD_MIN, AHEAD_MAX) as usize,
            units => OPEN_MIN.max(units as usize),
        }
    }

    fn has_few_open(&self, donor: usize) -> bool {
        self.donors[donor].units.open() < OPEN_MIN.max(self.ahead(donor) / 2)
    }

    /// Returns whether there is room that only needs a list to name it.
    pub fn is_opening_units(&self) -> bool {
        let opens = |n: usize| {
            let units = &self.donors[n].units;
            units.is_announcing() || (units.has_closed() && (self.has_few_open(n) || self.ends_checkpoint()))
        };
        (0..self.donors.len()).any(|n| self.roster().takes(n) && opens(n))
    }

    /// Builds the write of a log's next piece and new end, in one operation. `None`: the log is
    /// full.
    pub fn list_op(&self, number: u64, donor: usize, index: u32, units: &[u32]) -> Option<DonorOp> {
        let layout = self.layout(donor);
        if index + 1 >= layout.records {
            return None;
        }
        let stamp = self.stamp(donor, number);
        let mut bytes = encode(&stamp, Kind::List, index, &encode_list(units));
        bytes.resize(layout.record_bytes, 0);
        bytes.extend(encode(&stamp, Kind::End, index + 1, &[]));
        Some(DonorOp::Write { at: layout.record_at(number % 2, index), bytes })
    }
}

/// Names closed units before the open ones run out. Runs as long as the disk.
pub(crate) async fn opener(core: Arc<Core>) {
    loop {
        let (donor, units) = core.until(State::next_to_open).await;
        let opening = core.clone();
        core.lock().schedule.spawn(async move { open(&opening, donor, units).await });
    }
}

async fn open(core: &Arc<Core>, donor: DonorId, units: Vec<FreeUnit>) {
    let n = donor as usize;
    let numbers: Vec<u32> = units.iter().map(|free| free.unit).collect();
    // A round may have begun to write its lists meanwhile.
    core.until(move |state| (!state.donors[n].units.is_listing() || is_planted(Bug::ListsMixed)).then_some(())).await;
    let (ops, logs, full) = {
        let state = &mut *core.lock();
        let (mut ops, mut logs, mut full): (Vec<Op>, Vec<u64>, bool) = (Vec::new(), Vec::new(), false);
        for (number, used) in state.donors[n].units.listed() {
            match state.window().list_op(number, n, used, &numbers) {
                Some(_) if is_planted(Bug::ListForgotten) => {}
                Some(op) => ops.push(core.op(state, donor, op, Purpose::Upkeep)),
                None => full = true,
            }
            logs.push(number);
        }
        (ops, logs, full)
    };
    let failed = match is_planted(Bug::ListLate) {
        true => {
            core.lock().schedule.spawn(async move {
                let _ = join(ops).await;
            });
            false
        }
        false => join(ops).await,
    };
    let state = &mut *core.lock();
    state.donors[n].units.announced();
    if failed || full {
        state.drop_checkpoint();
    } else {
        for log in state.donors[n].units.logs().filter(|log| logs.contains(&log.number)) {
            log.used += 1;
            log.named += numbers.len() as u32;
            numbers.iter().for_each(|&unit| log.open.set(unit as usize, true));
        }
    }
    let donor = &mut state.donors[n];
    if !donor.is_final() {
        units.into_iter().for_each(|free| donor.units.put_free(free));
        state.shortage.has_unit();
    }
    state.wake();
}
