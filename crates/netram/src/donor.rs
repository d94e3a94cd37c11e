//! A donor's memory: areas of sparse memory under one quota, compressed when cold, given up clean.
//!
//! | module | owns |
//! |---|---|
//! | `area` | a block device in memory; grant, revocation, compaction |
//! | `chunk` | the memory itself: where it comes from, and that it never goes back with a client's bytes in it |
//! | `pack` | compression of chunks |
//! | `quota` | how much is lent at most |
//! | `pressure` | when a machine needs its memory itself |
//!
//! Rules: the sizes of all areas together never exceed the quota; memory is zero when it is granted and zeroed when it
//! is revoked, so no client sees another's bytes; what is pressed or old comes in as numbers and times. Left out:
//! sockets, names, secrets and the reading of /proc (the `shoal donate` command).

mod area;
mod chunk;
mod pack;
mod pressure;
mod quota;

pub use area::{Area, Compacted, Usage};
pub use chunk::CHUNK_BYTES;
pub use pack::{Compression, UnknownCompression};
pub use pressure::{Gauge, Marks, Reading, parse_stall};
pub use quota::{GrantError, Quota};
