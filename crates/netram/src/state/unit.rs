//! Units: where they are on their donors, and what is written when one becomes longer.
//!
//! Rules: a unit has two slots for its header. A new unit has its header in both; one that grows is written by turns.
//! The slot of the newest header its donor has stored is never changed by a write: where a write passes over it, it
//! gets the bytes it has. So a write that is done in part leaves the former version. A write begins at its slot, so
//! that it is one operation. Left out: when units are written (`write`, `repair`).

use shoal_format::Sums;
use shoal_format::ram::{GroupId, HEADER_SLOTS, SUPERBLOCK_BYTES, UnitHeader};

use crate::api::DonorOp;
use crate::planted::{Bug, is_planted};
use crate::state::place::Member;

/// The slot beside the blocks.
const LAST_SLOT: usize = HEADER_SLOTS - 1;
/// Bytes of a header that are overwritten to erase it.
const ERASED_BYTES: usize = 512;

/// The newest header that a unit's donor has stored, and its slot. A unit that is not there yet has none.
#[derive(Clone, Default)]
pub(crate) struct Head(Option<(usize, Vec<u8>)>);

/// A write of a unit, and what its head is when it is done.
pub(crate) struct Version {
    pub op: DonorOp,
    pub head: Head,
}

/// Sizes of a disk's units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Room of one header.
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

    /// Both slots of a unit's header.
    pub fn heads_op(self, unit: u32) -> DonorOp {
        DonorOp::Read { at: self.unit_at(unit), len: self.heads_bytes() as u32 }
    }

    /// Makes both headers of a unit count no more.
    pub fn erase_op(self, unit: u32) -> DonorOp {
        let bytes = (HEADER_SLOTS - 1) * self.header_bytes + ERASED_BYTES;
        DonorOp::Write { at: self.unit_at(unit), bytes: vec![0; bytes] }
    }

    /// Gives back the memory of an erased unit, except the erased headers: they must stay zero.
    pub fn trim_op(self, unit: u32) -> DonorOp {
        let erased = ((HEADER_SLOTS - 1) * self.header_bytes + ERASED_BYTES) as u64;
        DonorOp::Trim { at: self.unit_at(unit) + erased, len: self.unit_bytes() as u64 - erased }
    }

    /// Stores a version of a unit beside the one its donor has; the first one in both slots.
    pub fn version(self, unit: u32, stored: &Head, header: &UnitHeader, blocks: &[u8]) -> Version {
        let slot = match &stored.0 {
            Some((slot, _)) if *slot < LAST_SLOT || is_planted(Bug::HeaderOverwritten) => LAST_SLOT,
            _ => 0,
        };
        let mut bytes = Vec::with_capacity(self.unit_bytes());
        header.encode(self.header_bytes, &mut bytes);
        let head = bytes.clone();
        // The blocks are behind the other slot.
        if slot < LAST_SLOT {
            bytes.extend_from_slice(stored.0.as_ref().map_or(&head, |(_, other)| other));
        }
        bytes.extend_from_slice(blocks);
        let at = self.unit_at(unit) + (slot * self.header_bytes) as u64;
        Version { op: DonorOp::Write { at, bytes }, head: Head(Some((slot, head))) }
    }

    /// Writes a header that lists less than the one its donor has, into one slot after the other.
    pub fn cut_op(self, unit: u32, slot: usize, header: &UnitHeader) -> DonorOp {
        let mut bytes = Vec::with_capacity(self.header_bytes);
        header.encode(self.header_bytes, &mut bytes);
        DonorOp::Write { at: self.unit_at(unit) + (slot * self.header_bytes) as u64, bytes }
    }

    /// The header of a unit of a sealed group, from both slots, if it lists all that the group has there: a former
    /// version does not.
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
