//! General compressors on all inodes of a tree at once, and on each inode separately.
//!
//! Owns: [`Controls`]. They show how short a code could be, but an inode in such a file cannot be
//! read without everything before it.

use std::io::Write;

use bzip2::write::BzEncoder;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use shoal_pack::Record;

use crate::experiment::LabError;
use crate::tree::{RAW, Tree};

/// Bytes of a tree's inodes.
#[derive(Clone, Debug)]
pub struct Controls {
    pub inodes: usize,
    /// The 128 bytes of ext2, from the image or else built from the result of `stat`: plain, by
    /// gzip, by bzip2.
    pub raw: [usize; 3],
    pub is_image: bool,
    /// The stripped records with nanosecond times: plain, by gzip, by bzip2.
    pub stripped: [usize; 3],
    /// The stripped records with times in seconds, in the paper's 54 bytes.
    pub stripped_s: [usize; 3],
    /// Stripped records, each deflated separately.
    pub each: usize,
}

/// Builds the inode as ext2 would store it, without block pointers and reserved fields.
pub(super) fn ext2(record: &Record) -> [u8; RAW] {
    let mut raw = [0; RAW];
    let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
    let seconds = |time: i64| (time.div_euclid(1_000_000_000) as u32).to_le_bytes();
    put(0, &record.mode.to_le_bytes());
    put(2, &(record.uid as u16).to_le_bytes());
    put(4, &(record.size as u32).to_le_bytes());
    put(8, &seconds(record.atime));
    put(12, &seconds(record.ctime));
    put(16, &seconds(record.mtime));
    put(24, &(record.gid as u16).to_le_bytes());
    put(26, &(record.links as u16).to_le_bytes());
    put(28, &(record.size.div_ceil(512) as u32).to_le_bytes());
    put(32, &record.flags.to_le_bytes());
    put(108, &((record.size >> 32) as u32).to_le_bytes());
    put(120, &((record.uid >> 16) as u16).to_le_bytes());
    put(122, &((record.gid >> 16) as u16).to_le_bytes());
    raw
}

fn compressed(bytes: &[u8]) -> std::io::Result<[usize; 3]> {
    // The default levels of the programs: 6 and 9.
    let mut gzip = GzEncoder::new(vec![], Compression::default());
    gzip.write_all(bytes)?;
    let mut bzip2 = BzEncoder::new(vec![], bzip2::Compression::best());
    bzip2.write_all(bytes)?;
    Ok([bytes.len(), gzip.finish()?.len(), bzip2.finish()?.len()])
}

pub fn measure(tree: &Tree) -> Result<Controls, LabError> {
    let broken = |error: std::io::Error| LabError::Broken { what: tree.name.clone(), why: error.to_string() };
    let raw: Vec<u8> = match &tree.raw {
        Some(raw) => raw.concat(),
        None => tree.records.iter().flat_map(ext2).collect(),
    };
    let stripped: Vec<u8> = tree.records.iter().flat_map(Record::strip).collect();
    let stripped_s: Vec<u8> = tree.records.iter().flat_map(|record| record.in_seconds().strip()).collect();
    let mut each = 0;
    for record in &tree.records {
        let mut deflate = DeflateEncoder::new(vec![], Compression::default());
        deflate.write_all(&record.strip()).map_err(broken)?;
        each += deflate.finish().map_err(broken)?.len();
    }
    Ok(Controls {
        inodes: tree.records.len(),
        raw: compressed(&raw).map_err(broken)?,
        is_image: tree.raw.is_some(),
        stripped: compressed(&stripped).map_err(broken)?,
        stripped_s: compressed(&stripped_s).map_err(broken)?,
        each,
    })
}
