//! Asks the file systems under a store how much space they have left.
//!
//! Log and images are in the store's directory; the memory's file and the bulk file may be
//! elsewhere. A file system that cannot be queried counts as one with enough room, since a write
//! that finds none gets an error.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use shoal_fs::{HostRoom, Room};

use shoal_host::Directory;

use crate::memory::MemoryChoice;

/// Room kept free for log and images on a host that also holds bulk data: this many bytes, or on a
/// small host one part in this many.
const HEADROOM_BYTES: u64 = 64 << 20;
const HEADROOM_PART: u64 = 16;

/// The bulk devices of a store that are files on one host. That is the host of the first device, or
/// of the store if the first is no file.
#[derive(Clone, Default)]
pub(crate) struct HostFiles(Arc<Mutex<Vec<PathBuf>>>);

impl HostFiles {
    /// Adds a further device if it is a file on this host. Returns whether it is.
    pub fn add(&self, directory: &Path, path: &Path) -> bool {
        let mut files = self.0.lock();
        let host = files.first().map_or(directory, PathBuf::as_path);
        let is_there = fs::metadata(path).is_ok_and(|m| m.is_file()) && device(host) == device(path);
        if is_there && !files.iter().any(|known| known == path) {
            files.push(path.to_path_buf());
        }
        is_there
    }

    pub fn has(&self, path: &Path) -> bool {
        self.0.lock().iter().any(|known| known == path)
    }

    pub fn remove(&self, path: &Path) {
        self.0.lock().retain(|known| known != path);
    }

    /// Adds the first device if it is a file, on whatever host.
    pub fn first(&self, path: Option<PathBuf>) {
        // Only a file shares its host's space; a block device has its own.
        self.0.lock().extend(path.filter(|path| fs::metadata(path).is_ok_and(|m| m.is_file())));
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).map(|m| m.dev()).ok()
}

/// The function that queries the room of a store in `directory`. `files` are its bulk devices that
/// are files.
pub(crate) fn probe(directory: &Directory, memory: &MemoryChoice, files: &HostFiles) -> Room {
    let (directory, files) = (directory.clone(), files.clone());
    let own_device = directory.file().metadata().map(|m| m.dev()).ok();
    let properties = memory.kind().properties();
    let file = memory.path().filter(|_| properties.on_demand).map(|path| parent(path));
    // Memory with images takes this process's memory, or counts against it.
    let is_own = properties.images;
    Arc::new(move || {
        let host = shoal_host::held_host_bytes(&directory).ok();
        let files = files.0.lock().clone();
        let taken = |file: &PathBuf| fs::metadata(file).map_or(0, |m| m.blocks() * 512);
        HostRoom {
            region: host.map_or(u64::MAX, |host| host.available_bytes),
            memory: match (&file, is_own) {
                (None, false) => None,
                (None, true) => Some(shoal_host::memory_room_soon_bytes()),
                (Some(file), is_own) => {
                    Some(free(file).min(if is_own { shoal_host::memory_room_soon_bytes() } else { u64::MAX }))
                }
            },
            bulk: files.first().map(|first| files.iter().map(taken).sum::<u64>().saturating_add(free(&parent(first)))),
            shared: files.first().is_some_and(|first| device(first) == own_device),
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
