//! Where things are: a unit on its donor, a group's units, a block in its group.
//!
//! Owns: [`Member`], [`Members`], [`Location`], [`Spot`]. Members are small, because a large disk has ten
//! million groups. Left out: the groups (`group`).

use std::ops::{Deref, DerefMut};

use crate::api::DonorId;

/// A unit of a group. `unit` is `u32::MAX` if there is none: never used, or lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub donor: DonorId,
    pub unit: u32,
    /// Blocks in the unit; for parity, rows.
    pub count: u8,
}

impl Member {
    pub const NONE: Member = Member { donor: 0, unit: u32::MAX, count: 0 };

    pub fn exists(&self) -> bool {
        self.unit != u32::MAX
    }

    pub fn is_on(&self, donor: DonorId) -> bool {
        self.exists() && self.donor == donor
    }
}

/// The location of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub group: u32,
    pub unit: usize,
    pub row: usize,
}

impl Location {
    pub fn spot(self) -> Spot {
        Spot { unit: self.unit, row: self.row }
    }
}

/// The location of a block within its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub unit: usize,
    pub row: usize,
}

impl Spot {
    pub fn within(self, group: u32) -> Location {
        Location { group, unit: self.unit, row: self.row }
    }
}

/// Groups of at most this width keep their units in place.
const FEW: usize = 4;

/// The units of a group: a slice that needs no allocation if they are few.
#[derive(Clone)]
pub(crate) enum Members {
    Few(u8, [Member; FEW]),
    Many(Box<[Member]>),
}

impl Default for Members {
    fn default() -> Members {
        Members::Few(0, [Member::NONE; FEW])
    }
}

impl From<Vec<Member>> for Members {
    fn from(members: Vec<Member>) -> Members {
        if members.len() > FEW {
            return Members::Many(members.into_boxed_slice());
        }
        let mut few = [Member::NONE; FEW];
        few[..members.len()].copy_from_slice(&members);
        Members::Few(members.len() as u8, few)
    }
}

impl Deref for Members {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        match self {
            Members::Few(count, members) => &members[..*count as usize],
            Members::Many(members) => members,
        }
    }
}

impl DerefMut for Members {
    fn deref_mut(&mut self) -> &mut [Member] {
        match self {
            Members::Few(count, members) => &mut members[..*count as usize],
            Members::Many(members) => members,
        }
    }
}
