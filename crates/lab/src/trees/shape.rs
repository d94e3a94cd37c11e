//! A source tree made from a seed with the shape of a kernel's, and its tar file.
//!
//! Owns: [`Shape`]: directories, files and their sizes as a function of a seed; the ustar format as
//! far as files and directories need it. Sizes are log-normal: most files have some kilobytes, a
//! few a megabyte. The numbers of files in directories are log-normal, too. Contents are those of
//! PostMark's files. Rules: bytes and files add up exactly; a directory precedes its contents, as
//! in every archive; the same seed gives the same bytes. Left out: links, modes and owners, of
//! which a source tree has few.

use std::f64::consts::TAU;
use std::io::{self, Write};

use shoal_sim::Random;

use crate::postmark::Contents;

/// A kernel's source tree, at full scale.
pub const FILES: u32 = 28_497;
pub const BYTES: u64 = 384_000_000;
const FILES_PER_DIRECTORY: u32 = 15;
const TOP_DIRECTORIES: usize = 20;
/// Maximum number of names in the path of a directory, including the root.
const DEPTH_MAX: usize = 8;
/// Standard deviations of the logarithms.
const SIZE_SIGMA: f64 = 1.4;
const DIRECTORY_SIGMA: f64 = 1.2;
const DEVIATIONS_MAX: f64 = 4.0;
/// The time of all entries in the archive. It is constant, so that the same seed gives the same
/// bytes.
const MTIME_S: u64 = 1_600_000_000;
/// Unit of tar files; below it, the length of a name in a header.
const BLOCK: usize = 512;
const NAME_LEN_MAX: usize = 100;

/// Directories and files of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    seed: u64,
    /// Path and length of each file (none for a directory), in an archive's order.
    entries: Vec<(String, Option<u64>)>,
}

/// Draws from the normal distribution of mean 0 and deviation 1 (Box and Muller), without its far
/// ends: a rare file of 5 MB would be a share of the tree's bytes that no other seed has.
fn normal(random: &mut Random) -> f64 {
    // A number above 0 and at most 1.
    let mut unit = || ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
    loop {
        let drawn = (-2.0 * unit().ln()).sqrt() * (TAU * unit()).cos();
        if drawn.abs() <= DEVIATIONS_MAX {
            return drawn;
        }
    }
}

/// Splits `total` into log-normal shares.
fn shares(random: &mut Random, count: usize, sigma: f64, total: u64) -> Vec<u64> {
    let weights: Vec<f64> = (0..count).map(|_| (sigma * normal(random)).exp()).collect();
    let all = weights.iter().sum::<f64>();
    let (mut sum, mut given) = (0.0, 0);
    weights
        .iter()
        .map(|weight| {
            // The last sum is `all` itself, so nothing is left over.
            sum += weight;
            let until = (total as f64 * (sum / all)) as u64;
            until - std::mem::replace(&mut given, until)
        })
        .collect()
}

/// Returns the paths of the directories, the root first.
fn directories(random: &mut Random, count: usize) -> Vec<String> {
    let mut found = vec![("tree".to_string(), 1)];
    while found.len() < count {
        let parent = match found.len() {
            len if len <= TOP_DIRECTORIES => 0,
            // Take the lower of two draws: a tree is wide rather than deep.
            len => random.index(len).min(random.index(len)),
        };
        let (path, depth) = &found[parent];
        if *depth < DEPTH_MAX {
            found.push((format!("{path}/dir-{}", found.len()), depth + 1));
        }
    }
    found.into_iter().map(|(path, _)| path).collect()
}

impl Shape {
    pub fn generate(seed: u64, files: u32, bytes: u64) -> Shape {
        let mut random = Random::new(seed);
        let directories = directories(&mut random, (files / FILES_PER_DIRECTORY).max(1) as usize);
        let in_each = shares(&mut random, directories.len(), DIRECTORY_SIGMA, files.into());
        let mut sizes = shares(&mut random, files as usize, SIZE_SIGMA, bytes).into_iter().zip(0u32..);
        let mut entries = vec![];
        for (directory, files) in directories.into_iter().zip(in_each) {
            for (len, number) in sizes.by_ref().take(files as usize) {
                entries.push((format!("{directory}/file-{number}.c"), Some(len)));
            }
            entries.push((directory, None));
        }
        // A path sorts before all paths that begin with it.
        entries.sort_unstable();
        Shape { seed, entries }
    }

    fn lens(&self) -> impl Iterator<Item = u64> {
        self.entries.iter().filter_map(|(_, len)| *len)
    }

    pub fn files(&self) -> u64 {
        self.lens().count() as u64
    }

    pub fn directories(&self) -> u64 {
        self.entries.len() as u64 - self.files()
    }

    pub fn bytes(&self) -> u64 {
        self.lens().sum()
    }

    /// Writes the tar file.
    pub fn write_tar(&self, out: &mut dyn Write) -> io::Result<()> {
        let contents = Contents::generate(self.seed, self.lens().max().unwrap_or(0) as usize);
        // Use a different stream from that of the shape.
        let mut random = Random::new(!self.seed);
        for (path, len) in &self.entries {
            out.write_all(&header(path, *len))?;
            if let Some(len) = *len {
                let from = contents.draw(&mut random);
                out.write_all(contents.slice(from, len as usize))?;
                out.write_all(&[0; BLOCK][..(len as usize).next_multiple_of(BLOCK) - len as usize])?;
            }
        }
        // Two blocks of zeros end the file.
        out.write_all(&[0; 2 * BLOCK])
    }
}

/// Builds the header of a file, or of a directory if there is no length: POSIX.1-1988, `ustar`.
fn header(path: &str, len: Option<u64>) -> [u8; BLOCK] {
    assert!(path.len() < NAME_LEN_MAX, "{path}: too long for a header");
    let (mode, kind) = if len.is_some() { (0o644, b'0') } else { (0o755, b'5') };
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    let octal = |value: u64, digits: usize| format!("{value:0digits$o}\0").into_bytes();
    put(0, path.as_bytes());
    put(100, &octal(mode, 7));
    put(108, &octal(0, 7));
    put(116, &octal(0, 7));
    put(124, &octal(len.unwrap_or(0), 11));
    put(136, &octal(MTIME_S, 11));
    // The field of the sum is blank while the sum is computed.
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum = header.iter().map(|byte| u64::from(*byte)).sum();
    header[148..155].copy_from_slice(&octal(sum, 6));
    header
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn tar(seed: u64) -> Vec<u8> {
        let mut bytes = vec![];
        Shape::generate(seed, 100, 1_000_000).write_tar(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn one_seed_makes_one_archive() {
        assert_eq!(tar(1), tar(1));
        assert_ne!(tar(1), tar(2));
    }

    #[test]
    fn a_full_tree_has_the_shape_of_a_kernels() {
        let shape = Shape::generate(1, FILES, BYTES);
        assert_eq!((shape.files(), shape.directories(), shape.bytes()), (28_497, 1_899, 384_000_000));
        let mut lens: Vec<u64> = shape.lens().collect();
        lens.sort_unstable();
        let (median, greatest) = (lens[lens.len() / 2], lens[lens.len() - 1]);
        assert!((4_000..6_500).contains(&median), "half of the files have at most {median} bytes");
        assert!((500_000..2_000_000).contains(&greatest), "the greatest has {greatest} bytes");
        let depths: Vec<usize> = shape.entries.iter().map(|(path, _)| path.matches('/').count()).collect();
        let mean = depths.iter().sum::<usize>() as f64 / depths.len() as f64;
        assert!((3.0..6.0).contains(&mean), "{mean} names above a file, on average");
        assert_eq!(depths.iter().max(), Some(&DEPTH_MAX));
    }

    #[test]
    fn every_directory_is_there_before_what_is_in_it_and_every_path_once() {
        for seed in 0..20 {
            let mut seen = HashSet::new();
            for (path, len) in Shape::generate(seed, 400, 1 << 20).entries {
                if let Some((directory, _)) = path.rsplit_once('/') {
                    assert!(seen.contains(&(directory.to_string(), false)), "{path}");
                }
                assert!(seen.insert((path, len.is_some())));
            }
        }
    }

    #[test]
    fn the_smallest_trees_are_trees() {
        for (files, bytes) in [(1, 0), (1, 5), (3, 1), (20, 1 << 20)] {
            let shape = Shape::generate(7, files, bytes);
            assert_eq!((shape.files(), shape.bytes()), (files.into(), bytes));
        }
    }
}
