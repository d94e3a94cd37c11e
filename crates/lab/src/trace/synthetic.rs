//! A workload from a seed: streams of consecutive writes, rewrites of hot places, reads.
//!
//! Owns: a rough picture of a week of a workstation's disk. Several files are written from front to
//! back at the same time in requests of 1 to 8 KB, most of them repeatedly; single metadata blocks
//! are rewritten here and there; there are reads. The same seed gives the same requests on every
//! machine. It does not model any particular trace: results from it are labelled as synthetic.

use shoal_sim::Random;

use super::{Kind, Request};

/// Parameters of the workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub seed: u64,
    pub requests: usize,
    /// Size of the disk (bytes, a multiple of 64 KiB).
    pub bytes: u64,
    /// Files that are written at the same time.
    pub streams: usize,
}

impl Default for Workload {
    fn default() -> Workload {
        Workload { seed: 1, requests: 40_000, bytes: 22 << 20, streams: 4 }
    }
}

/// Unit of a request (bytes).
const STEP_BYTES: u64 = 1024;
/// Alignment of the beginnings of files (bytes).
const FILE_ALIGN_BYTES: u64 = 64 << 10;
/// How often a stream starts a file in the first eighth of the disk (percent).
const HOT_PERCENT: u64 = 80;
const READ_PERCENT: u64 = 20;
/// Rewrites of a single block, as a share of all writes (percent).
const METADATA_PERCENT: u64 = 15;

impl Workload {
    pub fn requests(&self) -> Vec<Request> {
        let mut random = Random::new(self.seed);
        let places = (self.bytes / FILE_ALIGN_BYTES).max(1);
        // Next byte and end of the file that each stream is writing.
        let mut files = vec![(0, 0); self.streams.max(1)];
        let mut time_ns = 0;
        let mut requests = Vec::with_capacity(self.requests);
        while requests.len() < self.requests {
            time_ns += random.below(200_000_000);
            let mut request = Request { time_ns, kind: Kind::Write, at: 0, len: STEP_BYTES as u32, device: 0 };
            if random.below(100) < READ_PERCENT {
                request.kind = Kind::Read;
                request.len *= 1 + random.below(8) as u32;
                request.at = random.below((self.bytes - u64::from(request.len)) / STEP_BYTES + 1) * STEP_BYTES;
            } else if random.below(100) < METADATA_PERCENT {
                request.at = random.below(self.bytes / STEP_BYTES / 16) * 16 * STEP_BYTES;
            } else {
                let (next, end) = &mut files[random.below(self.streams.max(1) as u64) as usize];
                if next == end {
                    let hot = random.below(100) < HOT_PERCENT;
                    *next = random.below(if hot { (places / 8).max(1) } else { places }) * FILE_ALIGN_BYTES;
                    *end = (*next + (1 + random.below(256)) * STEP_BYTES).min(self.bytes);
                }
                let len = if random.below(4) > 0 { 8 } else { 1 + random.below(8) } * STEP_BYTES;
                let len = len.min(*end - *next);
                (request.at, request.len) = (*next, len as u32);
                *next += len;
            }
            requests.push(request);
        }
        requests
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::Summary;
    use super::*;

    #[test]
    fn one_seed_makes_one_workload_within_the_disk() {
        let workload = Workload { requests: 5000, bytes: 4 << 20, ..Workload::default() };
        let requests = workload.requests();
        assert_eq!(requests, workload.requests());
        assert_ne!(requests, Workload { seed: 2, ..workload }.requests());
        assert!(requests.iter().all(|r| r.len > 0 && r.at + u64::from(r.len) <= 4 << 20));
        assert!(requests.is_sorted_by_key(|request| request.time_ns));
        let summary = Summary::of(&requests, 1024);
        assert_eq!(summary.requests, 5000);
        assert!(summary.writes > 3 * summary.reads);
        assert!(summary.blocks_written > 4 * summary.written_footprint_blocks, "blocks are overwritten");
    }
}
