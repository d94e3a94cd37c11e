//! A disk as slow beside the network here as the paper's was beside its Ethernet.
//!
//! Owns: [`Throttle`], derived from the speed of the network RAM disk; [`Disk`], memory with one arm.
//! A request that does not continue the one before waits for a seek and half a turn, one that
//! continues it too late for the rest of the turn, and every request for its bytes; requests wait for
//! each other. Rules: the paper's disk has the bandwidth of its network and an average seek of 16 ms;
//! a block of UFS takes 6.55 ms on that network. So the disk here has the rate of the unreliable
//! network RAM disk, and a seek takes 16/6.55 of the time of a block there. The paper does not state
//! how fast the disk turned: an option does. Left out: the length of a seek, and caches in the disk.
//! nbdkit's delay filter would not do: it counts whole milliseconds, and delays every request.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request, Result, WriteCache};

use super::probe::{BLOCK, Speed};

/// The paper's disk and network: an average seek (ms), and the bandwidth of both (bit/s).
const SEEK_MS: f64 = 16.0;
const PAPER_BITS: f64 = 10e6;
const SECTOR: u32 = 512;

/// Returns the time of a block on the paper's network (ms).
fn transfer_ms() -> f64 {
    (BLOCK * 8) as f64 / PAPER_BITS * 1e3
}

/// Returns the time of a turn (ms); 0 if the disk does not turn.
fn turn_ms(rpm: u32) -> f64 {
    if rpm == 0 { 0.0 } else { 60e3 / f64::from(rpm) }
}

/// Returns the paper's ratio of disk to network for a block at a random place.
pub fn paper_ratio(rpm: u32) -> f64 {
    (SEEK_MS + turn_ms(rpm) / 2.0 + transfer_ms()) / transfer_ms()
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    pub seek: Duration,
    /// Time of a turn; zero: the disk does not turn.
    pub turn: Duration,
    pub bytes_s: f64,
}

impl Throttle {
    /// Returns the throttle that makes memory as slow as the paper's disk was, compared with a
    /// network RAM disk of this speed. The disk makes `rpm` turns a minute; 0: it does not turn.
    pub fn beside(network: &Speed, rpm: u32) -> Throttle {
        let scaled = |ms: f64| Duration::from_secs_f64(network.block_ms() * ms / transfer_ms() / 1e3);
        let mb_s = (network.read_mb_s + network.write_mb_s) / 2.0;
        Throttle { seek: scaled(SEEK_MS), turn: scaled(turn_ms(rpm)), bytes_s: mb_s * 1e6 }
    }

    /// Returns how long the arm and the turning platter take for a request. `late`: how long ago the
    /// place after the request before passed the arm, if this request continues there.
    fn positions(&self, late: Option<Duration>) -> Duration {
        match late {
            None => self.seek + self.turn / 2,
            Some(late) if late.is_zero() || self.turn.is_zero() => Duration::ZERO,
            Some(late) => self.turn - Duration::from_secs_f64(late.as_secs_f64() % self.turn.as_secs_f64()),
        }
    }
}

/// Where the arm is, and when it is free.
#[derive(Debug)]
struct Arm {
    at: u64,
    free: Instant,
    bytes: Vec<u8>,
}

#[derive(Debug)]
pub struct Disk {
    throttle: Throttle,
    len: u64,
    arm: Mutex<Arm>,
}

impl Disk {
    pub fn new(throttle: Throttle, len: u64) -> Disk {
        let arm = Arm { at: 0, free: Instant::now(), bytes: vec![0; len as usize] };
        Disk { throttle, len, arm: Mutex::new(arm) }
    }

    /// Returns the range of a request in memory.
    fn range(&self, at: u64, len: u64) -> Result<Range<usize>> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(at as usize..end as usize),
            _ => Err(MediaError::OutOfRange { what: "throttled disk".into(), at, len }),
        }
    }

    /// Carries out a request. Returns when the arm has done it, with the request's buffer.
    fn carry_out(&self, request: Request) -> Result<(Instant, Vec<u8>)> {
        let (at, len) = request.range();
        let range = self.range(at, len)?;
        let mut arm = self.arm.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = match request {
            Request::Read { mut buffer, .. } => {
                buffer.copy_from_slice(&arm.bytes[range]);
                buffer
            }
            Request::Write { buffer, .. } => {
                arm.bytes[range].copy_from_slice(&buffer);
                buffer
            }
            Request::WriteZeroes { .. } => {
                arm.bytes[range].fill(0);
                vec![]
            }
            // Neither moves the arm.
            Request::Trim { .. } | Request::Flush => return Ok((arm.free, vec![])),
        };
        let now = Instant::now();
        let late = now.saturating_duration_since(arm.free);
        let positions = self.throttle.positions((arm.at == at).then_some(late));
        let transfer = Duration::from_secs_f64(len as f64 / self.throttle.bytes_s);
        arm.free = arm.free.max(now) + positions + transfer;
        arm.at = at + len;
        Ok((arm.free, buffer))
    }
}

impl BlockDevice for Disk {
    fn geometry(&self) -> BlockGeometry {
        BlockGeometry { bytes: self.len, block_bytes: SECTOR, atomic_bytes: SECTOR, survives_process: false }
    }

    fn submit(&self, request: Request, done: Completion) {
        done(self.carry_out(request).map(|(until, buffer)| {
            thread::sleep(until.saturating_duration_since(Instant::now()));
            buffer
        }));
    }

    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(seek_ms: u64, bytes_s: f64) -> Disk {
        Disk::new(Throttle { seek: Duration::from_millis(seek_ms), turn: Duration::ZERO, bytes_s }, 1 << 20)
    }

    /// Returns how long a write must wait at least, and how long it must still wait afterwards. Neither
    /// depends on the load of the machine.
    fn waits(disk: &Disk, at: u64, len: usize) -> (Duration, Duration) {
        let before = Instant::now();
        let (until, _) = disk.carry_out(Request::Write { at, buffer: vec![7; len], fua: false }).unwrap();
        (until - before, until.saturating_duration_since(Instant::now()))
    }

    #[test]
    fn a_throttle_keeps_the_papers_ratio_at_any_speed() {
        for block_ms in [0.01, 0.9, 3.0] {
            let speed = Speed { read_ms: block_ms, write_ms: block_ms, read_mb_s: 10.0, write_mb_s: 30.0 };
            let throttle = Throttle::beside(&speed, 3600);
            let ratio = (throttle.positions(None).as_secs_f64() * 1e3 + block_ms) / block_ms;
            assert!((ratio - paper_ratio(3600)).abs() < 0.01, "{block_ms} ms: {ratio}");
            assert_eq!(throttle.bytes_s, 20e6, "the mean of both rates");
        }
        let of = |block_ms| Speed { read_ms: block_ms, write_ms: block_ms, read_mb_s: 1.25, write_mb_s: 1.25 };
        let paper = Throttle::beside(&of(transfer_ms()), 3600);
        assert_eq!((paper.seek.as_micros(), paper.turn.as_micros(), paper.bytes_s * 8.0), (16_000, 16_666, 10e6));
        assert!(Throttle::beside(&of(1.0), 0).turn.is_zero());
    }

    #[test]
    fn what_continues_too_late_waits_for_the_rest_of_the_turn() {
        let ms = Duration::from_millis;
        let throttle = Throttle { seek: ms(16), turn: ms(10), bytes_s: 1e6 };
        assert_eq!(throttle.positions(None), ms(21));
        assert_eq!(throttle.positions(Some(ms(0))), ms(0));
        assert_eq!(throttle.positions(Some(ms(1))), ms(9));
        assert_eq!(throttle.positions(Some(ms(23))), ms(7));
        assert_eq!(Throttle { turn: ms(0), ..throttle }.positions(Some(ms(1))), ms(0));
    }

    #[test]
    fn what_continues_waits_for_its_bytes_and_what_jumps_also_for_the_arm() {
        let disk_of = disk;
        let (disk, few) = (disk_of(4000, 1e9), Duration::from_millis(1));
        assert!(waits(&disk, 0, 4096).1 < few, "the arm is there");
        assert!(waits(&disk, 4096, 4096).1 < few, "it continues");
        assert!(waits(&disk, 512 << 10, 4096).0 >= Duration::from_secs(4));
        assert!(waits(&disk_of(0, 1e6), 0, 50_000).0 >= Duration::from_millis(50));
    }

    #[test]
    fn requests_wait_for_each_other() {
        let disk = disk(30, 1e9);
        let clock = Instant::now();
        thread::scope(|scope| {
            for number in 1..=3u64 {
                let disk = &disk;
                scope.spawn(move || disk.write_from(number << 16, &[1; 512]).unwrap());
            }
        });
        assert!(clock.elapsed() >= Duration::from_millis(90));
    }

    #[test]
    fn a_disk_keeps_what_was_written_and_refuses_what_is_beyond_it() {
        let disk = disk(0, 1e12);
        disk.write_from(4096, &[5; 512]).unwrap();
        let mut back = [0; 1024];
        disk.read_into(4096, &mut back).unwrap();
        assert!(back[..512] == [5; 512] && back[512..] == [0; 512]);
        assert!(disk.write_from((1 << 20) - 512, &[1; 1024]).is_err());
    }
}
