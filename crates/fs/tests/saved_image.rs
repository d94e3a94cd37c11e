//! Battery memory that was lost: the store comes back from the image saved last, and large files with it.
//!
//! `saved` has what is tried, and what must come back. The tests here also check that a region and
//! an image that have parted ways are never used together.

use crate::data_store::Store;
use crate::saved::{BLOCKS, explore};
use crate::store::Setup;
use shoal_format::BULK_BLOCK;
use shoal_format::superblock::ANCHOR_CLEAN;
use shoal_fs::ROOT;
use shoal_media::{ImageFile, PersistentMemory};
use shoal_sim::{Limits, World};

#[test]
fn what_comes_back_from_an_image_holds_no_foreign_bytes() {
    let seeds = std::env::var("SHOAL_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let (first, count) = seeds.map_or((0, 2), |seed: u64| (seed, 1));
    let states: u64 = (first..first + count).map(explore).sum();
    println!("{states} states");
    assert!(states >= 300 * count, "only {states} states");
}

#[test]
fn blocks_of_the_saved_image_are_reused_when_nothing_else_is_left() {
    let setup =
        Setup { saved: true, threshold: 64 << 10, bulk_blocks: BLOCKS, region_bytes: 12 << 20, ..Setup::default() };
    let store = Store::new(setup);
    let full = vec![1; (BLOCKS * BULK_BLOCK) as usize];
    let old = store.create(b"file1");
    assert_eq!(store.fs.write(old, 0, &full), Ok(full.len()));
    store.fs.checkpoint().unwrap();
    store.fs.unlink(ROOT, b"file1").unwrap();
    store.fs.forget(old, u64::MAX);
    store.fs.sync().unwrap();
    store.fs.upkeep().tick().unwrap();
    let usage = store.fs.usage();
    assert_eq!((usage.bulk_used, usage.bulk_pending, usage.bulk_free), (0, BLOCKS * BULK_BLOCK, 0));
    assert_eq!(store.trimmed.load(std::sync::atomic::Ordering::Relaxed), 0, "trimmed under the image");
    let back = store.restored(&store.world.snapshot().process_crash());
    let mut bytes = vec![0; full.len()];
    assert_eq!(back.fs.read(old, 0, &mut bytes), Ok(full.len()));
    assert!(bytes == full, "the image's file has lost its data");
    assert!(store.fs.upkeep().checkpoint_due());
    let new = store.create(b"file2");
    assert_eq!(store.fs.write(new, 0, &vec![2; full.len()]), Ok(full.len()));
    let back = store.restored(&store.world.snapshot().process_crash());
    assert!(back.fs.lookup(ROOT, b"file1").is_err());
}

/// Makes a store whose region was away while the store went on from its image. Returns the store
/// with each of the two regions.
fn parted() -> (Store, Store) {
    let setup =
        Setup { saved: true, threshold: 64 << 10, bulk_blocks: BLOCKS, region_bytes: 12 << 20, ..Setup::default() };
    let store = Store::new(setup);
    store.create(b"common");
    store.fs.checkpoint().unwrap();
    let away = store.world.snapshot().process_crash();
    let onward = store.restored(&away);
    // Each region takes the same blocks as the other.
    for (store, byte) in [(&store, 1), (&onward, 2)] {
        let ino = store.create(&[b'f', byte]);
        store.fs.write(ino, 0, &vec![byte; (8 * BULK_BLOCK) as usize]).unwrap();
        store.fs.sync().unwrap();
    }
    (store, onward)
}

fn copy_memory(from: &Store, to: &World) {
    let mut bytes = vec![0; from.setup.region_bytes as usize];
    from.world.memory(0).read(0, &mut bytes);
    to.memory(0).write(0, &bytes);
}

fn copy_images(from: &Store, to: &World) {
    for number in 0..2 {
        let mut bytes = vec![0; 2 * from.setup.region_bytes as usize];
        from.world.image(number).read(0, &mut bytes).unwrap();
        to.image(number).write(0, &bytes).unwrap();
    }
}

#[test]
fn a_region_that_the_store_went_on_without_is_refused() {
    let (left_behind, onward) = parted();
    let world = onward.world.snapshot().process_crash().open();
    copy_memory(&left_behind, &world);
    match onward.tried(world) {
        Err(error) => assert!(error.to_string().contains("older than the saved image"), "{error}"),
        Ok(mixed) => {
            check_bytes_of(&mixed, 1);
            panic!("two regions have used one bulk device, and the older one is accepted");
        }
    }
    // The newer region can still be used.
    let world = onward.world.snapshot().process_crash().open();
    check_bytes_of(&onward.tried(world).unwrap(), 2);
}

#[test]
fn images_of_before_a_restore_are_refused_by_the_region_it_made() {
    let (left_behind, onward) = parted();
    let world = onward.world.snapshot().process_crash().open();
    copy_images(&left_behind, &world);
    let refused = onward.tried(world).map(drop).unwrap_err();
    assert!(refused.to_string().contains("image (restored 0 times) is not of this region (restored 1"), "{refused}");
    // Restore once more from these images, with other random bits. Neither region is taken for the
    // other.
    let again = left_behind.restored_as(&left_behind.world.snapshot().process_crash(), 8);
    let world = again.world.snapshot().process_crash().open();
    copy_memory(&onward, &world);
    let refused = again.tried(world).map(drop).unwrap_err();
    assert!(refused.to_string().contains("image (restored 1 times) is not of this region (restored 1"), "{refused}");
}

fn check_bytes_of(store: &Store, byte: u8) {
    let ino = store.fs.lookup(ROOT, &[b'f', byte]).unwrap().ino;
    let mut bytes = vec![0; (8 * BULK_BLOCK) as usize];
    store.fs.read(ino, 0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&found| found == byte), "bytes of another file");
}

#[test]
fn an_image_is_clean_until_its_region_may_change() {
    let setup = Setup { saved: true, ..Setup::default() };
    let store = Store::new(setup);
    let clean = |store: &Store| {
        let images: [std::sync::Arc<dyn ImageFile>; 2] = [store.world.image(0), store.world.image(1)];
        shoal_region::newest_image(&images).unwrap().2.flags.get() & ANCHOR_CLEAN != 0
    };
    assert!(!clean(&store), "opened for writing");
    store.fs.checkpoint().unwrap();
    assert!(!clean(&store), "saved, and still in use");
    store.fs.shutdown().unwrap();
    assert!(clean(&store));
    let looked = store.read_only(&store.world.snapshot().process_crash());
    assert!(clean(&looked), "a look changes nothing");
    assert!(!clean(&store.after_process_crash()), "opened again");
    // A power loss may hit the opening at any moment. Where the mark is missing, no record is in
    // the region.
    let closed = store.world.snapshot().process_crash();
    let world = closed.open();
    world.record(true);
    let opened = store.tried(world.clone()).unwrap();
    opened.create(b"first");
    world.record(false);
    for point in world.points() {
        for state in point.power_losses(&Limits::few()) {
            let found = store.tried(state.open()).unwrap();
            let images: [std::sync::Arc<dyn ImageFile>; 2] = [state.open().image(0), state.open().image(1)];
            let marked = shoal_region::newest_image(&images).unwrap().2.flags.get() & ANCHOR_CLEAN == 0;
            let changed = found.fs.lookup(ROOT, b"first").is_ok();
            assert!(marked || !changed, "{}: {}", point.name(), state.name());
        }
    }
}
