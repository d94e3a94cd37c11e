//! Classifies the bytes after the end of a log. Either none of them count, or records of this log
//! are among them, and then the end is damage.
//!
//! The chain of records ends at the first one that does not count. A crash leaves such an end where
//! it interrupted an append. A flipped bit makes one in the middle, and all records after it would
//! be lost silently. Two proofs tell the cases apart:
//! - *The chain goes on*: a record follows whose salt is the checksum of the header that stood at
//!   the end. That header is intact, or it can be computed from the payload, because its other
//!   fields are known. No append begins before the previous one has returned, so a process crash
//!   never leaves this state. A power loss may, in a log whose end was not synced.
//! - *A record of the present turn follows*, in a ring, where each record is durable before the
//!   next one is begun. Its position is its own, not that of an earlier turn.
//!
//! Rules: bytes that only look like a record are skipped when they lie in the payload of an intact
//! record of an earlier turn.

use zerocopy::FromBytes;

use crate::record::{RECORD_ALIGN, RECORD_HEADER, RECORD_MAGIC, RECORD_PAYLOAD_MAX, RecordHeader, RecordKind};
use crate::{Lsn, Sums, index};

/// Number of bytes after the end within which the next record of the chain must begin.
pub const GAP_BYTES_MAX: usize = RECORD_PAYLOAD_MAX + 2 * RECORD_HEADER;

/// Returns the header at the start of `bytes` if it is whole, whatever its position and chain.
pub(crate) fn header(bytes: &[u8]) -> Option<RecordHeader> {
    if !bytes.starts_with(&RECORD_MAGIC.to_le_bytes()) {
        return None;
    }
    let (header, _) = RecordHeader::read_from_prefix(bytes).ok()?;
    RecordHeader::decode(bytes, header.lsn(), header.salt.get()).ok()
}

/// Returns the header of the record at the start of `bytes` if its payload is whole too.
pub(crate) fn record(bytes: &[u8], sums: Sums) -> Option<RecordHeader> {
    let header = header(bytes)?;
    let payload = bytes.get(RECORD_HEADER..RECORD_HEADER + header.len.get() as usize)?;
    header.check_payload(payload, sums).is_ok().then_some(header)
}

/// Finds the record that continues the chain after a record that does not count. `bytes` is the log
/// from `end` on, where a record with `salt` was expected: [`GAP_BYTES_MAX`] bytes, or all there
/// are.
pub fn next_of_chain(bytes: &[u8], end: Lsn, salt: u32, sums: Sums) -> Option<RecordHeader> {
    if let Ok(damaged) = RecordHeader::decode(bytes, end, salt) {
        // The header is whole and says where the next record is.
        let next = header(bytes.get(index(damaged.total())..)?)?;
        return (next.lsn() == end + damaged.total() && next.salt.get() == damaged.crc.get()).then_some(next);
    }
    let bytes = &bytes[..bytes.len().min(GAP_BYTES_MAX)];
    let mut from = RECORD_HEADER;
    while let Some(skip) = bytes.get(from..).and_then(next_magic) {
        let at = from + skip;
        from = at + RECORD_ALIGN;
        let Some(next) = header(&bytes[at..]).filter(|next| next.lsn() == end + at as u64) else { continue };
        let longest = at - RECORD_HEADER;
        let lengths = longest.saturating_sub(RECORD_ALIGN - 1)..=longest;
        let linked = |len: usize| {
            let sum = sums.of(&bytes[RECORD_HEADER..RECORD_HEADER + len]);
            [RecordKind::Tx, RecordKind::Epoch]
                .into_iter()
                .any(|kind| RecordHeader::new(kind, end, salt, len, sum).crc == next.salt)
        };
        if lengths.into_iter().any(linked) {
            return Some(next);
        }
    }
    None
}

/// Returns the offset of the next aligned magic number. A mount searches the whole ring, so most of
/// it is skipped block by block.
pub(crate) fn next_magic(bytes: &[u8]) -> Option<usize> {
    const BLOCK: usize = 64 * RECORD_ALIGN;
    let is_magic = |word: &[u8]| u32::from_le_bytes(word[..4].try_into().expect("four bytes")) == RECORD_MAGIC;
    for (number, block) in bytes.chunks(BLOCK).enumerate() {
        let any = block.chunks_exact(RECORD_ALIGN).fold(false, |any, word| any | is_magic(word));
        if any {
            let word = block.chunks_exact(RECORD_ALIGN).position(is_magic)?;
            return Some(number * BLOCK + word * RECORD_ALIGN);
        }
    }
    None
}

/// Finds the first whole record of the present turn after the end of a ring's log. `bytes` is
/// everything from `end` on that may be log, at most one turn of `ring_bytes`.
pub fn next_in_ring(bytes: &[u8], end: Lsn, ring_bytes: u64, sums: Sums) -> Option<RecordHeader> {
    let mut at = 0;
    while let Some(skip) = next_magic(&bytes[at..]) {
        at += skip;
        let Some(found) = header(&bytes[at..]) else {
            at += RECORD_ALIGN;
            continue;
        };
        let (position, lsn) = (end + at as u64, found.lsn());
        let earlier = lsn < position && (position - lsn).is_multiple_of(ring_bytes.max(1));
        let whole = (lsn == position || earlier) && record(&bytes[at..], sums).is_some();
        match whole {
            true if lsn == position => return Some(found),
            true => at = (at + index(found.total())).min(bytes.len()),
            false => at += RECORD_ALIGN,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    const SUMS: Sums = Sums::Xxh3;

    /// Builds records with these payload lengths, from `lsn` on, and returns their positions too.
    fn log(lsn: u64, lens: &[usize]) -> (Vec<u8>, Vec<u64>) {
        let (mut bytes, mut salt, mut positions) = (Vec::new(), 77, Vec::new());
        for (i, &len) in lens.iter().enumerate() {
            let payload: Vec<u8> = (0..len).map(|at| (at * 31 + i) as u8).collect();
            positions.push(lsn + bytes.len() as u64);
            let header = RecordHeader::new(RecordKind::Tx, Lsn::new(positions[i]), salt, len, SUMS.of(&payload));
            salt = header.crc.get();
            bytes.extend_from_slice(header.as_bytes());
            bytes.extend_from_slice(&payload);
            bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN), 0);
        }
        (bytes, positions)
    }

    #[test]
    fn every_flipped_bit_of_a_record_with_a_successor_is_told_from_an_end() {
        for len in [0, 1, 7, 8, 61] {
            let (bytes, positions) = log(4096, &[len, 20, 3]);
            let record = RECORD_HEADER + len;
            for bit in 0..record * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                let next = next_of_chain(&bytes, Lsn::new(4096), 77, SUMS).map(|header| header.lsn.get());
                assert_eq!(next, Some(positions[1]), "payload of {len}, bit {bit}");
                assert_eq!(next_in_ring(&bytes, Lsn::new(4096), 1 << 20, SUMS).map(|header| header.lsn.get()), next);
            }
        }
    }

    #[test]
    fn an_append_that_was_cut_off_is_an_end() {
        let (bytes, positions) = log(4096, &[100, 50, 8]);
        for cut in 0..bytes.len() {
            let mut torn = bytes[..cut].to_vec();
            torn.resize(bytes.len(), 0);
            // The padding of a record is zeros as well.
            let mut ends = Vec::new();
            for (i, &at) in positions.iter().enumerate() {
                let whole = record(&torn[(at - 4096) as usize..], SUMS);
                ends.push((
                    at,
                    if i == 0 { 77 } else { header(&bytes[(positions[i - 1] - 4096) as usize..]).unwrap().crc.get() },
                ));
                if whole.is_none() {
                    break;
                }
            }
            let (end, salt) = ends[ends.len() - 1];
            let from = (end - 4096) as usize;
            if record(&torn[from..], SUMS).is_some() {
                continue;
            }
            assert_eq!(next_of_chain(&torn[from..], Lsn::new(end), salt, SUMS), None, "cut at {cut}");
            assert_eq!(next_in_ring(&torn[from..], Lsn::new(end), 1 << 20, SUMS), None, "cut at {cut}");
        }
    }

    #[test]
    fn records_of_another_chain_or_an_earlier_turn_are_no_proof() {
        let (old, _) = log(4096, &[100, 50, 8]);
        assert_eq!(next_of_chain(&old, Lsn::new(4096), 78, SUMS), None, "the tail of an abandoned chain");
        let ring = 1 << 16;
        assert_eq!(next_in_ring(&old, Lsn::new(4096 + ring), ring, SUMS), None, "of the turn before");
        // A payload of the turn before that contains what looks like a record of the present one.
        let (forged, _) = log(4096 + ring + RECORD_HEADER as u64, &[8]);
        let outer = RecordHeader::new(RecordKind::Tx, Lsn::new(4096), 77, forged.len(), SUMS.of(&forged));
        let bytes = [outer.as_bytes(), &forged].concat();
        assert_eq!(next_in_ring(&bytes, Lsn::new(4096 + ring), ring, SUMS), None);
        assert!(
            next_in_ring(&bytes[RECORD_HEADER..], Lsn::new(4096 + ring + RECORD_HEADER as u64), ring, SUMS).is_some()
        );
    }
}
