//! The contents of a store, tier by tier, and the possible losses in a crash.
//!
//! "Used" space is neither free nor waiting for reuse. The report is passed as JSON, because only
//! the process that has a mounted store open can make it. Left out: its text (the command line's).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shoal_devices::Outcome;
use shoal_fs::{Fs, Options, Outlook, Outlooks, Spilled};
use shoal_host::Directory;

use crate::bulk_report::BulkReport;
use crate::cache::CacheReport;
use crate::description::Description;
use crate::memory::LossBounds;
use crate::packing::{Metadata, Packed, PackingWork};
use crate::profiles::InodeProfiles;
use crate::read_only::ReadOnly;
use crate::scrub::LastScrub;
use crate::store::Store;
use crate::user_memory::UserMemory;

/// The state of a store.
#[derive(Debug, Serialize, Deserialize)]
pub struct StoreReport {
    pub store: String,
    pub uuid: String,
    pub mountpoint: Option<String>,
    /// The failure that made the store read-only. Absent while nothing has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ReadOnly>,
    pub memory: Tier,
    pub bulk: Option<Tier>,
    /// Writes of large files held back in front of bulk storage.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<CacheReport>,
    /// The bulk devices, one by one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bulks: Vec<BulkReport>,
    /// Problems of bulk devices, each as a sentence: since when it exists, and what the user has to
    /// do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
    /// Checksums of the data on bulk storage.
    #[serde(default)]
    pub checksums: Checksums,
    pub memory_kind: String,
    pub files: Files,
    /// Files longer than this are large.
    pub threshold_bytes: u64,
    /// When the tiers will be full at their current rate of growth. Absent where that cannot be
    /// estimated.
    #[serde(default)]
    pub forecast: Forecast,
    /// Log that recovery would replay after a crash now.
    pub log_bytes: u64,
    /// Pages of large files that were made durable by the log, and have not been written to their
    /// place.
    #[serde(default)]
    pub absorbed_bytes: u64,
    pub compression: String,
    /// Sizes of small files, raw and in memory.
    #[serde(default)]
    pub packed: Packed,
    /// Small files on bulk storage.
    #[serde(default)]
    pub spilled: SpilledFiles,
    /// What packing has done since the store was opened.
    #[serde(default)]
    pub packing: PackingWork,
    /// Memory that inodes and directory entries occupy.
    #[serde(default)]
    pub metadata: Metadata,
    /// The profiles that inodes are packed with.
    #[serde(default)]
    pub inode_profiles: InodeProfiles,
    pub loss: LossBounds,
    /// Memory of the process that has the store open. Absent if none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_memory: Option<UserMemory>,
    /// The numbers of statfs(2).
    pub statfs: StatFs,
}

/// Checksums of the data on bulk storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksums {
    /// Memory that the checksums occupy. 0: none are kept.
    pub memory_bytes: u64,
    /// Places found damaged in this mount and not written since.
    pub damaged: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scrub: Option<LastScrub>,
}

/// The memory, or the bulk storage.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    pub holds: String,
    pub place: String,
    pub size_bytes: u64,
    pub used_bytes: u64,
    pub free_bytes: u64,
    /// Part of the free bytes: usable only by deletions (memory), or free again soon (bulk).
    pub reserved_bytes: u64,
}

/// Small files that are on bulk storage, in groups of up to 128 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpilledFiles {
    pub groups: u64,
    pub raw_bytes: u64,
    /// Bytes that the files occupy in their blocks, and bytes of these blocks.
    pub stored_bytes: u64,
    pub block_bytes: u64,
    /// Memory use at which files begin to spill (percent). 0: none spill.
    pub from_percent: u8,
    /// Not all files have been counted since the store was opened, so there may be more.
    pub counting: bool,
}

impl SpilledFiles {
    fn of(fs: &Fs) -> SpilledFiles {
        let Spilled { groups, bytes, stored, blocks, counting } = fs.spilling().spilled();
        let (raw_bytes, stored_bytes, block_bytes) = (bytes, stored, blocks);
        SpilledFiles {
            groups,
            raw_bytes,
            stored_bytes,
            block_bytes,
            from_percent: fs.spilling().spill_percent(),
            counting,
        }
    }
}

/// When the tiers will be full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<FullIn>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk: Option<FullIn>,
}

/// When a part of a tier will be in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FullIn {
    pub seconds: u64,
    /// That part: 100, or for memory the use at which small files begin to spill (percent).
    pub percent: u8,
}

impl Forecast {
    fn of(outlooks: Outlooks) -> Forecast {
        let full_in = |outlook: Outlook| FullIn { seconds: outlook.within.as_secs(), percent: outlook.percent };
        Forecast { memory: outlooks.memory.map(full_in), bulk: outlooks.bulk.map(full_in) }
    }
}

/// Numbers of inodes in a store.
#[derive(Debug, Serialize, Deserialize)]
pub struct Files {
    pub inodes: u64,
    pub directories: u64,
    /// Files whose data is on bulk storage.
    pub large_files: u64,
    /// Inodes found damaged since the store was opened. `shoal check --repair` settles them.
    #[serde(default)]
    pub damaged: u64,
}

/// The answer of a mount to statfs(2).
#[derive(Debug, Serialize, Deserialize)]
pub struct StatFs {
    pub block_bytes: u64,
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub files_free: u64,
}

impl StoreReport {
    /// Returns the report on an open file system of the store in `directory`.
    pub fn of(
        fs: &Fs,
        held: &Directory,
        description: &Description,
        mountpoint: Option<&Path>,
        survives_power_loss: bool,
    ) -> StoreReport {
        // The store's current path.
        let place = held.place();
        let directory = place.as_path();
        // Errors are ignored: the number of damaged inodes shows the damage.
        let packing = fs.cooling().packing_report().unwrap_or_default();
        let (usage, statfs, superblock) = (fs.usage(), fs.statfs(), fs.region().superblock());
        let states = fs.devices().states();
        let bulk_place = match (&states[..], description.place_of(0)) {
            ([], _) => None,
            ([only], Some(first)) if only.number == 0 => Some(first.text(directory)),
            (several, _) => Some(format!("{} devices", several.len())),
        };
        let spills = fs.spilling().spilled().blocks > 0;
        let bulk = bulk_place.map(|place| Tier {
            holds: if spills { "data of large files, spilled files" } else { "data of large files" }.into(),
            place,
            size_bytes: usage.bulk_bytes,
            used_bytes: usage.bulk_used,
            free_bytes: usage.bulk_free,
            reserved_bytes: usage.bulk_pending,
        });
        StoreReport {
            store: directory.display().to_string(),
            uuid: description.uuid.clone(),
            mountpoint: mountpoint.map(|path| path.display().to_string()),
            failure: ReadOnly::of(fs),
            memory: Tier {
                holds: "metadata and small files".into(),
                place: description.memory.path().map_or(directory, PathBuf::as_path).display().to_string(),
                // Space that the host cannot provide does not count as capacity.
                size_bytes: usage.region_used + usage.region_free,
                used_bytes: usage.region_used,
                free_bytes: usage.region_free,
                reserved_bytes: usage.region_reserve.min(usage.region_free),
            },
            bulk,
            caches: Vec::new(),
            troubles: Vec::new(),
            bulks: states.iter().map(|state| BulkReport::of(state, directory, description)).collect(),
            checksums: Checksums {
                memory_bytes: fs.devices().sums_bytes(),
                damaged: states.iter().map(|state| state.damaged).sum(),
                last_scrub: LastScrub::of(held),
            },
            memory_kind: superblock.memory_kind.name().into(),
            files: Files {
                inodes: usage.inodes,
                directories: usage.directories,
                large_files: usage.large_files,
                damaged: fs.repair().damaged_inodes(),
            },
            threshold_bytes: fs.threshold(),
            forecast: Forecast::of(fs.upkeep().outlooks()),
            log_bytes: usage.log_bytes,
            absorbed_bytes: fs.devices().absorbed_bytes(),
            compression: description.compress.to_string(),
            packed: Packed::of(&packing),
            spilled: SpilledFiles::of(fs),
            packing: fs.cooling().packing_counts().into(),
            metadata: Metadata::of(&packing),
            inode_profiles: InodeProfiles::of(fs),
            loss: LossBounds::of(superblock.memory_kind, survives_power_loss),
            process_memory: None,
            statfs: StatFs {
                block_bytes: statfs.block_bytes.into(),
                blocks: statfs.blocks,
                free: statfs.free,
                available: statfs.available,
                files: statfs.files,
                files_free: statfs.files_free,
            },
        }
    }
}

impl StoreReport {
    /// Adds the store's write-back caches, if any.
    pub fn with_caches(mut self, caches: Vec<CacheReport>) -> StoreReport {
        // All caches have the same policy.
        if let Some(cache) = caches.iter().find(|cache| cache.holds) {
            self.loss.power_loss += &format!(", and of large files what {} holds back", cache.policy);
        }
        self.caches = caches;
        self
    }
}

impl Store {
    /// Opens the store for reading, with its log replayed in memory, and reports its state.
    pub fn report(&self) -> Outcome<StoreReport> {
        let opened = self.open(Options { read_only: true, degraded: true, ..Options::default() })?;
        // Errors are ignored: the number of damaged inodes shows the damage.
        let _ = opened.fs.spilling().count_spilled();
        Ok(StoreReport::of(&opened.fs, &self.directory, &self.description, None, opened.survives_power_loss))
    }
}
