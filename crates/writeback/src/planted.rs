//! Bugs to plant: rules of this crate that a test can break one at a time (docs/design/testing.md, T7).
//!
//! Owns: the list of rules. Left out: the switch (`shoal_media::plantable`), and the harness (`tests/planted.rs`).

shoal_media::plantable! {
    /// A rule that can be broken.
    pub enum Bug {
        /// The entry that names a slot is stored before the slot's bytes.
        EntryFirst,
        /// The bytes of a held block are overwritten where they are.
        InPlace,
        /// The entry of an older version goes before that of the newer one is there.
        OldGoesFirst,
        /// A slot is free again when its write begins, not when it has ended.
        FreeBeforeWritten,
        /// A group's word is stored before the group has its memory emptied.
        StaleGroup,
        /// Blocks held for another life are taken for this one's.
        AdoptAny,
        /// A flush does not wait for blocks that are being written.
        FlushSkipsLeaving,
        /// A flush of ranges leaves out the device's own flush.
        RangeNoFlush,
        /// A write that has failed is forgotten.
        FailureForgotten,
        /// A long write goes to the device before older contents of its blocks that are held.
        PastOlder,
        /// Loaded entries are believed without their sums.
        SumsUnread,
        /// A write that completes after a flush of the device has failed takes its blocks out of the cache.
        DroppedInDoubt,
        /// What has left the cache since the last flush is in no doubt after a failed one.
        DoubtForgotten,
        /// A flush of the device covers changes that reached it while it was under way.
        CoversLater,
    }
}
