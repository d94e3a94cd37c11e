//! Bugs to order: rules of this crate that a test can break one at a time (docs/design/testing.md, T7).
//!
//! Without the feature `planted` every question is answered `false` at compile time and nothing of this is left. With it
//! one bug at a time is switched on for the whole process. Rules that concern only the order of media calls are
//! broken by the test's media instead.

/// A rule that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Recovery applies a record whose payload does not have its checksum.
    PayloadChecksum,
    /// Recovery accepts a record that does not continue the chain.
    Salt,
    /// A record is applied before it is in the log.
    ApplyFirst,
    /// Recovery applies records of the ring that may be only in the cache.
    ReplayFence,
    /// Opening returns before its epoch record is durable.
    EpochSync,
    /// A checkpoint leaves the old anchor in the image it overwrites.
    Invalidation,
    /// A checkpoint writes only pages changed since the last one, which went to the other image.
    StaleMap,
    /// Pages that a failed checkpoint took off the list are written by no later one.
    FailedPages,
    /// Pages that replay changes are not written by the next checkpoint.
    ReplayDirty,
    /// A checkpoint overwrites an image that memory still reads from.
    Detach,
    /// A freed piece can be allocated before the transaction that frees it commits.
    FreeAtOnce,
    /// A segment given to a class keeps the bytes in which its bitmap lies.
    BitmapZero,
    /// The ring's records are overwritten without moving its head.
    RingFull,
}

#[cfg(feature = "planted")]
impl Bug {
    pub const ALL: [Bug; 13] = [
        Bug::PayloadChecksum,
        Bug::Salt,
        Bug::ApplyFirst,
        Bug::ReplayFence,
        Bug::EpochSync,
        Bug::Invalidation,
        Bug::StaleMap,
        Bug::FailedPages,
        Bug::ReplayDirty,
        Bug::Detach,
        Bug::FreeAtOnce,
        Bug::BitmapZero,
        Bug::RingFull,
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
