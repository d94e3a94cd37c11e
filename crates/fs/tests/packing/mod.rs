//! Packed files for several tests: stores of them, stray references, objects that look alike, and
//! threads beside the packers.
//!
//! | file | owns |
//! |---|---|
//! | `crowd` | threads that write and read a few files while others pack, compact and save |
//! | `damage` | stores with random damage, read, salvaged and used |
//!
//! Each search here ends in a failed assertion where a rule is broken, so that `planted` can run it as well.

pub mod crowd;
pub mod damage;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_format::inode::{CHUNK, Layout};
use shoal_format::object::{ChunkRef, Codec, GROUP, GROUP_CHUNKS, OBJECT_HEAD, Object};
use shoal_format::{Offset, SlotRef};
use shoal_fs::{Error, Fs, Ino, Method, Options, ROOT, RenameMode, SetAttr, TimeChange};
use shoal_media::PersistentMemory;
use shoal_region::View;
use shoal_sim::Random;

use crate::cold::{Store, caller, create, options, setup};
use crate::data_store::gate::{gated, meet};
use crate::data_store::{self, prepared};
use crate::store::{Moment, Setup};

const PUNCH: i32 = 3;

/// Returns bytes that packing shrinks to about a third, for objects of one to five pieces.
pub fn data(seed: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Random::new(seed + 1).fill(&mut out);
    // Runs of three to five, so that no two files have the same pieces.
    out.chunks_mut(3 + seed as usize % 3).for_each(|line| line.fill(line[0]));
    out
}

pub struct File {
    pub name: String,
    pub ino: Ino,
    pub bytes: Vec<u8>,
}

pub fn fill(fs: &Fs, count: u64) -> Vec<File> {
    let len =
        |number: u64| [30_000, 100_000, 9000, 300_000, 120_000, 500, 40_000][number as usize % 7] + number as usize;
    (0..count)
        .map(|number| {
            let (name, mut bytes) = (format!("f{number}"), data(number, len(number)));
            if number % 6 == 5 {
                // Noise gets a checksum where it lies.
                Random::new(number).fill(&mut bytes);
            }
            let ino = create(fs, &name);
            assert_eq!(fs.write(ino, 0, &bytes), Ok(bytes.len()));
            File { name, ino, bytes }
        })
        .collect()
}

pub fn read(fs: &Fs, ino: Ino, at: u64, len: usize) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; len];
    let len = fs.read(ino, at, &mut out)?;
    out.truncate(len);
    Ok(out)
}

/// Returns the file's objects: the place of the reference, if a chunk map has it, and the slot.
pub fn objects(fs: &Fs, ino: Ino) -> Vec<(Option<Offset>, SlotRef)> {
    let inode = fs.placement(ino).unwrap().inode;
    match inode.layout {
        Layout::Packed => vec![(None, inode.root)],
        Layout::Chunked => (0..inode.size.div_ceil(GROUP))
            .filter_map(|group| {
                let at = inode.root.offset() + group * GROUP_CHUNKS * 8;
                match ChunkRef::decode(fs.region().read_u64(at).unwrap()) {
                    Some(ChunkRef::Packed(slot)) => Some((Some(at), slot)),
                    _ => None,
                }
            })
            .collect(),
        _ => Vec::new(),
    }
}

pub fn head(fs: &Fs, slot: SlotRef) -> Object {
    Object::decode(&fs.region().read_vec(slot.offset(), OBJECT_HEAD).unwrap().try_into().unwrap()).unwrap()
}

/// Returns the places of an object's references to further pieces, and the pieces.
pub fn references(fs: &Fs, slot: SlotRef) -> Vec<(u64, SlotRef)> {
    let places = (0..u64::from(head(fs, slot).pieces)).map(|number| slot.offset() + OBJECT_HEAD as u64 + number * 8);
    places.map(|at| (at.get(), SlotRef::from_bits(fs.region().read_u64(at).unwrap()).unwrap())).collect()
}

/// Takes the outcome of an operation on a damaged file. Panics on an error that is not allowed.
pub fn allowed<T>(outcome: Result<T, Error>, context: &str) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(Error::Corrupt(_) | Error::NoSpace(_) | Error::Stale) => None,
        Err(error) => panic!("{context}: {error:?}"),
    }
}

/// Fills the free space with new files, and removes them again.
pub fn use_what_is_free(fs: &Fs, context: &str) {
    let mut made = 0;
    for number in 0..2000 {
        let name = format!("new{number}");
        let Ok(attr) = fs.mknod(&caller(), ROOT, name.as_bytes(), 0o644, 0) else { break };
        made += 1;
        let len = [CHUNK as usize, 20_000, 12_000, 6000, 3000, 1500, 700, 200][number % 8];
        if fs.write(attr.ino, 0, &vec![0xee; len]).is_err() {
            break;
        }
    }
    assert!(made > 100, "{context}: {made} files");
    (0..made).for_each(|number| fs.unlink(ROOT, format!("new{number}").as_bytes()).unwrap());
}

pub fn truncate(fs: &Fs, ino: Ino, size: u64) -> Result<(), Error> {
    fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

/// Operation on a damaged file.
pub type Work = fn(&Fs, &File) -> Result<(), Error>;
pub const WORKS: [(&str, Work); 6] = [
    ("unlink", |fs, file| fs.unlink(ROOT, file.name.as_bytes())),
    ("cut", |fs, file| truncate(fs, file.ino, 0)),
    ("punch", |fs, file| fs.fallocate(file.ino, PUNCH, 0, file.bytes.len() as u64)),
    ("write", |fs, file| fs.write(file.ino, 5, b"new").map(drop)),
    ("compact", |fs, _| fs.compacting().compact().map(drop)),
    ("rename over", |fs, file| {
        let over = format!("over {}", file.name);
        fs.mknod(&caller(), ROOT, over.as_bytes(), 0o644, 0)?;
        fs.rename(ROOT, over.as_bytes(), ROOT, file.name.as_bytes(), RenameMode::Replace)
    }),
];

/// Makes objects refer to pieces of others. `work` on their files must cost no other file a byte.
/// Returns how many files were damaged.
pub fn stray_references(what: &str, work: Work) -> u64 {
    let mut store = Store::new(setup());
    let fs = store.open();
    let files = fill(&fs, 70);
    fs.cooling().pack_all(&mut |_, _| {}).unwrap();
    // Three files in ten go, so that compaction has something to do.
    for file in files.iter().filter(|file| what == "compact" && file.name.ends_with(['1', '4', '7'])) {
        fs.unlink(ROOT, file.name.as_bytes()).unwrap();
    }
    let there: Vec<&File> = files.iter().filter(|file| fs.lookup(ROOT, file.name.as_bytes()).is_ok()).collect();
    let pieces: Vec<(Ino, u64, SlotRef)> = there
        .iter()
        .flat_map(|file| objects(&fs, file.ino).into_iter().map(|(_, slot)| (file.ino, slot)))
        .flat_map(|(ino, slot)| references(&fs, slot).into_iter().map(move |(at, piece)| (ino, at, piece)))
        .collect();
    let mut damaged = BTreeSet::new();
    let mut random = Random::new(8);
    for _ in 0..12 {
        let &(ino, at, piece) = random.pick(&pieces).unwrap();
        let alike: Vec<_> =
            pieces.iter().filter(|other| other.0 != ino && other.2.capacity() == piece.capacity()).collect();
        let Some(&&(_, _, foreign)) = random.pick(&alike) else { continue };
        store.world.memory(0).write(at, &foreign.bits().to_le_bytes());
        damaged.insert(ino);
    }
    assert!(damaged.len() > 5, "{what}: {} of {} pieces", damaged.len(), pieces.len());
    for file in there.iter().filter(|file| damaged.contains(&file.ino)) {
        let found = read(&fs, file.ino, 0, file.bytes.len());
        assert!(matches!(found, Err(Error::Corrupt(_))), "{what}: {:?}", found.map(|found| found == file.bytes));
        allowed(work(&fs, file), what);
    }
    use_what_is_free(&fs, what);
    for file in there.iter().filter(|file| !damaged.contains(&file.ino)) {
        let found = read(&fs, file.ino, 0, file.bytes.len());
        assert!(found.as_ref() == Ok(&file.bytes), "{what}: {} {:?}", file.name, found.map(|found| found.len()));
    }
    damaged.len() as u64
}

/// Tests two objects with the same head, one after the other in the same slot, each read in parts.
/// Each read must return the object's own bytes.
pub fn alike() {
    let mut store = Store::new(setup());
    let fs = store.open_with(Options { method: Method::Lz4, ..options(None) });
    let mut bytes = data(1, 64);
    Random::new(1).fill(&mut bytes);
    bytes.resize(3000, 7);
    let ino = create(&fs, "f");
    assert_eq!(fs.write(ino, 0, &bytes), Ok(bytes.len()));
    assert_eq!(fs.cooling().pack_now(ino).unwrap().groups, 1);
    let (_, slot) = objects(&fs, ino)[0];
    let object = head(&fs, slot);
    assert_eq!((object.codec, object.pieces), (Codec::Lz4, 0));
    let mut payload = fs.region().read_vec(slot.offset() + OBJECT_HEAD as u64, object.payload as usize).unwrap();
    let literals = payload.windows(8).position(|window| *window == bytes[..8]).expect("literals are stored");
    // Sums of 32 bits collide after some 80,000 trials.
    let mut known = HashMap::new();
    let pair = (0u64..).find_map(|number| {
        payload[literals..literals + 8].copy_from_slice(&number.to_le_bytes());
        let sum = object.sum_of(&payload);
        known.insert(sum, number).map(|other| (sum, [other, number]))
    });
    let (sum, numbers) = pair.unwrap();
    store.world.memory(0).write(slot.offset().get(), &Object { sum, ..object }.encode());
    for number in numbers {
        let at = slot.offset() + (OBJECT_HEAD + literals) as u64;
        store.world.memory(0).write(at.get(), &number.to_le_bytes());
        for _ in 0..2 {
            assert_eq!(read(&fs, ino, 0, 8), Ok(number.to_le_bytes().to_vec()), "another object's bytes");
        }
    }
}

/// Tests that packing leaves a file alone while it moves to the bulk device.
pub fn beside_a_move() {
    let (store, gate) = gated(prepared::setup(), prepared::prepared);
    let ino = store.fs.lookup(ROOT, b"small").unwrap().ino;
    let grow = || assert_eq!(store.fs.write(ino, prepared::SMALL as u64, &[2; 100_000]), Ok(100_000));
    meet(&gate, Moment::Write, 0, grow, || {
        let done = store.fs.cooling().pack_now(ino).unwrap();
        assert_eq!((done.groups, done.summed), (0, 0), "a file is packed while it moves");
    });
    assert_eq!(read(&store.fs, ino, 0, 300_000), Ok(vec![2; prepared::SMALL + 100_000]));
    store.check_allocated(ino, "afterwards");
}

/// Tests that attributes which change while a file moves to the other tier keep their new values.
pub fn attributes_beside_a_move() {
    let (store, gate) = gated(prepared::setup(), prepared::prepared);
    let long = store.create(b"long");
    store.fs.write(long, 0, &[3; 700_000]).unwrap();
    for (name, given, moment, nth, byte, len) in [
        (&b"small"[..], 8192, Moment::Write, 0, 2, prepared::SMALL),
        (b"small", 1 << 20, Moment::Read, 0, 2, prepared::SMALL),
        (b"large", 1 << 20, Moment::Read, 1, 1, prepared::LARGE),
        (b"long", 1 << 20, Moment::Read, 0, 3, 700_000),
        (b"long", 1 << 20, Moment::Read, 1, 3, 700_000),
        (b"long", 8192, Moment::Write, 0, 3, 700_000),
    ] {
        let (fs, ino) = (&store.fs, store.fs.lookup(ROOT, name).unwrap().ino);
        let found = fs.large().misplaced(ino, given).unwrap();
        if found.is_none_or(|found| found.bytes == 0) {
            fs.large().rebalance(ino, fs.getattr(ino).unwrap().generation, 8192).unwrap();
        }
        let generation = fs.getattr(ino).unwrap().generation;
        let before = fs.placement(ino).unwrap().inode.layout;
        meet(
            &gate,
            moment,
            nth,
            || assert!(fs.large().rebalance(ino, generation, given).is_ok()),
            || {
                let (mtime, atime) = (Some(TimeChange::At(5)), Some(TimeChange::At(7)));
                let change = SetAttr { mtime, atime, ctime: Some(9), mode: Some(0o613), ..SetAttr::default() };
                fs.setattr(ino, &change).unwrap();
                fs.link(ino, ROOT, b"other").unwrap();
            },
        );
        let attr = fs.getattr(ino).unwrap();
        let what = format!("{}, {given}", String::from_utf8_lossy(name));
        assert_ne!(fs.placement(ino).unwrap().inode.layout == Layout::Extents, before == Layout::Extents, "{what}");
        assert_eq!((attr.mtime, attr.atime, attr.mode & 0o7777, attr.nlink), (5, 7, 0o613, 2), "{what}");
        assert!(read(fs, ino, 0, len + 1) == Ok(vec![byte; len]), "{what}");
        fs.unlink(ROOT, b"other").unwrap();
        store.check_allocated(ino, &what);
    }
}

/// Tests room that is allocated past a file's end while the file is packed: the room stays, or the
/// file is not packed.
pub fn room_meanwhile() {
    const KEEP_SIZE: i32 = 1;
    meanwhile(
        |fs, ino| fs.fallocate(ino, KEEP_SIZE, 131_072, 30_000).unwrap(),
        |store, ino, _| assert!(store.fs.getattr(ino).unwrap().blocks * 512 >= 32_768, "the room is gone"),
    );
}

/// Tests that bytes written in place while the file is packed stay.
pub fn written_meanwhile() {
    meanwhile(
        |fs, ino| assert_eq!(fs.write(ino, 50_000, b"new"), Ok(3)),
        |store, ino, mut bytes| {
            bytes[50_000..50_003].copy_from_slice(b"new");
            assert!(read(&store.fs, ino, 0, bytes.len()).as_ref() == Ok(&bytes), "what was written is gone");
        },
    );
}

/// Changes a file at random moments of its packing, many times. `judge` gets the bytes that the
/// file held before.
fn meanwhile(change: impl Fn(&Fs, Ino), judge: impl Fn(&data_store::Store, Ino, Vec<u8>)) {
    let store = data_store::Store::new(Setup { bulk_blocks: 0, ..Setup::default() });
    let (fs, bytes) = (&store.fs, data(1, 100_000));
    let mut random = Random::new(1);
    for turn in 0..400 {
        let ino = store.create(b"f");
        fs.write(ino, 0, &bytes).unwrap();
        let (begun, wait) = (AtomicBool::new(false), Duration::from_micros(random.below(1500)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                begun.store(true, Ordering::SeqCst);
                fs.cooling().pack_now(ino).unwrap();
            });
            while !begun.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            let since = Instant::now();
            while since.elapsed() < wait {
                std::hint::spin_loop();
            }
            change(fs, ino);
        });
        store.check_allocated(ino, &format!("turn {turn}"));
        judge(&store, ino, bytes.clone());
        fs.unlink(ROOT, b"f").unwrap();
    }
}
