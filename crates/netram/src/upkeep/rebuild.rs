//! The bytes of a unit that must be stored elsewhere: copied, or computed from the rest of its
//! group.
//!
//! Rules: a data unit is compared with the checksums of its blocks, whether copied or computed. A
//! parity unit is always computed, because nothing says what its blocks must be. Left out: where
//! the unit goes (`repair`).

use std::sync::Arc;

use shoal_format::ram::{GroupId, UnitEntry, UnitHeader};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::parity;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::place::{Member, Members};
use crate::state::unit::Shape;
use crate::task::{Core, Op};

/// Returns whether the blocks match the checksums in the list.
fn are_right(list: &[UnitEntry], blocks: &[u8], shape: Shape) -> bool {
    let right = |(entry, block): (&UnitEntry, &[u8])| shape.block_sums.of(block) == entry.sum;
    list.iter().zip(blocks.chunks_exact(shape.block_bytes)).all(right)
}

/// Builds the read of both headers and all blocks.
fn whole_unit(state: &State, member: Member) -> (DonorId, DonorOp) {
    let len = (state.shape.heads_bytes() + member.count as usize * state.shape.block_bytes) as u32;
    (member.donor, DonorOp::Read { at: state.shape.unit_at(member.unit), len })
}

/// Copies a data unit if its blocks are intact. A parity unit cannot be copied: nothing says what
/// its blocks must be.
pub(crate) async fn copy(core: &Arc<Core>, index: u32, place: usize) -> Option<(UnitHeader, Vec<u8>)> {
    let (id, data, members, op) = {
        let state = &mut *core.lock();
        let group = &state.groups[index];
        let (id, data, members) = (group.id, group.data(), group.members.clone());
        let op = whole_unit(state, members[place]);
        (id, data, members, core.op(state, op.0, op.1, Purpose::Repair))
    };
    let bytes = op.await.ok()?;
    let state = core.lock();
    let header = state.shape.sealed_header(&bytes, id, &members, place).filter(|_| place < data)?;
    let blocks = &bytes[state.shape.heads_bytes()..];
    let right = are_right(&header.lists[0], blocks, state.shape) || is_planted(Bug::CopyUnchecked);
    right.then(|| (header, blocks.to_vec()))
}

/// The rest of a group with a unit that must be computed.
pub(crate) struct Rest {
    pub data: usize,
    pub members: Members,
    pub units: Vec<Option<Vec<u8>>>,
    pub headers: Vec<Option<UnitHeader>>,
    pub shape: Shape,
}

impl Rest {
    /// Returns a block if it is intact. Blocks of a parity unit cannot be checked: nothing says
    /// what they must be.
    pub fn block(&self, unit: usize, row: usize) -> Option<&[u8]> {
        let header = self.headers[unit].as_ref()?;
        let bytes = self.units[unit].as_ref()?.get(self.shape.heads_bytes() + row * self.shape.block_bytes..)?;
        let bytes = bytes.get(..self.shape.block_bytes)?;
        let right = |entry: &UnitEntry| self.shape.block_sums.of(bytes) == entry.sum;
        let right = |entry: &UnitEntry| right(entry) || is_planted(Bug::RebuildUnchecked);
        (unit >= self.data || header.lists[0].get(row).is_some_and(right)).then_some(bytes)
    }

    /// Records damage in the units that answered.
    pub fn enter_damage(&self, state: &mut State, index: u32, id: GroupId) {
        for unit in (0..self.data).filter(|&unit| self.headers[unit].is_some()) {
            let rows = 0..self.members[unit].count as usize;
            for row in rows.filter(|&row| self.block(unit, row).is_none()) {
                state.found_damage(index, id, unit, self.members[unit], row);
            }
        }
    }

    /// Returns the lists of the missing unit's header.
    fn lists(&self, place: usize) -> Option<Vec<Vec<UnitEntry>>> {
        // Another parity unit knows what a missing data unit held.
        let known = || self.headers[self.data..].iter().flatten().next().map(|header| header.lists.clone());
        if place < self.data {
            return Some(vec![known()?.get(place)?.clone()]);
        }
        let own = |unit: usize| match self.members[unit].count {
            0 => Some(Vec::new()),
            _ => self.headers[unit].as_ref()?.lists.first().cloned(),
        };
        let all: Option<Vec<_>> = (0..self.data).map(own).collect();
        all.or_else(known)
    }

    /// Computes the missing unit's block of a row.
    fn compute(&self, place: usize, row: usize) -> Option<Vec<u8>> {
        let here = |unit: usize| match row < self.members[unit].count as usize {
            true => self.block(unit, row).map(<[u8]>::to_vec),
            false => Some(vec![0; self.shape.block_bytes]),
        };
        let mut data_row: Vec<Option<Vec<u8>>> =
            (0..self.data).map(|unit| if unit == place { None } else { here(unit) }).collect();
        let parity_row: Vec<Option<Vec<u8>>> = (self.data..self.members.len())
            .map(|unit| if unit == place { None } else { self.block(unit, row).map(<[u8]>::to_vec) })
            .collect();
        for unit in (0..self.data).filter(|&unit| unit != place) {
            if data_row[unit].is_none() {
                data_row[unit] = Some(parity::decode(unit, &data_row, &parity_row)?);
            }
        }
        if place < self.data {
            return parity::decode(place, &data_row, &parity_row);
        }
        let whole: Vec<Option<&[u8]>> = data_row.iter().map(|block| block.as_deref()).collect();
        let mut parities = parity::encode(&whole, parity_row.len(), self.shape.block_bytes);
        Some(parities.swap_remove(place - self.data))
    }
}

/// Records the damaged blocks of a unit. `header`: what the unit must hold.
pub(crate) async fn look_at_damaged(core: &Arc<Core>, index: u32, place: usize, header: &UnitHeader) {
    let (id, member, op) = {
        let state = &mut *core.lock();
        let (id, member) = (state.groups[index].id, state.groups[index].members[place]);
        (id, member, core.read(state, member, 0..member.count as usize, Purpose::Repair))
    };
    // Parity blocks cannot be checked alone. A unit that does not answer is not known to be
    // damaged.
    let Some(list) = header.lists.first().filter(|_| !header.is_parity()) else { return };
    let Ok(bytes) = op.await else { return };
    let Shape { block_bytes, block_sums, .. } = core.shape;
    for (row, (entry, block)) in list.iter().zip(bytes.chunks_exact(block_bytes)).enumerate() {
        if block_sums.of(block) != entry.sum {
            core.lock().found_damage(index, id, place, member, row);
        }
    }
}

/// Computes a lost unit from the others of its group.
pub(crate) async fn rebuild(core: &Arc<Core>, index: u32, place: usize) -> Option<(UnitHeader, Vec<u8>)> {
    let (uuid, id) = {
        let state = core.lock();
        (state.config.uuid, state.groups[index].id)
    };
    let rest = rest(core, index, place).await;
    rest.enter_damage(&mut core.lock(), index, id);
    let lists = rest.lists(place)?;
    let rows = rest.members[place].count as usize;
    let mut blocks = Vec::with_capacity(rows * rest.shape.block_bytes);
    for row in 0..rows {
        blocks.extend_from_slice(&rest.compute(place, row)?);
    }
    let header = UnitHeader {
        uuid,
        group: id,
        donor: 0,
        born: 0,
        horizon: 0,
        cut: 0,
        member: place as u8,
        data: rest.data as u8,
        parity: (rest.members.len() - rest.data) as u8,
        lists,
    };
    // Compare the computed blocks with the checksums of the blocks that were written.
    if place < rest.data {
        let list = &header.lists[0];
        let right = are_right(list, &blocks, rest.shape) || is_planted(Bug::RebuildUnchecked);
        if list.len() != rows || !right {
            return None;
        }
    }
    core.lock().counts.reconstructed += rows as u64;
    Some((header, blocks))
}

/// Reads all units of a group except the one at `place`, at the same time.
pub(crate) async fn rest(core: &Arc<Core>, index: u32, place: usize) -> Rest {
    let (data, members, shape, id, ops) = {
        let state = &mut *core.lock();
        let group = &state.groups[index];
        let (data, members, id) = (group.data(), group.members.clone(), group.id);
        let mut ask = |(other, member): (usize, &Member)| {
            let there = other != place && member.exists() && member.count > 0;
            let there = there && !state.donors[member.donor as usize].is_absent();
            there.then(|| {
                let (donor, op) = whole_unit(state, *member);
                core.op(state, donor, op, Purpose::Repair)
            })
        };
        let ops: Vec<Option<Op>> = members.iter().enumerate().map(&mut ask).collect();
        (data, members, state.shape, id, ops)
    };
    let mut units: Vec<Option<Vec<u8>>> = Vec::new();
    for op in ops {
        units.push(match op {
            Some(op) => op.await.ok(),
            None => None,
        });
    }
    let header = |(other, unit): (usize, &Option<Vec<u8>>)| shape.sealed_header(unit.as_ref()?, id, &members, other);
    let headers = units.iter().enumerate().map(header).collect();
    Rest { data, members, units, headers, shape }
}
