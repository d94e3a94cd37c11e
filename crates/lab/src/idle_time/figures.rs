//! The paper's figures 10 and 11, latency against utilisation, and the paper's claims, from the
//! runs.
//!
//! Owns: the tables and plots, and the conditions under which a claim counts as shown. The excerpt
//! of the paper gives only the shape of its curves and no numbers, so verdicts concern shapes, by
//! the measures stated with them. Times are simulated.

use super::lfs::First;
use super::points::{DiskKind, Kind, Point, Setup};
use super::{FULL_SPEED_BURST_KB, UTILISATION};
use crate::exhibits::Paper;
use crate::report::{Cell, Comparison, Plot, Series, Style, Table, Verdict};

/// The parameters of the runs.
pub struct Curve<'a> {
    pub disks: &'a [DiskKind],
    /// All in ascending order.
    pub bursts_kb: &'a [u32],
    pub idle_ms: &'a [u32],
    pub utilisation: &'a [u32],
}

/// A point over all its seeds (ms, simulated).
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    point: Point,
    mean_ms: f64,
    low_ms: f64,
    high_ms: f64,
}

impl Measured {
    /// Summarizes `latencies_ms`, which are of the same point with different seeds.
    pub fn new(point: &Point, latencies_ms: &[f64]) -> Measured {
        Measured {
            point: *point,
            mean_ms: latencies_ms.iter().sum::<f64>() / latencies_ms.len() as f64,
            low_ms: latencies_ms.iter().copied().fold(f64::INFINITY, f64::min),
            high_ms: latencies_ms.iter().copied().fold(0.0, f64::max),
        }
    }
}

/// A latency up to this multiple of another one counts as not above it: seeds alone cause this much
/// difference.
const SAME: f64 = 1.02;
/// A latency up to this multiple of the time to accept an update counts as memory speed.
const AT_MEMORY_SPEED: f64 = 1.05;

/// Systems that are also measured without knowing when a gap ends, and the bursts.
pub const UNFORESEEN: [Kind; 3] = [Kind::Lfs, Kind::UfsVld, Kind::Vlfs];
pub const UNFORESEEN_BURSTS_KB: [u32; 3] = [128, 512, 2048];

struct Runs<'a> {
    disk: DiskKind,
    all: &'a [Measured],
    /// Of the runs in which systems know when a gap ends, or of the others.
    foresees: bool,
}

impl Runs<'_> {
    fn find(&self, kind: Kind, utilisation: u32, burst_kb: u32, idle_ms: u32) -> Option<&Measured> {
        self.all.iter().find(|measured| {
            let point = measured.point;
            (point.kind, point.disk, point.utilisation, point.foresees) == (kind, self.disk, utilisation, self.foresees)
                && (point.burst * 4, point.idle_ns) == (u64::from(burst_kb), u64::from(idle_ms) * 1_000_000)
        })
    }

    fn idle(&self, kind: Kind, burst_kb: u32, idle_ms: u32) -> Option<f64> {
        self.find(kind, UTILISATION, burst_kb, idle_ms).map(|measured| measured.mean_ms)
    }

    fn full_speed(&self, kind: Kind, utilisation: u32) -> Option<f64> {
        self.find(kind, utilisation, FULL_SPEED_BURST_KB, 0).map(|measured| measured.mean_ms)
    }

    fn line(&self, curve: &Curve, kind: Kind, burst_kb: u32) -> Vec<(u32, f64)> {
        let at = |&idle_ms: &u32| Some((idle_ms, self.idle(kind, burst_kb, idle_ms)?));
        curve.idle_ms.iter().filter_map(at).collect()
    }

    /// Returns the text of a claim about this disk.
    fn claim(&self, text: &str) -> String {
        format!("{}: {text}", self.disk.name())
    }
}

fn seconds(idle_ms: Option<u32>) -> Option<f64> {
    idle_ms.map(|ms| f64::from(ms) / 1e3)
}

fn number(value: Option<f64>, decimals: usize) -> Cell {
    value.map_or(Cell::Empty, |value| Cell::Number(value, decimals))
}

/// Returns the shortest pause at which a line is at most `limit` (ms of pause).
fn first_below(line: &[(u32, f64)], limit: f64) -> Option<u32> {
    line.iter().find(|(_, latency)| *latency <= limit).map(|(idle_ms, _)| *idle_ms)
}

/// Returns the greatest drop between two neighbouring points, as a share of the whole drop of a
/// line.
fn greatest_step(line: &[(u32, f64)]) -> Option<f64> {
    let fall = line.first()?.1 - line.last()?.1;
    let steps = line.windows(2).map(|pair| pair[0].1 - pair[1].1);
    (fall > 0.05 * line.first()?.1).then(|| steps.fold(0.0, f64::max) / fall)
}

/// Returns the paper's figure of a system.
fn exhibit(kind: Kind) -> &'static str {
    if kind == Kind::Lfs { "figure 10" } else { "figure 11" }
}

pub fn tables(curve: &Curve, setup: &Setup, all: &[Measured]) -> Vec<Table> {
    let mut tables = vec![comparison(curve, setup, all)];
    for &disk in curve.disks {
        let runs = Runs { disk, all, foresees: true };
        for (kind, name, title) in [
            (Kind::Lfs, "figure-10", "Figure 10: LFS with NVRAM"),
            (Kind::UfsVld, "figure-11", "Figure 11: UFS on the virtual-log disk"),
            (Kind::Vlfs, "vlfs", "VLFS with NVRAM (speculation in the paper)"),
            (Kind::UfsDelayed, "delayed", "UFS, delayed writes in volatile memory"),
        ] {
            let columns: Vec<String> = curve.bursts_kb.iter().map(|burst| format!("{burst} KB")).collect();
            let columns: Vec<&str> = ["idle (s)"].into_iter().chain(columns.iter().map(String::as_str)).collect();
            let title = format!("{title}, {}, 80% full: latency per block (ms, simulated time) by burst", disk.name());
            let mut table = Table::new(&format!("{name}-{}", disk.name()), title, &columns);
            for &idle_ms in curve.idle_ms {
                let cells = curve.bursts_kb.iter().map(|&burst| number(runs.idle(kind, burst, idle_ms), 3));
                table.push([Cell::Number(f64::from(idle_ms) / 1e3, 3)].into_iter().chain(cells).collect());
            }
            tables.push(table);
        }
        tables.push(unforeseen(curve, &Runs { foresees: false, ..runs }));
        let columns: Vec<&str> = ["utilisation (%)"].into_iter().chain(Kind::ALL.map(Kind::name)).collect();
        let title = format!("No idle time, {}: latency per block (ms, simulated time)", disk.name());
        let mut table = Table::new(&format!("utilisation-{}", disk.name()), title, &columns);
        for &percent in curve.utilisation {
            let cells = Kind::ALL.map(|kind| number(runs.full_speed(kind, percent), 3));
            table.push([Cell::Count(percent.into())].into_iter().chain(cells).collect());
        }
        tables.push(table);
    }
    tables.push(spread(curve, all));
    tables
}

fn comparison(curve: &Curve, setup: &Setup, all: &[Measured]) -> Table {
    let mut claims = Comparison::new(Paper::VirtualLog, "The paper's claims (simulated time)");
    let memory_ms = setup.accept_ns as f64 / 1e6 * AT_MEMORY_SPEED;
    for &disk in curve.disks {
        let runs = Runs { disk, all, foresees: true };
        memory_speed_claim(curve, &runs, memory_ms, &mut claims);
        fall_claims(curve, &runs, &mut claims);
        gain_claims(curve, &runs, memory_ms, &mut claims);
        buffered_claims(curve, &runs, &mut claims);
        unforeseen_claims(curve, &runs, &mut claims);
        full_speed_claims(&runs, &mut claims);
    }
    claims.into_table()
}

/// Adds claims about where LFS reaches memory speed, for bursts of at most a segment.
fn memory_speed_claim(curve: &Curve, runs: &Runs, memory_ms: f64, claims: &mut Comparison) {
    let small: Vec<u32> = curve.bursts_kb.iter().copied().filter(|burst| *burst <= 512).collect();
    let reached = small.iter().map(|&burst| first_below(&runs.line(curve, Kind::Lfs, burst), memory_ms));
    let reached: Vec<Option<u32>> = reached.collect();
    let text: Vec<String> = reached.iter().map(|ms| seconds(*ms).map_or("never".into(), |s| format!("{s}"))).collect();
    let same = reached.iter().all(|ms| ms.is_some() && *ms == reached[0]);
    claims.push(
        "figure 10",
        runs.claim("bursts within a segment reach memory speed at the same pause (point D)"),
        "coincide".into(),
        Cell::Text(text.join(", ")),
        "s idle",
        Verdict::if_measured((small.len() > 1).then_some(same)),
    );
}

/// Adds claims about how the curves fall: in steps or smoothly.
fn fall_claims(curve: &Curve, runs: &Runs, claims: &mut Comparison) {
    let steps = |kind: Kind| -> Vec<f64> {
        curve.bursts_kb.iter().filter_map(|&burst| greatest_step(&runs.line(curve, kind, burst))).collect()
    };
    let mean = |values: &[f64]| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let (lfs_step, vld_step) = (mean(&steps(Kind::Lfs)), mean(&steps(Kind::UfsVld)));
    claims.push(
        "figure 10",
        runs.claim("LFS falls in steps: greatest step of a curve, share of its fall, mean"),
        "steps".into(),
        number(lfs_step.map(|share| share * 100.0), 0),
        "%",
        Verdict::if_measured(lfs_step.map(|share| share >= 0.5)),
    );
    claims.push(
        "figure 11",
        runs.claim("VLD falls smoothly: the same"),
        "a continuum".into(),
        number(vld_step.map(|share| share * 100.0), 0),
        "%",
        Verdict::if_measured(lfs_step.zip(vld_step).map(|(lfs, vld)| vld < lfs)),
    );
}

/// Adds claims about the shortest pause with any gain and the gain of the longest pause.
fn gain_claims(curve: &Curve, runs: &Runs, memory_ms: f64, claims: &mut Comparison) {
    let first_gain = |kind: Kind, burst: u32| {
        let line = runs.line(curve, kind, burst);
        let limit = line.first().map(|(_, at_0)| at_0 * 0.95);
        limit.and_then(|limit| first_below(&line, limit))
    };
    let burst = curve.bursts_kb.iter().copied().find(|burst| *burst >= 512).unwrap_or(curve.bursts_kb[0]);
    let (lfs, vld) = (first_gain(Kind::Lfs, burst), first_gain(Kind::UfsVld, burst));
    for (kind, gain) in [(Kind::Lfs, lfs), (Kind::UfsVld, vld)] {
        let verdict = if kind == Kind::Lfs {
            Verdict::Unjudged
        } else {
            Verdict::if_measured(lfs.zip(vld).map(|(lfs, vld)| vld < lfs))
        };
        claims.push(
            exhibit(kind),
            runs.claim(&format!("shortest pause that gains {} 5%, bursts of {burst} KB", kind.name())),
            if kind == Kind::Lfs { "long".into() } else { "much shorter".into() },
            number(seconds(gain), 2),
            "s idle",
            verdict,
        );
    }
    let longest = *curve.idle_ms.last().unwrap_or(&0);
    for (kind, paper) in [(Kind::Lfs, "memory speed"), (Kind::UfsVld, "limited by the disk")] {
        let limit = curve.bursts_kb.iter().filter_map(|&burst| runs.idle(kind, burst, longest)).reduce(f64::max);
        claims.push(
            exhibit(kind),
            runs.claim(&format!("{} with {} s of idle time, worst burst", kind.name(), f64::from(longest) / 1e3)),
            paper.into(),
            number(limit, 3),
            "ms",
            Verdict::if_measured(limit.map(|ms| (ms <= memory_ms) == (kind == Kind::Lfs))),
        );
    }
}

/// Adds claims about VLFS with NVRAM against the best of the others, point by point.
fn buffered_claims(curve: &Curve, runs: &Runs, claims: &mut Comparison) {
    let (mut points, mut above, mut worst) = (0, 0, 0.0f64);
    for &burst in curve.bursts_kb {
        for &idle_ms in curve.idle_ms {
            let others =
                [Kind::Ufs, Kind::Lfs, Kind::UfsVld].iter().filter_map(|&kind| runs.idle(kind, burst, idle_ms));
            if let (Some(ours), Some(best)) = (runs.idle(Kind::Vlfs, burst, idle_ms), others.reduce(f64::min)) {
                points += 1;
                above += u32::from(ours > best * SAME);
                worst = worst.max(ours / best);
            }
        }
    }
    claims.push(
        "",
        runs.claim(&format!("VLFS+NVRAM above the best of the others, points of {points}")),
        "speculation".into(),
        Cell::Count(above.into()),
        "points",
        Verdict::if_measured((points > 0).then_some(above == 0)),
    );
    let what = runs.claim("- its worst ratio to the best of the others");
    claims.push("", what, Cell::Empty, number(Some(worst), 3), "", Verdict::Unjudged);
}

/// Adds what it costs not to know when a gap ends.
fn unforeseen_claims(curve: &Curve, runs: &Runs, claims: &mut Comparison) {
    let blind = Runs { foresees: false, ..*runs };
    for kind in UNFORESEEN {
        let points = curve.bursts_kb.iter().flat_map(|&burst| curve.idle_ms.iter().map(move |&ms| (burst, ms)));
        let ratios = points
            .filter_map(|(burst, ms)| Some((blind.idle(kind, burst, ms)? / runs.idle(kind, burst, ms)?, burst, ms)));
        let Some((worst, burst, ms)) = ratios.max_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        let at = format!("bursts of {burst} KB, {} s idle", f64::from(ms) / 1e3);
        let what = runs.claim(&format!("{} without foresight, most of its latency with it ({at})", kind.name()));
        claims.push("", what, Cell::Empty, number(Some(worst), 2), "times", Verdict::Unjudged);
    }
}

/// Tabulates the latencies of systems that do not know when a gap ends.
fn unforeseen(curve: &Curve, runs: &Runs) -> Table {
    let bursts = || curve.bursts_kb.iter().copied().filter(|burst| UNFORESEEN_BURSTS_KB.contains(burst));
    let names = bursts().flat_map(|burst| UNFORESEEN.map(|kind| format!("{}, {burst} KB", kind.name())));
    let columns: Vec<String> = std::iter::once("idle (s)".into()).chain(names).collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let title = format!(
        "Without knowing when a gap ends, {}, 80% full: latency per block (ms, simulated time)",
        runs.disk.name()
    );
    let mut table = Table::new(&format!("unforeseen-{}", runs.disk.name()), title, &columns);
    for &idle_ms in curve.idle_ms {
        let cells = bursts().flat_map(|burst| UNFORESEEN.map(|kind| number(runs.idle(kind, burst, idle_ms), 3)));
        table.push(std::iter::once(Cell::Number(f64::from(idle_ms) / 1e3, 3)).chain(cells).collect());
    }
    table
}

/// Adds update in place against eager writing, without idle time: the excerpt has no figure of it.
fn full_speed_claims(runs: &Runs, claims: &mut Comparison) {
    for kind in [Kind::UfsVld, Kind::Vlfs] {
        let ratio = runs.full_speed(Kind::Ufs, UTILISATION).zip(runs.full_speed(kind, UTILISATION));
        let ratio = ratio.map(|(in_place, eager)| in_place / eager);
        let what = runs.claim(&format!("update in place over {}, 80% full, no idle time", kind.name()));
        claims.push("", what, Cell::Empty, number(ratio, 2), "times", Verdict::Unjudged);
    }
}

/// Tabulates the spread over seeds.
fn spread(curve: &Curve, all: &[Measured]) -> Table {
    let title = "Spread over seeds: (highest - lowest) / mean of a point (%), simulated time";
    let mut table = Table::new("spread", title, &["disk", "system", "points", "median", "worst", "worst point"]);
    for &disk in curve.disks {
        for kind in Kind::ALL {
            let of = all.iter().filter(|measured| (measured.point.disk, measured.point.kind) == (disk, kind));
            let mut spreads: Vec<(f64, &Measured)> = of
                .map(|measured| ((measured.high_ms - measured.low_ms) / measured.mean_ms * 100.0, measured))
                .collect();
            spreads.sort_by(|a, b| a.0.total_cmp(&b.0));
            let Some((worst, measured)) = spreads.last() else { continue };
            table.push(vec![
                disk.name().into(),
                kind.name().into(),
                (spreads.len() as u64).into(),
                Cell::Number(spreads[spreads.len() / 2].0, 1),
                Cell::Number(*worst, 1),
                measured.point.to_string().into(),
            ]);
        }
    }
    table
}

const LATENCY: &str = "latency per 4 KB block (ms, simulated time)";

impl Measured {
    fn spread(&self) -> [f64; 3] {
        [self.low_ms, self.mean_ms, self.high_ms]
    }
}

/// Plots latencies against the pause. Its axis is logarithmic, since a fast disk needs but a small
/// part of the pause that a slow one needs.
fn over_pauses(name: String, title: String, series: impl Iterator<Item = Series>) -> Plot {
    Plot {
        name,
        title: format!("{title}\nmean of all seeds; bars: lowest and highest seed"),
        x: "idle time between two bursts (s, simulated time)".into(),
        y: LATENCY.into(),
        series: series.filter(|line| !line.points.is_empty()).collect(),
        style: Style { is_log_x: true, has_zero_x: true, ..Style::default() },
    }
}

pub fn plots(curve: &Curve, all: &[Measured]) -> Vec<Plot> {
    let mut plots = vec![];
    for &disk in curve.disks {
        let runs = Runs { disk, all, foresees: true };
        let line = |name: String, kind: Kind, burst: u32| {
            let at = |&ms: &u32| Some((f64::from(ms) / 1e3, runs.find(kind, UTILISATION, burst, ms)?.spread()));
            Series::spread(name, curve.idle_ms.iter().filter_map(at))
        };
        for (kind, name, title) in [
            (Kind::Lfs, "figure-10", "Figure 10: LFS with NVRAM"),
            (Kind::UfsVld, "figure-11", "Figure 11: UFS on the virtual-log disk"),
            (Kind::Vlfs, "vlfs", "VLFS with NVRAM"),
        ] {
            let bursts = curve.bursts_kb.iter().map(|&burst| line(format!("bursts of {burst} KB"), kind, burst));
            let title = format!("{title}, disk {}, {UTILISATION}% full", disk.name());
            plots.push(over_pauses(format!("{name}-{}", disk.name()), title, bursts));
        }
        for &burst in curve.bursts_kb {
            let kinds = [Kind::Ufs, Kind::UfsVld, Kind::Lfs, Kind::Vlfs].into_iter();
            let kinds = kinds.map(|kind| line(kind.name().into(), kind, burst));
            let title = format!("Bursts of {burst} KB, disk {}, {UTILISATION}% full", disk.name());
            plots.push(over_pauses(format!("burst-{burst}-{}", disk.name()), title, kinds));
        }
        let series = Kind::ALL.map(|kind| {
            let at = |&percent: &u32| {
                let measured = runs.find(kind, percent, FULL_SPEED_BURST_KB, 0)?;
                Some((f64::from(percent), measured.spread()))
            };
            Series::spread(kind.name(), curve.utilisation.iter().filter_map(at))
        });
        plots.push(Plot {
            name: format!("utilisation-{}", disk.name()),
            title: format!("No idle time, disk {}\nmean of all seeds; bars: lowest and highest seed", disk.name()),
            x: "utilisation (% of the disk's blocks)".into(),
            y: LATENCY.into(),
            series: series.into_iter().filter(|line| !line.points.is_empty()).collect(),
            style: Style::default(),
        });
    }
    plots.into_iter().filter(|plot| !plot.series.is_empty()).collect()
}

pub fn notes(setup: &Setup, seeds: usize) -> Vec<String> {
    vec![
        "all times are simulated; disks are slices of 36 cylinders of an HP97560 and 11 of an ST19101, as in the paper"
            .into(),
        format!(
            "accepting an update takes the host {} us in every system; the paper's hosts take longer, and are not modelled",
            setup.accept_ns / 1000
        ),
        format!(
            "write buffers hold {:.1} MB; a block that is overwritten in the buffer is not written for the update before",
            setup.buffer_bytes as f64 / f64::from(1 << 20)
        ),
        format!(
            "latency: from when a burst was due to its last update accepted, over its updates; means of {seeds} seeds; {} updates \
             before and {} while measuring, at least",
            setup.warm_up, setup.measured
        ),
        match setup.first {
            First::Write => "in a gap LFS writes segments from its buffer first, and cleans when none is empty".into(),
            First::Clean => "in a gap LFS cleans first, and writes when there is nothing more to clean".into(),
        },
        format!(
            "UFS, delayed is not safe and is compared with nothing; no idle time: bursts of {FULL_SPEED_BURST_KB} KB"
        ),
        "a latency within 2% of the best counts as not above it".into(),
    ]
}
