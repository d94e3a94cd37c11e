//! Real trees: the inodes of a directory, or of a file system of the ext family in a file or on a
//! device.
//!
//! | module | owns |
//! |---|---|
//! | `ext` | a reader of inode tables that trusts nothing it reads |
//!
//! Owns: [`Tree`] and [`scan`]. A directory is walked within its file system and read with `stat`,
//! which does not show generations, flags and extended attributes; an image has them. Records are
//! in the order of inode numbers, each inode once. Rules: nothing is written, nothing outside the
//! tree is read, and unreadable parts are counted and reported.

mod ext;

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use shoal_pack::Record;

pub use ext::{ImageError, RAW};

/// The reason why a tree could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Image { path: PathBuf, source: ImageError },
    #[error("{path}: has no inodes in use; name a directory with files, or an image of ext2, ext3 or ext4")]
    Empty { path: PathBuf },
}

/// The inodes of a tree.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The tree's path, as given.
    pub name: String,
    pub records: Vec<Record>,
    /// The first 128 bytes of each inode, if the tree is an image.
    pub raw: Option<Vec<[u8; RAW]>>,
    /// Directories and inodes that could not be read.
    pub unread: u64,
}

const S_NS: i64 = 1_000_000_000;

fn record_of(metadata: &Metadata) -> Record {
    let ns = |s: i64, below_s: i64| s.saturating_mul(S_NS).saturating_add(below_s);
    let ctime = ns(metadata.ctime(), metadata.ctime_nsec());
    let since = |time: std::time::SystemTime| match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).ok(),
        Err(before) => i64::try_from(before.duration().as_nanos()).ok().map(|ns| -ns),
    };
    Record {
        mode: metadata.mode() as u16,
        links: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        size: metadata.size(),
        ctime,
        mtime: ns(metadata.mtime(), metadata.mtime_nsec()),
        atime: ns(metadata.atime(), metadata.atime_nsec()),
        // If the file system has no birth time, use the time of the last change.
        btime: metadata.created().ok().and_then(since).unwrap_or(ctime),
        generation: 1,
        rdev: metadata.rdev() as u32,
        ..Record::default()
    }
}

/// Returns the files of a directory with their `stat` data, and how many could not be read.
pub fn walk(root: &Path) -> Result<(Vec<(PathBuf, Metadata)>, u64), TreeError> {
    let read = |source| TreeError::Read { path: root.to_path_buf(), source };
    let top = fs::symlink_metadata(root).map_err(read)?;
    let (device, mut found, mut unread) = (top.dev(), vec![], 0);
    let mut pending = vec![(root.to_path_buf(), top)];
    while let Some((path, metadata)) = pending.pop() {
        if metadata.is_dir() {
            match fs::read_dir(&path) {
                Ok(entries) => {
                    for entry in entries {
                        match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                            Ok((path, metadata)) if metadata.dev() == device => pending.push((path, metadata)),
                            Ok(_) => {}
                            Err(_) => unread += 1,
                        }
                    }
                }
                Err(_) => unread += 1,
            }
        }
        found.push((path, metadata));
    }
    Ok((found, unread))
}

/// Reads the inodes of a directory or of an image.
pub fn scan(path: &Path) -> Result<Tree, TreeError> {
    let read = |source| TreeError::Read { path: path.to_path_buf(), source };
    let metadata = fs::metadata(path).map_err(read)?;
    let name = path.display().to_string();
    let tree = if metadata.is_dir() {
        let (files, unread) = walk(path)?;
        let mut seen = HashSet::new();
        let mut records: Vec<(u64, Record)> = files
            .iter()
            .filter(|(_, metadata)| seen.insert(metadata.ino()))
            .map(|(_, metadata)| (metadata.ino(), record_of(metadata)))
            .collect();
        records.sort_unstable_by_key(|(ino, _)| *ino);
        Tree { name, records: records.into_iter().map(|(_, record)| record).collect(), raw: None, unread }
    } else if metadata.is_file() || metadata.file_type().is_block_device() {
        let file = File::open(path).map_err(read)?;
        let found = ext::read(&file).map_err(|source| TreeError::Image { path: path.to_path_buf(), source })?;
        Tree { name, records: found.records, raw: Some(found.raw), unread: found.unread }
    } else {
        return Err(TreeError::Empty { path: path.to_path_buf() });
    };
    if tree.records.is_empty() {
        return Err(TreeError::Empty { path: path.to_path_buf() });
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_inode_of_a_directory_is_read_once() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        fs::create_dir(path("d")).unwrap();
        fs::write(path("d/f"), [7; 1234]).unwrap();
        fs::hard_link(path("d/f"), path("g")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("l")).unwrap();
        let tree = scan(scratch.path()).unwrap();
        assert_eq!((tree.records.len(), tree.unread), (4, 0));
        let file = tree.records.iter().find(|record| record.mode & 0o170000 == 0o100000).unwrap();
        assert_eq!((file.links, file.size), (2, 1234));
        let metadata = fs::metadata(path("g")).unwrap();
        assert_eq!(file.mtime, metadata.mtime() * S_NS + metadata.mtime_nsec());
        assert_eq!(tree.records.iter().filter(|record| record.mode & 0o170000 == 0o120000).count(), 1);
    }

    #[test]
    fn what_is_not_there_or_no_tree_is_told() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(matches!(scan(&scratch.path().join("x")), Err(TreeError::Read { .. })));
        fs::write(scratch.path().join("f"), "no file system").unwrap();
        let short = scan(&scratch.path().join("f"));
        assert!(matches!(short, Err(TreeError::Image { source: ImageError::Short, .. })));
        fs::write(scratch.path().join("f"), [1; 4096]).unwrap();
        let other = scan(&scratch.path().join("f"));
        assert!(matches!(other, Err(TreeError::Image { source: ImageError::Magic { .. }, .. })));
        assert!(matches!(scan(Path::new("/dev/null")), Err(TreeError::Empty { .. })));
    }
}
