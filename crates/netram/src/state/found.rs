//! Finds of opening that are not safe yet: blocks that no parity covers, or that were not known to be safe when the
//! former client died.
//!
//! Owns: [`FoundUnsafe`] and [`Opening`]. Such blocks are read at opening, and count if they can be had. They may be
//! there only thanks to a unit or a row that was written in part, so they are written anew, in other groups. Rules,
//! until that is safe:
//! - A flush does not end: it covers what its reader may have seen.
//! - Groups with older copies of these blocks are kept: when the client dies again, the newer copies may not be had
//!   any more. They are let go of group by group, because a full disk has no room to write everything anew first.
//! - No header says that more is safe than opening knew, nor while a block is doubted: the next opening reads these
//!   entries again, whether they were there or not. The same holds for a list of trims that was never safe, until it
//!   is erased.
//!
//! Left out: finding them (`opening::scan`), writing them anew (`upkeep::repair`), doubts (`doubt`).

use std::collections::{BTreeMap, HashMap, HashSet};

use shoal_format::ram::{GroupId, UnitHeader};

use crate::api::DonorId;
use crate::state::doubt::Doubt;
use crate::state::group::Groups;
use crate::state::place::Member;

/// A group with such blocks.
pub(crate) struct Unprotected {
    /// Its place and its number.
    pub index: u32,
    pub id: GroupId,
    /// Some of them were not known to be safe.
    pub is_unsure: bool,
    /// Groups (place and number) with copies of them, older ones and its own.
    pub holds: Vec<(u32, GroupId)>,
}

#[derive(Default)]
pub(crate) struct FoundUnsafe {
    pub groups: Vec<Unprotected>,
    /// Groups kept for blocks that are doubted.
    pub held_by_doubts: Vec<(u32, GroupId)>,
    /// Lists of ranges that were never safe and are not needed: their groups (place and number), and their sequences.
    /// Of a block a newer copy says so; of a list nothing does, and the next opening would wait for one that it took
    /// for safe.
    pub torn_notes: Vec<(u32, GroupId, u64)>,
    /// Entries with a lower sequence were known to be safe at opening.
    pub horizon: u64,
    /// Blocks with entries that may not be there.
    pub doubts: BTreeMap<u32, Doubt>,
}

impl Unprotected {
    /// Is something of it not safe elsewhere yet?
    pub fn remains(&self, groups: &Groups, horizon: u64) -> bool {
        let group = &groups[self.index];
        group.id == self.id && (group.live() > 0 || group.killed() > horizon)
    }
}

/// Finds of opening so far.
#[derive(Default)]
pub(crate) struct Opening {
    pub looking: HashSet<DonorId>,
    pub found: HashMap<DonorId, Vec<(u32, UnitHeader)>>,
    /// Units with headers that count no more, to be erased after opening, and the lowest sequences in them.
    pub strays: Vec<(Member, u64)>,
}
