//! The network RAM disk: a block device whose blocks are in the memory of other machines.
//!
//! An [`Engine`] turns requests into operations on donors. It does no I/O, has no threads and learns the time only
//! from its caller, so the live disk and the simulations run the same code.
//!
//! Modules from the bottom up; each uses those above it in the table:
//!
//! | module | owns |
//! |---|---|
//! | `api` | what goes into the engine and comes out: requests, donor operations, tickets |
//! | `config` | policies and what they mean in numbers |
//! | `sealed` | encryption of what donors hold |
//! | `parity`, `spread`, `spans`, `counts` | XOR and Reed-Solomon over rows; maps by numbers; data and holes; counters |
//! | `planted` | bugs to plant in tests |
//! | `state` | what the engine knows: groups, the block map, donors, notes, checkpoints; steps that never wait |
//! | `status` | a snapshot of the engine's state for the user |
//! | `task` | jobs that wait for donors and conditions |
//! | `requests` | reading, writing, flushing, trimming; sending groups |
//! | `membership` | donors that go away, come back, join and are forgotten; epochs |
//! | `upkeep` | background work: gaining room, restoring redundancy, draining and evening out donors |
//! | `checkpoint` | writing down the map, so that opening need not look at every unit |
//! | `opening` | opening a disk: by a checkpoint, or by the headers of all units |
//! | `engine` | creating and opening a disk; events in, actions out |
//! | `disk` | the engine as a block device over donors that are block devices |
//! | `ownership` | one client at a time: leases on donors |
//! | `donor` | the other side: memory lent to clients |
//!
//! No two modules use each other. The `use crate::` lines show what each needs.

#![forbid(unsafe_code)]

mod api;
mod checkpoint;
mod config;
mod counts;
mod disk;
pub mod donor;
mod engine;
mod membership;
mod opening;
pub mod ownership;
mod parity;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod requests;
mod sealed;
mod spans;
mod spread;
mod state;
mod status;
mod task;
mod upkeep;
mod views;

pub use api::{
    Action, DiskError, DonorError, DonorId, DonorInfo, DonorOp, ForgetCost, NotBack, Past, Purpose, Trouble,
};
pub use config::{Config, Plan, Policy, Stalled};
pub use counts::{Counts, Traffic};
pub use disk::{Disk, DonorDevice, Permit};
pub use engine::{Engine, Members, SECTOR_BYTES, identify, members};
pub use sealed::{SEALED_ALIGNMENT, SealKey, Sealer, bytes_inside as sealed_bytes_inside, superblock};
pub use shoal_format::ram::SUPERBLOCK_BYTES;
pub use spans::Stretch;
pub use state::donors::DonorState;
pub use state::pace::Aside;
pub use state::room::DrainRoom;
pub use status::{
    BalanceProgress, BalanceStatus, DamageStatus, DomainStatus, DonorStatus, LastScrub, RepairStatus, ScrubProgress,
    ScrubStatus, Status, UnflushedStatus,
};
