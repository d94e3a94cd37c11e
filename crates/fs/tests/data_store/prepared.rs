//! A store with a large file and a small one, for tests in which the bulk device is slow or fails.
//!
//! The large file lies on the device. The small one lies in the region, and moves to the device when it grows.

use super::Store;
use crate::store::Setup;
use shoal_format::BULK_BLOCK;
use shoal_format::superblock::MemoryKind;
use shoal_fs::ROOT;

/// The mode of `fallocate` that makes a hole.
pub const PUNCH: i32 = 3;
/// Length of the large file, which ends within a block (bytes).
pub const LARGE: usize = 400_001;
/// Length of the small file (bytes).
pub const SMALL: usize = 100_000;

pub fn setup() -> Setup {
    Setup { kind: MemoryKind::Logged, threshold: 128 << 10, ..Setup::default() }
}

/// Makes `large` of bytes 1 and `small` of bytes 2.
pub fn prepared(store: &Store) {
    let (large, small) = (store.create(b"large"), store.create(b"small"));
    store.fs.write(large, 0, &[1; LARGE]).unwrap();
    store.fs.write(small, 0, &[2; SMALL]).unwrap();
}

/// Like [`prepared`], behind `blocks` free blocks, so that there is something to gather.
pub fn prepared_behind(store: &Store, blocks: u64) {
    let first = store.create(b"first");
    store.fs.write(first, 0, &vec![9; (blocks * BULK_BLOCK) as usize]).unwrap();
    prepared(store);
    store.fs.sync().unwrap();
    store.fs.unlink(ROOT, b"first").unwrap();
}
