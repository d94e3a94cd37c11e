//! The work of repair, done and still to do.
//!
//! Owns: [`Repairs`]: the queue of groups, whether what was moved is safe, when failed work is
//! tried again, and waiting drains. Rules: repair is over when the queue has been worked through
//! and a flush that began after the last move has succeeded. Left out: which groups need repair
//! (`retry`), the work itself (`repair`, `drain`).

use std::collections::VecDeque;

use shoal_format::ram::GroupId;

/// Groups repaired at the same time.
pub(crate) const REPAIRED_AT_ONCE: usize = 8;
/// Delay before a failed repair is tried again (ns); doubles each time.
const RETRY_NS: u64 = 1_000_000_000;
const RETRY_MAX_NS: u64 = 64_000_000_000;

pub(crate) struct Repairs {
    /// Groups that lost a unit or must leave a donor: place and number.
    queue: VecDeque<(u32, GroupId)>,
    total: u64,
    done: u64,
    began_ns: u64,
    /// Groups that are being repaired.
    running: usize,
    /// The blocks that repair moved are safe at their new places.
    safe: bool,
    /// Blocks were moved after the flush that repair waits for had begun.
    moved: bool,
    retry_at_ns: Option<u64>,
    retry_delay_ns: u64,
    tries: u64,
    /// Groups that drains are emptying.
    emptied: usize,
    /// A group of a donor being drained waits for room.
    drain_waits: bool,
}

impl Default for Repairs {
    fn default() -> Repairs {
        Repairs {
            queue: VecDeque::new(),
            total: 0,
            done: 0,
            began_ns: 0,
            running: 0,
            safe: true,
            moved: false,
            retry_at_ns: None,
            retry_delay_ns: RETRY_NS,
            tries: 0,
            emptied: 0,
            drain_waits: false,
        }
    }
}

impl Repairs {
    /// Groups that needed repair since the last loss or drain, how many are done, and when the
    /// first was queued (ns).
    pub fn progress(&self) -> (u64, u64, u64) {
        (self.total, self.done, self.began_ns)
    }

    /// Returns whether everything that was queued has been tried.
    pub fn is_through(&self) -> bool {
        self.queue.is_empty() && self.done == self.total
    }

    /// Returns whether everything has been tried and is safe where it is now.
    pub fn is_over(&self) -> bool {
        self.safe && self.is_through()
    }

    pub fn is_running(&self) -> bool {
        self.done < self.total || !self.safe
    }

    /// Replaces the queue: only these groups wait for repair.
    pub fn queue(&mut self, groups: impl Iterator<Item = (u32, GroupId)>, now_ns: u64) {
        if self.done + self.queue.len() as u64 == self.total {
            (self.done, self.total, self.began_ns) = (0, 0, now_ns);
        } else {
            self.total -= self.queue.len() as u64;
        }
        self.queue.clear();
        self.queue.extend(groups);
        self.total += self.queue.len() as u64;
        self.moves();
    }

    /// Queues one more group.
    pub fn add(&mut self, group: (u32, GroupId), now_ns: u64) {
        if self.is_through() {
            (self.done, self.total, self.began_ns) = (0, 0, now_ns);
        }
        self.queue.push_back(group);
        self.total += 1;
        self.moves();
    }

    /// Takes the next group, if another one may be repaired at the same time. [`Repairs::ended`]
    /// must follow.
    pub fn next(&mut self) -> Option<(u32, GroupId)> {
        if self.running == REPAIRED_AT_ONCE {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.running += 1;
        Some(next)
    }

    pub fn ended(&mut self) {
        self.running -= 1;
        self.done += 1;
    }

    /// Records that repair moved blocks: they are neither safe nor covered by a flush that has
    /// begun.
    pub fn moves(&mut self) {
        (self.safe, self.moved) = (false, true);
    }

    /// Returns whether only a flush is missing.
    pub fn wants_flush(&self) -> bool {
        !self.safe && self.is_through()
    }

    pub fn flush_begins(&mut self) {
        self.moved = false;
    }

    /// Records the end of the flush that was missing. Returns whether everything is safe now.
    pub fn flush_ended(&mut self) -> bool {
        self.safe = self.is_through() && !self.moved;
        self.safe
    }

    /// Number of tries. It grows when failed work is tried again: a donor came back, joined or was
    /// forgotten, or time has passed.
    pub fn tries(&self) -> u64 {
        self.tries
    }

    /// Lets failed work be tried again now.
    pub fn try_again(&mut self) {
        self.tries += 1;
        self.retry_at_ns = None;
    }

    /// Makes the next tries come soon, because something has improved.
    pub fn hope(&mut self) {
        self.retry_delay_ns = RETRY_NS;
    }

    /// Schedules another attempt, because this one was incomplete.
    pub fn retry_later(&mut self, now_ns: u64) {
        if self.retry_at_ns.is_none() {
            self.retry_at_ns = Some(now_ns + self.retry_delay_ns);
            self.retry_delay_ns = (2 * self.retry_delay_ns).min(RETRY_MAX_NS);
        }
    }

    /// Schedules another attempt at this time at the latest.
    pub fn retry_by(&mut self, at_ns: u64) {
        self.retry_at_ns = Some(self.retry_at_ns.map_or(at_ns, |other| other.min(at_ns)));
    }

    pub fn is_retry_due(&self, now_ns: u64) -> bool {
        self.retry_at_ns.is_some_and(|at| now_ns >= at)
    }

    /// Returns whether a retry is scheduled and none has begun since `tries` was read.
    pub fn waits_for_retry(&self, tries: u64) -> bool {
        self.retry_at_ns.is_some() && self.tries == tries
    }

    /// Groups that drains are emptying.
    pub fn emptied(&self) -> usize {
        self.emptied
    }

    /// Counts a group that a drain begins to empty. [`Repairs::emptying_ended`] must follow.
    pub fn emptying_begins(&mut self) {
        self.emptied += 1;
    }

    pub fn emptying_ended(&mut self) {
        self.emptied -= 1;
    }

    pub fn drain_waits(&self) -> bool {
        self.drain_waits
    }

    /// Records that a drain waits for room. Returns whether none did before.
    pub fn drain_wants_room(&mut self) -> bool {
        !std::mem::replace(&mut self.drain_waits, true)
    }

    pub fn no_drain_waits(&mut self) {
        self.drain_waits = false;
    }
}
