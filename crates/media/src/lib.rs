//! The traits through which Shoal's engines reach the outside world, with their contracts.
//!
//! Every store, flush, fence, log write and block request goes through one of these (testing.md,
//! T1). `host` implements them over maps and files, `sim` over recorded memory with crash states.
//! Each contract says what is atomic, what is ordered, and what a crash may do; engines rely on
//! nothing else. A *process crash* ends the program but not the machine; a *power loss* ends both.

#![forbid(unsafe_code)]

pub mod block;
mod head;
mod image;
mod log;
mod memory;
pub mod planted;
mod poison;

use std::sync::Arc;

pub use block::{
    BlockDevice, BlockGeometry, Completion, Lent, Request, WriteCache, flush, read, trim, write, write_zeroes,
};
pub use head::Head;
pub use image::{BlankImage, ImageFile};
pub use log::LogDevice;
pub use memory::PersistentMemory;
pub use poison::Poison;

/// Too many open files, in the machine and in the process. The standard library has no `ErrorKind`
/// for them.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

/// Failure of a medium.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MediaError {
    /// The medium reported a failure. After a failed flush nothing unflushed may be assumed durable.
    #[error("{what}: {source}")]
    Io { what: String, source: Arc<std::io::Error> },
    /// The medium has no room for more; nothing was changed.
    #[error("{what}: no space left on the device that holds it")]
    NoSpace { what: String },
    /// The process or the machine lacks something for now, such as file descriptors or memory.
    /// Nothing was changed.
    #[error("{what}: {source}; try again")]
    Busy { what: String, source: Arc<std::io::Error> },
    /// The request lies outside the medium or is not aligned to its blocks.
    #[error("{what}: request at byte {at}, {len} bytes, is outside the device or not aligned")]
    OutOfRange { what: String, at: u64, len: u64 },
    /// An earlier flush failed: the device refuses further writes until it is opened again.
    #[error("{what}: refuses writes after a failed flush ({cause})")]
    Poisoned { what: String, cause: Arc<str> },
}

impl MediaError {
    /// Makes an error from an operating system error. `what` names the object ("log segment 3",
    /// "bulk file /x").
    pub fn io(what: impl Into<String>, source: std::io::Error) -> MediaError {
        if source.kind() == std::io::ErrorKind::StorageFull || source.kind() == std::io::ErrorKind::QuotaExceeded {
            return MediaError::NoSpace { what: what.into() };
        }
        let source = Arc::new(source);
        if source.kind() == std::io::ErrorKind::OutOfMemory || matches!(number(&source), Some(ENFILE | EMFILE)) {
            return MediaError::Busy { what: what.into(), source };
        }
        MediaError::Io { what: what.into(), source }
    }

    /// True if the call changed nothing and may succeed later. The medium is as good as before.
    pub fn is_lack(&self) -> bool {
        matches!(self, MediaError::NoSpace { .. } | MediaError::Busy { .. })
    }
}

/// The operating system's error number, even if the error has been wrapped with a name on its way.
fn number(error: &std::io::Error) -> Option<i32> {
    let below = || std::error::Error::source(error)?.downcast_ref().and_then(number);
    error.raw_os_error().or_else(below)
}

pub type Result<T> = std::result::Result<T, MediaError>;

/// Time, so that engines can be driven by a simulated one.
pub trait Clock: Send + Sync {
    /// Nanoseconds since 1970, for time stamps. May step.
    fn now_ns(&self) -> i64;
    /// Nanoseconds since 1970 at the kernel's last timer tick, which the kernel uses for its own
    /// file time stamps. At most a few milliseconds ago.
    fn tick_ns(&self) -> i64 {
        self.now_ns()
    }
    /// Nanoseconds since an arbitrary start, never going back, for ages and intervals.
    fn monotonic_ns(&self) -> u64;
}
