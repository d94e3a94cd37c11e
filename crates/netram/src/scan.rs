//! Opening a disk that is on its donors: the block table is rebuilt from the headers of the units.
//!
//! Rules: the superblock with the highest epoch says which donors count; one it does not count, or whose own epoch is older and
//! which is missing from it, is blank. A block counts if its own unit lists it; a block of a missing unit counts if the parity
//! unit lists it and every other block that parity unit lists in the row is there, because only then the row can be computed.
//! Of several copies the highest sequence counts. Then groups that miss a unit are repaired.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use shoal_format::ram::{self, TRIMMED, UnitEntry, UnitHeader};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::planted::{Bug, is_planted};
use crate::read;
use crate::repair::{self, donor_lost};
use crate::state::{Group, Incomplete, Location, Member};
use crate::task::{Core, Op};

/// Headers asked for at the same time, of each donor.
const AT_ONCE: usize = 32;

/// A unit that was found.
struct Found {
    donor: DonorId,
    unit: u32,
    header: UnitHeader,
}

pub(crate) async fn scan(core: Arc<Core>) {
    let donors: Vec<DonorId> = {
        let state = core.lock();
        (0..state.donors.len()).filter(|&n| state.donors[n].counts()).map(|n| n as DonorId).collect()
    };
    let mut groups: HashMap<u64, Vec<Found>> = HashMap::new();
    let most = donors.iter().map(|&donor| core.lock().donors[donor as usize].units).max().unwrap_or(0);
    for first in (0..most).step_by(AT_ONCE) {
        let ops: Vec<(u32, Op)> = {
            let state = &mut *core.lock();
            let mut ops = Vec::new();
            for &donor in &donors {
                for unit in first..(first + AT_ONCE as u32).min(state.donors[donor as usize].units) {
                    let op = DonorOp::Read { at: state.unit_at(unit), len: state.header_bytes as u32 };
                    ops.push((unit, core.op(state, donor, op, Purpose::Upkeep)));
                }
            }
            ops
        };
        for (unit, op) in ops {
            let donor = op.donor;
            match op.await {
                Ok(bytes) => {
                    let header = UnitHeader::decode(&bytes).ok();
                    if let Some(header) = header.filter(|header| {
                        header.uuid == core.lock().config.uuid && (header.donor == donor || is_planted(Bug::StaleUnits))
                    }) {
                        groups.entry(header.group).or_default().push(Found { donor, unit, header });
                    }
                }
                Err(_) => donor_lost(&core, donor),
            }
        }
    }
    let mut ids: Vec<u64> = groups.keys().copied().collect();
    ids.sort_unstable();
    let mut newest: HashMap<u32, (u64, Location, u32)> = HashMap::new();
    let mut trims: Vec<(Location, UnitEntry)> = Vec::new();
    let mut taken: HashSet<(DonorId, u32)> = HashSet::new();
    {
        let state = &mut *core.lock();
        for id in ids {
            let found = groups.remove(&id).expect("listed");
            enter(state, id, found, &mut newest, &mut trims, &mut taken);
        }
        for (number, donor) in state.donors.iter_mut().enumerate() {
            donor.free.retain(|&unit| !taken.contains(&(number as DonorId, unit)));
        }
    }
    // Lists of trimmed ranges are blocks like any other: read, then applied by their sequence.
    let mut trimmed: Vec<ram::TrimmedRange> = Vec::new();
    for (at, entry) in trims {
        let op = {
            let state = &mut *core.lock();
            let member = state.groups[at.group as usize].members[at.unit];
            core.read(state, member, at.row..at.row + 1, Purpose::Upkeep)
        };
        let right = |bytes: &Vec<u8>| shoal_format::checksum(0, bytes) == entry.crc;
        let bytes = match op.await.ok().filter(right) {
            Some(bytes) => Some(bytes),
            None => read::reconstruct(&core, at, Purpose::Upkeep).await.filter(right),
        };
        trimmed.extend(bytes.and_then(|bytes| ram::decode_trimmed(&bytes).ok()).unwrap_or_default());
    }
    let state = &mut *core.lock();
    for ram::TrimmedRange { first, count, sequence } in trimmed {
        state.next_sequence = state.next_sequence.max(sequence + 1);
        for block in first..first.saturating_add(count).min(state.blocks as u32) {
            if newest.get(&block).is_some_and(|&(at, _, _)| at < sequence) {
                newest.remove(&block);
            }
        }
    }
    let mut blocks: Vec<_> = newest.into_iter().collect();
    blocks.sort_unstable_by_key(|&(block, _)| block);
    for (block, (_, at, crc)) in blocks {
        state.enter(block, at, crc);
    }
    for index in 0..state.groups.len() as u32 {
        state.groups[index as usize].killed = 0;
        state.file(index);
    }
    repair::after_scan(&core, state);
    state.serve_when_known(&core);
}

/// Enters a group's units and remembers its blocks where they are the newest.
fn enter(
    state: &mut crate::state::State,
    id: u64,
    found: Vec<Found>,
    newest: &mut HashMap<u32, (u64, Location, u32)>,
    trims: &mut Vec<(Location, UnitEntry)>,
    taken: &mut HashSet<(DonorId, u32)>,
) {
    let (data, parity) = (found[0].header.data as usize, found[0].header.parity as usize);
    if data > state.plan.data || data == 0 {
        let stray = |found: &Found| Member { donor: found.donor, unit: found.unit, count: 1 };
        state.strays.extend(found.iter().map(stray));
        return;
    }
    let mut members = vec![Member::NONE; data + parity];
    let known = |all: &[Vec<UnitEntry>]| all.iter().map(Vec::len).sum::<usize>();
    let mut best: Vec<Vec<Vec<UnitEntry>>> = vec![Vec::new(); data + parity];
    for Found { donor, unit, header } in found {
        let place = header.member as usize;
        let fits = header.data as usize == data && header.parity as usize == parity && place < members.len();
        let rows = header.lists.iter().map(Vec::len).max().unwrap_or(0);
        let member = Member { donor, unit, count: rows as u8 };
        if !fits || rows > state.plan.buffer {
            state.strays.push(member);
            continue;
        }
        // Moved to another donor, and the old copy was not erased yet: the one that knows more counts.
        let better = known(&header.lists) > known(&best[place]);
        if members[place].exists() && !better {
            state.strays.push(member);
            continue;
        }
        let other = std::mem::replace(&mut members[place], member);
        state.strays.extend(other.exists().then_some(other));
        best[place] = header.lists;
    }
    // Parity units that know less than the others are of an older version: they do not fit together.
    let most = (data..data + parity).max_by_key(|&place| known(&best[place])).map(|place| best[place].clone());
    for place in data..data + parity {
        if members[place].exists() && Some(&best[place]) != most.as_ref() {
            state.strays.push(std::mem::replace(&mut members[place], Member::NONE));
        }
    }
    let parity_lists = most.filter(|_| members[data..].iter().any(Member::exists));
    let lists: Vec<Option<Vec<UnitEntry>>> =
        (0..data).map(|unit| members[unit].exists().then(|| best[unit][0].clone())).collect();
    for member in members.iter().filter(|member| member.exists()) {
        taken.insert((member.donor, member.unit));
    }
    let index = state.groups.len() as u32;
    let mut all: Vec<Vec<UnitEntry>> = Vec::new();
    let mut whole = true;
    for unit in 0..data {
        let own = lists[unit].clone();
        let listed = parity_lists.as_ref().map(|all| all[unit].clone()).unwrap_or_default();
        all.push(match own {
            Some(own) => {
                whole &= parity == 0 || own == listed;
                own
            }
            None => {
                // Computable only where not more of the row is missing than there is parity for it.
                let parities = members[data..].iter().filter(|member| member.exists()).count();
                let there = |row: usize| {
                    let missing = |other: &usize| {
                        let expected = parity_lists.as_ref().and_then(|all| all[*other].get(row));
                        expected.is_some() && lists[*other].as_ref().and_then(|own| own.get(row)) != expected
                    };
                    (0..data).filter(missing).count() <= parities || is_planted(Bug::MissingRow)
                };
                let rows = (0..listed.len()).take_while(|&row| there(row)).count();
                whole &= listed.is_empty();
                members[unit].count = rows as u8;
                listed[..rows].to_vec()
            }
        });
    }
    let used = all.iter().any(|list| !list.is_empty());
    whole &= (data..data + parity).all(|place| members[place].exists()) || !used;
    let mut first_sequence = u64::MAX;
    let mut live = 0;
    for (unit, list) in all.iter().enumerate() {
        for (row, entry) in list.iter().enumerate() {
            let at = Location { group: index, unit, row };
            first_sequence = first_sequence.min(entry.sequence);
            state.next_sequence = state.next_sequence.max(entry.sequence + 1);
            if entry.block == TRIMMED {
                trims.push((at, *entry));
                live += 1;
            } else if (entry.block as u64) < state.blocks
                && newest.get(&entry.block).is_none_or(|&(sequence, _, _)| sequence < entry.sequence)
            {
                newest.insert(entry.block, (entry.sequence, at, entry.crc));
            }
        }
    }
    state.next_group = state.next_group.max(id + 1);
    let covered = |unit: usize| parity_lists.as_ref().map_or(0, |all: &Vec<Vec<UnitEntry>>| all[unit].len() as u8);
    let incomplete = (!whole).then(|| {
        let covered = (0..data).map(covered).collect();
        Box::new(Incomplete { covered, lists: all })
    });
    state.groups.push(Group {
        id,
        data,
        members,
        live,
        first_sequence,
        killed: 0,
        busy: false,
        memory: None,
        incomplete,
        notes: trims.iter().filter(|(at, _)| at.group == index).map(|(at, _)| (at.unit, at.row)).collect(),
        hopeless: false,
    });
}
