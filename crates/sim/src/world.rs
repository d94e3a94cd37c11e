//! The world: a set of media under one event counter, one lock, one seed and one fault plan.
//!
//! Every mutation, fence, sync and flush is an event. While recording is on, a crash point is taken
//! *before* each event at a boundary (log append, write of image or disk, fence, sync, flush,
//! release). With `record_stores`, one is also taken before each store to `dax` or `battery`
//! memory. Because a point precedes its event, everything that a flush or fence would make durable
//! is still in flight; the next point has the event's effect (`snapshot` gives the point after the
//! last event). A point carries the harness's `mark`, which says what had been promised by then.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::ThreadId;

use parking_lot::{Mutex, MutexGuard};
use shoal_media::{MediaError, Result};

use crate::crash::CrashPoint;
use crate::disk::SimDisk;
use crate::fault::{self, Call, Fault, FaultPlan, Faults};
use crate::host::Taken;
use crate::image::SimImage;
use crate::log::{LogShape, SimLog};
use crate::memory::{SimMemory, SimMemoryKind};
use crate::pages::Pages;
use crate::pending::Pending;

/// Bytes of a cache line and of a sector.
pub(crate) const LINE_BYTES: usize = 64;
pub(crate) const SECTOR_BYTES: usize = 512;

#[derive(Clone)]
pub(crate) enum Shape {
    Memory { bytes: u64, kind: SimMemoryKind },
    Log(LogShape),
    Image(Taken),
    Disk { bytes: u64 },
}

/// One medium as a snapshot holds it; copying it is cheap.
#[derive(Clone)]
pub(crate) struct Medium {
    pub name: Arc<str>,
    pub shape: Shape,
    /// The bytes that certainly survive a power loss.
    pub durable: Pages,
    /// The bytes that reads see and that survive a process crash.
    pub current: Pages,
    pub pending: Pending,
    /// The first failure. The medium has refused writes since then.
    pub poisoned: Option<Arc<str>>,
}

impl Medium {
    pub fn refuse_poisoned(&self) -> Result<()> {
        match &self.poisoned {
            Some(cause) => Err(MediaError::Poisoned { what: self.name.to_string(), cause: cause.clone() }),
            None => Ok(()),
        }
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        self.current.write(at, bytes);
        self.pending.note(&self.durable, &self.current, at, bytes.len() as u64);
    }

    pub fn zero(&mut self, at: u64, len: u64) {
        self.current.zero(at, len);
        self.pending.note(&self.durable, &self.current, at, len);
    }

    /// Makes everything visible durable.
    pub fn make_all_durable(&mut self) {
        self.durable = self.current.clone();
        self.pending.clear();
    }

    /// Returns the units that a flush by `thread` covers if it begins now.
    pub fn begin_flush(&mut self, thread: ThreadId) -> Vec<u64> {
        self.pending.mark(thread, 0, u64::MAX)
    }

    /// Ends the flush that covers `units`: they become durable with their contents at its
    /// beginning.
    pub fn end_flush(&mut self, thread: ThreadId, units: &[u64]) {
        for &unit in units {
            self.pending.fence(thread, unit, &mut self.durable);
        }
    }
}

pub(crate) struct Inner {
    pub media: Vec<Medium>,
    pub faults: Faults,
    /// Lines that each thread wrote back since its last fence, by medium.
    pub written_back: HashMap<(usize, ThreadId), Vec<u64>>,
    seed: u64,
    event: u64,
    mark: u64,
    record: bool,
    record_stores: bool,
    points: Vec<CrashPoint>,
    /// Whether something changed since the last point.
    changed: bool,
}

impl Inner {
    fn point(&self, medium: Option<usize>, what: &'static str) -> CrashPoint {
        CrashPoint {
            event: self.event,
            mark: self.mark,
            medium: medium.map_or_else(|| "world".into(), |i| self.media[i].name.clone()),
            what,
            seed: self.seed,
            media: self.media.clone(),
        }
    }

    fn count(&mut self, medium: usize, what: &'static str, changes: bool, take: bool) {
        let stale = self.changed || self.points.last().is_none_or(|p| p.mark != self.mark);
        if take && stale {
            self.points.push(self.point(Some(medium), what));
            self.changed = false;
        }
        self.event += 1;
        self.changed |= changes;
    }

    /// Counts an event at which a crash point is taken. `changes` is false when the call finds
    /// nothing to do.
    pub fn boundary(&mut self, medium: usize, what: &'static str, changes: bool) {
        self.count(medium, what, changes, self.record);
    }

    /// Counts a store to memory.
    pub fn store(&mut self, medium: usize, what: &'static str) {
        self.count(medium, what, true, self.record && self.record_stores);
    }

    /// Counts the call. Returns the error it fails with, or whether it lies.
    pub fn fault(&mut self, call: Call, medium: usize) -> std::result::Result<bool, (MediaError, Fault)> {
        match self.faults.meet(call) {
            None => Ok(false),
            Some(Fault::Lie) => Ok(true),
            Some(fault) => Err((fault::error(&self.media[medium].name, fault), fault)),
        }
    }
}

pub(crate) type Shared = Arc<Mutex<Inner>>;

/// A set of media that crash together.
#[derive(Clone)]
pub struct World {
    shared: Shared,
}

impl World {
    /// Creates an empty world. The seed determines the samples of crash states and the garbage in
    /// them.
    pub fn new(seed: u64) -> World {
        World::over(seed, Vec::new())
    }

    pub(crate) fn over(seed: u64, media: Vec<Medium>) -> World {
        let inner = Inner {
            media,
            faults: Faults::default(),
            written_back: HashMap::new(),
            seed,
            event: 0,
            mark: 0,
            record: false,
            record_stores: false,
            points: Vec::new(),
            changed: true,
        };
        World { shared: Arc::new(Mutex::new(inner)) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.lock()
    }

    fn add(&self, kind: &str, is_kind: fn(&Shape) -> bool, shape: Shape, unit_bytes: usize) -> usize {
        let mut inner = self.inner();
        let number = inner.media.iter().filter(|m| is_kind(&m.shape)).count();
        inner.media.push(Medium {
            name: format!("{kind} {number}").into(),
            shape,
            durable: Pages::default(),
            current: Pages::default(),
            pending: Pending::new(unit_bytes),
            poisoned: None,
        });
        inner.media.len() - 1
    }

    /// Finds medium number `number` among those of its kind. Returns its index and shape.
    fn find(&self, kind: &str, is_kind: fn(&Shape) -> bool, number: usize) -> (usize, Shape) {
        let inner = self.inner();
        let mut found = inner.media.iter().enumerate().filter(|(_, m)| is_kind(&m.shape));
        let (index, medium) = found.nth(number).unwrap_or_else(|| panic!("the world has no {kind} {number}"));
        (index, medium.shape.clone())
    }

    /// Adds zeroed memory that outlives the process.
    pub fn add_memory(&self, bytes: u64, kind: SimMemoryKind) -> Arc<SimMemory> {
        let index = self.add("memory", is_memory, Shape::Memory { bytes, kind }, LINE_BYTES);
        Arc::new(SimMemory::recorded(self.shared.clone(), index, bytes, kind))
    }

    /// Adds an empty log with segments of [`crate::SIM_SEGMENT_BYTES`].
    pub fn add_log(&self) -> Arc<SimLog> {
        let index = self.add("log", is_log, Shape::Log(LogShape::default()), SECTOR_BYTES);
        Arc::new(SimLog::new(self.shared.clone(), index))
    }

    /// Adds an empty image.
    pub fn add_image(&self) -> Arc<SimImage> {
        let index = self.add("image", is_image, Shape::Image(Taken::default()), SECTOR_BYTES);
        Arc::new(SimImage::new(self.shared.clone(), index))
    }

    /// Adds a zeroed disk.
    pub fn add_disk(&self, bytes: u64) -> Arc<SimDisk> {
        let index = self.add("disk", is_disk, Shape::Disk { bytes }, SECTOR_BYTES);
        Arc::new(SimDisk::new(self.shared.clone(), index, bytes))
    }

    /// Adds a used disk: every byte is durably `byte`.
    pub fn add_used_disk(&self, bytes: u64, byte: u8) -> Arc<SimDisk> {
        let disk = self.add_disk(bytes);
        let mut inner = self.inner();
        let medium = inner.media.last_mut().expect("just added");
        medium.durable = Pages::filled(bytes, byte);
        medium.current = medium.durable.clone();
        drop(inner);
        disk
    }

    /// Returns memory number `number` in the order of addition, from 0.
    pub fn memory(&self, number: usize) -> Arc<SimMemory> {
        match self.find("memory", is_memory, number) {
            (index, Shape::Memory { bytes, kind }) => {
                Arc::new(SimMemory::recorded(self.shared.clone(), index, bytes, kind))
            }
            _ => unreachable!("found by its shape"),
        }
    }

    /// Returns log number `number` in the order of addition, from 0.
    pub fn log(&self, number: usize) -> Arc<SimLog> {
        Arc::new(SimLog::new(self.shared.clone(), self.find("log", is_log, number).0))
    }

    /// Returns image number `number` in the order of addition, from 0.
    pub fn image(&self, number: usize) -> Arc<SimImage> {
        Arc::new(SimImage::new(self.shared.clone(), self.find("image", is_image, number).0))
    }

    /// Returns disk number `number` in the order of addition, from 0.
    pub fn disk(&self, number: usize) -> Arc<SimDisk> {
        match self.find("disk", is_disk, number) {
            (index, Shape::Disk { bytes }) => Arc::new(SimDisk::new(self.shared.clone(), index, bytes)),
            _ => unreachable!("found by its shape"),
        }
    }

    /// Limits the host from now on to `segments` more segments for each log, one of them held back,
    /// and `pages` more pages for each image. A log may reuse what it releases.
    pub fn fill_host(&self, segments: u64, pages: u64) {
        for medium in &mut self.inner().media {
            match &mut medium.shape {
                Shape::Log(log) => log.segments_max = Some(log.count() + segments),
                Shape::Image(taken) => taken.left = Some(pages),
                Shape::Memory { .. } | Shape::Disk { .. } => {}
            }
        }
    }

    /// Starts or stops taking crash points.
    pub fn record(&self, on: bool) {
        self.inner().record = on;
    }

    /// Sets whether recording also takes a point before every store to recorded memory.
    pub fn record_stores(&self, on: bool) {
        self.inner().record_stores = on;
    }

    /// Sets the number of promises made to the harness so far (say, operations returned). Later
    /// points carry the mark.
    pub fn set_mark(&self, mark: u64) {
        self.inner().mark = mark;
    }

    /// Returns the number of events so far.
    pub fn events(&self) -> u64 {
        self.inner().event
    }

    /// Takes the crash points recorded so far, oldest first.
    pub fn points(&self) -> Vec<CrashPoint> {
        std::mem::take(&mut self.inner().points)
    }

    /// Returns a crash point for this moment, whether or not the world is recording.
    pub fn snapshot(&self) -> CrashPoint {
        self.inner().point(None, "snapshot")
    }

    /// Adds a fault. Several plans can wait at the same time.
    pub fn fail(&self, plan: FaultPlan) {
        self.inner().faults.plan(plan);
    }

    /// Drops all plans. Poisoned media stay poisoned: open the world again
    /// (`snapshot().process_crash().open()`).
    pub fn clear_faults(&self) {
        self.inner().faults.clear();
    }

    /// Counts the calls of a kind so far, including failed ones.
    pub fn calls(&self, call: Call) -> u64 {
        self.inner().faults.count(call)
    }

    /// Counts the calls so far that failed or lied.
    pub fn fault_hits(&self) -> u64 {
        self.inner().faults.hits
    }
}

fn is_memory(shape: &Shape) -> bool {
    matches!(shape, Shape::Memory { .. })
}

fn is_log(shape: &Shape) -> bool {
    matches!(shape, Shape::Log(_))
}

fn is_image(shape: &Shape) -> bool {
    matches!(shape, Shape::Image(_))
}

fn is_disk(shape: &Shape) -> bool {
    matches!(shape, Shape::Disk { .. })
}
