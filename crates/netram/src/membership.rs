//! Donors that go away, come back, join, and are given up; and the epochs that say on the donors who belongs to the disk.
//!
//! Rules:
//! - A donor that cannot be reached is *missing*. It stays one of the disk's: what it holds is rebuilt elsewhere where the others
//!   suffice for that, and it is taken back as it was when it returns. Only when nothing of the disk refers to it any more
//!   does an epoch exclude it. So no epoch ever commits a loss; only [`forget`], an administrator's word, does.
//! - A write that a donor refuses is done elsewhere. The donor gets nothing new for a moment and goes on being read.
//! - An epoch that changes membership counts once *parity + 1* donors have stored it. A later opening needs all donors but
//!   *parity*, so it meets one that has.
//! - A donor that was away while the disk was opened is *stale*: what only it knows did not exist for the client since. It is looked
//!   at when it returns ([`graft`]); until then its superblocks elsewhere say that it is no source.
//!
//! Left out: restoring redundancy (`repair`), noticing absence and return (who carries out operations).

use std::collections::HashMap;
use std::sync::Arc;

use shoal_format::ram::{DiskSuperblock, HEADER_SLOTS, SLOTS_BYTES, UnitEntry, UnitHeader};

use crate::api::{DonorId, DonorInfo, DonorOp, NotBack, Purpose, Trouble};
use crate::donors::{Donor, DonorState, Erase};
use crate::group::Group;
use crate::planted::{Bug, is_planted};
use crate::scan;
use crate::state::{Location, Member, State};
use crate::task::{Answer, Asked, Core, Op};
use crate::write::abandon;

/// Units erased at the same time on one donor: a large trim frees hundreds of thousands.
const ERASES_AT_ONCE: usize = 32;
/// A donor that refused a write gets none for so long (ns), and twice as long each time.
const REFUSED_NS: u64 = 100_000_000;
const REFUSED_DOUBLED_MAX: u32 = 6;
/// What could not be repaired is tried again after so long (ns), and twice as long each time.
const RETRY_NS: u64 = 1_000_000_000;
const RETRY_MAX_NS: u64 = 64_000_000_000;

/// A donor answered.
pub(crate) fn answered(core: &Arc<Core>, state: &mut State, asked: Asked, result: &Answer) {
    let now = state.now_ns;
    let donor = &mut state.donors[asked.donor as usize];
    donor.answered_ns = now;
    let Err(error) = result else {
        if asked.writes && donor.refusals > 0 && now >= donor.refused_until_ns {
            donor.refusals = 0;
            state.wake();
        }
        return;
    };
    match error.trouble {
        Trouble::Refused if asked.writes && now >= donor.refused_until_ns => {
            donor.refused_until_ns = now + (REFUSED_NS << donor.refusals.min(REFUSED_DOUBLED_MAX));
            donor.refusals += 1;
            state.wake();
        }
        Trouble::Refused => {}
        Trouble::Uncertain => {
            if !is_planted(Bug::TaintedReused) {
                donor.tainted.extend(asked.unit);
            }
        }
        Trouble::Away => {
            donor.unknown.extend(asked.unit);
            miss(core, state, asked.donor);
        }
    }
}

/// A donor cannot be reached.
pub(crate) fn miss(core: &Arc<Core>, state: &mut State, number: DonorId) {
    let now = state.now_ns;
    let Some(donor) = state.donors.get_mut(number as usize) else { return };
    match donor.state {
        DonorState::Joining => return discard(state, number),
        DonorState::Active | DonorState::Draining | DonorState::Returning => {
            donor.drains = donor.state == DonorState::Draining;
            donor.state = DonorState::Missing;
            donor.missing_since_ns = now;
        }
        DonorState::Missing | DonorState::Forgotten | DonorState::Drained | DonorState::Lost => return,
    }
    leave(core, state, number);
    settle_epoch(state);
}

/// Groups on a donor that is not there any more go elsewhere.
fn leave(core: &Arc<Core>, state: &mut State, number: DonorId) {
    for index in state.in_memory.clone() {
        let group = &state.groups[index as usize];
        if group.is_on(number) {
            abandon(core, state, index);
        }
    }
    state.count_donors();
    requeue(state);
}

/// Nothing of the disk refers to this donor.
fn discard(state: &mut State, number: DonorId) {
    let donor = &mut state.donors[number as usize];
    donor.state = DonorState::Lost;
    donor.release();
    new_epoch(state, true);
}

/// A donor is there again. See [`crate::Engine::back`].
pub(crate) fn back(
    core: &Arc<Core>,
    state: &mut State,
    info: DonorInfo,
    superblock: &[u8],
    fenced: bool,
) -> Result<DonorId, NotBack> {
    let own = DiskSuperblock::newest(superblock).ok().filter(|(_, own)| own.uuid == state.config.uuid);
    let (slot, own) = own.ok_or(NotBack::Stranger)?;
    let number = own.donor;
    let units = state.units_of(&info);
    let is_asked = state.schedule.is_asked(number);
    let donor = state.donors.get_mut(number as usize).ok_or(NotBack::Stranger)?;
    let born = own.donors.get(number as usize).map(|place| place.born);
    if born != Some(donor.born) || donor.is_final() {
        return Err(NotBack::Stranger);
    }
    if donor.state != DonorState::Missing || is_asked || (donor.scanned && donor.units != units) {
        return Err(NotBack::Later);
    }
    (donor.info, donor.units, donor.epoch, donor.slot) = (info, units, own.epoch, Some(slot));
    (donor.refusals, donor.refused_until_ns) = (0, 0);
    // A former client may have died when no other donor knew that epoch.
    state.epoch = state.epoch.max(own.epoch);
    state.knows_births(&own);
    let donor = &mut state.donors[number as usize];
    let unknown = std::mem::take(&mut donor.unknown);
    if !fenced && !is_planted(Bug::TaintedReused) {
        donor.tainted.extend(unknown);
    }
    donor.state = match (donor.scanned || !state.ready, donor.stale) {
        (false, _) | (_, true) => DonorState::Returning,
        (true, false) if donor.drains => DonorState::Draining,
        (true, false) => DonorState::Active,
    };
    let returns = donor.state == DonorState::Returning && state.ready;
    state.count_donors();
    try_again(state);
    if returns {
        state.schedule.spawn(graft(core.clone(), number));
    }
    // It may have missed some.
    new_epoch(state, false);
    Ok(number)
}

/// A donor is given up for good. The epochs go on counting it until what is lost with it is written down.
pub(crate) fn forget(core: &Arc<Core>, state: &mut State, number: DonorId) {
    miss(core, state, number);
    let Some(donor) = state.donors.get_mut(number as usize) else { return };
    if donor.state == DonorState::Missing {
        donor.state = DonorState::Forgotten;
        donor.release();
        state.drop_checkpoint();
        lose_what_is_gone(state);
        try_again(state);
    }
}

/// Blocks that no donor can give back any more are lost. Nothing but donors given up for good counts: others may come back.
fn lose_what_is_gone(state: &mut State) {
    let mut lost: Vec<(u32, Location)> = Vec::new();
    for block in 0..state.blocks as u32 {
        let gone = |&(at, _): &(Location, u32)| state.is_beyond_parity(at) && !state.is_doubted(block, at);
        if let Some((at, _)) = state.find(block).filter(gone) {
            lost.push((block, at));
        }
    }
    let mut notes = Vec::new();
    for (index, group) in state.groups.iter().enumerate() {
        let places = group.notes().iter().map(|&(unit, row)| Location { group: index as u32, unit, row });
        notes.extend(places.filter(|&at| state.is_beyond_parity(at)));
    }
    state.note_lost(&lost, !notes.is_empty());
    for at in notes {
        state.kill_note(at);
    }
}

impl State {
    /// Is more of this block's row on donors given up for good than parity could give back?
    fn is_beyond_parity(&self, at: Location) -> bool {
        let group = &self.groups[at.group as usize];
        if group.memory.is_some() || !self.is_gone(at, at.unit) {
            return false;
        }
        let filled = |&unit: &usize| at.row < group.covered(unit) as usize;
        let missing = (0..group.data()).filter(filled).filter(|&unit| self.is_gone(at, unit)).count().max(1);
        let parity = (group.data()..group.members.len()).filter(|&unit| !self.is_gone(at, unit)).count();
        missing > parity
    }
}

/// Something has changed for the better: what could not be done is tried again.
pub(crate) fn try_again(state: &mut State) {
    state.may_have_room();
    state.retry_delay_ns = RETRY_NS;
    retry(state);
}

fn retry(state: &mut State) {
    state.level_at_ns = 0;
    state.returns += 1;
    state.retry_at_ns = None;
    for index in 0..state.groups.len() as u32 {
        if std::mem::take(&mut state.groups[index as usize].hopeless) {
            let group = &state.groups[index as usize];
            if group.id != 0 && group.memory.is_none() && !group.busy {
                state.file(index);
            }
        }
    }
    requeue(state);
}

/// Does the group miss a unit, or is one where it is not to stay?
pub(crate) fn needs_repair(state: &State, index: usize) -> bool {
    let group = &state.groups[index];
    let leaves = |member: &Member| member.exists() && !state.donors[member.donor as usize].keeps();
    group.id != 0 && group.memory.is_none() && (group.incomplete().is_some() || group.members.iter().any(leaves))
}

/// All groups that need it wait for repair.
pub(crate) fn requeue(state: &mut State) {
    if !state.ready {
        // The map is not there; all of it is looked at then.
        return;
    }
    if state.repair_done + state.repair_queue.len() as u64 == state.repair_total {
        (state.repair_done, state.repair_total, state.repair_began_ns) = (0, 0, state.now_ns);
    } else {
        state.repair_total -= state.repair_queue.len() as u64;
    }
    state.repair_queue.clear();
    // What is not safe first: it keeps other groups from being free.
    for incomplete in [true, false] {
        for index in 0..state.groups.len() {
            if state.groups[index].incomplete().is_some() == incomplete && needs_repair(state, index) {
                state.repair_queue.push_back((index as u32, state.groups[index].id));
            }
        }
    }
    state.repair_total += state.repair_queue.len() as u64;
    state.repair_moves();
    state.wake();
}

/// Repair could not do everything: once more later.
pub(crate) fn retry_later(state: &mut State) {
    if state.retry_at_ns.is_none() {
        state.retry_at_ns = Some(state.now_ns + state.retry_delay_ns);
        state.retry_delay_ns = (2 * state.retry_delay_ns).min(RETRY_MAX_NS);
    }
}

/// What depends on time alone.
pub(crate) fn tick(state: &mut State) {
    state.count_donors();
    settle_epoch(state);
    if state.retry_at_ns.is_some_and(|at| state.now_ns >= at) {
        retry(state);
    }
}

/// Donors are to learn who belongs to the disk. `members`: that has changed.
pub(crate) fn new_epoch(state: &mut State, members: bool) {
    if members {
        state.drop_checkpoint();
    }
    state.epoch += 1;
    state.epoch_stored = false;
    state.epoch_changes |= members;
    state.wake();
}

fn hears(donor: &Donor) -> bool {
    use DonorState::{Active, Draining, Joining, Returning};
    matches!(donor.state, Active | Draining | Returning) || (donor.state == Joining && !donor.blank)
}

/// Looks whether the present epoch is known well enough.
pub(crate) fn settle_epoch(state: &mut State) {
    let (epoch, quorum) = (state.epoch, state.plan.parity + 1);
    let sources = |donor: &&Donor| donor.counts() && !donor.stale;
    let there = state.donors.iter().filter(sources).filter(|donor| hears(donor)).count();
    let known = state.donors.iter().filter(sources).filter(|donor| hears(donor) && donor.epoch == epoch).count();
    let all = state.donors.iter().filter(sources).filter(|donor| donor.state != DonorState::Forgotten).count();
    let waits = state.donors.iter().any(|donor| hears(donor) && donor.epoch < epoch && donor.refusals == 0);
    let announced = known >= quorum.min(all);
    let is_new = |donor: &Donor| donor.state == DonorState::Joining && donor.blank;
    state.donors.iter_mut().filter(|donor| is_new(donor)).for_each(|donor| donor.announced |= announced);
    // With too few donors for that nobody joins, and what is there is read.
    let joins = there >= quorum.min(all) && state.donors.iter().any(|donor| is_new(donor) && donor.refusals == 0);
    let need = if state.epoch_changes { quorum.min(all) } else { quorum.min(there) };
    if !state.epoch_stored && (known < need.max(1) || waits || joins) {
        return;
    }
    if !state.epoch_stored {
        (state.epoch_stored, state.epoch_changes) = (true, false);
    }
    let mut joined = false;
    for donor in &mut state.donors {
        let joins = donor.state == DonorState::Joining && !donor.blank;
        let returns = donor.state == DonorState::Returning && !donor.stale && donor.scanned;
        if (joins || returns) && donor.epoch == epoch {
            donor.state = if donor.drains { DonorState::Draining } else { DonorState::Active };
            joined = true;
        }
    }
    if joined {
        state.count_donors();
        try_again(state);
    }
    state.wake();
}

/// Writes superblocks: one epoch after the other, because a late write must not undo a newer one. Runs as long as the disk.
pub(crate) async fn herald(core: Arc<Core>) {
    loop {
        let targets: Vec<usize> = core
            .until(|state| {
                let ready = |donor: &Donor| state.now_ns >= donor.refused_until_ns;
                let with = |wanted: &dyn Fn(&Donor) -> bool| -> Vec<usize> {
                    (0..state.donors.len()).filter(|&n| wanted(&state.donors[n])).collect()
                };
                // A joining donor must have stored its number before the others count it; and before that they must know its
                // birth: it may be away when the next client gives births away.
                let announced = |donor: &Donor| donor.announced || is_planted(Bug::BornTwice);
                let joins = |donor: &Donor| donor.state == DonorState::Joining && donor.blank && announced(donor);
                let joining = with(&|donor| joins(donor) && ready(donor));
                let behind = || with(&|donor| hears(donor) && donor.epoch < state.epoch && ready(donor));
                let targets = if joining.is_empty() { behind() } else { joining };
                (!targets.is_empty()).then_some(targets)
            })
            .await;
        let (epoch, ops) = {
            let state = &mut *core.lock();
            let epoch = state.epoch;
            let (mut ops, mut places): (Vec<Op>, Vec<usize>) = (Vec::new(), Vec::new());
            for &number in &targets {
                let slot = state.superblock(number).encode();
                let donor = &state.donors[number];
                // Never over the newest one: the write may be done in part.
                let place = match donor.slot {
                    Some(newest) if is_planted(Bug::SlotOverwritten) => newest,
                    Some(newest) => 1 - newest,
                    None => 0,
                };
                let at = place * slot.len();
                places.push(place);
                let op = match donor.blank {
                    // Also over whatever the other slot holds.
                    true => {
                        let mut bytes = vec![0; SLOTS_BYTES];
                        bytes[at..at + slot.len()].copy_from_slice(&slot);
                        DonorOp::Write { at: 0, bytes }
                    }
                    false => DonorOp::Write { at: at as u64, bytes: slot },
                };
                ops.push(core.op(state, number as DonorId, op, Purpose::Upkeep));
            }
            (epoch, ops.into_iter().zip(places))
        };
        for (number, (op, place)) in targets.into_iter().zip(ops) {
            let stored = op.await.is_ok();
            let state = &mut *core.lock();
            let donor = &mut state.donors[number];
            if !stored || donor.is_absent() {
                continue;
            }
            donor.slot = Some(place);
            if donor.state == DonorState::Joining && donor.blank {
                donor.blank = false;
                new_epoch(state, true);
            } else {
                (donor.blank, donor.epoch) = (false, epoch);
            }
        }
        let state = &mut *core.lock();
        settle_epoch(state);
        state.wake();
    }
}

impl State {
    /// Requests are served when the donors know the present epoch: before, a disk could not be found again, or a donor that
    /// is missing now could come back after the client's next death with what nobody has seen.
    pub fn serve_when_known(&mut self, core: &Arc<Core>) {
        let core = core.clone();
        self.schedule.spawn(async move {
            core.until(|state| (state.epoch_stored || is_planted(Bug::ServeEarly)).then_some(())).await;
            let state = &mut *core.lock();
            state.ready = true;
            for number in 0..state.donors.len() {
                if state.donors[number].state == DonorState::Returning {
                    state.schedule.spawn(graft(core.clone(), number as DonorId));
                }
            }
            requeue(state);
            state.wake();
        });
    }
}

/// Excludes donors that are not there and that nothing refers to any more. Runs as long as the disk.
pub(crate) async fn excluder(core: Arc<Core>) {
    loop {
        let number = core.until(to_exclude).await;
        let state = &mut *core.lock();
        discard(state, number);
    }
}

fn to_exclude(state: &mut State) -> Option<DonorId> {
    let done = state.ready && state.repair_safe && state.repair_queue.is_empty() && state.epoch_stored;
    if !done || state.repair_done != state.repair_total {
        return None;
    }
    let gone = |donor: &Donor| matches!(donor.state, DonorState::Missing | DonorState::Forgotten);
    let is_free = |number: usize| {
        let scanned = state.donors[number].scanned;
        let named = |group: &Group| group.is_on(number as DonorId) || (!scanned && group.incomplete().is_some());
        !state.groups.iter().any(|group| group.id != 0 && named(group))
    };
    (0..state.donors.len())
        .find(|&number| gone(&state.donors[number]) && is_free(number))
        .map(|number| number as DonorId)
}

/// Erases what is to be erased, a bounded number at a time. Runs as long as the disk.
pub(crate) async fn eraser(core: Arc<Core>) {
    loop {
        let batch = core
            .until(|state| {
                // Before, a checkpoint may count that says otherwise of these units.
                let is_ready = state.ready || !state.checkpoints.enabled;
                let now = state.now_ns;
                let mut batch: Vec<(DonorId, Erase)> = Vec::new();
                for (number, donor) in state.donors.iter_mut().enumerate() {
                    let there = is_ready && !donor.is_absent() && now >= donor.refused_until_ns;
                    while there && donor.erasing.len() < ERASES_AT_ONCE {
                        let is_due = |erase: &Erase| donor.cutting != Some(erase.unit);
                        let Some(place) = donor.erase.iter().position(is_due) else { break };
                        let erase = donor.erase.remove(place).expect("it is there");
                        donor.erasing.push(erase);
                        batch.push((number as DonorId, erase));
                    }
                }
                (!batch.is_empty()).then_some(batch)
            })
            .await;
        let state = &mut *core.lock();
        for (number, erase) in batch {
            let op = match is_planted(Bug::NoErase) {
                true => state.heads_op(erase.unit),
                false => state.erase_op(erase.unit),
            };
            let op = core.op(state, number, op, Purpose::Upkeep);
            let core = core.clone();
            state.schedule.spawn(async move {
                let done = op.await.is_ok();
                core.lock().erased(number, erase.unit, done);
            });
        }
    }
}

impl State {
    fn erased(&mut self, number: DonorId, unit: u32, done: bool) {
        let donor = &mut self.donors[number as usize];
        let Some(place) = donor.erasing.iter().position(|erase| erase.unit == unit) else { return };
        let erase = donor.erasing.swap_remove(place);
        if !done {
            donor.erase.push_back(erase);
        } else if donor.tainted.contains(&unit) {
            donor.tainted_sequence = donor.tainted_sequence.min(erase.first_sequence);
        } else {
            donor.put_free(unit, true);
            self.stuck = false;
        }
        self.wake();
    }
}

/// Looks at what a donor holds that was away when the disk was opened: units that are missing in their groups are taken back,
/// all others are erased. Then it is a donor like the others.
async fn graft(core: Arc<Core>, number: DonorId) {
    let visit = core.lock().returns;
    core.lock().donors[number as usize].visit = visit;
    // It may go away and come back again meanwhile: then there is another one of these.
    let gone = |state: &State| {
        let donor = &state.donors[number as usize];
        donor.state != DonorState::Returning || donor.visit != visit
    };
    if !core.lock().donors[number as usize].scanned {
        let Some(found) = scan::headers(&core, number).await else { return };
        let state = &mut *core.lock();
        if gone(state) {
            return;
        }
        let groups = state.groups.iter().enumerate().filter(|(_, group)| group.id != 0);
        let index_of: HashMap<u64, u32> = groups.map(|(index, group)| (group.id, index as u32)).collect();
        let mut units: Vec<bool> = vec![true; state.donors[number as usize].units as usize];
        for (unit, header) in found {
            let taken = match index_of.get(&header.group) {
                Some(&index) => take_back(state, number, unit, &header, index),
                None => false,
            };
            units[unit as usize] = false;
            if !taken {
                let first = header.lists.iter().flatten().map(|entry| entry.sequence).min().unwrap_or(0);
                state.erase_later(Member { donor: number, unit, count: 1 }, first);
            }
        }
        let donor = &mut state.donors[number as usize];
        donor.blank_units.clear();
        donor.closed.clear();
        donor.closed_blank.clear();
        donor.free = (0..donor.units).rev().filter(|&unit| units[unit as usize]).collect();
        donor.scanned = true;
        try_again(state);
    }
    while cut(&core, number, &gone).await {}
    let erased = core
        .until(|state| {
            let donor = &state.donors[number as usize];
            let clean = donor.erase.is_empty() && donor.erasing.is_empty();
            (gone(state) || clean).then_some(!gone(state))
        })
        .await;
    if erased {
        let state = &mut *core.lock();
        state.donors[number as usize].stale = false;
        new_epoch(state, false);
    }
}

/// Makes the next header shorter that lists more than is known; false when there is none, or the donor is not there.
async fn cut(core: &Arc<Core>, number: DonorId, gone: &impl Fn(&State) -> bool) -> bool {
    let (unit, header) = {
        let state = &mut *core.lock();
        let cuts = &state.donors[number as usize].cuts;
        let Some((unit, header)) = cuts.front().filter(|_| !gone(state)).cloned() else { return false };
        let is_at = |group: &Group| {
            let member = group.members.get(header.member as usize).filter(|_| group.id == header.group);
            member.is_some_and(|member| member.donor == number && member.unit == unit)
        };
        if !state.groups.iter().any(is_at) {
            // It has been freed.
            state.donors[number as usize].cuts.pop_front();
            return true;
        }
        // Not erased meanwhile: the header would be there again.
        state.donors[number as usize].cutting = Some(unit);
        (unit, header)
    };
    let mut done = true;
    for slot in 0..HEADER_SLOTS {
        let op = {
            let state = &mut *core.lock();
            let op = state.cut_op(unit, slot, &header);
            core.op(state, number, op, Purpose::Upkeep)
        };
        done = done && op.await.is_ok();
    }
    {
        let state = &mut *core.lock();
        let donor = &mut state.donors[number as usize];
        donor.cutting = None;
        if done && donor.cuts.front().is_some_and(|(first, _)| *first == unit) {
            donor.cuts.pop_front();
        }
        state.wake();
    }
    if !done {
        scan::pause(core, REFUSED_NS).await;
    }
    true
}

/// Is this unit the one its group misses? The group knows only what was there when the disk was opened, and no more counts.
fn take_back(state: &mut State, number: DonorId, unit: u32, header: &UnitHeader, index: u32) -> bool {
    let buffer = state.plan.buffer;
    let group = &mut state.groups[index as usize];
    let place = header.member as usize;
    let rows = header.lists.iter().map(Vec::len).max().unwrap_or(0);
    let fits = group.id == header.group
        && group.memory.is_none()
        && group.data() == header.data as usize
        && group.members.len() == group.data() + header.parity as usize
        && rows <= buffer
        && !group.members[place].exists();
    let data = group.data();
    if !fits || group.incomplete().is_none() {
        return false;
    }
    let others = group.members[data..].iter().any(Member::exists);
    let Some(found) = group.incomplete_mut() else { return false };
    if place < data {
        let known = &found.lists[place];
        // With nothing of it known, all it lists is news.
        if known.is_empty() || !header.lists[0].starts_with(known) {
            return false;
        }
        let known = known.clone();
        found.own[place] = known.len() as u8;
        group.members[place] = Member { donor: number, unit, count: known.len() as u8 };
        if header.lists[0].len() > known.len() {
            let header = UnitHeader { lists: vec![known], cut: header.cut + 1, ..header.clone() };
            state.cut_later(number, unit, header);
        }
    } else {
        let same = header.lists.iter().zip(&found.lists).all(|(own, known)| own.iter().zip(known).all(|(a, b)| a == b));
        // Rows with blocks that are not known, or not there, are of no use.
        let news = |(own, known): (&Vec<UnitEntry>, &Vec<UnitEntry>)| (own.len() > known.len()).then_some(known.len());
        let rows = header.lists.iter().zip(&found.lists).filter_map(news).min().unwrap_or(usize::MAX);
        let rows = rows.min(found.absent);
        let lists: Vec<Vec<UnitEntry>> =
            header.lists.iter().map(|list| list.iter().take(rows).copied().collect()).collect();
        let lens: Vec<u8> = lists.iter().map(|list| list.len() as u8).collect();
        let count = lens.iter().copied().max().unwrap_or(0);
        if !same || count == 0 || (others && lens != found.covered) {
            return false;
        }
        found.covered = lens;
        group.members[place] = Member { donor: number, unit, count };
        if lists != header.lists {
            let header = UnitHeader { lists, cut: header.cut + 1, ..header.clone() };
            state.cut_later(number, unit, header);
        }
    }
    true
}

impl State {
    /// What a unit lists that nobody has seen must be gone before its donor is a source again.
    fn cut_later(&mut self, number: DonorId, unit: u32, header: UnitHeader) {
        if !is_planted(Bug::NewsKept) {
            self.donors[number as usize].cuts.push_back((unit, header));
        }
    }
}
