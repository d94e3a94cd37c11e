//! The calls of a workload on small files, and the two kinds of target for them.
//!
//! Owns: [`Target`]; [`Engine`], a store in this process without mount or system call;
//! [`Directory`], a directory of any file system. Rules: paths are relative to the target's root,
//! with `/` between names. Every call walks its path, as a system call does. The caller chooses the
//! blocks in which a file is read and written. A synced directory makes each file durable before
//! closing it.
//! Left out: fsync on a store in this process, whose memory is durable at return, and fsync of
//! directories.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use shoal_fs::{Caller, Fs, Ino};

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {path}: {why}")]
pub struct Failed {
    pub operation: &'static str,
    pub path: String,
    pub why: String,
}

impl Failed {
    pub(crate) fn new(operation: &'static str, path: &str, why: impl ToString) -> Failed {
        Failed { operation, path: path.into(), why: why.to_string() }
    }
}

pub type Outcome<T> = Result<T, Failed>;

/// A place that holds files.
pub trait Target {
    fn make_directory(&self, path: &str) -> Outcome<()>;

    /// Removes an empty directory.
    fn remove_directory(&self, path: &str) -> Outcome<()>;

    /// Creates a new file, written in pieces of at most `block` bytes.
    fn create(&self, path: &str, contents: &[u8], block: usize) -> Outcome<()>;

    /// Reads a file to its end in pieces as long as `buffer`, and passes each to `each`.
    fn read(&self, path: &str, buffer: &mut [u8], each: &mut dyn FnMut(&[u8])) -> Outcome<()>;

    /// Appends to a file in pieces of at most `block` bytes.
    fn append(&self, path: &str, contents: &[u8], block: usize) -> Outcome<()>;

    fn unlink(&self, path: &str) -> Outcome<()>;

    /// Counts the names in the root.
    fn entries(&self) -> Outcome<u64>;
}

/// A store in this process.
pub struct Engine<'a>(pub &'a Fs);

impl Engine<'_> {
    /// Returns the directory of a path and the name in it.
    pub(crate) fn parent<'p>(&self, path: &'p str) -> shoal_fs::Result<(Ino, &'p [u8])> {
        match path.rsplit_once('/') {
            Some((directory, name)) => Ok((self.0.resolve(directory.as_bytes())?, name.as_bytes())),
            None => Ok((shoal_fs::ROOT, path.as_bytes())),
        }
    }

    fn write(&self, ino: Ino, mut at: u64, contents: &[u8], block: usize) -> shoal_fs::Result<()> {
        for piece in contents.chunks(block) {
            if self.0.write(ino, at, piece)? < piece.len() {
                return Err(shoal_fs::Error::NO_SPACE);
            }
            at += piece.len() as u64;
        }
        Ok(())
    }
}

impl Target for Engine<'_> {
    fn make_directory(&self, path: &str) -> Outcome<()> {
        let made = || {
            let (parent, name) = self.parent(path)?;
            self.0.mkdir(&Caller::default(), parent, name, 0o755)
        };
        made().map(drop).map_err(|error| Failed::new("mkdir", path, error))
    }

    fn remove_directory(&self, path: &str) -> Outcome<()> {
        let removed = || {
            let (parent, name) = self.parent(path)?;
            self.0.rmdir(parent, name)
        };
        removed().map_err(|error| Failed::new("rmdir", path, error))
    }

    fn create(&self, path: &str, contents: &[u8], block: usize) -> Outcome<()> {
        let created = || {
            let (parent, name) = self.parent(path)?;
            let attr = self.0.mknod(&Caller::default(), parent, name, 0o644, 0)?;
            self.write(attr.ino, 0, contents, block)
        };
        created().map_err(|error| Failed::new("create", path, error))
    }

    fn read(&self, path: &str, buffer: &mut [u8], each: &mut dyn FnMut(&[u8])) -> Outcome<()> {
        let mut read = || {
            let (parent, name) = self.parent(path)?;
            let attr = self.0.lookup(parent, name)?;
            let mut at = 0;
            loop {
                let len = self.0.read(attr.ino, at, buffer)?;
                each(&buffer[..len]);
                at += len as u64;
                if len < buffer.len() {
                    return Ok(());
                }
            }
        };
        read().map_err(|error: shoal_fs::Error| Failed::new("read", path, error))
    }

    fn append(&self, path: &str, contents: &[u8], block: usize) -> Outcome<()> {
        let appended = || {
            let (parent, name) = self.parent(path)?;
            let attr = self.0.lookup(parent, name)?;
            self.write(attr.ino, attr.size, contents, block)
        };
        appended().map_err(|error| Failed::new("append", path, error))
    }

    fn unlink(&self, path: &str) -> Outcome<()> {
        let removed = || {
            let (parent, name) = self.parent(path)?;
            self.0.unlink(parent, name)
        };
        removed().map_err(|error| Failed::new("unlink", path, error))
    }

    fn entries(&self) -> Outcome<u64> {
        let mut names = 0;
        let mut count = |entry: shoal_fs::DirEntry<'_>| {
            names += u64::from(!matches!(entry.name, b"." | b".."));
            true
        };
        self.0.readdir(shoal_fs::ROOT, 0, &mut count).map_err(|error| Failed::new("readdir", "/", error))?;
        Ok(names)
    }
}

/// A new directory inside one of the user's. It is removed with its contents when dropped.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    is_synced: bool,
}

impl Directory {
    pub fn create_in(parent: &Path) -> Outcome<Directory> {
        let root = parent.join(format!("shoal-lab-{}", std::process::id()));
        fs::create_dir(&root).map_err(|error| Failed::new("mkdir", &root.display().to_string(), error))?;
        Ok(Directory { root, is_synced: false })
    }

    /// Sets whether each written file is synced before it is closed.
    pub fn synced(mut self, is_synced: bool) -> Directory {
        self.is_synced = is_synced;
        self
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn write(&self, mut file: File, contents: &[u8], block: usize) -> std::io::Result<()> {
        contents.chunks(block).try_for_each(|piece| file.write_all(piece))?;
        if self.is_synced { file.sync_all() } else { Ok(()) }
    }

    pub(crate) fn failed(&self, operation: &'static str, path: &str, error: std::io::Error) -> Failed {
        Failed::new(operation, &self.root.join(path).display().to_string(), error)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // The run has been measured, or has failed with its own error.
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Target for Directory {
    fn make_directory(&self, path: &str) -> Outcome<()> {
        fs::create_dir(self.root.join(path)).map_err(|error| self.failed("mkdir", path, error))
    }

    fn remove_directory(&self, path: &str) -> Outcome<()> {
        fs::remove_dir(self.root.join(path)).map_err(|error| self.failed("rmdir", path, error))
    }

    fn create(&self, path: &str, contents: &[u8], block: usize) -> Outcome<()> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.root.join(path));
        file.and_then(|file| self.write(file, contents, block)).map_err(|error| self.failed("create", path, error))
    }

    fn read(&self, path: &str, buffer: &mut [u8], each: &mut dyn FnMut(&[u8])) -> Outcome<()> {
        let mut read = || {
            let mut file = File::open(self.root.join(path))?;
            loop {
                let len = match file.read(buffer) {
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    other => other?,
                };
                each(&buffer[..len]);
                // A regular file gives less than requested only at its end.
                if len < buffer.len() {
                    return Ok(());
                }
            }
        };
        read().map_err(|error| self.failed("read", path, error))
    }

    fn append(&self, path: &str, contents: &[u8], block: usize) -> Outcome<()> {
        let file = OpenOptions::new().append(true).open(self.root.join(path));
        file.and_then(|file| self.write(file, contents, block)).map_err(|error| self.failed("append", path, error))
    }

    fn unlink(&self, path: &str) -> Outcome<()> {
        fs::remove_file(self.root.join(path)).map_err(|error| self.failed("unlink", path, error))
    }

    fn entries(&self) -> Outcome<u64> {
        let names = fs::read_dir(&self.root).map_err(|error| self.failed("readdir", "", error))?;
        Ok(names.count() as u64)
    }
}
