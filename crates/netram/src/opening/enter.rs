//! Entering the units of one group that were found on the donors.
//!
//! Rules: if several units claim one place, the one that lists more counts, and of equal ones one in a
//! failure domain of its own; parity units of an older version do not. A block that its own unit does not have counts only where its row can be
//! computed. Units that do not count are strays, to be erased. Left out: which of several copies of
//! a block counts (`scan`).

use shoal_format::ram;
use shoal_format::ram::{GroupId, UnitEntry, UnitHeader};

use crate::api::DonorId;
use crate::membership::headers::first_said;
use crate::opening::base::Base;
use crate::planted::{Bug, is_planted};
use crate::spread::Numbered;
use crate::state::State;
use crate::state::group::{Group, Incomplete};
use crate::state::place::{Location, Member};

/// A unit that was found.
pub(crate) struct FoundUnit {
    pub donor: DonorId,
    pub unit: u32,
    pub header: UnitHeader,
}

/// Sequence, place and sum of the newest copy of each block so far.
pub(crate) type Newest = Numbered<u32, (u64, Location, u32)>;

/// The units of a group that count.
struct Chosen {
    data: usize,
    parity: usize,
    members: Vec<Member>,
    /// Entries that each data unit itself lists.
    own: Vec<Vec<UnitEntry>>,
    /// Entries that the parity units list; `None`: there is no parity unit.
    listed: Option<Vec<Vec<UnitEntry>>>,
}

/// Enters a group's units, records its blocks where they are the newest, and lists the entries that
/// must be looked at.
pub(crate) fn enter(
    state: &mut State,
    id: GroupId,
    found: Vec<FoundUnit>,
    horizon: u64,
    base: Option<&Base>,
    newest: &mut Newest,
    entries: &mut Vec<(Location, UnitEntry)>,
) {
    let Some(mut chosen) = choose(state, found) else { return };
    let lists = chosen.combine();
    let incomplete = !chosen.is_whole(&lists, horizon);
    // Reserve its place now, for the locations below.
    let index = state.groups.insert(Group::new(id, chosen.data, Vec::new()));
    let mut first_sequence = u64::MAX;
    let mut notes = Vec::new();
    for (unit, list) in lists.iter().enumerate() {
        for (row, entry) in list.iter().enumerate() {
            let at = Location { group: index, unit, row };
            first_sequence = first_sequence.min(entry.sequence);
            state.meets_sequence(entry.sequence);
            if ram::is_note(entry.block) {
                notes.push(at.spot());
                entries.push((at, *entry));
                continue;
            }
            // Entries from before the checkpoint count only where its pages say to look.
            let counts = base.as_ref().is_none_or(|base| base.counts(entry.block, entry.sequence));
            if (entry.block as u64) >= state.map.blocks() || !counts {
                continue;
            }
            if entry.sequence >= horizon && !is_planted(Bug::TornCounts) {
                entries.push((at, *entry));
            } else if newest.get(&entry.block).is_none_or(|&(sequence, _, _)| sequence < entry.sequence) {
                newest.insert(entry.block, (entry.sequence, at, entry.sum));
            }
        }
    }
    state.groups.number_from(id.next());
    let mut group = Group::found(id, chosen.data, chosen.members.clone(), first_sequence);
    group.set_incomplete(incomplete.then(|| chosen.incomplete(lists)));
    notes.iter().for_each(|&spot| group.add_note(spot));
    state.groups[index] = group;
    notes.iter().for_each(|_| state.groups.gain(index));
}

/// Chooses one unit for each place of a group. The others are strays. `None`: the group cannot
/// belong to the disk.
fn choose(state: &mut State, found: Vec<FoundUnit>) -> Option<Chosen> {
    let first_found = found.iter().map(|found| first_said(&found.header)).min().unwrap_or(0);
    let (data, parity) = (found[0].header.data as usize, found[0].header.parity as usize);
    if data > state.plan.data || data == 0 {
        let stray = |found: &FoundUnit| (Member { donor: found.donor, unit: found.unit, count: 1 }, first_found);
        state.opening.strays.extend(found.iter().map(stray));
        return None;
    }
    let mut members = vec![Member::NONE; data + parity];
    let known = |all: &[Vec<UnitEntry>]| all.iter().map(Vec::len).sum::<usize>();
    let mut best: Vec<Vec<Vec<UnitEntry>>> = vec![Vec::new(); data + parity];
    let mut copies = Vec::new();
    for FoundUnit { donor, unit, header } in found {
        let place = header.member as usize;
        let fits = header.data as usize == data && header.parity as usize == parity && place < members.len();
        let rows = header.lists.iter().map(Vec::len).max().unwrap_or(0);
        let member = Member { donor, unit, count: rows as u8 };
        if !fits || rows > state.plan.buffer {
            state.opening.strays.push((member, first_found));
            continue;
        }
        // A unit that was moved to another donor may not be erased at its old place yet. The one
        // that lists more counts.
        if members[place].exists() && header.lists == best[place] {
            copies.push((place, member, header.lists));
            continue;
        }
        let better = known(&header.lists) > known(&best[place]);
        if members[place].exists() && !better {
            state.opening.strays.push((member, first_found));
            continue;
        }
        let other = std::mem::replace(&mut members[place], member);
        state.opening.strays.extend(other.exists().then_some((other, first_found)));
        best[place] = header.lists;
    }
    // Since it was moved, another unit may have come into the domain of its old place.
    for (place, copy, lists) in copies {
        let domain = |member: &Member| state.roster().domain(member.donor.into());
        let others = || members.iter().enumerate().filter(|&(other, member)| other != place && member.exists());
        let shares = |member: &Member| others().any(|(_, other)| domain(other) == domain(member));
        let is_better = lists == best[place] && shares(&members[place]) && !shares(&copy);
        let stray = if is_better { std::mem::replace(&mut members[place], copy) } else { copy };
        state.opening.strays.push((stray, first_found));
    }
    // Parity units that list less than the others are of an older version and do not fit them.
    let most = (data..data + parity).max_by_key(|&place| known(&best[place])).map(|place| best[place].clone());
    for place in data..data + parity {
        if members[place].exists() && Some(&best[place]) != most.as_ref() {
            state.opening.strays.push((std::mem::replace(&mut members[place], Member::NONE), first_found));
        }
    }
    let listed = most.filter(|_| members[data..].iter().any(Member::exists));
    let own = best.into_iter().take(data).map(|lists| lists.into_iter().next().unwrap_or_default()).collect();
    Some(Chosen { data, parity, members, own, listed })
}

impl Chosen {
    /// Returns the entries that the parity units list for a data unit.
    fn listed(&self, unit: usize) -> &[UnitEntry] {
        self.listed.as_ref().map(|all| &all[unit][..]).unwrap_or_default()
    }

    /// Returns whether a row misses no more blocks than there is parity, so that it can be
    /// computed.
    fn is_computable(&self, row: usize) -> bool {
        let parities = self.members[self.data..].iter().filter(|member| member.exists()).count();
        let missing = |&unit: &usize| {
            let expected = self.listed(unit).get(row);
            expected.is_some() && self.own[unit].get(row) != expected
        };
        (0..self.data).filter(missing).count() <= parities || is_planted(Bug::MissingRow)
    }

    /// Returns the entries of each data unit that count: its own, and those that parity can
    /// restore.
    fn combine(&mut self) -> Vec<Vec<UnitEntry>> {
        let list = |unit: usize| {
            let (own, listed) = (&self.own[unit], self.listed(unit));
            let mut list = own.clone();
            // The unit is missing, or an older version took its place.
            if !self.members[unit].exists() || listed.starts_with(own) {
                let more = (own.len()..listed.len()).take_while(|&row| self.is_computable(row));
                list.extend(more.map(|row| listed[row]));
            }
            list
        };
        let lists: Vec<Vec<UnitEntry>> = (0..self.data).map(list).collect();
        for (member, list) in self.members.iter_mut().zip(&lists) {
            member.count = list.len() as u8;
        }
        lists
    }

    /// Returns whether all units are there and parity covers what they list. A group with entries
    /// from the horizon on is not whole: they are written again elsewhere, because their parity may
    /// have been written in part.
    fn is_whole(&self, lists: &[Vec<UnitEntry>], horizon: u64) -> bool {
        let fits = |unit: usize| match self.members[unit].exists() {
            true => self.parity == 0 || self.own[unit] == self.listed(unit),
            false => self.listed(unit).is_empty(),
        };
        let used = lists.iter().any(|list| !list.is_empty());
        (0..self.data).all(fits)
            && (!used || self.members[self.data..].iter().all(Member::exists))
            && (self.parity == 0 || lists.iter().flatten().all(|entry| entry.sequence < horizon))
    }

    fn incomplete(&self, lists: Vec<Vec<UnitEntry>>) -> Incomplete {
        Incomplete {
            covered: (0..self.data).map(|unit| self.listed(unit).len() as u8).collect(),
            own: self.own.iter().map(|list| list.len() as u8).collect(),
            lists,
            absent: usize::MAX,
        }
    }
}
