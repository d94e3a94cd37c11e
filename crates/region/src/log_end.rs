//! Where the log ends, and whether it may end there.
//!
//! Replay stops at the first record that does not count. `shoal_format::gap` and
//! `shoal_format::vouch` tell a cut-off append from damage in the middle of the log. This module
//! reads the bytes past the end and refuses a log that continues there. A ring is walked to its end
//! before anything is applied: it lies in the store's own memory, and old records applied over
//! newer bytes would give no state the store ever had.
//! Left out: reading on past the damage, which is for salvage tools.

use shoal_format::gap::{GAP_BYTES_MAX, next_in_ring, next_of_chain};
use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_format::vouch::{Searched, VOUCH_WINDOW, Witnesses};
use shoal_media::{LogDevice, PersistentMemory};

use crate::planted::{Bug, is_planted};
use crate::replay::{Replayed, replay};
use crate::ring::RingLog;
use crate::{Error, Lsn, Result};

/// First read of a window (bytes).
const WINDOW_FIRST: usize = 64 << 10;

/// Returns where the log of a region in place ends, or an error if records follow that end.
pub fn ring_end(
    memory: &std::sync::Arc<dyn PersistentMemory>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
) -> Result<Lsn> {
    let log = RingLog::new(memory.clone(), superblock);
    let Replayed { end, salt, .. } = replay(superblock, anchor, None, &log, &[])?;
    // The log fills at most one turn of the ring.
    let limit = anchor.replay_from().saturating_add(superblock.ring_bytes);
    let mut bytes = vec![0; limit.saturating_since(end) as usize];
    let len = log.read(end.get(), &mut bytes)?;
    let sums = superblock.sums();
    let next = next_in_ring(&bytes[..len], end, superblock.ring_bytes, sums)
        .or_else(|| next_of_chain(&bytes[..len], end, salt, sums));
    next.map_or(Ok(end), |next| Err(Error::LogGap { at: end, next: next.lsn() }))
}

/// Returns whether this region was filled from an image and no opening for writing completed since.
/// An image names no boot, and an opening names its own boot last
/// ([`Region::note_repaired`](crate::Region::note_repaired)).
pub fn is_unused(
    memory: &std::sync::Arc<dyn PersistentMemory>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
) -> Result<bool> {
    let log = RingLog::new(memory.clone(), superblock);
    Ok(replay(superblock, anchor, None, &log, &[])?.last_boot == [0; 16])
}

/// Refuses a log on a device that continues past its end: the next record of the chain follows, or
/// a record there is a witness. After a power loss, any part of an unsynced tail may be missing, so
/// only records that vouch for a flush past the end count then.
pub(crate) fn refuse_gap(
    log: &dyn LogDevice,
    superblock: &Superblock,
    replayed: &Replayed,
    power_lost: bool,
) -> Result<()> {
    let (end, sums) = (replayed.end, superblock.sums());
    let witnesses = Witnesses::of(end, replayed.life, power_lost, superblock.hash_seed, sums);
    let mut part = Vec::new();
    let mut at = end;
    loop {
        read_window(log, at, &mut part)?;
        if at == end && !power_lost {
            let near = &part[..part.len().min(GAP_BYTES_MAX)];
            if let Some(next) = next_of_chain(near, end, replayed.salt, sums) {
                return Err(Error::LogGap { at: end, next: next.lsn() });
            }
        }
        match witnesses.search(&part, at) {
            _ if is_planted(Bug::Vouching) => return Ok(()),
            Searched::Found(next) => return Err(Error::LogGap { at: end, next: next.lsn() }),
            Searched::Nothing(_) if part.len() < VOUCH_WINDOW => return Ok(()),
            Searched::Nothing(searched) => at += searched as u64,
        }
    }
}

/// Reads [`VOUCH_WINDOW`] bytes from `at`; fewer only at the end of the log. The buffer grows with
/// the log, since most logs are far shorter.
fn read_window(log: &dyn LogDevice, at: Lsn, out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    let mut len = 0;
    while len < VOUCH_WINDOW {
        out.resize((2 * len).clamp(WINDOW_FIRST, VOUCH_WINDOW), 0);
        match log.read(at.get() + len as u64, &mut out[len..])? {
            0 => break,
            read => len += read,
        }
    }
    out.truncate(len);
    Ok(())
}

/// Refuses a log with a missing part. Segments are created in order, so no segment may follow a
/// missing one.
pub(crate) fn refuse_hole(log: &dyn LogDevice, end: Lsn) -> Result<()> {
    log.resumes_behind(end.get()).map_or(Ok(()), |next| Err(Error::LogGap { at: end, next: Lsn::new(next) }))
}
