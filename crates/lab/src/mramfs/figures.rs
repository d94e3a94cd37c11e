//! Tables and plot of the benchmarks, and the thesis's figures beside ours.
//!
//! Owns: medians and spread of the runs; the runs of the thesis's appendix C; the compressibility
//! of the contents written.
//! Rules: a time is wall-clock time, as the median of the runs with the least and the greatest. The
//! median of a phase is taken over that phase alone. The thesis's times are from another machine
//! and have their own table.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::measure::{EMPTY_FILES, Found, PACE, Place, Series as Runs, Step};
use super::{Plan, claims};
use crate::postmark::{Phase, RANDOM_ONE_OF, Workload};
use crate::report::{Cell, Plot, Series, Style, Table};

/// Maximum number of files whose compressibility is measured.
const SAMPLE: usize = 5000;

/// Median, least and greatest value.
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Spread {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median =
            if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] };
        Spread { median, least: values[0], most: values[values.len() - 1] }
    }
}

pub(super) fn elapsed_s(steps: &[Step]) -> f64 {
    steps.iter().map(|step| step.took.elapsed_s).sum()
}

pub(super) fn processor_s(steps: &[Step]) -> f64 {
    steps.iter().map(|step| step.took.processor_s).sum()
}

impl Runs {
    fn spread(&self, of: impl Fn(&[Step]) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(|steps| of(steps)))
    }

    fn phase(&self, phase: usize) -> Spread {
        self.spread(|steps| steps[phase].took.elapsed_s)
    }
}

impl Found {
    /// Returns the series of PostMark.
    fn postmark(&self) -> impl Iterator<Item = (&Runs, &Workload)> {
        self.series.iter().filter(|runs| !runs.is_long).filter_map(|runs| Some((runs, &self.workloads[runs.workload?])))
    }

    fn empty_files(&self) -> impl Iterator<Item = &Runs> {
        self.series.iter().filter(|runs| runs.workload.is_none())
    }

    /// Returns the runs of the same work on the plain engine, which took turns with these.
    pub(super) fn plain(&self, runs: &Runs) -> Option<&Runs> {
        let same = |of: &&Runs| (of.workload, of.is_long) == (runs.workload, runs.is_long);
        self.series.iter().find(same)
    }

    /// Returns the number of calls of a run on empty files at a place.
    fn empty_file_calls(&self, place: usize) -> u64 {
        let rounds = self.rounds[usize::from(matches!(self.places[place], Place::Directory { .. }))];
        2 * u64::from(EMPTY_FILES) * u64::from(rounds)
    }
}

/// Compresses the files created first separately, by deflate and by LZ4. Returns the share of their
/// bytes that remains (percent). A file that would grow counts with its own size.
fn left_percent(workload: &Workload) -> [f64; 2] {
    let (mut plain, mut left) = (0, [0, 0]);
    for (_, contents) in workload.created().take(SAMPLE) {
        plain += contents.len();
        let mut deflate = DeflateEncoder::new(vec![], Compression::default());
        let deflated = deflate.write_all(contents).and_then(|()| deflate.finish());
        let lengths = [deflated.map_or(contents.len(), |bytes| bytes.len()), lz4_flex::block::compress(contents).len()];
        for (sum, len) in left.iter_mut().zip(lengths) {
            *sum += len.min(contents.len());
        }
    }
    left.map(|left| left as f64 * 100.0 / plain.max(1) as f64)
}

pub fn notes(plan: &Plan, found: &Found) -> Vec<String> {
    let [deflate, lz4] = left_percent(&found.workloads[0]);
    let mut notes = vec![
        format!(
            "contents: words of a generated text, and random bytes in one file of {RANDOM_ONE_OF}; each file by itself, deflate \
             leaves {deflate:.0}% of the bytes and LZ4 {lz4:.0}%"
        ),
        "times are the clock's: median, least and greatest of the runs; the places take turns within each run".into(),
        "engine: a store of `battery` memory in this process, its calls on one thread, without mount and system calls; its memory is \
         touched before the clock starts; a thread of the lowest priority packs, as a mount's does, unless the variant is plain"
            .into(),
        format!(
            "packing beside the workload has {}% of a processor, more when memory fills ({})",
            plan.packing.load, plan.packing.method
        ),
        format!(
            "long: the same calls with a pause of {} ms after every {}, which does not count: about the pace of a mount",
            PACE.pause.as_millis(),
            PACE.calls
        ),
        "nothing calls fsync: a directory on a disk may still have everything to write when the clock stops".into(),
        "processor s: of the calling thread; at a directory this leaves out the daemon of a mount and the kernel's write-back"
            .into(),
    ];
    if plan.scale < 1.0 {
        notes.push(format!("{} of the thesis's files, transactions and rounds", plan.scale));
    }
    notes
}

pub fn tables(plan: &Plan, found: &Found) -> Vec<Table> {
    vec![
        postmark(found),
        counts(found),
        empty_files(found),
        space(found),
        packing(found),
        builds(found),
        claims::comparison(plan, found),
        appendix_c(),
        runs(found),
    ]
}

pub(super) fn seconds(value: f64) -> Cell {
    Cell::Number(value, 3)
}

fn postmark(found: &Found) -> Table {
    let mut table = Table::new(
        "postmark",
        "PostMark: time of the runs",
        &[
            "place",
            "directories",
            "total s",
            "least",
            "most",
            "create s",
            "transactions s",
            "delete s",
            "transactions/s",
            "processor s",
            "processor least",
            "processor most",
        ],
    );
    for (runs, workload) in found.postmark() {
        let (total, processor) = (runs.spread(elapsed_s), runs.spread(processor_s));
        table.push(vec![
            found.places[runs.place].name().into(),
            directories(workload).into(),
            seconds(total.median),
            seconds(total.least),
            seconds(total.most),
            seconds(runs.phase(0).median),
            seconds(runs.phase(1).median),
            seconds(runs.phase(2).median),
            Cell::Number(workload.transactions as f64 / runs.phase(1).median, 0),
            seconds(processor.median),
            seconds(processor.least),
            seconds(processor.most),
        ]);
    }
    table
}

/// Returns the number of directories that hold the files. PostMark's 0 means one.
pub(super) fn directories(workload: &Workload) -> u64 {
    u64::from(workload.config.directories.max(1))
}

fn name_of(workload: &Workload) -> String {
    match directories(workload) {
        1 => "one directory".into(),
        count => format!("{count} directories"),
    }
}

fn counts(found: &Found) -> Table {
    let mut table = Table::new(
        "counts",
        "PostMark: calls of a run, and the thesis's (one directory)",
        &["workload", "created", "read", "appended", "left out", "deleted", "MB read", "MB written"],
    );
    for workload in &found.workloads {
        let sum = |of: fn(&crate::postmark::Counts) -> u64| -> u64 {
            workload.phases.iter().map(|calls| of(&calls.counts)).sum()
        };
        table.push(vec![
            name_of(workload).into(),
            sum(|counts| counts.created).into(),
            sum(|counts| counts.read).into(),
            sum(|counts| counts.appended).into(),
            workload.full.into(),
            sum(|counts| counts.deleted).into(),
            Cell::Number(sum(|counts| counts.bytes_read) as f64 / MB, 2),
            Cell::Number(sum(|counts| counts.bytes_written) as f64 / MB, 2),
        ]);
    }
    let [created, read, appended, left_out, deleted] = [99_928u64, 49_907, 49_997, 96, 99_928].map(Cell::from);
    let (mb_read, mb_written) = (Cell::Number(112.94, 2), Cell::Number(235.99, 2));
    table.push(vec!["the thesis".into(), created, read, appended, left_out, deleted, mb_read, mb_written]);
    table
}

/// PostMark's megabyte.
const MB: f64 = 1_048_576.0;

fn empty_files(found: &Found) -> Table {
    let [engine, at] = found.rounds;
    let title = format!(
        "{EMPTY_FILES} empty files made and unlinked {engine} times, in directories {at} times: time of the runs"
    );
    let columns =
        ["place", "calls", "total s", "least", "most", "calls/s", "processor s", "processor least", "processor most"];
    let mut table = Table::new("create-unlink", title, &columns);
    for runs in found.empty_files() {
        let (total, processor) = (runs.spread(elapsed_s), runs.spread(processor_s));
        table.push(vec![
            found.places[runs.place].name().into(),
            found.empty_file_calls(runs.place).into(),
            seconds(total.median),
            seconds(total.least),
            seconds(total.most),
            Cell::Number(found.empty_file_calls(runs.place) as f64 / total.median, 0),
            seconds(processor.median),
            seconds(processor.least),
            seconds(processor.most),
        ]);
    }
    table
}

fn space(found: &Found) -> Table {
    let mut table = Table::new(
        "space",
        "PostMark on the engine: the region after each phase, and the log it wrote in it (bytes, first run)",
        &[
            "place",
            "directories",
            "phase",
            "files",
            "data",
            "region",
            "beside data, a file",
            "log",
            "written by the workload",
        ],
    );
    for (runs, workload) in found.postmark() {
        for ((phase, calls), step) in Phase::ALL.iter().zip(&workload.phases).zip(&runs.runs[0]) {
            let Some(space) = step.space else { continue };
            let beside = space.region_bytes as f64 - calls.live_bytes as f64;
            table.push(vec![
                found.places[runs.place].name().into(),
                directories(workload).into(),
                phase.name().into(),
                calls.live_files.into(),
                calls.live_bytes.into(),
                space.region_bytes.into(),
                if calls.live_files > 0 { Cell::Number(beside / calls.live_files as f64, 1) } else { Cell::Empty },
                space.log_bytes.into(),
                calls.counts.bytes_written.into(),
            ]);
        }
    }
    table
}

/// Least speed during packing as a share of the speed without it, and the least share of written
/// data that must be packed for the result to count.
pub(super) const SPEED_MIN: f64 = 0.9;
pub(super) const PACKED_MIN: f64 = 0.5;

/// Returns the share of inodes that are packed after the transactions: the last phase deletes
/// everything.
pub(super) fn inodes_packed(steps: &[Step]) -> f64 {
    steps[1].space.map_or(0.0, |space| space.inodes.0 as f64 / space.inodes.1.max(1) as f64)
}

fn packing(found: &Found) -> Table {
    let mut table = Table::new(
        "packing",
        "Packing on the engine: what was packed (last run), and the speed of that without packing (median, least and greatest of the runs)",
        &[
            "place",
            "work",
            "written",
            "packed",
            "unpacked",
            "packed share",
            "inodes packed",
            "log",
            "log, plain",
            "log of packing",
            "speed",
            "least",
            "most",
            "speed, processor",
            "verdict",
        ],
    );
    for runs in &found.series {
        let (Place::Engine(variant), Some(plain)) = (&found.places[runs.place], found.plain(runs)) else { continue };
        let (Some(last), Some(workload)) = (runs.runs.last(), runs.workload) else { continue };
        let Some(end) = last.last().and_then(|step| step.space) else { continue };
        let written: u64 = found.workloads[workload].phases.iter().map(|calls| calls.counts.bytes_written).sum();
        let log = |steps: &[Step]| steps.iter().filter_map(|step| step.space).map(|space| space.log_bytes).sum::<u64>();
        let ratio = |of: fn(&[Step]) -> f64| {
            Spread::of(plain.runs.iter().zip(&runs.runs).map(move |(one, other)| of(one) / of(other)))
        };
        let (speed, processor) = (ratio(elapsed_s), ratio(processor_s));
        let packed = end.packing.packed_bytes.saturating_sub(end.packing.unpacked_bytes) as f64 / written.max(1) as f64;
        let inodes = inodes_packed(last);
        let share = if variant.data { packed } else { inodes };
        let is_fast = speed.median >= SPEED_MIN;
        let verdict = match (variant.data || variant.inodes, share >= PACKED_MIN, is_fast) {
            (false, _, _) => "the yardstick",
            (true, false, _) => "proves nothing: less than half packed",
            (true, true, true) => "shown",
            (true, true, false) => "not shown",
        };
        table.push(vec![
            found.places[runs.place].name().into(),
            name(found, runs).into(),
            written.into(),
            end.packing.packed_bytes.into(),
            end.packing.unpacked_bytes.into(),
            Cell::Number(packed, 2),
            Cell::Number(inodes, 2),
            log(last).into(),
            plain.runs.last().map_or(Cell::Empty, |steps| log(steps).into()),
            (end.packing.packing_log_bytes + end.packing.unpacking_log_bytes).into(),
            Cell::Number(speed.median, 2),
            Cell::Number(speed.least, 2),
            Cell::Number(speed.most, 2),
            Cell::Number(processor.median, 2),
            verdict.into(),
        ]);
    }
    table
}

/// Times of the thesis's runs, in total and for the transactions (seconds).
const APPENDIX_C: [(&str, u64, f64, f64); 13] = [
    ("mramfs, inodes packed", 1, 50.423, 38.110),
    ("mramfs, inodes packed, second run", 1, 50.215, 37.839),
    ("mramfs, inodes not packed", 1, 54.913, 40.848),
    ("mramfs, inodes not packed, second run", 1, 56.837, 41.405),
    ("mramfs, inodes packed", 100, 47.128, 35.482),
    ("tmpfs", 1, 2.882, 1.962),
    ("ext2", 1, 159.565, 106.300),
    ("ext2", 100, 7.628, 4.990),
    ("jfs", 1, 15.953, 10.379),
    ("jfs", 100, 17.735, 11.323),
    ("reiserfs", 100, 41.499, 31.061),
    ("xfs", 100, 31.223, 19.366),
    ("jffs2", 100, 37.880, 22.651),
];

fn builds(found: &Found) -> Table {
    let title =
        format!("A build of {} C files, {:.1} MB: seconds", found.builds.files, found.builds.bytes as f64 / 1e6);
    let mut table = Table::new("build", title, &["place", "median", "least", "most"]);
    for (place, times) in found.places.iter().zip(&found.builds.times).filter(|(_, times)| !times.is_empty()) {
        let Spread { median, least, most } = Spread::of(times.iter().copied());
        table.push(vec![place.name().into(), seconds(median), seconds(least), seconds(most)]);
    }
    table
}

fn appendix_c() -> Table {
    let mut table = Table::new(
        "appendix-c",
        "The thesis's appendix C: PostMark on another machine (Athlon 64 of 2.0 GHz, Linux 2.6.7, 2004), disk file systems on a RAM disk",
        &["file system", "directories", "total s", "transactions s"],
    );
    for (system, directories, total, transactions) in APPENDIX_C {
        table.push(vec![system.into(), directories.into(), seconds(total), seconds(transactions)]);
    }
    table
}

/// Names the work of a series.
fn name(found: &Found, runs: &Runs) -> String {
    let long = if runs.is_long { ", long" } else { "" };
    runs.workload.map_or("empty files".into(), |at| format!("PostMark, {}{long}", name_of(&found.workloads[at])))
}

fn runs(found: &Found) -> Table {
    let columns = ["place", "workload", "run", "create s", "transactions s", "delete s", "total s", "processor s"];
    let mut table = Table::new("runs", "All runs", &columns);
    for of in &found.series {
        for (run, steps) in of.runs.iter().enumerate() {
            let phase = |at: usize| match of.workload {
                Some(_) => seconds(steps[at].took.elapsed_s),
                None => Cell::Empty,
            };
            table.push(vec![
                found.places[of.place].name().into(),
                name(found, of).into(),
                (run as u64 + 1).into(),
                phase(0),
                phase(1),
                phase(2),
                seconds(elapsed_s(steps)),
                seconds(processor_s(steps)),
            ]);
        }
    }
    table
}

/// Plots the total time at each place. The thesis's times stand beside them if the work is as much
/// as the thesis's.
pub fn plots(plan: &Plan, found: &Found) -> Vec<Plot> {
    let mut names: Vec<String> = found.places.iter().map(Place::name).collect();
    let mut series: Vec<Series> = vec![];
    for (runs, _) in found.postmark() {
        let Spread { median, least, most } = runs.spread(elapsed_s);
        let name = name(found, runs);
        if series.last().is_none_or(|last| last.name != name) {
            series.push(Series::spread(name, []));
        }
        if let Some(last) = series.last_mut() {
            last.points.push((runs.place as f64, median));
            last.intervals.push((least, most));
        }
    }
    let mut title = String::from("PostMark: time of all three phases\nmedian of the runs; bars: least and most");
    if plan.scale == 1.0 {
        title += "; thesis: Athlon 64 of 2.0 GHz, 2004";
        let first = names.len();
        let mut systems: Vec<&str> = vec![];
        let mut paper: Vec<Series> =
            found.workloads.iter().map(|of| Series::paper(&format!("PostMark, {}", name_of(of)), [])).collect();
        for (system, of, total_s, _) in APPENDIX_C {
            let system = system.trim_end_matches(", second run");
            let at = systems.iter().position(|other| *other == system).unwrap_or_else(|| {
                systems.push(system);
                systems.len() - 1
            });
            if let Some(at_workload) = found.workloads.iter().position(|workload| directories(workload) == of) {
                paper[at_workload].points.push(((first + at) as f64, total_s));
            }
        }
        names.extend(systems.iter().map(|system| format!("thesis: {system}")));
        series.extend(paper);
    }
    vec![Plot {
        name: "postmark".into(),
        title,
        x: "place of the files".into(),
        y: "total time (s)".into(),
        series,
        style: Style { is_log_y: true, names, ..Style::default() },
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let of = |values: &[f64]| Spread::of(values.iter().copied());
        let even = of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((even.median, even.least, even.most), (2.5, 1.0, 4.0));
        assert_eq!((of(&[5.0, 1.0, 2.0]).median, of(&[7.0]).median), (2.0, 7.0));
    }
}
