//! Positions in the log.
//!
//! On media they are plain little-endian numbers; the layout structs have accessors that return this type. Media take plain
//! numbers, too: a log device knows bytes at positions, and nothing of records.

use crate::number::position;

position! {
    /// A position in the log: bytes before it since the store was formatted. Positions of a ring do not start again with a
    /// turn.
    Lsn
}

impl Lsn {
    /// The position `bytes` behind this one, [`Lsn::MAX`] at most.
    pub const fn saturating_add(self, bytes: u64) -> Lsn {
        Lsn(self.0.saturating_add(bytes))
    }

    /// Bytes from `earlier` to this position; 0 if it is not behind `earlier`.
    pub const fn saturating_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
