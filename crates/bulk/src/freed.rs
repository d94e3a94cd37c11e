//! Blocks that no file maps any more, on their way to being free.
//!
//! Rules: a block is freed when the record that unmapped it is durable, and no saved image maps it.
//! It loses its absorbed pages and is trimmed before it can be taken again.
//! Left out: unmapping (the file system), and the sets of blocks (`blocks`).

use std::sync::Arc;

use shoal_region::{Lsn, Region};

use super::blocks::{Bits, Run};
use super::held::assert_none_held;
use super::unit::Unit;
use super::{read_saved, saved_devices};
use crate::Result;
use crate::planted::{Bug, is_planted};

/// Frees the blocks of a device whose freeing is durable.
pub(super) fn reclaim_unit(region: &Region, unit: &Unit) {
    let durable = if is_planted(Bug::ReuseAtOnce) { Lsn::MAX } else { region.durable_lsn() };
    let _one_at_a_time = unit.releasing.lock();
    let mut ready: Vec<Run> = Vec::new();
    unit.state.lock().pending.retain(|&(lsn, run)| {
        if lsn <= durable {
            ready.push(run);
        }
        lsn > durable
    });
    release(region, unit, ready);
}

/// Releases what only the previous image mapped, after a newer one was sealed. The caller holds
/// `releasing` of all devices.
pub(super) fn saved(region: &Region, units: &[Arc<Unit>]) -> Result<()> {
    let saved = saved_devices(region)?;
    for unit in units {
        let words = read_saved(region, &saved, unit)?;
        let held = {
            let mut blocks = unit.state.lock();
            blocks.saved = words;
            blocks.held_blocks = 0;
            std::mem::take(&mut blocks.held)
        };
        release(region, unit, held);
    }
    Ok(())
}

/// Frees blocks whose freeing is durable, except those that the saved image maps. The caller holds
/// `releasing`.
fn release(region: &Region, unit: &Unit, mut ready: Vec<Run>) {
    ready.sort_unstable();
    ready.dedup_by(|next, run| {
        let joins = run.end() == next.first;
        if joins {
            run.blocks += next.blocks;
        }
        joins
    });
    for freed in ready {
        assert_none_held();
        if unit.forget_absorbed(region, freed).is_err() {
            // The log has no room now. The next call tries again.
            unit.state.lock().pending.push((Lsn::default(), freed));
            continue;
        }
        let free = unit.state.lock().hold(freed);
        for run in free {
            if !is_planted(Bug::LateTrim) {
                unit.trim(run);
            }
            let mut blocks = unit.state.lock();
            blocks.mark(run, Bits::Cleared);
            blocks.pending_blocks -= run.blocks;
            drop(blocks);
            if is_planted(Bug::LateTrim) {
                unit.trim(run);
            }
        }
    }
}
