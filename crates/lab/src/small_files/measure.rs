//! Files in memory, and their sizes and speeds under each compressor.
//!
//! Owns: [`Sample`], the files in order of size; [`Found`], sizes of all files and speeds of
//! classes of 512 bytes.
//! Rules: a file that grows stays uncompressed and counts with its own length. Speeds are in
//! processor time of the thread, so that other programs on the machine do not count.

use std::fs;
use std::path::PathBuf;

use shoal_sim::Random;

use super::compressors::{self, Compressor};
use super::kinds::Kind;
use crate::experiment::LabError;
use crate::processor::ProcessorTime;
use crate::tree;

/// Longest file of the study.
pub const SIZE_MAX: u64 = 128 << 10;
/// Total size of the files on which a dictionary is trained (bytes): a hundred times its length.
const TRAINING: u64 = 11 << 20;
/// Width of a class of sizes.
pub const CLASS: usize = 512;

pub struct Sample {
    /// Files in ascending order of length.
    pub files: Vec<Vec<u8>>,
    training: Vec<Vec<u8>>,
    /// Number of files of these sizes in the trees.
    pub all: u64,
    pub unread: u64,
}

impl Sample {
    /// Draws files of `bytes` bytes in total, and others for training.
    pub fn draw(trees: &[PathBuf], bytes: u64, seed: u64) -> Result<Sample, LabError> {
        let (mut found, mut unread) = (vec![], 0);
        let mut seen = std::collections::HashSet::new();
        for root in trees {
            let (files, missed) = tree::walk(root)?;
            unread += missed;
            for (path, metadata) in files {
                let id = std::os::unix::fs::MetadataExt::ino(&metadata);
                if metadata.is_file() && (1..=SIZE_MAX).contains(&metadata.len()) && seen.insert((root, id)) {
                    found.push((path, metadata.len()));
                }
            }
        }
        // Sort by name, so that the draw depends only on the tree and the seed.
        found.sort_unstable();
        let all = found.len() as u64;
        let total: u64 = found.iter().map(|(_, len)| len).sum();
        let training_max = TRAINING.min(total / 4);
        let (mut files, mut training) = (vec![], vec![]);
        let (mut drawn, mut trained) = (0, 0);
        for (path, len) in Random::new(seed).shuffled(found) {
            let is_training = trained < training_max;
            if !is_training && drawn >= bytes {
                break;
            }
            match fs::read(&path) {
                Ok(file) if (1..=SIZE_MAX).contains(&(file.len() as u64)) => {
                    if is_training {
                        trained += len;
                        training.push(file);
                    } else {
                        drawn += len;
                        files.push(file);
                    }
                }
                // The file has changed since the walk.
                Ok(_) => {}
                Err(_) => unread += 1,
            }
        }
        if files.len() < 100 {
            return Err(LabError::Option {
                what: "--tree",
                why: format!("{} files of 1 byte to 128 KiB; name trees with some hundreds of them", files.len()),
            });
        }
        files.sort_unstable_by_key(Vec::len);
        Ok(Sample { files, training, all, unread })
    }
}

/// Results of one compressor on all files.
pub struct Measured {
    pub name: &'static str,
    /// Compressed size of each file (bytes), in the order of the sample; never above the file's
    /// own.
    pub compressed: Vec<usize>,
    /// Bytes a second, by class of 512 bytes.
    pub compress_rate: Vec<Option<f64>>,
    pub decompress_rate: Vec<Option<f64>>,
    /// Seconds for all classes.
    pub compress_s: f64,
    pub decompress_s: f64,
}

pub struct Found {
    pub lengths: Vec<usize>,
    pub kinds: Vec<Kind>,
    pub all: u64,
    pub dictionary: usize,
    pub compressors: Vec<Measured>,
}

pub fn class_of(len: usize) -> usize {
    (len - 1) / CLASS
}

pub const CLASSES: usize = SIZE_MAX as usize / CLASS;

pub fn measure(sample: &Sample, runs: u32) -> Result<Found, LabError> {
    let broken = |what: &str, why: String| LabError::Broken { what: what.into(), why };
    let dictionary = compressors::train(&sample.training).map_err(|error| broken("dictionary", error.to_string()))?;
    let mut compressors = vec![];
    for mut compressor in compressors::all(&dictionary).map_err(|error| broken("zstd", error.to_string()))? {
        compressors.push(one(&mut *compressor, sample, runs)?);
    }
    let lengths = sample.files.iter().map(Vec::len).collect();
    let kinds = sample.files.iter().map(|file| Kind::of(file)).collect();
    Ok(Found { lengths, kinds, all: sample.all, dictionary: dictionary.len(), compressors })
}

fn one(compressor: &mut dyn Compressor, sample: &Sample, runs: u32) -> Result<Measured, LabError> {
    let name = compressor.name();
    let broken = |why: String| LabError::Broken { what: name.into(), why };
    let mut measured = Measured {
        name,
        compressed: Vec::with_capacity(sample.files.len()),
        compress_rate: vec![None; CLASSES],
        decompress_rate: vec![None; CLASSES],
        compress_s: 0.0,
        decompress_s: 0.0,
    };
    let (mut out, mut back) = (vec![], vec![]);
    for class in sample.files.chunk_by(|a, b| class_of(a.len()) == class_of(b.len())) {
        let mut packed = vec![];
        for file in class {
            compressor.compress(file, &mut out).map_err(|error| broken(error.to_string()))?;
            compressor.decompress(&out, file.len(), &mut back).map_err(|error| broken(error.to_string()))?;
            if back != *file {
                return Err(broken(format!("a file of {} bytes came back changed", file.len())));
            }
            measured.compressed.push(out.len().min(file.len()));
            packed.push(out.clone());
        }
        let bytes: usize = class.iter().map(Vec::len).sum();
        let mut least = [f64::INFINITY; 2];
        for _ in 0..runs {
            let begin = ProcessorTime::now();
            for file in class {
                compressor.compress(file, &mut out).map_err(|error| broken(error.to_string()))?;
            }
            least[0] = least[0].min(begin.elapsed_s());
            let begin = ProcessorTime::now();
            for (file, packed) in class.iter().zip(&packed) {
                compressor.decompress(packed, file.len(), &mut back).map_err(|error| broken(error.to_string()))?;
            }
            least[1] = least[1].min(begin.elapsed_s());
        }
        let place = class_of(class[0].len());
        measured.compress_rate[place] = Some(bytes as f64 / least[0]);
        measured.decompress_rate[place] = Some(bytes as f64 / least[1]);
        measured.compress_s += least[0];
        measured.decompress_s += least[1];
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_draw_depends_on_the_seed_and_leaves_training_out() {
        let scratch = tempfile::tempdir().unwrap();
        let mut random = Random::new(1);
        for at in 0..400 {
            // Use words of one language, so that a dictionary can know them.
            let word = |random: &mut Random| format!("{:x} ", Random::new(random.below(200)).next_u64());
            let text: String = (0..20 + random.below(100)).map(|_| word(&mut random)).collect();
            fs::write(scratch.path().join(at.to_string()), text).unwrap();
        }
        let trees = [scratch.path().to_path_buf()];
        let draw = |seed| Sample::draw(&trees, 200_000, seed).unwrap();
        let (one, again, other) = (draw(1), draw(1), draw(2));
        assert_eq!(one.files, again.files);
        assert_ne!(one.files, other.files);
        assert!(one.training.iter().all(|file| !one.files.contains(file)));
        assert!(one.files.is_sorted_by_key(Vec::len));
        let found = measure(&one, 1).unwrap();
        let of = |name: &str| -> usize {
            found.compressors.iter().find(|of| of.name == name).unwrap().compressed.iter().sum()
        };
        assert!(of("deflate") < of("lzrw1"), "{} {}", of("deflate"), of("lzrw1"));
        assert!(of("zstd, dictionary") < of("zstd"), "{} {}", of("zstd, dictionary"), of("zstd"));
        assert!(matches!(Sample::draw(&trees, 1, 1), Err(LabError::Option { .. })));
    }
}
