//! Spilled files at their worst moments: a flipped bit, a change or a removal in the middle, blocks
//! that are freed.
//!
//! Each search here ends in a failed assertion where a rule is broken, so that `planted` can run it as well.

use shoal_fs::{Error, Fs, Ino, ROOT};
use shoal_media::BlockDevice;
use shoal_sim::Random;

use crate::data_store::Store;
use crate::data_store::gate::{gated, meet};
use crate::packing::{read, truncate};
use crate::store::{Moment, Setup};

pub const LEN: usize = 100_000;

/// Returns a setup in which every block of bulk storage soon has its next user.
pub fn setup() -> Setup {
    Setup { bulk_blocks: 12, threshold: 128 << 10, ..Setup::default() }
}

/// Returns bytes that do not compress, so that they are on the device as they are.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

pub fn make(store: &Store, name: &[u8], bytes: &[u8]) -> Ino {
    let ino = store.create(name);
    assert_eq!(store.fs.write(ino, 0, bytes), Ok(bytes.len()));
    ino
}

/// Returns whether all of the file is on bulk storage.
pub fn is_spilled(fs: &Fs, ino: Ino) -> bool {
    let pieces = fs.placement(ino).unwrap().pieces;
    // A piece that would free too little stays in memory.
    !pieces.is_empty() && pieces.iter().all(|piece| piece.spilled || piece.stored < 150)
}

/// Unmaps spilled data that nothing refers to, and frees its blocks.
pub fn sweep(fs: &Fs) {
    for _ in 0..2 {
        fs.spilling().spill_tick().unwrap();
        fs.sync().unwrap();
        fs.upkeep().tick().unwrap();
    }
}

/// Tests a byte of a spilled file that changes on the device: the file cannot be read, and nothing
/// else is affected.
pub fn damaged() {
    damaged_in(&Store::new(setup()));
    damaged_in(&Store::without_sums(setup()));
}

fn damaged_in(store: &Store) {
    let (bytes, others) = (noise(1, LEN), noise(2, 5000));
    let (ino, other) = (make(store, b"f", &bytes), make(store, b"other", &others));
    assert!(store.fs.spilling().spill_all().unwrap() > 0);
    assert!(is_spilled(&store.fs, ino) && is_spilled(&store.fs, other));
    let (disk, mut all) = (store.world.disk(0), vec![0; 12 << 16]);
    disk.read_into(0, &mut all).unwrap();
    let at = all.windows(32).position(|part| *part == bytes[70_000..70_032]).expect("the bytes are on the device");
    let at = at / 512 * 512;
    all[at] ^= 1;
    disk.write_from(at as u64, &all[at..at + 512]).unwrap();
    for _ in 0..2 {
        let found = read(&store.fs, ino, 0, LEN);
        let named = matches!(&found, Err(Error::Io(why)) if why.contains(&format!("inode {ino} ")));
        assert!(named, "{:?}", found.map(|found| found == bytes));
        assert!(matches!(store.fs.write(ino, 5, b"new"), Err(Error::Io(_))), "a change of it");
    }
    assert_eq!(store.fs.repair().damaged_inodes(), 1);
    assert!(read(&store.fs, other, 0, 5000).as_ref() == Ok(&others));
    // After a truncation to nothing, a write reads nothing.
    truncate(&store.fs, ino, 0).unwrap();
    assert_eq!(store.fs.write(ino, 0, b"new"), Ok(3));
    assert_eq!(read(&store.fs, ino, 0, LEN), Ok(b"new".to_vec()));
}

/// Tests a file that is written to while its bytes are on their way to the device: the new bytes
/// stay.
pub fn written_meanwhile() {
    for packed in [false, true] {
        let (store, gate) = gated(setup(), |store| {
            let ino = make(store, b"f", &noise(1, LEN));
            if packed {
                store.fs.cooling().pack_now(ino).unwrap();
            }
        });
        let ino = store.fs.lookup(ROOT, b"f").unwrap().ino;
        let spill = || assert_eq!(store.fs.spilling().spill_all(), Ok(0));
        meet(&gate, Moment::Write, 0, spill, || assert_eq!(store.fs.write(ino, 50_000, b"new"), Ok(3)));
        let mut bytes = noise(1, LEN);
        bytes[50_000..50_003].copy_from_slice(b"new");
        assert!(read(&store.fs, ino, 0, LEN).as_ref() == Ok(&bytes), "what was written is gone");
        store.check_allocated(ino, "afterwards");
        assert!(!is_spilled(&store.fs, ino));
        // The blocks that were written in vain are given back.
        sweep(&store.fs);
        assert_eq!(store.fs.usage().bulk_used, 0);
    }
}

/// Tests a spilled file that comes back while it is read, and whose blocks another file gets: the
/// reader looks again.
pub fn read_meanwhile() {
    for cut in [false, true] {
        let bytes = noise(1, LEN);
        let (store, gate) = gated(setup(), |store| {
            make(store, b"f", &bytes);
            assert!(store.fs.spilling().spill_all().unwrap() > 0);
        });
        let ino = store.fs.lookup(ROOT, b"f").unwrap().ino;
        let expected = if cut { Vec::new() } else { bytes.clone() };
        let look = || {
            let found = read(&store.fs, ino, 0, LEN);
            assert!(found.as_ref() == Ok(&expected), "{:?}", found.map(|found| found.len()));
        };
        meet(&gate, Moment::Read, 0, look, || {
            if cut {
                truncate(&store.fs, ino, 0).unwrap();
            } else {
                assert_eq!(store.fs.spilling().bring_all_back(), Ok(0));
            }
            sweep(&store.fs);
            // This file takes all blocks there are.
            make(&store, b"large", &vec![7; (12 << 16) - 65_536]);
        });
        assert_eq!(store.fs.devices().states()[0].damaged, 0, "no alarm for bytes that are another file's by now");
    }
}

/// Tests that blocks without users are freed and blocks with users stay, in this process and the
/// next.
pub fn swept() {
    let store = Store::new(setup());
    let (kept, gone) = (noise(1, LEN), noise(2, LEN));
    let (first, _) = (make(&store, b"kept", &kept), make(&store, b"gone", &gone));
    assert!(store.fs.spilling().spill_all().unwrap() > 0);
    let used = store.fs.usage().bulk_used;
    store.fs.unlink(ROOT, b"gone").unwrap();
    sweep(&store.fs);
    assert!(store.fs.usage().bulk_used < used, "blocks of a removed file");
    assert!(read(&store.fs, first, 0, LEN).as_ref() == Ok(&kept), "swept");
    let after = store.after_process_crash();
    sweep(&after.fs);
    make(&after, b"large", &vec![7; 8 << 16]);
    assert!(read(&after.fs, first, 0, LEN).as_ref() == Ok(&kept), "swept by the next process");
    let spilled = after.fs.spilling().spilled();
    assert_eq!((spilled.groups, spilled.bytes, spilled.stored), (1, LEN as u64, 100_352), "{spilled:?}");
}

/// Tests that blocks which lost most of their files are cleaned when bulk storage is short, and
/// that the other files are still whole.
pub fn cleaned() {
    let store = Store::new(Setup { bulk_blocks: 40, threshold: 128 << 10, ..Setup::default() });
    let files: Vec<_> =
        (0..300).map(|seed| (make(&store, format!("f{seed}").as_bytes(), &noise(seed, 8000)), seed)).collect();
    assert!(store.fs.spilling().spill_all().unwrap() > 0);
    let full = store.fs.spilling().spilled().blocks;
    assert!(full > 30 << 16, "{full}");
    for &(_, seed) in files.iter().filter(|(_, seed)| seed % 8 != 0) {
        store.fs.unlink(ROOT, format!("f{seed}").as_bytes()).unwrap();
    }
    assert_eq!(store.fs.spilling().spilled().blocks, full, "each block has one file left");
    sweep(&store.fs);
    assert!(store.fs.spilling().spilled().blocks < full / 4, "{} of {full}", store.fs.spilling().spilled().blocks);
    make(&store, b"large", &vec![7; 30 << 16]);
    for &(ino, seed) in files.iter().filter(|(_, seed)| seed % 8 == 0) {
        assert!(read(&store.fs, ino, 0, 8000) == Ok(noise(seed, 8000)), "{seed}");
    }
    let after = store.after_process_crash();
    for &(ino, seed) in files.iter().filter(|(_, seed)| seed % 8 == 0) {
        assert!(read(&after.fs, ino, 0, 8000) == Ok(noise(seed, 8000)), "{seed}");
    }
    crate::store::check(after.setup, &after.world, false).unwrap();
}
