//! PostMark: many small files that are created, read, appended to and removed, as on a mail server.
//!
//! | module | owns |
//! |---|---|
//! | `contents` | the contents of the files |
//! | `tests` | calls and counts, and both kinds of target against a model |
//!
//! Owns: [`Workload`], the calls as a function of a seed, and [`run`], which makes them on any
//! [`Target`] and times the three phases: create, transactions, delete. Based on Katcher's program,
//! version 1.5: a transaction is a read or an append, followed by a create or a delete. An append
//! is omitted when the file already has the greatest size.
//! Rules: the calls are drawn before timing starts; directories are created and removed outside of
//! the measured time; every read's length is verified. A share of the files may be large, as in
//! Conquest's variant.
//! Differences: contents are text instead of random letters. Blocks have 4096 bytes, because the
//! original's of 512 reach the system through a buffer. Any number of files may live at once.

mod contents;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use shoal_sim::Random;

pub use contents::{Contents, RANDOM_ONE_OF};

use crate::processor::ProcessorTime;
use crate::target::{Failed, Outcome, Target};

/// Parameters, with PostMark's defaults except for the blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub seed: u64,
    /// Files of the create phase.
    pub files: u32,
    pub transactions: u32,
    /// Sizes of new files (bytes), both inclusive. No append makes a file longer than the second.
    pub size_min: u32,
    pub size_max: u32,
    /// Files per thousand new ones whose size lies between the next two values (bytes, both
    /// inclusive). This is Conquest's addition.
    pub large_of_thousand: u32,
    pub large_min: u32,
    pub large_max: u32,
    /// Directories among which the files are distributed; 0: all in one.
    pub directories: u32,
    /// Reads per ten transactions; the others append.
    pub reads_of_ten: u8,
    /// Creates per ten transactions; the others delete.
    pub creates_of_ten: u8,
    /// Unit of reading; the next is that of writing (bytes).
    pub read_block: usize,
    pub write_block: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            seed: 1,
            files: 500,
            transactions: 500,
            size_min: 500,
            size_max: 9770,
            large_of_thousand: 0,
            large_min: 2 << 20,
            large_max: 5 << 20,
            directories: 0,
            reads_of_ten: 5,
            creates_of_ten: 5,
            read_block: 4096,
            write_block: 4096,
        }
    }
}

impl Config {
    /// Returns the length of the longest file (bytes).
    pub fn len_max(&self) -> u32 {
        if self.large_of_thousand > 0 { self.size_max.max(self.large_max) } else { self.size_max }
    }

    /// Draws the least and greatest size of a new file.
    fn draw_sizes(&self, random: &mut Random) -> (u32, u32) {
        // Draw nothing if there is no choice, so that a seed of plain PostMark keeps its calls.
        let is_large = self.large_of_thousand > 0 && random.below(1000) < self.large_of_thousand.into();
        if is_large { (self.large_min, self.large_max) } else { (self.size_min, self.size_max) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Create,
    Transactions,
    Delete,
}

impl Phase {
    pub const ALL: [Phase; 3] = [Phase::Create, Phase::Transactions, Phase::Delete];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Transactions => "transactions",
            Phase::Delete => "delete",
        }
    }
}

/// A call on a file. `from` is an offset in the contents, `len` is in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create { file: u32, from: u32, len: u32 },
    Read { file: u32, len: u32 },
    Append { file: u32, from: u32, len: u32 },
    Delete { file: u32 },
}

/// Calls and bytes of a phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub created: u64,
    pub read: u64,
    pub appended: u64,
    pub deleted: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl Counts {
    fn add(&mut self, operation: &Operation) {
        match operation {
            Operation::Create { len, .. } => {
                self.created += 1;
                self.bytes_written += u64::from(*len);
            }
            Operation::Read { len, .. } => {
                self.read += 1;
                self.bytes_read += u64::from(*len);
            }
            Operation::Append { len, .. } => {
                self.appended += 1;
                self.bytes_written += u64::from(*len);
            }
            Operation::Delete { .. } => self.deleted += 1,
        }
    }
}

/// The calls of a phase and their totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub operations: Vec<Operation>,
    pub counts: Counts,
    /// Files after the phase; then the bytes in them.
    pub live_files: u64,
    pub live_bytes: u64,
}

/// All calls of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    pub config: Config,
    pub contents: Contents,
    /// Calls in the order of [`Phase::ALL`].
    pub phases: [Calls; 3],
    /// Transactions drawn; fewer than requested if no file was left.
    pub transactions: u64,
    /// Maximum number of files that live at once.
    pub live_files_max: u64,
    /// Appends omitted because the file had the greatest size.
    pub full: u64,
    /// The path of each file by its number.
    paths: Vec<String>,
}

/// A file that exists at this point while calls are drawn.
#[derive(Clone, Copy)]
struct Live {
    file: u32,
    from: usize,
    len: u32,
    /// Length beyond which no append goes.
    len_max: u32,
}

struct Draw<'a> {
    config: &'a Config,
    contents: &'a Contents,
    random: Random,
    live: Vec<Live>,
    live_files_max: u64,
    paths: Vec<String>,
    calls: Calls,
}

impl Draw<'_> {
    fn push(&mut self, operation: Operation) {
        self.calls.counts.add(&operation);
        self.calls.operations.push(operation);
    }

    fn create(&mut self) {
        let file = self.paths.len() as u32;
        let Config { directories, .. } = *self.config;
        let (len_min, len_max) = self.config.draw_sizes(&mut self.random);
        self.paths.push(match directories {
            0 => file.to_string(),
            count => format!("{}/{file}", directory(self.random.below(count.into()))),
        });
        let len = len_min + self.random.below(u64::from(len_max - len_min) + 1) as u32;
        let from = self.contents.draw(&mut self.random);
        self.live.push(Live { file, from, len, len_max });
        self.live_files_max = self.live_files_max.max(self.live.len() as u64);
        self.push(Operation::Create { file, from: from as u32, len });
    }

    fn read(&mut self) {
        let Live { file, len, .. } = self.live[self.random.index(self.live.len())];
        self.push(Operation::Read { file, len });
    }

    /// Draws an append. Returns false if the file has the greatest size.
    fn append(&mut self) -> bool {
        let at = self.random.index(self.live.len());
        let Live { file, from, len: old, len_max } = self.live[at];
        if old >= len_max {
            return false;
        }
        let len = 1 + self.random.below(u64::from(len_max - old)) as u32;
        self.live[at].len += len;
        let from = self.contents.draw_like(from, &mut self.random);
        self.push(Operation::Append { file, from: from as u32, len });
        true
    }

    fn delete(&mut self) {
        let at = self.random.index(self.live.len());
        let Live { file, .. } = self.live.swap_remove(at);
        self.push(Operation::Delete { file });
    }

    fn take_phase(&mut self) -> Calls {
        let mut calls = std::mem::take(&mut self.calls);
        calls.live_files = self.live.len() as u64;
        calls.live_bytes = self.live.iter().map(|live| u64::from(live.len)).sum();
        calls
    }
}

fn directory(number: u64) -> String {
    format!("s{number}")
}

impl Workload {
    /// Draws all calls. The same configuration gives the same calls on every machine.
    pub fn generate(config: &Config) -> Workload {
        assert!(config.size_min <= config.size_max, "sizes from {} to {}", config.size_min, config.size_max);
        assert!(config.large_min <= config.large_max, "sizes from {} to {}", config.large_min, config.large_max);
        let contents = Contents::generate(config.seed, config.len_max() as usize);
        let mut draw = Draw {
            config,
            contents: &contents,
            // Use a different stream from that of the contents.
            random: Random::new(!config.seed),
            live: vec![],
            live_files_max: 0,
            paths: vec![],
            calls: Calls::default(),
        };
        (0..config.files).for_each(|_| draw.create());
        let created = draw.take_phase();
        let (mut transactions, mut full) = (0, 0);
        while transactions < u64::from(config.transactions) && !draw.live.is_empty() {
            transactions += 1;
            if draw.random.below(10) < config.reads_of_ten.into() {
                draw.read();
            } else if !draw.append() {
                full += 1;
            }
            if draw.random.below(10) < config.creates_of_ten.into() {
                draw.create();
            } else {
                draw.delete();
            }
        }
        let mixed = draw.take_phase();
        for live in std::mem::take(&mut draw.live) {
            draw.push(Operation::Delete { file: live.file });
        }
        let deleted = draw.take_phase();
        let Draw { paths, live_files_max, .. } = draw;
        let phases = [created, mixed, deleted];
        Workload { config: config.clone(), contents, phases, transactions, live_files_max, full, paths }
    }

    /// Returns path and contents of all files at their creation.
    pub fn created(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.phases.iter().flat_map(|calls| &calls.operations).filter_map(|operation| match *operation {
            Operation::Create { file, from, len } => {
                Some((self.path(file), self.contents.slice(from as usize, len as usize)))
            }
            _ => None,
        })
    }

    fn path(&self, file: u32) -> &str {
        &self.paths[file as usize]
    }
}

/// Duration of a phase (seconds).
#[derive(Clone, Copy, Debug)]
pub struct Took {
    pub elapsed_s: f64,
    /// Processor time of the calling thread. For a store in this process this is all of it,
    /// otherwise the caller's share.
    pub processor_s: f64,
}

/// Pauses of a program that also does other work.
#[derive(Clone, Copy, Debug)]
pub struct Pauses {
    /// Calls between two pauses.
    pub calls: usize,
    pub pause: Duration,
}

/// Makes all calls and reports the duration after each phase. The root is empty before and after.
pub fn run<T: Target>(workload: &Workload, target: &T, done: &mut dyn FnMut(Phase, Took)) -> Outcome<()> {
    run_with(workload, target, None, done)
}

/// Like [`run`], with pauses that do not count.
pub fn run_with<T: Target>(
    workload: &Workload,
    target: &T,
    pauses: Option<Pauses>,
    done: &mut dyn FnMut(Phase, Took),
) -> Outcome<()> {
    let directories = || (0..workload.config.directories).map(|number| directory(number.into()));
    directories().try_for_each(|path| target.make_directory(&path))?;
    let mut buffer = vec![0; workload.config.read_block];
    for (phase, calls) in Phase::ALL.into_iter().zip(&workload.phases) {
        let mut took = Took { elapsed_s: 0.0, processor_s: 0.0 };
        for burst in calls.operations.chunks(pauses.map_or(usize::MAX, |pauses| pauses.calls)) {
            let (clock, processor) = (Instant::now(), ProcessorTime::now());
            for operation in burst {
                call(workload, target, operation, &mut buffer)?;
            }
            took.elapsed_s += clock.elapsed().as_secs_f64();
            took.processor_s += processor.elapsed_s();
            if let Some(pauses) = pauses {
                std::thread::sleep(pauses.pause);
            }
        }
        done(phase, took);
    }
    directories().try_for_each(|path| target.remove_directory(&path))?;
    match target.entries()? {
        0 => Ok(()),
        left => Err(Failed { operation: "delete", path: "/".into(), why: format!("{left} names are left") }),
    }
}

fn call<T: Target>(workload: &Workload, target: &T, operation: &Operation, buffer: &mut [u8]) -> Outcome<()> {
    let slice = |from: u32, len: u32| workload.contents.slice(from as usize, len as usize);
    let block = workload.config.write_block;
    match *operation {
        Operation::Create { file, from, len } => target.create(workload.path(file), slice(from, len), block),
        Operation::Append { file, from, len } => target.append(workload.path(file), slice(from, len), block),
        Operation::Delete { file } => target.unlink(workload.path(file)),
        Operation::Read { file, len } => {
            let (path, mut found) = (workload.path(file), 0);
            target.read(path, buffer, &mut |bytes| found += bytes.len())?;
            if found != len as usize {
                let why = format!("{found} bytes where {len} were written");
                return Err(Failed { operation: "read", path: path.into(), why });
            }
            Ok(())
        }
    }
}
