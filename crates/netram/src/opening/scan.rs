//! Opening a disk that is on its donors: rebuilding the block table from the headers of the units.
//!
//! Rules: the superblock with the highest epoch says which donors count. A donor that it does not
//! count, or whose own birth differs, is blank. All counting donors but those of as many failure
//! domains as there is parity must have been looked at completely, and none of these may have been away at an earlier opening:
//! then every flushed block has been met. A block counts if its own unit lists it. A block that its
//! unit does not have counts if the parity unit lists it and enough of the row is there to compute
//! it (a late write may have put an older version in the place of a unit that had grown). Of
//! several copies the one with the highest sequence counts. What cannot be read at the moment is
//! waited for, not left out. Then groups that miss a unit are repaired.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use shoal_format::ram;
use shoal_format::ram::{GroupId, LOST, TrimmedRange, UnitEntry};

use crate::api::{DonorId, Purpose};
use crate::membership::epochs::new_epoch;
use crate::membership::headers::{AGAIN_NS, headers};
use crate::opening::base::{Base, Touched};
use crate::opening::enter::{FoundUnit, Newest, enter};
use crate::opening::load::{NOT_FOUND, load};
use crate::parity;
use crate::planted::{Bug, is_planted};
use crate::requests::read::{Fetched, fetch};
use crate::state::State;
use crate::state::bits::Bits;
use crate::state::donors::{Donor, DonorState};
use crate::state::doubt::{Copied, Doubt};
use crate::state::epoch::Membership;
use crate::state::found::{FoundUnsafe, Opening, Unprotected};
use crate::state::place::{Location, Member};
use crate::state::unit::Shape;
use crate::task::{Core, Op, pause};

/// Starts scans of donors that have come. Returns true when enough donors are scanned and no scan
/// is running.
fn look(core: &Arc<Core>, state: &mut State) -> bool {
    for number in 0..state.donors.len() {
        if !state.donors[number].is_unseen() || !state.opening.looking.insert(number as DonorId) {
            continue;
        }
        let core = core.clone();
        state.schedule.spawn(async move {
            let number = number as DonorId;
            let found = headers(&core, number).await;
            let state = &mut *core.lock();
            state.opening.looking.remove(&number);
            if let Some(found) = found {
                state.opening.found.insert(number, found);
                state.donors[number as usize].scanned = true;
            }
            state.wake();
        });
    }
    let unseen = state.roster().domains_with(|donor| donor.counts() && (!donor.scanned || donor.stale));
    let enough = unseen <= state.plan.parity || is_planted(Bug::OpenEarly);
    enough && state.opening.looking.is_empty()
}

/// Looks at the donors, and looks again if a needed donor comes back.
pub(crate) async fn scan(core: Arc<Core>) {
    let unused = match load(&core).await {
        Ok(mut base) => match map(&core, Some(&mut base)).await {
            true => None,
            false => Some(NOT_FOUND),
        },
        Err(why) => Some(why),
    };
    {
        let state = &mut *core.lock();
        state.checkpoints.unused = unused.filter(|_| state.checkpoints.enabled);
        if unused.is_none() {
            state.counts.opened_by_checkpoint = true;
            return;
        }
    }
    core.lock().forget_map();
    while !map(&core, None).await {
        let state = &mut *core.lock();
        state.forget_groups();
        state.opening = Opening::default();
        state.donors.iter_mut().filter(|donor| !donor.stale).for_each(|donor| donor.scanned = false);
    }
}

/// The findings of one scan of the donors.
#[derive(Default)]
struct Survey {
    newest: Newest,
    /// Everything below this sequence was safe.
    horizon: u64,
    /// Copies (group, block) that a client needs as long as the copy or the list after them is not
    /// safe: the newest that was known to be safe, and all that were not.
    copies: Vec<(u32, u32)>,
    trimmed: Vec<TrimmedRange>,
    lost: Vec<TrimmedRange>,
    doubts: BTreeMap<u32, Doubt>,
    unsafe_groups: BTreeMap<u32, Unprotected>,
    /// The group that holds the counting copy of each block that is not safe, or a list that ends
    /// it.
    homes: HashMap<u32, u32>,
    torn_notes: Vec<(u32, GroupId, u64)>,
    /// Blocks that a checkpoint says to look for, and those of them that were found or hold
    /// nothing.
    looks: Bits,
    ended: HashSet<u32>,
    /// Blocks of groups of the pages that an unsafe list has ended.
    touched: Vec<Touched>,
}

/// Makes the map from the donors' contents. Returns false if it must be tried again.
async fn map(core: &Arc<Core>, mut base: Option<&mut Base>) -> bool {
    if base.is_none() {
        core.until(|state| look(core, state).then_some(())).await;
    }
    let mut survey = Survey::default();
    let mut entries = survey.enter_units(&mut core.lock(), &mut base);
    entries.sort_by_key(|(_, entry)| entry.sequence);
    let mut patience = None;
    for (at, entry) in entries {
        let is_note = ram::is_note(entry.block);
        if !is_note && survey.newest.get(&entry.block).is_some_and(|&(sequence, _, _)| sequence > entry.sequence) {
            continue;
        }
        survey.meets_copy(at, entry.block);
        let Some(found) = look_at(core, at, entry, survey.horizon, &mut patience).await else { return false };
        survey.weigh(&mut core.lock(), at, entry, found);
    }
    let state = &mut *core.lock();
    survey.apply_ranges(state, &mut base);
    survey.enter_blocks(state, &mut base);
    if let Some(base) = &mut base
        && !survey.agrees(state, base)
    {
        return false;
    }
    let held_by_doubts = survey.hold_older(state);
    state.groups.file_all();
    state.wake();
    let Survey { unsafe_groups, torn_notes, horizon, doubts, .. } = survey;
    let groups = unsafe_groups.into_values().collect();
    state.found = FoundUnsafe { groups, held_by_doubts, torn_notes, horizon, doubts };
    // From here on, entries that only an unseen donor knows do not exist.
    for donor in &mut state.donors {
        donor.stale |= donor.counts() && !donor.scanned && !is_planted(Bug::StaleCounts);
        if !donor.scanned && matches!(donor.state, DonorState::Active | DonorState::Draining) {
            // The donor came while the others were looked at.
            donor.state = DonorState::Returning;
        }
    }
    for (member, first_sequence) in std::mem::take(&mut state.opening.strays) {
        state.erase_later(member, first_sequence);
    }
    new_epoch(state, Membership::Same);
    state.serve_when_known(core);
    true
}

impl Survey {
    /// Enters all found units into groups. Returns the entries whose blocks must be looked at.
    fn enter_units(&mut self, state: &mut State, base: &mut Option<&mut Base>) -> Vec<(Location, UnitEntry)> {
        let found = match base {
            Some(base) => std::mem::take(&mut base.found),
            None => std::mem::take(&mut state.opening.found),
        };
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort_unstable_by_key(|&(donor, _)| donor);
        let mut groups: HashMap<GroupId, Vec<FoundUnit>> = HashMap::new();
        let mut used: HashMap<DonorId, HashSet<u32>> = HashMap::new();
        for (donor, units) in found {
            used.insert(donor, units.iter().map(|&(unit, _)| unit).collect());
            for (unit, header) in units {
                groups.entry(header.group).or_default().push(FoundUnit { donor, unit, header });
            }
        }
        if let Some(base) = base {
            let lists = groups.values().flatten().flat_map(|found| found.header.lists.iter().flatten());
            let last = state.map.blocks();
            let counts = |entry: &&UnitEntry| u64::from(entry.block) < last && base.counts(entry.block, entry.sequence);
            let mut blocks: Vec<u32> = lists.filter(counts).map(|entry| entry.block).collect();
            // Sorted, because looking up neighbours one after the other is faster.
            blocks.sort_unstable();
            blocks.dedup();
            self.newest.reserve(blocks.len());
            self.newest.extend(blocks.into_iter().filter_map(|block| Some((block, state.touch(base, block)?))));
        }
        let mut ids: Vec<GroupId> = groups.keys().copied().collect();
        ids.sort_unstable();
        let said = groups.values().flatten().map(|found| found.header.horizon).max().unwrap_or(0);
        self.horizon = base.as_ref().map_or(said, |base| said.max(base.horizon));
        let mut entries = Vec::new();
        for id in ids {
            let found = groups.remove(&id).expect("listed");
            let base = base.as_deref();
            enter(state, id, found, self.horizon, base, &mut self.newest, &mut entries);
        }
        for (number, donor) in state.donors.iter_mut().enumerate() {
            if let Some(used) = used.get(&(number as DonorId)).filter(|_| base.is_none()) {
                donor.units.found(|unit| !used.contains(&unit), |_| false);
            }
        }
        entries
    }

    /// Records a copy that was not known to be safe, and the copy before it.
    fn meets_copy(&mut self, at: Location, block: u32) {
        if ram::is_note(block) {
            return;
        }
        let before = self.newest.get(&block).map(|&(_, before, _)| (before.group, block));
        self.copies.extend(before.into_iter().chain([(at.group, block)]));
    }

    /// Judges an entry whose block may have been written in part when the client died. It counts if
    /// the block is there.
    fn weigh(&mut self, state: &mut State, at: Location, entry: UnitEntry, found: Fetched) {
        if matches!(found, Fetched::Bad)
            && !is_planted(Bug::AbsentComputed)
            && let Some(found) = state.groups[at.group].incomplete_mut()
        {
            found.absent = found.absent.min(at.row);
        }
        if !ram::is_note(entry.block) {
            return self.weigh_block(at, entry, &found);
        }
        // Lists of trimmed and lost ranges are blocks like any other. They are applied by sequence.
        let ranges = match found {
            Fetched::Good(bytes) => ram::decode_trimmed(&bytes).ok(),
            _ => None,
        };
        if entry.block == LOST && !is_planted(Bug::OldLosses) {
            // A list that is not there now may be found by a later opening.
            let said = ranges.as_ref().map_or(Some(0), |ranges| ranges.iter().map(|range| range.sequence).min());
            let group = &mut state.groups[at.group];
            group.first_sequence = group.first_sequence.min(said.unwrap_or(u64::MAX));
        }
        let Some(ranges) = ranges else {
            self.torn_notes.push((at.group, state.groups[at.group].id, entry.sequence));
            return state.groups.lose_note(at);
        };
        if state.is_unsafe(at, entry.sequence, self.horizon) {
            state.found_unsafe(at, entry.sequence, self.horizon, &mut self.unsafe_groups);
            for range in &ranges {
                let end = range.first.saturating_add(range.count).min(state.map.blocks() as u32);
                self.homes.extend((range.first..end).map(|block| (block, at.group)));
            }
        }
        if entry.block == LOST { &mut self.lost } else { &mut self.trimmed }.extend(ranges);
    }

    fn weigh_block(&mut self, at: Location, entry: UnitEntry, found: &Fetched) {
        if !matches!(found, Fetched::Good(_)) {
            self.doubts.entry(entry.block).or_default().meets(entry.sequence);
        }
        if matches!(found, Fetched::Bad) {
            return;
        }
        let before = self.newest.insert(entry.block, (entry.sequence, at, entry.sum));
        let Some(doubt) = self.doubts.get_mut(&entry.block) else { return };
        let is_doubted = matches!(found, Fetched::Unanswered);
        let copy = Copied { sequence: entry.sequence, at, sum: entry.sum, is_doubted };
        let present = std::mem::replace(&mut doubt.present, is_doubted.then_some(copy));
        let certain = before.map(|(sequence, at, sum)| Copied { sequence, at, sum, is_doubted: false });
        match is_doubted {
            true => doubt.older.extend(present.or(certain)),
            false => doubt.older.clear(),
        }
    }

    /// Applies the lists of lost ranges and of trimmed ranges.
    fn apply_ranges(&mut self, state: &mut State, base: &mut Option<&mut Base>) {
        let last = state.map.blocks() as u32;
        let blocks = |range: &TrimmedRange| range.first..range.first.saturating_add(range.count).min(last);
        self.looks = base.as_mut().map(|base| std::mem::take(&mut base.looks)).unwrap_or_default();
        let began = base.as_ref().map_or(0, |base| base.sequence);
        let mut gone: HashMap<u32, u64> = HashMap::new();
        for (block, sequence) in base.iter().flat_map(|base| base.lost.iter().map(|&block| (block, base.sequence - 1)))
        {
            gone.insert(block, sequence);
            self.doubts.entry(block).and_modify(|doubt| doubt.was_lost = true);
        }
        for range in std::mem::take(&mut self.lost) {
            let sequence = range.sequence;
            state.meets_sequence(sequence);
            for block in blocks(&range).filter(|_| !is_planted(Bug::LossForgotten)) {
                if sequence < began && !self.is_looked_for(block) {
                    continue;
                }
                if let Some(doubt) = self.doubts.get_mut(&block) {
                    doubt.was_lost = true;
                    if doubt.ends_before(sequence) {
                        self.doubts.remove(&block);
                    }
                }
                if self.ends(state, base, block, sequence) {
                    let known = gone.entry(block).or_default();
                    *known = sequence.max(*known);
                }
            }
        }
        for range in std::mem::take(&mut self.trimmed) {
            let sequence = range.sequence;
            state.meets_sequence(sequence);
            state.notes.meets_trim(sequence);
            for block in blocks(&range) {
                if sequence < began && !self.is_looked_for(block) {
                    continue;
                }
                self.ends(state, base, block, sequence);
                if self.doubts.get_mut(&block).is_some_and(|doubt| doubt.ends_before(sequence)) {
                    self.doubts.remove(&block);
                }
                if gone.get(&block).is_some_and(|&at| at < sequence) {
                    gone.remove(&block);
                }
            }
        }
        state.map.set_lost(gone.into_keys().filter(|block| !self.newest.contains_key(block)));
    }

    fn is_looked_for(&self, block: u32) -> bool {
        self.looks.get(block as usize)
    }

    /// Ends copies of a block from before this sequence, because a list says so. Returns false if a
    /// newer copy counts.
    fn ends(&mut self, state: &mut State, base: &mut Option<&mut Base>, block: u32, sequence: u64) -> bool {
        if self.newest.get(&block).is_some_and(|&(at, _, _)| at >= sequence) {
            return false;
        }
        let ended = self.newest.remove(&block).filter(|_| self.homes.contains_key(&block));
        self.copies.extend(ended.map(|(_, at, _)| (at.group, block)));
        let cleared = state.clear(base, block).filter(|_| self.homes.contains_key(&block));
        self.touched.extend(cleared.map(|group| Touched { group, block }));
        if self.is_looked_for(block) {
            self.ended.insert(block);
        }
        true
    }

    /// Enters the counting copies into the map.
    fn enter_blocks(&mut self, state: &mut State, base: &mut Option<&mut Base>) {
        if let Some(base) = base {
            state.groups.add_live(&std::mem::take(&mut base.live));
        }
        let mut blocks: Vec<_> = std::mem::take(&mut self.newest).into_iter().collect();
        blocks.sort_unstable_by_key(|&(block, _)| block);
        for (block, (sequence, at, sum)) in blocks {
            state.enter(block, at, sum);
            if self.is_looked_for(block) {
                self.ended.insert(block);
            }
            self.homes.remove(&block);
            if state.is_unsafe(at, sequence, self.horizon) {
                state.found_unsafe(at, sequence, self.horizon, &mut self.unsafe_groups);
                self.homes.insert(block, at.group);
                self.copies.push((at.group, block));
            }
        }
    }

    /// Returns whether everything is there that the checkpoint says. If so, lists its copies, too.
    fn agrees(&mut self, state: &State, base: &mut Base) -> bool {
        let found = |block: usize| self.ended.contains(&(block as u32));
        let is_dead = |&index: &u32| state.groups[index].live() == 0;
        if !self.looks.ones(state.map.blocks() as usize).all(found) || !base.broken.iter().all(is_dead) {
            return false;
        }
        let touched = std::mem::take(&mut self.touched);
        base.touched.extend(touched.into_iter().filter(|_| !is_planted(Bug::TrimmedUnheld)));
        base.touched.retain(|Touched { block, .. }| self.homes.contains_key(block) || self.doubts.contains_key(block));
        self.copies.extend(base.touched.iter().map(|touched| (touched.group, touched.block)));
        true
    }

    /// Holds groups with older copies of blocks that are unsafe or doubted. Returns those held by
    /// doubts. Copies older than the newest that was known to be safe can never count again: their
    /// groups stay free to die, because a full disk may have no other room.
    fn hold_older(&mut self, state: &mut State) -> Vec<(u32, GroupId)> {
        let mut copies = std::mem::take(&mut self.copies);
        let mut held_by_doubts = Vec::new();
        if (self.homes.is_empty() && self.doubts.is_empty()) || is_planted(Bug::FoundFreed) {
            return held_by_doubts;
        }
        copies.sort_unstable();
        for copies in copies.chunk_by(|(one, _), (other, _)| one == other) {
            let index = copies[0].0;
            let held = (index, state.groups[index].id);
            let by: HashSet<u32> = copies.iter().filter_map(|(_, block)| self.homes.get(block).copied()).collect();
            for by in by {
                self.unsafe_groups.get_mut(&by).expect("entered with its block").holds.push(held);
                state.groups[index].hold();
            }
            if copies.iter().any(|(_, block)| self.doubts.contains_key(block)) {
                held_by_doubts.push(held);
                state.groups[index].hold();
            }
        }
        held_by_doubts
    }
}

/// Reads a block that opening needs.
/// - `Bad`: the block is not there.
/// - `Unanswered`: an ordinary block may be there. Reads of it fail until it can be read.
/// - `None`: the donors must be looked at again. A donor came that may have the block, or a scanned
///   donor went away. If the others suffice, opening must not wait for a block that only the
///   missing donor listed, since its group may have been in the middle of an erasure.
///
/// A block that cannot be read at the moment is waited for: all such blocks together, as long as
/// the disk's patience lasts. A list of ranges that may have been flushed, and whose group is not being
/// erased, is waited for without limit, because without it old blocks would count again.
async fn look_at(
    core: &Arc<Core>,
    at: Location,
    entry: UnitEntry,
    horizon: u64,
    patience: &mut Option<u64>,
) -> Option<Fetched> {
    let is_note = ram::is_note(entry.block);
    loop {
        match fetch(core, at, entry.sum, Purpose::Upkeep).await {
            Fetched::Unanswered => {}
            other => return Some(other),
        }
        let until = {
            let state = core.lock();
            *patience.get_or_insert(state.now_ns + state.patience_ns())
        };
        if core.lock().now_ns > until {
            if !is_note {
                return Some(Fetched::Unanswered);
            }
            if is_torn(core, at, entry, horizon).await {
                return Some(Fetched::Bad);
            }
            let has_gone = |donor: &Donor| donor.counts() && donor.scanned && donor.is_absent();
            if core.lock().donors.iter().any(has_gone) && !is_planted(Bug::LookedAtGone) {
                return None;
            }
        }
        pause(core, AGAIN_NS).await;
        if core.lock().donors.iter().any(Donor::is_unseen) {
            return None;
        }
    }
}

/// Returns whether this entry was certainly never part of a flush, or its group is being erased.
///
/// A flush waits for all units of a group. A unit that grows keeps the blocks that it has. Parity
/// lists the growth of a unit only when that growth is stored. Repair writes the blocks of a moved
/// unit before its header. So a unit that lists a block of this row but does not have it was still
/// being written. Parity that gives a wrong result shows the same, unless a later block of the row
/// can explain it. In that case the parity is a former version, in whole or in part.
///
/// An entry from below the horizon was flushed. Its group is being erased if the parity unit had
/// begun to grow: then its block fits no more, and the blocks that it grew by were stored before.
/// But no unit that was found has one of them.
async fn is_torn(core: &Arc<Core>, at: Location, entry: UnitEntry, horizon: u64) -> bool {
    let (data, lists, covered, own, asked) = {
        let state = &mut *core.lock();
        let group = &state.groups[at.group];
        let Some(found) = group.incomplete() else { return false };
        let (data, lists) = (group.data(), found.lists.clone());
        let covered: Vec<bool> = found.covered.iter().map(|&rows| at.row < rows.into()).collect();
        let own: Vec<bool> = found.own.iter().map(|&rows| at.row < rows.into()).collect();
        let has = |unit: usize| match unit < data {
            true => own[unit],
            false => covered[at.unit],
        };
        let member = |(unit, member): (usize, &Member)| (member.exists() && has(unit)).then_some(*member);
        let members: Vec<Option<Member>> = group.members.iter().enumerate().map(member).collect();
        let mut ask = |member: Member| core.read(state, member, at.row..at.row + 1, Purpose::Upkeep);
        let asked: Vec<Option<Op>> = members.into_iter().map(|member| member.map(&mut ask)).collect();
        (data, lists, covered, own, asked)
    };
    let Shape { block_bytes, block_sums: sums, .. } = core.shape;
    let mut row: Vec<Option<Vec<u8>>> = Vec::new();
    for (unit, op) in asked.into_iter().enumerate() {
        let bytes = match op {
            Some(op) => op.await.ok(),
            None => None,
        };
        let listed = lists.get(unit).and_then(|list| list.get(at.row));
        let wrong = bytes.as_ref().zip(listed).is_some_and(|(bytes, listed)| sums.of(bytes) != listed.sum);
        if wrong && (unit == at.unit || covered[unit]) {
            return entry.sequence >= horizon;
        }
        let is_empty = unit < data && !covered[unit];
        row.push(if is_empty { Some(vec![0; block_bytes]) } else { bytes });
    }
    let parity = row.split_off(data);
    row[at.unit] = None;
    let sequence = |unit: usize| lists[unit].get(at.row).map(|entry| entry.sequence);
    let mut order: Vec<usize> = (0..data).filter(|&unit| sequence(unit).is_some()).collect();
    order.sort_unstable_by_key(|&unit| sequence(unit));
    let newest = order.iter().rfind(|&&unit| covered[unit]);
    let is_last = parity.len() > 1 || newest == Some(&at.unit);
    let fits = |bytes: &[u8]| sums.of(bytes) == entry.sum;
    let computed = parity::decode(at.unit, &row, &parity);
    let is_wrong = covered[at.unit] && computed.is_some_and(|bytes| !fits(&bytes));
    if entry.sequence < horizon {
        let mut uncovered = (0..data).filter(|&unit| !covered[unit]).peekable();
        let may_grow = parity.len() == 1 && uncovered.peek().is_some();
        return is_wrong && may_grow && !own[at.unit] && !uncovered.any(|unit| own[unit]);
    }
    // A version may have a block that this parity does not list.
    let may_be_former = || {
        let others: Vec<_> = order.iter().filter(|&&unit| unit != at.unit).map(|&unit| row[unit].clone()).collect();
        let is_former = |parity: &Vec<u8>| parity::of_former(parity, &others, fits, 1).is_some();
        !order.iter().all(|&unit| covered[unit]) || parity.iter().flatten().any(is_former)
    };
    is_wrong && (is_last || !may_be_former())
}

impl State {
    /// Returns whether a found block may be gone with the next loss. Parity that nobody knew to be
    /// safe may be there in part.
    fn is_unsafe(&self, at: Location, sequence: u64, horizon: u64) -> bool {
        let group = &self.groups[at.group];
        let covered = at.row < group.covered(at.unit) as usize && sequence < horizon;
        group.members.len() > group.data() && !covered
    }

    fn found_unsafe(&self, at: Location, sequence: u64, horizon: u64, found: &mut BTreeMap<u32, Unprotected>) {
        let group = &self.groups[at.group];
        let new = || Unprotected { index: at.group, id: group.id, is_unsure: false, holds: Vec::new() };
        found.entry(at.group).or_insert_with(new).is_unsure |= sequence >= horizon;
    }
}
