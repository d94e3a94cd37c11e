//! Packed inodes: the packed table answers as the plain one does, whatever happens between.
//!
//! Every test compares with what was there before packing, or with a store on which nothing is packed, and asks the offline
//! checker, which has a decoder of its own. Crashes between are in `crash`, broken rules in the test `planted`.

use std::sync::Arc;
use std::time::Duration;

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Caller, Fs, Ino, Options, Packing, ROOT, SetAttr};
use shoal_sim::{Random, SimClock, World};

use crate::crash::tree::Tree;
use crate::store::{self, Boot, Setup, Watch};

const AGE: Duration = Duration::from_secs(30);

fn setup() -> Setup {
    Setup { kind: MemoryKind::Battery, region_bytes: 16 << 20, ring_bytes: 1 << 20, bulk_blocks: 0, ..Setup::default() }
}

fn options(pack_age: Option<Duration>) -> Options {
    Options { no_atime: true, pack_age, ..Options::default() }
}

struct Store {
    setup: Setup,
    world: World,
    clock: Arc<SimClock>,
    opening: u64,
}

impl Store {
    fn new(setup: Setup) -> Store {
        let clock = Arc::new(SimClock::new(1_700_000_000_000_000_000));
        Store { setup, world: store::format(setup, 5), clock, opening: 0 }
    }

    fn open_as(&mut self, pack_age: Option<Duration>) -> Fs {
        self.opening += 1;
        let boot = Boot { boot: 1, opening: self.opening, keeps_trimmed: true };
        let opened = store::open_with(self.setup, &self.world, boot, &Watch::default(), options(pack_age), &self.clock);
        opened.unwrap().unwrap().0
    }

    fn open(&mut self) -> Fs {
        self.open_as(Some(AGE))
    }

    fn check(&self) {
        store::check(self.setup, &self.world, false).unwrap();
    }
}

/// Packs until a round is over; time goes on so far that everything is cold.
fn cool(fs: &Fs, clock: &SimClock) -> Packing {
    clock.advance(2 * AGE.as_nanos() as u64);
    let mut all = Packing::default();
    loop {
        let done = fs.pack_inodes_step(7).unwrap();
        all.blocks += done.blocks;
        all.inodes += done.inodes;
        all.bytes_before += done.bytes_before;
        all.bytes_after += done.bytes_after;
        if !done.more {
            return all;
        }
    }
}

fn caller() -> Caller {
    Caller { uid: 10, gid: 20, umask: 0o022, hold: false }
}

fn create(fs: &Fs, name: &str) -> Ino {
    fs.mknod(&caller(), ROOT, name.as_bytes(), 0o644, 0).unwrap().ino
}

fn files(fs: &Fs, clock: &SimClock, count: u64) -> Vec<Ino> {
    (0..count)
        .map(|number| {
            clock.advance(1_000_003);
            create(fs, &format!("file{number}"))
        })
        .collect()
}

#[test]
fn cold_inodes_are_packed_and_nothing_else_changes() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let inos = files(&fs, &store.clock, 500);
    for (number, ino) in inos.iter().enumerate().filter(|(number, _)| number % 3 == 0) {
        fs.write(*ino, 0, &vec![7; number + 1]).unwrap();
    }
    assert_eq!(fs.pack_inodes_step(1000).unwrap().blocks, 0, "they are young");
    let before = Tree::read(&fs).unwrap();
    let free = fs.usage().region_free;
    let done = cool(&fs, &store.clock);
    println!("{done:?}, {} bytes of the region", fs.usage().region_free - free);
    assert!(done.blocks >= 31 && done.inodes >= 500, "{done:?}");
    assert!(fs.usage().region_free > free);
    let packed = fs.packed_inodes().unwrap();
    assert_eq!((packed.blocks, packed.inodes, packed.bytes), (done.blocks, done.inodes, done.bytes_after));
    assert!(Tree::read(&fs).unwrap() == before);
    fs.shutdown().unwrap();
    drop(fs);
    store.check();
    let fs = store.open();
    assert_eq!(fs.packed_inodes().unwrap(), packed);
    assert!(Tree::read(&fs).unwrap() == before);
    assert_eq!(cool(&fs, &store.clock).blocks, 0, "they are packed already");
    fs.setattr(inos[40], &SetAttr { mode: Some(0o600), ..Default::default() }).unwrap();
    assert_eq!(fs.packed_inodes().unwrap().blocks, packed.blocks - 1);
    assert_eq!(fs.getattr(inos[40]).unwrap().mode & 0o7777, 0o600);
    assert_eq!(cool(&fs, &store.clock).blocks, 1);
    fs.shutdown().unwrap();
    drop(fs);
    store.check();
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
            one.compact().unwrap();
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
        assert_eq!(other.packed_inodes().unwrap().blocks, 0);
    }
}

/// One change that `step` names, the same on stores in the same state.
fn change(fs: &Fs, step: u64) {
    let mut random = Random::new(step);
    let name = |random: &mut Random| format!("n{}", random.below(120)).into_bytes();
    let (one, other) = (name(&mut random), name(&mut random));
    let found = fs.lookup(ROOT, &one, false).map(|attr| attr.ino);
    let who = Caller { uid: random.below(40) as u32, gid: random.below(3) as u32, ..caller() };
    let outcome = match (random.below(9), found) {
        (0..3, _) => fs.mknod(&who, ROOT, &one, [0o644, 0o600, 0o755][random.below(3) as usize], 0).map(drop),
        (3, _) => fs.unlink(ROOT, &one),
        (4, _) => fs.rename(ROOT, &one, ROOT, &other, shoal_fs::RenameMode::Replace),
        (5, Ok(ino)) => fs.write(ino, random.below(100), &vec![1; random.below(3000) as usize]).map(drop),
        (6, Ok(ino)) => fs.setattr(ino, &SetAttr { uid: Some(who.uid), ..Default::default() }).map(drop),
        (7, Ok(ino)) => fs.setxattr(ino, b"user.a", &vec![2; random.below(200) as usize], shoal_fs::XattrMode::Any),
        (8, Ok(ino)) => fs.link(ino, ROOT, &other, false).map(drop),
        (_, Ok(_)) | (_, Err(_)) => fs.mkdir(&who, ROOT, &one, 0o750).map(drop),
    };
    // What is refused is refused on both.
    let _ = outcome;
}
