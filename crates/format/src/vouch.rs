//! Vouching: a record states up to which position a flush had made the log durable when the record
//! was written.
//!
//! A log ends at the first record that does not count. If a disk lost a write that it had
//! acknowledged, the log seems to end before it. A record past that end that was written when the
//! log was durable *beyond* the end proves that the end is false, because no crash leaves such a
//! state. If only a process died, any record of the present mount is a proof, since all earlier
//! records were appended in order.
//!
//! Rules: the last entry of a transaction's payload clears bits of a word that is always zero. Its
//! mask is the position. So the entry changes nothing, and a program that does not know it replays
//! it like any other. A record counts only at its own position, so records in reused space fail.
//! Records of a tail that was given up after a power loss are at their positions, but vouch for
//! nothing beyond the epoch record that replaced it. The mask is mixed with the store's seed, so
//! that stale file contents in reused space do not pass for a record of the store. Left out:
//! reading the log.

use crate::gap::{header, next_magic, record};
use crate::record::{Entry, RECORD_ALIGN, RECORD_HEADER, RecordHeader};
use crate::superblock::ROOTS_AT;
use crate::{Lsn, Offset, PAGE, Sums, index, u64_at};

/// The word whose bits are cleared: the last one of the page with the roots, always zero.
pub const VOUCH_AT: Offset = Offset::new(ROOTS_AT.get() + PAGE - 8);
/// Bytes of the entry.
pub const VOUCH_BYTES: usize = 16;
/// Bytes searched at once. Any record fits.
pub const VOUCH_WINDOW: usize = 4 << 20;

/// Returns the entry for a record that is written when the log is durable up to `durable`. `seed`
/// is the superblock's `hash_seed`.
pub fn vouch(durable: Lsn, seed: u64) -> Entry<'static> {
    Entry::ClearBits { at: VOUCH_AT, mask: durable.get() ^ seed }
}

/// Returns the position that a record's payload vouches for, if it vouches.
fn vouched(lsn: Lsn, payload: &[u8], seed: u64) -> Option<Lsn> {
    let entry = &payload[payload.len().checked_sub(VOUCH_BYTES)?..];
    let durable = Lsn::new(u64_at(entry, 8) ^ seed);
    let mut expected = Vec::with_capacity(VOUCH_BYTES);
    vouch(durable, seed).encode(&mut expected);
    (entry == expected && durable <= lsn).then_some(durable)
}

/// Search for a witness: a record that proves that the log does not end where it seems to.
pub struct Witnesses {
    /// A record that vouches for this position or a later one is a witness.
    pub from: Lsn,
    /// The superblock's `hash_seed`.
    pub seed: u64,
    pub sums: Sums,
}

/// Result of a search in a part of the log.
#[derive(Debug, PartialEq, Eq)]
pub enum Searched {
    Found(RecordHeader),
    /// No witness in this many bytes. The search continues after them.
    Nothing(usize),
}

impl Witnesses {
    /// Builds the search for a log that seems to end at `end`. `life` is the end of its last epoch
    /// record, or the start of replay if no epoch record counts.
    pub fn of(end: Lsn, life: Lsn, power_lost: bool, seed: u64, sums: Sums) -> Witnesses {
        // A tail that was given up vouches for nothing beyond the start of the epoch record that
        // replaced it. That record was durable before the next one was written, and before an image
        // was sealed.
        Witnesses { from: if power_lost { end.saturating_add(1) } else { life }, seed, sums }
    }

    /// Searches the log's bytes from `at` on: the last ones of the log, or [`VOUCH_WINDOW`] of
    /// them.
    pub fn search(&self, bytes: &[u8], at: Lsn) -> Searched {
        let more = bytes.len() >= VOUCH_WINDOW;
        let mut from = 0;
        while let Some(skip) = next_magic(&bytes[from..]) {
            from += skip;
            let found = header(&bytes[from..]);
            let total = found.map_or(RECORD_HEADER, |found| index(found.total()));
            if more && from > 0 && from + total > bytes.len() {
                return Searched::Nothing(from);
            }
            let whole = found.and_then(|_| record(&bytes[from..], self.sums));
            let Some(whole) = whole else {
                from += RECORD_ALIGN;
                continue;
            };
            let payload = &bytes[from + RECORD_HEADER..from + RECORD_HEADER + whole.len.get() as usize];
            if whole.lsn() == at.saturating_add(from as u64)
                && vouched(whole.lsn(), payload, self.seed).is_some_and(|durable| durable >= self.from)
            {
                return Searched::Found(whole);
            }
            // What looks like a record inside a whole one is file contents.
            from = (from + total).min(bytes.len());
        }
        Searched::Nothing(bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::record::RecordKind;

    const SUMS: Sums = Sums::Xxh3;
    const SEED: u64 = 0x1234_5678_9abc_def0;

    /// Builds a record with `len` bytes of data, written at `lsn` when the log was durable up to
    /// `durable`.
    fn vouching(lsn: u64, len: usize, durable: u64) -> Vec<u8> {
        let mut payload = Vec::new();
        Entry::Write { at: Offset::new(1 << 16), bytes: &vec![7; len] }.encode(&mut payload);
        vouch(Lsn::new(durable), SEED).encode(&mut payload);
        let sum = SUMS.of(&payload);
        let mut bytes = RecordHeader::new(RecordKind::Tx, Lsn::new(lsn), 5, payload.len(), sum).as_bytes().to_vec();
        bytes.extend_from_slice(&payload);
        bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN), 0);
        bytes
    }

    fn found(bytes: &[u8], at: u64, from: u64) -> Option<u64> {
        let witnesses = Witnesses { from: Lsn::new(from), seed: SEED, sums: SUMS };
        match witnesses.search(bytes, Lsn::new(at)) {
            Searched::Found(header) => Some(header.lsn().get()),
            Searched::Nothing(_) => None,
        }
    }

    #[test]
    fn only_a_whole_record_at_its_own_position_bears_witness_and_only_of_what_it_vouches_for() {
        let bytes = [vec![0; 800], vouching(4896, 40, 4500)].concat();
        assert_eq!(found(&bytes, 4096, 4500), Some(4896));
        assert_eq!(found(&bytes, 4096, 4501), None, "durable up to there, and no further");
        assert_eq!(found(&bytes, 4096 + (32 << 20), 4500), None, "in reused space");
        for bit in 800 * 8..(bytes.len() - 1) * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // No sum covers the padding.
            let is_padding = bit / 8 >= 800 + RECORD_HEADER + 8 + 40 + VOUCH_BYTES;
            assert_eq!(found(&bytes, 4096, 4500).is_some(), is_padding, "bit {bit}");
        }
        assert_eq!(found(&vouching(4096, 40, 4097), 4096, 4000), None, "what follows cannot have been durable");
        let foreign = Witnesses { from: Lsn::new(4500), seed: !SEED, sums: SUMS };
        assert_eq!(foreign.search(&bytes, Lsn::new(4096)), Searched::Nothing(bytes.len()), "another store's");
    }

    #[test]
    fn what_looks_like_a_record_in_the_data_of_a_stale_one_is_passed_over() {
        let inner = vouching(4096 + 40, 40, 4090);
        let mut payload = Vec::new();
        Entry::Write { at: Offset::new(1 << 16), bytes: &inner }.encode(&mut payload);
        let outer = RecordHeader::new(RecordKind::Tx, Lsn::new(96), 5, payload.len(), SUMS.of(&payload));
        let bytes = [outer.as_bytes(), &payload].concat();
        assert_eq!(found(&bytes, 4096, 4000), None);
        assert_eq!(found(&bytes[40..], 4096 + 40, 4000), Some(4096 + 40));
    }

    #[test]
    fn a_record_across_the_edge_of_a_piece_is_found_in_the_next_one() {
        for before in [VOUCH_WINDOW - 8, VOUCH_WINDOW - 64, VOUCH_WINDOW - 1000, VOUCH_WINDOW - 2000] {
            let lsn = 4096 + before as u64;
            let bytes = [vec![0; before], vouching(lsn, 1500, 4097), vec![0; VOUCH_WINDOW]].concat();
            let witnesses = Witnesses { from: Lsn::new(4097), seed: SEED, sums: SUMS };
            let Searched::Nothing(skip) = witnesses.search(&bytes[..VOUCH_WINDOW], Lsn::new(4096)) else {
                assert_eq!(before, VOUCH_WINDOW - 2000);
                continue;
            };
            assert!(skip > 0 && skip <= before, "{skip} of {before}");
            let rest = &bytes[skip..skip + VOUCH_WINDOW];
            assert_eq!(found(rest, 4096 + skip as u64, 4097), Some(lsn));
        }
    }
}
