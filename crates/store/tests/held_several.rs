//! Writes that a process held back in front of several bulk devices when it was killed, and later
//! openings of the store.
//!
//! As in `held`, dropping what a process opened stands for killing it. Left out: changes of the
//! devices of a mounted store, and real kills (`tests/nbd/devices`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use shoal_fs::{Caller, Error, Fs, Options, ROOT};
use shoal_store::{BulkChange, CacheOptions, FormatOptions, Opened, Store, Volume, rule_of};

const BYTES: usize = 3 << 20;
/// One file for each device.
const FILES: [&str; 2] = ["on0", "on1"];

fn wanted() -> CacheOptions {
    let rule = rule_of(Some("aipu:1h"), None, &Default::default()).unwrap();
    CacheOptions { bytes: Some(64 << 20), directory: None, rule }
}

fn acquire(path: &Path) -> Store {
    Store::acquire(path, Duration::ZERO).unwrap()
}

struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Makes a store with two devices.
    fn new() -> Scratch {
        let scratch = Scratch(tempfile::tempdir().unwrap());
        let options =
            FormatOptions { memory_bytes: Some(64 << 20), bulk_bytes: Some(64 << 20), ..FormatOptions::default() };
        Store::format(&scratch.store(), &options).unwrap();
        let device = scratch.device(1).display().to_string();
        let add = BulkChange::Add { device, size_bytes: Some(64 << 20), force: false };
        acquire(&scratch.store()).change_bulks(&add, &()).unwrap();
        scratch
    }

    fn store(&self) -> PathBuf {
        self.0.path().join("store")
    }

    fn device(&self, number: usize) -> PathBuf {
        self.0.path().join(["store/bulk", "device"][number])
    }

    /// Makes a device disappear.
    fn take_away(&self, number: usize) {
        fs::rename(self.device(number), self.0.path().join("away")).unwrap();
    }

    /// Puts the device back, in place of any other file there.
    fn bring_back(&self, number: usize) {
        fs::rename(self.0.path().join("away"), self.device(number)).unwrap();
    }

    fn note(&self, device: usize) -> PathBuf {
        self.store().join(["cache", "cache.1"][device])
    }

    fn cache(&self, device: usize) -> PathBuf {
        fs::read_to_string(self.note(device)).unwrap().lines().next().unwrap().into()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        for device in (0..2).filter(|device| self.note(*device).exists()) {
            let _ = fs::remove_file(self.cache(device));
        }
    }
}

/// Writes a file of these bytes on each device. The device's cache holds it back.
fn write(fs: &Fs, byte: u8) {
    for (number, name) in FILES.iter().enumerate() {
        let other = 1 - number as u32;
        fs.devices().leave(other).unwrap();
        let caller = Caller { uid: 0, gid: 0, umask: 0o022, hold: false };
        let ino = match fs.lookup(ROOT, name.as_bytes()) {
            Ok(found) => found.ino,
            Err(_) => fs.mknod(&caller, ROOT, name.as_bytes(), 0o644, 0).unwrap().ino,
        };
        assert_eq!(fs.write(ino, 0, &vec![byte; BYTES]).unwrap(), BYTES);
        fs.devices().stay(other).unwrap();
    }
    let states = fs.devices().states();
    assert!(states.iter().all(|state| state.used >= BYTES as u64), "{states:?}");
}

fn write_and_die(scratch: &Scratch, byte: u8) {
    let store = acquire(&scratch.store());
    let Opened { fs, devices, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
    assert!(!recovery.power_lost);
    store.write_pid().unwrap();
    write(&fs, byte);
    let held: Vec<_> = devices.caches.iter().map(|cache| (cache.device(), cache.report())).collect();
    assert_eq!(held.iter().map(|(device, _)| *device).collect::<Vec<_>>(), [0, 1]);
    for (_, report) in held {
        assert!(report.held_bytes >= BYTES as u64 - (1 << 20) && report.size_bytes == 32 << 20, "{report:?}");
    }
}

fn read(fs: &Fs, name: &str) -> Result<Vec<u8>, Error> {
    let ino = fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
    let mut out = vec![1; BYTES];
    fs.read(ino, 0, &mut out).map(|_| out)
}

#[test]
fn what_was_held_for_each_device_is_there_for_all_readers_and_goes_with_a_clean_end() {
    let scratch = Scratch::new();
    let path = scratch.store();
    write_and_die(&scratch, 7);
    let caches = [scratch.cache(0), scratch.cache(1)];
    assert_ne!(caches[0], caches[1]);
    let all = |volume: &Volume, byte| FILES.iter().all(|name| volume.read(name).unwrap() == vec![byte; BYTES]);
    assert!(all(&Volume::open_read_only(&path).unwrap(), 7));
    let salvaged = scratch.0.path().join("salvaged");
    shoal_store::salvage(&path, &salvaged, &(), &mut |_| ()).unwrap();
    assert!(FILES.iter().all(|name| fs::read(salvaged.join(name)).unwrap() == vec![7; BYTES]));
    let copy = scratch.0.path().join("copy");
    acquire(&path).copy_to(&copy, &Default::default(), &()).unwrap();
    assert!(all(&Volume::open_read_only(&copy).unwrap(), 7));
    // Once more, with the same caches.
    write_and_die(&scratch, 8);
    assert_eq!([scratch.cache(0), scratch.cache(1)], caches);
    let volume = Volume::open(&path).unwrap();
    assert!(all(&volume, 8));
    volume.close().unwrap();
    assert!(caches.iter().all(|cache| !cache.exists()) && !scratch.note(0).exists() && !scratch.note(1).exists());
    // Without this file, an interrupted opening at this point would look like a power loss to the
    // next one.
    assert!(path.join("cache.emptied").exists(), "the log's period is known");
    assert!(all(&Volume::open_read_only(&path).unwrap(), 8));
}

#[test]
fn the_loss_of_one_cache_is_a_power_loss() {
    for lost in 0..2 {
        let scratch = Scratch::new();
        write_and_die(&scratch, 7);
        fs::remove_file(scratch.cache(lost)).unwrap();
        let store = acquire(&scratch.store());
        let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        assert!(recovery.power_lost, "{lost}");
        for name in FILES {
            assert!(read(&fs, name) == Ok(vec![0; BYTES]), "{lost}: {name} was not synced, and nothing else is known");
        }
        fs.shutdown().unwrap();
        store.remove_pid();
    }
}

#[test]
fn a_device_without_a_cache_so_far_gets_one_beside_those_that_are_left() {
    let scratch = Scratch::new();
    write_and_die(&scratch, 7);
    // As if the second device had been added while the store was mounted: the log does not name its
    // cache.
    let (note, aside) = (scratch.note(1), scratch.0.path().join("aside"));
    let second = scratch.cache(1);
    fs::rename(&note, &aside).unwrap();
    let store = acquire(&scratch.store());
    {
        let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        assert!(recovery.power_lost, "the log names it");
        write(&fs, 9);
        fs.sync().unwrap();
        store.write_pid().unwrap();
    }
    assert_ne!(scratch.cache(1), second);
    fs::remove_file(&second).unwrap();
    // The note names the new cache, so losing the old one is no power loss.
    let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
    assert!(!recovery.power_lost);
    assert!(FILES.iter().all(|name| read(&fs, name) == Ok(vec![9; BYTES])));
    fs.shutdown().unwrap();
    store.remove_pid();
}

fn degraded() -> Options {
    Options { degraded: true, ..Options::default() }
}

#[test]
fn nothing_that_is_due_goes_to_another_file_in_the_place_of_a_device_nor_leaves_for_a_reader() {
    let scratch = Scratch::new();
    write_and_die(&scratch, 7);
    std::thread::sleep(Duration::from_millis(20));
    let due = CacheOptions { rule: rule_of(Some("aipu:10ms"), None, &Default::default()).unwrap(), ..wanted() };
    let store = acquire(&scratch.store());
    for number in 0..2 {
        let bytes = || fs::read(scratch.device(number)).unwrap();
        let before = bytes();
        let reader = store.open_with(Options { read_only: true, ..Options::default() }, Some(&due)).unwrap();
        assert!(FILES.iter().all(|name| read(&reader.fs, name) == Ok(vec![7; BYTES])));
        drop(reader);
        assert!(bytes() == before, "a reader wrote to device {number}");
        scratch.take_away(number);
        fs::write(scratch.device(number), vec![0; before.len()]).unwrap();
        let Opened { devices, .. } = store.open_with(Options { read_only: true, ..degraded() }, Some(&due)).unwrap();
        drop(devices);
        assert!(bytes() == vec![0; before.len()], "another file in the place of device {number} was written");
        fs::remove_file(scratch.device(number)).unwrap();
        scratch.bring_back(number);
    }
    // The device is away at an opening for writing, and the policy changes.
    scratch.take_away(1);
    let len = fs::metadata(scratch.0.path().join("away")).unwrap().len();
    fs::write(scratch.device(1), vec![0; len as usize]).unwrap();
    for rule in [due, wanted()] {
        let Opened { devices, .. } = store.open_with(degraded(), Some(&rule)).unwrap();
        devices.caches.iter().for_each(|cache| cache.change(Some("write-through"), None).unwrap());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(fs::read(scratch.device(1)).unwrap() == vec![0; len as usize], "another file was written");
}

#[test]
fn what_is_held_of_a_block_that_a_file_grows_in_outlives_a_mount_without_its_device() {
    const PART: usize = 10_000;
    for lost in 0..2 {
        let scratch = Scratch::new();
        write_and_die(&scratch, 7);
        let store = acquire(&scratch.store());
        for len in [BYTES, BYTES + PART] {
            let Opened { fs, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
            FILES.iter().for_each(|name| {
                let ino = fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
                assert_eq!(fs.write(ino, len as u64, &[7; PART]), Ok(PART));
            });
            drop(fs);
        }
        scratch.take_away(lost);
        let Opened { fs, .. } = store.open_with(degraded(), Some(&wanted())).unwrap();
        fs.shutdown().unwrap();
        drop(fs);
        scratch.bring_back(lost);
        let Opened { fs, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        FILES.iter().for_each(|name| {
            let ino = fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
            let mut found = vec![0; BYTES + 2 * PART];
            assert_eq!(fs.read(ino, 0, &mut found), Ok(found.len()));
            assert_eq!(found.iter().position(|&byte| byte != 7), None, "{name} when {lost} was away");
        });
        fs.shutdown().unwrap();
        store.remove_pid();
    }
}

#[test]
fn a_device_that_is_missing_after_a_crash_costs_the_other_nothing_and_its_cache_waits() {
    for (lost, here) in [(0, 1), (1, 0)] {
        let scratch = Scratch::new();
        write_and_die(&scratch, 7);
        let cache = scratch.cache(lost);
        scratch.take_away(lost);
        let store = acquire(&scratch.store());
        for _ in 0..2 {
            let Opened { fs, recovery, .. } = store.open_with(degraded(), Some(&wanted())).unwrap();
            assert!(!recovery.power_lost && !recovery.clean, "{lost}");
            assert!(read(&fs, FILES[here]) == Ok(vec![7; BYTES]), "the other device than {lost}");
            assert!(matches!(read(&fs, FILES[lost]), Err(Error::Io(_))), "{lost}");
            assert!(cache.exists(), "{lost}");
        }
        scratch.bring_back(lost);
        let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        assert!(!recovery.power_lost, "{lost}");
        // The device was away while the store was used, but its cache has held everything.
        assert!(FILES.iter().all(|name| read(&fs, name) == Ok(vec![7; BYTES])), "{lost}");
        fs.shutdown().unwrap();
        store.remove_pid();
        assert!(!cache.exists(), "{lost}");
    }
}

#[test]
fn what_is_held_for_a_device_that_is_missing_outlives_a_clean_end() {
    for (lost, here) in [(0, 1), (1, 0)] {
        let scratch = Scratch::new();
        write_and_die(&scratch, 7);
        let cache = scratch.cache(lost);
        scratch.take_away(lost);
        let store = acquire(&scratch.store());
        for _ in 0..2 {
            let Opened { fs, .. } = store.open_with(degraded(), Some(&wanted())).unwrap();
            assert!(matches!(read(&fs, FILES[lost]), Err(Error::Io(_))), "{lost}");
            fs.shutdown().unwrap();
            store.remove_pid();
            assert!(cache.exists() && !scratch.note(here).exists(), "nothing is held for the device that is there");
        }
        let kept = shoal_store::kept_writes(&scratch.store());
        assert!(kept.len() == 1 && kept[0].0 == lost as u32 && kept[0].1 >= BYTES as u64 - (1 << 20), "{kept:?}");
        scratch.bring_back(lost);
        let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        assert!(recovery.clean, "{lost}");
        assert!(FILES.iter().all(|name| read(&fs, name) == Ok(vec![7; BYTES])), "{lost}");
        fs.shutdown().unwrap();
        store.remove_pid();
        assert!(!cache.exists() && !scratch.note(lost).exists(), "{lost}");
        drop((fs, store));
        // Without any cache, the device has the data.
        let volume = Volume::open_read_only(scratch.store()).unwrap();
        assert!(FILES.iter().all(|name| volume.read(name).unwrap() == vec![7; BYTES]), "{lost}");
    }
}

#[test]
fn a_device_whose_host_went_down_has_what_is_held_and_nothing_that_no_flush_covered() {
    const PART: usize = 1 << 20;
    for (lost, is_read_only) in [(0, false), (1, false), (0, true), (1, true)] {
        let scratch = Scratch::new();
        {
            let store = acquire(&scratch.store());
            let Opened { fs, devices, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
            store.write_pid().unwrap();
            write(&fs, 7);
            // The devices get the data, but no flush covers it.
            devices.caches.iter().for_each(|cache| cache.change(Some("write-through"), None).unwrap());
            while devices.caches.iter().any(|cache| cache.held_bytes() > 0) {
                std::thread::sleep(Duration::from_millis(1));
            }
            devices.caches.iter().for_each(|cache| cache.change(Some("aipu:1h"), None).unwrap());
            for name in FILES {
                let ino = fs.lookup(ROOT, name.as_bytes()).unwrap().ino;
                assert_eq!(fs.write(ino, PART as u64, &vec![8; PART]).unwrap(), PART);
            }
        }
        // The host comes up without the data it had not written. The blocks hold older contents, or
        // anything.
        let (device, old) = (scratch.device(lost), scratch.0.path().join("old"));
        let bytes = fs::read(&device).unwrap();
        let forgotten: Vec<u8> = bytes
            .chunks(4096)
            .flat_map(|block| match block == [7; 4096] {
                true => vec![0xee; 4096],
                false => block.to_vec(),
            })
            .collect();
        assert_ne!(bytes, forgotten);
        fs::rename(&device, &old).unwrap();
        fs::write(&device, forgotten).unwrap();
        let left = [vec![0; PART], vec![8; PART], vec![0; PART]].concat();
        let whole = [vec![7; PART], vec![8; PART], vec![7; PART]].concat();
        if is_read_only {
            let salvaged = scratch.0.path().join("salvaged");
            shoal_store::salvage(&scratch.store(), &salvaged, &(), &mut |_| ()).unwrap();
            assert!(fs::read(salvaged.join(FILES[lost])).unwrap() == left, "{lost}");
            assert!(fs::read(salvaged.join(FILES[1 - lost])).unwrap() == whole, "{lost}");
            let volume = Volume::open_read_only(scratch.store()).unwrap();
            assert!(volume.read(FILES[lost]).unwrap() == left, "{lost}");
            assert!(volume.read(FILES[1 - lost]).unwrap() == whole, "{lost}");
            continue;
        }
        let store = acquire(&scratch.store());
        let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        assert!(!recovery.power_lost, "the memory's log is where it was");
        assert!(read(&fs, FILES[lost]) == Ok(left.clone()), "{lost}");
        assert!(read(&fs, FILES[1 - lost]) == Ok(whole.clone()), "the other device than {lost}");
        fs.shutdown().unwrap();
        store.remove_pid();
        drop((fs, store));
        let volume = Volume::open_read_only(scratch.store()).unwrap();
        assert!(volume.read(FILES[lost]).unwrap() == left && volume.read(FILES[1 - lost]).unwrap() == whole, "{lost}");
    }
}

#[test]
fn what_was_kept_for_a_device_does_not_go_over_what_was_written_without_it() {
    let scratch = Scratch::new();
    write_and_die(&scratch, 7);
    let cache = scratch.cache(1);
    scratch.take_away(1);
    let store = acquire(&scratch.store());
    let Opened { fs, .. } = store.open_with(degraded(), Some(&wanted())).unwrap();
    fs.shutdown().unwrap();
    store.remove_pid();
    drop(fs);
    scratch.bring_back(1);
    // In between, a program that does not find the cache uses the store.
    let (note, aside) = (scratch.note(1), scratch.0.path().join("note"));
    fs::rename(&note, &aside).unwrap();
    {
        let Opened { fs, .. } = store.open(Options::default()).unwrap();
        write(&fs, 9);
        fs.shutdown().unwrap();
        store.remove_pid();
    }
    fs::rename(&aside, &note).unwrap();
    assert!(cache.exists());
    let Opened { fs, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
    assert!(FILES.iter().all(|name| read(&fs, name) == Ok(vec![9; BYTES])), "what was kept is another life's");
    fs.shutdown().unwrap();
    store.remove_pid();
}

#[test]
fn a_smaller_file_in_the_place_of_a_device_costs_nothing_that_is_held_for_it() {
    for lost in 0..2 {
        let scratch = Scratch::new();
        write_and_die(&scratch, 7);
        let cache = scratch.cache(lost);
        scratch.take_away(lost);
        // Somebody has begun to make a new device.
        fs::write(scratch.device(lost), [0; 1 << 20]).unwrap();
        let store = acquire(&scratch.store());
        for is_degraded in [false, true] {
            let options = Options { degraded: is_degraded, ..Options::default() };
            let opened = store.open_with(options, Some(&wanted()));
            assert_eq!(opened.is_ok(), is_degraded, "{lost}");
            assert!(cache.exists(), "{lost}, {is_degraded}");
            if let Ok(Opened { fs, recovery, .. }) = opened {
                assert!(!recovery.power_lost, "{lost}");
                assert!(read(&fs, FILES[1 - lost]) == Ok(vec![7; BYTES]), "the other device than {lost}");
            }
        }
        scratch.bring_back(lost);
        let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        assert!(!recovery.power_lost, "{lost}");
        assert!(FILES.iter().all(|name| read(&fs, name) == Ok(vec![7; BYTES])), "{lost}");
        fs.shutdown().unwrap();
        store.remove_pid();
    }
}

#[test]
fn a_clean_end_on_a_full_host_keeps_what_is_held_for_a_device_that_is_missing() {
    for lost in 0..2 {
        let scratch = Scratch::new();
        write_and_die(&scratch, 7);
        scratch.take_away(lost);
        let store = acquire(&scratch.store());
        let Opened { fs, .. } = store.open_with(degraded(), Some(&wanted())).unwrap();
        fs.shutdown().unwrap();
        // The directory prevents the note from being written.
        let emptied = scratch.store().join("cache.emptied");
        fs::create_dir(&emptied).unwrap();
        store.remove_pid();
        drop(fs);
        fs::remove_dir(&emptied).unwrap();
        scratch.bring_back(lost);
        let Opened { fs, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        assert!(FILES.iter().all(|name| read(&fs, name) == Ok(vec![7; BYTES])), "{lost}");
        fs.shutdown().unwrap();
        store.remove_pid();
        assert!(!scratch.note(0).exists() && !scratch.note(1).exists(), "{lost}");
    }
}

#[test]
fn a_clean_end_without_a_device_is_no_power_loss_and_its_files_do_not_read_as_zeros() {
    for lost in 0..2 {
        let scratch = Scratch::new();
        let rule = rule_of(Some("write-through"), None, &Default::default()).unwrap();
        let wanted = CacheOptions { rule, ..wanted() };
        let store = acquire(&scratch.store());
        {
            let Opened { fs, .. } = store.open_with(Options::default(), Some(&wanted)).unwrap();
            store.write_pid().unwrap();
            write(&fs, 7);
        }
        scratch.take_away(lost);
        for was_clean in [false, true, true] {
            let Opened { fs, recovery, .. } = store.open_with(degraded(), Some(&wanted)).unwrap();
            assert!(recovery.clean == was_clean && !recovery.power_lost, "{lost}: {recovery:?}");
            assert!(matches!(read(&fs, FILES[lost]), Err(Error::Io(_))), "{lost}");
            assert!(read(&fs, FILES[1 - lost]) == Ok(vec![7; BYTES]), "{lost}");
            fs.shutdown().unwrap();
            store.remove_pid();
        }
        scratch.bring_back(lost);
        let checked = store.check(true, &()).unwrap();
        assert_eq!((checked.errors, checked.notes.len()), (vec![], 1), "{lost}: the next mount settles it");
    }
}

#[test]
fn a_cache_that_was_made_beside_a_smaller_file_serves_the_device_when_it_is_back() {
    for lost in 0..2 {
        let scratch = Scratch::new();
        scratch.take_away(lost);
        fs::write(scratch.device(lost), [0; 1 << 20]).unwrap();
        drop(acquire(&scratch.store()).open_with(degraded(), Some(&wanted())).unwrap());
        scratch.bring_back(lost);
        write_and_die(&scratch, 7);
        let store = acquire(&scratch.store());
        let Opened { fs, recovery, .. } = store.open_with(Options::default(), Some(&wanted())).unwrap();
        assert!(!recovery.power_lost, "{lost}");
        assert!(FILES.iter().all(|name| read(&fs, name) == Ok(vec![7; BYTES])), "{lost}");
    }
}

#[test]
fn an_fsync_does_not_vouch_for_data_on_a_device_that_is_missing_after_a_crash() {
    for lost in 0..2 {
        let scratch = Scratch::new();
        let fsync = |fs: &Fs, device: usize| {
            let ino = fs.lookup(ROOT, FILES[device].as_bytes()).unwrap().ino;
            fs.fsync(ino)
        };
        write_and_die(&scratch, 6);
        let store = acquire(&scratch.store());
        store.open_with(Options::default(), Some(&wanted())).unwrap().fs.shutdown().unwrap();
        store.remove_pid();
        // After a clean end the device has everything.
        scratch.take_away(lost);
        let Opened { fs, .. } = store.open_with(degraded(), Some(&wanted())).unwrap();
        assert_eq!(fsync(&fs, lost), Ok(()), "{lost}");
        fs.shutdown().unwrap();
        store.remove_pid();
        drop((fs, store));
        scratch.bring_back(lost);
        // Overwrite existing blocks, so that no extent is NEW.
        write_and_die(&scratch, 7);
        scratch.take_away(lost);
        let store = acquire(&scratch.store());
        for (was_clean, ends) in [(false, false), (false, true), (true, true)] {
            let Opened { fs, recovery, .. } = store.open_with(degraded(), Some(&wanted())).unwrap();
            assert_eq!(recovery.clean, was_clean, "{lost}");
            assert!(
                matches!(fsync(&fs, lost), Err(Error::Io(_))),
                "{lost}, {was_clean}: it is held for the device alone"
            );
            assert_eq!(fsync(&fs, 1 - lost), Ok(()), "the other device than {lost}");
            if ends {
                fs.shutdown().unwrap();
                store.remove_pid();
            }
        }
    }
}
