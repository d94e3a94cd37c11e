//! Errors of bulk storage.
//!
//! Owns: [`Error`]. Failures of a device are `Io`, `NoSpace` or `Failed`; damage is `Corrupt` or
//! `Damaged` and says what was found. Left out: the errno of each, which the file system gives.

use std::sync::Arc;

use shoal_format::FormatError;
use shoal_media::MediaError;
use shoal_region::{Failure, Lack};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no such device.
    #[error("no such bulk device")]
    NotFound,
    #[error("invalid argument")]
    Invalid,
    #[error("no space left")]
    NoSpace(Lack),
    #[error("read-only file system")]
    ReadOnly,
    /// The store or a device takes no more writes since something failed.
    #[error("read-only file system: {0}")]
    Failed(Arc<Failure>),
    /// Refused by [`crate::Patience::Refuses`].
    #[error("the operation has to wait for the bulk storage")]
    WouldFlush,
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
    /// No space, and free segments of the region would not help.
    pub const NO_SPACE: Error = Error::NoSpace(Lack::OTHER);
}

impl From<shoal_region::Error> for Error {
    fn from(error: shoal_region::Error) -> Error {
        use shoal_region::Error as Region;
        match error {
            Region::NoSpace(lack) => Error::NoSpace(lack),
            Region::ReadOnly => Error::ReadOnly,
            Region::Poisoned(failure) => Error::Failed(failure),
            Region::Media(media) => media.into(),
            Region::Corrupt { .. } | Region::Format(_) => Error::Corrupt(error.to_string()),
            other => Error::Io(other.to_string()),
        }
    }
}

impl From<MediaError> for Error {
    fn from(error: MediaError) -> Error {
        match error {
            MediaError::NoSpace { .. } => Error::NO_SPACE,
            MediaError::Poisoned { .. } => Error::Failed(Arc::new(Failure::new("a flush", &error))),
            other => Error::Io(other.to_string()),
        }
    }
}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Error {
        Error::Corrupt(error.to_string())
    }
}

pub type Result<T> = std::result::Result<T, Error>;
