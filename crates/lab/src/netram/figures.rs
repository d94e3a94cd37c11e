//! The paper's figures 6 and 7 and its table 1, from the runs, with the paper's values beside ours.
//!
//! Owns: the tables and plots, and the paper's numbers, each in one place. Times are simulated and
//! labelled so. Seconds cannot agree with the paper's, which come from another trace. Ratios
//! between policies can, so verdicts concern only ratios.

use super::model::Pace;
use super::points::{Figures, Room, Rules, Setup, Variant};
use crate::exhibits::Paper;
use crate::report::{Better, Cell, Comparison, Plot, Said, Series, Style, Table, Verdict};
use crate::trace::shape::{Summary, at_busiest, continuing};

/// Table 1: stream caches, and execution time at 20% extra space (s).
const TABLE_1: [(u8, f64); 3] = [(1, 8788.21), (2, 8520.39), (3, 8525.60)];
/// Figure 6: upper bound of adaptive over unreliable at 20% extra space (percent).
const OVER_UNRELIABLE: f64 = 11.0;
/// Figure 7: lower bound of the cleaning time saved over parity caching at 20% extra space
/// (percent).
const CLEANING_SAVED: f64 = 30.0;
/// Stream caches of the paper's adaptive policy in its figures.
const STREAMS: u8 = 2;

/// The circumstances of the runs.
pub struct World<'a> {
    pub source: &'a str,
    pub device: Option<u32>,
    pub summary: Summary,
    pub extents: usize,
    pub setup: &'a Setup<'a>,
    /// Extra space in ascending order (percent).
    pub extra: &'a [u32],
    pub claimed_at: u32,
}

fn find(runs: &[Figures], variant: Variant, room: Room) -> Option<&Figures> {
    runs.iter().find(|run| (run.variant, run.room) == (variant, room))
}

fn at(runs: &[Figures], variant: Variant, extra: u32) -> Option<&Figures> {
    find(runs, variant, if variant.needs_no_room() { Room::Plenty } else { Room::Extra(extra) })
}

fn number(value: Option<f64>, decimals: usize) -> Cell {
    value.map_or(Cell::Empty, |value| Cell::Number(value, decimals))
}

/// The policies that do not clean.
const FIXED: [Variant; 3] = [Variant::NONE, Variant::CACHED, Variant::MIRRORED];

/// The policies that clean: the paper's, then as users get them.
pub const FIGURE_7: [Variant; 5] = [
    Variant::CACHING,
    Variant::adaptive(2, Rules::Paper),
    Variant::adaptive(3, Rules::Paper),
    Variant::adaptive(2, Rules::Shoal),
    Variant::adaptive(3, Rules::Shoal),
];

/// Steps between the paper's rules and ours, each a switch.
pub const CAUSES: [Variant; 2] = [Variant::adaptive(2, Rules::Left), Variant::adaptive(2, Rules::Finished)];

fn figure_6() -> Vec<Variant> {
    FIXED.into_iter().chain(FIGURE_7).collect()
}

pub fn tables(world: &World, runs: &[Figures]) -> Vec<Table> {
    let against_extra = |name: &str, title: &str, variants: &[Variant], of: &dyn Fn(&Figures) -> f64| {
        let names: Vec<String> = variants.iter().map(Variant::name).collect();
        let columns: Vec<&str> = ["extra space (%)"].into_iter().chain(names.iter().map(String::as_str)).collect();
        let mut table = Table::new(name, title, &columns);
        for &extra in world.extra {
            let cells = variants.iter().map(|&variant| number(at(runs, variant, extra).map(of), 2));
            table.push([Cell::Count(extra.into())].into_iter().chain(cells).collect());
        }
        table
    };
    vec![
        comparison(world, runs),
        against_extra(
            "figure-6",
            "Figure 6: execution time, cleaning included (seconds of network transfer, simulated time)",
            &figure_6(),
            &|run| run.execution_s,
        ),
        against_extra(
            "figure-7",
            "Figure 7: cleaning time (seconds of network transfer, simulated time)",
            &FIGURE_7,
            &|run| run.cleaning_s,
        ),
        counts(runs),
        load(world),
    ]
}

fn comparison(world: &World, runs: &[Figures]) -> Table {
    let extra = world.claimed_at;
    let title = format!("The paper's claims at {extra}% extra space (simulated time)");
    let mut claims = Comparison::new(Paper::NetworkRamdisk, title);
    let percent = |a: f64, b: f64| (a / b - 1.0) * 100.0;
    let over = |variant: Variant, reference: Variant, without_upkeep: bool| {
        let (run, reference) = (at(runs, variant, extra)?, at(runs, reference, extra)?);
        let less = |run: &Figures| run.execution_s - if without_upkeep { run.upkeep_s } else { 0.0 };
        Some(percent(less(run), less(reference)))
    };
    let [paper, ours] = [Rules::Paper, Rules::Shoal].map(|rules| Variant::adaptive(STREAMS, rules));
    let [left, finished] = CAUSES;
    let found = over(ours, Variant::CACHED, false);
    claims.push(
        "figure 6",
        format!("adaptive, P={STREAMS}, over the unreliable optimum (cached)"),
        Cell::Text(format!("at most {OVER_UNRELIABLE:.0}")),
        number(found, 1),
        "%",
        Said::at_most(OVER_UNRELIABLE).judge_any(found),
    );
    for (what, variant, reference, without_upkeep) in [
        ("the paper\'s rules", paper, Variant::CACHED, false),
        ("the paper's rules without upkeep (reading headers to clean)", paper, Variant::CACHED, true),
        ("no cache is ever closed", left, Variant::CACHED, false),
        ("other blocks finish a stalled stream's group", finished, Variant::CACHED, false),
        ("that without upkeep", finished, Variant::CACHED, true),
        ("Shoal's rules over cached with hot blocks apart, too", ours, Variant::CACHED_HOT, false),
        ("parity caching", Variant::CACHING, Variant::CACHED, false),
        ("Shoal's rules over none (each block at once)", ours, Variant::NONE, false),
        ("Shoal's rules over mirroring (each block at once)", ours, Variant::MIRRORED, false),
    ] {
        let found = over(variant, reference, without_upkeep);
        claims.push("", format!("- {what}"), Cell::Empty, number(found, 1), "%", Verdict::Unjudged);
    }
    let saved = |variant: Variant| {
        let (plain, found) = (at(runs, Variant::CACHING, extra)?.cleaning_s, at(runs, variant, extra)?.cleaning_s);
        (plain > 0.0).then(|| -percent(found, plain))
    };
    let found = saved(ours);
    claims.push(
        "figure 7",
        format!("cleaning time of adaptive, P={STREAMS}, below parity caching"),
        Cell::Text(format!("at least {CLEANING_SAVED:.0}")),
        number(found, 1),
        "%",
        Said::at_least(CLEANING_SAVED).judge_any(found),
    );
    let causes =
        [("the paper's rules", paper), ("no cache is ever closed", left), ("other blocks finish the group", finished)];
    for (what, variant) in causes {
        let found = number(saved(variant), 1);
        claims.push("", format!("- {what}"), Cell::Empty, found, "%", Verdict::Unjudged);
    }
    for rules in [Rules::Shoal, Rules::Paper] {
        table_1(&mut claims, rules, |streams| match streams {
            1 => at(runs, Variant::CACHING, extra),
            streams => at(runs, Variant::adaptive(streams, rules), extra),
        });
    }
    claims.into_table()
}

/// Adds table 1 under these rules. `run_of`: the run with so many stream caches.
fn table_1<'a>(claims: &mut Comparison, rules: Rules, run_of: impl Fn(u8) -> Option<&'a Figures>) {
    // The claim is the engine's that users run; the paper's rules stand beside it.
    let (of, whose) = match rules {
        Rules::Paper => ("", "- the paper's rules: "),
        _ => ("table 1", ""),
    };
    let ours = |streams: u8| run_of(streams).map(|run| run.execution_s);
    for (streams, paper) in TABLE_1 {
        let what = format!("{whose}execution time, P={streams} (another trace; see the ratios)");
        claims.push(of, what, Cell::Number(paper, 2), number(ours(streams), 2), "s", Verdict::Unjudged);
    }
    for streams in [1, 3] {
        let over_two = |one: f64, two: f64| (one / two - 1.0) * 100.0;
        let expected = over_two(TABLE_1[streams as usize - 1].1, TABLE_1[1].1);
        let found = ours(streams).zip(ours(2)).map(|(one, two)| over_two(one, two));
        // One stream costs more; a third makes hardly any difference.
        let said = if streams == 1 { Said::at_least(1.0) } else { Said::range(-1.0, 1.0, Better::Less) };
        let verdict = if rules == Rules::Paper { Verdict::Unjudged } else { said.judge_any(found) };
        let what = format!("{whose}P={streams} over P=2");
        claims.push(of, what, Cell::Number(expected, 2), number(found, 2), "%", verdict);
    }
}

/// Tabulates all counters, to explain the figures.
fn counts(runs: &[Figures]) -> Table {
    let title = "Runs: time by cause (seconds, simulated), messages, and blocks sent and moved";
    let mut table = Table::new(
        "runs",
        title,
        &[
            "policy",
            "extra (%)",
            "execution",
            "cleaning",
            "reading",
            "upkeep",
            "messages",
            "data",
            "parity",
            "absorbed",
            "groups cleaned",
            "clean: read",
            "clean: data",
            "clean: parity",
        ],
    );
    for run in runs {
        table.push(vec![
            run.variant.name().into(),
            match run.room {
                Room::Extra(extra) => Cell::Count(extra.into()),
                Room::Plenty => Cell::Empty,
            },
            Cell::Number(run.execution_s, 2),
            Cell::Number(run.cleaning_s, 2),
            Cell::Number(run.reading_s, 2),
            Cell::Number(run.upkeep_s, 2),
            run.messages.into(),
            run.sent_data.into(),
            run.sent_parity.into(),
            run.absorbed.into(),
            run.groups_cleaned.into(),
            run.cleaned_read.into(),
            run.cleaned_data.into(),
            run.cleaned_parity.into(),
        ]);
    }
    table
}

fn load(world: &World) -> Table {
    let Summary { requests, reads, writes, blocks_read, blocks_written, footprint_blocks, written_footprint_blocks } =
        world.summary;
    let mut table = Table::new("load", format!("Requests: {}", world.source), &["what", "value"]);
    let mut row = |what: &str, value: Cell| table.push(vec![what.into(), value]);
    if let Some(device) = world.device {
        row("device", Cell::Text(format!("{device:#x}")));
    }
    row("requests", requests.into());
    row("reads", reads.into());
    row("blocks read", blocks_read.into());
    row("writes", writes.into());
    row("blocks written", blocks_written.into());
    row("different blocks read or written", footprint_blocks.into());
    row("different blocks written", written_footprint_blocks.into());
    row("runs of neighbouring blocks before the gaps were closed", (world.extents as u64).into());
    row("blocks of the simulated disk", world.setup.blocks.into());
    for streams in [1, 2, 3, 8, 64] {
        let what = format!("writes that continue one of the last {streams} (%)");
        row(&what, Cell::Number(continuing(world.setup.requests, streams) * 100.0, 1));
    }
    row("writes to the 50 busiest places (%)", Cell::Number(at_busiest(world.setup.requests, 50) * 100.0, 1));
    table
}

pub fn plots(world: &World, runs: &[Figures]) -> Vec<Plot> {
    let series = |variants: &[Variant], of: &dyn Fn(&Figures) -> f64| -> Vec<Series> {
        let line = |&variant: &Variant| {
            let point = |&extra: &u32| Some((f64::from(extra), of(at(runs, variant, extra)?)));
            let name = match variant {
                Variant::MIRRORED => "mirroring (needs 100%)".into(),
                Variant::CACHING => "parity caching (adaptive, P=1)".into(),
                _ => variant.name(),
            };
            Series::new(name, world.extra.iter().filter_map(point))
        };
        variants.iter().map(line).filter(|line| !line.points.is_empty()).collect()
    };
    // The paper's seconds are of another trace, so its ratios stand on our own lines.
    let of_ours = |name: &str, ratio: f64, variant: Variant, of: &dyn Fn(&Figures) -> f64| {
        let ours = at(runs, variant, world.claimed_at).map(|run| (f64::from(world.claimed_at), of(run) * ratio));
        Series::paper(name, ours)
    };
    let (execution, cleaning) = (|run: &Figures| run.execution_s, |run: &Figures| run.cleaning_s);
    let mut times = series(&figure_6(), &execution);
    let ratio = 1.0 + OVER_UNRELIABLE / 100.0;
    let name = format!("adaptive, at most {OVER_UNRELIABLE:.0}% above none, cached");
    times.push(of_ours(&name, ratio, Variant::CACHED, &execution));
    let mut cleanings = series(&FIGURE_7, &cleaning);
    let name = format!("adaptive, {CLEANING_SAVED:.0}% below parity caching");
    cleanings.push(of_ours(&name, 1.0 - CLEANING_SAVED / 100.0, Variant::CACHING, &cleaning));
    let plot = |name: &str, title: &str, y: &str, series: Vec<Series>| Plot {
        name: name.into(),
        title: title.into(),
        x: "extra space of the donors (% of the disk)".into(),
        y: y.into(),
        series,
        style: Style::default(),
    };
    let all = [
        plot(
            "figure-6",
            "Figure 6: execution time of the policies, cleaning included\n\
             one simulated run a point; the paper's ratio is applied to our time",
            "network transfer (s, simulated time)",
            times,
        ),
        plot(
            "figure-7",
            "Figure 7: cleaning time of the policies\n\
             one simulated run a point; the paper's ratio is applied to our time",
            "network transfer for cleaning (s, simulated time)",
            cleanings,
        ),
    ];
    all.into_iter().filter(|plot| plot.series.iter().any(|series| !series.points.is_empty())).collect()
}

pub fn notes(world: &World) -> Vec<String> {
    let Setup { donors, network, block_bytes, buffer_blocks, fill, pace, timeout_ms, .. } = world.setup;
    let mut notes = vec![
        format!(
            "all times are simulated: a message takes {} us and its bytes at {} Mbit/s, one after the other on the client's \
             link",
            network.latency_us, network.mbit
        ),
        format!(
            "{donors} storage donors, 1 parity donor, blocks of {block_bytes} bytes, buffers of {buffer_blocks} blocks; \
             cleaning only when space is short; every read was compared with what was written"
        ),
        "units carry their group's description (a restarted client finds its data), so a message has more bytes than its \
         blocks"
            .into(),
        "none, none cached and mirroring have room to spare here: their lines do not depend on the extra space".into(),
        "none cached collects as many blocks as the parity caches; upkeep is reading the headers of groups to clean"
            .into(),
    ];
    notes.push(match fill {
        true => "the disk is full when the figures begin: all its blocks were written once, in order".into(),
        false => "the disk is empty when the figures begin".into(),
    });
    if *pace == Pace::Trace {
        notes.push("requests come at the times of the trace".into());
    }
    match timeout_ms {
        0 => notes.push("caches are sent when they are full, and once at the end; no time-out closes them".into()),
        ms => notes.push(format!("caches are also sent when something has waited in them for {ms} ms (simulated)")),
    }
    notes
}
