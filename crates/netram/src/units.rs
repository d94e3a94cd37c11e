//! The units of one donor.

use crate::bits::Bits;

/// What opening will look at on a donor, for one checkpoint.
#[derive(Clone, Default)]
pub(crate) struct Log {
    pub number: u64,
    /// Units that it will look at.
    pub open: Bits,
    /// They are in the log. Before, units that a page speaks of are taken out, and come in again when they are free.
    pub listed: bool,
    /// The lists are being written.
    pub writing: bool,
    /// Pieces of the log, without its end.
    pub used: u32,
    /// Units that were named since.
    pub named: u32,
}

/// A unit whose header is to be erased before the unit is used again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Erase {
    pub unit: u32,
    /// Lowest sequence of what the header may list.
    pub first_sequence: u64,
}
