//! Stores: making, opening, describing, checking, copying, resizing and saving them.
//!
//! A store is a directory: a description, the media of a region (metadata and small files), and bulk
//! storage for large files.
//!
//! | module | owns |
//! |---|---|
//! | `names`, `description`, `directory`, `user` | a store's files, the description that makes it a store, its user |
//! | `memory`, `images`, `media`, `host_room` | kinds of memory, and putting a store's media together |
//! | `store` | a store this process has to itself, and its file system |
//! | `bulks`, `bulk_report`, `cache`, `paths` | the bulk devices of an open store, what is reported of them, their write-back caches; names of inodes |
//! | `format`, `check`, `repair`, `copy`, `resize`, `salvage`, `scrub` | one operation each, with its options and its report |
//! | `report`, `inspect`, `read_only` | the state of a store, or of one of its files |
//! | `options`, `life` | how an open store works, and what runs while it is open |
//! | `mounted`, `control`, `status` | a store that this process serves, its control socket, and its state |
//! | `volume` | files without a mount, for programs that embed Shoal: [`Volume`] |
//! | `packing`, `profiles`, `rebalance` | what packing gains, and packing now; profiles for packing inodes; files moved to the tiers where they belong |
//! | `place`, `holder` | finding a store from a path, and the process that has it |
//! | `own_ground` | which files a store stands on, so that no mount covers its own |
//! | `progress`, `calendar` | progress of long work; times in words |
//!
//! ```
//! use shoal_store::{FormatOptions, Store};
//!
//! let dir = tempfile::tempdir()?;
//! let path = dir.path().join("store");
//! let made = Store::format(&path, &FormatOptions { memory_bytes: Some(64 << 20), ..FormatOptions::default() })?;
//! assert_eq!(Store::describe(&path)?.uuid, made.uuid);
//!
//! let store = Store::acquire(&path, std::time::Duration::ZERO)?;
//! assert!(store.check(true, &())?.is_sound());
//! assert_eq!(store.report()?.files.inodes, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Errors are sentences that name the object and the remedy ([`Failure`]). Reports are plain data
//! that serde can serialize; the caller prints them. Left out: signals and logs of a daemon, the
//! command line.

#![forbid(unsafe_code)]

mod answers;
mod bulk_report;
mod bulks;
mod cache;
mod calendar;
mod check;
pub mod control;
mod copy;
mod description;
mod directory;
mod format;
pub mod holder;
mod host_room;
mod images;
mod inspect;
mod life;
mod media;
mod memory;
mod mounted;
mod names;
mod options;
mod own_ground;
pub mod packing;
mod paths;
pub mod place;
mod profiles;
mod progress;
mod read_only;
pub mod rebalance;
mod repair;
mod report;
mod resize;
mod salvage;
pub mod scrub;
mod status;
mod store;
mod user;
mod user_memory;
mod volume;

pub use answers::access_times_name;
pub use bulk_report::{BulkReport, ReportedState};
pub use bulks::{BulkChange, BulkFile};
pub use cache::{CacheOptions, CacheReport, HeldWrites, kept_writes, rule_of};
pub use copy::{Copied, CopyOptions};
pub use description::{BulkChoice, BulkPlace, Description, NumberedPlace};
pub use format::{FormatOptions, Formatted};
pub use inspect::{FileReport, PieceReport};
pub use life::Recovered;
pub use memory::{LossBounds, MemoryChoice};
pub use mounted::{Mounted, is_mounted_from};
pub use names::{DAEMON_LOG, DESCRIPTION};
pub use options::{MountOptions, StoreOptions};
pub use packing::{Compacted, Metadata as PackedMetadata, Packed, PackedForm, PackingWork};
pub use profiles::InodeProfiles;
pub use progress::Progress;
pub use read_only::ReadOnly;
pub use rebalance::Rebalanced;
pub use repair::Repaired;
pub use report::{Files, Forecast, FullIn, SpilledFiles, StatFs, StoreReport, Tier};
pub use resize::{Resized, Sizes};
pub use salvage::{Lost, Salvaged, Told, salvage};
pub use scrub::{LastScrub, ScrubReport};
pub use shoal_devices::{Failure, Outcome};
pub use status::{ExportReport, RequestReport, Status};
pub use store::{Devices, LEAVING_PATIENCE, Opened, Store};
pub use user::{holder, is_in_use, writer};
pub use user_memory::UserMemory;
pub use volume::{DirEntry, File, FileType, Metadata, ReadDir, Volume};
