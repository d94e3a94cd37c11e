//! Positions in the log.
//!
//! On media they are plain little-endian numbers; the layout structs have accessors that return this type. Media take plain
//! numbers, too: a log device knows bytes at positions, and nothing of records.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// A position in the log: bytes before it since the store was formatted. Positions of a ring do not start again with a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Lsn(u64);

impl Lsn {
    /// Where the log of a new store begins.
    pub const ZERO: Lsn = Lsn(0);
    /// Behind every record.
    pub const MAX: Lsn = Lsn(u64::MAX);

    pub const fn new(position: u64) -> Lsn {
        Lsn(position)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// The position `bytes` behind this one, [`Lsn::MAX`] at most.
    pub const fn saturating_add(self, bytes: u64) -> Lsn {
        Lsn(self.0.saturating_add(bytes))
    }

    /// Bytes from `earlier` to this position; 0 if it is not behind `earlier`.
    pub const fn saturating_since(self, earlier: Lsn) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The position that lies this number of bytes further on.
impl Add<u64> for Lsn {
    type Output = Lsn;

    fn add(self, bytes: u64) -> Lsn {
        Lsn(self.0 + bytes)
    }
}

impl AddAssign<u64> for Lsn {
    fn add_assign(&mut self, bytes: u64) {
        self.0 += bytes;
    }
}

/// The bytes between two positions.
impl Sub for Lsn {
    type Output = u64;

    fn sub(self, earlier: Lsn) -> u64 {
        self.0 - earlier.0
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
