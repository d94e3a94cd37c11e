//! The append-only log of `logged` memory.
//!
//! Owns: the trait [`LogDevice`] with its contract. Positions are bytes since the store was formatted; how they map to files, and
//! when their space is used again, is the device's business. Records and their chain are the region's.

use crate::Result;

/// A log addressed by position: bytes since the store was formatted. Positions only grow.
///
/// Contract:
/// - `append` stores bytes at `position`, which is the end of the bytes appended before (or where recovery found the
///   log to end). When it returns, the bytes survive a process crash. An error of kind `NoSpace` leaves the
///   log as it was; after any other error the device is poisoned.
/// - `sync` returns when everything appended before the call is durable. After a power loss, bytes appended since may
///   be there in any subset, torn at 512 bytes, the rest holding anything (stale bytes of reused space, zeros).
/// - `sync` may run while another thread appends; two threads never append at the same time.
/// - After a failed `sync` every further `append` and `sync` fails with `Poisoned`.
pub trait LogDevice: Send + Sync {
    fn append(&self, position: u64, bytes: &[u8]) -> Result<()>;

    fn sync(&self) -> Result<()>;

    /// Reads up to `out.len()` bytes from `position`; returns how many exist there (0 at the end of all segments).
    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize>;

    /// Everything before `position` is not needed any more; its space may be reused. Need not be durable.
    fn release(&self, position: u64) -> Result<()>;
}
