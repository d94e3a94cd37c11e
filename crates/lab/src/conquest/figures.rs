//! Tables and plots of the benchmarks, and the paper's figures beside ours.
//!
//! Owns: the tables; the paper's ratios. Rules: a rate is the median of the runs with its interval;
//! a ratio compares runs of the same round. The paper's figures come from its text, because its
//! plots have no numbers.

use super::measure::{Case, Found, POSTMARK_PHASES, SMALL_PHASES, TRANSACTIONS};
use super::{Part, Plan, large};
use crate::exhibits::Paper;
use crate::median::Median;
use crate::places::{self, Kind, Place};
use crate::report::{Better, Cell, Comparison, Plot, Said, Series, Style, Table, Verdict};

impl Case {
    fn rate(&self, place: usize, phase: usize) -> Option<Median> {
        let runs = self.rates[place].as_ref()?;
        Some(Median::of(runs.iter().map(|phases| phases[phase])))
    }

    /// Returns the rates at a place as multiples of those at another place in the same round.
    fn ratio(&self, place: usize, other: usize, phase: usize) -> Option<Median> {
        let (ours, theirs) = (self.rates[place].as_ref()?, self.rates[other].as_ref()?);
        Some(Median::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours[phase] / theirs[phase])))
    }
}

impl Found {
    fn of(&self, part: Part) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(move |case| case.part == part)
    }

    fn shoals(&self) -> impl Iterator<Item = (usize, &Place)> {
        self.places.iter().enumerate().filter(|(_, place)| place.is_shoal())
    }

    fn first(&self, kinds: &[Kind]) -> Option<(usize, &Place)> {
        kinds.iter().find_map(|kind| self.places.iter().enumerate().find(|(_, place)| place.kind == *kind))
    }
}

pub fn notes(plan: &Plan) -> Vec<String> {
    let mut notes = vec![
        format!(
            "rates are medians of {} rounds, with an interval that holds the true median with at least 90% (with fewer than five \
             rounds: all that was measured); ratios are of runs of the same round",
            plan.runs
        ),
        "PostMark: blocks of 4 KB, since the 512 bytes of the paper reach the system through a buffer; text that compresses about 2:1; \
         with fsync each file is synced after it was created or appended to; `all` is calls of all three phases"
            .into(),
        "large files: records of 4 KB; writes include the fsync of each file at its end".into(),
        "the paper's machine: 1 GHz, 2 GB of memory, a disk of 10,000 rpm, Linux 2.4.2; file systems in the kernel. A mount of Shoal \
         pays a FUSE round trip for each change, which no peer does but one that is FUSE, too"
            .into(),
    ];
    if plan.scale < 1.0 {
        notes.push(format!("{} of the paper's files and transactions", plan.scale));
    }
    if plan.mixed_transactions != TRANSACTIONS && plan.parts.contains(&Part::Mixed) {
        notes.push(format!(
            "5.6: {} transactions for the paper's {TRANSACTIONS}, on its number of files",
            plan.mixed_transactions
        ));
    }
    notes
}

pub fn tables(found: &Found) -> Vec<Table> {
    vec![places::table(&found.places), rates(found), comparison(found), runs(found)]
}

fn figure(case: &Case) -> &'static str {
    match case.part {
        Part::SmallFiles => "5.1",
        Part::LargeFiles => "5.2",
        Part::Postmark => "5.3, 5.4",
        Part::Mixed => "5.6",
    }
}

fn synced(case: &Case) -> &'static str {
    if case.is_synced { "fsync" } else { "" }
}

fn number(value: f64) -> Cell {
    Cell::Number(value, if value < 100.0 { 1 } else { 0 })
}

fn rates(found: &Found) -> Table {
    let mut table = Table::new(
        "rates",
        "Rates: median and 90% interval",
        &["figure", "benchmark", "synced", "phase", "place", "rate", "low", "high", "unit"],
    );
    for case in &found.cases {
        for (phase, name) in case.phases.iter().enumerate() {
            for (at, place) in found.places.iter().enumerate() {
                let Some(rate) = case.rate(at, phase) else { continue };
                table.push(vec![
                    figure(case).into(),
                    case.name.as_str().into(),
                    synced(case).into(),
                    (*name).into(),
                    place.label.as_str().into(),
                    number(rate.value),
                    number(rate.low),
                    number(rate.high),
                    case.unit.into(),
                ]);
            }
        }
    }
    table
}

fn runs(found: &Found) -> Table {
    let mut table = Table::new("runs", "All runs", &["benchmark", "synced", "phase", "place", "round", "rate", "unit"]);
    for case in &found.cases {
        for (place, runs) in found.places.iter().zip(&case.rates) {
            for (round, rates) in runs.iter().flatten().enumerate() {
                for (name, rate) in case.phases.iter().zip(rates) {
                    table.push(vec![
                        case.name.as_str().into(),
                        synced(case).into(),
                        (*name).into(),
                        place.label.as_str().into(),
                        (round as u64 + 1).into(),
                        Cell::Number(*rate, 3),
                        case.unit.into(),
                    ]);
                }
            }
        }
    }
    table
}

/// A claim of the paper about Conquest against another file system.
struct Claim {
    part: Part,
    /// Index among the part's cases without fsync, or among all its cases if all have fsync.
    case: usize,
    phase: &'static str,
    against: &'static [Kind],
    /// Rate of Conquest as a multiple of the other's: least and greatest.
    ratio: (f64, f64),
}

impl Claim {
    /// Returns the case and the phase that a claim is about.
    fn case<'a>(&self, found: &'a Found) -> Option<(&'a Case, usize)> {
        let of_part = || found.of(self.part);
        let all_synced = of_part().all(|case| case.is_synced);
        let case = of_part().filter(|case| all_synced || !case.is_synced).nth(self.case)?;
        Some((case, case.phases.iter().position(|name| *name == self.phase)?))
    }
}

const RAM: &[Kind] = &[Kind::Ramfs, Kind::Tmpfs];
const DISK: &[Kind] = &[Kind::Ext];

const fn claim(part: Part, case: usize, phase: &'static str, against: &'static [Kind], from: f64, to: f64) -> Claim {
    Claim { part, case, phase, against, ratio: (from, to) }
}

/// Ratios in the paper's text; "5% overhead" is 0.95, "50% improvement" 1.5.
const CLAIMS: [Claim; 30] = [
    claim(Part::SmallFiles, 0, SMALL_PHASES[0], RAM, 0.95, 0.95),
    claim(Part::SmallFiles, 0, SMALL_PHASES[1], RAM, 1.15, 1.15),
    claim(Part::SmallFiles, 0, SMALL_PHASES[2], RAM, 0.87, 0.87),
    claim(Part::SmallFiles, 0, SMALL_PHASES[0], DISK, 1.5, 1.5),
    claim(Part::SmallFiles, 0, SMALL_PHASES[1], DISK, 1.19, 1.19),
    claim(Part::SmallFiles, 0, SMALL_PHASES[2], DISK, 1.5, 1.5),
    claim(Part::LargeFiles, 0, large::PHASES[0], RAM, 1.08, 1.08),
    claim(Part::LargeFiles, 0, large::PHASES[1], RAM, 1.15, 1.17),
    claim(Part::LargeFiles, 0, large::PHASES[2], RAM, 1.08, 1.08),
    claim(Part::LargeFiles, 0, large::PHASES[3], RAM, 1.15, 1.17),
    claim(Part::LargeFiles, 0, large::PHASES[0], DISK, 20.0, 20.0),
    claim(Part::LargeFiles, 0, large::PHASES[1], DISK, 1.15, 1.15),
    claim(Part::LargeFiles, 0, large::PHASES[2], DISK, 68.0, 68.0),
    claim(Part::LargeFiles, 0, large::PHASES[3], DISK, 1.18, 1.18),
    claim(Part::LargeFiles, 1, large::PHASES[0], DISK, 1.0, 1.0),
    claim(Part::LargeFiles, 2, large::PHASES[0], DISK, 1.08, 1.08),
    claim(Part::LargeFiles, 2, large::PHASES[2], DISK, 1.04, 1.04),
    claim(Part::Postmark, 0, POSTMARK_PHASES[0], DISK, 1.24, 1.24),
    claim(Part::Postmark, 5, POSTMARK_PHASES[0], DISK, 4.5, 4.5),
    claim(Part::Postmark, 1, POSTMARK_PHASES[0], RAM, 1.0, 1.0),
    claim(Part::Postmark, 1, POSTMARK_PHASES[1], RAM, 0.91, 0.91),
    claim(Part::Postmark, 1, POSTMARK_PHASES[2], RAM, 1.0, 1.0),
    claim(Part::Postmark, 1, POSTMARK_PHASES[1], DISK, 1.26, 1.26),
    // "29% to 310% faster" is of the whole curve.
    claim(Part::Mixed, 0, POSTMARK_PHASES[0], DISK, 1.29, 4.1),
    claim(Part::Mixed, 1, POSTMARK_PHASES[0], DISK, 1.29, 4.1),
    claim(Part::Mixed, 2, POSTMARK_PHASES[0], DISK, 1.29, 4.1),
    claim(Part::Mixed, 3, POSTMARK_PHASES[0], DISK, 1.29, 4.1),
    claim(Part::Mixed, 4, POSTMARK_PHASES[0], DISK, 1.29, 4.1),
    claim(Part::Mixed, 5, POSTMARK_PHASES[0], DISK, 1.29, 4.1),
    claim(Part::Mixed, 6, POSTMARK_PHASES[0], DISK, 1.75, 1.75),
];

/// A ratio is the paper's within this factor.
const NEAR: f64 = 1.1;
/// Why the engine may be faster, why it may be slower, and what lies between a program and a mounted store.
const ENGINE: &str = "Shoal's memory and index need no block and no page cache";
const SUMS: &str = "checksums of what is on the disk, which no file system of 2002 had";
const SEEKS: &str = "ext2 waited for seeks in 2002, and this disk has none";
const GROWTH: &str = "a file grows record by record, and its piece of memory is copied as it grows";
const FLUSHES: &str = "a file that outgrows memory was durable there, so its disk is flushed before memory lets it go; ext2 waits for nothing";
const FUSE: &str = "a request to a mounted store goes through FUSE and a daemon, Conquest was in the kernel";

impl Claim {
    fn figure(&self) -> &'static str {
        match self.part {
            Part::SmallFiles => "figure 5.1",
            Part::LargeFiles => "figure 5.2",
            Part::Postmark if self.phase == POSTMARK_PHASES[0] => "figure 5.3",
            Part::Postmark => "figure 5.4",
            Part::Mixed => "figure 5.6",
        }
    }

    fn verdict(&self, ours: Median, kind: Kind) -> Verdict {
        let (from, to) = self.ratio;
        let said = Said::range(from / NEAR, to * NEAR, Better::More);
        let why = match kind {
            _ if ours.value > to => ENGINE,
            Kind::Fuse => FUSE,
            _ if ours.value >= from / NEAR => "",
            _ => match (self.part, self.against == DISK) {
                (Part::Mixed, _) => FLUSHES,
                (Part::LargeFiles, true) if from < 2.0 => SUMS,
                (Part::LargeFiles, true) => SEEKS,
                (Part::LargeFiles, false) => GROWTH,
                _ => "",
            },
        };
        said.judge_spread(ours).because(why)
    }
}

fn comparison(found: &Found) -> Table {
    let mut claims = Comparison::new(
        Paper::Conquest,
        "Conquest against ramfs and ext2 in 2002, Shoal against ramfs (or tmpfs) and the first ext of the places today: rates as multiples of the other's",
    );
    for claim in &CLAIMS {
        let Some((case, phase)) = claim.case(found) else { continue };
        let Some((other, against)) = found.first(claim.against) else { continue };
        // The paper's figure is of a file system in the kernel. The engine is nearest to that; a mounted store counts where
        // the engine has no disk.
        let mut of = claim.figure();
        for (at, place) in found.shoals() {
            let Some(ours) = case.ratio(at, other, phase) else { continue };
            let what = format!("{}, {}: {} to {}", case.name, claim.phase, place.label, against.label);
            let (from, to) = claim.ratio;
            let paper = if from == to { Cell::Number(from, 2) } else { Cell::Text(format!("{from:.2} to {to:.2}")) };
            let verdict = claim.verdict(ours, place.kind);
            claims.push(std::mem::take(&mut of), what, paper, Cell::Number(ours.value, 2), "times", verdict);
        }
    }
    claims.into_table()
}

/// Returns the paper's ratios for cases of a part, each applied to our rate of the other file
/// system. `at` gives the x of a claim from its case and phase, if the plot shows it.
fn paper(found: &Found, part: Part, at: &dyn Fn(&Case, usize) -> Option<f64>) -> Vec<Series> {
    let mut series = vec![];
    for (kinds, name) in [(RAM, "ramfs"), (DISK, "ext2")] {
        let Some((other, against)) = found.first(kinds) else { continue };
        let points = CLAIMS.iter().filter(|claim| claim.part == part && claim.against == kinds).filter_map(|claim| {
            let (case, phase) = claim.case(found)?;
            let rate = case.rate(other, phase)?.value;
            Some((at(case, phase)?, [claim.ratio.0 * rate, claim.ratio.1 * rate]))
        });
        let points: Vec<(f64, [f64; 2])> = points.collect();
        let name = format!("Conquest to {name}, ratio applied to our {}", against.label);
        let ends = points.iter().flat_map(|(x, [low, high])| {
            let both = [Some((*x, *low)), (low < high).then_some((*x, *high))];
            both.into_iter().flatten()
        });
        series.push(Series::paper(&name, ends));
    }
    series.retain(|series| !series.points.is_empty());
    series
}

const BARS: &str = "median of the rounds; bars: 90% interval, or all rounds if fewer than five";

/// Plots the rate of a phase over the value that distinguishes the cases of a part.
fn over(found: &Found, part: Part, phase: usize, name: &str, title: &str, x: &str, y: &str) -> Option<Plot> {
    let cases = || found.of(part).filter(|case| !case.is_synced);
    let line = |(at, place): (usize, &Place)| {
        let points = cases().filter_map(|case| Some((case.x, case.rate(at, phase)?.bounds())));
        Series::spread(place.label.as_str(), points)
    };
    let mut series: Vec<Series> = found.places.iter().enumerate().map(line).collect();
    series.retain(|series| !series.points.is_empty());
    if series.is_empty() {
        return None;
    }
    series.extend(paper(found, part, &|case, of| (of == phase && !case.is_synced).then_some(case.x)));
    Some(Plot {
        name: name.into(),
        title: format!("{title}\n{BARS}"),
        x: x.into(),
        y: y.into(),
        series,
        style: Style { is_log_y: true, ..Style::default() },
    })
}

/// Plots the rates of a case in each of its phases.
fn phases(found: &Found, case: &Case, name: &str, title: String) -> Plot {
    let rates = found.places.iter().enumerate().filter_map(|(at, place)| {
        let rates = (0..case.phases.len()).map(|phase| Some((phase as f64, case.rate(at, phase)?.bounds())));
        Some(Series::spread(place.label.as_str(), rates.collect::<Option<Vec<_>>>()?))
    });
    let mut series: Vec<Series> = rates.collect();
    if !series.is_empty() {
        let is_case = |of: &Case| (&of.name, of.is_synced) == (&case.name, case.is_synced);
        series.extend(paper(found, case.part, &|of, phase| is_case(of).then_some(phase as f64)));
    }
    Plot {
        name: name.into(),
        title: format!("{title}\n{BARS}"),
        x: "phase".into(),
        y: format!("rate ({})", case.unit),
        series,
        style: Style {
            is_log_y: true,
            names: case.phases.iter().map(|phase| (*phase).into()).collect(),
            ..Style::default()
        },
    }
}

pub fn plots(found: &Found) -> Vec<Plot> {
    let mut plots = vec![];
    for case in found.of(Part::SmallFiles) {
        let name = if case.is_synced { "figure-5.1-fsync" } else { "figure-5.1" };
        let title = format!("Figure 5.1: {}{}", case.name, if case.is_synced { ", with fsync" } else { "" });
        plots.push(phases(found, case, name, title));
    }
    for (case, letter) in found.of(Part::LargeFiles).zip(["a", "b", "c"]) {
        plots.push(phases(
            found,
            case,
            &format!("figure-5.2{letter}"),
            format!("Figure 5.2{letter}: large files, {}", case.name),
        ));
    }
    let (files, rate) = ("files before the transactions", "rate (transactions/s)");
    plots.extend(over(found, Part::Postmark, 0, "figure-5.3", "Figure 5.3: PostMark", files, rate));
    let title = "Figure 5.4a: PostMark, creations alone";
    plots.extend(over(found, Part::Postmark, 1, "figure-5.4a", title, files, "rate (files created/s)"));
    let title = "Figure 5.4b: PostMark, creations among transactions";
    plots.extend(over(found, Part::Postmark, 2, "figure-5.4b", title, files, "rate (files created/s)"));
    let (title, x) = ("Figure 5.6: PostMark with large files", "share of large files (%)");
    plots.extend(over(found, Part::Mixed, 0, "figure-5.6", title, x, rate));
    plots.retain(|plot| !plot.series.is_empty());
    plots
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_above_the_papers_is_better_and_one_below_is_not_reached() {
        let claim = claim(Part::SmallFiles, 0, SMALL_PHASES[0], RAM, 1.0, 1.2);
        let of = |value: f64, kind| claim.verdict(Median { value, low: value - 0.05, high: value + 0.05 }, kind).text();
        assert_eq!([1.0, 1.1, 1.3].map(|value| of(value, Kind::Engine)), ["shown"; 3]);
        assert_eq!(of(2.0, Kind::Engine), format!("better: {ENGINE}"));
        assert_eq!(of(0.2, Kind::Fuse), format!("deviates: {FUSE}"));
    }
}
