//! Checksums of the data on the bulk device, beside crashes: whatever was lost, and wherever a
//! write was cut off, no read of a file's mapped data reports damage. The crashes lose writes to
//! the disk, with or without a cache in front of it, and to log and images.
//!
//! Each search here ends in a failed assertion where a rule is broken, so that `planted` can run it
//! as well. Left out: damage that is found at other moments (`checksums`).

use shoal_format::BULK_BLOCK;
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Ino, ROOT, ScrubPlace};
use shoal_media::BlockDevice;
use shoal_sim::{Call, Fault, FaultPlan, Limits, Random};

use crate::data_store::Store;
use crate::spilling;
use crate::store::Setup;

pub const KINDS: [MemoryKind; 3] = [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Dax];
pub const BLOCK: usize = BULK_BLOCK as usize;

/// Time of one rest (ns). After more than two rests, leaves without writes are closed.
pub const REST_NS: u64 = 16_000_000_000;
pub const BLOCKS: u64 = 24;
const FILES: [&[u8]; 3] = [b"one", b"two", b"three"];

pub fn setup(kind: MemoryKind) -> Setup {
    let saved = kind == MemoryKind::Battery;
    Setup { kind, saved, threshold: 64 << 10, bulk_blocks: BLOCKS, region_bytes: 12 << 20, ..Setup::default() }
}

/// Reads the whole file.
pub fn read_all(store: &Store, ino: Ino) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; store.fs.getattr(ino)?.size as usize];
    store.fs.read(ino, 0, &mut bytes)?;
    Ok(bytes)
}

/// Returns the place of a file's byte on the device.
pub fn place(store: &Store, ino: Ino, byte: u64) -> u64 {
    let placed = store.fs.placement(ino).unwrap();
    let range = placed.pieces.iter().find(|range| (range.file_at..range.file_at + range.len).contains(&byte)).unwrap();
    range.at + byte - range.file_at
}

/// Changes a bit on the device, behind the store's back.
pub fn flip(store: &Store, at: u64) {
    let disk = store.world.disk(0);
    let mut sector = vec![0; 512];
    let first = at / 512 * 512;
    disk.read_into(first, &mut sector).unwrap();
    sector[(at - first) as usize] ^= 4;
    disk.write_from(first, &sector).unwrap();
}

pub fn is_damaged<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Damaged { .. }))
}

pub fn read(store: &Store, ino: Ino, at: usize, len: usize) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; len];
    store.fs.read(ino, at as u64, &mut out).map(|_| out)
}

/// Tests that damage is an error where it is and nowhere else, until it is written over. Returns
/// the number of cases.
pub fn flipped() -> u64 {
    for kind in KINDS {
        let store = Store::new(setup(kind));
        let ino = store.create(b"file");
        store.fs.write(ino, 0, &vec![7; 4 * BLOCK]).unwrap();
        store.fs.sync().unwrap();
        let byte = BLOCK + 5000;
        flip(&store, place(&store, ino, byte as u64));
        for store in [&store, &store.after_process_crash()] {
            assert!(is_damaged(read(store, ino, 0, 4 * BLOCK)), "{kind:?}");
            assert!(is_damaged(read(store, ino, byte - 10, 1)), "{kind:?}: also where the bit itself is not read");
            assert_eq!(store.fs.devices().states()[0].damaged, 1);
            assert_eq!(read(store, ino, 0, BLOCK), Ok(vec![7; BLOCK]));
            assert_eq!(read(store, ino, 2 * BLOCK, 2 * BLOCK), Ok(vec![7; 2 * BLOCK]));
        }
        store.fs.write(ino, BLOCK as u64, &vec![8; BLOCK]).unwrap();
        assert_eq!(read(&store, ino, BLOCK, BLOCK), Ok(vec![8; BLOCK]));
        assert_eq!(store.fs.devices().states()[0].damaged, 0);
    }
    KINDS.len() as u64
}

/// Tests that a write which covers a damaged unit only in part is refused and does not remove its
/// checksum, so that the damage stays known. A write that covers all data of the unit heals it,
/// also at the end of a file.
pub fn written_in_part() -> u64 {
    for kind in KINDS {
        let store = Store::new(setup(kind));
        let (at, len) = (BLOCK + 4096, 2 * BLOCK + 6000);
        let [middle, end] = [&b"middle"[..], b"end"].map(|name| {
            let ino = store.create(name);
            store.fs.write(ino, 0, &vec![7; len]).unwrap();
            ino
        });
        store.fs.sync().unwrap();
        flip(&store, place(&store, middle, at as u64 + 2000));
        flip(&store, place(&store, end, len as u64 - 1));
        let store = store.after_process_crash();
        let writes = [(at, 5), (at + 4000, 200), (at - 100, 101), (at - 4096, 4097)];
        for (from, count) in writes {
            assert!(is_damaged(store.fs.write(middle, from as u64, &vec![8; count])), "{kind:?}: {count} at {from}");
        }
        let punched = store.fs.fallocate(middle, 3, at as u64 + 10, 20);
        assert!(is_damaged(punched), "{kind:?}: a hole in it");
        assert!(is_damaged(store.fs.write(end, len as u64, b"behind the end")), "{kind:?}");
        assert!(is_damaged(read(&store, middle, at, 1)) && is_damaged(read(&store, end, len - 1, 1)), "{kind:?}");
        assert_eq!((store.fs.devices().states()[0].damaged, store.fs.getattr(end).unwrap().size), (2, len as u64));
        assert_eq!(store.fs.write(middle, at as u64, &[9; 4096]), Ok(4096));
        assert_eq!(store.fs.write(end, len as u64 - 6000, &[9; 6000]), Ok(6000));
        assert_eq!(read(&store, middle, at - 1, 4098), Ok([vec![7], vec![9; 4096], vec![7]].concat()));
        assert_eq!(read(&store, end, len - 6001, 6001), Ok([vec![7], vec![9; 6000]].concat()));
        assert_eq!(store.fs.devices().states()[0].damaged, 0, "{kind:?}");
    }
    KINDS.len() as u64
}

/// Tests several spilled files in one unit of the device. A flipped bit costs one of them, a scrub
/// names it, and the damage goes when that file is removed.
pub fn neighbours() -> u64 {
    let store = Store::new(spilling::setup());
    let files: Vec<(Ino, Vec<u8>)> = (0..8)
        .map(|seed| {
            let bytes = spilling::noise(seed, 700);
            (spilling::make(&store, format!("f{seed}").as_bytes(), &bytes), bytes)
        })
        .collect();
    assert!(store.fs.spilling().spill_all().unwrap() > 0);
    let scrub = || store.fs.upkeep().scrub_step(ScrubPlace::default(), u64::MAX).unwrap().findings;
    assert!(files.iter().all(|(ino, _)| spilling::is_spilled(&store.fs, *ino)) && scrub().is_empty());
    let disk = store.world.disk(0);
    let mut all = vec![0; 12 * BLOCK];
    disk.read_into(0, &mut all).unwrap();
    let (gone, bytes) = &files[3];
    flip(&store, all.windows(32).position(|part| *part == bytes[100..132]).expect("it is on the device") as u64);
    for (ino, bytes) in &files {
        let found = read(&store, *ino, 0, 700);
        assert!(if ino == gone { found.is_err() } else { found.as_ref() == Ok(bytes) }, "{ino}: {found:?}");
    }
    let found = scrub();
    assert!(found.len() == 1 && (found[0].ino, found[0].byte, found[0].damaged) == (*gone, 0, true), "{found:?}");
    assert_eq!(store.fs.devices().states()[0].damaged, 1);
    store.fs.unlink(ROOT, b"f3").unwrap();
    store.fs.forget(*gone, u64::MAX);
    assert_eq!(scrub(), [], "nobody's bytes");
    assert_eq!(store.fs.devices().states()[0].damaged, 0);
    flip(&store, all.windows(32).position(|part| *part == files[4].1[100..132]).expect("it is on the device") as u64);
    assert_eq!(scrub().len(), 1, "the block has checksums again");
    1
}

/// Tests a write over data that fails after some of it reached the device. Nobody knows what the
/// unit holds then, which is no damage.
pub fn failed_write() -> u64 {
    for kind in KINDS {
        let store = Store::new(setup(kind));
        let ino = store.create(b"file");
        store.fs.write(ino, 0, &vec![7; 2 * BLOCK]).unwrap();
        store.fs.sync().unwrap();
        // The first sector is written by itself, and the next write fails.
        store.world.fail(FaultPlan { call: Call::DiskWrite, nth: 1, for_good: false, fault: Fault::Io });
        assert!(matches!(store.fs.write(ino, 100, &vec![8; BLOCK]), Err(Error::Io(_))), "{kind:?}");
        store.world.clear_faults();
        let bytes = read_all(&store, ino).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        assert!(bytes[100] == 8 && bytes[BLOCK] == 7, "{kind:?}: some of it is there, and not all");
    }
    KINDS.len() as u64
}

fn step(store: &Store, random: &mut Random, inos: &[Ino]) {
    let ino = *random.pick(inos).expect("there are some");
    let block = random.below(6);
    let (at, len) = match random.below(3) {
        0 => (block * BULK_BLOCK, (1 + random.below(3)) * BULK_BLOCK),
        1 => (block * BULK_BLOCK + random.below(16) * 4096, (1 + random.below(20)) * 4096),
        _ => (block * BULK_BLOCK + random.below(BULK_BLOCK), 1 + random.below(9000)),
    };
    match random.below(12) {
        0..6 => match store.fs.write(ino, at, &vec![1 + random.below(255) as u8; len as usize]) {
            Ok(_) | Err(Error::NoSpace(_)) => {}
            Err(error) => panic!("{error}"),
        },
        6 => store.truncate(ino, at),
        7 => store.fs.fsync(ino).unwrap(),
        8 => store.fs.sync().unwrap(),
        9 => drop(store.fs.checkpoint()),
        _ => {
            for _ in 0..random.below(4) {
                store.clock.advance(REST_NS);
                store.fs.upkeep().tick().unwrap();
            }
        }
    }
    store.clock.advance(200_000_000);
}

/// Explores the lives of four seeds. Returns the number of states.
pub fn lives(setup: Setup) -> u64 {
    (0..4).map(|seed| explore(setup, seed)).sum()
}

/// Runs random operations and visits states at some of their crash points. Returns the number of
/// states.
pub fn explore(setup: Setup, seed: u64) -> u64 {
    let kind = setup.kind;
    let mut store = Store::new(setup);
    let mut random = Random::new(seed);
    let inos: Vec<Ino> = FILES.iter().map(|name| store.create(name)).collect();
    store.fs.sync().unwrap();
    // Let the image know the files, too.
    drop(store.fs.checkpoint());
    let mut states = 0;
    for round in 0..4 {
        store.world.record(true);
        (0..25).for_each(|_| step(&store, &mut random, &inos));
        store.world.record(false);
        let points = store.world.points();
        let spread = (points.len() / 24).max(1);
        for point in points.iter().skip(seed as usize % spread).step_by(spread) {
            let read = |back: &Store, context: &str| {
                for &ino in &inos {
                    read_all(back, ino).unwrap_or_else(|error| panic!("{context}: {ino}: {error}"));
                }
            };
            for state in point.power_losses(&Limits::few()).take(8) {
                let context = format!("{kind:?} seed {seed} round {round}: {}: {}", point.name(), state.name());
                read(&store.read_only(&state), &format!("{context}: read-only"));
                let back = store.reopened(&state, true);
                read(&back, &context);
                if kind == MemoryKind::Battery {
                    read(&store.restored(&state), &format!("{context}: restored"));
                }
                states += 1;
            }
            read(&store.reopened(&point.process_crash(), false), &format!("{kind:?} seed {seed}: {}", point.name()));
        }
        store = store.after_process_crash();
    }
    states
}
