//! One damaged structure costs its own inode and nothing else, however the store is opened.
//!
//! A store with every layout is damaged in one place, then opened after a clean shutdown, after a
//! crash, after a power loss and read-only. It opens, everything else reads as before, a thousand
//! files can be made (which takes more than one search for free numbers), everything else can be
//! deleted, and the store closes and opens again.
//! Left out: damage of the fixed areas, which refuses the mount; what the checker says (`crates/check/tests`).

use std::collections::BTreeMap;

use crate::data_store::Store;
use crate::store::Setup;
use shoal_check::{Finding, ImageSource, Remedy, Source};
use shoal_format::dir::{BUCKET_HEADER, NodeRef};
use shoal_format::inode::{INODE_HAS_NEW, INODE_TRUNCATING, Inode, InodeSlot, Layout};
use shoal_format::superblock::MemoryKind;
use shoal_format::superblock::ROOTS_AT;
use shoal_format::{BULK_BLOCK, Offset, SlotRef};
use shoal_fs::{Caller, Error, Fs, Ino, ROOT, XattrMode};
use shoal_media::{BlockDevice, ImageFile, PersistentMemory};
use shoal_region::View;
use shoal_sim::{World, WorldState};

const OTHERS: usize = 120;
const SETUP: Setup = Setup {
    kind: MemoryKind::Battery,
    saved: false,
    region_bytes: 32 << 20,
    ring_bytes: 4 << 20,
    bulk_blocks: 512,
    threshold: 256 << 10,
    cached: false,
};

/// A store, its victims by name, and the contents of everything else in the root.
struct Made {
    state: WorldState,
    store: Store,
    inodes: BTreeMap<&'static str, Ino>,
    others: BTreeMap<Vec<u8>, Vec<u8>>,
}

fn contents(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

fn write(store: &Store, name: &[u8], bytes: &[u8]) -> Ino {
    let ino = store.create(name);
    assert_eq!(store.fs.write(ino, 0, bytes), Ok(bytes.len()));
    ino
}

fn make(kind: MemoryKind) -> Made {
    make_on(Setup { kind, ..SETUP })
}

fn make_on(setup: Setup) -> Made {
    let store = Store::new(setup);
    let fs = &store.fs;
    let mut inodes = BTreeMap::new();
    inodes.insert("direct", write(&store, b"direct", &contents(1, 3000)));
    inodes.insert("chunked", write(&store, b"chunked", &contents(2, 200_000)));
    inodes.insert("large", write(&store, b"large", &contents(3, 700_000)));
    // Every second block is a hole, which makes so many extents that the map has leaves.
    let many = store.create(b"many");
    for block in 0..300 {
        assert_eq!(fs.write(many, block * 2 * BULK_BLOCK, &contents(4, 5000)), Ok(5000));
    }
    inodes.insert("many", many);
    let attributed = store.create(b"attributed");
    fs.setxattr(attributed, b"user.a", &[7; 300], XattrMode::Any).unwrap();
    inodes.insert("attributed", attributed);
    for (name, entries) in [("packed", 5), ("hashed", 400)] {
        let dir = fs.mkdir(&Caller::default(), ROOT, name.as_bytes(), 0o755).unwrap().ino;
        for entry in 0..entries {
            fs.mknod(&Caller::default(), dir, format!("entry{entry}").as_bytes(), 0o644, 0).unwrap();
        }
        inodes.insert(name, dir);
    }
    let mut others = BTreeMap::new();
    for number in 0..OTHERS {
        let name = format!("other{number}").into_bytes();
        let len = [0, 100, 5000, 60_000, 300_000][number % 5];
        write(&store, &name, &contents(number, len));
        others.insert(name, contents(number, len));
    }
    store.fs.shutdown().unwrap();
    let state = store.world.snapshot().process_crash();
    // Open and close the store once more, so that the log of the creations is past.
    let again = store.reopened(&state, false);
    again.fs.shutdown().unwrap();
    let state = again.world.snapshot().process_crash();
    Made { state, store: again, inodes, others }
}

/// What the damages can see of the store, and the bytes they change.
struct Bytes<'a> {
    fs: &'a Fs,
    inodes: &'a BTreeMap<&'static str, Ino>,
    changes: Vec<(Offset, Vec<u8>)>,
}

impl Bytes<'_> {
    fn inode(&self, name: &str) -> (Offset, Inode) {
        let placement = self.fs.placement(self.inodes[name]).unwrap();
        (Offset::new(placement.record_at), placement.inode)
    }

    fn put(&mut self, at: Offset, bytes: &[u8]) {
        self.changes.push((at, bytes.to_vec()));
    }

    fn flip(&mut self, at: Offset) {
        let word = self.fs.region().read_u64(at).unwrap();
        self.put(at, &(word ^ 0x10).to_le_bytes());
    }

    fn record(&mut self, name: &str, change: impl FnOnce(&mut Inode)) {
        let (at, mut inode) = self.inode(name);
        change(&mut inode);
        self.put(at, &inode.encode());
    }
}

/// Damages a store that is at rest.
fn damaged(state: &WorldState, kind: MemoryKind, changes: &[(Offset, Vec<u8>)]) -> WorldState {
    let world: World = state.open();
    for (at, bytes) in changes {
        match kind {
            MemoryKind::Logged => {
                for image in [world.image(0), world.image(1)] {
                    image.write(at.get(), bytes).unwrap();
                    image.sync().unwrap();
                }
            }
            _ => {
                world.memory(0).write(at.get(), bytes);
                world.memory(0).write_back(at.get(), bytes.len() as u64);
                world.memory(0).fence();
            }
        }
    }
    world.snapshot().process_crash()
}

type Damage = fn(&mut Bytes<'_>);

/// Each kind of damage, and what may be missing or unreadable because of it (names in the root).
const DAMAGES: &[(&str, &[&str], Damage)] = &[
    ("record", &["direct"], |b| {
        let at = b.inode("direct").0;
        b.flip(at + 16);
    }),
    ("record of a large file", &["large"], |b| {
        let at = b.inode("large").0;
        b.flip(at + 64);
    }),
    ("record of a directory", &["packed"], |b| {
        let at = b.inode("packed").0;
        b.flip(at + 64);
    }),
    ("forged record", &["direct"], |b| {
        b.record("direct", |inode| inode.root = SlotRef::slot(Offset::new(31 << 20), 24))
    }),
    ("free record", &[], |b| {
        // The last block of the table ends with records nobody used.
        let blocks = b.fs.region().read_u64(ROOTS_AT + 16).unwrap();
        let table = SlotRef::from_bits(b.fs.region().read_u64(ROOTS_AT).unwrap()).unwrap();
        let block = b.fs.region().read_u64(table.offset() + (blocks - 1) * 8).unwrap();
        let at = SlotRef::from_bits(block).unwrap().offset() + 15 * 96;
        b.put(at, &[9; 96]);
    }),
    ("reference to an inode block", &[], |b| {
        // The block in the middle of the table: entries of `hashed`.
        let table = SlotRef::from_bits(b.fs.region().read_u64(ROOTS_AT).unwrap()).unwrap();
        let block = (u64::from(b.inodes["hashed"]) + 100) / 16;
        b.put(table.offset() + block * 8, &SlotRef::slot(Offset::new(65536 * 3), 17).bits().to_le_bytes());
    }),
    ("chunk map", &["chunked"], |b| {
        let root = b.inode("chunked").1.root;
        b.put(root.offset() + 8, &[0xff; 8]);
    }),
    ("extent map", &["large"], |b| {
        let root = b.inode("large").1.root;
        b.put(root.offset(), &[0xff; 8]);
    }),
    ("extent leaf", &["many"], |b| {
        let root = b.inode("many").1.root;
        let leaf = SlotRef::from_bits(b.fs.region().read_u64(root.offset() + 16 + 8).unwrap()).unwrap();
        b.put(leaf.offset(), &[0xff; 8]);
    }),
    ("packed bucket", &["packed"], |b| {
        let root = b.inode("packed").1.root;
        b.put(root.offset(), &[0xff; 4]);
    }),
    ("node of a directory", &["hashed"], |b| {
        let root = b.inode("hashed").1.root;
        b.put(root.offset(), &[0xff; 2048]);
    }),
    ("attributes", &["attributed"], |b| {
        let xattr = b.inode("attributed").1.xattr;
        b.put(xattr.offset(), &[0xff; 8]);
    }),
    ("unfinished truncation", &["chunked"], |b| {
        let root = b.inode("chunked").1.root;
        b.put(root.offset() + 8, &[0xff; 8]);
        b.record("chunked", |inode| (inode.flags, inode.size) = (INODE_TRUNCATING, 10));
    }),
    ("orphan", &["many"], |b| {
        let root = b.inode("many").1.root;
        b.put(root.offset() + 16 + 8, &[0xff; 8]);
        b.record("many", |inode| inode.nlink = 0);
    }),
    ("orphan with attributes nowhere", &["attributed"], |b| {
        b.record("attributed", |inode| (inode.nlink, inode.xattr) = (0, SlotRef::slot(Offset::new(31 << 20), 24)));
    }),
    ("new data under a damaged leaf", &["many"], |b| {
        let root = b.inode("many").1.root;
        let leaf = SlotRef::from_bits(b.fs.region().read_u64(root.offset() + 16 + 8).unwrap()).unwrap();
        b.put(leaf.offset() + 16 + 4, &[0; 4]);
        b.record("many", |inode| inode.flags = INODE_HAS_NEW);
    }),
];

/// Lists the root, and reads everything that is not a victim.
fn read_others(fs: &Fs, others: &BTreeMap<Vec<u8>, Vec<u8>>, victims: &[&str], context: &str) {
    let mut names = Vec::new();
    fs.readdir(ROOT, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap_or_else(|error| panic!("{context}: listing: {error}"));
    for victim in victims {
        assert!(names.iter().any(|name| name == victim.as_bytes()), "{context}: {victim} is listed");
    }
    for (name, bytes) in others {
        assert!(names.contains(name), "{context}: {}", String::from_utf8_lossy(name));
        let ino = fs.lookup(ROOT, name).unwrap_or_else(|error| panic!("{context}: {error}")).ino;
        let mut found = vec![0; bytes.len() + 1];
        assert_eq!(fs.read(ino, 0, &mut found), Ok(bytes.len()), "{context}");
        assert!(found[..bytes.len()] == bytes[..], "{context}: contents of {}", String::from_utf8_lossy(name));
    }
}

/// Does everything that a user may do to the rest of the store.
fn live_with_it(store: &Store, made: &Made, victims: &[&str], context: &str) {
    let fs = &store.fs;
    read_others(fs, &made.others, victims, context);
    let dir = fs.mkdir(&Caller::default(), ROOT, b"new", 0o755).unwrap_or_else(|e| panic!("{context}: mkdir: {e}")).ino;
    for number in 0..1000 {
        let created = fs.mknod(&Caller::default(), dir, format!("{number}").as_bytes(), 0o644, 0);
        let ino = created.unwrap_or_else(|error| panic!("{context}: creating file {number}: {error}")).ino;
        assert_eq!(fs.write(ino, 0, b"x"), Ok(1), "{context}");
    }
    fs.sync().unwrap_or_else(|error| panic!("{context}: sync: {error}"));
    fs.upkeep().tick().unwrap_or_else(|error| panic!("{context}: tick: {error}"));
    // No new file got a number that another file has.
    read_others(fs, &made.others, victims, context);
    for name in made.others.keys() {
        fs.unlink(ROOT, name).unwrap_or_else(|error| panic!("{context}: deleting: {error}"));
    }
    for victim in victims.iter().filter(|victim| !["packed", "hashed"].contains(*victim)) {
        match fs.unlink(ROOT, victim.as_bytes()) {
            Ok(()) => {
                assert_eq!(fs.lookup(ROOT, victim.as_bytes()), Err(Error::NotFound), "{context}: {victim}")
            }
            Err(error) => panic!("{context}: the name of {victim}: {error}"),
        }
    }
    fs.shutdown().unwrap_or_else(|error| panic!("{context}: shutdown: {error}"));
    let again = store.reopened(&store.world.snapshot().process_crash(), false);
    let mut count = 0;
    let listed = again.fs.readdir(dir, 0, &mut |_| {
        count += 1;
        true
    });
    assert_eq!((listed, count), (Ok(()), 1002), "{context}: listing again");
}

fn every_opening(kind: MemoryKind) {
    let made = make(kind);
    for (what, victims, damage) in DAMAGES {
        let look = made.store.reopened(&made.state, false);
        let mut bytes = Bytes { fs: &look.fs, inodes: &made.inodes, changes: Vec::new() };
        damage(&mut bytes);
        let state = damaged(&made.state, kind, &bytes.changes);
        live_with_it(&made.store.reopened(&state, false), &made, victims, &format!("{kind:?}, {what}, clean"));
        // Crash the store that was opened before the damage, so that something is in the log.
        look.create(b"late");
        look.fs.sync().unwrap();
        let crashed = damaged(&look.world.snapshot().process_crash(), kind, &bytes.changes);
        for power_lost in [false, true] {
            let context = format!("{kind:?}, {what}, crashed, power lost: {power_lost}");
            live_with_it(&made.store.reopened(&crashed, power_lost), &made, victims, &context);
        }
        let context = format!("{kind:?}, {what}, read-only");
        let looked = made.store.read_only(&crashed);
        read_others(&looked.fs, &made.others, victims, &context);
    }
}

#[test]
fn a_damaged_structure_costs_its_own_inode_alone() {
    every_opening(MemoryKind::Battery);
}

#[test]
fn a_damaged_structure_in_an_image_costs_its_own_inode_alone() {
    every_opening(MemoryKind::Logged);
}

/// Carries out the checker's remedies, as `shoal check --repair` does, until none is offered.
/// Returns the state and the findings that are left.
fn repaired(made: &Made, mut state: WorldState, context: &str) -> (WorldState, Vec<Finding>) {
    for _ in 0..8 {
        let world = state.open();
        let memory = world.memory(0);
        let image = ImageSource::Memory(&*memory);
        let source = Source { sums: false, ..Source::of(image, None) };
        let report = shoal_check::check(source, &mut |_| {}).unwrap();
        if report.remedies.is_empty() {
            return (state, report.errors);
        }
        let store = made.store.reopened(&state, false);
        for remedy in &report.remedies {
            let done = match remedy {
                Remedy::RemoveEntry { directory, name, ino } => store.fs.repair().entry(*directory, name, *ino),
                Remedy::FreeRecord { ino } => store.fs.repair().free_record(*ino),
                Remedy::Attach { ino } => store.fs.repair().attach(*ino),
                Remedy::LinkCount { ino, nlink } => store.fs.repair().link_count(*ino, *nlink),
                Remedy::Allocated { ino, bytes } => store.fs.repair().allocated(*ino, *bytes),
                Remedy::Entries { directory, entries } => store.fs.repair().entries(*directory, *entries),
                Remedy::FreePieces { pieces } => store.fs.repair().pieces(pieces),
                Remedy::FreeBlocks { first, blocks } => store.fs.repair().blocks(*first, *blocks),
                Remedy::PackedTables => store.fs.repair().packed_tables(),
                Remedy::Dictionaries => store.fs.cooling().repair_dictionaries(),
            };
            done.unwrap_or_else(|error| panic!("{context}: {remedy}: {error}"));
        }
        store.fs.shutdown().unwrap_or_else(|error| panic!("{context}: {error}"));
        state = store.world.snapshot().process_crash();
    }
    panic!("{context}: the checker goes on offering remedies");
}

#[test]
fn repair_loses_nothing_readable_and_says_what_is_left() {
    use shoal_check::FindingKind as K;
    // These kinds of damage have no safe remedy, and keep other findings from being certain.
    let left = ["reference", "map", "leaf", "bucket", "node", "attributes", "forged", "truncation", "orphan"];
    let made = make(MemoryKind::Battery);
    let mut sound = 0;
    for (what, victims, damage) in DAMAGES {
        let look = made.store.reopened(&made.state, false);
        let mut bytes = Bytes { fs: &look.fs, inodes: &made.inodes, changes: Vec::new() };
        damage(&mut bytes);
        let (state, errors) = repaired(&made, damaged(&made.state, MemoryKind::Battery, &bytes.changes), what);
        let errors: Vec<_> = errors.iter().filter(|finding| finding.kind != K::RootCounts).collect();
        assert!(errors.is_empty() || left.iter().any(|word| what.contains(word)), "{what}: {errors:#?}");
        sound += usize::from(errors.is_empty());
        let store = made.store.reopened(&state, false);
        let gone = |name: &&&str| store.fs.lookup(ROOT, name.as_bytes()) != Err(Error::NotFound);
        let victims: Vec<&str> = victims.iter().filter(gone).copied().collect();
        read_others(&store.fs, &made.others, &victims, &format!("{what}, repaired"));
        store.fs.shutdown().unwrap();
    }
    assert!(sound >= 4, "{sound} of {} are sound again", DAMAGES.len());
}

#[test]
fn a_damaged_record_is_counted_told_once_and_refused_for_itself() {
    let made = make(MemoryKind::Battery);
    let (at, _) = Bytes { fs: &made.store.reopened(&made.state, false).fs, inodes: &made.inodes, changes: Vec::new() }
        .inode("direct");
    let state = damaged(&made.state, MemoryKind::Battery, &[(at + 16, vec![0x55; 4])]);
    let store = made.store.reopened(&state, false);
    assert_eq!(store.fs.repair().damaged_inodes(), 0, "nothing was looked at yet");
    for _ in 0..3 {
        assert!(matches!(store.fs.lookup(ROOT, b"direct"), Err(Error::Corrupt(_))));
        assert!(matches!(store.fs.read(made.inodes["direct"], 0, &mut [0; 9]), Err(Error::Corrupt(_))));
    }
    assert_eq!(store.fs.repair().damaged_inodes(), 1);
    assert!(store.fs.repair().lookup_unreadable(ROOT, b"chunked").is_err(), "what can be read is not made up");
    let attr = store.fs.repair().lookup_unreadable(ROOT, b"direct").unwrap();
    assert_eq!((attr.ino, attr.mode), (made.inodes["direct"], 0o100000));
    store.fs.unlink(ROOT, b"direct").unwrap();
    store.fs.forget(attr.ino, 1);
    assert_eq!(store.fs.lookup(ROOT, b"direct"), Err(Error::NotFound));
    // After a crash the pass over the inodes finds it, and the number stays taken.
    let crashed = store.after_process_crash();
    assert_eq!(crashed.fs.repair().damaged_inodes(), 1);
    for number in 0..1000 {
        assert_ne!(crashed.create(format!("n{number}").as_bytes()), made.inodes["direct"]);
    }
}

/// Lists a directory in calls that take three entries each, as a caller with a small buffer does.
fn listed_by_threes(fs: &Fs, dir: Ino) -> (Vec<Vec<u8>>, Result<(), Error>) {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let before = names.len();
        let outcome = fs.readdir(dir, cookie, &mut |entry| {
            if names.len() == before + 3 {
                return false;
            }
            names.push(entry.name.to_vec());
            cookie = entry.next;
            true
        });
        assert!(names.len() < 1000, "the listing starts over");
        if names.len() == before {
            return (names, outcome);
        }
    }
}

#[test]
fn a_listing_ends_and_repeats_nothing_where_a_hash_belongs_elsewhere() {
    let made = make(MemoryKind::Battery);
    let look = made.store.reopened(&made.state, false);
    let bytes = Bytes { fs: &look.fs, inodes: &made.inodes, changes: Vec::new() };
    let packed = bytes.inode("packed").1.root.offset();
    // The first and the last bucket of the directory.
    let root = bytes.inode("hashed").1.root.offset();
    let bucket = |index: u64| match NodeRef::decode(look.fs.region().read_u64(root + index * 8).unwrap()) {
        Ok(NodeRef::Bucket { slot, .. }) => slot.offset(),
        other => panic!("{other:?}"),
    };
    let places = [("packed", packed, 4), ("hashed", bucket(0), 0), ("hashed", bucket(255), 200)];
    for (name, at, others_min) in places {
        for hash in [0, 1 << 60, u64::MAX / 8, u64::MAX, 1 << 59] {
            let state = damaged(
                &made.state,
                MemoryKind::Battery,
                &[(at + BUCKET_HEADER as u64, u64::to_le_bytes(hash).to_vec())],
            );
            let store = made.store.reopened(&state, false);
            let (mut names, outcome) = listed_by_threes(&store.fs, made.inodes[name]);
            let belongs = name == "packed" && hash == 1 << 59;
            assert_eq!(matches!(outcome, Err(Error::Corrupt(_))), !belongs, "{name}, hash {hash:#x}: {outcome:?}");
            let found = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), found, "{name}, hash {hash:#x}: a name is listed twice");
            assert!(found >= 2 + others_min, "{name}, hash {hash:#x}: {found} names");
        }
    }
}

#[test]
fn after_a_power_loss_no_new_block_is_read_from_a_map_that_does_not_decode() {
    let made = make(MemoryKind::Battery);
    let look = made.store.reopened(&made.state, false);
    let mut bytes = Bytes { fs: &look.fs, inodes: &made.inodes, changes: Vec::new() };
    let root = bytes.inode("many").1.root;
    assert_eq!(bytes.inode("many").1.layout, Layout::Extents);
    let leaf = SlotRef::from_bits(look.fs.region().read_u64(root.offset() + 16 + 8).unwrap()).unwrap();
    // The second extent of the leaf is empty, which no map holds; the others are NEW.
    bytes.put(leaf.offset() + 16 + 16 + 4, &[0; 4]);
    (0..20).for_each(|extent| bytes.put(leaf.offset() + 16 + extent * 16 + 15, &[1]));
    bytes.record("many", |inode| inode.flags = INODE_HAS_NEW);
    look.create(b"late");
    let crashed = damaged(&look.world.snapshot().process_crash(), MemoryKind::Battery, &bytes.changes);
    let store = made.store.reopened(&crashed, true);
    let mut first = [1; 5000];
    assert_eq!(store.fs.read(made.inodes["many"], 0, &mut first), Ok(5000));
    assert_eq!(first, [0; 5000], "NEW before the power loss: zeros");
    store.fs.shutdown().unwrap();
    // They are not read later either, by an opening that does not know of the power loss.
    let again = store.reopened(&store.world.snapshot().process_crash(), false);
    assert_eq!(again.fs.read(made.inodes["many"], 0, &mut first), Ok(5000));
    assert_eq!(first, [0; 5000]);
    let record = again.fs.placement(made.inodes["attributed"]).unwrap();
    assert!(matches!(Inode::decode(&record.inode.encode()), Ok(InodeSlot::Used(_))));
}

/// The flush cannot name the file's blocks, so it names none and covers all.
#[test]
fn behind_a_cache_an_fsync_covers_a_file_whose_map_is_damaged() {
    let made = make_on(Setup { cached: true, ..SETUP });
    let look = made.store.reopened(&made.state, false);
    let mut bytes = Bytes { fs: &look.fs, inodes: &made.inodes, changes: Vec::new() };
    let root = bytes.inode("many").1.root;
    let leaf = SlotRef::from_bits(look.fs.region().read_u64(root.offset() + 16 + 8).unwrap()).unwrap();
    bytes.put(leaf.offset(), &[0xff; 8]);
    let store = made.store.reopened(&damaged(&made.state, MemoryKind::Battery, &bytes.changes), false);
    let (many, new) = (made.inodes["many"], contents(200, 5000));
    let mut found = vec![0; 5000];
    assert!(matches!(store.fs.read(many, 0, &mut found), Err(Error::Corrupt(_))));
    assert_eq!(store.fs.write(many, 598 * BULK_BLOCK, &new), Ok(5000));
    let is_on_device = || {
        let mut all = vec![0; (SETUP.bulk_blocks * BULK_BLOCK) as usize];
        store.world.disk(0).read_into(0, &mut all).unwrap();
        all.chunks_exact(BULK_BLOCK as usize).any(|block| block.starts_with(&new))
    };
    assert!(!is_on_device(), "the cache holds it");
    assert_eq!(store.fs.fsync(many), Ok(()));
    assert!(is_on_device(), "an fsync has confirmed it");
}
