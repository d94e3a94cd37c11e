//! Tables and the plot of the work on trees, and what readers must know about them.
//!
//! Owns: the arrangement of the figures. Rules: a figure is the median of the rounds, followed by
//! its interval; every run is in a separate table. A place's promise changes no figure: it is
//! stated in words, and the reader compares equals.

use super::measure::{Caches, Case, Found, RATE, SECONDS, THREADS};
use super::{Part, Plan};
use crate::median::Median;
use crate::places;
use crate::report::{Cell, Plot, Series, Style, Table};

/// The first column of the tables that have a column for each place.
pub const OPERATION: &str = "operation";

pub fn notes(plan: &Plan, found: &Found) -> Vec<String> {
    let mut notes = vec![format!(
        "medians of {} rounds, with an interval that holds the true median with at least 90% (with fewer than five rounds: all that \
         was measured)",
        plan.runs
    )];
    notes.extend(found.tree.iter().map(|tree| {
        format!(
            "source tree: {tree}; its tar file, its repository and the programs were read before the clock ran, so no place waits \
             for the disk that they are on; a clone copies and makes no links"
        )
    }));
    notes.extend(found.caches.as_ref().map(|caches| match caches {
        Caches::Dropped => "before the first git status, all was written and the kernel dropped its caches, for rm too; what a daemon \
                            of a FUSE mount has in its own memory stays"
            .into(),
        Caches::Kept => "the kernel's caches were left alone before the first git status (--keep-caches)".into(),
        Caches::Stuck(why) => format!(
            "before the first git status the kernel's caches could not be dropped ({why}), so it reads from memory; root may drop \
             them"
        ),
    }));
    if found.caches.is_some() {
        notes.push(
            "git's index was made newer than all files after the clone: else the first git status reads again what was written in \
             the same second, which is more the faster the clone was"
                .into(),
        );
    }
    notes.push(
        "what is not yet written when a turn ends is written before the next turn, outside of the clock: a place that writes late \
         is not charged for it, and no other one is either"
            .into(),
    );
    if plan.has(Part::Postmark) {
        let what = "PostMark with its own defaults: files of 500 to 9,770 bytes in one directory, all three phases; blocks of 4 KB";
        notes.push(what.into());
    }
    if plan.has(Part::Threads) {
        let what = "creates by threads: as of fs_mark without fsync, a directory for each thread, 1 KB in one write";
        notes.push(what.into());
    }
    notes.extend(promises(found));
    if plan.scale < 1.0 {
        notes.push(format!("{} of the files, transactions and appends", plan.scale));
    }
    notes
}

/// Describes which places promise the same.
fn promises(found: &Found) -> Vec<String> {
    let mut same: Vec<(&str, Vec<&str>)> = vec![];
    for place in &found.places {
        let (survives, label) = (place.kind.survives(), place.label.as_str());
        match same.iter_mut().find(|(other, _)| *other == survives) {
            Some((_, labels)) => labels.push(label),
            None => same.push((survives, vec![label])),
        }
    }
    let named = same.iter().map(|(survives, labels)| format!("{}: {survives}", labels.join(", ")));
    vec![
        format!("after the machine failed there is, at {}", named.collect::<Vec<_>>().join("; at ")),
        "equal promises: Shoal `logged` keeps what was synced, as ext4, XFS and btrfs do, and may lose of the rest about the last \
         second, of large files the last 30 s; `battery` keeps all that returned; bindfs promises what the file system below it does"
            .into(),
    ]
}

pub fn tables(found: &Found) -> Vec<Table> {
    let title = "Seconds: median (90% interval)";
    let wide = [
        wide(found, "operations", title, SECONDS),
        wide(found, "threads", "Files a second: median (90% interval)", RATE),
    ];
    let mut tables = vec![places::table(&found.places)];
    tables.extend(wide.into_iter().filter(|table| !table.rows().is_empty()));
    tables.push(runs(found));
    tables
}

impl Case {
    fn median(&self, place: usize, operation: usize) -> Median {
        Median::of(self.runs[place].iter().map(|run| run[operation]))
    }
}

fn shown(median: Median) -> String {
    match median.low == median.high {
        true => median.value_text(),
        false => median.text(),
    }
}

/// Tabulates operations as rows and places as columns.
fn wide(found: &Found, name: &str, title: &str, unit: &str) -> Table {
    let mut columns = vec![OPERATION];
    columns.extend(found.places.iter().map(|place| place.label.as_str()));
    let mut table = Table::new(name, title, &columns);
    for case in found.cases.iter().filter(|case| case.unit == unit) {
        for (number, operation) in case.operations.iter().enumerate() {
            let mut row: Vec<Cell> = vec![operation.as_str().into()];
            row.extend((0..found.places.len()).map(|place| Cell::Text(shown(case.median(place, number)))));
            table.push(row);
        }
    }
    table
}

fn runs(found: &Found) -> Table {
    let mut table = Table::new("runs", "All runs", &[OPERATION, "place", "round", "value", "unit"]);
    for case in &found.cases {
        for (number, operation) in case.operations.iter().enumerate() {
            for (place, runs) in found.places.iter().zip(&case.runs) {
                for (round, run) in runs.iter().enumerate() {
                    table.push(vec![
                        operation.as_str().into(),
                        place.label.as_str().into(),
                        (round as u64 + 1).into(),
                        Cell::Number(run[number], 6),
                        case.unit.into(),
                    ]);
                }
            }
        }
    }
    table
}

pub fn plots(found: &Found) -> Vec<Plot> {
    let plot = |case: &Case| {
        Plot {
        name: "threads".into(),
        title: "Files of 1 KB created by several threads\nmedian of the rounds; bars: 90% interval, or all rounds if fewer than five".into(),
        x: "threads that create at once".into(),
        y: "files created (files/s)".into(),
        series: found
            .places
            .iter()
            .enumerate()
            .map(|(place, of)| {
                let threads = (0..).zip(THREADS);
                Series::spread(
                    of.label.as_str(),
                    threads.map(|(at, threads)| (threads.into(), case.median(place, at).bounds())),
                )
            })
            .collect(),
        style: Style { is_log_x: true, is_log_y: true, ..Style::default() },
    }
    };
    found.cases.iter().filter(|case| case.unit == RATE).map(plot).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_interval_if_there_is_one() {
        let median = |value, low, high| shown(Median { value, low, high });
        assert_eq!(median(1.234, 1.0, 2.5), "1.23 (1.00-2.50)");
        assert_eq!(median(0.0123, 0.0123, 0.0123), "0.012");
        assert_eq!(median(12345.6, 9999.9, 20000.0), "12346 (10000-20000)");
    }
}
