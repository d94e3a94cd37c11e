//! State of checkpoints: the one that counts, and the one that is being made.
//!
//! Owns: [`Checkpoints`] and [`Round`]. Rules: superblocks name one checkpoint or none. The
//! checkpoint that counts is kept here as long as a donor may still name it. Left out: making
//! checkpoints (`checkpoint`), opening from one (`opening::load`).

use std::collections::HashSet;

use shoal_format::ram::GroupId;

use crate::planted::{Bug, is_planted};
use crate::state::bits::Bits;

/// Indices of a donor's logs: of the checkpoint that counts, and of the next one.
pub(crate) const VALID: usize = 0;

pub(crate) const NEXT: usize = 1;

/// A checkpoint that counts or may count.
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
    /// Groups that were in memory when the round began.
    pub excluded: HashSet<GroupId>,
    /// Groups of its pages that are still there, by place.
    pub vouched: Bits,
    /// Superblocks may name it.
    pub named: bool,
}

#[derive(Default)]
pub(crate) struct Checkpoints {
    /// The donors have room for checkpoints.
    pub enabled: bool,
    pub valid: Option<Valid>,
    pub round: Option<Round>,
    /// Why the disk was opened without a checkpoint.
    pub unused: Option<&'static str>,
    /// The checkpoint that superblocks name from now on; 0: none.
    pub named: u64,
    pub last: u64,
    pub retry_at_ns: u64,
    pub retry_delay_ns: u64,
}

impl Checkpoints {
    /// Removes a group whose place has become free.
    pub fn forget_group(&mut self, index: u32) {
        if let Some(round) = self.round.as_mut().filter(|_| !is_planted(Bug::PlaceReused)) {
            round.vouched.set(index as usize, false);
        }
    }
}
