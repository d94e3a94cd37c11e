//! How an operation that changes a file is carried out.
//!
//! Owns: [`Manner`], which goes with the lock of the file. Left out: who writes
//! ([`Writer`](crate::Writer)), and what refuses to wait (`shoal_bulk::patience`).

use shoal_bulk::Patience;

/// The default is how a program's call is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Manner {
    pub patience: Patience,
    /// A change of data leaves the file's times alone: the caller keeps them itself and sets them
    /// later.
    pub keeps_times: bool,
    /// There is no other room left: a write takes from the reserve what a cut of the file gave back.
    pub takes_again: bool,
}

impl From<Patience> for Manner {
    fn from(patience: Patience) -> Manner {
        Manner { patience, ..Manner::default() }
    }
}
