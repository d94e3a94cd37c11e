//! `shoal copy` and `shoal resize` on real stores: a copy holds what the original holds, takes little room, and is a store
//! of its own; a store of another size holds what it held, also when the change is cut off.
//!
//! Stores are filled through a mount, ended cleanly or by SIGKILL, and copied. Needs /dev/fuse; every program runs under
//! `timeout`, and what is mounted is unmounted at the end.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new(format: &[&str]) -> Scene {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(scene.at("mnt")).unwrap();
        let place = scene.text("store");
        let region = format!("battery={}", scene.text("region"));
        let format = format.iter().map(|word| if *word == "battery" { region.as_str() } else { word });
        let sizes = ["--memory-size", "64M", "--bulk-size", "1G"];
        scene.ok(&["format"].into_iter().chain(sizes).chain(format).chain([place.as_str()]).collect::<Vec<_>>());
        scene
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().into()
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.arg("60").arg(env!("CARGO_BIN_EXE_shoal")).args(args).stdin(Stdio::null());
        command.output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "shoal {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(!output.status.success(), "shoal {args:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn mount(&self, store: &str) {
        self.ok(&["mount", &self.text(store), &self.text("mnt")]);
    }

    fn umount(&self) {
        self.ok(&["umount", &self.text("mnt")]);
    }

    fn kill(&self) {
        let pid = fs::read_to_string(self.at("store/pid")).unwrap().lines().next().unwrap().parse().unwrap();
        let pid = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
        let begin = Instant::now();
        while nix::sys::signal::kill(pid, None).is_ok() {
            assert!(begin.elapsed() < Duration::from_secs(30), "the daemon does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.umount();
    }

    fn fill(&self) {
        let mnt = self.at("mnt");
        for i in 0..200 {
            fs::create_dir_all(mnt.join(format!("d{}", i % 7))).unwrap();
            fs::write(mnt.join(format!("d{}/f{i}", i % 7)), vec![i as u8; i * 97]).unwrap();
        }
        fs::write(mnt.join("large"), vec![7; 5 << 20]).unwrap();
        fs::hard_link(mnt.join("large"), mnt.join("d1/again")).unwrap();
        std::os::unix::fs::symlink("d1/f1", mnt.join("link")).unwrap();
        let sparse = fs::File::create(mnt.join("sparse")).unwrap();
        sparse.write_all_at(b"far away", 300 << 20).unwrap();
        // Room that was used and is not any more.
        fs::write(mnt.join("gone"), vec![9; 40 << 20]).unwrap();
        fs::remove_file(mnt.join("gone")).unwrap();
    }

    /// Every path of the mount: inode, mode, links, size, time, and a sum of the contents.
    fn tree(&self) -> BTreeMap<PathBuf, (u64, u32, u64, u64, i64, u64)> {
        let mut found = BTreeMap::new();
        let mut left = vec![self.at("mnt")];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                let m = fs::symlink_metadata(&path).unwrap();
                let sum = if m.is_file() {
                    fs::read(&path).unwrap().chunks(8192).fold(0u64, |sum, part| {
                        part.iter()
                            .fold(sum.rotate_left(5), |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte as u64))
                    })
                } else {
                    0
                };
                if m.is_dir() {
                    left.push(path.clone());
                }
                found.insert(path, (m.ino(), m.mode(), m.nlink(), m.len(), m.mtime_nsec(), sum));
            }
        }
        found
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.run(&["umount", "--lazy", &self.text("mnt")]);
    }
}

fn room(directory: &Path) -> u64 {
    let blocks = |path: &Path| fs::symlink_metadata(path).unwrap().blocks() * 512;
    fs::read_dir(directory)
        .unwrap()
        .map(|e| e.unwrap().path())
        .map(|p| if p.is_dir() { room(&p) } else { blocks(&p) })
        .sum()
}

/// Without the log, whose first segments are there in every store before anything is written.
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
    assert!(scene.refused(&["copy", &scene.text("store"), &scene.text("copy")]).contains("--force"));
    let uuid = |store: &str| -> serde_json::Value {
        let text = fs::read_to_string(scene.at(store).join("shoal.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["uuid"].clone()
    };
    assert_ne!(uuid("store"), uuid("copy"));
    scene.ok(&["copy", "--keep-uuid", &scene.text("store"), &scene.text("same")]);
    assert_eq!(uuid("store"), uuid("same"));
    // The original is not needed any more.
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

#[test]
fn a_store_of_another_size_holds_what_it_held() {
    for kind in [&[][..], &["--memory", "battery"]] {
        let scene = Scene::new(kind);
        scene.mount("store");
        scene.fill();
        // A directory of several levels, chunked files, attributes.
        fs::create_dir(scene.at("mnt/many")).unwrap();
        for i in 0..9000 {
            fs::write(scene.at("mnt/many").join(format!("a name of some length, number {i}")), [1; 30]).unwrap();
        }
        fs::write(scene.at("mnt/chunked"), (0..900_000u32).map(|i| (i / 7) as u8).collect::<Vec<_>>()).unwrap();
        let before = scene.tree();
        let refused = scene.refused(&["resize", "--memory-size", "1G", &scene.text("store")]);
        assert!(refused.contains("is mounted on"), "{refused}");
        scene.kill();
        let sizes = |memory: &str, bulk: &str| {
            let words = ["resize", "--json", "--memory-size", memory, "--bulk-size", bulk];
            scene.ok(&[&words[..], &[&scene.text("store")]].concat());
            scene.mount("store");
            assert!(scene.tree() == before, "{kind:?}: {memory} {bulk}");
            let df: serde_json::Value = serde_json::from_str(&scene.ok(&["df", "--json", &scene.text("mnt")])).unwrap();
            fs::write(scene.at("mnt/probe"), vec![5; 3 << 20]).unwrap();
            fs::write(scene.at("mnt/probe small"), vec![5; 3000]).unwrap();
            fs::remove_file(scene.at("mnt/probe")).unwrap();
            fs::remove_file(scene.at("mnt/probe small")).unwrap();
            scene.umount();
            scene.ok(&["check", &scene.text("store")]);
            (df["memory"]["size_bytes"].as_u64().unwrap(), df["bulk"]["size_bytes"].as_u64().unwrap())
        };
        let (memory, bulk) = sizes("8G", "40G");
        assert!(memory > 7 << 30 && bulk == 40 << 30);
        let (memory, bulk) = sizes("32M", "512M");
        assert!(memory < 32 << 20 && bulk == 512 << 20);
        if !kind.is_empty() {
            // Its ring alone takes so much.
            let refused = scene.refused(&["resize", "--memory-size", "8M", &scene.text("store")]);
            assert!(refused.contains("raise --memory-size") || refused.contains("give at least"), "{refused}");
        }
        let refused = scene.refused(&["resize", "--bulk-size", "1M", &scene.text("store")]);
        assert!(refused.contains("the last block in use"), "{refused}");
        scene.ok(&["check", &scene.text("store")]);
    }
}

#[test]
fn a_resize_that_is_cut_off_leaves_the_old_or_the_new_store() {
    for kind in [&[][..], &["--memory", "battery"]] {
        let scene = Scene::new(kind);
        scene.mount("store");
        scene.fill();
        let before = scene.tree();
        scene.umount();
        let limit = || {
            let df: serde_json::Value =
                serde_json::from_str(&scene.ok(&["df", "--json", &scene.text("store")])).unwrap();
            df["statfs"].to_string()
        };
        let first = limit();
        let mut outcomes = std::collections::BTreeSet::new();
        for round in 0..8u64 {
            let size = ["512M", "64M"][round as usize % 2];
            let mut command = Command::new(env!("CARGO_BIN_EXE_shoal"));
            command.args(["resize", "--memory-size", size, &scene.text("store")]).stdout(Stdio::null());
            let mut child = command.spawn().unwrap();
            std::thread::sleep(Duration::from_millis(2 + round * 12));
            let _ = child.kill();
            child.wait().unwrap();
            outcomes.insert(limit() == first);
            scene.ok(&["check", &scene.text("store")]);
            scene.mount("store");
            assert!(scene.tree() == before, "{kind:?}: round {round}");
            // Enough for images of both layouts to be written over.
            fs::write(scene.at("mnt/d1/f1"), vec![1; 97]).unwrap();
            fs::File::open(scene.at("mnt/d1/f1"))
                .unwrap()
                .set_modified(std::time::UNIX_EPOCH + Duration::from_nanos(before[&scene.at("mnt/d1/f1")].4 as u64))
                .unwrap();
            scene.umount();
        }
        println!("{kind:?}: {outcomes:?}");
    }
}
