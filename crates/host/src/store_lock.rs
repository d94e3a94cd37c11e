//! One user per store: an advisory lock on the store's directory and the file `lock` in it, and on
//! the files and devices outside of it.
//!
//! The kernel releases the lock when the process ends, however it ends. The file holds the process
//! id of the lock's owner, for the message to the next process that wants the store. After the
//! release it stays behind, without meaning.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::directory::{Access, Directory};
use crate::named;

/// Holds the process id of the lock's owner.
const LOCK: &str = "lock";

/// How long to wait for a file that another process has locked.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

pub struct StoreLock {
    /// `None` on a host that takes no writes, if the file does not exist.
    file: Option<File>,
    takes_writes: bool,
    directory: Directory,
    _locked: File,
}

impl StoreLock {
    /// Locks the store in `directory`, or at once fails with an error that names its owner
    /// (`WouldBlock`). Where the host takes no writes, the lock only excludes other readers, and
    /// leaves no trace.
    pub fn acquire(directory: &Directory) -> io::Result<StoreLock> {
        let (file, is_written) = match directory.open_or_create(LOCK) {
            Ok(file) => (Some(file), true),
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                (existing(directory.open_file(LOCK, Access::Read))?, false)
            }
            Err(error) => return Err(error),
        };
        if let Some(file) = &file {
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(in_use(directory, file)),
                Err(e) => return Err(named(&directory.path().join(LOCK), e)),
            }
        }
        let lock = StoreLock {
            file,
            takes_writes: is_written,
            directory: directory.clone(),
            _locked: lock_directory(directory)?,
        };
        lock.record_owner()?;
        Ok(lock)
    }

    /// Returns false if the host takes no writes, so that the store can only be read.
    pub fn takes_writes(&self) -> bool {
        self.takes_writes
    }

    /// Returns true if the lock is held. The files are opened for reading only, which leaves the
    /// store as it is. Fails where the answer cannot be determined.
    pub fn is_held(directory: &Directory) -> io::Result<bool> {
        let file = existing(directory.open_file(LOCK, Access::Read))?;
        let is_locked = |file: &File| flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK);
        Ok(file.as_ref().is_some_and(is_locked) || is_locked(&directory.opened_again()?))
    }

    fn record_owner(&self) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| self.takes_writes) else { return Ok(()) };
        let text = format!("{}\n", std::process::id());
        let written = file.set_len(0).and_then(|()| file.write_all_at(text.as_bytes(), 0));
        match written {
            // The id is only for a message, so a full host must not keep the store from being
            // opened.
            Err(e) if matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Ok(()),
            written => written.map_err(|e| named(&self.directory.path().join(LOCK), e)),
        }
    }
}

/// A lock that gives a file one user at a time, for as long as this value lives.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks the file for this process. `WouldBlock`: another process has it, and did not release
    /// it within the time that a process may take to end.
    pub fn acquire(file: File) -> io::Result<FileLock> {
        lock_alone(&file).map(|()| FileLock(file))
    }

    pub fn file(&self) -> &File {
        &self.0
    }
}

/// Locks a file outside of the store's directory for this process alone. The store's own lock does
/// not cover a copy of that directory, which names the same file. A process that is ending releases
/// its locks one after the other, so the lock is waited for briefly.
pub(crate) fn lock_alone(file: &File) -> io::Result<()> {
    let begin = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if begin.elapsed() < LOCK_PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::WOULDBLOCK) => {
                let message = "is in use by another store or process: unmount that one first";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
            }
            outcome => return Ok(outcome?),
        }
    }
}

/// Locks the directory itself, too. If the lock's file is removed, the next process would create
/// and lock another file.
fn lock_directory(directory: &Directory) -> io::Result<File> {
    let opened = directory.opened_again()?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let message = "is in use by a process whose lock file was removed: unmount it or stop that process first";
            Err(named(directory.path(), io::Error::new(io::ErrorKind::WouldBlock, message)))
        }
        // Where a directory cannot be locked, only the file's lock protects the store.
        Ok(()) | Err(_) => Ok(opened),
    }
}

fn existing(opened: io::Result<File>) -> io::Result<Option<File>> {
    match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

fn in_use(directory: &Directory, file: &File) -> io::Error {
    let mut text = [0; 16];
    let len = file.read_at(&mut text, 0).unwrap_or(0);
    let owner = match std::str::from_utf8(&text[..len]).unwrap_or("").trim().parse::<u32>() {
        Ok(pid) => format!("process {pid}"),
        // The owner has taken the lock but not written its id yet.
        Err(_) => "another process".into(),
    };
    let message = format!("store {} is in use by {owner}: unmount it or stop that process first", directory.display());
    io::Error::new(io::ErrorKind::WouldBlock, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn locked(path: &Path) -> io::Result<StoreLock> {
        StoreLock::acquire(&Directory::open(path)?)
    }

    fn is_held(path: &Path) -> bool {
        StoreLock::is_held(&Directory::open(path).unwrap()).unwrap()
    }

    #[test]
    fn a_second_lock_is_refused_and_names_the_holder_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let first = locked(dir.path()).unwrap();
        let error = locked(dir.path()).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains(&format!("process {}:", std::process::id())), "{error}");
        assert!(is_held(dir.path()));
        drop(first);
        assert!(!is_held(dir.path()));
        let second = locked(dir.path()).unwrap();
        // Removing the file does not unlock the store.
        std::fs::remove_file(dir.path().join("lock")).unwrap();
        assert!(is_held(dir.path()));
        let error = locked(dir.path()).map(drop).unwrap_err();
        assert!(error.kind() == io::ErrorKind::WouldBlock && error.to_string().contains("was removed"), "{error}");
        drop(second);
        locked(dir.path()).unwrap();
    }

    #[test]
    fn a_file_has_one_user_at_a_time_and_one_that_ends_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let open = || File::create(dir.path().join("f")).unwrap();
        let first = FileLock::acquire(open()).unwrap();
        assert_eq!(FileLock::acquire(open()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                drop(first);
            });
            FileLock::acquire(open()).unwrap();
        });
    }

    #[test]
    fn a_store_that_does_not_exist_is_named() {
        let error = locked(Path::new("/no/such/store")).map(drop).unwrap_err();
        assert!(error.to_string().contains("/no/such/store"), "{error}");
    }
}
