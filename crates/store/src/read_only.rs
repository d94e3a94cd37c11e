//! Why a mounted store is read-only since something failed: for `df` and `status`.
//!
//! Owns the report, which travels as JSON over the control socket, and its text. The daemon's log has the same words.

use serde::{Deserialize, Serialize};
use shoal_fs::{Failure, Fs};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnly {
    /// What was under way.
    pub operation: String,
    /// The device or file that failed.
    pub object: String,
    /// What it answered.
    pub cause: String,
    /// When (UTC).
    pub time: String,
    /// What it means, and what to do.
    pub consequence: String,
}

impl ReadOnly {
    /// `None`: the store is in order.
    pub fn of(fs: &Fs) -> Option<ReadOnly> {
        fs.region().failure().map(|failure| ReadOnly::from(&*failure))
    }

    /// Two lines and an empty one.
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
            time: utc(failure.at_ns),
            consequence: failure.consequence().into(),
        }
    }
}

/// `2026-11-22T05:04:03Z`, from nanoseconds since 1970.
fn utc(ns: i64) -> String {
    let seconds = ns.div_euclid(1_000_000_000);
    let (mut days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    while days < 0 || days >= 365 + leap(year) as i64 {
        if days < 0 {
            year -= 1;
            days += 365 + leap(year) as i64;
        } else {
            days -= 365 + leap(year) as i64;
            year += 1;
        }
    }
    let mut month = 0;
    let lengths = [31, 28 + leap(year) as i64, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000_000 + 5), text);
        }
    }

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
