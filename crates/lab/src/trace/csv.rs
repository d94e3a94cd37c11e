//! Traces as CSV: `seconds,read|write,offset_bytes,length_bytes`, with a line of column names.
//!
//! Owns: reading, with errors that name line and byte, and writing files that read back the same. A
//! fifth column `device` may follow. Times are written in seconds with nine digits. Left out: other
//! units and orders of columns, which a line of any scripting language can convert.

use std::io::{Read, Write};

use super::{Kind, REQUEST_BYTES_MAX, REQUESTS_MAX, Request, TraceError};

const COLUMNS: [&str; 5] = ["seconds", "kind", "offset_bytes", "length_bytes", "device"];
/// Latest time (seconds): a century.
const SECONDS_MAX: u64 = 100 * 366 * 86_400;

/// Reads all requests, sorted by time.
pub fn read(input: impl Read) -> Result<Vec<Request>, TraceError> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(Bounded::new(input));
    let mut requests = vec![];
    let mut record = csv::ByteRecord::new();
    let headers = match reader.byte_headers() {
        Ok(headers) => headers.clone(),
        Err(error) => return Err(at_line(error, reader.position())),
    };
    if headers.get(0) != Some(COLUMNS[0].as_bytes()) {
        let why = format!("the first line has to name the columns: {}", COLUMNS[..4].join(","));
        return Err(TraceError::Line { line: 1, at: 0, why });
    }
    loop {
        match reader.read_byte_record(&mut record) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => return Err(at_line(error, reader.position())),
        }
        if requests.len() == REQUESTS_MAX {
            return Err(TraceError::TooLong { limit: REQUESTS_MAX });
        }
        let place = record.position().map_or((0, 0), |position| (position.line(), position.byte()));
        requests.push(decode(&record).map_err(|why| TraceError::Line { line: place.0, at: place.1, why })?);
    }
    requests.sort_by_key(|request| request.time_ns);
    Ok(requests)
}

fn decode(record: &csv::ByteRecord) -> Result<Request, String> {
    if !(4..=5).contains(&record.len()) {
        return Err(format!("{} columns; expected {}", record.len(), COLUMNS[..4].join(",")));
    }
    let text =
        |column: usize| std::str::from_utf8(&record[column]).map_err(|_| format!("{} is not text", COLUMNS[column]));
    let number = |column: usize, max: u64| {
        let text = text(column)?;
        let value: Option<u64> = text.parse().ok().filter(|value| *value <= max);
        value.ok_or_else(|| format!("{} is {text:?}; expected a number up to {max}", COLUMNS[column]))
    };
    let kind = match text(1)? {
        "read" => Kind::Read,
        "write" => Kind::Write,
        other => return Err(format!("kind is {other:?}; expected read or write")),
    };
    let len = number(3, REQUEST_BYTES_MAX.into())? as u32;
    if len == 0 {
        return Err("length_bytes is 0".into());
    }
    let device = if record.len() == 5 { number(4, u32::MAX.into())? as u32 } else { 0 };
    // The limit is half of the address space, so that sums of offsets and lengths cannot overflow.
    Ok(Request { time_ns: nanoseconds(text(0)?)?, kind, at: number(2, u64::MAX / 2)?, len, device })
}

/// Reads decimal seconds without floating point, so that written times read back the same.
fn nanoseconds(text: &str) -> Result<u64, String> {
    let wrong = || format!("seconds is {text:?}; expected decimal seconds up to {SECONDS_MAX}, at most nine decimals");
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || fraction.len() > 9 || !digits(whole) || !digits(fraction) {
        return Err(wrong());
    }
    let seconds: u64 = whole.parse().ok().filter(|seconds| *seconds <= SECONDS_MAX).ok_or_else(wrong)?;
    let fraction: u64 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
    Ok(seconds * 1_000_000_000 + fraction)
}

/// Writes the format of `read`, with the device column only if a request has a device.
pub fn write(requests: &[Request], output: impl Write) -> Result<(), TraceError> {
    let columns = if requests.iter().any(|request| request.device != 0) { 5 } else { 4 };
    let mut writer = csv::Writer::from_writer(output);
    writer.write_record(&COLUMNS[..columns]).map_err(not_written)?;
    for request in requests {
        let kind = match request.kind {
            Kind::Read => "read",
            Kind::Write => "write",
        };
        let seconds = format!("{}.{:09}", request.time_ns / 1_000_000_000, request.time_ns % 1_000_000_000);
        let fields =
            [seconds, kind.into(), request.at.to_string(), request.len.to_string(), request.device.to_string()];
        writer.write_record(&fields[..columns]).map_err(not_written)?;
    }
    writer.flush().map_err(|source| TraceError::Io { at: 0, source })
}

fn at_line(error: csv::Error, place: &csv::Position) -> TraceError {
    TraceError::Line { line: place.line(), at: place.byte(), why: error.to_string() }
}

fn not_written(error: csv::Error) -> TraceError {
    TraceError::Line { line: 0, at: 0, why: format!("cannot be written: {error}") }
}

/// A reader that fails on a line too long for a trace, before its caller has collected the line.
/// This bounds memory on any input.
struct Bounded<R> {
    input: R,
    line: usize,
}

const LINE_BYTES_MAX: usize = 1024;

impl<R> Bounded<R> {
    fn new(input: R) -> Bounded<R> {
        Bounded { input, line: 0 }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.input.read(out)?;
        for &byte in &out[..count] {
            // A quote would let a field span several lines. No column needs one.
            match byte {
                b'\n' | b'\r' => self.line = 0,
                b'"' => return Err(std::io::Error::other("a quotation mark, which no column needs")),
                _ if self.line == LINE_BYTES_MAX => {
                    return Err(std::io::Error::other(format!("a line of more than {LINE_BYTES_MAX} bytes")));
                }
                _ => self.line += 1,
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back_the_same() {
        let mut requests = vec![
            Request { time_ns: 1, kind: Kind::Read, at: 0, len: 512, device: 0 },
            Request { time_ns: 3_000_000_000, kind: Kind::Write, at: u64::MAX / 2, len: REQUEST_BYTES_MAX, device: 0 },
        ];
        for device in [0, u32::MAX] {
            requests[1].device = device;
            let mut bytes = vec![];
            write(&requests, &mut bytes).unwrap();
            assert_eq!(bytes.starts_with(b"seconds,kind,offset_bytes,length_bytes\n"), device == 0);
            assert_eq!(read(&bytes[..]).unwrap(), requests);
        }
    }

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        assert_eq!(nanoseconds("0.1").unwrap(), 100_000_000);
        assert_eq!(nanoseconds("603064.588892001").unwrap(), 603_064_588_892_001);
        for text in ["", ".5", "-1", "1e3", "0.0000000001", "99999999999", "1.-5", "1.2.3", "+1"] {
            assert!(nanoseconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_wrong_line_is_named() {
        let head = "seconds,kind,offset_bytes,length_bytes\n0.5,write,0,1024\n";
        for (line, word) in [
            ("1,erase,0,1024", "erase"),
            ("1,write,-1,1024", "offset_bytes"),
            ("1,write,0,0", "length_bytes"),
            ("1,write,0,99999999999", "length_bytes"),
            ("1,write,9223372036854775808,1", "offset_bytes"),
            ("x,write,0,1", "seconds"),
            ("1,write,0", "3 columns"),
            ("1,write,0,1,2,3", "6 columns"),
        ] {
            let text = format!("{head}{line}\n");
            let Err(TraceError::Line { line: number, at, why }) = read(text.as_bytes()) else { panic!("{line}") };
            assert_eq!((number, at as usize), (3, head.len()), "{line}");
            assert!(why.contains(word), "{why}");
        }
        assert!(read(&b"0.5,write,0,1024\n"[..]).is_err(), "column names are required");
    }

    #[test]
    fn any_bytes_are_an_error_in_bounded_memory() {
        assert!(read(std::io::repeat(b'x')).is_err());
        assert!(read(std::io::repeat(b'"')).is_err());
        assert!(read(&b"seconds,kind,offset_bytes,length_bytes\n1,write,\xff\xfe,3\n"[..]).is_err());
        let good = b"seconds,kind,offset_bytes,length_bytes\n0.5,write,0,1024\n12.25,read,4096,8192\n";
        for bit in 0..good.len() * 8 {
            let mut bytes = good.to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let _ = read(&bytes[..]);
        }
    }
}
