//! Cleaning: live blocks of half-dead groups go into new ones, and the units of dead groups become free.
//!
//! Rules: the group with the fewest live blocks first ("most redundant first"). In an idle gap one group after the other, so that
//! cleaning can stop between two; when room is short several at once, because each waits for donors four times, but only as many as
//! the room that is kept for cleaning can take: half-emptied groups give no room. A dead group is freed when everything that took its blocks' place is safe; its headers
//! are erased before its units are taken again. Left out: which donor takes the new group (`state`).

use std::ops::Range;
use std::sync::Arc;

use shoal_format::checksum;
use shoal_format::ram::{self, UnitEntry, UnitHeader};

use crate::api::Purpose;
use crate::donors::DonorState;
use crate::membership::retry_later;
use crate::planted::{Bug, is_planted};
use crate::read;
use crate::repair::give_up_drains;
use crate::state::{Location, Member, Memory, NOTE_UNITS, RESERVE_UNITS, State};
use crate::task::{Core, Op};
use crate::write::{join, revive, send, write_trims};

/// Groups that should be free to open before a writer has to wait.
pub(crate) const GROUPS_AHEAD: usize = 4;
/// Without a request for so long the disk is idle (ns).
const IDLE_NS: u64 = 200_000_000;

impl State {
    /// Has there been no request for a while?
    pub fn is_idle(&self) -> bool {
        self.now_ns.saturating_sub(self.last_request_ns) > IDLE_NS
    }

    /// The group to clean now, if any.
    fn next_victim(&mut self) -> Option<u32> {
        if !self.ready || self.stuck {
            return None;
        }
        let idle = self.config.idle_cleaning && self.is_idle();
        let short = !self.has_room(GROUPS_AHEAD);
        self.narrow &= !self.has_room(1);
        // Blocks that move about without gaining room would do so for ever.
        let in_vain = self.cleaned_in_vain > 2 * self.groups.len() + GROUPS_AHEAD;
        let looks = short || (idle && self.victims_changed);
        let more = self.victims.is_empty() || (short && self.victims.len() < self.config.victims as usize);
        if in_vain || !looks || !more {
            return None;
        }
        let found = self.find_victim(short);
        // Nothing to find until something dies.
        self.victims_changed &= found.is_some() || short;
        found
    }

    fn find_victim(&self, short: bool) -> Option<u32> {
        let capacity = |index: u32| (self.groups[index as usize].data() * self.plan.buffer) as u32;
        let half_dead = || self.by_live.iter().copied().filter(|&(live, index)| live < capacity(index));
        let gains = || half_dead().next().filter(|&(live, _)| self.gives_a_group(live, half_dead(), &capacity));
        let pays = |&(live, index): &(u32, u32)| live * 4 <= capacity(index) * 3;
        if short {
            // What is dead already is enough; it will be free when what took its place is safe.
            let dies = |&&(_, index): &&(u64, u32)| !self.groups[index as usize].is_held();
            if self.dying.iter().filter(dies).take(GROUPS_AHEAD).count() == GROUPS_AHEAD {
                return None;
            }
            // Before anybody has to wait, only where it pays.
            let found = gains().filter(|found| pays(found) || !self.has_room(1));
            let found = found.filter(|&(live, _)| self.victims.is_empty() || self.fits_beside_victims(live));
            return found.map(|(_, victim)| victim);
        }
        gains().filter(pays).map(|(_, victim)| victim)
    }

    /// May a group with so many live blocks be emptied beside others? There must be room for all that moves, without units that
    /// writers may take, and without one that repair may need; and all of them together must give more groups than they take.
    fn fits_beside_victims(&self, live: u32) -> bool {
        let width = (self.plan.data + self.plan.parity).min(self.takers());
        let slots = (width.saturating_sub(self.plan.parity) * self.plan.buffer) as u32;
        let roomy = |groups: usize| (0..self.donors.len()).filter(|&n| self.is_roomy(n, NOTE_UNITS + groups)).count();
        let kept = (1..RESERVE_UNITS - NOTE_UNITS).take_while(|&groups| roomy(groups) >= width).count();
        let moving = live + self.victims.iter().map(|&index| self.groups[index as usize].live).sum::<u32>();
        let taken = moving.saturating_sub(self.room_in_cleaning()).div_ceil(slots.max(1)) as usize;
        taken <= kept && taken <= self.victims.len()
    }

    /// Blocks that the cleaner's open group can still take.
    fn room_in_cleaning(&self) -> u32 {
        let Some(index) = self.caches[self.cleaning()].group else { return 0 };
        let group = &self.groups[index as usize];
        let taken = |memory: &Memory| memory.lists.iter().map(Vec::len).sum::<usize>();
        group.memory.as_ref().map_or(0, |memory| (group.data() * self.plan.buffer - taken(memory)) as u32)
    }

    /// Would cleaning make room in the end? Not if all dead blocks together are less than a new group, unless the next victim's
    /// live ones fit into the cleaner's open group: they would move about for ever.
    fn gives_a_group(
        &self,
        live: u32,
        half_dead: impl Iterator<Item = (u32, u32)>,
        capacity: &impl Fn(u32) -> u32,
    ) -> bool {
        let room = self.room_in_cleaning();
        if live <= room {
            return true;
        }
        let wanted = (self.width(NOTE_UNITS).saturating_sub(self.plan.parity) * self.plan.buffer) as u32;
        if wanted == 0 {
            // No group can be opened now. When one can, it is asked again whether that pays.
            return false;
        }
        let mut dead = room;
        half_dead.map(|(live, index)| capacity(index) - live).any(|more| {
            dead += more;
            dead >= wanted
        })
    }

    /// Somebody waits for room and nothing is on its way: whether anything more can be done, sends what waits in caches, else
    /// says that there is no room. True if there is something to do now.
    pub fn unstick(&mut self, core: &Arc<Core>) -> bool {
        // Who is away or refuses may make room.
        if self.is_opening_units() || self.expects() || self.takers() < self.plan.parity + 1 {
            return false;
        }
        let asked = std::mem::take(&mut self.asked);
        if !self.room_wanted || self.stuck || !self.schedule.is_quiet() {
            return false;
        }
        self.room_wanted = false;
        if !asked {
            // Who wanted room may have got it since: a request that still waits says so again.
            self.asked = true;
            self.wake();
            return true;
        }
        let waiting = |index: &u32| {
            let memory = self.groups[*index as usize].memory.as_ref();
            memory.is_some_and(|memory| memory.unsafe_from != u64::MAX && !memory.abandoned && !memory.sending)
        };
        let waiting: Vec<u32> = self.in_memory.iter().copied().filter(waiting).collect();
        if waiting.is_empty() {
            self.last_resort(core);
        }
        for index in waiting {
            send(core, self, index, true);
        }
        self.wake();
        true
    }

    /// Nothing waits to be sent: the first of these that is possible.
    fn last_resort(&mut self, core: &Arc<Core>) {
        let has_notes = !(self.trims.is_empty() && self.losses.is_empty());
        if has_notes && self.has_room_to_clean() {
            // Groups that trims killed are freed when the trims are safe, and nobody may ever ask for a flush.
            let core = core.clone();
            self.schedule.spawn(async move { drop(write_trims(&core).await) });
            return;
        }
        if self.in_memory.clone().into_iter().any(|index| revive(core, self, index)) {
            return;
        }
        if !self.narrow && self.width(RESERVE_UNITS) > self.plan.parity {
            self.narrow = true;
        } else if !give_up_drains(self) {
            self.stuck = true;
        }
    }
}

/// Runs as long as the disk.
pub(crate) async fn cleaner(core: Arc<Core>) {
    loop {
        let cleaning = core.clone();
        core.until(|state| {
            let victim = state.next_victim()?;
            state.claim(victim);
            state.victims.push(victim);
            state.cleaned_in_vain += 1;
            let core = cleaning.clone();
            state.schedule.spawn(async move { clean(&core, victim).await });
            Some(())
        })
        .await;
    }
}

async fn clean(core: &Arc<Core>, victim: u32) {
    empty(core, victim).await;
    {
        let state = &mut *core.lock();
        state.victims.retain(|&other| other != victim);
        state.release(victim);
    }
    // Lists of trims go where its blocks went: alone in a group they would be the next victim.
    let _ = write_trims(core).await;
}

/// Moves the live blocks of a claimed group into the cleaner's cache. What cannot be read stays where it is.
pub(crate) async fn empty(core: &Arc<Core>, index: u32) {
    let before = core.lock().groups[index as usize].live;
    let lists = entries(core, index).await;
    // All that lives is read at once.
    let reads: Vec<(usize, Range<usize>, Op)> = {
        let state = &mut *core.lock();
        let mut runs = Vec::new();
        for (unit, list) in lists.iter().enumerate() {
            let lives = |&row: &usize| state.lives(list[row].block, Location { group: index, unit, row });
            let mut row = 0;
            while let Some(first) = (row..list.len()).find(lives) {
                row = (first..list.len()).find(|row| !lives(row)).unwrap_or(list.len());
                runs.push((unit, first..row));
            }
        }
        let read = |(unit, rows): (usize, Range<usize>)| {
            let member = state.groups[index as usize].members[unit];
            state.counts.cleaned_read += rows.len() as u64;
            (unit, rows.clone(), core.read(state, member, rows, Purpose::Clean))
        };
        runs.into_iter().map(read).collect()
    };
    let block_bytes = core.lock().block_bytes;
    for (unit, rows, op) in reads {
        let bytes = op.await.unwrap_or_default();
        for (n, row) in rows.enumerate() {
            let found = bytes.get(n * block_bytes..(n + 1) * block_bytes);
            let at = Location { group: index, unit, row };
            let entry: UnitEntry = lists[unit][row];
            let right = |found: &&[u8]| checksum(0, found) == entry.crc || is_planted(Bug::CleanUnchecked);
            let block = match found.filter(right) {
                Some(found) => read::Fetched::Good(found.to_vec()),
                None => read::fetch(core, at, entry.crc, Purpose::Clean).await,
            };
            if let read::Fetched::Good(bytes) = block {
                place(core, at, entry, &bytes).await;
                continue;
            }
            if !ram::is_note(entry.block) && is_planted(Bug::LossAtOnce) {
                core.lock().note_lost(&[(entry.block, at)], false);
            }
        }
    }
    let state = &mut *core.lock();
    state.counts.groups_cleaned += 1;
    let group = &mut state.groups[index as usize];
    group.hopeless = group.live > 0 && group.live == before && !state.stuck;
    if group.hopeless {
        retry_later(state);
    }
}

async fn place(core: &Arc<Core>, at: Location, entry: UnitEntry, bytes: &[u8]) {
    if entry.block == ram::LOST {
        let state = &mut *core.lock();
        if state.lives(entry.block, at) {
            let ranges = ram::decode_trimmed(bytes).unwrap_or_default();
            let blocks = ranges.iter().flat_map(|range| range.first..range.first.saturating_add(range.count));
            let blocks: Vec<u32> = blocks.collect();
            state.note_losses(&blocks);
            state.kill_note(at);
        }
        return;
    }
    if entry.block == ram::TRIMMED {
        let state = &mut *core.lock();
        if !state.lives(entry.block, at) {
            return;
        }
        // A list nobody could read says nothing; one older than everything has nothing left to hide.
        let mut ranges = ram::decode_trimmed(bytes).unwrap_or_default();
        let oldest = if is_planted(Bug::TrimDropped) { u64::MAX } else { state.oldest_sequence() };
        ranges.retain(|range| oldest < range.sequence);
        if !ranges.is_empty() {
            state.trims_origin = state.trims_origin.min(state.next_sequence);
            state.next_sequence += 1;
            state.trims.extend(ranges);
        }
        state.kill_note(at);
        return;
    }
    let full = core
        .until(|state| {
            if !state.is_at(entry.block, at) {
                return Some(None);
            }
            let cache = state.cleaning();
            let placed = state.place(entry.block, bytes, cache, None);
            placed.map(|(placed, full)| full.then_some(placed.group)).or(state.stuck.then_some(None))
        })
        .await;
    if let Some(group) = full {
        send(core, &mut core.lock(), group, true);
    }
}

impl State {
    /// Blocks at these places are gone for good; with `notes`, lists of trimmed and lost ranges are, too.
    pub fn note_lost(&mut self, lost: &[(u32, Location)], notes: bool) {
        let mut blocks: Vec<u32> = Vec::new();
        for &(block, at) in lost {
            if self.is_at(block, at) {
                self.lost_blocks.insert(block);
                blocks.push(block);
            }
        }
        if notes {
            // What the lists said is not known any more: all that holds nothing is hidden anew, all that is lost noted anew.
            self.trim_unmapped();
            blocks = self.lost_blocks.iter().copied().collect();
            blocks.sort_unstable();
        }
        // Before the blocks are dead: who frees their group waits for the note, too.
        self.note_losses(&blocks);
        for &(block, at) in lost {
            if self.is_at(block, at) {
                self.unmap(block);
            }
        }
    }

    /// Those of the blocks that are lost are to be written down, again. In order.
    fn note_losses(&mut self, blocks: &[u32]) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        for &block in blocks.iter().filter(|block| self.lost_blocks.contains(block)) {
            match self.losses.last_mut() {
                Some(last) if last.sequence == sequence && last.first + last.count == block => last.count += 1,
                _ => self.losses.push(ram::TrimmedRange { first: block, count: 1, sequence }),
            }
            self.trims_origin = self.trims_origin.min(sequence);
        }
        self.wake();
    }
}

/// What the data units of a group hold, as its headers say.
pub(crate) async fn entries(core: &Arc<Core>, index: u32) -> Vec<Vec<UnitEntry>> {
    let (data, members) = {
        let state = core.lock();
        let group = &state.groups[index as usize];
        if let Some(found) = group.incomplete() {
            return found.lists.clone();
        }
        (group.data(), group.members.clone())
    };
    for place in data..members.len() {
        if let Some(header) = header(core, index, place).await {
            return header.lists;
        }
    }
    let mut lists = Vec::new();
    for (place, member) in members.iter().enumerate().take(data) {
        let own = if member.count > 0 { header(core, index, place).await } else { None };
        lists.push(own.and_then(|header| header.lists.into_iter().next()).unwrap_or_default());
    }
    lists
}

async fn header(core: &Arc<Core>, index: u32, place: usize) -> Option<UnitHeader> {
    let (id, members, op) = {
        let state = &mut *core.lock();
        let group = &state.groups[index as usize];
        let (id, members, member) = (group.id, group.members.clone(), group.members[place]);
        if !member.exists() {
            return None;
        }
        let op = state.heads_op(member.unit);
        (id, members, core.op(state, member.donor, op, Purpose::Upkeep))
    };
    let bytes = op.await.ok()?;
    core.lock().sealed_header(&bytes, id, &members, place)
}

/// Frees dead groups. Runs as long as the disk.
pub(crate) async fn reaper(core: Arc<Core>) {
    loop {
        let index = core
            .until(|state| {
                state.has_unprotected();
                let horizon = state.horizon();
                let groups = &state.groups;
                let due = |&&(killed, index): &&(u64, u32)| {
                    let held = groups[index as usize].is_held();
                    (state.ready && killed <= horizon && !held) || is_planted(Bug::FreeEarly)
                };
                let (killed, index) = state.dying.iter().find(due).copied()?;
                state.dying.remove(&(killed, index));
                Some(index)
            })
            .await;
        let state = &mut *core.lock();
        free(state, index);
    }
}

/// The group's units are to be erased, and free then.
fn free(state: &mut State, index: u32) {
    let group = state.remove_group(index);
    for member in group.members.iter().copied() {
        match member.exists() && member.count > 0 {
            true => state.erase_later(member, group.first_sequence),
            false if member.exists() => state.give_back(member),
            false => {}
        }
    }
}

/// Gives the memory of free units back to the donors, in idle gaps: under load the next groups take these units, and
/// the donor would have to find new pages for them. Runs as long as the disk.
pub(crate) async fn trimmer(core: Arc<Core>) {
    loop {
        let member = core.until(|state| state.next_to_trim()).await;
        let trimming = {
            let state = &mut *core.lock();
            let op = state.trim_op(member.unit);
            core.op(state, member.donor, op, Purpose::Upkeep)
        };
        // Waited for, because the next write of the unit must not be overtaken.
        let failed = join(vec![trimming]).await;
        let state = &mut *core.lock();
        if failed {
            // It may be late.
            state.erase_later(member, u64::MAX);
        } else if !state.donors[member.donor as usize].is_final() {
            // Taken last, after those that have memory.
            state.donors[member.donor as usize].put_free(member.unit, false);
            state.wake();
        }
    }
}

impl State {
    /// A free unit with memory, taken from the free ones.
    fn next_to_trim(&mut self) -> Option<Member> {
        if !self.ready || !self.is_idle() {
            return None;
        }
        let there = |&number: &usize| self.takes(number) || self.donors[number].state == DonorState::Draining;
        let has_memory = |&number: &usize| {
            let donor = &self.donors[number];
            !donor.free.is_empty() || !donor.closed.is_empty()
        };
        let number = (0..self.donors.len()).filter(there).find(has_memory)?;
        let donor = &mut self.donors[number];
        let unit = donor.free.pop_front().or_else(|| donor.closed.pop_front())?;
        Some(Member { donor: number as u16, unit, count: 0 })
    }
}
