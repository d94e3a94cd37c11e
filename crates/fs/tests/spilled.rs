//! Spilled files: small files on bulk storage read, changed, removed, brought back; devices that are full or fail.
//!
//! Owns: spilling as callers see it, without crashes. Left out: crashes (`enumeration`), two
//! operations at once (`two_actors`, `crowd`), random operations (`model`).

use std::time::Duration;

use shoal_format::superblock::{FEATURE_SPILLED, MemoryKind, ROOTS_AT};
use shoal_fs::{Error, Options, ROOT, SetAttr};
use shoal_media::PersistentMemory;
use shoal_sim::{Call, Fault, FaultPlan};

use crate::cold::{self, create, options};
use crate::data_store::Store;
use crate::packing::{data, read, truncate};
use crate::spilling::{self, LEN, is_spilled, make, noise, setup, sweep};
use crate::store::Setup;

const PUNCH: i32 = 3;

#[test]
fn a_flipped_bit_on_bulk_storage_is_an_error_that_names_the_file() {
    spilling::damaged();
}

#[test]
fn a_write_beside_spilling_stays() {
    spilling::written_meanwhile();
}

#[test]
fn a_reader_whose_blocks_go_looks_again() {
    spilling::read_meanwhile();
}

#[test]
fn blocks_without_users_are_let_go_of_and_no_others() {
    spilling::swept();
}

#[test]
fn sparse_blocks_are_cleaned_when_bulk_storage_is_short() {
    spilling::cleaned();
}

/// Files of all forms: one slot, several chunks, several groups; plain, with a checksum,
/// compressed.
#[test]
fn every_form_spills_and_comes_back_and_changes_as_it_would_in_memory() {
    for packed in [false, true] {
        let store = Store::new(Setup { bulk_blocks: 200, ..Setup::default() });
        let lens = [300, 3000, 30_000, 32_768, 70_000, 131_072, 131_073, 400_000];
        let mut files = Vec::new();
        for (number, &len) in lens.iter().enumerate() {
            for bytes in [noise(number as u64, len), data(number as u64, len)] {
                let ino = make(&store, format!("f{}", files.len()).as_bytes(), &bytes);
                if packed {
                    store.fs.cooling().pack_now(ino).unwrap();
                }
                files.push((ino, bytes));
            }
        }
        let used = store.fs.usage().region_used;
        store.fs.spilling().spill_all().unwrap();
        assert!(store.fs.usage().region_used < used / 4);
        for (ino, bytes) in &files {
            assert!(is_spilled(&store.fs, *ino), "{} bytes", bytes.len());
            store.check_allocated(*ino, "spilled");
            assert!(read(&store.fs, *ino, 0, bytes.len() + 1).as_ref() == Ok(bytes));
            for at in [0, 100, bytes.len() / 2, bytes.len() - 1] {
                assert!(read(&store.fs, *ino, at as u64, 200).unwrap() == bytes[at..bytes.len().min(at + 200)]);
            }
        }
        for (turn, (ino, bytes)) in files.iter_mut().enumerate() {
            let (ino, len) = (*ino, bytes.len());
            match turn % 8 {
                0 => {
                    store.fs.write(ino, 10, b"new").unwrap();
                    bytes[10..13].copy_from_slice(b"new");
                }
                1 => {
                    store.fs.write(ino, len as u64, b"more").unwrap();
                    bytes.extend(b"more");
                }
                2 => {
                    truncate(&store.fs, ino, len as u64 / 2).unwrap();
                    truncate(&store.fs, ino, len as u64).unwrap();
                    bytes[len / 2..].fill(0);
                }
                3 => {
                    store.fs.fallocate(ino, PUNCH, 50, 100).unwrap();
                    bytes[50..150].fill(0);
                }
                4 => {
                    // Over the threshold: to the device as a large file.
                    store.fs.write(ino, 1 << 20, b"end").unwrap();
                    bytes.resize(1 << 20, 0);
                    bytes.extend(b"end");
                }
                5 => {
                    let mode = Some(0o600);
                    store.fs.setattr(ino, &SetAttr { mode, ..SetAttr::default() }).unwrap();
                    assert!(is_spilled(&store.fs, ino) || len < 500, "attributes bring nothing back");
                }
                6 => {
                    store.fs.copy_range(ino, 0, ino, len as u64, 100).unwrap();
                    bytes.extend_from_within(..100);
                }
                _ => {
                    truncate(&store.fs, ino, 0).unwrap();
                    bytes.clear();
                }
            }
            store.check_allocated(ino, "changed");
            assert!(read(&store.fs, ino, 0, bytes.len() + 1).as_ref() == Ok(bytes), "turn {turn}");
        }
        assert_eq!(store.fs.spilling().bring_all_back(), Ok(0));
        for (ino, bytes) in &files {
            store.check_allocated(*ino, "brought back");
            assert!(read(&store.fs, *ino, 0, bytes.len() + 1).as_ref() == Ok(bytes));
        }
        sweep(&store.fs);
        assert_eq!((store.fs.spilling().spilled().blocks, store.fs.spilling().spilled().groups), (0, 0));
        store.fs.shutdown().unwrap();
        crate::store::check(store.setup, &store.world, false).unwrap();
    }
}

/// A cut to nothing, a removal and a rename over a spilled file read nothing, so they work on a
/// device that cannot be read.
#[test]
fn what_goes_is_not_read() {
    let store = Store::new(setup());
    let bytes = noise(1, LEN);
    let names: [&[u8]; 4] = [b"cut", b"unlinked", b"renamed over", b"read"];
    let inos = names.map(|name| make(&store, name, &bytes));
    let new = make(&store, b"new", b"new");
    store.fs.spilling().spill_all().unwrap();
    store.world.fail(FaultPlan { call: Call::DiskRead, nth: 0, for_good: true, fault: Fault::Io });
    truncate(&store.fs, inos[0], 0).unwrap();
    store.fs.unlink(ROOT, b"unlinked").unwrap();
    store.fs.rename(ROOT, b"new", ROOT, b"renamed over", shoal_fs::RenameMode::Replace).unwrap();
    assert_eq!(read(&store.fs, new, 0, 10), Ok(b"new".to_vec()));
    assert!(matches!(read(&store.fs, inos[3], 0, LEN), Err(Error::Io(_))));
    store.world.clear_faults();
    assert!(read(&store.fs, inos[3], 0, LEN) == Ok(bytes));
}

/// Writes far more than memory and bulk storage hold. The files that could be written are there,
/// the rest is refused, and names can be removed.
#[test]
fn a_full_store_with_bulk_storage_takes_more_and_then_refuses_and_empties() {
    let setup = Setup { kind: MemoryKind::Logged, region_bytes: 8 << 20, bulk_blocks: 256, ..Setup::default() };
    let store = Store::packing(setup);
    let mut files = Vec::new();
    for number in 0..2000u64 {
        let (bytes, name) = (noise(number, 30_000), format!("f{number}"));
        let Ok(attr) = store.fs.mknod(&cold::caller(), ROOT, name.as_bytes(), 0o644, 0) else { break };
        match store.fs.write(attr.ino, 0, &bytes) {
            Ok(len) if len == bytes.len() => files.push((name, attr.ino, bytes)),
            Ok(_) | Err(Error::NoSpace(_)) => {
                store.fs.unlink(ROOT, name.as_bytes()).unwrap();
                break;
            }
            Err(error) => panic!("{number}: {error:?}"),
        }
    }
    // Six MiB of memory and sixteen of bulk storage.
    assert!(files.len() > 600, "{} files", files.len());
    for (name, ino, bytes) in &files {
        assert!(read(&store.fs, *ino, 0, bytes.len()).as_ref() == Ok(bytes), "{name}");
    }
    let after = store.after_process_crash();
    crate::store::check(setup, &after.world, false).unwrap();
    for (name, ino, bytes) in &files {
        assert!(read(&after.fs, *ino, 0, bytes.len()).as_ref() == Ok(bytes), "{name}");
        after.fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    sweep(&after.fs);
    assert_eq!(after.fs.usage().bulk_used, 0);
}

/// Metadata gets the room that spilled files leave, even if memory is full to the last inode when
/// the first file is to spill.
#[test]
fn a_memory_full_of_files_has_room_for_names() {
    for segments in 124..132 {
        let setup = Setup {
            kind: MemoryKind::Battery,
            region_bytes: segments << 16,
            bulk_blocks: 256,
            ring_bytes: 1 << 20,
            ..Setup::default()
        };
        let store = Store::packing(setup);
        let mut kept = Vec::new();
        // Fill memory until each new file makes another one spill.
        for number in 0..200u64 {
            let bytes = noise(number, 30_000);
            kept.push((make(&store, format!("f{number}").as_bytes(), &bytes), bytes));
        }
        for number in 0..12_000 {
            let made = store.fs.mkdir(&cold::caller(), ROOT, format!("a-directory-{number}").as_bytes(), 0o755);
            made.unwrap_or_else(|e| {
                panic!("{segments} segments, directory {number}: {e}; {:?}", store.fs.spilling().spilled())
            });
        }
        assert!(store.fs.spilling().spilled().groups > 20, "{:?}", store.fs.spilling().spilled());
        for (ino, bytes) in &kept {
            assert!(read(&store.fs, *ino, 0, bytes.len()).as_ref() == Ok(bytes));
        }
    }
}

/// The hand leaves files that are read and takes the others. A spilled file that is read again
/// comes back.
#[test]
fn what_is_used_stays_and_what_is_read_again_comes_back() {
    let mut store =
        cold::Store::new(Setup { bulk_blocks: 400, region_bytes: 16 << 20, ring_bytes: 1 << 20, ..Setup::default() });
    let age = Duration::from_secs(1);
    let fs = store.open_with(Options { pack_load: 100, ..options(Some(age)) });
    let files: Vec<_> = (0..400u64)
        .map(|number| {
            let ino = create(&fs, &format!("f{number}"));
            fs.write(ino, 0, &noise(number, 30_000)).unwrap();
            ino
        })
        .collect();
    let used = |fs: &shoal_fs::Fs| {
        let usage = fs.usage();
        usage.region_used * 100 / (usage.region_bytes - usage.region_fixed)
    };
    assert!(used(&fs) > 75, "{}%", used(&fs));
    fs.spilling().set_spill_percent(50);
    for _ in 0..100 {
        files[..40].iter().for_each(|&ino| assert_eq!(read(&fs, ino, 0, 1).map(|read| read.len()), Ok(1)));
        store.clock.advance(100_000_000);
        fs.spilling().spill_tick().unwrap();
    }
    assert!((45..=50).contains(&used(&fs)), "{}%", used(&fs));
    assert!(files[..40].iter().all(|&ino| !is_spilled(&fs, ino)), "a file in use was spilled");
    let spilled: Vec<_> = files.iter().filter(|&&ino| is_spilled(&fs, ino)).collect();
    assert!(spilled.len() > 100);
    // Memory is free again, so files that are read come back. The rest stays.
    fs.spilling().set_spill_percent(90);
    let back = &spilled[..10];
    for &&ino in back {
        read(&fs, ino, 0, 10).unwrap();
    }
    for _ in 0..3 {
        store.clock.advance(100_000_000);
        fs.spilling().spill_tick().unwrap();
    }
    assert!(back.iter().all(|&&ino| !is_spilled(&fs, ino)), "what was read came back");
    assert!(spilled[10..].iter().all(|&&ino| is_spilled(&fs, ino)), "what was not read stayed");
    spilled.iter().for_each(|&&ino| drop(read(&fs, ino, 0, 10).unwrap()));
    fs.spilling().spill_tick().unwrap();
    assert!(spilled.iter().all(|&&ino| !is_spilled(&fs, ino)), "as many as the time of a tick allows come back");
    // Switched off, memory may be as full as it is.
    fs.spilling().set_spill_percent(0);
    fs.spilling().spill_tick().unwrap();
    store.close(fs);
}

/// While a device takes no writes, files in memory stay and spilling says why. It goes on when the
/// device does.
#[test]
fn a_device_that_fails_stops_spilling_and_nothing_else() {
    let mut store =
        cold::Store::new(Setup { bulk_blocks: 400, region_bytes: 16 << 20, ring_bytes: 1 << 20, ..Setup::default() });
    let fs = store.open_with(Options { pack_load: 100, ..options(Some(Duration::from_secs(1))) });
    let bytes = |number: u64| noise(number, 30_000);
    let files: Vec<_> = (0..400u64)
        .map(|number| {
            let ino = create(&fs, &format!("f{number}"));
            fs.write(ino, 0, &bytes(number)).unwrap();
            ino
        })
        .collect();
    fs.spilling().set_spill_percent(50);
    store.world.fail(FaultPlan { call: Call::DiskWrite, nth: 0, for_good: true, fault: Fault::Io });
    let mut errors = 0;
    for turn in 0..30 {
        store.clock.advance(100_000_000);
        errors += u32::from(matches!(fs.spilling().spill_tick(), Err(Error::Io(_))));
        create(&fs, &format!("new{turn}"));
        if errors > 20 {
            break;
        }
    }
    assert!(errors > 20, "{errors} ticks said so: waiting is no success");
    assert_eq!((fs.spilling().spilled().groups, fs.region().is_poisoned()), (0, false));
    store.world.clear_faults();
    for _ in 0..400 {
        store.clock.advance(100_000_000);
        drop(fs.spilling().spill_tick());
    }
    assert!(fs.spilling().spilled().groups > 100, "{:?}", fs.spilling().spilled());
    for (number, &ino) in (0..).zip(&files) {
        assert!(read(&fs, ino, 0, 30_000) == Ok(bytes(number)));
    }
    store.close(fs);
}

/// A store of a program that did not know the feature gets it before its first spilled object.
#[test]
fn an_older_store_gets_the_feature() {
    let mut store =
        cold::Store::new(Setup { bulk_blocks: 100, region_bytes: 16 << 20, ring_bytes: 1 << 20, ..Setup::default() });
    let fs = store.open();
    let ino = create(&fs, "f");
    fs.write(ino, 0, &noise(1, 50_000)).unwrap();
    assert!(!fs.region().has_feature(FEATURE_SPILLED), "a new store has it only with its first");
    fs.spilling().spill_all().unwrap();
    assert!(fs.region().has_feature(FEATURE_SPILLED) && is_spilled(&fs, ino));
    store.close(fs);
    let fs = store.open();
    assert!(read(&fs, ino, 0, 50_000) == Ok(noise(1, 50_000)));
    assert_eq!(fs.usage().inodes, 2, "the spill file is nobody's");
    store.close(fs);
}

/// The spill file is lost, and its number may be another file's: its contents cannot be read, and
/// no other file takes its place.
#[test]
fn a_spill_file_that_is_lost_costs_its_files_alone() {
    let setup = Setup { bulk_blocks: 100, region_bytes: 16 << 20, ring_bytes: 1 << 20, ..Setup::default() };
    let mut store = cold::Store::new(setup);
    let fs = store.open();
    let (ino, other) = (create(&fs, "f"), create(&fs, "other"));
    fs.write(ino, 0, &noise(1, 50_000)).unwrap();
    fs.spilling().spill_all().unwrap();
    fs.write(other, 0, &noise(2, 50_000)).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    store.world.memory(0).write(ROOTS_AT.get() + 100, &77u32.to_le_bytes());
    let fs = store.open();
    for _ in 0..3 {
        assert!(matches!(read(&fs, ino, 0, 50_000), Err(Error::Io(_))));
        assert!(matches!(fs.write(ino, 0, b"new"), Err(Error::Io(_))));
        assert!(
            matches!(fs.spilling().spill_all(), Err(Error::Corrupt(_))),
            "no file gets what was never the spill file's"
        );
        fs.spilling().spill_tick().unwrap();
        fs.upkeep().tick().unwrap();
    }
    assert!(read(&fs, other, 0, 50_000) == Ok(noise(2, 50_000)));
    fs.unlink(ROOT, b"f").unwrap();
    truncate(&fs, other, 10).unwrap();
    fs.shutdown().unwrap();
}
