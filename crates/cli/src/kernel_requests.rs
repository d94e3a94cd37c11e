//! The kernel's requests to a mount's daemon, as `shoal status` prints them.
//!
//! A line for each kind of request, the most frequent first, with the daemon's own share of the time.

use shoal_store::RequestReport;

pub fn text(requests: &[RequestReport]) -> String {
    let mut out = format!("{:<20} {:>12} {:>10} {:>10} {:>10}\n", "requests", "count", "p50", "p99", "max");
    for of in requests {
        let times = [of.p50_ns, of.p99_ns, of.max_ns].map(duration);
        out += &format!("{:<20} {:>12} {:>10} {:>10} {:>10}\n", of.name, of.count, times[0], times[1], times[2]);
    }
    out
}

/// A time in two to four digits; the percentiles are no more precise.
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

    #[test]
    fn each_kind_of_request_has_a_line() {
        let of = |name: &str, count, p50_ns, max_ns| RequestReport {
            name: name.into(),
            count,
            total_ns: count * p50_ns,
            p50_ns,
            p99_ns: 2 * p50_ns,
            max_ns,
        };
        let text = text(&[of("LOOKUP", 12_345, 950, 3_456_789), of("FSYNC", 2, 12_000_000, 71_000_000_000)]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["LOOKUP", "12345", "0.9", "us", "1.9", "us", "3456", "us"]);
        assert_eq!(lines[2], ["FSYNC", "2", "12", "ms", "24", "ms", "71", "s"]);
    }
}
