//! `shoal bench`: the same work on any file system, to compare two of them.
//!
//! Small files: create + write + close, stat, read, unlink, in directories of at most 1000 files,
//! optionally created with an fsync each. One large file: sequential and random access; written
//! data is made durable inside the measured time, and reads follow a request to the page cache to
//! drop the file. Every figure is the median of several rounds with its spread; order and contents
//! come from a seed. On a mounted store the report can also show the kernel's requests for each
//! operation.
//! Rules: everything happens in one new directory, which is removed even after an error.

mod figure;
mod large;
mod requests;
mod small;

use std::path::{Path, PathBuf};

use serde::Serialize;
use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};

use figure::{Figure, Sample};
use requests::{Counter, Requests};

use crate::args::BenchArgs;
use crate::json;
use crate::progress;

/// Most files created with an fsync each: on a disk each takes milliseconds.
const FSYNC_FILES_MAX: u64 = 1000;
/// Threads of the second fsync measurement: enough to share flushes.
const FSYNC_THREADS: usize = 16;

#[derive(Debug, Serialize)]
pub struct Report {
    pub directory: String,
    pub file_system: String,
    pub rounds: usize,
    pub results: Vec<Figure>,
}

/// The working directory of the benchmark; removed when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("shoal: {}: could not be removed: {error}", self.0.display());
        }
    }
}

pub fn run(args: &BenchArgs) -> Outcome<()> {
    let wrong = |text: &str| Failure::new("bench", text.to_string()).misuse();
    if args.rounds == 0 || args.files == 0 {
        return Err(wrong("`--rounds` and `--files` must be at least 1"));
    }
    if args.threads.iter().any(|n| !(1..=1024).contains(n)) {
        return Err(wrong("`--threads` takes numbers from 1 to 1024"));
    }
    let directory = args.directory.canonicalize().during(args.directory.display())?;
    let counter = args.requests.then(|| Counter::of(&directory)).transpose()?;
    let scratch = Scratch(directory.join(format!("shoal-bench-{}", std::process::id())));
    std::fs::create_dir(&scratch.0).during(scratch.0.display())?;
    let report = measure(args, &directory, &scratch.0, counter).during(directory.display())?;
    if args.json {
        json::print_json(&report);
    } else {
        print(&report, args);
    }
    Ok(())
}

/// The samples of one kind of work with a given number of threads, and the requests during all of
/// them.
struct Row {
    name: String,
    threads: usize,
    samples: Vec<Sample>,
    requests: Requests,
}

/// The measurements so far, and a counter of the mount's requests.
struct Table {
    rows: Vec<Row>,
    counter: Option<Counter>,
}

impl Table {
    /// Discards the requests counted since the last measurement.
    fn skip(&mut self) -> std::io::Result<()> {
        self.counter.as_mut().map_or(Ok(()), |counter| counter.since().map(drop))
    }

    fn add(&mut self, name: &str, threads: usize, sample: Sample) -> std::io::Result<()> {
        let requests = self.counter.as_mut().map_or(Ok(Requests::new()), Counter::since)?;
        let known = self.rows.iter().position(|row| row.name == name && row.threads == threads);
        let at = known.unwrap_or_else(|| {
            let (samples, requests) = (Vec::new(), Requests::new());
            self.rows.push(Row { name: name.into(), threads, samples, requests });
            self.rows.len() - 1
        });
        let row = &mut self.rows[at];
        row.samples.push(sample);
        for (kind, count) in requests {
            *row.requests.entry(kind).or_default() += count;
        }
        Ok(())
    }
}

fn measure(args: &BenchArgs, directory: &Path, scratch: &Path, counter: Option<Counter>) -> std::io::Result<Report> {
    let mut table = Table { rows: Vec::new(), counter };
    let fsync_threads: &[usize] = if args.fsync { &[1, FSYNC_THREADS] } else { &[] };
    let steps = args.rounds * (args.threads.len() + fsync_threads.len() + usize::from(args.large.0 > 0));
    let bar = progress::steps(steps as u64, args.json);
    for round in 0..args.rounds {
        let seed = args.seed.wrapping_mul(1000).wrapping_add(round as u64);
        let work = |files, threads, fsync| small::Work { files, threads, size: args.size.0, fsync, seed };
        for &threads in &args.threads {
            bar.set_message(format!("small files, {threads} threads"));
            table.skip()?;
            small::run(scratch, &work(args.files, threads, false), &mut |name, sample| {
                table.add(name, threads, sample)
            })?;
            bar.inc(1);
        }
        for &threads in fsync_threads {
            bar.set_message(format!("fsync, {threads} threads"));
            let files = args.files.min(FSYNC_FILES_MAX);
            table.skip()?;
            small::run(scratch, &work(files, threads, true), &mut |name, sample| match name {
                "create" => table.add("create+fsync", threads, sample),
                _ => Ok(()),
            })?;
            bar.inc(1);
        }
        if args.large.0 > 0 {
            bar.set_message("large file");
            table.skip()?;
            large::run(scratch, args.large.0, seed, &mut |name, sample| table.add(name, 1, sample))?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let results = table.rows.iter().map(|row| {
        let figure = Figure::of(&row.name, row.threads, &row.samples);
        if table.counter.is_some() { figure.with_requests(&row.samples, &row.requests) } else { figure }
    });
    Ok(Report {
        directory: directory.display().to_string(),
        file_system: file_system_of(directory),
        rounds: args.rounds,
        results: results.collect(),
    })
}

/// Returns the type of the file system that holds a (canonical) path.
fn file_system_of(path: &Path) -> String {
    let mounts = shoal_fuse::mount_table::mounts().unwrap_or_default();
    let holding = mounts.into_iter().filter(|entry| path.starts_with(&entry.mountpoint));
    // `max_by_key` returns the last of equal elements: the mount that covers the others.
    let deepest = holding.max_by_key(|entry| entry.mountpoint.components().count());
    deepest.map_or("unknown".into(), |entry| entry.file_system_type)
}

fn print(report: &Report, args: &BenchArgs) {
    println!(
        "{} ({}): {} files of {}, large file of {}, median of {} rounds",
        report.directory,
        report.file_system,
        args.files,
        human(args.size.0),
        human(args.large.0),
        report.rounds
    );
    println!(
        "{:<18} {:>7} {:>12} {:>10} {:>10}   {:>21}",
        "operation", "threads", "ops/s", "us/op", "MiB/s", "ops/s min..max"
    );
    for figure in &report.results {
        println!(
            "{:<18} {:>7} {:>12.0} {:>10.2} {:>10} {:>11.0}..{:<10.0}",
            figure.name,
            figure.threads,
            figure.operations_per_s.median,
            figure.us_per_operation,
            figure.mib_per_s.map_or(String::new(), |rate| format!("{:.0}", rate.median)),
            figure.operations_per_s.min,
            figure.operations_per_s.max,
        );
    }
    if args.requests {
        println!("\n{:<18} {:>7} {:>12}   each", "requests", "threads", "for one");
        for figure in &report.results {
            let each: Vec<_> = figure.requests.iter().flatten().map(|(name, n)| format!("{n:.2} {name}")).collect();
            let sum: f64 = figure.requests.iter().flatten().map(|(_, count)| count).sum();
            println!("{:<18} {:>7} {sum:>12.2}   {}", figure.name, figure.threads, each.join(", "));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_devices::size::Size;

    #[test]
    fn every_measurement_is_reported_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let args = BenchArgs {
            directory: dir.path().into(),
            files: 20,
            size: Size(100),
            large: Size(1 << 20),
            threads: vec![1, 3],
            fsync: true,
            rounds: 2,
            seed: 5,
            json: true,
            requests: false,
        };
        run(&args).unwrap();
        let error = run(&BenchArgs { requests: true, ..args.clone() }).unwrap_err();
        assert!(error.to_string().contains("mounted store"), "{error}");
        let scratch = dir.path().join("s");
        std::fs::create_dir(&scratch).unwrap();
        let report = measure(&args, dir.path(), &scratch, None).unwrap();
        let names: Vec<_> = report.results.iter().map(|f| (f.name.as_str(), f.threads)).collect();
        let small = |t| [("create", t), ("stat", t), ("read", t), ("unlink", t)];
        let mut expected: Vec<_> = small(1).into_iter().chain(small(3)).collect();
        expected.extend([("create+fsync", 1), ("create+fsync", 16)]);
        expected.extend(["seq write", "seq read", "random read", "random write"].map(|name| (name, 1)));
        assert_eq!(names, expected);
        assert!(report.results.iter().all(|f| f.operations_per_s.min > 0.0));
        assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
        std::fs::remove_dir(&scratch).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["results"][0]["operations_per_s"]["median"].is_number());
        assert!(json["results"][0].get("mib_per_s").is_none() && json["results"][0].get("requests").is_none());
    }
}
