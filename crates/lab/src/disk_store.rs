//! A store in this process that keeps the data of large files on a disk, for workloads that memory must not hold.
//!
//! Owns: [`DiskStore`], a new store inside one of the user's directories, removed when dropped. Rules: it has `battery`
//! memory, as Conquest's machine had, with the region on tmpfs. Large files pass through the host's page cache, as the
//! kernel's do above a mount; all other settings are a mount's defaults.

use std::fs;
use std::path::{Path, PathBuf};

use shoal_fs::Fs;
use shoal_store::{FormatOptions, Store, StoreOptions, Volume};

use crate::experiment::LabError;

/// A file system in memory, for the region.
const MEMORY: &str = "/dev/shm";

pub struct DiskStore {
    // Closed before the files below it go.
    volume: Option<Volume>,
    directory: PathBuf,
    region: PathBuf,
}

impl DiskStore {
    /// Makes an empty store whose memory holds at most `memory_bytes`.
    pub fn create_in(parent: &Path, memory_bytes: u64) -> Result<DiskStore, LabError> {
        let name = format!("shoal-lab-{}.store", std::process::id());
        let (directory, region) = (parent.join(&name), Path::new(MEMORY).join(&name));
        let broken = |why: String| LabError::Broken { what: format!("store in {}", directory.display()), why };
        let memory = format!("battery={}", region.display()).parse().map_err(&broken)?;
        let options = FormatOptions { memory, memory_bytes: Some(memory_bytes), ..FormatOptions::default() };
        let mut store = DiskStore { volume: None, directory: directory.clone(), region };
        Store::format(&store.directory, &options).map_err(|error| broken(error.to_string()))?;
        let options = StoreOptions { cache_bytes: Some(0), ..StoreOptions::default() };
        store.volume = Some(Volume::open_with(&store.directory, &options).map_err(|error| broken(error.to_string()))?);
        Ok(store)
    }

    pub fn fs(&self) -> &Fs {
        self.volume.as_ref().expect("it is open until it is dropped").engine()
    }
}

impl Drop for DiskStore {
    fn drop(&mut self) {
        self.volume = None;
        // The run has been measured, or has failed with its own error.
        let _ = fs::remove_dir_all(&self.directory);
        let _ = fs::remove_file(&self.region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{Engine, Target};

    #[test]
    fn a_large_file_goes_to_the_disk_and_all_of_it_goes_with_the_store() {
        let parent = tempfile::tempdir().unwrap();
        let store = DiskStore::create_in(parent.path(), 64 << 20).unwrap();
        let contents = vec![7; 3 << 20];
        Engine(store.fs()).create("large", &contents, 4096).unwrap();
        assert_eq!(store.fs().usage().bulk_used, 3 << 20);
        drop(store);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
