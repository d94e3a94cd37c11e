//! Tests of the inode table: no number is given out twice, whatever is half-way when blocks are looked through.
//!
//! The moments between a commit and what follows from it are made by hand: other threads are what takes, looks and frees
//! there in life. Left out: the layout of records (`shoal-format`).

use super::*;
use crate::test_store::TestStore;
use crate::{Caller, ROOT};

/// A store with `files` files, opened again: none of its blocks was looked through.
fn opened(files: u64) -> Fs {
    let store = TestStore::new(0);
    let fs = store.open(2);
    for number in 0..files {
        fs.mknod(&Caller::default(), ROOT, format!("{number}").as_bytes(), 0o644, 0).unwrap();
    }
    fs.shutdown().unwrap();
    drop(fs);
    store.open(3)
}

/// Takes numbers until the table has grown.
fn take_all(fs: &Fs) -> Vec<Ino> {
    let blocks = fs.table.blocks();
    let mut claims = Vec::new();
    while fs.table.blocks() == blocks {
        claims.push(fs.table.take(&fs.region).unwrap());
    }
    claims.iter().map(|claim| claim.ino).collect()
}

#[test]
fn a_number_taken_but_not_committed_is_not_found_free_in_its_block() {
    let fs = opened(100);
    let ino = fs.lookup(ROOT, b"70", false).unwrap().ino;
    fs.unlink(ROOT, b"70").unwrap();
    let taken = fs.table.take(&fs.region).unwrap();
    assert_eq!(taken.ino, ino, "the last one freed is the first one taken");
    assert!(!take_all(&fs).contains(&ino), "given out twice");
    drop(taken);
    assert!(take_all(&fs).contains(&ino), "free again");
}

#[test]
fn a_number_freed_but_not_given_back_is_not_found_free_in_its_block() {
    let fs = opened(100);
    let ino = fs.lookup(ROOT, b"70", false).unwrap().ino;
    let generation = fs.load(ino).unwrap().generation;
    let (mut tx, mut removal) = (fs.region.begin(), fs.removal());
    removal.free(&mut tx, ino, generation).unwrap();
    tx.commit().unwrap();
    assert!(!take_all(&fs).contains(&ino), "given out before its user let go of it");
    removal.committed();
    assert!(take_all(&fs).contains(&ino));
}

#[test]
fn numbers_of_a_new_block_are_not_found_again_when_the_search_reaches_it() {
    // More full blocks than one search looks through: the table grows before it has seen them all.
    let fs = opened(SCAN_BLOCKS * INODES_PER_BLOCK * 2);
    let mut claims: Vec<Claim<'_>> = (0..200).map(|_| fs.table.take(&fs.region).unwrap()).collect();
    let mut numbers: Vec<Ino> = claims.iter().map(|claim| claim.ino).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), claims.len());
    claims.clear();
}
