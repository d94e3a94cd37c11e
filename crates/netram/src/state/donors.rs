//! One donor as the engine knows it: its state, its superblock, and when it last answered.
//!
//! Owns: [`Donor`]. Rules: a donor that is away keeps everything that is known of it, because it may come back as it
//! was. Left out: its units (`units`), how donors come and go (`membership`).

use crate::api::DonorInfo;
use crate::state::pace::Pace;
use crate::state::units::Units;

/// How long a donor that refused a write gets none (ns); twice as long each time.
pub(crate) const REFUSED_NS: u64 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DonorState {
    Active,
    /// Does not know yet that it belongs to the disk; takes nothing.
    Joining,
    /// It was away while the disk was opened: its units are being looked at; takes nothing.
    Returning,
    /// Being emptied; takes nothing new.
    Draining,
    /// Not to be reached. It may come back with all it held.
    Missing,
    /// Given up for good. The disk still refers to it.
    Forgotten,
    /// Empty, and not used any more.
    Drained,
    /// Not needed any more, or given up for good.
    Lost,
}

pub(crate) struct Donor {
    pub info: DonorInfo,
    pub units: Units,
    pub state: DonorState,
    /// It was to be emptied when it went away.
    pub drains: bool,
    pub born: u32,
    /// Its superblock may be anything.
    pub blank: bool,
    /// It joins, and enough donors know its birth: any later opening meets one of them.
    pub announced: bool,
    /// The epoch of the superblock it has.
    pub epoch: u64,
    /// The slot of its superblock that it has.
    pub slot: Option<usize>,
    /// It was away when the disk was opened, and its units were not looked at since.
    pub stale: bool,
    /// Its units have been looked at.
    pub scanned: bool,
    /// Counts its returns.
    pub visit: u64,
    /// When it last answered.
    pub answered_ns: u64,
    /// It refused writes: none are sent until then.
    pub refused_until_ns: u64,
    pub refusals: u32,
    pub missing_since_ns: u64,
    /// Blocks that it gave back other than it was sent.
    pub damaged: u64,
    pub pace: Pace,
    /// A small question to see its pace is on its way.
    pub is_probed: bool,
}

impl Donor {
    /// A donor of which nothing is known yet.
    pub fn new(info: DonorInfo, units: u32, born: u32) -> Donor {
        Donor {
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
    /// Will nothing of the donor ever be back?
    pub fn is_final(self) -> bool {
        matches!(self, DonorState::Lost | DonorState::Drained | DonorState::Forgotten)
    }

    /// Is the donor there, and one of the disk's or about to be?
    pub fn is_in_use(self) -> bool {
        matches!(self, DonorState::Active | DonorState::Joining | DonorState::Returning | DonorState::Draining)
    }
}

impl Donor {
    /// Nothing can be asked of it.
    pub fn is_absent(&self) -> bool {
        !self.state.is_in_use()
    }

    /// Will nothing of it ever be back?
    pub fn is_final(&self) -> bool {
        self.state.is_final()
    }

    /// Does the disk refer to it no more? Its place is free when it has no more operations to answer.
    pub fn is_over(&self) -> bool {
        matches!(self.state, DonorState::Lost | DonorState::Drained)
    }

    /// May units stay on it?
    pub fn keeps(&self) -> bool {
        matches!(self.state, DonorState::Active | DonorState::Returning)
    }

    /// Could opening look at its units, and has not?
    pub fn is_unseen(&self) -> bool {
        self.counts() && !self.is_absent() && !self.stale && !self.scanned
    }

    /// Does it hold anything of the disk?
    pub fn counts(&self) -> bool {
        use DonorState::{Active, Draining, Forgotten, Missing, Returning};
        matches!(self.state, Active | Draining | Missing | Returning | Forgotten)
    }

    /// Lowest sequence of what its units list that are still to be erased.
    pub fn pending_sequence(&self) -> u64 {
        self.erasing_sequence().min(self.units.tainted_sequence())
    }

    /// The same without units that nothing but a late write could bring back.
    pub fn erasing_sequence(&self) -> u64 {
        // The units of a donor that was not looked at may hold anything.
        let unseen = if self.counts() && !self.is_final() && !self.scanned { 0 } else { u64::MAX };
        self.units.erasing_sequence().min(unseen)
    }
}
