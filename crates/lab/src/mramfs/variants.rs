//! The ways the engine can keep the same files, and the store in this process for each.
//!
//! Owns: [`VARIANTS`], the one place where a way of keeping inodes or data is added: a name and the options of the store.
//! The store is of `battery` memory, as mramfs' is: its region is ordinary memory of this process, touched before the clock
//! runs, and an operation is durable when it returns. Left out: images of the region, a bulk device, background work.

use std::sync::Arc;

use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_fs::{FormatOptions, Fs, Parts};
use shoal_host::{PrivateMap, SystemClock};
use shoal_media::PersistentMemory;

use crate::experiment::LabError;

/// A way to keep files.
#[derive(Debug)]
pub struct Variant {
    pub name: &'static str,
    options: fn() -> shoal_fs::Options,
}

/// All ways, in the order in which they take turns.
pub const VARIANTS: &[Variant] = &[Variant { name: "plain", options: shoal_fs::Options::default }];

/// Region beside the files: the log's ring, tables, and segments begun (bytes).
const BASE_BYTES: u64 = 64 << 20;
const RING_BYTES: u64 = 4 << 20;

impl Variant {
    /// An empty store with room for `files` files of at most `file_bytes` bytes.
    pub fn make(&self, files: u64, file_bytes: u64) -> Result<Fs, LabError> {
        let geometry = Geometry {
            memory_kind: MemoryKind::Battery,
            uuid: [1; 16],
            region_bytes: (files * (file_bytes + 1024) + BASE_BYTES).next_multiple_of(1 << 20),
            bulk_blocks: 0,
            ring_bytes: RING_BYTES,
            threshold: 1 << 20,
            hash_seed: 1,
            created_ns: 0,
        };
        let broken = |why: String| LabError::Broken { what: format!("store in this process, {}", self.name), why };
        let memory = PrivateMap::new(geometry.region_bytes, None).map_err(|error| broken(error.to_string()))?;
        memory.zero(0, geometry.region_bytes);
        let memory: Arc<dyn PersistentMemory> = Arc::new(memory);
        let parts = || Parts {
            region: shoal_region::Parts {
                memory: memory.clone(),
                log: None,
                images: None,
                boot_id: [1; 16],
                nonce: [1; 16],
            },
            bulk: None,
            clock: Arc::new(SystemClock::new()),
        };
        let format = FormatOptions { geometry, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        Fs::format(parts(), &format).map_err(|error| broken(error.to_string()))?;
        let (fs, _) = Fs::open(parts(), (self.options)()).map_err(|error| broken(error.to_string()))?;
        Ok(fs)
    }
}
