//! Replay applies every record of the log again, from an anchor on, for as long as the chain holds.
//!
//! Rules: the first record that does not count ends the log. All entries of a record are validated
//! before the first is applied.
//! Left out: whether the end is where it should be (`log_end`).

use std::sync::atomic::AtomicU64;

use shoal_format::record::{Entries, Entry, RECORD_HEADER, RECORD_PAYLOAD_MAX, RecordHeader, RecordKind};
use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_media::{LogDevice, PersistentMemory};

use crate::planted::{Bug, is_planted};
use crate::{Error, Lsn, Recovery, Result, mark_dirty};

/// Applies one entry and starts its write-back, on memory that needs it.
pub(crate) fn apply(memory: &dyn PersistentMemory, entry: &Entry<'_>) {
    let (at, len) = entry.range();
    let at = at.get();
    match *entry {
        Entry::Write { bytes, .. } => memory.write(at, bytes),
        Entry::SetBits { mask, .. } => memory.write_u64(at, memory.read_u64(at) | mask),
        Entry::ClearBits { mask, .. } => memory.write_u64(at, memory.read_u64(at) & !mask),
        Entry::Zero { .. } => memory.zero(at, len),
    }
    memory.write_back(at, len);
}

/// The result of a replay.
pub(crate) struct Replayed {
    pub end: Lsn,
    /// Checksum of the last header.
    pub salt: u32,
    /// Where the last mount's records begin: after its epoch record, or at the start of replay if
    /// there was none.
    pub life: Lsn,
    /// The boot that the log named last.
    pub last_boot: [u8; 16],
    pub recovery: Recovery,
}

/// Replays the log from the anchor until the chain breaks. Without `memory`, nothing is applied.
pub(crate) fn replay(
    superblock: &Superblock,
    anchor: &AnchorRecord,
    memory: Option<&dyn PersistentMemory>,
    log: &dyn LogDevice,
    dirty: &[AtomicU64],
) -> Result<Replayed> {
    let (mut lsn, mut salt) = (anchor.replay_from(), anchor.replay_salt.get());
    let mut life = lsn;
    let mut recovery = Recovery::default();
    let mut last_boot = anchor.boot_id;
    let mut reader = LogReader { log, buffer: Vec::new(), start: lsn, ahead: LogReader::AHEAD_FIRST };
    // A ring holds at most its size. Without this bound, a damaged ring could be read endlessly.
    let limit = if superblock.memory_kind.has_ring() { lsn + superblock.ring_bytes } else { Lsn::MAX };
    while let Some(bytes) = reader.at(lsn, RECORD_HEADER)? {
        let expected =
            if is_planted(Bug::Salt) { u32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]) } else { salt };
        let Ok(header) = RecordHeader::decode(bytes, lsn, expected) else { break };
        let len = header.len.get() as usize;
        if lsn + header.total() > limit {
            break;
        }
        let Some(bytes) = reader.at(lsn, header.total() as usize)? else { break };
        let payload = &bytes[RECORD_HEADER..RECORD_HEADER + len];
        if header.check_payload(payload, superblock.sums()).is_err() && !is_planted(Bug::PayloadChecksum) {
            break;
        }
        match header.record_kind() {
            RecordKind::Epoch => {
                if len != 32 {
                    return Err(Error::corrupt("epoch record", lsn.get(), len as u64));
                }
                last_boot.copy_from_slice(&payload[16..32]);
                life = lsn + header.total();
            }
            RecordKind::Tx => {
                // All entries are validated before the first is applied.
                for entry in Entries::new(payload, superblock.region_bytes) {
                    entry?;
                }
                recovery.records += 1;
                if let Some(memory) = memory {
                    for entry in Entries::new(payload, superblock.region_bytes) {
                        let entry = entry?;
                        apply(memory, &entry);
                        let (at, len) = entry.range();
                        if !is_planted(Bug::ReplayDirty) {
                            mark_dirty(dirty, at, len);
                        }
                    }
                }
            }
        }
        lsn += header.total();
        salt = header.crc.get();
    }
    recovery.bytes = lsn - anchor.replay_from();
    Ok(Replayed { end: lsn, salt, life, last_boot, recovery })
}

/// Reads the log ahead in large pieces.
struct LogReader<'a> {
    log: &'a dyn LogDevice,
    buffer: Vec<u8>,
    /// Position of the buffer's first byte.
    start: Lsn,
    /// Bytes of the next read: few at first, because most logs are short.
    ahead: usize,
}

impl LogReader<'_> {
    const AHEAD_FIRST: usize = 64 << 10;
    const AHEAD_MAX: usize = 4 << 20;

    /// Returns `len` bytes at `lsn`, or `None` if the log ends before.
    fn at(&mut self, lsn: Lsn, len: usize) -> Result<Option<&[u8]>> {
        debug_assert!(len <= RECORD_PAYLOAD_MAX + 2 * RECORD_HEADER);
        let mut from = (lsn - self.start) as usize;
        if from + len > self.buffer.len() {
            self.buffer.drain(..from.min(self.buffer.len()));
            self.start = lsn;
            from = 0;
            while self.buffer.len() < len {
                let have = self.buffer.len();
                self.buffer.resize(have + self.ahead, 0);
                self.ahead = (self.ahead * 2).min(Self::AHEAD_MAX);
                let got = self.log.read(lsn.get() + have as u64, &mut self.buffer[have..])?;
                self.buffer.truncate(have + got);
                if got == 0 {
                    return Ok(None);
                }
            }
        }
        Ok(Some(&self.buffer[from..from + len]))
    }
}
