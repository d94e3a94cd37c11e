//! Battery memory that was lost: the store comes back from the image saved last, and large files with it. What is tried,
//! and what must come back, is in `saved`.

mod data_store;
mod saved;

use data_store::{Kind, Setup, Store};
use saved::{BLOCKS, explore};
use shoal_format::BULK_BLOCK;
use shoal_fs::ROOT;

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
    let setup = Setup { kind: Kind::Saved, threshold: 64 << 10, bulk_blocks: BLOCKS, region_bytes: 12 << 20 };
    let store = Store::new(setup);
    let full = vec![1; (BLOCKS * BULK_BLOCK) as usize];
    let old = store.create(b"file1");
    assert_eq!(store.fs.write(old, 0, &full), Ok(full.len()));
    store.fs.checkpoint().unwrap();
    store.fs.unlink(ROOT, b"file1").unwrap();
    store.fs.forget(old, u64::MAX);
    store.fs.sync().unwrap();
    store.fs.tick().unwrap();
    let usage = store.fs.usage();
    assert_eq!((usage.bulk_used, usage.bulk_pending, usage.bulk_free), (0, BLOCKS * BULK_BLOCK, 0));
    assert_eq!(store.trimmed.load(std::sync::atomic::Ordering::Relaxed), 0, "trimmed under the image");
    let back = store.restored(&store.world.snapshot().process_crash());
    let mut bytes = vec![0; full.len()];
    assert_eq!(back.fs.read(old, 0, &mut bytes), Ok(full.len()));
    assert!(bytes == full, "the image's file has lost its data");
    assert!(store.fs.checkpoint_due());
    let new = store.create(b"file2");
    assert_eq!(store.fs.write(new, 0, &vec![2; full.len()]), Ok(full.len()));
    let back = store.restored(&store.world.snapshot().process_crash());
    assert!(back.fs.lookup(ROOT, b"file1", false).is_err());
}
