//! Update policies: which dirty blocks leave a cache, and when.
//!
//! | module | owns |
//! |---|---|
//! | `policy` | when a block is due under each policy; what holds due blocks back |
//! | `dirty_set` | the dirty blocks in the order of their age, and the choice among them |
//! | `slots` | the memory of held blocks, which may outlive the process; the order of its stores |
//! | `filter`, `state` | a block device that holds writes back in slots, and asks the other modules when they leave |
//! | `words` | rules as people write them |
//!
//! A policy is a pure function of the time a block was *first* dirtied. It has no state, no I/O, no
//! thread and no clock of its own. The caller passes the time (nanoseconds of a monotonic clock)
//! and the load of the device, and writes the blocks that [`DirtySet::choose`] hands out.
//!
//! Rules: a block that is modified again keeps its first time. Blocks leave oldest first. No block
//! is handed out while a write of it is under way. Nothing holds back a block older than its bound.
//!
//! ```
//! use shoal_writeback::{BlockId, DirtySet, FileId, Load, Policy, Rule, S_NS};
//!
//! let mut set = DirtySet::new(Rule::of(Policy::aipu(30 * S_NS)));
//! set.dirtied(BlockId(7), FileId(1), 5 * S_NS);
//! set.dirtied(BlockId(7), FileId(1), 20 * S_NS); // younger data, the same age
//! assert!(set.choose(34 * S_NS, &Load::default()).is_empty());
//! assert_eq!(set.choose(35 * S_NS, &Load::default()), [BlockId(7)]);
//! set.cleaned(BlockId(7), 36 * S_NS); // its write has completed
//! assert!(set.is_empty());
//! ```
//!
//! *The report* is "A Better Update Policy" (`docs/papers/better-update-policy.md`). Left out of
//! the two policy modules: writing, merging of neighbours, and waiting. The report's system writes
//! metadata every 30 seconds, whatever the policy for data. In a system that does so, metadata
//! belong in a set of their own under [`Policy::Periodic`].

#![forbid(unsafe_code)]

mod absorbed;
mod dirty_set;
mod filter;
mod flushes;
#[cfg(feature = "planted")]
pub mod planted;
#[cfg(not(feature = "planted"))]
mod planted;
mod policy;
mod readers;
mod slots;
mod state;
mod words;

pub use dirty_set::{Counts, DirtySet};
pub use filter::{Report, WriteBack};
pub use policy::{Load, Policy, Rule, Shape};
pub use slots::{Cache, CacheError, Lifetime, Owner};
pub use words::parse_time;

/// A second, in the unit of all times here (ns).
pub const S_NS: u64 = 1_000_000_000;

/// A block of the device or of a file; the caller gives the number its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u64);

/// The file a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);
