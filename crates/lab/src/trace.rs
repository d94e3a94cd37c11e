//! Disk traces: requests with their times, from files or from a seed.
//!
//! | module | owns |
//! |---|---|
//! | `srt` | DiskSim's SRT format, used by the HP traces of 1992 |
//! | `csv` | a plain format for everything else, read and written |
//! | `shape` | conversion from a big sparse disk to a small full one; several copies on a larger disk |
//! | `synthetic` | a workload from a seed, for machines without a trace |
//!
//! Rules: readers answer wrong bytes with a typed error that names the offset, and hold nothing but
//! the requests. Addresses and lengths of a [`Request`] are in bytes, so that each experiment
//! chooses its own block size.

pub mod csv;
pub mod shape;
pub mod srt;
pub mod synthetic;

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Longest request that a reader accepts (bytes): a file with longer ones is not a disk trace.
pub const REQUEST_BYTES_MAX: u32 = 64 << 20;
/// Maximum number of requests that a reader accepts. Each takes 32 bytes in memory.
pub const REQUESTS_MAX: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Read,
    Write,
}

/// One request to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time since the start of the trace (ns).
    pub time_ns: u64,
    pub kind: Kind,
    /// Address of the first byte.
    pub at: u64,
    /// Length (bytes); never 0.
    pub len: u32,
    /// The disk, if a trace has several; 0 in formats without devices.
    pub device: u32,
}

/// The reason why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("{path}: {source}")]
    Open { path: PathBuf, source: std::io::Error },
    #[error("cannot be read at byte {at}: {source}")]
    Io { at: u64, source: std::io::Error },
    #[error("no form feed (0x0c) ends the text header within {limit} bytes: this is not an SRT trace")]
    Header { limit: u64 },
    #[error("byte {at}: {what} is {found}, expected {expected}")]
    Field { at: u64, what: &'static str, found: u64, expected: String },
    #[error("byte {at}: the file ends within a record, {have} of {need} bytes are there; copy the trace again")]
    Truncated { at: u64, have: usize, need: usize },
    #[error("line {line}, byte {at}: {why}")]
    Line { line: u64, at: u64, why: String },
    #[error("more than {limit} requests; split the trace")]
    TooLong { limit: usize },
    #[error("no requests to device {device:#x}; the trace has {devices}")]
    NoSuchDevice { device: u32, devices: String },
    #[error("no requests in the trace")]
    Empty,
    #[error("{path}: {source}")]
    In { path: PathBuf, source: Box<TraceError> },
}

/// Reads a trace file: CSV if its name ends so, otherwise SRT.
pub fn open(path: &Path) -> Result<Vec<Request>, TraceError> {
    let file = File::open(path).map_err(|source| TraceError::Open { path: path.into(), source })?;
    let is_csv = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
    let input = BufReader::with_capacity(1 << 16, file);
    let requests = if is_csv { csv::read(input) } else { srt::read(input) };
    requests.map_err(|source| TraceError::In { path: path.into(), source: Box::new(source) })
}

/// Returns the devices of a trace with their numbers of requests, the busiest first.
pub fn devices(requests: &[Request]) -> Vec<(u32, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for request in requests {
        *counts.entry(request.device).or_insert(0usize) += 1;
    }
    let mut counts: Vec<(u32, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(device, count)| (std::cmp::Reverse(*count), *device));
    counts
}

/// Returns the requests to one device, or to the busiest one for `None`.
pub fn of_device(requests: &[Request], device: Option<u32>) -> Result<(u32, Vec<Request>), TraceError> {
    let devices = devices(requests);
    let device = device.or(devices.first().map(|(busiest, _)| *busiest)).ok_or(TraceError::Empty)?;
    let chosen: Vec<Request> = requests.iter().copied().filter(|request| request.device == device).collect();
    if chosen.is_empty() {
        let devices: Vec<String> = devices.iter().map(|(device, count)| format!("{device:#x} ({count})")).collect();
        return Err(TraceError::NoSuchDevice { device, devices: devices.join(", ") });
    }
    Ok((device, chosen))
}
