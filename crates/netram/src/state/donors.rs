//! One donor as the engine knows it: its state, its superblock, and when it last answered.
//!
//! Owns: [`Donor`]. Rules: the engine keeps everything it knows of a donor that is away, because
//! the donor may come back as it was. Left out: its units (`units`), how donors come and go
//! (`membership`).

use crate::api::DonorInfo;
use crate::planted::{Bug, is_planted};
use crate::state::pace::Pace;
use crate::state::units::Units;

/// How long a donor that refused a write gets no writes (ns); doubles each time.
pub(crate) const REFUSED_NS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DonorState {
    Active,
    /// It does not know yet that it belongs to the disk. It takes nothing.
    Joining,
    /// It was away while the disk was opened, and its units are being scanned. It takes nothing.
    Returning,
    /// It is being emptied and takes nothing new.
    Draining,
    /// It cannot be reached. It may come back with everything it held.
    Missing,
    /// It was given up for good, but the disk still refers to it.
    Forgotten,
    /// It is empty and no longer used.
    Drained,
    /// It is no longer needed, or was given up for good.
    Lost,
}

pub(crate) struct Donor {
    pub info: DonorInfo,
    pub units: Units,
    pub state: DonorState,
    /// It was being emptied when it went away.
    pub drains: bool,
    pub born: u32,
    /// Donors with the same number other than 0 share a failure domain. `wanted_domain`: what the caller says.
    pub domain: u16,
    pub wanted_domain: u16,
    /// Its superblock may be anything.
    pub blank: bool,
    /// It is joining, and enough donors know its birth: any later opening meets one of them.
    pub announced: bool,
    /// The epoch in its superblock.
    pub epoch: u64,
    /// The slot of its newest superblock.
    pub slot: Option<usize>,
    /// It was away when the disk was opened, and its units have not been scanned since.
    pub stale: bool,
    /// Its units have been scanned.
    pub scanned: bool,
    /// Value of `Repairs::tries` when the scan of its units after its last return began.
    pub visit: u64,
    /// When it last answered.
    pub answered_ns: u64,
    /// Until then no writes are sent to it, because it refused some.
    pub refused_until_ns: u64,
    pub refusals: u32,
    pub missing_since_ns: u64,
    /// Blocks that it returned with other contents than it was sent.
    pub damaged: u64,
    pub pace: Pace,
    /// A small read to measure its pace is in flight.
    pub is_probed: bool,
}

impl Donor {
    /// Makes a donor of which nothing is known yet.
    pub fn new(info: DonorInfo, units: u32, born: u32) -> Donor {
        Donor {
            domain: info.domain,
            wanted_domain: info.domain,
            info,
            units: Units::new(units),
            state: DonorState::Active,
            drains: false,
            born,
            blank: true,
            announced: false,
            epoch: 0,
            slot: None,
            stale: false,
            scanned: true,
            visit: 0,
            answered_ns: 0,
            refused_until_ns: 0,
            refusals: 0,
            missing_since_ns: 0,
            damaged: 0,
            pace: Pace::default(),
            is_probed: false,
        }
    }
}

impl DonorState {
    /// Returns whether nothing of the donor will ever come back.
    pub fn is_final(self) -> bool {
        matches!(self, DonorState::Lost | DonorState::Drained | DonorState::Forgotten)
    }

    /// Returns whether the donor is there, and belongs to the disk or is about to.
    pub fn is_in_use(self) -> bool {
        matches!(self, DonorState::Active | DonorState::Joining | DonorState::Returning | DonorState::Draining)
    }
}

impl Donor {
    /// Returns whether the donor cannot be asked anything.
    pub fn is_absent(&self) -> bool {
        !self.state.is_in_use()
    }

    /// Returns whether nothing of it will ever come back.
    pub fn is_final(&self) -> bool {
        self.state.is_final()
    }

    /// Returns whether the disk no longer refers to it. Its place is free once it owes no answers.
    pub fn is_over(&self) -> bool {
        matches!(self.state, DonorState::Lost | DonorState::Drained)
    }

    /// Returns whether units may stay on it.
    pub fn keeps(&self) -> bool {
        matches!(self.state, DonorState::Active | DonorState::Returning)
    }

    /// Returns whether opening could scan its units but has not.
    pub fn is_unseen(&self) -> bool {
        self.counts() && !self.is_absent() && !self.stale && !self.scanned
    }

    /// Returns whether it may hold anything of the disk.
    pub fn counts(&self) -> bool {
        use DonorState::{Active, Draining, Forgotten, Missing, Returning};
        matches!(self.state, Active | Draining | Missing | Returning | Forgotten)
    }

    /// Lowest sequence listed by units that are still to be erased, that a late write could bring
    /// back, or whose headers stay until another group's replace them.
    pub fn pending_sequence(&self) -> u64 {
        let stale = if is_planted(Bug::TrimmedKept) { u64::MAX } else { self.units.stale_sequence() };
        self.erasing_sequence().min(self.units.tainted_sequence()).min(stale)
    }

    /// Lowest sequence listed by units that are still to be erased.
    pub fn erasing_sequence(&self) -> u64 {
        // The units of a donor that was not scanned may hold anything.
        let unseen = if self.counts() && !self.is_final() && !self.scanned { 0 } else { u64::MAX };
        self.units.erasing_sequence().min(unseen)
    }
}
