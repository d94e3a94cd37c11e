//! The threads that an open file system needs, whichever door its users come by.
//!
//! | module | owns |
//! |---|---|
//! | `clocks` | the threads that give the engine time for its background work |
//! | `syncer` | fsync of large files, whose wait for the bulk device holds up no thread of a door |
//! | `waiters` | threads for other operations that have to wait for the bulk device |
//! | `breaker` | the end of a door whose threads fail |
//!
//! Order at the end: the door's own threads, the waiters, the syncer, the clocks; then the store is
//! shut down. Left out: what belongs to a store's directory (write-back caches, devices that are
//! leaving, scrubs), which `shoal-store` runs beside these.

#![forbid(unsafe_code)]

mod breaker;
mod clocks;
mod syncer;
#[cfg(test)]
mod test_store;
mod waiters;

pub use breaker::Breaker;
pub use clocks::Clocks;
pub use syncer::{Syncer, SyncerThread};
pub use waiters::{WaiterThreads, Waiters};
