//! Groups in memory that a donor did not take: their live blocks move to other groups.
//!
//! Rules: writes in flight must be answered before another group may use the units. Without room
//! for its blocks a group waits, readable, and may be sent once more as it is ([`revive`]). A block
//! that died before it was safe passes on the origin that a flush waits for. Left out: sending
//! (`send`).

use std::sync::Arc;

use shoal_format::ram;
use shoal_format::ram::UnitEntry;

use crate::planted::{Bug, is_planted};
use crate::requests::send::{seal, send};
use crate::requests::trims::write_trims;
use crate::state::State;
use crate::state::place::{Location, Member};
use crate::task::Core;

/// Moves the live blocks of a group in memory to other groups, because a donor did not take its
/// part.
pub(crate) fn abandon(core: &Arc<Core>, state: &mut State, index: u32) {
    state.open.leave(index);
    let Some(memory) = state.groups[index].memory_mut() else { return };
    if memory.abandoned {
        return;
    }
    (memory.abandoned, memory.full) = (true, true);
    state.wake();
    let core = core.clone();
    state.schedule.spawn(async move { move_blocks(&core, index).await });
}

async fn move_blocks(core: &Arc<Core>, index: u32) {
    // Writes in flight must arrive before another group may use the units.
    core.until(|state| {
        let memory = state.groups[index].memory();
        memory.is_some_and(|memory| !memory.sending || is_planted(Bug::AbandonEarly)).then_some(())
    })
    .await;
    let entries: Vec<_> = {
        let state = core.lock();
        if !state.groups[index].is_abandoned() {
            return;
        }
        let memory = state.groups[index].memory().expect("an abandoned group keeps its memory");
        let unit = |(unit, list): (usize, &Vec<UnitEntry>)| {
            list.iter().enumerate().map(move |(row, entry)| (unit, row, *entry)).collect::<Vec<_>>()
        };
        memory.lists.iter().enumerate().flat_map(unit).collect()
    };
    for (unit, row, entry) in entries {
        let at = Location { group: index, unit, row };
        let mut noted = false;
        let moved = core.until(|state| move_block(core, state, at, entry, &mut noted)).await;
        match moved {
            Moved::Filled(full) => send(core, &mut core.lock(), full),
            Moved::Done => {}
            Moved::Revived => return,
        }
    }
    let state = &mut *core.lock();
    if state.groups[index].live() == 0 {
        seal(state, index);
    }
    send_cleaned(core, state);
    state.wake();
}

/// The outcome for one block of an abandoned group.
enum Moved {
    Done,
    /// The block filled this group.
    Filled(u32),
    /// The group is sent once more as it is.
    Revived,
}

/// Moves a block of an abandoned group if it is still live. `None`: there is no room, so it waits
/// and stays readable where it is; flushes fail meanwhile. `noted`: this list of ranges is already
/// recorded as not safe there.
fn move_block(core: &Arc<Core>, state: &mut State, at: Location, entry: UnitEntry, noted: &mut bool) -> Option<Moved> {
    let group = &state.groups[at.group];
    if !group.is_abandoned() {
        return Some(Moved::Revived);
    }
    let is_note = ram::is_note(entry.block);
    let memory = group.memory()?;
    let (origin, safe) = (memory.origins[at.unit][at.row], at.row < memory.safe[at.unit] as usize);
    if is_note && !safe && !*noted {
        state.found.torn_notes.push((at.group, group.id, entry.sequence));
        *noted = true;
    }
    if !state.lives(entry.block, at) {
        if !safe && !is_planted(Bug::DropDead) {
            state.inherit(core, entry.block, origin);
        }
        return Some(Moved::Done);
    }
    let bytes = state.in_memory(at)?.to_vec();
    let put = state.place(entry.block, &bytes, state.open.cleaning(), Some(origin))?;
    if is_note {
        state.kill_note(at);
    }
    Some(if put.is_full { Moved::Filled(put.at.group) } else { Moved::Done })
}

/// Sends an abandoned group once more as it is, if its donors take it now, because there is no room
/// to move its blocks to. A unit that a late write may reach is replaced by another. Returns
/// whether the group is being sent.
pub(crate) fn revive(core: &Arc<Core>, state: &mut State, index: u32) -> bool {
    let group = &state.groups[index];
    if !group.is_abandoned() || group.memory().is_some_and(|memory| memory.sending) {
        return false;
    }
    let members: Vec<_> = group.members.iter().copied().enumerate().filter(|(_, member)| member.exists()).collect();
    if !members.iter().all(|(_, member)| state.roster().takes(member.donor as usize)) {
        return false;
    }
    let tainted = |state: &State, member: &Member| state.donors[member.donor as usize].units.is_tainted(member.unit);
    let left: Vec<_> = members.into_iter().filter(|(_, member)| tainted(state, member)).collect();
    let mut taken = Vec::new();
    for &(place, member) in &left {
        let Some(unit) = state.donors[member.donor as usize].units.take() else {
            taken.into_iter().for_each(|(_, member)| state.give_back(member));
            return false;
        };
        taken.push((place, Member { unit, ..member }));
    }
    let group = &state.groups[index];
    let (id, first_sequence) = (group.id, group.first_sequence);
    state.found.torn_notes.retain(|&(_, other, _)| other != id);
    state.groups[index].revive(&taken);
    for (_, member) in left {
        state.erase_later(member, first_sequence);
    }
    send(core, state, index);
    state.wake();
    true
}

/// Sends the cleaner's open group. Flushes may wait for moved blocks, which must not wait for the
/// cache to fill.
fn send_cleaned(core: &Arc<Core>, state: &mut State) {
    if let Some(open) = state.open.cleaners() {
        send(core, state, open);
    }
}

impl State {
    /// Passes on the origin of an entry for `block` that died before it was safe and will never be
    /// sent. The copy before it may be freed only when the entry after it is safe. So that entry
    /// takes over the origin and is sent, because a flush may wait for it.
    pub fn inherit(&mut self, core: &Arc<Core>, block: u32, origin: u64) {
        let heirs: Vec<Location> = match (block < ram::LOST).then(|| self.map.find(block)).flatten() {
            Some(found) => vec![found.at],
            None => {
                // A trim replaced the entry. It is noted, or its list is being written.
                if !self.notes.is_empty() {
                    self.notes.waits_from(origin);
                    let core = core.clone();
                    self.schedule.spawn(async move {
                        let _ = write_trims(&core).await;
                        send_cleaned(&core, &mut core.lock());
                    });
                }
                let notes = |&index: &u32| self.groups[index].notes().iter().map(move |spot| spot.within(index));
                self.groups.in_memory().iter().flat_map(notes).collect()
            }
        };
        for at in heirs {
            let memory = self.groups[at.group].memory_mut();
            if memory.is_some_and(|memory| memory.inherit(at.unit, at.row, origin)) {
                send(core, self, at.group);
            }
        }
    }
}
