//! Errors of a region.
//!
//! Owns: [`Error`], and [`Failure`], the reason why a region refuses commits. The caller handles
//! lack of space and oversized transactions. Damage names the offset and the value found. Media
//! failures are passed through. Only bugs panic.

use std::fmt;
use std::sync::Arc;

use shoal_format::{FormatError, Lsn};
use shoal_media::MediaError;

/// The room that an allocation asked for and did not get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lack {
    /// Number of free segments that the allocation needs at once. 0: free segments would not help.
    pub segments: u64,
}

impl Lack {
    /// A lack that free segments would not end.
    pub const OTHER: Lack = Lack { segments: 0 };
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("no space left in the region")]
    NoSpace(Lack),
    /// The transaction outgrew what one record may hold; the caller must work in steps.
    #[error("transaction is larger than one log record may be")]
    TooLarge,
    #[error("{what} at {at:#x} is damaged (value {value:#x}); run `shoal check`")]
    Corrupt { what: &'static str, at: u64, value: u64 },
    #[error("the store is read-only: {0}; unmount it, look after the device, mount again")]
    Poisoned(Arc<Failure>),
    #[error("the store is mounted read-only")]
    ReadOnly,
    #[error("the memory holds {have} bytes, the region needs {need}")]
    TooSmall { have: u64, need: u64 },
    #[error("the anchor belongs to another store")]
    Foreign,
    /// A restore has left this region behind: the store has continued on the bulk device without
    /// it. Both numbers count restores.
    #[error(
        "the region (restored {region} times) is older than the saved image (restored {image} times): the store has gone \
         on from an image, without this region"
    )]
    RegionOlder { region: u64, image: u64 },
    #[error(
        "the saved image (restored {image} times) is not of this region (restored {region} times): the images were put \
         back from a backup, or have been used elsewhere"
    )]
    ImageOlder { region: u64, image: u64 },
    /// Log positions: the region's end, and the position up to which the image has everything.
    #[error(
        "the region ends at log position {end}, and the saved image has all up to {saved}: the region is an older copy, put \
         back"
    )]
    RegionBehind { end: Lsn, saved: Lsn },
    #[error(
        "the saved image ends at log position {saved} and claims to lack nothing, and the region goes on to {end}: the images \
         are an older copy, put back from a backup"
    )]
    ImageBehind { end: Lsn, saved: Lsn },
    #[error("the log ends at {end}, before the image's seal at {sealed}: log segments are missing or damaged")]
    LogShort { end: Lsn, sealed: Lsn },
    /// A record in the middle of the log does not count. The records after it would be lost
    /// silently.
    #[error("the log is damaged at position {at}: records that belong to it follow from {next} on, and would be lost")]
    LogGap { at: Lsn, next: Lsn },
    #[error("logged memory needs a log and two images")]
    MissingMedia,
    #[error("neither image is valid (image 0: {first}; image 1: {second})")]
    NoImage { first: FormatError, second: FormatError },
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error(transparent)]
    Media(#[from] MediaError),
}

/// The first failure that ended a region's commits. Later failures do not replace it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The operation that failed, for example "the sync of the log".
    pub operation: &'static str,
    /// The device or file, as its medium names it.
    pub object: String,
    /// The medium's answer, with the operating system's error number where there is one.
    pub cause: String,
    /// Time by the store's clock (nanoseconds since 1970); 0 if the region was given no clock.
    pub at_ns: i64,
}

impl Failure {
    pub fn new(operation: &'static str, error: &MediaError) -> Failure {
        let (object, cause) = match error {
            MediaError::Io { what, source } | MediaError::Busy { what, source } => (what.clone(), source.to_string()),
            MediaError::Poisoned { what, cause } => (what.clone(), cause.to_string()),
            MediaError::NoSpace { what } => (what.clone(), "no space left on the device that holds it".into()),
            MediaError::OutOfRange { what, at, len } => (what.clone(), format!("refused {len} bytes at byte {at}")),
        };
        Failure { operation, object, cause, at_ns: 0 }
    }

    /// Returns the consequence for the store's users, and the remedy.
    pub fn consequence(&self) -> &'static str {
        "the store is read-only until it is mounted again: what an fsync confirmed before is safe, changes that none \
         confirmed may be lost; look after the device, then unmount and mount again"
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed: {}: {}", self.operation, self.object, self.cause)
    }
}

impl Error {
    pub fn corrupt(what: &'static str, at: u64, value: u64) -> Error {
        Error::Corrupt { what, at, value }
    }
}

pub type Result<T> = std::result::Result<T, Error>;
