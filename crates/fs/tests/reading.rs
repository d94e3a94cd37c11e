//! Reads in two steps: what is in memory, and the rest from the bulk device.
//!
//! Owns: which reads need the second step, that the first one never waits, and files that change
//! between the two. Left out: changes while the device works (`data_lock_stress`, `spilling`).

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use shoal_fs::{Fs, Ino, Options, ROOT, ReadPlan, Reading};

use crate::data_store::Store;
use crate::data_store::gate::{gated, meet};
use crate::spilling::noise;
use crate::store::counted::Counted;
use crate::store::{Boot, Moment, Setup, Watch, parts};

const BLOCK: usize = 65_536;

fn setup() -> Setup {
    Setup { threshold: 200_000, bulk_blocks: 12, ..Setup::default() }
}

/// Changes a file between the two steps.
type Change = fn(&Store, Ino);

/// Takes the first step; returns the number of bytes if they were in memory.
fn in_memory(fs: &Fs, ino: Ino, at: u64, out: &mut [u8]) -> Option<usize> {
    match fs.read_begin(ino, at, out).unwrap() {
        Reading::Done(len) => Some(len),
        Reading::Needs(_) => None,
    }
}

fn needs(fs: &Fs, ino: Ino, at: u64, out: &mut [u8]) -> ReadPlan {
    match fs.read_begin(ino, at, out).unwrap() {
        Reading::Needs(plan) => plan,
        Reading::Done(len) => panic!("{len} bytes are in memory"),
    }
}

#[test]
fn only_what_is_not_in_memory_needs_the_device() {
    let store = Store::packing(Setup { bulk_blocks: 40, ..setup() });
    let fs = &store.fs;
    let [small, large, spilled] = [b"small", b"large", b"spill"].map(|name| store.create(name));
    let noise = noise(1, 100_000);
    assert_eq!(fs.write(spilled, 0, &noise), Ok(100_000));
    assert!(fs.spilling().spill_all().unwrap() > 0);
    fs.write(small, 0, &[1; 100_000]).unwrap();
    fs.write(large, 0, &[2; 300_000]).unwrap();
    // A hole, and bytes after it.
    fs.write(large, 1 << 20, &[3; 10]).unwrap();
    let mut out = vec![9; 100_000];
    assert_eq!(in_memory(fs, small, 0, &mut out), Some(100_000));
    assert!(out.iter().all(|&byte| byte == 1));
    assert_eq!(in_memory(fs, large, 500_000, &mut out), Some(100_000), "a hole");
    assert!(out.iter().all(|&byte| byte == 0));
    assert_eq!(in_memory(fs, large, 2 << 20, &mut out), Some(0), "nothing is behind the end");
    let plan = needs(fs, large, 250_000, &mut out);
    assert_eq!(fs.read_on(plan, &mut out), Ok(100_000), "data and a hole");
    assert!(out[..50_000].iter().all(|&byte| byte == 2) && out[50_000..].iter().all(|&byte| byte == 0));
    let plan = needs(fs, spilled, 0, &mut out);
    assert_eq!(fs.read_on(plan, &mut out), Ok(100_000));
    assert!(out == noise);
    assert_eq!(fs.repair().damaged_inodes(), 0);
}

/// A group that is read in parts is fetched from the device once.
#[test]
fn what_an_earlier_read_fetched_is_in_memory() {
    let store = Store::packing(Setup { bulk_blocks: 40, ..setup() });
    let (fs, ino, noise) = (&store.fs, store.create(b"spill"), noise(1, 60_000));
    assert_eq!(fs.write(ino, 0, &noise), Ok(60_000));
    assert!(fs.spilling().spill_all().unwrap() > 0);
    let mut out = vec![0; 1000];
    let plan = needs(fs, ino, 5000, &mut out);
    assert_eq!(fs.read_on(plan, &mut out), Ok(1000));
    assert_eq!(in_memory(fs, ino, 30_000, &mut out), Some(1000));
    assert!(out == noise[30_000..31_000]);
}

/// The second step goes on from where the first one stopped, and reads no place of the region again
/// except the table of inodes.
#[test]
fn the_map_of_a_file_is_walked_once_in_both_steps() {
    let (store, noise) = (Store::packing(Setup { bulk_blocks: 40, ..setup() }), noise(1, 190_000));
    assert_eq!(store.fs.write(store.create(b"spilled"), 0, &noise), Ok(190_000));
    assert!(store.fs.spilling().spill_all().unwrap() > 0);
    store.fs.write(store.create(b"large"), 0, &[2; 300_000]).unwrap();
    store.fs.shutdown().unwrap();
    let (boot, clock) = (Boot::first(true).after(false), &store.clock);
    let mut parts = parts(store.setup, &store.world, boot, &Watch::default(), false, clock).unwrap();
    let places = Some(Mutex::default());
    let noted = Arc::new(Counted { inner: parts.region.memory, reads: AtomicU64::new(0), places });
    parts.region.memory = noted.clone();
    let fs = Fs::open(parts, Options { no_atime: true, ..Options::default() }).unwrap().0;
    let places = || std::mem::take(&mut *noted.places.as_ref().unwrap().lock().unwrap());
    let mut out = vec![0; 190_000];
    for (name, read) in [(&b"spilled"[..], &noise[..]), (b"large", &[2; 190_000])] {
        let ino = fs.lookup(ROOT, name).unwrap().ino;
        places();
        fs.getattr(ino).unwrap();
        let table = places();
        let plan = needs(&fs, ino, 0, &mut out);
        let first = places();
        assert_eq!(fs.read_on(plan, &mut out), Ok(190_000));
        let second = places();
        assert!(out == read);
        assert!(first.len() > 2, "{first:?}");
        // The spill file is an inode, too.
        let again: Vec<_> = first.intersection(&second).filter(|place| !table.contains(place)).collect();
        assert!(again.is_empty(), "{again:?} of {first:?}");
    }
}

#[test]
fn a_read_goes_on_in_another_buffer() {
    let store = Store::packing(Setup { bulk_blocks: 40, ..setup() });
    let (fs, ino) = (&store.fs, store.create(b"spill"));
    let mut expected = noise(1, 190_000);
    assert_eq!(fs.write(ino, 0, &expected), Ok(190_000));
    assert!(fs.spilling().spill_all().unwrap() > 0);
    // The write brings one group of the file back into the region.
    assert_eq!(fs.write(ino, 140_000, b"new"), Ok(3));
    expected[140_000..140_003].copy_from_slice(b"new");
    let (mut first, mut other) = (vec![0; 190_000], vec![7; 190_000]);
    let plan = needs(fs, ino, 0, &mut first).leaves(&first);
    assert_eq!(fs.read_on(plan, &mut other), Ok(190_000));
    assert!(other == expected);
}

/// The blocks of a large file that a read found are another file's when it goes on.
#[test]
fn a_file_that_changes_between_the_steps_is_read_as_it_is() {
    changed_between();
}

pub fn changed_between() {
    let changes: [(&str, Change); 4] = [
        ("cut to nothing", |store, ino| store.truncate(ino, 0)),
        ("moved back", |store, ino| store.truncate(ino, 5000)),
        ("written anew", |store, ino| {
            store.truncate(ino, 0);
            store.fs.write(ino, 0, &[3; 5 * BLOCK]).unwrap();
        }),
        ("removed while it is open", |store, ino| {
            assert_eq!(store.fs.lookup_held(ROOT, b"f").unwrap().ino, ino);
            store.fs.unlink(ROOT, b"f").unwrap();
        }),
    ];
    for (name, change) in changes {
        let store = Store::new(setup());
        let (fs, ino) = (&store.fs, store.create(b"f"));
        fs.write(ino, 0, &[1; 6 * BLOCK]).unwrap();
        let mut out = vec![0; 6 * BLOCK];
        let plan = needs(fs, ino, 0, &mut out);
        change(&store, ino);
        fs.sync().unwrap();
        fs.upkeep().tick().unwrap();
        // This file takes all blocks there are.
        let other = store.create(b"other");
        fs.write(other, 0, &vec![2; fs.usage().bulk_free as usize]).unwrap();
        let len = fs.read_on(plan, &mut out).unwrap();
        assert_eq!(len as u64, fs.getattr(ino).unwrap().size, "{name}");
        let byte = if name == "written anew" { 3 } else { 1 };
        assert!(out[..len].iter().all(|&found| found == byte), "{name}: another file's bytes");
    }
}

/// A writer has the file while the device works; the first step of a read does not wait for it.
#[test]
fn a_read_begins_while_the_device_is_busy_with_the_file() {
    let (store, gate) = gated(setup(), |store| {
        let ino = store.create(b"f");
        store.fs.write(ino, 0, &[1; 6 * BLOCK]).unwrap();
    });
    let fs = &store.fs;
    let ino = fs.lookup(ROOT, b"f").unwrap().ino;
    let mut out = vec![0; 6 * BLOCK];
    let mut plan = None;
    let write = || assert_eq!(fs.write(ino, 0, &[1; 2 * BLOCK]), Ok(2 * BLOCK));
    meet(&gate, Moment::Write, 0, write, || plan = Some(needs(fs, ino, 0, &mut out)));
    assert_eq!(gate.impatient.load(std::sync::atomic::Ordering::Relaxed), 0, "the read waited for the writer");
    assert_eq!(fs.read_on(plan.unwrap(), &mut out), Ok(6 * BLOCK));
    assert!(out.iter().all(|&byte| byte == 1));
}
