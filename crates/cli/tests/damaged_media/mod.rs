//! A store in real files, for tests that damage its media.
//!
//! Needs /dev/fuse, and root or fusermount3. Every program runs under `timeout`; every mount is
//! undone at the end, even after a panic.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use shoal_format::PAGE;
use shoal_format::superblock::{AnchorRecord, Superblock};

pub struct Scene {
    dir: tempfile::TempDir,
}

/// Contents by path; directories have none.
pub type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

impl Scene {
    /// Makes an empty store with these options.
    pub fn new(format: &[&str]) -> Scene {
        assert!(Path::new("/dev/fuse").exists(), "/dev/fuse is missing: these tests need FUSE");
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(scene.at("mnt")).unwrap();
        scene.ok(&[&["format"][..], format, &["store"]].concat());
        scene
    }

    /// Makes a store with `logged` memory.
    pub fn logged() -> Scene {
        Scene::new(&["--memory-size", "32M", "--bulk-size", "16M"])
    }

    /// Makes a store with `battery` memory in a file beside it.
    pub fn battery() -> Scene {
        Scene::new(&["--memory", "battery=region", "--memory-size", "16M", "--bulk-size", "16M"])
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        // `SHOAL` names the program of another build, to try the same damage with it.
        let program = std::env::var("SHOAL").unwrap_or_else(|_| env!("CARGO_BIN_EXE_shoal").into());
        command.arg("60").arg(program).args(args).stdin(Stdio::null());
        command.current_dir(self.dir.path()).output().unwrap()
    }

    /// Runs a program that must exit with this code. Returns its output.
    pub fn exits(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(code), "shoal {args:?}: {text}");
        text
    }

    pub fn ok(&self, args: &[&str]) -> String {
        self.exits(0, args)
    }

    pub fn mount(&self) {
        self.ok(&["mount", "store", "mnt"]);
    }

    pub fn umount(&self) {
        self.ok(&["umount", "mnt"]);
    }

    /// Ends the daemon as a crash of its process would.
    pub fn kill(&self) {
        crate::killed::kill_daemon(&self.at("store"));
        self.umount();
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.at("mnt").join(name), bytes).unwrap();
    }

    /// Reads the tree under the mount point.
    pub fn tree(&self) -> Tree {
        read_tree(&self.at("mnt"))
    }

    pub fn open(&self, name: &str) -> File {
        File::options().read(true).write(true).open(self.at(name)).unwrap()
    }

    /// Reads superblock and anchor of a file that holds a region.
    pub fn head(&self, name: &str) -> (Superblock, AnchorRecord) {
        let mut pages = vec![0; 2 * PAGE as usize];
        self.open(name).read_exact_at(&mut pages, 0).unwrap();
        (Superblock::decode(&pages).unwrap(), AnchorRecord::newest(&pages[PAGE as usize..]).unwrap())
    }

    /// Returns the names of the valid image and of the other one.
    pub fn images(&self) -> (&'static str, &'static str) {
        let names = ["store/image.0", "store/image.1"];
        let generation = |name: &str| self.head(name).1.generation.get();
        if generation(names[0]) > generation(names[1]) { (names[0], names[1]) } else { (names[1], names[0]) }
    }

    /// Returns the offset of these bytes in a file.
    pub fn find(&self, name: &str, wanted: &[u8]) -> u64 {
        let bytes = fs::read(self.at(name)).unwrap();
        bytes.windows(wanted.len()).position(|found| found == wanted).expect("the bytes are there") as u64
    }

    pub fn flip(&self, name: &str, at: u64) {
        let mut byte = [0];
        let file = self.open(name);
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }

    /// Sums the store's files and a region beside them, which must not change. Leaves out the lock,
    /// which contains its holder.
    pub fn sums(&self) -> BTreeMap<PathBuf, u32> {
        let mut sums = BTreeMap::new();
        let mut paths = vec![self.at("store"), self.at("region")];
        while let Some(path) = paths.pop() {
            if path.is_dir() {
                paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            } else if path.is_file() && !["lock", "shoal.log"].iter().any(|name| path.ends_with(name)) {
                let bytes = fs::read(&path).unwrap();
                sums.insert(path, shoal_format::checksum(bytes.len() as u32, &bytes));
            }
        }
        sums
    }
}

/// Corrects the sums of the pages of an image that hold the bytes of `range`. Bytes behind the end
/// of the file count as zeros.
pub fn seal(image: &File, superblock: &Superblock, range: Range<u64>) {
    for number in range.start / PAGE..range.end.div_ceil(PAGE) {
        let mut page = vec![0; PAGE as usize];
        let _ = image.read_exact_at(&mut page, number * PAGE);
        let sum = superblock.sums().of_page(number, &page).to_le_bytes();
        image.write_all_at(&sum, superblock.region_bytes + number * 4).unwrap();
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.run(&["umount", "--lazy", "mnt"]);
        let _ = Command::new("umount").arg("-l").arg(self.at("mnt")).stderr(Stdio::null()).status();
    }
}

/// Reads the tree below `top`. The contents of an unreadable file are the error.
pub fn read_tree(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![top.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map_while(|entry| Some(entry.ok()?.path())) {
            let name = path.strip_prefix(top).unwrap().to_path_buf();
            if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) {
                tree.insert(name, None);
                folders.push(path);
            } else {
                tree.insert(name, Some(fs::read(&path).unwrap_or_else(|error| format!("{error}").into_bytes())));
            }
        }
    }
    tree
}
