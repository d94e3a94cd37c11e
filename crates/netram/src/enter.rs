//! Entering a group that was found.

use shoal_format::ram;
use shoal_format::ram::{UnitEntry, UnitHeader};

use crate::api::DonorId;
use crate::group::{Group, Incomplete};
use crate::load::Base;
use crate::place::{Location, Member};
use crate::planted::{Bug, is_planted};
use crate::spread::Numbered;
use crate::state::State;

/// A unit that was found.
pub(crate) struct FoundUnit {
    pub donor: DonorId,
    pub unit: u32,
    pub header: UnitHeader,
}

/// Of each block the sequence, the place and the checksum of its newest copy so far.
pub(crate) type Newest = Numbered<u32, (u64, Location, u32)>;

/// Enters a group's units, remembers its blocks where they are the newest, and lists what is to be looked at. Returns its blocks.
pub(crate) fn enter(
    state: &mut State,
    id: u64,
    found: Vec<FoundUnit>,
    horizon: u64,
    base: Option<&Base>,
    newest: &mut Newest,
    entries: &mut Vec<(Location, UnitEntry)>,
) -> Option<(u32, Vec<u32>)> {
    let first_of = |header: &UnitHeader| header.lists.iter().flatten().map(|entry| entry.sequence).min().unwrap_or(0);
    let first_found = found.iter().map(|found| first_of(&found.header)).min().unwrap_or(0);
    let (data, parity) = (found[0].header.data as usize, found[0].header.parity as usize);
    if data > state.plan.data || data == 0 {
        let stray = |found: &FoundUnit| (Member { donor: found.donor, unit: found.unit, count: 1 }, first_found);
        state.opening.strays.extend(found.iter().map(stray));
        return None;
    }
    let mut members = vec![Member::NONE; data + parity];
    let known = |all: &[Vec<UnitEntry>]| all.iter().map(Vec::len).sum::<usize>();
    let mut best: Vec<Vec<Vec<UnitEntry>>> = vec![Vec::new(); data + parity];
    for FoundUnit { donor, unit, header } in found {
        let place = header.member as usize;
        let fits = header.data as usize == data && header.parity as usize == parity && place < members.len();
        let rows = header.lists.iter().map(Vec::len).max().unwrap_or(0);
        let member = Member { donor, unit, count: rows as u8 };
        if !fits || rows > state.plan.buffer {
            state.opening.strays.push((member, first_found));
            continue;
        }
        // Moved to another donor, and the old copy was not erased yet: the one that knows more counts.
        let better = known(&header.lists) > known(&best[place]);
        if members[place].exists() && !better {
            state.opening.strays.push((member, first_found));
            continue;
        }
        let other = std::mem::replace(&mut members[place], member);
        state.opening.strays.extend(other.exists().then_some((other, first_found)));
        best[place] = header.lists;
    }
    // Parity units that know less than the others are of an older version: they do not fit together.
    let most = (data..data + parity).max_by_key(|&place| known(&best[place])).map(|place| best[place].clone());
    for place in data..data + parity {
        if members[place].exists() && Some(&best[place]) != most.as_ref() {
            state.opening.strays.push((std::mem::replace(&mut members[place], Member::NONE), first_found));
        }
    }
    let parity_lists = most.filter(|_| members[data..].iter().any(Member::exists));
    let lists: Vec<Option<Vec<UnitEntry>>> =
        (0..data).map(|unit| members[unit].exists().then(|| best[unit][0].clone())).collect();
    // Its place is taken now.
    let index = state.groups.insert(Group::new(id, data, Vec::new()));
    let mut all: Vec<Vec<UnitEntry>> = Vec::new();
    let mut own_rows: Vec<u8> = Vec::new();
    let mut whole = true;
    let parities = members[data..].iter().filter(|member| member.exists()).count();
    // Computable only where not more of the row is missing than there is parity for it.
    let there = |row: usize| {
        let missing = |other: &usize| {
            let expected = parity_lists.as_ref().and_then(|all| all[*other].get(row));
            expected.is_some() && lists[*other].as_ref().and_then(|own| own.get(row)) != expected
        };
        (0..data).filter(missing).count() <= parities || is_planted(Bug::MissingRow)
    };
    for unit in 0..data {
        let own = lists[unit].as_deref().unwrap_or_default();
        let listed = parity_lists.as_ref().map(|all| &all[unit][..]).unwrap_or_default();
        whole &= match members[unit].exists() {
            true => parity == 0 || own == listed,
            false => listed.is_empty(),
        };
        let mut list = own.to_vec();
        // The unit is missing, or an older version of it took its place.
        if !members[unit].exists() || listed.starts_with(own) {
            list.extend((own.len()..listed.len()).take_while(|&row| there(row)).map(|row| listed[row]));
        }
        own_rows.push(own.len() as u8);
        members[unit].count = list.len() as u8;
        all.push(list);
    }
    let used = all.iter().any(|list| !list.is_empty());
    whole &= (data..data + parity).all(|place| members[place].exists()) || !used;
    // It is written anew elsewhere: its parity may have been written in part.
    whole &= parity == 0 || all.iter().flatten().all(|entry| entry.sequence < horizon);
    let blocks = all.iter().flatten().map(|entry| entry.block).collect();
    let mut first_sequence = u64::MAX;
    let mut notes = Vec::new();
    for (unit, list) in all.iter().enumerate() {
        for (row, entry) in list.iter().enumerate() {
            let at = Location { group: index, unit, row };
            first_sequence = first_sequence.min(entry.sequence);
            state.meets_sequence(entry.sequence);
            if ram::is_note(entry.block) {
                notes.push((unit, row));
                entries.push((at, *entry));
                continue;
            }
            // The pages say what came before them.
            let counts = base.as_ref().is_none_or(|base| base.counts(entry.block, entry.sequence));
            if (entry.block as u64) >= state.map.blocks() || !counts {
                continue;
            }
            if entry.sequence >= horizon && !is_planted(Bug::TornCounts) {
                entries.push((at, *entry));
            } else if newest.get(&entry.block).is_none_or(|&(sequence, _, _)| sequence < entry.sequence) {
                newest.insert(entry.block, (entry.sequence, at, entry.crc));
            }
        }
    }
    state.groups.number_from(id + 1);
    let covered = |unit: usize| parity_lists.as_ref().map_or(0, |all: &Vec<Vec<UnitEntry>>| all[unit].len() as u8);
    let incomplete = (!whole).then(|| {
        let covered = (0..data).map(covered).collect();
        Incomplete { covered, own: own_rows, lists: all, absent: usize::MAX }
    });
    let mut group = Group::found(id, data, members, first_sequence);
    group.set_incomplete(incomplete);
    let lists = notes.len();
    notes.into_iter().for_each(|place| group.add_note(place));
    state.groups[index] = group;
    (0..lists).for_each(|_| state.groups.gain(index));
    Some((index, blocks))
}
