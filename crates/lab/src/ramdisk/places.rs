//! The file systems to compare, side by side on one machine.
//!
//! Owns: [`Subject`] and [`set_up`], which makes all of them. A block device is an NBD server made a
//! file by nbdfuse, made a device by loop without a cache of its own; on it is ext2's format, mounted
//! by ext4's driver. The disk is memory of this process behind a throttle; the network RAM disks are `shoal
//! serve` over the donors. Shoal is a store with its large files on a network RAM disk. Rules: all
//! block devices take the same way and differ only behind their NBD server. Devices take no flushes,
//! as the paper's did not. Each turn begins with a mount, so that nothing is in the page cache. Left
//! out: the work.

use std::error::Error;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;
use shoal_nbd::{Export, Server, ServerOptions};

use super::Plan;
use super::disk::{Disk, Throttle};
use super::donors::{ALL, DATA, Donors};
use super::probe::{Speed, probe};
use crate::experiment::LabError;
use crate::world::{World, broken, is_mounted};

/// The label of the disk.
pub const DISK: &str = "disk";
pub const NONE: &str = "ramdisk none";
pub const CACHED: &str = "ramdisk cached";
pub const ADAPTIVE: &str = "ramdisk adaptive";
pub const SHOAL: &str = "shoal";
/// Size of each block device: the largest part needs two thirds of it.
const SIZE: &str = "192M";
const SIZE_BYTES: u64 = 192 << 20;
const BLOCK: &str = "4096";
/// Memory of the store.
const MEMORY: &str = "512M";

/// Which changes wait for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// All (`-o sync`).
    Synchronous,
    /// Changes of names (`-o dirsync`).
    Names,
    /// None, as with ext2.
    Late,
}

impl Writes {
    fn option(self) -> &'static str {
        match self {
            Writes::Synchronous => "sync",
            Writes::Names => "dirsync",
            Writes::Late => "async",
        }
    }
}

#[derive(Debug)]
enum Medium {
    Block { device: PathBuf },
    Store { shoal: PathBuf, store: PathBuf, options: String },
}

/// A file system that is mounted for each turn.
#[derive(Debug)]
pub struct Subject {
    pub label: &'static str,
    medium: Medium,
    pub at: PathBuf,
    /// The speed of its device, if it has one.
    pub speed: Option<Speed>,
}

/// The places that were made, and what readers must know about them.
#[derive(Debug)]
pub struct Set {
    pub subjects: Vec<Subject>,
    pub throttle: Throttle,
    pub network: String,
    pub skipped: Vec<String>,
}

impl Subject {
    pub fn mount(&self, world: &mut World, writes: Writes) -> Result<(), LabError> {
        match &self.medium {
            Medium::Block { device } => {
                world.mount("ext4", device, &self.at, &format!("noatime,nobarrier,{}", writes.option()))
            }
            Medium::Store { shoal, store, options } => {
                let words: [&dyn AsRef<OsStr>; 7] = [shoal, &"mount", &"-f", &"-o", options, store, &self.at];
                world.start(self.label, Signal::TERM, &words, || is_mounted(&self.at))?;
                world.has_fuse(&self.at);
                Ok(())
            }
        }
    }

    pub fn unmount(&self, world: &mut World) -> Result<(), LabError> {
        match &self.medium {
            Medium::Block { .. } => world.unmount(&self.at),
            Medium::Store { .. } => world.unmount_fuse(self.label, &self.at),
        }
    }

    /// Returns the write and read requests that the device has had, and the bytes of both.
    pub fn requests(&self) -> Option<[u64; 3]> {
        let Medium::Block { device } = &self.medium else { return None };
        let name = device.file_name()?.to_str()?;
        let text = fs::read_to_string(format!("/sys/block/{name}/stat")).ok()?;
        let fields: Vec<u64> = text.split_whitespace().map_while(|field| field.parse().ok()).collect();
        const SECTOR: u64 = 512;
        Some([*fields.get(4)?, *fields.first()?, (fields.get(2)? + fields.get(6)?) * SECTOR])
    }
}

fn accepts(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Makes a block device of an NBD server, and measures it.
fn device(world: &mut World, name: &str, uri: &str, seed: u64) -> Result<(PathBuf, Speed), LabError> {
    let fuse = world.make_directory(&format!("{name}-fuse"))?;
    let file = fuse.join("nbd");
    world.start(&format!("{name}-fuse"), Signal::TERM, &[&"nbdfuse", &fuse, &uri], || file.exists())?;
    world.has_fuse(&fuse);
    let device = world.attach(&file)?;
    let speed = world.guarded(name, || probe(&device, seed))?;
    Ok((device, speed))
}

/// Makes a file system on a device, and a directory to mount it on.
fn file_system(
    world: &mut World,
    label: &'static str,
    name: &str,
    (device, speed): (PathBuf, Speed),
) -> Result<Subject, LabError> {
    let words: [&dyn AsRef<OsStr>; 9] = [&"-q", &"-F", &"-t", &"ext2", &"-b", &BLOCK, &"-E", &"nodiscard", &device];
    world.run("mke2fs", &words)?;
    let at = world.make_directory(name)?;
    Ok(Subject { label, medium: Medium::Block { device }, at, speed: Some(speed) })
}

fn ramdisk(world: &mut World, plan: &Plan, donors: &Donors, label: &'static str) -> Result<Subject, LabError> {
    let policy = label.rsplit(' ').next().unwrap_or(label);
    let count = if policy == "adaptive" { ALL } else { DATA };
    let text = donors.disk(count, policy, policy);
    let made = format!("{text}&size={SIZE}");
    world.run_shoal(&plan.shoal, &[&"format", &made])?;
    let socket = world.path(&format!("{policy}.socket"));
    let address = format!("unix:{}", socket.display());
    let words: [&dyn AsRef<OsStr>; 7] = [&plan.shoal, &"serve", &text, &"--nbd", &address, &"--name", &"ram"];
    world.start(&format!("{policy}-serve"), Signal::TERM, &words, || accepts(&socket))?;
    let uri = format!("nbd+unix:///ram?socket={}", socket.display());
    let device = device(world, policy, &uri, plan.seed)?;
    file_system(world, label, &format!("{policy}-at"), device)
}

fn disk(world: &mut World, plan: &Plan, throttle: Throttle) -> Result<Subject, LabError> {
    let socket = world.path("disk.socket");
    let serve = || {
        let export = Export::new("disk", Arc::new(Disk::new(throttle, SIZE_BYTES)))?.multi_conn(true);
        let address = format!("unix:{}", socket.display()).parse().map_err(|error| format!("{error}"))?;
        let exports = Arc::new(vec![Arc::new(export)]);
        Server::start(exports, &address, ServerOptions::default()).map_err(Box::<dyn Error>::from)
    };
    world.serves(serve().map_err(|error| broken(DISK, error))?);
    let uri = format!("nbd+unix:///disk?socket={}", socket.display());
    let device = device(world, DISK, &uri, plan.seed)?;
    file_system(world, DISK, "disk-at", device)
}

/// Makes a store with its memory and held writes on the tmpfs of the scratch directory.
fn shoal(world: &mut World, plan: &Plan, donors: &Donors) -> Result<Subject, LabError> {
    let text = donors.disk(ALL, "adaptive", SHOAL);
    let made = format!("{text}&size={SIZE}");
    world.run_shoal(&plan.shoal, &[&"format", &made])?;
    let (store, cache) = (world.path("store"), world.make_directory("cache")?);
    let memory = format!("battery={}", world.path("region").display());
    world.run_shoal(
        &plan.shoal,
        &[&"format", &"--memory", &memory, &"--memory-size", &MEMORY, &"--bulk", &text, &store],
    )?;
    let at = world.make_directory("shoal-at")?;
    let options = format!("noatime,cache_dir={}", cache.display());
    Ok(Subject { label: SHOAL, medium: Medium::Store { shoal: plan.shoal.clone(), store, options }, at, speed: None })
}

/// Makes all file systems, none of them mounted.
pub fn set_up(world: &mut World, plan: &Plan) -> Result<Set, LabError> {
    let donors = Donors::start(world, plan)?;
    let mut subjects = vec![];
    for label in [NONE, CACHED, ADAPTIVE] {
        subjects.push(ramdisk(world, plan, &donors, label)?);
    }
    let network = subjects[0].speed.ok_or_else(|| broken(NONE, "its device was not measured"))?;
    let throttle = Throttle::beside(&network, plan.rpm);
    subjects.insert(0, disk(world, plan, throttle)?);
    subjects.push(shoal(world, plan, &donors)?);
    let unshaped = donors.unshaped.iter().map(|why| format!("shaping of the links: {why}; the kernel needs sch_tbf"));
    Ok(Set { skipped: unshaped.collect(), subjects, throttle, network: donors.network })
}
