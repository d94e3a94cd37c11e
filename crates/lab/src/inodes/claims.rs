//! The thesis's claims of chapter 3 beside ours.
//!
//! Owns: what the thesis says of its trees, and the margins. Rules: its figures are judged on the
//! described trees, which have its owners, permissions and sizes; scanned trees are judged beside
//! them, and are other trees. A cause is a row of the table `causes`.

use shoal_pack::{Field, Precision};

use super::causes::{PAPERS, WITH_GENERATIONS};
use super::fields::{APPENDIX_C, Fields};
use super::figures::{TOLD_DECODE, TOLD_ENCODE, field_bits, number, precision_name};
use super::{Found, PRECISIONS, Row};
use crate::exhibits::Paper;
use crate::median::Median;
use crate::report::{Better, Cell, Comparison, Said, Table, Verdict};

/// Bytes of a code on a described tree: the thesis tells nothing of times, which are two thirds of a
/// code, so that they are the thesis's within this factor.
const TIMES: f64 = 1.15;
/// A ratio of a control is the paper's within this factor, for the same reason; "roughly".
const CONTROL: f64 = 1.25;
/// Trees of seven within which a count is the paper's: about the deviation of seven draws.
const TREES: f64 = 2.0;
/// Bytes by which another tree's profile may beat the own: the search for gamma's tables ends at the
/// first that no step improves.
const LOCAL: f64 = 0.1;
/// Bits within which a field is the paper's: one bit of the prefix.
const BIT: f64 = 1.0;

/// Returns the least and greatest of some values, and both as one text.
fn range(values: impl Iterator<Item = f64>, decimals: usize) -> (String, f64, f64) {
    let (least, most) = values.fold((f64::INFINITY, 0f64), |(least, most), value| (least.min(value), most.max(value)));
    if least > most {
        return (String::new(), f64::NAN, f64::NAN);
    }
    (format!("{least:.decimals$}-{most:.decimals$}"), least, most)
}

/// Returns what was measured over all trees, as an interval.
fn over_trees(low: f64, high: f64) -> Median {
    Median { value: f64::midpoint(low, high), low, high }
}

pub fn comparison(found: &Found) -> Table {
    let mut claims = Comparison::new(Paper::Mramfs, "The paper beside ours");
    shape_claims(found, &mut claims);
    control_claims(found, &mut claims);
    described_claims(found, &mut claims);
    scanned_claims(found, &mut claims);
    for precision in PRECISIONS {
        hybrid_claims(found, precision, &mut claims);
    }
    speed_claims(found, &mut claims);
    field_claims(found, &mut claims);
    claims.into_table()
}

fn shape_claims(found: &Found, claims: &mut Comparison) {
    const OF: &str = "table 3.1";
    // What the table gives is what the trees are made of, so that nothing but rounding may differ.
    for (of, shape) in &found.described {
        let ours = [shape.triplets as f64, shape.system_percent, shape.owners as f64, f64::from(shape.size_bits)];
        let paper = [of.triplets.into(), of.system_percent, f64::from(of.owners), f64::from(of.size_bits)];
        let text = |values: [f64; 4]| match of.has_owners {
            true => format!("{}; {:.1}; {}; {:.0}", values[0], values[1], values[2], values[3]),
            false => format!("{}; {:.0}", values[0], values[3]),
        };
        let near =
            |at: usize| Said::about(paper[at], 1.0, Better::Neither).within(0.05).judge(ours[at]) == Verdict::Shown;
        let what = if of.has_owners {
            "triplets; % of the system; owners of 0.1%; bits of the most frequent size"
        } else {
            "triplets; bits of the most frequent size"
        };
        let holds = near(0) && near(3) && (!of.has_owners || near(1) && near(2));
        claims.push(
            OF,
            format!("{}: {what}", of.name),
            text(paper).into(),
            text(ours).into(),
            "",
            Verdict::shown_if(holds),
        );
    }
    // Claims about root file systems, on those that were scanned.
    let roots = || found.shapes.iter().filter(|shape| shape.system_percent > 90.0);
    if roots().next().is_none() {
        return;
    }
    let (text, least, most) = range(roots().map(|shape| shape.first_percent), 1);
    let verdict = Said::about(70.0, 1.2, Better::Neither).judge_spread(over_trees(least, most));
    let why = "the most frequent triplet of such a tree is that of plain files, whose share differs";
    claims.push(
        OF,
        "scanned trees of the system: inodes with the most frequent triplet, \"around 70%\"",
        70u64.into(),
        text.into(),
        "%",
        verdict.because(why),
    );
    let first = roots().next().map_or(0, |shape| shape.size_bits);
    claims.push(
        OF,
        "the first scanned tree of the system: most frequent size",
        "4096-8192 B".into(),
        super::shape::size_class(first).into(),
        "",
        Said::about(13.0, 1.0, Better::Neither).judge(first.into()),
    );
}

fn control_claims(found: &Found, claims: &mut Comparison) {
    const OF: &str = "figure 3.1";
    let Some(control) = found.controls.last() else { return };
    let why = "the tables `figure-3-1` and `causes`: scanned trees have fewer owners and no generations";
    let mut ratio = |what: &str, paper: f64, ours: f64| {
        let verdict = Said::about(paper, CONTROL, Better::More).judge(ours).because(why);
        claims.push(OF, what, format!("{paper} : 1").into(), number(ours, 1), ": 1", verdict);
    };
    let raw = control.raw.map(|bytes| bytes as f64);
    ratio("Redhat 8 root, described, raw inodes by gzip", 8.0, raw[0] / raw[1]);
    ratio("Redhat 8 root, described, raw inodes by bzip2", 10.0, raw[0] / raw[2]);
    let inodes = control.inodes as f64;
    let stripped = control.stripped_s.map(|bytes| bytes as f64 / inodes);
    // The described times were set by the first, which therefore proves nothing.
    for (name, ours, verdict) in [
        ("gzip (by which the times were set)", stripped[1], Verdict::Unjudged),
        ("bzip2", stripped[2], Said::about(9.0, CONTROL, Better::Less).judge(stripped[2])),
    ] {
        let what = format!("the same, stripped, by {name}, \"about 9 bytes\"");
        let verdict = verdict.because("runs of equal times are longer than the thesis's");
        claims.push(OF, what, 9u64.into(), number(ours, 1), "B", verdict);
    }
    let all = found.row(found.scanned, Precision::Seconds, "all-or-nothing").map(|row| row.own.mean());
    let verdict =
        Said::about(23.0, TIMES, Better::Less).judge_any(all).because("each field's code is the better of A and B");
    claims.push(
        OF,
        "the same, all-or-nothing, own profile",
        23u64.into(),
        all.map_or(Cell::Empty, |all| number(all, 1)),
        "B",
        verdict,
    );
    for (control, shape) in found.controls.iter().zip(&found.shapes) {
        let raw = control.raw.map(|bytes| bytes as f64);
        for (name, paper, ours) in [("gzip", 8.0, raw[0] / raw[1]), ("bzip2", 10.0, raw[0] / raw[2])] {
            let what = format!("{}, scanned, raw inodes by {name}", shape.name);
            let verdict = Said::about(paper, CONTROL, Better::More).judge(ours).because(why_scanned(control.is_image));
            claims.push(OF, what, format!("{paper} : 1").into(), number(ours, 1), ": 1", verdict);
        }
    }
}

fn why_scanned(is_image: bool) -> &'static str {
    match is_image {
        true => "fewer owners, and times of few installations",
        false => "read by `stat`, without generations and pointers (the described tree has them), and fewer owners",
    }
}

/// Returns the least of a figure of each of the paper's compressors on each described tree.
fn each_tree(found: &Found, of: impl Fn(&Row) -> Option<f64>, pick: fn(f64, f64) -> f64) -> Vec<f64> {
    let rows = |tree: usize| PAPERS.iter().filter_map(move |name| found.row(tree, Precision::Seconds, name));
    found.described_trees().filter_map(|tree| rows(tree).filter_map(&of).reduce(pick)).collect()
}

fn described_claims(found: &Found, claims: &mut Comparison) {
    const OF: &str = "figure 3.2";
    let mut ends = |what: &str, [low, high]: [f64; 2], of: Vec<f64>, why: &str| {
        let (_, least, most) = range(of.into_iter(), 1);
        for (end, paper, ours) in [("least", low, least), ("most", high, most)] {
            let verdict = Said::about(paper, TIMES, Better::Less).judge(ours).because(why);
            claims.push(
                OF,
                format!("{what}, {end} of seven described trees"),
                number(paper, 0),
                number(ours, 1),
                "B",
                verdict,
            );
        }
    };
    let best = each_tree(found, |row| Some(row.own.mean()), f64::min);
    ends(
        "shortest code, own profile",
        [14.0, 19.0],
        best,
        "gamma's tables are the best ones (table appendix-c, tables of quarters)",
    );
    let worst = each_tree(found, |row| Some(row.worst()?.0.mean()), f64::max);
    ends("longest code, worst profile", [30.0, 37.0], worst, "the tables know lengths that do not occur in their tree");
    let trees = found.described_trees().len() as u64;
    let wins = |wanted: &[&str]| {
        let is_won = |tree: &usize| {
            let rows = PAPERS.iter().filter_map(|name| found.row(*tree, Precision::Seconds, name));
            rows.min_by_key(|row| row.own.bytes).is_some_and(|row| wanted.contains(&row.name))
        };
        found.described_trees().filter(is_won).count() as u64
    };
    let huffman = wins(&["huffman"]);
    let verdict = Said::about(4.0, 1.0, Better::Neither).within(TREES).judge(huffman as f64);
    let why = "the two differ by a few tenths of a byte (table figure-3-2)";
    claims.push(
        OF,
        "Huffman is the shortest code, of seven described trees",
        4u64.into(),
        huffman.into(),
        "trees",
        verdict.because(why),
    );
    let beaten = wins(&["huffman", "gamma"]);
    let all = "all-or-nothing is not the shortest, of seven described trees";
    claims.push(OF, all, 7u64.into(), beaten.into(), "trees", Verdict::shown_if(beaten == trees));
    let rows = || found.rows.iter().filter(|row| found.is_described(row.tree) && PAPERS.contains(&row.name));
    let is_best = |row: &&Row| row.others.iter().all(|(other, _)| row.own.mean() <= other.mean() + LOCAL);
    let own = rows().filter(is_best).count() as u64;
    let text = format!("{own} of {}", rows().count());
    let what = "the tree's own profile is its best, of trees and codes";
    claims.push(OF, what, "all".into(), text.into(), "", Verdict::shown_if(own == rows().count() as u64));
    let costs = PAPERS.map(|name| {
        let of: Vec<f64> = rows()
            .filter(|row| row.name == name)
            .filter_map(|row| Some(row.worst()?.0.mean() - row.own.mean()))
            .collect();
        of.iter().sum::<f64>() / of.len().max(1) as f64
    });
    let text = format!("{:.1}, {:.1}, {:.1}", costs[0], costs[1], costs[2]);
    let what = "the worst profile costs least with gamma; all-or-nothing, Huffman, gamma, mean of the trees";
    let is = costs[2] < costs[0].min(costs[1]);
    claims.push(OF, what, "gamma least".into(), text.into(), "B", Verdict::shown_if(is));
}

/// Adds claims about scanned trees, whose cause is in `causes`.
fn scanned_claims(found: &Found, claims: &mut Comparison) {
    for shape in &found.shapes {
        let of = |change| found.causes.iter().find(|cause| cause.tree == shape.name && cause.change == change);
        let (Some(plain), Some(with)) = (of(""), of(WITH_GENERATIONS)) else { continue };
        let why = format!(
            "{} triplets, where the paper's trees have 78 to 10,417, and no generations: with them, {:.1} B",
            shape.triplets, with.bytes
        );
        let verdict = Said::range(14.0, 19.0, Better::Less).judge(plain.bytes).because(&why);
        let what = format!("{}, scanned: shortest code, own profile", shape.name);
        claims.push("figure 3.2", what, "14-19".into(), number(plain.bytes, 1), "B", verdict);
    }
    let rows = found.rows.iter();
    let most = rows.flat_map(|row| [Some(&row.own), row.built_in.as_ref(), row.worst().map(|of| &of.0)]).flatten();
    let most = most.map(|measured| measured.most).max().unwrap_or(0) as u64;
    let what = "longest code of any inode under any profile";
    // A generation that is not 1 takes four bytes more.
    claims.push("", what, "at most 59 asked for".into(), most.into(), "B", Verdict::shown_if(most <= 59));
}

/// Adds claims about Shoal's own code, which no paper states.
fn hybrid_claims(found: &Found, precision: Precision, claims: &mut Comparison) {
    let times = precision_name(precision);
    let hybrid = |of: fn(&Row) -> Option<f64>| {
        range((0..found.scanned).filter_map(|tree| of(found.row(tree, precision, "hybrid")?)), 1)
    };
    let (text, _, most) = hybrid(|row| Some(row.own.mean()));
    if most.is_nan() {
        return;
    }
    let bound = if precision == Precision::Seconds { 16.0 } else { 20.0 };
    let asked = format!("at most {bound} asked for");
    let what = format!("hybrid, scanned trees, own profile, times of {times}");
    claims.push("", what, asked.into(), text.into(), "B", Verdict::shown_if(most <= bound));
    let (text, ..) = hybrid(|row| Some(row.built_in.as_ref()?.mean()));
    let what = format!("hybrid, scanned trees, built-in profile, times of {times}");
    claims.push("", what, Cell::Empty, text.into(), "B", Verdict::Unjudged);
    let (text, _, most) = hybrid(|row| Some(row.worst()?.0.mean()));
    if !most.is_nan() {
        let what = format!("hybrid, scanned trees, worst other profile, times of {times}");
        claims.push("", what, Cell::Empty, text.into(), "B", Verdict::Unjudged);
    }
}

/// Why ours is faster than the paper's.
const PROCESSORS: &str = "a processor of today; the order of the codes is judged apart";

/// Adds claims about inodes a second: the paper's compressors, and Shoal's whole blocks.
fn speed_claims(found: &Found, claims: &mut Comparison) {
    const OF: &str = "figure 3.3";
    let rows = |name: &'static str| {
        let is_of = move |row: &&Row| row.name == name && found.is_described(row.tree);
        found.rows.iter().filter(is_of)
    };
    let told = |least: f64, most: f64| Cell::Text(format!("{least}-{most}"));
    for &(name, low, high) in TOLD_ENCODE {
        let speeds = rows(name).flat_map(|row| [Some(row.own_speed), row.worst_speed]).flatten();
        let (text, least, most) = range(speeds.map(|speed| speed.encode[1]), 1);
        let verdict = Said::range(low, high, Better::More).judge_spread(over_trees(least, most)).because(PROCESSORS);
        claims.push(
            OF,
            format!("{name}, encode, best and worst profile"),
            told(low, high),
            text.into(),
            "M/s",
            verdict,
        );
    }
    let (_, low, high) = TOLD_DECODE[0];
    let (text, least, most) = range(rows("gamma").map(|row| row.own_speed.decode[1]), 1);
    let verdict = Said::range(low, high, Better::More).judge_spread(over_trees(least, most)).because(PROCESSORS);
    claims.push(OF, "gamma, decode", told(low, high), text.into(), "M/s", verdict);
    let mean = |name, of: fn(&Row) -> f64| {
        let speeds: Vec<f64> = rows(name).map(of).collect();
        speeds.iter().sum::<f64>() / speeds.len().max(1) as f64
    };
    let [tables, huffman, gamma] = PAPERS.map(|name| mean(name, |row| row.own_speed.encode[1]));
    let all = found.by_hand.iter().map(|rates| rates[1]).sum::<f64>() / found.by_hand.len().max(1) as f64;
    // As in the thesis, the first is coded by hand. The one of `shoal-pack` goes by tables as the
    // others do, and has two fields more than gamma.
    for (what, of, all) in [("by hand", OF, all), ("by tables", "", tables)] {
        let text = format!("{all:.1}, {huffman:.1}, {gamma:.1}");
        let what = format!("all-or-nothing, {what}, encodes faster than Huffman and gamma; mean of the trees");
        let verdict = Verdict::shown_if(all > huffman.max(gamma)).because("its fields go by tables, as the others' do");
        claims.push(of, what, "0.9, 0.4, 0.5".into(), text.into(), "M/s", verdict);
    }
    let decode = mean("gamma", |row| row.own_speed.decode[1]);
    let text = format!("{decode:.1} : {gamma:.1}");
    let verdict =
        Verdict::shown_if(decode > gamma).because("the thesis's encoder was a test harness; ours is a store's");
    claims.push(OF, "gamma decodes faster than it encodes", "2.5 : 0.5".into(), text.into(), "M/s", verdict);
    for (what, bound, of) in [
        ("encode", 5.0, (|blocks| blocks.speed.encode[1]) as fn(&super::Blocks) -> f64),
        ("decode", 10.0, |blocks| blocks.speed.decode[1]),
    ] {
        let (text, least, _) = range(found.blocks.iter().map(of), 1);
        let asked = format!("at least {bound} asked for");
        let what = format!("Shoal's blocks, whole, {what}");
        claims.push("", what, asked.into(), text.into(), "M/s", Verdict::shown_if(least >= bound));
    }
}

fn field_claims(found: &Found, claims: &mut Comparison) {
    const OF: &str = "figure 3.4";
    for (at, (field, [paper, ..])) in APPENDIX_C.into_iter().enumerate() {
        let [least, most] = Fields::means(&found.fields.best, at);
        let [simple_least, simple_most] = Fields::means(&found.fields.simple, at);
        let why =
            format!("gamma's tables are the best; tables of quarters take {simple_least:.1} to {simple_most:.1} bits");
        let said = Said::about(paper, 1.0, Better::Less).within(BIT);
        let verdict = said.judge_spread(over_trees(least, most)).because(&why);
        let what = format!("{}, gamma, PostMark's inodes under the tables of seven described trees", field.name());
        claims.push(OF, what, number(paper, 0), format!("{least:.1}-{most:.1}").into(), "bits", verdict);
    }
    let bits = |name, field| field_bits(found, true, Precision::Seconds, name, field).unwrap_or([0.0; 3]);
    let times = [Field::Ctime, Field::Mtime, Field::Atime];
    for name in ["huffman", "gamma"] {
        let longest = times.map(|field| bits(name, field)[2]).into_iter().fold(0.0, f64::max);
        let what = format!(
            "{name}: longest code of a time, described trees; \"a degenerate case may be longer than the standard 32-bit value\""
        );
        claims.push(OF, what, "above 32".into(), number(longest, 0), "bits", Verdict::shown_if(longest > 32.0));
    }
    let all: f64 = Field::ALL.iter().map(|field| bits("gamma", *field)[0]).sum();
    let share = times.iter().map(|field| bits("gamma", *field)[0]).sum::<f64>() / all * 100.0;
    // Of appendix C's 87 bits, 67 are times. Generations, which it had hardly, make them less.
    let verdict = Said::about(77.0, 1.2, Better::Neither).judge(share);
    let why = "appendix C's inodes are PostMark's; those of trees have sizes, links and generations of more bits";
    claims.push(
        OF,
        "gamma: share of the times in a code, described trees",
        77u64.into(),
        number(share, 0),
        "%",
        verdict.because(why),
    );
    let own = [Field::Mode, Field::Uid, Field::Gid].map(|field| bits("gamma", field)[0]).iter().sum::<f64>();
    claims.push(
        OF,
        "gamma: bits of mode, uid and gid apart",
        0u64.into(),
        number(own, 0),
        "bits",
        Verdict::shown_if(own == 0.0),
    );
}
