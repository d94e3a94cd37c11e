//! Damaged objects: an error or the right bytes, and nobody else's room, whatever is done with the file afterwards.
//!
//! Stores of packed files are damaged in heads, references, payloads, chunk maps and packed inodes. Files that were not
//! damaged keep their bytes while the others are read, changed and removed, the store is compacted, and what is free is
//! written again. Left out: single flipped bits that a read must refuse (`packed_files`), stores of packed inodes alone (`packed`).

use crate::packing::{WORKS, stray_references};

#[test]
fn an_object_that_refers_to_another_ones_piece_frees_and_moves_nothing_of_it() {
    for (what, work) in WORKS {
        let damaged = stray_references(what, work);
        assert!(damaged > 5, "{what}: {damaged}");
    }
}
