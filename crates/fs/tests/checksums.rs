//! Checksums of the data on the bulk device: damage is found, named, and healed by a write. Nothing
//! else counts as damage.
//!
//! Left out: random operations and what must be true after them (`summed`); scrubbing by command
//! (`tests/real`).

use shoal_format::BULK_BLOCK;
use shoal_format::superblock::MemoryKind;
use shoal_fs::ROOT;
use shoal_media::BlockDevice;
use shoal_sim::due;

use crate::data_store::Store;
use crate::store::Setup;
use crate::summed::{
    BLOCK, KINDS, REST_NS, failed_write, flip, flipped, is_damaged, lives, neighbours, place, read, read_all, setup,
    written_in_part,
};

#[test]
fn a_flipped_bit_is_an_error_where_it_is_and_nowhere_else_until_it_is_written_over() {
    flipped();
}

#[test]
fn damage_stays_known_when_a_part_of_it_is_written_over_and_goes_with_all_of_it() {
    written_in_part();
}

#[test]
fn a_flipped_bit_costs_one_of_the_spilled_files_in_its_unit() {
    neighbours();
}

#[test]
fn data_written_over_is_covered_again_after_a_clean_end_and_after_a_rest() {
    for kind in KINDS {
        for rests in [false, true] {
            let store = Store::new(setup(kind));
            let ino = store.create(b"file");
            store.fs.write(ino, 0, &vec![7; 4 * BLOCK]).unwrap();
            store.fs.sync().unwrap();
            store.fs.write(ino, BLOCK as u64, &vec![8; BLOCK]).unwrap();
            if rests {
                store.fs.fsync(ino).unwrap();
                for _ in 0..3 {
                    store.clock.advance(REST_NS);
                    store.fs.upkeep().tick().unwrap();
                }
                store.fs.sync().unwrap();
            } else {
                store.fs.shutdown().unwrap();
            }
            let back =
                store.reopened(&store.world.snapshot().power_losses(&shoal_sim::Limits::few()).next().unwrap(), true);
            assert_eq!(read_all(&back, ino).unwrap()[BLOCK..2 * BLOCK], vec![8; BLOCK]);
            flip(&back, place(&back, ino, BLOCK as u64 + 100));
            assert!(is_damaged(read(&back, ino, BLOCK, 4096)), "{kind:?}, rests: {rests}");
        }
    }
}

#[test]
fn blocks_in_each_others_places_are_found() {
    let store = Store::new(setup(MemoryKind::Logged));
    let ino = store.create(b"file");
    let bytes: Vec<u8> = (0..2 * BLOCK).map(|at| (at / BLOCK) as u8 + 1).collect();
    store.fs.write(ino, 0, &bytes).unwrap();
    store.fs.sync().unwrap();
    let [one, two] = [0, BULK_BLOCK].map(|byte| place(&store, ino, byte));
    let disk = store.world.disk(0);
    let (mut first, mut second) = (vec![0; BLOCK], vec![0; BLOCK]);
    disk.read_into(one, &mut first).unwrap();
    disk.read_into(two, &mut second).unwrap();
    disk.write_from(one, &second).unwrap();
    disk.write_from(two, &first).unwrap();
    assert!(is_damaged(read(&store, ino, 0, BLOCK)) && is_damaged(read(&store, ino, BLOCK, BLOCK)));
}

#[test]
fn a_damaged_file_can_be_removed_and_its_blocks_used_again() {
    let store = Store::new(setup(MemoryKind::Battery));
    let ino = store.create(b"file");
    store.fs.write(ino, 0, &vec![7; 20 * BLOCK]).unwrap();
    store.fs.sync().unwrap();
    flip(&store, place(&store, ino, 100));
    assert!(is_damaged(read(&store, ino, 0, 10)));
    store.fs.unlink(ROOT, b"file").unwrap();
    store.fs.forget(ino, u64::MAX);
    let next = store.create(b"next");
    assert_eq!(store.fs.write(next, 0, &vec![9; 20 * BLOCK]), Ok(20 * BLOCK));
    assert_eq!(read(&store, next, 0, 20 * BLOCK), Ok(vec![9; 20 * BLOCK]));
    assert_eq!(store.fs.devices().states()[0].damaged, 0);
}

#[test]
fn a_write_that_fails_in_its_middle_is_no_damage() {
    failed_write();
}

#[test]
fn no_crash_makes_damage_of_what_was_written() {
    let setups = KINDS.into_iter().flat_map(|kind| [false, true].map(|cached| Setup { cached, ..setup(kind) }));
    // Only a deep search explores all lives.
    let lives = |setup| if crate::crash::deep() { lives(setup) } else { crate::summed::explore(setup, 1) };
    let states: u64 = due(setups, 2).map(lives).sum();
    assert!(states > 40, "{states}");
}
