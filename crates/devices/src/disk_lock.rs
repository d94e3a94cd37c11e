//! A lock for each disk, whatever describes it: two processes that open one disk would destroy it.
//!
//! Rules: the lock is named by the disk's uuid, so another description or a copy of the disk cannot
//! be opened at the same time. A server's export has no uuid, so its address names the lock. Only
//! processes of this user on this machine see the lock. Left out: protection against other users
//! and machines, if there is any (leases, claims, marks of stores).

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use shoal_host::FileLock;
use tracing::warn;

use crate::failure::{Failure, Outcome};

/// Locks a disk. `kind` and `id` name the lock's file; `what` names the disk in messages. `None` if
/// there is no place for locks.
pub(crate) fn lock(kind: &str, id: &str, what: impl Display) -> Outcome<Option<FileLock>> {
    let path = crate::run_directory().join(format!("{kind}-{id}.lock"));
    let open = || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        File::options().create(true).append(true).open(&path)
    };
    let file = match open() {
        Ok(file) => file,
        Err(error) => {
            warn!("{}: {error}; nothing keeps another process from opening the disk", path.display());
            return Ok(None);
        }
    };
    FileLock::acquire(file).map(Some).map_err(|error| {
        let why = "another process on this machine has it open; stop that one first, or use another disk";
        Failure::new(what, io::Error::new(error.kind(), why))
    })
}
