//! Damage in the image that does not count (the standby): it must not go live, and whoever looks is told.
//!
//! A checkpoint writes into the standby only what changed, so what lies in it must be known to be right.

mod damaged_media;

use std::fs;
use std::os::unix::fs::FileExt;

use damaged_media::{Scene, Tree};
use shoal_format::{PAGE, checksum};

/// A store that both images hold nearly all of, unmounted, and what is in it.
fn two_images() -> (Scene, Tree) {
    let scene = Scene::logged();
    scene.mount();
    fs::create_dir(scene.at("mnt/dir")).unwrap();
    for number in 0..200u32 {
        scene.write(&format!("dir/f{number}"), vec![b'A' + (number % 26) as u8; 9000]);
    }
    scene.umount();
    for round in 0..3 {
        scene.mount();
        scene.write(&format!("round{round}"), [round]);
        scene.umount();
    }
    scene.mount();
    let tree = scene.tree();
    scene.umount();
    (scene, tree)
}

/// Two more lives of the store, each of which seals an image: it stays what it is.
fn goes_on(scene: &Scene, tree: &Tree, what: &str) {
    for round in 0..2 {
        scene.mount();
        assert!(&scene.tree() == tree, "{what}: round {round}: another tree");
        scene.write("dir/f0", vec![b'A'; 9000]);
        scene.umount();
        let found = scene.exits(0, &["check", "store"]);
        assert!(found.contains("no errors; unmounted cleanly"), "{what}: round {round}: {found}");
    }
}

#[test]
fn damage_of_the_standby_image_does_not_go_live() {
    let (scene, tree) = two_images();
    let damages: [(&str, fn(&Scene, &str)); 6] = [
        ("cut to nothing", |scene, image| scene.open(image).set_len(0).unwrap()),
        ("cut within its pages", |scene, image| scene.open(image).set_len(1_500_000).unwrap()),
        ("cut within its sums", |scene, image| {
            let sums = scene.head(image).0.region_bytes;
            scene.open(image).set_len(sums + 100).unwrap();
        }),
        ("a page of zeros", |scene, image| {
            let at = scene.find(image, &[b'C'; 9000]);
            scene.open(image).write_all_at(&vec![0; 8192], at).unwrap();
        }),
        ("the superblock", |scene, image| scene.flip(image, 20)),
        ("a flipped bit", |scene, image| scene.flip(image, scene.find(image, &[b'D'; 9000]) + 77)),
    ];
    for (what, damage) in damages {
        let (_, standby) = scene.images();
        damage(&scene, standby);
        let before = scene.sums();
        let found = scene.exits(0, &["check", "store"]);
        // An empty one is no damage: a copy of a store has one image alone.
        let noted = found.contains("note: image") && found.contains("the next checkpoint writes");
        assert_eq!(noted, what != "cut to nothing", "{what}: {found}");
        assert!(scene.sums() == before, "{what}: a check writes nothing");
        goes_on(&scene, &tree, what);
        let found = scene.exits(0, &["check", "store"]);
        assert!(!found.contains("note: image"), "{what}: mended, and still noted: {found}");
    }
}

#[test]
fn an_older_copy_of_the_standby_image_does_not_go_live() {
    let (scene, _) = two_images();
    let (_, standby) = scene.images();
    fs::copy(scene.at(standby), scene.at("copy")).unwrap();
    for (round, byte) in [(0, b'x'), (1, b'y'), (2, b'z')] {
        scene.mount();
        scene.write("dir/f3", vec![byte; 9000]);
        scene.write("dir/f4", vec![round; 100]);
        scene.umount();
    }
    scene.mount();
    let tree = scene.tree();
    scene.umount();
    // The old pages below the anchors of the present ones, with sums of their own that are right.
    let (_, standby) = scene.images();
    let anchors = fs::read(scene.at(standby)).unwrap()[PAGE as usize..2 * PAGE as usize].to_vec();
    fs::copy(scene.at("copy"), scene.at(standby)).unwrap();
    scene.open(standby).write_all_at(&anchors, PAGE).unwrap();
    goes_on(&scene, &tree, "older copy");
}

#[test]
fn a_wrong_page_of_the_newest_image_is_not_sealed_as_right() {
    let (scene, _) = two_images();
    scene.mount();
    // In the newest image alone: the next checkpoint copies the page from memory, which has it from there.
    scene.write("dir/late", vec![b'!'; 9000]);
    scene.umount();
    let (newest, _) = scene.images();
    let at = scene.find(newest, &[b'!'; 9000]) + 4000;
    scene.flip(newest, at);
    scene.exits(4, &["check", "store"]);
    scene.mount();
    scene.write("round1", "again");
    scene.umount();
    let found = scene.exits(4, &["check", "store"]);
    assert!(found.contains(&format!("page {}", at / PAGE)), "{found}");
    let (newest, _) = scene.images();
    let mut page = vec![0; PAGE as usize];
    let file = scene.open(newest);
    file.read_exact_at(&mut page, at / PAGE * PAGE).unwrap();
    let mut sum = [0; 4];
    file.read_exact_at(&mut sum, scene.head(newest).0.region_bytes + at / PAGE * 4).unwrap();
    assert_ne!(u32::from_le_bytes(sum), checksum(0, &page));
}

#[test]
fn a_missing_image_is_named_with_what_can_be_done() {
    let (scene, tree) = two_images();
    let (newest, _) = scene.images();
    fs::rename(scene.at(newest), scene.at("away")).unwrap();
    for args in [&["mount", "store", "mnt"][..], &["df", "store"]] {
        let refused = scene.exits(1, args);
        assert!(refused.contains("image.") && refused.contains("shoal salvage"), "{refused}");
    }
    // The other image, and the log since it was written, hold everything.
    scene.exits(0, &["salvage", "store", "copy"]);
    assert!(damaged_media::read_tree(&scene.at("copy")) == tree);
    fs::rename(scene.at("away"), scene.at(newest)).unwrap();
    scene.mount();
    scene.umount();
}
