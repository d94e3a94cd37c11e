//! Bugs to plant, so that the tests can show that they would find them (docs/design/testing.md, T7).
//!
//! Owns: the list of rules that can be broken. Each bug leaves out one ordering or one test that the design says is needed.
//! Left out: the switch (`shoal_media::plantable`) and the harness (`tests/planted.rs`).

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
        /// What donors return is not compared with its checksum.
        NoChecksum,
        /// A flush does not write down what was trimmed.
        TrimForgotten,
        /// Units count although their donor was given up in the meantime.
        StaleUnits,
        /// Repair puts two units of a group on one donor.
        SharedDonor,
        /// Requests are served before the donors know the present epoch.
        ServeEarly,
        /// A block of a missing unit counts although the rest of its row is not there.
        MissingRow,
        /// A dead group that lost a unit does not count, though what took its blocks' place is not safe.
        DeadForgotten,
        /// Units of a lost donor's group in memory are freed while writes to them are on their way.
        AbandonEarly,
        /// What replaced a block that was dead before it was safe does not wait for both.
        DropDead,
    }
}
