//! `shoal copy` on real stores: the copy has the original's contents, takes little space, and is an
//! independent store.
//!
//! Stores are filled through a mount, ended cleanly or by SIGKILL, and copied. Needs /dev/fuse;
//! every program runs under `timeout`, and every mount is undone at the end.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use shoal_format::PAGE;
use shoal_format::superblock::Superblock;

use crate::damaged_media::seal;
use crate::scene::Scene;

fn room(directory: &Path) -> u64 {
    let blocks = |path: &Path| fs::symlink_metadata(path).unwrap().blocks() * 512;
    fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|p| if p.is_dir() { room(&p) } else { blocks(&p) })
        .sum()
}

/// Returns the bytes of the store without its log, whose first segments exist before anything is
/// written.
fn room_without_log(store: &Path) -> u64 {
    room(store) - room(&store.join("log"))
}

#[test]
fn a_copy_holds_the_same_in_little_room_and_is_a_store_of_its_own() {
    let scene = Scene::new(&[]);
    scene.mount("store");
    scene.fill();
    let before = scene.tree();
    let refused = scene.refused(&["copy", &scene.text("store"), &scene.text("copy")]);
    assert!(refused.contains("is mounted on") && !scene.at("copy").exists(), "{refused}");
    scene.umount();
    let report = scene.ok(&["copy", "--json", &scene.text("store"), &scene.text("copy")]);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["inodes"], 7 + 200 + 4);
    let (took, needs) = (room_without_log(&scene.at("copy")), (5 << 20) + (2 << 20) + 200 * 97 * 100);
    assert!(took < needs, "the copy takes {took} bytes for {needs}");
    let refused = scene.refused(&["copy", &scene.text("store"), &scene.text("copy")]);
    assert!(refused.contains("is not empty; name an empty or a new directory"), "{refused}");
    assert!(!refused.contains("--force"), "`copy` has no such option: {refused}");
    let uuid = |store: &str| -> serde_json::Value {
        let text = fs::read_to_string(scene.at(store).join("shoal.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["uuid"].clone()
    };
    assert_ne!(uuid("store"), uuid("copy"));
    scene.ok(&["copy", "--keep-uuid", &scene.text("store"), &scene.text("same")]);
    assert_eq!(uuid("store"), uuid("same"));
    // The original is no longer needed.
    fs::rename(scene.at("store"), scene.at("aside")).unwrap();
    scene.mount("copy");
    assert_eq!(scene.tree(), before);
    fs::write(scene.at("mnt/large"), vec![8; 6 << 20]).unwrap();
    scene.umount();
    scene.ok(&["check", &scene.text("copy")]);
    scene.mount("copy");
    assert_eq!(fs::read(scene.at("mnt/d1/again")).unwrap(), vec![8; 6 << 20]);
}

#[test]
fn what_a_crash_left_is_finished_in_the_copy_alone() {
    for kind in [&[][..], &["--memory", "battery"]] {
        let scene = Scene::new(kind);
        scene.mount("store");
        scene.fill();
        let orphan = fs::File::create(scene.at("mnt/orphan")).unwrap();
        fs::remove_file(scene.at("mnt/orphan")).unwrap();
        let before = scene.tree();
        scene.kill();
        drop(orphan);
        let state = |store: &str| {
            let output = scene.run(&["check", "--json", &scene.text(store)]);
            serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()["clean"].clone()
        };
        let region = format!("battery={}", scene.text("copy.region"));
        let memory = if kind.is_empty() { "logged" } else { &region };
        if !kind.is_empty() {
            let refused = scene.refused(&["copy", &scene.text("store"), &scene.text("copy")]);
            assert!(refused.contains("--memory battery=PATH") && !scene.at("copy").exists(), "{refused}");
        }
        scene.ok(&["copy", "--memory", memory, &scene.text("store"), &scene.text("copy")]);
        assert_eq!((state("store"), state("copy")), (false.into(), true.into()));
        scene.mount("copy");
        assert!(scene.tree() == before, "{kind:?}: the copy differs");
        scene.umount();
        scene.mount("store");
        assert!(scene.tree() == before, "{kind:?}: the original differs");
        scene.umount();
        scene.ok(&["check", &scene.text("copy")]);
    }
}

/// A copy must not hide damage: bytes that fail the original's checksums get no new checksums in
/// the copy, and do not lose theirs.
#[test]
fn damage_of_bulk_storage_stays_damage_in_a_copy() {
    for (kind, killed) in [&[][..], &["--memory", "battery"]].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        let scene = Scene::new(kind);
        scene.mount("store");
        fs::write(scene.at("mnt/large"), vec![7; 3 << 20]).unwrap();
        fs::File::open(scene.at("mnt/large")).unwrap().sync_all().unwrap();
        if killed {
            scene.kill()
        } else {
            scene.umount()
        }
        let bulk = fs::File::options().read(true).write(true).open(scene.at("store/bulk")).unwrap();
        let mut bytes = vec![0; bulk.metadata().unwrap().len() as usize];
        bulk.read_exact_at(&mut bytes, 0).unwrap();
        let at = bytes.windows(512).position(|part| part == [7; 512]).expect("the file is there");
        bulk.write_all_at(&[9; 512], at as u64).unwrap();
        let region = format!("battery={}", scene.text("copy.region"));
        let memory = if kind.is_empty() { "logged" } else { &region };
        scene.ok(&["copy", "--memory", memory, &scene.text("store"), &scene.text("copy")]);
        for store in ["store", "copy"] {
            scene.ok(&["mount", "-o", "ro", &scene.text(store), &scene.text("mnt")]);
            let found = fs::read(scene.at("mnt/large")).map_err(|error| error.raw_os_error());
            assert_eq!(found.map(|bytes| bytes.len()), Err(Some(5)), "{kind:?}, killed: {killed}, {store}");
            scene.umount();
        }
    }
}

#[test]
fn a_refused_copy_leaves_nothing_behind() {
    let scene = Scene::new(&[]);
    scene.mount("store");
    fs::write(scene.at("mnt/large"), vec![7; 3 << 20]).unwrap();
    fs::create_dir(scene.at("mnt/dir")).unwrap();
    scene.umount();
    let names = |directory: &Path| {
        let mut names: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let (top, store) = (names(&scene.at("")), names(&scene.at("store")));
    let refused = scene.refused(&["copy", &scene.text("store"), &scene.text("store/new/copy")]);
    assert!(refused.contains("lies in the store; name another directory"), "{refused}");
    assert_eq!(names(&scene.at("store")), store, "nothing is made in the store");
    fs::write(scene.at("file"), "x").unwrap();
    scene.refused(&["copy", &scene.text("store"), &scene.text("file")]);
    scene.refused(&["copy", &scene.text("store"), &scene.text("file/copy")]);
    fs::remove_file(scene.at("file")).unwrap();
    // A wrong link count: a mount does not notice it, but the check of the copy finds it.
    let json = scene.ok(&["inspect", "--json", &scene.text("store"), "/large"]);
    let at = serde_json::from_str::<serde_json::Value>(&json).unwrap()["record_at"].as_u64().unwrap();
    for image in ["store/image.0", "store/image.1"] {
        let file = fs::File::options().read(true).write(true).open(scene.at(image)).unwrap();
        let mut record = [0; shoal_format::inode::INODE_RECORD];
        file.read_exact_at(&mut record, at).unwrap();
        let decoded = shoal_format::inode::Inode::decode(&record);
        let Ok(shoal_format::inode::InodeSlot::Used(mut inode)) = decoded else { continue };
        inode.nlink = 9;
        file.write_all_at(&inode.encode(), at).unwrap();
        let mut page = vec![0; PAGE as usize];
        file.read_exact_at(&mut page, 0).unwrap();
        let superblock = Superblock::decode(&page).unwrap();
        seal(&file, &superblock, at..at + record.len() as u64);
    }
    let refused = scene.refused(&["copy", &scene.text("store"), &scene.text("new/copy")]);
    assert!(refused.contains("link"), "{refused}");
    assert_eq!(names(&scene.at("")), top, "the directories made for the copy are gone");
    // A directory that existed before stays, and can be used again.
    fs::create_dir(scene.at("there")).unwrap();
    scene.refused(&["copy", &scene.text("store"), &scene.text("there")]);
    assert!(names(&scene.at("there")).iter().all(|name| name == "lock"));
}

#[test]
fn a_copy_that_is_cut_off_is_no_store() {
    let scene = Scene::new(&[]);
    scene.mount("store");
    scene.fill();
    scene.umount();
    let mut cut_off = 0;
    for delay_ms in 0..12 {
        let copy = format!("copy{delay_ms}");
        let mut child = Command::new(env!("CARGO_BIN_EXE_shoal"));
        let mut child =
            child.args(["copy", &scene.text("store"), &scene.text(&copy)]).stdout(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms * 5));
        let _ = child.kill();
        let finished = child.wait().unwrap().success();
        let described = scene.at(&copy).join("shoal.json").exists();
        assert!(described || !finished);
        cut_off += !described as u32;
        if described {
            scene.ok(&["check", &scene.text(&copy)]);
        } else {
            assert!(!scene.run(&["mount", &scene.text(&copy), &scene.text("mnt")]).status.success());
        }
    }
    println!("{cut_off} copies were cut off");
    assert!(cut_off > 0);
    scene.ok(&["check", &scene.text("store")]);
}
