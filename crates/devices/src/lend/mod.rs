//! The areas lent, by name: granted when asked for, taken back when no client holds them.
//!
//! A name is granted its area at the first step of its first handshake, so that the answer is
//! reliable. Connections hold the area through their export. An empty area that no client holds
//! gives way to a client that needs the room, so asking reserves nothing permanently. An area with
//! contents is kept for its client as long as the terms say. All connections of a name share one
//! area. Areas are zeroed outside the lock, and explicitly rather than when they are dropped:
//! another holder of the area (compaction) must not delay the release of its room.

mod guesses;
mod names;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use shoal_media::MediaError;
use shoal_nbd::export::BASE_ALLOCATION;
use shoal_nbd::wire::handshake::ListEntry;
use shoal_nbd::{BlockStatus, Catalog, Clients, Export, Extent, Peer, Refusal};
use shoal_netram::donor::{Area, Compacted, Compression, GrantError, Quota, Usage};
use tracing::info;

use crate::allocation::extents;
use crate::donor_link::{AREA, PRESSURE, UNDER_PRESSURE};
use crate::size::human;
use guesses::Guesses;
use names::DEFAULT;
pub use names::{Allow, Names};

/// Longest time since the last question for a client to count as asking for the state of memory.
/// A client that asks does so every second.
const ASKS_WITHIN: Duration = Duration::from_secs(3);

/// Terms on which memory is lent.
#[derive(Clone, Debug)]
pub struct Terms {
    pub area_bytes: u64,
    pub compression: Compression,
    /// How long an area outlives its last connection.
    pub keep: Duration,
}

struct Lent {
    area: Arc<Area>,
    identity: Arc<Identity>,
    clients: Arc<Clients>,
    export: Weak<Export>,
    /// When a client last asked whether this machine needs its memory, or connected. A client that
    /// asks moves its data elsewhere when told so.
    asked: Arc<Mutex<Option<Instant>>>,
    /// When the area was first seen without a connection.
    unheld: Option<Instant>,
}

impl Lent {
    fn is_held(&self) -> bool {
        self.export.strong_count() > 0
    }
}

/// Refused clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    pub count: u64,
    /// Address of the last one.
    pub last: String,
}

/// The catalog of a donor.
pub struct Lender {
    names: Names,
    guesses: Guesses,
    refused: Mutex<Refused>,
    quota: Arc<Quota>,
    terms: Terms,
    pressed: Arc<AtomicBool>,
    /// No more areas are granted.
    closed: AtomicBool,
    areas: Mutex<BTreeMap<String, Lent>>,
}

impl Lender {
    pub fn new(names: Names, quota: Arc<Quota>, terms: Terms) -> Lender {
        Lender {
            names,
            guesses: Guesses::default(),
            refused: Mutex::default(),
            quota,
            terms,
            pressed: Arc::default(),
            closed: AtomicBool::new(false),
            areas: Mutex::default(),
        }
    }

    /// Sets whether this machine is short of memory. Returns the previous setting.
    pub fn set_pressed(&self, pressed: bool) -> bool {
        let before = self.pressed.swap(pressed, Ordering::SeqCst);
        let areas = self.areas.lock();
        areas.values().for_each(|lent| lent.area.set_tight(pressed));
        if pressed {
            self.quota.drop_spares();
        }
        before
    }

    /// Clients that asked for a name that may not borrow, or gave a wrong secret.
    pub fn refused(&self) -> Refused {
        self.refused.lock().clone()
    }

    /// Returns the name that a client asks for, after the wait that its host's wrong guesses
    /// require.
    fn admit<'a>(&self, asked: &'a str, peer: &Peer) -> Result<&'a str, Refusal> {
        let host = peer.ip.filter(|_| self.names.have_secrets());
        if let Some(host) = host {
            thread::sleep(self.guesses.wait(host, Instant::now()));
        }
        let admitted = self.names.admit(asked);
        if let (Some(host), None) = (host, admitted) {
            self.guesses.wrong(host, Instant::now());
        }
        admitted.ok_or_else(|| {
            // Do not record the requested name, which may be a secret.
            let mut refused = self.refused.lock();
            refused.count += 1;
            refused.last.clone_from(&peer.address);
            let reason = "this name may not borrow here, or its secret is another; ask the donor's owner";
            Refusal::Policy { reason: reason.into() }
        })
    }

    /// Takes back areas that no client has held for as long as the terms say. Returns their names
    /// and the seconds without a client.
    pub fn revoke_unheld(&self, now: Instant) -> Vec<(String, u64)> {
        let keep = self.terms.keep;
        let expired = self.take(|lent| {
            if lent.is_held() {
                lent.unheld = None;
                return false;
            }
            now.duration_since(*lent.unheld.get_or_insert(now)) >= keep
        });
        let revoked = expired.into_iter().map(|(name, lent)| {
            lent.area.revoke();
            let held_s = lent.unheld.map_or(0, |since| now.duration_since(since).as_secs());
            (name, held_s)
        });
        revoked.collect()
    }

    /// Asks the clients to do without this donor, and grants no more areas.
    pub fn leave(&self) {
        self.close();
        // Clients empty a donor that needs its memory, whatever the reason.
        self.set_pressed(true);
    }

    /// Returns whether clients that can be asked to move their contents still have any here.
    pub fn is_needed(&self) -> bool {
        let asks = |lent: &Lent| lent.asked.lock().is_some_and(|asked| asked.elapsed() < ASKS_WITHIN);
        self.areas.lock().values().any(|lent| lent.is_held() && !lent.area.is_blank() && asks(lent))
    }

    /// Stops granting areas.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Zeroes everything. Returns the number of areas.
    pub fn revoke_all(&self) -> usize {
        self.close();
        let all = self.take(|_| true);
        all.iter().for_each(|(_, lent)| lent.area.revoke());
        all.len()
    }

    pub fn compact(&self, now_s: u32, age_s: u32) -> Compacted {
        let mut done = Compacted::default();
        for area in self.areas() {
            if !self.closed.load(Ordering::SeqCst) {
                done += area.compact(now_s, age_s);
            }
        }
        done
    }

    pub fn usage(&self) -> Usage {
        let mut sum = Usage::default();
        for usage in self.areas().iter().map(|area| area.usage()) {
            sum.used_bytes += usage.used_bytes;
            sum.held_bytes += usage.held_bytes;
            sum.packed_bytes += usage.packed_bytes;
        }
        sum
    }

    fn areas(&self) -> Vec<Arc<Area>> {
        self.areas.lock().values().map(|lent| lent.area.clone()).collect()
    }

    fn take(&self, mut condition: impl FnMut(&mut Lent) -> bool) -> Vec<(String, Lent)> {
        let mut areas = self.areas.lock();
        let names: Vec<String> =
            areas.iter_mut().filter_map(|(name, lent)| condition(lent).then(|| name.clone())).collect();
        names.into_iter().filter_map(|name| areas.remove_entry(&name)).collect()
    }

    fn grant(&self, name: &str, areas: &mut BTreeMap<String, Lent>) -> Result<Area, Refusal> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Refusal::Policy { reason: "this donor is about to end; ask another donor".into() });
        }
        if self.pressed.load(Ordering::SeqCst) {
            let reason = "this donor needs its memory itself at the moment; ask another donor, or later";
            return Err(Refusal::Policy { reason: reason.into() });
        }
        let new = || Area::new(format!("area {name:?}"), self.terms.area_bytes, &self.quota, self.terms.compression);
        let granted = new().or_else(|_| {
            // This is quick: there is nothing in these areas to zero.
            areas.retain(|_, lent| {
                let stays = lent.is_held() || !lent.area.is_blank();
                if !stays {
                    lent.area.revoke();
                }
                stays
            });
            new()
        });
        granted.map_err(|error| {
            let reason = match error {
                GrantError::Full { asked, free, total } => format!(
                    "no room for an area of {}: {} of {} are free; ask another donor",
                    human(asked),
                    human(free),
                    human(total)
                ),
                other => other.to_string(),
            };
            Refusal::Policy { reason }
        })
    }

    fn export(&self, name: &str, lent: &Lent) -> Result<Arc<Export>, Refusal> {
        let export = Export::new(name, lent.area.clone())
            .map(|export| export.multi_conn(true).fast_zero(true).clients(lent.clients.clone()))
            .and_then(|export| export.context(Arc::new(Allocation(lent.area.clone()))))
            .and_then(|export| export.context(lent.identity.clone()))
            .and_then(|export| {
                export.context(Arc::new(Pressure { pressed: self.pressed.clone(), asked: lent.asked.clone() }))
            });
        export.map(Arc::new).map_err(|error| Refusal::Policy { reason: error.to_string() })
    }
}

impl Catalog for Lender {
    fn list(&self, _peer: &Peer) -> Vec<ListEntry> {
        let entry = |name: &str| ListEntry { name: name.into(), description: String::new() };
        if self.names.are_listed() {
            return self.names.public().into_iter().map(entry).collect();
        }
        let areas = self.areas.lock();
        let mut names: Vec<&str> = areas.keys().map(String::as_str).collect();
        if names.is_empty() {
            names.push(DEFAULT);
        }
        names.into_iter().map(entry).collect()
    }

    fn find(&self, asked: &str, peer: &Peer) -> Result<Arc<Export>, Refusal> {
        let name = self.admit(asked, peer)?;
        let mut areas = self.areas.lock();
        if let Some(lent) = areas.get_mut(name) {
            let export = match lent.export.upgrade() {
                Some(export) => export,
                None => self.export(name, lent)?,
            };
            lent.export = Arc::downgrade(&export);
            lent.unheld = None;
            *lent.asked.lock() = Some(Instant::now());
            return Ok(export);
        }
        let mut lent = Lent {
            area: Arc::new(self.grant(name, &mut areas)?),
            identity: Arc::new(Identity::new()?),
            clients: Arc::new(Clients::default()),
            export: Weak::new(),
            asked: Arc::new(Mutex::new(Some(Instant::now()))),
            unheld: None,
        };
        let export = self.export(name, &lent)?;
        lent.export = Arc::downgrade(&export);
        areas.insert(name.into(), lent);
        info!("area {name:?} of {} granted to a client at {}", human(self.terms.area_bytes), peer.address);
        Ok(export)
    }
}

/// Which chunks of an area hold something.
struct Allocation(Arc<Area>);

impl BlockStatus for Allocation {
    fn context(&self) -> &str {
        BASE_ALLOCATION
    }

    fn status(&self, at: u64, len: u32, extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        Ok(extents(self.0.allocation(at, len.into(), extents_max)))
    }
}

/// A random number that tells the area from all others: the flags of two extents. A client that
/// reaches the area at two addresses finds it at both.
struct Identity([u32; 2]);

impl Identity {
    fn new() -> Result<Identity, Refusal> {
        let part = || shoal_host::random_bytes().map(u32::from_le_bytes);
        let parts = part().and_then(|first| Ok(Identity([first, part()?])));
        parts.map_err(|error| Refusal::Policy { reason: format!("random numbers: {error}; try again") })
    }
}

impl BlockStatus for Identity {
    fn context(&self) -> &str {
        AREA
    }

    fn status(&self, _at: u64, len: u32, extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        let parts = [len - len / 2, len / 2].into_iter().zip(self.0);
        let extents = parts.filter(|(len, _)| *len > 0).map(|(len, flags)| Extent { len, flags });
        Ok(extents.take(extents_max).collect())
    }
}

/// Whether the machine is under memory pressure, the same for every range.
struct Pressure {
    pressed: Arc<AtomicBool>,
    asked: Arc<Mutex<Option<Instant>>>,
}

impl BlockStatus for Pressure {
    fn context(&self) -> &str {
        PRESSURE
    }

    fn status(&self, _at: u64, len: u32, _extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        *self.asked.lock() = Some(Instant::now());
        let flags = if self.pressed.load(Ordering::SeqCst) { UNDER_PRESSURE } else { 0 };
        Ok(vec![Extent { len, flags }])
    }
}

#[cfg(test)]
mod tests;
