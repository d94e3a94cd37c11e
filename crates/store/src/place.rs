//! Finding a store from a path: its own directory, or a mount point of it.
//!
//! The table of mounts is read first, because a mount without its daemon answers every other question with an error.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use shoal_devices::{During, Failure, Outcome};
use shoal_fuse::mount_table::{self, FILE_SYSTEM_TYPE, MountEntry};

use crate::names::DESCRIPTION;

/// The store's directory, and where it is mounted, if it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    pub store: PathBuf,
    pub mountpoint: Option<PathBuf>,
}

/// The store that a path means: its own directory, or a mount point of it.
pub fn find(path: &Path) -> Outcome<Place> {
    let absolute = std::path::absolute(path).during(path.display())?;
    let mounts = mount_table::mounts().during("table of mounts")?;
    if let Some(entry) = visible_at(&mounts, &absolute) {
        return Ok(Place { store: entry.source.clone(), mountpoint: Some(absolute) });
    }
    let canonical = absolute.canonicalize().during(path.display())?;
    if let Some(entry) = visible_at(&mounts, &canonical) {
        return Ok(Place { store: entry.source.clone(), mountpoint: Some(canonical) });
    }
    if !canonical.join(DESCRIPTION).exists() {
        return Err(Failure::new(path.display(), "neither a store nor the mount point of one")
            .remedy("name the directory given to `shoal format`, or where it is mounted"));
    }
    let mountpoint = mounted_store(&mounts, &canonical).map(|entry| entry.mountpoint.clone());
    Ok(Place { store: canonical, mountpoint })
}

/// The store of a path that is a store, a mount point of one, or lies within such a mount; and the path within the store.
pub fn find_within(path: &Path) -> Outcome<(Place, PathBuf)> {
    let not_a_store = match find(path) {
        Ok(place) => return Ok((place, PathBuf::from("/"))),
        Err(failure) => failure,
    };
    let Ok(canonical) = path.canonicalize() else { return Err(not_a_store) };
    let mounts = mount_table::mounts().during("table of mounts")?;
    match covering(&mounts, &canonical) {
        Some((entry, within)) => {
            Ok((Place { store: entry.source.clone(), mountpoint: Some(entry.mountpoint.clone()) }, within))
        }
        None => Err(Failure::new(path.display(), "neither a store nor a path in the mount of one").remedy(
            "name the directory given to `shoal format`, where it is mounted, or a file or directory below that",
        )),
    }
}

/// The mounted store that a path lies in, and the path within it.
fn covering<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<(&'a MountEntry, PathBuf)> {
    let covers = |entry: &&MountEntry| path.starts_with(&entry.mountpoint);
    // Of several the deepest shows, and of those at one place the last.
    let entry = mounts.iter().filter(covers).max_by_key(|entry| entry.mountpoint.as_os_str().len())?;
    let within = path.strip_prefix(&entry.mountpoint).ok()?;
    (entry.file_system_type == FILE_SYSTEM_TYPE).then(|| (entry, Path::new("/").join(within)))
}

/// The mount at `path`, which need not answer.
pub fn mounted_at(path: &Path) -> Outcome<Place> {
    let absolute = std::path::absolute(path).during(path.display())?;
    let mounts = mount_table::mounts().during("table of mounts")?;
    let place = |at: &Path| {
        visible_at(&mounts, at).map(|entry| Place { store: entry.source.clone(), mountpoint: Some(at.into()) })
    };
    place(&absolute).or_else(|| place(&absolute.canonicalize().ok()?)).ok_or_else(|| {
        Failure::new(path.display(), "no store is mounted here")
            .remedy("name a mount point that `findmnt -t fuse.shoal` lists")
    })
}

/// Is the store mounted anywhere?
pub fn is_mounted(store: &Path) -> bool {
    mount_table::mounts().is_ok_and(|mounts| mounted_store(&mounts, store).is_some())
}

fn visible_at<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    mounts.iter().rfind(|entry| entry.mountpoint == path).filter(|entry| entry.file_system_type == FILE_SYSTEM_TYPE)
}

fn mounted_store<'a>(mounts: &'a [MountEntry], store: &Path) -> Option<&'a MountEntry> {
    // It may be seen under another path, as through a bind mount.
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let wanted = identity(store);
    let is_it = |source: &Path| source == store || wanted.is_some() && identity(source) == wanted;
    mounts.iter().rfind(|entry| entry.file_system_type == FILE_SYSTEM_TYPE && is_it(&entry.source))
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
        assert!(mounted_at(dir.path()).unwrap_err().to_string().contains("no store is mounted here"));
        assert!(!is_mounted(dir.path()));
        std::fs::write(dir.path().join(DESCRIPTION), "").unwrap();
        let canonical = dir.path().canonicalize().unwrap();
        assert_eq!(find(dir.path()).unwrap(), Place { store: canonical, mountpoint: None });
    }
}
