//! A real store in a temporary directory, its mount, and the tree under the mount.
//!
//! Needs /dev/fuse; every program runs under `timeout`, and every mount is undone at the end.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

pub type Tree = BTreeMap<PathBuf, (u64, u32, u64, u64, i64, u64)>;

pub struct Scene {
    pub dir: tempfile::TempDir,
}

/// Returns the command under test with a time-out. It does not inherit the terminal: a daemon that
/// kept it open would keep its reader waiting.
pub fn shoal(args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new("timeout");
    command.arg("60").arg(env!("CARGO_BIN_EXE_shoal")).args(args).stdin(Stdio::null());
    command
}

/// Returns the output of a command that must succeed.
pub fn succeeded(args: &[impl Debug], output: Output) -> String {
    assert!(output.status.success(), "shoal {args:?}: {} {}", output.status, String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until the condition holds, for half a minute at most.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(30), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

impl Scene {
    pub fn new(format: &[&str]) -> Scene {
        let scene = Scene { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(scene.at("mnt")).unwrap();
        let place = scene.text("store");
        let region = format!("battery={}", scene.text("region"));
        let format = format.iter().map(|word| if *word == "battery" { region.as_str() } else { word });
        let sizes = ["--memory-size", "64M", "--bulk-size", "1G"];
        scene.ok(&["format"].into_iter().chain(sizes).chain(format).chain([place.as_str()]).collect::<Vec<_>>());
        scene
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().into()
    }

    pub fn run(&self, args: &[&str]) -> Output {
        shoal(args).output().unwrap()
    }

    pub fn ok(&self, args: &[&str]) -> String {
        succeeded(args, self.run(args))
    }

    pub fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(matches!(output.status.code(), Some(1 | 2)), "shoal {args:?}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    pub fn mount(&self, store: &str) {
        self.ok(&["mount", &self.text(store), &self.text("mnt")]);
    }

    pub fn umount(&self) {
        self.ok(&["umount", &self.text("mnt")]);
    }

    pub fn kill(&self) {
        crate::killed::kill_daemon(&self.at("store"));
        self.umount();
    }

    pub fn fill(&self) {
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
        // Leave space that was used and is free again.
        fs::write(mnt.join("gone"), vec![9; 40 << 20]).unwrap();
        fs::remove_file(mnt.join("gone")).unwrap();
    }

    /// Returns every path of the mount: inode, mode, links, size, time, and a sum of the contents.
    pub fn tree(&self) -> Tree {
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
