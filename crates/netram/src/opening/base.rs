//! Merging a checkpoint with the units that were looked at.
//!
//! Owns: [`Base`]. Rules: a unit that a log names is what its header says; any other is what the
//! pages say. A group of the pages loses a unit that a log names and whose header does not name the
//! group. Then none of the group's blocks may live. Left out: reading checkpoints (`load`), which
//! of several entries counts (`scan`).

use std::collections::{HashMap, HashSet};

use shoal_format::ram::{GroupId, UnitHeader};

use crate::api::DonorId;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::bits::Bits;
use crate::state::map::Mapped;
use crate::state::place::{Location, Member};
use crate::state::units::Log;

/// The contents of a checkpoint.
pub(crate) struct Base {
    /// Entries with a lower sequence count only for blocks that must be looked for.
    pub sequence: u64,
    pub horizon: u64,
    /// Live blocks of each group of the pages, without blocks that have newer entries.
    pub live: Vec<u16>,
    /// Blocks that must be looked for.
    pub looks: Bits,
    /// Groups with a unit that is no longer theirs: none of their blocks may live.
    pub broken: Vec<u32>,
    /// Blocks whose data was lost.
    pub lost: Vec<u32>,
    /// Units that belong to no group of the pages.
    pub found: HashMap<DonorId, Vec<(u32, UnitHeader)>>,
    /// Blocks of groups of the pages that have newer entries.
    pub touched: Vec<Touched>,
}

/// A block that the pages place in a group, and that a newer entry decides about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Touched {
    pub group: u32,
    pub block: u32,
}

impl Base {
    /// Returns whether an entry with this sequence counts for a block.
    pub fn counts(&self, block: u32, sequence: u64) -> bool {
        sequence >= self.sequence || self.looks.get(block as usize)
    }
}

/// Pages merged with the units that were looked at. Donors are named by their place among those of
/// the checkpoint.
struct Reconciled<'a> {
    donors: &'a [usize],
    logs: &'a [Log],
    /// Place of each donor; `usize::MAX`: none.
    place_of: Vec<usize>,
    /// Units that belong to groups of the pages.
    owned: Vec<Bits>,
    /// Groups of the pages that a header names.
    known: HashMap<GroupId, u32>,
    /// Units of groups of the pages that a log names and whose header has not confirmed the group.
    unsure: HashSet<(usize, u32)>,
    /// Groups with unconfirmed units, or with other units than the pages say.
    changed: HashSet<u32>,
    /// Units with headers.
    used: Vec<HashSet<u32>>,
    /// Units of groups of the pages that have moved: the new unit, its place in the group, the
    /// group.
    moved: Vec<(Member, usize, u32)>,
}

/// Compares the pages with the headers that were read, and updates the groups. `None`: they
/// contradict each other.
pub(crate) fn reconcile(
    state: &mut State,
    base: &mut Base,
    donors: &[usize],
    logs: &[Log],
    found: Vec<Vec<(u32, UnitHeader)>>,
) -> Option<()> {
    let mut place_of = vec![usize::MAX; state.donors.len()];
    donors.iter().enumerate().for_each(|(place, &donor)| place_of[donor] = place);
    let mut all = Reconciled {
        donors,
        logs,
        place_of,
        owned: donors.iter().map(|&n| Bits::new(state.donors[n].units.count() as usize)).collect(),
        known: HashMap::new(),
        unsure: HashSet::new(),
        changed: HashSet::new(),
        used: vec![HashSet::new(); donors.len()],
        moved: Vec::new(),
    };
    let ids: HashSet<GroupId> = found.iter().flatten().map(|(_, header)| header.group).collect();
    all.note_groups(state, &ids)?;
    all.compare(state, base, found)?;
    all.move_units(state);
    all.break_groups(state, base);
    for (place, &number) in donors.iter().enumerate() {
        let is_open = |unit: u32| logs[place].open.get(unit as usize);
        let is_free = |unit: u32| is_open(unit) && !all.used[place].contains(&unit);
        let is_closed = |unit: u32| !is_open(unit) && !all.owned[place].get(unit as usize);
        state.donors[number].units.found(is_free, is_closed);
    }
    Some(())
}

impl Reconciled<'_> {
    fn note_groups(&mut self, state: &State, ids: &HashSet<GroupId>) -> Option<()> {
        for (index, group) in state.groups.iter() {
            if ids.contains(&group.id) && self.known.insert(group.id, index).is_some() {
                return None;
            }
            for member in group.members.iter().filter(|member| member.exists()) {
                let place = *self.place_of.get(member.donor as usize).filter(|&&place| place != usize::MAX)?;
                if self.logs[place].open.get(member.unit as usize) {
                    self.unsure.insert((place, member.unit));
                    self.changed.insert(index);
                }
                self.owned[place].set(member.unit as usize, true);
            }
        }
        Some(())
    }

    /// Compares headers with the groups of the pages.
    fn compare(&mut self, state: &State, base: &mut Base, found: Vec<Vec<(u32, UnitHeader)>>) -> Option<()> {
        for (place, units) in found.into_iter().enumerate() {
            let donor = self.donors[place] as DonorId;
            for (unit, header) in units {
                self.used[place].insert(unit);
                let Some(&index) = self.known.get(&header.group) else {
                    base.found.entry(donor).or_default().push((unit, header));
                    continue;
                };
                let group = &state.groups[index];
                let rows = header.lists.iter().map(Vec::len).max().unwrap_or(0);
                let fits = group.data() == header.data as usize
                    && group.members.len() == group.data() + header.parity as usize
                    && group.members[header.member as usize].count as usize == rows;
                if !fits {
                    return None;
                }
                let own = group.members[header.member as usize];
                if (own.donor, own.unit) == (donor, unit) {
                    self.unsure.remove(&(place, unit));
                } else {
                    self.moved.push((Member { donor, unit, count: own.count }, header.member as usize, index));
                }
            }
        }
        Some(())
    }

    /// Adopts units that were moved since the pages were written.
    fn move_units(&mut self, state: &mut State) {
        for (member, at, index) in self.moved.drain(..).filter(|_| !is_planted(Bug::MovedForgotten)) {
            let group = &state.groups[index];
            let former = group.members[at];
            // A former unit that was looked at and still belongs to the group stays. One known only
            // from the pages may have been erased.
            let place = self.place_of[former.donor as usize];
            let is_open = || self.logs.get(place).is_some_and(|log| log.open.get(former.unit as usize));
            let is_others = self.unsure.contains(&(place, former.unit));
            let stays = former.exists() && is_open() && !is_others;
            let first_sequence = group.first_sequence;
            let stray = if stays { Some(member) } else { Some(former).filter(|former| former.exists() && !is_others) };
            state.opening.strays.extend(stray.map(|stray| (stray, first_sequence)));
            if !stays {
                state.groups[index].members[at] = member;
            }
            self.changed.insert(index);
        }
    }

    /// Removes units from groups that no longer have them.
    fn break_groups(&self, state: &mut State, base: &mut Base) {
        for &index in &self.changed {
            for member in state.groups[index].members.iter_mut() {
                if member.exists() && self.unsure.contains(&(self.place_of[member.donor as usize], member.unit)) {
                    *member = Member::NONE;
                    base.broken.push(index);
                }
            }
        }
    }
}

impl State {
    /// Removes a block from the map, because newer entries decide about it. Returns where the pages
    /// place it.
    pub fn touch(&mut self, base: &mut Base, block: u32) -> Option<(u64, Location, u32)> {
        let Mapped { at, sum } = self.map.remove(block)?;
        base.live[at.group as usize] -= 1;
        base.touched.push(Touched { group: at.group, block });
        Some((base.sequence - 1, at, sum))
    }

    /// Clears a block that the pages place in a group. Returns that group.
    pub fn clear(&mut self, base: &mut Option<&mut Base>, block: u32) -> Option<u32> {
        let base = base.as_mut()?;
        let at = self.map.remove(block)?.at;
        base.live[at.group as usize] -= 1;
        Some(at.group)
    }

    /// Forgets everything, because opening looks at all units.
    pub fn forget_map(&mut self) {
        self.forget_groups();
        self.map.reset(self.map.blocks());
        self.found = Default::default();
        self.checkpoints.valid = None;
        self.checkpoints.named = 0;
        for donor in self.donors.iter_mut().filter(|donor| donor.counts() && !donor.stale) {
            donor.scanned = false;
            donor.units.forget_logs();
        }
    }
}
