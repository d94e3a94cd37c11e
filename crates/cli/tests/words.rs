//! Error messages: the remedy fits the cause. A process that lacks something (rights, memory,
//! descriptors) is not a damaged store, and a store whose description is gone is not a store that
//! never existed.
//!
//! Needs /dev/fuse, root, and the programs `setpriv` and `prlimit`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Output, Stdio};

use crate::scene::Scene;

/// Advice for stores that are damaged or gone.
const OF_DAMAGE: [&str; 5] = ["salvage", "shoal check", "bring it back", "existing directory", "shoal format"];

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_string()
}

/// Runs the command under a program that limits it; `words` is that program's command line.
fn limited(words: &[&str], args: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").args(words).arg(env!("CARGO_BIN_EXE_shoal")).args(args).stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn a_store_without_its_description_is_one_and_what_is_in_it_is_not_lost() {
    let scene = Scene::new(&[]);
    scene.mount("store");
    fs::write(scene.at("mnt/a"), "a").unwrap();
    scene.umount();
    fs::rename(scene.at("store/shoal.json"), scene.at("away")).unwrap();
    let (store, mnt) = (scene.text("store"), scene.text("mnt"));
    for args in [&["df", &store][..], &["mount", &store, &mnt], &["inspect", &store, "/a"], &["status", &store]] {
        let told = scene.refused(args);
        assert!(told.contains("shoal.json: is missing") && told.contains("`shoal salvage "), "{args:?}: {told}");
        assert!(!told.contains("make one"), "{args:?}: {told}");
    }
    scene.ok(&["salvage", &store, &scene.text("saved")]);
    assert_eq!(fs::read(scene.at("saved/a")).unwrap(), b"a");
    fs::rename(scene.at("away"), scene.at("store/shoal.json")).unwrap();
    scene.ok(&["check", &store]);
}

#[test]
fn a_file_that_this_user_may_not_read_is_not_called_damaged() {
    let scene = Scene::new(&[]);
    let (nobody, store) = (65534, scene.text("store"));
    fs::set_permissions(scene.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut left = vec![scene.at("store")];
    while let Some(path) = left.pop() {
        chown(&path, Some(nobody), Some(nobody)).unwrap();
        left.extend(fs::read_dir(&path).into_iter().flatten().map(|entry| entry.unwrap().path()));
    }
    let as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    if limited(&as_nobody, &["--version"]).status.code() != Some(0) {
        println!("SKIP: another user may not run {}", env!("CARGO_BIN_EXE_shoal"));
        return;
    }
    for name in ["shoal.json", "image.0", "image.1", "log", "log/spare-0", "bulk", "lock"] {
        chown(scene.at("store").join(name), Some(0), Some(0)).unwrap();
        let output = limited(&as_nobody, &["df", &store]);
        let told = said(&output);
        assert!(!output.status.success() && told.contains(name) && told.contains("another user"), "{name}: {told}");
        assert!(OF_DAMAGE.iter().all(|advice| !told.contains(advice)), "{name}: {told}");
        chown(scene.at("store").join(name), Some(nobody), Some(nobody)).unwrap();
    }
}

#[test]
fn a_lack_of_descriptors_is_called_that_wherever_it_strikes() {
    let scene = Scene::new(&[]);
    let (store, mnt) = (scene.text("store"), scene.text("mnt"));
    let mut refused = 0;
    for limit in 4..28 {
        let limit = format!("--nofile={limit}");
        for args in [&["df", &store][..], &["mount", "-f", &store, &mnt], &["umount", &mnt]] {
            // `timeout` ends a mount that succeeds.
            let words: &[&str] = if args[0] == "mount" { &["timeout", "-s", "TERM", "1"] } else { &[] };
            let output = limited(&[&["prlimit", &limit], words].concat(), args);
            let told = said(&output);
            // A mount without an io_uring queue still succeeds.
            if !told.contains("Too many open files") || told.contains("is mounted on") {
                continue;
            }
            refused += 1;
            assert!(told.contains("ulimit -n") || told.contains("try again"), "{limit} {args:?}: {told}");
            assert!(OF_DAMAGE.iter().all(|advice| !told.contains(advice)), "{limit} {args:?}: {told}");
        }
    }
    assert!(refused > 3, "only {refused} limits struck");
}

#[test]
fn a_lack_of_memory_is_not_called_damage() {
    let scene = Scene::new(&[]);
    let store = scene.text("store");
    let mut refused = 0;
    for mib in (8..160).step_by(8) {
        let limit = format!("--as={}", mib << 20);
        let output = limited(&["prlimit", &limit], &["df", &store]);
        let told = said(&output);
        // A program that cannot even start, or cannot start a thread, reports that in its own
        // words.
        if output.status.code() != Some(1) {
            continue;
        }
        refused += 1;
        assert!(told.contains("memory") || told.contains("thread"), "{mib} MiB: {told}");
        assert!(OF_DAMAGE.iter().all(|advice| !told.contains(advice)), "{mib} MiB: {told}");
    }
    assert!(refused > 0, "no limit struck");
}

#[test]
fn an_empty_list_of_options_is_as_good_as_none() {
    let scene = Scene::new(&[]);
    scene.ok(&["mount", &scene.text("store"), &scene.text("mnt"), "-o", ""]);
    fs::write(scene.at("mnt/a"), "a").unwrap();
    scene.umount();
    scene.ok(&["mount", &scene.text("store"), &scene.text("mnt"), "-o", "", "-o", ",noatime,"]);
    scene.umount();
}

#[test]
fn a_refused_mount_is_in_the_log_once() {
    let scene = Scene::new(&[]);
    let missing = scene.text("nowhere");
    let told = scene.refused(&["mount", &scene.text("store"), &missing]);
    assert!(told.contains(&missing) && told.contains("; name an existing directory"), "{told}");
    let log = fs::read_to_string(scene.at("store/shoal.log")).unwrap();
    assert_eq!(log.matches("nowhere").count(), 1, "{log}");
    let told = scene.refused(&["mount", &scene.text("store"), &scene.text("store")]);
    assert!(told.contains("would cover"), "{told}");
    let log = fs::read_to_string(scene.at("store/shoal.log")).unwrap();
    assert_eq!(log.matches("would cover").count(), 1, "{log}");
}

#[test]
fn a_slip_on_the_command_line_is_told_what_was_probably_meant() {
    let scene = Scene::new(&[]);
    let store = scene.text("store");
    for (args, meant) in [
        (&["df", "--jsn", &store][..], "write `--json`, or see `shoal df --help`"),
        (&["unmount", &store], "write `mount`, `umount`, or see `shoal --help`"),
        (&["mount", &store, &scene.text("mnt"), "-o", "noatme"], "write `noatime` if that was meant"),
    ] {
        let output = scene.run(args);
        let told = said(&output);
        assert!(output.status.code() == Some(2) && told.contains(meant), "{args:?}: {told}");
        assert_eq!(told.lines().count(), 1, "{told}");
    }
}

#[test]
fn the_removal_of_a_device_is_reported_as_json() {
    let scene = Scene::new(&[]);
    let (store, mnt, more) = (scene.text("store"), scene.text("mnt"), scene.text("more"));
    let remove = |from: &str| {
        scene.ok(&["bulk", "add", from, &more, "--size", "64M"]);
        let said = scene.ok(&["bulk", "remove", from, "1", "--json"]);
        let told: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said}: {error}"));
        assert_eq!(told["removed"], true, "{said}");
        fs::remove_file(scene.at("more")).unwrap();
    };
    remove(&store);
    scene.mount("store");
    remove(&mnt);
    scene.umount();
}
