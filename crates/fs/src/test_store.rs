//! A store on simulated media for the tests inside this crate.
//!
//! The region is battery memory, so that a test can open the store as often as it wants. Tests
//! outside this crate have a builder of their own (`tests/store`), with every kind of memory.

use std::sync::Arc;

use shoal_format::BULK_BLOCK;
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_media::BlockDevice;
use shoal_region::Parts as RegionParts;
use shoal_sim::{SimClock, SimMemoryKind, World};

use crate::{FormatOptions, Fs, Options, Parts};

pub(crate) struct TestStore {
    world: World,
    has_bulk: bool,
    pub clock: Arc<SimClock>,
}

impl TestStore {
    /// Makes a store with `bulk_blocks` blocks of bulk storage, or without bulk storage if that is
    /// 0.
    pub fn new(bulk_blocks: u64) -> TestStore {
        let (world, has_bulk, region_bytes) = (World::new(1), bulk_blocks > 0, 16 << 20);
        world.add_memory(region_bytes, SimMemoryKind::Battery);
        if has_bulk {
            world.add_disk(bulk_blocks * BULK_BLOCK);
        }
        let geometry = Geometry {
            memory_kind: MemoryKind::Battery,
            uuid: [5; 16],
            region_bytes,
            bulk_blocks,
            ring_bytes: 512 << 10,
            threshold: 1 << 20,
            hash_seed: 1,
            created_ns: 0,
        };
        let store = TestStore { world, has_bulk, clock: Arc::new(SimClock::new(1)) };
        let options = FormatOptions { geometry, sums: true, root_mode: 0o755, root_uid: 0, root_gid: 0 };
        Fs::format(store.parts(1), &options).unwrap();
        store
    }

    /// Opens the store; each call takes another `nonce`, above 1.
    pub fn open(&self, nonce: u8) -> Fs {
        Fs::open(self.parts(nonce), Options::default()).unwrap().0
    }

    /// Opens the store with something over its bulk storage.
    pub fn open_on(&self, nonce: u8, over: impl FnOnce(Arc<dyn BlockDevice>) -> Arc<dyn BlockDevice>) -> Fs {
        let parts = self.parts(nonce);
        Fs::open(Parts { bulk: parts.bulk.map(over), ..parts }, Options::default()).unwrap().0
    }

    fn parts(&self, nonce: u8) -> Parts {
        let memory = self.world.memory(0);
        let bulk = self.has_bulk.then(|| self.world.disk(0) as Arc<dyn BlockDevice>);
        let region = RegionParts { memory, log: None, images: None, boot_id: [1; 16], nonce: [nonce; 16] };
        Parts { region, bulk, clock: self.clock.clone() }
    }
}
