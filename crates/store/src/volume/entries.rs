//! Contents of a volume: attributes of an inode, entries of a directory.
//!
//! Rules: entries come in batches. An entry that is added or removed during the walk may be listed or not; every other
//! entry is listed once.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use shoal_format::inode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use shoal_fs::Attr;

use super::walk::{Held, LastLink};
use super::{Volume, told};

/// Entries read at a time.
const BATCH: usize = 256;

/// The type of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileType(u16);

impl FileType {
    pub fn is_dir(self) -> bool {
        self.0 == S_IFDIR
    }

    pub fn is_file(self) -> bool {
        self.0 == S_IFREG
    }

    pub fn is_symlink(self) -> bool {
        self.0 == S_IFLNK
    }
}

/// The attributes of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(Attr);

impl Metadata {
    pub(super) fn of(attr: Attr) -> Metadata {
        Metadata(attr)
    }

    pub fn file_type(&self) -> FileType {
        FileType(self.0.mode as u16 & S_IFMT)
    }

    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Returns the length in bytes; for a directory, its number of entries.
    #[allow(clippy::len_without_is_empty)] // As in std::fs.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    pub fn modified(&self) -> SystemTime {
        time(self.0.mtime)
    }

    pub fn accessed(&self) -> SystemTime {
        time(self.0.atime)
    }

    pub fn created(&self) -> SystemTime {
        time(self.0.btime)
    }

    /// Returns all attributes, as the engine has them: mode, owner, links, inode.
    pub fn attr(&self) -> &Attr {
        &self.0
    }
}

fn time(ns: i64) -> SystemTime {
    let since = Duration::from_nanos(ns.unsigned_abs());
    if ns < 0 { UNIX_EPOCH - since } else { UNIX_EPOCH + since }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    name: OsString,
    ino: u64,
    kind: FileType,
}

impl DirEntry {
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    pub fn file_type(&self) -> FileType {
        self.kind
    }

    pub fn ino(&self) -> u64 {
        self.ino
    }
}

/// Walks over the entries of a directory.
pub struct ReadDir<'v> {
    volume: &'v Volume,
    directory: Held<'v>,
    /// Where the next batch begins; `None` at the end.
    from: Option<u64>,
    batch: VecDeque<DirEntry>,
}

impl<'v> ReadDir<'v> {
    pub(super) fn open(volume: &'v Volume, path: &Path) -> io::Result<ReadDir<'v>> {
        let directory = volume.find(path, LastLink::Followed)?.held;
        let mut read = ReadDir { volume, directory, from: Some(0), batch: VecDeque::new() };
        read.fill()?;
        Ok(read)
    }

    fn fill(&mut self) -> io::Result<()> {
        let Some(from) = self.from.take() else { return Ok(()) };
        let mut next = None;
        let batch = &mut self.batch;
        let mut take = |entry: shoal_fs::DirEntry<'_>| {
            if entry.name != b"." && entry.name != b".." {
                // `d_type` is the mode's type, shifted down by 12 bits.
                let kind = FileType((entry.kind as u16) << 12);
                batch.push_back(DirEntry {
                    name: OsString::from_vec(entry.name.to_vec()),
                    ino: entry.ino.into(),
                    kind,
                });
            }
            next = Some(entry.next);
            batch.len() < BATCH
        };
        match self.volume.life.fs.readdir(self.directory.ino(), from, &mut take) {
            // If entries precede the damage, the next batch reports it, because that batch begins
            // there.
            Err(error) if next.is_none() => return Err(told(error)),
            Err(_) => self.from = next,
            Ok(()) => self.from = next.filter(|_| self.batch.len() >= BATCH),
        }
        Ok(())
    }
}

impl Iterator for ReadDir<'_> {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<io::Result<DirEntry>> {
        if self.batch.is_empty()
            && let Err(error) = self.fill()
        {
            return Some(Err(error));
        }
        self.batch.pop_front().map(Ok)
    }
}
