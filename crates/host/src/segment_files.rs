//! The files of the log's directory: their names, and how each is created and removed.
//!
//! | name | is |
//! |---|---|
//! | `log-<16 hex digits>` | the segment that begins at this log position |
//! | `spare-<n>` | a whole segment without meaning, ready for any position |
//! | `new-<n>` | a spare in the making; the log removes those of a killed process when it takes or makes a segment |
//!
//! A segment is filled with zeros and made durable under its `new` name before it gets any other
//! name. So a `log` or `spare` file has its full length and its blocks after any power loss, stores
//! into its map find room, and a sync of records writes records only. A file of another name, or a
//! `log` file of another length, makes opening fail: it does not belong to the log, or it is
//! damaged. A `spare` of another length is left alone. Opening changes nothing, because a log may
//! be opened only for reading. On a full host a new segment is not begun: all of its room is
//! checked and taken before the first zero is written. Errors of creating a segment are passed on
//! unchanged, because the caller must tell a lack from a failure.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::mm::MapFlags;

use crate::directory::{Access, Directory};
use crate::map::Map;
use crate::planted::{Bug, is_planted};
use crate::{calls, host_kind};

/// Maximum number of spares kept, on a host with room for them. These are the segments that a
/// checkpoint of the usual 256 MiB releases, and one held back.
pub(crate) const SPARES_MAX: usize = 9;
/// Zeros written to the disk at a time (bytes).
pub(crate) const ZEROS_BYTES: usize = 512 << 10;

/// A step that may fail, named after the call it makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    Allocate,
    Fill,
    Sync,
    /// A record stored by `pwrite`.
    Store,
}

/// Called before each step, so that a test can make it fail or take long.
#[cfg(test)]
pub(crate) type Hook = Box<dyn FnMut(Step) -> io::Result<()> + Send>;

/// A segment's file and its mapping. The segment's name is stored elsewhere.
pub(crate) struct Segment {
    pub file: File,
    /// Present where stores into a map always find room.
    pub map: Option<Map>,
    /// Appended to since its last sync. Set after bytes are stored, cleared before they are synced.
    pub dirty: AtomicBool,
}

pub(crate) struct Spare {
    pub number: u64,
    pub segment: Segment,
}

/// Contents of an existing directory.
pub(crate) struct Scan {
    /// By start position.
    pub segments: BTreeMap<u64, Segment>,
    pub spares: Vec<Spare>,
}

pub(crate) struct SegmentFiles {
    directory: Directory,
    access: Access,
    segment_bytes: u64,
    next_number: AtomicU64,
    mapped: bool,
    /// Files to remove, found when the log was opened: half-made spares, and whole ones beyond
    /// those kept.
    leftovers: Mutex<Vec<String>>,
    /// File name of the spare that is being made, or that was made last.
    making: Mutex<String>,
    #[cfg(test)]
    pub before: Mutex<Option<Hook>>,
}

enum Name {
    Log(u64),
    Spare(u64),
    New(u64),
}

fn parse_name(name: &str) -> Option<Name> {
    if let Some(digits) = name.strip_prefix("log-") {
        let start = u64::from_str_radix(digits, 16).ok()?;
        return (format!("{start:016x}") == digits).then_some(Name::Log(start));
    }
    let (prefix, digits) = name.split_once('-')?;
    let number: u64 = digits.parse().ok()?;
    match prefix {
        _ if number.to_string() != digits => None,
        "spare" => Some(Name::Spare(number)),
        "new" => Some(Name::New(number)),
        _ => None,
    }
}

impl SegmentFiles {
    /// Opens everything in the directory.
    pub fn open(directory: Directory, segment_bytes: u64, access: Access) -> io::Result<(SegmentFiles, Scan)> {
        let mapped = access == Access::Write && host_kind::writes_in_place(directory.file());
        let entries = directory.entries()?;
        let mut files = SegmentFiles {
            directory,
            access,
            segment_bytes,
            next_number: AtomicU64::new(0),
            mapped,
            leftovers: Mutex::default(),
            making: Mutex::default(),
            #[cfg(test)]
            before: Mutex::new(None),
        };
        let mut scan = Scan { segments: BTreeMap::new(), spares: Vec::new() };
        for entry in entries {
            let name = entry.to_string_lossy();
            match parse_name(&name) {
                Some(Name::Log(start)) if start.is_multiple_of(segment_bytes) => {
                    scan.segments.insert(start, files.open_segment(&name)?);
                }
                Some(Name::Spare(number)) => {
                    files.number_after(number);
                    // A spare of another length holds nothing, so the store need not be refused
                    // because of it.
                    if files.directory.file_bytes(&name) == Some(segment_bytes) {
                        if scan.spares.len() < SPARES_MAX {
                            scan.spares.push(Spare { number, segment: files.open_segment(&name)? });
                        } else {
                            files.leftovers.get_mut().push(name.into_owned());
                        }
                    }
                }
                Some(Name::New(number)) => {
                    files.number_after(number);
                    files.leftovers.get_mut().push(name.into_owned());
                }
                Some(Name::Log(_)) | None => {
                    let message = format!("is not a log segment of {segment_bytes} bytes: move it out of the log");
                    return Err(files.named(&name, io::Error::new(io::ErrorKind::InvalidData, message)));
                }
            }
        }
        Ok((files, scan))
    }

    /// Makes new spares get numbers above `found` from now on.
    fn number_after(&mut self, found: u64) {
        let next = self.next_number.get_mut();
        *next = found.saturating_add(1).max(*next);
    }

    pub fn has_leftovers(&self) -> bool {
        !self.leftovers.lock().is_empty()
    }

    /// Removes the leftovers that opening found. The next opening finds those that cannot be
    /// removed.
    pub fn remove_leftovers(&self) {
        let found = std::mem::take(&mut *self.leftovers.lock());
        for name in found {
            let _ = self.directory.remove(&name);
        }
    }

    fn named(&self, name: &str, source: io::Error) -> io::Error {
        crate::named(&self.directory.path().join(name), source)
    }

    fn open_segment(&self, name: &str) -> io::Result<Segment> {
        let file = self.directory.open_file(name, self.access)?;
        let found = file.metadata().map_err(|e| self.named(name, e))?.len();
        if found != self.segment_bytes {
            let message = format!(
                "is {found} bytes long, a log segment has {}: restore the log from a copy, or run the check",
                self.segment_bytes
            );
            return Err(self.named(name, io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        self.map(file).map_err(|e| self.named(name, e))
    }

    fn map(&self, file: File) -> io::Result<Segment> {
        let map = self.mapped.then(|| Map::of_file(&file, self.segment_bytes, MapFlags::SHARED)).transpose()?;
        Ok(Segment { file, map, dirty: AtomicBool::new(false) })
    }

    /// Asks the host to write files that are created in the directory from now on in place.
    pub fn write_in_place(&self) {
        host_kind::write_in_place(self.directory.file());
    }

    /// Called before each call that may fail.
    pub fn step(&self, step: Step) -> io::Result<()> {
        #[cfg(test)]
        if let Some(before) = &mut *self.before.lock() {
            return before(step);
        }
        let _ = step;
        Ok(())
    }

    /// Makes a spare: writes zeros, makes them durable, then names the file. Gives up between two
    /// pieces when `stop` is set. `has_time` is called after each piece with the offset of the
    /// piece. If it returns true, the piece is sent to the disk, and `rest` is called with the time
    /// that took.
    pub fn create_spare(
        &self,
        stop: &AtomicBool,
        has_time: &dyn Fn(u64) -> bool,
        rest: &dyn Fn(Duration),
    ) -> io::Result<Spare> {
        self.remove_leftovers();
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let temporary = format!("new-{number}");
        self.making.lock().clone_from(&temporary);
        let made = self.fill_segment(&temporary, stop, has_time, rest).and_then(|file| {
            // Map before naming: a spare that has its name is counted.
            let segment = self.map(file)?;
            self.directory.rename(&temporary, &spare_name(number))?;
            Ok(segment)
        });
        match made {
            Ok(segment) => Ok(Spare { number, segment }),
            Err(e) => {
                // If the file cannot be removed, the next process treats it as a leftover. Here
                // only its space matters.
                let _ = self.directory.remove(&temporary);
                Err(e)
            }
        }
    }

    /// Returns the room on the host that the spare in the making has taken so far (bytes).
    pub fn taken_bytes(&self) -> u64 {
        self.directory.allocated_bytes(&self.making.lock()).min(self.segment_bytes)
    }

    fn fill_segment(
        &self,
        name: &str,
        stop: &AtomicBool,
        has_time: &dyn Fn(u64) -> bool,
        rest: &dyn Fn(Duration),
    ) -> io::Result<File> {
        self.step(Step::Create)?;
        // Do not even begin on a full host: other writers must not find its last room taken for a
        // moment.
        let space = rustix::fs::fstatvfs(&self.directory)?;
        if space.f_bavail.saturating_mul(space.f_frsize) < self.segment_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = self.directory.create_new(name)?;
        host_kind::write_in_place(&file);
        self.step(Step::Allocate)?;
        host_kind::allocate(&file, 0, self.segment_bytes)?;
        let zeros = vec![0; ZEROS_BYTES.min(self.segment_bytes as usize)];
        for at in (0..self.segment_bytes).step_by(zeros.len()) {
            if stop.load(Ordering::Relaxed) {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "the log is being closed"));
            }
            let len = zeros.len().min((self.segment_bytes - at) as usize);
            let begun = Instant::now();
            self.step(Step::Fill)?;
            calls::write_all_at(&file, &zeros[..len], at)?;
            if has_time(at) {
                // A reader waits behind all writes under way on the disk. Sending each piece limits
                // them to one piece.
                calls::send(&file, at, len as u64)?;
                rest(begun.elapsed());
            }
        }
        self.step(Step::Sync)?;
        // Make length and blocks durable before the rename, so that the name never leads to less
        // than a segment.
        if !is_planted(Bug::SpareUnsynced) {
            calls::sync_all(&file)?;
        }
        Ok(file)
    }

    /// Names a spare after the position it is to hold. The name is durable after `sync_directory`.
    pub fn rename_to_log(&self, number: u64, start: u64) -> io::Result<()> {
        self.directory.rename(&spare_name(number), &log_name(start))
    }

    /// Turns a segment into a spare, and returns the spare's number.
    pub fn rename_to_spare(&self, start: u64) -> io::Result<u64> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        self.directory.rename(&log_name(start), &spare_name(number))?;
        Ok(number)
    }

    pub fn remove_log(&self, start: u64) -> io::Result<()> {
        self.directory.remove(&log_name(start))
    }

    pub fn sync_directory(&self) -> io::Result<()> {
        self.directory.sync()
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

fn log_name(start: u64) -> String {
    format!("log-{start:016x}")
}

fn spare_name(number: u64) -> String {
    format!("spare-{number}")
}
