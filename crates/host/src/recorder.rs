//! A recording of every change to the store's files, in order, for tests that replay any prefix of it
//! (docs/design/testing.md, T12).
//!
//! There is one recorder for the process. [`start`] empties it and turns it on; [`take`] turns it
//! off and returns the events. Tests that use it run one at a time. The module is built only with
//! the feature `recorded`, so no release contains it.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use parking_lot::Mutex;

/// Identifies a file by device and inode number, whatever its name. A number may be reused after
/// its file is gone; [`Event::Created`] marks the reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(u64, u64);

impl FileId {
    pub fn of(file: &File) -> FileId {
        let metadata = file.metadata().expect("an open file has metadata");
        FileId(metadata.dev(), metadata.ino())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Synced {
    File(FileId),
    /// The names in this directory.
    Directory(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Created {
        file: FileId,
        path: PathBuf,
    },
    Written {
        file: FileId,
        at: u64,
        bytes: Vec<u8>,
        /// Stored through a shared map.
        mapped: bool,
    },
    Resized {
        file: FileId,
        bytes: u64,
    },
    Allocated {
        file: FileId,
        at: u64,
        len: u64,
        /// The range reads as zeros afterwards.
        zeroes: bool,
        keeps_len: bool,
    },
    Renamed {
        from: PathBuf,
        to: PathBuf,
    },
    Removed {
        path: PathBuf,
    },
    SyncBegun {
        sync: u64,
        what: Synced,
    },
    SyncEnded {
        sync: u64,
    },
    /// The test's own note of what is promised from here on.
    Mark(u64),
}

static EVENTS: Mutex<Option<Vec<Event>>> = Mutex::new(None);

/// Begins an empty recording.
pub fn start() {
    *EVENTS.lock() = Some(Vec::new());
}

/// Ends the recording and returns its events.
pub fn take() -> Vec<Event> {
    EVENTS.lock().take().unwrap_or_default()
}

pub fn mark(number: u64) {
    note(|| Event::Mark(number));
}

pub(crate) fn note(event: impl FnOnce() -> Event) {
    if let Some(events) = &mut *EVENTS.lock() {
        events.push(event());
    }
}

/// Records the start of a sync and returns the number for [`sync_ended`].
pub(crate) fn sync_begins(what: impl FnOnce() -> Synced) -> u64 {
    let mut events = EVENTS.lock();
    let Some(events) = &mut *events else { return 0 };
    let sync = events.len() as u64 + 1;
    events.push(Event::SyncBegun { sync, what: what() });
    sync
}

pub(crate) fn sync_ended(sync: u64) {
    note(|| Event::SyncEnded { sync });
}
