//! The progress of scrubs: what was asked for, what is running, and when the last one ended.
//!
//! Owns: [`Scrubs`]. Rules: one scrub at a time. A requested scrub begins at once and runs beside
//! requests. A scrub that is due by time takes steps only in idle gaps. Open groups are sealed
//! first, because their contents on donors are checked, too. Groups written since then are left
//! out. Left out: checking groups (`scrub`).

use crate::state::State;
use crate::status::{LastScrub, ScrubProgress};

/// Time between two scrubs that were not requested (ns): a day.
const EVERY_NS: u64 = 86_400_000_000_000;

#[derive(Default)]
pub(crate) struct Scrubs {
    running: Option<Running>,
    asked: bool,
    /// When the last scrub ended, or the disk was opened (ns).
    last_ns: u64,
    completed: u64,
    /// Damaged blocks that the last scrub found.
    found: u64,
}

#[derive(Clone, Copy)]
struct Running {
    asked: bool,
    /// Open groups have been sealed.
    closed: bool,
    /// Place of the next group, and the end of the range.
    next: u32,
    end: u32,
    /// Damaged blocks known when it began.
    known: u64,
}

impl Scrubs {
    /// Starts counting time when the disk is opened.
    pub fn opened(now_ns: u64) -> Scrubs {
        Scrubs { last_ns: now_ns, ..Scrubs::default() }
    }

    /// Requests a scrub now. Returns false if a requested one is already under way.
    pub fn ask(&mut self) -> bool {
        let is_new = !self.asked && !self.running.is_some_and(|running| running.asked);
        self.asked = true;
        is_new
    }

    /// Progress of the running scrub.
    pub fn progress(&self) -> Option<ScrubProgress> {
        self.running.map(|running| ScrubProgress {
            groups_done: running.next.into(),
            groups: if running.closed { running.end.into() } else { 0 },
        })
    }

    /// Number of scrubs that have ended.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// The last scrub since opening.
    pub fn last(&self, now_ns: u64) -> Option<LastScrub> {
        (self.completed > 0).then(|| LastScrub { ns_ago: now_ns.saturating_sub(self.last_ns), found: self.found })
    }

    fn is_wanted(&self, now_ns: u64) -> bool {
        self.asked || now_ns.saturating_sub(self.last_ns) >= EVERY_NS
    }
}

/// A step of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Seal the open groups.
    Close,
    /// Check the group at this place.
    Look(u32),
}

impl State {
    /// Returns the next step, if one is due.
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
        self.room().is_idle() && !self.repairs.is_running()
    }
}
