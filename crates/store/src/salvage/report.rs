//! The result of a salvage: saved files, losses, and messages in between.
//!
//! The report is printed as JSON (`shoal salvage --json`). The sentence of a loss names path, bytes
//! and reason.

use serde::Serialize;

/// Result of a salvage: saved and lost.
#[derive(Debug, Serialize)]
pub struct Salvaged {
    pub store: String,
    pub target: String,
    pub directories: u64,
    pub files: u64,
    pub others: u64,
    pub links: u64,
    pub bytes: u64,
    /// Inodes without a name; they are in `lost+found`.
    pub unnamed: u64,
    pub lost: Vec<Lost>,
    /// Remarks on the store that are no losses.
    pub notes: Vec<String>,
}

/// Data that could not be read, or could not be made in the copy.
#[derive(Debug, Serialize)]
pub struct Lost {
    pub path: Option<String>,
    pub from: Option<u64>,
    pub to: Option<u64>,
    pub why: String,
}

/// A message of a salvage in progress.
pub enum Told<'a> {
    Lost(&'a Lost),
    /// A remark on the store that is no loss.
    Note(&'a str),
    /// Properties that the target did not take; this is not a loss.
    NotKept {
        path: &'a str,
        why: &'a str,
    },
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(path) = &self.path {
            write!(f, "/{path}: ")?;
        }
        if let (Some(from), Some(to)) = (self.from, self.to) {
            write!(f, "bytes {from} to {to}: ")?;
        }
        f.write_str(&self.why)
    }
}
