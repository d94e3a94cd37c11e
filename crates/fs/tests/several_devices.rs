//! Several bulk devices: what a crash leaves of adding, emptying and removing one, and what a
//! failed or missing device costs.
//!
//! `devices` has what is tried, and what must be true.

use shoal_format::bulk_list::{BULK_LIST_AT, decode_list};
use shoal_format::superblock::{FEATURE_DEVICES, MemoryKind, SUPERBLOCK_AT, Superblock};
use shoal_format::{BULK_BLOCK, PAGE};
use shoal_fs::{Error, FormatOptions, Leaving, ROOT};
use shoal_media::{BlockDevice, BlockGeometry, Completion, MediaError, PersistentMemory, Request, WriteCache};
use shoal_sim::{SimDisk, World, due};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::devices::away::{
    away_or_older, behind_another_ones_cache, in_another_place, pushed_out_by_a_mark, refused_after_a_clean_end,
};
use crate::devices::doubt::{
    across_a_retry, failed_flush, given_back, given_out, new_and_lost, read_meanwhile, renamed_in_doubt,
};
use crate::devices::retries::under_writers;
use crate::devices::{
    BLOCKS, Pair, all_given, create, every_failure, explore, failed_flush_of_ranges, given, new_bytes_move, read,
    restored_lists, settled_in_the_next_life, setup, spilled, try_open, with_more,
};
use crate::store::{Boot, Setup, format_options, format_with};

#[test]
fn whatever_happens_to_the_list_of_devices_survives_every_crash() {
    let seeds = std::env::var("SHOAL_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let (first, count) = seeds.map_or((0, 2), |seed: u64| (seed, 1));
    for kind in due([MemoryKind::Logged, MemoryKind::Battery], 2) {
        let states: u64 = (first..first + count).map(|seed| explore(setup(kind), seed, 3)).sum();
        println!("{kind:?}: {states} states");
        assert!(states >= 100 * count, "only {states} states");
    }
}

#[test]
fn and_so_it_does_behind_a_write_back_cache_of_each() {
    for kind in due([MemoryKind::Logged, MemoryKind::Battery], 2) {
        let setup = Setup { cached: true, ..setup(kind) };
        let states: u64 = (0..2).map(|seed| explore(setup, seed, 3)).sum();
        println!("{kind:?}: {states} states");
        assert!(states >= 200, "only {states} states");
    }
}

#[test]
fn a_failed_flush_of_one_device_costs_what_it_did_not_cover_and_nothing_else() {
    failed_flush(MemoryKind::Logged);
    failed_flush(MemoryKind::Battery);
}

#[test]
fn a_block_that_no_file_had_is_not_in_doubt_for_its_next_one() {
    given_back(MemoryKind::Logged);
    given_back(MemoryKind::Battery);
}

#[test]
fn a_new_block_that_a_flush_lost_shows_nothing_of_its_former_file() {
    new_and_lost(MemoryKind::Logged);
    new_and_lost(MemoryKind::Battery);
}

#[test]
fn a_write_that_a_failed_flush_and_a_retry_overtake_fails() {
    across_a_retry(MemoryKind::Logged);
    across_a_retry(MemoryKind::Battery);
}

#[test]
fn a_read_exactly_while_a_flush_fails_finds_bytes_in_doubt_and_no_damage() {
    read_meanwhile(MemoryKind::Logged);
    read_meanwhile(MemoryKind::Battery);
}

#[test]
fn writers_go_on_while_a_device_fails_and_is_used_again() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        (0..3).for_each(|seed| under_writers(kind, seed, 40));
    }
}

#[test]
fn nor_is_one_whose_writer_died_with_the_flush() {
    given_out(MemoryKind::Logged);
    given_out(MemoryKind::Battery);
}

#[test]
fn a_failed_flush_of_ranges_costs_what_no_flush_has_named() {
    failed_flush_of_ranges(MemoryKind::Logged);
    failed_flush_of_ranges(MemoryKind::Battery);
}

#[test]
fn bytes_that_nobody_has_synced_are_durable_where_they_moved() {
    new_bytes_move(MemoryKind::Logged);
    new_bytes_move(MemoryKind::Battery);
}

#[test]
fn spilled_files_go_on_two_devices_and_move_when_one_leaves() {
    spilled(MemoryKind::Logged);
    spilled(MemoryKind::Battery);
}

#[test]
fn bytes_of_a_process_that_crashed_are_durable_when_the_next_one_has_synced_their_file() {
    settled_in_the_next_life(MemoryKind::Logged);
    settled_in_the_next_life(MemoryKind::Battery);
}

#[test]
fn a_file_in_doubt_takes_no_other_ones_name() {
    renamed_in_doubt(MemoryKind::Logged);
    renamed_in_doubt(MemoryKind::Battery);
}

#[test]
fn every_call_of_one_device_of_two_may_fail_once_or_for_good() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        let failed = every_failure(kind);
        println!("{kind:?}: {failed} calls failed");
        assert!(failed > 60, "only {failed} calls failed");
    }
}

#[test]
fn a_device_that_is_away_or_older_costs_its_files_until_it_is_back() {
    away_or_older(MemoryKind::Logged);
    away_or_older(MemoryKind::Battery);
}

#[test]
fn a_device_is_known_by_its_own_mark_and_not_by_a_caches() {
    behind_another_ones_cache(MemoryKind::Logged);
    behind_another_ones_cache(MemoryKind::Battery);
}

#[test]
fn a_device_in_another_place_after_a_crash_has_what_a_flush_covered() {
    in_another_place(MemoryKind::Logged);
    in_another_place(MemoryKind::Battery);
}

#[test]
fn what_a_full_cache_lets_go_of_for_a_new_mark_is_there_after_a_crash() {
    pushed_out_by_a_mark(MemoryKind::Logged);
    pushed_out_by_a_mark(MemoryKind::Battery);
}

#[test]
fn an_opening_that_was_refused_after_a_clean_end_is_no_power_loss() {
    refused_after_a_clean_end(MemoryKind::Logged);
    refused_after_a_clean_end(MemoryKind::Battery);
}

#[test]
fn a_device_whose_writes_fail_gets_no_new_files_and_its_own_can_be_removed() {
    let pair = Pair::new(MemoryKind::Logged);
    let fs = &pair.fs;
    let block = BULK_BLOCK as usize;
    let own = pair.file_on(1, b"own", 1, 3);
    let other = pair.file_on(0, b"other", 2, 6);
    fs.sync().unwrap();
    // The second device has most room, so a new file would go there.
    pair.second.is_dead.store(true, Ordering::Relaxed);
    let new = create(fs, b"new");
    assert_eq!(fs.write(new, 0, &vec![3; 3 * block]), Ok(3 * block), "the first attempt goes elsewhere");
    assert_eq!(fs.fsync(new), Ok(()));
    assert_eq!(read(fs, new, 0, 3 * block), Ok(vec![3; 3 * block]));
    assert!(matches!(read(fs, own, 0, block), Err(Error::Io(_))));
    assert_eq!(read(fs, other, 0, block), Ok(vec![2; block]));
    assert_eq!(fs.getattr(own).unwrap().size, 3 * BULK_BLOCK);
    assert_eq!(fs.rename(ROOT, b"own", ROOT, b"renamed", shoal_fs::RenameMode::Replace), Ok(()));
    fs.sync().unwrap();
    assert!(fs.region().failure().is_none());
    let state = &fs.devices().states()[1];
    assert!(state.state.cause().is_some(), "the next flush closes it: {state:?}");
    fs.unlink(ROOT, b"renamed").unwrap();
    fs.forget(own, u64::MAX);
    fs.sync().unwrap();
    fs.upkeep().tick().unwrap();
    assert_eq!(fs.devices().states()[1].used, 0);
    // Without files the device can leave, though it is dead.
    assert_eq!(fs.devices().leave(1), Ok(Leaving::Now));
    assert_eq!(fs.devices().remove(1), Ok(true));
    assert_eq!(fs.devices().states().len(), 1);
}

#[test]
fn a_device_leaves_only_if_the_others_have_room_and_the_last_one_stays() {
    let pair = Pair::new(MemoryKind::Logged);
    let fs = &pair.fs;
    pair.file_on(0, b"a", 1, BLOCKS - 2);
    pair.file_on(1, b"b", 2, 5);
    assert_eq!(fs.devices().leave(1), Ok(Leaving::NoRoom { missing: 3 * BULK_BLOCK }));
    fs.unlink(ROOT, b"a").unwrap();
    fs.forget(fs.lookup(ROOT, b"b").unwrap().ino, 0);
    fs.sync().unwrap();
    fs.upkeep().tick().unwrap();
    assert_eq!(fs.devices().leave(0), Ok(Leaving::Now));
    assert_eq!(fs.devices().leave(1), Ok(Leaving::Last));
    fs.devices().stay(0).unwrap();
    assert_eq!(fs.devices().leave(1), Ok(Leaving::Now));
    let drained = fs.devices().drain(1, &mut |_| true).unwrap();
    assert_eq!((drained.moved, drained.stuck), (5, vec![]));
    assert_eq!(fs.devices().remove(1), Ok(true));
    let b = fs.lookup_held(ROOT, b"b").unwrap().ino;
    assert_eq!(read(fs, b, 0, 5 * BULK_BLOCK as usize), Ok(vec![2; 5 * BULK_BLOCK as usize]));
}

#[test]
fn battery_memory_that_was_lost_comes_back_with_the_list_of_its_image() {
    restored_lists();
}

/// Makes the store look like one of a program that knew no lists of devices.
fn unlist(world: &World) {
    let memory = world.memory(0);
    let mut page = [0; PAGE as usize];
    memory.read(SUPERBLOCK_AT, &mut page);
    let superblock = Superblock::decode(&page).unwrap();
    let features = superblock.features & !FEATURE_DEVICES;
    memory.write_through(SUPERBLOCK_AT, &Superblock { features, ..superblock }.encode());
    memory.write_through(BULK_LIST_AT.get(), &[0; PAGE as usize]);
}

#[test]
fn a_store_of_earlier_programs_gets_a_list_when_it_is_opened_for_writing() {
    for kind in [MemoryKind::Battery, MemoryKind::Dax] {
        let options = FormatOptions { sums: false, ..format_options(setup(kind), 1) };
        let world = with_more(setup(kind), format_with(setup(kind), 1, &options));
        unlist(&world);
        let listed = || {
            let (memory, mut pages) = (world.memory(0), [[0; PAGE as usize]; 2]);
            memory.read(SUPERBLOCK_AT, &mut pages[0]);
            memory.read(BULK_LIST_AT.get(), &mut pages[1]);
            decode_list(&pages[1], &Superblock::decode(&pages[0]).unwrap()).unwrap()
        };
        assert_eq!(listed(), None);
        let boot = Boot::first(true);
        let fs = try_open(&world, kind, boot, vec![], false).unwrap();
        assert!(fs.region().has_feature(FEATURE_DEVICES));
        assert_eq!(listed().unwrap().len(), 1);
        let file = create(&fs, b"file");
        fs.write(file, 0, &vec![1; 3 * BULK_BLOCK as usize]).unwrap();
        fs.shutdown().unwrap();
        drop(fs);
        let boot = boot.after(false);
        let fs = try_open(&world, kind, boot, vec![], false).unwrap();
        assert_eq!(fs.devices().add(&given(2, world.disk(2)), None), Ok(1));
        fs.shutdown().unwrap();
        drop(fs);
        let fs = try_open(&world, kind, boot.after(false), all_given(&world), false).unwrap();
        assert_eq!(fs.devices().states().len(), 2);
        assert_eq!(fs.devices().states()[1].bytes, BLOCKS * BULK_BLOCK, "the last block's room is the mark's");
        assert_eq!(read(&fs, file, 0, 10), Ok(vec![1; 10]));
    }
}

/// A disk whose host has room for only this many writes.
struct Full {
    disk: Arc<SimDisk>,
    writes: AtomicU64,
}

impl BlockDevice for Full {
    fn write_cache(&self) -> Option<&dyn WriteCache> {
        None
    }

    fn geometry(&self) -> BlockGeometry {
        self.disk.geometry()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.disk.submit(request, done);
    }

    fn write_from(&self, at: u64, bytes: &[u8]) -> shoal_media::Result<()> {
        let left = self.writes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        left.map_err(|_| MediaError::NoSpace { what: "full disk".into() })?;
        self.disk.write_from(at, bytes)
    }
}

#[test]
fn a_store_opens_on_a_host_that_has_no_room_for_its_devices_marks() {
    for (kind, writes) in
        [(MemoryKind::Logged, 0), (MemoryKind::Logged, 1), (MemoryKind::Battery, 0), (MemoryKind::Battery, 1)]
    {
        let pair = Pair::new(kind);
        let file = pair.file_on(1, b"file", 1, 2);
        pair.fs.sync().unwrap();
        let full =
            |world: &World| vec![given(1, Arc::new(Full { disk: world.disk(1), writes: AtomicU64::new(writes) }))];
        let (world, fs) = pair.again(false, false, full).unwrap_or_else(|error| panic!("{kind:?}, {writes}: {error}"));
        assert_eq!(read(&fs, file, 0, 10), Ok(vec![1; 10]));
        fs.shutdown().unwrap();
        drop(fs);
        for opening in 2..4 {
            let boot = Boot { opening, ..pair.boot };
            let fs = try_open(&world, kind, boot, vec![given(1, world.disk(1))], false)
                .unwrap_or_else(|error| panic!("{kind:?}, {writes}, opening {opening}: {error}"));
            assert_eq!(read(&fs, file, 0, 10), Ok(vec![1; 10]));
            fs.shutdown().unwrap();
        }
    }
}
