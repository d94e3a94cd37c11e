//! Conversion of a trace to a disk of a chosen size.
//!
//! Owns: the blocks that a trace touches ([`Footprint`]), mapping them to a dense disk without
//! other blocks, and replaying a trace several times at different places of a larger disk.
//! Neighbouring blocks within a touched extent stay neighbours. Gaps between extents are closed, so
//! the last block of one and the first of the next become neighbours, too.
//! Rules: memory grows with the number of requests, not with their lengths or addresses.

use std::collections::{HashMap, VecDeque};

use super::{Kind, Request};

/// Runs of blocks that a trace touches, in order and separated by gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    block_bytes: u64,
    /// First block, one past the last, and the place of the first on the dense disk.
    extents: Vec<(u64, u64, u64)>,
}

impl Footprint {
    pub fn of<'a>(requests: impl IntoIterator<Item = &'a Request>, block_bytes: u32) -> Footprint {
        let block_bytes = u64::from(block_bytes);
        let mut runs: Vec<(u64, u64)> = requests.into_iter().map(|request| blocks(request, block_bytes)).collect();
        runs.sort_unstable();
        let mut extents: Vec<(u64, u64, u64)> = vec![];
        for (first, end) in runs {
            match extents.last_mut() {
                Some(last) if first <= last.1 => last.1 = last.1.max(end),
                last => {
                    let dense = last.map_or(0, |last| last.2 + last.1 - last.0);
                    extents.push((first, end, dense));
                }
            }
        }
        Footprint { block_bytes, extents }
    }

    pub fn blocks(&self) -> u64 {
        self.extents.last().map_or(0, |last| last.2 + last.1 - last.0)
    }

    pub fn extents(&self) -> usize {
        self.extents.len()
    }

    /// Maps a request to the dense disk, widened to whole blocks; `None` if it is not within one
    /// touched extent.
    fn place(&self, request: &Request) -> Option<Request> {
        let (first, end) = blocks(request, self.block_bytes);
        let index = self.extents.partition_point(|extent| extent.0 <= first).checked_sub(1)?;
        let extent = self.extents[index];
        let dense = extent.2 + first - extent.0;
        let len = u32::try_from((end - first) * self.block_bytes).ok()?;
        (end <= extent.1).then_some(Request { at: dense * self.block_bytes, len, ..*request })
    }

    /// Maps requests to the dense disk, widened to whole blocks. Requests that are not within it
    /// are dropped.
    pub fn compact(&self, requests: &[Request]) -> Vec<Request> {
        requests.iter().filter_map(|request| self.place(request)).collect()
    }
}

/// Returns the blocks that a request touches: first, and one past the last.
fn blocks(request: &Request, block_bytes: u64) -> (u64, u64) {
    (request.at / block_bytes, (request.at + u64::from(request.len)).div_ceil(block_bytes))
}

/// Replays requests to a disk of `bytes` `copies` times, each on its own part of a disk `copies`
/// times as large. Copy k is k times `shift_ns` later. The result is sorted by time.
pub fn replicate(requests: &[Request], bytes: u64, copies: u32, shift_ns: u64) -> Vec<Request> {
    let copy = |k: u64| {
        requests.iter().map(move |request| Request {
            at: request.at + k * bytes,
            time_ns: request.time_ns.saturating_add(k.saturating_mul(shift_ns)),
            ..*request
        })
    };
    let mut all: Vec<Request> = (0..copies.into()).flat_map(copy).collect();
    all.sort_by_key(|request| request.time_ns);
    all
}

/// Properties of a trace, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Summary {
    pub requests: u64,
    pub reads: u64,
    pub writes: u64,
    pub blocks_read: u64,
    pub blocks_written: u64,
    /// Distinct blocks touched.
    pub footprint_blocks: u64,
    /// Distinct blocks written.
    pub written_footprint_blocks: u64,
}

impl Summary {
    pub fn of(requests: &[Request], block_bytes: u32) -> Summary {
        let mut summary = Summary { requests: requests.len() as u64, ..Summary::default() };
        for request in requests {
            let (first, end) = blocks(request, block_bytes.into());
            match request.kind {
                Kind::Read => {
                    summary.reads += 1;
                    summary.blocks_read += end - first;
                }
                Kind::Write => {
                    summary.writes += 1;
                    summary.blocks_written += end - first;
                }
            }
        }
        let writes = requests.iter().filter(|request| request.kind == Kind::Write);
        summary.footprint_blocks = Footprint::of(requests, block_bytes).blocks();
        summary.written_footprint_blocks = Footprint::of(writes, block_bytes).blocks();
        summary
    }
}

/// Returns the share of writes that begin where one of the last `streams` other streams of writes
/// ended. A policy that looks for consecutive addresses can use these.
pub fn continuing(requests: &[Request], streams: usize) -> f64 {
    let mut ends: VecDeque<u64> = VecDeque::new();
    let (mut writes, mut continued) = (0u64, 0u64);
    for request in requests.iter().filter(|request| request.kind == Kind::Write) {
        writes += 1;
        if let Some(index) = ends.iter().position(|end| *end == request.at) {
            continued += 1;
            ends.remove(index);
        }
        ends.push_back(request.at + u64::from(request.len));
        if ends.len() > streams {
            ends.pop_front();
        }
    }
    continued as f64 / writes.max(1) as f64
}

/// Returns the share of writes that begin at one of the `places` most written addresses.
pub fn at_busiest(requests: &[Request], places: usize) -> f64 {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for request in requests.iter().filter(|request| request.kind == Kind::Write) {
        *counts.entry(request.at).or_default() += 1;
    }
    let writes: u64 = counts.values().sum();
    let mut counts: Vec<u64> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts.iter().take(places).sum::<u64>() as f64 / writes.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(time_ns: u64, at: u64, len: u32) -> Request {
        Request { time_ns, kind: Kind::Write, at, len, device: 0 }
    }

    #[test]
    fn a_sparse_disk_becomes_dense_and_neighbours_stay_neighbours() {
        let requests = [
            write(0, 1 << 40, 8192),
            write(1, (1 << 40) + 8192, 1024),
            write(2, 5000, 100),
            write(3, (1 << 40) + 1024, 4096),
            write(4, u64::MAX / 2 - 1, 1),
        ];
        let footprint = Footprint::of(&requests, 1024);
        assert_eq!((footprint.extents(), footprint.blocks()), (3, 1 + 9 + 1));
        let places: Vec<(u64, u32)> =
            footprint.compact(&requests).iter().map(|request| (request.at / 1024, request.len / 1024)).collect();
        assert_eq!(places, [(1, 8), (9, 1), (0, 1), (2, 4), (10, 1)]);
        assert_eq!(footprint.compact(&[write(0, 4096, 2048)]), [], "outside");
    }

    #[test]
    fn a_dense_disk_is_covered_without_holes_or_overlaps() {
        let mut random = shoal_sim::Random::new(7);
        let requests: Vec<Request> =
            (0..500).map(|time| write(time, random.below(1 << 22), 1 + random.below(20_000) as u32)).collect();
        let footprint = Footprint::of(&requests, 1024);
        let dense = footprint.compact(&requests);
        assert_eq!(dense.len(), requests.len());
        assert_eq!(Footprint::of(&dense, 1024).blocks(), footprint.blocks());
        assert_eq!(Footprint::of(&dense, 1024).extents(), 1);
        assert!(dense.iter().all(|r| r.at + u64::from(r.len) <= footprint.blocks() * 1024));
    }

    #[test]
    fn copies_lie_side_by_side_and_are_interleaved_in_time() {
        let requests = [write(0, 0, 1024), write(100, 1024, 1024)];
        let all = replicate(&requests, 2048, 3, 60);
        let seen: Vec<(u64, u64)> = all.iter().map(|request| (request.time_ns, request.at)).collect();
        assert_eq!(seen, [(0, 0), (60, 2048), (100, 1024), (120, 4096), (160, 3072), (220, 5120)]);
    }

    #[test]
    fn a_summary_counts_blocks_once_for_the_footprint() {
        let mut requests = vec![write(0, 0, 2048), write(1, 1024, 2048)];
        requests.push(Request { kind: Kind::Read, ..write(2, 8192, 1024) });
        let expected = Summary {
            requests: 3,
            reads: 1,
            writes: 2,
            blocks_read: 1,
            blocks_written: 4,
            footprint_blocks: 4,
            written_footprint_blocks: 3,
        };
        assert_eq!(Summary::of(&requests, 1024), expected);
    }

    #[test]
    fn streams_and_busy_places_are_counted() {
        // Two interleaved streams: with one remembered end none continues, with two all but the
        // first of each.
        let two: Vec<Request> =
            (0..10).flat_map(|n| [write(n, n * 1024, 1024), write(n, (1 << 30) + n * 1024, 1024)]).collect();
        assert_eq!((continuing(&two, 1), continuing(&two, 2)), (0.0, 0.9));
        let mut hot = vec![write(0, 0, 1024); 6];
        hot.extend([write(0, 4096, 1024), write(0, 8192, 1024)]);
        assert_eq!((at_busiest(&hot, 1), at_busiest(&hot, 3), at_busiest(&[], 3)), (0.75, 1.0, 0.0));
    }
}
