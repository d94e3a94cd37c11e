//! The failure that made a mounted store read-only, for `df` and `status`.
//!
//! Owns: the report, which is passed as JSON over the control socket, and its text. The daemon's
//! log uses the same words.

use serde::{Deserialize, Serialize};
use shoal_fs::{Failure, Fs};

use crate::calendar;

/// The failure that made a store read-only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnly {
    /// The operation that failed.
    pub operation: String,
    /// The device or file that failed.
    pub object: String,
    /// The error it returned.
    pub cause: String,
    /// Time of the failure (UTC).
    pub time: String,
    /// The consequence and the remedy.
    pub consequence: String,
}

impl ReadOnly {
    /// Returns the failure of an open file system. `None` if nothing has failed.
    pub fn of(fs: &Fs) -> Option<ReadOnly> {
        fs.region().failure().map(|failure| ReadOnly::from(&*failure))
    }

    /// Formats the failure as two lines and an empty one.
    pub fn text(&self) -> String {
        let ReadOnly { operation, object, cause, time, consequence } = self;
        format!("READ-ONLY since {time}: {operation} failed: {object}: {cause}\n{consequence}\n\n")
    }
}

impl From<&Failure> for ReadOnly {
    fn from(failure: &Failure) -> ReadOnly {
        ReadOnly {
            operation: failure.operation.into(),
            object: failure.object.clone(),
            cause: failure.cause.clone(),
            time: calendar::stamp(failure.at_ns),
            consequence: failure.consequence().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_names_object_cause_time_and_remedy() {
        let error = shoal_media::MediaError::io("bulk file /b", std::io::Error::from_raw_os_error(5));
        let failure =
            Failure { at_ns: 951_782_400_000_000_000, ..Failure::new("the flush of the bulk storage", &error) };
        let text = ReadOnly::from(&failure).text();
        let begin = "READ-ONLY since 2000-02-29T00:00:00Z: the flush of the bulk storage failed: bulk file /b: ";
        assert!(text.starts_with(begin) && text.contains("os error 5"), "{text}");
        assert!(text.contains("mount again"), "{text}");
    }
}
