//! The log of a `logged` store: a directory of segment files of equal size, each mapped.
//!
//! Position p lies in the segment that begins at p rounded down. Rules:
//! - All segments that an append needs exist before its first byte is stored, so a full disk
//!   changes nothing.
//! - One spare is held back for urgent appends; an ordinary append reports lack of room instead. So
//!   records that free space in the end, and the checkpoint that gives segments back, can always be
//!   logged.
//! - A background thread makes segments ahead, as soon as one is taken. Released segments are
//!   recycled; the record chain rejects stale records in them. A segment is durable at full length
//!   before it gets a name (`segment_files`).
//! - A small host gets a short log: beyond `segments_max` an append must wait until something is
//!   released.
//! - Lack of room, descriptors or memory fails the append and nothing else; the end does not move.
//! - A segment is marked dirty *after* bytes are stored and cleaned *before* it is synced, so a
//!   byte whose append has returned is never missed. The segment was named before, and the
//!   directory is synced with it.
//! - Syncs exclude each other, because a second sync must not return while the first one's work is
//!   unfinished. They never exclude appends.
//! - A failed sync or store poisons the log.
//!
//! A store into the map costs a tenth of a `pwrite`, but the sync after it costs twice as much, and
//! each new page a fault. So callers that sync often, and long appends, use `pwrite`; the others
//! use the map. Both go to the page cache. Where the host copies on write, a store into the map
//! could end the process for lack of room, so every append uses `pwrite`. The meaning of the bytes
//! is left to the region.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use shoal_media::{LogDevice, MediaError, Poison, Result};

use crate::directory::{Access, Directory, in_directory};
use crate::planted::{Bug, is_planted};
use crate::segment_files::{SPARES_MAX, Segment, SegmentFiles, Spare, Step};
use crate::{PAGE_BYTES, calls, named};

/// Bytes of a segment, unless the store was made with another size.
pub const SEGMENT_BYTES: u64 = 32 << 20;
/// With this many bytes appended between two syncs, storing into the map is cheaper than `pwrite`.
const MAP_BYTES_MIN: u64 = 64 << 10;
/// From this length on, an append by `pwrite` costs less than a fault for each page of the map
/// (bytes).
const CALL_BYTES_MIN: u64 = 8 << 10;
/// Spares that only urgent appends take.
const HELD_BACK: usize = 1;
/// Spares made ahead in addition to that one.
const AHEAD: usize = 1;
/// The segment being written, the next one and the one held back. A log needs all three to go on.
const SEGMENTS_MIN: u64 = 3;
/// The log takes at most one part in this many of its host.
const HOST_SHARE: u64 = 32;
/// First and longest pause before another attempt to make a spare.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// After a piece of a spare, the disk is left to others for this many times as long as the piece
/// took.
const RESTS: u32 = 4;
const REST_MAX: Duration = Duration::from_millis(50);

fn segments_max(host_bytes: u64, segment_bytes: u64) -> usize {
    (host_bytes / HOST_SHARE / segment_bytes).max(SEGMENTS_MIN) as usize
}

/// Returns the length of the log (bytes) at which a checkpoint should be made, on a host of
/// `host_bytes`. If it is made later, the log may run out of segments, and appends wait.
pub fn log_bytes_max(host_bytes: u64) -> u64 {
    (segments_max(host_bytes, SEGMENT_BYTES) as u64 - 2) * SEGMENT_BYTES / 4 * 3
}

pub struct SegmentLog {
    shared: Arc<Shared>,
    preparer: Option<JoinHandle<()>>,
}

struct Shared {
    files: SegmentFiles,
    segment_bytes: u64,
    /// Number of segments, spares included, from which on none are made for ordinary appends.
    segments_max: usize,
    state: Mutex<State>,
    /// Wakes the preparer, and threads that wait for a spare.
    changed: Condvar,
    /// Held for the whole of a sync.
    syncing: Mutex<()>,
    directory_dirty: AtomicBool,
    poison: Poison,
    stop: AtomicBool,
    /// Bytes appended since the last sync, and bytes that the last sync with any appends covered.
    appended_bytes: AtomicU64,
    interval_bytes: AtomicU64,
}

struct State {
    segments: BTreeMap<u64, Arc<Segment>>,
    spares: Vec<SpareSegment>,
    /// Where the next append must begin. Unknown until the first append.
    end: Option<u64>,
    preparing: bool,
    /// Number of threads that wait for the spare in the making. A thread that makes it because it
    /// needs it counts too.
    waiting: usize,
}

impl State {
    fn count(&self) -> usize {
        self.segments.len() + self.spares.len()
    }
}

struct SpareSegment {
    number: u64,
    segment: Arc<Segment>,
}

impl From<Spare> for SpareSegment {
    fn from(spare: Spare) -> SpareSegment {
        SpareSegment { number: spare.number, segment: Arc::new(spare.segment) }
    }
}

impl SegmentLog {
    /// Creates the directory of an empty log, with the first segment and the one held back. The
    /// directory must not exist. `segment_bytes` is a multiple of the page size.
    pub fn create(directory: &Path, segment_bytes: u64) -> io::Result<SegmentLog> {
        let (parent, name) = in_directory(directory)?;
        Self::create_in(&parent, &name, segment_bytes)
    }

    /// Like [`SegmentLog::create`], below a held directory.
    pub fn create_in(parent: &Directory, name: &str, segment_bytes: u64) -> io::Result<SegmentLog> {
        let held = parent.make_directory(name)?;
        parent.sync()?;
        let log = Self::over(held.clone(), segment_bytes, Access::Write)?;
        let directory = held.path();
        log.shared.files.write_in_place();
        for _ in 0..1 + HELD_BACK {
            let spare = log
                .shared
                .files
                .create_spare(&log.shared.stop, &|_| false, &|_| {})
                .map_err(|e| named(directory, e))?;
            log.shared.state.lock().spares.push(spare.into());
        }
        Ok(log)
    }

    /// Opens a log with all its segments. A file that does not belong to it is an error that names
    /// the file.
    pub fn open(directory: &Path, segment_bytes: u64) -> io::Result<SegmentLog> {
        Self::over(Directory::open(directory)?, segment_bytes, Access::Write)
    }

    /// Like [`SegmentLog::open`], below a held directory. A log opened for reading takes no
    /// appends.
    pub fn open_in(parent: &Directory, name: &str, segment_bytes: u64, access: Access) -> io::Result<SegmentLog> {
        Self::over(parent.subdirectory(name)?, segment_bytes, access)
    }

    fn over(held: Directory, segment_bytes: u64, access: Access) -> io::Result<SegmentLog> {
        let directory = held.path();
        if segment_bytes == 0 || !segment_bytes.is_multiple_of(PAGE_BYTES) {
            let message = format!("{segment_bytes} bytes is no segment size: choose a multiple of {PAGE_BYTES}");
            return Err(named(directory, io::Error::new(io::ErrorKind::InvalidInput, message)));
        }
        let host_bytes = crate::held_host_bytes(&held, held.path())?.total_bytes;
        let (files, scan) = SegmentFiles::open(held.clone(), segment_bytes, access)?;
        let state = State {
            segments: scan.segments.into_iter().map(|(start, segment)| (start, Arc::new(segment))).collect(),
            spares: scan.spares.into_iter().map(SpareSegment::from).collect(),
            end: None,
            preparing: false,
            waiting: 0,
        };
        // Bytes and names of an earlier process may not be durable yet, so the first sync covers
        // them all.
        for segment in state.segments.values() {
            segment.dirty.store(!is_planted(Bug::ReopenedClean), Ordering::Release);
        }
        let shared = Arc::new(Shared {
            files,
            segment_bytes,
            segments_max: segments_max(host_bytes, segment_bytes),
            state: Mutex::new(state),
            changed: Condvar::new(),
            syncing: Mutex::new(()),
            directory_dirty: AtomicBool::new(true),
            poison: Poison::default(),
            stop: AtomicBool::new(false),
            appended_bytes: AtomicU64::new(0),
            interval_bytes: AtomicU64::new(0),
        });
        let worker = shared.clone();
        let preparer =
            std::thread::Builder::new().name("log-preparer".into()).spawn(move || worker.prepare_spares())?;
        Ok(SegmentLog { shared, preparer: Some(preparer) })
    }

    /// Returns the bytes of all segment files, spares included.
    pub fn allocated_bytes(&self) -> u64 {
        self.shared.state.lock().count() as u64 * self.shared.segment_bytes
    }
}

impl Drop for SegmentLog {
    fn drop(&mut self) {
        {
            // Set it under the lock, so that the preparer cannot miss it between its test and its
            // wait.
            let _state = self.shared.state.lock();
            self.shared.stop.store(true, Ordering::Relaxed);
            self.shared.changed.notify_all();
        }
        if let Some(preparer) = self.preparer.take() {
            // The preparer holds nothing that outlives it. A panic in it has been reported by its
            // own thread.
            let _ = preparer.join();
        }
    }
}

impl Shared {
    fn name(&self) -> String {
        format!("log {}", self.files.path().display())
    }

    fn io_error(&self, source: io::Error) -> MediaError {
        MediaError::io(self.name(), source)
    }

    fn poison(&self, source: io::Error) -> MediaError {
        self.poison.set(&source);
        MediaError::Io { what: self.name(), source: Arc::new(source) }
    }

    fn refuse_poisoned(&self) -> Result<()> {
        // Build the name from the path only when it is needed.
        if self.poison.is_set() { self.poison.refuse(&self.name()) } else { Ok(()) }
    }

    fn prepare_spares(&self) {
        let mut state = self.state.lock();
        let mut patience = RETRY_FIRST;
        while !self.stop.load(Ordering::Relaxed) {
            // Before the first append the log is only read, and its store may have to stay
            // unchanged.
            let appending = state.end.is_some();
            if appending && self.files.has_leftovers() {
                MutexGuard::unlocked(&mut state, || self.files.remove_leftovers());
                // The log may have been closed in the meantime.
                continue;
            }
            let wanted = appending
                && state.spares.len() < HELD_BACK + AHEAD
                && (state.spares.len() < HELD_BACK || state.count() < self.segments_max);
            if !wanted || state.preparing {
                self.changed.wait(&mut state);
                continue;
            }
            match self.make_spare(&mut state) {
                Ok(()) => patience = RETRY_FIRST,
                // A caller that needs a spare at once retries itself, and reports the error.
                Err(_) => {
                    self.changed.wait_for(&mut state, patience);
                    patience = (patience * 2).min(RETRY_MAX);
                }
            }
        }
    }

    /// Makes one more spare, with the lock released meanwhile. No other thread may be making one.
    fn make_spare(&self, state: &mut MutexGuard<'_, State>) -> io::Result<()> {
        state.preparing = true;
        let has_time = |written| self.has_time(&self.state.lock(), written);
        let made =
            MutexGuard::unlocked(state, || self.files.create_spare(&self.stop, &has_time, &|took| self.rest(took)));
        state.preparing = false;
        self.changed.notify_all();
        state.spares.push(made?.into());
        Ok(())
    }

    /// Returns true if a spare with this many bytes written may be made slowly. It must be whole
    /// when half of the current segment is used.
    fn has_time(&self, state: &State, written: u64) -> bool {
        let used = state.end.unwrap_or(0) % self.segment_bytes;
        state.spares.len() >= HELD_BACK && state.waiting == 0 && 2 * used <= written + self.segment_bytes / 8
    }

    /// Leaves the disk to others after a piece of a spare, for a few times as long as the piece
    /// took. Ends early if a thread waits for the spare.
    fn rest(&self, took: Duration) {
        let until = Instant::now() + (took * RESTS).min(REST_MAX);
        let mut state = self.state.lock();
        while state.waiting == 0 && !self.stop.load(Ordering::Relaxed) {
            if self.changed.wait_until(&mut state, until).timed_out() {
                break;
            }
        }
    }

    fn check_end(&self, state: &State, position: u64) {
        if let Some(end) = state.end {
            assert_eq!(position, end, "{}: an append must begin where the last one ended", self.name());
        }
    }

    /// Returns the segment if all of the append lies in one existing segment, which is the usual
    /// case. Moves the end. If the store then fails with anything but a lack, the log is poisoned
    /// and its end no longer matters.
    fn only_segment_for(&self, position: u64, len: u64) -> Option<Arc<Segment>> {
        let mut state = self.state.lock();
        self.check_end(&state, position);
        let offset = position % self.segment_bytes;
        if len > self.segment_bytes - offset {
            return None;
        }
        let segment = state.segments.get(&(position - offset))?.clone();
        if state.end.replace(position + len).is_none() {
            // Spares that the last process left unfinished are made from now on.
            self.changed.notify_all();
        }
        Some(segment)
    }

    /// Returns the segments of [position, position + len), making missing ones, and moves the end.
    fn segments_for(&self, position: u64, len: u64, urgent: bool) -> Result<Vec<(u64, Arc<Segment>)>> {
        let mut state = self.state.lock();
        self.check_end(&state, position);
        let first = position - position % self.segment_bytes;
        let starts = || (first..position + len).step_by(self.segment_bytes as usize);
        let missing = starts().filter(|start| !state.segments.contains_key(start)).count();
        let held_back = if urgent || missing == 0 { 0 } else { HELD_BACK };
        while state.spares.len() < missing + held_back {
            if state.preparing {
                state.waiting += 1;
                self.changed.notify_all();
                self.changed.wait(&mut state);
                state.waiting -= 1;
                continue;
            }
            if !urgent && state.count() >= self.segments_max {
                return Err(MediaError::NoSpace { what: self.name() });
            }
            // This thread also waits for the spare that it makes.
            state.waiting += 1;
            let made = self.make_spare(&mut state);
            state.waiting -= 1;
            made.map_err(|e| self.io_error(e))?;
        }
        for start in starts() {
            if !state.segments.contains_key(&start) {
                let spare = state.spares.pop().expect("as many as are missing");
                if let Err(e) = self.files.rename_to_log(spare.number, start) {
                    state.spares.push(spare);
                    return Err(self.io_error(e));
                }
                self.directory_dirty.store(true, Ordering::Release);
                state.segments.insert(start, spare.segment);
            }
        }
        state.end = Some(position + len);
        if missing > 0 {
            self.changed.notify_all();
        }
        Ok(starts().map(|start| (start, state.segments[&start].clone())).collect())
    }

    fn append(&self, position: u64, bytes: &[u8], urgent: bool) -> Result<()> {
        self.refuse_poisoned()?;
        if bytes.is_empty() {
            return Ok(());
        }
        let len = bytes.len() as u64;
        let since = self.appended_bytes.load(Ordering::Relaxed);
        let through_map =
            len < CALL_BYTES_MIN && since.max(self.interval_bytes.load(Ordering::Relaxed)) >= MAP_BYTES_MIN;
        let stored = match self.only_segment_for(position, len) {
            Some(segment) => self.store(&segment, position % self.segment_bytes, bytes, through_map),
            None => self.segments_for(position, len, urgent)?.into_iter().try_for_each(|(start, segment)| {
                let from = position.max(start);
                let to = (position + len).min(start + self.segment_bytes);
                let part = &bytes[(from - position) as usize..(to - position) as usize];
                self.store(&segment, from - start, part, through_map)
            }),
        };
        if let Err(error) = stored {
            if error.is_lack() {
                // Bytes stored so far lie behind the end, where contents are arbitrary.
                self.state.lock().end = Some(position);
            }
            return Err(error);
        }
        self.appended_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }

    fn store(&self, segment: &Segment, at: u64, bytes: &[u8], through_map: bool) -> Result<()> {
        match &segment.map {
            Some(map) if through_map => {
                map.write(at, bytes);
                if is_planted(Bug::MapStoreUnmarked) {
                    return Ok(());
                }
            }
            _ => {
                let stored = self.files.step(Step::Store).and_then(|()| calls::write_all_at(&segment.file, bytes, at));
                stored.map_err(|e| {
                    // A host that copies on write may have no room even for existing blocks.
                    let error = self.io_error(e);
                    // After any error but a lack, the contents of the segment are unknown.
                    if !error.is_lack() {
                        self.poison.set(&error);
                    }
                    error
                })?;
                if is_planted(Bug::WriteUnmarked) {
                    return Ok(());
                }
            }
        }
        segment.dirty.store(true, Ordering::Release);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let _exclusive = self.syncing.lock();
        self.refuse_poisoned()?;
        let dirty: Vec<Arc<Segment>> = {
            let state = self.state.lock();
            state.segments.values().filter(|s| s.dirty.swap(false, Ordering::AcqRel)).cloned().collect()
        };
        let appended = self.appended_bytes.swap(0, Ordering::Relaxed);
        // Timers sync idle logs too; such a sync tells nothing about the rate of appends.
        if appended > 0 {
            self.interval_bytes.store(appended, Ordering::Relaxed);
        }
        let skipped = if is_planted(Bug::OlderSegmentsUnsynced) { dirty.len().saturating_sub(1) } else { 0 };
        for segment in dirty.into_iter().skip(skipped) {
            calls::sync_data(&segment.file).map_err(|e| self.poison(e))?;
        }
        if self.directory_dirty.swap(false, Ordering::AcqRel) && !is_planted(Bug::DirectoryUnsynced) {
            self.files.sync_directory().map_err(|e| self.poison(e))?;
        }
        Ok(())
    }

    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < out.len() {
            let at = position + done as u64;
            let start = at - at % self.segment_bytes;
            let Some(segment) = self.state.lock().segments.get(&start).cloned() else { break };
            let len = (out.len() - done).min((start + self.segment_bytes - at) as usize);
            let read = segment.file.read_exact_at(&mut out[done..done + len], at - start);
            read.map_err(|e| self.io_error(e))?;
            done += len;
        }
        Ok(done)
    }

    fn release(&self, position: u64) -> Result<()> {
        let mut state = self.state.lock();
        let whole = |start: &u64| start.checked_add(self.segment_bytes).is_some_and(|end| end <= position);
        let released: Vec<u64> = state.segments.keys().copied().take_while(whole).collect();
        for start in released {
            if state.spares.len() < SPARES_MAX.min(self.segments_max - 1) {
                let number = self.files.rename_to_spare(start).map_err(|e| self.io_error(e))?;
                let segment = state.segments.remove(&start).expect("listed above");
                // Its former bytes need no sync any more.
                segment.dirty.store(false, Ordering::Release);
                state.spares.push(SpareSegment { number, segment });
            } else {
                self.files.remove_log(start).map_err(|e| self.io_error(e))?;
                state.segments.remove(&start);
            }
        }
        Ok(())
    }
}

impl LogDevice for SegmentLog {
    fn append(&self, position: u64, bytes: &[u8]) -> Result<()> {
        self.shared.append(position, bytes, false)
    }

    fn append_urgent(&self, position: u64, bytes: &[u8]) -> Result<()> {
        self.shared.append(position, bytes, true)
    }

    fn sync(&self) -> Result<()> {
        self.shared.sync()
    }

    fn read(&self, position: u64, out: &mut [u8]) -> Result<usize> {
        self.shared.read(position, out)
    }

    fn resumes_behind(&self, position: u64) -> Option<u64> {
        let state = self.shared.state.lock();
        let start = position - position % self.shared.segment_bytes;
        let (&next, _) = state.segments.range(start..).next()?;
        (next != start).then_some(next)
    }

    fn release(&self, position: u64) -> Result<()> {
        self.shared.release(position)
    }

    fn gains_by_release(&self, position: u64) -> bool {
        let state = self.shared.state.lock();
        state.segments.first_key_value().is_some_and(|(start, _)| start + self.shared.segment_bytes <= position)
    }

    fn is_short(&self) -> bool {
        self.shared.state.lock().spares.len() < HELD_BACK
    }

    fn growth_bytes(&self) -> u64 {
        let usual = self.shared.segments_max.min(SPARES_MAX + 1);
        let state = self.shared.state.lock();
        let more = usual.saturating_sub(state.count()) as u64 * self.shared.segment_bytes;
        if state.preparing { more.saturating_sub(self.shared.files.taken_bytes()) } else { more }
    }
}

#[cfg(test)]
#[path = "segment_log_tests.rs"]
mod tests;
