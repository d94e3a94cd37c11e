//! Bugs to plant, so that the tests can show that they would find them (docs/design/testing.md, T7).
//!
//! Owns: the list of rules that can be broken. Each bug leaves out one ordering or one test that the design says is
//! needed. Left out: the switch (`shoal_media::plantable`) and the harness (`tests/planted.rs`).

shoal_media::plantable! {
    /// A rule of the engine, left out.
    pub enum Bug {
        /// Parity that covers new blocks is sent along with them, not after them.
        ParityFirst,
        /// A flush ends when data is stored, before parity covers it.
        FlushEarly,
        /// A dead group is freed before the successors of its blocks are safe.
        FreeEarly,
        /// A dead group that was abandoned waits for no list of trims although some of it was safe.
        SafeForgotten,
        /// Headers of freed units are not erased.
        NoErase,
        /// Headers of freed units stay when the lists of trims that hide their blocks are dropped.
        TrimmedKept,
        /// Headers of freed units stay although they list ranges, or nothing of their group was ever
        /// safe.
        RangesKept,
        /// Blocks that donors return are not compared with their checksums.
        NoChecksum,
        /// A flush does not write lists of trims.
        TrimForgotten,
        /// Units count although their donor has been given up since.
        StaleUnits,
        /// Repair puts two units of a group on one donor.
        SharedDonor,
        /// Repair and levelling put two units of a group into one failure domain.
        DomainShared,
        /// Superblocks name failure domains while groups have two units in one.
        DomainsEarly,
        /// Failure domains count that a former client told one donor only.
        DomainsUnsettled,
        /// A larger disk is used before enough donors know its size.
        GrownEarly,
        /// The last donor that is left is excluded when it goes away.
        LastExcluded,
        /// Requests are served before the donors know the present epoch.
        ServeEarly,
        /// A block of a missing unit counts although the rest of its row is not there.
        MissingRow,
        /// Units of an in-memory group that lost a donor are freed while writes to them are in
        /// flight.
        AbandonEarly,
        /// The successor of a block that died before it was safe does not wait for both.
        DropDead,
        /// The cleaner does not compare checksums.
        CleanUnchecked,
        /// A read does not check whether the block is lost.
        LostZeros,
        /// A unit that a late write may still reach is used again.
        TaintedReused,
        /// A tainted unit is used again as soon as its server answers.
        QuarantineShort,
        /// A donor that joins with a past gets units at once.
        PastForgotten,
        /// A block that cannot be read at the moment is given up.
        LossAtOnce,
        /// Opening does not wait until enough donors have been scanned.
        OpenEarly,
        /// Opening still counts on a donor that went away after it was scanned.
        LookedAtGone,
        /// A list of losses counts as no older than itself.
        OldLosses,
        /// Losses are not read when the disk is opened.
        LossForgotten,
        /// A donor that was away at one opening is trusted at the next one.
        StaleCounts,
        /// A donor serves as a source again while its units list entries that no opening has seen.
        NewsKept,
        /// A parity unit that was away brings back blocks that opening did not find.
        AbsentComputed,
        /// Blocks that were written in part when the client died count.
        TornCounts,
        /// A flush does not cover the blocks that opening found without parity.
        FoundUnprotected,
        /// Older copies of blocks that opening found without parity are freed at once.
        FoundFreed,
        /// Headers declare entries safe that opening has only seen, or that are not there.
        DoubtForgotten,
        /// When a doubted copy is not there, the copy before it does not count again.
        NoStepBack,
        /// A donor that joins stores its birth before the others know it.
        BornTwice,
        /// When a parity unit was extended in part, its former version is not tried.
        FormerForgotten,
        /// A superblock overwrites the newest one.
        SlotOverwritten,
        /// A unit that grows overwrites its newest header.
        HeaderOverwritten,
        /// Lists of trims are dropped while an older copy is still to be erased.
        TrimDropped,
        /// A unit is written to before opening is certain to look at it.
        ClosedUsed,
        /// A unit is written to while the list that names it is being written.
        ListLate,
        /// Units are named while the lists of a round are being written.
        ListsMixed,
        /// Units that become open are named in no list.
        ListForgotten,
        /// A checkpoint counts before everything its pages may describe is safe.
        CheckpointEarly,
        /// Lists of trims are dropped although a checkpoint may still contain the blocks they hide.
        CheckpointTrimDropped,
        /// A page describes a group that took the place of one it may describe.
        PlaceReused,
        /// Superblocks go on naming a checkpoint whose logs have ended.
        CheckpointKept,
        /// Opening from a checkpoint ignores that units of its groups have moved.
        MovedForgotten,
        /// Copies that the pages know and an unsafe list of trims ended are freed at once.
        TrimmedUnheld,
        /// Forgetting a donor also gives up donors that are only missing.
        MissingForgotten,
        /// Repair does not verify what it computes.
        RebuildUnchecked,
        /// A drain does not verify what it copies.
        CopyUnchecked,
        /// A header that could not be read is taken for an empty one.
        UnreadEmpty,
        /// A unit with a write that was not answered in time is used again before the answer.
        LateReused,
        /// Damage found by reads is not recorded.
        DamageIgnored,
        /// A scrub does not check parity.
        ParityUnscrubbed,
        /// Opening from a checkpoint treats blocks that it must look for as trimmed.
        LookForgotten,
        /// A client that takes a disk over does not wait until the former one has ended.
        TakeoverAtOnce,
        /// Leases of other clients are ignored.
        LeaseUnchecked,
        /// A client goes on without renewing its lease.
        LeaseNotRenewed,
        /// A client enters with one donor too few.
        QuorumSmall,
        /// A domain of which one donor is there counts as a whole.
        DomainHalf,
        /// A donor's identity is not checked.
        DonorUnnumbered,
        /// A renewal counts from its end, not from the moment its read began.
        RenewedAtEnd,
        /// A late client's renewal counts although another client waits for its end.
        LateRenewed,
        /// A donor that took a client's lease after the wait had begun counts for that client.
        TakenLate,
        /// A flush does not wait for what a failed one had to cover.
        FailedTaken,
        /// Blocks that donors hold without parity are not reported as unflushed.
        UnflushedStored,
        /// An attempt to make a failed flush good ends the report of it, whatever its outcome.
        TriedTold,
        /// A unit no longer counts as damaged although the donor did not take what repair wrote.
        MendedUnstored,
        /// A scrub treats a unit that was not read as damaged.
        UnreadDamaged,
        /// A scrub skips groups that are being filled.
        OpenUnscrubbed,
        /// Groups with units on a missing donor are not reported as degraded.
        MissingUntold,
        /// An epoch counts with one donor too few.
        EpochSmall,
        /// Forgetting a donor does not report what waits for other donors that are away.
        WaitingUntold,
    }
}
