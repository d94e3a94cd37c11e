//! The life of an open store: format, open, background work, shutdown.
//!
//! Owns: how a store is assembled from its media, and the pace of commits. Rules: data on the bulk device are flushed before the
//! record that calls them durable, that record before the log's sync; shutdown reclaims, settles, syncs and seals in
//! this order. Left out: threads and timers (the adapter calls [`Fs::tick`] and [`Fs::checkpoint`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;
use shoal_format::inode::{Inode, InodeSlot};
use shoal_format::superblock::{Geometry, ROOTS_AT, SUPERBLOCK_AT, Superblock};
use shoal_format::{BULK_BLOCK, PAGE};
use shoal_media::Clock;
use shoal_region::{Lsn, Recovery, Region};
use zerocopy::IntoBytes;

use crate::bulk::Bulk;
use crate::inode::{InodeTable, load_roots};
use crate::locks::LockTable;
use crate::refs::RefTable;
use crate::{BulkDevice, Counts, Error, Fs, Ino, Result, namespace};

/// What a store is assembled from.
pub struct Parts {
    pub region: shoal_region::Parts,
    pub bulk: BulkDevice,
    pub clock: Arc<dyn Clock>,
}

/// Bytes the host has for the bulk device altogether: what the device has taken already, and what is free.
pub type Room = Arc<dyn Fn() -> u64 + Send + Sync>;

/// How an open store behaves.
#[derive(Clone)]
pub struct Options {
    pub read_only: bool,
    /// Never update access times.
    pub no_atime: bool,
    /// An operation is durable at the latest this long after it returned (`logged` memory).
    pub commit_age_ms: u64,
    /// A checkpoint is due when recovery would replay more than this (bytes).
    pub checkpoint_log_bytes: u64,
    pub bulk_room: Option<Room>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            read_only: false,
            no_atime: false,
            commit_age_ms: 1000,
            checkpoint_log_bytes: 256 << 20,
            bulk_room: None,
        }
    }
}

/// The root directory of a new store.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    pub geometry: Geometry,
    pub root_mode: u32,
    pub root_uid: u32,
    pub root_gid: u32,
}

/// When something not yet durable was first noticed.
#[derive(Default)]
pub(crate) struct Pace {
    pending: Option<(Lsn, u64)>,
    bulk_since: Option<u64>,
}

impl Fs {
    /// Makes a new, empty store on empty media and seals it.
    pub fn format(parts: Parts, options: &FormatOptions) -> Result<()> {
        let region = Region::create(options.geometry, parts.region)?;
        let fs = Fs::assemble(region, parts.bulk, parts.clock, Options::default(), false)?;
        namespace::make_root(&fs, options.root_mode, options.root_uid, options.root_gid)?;
        fs.shutdown()
    }

    /// Opens a store: replays its log and, after a crash, finishes what was left half-done.
    pub fn open(parts: Parts, options: Options) -> Result<(Fs, Recovery)> {
        // Before the region is opened, which writes: a store refused stays as it was.
        let mut page = [0; PAGE as usize];
        if parts.region.memory.len() >= PAGE {
            parts.region.memory.read(SUPERBLOCK_AT, &mut page);
        }
        Bulk::check(parts.bulk.as_deref(), Superblock::decode(&page)?.bulk_blocks)?;
        let nonce = parts.region.nonce;
        let (region, mut recovery) = Region::open_unsettled(parts.region, options.read_only)?;
        // A device with a cache in the process that died has lost what a power loss would have lost.
        let survives = parts.bulk.as_ref().is_none_or(|bulk| bulk.geometry().survives_process);
        recovery.power_lost |= !recovery.clean && !survives;
        let fs = Fs::assemble(region, parts.bulk, parts.clock, options, recovery.power_lost)?;
        let root = fs.load(crate::ROOT)?;
        if !root.is_dir() {
            return Err(Error::Corrupt("the root is no directory; run `shoal check`".into()));
        }
        if recovery.clean {
            let roots = load_roots(&fs.region)?;
            fs.counts.inodes.store(roots.inodes.get(), Relaxed);
            fs.counts.directories.store(roots.directories.get(), Relaxed);
            fs.counts.large_files.store(roots.large_files.get(), Relaxed);
        } else {
            fs.recover()?;
        }
        // Only now: a crash before this must find the power loss again, because extents may still be marked NEW.
        fs.region.settle(nonce)?;
        Ok((fs, recovery))
    }

    fn assemble(
        region: Region,
        bulk: BulkDevice,
        clock: Arc<dyn Clock>,
        options: Options,
        power_lost: bool,
    ) -> Result<Fs> {
        let bulk = match bulk {
            Some(device) if region.superblock().bulk_blocks > 0 => Some(Bulk::load(device, &region)?),
            _ => None,
        };
        Ok(Fs {
            table: InodeTable::load(&region)?,
            locks: LockTable::new(),
            refs: RefTable::new(),
            bulk,
            clock,
            options,
            power_lost,
            rename: Mutex::new(()),
            pace: Mutex::default(),
            compactor: Mutex::default(),
            counts: Counts::default(),
            orphans: Mutex::default(),
            noted: Mutex::default(),
            region,
        })
    }

    /// Background work of a mounted store: commits by age, frees bulk space. Meant to be called ten times a second; a
    /// checkpoint is left to [`Fs::checkpoint`], which takes longer.
    pub fn tick(&self) -> Result<()> {
        self.writable()?;
        if let Some(error) = self.noted.lock().take() {
            return Err(error);
        }
        let now = self.clock.monotonic_ns();
        let age = self.options.commit_age_ms * 1_000_000;
        // A tick may come late by its own period: act one period early.
        let due = |since: u64| now.saturating_sub(since) + 150_000_000 >= age;
        let (log_due, bulk_due) = {
            let mut pace = self.pace.lock();
            let (last, durable) = (self.region.last_lsn(), self.region.durable_lsn());
            if pace.pending.is_some_and(|(lsn, _)| durable >= lsn) {
                pace.pending = None;
            }
            if pace.pending.is_none() && last > durable {
                pace.pending = Some((last, now));
            }
            if pace.bulk_since.is_none() && self.has_new() {
                pace.bulk_since = Some(now);
            }
            let bulk_due = pace.bulk_since.is_some_and(due);
            if bulk_due {
                pace.bulk_since = None;
            }
            (pace.pending.is_some_and(|(_, since)| due(since)), bulk_due)
        };
        if bulk_due {
            self.settle_new()?;
        }
        // What clears NEW is in the log: without it the data, though flushed, would be zeros after a power loss.
        if log_due || bulk_due {
            self.region.sync()?;
        }
        if let Some(bulk) = &self.bulk {
            bulk.reclaim(&self.region)?;
        }
        Ok(())
    }

    /// Would a checkpoint be worth its work now?
    pub fn checkpoint_due(&self) -> bool {
        if self.writable().is_err() {
            return false;
        }
        if self.region.superblock().memory_kind.has_ring() {
            // Only to get back the blocks it holds, before a writer has to wait for them.
            let held = self.bulk.as_ref().map_or(0, Bulk::held_blocks) * BULK_BLOCK;
            return held > 0 && held > self.usage().bulk_free / 4;
        }
        self.region.log_bytes() > self.options.checkpoint_log_bytes
    }

    /// Writes the region into the older image, beside running operations. `battery` memory is saved as it stands: they wait.
    pub fn checkpoint(&self) -> Result<()> {
        match &self.bulk {
            Some(bulk) if self.region.superblock().memory_kind.has_ring() => {
                // What was written before the call is in the image with its data.
                self.settle_new()?;
                bulk.save(&self.region)
            }
            _ => Ok(self.region.checkpoint()?),
        }
    }

    /// Makes everything done before the call durable.
    pub fn sync(&self) -> Result<()> {
        if self.region.is_read_only() {
            return Ok(());
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
        if let Some(bulk) = &self.bulk {
            bulk.reclaim(&self.region)?;
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
