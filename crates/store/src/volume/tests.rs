//! A volume in use: across closing and a crash of its process, and the errors it returns.
//!
//! The stores are real ones in scratch directories. Left out: the engine (`shoal_fs`), power losses
//! (its own tests).

use std::collections::BTreeSet;
use std::time::Duration;

use super::*;
use crate::{BulkChoice, FormatOptions};

fn store() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let options = FormatOptions {
        memory_bytes: Some(64 << 20),
        bulk_bytes: Some(16 << 20),
        threshold_bytes: 64 << 10,
        ..FormatOptions::default()
    };
    Store::format(&path, &options).unwrap();
    (dir, path)
}

fn names(volume: &Volume, path: &str) -> BTreeSet<String> {
    let entries = volume.read_dir(path).unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_string()).collect()
}

#[test]
fn what_was_written_is_there_when_the_volume_is_opened_again() {
    let (_dir, path) = store();
    let volume = Volume::open(&path).unwrap();
    volume.create_dir_all("/a/b/c").unwrap();
    let large: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    volume.write("a/b/large", &large).unwrap();
    volume.write("a/small", "one").unwrap();
    volume.write("a/small", "2").unwrap();
    volume.hard_link("a/small", "a/b/other").unwrap();
    volume.symlink("../small", "a/b/link").unwrap();
    volume.set_permissions("a/small", 0o600).unwrap();
    assert!(Store::acquire(&path, Duration::ZERO).is_err(), "one user at a time");
    volume.close().unwrap();

    let volume = Volume::open_read_only(&path).unwrap();
    assert_eq!(volume.read("a/b/large").unwrap(), large);
    assert_eq!((volume.read("a/small").unwrap(), volume.read("a/b/link").unwrap()), (b"2".to_vec(), b"2".to_vec()));
    assert_eq!(names(&volume, "a/b"), ["c", "large", "link", "other"].map(String::from).into());
    let found = volume.metadata("a/b/other").unwrap();
    assert!(found.is_file() && found.attr().nlink == 2 && found.attr().mode & 0o7777 == 0o600);
    assert!(volume.symlink_metadata("a/b/link").unwrap().is_symlink());
    assert_eq!(volume.read_link("a/b/link").unwrap(), Path::new("../small"));
    assert_eq!(volume.write("x", "").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
    volume.close().unwrap();
    assert!(Store::acquire(&path, Duration::ZERO).unwrap().was_unmounted());
}

/// Environment variable that tells the child process which store to write to before it aborts.
const CHILD: &str = "SHOAL_TEST_VOLUME";

#[test]
fn what_returned_survives_the_end_of_the_process() {
    if let Some(path) = std::env::var_os(CHILD) {
        let volume = Volume::open(path).unwrap();
        volume.create_dir("d").unwrap();
        volume.write("d/small", "kept").unwrap();
        volume.write("large", vec![3; 200_000]).unwrap();
        volume.rename("large", "d/large").unwrap();
        std::process::abort();
    }
    let (_dir, path) = store();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "volume::tests::what_returned_survives_the_end_of_the_process", "--test-threads=1"]);
    let ended = child.env(CHILD, &path).output().unwrap();
    assert!(!ended.status.success());
    let store = Store::acquire(&path, LEAVING_PATIENCE).unwrap();
    assert!(!store.was_unmounted());
    let opened = store.open(Options::default()).unwrap();
    assert!(!opened.recovery.clean && !opened.recovery.power_lost);
    drop((opened, store));
    let volume = Volume::open(&path).unwrap();
    assert_eq!(volume.read("d/small").unwrap(), b"kept");
    assert_eq!(volume.read("d/large").unwrap(), vec![3; 200_000]);
    assert!(!volume.exists("large").unwrap());
    volume.close().unwrap();
}

#[test]
fn errors_are_those_of_the_operating_system() {
    let (_dir, path) = store();
    let volume = Volume::open(&path).unwrap();
    volume.create_dir("d").unwrap();
    volume.write("d/f", "").unwrap();
    volume.symlink("loop", "loop").unwrap();
    let kind = |outcome: io::Result<()>| outcome.unwrap_err().kind();
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory, NotFound};
    assert_eq!(kind(volume.read("nothing").map(drop)), NotFound);
    assert_eq!(kind(volume.read("").map(drop)), NotFound);
    assert_eq!(kind(volume.read("d").map(drop)), IsADirectory);
    assert_eq!(kind(volume.read("d/f/g").map(drop)), NotADirectory);
    assert_eq!(kind(volume.write("d", "")), IsADirectory);
    assert_eq!(kind(volume.create_dir("d")), AlreadyExists);
    assert_eq!(kind(volume.create_dir("/")), AlreadyExists);
    assert_eq!(kind(volume.create_dir_all("d/f")), NotADirectory);
    assert_eq!(kind(volume.remove_dir("d")), DirectoryNotEmpty);
    assert_eq!(kind(volume.remove_file("d")), IsADirectory);
    assert_eq!(kind(volume.remove_dir_all("d/f")), NotADirectory);
    assert_eq!(kind(volume.rename("nothing", "d/g")), NotFound);
    assert_eq!(volume.read("loop").unwrap_err().raw_os_error(), Some(40));
    assert!(!volume.exists("nothing").unwrap() && volume.exists("d/../d/./f").unwrap());
}

#[test]
fn links_lead_from_the_volumes_root_and_files_are_made_behind_them() {
    let (_dir, path) = store();
    let volume = Volume::open(&path).unwrap();
    volume.create_dir_all("a/b").unwrap();
    volume.symlink("/a/b", "l").unwrap();
    volume.symlink("/", "top").unwrap();
    volume.write("top/l/f", "x").unwrap();
    volume.symlink("made", "a/b/dangling").unwrap();
    volume.write("l/dangling", "y").unwrap();
    assert_eq!((volume.read("a/b/f").unwrap(), volume.read("a/b/made").unwrap()), (b"x".to_vec(), b"y".to_vec()));
    assert!(volume.metadata("top").unwrap().is_dir());
    volume.remove_dir_all("a").unwrap();
    assert_eq!(names(&volume, "/"), ["l", "top"].map(String::from).into());
}

#[test]
fn an_open_file_outlives_its_names_and_large_directories_are_listed_once() {
    let (_dir, path) = store();
    let volume = Volume::open(&path).unwrap();
    let file = volume.create("f").unwrap();
    file.write_all_at(b"abc", 3).unwrap();
    volume.remove_file("f").unwrap();
    let mut out = [9; 8];
    assert_eq!(file.read_at(&mut out, 0).unwrap(), 6);
    assert_eq!(&out[..6], b"\0\0\0abc");
    file.set_len(4).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4);
    file.sync_all().unwrap();
    drop(file);
    volume.create_dir("d").unwrap();
    let wanted: BTreeSet<String> = (0..2 * 256 + 3).map(|n| format!("file {n}")).collect();
    for name in &wanted {
        volume.create(Path::new("d").join(name)).unwrap();
    }
    assert_eq!(volume.read_dir("d").unwrap().count(), wanted.len());
    assert_eq!(names(&volume, "d"), wanted);
    assert_eq!(volume.metadata("d").unwrap().len(), wanted.len() as u64);
}

#[test]
fn a_volume_that_is_dropped_leaves_a_clean_store_and_one_without_bulk_storage_works() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let options =
        FormatOptions { memory_bytes: Some(16 << 20), bulk: Some(BulkChoice::None), ..FormatOptions::default() };
    Store::format(&path, &options).unwrap();
    let volume = Volume::open(&path).unwrap();
    volume.write("f", vec![7; 2 << 20]).unwrap();
    volume.sync().unwrap();
    drop(volume);
    let store = Store::acquire(&path, Duration::ZERO).unwrap();
    assert!(store.check(true, &()).unwrap().is_sound());
    assert!(store.open(Options::default()).unwrap().recovery.clean);
}
