//! Growing a disk that is in use.
//!
//! Rules: the size is in the superblocks, so a new size is a new epoch, and counts like a change of membership: when
//! donors of *parity + 1* failure domains have it. Only then is the map enlarged and are requests behind the former
//! end served. An opening takes the largest size in any superblock: it is never smaller than one that was in use. If
//! the client dies before the epoch counts, the next one may find either size. A checkpoint of the former size ends
//! with its epoch. Left out: shrinking, which would give data up.

use crate::api::DiskError;
use crate::membership::epochs::new_epoch;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::epoch::Membership;

/// Begins to grow the disk to this size (bytes). Returns the size that it will have.
pub(crate) fn grow(state: &mut State, bytes: u64) -> Result<u64, DiskError> {
    let block_bytes = state.shape.block_bytes as u64;
    let (blocks, now) = (bytes / block_bytes, state.map.blocks());
    let wrong = |text: String| Err(DiskError::Config(text));
    if !state.ready {
        return wrong("the disk is still being opened; wait, or bring donors back".into());
    }
    if let Some(growing) = state.growing.filter(|&growing| blocks < growing) {
        return wrong(format!("the disk is growing to {} bytes; name a size above that", growing * block_bytes));
    }
    if blocks < now {
        return wrong(format!("the disk has {} bytes, and cannot shrink; name a larger size", now * block_bytes));
    }
    let largest = state.room().largest_disk();
    if blocks > largest.max(now) {
        return wrong(format!(
            "{bytes} bytes do not fit: the donors that are there have room for {} bytes of data beside the {}% that are \
             kept for cleaning; add a donor first (`shoal donor add`), or name a smaller size",
            largest * block_bytes,
            state.config.spare_percent
        ));
    }
    if blocks > now {
        state.growing = Some(blocks);
        new_epoch(state, Membership::Changed);
        if is_planted(Bug::GrownEarly) {
            grown(state);
        }
    }
    Ok(blocks * block_bytes)
}

/// Enlarges the map: enough donors know the new size.
pub(crate) fn grown(state: &mut State) {
    let Some(blocks) = state.growing.take() else { return };
    state.map.grow(blocks);
    state.measure_room();
}
