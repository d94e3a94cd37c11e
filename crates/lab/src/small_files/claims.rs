//! The thesis's claims of chapter 4 beside ours.
//!
//! Owns: what it says of savings, speeds and space, and the margins. Rules: a saving that the thesis
//! averages is the mean over its bins of 512 bytes, each of which counts the same; those of figure
//! 4.3 are by byte. Its deflate has 6.3 MB/s on average, and 26 to 38 in the largest class: the two
//! cannot be of the same bytes, and both are quoted. A cause is a row of the tables `kinds` or
//! `speeds`.

use super::figures::{FIGURE_4_3, TABLE_4_1, number, saving_by_bin, savings, speed};
use super::measure::{Found, Measured};
use crate::exhibits::Paper;
use crate::report::{Better, Cell, Comparison, Said, Table, Verdict};

/// Percentage points within which a saving is the paper's: its three alike trees are "similar".
const NEAR: f64 = 5.0;
/// Why savings differ.
const KINDS: &str = "the mixture of text, programs and compressed files is another (table kinds)";
const PROCESSOR: &str = "a processor of today";
/// A speed or a ratio of speeds is the paper's within this factor.
const SPEED: f64 = 1.25;
const KIB: usize = 1024;
const ALL: usize = 128 * KIB;
/// Share of the full speed or saving from which it is reached: the paper reads it off a curve.
const REACHED: f64 = 0.95;

pub fn comparison(found: &Found) -> Table {
    let mut claims = Comparison::new(Paper::Mramfs, "The paper beside ours");
    let of = |name: &str| found.compressors.iter().find(|measured| measured.name == name);
    let all = ["deflate", "lzo", "lzrw1"].map(of);
    for (measured, told) in all.into_iter().flatten().zip(TABLE_4_1) {
        table_claims(found, measured, told, &mut claims);
    }
    if let [Some(deflate), Some(lzo), Some(lzrw1)] = all {
        saving_claims(found, [deflate, lzo, lzrw1], &mut claims);
        speed_claims(found, [deflate, lzo, lzrw1], &mut claims);
        space_claims(found, [deflate, lzo, lzrw1], &mut claims);
    }
    claims.into_table()
}

fn near(ours: f64, paper: f64) -> Verdict {
    Said::about(paper, 1.0, Better::More).within(NEAR).judge(ours).because(KINDS)
}

type Told = (&'static str, f64, super::figures::Speeds);

fn table_claims(found: &Found, measured: &Measured, (name, saving, [small, large]): Told, claims: &mut Comparison) {
    const OF: &str = "table 4.1";
    let ours = saving_by_bin(found, measured, 0, ALL);
    let what = format!("{name}: mean saving of the bins");
    claims.push(OF, what, number(saving, 0), number(ours, 1), "%", near(ours, saving));
    let [by_file, by_byte] = savings(found, measured, |_| true);
    for (what, ours) in [("by file", by_file), ("by byte", by_byte)] {
        claims.push("", format!("{name}: saving {what}"), Cell::Empty, number(ours, 1), "%", Verdict::Unjudged);
    }
    let average = match name {
        "deflate" => 6.3,
        "lzo" => 36.8,
        _ => 52.5,
    };
    let bytes: usize = found.lengths.iter().sum();
    let ours = bytes as f64 / measured.compress_s / 1e6;
    let verdict = Said::about(average, SPEED, Better::More).judge(ours).because(PROCESSOR);
    claims.push(OF, format!("{name}: average speed"), number(average, 1), number(ours, 1), "MB/s", verdict);
    for (what, (low, high), from, to) in
        [("512 B to 4 KB", small, 512, 4 * KIB), ("16 to 128 KB", large, 16 * KIB, ALL)]
    {
        let ours = speed(found, &measured.compress_rate, from, to) / 1e6;
        let verdict = Said::range(low, high, Better::More).judge(ours).because(PROCESSOR);
        let paper = format!("{low}-{high}");
        claims.push(OF, format!("{name}: speed of files of {what}"), paper.into(), number(ours, 0), "MB/s", verdict);
    }
}

/// Classes of sizes of figure 4.1, by their ends (KiB).
const CLASSES: [(usize, usize); 8] = [(0, 2), (2, 4), (4, 8), (8, 12), (12, 16), (16, 32), (32, 64), (64, 128)];

/// Returns the end of the first class in which a value is at least `least` (KB).
fn reached(mut values: impl Iterator<Item = f64>, least: f64) -> Option<f64> {
    let first = values.position(|value| value >= least)?;
    CLASSES.get(first).map(|(_, to)| *to as f64)
}

fn saving_claims(found: &Found, [deflate, lzo, lzrw1]: [&Measured; 3], claims: &mut Comparison) {
    const OF: &str = "figure 4.1";
    let mean = |by: &Measured, from: usize, to: usize| saving_by_bin(found, by, from * KIB, to * KIB);
    let all = [deflate, lzo, lzrw1].map(|by| mean(by, 0, 128));
    let is = all[0] > all[1] && all[1] > all[2];
    let text = format!("{:.0}, {:.0}, {:.0}", all[0], all[1], all[2]);
    let what = "order of the savings: deflate, LZO, LZRW1";
    claims.push(OF, what, "61, 50, 44".into(), text.into(), "%", Verdict::shown_if(is));
    for by in [deflate, lzo, lzrw1] {
        let name = by.name;
        let (small, middle, large) = (mean(by, 0, 4), mean(by, 4, 32), mean(by, 32, 128));
        let text = format!("{small:.0} against {middle:.0}");
        let what = format!("{name}: files below 4 KB compress less than those of 4 to 32 KB");
        claims.push(OF, what, "yes".into(), text.into(), "%", Verdict::shown_if(small < middle));
        // "Similar or slightly higher": not less by more than the margin, nor more by twice as much.
        let said = Said::range(-NEAR, 2.0 * NEAR, Better::Neither);
        let what = format!("{name}: files of 32 to 128 KB, \"similar or slightly higher\", against 4 to 32 KB");
        let text = format!("{large:.0} against {middle:.0}");
        let verdict = said.judge(large - middle).because(KINDS);
        claims.push(OF, what, "similar or more".into(), text.into(), "%", verdict);
        let average = mean(by, 0, 128);
        let from = reached(CLASSES.iter().map(|(from, to)| mean(by, *from, *to)), average * REACHED);
        // A class less or more is the same.
        let verdict = Said::range(8.0, 32.0, Better::Neither).judge_any(from).because(KINDS);
        let what = format!("{name}: files from which the average saving is reached");
        claims.push(OF, what, "12-16".into(), from.map_or(Cell::Empty, |from| number(from, 0)), "KB", verdict);
    }
}

fn speed_claims(found: &Found, [deflate, lzo, lzrw1]: [&Measured; 3], claims: &mut Comparison) {
    const OF: &str = "figure 4.2";
    let bytes = found.lengths.iter().sum::<usize>() as f64 / 1e6;
    let rates = [deflate, lzo, lzrw1].map(|by| bytes / by.compress_s);
    let text = format!("{:.0}, {:.0}, {:.0}", rates[0], rates[1], rates[2]);
    let what = "deflate is \"significantly\" slower than LZO and LZRW1";
    let is = rates[0] * 2.0 < rates[1].min(rates[2]);
    claims.push(OF, what, "6.3, 36.8, 52.5".into(), text.into(), "MB/s", Verdict::shown_if(is));
    let ratio = rates[1] / rates[2];
    // The paper's words, and its figures, which are of its own processor.
    let verdict = Said::about(36.8 / 52.5, 1.5, Better::More).judge(ratio);
    let why = "one probe and larger steps where nothing repeats, as LZO has since";
    claims.push(
        OF,
        "LZO : LZRW1, \"slightly worse\"",
        number(36.8 / 52.5, 2),
        number(ratio, 2),
        "",
        verdict.because(why),
    );
    for (by, paper) in [(deflate, 8.0), (lzo, 20.0), (lzrw1, 20.0)] {
        let of = |from: usize, to: usize| speed(found, &by.compress_rate, from * KIB, to * KIB);
        let full = of(16, 128);
        let from = reached(CLASSES.iter().map(|(from, to)| of(*from, *to)), full * REACHED);
        // A class of sizes less or more is the same.
        let verdict = Said::about(paper, 2.0, Better::Less).judge_any(from);
        let why = "a call costs as much as few bytes (table speeds), and small files of this tree compress less";
        let what = format!("{}: full speed from files of", by.name);
        claims.push(
            OF,
            what,
            number(paper, 0),
            from.map_or(Cell::Empty, |from| number(from, 0)),
            "KB",
            verdict.because(why),
        );
    }
    for by in [deflate, lzo, lzrw1] {
        let ours = bytes / by.decompress_s;
        let verdict = Said::range(125.0, 150.0, Better::More).judge(ours).because(PROCESSOR);
        let what = format!("{}: decompression, average", by.name);
        claims.push(OF, what, "125-150".into(), number(ours, 0), "MB/s", verdict);
    }
    let ratios = [deflate, lzo, lzrw1].map(|by| by.compress_s / by.decompress_s);
    let text = format!("{:.1}, {:.1}, {:.1}", ratios[0], ratios[1], ratios[2]);
    // By table 4.1 the paper's own are 20 or more, 3.4 to 4.1, and 2.4 to 2.9.
    let mean = (ratios[1] + ratios[2]) / 2.0;
    let verdict = Said::range(2.4, 4.1, Better::More).judge(mean);
    let why = "deflate, LZO, LZRW1; the mean of the fast two is judged: compression has become faster, copies of few bytes have not";
    claims.push(
        OF,
        "decompression is 3-4 times as fast as compression",
        "3-4".into(),
        text.into(),
        "",
        verdict.because(why),
    );
}

fn space_claims(found: &Found, [deflate, _, lzrw1]: [&Measured; 3], claims: &mut Comparison) {
    const OF: &str = "figure 4.3";
    // 750 MB of the paper's 1300 are files below 16 KB, which become 325 to 400.
    const SMALL: f64 = 750.0;
    let (plain, compressed) = FIGURE_4_3;
    let is_small = |len: usize| len <= 16 * KIB;
    let bytes = |of: fn(usize) -> bool| found.lengths.iter().filter(|len| of(**len)).sum::<usize>() as f64;
    let share = bytes(|len| len <= 16 * KIB) / bytes(|_| true);
    claims.push(
        "",
        "files up to 16 KB, of all bytes: a property of the tree",
        number(SMALL / plain * 100.0, 0),
        number(share * 100.0, 0),
        "%",
        Verdict::Unjudged,
    );
    for (by, (name, left), small_left) in [(deflate, compressed[0], 325.0), (lzrw1, compressed[1], 400.0)] {
        let paper = (1.0 - left / plain) * 100.0;
        let all = savings(found, by, |_| true)[1];
        claims.push(OF, format!("{name}: saving by byte"), number(paper, 0), number(all, 1), "%", near(all, paper));
        let [small, large] = [savings(found, by, is_small)[1], savings(found, by, |len| !is_small(len))[1]];
        let paper_small = (1.0 - small_left / SMALL) * 100.0;
        let what = format!("{name}: saving by byte of files up to 16 KB");
        claims.push(OF, what, number(paper_small, 0), number(small, 1), "%", near(small, paper_small));
        // The same files, weighted as in the paper's tree.
        let weighted = (small * SMALL + large * (plain - SMALL)) / plain;
        let what = format!("{name}: saving by byte, with the paper's share of files up to 16 KB");
        claims.push(OF, what, number(paper, 0), number(weighted, 1), "%", near(weighted, paper));
    }
}
