//! `battery` stores whose memory goes away and comes back, and host file systems that shut down, on
//! real mounts.
//!
//! The memory lies on a tmpfs that is unmounted (the file system is not there) or mounted anew (the
//! power was lost). Needs root and /dev/fuse; every program runs under `timeout`. Every mount is
//! undone at the end, even after a panic.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::scene;

struct Scene(scene::Scene);

impl Deref for Scene {
    type Target = scene::Scene;

    fn deref(&self) -> &scene::Scene {
        &self.0
    }
}

impl Scene {
    /// Makes a store with its memory in `ram`, an empty directory. Returns `None` without root,
    /// which mounting needs.
    fn new(battery: bool) -> Option<Scene> {
        if !nix::unistd::geteuid().is_root() {
            println!("skipped: needs root");
            return None;
        }
        let scene = Scene(scene::Scene { dir: tempfile::tempdir().unwrap() });
        ["mnt", "ram", "disk"].iter().for_each(|name| fs::create_dir(scene.at(name)).unwrap());
        if battery {
            scene.mount_ram();
            let memory = format!("battery={}", scene.at("ram/region").display());
            scene.ok(&[
                "format",
                "--memory",
                &memory,
                "--memory-size",
                "16M",
                "--bulk-size",
                "16M",
                &scene.text("store"),
            ]);
        }
        Some(scene)
    }

    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "shoal {args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn mount(&self, options: &[&str]) -> String {
        self.ok(&[&["mount", "--json", &self.text("store"), &self.text("mnt")][..], options].concat())
    }

    fn mount_refused(&self, options: &[&str]) -> String {
        self.refused(&[&["mount", &self.text("store"), &self.text("mnt")][..], options].concat())
    }

    fn mount_ram(&self) {
        system("mount", &["-t", "tmpfs", "-o", "size=64M", "shoal-test", &self.text("ram")]);
    }

    /// Makes the memory's file system absent and keeps its contents elsewhere.
    fn take_ram_away(&self) {
        fs::create_dir_all(self.at("away")).unwrap();
        system("mount", &["--bind", &self.text("ram"), &self.text("away")]);
        unmount(&self.text("ram"));
    }

    fn bring_ram_back(&self) {
        system("mount", &["--bind", &self.text("away"), &self.text("ram")]);
        unmount(&self.text("away"));
    }

    fn write(&self, name: &str, byte: u8) {
        fs::write(self.at("mnt").join(name), vec![byte; 3 << 20]).unwrap();
    }

    fn holds(&self, name: &str, byte: u8) -> bool {
        fs::read(self.at("mnt").join(name)).is_ok_and(|bytes| bytes == vec![byte; 3 << 20])
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.run(&["umount", "--lazy", &self.text("mnt")]);
        for name in ["ram", "ram", "away", "disk"] {
            let _ = Command::new("umount").args(["-l", &self.text(name)]).stderr(Stdio::null()).status();
        }
    }
}

/// Unmounts, and retries while the mount is busy: a concurrent `df` holds every mount for a moment.
fn unmount(place: &str) {
    for _ in 0..200 {
        let status = Command::new("timeout")
            .args(["60", "umount", place])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        if status.success() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("{place} stays busy");
}

fn system(program: &str, args: &[&str]) {
    let output = Command::new("timeout").arg("60").arg(program).args(args).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_region_that_comes_back_is_not_taken_for_the_one_restored_meanwhile() {
    let Some(scene) = Scene::new(true) else { return };
    scene.mount(&[]);
    scene.write("common", 1);
    scene.umount();
    scene.mount(&[]);
    scene.write("old", 2);
    scene.kill();
    scene.take_ram_away();
    let refused = scene.mount_refused(&[]);
    assert!(refused.contains("is it mounted?") && refused.contains("--restore"), "{refused}");
    assert!(refused.contains("lacks everything since 20"), "{refused}");
    assert!(scene.mount_refused(&["-o", "ro"]).contains("--restore"));
    let checked = scene.run(&["check", &scene.text("store")]);
    assert!(checked.status.code() == Some(4), "the image is not the store");
    assert!(String::from_utf8_lossy(&checked.stdout).contains("is it mounted?"));
    // A read-only mount of the image creates no region.
    scene.mount(&["--restore", "-o", "ro"]);
    assert!(scene.holds("common", 1));
    scene.umount();
    assert!(!scene.at("ram/region").exists());
    scene.mount(&["-o", "noatime,restore"]);
    assert!(scene.holds("common", 1) && !scene.at("mnt/old").exists());
    scene.write("new", 3);
    scene.umount();
    // The first region's data on the bulk device has been overwritten.
    scene.bring_ram_back();
    let refused = scene.mount_refused(&[]);
    assert!(refused.contains("older than the saved image") && refused.contains("--restore"), "{refused}");
    assert!(scene.run(&["check", &scene.text("store")]).status.code() == Some(8), "no store to check");
    // Now the region that was in use later returns.
    scene.take_ram_away();
    scene.mount(&[]);
    assert!(scene.holds("new", 3) && scene.holds("common", 1));
    scene.umount();
    // Alternatively the store continues from its image, and the first region is set aside.
    scene.bring_ram_back();
    scene.mount(&["--restore"]);
    assert!(scene.holds("new", 3) && scene.holds("common", 1) && !scene.at("mnt/old").exists());
    scene.umount();
    assert!(scene.at("ram/region.old-1").exists());
    scene.ok(&["check", &scene.text("store")]);
    let refused = scene.mount_refused(&["--restore"]);
    assert!(refused.contains("the region is there"), "{refused}");
    scene.mount(&[]);
    scene.umount();
}

#[test]
fn an_image_that_lacks_nothing_is_restored_unasked() {
    let Some(scene) = Scene::new(true) else { return };
    scene.mount(&[]);
    scene.write("file", 1);
    scene.umount();
    unmount(&scene.text("ram"));
    scene.mount_ram();
    scene.ok(&["check", &scene.text("store")]);
    scene.mount(&["-o", "ro"]);
    assert!(scene.holds("file", 1));
    scene.umount();
    assert!(!scene.at("ram/region").exists(), "a look makes no region");
    scene.mount(&[]);
    assert!(scene.holds("file", 1));
    scene.umount();
    assert!(fs::read_to_string(scene.at("store/shoal.log")).unwrap().contains("restored from the image"));
    // A damaged region is not taken for the store, but is not deleted either.
    let region = fs::OpenOptions::new().write(true).open(scene.at("ram/region")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&region, &[0xee; 8192], 0).unwrap();
    assert!(scene.mount_refused(&[]).contains("--restore"));
    scene.mount(&["--restore"]);
    assert!(scene.holds("file", 1));
    scene.umount();
    assert!(scene.at("ram/region.old-1").exists());
    scene.ok(&["check", &scene.text("store")]);
}

#[test]
fn images_put_back_from_a_backup_do_not_meet_a_newer_region() {
    let Some(scene) = Scene::new(true) else { return };
    scene.mount(&[]);
    scene.write("file", 1);
    scene.umount();
    let backup = scene.at("backup");
    fs::create_dir(&backup).unwrap();
    let names = ["image.0", "image.1", "bulk"];
    let copy =
        |from: &Path, to: &Path| names.iter().for_each(|name| _ = fs::copy(from.join(name), to.join(name)).unwrap());
    copy(&scene.at("store"), &backup);
    fs::remove_file(scene.at("ram/region")).unwrap();
    scene.mount(&[]);
    fs::remove_file(scene.at("mnt/file")).unwrap();
    scene.write("later", 2);
    scene.umount();
    copy(&backup, &scene.at("store"));
    let refused = scene.mount_refused(&[]);
    assert!(refused.contains("put back from a backup") && refused.contains("--restore"), "{refused}");
    scene.mount(&["--restore"]);
    assert!(scene.holds("file", 1));
    scene.umount();
}

#[test]
fn a_host_file_system_that_went_down_is_a_power_loss_of_its_devices() {
    let Some(scene) = Scene::new(false) else { return };
    fs::File::create(scene.at("disk.img")).unwrap().set_len(256 << 20).unwrap();
    system("mkfs.ext4", &["-q", "-F", &scene.text("disk.img")]);
    let mount = |image: &str| system("mount", &["-o", "loop", &scene.text(image), &scene.text("disk")]);
    mount("disk.img");
    // Log and images are on this file system, which stays up. Large files are on one that shuts
    // down.
    let bulk = format!("file:{}", scene.text("disk/bulk"));
    let sizes = ["--memory-size", "64M", "--bulk-size", "64M"];
    scene.ok(&[&["format", "--bulk", &bulk][..], &sizes, &[&scene.text("store")]].concat());
    scene.mount(&[]);
    // Make nonzero bytes durable where the next file will lie.
    scene.write("before", 7);
    scene.umount();
    let stale = |scene: &Scene| fs::read(scene.at("disk/bulk")).unwrap().chunks(4096).filter(|b| b[0] == 7).count();
    assert!(stale(&scene) > 0);
    scene.mount(&[]);
    scene.write("lost", 9);
    scene.kill();
    shut_down(&scene.at("disk"));
    unmount(&scene.text("disk"));
    // Another process, such as one that creates a mount namespace, may hold the file system that
    // was shut down, and its loop device. Use a copy.
    fs::copy(scene.at("disk.img"), scene.at("again.img")).unwrap();
    mount("again.img");
    let ready: serde_json::Value = serde_json::from_str(&scene.mount(&[])).unwrap();
    // The log's host has not gone down.
    assert_eq!(
        (&ready["recovery"]["power_lost"], &ready["recovery"]["bulk_moved"]),
        (&false.into(), &serde_json::json!([0]))
    );
    assert!(scene.holds("before", 7));
    let lost = fs::read(scene.at("mnt/lost")).unwrap();
    let foreign = lost.iter().find(|&&byte| byte != 9 && byte != 0);
    assert_eq!(foreign, None, "bytes that are not the file's");
    // A crash under the same mount of the disk is not a power loss.
    scene.write("kept", 5);
    scene.kill();
    let ready: serde_json::Value = serde_json::from_str(&scene.mount(&[])).unwrap();
    assert_eq!(
        (&ready["recovery"]["clean"], &ready["recovery"]["bulk_moved"]),
        (&false.into(), &serde_json::json!([]))
    );
    assert!(scene.holds("kept", 5));
    scene.umount();
    scene.ok(&["check", &scene.text("store")]);
}

/// Shuts the file system down at once. Unsynced data is lost (EXT4_IOC_SHUTDOWN without a log
/// flush).
fn shut_down(at: &Path) {
    let script = "import fcntl, os, struct, sys\n\
                  fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
    system("python3", &["-c", script, at.to_str().unwrap()]);
}

#[test]
fn a_copy_of_a_store_does_not_run_beside_it_on_the_same_memory_or_disk() {
    let Some(scene) = Scene::new(true) else { return };
    let (store, copy, bulk) = (scene.text("store"), scene.text("copy"), scene.text("bulk"));
    let beside = |named: &str| {
        // The mount may rename a file that it is creating during the copy.
        let copied = (0..20).any(|_| {
            let _ = fs::remove_dir_all(&copy);
            Command::new("cp").args(["-a", &store, &copy]).stderr(Stdio::null()).status().unwrap().success()
        });
        assert!(copied, "{store} cannot be copied");
        let said = scene.refused(&["mount", &copy, &scene.text("disk")]);
        let expected = format!("{named} is in use by another store or process: unmount that one first\n");
        assert!(said.ends_with(&expected), "{said}");
    };
    scene.mount(&[]);
    beside(&format!("{}:", scene.text("ram/region")));
    scene.umount();
    for directory in [&store, &copy] {
        fs::remove_dir_all(directory).unwrap();
    }
    let sizes = ["--memory-size", "16M", "--bulk-size", "16M"];
    scene.ok(&[&["format", "--bulk", &format!("file:{bulk}")][..], &sizes, &[&store]].concat());
    scene.mount(&[]);
    scene.write("kept", 4);
    beside(&format!("{bulk}:"));
    assert!(scene.holds("kept", 4));
    // Nothing on the disk is in use once the daemon has ended, however it ended.
    scene.kill();
    scene.mount(&[]);
    scene.umount();
}
