//! A torn append over reused log space that holds a record of the same shape.
//!
//! Data that programs write repeatedly, such as inode records, often ends with its own checksum.
//! Here a power loss takes such bytes from an append, and the reused space has older bytes of the
//! same kind at the same place. The record must not count with them.

use std::sync::Arc;

use shoal_format::record::RECORD_HEADER;
use shoal_format::superblock::{FEATURE_SUMS, SUPERBLOCK_AT, Superblock};
use shoal_format::vouch::VOUCH_BYTES;
use shoal_format::{PAGE, SlotRef, Sums, checksum};
use shoal_media::PersistentMemory;
use shoal_region::{Region, View};
use shoal_sim::{Limits, SimMemoryKind, World};

use crate::logged::{geometry, images, parts, world};

const SECTOR: usize = 512;
/// Bytes of a record: header, the word before its data, the data, and the vouching entry.
const RECORD: usize = 2 * SECTOR;
const DATA: usize = RECORD - RECORD_HEADER - 8 - VOUCH_BYTES;
const REGION_BYTES: u64 = 32 << 16;

/// Returns data that holds `value` up to the end of the record's first sector, and ends with bytes
/// and their own checksum.
fn data(value: u8) -> Vec<u8> {
    let sealed = [value; 92];
    let mut data = vec![value; DATA - SECTOR];
    data.resize(DATA - sealed.len() - 4, 0x55);
    [&data[..], &sealed, &checksum(0, &sealed).to_le_bytes()].concat()
}

fn commit(region: &Region, slot: SlotRef, value: u8) {
    let mut tx = region.begin();
    tx.write(slot.offset(), &data(value)).unwrap();
    tx.commit().unwrap();
}

fn image_in_memory(world: &World) -> Arc<dyn PersistentMemory> {
    let images = images(world);
    let (newest, superblock, anchor) = shoal_region::newest_image(&images).unwrap();
    let memory = World::new(2).add_memory(superblock.region_bytes, SimMemoryKind::Battery);
    let mut bytes = vec![0; anchor.used_bytes.get() as usize];
    images[newest].read(0, &mut bytes).unwrap();
    memory.write(0, &bytes);
    memory
}

fn read(world: &World, slot: SlotRef) -> Vec<u8> {
    let (region, _) = Region::open(parts(world, image_in_memory(world), 9), true).unwrap();
    region.read_vec(slot.offset(), DATA).unwrap()
}

#[test]
fn a_torn_record_does_not_count_with_the_end_of_an_older_one() {
    let world = world();
    let memory: Arc<dyn PersistentMemory> = World::new(2).add_memory(REGION_BYTES, SimMemoryKind::Battery);
    let region = Region::create(geometry(REGION_BYTES, 0), parts(&world, memory, 1)).unwrap();
    let mut tx = region.begin();
    let slot = tx.alloc(2 * RECORD as u64).unwrap();
    tx.write(slot.offset(), &[1; 8]).unwrap();
    tx.commit().unwrap();
    // From here on, records begin at sector boundaries.
    region.checkpoint().unwrap();
    let missing = 2 * RECORD - (region.last_lsn().get() as usize + RECORD_HEADER + 8 + VOUCH_BYTES) % RECORD;
    let mut tx = region.begin();
    tx.write(slot.offset(), &vec![1; missing]).unwrap();
    tx.commit().unwrap();
    assert_eq!(region.last_lsn().get() % RECORD as u64, 0);
    region.sync().unwrap();
    let mut torn = 0;
    for value in 0..200 {
        commit(&region, slot, value);
        let (before, now) = (data(value.saturating_sub(1)), data(value));
        for state in world.snapshot().power_losses(&Limits { torn: 0, ..Limits::default() }) {
            let found = read(&state.open(), slot);
            assert!(value == 0 || found == before || found == now, "{}: value {value}: a mixture", state.name());
            torn += 1;
        }
        region.sync().unwrap();
        if value % 50 == 49 {
            region.checkpoint().unwrap();
        }
    }
    assert!(torn >= 4 * 200, "{torn}");
}

/// Turns the images of a store at rest into those of an earlier version.
fn made_before(world: &World) {
    for image in images(world) {
        let mut page = vec![0; PAGE as usize];
        image.read(SUPERBLOCK_AT, &mut page).unwrap();
        let Ok(superblock) = Superblock::decode(&page) else { continue };
        let features = superblock.features & !FEATURE_SUMS;
        image.write(SUPERBLOCK_AT, &Superblock { features, ..superblock }.encode()).unwrap();
        for number in 0..superblock.region_bytes / PAGE {
            let (mut sum, at) = ([0; 4], superblock.region_bytes + number * 4);
            image.read(at, &mut sum).unwrap();
            if sum != [0; 4] {
                image.read(number * PAGE, &mut page).unwrap();
                image.write(at, &checksum(0, &page).to_le_bytes()).unwrap();
            }
        }
        image.sync().unwrap();
    }
}

#[test]
fn a_store_with_the_former_sums_keeps_them() {
    let world = world();
    let memory: Arc<dyn PersistentMemory> = World::new(2).add_memory(REGION_BYTES, SimMemoryKind::Battery);
    let region = Region::create(geometry(REGION_BYTES, 0), parts(&world, memory.clone(), 1)).unwrap();
    let mut tx = region.begin();
    let slot = tx.alloc(DATA as u64).unwrap();
    tx.write(slot.offset(), &data(1)).unwrap();
    tx.commit().unwrap();
    region.shutdown().unwrap();
    drop(region);
    made_before(&world);
    assert_eq!(read(&world, slot), data(1));
    let (mut region, mut boot) = (None, 2);
    for value in 2..6 {
        drop(region.take());
        let (_, superblock, _) = shoal_region::newest_image(&images(&world)).unwrap();
        assert_eq!(superblock.sums(), Sums::Crc32c);
        let open = Region::open(parts(&world, image_in_memory(&world), boot), false).unwrap().0;
        commit(&open, slot, value);
        open.sync().unwrap();
        assert_eq!(read(&world, slot), data(value), "replayed");
        open.checkpoint().unwrap();
        assert_eq!(read(&world, slot), data(value), "from the image");
        (region, boot) = (Some(open), boot + 1);
    }
}
