//! `shoal format --profile` on real stores: inodes are packed with the profiles of the file, which
//! stay with the store.
//!
//! A tree is profiled, copied through a mount into stores of every kind of memory, and left to
//! cool. Needs /dev/fuse; every program runs under `timeout`, and every mount is undone at the end.

use std::fs;
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::Value;

use crate::scene::Scene;

const FILES: u64 = 600;

/// Makes a tree of source files with an archive's times, and its profile.
fn tree(scene: &Scene) -> [String; 2] {
    for directory in 0..FILES / 20 {
        let path = scene.at("tree").join(format!("d{directory}"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..20 {
            let lines = "a line of text\n".repeat(20 + (file * 37 + directory * 11) as usize % 400);
            fs::write(path.join(format!("f{file}")), lines).unwrap();
        }
    }
    date(scene);
    scene.ok(&["profile", "--out", &scene.text("p"), &scene.text("tree")]);
    [scene.text("tree"), scene.text("p")]
}

/// Sets the times of the tree, including access times, which a copy has changed.
fn date(scene: &Scene) {
    for directory in 0..FILES / 20 {
        let written = UNIX_EPOCH + Duration::from_secs(1_600_000_000 + directory * 3600);
        let times = fs::FileTimes::new().set_modified(written).set_accessed(written);
        for file in 0..20 {
            let path = scene.at("tree").join(format!("d{directory}/f{file}"));
            fs::File::open(path).unwrap().set_times(times).unwrap();
        }
    }
}

fn report(scene: &Scene, place: &str) -> Value {
    serde_json::from_str(&scene.ok(&["df", "--json", &scene.text(place)])).unwrap()
}

/// Copies the tree into a store, waits until everything is packed, and returns the bytes that
/// inodes take.
fn cooled(scene: &Scene, store: &str) -> u64 {
    date(scene);
    scene.ok(&["mount", "-o", "pack_age=1", &scene.text(store), &scene.text("mnt")]);
    let copied = std::process::Command::new("timeout")
        .args(["60", "cp", "-a", &scene.text("tree"), &scene.text("mnt")])
        .status()
        .unwrap();
    assert!(copied.success());
    let (begin, plain) = (Instant::now(), FILES * 96);
    let mut seen = (u64::MAX, Instant::now());
    let bytes = loop {
        let report = report(scene, "mnt");
        let bytes = report["metadata"]["inode_bytes"].as_u64().unwrap();
        if bytes != seen.0 {
            seen = (bytes, Instant::now());
        }
        if bytes < plain * 2 / 3 && seen.1.elapsed() > Duration::from_secs(4) {
            break bytes;
        }
        assert!(begin.elapsed() < Duration::from_secs(50), "{bytes} bytes are not packed");
        std::thread::sleep(Duration::from_millis(200));
    };
    scene.umount();
    scene.ok(&["check", &scene.text(store)]);
    bytes
}

fn comment(scene: &Scene, place: &str) -> String {
    let report = report(scene, place);
    assert_eq!(report["inode_profiles"]["profiles"], 2);
    report["inode_profiles"]["comment"].as_str().unwrap().into()
}

#[test]
fn a_profile_of_the_tree_packs_its_inodes_at_least_as_well_as_the_built_in_one() {
    let scene = Scene::new(&[]);
    let [tree, profile] = tree(&scene);
    let made = scene.ok(&["format", "--json", "--memory-size", "64M", "--profile", &profile, &scene.text("own")]);
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["inode_profiles"]["built_in"], &made["inode_profiles"]["profiles"]), (&false.into(), &2.into()));
    let (built_in, own) = (cooled(&scene, "store"), cooled(&scene, "own"));
    println!("{built_in} bytes of inodes, {own} with a profile of the tree");
    assert!(own < built_in * 9 / 10, "{own} bytes with a profile of the tree, {built_in} without");
    let made_by = format!("shoal profile {tree}\n");
    assert_eq!(comment(&scene, "own"), made_by);
    assert_eq!(report(&scene, "store")["inode_profiles"]["built_in"], true);
    let detail = scene.ok(&["df", "--detail", &scene.text("own")]);
    assert!(detail.contains(&format!("profiles     2, of {}", made_by.trim_end())), "{detail}");
    // The profiles stay with the store, even when its pieces move and its inodes are packed again.
    scene.ok(&["copy", &scene.text("own"), &scene.text("copy")]);
    scene.ok(&["resize", "--memory-size", "96M", &scene.text("copy")]);
    scene.ok(&["check", &scene.text("copy")]);
    assert_eq!(comment(&scene, "copy"), made_by);
    scene.ok(&["resize", "--memory-size", "24M", &scene.text("copy")]);
    scene.ok(&["check", &scene.text("copy")]);
    scene.mount("copy");
    assert_eq!(comment(&scene, "mnt"), made_by);
    let same = std::process::Command::new("timeout")
        .args(["60", "diff", "-r", &tree, &scene.text("mnt/tree")])
        .status()
        .unwrap();
    assert!(same.success());
    scene.umount();
}

#[test]
fn stores_of_every_memory_and_of_the_smallest_size_take_profiles() {
    let scene = Scene::new(&[]);
    let [tree, profile] = tree(&scene);
    for kind in ["logged", "battery", "dax"] {
        let memory = match kind {
            "logged" => kind.to_string(),
            _ => format!("{kind}={}", scene.text(&format!("{kind}.region"))),
        };
        let sizes = ["--memory-size", "8M", "--bulk", "none", "--memory", &memory, "--profile", &profile];
        scene.ok(&[&["format"], &sizes[..], &["--force", &scene.text(kind)]].concat());
        assert_eq!(comment(&scene, kind), format!("shoal profile {tree}\n"), "{kind}");
        cooled(&scene, kind);
        assert_eq!(comment(&scene, kind), format!("shoal profile {tree}\n"), "{kind}");
    }
    // A battery store continues from its image when its memory is gone.
    fs::remove_file(scene.at("battery.region")).unwrap();
    scene.ok(&["mount", "--restore", &scene.text("battery"), &scene.text("mnt")]);
    assert_eq!(comment(&scene, "mnt"), format!("shoal profile {tree}\n"));
    scene.umount();
    scene.ok(&["check", &scene.text("battery")]);
}

#[test]
fn a_file_that_is_no_profile_is_refused_and_no_store_is_made() {
    let scene = Scene::new(&[]);
    fs::write(scene.at("text"), "not a profile, but long enough to have a header").unwrap();
    let refused = scene.refused(&["format", "--profile", &scene.text("text"), &scene.text("new")]);
    assert!(refused.contains(&scene.text("text")) && refused.contains("make one with `shoal profile"), "{refused}");
    assert!(!scene.at("new").exists());
    let refused = scene.refused(&["format", "--profile", &scene.text("text"), "netram:unix:/x,unix:/y"]);
    assert!(refused.contains("--profile: is only for a store"), "{refused}");
}
