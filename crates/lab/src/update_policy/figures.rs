//! The report's figures and tables, and the questions it left open, from the runs.
//!
//! Owns: the tables and plots. The report shows its figures 1 to 4 as points without numbers, so
//! claims are compared with its text (`claims`). Times are simulated.

use std::collections::HashMap;

use super::Plan;
use super::claims::{aipu_worst_ms, comparison};
use super::layout::{BLOCK_BYTES, DiskModel};
use super::points::{BURST_EVERY_S, Config, Crossing, ETHERNET, Figures, Found, MEMORY_BLOCKS, MeasuredFar};
use super::{build, open};
use crate::report::{Cell, Kind, Plot, Series, Style, Table};

/// Buckets of the histograms per factor of ten.
const BUCKETS: i32 = 10;

/// The report's table 1: year, buffers, access time (ms), time in seconds.
const TABLE_1: [(u64, u64, f64, f64); 3] = [(1983, 205, 35.0, 7.2), (1993, 1638, 15.0, 26.0), (2003, 6554, 6.0, 39.0)];
/// The report's table 2: year, cache (MB), bandwidth (MB/s), time in seconds.
const TABLE_2: [(u64, f64, f64, f64); 3] =
    [(1983, 0.103, 1.0, 0.1), (1993, 6.554, 5.5, 1.2), (2003, 410.0, 30.0, 13.6)];

pub fn number(value: f64, decimals: usize) -> Cell {
    Cell::Number(value, decimals)
}

fn scatter(found: &Found, disk: DiskModel) -> Table {
    let (figure, name) = if disk == DiskModel::Rz58 { (1, "fast") } else { (2, "slow") };
    let mut table = Table::new(
        &format!("figure-{figure}"),
        format!("Figure {figure}: local random reads, {name} system ({}), each trial (simulated time)", disk.name()),
        &["configuration", "trial", "mean ms", "deviation ms", "worst ms", "reads/s", "writes/s"],
    );
    for measured in found.measured.iter().filter(|measured| measured.disk == disk) {
        for (trial, figures) in measured.trials.iter().enumerate() {
            table.push(vec![
                measured.config.name().into(),
                (trial as u64 + 1).into(),
                number(figures.mean_ms, 2),
                number(figures.deviation_ms, 2),
                number(figures.worst_ms, 0),
                number(figures.reads_per_s, 2),
                number(figures.writes_per_s, 2),
            ]);
        }
    }
    table
}

/// Returns number and title of a figure about the remote disk.
fn far_title(in_order: bool) -> (u32, String) {
    let (figure, reads) = if in_order { (6, "sequential") } else { (5, "random") };
    (figure, format!("Figure {figure}: remote {reads} reads, a slow machine with a fast server (RZ58)"))
}

fn far_of(found: &Found, in_order: bool) -> impl Iterator<Item = &MeasuredFar> {
    found.far.iter().filter(move |measured| measured.far.in_order == in_order)
}

fn far(found: &Found, in_order: bool) -> Table {
    let (figure, title) = far_title(in_order);
    let columns = ["configuration", "trial", "mean ms", "deviation ms", "worst ms", "reads/s"];
    let mut table = Table::new(&format!("figure-{figure}"), format!("{title}, each trial (simulated time)"), &columns);
    for measured in far_of(found, in_order) {
        let trials = measured.trials.iter().zip(1..).map(|(figures, trial): (_, u64)| (Cell::from(trial), figures));
        for (trial, figures) in trials.chain([("all".into(), &measured.all)]) {
            table.push(vec![
                measured.far.name().into(),
                trial,
                number(figures.mean_ms, 2),
                number(figures.deviation_ms, 2),
                number(figures.worst_ms, 0),
                number(figures.reads_per_s, 2),
            ]);
        }
    }
    table
}

/// Returns the bucket number of a response.
fn bucket(us: u32) -> i32 {
    ((f64::from(us.max(1)) / 1000.0).log10() * f64::from(BUCKETS)).floor() as i32
}

/// Returns the least response of a bucket (ms).
pub fn least_ms(bucket: i32) -> f64 {
    10f64.powf(f64::from(bucket) / f64::from(BUCKETS))
}

/// Counts the reads in each bucket, from the first nonempty one to the last.
pub fn histogram(responses_us: &[u32]) -> Vec<(i32, u64)> {
    let mut buckets: Vec<(i32, u64)> = vec![];
    for us in responses_us {
        match buckets.last_mut() {
            Some((last, count)) if *last == bucket(*us) => *count += 1,
            _ => buckets.push((bucket(*us), 1)),
        }
    }
    buckets
}

fn histograms(found: &Found, disk: DiskModel) -> Table {
    let (figure, name) = if disk == DiskModel::Rz58 { (3, "fast") } else { (4, "slow") };
    let names = Config::ALL.map(Config::name);
    let columns: Vec<&str> = ["from ms"].into_iter().chain(names).collect();
    let title = format!(
        "Figure {figure}: local random reads, {name} system ({}), reads by response (simulated time)",
        disk.name()
    );
    let mut table = Table::new(&format!("figure-{figure}"), title, &columns);
    let histograms = Config::ALL.map(|config| found.of(disk, config).map(|of| histogram(&of.all.responses_us)));
    let all = || histograms.iter().flatten().flatten().map(|(bucket, _)| *bucket);
    let (Some(first), Some(last)) = (all().min(), all().max()) else { return table };
    for bucket in first..=last {
        let count = |histogram: &Option<Vec<(i32, u64)>>| {
            let counts = histogram.iter().flatten();
            Cell::Count(counts.filter(|(of, _)| *of == bucket).map(|(_, count)| count).sum())
        };
        let row = [number(least_ms(bucket), 1)].into_iter().chain(histograms.iter().map(count)).collect();
        table.push(row);
    }
    table
}

fn summary(found: &Found) -> Table {
    let mut table = Table::new(
        "summary",
        "All trials together (simulated time)",
        &[
            "disk",
            "configuration",
            "reads",
            "mean ms",
            "deviation ms",
            "p99 ms",
            "worst ms",
            "> 450 ms",
            "> 1 s",
            "reads/s",
            "writes/s",
            "write ms",
            "oldest s",
        ],
    );
    for measured in &found.measured {
        let all = &measured.all;
        table.push(vec![
            measured.disk.name().into(),
            measured.config.name().into(),
            all.reads.into(),
            number(all.mean_ms, 2),
            number(all.deviation_ms, 2),
            number(all.p99_ms, 1),
            number(all.worst_ms, 0),
            all.above(450.0).into(),
            all.above(1000.0).into(),
            number(all.reads_per_s, 1),
            number(all.writes_per_s, 1),
            number(all.write_ms, 1),
            // Without delay blocks have no age.
            if measured.config.is_delayed { number(all.age_max_s, 1) } else { Cell::Empty },
        ]);
    }
    table
}

fn scanned(found: &Found) -> Table {
    let mut table = Table::new(
        "scanned",
        "Blocks scanned to find those to be written (all trials)",
        &["disk", "configuration", "written", "scanned by the report's algorithm", "examined here"],
    );
    for measured in found.measured.iter().filter(|measured| measured.config.is_delayed) {
        let counts = &measured.all.counts;
        table.push(vec![
            measured.disk.name().into(),
            measured.config.name().into(),
            counts.chosen.into(),
            counts.listed.into(),
            counts.examined.into(),
        ]);
    }
    table
}

fn scaling(found: &Found) -> [Table; 2] {
    let mut random = Table::new(
        "table-1",
        "Table 1: random write of the entire cache; the report's rows, and drained here (simulated time)",
        &[
            "machine",
            "buffers",
            "access ms",
            "paper s",
            "its own product s",
            "ours, FIFO s",
            "ours, a file s",
            "ours, elevator s",
        ],
    );
    for (year, buffers, access_ms, paper_s) in TABLE_1 {
        let product = number(buffers as f64 * access_ms / 1000.0, 1);
        let [a, b, c] = [Cell::Empty, Cell::Empty, Cell::Empty];
        random.push(vec![
            year.to_string().into(),
            buffers.into(),
            number(access_ms, 0),
            number(paper_s, 1),
            product,
            a,
            b,
            c,
        ]);
    }
    let mut sequential = Table::new(
        "table-2",
        "Table 2: sequential write of the entire cache (simulated time)",
        &["machine", "cache MB", "MB/s", "paper s", "its own quotient s", "ours s"],
    );
    for (year, mb, rate, paper_s) in TABLE_2 {
        let cells = [number(mb, 1), number(rate, 1), number(paper_s, 1), number(mb / rate, 1), Cell::Empty];
        sequential.push([Cell::Text(year.to_string())].into_iter().chain(cells).collect());
    }
    for drain in &found.drains {
        let buffers = drain.disk.buffers();
        let (access_ms, mb) = (drain.anywhere_s * 1000.0 / buffers as f64, (buffers * BLOCK_BYTES) as f64 / 1e6);
        let times = [drain.anywhere_s, drain.file_s, drain.elevator_s].map(|s| number(s, 1));
        let head = [drain.disk.name().into(), buffers.into(), number(access_ms, 1), Cell::Empty, Cell::Empty];
        random.push(head.into_iter().chain(times).collect());
        let head =
            [drain.disk.name().into(), number(mb, 1), number(mb / drain.in_a_row_s, 1), Cell::Empty, Cell::Empty];
        sequential.push(head.into_iter().chain([number(drain.in_a_row_s, 1)]).collect());
    }
    [random, sequential]
}

fn partial(found: &Found) -> Table {
    let mut table = Table::new(
        "asynchronous",
        "Asynchronous writes and PU: when some of the writes fill no block and are delayed (simulated time)",
        &["disk", "fill no block %", "mean ms", "deviation ms", "worst ms", "> 1 s", "reads/s"],
    );
    for point in &found.partial {
        table.push(vec![
            point.disk.name().into(),
            u64::from(point.percent).into(),
            number(point.all.mean_ms, 2),
            number(point.all.deviation_ms, 2),
            number(point.all.worst_ms, 0),
            point.all.above(1000.0).into(),
            number(point.all.reads_per_s, 1),
        ]);
    }
    table
}

fn bursts(found: &Found) -> Table {
    let title =
        format!("The whole cache dirtied within a second, once in {BURST_EVERY_S} s; delayed writes (simulated time)");
    let columns = [
        "disk",
        "policy",
        "mean ms",
        "deviation ms",
        "p99 ms",
        "worst ms",
        "AIPU's worst over it",
        "reads/s",
        "oldest s",
    ];
    let mut table = Table::new("burst", title, &columns);
    for burst in &found.bursts {
        let worst_ms = aipu_worst_ms(found, burst.disk).unwrap_or(f64::NAN);
        table.push(vec![
            burst.disk.name().into(),
            burst.name.clone().into(),
            number(burst.all.mean_ms, 2),
            number(burst.all.deviation_ms, 2),
            number(burst.all.p99_ms, 1),
            number(burst.all.worst_ms, 0),
            number(worst_ms / burst.all.worst_ms, 1),
            number(burst.all.reads_per_s, 1),
            number(burst.all.age_max_s, 1),
        ]);
    }
    table
}

fn crossings(plan: &Plan, found: &Found) -> Table {
    let title = format!(
        "Mean read response by the share of writes that hit dirty blocks, independent requests, {} (simulated time)",
        plan.disks[0].name()
    );
    let columns = ["read load", "write load", "hits %", "WT ms", "PU ms", "IPU ms", "AIPU ms"];
    let mut table = Table::new("crossover", title, &columns);
    for crossing in &found.crossings {
        for point in &crossing.by_hits {
            let mut row = vec![
                number(f64::from(crossing.read_percent) / 100.0, 1),
                number(f64::from(crossing.write_percent) / 100.0, 1),
                u64::from(point.percent).into(),
                number(crossing.through_ms, 1),
            ];
            row.extend(point.mean_ms.map(|ms| number(ms, 1)));
            table.push(row);
        }
    }
    table
}

pub fn tables(plan: &Plan, found: &Found) -> Vec<Table> {
    let mut tables = vec![comparison(found), summary(found)];
    for &disk in &plan.disks {
        tables.push(scatter(found, disk));
        tables.push(histograms(found, disk));
    }
    tables.extend([far(found, false), far(found, true)]);
    tables.extend(scaling(found));
    tables.extend(build::tables(&found.replayed));
    tables.extend([scanned(found), partial(found), bursts(found), crossings(plan, found)]);
    tables.extend(open::tables(&found.answers));
    tables
}

/// Plots the trials of configurations, a point for each.
fn trials(name: String, title: String, series: Vec<Series>) -> Plot {
    Plot {
        name,
        title: format!("{title}\neach point is a trial; all times are simulated"),
        x: "mean read response (ms)".into(),
        y: "standard deviation of read response (ms)".into(),
        series: series.into_iter().map(|of| of.of_kind(Kind::Points)).collect(),
        style: Style::default(),
    }
}

fn points_of(trials: &[Figures]) -> impl Iterator<Item = (f64, f64)> {
    trials.iter().map(|trial| (trial.mean_ms, trial.deviation_ms))
}

/// Plots a histogram of responses. All buckets between the first and the last are there, so that
/// empty ones stay empty.
fn histogram_plot(found: &Found, disk: DiskModel, figure: u32, name: &str) -> Plot {
    let of_disk = || found.measured.iter().filter(move |measured| measured.disk == disk);
    let counted: Vec<(Config, HashMap<i32, u64>)> =
        of_disk().map(|of| (of.config, histogram(&of.all.responses_us).into_iter().collect())).collect();
    let all = || counted.iter().flat_map(|(_, counts)| counts.keys().copied());
    let (first, last) = (all().min().unwrap_or(0), all().max().unwrap_or(0));
    let middle = |bucket: i32| (least_ms(bucket) * least_ms(bucket + 1)).sqrt();
    let mut series: Vec<Series> = counted
        .iter()
        .map(|(config, counts)| {
            let count = |bucket: i32| counts.get(&bucket).copied().unwrap_or(0) as f64;
            let points = (first..=last).map(|bucket| (middle(bucket), count(bucket)));
            Series::new(config.name(), points).of_kind(Kind::Steps)
        })
        .collect();
    if disk == DiskModel::Rz58 && !series.is_empty() {
        // Section 4.1: a maximum of 746 ms, and all other reads of 60,000 below 450 ms.
        series.push(Series::paper("delayed, AIPU: the one read above 450 ms", [(746.0, 1.0)]));
        let all = (f64::NEG_INFINITY, f64::INFINITY);
        series.push(Series::paper_ranges("delayed, AIPU: small peak at 300 ms", [[(300.0, 300.0), all]]));
        series.push(Series::paper_ranges("delayed, PU: worst reads, 8 to 9 s", [[(8000.0, 9000.0), all]]));
    }
    Plot {
        name: format!("figure-{figure}"),
        title: format!(
            "Figure {figure}: local random reads, {name} system (disk {})\n\
             ten buckets for each factor of ten; all times are simulated",
            disk.name()
        ),
        x: "read response (ms)".into(),
        y: "reads in a bucket".into(),
        series,
        style: Style { is_log_x: true, is_log_y: true, ..Style::default() },
    }
}

fn crossing_plot(crossing: &Crossing) -> Plot {
    let by_hits = |name: &str, of: &dyn Fn(&[f64; 3]) -> f64| {
        let points = crossing.by_hits.iter();
        Series::new(name, points.map(|point| (f64::from(point.percent), of(&point.mean_ms))))
    };
    let mut series = vec![
        by_hits("WT", &|_| crossing.through_ms),
        by_hits("PU", &|ms| ms[0]),
        by_hits("IPU", &|ms| ms[1]),
        by_hits("AIPU", &|ms| ms[2]),
    ];
    let (reads, writes) = (crossing.read_percent, crossing.write_percent);
    if reads + writes < 100 {
        let all = (f64::NEG_INFINITY, f64::INFINITY);
        let name = "from 80-90% on, PU is better than WT";
        series.push(Series::paper_ranges(name, [[(80.0, 90.0), all]]));
    }
    Plot {
        name: format!("crossover-{reads}-{writes}"),
        title: format!(
            "Independent requests: reads take {reads}%, writes {writes}% of what the disk can do\n\
             all times are simulated"
        ),
        x: "writes that hit a dirty block (%)".into(),
        y: "mean read response (ms)".into(),
        series,
        style: Style { is_log_y: true, ..Style::default() },
    }
}

pub fn plots(plan: &Plan, found: &Found) -> Vec<Plot> {
    let mut plots = vec![];
    for &disk in &plan.disks {
        let (first, name) = if disk == DiskModel::Rz58 { (1, "fast") } else { (2, "slow") };
        let measured = found.measured.iter().filter(|measured| measured.disk == disk);
        plots.push(trials(
            format!("figure-{first}"),
            format!("Figure {first}: local random reads, {name} system (disk {})", disk.name()),
            measured.map(|of| Series::new(of.config.name(), points_of(&of.trials))).collect(),
        ));
        plots.push(histogram_plot(found, disk, first + 2, name));
    }
    for in_order in [false, true] {
        let (figure, title) = far_title(in_order);
        let series = far_of(found, in_order).map(|of| Series::new(of.far.name(), points_of(&of.trials)));
        plots.push(trials(format!("figure-{figure}"), title, series.collect()));
    }
    plots.extend(found.crossings.iter().map(crossing_plot));
    plots.push(build::plot(&found.replayed));
    plots.retain(|plot| plot.series.iter().any(|series| !series.points.is_empty()));
    plots
}

pub fn notes(plan: &Plan) -> Vec<String> {
    vec![
        format!(
            "all times are simulated; one command, {:?} queue, nothing merged; the disks have the report's access times and \
             rates, what it leaves open is in docs/papers/better-update-policy.md",
            plan.order
        ),
        format!(
            "{} trials of {} reads after a warm-up; seeds {} to {}; the reader takes {} us between two reads",
            plan.trials,
            plan.reads,
            plan.seed,
            plan.seed + plan.trials - 1,
            plan.think_ns / 1000
        ),
        "the writer dirties half the cache every 30 s, evenly; asynchronous writes fill their blocks and go to the disk at once"
            .into(),
        format!(
            "read priority: due blocks stay in the cache while a read waits, and leave one at a time; shaped: at most {} \
             writes at the disk and {} a second; both until a block is {} s old",
            plan.depth,
            plan.writes_per_s,
            plan.age_max_ns / 1_000_000_000
        ),
        format!(
            "remote disk: the requests of a block device instead of NFS, over {} Mbit/s with {} ms a message; memory: {MEMORY_BLOCKS} blocks \
             at the server that answer writes at once and reach its disk while no read wants it",
            ETHERNET.mbit,
            ETHERNET.latency_us / 1000.0
        ),
        "build: make of OpenSSL on ext2, recorded with its metadata, stretched until it writes as often as the report's".into(),
        "crossover: Carson and Setia speak of the share of writes that hit dirty blocks, not of a load".into(),
    ]
}
