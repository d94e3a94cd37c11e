//! Stores full of packed data and inodes: they can always be emptied, and then they are empty.
//!
//! Owns: inodes that hardly compress (random times and owners, so that packing makes little room),
//! packing and changes beside removals, options that forbid packing, and blocks that lost their
//! last inode in an earlier life. Left out: stores of inodes that are alike, emptied by one thread
//! (`packed`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Caller, Error, Fs, Ino, Options, ROOT, SetAttr, TimeChange, XattrMode};
use shoal_sim::{Random, due};

use crate::cold::{AGE, Store, caller, cool, options, setup};
use crate::crash::number;
use crate::store::counted::Counted;
use crate::store::{Boot, Setup, Watch, parts};

fn small(kind: MemoryKind) -> Store {
    Store::new(Setup { kind, region_bytes: 150 << 16, ring_bytes: 256 << 10, ..setup() })
}

/// A name, and the directory that it is in.
type Entry = (Ino, String);

/// Makes files until nothing more fits: some with data, and a third with their own owner and times.
fn fill(fs: &Fs, random: &mut Random) -> Vec<Entry> {
    let dirs: Vec<Ino> =
        (0..10).map(|dir| fs.mkdir(&caller(), ROOT, format!("d{dir}").as_bytes(), 0o755).unwrap().ino).collect();
    let mut names = Vec::new();
    loop {
        let (dir, name) = (dirs[names.len() % dirs.len()], format!("name_{:06}", names.len()));
        let who = match names.len() % 3 {
            0 => Caller { uid: random.below(100_000) as u32, gid: random.below(100_000) as u32, ..caller() },
            _ => caller(),
        };
        let Ok(attr) = fs.mknod(&who, dir, name.as_bytes(), 0o644, 0) else { return names };
        names.push((dir, name));
        let bytes = [0, 0, 0, 50, 300, 2000][random.index(6)];
        let changed = fs
            .write(attr.ino, 0, &random.bytes(bytes))
            .and_then(|_| if names.len() % 3 == 1 { fs.setattr(attr.ino, &times(random)).map(drop) } else { Ok(()) });
        if changed.is_err() {
            return names;
        }
    }
}

/// Returns times that have nothing to do with any others.
fn times(random: &mut Random) -> SetAttr {
    let mut time = || Some(TimeChange::At(random.below(1 << 60) as i64));
    SetAttr { atime: time(), mtime: time(), ..Default::default() }
}

fn empty(fs: &Fs, names: &[Entry]) {
    for (dir, name) in names {
        match fs.unlink(*dir, name.as_bytes()) {
            Ok(()) | Err(Error::NotFound) => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
}

/// Makes a change on a full store, which may find no room.
fn change(fs: &Fs, names: &[Entry], random: &mut Random, step: u64) -> Result<(), Error> {
    let (dir, name) = &names[random.index(names.len())];
    if random.below(5) < 2 {
        let made = fs.mknod(&caller(), *dir, format!("w{step}").as_bytes(), 0o644, 0)?;
        let len = random.below(20_000) as usize;
        fs.write(made.ino, 0, &random.bytes(len))?;
        return Ok(());
    }
    let ino = fs.lookup(*dir, name.as_bytes())?.ino;
    match random.below(3) {
        0 => fs.setattr(ino, &SetAttr { uid: Some(random.below(100_000) as u32), ..Default::default() }).map(drop),
        1 => fs.setattr(ino, &times(random)).map(drop),
        _ => fs.setxattr(ino, b"user.a", &random.bytes(500), XattrMode::Any),
    }
}

/// Returns the files that [`change`] may have made in this many steps.
fn made(names: &[Entry], steps: u64) -> Vec<Entry> {
    (0..=steps).flat_map(|step| names[..10].iter().map(move |(dir, _)| (*dir, format!("w{step}")))).collect()
}

#[test]
fn a_removal_finds_room_between_changes_of_a_full_store() {
    let seeds = number("SHOAL_SEEDS").unwrap_or(if crate::crash::deep() { 60 } else { 3 });
    for seed in shoal_sim::Budget::of_a_search().within(0..seeds) {
        let kind = [MemoryKind::Logged, MemoryKind::Battery][seed as usize % 2];
        let mut store = small(kind);
        let fs = store.open_with(Options { pack_load: 100, ..options(Some(Duration::ZERO)) });
        let mut random = Random::new(seed);
        let names = fill(&fs, &mut random);
        fs.compacting().pack_inodes_now().unwrap();
        let order = random.shuffled(names.iter().cloned());
        let (mut refused, mut steps) = (0, 0);
        for (turn, (dir, name)) in order.iter().enumerate().take(1500) {
            if turn < 500 || turn % 8 == 0 {
                for _ in 0..3 {
                    steps += 1;
                    match change(&fs, &names, &mut random, steps) {
                        Err(Error::NoSpace(_)) => refused += 1,
                        Ok(()) | Err(Error::NotFound) => {}
                        Err(error) => panic!("seed {seed}: {error}"),
                    }
                }
            }
            if turn % 50 == 0 {
                fs.compacting().pack_inodes_now().unwrap();
                fs.compacting().compact().unwrap();
            }
            fs.unlink(*dir, name.as_bytes())
                .unwrap_or_else(|error| panic!("seed {seed}, turn {turn}: {name}: {error}"));
        }
        println!("{}: {} files, {refused} of {steps} changes refused", kind.name(), names.len());
        assert!(refused > 0, "the store was not full");
        empty(&fs, &order);
        empty(&fs, &made(&names, steps));
        assert_eq!(fs.usage().inodes, 11);
        store.close(fs);
    }
}

#[test]
fn a_removal_finds_room_beside_threads_that_change_files_and_pack() {
    let mut store = small(MemoryKind::Logged);
    let fs = store.open_with(Options { pack_load: 100, ..options(Some(Duration::ZERO)) });
    let mut random = Random::new(7);
    let names = fill(&fs, &mut random);
    fs.compacting().pack_inodes_now().unwrap();
    let (stop, steps) = (AtomicBool::new(false), AtomicU64::new(0));
    let order = random.shuffled(names.iter().cloned());
    let failed = std::thread::scope(|scope| {
        let (fs, names, stop, steps) = (&fs, &names, &stop, &steps);
        let until_stopped = move |work: &mut dyn FnMut() -> Result<(), Error>| {
            while !stop.load(Ordering::Relaxed) {
                match work() {
                    Ok(()) | Err(Error::NoSpace(_) | Error::NotFound | Error::Stale) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        for thread in 0..2u64 {
            let mut random = Random::new(thread);
            scope.spawn(move || {
                until_stopped(&mut || change(fs, names, &mut random, steps.fetch_add(1, Ordering::Relaxed)));
            });
        }
        scope.spawn(move || {
            until_stopped(&mut || {
                fs.cooling().pack_tick()?;
                fs.compacting().pack_inodes_now()?;
                fs.compacting().compact_step().map(drop)
            });
        });
        let began = std::time::Instant::now();
        let mut unlinks = order.iter().take_while(|_| began.elapsed() < Duration::from_secs(6));
        let failed = unlinks.find_map(|(dir, name)| {
            // Removals must not free more than the others take.
            std::thread::sleep(Duration::from_millis(1));
            fs.unlink(*dir, name.as_bytes()).err().map(|error| format!("{name}: {error}"))
        });
        stop.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, None);
    let steps = steps.into_inner();
    println!("{} files, {steps} changes", names.len());
    empty(&fs, &order);
    empty(&fs, &made(&names, steps));
    assert_eq!(fs.usage().inodes, 11);
    store.close(fs);
}

#[test]
fn a_store_whose_options_forbid_packing_can_be_emptied_though_it_is_full_of_packed_inodes() {
    for (round, later) in due([None, Some(AGE)].into_iter().enumerate(), 2) {
        let mut store = small(MemoryKind::Logged);
        let fs = store.open();
        let mut names = Vec::new();
        let mut dir = ROOT;
        // There are many directories, and a removal changes the record of its directory, so many
        // blocks must be made plain.
        let mut make = |fs: &Fs| -> Result<(), Error> {
            if names.len() % 100 == 0 {
                dir = fs.mkdir(&caller(), ROOT, format!("d{}", names.len()).as_bytes(), 0o755)?.ino;
            }
            let name = format!("f{}", names.len());
            fs.mknod(&caller(), dir, name.as_bytes(), 0o644, 0)?;
            names.push((dir, name));
            Ok(())
        };
        for _ in 0..3 {
            while make(&fs).is_ok() {}
            cool(&fs, &store.clock);
        }
        while make(&fs).is_ok() {}
        assert!(fs.compacting().packed_inodes().unwrap().inodes > 10_000);
        store.close(fs);
        let fs = store.open_with(Options { pack_inodes: false, ..options(later) });
        let mut random = Random::new(round as u64);
        empty(&fs, &random.shuffled(names));
        assert_eq!(fs.usage().inodes, fs.usage().directories);
        store.close(fs);
    }
}

#[test]
fn an_emptied_store_gives_its_blocks_back_also_in_a_later_life() {
    let mut store = small(MemoryKind::Logged);
    let fs = store.open();
    let before = fs.usage().region_used;
    let names: Vec<Entry> = (0..20_000).map(|file| (ROOT, format!("f{file}"))).collect();
    for (dir, name) in &names {
        fs.mknod(&caller(), *dir, name.as_bytes(), 0o644, 0).unwrap();
    }
    cool(&fs, &store.clock);
    let order = Random::new(3).shuffled(names);
    // Each life removes a part of nearly every block, and ends before it has tidied up.
    let mut fs = Some(fs);
    for part in order.chunks(order.len() / 2) {
        let life = fs.take().unwrap_or_else(|| store.open());
        empty(&life, part);
        store.close(life);
    }
    let fs = store.open();
    fs.compacting().compact().unwrap();
    let used = fs.usage().region_used;
    assert!(used < before + (256 << 10), "{used} bytes are used, {before} were at first");
    store.close(fs);
}

/// Each pass over all inodes makes room for a few thousand files, so it must cost little for an
/// inode that it leaves alone.
#[test]
fn a_create_on_a_nearly_full_store_of_packed_files_costs_few_looks_at_others() {
    let mebibytes = number("SHOAL_MEBIBYTES").unwrap_or(16);
    let setup = Setup { region_bytes: mebibytes << 20, bulk_blocks: 0, ..setup() };
    let store = Store::new(setup);
    let boot = Boot::first(true);
    let mut parts = parts(setup, &store.world, boot, &Watch::default(), false, &store.clock).unwrap();
    let counted = Arc::new(Counted { inner: parts.region.memory, reads: AtomicU64::new(0), places: None });
    parts.region.memory = counted.clone();
    let fs = Fs::open(parts, options(Some(AGE))).unwrap().0;
    let (mut dir, mut made) = (ROOT, 0u64);
    // Numbers of files, with the reads of memory by then and the time.
    let mut counts = vec![(0, 0, Instant::now())];
    let last = loop {
        if made.is_multiple_of(1000) {
            match fs.mkdir(&caller(), ROOT, format!("d{made}").as_bytes(), 0o755) {
                Ok(made) => dir = made.ino,
                Err(error) => break error,
            }
            counts.push((made, counted.reads.load(Ordering::Relaxed), Instant::now()));
        }
        let text = format!("{made} reads of a line like every other line\n");
        let bytes = &text.as_bytes().repeat(30)[..1000];
        let file = fs.mknod(&caller(), dir, format!("f{made:07}").as_bytes(), 0o644, 0);
        if let Err(error) = file.and_then(|file| fs.write(file.ino, 0, bytes)) {
            break error;
        }
        made += 1;
        store.clock.advance(50_000);
    };
    assert_eq!(last, Error::NO_SPACE);
    let parts = [(0, 10), (45, 55), (80, 90), (90, 100)].map(|(from, to)| {
        let at = |percent: usize| counts[(counts.len() - 1) * percent / 100];
        let ((first, before, began), (end, reads, ended)) = (at(from), at(to));
        let created = end - first;
        (from, (reads - before) / created, created as f64 / (ended - began).as_secs_f64())
    });
    for (from, reads, rate) in parts {
        println!(
            "{mebibytes} MiB, {made} files, from {from}% on: {reads} reads of memory a file, {rate:.0} files a second"
        );
    }
    // A store of 64 MiB, which has four times as many files, needs 330 reads. It needed 1,430 while
    // all pieces were looked at.
    assert!(mebibytes > 16 || parts[2].1 < 150, "{} reads of memory for each file", parts[2].1);
}
