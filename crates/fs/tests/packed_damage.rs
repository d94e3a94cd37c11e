//! Damaged objects: an error or the right bytes, and no other file's room, whatever is done with
//! the file afterwards.
//!
//! The searches are in `packing`. Left out: single flipped bits that a read must refuse
//! (`packed_files`), stores of packed inodes alone (`packed`).

use crate::crash::{deep, number};
use crate::packing::damage::{damages, freed_by_repair};
use crate::packing::{WORKS, stray_references};

#[test]
fn an_object_that_refers_to_another_ones_piece_frees_and_moves_nothing_of_it() {
    for (what, work) in WORKS {
        let damaged = stray_references(what, work);
        assert!(damaged > 5, "{what}: {damaged}");
    }
}

#[test]
fn damaged_stores_of_packed_files_give_errors_or_the_right_bytes() {
    let first = number("SHOAL_SEED").unwrap_or(0);
    let rounds = number("SHOAL_SEEDS").unwrap_or(if deep() { 20_000 } else { 80 });
    let (found, tried) = damages(first, rounds);
    println!("{found} of {tried} damages found");
    assert!(first > 0 || found > tried / 2, "{found} of {tried} damages found");
}

#[test]
fn a_repair_frees_the_pieces_of_a_damaged_object_once_its_file_is_gone() {
    freed_by_repair();
}
