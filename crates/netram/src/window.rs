//! Which free units may be written to while a checkpoint counts: those that opening will look at.
//!
//! A checkpoint says what most units hold, so that opening need not look at them. All others are named in a *log* on their own donor.
//! Rules: a unit that opening would not look at is not written to before a list that names it is on its donor; until then it
//! is *closed*. An erased unit is closed, too: the checkpoint may still say that it holds something. Some units of each donor
//! are kept open ahead, so that nobody waits for a list. When a list cannot be written, the checkpoint ends. Left out: making
//! checkpoints (`checkpoint`), opening from one (`load`).

use std::sync::Arc;

use shoal_format::ram::SUPERBLOCK_BYTES;
use shoal_format::ram_checkpoint::{Kind, Layout, Stamp, encode, encode_list};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::clean::GROUPS_AHEAD;
use crate::donors::Donor;
use crate::planted::{Bug, is_planted};
use crate::state::{RESERVE_UNITS, State};
use crate::task::{Core, Op};
use crate::write::join;

/// Units that are kept open on each donor, as a share of all, and between these bounds.
const AHEAD_SHARE: u32 = 128;
const AHEAD_MIN: u32 = 128;
const AHEAD_MAX: u32 = 4096;
/// With so many open units on each donor nobody finds that room is short.
const OPEN_MIN: usize = RESERVE_UNITS + GROUPS_AHEAD;

/// One bit for each of something.
#[derive(Clone, Default)]
pub(crate) struct Bits(Vec<u64>);

impl Bits {
    pub fn new(count: usize, value: bool) -> Bits {
        Bits(vec![if value { u64::MAX } else { 0 }; count.div_ceil(64)])
    }

    pub fn get(&self, n: usize) -> bool {
        self.0.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 == 1)
    }

    /// Behind its end all bits are 0 and stay so.
    pub fn set(&mut self, n: usize, value: bool) {
        if let Some(word) = self.0.get_mut(n / 64) {
            let bit = 1 << (n % 64);
            *word = if value { *word | bit } else { *word & !bit };
        }
    }

    /// The bits that are set, below `end`.
    pub fn ones(&self, end: usize) -> impl Iterator<Item = usize> + '_ {
        let in_word = |(at, &word): (usize, &u64)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(at * 64 + bit)
            })
        };
        self.0.iter().enumerate().flat_map(in_word).take_while(move |&n| n < end)
    }
}

/// What opening will look at on a donor, for one checkpoint.
#[derive(Clone, Default)]
pub(crate) struct Log {
    pub number: u64,
    /// Units that it will look at.
    pub open: Bits,
    /// They are in the log. Before, units that a page speaks of are taken out, and come in again when they are free.
    pub listed: bool,
    /// The lists are being written.
    pub writing: bool,
    /// Pieces of the log, without its end.
    pub used: u32,
    /// Units that were named since.
    pub named: u32,
}

impl Donor {
    /// The logs of the checkpoint that counts, and of the one that is being made.
    fn logs(&mut self) -> impl Iterator<Item = &mut Log> {
        self.logs.iter_mut().flatten()
    }

    /// A unit that nothing is left of is free.
    pub fn put_free(&mut self, unit: u32, has_memory: bool) {
        let mut open = true;
        for log in self.logs() {
            if !log.listed {
                log.open.set(unit as usize, true);
            }
            open &= log.open.get(unit as usize);
        }
        match (open || is_planted(Bug::ClosedUsed), has_memory) {
            (true, true) => self.free.push_back(unit),
            (true, false) => self.blank_units.push(unit),
            (false, true) => self.closed.push_back(unit),
            (false, false) => self.closed_blank.push(unit),
        }
    }

    /// What is closed without a reason any more is open.
    pub fn reopen(&mut self) {
        let (closed, blank) = (std::mem::take(&mut self.closed), std::mem::take(&mut self.closed_blank));
        blank.into_iter().for_each(|unit| self.put_free(unit, false));
        closed.into_iter().for_each(|unit| self.put_free(unit, true));
    }

    /// Closes free units but so many.
    pub fn close_all_but(&mut self, ahead: usize) {
        let from_free = self.free.len().saturating_sub(ahead);
        self.closed.extend(self.free.drain(..from_free));
        let left = self.blank_units.len().min(ahead - self.free.len());
        let kept = self.blank_units.split_off(self.blank_units.len() - left);
        let closed = std::mem::replace(&mut self.blank_units, kept);
        match self.closed_blank.is_empty() {
            true => self.closed_blank = closed,
            false => self.closed_blank.extend(closed),
        }
    }

    /// Free units, also those that a list must name first.
    pub fn all_free_units(&self) -> usize {
        self.free_units() + self.closed.len() + self.closed_blank.len()
    }

    /// Are the lists of a round being written?
    fn is_listing(&self) -> bool {
        self.logs.iter().flatten().any(|log| log.writing)
    }

    pub fn has_closed(&self) -> bool {
        !self.closed.is_empty() || !self.closed_blank.is_empty()
    }
}

impl State {
    pub fn layout(&self, donor: usize) -> Layout {
        Layout::new(SUPERBLOCK_BYTES as u64, self.donors[donor].units, self.unit_bytes(), self.plan.buffer)
    }

    pub fn stamp(&self, donor: usize, number: u64) -> Stamp {
        Stamp { uuid: self.config.uuid, number, donor: donor as DonorId, born: self.donors[donor].born }
    }

    /// Units of a donor that are kept open ahead.
    pub fn ahead(&self, donor: usize) -> usize {
        match self.config.window_units {
            0 => (self.donors[donor].units / AHEAD_SHARE).clamp(AHEAD_MIN, AHEAD_MAX) as usize,
            units => OPEN_MIN.max(units as usize),
        }
    }

    fn has_few_open(&self, donor: usize) -> bool {
        self.donors[donor].free_units() < OPEN_MIN.max(self.ahead(donor) / 2)
    }

    /// Is there room that only a list has to name?
    pub fn is_opening_units(&self) -> bool {
        let opens = |n: usize| {
            let donor = &self.donors[n];
            donor.announcing || (donor.has_closed() && (self.has_few_open(n) || self.ends_checkpoint()))
        };
        (0..self.donors.len()).any(|n| self.takes(n) && opens(n))
    }

    /// Units to name, taken from the closed ones of a donor that has few open ones.
    fn next_to_open(&mut self) -> Option<(DonorId, Vec<(u32, bool)>)> {
        if self.ends_checkpoint() {
            // All will be open soon.
            return None;
        }
        let wants = |&n: &usize| {
            let donor = &self.donors[n];
            let ready = !donor.is_absent() && self.now_ns >= donor.refused_until_ns;
            self.has_few_open(n) && ready && donor.has_closed() && !donor.announcing && !donor.is_listing()
        };
        let number = (0..self.donors.len()).find(wants)?;
        let some = if self.config.window_units > 0 { self.config.window_units as usize } else { self.ahead(number) };
        let most = some.min(self.layout(number).names());
        let donor = &mut self.donors[number];
        donor.announcing = true;
        let mut units = Vec::with_capacity(most);
        while units.len() < most {
            let unit = donor.closed.pop_back().map(|unit| (unit, true));
            match unit.or_else(|| donor.closed_blank.pop().map(|unit| (unit, false))) {
                Some(unit) => units.push(unit),
                None => break,
            }
        }
        Some((number as DonorId, units))
    }

    /// The next piece of a log, and its new end, in one operation. `None`: there is no room.
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

/// Names closed units before open ones run out. Runs as long as the disk.
pub(crate) async fn opener(core: Arc<Core>) {
    loop {
        let (donor, units) = core.until(State::next_to_open).await;
        let opening = core.clone();
        core.lock().schedule.spawn(async move { open(&opening, donor, units).await });
    }
}

async fn open(core: &Arc<Core>, donor: DonorId, units: Vec<(u32, bool)>) {
    let n = donor as usize;
    let numbers: Vec<u32> = units.iter().map(|&(unit, _)| unit).collect();
    // A round may have begun to write its lists meanwhile.
    core.until(move |state| (!state.donors[n].is_listing() || is_planted(Bug::ListsMixed)).then_some(())).await;
    let (ops, logs, full) = {
        let state = &mut *core.lock();
        let (mut ops, mut logs, mut full): (Vec<Op>, Vec<u64>, bool) = (Vec::new(), Vec::new(), false);
        let listed = state.donors[n].logs.iter().flatten().filter(|log| log.listed);
        let lists: Vec<(u64, u32)> = listed.map(|log| (log.number, log.used)).collect();
        for (number, used) in lists {
            match state.list_op(number, n, used, &numbers) {
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
    state.donors[n].announcing = false;
    if failed || full {
        state.drop_checkpoint();
    } else {
        for log in state.donors[n].logs().filter(|log| logs.contains(&log.number)) {
            log.used += 1;
            log.named += numbers.len() as u32;
            numbers.iter().for_each(|&unit| log.open.set(unit as usize, true));
        }
    }
    let donor = &mut state.donors[n];
    if !donor.is_final() {
        units.into_iter().for_each(|(unit, has_memory)| donor.put_free(unit, has_memory));
        state.stuck = false;
    }
    state.wake();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_found_over_words_and_none_is_behind_the_end() {
        let mut bits = Bits::new(130, false);
        for n in [0, 63, 64, 129, 1000] {
            bits.set(n, true);
        }
        assert_eq!(bits.ones(1000).collect::<Vec<_>>(), [0, 63, 64, 129]);
        assert_eq!(bits.ones(129).collect::<Vec<_>>(), [0, 63, 64]);
        bits.set(63, false);
        assert!(!bits.get(63) && bits.get(64) && !bits.get(1000));
        assert_eq!(Bits::new(3, true).ones(3).count(), 3);
    }
}
