//! Asks the file systems under a store how much space they have left.
//!
//! Log and images are in the store's directory; the memory's file and the bulk file may be elsewhere. A file system
//! that cannot be asked counts as one with enough room, since a write that finds none is told so.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use shoal_fs::{HostRoom, Room};

use crate::memory::MemoryChoice;

/// Bytes kept free for log and images on a host that holds bulk data as well; on a small host a fixed part of it.
const HEADROOM_BYTES: u64 = 64 << 20;
const HEADROOM_PART: u64 = 16;

/// The question for a store in `directory`; `bulk` is its bulk storage where that is a file.
pub(crate) fn probe(directory: &Path, memory: &MemoryChoice, bulk: Option<PathBuf>) -> Room {
    let directory = directory.to_path_buf();
    let memory = memory.path().filter(|_| memory.kind().properties().on_demand).map(|path| parent(path));
    let device = |path: &Path| fs::metadata(path).map(|m| m.dev()).ok();
    let shared = bulk.as_ref().is_some_and(|bulk| device(bulk) == device(&directory));
    Arc::new(move || {
        let host = shoal_host::host_free_bytes(&directory).ok();
        HostRoom {
            region: host.map_or(u64::MAX, |host| host.available_bytes),
            memory: memory.as_ref().map(|memory| free(memory)),
            bulk: bulk.as_ref().map(|bulk| {
                let taken = fs::metadata(bulk).map_or(0, |m| m.blocks() * 512);
                taken.saturating_add(free(&parent(bulk)))
            }),
            shared,
            headroom: host.map_or(0, |host| (host.total_bytes / HEADROOM_PART).min(HEADROOM_BYTES)),
        }
    })
}

fn free(directory: &Path) -> u64 {
    shoal_host::host_free_bytes(directory).map_or(u64::MAX, |host| host.available_bytes)
}

fn parent(path: &Path) -> PathBuf {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf()
}
