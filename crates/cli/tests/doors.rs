//! A store keeps the same promises behind both doors: a mount, and a volume that a program embeds.
//!
//! A test uses a store through a door (`deed`), kills the store's user (the daemon, or the program
//! with the volume), and checks the store after it was opened again through the same door.
//! Left out: what only one of the doors offers, and power losses.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use shoal_sim::Random;
use shoal_store::control::{Question, ask};
use shoal_store::{Store, StoreOptions, Volume};

use crate::killed::kill_daemon;
use crate::scene::{Scene, shoal, succeeded, wait_until};

/// Names the store to the program that opens a volume and dies.
const CHILD: &str = "SHOAL_TEST_DOOR";

/// What both doors offer.
trait Files {
    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()>;
    fn read(&self, path: &str) -> io::Result<Vec<u8>>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Groups of files in the spill file.
    fn spilled(&self) -> u64;
}

struct AtMount<'a>(&'a Scene);

impl AtMount<'_> {
    fn at(&self, path: &str) -> PathBuf {
        self.0.at("mnt").join(path)
    }
}

impl Files for AtMount<'_> {
    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        fs::write(self.at(path), bytes)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        fs::read(self.at(path))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.at(path))
    }

    fn spilled(&self) -> u64 {
        let said = self.0.ok(&["df", "--json", &self.0.text("mnt")]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        said["spilled"]["groups"].as_u64().unwrap()
    }
}

impl Files for Volume {
    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        Volume::write(self, path, bytes)
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        Volume::read(self, path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Volume::rename(self, from, to)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        Volume::create_dir(self, path)
    }

    fn spilled(&self) -> u64 {
        self.engine().spilling().spilled().groups
    }
}

/// How the store is opened: the option list of a mount (`-o`), and the options of a volume.
struct How {
    mount: &'static str,
    volume: fn(&mut StoreOptions),
}

struct Promise {
    /// Name of the test. The program that dies is this test program, told to run only this test.
    test: &'static str,
    format: &'static [&'static str],
    how: How,
    deed: fn(&dyn Files),
    /// Checks the store's directory after its user has died.
    between: fn(&Path),
    /// Checks the files after the store was opened again.
    then: fn(&dyn Files, &Path),
    /// Checks the store's directory after a clean end.
    at_the_end: fn(&Path),
}

impl Promise {
    fn options(&self) -> StoreOptions {
        let mut options = StoreOptions::default();
        (self.how.volume)(&mut options);
        options
    }

    fn is_kept_by_both_doors(&self) {
        if let Some(store) = std::env::var_os(CHILD) {
            let volume = Volume::open_with(store, &self.options()).unwrap();
            (self.deed)(&volume);
            std::process::abort();
        }
        for by_volume in [false, true] {
            let scene = Scene::new(self.format);
            let store = scene.at("store");
            let mount = || scene.ok(&["mount", "-o", self.how.mount, &scene.text("store"), &scene.text("mnt")]);
            if by_volume {
                let mut child = Command::new(std::env::current_exe().unwrap());
                child.args(["--exact", &format!("doors::{}", self.test), "--test-threads=1"]);
                let ended = child.env(CHILD, &store).output().unwrap();
                let said = String::from_utf8_lossy(&ended.stdout);
                assert!(!ended.status.success() && !said.contains("panicked"), "{}: {said}", self.test);
            } else {
                mount();
                (self.deed)(&AtMount(&scene));
                kill_daemon(&store);
                scene.umount();
            }
            (self.between)(&store);
            if by_volume {
                let volume = Volume::open_with(&store, &self.options()).unwrap();
                assert!(!volume.recovered().clean && !volume.recovered().power_lost);
                (self.then)(&volume, &store);
                volume.close().unwrap();
            } else {
                mount();
                (self.then)(&AtMount(&scene), &store);
                scene.umount();
            }
            (self.at_the_end)(&store);
            assert_eq!(scene.run(&["check", &scene.text("store")]).status.code(), Some(0));
        }
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    Random::new(seed).bytes(len)
}

const NOTHING: fn(&Path) = |_| {};
const LARGE: usize = 2 << 20;

#[test]
fn what_returned_survives_its_user() {
    Promise {
        test: "what_returned_survives_its_user",
        format: &[],
        how: How { mount: "cache_size=0", volume: |options| options.cache_bytes = Some(0) },
        deed: |files| {
            files.create_dir("d").unwrap();
            files.write("small", b"kept").unwrap();
            files.write("large", &noise(1, LARGE)).unwrap();
            files.rename("large", "d/large").unwrap();
        },
        between: NOTHING,
        then: |files, _| {
            assert_eq!(files.read("small").unwrap(), b"kept");
            assert!(files.read("d/large").unwrap() == noise(1, LARGE));
            assert_eq!(files.read("large").unwrap_err().kind(), io::ErrorKind::NotFound);
        },
        at_the_end: NOTHING,
    }
    .is_kept_by_both_doors();
}

#[test]
fn held_writes_outlive_their_user() {
    Promise {
        test: "held_writes_outlive_their_user",
        format: &[],
        how: How { mount: "update_policy=hold:1h", volume: |options| options.update_policy = Some("hold:1h".into()) },
        deed: |files| files.write("held", &noise(2, LARGE)).unwrap(),
        between: |store| {
            assert!(store.join("cache").exists(), "a note names the cache");
            let held = shoal_store::kept_writes(store);
            assert!(held.iter().map(|(_, bytes, _)| bytes).sum::<u64>() >= LARGE as u64, "{held:?}");
        },
        then: |files, _| assert!(files.read("held").unwrap() == noise(2, LARGE)),
        at_the_end: |store| assert!(!store.join("cache").exists(), "nothing is held after a clean end"),
    }
    .is_kept_by_both_doors();
}

#[test]
fn small_files_spill_and_come_back() {
    const FILES: u64 = 120;
    Promise {
        test: "small_files_spill_and_come_back",
        format: &[],
        how: How {
            mount: "spill=10,pack_age=0",
            volume: |options| (options.spill_percent, options.pack_age) = (10, Duration::ZERO),
        },
        deed: |files| {
            (0..FILES).for_each(|number| files.write(&format!("f{number}"), &noise(number, 100_000)).unwrap());
            wait_until("files to spill", || files.spilled() > 0);
        },
        between: NOTHING,
        then: |files, _| {
            (0..FILES).for_each(|number| assert!(files.read(&format!("f{number}")).unwrap() == noise(number, 100_000)));
        },
        at_the_end: NOTHING,
    }
    .is_kept_by_both_doors();
}

#[test]
fn a_scrub_begins_when_it_is_due() {
    Promise {
        test: "a_scrub_begins_when_it_is_due",
        format: &[],
        how: How { mount: "scrub=1", volume: |options| options.scrub_every = Some(Duration::from_secs(24 * 3600)) },
        deed: |files| files.write("large", &noise(3, LARGE)).unwrap(),
        between: NOTHING,
        then: |_, store| wait_until("a scrub", || store.join("scrubbed").exists()),
        at_the_end: NOTHING,
    }
    .is_kept_by_both_doors();
}

/// A user that dies while a device is emptied leaves the rest to the next one.
#[test]
fn a_device_that_is_leaving_goes_on_leaving() {
    for by_volume in [false, true] {
        let scene = Scene::new(&[]);
        let store = scene.at("store");
        scene.ok(&["bulk", "add", "--size", "64M", &scene.text("store"), &scene.text("more")]);
        let volume = Volume::open(&store).unwrap();
        (0..20).for_each(|number| volume.write(format!("f{number}"), noise(number, LARGE)).unwrap());
        volume.engine().devices().leave(1).unwrap();
        volume.close().unwrap();
        let is_gone = || Store::describe(&store).unwrap().bulk.len() == 1;
        assert!(!is_gone());
        if by_volume {
            let volume = Volume::open(&store).unwrap();
            wait_until("the device to leave", is_gone);
            (0..20).for_each(|number| assert!(volume.read(format!("f{number}")).unwrap() == noise(number, LARGE)));
            volume.close().unwrap();
        } else {
            scene.mount("store");
            wait_until("the device to leave", is_gone);
            let files = AtMount(&scene);
            (0..20).for_each(|number| assert!(files.read(&format!("f{number}")).unwrap() == noise(number, LARGE)));
            scene.umount();
        }
        assert_eq!(scene.run(&["check", &scene.text("store")]).status.code(), Some(0));
    }
}

/// Returns what `shoal` prints as JSON for `args` and the store.
fn printed(args: &[&str], store: &Path) -> serde_json::Value {
    let args = [args, &[store.to_str().unwrap()]].concat();
    serde_json::from_str(&succeeded(&args, shoal(&args).output().unwrap())).unwrap()
}

#[test]
fn its_user_answers_as_long_as_it_has_the_store() {
    Promise {
        test: "its_user_answers_as_long_as_it_has_the_store",
        format: &[],
        how: How { mount: "cache_size=0", volume: |options| options.cache_bytes = Some(0) },
        deed: |files| files.write("large", &noise(4, LARGE)).unwrap(),
        between: |store| assert!(ask(store, &Question::Who).unwrap().is_none(), "nobody has it"),
        then: |files, store| {
            assert_eq!(printed(&["df", "--json"], store)["files"]["large_files"], 1);
            files.write("another", &noise(5, LARGE)).unwrap();
            assert_eq!(printed(&["df", "--json"], store)["files"]["large_files"], 2);
            assert_eq!(printed(&["status", "--json"], store)["bulks"].as_array().unwrap().len(), 1);
            assert!(ask(store, &Question::Pack { files: Vec::new() }).unwrap().is_some());
        },
        at_the_end: |store| {
            assert!(ask(store, &Question::Who).unwrap().is_none(), "nobody has it");
            assert!(!store.join("control").exists());
        },
    }
    .is_kept_by_both_doors();
}

#[test]
fn a_program_that_has_the_store_is_asked_but_not_remounted() {
    let scene = Scene::new(&[]);
    let store = scene.at("store");
    let volume = Volume::open(&store).unwrap();
    let told = String::from_utf8(scene.run(&["check", &scene.text("store")]).stderr).unwrap();
    assert!(told.contains("is in use by process") && told.contains("and mounted nowhere"), "{told}");
    let change = Question::Remount {
        read_only: true,
        access_times: "never".into(),
        spill_percent: None,
        threshold_bytes: None,
        update_policy: None,
        update_rate: None,
    };
    let refused = ask(&store, &change).unwrap_err().to_string();
    assert!(refused.contains("is not mounted: a program has it open"), "{refused}");
    // A client in the middle of a question delays no end.
    let silent = std::os::unix::net::UnixStream::connect(store.join("control")).unwrap();
    volume.close().unwrap();
    drop(silent);
    let volume = Volume::open(&store).unwrap();
    assert!(ask(&store, &Question::Df).unwrap().is_some(), "the next user answers");
    drop(volume);
    assert!(!store.join("control").exists());
}
