//! Units: where they are on their donors, and what is written when a unit grows.
//!
//! Rules: a unit has two header slots. A new unit has its header in both; a unit that grows writes
//! them alternately. A write never changes the slot of the newest header that its donor has stored:
//! where it passes over that slot, it writes the bytes that are there. So a write that is done in
//! part leaves the former version. A write begins at its slot, so that it is one operation. Left
//! out: when units are written (`write`, `repair`).

use shoal_format::Sums;
use shoal_format::ram::{GroupId, HEADER_SLOTS, SUPERBLOCK_BYTES, UnitHeader};

use crate::api::DonorOp;
use crate::planted::{Bug, is_planted};
use crate::state::place::Member;

/// The slot next to the blocks.
const LAST_SLOT: usize = HEADER_SLOTS - 1;
/// Bytes of a header that are overwritten to erase it.
const ERASED_BYTES: usize = 512;

/// The newest header that a unit's donor has stored, and its slot; `None`: the unit is not there
/// yet.
#[derive(Clone, Default)]
pub(crate) struct Head(Option<(usize, Vec<u8>)>);

/// A write of a unit, and its head once the write is done.
pub(crate) struct Version {
    pub op: DonorOp,
    pub head: Head,
}

/// Sizes of a disk's units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes of one header slot.
    pub header_bytes: usize,
    /// Blocks of a unit.
    pub rows: usize,
    pub block_sums: Sums,
}

impl Shape {
    /// Bytes of both slots.
    pub fn heads_bytes(self) -> usize {
        HEADER_SLOTS * self.header_bytes
    }

    pub fn unit_bytes(self) -> usize {
        self.heads_bytes() + self.rows * self.block_bytes
    }

    pub fn unit_at(self, unit: u32) -> u64 {
        SUPERBLOCK_BYTES as u64 + unit as u64 * self.unit_bytes() as u64
    }

    /// Offset of a block on its donor.
    pub fn row_at(self, member: Member, row: usize) -> u64 {
        self.unit_at(member.unit) + (self.heads_bytes() + row * self.block_bytes) as u64
    }

    /// Builds the read of both header slots of a unit.
    pub fn heads_op(self, unit: u32) -> DonorOp {
        DonorOp::Read { at: self.unit_at(unit), len: self.heads_bytes() as u32 }
    }

    /// Builds the write that erases both headers of a unit, so that they no longer count.
    pub fn erase_op(self, unit: u32) -> DonorOp {
        let bytes = (HEADER_SLOTS - 1) * self.header_bytes + ERASED_BYTES;
        DonorOp::Write { at: self.unit_at(unit), bytes: vec![0; bytes] }
    }

    /// Builds the trim of an erased unit's memory, except the erased headers: they must stay zero.
    pub fn trim_op(self, unit: u32) -> DonorOp {
        let erased = ((HEADER_SLOTS - 1) * self.header_bytes + ERASED_BYTES) as u64;
        DonorOp::Trim { at: self.unit_at(unit) + erased, len: self.unit_bytes() as u64 - erased }
    }

    /// Builds the write of a unit's version next to the one its donor has. The first version goes
    /// to both slots.
    pub fn version(self, unit: u32, stored: &Head, header: &UnitHeader, blocks: &[u8]) -> Version {
        let slot = match &stored.0 {
            Some((slot, _)) if *slot < LAST_SLOT || is_planted(Bug::HeaderOverwritten) => LAST_SLOT,
            _ => 0,
        };
        let mut bytes = Vec::with_capacity(self.unit_bytes());
        header.encode(self.header_bytes, &mut bytes);
        let head = bytes.clone();
        // The other slot lies between this one and the blocks.
        if slot < LAST_SLOT {
            bytes.extend_from_slice(stored.0.as_ref().map_or(&head, |(_, other)| other));
        }
        bytes.extend_from_slice(blocks);
        let at = self.unit_at(unit) + (slot * self.header_bytes) as u64;
        Version { op: DonorOp::Write { at, bytes }, head: Head(Some((slot, head))) }
    }

    /// Builds the write of a shorter header than the donor has into one slot. The slots are written
    /// one after the other.
    pub fn cut_op(self, unit: u32, slot: usize, header: &UnitHeader) -> DonorOp {
        let mut bytes = Vec::with_capacity(self.header_bytes);
        header.encode(self.header_bytes, &mut bytes);
        DonorOp::Write { at: self.unit_at(unit) + (slot * self.header_bytes) as u64, bytes }
    }

    /// Returns the header of a unit of a sealed group, from both slots, if it lists everything that
    /// the group has there. A former version does not.
    pub fn sealed_header(self, bytes: &[u8], id: GroupId, members: &[Member], place: usize) -> Option<UnitHeader> {
        let ours = |header: &UnitHeader| header.group == id && header.member as usize == place;
        let header = UnitHeader::newest(bytes, self.header_bytes, ours)?;
        let whole = match header.is_parity() {
            true => header.lists.iter().zip(members).all(|(list, member)| list.len() == member.count as usize),
            false => header.lists[0].len() == members[place].count as usize,
        };
        whole.then_some(header)
    }
}
