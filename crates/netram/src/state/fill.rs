//! Filling groups: blocks go into open groups, where they stay in memory until they are sent.
//!
//! Rules: a block that is not in flight yet is overwritten in place. A group is opened on the
//! emptiest donors. Writers leave the units that are kept for cleaning, for lists, and for blocks that
//! would have to move if a donor were lost. Left out: which cache a request uses (`open_groups`),
//! sending (`requests::send`).

use shoal_format::ram;
use shoal_format::ram::UnitEntry;

use crate::api::Purpose;
use crate::state::State;
use crate::state::map::Mapped;
use crate::state::memory::Memory;
use crate::state::place::{Location, Member};
use crate::state::room::NOTE_UNITS;

/// Groups in memory beyond the caches, being sent to donors.
const GROUPS_ON_THE_WAY: usize = 24;

/// A block that was put into a cache's group.
#[derive(Clone, Copy)]
pub(crate) struct Put {
    pub at: Location,
    /// The group is full now.
    pub is_full: bool,
}

impl State {
    /// Opens a group for a cache. `None`: there is no room, or too many groups are being sent.
    fn open(&mut self, cache: usize, for_note: bool) -> Option<u32> {
        let cleaning = cache == self.open.cleaning();
        let on_the_way = self.groups.in_memory().len() >= self.open.caches() + GROUPS_ON_THE_WAY;
        if on_the_way && !cleaning {
            return None;
        }
        let parity = self.plan.parity;
        let reserve = match (cleaning, for_note) {
            (true, true) => 0,
            (true, false) => NOTE_UNITS,
            (false, _) => self.room().writers_reserve(),
        };
        let width = match cleaning || self.shortage.is_narrow() {
            true => self.roster().width(reserve),
            false => (self.plan.data + parity).min(self.roster().takers()),
        };
        if width < parity + 1 {
            return None;
        }
        let members = self.take_units(width, reserve)?;
        let data = width - parity;
        let purpose = if cleaning { Purpose::Clean } else { Purpose::Write };
        let memory = Memory::new(data, width, self.plan.buffer * self.shape.block_bytes, purpose, self.now_ns);
        let index = self.groups.open(members, data, memory);
        if cleaning {
            self.groups[index].holds_moved();
        }
        self.open.open(cache, index);
        Some(index)
    }

    /// Chooses the cache for a request that begins at `block`.
    pub fn cache_for(&self, block: u32) -> usize {
        self.open.hot().filter(|_| self.is_hot(block)).unwrap_or_else(|| self.open.choose(block))
    }

    /// Returns whether the block was written a short time ago, so that what is written now is likely
    /// to be overwritten soon, too.
    fn is_hot(&self, block: u32) -> bool {
        let Some(Mapped { at, .. }) = self.map.find(block) else { return false };
        let soon = u64::from(self.config.hot_groups) * (self.plan.data * self.plan.buffer) as u64;
        self.groups[at.group].age(self.next_sequence).is_some_and(|age| age < soon)
    }

    /// Overwrites a block that is in memory and not in flight yet.
    fn absorb(&mut self, block: u32, bytes: &[u8], sum: u32) -> bool {
        let Some(Mapped { at, .. }) = self.map.find(block) else { return false };
        let entry = UnitEntry { block, sum, sequence: self.next_sequence };
        let Some(memory) = self.groups[at.group].memory_mut() else { return false };
        if !memory.overwrite(at.unit, at.row, bytes, entry) {
            return false;
        }
        self.next_sequence += 1;
        self.map.renew(block, at, sum);
        self.counts.absorbed += 1;
        true
    }

    /// Stores a block in a cache's group and maps it there. `origin`: the sequence up to which a
    /// flush waits for it, if it is no new write. `None`: there is no room now.
    pub fn place(&mut self, block: u32, bytes: &[u8], cache: usize, origin: Option<u64>) -> Option<Put> {
        let sum = self.shape.block_sums.of(bytes);
        let is_note = ram::is_note(block);
        if !is_note && origin.is_none() && self.absorb(block, bytes, sum) {
            let at = self.map.find(block).expect("it was absorbed where it is").at;
            return Some(Put { at, is_full: false });
        }
        let own = self.open.group(cache).or_else(|| self.open(cache, is_note));
        // Without room for another group, the block goes to one that other caches fill.
        let Some(index) = own.or_else(|| self.open.other_than_cleaners(cache)) else {
            self.shortage.want();
            return None;
        };
        let sequence = self.take_sequence();
        let entry = UnitEntry { block, sum, sequence };
        let group = &mut self.groups[index];
        let pushed = group.push(bytes, entry, origin.unwrap_or(sequence), self.plan.buffer, self.now_ns);
        self.groups.gain(index);
        let at = pushed.spot.within(index);
        if is_note {
            self.groups[index].add_note(pushed.spot);
        } else {
            if !self.unmap(block) {
                self.counts.unmapped_written += 1;
            }
            self.map.insert(block, at, sum);
        }
        if cache != self.open.cleaning() {
            self.shortage.got_room();
        }
        if pushed.is_full {
            self.open.leave(index);
        }
        Some(Put { at, is_full: pushed.is_full })
    }

    /// Handles a cache that filled its group. Returns another group that is closed as it is because
    /// of that.
    pub fn filled(&mut self, cache: usize) -> Option<u32> {
        let closed = self.open.filled(cache)?;
        self.close(closed);
        Some(closed)
    }

    /// Closes a group to further blocks and gives back units it never used.
    pub fn close(&mut self, index: u32) {
        let group = &mut self.groups[index];
        let data = group.data();
        let memory = group.memory_mut().expect("an open group is in memory");
        memory.full = true;
        let unused: Vec<usize> = (0..data).filter(|&unit| memory.lists[unit].is_empty()).collect();
        let members: Vec<Member> =
            unused.iter().map(|&unit| std::mem::replace(&mut group.members[unit], Member::NONE)).collect();
        members.into_iter().for_each(|member| self.give_back(member));
    }
}
