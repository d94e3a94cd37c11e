//! The life of an open store: format, open, background work, shutdown.
//!
//! Owns: how a store is assembled from its media, and the pace of commits. Rules: data on the bulk device are flushed before the
//! record that calls them durable, that record before the log's sync; shutdown reclaims, settles, syncs and seals in
//! this order. Left out: threads and timers (the adapter calls [`Fs::tick`] and [`Fs::checkpoint`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use shoal_format::bulk_list::BULK_DEVICES_MAX;
use shoal_format::inode::{Inode, InodeSlot};
use shoal_format::superblock::{FEATURE_DEVICES, Geometry, ROOTS_AT, SUPERBLOCK_AT, Superblock};
use shoal_format::{BULK_BLOCK, PAGE};
use shoal_media::Clock;
use shoal_pack::{Method, ProfileFile};
use shoal_region::{Lsn, Recovery, Region};
use zerocopy::IntoBytes;

use crate::bulk::{Bulk, GivenDevice, OnBulkFailure};
use crate::damage::OnDamage;
use crate::data_lock::DataLocks;
use crate::dictionaries::Dictionaries;
use crate::file::AccessTimes;
use crate::host_room::{Backoff, RoomCache};
use crate::inode::{InodeTable, load_roots};
use crate::locks::LockTable;
use crate::objects::Objects;
use crate::planted::{Bug, is_planted};
use crate::refs::RefTable;
use crate::spill::{SPILL_PERCENT, Spill};
use crate::{BulkDevice, Counts, Error, Fs, Ino, Result, namespace};

/// Parts of a store.
pub struct Parts {
    pub region: shoal_region::Parts,
    pub bulk: BulkDevice,
    pub clock: Arc<dyn Clock>,
}

pub use crate::host_room::{HostRoom, Room};

/// Is told in which period a store was cut off; `None`: it was not, or power was lost.
pub type OnPeriod = Arc<dyn Fn(Option<&[u8; 16]>) + Send + Sync>;

/// The share of one processor that packing may use beside others, unless an option says otherwise (percent).
pub const PACK_LOAD: u32 = 10;

/// How an open store behaves.
#[derive(Clone)]
pub struct Options {
    pub read_only: bool,
    /// Never update access times, until [`Fs::set_access_times`] says otherwise.
    pub no_atime: bool,
    /// The caller stamps files, too, with the kernel's clock: so are files stamped here, and no time goes back.
    pub kernel_times: bool,
    /// The kernel sees no extended attributes: a change of a file drops its capabilities (`security.capability`) here.
    pub drops_capabilities: bool,
    /// An operation is durable at the latest this long after it returned (`logged` memory).
    pub commit_age_ms: u64,
    /// A checkpoint is due when recovery would replay more than this (bytes).
    pub checkpoint_log_bytes: u64,
    /// Look through all inodes also after a clean shutdown, and finish what is half-done.
    pub recover: bool,
    /// Is told of every inode found damaged, once.
    pub on_damage: Option<OnDamage>,
    /// Asks what the file systems under the store have left; none: they always have enough.
    pub room: Option<Room>,
    /// What has not changed for this long is packed; none: nothing is.
    pub pack_age: Option<Duration>,
    /// Packing may use this share of one processor while others commit (percent), more of it as memory fills; 0: idle time alone.
    pub pack_load: u32,
    /// From this much of the memory on small files spill to bulk storage, where there is some (percent); 0: never.
    pub spill_percent: u8,
    /// Most bytes of the region that this process may use, where that is less than the layout or a limit of the store has.
    pub region_bytes_max: Option<u64>,
    /// Files longer than this are large, where neither they nor their directories say otherwise (bytes); none: as the store was
    /// formatted.
    pub threshold: Option<u64>,
    /// Inodes and directories are packed, too.
    pub pack_inodes: bool,
    /// How files' data are packed, in directories that say nothing else.
    pub method: Method,
    /// Earlier openings' names for the present boot: a log that names one of them saw no power loss either. The second half of a name is
    /// from the place of the first bulk device; where the list of devices knows that place, the first half alone counts.
    pub earlier_boot_ids: Vec<[u8; 16]>,
    /// Is told before anything is read from a device.
    pub on_period: Option<OnPeriod>,
    /// The device in [`Parts`] takes its room from the host that `room` asks.
    pub bulk_on_host: bool,
    /// The host's number for where that device is; 0: on no host.
    pub bulk_place: u64,
    /// The bulk devices of a store that lists several; the first one may be in [`Parts`].
    pub bulk_devices: Vec<GivenDevice>,
    /// Open a store that lists several bulk devices without those that are missing.
    pub degraded: bool,
    /// Keep checksums of what is on the bulk devices, or none; by default as the store has it.
    pub sums: Option<bool>,
    /// What is opened stands for a region whose memory was lost: the bulk devices may be of a later time than it.
    pub region_restored: bool,
    /// Is told of bulk devices that are missing or fail.
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

/// The root directory of a new store.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    pub geometry: Geometry,
    /// Keep checksums of what is on the bulk device.
    pub sums: bool,
    pub root_mode: u32,
    pub root_uid: u32,
    pub root_gid: u32,
}

/// The log's sync by age waits for new contents of files that were cut off and written again, for at most so long.
const REPLACED_PATIENCE_NS: u64 = 1_000_000_000;

/// Time between two flushes of what a device that holds writes back has let go (ns).
const SETTLE_HELD_NS: u64 = 2_000_000_000;

/// Time between two looks for leaves of checksums that can be closed (ns).
const CLOSE_SUMS_NS: u64 = 15_000_000_000;

/// When something not yet durable was first noticed.
#[derive(Default)]
pub(crate) struct Pace {
    pending: Option<(Lsn, u64)>,
    /// For each bulk device.
    bulk_since: [Option<u64>; BULK_DEVICES_MAX],
    /// For each device that holds writes back the number of its last write at some times.
    marks: [VecDeque<(u64, u64)>; BULK_DEVICES_MAX],
    /// Up to here the log holds what makes flushed data count: it is synced at once.
    settled: Lsn,
    /// When leaves of checksums were last looked at, for each bulk device.
    sums_at: [u64; BULK_DEVICES_MAX],
    /// Checkpoints that found no room, one after the other.
    checkpoints: Backoff,
}

impl Fs {
    /// Makes a new, empty store on empty media and seals it.
    pub fn format(parts: Parts, options: &FormatOptions) -> Result<()> {
        Fs::format_with_profiles(parts, options, None)
    }

    /// The same. `profiles` are those that its inodes are packed with; without any the built-in ones. [`Error::Invalid`]: no
    /// store can have these.
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
        fs.arrange_sums()?;
        namespace::make_root(&fs, options.root_mode, options.root_uid, options.root_gid)?;
        if let Some(bulk) = &fs.bulk {
            bulk.mark_only(&fs.region)?;
        }
        if let Some(profiles) = profiles
            && !fs.set_inode_profiles(profiles)?
        {
            return Err(Error::Invalid);
        }
        fs.shutdown()
    }

    /// Opens a store: replays its log and, after a crash, finishes what was left half-done.
    pub fn open(parts: Parts, mut options: Options) -> Result<(Fs, Recovery)> {
        // Before the region is opened, which writes: a store refused stays as it was.
        let mut page = [0; PAGE as usize];
        if parts.region.memory.len() >= PAGE {
            parts.region.memory.read(SUPERBLOCK_AT, &mut page);
        }
        let superblock = Superblock::decode(&page)?;
        // The first device of a list has the store's own identity. Of a list with others only the region knows whether it is still there.
        let has_others = options.bulk_devices.iter().any(|given| given.uuid != superblock.uuid);
        if superblock.features & FEATURE_DEVICES == 0 || !has_others && !options.degraded {
            Bulk::check(parts.bulk.as_deref(), superblock.bulk_blocks)?;
        }
        let (nonce, memory) = (parts.region.nonce, parts.region.memory.clone());
        let is_present = |named: &[u8; 16]| {
            let earlier = &options.earlier_boot_ids;
            earlier.contains(named)
                || earlier.iter().any(|earlier| earlier[..8] == named[..8])
                    && crate::bulk::knows_first_place(&*memory, &superblock)
        };
        let (region, mut recovery) = Region::open_unsettled(parts.region, options.read_only, &is_present)?;
        // A device with a cache in the process that died has lost what a power loss would have lost.
        let given = options.bulk_devices.iter().filter_map(|given| given.device.as_ref().ok());
        let devices: Vec<_> = given.chain(&parts.bulk).collect();
        // After a clean end nothing is in doubt but what is on devices that were away, and the list says which these are.
        recovery.power_lost &= !recovery.unchanged;
        recovery.power_lost |= !recovery.unchanged && !devices.iter().all(|bulk| bulk.geometry().survives_process);
        // Before anything is read from them: of another life's blocks nothing may show. After a clean end a cache holds what could not be
        // written to a device that was away or failed.
        if let Some(on_period) = options.on_period.take() {
            on_period((!recovery.power_lost).then_some(&recovery.boot_id));
        }
        let continues = recovery.continues && !recovery.power_lost;
        devices.iter().for_each(|bulk| bulk.adopt(continues));
        let fs = Fs::assemble(region, parts.bulk, parts.clock, options, &recovery)?;
        fs.load_limits()?;
        let root = fs.load(crate::ROOT)?;
        if !root.is_dir() {
            return Err(Error::Corrupt("the root is no directory; run `shoal check`".into()));
        }
        let is_settled = fs.bulk.as_ref().is_none_or(|bulk| !bulk.has_unsettled());
        if recovery.clean && !fs.options.recover && is_settled {
            let roots = load_roots(&fs.region)?;
            fs.counts.inodes.store(roots.inodes.get(), Relaxed);
            fs.counts.directories.store(roots.directories.get(), Relaxed);
            fs.counts.large_files.store(roots.large_files.get(), Relaxed);
        } else {
            fs.recover()?;
        }
        if let Some(bulk) = fs.bulk.as_ref().filter(|_| !fs.region.is_read_only()) {
            bulk.mark_all(&fs.region)?;
        }
        // Only now: a crash before this must find the power loss again, because extents may still be marked NEW.
        fs.region.settle(nonce)?;
        fs.arrange_sums()?;
        Ok((fs, recovery))
    }

    /// Keeps checksums of bulk storage, or none, as the options say.
    fn arrange_sums(&self) -> Result<()> {
        match &self.bulk {
            Some(bulk) if !self.region.is_read_only() => bulk.arrange_sums(&self.region, self.options.sums, |_| true),
            _ => Ok(()),
        }
    }

    /// Closes the checksums' leaves that no write over data has come to for a while, or all that a flush has covered.
    fn close_sums(&self, all: bool) -> Result<()> {
        let Some(bulk) = &self.bulk else { return Ok(()) };
        bulk.numbers().into_iter().try_for_each(|number| bulk.close_sums(&self.region, number, all))
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
            // Not kept: a device that is opened again must have no other user.
            let devices = std::mem::take(&mut options.bulk_devices);
            bulk.attach(&region, &devices, only, options.degraded, recovery)?;
            bulk.load_sums(&region)?;
        }
        region.set_clock(clock.clone());
        let table = InodeTable::load(&region, options.on_damage.clone())?;
        let access_times = if options.no_atime { AccessTimes::Never } else { AccessTimes::Relative };
        let dictionaries =
            Dictionaries::load(&region, &load_roots(&region)?, &|finding| table.damage.tell_of_tables(finding));
        Ok(Fs {
            room,
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

    /// Background work of a mounted store: commits by age, frees bulk space. Meant to be called ten times a second; a
    /// checkpoint is left to [`Fs::checkpoint`], which takes longer.
    ///
    /// A caller with threads gives each device its own, and calls [`Fs::tick_bulk`] in one and [`Fs::tick_log`] in another:
    /// a bulk device that takes seconds for a flush must not make the log late.
    pub fn tick(&self) -> Result<()> {
        self.settle_by_age()?;
        self.tick_log()?;
        self.reclaim_bulk()
    }

    /// The bulk devices' share of [`Fs::tick`].
    pub fn tick_bulk(&self) -> Result<()> {
        self.settle_by_age()?;
        self.reclaim_bulk()
    }

    /// One bulk device's share of it, which waits for no other device.
    pub fn tick_bulk_device(&self, number: u32) -> Result<()> {
        self.settle_device_by_age(number)?;
        self.close_sums_by_age(number)?;
        if let Some(bulk) = &self.bulk {
            bulk.reclaim_on(&self.region, number);
        }
        Ok(())
    }

    /// Numbers of the bulk devices.
    pub fn bulk_numbers(&self) -> Vec<u32> {
        self.bulk.as_ref().map(Bulk::numbers).unwrap_or_default()
    }

    /// The bulk device that an fsync of the file has to wait for first.
    pub fn waits_on(&self, ino: Ino) -> u32 {
        self.bulk.as_ref().map_or(0, |bulk| bulk.waits_on(ino))
    }

    fn reclaim_bulk(&self) -> Result<()> {
        self.bulk.as_ref().map_or(Ok(()), |bulk| bulk.reclaim(&self.region))
    }

    /// The log's share of [`Fs::tick`]. Never waits for the bulk device.
    pub fn tick_log(&self) -> Result<()> {
        let outcome = self.sync_by_age();
        // Callers that wait get their answer from a failed store, too.
        self.region.sync_waiting()?;
        outcome
    }

    /// For how long the oldest commit that is not durable has been due.
    fn log_overdue_ns(&self, now: u64) -> Option<u64> {
        let mut pace = self.pace.lock();
        let (last, durable) = (self.region.last_lsn(), self.region.durable_lsn());
        if pace.pending.is_some_and(|(lsn, _)| durable >= lsn) {
            pace.pending = None;
        }
        if pace.pending.is_none() && last > durable {
            pace.pending = Some((last, now));
        }
        // The records that clear NEW are in the log: without them the data, though flushed, would be zeros after a power loss.
        if pace.settled > durable {
            return Some(u64::MAX);
        }
        pace.pending.and_then(|(_, since)| self.overdue_ns(now, since))
    }

    fn sync_by_age(&self) -> Result<()> {
        self.writable()?;
        let Some(overdue_ns) = self.log_overdue_ns(self.clock.monotonic_ns()) else { return Ok(()) };
        if overdue_ns < REPLACED_PATIENCE_NS && self.has_replaced() {
            // The bulk device's clock is at work: the cut of a file's old contents should not be durable before the contents
            // that followed it. Everybody else's records wait with it, so not for long.
            return Ok(());
        }
        Ok(self.region.sync()?)
    }

    fn settle_by_age(&self) -> Result<()> {
        self.bulk_numbers().into_iter().try_for_each(|number| {
            self.settle_device_by_age(number)?;
            self.close_sums_by_age(number)
        })
    }

    /// Twice in a row without a write over data, and a leaf of checksums is closed.
    fn close_sums_by_age(&self, number: u32) -> Result<()> {
        let Some(bulk) = &self.bulk else { return Ok(()) };
        let now = self.clock.monotonic_ns();
        {
            let last = &mut self.pace.lock().sums_at[number as usize];
            if now < *last + CLOSE_SUMS_NS {
                return Ok(());
            }
            *last = now;
        }
        bulk.close_sums(&self.region, number, false)
    }

    /// Flushes a bulk device and clears NEW when the oldest data there that is not settled is old enough, or the log is due that
    /// speaks of it. The log's next tick makes the records durable that say so.
    fn settle_device_by_age(&self, number: u32) -> Result<()> {
        self.writable()?;
        if let Some(error) = self.noted.lock().take() {
            return Err(error);
        }
        let now = self.clock.monotonic_ns();
        let log_due = self.log_overdue_ns(now).is_some();
        if let Some(bulk) = &self.bulk
            && let Some(held_ns) = bulk.held_ns(number)
        {
            return self.settle_held(bulk, number, held_ns, now, log_due);
        }
        let has_new = self.bulk.as_ref().is_some_and(|bulk| bulk.has_new_on(number));
        {
            let mut pace = self.pace.lock();
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
        // Vouched for from here on: what leaves the region now is flushed first.
        if !is_planted(Bug::TickUnpromised) {
            self.region.promise();
        }
        self.settle_device(number)?;
        self.pace.lock().settled = self.region.last_lsn();
        Ok(())
    }

    /// The same where the device holds writes back: only what it holds no longer is settled, and what took the place of contents
    /// that were cut off.
    fn settle_held(&self, bulk: &Bulk, number: u32, held_ns: u64, now: u64, log_due: bool) -> Result<()> {
        if log_due {
            // As above: what leaves the region from now on is flushed first.
            self.region.promise();
            if self.settle_replaced_on(number)? {
                self.pace.lock().settled = self.region.last_lsn();
            }
        }
        // A file that is written without pause has ranges of before the mark, and of after it.
        let written = bulk.note_writes_on(number);
        let aged = {
            let mut pace = self.pace.lock();
            let since = &mut pace.bulk_since[number as usize];
            if since.is_some_and(|since| now < since + SETTLE_HELD_NS) {
                return Ok(());
            }
            *since = Some(now);
            let marks = &mut pace.marks[number as usize];
            if marks.back().is_none_or(|&(_, last)| last < written) {
                marks.push_back((now, written));
            }
            // A write is given its number when it is held: it has left the device's hold so long after that, and a little.
            let until = now.saturating_sub(held_ns + SETTLE_HELD_NS);
            let mut aged = 0;
            while let Some(&(_, last)) = marks.front().filter(|&&(at, _)| at <= until) {
                aged = last;
                marks.pop_front();
            }
            if aged > 0 {
                marks.push_front((0, aged));
            }
            aged
        };
        if self.settle_aged(number, aged)? {
            self.pace.lock().settled = self.region.last_lsn();
        }
        Ok(())
    }

    /// For how long something that has waited since `since` has been due.
    fn overdue_ns(&self, now: u64, since: u64) -> Option<u64> {
        // A tick may come late by its own period: act one period early.
        (now.saturating_sub(since) + 150_000_000).checked_sub(self.options.commit_age_ms * 1_000_000)
    }

    /// Would a checkpoint be worth its work now? One that found no room is not tried again at once: each attempt costs a part of
    /// an image.
    pub fn checkpoint_due(&self) -> bool {
        if self.writable().is_err() || self.pace.lock().checkpoints.waits(self.clock.monotonic_ns()) {
            return false;
        }
        if self.region.superblock().memory_kind.has_ring() {
            // Only to get back the blocks it holds, before a writer has to wait for them.
            let held = self.bulk.as_ref().map_or(0, Bulk::held_blocks) * BULK_BLOCK;
            return held > 0 && held > self.usage().bulk_free / 4;
        }
        self.region.log_bytes() > self.options.checkpoint_log_bytes || self.region.wants_checkpoint()
    }

    /// Checkpoints have failed for lack of room since the last one that succeeded.
    pub fn checkpoint_lacks_room(&self) -> bool {
        self.pace.lock().checkpoints.is_failing()
    }

    /// Writes the region into the older image, beside running operations. `battery` memory is saved as it stands: they wait.
    pub fn checkpoint(&self) -> Result<()> {
        let outcome = self.write_checkpoint();
        let lacks_room = matches!(outcome, Err(Error::NoSpace));
        self.pace.lock().checkpoints.note(lacks_room, self.clock.monotonic_ns());
        outcome
    }

    fn write_checkpoint(&self) -> Result<()> {
        match &self.bulk {
            Some(bulk) if self.region.superblock().memory_kind.has_ring() => {
                // Files written before the call are in the image with their data.
                self.settle_new()?;
                bulk.save(&self.region)
            }
            _ => {
                // It makes the log durable: no cut may be there without the contents that followed it. Vouched for from here on: what
                // leaves the region while those are flushed is flushed first.
                self.region.promise();
                self.settle_replaced()?;
                Ok(self.region.checkpoint()?)
            }
        }
    }

    /// Makes everything done before the call durable.
    pub fn sync(&self) -> Result<()> {
        if self.region.is_read_only() {
            return Ok(());
        }
        if !is_planted(Bug::SyncUnpromised) {
            // Before the look at what there is to settle: what is in the region now does not leave it unflushed any more.
            self.region.promise();
        }
        if is_planted(Bug::SettleLast) {
            self.region.sync()?;
            return self.settle_new();
        }
        self.settle_new()?;
        Ok(self.region.sync()?)
    }

    /// Ends the store's life in this process: no operation may run any more. Reclaims what only the kernel held, makes
    /// everything durable, seals the store as clean.
    pub fn shutdown(&self) -> Result<()> {
        if self.region.is_read_only() {
            return Ok(());
        }
        self.writable()?;
        self.refs.clear();
        // Damage in one inode must not cost the others their last second.
        let reclaimed = self.reclaim_orphans();
        self.settle_new()?;
        self.region.sync()?;
        reclaimed?;
        self.close_sums(true)?;
        if let Some(bulk) = &self.bulk {
            bulk.reclaim(&self.region)?;
        }
        if let Some(bulk) = &self.bulk {
            bulk.note_unsettled(&self.region)?;
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
            Some(bulk) => bulk.saved_finally(&self.region),
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
