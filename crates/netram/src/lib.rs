//! The network RAM disk: a block device whose blocks are in the memory of other machines.
//!
//! An [`Engine`] turns requests into operations on donors; it does no I/O, has no threads and knows the time only from its caller,
//! so that the live disk and the simulations run the same code.
//!
//! | module | owns |
//! |---|---|
//! | `api` | what goes into the engine and comes out: requests, donor operations, tickets |
//! | `config` | policies and what they mean in numbers |
//! | `engine` | creating, opening, events in, actions out |
//! | `state` | donors, groups, block table, caches |
//! | `group` | groups, as small as they can be |
//! | `unit` | where units are, and how one grows |
//! | `write`, `read` | requests |
//! | `clean`, `repair`, `scan` | background work: gaining room, restoring redundancy, rebuilding the table |
//! | `checkpoint`, `window` | what opening need not look at, and units it will look at |
//! | `load` | opening from a checkpoint |
//! | `room` | what fits without a donor, and evening donors out |
//! | `doubt` | what was on its way when the former client died |
//! | `parity` | XOR and Reed-Solomon over rows |
//! | `donors` | donors: where they stand, what of them is free |
//! | `membership` | donors that go away, come back, join and are forgotten; epochs; erasing |
//! | `task` | jobs that wait for donors and conditions |
//! | `planted` | bugs to plant in tests |
//! | `status` | counters and the picture of a moment |
//! | `disk` | the engine as a block device over donors that are block devices |
//! | `donor` | the other side: memory lent to clients |

#![forbid(unsafe_code)]

mod abandon;
mod absence;
mod api;
mod base;
mod bits;
mod checkpoint;
mod checkpoints;
mod clean;
mod config;
mod counts;
mod disk;
pub mod donor;
mod donors;
mod doubt;
mod drain;
mod empty;
mod ending;
mod engine;
mod enter;
mod epoch;
mod epochs;
mod fill;
mod found;
mod graft;
mod group;
mod headers;
mod horizon;
mod level;
mod load;
mod map;
mod membership;
mod memory;
mod notes;
mod open_groups;
mod pages;
mod parity;
mod place;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod read;
mod rebuild;
mod reclaim;
mod repair;
mod repairs;
mod retry;
mod room;
mod roster;
mod scan;
mod schedule;
mod send;
mod settle;
mod shortage;
mod spread;
mod state;
mod status;
mod stuck;
mod superblocks;
mod task;
mod trims;
mod unit;
mod units;
mod window;
mod write;

pub use api::{Action, DiskError, DonorError, DonorId, DonorInfo, DonorOp, NotBack, Purpose, Trouble};
pub use config::{Config, Plan, Policy};
pub use counts::{Counts, Traffic};
pub use disk::{Disk, DonorDevice};
pub use donors::DonorState;
pub use engine::{Engine, SECTOR_BYTES, identify};
pub use room::DrainRoom;
pub use shoal_format::ram::SUPERBLOCK_BYTES;
pub use status::{DonorStatus, RepairStatus, Status};
