//! The memory of a write-back cache: a mapped file on tmpfs, whose contents outlive this process.
//!
//! Rules:
//! - The file has one user at a time.
//! - Its memory is taken range by range (`reserve`) before it is stored to, since a store that
//!   finds none would end the process. `may_take` is asked first, because a control group without
//!   memory kills the process. `discard` gives memory back.
//! - A file system other than tmpfs is refused: it would write the pages to a disk, and a power
//!   loss would lose an arbitrary part of them.
//!
//! Left out: the meaning of the bytes (`shoal_format::cache`).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FallocateFlags;
use rustix::mm::MapFlags;
use shoal_media::{MediaError, PersistentMemory, Result};

use crate::directory::{Access, open_unlinked, remove_held};
use crate::map::Map;
use crate::memory_limit::take_memory;
use crate::store_lock::lock_alone;
use crate::{calls, host_kind, named};

pub struct CacheFile {
    map: Map,
    file: File,
    path: PathBuf,
    /// Stores stay in this process and do not reach the file.
    aside: bool,
    /// One bit for each page that has been written since it got its memory.
    written: Box<[AtomicU64]>,
}

impl CacheFile {
    /// Creates a file of `bytes`, readable by its owner only. It has no memory yet.
    pub fn create(path: &Path, bytes: u64) -> io::Result<CacheFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = calls::create(&options, path).map_err(|e| named(path, e))?;
        let made = CacheFile::refuse_disks(&file)
            .and_then(|()| calls::set_len(&file, bytes))
            .map_err(|e| named(path, e))
            .and_then(|()| CacheFile::over(path, file, MapFlags::SHARED));
        if made.is_err() {
            // The file is ours and empty. Leaving it would only take up room.
            let _ = calls::remove_file(path);
        }
        made
    }

    /// Opens a file that an earlier process left. With `aside`, stores stay in this process.
    pub fn open(path: &Path, aside: bool) -> io::Result<CacheFile> {
        let file = open_unlinked(path, Access::reading(aside))?;
        CacheFile::refuse_disks(&file).map_err(|e| named(path, e))?;
        let flags = if aside { MapFlags::PRIVATE | MapFlags::NORESERVE } else { MapFlags::SHARED };
        CacheFile::over(path, file, flags)
    }

    /// Opens a file that may have a user, only to inspect it. Stores stay in this process.
    pub fn peek(path: &Path) -> io::Result<CacheFile> {
        let file = open_unlinked(path, Access::Read)?;
        CacheFile::refuse_disks(&file).map_err(|e| named(path, e))?;
        CacheFile::mapped(path, file, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    fn refuse_disks(file: &File) -> io::Result<()> {
        if !host_kind::is_tmpfs(file)? {
            let message = "is not on tmpfs: name a folder that is, such as /dev/shm";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    fn over(path: &Path, file: File, flags: MapFlags) -> io::Result<CacheFile> {
        lock_alone(&file).map_err(|e| named(path, e))?;
        CacheFile::mapped(path, file, flags)
    }

    fn mapped(path: &Path, file: File, flags: MapFlags) -> io::Result<CacheFile> {
        let found = file.metadata().map_err(|e| named(path, e))?;
        // The file was created for its owner alone, so a file of another user was put in its place.
        if !found.is_file() || found.uid() != rustix::process::geteuid().as_raw() {
            let message = "is no file of this user's";
            return Err(named(path, io::Error::new(io::ErrorKind::PermissionDenied, message)));
        }
        let bytes = found.len() / crate::PAGE_BYTES * crate::PAGE_BYTES;
        let map = Map::of_file(&file, bytes, flags).map_err(|e| named(path, e))?;
        let written = (0..(bytes / crate::PAGE_BYTES).div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(CacheFile { map, file, path: path.to_path_buf(), aside: flags.contains(MapFlags::PRIVATE), written })
    }

    /// Returns the words of `written` that cover a range of whole pages, each with the mask of
    /// those pages' bits.
    fn bits_of(&self, at: u64, len: u64) -> impl Iterator<Item = (&AtomicU64, u64)> {
        let (first, end) = (at / crate::PAGE_BYTES, (at + len) / crate::PAGE_BYTES);
        (first / 64..end.div_ceil(64)).map(move |word| {
            let (from, to) = (first.max(word * 64) - word * 64, end.min(word * 64 + 64) - word * 64);
            (&self.written[word as usize], u64::MAX >> (64 - (to - from)) << from)
        })
    }

    /// Writes a range that has unwritten pages by a system call. The first store to such a page
    /// through the map costs a fault, and zeroing that is overwritten at once. The map shows the
    /// data when the call returns. Returns false if the caller must write through the map.
    fn write_fresh(&self, at: u64, bytes: &[u8]) -> bool {
        let len = bytes.len() as u64;
        let is_whole = at.is_multiple_of(crate::PAGE_BYTES) && len.is_multiple_of(crate::PAGE_BYTES);
        if self.aside || bytes.is_empty() || !is_whole || len > self.map.len().saturating_sub(at) {
            return false;
        }
        if self.bits_of(at, len).all(|(word, bits)| word.load(Ordering::Relaxed) & bits == bits) {
            return false;
        }
        let is_written = calls::write_all_at(&self.file, bytes, at).is_ok();
        if is_written {
            for (word, bits) in self.bits_of(at, len) {
                word.fetch_or(bits, Ordering::Relaxed);
            }
        }
        is_written
    }

    /// Removes the file's name. Another file that was put in its place stays.
    pub fn remove(&self) -> io::Result<()> {
        remove_held(&self.path, &self.file).map(drop)
    }

    /// Its path when it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file still exists under its name. Without the name, held data does not
    /// outlive this process.
    pub fn is_named(&self) -> bool {
        let own = self.file.metadata().ok();
        let named = std::fs::symlink_metadata(&self.path).ok();
        own.zip(named).is_some_and(|(own, named)| (own.dev(), own.ino()) == (named.dev(), named.ino()))
    }
}

impl PersistentMemory for CacheFile {
    fn len(&self) -> u64 {
        self.map.len()
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.map.read(at, out);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        if !self.write_fresh(at, bytes) {
            self.map.write(at, bytes);
        }
    }

    fn zero(&self, at: u64, len: u64) {
        self.map.zero(at, len);
    }

    fn write_back(&self, _at: u64, _len: u64) {}

    fn fence(&self) {}

    fn may_take(&self, len: u64) -> bool {
        take_memory(len)
    }

    fn reserve(&self, at: u64, len: u64) -> Result<bool> {
        // A cache that is only inspected takes no memory. A page that is gone reads as zeros, which
        // match no checksum.
        if self.aside {
            return Ok(false);
        }
        let taken = host_kind::allocate(&self.file, at, len);
        taken.map_err(|e| MediaError::io(format!("write-back cache {}", self.path.display()), e))
    }

    fn discard(&self, at: u64, len: u64) {
        if !self.aside && len > 0 {
            for (word, bits) in self.bits_of(at, len) {
                word.fetch_and(!bits, Ordering::Relaxed);
            }
            // If this fails, the kernel merely keeps the memory.
            let _ = calls::fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len);
        }
    }

    fn write_to(&self, pieces: &[(u64, u64)], file: &File, at: u64) -> Option<io::Result<()>> {
        Some(calls::write_map_at(file, &self.map, pieces, at))
    }

    fn read_u64(&self, at: u64) -> u64 {
        self.map.read_u64(at)
    }

    fn write_u64(&self, at: u64, value: u64) {
        self.map.write_u64(at, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn memory_is_taken_when_it_is_reserved_and_given_back() {
        let dir = shared();
        let path = dir.path().join("cache");
        let file = CacheFile::create(&path, 1 << 20).unwrap();
        let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
        assert_eq!(taken(), 0);
        file.reserve(65536, 131072).unwrap();
        assert_eq!(taken(), 131072);
        file.write(65536, &[5; 4096]);
        // The first write uses the system call, the second the map. The range spans more than one
        // word of `written`.
        for value in [6, 7] {
            file.write(65536, &[value; 131072 - 4096]);
            let mut out = [0; 131072];
            file.read(65536, &mut out);
            assert!(out[..131072 - 4096].iter().all(|&byte| byte == value) && out[131072 - 4096..] == [0; 4096]);
        }
        file.discard(65536, 65536);
        assert_eq!(taken(), 65536);
        assert_eq!(file.read_u64(65536), 0);
    }

    #[test]
    fn stores_outlive_the_map_and_those_of_a_reader_do_not() {
        let dir = shared();
        let path = dir.path().join("cache");
        let file = CacheFile::create(&path, 1 << 20).unwrap();
        file.reserve(0, 8192).unwrap();
        file.write(100, b"held");
        assert!(CacheFile::open(&path, false).is_err(), "it has one user at a time");
        assert!(file.is_named());
        drop(file);
        let aside = CacheFile::open(&path, true).unwrap();
        aside.write(100, b"gone");
        aside.discard(0, 4096);
        drop(aside);
        let file = CacheFile::open(&path, false).unwrap();
        let mut out = [0; 4];
        file.read(100, &mut out);
        assert_eq!(&out, b"held");
        std::fs::remove_file(&path).unwrap();
        assert!(!file.is_named());
    }

    #[test]
    fn a_disk_and_a_link_are_refused() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("cache");
        let error = CacheFile::create(&path, 1 << 20).map(drop).unwrap_err().to_string();
        assert!(error.contains("not on tmpfs") && !path.exists(), "{error}");
        let dir = shared();
        std::fs::write(dir.path().join("other"), [0; 4096]).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), dir.path().join("cache")).unwrap();
        assert!(CacheFile::open(&dir.path().join("cache"), false).is_err());
    }
}
