//! Bugs to plant, so that the tests can show that they would find them (docs/design/testing.md, T7).
//!
//! Owns: the list of rules that can be broken, and the switch. Rules: without the feature `planted` nothing of this is in the program.
//! Each bug leaves out one ordering or one test that the design says is needed. Left out: the harness (`tests/planted.rs`).

/// A rule of the disk, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A flush ends without one of the device below.
    FlushEarly,
    /// A block is used again at once.
    FreeAtOnce,
    /// A block is used again when what replaced it is durable, though no durable record says so.
    FreeUnannounced,
    /// Recovery believes records that may not have been flushed without looking at the data.
    NoVerify,
    /// Recovery writes before what it found is durable.
    FoundUnflushed,
    /// Recovery does not write down what it found.
    NoSettle,
    /// Recovery does not wait until what it wrote is durable.
    SettleUnflushed,
    /// The tail record of a clean end is left in place while the disk is open.
    StaleTail,
    /// Records left without a link to them are forgotten.
    LostLinks,
    /// A block that is being moved is moved although it was written in the meantime.
    MoveStale,
    /// Numbers go on right behind the last one that was found.
    NoJump,
    /// What is read is not compared with its checksum.
    NoChecksum,
}

#[cfg(feature = "planted")]
impl Bug {
    pub const ALL: [Bug; 12] = [
        Bug::FlushEarly,
        Bug::FreeAtOnce,
        Bug::FreeUnannounced,
        Bug::NoVerify,
        Bug::FoundUnflushed,
        Bug::NoSettle,
        Bug::SettleUnflushed,
        Bug::StaleTail,
        Bug::LostLinks,
        Bug::MoveStale,
        Bug::NoJump,
        Bug::NoChecksum,
    ];
}

#[cfg(feature = "planted")]
mod switch {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Bug;

    static PLANTED: AtomicU32 = AtomicU32::new(0);

    /// Switches one bug on, or all off.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.store(bug.map_or(0, |bug| 1 << bug as u32), Ordering::SeqCst);
    }

    pub(crate) fn is_planted(bug: Bug) -> bool {
        PLANTED.load(Ordering::SeqCst) >> bug as u32 & 1 == 1
    }
}

#[cfg(not(feature = "planted"))]
mod switch {
    #[inline(always)]
    pub(crate) const fn is_planted(_bug: super::Bug) -> bool {
        false
    }
}

pub(crate) use switch::is_planted;
#[cfg(feature = "planted")]
pub use switch::plant;
