//! The shortage of room, and the state of the work against it.
//!
//! Owns: [`Shortage`] and [`Leveling`]. Rules: *stuck* means that there is no room and nothing on its way that would
//! make some, or none but units that are free after a while; whatever may make room ends that. Left out: making room (`clean`, `stuck`, `level`).

/// The next step for jobs that wait for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    Nothing,
    /// The job may have got room since: it is asked once more.
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
    /// A job found no room since this was last cleared.
    wanted: bool,
    /// Jobs that wait for room were asked again, with nothing on its way.
    asked: bool,
    narrow: bool,
    stuck: Stuck,
    /// Groups that the cleaner empties.
    victims: Vec<u32>,
    cleaned_in_vain: usize,
    /// Blocks that the donors that are there can hold.
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
    /// A job found no room.
    pub fn want(&mut self) {
        self.wanted = true;
    }

    /// The next step for jobs that want room; `quiet`: nothing is on its way.
    pub fn next(&mut self, quiet: bool) -> Wanted {
        let asked = std::mem::take(&mut self.asked);
        if !self.wanted || self.stuck != Stuck::No || !quiet {
            return Wanted::Nothing;
        }
        self.wanted = false;
        self.asked = !asked;
        if asked { Wanted::Room } else { Wanted::AskAgain }
    }

    /// Are requests to be told that there is no room?
    pub fn is_stuck(&self) -> bool {
        self.stuck == Stuck::Yes
    }

    /// There is no room, and nothing on its way that would make some.
    pub fn give_up(&mut self) {
        self.stuck = Stuck::Yes;
    }

    /// There is no room now, but units in quarantine will be free after a while.
    pub fn wait_for_units(&mut self) {
        self.stuck = Stuck::ForNow;
    }

    /// A unit is free.
    pub fn has_unit(&mut self) {
        self.stuck = Stuck::No;
    }

    /// Something has changed that may make room; what cleaning itself frees does not count.
    pub fn may_have_room(&mut self) {
        (self.stuck, self.cleaned_in_vain) = (Stuck::No, 0);
    }

    /// A request got room.
    pub fn got_room(&mut self) {
        self.cleaned_in_vain = 0;
    }

    /// New groups go to the donors that have room, however few: nothing else would make some.
    pub fn is_narrow(&self) -> bool {
        self.narrow
    }

    pub fn set_narrow(&mut self, narrow: bool) {
        self.narrow = narrow;
    }

    /// Groups that the cleaner empties.
    pub fn victims(&self) -> &[u32] {
        &self.victims
    }

    /// The cleaner empties a group. [`Shortage::cleaned`] must follow.
    pub fn cleans(&mut self, victim: u32) {
        self.victims.push(victim);
        self.cleaned_in_vain += 1;
    }

    pub fn cleaned(&mut self, victim: u32) {
        self.victims.retain(|&other| other != victim);
    }

    /// Groups cleaned since a request got room, or something changed for the better.
    pub fn cleaned_in_vain(&self) -> usize {
        self.cleaned_in_vain
    }

    /// Blocks that the donors that are there can hold.
    pub fn room_blocks(&self) -> u64 {
        self.room_blocks
    }

    pub fn set_room(&mut self, blocks: u64) {
        self.room_blocks = blocks;
    }
}

/// Where the next unit to move for evenness is looked for, and when.
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

    /// A unit that could not be moved may be movable now.
    pub fn try_now(&mut self) {
        self.at_ns = 0;
    }

    /// The place of the group after the last one that was moved.
    pub fn from(&self) -> u32 {
        self.from
    }

    pub fn moves(&mut self, place: u32) {
        self.from = place + 1;
    }
}
