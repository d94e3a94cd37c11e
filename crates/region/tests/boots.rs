//! The boot that a log names, and how it shows a power loss.
//!
//! An earlier program named the boot differently. That name counts as well.

use shoal_format::{PAGE, SEGMENT};
use shoal_region::{Parts, Region, newest_image};
use shoal_sim::{SimMemory, World};

const SEGMENTS: u64 = 16;

fn parts(world: &World, boot: u8, image: bool) -> Parts {
    let from = image.then(|| {
        let (newest, _, anchor) = newest_image(&crate::logged::images(world)).unwrap();
        (world.image(newest), anchor.used_bytes.get().next_multiple_of(PAGE))
    });
    crate::logged::parts(world, SimMemory::volatile(SEGMENTS * SEGMENT, from), boot)
}

#[test]
fn the_name_an_earlier_program_gave_the_boot_is_no_power_loss() {
    let world = crate::logged::world();
    Region::create(crate::logged::geometry(SEGMENTS * SEGMENT, 0), parts(&world, 1, false))
        .unwrap()
        .shutdown()
        .unwrap();
    // Opened by a program that called this boot 3, and cut off.
    drop(Region::open(parts(&world, 3, true), false).unwrap());
    let is_3 = |named: &[u8; 16]| *named == [3; 16];
    let lost = |is_present: &dyn Fn(&[u8; 16]) -> bool| {
        Region::open_unsettled(parts(&world, 4, true), true, is_present).unwrap().1.power_lost
    };
    assert!(lost(&|_| false) && !lost(&is_3));
    // From then on the log names the boot as this program does.
    let (region, recovery) = Region::open_unsettled(parts(&world, 4, true), false, &is_3).unwrap();
    assert!(!recovery.power_lost && !recovery.continues);
    region.note_repaired([9; 16]).unwrap();
    drop(region);
    let recovery = Region::open(parts(&world, 4, true), true).unwrap().1;
    assert!(!recovery.power_lost && !recovery.clean && recovery.continues);
}
