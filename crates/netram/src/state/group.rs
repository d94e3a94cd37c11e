//! Groups, kept as small as possible, and the orders in which jobs search them. A large disk has
//! ten million groups.
//!
//! Owns: [`Group`] and [`Groups`]. Rules: what few groups have is in a separate box ([`Rare`]),
//! which is dropped when it is empty. A group is in memory, claimed by one job, or *filed*: by its
//! live blocks for the cleaner, or as dead for the reaper. Left out: what happens to groups
//! (`upkeep`).

use std::ops::{Index, IndexMut};

use std::collections::BTreeSet;

use shoal_format::ram::{GroupId, LOST, UnitEntry};

use crate::api::DonorId;
use crate::planted::{Bug, is_planted};
use crate::state::memory::Memory;
use crate::state::place::{Location, Member, Members, Spot};
use crate::state::unit::Head;

/// A group of units. Its members are the data units, then the parity units.
#[derive(Default)]
pub(crate) struct Group {
    /// 0: this place is unused.
    pub id: GroupId,
    /// Lowest sequence of its entries, and of the losses that its lists name.
    pub first_sequence: u64,
    /// Upper bound (exclusive) of the sequences of blocks that replaced blocks of this group.
    killed: u64,
    pub members: Members,
    memory: Option<Box<Memory>>,
    rare: Option<Box<Rare>>,
    /// At most 255 units of 64 blocks.
    live: u16,
    data: u8,
    /// A job works on it: it must not be cleaned, freed or moved.
    busy: bool,
    entries: Entries,
    /// Its live blocks could not be moved. It is not tried again before something changes.
    hopeless: bool,
    /// Number of live blocks for which it is filed for the cleaner; 0: it is not filed there.
    filed: u16,
}

/// What is known of a group's entries.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Entries {
    /// Blocks, as requests wrote them.
    #[default]
    Written,
    /// Blocks that outlived their former groups: the cleaner filled it.
    Moved,
    /// There may be lists of ranges among them.
    Ranges,
}

/// Parts that few groups have.
#[derive(Default)]
struct Rare {
    /// Set for groups found incomplete at opening: units are missing, or parity covers only the
    /// first blocks of each data unit.
    incomplete: Option<Incomplete>,
    /// Lists of trimmed ranges that still count.
    notes: Vec<Spot>,
    /// Number of reasons to keep the group: older copies of blocks that opening found and that are
    /// not safe yet (`found`).
    held: u32,
    /// Places (unit, row) of blocks that their donors return with other contents than they were
    /// sent.
    damaged: Vec<(u8, u8)>,
    /// It was abandoned before any of it was safe: no flush covers anything in it.
    was_never_safe: bool,
}

/// A block that was added to an open group.
pub(crate) struct Pushed {
    pub spot: Spot,
    /// The group is full now.
    pub is_full: bool,
}

pub(crate) struct Incomplete {
    /// Blocks of each data unit that the parity covers.
    pub covered: Vec<u8>,
    /// Blocks that each data unit holds itself.
    pub own: Vec<u8>,
    /// Blocks of each data unit that count.
    pub lists: Vec<Vec<UnitEntry>>,
    /// First row with a listed block that all donors asked said is not there. A parity unit that
    /// was away could compute that block. What this opening did not find, the next one must not
    /// find either.
    pub absent: usize,
}

impl Group {
    pub fn new(id: GroupId, data: usize, members: impl Into<Members>) -> Group {
        Group { id, data: data as u8, members: members.into(), first_sequence: u64::MAX, ..Group::default() }
    }

    /// Builds a group that opening found.
    pub fn found(id: GroupId, data: usize, members: Vec<Member>, first_sequence: u64) -> Group {
        Group { first_sequence, ..Group::new(id, data, members) }
    }

    /// Returns whether there is a group at this place.
    pub fn exists(&self) -> bool {
        !self.id.is_none()
    }

    /// Number of its blocks and lists that count.
    pub fn live(&self) -> u32 {
        self.live.into()
    }

    /// Upper bound (exclusive) of the sequences of blocks that replaced blocks of this group.
    pub fn killed(&self) -> u64 {
        self.killed
    }

    /// Records that the cleaner fills it, with blocks that outlived their former groups.
    pub fn holds_moved(&mut self) {
        self.entries = Entries::Moved;
    }

    /// Records that there may be lists of ranges among its entries, also such that no longer count.
    pub fn may_hold_ranges(&mut self) {
        self.entries = Entries::Ranges;
    }

    /// Returns whether its headers may list nothing but blocks.
    pub fn lists_blocks_only(&self) -> bool {
        self.entries != Entries::Ranges
    }

    /// Number of sequences since its first entry; `None`: its blocks outlived a former group.
    pub fn age(&self, next_sequence: u64) -> Option<u64> {
        (self.entries == Entries::Written).then(|| next_sequence.saturating_sub(self.first_sequence))
    }

    /// Returns whether a job works on it, so that it must not be cleaned, freed or moved.
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    pub fn memory(&self) -> Option<&Memory> {
        self.memory.as_deref()
    }

    pub fn memory_mut(&mut self) -> Option<&mut Memory> {
        self.memory.as_deref_mut()
    }

    pub fn is_in_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Returns whether it is sealed and no job works on it.
    pub fn rests(&self) -> bool {
        self.exists() && self.memory.is_none() && !self.busy
    }

    /// Adds a block to an open group.
    pub fn push(&mut self, bytes: &[u8], entry: UnitEntry, origin: u64, rows: usize, now_ns: u64) -> Pushed {
        let memory = self.memory.as_mut().expect("an open group is in memory");
        let spot = memory.push(bytes, entry, origin, rows, now_ns);
        self.members[spot.unit].count = spot.row as u8 + 1;
        // A list of losses names blocks by sequences from before its own, but none from before its
        // origin.
        let first = if entry.block == LOST && !is_planted(Bug::OldLosses) { origin } else { entry.sequence };
        self.first_sequence = self.first_sequence.min(first);
        Pushed { spot, is_full: spot.unit + 1 == self.data() && spot.row + 1 == rows }
    }

    /// Prepares an abandoned group to be sent once more, with other units at some places.
    pub fn revive(&mut self, units: &[(usize, Member)]) {
        let memory = self.memory.as_mut().expect("an abandoned group keeps its memory");
        for &(place, member) in units {
            self.members[place] = member;
            memory.heads[place] = Head::default();
        }
        memory.revive();
    }

    /// Number of its data units.
    pub fn data(&self) -> usize {
        self.data as usize
    }

    pub fn incomplete(&self) -> Option<&Incomplete> {
        self.rare.as_ref().and_then(|rare| rare.incomplete.as_ref())
    }

    pub fn incomplete_mut(&mut self) -> Option<&mut Incomplete> {
        self.rare.as_mut().and_then(|rare| rare.incomplete.as_mut())
    }

    pub fn set_incomplete(&mut self, found: Option<Incomplete>) {
        self.change_rare(|rare| rare.incomplete = found);
    }

    pub fn notes(&self) -> &[Spot] {
        self.rare.as_ref().map_or(&[], |rare| &rare.notes)
    }

    pub fn add_note(&mut self, spot: Spot) {
        self.may_hold_ranges();
        self.change_rare(|rare| rare.notes.push(spot));
    }

    /// Removes the list of ranges at this place. Returns false if there was none.
    pub fn remove_note(&mut self, spot: Spot) -> bool {
        let found = self.notes().iter().position(|&other| other == spot);
        if let Some(found) = found {
            self.change_rare(|rare| {
                rare.notes.swap_remove(found);
            });
        }
        found.is_some()
    }

    pub fn is_held(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.held > 0)
    }

    /// Returns whether the group has blocks that count, or that may have to count again, and can be emptied.
    pub fn is_needed(&self) -> bool {
        self.exists() && !self.hopeless && (self.live > 0 || self.is_held())
    }

    /// Adds a reason to keep the group.
    pub fn hold(&mut self) {
        self.change_rare(|rare| rare.held += 1);
    }

    pub fn let_go(&mut self) {
        self.change_rare(|rare| rare.held -= 1);
    }

    pub fn was_never_safe(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.was_never_safe)
    }

    /// Returns whether the group has a block known to differ from what was sent.
    pub fn is_damaged(&self) -> bool {
        self.damaged_blocks() > 0
    }

    pub fn damaged_blocks(&self) -> usize {
        self.rare.as_ref().map_or(0, |rare| rare.damaged.len())
    }

    pub fn is_damaged_at(&self, place: usize) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.damaged.iter().any(|&(unit, _)| unit as usize == place))
    }

    /// Records a damaged block. Returns false if the damage was already known.
    pub fn add_damage(&mut self, place: usize, row: usize) -> bool {
        let at = (place as u8, row as u8);
        let is_new = !self.rare.as_ref().is_some_and(|rare| rare.damaged.contains(&at));
        if is_new {
            self.change_rare(|rare| rare.damaged.push(at));
        }
        is_new
    }

    /// Forgets the damage of a unit that was written again.
    pub fn mend(&mut self, place: usize) {
        self.change_rare(|rare| rare.damaged.retain(|&(unit, _)| unit as usize != place));
    }

    fn change_rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_default();
        change(&mut rare);
        let says = rare.incomplete.is_some() || !rare.notes.is_empty() || rare.held > 0 || !rare.damaged.is_empty();
        let says = says || rare.was_never_safe;
        self.rare = says.then_some(rare);
    }

    /// Returns whether the donor has a unit of the group.
    pub fn is_on(&self, donor: DonorId) -> bool {
        self.members.iter().any(|member| member.is_on(donor))
    }

    /// Number of a data unit's blocks that the parity covers.
    pub fn covered(&self, unit: usize) -> u8 {
        self.incomplete().map_or(self.members[unit].count, |found| found.covered[unit])
    }

    pub fn is_abandoned(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.abandoned)
    }

    /// Number of blocks that a data unit holds itself.
    pub fn own(&self, unit: usize) -> u8 {
        self.incomplete().map_or(self.members[unit].count, |found| found.own[unit])
    }
}

/// The effects of a block's death on its group.
pub(crate) struct Killed {
    /// The group has been refiled for the cleaner.
    pub filed: bool,
    /// The group has been filed for the reaper: nothing of it lives.
    pub is_dead: bool,
    /// The block was the last one of a group that needed repair.
    pub ends_repair: bool,
}

/// All groups of a disk, and the orders in which jobs search them.
#[derive(Default)]
pub(crate) struct Groups {
    places: Vec<Group>,
    unused: Vec<u32>,
    /// Sealed groups that no job works on and that may be cleaned, by live blocks.
    by_live: BTreeSet<(u16, u32)>,
    /// Groups that have fewer live blocks than they are filed for. Writes kill blocks far more often than the cleaner
    /// searches.
    sunk: Vec<u32>,
    /// Dead groups, by the sequence that killed their last block.
    dying: BTreeSet<(u64, u32)>,
    /// Dead groups of which nothing was ever safe, in the same order.
    dying_unsafe: BTreeSet<(u64, u32)>,
    /// Groups in memory.
    in_memory: Vec<u32>,
    next: GroupId,
    first_new: GroupId,
    changed: bool,
}

impl Index<u32> for Groups {
    type Output = Group;

    fn index(&self, place: u32) -> &Group {
        &self.places[place as usize]
    }
}

impl IndexMut<u32> for Groups {
    fn index_mut(&mut self, place: u32) -> &mut Group {
        &mut self.places[place as usize]
    }
}

impl Groups {
    pub fn new() -> Groups {
        Groups { next: GroupId::new(1), changed: true, ..Groups::default() }
    }

    /// Places of groups, used or not.
    pub fn places(&self) -> u32 {
        self.places.len() as u32
    }

    /// Returns the groups and their places.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Group)> {
        self.places.iter().enumerate().filter(|(_, group)| group.exists()).map(|(place, group)| (place as u32, group))
    }

    pub fn get_mut(&mut self, place: u32) -> Option<&mut Group> {
        self.places.get_mut(place as usize)
    }

    /// Returns whether the donor has a unit of any group.
    pub fn are_on(&self, donor: DonorId) -> bool {
        self.places.iter().any(|group| group.is_on(donor))
    }

    /// Number of the next new group.
    pub fn next_number(&self) -> GroupId {
        self.next
    }

    /// Keeps new groups from getting a number below this one.
    pub fn number_from(&mut self, number: GroupId) {
        self.next = self.next.max(number);
    }

    /// Returns whether the group was made after the disk was opened.
    pub fn is_new(&self, id: GroupId) -> bool {
        id >= self.first_new
    }

    /// Drops all groups, because opening starts again.
    pub fn clear(&mut self) {
        self.places.clear();
        self.unused.clear();
        self.by_live.clear();
        self.sunk.clear();
        self.dying.clear();
        self.dying_unsafe.clear();
    }

    /// Makes `places` places without groups, with capacity for `more`.
    pub fn make_places(&mut self, places: usize, more: usize) {
        self.places = Vec::with_capacity(places + more);
        self.places.resize_with(places, Group::default);
    }

    pub fn insert(&mut self, group: Group) -> u32 {
        match self.unused.pop() {
            Some(place) => {
                self.places[place as usize] = group;
                place
            }
            None => {
                self.places.push(group);
                self.places() - 1
            }
        }
    }

    /// Opens a new group in memory.
    pub fn open(&mut self, members: Vec<Member>, data: usize, memory: Memory) -> u32 {
        let mut group = Group::new(self.next, data, members);
        self.next = self.next.next();
        group.memory = Some(Box::new(memory));
        let place = self.insert(group);
        self.in_memory.push(place);
        place
    }

    /// Drops a group's memory, because donors have all of it, or because nothing of it lives.
    pub fn seal(&mut self, place: u32) {
        let memory = self[place].memory.take();
        let is_none_safe =
            |memory: &Memory| memory.safe.iter().all(|&count| count == 0) || is_planted(Bug::SafeForgotten);
        let was_never_safe = |memory: Box<Memory>| memory.abandoned && is_none_safe(&memory);
        if memory.is_some_and(was_never_safe) {
            self[place].change_rare(|rare| rare.was_never_safe = true);
        }
        self.in_memory.retain(|&other| other != place);
        self.file(place);
    }

    /// Groups in memory.
    pub fn in_memory(&self) -> &[u32] {
        &self.in_memory
    }

    /// The groups in memory and their places.
    pub fn memories(&self) -> impl Iterator<Item = (u32, &Memory)> {
        self.in_memory.iter().filter_map(|&place| Some((place, self[place].memory()?)))
    }

    /// Removes a group and frees its place. The caller handles its units.
    pub fn remove(&mut self, place: u32) -> Group {
        self.unused.push(place);
        std::mem::take(&mut self[place])
    }

    /// Counts one more live block or list of the group.
    pub fn gain(&mut self, place: u32) {
        self[place].live += 1;
    }

    /// Counts one more live block or list of a group that may already be filed.
    pub fn regain(&mut self, place: u32) {
        let rests = self[place].rests();
        self.unfile(place);
        self.gain(place);
        if rests {
            self.file(place);
        }
    }

    /// Adds live blocks to the first groups, on top of those already counted.
    pub fn add_live(&mut self, live: &[u16]) {
        self.places.iter_mut().zip(live).for_each(|(group, &live)| group.live += live);
    }

    /// Drops a list that opening found and that does not count.
    pub fn lose_note(&mut self, at: Location) {
        self[at.group].remove_note(at.spot());
        self[at.group].live -= 1;
    }

    /// Counts one block or list of the group as dead. Its successor has a sequence below
    /// `sequence`.
    pub fn kill(&mut self, place: u32, sequence: u64) -> Killed {
        self.changed = true;
        let group = &mut self[place];
        let live = group.live;
        (group.live, group.killed) = (live - 1, sequence);
        let (rests, is_last) = (group.rests(), live == 1);
        let killed =
            Killed { filed: rests, is_dead: rests && is_last, ends_repair: is_last && group.incomplete().is_some() };
        if killed.is_dead {
            self.unfile(place);
            self.file(place);
        } else if group.filed == live {
            self.sunk.push(place);
            if self.sunk.len() > self.places.len() {
                self.refile();
            }
        }
        killed
    }

    /// Files a sealed group that no job works on for the cleaner or the reaper.
    fn file(&mut self, place: u32) {
        let group = &mut self.places[place as usize];
        debug_assert!(group.memory.is_none() && !group.busy);
        self.changed = true;
        match group.live {
            0 if group.was_never_safe() => drop(self.dying_unsafe.insert((group.killed, place))),
            0 => drop(self.dying.insert((group.killed, place))),
            _ if group.hopeless => {}
            live => {
                group.filed = live;
                self.by_live.insert((live, place));
            }
        }
    }

    fn unfile(&mut self, place: u32) {
        let group = &mut self.places[place as usize];
        self.by_live.remove(&(std::mem::take(&mut group.filed), place));
        self.dying.remove(&(group.killed, place));
        self.dying_unsafe.remove(&(group.killed, place));
    }

    /// Files groups for the live blocks that they have by now. Called before a search.
    pub fn refile(&mut self) {
        for place in std::mem::take(&mut self.sunk) {
            let group = &mut self.places[place as usize];
            if group.filed > group.live {
                self.by_live.remove(&(group.filed, place));
                group.filed = group.live;
                self.by_live.insert((group.live, place));
            }
        }
    }

    /// Files all groups for the cleaner and the reaper once opening has found them.
    pub fn file_all(&mut self) {
        let dead = self.iter().filter(|(_, group)| group.live == 0);
        self.dying = dead.map(|(place, group)| (group.killed, place)).collect();
        self.places.iter_mut().for_each(|group| group.filed = group.live);
        let alive = self.iter().filter(|(_, group)| group.live > 0);
        self.by_live = alive.map(|(place, group)| (group.live, place)).collect();
        self.sunk.clear();
        self.unused = (0..self.places()).rev().filter(|&place| !self[place].exists()).collect();
        self.changed = true;
        self.first_new = self.next;
    }

    /// Takes a sealed group away from the cleaner and the reaper. [`Groups::release`] must follow.
    pub fn claim(&mut self, place: u32) {
        self.unfile(place);
        self[place].busy = true;
    }

    pub fn release(&mut self, place: u32) {
        self[place].busy = false;
        self.file(place);
    }

    /// Sealed groups that may be cleaned: live blocks and place, the fewest blocks first.
    pub fn by_live(&self) -> impl Iterator<Item = (u32, u32)> {
        debug_assert!(self.sunk.is_empty(), "a search begins with `refile`");
        self.by_live.iter().map(|&(live, place)| (live.into(), place))
    }

    /// Dead groups: the sequence that killed their last block, and their place.
    pub fn dying(&self) -> impl Iterator<Item = (u64, u32)> {
        self.dying.iter().copied()
    }

    /// Like [`Groups::dying`], for groups of which nothing was ever safe.
    pub fn dying_unsafe(&self) -> impl Iterator<Item = (u64, u32)> {
        self.dying_unsafe.iter().copied()
    }

    /// Takes a dead group out of the reaper's queue.
    pub fn reap(&mut self, killed: u64, place: u32) {
        self.dying.remove(&(killed, place));
        self.dying_unsafe.remove(&(killed, place));
    }

    /// Ends an attempt to move the live blocks of a claimed group, of which there were `before`.
    /// Returns false if none was moved although there was room: the group is not tried again before
    /// something changes.
    pub fn moved(&mut self, place: u32, before: u32, is_full: bool) -> bool {
        let group = &mut self[place];
        group.hopeless = group.live > 0 && group.live() == before && !is_full;
        !group.hopeless
    }

    /// Allows groups that could not be moved to be tried again. Returns whether there were any.
    pub fn try_again(&mut self) -> bool {
        let mut any = false;
        for place in 0..self.places() {
            if std::mem::take(&mut self[place].hopeless) && self[place].rests() {
                self.file(place);
                any = true;
            }
        }
        any
    }

    /// Returns whether anything has died since the cleaner last found nothing.
    pub fn has_changed(&self) -> bool {
        self.changed
    }

    /// Records that the cleaner found nothing.
    pub fn is_searched(&mut self) {
        self.changed = false;
    }
}

#[cfg(test)]
mod tests {
    use shoal_format::ram::TRIMMED;

    use super::*;
    use crate::api::Purpose;
    use crate::state::place::Member;

    #[test]
    fn a_group_of_four_units_needs_88_bytes_and_no_allocation() {
        assert_eq!(size_of::<Group>(), 88);
        assert!(matches!(Members::from(vec![Member::NONE; 4]), Members::Few(4, _)));
        assert!(matches!(Members::from(vec![Member::NONE; 5]), Members::Many(_)));
    }

    #[test]
    fn what_says_nothing_is_given_back() {
        let mut group = Group::new(GroupId::new(1), 1, vec![Member::NONE; 2]);
        let spot = Spot { unit: 0, row: 3 };
        group.add_note(spot);
        group.hold();
        assert!(group.rare.is_some() && group.is_held() && group.notes() == [spot]);
        group.let_go();
        assert!(group.remove_note(spot) && !group.remove_note(spot));
        assert!(group.rare.is_none());
    }

    #[test]
    fn a_group_is_as_old_as_the_losses_that_its_lists_name() {
        let mut groups = Groups::default();
        let index = groups.open(vec![Member::NONE; 3], 2, Memory::new(2, 3, 64, Purpose::Clean, 0));
        let mut push = |block, sequence| {
            let entry = UnitEntry { block, sum: 0, sequence };
            groups[index].push(&[0; 16], entry, 5, 4, 0);
            groups[index].first_sequence
        };
        // Lists of trims and moved blocks say nothing about sequences below their own.
        assert_eq!(push(7, 30), 30);
        assert_eq!(push(TRIMMED, 31), 30);
        assert_eq!(push(LOST, 32), 5);
    }
}
