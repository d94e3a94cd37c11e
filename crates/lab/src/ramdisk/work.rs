//! The benchmarks of section 4, in a directory of any file system.
//!
//! Owns: [`Work`], a benchmark with its input, and its operations; each is timed on a fresh mount.
//! Rules: an operation ends when its file system has written everything to its device: the paper's
//! machines had less memory than the files took, and ours has more. The same seed makes the same
//! calls everywhere, and draws them before the clock runs. What is read must have its length. Left
//! out: the original programs lat_fs, IOstone and IOzone. Of IOstone the text gives no file sizes, so
//! they are powers of two from 256 bytes to 64 KB, and its constant is left out: figures are
//! operations per second.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use shoal_sim::Random;

use super::places::Writes;
use super::{Part, Plan};
use crate::experiment::LabError;
use crate::places::write_back;
use crate::postmark::Contents;
use crate::target::{Directory, Target};
use crate::trees::programs::Programs;
use crate::trees::shape::Shape;
use crate::world::broken;

const TREE_FILES: u32 = 1075;
const TREE_BYTES: u64 = 28 << 20;
/// A text that no file contains.
const ABSENT: &str = "no-file-has-these-words";
const SETS: u32 = 4;
const SET_FILES: u32 = 99;
const ITERATIONS: u32 = 4;
const SIZED_FILES: u32 = 2000;
pub const SIZES: [usize; 3] = [1 << 10, 4 << 10, 16 << 10];
const STREAM_BYTES: u32 = 16 << 20;
/// Unit of reads and writes: a block of UFS.
const BLOCK: usize = 8 << 10;
pub const COUNTS: [u32; 3] = [1024, 4096, 16384];
const COUNTED_BYTES: usize = 2 << 10;

pub const SECONDS: &str = "s";
pub const OPERATIONS: &str = "operations/s";
pub const MS_PER_FILE: &str = "ms/file";
pub const RATE: &str = "MB/s";

/// A part of a benchmark that is timed by itself.
#[derive(Clone, Debug)]
pub struct Operation {
    pub name: String,
    pub unit: &'static str,
    pub writes: Writes,
    /// Files, calls or bytes that the time is divided by.
    amount: f64,
}

impl Operation {
    fn new(name: String, unit: &'static str, writes: Writes, amount: impl Into<f64>) -> Operation {
        Operation { name, unit, writes, amount: amount.into() }
    }

    /// Returns the figure for a time.
    fn figure(&self, took_s: f64) -> f64 {
        match self.unit {
            SECONDS => took_s,
            OPERATIONS => self.amount / took_s,
            MS_PER_FILE => took_s * 1e3 / self.amount,
            RATE => self.amount / 1e6 / took_s,
            unit => unreachable!("unit {unit}"),
        }
    }

    /// Returns how many times as fast `ours` is as `other`.
    pub fn speedup(&self, ours: f64, other: f64) -> f64 {
        if matches!(self.unit, OPERATIONS | RATE) { ours / other } else { other / ours }
    }
}

/// A call of IOstone: its file, and the offset of the new contents if the call writes.
type Call = (usize, Option<usize>);

#[derive(Debug)]
enum Kind {
    /// An archive to unpack and to search.
    Tree {
        tar: PathBuf,
    },
    Iostone {
        lens: Vec<usize>,
        calls: Vec<Call>,
    },
    /// Files of one length, created in order and deleted in another.
    Files {
        len: usize,
        deletions: Vec<usize>,
    },
    Stream {
        len: usize,
    },
}

/// A benchmark with its input.
#[derive(Debug)]
pub struct Work {
    pub part: Part,
    kind: Kind,
    contents: Contents,
    pub operations: Vec<Operation>,
}

fn files(part: Part, plan: &Plan, count: u32, len: usize, writes: Writes) -> Work {
    let count = plan.scaled(count);
    let deletions = Random::new(plan.seed).shuffled(0..count as usize);
    let name = |what| format!("{what}, {count} files of {} KB", len >> 10);
    let operations = ["create", "delete at random"].map(|what| Operation::new(name(what), MS_PER_FILE, writes, count));
    Work {
        part,
        kind: Kind::Files { len, deletions },
        contents: Contents::generate(plan.seed, len),
        operations: operations.into(),
    }
}

fn iostone(plan: &Plan) -> Work {
    let mut random = Random::new(plan.seed);
    let lens: Vec<usize> = (0..SETS * plan.scaled(SET_FILES)).map(|_| 256 << random.index(9)).collect();
    let contents = Contents::generate(plan.seed, 64 << 10);
    let mut calls = vec![];
    for _ in 0..ITERATIONS {
        for file in random.shuffled(0..lens.len()) {
            // Two reads for one write.
            let is_write = random.below(3) == 0;
            calls.push((file, is_write.then(|| contents.draw(&mut random))));
        }
    }
    let name = format!("IOstone, {} files", lens.len());
    let operation = Operation::new(name, OPERATIONS, Writes::Synchronous, calls.len() as u32);
    Work { part: Part::Iostone, kind: Kind::Iostone { lens, calls }, contents, operations: vec![operation] }
}

fn tree(plan: &Plan, tar: PathBuf) -> Result<Work, LabError> {
    let count = plan.scaled(TREE_FILES);
    let shape = Shape::generate(plan.seed, count, TREE_BYTES * u64::from(count) / u64::from(TREE_FILES));
    let write = || shape.write_tar(&mut std::io::BufWriter::new(File::create(&tar)?));
    write().map_err(|error| broken(tar.display(), error))?;
    let name = |what| format!("{what}, {count} files, {:.1} MB", shape.bytes() as f64 / 1e6);
    let operations = vec![
        // UFS writes names at once and data late. `-o sync` would wait for each piece that tar writes.
        Operation::new(name("tar unpack"), SECONDS, Writes::Names, count),
        Operation::new(name("find and grep"), SECONDS, Writes::Late, count),
    ];
    Ok(Work { part: Part::Tree, kind: Kind::Tree { tar }, contents: Contents::generate(plan.seed, 1), operations })
}

fn stream(plan: &Plan) -> Work {
    let len = plan.scaled(STREAM_BYTES);
    let name = |what| format!("sequential {what}, {:.1} MB", f64::from(len) / 1e6);
    let operations = ["write", "read"].map(|what| Operation::new(name(what), RATE, Writes::Late, len));
    Work {
        part: Part::Sequential,
        kind: Kind::Stream { len: len as usize },
        contents: Contents::generate(plan.seed, len as usize),
        operations: operations.into(),
    }
}

/// Makes the benchmarks of a plan. An archive is written into the scratch directory.
pub fn all(plan: &Plan, scratch: &Path) -> Result<Vec<Work>, LabError> {
    let mut works = vec![];
    for part in &plan.parts {
        match part {
            Part::Tree => works.push(tree(plan, scratch.join("tree.tar"))?),
            Part::Iostone => works.push(iostone(plan)),
            Part::Sizes => {
                works.extend(SIZES.map(|len| files(*part, plan, SIZED_FILES, len, Writes::Synchronous)));
            }
            Part::Sequential => works.push(stream(plan)),
            Part::Counts => {
                works.extend(COUNTS.map(|count| files(*part, plan, count, COUNTED_BYTES, Writes::Late)));
            }
        }
    }
    Ok(works)
}

fn name(file: usize) -> String {
    format!("file-{file}")
}

impl Work {
    /// Makes what must be there before the first operation.
    pub fn prepare(&self, directory: &Directory) -> Result<(), LabError> {
        if let Kind::Iostone { lens, .. } = &self.kind {
            for (file, len) in lens.iter().enumerate() {
                directory.create(&name(file), self.contents.slice(0, *len), BLOCK)?;
            }
        }
        Ok(())
    }

    /// Runs an operation. Returns its figure.
    pub fn run(&self, operation: usize, directory: &Directory, programs: &Programs) -> Result<f64, LabError> {
        if let Kind::Tree { tar } = &self.kind {
            // No place waits for the archive, or for the programs.
            std::fs::read(tar).map_err(|error| broken(tar.display(), error))?;
            ["tar", "find", "grep"].iter().for_each(|name| programs.load(name));
        }
        let clock = Instant::now();
        match &self.kind {
            Kind::Tree { tar } if operation == 0 => unpack(tar, directory, programs)?,
            Kind::Tree { .. } => search(directory, programs)?,
            Kind::Iostone { lens, calls } => self.calls(lens, calls, directory)?,
            Kind::Files { len, deletions } if operation == 0 => {
                let contents = self.contents.slice(0, *len);
                (0..deletions.len()).try_for_each(|file| directory.create(&name(file), contents, *len))?;
            }
            Kind::Files { deletions, .. } => deletions.iter().try_for_each(|file| directory.unlink(&name(*file)))?,
            Kind::Stream { len } if operation == 0 => {
                directory.create("stream", self.contents.slice(0, *len), BLOCK)?;
            }
            Kind::Stream { len } => read(directory, "stream", *len)?,
        }
        write_back(directory.root())?;
        Ok(self.operations[operation].figure(clock.elapsed().as_secs_f64()))
    }

    fn calls(&self, lens: &[usize], calls: &[Call], directory: &Directory) -> Result<(), LabError> {
        for (file, from) in calls {
            let (name, len) = (name(*file), lens[*file]);
            match from {
                Some(from) => rewrite(&directory.root().join(name), self.contents.slice(*from, len))?,
                None => read(directory, &name, len)?,
            }
        }
        Ok(())
    }
}

/// Replaces the contents of a file.
fn rewrite(path: &Path, contents: &[u8]) -> Result<(), LabError> {
    let write = || {
        let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
        contents.chunks(BLOCK).try_for_each(|piece| file.write_all(piece))
    };
    write().map_err(|error: std::io::Error| broken(path.display(), error))
}

fn read(directory: &Directory, name: &str, len: usize) -> Result<(), LabError> {
    let mut found = 0;
    directory.read(name, &mut [0; BLOCK], &mut |piece| found += piece.len())?;
    if found == len {
        return Ok(());
    }
    Err(broken(directory.root().join(name).display(), format!("has {found} bytes instead of {len}")))
}

fn unpack(tar: &Path, directory: &Directory, programs: &Programs) -> Result<(), LabError> {
    programs.run("tar", &[&"-xf", &tar], directory.root()).map(drop)
}

fn search(directory: &Directory, programs: &Programs) -> Result<(), LabError> {
    // Grep ends with 1 where it finds nothing.
    let search = "grep -lF -e \"$0\" \"$@\" || test $? = 1";
    let words: [&dyn AsRef<std::ffi::OsStr>; 10] =
        [&".", &"-type", &"f", &"-exec", &"sh", &"-c", &search, &ABSENT, &"{}", &"+"];
    let found = programs.run("find", &words, directory.root())?.output;
    if found.is_empty() {
        return Ok(());
    }
    Err(broken(format!("grep in {}", directory.root().display()), format!("found what no file has: {found}")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::ValueEnum;

    use super::*;

    fn plan(scale: f64) -> Plan {
        Plan {
            parts: Part::value_variants().to_vec(),
            link: None,
            shoal: PathBuf::new(),
            rpm: 3600,
            seed: 1,
            runs: 1,
            scale,
            timeout: Duration::from_secs(60),
        }
    }

    #[test]
    fn every_benchmark_runs_in_any_directory_and_leaves_what_it_says() {
        let [scratch, place] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let path = std::env::var_os("PATH").unwrap();
        let programs = Programs { path, timeout: Duration::from_secs(60), scratch: scratch.path().into() };
        let works = all(&plan(0.01), scratch.path()).unwrap();
        assert_eq!(works.len(), 3 + SIZES.len() + COUNTS.len());
        for work in &works {
            let directory = Directory::create_in(place.path()).unwrap();
            work.prepare(&directory).unwrap();
            for (number, operation) in work.operations.iter().enumerate() {
                assert!(work.run(number, &directory, &programs).unwrap() > 0.0, "{}", operation.name);
            }
            let left = directory.entries().unwrap();
            match work.kind {
                Kind::Files { .. } => assert_eq!(left, 0, "all are deleted"),
                Kind::Iostone { ref lens, .. } => assert_eq!(left, lens.len() as u64),
                Kind::Tree { .. } | Kind::Stream { .. } => assert_eq!(left, 1),
            }
        }
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn iostone_reads_twice_as_often_as_it_writes_and_takes_each_file_as_often() {
        let Work { kind: Kind::Iostone { lens, calls }, .. } = iostone(&plan(1.0)) else { panic!("not IOstone") };
        assert_eq!((lens.len(), calls.len()), (396, 1584));
        let writes = calls.iter().filter(|(_, from)| from.is_some()).count();
        assert!((450..610).contains(&writes), "{writes} of 1584, a third on average");
        let mut times = vec![0; lens.len()];
        calls.iter().for_each(|(file, _)| times[*file] += 1);
        assert!(times.iter().all(|times| *times == ITERATIONS));
    }

    #[test]
    fn a_short_file_and_a_text_that_is_there_are_told() {
        let [scratch, place] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let path = std::env::var_os("PATH").unwrap();
        let programs = Programs { path, timeout: Duration::from_secs(60), scratch: scratch.path().into() };
        let directory = Directory::create_in(place.path()).unwrap();
        directory.create("a", b"1234", BLOCK).unwrap();
        let said = read(&directory, "a", 5).unwrap_err().to_string();
        assert!(said.contains("has 4 bytes instead of 5"), "{said}");
        search(&directory, &programs).unwrap();
        directory.create("b", ABSENT.as_bytes(), BLOCK).unwrap();
        let said = search(&directory, &programs).unwrap_err().to_string();
        assert!(said.contains("found what no file has: ./b"), "{said}");
    }

    #[test]
    fn a_figure_is_faster_where_it_is_larger_or_smaller_by_its_unit() {
        let of = |unit| Operation::new("x".into(), unit, Writes::Late, 2000);
        assert_eq!((of(MS_PER_FILE).figure(4.0), of(OPERATIONS).figure(4.0)), (2.0, 500.0));
        assert_eq!((of(SECONDS).figure(4.0), of(RATE).figure(4.0)), (4.0, 0.0005));
        assert_eq!((of(SECONDS).speedup(2.0, 6.0), of(RATE).speedup(6.0, 2.0)), (3.0, 3.0));
    }
}
