//! The kernel's requests to a mount's daemon, as `shoal status` prints them.
//!
//! A line for each kind of request, the most frequent first, with the daemon's own share of the time.

use std::time::Duration;

use serde::Serialize;
use shoal_store::RequestReport;

pub fn text(requests: &[RequestReport]) -> String {
    let mut out = format!("{:<20} {:>12} {:>10} {:>10} {:>10}\n", "requests", "count", "p50", "p99", "max");
    for of in requests {
        let times = [of.p50_ns, of.p99_ns, of.max_ns].map(duration);
        out += &format!("{:<20} {:>12} {:>10} {:>10} {:>10}\n", of.name, of.count, times[0], times[1], times[2]);
    }
    out
}

/// Requests of one kind in a period.
#[derive(Debug, PartialEq, Serialize)]
pub struct Rate {
    pub name: String,
    pub per_s: f64,
    /// Average time in the daemon.
    pub mean_ns: u64,
}

/// Returns the rates between two reports, the most frequent kind first.
pub fn rates(before: &[RequestReport], now: &[RequestReport], passed: Duration) -> Vec<Rate> {
    let rate = |of: &RequestReport| {
        let (count, total_ns) =
            before.iter().find(|other| other.name == of.name).map_or((0, 0), |other| (other.count, other.total_ns));
        let more = of.count.saturating_sub(count);
        let mean_ns = of.total_ns.saturating_sub(total_ns).checked_div(more)?;
        Some(Rate { name: of.name.clone(), per_s: more as f64 / passed.as_secs_f64(), mean_ns })
    };
    let mut rates: Vec<_> = now.iter().filter_map(rate).collect();
    rates.sort_by(|a, b| b.per_s.total_cmp(&a.per_s));
    rates
}

pub fn rates_text(rates: &[Rate]) -> String {
    let mut out = format!("{:<20} {:>12} {:>10}\n", "requests", "a second", "mean");
    for of in rates {
        out += &format!("{:<20} {:>12.0} {:>10}\n", of.name, of.per_s, duration(of.mean_ns));
    }
    out
}

/// Formats a time in two to four digits. The percentiles are no more precise.
fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{:.1} us", ns as f64 / 1e3),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        10_000_000..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, count: u64, p50_ns: u64, max_ns: u64) -> RequestReport {
        RequestReport { name: name.into(), count, total_ns: count * p50_ns, p50_ns, p99_ns: 2 * p50_ns, max_ns }
    }

    #[test]
    fn rates_are_of_what_came_between_two_reports() {
        let before = [of("LOOKUP", 10, 1000, 1000), of("WRITE", 5, 1000, 1000)];
        let now = [of("LOOKUP", 12, 1000, 1000), of("MKNOD", 8, 3000, 3000), of("WRITE", 5, 1000, 1000)];
        let rates = rates(&before, &now, Duration::from_secs(2));
        let found: Vec<_> = rates.iter().map(|rate| (rate.name.as_str(), rate.per_s, rate.mean_ns)).collect();
        assert_eq!(found, [("MKNOD", 4.0, 3000), ("LOOKUP", 1.0, 1000)]);
        let text = rates_text(&rates);
        assert!(text.lines().nth(1).unwrap().split_whitespace().eq(["MKNOD", "4", "3.0", "us"]), "{text}");
    }

    #[test]
    fn each_kind_of_request_has_a_line() {
        let text = text(&[of("LOOKUP", 12_345, 950, 3_456_789), of("FSYNC", 2, 12_000_000, 71_000_000_000)]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["LOOKUP", "12345", "0.9", "us", "1.9", "us", "3456", "us"]);
        assert_eq!(lines[2], ["FSYNC", "2", "12", "ms", "24", "ms", "71", "s"]);
    }
}
