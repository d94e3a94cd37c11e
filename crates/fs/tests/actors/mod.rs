//! Two operations at once, a crash at every media call of every schedule (docs/design/testing.md, T11).
//!
//! | file | owns |
//! |---|---|
//! | `schedule` | two threads that run one at a time, and all their interleavings up to a bound |
//! | `view` | what a store shows, and how much of a large file's bytes may differ from it |
//! | `promise` | which views a crash at some moment may leave, and which bytes are promised |
//! | `pairs` | stores, pasts and operations, and which pairs are tried |
//! | `run` | one pair: its schedules, crash points and states |
//!
//! Stores and operations are those of `crash`.

pub mod pairs;
pub mod promise;
pub mod run;
pub mod schedule;
pub mod view;
