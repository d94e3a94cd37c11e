//! Bulk storage on a file or a block device (`file:PATH`), through the page cache or past it.
//!
//! Requests are carried out in `submit`, so their completion runs before it returns. A flush is
//! `fdatasync` and covers every earlier write. Completed writes are in the page cache or on the
//! disk, and survive the process. Past the page cache ([`FileDevice::bypass_cache`]) requests use
//! page-aligned buffers. A request that the host's file system refuses there goes through the page
//! cache, which the kernel keeps coherent. After a failed flush (or a failed flush of a FUA write)
//! the device refuses further writes. A write that finds no space may have stored a part of its
//! range; nothing is promised about the range until it is written again. The engines define the
//! meaning of the bytes.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use shoal_media::{BlockDevice, BlockGeometry, Completion, Lent, MediaError, Poison, Request, Result, WriteCache};

use crate::planted::{Bug, is_planted};
use crate::starter::refuse_beyond_limit;
use crate::store_lock::lock_alone;
use crate::{calls, host_kind, named, sync_parent};

/// Alignment of requests, and the unit that no crash tears (bytes).
const BLOCK_BYTES: u32 = 512;
/// Unit in which room is reserved for later writes (bytes).
const PIECE_BYTES: u64 = 1 << 16;
/// Most that one trim call gives back (bytes). A log sync on the same file system waits for the
/// call to end.
const TRIM_BYTES: u64 = 16 << 20;
/// Zeros written at a time where the file system cannot zero a range itself.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Alignment of buffers and ranges past the page cache (bytes).
const PAGE: usize = 4096;

/// A buffer that contains a page-aligned part.
struct Aligned(Vec<u8>);

impl Aligned {
    fn new(len: usize) -> Aligned {
        Aligned(vec![0; len + PAGE])
    }

    /// Returns the first `len` bytes of the page-aligned part.
    fn bytes(&mut self, len: usize) -> &mut [u8] {
        if self.0.len() < len + PAGE {
            *self = Aligned::new(len);
        }
        let skip = self.0.as_ptr().align_offset(PAGE);
        &mut self.0[skip..skip + len]
    }
}

thread_local! {
    /// A thread's buffer for requests past the page cache.
    static BUFFER: RefCell<Aligned> = RefCell::new(Aligned::new(0));
}

/// Buffers longer than this are not kept (bytes).
const KEPT_BYTES_MAX: usize = 1 << 20;

fn with_aligned<T>(len: usize, work: impl FnOnce(&mut [u8]) -> io::Result<T>) -> io::Result<T> {
    if len > KEPT_BYTES_MAX {
        return work(Aligned::new(len).bytes(len));
    }
    BUFFER.with_borrow_mut(|buffer| work(buffer.bytes(len)))
}

pub struct FileDevice {
    file: File,
    /// `file`, opened to bypass the page cache.
    direct: OnceLock<File>,
    takes_lent: bool,
    path: PathBuf,
    /// One bit for each piece of the file whose room is reserved.
    reserved: OnceLock<Box<[AtomicU64]>>,
    bytes: u64,
    poison: Poison,
    name: String,
}

/// Returns true if the host or the device itself takes no writes, so that the file cannot be opened
/// for writing.
fn takes_no_writes(error: &io::Error, path: &Path) -> bool {
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => true,
        io::ErrorKind::PermissionDenied => {
            std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
        }
        _ => false,
    }
}

impl FileDevice {
    /// Creates a sparse file of `bytes`, readable by its owner only. An existing file is used only
    /// if it is empty.
    pub fn create(path: &Path, bytes: u64) -> io::Result<FileDevice> {
        if !bytes.is_multiple_of(BLOCK_BYTES as u64) {
            let message = format!("a size of {bytes} bytes is not a multiple of {BLOCK_BYTES}");
            return Err(named(path, io::Error::new(io::ErrorKind::InvalidInput, message)));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = calls::create(&options, path).map_err(|e| named(path, e))?;
        let found = file.metadata().map_err(|e| named(path, e))?;
        if !found.is_file() || found.len() != 0 {
            let message = "exists and is not an empty file: choose another path, or remove it first";
            return Err(named(path, io::Error::new(io::ErrorKind::AlreadyExists, message)));
        }
        // Set it only while the file is empty: a file with contents keeps its way of writing.
        host_kind::write_in_place(&file);
        refuse_beyond_limit(bytes).map_err(|e| named(path, e))?;
        calls::set_len(&file, bytes).and_then(|()| calls::sync_all(&file)).map_err(|e| named(path, e))?;
        sync_parent(path)?;
        Ok(Self::over(file, bytes, path))
    }

    /// Opens a file or a block device. A partial block at the end is not used.
    pub fn open(path: &Path) -> io::Result<FileDevice> {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        // A backup medium is opened read-only: writes are refused, but everything can be read.
        let opened = opened.or_else(|error| match takes_no_writes(&error, path) {
            true => File::open(path),
            false => Err(error),
        });
        let mut file = opened.map_err(|e| named(path, e))?;
        // The metadata of a block device has no length, but seeking finds its end.
        let bytes = file.seek(SeekFrom::End(0)).map_err(|e| named(path, e))?;
        if file.metadata().is_ok_and(|found| found.is_file()) {
            // A write beyond the limit would fail only after it was promised.
            refuse_beyond_limit(bytes).map_err(|e| named(path, e))?;
        }
        Ok(Self::over(file, bytes - bytes % BLOCK_BYTES as u64, path))
    }

    /// Returns the user that the file or device belongs to.
    pub fn owner(&self) -> io::Result<u32> {
        self.file.metadata().map(|found| found.uid())
    }

    /// Gives the file to a user. Only root may.
    pub fn give_to(&self, user: u32) -> io::Result<()> {
        std::os::unix::fs::fchown(&self.file, Some(user), None)
    }

    /// Locks the device against every other process that claims it, for as long as this process has
    /// it open.
    pub fn claim(&self) -> io::Result<()> {
        lock_alone(&self.file)
    }

    /// Sends data past the page cache from now on, for a user that has its own cache. Returns false
    /// where the host's file system cannot.
    pub fn bypass_cache(&self) -> bool {
        if self.direct.get().is_some() {
            return true;
        }
        let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
        let Ok(file) = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path) else {
            return false;
        };
        let id = |file: &File| file.metadata().map(|m| (m.dev(), m.ino())).ok();
        // The name may lead to another file by now, and a file system may refuse direct I/O only on
        // first use.
        let is_same = id(&file).is_some() && id(&file) == id(&self.file);
        let mut probe = Aligned::new(PAGE);
        let works = is_same && (self.bytes < PAGE as u64 || file.read_exact_at(probe.bytes(PAGE), 0).is_ok());
        works && self.direct.set(file).is_ok()
    }

    /// Returns the file past the page cache, if a request of `len` bytes at `at` is aligned for it.
    fn direct(&self, at: u64, len: usize) -> Option<&File> {
        let is_aligned = at.is_multiple_of(PAGE as u64) && len.is_multiple_of(PAGE) && len > 0;
        self.direct.get().filter(|_| is_aligned)
    }

    fn over(file: File, bytes: u64, path: &Path) -> FileDevice {
        let (direct, reserved, path) = (OnceLock::new(), OnceLock::new(), path.to_path_buf());
        let (name, takes_lent) = (format!("bulk file {}", path.display()), host_kind::takes_absent_pages(&file));
        FileDevice { file, direct, takes_lent, path, reserved, bytes, poison: Poison::default(), name }
    }

    fn io_error(&self, source: io::Error) -> MediaError {
        MediaError::io(self.name.as_str(), source)
    }

    fn check_range(&self, at: u64, len: u64) -> Result<()> {
        let block = BLOCK_BYTES as u64;
        if !at.is_multiple_of(block) || !len.is_multiple_of(block) || at > self.bytes || len > self.bytes - at {
            return Err(MediaError::OutOfRange { what: self.name.clone(), at, len });
        }
        Ok(())
    }

    /// Returns the pieces of a range, each with its word and bit in `reserved`.
    fn pieces(&self, at: u64, len: u64) -> impl Iterator<Item = (u64, &AtomicU64, u64)> {
        let words = self.reserved.get_or_init(|| {
            let words = self.bytes.div_ceil(PIECE_BYTES).div_ceil(64);
            (0..words).map(|_| AtomicU64::new(0)).collect()
        });
        let pieces = at / PIECE_BYTES..(at + len).div_ceil(PIECE_BYTES);
        pieces.map(move |piece| (piece, &words[(piece / 64) as usize], 1 << (piece % 64)))
    }

    fn refuse_poisoned(&self) -> Result<()> {
        self.poison.refuse(&self.name)
    }

    fn flush(&self) -> Result<()> {
        self.refuse_poisoned()?;
        if is_planted(Bug::BulkUnflushed) {
            return Ok(());
        }
        calls::sync_data(&self.file).map_err(|e| {
            self.poison.set(&e);
            MediaError::Io { what: self.name.clone(), source: Arc::new(e) }
        })
    }

    fn trim(&self, at: u64, len: u64) -> Result<()> {
        self.refuse_poisoned()?;
        self.check_range(at, len)?;
        if len == 0 {
            return Ok(());
        }
        if self.reserved.get().is_some() {
            for (_, word, bit) in self.pieces(at, len) {
                word.fetch_and(!bit, Ordering::Relaxed);
            }
        }
        let (mut from, end) = (at, at + len);
        while from < end {
            let step = end.min((from / TRIM_BYTES + 1) * TRIM_BYTES) - from;
            match calls::fallocate(&self.file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, from, step) {
                Ok(()) => from += step,
                // Trim is a hint: a file system that does not support it keeps the bytes.
                Err(Errno::OPNOTSUPP) => break,
                Err(e) => return Err(self.io_error(e.into())),
            }
        }
        Ok(())
    }

    fn write_zeroes(&self, at: u64, len: u64) -> Result<()> {
        self.refuse_poisoned()?;
        self.check_range(at, len)?;
        if len == 0 {
            return Ok(());
        }
        match calls::fallocate(&self.file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, at, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP) => self.store_zeros(at, len),
            Err(e) => Err(self.io_error(e.into())),
        }
    }

    fn store_zeros(&self, at: u64, len: u64) -> Result<()> {
        let end = at + len;
        for piece in (at..end).step_by(ZEROS.len()) {
            let piece_len = (end - piece).min(ZEROS.len() as u64) as usize;
            calls::write_all_at(&self.file, &ZEROS[..piece_len], piece).map_err(|e| self.io_error(e))?;
        }
        Ok(())
    }

    /// Returns whether a write past the page cache has failed only because this file system has no direct I/O, or
    /// needs other alignments.
    fn is_refused<T>(written: &io::Result<T>) -> bool {
        written.as_ref().is_err_and(|error| error.raw_os_error() == Some(Errno::INVAL.raw_os_error()))
    }

    /// Writes lent bytes from where they are. `None` if their memory cannot do that.
    fn write_lent(&self, at: u64, lent: &Lent) -> Option<Result<()>> {
        let len = lent.len();
        if let Err(error) = self.refuse_poisoned().and_then(|()| self.check_range(at, len)) {
            return Some(Err(error));
        }
        let is_aligned = lent.pieces.iter().all(|&(from, len)| (from | len).is_multiple_of(PAGE as u64));
        if let Some(direct) = self.direct(at, len as usize).filter(|_| is_aligned) {
            let written = lent.memory.write_to(&lent.pieces, direct, at)?;
            if !FileDevice::is_refused(&written) {
                return Some(written.map_err(|error| self.io_error(error)));
            }
        }
        let written = lent.memory.write_to(&lent.pieces, &self.file, at)?;
        Some(written.map_err(|error| self.io_error(error)))
    }

    fn carry_out(&self, request: Request) -> Result<Vec<u8>> {
        let flush_if = |fua: bool| if fua { self.flush() } else { Ok(()) };
        match request {
            Request::Read { at, mut buffer } => {
                self.read_into(at, &mut buffer)?;
                Ok(buffer)
            }
            Request::Write { at, buffer, fua } => {
                self.write_from(at, &buffer)?;
                flush_if(fua)?;
                Ok(buffer)
            }
            Request::Flush => self.flush().map(|()| Vec::new()),
            Request::Trim { at, len } => self.trim(at, len).map(|()| Vec::new()),
            Request::WriteZeroes { at, len, fua } => {
                self.write_zeroes(at, len)?;
                flush_if(fua)?;
                Ok(Vec::new())
            }
        }
    }
}

impl BlockDevice for FileDevice {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        BlockGeometry { bytes: self.bytes, block_bytes: BLOCK_BYTES, atomic_bytes: BLOCK_BYTES, survives_process: true }
    }

    fn submit(&self, request: Request, done: Completion) {
        done(self.carry_out(request));
    }

    fn takes_lent(&self) -> bool {
        self.takes_lent
    }

    fn submit_lent(&self, at: u64, lent: Lent, done: Completion) {
        done(
            self.write_lent(at, &lent)
                .unwrap_or_else(|| {
                    let mut bytes = Vec::new();
                    lent.copy_to(&mut bytes);
                    self.write_from(at, &bytes)
                })
                .map(|()| vec![]),
        );
    }

    fn reserve(&self, at: u64, len: u64) -> Result<()> {
        self.check_range(at, len)?;
        let missing: Vec<u64> = self
            .pieces(at, len)
            .filter(|(_, word, bit)| word.load(Ordering::Relaxed) & bit == 0)
            .map(|(piece, ..)| piece)
            .collect();
        let (Some(first), Some(last)) = (missing.first(), missing.last()) else { return Ok(()) };
        let (from, to) = (first * PIECE_BYTES, ((last + 1) * PIECE_BYTES).min(self.bytes));
        match calls::fallocate(&self.file, FallocateFlags::KEEP_SIZE, from, to - from) {
            // A block device, and a file system that cannot reserve, guarantee no room.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::SPIPE) => {}
            Err(e) => return Err(self.io_error(e.into())),
        }
        for (_, word, bit) in self.pieces(at, len) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }

    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.check_range(at, out.len() as u64)?;
        if let Some(direct) = self.direct(at, out.len()) {
            let read = with_aligned(out.len(), |buffer| {
                direct.read_exact_at(buffer, at)?;
                out.copy_from_slice(buffer);
                Ok(())
            });
            if read.is_ok() {
                return Ok(());
            }
        }
        self.file.read_exact_at(out, at).map_err(|e| self.io_error(e))
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.refuse_poisoned()?;
        self.check_range(at, bytes.len() as u64)?;
        if let Some(direct) = self.direct(at, bytes.len()) {
            let written = with_aligned(bytes.len(), |buffer| {
                buffer.copy_from_slice(bytes);
                calls::write_all_at(direct, buffer, at)
            });
            if !FileDevice::is_refused(&written) {
                return written.map_err(|error| self.io_error(error));
            }
        }
        calls::write_all_at(&self.file, bytes, at).map_err(|e| self.io_error(e))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use shoal_media::PersistentMemory;

    use super::*;

    const BYTES: u64 = 1 << 20;

    /// Pages that lie apart in their memory are more pieces than one system call takes.
    #[test]
    fn lent_pieces_are_written_in_order_past_the_page_cache_and_through_it() {
        const PAGES: u64 = 2500;
        let shared = tempfile::tempdir_in("/dev/shm").unwrap();
        let memory = crate::CacheFile::create(&shared.path().join("cache"), 2 * PAGES * PAGE as u64).unwrap();
        memory.reserve(0, memory.len()).unwrap();
        for page in 0..2 * PAGES {
            memory.write_u64(page * PAGE as u64 + 8, page);
        }
        let memory = Arc::new(memory);
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        for (number, bypasses, skip) in [(0, true, 0), (1, false, 0), (2, true, 512)] {
            let device = FileDevice::create(&dir.path().join(number.to_string()), 16 << 20).unwrap();
            assert!(!bypasses || device.bypass_cache());
            // Every second page, the last first; or, not aligned for direct I/O, from within a page on.
            let pieces = (0..PAGES).rev().map(|page| (2 * page * PAGE as u64 + skip, PAGE as u64 - skip)).collect();
            let lent = || Lent { memory: memory.clone(), pieces: Vec::clone(&pieces) };
            let (mut expected, mut found) = (Vec::new(), vec![0; lent().len() as usize]);
            lent().copy_to(&mut expected);
            assert!(device.takes_lent());
            device.submit_lent(4096, lent(), Box::new(|result| assert!(result.unwrap().is_empty())));
            shoal_media::read(&device, 4096, &mut found).unwrap();
            assert!(found == expected, "device {number}");
            let beyond = |result: Result<Vec<u8>>| assert!(matches!(result, Err(MediaError::OutOfRange { .. })));
            device.submit_lent(8 << 20, lent(), Box::new(beyond));
        }
    }

    fn device() -> (tempfile::TempDir, FileDevice) {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create(&dir.path().join("bulk"), BYTES).unwrap();
        (dir, device)
    }

    #[test]
    fn written_blocks_are_read_back_after_reopening() {
        let (dir, device) = device();
        shoal_media::write(&device, 4096, &[5; 1024]).unwrap();
        shoal_media::flush(&device).unwrap();
        drop(device);
        let device = FileDevice::open(&dir.path().join("bulk")).unwrap();
        assert_eq!(device.geometry().bytes, BYTES);
        let mut out = [1; 2048];
        shoal_media::read(&device, 4096, &mut out).unwrap();
        assert!(out[..1024].iter().all(|&b| b == 5) && out[1024..].iter().all(|&b| b == 0));
    }

    #[test]
    fn a_trim_of_several_steps_gives_back_its_range_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create(&dir.path().join("bulk"), 3 * TRIM_BYTES).unwrap();
        let (from, to) = (TRIM_BYTES / 2, 5 * TRIM_BYTES / 2);
        let inside = [from, TRIM_BYTES - 4096, TRIM_BYTES, 2 * TRIM_BYTES - 4096, 2 * TRIM_BYTES, to - 4096];
        let outside = [from - 4096, to];
        for at in inside.into_iter().chain(outside) {
            shoal_media::write(&device, at, &[7; 4096]).unwrap();
        }
        shoal_media::trim(&device, from, to - from).unwrap();
        let mut out = [0; 4096];
        for (places, byte) in [(&inside[..], 0), (&outside[..], 7)] {
            for &at in places {
                shoal_media::read(&device, at, &mut out).unwrap();
                assert!(out.iter().all(|&found| found == byte), "the block at {at}");
            }
        }
    }

    #[test]
    fn room_is_taken_once_and_given_back_by_a_trim() {
        let (_dir, device) = device();
        let taken = || device.file.metadata().unwrap().blocks() * 512;
        device.reserve(4096, 4096).unwrap();
        assert_eq!(taken(), PIECE_BYTES);
        device.reserve(0, 2 * PIECE_BYTES).unwrap();
        assert_eq!(taken(), 2 * PIECE_BYTES);
        shoal_media::trim(&device, 0, PIECE_BYTES).unwrap();
        device.reserve(0, 512).unwrap();
        assert_eq!(taken(), 2 * PIECE_BYTES);
        assert!(device.reserve(BYTES, 512).is_err());
    }

    #[test]
    fn what_goes_past_the_page_cache_is_seen_through_it_and_the_other_way_round() {
        let (dir, device) = device();
        if !device.bypass_cache() {
            return eprintln!("SKIP: {} cannot bypass its page cache", dir.path().display());
        }
        let other = FileDevice::open(&dir.path().join("bulk")).unwrap();
        let mut out = vec![0; 12288];
        for (round, (at, len)) in [(4096, 8192), (512, 1024), (8192, 4096), (0, 1 << 19)].into_iter().enumerate() {
            let byte = round as u8 + 1;
            device.write_from(at, &vec![byte; len]).unwrap();
            other.read_into(0, &mut out).unwrap();
            let covered = at as usize..(at as usize + len).min(out.len());
            assert!(out[covered].iter().all(|&found| found == byte), "{at} {len}");
            other.write_from(4096, &[byte + 100; 4096]).unwrap();
            device.read_into(4096, &mut out[..4096]).unwrap();
            assert!(out[..4096].iter().all(|&found| found == byte + 100), "{at} {len}");
        }
    }

    #[test]
    fn trimmed_and_zeroed_ranges_read_as_zeros_and_give_back_their_space() {
        let (_dir, device) = device();
        let mut out = vec![9; 1 << 17];
        shoal_media::write(&device, 0, &vec![5; BYTES as usize]).unwrap();
        shoal_media::flush(&device).unwrap();
        let before = device.file.metadata().unwrap().blocks();
        shoal_media::trim(&device, 0, 1 << 18).unwrap();
        assert!(device.file.metadata().unwrap().blocks() < before);
        shoal_media::write_zeroes(&device, 1 << 18, 1 << 17).unwrap();
        device.store_zeros((1 << 18) + (1 << 17), (1 << 17) - 512).unwrap();
        for at in [0, 1 << 18] {
            shoal_media::read(&device, at, &mut out).unwrap();
            assert!(out.iter().all(|&b| b == 0));
        }
        shoal_media::read(&device, (1 << 18) + (1 << 17), &mut out).unwrap();
        assert!(out[..(1 << 17) - 512].iter().all(|&b| b == 0) && out[(1 << 17) - 512..].iter().all(|&b| b == 5));
        assert_eq!(device.file.metadata().unwrap().len(), BYTES);
    }

    #[test]
    fn requests_outside_the_device_or_unaligned_are_refused() {
        let (_dir, device) = device();
        for (at, len) in [(BYTES, 512), (BYTES - 512, 1024), (1, 512), (512, 1), (u64::MAX - 511, 512)] {
            let refused = |result: Result<()>| matches!(result, Err(MediaError::OutOfRange { .. }));
            assert!(refused(device.read_into(at, &mut vec![0; len as usize])), "read of {len} at {at}");
            assert!(refused(device.write_from(at, &vec![0; len as usize])), "write of {len} at {at}");
            assert!(refused(shoal_media::trim(&device, at, len)), "trim of {len} at {at}");
            assert!(refused(shoal_media::write_zeroes(&device, at, len)), "zeroing of {len} at {at}");
        }
        assert!(device.write_from(BYTES - 512, &[1; 512]).is_ok());
    }

    #[test]
    fn only_an_empty_file_is_taken_for_a_new_device() {
        let (dir, device) = device();
        drop(device);
        let error = FileDevice::create(&dir.path().join("bulk"), BYTES).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        std::fs::write(dir.path().join("empty"), "").unwrap();
        assert!(FileDevice::create(&dir.path().join("empty"), BYTES).is_ok());
        assert!(FileDevice::create(&dir.path().join("odd"), 1000).is_err());
    }

    #[test]
    fn after_a_failed_flush_only_reads_go_on() {
        let (dir, device) = device();
        // A pipe cannot be flushed: the kernel answers EINVAL.
        let (_reader, writer) = io::pipe().unwrap();
        let broken = FileDevice::over(File::from(std::os::fd::OwnedFd::from(writer)), BYTES, dir.path());
        assert!(matches!(shoal_media::flush(&broken), Err(MediaError::Io { .. })));
        let broken = FileDevice { file: device.file.try_clone().unwrap(), ..broken };
        let poisoned = |result: Result<()>| matches!(result, Err(MediaError::Poisoned { .. }));
        assert!(poisoned(broken.write_from(0, &[0; 512])));
        assert!(poisoned(shoal_media::flush(&broken)));
        assert!(poisoned(shoal_media::trim(&broken, 0, 512)));
        assert!(poisoned(shoal_media::write_zeroes(&broken, 0, 512)));
        assert!(broken.read_into(0, &mut [0; 512]).is_ok());
    }
}
