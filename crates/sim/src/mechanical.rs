//! Mechanical disks in simulated time: arms that seek, platters that turn.
//!
//! | module | owns |
//! |---|---|
//! | `drive` | the figures of a drive: seek curve, rotation, zones, buffer; five drives |
//! | `geometry` | where a sector lies: cylinder, head, angle, with skew |
//! | `mechanism` | the moving state: what a request costs, and where a write can begin soonest |
//! | `queue` | requests that wait for the disk, served first come first served or in elevator order |
//!
//! Owns: [`MechanicalDisk`], a block device whose requests advance a [`SimClock`], and the free
//! choice of place ([`Head`]) that eager writing needs. The platter's angle is a function of the
//! clock alone: advancing the clock turns the platter. The same sequence of requests takes
//! the same time on every machine.
//!
//! The time of a request consists of these parts, in this order: the drive's overhead, seek and
//! head switch, rotational wait, and transfer, including switches during it. `submit` carries out
//! one request at a time. [`MechanicalDisk::internal`] is the same disk as its own firmware sees
//! it: its requests have no command overhead. A virtual log inside the drive therefore pays
//! [`MechanicalDisk::command`] once for each request of the host and nothing for its own requests.
//!
//! Left out: a volatile write cache (a completed write is on the platter), crashes and faults
//! (`disk`), thermal recalibration, spare sectors, and the bus. The bus works while the arm moves;
//! only buffer hits pay for it.

mod drive;
mod geometry;
mod mechanism;
mod queue;

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use shoal_media::{BlockDevice, BlockGeometry, Clock, Completion, Head, MediaError, Request, Result, WriteCache};

pub use drive::{Drive, SeekCurve, Zone};
pub use geometry::{Geometry, Place};
pub use mechanism::{Position, Spent};
pub use queue::{DiskQueue, Order, Served};

use crate::SimClock;
use crate::pages::Pages;
use mechanism::Mechanism;

/// A disk with an arm and platters, or the view of it from inside the drive. Clones share all
/// state.
#[derive(Clone)]
pub struct MechanicalDisk {
    shared: Arc<Shared>,
    is_internal: bool,
}

struct Shared {
    clock: Arc<SimClock>,
    drive: Drive,
    geometry: Geometry,
    moving: Mutex<Moving>,
}

struct Moving {
    mechanism: Mechanism,
    bytes: Pages,
    spent: Spent,
}

impl MechanicalDisk {
    /// Creates a disk of zeros with its arm at cylinder 0, head 0.
    ///
    /// # Panics
    /// When the drive's figures make no disk, such as a track that is not whole blocks.
    pub fn new(drive: Drive, clock: Arc<SimClock>) -> MechanicalDisk {
        let geometry = Geometry::new(&drive);
        let moving = Moving { mechanism: Mechanism::default(), bytes: Pages::default(), spent: Spent::default() };
        let shared = Shared { clock, drive, geometry, moving: Mutex::new(moving) };
        MechanicalDisk { shared: Arc::new(shared), is_internal: false }
    }

    /// Returns the same disk without command overhead, for code that runs inside the drive.
    pub fn internal(&self) -> MechanicalDisk {
        MechanicalDisk { shared: self.shared.clone(), is_internal: true }
    }

    /// Lets the overhead of one command pass. Only the platter moves during it.
    pub fn command(&self) {
        self.shared.moving.lock().spent.overhead_ns += self.shared.drive.overhead_ns;
        self.shared.clock.advance(self.shared.drive.overhead_ns);
    }

    pub fn drive(&self) -> &Drive {
        &self.shared.drive
    }

    pub fn layout(&self) -> &Geometry {
        &self.shared.geometry
    }

    /// Returns the time spent on all requests, through every view.
    pub fn spent(&self) -> Spent {
        self.shared.moving.lock().spent
    }

    /// Returns the current position of arm and platter.
    pub fn position(&self) -> Position {
        self.shared.moving.lock().mechanism.position(&self.shared.site(), self.now_ns())
    }

    /// Returns the time until a write of this block could begin if it were submitted now (ns):
    /// overhead, arm and rotation.
    pub fn wait_ns(&self, block: u64) -> u64 {
        let (start_ns, moving) = (self.start_ns(), self.shared.moving.lock());
        start_ns + moving.mechanism.wait_ns(&self.shared.site(), self.now_ns(), start_ns, block)
    }

    fn now_ns(&self) -> u64 {
        self.shared.clock.monotonic_ns()
    }

    /// Returns the time before the arm moves (ns).
    fn start_ns(&self) -> u64 {
        if self.is_internal { 0 } else { self.shared.drive.overhead_ns }
    }

    fn sectors(&self, at: u64, len: u64) -> Result<Range<u64>> {
        let sector_bytes = u64::from(self.shared.drive.sector_bytes);
        let bytes = self.shared.geometry.sectors() * sector_bytes;
        if !at.is_multiple_of(sector_bytes) || !len.is_multiple_of(sector_bytes) || at > bytes || len > bytes - at {
            return Err(MediaError::OutOfRange { what: self.shared.drive.name.into(), at, len });
        }
        Ok(at / sector_bytes..(at + len) / sector_bytes)
    }

    /// Carries out a request and lets its time pass. Its effect on the bytes happens at its end.
    fn carry_out(
        &self,
        at: u64,
        len: u64,
        is_read: bool,
        change: impl FnOnce(&mut Pages) -> Result<Vec<u8>>,
    ) -> Result<Vec<u8>> {
        let sectors = self.sectors(at, len)?;
        let moving = &mut *self.shared.moving.lock();
        let cost = moving.mechanism.serve(&self.shared.site(), self.now_ns(), self.start_ns(), sectors, is_read);
        moving.spent.add(&cost);
        self.shared.clock.advance(cost.total_ns());
        change(&mut moving.bytes)
    }
}

impl Shared {
    fn site(&self) -> mechanism::Site<'_> {
        mechanism::Site { drive: &self.drive, geometry: &self.geometry }
    }
}

impl BlockDevice for MechanicalDisk {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        let sector_bytes = self.shared.drive.sector_bytes;
        BlockGeometry {
            bytes: self.shared.geometry.sectors() * u64::from(sector_bytes),
            block_bytes: sector_bytes,
            atomic_bytes: sector_bytes,
            survives_process: true,
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        done(match request {
            Request::Read { at, mut buffer } => self.carry_out(at, buffer.len() as u64, true, |bytes| {
                bytes.read(at, &mut buffer);
                Ok(buffer)
            }),
            Request::Write { at, buffer, .. } => self.carry_out(at, buffer.len() as u64, false, |bytes| {
                bytes.write(at, &buffer);
                Ok(buffer)
            }),
            Request::WriteZeroes { at, len, .. } => self.carry_out(at, len, false, |bytes| {
                bytes.zero(at, len);
                Ok(vec![])
            }),
            // Nothing moves: written data is on the platter, and freed bytes stay where they are.
            Request::Flush => self.carry_out(0, 0, false, |_| Ok(vec![])),
            Request::Trim { at, len } => {
                self.sectors(at, len).and_then(|_| self.carry_out(0, 0, false, |_| Ok(vec![])))
            }
        });
    }
}

impl Head for MechanicalDisk {
    fn nearest(&self, is_free: &dyn Fn(u64) -> bool) -> Option<u64> {
        let moving = self.shared.moving.lock();
        moving.mechanism.nearest(&self.shared.site(), self.now_ns(), self.start_ns(), is_free)
    }

    fn tracks(&self) -> Vec<Range<u64>> {
        self.shared.geometry.tracks()
    }
}
