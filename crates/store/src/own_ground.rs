//! The ground a store stands on: its files, what they lie on, and so on downwards.
//!
//! A store that is mounted over its own files, or whose bulk storage lies in its own mount, waits
//! for itself, and no signal ends that. The ground is followed through block devices on files,
//! overlays and the mounts of other stores, so a circle of any length is found. Rules: files are
//! compared by device and inode number, never by name. Nothing behind a daemon that does not answer
//! is touched. Left out: circles through servers (NBD, donors) and through other programs' file
//! systems in user space, which cannot be seen.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use shoal_devices::{During, Failure, Outcome};
use shoal_fuse::mount_table::{self, FILE_SYSTEM_TYPE, MountEntry};
use shoal_host::Directory;

use crate::cache;
use crate::description::Description;
use crate::names::LOG;
use crate::place;

/// A file, or the place of a file that does not exist yet.
struct Ground {
    path: PathBuf,
    /// The file system's number, `major:minor`.
    device: String,
    /// The store that the file belongs to, if it is another one.
    of: Option<PathBuf>,
}

/// A file or device whose ground is still to be found.
enum Step {
    File(PathBuf),
    Device(String),
}

/// Refuses a mount point that covers a file that the store in `directory` needs.
pub(crate) fn refuse_mountpoint(
    directory: &Directory,
    description: &Description,
    cache_dir: Option<&Path>,
    mountpoint: &Path,
) -> Outcome<()> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let covered = identity(mountpoint);
    let mut files = files(directory, description);
    files.push(cache_dir.unwrap_or(Path::new(cache::DIRECTORY)).into());
    for ground in follow(files)? {
        if covered.is_some() && ground.path.ancestors().any(|above| identity(above) == covered) {
            let store = ground.of.as_deref().unwrap_or(directory.path());
            let cause = format!("would cover {}, which the store {} needs", ground.path.display(), store.display());
            return Err(Failure::new(format_args!("mount point {}", mountpoint.display()), cause)
                .remedy("choose a directory that holds none of its files")
                .misuse());
        }
    }
    Ok(())
}

/// Refuses a bulk device that has files in the mount with the number `device`, at any depth. `name`
/// is for the message.
pub(crate) fn refuse_within(name: &str, files: Vec<PathBuf>, device: &str) -> Outcome<()> {
    match follow(files)?.iter().find(|ground| ground.device == device) {
        None => Ok(()),
        Some(Ground { path, of, .. }) => {
            let way = of.as_ref().map_or(String::new(), |of| format!(" by way of the store {}", of.display()));
            let cause = format!("lies in the store's own mount ({}){way}: it would wait for itself", path.display());
            Err(Failure::new(name, cause).remedy("name a place outside of it").misuse())
        }
    }
}

/// Returns the files that a store has open or opens by name.
fn files(directory: &Directory, description: &Description) -> Vec<PathBuf> {
    let mut files = vec![directory.place(), directory.place().join(LOG)];
    files.extend(description.memory.path().map(PathBuf::from));
    for device in description.devices() {
        if let Ok(name) = device.place.name(directory) {
            files.extend(name.files());
        }
    }
    files
}

/// Finds everything that these files stand on, including themselves.
fn follow(files: Vec<PathBuf>) -> Outcome<Vec<Ground>> {
    let mounts = mount_table::mounts().during("table of mounts")?;
    let (mut found, mut known) = (Vec::new(), HashSet::new());
    let mut left: Vec<_> = files.into_iter().map(|file| (Step::File(file), None)).collect();
    while let Some((step, of)) = left.pop() {
        let (devices, at) = match step {
            Step::Device(number) => (vec![number], None),
            Step::File(file) => {
                place::passable(&file)?;
                let Some((path, metadata)) = existing(&file) else { continue };
                let mut devices = vec![number(metadata.dev())];
                if metadata.file_type().is_block_device() {
                    devices.push(number(metadata.rdev()));
                }
                found.push(Ground { path: path.clone(), device: devices[0].clone(), of: of.clone() });
                (devices, Some(path))
            }
        };
        for device in devices.into_iter().filter(|device| known.insert(device.clone())) {
            let entry = mounts.iter().rfind(|entry| entry.device == device);
            // The device number of a file on btrfs is in no table.
            let entry = entry.or_else(|| mounts.iter().rfind(|entry| Some(&entry.mountpoint) == at.as_ref()));
            let entry = entry.or_else(|| place::covering_mount(&mounts, at.as_deref()?));
            match entry {
                Some(entry) if entry.file_system_type == FILE_SYSTEM_TYPE => {
                    left.extend(of_store(&entry.source).into_iter().map(|file| (file, Some(entry.source.clone()))));
                }
                Some(entry) => left.extend(below_mount(entry).into_iter().map(|step| (step, of.clone()))),
                None => {}
            }
            left.extend(below_device(&device).into_iter().map(|step| (step, of.clone())));
        }
    }
    Ok(found)
}

/// Returns the path without links, or its nearest existing ancestor if the path does not exist.
fn existing(path: &Path) -> Option<(PathBuf, Metadata)> {
    let path = std::path::absolute(path).ok()?;
    let found = path.ancestors().find_map(|above| above.canonicalize().ok())?;
    let metadata = fs::metadata(&found).ok()?;
    Some((found, metadata))
}

fn number(device: u64) -> String {
    format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device))
}

fn of_store(directory: &Path) -> Vec<Step> {
    // If the description cannot be read, at least the directory is known.
    let described = place::passable(directory).and_then(|()| {
        let held = Directory::open(directory).map_err(Failure::of)?;
        Description::read(&held).map(|of| files(&held, &of))
    });
    let files = described.unwrap_or_else(|_| vec![directory.into()]);
    files.into_iter().map(Step::File).collect()
}

/// Returns the device or the directories of a mounted file system.
fn below_mount(entry: &MountEntry) -> Vec<Step> {
    if entry.source.starts_with("/dev") {
        return vec![Step::File(entry.source.clone())];
    }
    let layers = entry.super_options.split(',').filter(|_| entry.file_system_type == "overlay");
    let layers = layers.filter_map(|option| option.strip_prefix("upperdir=").or(option.strip_prefix("lowerdir=")));
    layers.flat_map(|layers| layers.split(':')).map(|layer| Step::File(layer.into())).collect()
}

/// Returns the devices below a device: the file behind a loop device, the devices behind a mapped
/// one, the disk of a partition.
fn below_device(device: &str) -> Vec<Step> {
    let Ok(block) = Path::new("/sys/dev/block").join(device).canonicalize() else { return Vec::new() };
    let read = |path: PathBuf| fs::read_to_string(path).ok().map(|text| text.trim_end_matches('\n').to_string());
    let mut found: Vec<Step> =
        read(block.join("loop/backing_file")).map(|file| Step::File(file.into())).into_iter().collect();
    let below = fs::read_dir(block.join("slaves")).into_iter().flatten().flatten().map(|entry| entry.path());
    let disk = block.parent().filter(|_| block.join("partition").exists()).map(PathBuf::from);
    found.extend(below.chain(disk).filter_map(|device| read(device.join("dev"))).map(Step::Device));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryChoice;

    #[test]
    fn a_mount_point_above_any_file_of_the_store_is_refused_under_every_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        ["s/log", "s/m", "out", "mem"].iter().for_each(|name| fs::create_dir_all(at(name)).unwrap());
        std::os::unix::fs::symlink(at("s"), at("link")).unwrap();
        let mut description = Description::guess(Some(crate::BulkPlace::File(at("out/bulk"))));
        description.memory = format!("battery={}", at("mem/region").display()).parse::<MemoryChoice>().unwrap();
        let refuse = |mountpoint: &str, cache: Option<&Path>| {
            refuse_mountpoint(&Directory::open(&at("s")).unwrap(), &description, cache, &at(mountpoint))
                .map_err(|failure| failure.to_string())
        };
        for covering in ["", "s", "s/log", "link", "out", "mem"] {
            let told = refuse(covering, None).unwrap_err();
            assert!(told.contains("would cover ") && told.contains("; choose a directory"), "{covering}: {told}");
        }
        // The bulk file does not exist yet, but its place counts.
        assert!(!at("out/bulk").exists());
        assert_eq!(refuse("s/m", None), Ok(()));
        assert!(refuse("s/m", Some(&at("s/m/cache"))).is_err());
    }

    #[test]
    fn a_file_is_followed_to_the_file_system_it_lies_on() {
        let dir = tempfile::tempdir().unwrap();
        let own = number(fs::metadata(dir.path()).unwrap().dev());
        let told = refuse_within("file:x", vec![dir.path().join("a/b")], &own).unwrap_err().to_string();
        assert!(told.contains("own mount"), "{told}");
        refuse_within("file:x", vec![dir.path().into()], "0:0").unwrap();
    }
}
