//! The readable part of a damaged store is copied out unchanged, and the rest is named.
//!
//! Rules: the tree of the undamaged store is the model. For every path that differs from it, a loss
//! must name the path or a directory above it. Media refuse writes by panicking. Left out: the
//! directory that receives the copy (`crates/cli`).

use std::collections::BTreeMap;

use crate::devices::{map, mark, two_devices};
use crate::store::media::{Image, Log, Memory};
use crate::store::sample::*;
use crate::store::{Store, tree};
use shoal_check::{BulkData, ImageSource, Item, Loss, SalvageSource, Salvaged, Sink, salvage};
use shoal_format::extent::EXTENT_NEW;
use shoal_format::inode::{INODE_HAS_NEW, Inode};
use shoal_format::record::{RecordKind, with_loss};
use shoal_format::superblock::{MemoryKind, ROOTS_AT};
use shoal_format::{Offset, PAGE, SlotRef};

/// A bulk device whose bytes encode their position.
struct Pattern;

impl BulkData for Pattern {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), String> {
        out.iter_mut().enumerate().for_each(|(i, byte)| *byte = ((at + i as u64) / 4096 + 1) as u8);
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Made {
    inode: Inode,
    target: Vec<u8>,
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    data: BTreeMap<u64, Vec<u8>>,
}

#[derive(Default)]
struct Copy {
    made: BTreeMap<Vec<u8>, Made>,
    last: Vec<u8>,
    lost: Vec<Loss>,
}

impl Sink for Copy {
    fn make(&mut self, item: &Item<'_>) -> bool {
        self.last = item.path.to_vec();
        let (target, attributes) = (item.target.to_vec(), item.attributes.to_vec());
        let made = Made { inode: *item.inode, target, attributes, data: BTreeMap::new() };
        assert!(!self.made.contains_key(item.path) || !self.lost.is_empty(), "made twice: {:?}", item.path);
        self.made.insert(item.path.to_vec(), made);
        true
    }

    fn data(&mut self, at: u64, bytes: &[u8]) {
        self.made.get_mut(&self.last).unwrap().data.insert(at, bytes.to_vec());
    }

    fn done(&mut self) {}

    fn link(&mut self, path: &[u8], first: &[u8]) {
        let first = self.made[first].clone();
        self.made.insert(path.to_vec(), first);
    }

    fn lost(&mut self, loss: Loss) {
        self.lost.push(loss);
    }

    fn note(&mut self, _: &str) {}
}

fn run(images: [&Image; 2], log: Option<&Log>, power_lost: bool) -> (Copy, Option<Salvaged>) {
    run_after(images, log, power_lost, &[])
}

fn run_after(
    images: [&Image; 2],
    log: Option<&Log>,
    power_lost: bool,
    loss_boots: &[[u8; 16]],
) -> (Copy, Option<Salvaged>) {
    let mut copy = Copy::default();
    let image = ImageSource::Images([images[0], images[1]]);
    let log = log.map(|log| log as &dyn shoal_media::LogDevice);
    let source = SalvageSource { image, log, bulk: Some(&Pattern), power_lost, loss_boots, first_moved: false };
    let found = salvage(source, &mut copy, &mut |_| {}).unwrap();
    assert_eq!(copy.lost.len() as u64, found.unwrap_or_default().losses);
    (copy, found)
}

fn nothing() -> Image {
    Image(Vec::new())
}

/// Returns the paths that differ from `model` and that no loss names.
fn unnamed(model: &Copy, copy: &Copy) -> Vec<String> {
    let named = |path: &[u8]| {
        copy.lost.iter().any(|loss| match &loss.path {
            Some(lost) => path == &lost[..] || lost.is_empty() || path.starts_with(&[lost, &b"/"[..]].concat()),
            None => loss.why.contains("inode table"),
        })
    };
    // A loss names only the first of two names of one file.
    let first = |path: &[u8]| if path == b"hard" { b"directory/small".to_vec() } else { path.to_vec() };
    let differs = model
        .made
        .iter()
        .filter(|(path, made)| copy.made.get(*path) != Some(made) && !named(path) && !named(&first(path)));
    differs.map(|(path, _)| String::from_utf8_lossy(path).into_owned()).collect()
}

#[test]
fn a_sound_store_is_copied_whole() {
    for (kind, is_packed) in [(MemoryKind::Logged, false), (MemoryKind::Battery, false), (MemoryKind::Logged, true)] {
        let mut store = Store::sample(kind);
        if is_packed {
            store.pack_bucket(1);
            store.pack_bucket(DIRECTORY);
        }
        let mut copy = Copy::default();
        let (image, empty, memory, log) = (Image(store.image()), nothing(), store.memory(), store.log_device());
        let image = match kind {
            MemoryKind::Logged => ImageSource::Images([&image, &empty]),
            _ => ImageSource::Memory(&memory),
        };
        let source = SalvageSource {
            image,
            log: Some(&log),
            bulk: Some(&Pattern),
            power_lost: false,
            loss_boots: &[],
            first_moved: false,
        };
        let found = salvage(source, &mut copy, &mut |_| {}).unwrap().unwrap();
        assert_eq!(copy.lost, [], "{kind:?}");
        assert_eq!((found.directories, found.files, found.others, found.links), (3, 104, 2, 1));
        assert_eq!(copy.made[&b"directory/small"[..]].data[&0], b"hello, world");
        assert_eq!(copy.made[&b"hard"[..]], copy.made[&b"directory/small"[..]]);
        assert_eq!(copy.made[&b"symlink"[..]].target, b"directory/small");
        assert_eq!(copy.made[&b"empty"[..]].data, BTreeMap::new(), "a hole stays one");
        assert_eq!(copy.made[&b"chunked"[..]].data[&0], [0x11; 32768]);
        assert!(!copy.made[&b"chunked"[..]].data.contains_key(&32768), "a hole between chunks");
        for (path, (inode, _)) in tree::read(&store.bytes) {
            assert_eq!(copy.made[path.strip_prefix(b"/").unwrap_or(&path)].inode, inode);
        }
        let large = &copy.made[&b"large"[..]].data;
        assert_eq!(large[&0][..4096], [(60 * 16 + 1) as u8; 4096]);
    }
}

#[test]
fn every_page_lost_costs_what_lies_in_it_and_is_named() {
    let store = Store::sample(MemoryKind::Logged);
    let (pristine, log) = (store.image(), store.log_device());
    let (model, _) = run([&Image(pristine.clone()), &nothing()], Some(&log), false);
    let used = store.bytes.iter().rposition(|&byte| byte != 0).unwrap() / PAGE as usize;
    let mut seed = 0x5a1_7a6e_u64;
    let (mut harmed, mut readable) = (0, 0);
    for page in 2..=used {
        if pristine[page * 4096..][..4096].iter().all(|&byte| byte == 0) {
            continue;
        }
        for noise in [false, true] {
            let mut image = pristine.clone();
            for byte in &mut image[page * 4096..][..4096] {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *byte = if noise { (seed >> 33) as u8 } else { 0 };
            }
            let (copy, found) = run([&Image(image), &nothing()], Some(&log), false);
            assert!(found.is_some());
            let silent = unnamed(&model, &copy);
            assert!(silent.is_empty(), "page {page}, noise {noise}: {silent:?} differ, told: {:?}", copy.lost);
            let same = model.made.iter().filter(|(path, made)| copy.made.get(*path) == Some(made)).count();
            harmed += usize::from(same < model.made.len());
            readable += same;
        }
    }
    assert!(harmed > 4, "{harmed} of the pages mattered");
    assert!(readable > harmed * 20, "{readable} paths were read beside {harmed} lost pages");
}

#[test]
fn flipped_and_forged_bytes_without_sums_never_panic_and_cost_little() {
    let mut seed = 0xbad_5eed_u64;
    let mut next = |limit: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % limit
    };
    for kind in [MemoryKind::Logged, MemoryKind::Dax] {
        let store = Store::sample(kind);
        let mut copy = Copy::default();
        let memory = store.memory();
        let run = |memory: &Memory, copy: &mut Copy| {
            let image = ImageSource::Memory(memory);
            let source = SalvageSource {
                image,
                log: None,
                bulk: Some(&Pattern),
                power_lost: true,
                loss_boots: &[],
                first_moved: false,
            };
            salvage(source, copy, &mut |_| {}).unwrap();
        };
        run(&memory, &mut copy);
        let used: Vec<usize> = (8192..memory.0.len()).filter(|&at| memory.0[at] != 0).collect();
        for round in 0..if std::env::var_os("SHOAL_DEEP").is_some() { 1500 } else { 150 } {
            let mut bytes = memory.0.clone();
            for _ in 0..1 + next(4) {
                let (at, len, value) = (used[next(used.len())], 1 + next(60), next(512));
                let end = (at + len).min(bytes.len());
                bytes[at..end].iter_mut().for_each(|byte| *byte = value as u8);
            }
            let mut damaged = Copy::default();
            run(&Memory(bytes), &mut damaged);
            let found = damaged.made.values().filter(|made| copy.made.values().any(|other| other == *made)).count();
            assert!(found > 1 || !damaged.lost.is_empty(), "{kind:?} round {round}: silence over an empty copy");
        }
    }
}

#[test]
fn inodes_no_directory_reaches_come_out_below_lost_and_found() {
    let mut store = Store::sample(MemoryKind::Logged);
    let at = store.inode_at(1).get() as usize;
    store.bytes[at + 20] ^= 1;
    let (copy, found) = run([&Image(store.image()), &nothing()], Some(&store.log_device()), false);
    let found = found.unwrap();
    assert_eq!(copy.made[&b"lost+found/#2/small"[..]].data[&0], b"hello, world", "a tree stays together");
    assert!(copy.made.contains_key(&b"lost+found/#7"[..]), "a file of the root");
    assert_eq!((found.directories, found.files), (2, 104));
    // The inode table's root is gone, too.
    store.bytes[at + 20] ^= 1;
    store.write(ROOTS_AT, &SlotRef::slot(Offset::new(60 << 16), 17).bits().to_le_bytes());
    let (copy, found) = run([&Image(store.image()), &nothing()], Some(&store.log_device()), false);
    assert!(!copy.lost.is_empty());
    assert_eq!(found.unwrap().files, 104, "every block of records was found by hand: {:?}", copy.lost);
    let small = copy.made.values().filter(|made| made.data.get(&0).is_some_and(|data| data == b"hello, world"));
    assert!(small.count() >= 1);
}

#[test]
fn a_missing_log_and_a_damaged_image_leave_what_the_other_holds() {
    let mut store = Store::sample(MemoryKind::Logged);
    let old = Image(store.image());
    store.anchor.generation = 4.into();
    store.edit(SMALL, |inode| inode.mtime = 77);
    let mut new = Image(store.image());
    let log = store.log_device();
    let mtime = |copy: &Copy| copy.made[&b"directory/small"[..]].inode.mtime;
    assert_eq!(mtime(&run([&old, &new], Some(&log), false).0), 77);
    // Without a log the image is copied unchanged, and the loss is named.
    let (copy, _) = run([&old, &new], None, false);
    assert_eq!(mtime(&copy), 77);
    assert!(copy.lost.iter().any(|loss| loss.why.contains("no log")), "{:?}", copy.lost);
    // The newer image loses its superblock, then its anchor; then both images lose theirs.
    new.0[3] ^= 1;
    assert_eq!(mtime(&run([&old, &new], Some(&log), false).0), 4, "the older one is whole");
    new.0[3] ^= 1;
    new.0[PAGE as usize..][..1024].fill(9);
    assert_eq!(mtime(&run([&new, &old], Some(&log), false).0), 4);
    let (copy, found) = run([&new, &nothing()], Some(&log), false);
    assert_eq!(mtime(&copy), 77, "an image without an anchor is better than none");
    assert_eq!(found.unwrap().files, 104);
    assert!(!copy.lost.is_empty());
    assert!(run([&nothing(), &nothing()], Some(&log), false).1.is_none(), "nothing is possible");
}

/// Creates a store with a large file whose data is NEW.
fn with_new() -> Store {
    let mut store = Store::sample(MemoryKind::Logged);
    let leaf = store.word(store.inodes[&LARGE].root.offset() + 16 + 8);
    let at = SlotRef::from_bits(leaf).unwrap().offset() + 16 + 15;
    store.bytes[at.get() as usize] |= 1;
    store.edit(LARGE, |inode| inode.flags = INODE_HAS_NEW);
    store
}

#[test]
fn after_a_failed_flush_new_data_is_lost_and_named() {
    let mut store = with_new();
    let boot_id = [0x5a; 16];
    let image = Image(store.image());
    for (named, is_lost) in [(boot_id, false), (with_loss(boot_id), true)] {
        store.append(RecordKind::Epoch, &[[7; 16], named].concat());
        let (copy, _) = run_after([&image, &nothing()], Some(&store.log_device()), false, &[with_loss(boot_id)]);
        assert_eq!(copy.lost.iter().any(|loss| loss.why.contains("a flush of its bulk device failed")), is_lost);
        assert_eq!(copy.made[&b"large"[..]].data[&0].iter().all(|&byte| byte == 0), is_lost);
    }
}

#[test]
fn new_data_in_doubt_is_named_and_not_copied() {
    for flags in [0, EXTENT_NEW] {
        let (mut store, devices) = two_devices(MemoryKind::Logged);
        map(&mut store, (3 << 32) + 5, flags);
        store.edit(LARGE, |inode| inode.flags = if flags == 0 { inode.flags } else { INODE_HAS_NEW });
        mark(&mut store, devices[1].suspects, 7..8);
        let (copy, _) = run([&Image(store.image()), &nothing()], Some(&store.log_device()), false);
        assert!(copy.lost.iter().any(|loss| loss.why.starts_with("in doubt")), "{:?}", copy.lost);
        assert_eq!(copy.made[&b"large"[..]].data.contains_key(&0), flags == 0);
    }
}

#[test]
fn after_a_power_loss_new_data_is_a_hole() {
    let store = with_new();
    let image = Image(store.image());
    for power_lost in [false, true] {
        let (copy, _) = run([&image, &nothing()], Some(&store.log_device()), power_lost);
        assert_eq!(copy.lost, []);
        assert_eq!(copy.made[&b"large"[..]].data.contains_key(&0), !power_lost);
    }
}
