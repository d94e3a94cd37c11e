//! Requests: reading, writing, flushing, trimming, and sending groups to donors.
//!
//! | module | owns |
//! |---|---|
//! | `read` | reading a block, from a cache, from its donor, or from the rest of its row |
//! | `write` | writes, flushes and zeroing |
//! | `send` | sending a group: data first, then the parity that covers it |
//! | `abandon` | the fate of a group that a donor did not take |
//! | `trims` | writing lists of trimmed and lost ranges |
//!
//! `send` does not use `abandon`: a job that sends ends with the loss, and the engine passes it on.

pub(crate) mod abandon;
pub(crate) mod read;
pub(crate) mod send;
pub(crate) mod trims;
pub(crate) mod write;
