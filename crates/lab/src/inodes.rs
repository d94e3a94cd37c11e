//! `shoal lab run inodes`: mramfs' study of inodes on real trees.
//!
//! | module | owns |
//! |---|---|
//! | `measure` | bytes, bits and speed of a compressor on a tree |
//! | `controls` | all inodes at once under general compressors |
//! | `figures` | the paper's tables and figures from the measurements, and its claims beside ours |
//!
//! Owns: the experiment's options, and which profiles each compressor uses: the tree's own, the
//! built-in one, and those of all other trees. Rules: every code is decoded and compared before it
//! is counted. Sizes are exact and depend only on the trees; speeds are those of this machine and
//! are given with their spread.

mod controls;
mod figures;
mod measure;

use std::path::PathBuf;

use clap::Args;
use shoal_pack::{Census, Precision, Profile, ProfileFile, Triplets, by_frequency};

use crate::experiment::{Common, LabError, Run};
use crate::report::Report;
use crate::tree::{self, Tree};
use controls::Controls;
use measure::{Blocks, Measured, Speed};

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run inodes --tree /usr --tree /var\n  \
    shoal lab run inodes --tree /usr /home disk.img --out results")]
pub struct Options {
    /// Directories, or images of ext2, ext3 or ext4; the profile of each is tried on the others
    #[arg(long, value_name = "DIR|IMAGE", required = true, num_args = 1..)]
    pub tree: Vec<PathBuf>,
    /// Number of runs of each speed measurement; the median, slowest and fastest are shown
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
}

/// Maximum number of inodes of a tree under `--quick`.
const QUICK: usize = 4096;

pub(crate) const PRECISIONS: [Precision; 2] = [Precision::Seconds, Precision::Nanoseconds];

/// A compressor on a tree.
struct Row {
    tree: usize,
    precision: Precision,
    name: &'static str,
    own: Measured,
    own_speed: Speed,
    built_in: Option<Measured>,
    /// The result under the profile of the tree that is worst for this one, and the index of that
    /// tree.
    worst: Option<(Measured, usize)>,
    worst_speed: Option<Speed>,
}

/// All measurements.
struct Found {
    trees: Vec<Tree>,
    triplets: Vec<Triplets>,
    rows: Vec<Row>,
    controls: Vec<Controls>,
    blocks: Vec<Blocks>,
}

fn measure(options: &Options, is_quick: bool) -> Result<Found, LabError> {
    let mut trees = options.tree.iter().map(|path| tree::scan(path)).collect::<Result<Vec<Tree>, _>>()?;
    if is_quick {
        for tree in &mut trees {
            tree.records.truncate(QUICK);
            tree.raw.iter_mut().for_each(|raw| raw.truncate(QUICK));
        }
    }
    let triplets: Vec<Triplets> = trees.iter().map(|tree| by_frequency(tree.records.iter())).collect();
    let profiles: Vec<Vec<Profile>> = trees.iter().map(|tree| Census::of(&[&tree.records]).profiles()).collect();
    let built_in = ProfileFile::built_in();
    let runs = if is_quick { 1 } else { options.runs };
    let (mut rows, mut blocks) = (vec![], vec![]);
    for (at, tree) in trees.iter().enumerate() {
        for precision in PRECISIONS {
            let subject = measure::Subject::new(tree, precision, &triplets[at]);
            for (place, profile) in profiles[at].iter().enumerate().filter(|(_, own)| own.precision == precision) {
                let (own, own_speed) = (subject.sizes(profile)?, subject.speed(profile, runs));
                let built_in =
                    built_in.find(profile.name(), precision).map(|profile| subject.sizes(profile)).transpose()?;
                let mut worst: Option<(Measured, usize)> = None;
                for other in (0..trees.len()).filter(|other| *other != at) {
                    let measured = subject.sizes(&profiles[other][place])?;
                    if worst.as_ref().is_none_or(|(worst, _)| measured.bytes > worst.bytes) {
                        worst = Some((measured, other));
                    }
                }
                let worst_speed = worst.as_ref().map(|(_, other)| subject.speed(&profiles[*other][place], runs));
                rows.push(Row {
                    tree: at,
                    precision,
                    name: profile.name(),
                    own,
                    own_speed,
                    built_in,
                    worst,
                    worst_speed,
                });
            }
            let own = profiles[at].iter().find(|own| own.name() == "hybrid" && own.precision == precision);
            let others: Vec<&Profile> = built_in.find("hybrid", precision).into_iter().collect();
            blocks.push(subject.blocks(own.expect("there is one for each precision"), &others, at, runs)?);
        }
    }
    let controls = trees.iter().map(controls::measure).collect::<Result<_, _>>()?;
    Ok(Found { trees, triplets, rows, controls, blocks })
}

impl Run for Options {
    const PAPER: &'static str = "Edel: MRAMFS, a compressing file system for byte-addressable non-volatile RAM (thesis, UCSC), chapter 3: table 3.1, figures 3.1 to 3.4";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let found = measure(self, common.quick)?;
        let trees: Vec<String> = self.tree.iter().map(|path| path.display().to_string()).collect();
        let mut skipped: Vec<String> = found
            .trees
            .iter()
            .filter(|tree| tree.unread > 0)
            .map(|tree| format!("{}: {} directories, files or groups that could not be read", tree.name, tree.unread))
            .collect();
        if common.quick {
            skipped.insert(0, format!("--quick: {QUICK} inodes of each tree, one run; figures are not to be quoted"));
        }
        if found.trees.len() < 2 {
            skipped.push("the worst other profile: there is only one tree".into());
        }
        Ok(Report {
            experiment: "inodes".into(),
            command: format!(
                "shoal lab run inodes{} --runs {} --tree {}",
                if common.quick { " --quick" } else { "" },
                self.runs,
                trees.join(" ")
            ),
            seed: None,
            skipped,
            notes: figures::notes(),
            tables: figures::tables(&found),
            plots: figures::plots(&found),
        })
    }
}
