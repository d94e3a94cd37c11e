//! Asks the file systems under a store how much space they have left.
//!
//! Log and images are in the store's directory; the memory's file and the bulk file may be
//! elsewhere. A file system that cannot be queried counts as one with enough room, since a write
//! that finds none gets an error.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use shoal_fs::{HostRoom, Room};

use shoal_host::Directory;

use crate::memory::MemoryChoice;

/// Room kept free for log and images on a host that also holds bulk data: this many bytes, or on a
/// small host one part in this many.
const HEADROOM_BYTES: u64 = 64 << 20;
const HEADROOM_PART: u64 = 16;

/// A file or directory whose path may come to name something else while the store is open.
struct Held {
    path: PathBuf,
    file: File,
}

impl Held {
    fn new(path: &Path) -> Option<Held> {
        // Held without access: only the file's size and its host are asked for.
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some(Held { path: path.into(), file: file.into() })
    }

    /// Holds a file; a block device has its own space.
    fn of_file(path: &Path) -> Option<Arc<Held>> {
        Held::new(path).filter(|held| held.file.metadata().is_ok_and(|m| m.is_file())).map(Arc::new)
    }

    fn device(&self) -> Option<u64> {
        self.file.metadata().map(|m| m.dev()).ok()
    }

    fn taken_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |m| m.blocks() * 512)
    }

    fn free_bytes(&self) -> u64 {
        shoal_host::held_host_bytes(&self.file, &self.path).map_or(u64::MAX, |host| host.available_bytes)
    }

    /// Returns whether the file is at `path` now, or was if nothing is there.
    fn is_at(&self, path: &Path) -> bool {
        match (fs::metadata(path), self.file.metadata()) {
            (Ok(there), Ok(held)) => (there.dev(), there.ino()) == (held.dev(), held.ino()),
            _ => self.path == path,
        }
    }
}

/// The bulk devices of a store that are files on one host. That is the host of the first device, or
/// of the store if the first is no file.
#[derive(Clone, Default)]
pub(crate) struct HostFiles(Arc<Mutex<Vec<Arc<Held>>>>);

impl HostFiles {
    /// Adds a further device if it is a file on the host of the first one, or of the store's
    /// directory. Returns whether it is.
    pub fn add(&self, directory: &Directory, path: &Path) -> bool {
        let mut files = self.0.lock();
        let host = match files.first() {
            Some(first) => first.device(),
            None => directory.file().metadata().map(|m| m.dev()).ok(),
        };
        let Some(held) = Held::of_file(path).filter(|held| held.device() == host) else { return false };
        files.retain(|known| !known.is_at(path));
        files.push(held);
        true
    }

    pub fn has(&self, path: &Path) -> bool {
        self.0.lock().iter().any(|known| known.is_at(path))
    }

    /// Takes the file that is at the path of a known one now. Returns whether there is a known one.
    pub fn retake(&self, path: &Path) -> bool {
        let mut files = self.0.lock();
        let Some(known) = files.iter_mut().find(|known| known.path == path || known.is_at(path)) else { return false };
        if let Some(held) = Held::of_file(path) {
            *known = held;
        }
        true
    }

    pub fn remove(&self, path: &Path) {
        self.0.lock().retain(|known| !known.is_at(path));
    }

    /// Adds the first device if it is a file, on whatever host.
    pub fn first(&self, path: Option<PathBuf>) {
        self.0.lock().extend(path.and_then(|path| Held::of_file(&path)));
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// Returns the function that queries the room of a store in `directory`. `files` are its bulk
/// devices that are files.
pub(crate) fn probe(directory: &Directory, memory: &MemoryChoice, files: &HostFiles) -> Room {
    let (directory, files) = (directory.clone(), files.clone());
    let own_device = directory.file().metadata().map(|m| m.dev()).ok();
    let properties = memory.kind().properties();
    let grows = properties.on_demand && memory.path().is_some();
    let host_of_memory = memory.path().filter(|_| grows).and_then(|path| Held::new(&parent(path)));
    // Memory with images takes this process's memory, or counts against it.
    let is_own = properties.images;
    Arc::new(move || {
        let host = shoal_host::held_host_bytes(&directory, directory.path()).ok();
        let files = files.0.lock().clone();
        let taken = || files.iter().map(|file| file.taken_bytes()).sum::<u64>();
        HostRoom {
            region: host.map_or(u64::MAX, |host| host.available_bytes),
            memory: {
                let own = is_own.then(shoal_host::memory_room_soon_bytes);
                let host = grows.then(|| host_of_memory.as_ref().map_or(u64::MAX, Held::free_bytes));
                own.into_iter().chain(host).min()
            },
            bulk: files.first().map(|first| taken().saturating_add(first.free_bytes())),
            shared: files.first().is_some_and(|first| first.device() == own_device),
            headroom: host.map_or(0, |host| (host.total_bytes / HEADROOM_PART).min(HEADROOM_BYTES)),
        }
    })
}

fn parent(path: &Path) -> PathBuf {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_counted_where_it_went_and_not_what_took_its_path() {
        let scratch = tempfile::tempdir().unwrap();
        let (path, moved) = (scratch.path().join("store"), scratch.path().join("moved"));
        let bulk = |bytes: usize| {
            fs::create_dir(&path).unwrap();
            fs::write(path.join("bulk"), vec![1; bytes]).unwrap();
        };
        bulk(1 << 16);
        let files = HostFiles::default();
        files.first(Some(path.join("bulk")));
        let taken = || files.0.lock().iter().map(|file| file.taken_bytes()).collect::<Vec<_>>();
        fs::rename(&path, &moved).unwrap();
        bulk(1 << 20);
        assert_eq!(taken(), [1 << 16]);
        assert!(files.has(&moved.join("bulk")) && !files.has(&path.join("bulk")));
        assert!(files.retake(&path.join("bulk")), "a file that took the place and is used from now on");
        assert_eq!(taken(), [1 << 20]);
        assert!(!files.retake(&moved.join("bulk")));
        files.remove(&path.join("bulk"));
        assert!(files.is_empty());
    }
}
