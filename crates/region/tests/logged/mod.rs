//! A world with the media of `logged` memory, and the parts to open a region on them.
//!
//! Left out: the memory itself, which each test makes or observes as it needs.

use std::sync::Arc;

use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_media::{ImageFile, PersistentMemory};
use shoal_region::Parts;
use shoal_sim::World;

pub fn world() -> World {
    let world = World::new(1);
    world.add_log();
    world.add_image();
    world.add_image();
    world
}

pub fn images(world: &World) -> [Arc<dyn ImageFile>; 2] {
    [world.image(0), world.image(1)]
}

pub fn geometry(region_bytes: u64, ring_bytes: u64) -> Geometry {
    Geometry {
        memory_kind: MemoryKind::Logged,
        uuid: [7; 16],
        region_bytes,
        bulk_blocks: 0,
        ring_bytes,
        threshold: 1 << 20,
        hash_seed: 1,
        created_ns: 1,
    }
}

pub fn parts(world: &World, memory: Arc<dyn PersistentMemory>, boot: u8) -> Parts {
    Parts { memory, log: Some(world.log(0)), images: Some(images(world)), boot_id: [boot; 16], nonce: [boot; 16] }
}
