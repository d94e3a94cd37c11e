//! Where the log ends, and whether it may end there.
//!
//! Replay stops at the first record that does not count. The difference between a cut-off append and damage in the middle of the log is in
//! `shoal_format::gap` and `shoal_format::vouch`; here the bytes behind the end are read, and a log that goes on is refused. A ring is walked to its end before
//! anything is applied: it lies in the store's own memory, and old records over newer bytes would be no state of the store.
//! Left out: reading on behind the damage, which is a salvage's business.

use shoal_format::gap::{GAP_BYTES_MAX, next_in_ring, next_of_chain};
use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_format::vouch::{Searched, VOUCH_WINDOW, Witnesses};
use shoal_media::{LogDevice, PersistentMemory};

use crate::planted::{Bug, is_planted};
use crate::replay::{Replayed, replay};
use crate::ring::RingLog;
use crate::{Error, Lsn, Result};

/// Where the log of a region in place ends; an error if that is no end.
pub fn ring_end(
    memory: &std::sync::Arc<dyn PersistentMemory>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
) -> Result<Lsn> {
    let log = RingLog::new(memory.clone(), superblock);
    let Replayed { end, salt, .. } = replay(superblock, anchor, None, &log, &[], [0; 16])?;
    // At most one turn of the ring is log.
    let limit = anchor.replay_from().saturating_add(superblock.ring_bytes);
    let mut bytes = vec![0; limit.saturating_since(end) as usize];
    let len = log.read(end.get(), &mut bytes)?;
    let sums = superblock.sums();
    let next = next_in_ring(&bytes[..len], end, superblock.ring_bytes, sums)
        .or_else(|| next_of_chain(&bytes[..len], end, salt, sums));
    next.map_or(Ok(end), |next| Err(Error::LogGap { at: end, next: next.lsn() }))
}

/// Was this region filled from an image, and never opened to an end for writing? An image names no boot, and an opening
/// names its own when all else is done ([`Region::settle`](crate::Region::settle)).
pub fn is_unused(
    memory: &std::sync::Arc<dyn PersistentMemory>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
) -> Result<bool> {
    let log = RingLog::new(memory.clone(), superblock);
    Ok(replay(superblock, anchor, None, &log, &[], [0; 16])?.last_boot == [0; 16])
}

/// Refuses a log on a device that goes on behind its end: the chain does, or a record there is a witness. A power loss takes what it likes of a
/// tail that was not synced, so only what vouches for a flush beyond the end counts after one.
pub(crate) fn refuse_gap(
    log: &dyn LogDevice,
    superblock: &Superblock,
    replayed: &Replayed,
    power_lost: bool,
) -> Result<()> {
    let (end, sums) = (replayed.end, superblock.sums());
    let witnesses = Witnesses::of(end, replayed.life, power_lost, superblock.hash_seed, sums);
    let mut bytes = vec![0; VOUCH_WINDOW];
    let mut at = end;
    loop {
        let len = fill(log, at, &mut bytes)?;
        let part = &bytes[..len];
        if at == end && !power_lost {
            let near = &part[..len.min(GAP_BYTES_MAX)];
            if let Some(next) = next_of_chain(near, end, replayed.salt, sums) {
                return Err(Error::LogGap { at: end, next: next.lsn() });
            }
        }
        match witnesses.search(part, at) {
            _ if is_planted(Bug::Vouching) => return Ok(()),
            Searched::Found(next) => return Err(Error::LogGap { at: end, next: next.lsn() }),
            Searched::Nothing(_) if len < bytes.len() => return Ok(()),
            Searched::Nothing(searched) => at += searched as u64,
        }
    }
}

/// Reads to the end of `out` or of the log.
fn fill(log: &dyn LogDevice, at: Lsn, out: &mut [u8]) -> Result<usize> {
    let mut len = 0;
    while len < out.len() {
        match log.read(at.get() + len as u64, &mut out[len..])? {
            0 => break,
            read => len += read,
        }
    }
    Ok(len)
}

/// Refuses a log of which a part is missing: its segments are made one behind the other.
pub(crate) fn refuse_hole(log: &dyn LogDevice, end: Lsn) -> Result<()> {
    log.resumes_behind(end.get()).map_or(Ok(()), |next| Err(Error::LogGap { at: end, next: Lsn::new(next) }))
}
