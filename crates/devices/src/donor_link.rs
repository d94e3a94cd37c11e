//! A connection to a donor: a link that knows network RAM disks.
//!
//! Rules: a donor is identified by its disk, its number there and its birth, not by its address. On
//! a new connection its superblock must still be there if it was ever written, and so must this
//! client's last lease. Otherwise the donor's server was restarted and lost its memory, two donors
//! exchanged their addresses, or a donor went back to an older state. Requests of a broken
//! connection may still take effect late, so their owner uses another place. A server is asked
//! every second whether it is short of memory ([`PRESSURE`]); the disk decides what follows.
//! Left out: connections as such (`shoal_nbd::Link`).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_format::ram::{DiskSuperblock, Lease, OwnPlace, SLOTS_BYTES};
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, Request, WriteCache};
use shoal_nbd::link::{End, Owner, Refused};
use shoal_nbd::{Claim, Client, ConnectError, Extent, Link, LinkOptions, Reliance, Uri};
use shoal_netram::{DonorError, Trouble};

/// The status context that tells a donor's clients whether its machine needs its memory itself.
pub const PRESSURE: &str = "shoal:pressure";
/// The status context that tells an area of a donor from all others, by the flags of its extents.
pub(crate) const AREA: &str = "shoal:area";
/// The flag in [`PRESSURE`].
pub(crate) const UNDER_PRESSURE: u32 = 1;
/// Bytes at a donor's start that tell which disk it belongs to.
pub(crate) const FRONT_BYTES: usize = shoal_netram::SUPERBLOCK_BYTES;

/// Events reported to the owner of a link, from a thread of the link.
#[derive(Default)]
pub(crate) struct LinkListener {
    pub lost: Option<Box<dyn Fn() + Send + Sync>>,
    /// Another client has taken the donor.
    pub taken_over: Option<Box<dyn Fn() + Send + Sync>>,
    pub pressure: Option<Box<dyn Fn(bool) + Send + Sync>>,
}

/// A donor's known state.
struct Donor {
    name: String,
    /// The disk whose superblock was written here, or found here.
    disk: Mutex<Option<[u8; 16]>>,
    /// The donor's place on the disk, once it is known.
    place: Mutex<Option<OwnPlace>>,
    /// Identifies the donor in this client's leases.
    mark: u64,
    /// The newest lease that the donor has taken. 0: none.
    leased: AtomicU64,
    renewing: AtomicBool,
    under_pressure: Mutex<bool>,
    listener: OnceLock<LinkListener>,
}

/// The device. Dropping it disconnects.
pub(crate) struct DonorLink {
    link: Link,
    area: Option<Vec<u32>>,
    donor: Arc<Donor>,
}

impl DonorLink {
    pub fn connect(uri: &Uri, lost_after: Duration) -> Result<DonorLink, ConnectError> {
        let name = uri.to_string();
        let donor = Arc::new(Donor {
            name,
            disk: Mutex::default(),
            place: Mutex::default(),
            mark: shoal_host::random_bytes().map(u64::from_le_bytes).unwrap_or_default(),
            leased: AtomicU64::new(0),
            renewing: AtomicBool::new(false),
            under_pressure: Mutex::default(),
            listener: OnceLock::new(),
        });
        let options = LinkOptions {
            lost_after,
            reliance: Reliance::Completed,
            contexts: vec![PRESSURE.into(), AREA.into()],
            flush_may_be_missing: true,
            ..LinkOptions::default()
        };
        let link = Link::connect(uri, &options, donor.clone())?;
        let extents = link.client().and_then(|client| status(&client, AREA));
        let area = extents.map(|extents| extents.iter().map(|extent| extent.flags).collect());
        Ok(DonorLink { link, area, donor })
    }

    /// Sets the listener. Called once.
    pub fn listen(&self, listener: LinkListener) {
        // A second listener is a mistake of the program.
        assert!(self.donor.listener.set(listener).is_ok(), "a link has one listener");
    }

    /// Returns the bytes that tell which disk a donor belongs to.
    pub fn front(&self) -> Result<Vec<u8>, MediaError> {
        match self.link.client() {
            Some(client) => self.donor.front(&client),
            None => Err(self.donor.error(io::ErrorKind::NotConnected, "the connection is lost")),
        }
    }

    /// Returns what tells the donor's memory from any other. `None`: its server does not say.
    pub fn area(&self) -> Option<&[u32]> {
        self.area.as_deref()
    }

    /// Records that the server belongs to this disk. After a reconnection its superblock must be
    /// there, once it was written.
    pub fn belongs_to(&self, disk: [u8; 16], superblock: Written) {
        *self.donor.disk.lock() = Some(disk);
        self.link.set_written(superblock == Written::Already);
    }

    /// Sets the donor's place on the disk.
    pub fn is_at(&self, place: Option<OwnPlace>) {
        *self.donor.place.lock() = place;
    }

    pub fn mark(&self) -> u64 {
        self.donor.mark
    }

    /// Records that the donor has taken this lease.
    pub fn has_lease(&self, renewed: u64) {
        self.donor.leased.fetch_max(renewed, Ordering::SeqCst);
    }

    /// Begins a renewal of the lease. Returns false while one is under way.
    pub fn begins_renewal(&self) -> bool {
        !self.donor.renewing.swap(true, Ordering::SeqCst)
    }

    pub fn is_renewing(&self) -> bool {
        self.donor.renewing.load(Ordering::SeqCst)
    }

    pub fn ends_renewal(&self) {
        self.donor.renewing.store(false, Ordering::SeqCst);
    }

    /// Asks whether the server would let this client have it. See [`Link::ask`].
    pub fn ask(&self, client: shoal_nbd::ClientId, epoch: u64) -> Result<bool, ConnectError> {
        self.link.ask(client, epoch)
    }

    /// Claims the server for a client from now on. An error says that another client has it, or
    /// what went wrong.
    pub fn claim(&self, claim: Claim) -> Result<(), ConnectError> {
        self.link.claim(claim)
    }

    /// Asks the server whether it is short of memory.
    pub fn is_pressed(&self) -> bool {
        self.link.client().is_some_and(|client| pressure(&client) == Some(true))
    }

    /// Returns whether the server ends older connections before a newer one transmits.
    pub fn is_fenced(&self) -> bool {
        self.link.is_fenced()
    }

    /// Disconnects. See [`Link::close`].
    pub fn close(&self) {
        self.link.close();
    }

    /// `connected`, `reconnecting`, or `lost`.
    pub fn state(&self) -> &'static str {
        self.link.state()
    }
}

impl BlockDevice for DonorLink {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.link.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        let done: Completion = match written_place(&request) {
            None => done,
            Some(place) => {
                let donor = self.donor.clone();
                Box::new(move |result| {
                    if result.is_ok() {
                        *donor.place.lock() = Some(place);
                    }
                    done(result);
                })
            }
        };
        self.link.submit(request, done);
    }
}

/// Whether a server has the disk's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It has one.
    Already,
    /// The disk will write one.
    NotYet,
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

/// Returns the donor's place if the request writes a superblock.
fn written_place(request: &Request) -> Option<OwnPlace> {
    let Request::Write { at, buffer, .. } = request else { return None };
    let at = usize::try_from(*at).ok().filter(|at| at + buffer.len() <= SLOTS_BYTES)?;
    let mut slots = vec![0; SLOTS_BYTES];
    slots[at..at + buffer.len()].copy_from_slice(buffer);
    DiskSuperblock::decode(&slots).ok().map(|own| own.place())
}

/// Converts a failure into an error that the engine of a network RAM disk understands.
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
        let own = DiskSuperblock::decode(&front).ok();
        if self.place.lock().is_some_and(|place| own.is_some_and(|own| own.place() != place)) {
            return Err(Refused::Another("another donor of the disk answers at its address".into()));
        }
        let leased = self.leased.load(Ordering::SeqCst);
        let disk = self.disk.lock().unwrap_or_default();
        let leases = Lease::of_front(&front, &disk);
        let is_there = |lease: &Lease| lease.mark == self.mark && lease.renewed >= leased;
        if leased > 0 && !leases.iter().flatten().any(is_there) {
            return Err(Refused::Another("it has forgotten what it was told last".into()));
        }
        Ok(())
    }

    fn uncertain(&self, why: &str) -> io::Error {
        donor_error(Trouble::Uncertain, why)
    }

    fn gone(&self, end: &End) -> io::Error {
        donor_error(Trouble::Away, &MediaError::io(self.name.clone(), io::Error::other(end.to_string())).to_string())
    }

    /// Tells the listener of changes in the server's memory pressure.
    fn look(&self, client: &Client) {
        // Ask nothing before there is a listener: a state that is already known is not reported
        // again.
        let Some(told) = self.listener.get().and_then(|listener| listener.pressure.as_ref()) else { return };
        let Some(now) = pressure(client) else { return };
        let before = std::mem::replace(&mut *self.under_pressure.lock(), now);
        if now != before {
            told(now);
        }
    }

    fn ended(&self, end: &End) {
        let Some(listener) = self.listener.get() else { return };
        if let Some(told) = listener.taken_over.as_ref().filter(|_| *end == End::TakenOver) {
            told();
        }
        if let Some(lost) = &listener.lost {
            lost();
        }
    }
}

/// Asks for the status of a donor's start, if the server has the context.
fn status(client: &Client, context: &str) -> Option<Vec<Extent>> {
    if !client.export().contexts.iter().any(|known| known.name == context) {
        return None;
    }
    let geometry = client.geometry();
    let len = (FRONT_BYTES as u64).max(geometry.block_bytes.into()).min(geometry.bytes) as u32;
    // An error here is one of the connection, which is noticed elsewhere.
    client.block_status(context, 0, len).ok()
}

fn pressure(client: &Client) -> Option<bool> {
    let extents = status(client, PRESSURE)?;
    Some(extents.iter().any(|extent| extent.flags & UNDER_PRESSURE != 0))
}

#[cfg(test)]
#[path = "donor_link_tests.rs"]
mod tests;
