//! A recorded workload: which files are opened, in order, and how much is read of each.
//!
//! Owns: [`Recorded`], and the parser of what `scripts/record-reads` writes. Rules: a line that
//! cannot be read is an error that names it. Left out: times, which no threshold depends on.

use std::fs;
use std::path::Path;

use crate::experiment::LabError;

/// `cargo build -j 1 -p shoal-fs` into an empty directory.
const BUILD: &[u8] = include_bytes!("../../data/reads.csv.zst");
/// Bound of a recording in memory (bytes).
const MOST: usize = 256 << 20;

/// One opening of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    pub file: usize,
    pub read: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Sizes of the files that are opened (bytes).
    pub sizes: Vec<u64>,
    pub openings: Vec<Opening>,
    /// Sizes of the files that never are.
    pub others: Vec<u64>,
}

/// Files up to some size, and what is read of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    pub files: u64,
    pub bytes: u64,
    pub openings: u64,
    pub read: u64,
}

impl Recorded {
    /// Returns the recording in this file, or the build that is part of the program.
    pub fn of(path: Option<&Path>) -> Result<Recorded, LabError> {
        let broken = |why: String| LabError::Broken {
            what: path.map_or("recorded build".into(), |path| path.display().to_string()),
            why: format!("{why}; record it anew with scripts/record-reads"),
        };
        let text = match path {
            Some(path) => fs::read_to_string(path).map_err(|error| broken(error.to_string()))?,
            None => {
                let bytes = zstd::bulk::decompress(BUILD, MOST).map_err(|error| broken(error.to_string()))?;
                String::from_utf8(bytes).map_err(|error| broken(error.to_string()))?
            }
        };
        Recorded::parse(&text).map_err(broken)
    }

    fn parse(text: &str) -> Result<Recorded, String> {
        let mut recorded = Recorded::default();
        for (at, line) in text.lines().enumerate() {
            let wrong = || format!("line {}: {line:?} is not `file,size,read` or `,size,`", at + 1);
            let fields: Vec<&str> = line.split(',').collect();
            let &[file, size, read] = &fields[..] else { return Err(wrong()) };
            let size: u64 = size.parse().map_err(|_| wrong())?;
            if file.is_empty() {
                recorded.others.push(size);
                continue;
            }
            let (file, read): (usize, u64) = (file.parse().map_err(|_| wrong())?, read.parse().map_err(|_| wrong())?);
            if read > size || file > at {
                return Err(wrong());
            }
            recorded.sizes.resize(recorded.sizes.len().max(file + 1), 0);
            recorded.sizes[file] = size;
            recorded.openings.push(Opening { file, read });
        }
        if recorded.openings.is_empty() { Err("nothing is read in it".into()) } else { Ok(recorded) }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.sizes.iter().chain(&self.others).sum()
    }

    /// Returns the files up to a size.
    pub fn up_to(&self, threshold: u64) -> Share {
        let mut share = Share::default();
        for &size in self.sizes.iter().chain(&self.others).filter(|&&size| size <= threshold) {
            share.files += 1;
            share.bytes += size;
        }
        for opening in self.openings.iter().filter(|opening| self.sizes[opening.file] <= threshold) {
            share.openings += 1;
            share.read += opening.read;
        }
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_build_can_be_read() {
        let recorded = Recorded::of(None).unwrap();
        let all = recorded.up_to(u64::MAX);
        assert!(all.openings > 5_000 && all.files > 5_000, "{all:?}");
        assert_eq!(all.bytes, recorded.bytes());
        assert!(recorded.up_to(1 << 20).bytes < all.bytes);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let parsed = Recorded::parse("0,10,4\n1,5,5\n0,10,10\n,7,\n").unwrap();
        assert_eq!((&parsed.sizes[..], &parsed.others[..]), (&[10, 5][..], &[7][..]));
        assert_eq!(parsed.up_to(5), Share { files: 1, bytes: 5, openings: 1, read: 5 });
        for wrong in ["0,10", "0,10,11", "9,10,1", "x,1,1", ",,"] {
            let error = Recorded::parse(&format!("0,1,1\n{wrong}\n")).unwrap_err();
            assert!(error.starts_with("line 2"), "{error}");
        }
        assert!(Recorded::parse(",7,\n").is_err());
    }
}
