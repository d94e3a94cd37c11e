//! Names of inodes: the paths that lead to them.
//!
//! Inodes do not know their names, so all directories are read. Left out: inodes without a name.

use std::collections::{HashMap, HashSet};

use shoal_devices::{During, Outcome};
use shoal_fs::{Error, Fs, Ino, ROOT};

/// Returns a description of an inode that has no name.
pub(crate) fn nameless(fs: &Fs, ino: Ino) -> String {
    match fs.devices().is_spill_file(ino) {
        true => "(small files that have spilled)".to_string(),
        false => format!("(inode {ino}, without a name)"),
    }
}

/// Returns a path for each of these inodes that has a name.
pub(crate) fn of(fs: &Fs, inos: impl Iterator<Item = Ino>) -> Outcome<HashMap<Ino, String>> {
    let wanted: HashSet<Ino> = inos.collect();
    let mut found = HashMap::new();
    let mut directories = vec![(ROOT, String::new())];
    while let (Some((directory, path)), true) = (directories.pop(), found.len() < wanted.len()) {
        let listed = fs.readdir(directory, 0, &mut |entry| {
            let below = || format!("{path}/{}", String::from_utf8_lossy(entry.name));
            match entry.kind {
                4 if entry.name != b"." && entry.name != b".." => directories.push((entry.ino, below())),
                8 if wanted.contains(&entry.ino) => {
                    found.entry(entry.ino).or_insert_with(below);
                }
                _ => {}
            }
            true
        });
        match listed {
            // The directory was removed meanwhile, or is damaged. Use what can be reached.
            Ok(()) | Err(Error::Stale | Error::NotFound | Error::Corrupt(_)) => {}
            Err(error) => return Err(error).during(path),
        }
    }
    Ok(found)
}
