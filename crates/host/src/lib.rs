//! The real world behind the media traits: memory maps, files, locks, time.
//!
//! | module | implements |
//! |---|---|
//! | `private_map` | the DRAM of a `logged` store, its clean pages read from an image file |
//! | `shared_map` | the file behind a `battery` or `dax` region, mapped in place |
//! | `segment_log`, `segment_files` | the log of a `logged` store, a directory of segment files |
//! | `image` | one image of a region at rest, a sparse file |
//! | `directory` | a directory held by its descriptor, and the files in it |
//! | `file_device` | bulk storage on a file or a block device |
//! | `cache_file` | the memory of a write-back cache, a file on tmpfs |
//! | `fuse_device` | further descriptors of a FUSE connection |
//! | `fuse_ring` | a queue of a FUSE connection over io_uring |
//! | `calls` | every call that changes one of these files; `recorder` notes them for tests |
//! | `concurrent` | threads for requests of a slow device |
//! | `host_kind` | properties of the file system under a store: writing in place, reserving room |
//! | `scheduling` | the class of threads, their processors, and their waits for one |
//! | `own_memory` | the memory that this process uses, by map |
//! | `memory_limit` | how much memory this process may use, and how much of it is left |
//! | `starter` | descriptors, limits and signals that a process inherits |
//! | `pause` | which failed calls are made again, and when |
//! | `ticker` | a thread for periodic work |
//! | `machine`, `store_lock` | clock, boot id, randomness, free space; one mount per store |
//!
//! This is the only crate with `unsafe`. The unsafe operations are in `map`, `shared_map`,
//! `cache_line`, `calls`, `fuse_device`, `fuse_ring`, `memory_limit`, `scheduling` and `starter`.
//! Each is one block with its reason, and no reference to mapped memory is ever formed: copies go
//! through raw pointers. A medium that failed to flush refuses further writes
//! (`MediaError::Poisoned`) until it is opened again.

mod cache_file;
mod cache_line;
mod calls;
mod concurrent;
mod directory;
mod file_device;
mod fuse_device;
mod fuse_ring;
mod host_kind;
mod image;
mod machine;
mod map;
mod memory_limit;
mod own_memory;
mod pause;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod private_map;
#[cfg(feature = "recorded")]
pub mod recorder;
mod scheduling;
mod segment_files;
mod segment_log;
mod shared_map;
mod starter;
mod store_lock;
mod ticker;

use std::path::Path;
use std::{fmt, io};

pub use cache_file::CacheFile;
pub use concurrent::Concurrent;
pub use directory::{
    Access, Birth, Directory, Identity, is_blank, open_socket, open_unlinked, remove_held, rename_to_new,
};
pub use file_device::FileDevice;
pub use fuse_device::clone_connection;
pub use fuse_ring::{Answer, Answers, FuseRing, Taken, Waker};
pub use host_kind::is_tmpfs;
pub use image::HostImage;
pub use machine::{
    HostSpace, SystemClock, boot_id, boottime_ns, held_host_bytes, host_free_bytes, idle_time, place_id, place_id_in,
    possible_cpus, random_bytes,
};
pub use memory_limit::{
    Memory, keep_heap_small, memory, memory_limit_bytes, memory_room_bytes, memory_room_soon_bytes, memory_total_bytes,
    pressure_files, shrink_heap, take_memory,
};
pub use own_memory::{MapUse, own_maps};
pub use pause::Pause;
pub use private_map::PrivateMap;
pub use scheduling::{Class, Client, Scheduled, Seen, like_the_process, may_return};
pub use segment_log::{SEGMENT_BYTES, SegmentLog, log_bytes_max};
pub use shared_map::{SharedKind, SharedMap};
pub use starter::{
    as_usual, file_bytes_max, is_ignored, keep_descriptors, leave_starter, lift_limits, refuse_beyond_limit,
};
pub use store_lock::{FileLock, StoreLock};
pub use ticker::{Bell, Stopping, Ticker};

/// Size of a page (bytes), the unit of maps and images.
pub const PAGE_BYTES: u64 = 4096;

/// Adds the object's name to an operating system error. The error stays as the source, because the
/// remedy depends on its number.
fn named(path: &Path, source: impl Into<io::Error>) -> io::Error {
    let source = source.into();
    io::Error::new(source.kind(), Named { object: path.display().to_string(), source })
}

#[derive(Debug)]
struct Named {
    object: String,
    source: io::Error,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.object, self.source)
    }
}

impl std::error::Error for Named {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Changes a file's length, durably.
pub fn set_length_durably(path: &Path, bytes: u64) -> io::Result<()> {
    let file = std::fs::OpenOptions::new().write(true).open(path).map_err(|e| named(path, e))?;
    calls::set_len(&file, bytes).and_then(|()| calls::sync_all(&file)).map_err(|e| named(path, e))
}

/// Makes the directory entry of `path` durable.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(parent).and_then(|dir| calls::sync_directory(&dir, parent)).map_err(|e| named(parent, e))
}
