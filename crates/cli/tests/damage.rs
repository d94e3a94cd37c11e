//! A damaged store as an operator sees it: it mounts, `df` reports the damage, `salvage` copies the
//! files, `check --repair` repairs.
//!
//! The damage is written into both images of a store that was unmounted cleanly, with and without
//! correct page sums. Needs /dev/fuse, and root or fusermount3; every program runs under `timeout`.
//! Left out: every kind of damage (`crates/fs/tests/damage.rs`, `crates/check/tests/salvage.rs`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use shoal_format::inode::{INODE_RECORD, Inode, InodeSlot};
use shoal_format::superblock::Superblock;
use shoal_format::{PAGE, checksum};

use crate::damaged_media::seal;
use crate::scene;

struct Scene {
    dir: tempfile::TempDir,
}

/// Offsets of the records of some files.
type Records = BTreeMap<&'static str, u64>;

impl Scene {
    fn place(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        scene::shoal(args).current_dir(self.dir.path()).output().unwrap()
    }

    fn exits(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let both = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&both).into_owned();
        assert_eq!(output.status.code(), Some(code), "shoal {args:?}: {text}");
        text
    }

    fn inspect(&self, path: &str) -> u64 {
        let json: Value = serde_json::from_str(&self.exits(0, &["inspect", "--json", "store", path])).unwrap();
        json["record_at"].as_u64().unwrap_or_else(|| panic!("{json}"))
    }

    /// Makes an unmounted store with a tree. Also returns the expected tree.
    fn new() -> (Scene, Records, Tree) {
        assert!(Path::new("/dev/fuse").exists(), "/dev/fuse is missing: these tests need FUSE");
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(scene.place("mnt")).unwrap();
        scene.exits(0, &["format", "--memory-size", "64M", "--bulk-size", "64M", "store"]);
        scene.exits(0, &["mount", "store", "mnt"]);
        let top = scene.place("mnt");
        for dir in ["a", "a/b", "victim"] {
            fs::create_dir(top.join(dir)).unwrap();
        }
        for number in 0..120 {
            fs::write(top.join(format!("a/f{number}")), format!("contents of {number} ").repeat(number)).unwrap();
        }
        for number in 0..20 {
            fs::write(top.join(format!("victim/child{number}")), format!("child {number}")).unwrap();
        }
        fs::write(top.join("a/large"), (0..3_000_000u32).map(|i| (i / 77) as u8).collect::<Vec<u8>>()).unwrap();
        fs::write(top.join("large"), vec![7; 2_500_000]).unwrap();
        fs::hard_link(top.join("a/f7"), top.join("a/b/seven")).unwrap();
        symlink("f7", top.join("a/soft")).unwrap();
        let tree = read_tree(&top);
        scene.exits(0, &["umount", "mnt"]);
        let names = ["a/f5", "a/f7", "a/f9", "victim", "large"];
        let records = names.map(|name| (name, scene.inspect(&format!("/{name}"))));
        (scene, records.into_iter().collect(), tree)
    }

    /// Changes bytes of both images. With `sealed` their pages get correct sums.
    fn change(&self, at: u64, sealed: bool, change: impl Fn(&mut [u8; INODE_RECORD])) {
        for name in ["store/image.0", "store/image.1"] {
            let file = File::options().read(true).write(true).open(self.place(name)).unwrap();
            let mut page = vec![0; PAGE as usize];
            let mut record = [0; INODE_RECORD];
            let superblock = file.read_exact_at(&mut page, 0).map(|()| Superblock::decode(&page));
            let Ok(Ok(superblock)) = superblock else { continue };
            file.read_exact_at(&mut record, at).unwrap();
            change(&mut record);
            file.write_all_at(&record, at).unwrap();
            if sealed {
                seal(&file, &superblock, at..at + INODE_RECORD as u64);
            }
        }
    }

    fn record(&self, at: u64, change: impl Fn(&mut Inode)) {
        self.change(at, true, |record| {
            // The older image may predate the file.
            let Ok(InodeSlot::Used(mut inode)) = Inode::decode(record) else { return };
            change(&mut inode);
            *record = inode.encode();
        });
    }

    /// Sums every file of the store except the lock, which contains its holder.
    fn sums(&self) -> BTreeMap<PathBuf, u32> {
        let mut sums = BTreeMap::new();
        let mut folders = vec![self.place("store")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else if entry.file_name() != "lock" {
                    let bytes = fs::read(entry.path()).unwrap();
                    sums.insert(entry.path(), checksum(bytes.len() as u32, &bytes));
                }
            }
        }
        sums
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.place("mnt")).stderr(Stdio::null()).status();
    }
}

type Tree = BTreeMap<PathBuf, (u32, u64, i64, Vec<u8>)>;

/// Reads mode, links, modification time and contents of everything below `top`, except the links of
/// directories.
fn read_tree(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![top.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            let meta = fs::symlink_metadata(&path).unwrap();
            let (links, bytes) = match meta.file_type() {
                kind if kind.is_dir() => (0, Vec::new()),
                kind if kind.is_symlink() => (1, fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()),
                _ => (meta.nlink(), fs::read(&path).unwrap()),
            };
            if meta.is_dir() {
                folders.push(path.clone());
            }
            tree.insert(path.strip_prefix(top).unwrap().into(), (meta.mode(), links, meta.mtime(), bytes));
        }
    }
    tree
}

#[test]
fn a_store_with_a_damaged_record_mounts_and_says_so() {
    let (scene, records, _) = Scene::new();
    scene.change(records["a/f5"] + 16, false, |bytes| bytes[0] ^= 1);
    let top = scene.place("mnt");
    for (round, options) in [("clean", vec![]), ("killed", vec![]), ("read-only", vec!["-o", "ro"])] {
        scene.exits(0, &[&["mount", "store", "mnt"][..], &options].concat());
        let names: Vec<_> = fs::read_dir(top.join("a")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().any(|name| name == "f5"), "{round}: the name is listed");
        let error = fs::metadata(top.join("a/f5")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(117), "{round}: {error}");
        assert_eq!(fs::read_to_string(top.join("a/f9")).unwrap().len(), 9 * "contents of 9 ".len());
        let df = scene.exits(0, &["df", "store"]);
        assert!(df.contains("1 inodes cannot be read; unmount, then run `shoal check --repair"), "{round}: {df}");
        let log = fs::read_to_string(scene.place("store/shoal.log")).unwrap();
        assert!(log.contains("damaged inode"), "{log}");
        if round == "clean" {
            for number in 0..1000 {
                fs::write(top.join(format!("new{number}")), "x").unwrap();
            }
        }
        if round == "killed" {
            break;
        }
        let pid = fs::read_to_string(scene.place("store/lock")).unwrap();
        assert!(Command::new("kill").args(["-9", pid.trim()]).status().unwrap().success());
        Command::new("umount").arg("-l").arg(&top).status().unwrap();
    }
    fs::remove_file(top.join("a/f5")).expect("the name can be removed");
    assert!(!top.join("a/f5").exists());
    for number in 0..1000 {
        fs::remove_file(top.join(format!("new{number}"))).unwrap();
    }
    scene.exits(0, &["umount", "mnt"]);
}

#[test]
fn salvage_copies_what_is_readable_and_leaves_the_store_alone() {
    let (scene, records, tree) = Scene::new();
    scene.exits(0, &["salvage", "store", "whole"]);
    assert!(read_tree(&scene.place("whole")) == tree, "a sound store is copied as it is");
    let refused = scene.exits(8, &["salvage", "store", "whole"]);
    assert!(refused.contains("is not empty; name"), "{refused}");
    scene.change(records["a/f5"] + 16, false, |bytes| bytes[0] ^= 1);
    scene.change(records["victim"] + 64, true, |bytes| bytes[3] ^= 8);
    let before = scene.sums();
    let told = scene.exits(4, &["salvage", "store", "copy"]);
    assert!(scene.sums() == before, "the store's files are as they were");
    for name in ["/a/f5: the record", "/victim: the record"] {
        assert!(told.contains(name), "{told}");
    }
    let copy = read_tree(&scene.place("copy"));
    let lost = |path: &Path| path.starts_with("victim") || path == Path::new("a/f5");
    for (path, made) in tree.iter().filter(|(path, _)| !lost(path)) {
        assert!(copy.get(path) == Some(made), "{}", path.display());
    }
    let found = copy.iter().filter(|(path, _)| path.parent() == Some(Path::new("lost+found")));
    let mut children: Vec<Vec<u8>> = found.map(|(_, made)| made.3.clone()).collect();
    children.sort();
    let mut expected: Vec<Vec<u8>> = (0..20).map(|number| format!("child {number}").into_bytes()).collect();
    expected.sort();
    assert_eq!(children, expected, "the children of a lost directory");
    // No log, and no newer image.
    fs::rename(scene.place("store/log"), scene.place("log")).unwrap();
    let told = scene.exits(4, &["salvage", "--json", "store", "no-log"]);
    let json: Value = serde_json::from_str(told.trim()).unwrap();
    assert_eq!(json["files"], 142 + 1 - 2, "{told}");
    assert!(json["lost"].as_array().unwrap().iter().any(|lost| lost["why"].as_str().unwrap().contains("no log")));
    for name in ["store/image.0", "store/image.1"] {
        fs::remove_file(scene.place(name)).unwrap();
    }
    scene.exits(8, &["salvage", "store", "nothing"]);
}

#[test]
fn repair_corrects_what_is_safe_and_check_alone_changes_nothing() {
    let (scene, records, tree) = Scene::new();
    scene.exits(0, &["check", "store"]);
    scene.exits(0, &["check", "--repair", "store"]);
    // A wrong count, a name without an inode, a file and a directory that do not decode.
    scene.record(records["a/f7"], |inode| (inode.nlink, inode.allocated) = (9, 77));
    scene.change(records["a/f9"], true, |record| *record = Inode::encode_free(3));
    scene.change(records["large"] + 20, false, |bytes| bytes[0] ^= 1);
    scene.change(records["victim"] + 64, true, |bytes| bytes[3] ^= 8);
    let before = scene.sums();
    let found = scene.exits(4, &["check", "store"]);
    assert!(found.contains("a/f7"), "{found}");
    assert!(scene.sums() == before, "a check writes nothing");
    // A store that no mount accepts is not repaired either, and no change is announced.
    let bulk = fs::read(scene.place("store/bulk")).unwrap();
    let mark_at = bulk.windows(8).rposition(|bytes| bytes == b"SHBULKMK").expect("it has a mark");
    let file = fs::File::options().write(true).open(scene.place("store/bulk")).unwrap();
    file.write_all_at(&[0; 8], mark_at as u64).unwrap();
    let refused = scene.exits(4, &["check", "--repair", "store"]);
    assert!(refused.contains("not repaired: bulk device 0") && !refused.contains("repair: remove"), "{refused}");
    file.write_all_at(&bulk[mark_at..][..8], mark_at as u64).unwrap();
    assert!(scene.sums() == before, "nothing was repaired");
    let repaired = scene.exits(1, &["check", "--repair", "store"]);
    for change in
        ["repair: remove the entry \"f9\"", "repair: remove the entry \"victim\"", "lost+found/#", "free bulk blocks"]
    {
        assert!(repaired.contains(change), "{change}: {repaired}");
    }
    let sound = scene.exits(0, &["check", "store"]);
    assert!(sound.contains("no errors; unmounted cleanly"), "{sound}");
    scene.exits(0, &["mount", "store", "mnt"]);
    let now = read_tree(&scene.place("mnt"));
    scene.exits(0, &["umount", "mnt"]);
    let gone = |path: &Path| path.starts_with("victim") || [Path::new("a/f9"), Path::new("large")].contains(&path);
    for (path, made) in tree.iter().filter(|(path, _)| !gone(path)) {
        let same = now.get(path).is_some_and(|found| (found.0, found.1, &found.3) == (made.0, made.1, &made.3));
        assert!(same, "{}", path.display());
    }
    assert_eq!(
        now.keys().filter(|path| path.starts_with("lost+found")).count(),
        21,
        "twenty children and the directory"
    );
    assert!(!now.keys().any(|path| path == Path::new("a/f9") || path == Path::new("large")));
}
