//! How full a store is, by tier, and where a file's bytes are.
//!
//! Owns: [`Usage`], [`StatFs`], [`Placement`]. Rules: `statfs` is derived from `usage`, so that
//! `df` and `shoal df` agree. The free space of a tier is never more than its host can still give,
//! and the room of a host that holds both tiers counts once. The reserve counts as free but not as
//! available; so do free slots that only pieces of one size can use. Available is what one program
//! can really write. With a bulk device that is the device's free space, because a file larger than
//! the threshold can lie nowhere else, and small ones spill to it. It is nothing when the region
//! takes no more files.

use std::sync::atomic::Ordering::Relaxed;

use shoal_bulk::Bulk;
use shoal_format::BULK_BLOCK;
use shoal_format::dir::NAME_MAX;
use shoal_format::inode::{INODE_RECORD, Inode, Layout};

use crate::{Attr, Fs, HostRoom, Ino, Result};

/// File-system figures, as `statfs` reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the three counts (bytes).
    pub block_bytes: u32,
    pub blocks: u64,
    pub free: u64,
    /// Free for ordinary use: without the region's reserve.
    pub available: u64,
    /// Inodes in use, plus those that there is room for.
    pub files: u64,
    pub files_free: u64,
    pub name_max: u32,
}

/// How full each tier is (bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub region_bytes: u64,
    pub region_fixed: u64,
    pub region_used: u64,
    /// Free and backed by room on the host.
    pub region_free: u64,
    /// The free bytes that only deleting may use.
    pub region_reserve: u64,
    /// The part of the free bytes that ordinary operations can use, for pieces of any size, once
    /// the region is compacted.
    pub region_usable: u64,
    /// The free bytes of the region that exist only as long as the bulk device leaves them: one
    /// host has room for either.
    pub shared_free: u64,
    pub bulk_bytes: u64,
    pub bulk_used: u64,
    /// Free and backed by room on the host.
    pub bulk_free: u64,
    /// Freed, but not reusable before the log is durable or (`battery`) the next image is saved.
    pub bulk_pending: u64,
    pub inodes: u64,
    pub directories: u64,
    pub large_files: u64,
    /// Log bytes that recovery would replay after a crash now.
    pub log_bytes: u64,
}

/// A piece of a file: its place in the file and on the medium (bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacedRange {
    pub file_at: u64,
    pub len: u64,
    pub at: u64,
    /// Bytes that the piece takes on the medium: fewer than its length if it is packed.
    pub stored: u64,
    /// True: on the bulk device; false: in the region.
    pub bulk: bool,
    /// Written, but not known to be durable.
    pub new: bool,
    /// Allocated, never written.
    pub unwritten: bool,
    /// The piece belongs to a small file and is on bulk storage: `at` is its head, in the region.
    pub spilled: bool,
}

/// Where an inode and its data are.
#[derive(Clone, Debug)]
pub struct Placement {
    pub attr: Attr,
    pub inode: Inode,
    /// Offset of the inode's record in the region.
    pub record_at: u64,
    pub pieces: Vec<PlacedRange>,
}

const BLOCK: u64 = 4096;
/// What a file costs besides its bytes: its record, and an entry of 18 bytes and a short name in
/// buckets that are three quarters full.
const FILE_COST: u64 = INODE_RECORD as u64 + 40;
/// The share of the region's room expected to become inodes and names: at least 1/64, at most a
/// half. A store of empty files can still take long ones.
const METADATA_LEAST: u64 = 64;
const METADATA_MOST: u64 = 2;

impl Usage {
    /// Returns how much of the region's `free` bytes becomes inodes and names, if future files are
    /// as long as the present ones.
    fn metadata_in(&self, free: u64) -> u64 {
        let part = u128::from(free) * u128::from(self.inodes * FILE_COST) / u128::from(self.region_used.max(1));
        (part.min(u128::from(free)) as u64).clamp(free / METADATA_LEAST, free / METADATA_MOST)
    }
}

impl Fs {
    pub fn usage(&self) -> Usage {
        let space = self.region.space();
        let region_fixed = space.fixed_bytes + self.bulk.as_ref().map_or(0, Bulk::absorbed_area_bytes);
        let mut usage = Usage {
            region_bytes: space.region_bytes,
            region_fixed,
            region_used: (space.region_bytes - region_fixed).saturating_sub(space.free_bytes),
            region_free: space.free_bytes,
            region_reserve: space.reserve_bytes.min(space.free_bytes),
            region_usable: space.usable_bytes,
            inodes: self.counts.inodes.load(Relaxed),
            directories: self.counts.directories.load(Relaxed),
            large_files: self.counts.large_files.load(Relaxed),
            log_bytes: self.region.log_bytes(),
            ..Usage::default()
        };
        // The spill file is internal and not counted.
        if let Some(spill_file) = self.spilling().spill_file_layout() {
            usage.inodes = usage.inodes.saturating_sub(1);
            usage.large_files = usage.large_files.saturating_sub(u64::from(spill_file == Layout::Extents));
        }
        if let Some(bulk) = &self.bulk {
            let (free, pending) = (bulk.free_blocks(), bulk.pending_blocks());
            let withheld = bulk.withheld_blocks().min(free);
            usage.bulk_bytes = (bulk.total_blocks() - withheld) * BULK_BLOCK;
            usage.bulk_used = bulk.used_blocks() * BULK_BLOCK;
            usage.bulk_pending = pending * BULK_BLOCK;
            usage.bulk_free = (free - withheld) * BULK_BLOCK;
        }
        if let Some(room) = &self.room {
            let (room, log) = (room.beside(space.reserved_bytes), self.region.log_growth_bytes());
            let growth = room.region_growth_bytes(log);
            let ordinary = (space.free_bytes - usage.region_reserve).min(space.backed_bytes + growth);
            usage.region_usable = space.usable_bytes.min(space.backed_usable_bytes + growth).min(ordinary);
            usage.region_free = space.free_bytes.min(ordinary + usage.region_reserve);
            usage.region_reserve = usage.region_free - ordinary;
            // Free blocks on the host count only as far as the host has room for them.
            let (taken, free) = self.bulk.as_ref().map_or((0, 0), Bulk::taken_and_free_on_host);
            let (taken, free) = (taken * BULK_BLOCK, free * BULK_BLOCK);
            let backed = free.min(room.bulk_bytes(log).saturating_sub(taken));
            usage.bulk_free = usage.bulk_free.saturating_sub(free - backed);
            if room.shared {
                let grown = ordinary.saturating_sub(space.backed_bytes);
                let beside = HostRoom { region: room.region.saturating_sub(backed), ..room };
                usage.shared_free = grown.saturating_sub(beside.region_growth_bytes(log));
            }
        }
        usage
    }

    /// Returns figures for both tiers together, in units of 4 KiB; agrees with [`Fs::usage`].
    pub fn statfs(&self) -> StatFs {
        let usage = self.usage();
        let free = usage.region_free - usage.shared_free + usage.bulk_free + usage.bulk_pending;
        // The total shrinks with the host's room: what cannot be written is not capacity.
        let total = usage.region_used + usage.bulk_used + free;
        // Once compacted, the region's room is usable for pieces of any size; some of it becomes
        // inodes and names.
        let usable = usage.region_usable - usage.metadata_in(usage.region_usable);
        let bulk = usage.bulk_free + usage.bulk_pending;
        let ordinary = if usage.bulk_bytes == 0 {
            usable
        } else if usable < BLOCK && !self.spilling().makes_room() {
            0
        } else {
            bulk
        };
        let region = usage.region_free - usage.region_reserve;
        let room = (region / FILE_COST).min(u64::from(Ino::MAX) - usage.inodes);
        StatFs {
            block_bytes: BLOCK as u32,
            blocks: total / BLOCK,
            free: free / BLOCK,
            available: ordinary / BLOCK,
            files: usage.inodes + room,
            files_free: room,
            name_max: NAME_MAX as u32,
        }
    }

    pub fn placement(&self, ino: Ino) -> Result<Placement> {
        let _lock = self.locks.read(ino);
        let inode = self.load(ino)?;
        Ok(Placement {
            attr: Attr::new(ino, &inode),
            inode,
            record_at: self.table.record_at(&self.region, ino)?.get(),
            pieces: self.data().pieces(&inode)?,
        })
    }
}
