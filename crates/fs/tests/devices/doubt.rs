//! What a failed flush of one device puts in doubt, and until when.
//!
//! Owns: whose bytes are an error to read, in this process and the next, after a crash of either
//! kind, a retry, and once they are written again. Left out: the same behind a write-back cache
//! (`failed_behind_cache`).

use super::*;

/// Tests what a failed flush of one device does to its own files and to the others', and for how
/// long.
pub fn failed_flush(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let Pair { fs, second, .. } = &pair;
    let block = BULK_BLOCK as usize;
    let other = pair.file_on(0, b"other", 3, 2);
    let promised = pair.file_on(1, b"promised", 1, 4);
    fs.sync().unwrap();
    // Block 1 is written over, in place; "fresh" is new. Neither was promised.
    assert_eq!(fs.write(promised, BULK_BLOCK, &vec![2; block]), Ok(block));
    let fresh = pair.file_on(1, b"fresh", 4, 2);
    // A file removed before the failure leaves nothing in doubt, because its blocks have new users.
    let gone = pair.file_on(1, b"gone", 7, 2);
    fs.unlink(ROOT, b"gone").unwrap();
    fs.forget(gone, u64::MAX);
    second.fails.store(true, Ordering::Relaxed);
    assert!(matches!(fs.fsync(promised), Err(Error::Io(_))), "the flush failed");
    assert!(fs.region().failure().is_none(), "one device of two does not end the store");
    let see = |fs: &Fs, when: &str, new_is_zero: bool| {
        assert_eq!(read(fs, promised, 0, block), Ok(vec![1; block]), "{when}: promised bytes");
        assert_eq!(read(fs, promised, 2 * BULK_BLOCK, block), Ok(vec![1; block]), "{when}: promised bytes");
        assert!(matches!(read(fs, promised, BULK_BLOCK, block), Err(Error::Io(_))), "{when}: bytes in doubt are read");
        match read(fs, fresh, 0, block) {
            Err(Error::Io(_)) => {}
            // In another process, data that was never promised may be zeros.
            Ok(bytes) => assert!(new_is_zero && bytes == vec![0; block], "{when}: new bytes in doubt are read"),
            Err(error) => panic!("{when}: {error}"),
        }
        assert_eq!(read(fs, other, 0, block), Ok(vec![3; block]), "{when}: the other device");
    };
    see(fs, "at once", false);
    everything_else_goes_on(fs, other);
    assert!(matches!(fs.fsync(fresh), Err(Error::Io(_))), "it was not durable before, and is not now");
    assert!(matches!(fs.write(promised, 0, &[9; 10]), Err(Error::Io(_))), "no writes any more");
    let state = &fs.devices().states()[1];
    assert!(state.state.cause().is_some() && !state.state.is_lost() && state.suspect == 3 * BULK_BLOCK, "{state:?}");
    // In another process the device works again and does not know what it lost.
    for power in [false, true] {
        let (world, fs) = pair.again(power, false, |world| vec![given(1, world.disk(1))]).unwrap();
        see(&fs, if power { "after a power loss" } else { "after a process crash" }, true);
        let shut = world.clone();
        fs.shutdown().unwrap();
        drop(fs);
        check(setup(kind), &shut, false).unwrap();
        let fs =
            try_open(&shut, kind, pair.boot.after(power).after(power), vec![given(1, shut.disk(1))], false).unwrap();
        see(&fs, "after a clean unmount", true);
    }
    // In this process the device is used again.
    second.fails.store(false, Ordering::Relaxed);
    fs.devices().retry(1, || Ok((second.clone(), 0))).unwrap();
    see(fs, "after the retry", false);
    assert!(matches!(fs.write(promised, BULK_BLOCK + 5, &[9; 10]), Err(Error::Io(_))), "a part of a block in doubt");
    assert_eq!(fs.write(promised, BULK_BLOCK, &vec![6; block]), Ok(block));
    assert_eq!(read(fs, promised, BULK_BLOCK, block), Ok(vec![6; block]));
    // The new bytes are not durable yet, so they are in doubt again after a power loss.
    let (_, back) = pair.again(true, false, |world| vec![given(1, world.disk(1))]).unwrap();
    see(&back, "written again, and the power was lost", true);
    drop(back);
    assert_eq!(fs.fsync(promised), Ok(()));
    let (_, back) = pair.again(true, false, |world| vec![given(1, world.disk(1))]).unwrap();
    assert_eq!(read(&back, promised, BULK_BLOCK, block), Ok(vec![6; block]), "written again and synced");
    drop(back);
    // A file in doubt can be removed, and new files get its blocks.
    fs.unlink(ROOT, b"fresh").unwrap();
    fs.forget(fresh, u64::MAX);
    fs.sync().unwrap();
    fs.upkeep().tick().unwrap();
    assert_eq!(fs.devices().states()[1].suspect, 0);
    let next = pair.file_on(1, b"next", 8, BLOCKS - 4);
    assert_eq!(fs.fsync(next), Ok(()));
    let (_, back) = pair.again(false, false, |world| vec![given(1, world.disk(1))]).unwrap();
    let len = (BLOCKS - 4) as usize * block;
    assert_eq!(read(&back, next, 0, len), Ok(vec![8; len]), "blocks that were in doubt, with new contents");
}

/// Makes a pair with a synced file of four blocks on the second device.
fn with_promised(kind: MemoryKind) -> (Pair, Ino) {
    let pair = Pair::new(kind);
    let promised = pair.file_on(1, b"promised", 1, 4);
    pair.fs.sync().unwrap();
    (pair, promised)
}

/// Tests that a read exactly while a failed flush puts its bytes in doubt finds no damage.
pub fn read_meanwhile(kind: MemoryKind) {
    let (pair, promised) = with_promised(kind);
    let Pair { fs, second, .. } = &pair;
    let block = BULK_BLOCK as usize;
    assert_eq!(fs.write(promised, 0, &vec![2; block]), Ok(block));
    second.fails.store(true, Ordering::Relaxed);
    let (begin, begun) = std::sync::mpsc::channel();
    *second.on_closing.lock().unwrap() = Some(Box::new(move || {
        begin.send(()).unwrap();
        // Time enough for a read that does not wait.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }));
    let outcome = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            begun.recv().unwrap();
            read(fs, promised, 0, block)
        });
        assert!(matches!(fs.fsync(promised), Err(Error::Io(_))), "the flush failed");
        reader.join().unwrap()
    });
    assert!(matches!(outcome, Err(Error::Io(_))), "{kind:?}: {outcome:?}");
    assert_eq!(fs.devices().states()[1].damaged, 0, "{kind:?}");
}

/// Tests that blocks of a write that failed are not in doubt for their next file: what that file
/// writes once the device is used again outlives its process.
pub fn given_back(kind: MemoryKind) {
    let (pair, promised) = with_promised(kind);
    let Pair { fs, second, .. } = &pair;
    let block = BULK_BLOCK as usize;
    assert_eq!(fs.devices().leave(0), Ok(Leaving::Now));
    let refused = create(fs, b"refused");
    *second.plan.lock().unwrap() = Some((Failing::Write, 0, false));
    assert!(matches!(fs.write(refused, 0, &vec![3; 2 * block]), Err(Error::Io(_))));
    fs.devices().stay(0).unwrap();
    assert_eq!(fs.write(promised, 0, &vec![2; block]), Ok(block));
    second.fails.store(true, Ordering::Relaxed);
    assert!(matches!(fs.fsync(promised), Err(Error::Io(_))), "the flush failed");
    // Use the disk itself, which loses nothing: what is written there outlives the process.
    fs.devices().retry(1, || Ok((pair.world.disk(1), 0))).unwrap();
    fills_the_rest(fs, &pair.world, kind, pair.boot);
}

/// Tests the same for blocks of a write that had not ended when the flush failed and the process
/// died.
pub fn given_out(kind: MemoryKind) {
    let (pair, promised) = with_promised(kind);
    let Pair { fs, second, .. } = &pair;
    let block = BULK_BLOCK as usize;
    assert_eq!(fs.write(promised, 0, &vec![2; block]), Ok(block));
    assert_eq!(fs.devices().leave(0), Ok(Leaving::Now));
    let unfinished = create(fs, b"unfinished");
    let gate = second.gate.lock().unwrap();
    second.waiting.store(0, Ordering::Relaxed);
    let world = std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs.write(unfinished, 0, &vec![3; 2 * block]));
        while second.waiting.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        second.fails.store(true, Ordering::Relaxed);
        assert!(matches!(fs.fsync(promised), Err(Error::Io(_))), "the flush failed");
        let world = pair.world.snapshot().process_crash().open();
        drop(gate);
        assert!(matches!(writer.join().unwrap(), Err(Error::Io(_))), "no flush covers it");
        world
    });
    let boot = pair.boot.after(false);
    let fs = try_open(&world, kind, boot, vec![given(1, world.disk(1))], false).unwrap();
    fs.devices().stay(0).unwrap();
    fs.upkeep().tick().unwrap();
    fills_the_rest(&fs, &world, kind, boot);
}

/// Tests that a block which was new when a flush lost it shows no other file's bytes after a power
/// loss, though later flushes succeed and it is written again.
pub fn new_and_lost(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let Pair { fs, second, .. } = &pair;
    let block = BULK_BLOCK as usize;
    let other = pair.file_on(0, b"other", 3, 2);
    let former = pair.file_on(1, b"former", 9, BLOCKS);
    fs.sync().unwrap();
    fs.unlink(ROOT, b"former").unwrap();
    fs.forget(former, u64::MAX);
    fs.sync().unwrap();
    fs.upkeep().tick().unwrap();
    let new = pair.file_on(1, b"new", 4, 3);
    second.fails.store(true, Ordering::Relaxed);
    assert!(matches!(fs.fsync(new), Err(Error::Io(_))), "the flush failed");
    second.fails.store(false, Ordering::Relaxed);
    fs.devices().retry(1, || Ok((second.clone(), 0))).unwrap();
    assert!(matches!(fs.fsync(new), Err(Error::Io(_))), "it is lost, whatever flushes come later");
    assert_eq!(fs.write(new, 0, &vec![5; 2 * block]), Ok(2 * block));
    assert_eq!(read(fs, new, 0, 2 * block), Ok(vec![5; 2 * block]));
    // Makes the log durable, and nothing of the second device.
    assert_eq!(fs.write(other, 0, &vec![3; block]), Ok(block));
    assert_eq!(fs.fsync(other), Ok(()));
    let see = |power: bool| {
        let (_, back) = pair.again(power, false, |world| vec![given(1, world.disk(1))]).unwrap();
        for at in 0..3 {
            if let Ok(bytes) = read(&back, new, at * BULK_BLOCK, block) {
                assert!(!bytes.contains(&9), "{kind:?}: bytes of a former file in block {at}");
            }
        }
    };
    see(true);
    // Once it is flushed it is as good as any other.
    assert_eq!(fs.write(new, 0, &vec![6; 3 * block]), Ok(3 * block));
    assert_eq!(fs.fsync(new), Ok(()));
    let (_, back) = pair.again(true, false, |world| vec![given(1, world.disk(1))]).unwrap();
    assert_eq!(read(&back, new, 0, 3 * block), Ok(vec![6; 3 * block]), "{kind:?}");
}

/// Tests that a write which began before a flush failed does not return after the device was opened
/// again as if it were there.
pub fn across_a_retry(kind: MemoryKind) {
    let pair = Pair::new(kind);
    let Pair { fs, second, .. } = &pair;
    let block = BULK_BLOCK as usize;
    let (slow, synced) = (pair.file_on(1, b"slow", 1, 2), pair.file_on(1, b"synced", 2, 2));
    fs.sync().unwrap();
    assert_eq!(fs.write(synced, 0, &vec![3; block]), Ok(block));
    let gate = second.gate.lock().unwrap();
    second.waiting.store(0, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| fs.write(slow, 0, &vec![4; block]));
        while second.waiting.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        second.fails.store(true, Ordering::Relaxed);
        assert!(matches!(fs.fsync(synced), Err(Error::Io(_))), "the flush failed");
        second.fails.store(false, Ordering::Relaxed);
        // Give another device with the same contents, so that the write of its mark does not wait
        // at the gate.
        fs.devices().retry(1, || Ok((pair.world.disk(1), 0))).unwrap();
        drop(gate);
        assert!(matches!(writer.join().unwrap(), Err(Error::Io(_))), "{kind:?}: the failed flush may have lost it");
    });
    assert!(matches!(fs.fsync(slow), Err(Error::Io(_))), "{kind:?}: it is in doubt");
}

/// Fills the free space of the second device. Checks that the data is there at once and after a
/// crash of the process. The first block of the file "promised" is in doubt.
fn fills_the_rest(fs: &Fs, world: &World, kind: MemoryKind, boot: Boot) {
    let block = BULK_BLOCK as usize;
    assert_eq!(fs.devices().leave(0), Ok(Leaving::Now));
    let next = create(fs, b"next");
    let len = (BLOCKS - 4) as usize * block;
    assert_eq!(fs.write(next, 0, &vec![4; len]), Ok(len));
    let see = |fs: &Fs, when: &str| {
        let found = read(fs, next, 0, len).map(|bytes| bytes == vec![4; len]);
        assert_eq!(found, Ok(true), "{kind:?}, {when}: blocks that no file had when the flush failed");
        let promised = fs.lookup(ROOT, b"promised").unwrap().ino;
        assert!(matches!(read(fs, promised, 0, block), Err(Error::Io(_))), "{kind:?}, {when}: bytes in doubt are read");
    };
    see(fs, "at once");
    let after_crash = || {
        let world = world.snapshot().process_crash().open();
        try_open(&world, kind, boot.after(false), vec![given(1, world.disk(1))], false).unwrap()
    };
    see(&after_crash(), "after a crash");
    // Written again and synced, the block is as good as the others.
    let promised = fs.lookup(ROOT, b"promised").unwrap().ino;
    assert_eq!(fs.write(promised, 0, &vec![5; block]), Ok(block));
    assert_eq!(fs.fsync(promised), Ok(()));
    assert_eq!(read(&after_crash(), promised, 0, block), Ok(vec![5; block]), "{kind:?}: written again");
}

/// Tests that a file in doubt cannot take another file's name, because readers of that name would
/// lose what was there before.
pub fn renamed_in_doubt(kind: MemoryKind) {
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let pair = Pair::new(kind);
        let Pair { fs, second, .. } = &pair;
        let block = BULK_BLOCK as usize;
        let old = pair.file_on(0, b"old", 3, 2);
        let doubtful = pair.file_on(1, b"doubtful", 1, 2);
        fs.sync().unwrap();
        // This write is in place, so nothing of it is NEW.
        assert_eq!(fs.write(doubtful, 0, &vec![2; block]), Ok(block));
        let fresh = pair.file_on(1, b"fresh", 4, 2);
        second.fails.store(true, Ordering::Relaxed);
        assert!(matches!(fs.fsync(fresh), Err(Error::Io(_))), "the flush failed for the sake of another file");
        for name in [&b"doubtful"[..], b"fresh"] {
            let outcome = fs.rename(ROOT, name, ROOT, b"old", mode);
            assert!(matches!(outcome, Err(Error::Io(_))), "{kind:?}, {mode:?}: {outcome:?}");
        }
        assert_eq!(fs.lookup(ROOT, b"old").map(|attr| attr.ino), Ok(old));
        assert_eq!(read(fs, old, 0, 2 * block), Ok(vec![3; 2 * block]));
        // A free name loses nothing. Nor does a taken one, once the block in doubt is written again
        // elsewhere.
        assert_eq!(fs.rename(ROOT, b"doubtful", ROOT, b"new", RenameMode::Replace), Ok(()));
        second.fails.store(false, Ordering::Relaxed);
        fs.devices().retry(1, || Ok((second.clone(), 0))).unwrap();
        assert_eq!(fs.write(doubtful, 0, &vec![5; block]), Ok(block));
        assert_eq!(fs.rename(ROOT, b"new", ROOT, b"old", mode), Ok(()));
        let (_, back) = pair.again(true, false, |world| vec![given(1, world.disk(1))]).unwrap();
        let now = back.lookup(ROOT, b"old").unwrap().ino;
        assert_eq!(read(&back, now, 0, block), Ok(if now == old { vec![3; block] } else { vec![5; block] }));
    }
}

/// Tests that small files, new ones, and `other` on its working device can be used.
fn everything_else_goes_on(fs: &Fs, other: Ino) {
    let block = BULK_BLOCK as usize;
    assert_eq!(fs.write(other, 0, &vec![3; block]), Ok(block));
    assert_eq!(fs.fsync(other), Ok(()), "a file on the other device");
    let small = create(fs, b"small");
    assert_eq!(fs.write(small, 0, b"small"), Ok(5));
    assert_eq!(fs.fsync(small), Ok(()), "a small file");
    let late = create(fs, b"late");
    assert_eq!(fs.write(late, 0, &vec![5; 2 * block]), Ok(2 * block), "new files go elsewhere");
    assert_eq!(fs.fsync(late), Ok(()));
    fs.sync().unwrap();
    fs.upkeep().tick().unwrap();
}
