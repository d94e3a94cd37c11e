//! Errors of file system operations, and the errno each stands for.
//!
//! Owns: [`Error`]. Callers' mistakes have a variant each; failures of the environment are `Io`,
//! `NoSpace` or `ReadOnly`; damage is `Corrupt` and says what was found. Nothing here panics; a bug
//! is an assertion where it is found.

use std::sync::Arc;

use shoal_format::FormatError;
use shoal_format::inode::Ino;
use shoal_media::MediaError;
use shoal_region::{Failure, Lack};

/// Numbers follow Linux' generic `errno` table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no such file or directory")]
    NotFound,
    #[error("file exists")]
    Exists,
    #[error("not a directory")]
    NotDirectory,
    #[error("is a directory")]
    IsDirectory,
    #[error("directory not empty")]
    NotEmpty,
    #[error("name too long")]
    NameTooLong,
    #[error("invalid argument")]
    Invalid,
    #[error("no space left")]
    NoSpace(Lack),
    #[error("file too large")]
    FileTooBig,
    #[error("no such attribute")]
    NoAttribute,
    #[error("result does not fit the buffer")]
    Range,
    #[error("too many links")]
    TooManyLinks,
    #[error("operation not permitted")]
    NotPermitted,
    #[error("operation not supported")]
    NotSupported,
    #[error("no such inode")]
    Stale,
    #[error("read-only file system")]
    ReadOnly,
    /// The store is read-only since something failed.
    #[error("read-only file system: {0}")]
    Failed(Arc<Failure>),
    /// Refused by [`crate::Patience::Refuses`]; never an answer to a user.
    #[error("the operation has to wait for the bulk storage")]
    WouldFlush,
    /// The operation needs this object in the region: the object is brought back, and the operation
    /// is tried again. Never an answer to a user.
    #[error("group {group} of inode {ino} is in the spill file")]
    Spilled { ino: Ino, group: u64 },
    #[error("no data or hole at this offset")]
    NoDevice,
    #[error("permission denied")]
    Access,
    #[error("argument list too long")]
    TooBig,
    #[error("input/output error: {0}")]
    Io(String),
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// The device returned other bytes than were written.
    #[error(
        "{device}: the bytes from {byte} on are not what was written, says their checksum; `shoal scrub` names the files"
    )]
    Damaged { device: String, byte: u64 },
}

impl Error {
    pub fn errno(&self) -> i32 {
        match self {
            Error::NotPermitted => 1,
            Error::NotFound => 2,
            Error::Io(_) | Error::Damaged { .. } | Error::Spilled { .. } => 5,
            Error::NoDevice => 6,
            Error::WouldFlush => 11,
            Error::TooBig => 7,
            Error::Access => 13,
            Error::Exists => 17,
            Error::NotDirectory => 20,
            Error::IsDirectory => 21,
            Error::Invalid => 22,
            Error::FileTooBig => 27,
            Error::NoSpace(_) => 28,
            Error::ReadOnly | Error::Failed(_) => 30,
            Error::TooManyLinks => 31,
            Error::Range => 34,
            Error::NameTooLong => 36,
            Error::NotEmpty => 39,
            Error::NoAttribute => 61,
            Error::NotSupported => 95,
            Error::Stale => 116,
            Error::Corrupt(_) => 117,
        }
    }
}

impl Error {
    /// No space, and free segments of the region would not help.
    pub const NO_SPACE: Error = Error::NoSpace(Lack::OTHER);
}

/// Converts errors of the layers below: those of bulk storage one to one, the others by way of bulk
/// storage's.
impl From<shoal_bulk::Error> for Error {
    fn from(error: shoal_bulk::Error) -> Error {
        use shoal_bulk::Error as Bulk;
        match error {
            Bulk::NotFound => Error::NotFound,
            Bulk::Invalid => Error::Invalid,
            Bulk::NoSpace(lack) => Error::NoSpace(lack),
            Bulk::ReadOnly => Error::ReadOnly,
            Bulk::Failed(failure) => Error::Failed(failure),
            Bulk::WouldFlush => Error::WouldFlush,
            Bulk::Io(text) => Error::Io(text),
            Bulk::Corrupt(text) => Error::Corrupt(text),
            Bulk::Damaged { device, byte } => Error::Damaged { device, byte },
        }
    }
}

impl From<shoal_region::Error> for Error {
    fn from(error: shoal_region::Error) -> Error {
        shoal_bulk::Error::from(error).into()
    }
}

impl From<MediaError> for Error {
    fn from(error: MediaError) -> Error {
        shoal_bulk::Error::from(error).into()
    }
}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Error {
        shoal_bulk::Error::from(error).into()
    }
}

pub type Result<T> = std::result::Result<T, Error>;
