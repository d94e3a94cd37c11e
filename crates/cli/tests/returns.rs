//! Bulk devices that return to a mounted store, on real mounts: writes held for them, and files
//! that only look like them.
//!
//! Needs root and /dev/fuse; every program runs under `timeout`. Every mount is undone at the end,
//! even after a panic. Left out: openings (`crates/store/tests/held_several`).

use std::fs;
use std::ops::Deref;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::scene;

const BYTES: usize = 3 << 20;
const HOLDS: &str = "update_policy=aipu:1h,cache_size=64M";
/// Options under which writes do not wait: held writes leave at once.
const HOLDS_NOT: &str = "degraded,update_policy=write-through,cache_size=64M";

struct Scene(scene::Scene);

impl Deref for Scene {
    type Target = scene::Scene;

    fn deref(&self) -> &scene::Scene {
        &self.0
    }
}

impl Scene {
    /// Makes and mounts a store with two devices. Returns `None` without root, which mounting
    /// needs.
    fn new() -> Option<Scene> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let scene = Scene(scene::Scene { dir: tempfile::tempdir().unwrap() });
        fs::create_dir(scene.at("mnt")).unwrap();
        scene.format("store", &scene.bulk(0));
        let second = format!("file:{}", scene.bulk(1).display());
        scene.ok(&["bulk", "add", "--size", "64M", &scene.text("store"), &second]);
        scene.mount_with(HOLDS);
        Some(scene)
    }

    fn format(&self, store: &str, bulk: &Path) {
        let bulk = format!("file:{}", bulk.display());
        let sizes = ["--memory-size", "32M", "--bulk-size", "64M"];
        self.ok(&[&["format", "--bulk", &bulk][..], &sizes, &[&self.text(store)]].concat());
    }

    fn bulk(&self, number: usize) -> PathBuf {
        self.at(["bulk-0", "bulk-1"][number])
    }

    fn mount_with(&self, options: &str) {
        self.ok(&["mount", "-o", options, &self.text("store"), &self.text("mnt")]);
    }

    fn retry(&self, number: usize) -> Output {
        self.run(&["bulk", "retry", &self.text("mnt"), &number.to_string()])
    }

    /// Returns the names of files that have data on a device.
    fn files_on(&self, number: usize) -> Vec<String> {
        let listed = self.ok(&["bulk", "files", "--json", &self.text("mnt"), &number.to_string()]);
        let listed: Vec<serde_json::Value> = serde_json::from_str(&listed).unwrap();
        listed.iter().map(|file| file["path"].as_str().unwrap().trim_start_matches('/').to_owned()).collect()
    }

    fn write(&self, name: &str) {
        fs::write(self.at("mnt").join(name), vec![7; BYTES]).unwrap();
    }

    fn holds(&self, name: &str) -> bool {
        fs::read(self.at("mnt").join(name)).is_ok_and(|bytes| bytes == vec![7; BYTES])
    }

    /// Brings back the right device and asserts that the held writes are there.
    fn comes_back(&self, number: usize, away: &Path, names: &[String]) {
        fs::rename(away, self.bulk(number)).unwrap();
        assert!(self.retry(number).status.success());
        assert!(names.iter().all(|name| self.holds(name)), "device {number}: {names:?}");
        self.umount();
    }

    /// Writes files to both devices. Returns the names of those on device `number`.
    fn fill_for(&self, number: usize) -> Vec<String> {
        (0..8).for_each(|file| self.write(&format!("file-{file}")));
        let names = self.files_on(number);
        assert!(!names.is_empty() && names.len() < 8, "both devices have some of the files: {names:?}");
        names
    }

    /// Like `fill_for`, but kills the daemon, so that the writes stay held for the devices.
    fn waits(&self, number: usize) -> Vec<String> {
        let names = self.fill_for(number);
        self.kill();
        names
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for note in ["cache", "cache.1"] {
            let note = fs::read_to_string(self.at("store").join(note)).unwrap_or_default();
            let _ = note.lines().next().map(fs::remove_file);
        }
    }
}

#[test]
fn nothing_that_is_held_goes_to_a_file_that_only_has_the_name_of_the_device() {
    for number in 0..2 {
        let Some(scene) = Scene::new() else { return };
        let names = scene.waits(number);
        let away = scene.at("away");
        fs::rename(scene.bulk(number), &away).unwrap();
        scene.mount_with(HOLDS_NOT);
        // Use the device of another store, of the same size.
        scene.format("other", &scene.bulk(number));
        let before = fs::read(scene.bulk(number)).unwrap();
        for _ in 0..3 {
            let retried = scene.retry(number);
            assert_eq!(retried.status.code(), Some(1), "{retried:?}");
            std::thread::sleep(Duration::from_millis(300));
        }
        assert!(fs::read(scene.bulk(number)).unwrap() == before, "another store's device was written");
        scene.comes_back(number, &away, &names);
    }
}

#[test]
fn a_smaller_file_with_the_name_of_the_device_leaves_what_is_held() {
    for number in 0..2 {
        let Some(scene) = Scene::new() else { return };
        let names = scene.waits(number);
        let away = scene.at("away");
        fs::rename(scene.bulk(number), &away).unwrap();
        scene.mount_with(HOLDS_NOT);
        fs::write(scene.bulk(number), [0; 1 << 20]).unwrap();
        assert_eq!(scene.retry(number).status.code(), Some(1));
        scene.comes_back(number, &away, &names);
    }
}

#[test]
fn a_copy_from_before_a_device_was_brought_back_is_an_older_one() {
    for (number, was_clean) in [(0, false), (1, false), (0, true), (1, true)] {
        let Some(scene) = Scene::new() else { return };
        let names = scene.fill_for(number);
        scene.umount();
        let (away, copy, good) = (scene.at("away"), scene.at("copy"), scene.at("good"));
        fs::copy(scene.bulk(number), &copy).unwrap();
        fs::rename(scene.bulk(number), &away).unwrap();
        scene.mount_with(HOLDS_NOT);
        fs::rename(&away, scene.bulk(number)).unwrap();
        assert!(scene.retry(number).status.success());
        // These writes are durable, and unknown to the copy.
        for name in &names {
            let file = fs::OpenOptions::new().write(true).open(scene.at("mnt").join(name)).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![8; BYTES], 0).unwrap();
            file.sync_all().unwrap();
        }
        if was_clean {
            scene.umount()
        } else {
            scene.kill()
        }
        fs::rename(scene.bulk(number), &good).unwrap();
        fs::copy(&copy, scene.bulk(number)).unwrap();
        let refused = scene.run(&["mount", &scene.text("store"), &scene.text("mnt")]);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(refused.status.code() == Some(1) && said.contains("older copy"), "device {number}: {said}");
        fs::rename(&good, scene.bulk(number)).unwrap();
        scene.mount_with(HOLDS);
        assert!(names.iter().all(|name| fs::read(scene.at("mnt").join(name)).unwrap() == vec![8; BYTES]));
        scene.umount();
        scene.ok(&["check", &scene.text("store")]);
    }
}

/// A server of a file on the scene's socket. Ends with this value.
struct Server(std::process::Child);

impl Server {
    fn start(scene: &Scene, file: &Path) -> Server {
        let socket = scene.at("socket");
        let mut command = Command::new(env!("CARGO_BIN_EXE_shoal"));
        command
            .arg("serve")
            .arg(format!("file:{}", file.display()))
            .arg("--nbd")
            .arg(format!("unix:{}", socket.display()));
        let server = Server(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
        while UnixStream::connect(&socket).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).unwrap();
    }
}

#[test]
fn an_export_that_takes_the_place_of_a_device_in_use_is_not_written() {
    let Some(scene) = Scene::new() else { return };
    let (served, away) = (scene.at("served"), scene.at("served-away"));
    fs::File::create(&served).unwrap().set_len(65 << 20).unwrap();
    let server = Server::start(&scene, &served);
    let device = format!("nbd+unix:///?socket={}&lost-after=30", scene.text("socket"));
    scene.ok(&["bulk", "add", "--size", "64M", &scene.text("mnt"), &device]);
    scene.umount();
    scene.mount_with(HOLDS_NOT);
    (0..12).for_each(|file| scene.write(&format!("file-{file}")));
    let names = scene.files_on(2);
    assert!(!names.is_empty(), "the export has some of the files");
    assert!(Command::new("sync").arg("-f").arg(scene.at("mnt")).status().unwrap().success());
    drop(server);
    fs::rename(&served, &away).unwrap();
    let foreign = vec![1; 65 << 20];
    fs::write(&served, &foreign).unwrap();
    let server = Server::start(&scene, &served);
    let overwrite = |name: &String| {
        let file = fs::OpenOptions::new().write(true).open(scene.at("mnt").join(name))?;
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![8; BYTES], 0).and_then(|()| file.sync_all())
    };
    let outcomes: Vec<_> = names.iter().map(overwrite).collect();
    assert!(outcomes.iter().all(|outcome| outcome.is_err()), "{outcomes:?}");
    assert!(fs::read(&served).unwrap() == foreign, "another export was written");
    drop(server);
    fs::rename(&away, &served).unwrap();
    let _server = Server::start(&scene, &served);
    assert!(scene.retry(2).status.success());
    assert!(names.iter().all(|name| overwrite(name).is_ok()));
    scene.umount();
    scene.ok(&["check", &scene.text("store")]);
}

/// A missing device without data on it leaves, and the command waits for that.
#[test]
fn a_missing_device_without_files_is_removed_with_success() {
    let Some(scene) = Scene::new() else { return };
    scene.umount();
    fs::rename(scene.bulk(1), scene.at("away")).unwrap();
    scene.mount_with("degraded");
    let said = scene.ok(&["bulk", "remove", &scene.text("store"), "1"]);
    assert!(said.contains("is empty and removed"), "{said}");
    let listed: serde_json::Value =
        serde_json::from_str(&scene.ok(&["bulk", "list", "--json", &scene.text("store")])).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    scene.umount();
}
