//! A store on simulated media: formatting, opening, checking. Every test of the file system begins here.
//!
//! Rules: everything is a function of the world's seed and of [`Boot`]; a power loss changes the boot's number, every
//! opening its count. The bulk device begins full of [`FOREIGN`] bytes, and trims either zero a range or leave it as it
//! was, as the contract allows: a read of an unwritten block returns bytes that no file ever held, or another file's.
//! Left out: what is done with a store and what it must hold; stores that change their size (`resize`).

pub mod counted;
mod salvaged;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shoal_check::{
    BulkData, BulkDevices, BulkFinder, BulkOpener, FoundDevice, ImageSource, OpenedDevice, Report, Source,
};
use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::BulkDeviceEntry;
use shoal_format::record::with_loss;
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_fs::{Caller, FormatOptions, Fs, Options, Parts};
use shoal_media::block::HeldPage;
use shoal_media::{
    BlockDevice, BlockGeometry, Completion, ImageFile, LogDevice, PersistentMemory, Request, WriteCache,
};
use shoal_region::Recovery;
use shoal_sim::{Random, SimClock, SimLog, SimMemory, SimMemoryKind, World};
use shoal_writeback::{Cache, Lifetime, Owner, Policy, Rule, WriteBack};

/// Byte that fills the bulk device before the first write.
pub const FOREIGN: u8 = 0xaa;

pub const CALLER: Caller = Caller { uid: 7, gid: 8, umask: 0o022, hold: false };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub kind: MemoryKind,
    /// The region is saved in images, too, though its memory survives a power loss.
    pub saved: bool,
    pub region_bytes: u64,
    pub ring_bytes: u64,
    /// 0: no bulk device.
    pub bulk_blocks: u64,
    /// Bytes.
    pub threshold: u64,
    /// A write-back cache that outlives the process is in front of the bulk device.
    pub cached: bool,
}

impl Default for Setup {
    /// Returns a setup with room for files of every length.
    fn default() -> Setup {
        let (kind, ring_bytes) = (MemoryKind::Battery, 4 << 20);
        Setup {
            kind,
            saved: false,
            region_bytes: 32 << 20,
            ring_bytes,
            bulk_blocks: 256,
            threshold: 1 << 20,
            cached: false,
        }
    }
}

impl Setup {
    /// Returns a setup of both tiers, each small enough to be copied and compared a hundred
    /// thousand times.
    pub fn two_tiers(kind: MemoryKind) -> Setup {
        Setup {
            kind,
            saved: false,
            region_bytes: 56 << 16,
            ring_bytes: 256 << 10,
            bulk_blocks: 48,
            threshold: 80 << 10,
            cached: false,
        }
    }

    /// Returns a setup of both tiers, with so few bulk blocks that another file soon gets the
    /// blocks that one gives up.
    pub fn tight(kind: MemoryKind) -> Setup {
        Setup { bulk_blocks: 9, ..Setup::two_tiers(kind) }
    }

    /// Returns a setup of both tiers, for `layouts`.
    pub fn layouts(kind: MemoryKind) -> Setup {
        Setup {
            kind,
            saved: false,
            region_bytes: 90 << 16,
            ring_bytes: 512 << 10,
            bulk_blocks: 24,
            threshold: 40_000,
            cached: false,
        }
    }

    /// Returns a setup of the region alone, for files so long that operations on them take several
    /// transactions there.
    pub fn region_only(kind: MemoryKind) -> Setup {
        Setup {
            kind,
            saved: false,
            region_bytes: 80 << 16,
            ring_bytes: 768 << 10,
            bulk_blocks: 0,
            threshold: 1 << 20,
            cached: false,
        }
    }
}

/// Which boot of the machine, and which opening of the store over all boots.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    pub boot: u8,
    pub opening: u64,
    /// Trims leave the blocks' bytes as they were.
    pub keeps_trimmed: bool,
}

impl Boot {
    pub fn first(keeps_trimmed: bool) -> Boot {
        Boot { boot: 1, opening: 1, keeps_trimmed }
    }

    pub fn after(self, power: bool) -> Boot {
        Boot { boot: self.boot + power as u8, opening: self.opening + 1, ..self }
    }
}

/// A call of a medium that is about to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    LogAppend,
    LogSync,
    /// A call of the bulk device, like the two that follow.
    Read,
    Write,
    Flush,
}

/// Called in the middle of operations, so that a test can do something there, or let them wait.
pub type Hook = Arc<dyn Fn(Moment) + Send + Sync>;

/// Observes the calls that media get.
#[derive(Clone, Default)]
pub struct Watch {
    /// Bytes that were trimmed and keep what they held.
    pub trimmed: Arc<AtomicU64>,
    pub hook: Option<Hook>,
}

impl Watch {
    fn call(&self, moment: Moment) {
        if let Some(hook) = &self.hook {
            hook(moment);
        }
    }
}

/// A log that calls the hook, and has no separate append for urgent records.
struct Log {
    log: Arc<SimLog>,
    watch: Watch,
}

impl LogDevice for Log {
    fn append(&self, position: u64, bytes: &[u8]) -> shoal_media::Result<()> {
        self.watch.call(Moment::LogAppend);
        self.log.append(position, bytes)
    }

    fn sync(&self) -> shoal_media::Result<()> {
        self.watch.call(Moment::LogSync);
        self.log.sync()
    }

    fn read(&self, position: u64, out: &mut [u8]) -> shoal_media::Result<usize> {
        self.log.read(position, out)
    }

    fn release(&self, position: u64) -> shoal_media::Result<()> {
        self.log.release(position)
    }
}

struct Bulk {
    /// The disk, or the cache in front of it.
    disk: Arc<dyn BlockDevice>,
    keeps_trimmed: bool,
    watch: Watch,
}

impl WriteCache for Bulk {
    fn held_for_ns(&self) -> u64 {
        self.disk.held_for_ns()
    }

    fn held_in(&self, at: u64, len: u64) -> u64 {
        self.disk.held_in(at, len)
    }

    fn flush_ranges(&self, ranges: &[(u64, u64)]) -> shoal_media::Result<()> {
        self.watch.call(Moment::Flush);
        self.disk.flush_ranges(ranges)
    }

    fn give_up(&self) {
        self.disk.give_up();
    }

    fn may_have_lost(&self, at: u64, len: u64) -> bool {
        self.disk.may_have_lost(at, len)
    }

    fn adopt(&self, continues: bool) {
        self.disk.adopt(continues);
    }

    fn to_absorb(&self, ranges: &[(u64, u64)], most: usize) -> Option<Vec<HeldPage>> {
        self.disk.write_cache()?.to_absorb(ranges, most)
    }

    fn absorbed(&self, pages: &[(u64, u64)]) {
        self.disk.write_cache().inspect(|cache| cache.absorbed(pages));
    }

    fn take_released(&self) -> Vec<u64> {
        self.disk.write_cache().map_or(Vec::new(), WriteCache::take_released)
    }

    fn belongs(&self, at: u64, len: u64, file: u64) {
        self.disk.belongs(at, len, file);
    }

    fn read_medium(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        self.disk.read_medium(at, out)
    }
}

impl BlockDevice for Bulk {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        self.disk.write_cache().map(|_| self as &dyn WriteCache)
    }

    fn geometry(&self) -> BlockGeometry {
        self.disk.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        match request {
            Request::Trim { len, .. } if self.keeps_trimmed => {
                self.watch.trimmed.fetch_add(len, Ordering::Relaxed);
                done(Ok(Vec::new()))
            }
            Request::Flush => {
                self.watch.call(Moment::Flush);
                self.disk.submit(Request::Flush, done);
            }
            other => self.disk.submit(other, done),
        }
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        self.watch.call(Moment::Read);
        self.disk.read_into(at, out)
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> shoal_media::Result<()> {
        self.watch.call(Moment::Write);
        self.disk.write_from(at, bytes)
    }
}

pub struct Store {
    pub setup: Setup,
    pub world: World,
    pub fs: Fs,
    pub recovery: Recovery,
    pub clock: Arc<SimClock>,
    pub boot: Boot,
}

pub fn parts(
    setup: Setup,
    world: &World,
    boot: Boot,
    watch: &Watch,
    fresh: bool,
    clock: &Arc<SimClock>,
) -> Result<Parts, String> {
    let mut nonce = [0; 16];
    Random::new(boot.opening << 8 | boot.boot as u64).fill(&mut nonce);
    let images = || -> [Arc<dyn ImageFile>; 2] { [world.image(0), world.image(1)] };
    let (memory, log, images): (Arc<dyn PersistentMemory>, _, _) = if setup.kind.has_ring() {
        (world.memory(0), None, setup.saved.then(images))
    } else {
        let images = images();
        let attached = match fresh {
            true => None,
            false => {
                let (newest, _, anchor) = shoal_region::newest_image(&images).map_err(|e| format!("images: {e}"))?;
                Some((world.image(newest), anchor.used_bytes.get().next_multiple_of(4096)))
            }
        };
        let log: Arc<dyn LogDevice> = match watch.hook {
            Some(_) => Arc::new(Log { log: world.log(0), watch: watch.clone() }),
            None => world.log(0),
        };
        let memory = SimMemory::resting(setup.region_bytes, attached, [world.image(0), world.image(1)]);
        (memory, Some(log), Some(images))
    };
    let mut boot_id = [boot.boot; 16];
    let mut disk: Option<Arc<dyn BlockDevice>> = None;
    if setup.bulk_blocks > 0 {
        disk = Some(world.disk(0));
    }
    if setup.cached && !fresh {
        let cache = cache(setup, world, boot);
        boot_id.iter_mut().zip(cache.identity()).for_each(|(byte, other)| *byte ^= other);
        // Only a flush makes the cache write back, so no crash state depends on the policy's
        // timing.
        let rule = Rule::of(Policy::Interval { age_ns: 30_000_000_000 });
        disk = disk.map(|disk| -> Arc<dyn BlockDevice> { Arc::new(WriteBack::new(disk, clock.clone(), rule, cache)) });
    }
    let region = shoal_region::Parts { memory, log, images, boot_id, nonce };
    let bulk = disk.map(|disk| -> Arc<dyn BlockDevice> {
        Arc::new(Bulk { disk, keeps_trimmed: boot.keeps_trimmed, watch: watch.clone() })
    });
    Ok(Parts { region, bulk, clock: clock.clone() })
}

/// Puts a further disk of a world behind a cache in its own memory, which lives and dies with that
/// of the first disk's cache.
pub fn behind_cache(world: &World, boot: Boot, disk: Arc<dyn BlockDevice>, memory: usize) -> Arc<dyn BlockDevice> {
    let memory = world.memory(memory);
    let owner = Owner { store: [6; 16], boot_id: [boot.boot; 16], device_bytes: disk.geometry().bytes };
    let cache = Cache::open(memory.clone(), &owner).unwrap_or_else(|_| {
        memory.zero(0, memory.len());
        Cache::create(memory, CACHE_BYTES, &owner, [boot.opening as u8; 16], Lifetime::Boot).expect("there is memory")
    });
    let rule = Rule::of(Policy::Interval { age_ns: 30_000_000_000 });
    Arc::new(WriteBack::new(disk, Arc::new(SimClock::new(0)), rule, cache))
}

/// Adds a memory for such a cache to a world.
pub fn add_cache_memory(world: &World) {
    world.add_memory(Cache::memory_bytes(CACHE_BYTES), SimMemoryKind::Battery);
}

/// Bytes of blocks that the cache holds at most.
const CACHE_BYTES: u64 = 1 << 20;

/// Opens the first disk's cache: the one that a process of this boot left, or a new one.
fn cache(setup: Setup, world: &World, boot: Boot) -> Cache {
    let memory = world.memory(usize::from(setup.kind.has_ring()));
    let owner = Owner { store: [5; 16], boot_id: [boot.boot; 16], device_bytes: setup.bulk_blocks * BULK_BLOCK };
    Cache::open(memory.clone(), &owner).unwrap_or_else(|_| {
        // The machine went down, and the cache's contents with it.
        memory.zero(0, memory.len());
        let mut identity = [0x80; 16];
        identity[..8].copy_from_slice(&(boot.opening << 8 | u64::from(boot.boot)).to_le_bytes());
        Cache::create(memory, CACHE_BYTES, &owner, identity, Lifetime::Boot).expect("there is memory")
    })
}

/// Returns the options that a store of this setup is formatted with.
pub fn format_options(setup: Setup, seed: u64) -> FormatOptions {
    let geometry = Geometry {
        memory_kind: setup.kind,
        uuid: [5; 16],
        region_bytes: setup.region_bytes,
        bulk_blocks: setup.bulk_blocks,
        ring_bytes: setup.ring_bytes,
        threshold: setup.threshold,
        hash_seed: seed,
        created_ns: 0,
    };
    FormatOptions { geometry, sums: true, root_mode: 0o755, root_uid: 0, root_gid: 0 }
}

/// Returns a new, empty store at rest.
pub fn format(setup: Setup, seed: u64) -> World {
    format_with(setup, seed, &format_options(setup, seed))
}

/// Like [`format()`], with other options.
pub fn format_with(setup: Setup, seed: u64, options: &FormatOptions) -> World {
    let world = World::new(seed);
    match setup.kind {
        MemoryKind::Logged => drop(world.add_log()),
        MemoryKind::Battery => drop(world.add_memory(setup.region_bytes, SimMemoryKind::Battery)),
        MemoryKind::Dax => drop(world.add_memory(setup.region_bytes, SimMemoryKind::Dax)),
    }
    if setup.cached {
        world.add_memory(Cache::memory_bytes(CACHE_BYTES), SimMemoryKind::Battery);
    }
    if setup.saved || !setup.kind.has_ring() {
        world.add_image();
        world.add_image();
    }
    if setup.bulk_blocks > 0 {
        world.add_used_disk(setup.bulk_blocks * BULK_BLOCK, FOREIGN);
    }
    let boot = Boot { boot: 1, opening: 0, keeps_trimmed: true };
    let clock = Arc::new(SimClock::new(1));
    let parts = parts(setup, &world, boot, &Watch::default(), true, &clock).expect("media of a new store");
    Fs::format(parts, options).expect("the store is formatted");
    world
}

/// Opens what is in `world`. The clock begins `boot.opening` hours after its epoch: recovery must not change times.
pub fn open(setup: Setup, world: World, boot: Boot) -> Result<Store, String> {
    let (fs, recovery, clock) = try_open(setup, &world, boot)?.map_err(|e| format!("opening: {e}"))?;
    Ok(Store { setup, world, fs, recovery, clock, boot })
}

/// Like [`open`], with the engine's own error.
pub fn try_open(setup: Setup, world: &World, boot: Boot) -> Result<Result<Opened, shoal_fs::Error>, String> {
    let clock = Arc::new(SimClock::new(boot.opening as i64 * 3_600_000_000_000));
    let opened = open_with(setup, world, boot, &Watch::default(), quiet(), &clock)?;
    Ok(opened.map(|(fs, recovery)| (fs, recovery, clock)))
}

pub type Opened = (Fs, Recovery, Arc<SimClock>);

/// Opens the store with a clock that goes on from one opening to the next.
pub fn open_at(
    setup: Setup,
    world: &World,
    boot: u8,
    opening: u32,
    clock: &Arc<SimClock>,
) -> Result<(Fs, Recovery), String> {
    let boot = Boot { boot, opening: opening.into(), keeps_trimmed: true };
    open_with(setup, world, boot, &Watch::default(), quiet(), clock)?.map_err(|e| format!("opening: {e}"))
}

/// Returns options with which reading a tree does not change it.
fn quiet() -> Options {
    Options { no_atime: true, ..Options::default() }
}

/// Opens the store. The outer error is a failure to find the newest image.
pub fn open_with(
    setup: Setup,
    world: &World,
    boot: Boot,
    watch: &Watch,
    mut options: Options,
    clock: &Arc<SimClock>,
) -> Result<Result<(Fs, Recovery), shoal_fs::Error>, String> {
    if setup.cached {
        // Openings without a cache use the plain id for this boot.
        options.earlier_boot_ids.push([boot.boot; 16]);
    }
    Ok(Fs::open(parts(setup, world, boot, watch, false, clock)?, options))
}

/// The bulk device as the checker reads it.
struct Disk(Arc<dyn BlockDevice>);

impl BulkData for Disk {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), String> {
        // A disk is read in whole sectors.
        let (from, to) = (at / 512 * 512, (at + out.len() as u64).next_multiple_of(512));
        let mut sectors = vec![0; (to - from) as usize];
        self.0.read_into(from, &mut sectors).map_err(|error| error.to_string())?;
        out.copy_from_slice(&sectors[(at - from) as usize..][..out.len()]);
        Ok(())
    }
}

/// Returns the first bulk device, for the checker and for a salvage.
pub fn bulk_data(world: &World) -> Box<dyn BulkData> {
    Box::new(Disk(world.disk(0)))
}

/// Returns a disk as the checker finds it.
pub fn found(disk: Arc<dyn BlockDevice>) -> FoundDevice {
    let geometry = disk.geometry();
    let (bytes, block_bytes) = (geometry.bytes, u64::from(geometry.block_bytes));
    FoundDevice { name: "disk".into(), opened: Ok(OpenedDevice { bytes, block_bytes, data: Box::new(Disk(disk)) }) }
}

/// Returns the disk of a list entry. The uuid of a further disk begins with its number.
pub fn disk_of(world: &World, entry: &BulkDeviceEntry) -> FoundDevice {
    found(world.disk(if entry.number == 0 { 0 } else { usize::from(entry.uuid[0]) }))
}

/// Returns the offline checker's report on a store at rest.
pub fn report(setup: Setup, world: &World, power_lost: bool) -> Result<Report, String> {
    with_source(setup, world, power_lost, report_on)
}

/// Like [`report`], with bulk devices that `find` finds.
pub fn report_with(setup: Setup, world: &World, find: &BulkFinder<'_>, restored: bool) -> Report {
    let judge = |source: Source<'_>| report_on(Source { devices: Some(BulkDevices { find, restored }), ..source });
    with_source(setup, world, false, judge).unwrap()
}

/// Hands the media of a store at rest to `judge`.
fn with_source(
    setup: Setup,
    world: &World,
    power_lost: bool,
    judge: impl FnOnce(Source<'_>) -> Result<Report, String>,
) -> Result<Report, String> {
    let loss_boots: Vec<_> = (1..=9).map(|boot| with_loss([boot; 16])).collect();
    let bulk_bytes = (setup.bulk_blocks > 0).then_some(setup.bulk_blocks * BULK_BLOCK);
    // A cache never holds a spilled payload that is in use: it is durable before anything refers to
    // it.
    let open = || Ok(bulk_data(world));
    let bulk: Option<&BulkOpener<'_>> = if setup.bulk_blocks > 0 { Some(&open) } else { None };
    // A mark in the cache is at most one ahead of the disk's.
    let find = |entry: &BulkDeviceEntry| disk_of(world, entry);
    let devices = Some(BulkDevices { find: &find, restored: false });
    if setup.kind.has_ring() {
        let memory = world.memory(0);
        let image = ImageSource::Memory(&*memory);
        judge(Source { image, log: None, bulk_bytes, power_lost, loss_boots: &loss_boots, sums: true, bulk, devices })
    } else {
        let (images, log) = ([world.image(0), world.image(1)], world.log(0));
        let image = ImageSource::Images([&*images[0], &*images[1]]);
        judge(Source {
            image,
            log: Some(&*log),
            bulk_bytes,
            power_lost,
            loss_boots: &loss_boots,
            sums: true,
            bulk,
            devices,
        })
    }
}

fn report_on(source: Source<'_>) -> Result<Report, String> {
    shoal_check::check(source, &mut |_| ()).map_err(|e| format!("check: {e}"))
}

/// Checks that the checker finds nothing wrong and that a salvage loses nothing.
pub fn check(setup: Setup, world: &World, power_lost: bool) -> Result<Report, String> {
    with_source(setup, world, power_lost, check_source)
}

/// Like [`check`], for these media.
pub fn check_source(source: Source<'_>) -> Result<Report, String> {
    let report = without_errors(report_on(source)?)?;
    salvaged::loses_nothing(&source, &report)?;
    Ok(report)
}

fn without_errors(report: Report) -> Result<Report, String> {
    if report.errors.is_empty() {
        return Ok(report);
    }
    let some: Vec<String> = report.errors.iter().take(8).map(|error| error.to_string()).collect();
    Err(format!("check finds {} errors: {}", report.errors.len(), some.join("; ")))
}
