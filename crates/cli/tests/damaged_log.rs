//! A damaged record in the middle of the log is refused and named. It is never taken for the log's
//! end.
//!
//! Tested in the ring of a `battery` region and in the log files of `logged` memory, after the
//! process was killed.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::damaged_media::{Scene, Tree, read_tree};

/// Kills the daemon of a store that has a log to replay. Returns the tree.
fn killed(scene: &Scene) -> Tree {
    scene.mount();
    fs::create_dir(scene.at("mnt/dir")).unwrap();
    for number in 0..100 {
        scene.write(&format!("f{number}"), format!("first contents of {number}"));
    }
    for number in 0..100 {
        scene.write(&format!("f{number}"), format!("second contents of {number}, other ones"));
        if number % 10 == 0 {
            fs::rename(scene.at(&format!("mnt/f{number}")), scene.at(&format!("mnt/dir/f{number}"))).unwrap();
        }
    }
    let tree = scene.tree();
    scene.kill();
    tree
}

#[test]
fn a_flipped_bit_in_a_ring_record_is_refused_and_salvaged() {
    let scene = Scene::battery();
    let tree = killed(&scene);
    fs::copy(scene.at("region"), scene.at("whole")).unwrap();
    // The ring lies before the pieces of files, so the first match is the record.
    let at = scene.find("region", b"second contents of 50, other ones");
    let superblock = scene.head("region").0;
    let ring = superblock.ring.get()..(superblock.ring + superblock.ring_bytes).get();
    assert!(ring.contains(&at), "in the ring");
    scene.flip("region", at);
    let before = scene.sums();
    for args in [&["mount", "store", "mnt"][..], &["mount", "-o", "ro", "store", "mnt"]] {
        let refused = scene.exits(1, args);
        assert!(refused.contains("the log is damaged at position"), "{refused}");
        assert!(refused.contains("shoal salvage") && refused.contains("--restore"), "{refused}");
    }
    scene.exits(8, &["check", "store"]);
    scene.exits(8, &["check", "--repair", "store"]);
    let told = scene.exits(4, &["salvage", "store", "copy"]);
    assert!(told.contains("a record of the log is damaged"), "{told}");
    assert!(scene.sums() == before, "nothing of it writes");
    assert!(read_tree(&scene.at("copy")) == tree, "every change had reached the memory");
    // The operator may choose to continue from the image; the region is kept.
    scene.ok(&["mount", "--restore", "store", "mnt"]);
    scene.umount();
    assert!(scene.at("region.old-1").exists());
    // Without damage, a mount recovers from the same crash.
    let scene = Scene::battery();
    let tree = killed(&scene);
    scene.mount();
    assert!(scene.tree() == tree);
    scene.umount();
}

#[test]
fn a_damaged_sector_in_the_ring_is_not_taken_for_its_end() {
    for bytes in [512, 4096] {
        let scene = Scene::battery();
        let tree = killed(&scene);
        let at = scene.find("region", b"second contents of 33, other ones");
        scene.open("region").write_all_at(&vec![0xa5; bytes], at / 512 * 512).unwrap();
        let refused = scene.exits(1, &["mount", "store", "mnt"]);
        assert!(refused.contains("the log is damaged at position"), "{bytes}: {refused}");
        scene.exits(4, &["salvage", "store", "copy"]);
        assert!(read_tree(&scene.at("copy")) == tree, "{bytes}");
    }
}

#[test]
fn a_flipped_bit_in_the_log_on_disk_is_refused_while_the_machine_was_up() {
    let scene = Scene::logged();
    let tree = killed(&scene);
    let log = fs::read_dir(scene.at("store/log")).unwrap().map(|entry| entry.unwrap().path());
    let log = log.into_iter().find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log-")).unwrap();
    let name = log.strip_prefix(scene.at("")).unwrap().to_str().unwrap().to_string();
    let at = scene.find(&name, b"second contents of 50, other ones");
    scene.flip(&name, at);
    let before = scene.sums();
    let refused = scene.exits(1, &["mount", "store", "mnt"]);
    assert!(refused.contains("the log is damaged at position") && refused.contains("shoal salvage"), "{refused}");
    let found = scene.exits(4, &["check", "store"]);
    assert!(found.contains("a record is damaged"), "{found}");
    scene.exits(4, &["check", "--repair", "store"]);
    let told = scene.exits(4, &["salvage", "store", "copy"]);
    assert!(told.contains("a record of the log is damaged"), "{told}");
    assert!(scene.sums() == before, "nothing of it writes");
    // Only one record is missing, not all that follow it.
    let copy = read_tree(&scene.at("copy"));
    let missing: Vec<_> = tree.iter().filter(|(path, bytes)| copy.get(*path) != Some(*bytes)).collect();
    assert!(missing.len() <= 2, "{missing:?}");
    scene.flip(&name, at);
    scene.mount();
    assert!(scene.tree() == tree);
    scene.umount();
}
