//! Packed inodes: the packed table answers as the plain one does, whatever happens between.
//!
//! Every test compares with the state before packing, or with a store on which nothing is packed,
//! and asks the offline checker, which has a decoder of its own. Crashes in between are in `crash`,
//! broken rules in the test `planted`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shoal_check::{FindingKind, ImageSource, Item, Loss, Remedy, SalvageSource, Sink, salvage};
use shoal_format::SlotRef;
use shoal_format::inode::Inode;
use shoal_format::packed::InodeTables;
use shoal_format::superblock::{FEATURE_PACKED, MemoryKind, ROOTS_AT, Roots};
use shoal_fs::{Caller, Error, Fs, Ino, Options, ProfileFile, ROOT, SetAttr, TimeChange, XattrMode};
use shoal_media::PersistentMemory;
use shoal_region::View;
use shoal_sim::{Random, due};
use zerocopy::FromBytes;

use crate::cold::{AGE, Store, caller, cool, crowd, files, options, setup};
use crate::crash::tree::Tree;
use crate::store::{self, Boot, Setup, Watch};

#[test]
fn cold_inodes_are_packed_and_nothing_else_changes() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let inos = files(&fs, &store.clock, 500);
    for (number, ino) in inos.iter().enumerate().filter(|(number, _)| number % 3 == 0) {
        fs.write(*ino, 0, &vec![7; number + 1]).unwrap();
    }
    assert_eq!(fs.compacting().pack_inodes_step(1000).unwrap().blocks, 0, "they are young");
    let before = Tree::read(&fs).unwrap();
    let free = fs.usage().region_free;
    let done = cool(&fs, &store.clock);
    println!("{done:?}, {} bytes of the region", fs.usage().region_free - free);
    assert!(done.blocks >= 31 && done.inodes >= 500, "{done:?}");
    assert!(fs.usage().region_free > free);
    let packed = fs.compacting().packed_inodes().unwrap();
    assert_eq!((packed.blocks, packed.inodes, packed.bytes), (done.blocks, done.inodes, done.bytes_after));
    assert!(Tree::read(&fs).unwrap() == before);
    store.close(fs);
    let fs = store.open();
    assert_eq!(fs.compacting().packed_inodes().unwrap(), packed);
    assert!(Tree::read(&fs).unwrap() == before);
    assert_eq!(cool(&fs, &store.clock).blocks, 0, "they are packed already");
    fs.setattr(inos[40], &SetAttr { mode: Some(0o600), ..Default::default() }).unwrap();
    assert_eq!(fs.compacting().packed_inodes().unwrap().blocks, packed.blocks - 1);
    assert_eq!(fs.getattr(inos[40]).unwrap().mode & 0o7777, 0o600);
    assert_eq!(cool(&fs, &store.clock).blocks, 1);
    store.close(fs);
}

#[test]
fn a_plain_and_a_packed_table_answer_alike() {
    for seed in 0..6 {
        let (mut packing, mut plain) = (Store::new(setup()), Store::new(setup()));
        let (mut one, mut other) = (packing.open(), plain.open_as(None));
        let mut random = Random::new(seed);
        let mut packed = 0;
        for round in 0..12 {
            for _ in 0..60 {
                let step = random.next_u64();
                for (fs, clock) in [(&one, &packing.clock), (&other, &plain.clock)] {
                    clock.advance(1_234_567);
                    change(fs, step);
                }
            }
            packed += cool(&one, &packing.clock).blocks;
            plain.clock.advance(2 * AGE.as_nanos() as u64);
            one.compacting().compact().unwrap();
            assert!(Tree::read(&one).unwrap() == Tree::read(&other).unwrap(), "seed {seed}, round {round}");
            if round % 4 == 3 {
                one.shutdown().unwrap();
                other.shutdown().unwrap();
                drop((one, other));
                packing.check();
                plain.check();
                (one, other) = (packing.open(), plain.open_as(None));
            }
        }
        assert!(packed > 20, "seed {seed}: {packed} blocks packed");
        assert_eq!(other.compacting().packed_inodes().unwrap().blocks, 0);
    }
}

/// Makes the change that `step` names, which is the same on stores in the same state.
fn change(fs: &Fs, step: u64) {
    let mut random = Random::new(step);
    let name = |random: &mut Random| format!("n{}", random.below(120)).into_bytes();
    let (one, other) = (name(&mut random), name(&mut random));
    let found = fs.lookup(ROOT, &one).map(|attr| attr.ino);
    let who = Caller { uid: random.below(40) as u32, gid: random.below(3) as u32, ..caller() };
    let outcome = match (random.below(9), found) {
        (0..3, _) => fs.mknod(&who, ROOT, &one, [0o644, 0o600, 0o755][random.below(3) as usize], 0).map(drop),
        (3, _) => fs.unlink(ROOT, &one),
        (4, _) => fs.rename(ROOT, &one, ROOT, &other, shoal_fs::RenameMode::Replace),
        (5, Ok(ino)) => fs.write(ino, random.below(100), &vec![1; random.below(3000) as usize]).map(drop),
        (6, Ok(ino)) => fs.setattr(ino, &SetAttr { uid: Some(who.uid), ..Default::default() }).map(drop),
        (7, Ok(ino)) => fs.setxattr(ino, b"user.a", &vec![2; random.below(200) as usize], shoal_fs::XattrMode::Any),
        (8, Ok(ino)) => fs.link(ino, ROOT, &other).map(drop),
        (_, Ok(_)) | (_, Err(_)) => fs.mkdir(&who, ROOT, &one, 0o750).map(drop),
    };
    // A change that is refused is refused on both stores.
    let _ = outcome;
}

/// Returns the slot references of the two copies of the tables.
fn tables(fs: &Fs) -> [SlotRef; 2] {
    let mut bytes = [0; size_of::<Roots>()];
    fs.region().read(ROOTS_AT, &mut bytes).unwrap();
    let roots = Roots::read_from_bytes(&bytes).unwrap();
    roots.inode_tables.map(|bits| SlotRef::from_bits(bits.get()).unwrap())
}

#[test]
fn a_stale_handle_fits_no_inode_that_takes_its_number_later() {
    let mut store = Store::new(setup());
    let fs = store.open();
    files(&fs, &store.clock, 64);
    let gone = fs.lookup(ROOT, b"file33").unwrap();
    fs.unlink(ROOT, b"file33").unwrap();
    assert!(cool(&fs, &store.clock).blocks >= 4);
    assert_eq!(fs.getattr(gone.ino), Err(Error::Stale));
    store.close(fs);
    let fs = store.open();
    let next = fs.mknod(&caller(), ROOT, b"next", 0o644, 0).unwrap();
    assert_eq!((next.ino, next.generation), (gone.ino, gone.generation + 1));
    assert!(fs.compacting().packed_inodes().unwrap().blocks >= 3);
}

#[test]
fn a_store_made_before_there_were_packed_inodes_gets_the_feature_and_is_packed() {
    for kind in [MemoryKind::Battery, MemoryKind::Dax] {
        let mut store = Store::new(Setup { kind, ..setup() });
        let fs = store.open_as(None);
        files(&fs, &store.clock, 40);
        fs.shutdown().unwrap();
        drop(fs);
        store.without_feature(FEATURE_PACKED);
        let fs = store.open();
        assert!(!fs.region().has_feature(FEATURE_PACKED));
        let before = Tree::read(&fs).unwrap();
        assert!(cool(&fs, &store.clock).blocks >= 2 && fs.region().has_feature(FEATURE_PACKED));
        assert!(Tree::read(&fs).unwrap() == before);
        store.close(fs);
    }
}

#[test]
fn a_flipped_bit_in_a_packed_block_is_an_error_and_never_another_inode() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let inos = files(&fs, &store.clock, 100);
    cool(&fs, &store.clock);
    let before: Vec<_> = inos.iter().map(|ino| fs.getattr(*ino).unwrap()).collect();
    let (mut random, memory) = (Random::new(3), store.world.memory(0));
    for _ in 0..2000 {
        let which = 20 + random.below(60) as usize;
        let at = fs.placement(inos[which]).unwrap().record_at + random.below(120);
        let mut byte = [0];
        memory.read(at, &mut byte);
        memory.write(at, &[byte[0] ^ 1 << random.below(8)]);
        assert!(matches!(fs.getattr(inos[which]), Err(Error::Corrupt(_))), "inode {}", inos[which]);
        memory.write(at, &byte);
        assert_eq!(fs.getattr(inos[which]).as_ref(), Ok(&before[which]));
    }
    // Damaged for good: the block's inodes are named, and can be freed; all others stay.
    let at = fs.placement(inos[50]).unwrap().record_at + 60;
    fs.shutdown().unwrap();
    drop(fs);
    let mut byte = [0];
    memory.read(at, &mut byte);
    memory.write(at, &[byte[0] ^ 4]);
    let lost = |ino: Ino| ino.block() == inos[50].block();
    let report = store::report(store.setup, &store.world, false).unwrap();
    let named: Vec<u32> =
        report.errors.iter().filter(|f| f.kind == FindingKind::InodeRecord).flat_map(|f| f.inode).collect();
    assert_eq!(named.len(), 16, "{named:?}");
    assert!(named.iter().all(|ino| lost(Ino::new(*ino))), "{named:?}");
    for round in 0..4 {
        let report = store::report(store.setup, &store.world, false).unwrap();
        assert!(!report.remedies.is_empty() || report.is_sound(), "round {round}: {:?}", report.errors);
        let fs = store.open_with(Options { recover: true, ..options(Some(AGE)) });
        for remedy in &report.remedies {
            repair(&fs, remedy);
        }
        fs.shutdown().unwrap();
    }
    store.check();
    let fs = store.open();
    for (ino, attr) in inos.iter().zip(&before) {
        assert_eq!(fs.getattr(*ino).ok().as_ref(), (!lost(*ino)).then_some(attr));
    }
}

fn repair(fs: &Fs, remedy: &Remedy) {
    let done = match remedy {
        Remedy::RemoveEntry { directory, name, ino } => fs.repair().entry(*directory, name, *ino),
        Remedy::FreeRecord { ino } => fs.repair().free_record(*ino),
        Remedy::LinkCount { ino, nlink } => fs.repair().link_count(*ino, *nlink),
        Remedy::Allocated { ino, bytes } => fs.repair().allocated(*ino, *bytes),
        Remedy::Entries { directory, entries } => fs.repair().entries(*directory, *entries),
        Remedy::FreePieces { pieces } => fs.repair().pieces(pieces),
        Remedy::PackedTables => fs.repair().packed_tables(),
        Remedy::Dictionaries => fs.cooling().repair_dictionaries(),
        Remedy::Attach { .. } | Remedy::FreeBlocks { .. } => panic!("{remedy}"),
    };
    done.unwrap_or_else(|error| panic!("{remedy}: {error}"));
}

/// The inodes that a salvage finds, by path.
#[derive(Default)]
struct Found(BTreeMap<Vec<u8>, Inode>);

impl Sink for Found {
    fn make(&mut self, item: &Item<'_>) -> bool {
        self.0.insert(item.path.to_vec(), *item.inode);
        true
    }

    fn data(&mut self, _: u64, _: &[u8]) {}

    fn done(&mut self) {}

    fn link(&mut self, _: &[u8], _: &[u8]) {}

    fn lost(&mut self, _: Loss) {}

    fn note(&mut self, _: &str) {}
}

#[test]
fn a_salvage_reads_packed_blocks_also_those_that_the_table_does_not_lead_to() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let inos = files(&fs, &store.clock, 100);
    cool(&fs, &store.clock);
    let inode = |ino: Ino| fs.placement(ino).unwrap().inode;
    let expected: Vec<Inode> = inos.iter().map(|ino| inode(*ino)).collect();
    let block = fs.placement(inos[50]).unwrap().record_at;
    let mut root = [0; 8];
    fs.region().read(ROOTS_AT, &mut root).unwrap();
    let node = SlotRef::from_bits(u64::from_le_bytes(root)).unwrap();
    let entry = node.offset() + inos[50].block() * 8;
    assert_eq!(fs.region().read_u64(entry).unwrap() & ((1 << 40) - 1), block);
    fs.shutdown().unwrap();
    let memory = store.world.memory(0);
    for is_cut in [false, true] {
        if is_cut {
            memory.write_u64(entry.get(), 5);
        }
        let source = SalvageSource {
            image: ImageSource::Memory(&*memory),
            log: None,
            bulk: None,
            power_lost: false,
            loss_boots: &[],
            first_moved: false,
        };
        let mut found = Found::default();
        salvage(source, &mut found, &mut |_| ()).unwrap().unwrap();
        for (number, inode) in expected.iter().enumerate() {
            assert_eq!(found.0.get(format!("file{number}").as_bytes()), Some(inode), "file {number}, cut {is_cut}");
        }
    }
}

#[test]
fn inodes_are_packed_at_once_when_asked() {
    let mut store = Store::new(setup());
    let fs = store.open_as(Some(AGE));
    files(&fs, &store.clock, 1000);
    assert_eq!(fs.compacting().pack_inodes_step(u32::MAX).unwrap().blocks, 0, "they are young");
    let done = fs.compacting().pack_inodes_now().unwrap();
    assert!(done.inodes >= 990 && done.bytes_after * 3 < done.bytes_before, "{done:?}");
    assert_eq!(fs.compacting().pack_inodes_now().unwrap().blocks, 0, "nothing is left to do");
    store.close(fs);
}

#[test]
fn a_store_may_have_profiles_of_its_own() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let built_in = ProfileFile::built_in();
    let own = ProfileFile { comment: "of this store".into(), profiles: built_in.profiles[..].to_vec() };
    assert_eq!(fs.compacting().set_inode_profiles(&ProfileFile { profiles: Vec::new(), ..own.clone() }), Ok(false));
    assert_eq!(fs.compacting().set_inode_profiles(&own), Ok(true));
    assert_eq!(fs.compacting().set_inode_profiles(&own), Ok(false));
    files(&fs, &store.clock, 40);
    assert!(cool(&fs, &store.clock).blocks >= 2);
    let bytes = fs.region().read_vec(tables(&fs)[1].offset(), 8000).unwrap();
    assert!(bytes.windows(13).any(|part| part == b"of this store"));
    store.close(fs);
}

#[test]
fn damaged_stores_of_packed_inodes_give_findings_and_errors_and_no_panics() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let inos = files(&fs, &store.clock, 300);
    cool(&fs, &store.clock);
    let places =
        [tables(&fs)[0].offset().get(), tables(&fs)[1].offset().get(), fs.placement(inos[9]).unwrap().record_at];
    fs.shutdown().unwrap();
    drop(fs);
    let state = store.world.snapshot().process_crash();
    let (mut random, mut found) = (Random::new(6), 0);
    for round in 0..400 {
        store.world = state.open();
        let memory = store.world.memory(0);
        for _ in 0..=random.below(3) {
            let at = places[random.below(3) as usize] + random.below(if round % 2 == 0 { 200 } else { 12_000 });
            let mut byte = [0];
            memory.read(at, &mut byte);
            memory.write(at, &[byte[0] ^ random.next_u64() as u8]);
        }
        found += u64::from(!store::report(store.setup, &store.world, false).unwrap().is_sound());
        let boot = Boot { boot: 1, opening: 9, keeps_trimmed: true };
        let opened = store::open_with(store.setup, &store.world, boot, &Watch::default(), options(None), &store.clock);
        if let Ok((fs, _)) = opened.unwrap() {
            for ino in &inos {
                let attr = fs.getattr(*ino);
                assert!(
                    attr.as_ref().map_or_else(|e| matches!(e, Error::Corrupt(_)), |attr| attr.uid == 10),
                    "{attr:?}"
                );
            }
        }
    }
    println!("{found} of 400 damaged");
    assert!(found > 200, "{found}");
}

#[test]
fn inodes_unlike_any_profile_are_packed_as_well_and_the_tables_grow() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let mut random = Random::new(12);
    for number in 0..900u32 {
        let kind = [0o100000, 0o010000, 0o020000, 0o060000][random.below(4) as usize];
        let who = Caller { uid: number * 7_000_003, gid: random.next_u64() as u32 >> random.below(32), ..caller() };
        let mode = kind | random.below(0o7777) as u32;
        let device = if kind == 0o020000 || kind == 0o060000 { random.next_u64() as u32 } else { 0 };
        let ino = fs.mknod(&who, ROOT, format!("odd{number}").as_bytes(), mode, device).unwrap().ino;
        let time = |random: &mut Random| match random.below(4) {
            0 => None,
            1 => Some(TimeChange::At(random.next_u64() as i64)),
            2 => Some(TimeChange::At([i64::MIN, i64::MAX, -1, 0][random.below(4) as usize])),
            _ => Some(TimeChange::At(1_500_000_000_000_000_000 + random.below(9) as i64 * 1_000_000_000)),
        };
        let change = SetAttr { atime: time(&mut random), mtime: time(&mut random), ..Default::default() };
        fs.setattr(ino, &change).unwrap();
        if number % 5 == 0 {
            fs.setxattr(ino, b"trusted.a", &[3; 40], XattrMode::Any).unwrap();
        }
        if kind == 0o100000 && number % 3 == 0 {
            fs.write(ino, random.below(100_000), &[9; 100]).unwrap();
        }
    }
    let (before, first) = (Tree::read(&fs).unwrap(), fs.compacting().packed_inodes().unwrap());
    assert_eq!(first.blocks, 0);
    let done = cool(&fs, &store.clock);
    println!("{done:?}, tables of {} bytes", tables(&fs)[0].capacity());
    assert!(done.inodes > 850 && tables(&fs)[0].capacity() >= 900 * 24);
    assert!(Tree::read(&fs).unwrap() == before);
    store.close(fs);
    let fs = store.open();
    assert!(Tree::read(&fs).unwrap() == before);
    // Each triplet goes with its last user.
    for number in (0..900).step_by(2) {
        fs.unlink(ROOT, format!("odd{number}").as_bytes()).unwrap();
    }
    cool(&fs, &store.clock);
    store.close(fs);
}

#[test]
fn a_damaged_copy_of_the_tables_is_named_and_the_other_one_used() {
    for (copy, place) in (0..2).flat_map(|copy| [(copy, 0), (copy, 40), (copy, u64::MAX)]) {
        let mut store = Store::new(setup());
        let fs = store.open();
        files(&fs, &store.clock, 100);
        cool(&fs, &store.clock);
        let before = Tree::read(&fs).unwrap();
        let slot = tables(&fs)[copy];
        let profile = fs.region().read_u64(slot.offset() + 16).unwrap() as u32;
        let place = if place == u64::MAX { InodeTables::triplets_at(profile.into()) + 1 } else { place };
        fs.shutdown().unwrap();
        drop(fs);
        let (memory, at) = (store.world.memory(0), slot.offset().get() + place);
        let mut byte = [0];
        memory.read(at, &mut byte);
        memory.write(at, &[byte[0] ^ 1]);
        let report = store::report(store.setup, &store.world, false).unwrap();
        let kinds: Vec<FindingKind> = report.errors.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [FindingKind::PackedTables], "copy {copy}, byte {place}");
        assert_eq!(report.remedies, [Remedy::PackedTables]);
        let told = Arc::new(AtomicU64::new(0));
        let counter = told.clone();
        let on_damage: shoal_fs::OnDamage = Arc::new(move |ino, finding| {
            assert!(ino.is_none() && finding.contains("tables of packed inodes"), "{ino}: {finding}");
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let fs = store.open_with(Options { on_damage: Some(on_damage), ..options(Some(AGE)) });
        assert_eq!(told.load(Ordering::Relaxed), 1);
        assert!(Tree::read(&fs).unwrap() == before);
        if copy == 0 {
            // The next block that is packed writes both copies.
            fs.setattr(Ino::new(20), &SetAttr { mode: Some(0o640), ..Default::default() }).unwrap();
            assert_eq!(cool(&fs, &store.clock).blocks, 1);
        } else {
            fs.repair().packed_tables().unwrap();
        }
        store.close(fs);
    }
}

#[test]
fn a_full_store_of_packed_inodes_can_be_emptied() {
    for kind in due([MemoryKind::Battery, MemoryKind::Logged], 2) {
        let mut store = Store::new(Setup { kind, region_bytes: 150 << 16, ring_bytes: 256 << 10, ..setup() });
        let fs = store.open();
        let mut names = Vec::new();
        let mut dir = ROOT;
        let mut full = 0;
        while full < 3 {
            let name = format!("name{}", names.len());
            if names.len() % 1000 == 0 {
                match fs.mkdir(&caller(), ROOT, format!("dir{}", names.len()).as_bytes(), 0o755) {
                    Ok(attr) => dir = attr.ino,
                    Err(error) => assert_eq!(error, Error::NO_SPACE),
                }
            }
            match fs.mknod(&caller(), dir, name.as_bytes(), 0o644, 0) {
                Ok(_) => names.push((dir, name)),
                Err(error) => {
                    assert_eq!(error, Error::NO_SPACE);
                    cool(&fs, &store.clock);
                    full += 1;
                }
            }
        }
        let packed = fs.compacting().packed_inodes().unwrap();
        println!("{}: {} files, {packed:?}", kind.name(), names.len());
        assert!(packed.inodes > 10_000);
        store.close(fs);
        let fs = store.open();
        // Changes may find no room, removals must not.
        let mut random = Random::new(8);
        for (dir, name) in names.iter().step_by(37) {
            let ino = fs.lookup(*dir, name.as_bytes()).unwrap().ino;
            let outcome = fs.setattr(ino, &SetAttr { mode: Some(0o600), ..Default::default() });
            assert!(matches!(outcome, Ok(_) | Err(Error::NoSpace(_))), "{outcome:?}");
        }
        for (dir, name) in random.shuffled(names) {
            fs.unlink(dir, name.as_bytes()).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        assert_eq!(fs.usage().inodes, fs.usage().directories);
        store.close(fs);
    }
}

#[test]
fn threads_that_read_and_change_inodes_do_not_notice_that_they_are_packed() {
    for seed in 0..3 {
        crowd(seed, 1500);
    }
}

/// Measures the bytes that a cold empty file takes, with its name and its share of directories and
/// tables.
#[test]
fn an_empty_file_that_has_cooled_takes_less_than_40_bytes() {
    let count: u64 = if crate::crash::deep() { 1_000_000 } else { 100_000 };
    let region_bytes = (count * 160 + (16 << 20)) >> 16 << 16;
    let mut store = Store::new(Setup { region_bytes, ring_bytes: 4 << 20, ..setup() });
    let fs = store.open();
    let empty = fs.usage().region_free;
    let mut random = Random::new(4);
    let mut dir = ROOT;
    for number in 0..count {
        store.clock.advance(2000 + random.below(6000));
        if number % 1000 == 0 {
            dir = fs.mkdir(&caller(), ROOT, format!("directory{}", number / 1000).as_bytes(), 0o755).unwrap().ino;
        }
        fs.mknod(&caller(), dir, format!("file{:08x}", random.next_u64() as u32).as_bytes(), 0o644, 0).unwrap();
    }
    let warm = empty - fs.usage().region_free;
    fs.cooling().pack_all(&mut |_, _| {}).unwrap();
    cool(&fs, &store.clock);
    fs.compacting().compact().unwrap();
    cool(&fs, &store.clock);
    let (cold, packed) = (empty - fs.usage().region_free, fs.compacting().packed_inodes().unwrap());
    let each = |bytes: u64| bytes as f64 / count as f64;
    println!(
        "{count} empty files: {:.1} bytes each, cold {:.1}, inodes {:.1}",
        each(warm),
        each(cold),
        each(packed.bytes)
    );
    assert!(cold < 40 * count, "{} bytes each", each(cold));
    store.close(fs);
}
