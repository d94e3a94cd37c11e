//! Tests of the segment log on a host that lacks something: room, descriptors, memory, speed.
//!
//! Failures are injected before each step of making a segment and before each `pwrite`. After any
//! failure, bytes appended before are still there, the failed append has changed nothing, the next
//! attempt works, and nothing is poisoned.

use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use super::*;
use crate::segment_files::ZEROS_BYTES;

const EMFILE: i32 = 24;
const ENOMEM: i32 = 12;
const ENOSPC: i32 = 28;

/// Fails the `nth` step from now on, and with `for_good` all later ones. Only steps that `of`
/// selects count.
fn fail(log: &SegmentLog, of: fn(Step) -> bool, nth: usize, for_good: bool, errno: i32) -> Arc<AtomicUsize> {
    let met = Arc::new(AtomicUsize::new(0));
    let (hits, mut count) = (met.clone(), 0);
    *log.shared.files.before.lock() = Some(Box::new(move |step| {
        if !of(step) {
            return Ok(());
        }
        count += 1;
        if count - 1 == nth || for_good && count > nth {
            hits.fetch_add(1, Ordering::Relaxed);
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(())
    }));
    met
}

fn heal(log: &SegmentLog) {
    *log.shared.files.before.lock() = None;
}

fn making(step: Step) -> bool {
    step != Step::Store
}

/// Appends until an append fails. Returns the end and the error.
fn append_until_lack(log: &SegmentLog, mut position: u64) -> (u64, MediaError) {
    loop {
        let len = 5000;
        match log.append(position, &pattern(position, len)) {
            Ok(()) => position += len as u64,
            Err(error) => return (position, error),
        }
        assert!(position < 100 * SEGMENT, "the host is never full");
    }
}

#[test]
fn an_ordinary_append_leaves_the_segment_held_back_and_an_urgent_one_takes_it() {
    let scratch = Scratch::new();
    let log = scratch.create();
    log.append(0, &pattern(0, 100)).unwrap();
    wait_for_a_spare(&log);
    fail(&log, making, 0, true, ENOSPC);
    let (mut end, error) = append_until_lack(&log, 100);
    assert!(matches!(error, MediaError::NoSpace { .. }), "{error}");
    assert_eq!((scratch.count("log-"), scratch.count("spare-")), (2, 1));
    assert!(!log.is_short() && log.gains_by_release(end));
    log.append_urgent(end, &pattern(end, 5000)).unwrap();
    end += 5000;
    assert!(log.is_short());
    // Urgent appends find room for one more segment. Then a release gives both kinds room again.
    while (end + 5000) / SEGMENT == end / SEGMENT {
        log.append_urgent(end, &pattern(end, 5000)).unwrap();
        end += 5000;
    }
    let error = log.append_urgent(end, &pattern(end, 5000)).unwrap_err();
    assert!(matches!(error, MediaError::NoSpace { .. }), "{error}");
    expect(&log, 0, end as usize);
    log.release(end).unwrap();
    assert!(!log.is_short() && !log.gains_by_release(end));
    log.append(end, &pattern(end, 5000)).unwrap();
    log.sync().unwrap();
    drop(log);
    expect(&scratch.open().unwrap(), end / SEGMENT * SEGMENT, (end % SEGMENT) as usize + 5000);
}

#[test]
fn a_host_that_is_full_at_any_step_changes_nothing_and_the_next_try_works() {
    for errno in [ENOSPC, EMFILE, ENOMEM] {
        for for_good in [false, true] {
            for nth in 0..8 {
                let scratch = Scratch::new();
                let log = scratch.create();
                let met = fail(&log, making, nth, for_good, errno);
                let (mut position, mut failures) = (0, 0);
                // Append six segments. A failure may also have hit only the preparer.
                while position < 6 * SEGMENT {
                    match log.append(position, &pattern(position, 9000)) {
                        Ok(()) => position += 9000,
                        Err(error) => {
                            assert!(error.is_lack(), "step {nth}, errno {errno}: {error}");
                            failures += 1;
                            heal(&log);
                        }
                    }
                }
                assert!(failures <= 1 && (failures == 1 || !for_good), "step {nth}: {failures} failures");
                assert!(met.load(Ordering::Relaxed) > 0, "step {nth} was never reached");
                log.sync().unwrap();
                expect(&log, 0, position as usize);
                drop(log);
                expect(&scratch.open().unwrap(), 0, position as usize);
            }
        }
    }
}

#[test]
fn a_write_without_room_into_a_segment_that_is_there_is_an_answer() {
    let scratch = Scratch::new();
    let log = scratch.create();
    log.append(0, b"abc").unwrap();
    fail(&log, |step| step == Step::Store, 0, false, ENOSPC);
    assert!(matches!(log.append(3, b"def"), Err(MediaError::NoSpace { .. })));
    // The end has not moved, so the same position can be appended to again.
    log.append(3, b"ghi").unwrap();
    log.sync().unwrap();
    expect_bytes(&log, b"abcghi\0");
    fail(&log, |step| step == Step::Store, 0, false, 5);
    assert!(matches!(log.append(6, b"x"), Err(MediaError::Io { .. })));
    assert!(matches!(log.append(6, b"x"), Err(MediaError::Poisoned { .. })));
}

/// Returns the longest wait of an append when segments are made slowly.
fn longest_append(slow: Duration) -> Duration {
    let scratch = Scratch::new();
    let log = scratch.create();
    log.append(0, b"x").unwrap();
    wait_for_a_spare(&log);
    *log.shared.files.before.lock() = Some(Box::new(move |step| {
        if step == Step::Create {
            std::thread::sleep(slow);
        }
        Ok(())
    }));
    let (mut position, mut longest) = (1, Duration::ZERO);
    let len = SEGMENT as usize / 32;
    while position < 4 * SEGMENT {
        let begin = Instant::now();
        log.append(position, &pattern(position, len)).unwrap();
        longest = longest.max(begin.elapsed());
        position += len as u64;
        std::thread::sleep(Duration::from_millis(16));
    }
    longest
}

#[test]
fn segments_made_slowly_hold_up_no_append() {
    // A segment takes a quarter of a second to make and half a second to use up. On a busy machine
    // the thread that makes them may be late a few times.
    let slow = Duration::from_millis(250);
    let is_short = (0..8).any(|_| longest_append(slow) < slow / 2);
    assert!(is_short, "eight times an append waited for a segment");
}

#[test]
fn a_spare_made_ahead_leaves_the_disk_to_others_and_one_that_is_needed_does_not() {
    const PIECES: u64 = 24;
    let segment = PIECES * ZEROS_BYTES as u64;
    let scratch = Scratch::new();
    let log = SegmentLog::create(&scratch.path(), segment).unwrap();
    let made = Arc::new(AtomicUsize::new(0));
    let (slow, count) = (Duration::from_millis(10), made.clone());
    *log.shared.files.before.lock() = Some(Box::new(move |step| {
        if step == Step::Fill {
            count.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(slow);
        }
        Ok(())
    }));
    let pieces = || made.load(Ordering::Relaxed) as u64;
    let growth = log.growth_bytes();
    log.append(0, b"x").unwrap();
    let begin = Instant::now();
    let mut counted_early = false;
    while pieces() < PIECES || log.allocated_bytes() < 3 * segment {
        // The room that the spare has taken no longer counts as growth.
        counted_early |= log.growth_bytes() < growth && log.allocated_bytes() < 3 * segment;
        assert!(begin.elapsed() < Duration::from_secs(20), "{} pieces", pieces());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(counted_early && log.growth_bytes() == growth - segment);
    let undisturbed = begin.elapsed();
    assert!(undisturbed >= slow * (RESTS + 1) * (PIECES as u32 - 1), "{undisturbed:?}");
    // The first append takes the spare, and the second waits for the next one.
    let segment_of = |position| pattern(position, segment as usize);
    let begin = Instant::now();
    log.append(1, &segment_of(1)).unwrap();
    log.append(1 + segment, &segment_of(1 + segment)).unwrap();
    let needed = begin.elapsed();
    assert!(pieces() >= 2 * PIECES && needed < undisturbed / 2, "{needed:?} after {undisturbed:?}");
    // Nobody waits for this spare, but it is needed soon: half of the current segment is used.
    let begin = Instant::now();
    log.append(1 + 2 * segment, &segment_of(0)[..segment as usize / 2]).unwrap();
    while pieces() < 3 * PIECES {
        assert!(begin.elapsed() < undisturbed / 2, "{} pieces after {:?}", pieces(), begin.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    // Closing the log does not wait either.
    let begin = Instant::now();
    drop(log);
    assert!(begin.elapsed() < undisturbed / 4, "{:?}", begin.elapsed());
}

/// Makes each piece of a spare take this long from now on.
fn slow_down(log: &SegmentLog, slow: Duration) {
    *log.shared.files.before.lock() = Some(Box::new(move |step| {
        if step == Step::Fill {
            std::thread::sleep(slow);
        }
        Ok(())
    }));
}

#[test]
fn a_spare_that_an_append_makes_itself_is_made_without_rests() {
    const PIECES: u64 = 24;
    let segment = PIECES * ZEROS_BYTES as u64;
    let scratch = Scratch::new();
    drop(SegmentLog::create(&scratch.path(), segment).unwrap());
    let log = SegmentLog::open(&scratch.path(), segment).unwrap();
    // Making a spare ahead fails, and is not tried again soon.
    let tries = fail(&log, |step| step == Step::Create, 0, true, ENOSPC);
    log.append(0, b"x").unwrap();
    let begin = Instant::now();
    while tries.load(Ordering::Relaxed) < 3 {
        assert!(begin.elapsed() < Duration::from_secs(20), "{tries:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    let slow = Duration::from_millis(10);
    slow_down(&log, slow);
    let begin = Instant::now();
    log.append(1, &pattern(1, segment as usize)).unwrap();
    let took = begin.elapsed();
    assert!(took >= slow * PIECES as u32 && took < slow * PIECES as u32 * RESTS / 2, "{took:?}");
}

#[test]
fn spares_are_made_ahead_from_the_first_append_after_an_opening() {
    let scratch = Scratch::new();
    let log = scratch.create();
    log.append(0, b"x").unwrap();
    wait_for_a_spare(&log);
    drop(log);
    let mut spares = scratch.names().into_iter().filter(|name| name.starts_with("spare-"));
    std::fs::remove_file(scratch.path().join(spares.next().unwrap())).unwrap();
    let log = scratch.open().unwrap();
    // The thread that makes spares has found nothing to do so far.
    std::thread::sleep(Duration::from_millis(100));
    log.append(1, b"y").unwrap();
    wait_for_a_spare(&log);
}

#[test]
fn a_small_host_bears_a_short_log() {
    assert_eq!(segments_max(400 << 20, SEGMENT_BYTES), 3);
    assert_eq!(segments_max(100 << 30, SEGMENT_BYTES), 100);
    assert_eq!(log_bytes_max(400 << 20), 24 << 20);
    assert!(log_bytes_max(20 << 30) >= 256 << 20, "the usual checkpoint on a usual host");
}
