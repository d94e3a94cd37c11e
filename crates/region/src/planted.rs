//! Bugs to plant: rules of this crate that a test can break one at a time (docs/design/testing.md, T7).
//!
//! Owns: the list of rules. Each bug omits one of them. Left out: the switch
//! (`shoal_media::plantable`), the harness (`tests/planted.rs`), and rules about only the order of
//! media calls, which the test's media break.

shoal_media::plantable! {
    /// A rule that can be broken.
    pub enum Bug {
        /// Recovery applies a record whose payload has a wrong checksum.
        PayloadChecksum,
        /// Recovery ignores records after the log's end that vouch for more than is there.
        Vouching,
        /// Recovery accepts a record that does not continue the chain.
        Salt,
        /// A record is applied before it is in the log.
        ApplyFirst,
        /// Recovery applies records of the ring that may exist only in the cache.
        ReplayFence,
        /// Opening returns before its epoch record is durable.
        EpochSync,
        /// A checkpoint leaves the old anchor in the image it overwrites.
        Invalidation,
        /// A checkpoint writes only pages changed since the last one, which went to the other
        /// image.
        StaleMap,
        /// Pages of an earlier mount stay in an image without a comparison with their sums.
        Unverified,
        /// No later checkpoint writes the pages that a failed one took off the dirty map.
        FailedPages,
        /// The next checkpoint does not write pages that replay changed.
        ReplayDirty,
        /// A checkpoint overwrites an image that memory still reads from.
        Detach,
        /// Memory rests on an image although it has changed since the image was begun.
        RestsChanged,
        /// A freed piece can be allocated before the transaction that frees it commits.
        FreeAtOnce,
        /// A segment given to a class keeps the old bytes where its bitmap lies.
        BitmapZero,
        /// The ring's records are overwritten without moving its head.
        RingFull,
        /// A flush publishes its promise after it has ended, not before it begins.
        LatePromise,
        /// A checkpoint releases the log up to the end of its copy, not up to the start of replay.
        ReleaseCopied,
        /// The image's counts of used slots are believed for segments that replay changed.
        TouchedCounted,
        /// Transactions that free nothing may use the segments kept for those that do.
        ReserveForAll,
    }
}
