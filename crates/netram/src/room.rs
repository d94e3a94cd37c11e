//! Room: whether a donor can be done without, and evening out donors of which one is full while another is empty.
//!
//! Rules:
//! - While the donors that are there cannot hold the whole disk, blocks that hold nothing yet are refused before the room is gone:
//!   the rest is for cleaning, so that what is there can still be overwritten and trimmed.
//! - A donor is emptied only when what is stored fits on the others, without what is kept for open groups and for cleaning, and with
//!   a rest to work in: a drain that does not fit would fill the others to the brim, and nothing could be written any more.
//! - Two units of a group never share a donor, so room on one donor alone is of no use. When room is short and one donor has much more
//!   of it than another, units move from the fullest to the emptiest. That is so after a donor has joined, and after a drain
//!   that was given up.
//!
//! Left out: moving a unit (`repair`), cleaning.

use std::sync::Arc;

use crate::api::DonorId;
use crate::clean::GROUPS_AHEAD;
use crate::donors::{Donor, DonorState};
use crate::membership::needs_repair;
use crate::repair;
use crate::state::State;
use crate::task::Core;

/// Donors whose free units differ by less are even.
const UNEVEN_UNITS: usize = 16;
/// The same where somebody waits for room and there is none: one move more would only turn the difference round.
const UNEVEN_MIN: usize = 2;
/// When no unit could be moved, it is looked for again after so long (ns).
const LOOK_AGAIN_NS: u64 = 1_000_000_000;
/// A unit that could not be moved is left for so long (ns).
const FAILED_NS: u64 = 50_000_000;
/// Where the donors cannot hold the whole disk, so much of their room holds data (percent): cleaning in less of a rest than that
/// makes no room in the end.
const TIGHT_PERCENT: u64 = 95;

/// What is to fit on the other donors when one leaves, and what does (bytes of data).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainRoom {
    pub stored_bytes: u64,
    pub room_bytes: u64,
}

impl DrainRoom {
    pub fn fits(&self) -> bool {
        self.stored_bytes <= self.room_bytes
    }
}

impl State {
    /// Would what is stored fit without this donor?
    pub fn drain_room(&self, leaving: DonorId) -> DrainRoom {
        let bytes = |blocks: u64| blocks * self.block_bytes as u64;
        DrainRoom { stored_bytes: bytes(self.counts.mapped), room_bytes: bytes(self.room_without(Some(leaving))) }
    }

    /// Looks how many blocks the donors that are there can hold.
    pub fn measure_room(&mut self) {
        self.room_blocks = self.room_without(None);
    }

    /// Is there no room for one more block that held nothing so far?
    pub fn is_beyond_room(&self, block: u32) -> bool {
        self.counts.mapped >= self.room_blocks && self.find(block).is_none()
    }

    /// Blocks that fit on the donors that stay.
    fn room_without(&self, leaving: Option<DonorId>) -> u64 {
        let stays = |&(number, donor): &(usize, &Donor)| {
            leaving.map(usize::from) != Some(number) && matches!(donor.state, DonorState::Active | DonorState::Joining)
        };
        // Units that a broken connection may still write to are not used.
        let usable = |donor: &Donor| (donor.units as u64).saturating_sub(donor.tainted.len() as u64);
        let units: Vec<u64> = self.donors.iter().enumerate().filter(stays).map(|(_, donor)| usable(donor)).collect();
        let width = (self.plan.data + self.plan.parity).min(units.len());
        let groups = match width > self.plan.parity {
            true => groups_of(&units, width).saturating_sub(self.groups_kept()),
            false => 0,
        };
        let blocks = groups * (width.saturating_sub(self.plan.parity) * self.plan.buffer) as u64;
        // A drain needs room to work in, too, however small the disk is.
        let is_tight = leaving.is_some() || blocks < self.blocks;
        if is_tight { self.blocks.min(blocks * TIGHT_PERCENT / 100) } else { self.blocks }
    }

    /// The group of which a unit is to move, and the donor it leaves.
    fn next_to_level(&mut self) -> Option<(u32, DonorId)> {
        if !self.ready || self.now_ns < self.level_at_ns || self.has_room(GROUPS_AHEAD) {
            return None;
        }
        // What is being erased is free soon.
        let room = |donor: &Donor| donor.all_free_units() + donor.erase.len() + donor.erasing.len();
        let there = || (0..self.donors.len()).filter(|&number| self.takes(number));
        let full = there().min_by_key(|&number| room(&self.donors[number]))?;
        let empty = there().max_by_key(|&number| self.donors[number].all_free_units())?;
        let is_urgent = (self.drain_waits || self.stuck) && !self.has_room(1);
        let uneven = if is_urgent { UNEVEN_MIN } else { UNEVEN_UNITS };
        if self.donors[empty].all_free_units() < room(&self.donors[full]) + uneven {
            return None;
        }
        let moves = |index: &usize| {
            let group = &self.groups[*index];
            let rests =
                group.id != 0 && group.live > 0 && group.memory.is_none() && !group.busy && !needs_repair(self, *index);
            rests && group.is_on(full as DonorId) && !group.is_on(empty as DonorId)
        };
        // Where the last search ended: the groups before it have been moved.
        let groups = self.groups.len();
        let begin = self.level_from.min(groups);
        let found = (begin..groups).chain(0..begin).find(moves);
        let Some(index) = found else {
            self.level_at_ns = self.now_ns + LOOK_AGAIN_NS;
            return None;
        };
        self.level_from = index + 1;
        Some((index as u32, full as DonorId))
    }
}

/// Groups of this width that donors with so many units hold together.
pub(crate) fn groups_of(units: &[u64], width: usize) -> u64 {
    let width = width as u64;
    let fits = |groups: u64| units.iter().map(|&units| units.min(groups)).sum::<u64>() >= groups * width;
    let (mut low, mut high) = (0, units.iter().sum::<u64>() / width);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Evens donors out, one unit after the other. Runs as long as the disk.
pub(crate) async fn leveler(core: Arc<Core>) {
    loop {
        let (index, from) = core
            .until(|state| {
                let found = state.next_to_level()?;
                state.claim(found.0);
                Some(found)
            })
            .await;
        let moved = repair::move_off(&core, index, from).await;
        let state = &mut *core.lock();
        state.release(index);
        if !moved {
            state.level_at_ns = state.now_ns + FAILED_NS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::{DonorInfo, Policy};

    fn state(donors: &[u64], parity: u8) -> State {
        let config = Config { policy: Policy::Adaptive, parity, ..Config::default() };
        let mut state = State::new(&config, config.plan(donors.len()).unwrap(), 0);
        for (number, mib) in donors.iter().enumerate() {
            let info = DonorInfo { name: format!("donor{number}"), bytes: mib << 20 };
            state.add_donor(info).unwrap();
        }
        state.set_blocks((donors.iter().sum::<u64>() << 20) / 2 / 4096);
        state
    }

    #[test]
    fn a_drain_fits_while_the_others_have_room_beside_what_is_kept() {
        let mut state = state(&[64, 64, 64, 64], 1);
        let room = state.drain_room(0).room_bytes;
        // Two data units of three, less headers and what is kept.
        assert!(room > 114 << 20 && room < 122 << 20, "{room}");
        state.counts.mapped = room / state.block_bytes as u64;
        assert!(state.drain_room(0).fits());
        state.counts.mapped += 1;
        assert!(!state.drain_room(0).fits());
    }

    #[test]
    fn blocks_that_hold_nothing_are_refused_only_while_the_donors_cannot_hold_the_disk() {
        let mut state = state(&[64, 64, 64, 64], 1);
        state.counts.mapped = state.blocks - 1;
        state.measure_room();
        assert!(!state.is_beyond_room(0));
        state.donors[3].state = DonorState::Missing;
        state.measure_room();
        assert!(state.is_beyond_room(0));
        state.counts.mapped = state.room_blocks - 1;
        assert!(!state.is_beyond_room(0));
        state.donors[3].state = DonorState::Active;
        state.measure_room();
        assert_eq!(state.room_blocks, state.blocks);
    }

    #[test]
    fn too_few_donors_have_no_room_however_large_they_are() {
        let mut state = state(&[64, 64], 1);
        assert_eq!(state.drain_room(1).room_bytes, 0);
        assert!(state.drain_room(1).fits(), "nothing is stored");
        state.counts.mapped = 1;
        assert!(!state.drain_room(1).fits());
        let three = self::state(&[64, 64, 1024], 1);
        assert!(three.drain_room(2).room_bytes < 64 << 20, "a copy of each block is on both");
        assert_eq!(three.drain_room(0).room_bytes, three.drain_room(1).room_bytes);
    }
}
