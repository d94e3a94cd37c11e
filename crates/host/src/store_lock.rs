//! One user per store: an advisory lock on the store's directory and the file `lock` in it, and on the files and devices outside of it.
//!
//! The kernel releases it when the process ends, however it ends. The file holds the process id of its owner, for the
//! message to the next process that wants the store. It stays behind, without meaning, when the lock is released.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::named;

/// How long to wait for a region that another process has open.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);

pub struct StoreLock {
    file: File,
    path: PathBuf,
    _directory: File,
}

impl StoreLock {
    /// Locks the store in `directory`, or names its owner at once (`WouldBlock`).
    pub fn acquire(directory: &Path) -> io::Result<StoreLock> {
        let path = directory.join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(|e| named(&path, e))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(directory, &file)),
            Err(e) => return Err(named(&path, e)),
        }
        let lock = StoreLock { file, path, _directory: lock_directory(directory)? };
        lock.record_owner()?;
        Ok(lock)
    }

    /// Is the lock held? Asked through files opened for reading, which leaves the lock file as it is.
    pub fn is_held(directory: &Path) -> bool {
        [&directory.join("lock"), directory].into_iter().any(|path| {
            File::open(path)
                .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK))
        })
    }

    /// Writes this process's id into the lock file. Called again after a fork that hands the store to the child.
    pub fn record_owner(&self) -> io::Result<()> {
        let text = format!("{}\n", std::process::id());
        let written = self.file.set_len(0).and_then(|()| self.file.write_all_at(text.as_bytes(), 0));
        match written {
            // The id is for a message only: a full host must not stop the store from being opened.
            Err(e) if matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Ok(()),
            written => written.map_err(|e| named(&self.path, e)),
        }
    }
}

/// One user at a time of a file, as long as this value lives.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Locks the file for this process. `WouldBlock`: another process has it, and did not release it in the moment that
    /// a process takes to end.
    pub fn acquire(file: File) -> io::Result<FileLock> {
        lock_alone(&file).map(|()| FileLock(file))
    }

    pub fn file(&self) -> &File {
        &self.0
    }
}

/// Locks a file outside of the store's directory for this process alone. The store's own lock does not cover a copy of
/// that directory, which names the same file. A process that is ending releases its locks one after the other, so this
/// one is waited for, briefly.
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

/// Locks the directory itself, too: somebody may remove the lock's file, and the next one to make it would lock another file.
fn lock_directory(directory: &Path) -> io::Result<File> {
    let opened = File::open(directory).map_err(|e| named(directory, e))?;
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => {
            let message = "is in use by a process whose lock file was removed: unmount it or stop that process first";
            Err(named(directory, io::Error::new(io::ErrorKind::WouldBlock, message)))
        }
        // Where a directory cannot be locked the file is all there is.
        Ok(()) | Err(_) => Ok(opened),
    }
}

fn in_use(directory: &Path, file: &File) -> io::Error {
    let mut text = [0; 16];
    let len = file.read_at(&mut text, 0).unwrap_or(0);
    let owner = match std::str::from_utf8(&text[..len]).unwrap_or("").trim().parse::<u32>() {
        Ok(pid) => format!("process {pid}"),
        // The owner is between taking the lock and writing its id.
        Err(_) => "another process".into(),
    };
    let message = format!("store {} is in use by {owner}: unmount it or stop that process first", directory.display());
    io::Error::new(io::ErrorKind::WouldBlock, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_is_refused_and_names_the_holder_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let first = StoreLock::acquire(dir.path()).unwrap();
        let error = StoreLock::acquire(dir.path()).map(drop).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains(&format!("process {}:", std::process::id())), "{error}");
        assert!(StoreLock::is_held(dir.path()));
        drop(first);
        assert!(!StoreLock::is_held(dir.path()));
        let second = StoreLock::acquire(dir.path()).unwrap();
        // Who removes the file does not unlock the store.
        std::fs::remove_file(dir.path().join("lock")).unwrap();
        assert!(StoreLock::is_held(dir.path()));
        let error = StoreLock::acquire(dir.path()).map(drop).unwrap_err();
        assert!(error.kind() == io::ErrorKind::WouldBlock && error.to_string().contains("was removed"), "{error}");
        drop(second);
        StoreLock::acquire(dir.path()).unwrap();
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
        let error = StoreLock::acquire(Path::new("/no/such/store")).map(drop).unwrap_err();
        assert!(error.to_string().contains("/no/such/store/lock"), "{error}");
    }
}
