//! `shoal lab run threshold`: which files should be kept in memory? Conquest's open question, in simulation.
//!
//! | module | owns |
//! |---|---|
//! | `record` | a recorded build: which files it reads, and the files beside them |
//! | `model` | memory that a store and a cache share; reads that miss both |
//!
//! Owns: the experiment's options, the thresholds and memories that are compared, and the tables.
//! Rules: a file up to the threshold is in memory whether it is read or not; all others share what is
//! left with a cache of blocks. Times follow from counted requests and bytes. Left out: writes, which
//! reach the bulk device late under any threshold, and metadata, which is in memory under any.

mod model;
mod record;

use std::path::PathBuf;

use clap::Args;

use crate::experiment::{Common, LabError, Run};
use crate::report::{Cell, Plot, Report, Series, Style, Table};
use model::{Missed, adapts, fixed, knows};
use record::Recorded;

/// Thresholds that are compared (bytes); 0: all data is on the bulk device.
const THRESHOLDS: [u64; 8] = [0, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Conquest's.
const CONQUEST: u64 = 1 << 20;
/// Memory, as a share of all files' bytes (percent).
const MEMORIES: [u64; 7] = [5, 10, 20, 30, 40, 60, 80];
/// A request, and a second's bytes: a disk that turns, and flash.
const DEVICES: [(&str, f64, f64); 2] = [("disk", 8.5e-3, 120e6), ("flash", 0.1e-3, 2e9)];

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run threshold --out results\n  \
    shoal lab run threshold --reads my-build.csv --kept 35\n\n\
    scripts/record-reads records another workload.")]
pub struct Options {
    /// What a workload reads, recorded by `scripts/record-reads` [default: a recorded build of a part of Shoal]
    #[arg(long, value_name = "FILE")]
    pub reads: Option<PathBuf>,
    /// Memory for each byte of a file in the store (percent): less than 100 where files are kept compressed
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub kept: u64,
}

/// What was missed with one size of memory.
struct Point {
    percent: u64,
    /// By threshold; `None`: the files up to the threshold do not fit.
    fixed: Vec<Option<Missed>>,
    adapts: Missed,
    knows: Missed,
}

impl Options {
    fn points(&self, recorded: &Recorded) -> Vec<Point> {
        let bytes = recorded.bytes();
        let point = |&percent: &u64| {
            let memory = bytes * percent / 100;
            Point {
                percent,
                fixed: THRESHOLDS.iter().map(|&threshold| fixed(recorded, memory, self.kept, threshold)).collect(),
                adapts: adapts(recorded, memory, self.kept),
                knows: knows(recorded, memory, self.kept),
            }
        };
        MEMORIES.iter().map(point).collect()
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0 => "none".into(),
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ => format!("{} KiB", bytes >> 10),
    }
}

/// Tabulates how many files there are up to each threshold, and what is read of them.
fn shares(recorded: &Recorded) -> Table {
    let columns = ["threshold", "files (%)", "bytes (%)", "openings (%)", "bytes read (%)", "openings for each MiB"];
    let mut table =
        Table::new("shares", "Files up to each size: their share of everything, and of what is read", &columns);
    let percent = |part: u64, all: u64| Cell::Number(part as f64 / all.max(1) as f64 * 100.0, 1);
    let all = recorded.up_to(u64::MAX);
    let mut last = recorded.up_to(0);
    for &threshold in &THRESHOLDS[1..] {
        let some = recorded.up_to(threshold);
        let density = (some.openings - last.openings) as f64 / ((some.bytes - last.bytes).max(1) as f64 / 1048576.0);
        table.push(vec![
            size(threshold).into(),
            percent(some.files, all.files),
            percent(some.bytes, all.bytes),
            percent(some.openings, all.openings),
            percent(some.read, all.read),
            Cell::Number(density, 1),
        ]);
        last = some;
    }
    table
}

/// Tabulates one kind of cost for each threshold and memory.
fn costs(name: &str, title: String, points: &[Point], decimals: usize, of: impl Fn(&Missed) -> f64) -> Table {
    let thresholds: Vec<String> = THRESHOLDS.iter().map(|&threshold| size(threshold)).collect();
    let mut columns = vec!["memory (%)"];
    columns.extend(thresholds.iter().map(String::as_str));
    columns.extend(["sets itself", "knows all"]);
    let mut table = Table::new(name, title, &columns);
    for point in points {
        let mut row = vec![point.percent.into()];
        let fixed =
            point.fixed.iter().map(|missed| missed.as_ref().map_or(Cell::Empty, |it| Cell::Number(of(it), decimals)));
        row.extend(fixed);
        row.extend([Cell::Number(of(&point.adapts), decimals), Cell::Number(of(&point.knows), decimals)]);
        table.push(row);
    }
    table
}

fn seconds(missed: &Missed, (_, request_s, bytes_s): (&str, f64, f64)) -> f64 {
    missed.requests as f64 * request_s + missed.bytes as f64 / bytes_s
}

/// Tabulates the threshold that sets itself: where it ends, and what it moved.
fn adapted(points: &[Point]) -> Table {
    let columns = ["memory (%)", "threshold at the end", "changes", "moved (MB)"];
    let mut table = Table::new("adapted", "The threshold that sets itself", &columns);
    for Point { percent, adapts, .. } in points {
        let moved = Cell::Number(adapts.moved as f64 / 1e6, 1);
        table.push(vec![(*percent).into(), size(adapts.threshold).into(), adapts.changes.into(), moved]);
    }
    table
}

fn plot(points: &[Point]) -> Plot {
    let of = |at: usize| {
        let shown =
            points.iter().filter_map(move |point| Some((point.percent as f64, point.fixed[at]?.requests as f64)));
        shown.collect::<Vec<_>>()
    };
    let mut series: Vec<Series> =
        THRESHOLDS.iter().enumerate().map(|(at, &threshold)| Series::new(size(threshold), of(at))).collect();
    let of_all = |of: fn(&Point) -> u64| points.iter().map(move |point| (point.percent as f64, of(point) as f64));
    series.push(Series::new("sets itself", of_all(|point| point.adapts.requests)));
    series.push(Series::new("knows all", of_all(|point| point.knows.requests)));
    Plot {
        name: "requests".into(),
        title:
            "Requests to the bulk device by threshold\na recorded build, simulated; memory shared by store and cache"
                .into(),
        x: "memory (% of all files)".into(),
        y: "requests".into(),
        series,
        style: Style { is_log_y: true, ..Style::default() },
    }
}

impl Run for Options {
    const PAPER: &'static str = "Wang, Reiher, Popek, Kuenning: Conquest: Better Performance Through a Disk/Persistent-RAM Hybrid File System (USENIX 2002), section 3.2: 1 MB \"was chosen somewhat arbitrarily, and future research will examine its appropriateness\"";

    fn run(&self, _: &Common) -> Result<Report, LabError> {
        let recorded = Recorded::of(self.reads.as_deref())?;
        let points = self.points(&recorded);
        let all = recorded.up_to(u64::MAX);
        let mut tables = vec![
            shares(&recorded),
            costs("requests", "Requests that reach the bulk device (simulated)".into(), &points, 0, |it| {
                it.requests as f64
            }),
        ];
        for device in DEVICES {
            let (name, request_s, bytes_s) = device;
            let title = format!(
                "Time of these requests (s, simulated): {name}, {:.1} ms a request and {:.0} MB/s",
                request_s * 1e3,
                bytes_s / 1e6
            );
            tables.push(costs(name, title, &points, 2, |missed| seconds(missed, device)));
        }
        tables.push(adapted(&points));
        let from = self.reads.as_ref().map_or(String::new(), |path| format!(" --reads {}", path.display()));
        Ok(Report {
            experiment: "threshold".into(),
            command: format!("shoal lab run threshold{from} --kept {}", self.kept),
            seed: None,
            skipped: vec![],
            notes: vec![
                format!(
                    "{} files of {:.0} MB; {} openings that read {:.0} MB",
                    all.files,
                    all.bytes as f64 / 1e6,
                    all.openings,
                    all.read as f64 / 1e6
                ),
                format!(
                    "memory is shared: files up to the threshold, at {}% of their bytes, and a cache of blocks of 64 KiB for the others, the least recently used first; an empty cell: those files do not fit",
                    self.kept
                ),
                format!(
                    "Conquest's threshold is {}; \"knows all\" keeps the files with most openings for each byte, chosen with the whole recording at hand",
                    size(CONQUEST)
                ),
            ],
            tables,
            plots: vec![plot(&points)],
        })
    }
}
