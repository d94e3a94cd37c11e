//! A store's file system for programs that embed Shoal: calls shaped like those of `std::fs`, without a mount.
//!
//! Rules:
//! - Once a call has returned, its effect survives a crash of this process. It survives a power
//!   loss about a second later, or once [`Volume::sync`] or [`File::sync_all`] has returned. This
//!   holds for `logged` memory, as under a mount. As there, data of large files is held for about
//!   30 s before it is written, unless `cache_bytes` is 0 ([`StoreOptions`]).
//! - Permissions are not checked: a program that can open the store may do everything.
//! - Names are paths from the volume's root. Symbolic links are followed within the volume.
//! - A volume is closed with [`Volume::close`], which reports whether the store is clean. Dropping
//!   a volume tries to close it and only logs errors.
//! - What runs beside a mount runs beside a volume: the engine's clocks, write-back caches that
//!   outlive this process, forecasts in the log, scrubs, devices that go on leaving, and answers to
//!   `shoal df`, `status` and their like (`life`).
//!
//! Left out: extended attributes, special files, permission checks.

mod entries;
mod file;
mod walk;

use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use shoal_devices::Outcome;
use shoal_fs::{Caller, Error, Fs, Options, RenameMode, SetAttr};
use shoal_host::Access;

use crate::life::{Life, Recovered};
use crate::options::StoreOptions;
use crate::store::{LEAVING_PATIENCE, Store};

pub use entries::{DirEntry, FileType, Metadata, ReadDir};
pub use file::File;
use walk::{LastLink, Walked};

/// Permission bits that new files and directories do not get.
const UMASK: u32 = 0o022;

/// An open store, for this process alone.
///
/// ```
/// use shoal_store::{FormatOptions, Store, Volume};
///
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("store");
/// Store::format(&path, &FormatOptions { memory_bytes: Some(64 << 20), ..FormatOptions::default() })?;
///
/// let volume = Volume::open(&path)?;
/// volume.create_dir_all("letters/2026")?;
/// volume.write("letters/2026/draft", b"Dear reader")?;
/// volume.rename("letters/2026/draft", "letters/2026/final")?;
/// volume.sync()?;
/// assert_eq!(volume.read("letters/2026/final")?, b"Dear reader");
/// assert_eq!(volume.metadata("letters/2026/final")?.len(), 11);
/// volume.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Volume {
    life: Life,
    caller: Caller,
}

impl Volume {
    /// Opens the file system of the store in `directory`. Waits for a previous user that is just
    /// ending.
    pub fn open(directory: impl AsRef<Path>) -> Outcome<Volume> {
        Volume::open_with(directory, &StoreOptions::default())
    }

    /// Opens the file system like [`Volume::open`], for a store that works as `options` say.
    pub fn open_with(directory: impl AsRef<Path>, options: &StoreOptions) -> Outcome<Volume> {
        Volume::of(Store::acquire(directory.as_ref(), LEAVING_PATIENCE)?, options, Access::Write)
    }

    /// Opens the store without changing anything: the log is replayed in memory, and every change is refused.
    pub fn open_read_only(directory: impl AsRef<Path>) -> Outcome<Volume> {
        Volume::of(Store::acquire(directory.as_ref(), LEAVING_PATIENCE)?, &StoreOptions::default(), Access::Read)
    }

    fn of(store: Store, options: &StoreOptions, access: Access) -> Outcome<Volume> {
        let engine = Options { read_only: access == Access::Read, ..options.engine(&store.description) };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let caller = Caller { uid, gid, umask: UMASK, hold: false };
        let mut volume = Volume { life: store.begin(engine, options)?, caller };
        volume.life.work(options)?;
        volume.life.answer(None)?;
        Ok(volume)
    }

    /// Makes everything durable and the store clean. A [`File`] borrows the volume, so all files
    /// are closed by then.
    pub fn close(mut self) -> Outcome<()> {
        self.life.end()
    }

    /// Returns the work of opening the store.
    pub fn recovered(&self) -> &Recovered {
        &self.life.recovered
    }

    /// Makes everything done before the call durable.
    pub fn sync(&self) -> io::Result<()> {
        self.life.fs.sync().map_err(told)
    }

    /// Returns the engine behind the volume, for operations that have no call here.
    pub fn engine(&self) -> &Fs {
        &self.life.fs
    }

    /// Returns the attributes of the path's target; symbolic links are followed.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        Ok(Metadata::of(self.find(path.as_ref(), LastLink::Followed)?.attr))
    }

    /// Returns the attributes of the path itself; a symbolic link at its end is not followed.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<Metadata> {
        Ok(Metadata::of(self.find(path.as_ref(), LastLink::Itself)?.attr))
    }

    /// Returns true if the path leads to something.
    pub fn exists(&self, path: impl AsRef<Path>) -> io::Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a file for reading and writing. Truncates an existing file, creates a missing one.
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<File<'_>> {
        File::create(self, path.as_ref())
    }

    /// Opens an existing file for reading and writing.
    pub fn open_file(&self, path: impl AsRef<Path>) -> io::Result<File<'_>> {
        File::open(self, path.as_ref())
    }

    /// Reads the whole contents of a file.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let file = self.open_file(path)?;
        let mut bytes = vec![0; file.metadata()?.len() as usize];
        let len = file.read_at(&mut bytes, 0)?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// Replaces the contents of a file. Creates the file if it does not exist.
    pub fn write(&self, path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
        self.create(path)?.write_all_at(contents.as_ref(), 0)
    }

    /// Makes a directory; its parent must exist.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let place = self.walk(path.as_ref(), LastLink::Itself)?;
        if place.found.is_some() {
            return Err(told(Error::Exists));
        }
        self.life.fs.mkdir(&self.caller, place.parent.ino(), &place.name, 0o777).map(drop).map_err(told)
    }

    /// Makes the directory and its missing parents.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut above = PathBuf::new();
        for part in path.as_ref().components() {
            above.push(part);
            match self.create_dir(&above) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                outcome => outcome?,
            }
        }
        if self.metadata(path)?.is_dir() { Ok(()) } else { Err(told(Error::NotDirectory)) }
    }

    /// Returns the entries of a directory, without `.` and `..`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<ReadDir<'_>> {
        ReadDir::open(self, path.as_ref())
    }

    /// Renames a file or directory, replacing what has the new name.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from, to) = (self.walk(from.as_ref(), LastLink::Itself)?, self.walk(to.as_ref(), LastLink::Itself)?);
        let renamed =
            self.life.fs.rename(from.parent.ino(), &from.name, to.parent.ino(), &to.name, RenameMode::Replace);
        renamed.map_err(told)
    }

    /// Gives a file another name.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        let (original, link) =
            (self.find(original.as_ref(), LastLink::Itself)?, self.walk(link.as_ref(), LastLink::Itself)?);
        self.life.fs.link(original.held.ino(), link.parent.ino(), &link.name).map(drop).map_err(told)
    }

    /// Makes a symbolic link with `original` as its contents.
    pub fn symlink(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> io::Result<()> {
        let link = self.walk(link.as_ref(), LastLink::Itself)?;
        let target = original.as_ref().as_os_str().as_bytes();
        self.life.fs.symlink(&self.caller, link.parent.ino(), &link.name, target).map(drop).map_err(told)
    }

    /// Reads the contents of a symbolic link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let found = self.find(path.as_ref(), LastLink::Itself)?;
        let target = self.life.fs.readlink(found.held.ino()).map_err(told)?;
        Ok(std::ffi::OsString::from_vec(target).into())
    }

    /// Removes a name of anything except a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let Walked { parent, name, .. } = self.walk(path.as_ref(), LastLink::Itself)?;
        self.life.fs.unlink(parent.ino(), &name).map_err(told)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let Walked { parent, name, .. } = self.walk(path.as_ref(), LastLink::Itself)?;
        self.life.fs.rmdir(parent.ino(), &name).map_err(told)
    }

    /// Removes a directory with its contents.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        if !self.symlink_metadata(path)?.is_dir() {
            return Err(told(Error::NotDirectory));
        }
        for entry in self.read_dir(path)? {
            let entry = entry?;
            let inner = path.join(entry.file_name());
            match entry.file_type().is_dir() {
                true => self.remove_dir_all(inner)?,
                false => self.remove_file(inner)?,
            }
        }
        self.remove_dir(path)
    }

    /// Sets the permission bits of the path's target.
    pub fn set_permissions(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let found = self.find(path.as_ref(), LastLink::Followed)?;
        let change = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.life.fs.setattr(found.held.ino(), &change).map(drop).map_err(told)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Err(failure) = self.life.end() {
            // The next opening recovers the store, as after a crash.
            tracing::error!("{failure}");
        }
    }
}

/// Converts an engine error to an I/O error.
fn told(error: Error) -> io::Error {
    let kind = io::Error::from_raw_os_error(error.errno()).kind();
    io::Error::new(kind, error)
}

#[cfg(test)]
mod tests;
