//! The threads that an open file system needs, whether it is mounted or embedded in a program.
//!
//! | module | owns |
//! |---|---|
//! | `clocks` | the threads that give the engine time for its background work |
//! | `syncer` | fsync of large files; at most one request thread waits for the bulk device |
//! | `waiters` | threads for other operations that have to wait for the bulk device |
//! | `breaker` | the end of a connection whose threads fail |
//!
//! Order at the end: the mount's own threads, the waiters, the syncer, the clocks; then the store
//! is shut down. Left out: what belongs to a store's directory (write-back caches, devices that are
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
