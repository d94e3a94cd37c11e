//! Tests of the inode table: no number is given out twice, whatever is half done when blocks are
//! looked through.
//!
//! The moments between a commit and what follows from it are made by hand; in production other
//! threads take numbers, look through blocks and free numbers there. A claim that keeps blocks from
//! being packed and moved while a full store loses files is made by hand, too. Left out: the layout
//! of records (`shoal-format`).

use super::*;
use crate::test_store::TestStore;
use shoal_format::slot::CLASS_SIZES;
use shoal_media::Clock;
use shoal_sim::Random;

use crate::{Caller, ROOT, SetAttr, TimeChange};

/// Opens a store with `files` files anew: none of its blocks was looked through.
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
    let ino = fs.lookup(ROOT, b"70").unwrap().ino;
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
    let ino = fs.lookup(ROOT, b"70").unwrap().ino;
    let generation = fs.load(ino).unwrap().generation;
    let (mut tx, mut removal) = (fs.region.begin(), fs.tree().removal());
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

/// Returns times that have nothing to do with any others.
fn times(random: &mut Random) -> SetAttr {
    let mut time = || Some(TimeChange::At(random.below(1 << 60) as i64));
    SetAttr { atime: time(), mtime: time(), ..SetAttr::default() }
}

/// Adds a directory with some files, of which the first is also in another directory.
fn grow_tree(fs: &Fs, random: &mut Random, dirs: &mut Vec<Ino>) -> Result<()> {
    let dir = fs.mkdir(&Caller::default(), ROOT, format!("d{}", dirs.len()).as_bytes(), 0o755)?.ino;
    for file in 0..=random.index(40) {
        let name = format!("f{file}");
        let ino = fs.mknod(&Caller::default(), dir, name.as_bytes(), 0o644, 0)?.ino;
        if file == 0 {
            fs.link(ino, ROOT, format!("l{}", dirs.len()).as_bytes())?;
            dirs.push(dir);
        }
        fs.setattr(ino, &times(random))?;
    }
    Ok(())
}

#[test]
fn a_full_store_loses_files_while_no_block_can_be_packed_or_moved() {
    let store = TestStore::new(0);
    let fs = store.open(2);
    let (mut dirs, mut random) = (Vec::new(), Random::new(3));
    for _ in 0..4 {
        while grow_tree(&fs, &mut random, &mut dirs).is_ok() {}
        fs.compacting().pack_inodes_now().unwrap();
    }
    while grow_tree(&fs, &mut random, &mut dirs).is_ok() {}
    // Use up what is left for blocks in either form, as other removals would.
    for bytes in CLASS_SIZES.iter().filter(|bytes| (192..=1536).contains(*bytes)) {
        let take = || {
            let mut tx = fs.region.begin_reclaim();
            tx.alloc(u64::from(*bytes))?;
            tx.commit()
        };
        while take().is_ok() {}
        assert!(matches!(take(), Err(shoal_region::Error::NoSpace(_))));
    }
    assert!(dirs.len() > 2000, "{} directories", dirs.len());
    let claim = fs.table.take(&fs.region).unwrap();
    // Far from the times that the blocks were packed with.
    store.clock.advance(1 << 60);
    let now = store.clock.now_ns();
    for (turn, &dir) in random.shuffled(dirs.iter()).into_iter().enumerate() {
        let file = fs.lookup(dir, b"f0").unwrap().ino;
        fs.unlink(dir, b"f0").unwrap_or_else(|error| panic!("{turn} of {}: {error}", dirs.len()));
        let (dir, file) = (fs.getattr(dir).unwrap(), fs.getattr(file).unwrap());
        assert_eq!((dir.mtime, dir.ctime, file.ctime, file.nlink), (now, now, now, 1));
    }
    drop(claim);
    // Compaction comes to an end.
    fs.compacting().compact().unwrap();
}
