//! A range of mapped memory, read and written by copying.
//!
//! Rules:
//! - Every access checks its bounds, also in release builds.
//! - No reference into the map is formed, so neither a change of the file by another process nor a
//!   second mapping can break Rust's aliasing rules.
//! - Accesses that overlap must not run at the same time (the callers' contract in `media`).
//!
//! A page that cannot be read from its file kills the process with SIGBUS. To the store that is a
//! process crash, which it survives. The users of a mapping decide what it means for durability.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{self, Advice, MapFlags, MsyncFlags, ProtFlags};

use crate::PAGE_BYTES;
#[cfg(feature = "recorded")]
use crate::recorder::{self, Event, FileId};

/// Bytes that one `madvise` call populates. Bounds how long the address space is locked.
const POPULATE_SLICE_BYTES: usize = 16 << 20;

/// Most pieces that one call writes: the kernel's limit (`UIO_MAXIOV`).
const VECTORS_MAX: usize = 1024;

pub(crate) struct Map {
    base: *mut u8,
    len: usize,
    /// The file that stores through this map change.
    #[cfg(feature = "recorded")]
    file: Option<FileId>,
}

// SAFETY: the map is plain memory owned by this value until it is dropped; nothing in it is bound
// to a thread.
unsafe impl Send for Map {}
// SAFETY: shared access copies bytes through raw pointers only; the media contract forbids overlapping accesses at
// the same time.
unsafe impl Sync for Map {}

impl Map {
    /// Reserves `bytes` of zeroed private memory that takes no room until it is written.
    pub fn anonymous(bytes: u64) -> io::Result<Map> {
        let len = length(bytes)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a null address lets the kernel choose an unused range, so no existing memory is touched.
        let base = unsafe { mm::mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        Ok(Map {
            base: base.cast(),
            len,
            #[cfg(feature = "recorded")]
            file: None,
        })
    }

    /// Maps the first `bytes` of `file`, which must be at least that long.
    pub fn of_file(file: &File, bytes: u64, flags: MapFlags) -> io::Result<Map> {
        let len = length(bytes)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null address lets the kernel choose an unused range, so no existing memory is touched.
        let base = unsafe { mm::mmap(ptr::null_mut(), len, protection, flags, file, 0) }?;
        Ok(Map {
            base: base.cast(),
            len,
            #[cfg(feature = "recorded")]
            file: (!flags.contains(MapFlags::PRIVATE)).then(|| FileId::of(file)),
        })
    }

    /// Replaces the first `bytes` by a private mapping of the start of `file`, which must be at
    /// least that long. Nobody stores to them meanwhile. Beside readers the file must have the bytes
    /// that are there now.
    pub fn overlay_private(&self, file: &File, bytes: u64) -> io::Result<()> {
        let len = length(bytes)?;
        self.at(0, len);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: [base, base + len) lies within this map (checked above) and is page-aligned. No
        // reference into it exists, and the kernel replaces the pages in one step: a thread that
        // reads meanwhile copies from the old ones or from the new ones.
        unsafe { mm::mmap(self.base.cast(), len, protection, flags, file, 0) }?;
        Ok(())
    }

    /// Asks for huge pages from `at` on; only a hint.
    pub fn prefer_huge_pages(&self, at: u64) {
        let len = self.len - at as usize;
        if len > 0 {
            // SAFETY: [at, len) lies within this map, and the advice changes no contents.
            let _ = unsafe { mm::madvise(self.at(at, len).cast(), len, Advice::LinuxHugepage) };
        }
    }

    /// Gives every page of [at, at + bytes) a private copy. Safe beside other accesses: contents do
    /// not change. If no memory is left for a page the process ends (SIGBUS); a page never stays
    /// shared.
    pub fn populate_for_write(&self, at: u64, bytes: u64) {
        let (mut at, end) = (at as usize, (at + bytes) as usize);
        while at < end {
            let len = (end - at).min(POPULATE_SLICE_BYTES);
            let start: *mut c_void = self.at(at as u64, len).cast();
            // SAFETY: the slice lies within this map; populating changes no contents.
            let populated = unsafe { mm::madvise(start, len, Advice::LinuxPopulateWrite) };
            match populated {
                Ok(()) => {}
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
                // Linux before 5.14 does not know the advice. After any other error, touching the
                // pages shows whether they can be had.
                Err(_) => self.touch_pages(at, len),
            }
            at += len;
        }
    }

    /// Stores one byte of every page again, unchanged. This is a compare-and-exchange, because
    /// compilers turn `fetch_or(0)` into a fenced load, which would leave the page shared with its
    /// file.
    pub fn touch_pages(&self, at: usize, len: usize) {
        for page in (at..at + len).step_by(PAGE_BYTES as usize) {
            let byte = self.at(page as u64, 1);
            // SAFETY: the byte lies within this map, a byte is always aligned, and the map outlives
            // the call. The view is atomic, so it cannot undo another thread's store.
            let byte = unsafe { AtomicU8::from_ptr(byte) };
            let value = byte.load(Ordering::Relaxed);
            // On failure another thread stored to the page in between, which also copied it.
            let _ = byte.compare_exchange(value, value, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Gives the pages of [at, at + bytes) of a private map back to the kernel. Their bytes are
    /// lost: the pages read as zeros, or as the file's bytes.
    pub fn drop_pages(&self, at: u64, bytes: u64) {
        let len = usize::try_from(bytes).expect("a range within a map fits the address space");
        let start: *mut c_void = self.at(at, len).cast();
        // SAFETY: the range lies within this map (checked by `at`). The caller gives up its bytes,
        // and no reference into the map exists. If the kernel refuses, the pages stay as they are.
        let _ = unsafe { mm::madvise(start, len, Advice::LinuxDontNeed) };
    }

    /// Forbids huge pages in [at, at + bytes), as far as the map reaches; only a hint.
    pub fn refuse_huge_pages(&self, at: u64, bytes: u64) {
        let len = bytes.min(self.len() - at) as usize;
        // SAFETY: [at, len) lies within this map, and the advice changes no contents.
        let _ = unsafe { mm::madvise(self.at(at, len).cast(), len, Advice::LinuxNoHugepage) };
    }

    /// Anonymous pages of the map: those that take memory of this process.
    #[cfg(test)]
    pub fn resident_pages(&self) -> usize {
        let kib =
            |words: &str| words.split_whitespace().next().and_then(|word| word.parse::<usize>().ok()).unwrap_or(0);
        self.said_by_kernel("Anonymous:", 0, self.len).iter().map(|words| kib(words)).sum::<usize>() * 1024
            / PAGE_BYTES as usize
    }

    /// Returns the kernel's two-letter flags of the mapping at `at`.
    #[cfg(test)]
    pub fn kernel_flags(&self, at: u64) -> String {
        self.said_by_kernel("VmFlags:", at as usize, 1).concat()
    }

    /// Returns the values that /proc/self/smaps has for `key`, one for each mapping that overlaps
    /// `len` bytes at `at`.
    #[cfg(test)]
    fn said_by_kernel(&self, key: &str, at: usize, len: usize) -> Vec<String> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("the kernel lists this process's maps");
        let (from, to) = (self.base as usize + at, self.base as usize + at + len);
        let (mut within, mut found) = (false, Vec::new());
        for line in smaps.lines() {
            let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
            if let Some((start, end)) = first.split_once('-')
                && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                within = start < to && end > from;
            } else if first == key && within {
                found.push(rest.to_string());
            }
        }
        found
    }

    /// Writes pieces of the map (start and length) to a file, one after the other from byte `at` on. Nobody stores to
    /// them meanwhile.
    pub fn write_to(&self, pieces: &[(u64, u64)], file: &File, at: u64) -> io::Result<()> {
        let vector = |&(from, len): &(u64, u64)| {
            let iov_len = usize::try_from(len).expect("a range within a map fits the address space");
            libc::iovec { iov_base: self.at(from, iov_len).cast(), iov_len }
        };
        let mut vectors: Vec<libc::iovec> = pieces.iter().map(vector).collect();
        let (mut first, mut at) = (0, at);
        while first < vectors.len() {
            let these = &vectors[first..vectors.len().min(first + VECTORS_MAX)];
            // SAFETY: each vector lies within this map, which outlives the call, and the kernel only reads from it.
            let written =
                unsafe { libc::pwritev(file.as_raw_fd(), these.as_ptr(), these.len() as i32, at.cast_signed()) };
            let mut written = match usize::try_from(written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => written,
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => continue,
                    error => return Err(error),
                },
            };
            at += written as u64;
            while first < vectors.len() && written >= vectors[first].iov_len {
                written -= vectors[first].iov_len;
                first += 1;
            }
            if written > 0 {
                let rest = &mut vectors[first];
                rest.iov_base = rest.iov_base.wrapping_byte_add(written);
                rest.iov_len -= written;
            }
        }
        Ok(())
    }

    /// Writes dirty pages to the file and waits.
    pub fn msync(&self) -> io::Result<()> {
        // SAFETY: the range is exactly this map.
        unsafe { mm::msync(self.base.cast(), self.len, MsyncFlags::SYNC) }.map_err(io::Error::from)
    }

    #[inline]
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    pub fn addresses(&self) -> std::ops::Range<usize> {
        let start = self.base.addr();
        start..start + self.len
    }

    /// Returns the address of `len` bytes at `at`.
    ///
    /// # Panics
    /// If they do not lie entirely within the map.
    #[inline]
    pub fn at(&self, at: u64, len: usize) -> *mut u8 {
        let total = self.len as u64;
        assert!(at <= total && len as u64 <= total - at, "access at byte {at}, {len} bytes, of a map of {total}");
        self.base.wrapping_add(at as usize)
    }

    #[inline]
    pub fn read(&self, at: u64, out: &mut [u8]) {
        let source = self.at(at, out.len());
        // SAFETY: the source is in bounds (checked by `at`) and mapped while `self` lives. The
        // target is a separate buffer, so they do not overlap; bytes need no alignment.
        unsafe { ptr::copy_nonoverlapping(source, out.as_mut_ptr(), out.len()) }
    }

    #[inline]
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let target = self.at(at, bytes.len());
        if let Ok(word) = bytes.try_into()
            && target.cast::<u64>().is_aligned()
        {
            return self.write_u64(at, u64::from_le_bytes(word));
        }
        // SAFETY: the target is in bounds (checked by `at`) and mapped while `self` lives. The
        // source is a separate buffer, so they do not overlap; bytes need no alignment.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
        self.note(at, bytes);
    }

    #[inline]
    pub fn zero(&self, at: u64, len: u64) {
        let len = usize::try_from(len).expect("a range within a map fits the address space");
        let target = self.at(at, len);
        // SAFETY: the target is in bounds (checked by `at`) and mapped while `self` lives.
        unsafe { ptr::write_bytes(target, 0, len) }
        #[cfg(feature = "recorded")]
        self.note(at, &vec![0; len]);
    }

    #[inline]
    pub fn read_u64(&self, at: u64) -> u64 {
        let source: *mut u64 = self.at(at, 8).cast();
        if source.is_aligned() {
            // SAFETY: eight bytes are in bounds (checked by `at`), mapped while `self` lives, and
            // aligned. The only store that may run at the same time is `write_u64`, which is atomic
            // as well.
            return u64::from_le(unsafe { AtomicU64::from_ptr(source) }.load(Ordering::Acquire));
        }
        // SAFETY: eight bytes are in bounds (checked by `at`); the load does not need alignment.
        u64::from_le(unsafe { ptr::read_unaligned(source) })
    }

    #[inline]
    pub fn write_u64(&self, at: u64, value: u64) {
        let target: *mut u64 = self.at(at, 8).cast();
        if target.is_aligned() {
            // SAFETY: eight bytes are in bounds (checked by `at`), mapped while `self` lives, and
            // aligned. The only load that may run at the same time is `read_u64`, which is atomic
            // as well.
            unsafe { AtomicU64::from_ptr(target) }.store(value.to_le(), Ordering::Release);
        } else {
            // SAFETY: eight bytes are in bounds (checked by `at`); the store does not need alignment.
            unsafe { ptr::write_unaligned(target, value.to_le()) }
        }
        self.note(at, &value.to_le_bytes());
    }

    /// Reports a store to the recorder. Does nothing without the feature `recorded`.
    #[inline]
    pub fn note(&self, at: u64, bytes: &[u8]) {
        #[cfg(feature = "recorded")]
        if let Some(file) = self.file {
            recorder::note(|| Event::Written { file, at, bytes: bytes.to_vec(), mapped: true });
        }
        #[cfg(not(feature = "recorded"))]
        let _ = (at, bytes);
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is exactly this map, and the map cannot be reached once this value is
        // gone.
        let _ = unsafe { mm::munmap(self.base.cast(), self.len) };
    }
}

/// Converts a mapping's length to the address space's type.
fn length(bytes: u64) -> io::Result<usize> {
    if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{bytes} bytes cannot be mapped: the length must be a positive multiple of {PAGE_BYTES}"),
        ));
    }
    usize::try_from(bytes).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{bytes} bytes do not fit this machine's address space"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_bytes_see_the_same_memory() {
        let map = Map::anonymous(8192).unwrap();
        map.write(4091, &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(map.read_u64(4091), 0x0807_0605_0403_0201);
        map.write_u64(13, 0x1122_3344_5566_7788);
        let mut bytes = [0; 3];
        map.read(13, &mut bytes);
        assert_eq!(bytes, [0x88, 0x77, 0x66]);
        map.zero(13, 2);
        assert_eq!(map.read_u64(13), 0x1122_3344_5566_0000);
    }

    #[test]
    fn lengths_that_are_no_pages_are_refused() {
        assert!(Map::anonymous(0).is_err());
        assert!(Map::anonymous(4095).is_err());
    }

    #[test]
    #[should_panic(expected = "access at byte 4093, 4 bytes, of a map of 4096")]
    fn an_access_across_the_end_panics() {
        Map::anonymous(4096).unwrap().write(4093, &[0; 4]);
    }

    #[test]
    #[should_panic(expected = "of a map of 4096")]
    fn an_offset_that_would_wrap_around_panics() {
        Map::anonymous(4096).unwrap().read_u64(u64::MAX - 3);
    }
}
