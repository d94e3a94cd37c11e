//! Bugs to plant: rules of this crate that a test can break one at a time (docs/design/testing.md, T7).
//!
//! Owns: the list of rules. Each bug leaves out one of them. Left out: the switch
//! (`shoal_media::plantable`), and the harness, which needs the file system (`shoal-fs`,
//! `tests/planted.rs`).

shoal_media::plantable! {
    /// A rule that can be broken.
    pub enum Bug {
        /// NEW is cleared from blocks that no flush has covered.
        ClearUnflushed,
        /// A flush counts as covering what was written while it was under way.
        FlushCoversLater,
        /// Blocks written after a flush was submitted count as covered by it if they adjoin covered
        /// ones.
        JoinSubmitted,
        /// A freed block can be reused before the record that freed it is durable.
        ReuseAtOnce,
        /// A freed block is trimmed when it may already have its next user.
        LateTrim,
        /// A block that the saved image maps can be reused.
        ReuseSaved,
        /// A bulk device's mark is not durable before the list that asks for it.
        MarkUnflushed,
        /// An older copy of a bulk device is taken for the device.
        EpochIgnored,
        /// A device is known by a mark that a cache holds in front of it.
        HeldMarkBelieved,
        /// Blocks in doubt after a failed flush are read.
        SuspectsRead,
        /// Blocks in doubt after a failed flush are not kept in the region.
        SuspectsForgotten,
        /// A file's block in doubt is certain on media when it was written whole.
        WrittenEndsAtOnce,
        /// A write returns although a flush failed meanwhile, if the device was opened again.
        AcrossRetry,
        /// The region goes on listing a block in doubt that a new file has written whole.
        WrittenStaysInDoubt,
        /// A bulk device leaves the list while blocks of it are in use.
        RemoveInUse,
        /// A flush of ranges clears all of a device's blocks from those that a later failure leaves
        /// in doubt.
        RangesTakeAll,
        /// Blocks written during a flush of ranges join the ranges it names.
        JoinNoted,
        /// Checksums of bulk blocks are not compared.
        SumsUnread,
        /// A device that is in another place after a crash is trusted.
        PlaceIgnored,
        /// A finding about a device is recorded only when its new mark is written.
        PlaceNotedLate,
        /// A wrong checksum counts as damage without a second look at it.
        SumsOneLook,
        /// A checksum stays while the bytes under it change.
        SumsStay,
        /// The part of a unit that a write leaves is not verified before the unit's checksum is
        /// dropped.
        PartsUnread,
        /// A leaf of checksums is not marked as open before data under it change.
        LeavesUnmarked,
        /// The mark of an open leaf is not durable before data under it change.
        LeavesUnsynced,
        /// A leaf is closed though no flush has covered the last write under it.
        LeavesUnflushed,
        /// The checksums of leaves that a crash left open are believed.
        OpenLeavesKept,
        /// A bulk device counts as removed before the record that takes it off the list is durable.
        RemoveUnsynced,
        /// A saved image that still lists a removed bulk device stays the newest one.
        RemoveUnsaved,
        /// Absorbed pages are not put back on a device that lost them.
        AbsorbedNotRestored,
        /// Absorbed pages are put back over newer ones that the cache has held all the time.
        RestoredOverHeld,
        /// Absorbed pages are put back on a device that lost nothing.
        RestoredAlways,
        /// The area is emptied before a flush covers the pages that were put back.
        RestoredUnflushed,
        /// Pages of zeros are not absorbed.
        ZerosNotAbsorbed,
        /// Entries stay in the area when the device has newer contents durably.
        ReleasedNever,
        /// Entries of a freed block stay in the area when its next user has it.
        AbsorbedOfFreed,
    }
}
