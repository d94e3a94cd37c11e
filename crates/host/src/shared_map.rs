//! A region mapped in place: the file behind `battery` or `dax` memory.
//!
//! `battery`: a file on tmpfs or hugetlbfs whose pages are RAM. Stores survive this process at
//! once, so write-back and fence do nothing. A store that finds no page would end the process with
//! SIGBUS, so the region takes pages (`reserve`) before it uses them. Lack of memory is then an
//! error of the call that asked for more. `dax`: a file on persistent memory, mapped with MAP_SYNC
//! so that cache-line write-back and fence make a store durable without the kernel. Where the file
//! system refuses MAP_SYNC, stores survive only a process crash, and `sync` (msync) makes them
//! durable; `synchronous` tells which of the two applies.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::MapFlags;
use shoal_media::{MediaError, PersistentMemory, Poison, Result};

use crate::cache_line::{self, LINE_BYTES, LineFlush};
use crate::directory::{Access, open_unlinked};
use crate::map::Map;
use crate::memory_limit::take_memory_soon;
use crate::store_lock::lock_alone;
use crate::{calls, host_kind, named, sync_parent};

/// From this length on, whole lines are stored past the cache (bytes).
const STREAM_BYTES_MIN: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedKind {
    /// RAM that outlives the process, and a power loss as long as its battery holds.
    Battery,
    /// Persistent memory.
    Dax,
}

pub struct SharedMap {
    map: Map,
    file: File,
    kind: SharedKind,
    /// Set for `dax`.
    flush: Option<LineFlush>,
    synchronous: bool,
    /// Writes stay in this process and do not reach the file.
    aside: bool,
    poison: Poison,
    name: String,
}

impl SharedMap {
    /// Creates the file, readable by its owner only, and maps it. `dax` space is reserved at once;
    /// `battery` space is taken page by page.
    pub fn create(path: &Path, bytes: u64, kind: SharedKind) -> io::Result<SharedMap> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = calls::create(&options, path).map_err(|e| named(path, e))?;
        let made = Self::size(&file, bytes, kind)
            .map_err(|e| named(path, e))
            .and_then(|()| Self::map_file(path, file, bytes, kind))
            .and_then(|map| sync_parent(path).map(|()| map));
        if made.is_err() {
            // The file is ours and empty. Leaving it would only block the next attempt.
            let _ = calls::remove_file(path);
        }
        made
    }

    fn size(file: &File, bytes: u64, kind: SharedKind) -> io::Result<()> {
        calls::set_len(file, bytes)?;
        match kind {
            SharedKind::Battery => Ok(()),
            SharedKind::Dax => Ok(calls::fallocate(file, FallocateFlags::empty(), 0, bytes)?),
        }
    }

    /// Maps the whole of an existing file.
    pub fn open(path: &Path, kind: SharedKind) -> io::Result<SharedMap> {
        let file = open_unlinked(path, Access::Write)?;
        let bytes = file.metadata().map_err(|e| named(path, e))?.len();
        Self::map_file(path, file, bytes, kind)
    }

    /// Maps an existing file so that stores stay in this process, for a reader that must replay a
    /// log to see the contents. The file must have no other user meanwhile.
    pub fn open_aside(path: &Path, kind: SharedKind) -> io::Result<SharedMap> {
        let file = open_unlinked(path, Access::Read)?;
        let bytes = file.metadata().map_err(|e| named(path, e))?.len();
        lock_alone(&file).map_err(|e| named(path, e))?;
        let map = Map::of_file(&file, bytes, MapFlags::PRIVATE | MapFlags::NORESERVE).map_err(|e| named(path, e))?;
        let name = format!("region file {}", path.display());
        let poison = Poison::default();
        Ok(SharedMap { map, file, kind, flush: None, synchronous: true, aside: true, poison, name })
    }

    fn map_file(path: &Path, file: File, bytes: u64, kind: SharedKind) -> io::Result<SharedMap> {
        lock_alone(&file).map_err(|e| named(path, e))?;
        let shared = || Map::of_file(&file, bytes, MapFlags::SHARED);
        let (map, flush, synchronous) = match kind {
            SharedKind::Battery => (shared(), None, true),
            SharedKind::Dax => {
                let flush = LineFlush::detect().map_err(|e| named(path, e))?;
                match Map::of_file(&file, bytes, MapFlags::SHARED_VALIDATE | MapFlags::SYNC) {
                    Err(e) if refuses_map_sync(&e) => (shared(), Some(flush), false),
                    mapped => (mapped, Some(flush), true),
                }
            }
        };
        let name = format!("region file {}", path.display());
        let map = map.map_err(|e| named(path, e))?;
        Ok(SharedMap { map, file, kind, flush, synchronous, aside: false, poison: Poison::default(), name })
    }

    /// Returns the user that the file belongs to.
    pub fn owner(&self) -> Option<u32> {
        self.file.metadata().ok().map(|found| found.uid())
    }

    /// Gives the file to a user. Only root may.
    pub fn give_to(&self, user: u32) -> io::Result<()> {
        std::os::unix::fs::fchown(&self.file, Some(user), None)
    }

    /// Returns true if a fence alone keeps the promise of the memory's kind. False for `dax`
    /// without MAP_SYNC, where `sync` is needed.
    pub fn synchronous(&self) -> bool {
        self.synchronous
    }
}

/// Returns true for both errors with which kernels and file systems without the flag answer.
fn refuses_map_sync(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::OPNOTSUPP | Errno::INVAL))
}

impl PersistentMemory for SharedMap {
    fn len(&self) -> u64 {
        self.map.len()
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.map.read(at, out);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.map.write(at, bytes);
    }

    fn zero(&self, at: u64, len: u64) {
        self.map.zero(at, len);
    }

    fn write_through(&self, at: u64, bytes: &[u8]) {
        if self.flush.is_none() || bytes.len() < STREAM_BYTES_MIN {
            self.map.write(at, bytes);
            self.write_back(at, bytes.len() as u64);
            return;
        }
        // The map begins on a page, so offsets and addresses agree about where lines begin.
        let head = (at.next_multiple_of(LINE_BYTES as u64) - at) as usize;
        let body = (bytes.len() - head) / LINE_BYTES * LINE_BYTES;
        let (head, rest) = bytes.split_at(head);
        let (body, tail) = rest.split_at(body);
        let body_at = at + head.len() as u64;
        let tail_at = body_at + body.len() as u64;
        // Check the whole range once, before any of it is stored.
        self.map.at(at, bytes.len());
        let target = self.map.at(body_at, body.len());
        // SAFETY: the target is in bounds (checked by `at`), begins on a line of the page-aligned map, and the
        // length is a multiple of a line; a slice never overlaps the map.
        unsafe { cache_line::stream_lines(target, body) }
        self.map.note(body_at, body);
        for (part_at, part) in [(at, head), (tail_at, tail)] {
            self.map.write(part_at, part);
            self.write_back(part_at, part.len() as u64);
        }
    }

    fn write_back(&self, at: u64, len: u64) {
        let start = self.map.at(at, len as usize);
        if let Some(flush) = self.flush {
            // SAFETY: the range is in bounds (checked by `at`) and mapped while `self` lives.
            unsafe { flush.write_back(start, len as usize) }
        }
    }

    fn reserve(&self, at: u64, len: u64) -> Result<bool> {
        if self.aside {
            return Ok(false);
        }
        match self.kind {
            // All pages were taken when the file was created.
            SharedKind::Dax => Ok(false),
            SharedKind::Battery => {
                // A region fills from its start, so the file already has what it needs up to the
                // bytes taken.
                let is_memory = host_kind::is_tmpfs(&self.file).unwrap_or(false);
                let taken = if is_memory { self.file.metadata().map_or(0, |m| m.blocks() * 512) } else { u64::MAX };
                let more = (at + len).saturating_sub(at.max(taken));
                if more > 0 && !take_memory_soon(more) {
                    return Err(MediaError::NoSpace { what: self.name.as_str().into() });
                }
                host_kind::allocate(&self.file, at, len).map_err(|e| MediaError::io(self.name.as_str(), e))
            }
        }
    }

    fn fence(&self) {
        if self.flush.is_some() {
            cache_line::fence();
        }
    }

    fn sync(&self) -> Result<()> {
        if self.synchronous {
            self.fence();
            return Ok(());
        }
        self.poison.refuse(&self.name)?;
        self.map.msync().map_err(|e| {
            self.poison.set(&e);
            MediaError::Io { what: self.name.clone(), source: std::sync::Arc::new(e) }
        })
    }

    #[inline]
    fn read_u64(&self, at: u64) -> u64 {
        self.map.read_u64(at)
    }

    #[inline]
    fn write_u64(&self, at: u64, value: u64) {
        self.map.write_u64(at, value);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_region_has_one_user_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        let first = SharedMap::create(&path, 1 << 20, SharedKind::Battery).unwrap();
        let refused = SharedMap::open(&path, SharedKind::Battery).map(drop).unwrap_err();
        assert!(refused.to_string().contains("is in use by another store or process"), "{refused}");
        drop(first);
        SharedMap::open(&path, SharedKind::Battery).unwrap();
    }

    #[test]
    fn stores_are_there_when_the_file_is_mapped_again() {
        let dir = tempfile::tempdir().unwrap();
        for kind in [SharedKind::Battery, SharedKind::Dax] {
            let path = dir.path().join(format!("{kind:?}"));
            let memory = SharedMap::create(&path, 1 << 20, kind).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(SharedMap::create(&path, 1 << 20, kind).is_err(), "an existing region is not overwritten");
            memory.write_u64(77, 99);
            memory.write_back(77, 8);
            memory.fence();
            memory.sync().unwrap();
            drop(memory);
            let memory = SharedMap::open(&path, kind).unwrap();
            assert_eq!((memory.len(), memory.read_u64(77)), (1 << 20, 99));
        }
    }

    #[test]
    fn a_write_through_stores_the_same_bytes_as_a_write_at_any_alignment() {
        let dir = tempfile::tempdir().unwrap();
        let memory = SharedMap::create(&dir.path().join("r"), 1 << 16, SharedKind::Dax).unwrap();
        for (at, len) in [(0, 0), (1, 255), (0, 256), (64, 256), (63, 257), (5, 1000), (128, 4096), (65, 330)] {
            memory.zero(0, 1 << 16);
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
            memory.write_through(at, &bytes);
            memory.fence();
            let mut all = vec![0; 1 << 16];
            memory.read(0, &mut all);
            assert_eq!(&all[at as usize..][..len], bytes, "{len} bytes at {at}");
            let rest = all[..at as usize].iter().chain(&all[at as usize + len..]);
            assert!(rest.clone().all(|&b| b == 0), "{len} bytes at {at} stayed within their range");
        }
    }

    #[test]
    fn every_write_back_instruction_the_processor_has_keeps_the_contents() {
        let map = Map::anonymous(1 << 16).unwrap();
        map.write(100, &[5; 1000]);
        let best = LineFlush::detect().unwrap();
        for flush in [LineFlush::Flush, best] {
            // SAFETY: the range lies within the map.
            unsafe { flush.write_back(map.at(100, 1000), 1000) }
            cache_line::fence();
        }
        let mut out = [0; 1000];
        map.read(100, &mut out);
        assert_eq!(out, [5; 1000]);
    }

    #[test]
    fn what_is_written_aside_does_not_reach_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("region");
        let bytes = 64 << 10;
        SharedMap::create(&path, bytes, SharedKind::Battery).unwrap().write_through(100, b"found");
        let seen = || {
            let found = std::fs::metadata(&path).unwrap();
            (found.mtime(), found.mtime_nsec(), found.len(), found.blocks())
        };
        let before = seen();
        let map = SharedMap::open_aside(&path, SharedKind::Battery).unwrap();
        let mut out = [0; 5];
        map.read(100, &mut out);
        assert_eq!(&out, b"found");
        map.write(100, b"aside");
        map.write_through(8192, &[7; 5000]);
        map.zero(16384, 4096);
        assert!(!map.reserve(0, bytes).unwrap());
        map.fence();
        map.sync().unwrap();
        map.read(100, &mut out);
        assert_eq!(&out, b"aside");
        assert!(SharedMap::open(&path, SharedKind::Battery).is_err(), "the file must have no other user");
        drop(map);
        assert_eq!(seen(), before);
        SharedMap::open(&path, SharedKind::Battery).unwrap().read(100, &mut out);
        assert_eq!(&out, b"found");
    }

    #[test]
    fn a_write_through_across_the_end_panics_before_it_stores() {
        let dir = tempfile::tempdir().unwrap();
        let memory = SharedMap::create(&dir.path().join("r"), 4096, SharedKind::Dax).unwrap();
        // All whole lines would fit; only the last byte does not.
        let stored = std::panic::catch_unwind(|| memory.write_through(4096 - 256, &[1; 257]));
        assert!(stored.is_err());
        assert_eq!(memory.read_u64(4096 - 256), 0);
    }
}
