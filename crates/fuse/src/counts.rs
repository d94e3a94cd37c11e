//! How many requests of each kind there were, and how long they took in this process.
//!
//! The time of a request runs from its receipt until its answer is ready. It includes waiting for
//! locks and devices, but not the kernel's part. Each thread that serves requests has its own
//! counts, so that counting costs no shared cache line; reports add them up. Durations are counted
//! in classes narrow enough for percentiles to be accurate to about 12%.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::protocol::opcode;

/// Number of classes for each power of two.
const PARTS: u64 = 4;
/// All durations below 2 to this power (ns) are in the first class.
const SHORTEST_LOG2: u64 = 8;
const CLASSES: usize = 128;
/// A request that takes longer waits for a device, or moves much data (ns).
const SLOW_NS: u64 = 50_000;

/// Counts of one kind of request.
struct Kind {
    count: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
    classes: [AtomicU64; CLASSES],
}

pub(crate) struct Counts {
    kinds: Box<[Kind]>,
    slow: AtomicU64,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCount {
    /// Name in the kernel's headers, without `FUSE_`.
    pub name: &'static str,
    pub count: u64,
    pub total_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

impl Counts {
    pub fn new() -> Counts {
        let kind = || Kind {
            count: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
            classes: [const { AtomicU64::new(0) }; CLASSES],
        };
        Counts { kinds: (0..opcode::END).map(|_| kind()).collect(), slow: AtomicU64::new(0) }
    }

    /// Counts a request. Unknown kinds count as kind 0.
    pub fn note(&self, opcode: u32, took: Duration) {
        let Some(kind) = self.kinds.get(opcode as usize).or(self.kinds.first()) else { return };
        let ns = took.as_nanos() as u64;
        kind.count.fetch_add(1, Ordering::Relaxed);
        kind.total_ns.fetch_add(ns, Ordering::Relaxed);
        if ns > kind.max_ns.load(Ordering::Relaxed) {
            kind.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
        kind.classes[class_of(ns)].fetch_add(1, Ordering::Relaxed);
        if ns >= SLOW_NS {
            self.slow.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests that took [`SLOW_NS`] or longer.
    pub fn slow(&self) -> u64 {
        self.slow.load(Ordering::Relaxed)
    }
}

fn class_of(ns: u64) -> usize {
    let log2 = u64::from(ns.max(1).ilog2());
    if log2 < SHORTEST_LOG2 {
        return 0;
    }
    let part = (ns >> (log2 - 2)) % PARTS;
    (((log2 - SHORTEST_LOG2) * PARTS + part) as usize + 1).min(CLASSES - 1)
}

/// Returns the middle of a class (ns).
fn time_of(class: usize) -> u64 {
    let Some(index) = class.checked_sub(1) else { return 1 << (SHORTEST_LOG2 - 1) };
    let (log2, part) = (index as u64 / PARTS + SHORTEST_LOG2, index as u64 % PARTS);
    ((2 * (PARTS + part) + 1) << log2) / (2 * PARTS)
}

/// Reports all kinds with at least one request, the most frequent first.
pub(crate) fn report<'a>(all: impl Iterator<Item = &'a Counts> + Clone) -> Vec<RequestCount> {
    let mut kinds: Vec<RequestCount> = (0..opcode::END as usize)
        .filter_map(|number| {
            let of = || all.clone().map(move |counts| &counts.kinds[number]);
            let sum =
                |field: fn(&Kind) -> &AtomicU64| of().map(|kind| field(kind).load(Ordering::Relaxed)).sum::<u64>();
            let count = sum(|kind| &kind.count);
            let mut classes = [0; CLASSES];
            for kind in of() {
                for (sum, class) in classes.iter_mut().zip(&kind.classes) {
                    *sum += class.load(Ordering::Relaxed);
                }
            }
            let max_ns = of().map(|kind| kind.max_ns.load(Ordering::Relaxed)).max().unwrap_or(0);
            let percentile = |percent| percentile(&classes, percent).min(max_ns);
            (count > 0).then(|| RequestCount {
                name: name(number as u32),
                count,
                total_ns: sum(|kind| &kind.total_ns),
                p50_ns: percentile(50),
                p99_ns: percentile(99),
                max_ns,
            })
        })
        .collect();
    kinds.sort_by(|a, b| b.count.cmp(&a.count).then(a.name.cmp(b.name)));
    kinds
}

fn percentile(classes: &[u64; CLASSES], percent: u64) -> u64 {
    let all: u64 = classes.iter().sum();
    let wanted = (all * percent).div_ceil(100).max(1);
    let mut seen = 0;
    let class = classes.iter().position(|count| {
        seen += count;
        seen >= wanted
    });
    class.map_or(0, time_of)
}

fn name(number: u32) -> &'static str {
    match number {
        opcode::LOOKUP => "LOOKUP",
        opcode::FORGET => "FORGET",
        opcode::GETATTR => "GETATTR",
        opcode::SETATTR => "SETATTR",
        opcode::READLINK => "READLINK",
        opcode::SYMLINK => "SYMLINK",
        opcode::MKNOD => "MKNOD",
        opcode::MKDIR => "MKDIR",
        opcode::UNLINK => "UNLINK",
        opcode::RMDIR => "RMDIR",
        opcode::RENAME => "RENAME",
        opcode::LINK => "LINK",
        opcode::OPEN => "OPEN",
        opcode::READ => "READ",
        opcode::WRITE => "WRITE",
        opcode::STATFS => "STATFS",
        opcode::RELEASE => "RELEASE",
        opcode::FSYNC => "FSYNC",
        opcode::SETXATTR => "SETXATTR",
        opcode::GETXATTR => "GETXATTR",
        opcode::LISTXATTR => "LISTXATTR",
        opcode::REMOVEXATTR => "REMOVEXATTR",
        opcode::FLUSH => "FLUSH",
        opcode::INIT => "INIT",
        opcode::OPENDIR => "OPENDIR",
        opcode::READDIR => "READDIR",
        opcode::RELEASEDIR => "RELEASEDIR",
        opcode::FSYNCDIR => "FSYNCDIR",
        opcode::ACCESS => "ACCESS",
        opcode::CREATE => "CREATE",
        opcode::INTERRUPT => "INTERRUPT",
        opcode::DESTROY => "DESTROY",
        opcode::IOCTL => "IOCTL",
        opcode::BATCH_FORGET => "BATCH_FORGET",
        opcode::FALLOCATE => "FALLOCATE",
        opcode::READDIRPLUS => "READDIRPLUS",
        opcode::RENAME2 => "RENAME2",
        opcode::LSEEK => "LSEEK",
        opcode::COPY_FILE_RANGE => "COPY_FILE_RANGE",
        opcode::SYNCFS => "SYNCFS",
        opcode::TMPFILE => "TMPFILE",
        opcode::STATX => "STATX",
        opcode::COPY_FILE_RANGE_64 => "COPY_FILE_RANGE_64",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_right_to_an_eighth() {
        for ns in [300, 1_000, 4_095, 4_096, 77_777, 1_234_567, 9_876_543_210] {
            let near = time_of(class_of(ns));
            assert!(near.abs_diff(ns) * 8 <= ns, "{ns} counts as {near}");
        }
        assert_eq!(class_of(0), 0);
        assert_eq!(class_of(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn the_counts_of_all_threads_are_added_up() {
        let (one, two) = (Counts::new(), Counts::new());
        for us in 1..=90 {
            one.note(opcode::WRITE, Duration::from_micros(us));
        }
        for _ in 0..10 {
            two.note(opcode::WRITE, Duration::from_millis(5));
        }
        two.note(opcode::MKNOD, Duration::from_nanos(3));
        two.note(9999, Duration::from_micros(1));
        let report = report([&one, &two].into_iter());
        assert_eq!(
            report.iter().map(|kind| (kind.name, kind.count)).collect::<Vec<_>>(),
            [("WRITE", 100), ("MKNOD", 1), ("other", 1)]
        );
        let write = &report[0];
        assert_eq!((write.max_ns, write.total_ns), (5_000_000, 90 * 91 / 2 * 1000 + 50_000_000));
        assert!(write.p50_ns.abs_diff(50_000) * 8 <= 50_000, "{write:?}");
        assert!(write.p99_ns.abs_diff(5_000_000) * 8 <= 5_000_000, "{write:?}");
        assert_eq!(report[1].p50_ns, 3, "never above the largest");
    }
}
