//! `shoal resize` on real stores, mounted and not: a resized store keeps its contents, whatever
//! happens meanwhile.
//!
//! Faults: the command is killed, or a system call fails, at each call that changes a file (through
//! strace(1); without it the command is only killed at various times); the host is full or
//! read-only; another command runs in between; bytes of the store are damaged. Needs /dev/fuse, and
//! root for small hosts. `SHOAL_DEEP=1` tries every system call.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::scene::{Scene, Tree};
use serde_json::Value;
use shoal_sim::due;

const KINDS: [&[&str]; 2] = [&[], &["--memory", "battery"]];

fn sizes_of(scene: &Scene, place: &str) -> (u64, u64) {
    let df: Value = serde_json::from_str(&scene.ok(&["df", "--json", &scene.text(place)])).unwrap();
    let size = |tier: &str| df[tier]["size_bytes"].as_u64().unwrap_or(0);
    (size("memory"), size("bulk"))
}

fn resize(scene: &Scene, memory: &str, bulk: &str) -> Output {
    scene.run(&["resize", "--json", "--memory-size", memory, "--bulk-size", bulk, &scene.text("store")])
}

/// Asserts that the store is sound, holds the tree, and accepts files. Unmounts it at the end.
fn judge(scene: &Scene, expected: &Tree, context: &str) {
    let checked = scene.run(&["check", &scene.text("store")]);
    assert!(checked.status.success(), "{context}: {}", String::from_utf8_lossy(&checked.stdout));
    scene.mount("store");
    assert!(scene.tree() == *expected, "{context}: the tree differs");
    take_files_and_end(scene);
}

/// Asserts that the mounted store accepts a large and a small file and is sound after its unmount.
fn take_files_and_end(scene: &Scene) {
    fs::write(scene.at("mnt/probe"), vec![5; 3 << 20]).unwrap();
    fs::write(scene.at("mnt/probe small"), vec![5; 3000]).unwrap();
    fs::remove_file(scene.at("mnt/probe")).unwrap();
    fs::remove_file(scene.at("mnt/probe small")).unwrap();
    scene.umount();
    scene.ok(&["check", &scene.text("store")]);
}

/// Writes more files than the smallest store can hold.
fn more_small_files(scene: &Scene) {
    for file in 0..300 {
        fs::write(scene.at("mnt").join(format!("more{file}")), vec![file as u8; 30_000]).unwrap();
    }
}

/// Makes an unmounted store with some of everything, and returns its tree.
fn filled(kind: &[&str]) -> (Scene, Tree) {
    let scene = Scene::new(kind);
    scene.mount("store");
    scene.fill();
    let tree = scene.tree();
    scene.umount();
    (scene, tree)
}

/// Keeps a copy of the store, to restore it for each attempt.
struct Aside<'a> {
    scene: &'a Scene,
}

impl<'a> Aside<'a> {
    fn new(scene: &'a Scene) -> Aside<'a> {
        Aside::copy(&scene.at("store"), &scene.at("aside"));
        if scene.at("region").exists() {
            Aside::copy(&scene.at("region"), &scene.at("aside.region"));
        }
        Aside { scene }
    }

    fn copy(from: &Path, to: &Path) {
        let _ = Command::new("rm").arg("-rf").arg(to).status().unwrap();
        let done = Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to).status().unwrap();
        assert!(done.success());
    }

    fn put_back(&self) {
        Aside::copy(&self.scene.at("aside"), &self.scene.at("store"));
        if self.scene.at("aside.region").exists() {
            Aside::copy(&self.scene.at("aside.region"), &self.scene.at("region"));
        }
    }
}

#[test]
fn a_store_of_another_size_holds_what_it_held() {
    for kind in due(KINDS, 2) {
        let scene = Scene::new(kind);
        scene.mount("store");
        scene.fill();
        // A directory of several levels, chunked files, attributes.
        fs::create_dir(scene.at("mnt/many")).unwrap();
        for i in 0..9000 {
            fs::write(scene.at("mnt/many").join(format!("a name of some length, number {i}")), [1; 30]).unwrap();
        }
        more_small_files(&scene);
        fs::write(scene.at("mnt/chunked"), (0..900_000u32).map(|i| (i / 7) as u8).collect::<Vec<_>>()).unwrap();
        let before = scene.tree();
        let refused = scene.refused(&["resize", "--memory-size", "1G", &scene.text("store")]);
        assert!(refused.contains("give at most 64M, or unmount it first"), "{refused}");
        scene.kill();
        let sizes = |memory: &str, bulk: &str| {
            let words = ["resize", "--json", "--memory-size", memory, "--bulk-size", bulk];
            scene.ok(&[&words[..], &[&scene.text("store")]].concat());
            scene.mount("store");
            assert!(scene.tree() == before, "{kind:?}: {memory} {bulk}");
            let df: serde_json::Value = serde_json::from_str(&scene.ok(&["df", "--json", &scene.text("mnt")])).unwrap();
            take_files_and_end(&scene);
            (df["memory"]["size_bytes"].as_u64().unwrap(), df["bulk"]["size_bytes"].as_u64().unwrap())
        };
        let (memory, bulk) = sizes("8G", "40G");
        assert!(memory > 7 << 30 && bulk == 40 << 30);
        let (memory, bulk) = sizes("32M", "512M");
        assert!(memory < 32 << 20 && bulk == 512 << 20);
        if !kind.is_empty() {
            // The ring alone takes that much.
            let refused = scene.refused(&["resize", "--memory-size", "8M", &scene.text("store")]);
            assert!(refused.contains("raise --memory-size") || refused.contains("give at least"), "{refused}");
        }
        let refused = scene.refused(&["resize", "--bulk-size", "1M", &scene.text("store")]);
        assert!(refused.contains("are in use; give at least"), "{refused}");
        // The size named in a refusal is accepted, to the byte.
        for option in ["--bulk-size", "--memory-size"] {
            let refused = scene.refused(&[
                "resize",
                option,
                if option == "--bulk-size" { "64K" } else { "8M" },
                &scene.text("store"),
            ]);
            let least = refused.trim().rsplit(' ').next().unwrap().to_string();
            let kib: u64 = least.strip_suffix('K').map_or_else(
                || least.strip_suffix('M').unwrap().parse::<u64>().unwrap() << 10,
                |kib| kib.parse().unwrap(),
            );
            scene.refused(&["resize", option, &format!("{}K", kib - 64), &scene.text("store")]);
            scene.ok(&["resize", option, &least, &scene.text("store")]);
        }
        scene.mount("store");
        assert!(scene.tree() == before, "{kind:?}: the least sizes");
        scene.umount();
        scene.ok(&["check", &scene.text("store")]);
    }
}

/// Runs the resize command with a fault at the n-th call of a kind. Returns `None` if there are
/// fewer calls.
fn with_fault(scene: &Scene, size: &str, call: &str, nth: usize, fault: &str) -> Option<Output> {
    let log = scene.at("strace.log");
    let mut command = Command::new("timeout");
    command.args(["60", "strace", "-f", "-o"]).arg(&log).arg("-e").arg(format!("trace={call}"));
    command.arg("-e").arg(format!("inject={call}:{fault}:when={nth}"));
    command.arg(env!("CARGO_BIN_EXE_shoal")).args(["resize", "--json", "--memory-size", size, "--bulk-size", "2G"]);
    let output = command.arg(scene.text("store")).stdin(Stdio::null()).output().unwrap();
    let text = fs::read_to_string(&log).unwrap();
    let hit =
        if fault.starts_with("signal") { text.contains("killed by SIGKILL") } else { text.contains("(INJECTED)") };
    hit.then_some(output)
}

fn has_strace() -> bool {
    let there = Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    if !there {
        println!("SKIP: strace is not installed");
    }
    there
}

#[test]
fn a_resize_with_a_fault_at_any_system_call_leaves_the_old_or_the_new_store() {
    if !has_strace() {
        return;
    }
    // Thousands of calls take hours. A deep run with a time limit takes a sample, the usual run a
    // quarter of that on one kind of memory; each seed begins at another call.
    let deep = std::env::var_os("SHOAL_DEEP").is_some();
    let all = deep && std::env::var_os("SHOAL_DEEP_SECONDS").is_none();
    let share = if deep { 1 } else { 4 };
    let seed = std::env::var("SHOAL_SEED").map_or(0, |seed| seed.parse().expect("SHOAL_SEED is a number"));
    for (first, kind) in due(KINDS.into_iter().enumerate(), 2) {
        let (scene, before) = filled(kind);
        let aside = Aside::new(&scene);
        let old = sizes_of(&scene, "store");
        let (mut tried, mut found) = (0, BTreeSet::new());
        for (turn, fault) in ["signal=SIGKILL", "error=ENOSPC", "error=EIO"].into_iter().enumerate() {
            for call in ["fdatasync", "fsync", "ftruncate", "unlink", "fallocate", "pwrite64"] {
                // Take a sample of the frequent calls. Each kind of memory begins at another one.
                let (begin, step) = match call {
                    _ if all => (1, 1),
                    "pwrite64" => (1 + (seed + first) % 500, (931 + 100 * turn) * share),
                    "fdatasync" | "ftruncate" if turn == 0 => (1 + first, KINDS.len() * share),
                    _ => (1 + (seed + first) % 3, 7 * share),
                };
                let mut nth = begin;
                loop {
                    aside.put_back();
                    let Some(output) = with_fault(&scene, "128M", call, nth, fault) else { break };
                    let context = format!("{kind:?}: {fault} at {call} {nth}");
                    let sizes = sizes_of(&scene, "store");
                    assert!(sizes == old || (sizes.0 > old.0 && sizes.1 == 2 << 30), "{context}: {sizes:?}");
                    assert!(!output.status.success() || sizes != old, "{context}: success, and nothing changed");
                    found.insert(sizes);
                    judge(&scene, &before, &context);
                    tried += 1;
                    nth += step;
                }
            }
        }
        println!("{kind:?}: {tried} faults, sizes {found:?}");
        assert!(tried > 15 && found.len() == 2);
    }
}

#[test]
fn limits_of_a_mounted_store_change_and_hold() {
    for kind in KINDS {
        let scene = Scene::new(kind);
        // A full store would pack and spill its files and accept many more.
        scene.ok(&["mount", "-o", "compress=off,spill=off", &scene.text("store"), &scene.text("mnt")]);
        scene.fill();
        more_small_files(&scene);
        let before = scene.tree();
        let full = sizes_of(&scene, "mnt");
        scene.ok(&["resize", "--bulk-size", "100M", &scene.text("mnt")]);
        let report: Value =
            serde_json::from_str(&scene.ok(&["resize", "--json", "--memory-size", "24M", &scene.text("store")]))
                .unwrap();
        assert_eq!((&report["memory_bytes"], &report["bulk_bytes"]), (&(24 << 20).into(), &(100 << 20).into()));
        assert_eq!(report["memory_bytes_before"], 64 << 20);
        let small = sizes_of(&scene, "mnt");
        assert!(small.0 < 24 << 20 && small.1 == 100 << 20, "{small:?}");
        // The limit holds, and deleting files gives their space back.
        let fill = |name: &str, most: usize| {
            let file = fs::File::create(scene.at("mnt").join(name)).unwrap();
            (0..most).take_while(|&at| file.write_all_at(&[3; 1 << 20], (at as u64) << 20).is_ok()).count()
        };
        let written = fill("filler", 500);
        assert!((85..100).contains(&written), "{written} MiB fit");
        fs::remove_file(scene.at("mnt/filler")).unwrap();
        let mut files = 0;
        while fs::write(scene.at("mnt").join(format!("s{files}")), [1; 30_000]).is_ok() {
            files += 1;
        }
        // Without the limit more than 1000 files would fit.
        assert!((20..500).contains(&files), "{files} files of 30,000 bytes fit");
        (0..=files).for_each(|file| drop(fs::remove_file(scene.at("mnt").join(format!("s{file}")))));
        for (option, size, told) in [
            ("--memory-size", "8M", "are in use; give at least"),
            ("--bulk-size", "1M", "are in use; give at least"),
            ("--memory-size", "65M", "give at most 64M, or unmount it first"),
            ("--bulk-size", "2G", "give at most 1G, or unmount it first"),
        ] {
            let refused = scene.refused(&["resize", option, size, &scene.text("store")]);
            assert!(refused.contains(told), "{refused}");
        }
        // The limits survive a crash, other layouts and the checker.
        std::thread::sleep(Duration::from_millis(100));
        scene.kill();
        scene.ok(&["check", &scene.text("store")]);
        assert_eq!(sizes_of(&scene, "store"), small);
        scene.ok(&["resize", "--memory-size", "128M", &scene.text("store")]);
        let sizes = sizes_of(&scene, "store");
        assert!(sizes.0 > full.0 && sizes.1 == small.1, "{sizes:?}: a limit that nobody named stays");
        scene.mount("store");
        scene.ok(&["resize", "--bulk-size", "1G", &scene.text("mnt")]);
        assert_eq!(sizes_of(&scene, "mnt").1, 1 << 30);
        scene.ok(&["resize", "--bulk-size", "200M", &scene.text("mnt")]);
        scene.umount();
        // At the layout's own size the limit is lifted, and the layout stays.
        scene.ok(&["resize", "--bulk-size", "1G", &scene.text("store")]);
        assert_eq!(sizes_of(&scene, "store").1, 1 << 30);
        judge(&scene, &before, "after all");
    }
}

#[test]
fn damage_is_refused_and_nothing_is_changed() {
    for kind in KINDS {
        let (scene, before) = filled(kind);
        let aside = Aside::new(&scene);
        // The file that a mount uses: the region or the newest image.
        let place = if kind.is_empty() { newest_image(&scene) } else { scene.at("region") };
        let bytes = fs::read(&place).unwrap();
        let dense: Vec<usize> = (2 << 12..6 << 20).filter(|&at| bytes[at] != 0).collect();
        let (mut refused, mut carried, mut seed) = (0, 0, 0x5eed_u64);
        for round in 0..14 {
            aside.put_back();
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Damage roots and tables first, then anything.
            let most = if round < 6 { dense.partition_point(|&at| at < 8 << 12) } else { dense.len() };
            let at = dense[(seed >> 20) as usize % most];
            fs::OpenOptions::new().write(true).open(&place).unwrap().write_all_at(&[!bytes[at]], at as u64).unwrap();
            let image_times =
                || ["image.0", "image.1"].map(|name| fs::metadata(scene.at("store").join(name)).unwrap().mtime_nsec());
            let untouched = image_times();
            let sound = scene.run(&["check", &scene.text("store")]).status.success();
            let output = resize(&scene, "100M", "1G");
            let told = String::from_utf8_lossy(&output.stderr);
            if sound {
                // The damage hit bytes without meaning, or bytes of a small file in a region in
                // place, which has no sums.
                assert!(output.status.success(), "byte {at}: {told}");
                scene.ok(&["check", &scene.text("store")]);
                carried += 1;
            } else {
                assert!(
                    !output.status.success() && told.contains("is damaged") && told.contains("shoal check --repair"),
                    "{told}"
                );
                assert_eq!(image_times(), untouched, "byte {at}: nothing is written");
                refused += 1;
            }
        }
        println!("{kind:?}: {refused} refused, {carried} harmless");
        assert!(refused >= 5);
        aside.put_back();
        judge(&scene, &before, "put back");
    }
}

fn newest_image(scene: &Scene) -> PathBuf {
    let generation = |path: &Path| {
        let mut page = [0; 1024];
        fs::File::open(path).unwrap().read_exact_at(&mut page, 4096).unwrap_or_default();
        [0, 512].map(|at| u64::from_le_bytes(page[at + 8..at + 16].try_into().unwrap())).into_iter().max()
    };
    let images = ["image.0", "image.1"].map(|name| scene.at("store").join(name));
    images.into_iter().max_by_key(|path| generation(path)).unwrap()
}

#[test]
fn two_resizes_at_once_and_one_beside_a_mount_leave_a_whole_store() {
    let (scene, before) = filled(&[]);
    for round in 0..4 {
        let spawn = |size: &str| {
            let mut command = Command::new("timeout");
            command.args(["60", env!("CARGO_BIN_EXE_shoal"), "resize", "--memory-size", size, &scene.text("store")]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        let (mut first, mut second) = (spawn(["80M", "48M"][round % 2]), spawn("100M"));
        if round == 3 {
            // A mount waits for the resize or precedes it.
            scene.mount("store");
        }
        let done = [first.wait().unwrap().success(), second.wait().unwrap().success()];
        assert!(done[0] || done[1] || round == 3, "one of them gets the store");
        if round == 3 {
            assert!(scene.tree() == before);
            scene.umount();
        }
        judge(&scene, &before, &format!("round {round}"));
    }
}

/// A small host file system: a tmpfs of the given size (MiB). `None` without the right to mount
/// one.
struct SmallHost {
    place: PathBuf,
}

impl SmallHost {
    fn new(place: PathBuf, mib: u32) -> Option<SmallHost> {
        fs::create_dir_all(&place).unwrap();
        let options = format!("size={mib}M");
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "shoal-test"]).arg(&place).output().unwrap();
        if !mount.status.success() {
            println!("SKIP: no tmpfs can be mounted");
            return None;
        }
        Some(SmallHost { place })
    }

    fn remount(&self, how: &str) {
        // A daemon that has just unmounted may still have a file open.
        let mut told = String::new();
        for _ in 0..100 {
            let done = Command::new("mount").args(["-o", how]).arg(&self.place).output().unwrap();
            if done.status.success() {
                return;
            }
            told = String::from_utf8_lossy(&done.stderr).into_owned();
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("{told}");
    }
}

impl Drop for SmallHost {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.place).status();
    }
}

#[test]
fn a_full_or_read_only_host_refuses_a_resize_and_loses_nothing() {
    for kind in KINDS {
        let scene = Scene::new(kind);
        let Some(host) = SmallHost::new(scene.at("host"), 260) else { return };
        fs::remove_dir_all(scene.at("store")).unwrap();
        let region = format!("battery={}", scene.text("region"));
        let _ = fs::remove_file(scene.at("region"));
        let memory: &[&str] = if kind.is_empty() { &[] } else { &["--memory", &region] };
        let (place, link) = (scene.text("host/store"), scene.at("store"));
        let format = ["format", "--memory-size", "64M", "--bulk-size", "512M"];
        scene.ok(&[&format[..], memory, &[&place]].concat());
        std::os::unix::fs::symlink(&place, link).unwrap();
        scene.mount("host/store");
        for file in 0..900 {
            fs::write(scene.at("mnt").join(format!("f{file}")), vec![file as u8; 20_000]).unwrap();
        }
        fs::write(scene.at("mnt/large"), vec![8; 5 << 20]).unwrap();
        let before = scene.tree();
        scene.umount();
        let same = |context: &str| {
            scene.ok(&["check", &place]);
            scene.mount("host/store");
            assert!(scene.tree() == before, "{kind:?}: {context}");
            scene.umount();
        };
        host.remount("remount,ro");
        let refused = scene.refused(&["resize", "--memory-size", "128M", &place]);
        assert!(refused.contains("read-only file system"), "{refused}");
        host.remount("remount,rw");
        same("read-only host");
        let filler = fs::File::create(scene.at("host/filler")).unwrap();
        let mut filled = 0;
        while filler.write_all_at(&[1; 1 << 16], filled).is_ok() {
            filled += 1 << 16;
        }
        let mut failed = 0;
        for free_kib in [0u64, 64, 1024, 8192, 16384, 24576] {
            filler.set_len(filled.saturating_sub(free_kib << 10)).unwrap();
            let output = scene.run(&["resize", "--memory-size", "128M", &place]);
            failed += !output.status.success() as u32;
            same(&format!("{free_kib} KiB free: {}", String::from_utf8_lossy(&output.stderr)));
        }
        // Few attempts fail, because the new image takes the room of the one it replaces.
        println!("{kind:?}: {failed} of 6 failed on the full host");
        filler.set_len(0).unwrap();
        scene.ok(&["resize", "--memory-size", "100M", &place]);
        same("room again");
        drop(host);
    }
}
