//! The cost of single properties of a tree: bytes of an inode with a property and without it.
//!
//! Owns: [`Cause`]. Rules: the bytes are those of the shortest of the paper's codes, with a profile
//! of the very tree. A property of a described tree is left out; a scanned tree gets the generations
//! that `stat` does not show.

use shoal_pack::{Census, Precision, by_frequency};
use shoal_sim::Random;

use super::described::{Description, TABLE_3_1, Without, generate};
use super::measure::Subject;
use crate::experiment::LabError;
use crate::tree::Tree;

/// The paper's compressors.
pub const PAPERS: [&str; 3] = ["all-or-nothing", "huffman", "gamma"];

/// Bytes of an inode of a tree, changed in one way.
pub struct Cause {
    pub tree: String,
    /// The property that was added or left out; "" for the tree as it is.
    pub change: &'static str,
    pub bytes: f64,
}

/// The changes of a described tree.
const CHANGES: [(&str, Without); 5] = [
    ("", Without { owners: false, generations: false, times: false }),
    ("one owner and mode", Without { owners: true, generations: false, times: false }),
    ("no generations", Without { owners: false, generations: true, times: false }),
    ("one time", Without { owners: false, generations: false, times: true }),
    ("neither owners nor generations", Without { owners: true, generations: true, times: false }),
];
/// Change of a scanned tree.
pub const WITH_GENERATIONS: &str = "with generations";

fn shortest(tree: &Tree) -> Result<f64, LabError> {
    let triplets = by_frequency(tree.records.iter());
    let subject = Subject::new(tree, Precision::Seconds, &triplets);
    let profiles = Census::of(&[&tree.records]).profiles();
    let papers = profiles.iter().filter(|of| of.precision == Precision::Seconds && PAPERS.contains(&of.name()));
    papers
        .map(|profile| Ok(subject.sizes(profile)?.mean()))
        .try_fold(f64::MAX, |least, mean: Result<f64, LabError>| Ok(least.min(mean?)))
}

/// Gives the inodes generations from a counter of events, as Linux 2.4 did.
fn with_generations(tree: &Tree, seed: u64) -> Tree {
    let (mut random, mut events) = (Random::new(seed), 1u32);
    let mut tree = tree.clone();
    for record in &mut tree.records {
        events = events.wrapping_add(1 + random.below(4) as u32);
        record.generation = events;
    }
    tree
}

pub fn measure(scanned: &[Tree], share: f64, seed: u64) -> Result<Vec<Cause>, LabError> {
    let mut causes = vec![];
    let mut push = |tree: &Tree, change| {
        causes.push(Cause { tree: tree.name.clone(), change, bytes: shortest(tree)? });
        Ok::<(), LabError>(())
    };
    for tree in scanned {
        push(tree, "")?;
        push(&with_generations(tree, seed), WITH_GENERATIONS)?;
    }
    let is_shown = |of: &&Description| of.is_ext2 && of.is_studied || of.triplets > 10_000;
    for of in TABLE_3_1.iter().filter(is_shown) {
        for (change, without) in CHANGES.into_iter().filter(|(_, without)| of.is_ext2 || !without.generations) {
            push(&generate(of, share, without, seed), change)?;
        }
    }
    Ok(causes)
}
