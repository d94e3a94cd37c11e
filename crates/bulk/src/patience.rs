//! Whether an operation may wait for a flush of the bulk device.
//!
//! A few operations flush midway: when a file with promised contents changes its tier, or when a
//! file's end moves over bytes cut off earlier. A caller with few threads, each needed for other
//! requests, first runs an operation that [`Patience::Refuses`]. If that fails with
//! [`Error::WouldFlush`], the operation has changed nothing visible, and the caller repeats it
//! where waiting does no harm.

use crate::{Error, Result};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    #[default]
    Waits,
    /// An operation that has to flush the bulk device fails with [`Error::WouldFlush`].
    Refuses,
}

impl Patience {
    /// Fails if the operation must not wait for a flush.
    pub fn may_flush(self) -> Result<()> {
        match self {
            Patience::Waits => Ok(()),
            Patience::Refuses => Err(Error::WouldFlush),
        }
    }
}
