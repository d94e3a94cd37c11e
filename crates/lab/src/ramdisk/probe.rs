//! The speed of a block device.
//!
//! Owns: [`probe`], the time of a request at a random place and the rate of long sequential requests,
//! with one request at a time. Rules: requests bypass the page cache. The area is written once before
//! the clock runs, because the first touch of memory costs more than a request. Left out: what
//! follows from a speed (`disk`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use rustix::fs::OFlags;
use shoal_sim::Random;

use crate::experiment::LabError;
use crate::median::Median;

use crate::world::broken;

/// A block of UFS (bytes).
pub const BLOCK: usize = 8192;
/// Length of long requests, and the area that is used (bytes).
const LONG: usize = 1 << 20;
const AREA: usize = 32 << 20;
const REQUESTS: usize = 200;
/// Alignment of buffers that bypass the page cache.
const ALIGN: usize = 4096;

/// The speed of a device that has one request at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Medians of requests of a block at random places (ms).
    pub read_ms: f64,
    pub write_ms: f64,
    /// Rates of long sequential requests (MB/s).
    pub read_mb_s: f64,
    pub write_mb_s: f64,
}

impl Speed {
    /// Returns the time of a block, read or written (ms).
    pub fn block_ms(&self) -> f64 {
        (self.read_ms + self.write_ms) / 2.0
    }
}

/// Makes a buffer of which an aligned part has `len` bytes. Returns the buffer and the part's start.
fn aligned(len: usize, random: &mut Random) -> (Vec<u8>, usize) {
    let bytes = random.bytes(len + ALIGN);
    let from = bytes.as_ptr().align_offset(ALIGN);
    (bytes, from)
}

/// Returns the median time of requests at random places (ms).
fn at_random(random: &mut Random, mut request: impl FnMut(u64) -> io::Result<()>) -> io::Result<f64> {
    let mut took = vec![];
    for _ in 0..REQUESTS {
        let at = random.index(AREA / BLOCK) * BLOCK;
        let clock = Instant::now();
        request(at as u64)?;
        took.push(clock.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Median::of(took).value)
}

/// Returns the rate of long requests one after the other (MB/s).
fn in_sequence(mut request: impl FnMut(u64) -> io::Result<()>) -> io::Result<f64> {
    let clock = Instant::now();
    (0..AREA / LONG).try_for_each(|number| request((number * LONG) as u64))?;
    Ok(AREA as f64 / 1e6 / clock.elapsed().as_secs_f64())
}

fn measure(device: &File, seed: u64) -> io::Result<Speed> {
    let mut random = Random::new(seed);
    let (mut bytes, from) = aligned(LONG, &mut random);
    let write = |len: usize, at: u64, bytes: &[u8]| device.write_all_at(&bytes[from..from + len], at);
    in_sequence(|at| write(LONG, at, &bytes))?;
    let write_mb_s = in_sequence(|at| write(LONG, at, &bytes))?;
    let write_ms = at_random(&mut random, |at| write(BLOCK, at, &bytes))?;
    let read_ms = at_random(&mut random, |at| device.read_exact_at(&mut bytes[from..from + BLOCK], at))?;
    let read_mb_s = in_sequence(|at| device.read_exact_at(&mut bytes[from..from + LONG], at))?;
    Ok(Speed { read_ms, write_ms, read_mb_s, write_mb_s })
}

/// Measures a device. What it held is lost.
pub fn probe(path: &Path, seed: u64) -> Result<Speed, LabError> {
    let open = || OpenOptions::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
    open().and_then(|device| measure(&device, seed)).map_err(|error| broken(path.display(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_measured_within_its_area() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("device");
        File::create(&path).unwrap().set_len(AREA as u64).unwrap();
        let device = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let speed = measure(&device, 1).unwrap();
        assert!(speed.read_ms > 0.0 && speed.write_ms > 0.0 && speed.read_mb_s > 0.0 && speed.write_mb_s > 0.0);
        assert_eq!(device.metadata().unwrap().len(), AREA as u64, "nothing beyond the area");
        assert!(probe(&scratch.path().join("none"), 1).is_err());
    }
}
