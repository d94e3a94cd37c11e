//! Positions in the log.
//!
//! On media they are plain little-endian numbers. The layout structs have accessors that return
//! this type. Media take plain numbers too: a log device knows bytes at positions, but no records.

use crate::number::position;

position! {
    /// A position in the log: the number of bytes before it since the store was formatted.
    /// Positions in a ring keep growing from turn to turn.
    Lsn
}

impl Lsn {
    /// Returns the position `bytes` after this one, at most [`Lsn::MAX`].
    pub const fn saturating_add(self, bytes: u64) -> Lsn {
        Lsn(self.0.saturating_add(bytes))
    }

    /// Returns the number of bytes from `earlier` to this position; 0 if this is not after
    /// `earlier`.
    pub const fn saturating_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
