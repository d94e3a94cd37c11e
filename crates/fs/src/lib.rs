//! The file system engine.
//!
//! | layer | files |
//! |---|---|
//! | life of a store: format, open, tick, shutdown | `lifecycle`, `recovery`, `space`, `limits`, `forecast`; `resize` for one at rest |
//! | names: look-up, create, link, unlink, rename, readdir | `namespace`, `rename`, `dir` |
//! | attributes | `attr`, `xattr`, `acl`, `flags`, `method`, `threshold` |
//! | data: small files in the region, large ones on the bulk device | `file`, `small`, `large`, `settle`, `extents`, `gather`, `rebalance` |
//! | several bulk devices: added, emptied, removed, lost and found | `devices` |
//! | cold data: packed in the region, spilled to bulk storage | `cold` |
//! | room: what an operation lacks, compaction, what is given back | `needs`, `given_back`, `compact` |
//! | inodes, locks, references | `inode`, `locks`, `data_lock`, `refs` |
//! | damage met while open; what the checker asks for | `damage`, `repair` |
//! | rules that tests break one at a time | `planted` |
//! | bulk devices, their blocks, flushes and checksums | crate `shoal-bulk` |
//! | transactions, allocator, log | crate `shoal-region` |
//!
//! Rules: an operation takes the locks of its inodes, builds one transaction, commits it, and only
//! then lets go of the locks; nobody waits for durability under locks. Work too large for one
//! transaction goes in steps. Each step leaves a consistent tree, and recovery can finish the work
//! (`INODE_TRUNCATING`, inodes without links). The engine has no threads and no I/O of its own:
//! media come in through [`Parts`], and [`Upkeep::tick`] and [`Fs::checkpoint`] do the background
//! work.

#![forbid(unsafe_code)]

mod acl;
mod appended;
mod attr;
mod cold;
mod compact;
mod damage;
mod data_lock;
mod devices;
mod dir;
mod error;
mod extents;
mod file;
mod flags;
mod forecast;
mod gather;
mod given_back;
mod inode;
mod large;
mod lifecycle;
mod limits;
mod locks;
mod manner;
mod method;
mod namespace;
mod needs;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod reading;
mod rebalance;
mod recovery;
mod refs;
mod rename;
mod repair;
mod resize;
mod rooms;
mod scrub;
mod settle;
mod small;
mod space;
#[cfg(test)]
mod test_store;
mod threshold;
mod xattr;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};

use parking_lot::Mutex;
use shoal_media::{BlockDevice, Clock};
use shoal_region::Region;

pub use attr::{Attr, Caller, SetAttr, TimeChange};
pub use cold::cooled::Packing;
pub use cold::counts::PackingCounts;
pub use cold::report::{FORMS, Form, PackingReport, Share};
pub use cold::spill::{SPILL_PERCENT, Spilled};
pub use compact::Compaction;
pub use damage::OnDamage;
pub use devices::{Drained, Leaving};
pub use error::{Error, Result};
pub use file::{Fsync, Seek, Writer};
pub use flags::FileFlags;
pub use forecast::{Growth, Outlook, Outlooks};
pub use inode::packed::PackedInodes;
pub use inode::packer::{InodePacking, STORE_PROFILES_BYTES};
pub use lifecycle::{FormatOptions, OnPeriod, Options, PACK_LOAD, Parts};
pub use limits::Beyond;
pub use manner::Manner;
pub use method::COMPRESS_ATTRIBUTE;
pub use namespace::DirEntry;
pub use reading::{AccessTimes, ReadPlan, Reading};
pub use rebalance::{Misplaced, Rebalanced};
pub use rename::RenameMode;
pub use resize::{AtRest, Limits, Refused, Relayout, Steps};
pub use scrub::{ScrubFinding, ScrubPlace, Scrubbed};
pub use shoal_bulk::{BulkState, GivenDevice, HostRoom, OnBulkFailure, Patience, Room, UseState};
pub use shoal_format::inode::{Ino, THRESHOLD_MAX, THRESHOLD_MIN};
pub use shoal_pack::{Method, PROFILES_MAX, ProfileFile};
pub use shoal_region::{Failure, Lsn};
pub use space::{PlacedRange, Placement, StatFs, Usage};
pub use threshold::{THRESHOLD_ATTRIBUTE, threshold_text};
pub use xattr::XattrMode;

/// The root directory's inode number.
pub const ROOT: Ino = Ino::ROOT;

/// Longest target of a symbolic link (bytes).
pub const SYMLINK_MAX: usize = 4095;

/// An open store.
pub struct Fs {
    pub(crate) region: Region,
    pub(crate) table: inode::InodeTable,
    pub(crate) locks: locks::LockTable,
    pub(crate) data_locks: data_lock::DataLocks,
    pub(crate) gaps: appended::Gaps,
    pub(crate) refs: refs::RefTable,
    pub(crate) objects: cold::objects::Objects,
    pub(crate) packer: Mutex<cold::packer::Packer>,
    /// More packing is due at once.
    pub(crate) packs_on: AtomicBool,
    pub(crate) packing: Arc<cold::counts::Counters>,
    pub(crate) bulk: Option<shoal_bulk::Bulk>,
    pub(crate) spill: cold::spill::Spill,
    pub(crate) forecast: forecast::Forecast,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: Options,
    /// Files longer than this are large, unless they or their directories say otherwise (bytes); it
    /// may change while the store is mounted.
    pub(crate) threshold: AtomicU64,
    /// An [`AccessTimes`]; it may change while the store is mounted.
    pub(crate) access_times: AtomicU8,
    pub(crate) room: Option<Arc<shoal_bulk::RoomCache>>,
    pub(crate) removals: needs::Removals,
    pub(crate) given_back: given_back::GivenBack,
    /// The machine went down since the store was last open.
    pub(crate) power_lost: bool,
    /// Serialises renames between directories, so that the tree above them stands still.
    pub(crate) rename: Mutex<()>,
    pub(crate) pace: Mutex<lifecycle::Pace>,
    pub(crate) compactor: Mutex<compact::Compactor>,
    pub(crate) idle: Mutex<compact::Idle>,
    pub(crate) inode_packer: Mutex<inode::packer::Packer>,
    pub(crate) counts: Counts,
    /// Inodes without links that are not reclaimed yet.
    pub(crate) orphans: Mutex<HashSet<Ino>>,
    /// An error that had no caller to be reported to; the next tick reports it.
    pub(crate) noted: Mutex<Option<Error>>,
}

/// Inodes in use, by kind.
#[derive(Default)]
pub(crate) struct Counts {
    pub inodes: AtomicU64,
    pub directories: AtomicU64,
    pub large_files: AtomicU64,
}

impl Fs {
    /// Returns the region below, for waiting on durability.
    pub fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn now(&self) -> i64 {
        if self.options.kernel_times { self.clock.tick_ns() } else { self.clock.now_ns() }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.region.superblock().hash_seed
    }

    /// Fails if the store is mounted read-only, or has gone read-only after a failed flush.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.region.is_read_only() {
            return Err(Error::ReadOnly);
        }
        self.region.failure().map_or(Ok(()), |failure| Err(Error::Failed(failure)))
    }
}

/// The bulk device, if the store has one.
pub type BulkDevice = Option<Arc<dyn BlockDevice>>;
