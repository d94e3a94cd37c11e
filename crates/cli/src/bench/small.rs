//! The small-file measurements: create, stat, read, unlink.
//!
//! Every thread has its own directories and files. A phase is timed from the moment all threads
//! start it until the last one has finished. Files are visited in random order, except when they
//! are created.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Instant;

use fastrand::Rng;

use super::figure::Sample;

const FILES_PER_DIRECTORY: u64 = 1000;

pub struct Work {
    pub files: u64,
    pub threads: usize,
    pub size: u64,
    /// Make each file durable before it is closed.
    pub fsync: bool,
    pub seed: u64,
}

const PHASES: [&str; 4] = ["create", "stat", "read", "unlink"];

pub fn run(scratch: &Path, work: &Work, report: &mut dyn FnMut(&str, Sample) -> io::Result<()>) -> io::Result<()> {
    let each = work.files.div_ceil(work.threads as u64);
    let start = Barrier::new(work.threads + 1);
    let end = Barrier::new(work.threads + 1);
    // Create all workers before the first thread starts. If creating a worker failed later, the
    // started threads would wait forever.
    let workers: Vec<Worker> =
        (0..work.threads).map(|i| Worker::new(scratch, work, i, each)).collect::<io::Result<_>>()?;
    let outcome = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for mut worker in workers {
            let (start, end) = (&start, &end);
            threads.push(scope.spawn(move || {
                let mut outcome = Ok(());
                for phase in PHASES {
                    start.wait();
                    if outcome.is_ok() {
                        outcome = worker.run(phase);
                    }
                    // A thread with an error must get here, too, because the others wait for it.
                    end.wait();
                }
                outcome
            }));
        }
        let mut reported = Ok(());
        for phase in PHASES {
            start.wait();
            let begin = Instant::now();
            end.wait();
            let operations = each * work.threads as u64;
            let sample = Sample { operations, bytes: 0, time: begin.elapsed() };
            // The threads wait for this one, even after an error.
            reported = reported.and_then(|()| report(phase, sample));
        }
        let results = threads.into_iter().map(|thread| thread.join().expect("a worker returns its errors"));
        results.collect::<io::Result<Vec<()>>>().and(reported)
    });
    for index in 0..work.threads {
        remove(&directory(scratch, index))?;
    }
    outcome
}

fn directory(scratch: &Path, index: usize) -> PathBuf {
    scratch.join(format!("t{index}"))
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

struct Worker {
    paths: Vec<PathBuf>,
    random: Rng,
    content: Vec<u8>,
    buffer: Vec<u8>,
    fsync: bool,
}

impl Worker {
    fn new(scratch: &Path, work: &Work, index: usize, files: u64) -> io::Result<Worker> {
        let directory = directory(scratch, index);
        let mut paths = Vec::with_capacity(files as usize);
        for i in 0..files {
            let inner = directory.join(format!("d{}", i / FILES_PER_DIRECTORY));
            if i % FILES_PER_DIRECTORY == 0 {
                std::fs::create_dir_all(&inner)?;
            }
            paths.push(inner.join(format!("f{i}")));
        }
        let mut random = Rng::with_seed(work.seed ^ (index as u64) << 32);
        let mut content = vec![0; work.size as usize];
        random.fill(&mut content);
        Ok(Worker { paths, random, content, buffer: Vec::new(), fsync: work.fsync })
    }

    fn run(&mut self, phase: &str) -> io::Result<()> {
        if phase != "create" {
            self.random.shuffle(&mut self.paths);
        }
        for i in 0..self.paths.len() {
            let path = &self.paths[i];
            match phase {
                "create" => {
                    let mut file = File::create_new(path)?;
                    file.write_all(&self.content)?;
                    if self.fsync {
                        file.sync_all()?;
                    }
                }
                "stat" => {
                    std::fs::symlink_metadata(path)?;
                }
                "read" => {
                    self.buffer.clear();
                    File::open(path)?.read_to_end(&mut self.buffer)?;
                    if self.buffer != self.content {
                        let text = format!("{}: the data read is not the data written", path.display());
                        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
                    }
                }
                _ => std::fs::remove_file(path)?,
            }
        }
        Ok(())
    }
}
