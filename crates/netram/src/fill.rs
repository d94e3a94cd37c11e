//! Filling groups: from a cache's blocks to groups in memory.

use shoal_format::ram::UnitEntry;
use shoal_format::{checksum, ram};

use crate::api::Purpose;
use crate::group::Group;
use crate::memory::Memory;
use crate::place::{Location, Member};
use crate::room::{NOTE_UNITS, RESERVE_UNITS};
use crate::state::State;
use crate::unit::Head;

/// Groups in memory beyond the caches, on their way to donors.
const GROUPS_ON_THE_WAY: usize = 24;

impl State {
    /// Opens a group for a cache. `None`: no room, or too many groups are on their way.
    fn open(&mut self, cache: usize, for_note: bool) -> Option<u32> {
        let cleaning = cache == self.cleaning();
        let on_the_way = self.in_memory.len() >= self.caches.len() + GROUPS_ON_THE_WAY;
        if on_the_way && !cleaning {
            return None;
        }
        let parity = self.plan.parity;
        let reserve = match (cleaning, for_note) {
            (true, true) => 0,
            (true, false) => NOTE_UNITS,
            (false, _) => RESERVE_UNITS,
        };
        let width = match cleaning || self.narrow {
            true => self.width(reserve),
            false => (self.plan.data + parity).min(self.takers()),
        };
        if width < parity + 1 {
            return None;
        }
        let members = self.take_units(width, reserve)?;
        let data = width - parity;
        let unit = Vec::with_capacity(self.plan.buffer * self.shape.block_bytes);
        let memory = Memory {
            buffers: vec![unit; data],
            lists: vec![Vec::new(); data],
            origins: vec![Vec::new(); data],
            heads: vec![Head::default(); width],
            sent: vec![0; data],
            stored: vec![0; data],
            safe: vec![0; data],
            unsafe_from: u64::MAX,
            full: false,
            sending: false,
            parity_wanted: false,
            abandoned: false,
            again: false,
            purpose: if cleaning { Purpose::Clean } else { Purpose::Write },
            unsafe_since_ns: self.now_ns,
        };
        let id = self.next_group;
        self.next_group += 1;
        let mut group = Group::new(id, data, members);
        group.memory = Some(Box::new(memory));
        let index = self.insert_group(group);
        self.in_memory.push(index);
        self.caches[cache].group = Some(index);
        Some(index)
    }

    /// Overwrites a block that is in memory and not yet on its way.
    pub fn absorb(&mut self, block: u32, bytes: &[u8], crc: u32) -> bool {
        let Some((at, _)) = self.find(block) else { return false };
        let block_bytes = self.shape.block_bytes;
        let sequence = self.next_sequence;
        let Some(memory) = &mut self.groups[at.group as usize].memory else { return false };
        if at.row < memory.sent[at.unit] as usize || memory.abandoned {
            return false;
        }
        memory.buffers[at.unit][at.row * block_bytes..][..block_bytes].copy_from_slice(bytes);
        memory.lists[at.unit][at.row] = UnitEntry { block, crc, sequence };
        self.next_sequence += 1;
        self.table[block as usize] = self.pack(at, crc);
        self.counts.absorbed += 1;
        true
    }

    /// Stores a block in a cache's group and maps it there. `origin`: what a flush waits for, if it is no new write.
    /// `None`: no room now. Returns the place, and whether the group is full.
    pub fn place(&mut self, block: u32, bytes: &[u8], cache: usize, origin: Option<u64>) -> Option<(Location, bool)> {
        let crc = checksum(0, bytes);
        let is_note = ram::is_note(block);
        if !is_note && origin.is_none() && self.absorb(block, bytes, crc) {
            let (at, _) = self.find(block).expect("it was absorbed where it is");
            return Some((at, false));
        }
        let index = match self.caches[cache].group {
            Some(index) => index,
            None => match self.open(cache, is_note) {
                Some(index) => index,
                None => {
                    self.room_wanted = true;
                    return None;
                }
            },
        };
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let origin = origin.unwrap_or(sequence);
        let buffer = self.plan.buffer;
        let group = &mut self.groups[index as usize];
        let data = group.data();
        let memory = group.memory.as_mut().expect("an open group is in memory");
        let unit = (0..data).find(|&unit| memory.lists[unit].len() < buffer).expect("an open group has room");
        let row = memory.lists[unit].len();
        memory.buffers[unit].extend_from_slice(bytes);
        memory.lists[unit].push(UnitEntry { block, crc, sequence });
        memory.origins[unit].push(origin);
        if memory.unsafe_from == u64::MAX {
            memory.unsafe_since_ns = self.now_ns;
        }
        memory.unsafe_from = memory.unsafe_from.min(origin);
        group.members[unit].count = row as u8 + 1;
        group.first_sequence = group.first_sequence.min(sequence);
        group.live += 1;
        let full = unit + 1 == data && row + 1 == buffer;
        memory.full |= full;
        let at = Location { group: index, unit, row };
        if is_note {
            self.groups[index as usize].add_note((unit, row));
        } else {
            if !self.unmap(block) {
                self.counts.unmapped_written += 1;
            }
            self.counts.mapped += 1;
            self.table[block as usize] = self.pack(at, crc);
            self.lost_blocks.remove(&block);
        }
        if cache != self.cleaning() {
            self.cleaned_in_vain = 0;
        }
        if full {
            self.caches[cache].group = None;
        }
        Some((at, full))
    }

    /// The cache for a request that begins at `block`, by the paper's rules.
    pub fn choose_cache(&self, block: u32) -> usize {
        if self.plan.streams == 1 {
            return 0;
        }
        let streams = &self.caches[..self.plan.streams];
        let continued = streams.iter().position(|cache| cache.group.is_some() && cache.next == block);
        let empty = || streams.iter().position(|cache| cache.group.is_none());
        continued.or_else(empty).unwrap_or(self.plan.streams)
    }

    /// A cache filled its group. When the victim fills for the second time, streams that have not filled meanwhile are
    /// closed as they are; returns their groups.
    pub fn filled(&mut self, cache: usize) -> Vec<u32> {
        self.caches[cache].waited = 0;
        if self.plan.streams == 1 || cache != self.plan.streams {
            return Vec::new();
        }
        let mut closed = Vec::new();
        for stream in 0..self.plan.streams {
            self.caches[stream].waited += 1;
            if self.caches[stream].waited >= 2
                && let Some(index) = self.caches[stream].group.take()
            {
                self.caches[stream].waited = 0;
                self.close(index);
                closed.push(index);
            }
        }
        closed
    }

    /// The group takes no more blocks; units it never used are given back.
    pub fn close(&mut self, index: u32) {
        let group = &mut self.groups[index as usize];
        let data = group.data();
        let memory = group.memory.as_mut().expect("an open group is in memory");
        memory.full = true;
        let unused: Vec<usize> = (0..data).filter(|&unit| memory.lists[unit].is_empty()).collect();
        let members: Vec<Member> =
            unused.iter().map(|&unit| std::mem::replace(&mut group.members[unit], Member::NONE)).collect();
        members.into_iter().for_each(|member| self.give_back(member));
    }
}
