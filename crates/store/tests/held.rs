//! Writes of large files that a process held back when it was killed, seen by every kind of later
//! opening.
//!
//! A test opens a store with a cache, writes to it, and drops it without a shutdown. That leaves
//! what a killed process leaves: no process, but its cache. Left out: the machine's death, which
//! takes the cache along (`crates/fs/tests/enumeration.rs`), and real kills (`tests/real/held`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shoal_fs::{Caller, Options, ROOT};
use shoal_store::{CacheOptions, FormatOptions, Opened, Store, Volume, rule_of};

const BYTES: usize = 3 << 20;

fn wanted() -> CacheOptions {
    let rule = rule_of(Some("aipu:1h"), None, &Default::default()).unwrap();
    CacheOptions { bytes: Some(32 << 20), directory: None, rule }
}

/// Takes the store. Another test may be starting a process: until that is another program, it holds
/// every lock of this one.
fn acquire(path: &Path) -> Store {
    Store::acquire(path, Duration::from_secs(10)).unwrap()
}

fn format(path: &Path) {
    let options =
        FormatOptions { memory_bytes: Some(64 << 20), bulk_bytes: Some(64 << 20), ..FormatOptions::default() };
    Store::format(path, &options).unwrap();
}

/// Writes a large file of these bytes, then ends like a killed process.
fn write_and_die(path: &Path, byte: u8) {
    let store = acquire(path);
    let Opened { fs, devices, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
    store.write_pid().unwrap();
    let cache = devices.caches.into_iter().next().expect("/dev/shm has room for a cache");
    let caller = Caller { uid: 0, gid: 0, umask: 0o022, hold: false };
    let ino = match fs.lookup(ROOT, b"large") {
        Ok(found) => found.ino,
        Err(_) => fs.mknod(&caller, ROOT, b"large", 0o644, 0).unwrap().ino,
    };
    assert_eq!(fs.write(ino, 0, &vec![byte; BYTES]).unwrap(), BYTES);
    assert!(cache.held_bytes() >= BYTES as u64 - (1 << 20), "{:?}", cache.report());
}

fn cache_of(path: &Path) -> PathBuf {
    let note = fs::read_to_string(path.join("cache")).unwrap();
    note.lines().next().unwrap().into()
}

fn contents(volume: &Volume) -> Vec<u8> {
    volume.read("large").unwrap()
}

struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Scratch {
        Scratch(tempfile::tempdir().unwrap())
    }

    fn store(&self) -> PathBuf {
        let path = self.0.path().join("store");
        format(&path);
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A cache that a test leaves would take memory until the next boot.
        for entry in fs::read_dir(self.0.path()).into_iter().flatten().flatten() {
            if entry.path().join("cache").exists() {
                let _ = fs::remove_file(cache_of(&entry.path()));
            }
        }
    }
}

#[test]
fn what_was_held_is_there_for_readers_salvage_and_the_next_user() {
    let scratch = Scratch::new();
    let path = scratch.store();
    write_and_die(&path, 7);
    let cache = cache_of(&path);
    // A reader changes nothing.
    for _ in 0..2 {
        let volume = Volume::open_read_only(&path).unwrap();
        assert!(contents(&volume) == vec![7; BYTES]);
        drop(volume);
        assert!(cache.exists());
    }
    let salvaged = scratch.0.path().join("salvaged");
    shoal_store::salvage(&path, &salvaged, &(), &mut |_| ()).unwrap();
    assert!(fs::read(salvaged.join("large")).unwrap() == vec![7; BYTES]);
    let volume = Volume::open(&path).unwrap();
    assert!(contents(&volume) == vec![7; BYTES]);
    volume.close().unwrap();
    assert!(!cache.exists() && !path.join("cache").exists(), "nothing is held after a clean end");
    let volume = Volume::open_read_only(&path).unwrap();
    assert!(contents(&volume) == vec![7; BYTES]);
}

#[test]
fn a_cache_that_is_gone_or_changed_is_a_power_loss() {
    let spoil: [fn(&Path); 3] = [
        |cache| fs::remove_file(cache).unwrap(),
        |cache| {
            let mut bytes = fs::read(cache).unwrap();
            let at = bytes.iter().rposition(|&byte| byte == 7).unwrap();
            bytes[at] = 8;
            fs::write(cache, bytes).unwrap();
        },
        |cache| fs::File::options().write(true).open(cache).unwrap().set_len(1 << 20).unwrap(),
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let scratch = Scratch::new();
        let path = scratch.store();
        write_and_die(&path, 7);
        spoil(&cache_of(&path));
        let store = acquire(&path);
        let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        assert!(recovery.power_lost, "{number}");
        let ino = fs.lookup(ROOT, b"large").unwrap().ino;
        let mut out = vec![1; BYTES];
        fs.read(ino, 0, &mut out).unwrap();
        assert!(out.iter().all(|&byte| byte == 0), "{number}: new blocks are zeros, or nothing is known of them");
        fs.shutdown().unwrap();
        store.remove_pid();
        assert!(!path.join("cache").exists());
    }
}

#[test]
fn a_cache_of_another_life_is_dropped() {
    let scratch = Scratch::new();
    let path = scratch.store();
    write_and_die(&path, 7);
    // In between, a program without caches uses the store: it finds a power loss, writes, and is
    // killed.
    let (note, aside) = (path.join("cache"), scratch.0.path().join("note"));
    fs::rename(&note, &aside).unwrap();
    {
        let store = acquire(&path);
        let Opened { fs, recovery, .. } = store.open(Options::default()).unwrap();
        assert!(recovery.power_lost);
        let ino = fs.lookup(ROOT, b"large").unwrap().ino;
        fs.write(ino, 0, &vec![9; BYTES]).unwrap();
    }
    fs::rename(&aside, &note).unwrap();
    let volume = Volume::open(&path).unwrap();
    assert!(contents(&volume) == vec![9; BYTES], "what the first one held does not come back");
    volume.close().unwrap();
}

#[test]
fn a_copy_of_the_directory_leaves_the_cache_to_the_original() {
    let scratch = Scratch::new();
    let path = scratch.store();
    write_and_die(&path, 7);
    let copy = scratch.0.path().join("copy");
    assert!(
        std::process::Command::new("cp")
            .args(["-a", "--sparse=always"])
            .arg(&path)
            .arg(&copy)
            .status()
            .unwrap()
            .success()
    );
    let store = acquire(&copy);
    let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
    assert!(recovery.power_lost && cache_of(&copy) != cache_of(&path));
    fs.shutdown().unwrap();
    store.remove_pid();
    let volume = Volume::open(&path).unwrap();
    assert!(contents(&volume) == vec![7; BYTES]);
    volume.close().unwrap();
}

#[test]
fn two_kills_in_a_row_lose_nothing_and_a_formatted_directory_gives_its_memory_back() {
    let scratch = Scratch::new();
    let path = scratch.store();
    write_and_die(&path, 7);
    let first = cache_of(&path);
    write_and_die(&path, 8);
    assert_eq!(cache_of(&path), first, "the cache goes on being used");
    assert!(contents(&Volume::open_read_only(&path).unwrap()) == vec![8; BYTES]);
    let force = FormatOptions { memory_bytes: Some(64 << 20), force: true, ..FormatOptions::default() };
    Store::format(&path, &force).unwrap();
    assert!(!first.exists());
}

#[test]
fn a_folder_that_is_no_shared_memory_is_refused_by_name_and_small_sizes_are_enough() {
    let scratch = Scratch::new();
    let path = scratch.store();
    let store = acquire(&path);
    let disk = tempfile::tempdir_in("/var/tmp").unwrap();
    let options = CacheOptions { directory: Some(disk.path().into()), ..wanted() };
    let error = store.open_with(Options::default(), Some(&options)).map(drop).unwrap_err().to_string();
    assert!(error.contains("write-back cache") && error.contains("not on tmpfs"), "{error}");
    let options = CacheOptions { bytes: Some(1), ..wanted() };
    let Opened { fs, devices, .. } = store.open_with(Options::default(), Some(&options)).unwrap();
    assert_eq!(devices.caches[0].report().size_bytes, 16 << 20);
    fs.shutdown().unwrap();
    store.remove_pid();
}
