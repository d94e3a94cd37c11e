//! Tables 4 and 5 and figure 7 from the replayed build, and the report's claims about them.
//!
//! Owns: the margins within which ours is the report's figure, and the causes of deviations. Rules:
//! the two builds differ in size, so counts are compared as shares of each other; bursts are
//! compared in blocks, because both builds write as often. Processor time is counts at a cost each.

use super::{Replayed, Variant, find};
use crate::report::{Better, Cell, Comparison, Plot, Said, Series, Style, Table};

/// Cost of writing a block (s): the report's footnote 3.
const WRITTEN_S: f64 = 0.36e-3;
/// Cost of looking at a block (s): some 20 instructions, of our choice.
const SCANNED_S: f64 = 1e-6;

impl Replayed {
    fn elapsed_s(&self) -> f64 {
        self.mean(|outcome| outcome.elapsed_s)
    }

    fn charged(&self) -> u64 {
        self.count(|outcome| outcome.charged)
    }

    fn written(&self) -> u64 {
        self.count(|outcome| outcome.chosen)
    }

    fn scanned(&self) -> u64 {
        self.count(|outcome| outcome.counts.listed)
    }

    /// Returns the processor time of the updates (s).
    fn update_s(&self) -> f64 {
        self.written() as f64 * WRITTEN_S + self.scanned() as f64 * SCANNED_S
    }

    fn idle_percent(&self) -> f64 {
        (1.0 - self.mean(|outcome| outcome.processor_s) / self.elapsed_s()) * 100.0
    }

    fn largest_burst(&self) -> u64 {
        self.bursts().last().copied().unwrap_or(0)
    }

    fn writes(&self) -> &'static str {
        if self.is_delayed { "delayed" } else { "asynchronous" }
    }
}

fn number(value: f64, decimals: usize) -> Cell {
    Cell::Number(value, decimals)
}

fn seconds(value: Option<f64>, decimals: usize) -> Cell {
    value.map_or(Cell::Empty, |value| number(value, decimals))
}

fn count(value: Option<u64>) -> Cell {
    value.map_or(Cell::Empty, Cell::Count)
}

fn table_4(replayed: &[Replayed]) -> Table {
    let columns = [
        "policy",
        "writes",
        "elapsed s, paper",
        "ours",
        "of the first, paper",
        "ours ",
        "idle %",
        "charged, paper",
        "ours  ",
        "of the first, paper ",
        "ours   ",
        "synchronous",
        "filled",
        "cache full",
        "by the policy",
    ];
    let title = "Table 4: elapsed time and writes of a recorded build, means of the trials (simulated time)";
    let mut table = Table::new("table-4", title, &columns);
    let Some(first) = replayed.first() else { return table };
    let of = |ours: Option<f64>, first: Option<f64>| match (ours, first) {
        (Some(ours), Some(first)) => number(ours / first, 3),
        _ => Cell::Empty,
    };
    let real = |count: Option<u64>| count.map(|count| count as f64);
    for found in replayed.iter().filter(|found| found.variant == Variant::Bsd) {
        table.push(vec![
            found.name.into(),
            found.writes().into(),
            seconds(found.said.elapsed_s, 0),
            number(found.elapsed_s(), 0),
            of(found.said.elapsed_s, first.said.elapsed_s),
            number(found.elapsed_s() / first.elapsed_s(), 3),
            number(found.idle_percent(), 1),
            count(found.said.charged),
            found.charged().into(),
            of(real(found.said.charged), real(first.said.charged)),
            number(found.charged() as f64 / first.charged() as f64, 3),
            found.count(|outcome| outcome.synchronous).into(),
            found.count(|outcome| outcome.filled).into(),
            found.count(|outcome| outcome.evicted).into(),
            found.written().into(),
        ]);
    }
    table
}

fn table_5(replayed: &[Replayed]) -> Table {
    let columns = [
        "policy",
        "writes",
        "processor s, paper",
        "ours",
        "scanned, paper",
        "ours ",
        "examined here",
        "written, paper",
        "ours  ",
        "modified while dirty, paper",
        "ours   ",
        "waits, paper",
        "ours    ",
    ];
    let title = format!(
        "Table 5: updates of the same build; processor time: {:.2} ms a block written and {} us a block scanned (simulated time)",
        WRITTEN_S * 1e3,
        SCANNED_S * 1e6
    );
    let mut table = Table::new("table-5", title, &columns);
    for found in replayed.iter().filter(|found| found.variant == Variant::Bsd) {
        table.push(vec![
            found.name.into(),
            found.writes().into(),
            seconds(found.said.processor_s, 1),
            number(found.update_s(), 2),
            count(found.said.scanned),
            found.scanned().into(),
            found.count(|outcome| outcome.counts.examined).into(),
            count(found.said.written),
            found.written().into(),
            count(found.said.modified),
            found.count(|outcome| outcome.modified).into(),
            count(found.said.waits),
            found.count(|outcome| outcome.waits).into(),
        ]);
    }
    table
}

/// Each variant: what the property that it changes does to the figures that deviate.
fn variants(replayed: &[Replayed]) -> Table {
    let columns = [
        "build and machine",
        "elapsed, AIPU delayed of PU asynchronous",
        "charged, PU delayed of asynchronous",
        "charged, AIPU of PU, delayed",
        "written, AIPU of PU, asynchronous",
        "written, AIPU of PU, delayed",
        "waits, AIPU of PU, delayed",
        "idle %",
        "95% of AIPU's blocks in bursts up to",
        "AIPU's largest",
        "half of PU's blocks in bursts from",
        "PU's largest",
    ];
    let title = "The same build when a property is changed (simulated time)";
    let mut table = Table::new("build-variants", title, &columns);
    let ratio = |ours: f64, than: f64| number(ours / than, 3);
    table.push(vec![
        "the report's".into(),
        ratio(3206.0, 3280.0),
        ratio(31523.0, 40548.0),
        ratio(25966.0, 31523.0),
        ratio(5375.0, 9531.0),
        ratio(10023.0, 16749.0),
        ratio(8121.0, 8274.0),
        "12-14".into(),
        40u64.into(),
        104u64.into(),
        182u64.into(),
        344u64.into(),
    ]);
    for variant in Variant::ALL {
        let of = |name, is_delayed| find(replayed, variant, name, is_delayed);
        let all = [of("PU", false), of("PU", true), of("AIPU-1", false), of("AIPU-1", true)];
        let [Some(asynchronous), Some(pu), Some(aipu_asynchronous), Some(aipu)] = all else { continue };
        let counts =
            |of: fn(&Replayed) -> u64, ours: &Replayed, than: &Replayed| ratio(of(ours) as f64, of(than) as f64);
        table.push(vec![
            variant.name().into(),
            ratio(aipu.elapsed_s(), asynchronous.elapsed_s()),
            counts(Replayed::charged, pu, asynchronous),
            counts(Replayed::charged, aipu, pu),
            counts(Replayed::written, aipu_asynchronous, asynchronous),
            counts(Replayed::written, aipu, pu),
            counts(|found| found.count(|outcome| outcome.waits), aipu, pu),
            number(asynchronous.idle_percent(), 1),
            aipu.burst_of_share(0.95).into(),
            aipu.largest_burst().into(),
            pu.burst_of_share(0.5).into(),
            pu.largest_burst().into(),
        ]);
    }
    table
}

pub fn tables(replayed: &[Replayed]) -> Vec<Table> {
    vec![table_4(replayed), table_5(replayed), variants(replayed)]
}

/// Causes of deviations, most with the row of the table of variants that shows them.
const METADATA: &str =
    "44% of the writes are synchronous metadata, which no policy saves (build-variants: no metadata is synchronous)";
const ARCHIVES: &str =
    "archives and a program, 54% of the data, are written within seconds (build-variants: no file over 256 KB)";
const BOTH: &str = "archives are written within seconds, and updates write half as often, because 44% of the writes are \
                    synchronous metadata (build-variants: and twice as fast)";
const YOUNG: &str =
    "few blocks are modified again 15 to 30 s after the first time; no property of the model changes it";
const FEW: &str = "asynchronous writes leave little to updates: few blocks stay partly filled";
const READS: &str = "reads wait behind PU's bursts, and what a cache of 10 MB must read again is not recorded";
const COST: &str = "the report's own counts at 0.36 ms a block give 0.60: its cost of a block is not constant";

/// The five configurations that claims are about.
struct Five<'a> {
    pu_asynchronous: &'a Replayed,
    pu: &'a Replayed,
    aipu_asynchronous: &'a Replayed,
    aipu: &'a Replayed,
    aipu_30: &'a Replayed,
}

/// Adds a claim about a figure of one configuration over that of another.
fn ratio(claims: &mut Comparison, exhibit: &str, figure: &str, said: (f64, f64), ours: f64, why: &str) {
    let (paper, margin) = said;
    let better = if figure.starts_with("scanned") { Better::Neither } else { Better::Less };
    let verdict = Said::about(paper, margin, better).judge(ours).because(why);
    claims.push(exhibit, format!("build: {figure}"), number(paper, 3), number(ours, 3), "times", verdict);
}

fn share(of: fn(&Replayed) -> u64, ours: &Replayed, than: &Replayed) -> f64 {
    of(ours) as f64 / of(than) as f64
}

fn claims_4(of: &Five<'_>, claims: &mut Comparison) {
    for (figure, paper, ours, than) in [
        ("elapsed, AIPU of PU, asynchronous", 3234.0 / 3280.0, of.aipu_asynchronous, of.pu_asynchronous),
        ("elapsed, AIPU of PU, delayed", 3206.0 / 3298.0, of.aipu, of.pu),
        ("elapsed, AIPU delayed of PU asynchronous", 3206.0 / 3280.0, of.aipu, of.pu_asynchronous),
        ("elapsed, delayed of asynchronous, PU", 3298.0 / 3280.0, of.pu, of.pu_asynchronous),
    ] {
        ratio(claims, "table 4", figure, (paper, 1.01), ours.elapsed_s() / than.elapsed_s(), READS);
    }
    let idle = of.pu_asynchronous.idle_percent();
    let verdict = Said::range(12.0, 14.0, Better::Neither).within(2.0).judge(idle).because(ARCHIVES);
    claims.push("table 4", "build: processor idle, PU, asynchronous", "12-14".into(), number(idle, 1), "%", verdict);
    for (figure, paper, ours, than, why) in [
        ("AIPU of PU, asynchronous", 37854.0 / 40548.0, of.aipu_asynchronous, of.pu_asynchronous, YOUNG),
        ("delayed of asynchronous, PU", 31523.0 / 40548.0, of.pu, of.pu_asynchronous, METADATA),
        ("AIPU of PU, delayed", 25966.0 / 31523.0, of.aipu, of.pu, YOUNG),
    ] {
        let ours = share(Replayed::charged, ours, than);
        ratio(claims, "table 4", &format!("writes charged, {figure}"), (paper, 1.1), ours, why);
    }
}

fn claims_5(of: &Five<'_>, claims: &mut Comparison) {
    for (figure, paper, ours, than, why) in [
        ("AIPU-1 of PU, asynchronous", 2.0 / 4.3, of.aipu_asynchronous, of.pu_asynchronous, YOUNG),
        ("AIPU-1 of PU, delayed", 2.3 / 6.0, of.aipu, of.pu, COST),
        ("AIPU-30 of PU, delayed", 2.7 / 6.0, of.aipu_30, of.pu, COST),
        ("delayed of asynchronous, PU", 6.0 / 4.3, of.pu, of.pu_asynchronous, FEW),
    ] {
        let figure = format!("processor time of updates, {figure}");
        ratio(claims, "table 5", &figure, (paper, 1.25), ours.update_s() / than.update_s(), why);
    }
    let (asynchronous, delayed) = ((of.aipu_asynchronous, of.pu_asynchronous), (of.aipu, of.pu));
    for (figure, paper, (ours, than)) in [
        ("scanned, AIPU-1 of PU, asynchronous", 290_214.0 / 9531.0, asynchronous),
        ("scanned, AIPU-1 of PU, delayed", 508_448.0 / 16749.0, delayed),
    ] {
        ratio(claims, "table 5", figure, (paper, 1.25), share(Replayed::scanned, ours, than), "");
    }
    for (figure, paper, (ours, than)) in [
        ("written by updates, AIPU-1 of PU, asynchronous", 5375.0 / 9531.0, asynchronous),
        ("written by updates, AIPU-1 of PU, delayed", 10023.0 / 16749.0, delayed),
    ] {
        ratio(claims, "table 5", figure, (paper, 1.25), share(Replayed::written, ours, than), YOUNG);
    }
    let modified = share(|found| found.count(|outcome| outcome.modified), of.aipu, of.pu);
    ratio(claims, "table 5", "modified while dirty, AIPU-1 of PU, delayed", (426.0 / 419.0, 1.02), modified, YOUNG);
    for (figure, paper, (ours, than), why) in [
        ("waits for the disk, AIPU-1 of PU, asynchronous", 7607.0 / 8234.0, asynchronous, METADATA),
        ("waits for the disk, AIPU-1 of PU, delayed", 8121.0 / 8274.0, delayed, ARCHIVES),
    ] {
        let ours = share(|found| found.count(|outcome| outcome.waits), ours, than);
        ratio(claims, "table 5", figure, (paper, 1.05), ours, why);
    }
}

fn claims_7(of: &Five<'_>, claims: &mut Comparison) {
    for (figure, paper, ours, why) in [
        ("95% of AIPU-1's blocks in bursts up to", 40u32, of.aipu.burst_of_share(0.95), BOTH),
        ("AIPU-1's largest burst", 104, of.aipu.largest_burst(), BOTH),
        ("50% of PU's blocks in bursts above", 182, of.pu.burst_of_share(0.5), BOTH),
        ("PU's largest burst", 344, of.pu.largest_burst(), ARCHIVES),
    ] {
        let verdict = Said::about(f64::from(paper), 2.0, Better::Neither).judge(ours as f64).because(why);
        let figure = format!("build: {figure}");
        claims.push("figure 7", figure, Cell::Count(paper.into()), Cell::Count(ours), "blocks", verdict);
    }
    let times = of.pu.burst_of_share(0.5) as f64 / of.aipu.burst_of_share(0.95) as f64;
    let verdict = Said::about(182.0 / 40.0, 1.25, Better::More).judge(times).because(ARCHIVES);
    let figure = "build: the burst that half of PU's blocks exceed, over the one that 5% of AIPU-1's do";
    claims.push("figure 7", figure, number(182.0 / 40.0, 1), number(times, 1), "times", verdict);
}

/// Adds the report's claims about its build.
pub fn claims(replayed: &[Replayed], claims: &mut Comparison) {
    let of = |name, is_delayed| find(replayed, Variant::Bsd, name, is_delayed);
    let all = [of("PU", false), of("PU", true), of("AIPU-1", false), of("AIPU-1", true), of("AIPU-30", true)];
    let [Some(pu_asynchronous), Some(pu), Some(aipu_asynchronous), Some(aipu), Some(aipu_30)] = all else { return };
    let five = Five { pu_asynchronous, pu, aipu_asynchronous, aipu, aipu_30 };
    claims_4(&five, claims);
    claims_5(&five, claims);
    claims_7(&five, claims);
}

pub fn plot(replayed: &[Replayed]) -> Plot {
    let ours = replayed.iter().filter(|found| found.variant == Variant::Bsd && found.is_delayed);
    let series = ours.map(|found| {
        let bursts = found.bursts();
        let all: u64 = bursts.iter().sum();
        let mut points: Vec<(f64, f64)> = vec![];
        let mut blocks = 0;
        for size in bursts {
            blocks += size;
            let point = (size as f64, blocks as f64 / all.max(1) as f64 * 100.0);
            match points.last_mut() {
                Some(last) if last.0 == point.0 => *last = point,
                _ => points.push(point),
            }
        }
        Series::new(found.name, points)
    });
    // Section 4.5. The two builds have different numbers of blocks, so shares are compared.
    let paper = [
        Series::paper("PU", [(62.0, 5.0), (182.0, 50.0), (344.0, 100.0)]),
        Series::paper("AIPU-1", [(40.0, 95.0), (104.0, 100.0)]),
    ];
    Plot {
        name: "figure-7".into(),
        title: "Figure 7: sizes of the bursts of delayed writes during a build (simulated time)\n\
                ours: a recorded build of OpenSSL; the paper's: a build of a kernel"
            .into(),
        x: "size of a burst (blocks)".into(),
        y: "share of the blocks in bursts up to that size (%)".into(),
        series: series.chain(paper).collect(),
        style: Style { is_log_x: true, ..Style::default() },
    }
}
