//! Rules as people write them: `aipu:30s`, `purp:30s:60s`, `sprite:30s:5s`, `write-through`, `hold:10m`.
//!
//! Left out: the shape, which has an option of its own.

use std::fmt;
use std::str::FromStr;

use crate::S_NS;
use crate::policy::{Policy, Rule};

/// Longest time in a rule (ns): a week.
const LONGEST_NS: u64 = 7 * 24 * 3600 * S_NS;

/// Parses a time such as `30s`, `500ms`, `10m` or `2h`. A bare number is seconds.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ns = match &text[digits.len()..] {
        "ms" => 1_000_000,
        "" | "s" => S_NS,
        "m" => 60 * S_NS,
        "h" => 3600 * S_NS,
        _ => return Err(format!("`{text}` is no time; write 500ms, 30s, 10m or 2h")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no time; write 500ms, 30s, 10m or 2h"))?;
    match number.checked_mul(unit_ns) {
        Some(ns) if (1..=LONGEST_NS).contains(&ns) => Ok(ns),
        _ => Err(format!("`{text}`: more than nothing, and a week at most")),
    }
}

fn time(ns: u64) -> String {
    match ns {
        ns if ns.is_multiple_of(3600 * S_NS) => format!("{}h", ns / (3600 * S_NS)),
        ns if ns.is_multiple_of(60 * S_NS) => format!("{}m", ns / (60 * S_NS)),
        ns if ns.is_multiple_of(S_NS) => format!("{}s", ns / S_NS),
        ns => format!("{}ms", ns / 1_000_000),
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let times = parts.map(parse_time).collect::<Result<Vec<u64>, String>>()?;
        let at = |index: usize, default_ns: u64| times.get(index).copied().unwrap_or(default_ns);
        let (age_ns, most) = (at(0, 30 * S_NS), if name == "write-through" { 0 } else { 2 });
        let is_known = ["write-through", "pu", "aipu", "ipu", "purp", "irp", "sprite", "hold"].contains(&name);
        if !is_known || times.len() > most {
            return Err(format!(
                "`{text}` is no update policy; use write-through, pu:30s, aipu:30s, ipu:30s, purp:30s:60s, irp:30s:60s, \
                 sprite:30s:5s or hold:10m"
            ));
        }
        if times.len() > 1 && matches!(name, "pu" | "ipu" | "hold") {
            return Err(format!("`{text}`: {name} takes one time"));
        }
        Ok(match name {
            "write-through" => Policy::WriteThrough,
            "pu" => Policy::Periodic { interval_ns: age_ns },
            "aipu" => Policy::ApproximateInterval { age_ns, grain_ns: at(1, S_NS) },
            "ipu" => Policy::Interval { age_ns },
            "purp" => Policy::PeriodicReadPriority { interval_ns: age_ns, age_max_ns: at(1, 2 * age_ns) },
            "irp" => Policy::IntervalReadPriority { age_ns, grain_ns: S_NS, age_max_ns: at(1, 2 * age_ns) },
            "sprite" => Policy::Sprite { age_ns, scan_ns: at(1, 5 * S_NS) },
            _ => Policy::Idle { age_ns: at(0, 600 * S_NS) },
        })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Policy::WriteThrough => f.write_str("write-through"),
            Policy::Periodic { interval_ns } => write!(f, "pu:{}", time(interval_ns)),
            Policy::ApproximateInterval { age_ns, grain_ns: S_NS } => write!(f, "aipu:{}", time(age_ns)),
            Policy::ApproximateInterval { age_ns, grain_ns } => write!(f, "aipu:{}:{}", time(age_ns), time(grain_ns)),
            Policy::Interval { age_ns } => write!(f, "ipu:{}", time(age_ns)),
            Policy::PeriodicReadPriority { interval_ns, age_max_ns } => {
                write!(f, "purp:{}:{}", time(interval_ns), time(age_max_ns))
            }
            Policy::IntervalReadPriority { age_ns, age_max_ns, .. } => {
                write!(f, "irp:{}:{}", time(age_ns), time(age_max_ns))
            }
            Policy::Sprite { age_ns, scan_ns } => write!(f, "sprite:{}:{}", time(age_ns), time(scan_ns)),
            Policy::Idle { age_ns } => write!(f, "hold:{}", time(age_ns)),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.policy.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_written_as_they_are_read() {
        let all =
            "write-through pu:30s aipu:30s aipu:5s:100ms ipu:1s purp:30s:1m irp:30s:1m sprite:30s:5s hold:10m pu:2h";
        for text in all.split(' ') {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
        assert_eq!("aipu".parse::<Policy>(), Ok(Policy::default()));
        assert_eq!("sprite".parse::<Policy>(), Ok(Policy::SPRITE));
        assert_eq!("hold:90".parse::<Policy>(), Ok(Policy::Idle { age_ns: 90 * S_NS }));
    }

    #[test]
    fn what_is_no_policy_is_named() {
        for text in [
            "",
            "bdflush",
            "aipu:",
            "aipu:0s",
            "aipu:8d",
            "pu:1s:2s",
            "aipu:1s:1s:1s",
            "write-through:1s",
            "hold:9999h",
        ] {
            assert!(text.parse::<Policy>().unwrap_err().contains('`'), "{text}");
        }
    }
}
