//! Older copies of a store's parts, put back by hand.
//!
//! A region and images that do not belong together are refused, by this program and by earlier
//! versions. So is bulk storage of another time.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::damaged_media::Scene;
use shoal_format::superblock::{
    FEATURE_ABSORBED, FEATURE_BLOCK_SUMS, FEATURE_BUCKETS, FEATURE_DEVICES, FEATURE_DICTIONARIES, FEATURE_INCARNATION,
    FEATURE_PACKED, FEATURE_SUMS, Superblock,
};
use shoal_format::{PAGE, checksum};

/// Features of a store that keeps checksums of its bulk storage.
const OF_BULK: u64 = FEATURE_DEVICES | FEATURE_BLOCK_SUMS | FEATURE_ABSORBED;

const FILES: [&str; 3] = ["store/image.0", "store/image.1", "region"];

fn keep(scene: &Scene) {
    fs::create_dir(scene.at("kept")).unwrap();
    fs::create_dir(scene.at("kept/store")).unwrap();
    FILES.iter().for_each(|name| put(scene, name, &format!("kept/{name}")));
}

fn put(scene: &Scene, from: &str, to: &str) {
    fs::copy(scene.at(from), scene.at(to)).unwrap();
}

fn put_back(scene: &Scene, names: &[&str]) {
    names.iter().for_each(|name| put(scene, &format!("kept/{name}"), name));
}

/// Makes a store that was saved, and keeps a copy of its files.
fn kept() -> Scene {
    let scene = Scene::battery();
    scene.mount();
    scene.write("common", "1");
    scene.umount();
    keep(&scene);
    scene.mount();
    scene.write("later", "2");
    scene
}

fn is_refused(scene: &Scene, sentence: &str) {
    let before = scene.sums();
    for args in [&["mount", "store", "mnt"][..], &["mount", "-o", "ro", "store", "mnt"]] {
        let refused = scene.exits(1, args);
        assert!(refused.contains(sentence) && refused.contains("--restore"), "{refused}");
    }
    scene.exits(8, &["check", "store"]);
    scene.exits(8, &["check", "--repair", "store"]);
    assert!(scene.sums() == before, "a refusal changes nothing");
}

#[test]
fn an_older_copy_of_the_region_is_refused() {
    for clean in [true, false] {
        let scene = kept();
        if clean {
            scene.umount();
        } else {
            scene.kill();
            // Save the store once more after the copy was made.
            scene.mount();
            scene.umount();
            scene.mount();
            scene.kill();
        }
        put(&scene, "region", "newer");
        put_back(&scene, &["region"]);
        is_refused(&scene, "the region is an older copy");
        let told = scene.exits(4, &["salvage", "store", "copy"]);
        assert!(told.contains("the region is an older copy"), "{told}");
        put(&scene, "newer", "region");
        scene.mount();
        assert!(scene.at("mnt/later").exists() && scene.at("mnt/common").exists());
        scene.umount();
        put_back(&scene, &["region"]);
        scene.ok(&["mount", "--restore", "store", "mnt"]);
        assert!(scene.at("mnt/later").exists() && scene.at("mnt/common").exists());
        scene.umount();
        assert!(scene.at("region.old-1").exists());
    }
}

#[test]
fn older_copies_of_the_images_are_refused() {
    for clean in [true, false] {
        let scene = kept();
        if clean {
            scene.umount()
        } else {
            scene.kill()
        }
        put(&scene, "store/image.0", "newer.0");
        put(&scene, "store/image.1", "newer.1");
        put_back(&scene, &FILES[..2]);
        is_refused(&scene, "the images are an older copy");
        let told = scene.exits(4, &["salvage", "store", "copy"]);
        assert!(told.contains("the images are an older copy") && scene.at("copy/later").exists(), "{told}");
        put(&scene, "newer.0", "store/image.0");
        put(&scene, "newer.1", "store/image.1");
        scene.mount();
        assert!(scene.at("mnt/later").exists());
        scene.umount();
        scene.ok(&["check", "store"]);
    }
}

#[test]
fn images_from_before_a_mount_that_was_cut_off_are_not_restored_unasked() {
    let scene = kept();
    scene.kill();
    put_back(&scene, &FILES[..2]);
    fs::remove_file(scene.at("region")).unwrap();
    let refused = scene.exits(1, &["mount", "store", "mnt"]);
    assert!(refused.contains("older than the store's last mount") && refused.contains("--restore"), "{refused}");
    scene.ok(&["mount", "--restore", "store", "mnt"]);
    assert!(scene.at("mnt/common").exists() && !scene.at("mnt/later").exists());
    scene.umount();
}

#[test]
fn an_older_program_is_told_not_to_open_a_battery_region() {
    let scene = kept();
    scene.umount();
    for name in FILES {
        assert_eq!(
            scene.head(name).0.features,
            FEATURE_INCARNATION | FEATURE_BUCKETS | FEATURE_DICTIONARIES | FEATURE_PACKED | FEATURE_SUMS | OF_BULK,
            "{name}"
        );
    }
    fs::remove_file(scene.at("region")).unwrap();
    scene.mount();
    scene.umount();
    for name in FILES {
        assert_eq!(
            scene.head(name).0.features,
            FEATURE_INCARNATION | FEATURE_BUCKETS | FEATURE_DICTIONARIES | FEATURE_PACKED | FEATURE_SUMS | OF_BULK,
            "{name}"
        );
    }
    scene.ok(&["check", "store"]);
    assert_eq!(
        Scene::logged().head("store/image.0").0.features,
        FEATURE_BUCKETS | FEATURE_DICTIONARIES | FEATURE_PACKED | FEATURE_SUMS | OF_BULK
    );
}

#[test]
fn a_store_of_a_later_program_is_refused_without_an_offer_to_go_back() {
    for (scene, name) in
        [(Scene::battery(), "region"), (Scene::logged(), "store/image.0"), (Scene::logged(), "store/image.1")]
    {
        scene.mount();
        scene.write("file", "1");
        scene.umount();
        let (file, mut page) = (scene.open(name), vec![0; PAGE as usize]);
        file.read_exact_at(&mut page, 0).unwrap();
        let superblock = Superblock::decode(&page).unwrap();
        file.write_all_at(&Superblock { features: superblock.features | 1 << 40, ..superblock }.encode(), 0).unwrap();
        let before = scene.sums();
        for args in [&["mount", "store", "mnt"][..], &["mount", "--restore", "store", "mnt"]] {
            let refused = scene.exits(1, args);
            assert!(refused.contains("a later version of shoal wrote it"), "{name}: {refused}");
            assert!(!refused.contains("salvage") && !refused.contains("mount with"), "{name}: {refused}");
        }
        assert!(scene.sums() == before, "a refusal changes nothing");
    }
}

#[test]
fn a_store_with_the_former_sums_is_used_as_it_is_and_copied_with_new_ones() {
    let scene = Scene::logged();
    scene.mount();
    scene.write("old", "before");
    scene.umount();
    for name in ["store/image.0", "store/image.1"] {
        let file = scene.open(name);
        let mut page = vec![0; PAGE as usize];
        file.read_exact_at(&mut page, 0).unwrap();
        let superblock = Superblock::decode(&page).unwrap();
        let features = superblock.features & !(FEATURE_BUCKETS | FEATURE_DICTIONARIES | FEATURE_PACKED | FEATURE_SUMS);
        file.write_all_at(&Superblock { features, ..superblock }.encode(), 0).unwrap();
        for number in 0..superblock.region_bytes / PAGE {
            let (mut sum, at) = ([0; 4], superblock.region_bytes + number * 4);
            if file.read_exact_at(&mut sum, at).is_ok() && sum != [0; 4] {
                file.read_exact_at(&mut page, number * PAGE).unwrap();
                file.write_all_at(&checksum(0, &page).to_le_bytes(), at).unwrap();
            }
        }
    }
    scene.ok(&["check", "store"]);
    scene.mount();
    scene.write("new", "behind");
    scene.umount();
    scene.ok(&["check", "store"]);
    assert!(["store/image.0", "store/image.1"].iter().all(|name| scene.head(name).0.features == OF_BULK));
    scene.ok(&["copy", "store", "copied"]);
    assert_eq!(scene.head("copied/image.0").0.features, FEATURE_SUMS | OF_BULK);
    scene.ok(&["check", "copied"]);
    scene.ok(&["mount", "copied", "mnt"]);
    assert!(scene.at("mnt/old").exists() && scene.at("mnt/new").exists());
    scene.umount();
}

/// Copies files and directories of a scene from one of its directories to another.
fn copy_all(scene: &Scene, names: &[&str], from: &str, to: &str) {
    fs::create_dir_all(scene.at(to).join("store")).unwrap();
    for name in names {
        let (source, target) = (scene.at(from).join(name), scene.at(to).join(name));
        let _ = fs::remove_file(&target);
        let _ = fs::remove_dir_all(&target);
        let copied = std::process::Command::new("cp").arg("-a").arg(source).arg(target).status().unwrap();
        assert!(copied.success());
    }
}

#[test]
fn bulk_storage_and_the_rest_of_a_store_from_two_backups_are_refused() {
    let images = ["store/image.0", "store/image.1"];
    for (scene, rest) in [(Scene::logged(), "store/log"), (Scene::battery(), "region")] {
        let (rest, bulk) = ([images[0], images[1], rest], ["store/bulk"]);
        let large = |byte: u8| vec![byte; 2 << 20];
        let keep = |to: &str| [&rest[..], &bulk].iter().for_each(|names| copy_all(&scene, names, ".", to));
        let holds = |byte: u8| {
            scene.mount();
            let (found, small) = (fs::read(scene.at("mnt/large")).unwrap(), fs::read(scene.at("mnt/small")).unwrap());
            scene.umount();
            assert!(found == large(byte) && small == [byte], "{} and {small:?} instead of {byte}", found[0]);
        };
        for byte in [1, 2] {
            scene.mount();
            scene.write("large", large(byte));
            scene.write("small", [byte]);
            scene.umount();
            keep(["", "older", "newer"][byte as usize]);
        }
        for (newer, older) in [(&rest[..], &bulk[..]), (&bulk, &rest)] {
            copy_all(&scene, newer, "newer", ".");
            copy_all(&scene, older, "older", ".");
            for args in [&["mount", "store", "mnt"][..], &["mount", "-o", "ro", "store", "mnt"]] {
                let refused = scene.exits(1, args);
                assert!(refused.contains("bulk device 0") && refused.contains("older copy"), "{refused}");
            }
        }
        // Without the matching bulk storage, the rest of the store is still usable.
        copy_all(&scene, &rest, "newer", ".");
        copy_all(&scene, &bulk, "older", ".");
        scene.ok(&["mount", "-o", "degraded", "store", "mnt"]);
        assert!(fs::read(scene.at("mnt/large")).is_err() && fs::read(scene.at("mnt/small")).unwrap() == [2]);
        scene.umount();
        // Each backup as a whole is a valid store.
        for (byte, from) in [(1, "older"), (2, "newer")] {
            copy_all(&scene, &rest, from, ".");
            copy_all(&scene, &bulk, from, ".");
            holds(byte);
        }
    }
}
