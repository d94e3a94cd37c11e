//! The append-only log of `logged` memory.
//!
//! Owns: the trait [`LogDevice`] with its contract. Positions are bytes since the store was
//! formatted. The device decides how they map to files and when their space is reused. Records and
//! their chain belong to the region.

#[cfg(doc)]
use crate::MediaError;
use crate::Result;

/// A log addressed by position: bytes since the store was formatted. Positions only grow.
///
/// Contract:
/// - `append` stores bytes at `position`, which is the end of the bytes appended before (or the end
///   of the log that recovery found). When it returns, the bytes survive a process crash. A lack
///   ([`MediaError::is_lack`]) leaves the log as it was; after any other error the device is
///   poisoned.
/// - A device may hold back room from `append` and give it to `append_urgent` alone. Records that
///   free space in the end, and records written when a store is opened or closed, must find room
///   when nothing else does.
/// - `sync` returns when everything appended before the call is durable. After a power loss, any
///   subset of the bytes appended since may be there, torn at 512 bytes. The rest holds anything
///   (stale bytes of reused space, zeros).
/// - `sync` may run while another thread appends; two threads never append at the same time.
/// - After a failed `sync` every further `append` and `sync` fails with `Poisoned`.
pub trait LogDevice: Send + Sync {
    fn append(&self, position: u64, bytes: &[u8]) -> Result<()>;

    /// Like `append`, but may use the room held back.
    fn append_urgent(&self, position: u64, bytes: &[u8]) -> Result<()> {
        self.append(position, bytes)
    }

    fn sync(&self) -> Result<()>;

    /// Reads up to `out.len()` bytes from `position`. Returns how many bytes exist there (0 at the
    /// end of all segments).
    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize>;

    /// The next existing position behind `position`, if `position` itself does not exist.
    fn resumes_behind(&self, position: u64) -> Option<u64> {
        let _ = position;
        None
    }

    /// Tells the device that bytes before `position` are no longer needed, so their space may be
    /// reused. The release need not be durable.
    fn release(&self, position: u64) -> Result<()>;

    /// True if `release(position)` would make room for appends.
    fn gains_by_release(&self, position: u64) -> bool {
        let _ = position;
        true
    }

    /// True if less room is held back than should be. The caller should then release something
    /// soon.
    fn is_short(&self) -> bool {
        false
    }

    /// Bytes by which the log can still grow on its host.
    fn growth_bytes(&self) -> u64 {
        0
    }
}
