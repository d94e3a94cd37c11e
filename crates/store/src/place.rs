//! Finding a store from a path: its own directory, or a mount point of it.
//!
//! The table of mounts is read first. A mount whose daemon is gone answers every other question
//! with an error, and a mount whose daemon is stopped does not answer at all. So on a path through
//! mounts of stores, nothing is touched before their daemons have answered.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use shoal_devices::{During, Failure, Outcome};
use shoal_fuse::mount_table::{self, FILE_SYSTEM_TYPE, MountEntry};
use shoal_host::Directory;

use crate::description::{has_parts, missing};
use crate::holder;
use crate::names::DESCRIPTION;

/// Maximum number of links followed on the way to a file, as in the kernel.
const LINKS_MAX: u32 = 40;

/// A store's directory, and its mount point if it is mounted.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    pub store: PathBuf,
    pub mountpoint: Option<PathBuf>,
}

/// Finds the store that a path means: its own directory, or a mount point of it.
pub fn find(path: &Path) -> Outcome<Place> {
    let absolute = std::path::absolute(path).during(path.display())?;
    let mounts = mount_table::mounts().during("table of mounts")?;
    if let Some(entry) = visible_at(&mounts, &absolute) {
        return Ok(Place { store: holder::store_of(entry)?, mountpoint: Some(absolute) });
    }
    passable(&absolute)?;
    let canonical = absolute.canonicalize().during(path.display())?;
    if let Some(entry) = visible_at(&mounts, &canonical) {
        return Ok(Place { store: holder::store_of(entry)?, mountpoint: Some(canonical) });
    }
    if !canonical.join(DESCRIPTION).try_exists().during(path.display())? {
        if Directory::open(&canonical).is_ok_and(|held| has_parts(&held)) {
            return Err(missing(&canonical));
        }
        return Err(Failure::new(path.display(), "neither a store nor the mount point of one")
            .remedy("name the directory given to `shoal format`, or where it is mounted"));
    }
    let mountpoint = mounted_store(&mounts, &canonical).map(|entry| entry.mountpoint.clone());
    Ok(Place { store: canonical, mountpoint })
}

/// Finds the store of a path that is a store, a mount point of one, or lies within such a mount.
/// Also returns the path within the store.
pub fn find_within(path: &Path) -> Outcome<(Place, PathBuf)> {
    let not_a_store = match find(path) {
        Ok(place) => return Ok((place, PathBuf::from("/"))),
        Err(failure) => failure,
    };
    passable(path)?;
    let Ok(canonical) = path.canonicalize() else { return Err(not_a_store) };
    let mounts = mount_table::mounts().during("table of mounts")?;
    match covering(&mounts, &canonical) {
        Some((entry, within)) => {
            Ok((Place { store: holder::store_of(entry)?, mountpoint: Some(entry.mountpoint.clone()) }, within))
        }
        None => Err(Failure::new(path.display(), "neither a store nor a path in the mount of one").remedy(
            "name the directory given to `shoal format`, where it is mounted, or a file or directory below that",
        )),
    }
}

/// Returns the mounted store that contains a path, and the path within it.
fn covering<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<(&'a MountEntry, PathBuf)> {
    let entry = covering_mount(mounts, path)?;
    let within = path.strip_prefix(&entry.mountpoint).ok()?;
    (entry.file_system_type == FILE_SYSTEM_TYPE).then(|| (entry, Path::new("/").join(within)))
}

/// Returns the mount that contains a path without links. The path may be the mount's root.
pub(crate) fn covering_mount<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    let covers = |entry: &&MountEntry| path.starts_with(&entry.mountpoint);
    // The deepest mount is visible; of several at one place, the last.
    mounts.iter().filter(covers).max_by_key(|entry| entry.mountpoint.as_os_str().len())
}

/// Fails if the way to `path` leads through a mounted store whose daemon does not answer. A call on
/// such a path would never return, and no signal would end it. Nothing is touched on the way before
/// its daemon has answered. `path` itself may be a mount point, and is not touched.
pub fn passable(path: &Path) -> Outcome<()> {
    let absolute = std::path::absolute(path).during(path.display())?;
    let mounts = mount_table::mounts().during("table of mounts")?;
    let mut left: Vec<OsString> = names(&absolute);
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(name) = left.pop() {
        // The next name is looked up in this directory.
        if let Some(entry) = visible_at(&mounts, &at) {
            holder::refuse_silent(entry)?;
        }
        if name == ".." {
            at.pop();
            continue;
        }
        at.push(name);
        // Reading a mount's root as a link does not reach its daemon.
        if let Ok(target) = fs::read_link(&at) {
            links += 1;
            if links > LINKS_MAX {
                break;
            }
            at.pop();
            if target.is_absolute() {
                at = "/".into();
            }
            left.extend(names(&target));
        }
    }
    Ok(())
}

/// Returns the names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.into()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    names.collect()
}

/// Fails if a mount at or above `path` does not answer. Called before a store is mounted there.
pub fn refuse_silent_at(path: &Path) -> Outcome<()> {
    passable(path)?;
    let mounts = mount_table::mounts().during("table of mounts")?;
    // The mount call refuses a mount point that does not exist.
    let Ok(path) = path.canonicalize() else { return Ok(()) };
    visible_at(&mounts, &path).map_or(Ok(()), holder::refuse_silent)
}

/// Returns the mount at `path`, which need not answer.
pub fn mount_at(path: &Path) -> Outcome<MountEntry> {
    let absolute = std::path::absolute(path).during(path.display())?;
    let mounts = mount_table::mounts().during("table of mounts")?;
    let entry = |at: &Path| visible_at(&mounts, at).cloned();
    if let Some(entry) = entry(&absolute) {
        return Ok(entry);
    }
    passable(&absolute)?;
    absolute.canonicalize().ok().and_then(|path| entry(&path)).ok_or_else(|| {
        Failure::new(path.display(), "no store is mounted here")
            .remedy("name a mount point that `findmnt -t fuse.shoal` lists")
    })
}

/// Returns true if the store is mounted anywhere.
pub fn is_mounted(store: &Path) -> bool {
    mount_table::mounts().is_ok_and(|mounts| mounted_store(&mounts, store).is_some())
}

fn visible_at<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    mounts.iter().rfind(|entry| entry.mountpoint == path).filter(|entry| entry.file_system_type == FILE_SYSTEM_TYPE)
}

fn mounted_store<'a>(mounts: &'a [MountEntry], store: &Path) -> Option<&'a MountEntry> {
    let of_store = |entry: &&MountEntry| entry.file_system_type == FILE_SYSTEM_TYPE;
    let by_name = mounts.iter().rfind(|entry| of_store(entry) && entry.source == store);
    // The store may be visible under another path, as through a bind mount.
    let identity = |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let of_it = || {
        let wanted = identity(store)?;
        let is_it = |source: &Path| passable(source).is_ok() && identity(source) == Some(wanted);
        mounts.iter().rfind(|entry| of_store(entry) && is_it(&entry.source))
    };
    by_name.or_else(of_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(mountpoint: &str, file_system_type: &str, source: &str) -> MountEntry {
        MountEntry {
            device: "0:1".into(),
            mountpoint: mountpoint.into(),
            options: "rw".into(),
            file_system_type: file_system_type.into(),
            source: source.into(),
            super_options: "rw".into(),
        }
    }

    #[test]
    fn the_mount_that_covers_the_others_counts() {
        let mounts =
            [entry("/m", FILE_SYSTEM_TYPE, "/s"), entry("/n", FILE_SYSTEM_TYPE, "/t"), entry("/n", "ext4", "/dev/x")];
        assert_eq!(visible_at(&mounts, Path::new("/m")).unwrap().source, Path::new("/s"));
        assert!(visible_at(&mounts, Path::new("/n")).is_none(), "covered by another file system");
        assert!(visible_at(&mounts, Path::new("/m/x")).is_none());
        assert_eq!(mounted_store(&mounts, Path::new("/t")).unwrap().mountpoint, Path::new("/n"));
    }

    #[test]
    fn a_path_in_a_mount_is_the_stores_unless_another_mount_covers_it() {
        let mounts = [
            entry("/", "ext4", "/dev/x"),
            entry("/m", FILE_SYSTEM_TYPE, "/s"),
            entry("/m/b", "ext4", "/dev/y"),
            entry("/n", "ext4", "/dev/z"),
            entry("/n", FILE_SYSTEM_TYPE, "/t"),
        ];
        let within = |path: &str| covering(&mounts, Path::new(path)).map(|(entry, path)| (entry.source.clone(), path));
        assert_eq!(within("/m/a/c"), Some(("/s".into(), "/a/c".into())));
        assert_eq!(within("/n/x"), Some(("/t".into(), "/x".into())));
        assert_eq!(within("/m"), Some(("/s".into(), "/".into())));
        assert!(within("/m/b/c").is_none() && within("/o").is_none() && within("/mm").is_none());
    }

    #[test]
    fn what_is_no_store_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(find(dir.path()).unwrap_err().to_string().contains("neither a store"));
        assert!(find(&dir.path().join("x")).is_err());
        assert!(mount_at(dir.path()).unwrap_err().to_string().contains("no store is mounted here"));
        assert!(!is_mounted(dir.path()));
        std::fs::write(dir.path().join(DESCRIPTION), "").unwrap();
        let canonical = dir.path().canonicalize().unwrap();
        assert_eq!(find(dir.path()).unwrap(), Place { store: canonical, mountpoint: None });
        fs::rename(dir.path().join(DESCRIPTION), dir.path().join("image.0")).unwrap();
        assert!(find(dir.path()).unwrap_err().to_string().contains("shoal.json: is missing"));
    }

    #[test]
    fn a_way_with_links_in_a_circle_is_gone_to_an_end() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a")).unwrap();
        std::os::unix::fs::symlink("../x/./a", dir.path().join("b")).unwrap();
        passable(&dir.path().join("a/c")).unwrap();
        assert_eq!(names(Path::new("/a/../b/./c")), ["c", "b", "..", "a"]);
    }
}
