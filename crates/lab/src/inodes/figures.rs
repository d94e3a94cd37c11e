//! The paper's tables and figures from the measurements.
//!
//! Owns: table 3.1, figures 3.1 to 3.4, the parts of Shoal's blocks, and the paper's claims beside
//! ours. Rules: every table names the bytes it counts. "Bytes an inode" are codes padded to whole
//! bytes, without the length byte, pointers and the block's head, which have separate columns.

use std::collections::HashMap;

use shoal_pack::{Field, Precision};

use super::{Found, PRECISIONS, Row};
use crate::exhibits::Paper;
use crate::median::Median;
use crate::report::{Better, Cell, Comparison, Plot, Said, Series, Style, Table, Verdict};

fn number(value: f64, decimals: usize) -> Cell {
    Cell::Number(value, decimals)
}

fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Seconds => "1 s",
        Precision::Nanoseconds => "1 ns",
    }
}

pub fn notes() -> Vec<String> {
    [
        "code: an inode's code padded to whole bytes, as the paper counts; length byte, pointer and the block's head are apart",
        "times of 1 s: ctime, mtime and atime, as in ext2; of 1 ns: these and the time of birth",
        "all-or-nothing, huffman and gamma are the paper's, mixed takes the best of them for each field, hybrid is Shoal's",
        "the table of triplets is in the order of frequency; neighbours are sixteen successive inode numbers in use",
        "no code is longer than the stripped record of 54 bytes and one byte: a longer one gives way to that form",
        "speed: millions of inodes a second, one thread, in memory, median (slowest-fastest); for the hybrid without the choice of a block's bases, which `blocks` has",
    ]
    .map(Into::into)
    .into()
}

pub fn tables(found: &Found) -> Vec<Table> {
    vec![
        profile_table(found),
        control_table(found),
        size_table(found),
        speed_table(found),
        field_table(found),
        block_table(found),
        comparison(found),
    ]
}

fn profile_table(found: &Found) -> Table {
    let mut table = Table::new(
        "table-3-1",
        "Table 3.1: trees",
        &["tree", "inodes", "triplets", "of root (%)", "uids of 0.1%", "most frequent size"],
    );
    for (tree, triplets) in found.trees.iter().zip(&found.triplets) {
        let inodes = tree.records.len() as f64;
        let (mut uids, mut classes): (HashMap<u32, u64>, HashMap<u32, u64>) = Default::default();
        for record in &tree.records {
            *uids.entry(record.uid).or_default() += 1;
            *classes.entry(64 - record.size.leading_zeros()).or_default() += 1;
        }
        let class =
            classes.iter().max_by_key(|(class, count)| (**count, u32::MAX - **class)).map_or(0, |(class, _)| *class);
        let least = |bits: u32| if bits == 0 { 0 } else { 1u64 << (bits - 1) };
        let root = uids.get(&0).copied().unwrap_or(0) as f64;
        table.push(vec![
            tree.name.as_str().into(),
            (tree.records.len() as u64).into(),
            (triplets.len() as u64).into(),
            number(root / inodes * 100.0, 1),
            (uids.values().filter(|count| **count as f64 >= inodes / 1000.0).count() as u64).into(),
            format!("{}-{} B", least(class), least(class + 1)).into(),
        ]);
    }
    table
}

fn control_table(found: &Found) -> Table {
    let mut table = Table::new(
        "figure-3-1",
        "Figure 3.1: all inodes of a tree as one file, bytes an inode (codes: own profile, times of 1 s)",
        &["tree", "what", "plain", "gzip", "bzip2", "raw : gzip", "raw : bzip2", "each deflated", "all-or-nothing"],
    );
    for (at, (tree, control)) in found.trees.iter().zip(&found.controls).enumerate() {
        let inodes = control.inodes as f64;
        let of = |bytes: usize| number(bytes as f64 / inodes, 1);
        let raw = control.raw[0] as f64;
        let all_or_nothing =
            row(found, at, Precision::Seconds, "all-or-nothing").map_or(Cell::Empty, |row| number(row.own.mean(), 1));
        let what = if control.is_image { "raw, ext2 part" } else { "raw, as ext2 would, no pointers" };
        let mut push = |what: &str, bytes: &[usize; 3], each: Cell, last: Cell| {
            table.push(vec![
                tree.name.as_str().into(),
                what.into(),
                of(bytes[0]),
                of(bytes[1]),
                of(bytes[2]),
                number(raw / bytes[1] as f64, 1),
                number(raw / bytes[2] as f64, 1),
                each,
                last,
            ]);
        };
        push(what, &control.raw, Cell::Empty, Cell::Empty);
        push("stripped, times of 1 s", &control.stripped_s, Cell::Empty, all_or_nothing);
        push("stripped, times of 1 ns", &control.stripped, of(control.each), Cell::Empty);
    }
    table
}

fn row<'a>(found: &'a Found, tree: usize, precision: Precision, name: &str) -> Option<&'a Row> {
    found.rows.iter().find(|row| (row.tree, row.precision, row.name) == (tree, precision, name))
}

fn size_table(found: &Found) -> Table {
    let mut table = Table::new(
        "figure-3-2",
        "Figure 3.2: bytes of code an inode, padded to whole bytes",
        &[
            "times",
            "tree",
            "compressor",
            "own",
            "built-in",
            "worst other",
            "whose",
            "least",
            "most",
            "verbatim",
            "own, bits",
        ],
    );
    for row in &found.rows {
        let whose = row.worst.as_ref().map_or(Cell::Empty, |(_, tree)| found.trees[*tree].name.as_str().into());
        table.push(vec![
            precision_name(row.precision).into(),
            found.trees[row.tree].name.as_str().into(),
            row.name.into(),
            number(row.own.mean(), 2),
            row.built_in.as_ref().map_or(Cell::Empty, |measured| number(measured.mean(), 2)),
            row.worst.as_ref().map_or(Cell::Empty, |(measured, _)| number(measured.mean(), 2)),
            whose,
            (row.own.least as u64).into(),
            (row.own.most as u64).into(),
            row.own.verbatim.into(),
            number(row.own.bits as f64 / row.own.inodes as f64, 1),
        ]);
    }
    table
}

fn spread(rates: [f64; 3]) -> Cell {
    let [slowest, median, fastest] = rates;
    Cell::Text(format!("{median:.2} ({slowest:.2}-{fastest:.2})"))
}

fn speed_table(found: &Found) -> Table {
    let mut table = Table::new(
        "figure-3-3",
        "Figure 3.3: millions of inodes a second, one thread",
        &["times", "tree", "compressor", "encode, own", "decode, own", "encode, worst", "decode, worst"],
    );
    for row in &found.rows {
        let worst =
            |of: fn(&super::Speed) -> [f64; 3]| row.worst_speed.as_ref().map_or(Cell::Empty, |speed| spread(of(speed)));
        table.push(vec![
            precision_name(row.precision).into(),
            found.trees[row.tree].name.as_str().into(),
            row.name.into(),
            spread(row.own_speed.encode),
            spread(row.own_speed.decode),
            worst(|speed| speed.encode),
            worst(|speed| speed.decode),
        ]);
    }
    table
}

/// Compressors in the order of the figures.
const NAMES: [&str; 5] = ["all-or-nothing", "huffman", "gamma", "mixed", "hybrid"];

fn field_table(found: &Found) -> Table {
    let mut columns = vec!["times".to_string(), "field".to_string()];
    columns.extend(NAMES.map(Into::into));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::new(
        "figure-3-4",
        "Figure 3.4: bits of each field, own profile: mean of all trees (least-most)",
        &columns,
    );
    for precision in PRECISIONS {
        for (place, field) in Field::ALL.into_iter().enumerate() {
            let cell = |name: &str| {
                let rows: Vec<&Row> =
                    found.rows.iter().filter(|row| row.precision == precision && row.name == name).collect();
                let of = |row: &Row| {
                    let coded = row.own.inodes - row.own.verbatim;
                    (coded > 0).then(|| (row.own.fields[place].0 as f64 / coded as f64, row.own.fields[place]))
                };
                let values: Vec<_> = rows.into_iter().filter_map(of).collect();
                let mean = values.iter().map(|(mean, _)| mean).sum::<f64>() / values.len().max(1) as f64;
                let least = values.iter().map(|(_, of)| of.1).min().unwrap_or(0);
                let most = values.iter().map(|(_, of)| of.2).max().unwrap_or(0);
                if most == 0 { Cell::Text(String::new()) } else { Cell::Text(format!("{mean:.1} ({least}-{most})")) }
            };
            let cells: Vec<Cell> = NAMES.map(cell).into();
            if cells.iter().all(|cell| *cell == Cell::Text(String::new())) {
                continue;
            }
            let mut row: Vec<Cell> = vec![precision_name(precision).into(), field.name().into()];
            row.extend(cells);
            table.push(row);
        }
    }
    table
}

fn block_table(found: &Found) -> Table {
    let mut table = Table::new(
        "blocks",
        "Shoal's blocks of sixteen, own profile: bytes an inode by what they are, and speed of whole blocks (millions of inodes a second)",
        &[
            "times",
            "tree",
            "code",
            "padding",
            "length byte",
            "head",
            "bases",
            "total",
            "two profiles",
            "pointer, apart",
            "encode",
            "decode",
        ],
    );
    for blocks in &found.blocks {
        let total = blocks.code + blocks.padding + blocks.length + blocks.head + blocks.bases;
        table.push(vec![
            precision_name(blocks.precision).into(),
            found.trees[blocks.tree].name.as_str().into(),
            number(blocks.code, 2),
            number(blocks.padding, 2),
            number(blocks.length, 2),
            number(blocks.head, 2),
            number(blocks.bases, 2),
            number(total, 2),
            number(blocks.with_built_in, 2),
            number(blocks.pointer, 2),
            spread(blocks.speed.encode),
            spread(blocks.speed.decode),
        ]);
    }
    table
}

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

/// A ratio of a control is the paper's within this factor.
const CONTROL: f64 = 1.25;
/// Why a figure may be beside the paper's.
const FIELDS: &str = "trees of today: another share of equal owners, times and sizes";
const OWNERS: &str =
    "the paper's trees have 78 to 10,417 combinations of owner and permissions, these have fewer (table trees)";
const PROCESSORS: &str = "a processor of today";

/// The paper's compressors.
const PAPERS: [&str; 3] = ["all-or-nothing", "huffman", "gamma"];

fn comparison(found: &Found) -> Table {
    let mut claims = Comparison::new(Paper::Mramfs, "The paper beside ours");
    for precision in PRECISIONS {
        length_claims(found, precision, &mut claims);
    }
    let all = found.rows.iter();
    let most = all.clone().flat_map(|row| [Some(&row.own), row.built_in.as_ref(), row.worst.as_ref().map(|of| &of.0)]);
    let most = most.flatten().map(|measured| measured.most).max().unwrap_or(0) as u64;
    claims.push(
        "",
        "longest code of any inode under any profile",
        "at most 55 asked for".into(),
        most.into(),
        "B",
        Verdict::shown_if(most <= 55),
    );
    let gzip = range(found.controls.iter().map(|of| of.raw[0] as f64 / of.raw[1] as f64), 1);
    let by = |said: Said, (_, least, most): &(String, f64, f64)| {
        said.judge_spread(over_trees(*least, *most)).because(FIELDS)
    };
    let verdict = by(Said::about(8.0, CONTROL, Better::More), &gzip);
    claims.push("figure 3.1", "raw inodes by gzip, all trees", "8 : 1".into(), gzip.0.as_str().into(), ": 1", verdict);
    let bzip2 = range(found.controls.iter().map(|of| of.raw[0] as f64 / of.raw[2] as f64), 1);
    let verdict = by(Said::about(10.0, CONTROL, Better::More), &bzip2);
    claims.push(
        "figure 3.1",
        "raw inodes by bzip2, all trees",
        "10 : 1".into(),
        bzip2.0.as_str().into(),
        ": 1",
        verdict,
    );
    speed_claims(found, &mut claims);
    claims.into_table()
}

/// Adds claims about bytes of code at one precision: the paper's compressors and the hybrid, under
/// each profile.
fn length_claims(found: &Found, precision: Precision, claims: &mut Comparison) {
    let of = |tree: usize| PAPERS.iter().filter_map(move |name| row(found, tree, precision, name));
    let trees = 0..found.trees.len();
    let times = precision_name(precision);
    let best = trees.clone().map(|tree| of(tree).map(|row| row.own.mean()).fold(f64::MAX, f64::min));
    let (text, least, most) = range(best, 1);
    let is_s = precision == Precision::Seconds;
    let told = |text: &str| if is_s { Cell::from(text) } else { Cell::Empty };
    let of_figure = if is_s { "figure 3.2" } else { "" };
    let verdict = |said: Said, (least, most): (f64, f64)| match is_s {
        true => said.judge_spread(over_trees(least, most)).because(OWNERS),
        false => Verdict::Unjudged,
    };
    claims.push(
        of_figure,
        format!("best of the paper's codes, own profile, times of {times}"),
        told("14-19"),
        text.into(),
        "B",
        verdict(Said::range(14.0, 19.0, Better::Less), (least, most)),
    );
    let worst =
        trees.clone().filter_map(|tree| of(tree).filter_map(|row| Some(row.worst.as_ref()?.0.mean())).reduce(f64::max));
    let (text, least, most) = range(worst, 1);
    if !most.is_nan() {
        claims.push(
            of_figure,
            format!("worst of the paper's codes, other profile, times of {times}"),
            told("30-37"),
            text.into(),
            "B",
            verdict(Said::range(30.0, 37.0, Better::Less), (least, most)),
        );
    }
    let wins = trees
        .clone()
        .filter(|tree| of(*tree).min_by(|a, b| a.own.bytes.cmp(&b.own.bytes)).is_some_and(|row| row.name == "huffman"));
    let text = format!("{} of {}", wins.count(), found.trees.len());
    let what = format!("Huffman is the shortest, times of {times}");
    claims.push(of_figure, what, told("4 of 7"), text.into(), "trees", Verdict::Unjudged);
    let hybrid = |of: fn(&Row) -> Option<f64>| {
        range(trees.clone().filter_map(|tree| of(row(found, tree, precision, "hybrid")?)), 1)
    };
    let (text, _, most) = hybrid(|row| Some(row.own.mean()));
    let bound = if is_s { 16.0 } else { 20.0 };
    let asked = format!("at most {bound} asked for");
    let what = format!("hybrid, own profile, times of {times}");
    claims.push("", what, asked.into(), text.into(), "B", Verdict::shown_if(most <= bound));
    let (text, ..) = hybrid(|row| Some(row.built_in.as_ref()?.mean()));
    let what = format!("hybrid, built-in profile, times of {times}");
    claims.push("", what, Cell::Empty, text.into(), "B", Verdict::Unjudged);
    let (text, _, most) = hybrid(|row| Some(row.worst.as_ref()?.0.mean()));
    if !most.is_nan() {
        let what = format!("hybrid, worst other profile, times of {times}");
        claims.push("", what, Cell::Empty, text.into(), "B", Verdict::Unjudged);
    }
}

/// Adds claims about inodes a second: the paper's compressors, and Shoal's whole blocks.
fn speed_claims(found: &Found, claims: &mut Comparison) {
    let rows = |name: &'static str| {
        found.rows.iter().filter(move |row| row.name == name && row.precision == Precision::Seconds)
    };
    let told = |least: f64, most: f64| Cell::Text(format!("{least}-{most}"));
    for &(name, low, high) in TOLD_ENCODE {
        let (text, least, most) = range(rows(name).map(|row| row.own_speed.encode[1]), 1);
        let verdict = Said::range(low, high, Better::More).judge_spread(over_trees(least, most)).because(PROCESSORS);
        claims.push(
            "figure 3.3",
            format!("{name}, encode, times of 1 s"),
            told(low, high),
            text.into(),
            "M/s",
            verdict,
        );
    }
    let (_, low, high) = TOLD_DECODE[0];
    for name in PAPERS {
        let (text, least, most) = range(rows(name).map(|row| row.own_speed.decode[1]), 1);
        let verdict = Said::range(low, high, Better::More).judge_spread(over_trees(least, most)).because(PROCESSORS);
        claims.push(
            "figure 3.3",
            format!("{name}, decode, times of 1 s"),
            told(low, high),
            text.into(),
            "M/s",
            verdict,
        );
    }
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

/// The name on the axis of what the paper says of all its trees.
const PAPERS_TREES: &str = "the paper's trees";

/// Ranges that the paper gives over its trees.
type Told = &'static [(&'static str, f64, f64)];
const TOLD_CODE: Told = &[("shortest code of each tree", 14.0, 19.0)];
const TOLD_WORST: Told = &[("worst of all profiles", 30.0, 37.0)];
const TOLD_ENCODE: Told = &[("all-or-nothing", 0.8, 0.95), ("huffman", 0.27, 0.6), ("gamma", 0.48, 0.6)];
const TOLD_DECODE: Told = &[("range over its trees", 2.2, 2.7)];

/// Plots something of each compressor on each tree, with the paper's ranges at the right.
fn by_tree(found: &Found, precision: Precision, told: Told, of: &dyn Fn(&Row) -> Option<[f64; 3]>) -> Plot {
    let of_name = |name: &'static str| {
        let rows = found.rows.iter().filter(|row| row.precision == precision && row.name == name);
        Series::spread(name, rows.filter_map(|row| Some((row.tree as f64, of(row)?))))
    };
    let mut series: Vec<Series> = NAMES.map(of_name).into_iter().filter(|series| !series.points.is_empty()).collect();
    let mut names: Vec<String> = found.trees.iter().map(|tree| tree.name.clone()).collect();
    // The paper's times are of 1 s.
    if precision == Precision::Seconds {
        let at = names.len() as f64;
        let ends = |(name, low, high): &(&str, f64, f64)| Series {
            intervals: vec![(*low, *high); 2],
            ..Series::paper(name, [(at, *low), (at, *high)])
        };
        series.extend(told.iter().map(ends));
        names.push(PAPERS_TREES.into());
    }
    Plot {
        name: String::new(),
        title: String::new(),
        x: String::new(),
        y: String::new(),
        series,
        style: Style { names, ..Style::default() },
    }
}

pub fn plots(found: &Found) -> Vec<Plot> {
    let mut plots = vec![];
    let (bytes, rate) = ("length of a code (bytes an inode)", "speed (millions of inodes/s)");
    for precision in PRECISIONS {
        let suffix = if precision == Precision::Seconds { "s" } else { "ns" };
        let times = precision_name(precision);
        let mut push = |name: &str, title: String, y: &str, plot: Plot| {
            let title = match precision {
                Precision::Seconds => format!("{title}\npaper: lowest and highest of its own seven trees"),
                Precision::Nanoseconds => title,
            };
            plots.push(Plot { name: format!("{name}-{suffix}"), title, x: "tree".into(), y: y.into(), ..plot });
        };
        push(
            "figure-3-2",
            format!("Figure 3.2: mean length of codes, own profile, times of {times}"),
            bytes,
            by_tree(found, precision, TOLD_CODE, &|row| Some([row.own.mean(); 3])),
        );
        if found.trees.len() > 1 {
            push(
                "figure-3-2-worst",
                format!("Figure 3.2: mean length of codes, worst profile of another tree, times of {times}"),
                bytes,
                by_tree(found, precision, TOLD_WORST, &|row| Some([row.worst.as_ref()?.0.mean(); 3])),
            );
        }
        let bars = "median of the runs; bars: slowest and fastest";
        push(
            "figure-3-3",
            format!("Figure 3.3: encoding with one thread, own profile, times of {times}\n{bars}"),
            rate,
            by_tree(found, precision, TOLD_ENCODE, &|row| Some(row.own_speed.encode)),
        );
        push(
            "figure-3-3-decode",
            format!("Figure 3.3: decoding with one thread, own profile, times of {times}\n{bars}"),
            rate,
            by_tree(found, precision, TOLD_DECODE, &|row| Some(row.own_speed.decode)),
        );
    }
    plots
}
