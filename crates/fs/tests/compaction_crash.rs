//! Compaction beside everything else: crashes in the middle of it, random operations between its steps, other threads.
//!
//! Compaction must not be seen, so the oracle is simple: at any moment, the recovered tree is the
//! tree that was there, and the checker finds every slot allocated exactly once. A failure prints
//! its seed:
//! `SHOAL_SEED=<n> cargo test --release -p shoal-fs --test all compaction_crash`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::{CALLER, Setup, check, format, open_at};
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Attr, Error, Fs, Ino, ROOT, SetAttr, XattrMode};
use shoal_sim::{Budget, Limits, Random, SimClock, World};

const KINDS: [MemoryKind; 3] = [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Dax];

fn deep() -> bool {
    std::env::var_os("SHOAL_DEEP").is_some()
}

fn setup(kind: MemoryKind) -> Setup {
    Setup {
        kind,
        region_bytes: 160 << 16,
        saved: false,
        ring_bytes: 512 << 10,
        bulk_blocks: 40,
        threshold: 200_000,
        cached: false,
    }
}

fn clock() -> Arc<SimClock> {
    Arc::new(SimClock::new(5_000_000_000))
}

/// Everything a store shows: attributes, contents and extended attributes by path.
type Tree = BTreeMap<Vec<u8>, (Attr, Vec<u8>, Xattrs)>;
type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

fn read(fs: &Fs) -> Result<Tree, Error> {
    fn walk(fs: &Fs, path: Vec<u8>, ino: Ino, tree: &mut Tree) -> Result<(), Error> {
        let attr = fs.getattr(ino)?;
        let mut xattrs = Vec::new();
        for name in fs.listxattr(ino)?.split(|&b| b == 0).filter(|name| !name.is_empty()) {
            xattrs.push((name.to_vec(), fs.getxattr(ino, name)?));
        }
        let mut data = Vec::new();
        let mut children = Vec::new();
        match attr.mode & 0o170000 {
            0o040000 => fs.readdir(ino, 0, &mut |entry| {
                if entry.name != b"." && entry.name != b".." {
                    children.push((entry.name.to_vec(), entry.ino));
                }
                true
            })?,
            0o120000 => data = fs.readlink(ino)?,
            _ => {
                data = vec![0; attr.size as usize];
                fs.read(ino, 0, &mut data)?;
            }
        }
        tree.insert(path.clone(), (attr, data, xattrs));
        for (name, child) in children {
            walk(fs, [&path[..], b"/", &name].concat(), child, tree)?;
        }
        Ok(())
    }
    let mut tree = Tree::new();
    walk(fs, Vec::new(), ROOT, &mut tree)?;
    Ok(tree)
}

fn bytes(tag: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Random::new(tag).fill(&mut out);
    out
}

/// Makes files of every layout, many of each size, and deletes most of them again. This leaves
/// sparse segments of many classes.
fn sparse(fs: &Fs, random: &mut Random) -> Result<(), Error> {
    let dirs: Vec<Ino> = (0..3)
        .map(|n| fs.mkdir(&CALLER, ROOT, format!("dir{n}").as_bytes(), 0o755).map(|a| a.ino))
        .collect::<Result<_, _>>()?;
    let small: Vec<Ino> = (0..70)
        .map(|n| fs.mkdir(&CALLER, dirs[2], format!("small{n}").as_bytes(), 0o755).map(|a| a.ino))
        .collect::<Result<_, _>>()?;
    let lens = [0, 40, 300, 900, 900, 900, 3000, 3900];
    for number in 0..1800u64 {
        let dir = if number % 9 == 0 { small[random.below(70) as usize] } else { dirs[random.below(2) as usize] };
        let name = format!("a-file-with-a-name-{number}");
        if number % 11 == 0 {
            fs.symlink(&CALLER, dir, name.as_bytes(), &[b'a' + (number % 20) as u8; 200])?;
            continue;
        }
        let ino = fs.mknod(&CALLER, dir, name.as_bytes(), 0o644, 0)?.ino;
        let len = if number % 100 == 5 { 70_000 } else { lens[random.below(8) as usize] };
        fs.write(ino, 0, &bytes(number, len))?;
        if number % 5 == 0 {
            fs.setxattr(ino, b"user.x", &bytes(number, 500), XattrMode::Any)?;
        }
    }
    // Large files whose maps have leaves.
    for number in 0..2u64 {
        let ino = fs.mknod(&CALLER, ROOT, format!("large{number}").as_bytes(), 0o644, 0)?.ino;
        fs.write(ino, 300_000, &bytes(number, 100))?;
        fs.fallocate(ino, 0, 0, 600_000)?;
    }
    for (parent, names) in dirs.iter().chain(&small).map(|&dir| (dir, listing(fs, dir))) {
        for (name, kind) in names {
            if kind != 4 && random.below(100) < 85 {
                fs.unlink(parent, &name)?;
            }
        }
    }
    Ok(())
}

fn listing(fs: &Fs, dir: Ino) -> Vec<(Vec<u8>, u8)> {
    let mut names = Vec::new();
    let outcome = fs.readdir(dir, 2, &mut |entry| {
        names.push((entry.name.to_vec(), entry.kind));
        true
    });
    outcome.expect("a directory can be listed");
    names
}

fn is_sound(setup: Setup, world: &World, boot: u8, opening: u32, expected: &Tree) -> Result<(), String> {
    let (fs, _) = open_at(setup, world, boot, opening, &clock())?;
    let found = read(&fs).map_err(|e| format!("reading: {e}"))?;
    if found != *expected {
        let path = expected.iter().find(|(path, node)| found.get(*path) != Some(node)).map(|(path, _)| path);
        return Err(format!("another tree, first at {:?}", path.map(|p| String::from_utf8_lossy(p).into_owned())));
    }
    check(setup, world, false)?;
    // The store can be compacted further.
    fs.compacting().compact().map_err(|e| format!("compacting again: {e}"))?;
    if read(&fs).map_err(|e| format!("reading: {e}"))? != *expected {
        return Err("another tree after compacting again".into());
    }
    check(setup, world, false).map(drop)
}

#[test]
fn a_crash_at_any_moment_of_compaction_leaves_the_tree_as_it_was() {
    for kind in KINDS {
        let setup = setup(kind);
        let world = format(setup, 3);
        let (fs, _) = open_at(setup, &world, 1, 1, &clock()).expect("a new store opens");
        sparse(&fs, &mut Random::new(17)).expect("there is room");
        fs.sync().expect("it is synced");
        let expected = read(&fs).expect("it can be read");
        let free = fs.region().free_segments();
        world.record(true);
        world.record_stores(kind.has_ring());
        let done = fs.compacting().compact().expect("it can be compacted");
        world.record(false);
        let gained = fs.region().free_segments() - free;
        assert!(done.moved > 100 && done.blocks > 3 && gained > 10, "{done:?}, {gained} segments gained");
        assert!(read(&fs).expect("it can be read") == expected, "another tree");
        let mut points = world.points();
        points.push(world.snapshot());
        let most = if deep() { 600 } else { 24 };
        let every = points.len().div_ceil(most).max(1);
        let (mut states, all) = (0, points.len());
        for point in Budget::of_a_part(KINDS.len() as u32).within(points.into_iter().rev().step_by(every)) {
            let limits = Limits { subset_units: 1, torn: 1, each: 0, samples: 1 };
            let crashed = point.process_crash();
            let losses = point.power_losses(&limits).take(if deep() { 20 } else { 2 });
            for (boot, state) in std::iter::once((1, crashed)).chain(losses.map(|state| (2, state))) {
                states += 1;
                is_sound(setup, &state.open(), boot, 2, &expected)
                    .unwrap_or_else(|error| panic!("{}: {}: {error}", kind.name(), state.name()));
            }
        }
        println!("{}: {done:?}, {gained} segments gained, {states} states of {all} moments", kind.name());
    }
}

/// Contents of a file of the random test.
#[derive(Clone, PartialEq, Eq)]
struct File {
    ino: Ino,
    data: Vec<u8>,
    xattr: Option<Vec<u8>>,
}

struct Walk {
    setup: Setup,
    world: World,
    clock: Arc<SimClock>,
    fs: Fs,
    random: Random,
    files: BTreeMap<Vec<u8>, File>,
    dirs: Vec<Ino>,
    /// Highest generation seen of each number.
    generations: BTreeMap<Ino, u32>,
    openings: u32,
    moved: u64,
    blocks: u64,
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let mut random = Random::new(seed);
        let setup = Setup { region_bytes: (110 + random.below(40)) << 16, ..setup(KINDS[random.below(3) as usize]) };
        let world = format(setup, seed);
        let clock = clock();
        let (fs, _) = open_at(setup, &world, 1, 1, &clock).expect("a new store opens");
        let dirs = (0..3)
            .map(|n| fs.mkdir(&CALLER, ROOT, format!("{n}").as_bytes(), 0o755).expect("there is room").ino)
            .collect();
        let (files, generations) = (BTreeMap::new(), BTreeMap::new());
        Walk { setup, world, clock, fs, random, files, dirs, generations, openings: 1, moved: 0, blocks: 0 }
    }

    fn place(&self, name: &[u8]) -> Ino {
        self.dirs[name[1] as usize % self.dirs.len()]
    }

    fn any(&mut self) -> Option<Vec<u8>> {
        let count = self.files.len() as u64;
        (count > 0).then(|| self.files.keys().nth(self.random.below(count) as usize).expect("counted").clone())
    }

    fn len(&mut self) -> usize {
        match self.random.below(60) {
            0 => 40_000 + self.random.below(90_000) as usize,
            1..4 => 0,
            4..15 => self.random.below(9000) as usize,
            _ => self.random.below(1500) as usize,
        }
    }

    /// Returns nothing if the store has no room.
    fn room<T>(outcome: Result<T, Error>) -> Option<T> {
        match outcome {
            Ok(value) => Some(value),
            Err(Error::NoSpace(_)) => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn create(&mut self) {
        let name =
            format!("{:04}-{}", self.random.below(4000), "n".repeat(self.random.below(40) as usize)).into_bytes();
        if self.files.contains_key(&name) {
            return;
        }
        let (dir, len) = (self.place(&name), self.len());
        let Some(attr) = Self::room(self.fs.mknod(&CALLER, dir, &name, 0o644, 0)) else { return };
        let last = self.generations.insert(attr.ino, attr.generation);
        assert!(
            last.is_none_or(|last| last < attr.generation),
            "inode {}: {} after {last:?}",
            attr.ino,
            attr.generation
        );
        let mut data = bytes(self.random.below(1 << 40), len);
        let written = Self::room(self.fs.write(attr.ino, 0, &data)).unwrap_or(0);
        data.truncate(written);
        self.files.insert(name, File { ino: attr.ino, data, xattr: None });
    }

    fn change(&mut self) {
        let Some(name) = self.any() else { return };
        let len = self.len();
        let (what, at, tag) = (self.random.below(4), self.random.below(1 << 20), self.random.below(1 << 40));
        let file = self.files.get_mut(&name).expect("it is there");
        match what {
            0 => {
                let at = at as usize % (file.data.len() + 1);
                let piece = bytes(tag, len);
                let written = Self::room(self.fs.write(file.ino, at as u64, &piece)).unwrap_or(0);
                file.data.resize(file.data.len().max(at + written), 0);
                file.data[at..at + written].copy_from_slice(&piece[..written]);
            }
            1 => {
                let size = at as usize % (file.data.len() + 3000);
                let change = SetAttr { size: Some(size as u64), ..SetAttr::default() };
                if Self::room(self.fs.setattr(file.ino, &change)).is_some() {
                    file.data.resize(size, 0);
                }
            }
            _ => {
                let value = bytes(tag, len.min(3000));
                if Self::room(self.fs.setxattr(file.ino, b"user.x", &value, XattrMode::Any)).is_some() {
                    file.xattr = Some(value);
                }
            }
        }
    }

    fn remove(&mut self) {
        if let Some(name) = self.any() {
            self.fs.unlink(self.place(&name), &name).expect("removing always works");
            self.files.remove(&name);
        }
    }

    fn verify(&self) -> Result<(), String> {
        for (name, file) in &self.files {
            let what = |e: &dyn std::fmt::Display| format!("{}: {e}", String::from_utf8_lossy(name));
            let attr = self.fs.lookup(self.place(name), name).map_err(|e| what(&e))?;
            let mut data = vec![0; file.data.len() + 1];
            let len = self.fs.read(attr.ino, 0, &mut data).map_err(|e| what(&e))?;
            let xattr = match self.fs.getxattr(attr.ino, b"user.x") {
                Ok(value) => Some(value),
                Err(Error::NoAttribute) => None,
                Err(error) => return Err(what(&error)),
            };
            if attr.ino != file.ino || data[..len] != file.data[..] || xattr != file.xattr {
                return Err(what(&"not what it was"));
            }
        }
        let listed: usize = self.dirs.iter().map(|&dir| listing(&self.fs, dir).len()).sum();
        if listed != self.files.len() {
            return Err(format!("{listed} names, expected {}", self.files.len()));
        }
        Ok(())
    }

    fn crash(&mut self) -> Result<(), String> {
        self.world = self.world.snapshot().process_crash().open();
        self.openings += 1;
        self.fs = open_at(self.setup, &self.world, 1, self.openings, &self.clock)?.0;
        Ok(())
    }

    fn step(&mut self, deleting: bool) -> Result<(), String> {
        let turn = self.random.below(60);
        match turn {
            0..30 if deleting => self.remove(),
            0..35 => self.create(),
            35..45 => self.change(),
            45..47 => {
                let done = self.fs.compacting().compact().map_err(|e| e.to_string())?;
                self.moved += done.moved;
                self.blocks += done.blocks;
            }
            47 if self.random.below(10) == 0 => self.crash()?,
            47 => self.fs.checkpoint().map_err(|e| e.to_string())?,
            48 => {
                self.clock.advance(100_000_000 * self.random.below(60));
                self.fs
                    .upkeep()
                    .tick()
                    .and_then(|()| self.fs.compacting().compact_tick())
                    .map_err(|e| e.to_string())?;
            }
            _ => {
                for _ in 0..2 {
                    if deleting { self.remove() } else { self.create() }
                }
            }
        }
        Ok(())
    }
}

#[test]
fn random_operations_between_steps_of_compaction_agree_with_a_plain_model() {
    let only: Option<u64> = std::env::var("SHOAL_SEED").ok().map(|seed| seed.parse().expect("SHOAL_SEED is a number"));
    let seeds = only.map_or(1..if deep() { 400 } else { 9 }, |seed| seed..seed + 1);
    let (mut moved, mut blocks) = (0, 0);
    let is_part = only.is_some() || Budget::of_a_search().is_limited();
    for seed in Budget::of_a_search().within(seeds) {
        let mut walk = Walk::new(seed);
        for step in 0..4000 {
            let outcome = walk.step(step / 1300 % 2 == 1);
            let outcome = outcome.and_then(|()| if step % 400 == 399 { walk.verify() } else { Ok(()) });
            let outcome = outcome.and_then(|()| {
                if step % 800 == 799 { check(walk.setup, &walk.world, false).map(drop) } else { Ok(()) }
            });
            outcome.unwrap_or_else(|e| panic!("{:?}, step {step}: {e}; again with SHOAL_SEED={seed}", walk.setup));
        }
        moved += walk.moved;
        blocks += walk.blocks;
    }
    println!("{moved} pieces moved, {blocks} inode blocks given back");
    // How far a search with a time limit gets depends on the machine.
    let least = if is_part { (0, 0) } else { (1000, 10) };
    assert!(moved >= least.0 && blocks >= least.1, "{moved} pieces moved, {blocks} inode blocks given back");
}

#[test]
fn threads_beside_compaction_find_what_they_wrote() {
    for round in Budget::of_a_search().within(0..if deep() { 60 } else { 6 }) {
        let setup = Setup { region_bytes: 200 << 16, ..setup(KINDS[round as usize % 3]) };
        let world = format(setup, round);
        let (fs, _) = open_at(setup, &world, 1, 1, &clock()).expect("a new store opens");
        let running = AtomicBool::new(true);
        let moved = std::thread::scope(|scope| {
            let compacting = scope.spawn(|| {
                let mut moved = 0;
                while running.load(Ordering::Relaxed) {
                    moved += fs.compacting().compact().expect("it can be compacted").moved;
                    fs.region().discard_free();
                    std::thread::yield_now();
                }
                moved
            });
            let workers: Vec<_> = (0..3u64)
                .map(|number| {
                    let fs = &fs;
                    scope.spawn(move || {
                        let mut random = Random::new(round << 8 | number);
                        let dir = fs.mkdir(&CALLER, ROOT, format!("{number}").as_bytes(), 0o755).expect("room").ino;
                        let mut files: BTreeMap<u64, (Ino, Vec<u8>)> = BTreeMap::new();
                        for step in 0..4000u64 {
                            if step % 1000 < 600 {
                                let name = format!("file-{number}-{step}");
                                let outcome = fs.mknod(&CALLER, dir, name.as_bytes(), 0o644, 0).and_then(|attr| {
                                    let data = bytes(step, [300, 900, 2000][step as usize % 3]);
                                    let len = fs.write(attr.ino, 0, &data)?;
                                    files.insert(step, (attr.ino, data[..len].to_vec()));
                                    Ok(())
                                });
                                match outcome {
                                    Err(Error::NoSpace(_)) | Ok(()) => {}
                                    Err(error) => panic!("round {round}, step {step}: {error}"),
                                }
                                if outcome == Err(Error::NO_SPACE) && !files.contains_key(&step) {
                                    let _ = fs.unlink(dir, name.as_bytes());
                                }
                            } else {
                                let at = random.below(files.len().max(1) as u64) as usize;
                                let Some((&key, _)) = files.iter().nth(at) else { continue };
                                let (ino, data) = files.remove(&key).expect("found");
                                let mut found = vec![0; data.len() + 1];
                                assert_eq!(fs.read(ino, 0, &mut found), Ok(data.len()), "round {round}");
                                assert!(found[..data.len()] == data[..], "round {round}: file {key} changed");
                                fs.unlink(dir, format!("file-{number}-{key}").as_bytes()).expect("it is there");
                            }
                        }
                        for (key, (ino, data)) in files {
                            let mut found = vec![0; data.len() + 1];
                            assert_eq!(fs.read(ino, 0, &mut found), Ok(data.len()), "round {round}");
                            assert!(found[..data.len()] == data[..], "round {round}: file {key} changed");
                        }
                    })
                })
                .collect();
            let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            running.store(false, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.expect("a worker's own message is above"));
            compacting.join().expect("compaction goes on")
        });
        println!("{}: {moved} pieces moved beside three threads", setup.kind.name());
        assert!(moved > 50, "only {moved} pieces moved");
        let expected = read(&fs).expect("it can be read");
        check(setup, &world, false).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let after = world.snapshot().process_crash().open();
        is_sound(setup, &after, 1, 2, &expected).unwrap_or_else(|e| panic!("round {round}, after a crash: {e}"));
    }
}
