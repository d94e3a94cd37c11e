//! Packed directories: the same names in the same order whatever form their buckets have, in less
//! room, and an error for every flipped bit.
//!
//! Left out: crashes (`enumeration`, whose trees have directories of every layout), and changes
//! beside packing (`crowd`, `two_actors`).

use std::collections::BTreeMap;

use shoal_format::inode::Layout;
use shoal_format::superblock::{FEATURE_BUCKETS, MemoryKind};
use shoal_fs::{Error, Fs, Ino, Options, Patience, ROOT, RenameMode};
use shoal_media::PersistentMemory;
use shoal_sim::Random;

use crate::cold::{AGE, Store, caller, options, setup};
use crate::crash::deep;
use crate::crash::tree::Tree;
use crate::data_store::gate::each_seed;
use crate::store::Setup;

fn mkdir(fs: &Fs, name: &str) -> Ino {
    fs.mkdir(&caller(), ROOT, name.as_bytes(), 0o755).unwrap().ino
}

fn mknod(fs: &Fs, dir: Ino, name: &[u8]) -> Result<Ino, Error> {
    fs.mknod(&caller(), dir, name, 0o644, 0).map(|attr| attr.ino)
}

fn fill(fs: &Fs, dir: Ino, files: u64) {
    for number in 0..files {
        mknod(fs, dir, format!("a-file-{number}.txt").as_bytes()).unwrap();
    }
}

/// Returns names, numbers and cookies in the order of the directory, from a cookie on.
fn list(fs: &Fs, dir: Ino, from: u64) -> Vec<(Vec<u8>, Ino, u64)> {
    let mut all = Vec::new();
    fs.readdir(dir, from, &mut |entry| {
        all.push((entry.name.to_vec(), entry.ino, entry.next));
        true
    })
    .unwrap();
    all
}

fn pack(fs: &Fs) -> u64 {
    fs.cooling().pack_all(&mut |_, _| {}).unwrap().buckets
}

fn entry_bytes(fs: &Fs) -> u64 {
    fs.cooling().packing_report().unwrap().entry_bytes
}

#[test]
fn directories_of_every_size_keep_their_names_and_order_and_take_less() {
    let mut store = Store::new(setup());
    let fs = store.open_as(None);
    let sizes = [1, 2, 5, 20, 40, 300, 5000];
    let dirs: Vec<Ino> = sizes.iter().map(|size| mkdir(&fs, &format!("dir{size}"))).collect();
    for (&dir, &size) in dirs.iter().zip(&sizes) {
        fill(&fs, dir, size);
    }
    let (before, plain) = (dirs.iter().map(|&dir| list(&fs, dir, 0)).collect::<Vec<_>>(), entry_bytes(&fs));
    let tree = Tree::read(&fs).unwrap();
    assert!(pack(&fs) > 100);
    assert_eq!(pack(&fs), 0, "nothing is left to do");
    let packed = entry_bytes(&fs);
    println!("{plain} bytes, packed {packed}: {} an entry", packed / sizes.iter().sum::<u64>());
    assert!(packed * 2 < plain, "{packed} of {plain}");
    assert!(Tree::read(&fs).unwrap() == tree);
    for (dir, entries) in dirs.iter().zip(&before) {
        assert_eq!(&list(&fs, *dir, 0), entries);
        // A listing goes on from any position that was handed out before the packing.
        for (at, entry) in entries.iter().enumerate().step_by(37) {
            assert_eq!(list(&fs, *dir, entry.2), entries[at + 1..]);
        }
        assert_eq!(fs.lookup(*dir, b"a-file-x.txt").unwrap_err(), Error::NotFound);
    }
    store.close(fs);
    // Names that are removed from packed buckets leave nothing.
    let fs = store.open_as(None);
    for (&dir, entries) in dirs.iter().zip(&before) {
        for (name, ..) in entries.iter().filter(|entry| !entry.0.starts_with(b".")) {
            fs.unlink(dir, name).unwrap();
        }
        let placed = fs.placement(dir).unwrap();
        assert_eq!((placed.inode.layout, placed.inode.allocated), (Layout::Empty, 0));
    }
    store.close(fs);
}

/// The names that a directory should have, and the operations on it.
struct Walk<'a> {
    fs: &'a Fs,
    dir: Ino,
    names: BTreeMap<Vec<u8>, Ino>,
    random: Random,
    letters: u64,
}

impl Walk<'_> {
    fn any(&mut self) -> Option<Vec<u8>> {
        let len = self.names.len() as u64;
        (len > 0).then(|| self.names.keys().nth(self.random.below(len) as usize).unwrap().clone())
    }

    fn name(&mut self) -> Vec<u8> {
        let longest = [4, 30, 255][self.random.below(3) as usize];
        let len = 1 + self.random.below(longest);
        (0..len).map(|_| b'a' + self.random.below(self.letters) as u8).collect()
    }

    fn create(&mut self) {
        let name = self.name();
        match mknod(self.fs, self.dir, &name) {
            Ok(ino) => assert_eq!(self.names.insert(name, ino), None),
            Err(error) => assert!(error == Error::Exists && self.names.contains_key(&name), "{error}"),
        }
    }

    fn unlink(&mut self) {
        let Some(name) = self.any() else { return };
        self.fs.unlink(self.dir, &name).unwrap();
        self.names.remove(&name);
    }

    /// Renames a file within the directory: to a new name, over another one, or in exchange.
    fn rename(&mut self) {
        let Some(from) = self.any() else { return };
        let to = if self.random.below(2) == 0 { self.name() } else { self.any().unwrap() };
        let exchange = self.names.contains_key(&to) && self.random.below(2) == 0;
        let mode = if exchange { RenameMode::Exchange } else { RenameMode::Replace };
        let whiteout = (!exchange && from != to && self.random.below(4) == 0).then(caller);
        self.fs.rename_with(Patience::Waits, (self.dir, &from), (self.dir, &to), mode, whiteout.as_ref()).unwrap();
        if from == to {
            return;
        }
        let moved = self.names.remove(&from).unwrap();
        let other = self.names.insert(to, moved);
        if exchange {
            self.names.insert(from, other.unwrap());
        } else if whiteout.is_some() {
            let ino = self.fs.lookup(self.dir, &from).unwrap().ino;
            self.names.insert(from, ino);
        }
    }

    fn step(&mut self, grows: bool) {
        match self.random.below(10) {
            0..5 if grows => self.create(),
            0..5 => self.unlink(),
            5..7 => self.unlink(),
            7 => self.create(),
            _ => self.rename(),
        }
    }

    fn compare(&self) {
        let listed: BTreeMap<_, _> = list(self.fs, self.dir, 2).into_iter().map(|(name, ino, _)| (name, ino)).collect();
        assert_eq!(listed, self.names);
        for (name, ino) in &self.names {
            assert_eq!(self.fs.lookup(self.dir, name).unwrap().ino, *ino);
        }
        assert_eq!(self.fs.getattr(self.dir).unwrap().size, self.names.len() as u64);
    }
}

#[test]
fn changes_of_packed_directories_agree_with_a_map() {
    each_seed(if deep() { 600 } else { 40 }, |kind, seed| {
        let mut store = Store::new(Setup { kind, ..setup() });
        let fs = store.open_as(None);
        let dir = mkdir(&fs, "dir");
        let mut random = Random::new(seed);
        let (letters, rounds) = (1 + random.below(26), 4 + random.below(6));
        let mut walk = Walk { fs: &fs, dir, names: BTreeMap::new(), random, letters };
        for round in 0..rounds {
            let steps = 20 + walk.random.below(500);
            (0..steps).for_each(|_| walk.step(round * 2 < rounds));
            walk.compare();
            pack(&fs);
            walk.compare();
            if round % 3 == 2 {
                fs.sync().unwrap();
                store.check();
            }
        }
        store.close(fs);
    });
}

#[test]
fn a_flipped_bit_in_a_packed_bucket_is_an_error_and_never_another_name() {
    let mut store = Store::new(setup());
    let fs = store.open_as(None);
    let dir = mkdir(&fs, "dir");
    let inos: Vec<Ino> = (0..12).map(|n| mknod(&fs, dir, format!("name{n}").as_bytes()).unwrap()).collect();
    assert!(pack(&fs) > 0);
    let root = fs.placement(dir).unwrap().inode.root;
    let memory = store.world.memory(0);
    let mut head = [0; 2];
    memory.read(root.offset().get(), &mut head);
    for bit in 0..u64::from(u16::from_le_bytes(head)) * 8 {
        let at = root.offset().get() + bit / 8;
        let mut byte = [0];
        memory.read(at, &mut byte);
        memory.write(at, &[byte[0] ^ 1 << (bit % 8)]);
        for n in 0..12 {
            let found = fs.lookup(dir, format!("name{n}").as_bytes());
            assert!(matches!(found, Err(Error::Corrupt(_))), "bit {bit}: {found:?}");
        }
        assert!(matches!(fs.readdir(dir, 2, &mut |_| true), Err(Error::Corrupt(_))));
        assert!(matches!(fs.unlink(dir, b"name3"), Err(Error::Corrupt(_))));
        assert!(matches!(mknod(&fs, dir, b"new"), Err(Error::Corrupt(_))));
        memory.write(at, &byte);
    }
    for (n, ino) in inos.iter().enumerate() {
        assert_eq!(fs.lookup(dir, format!("name{n}").as_bytes()).unwrap().ino, *ino);
    }
    store.close(fs);
}

#[test]
fn an_older_store_gets_the_feature_with_its_first_packed_bucket() {
    for kind in [MemoryKind::Battery, MemoryKind::Dax] {
        let mut store = Store::new(Setup { kind, ..setup() });
        let fs = store.open_as(None);
        fill(&fs, ROOT, 30);
        fs.shutdown().unwrap();
        drop(fs);
        store.without_feature(FEATURE_BUCKETS);
        let fs = store.open_as(None);
        let before = Tree::read(&fs).unwrap();
        assert!(!fs.region().has_feature(FEATURE_BUCKETS));
        assert!(pack(&fs) > 0);
        assert!(fs.region().has_feature(FEATURE_BUCKETS) && Tree::read(&fs).unwrap() == before);
        store.close(fs);
    }
}

#[test]
fn background_work_packs_directories_that_have_cooled_and_no_others() {
    let mut store = Store::new(setup());
    let fs = store.open_as(Some(AGE));
    let dir = mkdir(&fs, "dir");
    fill(&fs, dir, 500);
    let (plain, ticks) = (entry_bytes(&fs), |seconds: u64| {
        for _ in 0..seconds {
            store.clock.advance(1_000_000_000);
            fs.cooling().pack_tick().unwrap();
        }
    });
    ticks(AGE.as_secs() - 2);
    assert_eq!(entry_bytes(&fs), plain, "it is young");
    ticks(20);
    assert!(entry_bytes(&fs) * 2 < plain);
    let inode = fs.placement(dir).unwrap().inode;
    mknod(&fs, dir, b"new").unwrap();
    assert!(fs.placement(dir).unwrap().inode.allocated > inode.allocated, "its bucket is plain again");
    ticks(AGE.as_secs() * 2);
    assert!(entry_bytes(&fs) * 2 < plain);
    store.close(fs);
    // Nothing is packed on a store that must not pack its metadata.
    let fs = store.open_with(Options { pack_inodes: false, ..options(Some(AGE)) });
    mknod(&fs, ROOT, b"new").unwrap();
    let before = entry_bytes(&fs);
    assert_eq!(pack(&fs), 0);
    assert_eq!(entry_bytes(&fs), before);
    store.close(fs);
}

#[test]
fn names_can_be_removed_from_packed_directories_of_a_full_store() {
    for kind in [MemoryKind::Battery, MemoryKind::Logged] {
        let mut store = Store::new(Setup { kind, region_bytes: 4 << 20, ring_bytes: 256 << 10, ..setup() });
        let fs = store.open_as(None);
        let dir = mkdir(&fs, "dir");
        fill(&fs, dir, 3000);
        assert!(pack(&fs) > 50);
        let big = mknod(&fs, ROOT, b"big").unwrap();
        let mut at = 0;
        for step in [30_000, 1000, 10] {
            while let Ok(done) = fs.write(big, at, &vec![7; step]) {
                at += done as u64;
            }
        }
        // Names take the room that is left, and then there is none for a bucket.
        let refused = (0..).find_map(|n| mknod(&fs, dir, format!("new{n}").as_bytes()).err());
        assert_eq!(refused, Some(Error::NO_SPACE));
        let mut random = Random::new(3);
        let mut names = list(&fs, dir, 2);
        while !names.is_empty() {
            let (name, ..) = names.swap_remove(random.below(names.len() as u64) as usize);
            fs.unlink(dir, &name).unwrap();
        }
        assert_eq!(fs.placement(dir).unwrap().inode.allocated, 0);
        store.close(fs);
    }
}
