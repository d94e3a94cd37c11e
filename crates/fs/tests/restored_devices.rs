//! A `battery` region that is restored from an image older than its bulk devices, and an opening of it that is cut off.
//!
//! The memory is lost after mounts that no image knows of. Wherever the first opening of the
//! restored region ends, the next one goes on without being told that there was a restore, and the
//! checker agrees. Left out: the region's file and the request for a restore (the command line's
//! tests).

use std::sync::Arc;

use shoal_format::BULK_BLOCK;
use shoal_format::bulk_list::BulkDeviceEntry;
use shoal_format::superblock::MemoryKind;
use shoal_fs::{Fs, GivenDevice, Ino, ROOT};
use shoal_media::{ImageFile, PersistentMemory};
use shoal_sim::{Limits, World};

use crate::devices::{BLOCKS, all_given, create, given, new_world_of, read, setup, try_open_of};
use crate::store::{Boot, Setup, disk_of, report_with};

const LEN: usize = 3 * BULK_BLOCK as usize;

fn saved() -> Setup {
    Setup { saved: true, ..setup(MemoryKind::Battery) }
}

/// Returns the same bytes in another process.
fn again(world: &World) -> World {
    world.snapshot().process_crash().open()
}

/// Makes a store of two devices that was used in mounts which its images do not know. Returns it
/// with the file that they know and the next boot.
fn older_than_its_devices() -> (World, Ino, Boot) {
    let mut world = new_world_of(saved());
    let mut boot = Boot::first(true);
    let mut fs = try_open_of(saved(), &world, boot, all_given(&world), false).unwrap();
    assert_eq!(fs.devices().add(&given(1, world.disk(1)), Some(BLOCKS)), Ok(1));
    let kept = create(&fs, b"kept");
    assert_eq!(fs.write(kept, 0, &vec![1; LEN]), Ok(LEN));
    fs.checkpoint().unwrap();
    for mount in 0..2u8 {
        (world, boot) = (again(&world), boot.after(false));
        fs = try_open_of(saved(), &world, boot, all_given(&world), false).unwrap();
        let unsaved = create(&fs, &[b'a' + mount]);
        assert_eq!(fs.write(unsaved, 0, &vec![2; LEN]), Ok(LEN));
        fs.sync().unwrap();
    }
    drop(fs);
    (world, kept, boot.after(false))
}

/// Returns the store with its memory lost and filled from the newest image, as on request.
fn restored(world: &World) -> World {
    let world = again(world);
    let images: [Arc<dyn ImageFile>; 2] = [world.image(0), world.image(1)];
    let memory = world.memory(0);
    memory.zero(0, memory.len());
    shoal_region::restore(&images, memory.as_ref(), 0, 7, shoal_region::DevicesBeside::Later).unwrap();
    shoal_region::let_devices_be_later(memory.as_ref()).unwrap();
    world
}

fn is_sound(world: &World, context: &str) {
    let report = report_with(saved(), world, &|entry: &BulkDeviceEntry| disk_of(world, entry), false);
    assert_eq!(report.errors, [], "{context}");
}

fn open(world: &World, boot: Boot, with: Vec<GivenDevice>, degraded: bool, context: &str) -> Fs {
    try_open_of(saved(), world, boot, with, degraded).unwrap_or_else(|error| panic!("{context}: {error}"))
}

#[test]
fn an_opening_of_a_restored_region_may_be_cut_off_anywhere() {
    let (world, kept, boot) = older_than_its_devices();
    let world = restored(&world);
    is_sound(&world, "restored");
    world.record(true);
    drop(open(&world, boot, all_given(&world), false, "restored"));
    world.record(false);
    let points = world.points();
    assert!(points.len() >= 4, "only {} points: two marks on each device", points.len());
    for point in points {
        let power_losses = point.power_losses(&Limits::few()).map(|state| (state, true));
        for (state, power) in std::iter::once((point.process_crash(), false)).chain(power_losses) {
            is_sound(&state.open(), state.name());
            let world = state.open();
            let fs = open(&world, boot.after(power), all_given(&world), false, state.name());
            assert_eq!(read(&fs, kept, 0, LEN), Ok(vec![1; LEN]), "{}", state.name());
            fs.shutdown().unwrap();
            drop(fs);
            is_sound(&world, state.name());
        }
    }
}

#[test]
fn a_device_that_was_away_at_the_restore_is_taken_later() {
    let (world, kept, boot) = older_than_its_devices();
    let world = restored(&world);
    let away = || GivenDevice { device: Err("no such device".into()), ..given(1, world.disk(1)) };
    let fs = open(&world, boot, vec![away()], true, "away");
    assert!(fs.devices().states()[1].state.is_lost());
    fs.shutdown().unwrap();
    drop(fs);
    is_sound(&world, "it is back");
    let fs = open(&world, boot.after(false), all_given(&world), false, "it is back");
    assert_eq!(read(&fs, kept, 0, LEN), Ok(vec![1; LEN]));
}

#[test]
fn a_copy_of_a_device_from_the_mounts_that_were_lost_is_an_older_one() {
    let (before, _, boot) = older_than_its_devices();
    let world = restored(&before);
    drop(open(&world, boot, all_given(&world), false, "restored"));
    let world = again(&world);
    let old = try_open_of(saved(), &world, boot.after(false), vec![given(1, before.disk(1))], false);
    let refused = old.map(drop).unwrap_err();
    assert!(refused.to_string().contains("an older copy (of mount"), "{refused}");
    let fs = open(&world, boot.after(false), all_given(&world), false, "its own devices");
    assert!(fs.lookup(ROOT, b"kept").is_ok() && fs.lookup(ROOT, b"a").is_err());
}
