//! Tables and plots of section 4, and what readers must know about them.
//!
//! Owns: the arrangement of the figures. Rules: a figure is the median of the rounds, followed by its
//! interval; every run is in a separate table. The speed of each device is shown beside the ratio
//! that the throttle was to reach, so that readers can judge the disk before the benchmarks. Left
//! out: the comparison with the paper (`claims`).

use super::claims;
use super::disk::{Throttle, paper_ratio};
use super::measure::{Case, Found};
use super::places::{DISK, NONE};
use super::work::{COUNTS, MS_PER_FILE, SIZES};
use super::{Part, Plan};
use crate::report::{Cell, Plot, Series, Style, Table};

const OPERATION: &str = "operation";

pub fn notes(plan: &Plan, found: &Found) -> Vec<String> {
    let Throttle { seek, turn, bytes_s } = found.set.throttle;
    let mut notes = vec![
        format!(
            "medians of {} rounds in wall time, with an interval that holds the true median with at least 90% (with fewer than five \
             rounds: all that was measured)",
            plan.runs
        ),
        format!("network: {}; two donors, and a third for parity (adaptive, and Shoal's large files)", found.set.network),
        format!(
            "disk: memory behind a throttle with one arm: a seek of {:.3} ms and half a turn of {:.3} ms for a request that does not \
             continue the one before, the rest of a turn for one that continues it too late, then {:.0} MB/s; set so that a block of \
             8 KB at a random place takes {:.2} times as long as on the unreliable network RAM disk, which is the paper's seek of 16 \
             ms beside 10 Mbit/s, at {} turns a minute, which it does not state (--rpm 0: none; table devices: what was reached)",
            seek.as_secs_f64() * 1e3,
            turn.as_secs_f64() * 1e3,
            bytes_s / 1e6,
            paper_ratio(plan.rpm),
            plan.rpm
        ),
        "disk and network RAM disks: NBD through nbdfuse and a loop device with direct I/O; mke2fs -t ext2 with blocks of 4 KB (no \
         journal, no extents), mounted as ext4 with noatime and nobarrier, because the paper's devices knew no flush"
            .into(),
        "UFS wrote metadata synchronously: table 4, figures 8 and 9 are mounted with -o sync; table 3 with -o dirsync, because sync \
         would wait for each piece of a file that tar writes; all others asynchronously, as with ext2"
            .into(),
        "each operation begins with a mount, so with empty caches, and ends when everything is written: the paper's machines had \
         less memory than the files took"
            .into(),
        "shoal: FUSE mount of a store with its metadata and small files in memory that counts as battery-backed (tmpfs), so that what \
         returned is durable there; only the sequential file is large enough for its network RAM disk"
            .into(),
        "IOstone's file sizes are not in the paper: powers of two from 256 bytes to 64 KB; its constant is left out".into(),
    ];
    if plan.scale < 1.0 {
        notes.push(format!("{} of the files and bytes", plan.scale));
    }
    notes
}

pub fn tables(plan: &Plan, found: &Found) -> Vec<Table> {
    vec![
        claims::comparison(found),
        devices(plan.rpm, found),
        operations(found),
        speedups(found),
        load(found),
        runs(found),
    ]
}

/// Tabulates the speeds of the block devices.
fn devices(rpm: u32, found: &Found) -> Table {
    let title = format!(
        "Devices before the benchmarks, one request at a time, and the time of a block as a multiple of {NONE} (the paper's disk: {:.2})",
        paper_ratio(rpm)
    );
    let columns = ["device", "8 KB read (ms)", "8 KB write (ms)", "1 MB reads (MB/s)", "1 MB writes (MB/s)", "times"];
    let mut table = Table::new("devices", title, &columns);
    let network = found.place(NONE).and_then(|at| found.set.subjects[at].speed);
    for subject in &found.set.subjects {
        let Some(speed) = subject.speed else { continue };
        let times = network.map_or(Cell::Empty, |network| Cell::Number(speed.block_ms() / network.block_ms(), 2));
        table.push(vec![
            subject.label.into(),
            Cell::Number(speed.read_ms, 3),
            Cell::Number(speed.write_ms, 3),
            Cell::Number(speed.read_mb_s, 1),
            Cell::Number(speed.write_mb_s, 1),
            times,
        ]);
    }
    table
}

/// Tabulates operations as rows and places as columns.
fn wide(found: &Found, name: &str, title: &str, cell: impl Fn(&Case, usize, usize) -> Cell) -> Table {
    let mut columns = vec![OPERATION, "unit"];
    columns.extend(found.set.subjects.iter().map(|subject| subject.label));
    let mut table = Table::new(name, title, &columns);
    for case in &found.cases {
        for (number, operation) in case.work.operations.iter().enumerate() {
            let mut row: Vec<Cell> = vec![operation.name.as_str().into(), operation.unit.into()];
            row.extend((0..found.set.subjects.len()).map(|place| cell(case, number, place)));
            table.push(row);
        }
    }
    table
}

fn operations(found: &Found) -> Table {
    wide(found, "operations", "Wall time: median (90% interval)", |case, operation, place| {
        Cell::Text(case.median(operation, place).text())
    })
}

fn speedups(found: &Found) -> Table {
    let title = "How many times as fast as the disk in the same round: median (90% interval)";
    let disk = found.place(DISK);
    wide(found, "speedups", title, |case, operation, place| {
        disk.map_or(Cell::Empty, |disk| Cell::Text(case.speedup(operation, place, disk).text()))
    })
}

/// Tabulates the requests that reached the devices.
fn load(found: &Found) -> Table {
    let title = "Requests to the block device in an operation: writes + reads, KB (medians)";
    wide(found, "load", title, |case, operation, place| {
        let [writes, reads, bytes] = [0, 1, 2].map(|which| case.requests(operation, place, which));
        let text = writes.zip(reads).zip(bytes);
        text.map_or(Cell::Empty, |((writes, reads), bytes)| {
            Cell::Text(format!("{writes:.0} + {reads:.0}, {:.0}", bytes / 1024.0))
        })
    })
}

fn runs(found: &Found) -> Table {
    let mut table = Table::new("runs", "All runs", &[OPERATION, "place", "round", "value", "unit"]);
    for case in &found.cases {
        for (operation, places) in case.work.operations.iter().zip(&case.runs) {
            for (subject, runs) in found.set.subjects.iter().zip(places) {
                for (round, run) in (1u64..).zip(runs) {
                    let value = Cell::Number(run.figure, 6);
                    let name = operation.name.as_str().into();
                    table.push(vec![name, subject.label.into(), round.into(), value, operation.unit.into()]);
                }
            }
        }
    }
    table
}

/// Plots an operation over the value that distinguishes the cases of a part.
fn plot(found: &Found, part: Part, operation: usize, name: &str, x: &str, values: &[f64]) -> Option<Plot> {
    let cases: Vec<&Case> = found.cases.iter().filter(|case| case.work.part == part).collect();
    let title = ["created", "deleted at random"][operation];
    let series = found.set.subjects.iter().enumerate().map(|(place, subject)| {
        Series::new(subject.label, cases.iter().zip(values).map(|(case, x)| (*x, case.median(operation, place).value)))
    });
    (!cases.is_empty()).then(|| Plot {
        name: name.into(),
        title: format!("Files {title} (wall time)"),
        x: x.into(),
        y: MS_PER_FILE.into(),
        series: series.collect(),
        style: Style { is_log_x: true, is_log_y: true, ..Style::default() },
    })
}

pub fn plots(found: &Found) -> Vec<Plot> {
    let sizes = SIZES.map(|len| (len >> 10) as f64);
    let counts = COUNTS.map(f64::from);
    let plots = [
        plot(found, Part::Sizes, 0, "figure-8", "size of each file (KB)", &sizes),
        plot(found, Part::Sizes, 1, "figure-9", "size of each file (KB)", &sizes),
        plot(found, Part::Counts, 0, "figure-11", "files at full scale", &counts),
        plot(found, Part::Counts, 1, "figure-12", "files at full scale", &counts),
    ];
    plots.into_iter().flatten().collect()
}
