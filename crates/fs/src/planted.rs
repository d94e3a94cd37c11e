//! Bugs to plant: rules of this crate that a test can break one at a time (docs/design/testing.md, T7).
//!
//! Owns: the list of rules. Each bug leaves out one of them. Left out: the switch (`shoal_media::plantable`), the harness
//! (`tests/planted.rs`), and the rules of the region, which has its own.

shoal_media::plantable! {
    /// A rule that can be broken.
    pub enum Bug {
        /// Blocks with their first data are mapped as if these were durable.
        FreshNotNew,
        /// The inode does not say that it has NEW blocks.
        HasNewFlag,
        /// NEW is cleared from blocks that no flush has covered.
        ClearUnflushed,
        /// A flush is taken to cover what was written while it was under way.
        FlushCoversLater,
        /// Blocks written after a flush was submitted count as covered by it, like those they adjoin.
        JoinSubmitted,
        /// A file's promised bytes move to the bulk device without a flush.
        MoveFlush,
        /// A file begun in this process counts as promised to nobody for ever.
        NeverPromised,
        /// A file's birth is compared with what is durable, not with what was promised.
        BirthByDurable,
        /// The last block's rest is not zeroed before the end moves over it.
        ZeroTail,
        /// The zeros behind the end are not durable before the end moves over them.
        ZeroTailFlush,
        /// A block that gets its first data keeps what was around them.
        PartialBlock,
        /// The ends of a punched range that fill no block keep their bytes.
        PunchEnds,
        /// A write that failed behind the end leaves the last block counted as clean.
        CleanTail,
        /// A freed block can be reused before the record that freed it is durable.
        ReuseAtOnce,
        /// A freed block is trimmed after it may have its next user.
        LateTrim,
        /// A block that the saved image maps can be reused.
        ReuseSaved,
        /// A bulk device's mark is not durable before the list that asks for it.
        MarkUnflushed,
        /// An older copy of a bulk device is taken for it.
        EpochIgnored,
        /// Blocks in doubt after a failed flush are read.
        SuspectsRead,
        /// Blocks in doubt after a failed flush are not kept in the region.
        SuspectsForgotten,
        /// A bulk device leaves the list while blocks of it are in use.
        RemoveInUse,
        /// A block moved to another bulk device is mapped there before a flush has covered the copy.
        DrainUnflushed,
        /// Recovery leaves inodes without links.
        OrphansStay,
        /// After a power loss recovery takes what is NEW for data.
        NewIsData,
        /// A further name is not counted.
        LinkCount,
        /// A sync settles the bulk device after the log, not before.
        SettleLast,
        /// An fsync does not settle the file on the bulk device.
        FsyncSettle,
        /// An fsync waits for what is durable already.
        FsyncPosition,
        /// A packed block keeps its slot when it is unpacked.
        PackedNotFreed,
        /// A reader trusts the reference to a packed block that it found without the block's lock.
        PackedOneLook,
        /// A directory's bucket keeps its slot when another one takes its place.
        BucketStays,
        /// A flush of ranges takes all of a device's blocks out of those that a later failure leaves in doubt.
        RangesTakeAll,
        /// A triplet keeps its users when their block is unpacked.
        TripletsStay,
        /// A block is packed while a claim's holder may write to it.
        PackClaimed,
        /// Unpacking a file stores what its caller has changed of the inode so far.
        UnpackStoresChange,
        /// The pieces behind an object's first one stay allocated.
        ObjectPiecesStay,
        /// Old dictionaries are forgotten though files name them.
        DictionaryNotNoted,
        /// An object's references are followed before its sum was compared.
        ReferencesBelieved,
        /// One entry of a chunk map is enough to follow it to an object.
        MapBelieved,
        /// A group is packed though its bytes changed while they were compressed.
        PackedUnseen,
        /// A file is packed though room behind its end was asked for while it was compressed.
        PackedWithRoom,
        /// A file is packed while it moves to the bulk device.
        PackedBesideMove,
        /// A decompressed object that is kept is known by its head alone.
        KeptByHead,
        /// Heads refer to spilled payloads before a flush has covered them.
        SpillUnflushed,
        /// The sum of a spilled payload is not compared.
        SpilledUnverified,
        /// A wrong sum is damage without a second look at the head.
        SpilledOneLook,
        /// A group is spilled, or brought back, though it has changed since it was copied.
        SpilledUnseen,
        /// A range that a head refers to does not count as in use.
        SpilledNotCounted,
        /// After a mount ranges in use are not looked for.
        SpilledNotNoted,
        /// A file that comes into memory lets go of its blocks before the record that gives it its pieces.
        MoveBackSplit,
        /// A file that is moved keeps the times it had before the device worked.
        MoveSetsTimes,
        /// Blocks written beside a flush of ranges join those it names.
        JoinNoted,
        /// A block that moved is NEW where it was flushed.
        MovedStaysNew,
        /// Checksums of bulk blocks are not compared.
        SumsUnread,
        /// A device that is in another place after a crash is trusted.
        PlaceIgnored,
        /// What was found of a device is noted with its new mark.
        PlaceNotedLate,
        /// A wrong checksum is damage without a second look at it.
        SumsOneLook,
        /// A checksum stays while the bytes under it change.
        SumsStay,
        /// What a write leaves of a unit is not compared before its checksum goes.
        PartsUnread,
        /// A wrong checksum of a unit counts as one of every spilled payload in it.
        NeighboursLost,
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
        /// Heads refer to spilled payloads whose device failed the flush.
        SpillDoubtful,
        /// A file that takes a name while it moves to the bulk device moves unflushed.
        NameMeanwhile,
        /// A file that has taken a name moves to the bulk device later as if nobody relied on it.
        NameKeepsBirth,
        /// A file takes the name of another before its data are durable.
        RenameUnsettled,
        /// The log is flushed without the contents that followed those cut off.
        ReplacedUnsettled,
        /// A tick settles a bulk device without a promise: what leaves the region meanwhile is not flushed.
        TickUnpromised,
        /// The same for a sync.
        SyncUnpromised,
        /// What an earlier process left NEW is not settled by a flush of this one.
        NewNotListed,
        /// An inode without links is freed though it is held.
        HeldReclaimed,
    }
}
