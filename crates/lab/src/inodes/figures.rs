//! The paper's tables and figures from the measurements.
//!
//! Owns: table 3.1, figures 3.1 to 3.4, the parts of Shoal's blocks. Rules: every table names the bytes it counts. "Bytes an inode" are codes padded to whole
//! bytes, without the length byte, pointers and the block's head, which have separate columns.

use shoal_pack::{Field, Precision};

use super::fields::APPENDIX_C;
use super::shape::{Shape, size_class};
use super::{Found, PRECISIONS, Row, claims};
use crate::report::{Cell, Plot, Series, Style, Table};

pub(super) fn number(value: f64, decimals: usize) -> Cell {
    Cell::Number(value, decimals)
}

pub(super) fn precision_name(precision: Precision) -> &'static str {
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
        appendix_c_table(found),
        simple_table(found),
        cause_table(found),
        block_table(found),
        claims::comparison(found),
    ]
}

fn profile_table(found: &Found) -> Table {
    let mut table = Table::new(
        "table-3-1",
        "Table 3.1: the thesis's trees, trees generated from it in full, and scanned trees",
        &[
            "tree",
            "whose",
            "inodes",
            "triplets",
            "of the system (%)",
            "most frequent triplet (%)",
            "owners of 0.1%",
            "most frequent size",
        ],
    );
    let ours = |shape: &Shape, whose: &str| {
        vec![
            shape.name.as_str().into(),
            whose.into(),
            shape.inodes.into(),
            shape.triplets.into(),
            number(shape.system_percent, 1),
            number(shape.first_percent, 1),
            shape.owners.into(),
            shape.size_class().into(),
        ]
    };
    for (of, shape) in &found.described {
        let told = |cell: Cell| if of.has_owners { cell } else { Cell::Empty };
        table.push(vec![
            of.name.into(),
            "thesis".into(),
            u64::from(of.inodes).into(),
            u64::from(of.triplets).into(),
            told(number(of.system_percent, 1)),
            Cell::Empty,
            told(u64::from(of.owners).into()),
            size_class(of.size_bits).into(),
        ]);
        table.push(ours(shape, "described"));
    }
    found.shapes.iter().for_each(|shape| table.push(ours(shape, "scanned")));
    table
}

fn control_table(found: &Found) -> Table {
    let mut table = Table::new(
        "figure-3-1",
        "Figure 3.1: all inodes of a tree as one file, bytes an inode (codes: own profile, times of 1 s)",
        &["tree", "what", "plain", "gzip", "bzip2", "raw : gzip", "raw : bzip2", "each deflated", "all-or-nothing"],
    );
    // The last is the first described tree, in full.
    for (at, control) in found.controls.iter().enumerate() {
        let tree = &found.trees[at];
        let inodes = control.inodes as f64;
        let of = |bytes: usize| number(bytes as f64 / inodes, 1);
        let raw = control.raw[0] as f64;
        let all_or_nothing =
            found.row(at, Precision::Seconds, "all-or-nothing").map_or(Cell::Empty, |row| number(row.own.mean(), 1));
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
        let whose = row.worst().map_or(Cell::Empty, |(_, tree)| found.trees[*tree].name.as_str().into());
        table.push(vec![
            precision_name(row.precision).into(),
            found.trees[row.tree].name.as_str().into(),
            row.name.into(),
            number(row.own.mean(), 2),
            row.built_in.as_ref().map_or(Cell::Empty, |measured| number(measured.mean(), 2)),
            row.worst().map_or(Cell::Empty, |(measured, _)| number(measured.mean(), 2)),
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
    for (tree, rates) in found.described_trees().zip(&found.by_hand) {
        let name = found.trees[tree].name.as_str().into();
        let rest = [spread(*rates), Cell::Empty, Cell::Empty, Cell::Empty];
        table.push(["1 s".into(), name, "all-or-nothing, by hand".into()].into_iter().chain(rest).collect());
    }
    table
}

/// Compressors in the order of the figures.
const NAMES: [&str; 5] = ["all-or-nothing", "huffman", "gamma", "mixed", "hybrid"];

fn field_table(found: &Found) -> Table {
    let columns: Vec<&str> = ["trees", "times", "field"].into_iter().chain(NAMES).collect();
    let mut table = Table::new(
        "figure-3-4",
        "Figure 3.4: bits of each field, own profile: mean of all trees of a kind (least-most)",
        &columns,
    );
    let kinds = [("described", true, Precision::Seconds)]
        .into_iter()
        .chain(PRECISIONS.map(|precision| ("scanned", false, precision)));
    for (kind, is_described, precision) in kinds {
        for field in Field::ALL {
            let cell = |name: &str| match field_bits(found, is_described, precision, name, field) {
                Some([mean, least, most]) if most > 0.0 => Cell::Text(format!("{mean:.1} ({least:.0}-{most:.0})")),
                _ => Cell::Text(String::new()),
            };
            let cells: Vec<Cell> = NAMES.map(cell).into();
            if cells.iter().all(|cell| *cell == Cell::Text(String::new())) {
                continue;
            }
            let mut row: Vec<Cell> = vec![kind.into(), precision_name(precision).into(), field.name().into()];
            row.extend(cells);
            table.push(row);
        }
    }
    table
}

/// Returns mean, least and greatest number of bits of a field over all trees of a kind, each with
/// its own profile.
pub(super) fn field_bits(
    found: &Found,
    is_described: bool,
    precision: Precision,
    name: &str,
    field: Field,
) -> Option<[f64; 3]> {
    let place = Field::ALL.iter().position(|other| *other == field)?;
    let rows = found.rows.iter().filter(|row| {
        (row.precision, row.name, found.is_described(row.tree)) == (precision, name, is_described)
            && row.own.inodes > row.own.verbatim
    });
    let rows: Vec<_> = rows.map(|row| (row.own.inodes - row.own.verbatim, row.own.fields[place])).collect();
    let mean = rows.iter().map(|(coded, bits)| bits.0 as f64 / *coded as f64).sum::<f64>() / rows.len().max(1) as f64;
    let least = rows.iter().map(|(_, bits)| bits.1).min()?;
    Some([mean, least.into(), rows.iter().map(|(_, bits)| bits.2).max()?.into()])
}

fn appendix_c_table(found: &Found) -> Table {
    let mut table = Table::new(
        "appendix-c",
        "Appendix C: bits of each field of PostMark's inodes under gamma tables of the described trees (mean, least-most)",
        &["tables of", "field", "thesis", "best tables", "tables of quarters"],
    );
    let cell = |[mean, least, most]: [f64; 3]| Cell::Text(format!("{mean:.1} ({least:.0}-{most:.0})"));
    let trees = &found.trees[found.scanned..];
    for ((tree, best), simple) in trees.iter().zip(&found.fields.best).zip(&found.fields.simple) {
        for (at, (field, bits)) in APPENDIX_C.into_iter().enumerate() {
            let cells = [cell(bits), cell(best[at]), cell(simple[at])];
            table.push([tree.name.as_str().into(), field.name().into()].into_iter().chain(cells).collect());
        }
    }
    table
}

fn simple_table(found: &Found) -> Table {
    let mut table = Table::new(
        "simple",
        "Bytes of gamma codes on the described trees, with the best tables and with tables of quarters",
        &["tree", "best, own", "best, worst other", "quarters, own", "quarters, worst other"],
    );
    for (tree, simple) in found.described_trees().zip(&found.fields.whole) {
        let Some(row) = found.row(tree, Precision::Seconds, "gamma") else { continue };
        let worst = row.worst().map_or(Cell::Empty, |(of, _)| number(of.mean(), 2));
        let quarters = simple.map(|bytes| number(bytes, 2));
        let cells = [found.trees[tree].name.as_str().into(), number(row.own.mean(), 2), worst];
        table.push(cells.into_iter().chain(quarters).collect());
    }
    table
}

fn cause_table(found: &Found) -> Table {
    let mut table = Table::new(
        "causes",
        "Bytes of an inode by the shortest of the paper's codes, own profile, times of 1 s, and with one property more or less",
        &["tree", "change", "bytes"],
    );
    for cause in &found.causes {
        let change = if cause.change.is_empty() { "as it is" } else { cause.change };
        table.push(vec![cause.tree.as_str().into(), change.into(), number(cause.bytes, 2)]);
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

/// The name on the axis of what the paper says of all its trees.
const PAPERS_TREES: &str = "the paper's trees";

/// Ranges that the paper gives over its trees.
pub(super) type Told = &'static [(&'static str, f64, f64)];
pub(super) const TOLD_CODE: Told = &[("shortest code of each tree", 14.0, 19.0)];
pub(super) const TOLD_WORST: Told = &[("worst of all profiles", 30.0, 37.0)];
pub(super) const TOLD_ENCODE: Told = &[("all-or-nothing", 0.8, 0.95), ("huffman", 0.27, 0.6), ("gamma", 0.48, 0.6)];
pub(super) const TOLD_DECODE: Told = &[("range over its trees", 2.2, 2.7)];

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
    // Described trees have times of 1 s.
    let precisions = if found.scanned > 0 { &PRECISIONS[..] } else { &PRECISIONS[..1] };
    for &precision in precisions {
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
        if found.rows.iter().any(|row| row.precision == precision && row.worst().is_some()) {
            push(
                "figure-3-2-worst",
                format!("Figure 3.2: mean length of codes, worst profile of another tree, times of {times}"),
                bytes,
                by_tree(found, precision, TOLD_WORST, &|row| Some([row.worst()?.0.mean(); 3])),
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
    plots.push(field_plot(found));
    plots
}

/// Plots the bits of each field, beside the paper's.
fn field_plot(found: &Found) -> Plot {
    let fields = [
        Field::Mode,
        Field::Uid,
        Field::Gid,
        Field::Triplet,
        Field::Links,
        Field::Size,
        Field::Ctime,
        Field::Mtime,
        Field::Atime,
        Field::Optional,
    ];
    let series = |name: &str| {
        let bits = fields.iter().enumerate().filter_map(|(at, field)| {
            let [mean, least, most] = field_bits(found, true, Precision::Seconds, name, *field)?;
            (most > 0.0).then_some((at as f64, [least, mean, most]))
        });
        Series::spread(name, bits)
    };
    let place = |field: Field| fields.iter().position(|other| *other == field).unwrap_or(0) as f64;
    let paper = Series {
        intervals: APPENDIX_C.iter().map(|(_, [_, least, most])| (*least, *most)).collect(),
        ..Series::paper("gamma, PostMark's inodes", APPENDIX_C.map(|(field, [mean, ..])| (place(field), mean)))
    };
    Plot {
        name: "figure-3-4".into(),
        title: "Figure 3.4: bits of each field on the described trees, own profile\nmean; bars: least and most".into(),
        x: "field".into(),
        y: "length of its code (bits)".into(),
        series: ["huffman", "gamma"].map(series).into_iter().chain([paper]).collect(),
        style: Style { names: fields.iter().map(|field| field.name().into()).collect(), ..Style::default() },
    }
}
