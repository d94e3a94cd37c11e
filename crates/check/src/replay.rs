//! Replays the log over the checker's copy of the region.
//!
//! Rules: a record is valid only at its position and with the salt of the previous record; the log
//! ends before the first invalid one. The end must not lie before the anchor's seal. No transaction
//! may change superblock, anchors or ring. The ring is read as the medium holds it, so that no
//! entry can forge the records after it.
//! Left out: finishing intents (truncations, orphans), which the next mount does.

use shoal_format::gap::{GAP_BYTES_MAX, next_in_ring, next_of_chain};
use shoal_format::record::{Entries, Entry, RECORD_HEADER, RecordHeader, RecordKind};
use shoal_format::superblock::{ANCHOR_CLEAN, AnchorRecord, ROOTS_AT, Superblock};
use shoal_format::vouch::{Searched, VOUCH_WINDOW, Witnesses};
use shoal_format::{Lsn, Sums};
use shoal_media::LogDevice;

use crate::region::Region;
use crate::report::{FindingKind, Report};
use crate::{CheckError, Progress, Source, Stage};

/// First read-ahead (bytes). It is small because most logs are short.
const AHEAD_FIRST: usize = 64 << 10;
const AHEAD_MAX: usize = 4 << 20;

/// Returns whether a log that names this boot id last notes that a flush of bulk storage failed.
/// Compares only the first halves. The second half depends on the first bulk device's place, which
/// may have changed.
pub(crate) fn names_loss(boot_id: &[u8; 16], loss_boots: &[[u8; 16]]) -> bool {
    loss_boots.iter().any(|loss| loss[..8] == boot_id[..8])
}

/// Replays the log. Returns the boot id that it names last, or nothing if the report says why the
/// region cannot be trusted any further.
pub(crate) fn replay(
    source: &Source<'_>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
    region: &mut Region<'_>,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<[u8; 16]>, CheckError> {
    let start = anchor.replay_from();
    let place = match source.log {
        _ if superblock.memory_kind.has_ring() => Place::Ring(*superblock, start),
        Some(log) => Place::Device(log),
        None => return Err(CheckError::LogMissing),
    };
    let mut reader = Reader { place, buffer: Vec::new(), at: start, ahead: AHEAD_FIRST, sums: superblock.sums() };
    let (mut lsn, mut salt) = (start, anchor.replay_salt.get());
    let (mut transactions, mut life, mut boot_id) = (0, start, anchor.boot_id);
    let mut next_report = start;
    while let Some((header, payload)) = reader.record(region, lsn, salt)? {
        if header.record_kind() == RecordKind::Tx {
            transactions += 1;
            if let Err(sentence) = apply(&payload, superblock, region)? {
                report.error(FindingKind::LogEntry, None, Some(lsn.get()), format!("record at lsn {lsn}: {sentence}"));
                return Ok(None);
            }
        } else {
            life = lsn.saturating_add(header.total());
            boot_id = boot_of(&payload).unwrap_or(boot_id);
        }
        report.replayed_records += 1;
        salt = header.crc.get();
        lsn = lsn.saturating_add(header.total());
        if lsn >= next_report {
            progress(Progress { stage: Stage::Replay, done: lsn - start, total: 0 });
            next_report = lsn.saturating_add(AHEAD_MAX as u64);
        }
    }
    report.log_bytes = lsn - start;
    report.clean = anchor.flags.get() & ANCHOR_CLEAN != 0 && transactions == 0;
    let sealed = anchor.sealed_to();
    if let Some((Gap { next, is_damage, .. }, _)) =
        reader.next(region, lsn, salt, life, source.power_lost, superblock)?
    {
        let sentence = format!("the log breaks off at {lsn}, and records that belong to it follow from {next} on");
        if is_damage {
            report.error(FindingKind::LogCut, None, Some(lsn.get()), sentence + ": a record is damaged or missing");
            return Ok(None);
        }
        report.note(FindingKind::LogCut, None, Some(lsn.get()), sentence + ": lost with the power, or damaged");
    }
    if lsn < sealed {
        let sentence = format!("log ends at {lsn} before the image's seal {sealed}: part of the log is missing");
        report.error(FindingKind::LogCut, None, Some(lsn.get()), sentence);
        return Ok(None);
    }
    Ok(Some(boot_id))
}

/// Returns the boot id in the payload of an epoch record.
fn boot_of(payload: &[u8]) -> Option<[u8; 16]> {
    payload.get(16..32).and_then(|bytes| bytes.try_into().ok())
}

/// A gap in a damaged log: the position where the log breaks off, and that of the next record that
/// counts.
pub(crate) struct Gap {
    pub at: Lsn,
    pub next: Lsn,
    /// A power loss does not explain the gap.
    pub is_damage: bool,
}

/// A log replayed as far as possible.
pub(crate) struct PastGaps {
    pub gaps: Vec<Gap>,
    /// Why replay stopped early.
    pub cut: Option<String>,
    pub end: Lsn,
    /// The boot id that the log names last.
    pub boot_id: [u8; 16],
    /// The log has a transaction.
    pub has_changes: bool,
}

/// Replays like [`replay`], but continues after damaged records, for a salvage. Records of a ring
/// before a gap are skipped, because they and later ones have been applied in place.
pub(crate) fn replay_past_gaps(
    source: &Source<'_>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
    region: &mut Region<'_>,
) -> Result<PastGaps, CheckError> {
    let start = anchor.replay_from();
    let ring = superblock.memory_kind.has_ring();
    let place = match source.log {
        _ if ring => Place::Ring(*superblock, start),
        Some(log) => Place::Device(log),
        None => return Err(CheckError::LogMissing),
    };
    let mut reader = Reader { place, buffer: Vec::new(), at: start, ahead: AHEAD_FIRST, sums: superblock.sums() };
    let mut parts = vec![(start, anchor.replay_salt.get())];
    let mut gaps = Vec::new();
    let (mut end, mut life, mut boot_id, mut has_changes) = (start, start, anchor.boot_id, false);
    loop {
        let (mut lsn, mut salt) = parts[parts.len() - 1];
        while let Some((header, payload)) = reader.record(region, lsn, salt)? {
            if header.record_kind() == RecordKind::Epoch {
                life = lsn.saturating_add(header.total());
                boot_id = boot_of(&payload).unwrap_or(boot_id);
            }
            has_changes |= header.record_kind() == RecordKind::Tx;
            (lsn, salt) = (lsn.saturating_add(header.total()), header.crc.get());
        }
        end = end.max(lsn);
        let Some((gap, next)) = reader.next(region, lsn, salt, life, source.power_lost, superblock)? else { break };
        let is_damage = gap.is_damage;
        gaps.push(gap);
        if !is_damage {
            break;
        }
        parts.push((next.lsn(), next.salt.get()));
    }
    let first = if ring { parts.len() - 1 } else { 0 };
    for &(mut lsn, mut salt) in &parts[first..] {
        while let Some((header, payload)) = reader.record(region, lsn, salt)? {
            if header.record_kind() == RecordKind::Tx
                && let Err(sentence) = apply(&payload, superblock, region)?
            {
                let cut = Some(format!("record at lsn {lsn}: {sentence}"));
                return Ok(PastGaps { gaps, cut, end: lsn, boot_id, has_changes });
            }
            (lsn, salt) = (lsn.saturating_add(header.total()), header.crc.get());
        }
    }
    let sealed = anchor.sealed_to();
    let cut = format!("log ends at {end} before the image's seal {sealed}: part of the log is missing");
    Ok(PastGaps { gaps, cut: (end < sealed).then_some(cut), end, boot_id, has_changes })
}

fn apply(payload: &[u8], superblock: &Superblock, region: &mut Region<'_>) -> Result<Result<(), String>, CheckError> {
    let ring = superblock.ring..superblock.ring + superblock.ring_bytes;
    for entry in Entries::new(payload, superblock.region_bytes) {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => return Ok(Err(e.to_string())),
        };
        let (at, len) = entry.range();
        if at < ROOTS_AT || (at < ring.end && at + len > ring.start) {
            return Ok(Err(format!("an entry changes offset {at}, which belongs to no transaction")));
        }
        match entry {
            Entry::Write { at, bytes } => region.write(at, bytes)?,
            Entry::SetBits { at, mask } => region.change_word(at, |word| word | mask)?,
            Entry::ClearBits { at, mask } => region.change_word(at, |word| word & !mask)?,
            Entry::Zero { at, len } => region.zero(at, len)?,
        }
    }
    Ok(Ok(()))
}

enum Place<'a> {
    Device(&'a dyn LogDevice),
    /// A ring, and the position where reading starts. The log is at most one turn of the ring.
    Ring(Superblock, Lsn),
}

/// Reads the log ahead in large pieces.
struct Reader<'a> {
    place: Place<'a>,
    buffer: Vec<u8>,
    /// Log position of the buffer's first byte.
    at: Lsn,
    ahead: usize,
    sums: Sums,
}

impl Reader<'_> {
    /// Returns the record at `lsn`, or `None` at the end of the log.
    fn record(
        &mut self,
        region: &Region<'_>,
        lsn: Lsn,
        salt: u32,
    ) -> Result<Option<(RecordHeader, Vec<u8>)>, CheckError> {
        let header = match RecordHeader::decode(self.bytes(region, lsn, RECORD_HEADER)?, lsn, salt) {
            Ok(header) => header,
            Err(_) => return Ok(None),
        };
        let len = header.len.get() as usize;
        let sums = self.sums;
        let bytes = self.bytes(region, lsn, RECORD_HEADER + len)?;
        let Some(payload) = bytes.get(RECORD_HEADER..RECORD_HEADER + len) else { return Ok(None) };
        Ok(header.check_payload(payload, sums).is_ok().then(|| (header, payload.to_vec())))
    }

    /// Searches for a record that shows that the log does not end at `lsn`, where a record with
    /// `salt` was expected. The last mount's records begin at `life`.
    fn next(
        &mut self,
        region: &Region<'_>,
        lsn: Lsn,
        salt: u32,
        life: Lsn,
        power_lost: bool,
        superblock: &Superblock,
    ) -> Result<Option<(Gap, RecordHeader)>, CheckError> {
        let ring = superblock.memory_kind.has_ring();
        let chained = self.chained(region, lsn, salt)?;
        let witnesses = Witnesses::of(lsn, life, power_lost, superblock.hash_seed, self.sums);
        let witness = if ring { None } else { self.witness(region, lsn, &witnesses)? };
        // A power loss may drop any part of an unsynced tail.
        let is_damage = ring || !power_lost || witness.is_some();
        Ok(chained.or(witness).map(|next| (Gap { at: lsn, next: next.lsn(), is_damage }, next)))
    }

    /// Searches for a record that proves that the log is longer than it seems.
    fn witness(
        &mut self,
        region: &Region<'_>,
        end: Lsn,
        witnesses: &Witnesses,
    ) -> Result<Option<RecordHeader>, CheckError> {
        let mut at = end;
        loop {
            self.fill(region, at, VOUCH_WINDOW)?;
            match witnesses.search(&self.buffer, at) {
                Searched::Found(record) => return Ok(Some(record)),
                Searched::Nothing(_) if self.buffer.len() < VOUCH_WINDOW => return Ok(None),
                Searched::Nothing(searched) => at = at.saturating_add(searched as u64),
            }
        }
    }

    /// Returns the record that continues the chain after an invalid one. In a ring, a record of
    /// the present turn comes first.
    fn chained(&mut self, region: &Region<'_>, lsn: Lsn, salt: u32) -> Result<Option<RecordHeader>, CheckError> {
        let turn = match &self.place {
            Place::Device(_) => None,
            // The ring in a saved image is not a log.
            Place::Ring(..) if region.is_image() => return Ok(None),
            Place::Ring(superblock, _) => Some(superblock.ring_bytes),
        };
        let len = turn.map_or(GAP_BYTES_MAX, |turn| turn as usize);
        self.fill(region, lsn, len)?;
        let next = turn.and_then(|turn| next_in_ring(&self.buffer, lsn, turn, self.sums));
        Ok(next.or_else(|| next_of_chain(&self.buffer, lsn, salt, self.sums)))
    }

    /// Returns up to `len` bytes from `position`; fewer only at the end of the log.
    fn bytes(&mut self, region: &Region<'_>, position: Lsn, len: usize) -> Result<&[u8], CheckError> {
        let skip = position.saturating_since(self.at);
        if position < self.at || skip + len as u64 > self.buffer.len() as u64 {
            self.fill(region, position, len.max(self.ahead))?;
            self.ahead = (self.ahead * 2).min(AHEAD_MAX);
            return Ok(&self.buffer[..len.min(self.buffer.len())]);
        }
        Ok(&self.buffer[skip as usize..skip as usize + len])
    }

    fn fill(&mut self, region: &Region<'_>, position: Lsn, len: usize) -> Result<(), CheckError> {
        self.at = position;
        self.buffer.clear();
        let mut filled = 0;
        match &self.place {
            Place::Device(log) => {
                while filled < len {
                    let Some(from) = position.get().checked_add(filled as u64) else { break };
                    // The buffer grows with the log, since most logs are shorter than what is asked for.
                    self.buffer.resize(len.min((2 * filled).max(AHEAD_FIRST)), 0);
                    let part = &mut self.buffer[filled..];
                    match log.read(from, part)? {
                        0 => break,
                        n => filled += n.min(part.len()),
                    }
                }
            }
            Place::Ring(superblock, start) => {
                let left = superblock.ring_bytes.saturating_sub(position - *start);
                let len = (len as u64).min(left).min(Lsn::MAX - position) as usize;
                self.buffer.resize(len, 0);
                while filled < len {
                    let within = (position + filled as u64).get() % superblock.ring_bytes;
                    let take = (superblock.ring_bytes - within).min((len - filled) as u64) as usize;
                    region.medium(superblock.ring.get() + within, &mut self.buffer[filled..filled + take])?;
                    filled += take;
                }
            }
        }
        self.buffer.truncate(filled);
        Ok(())
    }
}
