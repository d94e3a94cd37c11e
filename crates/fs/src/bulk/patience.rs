//! Threads that must not wait for the bulk device: for a flush, or at all.
//!
//! A few operations flush in their middle: a file whose promised content changes its tier, an end that moves over bytes cut
//! off earlier. A caller with few threads, each needed for other requests, runs an operation by [`without_flush`] first;
//! refused with [`Error::WouldFlush`], the operation has changed nothing that shows, and is run again where waiting does no
//! harm. A caller whose thread serves others on the same processor reads by [`without_device`], which refuses the device's work, too.

use std::cell::Cell;

use crate::{Error, Result};

thread_local! {
    static REFUSES: Cell<bool> = const { Cell::new(false) };
    static REFUSES_READS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`; whatever in it would have to flush the bulk device fails with [`Error::WouldFlush`] instead.
pub fn without_flush<T>(work: impl FnOnce() -> T) -> T {
    let before = REFUSES.replace(true);
    let done = work();
    REFUSES.set(before);
    done
}

/// Runs `work`, which changes nothing; whatever in it would have to read the bulk device fails with [`Error::WouldFlush`] instead.
pub fn without_device<T>(work: impl FnOnce() -> T) -> T {
    let before = REFUSES_READS.replace(true);
    let done = work();
    REFUSES_READS.set(before);
    done
}

/// Fails where this thread must not wait for a read.
pub(crate) fn may_read() -> Result<()> {
    if REFUSES_READS.get() { Err(Error::WouldFlush) } else { Ok(()) }
}

/// Fails where this thread must not wait.
pub(crate) fn may_wait() -> Result<()> {
    if REFUSES.get() { Err(Error::WouldFlush) } else { Ok(()) }
}
