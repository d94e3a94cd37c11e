//! The report's claims beside the results of the runs.
//!
//! Owns: the conditions under which a claim counts as shown. Rules: a figure that the text does not
//! give has no verdict. Times are simulated.

use super::figures::{histogram, least_ms, number};
use super::layout::{BLOCK_BYTES, DiskModel};
use super::points::{Config, Crossing, Drain, Far, Found, Measured, MeasuredFar};
use super::{build, open};
use crate::exhibits::Paper;
use crate::median::Median;
use crate::report::{Better, Cell, Comparison, Said, Table, Verdict};

const PU_DELAYED: Config = Config { is_delayed: true, is_interval: false };
const AIPU_DELAYED: Config = Config { is_delayed: true, is_interval: true };
const PU_ASYNCHRONOUS: Config = Config { is_delayed: false, is_interval: false };

/// A figure of the report is ours within this factor.
const NEAR: f64 = 1.2;

fn about(paper: f64, better: Better) -> Said {
    Said::about(paper, NEAR, better)
}

/// Returns the figures of means and deviations and of the histogram of a disk.
fn figures(disk: DiskModel) -> (&'static str, &'static str) {
    if disk == DiskModel::Rz58 { ("figure 1", "figure 3") } else { ("figure 2", "figure 4") }
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
            let verdict = Said::range(-5.0, 20.0, Better::Neither).judge(ours);
            claims.push("figure 5", figure, "slightly more, not conclusive".into(), number(ours, 1), "%", verdict);
        }
        if let (Some(pu), Some(aipu)) = (at(PU_DELAYED, true), at(AIPU_DELAYED, true)) {
            let ours = percent(aipu.all.mean_ms, pu.all.mean_ms);
            let (paper, said) = match has_memory {
                true => ("slightly less", Said::range(-10.0, 0.0, Better::Less)),
                false => ("slightly more", Said::range(0.0, 10.0, Better::Less)),
            };
            let figure = format!("remote sequential reads, mean of AIPU over PU's, {}", memory(has_memory));
            claims.push("figure 6", figure, paper.into(), number(ours, 1), "%", said.judge(ours));
            let figure =
                format!("remote sequential reads, spread of the trials' means, AIPU's of PU's, {}", memory(has_memory));
            let ours = spread(aipu) / spread(pu);
            claims.push("figure 6", figure, "less".into(), number(ours, 2), "times", Verdict::shown_if(ours < 1.0));
        }
    }
    for config in [PU_ASYNCHRONOUS, PU_DELAYED, AIPU_DELAYED] {
        if let (Some(without), Some(with)) = (of(config, false, false), of(config, true, false)) {
            let ours = percent(with.all.mean_ms, without.all.mean_ms);
            let figure = format!("remote random reads, mean with memory over that without, {}", config.name());
            claims.push(
                "figure 5",
                figure,
                "generally less".into(),
                number(ours, 1),
                "%",
                Said::at_most(0.5).judge(ours),
            );
        }
    }
}

/// Adds claims about mean responses of independent reads.
fn crossing_claims(crossings: &[Crossing], claims: &mut Comparison) {
    for crossing in crossings {
        let loads = format!("read load {}%, write load {}%", crossing.read_percent, crossing.write_percent);
        let at = crossing.at_percent();
        let (paper, verdict) = if crossing.read_percent + crossing.write_percent < 100 {
            ("80-90", Said::range(80.0, 90.0, Better::Less).within(5.0).judge(at.unwrap_or(100.0)))
        } else {
            ("less, WT saturates", Verdict::shown_if(at.is_some_and(|percent| percent < 80.0)))
        };
        let ours = at.map_or("above all measured".into(), |percent| number(percent, 0));
        // Carson and Setia's result, which the report quotes.
        claims.push("", format!("PU pays off against WT: {loads}"), paper.into(), ours, "% write hits", verdict);
    }
    let points = || crossings.iter().flat_map(|of| of.by_hits.iter().map(|point| (of.through_ms, point.mean_ms)));
    for (index, name, paper) in [(1, "IPU", "never"), (2, "AIPU", "")] {
        let worse = points().filter(|(through_ms, ms)| ms[index] > ms[0].min(*through_ms) * 1.02).count();
        claims.push(
            "",
            format!("mean of {name} above the better of WT and PU by more than 2%, points of {}", points().count()),
            paper.into(),
            (worse as u64).into(),
            "points",
            if paper.is_empty() { Verdict::Unjudged } else { Verdict::shown_if(worse == 0) },
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
    let (paper, verdict) = match disk {
        DiskModel::Rz58 => ("8-9".into(), Said::range(8.0, 9.0, Better::Less).within(1.0).judge(s)),
        DiskModel::Rz57 => (Cell::Empty, Verdict::Unjudged),
    };
    let (spread, responses) = figures(disk);
    claims.push(responses, of("worst read of delayed PU"), paper, number(s, 2), "s", verdict);
    let ratio = pu.all.deviation_ms / aipu.all.deviation_ms;
    claims.push(
        spread,
        of("deviation of delayed PU over AIPU's"),
        "tremendous".into(),
        number(ratio, 1),
        "times",
        Verdict::shown_if(ratio > 3.0),
    );
    let percent = (aipu.all.mean_ms / pu.all.mean_ms - 1.0) * 100.0;
    claims.push(
        spread,
        of("mean of delayed AIPU over PU's"),
        "not markedly more".into(),
        number(percent, 1),
        "%",
        Verdict::shown_if(percent < 10.0),
    );
    let percent = (1.0 - pu.all.mean_ms / asynchronous.all.mean_ms) * 100.0;
    claims.push(
        spread,
        of("mean of delayed below asynchronous writes, PU"),
        "somewhat".into(),
        number(percent, 1),
        "%",
        Verdict::shown_if(percent > 0.0),
    );
    let s = asynchronous.all.worst_ms / 1000.0;
    let verdict = Said::range(5.0, 6.0, Better::Neither).within(1.0).judge(s);
    claims.push(responses, of("worst read of asynchronous PU"), "5-6".into(), number(s, 2), "s", verdict);
    if let Some(aipu_ms) = aipu_worst_ms(found, disk) {
        for burst in found.bursts.iter().filter(|burst| burst.disk == disk) {
            if ["PURP", "interval with read priority", "AIPU, shaped"].contains(&burst.name.as_str()) {
                let times = aipu_ms / burst.all.worst_ms;
                let figure = of(&format!("cache dirtied at once: AIPU's worst read over that of {}", burst.name));
                claims.push(
                    "",
                    figure,
                    "not tried; at least 5 asked for".into(),
                    number(times, 1),
                    "times",
                    Verdict::shown_if(times >= 5.0),
                );
            }
        }
    }
}

/// Adds claims about the time to write a whole cache: each buffer takes an access (table 1), or all
/// go at the disk's bandwidth (table 2).
fn drain_claims(drains: &[Drain], claims: &mut Comparison) {
    for drain in drains {
        let disk = drain.disk;
        let of = |order: &str| format!("whole cache written {order}, {}", disk.name());
        let said = disk.buffers() as f64 * disk.access_ms() / 1000.0;
        let verdict = about(said, Better::Less).judge(drain.anywhere_s);
        claims.push("table 1", of("at random"), number(said, 1), number(drain.anywhere_s, 1), "s", verdict);
        let mb = (disk.buffers() * BLOCK_BYTES) as f64 / 1e6;
        let (slow, fast) = disk.bandwidth();
        let paper =
            if slow < fast { format!("{:.1}-{:.1}", mb / fast, mb / slow) } else { format!("{:.1}", mb / fast) };
        let verdict = Said::range(mb / fast / NEAR, mb / slow * NEAR, Better::Less).judge(drain.in_a_row_s);
        claims.push("table 2", of("in order"), Cell::Text(paper), number(drain.in_a_row_s, 1), "s", verdict);
    }
}

pub fn comparison(found: &Found) -> Table {
    let mut claims = Comparison::new(Paper::UpdatePolicy, "The report beside ours (simulated time)");
    if let (Some(asynchronous), Some(pu), Some(aipu)) = (
        found.of(DiskModel::Rz58, PU_ASYNCHRONOUS),
        found.of(DiskModel::Rz58, PU_DELAYED),
        found.of(DiskModel::Rz58, AIPU_DELAYED),
    ) {
        let rate = asynchronous.all.reads_per_s;
        let verdict = about(32.0, Better::More).judge(rate);
        claims.push("figure 1", "reads, asynchronous writes, RZ58", number(32.0, 0), number(rate, 1), "1/s", verdict);
        let rate = pu.all.reads_per_s;
        let verdict = about(38.0, Better::More).judge(rate);
        claims.push("figure 1", "reads, delayed writes, RZ58", number(38.0, 0), number(rate, 1), "1/s", verdict);
        let ms = aipu.all.write_ms;
        let verdict = about(15.0, Better::Less).judge(ms);
        claims.push("figure 3", "mean write in AIPU's bursts, RZ58", number(15.0, 0), number(ms, 1), "ms", verdict);
        // The reads that waited for a burst: the largest bucket above those that did not wait.
        let waited = histogram(&aipu.all.responses_us).into_iter().filter(|(bucket, _)| least_ms(*bucket) > 100.0);
        if let Some((bucket, _)) = waited.max_by_key(|(_, count)| *count) {
            let (from, to) = (least_ms(bucket), least_ms(bucket + 1));
            let verdict =
                about(300.0, Better::Neither).judge_spread(Median { value: (from * to).sqrt(), low: from, high: to });
            let ours = Cell::Text(format!("{from:.0}-{to:.0}"));
            claims.push("figure 3", "small peak of delayed AIPU, RZ58", number(300.0, 0), ours, "ms", verdict);
        }
        let ms = aipu.all.worst_ms;
        let verdict = about(746.0, Better::Less).judge(ms).because("the model has no other work than reads and writes");
        claims.push("figure 3", "worst read of delayed AIPU, RZ58", number(746.0, 0), number(ms, 0), "ms", verdict);
        let above = aipu.all.above(450.0);
        let few = above * 60_000 <= aipu.all.reads;
        let verdict = Verdict::shown_if(few);
        claims.push(
            "figure 3",
            "delayed AIPU, reads above 450 ms",
            "1 of 60000".into(),
            above.into(),
            "reads",
            verdict,
        );
    }
    for disk in [DiskModel::Rz58, DiskModel::Rz57] {
        disk_claims(found, disk, &mut claims);
    }
    far_claims(found, &mut claims);
    drain_claims(&found.drains, &mut claims);
    crossing_claims(&found.crossings, &mut claims);
    open::claims(&found.answers, &mut claims);
    build::claims(&found.replayed, &mut claims);
    claims.into_table()
}
