//! The write-back cache of a store: its file on tmpfs, found again after a crash, and the thread that drives it.
//!
//! The file `cache` in the store's directory names it, and the period of its life. Rules:
//! - A cache's identity is part of the period that the log names, so a cache that is gone, of another boot or damaged makes the
//!   opening one after a power loss, and one that another life left is dropped.
//! - A copy of the store's directory names the same cache. It has another period, and leaves the cache alone.
//! - A cache that outlived its process goes on being used: the name and the identity stay, and so does its size.
//! - After a clean end nothing is held, and the file goes, with its name.
//! - It is the first bulk device's. Where that is missing at an opening, what was held for it is lost, and no power was.
//! - Where there is no memory to share, a store is served without a cache, and says so in one line.
//!
//! Left out: what is held and when it leaves (`shoal-writeback`).

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shoal_devices::{Device, During, Failure, Outcome, parse_uuid, uuid_text};
use shoal_host::{CacheFile, Ticker};
use shoal_media::{BlockDevice, Clock};
use shoal_writeback::{Cache, Owner, Policy, Rule, S_NS, Shape, WriteBack};
use tracing::warn;

use crate::names::CACHE;

/// Memory for held blocks at most, unless an option says otherwise (bytes), and the part of the machine's.
const CACHE_BYTES_MAX: u64 = 1 << 30;
const CACHE_PART: u64 = 8;
/// The least that is worth it (bytes): what is under way needs some of it.
const CACHE_BYTES_MIN: u64 = 16 << 20;
/// Where caches are, unless an option says otherwise.
const DIRECTORY: &str = "/dev/shm";
/// Time between two looks at what is due.
const PERIOD: Duration = Duration::from_millis(100);
/// Bytes of a block as policies count them.
const LINE_BYTES: u64 = 65536;

/// A cache as a mount wants it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// Most bytes held; 0: none; `None`: an eighth of the machine's memory, 1 GiB at most.
    pub bytes: Option<u64>,
    /// A folder on tmpfs.
    pub directory: Option<PathBuf>,
    pub rule: Rule,
}

impl CacheOptions {
    fn size(&self) -> u64 {
        let usual = (shoal_host::memory_total_bytes() / CACHE_PART).min(CACHE_BYTES_MAX);
        match self.bytes.unwrap_or(usual) {
            0 => 0,
            bytes => bytes.max(CACHE_BYTES_MIN),
        }
    }
}

/// The rule of a policy as people write it, and of a bound on the bytes that leave in a second; what is `None` stays as it is
/// in `before`.
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
    // What was held back for so long again goes in any case.
    let shape = shape.map(|shape| Shape { age_max_ns: 2 * Rule::of(policy).held_ns_max(), ..shape });
    Ok(Rule { policy, shape })
}

/// The file `cache`.
struct Note {
    path: PathBuf,
    period: String,
}

impl Note {
    fn read(directory: &Path) -> Option<Note> {
        let text = fs::read_to_string(directory.join(CACHE)).ok()?;
        let (path, period) = text.trim_end_matches('\n').rsplit_once('\n')?;
        Some(Note { path: path.into(), period: period.into() })
    }
}

/// The cache of an opened store.
pub(crate) struct StoreCache {
    cache: Cache,
    file: Arc<CacheFile>,
    path: PathBuf,
    pub identity: [u8; 16],
    /// Made by this process: nothing is held in it before the store has been opened.
    is_new: bool,
}

/// A store's cache, driven.
pub struct HeldWrites {
    filter: WriteBack,
    /// None: the device is not there, and nothing leaves.
    ticker: Option<Ticker>,
    path: PathBuf,
}

/// A report on held writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    pub policy: String,
    /// Writes wait in the cache: the policy is not write-through.
    pub holds: bool,
    /// Bytes that may leave in a second, if that is bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes: Option<u64>,
    pub place: String,
    pub held_bytes: u64,
    pub size_bytes: u64,
    /// Age of the oldest held data (ms).
    pub oldest_ms: Option<u64>,
    /// Requests that bulk storage got since the store was opened.
    pub device_reads: u64,
    pub device_writes: u64,
    pub device_written_bytes: u64,
    pub device_flushes: u64,
}

impl StoreCache {
    /// The cache that a process which was cut off left behind. `None`: there is none, or none that can be used.
    pub fn left(directory: &Path, owner: &Owner, period: &[u8; 16], read_only: bool) -> Option<StoreCache> {
        let note = Note::read(directory)?;
        if note.period != uuid_text(period) {
            return None;
        }
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
                return None;
            }
        };
        match Cache::open(file.clone(), owner) {
            Ok(cache) => {
                let identity = *cache.identity();
                Some(StoreCache { cache, file, path, identity, is_new: false })
            }
            Err(error) => {
                lost(&error);
                if !read_only && !matches!(error, shoal_writeback::CacheError::Other("another store")) {
                    // It is of no use any more, and takes memory.
                    let _ = fs::remove_file(&path);
                }
                None
            }
        }
    }

    /// Lays what is held over bytes of bulk storage that were read from `at` on.
    pub fn lay_over(&self, at: u64, out: &mut [u8]) {
        self.cache.lay_over(at, out);
    }

    /// A new cache, or the reason why there is none.
    pub fn make(directory: &Path, owner: &Owner, period: &[u8; 16], options: &CacheOptions) -> Outcome<StoreCache> {
        let identity: [u8; 16] = shoal_host::random_bytes().during("random numbers")?;
        let folder = options.directory.as_deref().unwrap_or(Path::new(DIRECTORY));
        let path = folder.join(format!("shoal-{}.cache", uuid_text(&identity)));
        let bytes = options.size();
        let file = CacheFile::create(&path, Cache::memory_bytes(bytes)).map_err(Failure::told)?;
        let file = Arc::new(file);
        let made = Cache::create(file.clone(), bytes, owner, identity, true).map_err(Failure::told);
        let made = made.and_then(|cache| {
            // Whole before it has its name. It need not be durable: after a power loss there is no cache either.
            let (new, name) = (directory.join(format!("{CACHE}.new")), directory.join(CACHE));
            let text = format!("{}\n{}\n", path.display(), uuid_text(period));
            let named = fs::write(&new, text).and_then(|()| fs::rename(&new, &name));
            named.during(name.display())?;
            Ok(cache)
        });
        match made {
            Ok(cache) => Ok(StoreCache { cache, file, path, identity, is_new: true }),
            Err(failure) => {
                let _ = fs::remove_file(&path);
                Err(failure)
            }
        }
    }

    /// The device with the cache in front, and what drives it.
    pub fn in_front(self, device: &Arc<dyn Device>, clock: Arc<dyn Clock>, rule: Rule) -> InFront {
        let filter = WriteBack::new(device.uncached_device(), clock, rule, self.cache);
        InFront { filter, file: self.file, path: self.path, is_new: self.is_new }
    }
}

/// A cache in front of a device, not driven yet.
pub(crate) struct InFront {
    pub filter: WriteBack,
    file: Arc<CacheFile>,
    path: PathBuf,
    is_new: bool,
}

impl InFront {
    /// The store was refused: a cache that was made for it goes, one that was left stays.
    pub fn withdraw(&self, directory: &Path) {
        if self.is_new {
            let _ = fs::remove_file(directory.join(CACHE));
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Starts the thread that writes what is due, if the device is there.
    pub fn drive(self, is_there: bool) -> Outcome<HeldWrites> {
        let InFront { filter, file, path, .. } = self;
        if !is_there {
            return Ok(HeldWrites { filter, ticker: None, path });
        }
        let (ticked, name, is_gone) = (filter.clone(), path.clone(), AtomicBool::new(false));
        let mut ticks = 0u32;
        let ticker = Ticker::start("write-back", PERIOD, move |_| {
            ticks = ticks.wrapping_add(1);
            if ticks.is_multiple_of(50) && !is_gone.load(Ordering::Relaxed) && !file.is_named() {
                is_gone.store(true, Ordering::Relaxed);
                warn!("write-back cache {}: the file is gone; writes go to bulk storage at once", name.display());
                ticked.set_rule(Rule::of(Policy::WriteThrough));
            }
            ticked.tick();
            ControlFlow::Continue(())
        });
        let ticker = ticker.during("thread of the write-back cache")?;
        let bell = ticker.bell();
        filter.set_bell(Arc::new(move || bell.ring()));
        Ok(HeldWrites { filter, ticker: Some(ticker), path })
    }
}

impl HeldWrites {
    /// How it is now.
    pub fn report(&self) -> CacheReport {
        let of = self.filter.report();
        let rate = |shape: Shape| shape.blocks_per_tick_max * LINE_BYTES * (S_NS / shape.tick_ns);
        CacheReport {
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

    /// Changes the policy, or the rate, for what is held and what comes.
    pub fn change(&self, policy: Option<&str>, rate_bytes: Option<u64>) -> Result<(), String> {
        let rule = rule_of(policy, rate_bytes, &self.filter.report().rule)?;
        self.filter.set_rule(rule);
        Ok(())
    }

    /// Bytes that bulk storage does not have yet.
    pub fn held_bytes(&self) -> u64 {
        self.filter.held_bytes()
    }
}

impl Drop for HeldWrites {
    fn drop(&mut self) {
        self.ticker.iter().for_each(Ticker::stop);
    }
}

/// Whose cache a store's is.
pub(crate) fn owner(uuid: &str, device: &dyn BlockDevice) -> Outcome<Owner> {
    let store = parse_uuid(uuid).unwrap_or_default();
    let boot_id = shoal_host::boot_id().during("boot id")?;
    Ok(Owner { store, boot_id, device_bytes: device.geometry().bytes })
}

/// The period with a cache: a store that was used with another one, or with none, was used in another period.
pub(crate) fn period_with(mut period: [u8; 16], identity: &[u8; 16]) -> [u8; 16] {
    period.iter_mut().zip(identity).for_each(|(byte, other)| *byte ^= other);
    period
}

/// Takes away the cache of a store that is clean, or that has another one.
pub(crate) fn remove(directory: &Path, period: &[u8; 16]) {
    let Some(note) = Note::read(directory) else { return };
    // What cannot be removed is found to be of another life.
    if note.period == uuid_text(period) {
        let _ = fs::remove_file(note.path);
    }
    let _ = fs::remove_file(directory.join(CACHE));
}

/// The identity of the cache that a process of this period left, if it can be used.
pub(crate) fn identity(directory: &Path, uuid: &str, period: &[u8; 16]) -> Option<[u8; 16]> {
    let (store, boot_id) = (parse_uuid(uuid)?, shoal_host::boot_id().ok()?);
    let owner = Owner { store, boot_id, device_bytes: u64::MAX };
    StoreCache::left(directory, &owner, period, true).map(|left| left.identity)
}

/// Was there a cache that cannot be opened any more?
pub(crate) fn is_lost(directory: &Path, uuid: &str) -> bool {
    let Some(note) = Note::read(directory) else { return false };
    let Ok(boot_id) = shoal_host::boot_id() else { return true };
    let owner = Owner { store: parse_uuid(uuid).unwrap_or_default(), boot_id, device_bytes: u64::MAX };
    let opened = CacheFile::open(&note.path, true);
    opened.is_err() || opened.is_ok_and(|file| Cache::open(Arc::new(file), &owner).is_err())
}
