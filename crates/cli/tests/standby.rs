//! Damage in the image that is not in use (the standby) must not go live, and `shoal check` must
//! report it.
//!
//! A checkpoint writes only changed pages into the standby, so the other pages in it must be known
//! to be right.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::damaged_media::{Scene, Tree};
use shoal_format::PAGE;

/// The name of a damage, and the function that applies it to an image.
type Damage = (&'static str, fn(&Scene, &str));

/// Makes an unmounted store whose images both hold nearly everything. Also returns its tree.
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

/// Mounts the store twice more, which seals one image each. Its contents must stay the same.
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
    let damages: [Damage; 6] = [
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
        // An empty image is not damage: a copy of a store has only one image.
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
    // The standby gets old pages with their own correct sums, below the anchors of the present
    // pages.
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
    // The damage is only in the newest image. The next checkpoint copies the page from memory,
    // which was read from that image.
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
    let superblock = scene.head(newest).0;
    file.read_exact_at(&mut sum, superblock.region_bytes + at / PAGE * 4).unwrap();
    assert_ne!(u32::from_le_bytes(sum), superblock.sums().of_page(at / PAGE, &page));
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
    // The other image and the log since then hold everything.
    scene.exits(0, &["salvage", "store", "copy"]);
    assert!(crate::damaged_media::read_tree(&scene.at("copy")) == tree);
    fs::rename(scene.at("away"), scene.at(newest)).unwrap();
    scene.mount();
    scene.umount();
}

/// Returns the tree that `salvage` copies, and its messages.
fn salvaged(scene: &Scene, code: i32) -> (Tree, String) {
    let before = scene.sums();
    let told = scene.exits(code, &["salvage", "store", "copy"]);
    assert!(scene.sums() == before, "salvage writes nothing into the store");
    let tree = crate::damaged_media::read_tree(&scene.at("copy"));
    fs::remove_dir_all(scene.at("copy")).unwrap();
    (tree, told)
}

#[test]
fn salvage_takes_from_the_other_image_what_the_newest_has_lost() {
    let (scene, _) = two_images();
    scene.mount();
    // The file is only in the newest image and in the log.
    scene.write("dir/late", vec![b'!'; 9000]);
    let tree = scene.tree();
    scene.umount();
    let (newest, _) = scene.images();
    fs::copy(scene.at(newest), scene.at("whole")).unwrap();
    let damages: [Damage; 6] = [
        ("a bit of an old page", |scene, image| scene.flip(image, scene.find(image, &[b'D'; 9000]) + 77)),
        ("a bit of a page the other has not", |scene, image| scene.flip(image, scene.find(image, &[b'!'; 9000]) + 77)),
        ("pages of zeros", |scene, image| {
            let at = scene.find(image, &[b'C'; 9000]) / PAGE * PAGE;
            scene.open(image).write_all_at(&vec![0; 12288], at).unwrap();
        }),
        ("the inode table", |scene, image| {
            scene.open(image).write_all_at(&vec![0xee; 4096], 5 * 65536 / PAGE * PAGE).unwrap();
        }),
        ("cut within its pages", |scene, image| scene.open(image).set_len(1_500_000).unwrap()),
        ("cut to nothing", |scene, image| scene.open(image).set_len(0).unwrap()),
    ];
    for (what, damage) in damages {
        damage(&scene, newest);
        let (copy, told) = salvaged(&scene, 0);
        assert!(copy == tree, "{what}: {told}");
        fs::copy(scene.at("whole"), scene.at(newest)).unwrap();
    }
    // Without the log only data that is also in the other image is certain.
    fs::rename(scene.at("store/log"), scene.at("log")).unwrap();
    scene.flip(newest, scene.find(newest, &[b'D'; 9000]) + 77);
    scene.flip(newest, scene.find(newest, &[b'!'; 9000]) + 77);
    let (copy, told) = salvaged(&scene, 4);
    assert!(told.contains("dir/late: bytes") && !told.contains("dir/f3:"), "{told}");
    assert_eq!(tree.iter().filter(|(path, bytes)| copy.get(*path) != Some(*bytes)).count(), 1, "{told}");
    fs::copy(scene.at("whole"), scene.at(newest)).unwrap();
    // Pages that are missing entirely come from the older image and are named.
    scene.open(newest).set_len(1_500_000).unwrap();
    let (copy, told) = salvaged(&scene, 4);
    assert!(told.contains("taken from the older image") && told.contains("ends at byte 1500000"), "{told}");
    let other = tree.iter().filter(|(path, bytes)| copy.get(*path) != Some(*bytes));
    assert!(
        other.clone().all(|(path, _)| path.ends_with("late")),
        "{:?}",
        other.map(|(path, _)| path).collect::<Vec<_>>()
    );
}

#[test]
fn salvage_says_what_is_missing_of_the_log() {
    let scene = Scene::logged();
    scene.mount();
    for number in 0..50 {
        scene.write(&format!("f{number}"), vec![number; 3000]);
    }
    scene.kill();
    let segment = || {
        let mut paths = fs::read_dir(scene.at("store/log")).unwrap().map(|entry| entry.unwrap().path());
        paths.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("log-")).unwrap()
    };
    let whole = fs::read(segment()).unwrap();
    // The cut is behind the records: no record is known to be missing, but the file is shorter than
    // it was.
    fs::write(segment(), &whole[..40_000]).unwrap();
    let (_, told) = salvaged(&scene, 4);
    assert!(told.contains("has 40000 of 33554432 bytes"), "{told}");
    let refused = scene.exits(1, &["mount", "store", "mnt"]);
    assert!(refused.contains("shoal salvage"), "{refused}");
    fs::write(segment(), &whole).unwrap();
    // Leave a hole in the middle of the log.
    let later = scene.at("store/log").join(format!("log-{:016x}", 2 * (32u64 << 20)));
    fs::write(&later, vec![0; 32 << 20]).unwrap();
    let (_, told) = salvaged(&scene, 4);
    assert!(told.contains("the log's segment from position 33554432 on is missing"), "{told}");
    // The log ends within a segment that exists, so that is its end, and the other file is not part
    // of it.
    fs::remove_file(&later).unwrap();
    let first = segment();
    fs::rename(&first, scene.at("first")).unwrap();
    fs::write(&later, vec![0; 32 << 20]).unwrap();
    let refused = scene.exits(1, &["mount", "store", "mnt"]);
    assert!(refused.contains("shoal salvage"), "{refused}");
    fs::remove_file(&later).unwrap();
    fs::rename(scene.at("first"), &first).unwrap();
    let (_, told) = salvaged(&scene, 0);
    assert!(told.contains("nothing is lost"), "{told}");
}
