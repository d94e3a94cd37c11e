//! Tests of the segment log against a scratch directory: crossing, recycling, reopening, refusal, concurrency.
//!
//! A power loss is not tested here, since that needs the simulated media. The tests check that
//! bytes, names and lengths are right after every step, on both ways of storing.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::*;

#[path = "segment_log_full_tests.rs"]
mod full;

const SEGMENT: u64 = 64 << 10;
/// Bytes of a log with one segment in use.
const IDLE: u64 = (1 + HELD_BACK + AHEAD) as u64 * SEGMENT;

struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("log")
    }

    fn create(&self) -> SegmentLog {
        SegmentLog::create(&self.path(), SEGMENT).unwrap()
    }

    fn open(&self) -> io::Result<SegmentLog> {
        SegmentLog::open(&self.path(), SEGMENT)
    }

    fn names(&self) -> BTreeSet<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn count(&self, prefix: &str) -> usize {
        self.names().iter().filter(|n| n.starts_with(prefix)).count()
    }
}

/// Returns bytes derived from their position.
fn pattern(position: u64, len: usize) -> Vec<u8> {
    (position..position + len as u64).map(|p| (p.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn expect(log: &SegmentLog, position: u64, len: usize) {
    let mut out = vec![0; len];
    assert_eq!(log.read(position, &mut out).unwrap(), len);
    assert!(out == pattern(position, len), "bytes from {position}");
}

#[test]
fn appends_cross_segments_and_are_read_back_after_reopening() {
    let scratch = Scratch::new();
    let log = scratch.create();
    let mut position = 0;
    // Use lengths from tiny to two and a half segments. The first and the long ones go through
    // pwrite, the last ones through the map.
    let square = |i: usize| i * i * 97 + 1;
    for len in (1..40).map(square).chain([2 * SEGMENT as usize + 30_000]).chain((1..40).map(|i| square(1 + i % 8))) {
        log.append(position, &pattern(position, len)).unwrap();
        position += len as u64;
    }
    assert!(log.shared.appended_bytes.load(Ordering::Relaxed) > MAP_BYTES_MIN);
    log.sync().unwrap();
    expect(&log, 0, position as usize);
    drop(log);
    let log = scratch.open().unwrap();
    expect(&log, 0, position as usize);
    // Recovery found the end in the middle of a segment, and appending continues there.
    log.append(position, &pattern(position, 1000)).unwrap();
    expect(&log, position - 500, 1500);
    let end = (position + 1000).next_multiple_of(SEGMENT);
    assert_eq!(log.read(end - 10, &mut [0; 100]).unwrap(), 10);
    assert_eq!(log.read(end, &mut [0; 100]).unwrap(), 0);
}

#[test]
fn callers_that_sync_often_are_served_by_pwrite_and_the_others_by_the_map() {
    let scratch = Scratch::new();
    let log = scratch.create();
    let mut position = 0;
    let mut append = |len: usize| {
        log.append(position, &pattern(position, len)).unwrap();
        position += len as u64;
    };
    let interval = || log.shared.interval_bytes.load(Ordering::Relaxed);
    append(1000);
    log.sync().unwrap();
    log.sync().unwrap();
    assert_eq!(interval(), 1000, "an idle sync does not count");
    append(70_000);
    append(1000);
    log.sync().unwrap();
    assert_eq!(interval(), 71_000);
    append(1000);
    log.sync().unwrap();
    assert_eq!(interval(), 1000);
    append(1000);
    expect(&log, 0, 74_000);
}

#[test]
fn released_segments_are_recycled_and_no_more_are_kept_than_a_checkpoint_gives() {
    let scratch = Scratch::new();
    let log = scratch.create();
    let kept = SPARES_MAX as u64;
    let len = (kept + 6) as usize * SEGMENT as usize;
    log.append(0, &pattern(0, len)).unwrap();
    log.sync().unwrap();
    log.release(SEGMENT - 1).unwrap();
    expect(&log, 0, len);
    log.release((kept + 5) * SEGMENT + 5).unwrap();
    assert_eq!(log.read((kept + 5) * SEGMENT - 1, &mut [0]).unwrap(), 0);
    assert_eq!(scratch.count("log-"), 1);
    // The preparer may be about to add a spare that was requested.
    assert!(scratch.count("spare-") <= SPARES_MAX + 1, "{:?}", scratch.names());
    let before = scratch.count("spare-");
    log.append(len as u64, &pattern(len as u64, 2 * SEGMENT as usize)).unwrap();
    assert!(scratch.count("spare-") <= before.saturating_sub(2) + 1);
    expect(&log, (kept + 5) * SEGMENT, 3 * SEGMENT as usize);
    drop(log);
    let log = scratch.open().unwrap();
    expect(&log, (kept + 5) * SEGMENT, 3 * SEGMENT as usize);
    assert_eq!(log.read(0, &mut [0]).unwrap(), 0);
}

#[test]
fn the_next_segment_is_prepared_in_the_background() {
    let scratch = Scratch::new();
    let log = scratch.create();
    log.append(0, b"x").unwrap();
    wait_for_a_spare(&log);
    drop(log);
    assert_eq!(scratch.open().unwrap().allocated_bytes(), IDLE);
}

fn wait_for_a_spare(log: &SegmentLog) {
    for _ in 0..1000 {
        if log.allocated_bytes() == IDLE {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no spare after ten seconds: {} bytes", log.allocated_bytes());
}

/// Ends the other threads' loops even if the appender panics.
struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_foreign_file_or_a_segment_of_another_length_stops_the_open() {
    let scratch = Scratch::new();
    drop(scratch.create());
    for (name, len) in [
        ("readme", SEGMENT),
        ("log-0000000000000000", SEGMENT - 1),
        ("log-0000000000000001", SEGMENT),
        ("log-10000", SEGMENT),
        ("log-000000000001000A", SEGMENT),
        ("spare-07", SEGMENT),
    ] {
        let path = scratch.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(len).unwrap();
        let error = scratch.open().map(drop).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        std::fs::remove_file(&path).unwrap();
    }
    assert!(SegmentLog::open(&scratch.path(), 1000).is_err());
    assert!(SegmentLog::create(&scratch.path(), SEGMENT).is_err(), "an existing log is not created over");
}

#[test]
fn what_a_killed_process_left_of_a_spare_goes_when_a_segment_is_taken() {
    let scratch = Scratch::new();
    drop(scratch.create());
    std::fs::write(scratch.path().join("new-3"), "half").unwrap();
    let log = scratch.open().unwrap();
    log.read(0, &mut [0]).unwrap();
    drop(log);
    assert_eq!(scratch.count("new-"), 1, "reading a log changes nothing");
    let log = scratch.open().unwrap();
    log.append(0, b"abc").unwrap();
    for _ in 0..1000 {
        if scratch.count("new-") == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("a half-made spare is still there");
}

#[test]
fn a_failed_sync_poisons_the_log() {
    let scratch = Scratch::new();
    let log = scratch.create();
    log.append(0, b"abc").unwrap();
    // Put a pipe in place of the segment's file: the kernel answers its sync with EINVAL.
    let (_reader, writer) = io::pipe().unwrap();
    let broken = Segment { file: std::fs::File::from(OwnedFd::from(writer)), map: None, dirty: AtomicBool::new(true) };
    log.shared.state.lock().segments.insert(SEGMENT, Arc::new(broken));
    assert!(matches!(log.sync(), Err(MediaError::Io { .. })));
    assert!(matches!(log.sync(), Err(MediaError::Poisoned { .. })));
    assert!(matches!(log.append(3, b"d"), Err(MediaError::Poisoned { .. })));
    expect_bytes(&log, b"abc");
}

fn expect_bytes(log: &SegmentLog, bytes: &[u8]) {
    let mut out = vec![0; bytes.len()];
    log.read(0, &mut out).unwrap();
    assert_eq!(out, bytes);
}

#[test]
fn an_append_that_finds_no_segment_changes_nothing() {
    let scratch = Scratch::new();
    let log = scratch.create();
    log.append(0, b"abc").unwrap();
    log.append(3, b"def").unwrap();
    // Creation fails from here on, as on a full disk. Spares that exist are used up first.
    wait_for_a_spare(&log);
    log.shared.stop.store(true, Ordering::Relaxed);
    let error = log.append(6, &vec![1; 3 * SEGMENT as usize]).unwrap_err();
    assert!(matches!(error, MediaError::Io { .. }), "{error}");
    assert_eq!(log.read(SEGMENT, &mut [0]).unwrap(), 0, "no segment was added");
    assert_eq!(scratch.count("log-"), 1);
    expect_bytes(&log, b"abcdef\0\0");
    log.append(6, b"ghi").unwrap();
    expect_bytes(&log, b"abcdefghi");
}

#[test]
#[should_panic(expected = "must begin where the last one ended")]
fn an_append_that_leaves_a_gap_panics() {
    let scratch = Scratch::new();
    let log = scratch.create();
    log.append(0, b"abc").unwrap();
    let _ = log.append(4, b"d");
}

#[test]
fn syncs_and_releases_run_beside_appends() {
    let scratch = Scratch::new();
    let log = scratch.create();
    let (end, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let total = 40 * SEGMENT;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _done = SetWhenDropped(&done);
            let mut position = 0;
            while position < total {
                let len = 1 + (position as usize * 31) % 5000;
                log.append(position, &pattern(position, len)).unwrap();
                position += len as u64;
                end.store(position, Ordering::Release);
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let durable = end.load(Ordering::Acquire);
                log.sync().unwrap();
                log.release(durable.saturating_sub(2 * SEGMENT)).unwrap();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                log.sync().unwrap();
            }
        });
    });
    let end = end.load(Ordering::Acquire);
    log.sync().unwrap();
    let kept = (end - SEGMENT) / SEGMENT * SEGMENT;
    expect(&log, kept, (end - kept) as usize);
    drop(log);
    expect(&scratch.open().unwrap(), kept, (end - kept) as usize);
    assert!(scratch.count("spare-") <= SPARES_MAX + 1);
}

#[test]
fn a_spare_of_a_wrong_length_is_passed_over() {
    let scratch = Scratch::new();
    let log = scratch.create();
    log.append(0, &pattern(0, 1000)).unwrap();
    log.sync().unwrap();
    drop(log);
    std::fs::write(scratch.path().join("spare-77"), b"short").unwrap();
    let log = scratch.open().unwrap();
    expect(&log, 0, 1000);
    drop(log);
    assert_eq!(std::fs::read(scratch.path().join("spare-77")).unwrap(), b"short", "it is left as it was found");
}
