//! A mount reads the bitmaps of segments when it needs them, and keeps some segments for
//! transactions that free others.
//!
//! Left out: the cases themselves (`slots`).

use crate::slots;

#[test]
fn a_mount_reads_no_bitmap_that_nothing_asks_for() {
    slots::a_mount_reads_no_bitmap_that_nothing_asks_for();
}

#[test]
fn what_is_left_unread_is_allocated_and_freed_as_if_it_were_read() {
    slots::what_is_left_unread_is_allocated_and_freed_as_if_it_were_read();
}

#[test]
fn segments_whose_bitmaps_are_unread_are_emptied_as_if_they_were_read() {
    slots::segments_whose_bitmaps_are_unread_are_emptied_as_if_they_were_read();
}

#[test]
fn an_abandoned_run_leaves_the_bitmaps_of_the_segments_it_was_to_take() {
    slots::an_abandoned_run_leaves_the_bitmaps_of_the_segments_it_was_to_take();
}

#[test]
fn a_full_region_has_room_for_what_frees_some() {
    slots::a_full_region_has_room_for_what_frees_some();
}
