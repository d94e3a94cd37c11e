//! The units of one donor: which are free, which may be written to, and which must be erased first.
//!
//! Owns: [`Units`] and the [`Log`]s of a donor. Rules:
//! - A unit is in a group, free, or to be erased, and only one of these. `Groups` knows which units
//!   are in groups.
//! - A unit is free once it holds nothing, or *stale*: with the headers of a dead group, which the
//!   first write of another group replaces. Opening finds them, and a newer copy of each of their
//!   blocks. What could be missing as that newer copy is kept: lists of trims outlive stale units
//!   with older sequences, which are therefore erased when blocks were trimmed since. A unit whose
//!   headers say anything else is erased before it is free (`reclaim`).
//! - A unit that a write of a dead connection may still reach is *tainted*: it is not used again
//!   before its donor has answered newer requests for `QUARANTINE_NS`. A unit with a write that was
//!   not answered in time is tainted until the answer comes. In both cases the unit is erased once
//!   more when the taint ends.
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
    /// Stale units, with the lowest sequence that the headers of each list.
    stale: HashMap<u32, u64>,
    /// Stale units that list a sequence below this one are erased.
    erased_from: u64,
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
            stale: HashMap::new(),
            erased_from: 0,
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
        self.free() + self.to_erase()
    }

    /// Units that wait for their erasure or are being erased.
    pub fn to_erase(&self) -> usize {
        self.erase.len() + self.erasing.len()
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

    /// Frees a unit that holds nothing any more, or is stale.
    pub fn put_free(&mut self, FreeUnit { unit, mut has_memory }: FreeUnit) {
        if let Some(&first_sequence) = self.stale.get(&unit) {
            if first_sequence < self.erased_from {
                return self.erase_later(unit, first_sequence);
            }
            has_memory = true;
        }
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

    /// Frees a unit with the headers of a dead group, whose lowest sequence is given. Returns false
    /// if it must be erased first.
    pub fn free_stale(&mut self, unit: u32, first_sequence: u64) -> bool {
        let is_old = first_sequence < self.erased_from;
        if is_old || self.tainted.contains_key(&unit) || self.cutting == Some(unit) {
            self.erase_later(unit, first_sequence);
            return false;
        }
        // If nothing of the group was stored there, the former headers remain.
        let first = self.stale.entry(unit).or_insert(first_sequence);
        *first = first_sequence.min(*first);
        self.put_free(FreeUnit { unit, has_memory: true });
        true
    }

    /// Records that all of a unit's headers are new.
    pub fn is_replaced(&mut self, unit: u32) {
        self.stale.remove(&unit);
    }

    /// Lowest sequence that the headers of stale units list; `u64::MAX`: none.
    pub fn stale_sequence(&self) -> u64 {
        self.stale.values().copied().min().unwrap_or(u64::MAX)
    }

    /// Queues free units to be erased that list a sequence below this one, now and later.
    pub fn erase_stale(&mut self, before: u64) {
        if before <= self.erased_from {
            return;
        }
        self.erased_from = before;
        let (stale, erase) = (&self.stale, &mut self.erase);
        if stale.values().all(|&first| first >= before) {
            return;
        }
        let mut stays = |&unit: &u32| {
            let first_sequence = stale.get(&unit).copied().filter(|&first| first < before);
            erase.extend(first_sequence.map(|first_sequence| Erase { unit, first_sequence }));
            first_sequence.is_none()
        };
        self.free.retain(&mut stays);
        self.closed.retain(&mut stays);
        self.blank.retain(&mut stays);
        self.closed_blank.retain(&mut stays);
    }

    /// Returns whether there is a free unit with memory.
    pub fn can_trim(&self) -> bool {
        !self.free.is_empty() || !self.closed.is_empty()
    }

    /// Takes the free unit with memory that [`Units::take`] would take last. Stale ones on the way,
    /// as long as fewer than `most` wait for it, are queued to be erased. `None`: there is none, or
    /// they must be erased first.
    pub fn take_to_trim(&mut self, most: usize) -> Option<u32> {
        while self.to_erase() < most {
            let unit = self.free.pop_front().or_else(|| self.closed.pop_front())?;
            let Some(&first_sequence) = self.stale.get(&unit) else { return Some(unit) };
            self.erase_later(unit, first_sequence);
        }
        None
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
    /// closed ones that hold nothing. `None`: there is no log.
    pub fn begin_lists(&mut self) -> Option<Vec<u32>> {
        let log = self.logs[NEXT].as_mut()?;
        let closed = self.closed.iter().chain(&self.closed_blank).filter(|unit| !self.stale.contains_key(unit));
        closed.for_each(|&unit| log.open.set(unit as usize, false));
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
        // If nothing was stored there since, the unit is still stale.
        let first_sequence = self.stale.get(&unit).map_or(first_sequence, |&first| first.min(first_sequence));
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
        if done {
            self.stale.remove(&unit);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn all(units: &Units) -> Vec<u32> {
        let mut all: Vec<u32> = units.unused().collect();
        all.sort_unstable();
        all
    }

    /// Frees a unit taken from a donor's free ones, with headers of this sequence.
    fn stale(units: &mut Units, first_sequence: u64) -> u32 {
        let unit = units.take().unwrap();
        assert!(units.free_stale(unit, first_sequence));
        unit
    }

    #[test]
    fn a_unit_is_stale_until_all_its_headers_are_new() {
        let mut units = Units::new(4);
        let unit = stale(&mut units, 5);
        assert_eq!((units.stale_sequence(), units.take()), (5, Some(unit)));
        // Nothing of the next group is stored there.
        assert!(units.free_stale(unit, 9));
        assert_eq!((units.stale_sequence(), units.take()), (5, Some(unit)));
        units.is_replaced(unit);
        assert!(units.free_stale(unit, 9));
        assert_eq!(units.stale_sequence(), 9);
        let unit = units.take().unwrap();
        units.erase_later(unit, 12);
        assert_eq!((units.stale_sequence(), units.erasing_sequence()), (9, 9));
        let erase = units.next_erase(1).unwrap();
        assert_eq!(units.erased(erase.unit, true), Some(true));
        assert_eq!((units.stale_sequence(), all(&units)), (u64::MAX, vec![0, 1, 2, 3]));
    }

    #[test]
    fn stale_units_that_are_too_old_are_erased_now_and_later() {
        let mut units = Units::new(4);
        let taken: Vec<u32> = (0..3).map(|_| units.take().unwrap()).collect();
        for (&unit, first_sequence) in taken.iter().zip([3, 4, 8]) {
            assert!(units.free_stale(unit, first_sequence));
        }
        assert_eq!(units.take(), Some(taken[2]));
        let lent = units.take().unwrap();
        units.erase_stale(5);
        assert_eq!((units.erasing_sequence(), units.stale_sequence(), units.to_erase()), (3, 3, 1));
        // This one was in use. Nothing was written to it.
        units.put_free(FreeUnit { unit: lent, has_memory: false });
        assert_eq!(units.to_erase(), 2);
        assert!(units.free_stale(taken[2], 6));
        let other = units.take().unwrap();
        assert!(!units.free_stale(other, 2), "older than the trim");
        assert_eq!(all(&units), [0, 1, 2, 3]);
    }

    #[test]
    fn a_unit_that_a_late_write_may_reach_is_erased() {
        let mut units = Units::new(2);
        let unit = units.take().unwrap();
        units.is_late(unit);
        assert!(!units.free_stale(unit, 5));
        assert_eq!((units.to_erase(), units.stale_sequence()), (1, u64::MAX));
    }

    #[test]
    fn a_log_names_closed_units_that_are_stale() {
        let mut units = Units::new(4);
        units.set_log(NEXT, Log { open: Bits::all(4), ..Log::default() });
        let unit = stale(&mut units, 5);
        units.close_all_but(0);
        assert_eq!(units.begin_lists(), Some(vec![unit]));
    }

    #[test]
    fn stale_units_are_erased_before_their_memory_is_given_back() {
        let mut units = Units::new(4);
        let taken: Vec<u32> = (0..4).map(|_| units.take().unwrap()).collect();
        taken[..3].iter().for_each(|&unit| assert!(units.free_stale(unit, 5)));
        units.put_free(FreeUnit { unit: taken[3], has_memory: true });
        assert_eq!((units.take_to_trim(2), units.to_erase()), (None, 2));
        while let Some(erase) = units.next_erase(2) {
            units.erased(erase.unit, true);
        }
        assert_eq!((units.take_to_trim(2), units.to_erase()), (Some(taken[3]), 1));
    }
}
