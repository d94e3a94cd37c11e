//! Large files and moves between the tiers beside other operations, and across power losses.
//!
//! Two operations meet at a call of a medium. The one that makes the call waits there until the
//! other is done, or for a while if the other must wait for it. Everything else is single-threaded,
//! and every state that a power loss may leave is opened.

use std::sync::atomic::Ordering;

use crate::data_store::Store;
use crate::data_store::gate::{gated, meet};
use crate::store::{Moment, Setup};
use shoal_format::BULK_BLOCK;
use shoal_format::extent::EXTENT_NEW;
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Ino, ROOT, RenameMode, XattrMode};
use shoal_sim::{Call, Limits, Random};

const THRESHOLD: u64 = 128 << 10;
const KEEP_SIZE: i32 = 1;
const PUNCH: i32 = 3;
const ZERO_RANGE: i32 = 16;

fn logged() -> Setup {
    Setup { kind: MemoryKind::Logged, threshold: THRESHOLD, ..Setup::default() }
}

fn contents(store: &Store, name: &[u8]) -> Option<Vec<u8>> {
    let ino = store.fs.lookup(ROOT, name).ok()?.ino;
    store.check_allocated(ino, "after a crash");
    let mut bytes = vec![0; store.fs.getattr(ino).unwrap().size as usize];
    assert_eq!(store.fs.read(ino, 0, &mut bytes), Ok(bytes.len()));
    Some(bytes)
}

/// Returns the first position where `bytes` is not `byte`.
fn other(bytes: &[u8], byte: u8) -> Option<usize> {
    bytes.iter().position(|&b| b != byte)
}

/// Runs `check` on every state a power loss now may leave.
fn after_power_losses(store: &Store, check: impl Fn(&Store, &str)) {
    let point = store.world.snapshot();
    for state in point.power_losses(&Limits::few()) {
        check(&store.reopened(&state, true), state.name());
    }
}

/// Runs `work` with crash points recorded, then `check` with the mark on every state after each.
fn crash_everywhere(store: &Store, work: impl FnOnce(&Store), check: impl Fn(&Store, u64, &str)) {
    store.world.record(true);
    work(store);
    let mut points = store.world.points();
    points.push(store.world.snapshot());
    for point in &points {
        for state in point.power_losses(&Limits::few()) {
            check(&store.reopened(&state, true), point.mark(), state.name());
        }
    }
}

/// Makes a file in the region of which nothing was promised.
fn young_file(store: &Store) -> Ino {
    let ino = store.create(b"young");
    assert_eq!(store.fs.write(ino, 0, &[0x11; 100_000]), Ok(100_000));
    ino
}

fn is_large(store: &Store, ino: Ino) -> bool {
    store.fs.placement(ino).unwrap().pieces.iter().any(|piece| piece.bulk)
}

fn check_young(store: &Store, name: &str) {
    let bytes = contents(store, b"young").unwrap_or_else(|| panic!("{name}: the file is lost"));
    assert!(bytes.len() >= 100_000, "{name}: {} bytes", bytes.len());
    assert_eq!(other(&bytes[..100_000], 0x11), None, "{name}: promised bytes are lost by the move");
}

#[test]
fn a_move_during_a_flush_of_the_log_keeps_what_the_flush_promises() {
    let (store, gate) = gated(logged(), |_| {});
    let young = young_file(&store);
    let small = store.create(b"small");
    let fsync = || store.fs.fsync(small).unwrap();
    let grow = || assert_eq!(store.fs.write(young, 100_000, &[0x22; 100_000]), Ok(100_000));
    meet(&gate, Moment::LogSync, 0, fsync, grow);
    assert!(is_large(&store, young));
    after_power_losses(&store, check_young);
}

#[test]
fn a_move_between_an_fsyncs_look_at_the_file_and_its_flush_keeps_the_file() {
    let store = Store::new(logged());
    let young = young_file(&store);
    let lsn = store.fs.data().fsync_prepare(young).unwrap();
    store.fs.write(young, 100_000, &[0x22; 100_000]).unwrap();
    assert!(is_large(&store, young));
    store.fs.region().sync_to(lsn).unwrap();
    after_power_losses(&store, check_young);
}

#[test]
fn a_move_during_a_sync_of_everything_keeps_the_file() {
    for by_age in [false, true] {
        let (store, gate) = gated(logged(), |_| {});
        let young = young_file(&store);
        let large = store.create(b"large");
        store.fs.write(large, 0, &[0x33; 300_000]).unwrap();
        let sync = || if by_age { store.fs.upkeep().tick().unwrap() } else { store.fs.sync().unwrap() };
        gate.arm(Moment::Flush, 0);
        std::thread::scope(|scope| {
            let syncing = scope.spawn(sync);
            gate.wait();
            // The write may have to wait for the flush that waits in the gate.
            scope.spawn(|| {
                store.fs.write(young, 100_000, &[0x22; 100_000]).unwrap();
                gate.open();
            });
            syncing.join().unwrap();
        });
        assert!(is_large(&store, young));
        after_power_losses(&store, check_young);
    }
}

#[test]
fn a_file_grown_in_small_writes_moves_without_a_flush_unless_it_was_promised() {
    for (piece, promised) in [(1 << 10, false), (32 << 10, false), (64 << 10, false), (32 << 10, true)] {
        let store = Store::new(logged());
        store.fs.sync().unwrap();
        let ino = store.create(b"young");
        let flushes = store.world.calls(Call::DiskFlush);
        for (number, at) in (0..2 * THRESHOLD).step_by(piece).enumerate() {
            assert_eq!(store.fs.write(ino, at, &vec![0x11; piece]), Ok(piece));
            if promised && number == 3 {
                store.fs.fsync(ino).unwrap();
            }
        }
        let flushed = store.world.calls(Call::DiskFlush) - flushes;
        assert_eq!(flushed, promised as u64, "pieces of {piece} bytes, promised: {promised}");
        if promised {
            store.fs.region().sync().unwrap();
            after_power_losses(&store, check_young);
        }
    }
}

/// An operation that moves the end of a file that was cut at `cut`.
type Growth = (&'static str, fn(&Store, Ino, u64));

/// Writes `len` bytes of 1.
fn put(store: &Store, file: Ino, at: u64, len: u64) {
    assert_eq!(store.fs.write(file, at, &vec![1; len as usize]), Ok(len as usize));
}

/// Returns the number of bytes from `at` to the end of its block.
fn rest(at: u64) -> u64 {
    at.next_multiple_of(BULK_BLOCK) - at
}

const GROWTHS: [Growth; 13] = [
    ("append of one byte", |s, f, cut| put(s, f, cut, 1)),
    ("append within the block", |s, f, cut| put(s, f, cut, 5_000)),
    ("append to the end of the block", |s, f, cut| put(s, f, cut, rest(cut))),
    ("append of one byte more than the block has", |s, f, cut| put(s, f, cut, rest(cut) + 1)),
    ("append of several blocks", |s, f, cut| put(s, f, cut, 150_000)),
    ("write from before the cut to behind it", |s, f, cut| put(s, f, cut - 300, 4_000)),
    ("write behind a gap", |s, f, cut| put(s, f, cut + 700, 600)),
    ("two appends", |s, f, cut| {
        put(s, f, cut, 800);
        put(s, f, cut + 800, 800);
    }),
    ("truncation upwards, then a write", |s, f, cut| {
        s.truncate(f, cut + 3_000);
        put(s, f, cut + 100, 500);
    }),
    ("allocation", |s, f, cut| s.fs.fallocate(f, 0, cut - 100, 4_000).unwrap()),
    ("a range of zeros", |s, f, cut| s.fs.fallocate(f, ZERO_RANGE, cut - 100, 4_000).unwrap()),
    ("allocation behind the end, then an append", |s, f, cut| {
        s.fs.fallocate(f, KEEP_SIZE, cut, 200_000).unwrap();
        put(s, f, cut, 3_000);
    }),
    ("a hole across the end, then an append", |s, f, cut| {
        s.fs.fallocate(f, PUNCH, cut - 200, 1_000).unwrap();
        put(s, f, cut, 3_000);
    }),
];

#[test]
fn bytes_cut_off_do_not_come_back_whatever_moves_the_end() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        for cut in [140_000u64, 2 * BULK_BLOCK + 512, 3 * BULK_BLOCK - 1] {
            for (name, grow) in GROWTHS {
                for again in [false, true] {
                    let mut store = Store::new(Setup { kind, threshold: 8 << 10, ..Setup::default() });
                    let file = store.create(b"file");
                    store.fs.write(file, 0, &[0x33; 3 * BULK_BLOCK as usize]).unwrap();
                    store.fs.sync().unwrap();
                    store.truncate(file, cut);
                    store.fs.sync().unwrap();
                    if again {
                        store = store.after_process_crash();
                    }
                    let work = |store: &Store| {
                        grow(store, file, cut);
                        store.fs.region().sync().unwrap();
                    };
                    crash_everywhere(&store, work, |store, _, state| {
                        let bytes = contents(store, b"file").unwrap();
                        let back = bytes.iter().skip(cut as usize).position(|&b| b == 0x33);
                        assert_eq!(back, None, "{kind:?}, cut at {cut}, {name}, remounted: {again}: {state}");
                        let kept = if name.contains("hole") || name.contains("zeros") { 200 } else { 0 };
                        let lost = bytes[..cut as usize - kept].iter().position(|&b| b != 0x33 && b != 1);
                        assert_eq!(lost, None, "{kind:?}, cut at {cut}, {name}: {state}");
                    });
                }
            }
        }
    }
}

#[test]
fn a_copy_to_the_cut_does_not_bring_back_what_was_cut_off() {
    let store = Store::new(Setup { threshold: 8 << 10, ..logged() });
    let (file, source) = (store.create(b"file"), store.create(b"source"));
    store.fs.write(file, 0, &[0x33; 60_000]).unwrap();
    store.fs.write(source, 0, &[1; 5_000]).unwrap();
    store.fs.sync().unwrap();
    store.truncate(file, 30_000);
    store.fs.sync().unwrap();
    let work = |store: &Store| {
        assert_eq!(store.fs.copy_range(source, 0, file, 30_000, 5_000), Ok(5_000));
        store.fs.region().sync().unwrap();
    };
    crash_everywhere(&store, work, |store, _, state| {
        let bytes = contents(store, b"file").unwrap();
        assert_eq!(bytes.iter().skip(30_000).position(|&b| b == 0x33), None, "{state}");
    });
}

#[test]
fn appends_flush_only_where_bytes_were_cut_off() {
    let store = Store::new(Setup { threshold: 8 << 10, ..logged() });
    let flushes = |store: &Store| store.world.calls(Call::DiskFlush);
    let files: Vec<Ino> = (0..8u8).map(|n| store.create(&[b'a' + n])).collect();
    let append = |store: &Store, rounds: u64| {
        for round in 0..rounds {
            for &file in &files {
                let size = store.fs.getattr(file).unwrap().size;
                assert_eq!(store.fs.write(file, size, &[round as u8; 7_000]), Ok(7_000));
            }
        }
    };
    append(&store, 2);
    store.fs.sync().unwrap();
    let before = flushes(&store);
    append(&store, 20);
    assert_eq!(flushes(&store), before, "the process that filled the tails");
    store.fs.sync().unwrap();
    let again = store.after_process_crash();
    append(&again, 20);
    assert!(flushes(&again) <= 1, "after a mount: {} flushes for eight files", flushes(&again));
    let size = again.fs.getattr(files[0]).unwrap().size;
    again.fs.sync().unwrap();
    let before = flushes(&again);
    again.truncate(files[0], size - 10);
    append(&again, 5);
    assert_eq!(flushes(&again) - before, 1, "one file was cut");
}

/// Fills the region until no piece of any size up to 8 KiB can be allocated there.
fn fill_region(store: &Store) {
    let fillers: Vec<Ino> = (0..6000).map(|n| store.create(format!("filler{n}").as_bytes())).collect();
    let mut fillers = fillers.into_iter();
    let mut filler = fillers.next();
    let mut len = 8 << 10;
    while len > 0 {
        let ino = filler.expect("there are enough files");
        match store.fs.write(ino, 0, &vec![9; len]) {
            Ok(_) => filler = fillers.next(),
            Err(Error::NoSpace(_)) => len = if len > 1024 { len / 2 } else { len - 16 },
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_write_that_finds_the_region_full_leaves_nothing_behind_the_end() {
    let mut refused = [0; 2];
    for extents in 1..12u64 {
        for at_end in [false, true] {
            let setup = Setup { threshold: 8 << 10, region_bytes: 8 << 20, ..Setup::default() };
            let store = Store::new(setup);
            let file = store.create(b"file");
            // Every other block, so that each is an extent of its own; the last one is partly filled.
            let last = 2 * extents;
            for block in 0..extents {
                store.fs.write(file, 2 * block * BULK_BLOCK, &[0x33; BULK_BLOCK as usize]).unwrap();
            }
            store.fs.write(file, last * BULK_BLOCK, &[0x33; 1_000]).unwrap();
            let size = last * BULK_BLOCK + 1_000;
            fill_region(&store);
            // Write from the hole into the last block, or from the end of the file across that of
            // the block.
            let (at, len) = if at_end { (size, 2 * BULK_BLOCK) } else { (last * BULK_BLOCK - 5_000, 5_000 + 20_000) };
            let before = contents(&store, b"file").unwrap();
            let outcome = store.fs.write(file, at, &vec![0x44; len as usize]);
            let end = store.fs.getattr(file).unwrap().size;
            match outcome {
                Ok(_) => continue,
                Err(Error::NoSpace(_)) => refused[at_end as usize] += 1,
                Err(error) => panic!("{error}"),
            }
            assert_eq!(end, size);
            store.truncate(file, size + 60_000);
            let bytes = contents(&store, b"file").unwrap();
            let junk = bytes[size as usize..].iter().position(|&b| b != 0);
            assert_eq!(junk, None, "{extents} extents, at the end: {at_end}: junk behind the old end");
            assert!(bytes[..size as usize] == before, "{extents} extents: a write that was refused changed data");
        }
    }
    assert!(refused[0] > 0, "the region was never too full: {refused:?}");
}

#[test]
fn a_large_file_renamed_over_another_is_there_whole_or_the_other_still_is() {
    let random = &mut Random::new(7);
    for (grown, exchange) in [(false, false), (true, false), (false, true), (true, true)] {
        let mode = if exchange { RenameMode::Exchange } else { RenameMode::Replace };
        let store = Store::new(Setup { threshold: 64 << 10, ..logged() });
        let old = store.create(b"target");
        store.fs.write(old, 0, &[0x55; 200_000]).unwrap();
        store.fs.sync().unwrap();
        let subdir = store.fs.mkdir(&Default::default(), ROOT, b"dir", 0o755).unwrap().ino;
        let parent = [ROOT, subdir][random.below(2) as usize];
        let new = store.fs.mknod(&Default::default(), parent, b"tmp", 0o644, 0).unwrap().ino;
        let mut len = 0;
        let mut write = |store: &Store, more: usize| {
            store.fs.write(new, len as u64, &vec![0x66; more]).unwrap();
            len += more;
            len
        };
        if grown {
            // Settled, then grown in place: nothing is NEW, but something is not durable.
            write(&store, 150_000);
            store.fs.sync().unwrap();
        }
        let total = std::cell::Cell::new(0);
        let work = |store: &Store| {
            total.set(write(store, if grown { 10_000 } else { 150_000 }));
            store.fs.rename(parent, b"tmp", ROOT, b"target", mode).unwrap();
            // This is another file's fsync.
            store.fs.region().sync().unwrap();
            store.world.set_mark(1);
        };
        crash_everywhere(&store, work, |store, mark, state| {
            let bytes = contents(store, b"target").unwrap_or_else(|| panic!("{state}: the file is lost"));
            let (is_old, is_new) = (bytes == [0x55; 200_000], bytes == vec![0x66; total.get()]);
            assert!(is_old || is_new, "{mode:?}, grown {grown}, {state}: neither the old file nor the new one");
            assert!(mark == 0 || is_new, "{state}");
        });
    }
}

#[test]
fn a_file_renamed_over_another_keeps_its_bytes_when_it_then_moves() {
    let store = Store::new(logged());
    let old = store.create(b"target");
    store.fs.write(old, 0, &[0x55; 20_000]).unwrap();
    store.fs.sync().unwrap();
    let work = |store: &Store| {
        let new = store.create(b"tmp");
        store.fs.write(new, 0, &[0x66; 100_000]).unwrap();
        store.fs.rename(ROOT, b"tmp", ROOT, b"target", RenameMode::Replace).unwrap();
        store.fs.write(new, 100_000, &[0x66; 50_000]).unwrap();
        store.fs.region().sync().unwrap();
    };
    crash_everywhere(&store, work, |store, _, state| {
        let bytes = contents(store, b"target").unwrap();
        let is_new = bytes.len() >= 100_000 && other(&bytes[..100_000], 0x66).is_none();
        assert!(bytes == [0x55; 20_000] || is_new, "{state}: neither the old file nor the new one");
    });
}

#[test]
fn a_rename_that_waits_for_a_flush_stalls_nobody() {
    let (store, gate) = gated(logged(), |store| assert!(!store.create(b"target").is_none()));
    let new = store.create(b"tmp");
    store.fs.write(new, 0, &[0x66; 300_000]).unwrap();
    let rename = || store.fs.rename(ROOT, b"tmp", ROOT, b"target", RenameMode::Replace).unwrap();
    meet(&gate, Moment::Flush, 0, rename, || {
        store.create(b"beside");
        store.fs.write(new, 0, &[0x66; 10]).unwrap();
    });
    assert_eq!(gate.impatient.load(Ordering::Relaxed), 0, "the create waited for the rename's flush");
    let pieces = store.fs.placement(new).unwrap().pieces;
    assert!(pieces.iter().all(|piece| !piece.new), "NEW ({EXTENT_NEW}) when renamed");
    assert_eq!(contents(&store, b"target").unwrap(), [0x66; 300_000]);
}

#[test]
fn a_file_cut_off_and_written_anew_is_whole_when_another_files_fsync_or_the_age_makes_the_cut_durable() {
    for by_age in [false, true] {
        for piece in [20_000, 150_000, 300_000] {
            let store = Store::new(logged());
            let file = store.create(b"file");
            store.fs.write(file, 0, &[0x55; 200_000]).unwrap();
            let small = store.create(b"small");
            store.fs.sync().unwrap();
            let work = |store: &Store| {
                store.truncate(file, 0);
                for at in (0..300_000).step_by(piece) {
                    store.fs.write(file, at, &vec![0x66; piece]).unwrap();
                }
                if by_age {
                    store.fs.upkeep().tick().unwrap()
                } else {
                    store.fs.fsync(small).unwrap()
                }
                store.world.set_mark(1);
            };
            crash_everywhere(&store, work, |store, mark, state| {
                let bytes = contents(store, b"file").unwrap();
                assert!(
                    mark == 0 || bytes == [0x66; 300_000],
                    "by age {by_age}, pieces of {piece}, {state}: the new contents are missing"
                );
            });
        }
    }
}

#[test]
fn the_directory_does_not_wait_while_a_long_file_is_reclaimed() {
    for replace in [false, true] {
        let setup = Setup { threshold: 8 << 10, ..logged() };
        let (store, gate) = gated(setup, |store| {
            let large = store.create(b"large");
            store.fs.write(large, 0, &[1; 300_000]).unwrap();
            store.create(b"other");
        });
        let large = store.fs.lookup(ROOT, b"large").unwrap().ino;
        // The second record is the first of the reclaim.
        let remove = || match replace {
            true => store.fs.rename(ROOT, b"other", ROOT, b"large", RenameMode::Replace).unwrap(),
            false => store.fs.unlink(ROOT, b"large").unwrap(),
        };
        meet(&gate, Moment::LogAppend, 1, remove, || {
            let found = store.fs.lookup(ROOT, b"large").map(|attr| attr.ino);
            assert_eq!(found.is_ok(), replace);
            assert_ne!(found, Ok(large));
            let mut names = 0;
            store
                .fs
                .readdir(ROOT, 0, &mut |_| {
                    names += 1;
                    true
                })
                .unwrap();
            assert_eq!(names, 3);
        });
        assert_eq!(gate.impatient.load(Ordering::Relaxed), 0, "the look-up waited for the reclaim");
        assert!(store.fs.getattr(large).is_err(), "the file was not reclaimed");
        store.fs.sync().unwrap();
        assert_eq!(store.fs.usage().bulk_used, 0);
    }
}

#[test]
fn a_crash_anywhere_in_a_removal_leaves_the_file_or_nothing_of_it() {
    let store = Store::new(Setup { threshold: 8 << 10, ..logged() });
    let large = store.create(b"large");
    store.fs.write(large, 0, &[1; 300_000]).unwrap();
    store.fs.setxattr(large, b"user.x", &[1; 3_000], XattrMode::Any).unwrap();
    store.fs.sync().unwrap();
    let work = |store: &Store| {
        store.fs.unlink(ROOT, b"large").unwrap();
        store.fs.region().sync().unwrap();
        store.world.set_mark(1);
    };
    crash_everywhere(&store, work, |store, mark, state| match contents(store, b"large") {
        Some(bytes) => assert!(mark == 0 && bytes == [1; 300_000], "{state}"),
        None => {
            store.fs.sync().unwrap();
            assert_eq!(store.fs.usage().bulk_used, 0, "{state}");
            assert_eq!(store.fs.usage().inodes, 1, "{state}");
        }
    });
}
