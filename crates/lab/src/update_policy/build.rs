//! A recorded build under the policies: sections 4.3 to 4.5 of the report.
//!
//! Owns: the replay of `data/build.csv`, the writes of a build of some of this workspace's own
//! crates (`scripts/record-writes`), and tables 4 and 5 and figure 7 from it. Rules: the recording
//! says when blocks are modified and files deleted; the policies decide what is written when. Only
//! counts are replayed: neither disk nor processor is modelled, so there is no elapsed time. A line
//! of the recording may stand for several consecutive writes within a tenth of a second, which are
//! assumed to be equally long.

use std::collections::BTreeSet;
use std::collections::HashMap;

use shoal_writeback::{BlockId, Counts, DirtySet, FileId, Load, Policy, Rule, S_NS};

use super::layout::BLOCK_BYTES;
use super::points::{AIPU, PU};
use crate::experiment::LabError;
use crate::report::{Better, Cell, Comparison, Plot, Said, Series, Style, Table, Verdict};

const RECORDED: &str = include_str!("../../data/build.csv");
/// Maximum number of blocks of a file. Block numbers combine file and place.
const FILE_BLOCKS_MAX: u64 = 1 << 24;
const AIPU_30: Policy = Policy::ApproximateInterval { age_ns: 30 * S_NS, grain_ns: 30 * S_NS };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// A number of consecutive writes that fill a range.
    Written {
        offset: u64,
        len: u64,
        writes: u64,
    },
    Deleted,
}

#[derive(Clone, Copy, Debug)]
struct Recorded {
    at_ns: u64,
    file: FileId,
    event: Event,
}

fn parse(line: &str) -> Option<Recorded> {
    let fields: Vec<&str> = line.split(',').collect();
    let [seconds, file, offset, len, writes] = fields[..] else { return None };
    let event = match offset {
        "discarded" => Event::Deleted,
        _ => Event::Written { offset: offset.parse().ok()?, len: len.parse().ok()?, writes: writes.parse().ok()? },
    };
    Some(Recorded { at_ns: (seconds.parse::<f64>().ok()? * 1e9) as u64, file: FileId(file.parse().ok()?), event })
}

fn recording() -> Result<Vec<Recorded>, LabError> {
    let broken = |line: &str| LabError::Broken { what: "data/build.csv".into(), why: format!("line {line:?}") };
    RECORDED.lines().skip(1).map(|line| parse(line).ok_or_else(|| broken(line))).collect()
}

/// The result of a policy on the recording.
pub struct Replayed {
    name: &'static str,
    is_delayed: bool,
    /// The report's figures: writes of table 4; blocks scanned, blocks written, and blocks modified
    /// while dirty, of table 5.
    paper: [Option<u64>; 4],
    counts: Counts,
    /// Blocks written at once because they were filled, except blocks that were already dirty.
    at_once: u64,
    /// All blocks written at once.
    filled: u64,
    /// Sizes of the bursts (blocks), sorted.
    bursts: Vec<u64>,
}

impl Replayed {
    /// Returns the writes as the report's kernel counts them: one when a clean block is modified.
    fn charged(&self) -> u64 {
        self.counts.dirtied + self.at_once
    }

    /// Returns the blocks that reach the disk, because they are neither modified again first nor
    /// deleted.
    fn to_disk(&self) -> u64 {
        self.counts.chosen + self.filled
    }

    /// Counts the blocks in bursts of at most `size` blocks.
    fn in_bursts_up_to(&self, size: u64) -> u64 {
        self.bursts[..self.bursts.partition_point(|burst| *burst <= size)].iter().sum()
    }

    /// Returns the least size such that bursts up to it contain at least this share of the blocks.
    fn burst_of_share(&self, share: f64) -> u64 {
        let all: u64 = self.bursts.iter().sum();
        let enough = |size: &&u64| self.in_bursts_up_to(**size) as f64 >= share * all as f64;
        self.bursts.iter().find(enough).copied().unwrap_or(0)
    }
}

struct Replay {
    set: DirtySet,
    is_delayed: bool,
    dirty: HashMap<FileId, BTreeSet<BlockId>>,
    at_once: u64,
    filled: u64,
    bursts: Vec<u64>,
}

impl Replay {
    /// Lets the policy write until `end_ns`. A write takes no time.
    fn write_until(&mut self, end_ns: u64, mut now_ns: u64) {
        while let Some(at_ns) = self.set.next_ns(now_ns).filter(|at_ns| *at_ns <= end_ns) {
            now_ns = at_ns;
            let chosen = self.set.choose(now_ns, &Load::default());
            if !chosen.is_empty() {
                self.bursts.push(chosen.len() as u64);
            }
            for block in chosen {
                self.set.cleaned(block, now_ns);
            }
        }
    }

    fn modify(&mut self, block: BlockId, file: FileId, is_filled: bool, now_ns: u64) {
        if self.is_delayed || !is_filled {
            self.set.dirtied(block, file, now_ns);
            self.dirty.entry(file).or_default().insert(block);
            return;
        }
        // Write a filled block at once, with its waiting data.
        self.filled += 1;
        self.at_once += u64::from(self.set.since_ns(block).is_none());
        self.set.discarded(block, now_ns);
    }

    fn take(&mut self, recorded: &Recorded) {
        let (file, now_ns) = (recorded.file, recorded.at_ns);
        match recorded.event {
            Event::Deleted => {
                for block in self.dirty.remove(&file).into_iter().flatten() {
                    self.set.discarded(block, now_ns);
                }
            }
            Event::Written { offset, len, writes } => {
                for write in 0..writes {
                    let (begin, end) = (offset + len * write / writes, offset + len * (write + 1) / writes);
                    for index in begin / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
                        let is_filled = (index + 1) * BLOCK_BYTES <= end;
                        self.modify(BlockId(file.0 * FILE_BLOCKS_MAX + index), file, is_filled, now_ns);
                    }
                }
            }
        }
    }
}

/// Replays the build under the report's combinations, and under Sprite's rule.
pub fn replay() -> Result<Vec<Replayed>, LabError> {
    let recording = recording()?;
    let some = |figures: [u64; 4]| figures.map(Some);
    let rows = [
        ("PU", PU, false, some([40548, 9531, 9531, 391_000])),
        ("PU", PU, true, some([31523, 16749, 16749, 419_000])),
        ("AIPU-1", AIPU, false, some([37854, 290_214, 5375, 393_000])),
        ("AIPU-1", AIPU, true, some([25966, 508_448, 10023, 426_000])),
        ("AIPU-30", AIPU_30, false, [None, Some(14593), Some(5266), Some(405_000)]),
        ("AIPU-30", AIPU_30, true, [None, Some(25847), Some(9519), Some(426_000)]),
        ("Sprite", Policy::SPRITE, true, [None; 4]),
    ];
    let one = |(name, policy, is_delayed, paper)| {
        let set = DirtySet::new(Rule::of(policy));
        let mut replay = Replay { set, is_delayed, dirty: HashMap::new(), at_once: 0, filled: 0, bursts: vec![] };
        let mut last_ns = 0;
        for recorded in &recording {
            replay.write_until(recorded.at_ns, last_ns);
            replay.take(recorded);
            last_ns = recorded.at_ns;
        }
        replay.write_until(u64::MAX, last_ns);
        let Replay { set, at_once, filled, mut bursts, .. } = replay;
        bursts.sort_unstable();
        Replayed { name, is_delayed, paper, counts: set.counts(), at_once, filled, bursts }
    };
    Ok(rows.into_iter().map(one).collect())
}

fn find<'a>(replayed: &'a [Replayed], name: &str, is_delayed: bool) -> Option<&'a Replayed> {
    replayed.iter().find(|found| found.name == name && found.is_delayed == is_delayed)
}

pub fn tables(replayed: &[Replayed]) -> Vec<Table> {
    let paper = |figure: Option<u64>| figure.map_or(Cell::Empty, Cell::Count);
    let mut table_4 = Table::new(
        "table-4",
        "Table 4: writes charged to a build, recorded (counts; elapsed time is not simulated)",
        &["policy", "writes", "paper", "paper, of the first", "ours", "ours, of the first", "reach the disk"],
    );
    let mut table_5 = Table::new(
        "table-5",
        "Table 5: blocks of the same build, recorded (counts)",
        &[
            "policy",
            "writes",
            "scanned, paper",
            "ours",
            "examined here",
            "written, paper",
            "ours ",
            "modified while dirty, paper",
            "ours  ",
        ],
    );
    let (paper_first, first) = replayed.first().map_or((0, 0), |first| (first.paper[0].unwrap_or(0), first.charged()));
    let ratio = |count: u64, of: u64| Cell::Number(count as f64 / of as f64, 3);
    for found in replayed {
        let writes = || Cell::from(if found.is_delayed { "delayed" } else { "asynchronous" });
        let [charged, scanned, written, modified] = found.paper;
        let of_first = charged.map_or(Cell::Empty, |count| ratio(count, paper_first));
        let ours = found.charged();
        table_4.push(vec![
            found.name.into(),
            writes(),
            paper(charged),
            of_first,
            ours.into(),
            ratio(ours, first),
            found.to_disk().into(),
        ]);
        let counts = &found.counts;
        table_5.push(vec![
            found.name.into(),
            writes(),
            paper(scanned),
            counts.listed.into(),
            counts.examined.into(),
            paper(written),
            counts.chosen.into(),
            paper(modified),
            counts.modified.into(),
        ]);
    }
    vec![table_4, table_5]
}

/// Adds the report's claims about its build.
pub fn claims(replayed: &[Replayed], claims: &mut Comparison) {
    let all =
        [("PU", false), ("PU", true), ("AIPU-1", true)].map(|(name, is_delayed)| find(replayed, name, is_delayed));
    let [Some(asynchronous), Some(pu), Some(aipu)] = all else { return };
    let less = |ours: u64, than: u64| (1.0 - ours as f64 / than as f64) * 100.0;
    let mut percent = |figure: &str, paper: f64, ours: f64| {
        let verdict = Said::about(paper, 2.0, Better::More).judge(ours);
        claims.push("table 4", figure, Cell::Number(paper, 1), Cell::Number(ours, 1), "%", verdict);
    };
    percent("build: writes saved by delaying, PU", less(31523, 40548), less(pu.charged(), asynchronous.charged()));
    percent("build: writes saved by AIPU over PU, delayed", less(25966, 31523), less(aipu.charged(), pu.charged()));
    let saved = Cell::Number(less(aipu.to_disk(), asynchronous.to_disk()), 1);
    let figure = "build: blocks that AIPU, delayed, keeps from the disk";
    claims.push("table 4", figure, Cell::Empty, saved, "%", Verdict::Unjudged);
    let shapes = [
        ("95% of AIPU-1's blocks in bursts up to", 40, aipu.burst_of_share(0.95)),
        ("AIPU-1's largest burst", 104, aipu.bursts.last().copied().unwrap_or(0)),
        ("50% of PU's blocks in bursts above", 182, pu.burst_of_share(0.5)),
        ("PU's largest burst", 344, pu.bursts.last().copied().unwrap_or(0)),
    ];
    for (figure, paper, ours) in shapes {
        let verdict = Said::about(paper as f64, 2.0, Better::Neither).judge(ours as f64);
        let figure = format!("build: {figure}");
        claims.push("figure 7", figure, Cell::Count(paper), Cell::Count(ours), "blocks", verdict);
    }
}

pub fn plot(replayed: &[Replayed]) -> Plot {
    let series = replayed.iter().filter(|found| found.is_delayed).map(|found| {
        let mut sizes = found.bursts.clone();
        sizes.dedup();
        let all: u64 = found.bursts.iter().sum();
        let share = |size: u64| found.in_bursts_up_to(size) as f64 / all.max(1) as f64 * 100.0;
        Series::new(found.name, sizes.iter().map(|size| (*size as f64, share(*size))))
    });
    // Section 4.5. The two builds have different numbers of blocks, so shares are compared.
    let paper = [
        Series::paper("PU", [(62.0, 5.0), (182.0, 50.0), (344.0, 100.0)]),
        Series::paper("AIPU-1", [(40.0, 95.0), (104.0, 100.0)]),
    ];
    Plot {
        name: "figure-7".into(),
        title: "Figure 7: sizes of the bursts of delayed writes during a build\n\
                ours: a recorded build of crates of Shoal; the paper's: a build of a kernel"
            .into(),
        x: "size of a burst (blocks)".into(),
        y: "share of the blocks in bursts up to that size (%)".into(),
        series: series.chain(paper).collect(),
        style: Style { is_log_x: true, ..Style::default() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_range_of_writes_or_a_deletion() {
        let written = parse("1.5,7,100,200,4").unwrap();
        assert_eq!((written.at_ns, written.file), (1_500_000_000, FileId(7)));
        assert_eq!(written.event, Event::Written { offset: 100, len: 200, writes: 4 });
        assert_eq!(parse("2.0,7,discarded,,").unwrap().event, Event::Deleted);
        assert!(parse("2.0,7").is_none() && parse("x,7,1,2,3").is_none());
        assert!(recording().unwrap().is_sorted_by_key(|recorded| recorded.at_ns));
    }

    #[test]
    fn every_block_of_the_build_is_written_or_deleted_whatever_the_policy() {
        for found in replay().unwrap() {
            let counts = &found.counts;
            let bursts: u64 = found.bursts.iter().sum();
            assert_eq!(bursts, counts.chosen, "{}", found.name);
            assert!(counts.chosen <= counts.dirtied && counts.chosen > 0, "{}: {counts:?}", found.name);
            assert!(counts.examined <= counts.chosen + found.bursts.len() as u64, "{}: {counts:?}", found.name);
            assert_eq!(found.at_once > 0, !found.is_delayed);
            if found.name == "PU" {
                assert_eq!(counts.listed, counts.chosen, "PU scans each block once");
            }
        }
    }
}
