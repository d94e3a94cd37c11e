//! SRT: the trace format of HP's 1992 disk traces, as DiskSim reads it.
//!
//! Bytes: a text header up to and including the first form feed (0x0c), then records of 56 bytes,
//! each fourteen big-endian u32: record size, record id, start time in seconds and microseconds
//! since the start of the trace, queueing to start of service, service time (both in microseconds),
//! length in bytes, sector, device, drive, cylinder, flags, information, queue length. A sector has
//! 256 bytes; bit 0 of the flags is set for a read.
//!
//! Rules: memory holds one record at a time in addition to the requests. An error names the first
//! impossible byte. Records are sorted by time, stably, since devices may have been merged. Left
//! out: service times and queue lengths, which belong to the disks of 1992.

use std::io::{ErrorKind, Read};

use super::{Kind, REQUEST_BYTES_MAX, REQUESTS_MAX, Request, TraceError};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 56;
/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 256;
/// Length of the longest text header (bytes).
pub const HEADER_BYTES_MAX: u64 = 1 << 20;

const FORM_FEED: u8 = 0x0c;
const FLAG_READ: u32 = 1;

/// Reads all requests of a trace, to all devices, sorted by time.
pub fn read(mut input: impl Read) -> Result<Vec<Request>, TraceError> {
    let mut at = skip_header(&mut input)?;
    let mut requests = vec![];
    let mut record = [0; RECORD_BYTES];
    loop {
        match fill(&mut input, &mut record, at)? {
            0 => break,
            RECORD_BYTES => {}
            have => return Err(TraceError::Truncated { at, have, need: RECORD_BYTES }),
        }
        if requests.len() == REQUESTS_MAX {
            return Err(TraceError::TooLong { limit: REQUESTS_MAX });
        }
        requests.push(decode(&record, at)?);
        at += RECORD_BYTES as u64;
    }
    requests.sort_by_key(|request| request.time_ns);
    Ok(requests)
}

/// Skips the text header. Returns the offset of the first record.
fn skip_header(input: &mut impl Read) -> Result<u64, TraceError> {
    let mut byte = [0];
    for at in 0..HEADER_BYTES_MAX {
        match fill(input, &mut byte, at)? {
            0 => break,
            _ if byte[0] == FORM_FEED => return Ok(at + 1),
            _ => {}
        }
    }
    Err(TraceError::Header { limit: HEADER_BYTES_MAX })
}

/// Reads until `out` is full or the input ends. Returns the number of bytes read.
fn fill(input: &mut impl Read, out: &mut [u8], at: u64) -> Result<usize, TraceError> {
    let mut have = 0;
    while have < out.len() {
        match input.read(&mut out[have..]) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(source) => return Err(TraceError::Io { at: at + have as u64, source }),
        }
    }
    Ok(have)
}

fn decode(record: &[u8; RECORD_BYTES], at: u64) -> Result<Request, TraceError> {
    let field = |index: usize| {
        let bytes = &record[4 * index..4 * index + 4];
        u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    let wrong = |index: usize, what: &'static str, expected: String| TraceError::Field {
        at: at + 4 * index as u64,
        what,
        found: field(index).into(),
        expected,
    };
    if field(0) as usize != RECORD_BYTES {
        return Err(wrong(0, "the record size", RECORD_BYTES.to_string()));
    }
    if field(3) >= 1_000_000 {
        return Err(wrong(3, "the microseconds of the start time", "less than 1000000".into()));
    }
    let len = field(6);
    if !(1..=REQUEST_BYTES_MAX).contains(&len) {
        return Err(wrong(6, "the length of the request", format!("1 to {REQUEST_BYTES_MAX} bytes")));
    }
    Ok(Request {
        time_ns: u64::from(field(2)) * 1_000_000_000 + u64::from(field(3)) * 1000,
        kind: if field(11) & FLAG_READ != 0 { Kind::Read } else { Kind::Write },
        at: u64::from(field(7)) * SECTOR_BYTES,
        len,
        device: field(8),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = b"version = 1.3;\ndisks = { 0 -> { sectorsize = 256 } };\n\x0c";

    fn record(seconds: u32, micros: u32, len: u32, sector: u32, device: u32, flags: u32) -> Vec<u8> {
        [56, 0x40001, seconds, micros, 100, 2000, len, sector, device, 4, 1, flags, 0, 1]
            .iter()
            .flat_map(|field: &u32| field.to_be_bytes())
            .collect()
    }

    fn sample() -> Vec<u8> {
        let mut bytes = HEADER.to_vec();
        bytes.extend(record(0, 22_479, 4096, 1056, 0x800_0008, 0x1b));
        bytes.extend(record(7, 5, 8192, 4, 0x800_0008, 0x108_800a));
        bytes.extend(record(7, 4, 1024, u32::MAX, 0x800_000e, 0x1a));
        bytes
    }

    #[test]
    fn records_become_requests_in_the_order_of_time() {
        let requests = read(&sample()[..]).unwrap();
        let expected = [
            Request { time_ns: 22_479_000, kind: Kind::Read, at: 1056 * 256, len: 4096, device: 0x800_0008 },
            Request {
                time_ns: 7_000_004_000,
                kind: Kind::Write,
                at: u64::from(u32::MAX) * 256,
                len: 1024,
                device: 0x800_000e,
            },
            Request { time_ns: 7_000_005_000, kind: Kind::Write, at: 1024, len: 8192, device: 0x800_0008 },
        ];
        assert_eq!(requests, expected);
    }

    #[test]
    fn every_truncation_is_an_error_that_names_the_record_or_a_shorter_trace() {
        let whole = sample();
        for length in 0..whole.len() {
            let result = read(&whole[..length]);
            if length < HEADER.len() {
                assert!(matches!(result, Err(TraceError::Header { .. })), "{length} bytes");
                continue;
            }
            let (records, rest) = ((length - HEADER.len()) / RECORD_BYTES, (length - HEADER.len()) % RECORD_BYTES);
            match result {
                Ok(requests) => assert_eq!((requests.len(), rest), (records, 0), "{length} bytes"),
                Err(TraceError::Truncated { at, have, need }) => {
                    assert_ne!(rest, 0);
                    assert_eq!(at, (HEADER.len() + records * RECORD_BYTES) as u64);
                    assert_eq!((have, need), (rest, RECORD_BYTES));
                }
                Err(error) => panic!("{length} bytes: {error}"),
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_an_error_at_its_place_or_another_request() {
        let whole = sample();
        let good = read(&whole[..]).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let in_record = (bit / 8).checked_sub(HEADER.len());
            let result = read(&bytes[..]);
            match (in_record.map(|byte| byte % RECORD_BYTES / 4), result) {
                // The record size is always checked.
                (Some(0), Err(TraceError::Field { at, what, .. })) => {
                    assert_eq!((at as usize - HEADER.len()) % RECORD_BYTES, 0);
                    assert!((at as usize..at as usize + 4).contains(&(bit / 8)));
                    assert_eq!(what, "the record size");
                }
                (Some(0), other) => panic!("bit {bit}: {other:?}"),
                (Some(3 | 6), Err(TraceError::Field { at, .. })) => {
                    assert!((at as usize..at as usize + 4).contains(&(bit / 8)), "the field with the bit is named");
                }
                // Ids, service times, queue lengths and positions are ignored.
                (Some(1 | 4 | 5 | 9 | 10 | 12 | 13), result) => assert_eq!(result.unwrap(), good, "bit {bit}"),
                (Some(11), result) => assert_eq!(result.unwrap() != good, bit % 32 == (HEADER.len() * 8 + 24) % 32),
                (Some(_), result) => assert_ne!(result.unwrap(), good, "bit {bit}"),
                // The form feed is lost, or another one appears within the header: all that can be
                // required is that nothing panics.
                (None, _) => {}
            }
        }
    }

    #[test]
    fn lengths_and_times_that_cannot_be_are_named_with_their_byte() {
        for (bytes, index) in [
            (record(0, 1_000_000, 1024, 0, 8, 0), 3),
            (record(0, 0, 0, 0, 8, 0), 6),
            (record(0, 0, REQUEST_BYTES_MAX + 1, 0, 8, 0), 6),
        ] {
            let file = [HEADER, &bytes].concat();
            let Err(TraceError::Field { at, .. }) = read(&file[..]) else { panic!("taken") };
            assert_eq!(at as usize, HEADER.len() + 4 * index);
        }
        assert!(read(&[HEADER, &record(u32::MAX, 999_999, REQUEST_BYTES_MAX, u32::MAX, 8, 0)].concat()[..]).is_ok());
    }

    #[test]
    fn a_file_without_a_header_ends_soon() {
        let endless = std::io::repeat(b'x');
        assert!(matches!(read(endless), Err(TraceError::Header { .. })));
    }

    #[test]
    fn a_failing_disk_is_an_error_with_its_place() {
        struct Failing(usize);
        impl Read for Failing {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                self.0 = self.0.checked_sub(1).ok_or_else(|| std::io::Error::other("bad sector"))?;
                out[0] = if self.0 == 3 { FORM_FEED } else { b'x' };
                Ok(1)
            }
        }
        let Err(TraceError::Io { at, .. }) = read(Failing(10)) else { panic!("read") };
        assert_eq!(at, 10);
    }
}
