//! Bugs to plant: rules of this crate that a test can break one at a time (docs/design/testing.md, T7).
//!
//! Owns: the list of rules. Each bug leaves out one of them. Left out: the switch (`shoal_media::plantable`), the harness
//! (`tests/planted.rs`), and rules that concern only the order of media calls: the test's media break those.

shoal_media::plantable! {
    /// A rule that can be broken.
    pub enum Bug {
        /// Recovery applies a record whose payload does not have its checksum.
        PayloadChecksum,
        /// Recovery takes no notice of records behind the log's end that vouch for more than is there.
        Vouching,
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
        /// Pages of an earlier mount are left in an image without being compared with their sums.
        Unverified,
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
        /// A flush publishes its promise when it has ended, not before it begins.
        LatePromise,
        /// A checkpoint releases the log up to the end of its copy, not up to where replay begins.
        ReleaseCopied,
        /// What an image says of used slots is believed of segments that replay has changed.
        TouchedCounted,
        /// Transactions that free nothing may have the segments kept for those that do.
        ReserveForAll,
    }
}
