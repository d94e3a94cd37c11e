//! The life of an open store: format, open, background work, shutdown.
//!
//! Owns: how a store is assembled from its media, and the pace of commits. Rules: data on the bulk
//! device is flushed before the record that declares it durable is committed, and that record is
//! committed before the log is synced; shutdown reclaims, settles, syncs and seals, in this order.
//! Left out: threads and timers (the adapter calls [`Upkeep::tick`] and [`Fs::checkpoint`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_bulk::{Backoff, Bulk, GivenDevice, OnBulkFailure, Room, RoomCache, SumLeaves, Unflushed};
use shoal_format::bulk_list::BULK_DEVICES_MAX;
use shoal_format::inode::{Inode, InodeSlot};
use shoal_format::superblock::{FEATURE_DEVICES, Geometry, ROOTS_AT, SUPERBLOCK_AT, Superblock};
use shoal_format::{BULK_BLOCK, PAGE};
use shoal_media::Clock;
use shoal_pack::{Method, ProfileFile};
use shoal_region::{Lsn, Recovery, Region};
use zerocopy::IntoBytes;

use crate::cold::dictionaries::Dictionaries;
use crate::cold::objects::Objects;
use crate::cold::spill::{SPILL_PERCENT, Spill};
use crate::damage::OnDamage;
use crate::data_lock::DataLocks;
use crate::inode::{InodeTable, load_roots};
use crate::locks::LockTable;
use crate::planted::{Bug, is_planted};
use crate::reading::AccessTimes;
use crate::refs::RefTable;
use crate::rooms::Upkeep;
use crate::{BulkDevice, Counts, Error, Fs, Ino, Result, namespace};

/// Parts of a store.
pub struct Parts {
    pub region: shoal_region::Parts,
    pub bulk: BulkDevice,
    pub clock: Arc<dyn Clock>,
}

/// Receives the period that the log named last; `None` if power was lost.
pub type OnPeriod = Arc<dyn Fn(Option<&[u8; 16]>) + Send + Sync>;

/// Share of one processor that packing may use while others commit, unless an option says otherwise
/// (percent).
pub const PACK_LOAD: u32 = 10;

/// How an open store behaves.
#[derive(Clone)]
pub struct Options {
    pub read_only: bool,
    /// Never update access times, until [`Fs::set_access_times`] says otherwise.
    pub no_atime: bool,
    /// The caller also stamps files, with the kernel's clock. Files are stamped with that clock
    /// here, too, so that no time goes back.
    pub kernel_times: bool,
    /// The kernel sees no extended attributes, so a change of a file drops its capabilities
    /// (`security.capability`) here.
    pub drops_capabilities: bool,
    /// An operation is durable at most this long after it returns (`logged` memory).
    pub commit_age_ms: u64,
    /// A checkpoint is due when recovery would replay more than this (bytes).
    pub checkpoint_log_bytes: u64,
    /// Look through all inodes even after a clean shutdown, and finish interrupted operations.
    pub recover: bool,
    /// Called once for every inode found damaged.
    pub on_damage: Option<OnDamage>,
    /// Returns what the file systems under the store have left; none: they always have enough.
    pub room: Option<Room>,
    /// Data and inodes that have not changed for this long are packed; none: nothing is packed.
    pub pack_age: Option<Duration>,
    /// Share of one processor that packing may use while others commit (percent). The share grows
    /// as memory fills; 0: packing uses idle time alone.
    pub pack_load: u32,
    /// Small files spill to bulk storage, if there is any, once this much of the memory is in use
    /// (percent); 0: never.
    pub spill_percent: u8,
    /// Most bytes of the region that this process may use, if that is less than the layout or the
    /// store's own limit allows.
    pub region_bytes_max: Option<u64>,
    /// Files longer than this are large, unless they or their directories say otherwise (bytes);
    /// none: the threshold that the store was formatted with.
    pub threshold: Option<u64>,
    /// Files with an execute bit are large only if they are longer than this as well (bytes).
    pub executables: u64,
    /// Pack inodes and directories, too.
    pub pack_inodes: bool,
    /// How file data is packed, unless a file or its directory says otherwise.
    pub method: Method,
    /// Names that earlier openings had for the present boot: a log that names one of them saw no
    /// power loss either. The second half of a name comes from the place of the first bulk device.
    /// If the list of devices knows that place, the first half alone counts.
    pub earlier_boot_ids: Vec<[u8; 16]>,
    /// Called before anything is read from a device.
    pub on_period: Option<OnPeriod>,
    /// The device in [`Parts`] takes its room from the host that `room` queries.
    pub bulk_on_host: bool,
    /// The host's number for the place of that device; 0: on no host.
    pub bulk_place: u64,
    /// The bulk devices of a store that lists several; the first one may be in [`Parts`].
    pub bulk_devices: Vec<GivenDevice>,
    /// Open a store that lists several bulk devices even if some of them are missing.
    pub degraded: bool,
    /// Whether to keep checksums of what is on the bulk devices; none: as the store has it.
    pub sums: Option<bool>,
    /// The region stands for one whose memory was lost: the bulk devices may be newer than it.
    pub region_restored: bool,
    /// Called for bulk devices that are missing or fail.
    pub on_bulk_failure: Option<OnBulkFailure>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            no_atime: false,
            kernel_times: false,
            drops_capabilities: false,
            commit_age_ms: 1000,
            checkpoint_log_bytes: 256 << 20,
            recover: false,
            on_damage: None,
            room: None,
            pack_age: Some(Duration::from_secs(30)),
            pack_load: PACK_LOAD,
            spill_percent: SPILL_PERCENT,
            region_bytes_max: None,
            threshold: None,
            executables: 0,
            pack_inodes: true,
            method: Method::default(),
            earlier_boot_ids: Vec::new(),
            on_period: None,
            bulk_on_host: true,
            bulk_place: 0,
            bulk_devices: Vec::new(),
            degraded: false,
            sums: None,
            region_restored: false,
            on_bulk_failure: None,
        }
    }
}

/// How a new store is formatted.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    pub geometry: Geometry,
    /// Keep checksums of what is on the bulk device.
    pub sums: bool,
    pub root_mode: u32,
    pub root_uid: u32,
    pub root_gid: u32,
}

/// Longest time that the log's sync by age waits for new contents of files that were truncated and
/// rewritten (ns).
const REPLACED_PATIENCE_NS: u64 = 1_000_000_000;

/// Time between flushes of data that a device that holds writes back has let go (ns).
const SETTLE_HELD_NS: u64 = 2_000_000_000;

/// Time between searches for leaves of checksums that can be closed (ns).
const CLOSE_SUMS_NS: u64 = 15_000_000_000;

/// The region's memory is let go of when nobody has committed for this long, at most this often
/// (ns), and only if it is at least so much (bytes), and at least one part in so many of what is in
/// use.
const REST_IDLE_NS: u64 = 5_000_000_000;
const REST_PAUSE_NS: u64 = 60_000_000_000;
const REST_BYTES_MIN: u64 = 16 << 20;
const REST_SHARE: u64 = 8;

/// Commits that are not durable.
#[derive(Clone, Copy)]
struct Pending {
    /// End of the log when they were noticed.
    end: Lsn,
    since_ns: u64,
}

/// How far a device that holds writes back was at one time.
struct WriteMark {
    at_ns: u64,
    /// Number of the last write.
    last: u64,
}

/// When the region's memory was let go of, and how long nobody has committed since.
#[derive(Default)]
struct RestPace {
    seen: Lsn,
    since_ns: u64,
    /// It was tried since the last commit.
    is_done: bool,
    last_ns: Option<u64>,
}

/// The pace of commits: what is due, and since when.
#[derive(Default)]
pub(crate) struct Pace {
    pending: Option<Pending>,
    /// For each bulk device, when its unsettled data was first noticed; if it holds writes back,
    /// when data there was last settled.
    bulk_since: [Option<u64>; BULK_DEVICES_MAX],
    /// For each device that holds writes back: how far it was at some times.
    marks: [VecDeque<WriteMark>; BULK_DEVICES_MAX],
    /// The log is synced at once up to here: it holds the records that make flushed data count.
    settled: Lsn,
    /// When leaves of checksums were last looked at, for each bulk device.
    sums_at: [u64; BULK_DEVICES_MAX],
    /// Back-off after checkpoints that found no room.
    checkpoints: Backoff,
    rest: RestPace,
}

impl Fs {
    /// Makes a new, empty store on empty media and seals it.
    pub fn format(parts: Parts, options: &FormatOptions) -> Result<()> {
        Fs::format_with_profiles(parts, options, None)
    }

    /// Like [`Fs::format`], with `profiles` for packing the inodes; `None`: the built-in ones.
    /// Fails with [`Error::Invalid`] if no store can have these profiles.
    pub fn format_with_profiles(parts: Parts, options: &FormatOptions, profiles: Option<&ProfileFile>) -> Result<()> {
        let region = Region::create(options.geometry, parts.region)?;
        let sums = Some(options.sums);
        let fs = Fs::assemble(
            region,
            parts.bulk,
            parts.clock,
            Options { sums, ..Options::default() },
            &Recovery::default(),
        )?;
        fs.upkeep().arrange_sums()?;
        namespace::make_root(&fs, options.root_mode, options.root_uid, options.root_gid)?;
        if let Some(bulk) = &fs.bulk {
            bulk.devices().mark_all(&fs.region)?;
        }
        if let Some(profiles) = profiles
            && !fs.compacting().set_inode_profiles(profiles)?
        {
            return Err(Error::Invalid);
        }
        fs.shutdown()
    }

    /// Opens a store: replays its log and, after a crash, finishes interrupted operations.
    pub fn open(parts: Parts, mut options: Options) -> Result<(Fs, Recovery)> {
        // Checked before the region is opened, which writes: a refused store stays as it was.
        let mut page = [0; PAGE as usize];
        if parts.region.memory.len() >= PAGE {
            parts.region.memory.read(SUPERBLOCK_AT, &mut page);
        }
        let superblock = Superblock::decode(&page)?;
        // The first device of a list has the store's own identity. If the list has other devices,
        // only the region knows whether the first one still belongs to it.
        let has_others = options.bulk_devices.iter().any(|given| given.uuid != superblock.uuid);
        if superblock.features & FEATURE_DEVICES == 0 || !has_others && !options.degraded {
            Bulk::check(parts.bulk.as_deref(), superblock.bulk_blocks)?;
        }
        let (nonce, memory) = (parts.region.nonce, parts.region.memory.clone());
        let is_present = |named: &[u8; 16]| {
            let earlier = &options.earlier_boot_ids;
            earlier.contains(named)
                || earlier.iter().any(|earlier| earlier[..8] == named[..8])
                    && shoal_bulk::knows_first_place(&*memory, &superblock)
        };
        let (region, mut recovery) = Region::open_unsettled(parts.region, options.read_only, &is_present)?;
        // A device with a cache in the process that died has lost what a power loss would have lost.
        let given = options.bulk_devices.iter().filter_map(|given| given.device.as_ref().ok());
        let devices: Vec<_> = given.chain(&parts.bulk).collect();
        // After a clean end only data on devices that were away is in doubt, and the list names
        // these devices.
        recovery.power_lost &= !recovery.unchanged;
        recovery.power_lost |= !recovery.unchanged && !devices.iter().all(|bulk| bulk.geometry().survives_process);
        // Called before anything is read from the devices: cached blocks of another life must not
        // show. After a clean end a cache holds what could not be written to a device that was away
        // or failed.
        if let Some(on_period) = options.on_period.take() {
            on_period((!recovery.power_lost).then_some(&recovery.boot_id));
        }
        let continues = recovery.continues && !recovery.power_lost;
        devices.iter().for_each(|bulk| bulk.adopt(continues));
        let fs = Fs::assemble(region, parts.bulk, parts.clock, options, &recovery)?;
        fs.upkeep().load_limits()?;
        if let Some(bulk) = &fs.bulk {
            let unflushed = if continues { Unflushed::Kept } else { Unflushed::MayBeLost };
            bulk.restore_absorbed(&fs.region, unflushed)?;
        }
        let root = fs.load(crate::ROOT)?;
        if !root.is_dir() {
            return Err(Error::Corrupt("the root is no directory; run `shoal check`".into()));
        }
        let is_settled = fs.bulk.as_ref().is_none_or(|bulk| !bulk.devices().has_unsettled());
        if recovery.clean && !fs.options.recover && is_settled {
            let roots = load_roots(&fs.region)?;
            fs.counts.inodes.store(roots.inodes.get(), Relaxed);
            fs.counts.directories.store(roots.directories.get(), Relaxed);
            fs.counts.large_files.store(roots.large_files.get(), Relaxed);
        } else {
            fs.upkeep().recover()?;
        }
        if let Some(bulk) = fs.bulk.as_ref().filter(|_| !fs.region.is_read_only()) {
            bulk.devices().mark_all(&fs.region)?;
        }
        // Only now: a crash before this must find the power loss again, because extents may still be marked NEW.
        fs.region.note_repaired(nonce)?;
        fs.upkeep().arrange_sums()?;
        Ok((fs, recovery))
    }

    fn assemble(
        region: Region,
        bulk: BulkDevice,
        clock: Arc<dyn Clock>,
        mut options: Options,
        recovery: &Recovery,
    ) -> Result<Fs> {
        let only = (bulk, options.bulk_place);
        let bulk = if region.superblock().bulk_blocks > 0 { Some(Bulk::load(&region)?) } else { None };
        let room = options.room.clone().map(|room| Arc::new(RoomCache::new(room, clock.clone())));
        let on_host: &[u32] = if options.bulk_on_host { &[0] } else { &[] };
        let bulk = bulk.map(|bulk| bulk.with_room(room.clone(), on_host).tells(options.on_bulk_failure.clone()));
        let bulk = bulk.map(|bulk| bulk.restored(options.region_restored));
        if let Some(bulk) = &bulk {
            // The options do not keep the devices: a device that is opened again must have no other
            // user.
            let devices = std::mem::take(&mut options.bulk_devices);
            bulk.devices().attach(&region, &devices, only, options.degraded, recovery)?;
            bulk.load_sums(&region)?;
        }
        region.set_clock(clock.clone());
        let table = InodeTable::load(&region, options.on_damage.clone())?;
        let access_times = if options.no_atime { AccessTimes::Never } else { AccessTimes::Relative };
        let dictionaries =
            Dictionaries::load(&region, &load_roots(&region)?, &|finding| table.damage.tell_of_tables(finding));
        Ok(Fs {
            room,
            removals: Default::default(),
            given_back: Default::default(),
            threshold: AtomicU64::new(options.threshold.unwrap_or(region.superblock().threshold)),
            access_times: AtomicU8::new(access_times as u8),
            packing: table.packing().clone(),
            table,
            locks: LockTable::new(),
            data_locks: DataLocks::new(),
            gaps: Default::default(),
            refs: RefTable::new(),
            objects: Objects::new(dictionaries),
            packer: Default::default(),
            packs_on: Default::default(),
            idle: Default::default(),
            forecast: Default::default(),
            spill: Spill::load(&region, options.spill_percent)?,
            bulk,
            clock,
            options,
            power_lost: recovery.power_lost,
            rename: Mutex::new(()),
            pace: Mutex::default(),
            compactor: Mutex::default(),
            inode_packer: Mutex::default(),
            counts: Counts::default(),
            orphans: Mutex::default(),
            noted: Mutex::default(),
            region,
        })
    }

    /// Returns the bulk device that an fsync of the file has to wait for first.
    pub fn waits_on(&self, ino: Ino) -> u32 {
        self.bulk.as_ref().map_or(0, |bulk| bulk.waits_on(ino))
    }

    /// Writes the region into the older image while operations run. `battery` memory is saved as it
    /// stands, and operations wait.
    pub fn checkpoint(&self) -> Result<()> {
        let outcome = self.upkeep().write_checkpoint();
        let lacks_room = matches!(outcome, Err(Error::NoSpace(_)));
        self.pace.lock().checkpoints.note(lacks_room, self.clock.monotonic_ns());
        outcome
    }

    /// Makes everything done before the call durable.
    pub fn sync(&self) -> Result<()> {
        if self.region.is_read_only() {
            return Ok(());
        }
        self.writable()?;
        if !is_planted(Bug::SyncUnpromised) {
            // Promise before the search for what to settle: data that is in the region now does not
            // leave it unflushed.
            self.region.promise();
        }
        if is_planted(Bug::SettleLast) {
            self.region.sync()?;
            return self.data().settle_new();
        }
        self.data().settle_new()?;
        Ok(self.region.sync()?)
    }

    /// Ends the store's life in this process; no operation may run any more. Reclaims inodes that
    /// only the kernel held, makes everything durable and seals the store as clean.
    pub fn shutdown(&self) -> Result<()> {
        if self.region.is_read_only() {
            return Ok(());
        }
        self.writable()?;
        self.refs.clear();
        // Damage in one inode must not cost the others their last second.
        let reclaimed = self.upkeep().reclaim_orphans();
        self.data().settle_new()?;
        self.region.sync()?;
        reclaimed?;
        self.upkeep().close_all_sums()?;
        if let Some(bulk) = &self.bulk {
            bulk.reclaim(&self.region)?;
            bulk.free_areas(&self.region)?;
            bulk.devices().note_unsettled(&self.region)?;
        }
        let mut tx = self.region.begin_reclaim();
        let mut roots = load_roots(&tx)?;
        roots.inodes = self.counts.inodes.load(Relaxed).into();
        roots.directories = self.counts.directories.load(Relaxed).into();
        roots.large_files = self.counts.large_files.load(Relaxed).into();
        tx.write(ROOTS_AT, roots.as_bytes())?;
        tx.commit()?;
        self.region.shutdown()?;
        match &self.bulk {
            Some(bulk) => Ok(bulk.saved_finally(&self.region)?),
            None => Ok(()),
        }
    }

    /// Calls `each` for every inode in use.
    pub(crate) fn for_each_inode(&self, each: &mut dyn FnMut(Ino, Inode)) -> Result<()> {
        for block in 0..self.table.blocks() {
            self.table.for_block(&self.region, block, &mut |ino, slot| {
                if let InodeSlot::Used(inode) = slot {
                    each(ino, inode);
                }
            })?;
        }
        Ok(())
    }
}

impl<'a> Upkeep<'a> {
    /// Starts or stops keeping checksums of bulk storage, as the options say.
    fn arrange_sums(self) -> Result<()> {
        match &self.fs.bulk {
            Some(bulk) if !self.fs.region.is_read_only() => {
                Ok(bulk.arrange_sums(&self.fs.region, self.fs.options.sums, |_| true)?)
            }
            _ => Ok(()),
        }
    }

    /// Closes every leaf of checksums that a flush has covered.
    fn close_all_sums(self) -> Result<()> {
        let Some(bulk) = &self.fs.bulk else { return Ok(()) };
        Ok(bulk
            .numbers()
            .into_iter()
            .try_for_each(|number| bulk.close_sums(&self.fs.region, number, SumLeaves::Covered))?)
    }

    /// Does the background work of a mounted store: commits by age and frees bulk space. Meant to
    /// be called ten times a second. Checkpoints are left to [`Fs::checkpoint`], which takes
    /// longer.
    ///
    /// A caller with threads gives each device its own, and calls [`Upkeep::tick_bulk`] in one and
    /// [`Upkeep::tick_log`] in another: a bulk device that takes seconds for a flush must not delay
    /// the log.
    pub fn tick(self) -> Result<()> {
        self.settle_by_age()?;
        self.tick_log()?;
        self.reclaim_bulk()
    }

    /// Does the bulk devices' share of [`Upkeep::tick`].
    pub fn tick_bulk(self) -> Result<()> {
        self.settle_by_age()?;
        self.reclaim_bulk()
    }

    /// Does one bulk device's share of [`Upkeep::tick_bulk`], without waiting for any other device.
    pub fn tick_bulk_device(self, number: u32) -> Result<()> {
        self.settle_device_by_age(number)?;
        self.close_sums_by_age(number)?;
        if let Some(bulk) = &self.fs.bulk {
            bulk.reclaim_on(&self.fs.region, number);
        }
        Ok(())
    }

    /// Returns the numbers of the bulk devices.
    pub fn bulk_numbers(self) -> Vec<u32> {
        self.fs.bulk.as_ref().map(Bulk::numbers).unwrap_or_default()
    }

    fn reclaim_bulk(self) -> Result<()> {
        self.fs.bulk.as_ref().map_or(Ok(()), |bulk| Ok(bulk.reclaim(&self.fs.region)?))
    }

    /// Does the log's share of [`Upkeep::tick`]. Never waits for the bulk device.
    pub fn tick_log(self) -> Result<()> {
        let outcome = self.sync_by_age();
        // Callers that wait get their answer from a failed store, too.
        self.fs.region.sync_waiting()?;
        outcome
    }

    /// Returns for how long the oldest commit that is not durable has been due; `None` if none is
    /// due.
    fn log_overdue_ns(self, now: u64) -> Option<u64> {
        let mut pace = self.fs.pace.lock();
        let (last, durable) = (self.fs.region.last_lsn(), self.fs.region.durable_lsn());
        if pace.pending.is_some_and(|pending| durable >= pending.end) {
            pace.pending = None;
        }
        if pace.pending.is_none() && last > durable {
            pace.pending = Some(Pending { end: last, since_ns: now });
        }
        // The records that clear NEW are in the log, but not durable: after a power loss the
        // flushed data would read as zeros.
        if pace.settled > durable {
            return Some(u64::MAX);
        }
        pace.pending.and_then(|pending| self.overdue_ns(now, pending.since_ns))
    }

    fn sync_by_age(self) -> Result<()> {
        self.fs.writable()?;
        let Some(overdue_ns) = self.log_overdue_ns(self.fs.clock.monotonic_ns()) else { return Ok(()) };
        if overdue_ns < REPLACED_PATIENCE_NS && self.fs.data().has_replaced() {
            // The bulk device's tick settles these files: a truncation should not become durable
            // before the contents that replaced the old ones. Everybody else's records wait with
            // it, so the wait is short.
            return Ok(());
        }
        Ok(self.fs.region.sync()?)
    }

    fn settle_by_age(self) -> Result<()> {
        self.bulk_numbers().into_iter().try_for_each(|number| {
            self.settle_device_by_age(number)?;
            self.close_sums_by_age(number)
        })
    }

    /// Closes a leaf of checksums once two calls in a row find no write over its data.
    fn close_sums_by_age(self, number: u32) -> Result<()> {
        let Some(bulk) = &self.fs.bulk else { return Ok(()) };
        let now = self.fs.clock.monotonic_ns();
        {
            let last = &mut self.fs.pace.lock().sums_at[number as usize];
            if now < *last + CLOSE_SUMS_NS {
                return Ok(());
            }
            *last = now;
        }
        Ok(bulk.close_sums(&self.fs.region, number, SumLeaves::Idle)?)
    }

    /// Flushes a bulk device and clears NEW if the oldest unsettled data there is old enough, or if
    /// the log that refers to it is due. The log's next tick makes the records that clear NEW
    /// durable.
    fn settle_device_by_age(self, number: u32) -> Result<()> {
        self.fs.writable()?;
        if let Some(error) = self.fs.noted.lock().take() {
            return Err(error);
        }
        let now = self.fs.clock.monotonic_ns();
        let log_due = self.log_overdue_ns(now).is_some();
        if let Some(bulk) = &self.fs.bulk
            && let Some(held_ns) = bulk.held_ns(number)
        {
            return self.settle_held(bulk, number, held_ns, now, log_due);
        }
        let has_new = self.fs.bulk.as_ref().is_some_and(|bulk| bulk.has_new_on(number));
        {
            let mut pace = self.fs.pace.lock();
            let since = &mut pace.bulk_since[number as usize];
            if since.is_none() && has_new {
                *since = Some(now);
            }
            let bulk_due = since.is_some_and(|since| self.overdue_ns(now, since).is_some());
            let due = bulk_due || log_due && has_new;
            if !due {
                return Ok(());
            }
            *since = None;
        }
        // Promise before settling: data that leaves the region from now on is flushed first.
        if !is_planted(Bug::TickUnpromised) {
            self.fs.region.promise();
        }
        self.fs.data().settle_device(number)?;
        self.fs.pace.lock().settled = self.fs.region.last_lsn();
        Ok(())
    }

    /// Does the same for a device that holds writes back. Settles only data that the device no
    /// longer holds, and contents that replaced truncated ones.
    fn settle_held(self, bulk: &Bulk, number: u32, held_ns: u64, now: u64, log_due: bool) -> Result<()> {
        if log_due {
            // Promise first, as above.
            self.fs.region.promise();
            if self.fs.data().settle_replaced_on(number)? {
                self.fs.pace.lock().settled = self.fs.region.last_lsn();
            }
        }
        // Later writes begin new ranges, so that a file written without pause also has ranges from
        // before the mark.
        let written = bulk.note_writes_on(number);
        let aged = {
            let mut pace = self.fs.pace.lock();
            let since = &mut pace.bulk_since[number as usize];
            if since.is_some_and(|since| now < since + SETTLE_HELD_NS) {
                return Ok(());
            }
            *since = Some(now);
            let marks = &mut pace.marks[number as usize];
            if marks.back().is_none_or(|mark| mark.last < written) {
                marks.push_back(WriteMark { at_ns: now, last: written });
            }
            // A write gets its number when the device takes it. The device no longer holds it
            // `held_ns` later, plus a margin.
            let until = now.saturating_sub(held_ns + SETTLE_HELD_NS);
            let mut aged = 0;
            while let Some(mark) = marks.front().filter(|mark| mark.at_ns <= until) {
                aged = mark.last;
                marks.pop_front();
            }
            if aged > 0 {
                marks.push_front(WriteMark { at_ns: 0, last: aged });
            }
            aged
        };
        if self.fs.data().settle_aged(number, aged)? {
            self.fs.pace.lock().settled = self.fs.region.last_lsn();
        }
        bulk.provide_area(&self.fs.region)?;
        bulk.clean_absorbed(&self.fs.region, number)?;
        Ok(())
    }

    /// Returns for how long something that has waited since `since` has been due; `None` if it is
    /// not due.
    fn overdue_ns(self, now: u64, since: u64) -> Option<u64> {
        // A tick may come late by its own period: act one period early.
        (now.saturating_sub(since) + 150_000_000).checked_sub(self.fs.options.commit_age_ms * 1_000_000)
    }

    /// Returns whether a checkpoint is worth its work now. A checkpoint that found no room is not
    /// retried at once, because each attempt writes a part of an image.
    pub fn checkpoint_due(self) -> bool {
        if self.fs.writable().is_err() || self.fs.pace.lock().checkpoints.waits(self.fs.clock.monotonic_ns()) {
            return false;
        }
        if self.fs.region.superblock().memory_kind.has_ring() {
            // With a ring, a checkpoint is due only to release the blocks that the saved image
            // holds, before a writer has to wait for them.
            let held = self.fs.bulk.as_ref().map_or(0, Bulk::held_blocks) * BULK_BLOCK;
            return held > 0 && held > self.fs.usage().bulk_free / 4;
        }
        self.fs.region.log_bytes() > self.fs.options.checkpoint_log_bytes || self.fs.region.wants_checkpoint()
    }

    /// Returns whether checkpoints have failed for lack of room since the last successful one.
    pub fn checkpoint_lacks_room(self) -> bool {
        self.fs.pace.lock().checkpoints.is_failing()
    }

    /// Writes a checkpoint and lets go of the region's memory, which is read from the new image again,
    /// once nobody has committed for a while and that frees much memory. Returns whether it did.
    pub fn rest(self) -> Result<bool> {
        if self.fs.writable().is_err() || self.fs.region.superblock().memory_kind.has_ring() {
            return Ok(false);
        }
        let (now, last) = (self.fs.clock.monotonic_ns(), self.fs.region.last_lsn());
        {
            let rest = &mut self.fs.pace.lock().rest;
            if rest.seen != last {
                (rest.seen, rest.since_ns, rest.is_done) = (last, now, false);
            }
            let is_early =
                now < rest.since_ns + REST_IDLE_NS || rest.last_ns.is_some_and(|at| now < at + REST_PAUSE_NS);
            if rest.is_done || is_early || !self.fs.cooling().has_packed() {
                return Ok(false);
            }
            rest.is_done = true;
        }
        let used = self.fs.usage().region_used;
        if self.fs.region.private_bytes().is_none_or(|bytes| bytes < REST_BYTES_MIN.max(used / REST_SHARE)) {
            return Ok(false);
        }
        self.fs.pace.lock().rest.last_ns = Some(now);
        match self.fs.checkpoint() {
            // Nothing is wrong: the log goes on.
            Err(Error::NoSpace(_)) => Ok(false),
            outcome => outcome.and_then(|()| Ok(self.fs.region.rest()?)),
        }
    }

    fn write_checkpoint(self) -> Result<()> {
        match &self.fs.bulk {
            Some(bulk) if self.fs.region.superblock().memory_kind.has_ring() => {
                // Files written before the call are in the image with their data.
                self.fs.data().settle_new()?;
                Ok(bulk.save(&self.fs.region)?)
            }
            _ => {
                // The checkpoint makes the log durable, so settle first: no truncation may be
                // durable without the contents that followed it. Promise before that: data that
                // leaves the region meanwhile is flushed first.
                self.fs.region.promise();
                self.fs.data().settle_replaced()?;
                Ok(self.fs.region.checkpoint()?)
            }
        }
    }
}
