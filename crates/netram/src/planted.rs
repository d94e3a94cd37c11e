//! Bugs to plant, so that the tests can show that they would find them (docs/design/testing.md, T7).
//!
//! Owns: the list of rules that can be broken, and the switch. Rules: without the feature `planted` nothing of this is in the program.
//! Each bug leaves out one ordering or one test that the design says is needed. Left out: the harness (`tests/planted.rs`).

/// A rule of the engine, left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Parity that covers new blocks is sent beside them, not after them.
    ParityFirst,
    /// A flush ends when data is stored, before parity covers it.
    FlushEarly,
    /// A dead group is freed before what took its blocks' place is safe.
    FreeEarly,
    /// Headers of freed units are not erased.
    NoErase,
    /// What donors return is not compared with its checksum.
    NoChecksum,
    /// A flush does not write down what was trimmed.
    TrimForgotten,
    /// Units count although their donor was given up in the meantime.
    StaleUnits,
    /// Repair puts two units of a group on one donor.
    SharedDonor,
    /// Requests are served before the donors know the present epoch.
    ServeEarly,
    /// A block of a missing unit counts although the rest of its row is not there.
    MissingRow,
    /// A dead group that lost a unit does not count, though what took its blocks' place is not safe.
    DeadForgotten,
    /// Units of a lost donor's group in memory are freed while writes to them are on their way.
    AbandonEarly,
    /// What replaced a block that was dead before it was safe does not wait for both.
    DropDead,
}

#[cfg(feature = "planted")]
impl Bug {
    pub const ALL: [Bug; 13] = [
        Bug::ParityFirst,
        Bug::FlushEarly,
        Bug::FreeEarly,
        Bug::NoErase,
        Bug::NoChecksum,
        Bug::TrimForgotten,
        Bug::StaleUnits,
        Bug::SharedDonor,
        Bug::ServeEarly,
        Bug::MissingRow,
        Bug::DeadForgotten,
        Bug::AbandonEarly,
        Bug::DropDead,
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
