//! Small synchronous writes of large files that an fsync puts into the log.
//!
//! Owns: scenes that the enumeration of crashes does not reach, with counts that show that a page
//! was absorbed. Left out: crashes at every point (`enumeration`).

use std::sync::Arc;

use shoal_format::BULK_BLOCK;
use shoal_format::superblock::MemoryKind::{self, Battery, Logged};
use shoal_fs::{Fs, Ino, Options, ROOT};
use shoal_sim::{CrashPoint, Limits, SimClock, World, WorldState};

use crate::devices::{create, read};
use crate::store::{Boot, Setup, Watch, check, format, open_with};

const PAGE: u64 = 4096;

/// A store behind a cache with a large file, and with an area.
struct Scene {
    setup: Setup,
    world: World,
    boot: Boot,
    clock: Arc<SimClock>,
    fs: Fs,
    file: Ino,
}

fn options(place: u64) -> Options {
    Options { no_atime: true, pack_age: None, bulk_place: place, ..Options::default() }
}

/// Returns the state in which nothing is left that no flush has covered.
fn power_loss(point: &CrashPoint) -> WorldState {
    let limits = Limits { subset_units: 0, torn: 0, each: 0, samples: 0 };
    point.power_losses(&limits).next().expect("there is a state")
}

impl Scene {
    fn new(kind: MemoryKind) -> Scene {
        let setup = Setup { cached: true, ..Setup::tight(kind) };
        let world = format(setup, 7).snapshot().process_crash().open();
        let (boot, clock) = (Boot::first(false), Arc::new(SimClock::new(3_600_000_000_000)));
        let (fs, _) = open_with(setup, &world, boot, &Watch::default(), options(5), &clock).unwrap().unwrap();
        let file = create(&fs, b"file");
        assert_eq!(fs.write(file, 0, &[1; 2 * BULK_BLOCK as usize]), Ok(2 * BULK_BLOCK as usize));
        fs.fsync(file).unwrap();
        assert_eq!(fs.devices().absorbed_bytes(), 0, "that was too much");
        Scene { setup, world, boot, clock, fs, file }
    }

    /// Overwrites a page, which the next fsync absorbs.
    fn overwrite(&self, page: u64, byte: u8) {
        assert_eq!(self.fs.write(self.file, page * PAGE, &[byte; PAGE as usize]), Ok(PAGE as usize));
    }

    fn byte(&self, page: u64) -> u8 {
        let found = read(&self.fs, self.file, page * PAGE, PAGE as usize).unwrap();
        assert!(found.iter().all(|&byte| byte == found[0]), "page {page} is torn");
        found[0]
    }

    /// Ends the process, or the machine, and opens the store again with its device in this place.
    fn again(self, power: bool, place: u64) -> Scene {
        let crashed = self.world.snapshot();
        let state = if power { power_loss(&crashed) } else { crashed.process_crash() };
        let (world, boot) = (state.open(), self.boot.after(power));
        let opened = open_with(self.setup, &world, boot, &Watch::default(), options(place), &self.clock);
        let (fs, _) = opened.unwrap().unwrap();
        Scene { world, boot, fs, ..self }
    }
}

/// Tests that an fsync of a page needs no flush of the device, and that the page survives.
pub fn absorbed(kind: MemoryKind) {
    let mut scene = Scene::new(kind);
    for (round, power) in [(0, false), (1, true), (2, true)] {
        let byte = 10 + round;
        scene.overwrite(3, byte);
        scene.fs.fsync(scene.file).unwrap();
        assert_eq!(scene.fs.devices().absorbed_bytes(), PAGE, "{kind:?}, round {round}");
        // The same page takes no further place.
        scene.overwrite(3, byte + 100);
        scene.fs.fsync(scene.file).unwrap();
        assert_eq!(scene.fs.devices().absorbed_bytes(), PAGE, "{kind:?}, round {round}");
        scene = scene.again(power, 5);
        assert_eq!((scene.byte(3), scene.byte(2)), (byte + 100, 1), "{kind:?}, round {round}");
        assert_eq!(scene.fs.devices().absorbed_bytes(), 0, "{kind:?}, round {round}: the device has it");
    }
    scene.fs.shutdown().unwrap();
    check(scene.setup, &scene.world, false).unwrap();
}

/// Tests that blocks which lose their file lose their pages before another file gets them.
pub fn freed(kind: MemoryKind) {
    let scene = Scene::new(kind);
    let small = create(&scene.fs, b"small");
    scene.overwrite(3, 2);
    scene.fs.fsync(scene.file).unwrap();
    assert_eq!(scene.fs.devices().absorbed_bytes(), PAGE);
    scene.fs.unlink(ROOT, b"file").unwrap();
    scene.fs.forget(scene.file, 1);
    assert_eq!(scene.fs.devices().absorbed_bytes(), PAGE, "the removal may still be undone");
    scene.fs.fsync(small).unwrap();
    scene.fs.upkeep().tick().unwrap();
    assert_eq!(scene.fs.devices().absorbed_bytes(), 0);
}

/// Tests that a newer page that the cache has held all the time is not overwritten with the absorbed
/// one, where the device may have lost what no flush had covered.
pub fn newer_is_held(kind: MemoryKind) {
    let scene = Scene::new(kind);
    scene.overwrite(3, 2);
    scene.overwrite(4, 2);
    scene.fs.fsync(scene.file).unwrap();
    scene.overwrite(3, 3);
    let scene = scene.again(false, 6);
    assert_eq!((scene.byte(3), scene.byte(4)), (3, 2));
}

/// Tests that a full area is emptied by flushes, and that nothing is lost beside that.
pub fn full_area(kind: MemoryKind) {
    let mut scene = Scene::new(kind);
    for round in 0..3 {
        for page in 0..32 {
            scene.overwrite(page, 3 + round);
            scene.fs.fsync(scene.file).unwrap();
        }
        scene.clock.advance(3_000_000_000);
        scene.fs.upkeep().tick().unwrap();
        assert!(scene.fs.devices().absorbed_bytes() <= 24 * PAGE, "{} bytes", scene.fs.devices().absorbed_bytes());
        scene = scene.again(true, 5);
        assert!((0..32).all(|page| scene.byte(page) == 3 + round), "{kind:?}, round {round}");
    }
}

/// Tests that a reader of a store opened read-only after a power loss finds what was absorbed.
pub fn read_only(kind: MemoryKind) {
    let scene = Scene::new(kind);
    scene.overwrite(3, 2);
    scene.fs.fsync(scene.file).unwrap();
    let world = power_loss(&scene.world.snapshot()).open();
    let boot = scene.boot.after(true);
    let options = Options { read_only: true, ..options(5) };
    let (fs, _) = open_with(scene.setup, &world, boot, &Watch::default(), options, &scene.clock).unwrap().unwrap();
    assert_eq!(read(&fs, scene.file, 3 * PAGE - 1, 3), Ok(vec![1, 2, 2]));
    assert_eq!(read(&fs, scene.file, 4 * PAGE - 1, 2), Ok(vec![2, 1]));
}

#[test]
fn a_small_synchronous_write_needs_no_flush_and_survives() {
    [Logged, Battery].into_iter().for_each(absorbed);
}

#[test]
fn a_freed_block_loses_its_absorbed_pages() {
    freed(Logged);
}

#[test]
fn an_absorbed_page_does_not_replace_a_newer_one() {
    newer_is_held(Logged);
}

#[test]
fn a_full_area_is_emptied() {
    full_area(Logged);
}

#[test]
fn a_reader_finds_absorbed_pages_in_a_store_that_nobody_may_change() {
    read_only(Logged);
}
