//! Room left on the file systems under a store, and how it bounds the store.
//!
//! Owns: [`HostRoom`], its cache, and the back-off of checkpoints that find no room. Rules: the
//! host is asked at most every [`AGE_NS`], and again once the region has grown. The store's own
//! writes since then do not count twice, because bulk room is the sum of what the device has taken
//! and what is free. Left out: asking (the caller of `Fs::open` does that).

use std::sync::Arc;

use parking_lot::Mutex;
use shoal_media::Clock;

/// Room on the hosts of a store's media (bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRoom {
    /// Free space where log and images are.
    pub region: u64,
    /// Free space where the memory's file is, limited by what the process may use; `None`: the
    /// memory takes no space as it grows.
    pub memory: Option<u64>,
    /// Space taken by the bulk device plus space free for it; `None`: the device has its room for
    /// itself.
    pub bulk: Option<u64>,
    /// Images and bulk device share the same space.
    pub shared: bool,
    /// Space that bulk data leave free on a shared host, for log and images.
    pub headroom: u64,
}

/// Asks the hosts.
pub type Room = Arc<dyn Fn() -> HostRoom + Send + Sync>;

impl HostRoom {
    /// Returns how far the region can grow with `log` bytes left for the log. Each byte of the
    /// region takes one in each image.
    pub fn region_growth_bytes(&self, log: u64) -> u64 {
        (self.region.saturating_sub(log) / 2).min(self.memory.unwrap_or(u64::MAX))
    }

    /// Returns the most that the bulk device may take in total (bytes).
    pub fn bulk_bytes(&self, log: u64) -> u64 {
        match self.bulk {
            None => u64::MAX,
            Some(bytes) if self.shared => bytes.saturating_sub(self.headroom + log),
            Some(bytes) => bytes,
        }
    }
}

/// How long an answer of the host is valid (ns).
const AGE_NS: u64 = 100_000_000;

/// The host's last answer.
pub struct RoomCache {
    ask: Room,
    clock: Arc<dyn Clock>,
    last: Mutex<Option<Answer>>,
}

struct Answer {
    at_ns: u64,
    /// Bytes then reserved for the region on the host, if that was checked.
    reserved: Option<u64>,
    room: HostRoom,
}

impl RoomCache {
    pub fn new(ask: Room, clock: Arc<dyn Clock>) -> RoomCache {
        RoomCache { ask, clock, last: Mutex::new(None) }
    }

    /// Returns a fresh answer of the host. Used before anything is refused for lack of room.
    pub fn fresh(&self) -> HostRoom {
        self.ask(&mut self.last.lock(), None)
    }

    pub fn now(&self) -> HostRoom {
        self.answer(None)
    }

    /// Returns the host's room besides the bytes that the region has `reserved` there. An answer
    /// from before the region grew would count them twice.
    pub fn beside(&self, reserved: u64) -> HostRoom {
        self.answer(Some(reserved))
    }

    fn answer(&self, reserved: Option<u64>) -> HostRoom {
        let mut last = self.last.lock();
        let fits = |answer: &Answer| reserved.is_none() || answer.reserved == reserved;
        match &*last {
            Some(answer) if self.holds(answer) && fits(answer) => answer.room,
            _ => self.ask(&mut last, reserved),
        }
    }

    fn holds(&self, answer: &Answer) -> bool {
        self.clock.monotonic_ns().saturating_sub(answer.at_ns) < AGE_NS
    }

    fn ask(&self, last: &mut Option<Answer>, reserved: Option<u64>) -> HostRoom {
        let room = (self.ask)();
        *last = Some(Answer { at_ns: self.clock.monotonic_ns(), reserved, room });
        room
    }
}

/// First and longest time between two attempts (ns).
const RETRY_FIRST_NS: u64 = 100_000_000;
const RETRY_MAX_NS: u64 = 30_000_000_000;

/// How long to wait after failed attempts: longer each time.
#[derive(Default)]
pub struct Backoff {
    wait_ns: u64,
    until_ns: u64,
}

impl Backoff {
    pub fn note(&mut self, failed: bool, now_ns: u64) {
        self.wait_ns = if failed { (self.wait_ns * 2).clamp(RETRY_FIRST_NS, RETRY_MAX_NS) } else { 0 };
        self.until_ns = now_ns + self.wait_ns;
    }

    /// Forgets earlier failures.
    pub fn reset(&mut self) {
        *self = Backoff::default();
    }

    pub fn waits(&self, now_ns: u64) -> bool {
        self.is_failing() && now_ns < self.until_ns
    }

    pub fn is_failing(&self) -> bool {
        self.wait_ns > 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    struct Stopped(AtomicU64);

    impl Clock for Stopped {
        fn now_ns(&self) -> i64 {
            0
        }

        fn monotonic_ns(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn attempts_come_ever_more_rarely_until_one_succeeds() {
        let mut backoff = Backoff::default();
        assert!(!backoff.waits(0) && !backoff.is_failing());
        let mut now = 0;
        let mut attempts = 0;
        while now < 300_000_000_000 {
            if !backoff.waits(now) {
                backoff.note(true, now);
                attempts += 1;
            }
            now += 100_000_000;
        }
        assert!((15..25).contains(&attempts), "{attempts} attempts in five minutes");
        backoff.note(false, now);
        assert!(!backoff.waits(now) && !backoff.is_failing());
        backoff.note(true, now);
        assert!(backoff.waits(now + RETRY_FIRST_NS - 1) && !backoff.waits(now + RETRY_FIRST_NS));
    }

    #[test]
    fn the_host_is_asked_ten_times_a_second_at_most() {
        let (asked, clock) = (Arc::new(AtomicU64::new(0)), Arc::new(Stopped(AtomicU64::new(5))));
        let count = asked.clone();
        let ask: Room = Arc::new(move || HostRoom {
            region: count.fetch_add(1, Ordering::Relaxed),
            memory: None,
            bulk: None,
            shared: false,
            headroom: 0,
        });
        let cache = RoomCache::new(ask, clock.clone());
        assert_eq!([cache.now().region, cache.now().region], [0, 0]);
        clock.0.fetch_add(AGE_NS, Ordering::Relaxed);
        assert_eq!([cache.now().region, cache.now().region], [1, 1]);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        // A region that has grown does not accept an earlier answer.
        assert_eq!(
            [cache.beside(10), cache.beside(10), cache.beside(20), cache.now()].map(|room| room.region),
            [2, 2, 3, 3]
        );
    }

    #[test]
    fn a_shared_host_keeps_its_headroom_and_each_region_byte_takes_two() {
        let room = HostRoom { region: 100, memory: None, bulk: Some(300), shared: true, headroom: 20 };
        assert_eq!((room.bulk_bytes(30), room.region_growth_bytes(30)), (250, 35));
        let apart = HostRoom { shared: false, memory: Some(7), ..room };
        assert_eq!((apart.bulk_bytes(30), apart.region_growth_bytes(30)), (300, 7));
        assert_eq!(HostRoom { bulk: None, ..room }.bulk_bytes(30), u64::MAX);
    }
}
