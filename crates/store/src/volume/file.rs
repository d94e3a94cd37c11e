//! An open file of a volume.
//!
//! Rules: an open file keeps its contents until it is closed, even if its last name is removed.
//! Reads and writes name their offset; there is no shared position. Concurrent calls on one file
//! are carried out one after the other.

use std::io;
use std::path::Path;

use shoal_format::inode::{S_IFMT, S_IFREG};
use shoal_fs::{Attr, Caller, Error, SetAttr};

use super::walk::{Held, LastLink};
use super::{Metadata, Volume, told};

/// An open file. It is closed when it is dropped.
///
/// ```
/// # use shoal_store::{BulkChoice, FormatOptions, Store, Volume};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("store");
/// # Store::format(&path, &FormatOptions { memory_bytes: Some(64 << 20), bulk: Some(BulkChoice::None), ..Default::default() })?;
/// let volume = Volume::open(&path)?;
/// let log = volume.create("log")?;
/// log.write_all_at(b"begun\n", 0)?;
/// log.write_all_at(b"ended\n", 6)?;
/// log.sync_all()?;
/// let mut end = [0; 6];
/// assert_eq!(log.read_at(&mut end, 6)?, 6);
/// assert_eq!(&end, b"ended\n");
/// drop(log);
/// volume.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct File<'v> {
    volume: &'v Volume,
    held: Held<'v>,
}

impl<'v> File<'v> {
    pub(super) fn open(volume: &'v Volume, path: &Path) -> io::Result<File<'v>> {
        let found = volume.find(path, LastLink::Followed)?;
        refuse_others(&found.attr)?;
        Ok(File { volume, held: found.held })
    }

    pub(super) fn create(volume: &'v Volume, path: &Path) -> io::Result<File<'v>> {
        loop {
            let place = volume.walk(path, LastLink::Followed)?;
            if let Some(found) = place.found {
                refuse_others(&found.attr)?;
                let file = File { volume, held: found.held };
                file.set_len(0)?;
                return Ok(file);
            }
            let caller = Caller { hold: true, ..volume.caller };
            match volume.life.fs.mknod(&caller, place.parent.ino(), &place.name, S_IFREG as u32 | 0o666, 0) {
                Ok(attr) => return Ok(File { volume, held: Held::taken(&volume.life.fs, attr.ino) }),
                // Another thread created the file first, so open it.
                Err(Error::Exists) => {}
                Err(error) => return Err(told(error)),
            }
        }
    }

    /// Reads from byte `at`. Returns the number of bytes read, which is smaller than requested only
    /// at the file's end.
    pub fn read_at(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        self.volume.life.fs.read(self.held.ino(), at, out).map_err(told)
    }

    /// Writes at byte `at`. A gap behind the old end reads as zeros.
    pub fn write_all_at(&self, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.volume.life.fs.write(self.held.ino(), at, bytes).map_err(told)? {
                0 => return Err(told(Error::NO_SPACE)),
                done => (bytes, at) = (&bytes[done..], at + done as u64),
            }
        }
        Ok(())
    }

    /// Truncates the file, or extends it with zeros.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        let change = SetAttr { size: Some(len), ..SetAttr::default() };
        self.volume.life.fs.setattr(self.held.ino(), &change).map(drop).map_err(told)
    }

    /// Returns the file's current attributes.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.volume.life.fs.getattr(self.held.ino()).map(Metadata::of).map_err(told)
    }

    /// Makes the file durable, with its data, its attributes and its names.
    pub fn sync_all(&self) -> io::Result<()> {
        self.volume.life.fs.fsync(self.held.ino()).map_err(told)
    }
}

/// Refuses everything but regular files: nothing else has bytes to read and write.
fn refuse_others(attr: &Attr) -> io::Result<()> {
    match Metadata::of(*attr) {
        found if found.is_dir() => Err(told(Error::IsDirectory)),
        _ if attr.mode & S_IFMT as u32 != S_IFREG as u32 => Err(told(Error::Invalid)),
        _ => Ok(()),
    }
}
