//! What the kernel has asked a mount's daemon for, as `shoal status` reports it.
//!
//! A request is a round trip between a program's system call and the daemon, and most of what a system call costs. The times are
//! the daemon's own share: from the moment it had the request to the moment it had the answer.

use serde::{Deserialize, Serialize};

/// Requests of one kind since the mount was made.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestReport {
    /// As the kernel's `linux/fuse.h` calls it, without `FUSE_`.
    pub name: String,
    pub count: u64,
    pub total_ns: u64,
    /// Percentiles are right to about 12%.
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

impl From<shoal_fuse::RequestCount> for RequestReport {
    fn from(of: shoal_fuse::RequestCount) -> RequestReport {
        RequestReport {
            name: of.name.into(),
            count: of.count,
            total_ns: of.total_ns,
            p50_ns: of.p50_ns,
            p99_ns: of.p99_ns,
            max_ns: of.max_ns,
        }
    }
}

pub fn text(requests: &[RequestReport]) -> String {
    let mut out = format!("{:<20} {:>12} {:>10} {:>10} {:>10}\n", "requests", "count", "p50", "p99", "max");
    for of in requests {
        let times = [of.p50_ns, of.p99_ns, of.max_ns].map(duration);
        out += &format!("{:<20} {:>12} {:>10} {:>10} {:>10}\n", of.name, of.count, times[0], times[1], times[2]);
    }
    out
}

/// Two digits and a bit: more would promise too much.
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
