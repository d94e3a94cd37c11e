//! The shortage of room, and the state of the work to relieve it.
//!
//! Owns: [`Shortage`] and [`Leveling`]. Rules: *stuck* means that there is no room and nothing in
//! progress that would make some, or only units that will be free after a while. Anything that may
//! make room ends it. Left out: making room (`clean`, `stuck`, `level`).

/// The next step for jobs that wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Nothing,
    /// The job may have room by now: ask it once more.
    AskAgain,
    Room,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stuck {
    No,
    /// Units will be free by themselves.
    ForNow,
    Yes,
}

pub(crate) struct Shortage {
    /// A job has found no room since this was last cleared.
    wanted: bool,
    /// Jobs that wait for room were asked again while nothing was in flight.
    asked: bool,
    narrow: bool,
    stuck: Stuck,
    /// Groups that the cleaner and repair are emptying.
    victims: Vec<u32>,
    cleaned_in_vain: usize,
    /// Blocks that the present donors can hold.
    room_blocks: u64,
}

impl Default for Shortage {
    fn default() -> Shortage {
        Shortage {
            wanted: false,
            asked: false,
            narrow: false,
            stuck: Stuck::No,
            victims: Vec::new(),
            cleaned_in_vain: 0,
            room_blocks: u64::MAX,
        }
    }
}

impl Shortage {
    /// Records that a job found no room.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// Returns the next step for jobs that want room. `quiet`: nothing is in flight.
    pub fn next(&mut self, quiet: bool) -> Wanted {
        let asked = std::mem::take(&mut self.asked);
        if !self.wanted || self.stuck != Stuck::No || !quiet {
            return Wanted::Nothing;
        }
        self.wanted = false;
        self.asked = !asked;
        if asked { Wanted::Room } else { Wanted::AskAgain }
    }

    /// Returns whether requests must be told that there is no room.
    pub fn is_stuck(&self) -> bool {
        self.stuck == Stuck::Yes
    }

    /// Records that there is no room, and nothing in progress that would make some.
    pub fn give_up(&mut self) {
        self.stuck = Stuck::Yes;
    }

    /// Records that there is no room now, but that units will be free after a while
    /// ([`State::awaits_units`](crate::state::State::awaits_units)).
    pub fn wait_for_units(&mut self) {
        self.stuck = Stuck::ForNow;
    }

    /// Returns whether there is no room until units are free that were awaited.
    pub fn waits_for_units(&self) -> bool {
        self.stuck == Stuck::ForNow
    }

    /// Records that a unit is free.
    pub fn has_unit(&mut self) {
        self.stuck = Stuck::No;
    }

    /// Records a change that may make room. What cleaning itself frees does not count.
    pub fn may_have_room(&mut self) {
        (self.stuck, self.cleaned_in_vain) = (Stuck::No, 0);
    }

    /// Records that a request got room.
    pub fn got_room(&mut self) {
        self.cleaned_in_vain = 0;
    }

    /// Returns whether new groups go to the donors that have room, however few, because nothing
    /// else would make room.
    pub fn is_narrow(&self) -> bool {
        self.narrow
    }

    pub fn set_narrow(&mut self, narrow: bool) {
        self.narrow = narrow;
    }

    /// Groups that the cleaner and repair are emptying.
    pub fn victims(&self) -> &[u32] {
        &self.victims
    }

    /// Records that the cleaner empties a group. [`Shortage::cleaned`] must follow.
    pub fn cleans(&mut self, victim: u32) {
        self.victims.push(victim);
        self.cleaned_in_vain += 1;
    }

    /// Records that repair empties a group. [`Shortage::cleaned`] must follow.
    pub fn empties(&mut self, victim: u32) {
        self.victims.push(victim);
    }

    pub fn cleaned(&mut self, victim: u32) {
        self.victims.retain(|&other| other != victim);
    }

    /// Number of groups cleaned since a request got room or something improved.
    pub fn cleaned_in_vain(&self) -> usize {
        self.cleaned_in_vain
    }

    /// Number of blocks that the present donors can hold.
    pub fn room_blocks(&self) -> u64 {
        self.room_blocks
    }

    pub fn set_room(&mut self, blocks: u64) {
        self.room_blocks = blocks;
    }
}

/// Where and when to search for the next unit to move from a full donor to an empty one.
#[derive(Default)]
pub(crate) struct Leveling {
    from: u32,
    at_ns: u64,
}

impl Leveling {
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.at_ns
    }

    pub fn wait_until(&mut self, at_ns: u64) {
        self.at_ns = at_ns;
    }

    /// Allows the next search at once: a unit that could not be moved may be movable now.
    pub fn try_now(&mut self) {
        self.at_ns = 0;
    }

    /// Place of the group after the last one that a unit was moved from.
    pub fn from(&self) -> u32 {
        self.from
    }

    pub fn moves(&mut self, place: u32) {
        self.from = place + 1;
    }
}
