//! Threads that must not wait for a flush of the bulk device.
//!
//! A few operations flush midway: when a file with promised contents changes its tier, or when a
//! file's end moves over bytes cut off earlier. A caller with few threads, each needed for other
//! requests, first runs an operation by [`without_flush`]. If that is refused with
//! [`Error::WouldFlush`], the operation has changed nothing visible, and the caller repeats it
//! where waiting does no harm.

use std::cell::Cell;

use crate::{Error, Result};

thread_local! {
    static REFUSES: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; anything in it that has to flush the bulk device fails with [`Error::WouldFlush`].
pub fn without_flush<T>(work: impl FnOnce() -> T) -> T {
    let before = REFUSES.replace(true);
    let done = work();
    REFUSES.set(before);
    done
}

/// Fails if this thread must not wait for a flush.
pub fn may_wait() -> Result<()> {
    if REFUSES.get() { Err(Error::WouldFlush) } else { Ok(()) }
}
