//! Bugs to plant: rules of this crate that a test can break one at a time (docs/design/testing.md, T7).
//!
//! Owns: the list of rules. Each bug leaves out one of them. Left out: the switch
//! (`shoal_media::plantable`), the harness (`tests/planted.rs`), and the rules of the region and of
//! the bulk devices, which have their own.

shoal_media::plantable! {
    /// A rule that can be broken.
    pub enum Bug {
        /// Blocks that get their first data are mapped as if that data were durable.
        FreshNotNew,
        /// NEW is cleared from blocks before their pages are absorbed.
        ClearedFirst,
        /// The inode does not say that it has NEW blocks.
        HasNewFlag,
        /// A file's promised bytes move to the bulk device without a flush.
        MoveFlush,
        /// A file begun in this process counts as promised to nobody forever.
        NeverPromised,
        /// A file's birth is compared with what is durable, not with what was promised.
        BirthByDurable,
        /// The rest of the last block is not zeroed before the end moves over it.
        ZeroTail,
        /// The zeros behind the end are not durable before the end moves over them.
        ZeroTailFlush,
        /// A block that gets its first data keeps the old bytes around that data.
        PartialBlock,
        /// The ends of a punched range that fill no whole block keep their bytes.
        PunchEnds,
        /// The last block counts as clean after a failed write behind the end.
        CleanTail,
        /// Compaction moves pieces of an inode that is in use.
        CompactInUse,
        /// A block moved to another bulk device is mapped there before a flush has covered the copy.
        DrainUnflushed,
        /// Recovery keeps inodes without links.
        OrphansStay,
        /// After a power loss recovery takes NEW blocks for data.
        NewIsData,
        /// An additional name is not counted as a link.
        LinkCount,
        /// A sync settles the bulk device after the log, not before.
        SettleLast,
        /// An fsync does not settle the file on the bulk device.
        FsyncSettle,
        /// An fsync waits only for what is already durable.
        FsyncPosition,
        /// A packed block keeps its slot when it is unpacked.
        PackedNotFreed,
        /// A reader trusts a reference to a packed block that it read without the block's lock.
        PackedOneLook,
        /// A directory's bucket keeps its slot when another one takes its place.
        BucketStays,
        /// A triplet keeps its users when their block is unpacked.
        TripletsStay,
        /// A block is packed while a claim's holder may write to it.
        PackClaimed,
        /// Unpacking a file stores what its caller has changed in the inode so far.
        UnpackStoresChange,
        /// The pieces behind an object's first one stay allocated.
        ObjectPiecesStay,
        /// Old dictionaries are forgotten though files name them.
        DictionaryNotNoted,
        /// An object's references are followed before its sum is compared.
        ReferencesBelieved,
        /// A single entry of a chunk map is enough to follow it to an object.
        MapBelieved,
        /// A group is packed though its bytes changed while they were compressed.
        PackedUnseen,
        /// A file is packed though it was preallocated behind its end while it was compressed.
        PackedWithRoom,
        /// A file is packed while it moves to the bulk device.
        PackedBesideMove,
        /// A kept decompressed object is identified by its head alone.
        KeptByHead,
        /// Heads refer to spilled payloads before a flush has covered them.
        SpillUnflushed,
        /// The sum of a spilled payload is not compared.
        SpilledUnverified,
        /// A wrong sum counts as damage without a second look at the head.
        SpilledOneLook,
        /// A read goes on where it found a large file's data, though the file has changed since.
        PlanOutlived,
        /// A group is spilled, or brought back, though it has changed since it was copied.
        SpilledUnseen,
        /// A range that a head refers to does not count as in use.
        SpilledNotCounted,
        /// After a mount nobody looks for the ranges in use.
        SpilledNotNoted,
        /// A file that moves into memory frees its blocks before the record that gives it its
        /// pieces.
        MoveBackSplit,
        /// A move resets a file's times to those it had before the device worked.
        MoveSetsTimes,
        /// A moved block stays NEW although its copy was flushed.
        MovedStaysNew,
        /// A wrong checksum of a unit counts as an error of every spilled payload in it.
        NeighboursLost,
        /// Heads refer to spilled payloads whose device failed the flush.
        SpillDoubtful,
        /// A file that takes a name while it moves to the bulk device moves unflushed.
        NameMeanwhile,
        /// A file that has taken a name moves to the bulk device later as if nobody relied on it.
        NameKeepsBirth,
        /// A file takes the name of another before its data is durable.
        RenameUnsettled,
        /// The log is flushed without the contents that replaced truncated ones.
        ReplacedUnsettled,
        /// A tick settles a bulk device without a promise: what leaves the region meanwhile is not flushed.
        TickUnpromised,
        /// A sync settles the bulk devices without a promise.
        SyncUnpromised,
        /// Blocks that an earlier process left NEW are not settled by a flush of this process.
        NewNotListed,
        /// An inode without links is freed though it is held.
        HeldReclaimed,
    }
}
