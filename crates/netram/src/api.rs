//! Inputs and outputs of the engine: requests, operations on donors, completions.
//!
//! Owns: the vocabulary. Every donor operation and every request carries a ticket, which the answer
//! names. Left out: carrying operations out (`disk` over real devices, the simulation over a model
//! of time).

/// Index of a donor in the engine's table. Another donor may reuse the index of one that is gone.
pub type DonorId = u16;

/// A donor as its caller presents it to the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonorInfo {
    /// Address, for messages and status.
    pub name: String,
    /// Memory that the donor offers (bytes).
    pub bytes: u64,
    /// Its failure domain: donors with the same number may be lost together. 0: its own.
    pub domain: u16,
}

/// An operation on a donor. Offsets and lengths are multiples of 512 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DonorOp {
    Read {
        at: u64,
        len: u32,
    },
    Write {
        at: u64,
        bytes: Vec<u8>,
    },
    /// The range's contents are no longer needed. It need not read as zeros.
    Trim {
        at: u64,
        len: u64,
    },
}

/// How an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The donor is reachable and answered that it could not. A write may have been done in part.
    Refused,
    /// The connection broke, and the donor is reachable again. The operation may have been carried
    /// out, may not have been, or may still be carried out.
    Uncertain,
    /// The donor cannot be reached. It may come back ([`crate::Engine::back`]).
    Away,
}

/// Why a donor operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct DonorError {
    pub trouble: Trouble,
    pub why: String,
}

impl DonorError {
    pub fn new(trouble: Trouble, why: impl Into<String>) -> DonorError {
        DonorError { trouble, why: why.into() }
    }
}

/// The purpose of an operation on a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Reading for a request.
    Read,
    /// Storing written blocks, and their parity.
    Write,
    /// Reading and storing of live blocks to gain room.
    Clean,
    /// Restoring redundancy, moving away from a donor.
    Repair,
    /// Superblocks, scanning, freeing of units.
    Upkeep,
}

/// Why a donor that can be reached is not taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotBack {
    /// The donor belongs to the disk, but earlier operations on it are still unanswered, or it is
    /// not away at all.
    Later,
    /// The donor does not belong to the disk, or no longer does.
    Stranger,
}

/// Whether former connections may still change a donor that is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// They have ended, or there were none.
    Over,
    /// Their writes may still reach the donor, so it gets no units before it has answered for a
    /// while.
    MayWrite,
}

/// The cost of giving a donor up for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForgetCost {
    /// Blocks that would be lost at once.
    pub lost: u64,
    /// Blocks that could only be read once other missing donors return.
    pub waiting: u64,
    /// Names of those missing donors.
    pub away: Vec<String>,
}

/// Work for the engine's caller.
#[derive(Debug)]
pub enum Action {
    /// Carry out `op` on `donor`, then call [`crate::Engine::done`] with the ticket. Operations in flight at the same
    /// time may be carried out in any order.
    Donor { ticket: u64, donor: DonorId, op: DonorOp, purpose: Purpose },
    /// The request submitted with this ticket has ended. The buffer is the request's own.
    Complete { ticket: u64, result: Result<Vec<u8>, DiskError> },
}

/// Why a request, or the opening of a disk, failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    #[error("request at byte {at}, {len} bytes, is outside the disk or not aligned to its blocks")]
    OutOfRange { at: u64, len: u64 },
    #[error("no room on the donors for redundancy and data; add a donor with `shoal donor add`, or trim")]
    NoSpace,
    #[error("the data of block {block} is not to be had ({donors})")]
    Unavailable { block: u64, donors: String },
    #[error("the data of block {block} is lost: a donor it was on was forgotten; write it anew, or trim it")]
    Lost { block: u64 },
    #[error(
        "too few donors (or failure domains of donors) are left to store data: {have} of {need}; bring some back, or add some"
    )]
    TooFewDonors { have: usize, need: usize },
    #[error("the disk is not open yet: it needs what donors hold that are away; bring them back")]
    NotOpen,
    #[error("another client has taken the disk over; this one has stopped")]
    TakenOver,
    #[error("this client could not renew its lease on enough donors; bring donors back")]
    NotRenewed,
    #[error("{0}")]
    Config(String),
}
