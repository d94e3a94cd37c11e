//! Reading headers of units.

use std::sync::Arc;

use shoal_format::ram::UnitHeader;

use crate::absence::miss;
use crate::api::{DonorId, Purpose};
use crate::planted::{Bug, is_planted};
use crate::task::{Core, Op, pause};

/// Headers asked for at the same time, of each donor.
const AT_ONCE: usize = 32;

/// How often a header that a donor refuses is asked for again, and after what time (ns).
pub(crate) const TRIES: usize = 20;

pub(crate) const AGAIN_NS: u64 = 100_000_000;

/// The headers of all units of a donor that are this disk's and this donor's. `None`: it cannot be reached any more.
pub(crate) async fn headers(core: &Arc<Core>, number: DonorId) -> Option<Vec<(u32, UnitHeader)>> {
    let units = core.lock().donors[number as usize].units;
    headers_of(core, number, 0..units).await
}

/// The same of some units.
pub(crate) async fn headers_of(
    core: &Arc<Core>,
    number: DonorId,
    units: impl Iterator<Item = u32>,
) -> Option<Vec<(u32, UnitHeader)>> {
    let (born, uuid, header_bytes) = {
        let state = core.lock();
        let donor = &state.donors[number as usize];
        (donor.born, state.config.uuid, state.shape.header_bytes)
    };
    let mut found = Vec::new();
    let mut units = units;
    loop {
        let mut wanted: Vec<u32> = units.by_ref().take(AT_ONCE).collect();
        if wanted.is_empty() {
            return Some(found);
        }
        for tried in 0.. {
            let ops: Vec<(u32, Op)> = {
                let state = &mut *core.lock();
                let mut ask = |unit: u32| {
                    let op = state.shape.heads_op(unit);
                    (unit, core.op(state, number, op, Purpose::Upkeep))
                };
                wanted.drain(..).map(&mut ask).collect()
            };
            for (unit, op) in ops {
                match op.await {
                    Ok(bytes) => {
                        let its_own = |header: &UnitHeader| header.donor == number && header.born == born;
                        let ours = |header: &UnitHeader| {
                            header.uuid == uuid && (its_own(header) || is_planted(Bug::StaleUnits))
                        };
                        let header = UnitHeader::newest(&bytes, header_bytes, ours);
                        found.extend(header.map(|header| (unit, header)));
                    }
                    Err(_) => wanted.push(unit),
                }
            }
            if core.lock().donors[number as usize].is_absent() {
                return None;
            }
            if wanted.is_empty() {
                break;
            }
            if tried == TRIES {
                // Nothing that is left out may be taken for nothing.
                miss(core, &mut core.lock(), number);
                return None;
            }
            pause(core, AGAIN_NS).await;
        }
    }
}
