//! A lock for each disk, whatever describes it: two processes that open one disk would destroy it.
//!
//! Rules: the lock is named by the disk's uuid, so that another description of the disk, or a copy of it, opens no second time. An export of
//! a server has no uuid: its address names the lock. Processes of this user on this machine see it. Left out: what keeps others out, where anything can (leases, claims, marks of stores).

use std::fmt::Display;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use shoal_host::FileLock;
use tracing::warn;

use crate::failure::{Failure, Outcome};

/// The lock's file is named by `kind` and `id`; `what` names the disk in messages. Nothing: there is no place for locks.
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
