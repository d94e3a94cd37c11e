//! A directory held by its descriptor, and the files in it.
//!
//! A path says where something was when it was looked up. A descriptor stays the same directory
//! whatever happens to its names. A process that serves a store keeps one of these and reaches the
//! store's files through it. So a store that is moved keeps working, and a store that is put in its
//! place is never touched. Rules:
//! - A name is one component, or a path below the directory. Links in it are never followed.
//! - A file is a regular file. A file that is overwritten by its name has no second name, which
//!   could make it anybody's file.
//! - Opening never truncates: the opened file is checked first.
//!
//! Left out: which store files belong to (`shoal_store`), and locks (`store_lock`).

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags};
use rustix::io::Errno;

use crate::{calls, named};

/// Readable and writable by the owner only.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
/// A longer file is no note (bytes).
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For inspection: works on a host that takes no writes, and changes nothing.
    Read,
    Write,
}

impl Access {
    pub fn reading(read_only: bool) -> Access {
        if read_only { Access::Read } else { Access::Write }
    }

    pub(crate) fn flags(self) -> OFlags {
        match self {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
        }
    }
}

/// Identifies a file or directory by device and inode number, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(u64, u64);

impl Identity {
    pub fn of(file: &File) -> io::Result<Identity> {
        file.metadata().map(|found| Identity(found.dev(), found.ino()))
    }

    /// Returns the identity of the file that a path leads to now.
    pub fn at(path: &Path) -> io::Result<Identity> {
        std::fs::metadata(path).map(|found| Identity(found.dev(), found.ino())).map_err(|e| named(path, e))
    }

    fn of_stat(found: &Stat) -> Identity {
        Identity(found.st_dev, found.st_ino)
    }
}

/// Identifies a directory: its file system and inode number, mixed, and its birth time where the
/// file system records it. Without a birth time an inode number may be reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    pub place: u64,
    pub born: Option<u64>,
}

/// A directory that stays open. Clones are the same directory.
#[derive(Clone)]
pub struct Directory {
    file: Arc<File>,
    path: Arc<Path>,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Directory {
    /// Opens the directory that `path` leads to now. The caller named it, so links in it are
    /// followed.
    pub fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|e| named(path, e))?;
        Ok(Directory { file: Arc::new(opened.into()), path: path.into() })
    }

    /// Returns the path at opening, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path at opening, as messages show it.
    pub fn display(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// Returns a path that leads to this directory now: the one it was opened by, or the one it was
    /// moved to. If neither does, a path through this process's descriptor.
    pub fn place(&self) -> PathBuf {
        let own = Identity::of(&self.file).ok();
        let leads_here = |path: &Path| own.is_some() && Identity::at(path).ok() == own;
        let descriptor = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        if leads_here(&self.path) {
            return self.path.to_path_buf();
        }
        // The kernel's path may name another directory: if the file system was unmounted, it gives
        // only the rest of the path.
        std::fs::read_link(&descriptor).ok().filter(|path| leads_here(path)).unwrap_or(descriptor)
    }

    /// Returns a path through the descriptor, for calls that take only paths.
    pub fn through_descriptor(&self, name: &OsStr) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.file.as_raw_fd())).join(name)
    }

    pub fn identity(&self) -> io::Result<Identity> {
        Identity::of(&self.file)
    }

    /// Tells this directory from copies of it, at any time, under any name and through any mount. A
    /// copy of the whole file system has the same value.
    pub fn birth(&self) -> io::Result<Birth> {
        let found = rustix::fs::statx(&*self.file, ".", AtFlags::empty(), StatxFlags::INO | StatxFlags::BTIME)?;
        let host = rustix::fs::fstatfs(&*self.file)?;
        let is_born = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        // The type hides its two words. The stored value must not depend on how a library formats
        // them, so only the numbers in its text count.
        let text = format!("{:?}", host.f_fsid);
        let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '-').filter_map(|word| word.parse::<i64>().ok());
        let host = numbers.fold(0u64, |host, word| host.rotate_left(32) ^ u64::from(word.cast_unsigned() as u32));
        let born = found.stx_btime.tv_sec.cast_unsigned() << 30 ^ u64::from(found.stx_btime.tv_nsec);
        Ok(Birth { place: host ^ found.stx_ino, born: is_born.then_some(born) })
    }

    /// Returns the directory's own descriptor, for locking it or querying its file system.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Opens the same directory again. The new descriptor has its own locks.
    pub fn opened_again(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&*self.file, ".", flags, Mode::empty());
        opened.map(File::from).map_err(|e| named(&self.path, e))
    }

    fn named(&self, name: &str, source: impl Into<io::Error>) -> io::Error {
        named(&self.path.join(name), source)
    }

    fn open_at(&self, name: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<File> {
        // A name may lead to a pipe, and opening one would block until its other end is opened.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&*self.file, name, flags, mode, resolve) {
            // The kernel or container lacks `openat2`. For a single component `O_NOFOLLOW` gives
            // the same result.
            Err(Errno::NOSYS | Errno::PERM) if is_one_component(name) => {
                rustix::fs::openat(&*self.file, name, flags, mode).map(File::from)
            }
            opened => opened.map(File::from),
        }
    }

    /// Opens a regular file.
    pub fn open_file(&self, name: &str, access: Access) -> io::Result<File> {
        let file = self.open_at(name, access.flags(), Mode::empty()).map_err(|e| self.refusal(name, e))?;
        self.refuse_special(name, &file)?;
        Ok(file)
    }

    /// Creates a file that only its owner may read. An existing file is refused.
    pub fn create_new(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = self.open_at(name, flags, PRIVATE).map_err(|e| self.refusal(name, e))?;
        self.give_to_owner(&file);
        calls::created(&file, &self.path.join(name));
        Ok(file)
    }

    /// Gives a file that root created in another user's directory to that user, who must be able to
    /// use the store without root.
    fn give_to_owner(&self, file: &File) {
        if let Ok(own) = self.file.metadata()
            && own.uid() != 0
        {
            // Without root this fails, but then the caller owns the file already.
            let _ = std::os::unix::fs::fchown(file, Some(own.uid()), Some(own.gid()));
        }
    }

    /// Opens a regular file to overwrite it, or creates it. Existing contents stay.
    pub fn open_or_create(&self, name: &str) -> io::Result<File> {
        let file = match self.open_at(name, OFlags::RDWR, Mode::empty()) {
            Err(Errno::NOENT) => match self.create_new(name) {
                // Another process created it first.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.open_file(name, Access::Write)?,
                made => made?,
            },
            opened => opened.map_err(|e| self.refusal(name, e))?,
        };
        self.refuse_special(name, &file)?;
        if file.metadata()?.nlink() > 1 && !self.is_private() {
            let cause = "has a second name, so it may be anybody's file; remove it here";
            return Err(self.named(name, io::Error::new(io::ErrorKind::PermissionDenied, cause)));
        }
        Ok(file)
    }

    /// Like [`Directory::open_or_create`], for appending.
    pub fn open_to_append(&self, name: &str) -> io::Result<File> {
        let file = self.open_or_create(name)?;
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND).map_err(|e| self.named(name, e))?;
        Ok(file)
    }

    /// Returns true if only this process's user can have created names here.
    fn is_private(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.file.metadata().is_ok_and(|found| found.uid() == own && found.mode() & 0o022 == 0)
    }

    fn refuse_special(&self, name: &str, file: &File) -> io::Result<()> {
        if file.metadata()?.is_file() {
            return Ok(());
        }
        Err(self.named(name, io::Error::new(io::ErrorKind::PermissionDenied, "is no regular file; remove it here")))
    }

    fn refusal(&self, name: &str, error: Errno) -> io::Error {
        match error {
            Errno::LOOP => {
                let cause =
                    "is a symbolic link, which is never followed here; remove it, and put the file itself in its place";
                self.named(name, io::Error::new(io::ErrorKind::PermissionDenied, cause))
            }
            error => self.named(name, error),
        }
    }

    /// Contents of a small file. `None` if it does not exist.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open_file(name, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.take(NOTE_BYTES_MAX).read_to_end(&mut bytes).map_err(|e| self.named(name, e))?;
        Ok(Some(bytes))
    }

    /// Reads a note as text. `None` if the file does not exist or is not text.
    pub fn read_text(&self, name: &str) -> Option<String> {
        String::from_utf8(self.read(name).ok()??).ok()
    }

    /// Overwrites a small file. A crash may leave it empty.
    pub fn write_note(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = self.open_or_create(name)?;
        file.set_len(0).and_then(|()| file.write_all_at(bytes, 0)).map_err(|e| self.named(name, e))
    }

    /// Replaces a small file, creating it first under the name `new`. The name `name` leads to a
    /// whole file at any time. With `durably`, bytes and name survive a power loss once this
    /// returns.
    pub fn replace(&self, new: &str, name: &str, bytes: &[u8], durably: bool) -> io::Result<()> {
        self.remove(new)?;
        let file = self.create_new(new)?;
        let written = file.write_all_at(bytes, 0).and_then(|()| match durably {
            // Sync before the rename, so that the name never leads to less than the whole file.
            true => file.sync_all(),
            false => Ok(()),
        });
        let named = written.map_err(|e| self.named(new, e)).and_then(|()| self.rename(new, name));
        if named.is_err() {
            let _ = self.remove(new);
        }
        named.and_then(|()| if durably { self.sync() } else { Ok(()) })
    }

    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        rustix::fs::renameat(&*self.file, from, &*self.file, to).map_err(|e| self.named(from, e))?;
        calls::renamed(&self.path.join(from), &self.path.join(to));
        Ok(())
    }

    /// Removes a name that is no directory. A missing name is no error.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&*self.file, name, AtFlags::empty()) {
            Ok(()) => {
                calls::removed(&self.path.join(name));
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.named(name, error)),
        }
    }

    /// Removes a directory of plain files. If it contains a directory, the error names that and the
    /// directory stays.
    pub fn remove_directory(&self, name: &str) -> io::Result<()> {
        let below = match self.subdirectory(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        for entry in below.entries()? {
            let entry = entry.to_string_lossy();
            below.remove(&entry)?;
        }
        rustix::fs::unlinkat(&*self.file, name, AtFlags::REMOVEDIR).map_err(|e| self.named(name, e))
    }

    pub fn subdirectory(&self, name: &str) -> io::Result<Directory> {
        let is_link = |found: Stat| FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
        let opened = self.open_at(name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
        let file = opened.map_err(|error| match error {
            Errno::NOTDIR if self.stat(name).is_some_and(is_link) => self.refusal(name, Errno::LOOP),
            error => self.refusal(name, error),
        })?;
        Ok(Directory { file: Arc::new(file), path: self.path.join(name).into() })
    }

    /// Creates a directory for its owner alone.
    pub fn make_directory(&self, name: &str) -> io::Result<Directory> {
        rustix::fs::mkdirat(&*self.file, name, Mode::RWXU).map_err(|e| self.named(name, e))?;
        let made = self.subdirectory(name)?;
        self.give_to_owner(&made.file);
        Ok(made)
    }

    /// Returns true if something has this name. Links are not followed.
    pub fn has(&self, name: &str) -> bool {
        self.stat(name).is_some()
    }

    fn stat(&self, name: &str) -> Option<Stat> {
        rustix::fs::statat(&*self.file, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Returns true if this name is a directory.
    pub fn is_directory(&self, name: &str) -> bool {
        self.stat(name).is_some_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
    }

    /// Returns the length of a regular file. `None` if there is none of this name.
    pub fn file_bytes(&self, name: &str) -> Option<u64> {
        let found = self.stat(name)?;
        (FileType::from_raw_mode(found.st_mode) == FileType::RegularFile).then_some(found.st_size.cast_unsigned())
    }

    /// Returns the bytes that a file occupies on its host. 0 if there is no such file.
    pub fn allocated_bytes(&self, name: &str) -> u64 {
        self.stat(name).map_or(0, |found| found.st_blocks.cast_unsigned() * 512)
    }

    /// Returns true if the name leads to this file.
    pub fn is(&self, name: &str, file: &File) -> bool {
        let own = Identity::of(file).ok();
        own.is_some() && self.stat(name).map(|found| Identity::of_stat(&found)) == own
    }

    /// Returns all names except `.` and `..`.
    pub fn entries(&self) -> io::Result<Vec<OsString>> {
        let listed = Dir::read_from(&*self.file).map_err(|e| named(&self.path, e))?;
        let mut names = Vec::new();
        for entry in listed {
            let name = entry.map_err(|e| named(&self.path, e))?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Makes the names in the directory durable.
    pub fn sync(&self) -> io::Result<()> {
        calls::sync_directory(&self.file, &self.path).map_err(|e| named(&self.path, e))
    }
}

/// Opens the directory that holds a path's last component, and returns that component too.
pub(crate) fn in_directory(path: &Path) -> io::Result<(Directory, String)> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(OsStr::to_str);
    let wrong = || named(path, io::Error::new(io::ErrorKind::InvalidInput, "names no file"));
    Ok((Directory::open(parent)?, name.ok_or_else(wrong)?.to_string()))
}

fn is_one_component(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

/// Opens a socket in a directory without connecting to it. Links are not followed.
pub fn open_socket(directory: &Path, name: &OsStr) -> io::Result<File> {
    let held = Directory::open(directory)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&held, name, flags, Mode::empty()).map_err(|e| named(&directory.join(name), e))?;
    let file = File::from(opened);
    if !file.metadata()?.file_type().is_socket() {
        let cause = "is no socket; remove it";
        return Err(named(&directory.join(name), io::Error::new(io::ErrorKind::PermissionDenied, cause)));
    }
    Ok(file)
}

/// Opens a regular file outside of a held directory. A link as the last component is refused.
pub fn open_unlinked(path: &Path, access: Access) -> io::Result<File> {
    let flags = access.flags() | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|e| named(path, e))?;
    let file = File::from(opened);
    if !file.metadata().map_err(|e| named(path, e))?.is_file() {
        return Err(named(path, io::Error::new(io::ErrorKind::PermissionDenied, "is no regular file")));
    }
    Ok(file)
}

/// Renames a file to a name that must be free.
pub fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    let renamed = rustix::fs::renameat_with(CWD, from, CWD, to, rustix::fs::RenameFlags::NOREPLACE);
    renamed.map_err(|e| named(to, e))?;
    calls::renamed(from, to);
    Ok(())
}

/// Returns true for a regular file of this process's user that has no data.
pub fn is_blank(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_file() && found.uid() == own && found.blocks() == 0)
}

/// Removes the name of a held file if it still leads to that file, and returns whether it did.
/// Another file put in its place stays.
pub fn remove_held(path: &Path, file: &File) -> io::Result<bool> {
    // Check and remove the name in the same directory, even if the path to it changes in between.
    let (parent, name) = in_directory(path)?;
    if !parent.is(&name, file) {
        return Ok(false);
    }
    parent.remove(&name)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_that_is_moved_stays_the_same_and_its_successor_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let (first, moved) = (dir.path().join("s"), dir.path().join("t"));
        std::fs::create_dir(&first).unwrap();
        let held = Directory::open(&first).unwrap();
        std::fs::rename(&first, &moved).unwrap();
        std::fs::create_dir(&first).unwrap();
        std::fs::write(first.join("pid"), "other").unwrap();
        held.write_note("pid", b"mine").unwrap();
        assert_eq!(std::fs::read(first.join("pid")).unwrap(), b"other");
        assert_eq!(std::fs::read(moved.join("pid")).unwrap(), b"mine");
        assert_eq!(held.place(), moved);
        held.remove("pid").unwrap();
        held.remove("pid").unwrap();
        assert!(first.join("pid").exists() && !moved.join("pid").exists());
        std::fs::remove_dir(&moved).unwrap();
        assert!(held.place().starts_with("/proc/self/fd"), "{}", held.place().display());
    }

    #[test]
    fn links_second_names_and_pipes_are_refused_and_what_they_lead_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let held = Directory::open(dir.path()).unwrap();
        // Other users may create names here.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, dir.path().join("lock")).unwrap();
        symlink(dir.path().join("none"), dir.path().join("pid")).unwrap();
        std::fs::hard_link(&victim, dir.path().join("cache")).unwrap();
        rustix::fs::mknodat(CWD, dir.path().join("log"), FileType::Fifo, PRIVATE, 0).unwrap();
        for name in ["lock", "pid", "cache", "log"] {
            let error = held.write_note(name, b"x").unwrap_err();
            assert!(error.to_string().contains(name) && error.to_string().contains("remove it"), "{error}");
        }
        for name in ["lock", "pid", "log", "../victim", "/etc/passwd"] {
            assert!(held.open_file(name, Access::Read).is_err(), "{name}");
        }
        assert!(!dir.path().join("none").exists());
        held.replace("lock.new", "lock", b"mine", false).unwrap();
        held.replace("cache.new", "cache", b"mine", true).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(held.read_text("lock").as_deref(), Some("mine"));
        assert!(held.read("gone").unwrap().is_none());
    }

    #[test]
    fn a_directory_goes_with_its_files_and_not_with_another_directory() {
        let dir = tempfile::tempdir().unwrap();
        let held = Directory::open(dir.path()).unwrap();
        let log = held.make_directory("log").unwrap();
        log.create_new("log-0").unwrap();
        assert!(log.create_new("log-0").is_err());
        symlink("/etc", dir.path().join("log/etc")).unwrap();
        held.remove_directory("log").unwrap();
        held.remove_directory("log").unwrap();
        assert!(!held.has("log") && Path::new("/etc/passwd").exists());
        held.make_directory("log").unwrap().make_directory("deep").unwrap();
        assert!(held.remove_directory("log").is_err() && held.is_directory("log"));
        symlink("/etc", dir.path().join("link")).unwrap();
        assert!(held.remove_directory("link").is_err() && held.has("link"));
    }

    #[test]
    fn only_the_file_that_is_held_loses_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, "mine").unwrap();
        let mine = open_unlinked(&path, Access::Write).unwrap();
        std::fs::rename(&path, dir.path().join("g")).unwrap();
        std::fs::write(&path, "other").unwrap();
        assert!(!remove_held(&path, &mine).unwrap() && path.exists());
        assert!(remove_held(&dir.path().join("g"), &mine).unwrap());
        assert!(Directory::open(dir.path()).unwrap().is("f", &File::open(&path).unwrap()));
    }
}
