//! How an open store works, whether it is mounted or embedded in a program ([`crate::Volume`]).
//!
//! Left out: what concerns the kernel and its requests (`shoal_fuse::MountOptions`), and how options
//! are written (the command line's).

use std::path::PathBuf;
use std::time::Duration;

use shoal_devices::{Failure, Outcome};
use shoal_fs::{Method, Options, PACK_LOAD, SPILL_PERCENT};
use shoal_writeback::Rule;

use crate::cache::{CacheOptions, rule_of};
use crate::description::Description;

/// Time without a change after which data has cooled, unless an option says otherwise.
const PACK_AGE: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Do without missing bulk devices, if the store lists several.
    pub degraded: bool,
    /// How cooled small files are compressed, if not as the store says.
    pub compress: Option<Method>,
    /// Time without a change after which data has cooled.
    pub pack_age: Duration,
    /// Share of one processor that packing may use while others commit (percent).
    pub pack_load: u32,
    /// Cooled inodes and directories are packed, too.
    pub pack_inodes: bool,
    /// Fill level of memory from which small files spill to bulk storage (percent); 0: never.
    pub spill_percent: u8,
    /// Files longer than this are large (bytes), if not as the store says.
    pub threshold: Option<u64>,
    /// Files with an execute bit are large only if they are longer than this as well (bytes).
    pub executables: u64,
    /// Keep checksums of data on bulk storage, or none, if not as the store does.
    pub sums: Option<bool>,
    /// Scrub in idle time when the last scrub is older than this.
    pub scrub_every: Option<Duration>,
    /// Memory for held-back writes of large files (bytes; 0: none), if not the default.
    pub cache_bytes: Option<u64>,
    /// Directory on tmpfs of that memory, if not the default.
    pub cache_dir: Option<PathBuf>,
    /// When held writes leave, if not the default.
    pub update_policy: Option<String>,
    /// Maximum bytes that leave in a second (0: no bound).
    pub update_rate: Option<u64>,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            degraded: false,
            compress: None,
            pack_age: PACK_AGE,
            pack_load: PACK_LOAD,
            pack_inodes: true,
            spill_percent: SPILL_PERCENT,
            threshold: None,
            executables: 0,
            sums: None,
            scrub_every: None,
            cache_bytes: None,
            cache_dir: None,
            update_policy: None,
            update_rate: None,
        }
    }
}

/// A mount: what is told to the kernel, and how the store works.
#[derive(Clone, Debug)]
pub struct MountOptions {
    pub fuse: shoal_fuse::MountOptions,
    pub store: StoreOptions,
}

impl StoreOptions {
    pub(crate) fn engine(&self, description: &Description) -> Options {
        Options {
            pack_age: Some(self.pack_age),
            pack_load: self.pack_load,
            pack_inodes: self.pack_inodes,
            spill_percent: self.spill_percent,
            threshold: self.threshold,
            executables: self.executables,
            degraded: self.degraded,
            sums: self.sums,
            method: self.compress.unwrap_or(description.compress),
            ..Options::default()
        }
    }

    pub(crate) fn cache(&self) -> Outcome<CacheOptions> {
        let rule = rule_of(self.update_policy.as_deref(), self.update_rate, &Rule::default());
        Ok(CacheOptions {
            bytes: self.cache_bytes,
            directory: self.cache_dir.clone(),
            rule: rule.map_err(|error| Failure::new("update policy", error).misuse())?,
        })
    }
}
