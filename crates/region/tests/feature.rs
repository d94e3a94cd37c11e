//! Adds a feature to a store in use. A crash at any moment leaves a store that opens with
//! everything that was promised, and older programs refuse it from before [`Region::add_feature`]
//! returns. Removing the feature's bit from a new store simulates a store made without the feature.

use shoal_format::superblock::{FEATURE_PACKED, Geometry, MemoryKind, SUPERBLOCK_AT, Superblock};
use shoal_format::{FormatError, PAGE, SlotRef};
use shoal_media::PersistentMemory;
use shoal_region::{Error, Parts, Region, View, newest_image};
use shoal_sim::{Limits, SimMemory, SimMemoryKind, World};

use crate::logged;

const REGION_BYTES: u64 = 32 << 16;

fn superblock(memory: &dyn PersistentMemory) -> Superblock {
    let mut page = vec![0; PAGE as usize];
    memory.read(SUPERBLOCK_AT, &mut page);
    Superblock::decode(&page).unwrap()
}

/// Makes a store with one slot, filled with bytes of 1, as a program without the feature would.
/// `shutdown` seals its media.
fn made_before(region: &Region, memory: &dyn PersistentMemory) -> SlotRef {
    let with = superblock(memory);
    memory.write(SUPERBLOCK_AT, &Superblock { features: with.features & !FEATURE_PACKED, ..with }.encode());
    memory.write_back(SUPERBLOCK_AT, PAGE);
    let mut tx = region.begin();
    let slot = tx.alloc(64).unwrap();
    tx.write(slot.offset(), &[1; 64]).unwrap();
    tx.commit().unwrap();
    region.shutdown().unwrap();
    slot
}

#[test]
fn persistent_memory_has_the_feature_from_its_checksum_on() {
    for (kind, memory_kind) in [(MemoryKind::Dax, SimMemoryKind::Dax), (MemoryKind::Battery, SimMemoryKind::Battery)] {
        let world = World::new(1);
        let memory = world.add_memory(REGION_BYTES, memory_kind);
        let parts = |world: &World, boot| Parts {
            memory: world.memory(0),
            log: None,
            images: None,
            boot_id: [boot; 16],
            nonce: [boot; 16],
        };
        let geometry = Geometry { memory_kind: kind, ..logged::geometry(REGION_BYTES, 1 << 18) };
        let region = Region::create(geometry, parts(&world, 1)).unwrap();
        let slot = made_before(&region, memory.as_ref());
        drop(region);
        let (region, _) = Region::open(parts(&world, 2), false).unwrap();
        assert!(!region.has_feature(FEATURE_PACKED));
        world.record(true);
        world.record_stores(true);
        region.add_feature(FEATURE_PACKED).unwrap();
        world.record(false);
        assert!(region.has_feature(FEATURE_PACKED));
        let mut without = 0;
        for point in world.points() {
            for state in point.power_losses(&Limits::few()).chain([point.process_crash()]) {
                let world = state.open();
                let (region, _) =
                    Region::open(parts(&world, 3), false).unwrap_or_else(|e| panic!("{}: {e}", state.name()));
                assert_eq!(region.read_vec(slot.offset(), 64).unwrap(), [1; 64]);
                without += usize::from(!region.has_feature(FEATURE_PACKED));
            }
        }
        assert!(without > 0, "no crash came before the checksum");
        for state in world.snapshot().power_losses(&Limits::few()) {
            assert_ne!(superblock(state.open().memory(0).as_ref()).features & FEATURE_PACKED, 0, "{}", state.name());
        }
    }
}

#[test]
fn logged_memory_has_the_feature_in_the_newest_image() {
    let world = logged::world();
    let memory = |world: &World| {
        let (newest, _, anchor) = newest_image(&logged::images(world)).unwrap();
        SimMemory::volatile(REGION_BYTES, Some((world.image(newest), anchor.used_bytes.get().next_multiple_of(PAGE))))
    };
    let blank = SimMemory::volatile(REGION_BYTES, None);
    let region = Region::create(logged::geometry(REGION_BYTES, 0), logged::parts(&world, blank.clone(), 1)).unwrap();
    let slot = made_before(&region, blank.as_ref());
    drop(region);
    let (region, _) = Region::open(logged::parts(&world, memory(&world), 2), false).unwrap();
    assert!(!region.has_feature(FEATURE_PACKED));
    world.record(true);
    region.add_feature(FEATURE_PACKED).unwrap();
    world.record(false);
    for point in world.points() {
        for state in point.power_losses(&Limits::few()).chain([point.process_crash()]) {
            let world = state.open();
            let parts = logged::parts(&world, memory(&world), 3);
            let (region, _) = Region::open(parts, false).unwrap_or_else(|e| panic!("{}: {e}", state.name()));
            assert_eq!(region.read_vec(slot.offset(), 64).unwrap(), [1; 64]);
        }
    }
    for state in world.snapshot().power_losses(&Limits::few()) {
        let (_, newest, _) = newest_image(&logged::images(&state.open())).unwrap();
        assert_ne!(newest.features & FEATURE_PACKED, 0, "{}", state.name());
    }
    // A store that has the feature is left unchanged.
    let generation = newest_image(&logged::images(&world)).unwrap().2.generation;
    region.add_feature(FEATURE_PACKED).unwrap();
    assert_eq!(newest_image(&logged::images(&world)).unwrap().2.generation, generation);
}

#[test]
fn an_image_with_a_feature_of_a_later_program_is_not_passed_over_for_an_older_one() {
    let world = logged::world();
    let blank = SimMemory::volatile(REGION_BYTES, None);
    let region = Region::create(logged::geometry(REGION_BYTES, 0), logged::parts(&world, blank, 1)).unwrap();
    region.checkpoint().unwrap();
    region.shutdown().unwrap();
    let images = logged::images(&world);
    let (_, superblock, _) = newest_image(&images).unwrap();
    let later = Superblock { features: superblock.features | 1 << 40, ..superblock };
    for image in &images {
        image.write(SUPERBLOCK_AT, &later.encode()).unwrap();
        let refused = newest_image(&images);
        assert!(matches!(refused, Err(Error::Format(FormatError::Features { bits, .. })) if bits == 1 << 40));
        image.write(SUPERBLOCK_AT, &superblock.encode()).unwrap();
        newest_image(&images).unwrap();
    }
}
