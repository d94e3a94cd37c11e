//! Damage of every kind to real stores: reading commands change nothing, and nothing readable is lost.
//!
//! Stores of each kind of memory, with and without bulk storage, unmounted cleanly and interrupted
//! by SIGKILL, with files of every layout. `hostile_damage` damages each store. Then `check`,
//! `salvage`, `copy`, `mount -o ro` and a refused `resize` must leave every file unchanged, and
//! everything that a read-only mount can read must be in the results of `salvage`, `copy`, `resize`
//! and `check --repair`. A store's `lock`, `pid`, `control` and `shoal.log` are not compared,
//! because every opening writes to them. The usual run does one damage of every kind, to each store
//! in turn; SHOAL_DEEP=1 takes many seeds, SHOAL_CASE=WORDS the cases whose names contain these
//! words.
//! Left out: power loss, and media that fail during use.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crate::damaged_media::Scene;
use crate::hostile_damage::{KINDS, Kind, Targets, damage, files};
use shoal_sim::{Budget, is_due};

/// Largest plausible size. Larger files have forged sizes.
const SIZE_MAX: u64 = 64 << 20;
const READING_SECS_MAX: u64 = 60;

/// The readable properties of a path: contents, target or kind, and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thing {
    kind: u32,
    bytes: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

type Things = BTreeMap<PathBuf, Thing>;

fn attributes(path: &Path) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).ok()?;
    let mut found = BTreeMap::new();
    for name in names[..len].split(|&byte| byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
        found.insert(name.to_vec(), value[..len].to_vec());
    }
    Some(found)
}

fn thing(path: &Path) -> Option<Thing> {
    let meta = fs::symlink_metadata(path).ok()?;
    let bytes = match meta.file_type() {
        // The kernel shows a zeroed target as empty. No file system can store an empty target
        // again.
        kind if kind.is_symlink() => {
            Some(fs::read_link(path).ok()?.into_os_string().into_encoded_bytes()).filter(|target| !target.is_empty())?
        }
        kind if kind.is_file() && meta.len() <= SIZE_MAX => fs::read(path).ok()?,
        kind if kind.is_dir() => Vec::new(),
        _ => return None,
    };
    Some(Thing { kind: meta.mode() & 0o170_000, bytes, attributes: attributes(path)? })
}

/// Returns everything below `top` that is completely readable.
fn things(top: &Path) -> Things {
    let (sender, receiver) = mpsc::channel();
    let top = top.to_path_buf();
    std::thread::spawn(move || {
        let mut found = Things::new();
        let mut folders = vec![top.clone()];
        while let Some(folder) = folders.pop() {
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for path in entries.map_while(|entry| Some(entry.ok()?.path())) {
                // Limit the depth, for a tree that contains itself.
                if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir()) && path.components().count() < 30 {
                    folders.push(path.clone());
                }
                if let Some(thing) = thing(&path) {
                    found.insert(path.strip_prefix(&top).unwrap().into(), thing);
                }
            }
        }
        let _ = sender.send(found);
    });
    receiver.recv_timeout(Duration::from_secs(READING_SECS_MAX)).expect("reading the tree hangs")
}

/// A store at rest, to be damaged repeatedly.
struct Base {
    name: String,
    scene: Scene,
    battery: bool,
    targets: Targets,
    /// The contents before any damage.
    whole: Things,
    files: BTreeMap<String, Vec<u8>>,
}

fn fill(scene: &Scene, bulk: bool) {
    let top = scene.at("mnt");
    for dir in ["a", "a/b", "many", "empty"] {
        fs::create_dir(top.join(dir)).unwrap();
    }
    for number in 0..40usize {
        let dir = ["a", "a/b"][number % 2];
        let len = [0, 5, 90, 700, 3000, 9000, 33_000][number % 7];
        let text = format!("{number} of {dir}; ");
        scene.write(&format!("{dir}/f{number}"), text.repeat(len / text.len() + 1));
    }
    for number in 0..150 {
        scene.write(&format!("many/a name of some length, to fill buckets {number}"), format!("child {number}"));
    }
    scene.write("chunked", (0..60_000u32).flat_map(|word| (word * 7).to_le_bytes()).take(60_000).collect::<Vec<u8>>());
    if bulk {
        scene.write("large", (0..75_000u32).flat_map(|word| (word * 3 + 1).to_le_bytes()).collect::<Vec<u8>>());
        scene.write("a/large", vec![9; 200_000]);
    }
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    sparse.write_all_at(b"at the beginning", 0).unwrap();
    sparse.write_all_at(b"far away", 700_000).unwrap();
    fs::hard_link(top.join("a/f4"), top.join("a/b/again")).unwrap();
    fs::hard_link(top.join("chunked"), top.join("chunked too")).unwrap();
    symlink("a/f4", top.join("short")).unwrap();
    symlink("x/".repeat(300), top.join("long")).unwrap();
    for (name, len) in [("a/f4", 20), ("a", 900), ("sparse", 3000), ("chunked", 9)] {
        let value = vec![len as u8; len];
        rustix::fs::setxattr(top.join(name), "user.note", &value, rustix::fs::XattrFlags::empty()).unwrap();
    }
}

impl Base {
    fn new(battery: bool, bulk: bool, killed: bool) -> Base {
        let memory = if battery { &["--memory", "battery=region"][..] } else { &[] };
        let bulk_options = if bulk { &["--bulk-size", "4M"][..] } else { &["--bulk", "none"] };
        let scene = Scene::new(&[memory, bulk_options, &["--memory-size", "8M", "--threshold", "64K"]].concat());
        scene.mount();
        fill(&scene, bulk);
        scene.umount();
        let mut names = vec!["", "a", "a/b", "many", "a/f4", "a/f2", "a/b/f13", "chunked", "sparse", "short", "long"];
        names.extend(bulk.then_some("large"));
        let record = |name: &&str| {
            let json = scene.ok(&["inspect", "--json", "store", &format!("/{name}")]);
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            json["record_at"].as_u64().unwrap()
        };
        let targets = Targets { records: names.iter().map(record).collect() };
        scene.mount();
        if killed {
            for number in 0..30 {
                scene.write(&format!("a/late{number}"), format!("written late: {number} ").repeat(number * 3));
            }
            fs::rename(scene.at("mnt/many"), scene.at("mnt/a/b/many")).unwrap();
            fs::remove_file(scene.at("mnt/a/f6")).unwrap();
            fs::File::open(scene.at("mnt/a")).unwrap().sync_all().unwrap();
        }
        let whole = things(&scene.at("mnt"));
        assert!(whole.len() >= 200);
        if killed {
            scene.kill();
            if !battery {
                fs::write(scene.at("store/log/new-77"), "a segment half made").unwrap();
            }
        } else {
            scene.umount()
        }
        let name = format!(
            "{} memory, {} bulk, {}",
            if battery { "battery" } else { "logged" },
            if bulk { "with" } else { "without" },
            if killed { "killed" } else { "clean" }
        );
        let pid = fs::read(scene.at("store/pid")).ok().map(|bytes| ("store/pid".to_string(), bytes));
        let files = files(&scene).into_iter().map(|name| (name.clone(), fs::read(scene.at(&name)).unwrap()));
        let files = files.chain(pid).collect();
        Base { name, scene, battery, targets, whole, files }
    }

    /// Restores every file in place, because the store identifies bulk storage and the log's
    /// directory by their inode numbers.
    fn restore(&self) {
        let scene = &self.scene;
        for aside in fs::read_dir(scene.at("aside")).into_iter().flatten() {
            let path = aside.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().replace('+', "/");
            fs::rename(&path, scene.at(&name)).unwrap();
        }
        for name in files(scene).into_iter().chain(["store/pid".into()]) {
            if !self.files.contains_key(&name) {
                let _ = fs::remove_file(scene.at(&name));
            }
        }
        for (name, bytes) in &self.files {
            let path = scene.at(name);
            if fs::read(&path).is_ok_and(|found| found == *bytes) {
                continue;
            }
            let file = fs::File::options().write(true).create(true).truncate(true).open(&path).unwrap();
            for (part, piece) in bytes.chunks(65536).enumerate() {
                if piece.iter().any(|&byte| byte != 0) {
                    file.write_all_at(piece, part as u64 * 65536).unwrap();
                }
            }
            file.set_len(bytes.len() as u64).unwrap();
        }
    }

    /// Cleans up after a failure, for the next case.
    fn release(&self) {
        let _ = self.scene.run(&["umount", "--lazy", "mnt"]);
        for made in ["salvaged", "copied", "copied.region"] {
            let _ = (fs::remove_dir_all(self.scene.at(made)), fs::remove_file(self.scene.at(made)));
        }
    }

    /// Returns lengths and times of all files. A write to any of them shows here.
    fn touched(&self) -> Vec<(String, u64, i64, i64, u64)> {
        let seen = |name: String| {
            let meta = fs::metadata(self.scene.at(&name)).unwrap();
            (name, meta.len(), meta.mtime(), meta.mtime_nsec(), meta.ino())
        };
        files(&self.scene).into_iter().map(seen).collect()
    }
}

/// The exit code and output of a program that ended properly.
struct Ran {
    code: i32,
    text: String,
}

const REMEDIES: [&str; 26] = [
    "`", "add ", "bring ", "check ", "choose ", "copy ", "correct ", "format ", "free ", "give ", "if ", "leave ",
    "make ", "mount ", "move ", "name ", "put ", "remove ", "repair ", "restore ", "run ", "see ", "try ", "unmount ",
    "use ", "wait ",
];

impl Base {
    /// Runs a program that must neither crash nor hang. A refusal must contain a remedy.
    fn run(&self, args: &[&str]) -> Ran {
        let output = self.scene.run(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        let text = format!("{}{error}", String::from_utf8_lossy(&output.stdout));
        let code = output.status.code().unwrap_or(-1);
        let ended = (0..=13).contains(&code) && !text.contains("panicked");
        assert!(ended, "shoal {args:?} exits with {code}: {text}");
        if code == 1 && args[1] != "--repair" || code == 8 && args[0] != "check" {
            let last = error.lines().last().unwrap_or_default();
            let names = last.starts_with("shoal: ") && last.matches(": ").count() >= 1;
            let ends = |mark: &str| {
                last.match_indices(mark).any(|(at, _)| {
                    let rest = &last[at + mark.len()..];
                    REMEDIES.iter().any(|verb| rest.starts_with(verb))
                })
            };
            assert!(names && (ends("; ") || ends(": ")), "shoal {args:?} says no remedy: {error}");
        }
        Ran { code, text }
    }

    /// Returns the tree that a mount shows, or `None` if the mount is refused.
    fn mounted(&self, args: &[&str]) -> Option<Things> {
        let mount = self.run(&[&["mount"][..], args, &["mnt"]].concat());
        if mount.code != 0 {
            return None;
        }
        let found = things(&self.scene.at("mnt"));
        self.scene.umount();
        Some(found)
    }

    /// Returns the paths of `tree` that are missing in `made` and whose bytes are not elsewhere
    /// either. Bytes that are correct again count as found.
    fn missing(&self, tree: &Things, made: &Things) -> Vec<String> {
        let kept = |path: &PathBuf, thing: &Thing| {
            let here = made.get(path);
            let elsewhere = || made.values().any(|found| found == thing);
            here == Some(thing)
                || here.is_some() && here == self.whole.get(path)
                || elsewhere()
                // The damage may have hit the name itself.
                || !self.whole.contains_key(path) && self.whole.values().any(|right| right.bytes == thing.bytes)
        };
        tree.iter().filter(|(path, thing)| !kept(path, thing)).map(|(path, _)| path.display().to_string()).collect()
    }

    /// Runs every command on one damaged store.
    fn examine(&self, kind: Kind, seed: u64, tally: &mut BTreeMap<&'static str, u32>) {
        let scene = &self.scene;
        self.restore();
        let told = damage(scene, &self.targets, kind, seed);
        let case = format!("{}, {kind:?}, seed {seed}: {told}", self.name);
        if std::env::var_os("SHOAL_TELL").is_some() {
            println!("{case}");
        }
        let (before, touched) = (scene.sums(), self.touched());
        let same = |who: &str| assert!(self.touched() == touched, "{case}: `{who}` changes a file");
        let found = self.run(&["check", "store"]);
        same("check");
        let salvage = self.run(&["salvage", "store", "salvaged"]);
        same("salvage");
        let salvaged = things(&scene.at("salvaged"));
        let _ = fs::remove_dir_all(scene.at("salvaged"));
        let copy_memory: &[&str] = if self.battery { &["--memory", "battery=copied.region"] } else { &[] };
        let copy = self.run(&[&["copy"][..], copy_memory, &["store", "copied"]].concat());
        same("copy");
        let copied = (copy.code == 0).then(|| self.mounted(&["-o", "ro", "copied"]).expect("the copy can be mounted"));
        assert!(copy.code == 0 || !scene.at("copied").exists() && !scene.at("copied.region").exists(), "{case}");
        let _ = (fs::remove_dir_all(scene.at("copied")), fs::remove_file(scene.at("copied.region")));
        if found.code != 0 {
            let resize = self.run(&["resize", "--memory-size", "24M", "store"]);
            assert!(resize.code != 0, "{case}: a damaged store is resized");
            assert!(copy.code != 0, "{case}: a damaged store is copied as if it were sound: {}", found.text);
            same("resize");
        }
        let tree = self.mounted(&["-o", "ro", "store"]);
        same("mount -o ro");
        assert!(scene.sums() == before, "{case}: check, salvage, copy, resize or `mount -o ro` changes the store");
        *tally.entry(if found.code == 0 { "sound" } else { "found" }).or_default() += 1;
        let Some(tree) = tree else {
            *tally.entry("not mounted").or_default() += 1;
            // A check of the saved images cannot tell whether they are the whole store.
            let gone = told.contains("region is missing");
            assert!(found.code != 0 || gone, "{case}: the check finds nothing, and no mount is possible");
            return;
        };
        let missing = self.missing(&tree, &salvaged);
        assert!(missing.is_empty(), "{case}: not salvaged: {missing:?}\n{}", salvage.text);
        if let Some(copied) = copied {
            let (lacks, adds) = (self.missing(&tree, &copied), self.missing(&copied, &tree));
            assert!(copied == tree, "{case}: the copy lacks {lacks:?}, and has besides {adds:?}");
        }
        let summed = !self.battery && !matches!(kind, Kind::Bulk | Kind::Log) && !told.contains("sealed");
        if found.code == 0 && summed && !told.contains("store/bulk") && !told.contains("store/log") {
            assert!(tree == self.whole, "{case}: the check finds nothing, and the tree is another");
        }
        let repaired = self.run(&["check", "--repair", "store"]);
        let after = self.mounted(&["store"]).unwrap_or_else(|| panic!("{case}: no mount after {}", repaired.text));
        let missing = self.missing(&tree, &after);
        assert!(missing.is_empty(), "{case}: lost by the repair: {missing:?}\n{}", repaired.text);
        *tally.entry("repaired").or_default() += u32::from(repaired.code & 1 == 1);
        if found.code == 0 {
            self.restore();
            damage(scene, &self.targets, kind, seed);
            let resize = self.run(&["resize", "--memory-size", "24M", "store"]);
            assert!(resize.code == 0, "{case}: a sound store is not resized: {}", resize.text);
            let after = self.mounted(&["store"]).unwrap_or_else(|| panic!("{case}: no mount after the resize"));
            assert!(after == tree, "{case}: lost by resize: {:?}", self.missing(&tree, &after));
        }
    }
}

#[test]
fn no_damage_makes_a_look_write_or_a_remedy_lose_what_can_be_read() {
    let deep = std::env::var_os("SHOAL_DEEP").is_some();
    // The name of a case as printed in a failure, or a part of it.
    let wanted = std::env::var("SHOAL_CASE").unwrap_or_default();
    let (mut tally, mut failed) = (BTreeMap::new(), Vec::new());
    for number in 0..8u64 {
        let base = Base::new(number & 1 == 1, number & 2 == 0, number & 4 == 4);
        // Damage each store at least once, however little time there is.
        let (budget, mut is_first) = (Budget::of_a_part(8), true);
        for (place, &kind) in KINDS.iter().enumerate() {
            let seeds = match is_due(place as u64 + number, 8) {
                _ if deep || !wanted.is_empty() => 1..=12,
                // Each kind of damage is done to one of the eight stores.
                true => number + 1..=number + 1,
                false => continue,
            };
            for seed in seeds {
                let case = format!("{}, {kind:?}, seed {seed}", base.name);
                if !case.contains(&wanted) || !std::mem::take(&mut is_first) && budget.is_spent() {
                    continue;
                }
                let examined = catch_unwind(AssertUnwindSafe(|| base.examine(kind, seed, &mut tally)));
                if examined.is_err() {
                    failed.push(case);
                    base.release();
                }
            }
        }
    }
    println!("{tally:?}");
    assert!(failed.is_empty(), "{} failures, each told above: {failed:#?}", failed.len());
    let count = |what: &str| tally.get(what).copied().unwrap_or(0);
    assert!(!wanted.is_empty() || count("found") > count("sound") / 4, "{tally:?}");
}
