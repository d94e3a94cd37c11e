//! Bugs to plant, so that the tests can show that they find them (docs/design/testing.md, T7).
//!
//! Owns: the list of rules that can be broken. Each bug omits one ordering or one check that the
//! design requires.
//! Left out: the switch (`shoal_media::plantable`) and the harness (`tests/planted.rs`).

shoal_media::plantable! {
    /// A broken rule of the disk.
    pub enum Bug {
        /// A flush ends without a flush of the device below.
        FlushEarly,
        /// A block is reused at once.
        FreeAtOnce,
        /// A block is reused when its successor is durable, although no durable record says so.
        FreeUnannounced,
        /// Recovery believes records that may not have been flushed without looking at the data.
        NoVerify,
        /// Recovery writes before the records it found are durable.
        FoundUnflushed,
        /// Recovery does not write what it found.
        NoSettle,
        /// Recovery does not wait until its own records are durable.
        SettleUnflushed,
        /// The tail record of a clean end is left in place while the disk is open.
        StaleTail,
        /// Records left without a link to them are forgotten.
        LostLinks,
        /// A block is moved although it was written since the move began.
        MoveStale,
        /// A block written since counts as unchanged if it lies in the same place.
        MoveByPlace,
        /// Numbers continue directly after the last one found.
        NoJump,
        /// Blocks read are not compared with their checksums.
        NoChecksum,
        /// A segment is opened before the list that names it is durable.
        NamesUnflushed,
        /// An opened segment is not named.
        SegmentUnnamed,
        /// The segment that is open when a round begins is not named in its list.
        OpenUnnamed,
        /// Recovery does not look at the list of a round that has begun.
        ListIgnored,
        /// A map block overwrites the version that counts.
        MapInPlace,
        /// A round leaves out map blocks that have changed.
        DirtyForgotten,
        /// A checkpoint counts before what it refers to is durable.
        CheckpointUnflushed,
        /// Any intact version of a map block is accepted.
        AnyVersion,
    }
}
