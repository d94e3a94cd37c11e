//! Moments as people and programs read them, in UTC.
//!
//! Left out: time zones, and leap seconds, which the machine's clock does not count.

use std::time::{SystemTime, UNIX_EPOCH};

/// A moment by calendar and clock.
struct Moment {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

impl Moment {
    /// Converts seconds since 1970.
    fn of(seconds: i64) -> Moment {
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Count years from March, so that the leap day is the last of its year. An era has 400
        // years.
        let shifted = days + 719_468;
        let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + i64::from(month <= 2);
        Moment { year, month, day, hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
    }
}

/// Formats a time as `2026-03-14 09:26:53 UTC`. A time before 1970 is shown as the start of 1970.
pub fn text(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let Moment { year, month, day, hour, minute, second } = Moment::of(seconds as i64);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Formats nanoseconds since 1970 as `2026-11-22T05:04:03Z`.
pub fn stamp(ns: i64) -> String {
    let Moment { year, month, day, hour, minute, second } = Moment::of(ns.div_euclid(1_000_000_000));
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_as_people_write_them() {
        let text = |seconds| text(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(text(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(text(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(text(1_709_251_199), "2024-02-29 23:59:59 UTC");
        assert_eq!(text(1_773_480_413), "2026-03-14 09:26:53 UTC");
        assert_eq!(text(4_107_542_400), "2100-03-01 00:00:00 UTC");
    }

    #[test]
    fn times_are_those_of_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(stamp(seconds * 1_000_000_000 + 5), text);
        }
    }
}
