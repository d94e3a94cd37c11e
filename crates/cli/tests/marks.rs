//! `shoal check` and the marks of bulk devices: the check finds exactly what a mount refuses.
//!
//! Stores of one and of two devices, with parts replaced by those of another time, another place or
//! another store; also sound stores, including those of a daemon that was killed while it held back
//! writes. Left out: devices on servers (`tests/nbd`), the marks themselves (the checker's own
//! tests).

use std::fs;
use std::os::unix::fs::FileExt;

use crate::damaged_media::Scene;

const LARGE: usize = 2 << 20;

/// Makes a store with a second bulk device that is as large as the first.
fn two_devices() -> Scene {
    let scene = Scene::logged();
    // The device needs the same number of blocks, and room for the mark.
    let bytes = fs::metadata(scene.at("store/bulk")).unwrap().len();
    fs::File::create(scene.at("second")).unwrap().set_len(bytes).unwrap();
    scene.ok(&["bulk", "add", "--size", "16M", "store", "second"]);
    scene
}

/// Mounts the store, writes large files and unmounts it.
fn use_once(scene: &Scene, byte: u8) {
    scene.mount();
    // New files go to the device with the most free space. The first file uses that up, so the
    // second one goes to the other device.
    (0..2).for_each(|number| scene.write(&format!("large{number}"), vec![byte; LARGE]));
    scene.umount();
}

fn put(scene: &Scene, from: &str, to: &str) {
    let _ = fs::remove_dir_all(scene.at(to));
    let mut cp = std::process::Command::new("cp");
    let copied = cp.args(["-a", "--no-target-directory"]).arg(scene.at(from)).arg(scene.at(to)).status().unwrap();
    assert!(copied.success());
}

/// Copies the bytes of a file into another, which stays the same file.
fn fill(scene: &Scene, from: &str, to: &str) {
    fs::write(scene.at(to), fs::read(scene.at(from)).unwrap()).unwrap();
}

fn json(scene: &Scene, code: i32) -> serde_json::Value {
    serde_json::from_str(&scene.exits(code, &["check", "--json", "store"])).unwrap()
}

/// Returns kind and sentence of each finding in a list.
fn list(report: &serde_json::Value, name: &str) -> Vec<(String, String)> {
    let text = |finding: &serde_json::Value, field: &str| finding[field].as_str().unwrap().to_string();
    report[name].as_array().unwrap().iter().map(|it| (text(it, "kind"), text(it, "sentence"))).collect()
}

/// Asserts that check and mount find the store sound.
fn is_sound(scene: &Scene, what: &str) {
    let report = json(scene, 0);
    assert_eq!(list(&report, "errors"), [], "{what}");
    let marks: Vec<_> = list(&report, "notes").into_iter().filter(|(kind, _)| kind.starts_with("Bulk")).collect();
    assert_eq!(marks, [], "{what}");
    scene.ok(&["mount", "-o", "ro", "store", "mnt"]);
    scene.umount();
}

/// Asserts that the check finds exactly these kinds, changes nothing, says what a mount says, and
/// offers no repair.
fn is_found(scene: &Scene, what: &str, kinds: &[&str]) {
    let before = scene.sums();
    let errors = list(&json(scene, 4), "errors");
    assert_eq!(errors.iter().map(|(kind, _)| kind.as_str()).collect::<Vec<_>>(), kinds, "{what}: {errors:?}");
    let (text, repair) = (scene.exits(4, &["check", "store"]), scene.exits(4, &["check", "--repair", "store"]));
    for (_, sentence) in &errors {
        assert!(text.contains(&format!("error: {sentence}")) && repair.contains(sentence), "{what}: {text}{repair}");
    }
    assert!(!repair.contains("repair: "), "{what}: {repair}");
    scene.exits(4, &["check", "--no-sums", "store"]);
    let refused = scene.exits(1, &["mount", "-o", "ro", "store", "mnt"]);
    // The mount's error contains the cause that the check reports first, without the remedy.
    let (cause, remedy) = errors[0].1.split_once("; ").unwrap();
    assert!(refused.contains(cause.split_once(": ").unwrap().1), "{what}: {cause}: {refused}");
    assert!(remedy.starts_with("bring together what belongs together"), "{what}: {remedy}");
    let is_battery = fs::read_to_string(scene.at("store/shoal.json")).unwrap().contains("battery");
    let memory: &[&str] = if is_battery { &["--memory", "battery=copied.region"] } else { &[] };
    let copy = scene.exits(1, &[&["copy"], memory, &["store", "copied"]].concat());
    assert!(copy.contains("is damaged") && !scene.at("copied").exists(), "{what}: {copy}");
    assert!(scene.sums() == before, "{what}: a look changes the store");
}

#[test]
fn a_device_of_another_time_or_place_is_found_as_a_mount_finds_it() {
    let scene = two_devices();
    use_once(&scene, 1);
    is_sound(&scene, "two devices");
    for name in ["store/bulk", "second", "store/log", "store/image.0", "store/image.1"] {
        fs::create_dir_all(scene.at("older/store")).unwrap();
        put(&scene, name, &format!("older/{name}"));
    }
    use_once(&scene, 2);
    for name in ["store/bulk", "second", "store/log", "store/image.0", "store/image.1", "store/shoal.json"] {
        fs::create_dir_all(scene.at("newer/store")).unwrap();
        put(&scene, name, &format!("newer/{name}"));
    }
    let back = |what: &str| {
        fill(&scene, "newer/store/bulk", "store/bulk");
        fill(&scene, "newer/second", "second");
        fill(&scene, "newer/store/shoal.json", "store/shoal.json");
        is_sound(&scene, what);
    };
    is_sound(&scene, "used twice");
    for (name, number) in [("store/bulk", 0), ("second", 1)] {
        fill(&scene, &format!("older/{name}"), name);
        is_found(&scene, "an older copy", &["BulkOlder"]);
        let text = scene.exits(4, &["check", "store"]);
        assert!(text.contains(&format!("error: bulk device {number} (file:")), "{text}");
        back("the newer one is back");
    }
    fill(&scene, "newer/second", "store/bulk");
    fill(&scene, "newer/store/bulk", "second");
    is_found(&scene, "swapped", &["BulkSwapped", "BulkSwapped"]);
    back("swapped again");
    let mark_at = 16 << 20;
    scene.open("second").write_all_at(&[0xa5; 512], mark_at).unwrap();
    is_found(&scene, "an overwritten mark", &["BulkMark"]);
    scene.ok(&["salvage", "store", "salvaged"]);
    assert!((0..2).all(|number| fs::read(scene.at(&format!("salvaged/large{number}"))).unwrap() == vec![2; LARGE]));
    back("the mark is back");
    scene.open("second").set_len(mark_at).unwrap();
    is_found(&scene, "cut before its mark", &["BulkMark"]);
    scene.open("second").set_len(mark_at - 512).unwrap();
    is_found(&scene, "cut", &["BulkSize"]);
    back("whole again");
    let other = two_devices();
    fs::write(scene.at("second"), fs::read(other.at("second")).unwrap()).unwrap();
    is_found(&scene, "another store's", &["BulkOtherStore"]);
    back("the store's own");
    // Restore the description from before the device was added.
    let text = fs::read_to_string(scene.at("store/shoal.json")).unwrap();
    let mut description: serde_json::Value = serde_json::from_str(&text).unwrap();
    description.as_object_mut().unwrap().remove("more_bulk");
    fs::write(scene.at("store/shoal.json"), description.to_string()).unwrap();
    is_found(&scene, "not named", &["BulkNowhere"]);
    back("named again");
    // A device is away: the store can do without either one, and the check says what it did not
    // see.
    for name in ["second", "store/bulk"] {
        fs::rename(scene.at(name), scene.at("away")).unwrap();
        let report = json(&scene, 0);
        let notes = list(&report, "notes");
        let [(kind, sentence)] = &notes[..] else { panic!("{notes:?}") };
        assert!(kind == "BulkMark" && sentence.contains("was not compared") && sentence.contains(name), "{sentence}");
        scene.ok(&["mount", "-o", "degraded", "store", "mnt"]);
        scene.umount();
        assert_eq!(list(&json(&scene, 0), "notes"), notes);
        fs::rename(scene.at("away"), scene.at(name)).unwrap();
        is_sound(&scene, "it was away for a mount");
    }
    // The log and the images lack the last mounts.
    for name in ["store/log", "store/image.0", "store/image.1"] {
        put(&scene, &format!("older/{name}"), name);
    }
    is_found(&scene, "an older log with older images", &["BulkNewer", "BulkNewer"]);
}

/// A resize moves the place of the first device's mark, and with it comes a new mark. Its epoch
/// follows the earlier ones, also where one of these is still there.
#[test]
fn a_mark_that_begins_anew_outdates_earlier_copies() {
    let scene = Scene::logged();
    use_once(&scene, 1);
    put(&scene, "store/bulk", "old");
    use_once(&scene, 2);
    scene.ok(&["resize", "--bulk-size", "32M", "store"]);
    scene.ok(&["resize", "--bulk-size", "16M", "store"]);
    for mounts in 1..5 {
        use_once(&scene, 2);
        put(&scene, "store/bulk", "now");
        fill(&scene, "old", "store/bulk");
        is_found(&scene, &format!("an older copy, {mounts} mounts after a resize"), &["BulkOlder"]);
        fill(&scene, "now", "store/bulk");
    }
    is_sound(&scene, "the store's own");
}

#[test]
fn a_region_may_be_older_than_its_bulk_storage_only_where_a_restore_is_all_that_is_left() {
    let scene = Scene::battery();
    use_once(&scene, 1);
    is_sound(&scene, "battery memory");
    fs::create_dir_all(scene.at("older/store")).unwrap();
    put(&scene, "region", "older/region");
    for image in ["image.0", "image.1"] {
        put(&scene, &format!("store/{image}"), &format!("older/store/{image}"));
    }
    use_once(&scene, 2);
    use_once(&scene, 3);
    for name in ["region", "store/image.0", "store/image.1"] {
        put(&scene, &format!("older/{name}"), name);
    }
    is_found(&scene, "region and images of before", &["BulkNewer"]);
    fs::remove_file(scene.at("region")).unwrap();
    is_found(&scene, "images of before alone", &["BulkNewer"]);
    // The store without its memory is restored from the images.
    scene.ok(&["mount", "--restore", "store", "mnt"]);
    scene.umount();
    is_sound(&scene, "restored");
    fs::remove_file(scene.at("region")).unwrap();
    is_sound(&scene, "saved images alone");
    // A killed daemon left images that are older than its bulk storage. The store continues from
    // them if told to.
    use_once(&scene, 4);
    for image in ["image.0", "image.1"] {
        put(&scene, &format!("store/{image}"), &format!("older/store/{image}"));
    }
    use_once(&scene, 5);
    scene.mount();
    scene.kill();
    for image in ["image.0", "image.1"] {
        put(&scene, &format!("older/store/{image}"), &format!("store/{image}"));
    }
    fs::remove_file(scene.at("region")).unwrap();
    let errors = list(&json(&scene, 4), "errors");
    assert_eq!(errors.iter().map(|(kind, _)| kind.as_str()).collect::<Vec<_>>(), ["RegionGone"], "{errors:?}");
    scene.ok(&["mount", "--restore", "store", "mnt"]);
    scene.kill();
    is_sound(&scene, "restored, and killed before it was saved");
}

#[test]
fn a_restore_that_is_cut_off_before_the_bulk_devices_have_marks_can_be_gone_on_with() {
    let scene = Scene::battery();
    use_once(&scene, 1);
    // No image knows of these mounts: the device is newer by more than one opening.
    for byte in 2..4 {
        scene.mount();
        scene.write(&format!("unsaved{byte}"), vec![byte; LARGE]);
        scene.kill();
    }
    fs::remove_file(scene.at("region")).unwrap();
    // The region is restored, but the device is not opened.
    let cut_off = || {
        fs::rename(scene.at("store/bulk"), scene.at("bulk")).unwrap();
        scene.exits(1, &["mount", "--restore", "store", "mnt"]);
        assert!(scene.at("region").exists(), "nothing was restored");
        fs::rename(scene.at("bulk"), scene.at("store/bulk")).unwrap();
    };
    cut_off();
    is_sound(&scene, "restored, and cut off");
    // Repeat it: nobody has used the region.
    cut_off();
    assert!(!scene.at("region.old-1").exists(), "there is nothing to keep");
    is_sound(&scene, "restored twice, and cut off");
    scene.mount();
    assert!((0..2).all(|number| fs::read(scene.at(&format!("mnt/large{number}"))).unwrap() == vec![1; LARGE]));
    assert!(!scene.at("mnt/unsaved2").exists());
    scene.write("large0", vec![4; LARGE]);
    scene.kill();
    // Now the region holds what the image does not.
    let refused = scene.exits(1, &["mount", "--restore", "store", "mnt"]);
    assert!(refused.contains("the region is there"), "{refused}");
    is_sound(&scene, "used, and killed");
    scene.mount();
    assert!(fs::read(scene.at("mnt/large0")).unwrap() == vec![4; LARGE]);
    scene.umount();
}

#[test]
fn a_restore_can_be_asked_for_when_the_region_came_back_unasked_and_was_refused() {
    let scene = Scene::battery();
    use_once(&scene, 1);
    fs::create_dir_all(scene.at("older/store")).unwrap();
    let images = ["store/image.0", "store/image.1"];
    images.iter().for_each(|image| put(&scene, image, &format!("older/{image}")));
    use_once(&scene, 2);
    use_once(&scene, 3);
    images.iter().for_each(|image| put(&scene, &format!("older/{image}"), image));
    fs::remove_file(scene.at("region")).unwrap();
    let refused = scene.exits(1, &["mount", "store", "mnt"]);
    assert!(refused.contains("an older copy") && scene.at("region").exists(), "{refused}");
    is_found(&scene, "restored unasked", &["BulkNewer"]);
    scene.ok(&["mount", "--restore", "store", "mnt"]);
    scene.kill();
    is_sound(&scene, "restored on purpose");
}

#[test]
fn a_store_of_a_killed_daemon_is_sound_with_what_was_held_back() {
    let scene = two_devices();
    for round in 1..=3u8 {
        scene.ok(&["mount", "-o", "update_policy=aipu:1h", "store", "mnt"]);
        for number in 0..4 {
            scene.write(&format!("large{number}"), vec![round; LARGE]);
        }
        let report: serde_json::Value = serde_json::from_str(&scene.ok(&["bulk", "list", "--json", "store"])).unwrap();
        let held = |number: usize| report[number]["held_bytes"].as_u64().unwrap();
        assert!(held(0) > 0 && held(1) > 0, "nothing is held back: {report}");
        scene.kill();
        assert!(scene.at("store/cache").exists() && scene.at("store/cache.1").exists());
        is_sound(&scene, "killed, with held writes");
        // Another device lies below the held writes.
        fs::rename(scene.at("second"), scene.at("away")).unwrap();
        fill(&scene, "store/bulk", "second");
        is_found(&scene, "another device below what is held", &["BulkSwapped"]);
        fs::rename(scene.at("away"), scene.at("second")).unwrap();
    }
    scene.mount();
    assert!((0..4).all(|number| fs::read(scene.at(&format!("mnt/large{number}"))).unwrap() == vec![3; LARGE]));
    scene.umount();
    is_sound(&scene, "unmounted");
}

#[test]
fn devices_without_room_for_a_mark_and_stores_without_bulk_storage_gain_no_finding() {
    let scene = Scene::new(&["--memory-size", "16M", "--bulk", "none"]);
    is_sound(&scene, "without bulk storage");
    let scene = Scene::logged();
    // After a resize the device has its mark elsewhere, from the next mount on.
    use_once(&scene, 1);
    scene.ok(&["resize", "--bulk-size", "24M", "store"]);
    is_sound(&scene, "resized");
    use_once(&scene, 2);
    is_sound(&scene, "resized and used");
    scene.ok(&["resize", "--bulk-size", "32M", "store"]);
    scene.open("store/bulk").set_len(32 << 20).unwrap();
    use_once(&scene, 3);
    is_sound(&scene, "a device that is used in full");
}
