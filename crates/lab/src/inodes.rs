//! `shoal lab run inodes`: mramfs' study of inodes, on trees generated from its table 3.1 and on real
//! trees.
//!
//! | module | owns |
//! |---|---|
//! | `described` | trees generated from the rows of table 3.1 |
//! | `shape` | what table 3.1 says of a tree |
//! | `measure` | bytes, bits and speed of a compressor on a tree |
//! | `by_hand` | all-or-nothing coded by hand, for its speed |
//! | `controls` | all inodes at once under general compressors |
//! | `fields` | bits of each field of PostMark's inodes, as in appendix C |
//! | `causes` | the same trees with one property more or less |
//! | `figures` | the paper's tables and figures from the measurements |
//! | `claims` | the paper's claims beside ours |
//!
//! Owns: the experiment's options, and which profiles each compressor uses: the tree's own, the
//! built-in one, and those of all other trees of its kind. Rules: every code is decoded and compared
//! before it is counted. Sizes are exact and depend only on the trees and the seed; speeds are those
//! of this machine and are given with their spread. Described trees stand for the paper's, which had
//! times of 1 s.

mod by_hand;
mod causes;
mod claims;
mod controls;
mod described;
mod fields;
mod figures;
mod measure;
mod shape;

use std::hint::black_box;
use std::path::PathBuf;

use clap::Args;
use shoal_pack::{Census, Precision, Profile, ProfileFile, Triplets, by_frequency};

use by_hand::{Bits, ByHand};
use causes::Cause;
use described::{Description, TABLE_3_1, Without};
use shape::Shape;

use crate::experiment::{Common, LabError, Run};
use crate::plan;
use crate::report::Report;
use crate::tree::{self, Tree};
use controls::Controls;
use measure::{Blocks, Measured, Speed};

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run inodes\n  \
    shoal lab run inodes --tree /usr /home disk.img --out results")]
pub struct Options {
    /// Directories, or images of ext2, ext3 or ext4; the profile of each is tried on the others
    #[arg(long, value_name = "DIR|IMAGE", num_args = 1..)]
    pub tree: Vec<PathBuf>,
    /// Share of the inodes of the thesis's seven trees, for which such trees are generated; above 0, at most 1
    #[arg(long, value_name = "F", default_value_t = 0.125, value_parser = plan::scale)]
    pub share: f64,
    /// Seed for the generated trees
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of runs of each speed measurement; the median, slowest and fastest are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
}

/// Maximum number of inodes of a scanned tree under `--quick`, and the share of a described one.
const QUICK: usize = 4096;
const QUICK_SHARE: f64 = 0.01;

pub(crate) const PRECISIONS: [Precision; 2] = [Precision::Seconds, Precision::Nanoseconds];

/// A compressor on a tree.
struct Row {
    tree: usize,
    precision: Precision,
    name: &'static str,
    own: Measured,
    own_speed: Speed,
    built_in: Option<Measured>,
    /// The results under the profiles of other trees of the kind, and the index of each.
    others: Vec<(Measured, usize)>,
    worst_speed: Option<Speed>,
}

impl Row {
    /// Returns the result under the profile that is worst for this tree, and whose it is.
    fn worst(&self) -> Option<&(Measured, usize)> {
        self.others.iter().max_by_key(|(measured, _)| measured.bytes)
    }
}

/// All measurements.
struct Found {
    /// Scanned trees, then described ones.
    trees: Vec<Tree>,
    /// Number of scanned trees.
    scanned: usize,
    /// The shapes of the scanned trees.
    shapes: Vec<Shape>,
    /// The rows of table 3.1, and the shapes of trees generated from them, in full.
    described: Vec<(Description, Shape)>,
    rows: Vec<Row>,
    /// Of the scanned trees, then of the first described one in full.
    controls: Vec<Controls>,
    blocks: Vec<Blocks>,
    causes: Vec<Cause>,
    fields: fields::Fields,
    /// Millions of inodes a second of each described tree by all-or-nothing coded by hand: slowest,
    /// median, fastest run.
    by_hand: Vec<[f64; 3]>,
}

impl Found {
    fn is_described(&self, tree: usize) -> bool {
        tree >= self.scanned
    }

    fn described_trees(&self) -> std::ops::Range<usize> {
        self.scanned..self.trees.len()
    }

    fn row(&self, tree: usize, precision: Precision, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| (row.tree, row.precision, row.name) == (tree, precision, name))
    }
}

fn scan(options: &Options, is_quick: bool) -> Result<Vec<Tree>, LabError> {
    let mut trees = options.tree.iter().map(|path| tree::scan(path)).collect::<Result<Vec<Tree>, _>>()?;
    if is_quick {
        for tree in &mut trees {
            tree.records.truncate(QUICK);
            tree.raw.iter_mut().for_each(|raw| raw.truncate(QUICK));
        }
    }
    Ok(trees)
}

/// Measures all compressors on a tree.
fn compress(
    found: &mut Found,
    at: usize,
    triplets: &Triplets,
    profiles: &[Vec<Profile>],
    runs: u32,
) -> Result<(), LabError> {
    let built_in = ProfileFile::built_in();
    let is_described = found.is_described(at);
    let tree = &found.trees[at];
    let precisions = if is_described { &PRECISIONS[..1] } else { &PRECISIONS[..] };
    for &precision in precisions {
        let subject = measure::Subject::new(tree, precision, triplets);
        for (place, profile) in profiles[at].iter().enumerate().filter(|(_, own)| own.precision == precision) {
            let (own, own_speed) = (subject.sizes(profile)?, subject.speed(profile, runs));
            let other = built_in.find(profile.name(), precision).filter(|_| !is_described);
            let built_in = other.map(|profile| subject.sizes(profile)).transpose()?;
            let kind =
                (0..found.trees.len()).filter(|other| *other != at && found.is_described(*other) == is_described);
            let others = kind
                .map(|other| Ok((subject.sizes(&profiles[other][place])?, other)))
                .collect::<Result<Vec<_>, LabError>>()?;
            let name = profile.name();
            let row = Row { tree: at, precision, name, own, own_speed, built_in, others, worst_speed: None };
            let worst_speed = row.worst().map(|(_, other)| subject.speed(&profiles[*other][place], runs));
            found.rows.push(Row { worst_speed, ..row });
        }
        let own = profiles[at].iter().find(|own| own.name() == "hybrid" && own.precision == precision);
        let others: Vec<&Profile> = built_in.find("hybrid", precision).into_iter().collect();
        found.blocks.push(subject.blocks(own.expect("there is one for each precision"), &others, at, runs)?);
    }
    Ok(())
}

/// Measures the speed of all-or-nothing coded by hand.
fn hand_speed(tree: &Tree, runs: u32) -> Result<[f64; 3], LabError> {
    let code = ByHand::of(&tree.records);
    if !code.is_right(&tree.records) {
        return Err(LabError::Broken { what: format!("{}: by hand", tree.name), why: "came back changed".into() });
    }
    let mut bits = Bits::default();
    Ok(measure::rate(tree.records.len(), runs, || {
        for record in &tree.records {
            code.encode(record, &mut bits);
            black_box(&bits);
        }
    }))
}

fn measure(options: &Options, is_quick: bool) -> Result<Found, LabError> {
    let mut trees = scan(options, is_quick)?;
    let scanned = trees.len();
    let share = if is_quick { QUICK_SHARE } else { options.share };
    let plain = Without::default();
    let seven = TABLE_3_1.iter().filter(|of| of.is_studied);
    trees.extend(seven.map(|of| described::generate(of, share, plain, options.seed)));
    // Whole trees, one at a time.
    let whole = if is_quick { QUICK_SHARE } else { 1.0 };
    let shape = |of: &Description| (*of, Shape::of(&described::generate(of, whole, plain, options.seed)));
    let triplets: Vec<Triplets> = trees.iter().map(|tree| by_frequency(tree.records.iter())).collect();
    let profiles: Vec<Vec<Profile>> = trees.iter().map(|tree| Census::of(&[&tree.records]).profiles()).collect();
    let runs = if is_quick { 1 } else { options.runs };
    let mut control = described::generate(&TABLE_3_1[0], whole, plain, options.seed);
    control.raw = Some(described::raw(&control.records));
    let controls = trees[..scanned].iter().chain([&control]).map(controls::measure).collect::<Result<_, _>>()?;
    let fields = fields::measure(&trees[scanned..], &triplets[scanned..], &profiles[scanned..], options.seed);
    let causes = causes::measure(&trees[..scanned], share, options.seed)?;
    let by_hand = trees[scanned..].iter().map(|tree| hand_speed(tree, runs)).collect::<Result<_, _>>()?;
    let mut found = Found {
        shapes: trees[..scanned].iter().map(Shape::of).collect(),
        described: TABLE_3_1.iter().map(shape).collect(),
        trees,
        scanned,
        rows: vec![],
        controls,
        blocks: vec![],
        causes,
        fields,
        by_hand,
    };
    for (at, triplets) in triplets.iter().enumerate() {
        compress(&mut found, at, triplets, &profiles, runs)?;
    }
    Ok(found)
}

impl Run for Options {
    const PAPER: &'static str = "Edel: MRAMFS, a compressing file system for byte-addressable non-volatile RAM (thesis, UCSC), chapter 3: table 3.1, figures 3.1 to 3.4";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let found = measure(self, common.quick)?;
        let trees: String = self.tree.iter().map(|path| format!(" {}", path.display())).collect();
        let mut skipped: Vec<String> = found
            .trees
            .iter()
            .filter(|tree| tree.unread > 0)
            .map(|tree| format!("{}: {} directories, files or groups that could not be read", tree.name, tree.unread))
            .collect();
        if common.quick {
            skipped.insert(0, format!("--quick: {QUICK} inodes of each tree, one run; figures are not to be quoted"));
        }
        if found.scanned < 2 {
            skipped.push("the worst other profile of real trees: --tree names fewer than two".into());
        }
        Ok(Report {
            experiment: "inodes".into(),
            command: format!(
                "shoal lab run inodes{} --runs {} --share {} --seed {}{}{trees}",
                if common.quick { " --quick" } else { "" },
                self.runs,
                self.share,
                self.seed,
                if trees.is_empty() { "" } else { " --tree" },
            ),
            seed: Some(self.seed),
            skipped,
            notes: figures::notes(),
            tables: figures::tables(&found),
            plots: figures::plots(&found),
        })
    }
}
