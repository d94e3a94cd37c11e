//! Operations beside one that waits for the bulk device: which of them wait, and what both leave behind.
//!
//! The rules are those of data locks (`data_lock.rs`). Two operations with crashes at every call are in `two_actors`.

use std::sync::atomic::Ordering;

use crate::data_store::Store;
use crate::data_store::gate::{gated, meet};
use crate::data_store::prepared::{LARGE, PUNCH, SMALL, prepared, prepared_behind, setup};
use crate::store::{Moment, Setup};
use shoal_format::BULK_BLOCK;
use shoal_fs::{Error, Ino, ROOT, RenameMode, SetAttr, TimeChange, XattrMode};
use shoal_sim::Limits;

const KEEP_SIZE: i32 = 1;

fn ino(store: &Store, name: &str) -> Ino {
    store.fs.lookup(ROOT, name.as_bytes()).unwrap().ino
}

fn contents(store: &Store, ino: Ino) -> Vec<u8> {
    store.check_allocated(ino, "afterwards");
    let mut bytes = vec![0; store.fs.getattr(ino).unwrap().size as usize];
    assert_eq!(store.fs.read(ino, 0, &mut bytes), Ok(bytes.len()));
    bytes
}

fn resize(store: &Store, ino: Ino, size: u64) {
    store.fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

type Work = fn(&Store, Ino);
/// Effect of a change on the contents.
type Effect = fn(&mut Vec<u8>);

/// Returns operations that use the device, the file of each, and the call in which it waits.
fn slow() -> Vec<(&'static str, &'static str, Moment, Work)> {
    vec![
        ("read", "large", Moment::Read, |store, ino| assert_eq!(store.fs.read(ino, 70_000, &mut [0; 9000]), Ok(9000))),
        ("in place", "large", Moment::Write, |store, ino| assert_eq!(store.fs.write(ino, 5, &[1; 9000]), Ok(9000))),
        ("append", "large", Moment::Write, |store, ino| {
            assert_eq!(store.fs.write(ino, LARGE as u64, &[1; 200_000]), Ok(200_000))
        }),
        ("grow, looking at the tail", "large", Moment::Read, |store, ino| resize(store, ino, 900_000)),
        ("cut and grow", "large", Moment::Flush, |store, ino| {
            resize(store, ino, 399_000);
            resize(store, ino, 900_000);
        }),
        ("punch", "large", Moment::Write, |store, ino| store.fs.fallocate(ino, PUNCH, 1000, 200_000).unwrap()),
        ("come back", "large", Moment::Read, |store, ino| resize(store, ino, 20_000)),
        ("move", "small", Moment::Write, |store, ino| assert_eq!(store.fs.write(ino, 0, &[2; 200_000]), Ok(200_000))),
        ("move and flush", "small", Moment::Flush, |store, ino| {
            assert_eq!(store.fs.write(ino, 100_000, &[2; 100_000]), Ok(100_000))
        }),
        ("move for room", "small", Moment::Write, |store, ino| {
            store.fs.fallocate(ino, KEEP_SIZE, 0, 1 << 20).unwrap();
        }),
        ("copy", "large", Moment::Read, |store, ino| {
            assert_eq!(store.fs.copy_range(ino, 0, self::ino(store, "small"), 0, 50_000), Ok(50_000))
        }),
        ("gather", "large", Moment::Read, |store, _| {
            assert!(store.fs.data().gather_bulk(4, &mut |_| {}).unwrap() > 0);
        }),
        ("fsync", "large", Moment::Flush, |store, ino| {
            store.fs.write(ino, 0, &[1; 10]).unwrap();
            store.fs.fsync(ino).unwrap();
        }),
    ]
}

#[test]
fn names_and_attributes_of_a_file_do_not_wait_for_the_device() {
    for (name, file, moment, work) in slow() {
        let (store, gate) = gated(setup(), |store| prepared_behind(store, 4));
        let (fs, ino) = (&store.fs, ino(&store, file));
        let before = fs.getattr(ino).unwrap();
        meet(
            &gate,
            moment,
            0,
            || work(&store, ino),
            || {
                fs.getattr(ino).unwrap();
                fs.setattr(ino, &SetAttr { mode: Some(0o751), uid: Some(12), ..SetAttr::default() }).unwrap();
                fs.setxattr(ino, b"user.beside", b"kept", XattrMode::Create).unwrap();
                fs.link(ino, ROOT, b"second").unwrap();
                fs.rename(ROOT, b"second", ROOT, b"third", RenameMode::Replace).unwrap();
                fs.unlink(ROOT, file.as_bytes()).unwrap();
                let beside = store.create(b"beside");
                assert_eq!(fs.write(beside, 0, &[3; 5000]), Ok(5000));
            },
        );
        assert_eq!(gate.impatient.load(Ordering::Relaxed), 0, "{name}: something waited for the device");
        let after = fs.getattr(ino).unwrap();
        assert_eq!((after.mode & 0o7777, after.uid, after.nlink), (0o751, 12, 1), "{name}");
        assert!(after.ctime >= before.ctime, "{name}");
        assert_eq!(fs.getxattr(ino, b"user.beside").unwrap(), b"kept", "{name}");
        assert_eq!(self::ino(&store, "third"), ino, "{name}");
        let bytes = contents(&store, ino);
        let byte = if file == "large" { 1 } else { 2 };
        let foreign = bytes.iter().filter(|&&b| b != byte && b != 0).count();
        assert!(foreign == 0 || name == "copy", "{name}: {foreign} bytes are not the file's");
        fs.sync().unwrap();
        store.after_process_crash();
    }
}

#[test]
fn what_changes_a_file_waits_until_its_move_is_done() {
    let changes: [(&str, Work, Effect); 4] = [
        ("write", |store, ino| assert_eq!(store.fs.write(ino, 10, &[7; 20]), Ok(20)), |bytes| bytes[10..30].fill(7)),
        ("cut", |store, ino| resize(store, ino, 1000), |bytes| bytes.truncate(1000)),
        ("punch", |store, ino| store.fs.fallocate(ino, PUNCH, 0, 500).unwrap(), |bytes| bytes[..500].fill(0)),
        ("remove", |store, _| store.fs.unlink(ROOT, b"small").unwrap(), |bytes| bytes.clear()),
    ];
    for (name, change, expect) in changes {
        let (store, gate) = gated(setup(), prepared);
        let ino = ino(&store, "small");
        let mut outcome = Ok(0);
        meet(
            &gate,
            Moment::Write,
            0,
            || outcome = store.fs.write(ino, SMALL as u64, &[2; 100_000]),
            || change(&store, ino),
        );
        let mut expected = vec![2; SMALL + 100_000];
        expect(&mut expected);
        if name == "remove" {
            // Nobody held the file, so its number may be another file's at any time.
            assert_eq!(gate.impatient.load(Ordering::Relaxed), 0);
            assert_eq!(outcome, Err(Error::Stale));
            assert!(store.fs.getattr(ino).is_err());
        } else {
            assert_eq!(gate.impatient.load(Ordering::Relaxed), 1, "{name} did not wait");
            assert_eq!(outcome, Ok(100_000), "{name}");
            assert!(contents(&store, ino) == expected, "{name}: one of the two is lost");
        }
        store.fs.sync().unwrap();
        store.after_process_crash();
    }
}

#[test]
fn blocks_of_a_large_file_are_not_freed_while_the_device_works_on_them() {
    for moment in [Moment::Read, Moment::Write] {
        let (store, gate) = gated(setup(), prepared);
        let large = ino(&store, "large");
        let work = || match moment {
            Moment::Read => {
                let mut bytes = [0; 1000];
                assert_eq!(store.fs.read(large, 0, &mut bytes), Ok(1000));
                assert_eq!(bytes, [1; 1000]);
            }
            _ => assert_eq!(store.fs.write(large, 0, &[1; 1000]), Ok(1000)),
        };
        meet(&gate, moment, 0, work, || store.fs.unlink(ROOT, b"large").unwrap());
        // A name goes at once; the thread that removed it then waits to free the blocks.
        assert_eq!(gate.impatient.load(Ordering::Relaxed), 1);
        store.fs.sync().unwrap();
        assert_eq!(store.fs.usage().bulk_used, 0);
    }
}

#[test]
fn a_file_that_takes_a_name_while_it_moves_is_there_whole_or_the_other_still_is() {
    let (store, gate) = gated(setup(), |store| {
        let target = store.create(b"target");
        store.fs.write(target, 0, &[5; 20_000]).unwrap();
    });
    // Nothing of the file was promised, so the move would do without a flush.
    let new = store.create(b"tmp");
    store.fs.write(new, 0, &[6; SMALL]).unwrap();
    let grow = || assert_eq!(store.fs.write(new, SMALL as u64, &[6; 50_000]), Ok(50_000));
    meet(&gate, Moment::Write, 0, grow, || {
        store.fs.rename(ROOT, b"tmp", ROOT, b"target", RenameMode::Replace).unwrap();
    });
    assert_eq!(gate.impatient.load(Ordering::Relaxed), 0);
    store.fs.region().sync().unwrap();
    for state in store.world.snapshot().power_losses(&Limits::few()) {
        let store = store.reopened(&state, true);
        let bytes = contents(&store, ino(&store, "target"));
        let is_new = bytes.len() >= SMALL && bytes[..SMALL].iter().all(|&byte| byte == 6);
        assert!(is_new || bytes == [5; 20_000], "{}: neither the old file nor the new one", state.name());
    }
}

#[test]
fn blocks_that_became_durable_while_they_were_gathered_stay_durable() {
    let (store, gate) = gated(setup(), |store| prepared_behind(store, 8));
    let large = ino(&store, "large");
    store.fs.write(large, 0, &[1; 10]).unwrap();
    store.fs.sync().unwrap();
    store.fs.write(large, 0, &[1; 10]).unwrap();
    let gather = || assert!(store.fs.data().gather_bulk(8, &mut |_| {}).unwrap() > 0);
    // During the first flush of gathering, blocks are written that it does not cover.
    meet(&gate, Moment::Flush, 0, gather, || {
        assert_eq!(store.fs.write(large, LARGE as u64, &[1; 100_000]), Ok(100_000));
        // The second copy is that of the new blocks.
        gate.arm(Moment::Read, 1);
        gate.open();
        gate.wait();
        store.fs.fsync(large).unwrap();
    });
    assert_eq!(gate.impatient.load(Ordering::Relaxed), 0, "the fsync waited for the copy");
    assert!(store.fs.placement(large).unwrap().pieces.iter().all(|piece| !piece.new), "NEW came back");
    for state in store.world.snapshot().power_losses(&Limits::few()) {
        let store = store.reopened(&state, true);
        let bytes = contents(&store, ino(&store, "large"));
        assert!(bytes == vec![1; LARGE + 100_000], "{}: bytes of an fsync are lost", state.name());
    }
}

#[test]
fn times_set_while_a_file_is_gathered_stay() {
    for moment in [Moment::Read, Moment::Write, Moment::Flush] {
        let (store, gate) = gated(setup(), |store| prepared_behind(store, 4));
        let large = ino(&store, "large");
        let gather = || assert!(store.fs.data().gather_bulk(4, &mut |_| {}).unwrap() > 0);
        meet(&gate, moment, 0, gather, || {
            let (atime, mtime) = (Some(TimeChange::At(43)), Some(TimeChange::At(42)));
            store.fs.setattr(large, &SetAttr { atime, mtime, ..SetAttr::default() }).unwrap();
        });
        let after = store.fs.getattr(large).unwrap();
        assert_eq!((after.atime, after.mtime), (43, 42), "{moment:?}: gathering undid a change of times");
    }
}

#[test]
fn a_change_of_size_that_waited_does_not_set_the_change_time_back() {
    let (store, gate) = gated(setup(), prepared);
    let large = ino(&store, "large");
    let mut beside = 0;
    meet(
        &gate,
        Moment::Read,
        0,
        || resize(&store, large, 20_000),
        || {
            store.clock.advance(1_000_000_000);
            beside = store.fs.setattr(large, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap().ctime;
        },
    );
    assert!(store.fs.getattr(large).unwrap().ctime >= beside, "the change time went back");
}

#[test]
fn blocks_reserved_for_a_file_that_went_away_meanwhile_are_free_again() {
    let blocks = 16;
    let (store, gate) = gated(Setup { bulk_blocks: blocks, ..setup() }, |store| {
        let full = store.create(b"full");
        store.fs.write(full, 0, &vec![9; (blocks * BULK_BLOCK) as usize]).unwrap();
        let small = store.create(b"small");
        store.fs.write(small, 0, &[2; SMALL]).unwrap();
    });
    let small = ino(&store, "small");
    // Blocks become free only with the log's flush.
    store.fs.unlink(ROOT, b"full").unwrap();
    let mut outcome = Ok(0);
    meet(
        &gate,
        Moment::LogSync,
        0,
        || outcome = store.fs.write(small, 0, &[2; 200_000]),
        || store.fs.unlink(ROOT, b"small").unwrap(),
    );
    assert_eq!(outcome, Err(Error::Stale));
    store.fs.sync().unwrap();
    store.fs.sync().unwrap();
    assert_eq!(store.fs.usage().bulk_used, 0, "reserved blocks were not given back");
}
