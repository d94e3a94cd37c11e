//! The network RAM disk as a block device: an engine over donors that are block devices themselves.
//!
//! Owns: the lock around the engine, the tickets of requests, and a thread that tells the engine
//! the time. Rules: no donor is called and no request completed while the engine is locked. One
//! thread at a time carries actions out, so donors that complete at once cannot nest without end. A
//! failed flush poisons nothing: the engine keeps what is not safe, so a later flush covers it
//! (`state::unflushed`). A device's error is the donor's refusal, unless a [`DonorError`] inside
//! says more. Left out: finding donors and reconnecting (the caller does both).

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};
use shoal_format::ram::OwnPlace;
use shoal_media::{BlockDevice, BlockGeometry, Clock, Completion, MediaError, Request, WriteCache};

use std::collections::{HashMap, VecDeque};

use crate::api::{Action, DiskError, DonorError, DonorId, DonorInfo, DonorOp, ForgetCost, NotBack, Past, Trouble};
use crate::config::Config;
use crate::engine::{Engine, SECTOR_BYTES};
use crate::sealed::{Sealer, Stored};
use crate::spans::Stretch;
use crate::spread::Numbered;
use crate::state::room::DrainRoom;
use crate::status::Status;

/// Time between two checks of time-outs and idle gaps.
const TICK: Duration = Duration::from_millis(50);

struct Shared {
    engine: Mutex<Engine>,
    donors: RwLock<Vec<Option<Served>>>,
    /// Encrypts what donors hold, if they may not read it.
    sealer: Option<Arc<Sealer>>,
    clock: Arc<dyn Clock>,
    /// Requests in flight.
    requests: Mutex<Numbered<u64, InFlight>>,
    permit: OnceLock<Arc<dyn Permit>>,
    held: Mutex<Vec<Held>>,
    /// Another client owns the disk.
    over: AtomicBool,
    patience_ns: u64,
    next_ticket: AtomicU64,
    actions: Mutex<Actions>,
    geometry: BlockGeometry,
    name: String,
}

#[derive(Default)]
struct Actions {
    waiting: VecDeque<Action>,
    /// A thread is carrying actions out.
    running: bool,
}

/// Ends the ticking thread.
#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

pub struct Disk {
    shared: Arc<Shared>,
    stop: Arc<Stop>,
    ticker: Option<JoinHandle<()>>,
}

/// Whether this client still owns the disk.
pub trait Permit: Send + Sync {
    /// Returns whether the client may change donors and acknowledge changes.
    fn may_change(&self) -> bool;
    /// Returns whether the client may answer reads.
    fn may_read(&self) -> bool;
}

/// An answer held back until this client may give it.
struct Held {
    since_ns: u64,
    kind: Kind,
    completion: Completion,
    buffer: Vec<u8>,
}

/// A request that the engine works on.
struct InFlight {
    kind: Kind,
    completion: Completion,
}

/// What the client's leases must permit before a request may be answered.
#[derive(Clone, Copy)]
enum Kind {
    /// The request reads.
    Reads,
    /// It changes something, or flushes changes.
    Changes,
}

/// A donor that is served by a device.
struct Served {
    device: Arc<dyn BlockDevice>,
    place: OwnPlace,
}

/// A donor and the device that reaches it.
pub type DonorDevice = (DonorInfo, Arc<dyn BlockDevice>);

impl Disk {
    /// Creates a new disk. The former contents of the donors are lost.
    pub fn create(config: &Config, donors: Vec<DonorDevice>, clock: Arc<dyn Clock>) -> Result<Disk, DiskError> {
        let (infos, devices): (Vec<_>, Vec<_>) = donors.into_iter().unzip();
        let engine = Engine::create(config, infos, clock.monotonic_ns())?;
        Ok(Disk::start(config, engine, devices.into_iter().map(Some).collect(), clock))
    }

    /// Opens the disk that is on the donors. Each donor comes with its first 4096 bytes. Donors
    /// that cannot be reached are left out.
    pub fn open(
        config: &Config,
        donors: Vec<(DonorDevice, Vec<u8>)>,
        clock: Arc<dyn Clock>,
    ) -> Result<Disk, DiskError> {
        let mut devices: HashMap<String, Arc<dyn BlockDevice>> = HashMap::new();
        let mut infos = Vec::new();
        for ((info, device), superblock) in donors {
            if devices.insert(info.name.clone(), device).is_some() {
                return Err(DiskError::Config(format!("donor {} is given twice", info.name)));
            }
            infos.push((info, Some(superblock)));
        }
        let engine = Engine::open(config, infos, clock.monotonic_ns())?;
        // The engine orders donors itself and keeps places for those that are not there.
        let order: Vec<_> = engine.status().donors.iter().map(|donor| devices.remove(&donor.name)).collect();
        Ok(Disk::start(config, engine, order, clock))
    }

    fn start(
        config: &Config,
        engine: Engine,
        devices: Vec<Option<Arc<dyn BlockDevice>>>,
        clock: Arc<dyn Clock>,
    ) -> Disk {
        let served = |(number, device): (usize, Option<Arc<dyn BlockDevice>>)| {
            device.map(|device| Served { device, place: engine.place(number as DonorId) })
        };
        let donors = devices.into_iter().enumerate().map(served).collect();
        let geometry = BlockGeometry {
            bytes: engine.bytes(),
            block_bytes: SECTOR_BYTES,
            atomic_bytes: SECTOR_BYTES,
            // The caches are in this process.
            survives_process: false,
        };
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            donors: RwLock::new(donors),
            sealer: config.key.as_ref().map(|key| Arc::new(Sealer::new(key))),
            clock,
            requests: Mutex::default(),
            permit: OnceLock::new(),
            held: Mutex::default(),
            over: AtomicBool::new(false),
            patience_ns: u64::from(config.patience_ms) * 1_000_000,
            next_ticket: AtomicU64::new(1),
            actions: Mutex::default(),
            geometry,
            name: "network RAM disk".into(),
        });
        shared.with(|_, _| ());
        let stop = Arc::new(Stop::default());
        let (ticking, stopping) = (Arc::downgrade(&shared), stop.clone());
        let ticker = thread::Builder::new().name("netram-tick".into()).spawn(move || tick(&ticking, &stopping)).ok();
        Disk { shared, stop, ticker }
    }

    pub fn status(&self) -> Status {
        self.shared.engine.lock().status()
    }

    /// Stands for the failure domain of each donor in use, by name.
    pub fn domains(&self) -> Vec<(String, u32)> {
        self.shared.engine.lock().domains()
    }

    /// Lists which parts of a range hold data. See [`Engine::allocation`].
    pub fn allocation(&self, at: u64, len: u64, parts_max: usize) -> Vec<Stretch> {
        self.shared.engine.lock().allocation(at, len, parts_max)
    }

    /// Reports that a donor is gone. Its data is rebuilt on the others.
    pub fn lost(&self, donor: DonorId) {
        self.shared.with(|engine, now| engine.lost(donor, now));
    }

    /// Reports that the donor that this device serves is gone. Returns false if the device no
    /// longer serves one, and then changes nothing: its place may be another donor's by now.
    pub fn lost_device(&self, device: &Weak<dyn BlockDevice>) -> bool {
        {
            // Keep the lock until the engine knows: the place must not change hands meanwhile.
            let donors = self.shared.donors.read();
            let Some(donor) = served_by(&donors, device) else { return false };
            self.shared.engine.lock().lost(donor, self.shared.clock.monotonic_ns());
        }
        self.shared.with(|_, _| ());
        true
    }

    /// Returns the donor that this device serves.
    pub fn served_by(&self, device: &Weak<dyn BlockDevice>) -> Option<DonorId> {
        served_by(&self.shared.donors.read(), device)
    }

    /// Returns whether the stored data would fit without this donor.
    pub fn drain_room(&self, donor: DonorId) -> DrainRoom {
        self.shared.engine.lock().drain_room(donor)
    }

    /// Moves everything off the donor and then stops using it.
    pub fn drain(&self, donor: DonorId) {
        self.shared.with(|engine, now| engine.drain(donor, now));
    }

    /// Adds an empty donor; see [`Engine::add`].
    pub fn add(&self, info: DonorInfo, device: Arc<dyn BlockDevice>, past: Past) -> Result<DonorId, DiskError> {
        let (id, former) = {
            // Keep the lock until the device is in place: before that, nobody may ask the donor.
            let mut donors = self.shared.donors.write();
            let mut engine = self.shared.engine.lock();
            let id = engine.add(info, past, self.shared.clock.monotonic_ns())?;
            (id, put(&mut donors, Served { device, place: engine.place(id) }))
        };
        // Dropping it may wait for threads that ask other donors, so the lock must be free.
        drop(former);
        self.shared.with(|_, _| ());
        Ok(id)
    }

    /// Takes back a donor that was away; see [`Engine::back`].
    pub fn back(
        &self,
        info: DonorInfo,
        device: Arc<dyn BlockDevice>,
        superblock: &[u8],
        fenced: bool,
    ) -> Result<DonorId, NotBack> {
        let (id, former) = {
            let mut donors = self.shared.donors.write();
            let mut engine = self.shared.engine.lock();
            let id = engine.back(info, superblock, fenced, self.shared.clock.monotonic_ns())?;
            (id, put(&mut donors, Served { device, place: engine.place(id) }))
        };
        drop(former);
        self.shared.with(|_, _| ());
        Ok(id)
    }

    /// Gives the donor up for good: data that only it holds is lost.
    pub fn forget(&self, donor: DonorId) -> Result<(), DiskError> {
        self.shared.with(|engine, now| engine.forget(donor, now))
    }

    /// Returns what [`Disk::forget`] would cost now.
    pub fn forget_cost(&self, donor: DonorId) -> Result<ForgetCost, DiskError> {
        self.shared.engine.lock().forget_cost(donor)
    }

    /// Fills the donors evenly; see [`Engine::rebalance`].
    pub fn rebalance(&self) -> bool {
        self.shared.with(|engine, now| engine.rebalance(now))
    }

    /// Ends a rebalance; see [`Engine::stop_rebalance`].
    pub fn stop_rebalance(&self) -> bool {
        self.shared.with(|engine, _| engine.stop_rebalance())
    }

    /// Returns whether the disk has been opened completely.
    pub fn is_ready(&self) -> bool {
        self.shared.engine.lock().is_ready()
    }

    /// Grows the disk; see [`Engine::grow`].
    pub fn grow(&self, bytes: u64) -> Result<u64, DiskError> {
        self.shared.with(|engine, now| engine.grow(bytes, now))
    }

    /// Reads and compares everything on the donors; see [`Engine::scrub`].
    pub fn scrub(&self) -> bool {
        self.shared.with(|engine, now| engine.scrub(now))
    }

    /// Stops the disk because another client owns it now.
    pub fn taken_over(&self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.with(|engine, now| engine.taken_over(now));
        self.shared.answer_held();
    }

    pub fn is_taken_over(&self) -> bool {
        self.shared.over.load(Ordering::SeqCst)
    }

    /// Sets the permit, once. From now on donors are changed and requests answered only while this
    /// client owns the disk.
    pub fn permitted_by(&self, permit: Arc<dyn Permit>) {
        assert!(self.shared.permit.set(permit).is_ok(), "a disk has one permit");
    }

    /// Finds the donor whose superblock this is. Returns its number, its name, and whether it is in
    /// use.
    pub fn donor_of(&self, front: &[u8]) -> Option<(DonorId, String, bool)> {
        self.shared.engine.lock().donor_of(front)
    }

    /// Drops the devices of donors that are no longer used.
    fn release(shared: &Shared) {
        let vacant = shared.engine.lock().vacant();
        let held =
            |donors: &[Option<Served>], number: DonorId| donors.get(number as usize).is_some_and(Option::is_some);
        if !vacant.iter().any(|&number| held(&shared.donors.read(), number)) {
            return;
        }
        let former: Vec<_> = {
            let mut donors = shared.donors.write();
            // Look again: a place may have been taken meanwhile.
            let vacant = shared.engine.lock().vacant();
            vacant.into_iter().filter_map(|number| donors.get_mut(number as usize).and_then(Option::take)).collect()
        };
        drop(former);
    }
}

/// Returns the donor that this device serves. Comparing addresses is enough: while somebody holds a
/// `Weak` to a device that is gone, no other device gets its address.
fn served_by(donors: &[Option<Served>], device: &Weak<dyn BlockDevice>) -> Option<DonorId> {
    let is_it = |held: &Option<Served>| {
        held.as_ref().is_some_and(|held| std::ptr::addr_eq(Arc::as_ptr(&held.device), device.as_ptr()))
    };
    donors.iter().position(is_it).map(|donor| donor as DonorId)
}

/// Puts a donor at its place and returns the one that was there.
fn put(donors: &mut Vec<Option<Served>>, donor: Served) -> Option<Served> {
    let number = usize::from(donor.place.number);
    if donors.len() <= number {
        donors.resize_with(number + 1, || None);
    }
    donors[number].replace(donor)
}

impl Drop for Disk {
    fn drop(&mut self) {
        *self.stop.stopped.lock() = true;
        self.stop.changed.notify_all();
        if let Some(ticker) = self.ticker.take() {
            // A panic there has been reported.
            let _ = ticker.join();
        }
        // Drop the donors here, not in whichever completion happens to be the last. Dropping them
        // may wait for their threads, whose completions ask other donors, so the lock must be free.
        let donors = std::mem::take(&mut *self.shared.donors.write());
        drop(donors);
    }
}

fn tick(shared: &Weak<Shared>, stop: &Stop) {
    let mut stopped = stop.stopped.lock();
    while !*stopped {
        stop.changed.wait_for(&mut stopped, TICK);
        let Some(shared) = shared.upgrade() else { return };
        shared.with(|engine, now| engine.tick(now));
        shared.answer_held();
        Disk::release(&shared);
    }
}

/// Returns the donor's trouble behind a device's error: the [`DonorError`] that its connection put
/// inside, or else a refusal.
fn trouble_of(error: &MediaError) -> DonorError {
    let own = match error {
        MediaError::Io { source, .. } => source.get_ref().and_then(|inner| inner.downcast_ref::<DonorError>()),
        _ => None,
    };
    own.cloned().unwrap_or_else(|| DonorError::new(Trouble::Refused, error.to_string()))
}

impl Shared {
    /// Tells the engine something, then carries out its actions.
    fn with<T>(self: &Arc<Shared>, tell: impl FnOnce(&mut Engine, u64) -> T) -> T {
        let value = {
            let mut engine = self.engine.lock();
            let value = tell(&mut engine, self.clock.monotonic_ns());
            let new = engine.actions();
            if !new.is_empty() {
                self.actions.lock().waiting.extend(new);
            }
            value
        };
        self.carry_out();
        value
    }

    fn carry_out(self: &Arc<Shared>) {
        let mut mine = false;
        loop {
            let action = {
                let mut actions = self.actions.lock();
                if actions.running && !mine {
                    return;
                }
                mine = true;
                let next = actions.waiting.pop_front();
                actions.running = next.is_some();
                next
            };
            match action {
                None => return,
                Some(Action::Complete { ticket, result }) => self.complete(ticket, result),
                Some(Action::Donor { ticket, donor, op, .. }) => self.ask(ticket, donor, op),
            }
        }
    }

    fn complete(&self, ticket: u64, result: Result<Vec<u8>, DiskError>) {
        let in_flight = self.requests.lock().remove(&ticket);
        if let Some(InFlight { kind, completion }) = in_flight {
            self.answer(kind, completion, result);
        }
    }

    fn answer(&self, kind: Kind, completion: Completion, result: Result<Vec<u8>, DiskError>) {
        let is_over = self.over.load(Ordering::SeqCst);
        match result {
            Ok(_) if is_over => completion(Err(self.error(DiskError::TakenOver))),
            Ok(buffer) if !self.may(kind) => {
                let since_ns = self.clock.monotonic_ns();
                self.held.lock().push(Held { since_ns, kind, completion, buffer });
            }
            result => completion(result.map_err(|error| self.error(error))),
        }
    }

    fn error(&self, error: DiskError) -> MediaError {
        match error {
            DiskError::NoSpace => MediaError::NoSpace { what: self.name.clone() },
            DiskError::OutOfRange { at, len } => MediaError::OutOfRange { what: self.name.clone(), at, len },
            other => MediaError::io(self.name.clone(), io::Error::other(other)),
        }
    }

    fn may(&self, kind: Kind) -> bool {
        self.permit.get().is_none_or(|permit| match kind {
            Kind::Reads => permit.may_read(),
            Kind::Changes => permit.may_change(),
        })
    }

    /// Completes held answers that may be given by now, and fails those that have waited too long.
    fn answer_held(&self) {
        let now = self.clock.monotonic_ns();
        let is_over = self.over.load(Ordering::SeqCst);
        let ripe: Vec<Held> = {
            let mut held = self.held.lock();
            let ready = |held: &mut Held| {
                is_over || self.may(held.kind) || now.saturating_sub(held.since_ns) > self.patience_ns
            };
            held.extract_if(.., ready).collect()
        };
        for Held { kind, completion, buffer, .. } in ripe {
            let result = match (self.over.load(Ordering::SeqCst), self.may(kind)) {
                (true, _) => Err(DiskError::TakenOver),
                (false, true) => Ok(buffer),
                (false, false) => Err(DiskError::NotRenewed),
            };
            completion(result.map_err(|error| self.error(error)));
        }
    }

    fn ask(self: &Arc<Shared>, ticket: u64, donor: DonorId, op: DonorOp) {
        // Hold the lock while the donor takes the request: if the disk is dropped meanwhile, this
        // must not become the donor's last owner.
        let donors = self.donors.read();
        let shared = self.clone();
        if !matches!(op, DonorOp::Read { .. }) && !self.may(Kind::Changes) {
            drop(donors);
            let why = "this client could not renew its lease".to_string();
            shared.with(|engine, now| engine.done(ticket, Err(DonorError::new(Trouble::Refused, why)), now));
            return;
        }
        let Some(Served { device, place }) = donors.get(donor as usize).and_then(Option::as_ref) else {
            drop(donors);
            let why = "the donor is not there".to_string();
            shared.with(|engine, now| engine.done(ticket, Err(DonorError::new(Trouble::Away, why)), now));
            return;
        };
        let sealed = self.sealer.as_ref().map(|sealer| (sealer.clone(), *place));
        let is_sealed = sealed.is_some();
        let lies = |at, len| if is_sealed { Sealer::place(at, len) } else { Stored { at, len } };
        let (request, opens) = match op {
            DonorOp::Read { at, len } => {
                let stored = lies(at, len.into());
                let opens = sealed.map(|(sealer, place)| move |bytes| sealer.open(place, at, bytes));
                (Request::Read { at: stored.at, buffer: vec![0; stored.len as usize] }, opens)
            }
            DonorOp::Write { at, bytes } => {
                let stored = lies(at, bytes.len() as u64);
                let buffer = match sealed {
                    Some((sealer, place)) => sealer.seal(place, at, bytes),
                    None => bytes,
                };
                (Request::Write { at: stored.at, buffer, fua: false }, None)
            }
            DonorOp::Trim { at, len } => {
                let stored = lies(at, len);
                (Request::Trim { at: stored.at, len: stored.len }, None)
            }
        };
        let done = move |result: Result<Vec<u8>, MediaError>| {
            let opened = result.map(|bytes| match opens {
                Some(opens) => opens(bytes),
                None => bytes,
            });
            let answer = opened.map_err(|error| trouble_of(&error));
            shared.with(|engine, now| engine.done(ticket, answer, now));
        };
        device.submit(request, Box::new(done));
    }
}

impl BlockDevice for Disk {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        // The disk may have grown.
        BlockGeometry { bytes: self.shared.engine.lock().bytes(), ..self.shared.geometry }
    }

    fn submit(&self, request: Request, done: Completion) {
        let shared = &self.shared;
        let ticket = shared.next_ticket.fetch_add(1, Ordering::Relaxed);
        let kind = if matches!(request, Request::Read { .. }) { Kind::Reads } else { Kind::Changes };
        let answered = shared.with(|engine, now| match engine.submit_or_answer(ticket, request, now) {
            Some(result) => Some((done, result)),
            // The engine is locked, so nothing completes before this is noted.
            None => {
                shared.requests.lock().insert(ticket, InFlight { kind, completion: done });
                None
            }
        });
        if let Some((done, result)) = answered {
            shared.answer(kind, done, result);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use shoal_sim::SimClock;

    use super::*;
    use crate::Policy;
    use std::sync::atomic::AtomicBool;

    /// A device with a slow thread that its drop waits for.
    struct Slow {
        requests: Option<mpsc::Sender<(Request, Completion)>>,
        worker: Option<JoinHandle<()>>,
        dropped_by_its_worker: Arc<AtomicBool>,
    }

    impl Slow {
        fn new(dropped_by_its_worker: Arc<AtomicBool>) -> Slow {
            let (sender, receiver) = mpsc::channel::<(Request, Completion)>();
            let worker = thread::spawn(move || {
                for (request, done) in receiver {
                    thread::sleep(Duration::from_millis(2));
                    done(Ok(match request {
                        Request::Read { buffer, .. } | Request::Write { buffer, .. } => buffer,
                        _ => vec![],
                    }));
                }
            });
            Slow { requests: Some(sender), worker: Some(worker), dropped_by_its_worker }
        }
    }

    impl BlockDevice for Slow {
        fn write_cache(&self) -> Option<&dyn WriteCache> {
            None
        }

        fn geometry(&self) -> BlockGeometry {
            BlockGeometry { bytes: 1 << 20, block_bytes: 512, atomic_bytes: 512, survives_process: false }
        }

        fn submit(&self, request: Request, done: Completion) {
            self.requests.as_ref().unwrap().send((request, done)).unwrap();
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            self.requests = None;
            let worker = self.worker.take().unwrap();
            if worker.thread().id() == thread::current().id() {
                self.dropped_by_its_worker.store(true, Ordering::SeqCst);
            } else {
                worker.join().unwrap();
            }
        }
    }

    #[test]
    fn a_disk_dropped_with_requests_in_flight_drops_its_donors_itself() {
        for _ in 0..20 {
            let flag = Arc::new(AtomicBool::new(false));
            let config = Config { policy: Policy::None, block_bytes: 512, ..Config::default() };
            let donor = |n| {
                let device: Arc<dyn BlockDevice> = Arc::new(Slow::new(flag.clone()));
                (DonorInfo { name: format!("donor{n}"), bytes: 1 << 20, domain: 0 }, device)
            };
            let disk = Disk::create(&config, (0..3).map(donor).collect(), Arc::new(SimClock::new(0))).unwrap();
            let (sender, answer) = mpsc::channel();
            let done = move |result: Result<_, MediaError>| sender.send(result.is_ok()).unwrap_or_default();
            disk.submit(Request::Write { at: 0, buffer: vec![1; 64 << 10], fua: true }, Box::new(done));
            drop(disk);
            // The request may end well, fail, or be dropped with the disk.
            let _ = answer.recv_timeout(Duration::from_secs(5));
            let begun = std::time::Instant::now();
            while Arc::strong_count(&flag) > 1 && begun.elapsed() < Duration::from_secs(5) {
                thread::yield_now();
            }
            assert!(!flag.load(Ordering::SeqCst));
        }
    }
    #[test]
    fn a_device_that_ends_late_takes_no_other_donor_with_it() {
        let config = Config { policy: Policy::None, block_bytes: 512, ..Config::default() };
        let flag = Arc::new(AtomicBool::new(false));
        let device = || -> Arc<dyn BlockDevice> { Arc::new(Slow::new(flag.clone())) };
        let info = |name: &str| DonorInfo { name: name.into(), bytes: 1 << 20, domain: 0 };
        let first = vec![(info("a"), device()), (info("b"), device())];
        let disk = Disk::create(&config, first, Arc::new(SimClock::new(0))).unwrap();
        let former = device();
        let number = disk.add(info("guest"), former.clone(), Past::Over).unwrap();
        let former = Arc::downgrade(&former);
        assert_eq!(disk.served_by(&former), Some(number));
        // The guest leaves, and comes again with another device.
        assert!(disk.lost_device(&former));
        let again = device();
        let wait = std::time::Instant::now() + Duration::from_secs(5);
        while !disk.status().epoch_stored && std::time::Instant::now() < wait {
            thread::yield_now();
        }
        let number = disk.add(info("guest"), again.clone(), Past::Over).unwrap();
        assert!(!disk.lost_device(&former));
        assert_eq!(disk.served_by(&Arc::downgrade(&again)), Some(number));
        assert!(disk.status().donors[usize::from(number)].state.is_in_use());
    }
}
