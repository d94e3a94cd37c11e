//! Block devices: requests and completions.
//!
//! Owns: the traits [`BlockDevice`] and [`WriteCache`] with their contracts, and blocking helpers.
//! Requests complete by callback, so that many can be in flight without an async runtime in the
//! trait. Left out: queues and retries (each device's own).

use std::cell::Cell;
use std::sync::{Arc, mpsc};

use crate::{MediaError, PersistentMemory, Result};

/// Properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGeometry {
    /// Size in bytes.
    pub bytes: u64,
    /// Requests must be aligned to this (bytes, a power of two).
    pub block_bytes: u32,
    /// A write of this many aligned bytes is never torn by a crash (bytes).
    pub atomic_bytes: u32,
    /// Completed writes survive the end of this process (true for files, false for caches within it).
    pub survives_process: bool,
}

/// One request. Buffers are owned, so that a request can outlive its submitter's stack.
#[derive(Debug)]
pub enum Request {
    /// Fill the buffer from byte `at`.
    Read { at: u64, buffer: Vec<u8> },
    /// Store the buffer at byte `at`. With `fua` the data is durable at completion.
    Write { at: u64, buffer: Vec<u8>, fua: bool },
    /// Complete when every write that completed before this request was submitted is durable.
    Flush,
    /// The range's contents are no longer needed. Until it is written again, it reads as zeros or
    /// as anything it held before.
    Trim { at: u64, len: u64 },
    /// The range reads as zeros afterwards.
    WriteZeroes { at: u64, len: u64, fua: bool },
}

impl Request {
    /// Start and length (bytes); 0 and 0 for a flush.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Request::Read { at, buffer } | Request::Write { at, buffer, .. } => (*at, buffer.len() as u64),
            Request::Trim { at, len } | Request::WriteZeroes { at, len, .. } => (*at, *len),
            Request::Flush => (0, 0),
        }
    }
}

/// Bytes to be written that stay where they are: pieces of a memory, start and length, one after the other. Nobody
/// stores to them before the write has completed.
pub struct Lent {
    pub memory: Arc<dyn PersistentMemory>,
    pub pieces: Vec<(u64, u64)>,
}

impl Lent {
    pub fn len(&self) -> u64 {
        self.pieces.iter().map(|&(_, len)| len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes into a buffer, whose contents they replace.
    pub fn copy_to(&self, buffer: &mut Vec<u8>) {
        buffer.resize(self.len() as usize, 0);
        let mut rest = &mut buffer[..];
        for &(at, len) in &self.pieces {
            let (part, behind) = rest.split_at_mut(len as usize);
            self.memory.read(at, part);
            rest = behind;
        }
    }
}

/// Called exactly once, from any thread, with the request's buffer (empty for requests without one).
pub type Completion = Box<dyn FnOnce(Result<Vec<u8>>) + Send>;

/// A block device with many requests in flight.
///
/// Contract:
/// - Requests in flight at the same time may be carried out in any order. A caller that needs an
///   order waits for the completion.
/// - A flush covers every write completed before the flush was submitted, and no other.
/// - After a power loss unflushed writes may survive in any subset, each torn at `atomic_bytes`.
/// - After a failed flush every further write, flush, trim and zeroing fails with `Poisoned`; reads
///   continue to work. A device that keeps the data it failed to flush may instead keep working: a
///   later flush covers that data as well.
/// - A completion may run before `submit` returns.
pub trait BlockDevice: Send + Sync {
    fn geometry(&self) -> BlockGeometry;

    fn submit(&self, request: Request, done: Completion);

    /// Returns true if [`BlockDevice::submit_lent`] needs no copy of the bytes.
    fn takes_lent(&self) -> bool {
        false
    }

    /// Writes bytes that their owner keeps until the completion, which gets an empty buffer.
    fn submit_lent(&self, at: u64, lent: Lent, done: Completion) {
        let mut buffer = Vec::new();
        lent.copy_to(&mut buffer);
        self.submit(Request::Write { at, buffer, fua: false }, Box::new(|result| done(result.map(|_| vec![]))));
    }

    /// Returns the cache that holds completed writes back, if there is one in this device or in a
    /// device below it. There is no default, so that a device in front of another one cannot forget
    /// it.
    fn write_cache(&self) -> Option<&dyn WriteCache>;

    /// Takes the room that a write to this range will need, so that a write that is held back
    /// cannot run out of space later. On `NoSpace` nothing was changed. A device whose room is its
    /// own has nothing to do.
    fn reserve(&self, at: u64, len: u64) -> Result<()> {
        let _ = (at, len);
        Ok(())
    }

    /// Blocking read into a borrowed buffer. Devices that do not need the request's own buffer
    /// override it.
    fn read_into(&self, at: u64, out: &mut [u8]) -> Result<()> {
        let buffer = wait(self, Request::Read { at, buffer: vec![0; out.len()] })?;
        out.copy_from_slice(&buffer);
        Ok(())
    }

    /// Blocking write from a borrowed buffer. Devices that do not need the request's own buffer
    /// override it.
    fn write_from(&self, at: u64, bytes: &[u8]) -> Result<()> {
        wait(self, Request::Write { at, buffer: bytes.to_vec(), fua: false }).map(drop)
    }
}

/// Bytes of a page that a cache holds back.
pub const CACHE_PAGE: usize = 4096;

/// A page that is held back from the medium.
pub struct HeldPage {
    /// Its number on the device.
    pub page: u64,
    /// Number of the write that made these contents.
    pub version: u64,
    pub bytes: Box<[u8; CACHE_PAGE]>,
}

/// A device that holds completed writes back from its medium.
pub trait WriteCache {
    /// How long completed writes may be held back unless a flush asks for them (ns). With 0 they go
    /// to the medium at once. A caller that flushes only by age first waits this long, then flushes
    /// ranges.
    fn held_for_ns(&self) -> u64;

    /// Bytes of this range that are held back. Reading them does not reach the medium.
    fn held_in(&self, at: u64, len: u64) -> u64;

    /// Flushes these ranges (start and length in bytes) and waits: every write to them that
    /// completed before the call is durable on return. The flush may cover more. A failure counts as
    /// a failed flush.
    fn flush_ranges(&self, ranges: &[(u64, u64)]) -> Result<()>;

    /// Stops all writes to the medium: a flush has failed and the caller will not ask for another.
    /// Data that is held back stays held from now on.
    fn give_up(&self);

    /// True if a write to this range may have been sent to the medium and lost, because no
    /// completed flush covered it. Asked after [`WriteCache::give_up`].
    fn may_have_lost(&self, at: u64, len: u64) -> bool;

    /// Returns what the caller must keep by itself for these ranges to be durable without a flush:
    /// the pages held back that it has not absorbed yet. `None` if it takes a flush: there are more
    /// than `most` pages, or some of the ranges reached the medium without a flush behind it, or
    /// writes have failed. A cache whose owner cannot absorb anything needs none of the three.
    fn to_absorb(&self, ranges: &[(u64, u64)], most: usize) -> Option<Vec<HeldPage>> {
        let _ = (ranges, most);
        None
    }

    /// The caller keeps these versions of pages, durably, until [`WriteCache::take_released`] names
    /// them.
    fn absorbed(&self, pages: &[(u64, u64)]) {
        let _ = pages;
    }

    /// Takes the numbers of absorbed pages of which the medium has the version kept, or a newer one,
    /// durably.
    fn take_released(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Decides about blocks held back by an earlier process. This is the first call when a store is
    /// opened. With `continues` the blocks belong to the store as it is now, and stay held.
    /// Otherwise they do not, and are dropped.
    fn adopt(&self, continues: bool);

    /// Says that the caller is about to write this range for a file, for a policy that lets a file's
    /// blocks leave together. A hint: it changes no data, is not kept, and may be forgotten.
    fn belongs(&self, at: u64, len: u64, file: u64);

    /// Blocking read of what the medium itself has. It tells which medium this is.
    fn read_medium(&self, at: u64, out: &mut [u8]) -> Result<()>;
}

/// Passes questions to the write cache of a device. Without a cache they get the answers that are
/// true of the medium alone.
impl dyn BlockDevice + '_ {
    pub fn held_for_ns(&self) -> u64 {
        self.write_cache().map_or(0, WriteCache::held_for_ns)
    }

    pub fn held_in(&self, at: u64, len: u64) -> u64 {
        self.write_cache().map_or(0, |cache| cache.held_in(at, len))
    }

    pub fn flush_ranges(&self, ranges: &[(u64, u64)]) -> Result<()> {
        match self.write_cache() {
            Some(cache) => cache.flush_ranges(ranges),
            None => flush(self),
        }
    }

    pub fn give_up(&self) {
        self.write_cache().inspect(|cache| cache.give_up());
    }

    /// Returns true for a device without a cache, because nothing records what it may have lost.
    pub fn may_have_lost(&self, at: u64, len: u64) -> bool {
        self.write_cache().is_none_or(|cache| cache.may_have_lost(at, len))
    }

    pub fn adopt(&self, continues: bool) {
        self.write_cache().inspect(|cache| cache.adopt(continues));
    }

    pub fn belongs(&self, at: u64, len: u64, file: u64) {
        self.write_cache().inspect(|cache| cache.belongs(at, len, file));
    }

    pub fn read_medium(&self, at: u64, out: &mut [u8]) -> Result<()> {
        match self.write_cache() {
            Some(cache) => cache.read_medium(at, out),
            None => self.read_into(at, out),
        }
    }
}

thread_local! {
    static BEFORE_WAIT: Cell<Option<fn()>> = const { Cell::new(None) };
}

/// Sets a function that runs whenever the calling thread is about to wait for a request. It is for
/// threads that defer work, such as sending messages, on which the request may depend.
pub fn before_this_thread_waits(then: fn()) {
    BEFORE_WAIT.set(Some(then));
}

/// Runs the calling thread's function. Called before a wait for anything else that may depend on
/// requests, such as a lock whose holder waits for one.
pub fn about_to_wait() {
    BEFORE_WAIT.get().into_iter().for_each(|then| then());
}

/// Submits a request and waits for its completion.
pub fn wait(device: &(impl BlockDevice + ?Sized), request: Request) -> Result<Vec<u8>> {
    let (sender, receiver) = mpsc::sync_channel(1);
    device.submit(
        request,
        Box::new(move |result| {
            // The receiver waits below, so it still exists.
            let _ = sender.send(result);
        }),
    );
    // If the device completed at once, there is nothing to wait for.
    match receiver.try_recv() {
        Ok(result) => return result,
        Err(_) => about_to_wait(),
    }
    receiver.recv().unwrap_or_else(|_| {
        Err(MediaError::Io {
            what: "block device".into(),
            source: std::sync::Arc::new(std::io::Error::other("request was dropped without completion")),
        })
    })
}

/// Reads `out.len()` bytes from `at` and waits.
pub fn read(device: &dyn BlockDevice, at: u64, out: &mut [u8]) -> Result<()> {
    device.read_into(at, out)
}

/// Writes and waits.
pub fn write(device: &dyn BlockDevice, at: u64, bytes: &[u8]) -> Result<()> {
    device.write_from(at, bytes)
}

/// Flushes and waits.
pub fn flush(device: &dyn BlockDevice) -> Result<()> {
    wait(device, Request::Flush).map(drop)
}

/// Trims and waits.
pub fn trim(device: &dyn BlockDevice, at: u64, len: u64) -> Result<()> {
    wait(device, Request::Trim { at, len }).map(drop)
}

/// Zeroes and waits.
pub fn write_zeroes(device: &dyn BlockDevice, at: u64, len: u64) -> Result<()> {
    wait(device, Request::WriteZeroes { at, len, fua: false }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    thread_local! {
        static PUT_OFF: Cell<Option<Completion>> = const { Cell::new(None) };
    }

    /// Completes a request when the thread that submitted it is about to wait.
    struct Lazy;

    impl BlockDevice for Lazy {
        fn write_cache(&self) -> Option<&dyn WriteCache> {
            None
        }

        fn geometry(&self) -> BlockGeometry {
            BlockGeometry { bytes: 1 << 20, block_bytes: 512, atomic_bytes: 512, survives_process: true }
        }

        fn submit(&self, _request: Request, done: Completion) {
            PUT_OFF.set(Some(done));
        }
    }

    #[test]
    fn what_a_thread_has_put_off_is_done_before_it_waits() {
        before_this_thread_waits(|| PUT_OFF.take().into_iter().for_each(|done| done(Ok(vec![]))));
        flush(&Lazy).unwrap();
        write_zeroes(&Lazy, 0, 512).unwrap();
    }
}
