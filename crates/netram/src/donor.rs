//! A donor's memory: areas of sparse memory under one quota, compressed when cold, wiped when given
//! up.
//!
//! | module | owns |
//! |---|---|
//! | `area` | a block device in memory; grant, revocation, compaction |
//! | `chunk` | the memory itself: where it comes from, and wiping a client's bytes before it goes back |
//! | `pack` | compression of chunks |
//! | `quota` | the limit on what is lent |
//! | `pressure` | when the machine itself needs its memory |
//!
//! Rules: the sizes of all areas together never exceed the quota. Memory is zero when it is granted
//! and zeroed when it is revoked, so no client sees another's bytes. Pressure and age come in as
//! numbers and times. Left out: sockets, names, secrets and the reading of /proc (the
//! `shoal donate` command).

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
