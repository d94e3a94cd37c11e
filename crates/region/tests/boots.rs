//! Which boot a log names, and what that says about a power loss.
//!
//! An earlier program named the boot in another way; its name counts as well.

use std::sync::Arc;

use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_format::{PAGE, SEGMENT};
use shoal_media::ImageFile;
use shoal_region::{Parts, Region, newest_image};
use shoal_sim::{SimMemory, World};

const SEGMENTS: u64 = 16;

fn images(world: &World) -> [Arc<dyn ImageFile>; 2] {
    [world.image(0), world.image(1)]
}

fn parts(world: &World, boot: u8, image: bool) -> Parts {
    let from = image.then(|| {
        let (newest, _, anchor) = newest_image(&images(world)).unwrap();
        (world.image(newest), anchor.used_bytes.get().next_multiple_of(PAGE))
    });
    Parts {
        memory: SimMemory::volatile(SEGMENTS * SEGMENT, from),
        log: Some(world.log(0)),
        images: Some(images(world)),
        boot_id: [boot; 16],
        nonce: [boot; 16],
    }
}

#[test]
fn the_name_an_earlier_program_gave_the_boot_is_no_power_loss() {
    let world = World::new(1);
    world.add_log();
    world.add_image();
    world.add_image();
    let geometry = Geometry {
        memory_kind: MemoryKind::Logged,
        uuid: [7; 16],
        region_bytes: SEGMENTS * SEGMENT,
        bulk_blocks: 0,
        ring_bytes: 0,
        threshold: 1 << 20,
        hash_seed: 1,
        created_ns: 1,
    };
    Region::create(geometry, parts(&world, 1, false)).unwrap().shutdown().unwrap();
    // Opened by a program that called this boot 3, and cut off.
    drop(Region::open(parts(&world, 3, true), false).unwrap());
    let lost = |also| Region::open_unsettled_of(parts(&world, 4, true), true, also).unwrap().1.power_lost;
    assert!(lost(None) && lost(Some([5; 16])));
    assert!(!lost(Some([3; 16])));
    // From then on the log names the boot as this program does.
    let (region, recovery) = Region::open_unsettled_of(parts(&world, 4, true), false, Some([3; 16])).unwrap();
    assert!(!recovery.power_lost);
    region.settle([9; 16]).unwrap();
    drop(region);
    let recovery = Region::open(parts(&world, 4, true), true).unwrap().1;
    assert!(!recovery.power_lost && !recovery.clean);
}
