//! The units of one donor: which are free, which may be written to, and which must be erased first.
//!
//! Owns: [`Units`] and the [`Log`]s of a donor. Rules:
//! - A unit is in a group, free, or to be erased, and only one of these. `Groups` knows which units
//!   are in groups.
//! - A written unit is erased before it is free again. A unit that a write of a dead connection may
//!   still reach is *tainted*: it is not used again before its donor has answered newer requests
//!   for `QUARANTINE_NS`. A unit with a write that was not answered in time is tainted until the
//!   answer comes. In both cases the unit is erased once more when the taint ends.
//! - While a checkpoint counts, a free unit that opening would not look at is *closed*: it is not
//!   taken before a list names it.
//!
//! Left out: erasing (`reclaim`), naming units in lists (`window`), making headers shorter (`graft`).

use std::collections::{HashMap, HashSet, VecDeque};

use shoal_format::ram::UnitHeader;

use crate::planted::{Bug, is_planted};
use crate::state::bits::Bits;
use crate::state::checkpoints::{NEXT, VALID};

/// The units of a donor that opening will look at, for one checkpoint.
#[derive(Clone, Default)]
pub(crate) struct Log {
    pub number: u64,
    /// Units that opening will look at.
    pub open: Bits,
    /// `open` is in the log. Until then, units that a page describes leave `open`, and return to it
    /// when they are freed.
    pub listed: bool,
    /// The lists are being written.
    pub writing: bool,
    /// Pieces of the log in use, not counting its end.
    pub used: u32,
    /// Units named since the checkpoint.
    pub named: u32,
}

/// A unit that holds nothing.
#[derive(Clone, Copy)]
pub(crate) struct FreeUnit {
    pub unit: u32,
    /// False once its memory was given back to the donor.
    pub has_memory: bool,
}

/// A unit whose header is to be erased before the unit is used again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Erase {
    pub unit: u32,
    /// Lowest sequence that the header may list.
    pub first_sequence: u64,
}

/// A server that has answered for this long carries out nothing more for connections that ended
/// before (ns).
const QUARANTINE_NS: u64 = 30_000_000_000;
/// The longest time before an answer for which the answer proves that the server was working (ns).
const ANSWER_SHOWS_NS: u64 = 1_000_000_000;

/// Why a unit may not be used again.
#[derive(Clone, Copy, Debug, Default)]
struct Taint {
    /// A write of a dead connection may reach the unit until [`Units::answering_ns`] is this high
    /// (ns).
    until_ns: u64,
    /// Writes that were not answered in time and are still unanswered.
    late: u32,
    /// Lowest sequence that its header listed when it was erased; `None`: not erased yet.
    erased: Option<u64>,
}

pub(crate) struct Units {
    count: u32,
    /// Free units that may have memory. The last one is taken next.
    free: VecDeque<u32>,
    /// Free units whose memory was given back.
    blank: Vec<u32>,
    /// Closed units, with and without memory.
    closed: VecDeque<u32>,
    closed_blank: Vec<u32>,
    /// For the checkpoint that counts, and for the next one.
    logs: [Option<Log>; 2],
    /// A list is being written.
    announcing: bool,
    /// Units to be erased, and those being erased.
    erase: VecDeque<Erase>,
    erasing: Vec<Erase>,
    /// Units whose headers list more than is known, with the shorter headers to write.
    cuts: VecDeque<(u32, UnitHeader)>,
    /// The unit whose header is being shortened.
    cutting: Option<u32>,
    tainted: HashMap<u32, Taint>,
    /// How long the donor has answered while units were in quarantine.
    answering_ns: u64,
    /// When the quarantine of each unit ends, in order.
    quarantine: VecDeque<(u64, u32)>,
    /// When the quarantine of the whole donor ends: it joined with a past.
    all_until_ns: u64,
    /// Units with changes in flight when the donor went away.
    unknown: HashSet<u32>,
}

impl Units {
    /// Starts with `count` units without memory, all of them free.
    pub fn new(count: u32) -> Units {
        Units {
            count,
            free: VecDeque::new(),
            blank: (0..count).rev().collect(),
            closed: VecDeque::new(),
            closed_blank: Vec::new(),
            logs: [None, None],
            announcing: false,
            erase: VecDeque::new(),
            erasing: Vec::new(),
            cuts: VecDeque::new(),
            cutting: None,
            tainted: HashMap::new(),
            answering_ns: 0,
            quarantine: VecDeque::new(),
            all_until_ns: 0,
            unknown: HashSet::new(),
        }
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Sets the size of a donor that came back with another one. Opening has not looked at its
    /// units yet.
    pub fn set_count(&mut self, count: u32) {
        self.count = count;
    }

    /// Forgets the units, because the disk no longer uses the donor.
    pub fn release(&mut self) {
        *self = Units { count: self.count, announcing: self.announcing, cutting: self.cutting.take(), ..Units::new(0) };
    }

    /// Enters what opening found on the donor: which units are free, and which are closed.
    pub fn found(&mut self, is_free: impl Fn(u32) -> bool, is_closed: impl Fn(u32) -> bool) {
        self.blank = Vec::new();
        self.closed_blank = Vec::new();
        self.free = (0..self.count).rev().filter(|&unit| is_free(unit)).collect();
        self.closed = (0..self.count).rev().filter(|&unit| is_closed(unit)).collect();
    }
}

/// Free units.
impl Units {
    /// Free units that may be taken.
    pub fn open(&self) -> usize {
        self.free.len() + self.blank.len()
    }

    /// Counts all free units, including those that a list must name first.
    pub fn free(&self) -> usize {
        self.open() + self.closed.len() + self.closed_blank.len()
    }

    /// Units that are free, or will be when they are erased.
    pub fn free_soon(&self) -> usize {
        self.free() + self.erase.len() + self.erasing.len()
    }

    /// Lists all units that are in no group, for audits.
    pub fn unused(&self) -> impl Iterator<Item = u32> {
        let free = self.free.iter().chain(&self.blank).chain(&self.closed).chain(&self.closed_blank);
        free.copied().chain(self.erase.iter().chain(&self.erasing).map(|erase| erase.unit))
    }

    /// Takes a free unit, preferably one with memory.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop_back().or_else(|| self.blank.pop())
    }

    /// Frees a unit that holds nothing any more.
    pub fn put_free(&mut self, FreeUnit { unit, has_memory }: FreeUnit) {
        let mut open = true;
        for log in self.logs() {
            if !log.listed {
                log.open.set(unit as usize, true);
            }
            open &= log.open.get(unit as usize);
        }
        match (open || is_planted(Bug::ClosedUsed), has_memory) {
            (true, true) => self.free.push_back(unit),
            (true, false) => self.blank.push(unit),
            (false, true) => self.closed.push_back(unit),
            (false, false) => self.closed_blank.push(unit),
        }
    }

    /// Returns whether there is a free unit with memory.
    pub fn can_trim(&self) -> bool {
        !self.free.is_empty() || !self.closed.is_empty()
    }

    /// Takes the free unit with memory that [`Units::take`] would take last.
    pub fn take_to_trim(&mut self) -> Option<u32> {
        self.free.pop_front().or_else(|| self.closed.pop_front())
    }
}

/// Closed units and logs.
impl Units {
    pub fn log(&self, which: usize) -> Option<&Log> {
        self.logs[which].as_ref()
    }

    pub fn log_mut(&mut self, which: usize) -> Option<&mut Log> {
        self.logs[which].as_mut()
    }

    pub fn set_log(&mut self, which: usize, log: Log) {
        self.logs[which] = Some(log);
    }

    /// Returns the logs of the checkpoint that counts and of the one being made.
    pub fn logs(&mut self) -> impl Iterator<Item = &mut Log> {
        self.logs.iter_mut().flatten()
    }

    /// Returns the number and pieces of each log that already names units.
    pub fn listed(&self) -> Vec<(u64, u32)> {
        self.logs.iter().flatten().filter(|log| log.listed).map(|log| (log.number, log.used)).collect()
    }

    /// Returns whether the lists of a round are being written.
    pub fn is_listing(&self) -> bool {
        self.logs.iter().flatten().any(|log| log.writing)
    }

    /// Drops the log of a checkpoint that has ended. [`Units::reopen`] opens the units closed for
    /// it.
    pub fn end_log(&mut self, which: usize) {
        self.logs[which] = None;
    }

    /// Makes the next checkpoint the one that counts.
    pub fn log_counts(&mut self) {
        self.logs[VALID] = self.logs[NEXT].take();
        self.reopen();
    }

    /// Opens closed units that no checkpoint needs closed any more.
    pub fn reopen(&mut self) {
        let (closed, blank) = (std::mem::take(&mut self.closed), std::mem::take(&mut self.closed_blank));
        blank.into_iter().for_each(|unit| self.put_free(FreeUnit { unit, has_memory: false }));
        closed.into_iter().for_each(|unit| self.put_free(FreeUnit { unit, has_memory: true }));
    }

    /// Closes all free units but `ahead`.
    pub fn close_all_but(&mut self, ahead: usize) {
        let from_free = self.free.len().saturating_sub(ahead);
        self.closed.extend(self.free.drain(..from_free));
        let left = self.blank.len().min(ahead - self.free.len());
        let kept = self.blank.split_off(self.blank.len() - left);
        let closed = std::mem::replace(&mut self.blank, kept);
        match self.closed_blank.is_empty() {
            true => self.closed_blank = closed,
            false => self.closed_blank.extend(closed),
        }
    }

    /// Begins to write the next log. Returns the units it names: all that no page describes, except
    /// closed ones. `None`: there is no log.
    pub fn begin_lists(&mut self) -> Option<Vec<u32>> {
        let log = self.logs[NEXT].as_mut()?;
        self.closed.iter().chain(&self.closed_blank).for_each(|&unit| log.open.set(unit as usize, false));
        (log.listed, log.writing) = (true, true);
        Some(log.open.ones(self.count as usize).map(|unit| unit as u32).collect())
    }

    pub fn has_closed(&self) -> bool {
        !self.closed.is_empty() || !self.closed_blank.is_empty()
    }

    /// Returns whether a list is being written.
    pub fn is_announcing(&self) -> bool {
        self.announcing
    }

    /// Takes closed units to name in a list. [`Units::announced`] must follow.
    pub fn announce(&mut self, most: usize) -> Vec<FreeUnit> {
        self.announcing = true;
        let mut units = Vec::with_capacity(most);
        while units.len() < most {
            let unit = self.closed.pop_back().map(|unit| FreeUnit { unit, has_memory: true });
            let blank = |unit| FreeUnit { unit, has_memory: false };
            match unit.or_else(|| self.closed_blank.pop().map(blank)) {
                Some(unit) => units.push(unit),
                None => break,
            }
        }
        units
    }

    pub fn announced(&mut self) {
        self.announcing = false;
    }

    /// Drops logs and closed units: without a checkpoint, opening looks at everything.
    pub fn forget_logs(&mut self) {
        self.logs = [None, None];
        self.closed.clear();
        self.closed_blank.clear();
    }
}

/// Units to erase, and headers to shorten.
impl Units {
    /// Queues a unit that may have a header to be erased and then freed.
    pub fn erase_later(&mut self, unit: u32, first_sequence: u64) {
        self.erase.push_back(Erase { unit, first_sequence });
    }

    /// Takes the next unit to erase, if fewer than `most` are being erased. [`Units::erased`] must
    /// follow.
    pub fn next_erase(&mut self, most: usize) -> Option<Erase> {
        if self.erasing.len() >= most {
            return None;
        }
        let place = self.erase.iter().position(|erase| self.cutting != Some(erase.unit))?;
        let erase = self.erase.remove(place)?;
        self.erasing.push(erase);
        Some(erase)
    }

    /// Ends the erasure of a unit; `done`: the donor did it. Returns whether the unit is free, or
    /// `None` if the erasure no longer matters.
    pub fn erased(&mut self, unit: u32, done: bool) -> Option<bool> {
        let place = self.erasing.iter().position(|erase| erase.unit == unit)?;
        let erase = self.erasing.swap_remove(place);
        if !done {
            self.erase.push_back(erase);
        } else if let Some(taint) = self.tainted.get_mut(&unit) {
            taint.erased = Some(taint.erased.unwrap_or(u64::MAX).min(erase.first_sequence));
        } else {
            self.put_free(FreeUnit { unit, has_memory: true });
            return Some(true);
        }
        Some(false)
    }

    /// Returns whether nothing is left to erase.
    pub fn is_erased(&self) -> bool {
        self.erase.is_empty() && self.erasing.is_empty()
    }

    /// Lowest sequence listed by units that are still to be erased; `u64::MAX`: none.
    pub fn erasing_sequence(&self) -> u64 {
        let pending = self.erase.iter().chain(&self.erasing).map(|erase| erase.first_sequence);
        pending.min().unwrap_or(u64::MAX)
    }

    /// Lowest sequence listed by erased units that a late write could bring back; `u64::MAX`: none.
    pub fn tainted_sequence(&self) -> u64 {
        self.tainted.values().filter_map(|taint| taint.erased).min().unwrap_or(u64::MAX)
    }

    /// Queues a unit whose header must be shortened.
    pub fn cut_later(&mut self, unit: u32, header: UnitHeader) {
        self.cuts.push_back((unit, header));
    }

    /// Returns the next header to shorten.
    pub fn next_cut(&self) -> Option<&(u32, UnitHeader)> {
        self.cuts.front()
    }

    /// Drops the next header to shorten: its unit has been freed.
    pub fn drop_cut(&mut self) {
        self.cuts.pop_front();
    }

    /// Begins to shorten a header. The unit is not erased meanwhile, or the write would bring the
    /// header back.
    pub fn begin_cut(&mut self, unit: u32) {
        self.cutting = Some(unit);
    }

    pub fn end_cut(&mut self, unit: u32, done: bool) {
        self.cutting = None;
        if done && self.cuts.front().is_some_and(|(first, _)| *first == unit) {
            self.cuts.pop_front();
        }
    }
}

/// Units that late writes may reach.
impl Units {
    /// Taints units: a write to them may still be carried out.
    pub fn taint(&mut self, units: impl IntoIterator<Item = u32>) {
        let until_ns = self.answering_ns + if is_planted(Bug::QuarantineShort) { 0 } else { QUARANTINE_NS };
        for unit in units {
            self.tainted.entry(unit).or_default().until_ns = until_ns;
            self.quarantine.push_back((until_ns, unit));
        }
    }

    /// Counts an answer of the donor, `after_ns` after its previous one. Returns whether a
    /// quarantine has ended.
    pub fn answers(&mut self, after_ns: u64) -> bool {
        if !self.is_quarantined() {
            return false;
        }
        let were_all = self.are_all_quarantined();
        self.answering_ns += after_ns.min(ANSWER_SHOWS_NS);
        let over = self.quarantine.partition_point(|&(until_ns, _)| until_ns <= self.answering_ns);
        let over: Vec<(u64, u32)> = self.quarantine.drain(..over).collect();
        over.iter().for_each(|&(_, unit)| self.end_taint(unit));
        !over.is_empty() || were_all != self.are_all_quarantined()
    }

    /// Taints the whole donor: a write of a former connection may still be carried out anywhere on
    /// it.
    pub fn taint_all(&mut self) {
        self.all_until_ns = self.answering_ns + if is_planted(Bug::PastForgotten) { 0 } else { QUARANTINE_NS };
    }

    /// Returns whether a quarantine is running.
    pub fn is_quarantined(&self) -> bool {
        !self.quarantine.is_empty() || self.are_all_quarantined()
    }

    pub fn are_all_quarantined(&self) -> bool {
        self.answering_ns < self.all_until_ns
    }

    /// Ends a unit's taint if no late write can reach it any more.
    fn end_taint(&mut self, unit: u32) {
        let is_over = |taint: &Taint| taint.late == 0 && taint.until_ns <= self.answering_ns;
        if !self.tainted.get(&unit).is_some_and(is_over) {
            return;
        }
        let erased = self.tainted.remove(&unit).and_then(|taint| taint.erased);
        // A late write may have come after the unit was erased.
        erased.into_iter().for_each(|first_sequence| self.erase_later(unit, first_sequence));
    }

    /// Taints a unit because a write to it was not answered in time.
    pub fn is_late(&mut self, unit: u32) {
        if is_planted(Bug::LateReused) {
            return;
        }
        self.tainted.entry(unit).or_default().late += 1;
    }

    /// Counts the answer to a late write, which can have no more effect.
    pub fn late_answer(&mut self, unit: u32) {
        let Some(taint) = self.tainted.get_mut(&unit) else { return };
        taint.late = taint.late.saturating_sub(1);
        self.end_taint(unit);
    }

    /// Returns whether the answer to a late write is still to come.
    pub fn has_late(&self) -> bool {
        self.tainted.values().any(|taint| taint.late > 0)
    }

    pub fn is_tainted(&self, unit: u32) -> bool {
        self.tainted.contains_key(&unit)
    }

    pub fn tainted(&self) -> u64 {
        self.tainted.len() as u64
    }

    /// Records that the donor went away while a write to this unit was in flight.
    pub fn loses_sight(&mut self, unit: Option<u32>) {
        self.unknown.extend(unit);
    }

    /// Takes note that the donor is back. `taints`: writes that were in flight may still be carried
    /// out.
    pub fn is_back(&mut self, taints: bool) {
        let unknown = std::mem::take(&mut self.unknown);
        if taints {
            self.taint(unknown);
        }
    }

    /// Returns whether no late write can reach this unit.
    pub fn is_sure(&self, unit: u32) -> bool {
        !self.are_all_quarantined() && !self.tainted.contains_key(&unit) && !self.unknown.contains(&unit)
    }

    /// Returns whether no late write can reach the bytes behind the units.
    pub fn is_sure_behind(&self) -> bool {
        !self.are_all_quarantined() && !self.tainted.keys().chain(&self.unknown).any(|&unit| unit >= self.count)
    }
}
