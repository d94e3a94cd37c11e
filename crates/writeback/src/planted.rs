//! Bugs to plant: rules of this crate that a test can break one at a time (docs/design/testing.md, T7).
//!
//! Owns: the list of rules. Left out: the switch (`shoal_media::plantable`), and the harness (`tests/planted.rs`).

shoal_media::plantable! {
    /// A rule that can be broken.
    pub enum Bug {
        /// The entry that names a slot is stored before the slot's bytes.
        EntryFirst,
        /// The bytes of a held block are overwritten in place.
        InPlace,
        /// The entry of an older version is cleared before that of the newer version is stored.
        OldGoesFirst,
        /// A slot is free again when its write begins, not when it has ended.
        FreeBeforeWritten,
        /// A slot whose bytes are lent to a write may be used again before the write has ended.
        LentReused,
        /// A group's word is stored although its index was not zeroed.
        StaleGroup,
        /// Blocks held for another life of the store are adopted.
        AdoptAny,
        /// A flush does not wait for blocks that are being written.
        FlushSkipsLeaving,
        /// A flush of ranges leaves out the device's own flush.
        RangeNoFlush,
        /// A write that has failed is forgotten.
        FailureForgotten,
        /// A long write goes to the device before older held contents of its blocks.
        PastOlder,
        /// Loaded entries are trusted although their sums were not checked.
        SumsUnread,
        /// A write that completes after a flush of the device has failed takes its blocks out of the cache.
        DroppedInDoubt,
        /// Blocks that left the cache since the last flush are not in doubt after a failed flush.
        DoubtForgotten,
        /// A flush of the device covers changes that reached it while it was under way.
        CoversLater,
        /// What left without being absorbed, and without a flush behind it, does not keep later
        /// contents from being absorbed.
        AbsorbsAfterWrite,
        /// A block is released when the device has a version older than the absorbed one.
        ReleasedByOlder,
        /// A flush releases absorbed blocks that are still held.
        ReleasedUnwritten,
        /// A flush releases blocks that reached the device while it was under way.
        ReleasedUnflushed,
    }
}
