//! What opening found that is not safe yet: blocks that no parity covers, or that were not known to
//! be safe when the former client died.
//!
//! Owns: [`FoundUnsafe`] and [`Opening`]. Such blocks are read at opening, and count if they can be
//! read. They may exist only because a unit or a row was written in part, so they are written again
//! in other groups. Rules until that is safe:
//! - A flush does not end: it covers what a reader may have seen.
//! - Groups with older copies of these blocks are kept: if the client dies again, the newer copies
//!   may be unreadable. They are let go group by group, because a full disk has no room to write
//!   everything again first.
//! - No header names a higher horizon than opening knew, as long as this lasts or a block is
//!   doubted. So the next opening reads these entries again, whether they were there or not. The
//!   same holds for a list of trims that was never safe, until it is erased.
//!
//! Left out: finding them (`opening::scan`), writing them again (`upkeep::repair`), doubts
//! (`doubt`).

use std::collections::{BTreeMap, HashMap, HashSet};

use shoal_format::ram::{GroupId, UnitHeader};

use crate::api::DonorId;
use crate::state::doubt::Doubt;
use crate::state::group::Groups;
use crate::state::place::Member;

/// A group with blocks that opening found and that are not safe yet.
pub(crate) struct Unprotected {
    /// Its place and its number.
    pub index: u32,
    pub id: GroupId,
    /// Some of its blocks were not known to be safe.
    pub is_unsure: bool,
    /// Groups (place and number) with copies of its blocks: older ones, and the group itself.
    pub holds: Vec<(u32, GroupId)>,
}

#[derive(Default)]
pub(crate) struct FoundUnsafe {
    pub groups: Vec<Unprotected>,
    /// Groups kept for blocks that are doubted.
    pub held_by_doubts: Vec<(u32, GroupId)>,
    /// Lists of ranges that were never safe and are not needed: their groups (place and number) and
    /// sequences. A newer copy of a block supersedes it, but nothing supersedes a list. The next
    /// opening would wait for a list that it took for safe.
    pub torn_notes: Vec<(u32, GroupId, u64)>,
    /// Entries with a lower sequence were known to be safe at opening.
    pub horizon: u64,
    /// Blocks with entries that may not be there.
    pub doubts: BTreeMap<u32, Doubt>,
}

impl Unprotected {
    /// Returns whether some of its blocks are not safe elsewhere yet.
    pub fn remains(&self, groups: &Groups, horizon: u64) -> bool {
        let group = &groups[self.index];
        group.id == self.id && (group.live() > 0 || group.killed() > horizon)
    }
}

/// What opening has found so far.
#[derive(Default)]
pub(crate) struct Opening {
    pub looking: HashSet<DonorId>,
    pub found: HashMap<DonorId, Vec<(u32, UnitHeader)>>,
    /// Units whose headers no longer count, to be erased after opening, with the lowest sequence in
    /// them.
    pub strays: Vec<(Member, u64)>,
}
