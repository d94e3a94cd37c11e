//! The thesis's claims of chapter 5 beside ours.
//!
//! Owns: the ratios that can be compared across machines, and the margins. Rules: times of other
//! machines stand beside ours without a verdict; ratios within one run are judged, over the pairs of
//! runs that followed each other. "mramfs" is the mount with the label `shoal`. A run in which fewer
//! than half of the inodes were packed says nothing of packed inodes, and deviates. Work at another
//! scale is not judged.

use super::Plan;
use super::figures::{PACKED_MIN, SPEED_MIN, directories, elapsed_s, inodes_packed, processor_s, seconds};
use super::measure::{Found, Place, Series, Step};
use crate::exhibits::Paper;
use crate::median::Median;
use crate::report::{Better, Cell, Comparison, Said, Table, Verdict};

/// A ratio of times is the thesis's within this factor: its own two runs of the same differ by 4%,
/// its kernel is 20 years older.
const RATIO: f64 = 1.25;
/// "No more than slightly better or worse", and what is "significantly" better.
const SLIGHTLY: f64 = 1.25;
const SIGNIFICANTLY: f64 = 2.0;
/// "All of our results were within 5%".
const BUILD: f64 = 0.05;

/// What a ratio of two series is of.
type Of = fn(&[Step]) -> f64;

fn transactions_s(steps: &[Step]) -> f64 {
    steps[1].took.elapsed_s
}

/// Returns the ratio of one series to another, run by run.
fn ratio(one: &Series, other: &Series, of: Of) -> Median {
    Median::of(one.runs.iter().zip(&other.runs).map(|(one, other)| of(one) / of(other)))
}

struct Claims<'a> {
    found: &'a Found,
    is_full: bool,
    table: Comparison,
}

impl<'a> Claims<'a> {
    /// Returns the runs at a directory with this label, with so many directories.
    fn at(&self, label: &str, count: u64) -> Option<&'a Series> {
        self.found.series.iter().find(|series| {
            let is_of = matches!(&self.found.places[series.place], Place::Directory { label: of, .. } if of == label);
            is_of && series.workload.is_some_and(|at| directories(&self.found.workloads[at]) == count)
        })
    }

    /// Returns the runs on a variant of the engine.
    fn engine(&self, name: &str, workload: Option<usize>, is_long: bool) -> Option<&'a Series> {
        self.found.series.iter().find(|series| {
            let is_of = matches!(self.found.places[series.place], Place::Engine(variant) if variant.name == name);
            is_of && (series.workload, series.is_long) == (workload, is_long)
        })
    }

    /// Adds a ratio of ours, judged if the work is the thesis's.
    fn ratio(&mut self, of: &str, figure: &str, paper: f64, said: Said, ours: Option<Median>, why: &str) {
        let verdict = match ours {
            _ if !self.is_full => Verdict::Unjudged,
            Some(ours) => said.judge_spread(ours).because(why),
            None => Verdict::NotMeasured,
        };
        let ours = ours.map_or(Cell::Empty, |ours| ours.text().into());
        let paper = if paper.is_nan() { Cell::Empty } else { Cell::Number(paper, 2) };
        self.table.push(of, figure, paper, ours, "", verdict);
    }

    fn packed(&mut self, name: &str) {
        let (Some(packed), Some(plain)) = (self.engine(name, Some(0), true), self.engine("plain", Some(0), true))
        else {
            return;
        };
        let share = packed.runs.iter().map(|steps| inodes_packed(steps)).fold(1.0, f64::min);
        let text = format!("at least {:.0}% packed", share * 100.0);
        for (of, figure, paper, measured) in [
            ("figure 5.3", "rate of transactions", 40.848 / 38.110, transactions_s as Of),
            ("figure 5.4", "total time", 54.913 / 50.423, elapsed_s as Of),
        ] {
            let ours = ratio(plain, packed, measured);
            let figure = format!("engine, {name}, to plain, at the pace of a mount: {figure}; {text}");
            let verdict = if self.is_full { packed_verdict(share, ours) } else { Verdict::Unjudged };
            // An age of 0 packs what is still in use, which no mount does by itself: 30 s are usual.
            let of = if name.ends_with(" 0 s") { "" } else { of };
            self.table.push(of, figure, Cell::Number(paper, 2), ours.text().into(), "", verdict);
        }
    }
}

/// Judges the speed with packed inodes, of which this share is packed.
fn packed_verdict(share: f64, speed: Median) -> Verdict {
    if share < PACKED_MIN {
        return Verdict::deviates("fewer than half of the inodes are packed, which proves nothing");
    }
    // "A nearly free space savings."
    let why = "a packed inode that is changed is unpacked first, and packed again by another thread";
    Said::at_least(SPEED_MIN).judge_spread(speed).because(why)
}

pub fn comparison(plan: &Plan, found: &Found) -> Table {
    let title = "The thesis (machines of 2002 to 2004) beside ours";
    let mut claims = Claims { found, is_full: plan.scale == 1.0, table: Comparison::new(Paper::Mramfs, title) };
    times(&mut claims);
    ["inodes at 0 s", "inodes at 1 s"].iter().for_each(|name| claims.packed(name));
    rates(&mut claims);
    totals(&mut claims);
    builds(&mut claims);
    claims.table.into_table()
}

/// Adds times, which are of other machines.
fn times(claims: &mut Claims<'_>) {
    let rows: [(&str, f64, Option<&Series>); 6] = [
        ("mramfs, inodes packed; ours: the mount `shoal`", 50.423, claims.at("shoal", 1)),
        ("the same in 100 directories", 47.128, claims.at("shoal", 100)),
        ("mramfs, inodes not packed; ours: the engine", 54.913, claims.engine("plain", Some(0), false)),
        ("tmpfs", 2.882, claims.at("tmpfs", 1)),
        ("ext2", 159.565, claims.at("ext2", 1)),
        ("xfs, 100 directories", 31.223, claims.at("xfs", 100)),
    ];
    for (figure, paper, ours) in rows {
        let ours = ours
            .filter(|_| claims.is_full)
            .map_or(Cell::Empty, |series| Median::of(series.runs.iter().map(|steps| elapsed_s(steps))).text().into());
        claims.table.push("", format!("PostMark: {figure}"), seconds(paper), ours, "s", Verdict::Unjudged);
    }
    let is_full = claims.is_full && claims.found.rounds[0] == 4000;
    let ours = claims.engine("plain", None, false).filter(|_| is_full);
    let ours = ours.map_or(Cell::Empty, |of| Median::of(of.runs.iter().map(|steps| elapsed_s(steps))).text().into());
    let figure = "4,000 empty files made and unlinked 4,000 times; ours: the engine";
    claims.table.push("", figure, seconds(36.0), ours, "s", Verdict::Unjudged);
}

/// Adds claims about rates of transactions, normalized to ext2 in one directory.
fn rates(claims: &mut Claims<'_>) {
    const OF: &str = "figure 5.3";
    let rate = |claims: &Claims<'_>, label, count| {
        Some(ratio(claims.at("ext2", 1)?, claims.at(label, count)?, transactions_s))
    };
    let daemon = "every call of a FUSE mount goes to a daemon and back; mramfs is in the kernel (see the engine)";
    for (count, paper) in [(1, 38.110), (100, 35.482)] {
        let paper = 106.3 / paper;
        let said = Said::about(paper, RATIO, Better::More);
        let figure = format!("mramfs to ext2 in one directory, {count} directories: rate of transactions");
        let ours = rate(claims, "shoal", count);
        claims.ratio(OF, &figure, paper, said, ours, &why(said, ours, daemon));
    }
    let engine = || Some(ratio(claims.at("ext2", 1)?, claims.engine("plain", Some(0), false)?, transactions_s));
    let ours = engine();
    let paper = 106.3 / 38.110;
    let said = Said::about(paper, RATIO, Better::More);
    claims.ratio("", "the engine to ext2 in one directory: rate of transactions", paper, said, ours, "no system calls");
    let ours = rate(claims, "tmpfs", 1);
    // "55 to 60 times faster": a property of the kernel.
    let figure = "tmpfs to ext2 in one directory, \"off the scale\": rate of transactions";
    let why = "linear search has become faster than the rest of ext2: names in fewer caches' lines";
    claims.ratio("", figure, 106.3 / 1.962, Said::at_least(SIGNIFICANTLY), ours, why);
    for (label, paper) in [("ext2", 4.990), ("xfs", 19.366)] {
        let ours = rate(claims, label, 100);
        let figure = format!("{label} in 100 directories to ext2 in one: rate of transactions; faster by far");
        claims.ratio(OF, &figure, 106.3 / paper, Said::at_least(SIGNIFICANTLY), ours, why);
    }
}

/// Names the cause of a deviation, and of a better figure.
fn why(said: Said, ours: Option<Median>, worse: &str) -> String {
    match ours.map(|ours| said.judge_spread(ours)) {
        Some(Verdict::Better(_)) => {
            "a store of today with a daemon of today, and a directory that is not searched by name".into()
        }
        _ => worse.into(),
    }
}

/// Adds claims about whole running times.
fn totals(claims: &mut Claims<'_>) {
    const OF: &str = "figure 5.4";
    let of = |claims: &Claims<'_>, one: (&str, u64), other: (&str, u64)| {
        Some(ratio(claims.at(one.0, one.1)?, claims.at(other.0, other.1)?, elapsed_s))
    };
    let slightly = Said::about(1.0, SLIGHTLY, Better::Neither);
    for (label, paper) in [("shoal", 50.423 / 47.128), ("tmpfs", f64::NAN), ("xfs", f64::NAN)] {
        let ours = of(claims, (label, 1), (label, 100));
        let figure = format!("{label}, one directory to 100: \"no more than slightly better or worse\"");
        claims.ratio(OF, &figure, paper, slightly, ours, "directories of 50,000 names are in memory in one piece");
    }
    let engine = |number| claims.engine("plain", Some(number), false);
    let ours = engine(0).zip(engine(1)).map(|(one, hundred)| ratio(one, hundred, processor_s));
    claims.ratio(OF, "the engine, one directory to 100, processor time", 50.423 / 47.128, slightly, ours, "");
    let ours = of(claims, ("ext2", 1), ("ext2", 100));
    let figure = "ext2, one directory to 100: \"significantly better with smaller directories\"";
    let why_ext2 = "linear search of names in the cache costs less beside the rest";
    claims.ratio(OF, figure, 159.565 / 7.628, Said::at_least(SIGNIFICANTLY), ours, why_ext2);
    let daemon = "every call of a FUSE mount goes to a daemon and back; the engine has no such calls";
    for (other, count, paper) in [
        ("ext2", 1, 50.423 / 159.565),
        ("ext2", 100, 47.128 / 7.628),
        ("xfs", 100, 47.128 / 31.223),
        ("tmpfs", 1, 50.423 / 2.882),
    ] {
        let ours = of(claims, ("shoal", count), (other, count));
        let said = Said::about(paper, RATIO, Better::Less);
        let figure = format!("mramfs to {other}, {count} directories: total time");
        claims.ratio(OF, &figure, paper, said, ours, &why(said, ours, daemon));
    }
}

/// Adds claims about the build: real time to that on tmpfs.
fn builds(claims: &mut Claims<'_>) {
    const OF: &str = "figure 5.5";
    let found = claims.found;
    let of = |label: &str| {
        let place =
            found.places.iter().position(|place| matches!(place, Place::Directory { label: of, .. } if of == label))?;
        found.builds.times.get(place).filter(|times| !times.is_empty())
    };
    let Some(tmpfs) = of("tmpfs") else { return };
    let rows = [("shoal", 124.648), ("ext2", 128.311), ("xfs", f64::NAN)];
    for (label, paper) in rows {
        let ours = of(label).map(|times| Median::of(times.iter().zip(tmpfs).map(|(one, other)| one / other)));
        let said = Said::about(1.0, 1.0, Better::Less).within(BUILD);
        let name = if label == "shoal" { "mramfs, ours: the mount `shoal`," } else { label };
        let figure = format!("{name} to tmpfs: time of a build, \"within 5%\"");
        let why = "each of a compiler's calls on headers goes to a daemon, and its own work has become less";
        claims.ratio(OF, &figure, paper / 126.453, said, ours, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_which_few_inodes_are_packed_proves_nothing() {
        let speed = |value: f64| Median::of([value]);
        assert_eq!(packed_verdict(0.9, speed(0.95)), Verdict::Shown);
        assert!(packed_verdict(0.9, speed(0.7)).text().starts_with("deviates: a packed inode"));
        assert!(packed_verdict(0.4, speed(1.0)).text().contains("proves nothing"));
    }
}
