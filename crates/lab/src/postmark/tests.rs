//! The calls as a function of the seed, their counts, and the bytes that both kinds of target return.
//!
//! Owns: [`Checked`], which makes each call both on a target and on a map of paths, and compares
//! what is read. Left out: the experiment with its tables (`tests/mramfs.rs`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

use super::*;
use crate::mramfs::variants::{Packing, VARIANTS};
use crate::target::{Directory, Engine};

const PACKING: Packing = Packing { method: shoal_fs::Method::Auto, load: 100 };

fn small(directories: u32) -> Config {
    Config { files: 300, transactions: 2000, size_min: 1, size_max: 4095, directories, ..Config::default() }
}

/// A target and a model of it.
struct Checked<'a, T> {
    target: &'a T,
    files: RefCell<BTreeMap<String, Vec<u8>>>,
    /// Number of files and of their bytes after each phase.
    seen: RefCell<Vec<(u64, u64)>>,
}

impl<'a, T: Target> Checked<'a, T> {
    fn new(target: &'a T) -> Checked<'a, T> {
        Checked { target, files: RefCell::default(), seen: RefCell::default() }
    }

    fn run(&self, workload: &Workload) {
        let look = |_: Phase, took: Took| {
            assert!(took.elapsed_s > 0.0 && took.processor_s > 0.0);
            let files = self.files.borrow();
            self.seen.borrow_mut().push((files.len() as u64, files.values().map(|bytes| bytes.len() as u64).sum()));
        };
        run(workload, self, &mut { look }).unwrap();
        assert_eq!((self.target.entries().unwrap(), self.files.borrow().len()), (0, 0));
        let expected: Vec<_> = workload.phases.iter().map(|calls| (calls.live_files, calls.live_bytes)).collect();
        assert_eq!(*self.seen.borrow(), expected);
    }
}

impl<T: Target> Target for Checked<'_, T> {
    fn make_directory(&self, path: &str) -> Outcome<()> {
        self.target.make_directory(path)
    }

    fn remove_directory(&self, path: &str) -> Outcome<()> {
        self.target.remove_directory(path)
    }

    fn create(&self, path: &str, contents: &[u8], block: usize) -> Outcome<()> {
        assert_eq!(self.files.borrow_mut().insert(path.into(), contents.into()), None, "{path} is made twice");
        self.target.create(path, contents, block)
    }

    fn read(&self, path: &str, buffer: &mut [u8], each: &mut dyn FnMut(&[u8])) -> Outcome<()> {
        let mut found = vec![];
        self.target.read(path, buffer, &mut |bytes| found.extend_from_slice(bytes))?;
        assert!(found == self.files.borrow()[path], "{path}: other bytes");
        each(&found);
        Ok(())
    }

    fn append(&self, path: &str, contents: &[u8], block: usize) -> Outcome<()> {
        let mut files = self.files.borrow_mut();
        files.get_mut(path).expect("a file that lives").extend_from_slice(contents);
        self.target.append(path, contents, block)
    }

    fn unlink(&self, path: &str) -> Outcome<()> {
        self.files.borrow_mut().remove(path).expect("a file that lives");
        self.target.unlink(path)
    }

    fn entries(&self) -> Outcome<u64> {
        self.target.entries()
    }
}

#[test]
fn one_seed_makes_one_workload() {
    let of = |seed| Workload::generate(&Config { seed, ..small(7) });
    assert_eq!(of(1), of(1));
    assert_ne!(of(1).phases, of(2).phases);
    assert_ne!(of(1).contents, of(2).contents);
}

#[test]
fn counts_add_up() {
    let config = small(0);
    let workload = Workload::generate(&config);
    let [created, mixed, deleted] = workload.phases.each_ref().map(|calls| calls.counts);
    assert_eq!((created.created, workload.transactions), (300, 2000));
    assert_eq!(mixed.read + mixed.appended + workload.full, 2000);
    assert_eq!(mixed.created + mixed.deleted, 2000);
    assert_eq!(created.created + mixed.created, mixed.deleted + deleted.deleted);
    assert_eq!(deleted, Counts { deleted: workload.phases[1].live_files, ..Counts::default() });
    assert!((900..1100).contains(&mixed.read) && (900..1100).contains(&mixed.created), "{mixed:?}");
    assert!(workload.live_files_max >= 300);
    for (_, contents) in workload.created() {
        assert!((1..=4095).contains(&contents.len()));
    }

    let biased = |reads_of_ten, creates_of_ten| {
        let workload = Workload::generate(&Config { reads_of_ten, creates_of_ten, ..small(0) });
        (workload.transactions, workload.phases[1].counts)
    };
    let (all, reads) = biased(10, 10);
    assert_eq!((all, reads.read, reads.appended, reads.created), (2000, 2000, 0, 2000));
    let (until_empty, deletes) = biased(0, 0);
    assert_eq!((until_empty, deletes.read, deletes.deleted), (300, 0, 300));
}

#[test]
fn files_lie_in_all_directories_or_in_none() {
    let directories = |count| -> std::collections::BTreeSet<String> {
        let workload = Workload::generate(&small(count));
        workload.created().map(|(path, _)| path.rsplit_once('/').map_or("", |split| split.0).to_string()).collect()
    };
    assert_eq!((directories(0).len(), directories(1).len(), directories(10).len()), (1, 1, 10));
    assert!(directories(0).contains("") && directories(10).contains("s9"));
}

#[test]
fn text_compresses_two_to_three_times_and_one_file_of_sixteen_does_not() {
    let workload = Workload::generate(&Config { files: 4000, transactions: 0, ..small(0) });
    let (mut plain, mut left, mut kept, mut files) = (0, 0, 0, 0);
    for (_, contents) in workload.created().filter(|(_, contents)| contents.len() > 512) {
        let mut deflate = DeflateEncoder::new(vec![], Compression::default());
        deflate.write_all(contents).unwrap();
        let len = deflate.finish().unwrap().len();
        files += 1;
        if len > contents.len() {
            kept += 1;
        } else {
            plain += contents.len();
            left += len;
        }
    }
    let ratio = plain as f64 / left as f64;
    assert!((2.0..3.0).contains(&ratio), "{ratio}");
    assert!((files / 20..files / 13).contains(&kept), "{kept} of {files}");
}

#[test]
fn a_store_returns_what_was_written_and_is_empty_at_the_end() {
    for variant in VARIANTS {
        for directories in [0, 7] {
            // One block that divides no length evenly, one longer than all files, and one that
            // divides some lengths.
            for block in [1000, 4096, 64] {
                let config = Config { read_block: block, write_block: block, ..small(directories) };
                let workload = Workload::generate(&config);
                let running = variant.start(workload.live_files_max, 4095, PACKING).unwrap();
                let fs = &*running.fs;
                Checked::new(&Engine(fs)).run(&workload);
            }
        }
    }
}

#[test]
fn a_directory_returns_what_was_written_and_is_gone_at_the_end() {
    let scratch = tempfile::tempdir().unwrap();
    for directories in [0, 7] {
        let directory = Directory::create_in(scratch.path()).unwrap();
        assert!(Directory::create_in(scratch.path()).is_err(), "another run is in it");
        Checked::new(&directory).run(&Workload::generate(&small(directories)));
        drop(directory);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_file_of_another_length_and_names_that_are_left_are_errors() {
    let workload = Workload::generate(&small(0));
    let scratch = tempfile::tempdir().unwrap();
    let directory = Directory::create_in(scratch.path()).unwrap();
    let mut shorten = |phase: Phase, _: Took| {
        if phase == Phase::Create {
            for entry in std::fs::read_dir(directory.root()).unwrap() {
                std::fs::write(entry.unwrap().path(), b"").unwrap();
            }
        }
    };
    let error = run(&workload, &directory, &mut shorten).unwrap_err().to_string();
    assert!(error.starts_with("read ") && error.contains(": 0 bytes where "), "{error}");

    let fs = VARIANTS[0].make(1000, 4095, PACKING).unwrap();
    let engine = Engine(&fs);
    engine.create("more", b"1", 1).unwrap();
    let error = run(&workload, &engine, &mut |_, _| ()).unwrap_err().to_string();
    assert_eq!(error, "delete /: 1 names are left");
}
