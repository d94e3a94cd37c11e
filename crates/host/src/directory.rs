//! A directory held by its descriptor, and the files in it.
//!
//! A path says where something was when somebody looked; a descriptor stays the same directory whatever happens to its names. Whoever serves
//! a store keeps one of these and reaches the store's files through it, so that a store that is moved goes on working and a store that is
//! put in its place is never touched. Rules:
//! - A name is one component, or a path below the directory; no link in it is followed, wherever it leads.
//! - A file is a regular file. One that is written over by its name has no second name, which could be anybody's file.
//! - Opening never truncates: the file that was opened is looked at first.
//!
//! Left out: whose files these are (`shoal_store`), and locks (`store_lock`).

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

/// Readable by the owner only.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
/// A note is longer than this only if it is none (bytes).
const NOTE_BYTES_MAX: u64 = 1 << 20;

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be looked at: works on a host that takes no writes, and changes nothing.
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

/// A file or directory, whatever its name: device and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(u64, u64);

impl Identity {
    pub fn of(file: &File) -> io::Result<Identity> {
        file.metadata().map(|found| Identity(found.dev(), found.ino()))
    }

    /// Of what a path leads to now.
    pub fn at(path: &Path) -> io::Result<Identity> {
        std::fs::metadata(path).map(|found| Identity(found.dev(), found.ino())).map_err(|e| named(path, e))
    }

    fn of_stat(found: &Stat) -> Identity {
        Identity(found.st_dev, found.st_ino)
    }
}

/// A directory's file system and inode number, mixed, and its time of birth where the file system tells it: without one a number may be used
/// again.
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
    /// The directory that `path` leads to now. The caller named it, so links in it are followed.
    pub fn open(path: &Path) -> io::Result<Directory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|e| named(path, e))?;
        Ok(Directory { file: Arc::new(opened.into()), path: path.into() })
    }

    /// Its path when it was opened, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same, as messages show it.
    pub fn display(&self) -> std::path::Display<'_> {
        self.path.display()
    }

    /// A path that leads to this directory now: where it was opened, or where it has been moved; else one through this process's descriptor.
    pub fn place(&self) -> PathBuf {
        let own = Identity::of(&self.file).ok();
        let leads_here = |path: &Path| own.is_some() && Identity::at(path).ok() == own;
        let descriptor = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        if leads_here(&self.path) {
            return self.path.to_path_buf();
        }
        // What the kernel names may be another directory: of a file system that was taken away it gives the rest of the path.
        std::fs::read_link(&descriptor).ok().filter(|path| leads_here(path)).unwrap_or(descriptor)
    }

    /// A path through the descriptor, for calls that take nothing else.
    pub fn through_descriptor(&self, name: &OsStr) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.file.as_raw_fd())).join(name)
    }

    pub fn identity(&self) -> io::Result<Identity> {
        Identity::of(&self.file)
    }

    /// Tells this directory from copies of it, at any time, under any name and through any mount. A copy of the whole file system has the same.
    pub fn birth(&self) -> io::Result<Birth> {
        let found = rustix::fs::statx(&*self.file, ".", AtFlags::empty(), StatxFlags::INO | StatxFlags::BTIME)?;
        let host = rustix::fs::fstatfs(&*self.file)?;
        let is_born = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        // The type hides its two words. What is kept must not depend on how a library writes them, so its numbers alone count.
        let text = format!("{:?}", host.f_fsid);
        let numbers = text.split(|c: char| !c.is_ascii_digit() && c != '-').filter_map(|word| word.parse::<i64>().ok());
        let host = numbers.fold(0u64, |host, word| host.rotate_left(32) ^ u64::from(word.cast_unsigned() as u32));
        let born = found.stx_btime.tv_sec.cast_unsigned() << 30 ^ u64::from(found.stx_btime.tv_nsec);
        Ok(Birth { place: host ^ found.stx_ino, born: is_born.then_some(born) })
    }

    /// The directory's own descriptor, to lock it or to ask for its file system.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Another opening of the same directory, whose locks are its own.
    pub fn opened_again(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&*self.file, ".", flags, Mode::empty());
        opened.map(File::from).map_err(|e| named(&self.path, e))
    }

    fn named(&self, name: &str, source: impl Into<io::Error>) -> io::Error {
        named(&self.path.join(name), source)
    }

    fn open_at(&self, name: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<File> {
        // A name may lead to a pipe, whose opening would wait for its other end.
        let flags = flags | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&*self.file, name, flags, mode, resolve) {
            // A kernel or a container without the call: one component without links is the same.
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

    /// Makes a file that its owner alone may read; one that exists is refused.
    pub fn create_new(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = self.open_at(name, flags, PRIVATE).map_err(|e| self.refusal(name, e))?;
        self.give_to_owner(&file);
        calls::created(&file, &self.path.join(name));
        Ok(file)
    }

    /// What root makes in another user's directory is that user's, who must go on using the store without root.
    fn give_to_owner(&self, file: &File) {
        if let Ok(own) = self.file.metadata()
            && own.uid() != 0
        {
            // Others than root are refused, and own it anyhow.
            let _ = std::os::unix::fs::fchown(file, Some(own.uid()), Some(own.gid()));
        }
    }

    /// Opens a regular file to write it over, or makes it. Its contents stay.
    pub fn open_or_create(&self, name: &str) -> io::Result<File> {
        let file = match self.open_at(name, OFlags::RDWR, Mode::empty()) {
            Err(Errno::NOENT) => match self.create_new(name) {
                // Somebody was faster.
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

    /// The same to write behind its end.
    pub fn open_to_append(&self, name: &str) -> io::Result<File> {
        let file = self.open_or_create(name)?;
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND).map_err(|e| self.named(name, e))?;
        Ok(file)
    }

    /// Can nobody but this process's user have put names here?
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

    /// Contents of a small file; `None`: there is none.
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

    /// The same as text, where it is there and is text.
    pub fn read_text(&self, name: &str) -> Option<String> {
        String::from_utf8(self.read(name).ok()??).ok()
    }

    /// Writes a small file over. It may be empty after a crash.
    pub fn write_note(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let file = self.open_or_create(name)?;
        file.set_len(0).and_then(|()| file.write_all_at(bytes, 0)).map_err(|e| self.named(name, e))
    }

    /// Puts a small file in the place of another, whole at any time; it is made as `new`. With `durably` its bytes and its name survive a power
    /// loss from then on.
    pub fn replace(&self, new: &str, name: &str, bytes: &[u8], durably: bool) -> io::Result<()> {
        self.remove(new)?;
        let file = self.create_new(new)?;
        let written = file.write_all_at(bytes, 0).and_then(|()| match durably {
            // Before it gets its name: a name never leads to less.
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

    /// Removes a name that is no directory. None of that name is no error.
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

    /// Removes a directory of plain files. One that holds directories is left, and named.
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

    /// Makes a directory for its owner alone.
    pub fn make_directory(&self, name: &str) -> io::Result<Directory> {
        rustix::fs::mkdirat(&*self.file, name, Mode::RWXU).map_err(|e| self.named(name, e))?;
        let made = self.subdirectory(name)?;
        self.give_to_owner(&made.file);
        Ok(made)
    }

    /// Is there anything of this name? A link counts as itself.
    pub fn has(&self, name: &str) -> bool {
        self.stat(name).is_some()
    }

    fn stat(&self, name: &str) -> Option<Stat> {
        rustix::fs::statat(&*self.file, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Is this a directory?
    pub fn is_directory(&self, name: &str) -> bool {
        self.stat(name).is_some_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
    }

    /// Length of a regular file; `None`: there is none of this name.
    pub fn file_bytes(&self, name: &str) -> Option<u64> {
        let found = self.stat(name)?;
        (FileType::from_raw_mode(found.st_mode) == FileType::RegularFile).then_some(found.st_size.cast_unsigned())
    }

    /// Bytes that a file takes of its host; 0: there is none.
    pub fn allocated_bytes(&self, name: &str) -> u64 {
        self.stat(name).map_or(0, |found| found.st_blocks.cast_unsigned() * 512)
    }

    /// Does the name lead to this file?
    pub fn is(&self, name: &str, file: &File) -> bool {
        let own = Identity::of(file).ok();
        own.is_some() && self.stat(name).map(|found| Identity::of_stat(&found)) == own
    }

    /// All names but `.` and `..`.
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

    /// Makes the names in it durable.
    pub fn sync(&self) -> io::Result<()> {
        calls::sync_directory(&self.file, &self.path).map_err(|e| named(&self.path, e))
    }
}

/// The directory that a path's last component lies in, and that component.
pub(crate) fn in_directory(path: &Path) -> io::Result<(Directory, String)> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().and_then(OsStr::to_str);
    let wrong = || named(path, io::Error::new(io::ErrorKind::InvalidInput, "names no file"));
    Ok((Directory::open(parent)?, name.ok_or_else(wrong)?.to_string()))
}

fn is_one_component(name: &str) -> bool {
    !name.is_empty() && !name.contains('/') && name != "." && name != ".."
}

/// A socket in a directory, opened without being asked anything. No link is followed.
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

/// A file outside of a held directory that no link leads to.
pub fn open_unlinked(path: &Path, access: Access) -> io::Result<File> {
    let flags = access.flags() | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|e| named(path, e))?;
    let file = File::from(opened);
    if !file.metadata().map_err(|e| named(path, e))?.is_file() {
        return Err(named(path, io::Error::new(io::ErrorKind::PermissionDenied, "is no regular file")));
    }
    Ok(file)
}

/// Gives a file another name, which must be free.
pub fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    let renamed = rustix::fs::renameat_with(CWD, from, CWD, to, rustix::fs::RenameFlags::NOREPLACE);
    renamed.map_err(|e| named(to, e))?;
    calls::renamed(from, to);
    Ok(())
}

/// Is this a regular file of this process's user without any data?
pub fn is_blank(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_file() && found.uid() == own && found.blocks() == 0)
}

/// Removes the name of a file that is held, if it still leads to that file; whether it did. What was put in its place stays.
pub fn remove_held(path: &Path, file: &File) -> io::Result<bool> {
    // The name is looked at and removed in one directory, wherever the path to it leads in between.
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
        // Somebody else may put names here.
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
