//! A store's directory: making it ready for a new store, and saying whether a path lies in it.
//!
//! Rules: everything is readable by the owner only. A directory that holds anything but the files of a store is
//! refused.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use shoal_devices::{During, Failure, Outcome};
use shoal_host::{Directory, StoreLock};

use crate::cache;
use crate::description::Description;
use crate::memory::OwnRegion;
use crate::names::{DESCRIPTION, LOCK, OWN_NAMES, is_of_bulk};
use crate::{holder, user};

/// A directory that is ready for a new store.
pub(crate) struct Prepared {
    pub directory: Directory,
    pub lock: StoreLock,
    /// Message about a region that the earlier store named outside of the directory and that stays.
    pub left: Option<String>,
}

/// Makes the directory, or removes an earlier store from it. Refuses a directory that holds
/// anything else. `region` is the path of the new store's region, if it is a file. Outside of the
/// directory, only files proven to be the earlier store's are removed.
pub(crate) fn prepare(directory: &Path, region: Option<&Path>, force: bool) -> Outcome<Prepared> {
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(Failure::new(directory.display(), "is not a directory")
                .remedy("name a directory that is empty or does not exist yet"));
        }
        outcome => outcome.during(directory.display())?,
    }
    let directory = Directory::open(&directory.canonicalize().during(directory.display())?).map_err(Failure::of)?;
    let entries = directory.entries().map_err(Failure::of)?;
    let is_own = |name: &&OsString| OWN_NAMES.iter().any(|own| *name == own) || name.to_str().is_some_and(is_of_bulk);
    if let Some(foreign) = entries.iter().find(|name| !is_own(name)) {
        let cause = format!("holds `{}`, which is no part of a store", foreign.to_string_lossy());
        return Err(Failure::new(directory.display(), cause).remedy("name an empty or a new directory"));
    }
    if !force && entries.iter().any(|name| name != LOCK) {
        return Err(Failure::new(directory.display(), "holds a store, or a part of one")
            .remedy("add --force to replace it; everything in it is lost"));
    }
    let in_use = |failure: Failure| if failure.is_in_use() { holder::in_use(directory.path()) } else { failure };
    let lock = user::lock(&directory).map_err(in_use)?;
    let old = Description::read(&directory).ok();
    let old_region = old.as_ref().and_then(|old| Some((old, old.memory.path()?)));
    let own_region = old_region.map(|(old, path)| OwnRegion::find(path, old, &directory)).transpose();
    if let Some(region) = region
        && region.exists()
        && !matches!(&own_region, Ok(Some(Some(own))) if own.is_at(region))
    {
        let why = own_region.err().map_or_else(|| "exists".to_string(), |failure| failure.to_string());
        return Err(Failure::new(region.display(), why)
            .remedy("name another file for the region, or remove this one when nobody needs it"));
    }
    // The store ends when its description is removed. Its caches go before that, while the
    // description still names them.
    if let Some(period) = old.as_ref().and_then(|old| user::period(&directory, old.bulk_path(&directory)).ok()) {
        // Data held in the caches is lost with the store, and must not take memory forever.
        cache::remove_all(&directory, &period);
    }
    directory.remove(DESCRIPTION).map_err(Failure::of)?;
    let left = match own_region {
        Ok(own) => own.flatten().map(OwnRegion::remove).transpose().err(),
        Err(failure) => Some(failure),
    };
    for name in OWN_NAMES.iter().filter(|name| **name != LOCK) {
        remove(&directory, name)?;
    }
    for name in entries.iter().filter_map(|name| name.to_str()).filter(|name| is_of_bulk(name)) {
        remove(&directory, name)?;
    }
    Ok(Prepared { directory, lock, left: left.map(|failure| format!("the earlier store's region stays: {failure}")) })
}

fn remove(directory: &Directory, name: &str) -> Outcome<()> {
    match directory.is_directory(name) {
        true => directory.remove_directory(name),
        false => directory.remove(name),
    }
    .map_err(Failure::of)
}

/// Returns true if this path lies in the directory or is the directory itself.
pub(crate) fn is_within(absolute: &Path, directory: &Path) -> bool {
    absolute.ancestors().any(|above| above.canonicalize().is_ok_and(|above| above == directory))
}

/// Refuses a directory that holds anything but the `spared` files. `name` is the directory as the user gave it.
pub(crate) fn refuse_filled(directory: &Path, name: &Path, spared: &[&str]) -> Outcome<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            let remedy = "name a directory that is empty or does not exist yet";
            return Err(Failure::new(name.display(), error).remedy(remedy));
        }
    };
    for entry in entries {
        let found = entry.during(name.display())?.file_name();
        if !spared.iter().any(|spared| found == *spared) {
            return Err(Failure::new(name.display(), "is not empty").remedy("name an empty or a new directory"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::LOG;

    #[test]
    fn only_an_empty_directory_becomes_a_store_unless_forced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        drop(prepare(&path, None, false).unwrap());
        drop(prepare(&path, None, false).unwrap());
        fs::write(path.join(DESCRIPTION), "{}").unwrap();
        assert!(prepare(&path, None, false).map(drop).unwrap_err().to_string().contains("--force"));
        fs::create_dir(path.join(LOG)).unwrap();
        drop(prepare(&path, None, true).unwrap());
        let left: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
        fs::write(path.join("thesis.tex"), "").unwrap();
        assert!(prepare(&path, None, true).map(drop).unwrap_err().to_string().contains("thesis.tex"));
    }
}
