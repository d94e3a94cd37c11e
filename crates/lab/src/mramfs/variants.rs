//! The ways in which the engine can keep the same files, and the store in this process for each.
//!
//! Owns: [`VARIANTS`], the one place to add a way of keeping inodes or data (a name and the options
//! of the store), and the packing thread. The store uses `battery` memory, as mramfs' does: its
//! region is ordinary memory of this process, touched before timing starts, and an operation is
//! durable when it returns. Left out: images of the region, a bulk device.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_fs::{FormatOptions, Fs, Method, Options, Parts};
use shoal_host::{PrivateMap, Stopping, SystemClock, Ticker};
use shoal_media::PersistentMemory;

use crate::experiment::LabError;

/// A way of keeping files.
#[derive(Debug)]
pub struct Variant {
    pub name: &'static str,
    pub inodes: bool,
    pub data: bool,
    /// Age from which unchanged data is packed (seconds).
    age_s: u64,
}

/// All ways, in the order in which they take turns. The first is the one to which all others are
/// compared.
pub const VARIANTS: &[Variant] = &[
    Variant { name: "plain", inodes: false, data: false, age_s: 0 },
    Variant { name: "inodes at 0 s", inodes: true, data: false, age_s: 0 },
    Variant { name: "inodes at 1 s", inodes: true, data: false, age_s: 1 },
    Variant { name: "data at 0 s", inodes: false, data: true, age_s: 0 },
    Variant { name: "both at 0 s", inodes: true, data: true, age_s: 0 },
    Variant { name: "both at 1 s", inodes: true, data: true, age_s: 1 },
];

/// The settings for packing, for variants that pack.
#[derive(Clone, Copy, Debug)]
pub struct Packing {
    pub method: Method,
    /// Share of a processor used for packing beside the workload (percent).
    pub load: u32,
}

/// A store, and a thread that packs in it like that of a mount.
pub struct Running {
    pub fs: Arc<Fs>,
    _ticker: Option<Ticker>,
}

/// Time between two ticks of a mount.
const PERIOD: Duration = Duration::from_millis(100);

/// Region size in addition to the files: the log's ring, tables, and partly used segments (bytes).
const BASE_BYTES: u64 = 64 << 20;
const RING_BYTES: u64 = 4 << 20;

impl Variant {
    fn options(&self, packing: Packing) -> Options {
        Options {
            pack_age: (self.inodes || self.data).then(|| Duration::from_secs(self.age_s)),
            pack_load: packing.load,
            pack_inodes: self.inodes,
            method: if self.data { packing.method } else { Method::Off },
            ..Options::default()
        }
    }

    /// Starts an empty store with room for `files` files of at most `file_bytes` bytes, and a
    /// packing thread if the variant packs.
    pub fn start(&self, files: u64, file_bytes: u64, packing: Packing) -> Result<Running, LabError> {
        let fs = Arc::new(self.make(files, file_bytes, packing)?);
        let own = fs.clone();
        let tick = move |stopping: &Stopping| {
            // A failed store also reports its failure to the workload.
            let is_whole = own.cooling().pack_tick().and_then(|()| own.compacting().compact_tick()).is_ok();
            if own.cooling().packs_on() && !stopping.is_stopped() {
                stopping.again();
            }
            if is_whole { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let is_packing = self.inodes || self.data;
        let ticker = is_packing.then(|| Ticker::start_quiet("idle-work", PERIOD, tick)).transpose();
        let ticker = ticker
            .map_err(|error| LabError::Broken { what: "the thread that packs".into(), why: error.to_string() })?;
        Ok(Running { fs, _ticker: ticker })
    }

    /// Makes an empty store with room for `files` files of at most `file_bytes` bytes.
    pub fn make(&self, files: u64, file_bytes: u64, packing: Packing) -> Result<Fs, LabError> {
        let geometry = Geometry {
            memory_kind: MemoryKind::Battery,
            uuid: [1; 16],
            region_bytes: (files * (file_bytes + 1024) * 2 + BASE_BYTES).next_multiple_of(1 << 20),
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
        let format = FormatOptions { geometry, sums: false, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        Fs::format(parts(), &format).map_err(|error| broken(error.to_string()))?;
        let (fs, _) = Fs::open(parts(), self.options(packing)).map_err(|error| broken(error.to_string()))?;
        Ok(fs)
    }
}
