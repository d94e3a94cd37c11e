//! Records after the end of a log that are witnesses of more (`format::vouch`): lost writes are
//! found, and nothing that a crash leaves is mistaken for one.
//!
//! The cases for lost writes are in `witness`, which the search for planted bugs uses too. The
//! enumeration in `crash` checks that no crash state of other runs is refused.

use shoal_region::{Error, Region};
use shoal_sim::World;

use crate::witness::{commit, last, limits, lose_appends, lost_appends_are_found, media, store};

#[test]
fn flushed_records_that_a_disk_lost_are_found_after_any_crash() {
    lost_appends_are_found().unwrap();
}

#[test]
fn records_that_no_flush_covered_are_missed_after_the_death_of_the_process_alone() {
    let (world, region, slot) = store();
    drop(region);
    let (region, _) = Region::open(media(&world, 1), false).unwrap();
    lose_appends(&world, 1, 3);
    (1..8).for_each(|n| commit(&region, slot, n, 100));
    let point = world.snapshot();
    assert!(matches!(last(&point.process_crash().open(), slot, 1), Err(Error::LogGap { .. })));
    // After a reboot, a power loss may have taken the lost records.
    assert_eq!(last(&point.process_crash().open(), slot, 2).unwrap(), 1);
}

#[test]
fn an_epoch_record_that_a_disk_lost_is_missed_even_behind_a_clean_end() {
    for clean in [true, false] {
        let (world, region, slot) = store();
        commit(&region, slot, 1, 100);
        if clean {
            region.shutdown().unwrap();
        }
        drop(region);
        lose_appends(&world, 0, 1);
        let (region, _) = Region::open(media(&world, 1), false).unwrap();
        commit(&region, slot, 2, 100);
        for boot in [1, 2] {
            let found = last(&world.snapshot().process_crash().open(), slot, boot);
            assert!(matches!(found, Err(Error::LogGap { .. })), "clean {clean}, boot {boot}: {found:?}");
        }
    }
}

#[test]
fn after_a_checkpoint_lost_records_are_found_and_what_it_holds_is_not_missed() {
    let (world, region, slot) = store();
    lose_appends(&world, 1, 2);
    (1..6).for_each(|n| commit(&region, slot, n, 100));
    region.checkpoint().unwrap();
    assert_eq!(last(&world.snapshot().process_crash().open(), slot, 1).unwrap(), 5, "the image has them");
    commit(&region, slot, 6, 100);
    lose_appends(&world, 0, 2);
    (7..12).for_each(|n| commit(&region, slot, n, 100));
    region.sync().unwrap();
    let found = last(&world.snapshot().process_crash().open(), slot, 1);
    assert!(matches!(found, Err(Error::LogGap { .. })), "{found:?}");
}

/// Opens the store in `boot`, commits records of these lengths, and returns the last one's number.
fn go_on(world: &World, slot: shoal_format::SlotRef, boot: u8, lens: &[usize]) -> u64 {
    let (region, _) = Region::open(media(world, boot), false).unwrap();
    for (n, &len) in (100 * u64::from(boot)..).zip(lens) {
        commit(&region, slot, n, len);
    }
    100 * u64::from(boot) + lens.len() as u64 - 1
}

#[test]
fn the_tail_that_a_power_loss_left_behind_is_no_witness_in_any_later_life() {
    let (world, region, slot) = store();
    (1..4).for_each(|n| commit(&region, slot, n, 700));
    region.sync().unwrap();
    // Some of the records vouch for the flush, but none of them is certain to be there.
    (4..9).for_each(|n| commit(&region, slot, n, 700));
    let mut states = 0;
    for first in world.snapshot().power_losses(&limits()) {
        let now = first.open();
        let kept = last(&now, slot, 2).unwrap();
        assert!((3..9).contains(&kept), "{}: {kept}", first.name());
        // Mounts that log several amounts, and end within the old tail or continue past it.
        for lens in [&[30][..], &[600, 30], &[700, 700, 30]] {
            let second = now.snapshot().process_crash().open();
            let written = go_on(&second, slot, 2, lens);
            let end = second.snapshot();
            assert_eq!(last(&end.process_crash().open(), slot, 2).unwrap(), written, "{}", first.name());
            for third in end.power_losses(&limits()) {
                let third = third.open();
                last(&third, slot, 3).unwrap();
                let again = go_on(&third, slot, 3, &[30]);
                assert_eq!(last(&third.snapshot().process_crash().open(), slot, 3).unwrap(), again);
                states += 1;
            }
        }
    }
    assert!(states > 500, "{states}");
}
