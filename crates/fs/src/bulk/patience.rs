//! Threads that must not wait for the bulk device: for a flush, or at all.
//!
//! A few operations flush midway: when a file with promised contents changes its tier, or when a
//! file's end moves over bytes cut off earlier. A caller with few threads, each needed for other
//! requests, first runs an operation by [`without_flush`]. If that is refused with
//! [`Error::WouldFlush`], the operation has changed nothing visible, and the caller repeats it
//! where waiting does no harm. A caller whose thread serves others on the same processor reads by
//! [`without_device`], which also refuses to read the device.

use std::cell::Cell;

use crate::{Error, Result};

thread_local! {
    static REFUSES: Cell<bool> = const { Cell::new(false) };
    static REFUSES_READS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; anything in it that has to flush the bulk device fails with [`Error::WouldFlush`].
pub fn without_flush<T>(work: impl FnOnce() -> T) -> T {
    let before = REFUSES.replace(true);
    let done = work();
    REFUSES.set(before);
    done
}

/// Runs `work`, which changes nothing; anything in it that has to read the bulk device fails with
/// [`Error::WouldFlush`].
pub fn without_device<T>(work: impl FnOnce() -> T) -> T {
    let before = REFUSES_READS.replace(true);
    let done = work();
    REFUSES_READS.set(before);
    done
}

/// Fails if this thread must not wait for a read.
pub(crate) fn may_read() -> Result<()> {
    if REFUSES_READS.get() { Err(Error::WouldFlush) } else { Ok(()) }
}

/// Fails if this thread must not wait for a flush.
pub(crate) fn may_wait() -> Result<()> {
    if REFUSES.get() { Err(Error::WouldFlush) } else { Ok(()) }
}
