//! The write-back caches of a store: their files on tmpfs, found again after a crash, and the
//! threads that drive them.
//!
//! Each bulk device has its own cache. A file in the store's directory (`cache`, `cache.1` ...)
//! names the cache and the period in which it was made. Rules:
//! - The identities of all caches in use are part of the period that the log names. So if a cache
//!   is gone, damaged or of another boot, opening proceeds as after a power loss. A cache that the
//!   log's period does not contain belongs to another life of the store and is dropped.
//! - A copy of the store's directory names the same cache. It has another period, and leaves the
//!   cache alone.
//! - A cache that outlived its process stays in use, with its name, its identity and its size.
//! - After a clean end nothing is held, and the cache's file and the file that names it are
//!   removed. Writes held for a device that is missing or has failed stay beyond a clean end: the
//!   next mount with the device writes them. Whether they still belong to the store shows in the
//!   log's period, which is that of the last process.
//! - If a device is missing, its cache stays until the device is back: no power was lost for the
//!   other devices.
//! - Whatever its size says, a cache has no more memory than this process may use beside everything
//!   else. It grows while there is room; when room gets short, the oldest blocks leave and memory
//!   is given back. The excess of a cache that is found with more is written before the store is
//!   served.
//! - If there is no memory to spare, the store is served without a cache, and the log says so in
//!   one line.
//!
//! Left out: what is held and when it leaves (`shoal-writeback`).

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use shoal_devices::size::human;
use shoal_devices::{Device, During, Failure, Outcome, parse_uuid, uuid_text};
use shoal_format::bulk_list::BULK_DEVICES_MAX;
use shoal_format::cache::CacheHeader;
use shoal_format::record::with_loss;
use shoal_host::{CacheFile, Directory, SystemClock, Ticker};
use shoal_media::{Clock, PersistentMemory, WriteCache};
use shoal_writeback::{Cache, CacheError, Lifetime, Owner, Policy, Rule, S_NS, Shape, WriteBack};
use tracing::warn;

use crate::description::Description;
use crate::names::{CACHES_EMPTIED, cache_note};
use crate::user;

/// Maximum memory for held blocks unless an option says otherwise: this many bytes, or one part in
/// this many of the memory that this process may use, whichever is less.
const CACHE_BYTES_MAX: u64 = 1 << 30;
const CACHE_PART: u64 = 8;
/// Smallest useful size (bytes). Writes under way need some of it.
const CACHE_BYTES_MIN: u64 = 16 << 20;
/// Where caches are, unless an option says otherwise.
pub(crate) const DIRECTORY: &str = "/dev/shm";
/// Time between two checks for due blocks.
const PERIOD: Duration = Duration::from_millis(100);
/// Pause after a piece of memory was given back to the host: 64 MB a second.
const GIVING_PAUSE: Duration = Duration::from_millis(1);
/// Pause between two checks of a cache that is being emptied.
const SHORT_PAUSE: Duration = Duration::from_micros(100);
/// Bytes of a block as policies count them.
const LINE_BYTES: u64 = 65536;

/// The caches that a mount requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// Most bytes held for all devices together. 0: none. `None`: an eighth of the memory this
    /// process may use, at most 1 GiB.
    pub bytes: Option<u64>,
    /// A folder on tmpfs.
    pub directory: Option<PathBuf>,
    pub rule: Rule,
}

impl CacheOptions {
    /// Returns the size of the cache of one of `devices` devices (bytes); 0: none.
    fn size(&self, devices: u64) -> u64 {
        let usual = (shoal_host::memory_total_bytes() / CACHE_PART).min(CACHE_BYTES_MAX);
        match self.bytes.unwrap_or(usual) {
            0 => 0,
            bytes => (bytes / devices.max(1)).max(CACHE_BYTES_MIN),
        }
    }
}

/// Makes a rule of a policy in text form and of a bound on the bytes that leave in a second (0:
/// none). A value of `None` is taken from `before`.
pub fn rule_of(policy: Option<&str>, rate_bytes: Option<u64>, before: &Rule) -> Result<Rule, String> {
    let policy = policy.map_or(Ok(before.policy), str::parse::<Policy>)?;
    let shape = match rate_bytes {
        None => before.shape,
        Some(0) => None,
        Some(bytes) => Some(Shape {
            blocks_per_tick_max: (bytes / LINE_BYTES / 10).max(1),
            tick_ns: S_NS / 10,
            queue_depth_max: 16,
            age_max_ns: 0,
        }),
    };
    // Blocks held for twice the policy's longest time leave in spite of the bound.
    let shape = shape.map(|shape| Shape { age_max_ns: 2 * Rule::of(policy).held_ns_max(), ..shape });
    Ok(Rule { policy, shape })
}

/// Returns true if these periods have the same boot and the same log. Their second halves differ if
/// the first bulk device was missing or is in another place. The region's list of devices decides
/// what that means for the device.
fn are_of_one_life(period: &[u8; 16], other: &[u8; 16]) -> bool {
    period[..8] == other[..8]
}

/// The file that names a device's cache.
struct Note {
    path: PathBuf,
    period: [u8; 16],
}

impl Note {
    fn read(directory: &Directory, device: u32) -> Option<Note> {
        let text = directory.read_text(&cache_note(device))?;
        let (path, period) = text.trim_end_matches('\n').rsplit_once('\n')?;
        Some(Note { path: path.into(), period: parse_uuid(period)? })
    }

    /// Reads the note, if it is of this life of the store.
    fn of(directory: &Directory, device: u32, period: &[u8; 16]) -> Option<Note> {
        Note::read(directory, device).filter(|note| are_of_one_life(&note.period, period))
    }
}

/// The cache of a bulk device of an opened store.
pub(crate) struct StoreCache {
    device: u32,
    cache: Cache,
    file: Arc<CacheFile>,
    path: PathBuf,
    pub identity: [u8; 16],
    /// Made by this process: nothing is held in it before the store has been opened.
    is_new: bool,
}

/// A bulk device's cache with the thread that drives it.
pub struct HeldWrites {
    device: u32,
    filter: WriteBack,
    file: Arc<CacheFile>,
    /// `None` if the device is missing; then nothing leaves.
    ticker: Option<Ticker>,
    path: PathBuf,
}

/// A report on held writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    /// The number of the bulk device.
    #[serde(default)]
    pub device: u32,
    pub policy: String,
    /// Writes wait in the cache: the policy is not write-through.
    pub holds: bool,
    /// Bytes that may leave in a second, if bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes: Option<u64>,
    pub place: String,
    pub held_bytes: u64,
    pub size_bytes: u64,
    /// Age of the oldest held data (ms).
    pub oldest_ms: Option<u64>,
    /// Requests that bulk storage received since the store was opened.
    pub device_reads: u64,
    pub device_writes: u64,
    pub device_written_bytes: u64,
    pub device_flushes: u64,
}

/// What a killed process left of a device's cache.
pub(crate) enum Left {
    Nothing,
    /// The cache belongs to another device that had this number before.
    Other,
    /// The cache cannot be used, as after a power loss.
    Lost,
    Cache(StoreCache),
}

impl StoreCache {
    pub fn left(directory: &Directory, device: u32, owner: &Owner, period: &[u8; 16], read_only: bool) -> Left {
        let Some(note) = Note::of(directory, device, period) else { return Left::Nothing };
        let path = note.path;
        let lost = |error: &dyn std::fmt::Display| {
            warn!(
                "write-back cache {}: {error}; data of large files that was not written yet is lost, as after a power loss",
                path.display()
            );
        };
        let file = match CacheFile::open(&path, read_only) {
            Ok(file) => Arc::new(file),
            Err(error) => {
                lost(&error);
                return Left::Lost;
            }
        };
        let is_own = header_of(directory, &file).is_some();
        // Ignore the size here, so that held data of a missing device stays. A smaller device in
        // its place is refused later, by its size or mark.
        let owner = &Owner { device_bytes: u64::MAX, ..*owner };
        match open(&file, owner) {
            Ok(cache) => {
                let identity = *cache.identity();
                Left::Cache(StoreCache { device, cache, file, path, identity, is_new: false })
            }
            Err(CacheError::Other("another store")) if device != 0 => Left::Other,
            Err(error) => {
                lost(&error);
                if !read_only && is_own && !matches!(error, CacheError::Other("another store")) {
                    // The cache is useless now, and takes memory.
                    let _ = file.remove();
                }
                Left::Lost
            }
        }
    }

    /// Lays held data over bytes that were read from bulk storage at `at`.
    pub fn lay_over(&self, at: u64, out: &mut [u8]) {
        self.cache.lay_over(at, out);
    }

    /// Returns how many bytes of a range of the device are held.
    pub fn found_in(&self, at: u64, len: u64) -> u64 {
        self.cache.found_in(at, len)
    }

    /// Makes a cache for one of `devices` devices. The error is the reason why there is none.
    pub fn make(
        directory: &Directory,
        device: u32,
        devices: usize,
        owner: &Owner,
        period: &[u8; 16],
        options: &CacheOptions,
    ) -> Outcome<StoreCache> {
        let identity: [u8; 16] = shoal_host::random_bytes().during("random numbers")?;
        let folder = options.directory.as_deref().unwrap_or(Path::new(DIRECTORY));
        let path = folder.join(format!("shoal-{}.cache", uuid_text(&identity)));
        let bytes = options.size(devices as u64);
        let file = Arc::new(CacheFile::create(&path, Cache::memory_bytes(bytes)).map_err(Failure::of)?);
        let made_file = file.clone();
        let made = Cache::create(file.clone(), bytes, owner, identity, Lifetime::Boot).map_err(Failure::of);
        let made = made.and_then(|cache| {
            // Complete the cache before naming it. The note need not be durable: after a power loss
            // there is no cache either.
            let text = format!("{}\n{}\n", path.display(), uuid_text(period));
            directory.replace("cache.new", &cache_note(device), text.as_bytes(), false).map_err(Failure::of)?;
            Ok(cache)
        });
        match made {
            Ok(cache) => Ok(StoreCache { device, cache, file, path, identity, is_new: true }),
            Err(failure) => {
                let _ = made_file.remove();
                Err(failure)
            }
        }
    }

    /// Puts the cache in front of the device, and returns it with what is needed to drive it.
    pub fn in_front(self, device: &Arc<dyn Device>, clock: Arc<dyn Clock>, rule: Rule) -> InFront {
        let StoreCache { device: number, cache, file, path, identity, is_new } = self;
        let filter = WriteBack::new(device.uncached_device(), clock, rule, cache);
        // This bell does nothing. So nothing leaves while the device is being identified, nor for a
        // process that only reads the store.
        filter.set_bell(Arc::new(|| ()));
        InFront { device: number, filter, file, path, identity, is_new }
    }
}

/// A cache in front of a device, not driven yet.
pub(crate) struct InFront {
    pub device: u32,
    pub filter: WriteBack,
    file: Arc<CacheFile>,
    path: PathBuf,
    pub identity: [u8; 16],
    is_new: bool,
}

/// Keeps a cache's memory within what this process may use.
struct Within {
    /// The cache's own size (bytes).
    most: u64,
}

impl Within {
    fn new(filter: &WriteBack) -> Within {
        Within { most: filter.memory_bytes_max() }
    }

    /// Sets the cache's limit from the current room. Returns true if the cache has more memory than
    /// that.
    fn look(&self, filter: &WriteBack) -> bool {
        let has = filter.memory_bytes();
        // A cache without memory has none to give back, and asks before it takes any. So an idle
        // store need not read the limits.
        let room = if has == 0 { i64::MAX } else { shoal_host::memory_room_bytes() };
        filter.set_memory(has.saturating_add_signed(room).min(self.most));
        filter.has_excess()
    }
}

impl InFront {
    /// Writes held blocks until the cache has no more memory than it may have. This happens before
    /// the store is served, because a process beyond its limit is killed. If the device fails, the
    /// rest stays held.
    pub fn write_excess(&self) {
        let within = Within::new(&self.filter);
        if !within.look(&self.filter) {
            return;
        }
        let before = self.filter.memory_bytes();
        while within.look(&self.filter) && self.filter.report().failure.is_none() {
            self.filter.tick();
            std::thread::sleep(SHORT_PAUSE);
        }
        let written = before.saturating_sub(self.filter.memory_bytes());
        warn!(
            "write-back cache {}: it held more than this process has memory for; {} of it were written and given back first",
            self.path.display(),
            human(written)
        );
    }

    /// Cleans up after the store was refused: removes a cache that was made for it, and leaves one
    /// that was found.
    pub fn withdraw(&self, directory: &Directory) {
        if self.is_new {
            let _ = directory.remove(&cache_note(self.device));
            let _ = self.file.remove();
        }
    }

    /// Starts the thread that writes due blocks, if the device is there.
    pub fn drive(self, is_there: bool) -> Outcome<HeldWrites> {
        let InFront { device, filter, file, path, .. } = self;
        if !is_there {
            return Ok(HeldWrites { device, filter, file, ticker: None, path });
        }
        let limited = Within::new(&filter);
        let (ticked, name, is_gone) = (filter.clone(), path.clone(), AtomicBool::new(false));
        let named = file.clone();
        let mut ticks = 0u32;
        let ticker = Ticker::start("write-back", PERIOD, move |stopping| {
            ticks = ticks.wrapping_add(1);
            if ticks.is_multiple_of(50) && !is_gone.load(Ordering::Relaxed) && !named.is_named() {
                is_gone.store(true, Ordering::Relaxed);
                warn!("write-back cache {}: the file is gone; writes go to bulk storage at once", name.display());
                ticked.set_rule(Rule::of(Policy::WriteThrough));
            }
            loop {
                let is_short = limited.look(&ticked);
                // If memory is short, give it back without pauses: the lack may get other processes
                // killed.
                if !ticked.tick() || stopping.wait(if is_short { Duration::ZERO } else { GIVING_PAUSE }) {
                    break;
                }
            }
            ControlFlow::Continue(())
        });
        let ticker = ticker.during("thread of the write-back cache")?;
        let bell = ticker.bell();
        filter.set_bell(Arc::new(move || bell.ring()));
        Ok(HeldWrites { device, filter, file, ticker: Some(ticker), path })
    }
}

impl HeldWrites {
    /// Returns the number of the bulk device.
    pub fn device(&self) -> u32 {
        self.device
    }

    pub(crate) fn rule(&self) -> Rule {
        self.filter.report().rule
    }

    /// Returns the current state of the cache.
    pub fn report(&self) -> CacheReport {
        let of = self.filter.report();
        let rate = |shape: Shape| shape.blocks_per_tick_max * LINE_BYTES * (S_NS / shape.tick_ns);
        CacheReport {
            device: self.device,
            policy: of.rule.to_string(),
            holds: of.rule.policy != Policy::WriteThrough,
            rate_bytes: of.rule.shape.map(rate),
            place: self.path.display().to_string(),
            held_bytes: of.held_bytes,
            size_bytes: of.capacity_bytes,
            oldest_ms: of.oldest_ns.map(|ns| ns / 1_000_000),
            device_reads: of.reads,
            device_writes: of.writes,
            device_written_bytes: of.written_bytes,
            device_flushes: of.flushes,
        }
    }

    /// Changes the policy or the rate, for writes held now and later.
    pub fn change(&self, policy: Option<&str>, rate_bytes: Option<u64>) -> Result<(), String> {
        let rule = rule_of(policy, rate_bytes, &self.filter.report().rule)?;
        self.filter.set_rule(rule);
        Ok(())
    }

    /// Returns the bytes that bulk storage does not have yet.
    pub fn held_bytes(&self) -> u64 {
        self.filter.held_bytes()
    }

    /// Returns the bytes of a range of the device that bulk storage does not have yet.
    pub(crate) fn held_in(&self, at: u64, len: u64) -> u64 {
        self.filter.held_in(at, len)
    }

    /// Releases the cache. Held data stays in its file. The device has failed or is missing, so
    /// nothing leaves any more. The file is in use for as long as the returned value can be
    /// upgraded.
    pub(crate) fn let_go(self) -> Weak<CacheFile> {
        let file = Arc::downgrade(&self.file);
        drop(self);
        file
    }
}

impl Drop for HeldWrites {
    fn drop(&mut self) {
        self.ticker.iter().for_each(Ticker::stop);
    }
}

/// Caches of devices on the store's host. Held data takes its room there only when it leaves.
#[derive(Clone, Default)]
pub(crate) struct HeldOnHost(Arc<Mutex<Vec<(u32, WriteBack)>>>);

impl HeldOnHost {
    pub fn note(&self, device: u32, filter: &WriteBack) {
        let mut filters = self.0.lock();
        filters.retain(|(known, _)| *known != device);
        filters.push((device, filter.clone()));
    }

    pub fn forget(&self, device: u32) {
        self.0.lock().retain(|(known, _)| *known != device);
    }

    pub fn bytes(&self) -> u64 {
        self.0.lock().iter().map(|(_, filter)| filter.held_bytes()).sum()
    }
}

/// Returns the owner that a cache's header names: a device whose owner has this uuid, of the store
/// in `directory`.
pub(crate) fn owner(directory: &Directory, uuid: &str, device_bytes: u64) -> Outcome<Owner> {
    Ok(Owner { store: parse_uuid(uuid).unwrap_or_default(), boot_id: life(directory)?, device_bytes })
}

/// Returns the part of a cache's header that ties it to this boot and, in its first half, to the
/// store's directory. So a note that names another store's cache is not trusted, whoever wrote it.
fn life(directory: &Directory) -> Outcome<[u8; 16]> {
    let mut life = shoal_host::boot_id().during("boot id")?;
    // The directory's birth is the same through every mount. Only the period distinguishes mounts,
    // to show that a file system went down.
    let birth = directory.birth().during(directory.display())?;
    let place = birth.place ^ birth.born.unwrap_or(0).rotate_left(32);
    life.iter_mut().zip(place.to_le_bytes()).for_each(|(byte, place)| *byte ^= place);
    Ok(life)
}

/// Opens the cache in a file, if it belongs to this owner. Earlier programs recorded only the boot.
fn open(file: &Arc<CacheFile>, owner: &Owner) -> Result<Cache, CacheError> {
    let opened = Cache::open(file.clone(), owner);
    match (&opened, shoal_host::boot_id()) {
        (Err(CacheError::Other("an earlier boot of the machine")), Ok(boot_id)) => {
            Cache::open(file.clone(), &Owner { boot_id, ..*owner })
        }
        _ => opened,
    }
}

/// Returns the header of a file, if it says that it is a cache of the store in `directory`.
fn header_of(directory: &Directory, file: &CacheFile) -> Option<CacheHeader> {
    let mut bytes = [0; CacheHeader::BYTES];
    if file.len() < bytes.len() as u64 {
        return None;
    }
    file.read(0, &mut bytes);
    let header = CacheHeader::decode(&bytes, file.len()).ok()?;
    // A header of an earlier program names no directory, but it must at least name this store.
    let is_known = |uuid: String| parse_uuid(&uuid) == Some(header.store);
    let is_stores = || {
        let owners = Description::read(directory).map(|of| of.cache_owners()).unwrap_or_default();
        owners.into_iter().any(|(_, uuid)| is_known(uuid))
    };
    match life(directory) {
        Ok(life) if life == header.boot_id => Some(header),
        _ => (shoal_host::boot_id().ok()? == header.boot_id && is_stores()).then_some(header),
    }
}

/// Mixes the identities of caches into a period. A store that was used with other caches, or with
/// none, was used in another period.
pub(crate) fn period_with<'a>(mut period: [u8; 16], identities: impl IntoIterator<Item = &'a [u8; 16]>) -> [u8; 16] {
    for identity in identities {
        period.iter_mut().zip(identity).for_each(|(byte, other)| *byte ^= other);
    }
    period
}

/// Returns all periods that a log may name if any of these caches were in use.
pub(crate) fn periods(period: [u8; 16], identities: &[[u8; 16]]) -> Vec<[u8; 16]> {
    let mut periods = vec![period];
    for identity in identities {
        let with: Vec<_> = periods.iter().map(|period| period_with(*period, [identity])).collect();
        periods.extend(with);
    }
    periods
}

/// Returns all periods that a log may name if a flush of bulk storage failed in the current one.
pub(crate) fn loss_boots(directory: &Directory, description: &Description) -> Vec<[u8; 16]> {
    let Ok(period) = user::period(directory, description.bulk_path(directory)) else { return Vec::new() };
    let left = identities(directory, &period).into_iter().map(|(_, identity)| identity);
    let all: Vec<_> = left.chain(emptied(directory, &period)).collect();
    periods(period, &all).into_iter().map(with_loss).collect()
}

/// Returns those of these caches that were in use in the period that a log names. Empty if no
/// combination of the caches gives that period.
pub(crate) fn in_use(period: [u8; 16], identities: &[[u8; 16]], named: &[u8; 16]) -> Vec<[u8; 16]> {
    let number = periods(period, identities).iter().position(|period| are_of_one_life(period, named)).unwrap_or(0);
    let chosen = identities.iter().enumerate().filter(|(bit, _)| number >> bit & 1 == 1);
    chosen.map(|(_, identity)| *identity).collect()
}

/// Reopens the cache that a device of a store in use has, in front of the device and not driven
/// yet. `None` if the device had no cache when the store was opened, or if its cache cannot be
/// used.
pub(crate) fn left_of(
    directory: &Directory,
    description: &Description,
    device: u32,
    below: &Arc<dyn Device>,
    rule: Rule,
) -> Outcome<Option<InFront>> {
    let period = user::period(directory, description.bulk_path(directory))?;
    let Some((_, uuid)) = description.cache_owners().into_iter().find(|(number, _)| *number == device) else {
        return Ok(None);
    };
    let owner = owner(directory, &uuid, below.block_device().geometry().bytes)?;
    match StoreCache::left(directory, device, &owner, &period, false) {
        Left::Cache(left) => Ok(Some(left.in_front(below, Arc::new(SystemClock::new()), rule))),
        Left::Nothing | Left::Other | Left::Lost => Ok(None),
    }
}

fn numbers() -> std::ops::Range<u32> {
    0..BULK_DEVICES_MAX as u32
}

/// Removes the caches of a store that is formatted again.
pub(crate) fn remove_all(directory: &Directory, period: &[u8; 16]) {
    numbers().for_each(|device| remove_one(directory, device, period));
    let _ = directory.remove(CACHES_EMPTIED);
}

/// Removes the caches of a clean store, except those that hold writes for its devices.
pub(crate) fn remove(directory: &Directory, description: &Description, period: &[u8; 16]) {
    let kept = kept(directory, description, period);
    let goes = |device: &u32| kept.iter().all(|kept| kept.device != *device);
    let gone: Vec<_> = identities_of(directory, period, CacheFile::peek).into_iter().filter(|(d, _)| goes(d)).collect();
    if gone.is_empty() && kept.is_empty() {
        let _ = directory.remove(CACHES_EMPTIED);
    } else {
        // The log's period includes the identities of all caches. Without this note, those that
        // stay would look like another life's, and an interrupted opening like a power loss.
        let together = gone.iter().fold([0; 16], |together, (_, identity)| period_with(together, [identity]));
        let text = format!("{}\n{}\n", uuid_text(period), uuid_text(&together));
        match directory.write_note(CACHES_EMPTIED, text.as_bytes()) {
            Err(error) if !kept.is_empty() => {
                // All caches stay, so the next mount finds all those of the period.
                warn!("{error}; the write-back caches stay until the next clean end");
                return;
            }
            _ => {}
        }
    }
    numbers().filter(goes).for_each(|device| remove_one(directory, device, period));
}

/// Returns the mixed identities of the caches that the last clean end of this period removed.
pub(crate) fn emptied(directory: &Directory, period: &[u8; 16]) -> Option<[u8; 16]> {
    let text = directory.read_text(CACHES_EMPTIED)?;
    let (of, together) = text.trim_end_matches('\n').split_once('\n')?;
    parse_uuid(together).filter(|_| parse_uuid(of).is_some_and(|of| are_of_one_life(&of, period)))
}

/// A cache that holds writes that did not reach its device.
pub(crate) struct Kept {
    pub device: u32,
    pub path: PathBuf,
    cache: Cache,
}

impl Kept {
    pub fn bytes(&self) -> u64 {
        self.cache.found_bytes()
    }

    /// Returns the bytes of a range of the device that the cache keeps.
    pub fn bytes_in(&self, at: u64, len: u64) -> u64 {
        self.cache.found_in(at, len)
    }
}

/// Returns the writes held for devices that did not get them, in a store that is not in use: the
/// device, the bytes, and the cache's file.
pub fn kept_writes(directory: &Path) -> Vec<(u32, u64, PathBuf)> {
    let Ok(directory) = &Directory::open(directory) else { return Vec::new() };
    let Ok(description) = Description::read(directory) else { return Vec::new() };
    let period = user::period(directory, description.bulk_path(directory));
    let kept = period.map_or(Vec::new(), |period| kept(directory, &description, &period));
    kept.into_iter().map(|kept| (kept.device, kept.bytes(), kept.path)).collect()
}

/// Returns the caches of this period that hold writes. They may be in use, so what they hold for an
/// open device changes.
pub(crate) fn kept(directory: &Directory, description: &Description, period: &[u8; 16]) -> Vec<Kept> {
    let look = |(device, uuid): (u32, String)| {
        let note = Note::of(directory, device, period)?;
        let owner = owner(directory, &uuid, u64::MAX).ok()?;
        let cache = open(&Arc::new(CacheFile::peek(&note.path).ok()?), &owner).ok()?;
        (cache.found_bytes() > 0).then_some(Kept { device, path: note.path, cache })
    };
    description.cache_owners().into_iter().filter_map(look).collect()
}

/// Removes the cache of a device that gets another one.
pub(crate) fn remove_one(directory: &Directory, device: u32, period: &[u8; 16]) {
    // If the cache's file cannot be removed, a later opening finds that it is of another life. A
    // note that is empty, because its host went down, leads to no file and is only removed itself.
    if let Some(note) = Note::of(directory, device, period)
        && let Ok(file) = CacheFile::peek(&note.path)
    {
        match header_of(directory, &file) {
            Some(_) => drop(file.remove()),
            None => warn!("{} is no cache of this store, and stays", note.path.display()),
        }
    }
    let _ = directory.remove(&cache_note(device));
}

/// Returns the identities of the caches that processes of this period left, by device, as far as
/// their files can be read.
pub(crate) fn identities(directory: &Directory, period: &[u8; 16]) -> Vec<(u32, [u8; 16])> {
    identities_of(directory, period, |path| CacheFile::open(path, true))
}

fn identities_of(
    directory: &Directory,
    period: &[u8; 16],
    open: impl Fn(&Path) -> std::io::Result<CacheFile>,
) -> Vec<(u32, [u8; 16])> {
    let identity = |device| {
        let note = Note::of(directory, device, period)?;
        let file = open(&note.path).ok()?;
        header_of(directory, &file).map(|header| (device, header.identity))
    };
    numbers().filter_map(identity).collect()
}

/// Returns true if there was a cache that cannot be opened any more.
pub(crate) fn is_lost(directory: &Directory, description: &Description) -> bool {
    let Ok(boot_id) = life(directory) else { return numbers().any(|d| Note::read(directory, d).is_some()) };
    let owners = description.cache_owners();
    numbers().any(|device| {
        let Some(note) = Note::read(directory, device) else { return false };
        let uuid = owners.iter().find(|(number, _)| *number == device).and_then(|(_, uuid)| parse_uuid(uuid));
        let owner = Owner { store: uuid.unwrap_or_default(), boot_id, device_bytes: u64::MAX };
        let opened = CacheFile::open(&note.path, true).map(|file| open(&Arc::new(file), &owner).map(drop));
        match opened {
            Ok(Ok(())) => false,
            // The cache is of a removed device that had this number. The removal left it empty.
            Ok(Err(CacheError::Other("another store"))) => device == 0,
            Ok(Err(_)) | Err(_) => true,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_tells_which_caches_were_in_use() {
        let (period, all) = ([1; 16], [[2; 16], [4; 16], [8; 16]]);
        assert_eq!(periods(period, &all).len(), 8);
        for some in [vec![], vec![all[1]], vec![all[0], all[2]], all.to_vec()] {
            assert_eq!(in_use(period, &all, &period_with(period, &some)), some);
        }
        assert!(in_use(period, &all, &[77; 16]).is_empty());
    }
}
