//! The report's claims beside the results of the runs.
//!
//! Owns: the conditions under which a claim counts as shown. Rules: a verdict is the outcome of a
//! comparison stated beside it. "Near" is outside the text's range and within the margin given
//! here. A figure that the text does not give has no verdict. Times are simulated.

use super::build;
use super::figures::{histogram, least_ms, number};
use super::layout::DiskModel;
use super::points::{Config, Crossing, Far, Found, Measured, MeasuredFar};
use crate::report::{Cell, Comparison, Table};

const PU_DELAYED: Config = Config { is_delayed: true, is_interval: false };
const AIPU_DELAYED: Config = Config { is_delayed: true, is_interval: true };
const PU_ASYNCHRONOUS: Config = Config { is_delayed: false, is_interval: false };

fn shown(holds: bool) -> &'static str {
    if holds { "shown" } else { "not shown" }
}

/// Compares a figure with the report's range. `near` is the margin that still counts as near.
fn from_to(ours: f64, least: f64, most: f64, near: f64) -> &'static str {
    match ours {
        _ if (least..=most).contains(&ours) => "shown",
        _ if (least - near..=most + near).contains(&ours) => "near",
        _ => "not shown",
    }
}

/// Compares a figure with the report's: "shown" within 10%, "near" within 20%.
fn about(ours: f64, paper: f64) -> &'static str {
    from_to(ours, paper * 0.9, paper * 1.1, paper * 0.1)
}

impl Found {
    pub(super) fn of(&self, disk: DiskModel, config: Config) -> Option<&Measured> {
        self.measured.iter().find(|measured| measured.disk == disk && measured.config == config)
    }
}

/// Returns AIPU's worst read under a burst (ms).
pub fn aipu_worst_ms(found: &Found, disk: DiskModel) -> Option<f64> {
    found.bursts.iter().find(|burst| burst.disk == disk && burst.name == "AIPU").map(|burst| burst.all.worst_ms)
}

/// Adds claims about the remote disk.
fn far_claims(found: &Found, claims: &mut Comparison) {
    let of = |config, has_memory, in_order| {
        found.far.iter().find(|measured| measured.far == Far { config, has_memory, in_order })
    };
    let percent = |a: f64, b: f64| (a / b - 1.0) * 100.0;
    let memory = |has_memory| if has_memory { "with memory" } else { "without memory" };
    // The report speaks of trials, so take the spread of their means.
    let spread = |measured: &MeasuredFar| {
        let means = || measured.trials.iter().map(|trial| trial.mean_ms);
        means().fold(0.0, f64::max) - means().fold(f64::INFINITY, f64::min)
    };
    for has_memory in [false, true] {
        let at = |config, in_order| of(config, has_memory, in_order);
        if let (Some(pu), Some(aipu)) = (at(PU_DELAYED, false), at(AIPU_DELAYED, false)) {
            let ours = percent(pu.all.mean_ms, aipu.all.mean_ms);
            let figure = format!("remote random reads, mean of delayed PU over AIPU's, {}", memory(has_memory));
            let verdict = if ours.abs() < 5.0 { "about equal" } else { shown(ours > 0.0) };
            claims.push(figure, "slightly more, not conclusive".into(), number(ours, 1), "%", verdict);
        }
        if let (Some(pu), Some(aipu)) = (at(PU_DELAYED, true), at(AIPU_DELAYED, true)) {
            let ours = percent(aipu.all.mean_ms, pu.all.mean_ms);
            let (paper, holds) =
                if has_memory { ("slightly less", ours < 0.0) } else { ("slightly more", (0.0..10.0).contains(&ours)) };
            let figure = format!("remote sequential reads, mean of AIPU over PU's, {}", memory(has_memory));
            claims.push(figure, paper.into(), number(ours, 1), "%", shown(holds));
            let figure =
                format!("remote sequential reads, spread of the trials' means, AIPU's of PU's, {}", memory(has_memory));
            let ours = spread(aipu) / spread(pu);
            claims.push(figure, "less".into(), number(ours, 2), "times", shown(ours < 1.0));
        }
    }
    for config in [PU_ASYNCHRONOUS, PU_DELAYED, AIPU_DELAYED] {
        if let (Some(without), Some(with)) = (of(config, false, false), of(config, true, false)) {
            let ours = percent(with.all.mean_ms, without.all.mean_ms);
            let figure = format!("remote random reads, mean with memory over that without, {}", config.name());
            let verdict = if ours.abs() < 0.5 { "about equal" } else { shown(ours < 0.0) };
            claims.push(figure, "generally less".into(), number(ours, 1), "%", verdict);
        }
    }
}

/// Adds claims about mean responses of independent reads.
fn crossing_claims(crossings: &[Crossing], claims: &mut Comparison) {
    for crossing in crossings {
        let loads = format!("read load {}%, write load {}%", crossing.read_percent, crossing.write_percent);
        let at = crossing.at_percent();
        let (paper, verdict) = if crossing.read_percent + crossing.write_percent < 100 {
            ("80-90", from_to(at.unwrap_or(100.0), 80.0, 90.0, 5.0))
        } else {
            ("less, WT saturates", shown(at.is_some_and(|percent| percent < 80.0)))
        };
        let ours = at.map_or("above all measured".into(), |percent| number(percent, 0));
        claims.push(format!("PU pays off against WT: {loads}"), paper.into(), ours, "% write hits", verdict);
    }
    let points = || crossings.iter().flat_map(|of| of.by_hits.iter().map(|point| (of.through_ms, point.mean_ms)));
    for (index, name, paper) in [(1, "IPU", "never"), (2, "AIPU", "")] {
        let worse = points().filter(|(through_ms, ms)| ms[index] > ms[0].min(*through_ms) * 1.02).count();
        claims.push(
            format!("mean of {name} above the better of WT and PU by more than 2%, points of {}", points().count()),
            paper.into(),
            (worse as u64).into(),
            "points",
            if paper.is_empty() { "" } else { shown(worse == 0) },
        );
    }
}

/// Adds claims about the responses of reads on one disk.
fn disk_claims(found: &Found, disk: DiskModel, claims: &mut Comparison) {
    let all = [PU_ASYNCHRONOUS, PU_DELAYED, AIPU_DELAYED].map(|config| found.of(disk, config));
    let [Some(asynchronous), Some(pu), Some(aipu)] = all else { return };
    let of = |claim: &str| format!("{claim}, {}", disk.name());
    let s = pu.all.worst_ms / 1000.0;
    // The seconds in the text are those of 600 blocks on the faster system.
    let (paper, verdict) =
        if disk == DiskModel::Rz58 { ("8-9".into(), from_to(s, 8.0, 9.0, 1.0)) } else { (Cell::Empty, "") };
    claims.push(of("worst read of delayed PU"), paper, number(s, 2), "s", verdict);
    let ratio = pu.all.deviation_ms / aipu.all.deviation_ms;
    claims.push(
        of("deviation of delayed PU over AIPU's"),
        "tremendous".into(),
        number(ratio, 1),
        "times",
        shown(ratio > 3.0),
    );
    let percent = (aipu.all.mean_ms / pu.all.mean_ms - 1.0) * 100.0;
    claims.push(
        of("mean of delayed AIPU over PU's"),
        "not markedly more".into(),
        number(percent, 1),
        "%",
        shown(percent < 10.0),
    );
    let percent = (1.0 - pu.all.mean_ms / asynchronous.all.mean_ms) * 100.0;
    claims.push(
        of("mean of delayed below asynchronous writes, PU"),
        "somewhat".into(),
        number(percent, 1),
        "%",
        shown(percent > 0.0),
    );
    let s = asynchronous.all.worst_ms / 1000.0;
    claims.push(of("worst read of asynchronous PU"), "5-6".into(), number(s, 2), "s", from_to(s, 5.0, 6.0, 1.0));
    if let Some(aipu_ms) = aipu_worst_ms(found, disk) {
        for burst in found.bursts.iter().filter(|burst| burst.disk == disk) {
            if ["PURP", "interval with read priority", "AIPU, shaped"].contains(&burst.name.as_str()) {
                let times = aipu_ms / burst.all.worst_ms;
                let figure = of(&format!("cache dirtied at once: AIPU's worst read over that of {}", burst.name));
                claims.push(
                    figure,
                    "not tried; at least 5 asked for".into(),
                    number(times, 1),
                    "times",
                    shown(times >= 5.0),
                );
            }
        }
    }
}

pub fn comparison(found: &Found) -> Table {
    let mut claims = Comparison::new("The report beside ours (simulated time)");
    if let (Some(asynchronous), Some(pu), Some(aipu)) = (
        found.of(DiskModel::Rz58, PU_ASYNCHRONOUS),
        found.of(DiskModel::Rz58, PU_DELAYED),
        found.of(DiskModel::Rz58, AIPU_DELAYED),
    ) {
        let rate = asynchronous.all.reads_per_s;
        claims.push("reads, asynchronous writes, RZ58", number(32.0, 0), number(rate, 1), "1/s", about(rate, 32.0));
        let rate = pu.all.reads_per_s;
        claims.push("reads, delayed writes, RZ58", number(38.0, 0), number(rate, 1), "1/s", about(rate, 38.0));
        let ms = aipu.all.write_ms;
        claims.push("mean write in AIPU's bursts, RZ58", number(15.0, 0), number(ms, 1), "ms", about(ms, 15.0));
        // The reads that waited for a burst: the largest bucket above those that did not wait.
        let waited = histogram(&aipu.all.responses_us).into_iter().filter(|(bucket, _)| least_ms(*bucket) > 100.0);
        if let Some((bucket, _)) = waited.max_by_key(|(_, count)| *count) {
            let (from, to) = (least_ms(bucket), least_ms(bucket + 1));
            let verdict = if (from..to).contains(&300.0) { "shown" } else { about((from * to).sqrt(), 300.0) };
            let ours = Cell::Text(format!("{from:.0}-{to:.0}"));
            claims.push("small peak of delayed AIPU, RZ58", number(300.0, 0), ours, "ms", verdict);
        }
        let ms = aipu.all.worst_ms;
        claims.push("worst read of delayed AIPU, RZ58", number(746.0, 0), number(ms, 0), "ms", shown(ms < 800.0));
        let above = aipu.all.above(450.0);
        let few = above * 60_000 <= aipu.all.reads;
        claims.push("delayed AIPU, reads above 450 ms", "1 of 60000".into(), above.into(), "reads", shown(few));
    }
    for disk in [DiskModel::Rz58, DiskModel::Rz57] {
        disk_claims(found, disk, &mut claims);
    }
    far_claims(found, &mut claims);
    crossing_claims(&found.crossings, &mut claims);
    build::claims(&found.replayed, &mut claims);
    claims.into_table()
}
