//! Bugs to plant, so that the tests can show that they would find them (docs/design/testing.md, T7).
//!
//! Owns: the list of rules that can be broken. Each bug leaves out one ordering or one test that the design says is needed.
//! Left out: the switch (`shoal_media::plantable`) and the harness (`tests/planted.rs`).

shoal_media::plantable! {
    /// A rule of the disk, left out.
    pub enum Bug {
        /// A flush ends without one of the device below.
        FlushEarly,
        /// A block is used again at once.
        FreeAtOnce,
        /// A block is used again when its successor is durable, though no durable record says so.
        FreeUnannounced,
        /// Recovery believes records that may not have been flushed without looking at the data.
        NoVerify,
        /// Recovery writes before the records it found are durable.
        FoundUnflushed,
        /// Recovery does not write down what it found.
        NoSettle,
        /// Recovery does not wait until its own records are durable.
        SettleUnflushed,
        /// The tail record of a clean end is left in place while the disk is open.
        StaleTail,
        /// Records left without a link to them are forgotten.
        LostLinks,
        /// A block that is being moved is moved although it was written in the meantime.
        MoveStale,
        /// Such a block is taken for unchanged when it lies where it lay.
        MoveByPlace,
        /// Numbers go on right behind the last one that was found.
        NoJump,
        /// Blocks read are not compared with their checksums.
        NoChecksum,
        /// A segment is opened before the list that names it is durable.
        NamesUnflushed,
        /// A segment that is opened is not named.
        SegmentUnnamed,
        /// The segment that is open when a round begins is not named in its list.
        OpenUnnamed,
        /// Recovery does not look at the list of a round that has begun.
        ListIgnored,
        /// A map block is written over its version that counts.
        MapInPlace,
        /// A round leaves out map blocks that have changed.
        DirtyForgotten,
        /// A checkpoint counts before what it refers to is durable.
        CheckpointUnflushed,
        /// Any whole version of a map block is taken.
        AnyVersion,
    }
}
