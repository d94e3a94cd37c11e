//! Table 4.1 and figures 4.1 to 4.3 from the measurements.
//!
//! Owns: bins of equal width (512 bytes, as in the paper) and of equal count (as its readers asked
//! for); means weighted by file, by byte, and by bin. Rules: a saving is the share that compression
//! removes; a remainder is the share that is left, as in the paper's figure 4.1. The paper averages
//! over bins of 512 bytes, each of which counts the same.

use super::claims;
use super::kinds::Kind;
use super::measure::{CLASS, CLASSES, Found, Measured, Sample, class_of};
use crate::report::{Cell, GAP, Plot, Series, Style, Table};

/// Bins of equal count.
const COUNT_BINS: usize = 64;

pub(super) fn number(value: f64, decimals: usize) -> Cell {
    if value.is_finite() { Cell::Number(value, decimals) } else { Cell::Empty }
}

pub fn notes(sample: &Sample, found: &Found) -> Vec<String> {
    let bytes: usize = found.lengths.iter().sum();
    vec![
        format!("{} files of {} of 1 byte to 128 KiB, {:.1} MB", sample.files.len(), found.all, bytes as f64 / 1e6),
        format!("the dictionary has {} bytes, once for all files; it was trained on other files of the trees", found.dictionary),
        "a file that would grow is kept as it is; lengths kept elsewhere are not counted".into(),
        "MB/s: megabytes of plain data in a second of processor time of one thread, fastest run of each class; classes of 512 bytes"
            .into(),
        "deflate level 6 (miniz_oxide), zstd level 3, lz4_flex, lzokay's LZO1X, LZRW1 of our own".into(),
    ]
}

/// Returns the savings in percent: the mean over files, and the mean over bytes.
pub(super) fn savings(found: &Found, measured: &Measured, of: impl Fn(usize) -> bool) -> [f64; 2] {
    let (mut files, mut by_file, mut plain, mut packed) = (0usize, 0.0, 0usize, 0usize);
    for (&len, &compressed) in found.lengths.iter().zip(&measured.compressed).filter(|(len, _)| of(**len)) {
        files += 1;
        by_file += 1.0 - compressed as f64 / len as f64;
        plain += len;
        packed += compressed;
    }
    [by_file / files as f64 * 100.0, (1.0 - packed as f64 / plain as f64) * 100.0]
}

/// Returns the mean saving of the bins of 512 bytes between two sizes (percent), each of which counts
/// the same.
pub(super) fn saving_by_bin(found: &Found, measured: &Measured, from: usize, to: usize) -> f64 {
    let mut bins = vec![(0.0, 0u32); CLASSES];
    for (len, packed) in found.lengths.iter().zip(&measured.compressed) {
        let (sum, files) = &mut bins[class_of(*len)];
        *sum += 1.0 - *packed as f64 / *len as f64;
        *files += 1;
    }
    let bins = bins[from / CLASS..to / CLASS].iter().filter(|(_, files)| *files > 0);
    let (count, sum) = bins.fold((0, 0.0), |(count, sum), (of, files)| (count + 1, sum + of / f64::from(*files)));
    sum / f64::from(count) * 100.0
}

/// Returns bytes a second of the files between two sizes.
pub(super) fn speed(found: &Found, rates: &[Option<f64>], from: usize, to: usize) -> f64 {
    let lengths = found.lengths.iter().filter(|len| (from + 1..=to).contains(*len));
    let (mut bytes, mut seconds) = (0.0, 0.0);
    for len in lengths {
        let Some(rate) = rates[class_of(*len)] else { continue };
        bytes += *len as f64;
        seconds += *len as f64 / rate;
    }
    bytes / seconds
}

/// Returns the least and greatest megabytes a second of the classes between two sizes.
fn rates(rates: &[Option<f64>], from: usize, to: usize) -> String {
    let classes = rates[from / CLASS..to / CLASS].iter().flatten();
    let (least, most) = classes.fold((f64::INFINITY, 0f64), |(least, most), rate| (least.min(*rate), most.max(*rate)));
    if least > most { String::new() } else { format!("{:.0}-{:.0}", least / 1e6, most / 1e6) }
}

pub fn tables(found: &Found) -> Vec<Table> {
    vec![
        summary(found),
        by_class(found),
        by_kind(found),
        calls(found),
        equal_count(found),
        cumulative(found),
        claims::comparison(found),
    ]
}

fn summary(found: &Found) -> Table {
    let mut table = Table::new(
        "table-4-1",
        "Table 4.1: savings (%) and speed (MB/s)",
        &[
            "compressor",
            "by file",
            "by byte",
            "by bin",
            "compress",
            "512B-4KB",
            "16-128KB",
            "decompress",
            "512B-4KB, decompress",
            "16-128KB, decompress",
        ],
    );
    let bytes: usize = found.lengths.iter().sum();
    for measured in &found.compressors {
        let [by_file, by_byte] = savings(found, measured, |_| true);
        table.push(vec![
            measured.name.into(),
            number(by_file, 1),
            number(by_byte, 1),
            number(saving_by_bin(found, measured, 0, 128 << 10), 1),
            number(bytes as f64 / measured.compress_s / 1e6, 1),
            rates(&measured.compress_rate, 512, 4096).into(),
            rates(&measured.compress_rate, 16 << 10, 128 << 10).into(),
            number(bytes as f64 / measured.decompress_s / 1e6, 1),
            rates(&measured.decompress_rate, 512, 4096).into(),
            rates(&measured.decompress_rate, 16 << 10, 128 << 10).into(),
        ]);
    }
    table
}

/// Returns the names of all compressors, preceded by the columns `first`.
fn columns<'a>(found: &'a Found, first: &[&'a str]) -> Vec<&'a str> {
    first.iter().copied().chain(found.compressors.iter().map(|measured| measured.name)).collect()
}

fn by_class(found: &Found) -> Table {
    let mut table = Table::new("sizes", "Savings by size (%, by file)", &columns(found, &["from", "to", "files"]));
    let mut from = 0;
    for to in [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072] {
        let is_within = |len: usize| (from + 1..=to).contains(&len);
        let files = found.lengths.iter().filter(|len| is_within(**len)).count();
        let mut row = vec![(from as u64 + 1).into(), (to as u64).into(), (files as u64).into()];
        row.extend(found.compressors.iter().map(|measured| number(savings(found, measured, is_within)[0], 1)));
        table.push(row);
        from = to;
    }
    table
}

fn by_kind(found: &Found) -> Table {
    let title = "Savings by what a file is (%, by byte)";
    let mut table = Table::new("kinds", title, &columns(found, &["kind", "files", "MB"]));
    for kind in Kind::ALL {
        let of = |lengths: &[usize]| -> usize {
            lengths.iter().zip(&found.kinds).filter(|(_, of)| **of == kind).map(|(len, _)| len).sum()
        };
        let plain = of(&found.lengths);
        let files = found.kinds.iter().filter(|of| **of == kind).count() as u64;
        let mut row = vec![kind.name().into(), files.into(), number(plain as f64 / 1e6, 2)];
        row.extend(
            found.compressors.iter().map(|by| number((1.0 - of(&by.compressed) as f64 / plain as f64) * 100.0, 1)),
        );
        table.push(row);
    }
    table
}

/// Sizes whose speeds the table of calls has.
const STEPS: [usize; 10] = [0, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072];

fn calls(found: &Found) -> Table {
    let title =
        "Speed by size (MB/s of compression; of decompression), and the time of a call beside that of its bytes (us)";
    let mut table = Table::new("speeds", title, &columns(found, &["from", "to"]));
    for step in STEPS.windows(2) {
        let cell = |by: &Measured| {
            let [one, other] =
                [&by.compress_rate, &by.decompress_rate].map(|rates| speed(found, rates, step[0], step[1]) / 1e6);
            Cell::Text(format!("{one:.0}; {other:.0}"))
        };
        let row = [(step[0] as u64 + 1).into(), (step[1] as u64).into()].into_iter();
        table.push(row.chain(found.compressors.iter().map(cell)).collect());
    }
    let call = |by: &Measured| {
        let small = speed(found, &by.compress_rate, 0, 512);
        let large = speed(found, &by.compress_rate, 16 << 10, 128 << 10);
        let files = found.lengths.iter().filter(|len| **len <= 512);
        let mean = files.clone().sum::<usize>() as f64 / files.count().max(1) as f64;
        number((mean / small - mean / large) * 1e6, 2)
    };
    let row = ["a call".into(), Cell::Empty].into_iter();
    table.push(row.chain(found.compressors.iter().map(call)).collect());
    table
}

/// Returns the remainder of a bin (percent), as the mean over its files.
fn remainder(lengths: &[usize], compressed: &[usize]) -> f64 {
    let sum: f64 = lengths.iter().zip(compressed).map(|(len, packed)| *packed as f64 / *len as f64).sum();
    sum / lengths.len() as f64 * 100.0
}

/// Returns the range of places of each bin of equal count.
fn count_bins(found: &Found) -> Vec<std::ops::Range<usize>> {
    let files = found.lengths.len();
    let bins = COUNT_BINS.min(files);
    (0..bins).map(|bin| bin * files / bins..(bin + 1) * files / bins).collect()
}

fn equal_count(found: &Found) -> Table {
    let mut table = Table::new(
        "figure-4-1-count",
        format!(
            "Figure 4.1 with bins of equal count, about {} files each: what is left (%)",
            found.lengths.len() / COUNT_BINS
        ),
        &columns(found, &["from", "to"]),
    );
    for bin in count_bins(found) {
        let lengths = &found.lengths[bin.clone()];
        let mut row = vec![(lengths[0] as u64).into(), (lengths[lengths.len() - 1] as u64).into()];
        row.extend(found.compressors.iter().map(|of| number(remainder(lengths, &of.compressed[bin.clone()]), 1)));
        table.push(row);
    }
    table
}

fn cumulative(found: &Found) -> Table {
    let mut table = Table::new(
        "figure-4-3",
        "Figure 4.3: space of all files up to a size (MB)",
        &columns(found, &["size", "files", "plain"]),
    );
    for to in [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131_072usize] {
        let files = found.lengths.partition_point(|len| *len <= to);
        let mb = |lengths: &[usize]| number(lengths.iter().sum::<usize>() as f64 / 1e6, 2);
        let mut row = vec![(to as u64).into(), (files as u64).into(), mb(&found.lengths[..files])];
        row.extend(found.compressors.iter().map(|measured| mb(&measured.compressed[..files])));
        table.push(row);
    }
    table
}

/// Lowest and highest speed in two classes of sizes.
pub(super) type Speeds = [(f64, f64); 2];
/// The paper's table 4.1: name of the compressor as far as the paper says it, saving of a file
/// (percent), and lowest and highest speed for files of 512 B to 4 KB and of 16 to 128 KB (MB/s).
pub(super) const TABLE_4_1: [(&str, f64, Speeds); 3] = [
    ("deflate", 61.0, [(1.0, 15.0), (26.0, 38.0)]),
    ("lzo", 50.0, [(1.0, 13.0), (30.0, 57.0)]),
    ("lzrw1", 44.0, [(2.0, 20.0), (35.0, 54.0)]),
];
/// Megabytes of all files of the paper's figure 4.3: plain, and compressed.
pub(super) const FIGURE_4_3: (f64, [(&str, f64); 2]) = (1300.0, [("deflate", 570.0), ("lzrw1", 800.0)]);

const KIB: f64 = 1024.0;

/// Returns a series for each compressor.
fn each(found: &Found, points: &dyn Fn(&Measured) -> Vec<(f64, f64)>) -> Vec<Series> {
    found.compressors.iter().map(|of| Series::new(of.name, points(of))).collect()
}

/// Returns the middle of a class of sizes (KiB).
fn middle(class: usize) -> f64 {
    (class * CLASS + CLASS / 2) as f64 / KIB
}

fn by_size(name: &str, title: &str, y: &str, series: Vec<Series>, style: Style) -> Plot {
    Plot {
        name: name.into(),
        title: title.into(),
        x: "size of a file (KiB)".into(),
        y: y.into(),
        series,
        style: Style { is_log_x: true, ..style },
    }
}

/// Plots what is left, in bins of equal width and in bins of equal count.
fn left_plots(found: &Found) -> [Plot; 2] {
    // Size classes of the sample, as ranges of places.
    let class = |class: usize| {
        let place = |len: usize| found.lengths.partition_point(|of| *of <= len);
        place(class * CLASS)..place((class + 1) * CLASS)
    };
    let mut equal_width = each(found, &|measured| {
        let left = |bin: std::ops::Range<usize>| match bin.is_empty() {
            true => GAP,
            false => remainder(&found.lengths[bin.clone()], &measured.compressed[bin]),
        };
        (0..CLASSES).map(|at| (middle(at), left(class(at)))).collect()
    });
    let mut equal_count = each(found, &|measured| {
        let bins = count_bins(found).into_iter();
        bins.map(|bin| {
            let lengths = &found.lengths[bin.clone()];
            let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
            (mean / KIB, remainder(lengths, &measured.compressed[bin]))
        })
        .collect()
    });
    for series in [&mut equal_width, &mut equal_count] {
        series.extend(TABLE_4_1.iter().map(|(name, saving, _)| {
            let all = (f64::NEG_INFINITY, f64::INFINITY);
            let left = 100.0 - saving;
            Series::paper_ranges(&format!("{name}, mean of all files"), [[all, (left, left)]])
        }));
    }
    let y = "left of a file, mean of a bin (%)";
    let title = |bins: &str| format!("Figure 4.1: what compression leaves of a file\nbins of {bins}");
    [
        by_size("figure-4-1", &title("512 bytes"), y, equal_width, Style::default()),
        by_size("figure-4-1-count", &title("equal numbers of files"), y, equal_count, Style::default()),
    ]
}

fn speed_plots(found: &Found) -> [Plot; 2] {
    let speeds = |of: fn(&Measured) -> &Vec<Option<f64>>| {
        each(found, &move |measured| {
            let rates = of(measured).iter().enumerate();
            rates.map(|(at, rate)| (middle(at), rate.map_or(GAP, |rate| rate / 1e6))).collect()
        })
    };
    let mut compress = speeds(|of| &of.compress_rate);
    compress.extend(TABLE_4_1.iter().map(|(name, _, [small, large])| {
        let name = format!("{name}, of 512 B to 4 KB and of 16 to 128 KB");
        Series::paper_ranges(&name, [[(0.5, 4.0), *small], [(16.0, 128.0), *large]])
    }));
    let mut decompress = speeds(|of| &of.decompress_rate);
    let all = (f64::NEG_INFINITY, f64::INFINITY);
    decompress.push(Series::paper_ranges("mean of all files, 125 to 150 MB/s", [[all, (125.0, 150.0)]]));
    let style = || Style { is_log_y: true, ..Style::default() };
    let title = |what: &str| format!("Figure 4.2: speed of {what}, one thread\nfastest run of each class of 512 bytes");
    let y = "plain data (MB/s of processor time)";
    [
        by_size("figure-4-2", &title("compression"), y, compress, style()),
        by_size("figure-4-2-decompress", &title("decompression"), y, decompress, style()),
    ]
}

fn space_plot(found: &Found) -> Plot {
    let mut space = vec![("plain", &found.lengths)];
    space.extend(found.compressors.iter().map(|measured| (measured.name, &measured.compressed)));
    let space = space.into_iter().map(|(name, lengths)| {
        let points = (1..=128).map(|to| {
            let files = found.lengths.partition_point(|len| *len <= to * 1024);
            (to as f64, lengths[..files].iter().sum::<usize>() as f64 / 1e6)
        });
        Series::new(name, points)
    });
    let mut space: Vec<Series> = space.collect();
    let all = found.lengths.iter().sum::<usize>() as f64 / 1e6;
    let (plain, compressed) = FIGURE_4_3;
    space.extend(compressed.iter().map(|(name, mb)| {
        let share = mb / plain;
        Series::paper(&format!("{name}, {:.0}% of plain", share * 100.0), [(128.0, all * share)])
    }));
    let title = "Figure 4.3: space of all files up to a size\nthe paper's shares are applied to our files";
    Plot {
        style: Style::default(),
        ..by_size("figure-4-3", title, "space of these files (MB)", space, Style::default())
    }
}

pub fn plots(found: &Found) -> Vec<Plot> {
    let mut plots: Vec<Plot> = left_plots(found).into();
    plots.extend(speed_plots(found));
    plots.push(space_plot(found));
    plots
}
