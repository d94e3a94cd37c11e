//! Computing lost units.

use std::sync::Arc;

use shoal_format::ram::{UnitEntry, UnitHeader};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::parity;
use crate::place::Member;
use crate::state::State;
use crate::task::{Core, Op};

/// Are these the blocks that the list says?
fn are_right(list: &[UnitEntry], blocks: &[u8], block_bytes: usize) -> bool {
    let right = |(entry, block): (&UnitEntry, &[u8])| shoal_format::checksum(0, block) == entry.crc;
    list.iter().zip(blocks.chunks_exact(block_bytes)).all(right)
}

/// Reads both headers and all blocks.
fn whole_unit(state: &State, member: Member) -> (DonorId, DonorOp) {
    let len = (state.shape.heads_bytes() + member.count as usize * state.shape.block_bytes) as u32;
    (member.donor, DonorOp::Read { at: state.shape.unit_at(member.unit), len })
}

/// A data unit as it is, if it is as it was written. Of a parity unit nothing says what its blocks must be.
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
    are_right(&header.lists[0], blocks, state.shape.block_bytes).then(|| (header, blocks.to_vec()))
}

/// Computes a lost unit from the others of its group.
pub(crate) async fn rebuild(core: &Arc<Core>, index: u32, place: usize) -> Option<(UnitHeader, Vec<u8>)> {
    let (data, members, block_bytes, heads_bytes, uuid, id) = {
        let state = core.lock();
        let group = &state.groups[index];
        (
            group.data(),
            group.members.clone(),
            state.shape.block_bytes,
            state.shape.heads_bytes(),
            state.config.uuid,
            group.id,
        )
    };
    // Whole units of all that is left, at the same time.
    let ops: Vec<Option<Op>> = {
        let state = &mut *core.lock();
        let mut ask = |(other, member): (usize, &Member)| {
            let there = other != place && member.exists() && member.count > 0;
            let there = there && !state.donors[member.donor as usize].is_absent();
            there.then(|| {
                let (donor, op) = whole_unit(state, *member);
                core.op(state, donor, op, Purpose::Repair)
            })
        };
        members.iter().enumerate().map(&mut ask).collect()
    };
    let mut units: Vec<Option<Vec<u8>>> = Vec::new();
    for op in ops {
        units.push(match op {
            Some(op) => op.await.ok(),
            None => None,
        });
    }
    let headers: Vec<Option<UnitHeader>> = units
        .iter()
        .enumerate()
        .map(|(other, unit)| core.lock().shape.sealed_header(unit.as_ref()?, id, &members, other))
        .collect();
    let block = |unit: usize, row: usize| -> Option<&[u8]> {
        let header = headers[unit].as_ref()?;
        let bytes = units[unit].as_ref()?.get(heads_bytes + row * block_bytes..)?.get(..block_bytes)?;
        let right = |entry: &UnitEntry| shoal_format::checksum(0, bytes) == entry.crc;
        (unit >= data || header.lists[0].get(row).is_some_and(right)).then_some(bytes)
    };
    let parities = members.len() - data;
    let rows = members[place].count as usize;
    // Another parity unit knows what a missing data unit held.
    let known = || headers[data..].iter().flatten().next().map(|header| header.lists.clone());
    let lists: Vec<Vec<UnitEntry>> = if place < data {
        vec![known()?.get(place)?.clone()]
    } else {
        let own = |unit: usize| match members[unit].count {
            0 => Some(Vec::new()),
            _ => headers[unit].as_ref()?.lists.first().cloned(),
        };
        let all: Option<Vec<_>> = (0..data).map(own).collect();
        all.or_else(known)?
    };
    let mut blocks = Vec::new();
    for row in 0..rows {
        let here = |unit: usize| match row < members[unit].count as usize {
            true => block(unit, row).map(<[u8]>::to_vec),
            false => Some(vec![0; block_bytes]),
        };
        let mut data_row: Vec<Option<Vec<u8>>> =
            (0..data).map(|unit| if unit == place { None } else { here(unit) }).collect();
        let parity_row: Vec<Option<Vec<u8>>> = (data..members.len())
            .map(|unit| if unit == place { None } else { block(unit, row).map(<[u8]>::to_vec) })
            .collect();
        for unit in (0..data).filter(|&unit| unit != place) {
            if data_row[unit].is_none() {
                data_row[unit] = Some(parity::decode(unit, &data_row, &parity_row)?);
            }
        }
        if place < data {
            blocks.extend_from_slice(&parity::decode(place, &data_row, &parity_row)?);
        } else {
            let whole: Vec<Option<&[u8]>> = data_row.iter().map(|block| block.as_deref()).collect();
            blocks.extend_from_slice(&parity::encode(&whole, parities, block_bytes)[place - data]);
        }
    }
    let header = UnitHeader {
        uuid,
        group: id,
        donor: 0,
        born: 0,
        horizon: 0,
        cut: 0,
        member: place as u8,
        data: data as u8,
        parity: parities as u8,
        lists,
    };
    // What parity gives back is compared with what was written.
    if place < data {
        let list = &header.lists[0];
        if list.len() != rows || !are_right(list, &blocks, block_bytes) {
            return None;
        }
    }
    core.lock().counts.reconstructed += rows as u64;
    Some((header, blocks))
}
