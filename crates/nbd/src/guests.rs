//! The open connections of a server, and which of them gives way when there are too many.
//!
//! A client that opens connections and leaves them idle must not lock the others out. Handshakes
//! have places of their own, and the oldest gives way to the next. One address cannot have all
//! places. If there is no place left, a connection that has never asked for anything gives way, or
//! else the one that has been quiet for longest. An active client keeps its place.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::channel::Channel;
use crate::limits::Limits;

/// One connection.
pub(crate) struct Guest {
    pub(crate) channel: Arc<Channel>,
    ip: Option<IpAddr>,
    begun: Instant,
    serving: AtomicBool,
    /// Requests so far, and how many there were at the last pause.
    requests: AtomicU64,
    paused_at: AtomicU64,
    /// When the last pause began (milliseconds after `begun`).
    paused_ms: AtomicU64,
}

impl Guest {
    fn new(channel: Arc<Channel>, ip: Option<IpAddr>) -> Guest {
        Guest {
            channel,
            ip,
            begun: Instant::now(),
            serving: AtomicBool::new(false),
            requests: AtomicU64::new(0),
            paused_at: AtomicU64::new(0),
            paused_ms: AtomicU64::new(0),
        }
    }

    /// Records that the handshake is over.
    pub(crate) fn serves(&self) {
        self.paused_ms.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.serving.store(true, Ordering::Relaxed);
    }

    /// Records that a request has come. Only the receiving thread calls this.
    pub(crate) fn asks(&self) {
        self.requests.store(self.requests.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Records that the receiving thread is about to wait.
    pub(crate) fn pauses(&self) {
        let requests = self.requests.load(Ordering::Relaxed);
        if requests != self.paused_at.load(Ordering::Relaxed) {
            self.paused_at.store(requests, Ordering::Relaxed);
            self.paused_ms.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
        }
    }

    fn is_serving(&self) -> bool {
        self.serving.load(Ordering::Relaxed)
    }

    /// How long the connection has asked for nothing.
    fn quiet(&self) -> Duration {
        if self.requests.load(Ordering::Relaxed) != self.paused_at.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        self.begun.elapsed().saturating_sub(Duration::from_millis(self.paused_ms.load(Ordering::Relaxed)))
    }
}

/// Error: there is no place for the connection.
pub(crate) struct Full;

#[derive(Default)]
pub(crate) struct Guests {
    open: Mutex<HashMap<u64, Arc<Guest>>>,
    left: Condvar,
    ended: AtomicU64,
}

impl Guests {
    /// Finds a place for a connection, if necessary that of another one.
    pub(crate) fn admit(
        &self,
        id: u64,
        channel: &Arc<Channel>,
        ip: Option<IpAddr>,
        limits: &Limits,
    ) -> Result<Arc<Guest>, Full> {
        let mut open = self.open.lock();
        if open.values().filter(|guest| !guest.is_serving()).count() >= limits.handshakes {
            let oldest = open.iter().filter(|(_, guest)| !guest.is_serving()).min_by_key(|(_, guest)| guest.begun);
            let oldest = oldest.map(|(id, _)| *id);
            self.end(&mut open, oldest);
        }
        if ip.is_some() && open.values().filter(|guest| guest.ip == ip).count() >= limits.address_connections {
            let quiet = quietest(&open, limits, |guest| guest.ip == ip);
            self.end(&mut open, Some(quiet.ok_or(Full)?));
        }
        if open.len() >= limits.connections {
            let quiet = quietest(&open, limits, |_| true);
            self.end(&mut open, Some(quiet.ok_or(Full)?));
        }
        let guest = Arc::new(Guest::new(channel.clone(), ip));
        open.insert(id, guest.clone());
        Ok(guest)
    }

    fn end(&self, open: &mut HashMap<u64, Arc<Guest>>, id: Option<u64>) {
        if let Some(guest) = id.and_then(|id| open.remove(&id)) {
            self.ended.fetch_add(1, Ordering::Relaxed);
            guest.channel.shutdown();
        }
    }

    /// Removes a connection that is over.
    pub(crate) fn leave(&self, id: u64) {
        if let Some(guest) = self.open.lock().remove(&id) {
            guest.channel.shutdown();
        }
        self.left.notify_all();
    }

    pub(crate) fn open(&self) -> usize {
        self.open.lock().len()
    }

    /// Number of connections that had to give way.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn for_each(&self, each: impl Fn(&Channel)) {
        self.open.lock().values().for_each(|guest| each(&guest.channel));
    }

    /// Waits until all have left or the deadline has passed. Returns how many are left.
    pub(crate) fn wait_for_all(&self, deadline: Instant) -> usize {
        let mut open = self.open.lock();
        while !open.is_empty() && !self.left.wait_until(&mut open, deadline).timed_out() {}
        open.len()
    }
}

/// Returns the connection to give way: preferably one that never asked for anything, otherwise the
/// one that has been quiet for longest.
fn quietest(open: &HashMap<u64, Arc<Guest>>, limits: &Limits, among: impl Fn(&Guest) -> bool) -> Option<u64> {
    let candidates = open.iter().filter(|(_, guest)| among(guest) && guest.is_serving());
    let quiet = candidates.map(|(id, guest)| (*id, guest.requests.load(Ordering::Relaxed) == 0, guest.quiet()));
    let longest = quiet.filter(|(_, _, quiet)| *quiet >= limits.quiet).max_by_key(|(_, idle, quiet)| (*idle, *quiet));
    longest.map(|(id, _, _)| id)
}
