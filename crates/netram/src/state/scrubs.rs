//! The progress of scrubs: what is asked for, what is under way, when the last one ended.
//!
//! Owns: [`Scrubs`]. Rules: one scrub at a time. One that somebody asked for begins at once and goes on beside requests; one
//! that is due by time takes a step in idle gaps only. Open groups are sealed first: what they hold on donors is looked at, too.
//! Groups written since are left out. Left out: looking at
//! groups (`scrub`).

use crate::state::State;

/// Time between two scrubs that nobody asked for (ns): a day.
const EVERY_NS: u64 = 86_400_000_000_000;

#[derive(Default)]
pub(crate) struct Scrubs {
    running: Option<Running>,
    asked: bool,
    /// When the last one ended, or the disk was opened.
    last_ns: u64,
    completed: u64,
    /// What the last one found.
    found: u64,
}

#[derive(Clone, Copy)]
struct Running {
    asked: bool,
    /// Open groups are sealed.
    closed: bool,
    /// Place of the next group, and behind the last one.
    next: u32,
    end: u32,
    /// Damaged blocks known when it began.
    known: u64,
}

impl Scrubs {
    /// The disk is being opened.
    pub fn opened(now_ns: u64) -> Scrubs {
        Scrubs { last_ns: now_ns, ..Scrubs::default() }
    }

    /// Somebody wants one now. False if that is under way already.
    pub fn ask(&mut self) -> bool {
        let is_new = !self.asked && !self.running.is_some_and(|running| running.asked);
        self.asked = true;
        is_new
    }

    /// Groups that were looked at, and all of them, of the one under way.
    pub fn progress(&self) -> Option<(u64, u64)> {
        self.running.map(|running| (running.next.into(), if running.closed { running.end.into() } else { 0 }))
    }

    /// How many have ended.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// When the last one ended, and what it found; of those completed since the disk was opened.
    pub fn last(&self) -> Option<(u64, u64)> {
        (self.completed > 0).then_some((self.last_ns, self.found))
    }

    fn is_wanted(&self, now_ns: u64) -> bool {
        self.asked || now_ns.saturating_sub(self.last_ns) >= EVERY_NS
    }
}

/// A step of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Open groups are to be sealed.
    Close,
    /// The group at this place is to be looked at.
    Look(u32),
}

impl State {
    /// The next step, if one is due.
    pub fn next_to_scrub(&mut self) -> Option<Step> {
        if !self.ready || self.failure.is_some() {
            return None;
        }
        let (now, known) = (self.now_ns, self.damage.found);
        if self.scrubs.running.is_none() && self.scrubs.is_wanted(now) {
            self.scrubs.running = Some(Running { asked: false, closed: false, next: 0, end: 0, known });
        }
        let (idle, places) = (self.is_idle_for_scrub(), self.groups.places());
        let scrubs = &mut self.scrubs;
        let running = scrubs.running.as_mut()?;
        running.asked |= std::mem::take(&mut scrubs.asked);
        if !running.asked && !idle {
            return None;
        }
        if !std::mem::replace(&mut running.closed, true) {
            running.end = u32::MAX;
            return Some(Step::Close);
        }
        running.end = running.end.min(places);
        let next = running.next;
        if next >= running.end {
            (scrubs.last_ns, scrubs.found, scrubs.completed) = (now, known - running.known, scrubs.completed + 1);
            scrubs.running = None;
            return None;
        }
        running.next += 1;
        Some(Step::Look(next))
    }

    fn is_idle_for_scrub(&self) -> bool {
        self.is_idle() && !self.repairs.is_running()
    }
}
