//! A store's directory: making it ready for a new store, and saying whether a path lies in it.
//!
//! Rules: everything is readable by the owner only. A directory that holds anything but the files of a store is
//! refused.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use shoal_devices::{During, Failure, Outcome};
use shoal_host::StoreLock;

use crate::cache;
use crate::description::Description;
use crate::names::{DESCRIPTION, LOCK, LOG, OWN_NAMES, is_of_bulk};
use crate::{holder, user};

/// Writes a small file beside a store's own, which its owner alone may read.
pub(crate) fn write_note(path: &Path, text: &[u8]) -> io::Result<()> {
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(text)
}

/// Makes the directory, or removes an earlier store from it; refuses a directory that holds anything else.
pub(crate) fn prepare(directory: &Path, force: bool) -> Outcome<(PathBuf, StoreLock)> {
    match fs::DirBuilder::new().recursive(true).mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(Failure::new(directory.display(), "is not a directory")
                .remedy("name a directory that is empty or does not exist yet"));
        }
        outcome => outcome.during(directory.display())?,
    }
    let directory = directory.canonicalize().during(directory.display())?;
    let entries: Vec<_> = fs::read_dir(&directory)
        .and_then(|entries| entries.map(|e| Ok(e?.file_name())).collect::<io::Result<_>>())
        .during(directory.display())?;
    let is_own = |name: &&OsString| OWN_NAMES.iter().any(|own| *name == own) || name.to_str().is_some_and(is_of_bulk);
    if let Some(foreign) = entries.iter().find(|name| !is_own(name)) {
        let cause = format!("holds `{}`, which is no part of a store", foreign.to_string_lossy());
        return Err(Failure::new(directory.display(), cause).remedy("name an empty or a new directory"));
    }
    if !force && entries.iter().any(|name| name != LOCK) {
        return Err(Failure::new(directory.display(), "holds a store, or a part of one")
            .remedy("add --force to replace it; everything in it is lost"));
    }
    let in_use = |failure: Failure| if failure.is_in_use() { holder::in_use(&directory) } else { failure };
    let lock = user::lock(&directory).map_err(in_use)?;
    // The description goes first: from here on there is no store.
    let old = Description::read(&directory).ok();
    if let Some(period) =
        old.as_ref().and_then(|old| user::period(&[Some(directory.join(LOG)), old.bulk_path(&directory)]).ok())
    {
        // What it held is lost with it, and must not take memory for ever.
        cache::remove_all(&directory, &period);
    }
    remove(&directory.join(DESCRIPTION))?;
    if let Some(path) = old.as_ref().and_then(|old| old.memory.path()) {
        remove(path)?;
    }
    for name in OWN_NAMES.iter().filter(|name| **name != LOCK) {
        remove(&directory.join(name))?;
    }
    for name in entries.iter().filter(|name| name.to_str().is_some_and(is_of_bulk)) {
        remove(&directory.join(name))?;
    }
    Ok((directory, lock))
}

fn remove(path: &Path) -> Outcome<()> {
    let outcome = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome.during(path.display()),
    }
}

/// Does this path lie in the directory, or is it the directory itself?
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

    #[test]
    fn only_an_empty_directory_becomes_a_store_unless_forced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        drop(prepare(&path, false).unwrap());
        drop(prepare(&path, false).unwrap());
        fs::write(path.join(DESCRIPTION), "{}").unwrap();
        assert!(prepare(&path, false).map(drop).unwrap_err().to_string().contains("--force"));
        fs::create_dir(path.join(LOG)).unwrap();
        drop(prepare(&path, true).unwrap());
        let left: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
        fs::write(path.join("thesis.tex"), "").unwrap();
        assert!(prepare(&path, true).map(drop).unwrap_err().to_string().contains("thesis.tex"));
    }
}
