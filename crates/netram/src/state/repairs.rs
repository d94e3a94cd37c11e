//! The work of repair, done and to be done.
//!
//! Owns: [`Repairs`]: the queue of groups, whether what was moved is safe, when what failed is tried again, and
//! drains that wait. Rules: repair is over when the queue is through and a flush that began after the last move has
//! ended. Left out: which groups need repair (`retry`), the work itself (`repair`, `drain`).

use std::collections::VecDeque;

use shoal_format::ram::GroupId;

/// Groups repaired at the same time.
const AT_ONCE: usize = 8;
/// After what time a repair that failed is tried again (ns); twice as long each time.
const RETRY_NS: u64 = 1_000_000_000;
const RETRY_MAX_NS: u64 = 64_000_000_000;

pub(crate) struct Repairs {
    /// Groups that lost a unit, or are to leave a donor: place and number.
    queue: VecDeque<(u32, GroupId)>,
    total: u64,
    done: u64,
    began_ns: u64,
    /// Groups that are being repaired.
    running: usize,
    /// The blocks that repair moved are safe where they are now.
    safe: bool,
    /// More was moved since the flush began that makes it safe.
    moved: bool,
    retry_at_ns: Option<u64>,
    retry_delay_ns: u64,
    tries: u64,
    /// Groups that drains are emptying.
    emptied: usize,
    /// A group of a donor that is to leave waits for room.
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
    /// Groups that needed repair since the last loss or drain, those done, and when the first was queued (ns).
    pub fn progress(&self) -> (u64, u64, u64) {
        (self.total, self.done, self.began_ns)
    }

    /// Has everything that was queued been tried?
    pub fn is_through(&self) -> bool {
        self.queue.is_empty() && self.done == self.total
    }

    /// Is everything tried, and safe where it is now?
    pub fn is_over(&self) -> bool {
        self.safe && self.is_through()
    }

    pub fn is_running(&self) -> bool {
        self.done < self.total || !self.safe
    }

    /// These wait for repair, and no others.
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

    /// One more waits for repair.
    pub fn add(&mut self, group: (u32, GroupId), now_ns: u64) {
        if self.is_through() {
            (self.done, self.total, self.began_ns) = (0, 0, now_ns);
        }
        self.queue.push_back(group);
        self.total += 1;
        self.moves();
    }

    /// The next group to repair, if another one may be under repair. [`Repairs::ended`] must follow.
    pub fn next(&mut self) -> Option<(u32, GroupId)> {
        if self.running == AT_ONCE {
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

    /// The blocks that repair moves are not safe yet, nor covered by a flush that has begun.
    pub fn moves(&mut self) {
        (self.safe, self.moved) = (false, true);
    }

    /// Is only a flush missing?
    pub fn wants_flush(&self) -> bool {
        !self.safe && self.is_through()
    }

    pub fn flush_begins(&mut self) {
        self.moved = false;
    }

    /// That flush has ended. True if all is safe now.
    pub fn flush_ended(&mut self) -> bool {
        self.safe = self.is_through() && !self.moved;
        self.safe
    }

    /// Grows when what could not be done is tried again: a donor came back, joined or was forgotten, or time has
    /// passed.
    pub fn tries(&self) -> u64 {
        self.tries
    }

    /// Tries again now what could not be done.
    pub fn try_again(&mut self) {
        self.tries += 1;
        self.retry_at_ns = None;
    }

    /// Something has changed for the better: the next tries come soon.
    pub fn hope(&mut self) {
        self.retry_delay_ns = RETRY_NS;
    }

    /// Repair could not do everything: once more later.
    pub fn retry_later(&mut self, now_ns: u64) {
        if self.retry_at_ns.is_none() {
            self.retry_at_ns = Some(now_ns + self.retry_delay_ns);
            self.retry_delay_ns = (2 * self.retry_delay_ns).min(RETRY_MAX_NS);
        }
    }

    /// Once more at this time at the latest.
    pub fn retry_by(&mut self, at_ns: u64) {
        self.retry_at_ns = Some(self.retry_at_ns.map_or(at_ns, |other| other.min(at_ns)));
    }

    pub fn is_retry_due(&self, now_ns: u64) -> bool {
        self.retry_at_ns.is_some_and(|at| now_ns >= at)
    }

    /// Will something be tried again, and was it not since it was tried for the `tries`th time?
    pub fn waits_for_retry(&self, tries: u64) -> bool {
        self.retry_at_ns.is_some() && self.tries == tries
    }

    /// Groups that drains are emptying.
    pub fn emptied(&self) -> usize {
        self.emptied
    }

    /// A drain begins to empty a group. [`Repairs::emptying_ended`] must follow.
    pub fn emptying_begins(&mut self) {
        self.emptied += 1;
    }

    pub fn emptying_ended(&mut self) {
        self.emptied -= 1;
    }

    pub fn drain_waits(&self) -> bool {
        self.drain_waits
    }

    /// A drain waits for room. True if none did before.
    pub fn drain_wants_room(&mut self) -> bool {
        !std::mem::replace(&mut self.drain_waits, true)
    }

    pub fn no_drain_waits(&mut self) {
        self.drain_waits = false;
    }
}
