//! A connection to a donor: a link that knows network RAM disks.
//!
//! Rules: a donor's server that was restarted has lost its memory, so the disk's superblock must still be there on a
//! new connection, once it was written. The effect of requests on a broken connection is uncertain, and the owner uses
//! another place. A server is asked every second whether it is short of memory ([`PRESSURE`]); the disk decides what
//! follows. Left out: connections as such (`shoal_nbd::Link`).

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request};
use shoal_nbd::link::{End, Owner, Refused};
use shoal_nbd::{Claim, Client, ConnectError, Link, LinkOptions, Reliance, Uri};
use shoal_netram::{DonorError, Trouble};

/// The status context that tells a donor's clients whether its machine needs its memory itself.
pub const PRESSURE: &str = "shoal:pressure";
/// Its flag.
pub(crate) const UNDER_PRESSURE: u32 = 1;
/// Bytes at a donor's start that tell whose it is.
pub(crate) const FRONT_BYTES: usize = shoal_netram::SUPERBLOCK_BYTES;

/// Calls to the owner of a link, from a thread of the link.
#[derive(Default)]
pub(crate) struct Watch {
    pub lost: Option<Box<dyn Fn() + Send + Sync>>,
    /// Another client has the donor now.
    pub taken_over: Option<Box<dyn Fn() + Send + Sync>>,
    pub pressure: Option<Box<dyn Fn(bool) + Send + Sync>>,
}

/// A donor as its link knows it.
struct Donor {
    name: String,
    /// The disk whose superblock was written here, or found here.
    disk: Mutex<Option<[u8; 16]>>,
    under_pressure: Mutex<bool>,
    watch: OnceLock<Watch>,
}

/// The device. Dropping it disconnects; requests in flight then fail.
pub(crate) struct DonorLink {
    link: Link,
    donor: Arc<Donor>,
}

impl DonorLink {
    pub fn connect(uri: &Uri, lost_after: Duration) -> Result<DonorLink, ConnectError> {
        let name = uri.to_string();
        let donor =
            Arc::new(Donor { name, disk: Mutex::default(), under_pressure: Mutex::default(), watch: OnceLock::new() });
        let options = LinkOptions {
            lost_after,
            reliance: Reliance::Completed,
            contexts: vec![PRESSURE.into()],
            flush_may_be_missing: true,
        };
        Ok(DonorLink { link: Link::connect(uri, &options, donor.clone())?, donor })
    }

    /// Sets the owner's calls, once.
    pub fn watch(&self, watch: Watch) {
        // A second watch is a mistake of the program.
        assert!(self.donor.watch.set(watch).is_ok(), "a link is watched once");
    }

    /// The bytes that tell whose a donor is.
    pub fn front(&self) -> Result<Vec<u8>, MediaError> {
        match self.link.client() {
            Some(client) => self.donor.front(&client),
            None => Err(self.donor.error(io::ErrorKind::NotConnected, "the connection is lost")),
        }
    }

    /// Notes that the server belongs to this disk: after a reconnection its superblock must be there, if it ever was.
    pub fn belongs_to(&self, disk: [u8; 16], is_there: bool) {
        *self.donor.disk.lock() = Some(disk);
        self.link.set_written(is_there);
    }

    /// Claims the donor for a client from now on. Fails if it is another client's, or cannot be reached.
    pub fn claim(&self, claim: Claim) -> Result<(), ConnectError> {
        self.link.claim(claim)
    }

    /// Is the server short of memory? Asks it.
    pub fn is_pressed(&self) -> bool {
        self.link.client().is_some_and(|client| pressure(&client) == Some(true))
    }

    /// Does the server end older connections before a newer one transmits?
    pub fn is_fenced(&self) -> bool {
        self.link.is_fenced()
    }

    /// `connected`, `reconnecting`, or `lost`.
    pub fn state(&self) -> &'static str {
        self.link.state()
    }
}

impl BlockDevice for DonorLink {
    fn geometry(&self) -> BlockGeometry {
        self.link.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.link.submit(request, done);
    }
}

impl Donor {
    fn error(&self, kind: io::ErrorKind, why: impl Into<String>) -> MediaError {
        MediaError::io(self.name.clone(), io::Error::new(kind, why.into()))
    }

    fn front(&self, client: &Client) -> Result<Vec<u8>, MediaError> {
        let geometry = client.geometry();
        let len = FRONT_BYTES.max(geometry.block_bytes as usize);
        if (len as u64) > geometry.bytes {
            return Err(self.error(io::ErrorKind::InvalidInput, format!("only {} bytes long", geometry.bytes)));
        }
        let mut front = vec![0; len];
        client.read_into(0, &mut front)?;
        front.truncate(FRONT_BYTES);
        Ok(front)
    }
}

/// The error of a failure for the engine of a network RAM disk.
fn donor_error(trouble: Trouble, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, DonorError::new(trouble, why))
}

impl Owner for Donor {
    fn recognise(&self, client: &Client, written: bool) -> Result<(), Refused> {
        if !written {
            return Ok(());
        }
        let front = self.front(client).map_err(|error| Refused::Unreachable(error.to_string()))?;
        if *self.disk.lock() != shoal_netram::identify(&front).map(|(uuid, _)| uuid) {
            return Err(Refused::Another("the server was restarted: its memory no longer holds the disk".into()));
        }
        Ok(())
    }

    fn uncertain(&self, why: &str) -> io::Error {
        donor_error(Trouble::Uncertain, why)
    }

    fn gone(&self, end: &End) -> io::Error {
        donor_error(Trouble::Away, &MediaError::io(self.name.clone(), io::Error::other(end.to_string())).to_string())
    }

    /// Reports changes of the server's memory pressure.
    fn look(&self, client: &Client) {
        // Without a receiver nothing is asked: a state that is known already is not reported again.
        let Some(told) = self.watch.get().and_then(|watch| watch.pressure.as_ref()) else { return };
        let Some(now) = pressure(client) else { return };
        let before = std::mem::replace(&mut *self.under_pressure.lock(), now);
        if now != before {
            told(now);
        }
    }

    fn ended(&self, end: &End) {
        let Some(watch) = self.watch.get() else { return };
        if let Some(told) = watch.taken_over.as_ref().filter(|_| *end == End::TakenOver) {
            told();
        }
        if let Some(lost) = &watch.lost {
            lost();
        }
    }
}

fn pressure(client: &Client) -> Option<bool> {
    if !client.export().contexts.iter().any(|context| context.name == PRESSURE) {
        return None;
    }
    let geometry = client.geometry();
    let len = (FRONT_BYTES as u64).max(geometry.block_bytes.into()).min(geometry.bytes) as u32;
    // An error is the connection's, which is seen elsewhere.
    let extents = client.block_status(PRESSURE, 0, len, true).ok()?;
    Some(extents.iter().any(|extent| extent.flags & UNDER_PRESSURE != 0))
}

#[cfg(test)]
#[path = "donor_link_tests.rs"]
mod tests;
