//! The bulk devices of an open store: added, emptied and removed, lost and found.
//!
//! The region's list of devices is authoritative; the description says where to find each one.
//! Order: a new device is written to the description before the region lists it, and a removed
//! device leaves the description after the region's list. So a listed device can always be found. A
//! device that only the description names belongs to nobody, and the next opening forgets it. A
//! thread empties a device; if it is interrupted, the next mount continues. Left out: moving the
//! data and the marks (the engine), kinds of devices.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use shoal_devices::size::human;
use shoal_devices::{
    Device, DeviceName, DeviceReport, DonorChange, During, Failure, Outcome, Witness, is_block_device, new_uuid,
    refuse_if_in_use, refuse_if_not_empty,
};
use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::{BULK_DEVICES_MAX, Mark};
use shoal_fs::{BulkState, Fs, GivenDevice, Leaving, Options};
use shoal_host::{CacheFile, Directory, FileDevice};
use shoal_media::WriteCache;
use shoal_writeback::Rule;
use tracing::{info, warn};

use crate::bulk_report::BulkReport;
use crate::cache::{self, CacheReport, HeldOnHost, HeldWrites, InFront};
use crate::description::{BulkPlace, Description, NumberedPlace};
use crate::host_room::HostFiles;
use crate::media::open_place;
use crate::names::cache_note;
use crate::progress::Progress;
use crate::store::{Devices, Opened, Store};
use crate::{own_ground, user};

/// Pause of the thread that empties a device, after it finds nothing to move.
const PAUSE: Duration = Duration::from_secs(5);
/// How long to wait for a device that its last user is just releasing.
const REOPEN_PATIENCE: Duration = Duration::from_secs(2);

/// A change of a store's bulk devices. Devices go by number or name, as [`BulkReport`] shows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BulkChange {
    Add {
        device: String,
        size_bytes: Option<u64>,
        force: bool,
    },
    /// Empties a device and removes it.
    Remove {
        device: String,
    },
    /// Cancels the removal of a device.
    Keep {
        device: String,
    },
    /// Uses a device again after it was lost or refused writes.
    Retry {
        device: String,
    },
}

/// Writes that did not reach a device before the store was closed.
pub(crate) struct Undelivered {
    number: u32,
    device: String,
    files: usize,
    bytes: u64,
    /// The cache that keeps the writes. Without one they are lost.
    place: Option<PathBuf>,
}

impl Undelivered {
    pub fn is_lost(&self) -> bool {
        self.place.is_none()
    }
}

impl fmt::Display for Undelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Undelivered { number, device, files, .. } = self;
        let files = if *files == 1 { "1 file".to_string() } else { format!("{files} files") };
        write!(f, "bulk device {number} ({device}): {} of writes to {files} did not reach it ", human(self.bytes))?;
        match &self.place {
            Some(place) => write!(
                f,
                "and are kept in {}: mount the store with the device before the machine goes down, and they are written",
                place.display()
            ),
            None => write!(f, "and are lost, because the file of its write-back cache is gone"),
        }
    }
}

/// State of the thread that empties a device.
struct Drain {
    number: u32,
    moved: AtomicU64,
    stopped: AtomicBool,
    /// Makes the thread look again at once.
    again: AtomicBool,
    /// Why the thread makes no progress.
    cause: Mutex<Option<String>>,
}

/// The bulk devices of an open store.
pub(crate) struct Bulks {
    fs: Arc<Fs>,
    directory: Directory,
    description: Mutex<Description>,
    devices: Mutex<Vec<(u32, Arc<dyn Device>)>>,
    /// Samples of flushed data that a device must still have when it is opened again, by device.
    witnesses: Mutex<BTreeMap<u32, Vec<Witness>>>,
    /// The write-back caches in front of devices.
    held: Mutex<Vec<HeldWrites>>,
    /// Files and rules of released caches. A file may still be in use for a moment.
    let_go: Mutex<Vec<(u32, Weak<CacheFile>, Rule)>>,
    held_on_host: HeldOnHost,
    host_files: HostFiles,
    drains: Mutex<Vec<Arc<Drain>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Allows one change at a time.
    changing: Mutex<()>,
    closing: Arc<AtomicBool>,
    /// The number of the store's mount, if it is mounted.
    mount: OnceLock<String>,
}

impl Bulks {
    pub fn new(fs: Arc<Fs>, directory: &Directory, description: &Description, devices: Devices) -> Bulks {
        let Devices { devices, caches, host_files, held, .. } = devices;
        Bulks {
            fs,
            directory: directory.clone(),
            description: Mutex::new(description.clone()),
            devices: Mutex::new(devices),
            witnesses: Mutex::default(),
            held: Mutex::new(caches),
            let_go: Mutex::default(),
            held_on_host: held,
            host_files,
            drains: Mutex::default(),
            threads: Mutex::default(),
            changing: Mutex::default(),
            closing: Arc::default(),
            mount: OnceLock::new(),
        }
    }

    /// Sets the mount. No bulk device's files may lie in it.
    pub fn mounted_as(&self, device: &str) {
        let _ = self.mount.set(device.into());
    }

    /// Refuses a device in the store's own mount, because the daemon would wait for itself.
    fn refuse_within_mount(&self, name: &DeviceName) -> Outcome<()> {
        let Some(mount) = self.mount.get() else { return Ok(()) };
        own_ground::refuse_within(&name.without_secrets().to_string(), name.files(), mount)
    }

    /// Like [`Bulks::new`], for a store that was just opened.
    pub fn of(opened: Opened, directory: &Directory, description: &Description) -> Bulks {
        Bulks::new(Arc::new(opened.fs), directory, description, opened.devices)
    }

    pub fn description(&self) -> Description {
        self.description.lock().clone()
    }

    /// Prepares the devices of a store that was opened for writing: forgets devices that the region
    /// does not list, and continues to empty those that are leaving.
    pub fn take_up(self: &Arc<Self>) -> Outcome<()> {
        let states = self.fs.devices().states();
        let listed = |number: u32| states.iter().any(|state| state.number == number);
        let is_known = |device: &NumberedPlace| device.number == 0 || listed(device.number);
        if !self.description.lock().bulk.iter().all(is_known) {
            self.change(|description| description.bulk.retain(is_known))?;
            self.devices.lock().retain(|(number, _)| listed(*number));
        }
        for device in states.iter().filter(|device| device.state.is_leaving()) {
            self.start_drain(device.number)?;
        }
        Ok(())
    }

    /// Changes the description, durably.
    pub fn change(&self, change: impl FnOnce(&mut Description)) -> Outcome<()> {
        let mut description = self.description.lock();
        let mut changed = description.clone();
        change(&mut changed);
        if changed != *description {
            changed.write(&self.directory)?;
            *description = changed;
        }
        Ok(())
    }

    /// Changes the donors of the network RAM disk. Returns what was done, in words.
    pub fn change_donors(&self, change: DonorChange, donor: &str) -> Outcome<String> {
        let devices = self.devices.lock().clone();
        let has_donors = |device: &Arc<dyn Device>| device.name().kind().name == "netram";
        let chosen = devices.iter().find(|(_, device)| has_donors(device)).or(devices.first());
        let (number, device) = chosen.ok_or_else(|| Failure::new(self.directory.display(), "has no bulk storage"))?;
        let done = device.change(change, donor)?;
        // Store the new donor in the description, so that the next mount finds it.
        let new = BulkPlace::Device(device.name().to_string());
        self.change(|description| {
            let known = description.bulk.iter_mut().filter(|place| place.number == *number);
            known.for_each(|place| place.place = new.clone());
        })?;
        Ok(done)
    }

    pub fn first(&self) -> Option<Arc<dyn Device>> {
        self.devices.lock().iter().find(|(number, _)| *number == 0).map(|(_, device)| device.clone())
    }

    /// Reports on the writes held in front of devices.
    pub fn cache_reports(&self) -> Vec<CacheReport> {
        self.held.lock().iter().map(HeldWrites::report).collect()
    }

    /// Changes the policy of held writes, or their rate for each device.
    pub fn set_policy(&self, policy: Option<&str>, rate: Option<u64>) -> Outcome<()> {
        let held = self.held.lock();
        if held.is_empty() {
            return Err(Failure::new(self.directory.display(), "has no write-back cache")
                .remedy("mount it again with one; its log says why there is none"));
        }
        let changed = held.iter().try_for_each(|cache| cache.change(policy, rate));
        changed.map_err(|error| Failure::new("update policy", error).misuse())
    }

    /// Reports of all devices except the first.
    pub fn more_reports(&self) -> Vec<DeviceReport> {
        self.devices.lock().iter().filter(|(number, _)| *number != 0).map(|(_, device)| device.report()).collect()
    }

    /// Problems of the devices, each as a sentence.
    pub fn troubles(&self) -> Vec<String> {
        let devices = self.devices.lock().clone();
        let of = |(number, device): &(u32, Arc<dyn Device>)| {
            let number = *number;
            device.troubles().into_iter().map(move |trouble| format!("bulk device {number}: {trouble}"))
        };
        devices.iter().flat_map(of).collect()
    }

    pub fn reports(&self) -> Vec<BulkReport> {
        let description = self.description();
        let held: Vec<_> = self.held.lock().iter().map(|cache| (cache.device(), cache.held_bytes())).collect();
        let drains = self.drains.lock();
        let report = |found: &BulkState| {
            let mut report = BulkReport::of(found, self.directory.path(), &description);
            report.held_bytes = held.iter().find(|(device, _)| *device == found.number).map(|(_, bytes)| *bytes);
            if let Some(drain) = drains.iter().find(|drain| drain.number == found.number && found.state.is_leaving()) {
                report.moved_bytes = Some(drain.moved.load(Ordering::Relaxed));
                report.cause = report.cause.or_else(|| drain.cause.lock().clone());
            }
            report
        };
        self.fs.devices().states().iter().map(report).collect()
    }

    fn find(&self, device: &str) -> Outcome<u32> {
        let reports = self.reports();
        let absolute = || std::path::absolute(device).ok().map(|path| path.display().to_string());
        let is_it = |report: &&BulkReport| {
            report.number.to_string() == device
                || report.device == device
                || report.device.strip_prefix("file:") == Some(device)
                || report.device.strip_prefix("file:").is_some_and(|path| Some(path) == absolute().as_deref())
        };
        reports.iter().find(is_it).map(|report| report.number).ok_or_else(|| {
            Failure::new(device, "is no bulk device of the store").remedy("`shoal bulk list` names them").misuse()
        })
    }

    /// Carries out a change. A removal continues in a thread. Returns what was done, in words.
    pub fn carry_out(self: &Arc<Self>, change: &BulkChange) -> Outcome<String> {
        let _one_at_a_time = self.changing.lock();
        if self.closing.load(Ordering::Acquire) {
            return Err(Failure::new(self.directory.display(), "is being unmounted"));
        }
        match change {
            BulkChange::Add { device, size_bytes, force } => self.add(device, *size_bytes, *force),
            BulkChange::Remove { device } => {
                let number = self.find(device)?;
                self.leave(number)?;
                self.start_drain(number)?;
                Ok(format!("bulk device {number} is being emptied"))
            }
            BulkChange::Keep { device } => {
                let number = self.find(device)?;
                let drains = self.drains.lock();
                drains
                    .iter()
                    .filter(|drain| drain.number == number)
                    .for_each(|drain| drain.stopped.store(true, Ordering::Release));
                drop(drains);
                self.fs.devices().stay(number).during(device)?;
                Ok(format!("bulk device {number} stays"))
            }
            BulkChange::Retry { device } => {
                let number = self.find(device)?;
                self.retry(number)?;
                Ok(format!("bulk device {number} is in use again"))
            }
        }
    }

    fn add(&self, text: &str, size_bytes: Option<u64>, force: bool) -> Outcome<String> {
        if self.fs.devices().states().is_empty() {
            return Err(Failure::new(self.directory.display(), "the store has no bulk storage")
                .remedy("format a store with bulk storage and copy the files"));
        }
        let name: DeviceName = match text.split_once(':') {
            None => shoal_devices::file(text),
            Some(_) => text.parse().map_err(|error: String| Failure::new(text, error).misuse())?,
        };
        let name = name.absolute().during(text)?;
        self.refuse_within_mount(&name)?;
        let states = self.fs.devices().states();
        let free = |number: &u32| states.iter().all(|state| state.number != *number);
        let mut numbers = (1..BULK_DEVICES_MAX as u32).filter(free).collect::<Vec<_>>();
        // Prefer numbers that had no cache in this mount: a cache's place stays taken until the
        // store closes.
        numbers.sort_by_key(|number| self.directory.has(&cache_note(*number)));
        let number = numbers.first().copied().ok_or_else(|| {
            Failure::new(text, format!("the store has {BULK_DEVICES_MAX} bulk devices, as many as it can"))
        })?;
        let (device, made) = make_or_open(&name, size_bytes, force, self.description().foreign_owner())?;
        let uuid = new_uuid();
        let place = match name.path() {
            Some(path) => BulkPlace::File(path.strip_prefix(self.directory.place()).unwrap_or(path).to_path_buf()),
            None => BulkPlace::Device(name.to_string()),
        };
        // Write this before the region lists the device: a listed device must be found.
        self.change(|description| description.name(NumberedPlace::new(number, &uuid, place.clone())))?;
        let on_host = place.path(&self.directory).is_some_and(|path| self.host_files.add(&self.directory, &path));
        let (shown, opened) = (place.shown(self.directory.path()), device.block_device());
        let given =
            GivenDevice { uuid, name: shown, on_host, place: place.on_host(&self.directory), device: Ok(opened) };
        let added = self.fs.devices().add_as(number, &given, size_bytes.map(|bytes| bytes / BULK_BLOCK));
        if let Err(error) = added {
            self.change(|description| description.remove(number))?;
            place.path(&self.directory).iter().for_each(|path| self.host_files.remove(path));
            if let (true, Some(path)) = (made, name.path()) {
                // The file was just made, so nobody has used it.
                let _ = std::fs::remove_file(path);
            }
            return Err(Failure::new(name.without_secrets(), error));
        }
        self.devices.lock().push((number, device));
        let bytes =
            self.fs.devices().states().iter().find(|state| state.number == number).map_or(0, |state| state.bytes);
        info!("bulk device {number} ({}) was added", name.without_secrets());
        Ok(format!("bulk device {number}: {}, {}", name.without_secrets(), human(bytes)))
    }

    fn leave(&self, number: u32) -> Outcome<()> {
        let what = format!("bulk device {number}");
        let states = self.fs.devices().states();
        let away = states.iter().find(|device| device.number == number && device.state.cause().is_some());
        if let Some(device) = away.filter(|device| device.used > 0) {
            let bytes = human(device.used);
            let remedy =
                "bring it back and run `shoal bulk retry`, or remove the files first (`shoal bulk files` names them)";
            return Err(Failure::new(
                what,
                format!("{bytes} of files are on it, and it cannot be read or is in doubt"),
            )
            .remedy(remedy));
        }
        match self.fs.devices().leave(number).during(&what)? {
            Leaving::Now => Ok(()),
            Leaving::Last => Err(Failure::new(what, "is the only one that takes data").remedy("add another one first")),
            Leaving::NoRoom { missing } => {
                Err(Failure::new(what, format!("the others lack {} for what is on it", human(missing)))
                    .remedy("add a device, or remove files"))
            }
        }
    }

    fn retry(&self, number: u32) -> Outcome<()> {
        let what = format!("bulk device {number}");
        let place = self.description().place_of(number).cloned();
        let place = place.ok_or_else(|| Failure::new(&what, "the store's description does not name it"))?;
        place.name(&self.directory).map(|name| self.refuse_within_mount(&name)).unwrap_or(Ok(()))?;
        let (mut opened, mut front) = (None, None);
        let open = || {
            self.take_witnesses(number);
            // The device's last users release it within moments.
            self.devices.lock().retain(|(known, _)| *known != number);
            let begin = Instant::now();
            self.let_go_of_cache(number, begin)?;
            let device = loop {
                match open_place(&self.directory, &self.description(), &place) {
                    Err(failure) if failure.is_in_use() && begin.elapsed() < REOPEN_PATIENCE => {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    outcome => break outcome.map_err(|failure| failure.to_string())?,
                }
            };
            self.ask_witnesses(number, &*device)?;
            opened = Some(device.clone());
            front = self.front_again(number, &device).map_err(|failure| failure.to_string())?;
            let engine =
                front.as_ref().map_or_else(|| device.block_device(), |front| Arc::new(front.filter.clone()) as _);
            Ok((engine, place.on_host(&self.directory)))
        };
        self.fs.devices().retry(number, open).during(&what)?;
        self.witnesses.lock().remove(&number);
        // Drive the cache only now. Held data must not go to another device, and nothing may leave
        // before it is known what is held.
        if let Some(front) = front {
            if place.path(&self.directory).is_some_and(|path| self.host_files.retake(&path)) {
                self.held_on_host.note(number, &front.filter);
            }
            self.held.lock().push(front.drive(true)?);
        }
        self.devices.lock().extend(opened.map(|device| (number, device)));
        info!("bulk device {number} is in use again");
        Ok(())
    }

    fn take_witnesses(&self, number: u32) {
        let devices = self.devices.lock();
        if let Some((_, device)) = devices.iter().find(|(known, _)| *known == number) {
            self.witnesses.lock().insert(number, device.witnesses());
        }
    }

    /// Refuses a device that lacks flushed data of the lost one. The device's mark is no proof: a
    /// copy that was made since the store was mounted has the mark, too.
    fn ask_witnesses(&self, number: u32, device: &dyn Device) -> Result<(), String> {
        let mut all = self.witnesses.lock();
        let Some(witnesses) = all.get_mut(&number) else { return Ok(()) };
        // Pass the samples on before comparing, so that a server that later takes this one's place
        // is compared, too.
        device.inherit(witnesses.clone());
        for witness in &*witnesses {
            if !witness.is_on(&*device.block_device()).map_err(|error| error.to_string())? {
                let at = witness.at;
                return Err(format!(
                    "it is another device, or an older copy: it lacks what was flushed at byte {at}; bring back the one \
                     that was lost"
                ));
            }
        }
        // Drop the sample of the mark, because the mark is written anew next. If this attempt fails
        // later, the next one compares the other samples again.
        witnesses.retain(|witness| Mark::decode(&witness.bytes).is_err());
        Ok(())
    }

    /// Releases the cache of a device that is opened again, and waits until the cache's file is
    /// free, since it has one user at a time. Held data stays in the file.
    fn let_go_of_cache(&self, number: u32, begin: Instant) -> Result<(), String> {
        self.held_on_host.forget(number);
        let mut held = self.held.lock();
        let gone: Vec<_> = held.extract_if(.., |cache| cache.device() == number).collect();
        drop(held);
        let mut let_go = self.let_go.lock();
        for cache in gone {
            let_go.retain(|(known, ..)| *known != number);
            let rule = cache.rule();
            let_go.push((number, cache.let_go(), rule));
        }
        while let_go.iter().any(|(known, file, _)| *known == number && file.strong_count() > 0) {
            if begin.elapsed() > REOPEN_PATIENCE {
                return Err("requests to it are still under way; run `shoal bulk retry` again in a moment".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Reopens the cache that the device had, to put it in front of the device again. Newer data
    /// must not bypass it: after a crash the held data would be laid over the newer data. All data
    /// held in it belongs to this store and is written in time.
    fn front_again(&self, number: u32, device: &Arc<dyn Device>) -> Outcome<Option<InFront>> {
        let of_others = self.held.lock().first().map(HeldWrites::rule);
        let rule = self.let_go.lock().iter().find(|(known, ..)| *known == number).map(|(.., rule)| *rule);
        let rule = rule.or(of_others).unwrap_or_default();
        let front = cache::left_of(&self.directory, &self.description(), number, device, rule)?;
        Ok(front.inspect(|front| front.filter.adopt(true)))
    }

    fn start_drain(self: &Arc<Self>, number: u32) -> Outcome<()> {
        let mut drains = self.drains.lock();
        drains.retain(|drain| !drain.stopped.load(Ordering::Acquire));
        if let Some(drain) = drains.iter().find(|drain| drain.number == number) {
            // The reason why the thread made no progress may be gone.
            *drain.cause.lock() = None;
            drain.again.store(true, Ordering::Release);
            return Ok(());
        }
        let drain = Arc::new(Drain {
            number,
            moved: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            again: AtomicBool::new(false),
            cause: Mutex::default(),
        });
        drains.push(drain.clone());
        let (bulks, closing) = (Arc::downgrade(self), self.closing.clone());
        let work = move || {
            // The reference is weak, so this thread does not keep a closed store open.
            while let Some(bulks) = bulks.upgrade() {
                match bulks.drain_once(&drain) {
                    Ok(true) => break,
                    Ok(false) => {}
                    Err(failure) => {
                        warn!("emptying bulk device {number}: {failure}");
                        *drain.cause.lock() = Some(failure.to_string());
                    }
                }
                if bulks.is_over(&drain) {
                    break;
                }
                drop(bulks);
                let begin = Instant::now();
                let is_wanted = || {
                    closing.load(Ordering::Acquire)
                        || drain.stopped.load(Ordering::Acquire)
                        || drain.again.swap(false, Ordering::AcqRel)
                };
                while begin.elapsed() < PAUSE && !is_wanted() {
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
            drain.stopped.store(true, Ordering::Release);
        };
        let thread = std::thread::Builder::new().name("bulk-drain".into()).spawn(work).during("thread")?;
        self.threads.lock().push(thread);
        Ok(())
    }

    fn is_over(&self, drain: &Drain) -> bool {
        drain.stopped.load(Ordering::Acquire) || self.closing.load(Ordering::Acquire)
    }

    /// Makes one pass over the files. Returns true when the device has left.
    fn drain_once(&self, drain: &Drain) -> Outcome<bool> {
        let number = drain.number;
        let what = format!("bulk device {number}");
        loop {
            let mut goes_on = |blocks: u64| {
                drain.moved.fetch_add(blocks * BULK_BLOCK, Ordering::Relaxed);
                !self.is_over(drain)
            };
            let drained = self.fs.devices().drain(number, &mut goes_on).during(&what)?;
            if self.is_over(drain) {
                return Ok(false);
            }
            if self.fs.devices().remove(number).during(&what)? {
                self.removed(number)?;
                return Ok(true);
            }
            let cause = match (drained.stuck.first(), drained.full) {
                (Some(ino), _) => {
                    Some(format!("{} files cannot be moved, the first is inode {ino}", drained.stuck.len()))
                }
                (None, true) => Some("the other devices are full".to_string()),
                (None, false) => None,
            };
            *drain.cause.lock() = cause;
            if drained.moved == 0 {
                return Ok(false);
            }
        }
    }

    /// Completes a removal after the region has dropped the device from its list.
    fn removed(&self, number: u32) -> Outcome<()> {
        let path = self.description().place_of(number).and_then(|place| place.path(&self.directory));
        path.iter().for_each(|path| self.host_files.remove(path));
        self.change(|description| description.remove(number))?;
        // The cache holds nothing any more. The log names it until the store closes, so its file
        // stays.
        self.held_on_host.forget(number);
        self.held.lock().retain(|cache| cache.device() != number);
        let gone: Vec<_> = self.devices.lock().extract_if(.., |(known, _)| *known == number).collect();
        for (_, device) in gone {
            device.close()?;
        }
        info!("bulk device {number} is empty and removed");
        Ok(())
    }

    /// Removes a device in the calling thread, for a store that is not mounted.
    pub fn remove_here(self: &Arc<Self>, device: &str, moved: &dyn Fn(u64)) -> Outcome<String> {
        let number = self.find(device)?;
        self.leave(number)?;
        let drain = Drain {
            number,
            moved: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            again: AtomicBool::new(false),
            cause: Mutex::default(),
        };
        let done = self.drain_once(&drain)?;
        moved(drain.moved.load(Ordering::Relaxed));
        if !done {
            let cause = drain.cause.lock().clone().unwrap_or_else(|| "some blocks are still in use".into());
            return Err(Failure::new(format!("bulk device {number}"), cause).remedy("see `shoal bulk files`"));
        }
        Ok(format!("bulk device {number} is empty and removed"))
    }

    /// Stops work on the devices, because the store is about to be closed.
    pub fn stop(&self) {
        self.closing.store(true, Ordering::Release);
        let _one_at_a_time = self.changing.lock();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A panic in it ended the process.
            let _ = thread.join();
        }
    }

    /// Returns the writes held for devices that are missing or have failed. Called after the store
    /// was closed.
    pub fn undelivered(&self) -> Vec<Undelivered> {
        let description = self.description();
        let period = user::period(&self.directory, description.bulk_path(&self.directory));
        let kept = period.map_or(Vec::new(), |period| cache::kept(&self.directory, &description, &period));
        let reports = self.reports();
        let held = self.held.lock();
        let of = |report: BulkReport| {
            let number = report.number;
            let count = |bytes_in: &dyn Fn(u64, u64) -> u64| {
                self.fs.devices().files_where(number, bytes_in).unwrap_or_default()
            };
            let (files, place) = match kept.iter().find(|kept| kept.device == number) {
                Some(kept) => (count(&|at, len| kept.bytes_in(at, len)), Some(kept.path.clone())),
                None => {
                    let gone = held.iter().find(|cache| cache.device() == number)?;
                    (count(&|at, len| gone.held_in(at, len)), None)
                }
            };
            let bytes = files.iter().map(|(_, bytes)| bytes).sum();
            (bytes > 0).then_some(Undelivered { number, device: report.device, files: files.len(), bytes, place })
        };
        reports.into_iter().filter(|report| report.state.is_away()).filter_map(of).collect()
    }

    /// Closes the devices after the store was closed. `clean`: nothing is left to recover.
    pub fn close(&self, clean: bool) {
        // The caches' threads have nothing left to write.
        self.held.lock().clear();
        let devices = std::mem::take(&mut *self.devices.lock());
        for (_, device) in devices {
            if let Err(failure) = device.close() {
                // The store is clean all the same, but this device takes longer to open next time.
                warn!("{failure}");
            }
        }
        let forgotten = self.change(|description| description.bulk.retain(|device| !clean || !device.is_removed));
        if let Err(failure) = forgotten {
            warn!("{failure}");
        }
    }

    /// Returns the paths of files with data on a device, with the number of bytes.
    pub fn files(&self, device: &str) -> Outcome<Vec<BulkFile>> {
        let number = self.find(device)?;
        let found = self.fs.devices().files(number).during(device)?;
        let paths = crate::paths::of(&self.fs, found.iter().map(|(ino, _)| *ino))?;
        let file = |(ino, bytes): (shoal_fs::Ino, u64)| {
            let path = paths.get(&ino).cloned().unwrap_or_else(|| crate::paths::nameless(&self.fs, ino));
            BulkFile { path, inode: ino.get(), bytes }
        };
        Ok(found.into_iter().map(file).collect())
    }
}

impl Store {
    /// Returns the bulk devices of a store that is not mounted.
    pub fn bulk_reports(&self) -> Outcome<Vec<BulkReport>> {
        let options = Options { read_only: true, degraded: true, ..Options::default() };
        let opened = self.open(options)?;
        Ok(Bulks::of(opened, &self.directory, &self.description).reports())
    }

    /// Returns the files on a bulk device of a store that is not mounted.
    pub fn bulk_files(&self, device: &str) -> Outcome<Vec<BulkFile>> {
        let options = Options { read_only: true, degraded: true, ..Options::default() };
        let opened = self.open(options)?;
        Bulks::of(opened, &self.directory, &self.description).files(device)
    }

    /// Changes the bulk devices of a store that is not mounted. On return a removal is complete.
    pub fn change_bulks(&self, change: &BulkChange, watched: &dyn Progress) -> Outcome<String> {
        let opened = self.open(Options { degraded: true, ..Options::default() })?;
        let bulks = Arc::new(Bulks::of(opened, &self.directory, &self.description));
        let done = match change {
            BulkChange::Remove { device } => {
                watched.begin("moving large files (bytes)", 0);
                let done = bulks.remove_here(device, &|moved| watched.at(moved));
                watched.end();
                done
            }
            _ => bulks.carry_out(change),
        };
        bulks.stop();
        let closed = bulks.fs.shutdown().during(self.directory.display());
        if closed.is_ok() {
            self.remove_pid();
        }
        bulks.close(closed.is_ok());
        closed.and(done)
    }
}

/// A file with data on a bulk device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BulkFile {
    pub path: String,
    pub inode: u32,
    pub bytes: u64,
}

/// Opens a device to be added, or creates its file. Returns whether the file was created.
fn make_or_open(
    name: &DeviceName,
    size_bytes: Option<u64>,
    force: bool,
    writer: Option<u32>,
) -> Outcome<(Arc<dyn Device>, bool)> {
    if size_bytes.is_some_and(|bytes| bytes < BULK_BLOCK) {
        return Err(Failure::new("--size", "smaller than one block of 64 KiB").misuse());
    }
    let mut made = false;
    if let Some(path) = name.path() {
        if is_block_device(path) {
            refuse_if_in_use(path)?;
        } else if !path.exists() {
            let parent = path.parent().unwrap_or(Path::new("/"));
            let bytes = match size_bytes {
                Some(bytes) => bytes,
                None => shoal_host::host_free_bytes(parent).during(path.display())?.total_bytes,
            };
            // Include room for the mark behind the last block.
            let file = FileDevice::create(path, bytes / BULK_BLOCK * BULK_BLOCK + BULK_BLOCK).during(path.display())?;
            // `writer` is set only for another user's description, so this process is root.
            writer.map_or(Ok(()), |writer| file.give_to(writer)).during(path.display())?;
            made = true;
        }
    }
    let device: Arc<dyn Device> = name.open_as(writer).map(Arc::from)?;
    let block_device = device.block_device();
    if !made {
        refuse_if_not_empty(&*block_device, name.without_secrets(), force)?;
        // This is a hint to the device, so that old data takes no space any more.
        let _ = shoal_media::trim(&*block_device, 0, block_device.geometry().bytes);
    }
    Ok((device, made))
}
