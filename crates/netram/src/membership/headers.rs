//! Reading headers of units, and other reads that opening cannot do without.
//!
//! Rules: a refused read is repeated. A donor that refuses too often is given up as missing,
//! because nothing unread may be taken for empty. Left out: what the headers mean (`enter`).

use std::sync::Arc;

use shoal_format::ram::{LOST, UnitEntry, UnitHeader};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::membership::absence::miss;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::task::{Core, Op, pause};

/// Headers requested from each donor at the same time.
const AT_ONCE: usize = 32;
/// How often a refused read is repeated, and the pause before each attempt (ns).
const TRIES: usize = 20;
pub(crate) const AGAIN_NS: u64 = 100_000_000;

/// Reads from a donor until it has returned everything that is wanted. `None`: it is away, or was
/// given up because it refused too often.
pub(crate) async fn insist<K: Copy>(
    core: &Arc<Core>,
    donor: DonorId,
    mut wanted: Vec<K>,
    op_of: impl Fn(&State, K) -> DonorOp,
) -> Option<Vec<(K, Vec<u8>)>> {
    let mut given = Vec::with_capacity(wanted.len());
    for tried in 0.. {
        let ops: Vec<(K, Op)> = {
            let state = &mut *core.lock();
            let mut ask = |what: K| {
                let op = op_of(state, what);
                (what, core.op(state, donor, op, Purpose::Upkeep))
            };
            wanted.drain(..).map(&mut ask).collect()
        };
        for (what, op) in ops {
            match op.await {
                Ok(bytes) => given.push((what, bytes)),
                Err(_) if is_planted(Bug::UnreadEmpty) => {}
                Err(_) => wanted.push(what),
            }
        }
        if core.lock().donors[donor as usize].is_absent() {
            return None;
        }
        if wanted.is_empty() {
            break;
        }
        if tried == TRIES {
            // A unit that was not read must not be taken for an empty one.
            miss(core, &mut core.lock(), donor);
            return None;
        }
        pause(core, AGAIN_NS).await;
    }
    Some(given)
}

/// Reads the headers of all units of a donor that belong to this disk and this donor. `None`: it
/// cannot be reached any more.
pub(crate) async fn headers(core: &Arc<Core>, number: DonorId) -> Option<Vec<(u32, UnitHeader)>> {
    let units = core.lock().donors[number as usize].units.count();
    headers_of(core, number, 0..units).await
}

/// Reads the headers of the given units, like [`headers`].
pub(crate) async fn headers_of(
    core: &Arc<Core>,
    number: DonorId,
    mut units: impl Iterator<Item = u32>,
) -> Option<Vec<(u32, UnitHeader)>> {
    let (born, uuid, header_bytes) = {
        let state = core.lock();
        let donor = &state.donors[number as usize];
        (donor.born, state.config.uuid, state.shape.header_bytes)
    };
    let its_own = |header: &UnitHeader| header.donor == number && header.born == born;
    let ours = |header: &UnitHeader| header.uuid == uuid && (its_own(header) || is_planted(Bug::StaleUnits));
    let mut found = Vec::new();
    loop {
        let wanted: Vec<u32> = units.by_ref().take(AT_ONCE).collect();
        if wanted.is_empty() {
            return Some(found);
        }
        for (unit, bytes) in insist(core, number, wanted, |state, unit| state.shape.heads_op(unit)).await? {
            found.extend(UnitHeader::newest(&bytes, header_bytes, ours).map(|header| (unit, header)));
        }
    }
}

/// Returns the lowest sequence that a header, or a block it lists, may speak of. A list of losses
/// names blocks by any sequences from before its own.
pub(crate) fn first_said(header: &UnitHeader) -> u64 {
    let said = |entry: &UnitEntry| if entry.block == LOST { 0 } else { entry.sequence };
    header.lists.iter().flatten().map(said).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use shoal_format::ram::GroupId;

    use super::*;

    #[test]
    fn a_header_that_names_a_list_of_losses_may_speak_of_anything_older() {
        let entry = |block, sequence| UnitEntry { block, sum: 0, sequence };
        let said = |lists: Vec<Vec<UnitEntry>>| {
            let (uuid, group) = ([0; 16], GroupId::new(1));
            let header =
                UnitHeader { uuid, group, donor: 0, born: 0, horizon: 0, cut: 0, member: 2, data: 2, parity: 1, lists };
            first_said(&header)
        };
        assert_eq!(said(vec![vec![entry(3, 9)], vec![entry(4, 8), entry(5, 10)]]), 8);
        assert_eq!(said(vec![vec![entry(3, 9)], vec![entry(LOST, 12)]]), 0);
    }
}
