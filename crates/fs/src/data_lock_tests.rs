//! Tests of file locks: what a caller learns of a file that went away while the device worked.
//!
//! The device's work removes the file itself, in place of the thread that does so in life. What waits for which lock is in
//! `tests/slow_device.rs`.

use std::sync::Arc;

use shoal_format::BULK_BLOCK;
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_region::Parts as RegionParts;
use shoal_sim::{SimClock, SimMemoryKind, World};

use super::*;
use crate::{Caller, FormatOptions, Options, Parts, ROOT};

const BULK_BLOCKS: u64 = 16;

fn opened() -> Fs {
    let world = World::new(1);
    world.add_memory(16 << 20, SimMemoryKind::Battery);
    world.add_disk(BULK_BLOCKS * BULK_BLOCK);
    let parts = |nonce| Parts {
        region: RegionParts { memory: world.memory(0), log: None, images: None, boot_id: [1; 16], nonce: [nonce; 16] },
        bulk: Some(world.disk(0)),
        clock: Arc::new(SimClock::new(1)),
    };
    let geometry = Geometry {
        memory_kind: MemoryKind::Battery,
        uuid: [5; 16],
        region_bytes: 16 << 20,
        bulk_blocks: BULK_BLOCKS,
        ring_bytes: 512 << 10,
        threshold: 64 << 10,
        hash_seed: 1,
        created_ns: 0,
    };
    Fs::format(parts(1), &FormatOptions { geometry, root_mode: 0o755, root_uid: 0, root_gid: 0 }).unwrap();
    Fs::open(parts(2), Options::default()).unwrap().0
}

#[test]
fn a_file_that_went_away_is_stale_also_where_the_device_failed() {
    for (outcome, again) in [(Ok(()), false), (Ok(()), true), (Err(Error::NoSpace), false), (Err(Error::NoSpace), true)]
    {
        let fs = opened();
        let create = || fs.mknod(&Caller::default(), ROOT, b"file", 0o644, 0).unwrap().ino;
        let ino = create();
        let (mut file, mut inode) = fs.lock_data(ino, |_| true).unwrap();
        let seen = file.device(&mut inode, |_| {
            fs.unlink(ROOT, b"file").unwrap();
            assert!(!again || create() == ino, "the number is another file's");
            outcome.clone()
        });
        // Of any other error a caller could make the best, and store the record it knows.
        assert_eq!(seen, Err(Error::Stale), "{outcome:?}, the number taken again: {again}");
    }
}
