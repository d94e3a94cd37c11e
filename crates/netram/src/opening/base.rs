//! Merging a checkpoint with the units that were looked at.
//!
//! Owns: [`Base`]. Rules: a unit that a log names is what its header says; any other is what the pages say. Where a
//! unit of a group of the pages is neither, nothing of the group may live. Left out: reading checkpoints (`load`),
//! which of several entries counts (`scan`).

use std::collections::{HashMap, HashSet};

use shoal_format::ram::{GroupId, UnitHeader};

use crate::api::DonorId;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::bits::Bits;
use crate::state::place::{Location, Member};
use crate::state::units::Log;

/// The contents of a checkpoint.
pub(crate) struct Base {
    /// Entries with a lower sequence count only for blocks that are to be looked for.
    pub sequence: u64,
    pub horizon: u64,
    /// Live blocks of each group of the pages that no newer entry is about.
    pub live: Vec<u16>,
    /// Blocks that are to be looked for.
    pub looks: Bits,
    /// Groups of which a unit is another's by now: nothing of them may live.
    pub broken: Vec<u32>,
    /// Blocks whose data was lost.
    pub lost: Vec<u32>,
    /// Units that are none of the pages' groups'.
    pub found: HashMap<DonorId, Vec<(u32, UnitHeader)>>,
    /// Groups of the pages, and blocks of theirs that newer entries are about.
    pub touched: Vec<(u32, u32)>,
}

impl Base {
    /// Does something with this sequence count for a block?
    pub fn counts(&self, block: u32, sequence: u64) -> bool {
        sequence >= self.sequence || self.looks.get(block as usize)
    }
}

/// Pages and units that were looked at, brought together. Donors are named by their places among those of the
/// checkpoint.
struct Reconciled<'a> {
    donors: &'a [usize],
    logs: &'a [Log],
    /// The place of each donor; `usize::MAX`: none.
    place_of: Vec<usize>,
    /// Units of groups of the pages.
    owned: Vec<Bits>,
    /// Groups of the pages that a header names.
    known: HashMap<GroupId, u32>,
    /// Units of groups of the pages that were looked at, and are not found to be still theirs.
    unsure: HashSet<(usize, u32)>,
    /// Groups with such units, or with other ones than the pages say.
    changed: HashSet<u32>,
    /// Units with headers.
    used: Vec<HashSet<u32>>,
    /// Units of groups of the pages that are elsewhere by now: the unit, its place in the group, the group.
    moved: Vec<(Member, usize, u32)>,
}

/// Compares the pages with the headers that were read, and brings the groups up to date. `None`: they contradict each
/// other.
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
        owned: donors.iter().map(|&n| Bits::new(state.donors[n].units.count() as usize, false)).collect(),
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

    /// Takes over units that were moved since the pages were written.
    fn move_units(&mut self, state: &mut State) {
        for (member, at, index) in self.moved.drain(..).filter(|_| !is_planted(Bug::MovedForgotten)) {
            let group = &state.groups[index];
            let former = group.members[at];
            // One that was looked at and is still the group's stays; one that the pages alone know may have been erased.
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

    /// Takes units away from groups that do not have them any more.
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
    /// Where the pages say that a block is; from now on the newer entries say it.
    pub fn touch(&mut self, base: &mut Base, block: u32) -> Option<(u64, Location, u32)> {
        let (at, sum) = self.map.remove(block)?;
        base.live[at.group as usize] -= 1;
        base.touched.push((at.group, block));
        Some((base.sequence - 1, at, sum))
    }

    /// A block that the pages know is none; the group it was in.
    pub fn clear(&mut self, base: &mut Option<&mut Base>, block: u32) -> Option<u32> {
        let base = base.as_mut()?;
        let (at, _) = self.map.remove(block)?;
        base.live[at.group as usize] -= 1;
        Some(at.group)
    }

    /// Opening looks at everything, and nothing is known.
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
