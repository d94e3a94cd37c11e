//! Gaps between requests, and the thread that uses them.
//!
//! Owns: when the disk counts as idle (no request for several times the usual distance between
//! two), and [`VirtualLogDisk`], a virtual log with a thread that writes changes that waited too
//! long and runs the compactor while no request comes. Rules: the thread checks for requests
//! between the compactor's steps, so that a request waits for one step at most. Left out: what the
//! compactor does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use shoal_media::{BlockDevice, BlockGeometry, Completion, Request, Result, WriteCache};

use crate::disk::VirtualLog;

/// Time between two checks for a gap.
const TICK: Duration = Duration::from_millis(5);
/// A shorter pause is no gap (ns).
const GAP_MIN_NS: u64 = 5_000_000;
/// A longer pause always is one (ns).
const GAP_MAX_NS: u64 = 200_000_000;
/// A pause of this many times the usual distance between two requests is a gap.
const GAP_DISTANCES: u64 = 8;
/// Changes that have waited in memory for this long are written, even without a flush (ns).
const WRITE_AGE_NS: u64 = 100_000_000;

/// Times at which requests come and go.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// When the last request came or went.
    last_ns: AtomicU64,
    under_way: AtomicU64,
    /// Moving average of the distances.
    distance_ns: AtomicU64,
}

impl Arrivals {
    pub fn came(&self, now: u64) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        let last = self.last_ns.swap(now, Ordering::Relaxed);
        // Cap the pause: one long night must not hide the gaps of the next day.
        let distance = now.saturating_sub(last).min(GAP_MAX_NS);
        let old = self.distance_ns.load(Ordering::Relaxed);
        self.distance_ns.store(old - old / 8 + distance / 8, Ordering::Relaxed);
    }

    /// Marks the end of a request. There is no gap while a request is under way, however long it
    /// takes.
    pub fn went(&self, now: u64) {
        self.last_ns.store(now, Ordering::Relaxed);
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    pub fn last_ns(&self) -> u64 {
        self.last_ns.load(Ordering::Relaxed)
    }

    pub fn is_gap(&self, now: u64) -> bool {
        let usual = self.distance_ns.load(Ordering::Relaxed) * GAP_DISTANCES;
        let pause = now.saturating_sub(self.last_ns());
        self.under_way.load(Ordering::Relaxed) == 0 && pause > usual.clamp(GAP_MIN_NS, GAP_MAX_NS)
    }
}

#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

/// A virtual log that uses gaps by itself. Dropping it closes the disk, so that the next opening
/// finds the end of the log at once.
pub struct VirtualLogDisk {
    log: Arc<VirtualLog>,
    stop: Arc<Stop>,
    ticker: Option<JoinHandle<()>>,
}

impl VirtualLogDisk {
    pub fn start(log: VirtualLog) -> VirtualLogDisk {
        let log = Arc::new(log);
        let stop = Arc::new(Stop::default());
        let (working, stopping) = (Arc::downgrade(&log), stop.clone());
        let ticker = thread::Builder::new().name("vlog-idle".into()).spawn(move || work(&working, &stopping)).ok();
        VirtualLogDisk { log, stop, ticker }
    }

    pub fn log(&self) -> &VirtualLog {
        &self.log
    }
}

impl BlockDevice for VirtualLogDisk {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.log.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.log.submit(request, done);
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.log.read_into(at, out)
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.log.write_from(at, bytes)
    }
}

impl Drop for VirtualLogDisk {
    fn drop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
        if let Some(ticker) = self.ticker.take() {
            // A panic of the thread has been reported already.
            let _ = ticker.join();
        }
        // A disk that cannot be closed is recovered when it is opened again.
        let _ = self.log.close();
    }
}

fn work(log: &Weak<VirtualLog>, stop: &Stop) {
    let mut stopped = stop.stopped.lock();
    let mut looked_after = None;
    while !*stopped {
        stop.changed.wait_for(&mut stopped, TICK);
        let Some(log) = log.upgrade().filter(|_| !*stopped) else { continue };
        drop(stopped);
        if use_gap(&log, stop, &mut looked_after).is_err() {
            // A failed write poisons the disk, and later requests report it. Do not retry before
            // the next request.
            looked_after = Some(log.last_request_ns());
        }
        stopped = stop.stopped.lock();
    }
}

/// Uses a gap, if there is one. `looked_after` is the last request before a look that found nothing
/// worth doing; the result holds until the next request.
fn use_gap(log: &VirtualLog, stop: &Stop, looked_after: &mut Option<u64>) -> Result<()> {
    if log.waits_for() > WRITE_AGE_NS {
        log.write_waiting()?;
        *looked_after = None;
    }
    let last = log.last_request_ns();
    if *looked_after == Some(last) {
        return Ok(());
    }
    while log.is_idle() && !*stop.stopped.lock() {
        if !log.compact_step()? {
            *looked_after = Some(last);
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_long_for_what_is_usual() {
        let arrivals = Arrivals::default();
        let mut now = 1_000_000_000;
        for _ in 0..100 {
            now += 2_000_000;
            arrivals.came(now);
            arrivals.went(now);
        }
        arrivals.came(now);
        assert!(!arrivals.is_gap(now + 100_000_000), "a long request is no gap");
        arrivals.went(now);
        assert!(!arrivals.is_gap(now + 14_000_000), "seven distances");
        assert!(arrivals.is_gap(now + 17_000_000));
        for _ in 0..100 {
            now += 10_000;
            arrivals.came(now);
            arrivals.went(now);
        }
        assert!(!arrivals.is_gap(now + 4_000_000) && arrivals.is_gap(now + 6_000_000), "never under 5 ms");
        for _ in 0..100 {
            now += 10_000_000_000;
            arrivals.came(now);
            arrivals.went(now);
        }
        assert!(arrivals.is_gap(now + 201_000_000), "always above 200 ms");
    }
}
