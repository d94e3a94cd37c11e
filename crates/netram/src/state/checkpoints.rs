//! State of checkpoints: the one that counts, and the one that is being made.
//!
//! Owns: [`Checkpoints`] and [`Round`]. Rules: superblocks name one checkpoint or none. The one that counts is known
//! here as long as a donor may still name it. Left out: making them (`checkpoint`), opening from one
//! (`opening::load`).

use std::collections::HashSet;

use shoal_format::ram::GroupId;

use crate::planted::{Bug, is_planted};
use crate::state::bits::Bits;

/// Logs of a donor: of the checkpoint that counts, and of the next one.
pub(crate) const VALID: usize = 0;

pub(crate) const NEXT: usize = 1;

/// A checkpoint that counts, or may count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Valid {
    pub number: u64,
    /// Entries from before it began are only in its pages.
    pub sequence: u64,
}

pub(crate) struct Round {
    pub number: u64,
    pub sequence: u64,
    pub first_group: GroupId,
    /// Groups that were in memory when it began.
    pub excluded: HashSet<GroupId>,
    /// Groups of its pages that are still there, by their places.
    pub vouched: Bits,
    /// Superblocks may name it.
    pub named: bool,
}

#[derive(Default)]
pub(crate) struct Checkpoints {
    /// The donors have room for them.
    pub enabled: bool,
    pub valid: Option<Valid>,
    pub round: Option<Round>,
    /// Why the disk was opened without one.
    pub unused: Option<&'static str>,
    /// Number in superblocks from now on; 0: none.
    pub named: u64,
    pub last: u64,
    pub retry_at_ns: u64,
    pub retry_delay_ns: u64,
}

impl Checkpoints {
    /// A place of a group is free.
    pub fn forget_group(&mut self, index: u32) {
        if let Some(round) = self.round.as_mut().filter(|_| !is_planted(Bug::PlaceReused)) {
            round.vouched.set(index as usize, false);
        }
    }
}
