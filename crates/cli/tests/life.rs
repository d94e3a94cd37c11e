//! The command on a real mount: the life of a store from `format` to `check`, with crashes and
//! mistakes.
//!
//! Every test has its own store and mount point, which are removed when it ends, even after a
//! panic. Every program runs under `timeout`, because a hanging mount would hang the test. Needs
//! /dev/fuse, and root or fusermount3.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::scene::{self, wait_until};

struct Scene {
    dir: tempfile::TempDir,
    /// The directory of store and mount point, if it is not `dir`.
    odd: Option<PathBuf>,
}

impl Scene {
    /// Formats a small store without mounting it.
    fn new() -> Scene {
        assert!(Path::new("/dev/fuse").exists(), "/dev/fuse is missing: these tests need FUSE");
        let scene = Scene { dir: tempfile::tempdir().unwrap(), odd: None };
        fs::create_dir(scene.mnt()).unwrap();
        scene.ok(&["format", "--memory-size", "64M", "--bulk-size", "64M", scene.store().to_str().unwrap()]);
        scene
    }

    fn mounted() -> Scene {
        let scene = Scene::new();
        scene.mount(&[]);
        scene
    }

    fn place(&self) -> PathBuf {
        self.odd.clone().unwrap_or_else(|| self.dir.path().canonicalize().unwrap())
    }

    fn store(&self) -> PathBuf {
        self.place().join("store")
    }

    fn mnt(&self) -> PathBuf {
        self.place().join("mnt")
    }

    fn run(&self, args: &[&str]) -> Output {
        scene::shoal(args).output().unwrap()
    }

    fn ok(&self, args: &[&str]) -> String {
        scene::succeeded(args, self.run(args))
    }

    /// Returns the error line of a command that must fail with `code`.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "shoal {args:?}: {text}");
        assert_eq!(text.lines().count(), 1, "one line: {text}");
        assert!(text.starts_with("shoal: "), "{text}");
        text
    }

    fn mount(&self, options: &[&str]) -> Value {
        let (store, mnt) = (self.store(), self.mnt());
        let places = ["mount", "--json", store.to_str().unwrap(), mnt.to_str().unwrap()];
        json(&self.ok(&[&places[..], options].concat()))
    }

    fn umount(&self) -> Value {
        json(&self.ok(&["umount", "--json", self.mnt().to_str().unwrap()]))
    }

    fn check(&self) {
        self.ok(&["check", self.store().to_str().unwrap()]);
    }

    fn pid(&self) -> i32 {
        fs::read_to_string(self.store().join("pid")).unwrap().lines().next().unwrap().parse().unwrap()
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let pid = nix::unistd::Pid::from_raw(self.pid());
        nix::sys::signal::kill(pid, signal).unwrap();
        // The daemon is not a child of this process, so only its absence shows that it has ended.
        wait_until("the daemon to end", || nix::sys::signal::kill(pid, None).is_err());
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // Removes a live or dead mount. Without a mount the error does not matter.
        let mut command = Command::new("timeout");
        command.arg("60").arg(env!("CARGO_BIN_EXE_shoal")).args(["umount", "--lazy"]).arg(self.mnt());
        let _ = command.output();
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[test]
fn a_store_lives_from_format_to_check() {
    let scene = Scene::new();
    let ready = scene.mount(&[]);
    assert_eq!(ready["recovery"]["clean"], true);
    assert_eq!(ready["pid"], scene.pid());
    let file = scene.mnt().join("a");
    fs::write(&file, "hello").unwrap();
    fs::write(scene.mnt().join("large"), vec![7; 3 << 20]).unwrap();
    for at in [scene.mnt(), scene.store()] {
        let df = json(&scene.ok(&["df", "--json", at.to_str().unwrap()]));
        assert_eq!(df["mountpoint"], scene.mnt().to_str().unwrap());
        assert_eq!(df["files"]["inodes"], 3);
        assert_eq!(df["bulk"]["used_bytes"], 3 << 20);
        let statfs = nix::sys::statvfs::statvfs(&scene.mnt()).unwrap();
        assert_eq!(df["statfs"]["blocks"], statfs.blocks());
        assert_eq!(df["statfs"]["available"], statfs.blocks_available());
        let inspected = json(&scene.ok(&["inspect", "--json", at.to_str().unwrap(), "/large"]));
        assert_eq!(inspected["size_bytes"], 3 << 20);
        assert_eq!(inspected["pieces"][0]["tier"], "bulk");
    }
    let refused = scene.fails(8, &["check", scene.store().to_str().unwrap()]);
    assert!(refused.contains("shoal umount"), "{refused}");
    let ended = scene.umount();
    assert_eq!((&ended["clean"], &ended["was_dead"]), (&Value::from(true), &Value::from(false)));
    assert!(!scene.store().join("pid").exists() && !scene.store().join("control").exists());
    scene.check();
    let df = json(&scene.ok(&["df", "--json", scene.store().to_str().unwrap()]));
    assert_eq!((&df["mountpoint"], &df["files"]["large_files"]), (&Value::Null, &Value::from(1)));
    let inspected = json(&scene.ok(&["inspect", "--json", scene.store().to_str().unwrap(), "a"]));
    assert_eq!((&inspected["kind"], &inspected["size_bytes"]), (&Value::from("file"), &Value::from(5)));
    let report = json(&scene.ok(&["check", "--json", scene.store().to_str().unwrap()]));
    assert_eq!((&report["sound"], &report["clean"]), (&Value::from(true), &Value::from(true)));
    for entry in fs::read_dir(scene.store()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(entry.metadata().unwrap().mode() & 0o077, 0, "{:?} is private", entry.path());
    }
    scene.mount(&[]);
    assert_eq!(fs::read(&file).unwrap(), b"hello");
}

#[test]
fn what_returned_survives_the_death_of_the_daemon() {
    let scene = Scene::mounted();
    for i in 0..300 {
        fs::write(scene.mnt().join(format!("f{i}")), format!("content {i}")).unwrap();
    }
    let open = fs::File::create(scene.mnt().join("unlinked")).unwrap();
    fs::remove_file(scene.mnt().join("unlinked")).unwrap();
    scene.signal(nix::sys::signal::SIGKILL);
    drop(open);
    assert!(fs::metadata(scene.mnt()).is_err(), "nobody answers");
    scene.check();
    // Mount again over the dead mount.
    let ready = scene.mount(&[]);
    assert_eq!((&ready["recovery"]["clean"], &ready["recovery"]["power_lost"]), (&false.into(), &false.into()));
    assert!(ready["recovery"]["records"].as_u64().unwrap() >= 300);
    for i in 0..300 {
        assert_eq!(fs::read_to_string(scene.mnt().join(format!("f{i}"))).unwrap(), format!("content {i}"));
    }
    assert_eq!(fs::read_dir(scene.mnt()).unwrap().count(), 300);
    scene.signal(nix::sys::signal::SIGKILL);
    // A read-only mount does not make the store clean.
    assert_eq!(scene.mount(&["-o", "ro"])["recovery"]["clean"], false);
    assert_eq!(fs::read_dir(scene.mnt()).unwrap().count(), 300);
    assert_eq!(scene.umount()["clean"], false);
    assert_eq!(scene.mount(&[])["recovery"]["clean"], false);
    scene.signal(nix::sys::signal::SIGKILL);
    assert_eq!(scene.umount()["was_dead"], true);
    assert!(scene.fails(1, &["umount", scene.mnt().to_str().unwrap()]).contains("no store is mounted here"));
}

#[test]
fn a_signal_unmounts_cleanly_also_while_the_mount_is_in_use() {
    let scene = Scene::mounted();
    fs::write(scene.mnt().join("a"), "x").unwrap();
    scene.signal(nix::sys::signal::SIGTERM);
    scene.check();
    assert!(!scene.store().join("pid").exists(), "clean");
    scene.mount(&[]);
    let held = fs::File::options().read(true).write(true).open(scene.mnt().join("a")).unwrap();
    held.write_all_at(b"yz", 0).unwrap();
    scene.signal(nix::sys::signal::SIGINT);
    assert!(held.write_at(b"!", 0).is_err(), "its user has been cut off");
    drop(held);
    assert!(!scene.store().join("pid").exists(), "clean all the same");
    scene.check();
    assert_eq!(scene.mount(&[])["recovery"]["clean"], true);
    assert_eq!(fs::read(scene.mnt().join("a")).unwrap(), b"yz");
}

#[test]
fn battery_memory_that_was_lost_comes_back_as_it_was_saved() {
    let scene = Scene::new();
    let (store, memory) = (scene.place().join("battery"), scene.place().join("memory"));
    let place = store.to_str().unwrap();
    let kind = format!("battery={}", memory.display());
    scene.ok(&["format", "--memory", &kind, "--memory-size", "64M", "--bulk-size", "96M", place]);
    let mount = || scene.ok(&["mount", place, scene.mnt().to_str().unwrap()]);
    mount();
    fs::write(scene.mnt().join("small"), "as saved").unwrap();
    fs::write(scene.mnt().join("large"), vec![1; 12 << 20]).unwrap();
    scene.umount();
    mount();
    fs::remove_file(scene.mnt().join("large")).unwrap();
    fs::write(scene.mnt().join("small"), "as lost").unwrap();
    fs::write(scene.mnt().join("other"), vec![2; 3 << 20]).unwrap();
    let pid = fs::read_to_string(store.join("pid")).unwrap().lines().next().unwrap().parse().unwrap();
    let pid = nix::unistd::Pid::from_raw(pid);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    wait_until("the daemon to end", || nix::sys::signal::kill(pid, None).is_err());
    scene.umount();
    fs::remove_file(&memory).unwrap();
    // The image is sound, but it is not the whole store.
    assert_eq!(scene.run(&["check", place]).status.code(), Some(4));
    // The image lacks the later changes, so the operator must decide whether to continue from it.
    let refused = scene.fails(1, &["mount", place, scene.mnt().to_str().unwrap()]);
    assert!(refused.contains("lacks everything since 20") && refused.contains("--restore"), "{refused}");
    scene.ok(&["mount", "--restore", place, scene.mnt().to_str().unwrap()]);
    assert_eq!(fs::read(scene.mnt().join("small")).unwrap(), b"as saved");
    assert!(fs::read(scene.mnt().join("large")).unwrap() == vec![1; 12 << 20]);
    assert!(!scene.mnt().join("other").exists());
    scene.umount();
    scene.ok(&["check", place]);
}

#[test]
fn mistakes_are_named() {
    let scene = Scene::mounted();
    let (store, mnt) = (scene.store(), scene.mnt());
    let (store, mnt) = (store.to_str().unwrap(), mnt.to_str().unwrap());
    let other = scene.dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let other = other.to_str().unwrap();
    assert!(scene.fails(1, &["mount", store, other]).contains(&format!("process {}", scene.pid())));
    assert!(scene.fails(1, &["format", "--force", store]).contains("in use"));
    assert!(scene.fails(1, &["mount", other, mnt]).contains("not a store"));
    assert!(scene.fails(2, &["mount", "-o", "ro,frobnicate", store, other]).contains("frobnicate"));
    assert!(scene.fails(1, &["inspect", mnt, "/nowhere"]).contains("no such file"));
    let busy = fs::File::create(Path::new(mnt).join("held")).unwrap();
    assert!(scene.fails(1, &["umount", mnt]).contains("--lazy"));
    drop(busy);
    scene.umount();
    assert!(scene.fails(1, &["mount", store, "/nowhere/at/all"]).contains("/nowhere/at/all"));
    fs::write(Path::new(other).join("file"), "").unwrap();
    assert!(scene.fails(1, &["mount", store, &format!("{other}/file")]).contains("not a directory"));
    // The refused commands have not damaged the store.
    scene.check();
    assert_eq!(scene.run(&["check", "--frobnicate", store]).status.code(), Some(16));
}

#[test]
fn mount_options_reach_the_kernel() {
    let scene = Scene::new();
    let ready = scene.mount(&["-o", "noexec,nodev", "-o", "nosuid,threads=2,x-anything,nofail"]);
    assert_eq!(ready["recovery"]["clean"], true);
    // Another test has a mount whose path is not UTF-8.
    let table = fs::read("/proc/self/mounts").unwrap();
    let table = String::from_utf8_lossy(&table);
    let line = table.lines().find(|line| line.contains(scene.mnt().to_str().unwrap())).unwrap();
    for word in ["fuse.shoal", "noexec", "nodev", "nosuid", "default_permissions", scene.store().to_str().unwrap()] {
        assert!(line.contains(word), "{word}: {line}");
    }
    fs::write(scene.mnt().join("a"), "x").unwrap();
    scene.umount();
    scene.mount(&["-o", "ro"]);
    assert_eq!(fs::write(scene.mnt().join("b"), "x").unwrap_err().raw_os_error(), Some(30));
    assert_eq!(fs::read(scene.mnt().join("a")).unwrap(), b"x");
    scene.umount();
    scene.check();
    scene.mount(&["-o", "noxattr"]);
    fs::write(scene.mnt().join("c"), "x").unwrap();
    let listed = rustix::fs::listxattr(scene.mnt().join("c"), &mut [0u8; 64]);
    assert_eq!(listed.unwrap_err(), rustix::io::Errno::OPNOTSUPP);
}

#[test]
fn paths_need_not_be_text() {
    use std::os::unix::ffi::OsStrExt;
    let mut scene = Scene::new();
    let odd = scene.dir.path().canonicalize().unwrap().join(std::ffi::OsStr::from_bytes(b"a b,\xff\\"));
    fs::create_dir_all(odd.join("mnt")).unwrap();
    fs::rename(scene.store(), odd.join("store")).unwrap();
    scene.odd = Some(odd.clone());
    let run = |words: &[&std::ffi::OsStr]| scene::succeeded(words, scene::shoal(words).output().unwrap());
    let (store, mnt) = (scene.store(), scene.mnt());
    run(&["mount".as_ref(), store.as_ref(), mnt.as_ref()]);
    let name = std::ffi::OsStr::from_bytes(b"/f\xfe");
    fs::write(mnt.join(std::ffi::OsStr::from_bytes(b"f\xfe")), "abc").unwrap();
    assert_eq!(json(&run(&["inspect".as_ref(), "--json".as_ref(), mnt.as_ref(), name]))["size_bytes"], 3);
    assert_eq!(json(&run(&["df".as_ref(), "--json".as_ref(), store.as_ref()]))["files"]["inodes"], 2);
    run(&["umount".as_ref(), mnt.as_ref()]);
    run(&["check".as_ref(), store.as_ref()]);
}

#[test]
fn the_kernel_sees_the_attributes_that_were_set() {
    let scene = Scene::mounted();
    let path = scene.mnt().join("a");
    fs::write(&path, "x").unwrap();
    for ns in [-1_200_000_000i64, -1, 0, 1_700_000_000_123_456_789] {
        let time = nix::sys::time::TimeSpec::new(ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
        let at = nix::fcntl::AT_FDCWD;
        nix::sys::stat::utimensat(at, &path, &time, &time, nix::sys::stat::UtimensatFlags::FollowSymlink).unwrap();
        let stat = fs::metadata(&path).unwrap();
        assert_eq!(stat.mtime() * 1_000_000_000 + stat.mtime_nsec(), ns);
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&path, Some(1), None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o755, "a change of owner clears set-id bits");
    }
    // Created read-only, but writable through the descriptor that created it.
    let file = fs::File::options().write(true).create_new(true).mode(0o400).open(scene.mnt().join("b")).unwrap();
    file.write_all_at(b"abc", 0).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    fs::remove_file(scene.mnt().join("b")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert!(fs::File::options().write(true).create_new(true).open(&path).is_err(), "O_EXCL");
}

#[test]
fn directories_of_any_size_are_listed_completely() {
    let scene = Scene::mounted();
    let dir = scene.mnt().join("d");
    fs::create_dir(&dir).unwrap();
    for i in 0..2000 {
        fs::File::create(dir.join(format!("a-file-with-some-name-{i}"))).unwrap();
    }
    for _ in 0..2 {
        let names: std::collections::HashSet<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2000);
        let sizes = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len()).sum::<u64>();
        assert_eq!(sizes, 0);
        scene.umount();
        scene.mount(&[]);
    }
    fs::remove_dir_all(&dir).unwrap();
    scene.umount();
    scene.check();
}

#[test]
fn fsyncs_of_many_threads_all_return() {
    let scene = Scene::mounted();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let mnt = scene.mnt();
            scope.spawn(move || {
                for i in 0..20 {
                    let file = fs::File::create(mnt.join(format!("{thread}-{i}"))).unwrap();
                    file.write_all_at(b"durable", 0).unwrap();
                    file.sync_all().unwrap();
                }
                fs::File::open(&mnt).unwrap().sync_all().unwrap();
            });
        }
    });
    assert_eq!(fs::read_dir(scene.mnt()).unwrap().count(), 320);
}

#[test]
fn mount_8_finds_its_helper() {
    let scene = Scene::new();
    let helper = scene.dir.path().join("mount.fuse.shoal");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_shoal"), &helper).unwrap();
    let run = |flags: &[&str]| {
        let mut command = Command::new("timeout");
        command.arg("60").arg(&helper).arg(scene.store()).arg(scene.mnt()).args(flags).stdin(Stdio::null());
        command.output().unwrap()
    };
    assert!(run(&["-f", "-o", "rw"]).status.success());
    assert!(!scene.store().join("pid").exists(), "-f does not mount");
    let output = run(&["-o", "rw,sink"]);
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("sink"));
    let output = run(&["-s", "-n", "-o", "rw,sink,noatime"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stdout.is_empty(), "quiet");
    fs::write(scene.mnt().join("a"), "x").unwrap();
}

#[test]
fn a_mounted_store_is_refused_at_once_under_another_path_and_without_its_lock_file() {
    if !is_root() {
        return;
    }
    let scene = Scene::mounted();
    let (other, second) = (scene.dir.path().join("other"), scene.dir.path().join("second"));
    fs::create_dir(&other).unwrap();
    fs::create_dir(&second).unwrap();
    let system =
        |args: &[&std::ffi::OsStr]| assert!(Command::new(args[0]).args(&args[1..]).status().unwrap().success());
    system(&["mount".as_ref(), "--bind".as_ref(), scene.store().as_ref(), other.as_ref()]);
    let refused = |store: &Path, force: bool| {
        let begin = Instant::now();
        let mut command = Command::new("timeout");
        command.arg("100").arg(env!("CARGO_BIN_EXE_shoal"));
        match force {
            false => command.arg("mount").arg(store).arg(&second),
            true => command.args(["format", "--force", "--bulk", "none"]).arg(store),
        };
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("in use by"), "{said}");
        assert!(begin.elapsed() < Duration::from_secs(20), "refused after {:?}", begin.elapsed());
    };
    refused(&other, false);
    fs::remove_file(scene.store().join("lock")).unwrap();
    for store in [&scene.store(), &other] {
        refused(store, false);
        refused(store, true);
    }
    system(&["umount".as_ref(), other.as_ref()]);
    fs::write(scene.mnt().join("a"), "still served").unwrap();
}
