//! Redo records: what the log holds.
//!
//! A record is a header of 32 bytes and a payload of entries, padded with zeros to 8 bytes. Its LSN
//! is its position in the log, counted in bytes since the store was formatted. Its salt is the
//! checksum of the previous header, so that a stale record in reused log space does not continue
//! the chain. Entries are absolute (bytes to store, bits to set or clear), so replay is idempotent.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{FormatError, Lsn, Offset, REGION_BYTES_MAX, Sums, checksum, index, u64_at};

pub const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"SHrc");
/// Bytes of a record header.
pub const RECORD_HEADER: usize = 32;
/// Largest payload (bytes). Bounds a transaction and what recovery must hold in memory.
pub const RECORD_PAYLOAD_MAX: usize = (1 << 20) + (1 << 16);
/// A record's length in the log is a multiple of this.
pub const RECORD_ALIGN: usize = 8;
/// Longest run of bytes one entry can name.
pub const ENTRY_LEN_MAX: u64 = (1 << 22) - 1;

/// The header as it lies in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RecordHeader {
    pub magic: U32,
    /// Payload bytes, without padding.
    pub len: U32,
    pub lsn: U64,
    /// `crc` of the record before it in the log.
    pub salt: U32,
    /// A [`RecordKind`].
    pub kind: U32,
    pub payload_sum: U32,
    /// CRC32C of the 28 bytes before it.
    pub crc: U32,
}

const _: () = assert!(size_of::<RecordHeader>() == RECORD_HEADER);
const _: () = assert!(std::mem::offset_of!(RecordHeader, crc) == 28);

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Entries to apply.
    Tx = 0,
    /// Marks a mount: 16 random bytes, then the boot id (16 bytes), or what [`with_loss`] makes of it.
    Epoch = 1,
}

/// Converts a boot id to the form that notes a failed flush of bulk storage, or back.
pub fn with_loss(boot_id: [u8; 16]) -> [u8; 16] {
    boot_id.map(|byte| !byte)
}

impl RecordKind {
    fn of(kind: u32) -> Option<RecordKind> {
        [RecordKind::Tx, RecordKind::Epoch].into_iter().find(|&known| known as u32 == kind)
    }
}

impl RecordHeader {
    pub fn new(kind: RecordKind, lsn: Lsn, salt: u32, len: usize, payload_sum: u32) -> RecordHeader {
        let mut header = RecordHeader {
            magic: RECORD_MAGIC.into(),
            len: u32::try_from(len).expect("a payload has `RECORD_PAYLOAD_MAX` at most").into(),
            lsn: lsn.get().into(),
            salt: salt.into(),
            kind: (kind as u32).into(),
            payload_sum: payload_sum.into(),
            crc: 0.into(),
        };
        header.crc = checksum(0, &header.as_bytes()[..28]).into();
        header
    }

    pub fn lsn(&self) -> Lsn {
        Lsn::new(self.lsn.get())
    }

    /// Decodes the header expected at `lsn` after a record whose header checksum was `salt`. Any
    /// error means that the log ends here.
    pub fn decode(bytes: &[u8], lsn: Lsn, salt: u32) -> Result<RecordHeader, FormatError> {
        let what = "log record";
        let Ok((header, _)) = RecordHeader::read_from_prefix(bytes) else {
            return Err(FormatError::Short { what, expected: RECORD_HEADER, found: bytes.len() });
        };
        if header.magic.get() != RECORD_MAGIC {
            return Err(FormatError::Magic { what, expected: RECORD_MAGIC.into(), found: header.magic.into() });
        }
        let found = checksum(0, &header.as_bytes()[..28]);
        if header.crc.get() != found {
            return Err(FormatError::Checksum { what, expected: header.crc.get(), found });
        }
        if header.lsn() != lsn {
            return Err(FormatError::Range { what, field: "lsn", found: header.lsn.get() });
        }
        if header.salt.get() != salt {
            return Err(FormatError::Range { what, field: "salt", found: header.salt.into() });
        }
        if header.len.get() as usize > RECORD_PAYLOAD_MAX {
            return Err(FormatError::Range { what, field: "length", found: header.len.into() });
        }
        if RecordKind::of(header.kind.get()).is_none() {
            return Err(FormatError::Range { what, field: "kind", found: header.kind.into() });
        }
        Ok(header)
    }

    /// Returns the kind of a decoded header, which is always known.
    pub fn record_kind(&self) -> RecordKind {
        RecordKind::of(self.kind.get()).expect("`decode` refuses others")
    }

    /// Returns the number of bytes that the whole record takes in the log.
    pub fn total(&self) -> u64 {
        record_bytes(self.len.get() as usize)
    }

    pub fn check_payload(&self, payload: &[u8], sums: Sums) -> Result<(), FormatError> {
        let found = sums.of(payload);
        if found != self.payload_sum.get() {
            return Err(FormatError::Checksum { what: "log record payload", expected: self.payload_sum.get(), found });
        }
        Ok(())
    }
}

/// Returns the number of log bytes of a record with `payload` bytes.
pub fn record_bytes(payload: usize) -> u64 {
    (RECORD_HEADER + payload.next_multiple_of(RECORD_ALIGN)) as u64
}

/// One change to the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry<'a> {
    /// Store these bytes.
    Write { at: Offset, bytes: &'a [u8] },
    /// Set these bits of the little-endian word at `at`.
    SetBits { at: Offset, mask: u64 },
    /// Clear these bits of the little-endian word at `at`.
    ClearBits { at: Offset, mask: u64 },
    /// Store `len` zero bytes.
    Zero { at: Offset, len: u64 },
}

const KIND_SHIFT: u32 = 62;
const LEN_SHIFT: u32 = 40;
const KIND_WRITE: u64 = 0;
const KIND_SET: u64 = 1;
const KIND_CLEAR: u64 = 2;
const KIND_ZERO: u64 = 3;

fn entry_word(kind: u64, at: Offset, len: u64) -> [u8; 8] {
    debug_assert!(at.get() < REGION_BYTES_MAX && len <= ENTRY_LEN_MAX);
    (kind << KIND_SHIFT | len << LEN_SHIFT | at.get()).to_le_bytes()
}

impl Entry<'_> {
    /// Appends the entry to a payload. Returns where in the payload its data begins.
    pub fn encode(&self, payload: &mut Vec<u8>) -> usize {
        match *self {
            Entry::Write { at, bytes } => {
                payload.extend_from_slice(&entry_word(KIND_WRITE, at, bytes.len() as u64));
                payload.extend_from_slice(bytes);
                payload.len() - bytes.len()
            }
            Entry::SetBits { at, mask } | Entry::ClearBits { at, mask } => {
                let kind = if matches!(self, Entry::SetBits { .. }) { KIND_SET } else { KIND_CLEAR };
                payload.extend_from_slice(&entry_word(kind, at, 8));
                payload.extend_from_slice(&mask.to_le_bytes());
                payload.len() - 8
            }
            Entry::Zero { at, len } => {
                payload.extend_from_slice(&entry_word(KIND_ZERO, at, len));
                payload.len()
            }
        }
    }

    /// Returns the first byte and the number of bytes that the entry changes.
    pub fn range(&self) -> (Offset, u64) {
        match *self {
            Entry::Write { at, bytes } => (at, bytes.len() as u64),
            Entry::SetBits { at, .. } | Entry::ClearBits { at, .. } => (at, 8),
            Entry::Zero { at, len } => (at, len),
        }
    }
}

/// Iterates over the entries of a payload. Stops after the first error.
pub struct Entries<'a> {
    payload: &'a [u8],
    region_bytes: u64,
}

impl<'a> Entries<'a> {
    /// Creates an iterator over a payload. `region_bytes` bounds every entry.
    pub fn new(payload: &'a [u8], region_bytes: u64) -> Entries<'a> {
        Entries { payload, region_bytes }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, FormatError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.payload.is_empty() {
            return None;
        }
        let what = "log record entry";
        let short = |expected, found| Some(Err(FormatError::Short { what, expected, found }));
        let payload = std::mem::take(&mut self.payload);
        if payload.len() < 8 {
            return short(8, payload.len());
        }
        let word = u64_at(payload, 0);
        let (kind, len, at) = (word >> KIND_SHIFT, word >> LEN_SHIFT & ENTRY_LEN_MAX, word & (REGION_BYTES_MAX - 1));
        if at + len > self.region_bytes {
            return Some(Err(FormatError::Range { what, field: "offset", found: at }));
        }
        let (body, place) = (&payload[8..], Offset::new(at));
        let stored = if kind == KIND_ZERO { 0 } else { index(len) };
        if body.len() < stored {
            return short(stored, body.len());
        }
        let entry = match kind {
            KIND_WRITE => Entry::Write { at: place, bytes: &body[..stored] },
            KIND_ZERO => Entry::Zero { at: place, len },
            _ if len != 8 || !at.is_multiple_of(8) => {
                return Some(Err(FormatError::Range { what, field: "bit word", found: at }));
            }
            KIND_SET => Entry::SetBits { at: place, mask: u64_at(body, 0) },
            _ => Entry::ClearBits { at: place, mask: u64_at(body, 0) },
        };
        self.payload = &body[stored..];
        Some(Ok(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        let entries = [
            Entry::Write { at: Offset::new(70_000), bytes: b"hello" },
            Entry::SetBits { at: Offset::new(16), mask: 5 },
            Entry::Zero { at: Offset::new(65536), len: 1 << 20 },
            Entry::ClearBits { at: Offset::new(24), mask: u64::MAX },
        ];
        let mut payload = Vec::new();
        entries.iter().for_each(|e| {
            e.encode(&mut payload);
        });
        let back: Result<Vec<_>, _> = Entries::new(&payload, 1 << 30).collect();
        assert_eq!(back.unwrap(), entries);
        assert!(Entries::new(&payload, 1 << 16).any(|e| e.is_err()), "an entry beyond the region is refused");
        for cut in 1..payload.len() {
            let _ = Entries::new(&payload[..cut], 1 << 30).count();
        }
    }

    #[test]
    fn a_record_is_accepted_only_at_its_place_in_the_chain() {
        let header = RecordHeader::new(RecordKind::Tx, Lsn::new(4096), 77, 5, Sums::Xxh3.of(b"hello"));
        let bytes = header.as_bytes();
        assert_eq!(RecordHeader::decode(bytes, Lsn::new(4096), 77), Ok(header));
        assert!(header.check_payload(b"hello", Sums::Xxh3).is_ok());
        assert!(header.check_payload(b"hellp", Sums::Xxh3).is_err());
        assert!(RecordHeader::decode(bytes, Lsn::new(4104), 77).is_err());
        assert!(RecordHeader::decode(bytes, Lsn::new(4096), 78).is_err());
        assert_eq!(header.total(), 40);
        // Forged headers have a correct checksum.
        let forged = |change: fn(&mut RecordHeader)| {
            let mut header = header;
            change(&mut header);
            header.crc = checksum(0, &header.as_bytes()[..28]).into();
            match RecordHeader::decode(header.as_bytes(), Lsn::new(4096), 77) {
                Err(FormatError::Range { field, found, .. }) => (field, found),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(forged(|header| header.kind = 2.into()), ("kind", 2));
        assert_eq!(forged(|header| header.len = (2 << 20).into()), ("length", 2 << 20));
    }
}
