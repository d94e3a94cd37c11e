//! Byte-addressable memory that holds a region.
//!
//! Owns: the trait [`PersistentMemory`] with its contract: what a store, a write-back and a fence
//! promise, and what a crash leaves. Left out: which thread may access which bytes when (the
//! region's and the file system's locks).

use std::fs::File;
use std::io;

use crate::Result;

/// A region's memory. Offsets are bytes from its start; an access outside it is a bug and panics.
///
/// Contract:
/// - `write` and `zero` are ordinary stores: visible to `read` at once, in program order. On a
///   persistent medium they may become durable at any time, in any order, in units of 8 aligned
///   bytes, until written back.
/// - `write_back` starts the write-back of the cache lines of a range. `fence` returns when every
///   line written back before it (by this thread) is durable. `write_through` is a store and a
///   write-back of the same bytes.
/// - If the memory outlives the process, all stores survive a process crash. After a power loss
///   every fenced line is there; any subset of the others may be, each torn at 8 bytes.
/// - For memory that does not outlive the process (the DRAM of `logged` memory) write-back and
///   fence do nothing.
/// - Accesses that overlap must not run at the same time; the caller's locks ensure that. There is
///   one exception: `read_u64` of eight aligned bytes may run beside a store of exactly these bytes
///   (`write_u64`, or `write` of eight bytes). It returns the old or the new word. A reader of the
///   new word sees all earlier stores of the storing thread.
pub trait PersistentMemory: Send + Sync {
    /// Length (bytes).
    fn len(&self) -> u64;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn read(&self, at: u64, out: &mut [u8]);

    fn write(&self, at: u64, bytes: &[u8]);

    /// Stores `len` zero bytes.
    fn zero(&self, at: u64, len: u64);

    fn write_through(&self, at: u64, bytes: &[u8]) {
        self.write(at, bytes);
        self.write_back(at, bytes.len() as u64);
    }

    fn write_back(&self, at: u64, len: u64);

    fn fence(&self);

    /// Makes every earlier store as durable as this memory can, through the kernel where a fence is
    /// not enough.
    fn sync(&self) -> Result<()> {
        self.fence();
        Ok(())
    }

    /// Takes the memory that a range needs, so that later stores to it find memory. Contents do not
    /// change. Returns false where nothing has to be taken, or where the host cannot promise it.
    fn reserve(&self, at: u64, len: u64) -> Result<bool> {
        let _ = (at, len);
        Ok(false)
    }

    /// True if there is memory for `len` bytes that have none yet. Asked before
    /// [`PersistentMemory::reserve`] on hosts that kill a process for asking for more memory than
    /// there is.
    fn may_take(&self, len: u64) -> bool {
        let _ = len;
        true
    }

    /// Makes the first `bytes` independent of the image file they may still be mapped from, so that
    /// the file can be overwritten. Contents do not change. Called before a checkpoint reuses an
    /// image.
    fn detach(&self, bytes: u64) {
        let _ = bytes;
    }

    /// Lets go of the memory of the first `bytes`, which image `number` holds as they are: from now
    /// on they are read from there again, so the image must not change before
    /// [`PersistentMemory::detach`]. Nobody stores or discards meanwhile; others may read. Returns
    /// false where that is not possible, and nothing has changed.
    fn rest_on(&self, number: usize, bytes: u64) -> Result<bool> {
        let _ = (number, bytes);
        Ok(false)
    }

    /// Discards a range whose bytes are no longer needed, so that its memory may be reused. Until
    /// stored again, its contents are undefined and may change by themselves. Both numbers are
    /// multiples of the page size.
    fn discard(&self, at: u64, len: u64) {
        let _ = (at, len);
    }

    /// Writes pieces of this memory (start and length) to a file, one after the other from byte `at` on, without a
    /// copy in this process. Nobody stores to the pieces meanwhile. `None`: this memory cannot, and nothing was written.
    fn write_to(&self, pieces: &[(u64, u64)], file: &File, at: u64) -> Option<io::Result<()>> {
        let _ = (pieces, file, at);
        None
    }

    fn read_u64(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word);
        u64::from_le_bytes(word)
    }

    fn write_u64(&self, at: u64, value: u64) {
        self.write(at, &value.to_le_bytes());
    }
}
