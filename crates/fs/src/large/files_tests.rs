//! A write cache learns of which file each block is, however the file's data reach the device.
//!
//! Owns: a cache that notes what it is told, and the ways of data to it. Left out: what the cache
//! makes of it (`writeback`).

use std::sync::Arc;

use parking_lot::Mutex;
use shoal_format::BULK_BLOCK;
use shoal_media::{BlockDevice, BlockGeometry, Completion, Request, WriteCache};

use crate::test_store::TestStore;
use crate::{Caller, ROOT};

/// A write cache that holds nothing, and notes what it is told and what is written then.
struct Told {
    below: Arc<dyn BlockDevice>,
    /// The files of blocks, as told.
    files: Mutex<std::collections::HashMap<u64, u64>>,
    /// Each write's blocks with their file at that time; none if nobody told.
    written: Mutex<Vec<(u64, Option<u64>)>>,
}

impl Told {
    fn note(&self, at: u64, len: u64) {
        let files = self.files.lock();
        let blocks = at / BULK_BLOCK..(at + len).div_ceil(BULK_BLOCK);
        self.written.lock().extend(blocks.map(|block| (block, files.get(&block).copied())));
    }
}

impl WriteCache for Told {
    fn held_for_ns(&self) -> u64 {
        0
    }

    fn held_in(&self, _: u64, _: u64) -> u64 {
        0
    }

    fn flush_ranges(&self, _: &[(u64, u64)]) -> shoal_media::Result<()> {
        shoal_media::block::wait(self, Request::Flush).map(drop)
    }

    fn give_up(&self) {}

    fn may_have_lost(&self, _: u64, _: u64) -> bool {
        true
    }

    fn adopt(&self, _: bool) {}

    fn belongs(&self, at: u64, len: u64, file: u64) {
        let blocks = at / BULK_BLOCK..(at + len).div_ceil(BULK_BLOCK);
        self.files.lock().extend(blocks.map(|block| (block, file)));
    }

    fn read_medium(&self, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
        self.below.read_into(at, out)
    }
}

impl BlockDevice for Told {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        Some(self)
    }

    fn geometry(&self) -> BlockGeometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        if let Request::Write { at, buffer, .. } = &request {
            self.note(*at, buffer.len() as u64);
        }
        self.below.submit(request, done);
    }
}

#[test]
fn a_write_cache_is_told_whose_block_it_gets_before_it_gets_it() {
    let mut told = None;
    let fs = TestStore::new(128).open_on(2, |below| {
        let device = Arc::new(Told { below, files: Mutex::default(), written: Mutex::default() });
        told = Some(device.clone());
        device
    });
    let told = told.unwrap();
    let create = |name: &[u8]| fs.mknod(&Caller::default(), ROOT, name, 0o644, 0).unwrap().ino;
    let (first, second) = (create(b"first"), create(b"second"));
    let since = |ino: crate::Ino, what: &str| {
        let written = std::mem::take(&mut *told.written.lock());
        assert!(!written.is_empty(), "{what} reaches the device");
        assert!(written.iter().all(|(_, file)| *file == Some(ino.get().into())), "{what}: {written:?}");
    };
    // Small files are in the region; growing moves them to the device.
    fs.write(first, 0, &[1; 300_000]).unwrap();
    assert!(told.written.lock().is_empty());
    fs.write(first, 300_000, &vec![1; 1_200_000]).unwrap();
    since(first, "what was small, and what follows");
    fs.write(second, 0, &vec![2; 1_500_000]).unwrap();
    since(second, "new blocks");
    fs.write(first, 100_000, &[3; 1000]).unwrap();
    since(first, "an overwritten part");
}
