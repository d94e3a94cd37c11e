//! The file systems that the live experiments compare, made for one run.
//!
//! Owns: ramfs; ext2 without indexed directories, as Conquest met it; a store of Shoal whose memory
//! is a file in memory, as Conquest's was. Rules: ext2 and the store's disk are loop devices on
//! files of the host that have no name, so that nothing outlives the run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::experiment::LabError;
use crate::places::Labelled;
use crate::world::{World, broken, is_mounted};

const TIMEOUT: Duration = Duration::from_secs(600);
/// Size of a disk: full runs write 4 GB of large files.
const DISK_BYTES: u64 = 12 << 30;
const QUICK_DISK_BYTES: u64 = 2000 << 20;
const MEMORY: &str = "2G";
const QUICK_MEMORY: &str = "512M";

pub struct Peers {
    world: World,
    places: Vec<Labelled>,
    /// Where the store lies.
    host: PathBuf,
}

impl Peers {
    pub fn make(is_quick: bool) -> Result<Peers, LabError> {
        if !rustix::process::geteuid().is_root() {
            return Err(broken("mounts", "they take root; run it as root, or name places with --at"));
        }
        let mut peers = Peers { world: World::new(TIMEOUT)?, places: vec![], host: PathBuf::new() };
        let (disk, memory) = if is_quick { (QUICK_DISK_BYTES, QUICK_MEMORY) } else { (DISK_BYTES, MEMORY) };
        peers.ramfs()?;
        let ext2 = peers.disk("ext2", &[&"-O", &"^dir_index"], disk)?;
        peers.add("ext2", ext2);
        peers.store(disk, memory)?;
        Ok(peers)
    }

    pub fn places(&self) -> &[Labelled] {
        &self.places
    }

    /// Returns a directory on the disk that the mounted store has, too.
    pub fn host(&self) -> &Path {
        &self.host
    }

    /// Removes everything. Returns what could not be removed.
    pub fn close(mut self) -> Vec<String> {
        self.world.close()
    }

    fn add(&mut self, label: &str, directory: PathBuf) {
        self.places.push(Labelled { label: label.into(), directory });
    }

    fn ramfs(&mut self) -> Result<(), LabError> {
        let at = self.world.make_directory("ramfs")?;
        self.world.mount("ramfs", Path::new("ramfs"), &at, "noatime")?;
        self.add("ramfs", at);
        Ok(())
    }

    /// Makes a file system on a disk of its own. Returns where it is mounted.
    fn disk(&mut self, kind: &str, options: &[&dyn AsRef<OsStr>], bytes: u64) -> Result<PathBuf, LabError> {
        let device = self.world.attach_new(&format!("{kind}.disk"), bytes)?;
        let words: Vec<&dyn AsRef<OsStr>> = [&"-q" as &dyn AsRef<OsStr>, &"-F", &"-t", &kind]
            .into_iter()
            .chain(options.iter().copied())
            .chain([&device as &dyn AsRef<OsStr>])
            .collect();
        self.world.run("mke2fs", &words)?;
        let at = self.world.make_directory(kind)?;
        self.world.mount(kind, &device, &at, "noatime")?;
        Ok(at)
    }

    fn store(&mut self, bytes: u64, memory: &str) -> Result<(), LabError> {
        let shoal = std::env::current_exe().map_err(|error| broken("shoal", error))?.with_file_name("shoal");
        self.host = self.disk("ext4", &[], bytes)?;
        let store = self.host.join("store");
        let region = format!("battery={}", self.world.path("region").display());
        self.world.run_shoal(&shoal, &[&"format", &"--memory", &region, &"--memory-size", &memory, &store])?;
        let at = self.world.make_directory("shoal")?;
        let words: [&dyn AsRef<OsStr>; 7] = [&shoal, &"mount", &"-f", &"-o", &"noatime", &store, &at];
        self.world.start("shoal", Signal::TERM, &words, || is_mounted(&at))?;
        self.world.has_fuse(&at);
        self.add("shoal", at);
        Ok(())
    }
}
