//! Stores of packed files that are damaged at random, read, salvaged and used.
//!
//! The damage is in heads, references, payloads, chunk maps and packed inodes. Each file is read
//! whole and in parts, which returns its bytes or an error. Readable files stay readable while the
//! rest is changed and removed, the store is compacted and packed, and free space is written again.
//! Left out: single flipped bits that a read must refuse (`packed_files`).

use std::collections::BTreeMap;

use shoal_check::{Finding, FindingKind, ImageSource, Item, Loss, Remedy, Report, SalvageSource, Sink, salvage};
use shoal_format::object::{GROUP, GROUP_CHUNKS, OBJECT_HEAD, Object};
use shoal_fs::{Fs, ROOT, SetAttr};
use shoal_media::PersistentMemory;
use shoal_sim::{Budget, Random, SimMemory, WorldState};

use super::{File, WORKS, allowed, fill, head, objects, read, references, use_what_is_free};
use crate::cold::{Store, cool, setup};
use crate::store;

/// Longer files have forged sizes.
const SIZE_MAX: u64 = 1 << 20;

/// Salvaged contents by path, and the losses that were named.
#[derive(Default)]
struct Copied {
    files: BTreeMap<Vec<u8>, Vec<u8>>,
    last: Vec<u8>,
    lost: Vec<Loss>,
}

impl Sink for Copied {
    fn make(&mut self, item: &Item<'_>) -> bool {
        self.last = item.path.to_vec();
        self.files.insert(item.path.to_vec(), vec![0; item.inode.size.min(SIZE_MAX) as usize]);
        true
    }

    fn data(&mut self, at: u64, bytes: &[u8]) {
        let file = self.files.get_mut(&self.last).expect("made before");
        let at = (at as usize).min(file.len());
        let end = (at + bytes.len()).min(file.len());
        file[at..end].copy_from_slice(&bytes[..end - at]);
    }

    fn done(&mut self) {}

    fn link(&mut self, _: &[u8], _: &[u8]) {}

    fn lost(&mut self, loss: Loss) {
        self.lost.push(loss);
    }

    fn note(&mut self, _: &str) {}
}

/// A store at rest, and the places where damage is tried.
struct Made {
    store: Store,
    state: WorldState,
    files: Vec<File>,
    /// Places to damage.
    places: Vec<Place>,
}

#[derive(Clone, Copy)]
struct Place {
    at: u64,
    len: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Head,
    References,
    Payload,
    Map,
    /// A block of packed inodes.
    Block,
}

fn make() -> Made {
    let mut store = Store::new(setup());
    let fs = store.open();
    let files = fill(&fs, 70);
    fs.cooling().pack_all(&mut |_, _| {}).unwrap();
    cool(&fs, &store.clock);
    let mut places = Vec::new();
    for file in &files {
        let placement = fs.placement(file.ino).unwrap();
        if file.ino.block() > 0 {
            // Spare the root's block, without which nothing can be read.
            places.push(Place { at: placement.record_at, len: 60, kind: Kind::Block });
        }
        for (map, slot) in objects(&fs, file.ino) {
            let object = head(&fs, slot);
            let (at, payload_at) = (slot.offset().get(), object.payload_at() as u64);
            places.push(Place { at, len: OBJECT_HEAD as u64, kind: Kind::Head });
            if payload_at > OBJECT_HEAD as u64 {
                places.push(Place {
                    at: at + OBJECT_HEAD as u64,
                    len: payload_at - OBJECT_HEAD as u64,
                    kind: Kind::References,
                });
            }
            if object.payload > 0 {
                let len = u64::from(object.payload).min(slot.capacity() - payload_at);
                places.push(Place { at: at + payload_at, len, kind: Kind::Payload });
            }
            // Take only groups of four chunks: a map has no checksum, and only disagreeing entries
            // show the damage.
            if let Some(map) = map.filter(|_| u64::from(object.bytes) == GROUP) {
                let entries =
                    (0..GROUP_CHUNKS).map(|chunk| Place { at: map.get() + chunk * 8, len: 8, kind: Kind::Map });
                places.extend(entries);
            }
        }
    }
    fs.shutdown().unwrap();
    drop(fs);
    store.check();
    let state = store.world.snapshot().process_crash();
    Made { store, state, files, places }
}

/// Damages one place, in one of several ways. Returns a description.
fn damage(memory: &SimMemory, place: Place, random: &mut Random) -> String {
    let (at, mut word) = (place.at + random.below(place.len), [0; 8]);
    memory.read(place.at / 8 * 8, &mut word);
    let what = match random.below(4) {
        0 if place.kind == Kind::Head => {
            // Forge a head and seal it for its new contents, but not for its payload.
            let mut bytes = [0; OBJECT_HEAD];
            memory.read(place.at, &mut bytes);
            let object = Object::decode(&bytes).expect("of a sound object");
            let object = match random.below(4) {
                0 => Object { dictionary: 1 + random.below(60_000) as u16, ..object },
                1 => Object { users: 2, ..object },
                2 => Object { pieces: random.below(8) as u8, ..object },
                _ => Object { bytes: 1 + random.below(GROUP) as u32, ..object },
            };
            memory.write(place.at, &object.encode());
            format!("{object:?}")
        }
        0 if place.len >= 8 => {
            let bytes = random.next_u64().to_le_bytes();
            memory.write(at.min(place.at + place.len - 8), &bytes);
            format!("{bytes:?}")
        }
        1 => {
            let zeros = vec![0; random.below(place.len).min(64) as usize + 1];
            memory.write(at, &zeros[..zeros.len().min((place.at + place.len - at) as usize)]);
            "zeros".to_string()
        }
        _ => {
            let (mut byte, bit) = ([0], 1 << random.below(8));
            memory.read(at, &mut byte);
            memory.write(at, &[byte[0] ^ bit]);
            format!("bit {bit:#x}")
        }
    };
    format!("{:?} at {:#x}, byte {}: {what}", place.kind, place.at, at - place.at)
}

/// Checks that reads return an error or the file's bytes. Returns true if all could be read.
fn right_or_nothing(fs: &Fs, file: &File, random: &mut Random, context: &str) -> bool {
    let at = random.below(file.bytes.len() as u64) as usize;
    for (at, len) in [(0, file.bytes.len() + 1), (at, 4096), (at, 70_000)] {
        let Some(found) = allowed(read(fs, file.ino, at as u64, len), context) else { return false };
        let expected = &file.bytes[at..file.bytes.len().min(at + len)];
        assert!(found == expected, "{context}: {} at {at}: other bytes", file.name);
    }
    true
}

fn salvaged(memory: &SimMemory) -> Copied {
    let mut copied = Copied::default();
    let source = SalvageSource {
        image: ImageSource::Memory(memory),
        log: None,
        bulk: None,
        power_lost: false,
        loss_boots: &[],
        first_moved: false,
    };
    salvage(source, &mut copied, &mut |_| {}).expect("memory does not fail");
    copied
}

/// Damages a store and uses it. Returns whether the checker saw the damage.
fn round(made: &mut Made, seed: u64) -> bool {
    let mut random = Random::new(seed);
    let world = made.state.open();
    let memory = world.memory(0);
    let mut context = format!("seed {seed}");
    for _ in 0..1 + random.below(3) {
        let place = *random.pick(&made.places).expect("there are places");
        context += &format!(", {}", damage(&memory, place, &mut random));
    }
    let is_sound = store::report(made.store.setup, &world, false).unwrap().is_sound();
    let copied = salvaged(&memory);
    for file in &made.files {
        let found = copied.files.get(file.name.as_bytes());
        let named =
            || copied.lost.iter().any(|loss| loss.path.as_deref().is_none_or(|path| path == file.name.as_bytes()));
        assert!(found == Some(&file.bytes) || named(), "{context}: {} is salvaged otherwise, silently", file.name);
    }
    made.store.world = world;
    let fs = made.store.open();
    // Readable files stay readable, whatever is done with the rest.
    let (sound, broken): (Vec<&File>, Vec<&File>) =
        made.files.iter().partition(|file| right_or_nothing(&fs, file, &mut random, &context));
    assert!(!is_sound || broken.is_empty(), "{context}: the checker finds nothing");
    let (changed, kept) = sound.split_at(sound.len() / 3);
    for file in broken.iter().chain(changed) {
        let (_, work) = WORKS[random.index(WORKS.len())];
        allowed(work(&fs, file), &context);
        if random.below(2) == 0 {
            allowed(fs.setattr(file.ino, &SetAttr { mode: Some(0o600), ..SetAttr::default() }), &context);
        }
    }
    allowed(fs.compacting().compact().map(drop), &context);
    allowed(fs.cooling().pack_all(&mut |_, _| {}).map(drop), &context);
    use_what_is_free(&fs, &context);
    cool(&fs, &made.store.clock);
    for file in kept {
        assert!(right_or_nothing(&fs, file, &mut random, &context), "{context}: {} was lost later", file.name);
    }
    allowed(fs.shutdown(), &context);
    drop(fs);
    let fs = made.store.open();
    for file in kept {
        assert!(right_or_nothing(&fs, file, &mut random, &context), "{context}: {} was lost at last", file.name);
    }
    drop(fs);
    let report = store::report(made.store.setup, &made.store.world, false).unwrap();
    // Damage may lead to a piece of another file, and the checker may name either file. A reader
    // needs neither the length of a piece nor the number of users.
    let leads_astray = |finding: &Finding| matches!(finding.kind, FindingKind::DoubleUse | FindingKind::WrongClass);
    let is_plain = !report.errors.iter().any(leads_astray);
    let counted = |finding: &&Finding| is_plain && !finding.sentence.contains(" users, ");
    for finding in report.errors.iter().filter(counted) {
        let of_kept = kept.iter().any(|file| finding.inode == Some(file.ino.get()));
        assert!(!of_kept, "{context}: {finding}");
    }
    !is_sound
}

/// Runs rounds of damage with these seeds, as far as time allows. Returns how many the checker saw,
/// and how many there were.
pub fn damages(first: u64, rounds: u64) -> (u64, u64) {
    let (mut made, mut found, mut tried) = (make(), 0, 0);
    for seed in Budget::of_a_search().within(first..first + rounds) {
        found += u64::from(round(&mut made, seed));
        tried += 1;
    }
    (found, tried)
}

/// Tests that the pieces of a damaged object stay allocated as long as its file is there, and that
/// a repair frees them after that.
pub fn freed_by_repair() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let files = fill(&fs, 20);
    fs.cooling().pack_all(&mut |_, _| {}).unwrap();
    let file =
        files.iter().find(|file| objects(&fs, file.ino).iter().any(|&(_, slot)| !references(&fs, slot).is_empty()));
    let file = file.expect("one of many has several pieces");
    let (_, slot) = objects(&fs, file.ino)[0];
    let object = head(&fs, slot);
    fs.shutdown().unwrap();
    drop(fs);
    let users = Object { users: 0, ..object };
    store.world.memory(0).write(slot.offset().get(), &users.encode());
    let frees = |report: &Report| report.remedies.iter().any(|remedy| matches!(remedy, Remedy::FreePieces { .. }));
    let report = store::report(store.setup, &store.world, false).unwrap();
    assert!(!report.is_sound() && !frees(&report), "{:?}", report.remedies);
    let fs = store.open();
    assert!(read(&fs, file.ino, 0, 10).is_err());
    fs.unlink(ROOT, file.name.as_bytes()).unwrap();
    fs.shutdown().unwrap();
    drop(fs);
    let report = store::report(store.setup, &store.world, false).unwrap();
    assert!(frees(&report), "{:?}", report.errors);
    let fs = store.open();
    for remedy in &report.remedies {
        match remedy {
            Remedy::FreePieces { pieces } => fs.repair().pieces(pieces).unwrap(),
            other => panic!("{other}"),
        }
    }
    store.close(fs);
}
