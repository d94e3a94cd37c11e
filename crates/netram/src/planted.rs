//! Bugs to plant, so that the tests can show that they would find them (docs/design/testing.md, T7).
//!
//! Owns: the list of rules that can be broken. Each bug leaves out one ordering or one test that the design says is
//! needed. Left out: the switch (`shoal_media::plantable`) and the harness (`tests/planted.rs`).

shoal_media::plantable! {
    /// A rule of the engine, left out.
    pub enum Bug {
        /// Parity that covers new blocks is sent beside them, not after them.
        ParityFirst,
        /// A flush ends when data is stored, before parity covers it.
        FlushEarly,
        /// A dead group is freed before what took its blocks' place is safe.
        FreeEarly,
        /// Headers of freed units are not erased.
        NoErase,
        /// Blocks that donors return are not compared with their checksums.
        NoChecksum,
        /// A flush does not write lists of trims.
        TrimForgotten,
        /// Units count although their donor was given up in the meantime.
        StaleUnits,
        /// Repair puts two units of a group on one donor.
        SharedDonor,
        /// Requests are served before the donors know the present epoch.
        ServeEarly,
        /// A block of a missing unit counts although the rest of its row is not there.
        MissingRow,
        /// Units of a lost donor's group in memory are freed while writes to them are on their way.
        AbandonEarly,
        /// The successor of a block that was dead before it was safe does not wait for both.
        DropDead,
        /// The cleaner does not compare checksums.
        CleanUnchecked,
        /// A read does not ask whether the block is lost.
        LostZeros,
        /// A unit that a late write may still reach is used again.
        TaintedReused,
        /// It is used again at once when its server answers.
        QuarantineShort,
        /// A donor that joins with a past gets units at once.
        PastForgotten,
        /// A block that cannot be had at the moment is given up.
        LossAtOnce,
        /// Opening does not wait until enough donors have been looked at.
        OpenEarly,
        /// Opening goes on counting on a donor that has gone since it was looked at.
        LookedAtGone,
        /// Losses are not read when the disk is opened.
        LossForgotten,
        /// A donor that was away at one opening is believed at the next one.
        StaleCounts,
        /// A donor is a source again while its units list entries that no opening has seen.
        NewsKept,
        /// A parity that was away gives back what opening did not find.
        AbsentComputed,
        /// Blocks count that were written in part when the client died.
        TornCounts,
        /// A flush does not cover what opening found without parity.
        FoundUnprotected,
        /// Older copies of what opening found without parity are freed at once.
        FoundFreed,
        /// Headers call entries safe that opening has only seen, or that are not there.
        DoubtForgotten,
        /// When a doubted copy is not there, the copy before it does not count again.
        NoStepBack,
        /// A donor that joins stores its birth before the others know it.
        BornTwice,
        /// When a parity grew in part, its former version is not tried.
        FormerForgotten,
        /// A superblock is written over the newest one.
        SlotOverwritten,
        /// A unit that grows is written over its newest header.
        HeaderOverwritten,
        /// Lists of trims are dropped while an older copy is still to be erased.
        TrimDropped,
        /// A unit is written to before it is known that opening will look at it.
        ClosedUsed,
        /// A unit is written to while the list that names it is on its way.
        ListLate,
        /// Units are named while the lists of a round are being written.
        ListsMixed,
        /// Units that become open are not named.
        ListForgotten,
        /// A checkpoint counts before all that its pages may speak of is safe.
        CheckpointEarly,
        /// Lists of trims are dropped although a checkpoint may still have the blocks that they hide.
        CheckpointTrimDropped,
        /// A page speaks of a group that came to the place of one it may speak of.
        PlaceReused,
        /// Superblocks go on naming a checkpoint whose logs have ended.
        CheckpointKept,
        /// Opening from a checkpoint leaves units of its groups where they were.
        MovedForgotten,
        /// A list of trims that is not safe ends copies that the pages know; these are freed at once.
        TrimmedUnheld,
        /// Forgetting a donor takes those that are only missing for gone, too.
        MissingForgotten,
        /// Repair does not compare what it computes.
        RebuildUnchecked,
        /// A drain does not compare what it copies.
        CopyUnchecked,
        /// A header that could not be read is taken for an empty one.
        UnreadEmpty,
        /// A unit with a write that was not answered in time is used again before the answer.
        LateReused,
        /// Damage that reads find is not entered.
        DamageIgnored,
        /// A scrub does not look at parity.
        ParityUnscrubbed,
        /// Opening from a checkpoint takes blocks that are to be looked for as trimmed.
        LookForgotten,
        /// A client that takes a disk over does not wait until the former one has ended.
        TakeoverAtOnce,
        /// Leases of other clients are not looked at.
        LeaseUnchecked,
        /// A client goes on without renewing its lease.
        LeaseNotRenewed,
        /// A client enters with one donor too few.
        QuorumSmall,
        /// A donor is not asked whether it is the one that it was.
        DonorUnnumbered,
        /// A renewal counts from its end, not from the moment its read began.
        RenewedAtEnd,
        /// A renewal of a client that was late counts although another one waits for its end.
        LateRenewed,
        /// A donor that took a lease after the wait had begun counts for the client that waited.
        TakenLate,
        /// A flush does not wait for what a failed one was to cover.
        FailedTaken,
        /// Blocks that donors have without parity are not among those that are told to be unflushed.
        UnflushedStored,
        /// A try to make a failed flush good ends what is told of it, however it ended.
        TriedTold,
        /// A unit is no more damaged although the donor did not take what repair wrote.
        MendedUnstored,
        /// A scrub takes a unit that was not read for damaged.
        UnreadDamaged,
        /// A scrub does not look at groups that are being filled.
        OpenUnscrubbed,
        /// Groups with units on a donor that is missing are not told to be degraded.
        MissingUntold,
        /// An epoch counts with one donor too few.
        EpochSmall,
        /// What waits for other donors that are away is not told before a donor is forgotten.
        WaitingUntold,
    }
}
