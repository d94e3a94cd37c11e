//! Where the log ends, and whether it may end there.
//!
//! Replay stops at the first record that does not count. The difference between a cut-off append and damage in the middle of the log is in
//! `shoal_format::gap`; here the bytes behind the end are read, and a log that goes on is refused. A ring is walked to its end before
//! anything is applied: it lies in the store's own memory, and old records over newer bytes would be no state of the store.
//! Left out: reading on behind the damage, which is a salvage's business.

use shoal_format::Sums;
use shoal_format::gap::{GAP_BYTES_MAX, next_in_ring, next_of_chain};
use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_media::{LogDevice, PersistentMemory};

use crate::ring::RingLog;
use crate::{Error, Lsn, Result, replay};

/// Where the log of a region in place ends; an error if that is no end.
pub fn ring_end(
    memory: &std::sync::Arc<dyn PersistentMemory>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
) -> Result<Lsn> {
    let log = RingLog::new(memory.clone(), superblock);
    let (end, salt, ..) = replay(superblock, anchor, None, &log, &[], [0; 16])?;
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
    let (.., last_boot, _) = replay(superblock, anchor, None, &log, &[], [0; 16])?;
    Ok(last_boot == [0; 16])
}

/// Refuses a log on a device that goes on behind its end. Not after a power loss, which takes what it likes of a tail that was not
/// synced.
pub(crate) fn refuse_gap(log: &dyn LogDevice, end: Lsn, salt: u32, sums: Sums) -> Result<()> {
    let mut bytes = vec![0; GAP_BYTES_MAX];
    let mut len = 0;
    while len < bytes.len() {
        match log.read(end.get() + len as u64, &mut bytes[len..])? {
            0 => break,
            read => len += read,
        }
    }
    let next = next_of_chain(&bytes[..len], end, salt, sums);
    next.map_or(Ok(()), |next| Err(Error::LogGap { at: end, next: next.lsn() }))
}

/// Refuses a log of which a part is missing: its segments are made one behind the other.
pub(crate) fn refuse_hole(log: &dyn LogDevice, end: Lsn) -> Result<()> {
    log.resumes_behind(end.get()).map_or(Ok(()), |next| Err(Error::LogGap { at: end, next: Lsn::new(next) }))
}
